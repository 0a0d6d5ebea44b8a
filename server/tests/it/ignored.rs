//! What is ignored in a history and in the head of a request: really taken, and really without effect.
//! Single fields: `contract.txt`.

use crate::client::Client;
use crate::fixture::{self, DEFAULT_TEXT};

#[test]
fn members_of_a_history_and_headers_of_gateways_change_nothing() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = r#"{"model":"instant","stream":true,"stream_options":{"include_obfuscation":true},
        "messages":[
        {"role":"user","content":"Hi","name":"bob"},
        {"role":"assistant","content":null,"refusal":null,"audio":{"id":"a"},
         "reasoning_content":"hm","reasoning":"hm","function_call":{"name":"f","arguments":""},
         "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"7"},
        {"role":"user","content":"Hello"}]}"#;
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\
         X-Session-Id: s\r\nOpenAI-Organization: o\r\nOpenAI-Project: p\r\n\
         X-Stainless-Retry-Count: 0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         \r\n{body}",
        body.len()
    ));
    let answer = client.response();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.streamed_text(), DEFAULT_TEXT);
}
