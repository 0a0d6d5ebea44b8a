//! Mutated input against everything that reads bytes from outside: no panic, no hang, a sound
//! answer. Bounded and seeded; a seed that fails is printed and belongs into `SEEDS`.

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::wire::chat::ChatRequest;
use llmsim_engine::wire::client::Chunk;
use llmsim_engine::wire::completions::CompletionRequest;
use llmsim_engine::wire::embeddings::EmbeddingRequest;
use llmsim_engine::wire::generate::GenerateRequest;
use llmsim_engine::wire::json_guard;
use llmsim_engine::wire::lora::LoadAdapter;
use llmsim_engine::wire::messages::{MessagesRequest, Purpose};
use llmsim_engine::wire::responses::ResponsesRequest;
use llmsim_engine::wire::sse::SseParser;

/// Each runs a fixed number of mutations: all tests of this file together take some two seconds.
const SEEDS: [u64; 4] = [1, 2, 3, 0xBAD_5EED];

const BODIES: [&str; 6] = [
    r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}"#,
    r#"{"model":"m","messages":[{"role":"system","content":"a\"b\\\u00e9\ud83d\ude00"},{"role":"user","content":[{"type":"text","text":"x"},{"type":"text","text":""}]}],"max_tokens":5,"seed":-1}"#,
    r#"{"messages":[],"model":null,"temperature":1e2,"top_p":0.1,"stop":["a",null],"n":1}"#,
    r#"{"model":"m","messages":[{"role":"user"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"enum":[1,2.5,-3e-7,true,null]}}}}}],"tool_choice":"auto"}"#,
    r#"{"model":"m","messages":[{"role":"user","content":null}],"logit_bias":{"1":2},"metadata":{"k":"v"},"unknown":[[[{"deep":[[]]}]]],"response_format":{"type":"json_schema","json_schema":{"name":"n"}}}"#,
    r#"{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1},"error":{"message":"e","code":4}}"#,
];

const STREAM: &str = "\u{feff}: hello\r\ndata: {\"a\":1}\n\nevent: x\rdata: one\rdata: two\r\r\
                      id: 7\nretry: 10\ndata\n\ndata: [DONE]\r\n\r\n";

/// Pieces that break parsers.
const NASTY: [&[u8]; 16] = [
    b"\"",
    b"\\",
    b"\\u",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\xff",
    b"\xe2\x80",
    b"1e999",
    b"-",
    b"\0",
    b"\r\n",
];

