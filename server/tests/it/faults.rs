//! Failures on purpose, at the level of bytes: what a client gets, and that nobody else suffers.

use std::io::{ErrorKind, Read as _};
use std::time::{Duration, Instant};

use llmsim_engine::config::{self, Source};
use llmsimulator::args::{Admin, Settings};
use llmsimulator::boot::Server;

use crate::client::{Client, Response, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

/// A server with these rules, as `--faults` would give them.
fn start(rules: &str) -> Server {
    fixture::start_with(|settings| set(settings, rules))
}

fn set(settings: &mut Settings, rules: &str) {
    let source = Source::new("faults", rules);
    settings.config.faults = config::load_faults(&source, &settings.config.models)
        .unwrap_or_else(|problems| panic!("{problems}"));
}

fn chat(server: &Server, body: &str) -> Response {
    Client::new(server).chat(body)
}

/// A request with a header that asks for its own fault.
fn faulty(words: &str, body: &str) -> String {
    post("/v1/chat/completions", body).replacen(
        "Host: h\r\n",
        &format!("Host: h\r\nx-llmsim-fault: {words}\r\n"),
        1,
    )
}

pub(crate) fn ask(server: &Server, words: &str, body: &str) -> Client {
    let mut client = Client::new(server);
    client.send(faulty(words, body));
    client
}

/// All bytes until the connection ends, and how it ended.
pub(crate) fn rest(client: &mut Client) -> (Vec<u8>, Option<ErrorKind>) {
    let mut bytes = Vec::new();
    let end = client.stream.read_to_end(&mut bytes).err().map(|error| error.kind());
    (bytes, end)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What is known of hits: `kind` and how often.
pub(crate) fn hits(server: &Server, kind: &str) -> f64 {
    let metrics = Client::new(server).get("/metrics");
    let lines = metrics.text().lines().filter(|line| line.starts_with("llm_sim_faults_total"));
    lines
        .filter(|line| line.contains(&format!("kind=\"{kind}\"")))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Nothing is left over, and the next request is answered as if nothing had been.
pub(crate) fn nothing_is_left(server: &Server) {
    fixture::wait_until(server, "no generation", |totals| {
        totals.in_flight == 0 && totals.gpus.iter().all(|gpu| gpu.running + gpu.waiting == 0)
    });
    let totals = server.totals();
    for gpu in &totals.gpus {
        assert_eq!(gpu.free_blocks, gpu.usable_blocks, "blocks of {}", gpu.model);
    }
    assert_eq!(chat(server, &streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
}

#[test]
fn a_status_comes_with_openais_error_and_says_when_to_come_back() {
    let server = fixture::start();
    for (words, status, kind, code) in [
        ("status=400", 400, "invalid_request_error", "null"),
        ("status=401", 401, "invalid_request_error", "\"invalid_api_key\""),
        ("status=403", 403, "invalid_request_error", "null"),
        ("status=404", 404, "invalid_request_error", "\"model_not_found\""),
        ("status=408", 408, "invalid_request_error", "\"request_timeout\""),
        ("status=409", 409, "invalid_request_error", "\"conflict\""),
        ("status=429", 429, "requests", "\"rate_limit_exceeded\""),
        ("status=500", 500, "server_error", "null"),
        ("status=502", 502, "server_error", "null"),
        ("status=503", 503, "server_error", "null"),
        ("status=504", 504, "server_error", "\"timeout\""),
        ("status=529", 529, "overloaded_error", "null"),
        ("queue_full", 503, "server_error", "null"),
        ("capacity", 503, "server_error", "null"),
        ("starting", 503, "server_error", "null"),
        ("draining", 503, "server_error", "null"),
        (
            "status=429 type=insufficient_quota code=insufficient_quota message=\"No money left.\"",
            429,
            "insufficient_quota",
            "\"insufficient_quota\"",
        ),
    ] {
        let mut client = ask(&server, words, &whole("batched", "x"));
        let response = client.response();
        assert_eq!(response.status, status, "{words}");
        assert_eq!(response.header("content-type"), Some("application/json"), "{words}");
        let body = response.text();
        assert!(body.starts_with("{\"error\":{\"message\":\""), "{words}: {body}");
        assert!(body.contains(&format!("\"type\":\"{kind}\"")), "{words}: {body}");
        assert!(body.ends_with(&format!("\"code\":{code}}}}}")), "{words}: {body}");
        // The connection is as good as before.
        assert_eq!(client.chat(&whole("batched", "x")).status, 200, "{words}");
    }
    let told = |words: &str, name: &str| {
        let mut client = ask(&server, words, &whole("batched", "x"));
        client.response().header(name).map(str::to_owned)
    };
    assert_eq!(told("status=429 retry_after=2s", "retry-after").as_deref(), Some("2"));
    assert_eq!(told("status=429 retry_after_ms=1500", "retry-after-ms").as_deref(), Some("1500"));
    let date = told("status=503 retry_after_date=1m", "retry-after").unwrap();
    assert!(date.ends_with(" GMT"), "{date}");
    assert_eq!(told("status=500 should_retry=false", "x-should-retry").as_deref(), Some("false"));
    assert_eq!(hits(&server, "queue_full"), 1.0);
    nothing_is_left(&server);
}

#[test]
fn a_proxy_in_between_answers_with_a_page() {
    let server = fixture::start();
    let response = ask(&server, "status=504 body=html", &whole("batched", "x")).response();
    assert_eq!((response.status, response.header("content-type")), (504, Some("text/html")));
    assert!(response.text().contains("<h1>504 Gateway Timeout</h1>"), "{}", response.text());
    let response = ask(&server, "status=502 body=empty", &whole("batched", "x")).response();
    assert_eq!((response.status, response.text()), (502, ""));
}

#[test]
fn a_connection_is_closed_reset_or_left_without_an_answer() {
    let server = fixture::start();
    let body = streaming("batched", "x");
    assert_eq!(rest(&mut ask(&server, "close", &body)), (Vec::new(), None));
    let reset = Some(ErrorKind::ConnectionReset);
    assert_eq!(rest(&mut ask(&server, "reset", &body)), (Vec::new(), reset));
    assert_eq!(rest(&mut ask(&server, "hang=200ms", &body)), (Vec::new(), None));
    // Never answered: only the client ends it.
    let mut hanging = ask(&server, "hang", &body);
    fixture::wait_until(&server, "the hit", |_| hits(&server, "hang") == 2.0);
    hanging.stream.get_ref().set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let silent = rest(&mut hanging);
    assert_eq!((silent.0.len(), silent.1), (0, Some(ErrorKind::WouldBlock)));
    drop(hanging);
    fixture::wait_until(&server, "the connections to go", |totals| totals.connections <= 1);
    nothing_is_left(&server);
}

#[test]
fn an_answer_comes_late_or_its_head_takes_its_time() {
    let server = fixture::start();
    for body in [streaming("batched", "x"), whole("batched", "x")] {
        let plain = chat(&server, &body);
        for words in ["delay=150ms", "slow_headers=150ms"] {
            let start = Instant::now();
            let response = ask(&server, words, &body).response();
            assert!(start.elapsed() >= Duration::from_millis(150), "{words}");
            assert_eq!(response.status, 200);
            assert_eq!(response.header("content-type"), plain.header("content-type"));
            assert_eq!(response.body.len(), plain.body.len(), "{words}");
        }
        let response = ask(&server, "content_type=text/html", &body).response();
        assert_eq!(response.header("content-type"), Some("text/html"));
        assert_eq!(response.body.len(), plain.body.len());
    }
    nothing_is_left(&server);
}

#[test]
fn a_slow_head_of_an_answer_without_a_body_is_all_there_is() {
    let server = start("- slow_headers=20ms path=/v1/models\n");
    let mut client = Client::new(&server);
    client.send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let (bytes, end) = rest(&mut client);
    assert_eq!(end, None);
    let said = text(&bytes);
    assert!(said.starts_with("HTTP/1.1 200 OK\r\n") && said.ends_with("\r\n\r\n"), "{said}");
    assert!(!said.contains("content-length: 0\r\n"), "{said}");
}

#[test]
fn rate_limits_count_down_truthfully() {
    let server = start("- rpm=3 tpm=100 model=batched");
    let mut client = Client::new(&server);
    let body = r#"{"model":"batched","max_tokens":10,"messages":[{"role":"user","content":"x"}]}"#;
    let mut tokens_left = Vec::new();
    for left in ["2", "1", "0"] {
        let response = client.chat(body);
        assert_eq!(response.status, 200, "{}", response.text());
        assert_eq!(response.header("x-ratelimit-limit-requests"), Some("3"));
        assert_eq!(response.header("x-ratelimit-remaining-requests"), Some(left));
        assert_eq!(response.header("x-ratelimit-limit-tokens"), Some("100"));
        let left = response.header("x-ratelimit-remaining-tokens").unwrap();
        tokens_left.push(left.parse::<u32>().unwrap());
    }
    assert!(tokens_left.is_sorted_by(|more, less| more >= less), "{tokens_left:?}");
    let refused = client.chat(body);
    assert_eq!(refused.status, 429);
    assert!(refused.text().contains("Limit 3, Used 3, Requested 1. Please try again in"));
    assert!(refused.text().contains("\"type\":\"requests\",\"param\":null,\"code\":\"rate_limit"));
    // Three a minute: the next one is there after 20 s at most.
    let wait: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=20).contains(&wait), "{wait}");
    let ms: u32 = refused.header("retry-after-ms").unwrap().parse().unwrap();
    assert!(ms <= 20_000, "{ms}");
    let server = start("- rpm=3 model=batched");
    let mut client = Client::new(&server);
    // Under Anthropic's names all of it is there again at a time of day.
    client.post("/v1/messages", body);
    let message = client.response();
    assert_eq!(message.status, 200, "{}", message.text());
    assert_eq!(message.header("anthropic-ratelimit-requests-limit"), Some("3"));
    assert_eq!(message.header("anthropic-ratelimit-requests-remaining"), Some("2"));
    let reset = message.header("anthropic-ratelimit-requests-reset").unwrap();
    let shape = reset.replace(|c: char| c.is_ascii_digit(), "0");
    assert_eq!(shape, "0000-00-00T00:00:00Z");
    assert_eq!(message.header("x-ratelimit-limit-requests"), None);
    let too_large = r#"{"model":"batched","max_tokens":500,"stream":true,
        "messages":[{"role":"user","content":"x"}]}"#;
    let server = start("- tpm=100");
    let refused = Client::new(&server).chat(&too_large.replace("\"x\"", "\"[long]\""));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("Request too large"), "{}", refused.text());
    assert_eq!(refused.header("retry-after"), None, "waiting does not help");
    assert_eq!(hits(&server, "rate_limit"), 1.0);
}

#[test]
fn a_stream_stops_cleanly_by_a_close_by_a_reset_or_without_a_word() {
    let server = fixture::start();
    for model in ["batched", "instant", "org/paced"] {
        let body = streaming(model, "[hundred] x");
        let alone = chat(&server, &body);
        let first_four = alone.events()[..4].join("\n");
        // The role and three tokens; the ids differ.
        let looks_right = |events: &[&str]| {
            // Ids differ, and the second in which it was.
            let strip = |event: &str| event.split_once(",\"choices\"").unwrap().1.to_owned();
            assert_eq!(events.len(), 4, "{events:?}");
            for (event, expected) in events.iter().zip(first_four.split('\n')) {
                assert_eq!(strip(event), strip(expected));
            }
        };
        let mut client = ask(&server, "stop=3 end=clean", &body);
        looks_right(&client.response().events());
        assert_eq!(client.chat(&whole("instant", "x")).status, 200, "the connection lives on");

        for (words, end) in
            [("stop=3 end=close", None), ("stop=3 end=reset", Some(ErrorKind::ConnectionReset))]
        {
            let mut client = ask(&server, words, &body);
            let (status, _) = client.head();
            assert_eq!(status, 200);
            let chunks: Vec<String> = (0..4).map(|_| text(&client.chunk().unwrap())).collect();
            let whole = chunks.concat();
            let events: Vec<&str> = whole
                .split_terminator("\n\n")
                .map(|event| event.strip_prefix("data: ").unwrap())
                .collect();
            looks_right(&events);
            assert_eq!(rest(&mut client), (Vec::new(), end), "{words} on {model}");
        }

        let mut client = ask(&server, "stop=3 end=silence", &body);
        client.head();
        for _ in 0..4 {
            client.chunk().unwrap();
        }
        client.stream.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(rest(&mut client), (Vec::new(), Some(ErrorKind::WouldBlock)));
    }
    assert_eq!(hits(&server, "stop"), 12.0);
    let totals = fixture::wait_until(&server, "all to end", |totals| totals.in_flight == 0);
    assert_eq!(totals.faulted, 12);
    nothing_is_left(&server);
}

#[test]
fn a_stream_stalls_and_goes_on_with_not_a_byte_changed() {
    let server = fixture::start();
    for model in ["batched", "instant"] {
        let body = streaming(model, "[hundred] x");
        let start = Instant::now();
        let response = ask(&server, "stall=200ms after=5", &body).response();
        assert!(start.elapsed() >= Duration::from_millis(200));
        assert_eq!(response.streamed_text(), chat(&server, &body).streamed_text(), "{model}");
    }
    assert_eq!(hits(&server, "stall"), 2.0);
    nothing_is_left(&server);
}

#[test]
fn one_event_is_broken_doubled_or_missing_and_all_others_are_right() {
    let server = fixture::start();
    let body = streaming("batched", "x");
    let plain = chat(&server, &body);
    let strip = |event: &str| event.split_once(",\"choices\"").map(|(_, rest)| rest.to_owned());
    let plain: Vec<_> = plain.events().into_iter().map(strip).collect();
    let events = |words: &str| -> Vec<Vec<u8>> {
        let response = ask(&server, words, &body).response();
        let whole = response.body;
        let mut events: Vec<Vec<u8>> = Vec::new();
        let mut from = 0;
        while let Some(at) = whole[from..].windows(2).position(|two| two == b"\n\n") {
            events.push(whole[from + 6..from + at].to_vec());
            from += at + 2;
        }
        assert_eq!(from, whole.len(), "{words}: an event without its end");
        events
    };
    let told = |words: &str| -> Vec<Option<String>> {
        events(words).iter().map(|event| strip(&text(event))).collect()
    };
    // Event 0 is the role; token 2, counted from 0, is event 3.
    let malformed = events("malformed_json after=2");
    assert_eq!(malformed.len(), plain.len());
    for (at, event) in malformed.iter().enumerate() {
        let said = text(event);
        let balanced = said.matches('{').count() == said.matches('}').count();
        assert_eq!(balanced, at != 3, "{said}");
    }
    let broken = events("invalid_utf8 after=2");
    for (at, event) in broken.iter().enumerate() {
        assert_eq!(std::str::from_utf8(event).is_err(), at == 3);
    }
    let mut doubled = plain.clone();
    doubled.insert(3, plain[3].clone());
    assert_eq!(told("duplicate after=2"), doubled);
    let mut dropped = plain.clone();
    dropped.remove(3);
    assert_eq!(told("drop after=2"), dropped);
    assert_eq!(told("no_done"), plain[..plain.len() - 1]);
    let mut unfinished = plain.clone();
    unfinished.remove(plain.len() - 2);
    assert_eq!(told("no_finish"), unfinished);
    for kind in ["malformed_json", "invalid_utf8", "duplicate", "drop", "no_done", "no_finish"] {
        assert_eq!(hits(&server, kind), 1.0, "{kind}");
    }
    // The answer has eight tokens: one that is never reached is no hit.
    assert_eq!(told("drop after=100"), plain);
    assert_eq!(hits(&server, "drop"), 1.0);
    nothing_is_left(&server);
}

#[test]
fn a_stream_breaks_off_inside_an_event_or_with_an_error_event() {
    let server = fixture::start();
    let body = streaming("batched", "x");
    let mut client = ask(&server, "truncated_event after=2", &body);
    client.head();
    for _ in 0..3 {
        client.chunk().unwrap();
    }
    let (bytes, end) = rest(&mut client);
    assert_eq!(end, None);
    let said = text(&bytes);
    assert!(said.contains("data: {") && !said.contains("}]") && !said.ends_with("\r\n"), "{said}");

    let openai = ask(&server, "error_event=openai after=2", &body).response();
    let [.., last] = openai.events()[..] else { panic!() };
    assert!(
        last.starts_with("{\"error\":{\"message\":\"")
            && last.ends_with("\"type\":\"server_error\",\"param\":null,\"code\":null}}"),
        "{last}"
    );
    assert_eq!(openai.events().len(), 4);

    let vllm = ask(&server, "error_event=vllm after=2", &body).response();
    let [.., error, done] = vllm.events()[..] else { panic!() };
    assert!(
        error.ends_with("\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}"),
        "{error}"
    );
    assert_eq!(done, "[DONE]");
    nothing_is_left(&server);
}

#[test]
fn anthropics_surface_fails_in_anthropics_form() {
    let server = fixture::start();
    let body = r#"{"model":"batched","max_tokens":100,"stream":true,
        "messages":[{"role":"user","content":"[hundred] x"}]}"#;
    let ask = |words: &str| {
        let headers = format!("Host: h\r\nx-llmsim-fault: {words}\r\n");
        let mut client = Client::new(&server);
        client.send(post("/v1/messages", body).replacen("Host: h\r\n", &headers, 1));
        client.response()
    };
    for (words, status, kind) in [
        ("status=429", 429, "rate_limit_error"),
        ("status=500", 500, "api_error"),
        ("status=529", 529, "overloaded_error"),
        ("capacity", 503, "overloaded_error"),
    ] {
        let response = ask(words);
        assert_eq!(response.status, status, "{words}");
        let begin = format!("{{\"type\":\"error\",\"error\":{{\"type\":\"{kind}\",\"message\":\"");
        assert!(response.text().starts_with(&begin), "{}", response.text());
        assert!(response.text().contains("\"request_id\":\"req_"), "{}", response.text());
    }
    let response = ask("error_event=openai after=2");
    let last = response.text().trim_end().rsplit("\n\n").next().unwrap();
    assert!(
        last.starts_with(
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""
        ),
        "{last}"
    );
    let unfinished = ask("no_done");
    let last = unfinished.text().trim_end().rsplit("\n\n").next().unwrap();
    assert!(last.starts_with("event: message_delta\n"), "all but message_stop: {last}");
    nothing_is_left(&server);
}

