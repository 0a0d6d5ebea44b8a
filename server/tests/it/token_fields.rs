//! What vLLM tells of tokens beside their text: ids, scores of a prompt, several in a chunk; and what
//! it keeps of a long prompt.

use llmsim_engine::text::schema::json::Value;
use llmsimulator::boot::Server;

use crate::client::{Client, Response, content_of};
use crate::fixture::{self, DEFAULT_TEXT};

struct Asking {
    _server: Server,
    client: Client,
}

impl Asking {
    fn new() -> Self {
        let server = fixture::start();
        let client = Client::new(&server);
        Self { _server: server, client }
    }

    fn post(&mut self, path: &str, body: &str) -> Response {
        self.client.post(path, body);
        self.client.response()
    }

    /// A chat that says "Hello", with more fields.
    fn chat(&mut self, fields: &str) -> Response {
        self.post("/v1/chat/completions", &hello(fields))
    }

    #[track_caller]
    fn events(&mut self, fields: &str) -> Vec<Value> {
        let response = self.chat(&format!(r#""stream":true,{fields}"#));
        assert_eq!(response.status, 200, "{}", response.text());
        let mut events = response.events();
        assert_eq!(events.pop(), Some("[DONE]"));
        events.into_iter().map(|event| Value::parse(event).unwrap()).collect()
    }

    #[track_caller]
    fn ids_of(&mut self, tokenize: &str) -> Vec<f64> {
        let answer = self.post("/tokenize", tokenize);
        numbers(&Value::parse(answer.text()).unwrap(), "tokens")
    }

    #[track_caller]
    fn text_of(&mut self, ids: &[f64]) -> String {
        let answer =
            self.post("/detokenize", &format!(r#"{{"tokens":{ids:?}}}"#).replace(".0", ""));
        let answer = Value::parse(answer.text()).unwrap();
        answer.get("prompt").and_then(Value::as_str).unwrap().to_owned()
    }
}

fn hello(fields: &str) -> String {
    format!(r#"{{"model":"instant","messages":[{{"role":"user","content":"Hello"}}],{fields}}}"#)
}

/// What stands at a path: names and numbers with points between.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, step| match value {
        Value::Array(items) => items.get(step.parse::<usize>().unwrap()),
        value => value.get(step),
    })
}

#[track_caller]
fn numbers(value: &Value, path: &str) -> Vec<f64> {
    let array = at(value, path).and_then(Value::as_array);
    let array = array.unwrap_or_else(|| panic!("{path} of {value:?}"));
    array.iter().map(|number| number.as_f64().unwrap()).collect()
}

#[test]
fn a_chunk_has_as_many_tokens_as_asked_for() {
    let mut asking = Asking::new();
    // As vLLM sends them: the first alone, then three by three, then the rest.
    let expected = ["One", " two three four", " five six seven", "."];
    for fields in [
        r#""stream_interval":3"#,
        r#""stream_interval":3,"logprobs":true"#,
        r#""stream_interval":3,"return_token_ids":true"#,
        r#""stream_interval":3,"n":1,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#,
    ] {
        let response = asking.chat(&format!(r#""stream":true,{fields}"#));
        let events = response.events();
        let said: Vec<String> = events[1..5].iter().map(|event| content_of(event)).collect();
        assert_eq!(said, expected, "{fields}");
        assert!(events[5].contains(r#""delta":{}"#) && events[5].contains(r#""stop""#));
    }
    let events = asking.events(r#""stream_interval":3,"logprobs":true,"return_token_ids":true"#);
    let counts = |path: &str| -> Vec<usize> {
        let count = |event| at(event, path).and_then(Value::as_array).unwrap().len();
        events[1..5].iter().map(count).collect()
    };
    assert_eq!(counts("choices.0.logprobs.content"), [1, 3, 3, 1]);
    assert_eq!(counts("choices.0.token_ids"), [1, 3, 3, 1]);
    let usage = r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let events = asking.events(&format!(r#""stream_interval":3,{usage}"#));
    let running: Vec<f64> = events
        .iter()
        .map(|event| at(event, "usage.completion_tokens").and_then(Value::as_f64).unwrap())
        .collect();
    assert_eq!(running, [0.0, 1.0, 4.0, 7.0, 8.0, 8.0, 8.0]);

    // An interval above the length: the first token, the others, the end.
    assert_eq!(asking.events(r#""stream_interval":1000"#).len(), 4);
    // A limit in the middle of an interval.
    let cut = asking.events(r#""stream_interval":4,"max_tokens":7"#);
    let said: Vec<&str> = cut[1..4]
        .iter()
        .map(|event| at(event, "choices.0.delta.content").and_then(Value::as_str).unwrap())
        .collect();
    assert_eq!(said, ["One", " two three four five", " six seven"]);

    let body = r#"{"model":"instant","prompt":"x","stream":true,"stream_interval":3}"#;
    let texts = asking.post("/v1/completions", body);
    let texts: Vec<&str> = texts
        .events()
        .iter()
        .filter_map(|event| Some(event.split_once(r#""text":""#)?.1.split_once('"')?.0))
        .collect();
    assert_eq!(texts, ["One", " two three four", " five six seven", ".", ""]);
}

#[test]
fn ids_are_those_that_tokenizing_gives_and_detokenizing_takes() {
    let mut asking = Asking::new();
    let prompt =
        asking.ids_of(r#"{"model":"instant","messages":[{"role":"user","content":"Hello"}]}"#);
    assert_eq!(prompt.len(), 8);
    let whole = asking.chat(r#""return_token_ids":true,"n":2"#);
    let whole = Value::parse(whole.text()).unwrap();
    assert_eq!(numbers(&whole, "prompt_token_ids"), prompt);
    let ids = numbers(&whole, "choices.1.token_ids");
    assert_eq!((ids.len(), asking.text_of(&ids).as_str()), (8, DEFAULT_TEXT));

    // In a stream, the prompt's stand in each choice's first chunk, the answer's in their own.
    let events = asking.events(r#""return_token_ids":true,"n":2"#);
    let opening = events.iter().filter(|it| at(it, "choices.0.delta.role").is_some());
    let prompts: Vec<_> = opening.map(|event| numbers(event, "prompt_token_ids")).collect();
    assert_eq!(prompts, [prompt.clone(), prompt.clone()]);
    let of_second = events.iter().filter(|event| {
        at(event, "choices.0.index").and_then(Value::as_f64) == Some(1.0)
            && at(event, "choices.0.token_ids").is_some()
    });
    let streamed: Vec<f64> =
        of_second.flat_map(|event| numbers(event, "choices.0.token_ids")).collect();
    assert_eq!(streamed, ids);

    // What a stop string cuts off or holds back is a token of its own all the same.
    let stopped = asking.chat(r#""return_token_ids":true,"logprobs":true,"stop":["wo thr"]"#);
    let stopped = Value::parse(stopped.text()).unwrap();
    assert_eq!(at(&stopped, "choices.0.message.content").and_then(Value::as_str), Some("One t"));
    assert_eq!(numbers(&stopped, "choices.0.token_ids"), ids[..3]);
    let tokens = at(&stopped, "choices.0.logprobs.content").and_then(Value::as_array).unwrap();
    let tokens: Vec<&str> =
        tokens.iter().map(|it| it.get("token").and_then(Value::as_str).unwrap()).collect();
    assert_eq!(tokens, ["One", " two", " three"]);

    // Without being asked for, there are none.
    let plain = asking.chat(r#""return_token_ids":false"#);
    assert!(!plain.text().contains("token_ids"), "{}", plain.text());
}

#[test]
fn completions_tell_ids_for_each_choice_and_then_echo_no_text() {
    let mut asking = Asking::new();
    let prompt = asking.ids_of(r#"{"model":"instant","prompt":"Say this"}"#);
    let body = r#"{"model":"instant","prompt":["Say this","x"],"max_tokens":2,"return_token_ids":true,"echo":true}"#;
    let answer = asking.post("/v1/completions", body);
    let whole = Value::parse(answer.text()).unwrap();
    assert_eq!(numbers(&whole, "choices.0.prompt_token_ids"), prompt);
    assert_eq!(numbers(&whole, "choices.1.prompt_token_ids").len(), 1);
    let ids = numbers(&whole, "choices.1.token_ids");
    assert_eq!(asking.text_of(&ids), "One two");
    // vLLM leaves the prompt's text out for those who get its ids.
    assert_eq!(at(&whole, "choices.0.text").and_then(Value::as_str), Some("One two"));

    let stream = asking.post("/v1/completions", &body.replacen('{', r#"{"stream":true,"#, 1));
    let first = stream.events()[0].to_owned();
    let first = Value::parse(&first).unwrap();
    assert_eq!(numbers(&first, "choices.0.prompt_token_ids"), prompt);
    assert_eq!(numbers(&first, "choices.0.token_ids"), ids[..1]);
    assert_eq!(stream.text().matches("prompt_token_ids").count(), 2);
}

#[test]
fn a_prompt_is_cut_instead_of_refused() {
    let mut asking = Asking::new();
    let all =
        asking.ids_of(r#"{"model":"instant","messages":[{"role":"user","content":"Hello"}]}"#);
    for (fields, left) in [
        (r#""truncate_prompt_tokens":5"#, &all[3..]),
        (r#""truncate_prompt_tokens":5,"truncation_side":"left""#, &all[3..]),
        (r#""truncate_prompt_tokens":5,"truncation_side":"right""#, &all[..5]),
        (r#""truncate_prompt_tokens":500"#, &all[..]),
        (r#""truncate_prompt_tokens":-1"#, &all[..]),
    ] {
        let answer = asking.chat(&format!(r#"{fields},"return_token_ids":true"#));
        let whole = Value::parse(answer.text()).unwrap();
        assert_eq!(numbers(&whole, "prompt_token_ids"), left, "{fields}");
        let counted = format!(r#""prompt_tokens":{},"#, left.len());
        assert!(answer.text().contains(&counted), "{fields}: {}", answer.text());
        let rendered = asking.post("/v1/chat/completions/render", &hello(fields));
        let rendered = Value::parse(rendered.text()).unwrap();
        assert_eq!(numbers(&rendered, "token_ids"), left, "{fields}");
    }
    // The model's context is 4,096: all but one of them stay, for one token of the answer.
    let long = "word ".repeat(5000);
    let body = |fields: &str| {
        format!(
            r#"{{"model":"batched","messages":[{{"role":"user","content":"{long}"}}]{fields}}}"#
        )
    };
    assert_eq!(asking.post("/v1/chat/completions", &body("")).status, 400);
    let cut = asking.post("/v1/chat/completions", &body(r#","truncate_prompt_tokens":-1"#));
    assert!(
        cut.text().contains(r#""prompt_tokens":4095,"completion_tokens":1,"#),
        "{}",
        cut.text()
    );
    assert!(cut.text().contains(r#""finish_reason":"length""#));
    let more = asking.post("/v1/chat/completions", &body(r#","truncate_prompt_tokens":4097"#));
    assert_eq!(more.status, 400);
    assert!(more.text().contains(r#""param":"truncate_prompt_tokens""#), "{}", more.text());

    let completion = |fields: &str| format!(r#"{{"model":"instant","max_tokens":1,{fields}}}"#);
    for (prompt, side, text) in [
        (r#""one two three four""#, "left", " three fourOne"),
        (r#""one two three four""#, "right", "one twoOne"),
    ] {
        let body = completion(&format!(
            r#""prompt":{prompt},"truncate_prompt_tokens":2,"truncation_side":"{side}","echo":true"#
        ));
        let answer = asking.post("/v1/completions", &body);
        assert!(answer.text().contains(&format!(r#""text":"{text}""#)), "{}", answer.text());
        assert!(answer.text().contains(r#""prompt_tokens":2,"#), "{}", answer.text());
    }
    let ids = completion(r#""prompt":[5,6,7],"truncate_prompt_tokens":2,"return_token_ids":true"#);
    let answer = asking.post("/v1/completions", &ids);
    assert!(answer.text().contains(r#""prompt_token_ids":[6,7]"#), "{}", answer.text());
    let gap = completion(r#""prompt":"a","suffix":"b","truncate_prompt_tokens":2"#);
    assert_eq!(asking.post("/v1/completions", &gap).status, 400);
}

#[test]
fn the_prompts_tokens_are_scored_but_for_the_first() {
    let mut asking = Asking::new();
    let ids =
        asking.ids_of(r#"{"model":"instant","messages":[{"role":"user","content":"Hello"}]}"#);
    let answer = asking.chat(r#""prompt_logprobs":2"#);
    let whole = Value::parse(answer.text()).unwrap();
    let entries = at(&whole, "prompt_logprobs").and_then(Value::as_array).unwrap();
    assert_eq!(entries.len(), 8);
    assert!(matches!(entries[0], Value::Null));
    for (entry, id) in entries.iter().zip(&ids).skip(1) {
        let members = entry.as_object().unwrap();
        assert_eq!(members.len(), 2);
        // The token itself is the first, as in vLLM.
        assert_eq!(members[0].0.parse::<f64>().unwrap(), *id);
        for (rank, (_, scored)) in members.iter().enumerate() {
            assert_eq!(scored.get("rank").and_then(Value::as_f64), Some(rank as f64 + 1.0));
            assert!(scored.get("logprob").and_then(Value::as_f64).unwrap() < 0.0);
        }
    }
    let decoded = entries[3].as_object().unwrap()[0].1.get("decoded_token");
    assert_eq!(decoded.and_then(Value::as_str), Some("Hello"));

    // Of completions, each choice has them; 0 tells the tokens alone.
    let body = r#"{"model":"instant","prompt":"Say this","prompt_logprobs":0}"#;
    let answer = asking.post("/v1/completions", body);
    let whole = Value::parse(answer.text()).unwrap();
    let entries = at(&whole, "choices.0.prompt_logprobs").and_then(Value::as_array).unwrap();
    assert_eq!((entries.len(), entries[1].as_object().unwrap().len()), (2, 1));
    let stream = asking.chat(r#""stream":true,"prompt_logprobs":1"#);
    assert_eq!(stream.status, 400);
}

#[test]
fn a_completion_has_the_format_that_is_asked_for() {
    let mut asking = Asking::new();
    let mut ask = |fields: &str| {
        let body = format!(r#"{{"model":"instant","prompt":"x","max_tokens":200,{fields}}}"#);
        let answer = asking.post("/v1/completions", &body);
        (answer.status, answer.text().to_owned())
    };
    let text = |answer: &str| {
        let answer = Value::parse(answer).unwrap();
        at(&answer, "choices.0.text").and_then(Value::as_str).unwrap().to_owned()
    };
    let (_, object) = ask(r#""response_format":{"type":"json_object"}"#);
    assert_eq!(text(&object), format!(r#"{{"answer": "{DEFAULT_TEXT}"}}"#));
    let (_, chosen) = ask(r#""structured_outputs":{"choice":["x"]}"#);
    assert_eq!(text(&chosen), "x");
    let schema = r#"{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"boolean"}}}"#;
    let (_, made) = ask(&format!(r#""response_format":{schema}"#));
    assert!(["true", "false"].contains(&text(&made).as_str()), "{made}");
    let (status, refused) =
        ask(r#""response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}"#);
    assert_eq!(status, 400, "{refused}");
    let wrong = schema.replace("boolean", "word");
    let (status, refused) = ask(&format!(r#""response_format":{wrong}"#));
    assert_eq!(status, 400, "{refused}");
    assert!(refused.contains(r#""param":"response_format.json_schema.schema.type""#), "{refused}");
}

#[test]
fn calls_of_a_history_count_alike_on_every_surface() {
    let mut asking = Asking::new();
    let arguments = r#"{\"city\": \"Oslo\", \"days\": 3}"#;
    let chat = format!(
        r#"{{"model":"instant","messages":[{{"role":"user","content":"Weather?"}},
        {{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function",
          "function":{{"name":"weather","arguments":"{arguments}"}}}}]}},
        {{"role":"tool","tool_call_id":"c","content":"rain"}}]}}"#
    );
    let responses = format!(
        r#"{{"model":"instant","input":[{{"role":"user","content":"Weather?"}},
        {{"type":"function_call","call_id":"c","name":"weather","arguments":"{arguments}"}},
        {{"type":"function_call_output","call_id":"c","output":"rain"}}]}}"#
    );
    let counted = |answer: &Response, member: &str| -> f64 {
        let whole = Value::parse(answer.text()).unwrap();
        at(&whole, member).and_then(Value::as_f64).unwrap_or_else(|| panic!("{}", answer.text()))
    };
    let of_chat = asking.post("/v1/chat/completions", &chat);
    let of_response = asking.post("/v1/responses", &responses);
    let tokenized = asking.post("/tokenize", &chat);
    let prompt = counted(&of_chat, "usage.prompt_tokens");
    // Three messages of four tokens and their text, and three before the answer.
    assert!(prompt > 3.0 * 4.0 + 2.0 + 1.0 + 10.0 + 3.0, "{prompt}");
    assert_eq!(counted(&of_response, "usage.input_tokens"), prompt);
    assert_eq!(counted(&tokenized, "count"), prompt);
}

#[test]
fn a_number_beyond_all_floats_is_told_like_others() {
    let mut asking = Asking::new();
    for (fields, param, code) in [
        (r#""max_tokens":1e400"#, "max_tokens", "invalid_type"),
        (r#""temperature":1e400"#, "temperature", "decimal_above_max_value"),
        (r#""n":-1e400"#, "n", "invalid_type"),
    ] {
        let answer = asking.chat(fields);
        assert_eq!(answer.status, 400);
        let told = format!(r#""param":"{param}","code":"{code}"}}"#);
        assert!(answer.text().contains(&told), "{fields}: {}", answer.text());
    }
    // Where nobody looks at it, it is no fault at all.
    assert_eq!(asking.chat(r#""metadata":{"a":1e400}"#).status, 200);
    let message = r#"{"model":"instant","max_tokens":1e400,"messages":[]}"#;
    let answer = asking.post("/v1/messages", message);
    assert!(answer.text().contains("max_tokens"), "{}", answer.text());
}