fn mutate(random: &mut Generator, seed_text: &[u8], others: &[&str]) -> Vec<u8> {
    let mut bytes = seed_text.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let upto = at + random.below((bytes.len() - at) as u64 + 1) as usize;
        match random.below(7) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..upto.min(at + 8))),
            2 => {
                let nasty = NASTY[random.below(NASTY.len() as u64) as usize];
                bytes.splice(at..at, nasty.iter().copied());
            }
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            4 => {
                let copy = bytes[at..upto].to_vec();
                bytes.splice(at..at, copy);
            }
            5 => {
                let other = others[random.below(others.len() as u64) as usize].as_bytes();
                let from = random.below(other.len() as u64) as usize;
                bytes.splice(at..at, other[from..].iter().copied());
            }
            _ => {
                let nasty = NASTY[random.below(NASTY.len() as u64) as usize];
                let many = nasty.repeat(random.below(300) as usize);
                bytes.splice(at..at, many);
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// A second opinion on nesting: what serde_json's rules would count, character by character.
fn deepest(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for &byte in json {
        match (in_string, escaped, byte) {
            (true, true, _) => escaped = false,
            (true, false, b'\\') => escaped = true,
            (true, false, b'"') => in_string = false,
            (true, false, _) => {}
            (false, _, b'"') => in_string = true,
            (false, _, b'[' | b'{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, _, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[test]
fn mutated_bodies_are_taken_or_refused_and_nothing_else() {
    for seed in SEEDS {
        let mut random = Seed::new(seed).generator();
        for round in 0..25_000 {
            let start = BODIES[random.below(BODIES.len() as u64) as usize];
            let body = mutate(&mut random, start.as_bytes(), &BODIES);
            let context = || format!("seed {seed} round {round}: {:?}", body.escape_ascii());
            assert_eq!(json_guard::check(&body).is_ok(), deepest(&body) <= 128, "{}", context());
            match ChatRequest::parse(&body) {
                Ok(request) => {
                    assert!(!request.model.is_empty(), "{}", context());
                    assert!(!request.messages.is_empty(), "{}", context());
                    assert!(request.max_tokens.is_none_or(|max| max.get() >= 1), "{}", context());
                    assert!(std::str::from_utf8(&body).is_ok(), "{}", context());
                }
                Err(error) => {
                    assert_eq!(error.status, 400, "{}", context());
                    assert!(!error.message.contains('\n'), "{}", context());
                    let own = error.body();
                    let read = Chunk::parse(&own).expect("our own bodies are JSON");
                    assert!(read.error.is_some_and(|read| read.message == error.message));
                }
            }
            let _ = Chunk::parse(&body);
        }
    }
}

/// The bodies of the other surfaces.
const OTHERS: [&str; 7] = [
    r#"{"model":"m","prompt":["a","b\n"],"n":2,"echo":true,"logprobs":5,"max_tokens":0,"suffix":"z"}"#,
    r#"{"model":"m","prompt":[[1,2],[4294967295]],"input":[1,2,3],"dimensions":5,"input_ids":[7]}"#,
    r#"{"model":"m","max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"4"}]}]}],"tools":[{"name":"a","input_schema":{}}],"tool_choice":{"type":"tool","name":"a"},"thinking":{"type":"enabled","budget_tokens":1024}}"#,
    r#"{"model":"m","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"function_call_output","call_id":"c","output":"o"},{"type":"item_reference","id":"i"}],"text":{"format":{"type":"json_schema","name":"n","schema":{"a":[1.5,-3e-7]}}}}"#,
    r#"{"text":["a","b"],"rid":["x","y"],"stream":true,"sampling_params":{"max_new_tokens":5,"stop":["x"],"n":2}}"#,
    r#"{"lora_name":"a","lora_path":"/x","load_inplace":false}"#,
    r#"{"model":"m","messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":[1]}}]}],"max_tokens":5}"#,
];

#[test]
fn mutated_bodies_of_all_surfaces_are_taken_or_refused_in_one_line() {
    for seed in SEEDS {
        let mut random = Seed::new(seed).generator();
        for round in 0..4_000 {
            let start = OTHERS[random.below(OTHERS.len() as u64) as usize];
            let body = mutate(&mut random, start.as_bytes(), &OTHERS);
            let refusals = [
                CompletionRequest::parse(&body).err(),
                EmbeddingRequest::parse(&body, 1536).err(),
                MessagesRequest::parse(&body, Purpose::Answer).err(),
                ResponsesRequest::parse(&body).err(),
                GenerateRequest::parse(&body).err(),
                LoadAdapter::parse(&body).err(),
            ];
            for refusal in refusals.into_iter().flatten() {
                let context = || format!("seed {seed} round {round}: {:?}", body.escape_ascii());
                assert_eq!(refusal.status, 400, "{}", context());
                assert!(!refusal.message.contains('\n'), "{}", context());
            }
        }
    }
}

#[test]
fn mutated_streams_are_read_the_same_however_they_are_cut() {
    for seed in SEEDS {
        let mut random = Seed::new(seed).generator();
        for round in 0..5_000 {
            let stream = mutate(&mut random, STREAM.as_bytes(), &[STREAM]);
            let context = || format!("seed {seed} round {round}: {:?}", stream.escape_ascii());
            let whole = read(&stream, |rest| rest);
            let cut = read(&stream, |rest| 1 + random.below(rest as u64) as usize);
            assert_eq!(whole, cut, "{}", context());
        }
    }
}

const LIMIT: usize = 200;

/// All events up to the first that is too long, and whether there was one.
fn read(stream: &[u8], mut next: impl FnMut(usize) -> usize) -> (Vec<Vec<u8>>, bool) {
    let mut parser = SseParser::new(LIMIT);
    let mut events = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(next(rest.len()));
        let result = parser.feed(piece, |event| {
            assert!(event.data.len() <= LIMIT);
            events.push([event.event, b"|", event.data, b"|", event.id].concat());
        });
        if result.is_err() {
            return (events, true);
        }
        rest = after;
    }
    (events, false)
}

/// 100,000 levels end the process if they reach the parser: in every position that it looks at.
#[test]
fn deep_nesting_is_refused_in_every_position() {
    for (open, close) in
        [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]"), ("[", ""), ("{\"\":", "")]
    {
        let deep = open.repeat(100_000) + &close.repeat(100_000);
        for body in [
            deep.clone(),
            format!("  {deep}"),
            format!(r#"{{"unknown":{deep}}}"#),
            format!(r#"{{"model":{deep}}}"#),
            format!(r#"{{"model":"m","messages":{deep}}}"#),
            format!(r#"{{"model":"m","messages":[{deep}]}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":{deep}}}]}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":{deep}}}]}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{deep}]}}]}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":"user","unknown":{deep}}}]}}"#),
            format!(r#"{{"model":"m","messages":[],"tools":{deep}}}"#),
            format!(r#"{{"model":"m","messages":[],"metadata":{deep}}}"#),
            format!(r#"{{"model":"m","messages":[{{"role":"user"}}],"stop":{deep}}}"#),
        ] {
            let error = ChatRequest::parse(body.as_bytes()).expect_err("too deep");
            assert_eq!((error.status, error.param.as_deref()), (400, None));
            assert!(error.message.contains("nested deeper than 128"), "{}", error.message);
            assert!(Chunk::parse(body.as_bytes()).is_err());
        }
    }
}

/// A body of `{},{},...` or `1,1,...` must not take a multiple of its size that hurts: what is kept
/// is bounded, and the answer is the first fault.
#[test]
fn long_lists_of_nothing_are_refused_at_the_first_element() {
    for element in ["{}", "1", "[]", "null", r#"{"role":1}"#] {
        let many = vec![element; 300_000].join(",");
        let body = format!(r#"{{"model":"m","messages":[{many}]}}"#);
        let error = ChatRequest::parse(body.as_bytes()).expect_err("no message");
        assert!(error.param.is_some_and(|param| param.starts_with("messages[0]")));
    }
    let many = vec!["1"; 300_000].join(",");
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user"}}],"stop":[{many}]}}"#);
    let error = ChatRequest::parse(body.as_bytes()).expect_err("too many");
    assert!(error.message.contains("length 300000"), "{}", error.message);
    let many = vec![r#"{"role":"user"}"#; 70_000].join(",");
    let body = format!(r#"{{"model":"m","messages":[{many}]}}"#);
    let error = ChatRequest::parse(body.as_bytes()).expect_err("too many");
    assert_eq!(error.code, Some("array_above_max_length"));
}
