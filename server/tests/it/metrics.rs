//! What the server says about itself, against what a client and the step log know.

use std::collections::BTreeMap;

use llmsimulator::args::MetricFamilies;
use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value};

use crate::client::{Client, streaming, whole};
use crate::fixture;

/// All series of a scrape.
struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            lines
                .map(|line| {
                    let (series, value) = line.rsplit_once(' ').unwrap();
                    let value = value.replace("+Inf", "inf").parse().unwrap();
                    (series.to_owned(), value)
                })
                .collect(),
        )
    }

    fn get(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("no series {series}"))
    }

    /// A histogram's count, sum, and how many values are at most each bound, by model and replica.
    fn histogram(&self, name: &str, labels: &str) -> (f64, f64, Vec<(f64, f64)>) {
        let prefix = format!("{name}_bucket{{{labels},le=\"");
        let buckets = self.0.iter().filter_map(|(series, count)| {
            let bound = series.strip_prefix(&prefix)?.strip_suffix("\"}")?;
            Some((bound.replace("+Inf", "inf").parse().unwrap(), *count))
        });
        let one = |suffix: &str| self.get(&format!("{name}_{suffix}{{{labels}}}"));
        (one("count"), one("sum"), buckets.collect())
    }
}

/// A histogram of these values is what is exported.
fn check_histogram(scrape: &Scrape, name: &str, labels: &str, values: &[f64]) {
    let (count, sum, buckets) = scrape.histogram(name, labels);
    assert_eq!(count, values.len() as f64, "{name}");
    let expected: f64 = values.iter().sum();
    assert!((sum - expected).abs() < 1e-9 * expected.max(1.0), "{name}: {sum}, not {expected}");
    assert!(buckets.len() > 5, "{name}");
    for (bound, count) in buckets {
        let below = values.iter().filter(|value| **value <= bound).count();
        assert_eq!(count, below as f64, "{name} up to {bound}");
    }
}

/// A series of the GPU `batched/0` with one label more; labels stand in alphabetical order.
fn series(family: &str, label: &str, value: &str) -> String {
    let mut labels = [("model", "batched"), ("replica", "0"), (label, value)];
    labels.sort_unstable();
    let labels = labels.map(|(name, value)| format!("{name}=\"{value}\""));
    format!("{family}{{{}}}", labels.join(","))
}

