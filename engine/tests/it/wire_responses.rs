//! OpenAI's responses: what is taken, what is refused, and the bytes of an answer.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::Role;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::logprobs::{write_entry, write_short_entry};
use llmsim_engine::wire::responses::frames::{
    Content, Cut, FIRST_SEQUENCE, Item, ItemKind, ResponseHead, Status, Thought, write_error,
};
use llmsim_engine::wire::responses::{InputItem, ResponsesRequest};
use llmsim_engine::wire::tools::Choice;
use llmsim_engine::wire::usage::Usage;

#[track_caller]
fn taken(members: &str) -> ResponsesRequest<'static> {
    let body = format!(r#"{{"model":"m",{members}}}"#).leak();
    ResponsesRequest::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}\n{error}"))
}

#[track_caller]
fn refused(members: &str, param: &str, code: Option<&str>) {
    let body = format!("{{{members}}}");
    let error = ResponsesRequest::parse(body.as_bytes()).expect_err(&body);
    assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}\n{error}");
    assert_eq!(error.code, code, "{body}\n{error}");
}

fn said(request: &ResponsesRequest<'_>) -> Vec<(Role, String)> {
    let words = |item: &InputItem<'_>| match item {
        InputItem::Message(it) => (it.role, it.content.clone().into_owned()),
        InputItem::Reference(it) => (Role::Assistant, format!("<{}>", it.id)),
    };
    request.input.iter().map(words).collect()
}

#[test]
fn input_is_a_text_or_items() {
    let text = taken(r#""input":"Hello""#);
    assert_eq!(said(&text), [(Role::User, "Hello".to_owned())]);
    assert!(text.store && !text.stream && text.instructions.is_none());
    let items = taken(
        r#""instructions":"Be brief.","input":[
             {"role":"developer","content":"x"},
             {"type":"message","role":"user","content":[
               {"type":"input_text","text":"Wea"},{"type":"input_text","text":"ther?"}]},
             {"type":"reasoning","id":"rs_1","summary":[]},
             {"type":"function_call","call_id":"c","name":"weather","arguments":"{}"},
             {"type":"function_call_output","call_id":"c","output":"Sunny."},
             {"type":"item_reference","id":"msg_9"},
             {"type":"message","role":"assistant","id":"msg_1","status":"completed",
              "content":[{"type":"output_text","text":"Sun.","annotations":[]}]}]"#,
    );
    assert_eq!(items.instructions.as_deref(), Some("Be brief."));
    assert_eq!(
        said(&items),
        [
            (Role::Developer, "x".to_owned()),
            (Role::User, "Weather?".to_owned()),
            (Role::Assistant, "weather{}".to_owned()),
            (Role::Tool, "Sunny.".to_owned()),
            (Role::Assistant, "<msg_9>".to_owned()),
            (Role::Assistant, "Sun.".to_owned()),
        ]
    );
}

#[test]
fn what_has_an_effect_is_understood() {
    let request = taken(
        r#""input":"x","stream":true,"stream_options":{"include_obfuscation":false},"store":false,
           "max_output_tokens":20,"previous_response_id":"resp_1","parallel_tool_calls":false,
           "reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"json_object"}},
           "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true},
                    {"type":"web_search"}],
           "tool_choice":{"type":"function","name":"f"},"top_logprobs":3,
           "include":["message.output_text.logprobs"],"seed":5,"ignore_eos":true,"min_tokens":2,
           "stop":"x","unknown":1"#,
    );
    assert!(request.stream && !request.store && request.summarizes && request.ignore_eos);
    assert_eq!(request.max_tokens, Some(Tokens::new(20)));
    assert_eq!(request.previous.as_deref(), Some("resp_1"));
    assert_eq!(request.tools.choice, Choice::Named("f".into()));
    // The other is never called.
    assert_eq!((request.tools.list.len(), request.tools.parallel), (1, false));
    assert_eq!((request.top_logprobs, request.logprobs), (3, true));
    assert_eq!((request.seed, request.min_tokens), (Some(5), Tokens::new(2)));
}

