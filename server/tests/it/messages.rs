//! Anthropic's `POST /v1/messages`.

use crate::client::{Client, Response};
use crate::fixture::{self, DEFAULT_TEXT};

fn ask(client: &mut Client, members: &str) -> Response {
    client.post("/v1/messages", &format!("{{{members}}}"));
    client.response()
}

#[track_caller]
fn has(response: &Response, part: &str) {
    assert!(response.text().contains(part), "no {part} in {}", response.text());
}

fn hello(model: &str) -> String {
    format!(
        r#""model":"{model}","max_tokens":100,"messages":[{{"role":"user","content":"Hello"}}]"#
    )
}

/// The events of a stream: name and payload, which agree.
fn events(response: &Response) -> Vec<(&str, &str)> {
    response
        .text()
        .split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            let data = data.strip_prefix("data: ").unwrap();
            assert!(data.starts_with(&format!(r#"{{"type":"{name}""#)), "{event}");
            (name, data)
        })
        .collect()
}

#[test]
fn a_whole_message() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let answer = ask(&mut client, &hello(model));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
        assert!(answer.text().starts_with(r#"{"id":"msg_"#), "{}", answer.text());
        has(&answer, &format!(r#""content":[{{"type":"text","text":"{DEFAULT_TEXT}"}}]"#));
        has(&answer, r#""stop_reason":"end_turn","stop_sequence":null"#);
        // As in a chat: 1 token, 4 around it, 3 before the answer.
        has(&answer, r#""usage":{"input_tokens":8,"#);
        has(&answer, r#""output_tokens":8,"#);
    }
}

#[test]
fn a_stream_opens_a_block_and_closes_it() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let answer = ask(&mut client, &format!(r#"{},"stream":true"#, hello(model)));
        assert_eq!(answer.header("content-type"), Some("text/event-stream; charset=utf-8"));
        assert!(answer.header("request-id").is_some());
        let events = events(&answer);
        let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
        let mut expected = vec!["message_start", "content_block_start", "ping"];
        expected.extend(["content_block_delta"; 8]);
        expected.extend(["content_block_stop", "message_delta", "message_stop"]);
        assert_eq!(names, expected);
        assert!(events[0].1.contains(r#""usage":{"input_tokens":8,"#), "{}", events[0].1);
        let text: String = events[3..11]
            .iter()
            .map(|(_, data)| {
                let (_, rest) = data.split_once(r#"{"type":"text_delta","text":""#).unwrap();
                rest.strip_suffix("\"}}").unwrap()
            })
            .collect();
        assert_eq!(text, DEFAULT_TEXT);
        assert!(events[12].1.contains(r#""stop_reason":"end_turn""#));
        assert!(events[12].1.contains(r#""output_tokens":8,"#));
    }
}

#[test]
fn limits_and_stop_sequences_say_what_ended_the_message() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let cut = ask(&mut client, &hello("batched").replace("100", "3"));
    has(&cut, r#""text":"One two three""#);
    has(&cut, r#""stop_reason":"max_tokens","stop_sequence":null"#);
    let stopped = ask(&mut client, &format!(r#"{},"stop_sequences":["e fo"]"#, hello("batched")));
    has(&stopped, r#""text":"One two thre""#);
    has(&stopped, r#""stop_reason":"stop_sequence","stop_sequence":"e fo""#);
}

#[test]
fn counting_says_what_the_message_will_say() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = r#""model":"instant","system":"Be brief.","messages":[{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"t","content":"4"},{"type":"text","text":"And?"}]}]"#;
    client.post("/v1/messages/count_tokens", &format!("{{{body}}}"));
    let counted = client.response();
    // "Be brief." is 3 tokens, "4" is 1, "And?" is 2; 4 around each, 3 before the answer.
    assert_eq!(counted.text(), r#"{"input_tokens":21}"#);
    has(&ask(&mut client, &format!(r#"{body},"max_tokens":5"#)), r#""input_tokens":21,"#);
}

#[test]
fn a_conversation_shares_the_prefixes_of_the_same_chat() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let text = "word ".repeat(100);
    let messages = format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    client.chat(&format!(r#"{{"model":"batched",{messages}}}"#));
    let answer = ask(&mut client, &format!(r#""model":"batched","max_tokens":9,{messages}"#));
    // 100 words, 3 before them: 6 full blocks of 16. What was cached is no input.
    has(&answer, r#""cache_read_input_tokens":96,"#);
}

#[test]
fn everything_under_the_path_is_refused_in_anthropics_form() {
    let server = fixture::start_with(|settings| {
        settings.api_keys = llmsimulator::args::ApiKeys::new(["secret".to_owned()]);
    });
    let mut client = Client::new(&server);
    let mut send = |line: &str, headers: &str, body: &str| {
        client.send(format!(
            "{line} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\nX-Request-Id: r1\r\n{headers}\r\n\
             {body}",
            body.len()
        ));
        client.response()
    };
    let good = format!("{{{}}}", hello("instant"));
    let unknown = good.replace("instant", "none");
    let large = "x".repeat(2 << 20);
    let key = "x-api-key: secret\r\n";
    for (line, headers, body, status, kind) in [
        ("POST /v1/messages", "", good.as_str(), 401, "authentication_error"),
        ("POST /v1/messages", "x-api-key: wrong\r\n", &good, 401, "authentication_error"),
        ("POST /v1/messages", key, "{", 400, "invalid_request_error"),
        ("POST /v1/messages", key, "{}", 400, "invalid_request_error"),
        ("POST /v1/messages", key, &unknown, 404, "not_found_error"),
        ("GET /v1/messages", key, "", 405, "invalid_request_error"),
        ("POST /v1/messages/batches", key, "{}", 404, "not_found_error"),
        ("POST /v1/messages/count_tokens", key, "{}", 400, "invalid_request_error"),
        ("POST /v1/messages", key, &large, 413, "request_too_large"),
    ] {
        let refused = send(line, headers, body);
        assert_eq!(refused.status, status, "{line}: {}", refused.text());
        let start = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":""#);
        assert!(refused.text().starts_with(&start), "{line}: {}", refused.text());
        assert!(refused.text().ends_with(r#""},"request_id":"r1"}"#), "{}", refused.text());
        assert_eq!(refused.header("request-id"), Some("r1"));
    }
    assert_eq!(send("POST /v1/messages", key, &good).status, 200);
    let bearer = "Authorization: Bearer secret\r\n";
    assert_eq!(send("POST /v1/messages", bearer, &good).status, 200);
}

#[test]
fn a_request_that_never_becomes_one_is_refused_in_anthropics_form() {
    let server = fixture::start();
    for request in [
        // Both framings, no host, a body that is no chunk.
        "POST /v1/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\n\r\n",
        "POST /v1/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ] {
        let mut client = Client::new(&server);
        client.send(request);
        let refused = client.response();
        assert_eq!(refused.status, 400, "{request}");
        let start = r#"{"type":"error","error":{"type":"invalid_request_error","message":""#;
        assert!(refused.text().starts_with(start), "{}", refused.text());
        assert!(refused.header("request-id").is_some());
    }
    let mut client = Client::new(&server);
    client.send("POST /v1/chat/completions HTTP/1.1\r\n\r\n");
    assert!(client.response().text().starts_with(r#"{"error":{"message":""#));
}
