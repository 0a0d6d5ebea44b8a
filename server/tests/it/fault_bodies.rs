//! Failures on purpose of answers in one body, at the level of bytes: what has a meaning there
//! happens, what has none neither happens nor is counted.

use std::io::ErrorKind;
use std::time::Duration;

use crate::client::{Client, Response, post, streaming, whole};
use crate::faults::{admin, ask, hits, nothing_is_left, put, rest, text};
use crate::fixture::{self, DEFAULT_TEXT};

/// A request to each surface that answers "One two three four five six seven."
const REQUESTS: [(&str, &str); 5] = [
    ("/v1/chat/completions", r#"{"model":"batched","messages":[{"role":"user","content":"x"}]}"#),
    ("/v1/completions", r#"{"model":"batched","max_tokens":99,"prompt":"x"}"#),
    ("/v1/responses", r#"{"model":"batched","input":"x"}"#),
    (
        "/v1/messages",
        r#"{"model":"batched","max_tokens":99,"messages":[{"role":"user","content":"x"}]}"#,
    ),
    ("/generate", r#"{"text":"x","sampling_params":{"max_new_tokens":99}}"#),
];

/// What the first three tokens say.
const THREE: &str = "One two three";

fn server() -> llmsimulator::boot::Server {
    fixture::start_with(|settings| {
        // `/generate` has no model's name: the only one is meant.
        settings.config.models.retain(|model| model.name == "batched");
    })
}

/// A request to `path` that asks for its own fault.
fn ask_at(server: &llmsimulator::boot::Server, path: &str, words: &str, body: &str) -> Client {
    let mut client = Client::new(server);
    let headers = format!("Host: h\r\nx-llmsim-fault: {words}\r\n");
    client.send(post(path, body).replacen("Host: h\r\n", &headers, 1));
    client
}

/// How long the head says that the body is.
fn length(headers: &[(String, String)]) -> usize {
    let length = headers.iter().find(|(name, _)| name == "content-length");
    length.expect("a body has a length").1.parse().unwrap()
}

/// Where the text of three tokens ends in a body.
fn place(body: &[u8]) -> usize {
    let said = text(body);
    said.find(THREE).unwrap_or_else(|| panic!("{said}")) + THREE.len()
}

#[test]
fn a_body_breaks_off_where_the_text_is_and_its_length_tells() {
    let server = server();
    for (path, request) in REQUESTS {
        let plain = ask_at(&server, path, "", request).response();
        assert!(text(&plain.body).contains(DEFAULT_TEXT), "{path}");
        for (words, end) in [
            ("stop=3 end=close", None),
            ("stop=3 end=reset", Some(ErrorKind::ConnectionReset)),
            ("truncated_event after=3", None),
            ("stop=3 end=silence", Some(ErrorKind::WouldBlock)),
        ] {
            let mut client = ask_at(&server, path, words, request);
            let (status, headers) = client.head();
            assert_eq!(status, 200, "{path} {words}");
            if words.ends_with("silence") {
                let patience = Some(Duration::from_millis(50));
                client.stream.get_ref().set_read_timeout(patience).unwrap();
            }
            let (body, ended) = rest(&mut client);
            assert_eq!(ended, end, "{path} {words}");
            assert!(text(&body).ends_with(THREE), "{path} {words}: {}", text(&body));
            assert_eq!(body.len(), place(&plain.body), "{path} {words}");
            assert_eq!(length(&headers), plain.body.len(), "{path} {words}: as of the whole");
        }
        // Well framed, and yet not all of it; the connection lives on.
        let mut client = ask_at(&server, path, "stop=3 end=clean", request);
        let short = client.response();
        assert_eq!((short.status, short.body.len()), (200, place(&plain.body)), "{path}");
        assert!(short.text().ends_with(THREE), "{path}: {}", short.text());
        assert_eq!(client.chat(&whole("batched", "x")).status, 200, "{path}");
    }
    assert_eq!(hits(&server, "stop"), 4.0 * REQUESTS.len() as f64);
    assert_eq!(hits(&server, "truncated_event"), REQUESTS.len() as f64);
    let totals = fixture::wait_until(&server, "all to end", |totals| totals.in_flight == 0);
    // Five that broke off and two that did not for each surface: the plain one, and the one behind.
    assert_eq!((totals.faulted, totals.finished), (25, 10));
    nothing_is_left(&server);
}

#[test]
fn a_body_is_no_json_or_no_utf8_and_else_right() {
    let server = server();
    for (path, request) in REQUESTS {
        let plain = ask_at(&server, path, "", request).response();
        let mut client = ask_at(&server, path, "malformed_json after=3", request);
        let malformed = client.response();
        assert_eq!(malformed.body.len() + 1, plain.body.len(), "{path}");
        let said = malformed.text();
        assert_eq!(said.matches('{').count(), said.matches('}').count() + 1, "{path}: {said}");

        client.send(post(path, request).replacen(
            "Host: h\r\n",
            "Host: h\r\nx-llmsim-fault: invalid_utf8 after=3\r\n",
            1,
        ));
        let broken = client.response();
        assert_eq!(broken.body.len(), plain.body.len() + 1, "{path}");
        let at = broken.body.iter().position(|byte| *byte == 0xff).expect("the byte");
        assert!(text(&broken.body[..at]).ends_with(THREE), "{path}");
        assert!(
            std::str::from_utf8(&[&broken.body[..at], &broken.body[at + 1..]].concat()).is_ok()
        );
    }
    for kind in ["malformed_json", "invalid_utf8"] {
        assert_eq!(hits(&server, kind), REQUESTS.len() as f64, "{kind}");
    }
    nothing_is_left(&server);
}

#[test]
fn a_body_stalls_in_its_middle_and_is_whole_in_the_end() {
    let server = server();
    for (path, request) in REQUESTS {
        let plain = ask_at(&server, path, "", request).response();
        let mut client = ask_at(&server, path, "stall=200ms after=3", request);
        let (status, headers) = client.head();
        assert_eq!((status, length(&headers)), (200, plain.body.len()), "{path}");
        // What comes before the silence, then silence, then the rest.
        client.stream.get_ref().set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (before, silent) = rest(&mut client);
        assert_eq!(silent, Some(ErrorKind::WouldBlock), "{path}");
        assert_eq!(before.len(), place(&plain.body), "{path}");
        client.stream.get_ref().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut behind = vec![0; plain.body.len() - before.len()];
        std::io::Read::read_exact(&mut client.stream, &mut behind).unwrap();
        // Ids may differ, which stand behind the text in some forms.
        assert!(text(&behind).starts_with(" four five six seven."), "{path}: {}", text(&behind));
    }
    assert_eq!(hits(&server, "stall"), REQUESTS.len() as f64);
    nothing_is_left(&server);
}

#[test]
fn an_answer_fails_when_it_has_so_many_tokens_and_lets_go_of_its_gpu() {
    let server = fixture::start();
    // 4,000 steps of 5 ms, if it had to come to its end.
    let long =
        r#"{"model":"batched","max_tokens":4000,"messages":[{"role":"user","content":"[long]"}]}"#;
    let fails =
        |path: &str, words: &str| -> Response { ask_at(&server, path, words, long).response() };
    let openai = fails("/v1/chat/completions", "error_event=openai after=3");
    assert_eq!((openai.status, openai.header("content-type")), (500, Some("application/json")));
    assert!(openai.text().contains("\"type\":\"server_error\",\"param\":null,\"code\":null}}"));
    let vllm = fails("/v1/chat/completions", "error_event=vllm after=3");
    assert_eq!(vllm.status, 500);
    assert!(vllm.text().contains("\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}"));
    let anthropic = fails("/v1/messages", "error_event=openai after=3");
    assert_eq!(anthropic.status, 500);
    assert!(anthropic.text().starts_with("{\"type\":\"error\",\"error\":{\"type\":\"api_error\""));
    assert_eq!(hits(&server, "error_event"), 3.0);
    let totals = fixture::wait_until(&server, "all to end", |totals| totals.in_flight == 0);
    assert_eq!((totals.faulted, totals.finished), (3, 0));
    nothing_is_left(&server);
}

#[test]
fn what_is_about_events_leaves_a_body_alone_and_is_not_counted() {
    let server = fixture::start();
    let plain = ask(&server, "", &whole("batched", "x")).response();
    for words in ["duplicate after=3", "drop after=3", "no_done", "no_finish"] {
        let response = ask(&server, words, &whole("batched", "x")).response();
        assert_eq!((response.status, response.body.len()), (200, plain.body.len()), "{words}");
        let kind = words.split(' ').next().unwrap();
        assert_eq!(hits(&server, kind), 0.0, "{words}");
    }
    // Neither is one that comes after more tokens than the answer has: eight.
    for words in
        ["stop=8", "stall=1h after=8", "malformed_json after=8", "error_event=vllm after=8"]
    {
        let mut client = ask(&server, words, &whole("batched", "x"));
        assert_eq!(client.response().body.len(), plain.body.len(), "{words}");
        assert_eq!(client.chat(&whole("batched", "x")).status, 200, "{words}");
    }
    for kind in ["stop", "stall", "malformed_json", "error_event"] {
        assert_eq!(hits(&server, kind), 0.0, "{kind}");
    }
    // And a rule can keep to streams, or to bodies.
    let server = admin();
    put(&server, "- stop=3 end=clean stream=true\n- malformed_json after=3 stream=false\n");
    let body = Client::new(&server).chat(&whole("instant", "x"));
    assert_eq!(body.body.len() + 1, plain.body.len() + "instant".len() - "batched".len());
    let stream = Client::new(&server).chat(&streaming("instant", "x"));
    assert_eq!(stream.events().len(), 4);
    nothing_is_left_of(&server);
}

/// As [`nothing_is_left`], where a plan is still in force.
fn nothing_is_left_of(server: &llmsimulator::boot::Server) {
    put(server, "[]");
    nothing_is_left(server);
}