#[test]
fn wrong_requests_are_told_what_and_where() {
    refused(r#""input":"x""#, "model", Some("missing_required_parameter"));
    refused(r#""model":"m""#, "input", Some("missing_required_parameter"));
    let with = |members: &str, param: &str, code: Option<&str>| {
        refused(&format!(r#""model":"m",{members}"#), param, code);
    };
    with(r#""input":5"#, "input", Some("invalid_type"));
    with(r#""input":[5]"#, "input[0]", Some("invalid_type"));
    with(r#""input":[{"content":"x"}]"#, "input[0].role", Some("missing_required_parameter"));
    with(r#""input":[{"role":"tool","content":"x"}]"#, "input[0].role", Some("invalid_value"));
    with(r#""input":[{"role":"user"}]"#, "input[0].content", Some("missing_required_parameter"));
    with(r#""input":[{"type":"joke"}]"#, "input[0].type", Some("invalid_value"));
    with(
        r#""input":[{"role":"user","content":[{"type":"input_image"}]}]"#,
        "input[0].content[0].type",
        Some("invalid_value"),
    );
    with(
        r#""input":[{"type":"function_call_output","output":"x"}]"#,
        "input[0].call_id",
        Some("missing_required_parameter"),
    );
    let with = |members: &str, param: &str, code: Option<&str>| {
        refused(&format!(r#""model":"m","input":"x",{members}"#), param, code);
    };
    with(r#""max_output_tokens":0"#, "max_output_tokens", Some("integer_below_min_value"));
    with(r#""background":true"#, "background", Some("invalid_value"));
    with(r#""conversation":"conv_1""#, "conversation", Some("invalid_value"));
    with(r#""prompt":{"id":"p"}"#, "prompt", Some("invalid_value"));
    with(r#""stream_options":{}"#, "stream_options", None);
    with(
        r#""stream":true,"stream_options":{"include_usage":true}"#,
        "stream_options.include_usage",
        Some("unknown_parameter"),
    );
    with(r#""tool_choice":"required""#, "tool_choice", None);
    with(r#""tool_choice":{"type":"function","name":"f"}"#, "tool_choice", Some("invalid_value"));
    with(r#""tools":[{"type":"function"}]"#, "tools[0].name", Some("missing_required_parameter"));
    with(r#""text":{"format":{"type":"xml"}}"#, "text.format.type", Some("invalid_value"));
    with(
        r#""text":{"format":{"type":"json_schema","name":"n"}}"#,
        "text.format.schema",
        Some("missing_required_parameter"),
    );
    with(r#""truncation":"some""#, "truncation", Some("invalid_value"));
    // What chat checks is checked here, too.
    with(r#""min_tokens":30,"max_output_tokens":4"#, "min_tokens", None);
    with(r#""repetition_penalty":0"#, "repetition_penalty", Some("invalid_value"));
    with(r#""presence_penalty":"x""#, "presence_penalty", Some("invalid_type"));
    with(r#""frequency_penalty":3"#, "frequency_penalty", Some("decimal_above_max_value"));
    with(r#""logit_bias":[]"#, "logit_bias", Some("invalid_type"));
    with(r#""include_reasoning":1"#, "include_reasoning", Some("invalid_type"));
    let long = format!(r#""request_id":"{}""#, "r".repeat(129));
    with(&long, "request_id", Some("string_above_max_length"));
    with(r#""temperature":5"#, "temperature", Some("decimal_above_max_value"));
}

fn echo(members: &str) -> String {
    String::from_utf8(taken(members).echo).unwrap()
}

#[test]
fn a_response_repeats_the_settings_of_its_request() {
    assert_eq!(
        echo(r#""input":"x""#),
        concat!(
            r#","instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"#,
            r#""parallel_tool_calls":true,"previous_response_id":null,"prompt_cache_key":null,"#,
            r#""reasoning":{"effort":null,"summary":null},"safety_identifier":null,"#,
            r#""service_tier":"default","store":true,"temperature":1.0,"#,
            r#""text":{"format":{"type":"text"},"verbosity":"medium"},"tool_choice":"auto","#,
            r#""tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled","user":null"#
        )
    );
    let echo = echo(
        r#""input":"x","temperature":0.5,"top_p":1,"metadata":{"a":"b\n"},"instructions":"\u00e9",
           "tools":[{"type":"function","name":"f","parameters":{"a":[1,2.5,1e300,null,true]}}]"#,
    );
    // An object has all of OpenAI's members, whichever of them were sent; and the tier is the one
    // that served, which `auto` and `flex` are not.
    let partial = self::echo(
        r#""input":"x","text":{"verbosity":"low"},"reasoning":{"effort":"low","x":1},
           "service_tier":"flex""#,
    );
    for member in [
        r#","text":{"format":{"type":"text"},"verbosity":"low"},"#,
        r#","reasoning":{"effort":"low","summary":null,"x":1},"#,
        r#","service_tier":"default","#,
    ] {
        assert!(partial.contains(member), "{member}: {partial}");
    }
    for member in [
        r#","temperature":0.5,"#,
        r#","top_p":1,"#,
        r#","metadata":{"a":"b\n"},"#,
        r#","instructions":"é","#,
        r#""tools":[{"type":"function","name":"f","parameters":{"a":[1,2.5,1e300,null,true]}}],"#,
    ] {
        assert!(echo.contains(member), "{member}: {echo}");
    }
}

const USAGE: Usage = Usage {
    prompt: Tokens::new(8),
    cached: Tokens::new(4),
    completion: Tokens::new(3),
    reasoning: Tokens::new(1),
};

/// The payloads of events, after checking that each is named as its type.
#[track_caller]
fn payloads(bytes: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(bytes).unwrap();
    text.split_terminator("\n\n")
        .map(|event| {
            let (name, data) = event.split_once('\n').unwrap();
            let data = data.strip_prefix("data: ").unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            let start = format!("{{\"type\":\"{name}\"");
            assert!(data.starts_with(&start), "{event}");
            data.to_owned()
        })
        .collect()
}

/// Numbers from 0 without gaps.
#[track_caller]
fn check_sequence(events: &[String]) {
    for (at, event) in events.iter().enumerate() {
        assert!(event.ends_with(&format!(r#","sequence_number":{at}}}"#)), "{at}: {event}");
    }
}

#[test]
fn a_stream_of_text_is_ten_kinds_of_events_numbered_without_gaps() {
    let head = ResponseHead::new("resp_1", 1_700_000_000, "m", br#","store":true"#);
    let item = Item::new("1", 0, ItemKind::Text, FIRST_SEQUENCE);
    let mut out = Vec::new();
    head.start(&mut out);
    item.open(&mut out);
    item.delta(0, b"Hi", &mut out);
    item.delta(1, br"\n", &mut out);
    let text = |out: &mut Vec<u8>| out.extend_from_slice(br"Hi\n");
    let said = Content { text: &text, ..Content::NONE };
    item.close(2, Status::Completed, said, &mut out);
    let whole = |out: &mut Vec<u8>| item.object(Some(Status::Completed), said, out);
    head.end(Status::Completed, item.after(2), whole, &USAGE, &mut out);
    let events = payloads(&out);
    check_sequence(&events);
    let response = |status: &str, rest: &str| {
        format!(
            r#","response":{{"id":"resp_1","object":"response","created_at":1700000000,"model":"m","background":false,"error":null,"status":"{status}","incomplete_details":null,"store":true,{rest}}}"#
        )
    };
    let begun = response("in_progress", r#""output":[],"usage":null"#);
    let place = r#","item_id":"msg_1_0","output_index":0,"content_index":0"#;
    let part = |text: &str| {
        format!(r#"{{"type":"output_text","annotations":[],"logprobs":[],"text":"{text}"}}"#)
    };
    let message = format!(
        r#"{{"id":"msg_1_0","type":"message","status":"completed","role":"assistant","content":[{}]}}"#,
        part(r"Hi\n")
    );
    let done = response(
        "completed",
        &format!(
            r#""output":[{message}],"usage":{{"input_tokens":8,"input_tokens_details":{{"cached_tokens":4,"cache_write_tokens":0}},"output_tokens":3,"output_tokens_details":{{"reasoning_tokens":1}},"total_tokens":11}}"#
        ),
    );
    let expected = [
        ("response.created", begun.clone()),
        ("response.in_progress", begun),
        (
            "response.output_item.added",
            r#","output_index":0,"item":{"id":"msg_1_0","type":"message","status":"in_progress","role":"assistant","content":[]}"#.to_owned(),
        ),
        ("response.content_part.added", format!(r#"{place},"part":{}"#, part(""))),
        ("response.output_text.delta", format!(r#"{place},"delta":"Hi","logprobs":[]"#)),
        ("response.output_text.delta", format!(r#"{place},"delta":"\n","logprobs":[]"#)),
        ("response.output_text.done", format!(r#"{place},"text":"Hi\n","logprobs":[]"#)),
        ("response.content_part.done", format!(r#"{place},"part":{}"#, part(r"Hi\n"))),
        ("response.output_item.done", format!(r#","output_index":0,"item":{message}"#)),
        ("response.completed", done),
    ];
    assert_eq!(events.len(), expected.len());
    for (at, (event, (kind, rest))) in events.iter().zip(expected).enumerate() {
        assert_eq!(*event, format!(r#"{{"type":"{kind}"{rest},"sequence_number":{at}}}"#));
    }
}

/// A stream of one item with two deltas, `a` and `b`; its events' names without `response.`.
#[track_caller]
fn names_of(kind: ItemKind<'_>) -> Vec<String> {
    let head = ResponseHead::new("resp_1", 1, "m", b"");
    let item = Item::new("1", 0, kind, FIRST_SEQUENCE);
    let mut out = Vec::new();
    head.start(&mut out);
    item.open(&mut out);
    item.delta(0, b"a", &mut out);
    item.delta(1, b"b", &mut out);
    let text = |out: &mut Vec<u8>| out.extend_from_slice(b"ab");
    item.close(2, Status::Completed, Content { text: &text, ..Content::NONE }, &mut out);
    head.end(Status::Incomplete(Cut::MaxOutputTokens), item.after(2), |_| {}, &USAGE, &mut out);
    let events = payloads(&out);
    check_sequence(&events);
    let name = |event: &String| event.split('"').nth(3).unwrap().replace("response.", "");
    events.iter().map(name).collect()
}

#[test]
fn every_kind_of_item_has_its_own_events() {
    let common = ["created", "in_progress", "output_item.added"];
    let check = |kind: ItemKind<'_>, between: &[&str]| {
        let expected = [&common[..], between, &["output_item.done", "incomplete"]].concat();
        assert_eq!(names_of(kind), expected, "{kind:?}");
    };
    check(
        ItemKind::Call { id: "call_1", name: "f" },
        &[
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
        ],
    );
    check(
        ItemKind::Refusal,
        &[
            "content_part.added",
            "refusal.delta",
            "refusal.delta",
            "refusal.done",
            "content_part.done",
        ],
    );
    check(
        ItemKind::Reasoning(Thought::Summary),
        &[
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ],
    );
    check(
        ItemKind::Reasoning(Thought::Text),
        &[
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
        ],
    );
}

#[test]
fn items_are_whole_objects_at_their_end() {
    let object = |kind: ItemKind<'_>, status: Status| {
        let mut out = Vec::new();
        let item = Item::new("1", 3, kind, 0);
        let text = |out: &mut Vec<u8>| out.extend_from_slice(br#"{\"x\":1}"#);
        item.object(Some(status), Content { text: &text, ..Content::NONE }, &mut out);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        object(ItemKind::Call { id: "call_1", name: "f" }, Status::Completed),
        r#"{"id":"fc_1_3","type":"function_call","call_id":"call_1","name":"f","arguments":"{\"x\":1}","status":"completed"}"#
    );
    assert_eq!(
        object(ItemKind::Reasoning(Thought::Summary), Status::Incomplete(Cut::MaxOutputTokens)),
        r#"{"id":"rs_1_3","type":"reasoning","summary":[{"type":"summary_text","text":"{\"x\":1}"}],"content":[],"encrypted_content":null,"status":"incomplete"}"#
    );
    assert_eq!(
        object(ItemKind::Refusal, Status::Completed),
        r#"{"id":"msg_1_3","type":"message","status":"completed","role":"assistant","content":[{"type":"refusal","refusal":"{\"x\":1}"}]}"#
    );
}

#[test]
fn an_error_in_the_stream_is_an_event_with_the_next_number() {
    let mut out = Vec::new();
    write_error(&ApiError::internal(), 7, &mut out);
    let [event] = &payloads(&out)[..] else { panic!("one event") };
    assert!(
        event.starts_with(r#"{"type":"error","code":"server_error","message":"The server had"#)
    );
    assert!(event.ends_with(r#","param":null,"sequence_number":7}"#), "{event}");
}

#[test]
fn the_scores_of_a_text_stand_beside_its_pieces_and_the_whole() {
    let item = Item::new("1", 0, ItemKind::Text, FIRST_SEQUENCE);
    let mut out = Vec::new();
    let score = |out: &mut Vec<u8>| {
        write_short_entry("Hi", -0.25, [("Hi", -0.25), (" a", -3.0)].into_iter(), out);
    };
    item.delta_with(0, b"Hi", score, &mut out);
    let delta = payloads(&out).remove(0);
    // As in the deltas of OpenAI's document: without bytes.
    let scored = concat!(
        r#""delta":"Hi","logprobs":[{"token":"Hi","logprob":-0.250000,"top_logprobs":["#,
        r#"{"token":"Hi","logprob":-0.250000},{"token":" a","logprob":-3.000000}]}]"#
    );
    assert!(delta.contains(scored), "{delta}");
    let mut out = Vec::new();
    let content = Content {
        text: &|out| out.extend_from_slice(b"Hi"),
        logprobs: &|out| write_entry("Hi", b"Hi", -0.25, std::iter::empty(), out),
    };
    item.object(Some(Status::Completed), content, &mut out);
    let whole = String::from_utf8(out).unwrap();
    let scored = concat!(
        r#""logprobs":[{"token":"Hi","logprob":-0.250000,"bytes":[72,105],"top_logprobs":[]}],"#,
        r#""text":"Hi"}"#
    );
    assert!(whole.contains(scored), "{whole}");
}

#[test]
fn a_filtered_response_is_incomplete_and_says_why() {
    let head = ResponseHead::new("resp_1", 1, "m", b"");
    let mut out = Vec::new();
    head.end(Status::Incomplete(Cut::ContentFilter), 7, |_| {}, &USAGE, &mut out);
    let event = payloads(&out).remove(0);
    assert!(event.starts_with(r#"{"type":"response.incomplete""#), "{event}");
    let why = r#""status":"incomplete","incomplete_details":{"reason":"content_filter"}"#;
    assert!(event.contains(why), "{event}");
}
