//! The program itself: exit codes, saved files, what it says to whom.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::server::{Then, one_token, serve, whole};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(args)
        .env_remove("OPENAI_API_KEY")
        .output()
        .expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server without `/metrics/summary`, as others write them.
fn foreign() -> SocketAddr {
    serve(|head, _, stream| {
        if head.starts_with("POST /v1/chat/completions ") {
            one_token(stream)
        } else {
            whole(stream, "404 Not Found", "application/json", r#"{"detail":"Not Found"}"#)
        }
    })
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("llmsim-bench-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn a_foreign_server_is_measured_and_its_metrics_are_not_available() {
    let address = foreign().to_string();
    let url = format!("http://{address}/v1");
    let file = folder("foreign").join("out.json");
    let path = file.to_str().expect("text");
    let out = bench(&[
        "--url",
        &url,
        "--model",
        "m",
        "--concurrency",
        "4",
        "--requests",
        "20",
        "--output",
        path,
        "--api-key",
        "sk-secret",
    ]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}{}", text(&out.stderr));
    assert!(shown.contains("20 ok · 0 failed"), "{shown}");
    assert!(shown.contains("server      not available"), "{shown}");
    let saved = std::fs::read_to_string(&file).expect("saved");
    assert!(saved.contains("\"completed\": 20"), "{saved}");
    assert!(!saved.contains("sk-secret"), "the key stays at home");
}

#[test]
fn the_program_fails_if_every_request_fails() {
    let address = serve(|_, _, stream| whole(stream, "500 Oops", "text/plain", "no"));
    let url = format!("http://{address}");
    let out = bench(&["--url", &url, "-m", "m", "-n", "3"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("all 1 warm-up requests failed"), "{}", text(&out.stderr));
    let out = bench(&["--url", &url, "-m", "m", "-n", "3", "--warmup", "0"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stdout).contains("3 × 5xx"), "{}", text(&out.stdout));
}

#[test]
fn what_cannot_be_run_is_refused_with_a_reason() {
    for (args, part) in [
        (vec!["-m", "m", "--url", "ftp://example.org"], "unknown scheme 'ftp://'"),
        (vec!["--requests", "3"], "--model is missing"),
        (vec!["-m", "m", "--input-tokens", "3"], "--input-tokens"),
        (vec!["-m", "m", "--input-tokens", "9", "--prompt", "x"], "one source per run"),
        (vec!["-m", "m", "--load", "jump"], "not understood"),
        (vec!["-m", "m", "--rate", "0"], "--rate 0"),
        (vec!["-m", "m", "--dataset", "/nowhere"], "/nowhere"),
        (vec!["-m", "m", "--goodput", "ttft"], "ttft:200"),
        (vec!["-m", "m", "--concurrency", "2", "--rate", "3"], "cannot be used with"),
        (vec!["-m", "m", "--dataset-name", "sharegpt"], "--dataset-path"),
        (vec!["-m", "m", "--time-scale", "2"], "--time-scale"),
        (vec!["-m", "m", "--backend", "tgi"], "openai-chat"),
        (vec!["-m", "m", "--backend", "openai-chat", "--endpoint", "/v1/completions"], "--backend"),
        (vec!["-m", "m", "--backend", "vllm", "--simulate", "builtin:models"], "chat completions"),
    ] {
        let out = bench(&args);
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert!(text(&out.stderr).contains(part), "{args:?}: {}", text(&out.stderr));
    }
}

#[test]
fn a_sweep_goes_on_after_a_level_that_fails() {
    static LEVEL_TWO: AtomicU32 = AtomicU32::new(0);
    // The second level's warm-up is the requests after 2 + 4 of the first.
    let address = serve(|head, _, stream| {
        if !head.starts_with("POST /v1/chat") {
            return whole(stream, "404 Not Found", "text/plain", "");
        }
        match LEVEL_TWO.fetch_add(1, Ordering::SeqCst) {
            6..9 => whole(stream, "500 Oops", "text/plain", "no"),
            _ => one_token(stream),
        }
    });
    let url = format!("http://{address}");
    let out = bench(&[
        "--url",
        &url,
        "-m",
        "m",
        "--concurrency",
        "2,3,1",
        "-n",
        "4",
        "--no-selftest",
        "--warmup",
        "2",
    ]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}{}", text(&out.stderr));
    assert!(shown.contains("failed: all 2 warm-up requests failed"), "{shown}");
    let rows = shown.lines().filter(|line| line.trim_start().starts_with(['1', '2', '3']));
    assert_eq!(rows.count(), 3, "{shown}");
}

#[test]
fn an_interrupt_prints_and_saves_what_is_finished() {
    // The first level answers; in the second the server falls silent, and that is when the user
    // stops it.
    let (told, silent) = std::sync::mpsc::channel();
    let count = AtomicU32::new(0);
    let address = serve(move |head, _, stream| {
        if !head.starts_with("POST /v1/chat") {
            return whole(stream, "404 Not Found", "text/plain", "");
        }
        if count.fetch_add(1, Ordering::SeqCst) < 6 {
            return one_token(stream);
        }
        let _ = told.send(());
        Then::Hang
    });
    let file = folder("interrupt").join("out.json");
    let child = Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(["--url", &format!("http://{address}"), "-m", "m", "--concurrency", "1,2"])
        .args(["-n", "4", "--warmup", "1", "--no-selftest", "--output"])
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program runs");
    silent.recv().expect("the second level begins");
    signal(&child, "-INT");
    let out = child.wait_with_output().expect("it ends");
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(130), "{shown}{}", text(&out.stderr));
    let saved = std::fs::read_to_string(&file).expect("saved");
    assert!(saved.contains("\"completed\": 4"), "the first level is there: {saved}");
    assert!(shown.lines().any(|line| line.trim_start().starts_with("1 ")), "{shown}");
}

fn signal(child: &std::process::Child, name: &str) {
    // The shell's own: a small system has no program of this name.
    let pid = child.id().to_string();
    let sent = Command::new("sh").args(["-c", "kill \"$@\"", "sh", name, &pid]).status();
    assert!(sent.expect("sh runs").success());
}

#[test]
fn an_interrupt_during_the_warm_up_is_no_failure_of_the_server() {
    let (told, silent) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let address = serve(move |_, _, _| {
        let _ = told.lock().expect("not poisoned").send(());
        Then::Hang
    });
    let child = Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(["--url", &format!("http://{address}"), "-m", "m", "-c", "2", "-n", "4"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program runs");
    silent.recv().expect("the warm-up begins");
    signal(&child, "-INT");
    let out = child.wait_with_output().expect("it ends");
    assert_eq!(out.status.code(), Some(130));
    let said = text(&out.stderr);
    assert!(said.contains("stopped during the warm-up") && !said.contains("failed"), "{said}");
}

/// The first level has two requests, the second a million: it would take minutes. It is stopped by
/// two signals at once, as `timeout -s INT` sends them.
#[test]
fn a_virtual_sweep_stops_inside_a_level_and_keeps_what_is_finished() {
    use std::io::BufRead;
    let file = folder("virtual-interrupt").join("out.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(["--simulate", "builtin:models", "-m", "qwen-mock-batched", "--rate", "0.01,5000"])
        .args(["-d", "200", "--input-tokens", "512", "--max-tokens", "512", "--output"])
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut lines = std::io::BufReader::new(child.stdout.take().expect("piped")).lines();
    let row = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("       0.01 "));
    assert!(row.is_some(), "the first level is finished");
    signal(&child, "-INT");
    signal(&child, "-INT");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "it was not killed by the second signal");
    let saved = std::fs::read_to_string(&file).expect("saved");
    let interrupted: Vec<bool> = saved
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"interrupted\": "))
        .map(|value| value.starts_with("true"))
        .collect();
    // The signal may also come between the two.
    assert!([&[false][..], &[false, true]].contains(&interrupted.as_slice()), "{saved}");
}

#[test]
fn a_virtual_run_needs_no_server() {
    let out = bench(&[
        "--simulate",
        "builtin:models",
        "-m",
        "qwen-mock-batched",
        "--rate",
        "2",
        "-n",
        "30",
        "--input-tokens",
        "512",
        "--max-tokens",
        "64",
    ]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}{}", text(&out.stderr));
    assert!(shown.contains("30 ok · 0 failed"), "{shown}");
    assert!(shown.contains("virtual time"), "{shown}");
}

#[test]
fn vllm_flags_and_keys_work_as_fingers_and_scripts_expect() {
    let folder = folder("vllm");
    let out = bench(&[
        "--simulate",
        "builtin:models",
        "--model",
        "qwen-mock-batched",
        "--request-rate",
        "4",
        "--num-prompts",
        "40",
        "--max-concurrency",
        "8",
        "--burstiness",
        "0.5",
        "--dataset-name",
        "random",
        "--random-input-len",
        "256",
        "--random-output-len",
        "32",
        "--random-range-ratio",
        "0.25",
        "--goodput",
        "ttft:500",
        "tpot:50",
        "--percentile-metrics",
        "ttft,tpot,itl,e2el",
        "--metric-percentiles",
        "25,75",
        "--save-result",
        "--result-dir",
        folder.to_str().expect("text"),
        "--result-filename",
        "r.json",
        "--format",
        "vllm",
        "--metadata",
        "gpu=none",
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let saved = std::fs::read_to_string(folder.join("r.json")).expect("saved");
    for key in [
        "mean_ttft_ms",
        "median_ttft_ms",
        "std_ttft_ms",
        "p99_ttft_ms",
        "p25_itl_ms",
        "mean_tpot_ms",
        "mean_e2el_ms",
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "request_goodput",
        "total_input_tokens",
        "num_prompts",
        "max_concurrency",
        "burstiness",
        "request_rate",
        "completed",
        "failed",
        "duration",
        "gpu",
    ] {
        assert!(saved.contains(&format!("\"{key}\":")), "{key}: {saved}");
    }
    assert!(saved.contains("\"completed\": 40"), "{saved}");
}

#[test]
fn appended_results_are_a_line_each() {
    let file = folder("append").join("all.jsonl");
    // As vLLM leaves its files: without a line feed at the end.
    std::fs::write(&file, "{\"completed\": 1}").expect("written");
    for requests in ["2", "3"] {
        let out = bench(&[
            "--simulate",
            "builtin:models",
            "-m",
            "qwen-mock-batched",
            "-n",
            requests,
            "--format",
            "vllm",
            "--append-result",
            "--output",
            file.to_str().expect("text"),
            "--tokenizer",
            "some/tokenizer",
            "--trust-remote-code",
        ]);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    }
    let saved = std::fs::read_to_string(&file).expect("saved");
    let lines: Vec<&str> = saved.lines().collect();
    assert_eq!(lines.len(), 3, "{saved}");
    for (line, completed) in lines[1..].iter().zip(["\"completed\":2", "\"completed\":3"]) {
        assert!(line.contains(completed), "{line}");
        for key in ["latencies", "queue_times", "rtfx", "tokenizer_id\":\"some/tokenizer"] {
            assert!(line.contains(&format!("\"{key}")), "{key}: {line}");
        }
    }
}

/// `/dev/full` can be opened and takes nothing: a disk that fills up while the run goes on.
#[test]
fn a_file_that_cannot_be_written_is_no_reason_to_lose_the_other() {
    let page = folder("full").join("page.html");
    let path = page.to_str().expect("text");
    let run = ["--simulate", "builtin:models", "-m", "qwen-mock-batched", "-n", "2"];
    let out = bench(&[&run[..], &["--output", "/dev/full", "--html", path]].concat());
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("--output /dev/full"), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("2 ok"), "it was shown: {}", text(&out.stdout));
    assert!(std::fs::read_to_string(&page).expect("a page").contains("</html>"));
    // What can be known before is told before, and no empty file is left behind.
    let folder = folder("unwritable");
    let (taken, fresh) = (folder.to_str().expect("text"), folder.join("fresh.html"));
    let out =
        bench(&[&run[..], &["--html", fresh.to_str().expect("text"), "--output", taken]].concat());
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stdout.is_empty(), "nothing was run: {}", text(&out.stdout));
    assert!(!fresh.exists());
}

/// vLLM's `--backend openai` asks `/v1/completions`, and its server tells per request what it took.
#[test]
fn a_legacy_server_is_measured_with_the_flags_of_vllm() {
    let bodies = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = std::sync::Arc::clone(&bodies);
    let address = serve(move |head, body, stream| {
        if !head.starts_with("POST /v1/completions ") {
            return whole(stream, "404 Not Found", "text/plain", "");
        }
        seen.lock().expect("not poisoned").push(body.to_owned());
        let events = [
            r#"{"choices":[{"index":0,"text":" a","finish_reason":null}]}"#,
            r#"{"choices":[{"index":0,"text":"\nb","finish_reason":"length"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":2},
                "metrics":{"time_to_first_token_ms":41.5,"queue_time_ms":3.5}}"#,
            "[DONE]",
        ];
        let data = |event: &str| format!("data: {}\n\n", event.replace('\n', ""));
        whole(stream, "200 OK", "text/event-stream", &events.map(data).concat())
    });
    let file = folder("legacy").join("out.json");
    let out = bench(&[
        "--base-url",
        &format!("http://{address}"),
        "--backend",
        "openai",
        "--model",
        "m",
        "--num-prompts",
        "1",
        "--num-warmups",
        "0",
        "--random-input-len",
        "40",
        "--random-output-len",
        "2",
        "--top-p",
        "0.5",
        "--format",
        "vllm",
        "--save-detailed",
        "--output",
        file.to_str().expect("text"),
    ]);
    assert_eq!(out.status.code(), Some(0), "{}{}", text(&out.stdout), text(&out.stderr));
    let bodies = bodies.lock().expect("not poisoned");
    let body = bodies.first().expect("one request");
    assert!(body.contains("\"prompt\":\"") && !body.contains("messages"), "{body}");
    assert!(body.contains("\"top_p\":0.5"), "{body}");
    let saved: String = std::fs::read_to_string(&file).expect("saved").split_whitespace().collect();
    for part in [
        r#""backend":"openai""#,
        r#""endpoint_type":"openai""#,
        r#""generated_texts":["a\nb"]"#,
        r#""server_queue_times":[0.0035]"#,
        r#""server_ttfts":[0.0415]"#,
        r#""total_output_tokens":2"#,
    ] {
        assert!(saved.contains(part), "{part}: {saved}");
    }
}

