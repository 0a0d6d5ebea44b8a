//! Bodies that are not streams: answers, model cards, errors; and the client's reading of them.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{ChatRequest, Role};
use llmsim_engine::wire::client::{Answer, ChatBody, Chunk, LimitField, ReportedUsage};
use llmsim_engine::wire::completion::{Choice, Completion};
use llmsim_engine::wire::error::{ApiError, ErrorHeader};
use llmsim_engine::wire::models::{ModelCard, write_list};
use llmsim_engine::wire::sse::End;
use llmsim_engine::wire::usage::{FinishReason, Usage};

fn text(out: Vec<u8>) -> String {
    String::from_utf8(out).unwrap()
}

#[test]
fn a_whole_answer() {
    let mut out = Vec::new();
    let completion = Completion {
        id: "chatcmpl-9",
        created: 1_700_000_000,
        model: "m",
        fingerprint: "fp_x",
        usage: Usage {
            prompt: Tokens::new(8),
            cached: Tokens::ZERO,
            completion: Tokens::new(2),
            reasoning: Tokens::ZERO,
        },
    };
    completion.open(&mut out);
    let choice = Choice {
        index: 0,
        content: Some(br"Hello\n"),
        refusal: None,
        reasoning: None,
        calls: &[],
        logprobs: None,
        token_ids: Some(&[9906, 198]),
        end: End { finish: Some(FinishReason::Length), ..End::default() },
    };
    choice.write(&mut out);
    completion.close(&mut out);
    assert_eq!(
        text(out),
        concat!(
            r#"{"id":"chatcmpl-9","object":"chat.completion","created":1700000000,"model":"m","#,
            r#""choices":[{"index":0,"message":{"role":"assistant","content":"Hello\n","#,
            r#""refusal":null,"annotations":[]},"logprobs":null,"token_ids":[9906,198],"finish_reason":"length"}],"#,
            r#""usage":{"prompt_tokens":8,"completion_tokens":2,"total_tokens":10,"#,
            r#""prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"#,
            r#""completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"#,
            r#""accepted_prediction_tokens":0,"rejected_prediction_tokens":0}},"#,
            r#""service_tier":"default","system_fingerprint":"fp_x"}"#
        )
    );
}

