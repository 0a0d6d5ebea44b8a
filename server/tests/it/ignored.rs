//! What `docs/api.md` calls ignored: really taken, and really without effect.

use crate::client::Client;
use crate::fixture::{self, DEFAULT_TEXT};

/// Each field with a value as clients send it.
const IGNORED: [(&str, &str); 49] = [
    ("temperature", "0.2"),
    ("top_p", "0.9"),
    ("presence_penalty", "-0.5"),
    ("frequency_penalty", "1.5"),
    ("logit_bias", r#"{"50256":-100}"#),
    ("functions", r#"[{"name":"f","parameters":{}}]"#),
    ("function_call", r#"{"name":"f"}"#),
    ("user", r#""u-1""#),
    ("metadata", r#"{"run":"7"}"#),
    ("store", "true"),
    ("service_tier", r#""flex""#),
    ("safety_identifier", r#""hash""#),
    ("prompt_cache_key", r#""key""#),
    ("reasoning_effort", r#""high""#),
    ("verbosity", r#""low""#),
    ("modalities", r#"["text"]"#),
    ("audio", r#"{"voice":"alloy","format":"wav"}"#),
    ("prediction", r#"{"type":"content","content":"x"}"#),
    ("web_search_options", r#"{"search_context_size":"low"}"#),
    ("moderation", r#"{"model":"omni"}"#),
    ("prompt_cache_retention", r#""24h""#),
    ("prompt_cache_options", r#"{"ttl":"1h"}"#),
    ("top_k", "40"),
    ("min_p", "0.05"),
    ("repetition_penalty", "1.1"),
    ("length_penalty", "0.8"),
    ("use_beam_search", "false"),
    ("bad_words", r#"["two"]"#),
    ("allowed_token_ids", "[1,2]"),
    ("stop_token_ids", "[3]"),
    ("skip_special_tokens", "false"),
    ("spaces_between_special_tokens", "false"),
    ("add_special_tokens", "true"),
    ("echo", "true"),
    ("chat_template_kwargs", r#"{"enable_thinking":false}"#),
    ("documents", r#"[{"text":"d"}]"#),
    ("mm_processor_kwargs", r#"{"num_crops":4}"#),
    ("session_id", r#""s""#),
    ("vllm_xargs", r#"{"a":1}"#),
    ("kv_transfer_params", r#"{"do_remote_decode":true}"#),
    ("chat_template", r#""{{ messages }}""#),
    ("logprob_token_ids", "[1]"),
    ("return_tokens_as_token_ids", "true"),
    ("return_prompt_text", "true"),
    ("repetition_detection", r#"{"max_pattern_size":8}"#),
    ("thinking_token_budget", "-1"),
    ("guided_json", r#"{"type":"object"}"#),
    ("guided_regex", r#""a+""#),
    ("a_field_of_tomorrow", r#"{"deep":[null]}"#),
];

/// What the rows of ignored fields name, in the part about chat.
fn documented() -> Vec<&'static str> {
    let docs = include_str!("../../../docs/api.md");
    let (_, chat) = docs.split_once("\n## `POST /v1/chat/completions`\n").unwrap();
    let (fields, _) = chat.split_once("\n### Tools").unwrap();
    let rows = fields.lines().filter(|row| row.contains(" | ignored | "));
    let names = rows.map(|row| row.split_once(" | ").unwrap().0).filter(|names| {
        // Members of messages and of stream_options, and headers: below.
        !names.contains("messages[]")
            && !names.contains("stream_options")
            && !names.contains("header")
    });
    names.flat_map(|names| names.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn what_the_manual_calls_ignored_is_taken_and_changes_nothing() {
    for name in documented() {
        assert!(IGNORED.iter().any(|(field, _)| *field == name), "no value is tried for {name}");
    }
    let server = fixture::start();
    let mut client = Client::new(&server);
    let member = |(name, value): &(&str, &str)| format!(r#","{name}":{value}"#);
    let each = IGNORED.iter().map(|field| (field.0, member(field)));
    let all = IGNORED.iter().map(member).collect::<String>();
    for (name, fields) in each.chain([("all of them", all)]) {
        let body = format!(
            r#"{{"model":"instant","messages":[{{"role":"user","content":"Hello"}}]{fields}}}"#
        );
        let answer = client.chat(&body);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let said = format!(r#""content":"{DEFAULT_TEXT}""#);
        assert!(answer.text().contains(&said), "{name}: {}", answer.text());
        let usage = r#""usage":{"prompt_tokens":8,"completion_tokens":8,"total_tokens":16,"#;
        assert!(answer.text().contains(usage), "{name}: {}", answer.text());

        let streamed = client.chat(&body.replacen('{', r#"{"stream":true,"#, 1));
        assert_eq!(streamed.status, 200, "{name}: {}", streamed.text());
        assert_eq!(streamed.streamed_text(), DEFAULT_TEXT, "{name}");
    }
}

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
