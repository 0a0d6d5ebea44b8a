//! Hand-worked timelines of the engine's tests, lived through over sockets.
//!
//! Compared are the instants of the live run's event log, all against the first token's, with those
//! of the case: exact to the nanosecond, however slow the machine is. A case whose requests come
//! at different instants has the same timeline as long as all have come before the first token; the
//! journal tells whether they had, and if not the case is served again.

use std::collections::BTreeMap;
use std::time::Duration;

use llmsim_engine::config::{self, Source};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{Policy, Scheduling};
use llmsim_engine::sim::solo::FixedRateSpec;
use llmsim_engine::units::{Blocks, Rate, SimSpan, Tokens};

use crate::client::{Client, streaming};
use crate::fixture;

#[test]
fn three_tokens_per_second_do_not_drift() {
    // Its prompt of 1 token is 8 over a socket, which moves the whole timeline.
    live("fixed_rate_does_not_drift");
}

#[test]
fn one_request_waits_for_the_other() {
    live("one_runs_at_a_time");
}

#[test]
fn an_urgent_request_takes_nothing_from_the_running_one() {
    live("priority_orders_the_queue_not_the_batch");
}

fn live(name: &str) {
    let path = format!("{}/../engine/tests/cases/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let (given, timeline) = text.split_once("\n--\n").unwrap();
    let mut given = given.lines().filter(|line| !line.starts_with('#'));
    let engine = given.next().unwrap();
    let jobs: Vec<Job> = given.map(Job::of).collect();
    let expected: Vec<_> = timeline.lines().filter_map(emitted).collect();
    let expected = since_the_first(&expected);
    for _ in 0..50 {
        if let Some(happened) = serve(name, engine, &jobs) {
            assert_eq!(since_the_first(&happened), expected);
            return;
        }
    }
    panic!("the requests were never all there before the first token");
}

/// `at 0ms a prompt=10 output=2 priority=1`
struct Job {
    name: String,
    words: BTreeMap<String, i32>,
}

impl Job {
    fn of(line: &str) -> Self {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next().unwrap().to_owned();
        let words = words.map(|word| {
            let (key, value) = word.split_once('=').unwrap();
            (key.to_owned(), value.parse().unwrap())
        });
        Self { name, words: words.collect() }
    }

    /// A message with which the prompt has as many tokens: seven are around it.
    fn message(&self) -> String {
        format!("{}{}", self.name, " x".repeat((self.words["prompt"] - 8).max(0) as usize))
    }
}

/// A token: instant in ns, `a#1`, and how it ended.
type Emitted = (u64, String, String);

/// `10ms emit a#1 done`
fn emitted(line: &str) -> Option<Emitted> {
    let mut words = line.split_whitespace();
    let (whole, part) = {
        let ms = words.next()?.strip_suffix("ms")?;
        ms.split_once('.').unwrap_or((ms, ""))
    };
    let at = whole.parse::<u64>().ok()? * 1_000_000 + format!("{part:0<6}").parse::<u64>().ok()?;
    (words.next()? == "emit").then_some(())?;
    Some((at, words.next()?.to_owned(), words.next().unwrap_or_default().to_owned()))
}

fn since_the_first(tokens: &[Emitted]) -> Vec<Emitted> {
    let first = tokens[0].0;
    tokens.iter().map(|(at, token, end)| (at - first, token.clone(), end.clone())).collect()
}

/// Serves the case; nothing if a request came too late.
fn serve(name: &str, engine: &str, jobs: &[Job]) -> Option<Vec<Emitted>> {
    let directory = std::env::temp_dir().join(format!("llmsim-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut answers = "version: 1\nresponses:\n".to_owned();
    for job in jobs {
        let (message, output) = (job.message(), job.words["output"]);
        answers += &format!(
            "  - {{ id: {}, match: {{ exact: [\"{message}\"] }}, synthetic: {{ tokens: {output} }} }}\n",
            job.name
        );
    }
    answers += "default: { content: \"unexpected\" }\n";
    let server = fixture::start_with(|settings| {
        let parsed = config::load(
            &Source::new("models", "models: [{ name: m, context_length: 9, engine: instant }]"),
            &Source::new("responses", answers.as_str()),
        );
        settings.config.responses =
            parsed.unwrap_or_else(|problems| panic!("{problems}")).responses;
        settings.config.models.retain(|model| model.name == "batched");
        let model = &mut settings.config.models[0];
        model.context_length = Tokens::new(1000);
        set(&mut model.engine, engine);
        settings.logs.journal = Some(directory.join("run"));
    });
    let mut clients: Vec<_> = jobs
        .iter()
        .map(|job| {
            let mut client = Client::new(&server);
            let body = streaming("batched", &job.message());
            let body = match job.words.get("priority") {
                Some(priority) => body.replacen('{', &format!("{{\"priority\":{priority},"), 1),
                None => body,
            };
            client.post("/v1/chat/completions", &body);
            // The head says that the engine has it.
            assert_eq!(client.head().0, 200);
            client
        })
        .collect();
    for client in &mut clients {
        while client.chunk().is_some() {}
    }
    drop(clients);
    server.stop(Duration::from_secs(60));

    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap();
    let (inputs, events) = (read("run"), read("run.events"));
    std::fs::remove_dir_all(&directory).unwrap();
    let mut ids = BTreeMap::new();
    let mut last_arrival = 0;
    for line in inputs.lines().filter(|line| line.starts_with("submit")) {
        let words: Vec<_> = line.split(' ').collect();
        last_arrival = words[1].parse().unwrap();
        ids.insert(words[2].to_owned(), jobs[ids.len()].name.clone());
    }
    assert_eq!(ids.len(), jobs.len(), "{inputs}");
    let tokens = events.lines().filter(|line| line.contains(" token "));
    let tokens: Vec<Emitted> = tokens
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let end = words.get(4).map_or("", |&end| if end == "stop" { "done" } else { end });
            let token = format!("{}#{}", ids[words[1]], words[3]);
            (words[0].parse().unwrap(), token, end.to_owned())
        })
        .collect();
    (jobs.len() == 1 || last_arrival < tokens[0].0).then_some(tokens)
}

/// The settings of an engine line over those of the fixture's scheduler; what the line does not
/// name is as the cases' README says.
fn set(spec: &mut EngineSpec, line: &str) {
    let mut words = line.split_whitespace();
    let kind = words.next().unwrap();
    let words: BTreeMap<_, _> = words.filter_map(|word| word.split_once('=')).collect();
    if kind == "fixed_rate" {
        let rate = |key| {
            let per_second = words[key].strip_suffix("/s").unwrap().parse().unwrap();
            Rate::per_second(per_second).unwrap()
        };
        assert_eq!(words["overhead"], "0ms");
        let (prefill, decode) = (rate("prefill"), rate("decode"));
        *spec = EngineSpec::FixedRate(FixedRateSpec { overhead: SimSpan::ZERO, prefill, decode });
        return;
    }
    let EngineSpec::Scheduler(spec) = spec else { panic!("the fixture's model has a scheduler") };
    spec.max_num_batched_tokens = Tokens::new(64);
    spec.max_model_len = Tokens::new(1000);
    spec.num_blocks = Blocks::new(101);
    spec.prefix_caching = false;
    spec.scheduling = Scheduling::Synchronous;
    spec.cost = StepCost::Fixed(SimSpan::from_ms(10));
    for (key, value) in words {
        match (key, value) {
            ("seqs", count) => spec.max_num_seqs = count.parse().unwrap(),
            ("policy", "priority") => spec.policy = Policy::Priority,
            other => panic!("{other:?} is not served live yet"),
        }
    }
}
