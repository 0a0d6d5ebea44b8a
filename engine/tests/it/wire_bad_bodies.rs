//! Chat requests that must be refused: what each answer says. Status, param and code are OpenAI's
//! (measured or quoted, see the API contract); of the message only the words that clients and
//! people look for.

use llmsim_engine::wire::chat::ChatRequest;
use llmsim_engine::wire::error::ApiError;

struct Case {
    body: Vec<u8>,
    param: Option<&'static str>,
    code: Option<&'static str>,
    words: &'static str,
}

#[track_caller]
fn refused(body: &[u8]) -> ApiError {
    match ChatRequest::parse(body) {
        Ok(request) => {
            panic!("taken: {}\nas {request:?}", String::from_utf8_lossy(body))
        }
        Err(error) => error,
    }
}

fn check(case: &Case) {
    let error = refused(&case.body);
    let shown = String::from_utf8_lossy(&case.body[..case.body.len().min(300)]).into_owned();
    assert_eq!(error.status, 400, "{shown}\n{error}");
    assert_eq!(error.kind, "invalid_request_error", "{shown}\n{error}");
    assert_eq!(error.param.as_deref(), case.param, "{shown}\n{error}");
    assert_eq!(error.code, case.code, "{shown}\n{error}");
    assert!(
        error.message.contains(case.words),
        "{shown}\nsays: {}\nwant: {}",
        error.message,
        case.words
    );
    assert!(!error.message.contains('\n'), "one line: {:?}", error.message);
}

/// A whole body, not tied to a field: null param, null code.
fn malformed(body: impl AsRef<[u8]>) -> Case {
    Case {
        body: body.as_ref().to_vec(),
        param: None,
        code: None,
        words: "could not parse the JSON",
    }
}

/// A good request with `members` added.
fn with(
    members: &str,
    param: impl Into<Option<&'static str>>,
    code: impl Into<Option<&'static str>>,
    words: &'static str,
) -> Case {
    let body =
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}],{members}}}"#);
    let body = body.replace("LONG", &"é".repeat(129));
    Case { body: body.into_bytes(), param: param.into(), code: code.into(), words }
}

