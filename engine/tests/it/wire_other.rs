//! Embeddings, SGLang's `/generate`, adapters: what is taken, what is refused, and their bodies.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::PromptEnd;
use llmsim_engine::wire::embeddings::{
    ByteOrder, EmbeddingRequest, Encoding, Inputs, Number, write_body, write_vector,
};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::generate::{self, End, GenerateRequest, Ids, Scores, push_score};
use llmsim_engine::wire::inputs::Input;
use llmsim_engine::wire::lora::{LoadAdapter, UnloadAdapter};
use llmsim_engine::wire::usage::Usage;

#[track_caller]
fn check(result: Result<(), ApiError>, param: &str, code: Option<&str>) {
    let error = result.expect_err(param);
    assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{error}");
    assert_eq!(error.code, code, "{error}");
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn embeddings_take_one_input_or_several() {
    let parse = |body: &'static str| EmbeddingRequest::parse(body.as_bytes(), 1536).unwrap();
    let request = parse(r#"{"model":"m","input":"a"}"#);
    assert_eq!(request.inputs, Inputs::Plain(vec![Input::Text("a".into())]));
    assert_eq!((request.encoding, request.dimensions), (Encoding::Float, None));
    let request = parse(
        r#"{"model":"m","input":[[1,2],[3]],"encoding_format":"base64","dimensions":256,
            "user":"u","truncate_prompt_tokens":-1}"#,
    );
    let ids = vec![Input::Ids(vec![1, 2]), Input::Ids(vec![3])];
    assert_eq!(request.inputs, Inputs::Plain(ids));
    let base64 = Encoding::Base64(Number::Float32, ByteOrder::Little);
    assert_eq!((request.encoding, request.dimensions), (base64, Some(256)));
}

#[test]
fn embeddings_refuse_what_is_none() {
    for (members, param, code) in [
        (r#""x":1"#, "input", Some("missing_required_parameter")),
        (r#""input":"""#, "input", Some("empty_string")),
        (r#""input":[]"#, "input", Some("empty_array")),
        (r#""input":["a",""]"#, "input[1]", Some("empty_string")),
        (r#""input":[""]"#, "input[0]", Some("empty_string")),
        (r#""input":[[]]"#, "input[0]", Some("empty_array")),
        (r#""input":{}"#, "input", Some("invalid_type")),
        (r#""input":"a","dimensions":0"#, "dimensions", Some("integer_below_min_value")),
        (r#""input":"a","dimensions":1537"#, "dimensions", Some("integer_above_max_value")),
        (r#""input":"a","encoding_format":"hex""#, "encoding_format", Some("invalid_value")),
        (r#""input":"a","encoding_format":"bytes""#, "encoding_format", Some("invalid_value")),
        (r#""input":"a","embed_dtype":"int8""#, "embed_dtype", Some("invalid_value")),
        (r#""input":"a","endianness":"middle""#, "endianness", Some("invalid_value")),
        (r#""input":"a","endianness":1"#, "endianness", Some("invalid_type")),
    ] {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        check(EmbeddingRequest::parse(body.as_bytes(), 1536).map(drop), param, code);
    }
    let many = format!(r#"{{"model":"m","input":[{}"a"]}}"#, r#""a","#.repeat(2048));
    let code = Some("array_above_max_length");
    check(EmbeddingRequest::parse(many.as_bytes(), 1536).map(drop), "input", code);
}

/// As vLLM's `EmbeddingChatRequest` and its kin (pooling/embed/protocol.py): in `messages` or
/// `input`, one conversation or a list of them.
#[test]
fn embeddings_take_a_conversation_or_several() {
    let parse = |members: &str| {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        let inputs = EmbeddingRequest::parse(body.as_bytes(), 1536).unwrap().inputs;
        let Inputs::Conversations { list, end, field } = inputs else { panic!("{members}") };
        let list: Vec<Vec<String>> = list
            .into_iter()
            .map(|all| all.iter().map(|m| format!("{}:{}", m.role.as_str(), m.content)).collect())
            .collect();
        (list, end, field)
    };
    let user = r#"{"role":"user","content":"a"}"#;
    let assistant = r#"{"role":"assistant","content":[{"type":"text","text":"b"}]}"#;
    let both = vec!["user:a".to_owned(), "assistant:b".to_owned()];
    for field in ["messages", "input"] {
        let (list, end, named) = parse(&format!(r#""{field}":[{user},{assistant}]"#));
        assert_eq!((list, named), (vec![both.clone()], field));
        // Not as in chats: nothing is to be answered.
        assert_eq!(end, PromptEnd::Closed);
        let (list, _, _) = parse(&format!(r#""{field}":[[{user}],[{user},{assistant}]]"#));
        assert_eq!(list, [vec!["user:a".to_owned()], both.clone()]);
    }
    let (_, end, _) = parse(&format!(r#""messages":[{user}],"add_generation_prompt":true"#));
    assert_eq!(end, PromptEnd::AnswerBegins);
    let (_, end, _) = parse(&format!(r#""messages":[{user}],"continue_final_message":true"#));
    assert_eq!(end, PromptEnd::Open);
}

#[test]
fn embeddings_say_which_conversation_is_none() {
    let user = r#"{"role":"user","content":"a"}"#;
    for (members, param, code) in [
        (r#""messages":[]"#.to_owned(), "messages", Some("empty_array")),
        (r#""messages":"a""#.to_owned(), "messages", Some("invalid_type")),
        (format!(r#""messages":{user}"#), "messages", Some("invalid_type")),
        (format!(r#""messages":[{user},5]"#), "messages[1]", Some("invalid_type")),
        (format!(r#""messages":[{user},[{user}]]"#), "messages[1]", Some("invalid_type")),
        (format!(r#""messages":[[{user}],{user}]"#), "messages[1]", Some("invalid_type")),
        (format!(r#""messages":[[{user}],[]]"#), "messages[1]", Some("empty_array")),
        (
            format!(r#""input":[[{user},{{"role":"none"}}]]"#),
            "input[0][1].role",
            Some("invalid_value"),
        ),
        (format!(r#""input":"a","messages":[{user}]"#), "input", None),
        (
            format!(
                r#""messages":[{user}],"add_generation_prompt":true,"continue_final_message":true"#
            ),
            "continue_final_message",
            None,
        ),
        (
            format!(r#""messages":[{}[{user}]]"#, format!("[{user}],").repeat(2048)),
            "messages",
            Some("array_above_max_length"),
        ),
    ] {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        check(EmbeddingRequest::parse(body.as_bytes(), 1536).map(drop), param, code);
    }
}

/// Halves of steps, carries, numbers below the normal ones of each kind.
const TORCH_VECTOR: [f32; 16] = [
    1.0,
    -0.5,
    0.1,
    -0.0333,
    0.00390625,
    0.0005,
    -3e-05,
    6e-08,
    1e-07,
    0.0,
    0.96875,
    -0.99999,
    0.3125,
    0.28125,
    0.0029296875,
    1e-40,
];

const TORCH: [(&str, &str, &str); 11] = [
    (
        "float32",
        "little",
        "AACAPwAAAL/NzMw9lWUIvQAAgDtvEgM6gqj7t1nZgDOVv9YzAAAAAAAAeD9Y/3+/AACgPgAAkD4AAEA7whYBAA==",
    ),
    (
        "float32",
        "big",
        "P4AAAL8AAAA9zMzNvQhllTuAAAA6AxJvt/uogjOA2Vkz1r+VAAAAAD94AAC/f/9YPqAAAD6QAAA7QAAAAAEWwg==",
    ),
    ("float16", "little", "ADwAuGYuQ6gAHBkQ94EBAAIAAADAOwC8ADWANAAaAAA="),
    ("float16", "big", "PAC4AC5mqEMcABAZgfcAAQACAAA7wLwANQA0gBoAAAA="),
    ("float16", "native", "ADwAuGYuQ6gAHBkQ94EBAAIAAADAOwC8ADWANAAaAAA="),
    ("bfloat16", "little", "gD8Av809CL2AOwM6/LeBM9czAAB4P4C/oD6QPkA7AQA="),
    ("bfloat16", "big", "P4C/AD3NvQg7gDoDt/wzgTPXAAA/eL+APqA+kDtAAAE="),
    ("fp8_e4m3", "little", "OLAdkQIAgAAAADi4KikCAA=="),
    ("fp8_e4m3", "big", "OLAdkQIAgAAAADi4KikCAA=="),
    ("fp8_e5m2", "little", "PLguqBwQggAAADy8NTQaAA=="),
    ("fp8_e5m2", "big", "PLguqBwQggAAADy8NTQaAA=="),
];

/// What PyTorch 2.14 makes of them:
/// `torch.tensor(v).to(dtype).view(torch.uint8).numpy().tobytes()`, in base64, and `byteswap` for
/// the other order, as vLLM does it (utils/serial_utils.py).
#[test]
fn coordinates_are_rounded_to_the_kind_of_number_that_is_asked_for() {
    let vector = TORCH_VECTOR;
    for (dtype, order, expected) in TORCH {
        let body = format!(
            r#"{{"model":"m","input":"a","encoding_format":"base64","embed_dtype":"{dtype}",
                "endianness":"{order}"}}"#
        );
        let request = EmbeddingRequest::parse(body.as_bytes(), 1536).unwrap();
        let mut out = Vec::new();
        write_vector(0, &vector, request.encoding, &mut out);
        let expected = format!(r#"{{"object":"embedding","index":0,"embedding":"{expected}"}}"#);
        assert_eq!(text(out), expected, "{dtype} {order}");
    }
}

#[test]
fn vectors_are_numbers_or_little_endian_floats_in_base64() {
    let vector = [0.5, -1.0, 0.25];
    let mut out = Vec::new();
    write_vector(0, &vector, Encoding::Float, &mut out);
    assert_eq!(text(out), r#"{"object":"embedding","index":0,"embedding":[0.5,-1,0.25]}"#);
    let mut out = Vec::new();
    // Python: base64.b64encode(struct.pack("<3f", 0.5, -1, 0.25))
    let base64 = Encoding::Base64(Number::Float32, ByteOrder::Little);
    write_vector(1, &vector, base64, &mut out);
    let vectors = br#"{"object":"embedding","index":1,"embedding":"AAAAPwAAgL8AAIA+"}"#;
    assert_eq!(out, vectors);
    let mut out = Vec::new();
    write_body("embd-1", 1_700_000_000, "m", 5, vectors, &mut out);
    assert_eq!(
        text(out),
        concat!(
            r#"{"id":"embd-1","object":"list","created":1700000000,"data":[{"object":"embedding","#,
            r#""index":1,"embedding":"AAAAPwAAgL8AAIA+"}],"model":"m","usage":{"prompt_tokens":5,"#,
            r#""total_tokens":5}}"#
        )
    );
}

#[test]
fn generate_takes_texts_or_ids_and_sampling_params() {
    let parse = |body: &'static str| GenerateRequest::parse(body.as_bytes()).unwrap();
    let request = parse(r#"{"text":"a"}"#);
    assert_eq!(request.sampling.max_tokens, Tokens::new(128));
    assert!(!request.is_batch && !request.stream && request.model.is_none());
    let request = parse(
        r#"{"input_ids":[1,2],"rid":"r","stream":true,"lora_path":"l",
            "sampling_params":{"max_new_tokens":5,"min_new_tokens":2,"stop":"x","ignore_eos":true,
            "temperature":0,"top_k":-1,"n":2,"sampling_seed":9}}"#,
    );
    assert_eq!(request.prompts, [Input::Ids(vec![1, 2])]);
    assert_eq!((&request.ids, request.model.as_deref()), (&Ids::One("r".into()), Some("l")));
    let sampling = &request.sampling;
    assert_eq!((sampling.max_tokens, sampling.min_tokens), (Tokens::new(5), Tokens::new(2)));
    assert_eq!((sampling.choices, sampling.seed), (2, Some(9)));
    assert!(sampling.ignore_eos && request.stream && !request.is_batch);
    assert!(parse(r#"{"text":["a"]}"#).is_batch);
    let request = parse(r#"{"input_ids":[[1],[2,3]],"rid":["x","y"]}"#);
    assert_eq!(request.prompts.len(), 2);
    assert_eq!(request.ids, Ids::Each(vec!["x".into(), "y".into()]));
    assert_eq!(parse(r#"{"text":"a","rid":""}"#).ids, Ids::Ours);
}

#[test]
fn generate_refuses_what_it_cannot_do() {
    for (body, param, code) in [
        ("{}", "text", Some("missing_required_parameter")),
        (r#"{"text":"a","input_ids":[1]}"#, "text", None),
        (r#"{"text":""}"#, "text", Some("empty_string")),
        (r#"{"text":["a",""]}"#, "text[1]", Some("empty_string")),
        (r#"{"text":"a","image_data":"x"}"#, "image_data", Some("unsupported_parameter")),
        (r#"{"text":"a","rid":["x"]}"#, "rid", Some("invalid_type")),
        (r#"{"text":["a","b"],"rid":["x"]}"#, "rid", None),
        (r#"{"text":["a","b"],"rid":["x",5]}"#, "rid[1]", Some("invalid_type")),
        (r#"{"text":"a","sampling_params":[{}]}"#, "sampling_params", Some("invalid_value")),
        (
            r#"{"text":"a","sampling_params":{"max_new_tokens":0}}"#,
            "sampling_params.max_new_tokens",
            Some("integer_below_min_value"),
        ),
        (
            r#"{"text":"a","sampling_params":{"max_new_tokens":2,"min_new_tokens":3}}"#,
            "sampling_params.min_new_tokens",
            Some("invalid_value"),
        ),
    ] {
        check(GenerateRequest::parse(body.as_bytes()).map(drop), param, code);
    }
}

#[test]
fn generate_tells_text_and_counts() {
    let usage = Usage {
        prompt: Tokens::new(3),
        cached: Tokens::new(2),
        completion: Tokens::new(5),
        ..Usage::default()
    };
    let said = |out: &mut Vec<u8>| out.extend_from_slice(b"a b");
    let body = |index, end| {
        let mut out = Vec::new();
        generate::write("r", index, said, end, &usage, |_| {}, &mut out);
        text(out)
    };
    let start = r#"{"text":"a b","meta_info":{"id":"r","finish_reason":"#;
    let end =
        r#","prompt_tokens":3,"completion_tokens":5,"cached_tokens":2,"weight_version":"default"}"#;
    assert_eq!(body(None, None), format!("{start}null{end}}}"));
    // SGLang's FINISH_MATCHED_STR, FINISH_MATCHED_TOKEN and FINISH_LENGTH (schedule_batch.py).
    let stop = r#"{"type":"stop","matched":"\"fox\""}"#;
    assert_eq!(
        body(Some(4), Some(End::Text("\"fox\""))),
        format!(r#"{start}{stop}{end},"index":4}}"#)
    );
    let natural = r#"{"type":"stop","matched":151645}"#;
    assert_eq!(body(None, Some(End::Token(151_645))), format!("{start}{natural}{end}}}"));
    let length = r#"{"type":"length","length":5}"#;
    assert_eq!(body(None, Some(End::Length)), format!("{start}{length}{end}}}"));
}

#[test]
fn generate_tells_scores_as_triples() {
    let scores = |members: &str| {
        let body = format!(r#"{{"text":"a",{members}}}"#);
        GenerateRequest::parse(body.as_bytes()).unwrap().scores
    };
    assert_eq!(scores(r#""return_logprob":false,"top_logprobs_num":2"#), None);
    let plain = Scores { from: None, alternatives: 0, texts: false };
    assert_eq!(scores(r#""return_logprob":true"#), Some(plain));
    assert_eq!(scores(r#""return_logprob":true,"logprob_start_len":-1"#), Some(plain));
    let all = r#""return_logprob":true,"logprob_start_len":0,"top_logprobs_num":2,
        "return_text_in_logprobs":true"#;
    assert_eq!(scores(all), Some(Scores { from: Some(0), alternatives: 2, texts: true }));

    let mut out = Vec::new();
    push_score(None, 9, None, &mut out);
    push_score(Some(-0.5), 10, Some("\"x"), &mut out);
    assert_eq!(text(out), r#"[null,9,null][-0.500000,10,"\"x"]"#);
}

#[test]
fn adapters_have_a_name_and_a_path() {
    let body = br#"{"lora_name":"a","lora_path":"/x","base_model_name":"m","load_inplace":true}"#;
    let load = LoadAdapter::parse(body).unwrap();
    assert_eq!((&*load.name, &*load.path, load.base.as_deref()), ("a", "/x", Some("m")));
    assert!(load.replaces);
    let missing = Some("missing_required_parameter");
    check(LoadAdapter::parse(br#"{"lora_path":"x"}"#).map(drop), "lora_name", missing);
    check(
        LoadAdapter::parse(br#"{"lora_name":"x","lora_path":""}"#).map(drop),
        "lora_path",
        missing,
    );
    let long = format!(r#"{{"lora_name":"{}","lora_path":"x"}}"#, "x".repeat(2000));
    let code = Some("string_above_max_length");
    check(LoadAdapter::parse(long.as_bytes()).map(drop), "lora_name", code);
    assert_eq!(UnloadAdapter::parse(br#"{"lora_name":"a","lora_int_id":1}"#).unwrap().name, "a");
}
