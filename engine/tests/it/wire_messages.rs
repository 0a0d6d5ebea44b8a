//! Anthropic's messages: what is taken, what is refused in which form, and the bytes of an answer.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::Role;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::messages::frames::{self, Block, MessageBody, StopReason};
use llmsim_engine::wire::messages::{MessagesRequest, Purpose, error};
use llmsim_engine::wire::tools::Choice;
use llmsim_engine::wire::usage::Usage;

const HELLO: &str = r#""messages":[{"role":"user","content":"Hello"}]"#;

fn body(members: &str) -> String {
    format!(r#"{{"model":"m","max_tokens":100,{members}}}"#)
}

#[track_caller]
fn taken(members: &str) -> MessagesRequest<'static> {
    let body = body(members).leak();
    MessagesRequest::parse(body.as_bytes(), Purpose::Answer)
        .unwrap_or_else(|error| panic!("{body}\n{error}"))
}

/// A refusal as Anthropic writes it.
#[track_caller]
fn refused(body: &str) -> String {
    let error = MessagesRequest::parse(body.as_bytes(), Purpose::Answer).expect_err(body);
    let mut out = Vec::new();
    error::write(&error, "req_1", &mut out);
    text(out)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn said(request: &MessagesRequest<'_>) -> Vec<(Role, String)> {
    request.messages.iter().map(|it| (it.role, it.content.clone().into_owned())).collect()
}

#[test]
fn a_conversation_is_the_chat_that_says_the_same() {
    let request = taken(
        r#""system":[{"type":"text","text":"Be ","cache_control":{"type":"ephemeral"}},
                     {"type":"text","text":"brief."}],
           "messages":[
             {"role":"user","content":[{"type":"text","text":"Weather?"}]},
             {"role":"assistant","content":[
               {"type":"thinking","thinking":"Hm.","signature":"x"},
               {"type":"text","text":"I look."},
               {"type":"tool_use","id":"toolu_1","name":"weather","input":{"city": "Oslo"}}]},
             {"role":"user","content":[
               {"type":"tool_result","tool_use_id":"toolu_1","content":"Sunny."}]}]"#,
    );
    assert_eq!(
        said(&request),
        [
            (Role::System, "Be brief.".to_owned()),
            (Role::User, "Weather?".to_owned()),
            (Role::Assistant, "I look.weather{\"city\": \"Oslo\"}".to_owned()),
            (Role::Tool, "Sunny.".to_owned()),
        ]
    );
    // A result with words beside it: the tool's turn, then the user's.
    let request = taken(
        r#""messages":[{"role":"user","content":[
             {"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"4"}]},
             {"type":"text","text":"And now?"}]}]"#,
    );
    let turns = [(Role::Tool, "4".to_owned()), (Role::User, "And now?".to_owned())];
    assert_eq!(said(&request), turns);
}

