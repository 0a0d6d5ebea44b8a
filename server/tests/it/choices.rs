//! Several choices for one request: `n`.

use llmsim_engine::sim::EngineSpec;

use crate::client::{Client, content_of, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

const MODELS: [&str; 3] = ["instant", "org/paced", "batched"];

fn with(body: &str, fields: &str) -> String {
    body.replacen('{', &format!("{{{fields},"), 1)
}

/// Which choice a chunk is of.
fn choice_of(event: &str) -> usize {
    let (_, rest) =
        event.split_once(r#""choices":[{"index":"#).unwrap_or_else(|| panic!("{event}"));
    rest.split(',').next().unwrap().parse().unwrap()
}

#[test]
fn every_choice_has_its_own_role_tokens_and_finish() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in MODELS {
        let body =
            with(&streaming(model, "Hello"), r#""n":3,"stream_options":{"include_usage":true}"#);
        let response = client.chat(&body);
        let events = response.events();
        // For each choice role, eight tokens and finish; then usage and the end.
        assert_eq!(events.len(), 3 * (1 + 8 + 1) + 2, "{model}: {events:#?}");
        for choice in 0..3 {
            let own: Vec<&str> =
                events[..30].iter().copied().filter(|event| choice_of(event) == choice).collect();
            assert!(own[0].contains(r#""delta":{"role":"assistant","content":"""#), "{}", own[0]);
            let text: String = own[1..9].iter().map(|event| content_of(event)).collect();
            assert_eq!(text, DEFAULT_TEXT, "{model}");
            assert!(
                own[9].contains(r#""delta":{},"#) && own[9].contains(r#""finish_reason":"stop""#)
            );
        }
        // The prompt counts once, every token of every choice does.
        let usage = r#""usage":{"prompt_tokens":8,"completion_tokens":24,"total_tokens":32"#;
        assert!(
            events[30].contains(r#""choices":[]"#) && events[30].contains(usage),
            "{}",
            events[30]
        );
        assert_eq!(events[31], "[DONE]");
        // Interleaved: each choice has begun before any is at its end.
        let first_of = |choice| events.iter().position(|event| choice_of(event) == choice);
        let first_end = events.iter().position(|event| event.contains(r#""finish_reason":"stop""#));
        assert!(first_of(2) < first_end, "{model}: {events:#?}");
    }
}

#[test]
fn whole_choices_say_what_streamed_ones_do() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    for model in MODELS {
        let body = client.chat(&with(&whole(model, "Hello"), r#""n":2,"max_tokens":3"#));
        let choice = |index| {
            format!(
                r#"{{"index":{index},"message":{{"role":"assistant","content":"One two three","refusal":null,"annotations":[]}},"logprobs":null,"finish_reason":"length"}}"#
            )
        };
        let choices = format!(r#""choices":[{},{}],"usage""#, choice(0), choice(1));
        assert!(body.text().contains(&choices), "{}", body.text());
        assert!(body.text().contains(r#""completion_tokens":6,"total_tokens":14"#));
    }
}

#[test]
fn choices_draw_from_variants_and_the_first_is_what_one_alone_would_be() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let mut texts = |fields: &str| -> Vec<String> {
        let response = client.chat(&with(&streaming("instant", "[hundred] x"), fields));
        let mut texts = vec![String::new(); 4];
        for event in
            response.events().iter().filter(|event| event.contains(r#""delta":{"content""#))
        {
            texts[choice_of(event)] += &content_of(event);
        }
        texts
    };
    let four = texts(r#""n":4"#);
    assert_eq!(four[0], texts(r#""n":1"#)[0]);
    assert_eq!(four, texts(r#""n":4"#));
    let different: std::collections::BTreeSet<_> = four.iter().collect();
    assert_eq!(different.len(), 4, "{four:#?}");
}

#[test]
fn a_client_that_hangs_up_frees_the_blocks_of_all_choices() {
    let server = fixture::start();
    let free = server.totals().gpus.iter().map(|gpu| gpu.free_blocks).collect::<Vec<_>>();
    let mut client = Client::new(&server);
    client.post(
        "/v1/chat/completions",
        &with(&streaming("batched", "[long] x"), r#""n":5,"max_tokens":4000"#),
    );
    assert_eq!(client.head().0, 200);
    let gpu = |totals: &llmsimulator::metrics::Totals| {
        totals.gpus.iter().find(|gpu| gpu.model == "batched").unwrap().clone()
    };
    fixture::wait_until(&server, "five jobs", |totals| gpu(totals).running == 5);
    drop(client);
    let totals = fixture::wait_until(&server, "none", |totals| gpu(totals).running == 0);
    assert_eq!(totals.gpus.iter().map(|gpu| gpu.free_blocks).collect::<Vec<_>>(), free);
    let totals = fixture::wait_until(&server, "the end", |totals| totals.in_flight == 0);
    assert_eq!((totals.disconnected, totals.finished), (1, 0));
}

#[test]
fn if_the_engine_refuses_one_choice_the_request_is_refused_before_its_first_byte() {
    let server = fixture::start_with(|settings| {
        for model in &mut settings.config.models {
            if let EngineSpec::Scheduler(spec) = &mut model.engine {
                spec.max_num_seqs = 1;
                spec.max_num_queued_reqs = Some(3);
            }
        }
    });
    let mut running = Client::new(&server);
    running.post("/v1/chat/completions", &streaming("batched", "[long] x"));
    let is_running =
        |totals: &llmsimulator::metrics::Totals| totals.gpus.iter().any(|gpu| gpu.running == 1);
    fixture::wait_until(&server, "the first to run", is_running);
    let mut client = Client::new(&server);
    for body in [streaming("batched", "x"), whole("batched", "x")] {
        let response = client.chat(&with(&body, r#""n":4"#));
        assert_eq!(response.status, 503);
        assert_eq!(response.header("content-type"), Some("application/json"));
    }
    drop(running);
    // The three that were taken are gone, and the connection lives on.
    let gone = |totals: &llmsimulator::metrics::Totals| {
        totals.gpus.iter().all(|gpu| gpu.running + gpu.waiting == 0)
    };
    fixture::wait_until(&server, "the others to be cancelled", gone);
    assert_eq!(client.chat(&streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
    assert_eq!(server.totals().refused, 2);
}

#[test]
fn a_stop_string_ends_each_choice_and_is_named() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let response =
        client.chat(&with(&streaming("instant", "x"), r#""n":2,"stop":["zzz"," three"]"#));
    let ends: Vec<_> = response
        .events()
        .into_iter()
        .filter(|event| event.contains(r#""finish_reason":"stop","stop_reason":" three"}]"#))
        .map(choice_of)
        .collect();
    assert_eq!(ends, [0, 1]);
}

/// vLLM counts one `n` for each prompt and not one for each choice (v1/engine/parallel_sampling.py).
#[test]
fn the_metrics_count_n_once_for_a_prompt() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let family = "vllm:request_params_n";
    for model in ["batched", "instant"] {
        for n in [2, 3] {
            let chat = with(&whole(model, "x"), &format!(r#""n":{n},"max_tokens":2"#));
            assert_eq!(client.chat(&chat).status, 200);
        }
        // Two prompts of two choices each.
        let body = format!(r#"{{"model":"{model}","prompt":["x","y"],"n":2,"max_tokens":3}}"#);
        client.post("/v1/completions", &body);
        assert_eq!(client.response().status, 200);
        let metrics = client.get("/metrics").text().to_owned();
        let value = |series: &str| {
            let mut lines = metrics.lines();
            let line = lines.find(|line| {
                line.strip_prefix(series).is_some_and(|rest| rest.starts_with('{'))
                    && line.contains(&format!(r#""{model}""#))
            });
            line.and_then(|line| line.rsplit(' ').next()).unwrap_or("none").to_owned()
        };
        assert_eq!(value(&format!("{family}_count")), "4.0", "{model}");
        assert_eq!(value(&format!("{family}_sum")), "9.0", "{model}");
        assert_eq!(value("vllm:request_max_num_generation_tokens_count"), "4.0", "{model}");
        assert_eq!(value("vllm:request_max_num_generation_tokens_sum"), "10.0", "{model}");
        assert_eq!(value("vllm:request_generation_tokens_count"), "9.0", "{model}");
    }
}
