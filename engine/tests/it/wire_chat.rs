//! Chat requests that must be taken, and what is understood.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{ChatRequest, Role, Side, TokenFields, Truncation};
use llmsim_engine::wire::tools::Choice;
use llmsim_engine::wire::within_floats;

#[track_caller]
fn taken(body: &str) -> ChatRequest<'_> {
    match ChatRequest::parse(body.as_bytes()) {
        Ok(request) => request,
        Err(error) => panic!("refused: {body}\n{error}"),
    }
}

fn with(members: &str) -> String {
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{members}}}"#)
}

#[test]
fn the_smallest_request() {
    let request = taken(r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
    assert_eq!(request.model, "m");
    assert_eq!(request.messages.len(), 1);
    assert_eq!(request.messages[0].role, Role::User);
    assert_eq!(request.messages[0].content, "hi");
    assert!(!request.stream && !request.include_usage && !request.ignore_eos);
    assert_eq!((request.max_tokens, request.seed, request.priority), (None, None, 0));
}

#[test]
fn null_counts_as_not_sent_everywhere() {
    let names = [
        "functions",
        "function_call",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_completion_tokens",
        "n",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "top_logprobs",
        "user",
        "seed",
        "response_format",
        "service_tier",
        "max_tokens",
        "reasoning_effort",
        "logit_bias",
        "stop",
        "stream",
        "stream_options",
        "store",
        "metadata",
        "prediction",
        "verbosity",
        "modalities",
        "audio",
        "web_search_options",
        "safety_identifier",
        "prompt_cache_key",
        "top_k",
        "min_p",
        "repetition_penalty",
        "length_penalty",
        "use_beam_search",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
        "bad_words",
        "allowed_token_ids",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "prompt_logprobs",
        "echo",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template_kwargs",
        "documents",
        "mm_processor_kwargs",
        "structured_outputs",
        "priority",
        "request_id",
        "return_token_ids",
        "stream_interval",
        "cache_salt",
        "session_id",
        "vllm_xargs",
        "kv_transfer_params",
        "include_reasoning",
    ];
    let docs = include_str!("../../../docs/api.md");
    for name in names {
        taken(&with(&format!(r#""{name}":null"#)));
        assert!(docs.contains(&format!("`{name}")), "docs/api.md says nothing of {name}");
    }
    let all: Vec<String> = names.iter().map(|name| format!(r#""{name}":null"#)).collect();
    assert_eq!(taken(&with(&all.join(","))), taken(&with(r#""x":0"#)));
}

#[test]
fn stop_is_one_string_or_up_to_four() {
    let stops = |members: &str| {
        let body = with(members);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let stop: Vec<String> = request.stop.iter().map(|stop| stop.to_string()).collect();
        (stop, request.include_stop)
    };
    assert_eq!(stops(r#""stop":"END""#), (vec!["END".to_owned()], false));
    let four = ["\n", "b", "c", "你"].map(str::to_owned).to_vec();
    let members = r#""stop":["\n","b","c","\u4f60"],"include_stop_str_in_output":true"#;
    assert_eq!(stops(members), (four, true));
    assert_eq!(stops(r#""stop":null"#), (Vec::new(), false));
}

#[test]
fn values_that_ask_for_nothing_are_harmless() {
    for members in [
        r#""n":1"#,
        r#""stop":[]"#,
        r#""logprobs":false"#,
        r#""response_format":{"type":"text"}"#,
        r#""parallel_tool_calls":true"#,
        r#""temperature":0"#,
        r#""temperature":2"#,
        r#""temperature":0.7,"top_p":0"#,
        r#""top_p":1.0"#,
        r#""presence_penalty":-2,"frequency_penalty":2.0"#,
        r#""logit_bias":{"50256":-100,"0":1.5}"#,
        r#""functions":[],"function_call":"none""#,
        r#""metadata":{"a":"b"},"store":true,"service_tier":"auto","user":"u""#,
        r#""reasoning_effort":"xhigh","verbosity":"low","modalities":["text"]"#,
        r#""top_k":-1,"min_p":0.1,"repetition_penalty":1.1,"stop_token_ids":[1,2]"#,
        r#""chat_template_kwargs":{"enable_thinking":false},"skip_special_tokens":true"#,
        r#""a_field_that_nobody_knows":{"deep":[1,{"x":null}]}"#,
        r#""stream":true,"stream_options":{"include_obfuscation":false,"future":1}"#,
        r#""stream":true,"stream_options":{}"#,
        r#""max_tokens":99999999999"#,
    ] {
        taken(&with(members));
    }
}

#[test]
fn content_parts_are_joined_without_a_separator() {
    let request = taken(
        r#"{"model":"m","messages":[{"role":"user","content":[
            {"type":"text","text":"one"},{"type":"text","text":"\ntwo"},
            {"type":"refusal","refusal":"three"}]}]}"#,
    );
    assert_eq!(request.messages[0].content, "one\ntwothree");
}

#[test]
fn a_conversation_with_tools_in_its_history_is_read() {
    let request = taken(
        r#"{"model":"m","messages":[
            {"role":"developer","content":"Be brief."},
            {"role":"user","content":"Weather?","name":"bob"},
            {"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",
              "function":{"name":"weather","arguments":"{\"in\":\"Oslo\"}"}},
              {"id":"call_2","type":"function","function":{"name":"time"}},7]},
            {"role":"tool","tool_call_id":"call_1","content":"rain"},
            {"role":"assistant","content":"It rains.","refusal":null,"reasoning_content":"hm"}]}"#,
    );
    let roles: Vec<&str> = request.messages.iter().map(|m| m.role.as_str()).collect();
    assert_eq!(roles, ["developer", "user", "assistant", "tool", "assistant"]);
    let texts: Vec<&str> = request.messages.iter().map(|m| m.content.as_ref()).collect();
    // What was called is part of the prompt, as models get it; what is no call is not.
    let called = r#"weather{"in":"Oslo"}time"#;
    assert_eq!(texts, ["Be brief.", "Weather?", called, "rain", "It rains."]);
}

const TOOLS: &str = r#""tools":[{"type":"custom","custom":{"name":"c"}},
    {"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]"#;

#[test]
fn a_subset_of_the_tools_may_be_called() {
    let allowed = |choice: &str| {
        let body = with(&format!(r#"{TOOLS},"tool_choice":{choice}"#));
        let tools = taken(&body).tools;
        let list = tools.list.iter().map(|it| (it.name.to_string(), it.place, it.is_allowed));
        (list.collect::<Vec<_>>(), tools.choice == Choice::Required)
    };
    let (f, g) = ("f".to_owned(), "g".to_owned());
    // Places are those of the request, where the custom tool is the first.
    assert_eq!(allowed(r#""auto""#), (vec![(f.clone(), 1, true), (g.clone(), 2, true)], false));
    let only_g = r#"{"type":"allowed_tools","allowed_tools":{"mode":"required",
        "tools":[{"type":"function","function":{"name":"g"}}]}}"#;
    assert_eq!(allowed(only_g), (vec![(f, 1, false), (g, 2, true)], true));

    let refused = |subset: &str| {
        let choice = format!(r#"{{"type":"allowed_tools","allowed_tools":{subset}}}"#);
        let body = with(&format!(r#"{TOOLS},"tool_choice":{choice}"#));
        let error = ChatRequest::parse(body.as_bytes()).expect_err(&body);
        (error.param.unwrap().into_owned(), error.code)
    };
    let missing = Some("missing_required_parameter");
    let at = |member: &str| format!("tool_choice.allowed_tools.{member}");
    assert_eq!(refused(r#"{"tools":[]}"#), (at("mode"), missing));
    assert_eq!(refused(r#"{"mode":"none","tools":[]}"#), (at("mode"), Some("invalid_value")));
    assert_eq!(refused(r#"{"mode":"auto"}"#), (at("tools"), missing));
    assert_eq!(refused(r#"{"mode":"auto","tools":[]}"#), (at("tools"), Some("empty_array")));
    let unnamed = r#"{"mode":"auto","tools":[{"type":"function"}]}"#;
    assert_eq!(refused(unnamed), (at("tools[0].function"), missing));
    let unknown = r#"{"mode":"auto","tools":[{"type":"function","function":{"name":"x"}}]}"#;
    assert_eq!(refused(unknown), ("tool_choice".to_owned(), Some("invalid_value")));
    // A custom tool may be allowed, and is never called.
    let custom = r#"{"mode":"required","tools":[{"type":"custom","custom":{"name":"c"}}]}"#;
    assert_eq!(refused(custom), ("tool_choice".to_owned(), Some("invalid_value")));
}

#[test]
fn what_vllm_tells_of_tokens_is_understood() {
    let tokens = |members: &str| taken(&with(members)).tokens;
    let none = TokenFields { interval: 1, ids: false, prompt_logprobs: None, truncation: None };
    assert_eq!(tokens(r#""x":1"#), none);
    assert_eq!(
        tokens(r#""stream_interval":8,"return_token_ids":true,"prompt_logprobs":0"#),
        TokenFields { interval: 8, ids: true, prompt_logprobs: Some(0), truncation: None }
    );
    // vLLM takes 0 with a stream, and then tells nothing.
    assert_eq!(tokens(r#""prompt_logprobs":0,"stream":true"#), none);
    let cut = |members: &str| tokens(members).truncation.unwrap();
    let left = Truncation { most: Some(Tokens::new(5)), side: Side::Left };
    assert_eq!(cut(r#""truncate_prompt_tokens":5"#), left);
    let all = r#""truncate_prompt_tokens":-1,"truncation_side":"right""#;
    assert_eq!(cut(all), Truncation { most: None, side: Side::Right });
    assert_eq!(tokens(r#""truncation_side":"right""#).truncation, None);
}

#[test]
fn a_number_that_no_float_holds_is_out_of_range_and_no_fault_of_syntax() {
    let refused = |members: &str| {
        let body = with(members);
        ChatRequest::parse(body.as_bytes()).expect_err("the parser does not read it");
        let within = within_floats(body.as_bytes()).expect(members);
        let error = ChatRequest::parse(&within).expect_err(members);
        (error.param.unwrap().into_owned(), error.code.unwrap())
    };
    assert_eq!(refused(r#""max_tokens":1e400"#), ("max_tokens".to_owned(), "invalid_type"));
    assert_eq!(refused(r#""seed":-1E+999"#), ("seed".to_owned(), "invalid_type"));
    let above = "decimal_above_max_value";
    assert_eq!(refused(r#""temperature":1e400"#), ("temperature".to_owned(), above));
    let below = "decimal_below_min_value";
    assert_eq!(refused(r#""top_p":-1e400"#), ("top_p".to_owned(), below));

    // Other numbers, and what stands in strings, stay.
    assert_eq!(within_floats(br#"{"a":1e30,"b":"1e400 \"1e400","c":-12.5e-7}"#), None);
    assert_eq!(within_floats(br#"[1e400"#).unwrap(), b"[1.7976931348623157e308");
    for bad in [r#""\"#, "1e", "-", "1e400e400", "\"1e400", "--1"] {
        within_floats(bad.as_bytes());
    }
}

#[test]
fn escapes_are_undone_and_plain_texts_are_borrowed() {
    let body = r#"{"mod\u0065l":"m\u00e9","messages":[
        {"role":"user","content":"plain"},{"role":"user","content":"a\"b\\\n\ud83d\ude00"}]}"#;
    let request = taken(body);
    assert_eq!(request.model, "mé");
    assert_eq!(request.messages[1].content, "a\"b\\\n😀");
    let plain = &request.messages[0].content;
    assert!(body.as_bytes().as_ptr_range().contains(&plain.as_ptr()), "not copied");
}

#[test]
fn limits_seeds_and_vllms_fields_are_understood() {
    let body = with(
        r#""max_tokens":10,"max_completion_tokens":20,"seed":-9223372036854775808,
           "stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},
           "ignore_eos":true,"min_tokens":5,"priority":-3,"cache_salt":"tenant",
           "request_id":"abc","user":"u1""#,
    );
    let request = taken(&body);
    assert_eq!(request.max_tokens, Some(Tokens::new(20)), "max_completion_tokens wins");
    assert_eq!(request.min_tokens, Tokens::new(5));
    assert_eq!(request.seed, Some(i64::MIN));
    assert!(request.stream && request.include_usage && request.continuous_usage);
    assert!(request.ignore_eos);
    assert_eq!(request.priority, -3);
    assert_eq!(request.cache_salt.as_deref(), Some("tenant"));
    assert_eq!(request.request_id.as_deref(), Some("abc"));
    let unnamed = r#"{"model":"m","messages":[{"role":"user","content":"x"}],"request_id":""}"#;
    assert_eq!(ChatRequest::parse(unnamed.as_bytes()).unwrap().request_id, None);
    assert_eq!(request.user.as_deref(), Some("u1"));

    let body = with(r#""max_tokens":10"#);
    assert_eq!(taken(&body).max_tokens, Some(Tokens::new(10)), "max_tokens alone");
    let body = with(r#""max_tokens":99999999999"#);
    assert_eq!(taken(&body).max_tokens, Some(Tokens::new(u32::MAX)), "as good as no limit");
}

#[test]
fn nesting_up_to_the_limit_is_read() {
    // The body's own object is the first level.
    let deep = "[".repeat(127) + &"]".repeat(127);
    taken(&with(&format!(r#""unknown":{deep}"#)));
}
