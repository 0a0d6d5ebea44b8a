//! Bad input over a real socket: what each gets, and that the server serves on.
//!
//! Every answer must be OpenAI's error object with all four keys, whatever level it comes from, so
//! that the SDKs raise their own exceptions and never trip over plain text.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use llmsim_engine::seed::Seed;
use llmsim_engine::wire::client::Chunk;
use llmsimulator::boot::Server;

use crate::client::{Client, Response, post, whole};
use crate::fixture::{self, DEFAULT_TEXT};

/// What the connection is good for after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The next request is answered on it.
    Open,
    /// It ends: where the next request would begin is unknown.
    Closed,
}

use After::{Closed, Open};

fn assert_is_openai_error(response: &Response, status: u16, words: &str, sent: &str) {
    let body = String::from_utf8_lossy(&response.body);
    assert_eq!(response.status, status, "{sent}\n{body}");
    assert_eq!(response.header("content-type"), Some("application/json"), "{sent}");
    assert!(response.header("x-request-id").is_some_and(|id| !id.is_empty()), "{sent}");
    let error = Chunk::parse(&response.body).unwrap().error.unwrap();
    assert!(error.message.contains(words), "{sent}\nsays: {}\nwant: {words}", error.message);
    assert!(error.kind.is_some(), "{sent}\n{body}");
    for key in [r#""message":"#, r#""type":"#, r#""param":"#, r#""code":"#] {
        assert!(body.contains(key), "{sent}\n{body}");
    }
}

#[track_caller]
fn assert_serves(server: &Server) {
    let response = Client::new(server).chat(&whole("instant", "x"));
    assert_eq!(response.status, 200);
    assert!(response.text().contains(DEFAULT_TEXT));
}

fn shown(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(200)].escape_ascii().to_string()
}

/// Sends raw bytes on a connection of their own and checks the answer and what follows it.
fn check_raw(server: &Server, bytes: &[u8], status: u16, words: &str, after: After) {
    let sent = shown(bytes);
    let mut client = Client::new(server);
    // The server may answer and close before it has read all of this.
    let _ = client.stream.get_mut().write_all(bytes);
    let response = client.response();
    assert_is_openai_error(&response, status, words, &sent);
    match after {
        Open => assert_eq!(client.get("/health").status, 200, "{sent}"),
        Closed => {
            assert_eq!(response.header("connection"), Some("close"), "{sent}");
            assert!(client.is_at_end(), "{sent}");
        }
    }
}

/// A chat request whose body is framed by these headers.
fn framed(headers: &str, body: &str) -> Vec<u8> {
    format!("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n{headers}\r\n\r\n{body}").into_bytes()
}

fn chunked(body: &str) -> Vec<u8> {
    framed("Transfer-Encoding: chunked", body)
}

fn get(rest: &str) -> Vec<u8> {
    format!("GET /v1/models HTTP/1.1\r\n{rest}\r\n\r\n").into_bytes()
}

