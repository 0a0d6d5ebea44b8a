//! With `--api-key`: who is let in, and what the others are told.

use llmsimulator::args::ApiKeys;

use crate::client::{Client, post, whole};
use crate::fixture::{self, DEFAULT_TEXT};

#[test]
fn under_v1_one_of_the_keys_is_needed_and_elsewhere_none() {
    let server = fixture::start_with(|settings| {
        settings.api_keys = ApiKeys::new(["sk-first".to_owned(), "sk-second-key-1234".to_owned()]);
    });
    let mut client = Client::new(&server);
    let chat = post("/v1/chat/completions", &whole("instant", "x"));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut check = |request: &str, header: &str, status: u16, words: &str| {
        client.send(request.replace("Host: h\r\n", &format!("Host: h\r\n{header}")));
        let response = client.response();
        assert_eq!(response.status, status, "{request} {header}: {}", response.text());
        assert!(response.text().contains(words), "{request} {header}: {}", response.text());
        assert_eq!(response.header("www-authenticate").is_some(), status == 401);
    };
    let missing = r#""type":"invalid_request_error","param":null,"code":null}}"#;
    let wrong = r#""type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#;
    for request in [&chat, &get("/v1/models"), &get("/v1/models/instant"), &get("/v1/nonsense")] {
        check(request, "", 401, missing);
        check(request, "Authorization: Basic sk-first\r\n", 401, missing);
        check(request, "Authorization: Bearer \r\n", 401, missing);
        check(request, "Authorization: Bearer sk-firs\r\n", 401, wrong);
        check(request, "Authorization: Bearer sk-first2\r\n", 401, wrong);
    }
    // A key is shown by its ends only.
    let long = "Authorization: Bearer sk-wrong-and-long-5678\r\n";
    check(&chat, long, 401, "Incorrect API key provided: sk-w***5678.");
    for key in ["Bearer sk-first", "bearer sk-second-key-1234"] {
        check(&chat, &format!("Authorization: {key}\r\n"), 200, DEFAULT_TEXT);
    }
    for path in ["/health", "/metrics", "/version", "/load", "/"] {
        check(&get(path), "", 200, "");
    }
    check("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n", "", 204, "");
}

#[test]
fn without_keys_everyone_is_let_in() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for header in ["", "Authorization: Bearer anything\r\n", "Authorization: x\r\n"] {
        let request = post("/v1/chat/completions", &whole("instant", "x"));
        client.send(request.replace("Host: h\r\n", &format!("Host: h\r\n{header}")));
        assert_eq!(client.response().status, 200);
    }
}
