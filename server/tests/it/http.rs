//! The HTTP level: what proxies, browsers, scripts and attackers send.

use std::time::Duration;

use crate::client::{Client, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut all = String::new();
    for message in ["x", "quotes"] {
        all += &post("/v1/chat/completions", &streaming("org/paced", message));
        all += "GET /health HTTP/1.1\r\nHost: h\r\n\r\n";
    }
    all += "GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send(all);
    assert_eq!(client.response().streamed_text(), DEFAULT_TEXT);
    assert_eq!(client.response().status, 200);
    assert!(client.response().streamed_text().starts_with("She said"));
    assert_eq!(client.response().body.len(), 0);
    assert!(client.response().text().contains(r#""object":"list""#));
}

#[test]
fn an_http_1_0_client_gets_no_chunks() {
    let server = fixture::start();
    for extra in ["", "Connection: keep-alive\r\n"] {
        let mut client = Client::new(&server);
        let body = streaming("org/paced", "x");
        client.send(format!(
            "POST /v1/chat/completions HTTP/1.0\r\n{extra}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        let response = client.response();
        assert_eq!(response.header("transfer-encoding"), None);
        assert_eq!(response.header("connection"), Some("close"));
        assert_eq!(response.streamed_text(), DEFAULT_TEXT);
        assert!(client.is_at_end());
    }
    let mut client = Client::new(&server);
    for _ in 0..2 {
        client.send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let response = client.response();
        assert_eq!(response.header("connection"), Some("keep-alive"));
    }
}

#[test]
fn a_client_that_asks_for_an_end_gets_it() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.send("GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /");
    let response = client.response();
    assert_eq!(response.header("connection"), Some("close"));
    assert!(client.is_at_end());
}

#[test]
fn head_is_get_without_a_body() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let length = client.get("/v1/models").body.len();
    client
        .send("HEAD /v1/models HTTP/1.1\r\nHost: h\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n");
    let (status, headers) = client.head();
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-length".to_owned(), length.to_string())));
    // What follows is the next response, not a body.
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_browser_may_ask_from_anywhere() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.send(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\nOrigin: https://a.example\r\n\
         Access-Control-Request-Method: POST\r\n\
         Access-Control-Request-Headers: authorization,content-type\r\n\r\n",
    );
    let response = client.response();
    assert_eq!(response.status, 204);
    assert_eq!(response.header("access-control-allow-origin"), Some("*"));
    assert_eq!(response.header("access-control-allow-headers"), Some("authorization,content-type"));
    assert!(response.header("access-control-allow-methods").unwrap().contains("POST"));
    let plain = client.get("/health");
    assert_eq!(plain.header("access-control-allow-origin"), Some("*"));
    // All headers may be read: what is left of a limit, when to come back.
    assert_eq!(plain.header("access-control-expose-headers"), Some("*"));
}

#[test]
fn a_client_that_waits_for_a_hundred_gets_it() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = whole("instant", "x");
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.head().0, 100);
    client.send(&body);
    assert_eq!(client.response().status, 200);
    // A body that could not be taken is refused before it is sent.
    client.send(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\
         Content-Length: 99999999\r\n\r\n",
    );
    assert_eq!(client.response().status, 413);
    assert!(client.is_at_end());
}

