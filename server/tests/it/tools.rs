//! Calls of tools, required formats, log probabilities, reasoning: what a chat can be beside text.

use llmsim_engine::config::{self, Source};
use llmsim_engine::text::schema::Document;
use llmsim_engine::text::schema::json::Value;
use llmsimulator::boot::Server;

use crate::client::Client;
use crate::fixture;

const MODELS: &str = "
version: 1
models:
  - { name: m, context_length: 10000, engine: instant }
  - { name: other, context_length: 10000, engine: instant }
  - { name: thinker, context_length: 10000, engine: instant, reasoning: { tokens: [20, 30] } }
  - { name: doer, context_length: 10000, engine: instant, reasoning: never }
";

const RESPONSES: &str = r#"
version: 1
seed: 7
responses:
  - id: answered
    match: { contains: weather, tool_result: degrees }
    content: "It is warm."
  - id: weather
    match: { regex: "weather in (?P<city>.+)" }
    tool_calls:
      - { name: get_weather, arguments: { city: "{city}", days: 2, detailed: true } }
      - { name: get_time, arguments: "{{\"zone\": \"UTC\"}}" }
  - id: talk
    match: { exact: [talk] }
    content: "Let me look."
    tool_calls: [{ name: get_time }]
  - id: think
    match: { exact: [think] }
    reasoning: "Hm, let me see."
    content: "Yes."
  - id: no
    match: { exact: ["no"] }
    refusal: "I cannot help with that."
  - id: filtered
    match: { exact: [filtered] }
    content: "Some words"
    finish_reason: content_filter
  - id: json
    match: { exact: [json] }
    content: "{{\"age\": 7, \"name\": \"Ada\"}}"
  - id: other-model
    match: { model: OTHER, exact: [who] }
    content: "other"
  - id: pirate
    match: { system: pirate }
    content: "Arr."
  - id: third
    match: { turn: [3, 4] }
    content: "Still here."
default:
  content: "One two three."
"#;