#[test]
fn the_first_two_attempts_fail_whoever_else_is_served_in_between() {
    let server = start("seed: 3\nrules:\n  - status=500 first=2\n");
    let statuses = |message: &str| chat(&server, &whole("instant", message)).status;
    let order = ["a", "b", "a", "a", "b", "b", "a"].map(statuses);
    assert_eq!(order, [500, 500, 500, 200, 500, 200, 200]);
}

#[test]
fn the_same_requests_fail_whatever_the_order() {
    let fates = |messages: Vec<String>| -> std::collections::BTreeMap<String, u16> {
        let server = start("seed: 11\nrules:\n  - status=503 p=0.3\n");
        let mut client = Client::new(&server);
        let ask = |message: String| {
            let status = client.chat(&whole("instant", &message)).status;
            (message, status)
        };
        messages.into_iter().map(ask).collect()
    };
    let messages: Vec<String> = (0..100).map(|n| format!("question {n}")).collect();
    let forth = fates(messages.clone());
    assert_eq!(forth, fates(messages.into_iter().rev().collect()));
    let failed = forth.values().filter(|status| **status == 503).count();
    // 100 draws at 0.3: 30, with a standard deviation of 4.6.
    assert!((15..=45).contains(&failed), "{failed}");
}

#[test]
fn a_message_may_carry_its_fault_if_that_is_allowed() {
    let body = whole("instant", "Hello [[fault: status=418]] there");
    assert_eq!(chat(&fixture::start(), &body).status, 200);
    let server = start("markers: true\n");
    assert_eq!(chat(&server, &body).status, 418);
    assert_eq!(chat(&server, &whole("instant", "Hello")).status, 200);
    let bad = chat(&server, &whole("instant", "[[fault: stauts=418]]"));
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("unknown word `stauts`"), "{}", bad.text());
    // And a header only if that is not forbidden.
    let server = start("headers: false\n");
    assert_eq!(ask(&server, "status=418", &body).response().status, 200);
    let refused = ask(&fixture::start(), "crash=1s", &body).response();
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("befalls a simulated GPU"), "{}", refused.text());
}