#[test]
fn a_chunked_request_with_extensions_and_trailers_is_read() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = whole("instant", "x");
    let (first, second) = body.split_at(10);
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         {:x};name=value\r\n{first}\r\n{:X}\r\n{second}\r\n0\r\nX-Trailer: 1\r\n\r\n",
        first.len(),
        second.len()
    ));
    assert!(client.response().text().contains(DEFAULT_TEXT));
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn a_body_over_the_limit_is_refused_and_the_connection_lives_on() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.send(post("/v1/chat/completions", &"x".repeat((1 << 20) + 1)));
    let response = client.response();
    assert_eq!(response.status, 413);
    assert!(response.text().contains(r#""error""#));
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn bytes_that_could_be_read_in_two_ways_end_the_connection() {
    let server = fixture::start();
    for (bytes, status) in [
        (
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\nHost: h\n\n", 400),
        ("\u{16}\u{3}\u{1}\u{2}\r\n\r\n", 400),
        // With prior knowledge: the preface, and empty SETTINGS.
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0", 505),
        ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(20_000)), 431),
        (&format!("GET / HTTP/1.1\r\nHost: h\r\n{}: a\r\n\r\n", "n".repeat(70_000)), 431),
    ] {
        let mut client = Client::new(&server);
        client.send(bytes);
        let response = client.response();
        assert_eq!(response.status, status, "{bytes:?}");
        assert_eq!(response.header("connection"), Some("close"));
        assert!(response.text().starts_with(r#"{"error":{"message":"#), "{}", response.text());
        assert!(client.is_at_end(), "{bytes:?}");
    }
    assert_eq!(Client::new(&server).get("/health").status, 200);
}

#[test]
fn errors_of_the_api_keep_the_connection() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut check = |request: &str, status: u16, expected: &str| {
        client.send(request);
        let response = client.response();
        assert_eq!(response.status, status, "{request}");
        assert!(response.text().contains(expected), "{}", response.text());
        response.header("allow").map(str::to_owned)
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    check(&get("/v1/nonsense"), 404, r#""code":"unknown_url""#);
    let allow = check(&get("/v1/chat/completions"), 405, r#""code":"method_not_supported""#);
    assert_eq!(allow.as_deref(), Some("POST, OPTIONS"));
    check(&get("/v1/models/none"), 404, r#""code":"model_not_found""#);
    check(&get("/v1/models/org%2Fpaced"), 200, r#""id":"org/paced""#);
    check(&get("/v1/models/org/paced?x=y"), 200, r#""max_model_len":100000"#);
    let path = "/v1/chat/completions";
    check(&post(path, "{"), 400, "could not parse");
    check(&post(path, &whole("none", "x")), 404, r#""code":"model_not_found""#);
    let xml = post(path, "<xml/>").replace("application/json", "application/xml");
    check(&xml, 415, "application/xml");
    let text = post(path, &whole("instant", "x")).replace("application/json", "text/plain");
    check(&text, 200, DEFAULT_TEXT);
    let gzip = |path| post(path, "x").replace("Host: h", "Host: h\r\nContent-Encoding: gzip");
    // Wherever a body is read.
    for path in [
        path,
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/tokenize",
        "/detokenize",
        "/v1/completions/render",
        "/v1/load_lora_adapter",
    ] {
        check(&gzip(path), 415, "gzip");
    }
    check(&gzip("/v1/nonsense"), 404, "unknown_url");
}

#[test]
fn a_request_id_is_echoed_or_made_and_names_the_answer() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let request = post("/v1/chat/completions", &whole("instant", "x"))
        .replace("Host: h", "Host: h\r\nX-Request-Id: my-id-7");
    client.send(request);
    let response = client.response();
    assert_eq!(response.header("x-request-id"), Some("my-id-7"));
    assert!(response.text().contains(r#""id":"chatcmpl-my-id-7""#));
    let first = client.get("/health");
    let second = client.get("/health");
    let made = first.header("x-request-id").unwrap();
    assert!(made.starts_with("req_"));
    assert_ne!(second.header("x-request-id"), Some(made));
    assert!(first.header("openai-processing-ms").is_some());
}

#[test]
fn a_head_that_does_not_end_gets_a_time_out() {
    let server = fixture::start_with(|settings| {
        settings.limits.head_timeout = Duration::from_millis(200);
    });
    let mut client = Client::new(&server);
    client.send("GET / HTTP/1.1\r\nHost");
    assert_eq!(client.response().status, 408);
    assert!(client.is_at_end());
}

#[test]
fn a_body_that_does_not_come_gets_a_time_out() {
    let server = fixture::start_with(|settings| {
        settings.limits.body_timeout = Duration::from_millis(200);
    });
    let mut client = Client::new(&server);
    client.send("POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{");
    assert_eq!(client.response().status, 408);
    assert!(client.is_at_end());
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let server = fixture::start_with(|settings| {
        settings.limits.idle_timeout = Duration::from_millis(200);
    });
    let mut client = Client::new(&server);
    assert_eq!(client.get("/health").status, 200);
    assert!(client.is_at_end());
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = fixture::start_with(|settings| settings.limits.max_connections = 2);
    let mut first = Client::new(&server);
    let mut second = Client::new(&server);
    assert_eq!(first.get("/health").status, 200);
    assert_eq!(second.get("/health").status, 200);
    let mut third = Client::new(&server);
    let response = third.get("/health");
    assert_eq!(response.status, 503);
    assert!(response.header("retry-after").is_some());
    assert!(third.is_at_end());
    drop(first);
    fixture::wait_until(&server, "a free place", |totals| totals.connections <= 1);
    assert_eq!(Client::new(&server).get("/health").status, 200);
}