/// A request with these messages.
fn messages(
    messages: &str,
    param: &'static str,
    code: impl Into<Option<&'static str>>,
    words: &'static str,
) -> Case {
    let body = format!(r#"{{"model":"m","messages":{messages}}}"#);
    Case { body: body.into_bytes(), param: Some(param), code: code.into(), words }
}

#[test]
fn bodies_that_are_not_json() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let cases = [
        malformed(""),
        malformed(" \r\n\t"),
        malformed("{"),
        malformed("hello"),
        malformed(r#"{"model":"m","messages":[{"role":"user","content":"hi"}"#),
        malformed(r#"{"model":"m" "messages":[]}"#),
        malformed(r#"{"model":"m",}"#),
        malformed(r#"{'model':'m'}"#),
        malformed(r#"{"model":"m","messages":[{"role":"user","content":"hi"}]} trailing"#),
        malformed(r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}{}"#),
        malformed(r#"{"model":"m","messages":[],"temperature":NaN}"#),
        malformed(r#"{"model":"m","messages":[],"temperature":Infinity}"#),
        malformed(r#"{"model":"m","messages":[],"temperature":01}"#),
        malformed(r#"{"model":"m","messages":[],"seed":1e400}"#),
        malformed(r#"{"model":"m","messages":[],"unknown":tru}"#),
        malformed(r#"{"model":"\ud800","messages":[]}"#),
        malformed(r#"{"model":"m","messages":[{"role":"user","content":"\udc00x"}]}"#),
        malformed(r#"{"model":"\x41","messages":[]}"#),
        malformed("{\"model\":\"a\u{1}b\",\"messages\":[]}"),
        malformed("{\"model\":\"a\nb\",\"messages\":[]}"),
        malformed(b"{\"model\":\"\xff\",\"messages\":[]}"),
        malformed(b"{\"model\":\"m\",\"unknown\":\"\xc3\x28\",\"messages\":[]}"),
        malformed(b"\xef\xbb\xbf{\"model\":\"m\"}"),
        malformed(deep("[", "]")),
        malformed(format!(r#"{{"model":"m","unknown":{}}}"#, deep("[", "]"))),
        malformed(format!(r#"{{"model":{},"messages":[]}}"#, deep("[", "]"))),
        malformed(format!(r#"{{"model":"m","messages":{}}}"#, deep("{\"a\":", "}"))),
        malformed(format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":{}}}]}}"#,
            deep("[", "]")
        )),
        malformed(format!(r#"{{"model":"m","messages":[],"tools":{}}}"#, deep("[", ""))),
        malformed(r#"{"model":"m","model":"n","messages":[{"role":"user"}]}"#),
        malformed(r#"{"model":"m","messages":[{"role":"user","role":"user"}]}"#),
    ];
    cases.iter().for_each(check);
}

#[test]
fn bodies_that_are_no_object() {
    for (body, got) in [
        ("[]", "an array"),
        ("[\"model\"]", "an array"),
        ("\"text\"", "a string"),
        ("17", "an integer"),
        ("1.5", "a decimal number"),
        ("null", "null"),
        (" true ", "a boolean"),
    ] {
        let error = refused(body.as_bytes());
        assert_eq!((error.status, error.param.as_deref()), (400, None), "{body}");
        assert_eq!(error.code, Some("invalid_type"), "{body}");
        assert!(error.message.contains(got), "{body}: {}", error.message);
    }
}

#[test]
fn a_model_must_be_named() {
    for body in [
        r#"{}"#,
        r#"{"messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":null,"messages":[{"role":"user","content":"hi"}]}"#,
        r#"{"model":"","messages":[{"role":"user","content":"hi"}]}"#,
    ] {
        let error = refused(body.as_bytes());
        assert_eq!((error.status, error.param, error.code), (400, None, None), "{body}");
        assert!(error.message.contains("you must provide a model"), "{}", error.message);
    }
    check(&Case {
        body: br#"{"model":4,"messages":[{"role":"user","content":"hi"}]}"#.to_vec(),
        param: Some("model"),
        code: Some("invalid_type"),
        words: "Invalid type for 'model': expected a string, but got an integer instead.",
    });
}

#[test]
fn messages_are_checked_one_by_one() {
    let type_error = "invalid_type";
    let missing = "missing_required_parameter";
    let cases = [
        Case {
            body: br#"{"model":"m"}"#.to_vec(),
            param: Some("messages"),
            code: Some(missing),
            words: "Missing required parameter: 'messages'.",
        },
        messages("null", "messages", missing, "'messages'"),
        messages("[]", "messages", "empty_array", "empty array"),
        messages(
            "\"hi\"",
            "messages",
            type_error,
            "Invalid type for 'messages': expected an array of objects, but got a string instead.",
        ),
        messages("{}", "messages", type_error, "but got an object"),
        messages("[\"hi\"]", "messages[0]", type_error, "expected an object, but got a string"),
        messages("[null]", "messages[0]", type_error, "but got null"),
        messages("[{}]", "messages[0].role", missing, "'messages[0].role'"),
        messages(r#"[{"content":"x"}]"#, "messages[0].role", missing, "'messages[0].role'"),
        messages(r#"[{"role":null}]"#, "messages[0].role", missing, "'messages[0].role'"),
        messages(r#"[{"role":1}]"#, "messages[0].role", type_error, "a string, but got an integer"),
        messages(
            r#"[{"role":"user","content":"x"},{"role":"robot","content":"x"}]"#,
            "messages[1].role",
            "invalid_value",
            "Invalid value: 'robot'. Supported values are: 'system', 'assistant', 'user', \
             'function', 'tool', and 'developer'.",
        ),
        messages(
            r#"[{"role":"user","content":5}]"#,
            "messages[0].content",
            type_error,
            "expected one of a string or array of objects, but got an integer instead.",
        ),
        messages(
            r#"[{"role":"user","content":true}]"#,
            "messages[0].content",
            type_error,
            "but got a boolean",
        ),
        messages(
            r#"[{"role":"user","content":{"type":"text"}}]"#,
            "messages[0].content",
            type_error,
            "but got an object",
        ),
        messages(
            r#"[{"role":"user","content":[]}]"#,
            "messages[0].content",
            "empty_array",
            "empty array",
        ),
        messages(
            r#"[{"role":"user","content":["hi"]}]"#,
            "messages[0].content[0]",
            type_error,
            "expected an object, but got a string",
        ),
        messages(
            r#"[{"role":"user","content":[{"text":"hi"}]}]"#,
            "messages[0].content[0].type",
            missing,
            "'messages[0].content[0].type'",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text"}]}]"#,
            "messages[0].content[1].text",
            missing,
            "'messages[0].content[1].text'",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"text","text":7}]}]"#,
            "messages[0].content[0].text",
            type_error,
            "expected a string, but got an integer instead",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"smell"}]}]"#,
            "messages[0].content[0].type",
            "invalid_value",
            "'smell'",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"text","text":"see"},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]"#,
            "messages[0].content[1].type",
            "invalid_value",
            "'image_url' is not supported",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":""}}]}]"#,
            "messages[0].content[0].type",
            "invalid_value",
            "'input_audio' is not supported",
        ),
        messages(
            r#"[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]"#,
            "messages[0].content[0].type",
            "invalid_value",
            "'file' is not supported",
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn fields_of_the_wrong_type() {
    let code = "invalid_type";
    let cases = [
        with(
            r#""temperature":"hot""#,
            "temperature",
            code,
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
        with(
            r#""max_tokens":"5""#,
            "max_tokens",
            code,
            "expected an integer, but got a string instead.",
        ),
        with(r#""max_tokens":1.5"#, "max_tokens", code, "but got a decimal number instead."),
        with(r#""max_completion_tokens":true"#, "max_completion_tokens", code, "a boolean"),
        with(r#""n":[1]"#, "n", code, "but got an array"),
        with(r#""top_p":{}"#, "top_p", code, "but got an object"),
        with(r#""presence_penalty":"1""#, "presence_penalty", code, "but got a string"),
        with(r#""frequency_penalty":false"#, "frequency_penalty", code, "but got a boolean"),
        with(r#""logprobs":1"#, "logprobs", code, "expected a boolean, but got an integer"),
        with(r#""logprobs":true,"top_logprobs":"2""#, "top_logprobs", code, "an integer"),
        with(r#""seed":1.5"#, "seed", code, "expected an integer, but got a decimal number"),
        with(r#""seed":"7""#, "seed", code, "but got a string"),
        with(r#""user":5"#, "user", code, "expected a string, but got an integer"),
        with(r#""stream":"yes""#, "stream", code, "expected a boolean, but got a string"),
        with(r#""stream":1"#, "stream", code, "expected a boolean, but got an integer"),
        with(r#""stream":true,"stream_options":[]"#, "stream_options", code, "an object"),
        with(
            r#""stream":true,"stream_options":{"include_usage":"true"}"#,
            "stream_options.include_usage",
            code,
            "expected a boolean",
        ),
        with(r#""stop":5"#, "stop", code, "string"),
        with(r#""stop":["a",5]"#, "stop[1]", code, "expected a string, but got an integer"),
        with(r#""logit_bias":[]"#, "logit_bias", code, "expected an object"),
        with(r#""logit_bias":{"5":"x"}"#, "logit_bias.5", code, "expected a decimal"),
        with(r#""metadata":"x""#, "metadata", code, "expected an object"),
        with(r#""store":"x""#, "store", code, "expected a boolean"),
        with(r#""service_tier":1"#, "service_tier", code, "expected a string"),
        with(r#""tools":"x""#, "tools", code, "expected an array of objects"),
        with(r#""tools":[1]"#, "tools[0]", code, "expected an object"),
        with(r#""response_format":"json""#, "response_format", code, "expected an object"),
        with(r#""ignore_eos":"true""#, "ignore_eos", code, "expected a boolean"),
        with(r#""min_tokens":"1""#, "min_tokens", code, "expected an integer"),
        with(r#""priority":"high""#, "priority", code, "expected an integer"),
        with(r#""cache_salt":5"#, "cache_salt", code, "expected a string"),
        with(r#""request_id":5"#, "request_id", code, "expected a string"),
        with(
            r#""request_id":"LONG""#,
            "request_id",
            "string_above_max_length",
            "maximum length 128, but got a string with length 129",
        ),
    ];
    cases.iter().for_each(check);
}

#[test]
fn fields_out_of_range() {
    let (int_min, int_max) = ("integer_below_min_value", "integer_above_max_value");
    let (dec_min, dec_max) = ("decimal_below_min_value", "decimal_above_max_value");
    let long_name =
        format!(r#""tools":[{{"type":"function","function":{{"name":"{}"}}}}]"#, "x".repeat(65));
    let long_salt = format!(r#""cache_salt":"{}""#, "s".repeat(129));
    let many_tools = format!(
        r#""tools":[{}]"#,
        vec![r#"{"type":"function","function":{"name":"f"}}"#; 129].join(",")
    );
    let cases = [
        with(
            r#""max_tokens":0"#,
            "max_tokens",
            int_min,
            "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0",
        ),
        with(r#""max_tokens":-5"#, "max_tokens", int_min, "got -5"),
        with(r#""max_completion_tokens":0"#, "max_completion_tokens", int_min, ">= 1"),
        with(r#""n":0"#, "n", int_min, ">= 1, but got 0"),
        with(r#""n":129"#, "n", int_max, "<= 128, but got 129"),
        with(r#""temperature":-0.1"#, "temperature", dec_min, ">= 0, but got -0.1"),
        with(
            r#""temperature":2.1"#,
            "temperature",
            dec_max,
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.1",
        ),
        with(r#""top_p":1.01"#, "top_p", dec_max, "<= 1"),
        with(r#""top_p":-1"#, "top_p", dec_min, ">= 0"),
        with(r#""presence_penalty":2.5"#, "presence_penalty", dec_max, "<= 2"),
        with(r#""frequency_penalty":-2.5"#, "frequency_penalty", dec_min, ">= -2"),
        with(r#""logprobs":true,"top_logprobs":21"#, "top_logprobs", int_max, "<= 20"),
        with(r#""logprobs":true,"top_logprobs":-1"#, "top_logprobs", int_min, ">= 0"),
        with(r#""seed":9223372036854775808"#, "seed", int_max, "<= 9223372036854775807"),
        with(r#""seed":9223372036854775808"#, "seed", int_max, "but got 9223372036854775808"),
        // 2^64 and 2^70: what is told is what was sent, never other digits.
        with(
            r#""seed":18446744073709551616"#,
            "seed",
            int_max,
            "<= 9223372036854775807, but got an integer of more than 64 bits instead",
        ),
        with(
            r#""max_tokens":1180591620717411303424"#,
            "max_tokens",
            int_max,
            "but got an integer of more than 64 bits instead",
        ),
        with(
            r#""seed":-99999999999999999999999"#,
            "seed",
            int_min,
            ">= -9223372036854775808, but got an integer of more than 64 bits instead",
        ),
        with(r#""user":1180591620717411303424"#, "user", "invalid_type", "but got an integer"),
        with(
            r#""temperature":1180591620717411303424"#,
            "temperature",
            dec_max,
            "1.1805916207174113e21",
        ),
        with(r#""stop":["a","b","c","d","e"]"#, "stop", "array_above_max_length", "length 5"),
        with(r#""stop":"""#, "stop", "empty_string", "empty string"),
        with(r#""stop":["a",""]"#, "stop[1]", "empty_string", "empty string"),
        with(r#""logit_bias":{"5":101}"#, "logit_bias.5", dec_max, "<= 100"),
        with(r#""logit_bias":{"five":1}"#, "logit_bias", "invalid_value", "token ids"),
        with(r#""tools":[]"#, "tools", "empty_array", "empty array"),
        with(&many_tools, "tools", "array_above_max_length", "maximum length 128"),
        with(&long_name, "tools[0].function.name", "string_above_max_length", "maximum length 64"),
        with(
            r#""tools":[{"type":"function","function":{"name":"no spaces"}}]"#,
            "tools[0].function.name",
            "invalid_value",
            "pattern",
        ),
        with(r#""min_tokens":-1"#, "min_tokens", int_min, ">= 0"),
        with(
            r#""max_tokens":5,"min_tokens":6"#,
            "min_tokens",
            None,
            "min_tokens must be less than or equal to max_tokens=5, got 6",
        ),
        with(r#""top_k":-2"#, "top_k", int_min, ">= -1"),
        with(r#""min_p":1.5"#, "min_p", dec_max, "<= 1"),
        with(r#""repetition_penalty":0"#, "repetition_penalty", "invalid_value", "above 0"),
        with(r#""priority":3000000000"#, "priority", int_max, "<= 2147483647"),
        with(r#""stream_interval":0"#, "stream_interval", int_min, ">= 1"),
        with(r#""cache_salt":"""#, "cache_salt", "empty_string", "empty string"),
        with(r#""cache_salt":"a/b""#, "cache_salt", "invalid_value", "must not contain"),
        with(&long_salt, "cache_salt", "string_above_max_length", "maximum length 128"),
    ];
    cases.iter().for_each(check);
}

#[test]
fn fields_that_need_or_exclude_each_other() {
    let missing = "missing_required_parameter";
    let a_tool = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;
    let unknown_choice =
        format!(r#"{a_tool},"tool_choice":{{"type":"function","function":{{"name":"g"}}}}"#);
    let odd_choice = format!(r#"{a_tool},"tool_choice":"maybe""#);
    let nameless_choice = format!(r#"{a_tool},"tool_choice":{{"type":"function"}}"#);
    let cases = [
        with(
            r#""stream_options":{"include_usage":true}"#,
            "stream_options",
            None,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled",
        ),
        with(r#""stream":false,"stream_options":{}"#, "stream_options", None, "only allowed when"),
        with(r#""top_logprobs":2"#, "top_logprobs", None, "only allowed when 'logprobs'"),
        with(r#""logprobs":false,"top_logprobs":0"#, "top_logprobs", None, "only allowed when"),
        with(r#""tool_choice":"auto""#, "tool_choice", None, "only allowed when 'tools'"),
        with(&odd_choice, "tool_choice", "invalid_value", "'none', 'auto', and 'required'"),
        with(&nameless_choice, "tool_choice.function", missing, "'tool_choice.function'"),
        with(&unknown_choice, "tool_choice", "invalid_value", "not among 'tools'"),
        with(r#""tools":[{}]"#, "tools[0].type", missing, "'tools[0].type'"),
        with(r#""tools":[{"type":"web"}]"#, "tools[0].type", "invalid_value", "'function'"),
        with(
            r#""tools":[{"type":"function"}]"#,
            "tools[0].function",
            missing,
            "'tools[0].function'",
        ),
        with(
            r#""tools":[{"type":"function","function":{}}]"#,
            "tools[0].function.name",
            missing,
            "'tools[0].function.name'",
        ),
        with(r#""response_format":{}"#, "response_format.type", missing, "response_format.type"),
        with(
            r#""response_format":{"type":"xml"}"#,
            "response_format.type",
            "invalid_value",
            "'text', 'json_object', and 'json_schema'",
        ),
        with(
            r#""response_format":{"type":"json_schema"}"#,
            "response_format.json_schema",
            missing,
            "'response_format.json_schema'",
        ),
        with(
            r#""response_format":{"type":"json_schema","json_schema":{"schema":{}}}"#,
            "response_format.json_schema.name",
            missing,
            "'response_format.json_schema.name'",
        ),
        with(
            r#""add_generation_prompt":true,"continue_final_message":true"#,
            "continue_final_message",
            None,
            "add_generation_prompt",
        ),
        with(r#""stream":true,"prompt_logprobs":1"#, "prompt_logprobs", None, "not enabled"),
        with(r#""prompt_logprobs":21"#, "prompt_logprobs", "integer_above_max_value", "<= 20"),
        with(r#""prompt_logprobs":-1"#, "prompt_logprobs", "integer_below_min_value", ">= 0"),
        with(
            r#""truncate_prompt_tokens":0"#,
            "truncate_prompt_tokens",
            "integer_below_min_value",
            ">= 1",
        ),
        with(r#""truncation_side":"middle""#, "truncation_side", "invalid_value", "'right'"),
        with(r#""stream_interval":0"#, "stream_interval", "integer_below_min_value", ">= 1"),
    ];
    cases.iter().for_each(check);
}

#[test]
fn what_is_not_there_says_so_clearly() {
    let code = "unsupported_parameter";
    let cases = [
        with(r#""response_format":{"type":"structural_tag"}"#, "response_format", code, "yet"),
        with(r#""structured_outputs":{"grammar":"x"}"#, "structured_outputs", code, "yet"),
        with(
            r#""structured_outputs":{"choice":["a"],"regex":"a"}"#,
            "structured_outputs",
            None,
            "cannot both be asked for",
        ),
        with(
            r#""structured_outputs":{"choice":[]}"#,
            "structured_outputs.choice",
            "empty_array",
            "empty",
        ),
        with(
            r#""structured_outputs":{"json":3}"#,
            "structured_outputs.json",
            "invalid_type",
            "an object",
        ),
        with(
            r#""structured_outputs":{"json_object":true},"response_format":{"type":"json_object"}"#,
            "structured_outputs",
            None,
            "cannot both be asked for",
        ),
        with(
            r#""tools":[{"type":"custom","custom":{"name":"c"}}],"tool_choice":"required""#,
            "tool_choice",
            "invalid_value",
            "never called",
        ),
    ];
    cases.iter().for_each(check);
}

/// Only the first fault is told, and OpenAI looks at the fields in its own order, not in the
/// body's.
#[test]
fn the_first_fault_in_openais_order_is_told() {
    check(&with(r#""stop":5,"stream":"x","n":0"#, "n", "integer_below_min_value", "'n'"));
    check(&Case {
        body: br#"{"temperature":9,"messages":[{"role":"x"}],"model":"m"}"#.to_vec(),
        param: Some("messages[0].role"),
        code: Some("invalid_value"),
        words: "'x'",
    });
    // A syntax fault at the end of the body beats every other.
    check(&malformed(r#"{"model":7,"messages":5,"n":0"#));
}
