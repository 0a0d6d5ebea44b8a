//! The command line as a user meets it: a process, its output and its exit code.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn llmsimulator() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmsimulator"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LLM_SIM_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    llmsimulator().args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A directory that is gone at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("llmsim-cli-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rules_of_two_files_are_one_plan_and_not_more_than_it_may_have() {
    let directory = Directory::new("rules");
    let rules = |count: usize| "  - close header.x=1\n".repeat(count);
    let models = format!("models:\n  - {{ name: a, context_length: 5 }}\nfaults:\n{}", rules(600));
    let models = directory.file("models.yml", &models);
    for (count, code) in [(400, 0), (401, 2)] {
        let faults = directory.file("faults.yml", &rules(count));
        let output = run(&["--models", &models, "--faults", &faults, "--check"]);
        assert_eq!(output.status.code(), Some(code), "{count}: {output:?}");
        let told =
            format!("{faults}: with the rules of {models} there are 1001; the most are 1000.");
        assert_eq!(stderr(&output).contains(&told), code != 0, "{output:?}");
    }
}

#[test]
fn both_broken_files_are_told_at_once_and_nothing_starts() {
    let directory = Directory::new("broken");
    let models = directory.file("models.yml", "models:\n  - name: a\n    contxt_length: 5\n");
    let responses = directory.file("responses.yml", "default: { content: \"{who}\" }\n");
    for extra in [&[][..], &["--check"]] {
        let arguments = [&["--models", &models, "--responses", &responses, "--port", "0"], extra];
        let output = run(&arguments.concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert_eq!(stdout(&output), "");
        let told = stderr(&output);
        for words in [
            "3 problems in the configuration",
            &format!("{models}:2:5: models[0]: `context_length` is missing"),
            &format!("{models}:3:5: models[0]: unknown key `contxt_length`"),
            "did you mean `context_length`?",
            &format!("{responses}:1:21: default.content: unknown placeholder `{{who}}`"),
        ] {
            assert!(told.contains(words), "{words}\n{told}");
        }
    }
}

#[test]
fn files_that_cannot_be_read_are_told_at_once() {
    let output = run(&["--models", "no/models.yml", "--responses", "builtin:nothing"]);
    assert_eq!(output.status.code(), Some(2));
    let told = stderr(&output);
    assert!(told.contains("no/models.yml: cannot be read: No such file"), "{told}");
    assert!(told.contains("no built-in file `nothing`"), "{told}");
}

#[test]
fn check_prints_what_followed() {
    let output = run(&["--check"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert!(text.starts_with("builtin:models and builtin:responses are valid\n"), "{text}");
    for words in [
        "first token after 2ms + prompt / 100000 tokens/s, then one every 4.000 ms",
        // 80 GiB x 0.92 less 15.2 GB is room for 69,566 blocks of 917,504 B, one a placeholder.
        "capacity   1113040 tokens in 69565 blocks of 16 (what the weights leave)",
        "tiny-mock: context 8192 tokens\n  instant: every token at once",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn check_counts_blocks_and_batches_alike_for_named_and_for_measured_models() {
    let directory = Directory::new("alike");
    let scheduler = "scheduler: { max_num_seqs: 8, num_gpu_blocks_override: 1001 }";
    let models = directory.file(
        "models.yml",
        &format!(
            "hardware:
  own: {{ hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }}
models:
  - {{ name: named, engine: scheduler, context_length: 8192, hardware: h100-sxm,
      model: llama-3.1-8b, {scheduler} }}
  - {{ name: sized, engine: scheduler, context_length: 8192, hardware: own,
      weights: {{ parameters_billion: 8 }}, kv_cache: {{ bytes_per_token: 131072 }},
      {scheduler} }}
"
        ),
    );
    let output = run(&["--check", "--models", &models]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output).replace(',', "");
    // 1,001 blocks, one of them a placeholder, and 16,000 / 8,192 requests.
    let told = |words: &str| text.matches(words).count();
    assert_eq!(told("16000 tokens in 1000 blocks of 16"), 2, "{text}");
    assert_eq!(told("room for 2.0 requests"), 2, "{text}");
    assert_eq!((told("at batch 1 "), told("at batch 8 "), told("at batch")), (2, 2, 4), "{text}");
}

#[test]
fn a_printed_builtin_is_a_file_to_start_from() {
    let directory = Directory::new("print");
    for name in llmsim_defaults::names() {
        let output = run(&["--print-config", name]);
        assert_eq!(output.status.code(), Some(0));
        let text = stdout(&output);
        assert_eq!(Some(text.as_str()), llmsim_defaults::builtin(name));
        let file = directory.file(&format!("{name}.yml"), &text);
        let flag = if name == "models" { "--models" } else { "--responses" };
        assert_eq!(run(&["--check", flag, &file]).status.code(), Some(0), "{name}");
    }
    let unknown = run(&["--print-config", "modles"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("there are models, responses, bench-responses"));
}

#[test]
fn a_variable_stands_in_for_its_flag_unless_it_is_empty() {
    let check = |value: &str, arguments: &[&str]| {
        llmsimulator().env("LLM_SIM_MODELS", value).arg("--check").args(arguments).output().unwrap()
    };
    assert_eq!(check("", &[]).status.code(), Some(0));
    let output = check("no/such.yml", &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no/such.yml: cannot be read"));
    assert_eq!(check("no/such.yml", &["--models", "builtin:models"]).status.code(), Some(0));
}

#[test]
fn a_config_json_is_read_from_the_working_directory() {
    let directory = Directory::new("hf");
    directory.file(
        "config.json",
        r#"{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
            "max_position_embeddings": 131072}"#,
    );
    directory.file(
        "models.yml",
        "models: [{ name: m, engine: scheduler, hardware: h200, hf_config: config.json }]",
    );
    let check = |working: &Path| {
        let models = directory.0.join("models.yml");
        let mut command = llmsimulator();
        command.current_dir(working).arg("--check").arg("--models").arg(models);
        command.output().unwrap()
    };
    let output = check(&directory.0);
    assert!(stdout(&output).contains("131,072 B per token"), "{output:?}");
    let output = check(Path::new("/"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("config.json: cannot be read"), "{output:?}");
}

#[test]
fn simulate_gives_the_same_bytes_each_time_and_reads_standard_input() {
    let directory = Directory::new("simulate");
    let mut lines = String::new();
    for i in 0..200 {
        let model = if i % 3 == 0 { "qwen-mock" } else { "qwen-mock-batched" };
        let (at, prompt) = (i * 7 % 100, 100 + i * 37 % 900);
        lines += &format!(
            "{{\"arrival_ms\":{at},\"model\":\"{model}\",\"prompt_tokens\":{prompt},\
             \"output_tokens\":20}}\n"
        );
    }
    let file = directory.file("arrivals.jsonl", &lines);
    let from_file = run(&["simulate", "--arrivals", &file]);
    assert_eq!(from_file.status.code(), Some(0), "{from_file:?}");
    assert_eq!(stdout(&from_file).lines().count(), 200);

    let mut child = llmsimulator()
        .args(["simulate", "--models", "builtin:models", "--arrivals", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, from_file.stdout);

    let bad = directory.file("bad.jsonl", "{\"arrival_ms\": 0}\n");
    let output = run(&["simulate", "--arrivals", &bad]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bad.jsonl:1: `model` is missing"), "{output:?}");
}

#[test]
fn replay_prints_the_events_of_a_journal_or_compares_them() {
    let directory = Directory::new("replay");
    let models = directory.file(
        "models.yml",
        "models:
  - { name: now, context_length: 1000, engine: instant }
  - name: org/a
    context_length: 1000
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 1000, decode_tokens_per_second: 100 }
  - name: b
    context_length: 1000
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 1000, decode_tokens_per_second: 200 }
",
    );
    // 5 tokens of prompt at 1,000 a second, then one each 10 ms; `b` is twice as fast.
    let inputs = "submit 1000000 7 prompt=5 max=9 stop=2\n";
    let events = "1000000 7 admitted 0\n6000000 7 token 1\n16000000 7 token 2 stop\n";
    let journal = directory.file("run.org%2Fa.0", inputs);
    let log = directory.file("run.org%2Fa.0.events", events);
    let replay = |more: &[&str]| run(&[&["replay", "--models", &models][..], more].concat());

    let printed = replay(&[&journal]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert_eq!(stdout(&printed), events);
    let same = replay(&[&journal, "--events", &log]);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(stdout(&same).starts_with("3 events, all as in "), "{same:?}");

    let differs = replay(&[&journal, "--events", &log, "--model", "b"]);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    let told = stderr(&differs);
    assert!(told.contains("run.org%2Fa.0.events:3: the replay differs"), "{told}");
    assert!(told.contains("16000000 7 token 2 stop"), "{told}");
    assert!(told.contains("11000000 7 token 2 stop"), "{told}");

    let unknown = replay(&[&directory.file("run", inputs)]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("Name its model with --model: org/a, b"), "{unknown:?}");
    let bad = replay(&[&directory.file("bad.b.0", "submit 5\n")]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(stderr(&bad).contains("bad.b.0: journal line 1: a job id"), "{bad:?}");
}

#[test]
fn presets_lists_what_a_file_can_name() {
    let text = stdout(&run(&["presets"]));
    for words in ["h100-80gb-sxm", "llama-3.1-8b", "vllm-v1-hopper-bf16", "mi300x"] {
        assert!(text.contains(words), "{words}\n{text}");
    }
}

#[test]
fn help_names_every_flag_of_the_manual_with_its_variable() {
    let text = stdout(&run(&["--help"]));
    for words in [
        "--models <FILE>",
        "[default: builtin:models]",
        "LLM_SIM_RESPONSES",
        "LLM_SIM_HOST",
        "LLM_SIM_PORT",
        "--print-config <NAME>",
        "--check",
        "simulate",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert!(stdout(&run(&["--version"])).starts_with("llmsimulator "));
    assert_eq!(run(&["--nonsense"]).status.code(), Some(2));
}

#[test]
fn schemas_are_printed_and_an_unknown_kind_is_told() {
    for (kind, required) in [("models", r#""models""#), ("responses", r#""default""#)] {
        let output = run(&["--print-schema", kind]);
        assert!(output.status.success(), "{}", stderr(&output));
        let schema = stdout(&output);
        assert!(schema.contains("https://json-schema.org/draft/2020-12/schema"));
        assert!(schema.contains(required));
    }
    let output = run(&["--print-schema", "model"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there are models, responses"), "{}", stderr(&output));
}

#[test]
fn a_shell_and_man_know_every_flag() {
    let help = stdout(&run(&["--help"]));
    let flags: Vec<&str> = help
        .split_whitespace()
        .filter(|word| word.starts_with("--"))
        .map(|word| word.trim_end_matches([',', '.', ')', ']', ':']))
        .collect();
    assert!(flags.contains(&"--port-per-replica"));
    let page = stdout(&run(&["man"]));
    assert!(page.contains(".TH llmsimulator 1"), "{page}");
    let page = page.replace("\\-", "-");
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        let script = stdout(&output);
        for flag in &flags {
            let known = if shell == "fish" { flag.trim_start_matches('-') } else { *flag };
            assert!(script.contains(known), "{shell} does not complete {flag}");
            assert!(page.contains(*flag), "no {flag} in the manual page");
        }
    }
    let directory = Directory::new("completions");
    let script = directory.file("llmsimulator.bash", &stdout(&run(&["completions", "bash"])));
    assert!(Command::new("bash").args(["-n", &script]).status().unwrap().success());
    let page = stdout(&run(&["man", "simulate"]));
    assert!(page.replace("\\-", "-").contains("--arrivals"), "{page}");
    assert_eq!(run(&["man", "nothing"]).status.code(), Some(2));
}