fn parse(text: &str) -> Value {
    sonic_rs::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The `metrics` object at the end of a stream that asked for it.
fn timed(client: &mut Client, model: &str, message: &str) -> Value {
    let body = streaming(model, message);
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         X-LLMSim-Timing: 1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let response = client.response();
    assert_eq!(response.status, 200);
    let events = response.events();
    let usage = parse(events[events.len() - 2]);
    assert!(usage.get("usage").is_object(), "{usage:?}");
    usage.get("metrics").unwrap().clone()
}

#[test]
fn every_step_in_the_log_is_in_the_metrics() {
    let path = std::env::temp_dir().join(format!("llmsim-metrics-{}.jsonl", std::process::id()));
    let server = fixture::start_with(|settings| settings.logs.step_log = Some(path.clone()));
    let clients: Vec<_> = (0..6)
        .map(|number| {
            let address = server.address();
            std::thread::spawn(move || {
                let mut client = Client::to(address);
                let (message, tokens) =
                    if number % 2 == 0 { ("[hundred] please", 100) } else { ("anything", 8) };
                // A limit that the answer just reaches: an answer that ends by itself would cost
                // one step more, after all clients have got theirs.
                let body = streaming("batched", message);
                let body = body.replace("true}", &format!("true,\"max_tokens\":{tokens}}}"));
                assert_eq!(client.chat(&body).status, 200);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    // Steps are counted when their tokens are on their way: the scrape after the one that shows an
    // empty batch shows them all.
    let scrape = || Scrape::of(Client::new(&server).get("/metrics").text());
    fixture::wait_until(&server, "an empty batch", |_| {
        let running = "llm_sim_scheduler_running_requests{model=\"batched\",replica=\"0\"}";
        scrape().get(running) == 0.0
    });
    let scrape = scrape();
    server.stop(std::time::Duration::from_secs(10));
    let log = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let steps: Vec<Value> = log.lines().map(parse).collect();
    assert!(steps.len() >= 100, "one hundred tokens take as many steps");

    let gpu = "model=\"batched\",replica=\"0\"";
    let number = |step: &Value, key: &str| step.get(key).as_u64().unwrap() as f64;
    let all = |of: &dyn Fn(&Value) -> f64| steps.iter().map(of).collect::<Vec<f64>>();
    let tokens = all(&|step| number(step, "decode_tokens") + number(step, "prefill_tokens"));
    let sequences = all(&|step| step.get("tokens").as_object().unwrap().len() as f64);
    let durations = all(&|step| number(step, "duration_ns") / 1e9);
    check_histogram(&scrape, "llm_sim_scheduler_batch_tokens", gpu, &tokens);
    check_histogram(&scrape, "llm_sim_scheduler_batch_sequences", gpu, &sequences);
    check_histogram(&scrape, "llm_sim_scheduler_step_duration_seconds", gpu, &durations);
    for (phase, key) in [("prefill", "prefill_tokens"), ("decode", "decode_tokens")] {
        let series = series("llm_sim_scheduler_scheduled_tokens_total", "phase", phase);
        assert_eq!(scrape.get(&series), all(&|step| number(step, key)).iter().sum::<f64>());
    }
    for (family, label, key) in [
        ("llm_sim_scheduler_steps_total", "bound", "bound_by"),
        ("llm_sim_scheduler_admission_stops_total", "reason", "admission_stopped"),
    ] {
        let mut counts: BTreeMap<&str, f64> = BTreeMap::new();
        for step in &steps {
            *counts.entry(step.get(key).unwrap().as_str().unwrap()).or_default() += 1.0;
        }
        for (word, count) in counts {
            let series = series(family, label, word);
            assert_eq!(scrape.get(&series), count, "{series}");
        }
    }
    // Six requests: three answers of 100 tokens and three of 8.
    let finished = "llm_sim_requests_total{finish_reason=\"stop\",model=\"batched\"}";
    assert_eq!(scrape.get(finished), 6.0);
    assert_eq!(scrape.get("llm_sim_generation_tokens_total{model=\"batched\"}"), 324.0);
    let lengths = [100.0, 8.0, 100.0, 8.0, 100.0, 8.0];
    let model = "model=\"batched\"";
    check_histogram(&scrape, "llm_sim_request_generation_tokens", model, &lengths);
}

#[test]
fn a_request_is_told_its_own_times_and_they_add_up_to_the_exported_ones() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let told: Vec<Value> = (0..5).map(|_| timed(&mut client, "org/paced", "[hundred]")).collect();
    let of = |metrics: &Value, name: &str| metrics.get(name).as_f64().unwrap();
    for metrics in &told {
        // On the simulated timeline the last of 100 tokens comes 99 ms after the first, exactly.
        let span = of(metrics, "last_token_scheduled") - of(metrics, "first_token_scheduled");
        assert!((span - 0.099).abs() < 1e-9, "{span}");
        // What happened is never before what was due, nor bytes before the release.
        assert!(of(metrics, "first_token_released") >= of(metrics, "first_token_scheduled"));
        assert!(of(metrics, "first_token_sent") >= of(metrics, "first_token_released"));
        assert!(of(metrics, "max_token_lag") >= of(metrics, "max_engine_lag"));
        assert_eq!(of(metrics, "first_token_latency"), of(metrics, "first_token_released"));
        let phases = of(metrics, "prefill_time") + of(metrics, "decode_time");
        assert!((phases - of(metrics, "inference_time")).abs() < 2e-9, "{metrics:?}");
    }
    let scrape = Scrape::of(client.get("/metrics").text());
    for (field, series) in [
        ("first_token_latency", "llm_sim_time_to_first_token_seconds"),
        ("e2e_latency", "llm_sim_e2e_request_latency_seconds"),
        ("queued_time", "llm_sim_queue_time_seconds"),
        ("prefill_time", "llm_sim_prefill_time_seconds"),
        ("decode_time", "llm_sim_decode_time_seconds"),
        ("first_token_sent", "llm_sim_first_token_sent_seconds"),
    ] {
        let values: Vec<f64> = told.iter().map(|metrics| of(metrics, field)).collect();
        check_histogram(&scrape, series, "model=\"org/paced\"", &values);
    }
    // vLLM's family is the same observation.
    let labels = "engine=\"0\",model_name=\"org/paced\"";
    let sum: f64 = told.iter().map(|metrics| of(metrics, "decode_time")).sum();
    let vllm = scrape.get(&format!("vllm:request_decode_time_seconds_sum{{{labels}}}"));
    assert!((vllm - sum).abs() < 1e-8, "{vllm} and {sum}");
}

#[test]
fn a_plain_answer_is_told_its_times_too_and_nobody_else_is() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = whole("batched", "anything");
    client.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         x-llmsim-timing: 1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = parse(client.response().text());
    let metrics = answer.get("metrics").unwrap();
    assert!(metrics.get("first_token_sent").is_null());
    assert!(metrics.get("e2e_latency").as_f64().unwrap() >= 0.005 * 8.0);
    assert!(!client.chat(&whole("batched", "anything")).text().contains("\"metrics\""));
    assert!(!client.chat(&streaming("batched", "anything")).text().contains("\"metrics\""));
}

#[test]
fn the_summary_counts_from_the_last_reset_and_windows_keep_the_newest() {
    // The fixture keeps 100 requests and 100 tokens.
    let server = fixture::start();
    let mut client = Client::new(&server);
    for _ in 0..3 {
        client.chat(&streaming("instant", "[hundred]"));
    }
    let summary = parse(client.get("/metrics/summary").text());
    let model = summary.get("models").unwrap().get("instant").unwrap().clone();
    let of = |path: &[&str]| {
        let value = path.iter().fold(&model, |value, key| value.get(key).unwrap());
        value.as_u64().unwrap()
    };
    assert_eq!(of(&["requests", "finished", "stop"]), 3);
    assert_eq!(of(&["tokens", "generation"]), 300);
    assert_eq!(of(&["latency_seconds", "itl", "count"]), 297);
    assert_eq!(of(&["latency_seconds", "itl", "samples"]), 100);
    assert_eq!(of(&["latency_seconds", "lag", "count"]), 300);
    assert_eq!(of(&["tokens_per_request", "generation", "p50"]), 100);

    client.post("/metrics/summary/reset", "");
    assert_eq!(client.response().status, 200);
    client.chat(&streaming("instant", "anything"));
    let summary = parse(client.get("/metrics/summary").text());
    let model = summary.get("models").unwrap().get("instant").unwrap();
    let itl = model.get("latency_seconds").unwrap().get("itl").unwrap();
    assert_eq!(itl.get("count").as_u64(), Some(7));
    assert_eq!(model.get("tokens").unwrap().get("generation").as_u64(), Some(8));
    // The counters that Prometheus reads know no reset.
    let scrape = Scrape::of(client.get("/metrics").text());
    assert_eq!(scrape.get("llm_sim_generation_tokens_total{model=\"instant\"}"), 308.0);
}

#[test]
fn the_live_page_is_fed_until_its_client_has_enough() {
    let server = fixture::start();
    Client::new(&server).chat(&streaming("batched", "anything"));
    let mut viewer = Client::new(&server);
    viewer.send("GET /ui/data HTTP/1.1\r\nHost: h\r\n\r\n");
    let (status, headers) = viewer.head();
    assert_eq!(status, 200);
    assert!(headers.iter().any(|(_, value)| value.starts_with("text/event-stream")));
    for _ in 0..3 {
        let event = String::from_utf8(viewer.chunk().unwrap()).unwrap();
        let event = parse(event.strip_prefix("data: ").unwrap().trim_end());
        let gpus = event.get("gpus").unwrap().as_array().unwrap();
        let models: Vec<_> =
            gpus.iter().map(|gpu| gpu.get("model").unwrap().as_str().unwrap()).collect();
        assert_eq!(models, ["instant", "org/paced", "batched"]);
        assert!(event.get("verdict").unwrap().get("ok").is_boolean());
        assert_eq!(gpus[2].get("kv_blocks_total").as_u64(), Some(299_999));
        assert!(gpus[0].get("kv_usage").is_null());
    }
    drop(viewer);
    // A viewer that leaves is no connection any more, and one that stays does not hold up the end.
    let mut other = Client::new(&server);
    other.send("GET /ui/data HTTP/1.1\r\nHost: h\r\n\r\n");
    other.head();
    assert!(other.chunk().is_some());
    fixture::wait_until(&server, "the first viewer to be gone", |totals| totals.connections <= 1);
    server.stop(std::time::Duration::from_secs(30));
}

#[test]
fn families_and_format_are_chosen() {
    let server = fixture::start_with(|settings| {
        settings.metrics.families = MetricFamilies { vllm: true, llm_sim: false };
    });
    let mut client = Client::new(&server);
    let plain = client.get("/metrics");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(
        plain.text().contains("vllm:num_requests_running{engine=\"0\",model_name=\"batched\"}")
    );
    assert!(!plain.text().contains("llm_sim_"));
    client.send(
        "GET /metrics HTTP/1.1\r\nHost: h\r\nAccept: application/openmetrics-text;version=1.0.0\
         \r\n\r\n",
    );
    let open = client.response();
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().contains("# TYPE vllm:prompt_tokens counter\n"));
    assert!(open.text().ends_with("# EOF\n"));
}
