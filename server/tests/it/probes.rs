//! What routers, gateways and load generators ask beside OpenAI's API.

use crate::client::{Client, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

/// The numbers of `"tokens":[...]`.
fn tokens_of(body: &str) -> &str {
    let (_, rest) = body.split_once(r#""tokens":["#).unwrap_or_else(|| panic!("{body}"));
    rest.split_once(']').unwrap().0
}

#[test]
fn a_text_comes_back_from_its_token_ids() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut ask = |path: &str, body: &str| {
        client.post(path, body);
        let response = client.response();
        assert_eq!(response.status, 200, "{}", response.text());
        response.text().to_owned()
    };
    let text = r#"One two,\nthree \u4f60\u597d 12345"#;
    let request = format!(r#"{{"model":"batched","prompt":"{text}","return_token_strs":true}}"#);
    let answer = ask("/tokenize", &request);
    assert!(answer.starts_with(r#"{"count":11,"max_model_len":4096,"tokens":["#), "{answer}");
    let pieces = r#""token_strs":["One"," two",",","\n","three"," ","你","好"," ","123","45"]}"#;
    assert!(answer.ends_with(pieces), "{answer}");
    let ids = tokens_of(&answer);
    let back = ask("/detokenize", &format!(r#"{{"tokens":[{ids}]}}"#));
    assert_eq!(back, r#"{"prompt":"One two,\nthree 你好 12345"}"#);
    // The same ids from a server that has never seen the text.
    let other = fixture::start();
    let mut client = Client::new(&other);
    client.post("/tokenize", &request);
    assert_eq!(tokens_of(client.response().text()), ids);
}

#[test]
fn a_chat_has_as_many_tokens_as_its_usage_says() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    // Start, role, line feed, Hello, end; start, role, line feed.
    for (extra, count) in [
        ("", 8),
        (r#","add_generation_prompt":false"#, 5),
        (r#","continue_final_message":true"#, 4),
        (r#","add_generation_prompt":false,"continue_final_message":true"#, 4),
    ] {
        let messages = r#""messages":[{"role":"user","content":"Hello"}]"#;
        let chat = client.chat(&format!(r#"{{"model":"instant",{messages}{extra}}}"#));
        let usage = format!(r#""usage":{{"prompt_tokens":{count},"#);
        assert!(chat.text().contains(&usage), "{extra}: {}", chat.text());
        assert!(chat.text().contains(DEFAULT_TEXT), "{extra}: {}", chat.text());
        client.post("/tokenize", &format!("{{{messages}{extra}}}"));
        let answer = client.response();
        // Without a model, the first one's.
        let start = format!(r#"{{"count":{count},"max_model_len":100000,"tokens":["#);
        assert!(answer.text().starts_with(&start), "{}", answer.text());
        assert!(answer.text().ends_with(r#"],"token_strs":null}"#), "{}", answer.text());
    }
}

#[test]
fn the_definitions_of_tools_count_the_same_wherever_a_chat_is_counted() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let chat = r#"{"model":"instant","messages":[{"role":"user","content":"Hello"}],"tools":[
        {"type":"custom","custom":{"name":"never"}},
        {"type":"function","function":{"name":"get_time","parameters":{"type":"object"}}}]}"#;
    let answer = client.chat(chat);
    let (_, used) = answer.text().split_once(r#""prompt_tokens":"#).unwrap();
    let used: usize = used.split_once(',').unwrap().0.parse().unwrap();
    assert!(used > 8, "more than the chat alone: {used}");
    client.post("/tokenize", chat);
    let answer = client.response();
    assert!(answer.text().starts_with(&format!(r#"{{"count":{used},"#)), "{}", answer.text());
    assert_eq!(tokens_of(answer.text()).split(',').count(), used);
    client.post("/v1/chat/completions/render", chat);
    let answer = client.response();
    let (_, ids) = answer.text().split_once(r#""token_ids":["#).unwrap();
    assert_eq!(ids.split_once(']').unwrap().0.split(',').count(), used);
}

#[test]
fn what_cannot_be_tokenized_is_refused() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for (path, body, status, words) in [
        ("/tokenize", "{}", 400, "missing_required_parameter"),
        ("/tokenize", r#"{"prompt":5}"#, 400, r#""param":"prompt""#),
        ("/tokenize", r#"{"messages":[]}"#, 400, "empty_array"),
        (
            "/tokenize",
            r#"{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true,
                "continue_final_message":true}"#,
            400,
            r#""param":"continue_final_message""#,
        ),
        ("/tokenize", r#"{"model":"none","prompt":"x"}"#, 404, "model_not_found"),
        ("/tokenize", "{", 400, "could not parse"),
        ("/detokenize", "{}", 400, r#""param":"tokens""#),
        ("/detokenize", r#"{"tokens":"x"}"#, 400, "array of token ids"),
        ("/detokenize", r#"{"tokens":[-1]}"#, 400, "array of token ids"),
        ("/detokenize", r#"{"tokens":[5,7]}"#, 400, r#""param":"tokens[0]""#),
    ] {
        client.post(path, body);
        let response = client.response();
        assert_eq!(response.status, status, "{path} {body}: {}", response.text());
        assert!(response.text().contains(words), "{path} {body}: {}", response.text());
    }
    client.post("/detokenize", r#"{"tokens":[]}"#);
    assert_eq!(client.response().text(), r#"{"prompt":""}"#);
}

#[test]
fn a_sleeping_server_refuses_work_until_it_is_woken() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    assert_eq!(client.get("/is_sleeping").text(), r#"{"is_sleeping":false}"#);
    assert_eq!(client.get("/health_generate").status, 200);
    for (query, level, state) in
        [("", 1, "weights_offloaded"), ("?level=2&mode=wait", 2, "discard_all")]
    {
        client.post(&format!("/sleep{query}"), "");
        let body = format!(r#"{{"status":"sleeping","level":{level}}}"#);
        assert_eq!(client.response().text(), body);
        assert_eq!(client.get("/is_sleeping").text(), r#"{"is_sleeping":true}"#);
        let refused = client.chat(&streaming("batched", "x"));
        assert_eq!(refused.status, 503);
        assert!(refused.header("retry-after").is_some());
        assert!(refused.text().contains("/wake_up"));
        // Alive, but not ready for work.
        assert_eq!(client.get("/health").status, 200);
        assert_eq!(client.get("/health_generate").status, 503);
        let metrics = client.get("/metrics").text().to_owned();
        let states = metrics.lines().filter(|line| {
            line.starts_with("vllm:engine_sleep_state{") && line.contains(r#""batched""#)
        });
        let on: Vec<&str> = states.filter(|line| line.ends_with(" 1.0")).collect();
        assert!(matches!(on[..], [line] if line.contains(state)), "{on:?}");
        client.post("/wake_up", "");
        assert_eq!(client.response().text(), r#"{"status":"awake","tags":null}"#);
        assert_eq!(client.chat(&streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
    }
    client.post("/sleep?level=9", "");
    assert_eq!(client.response().status, 400);
}

/// As vLLM's executor does it (v1/executor/abstract.py, `wake_up` and `is_sleeping`).
#[test]
fn a_trainer_wakes_weights_first_and_the_server_when_its_cache_is_awake_too() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut step = |path: &str, said: &str, sleeps: bool| {
        client.post(path, "");
        let response = client.response();
        assert_eq!((response.status, response.text()), (200, said), "{path}");
        let expected = format!(r#"{{"is_sleeping":{sleeps}}}"#);
        assert_eq!(client.get("/is_sleeping").text(), expected, "{path}");
        let chat = client.chat(&whole("batched", "x")).status;
        assert_eq!(chat, if sleeps { 503 } else { 200 }, "{path}");
    };
    step("/sleep", r#"{"status":"sleeping","level":1}"#, true);
    step("/wake_up?tags=weights", r#"{"status":"sleeping","tags":["weights"]}"#, true);
    // They are awake, so nothing is to be woken; neither are parts that there are not.
    let both = r#"{"status":"sleeping","tags":["weights","kv_cache"]}"#;
    step("/wake_up?tags=weights&tags=kv_cache", both, true);
    step("/wake_up?tags=wings", r#"{"status":"sleeping","tags":["wings"]}"#, true);
    step("/wake_up?tags=kv_cache", r#"{"status":"awake","tags":["kv_cache"]}"#, false);
    step("/sleep?level=2", r#"{"status":"sleeping","level":2}"#, true);
    let both = r#"{"status":"awake","tags":["kv_cache","weights"]}"#;
    step("/wake_up?tags=kv_cache&tags=weights", both, false);
    // Level 0 only pauses: nothing has to be woken but the scheduler.
    step("/sleep?level=1", r#"{"status":"sleeping","level":1}"#, true);
    step("/wake_up?tags=scheduling", r#"{"status":"sleeping","tags":["scheduling"]}"#, true);
    step("/wake_up", r#"{"status":"awake","tags":null}"#, false);
    step("/sleep?level=0", r#"{"status":"sleeping","level":0}"#, true);
    step("/wake_up?tags=scheduling", r#"{"status":"awake","tags":["scheduling"]}"#, false);
}

/// vLLM's body (serve/dev/cache/api_router.py) and SGLang's status: blocks that are held are not
/// forgotten, and the caller hears of it.
#[test]
fn a_cache_that_is_in_use_is_not_forgotten_and_the_answer_says_so() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut reset = |path: &str| {
        client.post(path, "");
        let response = client.response();
        (response.status, response.text().to_owned())
    };
    let flushed = "Cache flushed.\nPlease check backend logs for more details. (When there are \
                   running or waiting requests, the operation will not be performed.)\n";
    assert_eq!(reset("/reset_prefix_cache"), (200, r#"{"success":true}"#.to_owned()));
    assert_eq!(reset("/flush_cache"), (200, flushed.to_owned()));
    let mut asking = Client::new(&server);
    asking.post("/v1/chat/completions", &streaming("batched", "[long] x"));
    assert_eq!(asking.head().0, 200);
    // The second chunk is its first token: it holds blocks.
    asking.chunk();
    asking.chunk();
    assert_eq!(reset("/reset_prefix_cache"), (200, r#"{"success":false}"#.to_owned()));
    assert_eq!(reset("/flush_cache"), (400, flushed.to_owned()));
    // It goes to sleep all the same.
    assert_eq!(reset("/sleep"), (200, r#"{"status":"sleeping","level":1}"#.to_owned()));
    drop(asking);
    fixture::wait_until(&server, "nothing held", |_| {
        reset("/reset_prefix_cache").1 == r#"{"success":true}"#
    });
}

#[test]
fn requests_in_flight_are_the_load() {
    let server = fixture::start();
    let mut asking = Client::new(&server);
    let mut client = Client::new(&server);
    assert_eq!(client.get("/load").text(), r#"{"server_load":0}"#);
    // Half a minute of it: 5 ms for a token.
    let long =
        streaming("batched", "[long] x").replace("\"stream\"", "\"max_tokens\":4000,\"stream\"");
    asking.post("/v1/chat/completions", &long);
    assert_eq!(asking.head().0, 200);
    asking.chunk();
    assert_eq!(client.get("/load").text(), r#"{"server_load":1}"#);
    let mut loads = String::new();
    fixture::wait_until(&server, "tokens in the KV cache", |_| {
        loads = client.get("/get_load").text().to_owned();
        loads.contains(r#""num_reqs":1,"num_waiting_reqs":0,"#)
            && !loads.contains(r#""num_reqs":1,"num_waiting_reqs":0,"num_tokens":0"#)
    });
    assert!(loads.starts_with(r#"[{"dp_rank":0,"num_reqs":"#), "{loads}");
    assert_eq!(loads.matches(r#""num_reqs":1"#).count(), 1, "{loads}");
}

#[test]
fn the_server_says_what_it_is_under_all_its_names() {
    let server = fixture::start_with(|settings| {
        settings.config.models.rotate_right(1);
        settings.config.models[0].tensor_parallel = 2;
    });
    let mut client = Client::new(&server);
    // vLLM's `VllmConfig.__str__` (config/vllm.py) and its parts (serve/dev/server_info/api_router.py).
    let text = concat!(
        r#""vllm_config":"model='batched', tokenizer='batched', max_seq_len=4096, "#,
        "tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, ",
        "served_model_name=batched, enable_prefix_caching=True, enable_chunked_prefill=True\"",
    );
    let json = concat!(
        r#""vllm_config":{"model_config":{"model":"batched","tokenizer":"batched","#,
        r#""served_model_name":"batched","max_model_len":4096},"parallel_config":{"#,
        r#""pipeline_parallel_size":1,"tensor_parallel_size":2,"data_parallel_size":1},"#,
        r#""cache_config":{"block_size":16,"num_gpu_blocks":300000,"enable_prefix_caching":true},"#,
        r#""scheduler_config":{"max_num_batched_tokens":16384,"max_num_seqs":1024,"#,
        r#""enable_chunked_prefill":true,"policy":"fcfs"}}"#,
    );
    for (path, config) in [
        ("/server_info", text),
        ("/get_server_info", text),
        ("/server_info?config_format=text", text),
        ("/server_info?config_format=json", json),
    ] {
        let info = client.get(path);
        assert_eq!(info.status, 200);
        for member in [
            config,
            r#""vllm_env":{},"system_env":{"os":"linux ("#,
            r#""is_cuda_available":"False""#,
            r#""gpu_topo":null"#,
            r#""served_model_name":"batched""#,
            r#""dp_size":1,"tp_size":2,"pp_size":1"#,
            r#""context_length":4096"#,
            r#""max_prefill_tokens":16384"#,
            r#""max_running_requests":1024"#,
            // 300,000 blocks of 16, of which one is a placeholder.
            r#""max_total_tokens":4799984"#,
        ] {
            assert!(info.text().contains(member), "{member}: {}", info.text());
        }
        // The first one's in front, and all in a list.
        assert_eq!(info.text().matches(r#""model_path":"batched""#).count(), 2);
        for name in ["instant", "org/paced"] {
            let member = format!(r#",{{"model_path":"{name}","#);
            assert!(info.text().contains(&member), "{member}: {}", info.text());
        }
    }
    let refused = client.get("/server_info?config_format=yaml");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains(r#""param":"config_format""#), "{}", refused.text());
    for path in ["/model_info", "/get_model_info"] {
        let info = client.get(path);
        assert!(info.text().starts_with(r#"{"model_path":"batched""#), "{}", info.text());
        assert!(info.text().contains(r#""is_generation":true"#));
    }
    let version = format!(r#"{{"version":"{}"}}"#, env!("CARGO_PKG_VERSION"));
    assert_eq!(client.get("/version").text(), version);
    for request in [
        "GET /ping HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        post("/ping", ""),
        "GET /flush_cache HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        post("/flush_cache", ""),
        post("/reset_prefix_cache", ""),
    ] {
        client.send(&request);
        assert_eq!(client.response().status, 200, "{request}");
    }
}

/// As vLLM's `metrics_header` (serve/utils/orca_metrics.py), which its routes of chat and completions send
/// with answers that are not streamed.
#[test]
fn a_gateway_that_asks_is_told_the_load_in_the_answers_head() {
    const HEADER: &str = "endpoint-load-metrics";
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut ask = |path: &str, body: &str, format: &str| {
        let asking = format!("Host: h\r\nEndpoint-Load-Metrics-Format: {format}");
        client.send(post(path, body).replace("Host: h", &asking));
        let answer = client.response();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.header(HEADER).map(str::to_owned)
    };
    let idle = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0";
    let chat = whole("instant", "x");
    assert_eq!(ask("/v1/chat/completions", &chat, "TEXT").as_deref(), Some(idle));
    let completion = r#"{"model":"instant","prompt":"x"}"#;
    assert_eq!(
        ask("/v1/completions", completion, "json").as_deref(),
        Some(
            r#"JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}"#
        )
    );
    assert_eq!(ask("/v1/chat/completions", &chat, "BIN"), None);
    assert_eq!(ask("/v1/chat/completions", &streaming("instant", "x"), "TEXT"), None);
    assert_eq!(ask("/v1/responses", r#"{"model":"instant","input":"x"}"#, "TEXT"), None);
    assert_eq!(client.chat(&chat).header(HEADER), None);

    // 4,000 tokens of 5 ms each are under way, and hold blocks.
    let mut running = Client::new(&server);
    let long = streaming("batched", "[long] x").replacen('{', r#"{"max_tokens":4000,"#, 1);
    running.post("/v1/chat/completions", &long);
    assert_eq!(running.head().0, 200);
    running.chunk();
    let asking = "Host: h\r\nEndpoint-Load-Metrics-Format: text";
    client.send(post("/v1/chat/completions", &whole("batched", "x")).replace("Host: h", asking));
    let answer = client.response();
    let report = answer.header(HEADER).unwrap();
    let usage = report
        .strip_prefix(
            "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=",
        )
        .unwrap_or_else(|| panic!("{report}"));
    let usage: f64 = usage.parse().unwrap();
    assert!(usage > 0.0 && usage < 0.01, "{report}");
}