#[test]
fn what_has_an_effect_is_understood() {
    let request = taken(&format!(
        r#"{HELLO},"system":"","stop_sequences":["\n\nHuman:"],"stream":true,"temperature":1,
           "top_p":0.5,"top_k":40,"metadata":{{"user_id":"u"}},"service_tier":"auto",
           "thinking":{{"type":"adaptive"}},"unknown":{{}},
           "tools":[{{"name":"a","description":"d","input_schema":{{"type":"object"}}}},
                    {{"type":"web_search_20250305","name":"web_search"}}],
           "tool_choice":{{"type":"tool","name":"a","disable_parallel_tool_use":true}}"#
    ));
    assert_eq!(request.messages.len(), 1, "an empty system prompt is none");
    assert_eq!(request.max_tokens, Some(Tokens::new(100)));
    assert_eq!(request.stop, ["\n\nHuman:"]);
    assert!(request.stream);
    // An adaptive model thinks as much as it likes.
    assert_eq!(request.most_thinking, None);
    let thinking = |thinking: &str| {
        let body = body(&format!(r#"{HELLO},"thinking":{thinking}"#)).replace(":100,", ":5000,");
        MessagesRequest::parse(body.as_bytes(), Purpose::Answer).unwrap().most_thinking
    };
    let budget = r#"{"type":"enabled","budget_tokens":2048}"#;
    assert_eq!(thinking(budget), Some(Tokens::new(2048)));
    assert_eq!(thinking(r#"{"type":"disabled"}"#), Some(Tokens::ZERO));
    assert_eq!(request.tools.list.len(), 1, "one of them is never called");
    assert_eq!(request.tools.choice, Choice::Named("a".into()));
    assert!(!request.tools.parallel);
    assert!(taken(HELLO).tools.parallel);
}

#[test]
fn tokens_are_counted_without_a_limit() {
    let body = format!(r#"{{"model":"m",{HELLO}}}"#);
    let request = MessagesRequest::parse(body.as_bytes(), Purpose::Count).unwrap();
    assert_eq!(request.max_tokens, None);
    assert!(refused(&body).contains(r#""message":"max_tokens: Field required""#));
    let mut out = Vec::new();
    frames::count(8, &mut out);
    assert_eq!(out, br#"{"input_tokens":8}"#);
}

#[test]
fn refusals_name_the_path_and_have_anthropics_form() {
    let start = r#"{"type":"error","error":{"type":"invalid_request_error","message":"#;
    let end = r#"},"request_id":"req_1"}"#;
    let with = |members: &str| body(&format!("{HELLO},{members}"));
    for (body, message) in [
        ("{".to_owned(), "We could not parse the JSON body"),
        ("{}".to_owned(), "model: Field required"),
        (body(r#""messages":[]"#), "messages: at least one element is required"),
        (body(r#""messages":5"#), "messages: Invalid type"),
        (body(r#""system":"x""#), "messages: Field required"),
        (body(r#""messages":[{"role":"robot","content":"x"}]"#), "messages.0.role: Invalid value"),
        (body(r#""messages":[{"role":"user"}]"#), "messages.0.content: Field required"),
        (
            body(r#""messages":[{"role":"user","content":[{"type":"text"}]}]"#),
            "messages.0.content.0.text: Field required",
        ),
        (
            body(r#""messages":[{"role":"user","content":[{"type":"image","source":{}}]}]"#),
            "messages.0.content.0.type: Invalid content part: 'image'",
        ),
        (with(r#""max_tokens2":1,"temperature":1.5"#), "temperature: Invalid 'temperature'"),
        (with(r#""stop_sequences":[""]"#), "stop_sequences.0: "),
        (with(r#""stop_sequences":"x""#), "stop_sequences: Invalid type"),
        (with(r#""tools":[{"name":"a"}]"#), "tools.0.input_schema: Field required"),
        (with(r#""tools":[{"name":"a b","input_schema":{}}]"#), "tools.0.name: "),
        (with(r#""tool_choice":{"type":"any"}"#), "tool_choice: "),
        (with(r#""tool_choice":{"type":"tool","name":"b"}"#), "tool_choice: "),
        (with(r#""thinking":{"type":"enabled"}"#), "thinking.budget_tokens: Field required"),
        (with(r#""thinking":{"type":"enabled","budget_tokens":5}"#), "thinking.budget_tokens: "),
        (
            with(r#""thinking":{"type":"enabled","budget_tokens":1024}"#),
            "thinking.budget_tokens: Invalid value for 'thinking.budget_tokens': `max_tokens` must",
        ),
        (with(r#""stream":"yes""#), "stream: Invalid type"),
    ] {
        let refusal = refused(&body);
        assert!(refusal.starts_with(&format!("{start}\"{message}")), "{body}\n{refusal}");
        assert!(refusal.ends_with(end), "{refusal}");
    }
}

#[test]
fn every_status_has_anthropics_word_for_it() {
    for (status, kind) in [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ] {
        assert_eq!(error::kind(status), kind, "{status}");
    }
    let mut out = Vec::new();
    error::write(&ApiError::model_not_found("x"), "req_1", &mut out);
    let not_found = text(out);
    assert!(not_found.starts_with(
        r#"{"type":"error","error":{"type":"not_found_error","message":"The model `x` does not"#
    ));
}

const USAGE: Usage = Usage {
    prompt: Tokens::new(10),
    cached: Tokens::new(4),
    completion: Tokens::new(3),
    reasoning: Tokens::ZERO,
};

#[test]
fn a_stream_is_named_events_around_blocks() {
    let mut out = Vec::new();
    frames::start("msg_1", "m", 10, &mut out);
    frames::open(0, Block::Thinking, &mut out);
    frames::ping(&mut out);
    frames::delta(0, Block::Thinking, b"Hm", &mut out);
    frames::close(0, Block::Thinking, &mut out);
    frames::open(1, Block::Text, &mut out);
    frames::delta(1, Block::Text, br"a\n", &mut out);
    frames::close(1, Block::Text, &mut out);
    let call = Block::ToolUse { id: "call_1", name: "f" };
    frames::open(2, call, &mut out);
    frames::delta(2, call, br#"{\"x\":"#, &mut out);
    frames::close(2, call, &mut out);
    frames::end(StopReason::ToolUse, &USAGE, &mut out);
    let events = [
        (
            "message_start",
            r#","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":10,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,"service_tier":"standard"}}"#,
        ),
        (
            "content_block_start",
            r#","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}"#,
        ),
        ("ping", ""),
        ("content_block_delta", r#","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}"#),
        (
            "content_block_delta",
            r#","index":0,"delta":{"type":"signature_delta","signature":"c2ltdWxhdGVk"}"#,
        ),
        ("content_block_stop", r#","index":0"#),
        ("content_block_start", r#","index":1,"content_block":{"type":"text","text":""}"#),
        ("content_block_delta", r#","index":1,"delta":{"type":"text_delta","text":"a\n"}"#),
        ("content_block_stop", r#","index":1"#),
        (
            "content_block_start",
            r#","index":2,"content_block":{"type":"tool_use","id":"toolu_1","name":"f","input":{}}"#,
        ),
        (
            "content_block_delta",
            r#","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"x\":"}"#,
        ),
        ("content_block_stop", r#","index":2"#),
        (
            "message_delta",
            r#","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3,"service_tier":"standard"}"#,
        ),
        ("message_stop", ""),
    ];
    let expected: String = events
        .iter()
        .map(|(kind, rest)| format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{rest}}}\n\n"))
        .collect();
    assert_eq!(text(out), expected);
}

#[test]
fn a_body_has_the_same_blocks() {
    let mut out = Vec::new();
    let mut body = MessageBody::open("msg_1", "m", &mut out);
    body.block(Block::Text, |out| out.extend_from_slice(b"Hi"));
    body.block(Block::ToolUse { id: "call_1", name: "f" }, |out| {
        out.extend_from_slice(b"{\"x\":1}")
    });
    body.close(StopReason::StopSequence("\n"), &USAGE);
    assert_eq!(
        text(out),
        concat!(
            r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":["#,
            r#"{"type":"text","text":"Hi"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"x":1}}],"#,
            r#""stop_reason":"stop_sequence","stop_sequence":"\n","usage":{"input_tokens":6,"#,
            r#""cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":3,"#,
            r#""service_tier":"standard"}}"#
        )
    );
}
