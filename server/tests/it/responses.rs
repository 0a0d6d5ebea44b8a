//! OpenAI's `POST /v1/responses`, and what is kept of it.

use crate::client::{Client, Response, post};
use crate::fixture::{self, DEFAULT_TEXT};

fn ask(client: &mut Client, members: &str) -> Response {
    client.post("/v1/responses", &format!("{{{members}}}"));
    client.response()
}

#[track_caller]
fn has(response: &Response, part: &str) {
    assert!(response.text().contains(part), "no {part} in {}", response.text());
}

fn id_of(response: &Response) -> &str {
    let (_, rest) = response.text().split_once(r#"{"id":""#).unwrap();
    rest.split_once('"').unwrap().0
}

#[test]
fn a_whole_response() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let answer = ask(&mut client, &format!(r#""model":"{model}","input":"Hello""#));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(id_of(&answer).starts_with("resp_"));
        has(&answer, r#""object":"response""#);
        has(&answer, r#""status":"completed","incomplete_details":null"#);
        has(&answer, &format!(r#""text":"{DEFAULT_TEXT}"}}]}}],"usage""#));
        has(
            &answer,
            r#""usage":{"input_tokens":8,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0}"#,
        );
        has(&answer, r#""output_tokens":8,"#);
    }
}

#[test]
fn a_stream_is_numbered_from_created_to_completed() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        for (limit, last, said) in [(20, "completed", 8), (3, "incomplete", 3)] {
            let answer = ask(
                &mut client,
                &format!(
                    r#""model":"{model}","input":"Hello","stream":true,"max_output_tokens":{limit}"#
                ),
            );
            let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
            let mut names =
                vec!["created", "in_progress", "output_item.added", "content_part.added"];
            names.extend(vec!["output_text.delta"; said]);
            names.extend(["output_text.done", "content_part.done", "output_item.done", last]);
            assert_eq!(events.len(), names.len(), "{events:#?}");
            for (at, (event, name)) in events.iter().zip(&names).enumerate() {
                let start = format!("event: response.{name}\ndata: {{\"type\":\"response.{name}\"");
                assert!(event.starts_with(&start), "{event}");
                assert!(event.ends_with(&format!(r#","sequence_number":{at}}}"#)), "{event}");
            }
            let status = format!(r#""status":"{last}""#);
            assert!(events[events.len() - 1].contains(&status));
        }
    }
}

#[test]
fn a_stop_string_ends_the_text_and_the_numbers_stay_without_gaps() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let answer = ask(&mut client, r#""model":"batched","input":"x","stream":true,"stop":"e fo""#);
    let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
    for (at, event) in events.iter().enumerate() {
        assert!(event.ends_with(&format!(r#","sequence_number":{at}}}"#)), "{event}");
    }
    assert!(events[events.len() - 1].contains(r#""text":"One two thre"}"#));
    assert!(events[events.len() - 1].contains(r#""status":"completed""#));
}

/// Megabytes that no socket takes at once: every write is cut somewhere, and what was not taken is
/// rendered again.
#[test]
fn a_long_stream_is_whole_wherever_its_writes_are_cut() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let answer = ask(&mut client, r#""model":"instant","input":"[long]","stream":true"#);
    let events: Vec<&str> = answer.text().split_terminator("\n\n").collect();
    assert_eq!(events.len(), 4 + 50_000 + 4);
    let mut text = String::new();
    for (at, event) in events.iter().enumerate() {
        assert!(event.ends_with(&format!(r#","sequence_number":{at}}}"#)), "{event}");
        if let Some((_, delta)) = event.split_once(r#","delta":""#) {
            text.push_str(delta.split_once(r#"","logprobs""#).unwrap().0);
        }
    }
    assert!(events[events.len() - 1].contains(&format!(r#""text":"{text}"}}]}}],"usage""#)));
    // The same as a message.
    client.post(
        "/v1/messages",
        r#"{"model":"instant","max_tokens":60000,"stream":true,
            "messages":[{"role":"user","content":"[long]"}]}"#,
    );
    let message = client.response();
    let deltas = message.text().split(r#"{"type":"text_delta","text":""#).skip(1);
    let said: String = deltas.map(|delta| delta.split_once("\"}}").unwrap().0).collect();
    assert_eq!(said, text);
}

#[test]
fn a_response_can_be_had_again_continued_and_deleted() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let text = "word ".repeat(100);
    let first =
        ask(&mut client, &format!(r#""model":"batched","instructions":"x","input":"{text}""#));
    let id = id_of(&first).to_owned();
    let again = client.get(&format!("/v1/responses/{id}"));
    assert_eq!((again.status, again.text()), (200, first.text()));

    // 109 tokens with instructions of 5, which are not inherited: 104, the 8 that were said and the
    // end of that message, 4 + 1 of "And?" and 3 before the answer.
    let next = ask(
        &mut client,
        &format!(r#""model":"batched","input":"And","previous_response_id":"{id}""#),
    );
    has(&first, r#""input_tokens":113,"#);
    has(&next, r#""input_tokens":125,"#);
    has(&next, &format!(r#""previous_response_id":"{id}""#));

    // By a reference to its item, the same conversation, and so the same prefixes.
    let (_, rest) = first.text().split_once(r#""output":[{"id":""#).unwrap();
    let item = rest.split_once('"').unwrap().0;
    let referred = ask(
        &mut client,
        &format!(
            r#""model":"batched","input":[{{"role":"user","content":"{text}"}},
               {{"type":"item_reference","id":"{item}"}},{{"role":"user","content":"And"}}]"#
        ),
    );
    has(
        &referred,
        r#""input_tokens":125,"input_tokens_details":{"cached_tokens":112,"cache_write_tokens":0}"#,
    );

    client.send(format!("DELETE /v1/responses/{id} HTTP/1.1\r\nHost: h\r\n\r\n"));
    let deleted = client.response();
    assert_eq!(deleted.text(), format!(r#"{{"id":"{id}","object":"response","deleted":true}}"#));
    assert_eq!(client.get(&format!("/v1/responses/{id}")).status, 404);
    let lost = ask(
        &mut client,
        &format!(r#""model":"batched","input":"x","previous_response_id":"{id}""#),
    );
    assert_eq!(lost.status, 400);
    has(&lost, r#""code":"previous_response_not_found""#);
}

#[test]
fn a_response_that_was_made_can_be_had_whole_though_its_stream_broke_off() {
    let server = fixture::start();
    let headers = "Host: h\r\nX-Llmsim-Fault: truncated_event after=2";
    let body = r#"{"model":"instant","input":"Hello","stream":true}"#;
    let mut client = Client::new(&server);
    client.send(post("/v1/responses", body).replace("Host: h", headers));
    assert_eq!(client.head().0, 200);
    let created = String::from_utf8(client.chunk().unwrap()).unwrap();
    let (_, id) = created.split_once("\"id\":\"").unwrap();
    let (id, _) = id.split_once('"').unwrap();
    let kept = Client::new(&server).get(&format!("/v1/responses/{id}"));
    assert_eq!(kept.status, 200, "{}", kept.text());
    has(&kept, &format!(r#""text":"{DEFAULT_TEXT}""#));
}

#[test]
fn what_is_streamed_is_kept_unless_the_client_forbids_it() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for (store, status) in [("true", 200), ("false", 404)] {
        let answer = ask(
            &mut client,
            &format!(r#""model":"org/paced","input":"x","stream":true,"store":{store}"#),
        );
        let kept = client.get(&format!("/v1/responses/{}", id_of(&answer)));
        assert_eq!(kept.status, status, "{}", kept.text());
        if status == 200 {
            has(&kept, r#""status":"completed""#);
        }
    }
}

#[test]
fn refusals_have_openais_form() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let long = format!(r#""model":"batched","input":"{}""#, "word ".repeat(5000));
    for (members, status, words) in [
        (r#""input":"x""#, 400, r#""param":"model""#),
        (r#""model":"none","input":"x""#, 404, r#""code":"model_not_found""#),
        (
            r#""model":"instant","input":[{"type":"item_reference","id":"msg_1"}]"#,
            400,
            "item_not_found",
        ),
        (&long, 400, r#""param":"input","code":"context_length_exceeded""#),
    ] {
        let refused = ask(&mut client, members);
        assert_eq!(refused.status, status, "{}", refused.text());
        has(&refused, words);
    }
}

/// vLLM's retries and gateways send the same header again; neither it nor OpenAI names responses by it.
#[test]
fn a_header_that_comes_twice_names_no_response() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut ask = |input: &str, more: &str| {
        let body = format!(r#"{{"model":"instant","input":"{input}"{more}}}"#);
        let request = post("/v1/responses", &body);
        client.send(request.replace("Host: h", "Host: h\r\nX-Request-Id: same"));
        let answer = client.response();
        assert_eq!(answer.header("x-request-id"), Some("same"));
        answer
    };
    let (first, second) = (ask("x", ""), ask("quotes", ""));
    assert_ne!(id_of(&first), id_of(&second));
    assert!(!id_of(&first).contains("same"), "{}", id_of(&first));
    // A name in the body is the client's own choice.
    let named = ask("x", r#","request_id":"mine""#);
    assert_eq!(id_of(&named), "resp_mine");
    let kept = client.get(&format!("/v1/responses/{}", id_of(&first)));
    assert_eq!(kept.text(), first.text());
}

#[test]
fn a_kept_response_is_got_and_deleted_and_nothing_else() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let id = id_of(&ask(&mut client, r#""model":"instant","input":"x""#)).to_owned();
    // The second is OpenAI's for counting, which is not here; it is no id.
    for path in [format!("/v1/responses/{id}"), "/v1/responses/input_tokens".to_owned()] {
        client.post(&path, r#"{"model":"instant","input":"x"}"#);
        let refused = client.response();
        assert_eq!(refused.status, 405, "{}", refused.text());
        assert_eq!(refused.header("allow"), Some("GET, HEAD, DELETE, OPTIONS"));
    }
    // Events of it are not sent again: only those made in the background could be.
    for query in ["?stream=true", "?starting_after=3&stream=True"] {
        let refused = client.get(&format!("/v1/responses/{id}{query}"));
        assert_eq!(refused.status, 400, "{}", refused.text());
        has(&refused, r#""param":"stream","code":"invalid_value""#);
    }
    assert_eq!(client.get(&format!("/v1/responses/{id}?stream=false")).status, 200);
    assert_eq!(client.get("/v1/responses/resp_none?stream=true").status, 404);
}

/// OpenAI's ResponseOutputMessage: a text that a limit cut is incomplete, also where it said itself
/// again.
#[test]
fn what_a_limit_cut_off_counts_in_what_is_kept() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    // A hundred thousand letters twice, as text and escaped, and the borders of 25,000 tokens: 0.4 MB
    // each, of which the client lets one token be said. Of 64 MiB they take more than 200 leave.
    let schema = r#"{"type":"string","minLength":100000}"#;
    let object = format!(
        r#"{{"type":"object","properties":{{"a":{schema}}},"required":["a"],"additionalProperties":false}}"#
    );
    let members = format!(
        r#""model":"instant","input":"x","max_output_tokens":1,"text":{{"format":{{"type":"json_schema","name":"n","strict":true,"schema":{object}}}}}"#
    );
    let mut ids = (0..200).map(|_| id_of(&ask(&mut client, &members)).to_owned());
    let (first, last) = (ids.next().unwrap(), ids.last().unwrap());
    let mut status = |id: &str| client.get(&format!("/v1/responses/{id}")).status;
    assert_eq!((status(&first), status(&last)), (404, 200));
}

#[test]
fn a_limit_leaves_the_last_item_incomplete() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for (limit, extra, status) in
        [(3, "", "incomplete"), (16, r#","ignore_eos":true"#, "incomplete"), (8, "", "completed")]
    {
        for stream in [false, true] {
            let answer = ask(
                &mut client,
                &format!(
                    r#""model":"instant","input":"x","stream":{stream},"max_output_tokens":{limit}{extra}"#
                ),
            );
            let item = format!(
                r#""type":"message","status":"{status}","role":"assistant","content":[{{"type""#
            );
            // In the item's own event and in the response.
            let times = if stream { 2 } else { 1 };
            assert_eq!(answer.text().matches(&item).count(), times, "{}", answer.text());
            if status == "incomplete" {
                has(&answer, r#""incomplete_details":{"reason":"max_output_tokens"}"#);
            }
        }
    }
}

#[test]
fn scores_stand_beside_each_delta_or_beside_the_whole_text() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let members = r#""model":"instant","input":"Hello","top_logprobs":2,
        "include":["message.output_text.logprobs"]"#;
    let whole = ask(&mut client, members);
    // Eight tokens, each with two likeliest, itself the first of them.
    assert_eq!(whole.text().matches(r#""top_logprobs":["#).count(), 8, "{}", whole.text());
    has(&whole, r#""logprobs":[{"token":"One","logprob":-0."#);
    has(&whole, r#""bytes":[79,110,101],"top_logprobs":[{"token":"One","logprob":-0."#);
    let stream = ask(&mut client, &format!(r#""stream":true,{members}"#));
    let deltas = stream.text().lines().filter(|line| line.contains("output_text.delta\""));
    let deltas: Vec<&str> = deltas.collect();
    assert_eq!(deltas.len(), 8);
    for delta in deltas {
        assert_eq!(delta.matches(r#""top_logprobs":[{"token":"#).count(), 1, "{delta}");
        assert!(!delta.contains(r#""bytes""#), "{delta}");
    }
    // Told once: the end of a stream must not hold up others.
    assert!(stream.text().contains(r#""text":"One two three four five six seven.","logprobs":[]"#));
    let plain = ask(&mut client, r#""model":"instant","input":"Hello","top_logprobs":2"#);
    has(&plain, r#""logprobs":[]"#);
}

#[test]
fn the_input_of_a_kept_response_is_listed_in_pages() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let kept = ask(
        &mut client,
        r#""model":"instant","input":[{"role":"user","content":"Hello"},
            {"id":"msg_own","type":"message","role":"assistant","content":[{"type":"output_text","text":"Hi"}]},
            {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
            {"type":"function_call_output","call_id":"c","output":"7"}]"#,
    );
    let id = id_of(&kept).to_owned();
    let suffix = id.strip_prefix("resp_").unwrap();
    let mut list = |query: &str| client.get(&format!("/v1/responses/{id}/input_items{query}"));
    let all = list("?order=asc");
    assert_eq!(all.status, 200);
    let first = format!(
        r#"{{"object":"list","data":[{{"id":"msg_{suffix}_in0","type":"message","status":"completed","role":"user","content":[{{"type":"input_text","text":"Hello"}}]}},{{"id":"msg_own","#
    );
    assert!(all.text().starts_with(&first), "{}", all.text());
    let end =
        format!(r#""first_id":"msg_{suffix}_in0","last_id":"fco_{suffix}_in3","has_more":false}}"#);
    assert!(all.text().ends_with(&end), "{}", all.text());
    // The newest first, unless told otherwise.
    let page = list("?limit=2");
    let end =
        format!(r#""first_id":"fco_{suffix}_in3","last_id":"fc_{suffix}_in2","has_more":true}}"#);
    assert!(page.text().ends_with(&end), "{}", page.text());
    let rest = list(&format!("?limit=2&after=fc_{suffix}_in2"));
    let end = format!(r#""first_id":"msg_own","last_id":"msg_{suffix}_in0","has_more":false}}"#);
    assert!(rest.text().ends_with(&end), "{}", rest.text());
    for (query, param) in [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?order=up", "order"),
        ("?after=nobody", "after"),
    ] {
        let refused = list(query);
        assert_eq!(refused.status, 400, "{query}");
        has(&refused, &format!(r#""param":"{param}""#));
    }
    assert_eq!(client.get("/v1/responses/resp_none/input_items").status, 404);
    let text = ask(&mut client, r#""model":"instant","input":"Say \"this\"""#);
    let items = client.get(&format!("/v1/responses/{}/input_items", id_of(&text)));
    has(&items, r#""role":"user","content":[{"type":"input_text","text":"Say \"this\""}]}]"#);
}

#[test]
fn only_a_response_in_the_background_could_be_cancelled() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let kept = ask(&mut client, r#""model":"instant","input":"Hello""#);
    client.post(&format!("/v1/responses/{}/cancel", id_of(&kept)), "");
    let refused = client.response();
    assert_eq!(refused.status, 400);
    has(&refused, r#"{"error":{"message":"Cannot cancel a synchronous response.""#);
    client.post("/v1/responses/resp_none/cancel", "");
    assert_eq!(client.response().status, 404);
}