#[test]
fn requests_that_are_no_http() {
    let server = fixture::start();
    let cases: &[(&[u8], u16, &str)] = &[
        (b"hello\r\n\r\n", 400, "Malformed HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "Malformed HTTP"),
        (b"GET /v1/models\r\n\r\n", 400, "Malformed HTTP"),
        (b"GET /v1/models HTTP/2.0\r\nHost: h\r\n\r\n", 505, "HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "HTTP/1.1"),
        (b"GET /v1/models FTP/1.1\r\nHost: h\r\n\r\n", 400, "Malformed HTTP"),
        (b"GET /v1/models HTTP/1.1 x\r\nHost: h\r\n\r\n", 400, "Malformed HTTP"),
        (b" GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", 400, "Malformed HTTP"),
        (b"G\xc3\x8bT /v1/models HTTP/1.1\r\nHost: h\r\n\r\n", 400, "Malformed HTTP"),
        (b"GET /v1/mo\x00dels HTTP/1.1\r\nHost: h\r\n\r\n", 400, "Malformed HTTP"),
        (b"GET /v1/models HTTP/1.1\nHost: h\n\n", 400, "line feed"),
        (b"GET /v1/models HTTP/1.1\r\nHost: h\rX: y\r\n\r\n", 400, "carriage return"),
        (b"{\"model\":\"m\"}\r\n\r\n", 400, "Malformed HTTP"),
    ];
    for (bytes, status, words) in cases {
        check_raw(&server, bytes, *status, words, Closed);
    }
    assert_serves(&server);
}

#[test]
fn heads_that_break_the_rules() {
    let server = fixture::start();
    let long_name = format!("Host: h\r\n{}: x", "n".repeat(70_000));
    let long_value = format!("Host: h\r\nX: {}", "v".repeat(40_000));
    let many = format!("Host: h\r\n{}", "X: y\r\n".repeat(200));
    for (head, status, words) in [
        ("Accept: */*", 400, "Host"),
        ("Host: a\r\nHost: b", 400, "Host"),
        ("Host: h\r\nX: a\r\n folded", 400, "folded"),
        ("Host: h\r\nno colon", 400, "Malformed HTTP"),
        ("Host: h\r\nX : y", 400, "Malformed HTTP"),
        ("Host: h\r\n: y", 400, "Malformed HTTP"),
        ("Host: h\r\nX: a\0b", 400, "Malformed HTTP"),
        (&long_name, 431, "16384 bytes"),
        (&long_value, 431, "16384 bytes"),
        (many.trim_end(), 431, "too large"),
        ("Host: h\r\nExpect: a-miracle", 417, "100-continue"),
    ] {
        check_raw(&server, &get(head), status, words, Closed);
    }
    let long_url = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "u".repeat(40_000));
    check_raw(&server, long_url.as_bytes(), 431, "too large", Closed);
    assert_serves(&server);
}

/// Everything that could make two servers disagree on where a body ends.
#[test]
fn bodies_framed_in_doubtful_ways() {
    let server = fixture::start();
    for (headers, words) in [
        ("Content-Length: abc", "Content-Length"),
        ("Content-Length: -1", "Content-Length"),
        ("Content-Length: +2", "Content-Length"),
        ("Content-Length: 2, 2", "Content-Length"),
        ("Content-Length: 0x2", "Content-Length"),
        ("Content-Length: ", "Content-Length"),
        ("Content-Length: 99999999999999999999999", "Content-Length"),
        ("Content-Length: 2\r\nContent-Length: 2", "Content-Length"),
        ("Content-Length: 2\r\nContent-Length: 3", "Content-Length"),
        ("Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding"),
        ("Transfer-Encoding: gzip", "chunked"),
        ("Transfer-Encoding: gzip, chunked", "chunked"),
        ("Transfer-Encoding: chunked, identity", "chunked"),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer-Encoding"),
        ("Transfer-Encoding: xchunked", "chunked"),
    ] {
        check_raw(&server, &framed(headers, "{}"), 400, words, Closed);
    }
    for body in [
        "hello\r\n",
        "\r\n{}\r\n0\r\n\r\n",
        "0x2\r\n{}\r\n0\r\n\r\n",
        "-2\r\n{}\r\n0\r\n\r\n",
        "2 2\r\n{}\r\n0\r\n\r\n",
        "2\n{}\r\n0\r\n\r\n",
        "2\r\n{}}\r\n0\r\n\r\n",
        "ffffffffffffffffff\r\n{}",
        "0\r\nno colon\r\n\r\n",
    ] {
        check_raw(&server, &chunked(body), 400, "Malformed HTTP", Closed);
    }
    let old = "POST /v1/chat/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    check_raw(&server, old.as_bytes(), 400, "HTTP/1.0", Closed);
    assert_serves(&server);
}

#[test]
fn routes_methods_and_types_that_do_not_exist() {
    let server = fixture::start();
    let request = |line: &str| format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes();
    for line in [
        "GET /index.html",
        "GET /v1",
        "GET /v1/",
        "GET /v1/models/nobody",
        "GET /v1/models/../../etc/passwd",
        "GET /v1/models/%zz",
        "GET /v1/models/%ff%fe",
        "GET //v1/models",
        "GET /V1/MODELS",
        "POST /v1/chat/completions/",
        "POST /v1/embedings",
        "DELETE /nowhere",
    ] {
        check_raw(&server, &request(line), 404, "", Open);
    }
    for (line, allow) in [
        ("GET /v1/chat/completions", "POST"),
        ("PUT /v1/chat/completions", "POST"),
        ("DELETE /v1/chat/completions", "POST"),
        ("POST /v1/models", "GET"),
        ("PATCH /v1/models/instant", "GET"),
        ("BREW /health", "GET"),
        ("TRACE /v1/models", "GET"),
    ] {
        let bytes = request(line);
        check_raw(&server, &bytes, 405, "different HTTP method", Open);
        let mut client = Client::new(&server);
        client.send(&bytes);
        let response = client.response();
        assert!(response.header("allow").is_some_and(|methods| methods.contains(allow)), "{line}");
    }
    for (headers, body, words) in [
        ("Content-Type: text/plain\r\nContent-Length: 5", "hello", "'text/plain'"),
        ("Content-Type: multipart/form-data\r\nContent-Length: 5", "hello", "application/json"),
        ("Content-Encoding: gzip\r\nContent-Length: 2", "{}", "'gzip'"),
    ] {
        check_raw(&server, &framed(headers, body), 415, words, Open);
    }
    // curl's default type does no harm to a body that is JSON.
    let mut client = Client::new(&server);
    let body = whole("instant", "x");
    let kind = "Content-Type: application/x-www-form-urlencoded";
    client.send(framed(&format!("{kind}\r\nContent-Length: {}", body.len()), &body));
    assert_eq!(client.response().status, 200);
    assert_serves(&server);
}

#[test]
fn bodies_over_the_limit() {
    let server = fixture::start_with(|settings| settings.limits.max_body_bytes = 1000);
    let words = "at most 1000 bytes";
    let body = "x".repeat(100_000);
    let counted = framed(&format!("Content-Length: {}", body.len()), &body);
    check_raw(&server, &counted, 413, words, Open);
    check_raw(&server, &chunked(&format!("186a0\r\n{body}\r\n0\r\n\r\n")), 413, words, Open);
    let small = format!("{}0\r\n\r\n", "10\r\n0123456789abcdef\r\n".repeat(100));
    check_raw(&server, &chunked(&small), 413, words, Open);
    // Who asks first is told at once, and sends nothing.
    let asks = framed("Content-Length: 100000\r\nExpect: 100-continue", "");
    check_raw(&server, &asks, 413, words, Closed);
    assert_serves(&server);
}

/// One connection for all: a refused request does not end it.
#[test]
fn bodies_that_are_no_request() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let deep = "[".repeat(100_000);
    let message = |content: &str| {
        format!(r#"{{"model":"instant","messages":[{{"role":"user","content":{content}}}]}}"#)
    };
    let with = |members: &str| {
        format!(r#"{{"model":"instant","messages":[{{"role":"user","content":"x"}}],{members}}}"#)
    };
    let json = "could not parse the JSON";
    let cases: Vec<(String, u16, &str)> = vec![
        (String::new(), 400, json),
        ("{".to_owned(), 400, json),
        ("[]".to_owned(), 400, "expected an object"),
        ("null".to_owned(), 400, "expected an object"),
        ("{}".to_owned(), 400, "you must provide a model"),
        (deep.clone(), 400, "nested deeper"),
        (format!(r#"{{"x":{deep}"#), 400, "nested deeper"),
        (message(&deep), 400, "nested deeper"),
        (message(r#""\ud800""#), 400, json),
        (message("NaN"), 400, json),
        (with(r#""seed":1e999"#), 400, "Invalid type for 'seed'"),
        (with("}"), 400, json),
        (with(r#""model":"instant""#), 400, json),
        (message("1"), 400, "messages[0].content"),
        (message(r#"[{"type":"image_url","image_url":{"url":"x"}}]"#), 400, "image_url"),
        (message("[]"), 400, "messages[0].content"),
        (r#"{"model":"instant"}"#.to_owned(), 400, "'messages'"),
        (r#"{"model":"instant","messages":[]}"#.to_owned(), 400, "empty array"),
        (r#"{"model":"instant","messages":"x"}"#.to_owned(), 400, "array of objects"),
        (r#"{"model":"nobody","messages":[{"role":"user"}]}"#.to_owned(), 404, "`nobody`"),
        (r#"{"model":"INSTANT","messages":[{"role":"user"}]}"#.to_owned(), 404, "`INSTANT`"),
        (with(r#""stream":"true""#), 400, "'stream'"),
        (with(r#""stream_options":{"include_usage":true}"#), 400, "'stream_options'"),
        (with(r#""stream":true,"max_tokens":0"#), 400, "'max_tokens'"),
        (with(r#""stream":true,"temperature":3"#), 400, "'temperature'"),
        (with(r#""stream":true,"n":0"#), 400, "'n'"),
        (with(r#""max_tokens":1000000"#), 400, "maximum context length is 100000 tokens"),
        (with(r#""min_tokens":5,"max_tokens":4"#), 400, "min_tokens"),
        (with(r#""priority":1"#), 400, "priority"),
        (with(r#""cache_salt":"""#), 400, "cache_salt"),
        (
            format!(
                r#"{{"model":"batched","messages":[{{"role":"user","content":"{}"}}]}}"#,
                "word ".repeat(5000)
            ),
            400,
            "maximum context length is 4096 tokens",
        ),
    ];
    for (body, status, words) in &cases {
        client.post("/v1/chat/completions", body);
        let response = client.response();
        assert_is_openai_error(&response, *status, words, &shown(body.as_bytes()));
    }
    // Bytes that are no UTF-8, in a field that is read and in one that is not.
    for body in [&b"{\"model\":\"\xff\"}"[..], b"{\"model\":\"m\",\"x\":\"\xc3\x28\"}"] {
        let mut bytes = framed(&format!("Content-Length: {}", body.len()), "");
        bytes.extend_from_slice(body);
        client.send(bytes);
        assert_is_openai_error(&client.response(), 400, json, &shown(body));
    }
    assert_eq!(client.chat(&whole("instant", "x")).status, 200, "the same connection, still");
    assert_serves(&server);
}

#[test]
fn clients_that_break_off_or_wait_for_ever() {
    let server = fixture::start_with(|settings| {
        // Long enough that a busy machine does not time out those who are in time.
        settings.limits.head_timeout = Duration::from_secs(1);
        settings.limits.body_timeout = Duration::from_secs(1);
    });
    let whole_request = post("/v1/chat/completions", &whole("instant", "x"));
    for cut in (0..whole_request.len()).step_by(7) {
        // Hangs up in the middle, in good order or not.
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(&whole_request.as_bytes()[..cut]).unwrap();
        if cut % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
        }
    }
    check_raw(&server, b"GET /v1/models HTTP/1.1\r\nHost: h\r\n", 408, "timeout", Closed);
    check_raw(&server, &framed("Content-Length: 5", "{"), 408, "timeout", Closed);
    check_raw(&server, &chunked("5\r\n{"), 408, "timeout", Closed);
    assert_serves(&server);
}

/// Mutated requests, each on a connection of its own: an answer of HTTP or none, and never an end
/// of the server. The seed is fixed; one that finds something stays in the list.
#[test]
fn mutated_requests_do_no_harm() {
    let server = fixture::start();
    let starts = [
        post("/v1/chat/completions", &whole("instant", "x")).into_bytes(),
        chunked(&format!("{:x}\r\n{}\r\n0\r\n\r\n", 15, r#"{"model":"abc"}"#)),
        get("Host: h\r\nAccept: */*\r\nConnection: keep-alive"),
    ];
    const NASTY: [&[u8]; 12] = [
        b"\r\n",
        b"\n",
        b"\r",
        b"\0",
        b":",
        b" ",
        b"\xff",
        b"chunked",
        b"Content-Length: 9\r\n",
        b"HTTP/1.1",
        b"ffffffff",
        b"{[\"",
    ];
    for seed in [1, 2, 3] {
        let mut random = Seed::new(seed).generator();
        for _ in 0..400 {
            let mut bytes = starts[random.below(3) as usize].clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => drop(bytes.drain(at..(at + 3).min(bytes.len()))),
                    2 => {
                        let nasty = NASTY[random.below(NASTY.len() as u64) as usize];
                        bytes.splice(at..at, nasty.iter().copied());
                    }
                    _ => {
                        let copy = bytes[at..(at + 20).min(bytes.len())].to_vec();
                        bytes.splice(at..at, copy);
                    }
                }
            }
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            // A reset after a refusal is an end like any other.
            let _ = stream.read_to_end(&mut answer);
            let context = || format!("seed {seed}: {}\n{}", shown(&bytes), shown(&answer));
            assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{}", context());
            assert!(!answer.starts_with(b"HTTP/1.1 500"), "{}", context());
        }
    }
    assert_serves(&server);
}