#[test]
fn a_trace_is_replayed_with_the_prefix_reuse_that_it_implies() {
    let file = folder("trace").join("mooncake.jsonl");
    // Three requests share two blocks of 512 tokens, one comes back whole.
    let rows = [(0, 1100, "[1,2,3]"), (4000, 1100, "[1,2,4]"), (8000, 1600, "[1,2,4,5]")];
    let lines = rows.map(|(at, input, ids)| {
        format!("{{\"timestamp\":{at},\"input_length\":{input},\"output_length\":8,\"hash_ids\":{ids}}}\n")
    });
    std::fs::write(&file, lines.concat()).expect("written");
    let out = bench(&[
        "--simulate",
        "builtin:models",
        "-m",
        "qwen-mock-batched",
        "--trace",
        file.to_str().expect("text"),
        "--time-scale",
        "4",
    ]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}{}", text(&out.stderr));
    assert!(shown.contains("3 ok · 0 failed"), "{shown}");
    // Two blocks of 512, then those and the 69 tokens of the third that fit into 1,100 with the 3
    // of the chat format before them: 1,024 and 68 blocks of 16.
    let prefix = shown.lines().find(|line| line.starts_with("prefix")).expect("a line on reuse");
    assert_eq!(prefix.matches("2,112").count(), 2, "expected and observed: {prefix}");
}