#[test]
fn a_server_that_starts_or_drains_says_so_until_it_is_ready() {
    let server = fixture::start_with(|settings| {
        settings.admin = Admin { is_on: true, address: None };
        set(settings, "- starting for=1h\n- draining at=2h for=1h\n");
    });
    let health = Client::new(&server).get("/health");
    assert_eq!(health.status, 503);
    assert_eq!(chat(&server, &whole("instant", "x")).status, 503);
    // The models can be listed before they can answer.
    assert_eq!(Client::new(&server).get("/v1/models").status, 200);
    put(&server, "draining for=1h");
    assert_eq!(Client::new(&server).get("/health").status, 503);
    assert_eq!(chat(&server, &whole("instant", "x")).status, 503);
    put(&server, "starting at=1h for=1h");
    assert_eq!(Client::new(&server).get("/health").status, 200);
    assert_eq!(chat(&server, &whole("instant", "x")).status, 200);
}

#[test]
fn a_crash_ends_what_runs_and_refuses_until_the_gpu_is_up_again() {
    let server = admin();
    let loads = || Client::new(&server).get("/get_load").text().to_owned();
    let idle = loads();
    let mut begun = Client::new(&server);
    begun.post("/v1/chat/completions", &streaming("batched", "[long]"));
    begun.head();
    begun.chunk().unwrap();
    let mut whole_answer = Client::new(&server);
    whole_answer.post("/v1/chat/completions", &whole("batched", "[long]"));
    fixture::wait_until(&server, "both to run", |totals| totals.gpus[1].running == 2);
    put(&server, "crash=500ms gpu=batched/0");
    // An error event and the end, as vLLM's own when its engine is dead.
    let mut last = Vec::new();
    while let Some(chunk) = begun.chunk() {
        last = chunk;
    }
    let last = text(&last);
    assert!(
        last.contains("\"InternalServerError\"") && last.ends_with("data: [DONE]\n\n"),
        "{last}"
    );
    assert_eq!(whole_answer.response().status, 500);
    assert_eq!(Client::new(&server).get("/health").status, 503);
    let refused = chat(&server, &streaming("batched", "x"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(chat(&server, &whole("org/paced", "x")).status, 200, "another GPU");
    fixture::wait_until(&server, "the restart", |_| {
        Client::new(&server).get("/health").status == 200
    });
    assert_eq!(server.totals().faulted, 2);
    assert_eq!(hits(&server, "crash"), 1.0);
    // What balances load by tokens is not told of the dead ones for ever.
    assert_eq!(loads(), idle);
    let metrics = Client::new(&server).get("/metrics").text().to_owned();
    for series in [
        r#"llm_sim_answers_total{ended="faulted"} 2"#,
        r#"llm_sim_answers_total{ended="refused"} 1"#,
        r#"llm_sim_answers_total{ended="sent"} 1"#,
        r#"vllm:num_requests_running{engine="0",model_name="batched"} 0.0"#,
        r#"vllm:num_requests_waiting{engine="0",model_name="batched"} 0.0"#,
        r#"vllm:kv_cache_usage_perc{engine="0",model_name="batched"} 0.0"#,
    ] {
        assert!(metrics.contains(&format!("\n{series}\n")), "{series} is not in\n{metrics}");
    }
    nothing_is_left(&server);
}

#[test]
fn a_gpu_slows_down_pauses_loses_memory_and_preempts_and_every_answer_is_right() {
    let server = admin();
    // Two seconds, if nothing disturbs it.
    let body = streaming("batched", "[hundred] x")
        .replace("\"stream\":true", "\"stream\":true,\"max_tokens\":400,\"ignore_eos\":true");
    let alone = chat(&server, &body).streamed_text();
    for words in [
        "slow=3 gpu=1 for=200ms",
        "pause=200ms gpu=1",
        "shrink=0.01% gpu=1 for=300ms",
        "preempt gpu=1",
    ] {
        let mut clients: Vec<Client> = (0..20).map(|_| Client::new(&server)).collect();
        for client in &mut clients {
            client.post("/v1/chat/completions", &body);
        }
        fixture::wait_until(&server, "20 running", |totals| totals.gpus[1].running == 20);
        put(&server, words);
        for client in &mut clients {
            assert_eq!(client.response().streamed_text(), alone, "{words}");
        }
    }
    let totals = server.totals();
    assert!(totals.gpus[1].preemptions >= 20, "{totals:#?}");
    put(&server, "[]");
    nothing_is_left(&server);
}

/// A server with `/admin`.
pub(crate) fn admin() -> Server {
    fixture::start_with(|settings| settings.admin = Admin { is_on: true, address: None })
}

fn admin_asks(server: &Server, method: &str, body: &str) -> Response {
    let mut client = Client::new(server);
    client.send(post("/admin/faults", body).replacen("POST", method, 1));
    client.response()
}

pub(crate) fn put(server: &Server, body: &str) {
    let response = admin_asks(server, "PUT", body);
    assert_eq!(response.status, 200, "{}", response.text());
}

#[test]
fn the_plan_can_be_read_replaced_added_to_and_cleared() {
    let server = admin();
    let status = || chat(&server, &whole("instant", "x")).status;
    assert_eq!(status(), 200);
    put(&server, "status=500");
    assert_eq!(status(), 500);
    put(&server, "{\"seed\": 4, \"rules\": [{\"status\": 503, \"first\": 1}]}");
    assert_eq!([status(), status()], [503, 200]);
    let added = admin_asks(&server, "POST", "- status=502");
    assert!(added.text().contains("\"rule\":\"status=502\""), "{}", added.text());
    assert_eq!(status(), 502);
    let bad = admin_asks(&server, "PUT", "- stauts=500");
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("did you mean `status`?"), "{}", bad.text());
    assert_eq!(status(), 502, "a bad plan changes nothing");
    let told = Client::new(&server).get("/admin/faults");
    assert!(told.text().contains("\"seed\":4"), "{}", told.text());
    assert!(told.text().contains("\"kind\":\"status\",\"count\":"), "{}", told.text());
    assert_eq!(admin_asks(&server, "DELETE", "").status, 200);
    assert_eq!(status(), 200);
    assert_eq!(admin_asks(&server, "PATCH", "").status, 405);
    assert_eq!(Client::new(&fixture::start()).get("/admin/faults").status, 404, "off by default");
}

#[test]
fn a_rule_for_every_path_leaves_the_way_to_take_it_back() {
    let server = admin();
    for rule in ["status=503 path=*", "hang path=/*", "reset path=/adm*"] {
        put(&server, rule);
        assert!(admin_asks(&server, "GET", "").text().contains(rule.split(' ').next().unwrap()));
    }
    let never = admin_asks(&server, "PUT", "hang path=/admin/faults");
    assert_eq!(never.status, 400);
    assert!(never.text().contains("where faults are taken back"), "{}", never.text());
    put(&server, "status=503 path=*");
    assert_eq!(Client::new(&server).get("/v1/models").status, 503);
    assert_eq!(admin_asks(&server, "DELETE", "").status, 200);
    assert_eq!(Client::new(&server).get("/v1/models").status, 200);
}

#[test]
fn a_plan_has_a_thousand_rules_at_most_however_it_comes_to_them() {
    let server = admin();
    let rules = |count: usize| "- status=503 p=0.0 contains=zz\n".repeat(count);
    put(&server, &rules(1_000));
    for (method, body, told) in [
        ("PUT", rules(1_001), "body:1001:3: [1000]: more than 1000 rules"),
        ("POST", rules(1), "there would be 1001 rules; the most are 1000"),
    ] {
        let refused = admin_asks(&server, method, &body);
        assert_eq!(refused.status, 400, "{method}");
        assert!(refused.text().contains(told), "{method}: {}", refused.text());
    }
    let told = admin_asks(&server, "GET", "");
    assert_eq!(told.text().matches("\"rule\":").count(), 1_000);
    assert_eq!(chat(&server, &whole("instant", "x")).status, 200);
    // What one request asks for itself is bounded, too.
    let many = ask(&server, &"close; ".repeat(33), &whole("instant", "x")).response();
    assert_eq!(many.status, 400);
    assert!(many.text().contains("one text has 33 rules; the most are 32"), "{}", many.text());
}

#[test]
fn what_a_gpu_does_not_feel_is_not_counted() {
    let server = admin();
    put(&server, "- shrink=50% for=1h\n- preempt\n- pause=1ms\n");
    fixture::wait_until(&server, "two pauses", |_| hits(&server, "pause") == 2.0);
    // `org/paced` has no cache and no batch; it has been told nothing of them.
    fixture::wait_until(&server, "the others", |_| {
        hits(&server, "shrink") + hits(&server, "preempt") == 2.0
    });
    let refused = admin_asks(&server, "PUT", "- shrink=50% for=1h model=org/paced");
    assert_eq!(refused.status, 400);
    let told = "`shrink` does nothing to `org/paced`";
    assert!(refused.text().contains(told), "{}", refused.text());
}

#[test]
fn the_admin_endpoint_can_have_an_address_to_itself() {
    let server = fixture::start_with(|settings| {
        settings.admin = Admin { is_on: true, address: Some(("127.0.0.1".to_owned(), 0)) };
    });
    assert_eq!(Client::new(&server).get("/admin/faults").status, 404);
    let mut client = Client::to(server.admin_address().unwrap());
    client.send(post("/admin/faults", "close").replacen("POST", "PUT", 1));
    assert_eq!(client.response().status, 200);
    assert!(ask(&server, "", &whole("instant", "x")).is_at_end());
}

#[test]
fn others_get_every_byte_while_one_in_five_fails() {
    let server = fixture::start();
    let body = streaming("batched", "[hundred] x");
    let alone = chat(&server, &body).streamed_text();
    let words =
        ["stop=7 end=reset", "stop=7 end=close", "stall=50ms after=3", "reset", "status=503"];
    let mut clients = Vec::new();
    for number in 0..200 {
        let mut client = Client::new(&server);
        match number % 5 {
            0 => client.send(faulty(words[number / 5 % words.len()], &body)),
            _ => client.post("/v1/chat/completions", &body),
        }
        clients.push(client);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        if number % 5 != 0 {
            assert_eq!(client.response().streamed_text(), alone, "stream {number}");
        }
    }
    drop(clients);
    let totals = fixture::wait_until(&server, "all to end", |totals| totals.in_flight == 0);
    // 40 faults, 8 of each kind: two kinds end generations, one lets them finish.
    assert_eq!((totals.faulted, totals.finished), (16, 1 + 160 + 8));
    assert_eq!((totals.cut, totals.refused), (0, 0));
    nothing_is_left(&server);
}

/// The first code span of each row of the documentation's tables of faults.
pub(crate) fn examples() -> Vec<String> {
    let docs = include_str!("../../../docs/faults.md");
    let mut in_faults = false;
    let mut found = Vec::new();
    for line in docs.lines() {
        in_faults = match line {
            "| example | what the client gets |" | "| example | what happens |" => true,
            line => in_faults && line.starts_with('|'),
        };
        let span = line.strip_prefix("| `").and_then(|line| line.split_once('`'));
        found.extend(span.filter(|_| in_faults).map(|(words, _)| words.to_owned()));
    }
    found
}

#[test]
fn every_example_of_the_documentation_hits() {
    use llmsim_engine::faults::{self, Fault, Stage};

    let server = admin();
    let mut kinds = Vec::new();
    let body = streaming("batched", "[hundred] x");
    for words in examples() {
        let rule = faults::parse(&words).unwrap_or_else(|bad| panic!("{words}: {bad}")).remove(0);
        let kind = rule.fault.kind();
        let before = hits(&server, kind);
        match rule.fault.stage() {
            Stage::Engine => put(&server, &format!("- {words}")),
            _ if matches!(rule.fault, Fault::RateLimit { .. }) => {
                // More than that at once is too much.
                for _ in 0..4 {
                    ask(&server, &words, &body).response();
                }
            }
            _ => drop(rest(&mut ask_once(&server, &words, &body))),
        }
        fixture::wait_until(&server, &words, |_| hits(&server, kind) > before);
        // It is told of there and on the live page, from the same list.
        let page = Client::new(&server).get("/admin/faults");
        let (_, recent) = page.text().split_once("\"recent\":[").unwrap();
        let of_kind = format!("\"kind\":\"{kind}\"");
        assert!(recent.contains(&of_kind), "{words}: {recent}");
        put(&server, "[]");
        kinds.push(kind);
    }
    assert_eq!(kinds, Fault::KINDS, "every fault has its example, in this order");
    fixture::wait_until(&server, "the restart", |_| {
        Client::new(&server).get("/health").status == 200
    });
    nothing_is_left(&server);
}

/// As [`ask`], on a connection that ends with the answer.
pub(crate) fn ask_once(server: &Server, words: &str, body: &str) -> Client {
    let mut client = Client::new(server);
    client.send(faulty(words, body).replacen("Host: h\r\n", "Host: h\r\nConnection: close\r\n", 1));
    client
}

#[test]
fn the_files_of_the_documentation_are_valid() {
    let docs = include_str!("../../../docs/faults.md");
    let models = fixture::settings().config.models;
    let blocks = docs.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0);
    let mut count = 0;
    for block in blocks {
        // In models.yml the section has a name.
        let text = block.replace("qwen-mock", "batched");
        let file = match text.split_once("faults:\n") {
            Some((_, section)) => section.to_owned(),
            None => text,
        };
        config::load_faults(&Source::new("docs", file), &models)
            .unwrap_or_else(|problems| panic!("{problems}"));
        count += 1;
    }
    assert_eq!(count, 2);
}
