//! Answers of more than words on the surfaces beside chat: calls of tools, required formats,
//! reasoning, refusals.

use llmsim_engine::config::{self, Source};
use llmsim_engine::text::schema::Document;
use llmsimulator::boot::Server;

use crate::client::{Client, Response};
use crate::fixture;

const MODELS: &str = "
version: 1
models:
  - { name: m, context_length: 10000, engine: instant }
";

const RESPONSES: &str = r#"
version: 1
responses:
  - id: known
    match: { contains: weather, tool_result: degrees }
    content: "It is warm."
  - id: weather
    match: { contains: weather }
    content: "Let me look."
    tool_calls:
      - { name: get_weather, arguments: { city: Oslo } }
      - { name: get_time }
  - id: think
    match: { exact: [think] }
    reasoning: "Hm, let me see."
    content: "Yes."
  - id: no
    match: { exact: ["no"] }
    refusal: "I cannot help with that."
  - id: withheld
    match: { exact: [withheld] }
    content: "One two"
    finish_reason: content_filter
  - id: pirate
    match: { system: pirate }
    content: "Arr."
default:
  content: "One two three."
"#;

const CITY: &str = r#"{"type":"object","properties":{"city":{"type":"string","minLength":1}},"required":["city"],"additionalProperties":false}"#;
const ZONE: &str = r#"{"type":"object","properties":{"zone":{"enum":["UTC","CET"]}},"required":["zone"],"additionalProperties":false}"#;

fn start() -> Server {
    fixture::start_with(|settings| {
        let models = Source::new("models", MODELS);
        let responses = Source::new("responses", RESPONSES);
        settings.config =
            config::load(&models, &responses).unwrap_or_else(|problems| panic!("{problems}"));
    })
}