const TOOLS: &str = r#""tools":[
 {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city","days"],"additionalProperties":false}}},
 {"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{"zone":{"enum":["UTC","CET"]}},"required":["zone"],"additionalProperties":false}}}]"#;

fn start() -> Server {
    fixture::start_with(|settings| {
        let models = Source::new("models", MODELS);
        let responses = Source::new("responses", RESPONSES);
        settings.config =
            config::load(&models, &responses).unwrap_or_else(|problems| panic!("{problems}"));
    })
}

/// A conversation of one message, with more fields.
fn ask(text: &str, fields: &str) -> String {
    chat(&format!(r#"{{"role":"user","content":"{text}"}}"#), fields)
}

fn chat(messages: &str, fields: &str) -> String {
    let comma = if fields.is_empty() { "" } else { "," };
    format!(r#"{{"model":"m","messages":[{messages}]{comma}{fields}}}"#)
}

struct Chats {
    _server: Server,
    client: Client,
}

impl Chats {
    fn new() -> Self {
        let server = start();
        let client = Client::new(&server);
        Self { _server: server, client }
    }

    fn whole(&mut self, body: &str) -> Value {
        let response = self.client.chat(body);
        assert_eq!(response.status, 200, "{body}\n{}", response.text());
        Value::parse(response.text()).unwrap()
    }

    /// The chunks of a stream that say something of a choice.
    fn chunks(&mut self, body: &str) -> Vec<Value> {
        let response = self.client.chat(&body.replacen('{', r#"{"stream":true,"#, 1));
        assert_eq!(response.status, 200, "{body}\n{}", response.text());
        let mut events = response.events();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| Value::parse(event).unwrap()).collect()
    }

    fn refused(&mut self, body: &str, param: &str, words: &str) {
        for body in [body.to_owned(), body.replacen('{', r#"{"stream":true,"#, 1)] {
            let response = self.client.chat(&body);
            assert_eq!(response.status, 400, "{body}");
            let error = Value::parse(response.text()).unwrap();
            assert_eq!(text(&error, "error.param"), param, "{}", response.text());
            assert!(text(&error, "error.message").contains(words), "{}", response.text());
        }
    }
}

/// What stands at a path: names and numbers with points between.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().unwrap()),
        value => value.get(step),
    })
}

#[track_caller]
fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_else(|| panic!("{path} of {value:?}"))
}

#[track_caller]
fn number(value: &Value, path: &str) -> f64 {
    at(value, path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} of {value:?}"))
}

fn is_null(value: &Value, path: &str) -> bool {
    matches!(at(value, path), Some(Value::Null))
}

const FINISH: &str = "choices.0.finish_reason";
const CONTENT: &str = "choices.0.message.content";

#[test]
fn scripted_calls_are_made_only_of_what_is_offered() {
    let mut chats = Chats::new();
    let answer = chats.whole(&ask("weather in New \\\"York\\\"", TOOLS));
    assert!(is_null(&answer, CONTENT));
    assert_eq!(text(&answer, FINISH), "tool_calls");
    let call = |index: usize, member: &str| {
        text(&answer, &format!("choices.0.message.tool_calls.{index}.{member}"))
    };
    assert_eq!((call(0, "type"), call(0, "function.name")), ("function", "get_weather"));
    assert_eq!(
        call(0, "function.arguments"),
        r#"{"city": "New \"York\"", "days": 2, "detailed": true}"#
    );
    assert_eq!(call(1, "function.arguments"), r#"{"zone": "UTC"}"#);
    assert!(call(0, "id").starts_with("call_") && call(0, "id").len() == 29);
    assert_ne!(call(0, "id"), call(1, "id"));
    // The same request, the same ids.
    assert!(
        at(&chats.whole(&ask("weather in New \\\"York\\\"", TOOLS)), "choices")
            .unwrap()
            .equals(at(&answer, "choices").unwrap())
    );
    for fields in ["", r#""tool_choice":"none","#] {
        let fields = if fields.is_empty() { String::new() } else { format!("{fields}{TOOLS}") };
        let answer = chats.whole(&ask("weather in Rome", &fields));
        assert!(at(&answer, "choices.0.message.tool_calls").is_none(), "{answer:?}");
        assert_eq!(text(&answer, FINISH), "stop");
    }
    let one =
        chats.whole(&ask("weather in Rome", &format!(r#""parallel_tool_calls":false,{TOOLS}"#)));
    assert!(at(&one, "choices.0.message.tool_calls.1").is_none());
    // Without a script the model does not call.
    let answer = chats.whole(&ask("anything", TOOLS));
    assert_eq!((text(&answer, CONTENT), text(&answer, FINISH)), ("One two three.", "stop"));
}

#[test]
fn streamed_calls_begin_with_the_name_and_go_on_piece_by_piece() {
    let mut chats = Chats::new();
    let body = ask("weather in Rome", TOOLS);
    let whole = chats.whole(&body);
    let chunks = chats.chunks(&body);
    let delta = |chunk: &Value| {
        let mut out = String::new();
        at(chunk, "choices.0.delta").unwrap().write(&mut out);
        out
    };
    let all: Vec<String> = chunks.iter().map(delta).collect();
    assert_eq!(all[0], r#"{"role": "assistant", "content": null, "refusal": null}"#);
    let id = text(&whole, "choices.0.message.tool_calls.0.id");
    assert_eq!(
        all[1],
        format!(
            r#"{{"tool_calls": [{{"index": 0, "id": "{id}", "type": "function", "function": {{"name": "get_weather", "arguments": ""}}}}]}}"#
        )
    );
    let mut arguments = [String::new(), String::new()];
    let mut pieces = 0;
    for chunk in &chunks[2..chunks.len() - 1] {
        let call = |member: &str| format!("choices.0.delta.tool_calls.0.{member}");
        let index = number(chunk, &call("index")) as usize;
        arguments[index] += text(chunk, &call("function.arguments"));
        pieces += 1;
        assert!(at(chunk, &call("id")).is_none() || at(chunk, &call("function.name")).is_some());
    }
    for (index, arguments) in arguments.iter().enumerate() {
        let path = format!("choices.0.message.tool_calls.{index}.function.arguments");
        assert_eq!(arguments, text(&whole, &path));
    }
    assert!(pieces > 10, "{pieces} pieces");
    let last = chunks.last().unwrap();
    assert_eq!((delta(last).as_str(), text(last, FINISH)), ("{}", "tool_calls"));
    // Every token is a chunk: name and arguments are what was completed.
    assert_eq!(number(&whole, "usage.completion_tokens") as usize, 1 + pieces);
}

#[test]
fn required_calls_have_arguments_that_satisfy_the_schema() {
    let mut chats = Chats::new();
    let tools = Value::parse(&format!("{{{TOOLS}}}")).unwrap();
    let schema = |name: &str| {
        let index = if name == "get_weather" { 0 } else { 1 };
        let mut schema = String::new();
        at(&tools, &format!("tools.{index}.function.parameters")).unwrap().write(&mut schema);
        Document::parse(&schema).unwrap()
    };
    for (choice, finish) in [
        (r#""required""#, "tool_calls"),
        (r#"{"type":"function","function":{"name":"get_time"}}"#, "stop"),
    ] {
        for seed in 0..10 {
            let fields = format!(r#""seed":{seed},"tool_choice":{choice},{TOOLS}"#);
            let answer = chats.whole(&ask("anything", &fields));
            assert!(is_null(&answer, CONTENT));
            assert_eq!(text(&answer, FINISH), finish);
            let call = "choices.0.message.tool_calls.0.function";
            let name = text(&answer, &format!("{call}.name"));
            assert!(finish == "tool_calls" || name == "get_time");
            let arguments = text(&answer, &format!("{call}.arguments"));
            assert!(schema(name).accepts(arguments), "{arguments}");
        }
    }
    let cut =
        chats.whole(&ask("x", &format!(r#""max_tokens":2,"tool_choice":"required",{TOOLS}"#)));
    assert_eq!(text(&cut, FINISH), "length");
    // What is asked to go on says nothing more: JSON stays JSON.
    let fields = format!(r#""min_tokens":200,"tool_choice":"required",{TOOLS}"#);
    let on = chats.whole(&ask("x", &fields));
    let arguments = text(&on, "choices.0.message.tool_calls.0.function.arguments");
    assert!(Value::parse(arguments).is_ok(), "{arguments}");
    assert_eq!(number(&on, "usage.completion_tokens"), 200.0);
    let bad = r#""tool_choice":"required","tools":[{"type":"function","function":{"name":"f",
        "parameters":{"type":"object","properties":{"a":{"type":"nothing"}}}}}]"#;
    chats.refused(
        &ask("x", bad),
        "tools[0].function.parameters.properties.a.type",
        "list of string",
    );
}

#[test]
fn a_call_is_not_made_again_when_its_result_is_there() {
    let mut chats = Chats::new();
    let history = |result: &str| {
        format!(
            r#"{{"role":"user","content":"weather in Rome"}},
               {{"role":"assistant","content":null,"tool_calls":[{{"id":"call_1","type":"function",
                 "function":{{"name":"get_weather","arguments":"{{}}"}}}}]}},
               {{"role":"tool","tool_call_id":"call_1","content":"{result}"}}"#
        )
    };
    let answer = chats.whole(&chat(&history("20 degrees"), TOOLS));
    assert_eq!((text(&answer, CONTENT), text(&answer, FINISH)), ("It is warm.", "stop"));
    let answer = chats.whole(&chat(&history("unknown"), TOOLS));
    assert_eq!((text(&answer, CONTENT), text(&answer, FINISH)), ("One two three.", "stop"));
}

#[test]
fn text_may_stand_beside_a_call_and_tools_count_in_the_prompt() {
    let mut chats = Chats::new();
    let answer = chats.whole(&ask("talk", TOOLS));
    assert_eq!((text(&answer, CONTENT), text(&answer, FINISH)), ("Let me look.", "tool_calls"));
    let name = "choices.0.message.tool_calls.0.function.name";
    assert_eq!(text(&answer, name), "get_time");
    let with = number(&answer, "usage.prompt_tokens");
    let without = number(&chats.whole(&ask("talk", "")), "usage.prompt_tokens");
    assert!(with > without + 50.0, "{with} {without}");
}

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":120}},"required":["name","age"],"additionalProperties":false}"#;

#[test]
fn a_required_format_is_kept_streamed_and_whole() {
    let mut chats = Chats::new();
    let person = Document::parse(PERSON).unwrap();
    let schema = format!(
        r#""response_format":{{"type":"json_schema","json_schema":{{"name":"person","strict":true,"schema":{PERSON}}}}}"#
    );
    for fields in [schema.clone(), format!(r#""structured_outputs":{{"json":{PERSON}}}"#)] {
        let whole = chats.whole(&ask("anything", &fields));
        let content = text(&whole, CONTENT).to_owned();
        assert!(person.accepts(&content), "{content}");
        let streamed: String = chats
            .chunks(&ask("anything", &fields))
            .iter()
            .filter_map(|chunk| at(chunk, "choices.0.delta.content")?.as_str().map(str::to_owned))
            .collect();
        assert_eq!(streamed, content);
    }
    // A script that satisfies the schema is said as it stands.
    assert_eq!(text(&chats.whole(&ask("json", &schema)), CONTENT), r#"{"age": 7, "name": "Ada"}"#);
    let object = r#""response_format":{"type":"json_object"}"#;
    assert_eq!(text(&chats.whole(&ask("x", object)), CONTENT), r#"{"answer": "One two three."}"#);
    assert_eq!(text(&chats.whole(&ask("json", object)), CONTENT), r#"{"age": 7, "name": "Ada"}"#);
    let choice = r#""structured_outputs":{"choice":["red","blue"]}"#;
    assert!(["red", "blue"].contains(&text(&chats.whole(&ask("x", choice)), CONTENT)));
    let pattern = r#""structured_outputs":{"regex":"[0-9]{3}-[a-z]+"}"#;
    let matching = Document::parse(r#"{"pattern":"^[0-9]{3}-[a-z]+$"}"#).unwrap();
    let answer = chats.whole(&ask("x", pattern));
    assert!(matching.accepts(&format!("{:?}", text(&answer, CONTENT))));
    let impossible =
        schema.replace(r#""age":{"type":"integer""#, r#""age":{"const":"x","type":"integer""#);
    let param = "response_format.json_schema.schema.age";
    chats.refused(&ask("x", &impossible), param, "none of the listed values");
    // Cut by the limit, it is what it is.
    let cut = chats.whole(&ask("x", &format!(r#""max_tokens":3,{schema}"#)));
    assert_eq!(text(&cut, FINISH), "length");
}

#[test]
fn each_token_has_its_probability_in_its_own_chunk() {
    let mut chats = Chats::new();
    let fields = r#""logprobs":true,"top_logprobs":3"#;
    let whole = chats.whole(&ask("x", fields));
    let content = at(&whole, "choices.0.logprobs.content").unwrap().as_array().unwrap();
    let tokens: Vec<&str> = content.iter().map(|entry| text(entry, "token")).collect();
    assert_eq!(tokens, ["One", " two", " three", "."]);
    for entry in content {
        assert!(number(entry, "logprob") < 0.0);
        let bytes: Vec<u8> = at(entry, "bytes")
            .and_then(Value::as_array)
            .unwrap()
            .iter()
            .map(|byte| byte.as_f64().unwrap() as u8)
            .collect();
        assert_eq!(bytes, text(entry, "token").as_bytes());
        let top = at(entry, "top_logprobs").and_then(Value::as_array).unwrap();
        assert_eq!((top.len(), text(&top[0], "token")), (3, text(entry, "token")));
        assert!(
            top.windows(2).all(|pair| number(&pair[0], "logprob") > number(&pair[1], "logprob"))
        );
    }
    assert!(is_null(&whole, "choices.0.logprobs.refusal"));
    let chunks = chats.chunks(&ask("x", fields));
    for (chunk, entry) in chunks[1..5].iter().zip(content) {
        assert!(at(chunk, "choices.0.logprobs.content.0").unwrap().equals(entry));
        assert!(at(chunk, "choices.0.logprobs.content.1").is_none());
    }
    assert!(is_null(&chunks[0], "choices.0.logprobs") && is_null(&chunks[5], "choices.0.logprobs"));
    let none = chats.whole(&ask("x", r#""logprobs":true"#));
    let top = at(&none, "choices.0.logprobs.content.0.top_logprobs").unwrap();
    assert_eq!(top.as_array().unwrap().len(), 0);
}

#[test]
fn what_is_thought_comes_first_under_both_names_and_counts() {
    let mut chats = Chats::new();
    let whole = chats.whole(&ask("think", ""));
    assert_eq!(text(&whole, CONTENT), "Yes.");
    for name in ["reasoning_content", "reasoning"] {
        assert_eq!(text(&whole, &format!("choices.0.message.{name}")), "Hm, let me see.");
    }
    // Hm , let me see . Yes .
    assert_eq!(number(&whole, "usage.completion_tokens"), 8.0);
    assert_eq!(number(&whole, "usage.completion_tokens_details.reasoning_tokens"), 6.0);
    let chunks = chats.chunks(&ask("think", ""));
    let said = |name: &str| -> String {
        let path = format!("choices.0.delta.{name}");
        chunks.iter().filter_map(|chunk| at(chunk, &path)?.as_str().map(str::to_owned)).collect()
    };
    assert_eq!(
        (said("reasoning_content").as_str(), said("content").as_str()),
        ("Hm, let me see.", "Yes.")
    );
    assert_eq!(said("reasoning"), "Hm, let me see.");
    // Thought all the same, and not told.
    let hidden = r#""include_reasoning":false"#;
    let whole = chats.whole(&ask("think", hidden));
    assert!(at(&whole, "choices.0.message.reasoning").is_none());
    assert_eq!(number(&whole, "usage.completion_tokens"), 8.0);
    assert_eq!(chats.chunks(&ask("think", hidden)).len(), 1 + 2 + 1);
    // The limit counts thoughts.
    let cut = chats.whole(&ask("think", r#""max_tokens":3"#));
    assert!(is_null(&cut, CONTENT));
    assert_eq!(
        (text(&cut, "choices.0.message.reasoning"), text(&cut, FINISH)),
        ("Hm, let", "length")
    );
}

#[test]
fn a_model_thinks_before_every_answer_unless_its_client_forbids_it() {
    let mut chats = Chats::new();
    let mut ask = |model: &str, text: &str, fields: &str| {
        let body = ask(text, fields).replace(r#""model":"m""#, &format!(r#""model":"{model}""#));
        let whole = chats.whole(&body);
        let thought = at(&whole, "choices.0.message.reasoning_content").and_then(Value::as_str);
        let tokens = number(&whole, "usage.completion_tokens_details.reasoning_tokens");
        assert_eq!(thought.is_some(), tokens > 0.0);
        (thought.map(str::to_owned), tokens)
    };
    let (thought, tokens) = ask("thinker", "Hello", "");
    assert!((20.0..=30.0).contains(&tokens), "{tokens}");
    assert_eq!(ask("thinker", "Hello", ""), (thought.clone(), tokens), "the same for the same");
    // Another request, another length; an entry that thinks says what it says.
    let lengths = (0..9).map(|seed| ask("thinker", "Hello", &format!(r#""seed":{seed}"#)).1 as u32);
    assert!(lengths.collect::<std::collections::BTreeSet<_>>().len() > 1);
    assert_eq!(ask("thinker", "think", "").0.as_deref(), Some("Hm, let me see."));
    assert_eq!(ask("doer", "think", ""), (None, 0.0));
    assert_eq!(ask("thinker", "Hello", r#""thinking_token_budget":7"#).1, 7.0);
    for fields in [
        r#""reasoning_effort":"none""#,
        r#""chat_template_kwargs":{"enable_thinking":false}"#,
        r#""chat_template_kwargs":{"thinking":false}"#,
        r#""thinking_token_budget":0"#,
    ] {
        assert_eq!(ask("thinker", "Hello", fields), (None, 0.0), "{fields}");
    }
    assert_eq!(ask("thinker", "Hello", r#""reasoning_effort":"low""#), (thought, tokens));

    // The same on the other surfaces.
    let mut blocks = |path: &str, body: &str| {
        chats.client.post(path, body);
        chats.client.response().text().to_owned()
    };
    let message =
        r#"{"model":"thinker","max_tokens":5000,"messages":[{"role":"user","content":"Hello"}]"#;
    assert!(blocks("/v1/messages", &format!("{message}}}")).contains(r#""type":"thinking""#));
    let off = format!(r#"{message},"thinking":{{"type":"disabled"}}}}"#);
    assert!(!blocks("/v1/messages", &off).contains(r#""type":"thinking""#));
    let response = r#"{"model":"thinker","input":"Hello""#;
    assert!(blocks("/v1/responses", &format!("{response}}}")).contains(r#""type":"reasoning""#));
    let off = format!(r#"{response},"reasoning":{{"effort":"none"}}}}"#);
    assert!(!blocks("/v1/responses", &off).contains(r#""type":"reasoning""#));
    let completion = r#"{"model":"thinker","prompt":"Hello"}"#;
    assert!(blocks("/v1/completions", completion).contains(r#""text":"One two three.""#));
}

#[test]
fn a_subset_of_the_tools_is_called_and_wrong_schemas_are_told_by_their_place() {
    let mut chats = Chats::new();
    let allowed = |mode: &str, name: &str| {
        format!(
            r#"{TOOLS},"tool_choice":{{"type":"allowed_tools","allowed_tools":{{"mode":"{mode}","tools":[{{"type":"function","function":{{"name":"{name}"}}}}]}}}}"#
        )
    };
    // Both are scripted, one is allowed.
    let whole = chats.whole(&ask("weather in Oslo", &allowed("auto", "get_time")));
    assert_eq!(text(&whole, "choices.0.message.tool_calls.0.function.name"), "get_time");
    assert!(at(&whole, "choices.0.message.tool_calls").unwrap().as_array().unwrap().len() == 1);
    for name in ["get_time", "get_weather"] {
        let whole = chats.whole(&ask("Hello", &allowed("required", name)));
        assert_eq!(text(&whole, "choices.0.message.tool_calls.0.function.name"), name);
    }
    // In the prompt they all count.
    let all = number(&chats.whole(&ask("Hello", TOOLS)), "usage.prompt_tokens");
    let one =
        number(&chats.whole(&ask("Hello", &allowed("auto", "get_time"))), "usage.prompt_tokens");
    assert_eq!(all, one);
    // Behind a custom tool, which is never called, the second place is the second place.
    let wrong = r#""tools":[{"type":"custom","custom":{"name":"c"}},
        {"type":"function","function":{"name":"f","parameters":{"type":"word"}}}],
        "tool_choice":"required""#;
    chats.refused(&ask("Hello", wrong), "tools[1].function.parameters.type", "one or a list");
    let response = r#"{"model":"m","input":"weather in Oslo","tools":[
        {"type":"function","name":"get_weather"},{"type":"function","name":"get_time"}],
        "tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"get_time"}]}}"#;
    chats.client.post("/v1/responses", response);
    let answer = chats.client.response();
    assert!(answer.text().contains(r#""name":"get_time","arguments""#), "{}", answer.text());
    assert!(!answer.text().contains(r#""name":"get_weather","arguments""#), "{}", answer.text());
}

#[test]
fn refusals_and_filters_are_scripted() {
    let mut chats = Chats::new();
    let whole = chats.whole(&ask("no", ""));
    assert!(is_null(&whole, CONTENT));
    let refusal = "I cannot help with that.";
    assert_eq!(text(&whole, "choices.0.message.refusal"), refusal);
    assert_eq!(text(&whole, FINISH), "stop");
    let chunks = chats.chunks(&ask("no", ""));
    let said: String = chunks
        .iter()
        .filter_map(|chunk| at(chunk, "choices.0.delta.refusal")?.as_str().map(str::to_owned))
        .collect();
    assert_eq!(said, refusal);
    assert_eq!(text(&chats.whole(&ask("filtered", "")), FINISH), "content_filter");
}

#[test]
fn rules_look_at_the_model_the_system_prompt_and_the_turn() {
    let mut chats = Chats::new();
    let who = ask("who", "");
    assert_eq!(text(&chats.whole(&who), CONTENT), "One two three.");
    assert_eq!(text(&chats.whole(&who.replace(r#""m""#, r#""other""#)), CONTENT), "other");
    for role in ["system", "developer"] {
        let messages = format!(
            r#"{{"role":"{role}","content":"Talk like a Pirate."}},{{"role":"user","content":"who"}}"#
        );
        assert_eq!(text(&chats.whole(&chat(&messages, "")), CONTENT), "Arr.");
    }
    let turns = |count: usize| {
        let user = r#"{"role":"user","content":"x"}"#;
        vec![user; count].join(r#",{"role":"assistant","content":"y"},"#)
    };
    for (count, says) in
        [(2, "One two three."), (3, "Still here."), (4, "Still here."), (5, "One two three.")]
    {
        assert_eq!(text(&chats.whole(&chat(&turns(count), "")), CONTENT), says, "{count}");
    }
}