/// Three files as spreadsheets and editors export them: with a byte order mark and CRLF.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    for (option, name, file) in [
        ("--dataset", "prompts.jsonl", "{\"prompt\":\"a\"}\r\n{\"prompt\":\"b\"}\r\n"),
        (
            "--trace",
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00,64,2",
        ),
        ("--trace", "burst.csv", "Timestamp,Model,Request tokens,Response tokens\r\n5,GPT-4,64,2"),
    ] {
        let path = folder("mark").join(name);
        std::fs::write(&path, format!("\u{feff}{file}")).expect("written");
        let path = path.to_str().expect("text");
        let model = ["--simulate", "builtin:models", "-m", "qwen-mock-batched", "-n", "1"];
        let out = bench(&[&model, &[option, path][..]].concat());
        let shown = text(&out.stdout);
        assert_eq!(out.status.code(), Some(0), "{name}: {shown}{}", text(&out.stderr));
        assert!(shown.contains("1 ok · 0 failed"), "{name}: {shown}");
    }
}

#[test]
fn vllm_metrics_are_compared_where_there_is_no_summary() {
    let finished = AtomicU32::new(0);
    let address = serve(move |head, _, stream| {
        if head.starts_with("POST /v1/chat/completions ") {
            finished.fetch_add(1, Ordering::SeqCst);
            return one_token(stream);
        }
        if head.starts_with("GET /metrics ") {
            let n = finished.load(Ordering::SeqCst);
            let body = format!(
                "vllm:request_success_total{{finished_reason=\"stop\",model_name=\"m\"}} {n}\n\
                 vllm:time_to_first_token_seconds_sum{{model_name=\"m\"}} {}\n\
                 vllm:time_to_first_token_seconds_count{{model_name=\"m\"}} {n}\n",
                f64::from(n) * 0.25
            );
            return whole(stream, "200 OK", "text/plain", &body);
        }
        whole(stream, "404 Not Found", "text/plain", "")
    });
    let out = bench(&["--url", &format!("http://{address}"), "-m", "m", "-n", "10", "-c", "2"]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}{}", text(&out.stderr));
    // The two of the warm-up are not counted: 10 requests of 250 ms by the server's own account.
    assert!(shown.contains("/metrics · 10 requests (client 10 ✓)"), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("TTFT mean")).expect("a comparison");
    assert!(row.contains("250.00 ms"), "{row}");
}

#[test]
fn the_self_test_joins_every_stream_with_the_reference() {
    let file = folder("selftest").join("stamp.json");
    let out = bench(&[
        "selftest",
        "--concurrency",
        "4",
        "--tokens",
        "5",
        "--output",
        file.to_str().expect("text"),
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("client adds TTFT p50"), "{}", text(&out.stdout));
    let saved = std::fs::read_to_string(&file).expect("saved");
    for key in ["ttft_added", "itl_error", "schedule_lag"] {
        assert!(saved.contains(key), "{saved}");
    }
}

#[test]
fn an_open_loop_and_a_sweep_carry_the_clients_own_error() {
    let url = format!("http://{}", foreign());
    let file = folder("stamped").join("out.json");
    let out = bench(&[
        "--url",
        &url,
        "-m",
        "m",
        "--rate",
        "200",
        "-n",
        "20",
        "--output",
        file.to_str().expect("text"),
    ]);
    assert!(text(&out.stdout).contains("self-test   client adds"), "{}", text(&out.stdout));
    let saved = std::fs::read_to_string(&file).expect("saved");
    assert!(saved.contains("\"ttft_added\""), "{saved}");
}