fn message(client: &mut Client, members: &str) -> Response {
    let tools = format!(
        r#""tools":[{{"name":"get_weather","input_schema":{CITY}}},{{"name":"get_time","input_schema":{ZONE}}}]"#
    );
    let body = format!(r#"{{"model":"m","max_tokens":500,{members}}}"#).replace("TOOLS", &tools);
    client.post("/v1/messages", &body);
    client.response()
}

fn response(client: &mut Client, members: &str) -> Response {
    let tools = format!(
        r#""tools":[{{"type":"function","name":"get_weather","parameters":{CITY}}},{{"type":"function","name":"get_time","parameters":{ZONE}}},{{"type":"web_search"}}]"#
    );
    client.post("/v1/responses", &format!(r#"{{"model":"m",{members}}}"#).replace("TOOLS", &tools));
    client.response()
}

#[track_caller]
fn has(response: &Response, part: &str) {
    assert!(response.text().contains(part), "no {part} in {}", response.text());
}

/// What stands between two texts.
#[track_caller]
fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from} in {text}"));
    rest.split_once(to).unwrap_or_else(|| panic!("no {to} after {from} in {text}")).0
}

#[test]
fn messages_call_the_scripted_tools_and_take_their_results() {
    let server = start();
    let mut client = Client::new(&server);
    let user = r#""messages":[{"role":"user","content":"weather?"}]"#;
    let called = message(&mut client, &format!("TOOLS,{user}"));
    has(&called, r#"[{"type":"text","text":"Let me look."},{"type":"tool_use","id":"toolu_"#);
    has(&called, r#""name":"get_weather","input":{"city": "Oslo"}}"#);
    has(&called, r#""stop_reason":"tool_use""#);
    let zone = between(called.text(), r#""name":"get_time","input":"#, "}]");
    assert!(Document::parse(ZONE).unwrap().accepts(zone), "{zone}");
    // No more than one, or none.
    let auto = r#""tool_choice":{"type":"auto","disable_parallel_tool_use":true}"#;
    let one = message(&mut client, &format!("TOOLS,{user},{auto}"));
    assert_eq!(one.text().matches(r#""type":"tool_use""#).count(), 1, "{}", one.text());
    let none = message(&mut client, &format!(r#"TOOLS,{user},"tool_choice":{{"type":"none"}}"#));
    has(&none, r#""content":[{"type":"text","text":"Let me look."}],"stop_reason":"end_turn""#);

    let known = message(
        &mut client,
        r#"TOOLS,"messages":[{"role":"user","content":"weather?"},
          {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"get_weather","input":{}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"20 degrees"}]}]"#,
    );
    has(&known, r#""text":"It is warm.""#);
    // Tools are prompt tokens.
    assert!(count(&called) > count(&message(&mut client, user)) + 20, "{}", called.text());
}

fn count(message: &Response) -> u32 {
    between(message.text(), r#""input_tokens":"#, ",").parse().unwrap()
}

#[test]
fn a_required_tool_is_called_whatever_the_rules_say() {
    let server = start();
    let mut client = Client::new(&server);
    let user = r#""messages":[{"role":"user","content":"x"}]"#;
    for (choice, name) in
        [(r#"{"type":"any"}"#, ""), (r#"{"type":"tool","name":"get_weather"}"#, "get_weather")]
    {
        let called = message(&mut client, &format!(r#"TOOLS,{user},"tool_choice":{choice}"#));
        has(&called, r#"[{"type":"tool_use","id":"toolu_"#);
        has(&called, r#""stop_reason":"tool_use""#);
        assert!(called.text().contains(&format!(r#""name":"{name}"#)), "{}", called.text());
    }
    for (choice, name) in
        [(r#""required""#, ""), (r#"{"type":"function","name":"get_weather"}"#, "get_weather")]
    {
        let fields = format!(r#"TOOLS,"input":"x","tool_choice":{choice}"#);
        let called = response(&mut client, &fields);
        has(&called, r#""output":[{"id":"fc_"#);
        assert!(called.text().contains(&format!(r#""name":"{name}"#)), "{}", called.text());
    }
}

#[test]
fn a_message_with_tools_streams_what_it_says_whole() {
    let server = start();
    let mut client = Client::new(&server);
    let streamed = message(
        &mut client,
        r#"TOOLS,"stream":true,"messages":[{"role":"user","content":"weather?"}]"#,
    );
    let deltas: String = streamed
        .text()
        .split_terminator("\n\n")
        .filter(|event| event.contains(r#""index":1,"delta""#))
        .map(|event| between(event, r#""partial_json":""#, r#""}}"#))
        .collect();
    assert_eq!(deltas, r#"{\"city\": \"Oslo\"}"#);
    has(&streamed, r#""delta":{"stop_reason":"tool_use","stop_sequence":null}"#);
}

#[test]
fn responses_call_tools_and_continue_with_their_results() {
    let server = start();
    let mut client = Client::new(&server);
    let called = response(&mut client, r#"TOOLS,"input":"weather?""#);
    has(&called, r#""name":"get_weather","arguments":"{\"city\": \"Oslo\"}","status":"completed""#);
    has(&called, r#""text":"Let me look."}]"#);
    assert_eq!(called.text().matches(r#""type":"function_call""#).count(), 2);
    let id = between(called.text(), r#"{"id":""#, "\"");
    let call = between(called.text(), r#""call_id":""#, "\"");
    let known = response(
        &mut client,
        &format!(
            r#"TOOLS,"previous_response_id":"{id}","input":[
               {{"type":"function_call_output","call_id":"{call}","output":"20 degrees"}}]"#
        ),
    );
    has(&known, r#""text":"It is warm."}]"#);
}

#[test]
fn a_schema_is_kept_by_the_text_of_messages_and_responses() {
    let server = start();
    let mut client = Client::new(&server);
    let schema = r#"{"type":"object","properties":{"age":{"type":"integer","minimum":3,"maximum":5}},"required":["age"],"additionalProperties":false}"#;
    let document = Document::parse(schema).unwrap();
    let unquoted = |text: &str| text.replace("\\\"", "\"");
    let answer = response(
        &mut client,
        &format!(
            r#""input":"x","text":{{"format":{{"type":"json_schema","name":"n","schema":{schema}}}}}"#
        ),
    );
    let text = unquoted(between(answer.text(), r#""logprobs":[],"text":""#, r#""}]"#));
    assert!(document.accepts(&text), "{text}");
    let answer = message(
        &mut client,
        &format!(
            r#""messages":[{{"role":"user","content":"x"}}],
               "output_config":{{"format":{{"type":"json_schema","schema":{schema}}}}}"#
        ),
    );
    let text = unquoted(between(answer.text(), r#"{"type":"text","text":""#, r#""}]"#));
    assert!(document.accepts(&text), "{text}");
    let object = response(&mut client, r#""input":"x","text":{"format":{"type":"json_object"}}"#);
    has(&object, r#""text":"{"#);
    let wrong = response(
        &mut client,
        r##""input":"x","text":{"format":{"type":"json_schema","name":"n","schema":{"$ref":"#/x"}}}"##,
    );
    assert_eq!(wrong.status, 400);
    has(&wrong, r#""param":"text.format.schema"#);
}

#[test]
fn what_is_thought_and_refused_has_its_own_form_everywhere() {
    let server = start();
    let mut client = Client::new(&server);
    let user = |text: &str| format!(r#""messages":[{{"role":"user","content":"{text}"}}]"#);
    let thought = message(&mut client, &user("think"));
    has(&thought, r#"[{"type":"thinking","thinking":"Hm, let me see.","signature":"#);
    has(&thought, r#"{"type":"text","text":"Yes."}]"#);
    let refused = message(&mut client, &user("no"));
    has(&refused, r#""text":"I cannot help with that."}],"stop_reason":"refusal""#);
    let thought = response(&mut client, r#""input":"think""#);
    has(&thought, r#""content":[{"type":"reasoning_text","text":"Hm, let me see."}]"#);
    // "Hm", ",", " let", " me", " see", ".".
    has(&thought, r#""output_tokens_details":{"reasoning_tokens":6}"#);
    let summary = response(&mut client, r#""input":"think","reasoning":{"summary":"auto"}"#);
    has(&summary, r#""summary":[{"type":"summary_text","text":"Hm, let me see."}]"#);
    let refused = response(&mut client, r#""input":"no""#);
    has(&refused, r#""content":[{"type":"refusal","refusal":"I cannot help with that."}]"#);
    // Rules see the system's words on all of them.
    let pirate = message(&mut client, &format!(r#""system":"You are a pirate.",{}"#, user("x")));
    has(&pirate, r#""text":"Arr.""#);
    let pirate = response(&mut client, r#""input":"x","instructions":"Be a pirate.""#);
    has(&pirate, r#""text":"Arr."}]"#);
}

/// OpenAI's `incomplete_details.reason` has two values, and its last event is `response.incomplete`.
#[test]
fn what_is_withheld_is_an_incomplete_response() {
    let server = start();
    let mut client = Client::new(&server);
    let whole = response(&mut client, r#""input":"withheld""#);
    let status = r#""status":"incomplete","incomplete_details":{"reason":"content_filter"}"#;
    has(&whole, status);
    has(&whole, r#""type":"message","status":"incomplete","role":"assistant""#);
    let streamed = response(&mut client, r#""input":"withheld","stream":true"#);
    let last = streamed.text().split_terminator("\n\n").last().unwrap().to_owned();
    assert!(last.starts_with("event: response.incomplete\n"), "{last}");
    assert!(last.contains(status), "{last}");
    let user = r#""messages":[{"role":"user","content":"withheld"}]"#;
    has(&message(&mut client, user), r#""stop_reason":"refusal""#);
    let chat = client.chat(&format!(r#"{{"model":"m",{user}}}"#));
    has(&chat, r#""finish_reason":"content_filter""#);
}

/// vLLM's `include_reasoning: false` leaves the reasoning items out (responses/serving.py).
#[test]
fn a_response_without_its_reasoning_has_no_item_of_it_and_no_gap() {
    let server = start();
    let mut client = Client::new(&server);
    let whole = response(&mut client, r#""input":"think","include_reasoning":false"#);
    has(&whole, r#""output":[{"id":"msg_"#);
    has(&whole, r#""text":"Yes."}]}],"usage""#);
    assert!(!whole.text().contains("Hm"), "{}", whole.text());
    // It is counted all the same.
    has(&whole, r#""output_tokens":8,"output_tokens_details":{"reasoning_tokens":6}"#);
    for (limit, items) in [(100, 1), (3, 0)] {
        let streamed = response(
            &mut client,
            &format!(
                r#""input":"think","include_reasoning":false,"stream":true,"max_output_tokens":{limit}"#
            ),
        );
        let events: Vec<&str> = streamed.text().split_terminator("\n\n").collect();
        for (at, event) in events.iter().enumerate() {
            assert!(event.ends_with(&format!(r#","sequence_number":{at}}}"#)), "{event}");
            assert!(!event.contains("reasoning_text"), "{event}");
        }
        let added = events.iter().filter(|event| event.contains("output_item.added")).count();
        assert_eq!(added, items, "{events:#?}");
        assert_eq!(events.len(), 3 + items * (2 + 2 + 3));
        if items == 1 {
            assert!(events[2].contains(r#""output_index":0,"#), "{}", events[2]);
        }
    }
}
