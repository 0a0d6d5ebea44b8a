//! Embeddings, SGLang's `/generate`, adapters: what is taken, what is refused, and their bodies.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::embeddings::{EmbeddingRequest, Encoding, write_body, write_vector};
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
    assert_eq!(request.inputs, [Input::Text("a".into())]);
    assert_eq!((request.encoding, request.dimensions), (Encoding::Float, None));
    let request = parse(
        r#"{"model":"m","input":[[1,2],[3]],"encoding_format":"base64","dimensions":256,
            "user":"u","truncate_prompt_tokens":-1}"#,
    );
    assert_eq!(request.inputs, [Input::Ids(vec![1, 2]), Input::Ids(vec![3])]);
    assert_eq!((request.encoding, request.dimensions), (Encoding::Base64, Some(256)));
}

#[test]
fn embeddings_refuse_what_is_none() {
    for (members, param, code) in [
        (r#""x":1"#, "input", Some("missing_required_parameter")),
        (r#""input":"""#, "input", Some("empty_string")),
        (r#""input":[]"#, "input", Some("empty_array")),
        (r#""input":["a",""]"#, "input[1]", Some("empty_string")),
        (r#""input":{}"#, "input", Some("invalid_type")),
        (r#""input":"a","dimensions":0"#, "dimensions", Some("integer_below_min_value")),
        (r#""input":"a","dimensions":1537"#, "dimensions", Some("integer_above_max_value")),
        (r#""input":"a","encoding_format":"hex""#, "encoding_format", Some("invalid_value")),
    ] {
        let body = format!(r#"{{"model":"m",{members}}}"#);
        check(EmbeddingRequest::parse(body.as_bytes(), 1536).map(drop), param, code);
    }
    let many = format!(r#"{{"model":"m","input":[{}"a"]}}"#, r#""a","#.repeat(2048));
    let code = Some("array_above_max_length");
    check(EmbeddingRequest::parse(many.as_bytes(), 1536).map(drop), "input", code);
}

#[test]
fn vectors_are_numbers_or_little_endian_floats_in_base64() {
    let vector = [0.5, -1.0, 0.25];
    let mut out = Vec::new();
    write_vector(0, &vector, Encoding::Float, &mut out);
    assert_eq!(text(out), r#"{"object":"embedding","index":0,"embedding":[0.5,-1,0.25]}"#);
    let mut out = Vec::new();
    // Python: base64.b64encode(struct.pack("<3f", 0.5, -1, 0.25))
    write_vector(1, &vector, Encoding::Base64, &mut out);
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
        (r#"{"text":"a","image_data":"x"}"#, "image_data", Some("invalid_value")),
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
