//! `POST /v1/completions` and its relatives: texts as they are, without a chat around them.

use crate::client::{Client, Response};
use crate::fixture::{self, DEFAULT_TEXT};

fn ask(client: &mut Client, members: &str) -> Response {
    client.post("/v1/completions", &format!("{{{members}}}"));
    client.response()
}

#[track_caller]
fn has(response: &Response, part: &str) {
    assert!(response.text().contains(part), "no {part} in {}", response.text());
}

#[test]
fn a_whole_answer_has_text_and_a_limit_of_sixteen_tokens() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let answer = ask(&mut client, &format!(r#""model":"{model}","prompt":"Say this""#));
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.text().starts_with(r#"{"id":"cmpl-"#), "{}", answer.text());
        let choice = format!(
            r#""choices":[{{"text":"{DEFAULT_TEXT}","index":0,"logprobs":null,"finish_reason":"stop"}}]"#
        );
        has(&answer, &choice);
        // "Say this" is two tokens: there is no template around it.
        has(&answer, r#""usage":{"prompt_tokens":2,"completion_tokens":8,"total_tokens":10"#);
        let long = ask(&mut client, &format!(r#""model":"{model}","prompt":"[hundred]""#));
        has(&long, r#""completion_tokens":16,"#);
        has(&long, r#""finish_reason":"length""#);
    }
}

#[test]
fn a_stream_is_pieces_of_text_the_reason_the_usage_and_done() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let answer = ask(
            &mut client,
            &format!(
                r#""model":"{model}","prompt":"x","stream":true,"stream_options":{{"include_usage":true}}"#
            ),
        );
        let events = answer.events();
        assert_eq!(events.len(), 8 + 1 + 1 + 1, "{events:#?}");
        let text: String = events[..9].iter().map(|event| text_of(event)).collect();
        assert_eq!(text, DEFAULT_TEXT);
        assert!(events[..10].iter().all(|it| it.contains(r#""object":"text_completion""#)));
        assert!(
            events[8].contains(r#""text":"","index":0,"logprobs":null,"finish_reason":"stop""#)
        );
        assert!(events[..9].iter().all(|event| event.ends_with(r#""usage":null}"#)));
        assert!(
            events[9].contains(r#""choices":[],"usage":{"prompt_tokens":1,"completion_tokens":8"#)
        );
        assert_eq!(events[10], "[DONE]");
    }
}

fn text_of(event: &str) -> &str {
    let (_, rest) = event.split_once(r#""text":""#).unwrap_or_else(|| panic!("{event}"));
    rest.split_once(r#"","index""#).unwrap().0
}

#[test]
fn prompts_and_choices_are_numbered_prompt_by_prompt_and_counted_once() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        let members =
            format!(r#""model":"{model}","prompt":["quotes","x y z"],"n":2,"max_tokens":3"#);
        let answer = ask(&mut client, &members);
        let quotes = r##""text":"She said \"""##;
        let default = r#""text":"One two three""#;
        for (index, text) in [(0, quotes), (1, quotes), (2, default), (3, default)] {
            has(&answer, &format!(r#"{text},"index":{index},"#));
        }
        // One token and three, each once; four answers of three.
        has(&answer, r#""prompt_tokens":4,"completion_tokens":12,"#);
        let streamed = ask(&mut client, &format!(r#"{members},"stream":true"#));
        let events = streamed.events();
        assert_eq!(events.len(), 4 * (3 + 1) + 1, "{events:#?}");
        for index in 0..4 {
            let of = |event: &&&str| event.contains(&format!(r#","index":{index},"#));
            let text: String = events.iter().filter(of).map(|event| text_of(event)).collect();
            assert_eq!(text, if index < 2 { r#"She said \""# } else { "One two three" });
        }
    }
}

#[test]
fn an_echo_comes_before_the_answer_and_alone_if_nothing_else_is_wanted() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let prompt = r#""model":"batched","prompt":"Say \"this\"\n""#;
    let answer = ask(&mut client, &format!(r#"{prompt},"echo":true,"max_tokens":2"#));
    has(&answer, r#""text":"Say \"this\"\nOne two","index":0"#);
    has(&answer, r#""completion_tokens":2,"#);
    let alone = ask(&mut client, &format!(r#"{prompt},"echo":true,"max_tokens":0"#));
    has(&alone, r#""text":"Say \"this\"\n","index":0,"logprobs":null,"finish_reason":"length""#);
    has(&alone, r#""completion_tokens":0,"#);
    let streamed =
        ask(&mut client, &format!(r#"{prompt},"echo":true,"max_tokens":2,"stream":true"#));
    let events = streamed.events();
    let pieces: Vec<&str> = events[..3].iter().map(|event| text_of(event)).collect();
    assert_eq!(pieces, [r#"Say \"this\"\nOne"#, " two", ""]);
}

#[test]
fn scores_stand_beside_the_tokens_and_say_where_they_begin() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let prompt = r#""model":"batched","prompt":"Say é","echo":true,"logprobs":2,"max_tokens":2"#;
    let answer = ask(&mut client, prompt);
    has(&answer, r#""logprobs":{"tokens":["Say"," é","One"," two"],"token_logprobs":[null,-0."#);
    has(&answer, r#""top_logprobs":[null,{" é":-0."#);
    has(&answer, r#""text_offset":[0,3,5,8]}"#);
    // Two for each place but the first: a map of 2 has one comma.
    let (_, rest) = answer.text().split_once(r#""top_logprobs":[null,"#).unwrap();
    let maps = rest.split_once("],").unwrap().0;
    assert_eq!((maps.matches('{').count(), maps.matches("\":-").count()), (3, 6), "{maps}");

    let streamed = ask(&mut client, &format!(r#"{prompt},"stream":true"#));
    let events = streamed.events();
    assert!(events[0].contains(r#""tokens":["Say"," é","One"]"#), "{}", events[0]);
    assert!(events[0].contains(r#""text_offset":[0,3,5]"#), "{}", events[0]);
    assert!(events[1].contains(r#""tokens":[" two"]"#), "{}", events[1]);
    assert!(events[1].contains(r#""text_offset":[8]"#), "{}", events[1]);
    assert!(events[2].contains(r#""logprobs":null"#), "{}", events[2]);
}

#[test]
fn an_answer_in_one_body_is_not_longer_than_it_may_be_and_a_stream_may() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    // 50,000 tokens, of whose scores each choice has some eight megabytes.
    let prompt = "a ".repeat(25_000);
    let members = |choices: u32, stream: bool| {
        format!(
            r#""model":"instant","prompt":"{prompt}","echo":true,"logprobs":5,"max_tokens":1,"n":{choices},"stream":{stream}"#
        )
    };
    let refused = ask(&mut client, &members(100, false));
    assert_eq!(refused.status, 400);
    has(&refused, r#""param":"stream""#);
    has(&refused, "; the most are 134217728. Ask for a stream");
    let answer = ask(&mut client, &members(2, false));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.text().matches(r#""finish_reason":"length""#).count(), 2);
    // What is said of it was not said for nothing.
    assert!(answer.body.len() > 2_000_000, "{}", answer.body.len());
    client.post("/v1/completions", &format!("{{{}}}", members(100, true)));
    assert_eq!(client.head().0, 200);
}

#[test]
fn what_is_told_of_tokens_beside_their_text_counts_in_the_length_of_a_body() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    // Ids have some eleven bytes each: twice 60,000 of prompts, told 128 times, are 169 MB.
    let text = "a ".repeat(60_000);
    let prompts = format!(
        r#""model":"instant","prompt":["{text}","{text}"],"max_tokens":1,"n":128,"return_token_ids":true"#
    );
    // Nearly ten million of answers, 106 MB, and 39 MB of text.
    let chat = r#""model":"instant","messages":[{"role":"user","content":"x"}],"ignore_eos":true"#;
    let ids = format!(r#"{chat},"max_tokens":76000,"n":128,"return_token_ids":true"#);
    // 128,000 tokens with twenty others at the place of each, 60 bytes for every one.
    let scored = format!(r#"{chat},"max_tokens":8000,"n":16,"logprobs":true,"top_logprobs":20"#);
    for (path, members) in [
        ("/v1/completions", &prompts),
        ("/v1/chat/completions", &ids),
        ("/v1/chat/completions", &scored),
    ] {
        client.post(path, &format!("{{{members}}}"));
        let refused = client.response();
        assert_eq!(refused.status, 400, "{members:.80}");
        has(&refused, "; the most are 134217728. Ask for a stream");
    }
    let few = scored.replace("8000", "80");
    client.post("/v1/chat/completions", &format!("{{{few}}}"));
    assert_eq!(client.response().status, 200);
}

#[test]
fn a_prompt_of_token_ids_is_the_text_that_they_were_given_for() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.post("/tokenize", r#"{"prompt":"quotes"}"#);
    let tokens = client.response();
    let (_, rest) = tokens.text().split_once(r#""tokens":"#).unwrap();
    let ids = rest.split_once(']').unwrap().0.to_owned() + "]";
    let answer = ask(&mut client, &format!(r#""model":"instant","prompt":{ids},"max_tokens":2"#));
    has(&answer, r#""text":"She said","#);
    // Nobody knows these, and they count all the same.
    let answer = ask(&mut client, r#""model":"instant","prompt":[[1,2,3],[4]],"max_tokens":1"#);
    has(&answer, r#""prompt_tokens":4,"completion_tokens":2,"#);
}

#[test]
fn the_same_prompt_again_is_found_in_the_prefix_cache() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let prompt = "word ".repeat(100);
    let body = format!(r#""model":"batched","prompt":"{prompt}""#);
    // 100 words, each with the space before it, and the last space: 6 full blocks of 16.
    has(&ask(&mut client, &body), r#""cached_tokens":0,"#);
    has(&ask(&mut client, &body), r#""cached_tokens":96,"#);
    let salted = format!(r#"{body},"cache_salt":"s""#);
    has(&ask(&mut client, &salted), r#""cached_tokens":0,"#);
}

#[test]
fn stop_strings_and_vllms_limits_work_as_in_chat() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let prompt = r#""model":"batched","prompt":"x""#;
    let stopped = ask(&mut client, &format!(r#"{prompt},"stop":"e fo""#));
    has(&stopped, r#""text":"One two thre","index":0,"logprobs":null,"finish_reason":"stop""#);
    has(&stopped, r#""completion_tokens":4,"#);
    let on = ask(&mut client, &format!(r#"{prompt},"ignore_eos":true"#));
    has(&on, r#""completion_tokens":16,"#);
    let more = ask(&mut client, &format!(r#"{prompt},"min_tokens":10"#));
    has(&more, r#""completion_tokens":10,"#);
}

#[test]
fn what_does_not_fit_or_exist_is_refused_before_the_first_byte() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for (members, status, code) in [
        (r#""prompt":"x""#.to_owned(), 400, "null"),
        (r#""model":"none","prompt":"x""#.to_owned(), 404, r#""model_not_found""#),
        (r#""model":"instant""#.to_owned(), 400, r#""missing_required_parameter""#),
        (
            format!(r#""model":"batched","prompt":"{}","stream":true"#, "word ".repeat(5000)),
            400,
            r#""context_length_exceeded""#,
        ),
        (
            r#""model":"batched","prompt":"x","max_tokens":4096"#.to_owned(),
            400,
            r#""context_length_exceeded""#,
        ),
        (r#""model":"batched","prompt":"x","priority":1"#.to_owned(), 400, r#""invalid_value""#),
    ] {
        let refused = ask(&mut client, &members);
        assert_eq!(refused.status, status, "{members:.80}: {}", refused.text());
        has(&refused, &format!(r#""code":{code}"#));
    }
}

#[test]
fn rendering_gives_the_ids_that_tokenizing_gives() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut post = |path: &str, body: &str| {
        client.post(path, body);
        let response = client.response();
        assert_eq!(response.status, 200, "{}", response.text());
        response.text().to_owned()
    };
    let list = |text: &str, name: &str| {
        let (_, rest) = text.split_once(&format!("\"{name}\":[")).unwrap();
        rest.split_once(']').unwrap().0.to_owned()
    };
    let messages = r#""model":"batched","messages":[{"role":"user","content":"Hello"}]"#;
    let chat = post("/v1/chat/completions/render", &format!("{{{messages},\"max_tokens\":7}}"));
    let tokens = post("/tokenize", &format!("{{{messages}}}"));
    assert_eq!(list(&chat, "token_ids"), list(&tokens, "tokens"));
    assert!(chat.starts_with(r#"{"request_id":"chatcmpl-"#), "{chat}");
    assert!(chat.ends_with(
        r#"],"features":null,"sampling_params":{"max_tokens":7},"model":"batched","stream":false}"#
    ));
    let texts = post("/v1/completions/render", r#"{"model":"batched","prompt":["a b","c"]}"#);
    let tokens = post("/tokenize", r#"{"model":"batched","prompt":"a b"}"#);
    assert!(texts.starts_with(r#"[{"request_id":"cmpl-"#), "{texts}");
    assert_eq!(list(&texts, "token_ids"), list(&tokens, "tokens"));
    assert_eq!(texts.matches(r#""request_id":"cmpl-"#).count(), 2, "{texts}");
    let ids = post("/v1/completions/render", r#"{"model":"batched","prompt":[1,2]}"#);
    assert!(ids.contains(r#""token_ids":[1,2],"#), "{ids}");
}

#[test]
fn embeddings_are_unit_vectors_and_take_a_step_of_the_engine() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in ["instant", "org/paced", "batched"] {
        client.post(
            "/v1/embeddings",
            &format!(r#"{{"model":"{model}","input":["a b","a b","c"],"dimensions":3}}"#),
        );
        let answer = client.response();
        assert_eq!(answer.status, 200, "{}", answer.text());
        has(&answer, r#"{"object":"embedding","index":2,"embedding":["#);
        has(&answer, r#""usage":{"prompt_tokens":5,"total_tokens":5}"#);
        let vectors: Vec<Vec<f64>> = answer
            .text()
            .split(r#""embedding":["#)
            .skip(1)
            .map(|rest| {
                let numbers = rest.split_once(']').unwrap().0;
                numbers.split(',').map(|number| number.parse().unwrap()).collect()
            })
            .collect();
        assert_eq!(vectors.len(), 3);
        assert_eq!(vectors[0], vectors[1]);
        assert_ne!(vectors[0], vectors[2]);
        for vector in vectors {
            let length: f64 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{vector:?}");
        }
    }
    // Three models, three inputs each, a token each.
    let metrics = client.get("/metrics").text().to_owned();
    let finished = metrics.lines().find(|line| {
        line.starts_with("vllm:generation_tokens_total{") && line.contains(r#""batched""#)
    });
    assert!(finished.is_some_and(|line| line.ends_with(" 3.0")), "{finished:?}");
}

/// vLLM's `messages`: counted as a chat that nobody is to answer, and a vector of what is said in it.
#[test]
fn a_conversation_is_embedded_like_the_text_that_says_the_same() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut embed = |members: &str| {
        let body = format!(r#"{{"model":"batched","dimensions":4,{members}}}"#);
        client.post("/v1/embeddings", &body);
        let answer = client.response();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let data = answer.text().split_once(r#""data":"#).unwrap().1;
        let (data, rest) = data.split_once(r#","model""#).unwrap();
        let tokens = rest.split_once(r#""prompt_tokens":"#).unwrap().1;
        (data.to_owned(), tokens.split_once(',').unwrap().0.parse::<u32>().unwrap())
    };
    let said = r#"[{"role":"user","content":"Hello"}]"#;
    let (text, _) = embed(r#""input":"Hello""#);
    // Start, role, line feed, Hello, end; and what would begin an answer.
    for (more, tokens) in [("", 5), (r#","add_generation_prompt":true"#, 8)] {
        assert_eq!(embed(&format!(r#""messages":{said}{more}"#)), (text.clone(), tokens));
        assert_eq!(embed(&format!(r#""input":{said}{more}"#)), (text.clone(), tokens));
    }
    let (several, tokens) = embed(&format!(r#""messages":[{said},{said}]"#));
    assert_eq!((several.matches(r#""object":"embedding""#).count(), tokens), (2, 10));
    let long = format!(r#"{{"role":"user","content":"{}"}}"#, "word ".repeat(5000));
    client.post("/v1/embeddings", &format!(r#"{{"model":"batched","messages":[{long}]}}"#));
    let refused = client.response();
    assert_eq!(refused.status, 400);
    has(&refused, r#""param":"messages""#);
}

#[test]
fn inputs_that_cannot_be_embedded_are_refused() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let long = format!(r#"{{"model":"batched","input":["x","{}"]}}"#, "word ".repeat(5000));
    for (body, status, words) in [
        (r#"{"model":"instant","input":""}"#, 400, r#""code":"empty_string""#),
        (r#"{"model":"none","input":"x"}"#, 404, r#""code":"model_not_found""#),
        (&long, 400, "maximum context length is 4096 tokens"),
    ] {
        client.post("/v1/embeddings", body);
        let refused = client.response();
        assert_eq!(refused.status, status, "{}", refused.text());
        has(&refused, words);
    }
}

/// An embedding makes no token: vLLM's pooling models take as many as their context has.
#[test]
fn an_input_may_fill_the_context_and_not_be_longer() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for (words, status) in [(4096, 200), (4097, 400)] {
        // A token each.
        let input = ["word"; 5000][..words].join(" ");
        client.post("/v1/embeddings", &format!(r#"{{"model":"batched","input":"{input}"}}"#));
        let answer = client.response();
        assert_eq!(answer.status, status, "{}", answer.text());
        match status {
            200 => has(&answer, r#""usage":{"prompt_tokens":4096,"total_tokens":4096}"#),
            _ => has(&answer, "your input resulted in 4097 tokens. Please reduce"),
        }
    }
}

#[test]
fn sglangs_generate_tells_all_the_text_so_far() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let turn = r#"{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false}"#;
    client.post("/tokenize", turn);
    let turn = client.response();
    let (_, tokens) = turn.text().split_once(r#""tokens":["#).unwrap();
    let end = tokens.split_once(']').unwrap().0.rsplit(',').next().unwrap().to_owned();
    let mut ask = |body: &str| {
        client.post("/generate", body);
        client.response()
    };
    let whole = ask(r#"{"text":"x","rid":"mine"}"#);
    has(&whole, &format!(r#"{{"text":"{DEFAULT_TEXT}","meta_info":{{"id":"mine","#));
    // The id of the token that ends a turn, as /tokenize gives it.
    has(
        &whole,
        &format!(r#""finish_reason":{{"type":"stop","matched":{end}}},"prompt_tokens":1,"#),
    );
    let stopped = ask(r#"{"text":"x","sampling_params":{"stop":["three"]}}"#);
    has(&stopped, r#"{"text":"One two ","meta_info":"#);
    has(&stopped, r#""finish_reason":{"type":"stop","matched":"three"}"#);
    let scored =
        ask(r#"{"text":"a b","return_logprob":true,"logprob_start_len":0,"top_logprobs_num":1,
            "return_text_in_logprobs":true,"sampling_params":{"max_new_tokens":2}}"#);
    has(&scored, r#""input_token_logprobs":[[null,"#);
    has(&scored, r#","a"],[-0."#);
    has(&scored, r#""output_token_logprobs":[[-0."#);
    has(&scored, r#""input_top_logprobs":[null,[[-0."#);
    has(&scored, r#""output_top_logprobs":[[[-0."#);
    assert_eq!(scored.text().matches(r#","One"]"#).count(), 2, "{}", scored.text());
    let streamed = ask(
        r#"{"text":"x","stream":true,"model":"batched","sampling_params":{"max_new_tokens":2}}"#,
    );
    let events = streamed.events();
    assert_eq!(events.len(), 4, "{events:#?}");
    assert!(events[0].starts_with(r#"{"text":"One","meta_info":"#), "{}", events[0]);
    assert!(events[1].starts_with(r#"{"text":"One two","meta_info":"#), "{}", events[1]);
    assert!(events[1].contains(r#""finish_reason":null"#));
    assert!(events[2].contains(r#""finish_reason":{"type":"length","length":2}"#));
    assert_eq!(events[3], "[DONE]");
    let batch = ask(r#"{"text":["x","quotes"],"sampling_params":{"max_new_tokens":1}}"#);
    assert!(batch.text().starts_with(r#"[{"text":"One","#), "{}", batch.text());
    has(&batch, r#"},{"text":"She","#);
    // Each has an id of its own (SGLang's io_struct.py, `_normalize_rid`).
    for (members, ids) in [
        (r#""text":["x","quotes"],"rid":"r""#, ["r_0", "r_1"]),
        (r#""text":["x","quotes"],"rid":["a","b"]"#, ["a", "b"]),
        (r#""text":"x","rid":"r","sampling_params":{"n":2}"#, ["r_0", "r_1"]),
        (r#""text":["x"],"rid":["a"],"sampling_params":{"n":2}"#, ["a_0", "a_1"]),
    ] {
        for stream in [false, true] {
            let answer = ask(&format!(r#"{{{members},"stream":{stream}}}"#));
            for id in ids {
                has(
                    &answer,
                    &format!(r#""meta_info":{{"id":"{id}","finish_reason":{{"type":"stop""#),
                );
            }
        }
    }
    let unnamed = ask(r#"{"text":["x","quotes"]}"#);
    let of: Vec<&str> = unnamed.text().split(r#""meta_info":{"id":""#).skip(1).collect();
    let [one, other] = of[..] else { panic!("{}", unnamed.text()) };
    assert_ne!(one.split_once('"').unwrap().0, other.split_once('"').unwrap().0);
    assert_eq!(ask(r#"{"text":"x","sampling_params":{"n":0}}"#).status, 400);
}

#[test]
fn an_adapter_is_a_name_for_its_model_until_it_is_unloaded() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut post = |path: &str, body: &str| {
        client.post(path, body);
        client.response()
    };
    let load = r#"{"lora_name":"sql","lora_path":"/adapters/sql","base_model_name":"batched"}"#;
    let loaded = post("/v1/load_lora_adapter", load);
    assert_eq!(loaded.status, 200);
    assert_eq!(loaded.text(), "Success: LoRA adapter 'sql' loaded successfully.");
    assert_eq!(post("/v1/load_lora_adapter", load).status, 400);
    let taken = r#"{"lora_name":"instant","lora_path":"x"}"#;
    assert_eq!(post("/v1/load_lora_adapter", taken).status, 400);

    // It answers under its own name, and finds no prefixes of its base.
    let ask = |model: &str| {
        let text = "word ".repeat(50);
        format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{text}"}}]}}"#)
    };
    has(&post("/v1/chat/completions", &ask("batched")), r#""cached_tokens":0,"#);
    let adapted = post("/v1/chat/completions", &ask("sql"));
    has(&adapted, r#""model":"sql""#);
    has(&adapted, r#""cached_tokens":0,"#);
    has(&post("/v1/chat/completions", &ask("sql")), r#""cached_tokens":48,"#);

    // Loaded in place again it has them still, and from elsewhere it is another (vLLM's
    // kv_cache_utils.py has name and path in a block's key).
    let replace = |path: &str| {
        format!(
            r#"{{"lora_name":"sql","lora_path":"{path}","base_model_name":"batched","load_inplace":true}}"#
        )
    };
    assert_eq!(post("/v1/load_lora_adapter", &replace("/adapters/sql")).status, 200);
    has(&post("/v1/chat/completions", &ask("sql")), r#""cached_tokens":48,"#);
    assert_eq!(post("/v1/load_lora_adapter", &replace("/adapters/sql-2")).status, 200);
    has(&post("/v1/chat/completions", &ask("sql")), r#""cached_tokens":0,"#);
    has(&post("/v1/chat/completions", &ask("sql")), r#""cached_tokens":48,"#);

    let unload = r#"{"lora_name":"sql"}"#;
    assert_eq!(post("/v1/unload_lora_adapter", unload).status, 200);
    let again = post("/v1/unload_lora_adapter", unload);
    assert_eq!((again.status, again.text().contains("NotFoundError")), (404, true));
    assert_eq!(post("/v1/chat/completions", &ask("sql")).status, 404);
}

#[test]
fn routers_see_which_adapters_are_in_use() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.post("/v1/load_lora_adapter", r#"{"lora_name":"sql","lora_path":"/x"}"#);
    assert_eq!(client.response().status, 200);
    let running = |client: &mut Client| {
        let metrics = client.get("/metrics").text().to_owned();
        let (_, rest) = metrics.split_once(r#"running_lora_adapters=""#).unwrap();
        rest.split_once('"').unwrap().0.to_owned()
    };
    let load = r#"{"lora_name":"slow","lora_path":"/x","base_model_name":"batched"}"#;
    client.post("/v1/load_lora_adapter", load);
    assert_eq!(client.response().status, 200);
    assert_eq!(running(&mut client), "");
    let mut asking = Client::new(&server);
    let body = r#"{"model":"slow","prompt":"[long]","max_tokens":4000,"stream":true}"#;
    asking.post("/v1/completions", body);
    assert_eq!(asking.head().0, 200);
    assert_eq!(running(&mut client), "slow");
    drop(asking);
    fixture::wait_until(&server, "the end of the request", |_| running(&mut client).is_empty());
}

#[test]
fn adapters_are_listed_with_their_parent() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.post("/v1/load_lora_adapter", r#"{"lora_name":"a/b","lora_path":"/x"}"#);
    assert_eq!(client.response().status, 200);
    let card = r#""root":"/x","parent":"instant","max_model_len":100000"#;
    has(&client.get("/v1/models"), card);
    let one = client.get("/v1/models/a%2Fb");
    assert!(one.text().starts_with(r#"{"id":"a/b","#), "{}", one.text());
    has(&one, card);
}
