//! Streams and whole answers, one at a time.

use llmsim_engine::config::{self, Source};

use crate::client::{Client, content_of, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

#[test]
fn a_stream_is_role_tokens_finish_usage_and_done() {
    let server = fixture::start();
    for model in ["instant", "org/paced", "batched"] {
        let mut client = Client::new(&server);
        let response = client.chat(&format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}],"stream":true,
                "stream_options":{{"include_usage":true}}}}"#
        ));
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("text/event-stream; charset=utf-8"));
        assert_eq!(response.header("cache-control"), Some("no-cache"));
        let events = response.events();
        // Role, eight tokens, finish, usage, the end.
        assert_eq!(events.len(), 1 + 8 + 1 + 1 + 1, "{model}: {events:#?}");
        let text: String = events[1..9].iter().map(|event| content_of(event)).collect();
        assert_eq!(text, DEFAULT_TEXT);
        assert!(events[9].contains(r#""finish_reason":"stop""#));
        assert!(events[10].contains(r#""choices":[]"#));
        // "Hello" as a user's message: 1 token, 4 around it, 3 before the answer.
        let usage = r#""usage":{"prompt_tokens":8,"completion_tokens":8,"total_tokens":16"#;
        assert!(events[10].contains(usage), "{}", events[10]);
        assert!(events[..10].iter().all(|event| event.contains(r#""usage":null"#)));
        assert_eq!(events[11], "[DONE]");
    }
}

#[test]
fn continuous_usage_counts_from_the_role_to_the_totals() {
    let server = fixture::start();
    for model in ["instant", "org/paced", "batched"] {
        let mut client = Client::new(&server);
        let response = client.chat(&format!(
            r#"{{"model":"{model}","messages":[{{"role":"user","content":"Hello"}}],"stream":true,
                "stream_options":{{"include_usage":true,"continuous_usage_stats":true}}}}"#
        ));
        let events = response.events();
        // Nothing with the role, then one more with each of eight tokens, and twice the totals.
        let running = [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8];
        assert_eq!(events.len(), running.len() + 1, "{model}: {events:#?}");
        for (event, completion) in events.iter().zip(running) {
            let usage = format!(
                r#""usage":{{"prompt_tokens":8,"completion_tokens":{completion},"total_tokens":{}"#,
                8 + completion
            );
            assert!(event.contains(&usage), "{model}: {event}");
        }
    }
}

#[test]
fn a_whole_answer_says_the_same_as_a_stream() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let response = client.chat(&whole(model, "quotes"));
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/json"))
        );
        let body = response.text();
        let content = "\"content\":\"She said \\\"no\\\\yes\\\"\\nand\\tthen 你好 😀.\"";
        assert!(body.contains(content), "{body}");
        assert!(body.contains(r#""object":"chat.completion""#));
        assert!(body.contains(r#""finish_reason":"stop""#));
        let streamed = client.chat(&streaming(model, "quotes")).streamed_text();
        assert_eq!(streamed, "She said \"no\\yes\"\nand\tthen 你好 😀.");
    }
}

#[test]
fn max_tokens_cuts_and_says_so() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let body = streaming(model, "x").replace("\"stream\"", "\"max_tokens\":3,\"stream\"");
        let response = client.chat(&body);
        assert_eq!(response.streamed_text(), "One two three");
        assert!(response.text().contains(r#""finish_reason":"length""#));
    }
}

#[test]
fn ignore_eos_runs_to_the_limit() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let extra = "\"max_tokens\":20,\"ignore_eos\":true,\"stream\"";
    let response = client.chat(&streaming("batched", "x").replace("\"stream\"", extra));
    let text = response.streamed_text();
    // 8 + 8 + 4 tokens of the same answer.
    assert_eq!(text, format!("{DEFAULT_TEXT}{DEFAULT_TEXT}One two three four"));
    assert!(response.text().contains(r#""finish_reason":"length""#));
}

#[test]
fn min_tokens_puts_off_the_natural_end() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let extra = "\"min_tokens\":11,\"max_tokens\":20,\"stream\"";
        let response = client.chat(&streaming(model, "x").replace("\"stream\"", extra));
        // 8 tokens, and 3 of the same again.
        assert_eq!(response.streamed_text(), format!("{DEFAULT_TEXT}One two three"));
        assert!(response.text().contains(r#""finish_reason":"stop""#));
        // The answer is longer than this already.
        let short = streaming(model, "x").replace("\"stream\"", "\"min_tokens\":2,\"stream\"");
        assert_eq!(client.chat(&short).streamed_text(), DEFAULT_TEXT);
    }
}

#[test]
fn a_stop_string_ends_the_text_before_it_and_its_token_counts() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let mut check = |extra: &str, text: &str, tokens: u32, finish: &str| {
            let extra = format!("{extra},\"stream\"");
            let body = streaming(model, "x").replace("\"stream\"", &extra);
            let streamed = client
                .chat(&body.replace("true}", r#"true,"stream_options":{"include_usage":true}}"#));
            let events = streamed.events();
            // Role, one chunk for each token, finish, usage, the end.
            assert_eq!(events.len(), 4 + tokens as usize, "{model} {extra}: {events:#?}");
            let said: String = events[1..=tokens as usize].iter().map(|e| content_of(e)).collect();
            assert_eq!(said, text, "{model} {extra}");
            let finish = format!(r#""finish_reason":"{finish}""#);
            assert!(events[tokens as usize + 1].contains(&finish), "{events:#?}");
            // "x" as a user's message is 8 tokens.
            let usage = format!(r#""usage":{{"prompt_tokens":8,"completion_tokens":{tokens},"#);
            assert!(events[tokens as usize + 2].contains(&usage), "{events:#?}");

            let whole = client.chat(&body.replace("\"stream\":true", "\"stream\":false"));
            for part in [&format!(r#""content":"{text}""#), &finish, &usage] {
                assert!(whole.text().contains(part), "{}", whole.text());
            }
        };
        check(r#""stop":"e fo""#, "One two thre", 4, "stop");
        check(r#""stop":["nothing","!"]"#, DEFAULT_TEXT, 8, "stop");
        check(r#""stop":["six","e fo"],"max_tokens":3"#, "One two three", 3, "length");
        check(r#""stop":"e fo","max_tokens":4"#, "One two thre", 4, "stop");
        check(r#""stop":"One""#, "", 1, "stop");
        let kept = r#""stop":"e fo","include_stop_str_in_output":true"#;
        check(kept, "One two three fo", 4, "stop");
        // Answers that do not end by themselves do stop at a stop string.
        let again = r#""stop":".One two","ignore_eos":true,"max_tokens":2000"#;
        check(again, "One two three four five six seven", 10, "stop");
        let late = r#""stop":"three","min_tokens":3,"max_tokens":100,"ignore_eos":true"#;
        check(late, &format!("{DEFAULT_TEXT}One two "), 11, "stop");
    }
}

#[test]
fn a_stream_holds_back_what_may_begin_a_stop_string() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let extra = r#""stop":[" two three five"],"stream""#;
    let response = client.chat(&streaming("org/paced", "x").replace("\"stream\"", extra));
    let events = response.events();
    let pieces: Vec<String> = events[1..9].iter().map(|event| content_of(event)).collect();
    // " four" shows that it was something else; " f" might still have begun " five".
    assert_eq!(pieces, ["One", "", "", " two three four", " five", " six", " seven", "."]);
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_before_the_first_byte_of_a_stream() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let response = client.chat(&streaming("batched", &"word ".repeat(5000)));
    assert_eq!(response.status, 400);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert!(response.text().contains("maximum context length is 4096 tokens"));
    assert!(response.text().contains(r#""code":"context_length_exceeded""#));
    // Over 64 KiB: read by a helper, with the same result; the connection lives on.
    let long = client.chat(&streaming("batched", &"word ".repeat(50_000)));
    assert_eq!(long.status, 400);
    assert!(long.text().contains(r#""code":"context_length_exceeded""#));
    assert_eq!(client.chat(&streaming("instant", "x")).streamed_text(), DEFAULT_TEXT);
}

#[test]
fn a_long_prompt_is_answered_like_a_short_one() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let response = client.chat(&streaming("instant", &"word ".repeat(60_000)));
    assert_eq!(response.streamed_text(), DEFAULT_TEXT);
}

#[test]
fn a_second_turn_finds_the_first_in_the_prefix_cache() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let question = "word ".repeat(100);
    let cached = |body: &str| {
        let (_, rest) = body.split_once(r#""cached_tokens":"#).unwrap();
        rest.split(',').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(cached(client.chat(&whole("batched", &question)).text()), 0);
    // 4 + 101 tokens and 3 before the answer of 8: 116, of which 7 blocks of 16 are full. What
    // follows differs from block 7 on, and the last block of a prompt is never taken as cached.
    let second = format!(
        r#"{{"model":"batched","messages":[{{"role":"user","content":"{question}"}},
            {{"role":"assistant","content":"{DEFAULT_TEXT}"}},
            {{"role":"user","content":"And now?"}}]}}"#
    );
    assert_eq!(cached(client.chat(&second).text()), 112);
    // All jobs are over, so the cache can be forgotten.
    client.send("POST /reset_prefix_cache HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    assert_eq!(cached(client.chat(&second).text()), 0);
}

#[test]
fn the_head_of_a_stream_comes_before_its_first_token() {
    // Gateways time out on headers and on the first byte separately. A prompt of 10,000 tokens takes
    // this model almost three hours: the head must not wait for it.
    let server = fixture::start_with(|settings| {
        let models = "
version: 1
models:
  - name: slow
    engine: fixed_rate
    context_length: 100000
    performance: { prefill_tokens_per_second: 1, decode_tokens_per_second: 1 }
";
        let (models, responses) = (
            Source::new("m", models),
            Source::new(
                "r",
                "version: 1
default: { content: hi }
",
            ),
        );
        settings.config = config::load(&models, &responses).unwrap();
    });
    let mut client = Client::new(&server);
    client.post("/v1/chat/completions", &streaming("slow", &"word ".repeat(10_000)));
    let (status, _) = client.head();
    assert_eq!(status, 200);
    assert_eq!(server.totals().tokens, 0, "the head came with the first token");
}
