//! Text completions: what is taken, what is refused, and the bytes of an answer.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::completions::{
    CompletionRequest, ScoredPrompt, ScoredToken, TextBody, TextFrames, write_scored,
};
use llmsim_engine::wire::inputs::Input;
use llmsim_engine::wire::sse::{End, StreamHead};
use llmsim_engine::wire::usage::{FinishReason, Usage};

#[track_caller]
fn taken(members: &str) -> CompletionRequest<'static> {
    let body = format!(r#"{{"model":"m",{members}}}"#).leak();
    CompletionRequest::parse(body.as_bytes()).unwrap_or_else(|error| panic!("{body}\n{error}"))
}

#[track_caller]
fn refused(members: &str, param: &str, code: Option<&str>) {
    let body = format!(r#"{{"model":"m",{members}}}"#);
    let error = CompletionRequest::parse(body.as_bytes()).expect_err(&body);
    assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{body}\n{error}");
    assert_eq!(error.code, code, "{body}\n{error}");
}

fn texts(texts: &[&'static str]) -> Vec<Input<'static>> {
    texts.iter().map(|&text| Input::Text(text.into())).collect()
}

#[test]
fn a_prompt_is_one_text_or_several_or_token_ids() {
    assert_eq!(taken(r#""prompt":"a\nb""#).prompts, texts(&["a\nb"]));
    assert_eq!(taken(r#""prompt":["a","b"]"#).prompts, texts(&["a", "b"]));
    assert_eq!(taken(r#""prompt":[1,2,4294967295]"#).prompts, [Input::Ids(vec![1, 2, u32::MAX])]);
    let lists = [Input::Ids(vec![1, 2]), Input::Ids(vec![3])];
    assert_eq!(taken(r#""prompt":[[1,2],[3]]"#).prompts, lists);
}

#[test]
fn other_prompts_are_refused_where_they_are_wrong() {
    refused(r#""n":1"#, "prompt", Some("missing_required_parameter"));
    refused(r#""prompt":null"#, "prompt", Some("missing_required_parameter"));
    refused(r#""prompt":"""#, "prompt", Some("empty_string"));
    refused(r#""prompt":["a",""]"#, "prompt[1]", Some("empty_string"));
    refused(r#""prompt":[]"#, "prompt", Some("empty_array"));
    refused(r#""prompt":[[]]"#, "prompt[0]", Some("empty_array"));
    refused(r#""prompt":5"#, "prompt", Some("invalid_type"));
    refused(r#""prompt":{}"#, "prompt", Some("invalid_type"));
    refused(r#""prompt":["a",5]"#, "prompt[1]", Some("invalid_type"));
    refused(r#""prompt":[5,"a"]"#, "prompt[1]", Some("invalid_type"));
    refused(r#""prompt":[[5],"a"]"#, "prompt[1]", Some("invalid_type"));
    refused(r#""prompt":[true]"#, "prompt[0]", Some("invalid_type"));
    refused(r#""prompt":[5,1.5]"#, "prompt[1]", Some("invalid_type"));
    refused(r#""prompt":[5,-1]"#, "prompt[1]", Some("integer_below_min_value"));
    refused(r#""prompt":[[1],[2,4294967296]]"#, "prompt[1][1]", Some("integer_above_max_value"));
    // 2^64, and below -2^63.
    refused(r#""prompt":[1,18446744073709551616]"#, "prompt[1]", Some("integer_above_max_value"));
    refused(r#""prompt":[-9223372036854775809]"#, "prompt[0]", Some("integer_below_min_value"));
    let many = format!(r#""prompt":[{}"a"]"#, r#""a","#.repeat(1024));
    refused(&many, "prompt", Some("array_above_max_length"));
    let very_many = format!(r#""prompt":[{}"a"]"#, r#""a","#.repeat(5000));
    refused(&very_many, "prompt", Some("array_above_max_length"));
    refused(r#""prompt":"a","prompt_embeds":"x""#, "prompt_embeds", Some("unsupported_parameter"));
}

#[test]
fn the_limit_is_16_tokens_if_none_is_sent() {
    assert_eq!(taken(r#""prompt":"a""#).max_tokens, Tokens::new(16));
    assert_eq!(taken(r#""prompt":"a","max_tokens":null"#).max_tokens, Tokens::new(16));
    assert_eq!(taken(r#""prompt":"a","max_tokens":7"#).max_tokens, Tokens::new(7));
    refused(r#""prompt":"a","max_tokens":0"#, "max_tokens", Some("integer_below_min_value"));
    // The prompt alone is asked for.
    assert_eq!(taken(r#""prompt":"a","max_tokens":0,"echo":true"#).max_tokens, Tokens::ZERO);
    refused(r#""prompt":"a","min_tokens":17,"max_tokens":16"#, "min_tokens", None);
}

#[test]
fn choices_are_bounded_and_the_best_of_at_least_as_many() {
    assert_eq!(taken(r#""prompt":"a","n":3,"best_of":5"#).choices, 3);
    assert_eq!(taken(r#""prompt":"a","best_of":1,"stream":true"#).choices, 1);
    refused(r#""prompt":"a","n":0"#, "n", Some("integer_below_min_value"));
    refused(r#""prompt":"a","n":129"#, "n", Some("integer_above_max_value"));
    refused(r#""prompt":"a","best_of":21"#, "best_of", Some("integer_above_max_value"));
    refused(r#""prompt":"a","n":3,"best_of":2"#, "best_of", None);
    refused(r#""prompt":"a","best_of":2,"stream":true"#, "best_of", None);
    let prompts = format!(r#""prompt":[{}"a"],"n":128"#, r#""a","#.repeat(16));
    refused(&prompts, "n", None);
}

#[test]
fn other_fields_are_those_of_chat() {
    let request = taken(
        r#""prompt":"a","echo":true,"suffix":"z","logprobs":5,"stop":["x"],"seed":-1,"stream":true,
           "stream_options":{"include_usage":true},"ignore_eos":true,"priority":3,"user":"u",
           "cache_salt":"s","request_id":"r","logit_bias":{"5":1},"temperature":2,"top_k":5"#,
    );
    assert!(request.echo && request.stream && request.include_usage && request.ignore_eos);
    assert_eq!((request.logprobs, request.seed, request.priority), (Some(5), Some(-1), 3));
    assert_eq!(request.suffix.as_deref(), Some("z"));
    assert_eq!(request.stop, ["x"]);
    assert_eq!(request.cache_salt.as_deref(), Some("s"));
    refused(r#""prompt":"a","logprobs":true"#, "logprobs", Some("invalid_type"));
    refused(r#""prompt":"a","logprobs":21"#, "logprobs", Some("integer_above_max_value"));
    refused(r#""prompt":"a","echo":"yes""#, "echo", Some("invalid_type"));
    refused(r#""prompt":"a","temperature":3"#, "temperature", Some("decimal_above_max_value"));
    refused(r#""prompt":"a","stream_options":{}"#, "stream_options", None);
}

const HEAD: StreamHead<'_> = StreamHead {
    id: "cmpl-1",
    created: 1_700_000_000,
    model: "m",
    fingerprint: "fp_x",
    include_usage: false,
};

const USAGE: Usage = Usage {
    prompt: Tokens::new(2),
    cached: Tokens::ZERO,
    completion: Tokens::new(3),
    reasoning: Tokens::ZERO,
};

fn null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

fn ended(reason: FinishReason) -> End<'static> {
    End { finish: Some(reason), ..End::default() }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn chunks_carry_text_and_then_the_reason() {
    let frames = TextFrames::new(&HEAD);
    let mut out = Vec::new();
    frames.open(&mut out);
    out.extend_from_slice(br"a\n");
    frames.close(0, null, &End::default(), &mut out);
    frames.open(&mut out);
    frames.close(1, null, &ended(FinishReason::Length), &mut out);
    let head = r#"data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","system_fingerprint":"fp_x","choices":["#;
    assert_eq!(
        text(out),
        [
            head,
            r#"{"text":"a\n","index":0,"logprobs":null,"finish_reason":null}]}"#,
            "\n\n",
            head,
            r#"{"text":"","index":1,"logprobs":null,"finish_reason":"length"}]}"#,
            "\n\n"
        ]
        .concat()
    );
}

#[test]
fn usage_comes_with_all_chunks_or_with_none() {
    let frames = TextFrames::new(&StreamHead { include_usage: true, ..HEAD });
    let mut out = Vec::new();
    frames.open(&mut out);
    frames.close(0, null, &End::default(), &mut out);
    let first = text(out);
    assert!(first.trim_end().ends_with(r#""finish_reason":null}],"usage":null}"#), "{first}");
    let mut out = Vec::new();
    frames.open(&mut out);
    frames.close(0, null, &End { usage: Some(&USAGE), ..End::default() }, &mut out);
    let counted = text(out);
    assert!(
        counted.contains(r#"}],"usage":{"prompt_tokens":2,"completion_tokens":3,"#),
        "{counted}"
    );
    let mut out = Vec::new();
    frames.usage(&USAGE, &mut out);
    assert!(text(out).contains(r#""choices":[],"usage":{"prompt_tokens":2,"#));
}

#[test]
fn a_body_numbers_its_choices() {
    let mut out = Vec::new();
    let mut body = TextBody::open(&HEAD, &mut out);
    let stopped = End { stop_reason: Some("\n"), ..ended(FinishReason::Stop) };
    body.choice(|out| out.extend_from_slice(b"a"), null, &stopped);
    body.choice(|out| out.extend_from_slice(b"b"), null, &ended(FinishReason::Length));
    body.close(&USAGE);
    let body = text(out);
    assert!(body.starts_with(r#"{"id":"cmpl-1","object":"text_completion","created":1700000000,"#));
    let choices = concat!(
        r#""choices":[{"text":"a","index":0,"logprobs":null,"finish_reason":"stop","stop_reason":"\n"},"#,
        r#"{"text":"b","index":1,"logprobs":null,"finish_reason":"length"}],"usage":{"#
    );
    assert!(body.contains(choices), "{body}");
    assert!(body.ends_with(r#""rejected_prediction_tokens":0}}}"#), "{body}");
}

#[test]
fn scores_are_arrays_side_by_side() {
    let tokens = [
        ScoredToken { piece: "Say", logprob: None, offset: 0 },
        ScoredToken { piece: " one", logprob: Some(-0.25), offset: 3 },
        ScoredToken { piece: "\n", logprob: Some(-2.5), offset: 7 },
    ];
    let likeliest = |piece: &'static str| [(piece, -0.25), (" \"two\"", -1.5)].into_iter();
    // The same bytes wherever an echoed prompt ends.
    for prompt in 0..=tokens.len() {
        let (before, after) = tokens.split_at(prompt);
        let before = ScoredPrompt::new(before.iter().copied(), likeliest);
        let mut out = Vec::new();
        write_scored(Some(&before), after.iter().copied(), likeliest, &mut out);
        assert_eq!(
            text(out),
            concat!(
                r#"{"tokens":["Say"," one","\n"],"token_logprobs":[null,-0.250000,-2.500000],"#,
                r#""top_logprobs":[null,{" one":-0.250000," \"two\"":-1.500000},"#,
                r#"{"\n":-0.250000," \"two\"":-1.500000}],"text_offset":[0,3,7]}"#
            )
        );
    }
    let mut out = Vec::new();
    write_scored(None, tokens[2..].iter().copied(), likeliest, &mut out);
    assert!(text(out).starts_with(r#"{"tokens":["\n"],"token_logprobs":[-2.500000],"#));
}