#[test]
fn model_cards_carry_the_fields_of_both_apis() {
    let card = |id| ModelCard {
        id,
        created: 1_700_000_000,
        owned_by: "me",
        max_model_len: 4096,
        adapts: None,
    };
    let mut out = Vec::new();
    card("org/model").write(&mut out);
    let one = text(out);
    assert_eq!(
        one,
        concat!(
            r#"{"id":"org/model","object":"model","created":1700000000,"owned_by":"me","#,
            r#""root":"org/model","parent":null,"max_model_len":4096,"permission":[]}"#
        )
    );
    let mut out = Vec::new();
    write_list([card("org/model"), card("b")], &mut out);
    let list = text(out);
    assert!(list.starts_with(&format!(r#"{{"object":"list","data":[{one},{{"id":"b","#)), "{list}");
    let mut out = Vec::new();
    ModelCard { adapts: Some(("org/model", "/adapters/sql")), ..card("sql") }.write(&mut out);
    let adapter = text(out);
    let where_from = r#""root":"/adapters/sql","parent":"org/model","max_model_len":4096"#;
    assert!(adapter.contains(where_from), "{adapter}");
    let mut out = Vec::new();
    write_list([], &mut out);
    assert_eq!(text(out), r#"{"object":"list","data":[]}"#);
}

/// The refusals that are not about a field of the request: status, code and what else goes out.
#[test]
fn every_refusal_has_all_four_keys() {
    let cases = [
        (ApiError::model_not_found("gpt-9"), 404, Some("model"), Some("model_not_found")),
        (ApiError::unknown_url("POST", "/v1/x"), 404, None, Some("unknown_url")),
        (
            ApiError::method_not_allowed("GET", "/v1/chat/completions", "POST"),
            405,
            None,
            Some("method_not_supported"),
        ),
        (ApiError::body_too_large(10), 413, None, Some("request_too_large")),
        (ApiError::head_too_large(10), 431, None, Some("headers_too_large")),
        (ApiError::url_too_long(10), 414, None, Some("url_too_long")),
        (ApiError::unsupported_media_type("text/xml"), 415, None, Some("unsupported_content_type")),
        (ApiError::missing_api_key(), 401, None, None),
        (ApiError::wrong_api_key("sk-0123456789abcdef"), 401, None, Some("invalid_api_key")),
        (ApiError::request_timeout(30), 408, None, Some("request_timeout")),
        (ApiError::malformed_http("no host."), 400, None, None),
        (ApiError::overloaded(2), 503, None, None),
        (ApiError::internal(), 500, None, None),
        (
            ApiError::context_length_exceeded(4096, 5000, None),
            400,
            Some("messages"),
            Some("context_length_exceeded"),
        ),
    ];
    for (error, status, param, code) in cases {
        assert_eq!(error.status, status, "{error}");
        assert_eq!(error.param.as_deref(), param, "{error}");
        assert_eq!(error.code, code, "{error}");
        let body = text(error.body());
        let quoted = |value: Option<&str>| value.map_or("null".to_owned(), |v| format!("\"{v}\""));
        assert!(
            body.ends_with(&format!(
                r#","type":"{}","param":{},"code":{}}}}}"#,
                error.kind,
                quoted(param),
                quoted(code)
            )),
            "{body}"
        );
        let read = Chunk::parse(body.as_bytes()).unwrap().error.unwrap();
        assert_eq!(read.message, error.message);
        assert_eq!(read.code.as_deref(), code);
    }
}

#[test]
fn headers_that_belong_to_a_refusal() {
    let error = ApiError::method_not_allowed("GET", "/v1/chat/completions", "POST");
    assert_eq!(error.header, Some(ErrorHeader::Allow("POST")));
    assert_eq!(ApiError::overloaded(2).header, Some(ErrorHeader::RetryAfter { seconds: 2 }));
}

/// LiteLLM raises ContextWindowExceededError on these words.
#[test]
fn a_long_prompt_is_refused_in_the_words_that_clients_know() {
    let alone = ApiError::context_length_exceeded(4096, 5000, None).message;
    assert!(alone.starts_with("This model's maximum context length is 4096 tokens."), "{alone}");
    assert!(alone.contains("5000"), "{alone}");
    let both = ApiError::context_length_exceeded(4096, 4000, Some(100)).message;
    assert!(both.starts_with("This model's maximum context length is 4096 tokens."), "{both}");
    assert!(both.contains("4100") && both.contains("4000 in the messages"), "{both}");
    assert!(both.contains("100 in the completion"), "{both}");
    // It does not contradict itself, and speaks of what was sent.
    let full = ApiError::context_length_exceeded_by("input", 4096, 4096, None);
    assert_eq!(full.param.as_deref(), Some("input"));
    let words = "your input resulted in 4096 tokens, which leaves none for an answer.";
    assert!(full.message.contains(words), "{full}");
}

#[test]
fn what_a_client_typed_is_quoted_in_part_and_escaped() {
    let error = ApiError::model_not_found(&format!("\"\n{}", "é".repeat(10_000)));
    assert!(error.message.len() < 1000, "{}", error.message.len());
    let body = error.body();
    let read = Chunk::parse(&body).unwrap().error.unwrap();
    assert!(read.message.contains("\"\né"), "{}", read.message);
    let key = ApiError::wrong_api_key("sk-very-secret-key-1234").message;
    assert!(key.contains("sk-v***1234") && !key.contains("secret"), "{key}");
    assert!(!ApiError::wrong_api_key("short").message.contains("short"));
    // No cut in the middle of a character.
    assert!(ApiError::wrong_api_key("aéééééééé").message.ends_with(": ***."));
}

#[test]
fn the_clients_body_is_a_request_that_the_server_takes() {
    let messages = [(Role::System, "Be \"brief\".\n"), (Role::User, "[short] é😀\u{1}")];
    let body = ChatBody {
        answer: Answer::StreamWithUsage,
        limit: Some((LimitField::MaxTokens, 64)),
        min_tokens: Some(64),
        ignore_eos: true,
        seed: Some(-7),
        temperature: Some(0.5),
        extra: r#""user":"bench","top_p":1"#,
        ..ChatBody::new("m", &messages)
    };
    let mut out = Vec::new();
    body.write(&mut out);
    let request = ChatRequest::parse(&out).unwrap();
    assert_eq!(request.model, "m");
    let read: Vec<(Role, &str)> =
        request.messages.iter().map(|m| (m.role, m.content.as_ref())).collect();
    assert_eq!(read, messages);
    assert!(request.stream && request.include_usage && request.ignore_eos);
    assert_eq!(request.max_tokens, Some(Tokens::new(64)));
    assert_eq!(request.min_tokens, Tokens::new(64));
    assert_eq!(request.seed, Some(-7));
    assert_eq!(request.user.as_deref(), Some("bench"));

    let mut out = Vec::new();
    let body = ChatBody { answer: Answer::Whole, ..ChatBody::new("m", &messages[1..]) };
    body.write(&mut out);
    assert_eq!(
        text(out),
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"[short] é😀\\u0001\"}]}"
    );
}

/// Chunks as other servers send them, from their documents and issues.
#[test]
fn the_dialects_of_other_servers_are_read() {
    let parse = |data: &'static str| Chunk::parse(data.as_bytes()).unwrap();

    let role = parse(
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    );
    assert!(role.has_role && role.content.as_deref() == Some("") && role.finish.is_none());

    // vLLM: the finish reason rides on the last token, usage absent elsewhere.
    let last = parse(
        r#"{"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop","stop_reason":null}]}"#,
    );
    assert_eq!((last.content.as_deref(), last.finish.as_deref()), (Some("."), Some("stop")));

    let usage = parse(
        r#"{"choices":[],"usage":{"prompt_tokens":5,"total_tokens":12,"completion_tokens":7,
            "prompt_tokens_details":null}}"#,
    );
    assert_eq!(usage.choices, 0);
    assert_eq!(
        usage.usage,
        Some(ReportedUsage { prompt: Some(5), cached: None, completion: Some(7), reasoning: None })
    );

    let reasoning = parse(r#"{"choices":[{"delta":{"reasoning_content":"hm","content":null}}]}"#);
    assert_eq!(reasoning.reasoning.as_deref(), Some("hm"));
    assert_eq!(reasoning.content, None);
    assert_eq!(
        parse(r#"{"choices":[{"delta":{"reasoning":"hm"}}]}"#).reasoning.as_deref(),
        Some("hm")
    );
    assert!(parse(r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#).has_tool_calls);

    let older = parse(r#"{"object":"text_completion","choices":[{"text":"a","index":0}]}"#);
    assert_eq!(older.content.as_deref(), Some("a"));
    let whole = parse(
        r#"{"choices":[{"message":{"role":"assistant","content":"a\nb"},"finish_reason":"length"}]}"#,
    );
    assert_eq!(whole.content.as_deref(), Some("a\nb"));

    // vLLM's numbers, a bare string, a null.
    let error =
        parse(r#"{"error":{"message":"gone","type":"NotFoundError","param":"model","code":404}}"#);
    let error = error.error.unwrap();
    assert_eq!((error.message.as_ref(), error.code.as_deref()), ("gone", Some("404")));
    assert_eq!(parse(r#"{"error":"Unauthorized"}"#).error.unwrap().message, "Unauthorized");
    assert_eq!(parse(r#"{"error":null,"choices":[]}"#).error, None);

    // Odd types count as absent.
    assert_eq!(parse(r#"{"choices":5,"usage":"x"}"#), Chunk::default());
    assert_eq!(parse(r#"{"choices":[7,{"delta":1}]}"#).content, None);
}

#[test]
fn what_is_no_chunk_is_told_in_one_line() {
    let deep = "[".repeat(100_000);
    for data in ["", "[DONE]", "[1]", "{", "{\"choices\":[}", "<html>", deep.as_str()] {
        let error = Chunk::parse(data.as_bytes()).unwrap_err();
        assert!(!error.0.is_empty() && !error.0.contains('\n'), "{data:.20}: {error}");
    }
}

#[test]
fn a_limit_of_more_than_32_bits_is_not_told_as_another_number() {
    let told = |limit| ApiError::context_length_exceeded(64, 8, Some(limit)).message;
    assert!(
        told(100).contains("you requested 108 tokens (8 in the messages, 100 in the completion)")
    );
    let huge = told(u32::MAX);
    assert!(huge.contains("8 in the messages, 4294967295 or more in the completion"), "{huge}");
}
