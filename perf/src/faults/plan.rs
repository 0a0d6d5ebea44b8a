//! What goes wrong in the run, what each request asks for, and how it must end.
//!
//! The server gets the plan as a faults file; what befalls a request is predicted by the same pure
//! function of the engine that the server decides with, from the same seed. The invariant: requests
//! differ in one number, so that all of one kind have the same answer, and no fault counts another
//! request's attempts.

use std::io;

use llmsim_engine::config::{self, Source};
use llmsim_engine::faults::{self, Asked, Decision, Fault, Rule, Settings, Stage, Tallies};
use llmsim_engine::seed::Seed;
use llmsim_engine::units::SimTime;

use super::ways::{Expected, Form, Surface};

/// Requests that may be hit have this header, so that the same plan is in force all the time.
pub(crate) const SWITCH: &str = "x-faults";

/// The API key that has a rate limit.
const LIMITED: &str = "limited";

/// The model whose requests are hit, and whose simulated GPU is in good health.
pub(crate) const WELL: &str = "well";
/// The model whose simulated GPUs are not.
pub(crate) const SICK: &str = "sick";

/// Faults before the answer. Those that let it through may meet one in the stream.
const BEFORE: [&str; 18] = [
    "status=400",
    "status=401",
    "status=408",
    "status=429 retry_after=1s",
    "status=500 body=html",
    "status=502 body=empty",
    "status=503 retry_after_date=1s",
    "status=529 retry_after_ms=100",
    "queue_full",
    "capacity",
    "starting",
    "draining",
    "hang",
    "hang=100ms",
    "close",
    "reset",
    "delay=50ms",
    "slow_headers=50ms",
];

/// The one that needs quotes.
const CONTENT_TYPE: &str = "content_type=text/html";

/// Faults in the stream or the body.
const STREAM: [&str; 15] = [
    "stop=7 end=clean",
    "stop=11 end=close",
    "stop=13 end=reset",
    "stop=5 end=silence",
    "stall=100ms after=9",
    "malformed_json after=3",
    "truncated_event after=6",
    "invalid_utf8 after=4",
    "duplicate after=8",
    "drop after=10",
    "error_event=openai after=12",
    "error_event=vllm after=14",
    "no_done",
    "no_finish",
    "stall=30ms after=1",
];

/// Parts of all requests, in a hundred: those that are streamed, those of the sick model, and those
/// with the limited key.
const STREAMED: u64 = 70;
const OF_THE_SICK: u64 = 10;
const WITH_A_LIMIT: u64 = 2;

/// When somebody is unwell: from one time to another, in seconds.
pub(crate) type Window = (f64, f64);

/// A plan, and who is hit by it.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    /// As the server reads it.
    pub(crate) yml: String,
    /// That one rule draws a request.
    pub(crate) probability: f64,
    seed: Seed,
    tokens: u32,
    tallies: Tallies,
}

/// A request and how it must end.
pub(crate) struct Request {
    pub(crate) number: u64,
    pub(crate) surface: Surface,
    pub(crate) form: Form,
    pub(crate) is_sick: bool,
    pub(crate) bytes: Vec<u8>,
    /// In exactly one of these ways.
    pub(crate) ways: Vec<Expected>,
}

impl Request {
    /// Whether nothing may befall it.
    pub(crate) fn is_spared(&self) -> bool {
        !self.is_sick && matches!(&self.ways[..], [only] if only.strikes.is_empty())
    }
}

impl Plan {
    /// Of `share` of all requests something befalls, and of the sick GPUs in `windows`.
    pub(crate) fn new(seed: u64, share: f64, tokens: u32, windows: &[Window]) -> io::Result<Self> {
        // Those that have no meaning for a body hit fewer.
        let about_events = ["duplicate", "drop", "no_done", "no_finish"];
        let part = |words: &&str| match about_events.iter().any(|kind| words.starts_with(kind)) {
            true => STREAMED as f64 / 100.0,
            false => 1.0,
        };
        let places = (BEFORE.len() + 1) as f64 + STREAM.iter().map(part).sum::<f64>();
        let probability = share / places;
        let conditions = format!("model={WELL} header.{SWITCH}=on");
        let mut yml = format!("seed: {seed}\nrules:\n");
        for words in BEFORE.iter().chain([&CONTENT_TYPE]).chain(&STREAM) {
            yml.push_str(&format!("  - {words} p={probability:.6} {conditions}\n"));
        }
        // A small part of what the key asks for.
        yml.push_str(&format!("  - rpm=6 key={LIMITED} {conditions}\n"));
        yml.push_str("timeline:\n");
        for &(from, to) in windows {
            let at = |part: f64| format!("{:.3}s", from + (to - from) * part);
            for (part, what) in [
                (0.0, "slow sick/0 by 2 for 200ms"),
                (0.1, "pause sick/1 for 50ms"),
                (0.2, "shrink sick/0 to 10% for 200ms"),
                (0.3, "preempt sick/1"),
                (0.5, "crash sick/0 for 200ms"),
                (0.8, "crash sick for 100ms"),
            ] {
                yml.push_str(&format!("  at {}: {what}\n", at(part)));
            }
        }
        let models = config::load(
            &Source::new("models", models_yml(20)),
            &Source::new("responses", "version: 1\ndefault: { content: x }\n"),
        )
        .map_err(|problems| io::Error::other(problems.to_string()))?
        .models;
        let settings = config::load_faults(&Source::new("faults", yml.clone()), &models)
            .map_err(|problems| io::Error::other(problems.to_string()))?;
        let (seed, tallies) = (Seed::new(seed), Tallies::default());
        Ok(Self { settings, yml, probability, seed, tokens, tallies })
    }

    /// The request of this number; `may_fail` says whether something may befall it.
    pub(crate) fn request(&mut self, number: u64, may_fail: bool) -> Request {
        let drawn = |what: &str| self.seed.with(what.as_bytes()).with(&number.to_le_bytes());
        let surface = match drawn("surface").below(100) {
            0..55 => Surface::Chat,
            55..70 => Surface::Completions,
            70..80 => Surface::Responses,
            _ => Surface::Messages,
        };
        let form = match drawn("form").below(100) {
            0..STREAMED => Form::Stream,
            _ => Form::Whole,
        };
        let is_sick = drawn("model").below(100) < OF_THE_SICK;
        let key = (drawn("key").below(100) < WITH_A_LIMIT).then_some(LIMITED);
        let body = surface.body(model(is_sick), &format!("u{number:08}"), form, self.tokens);
        let path = surface.path();
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nhost: perf\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n",
            body.len()
        );
        if may_fail {
            bytes.push_str(&format!("{SWITCH}: on\r\n"));
        }
        if let Some(key) = key {
            bytes.push_str(&format!("authorization: Bearer {key}\r\n"));
        }
        bytes.push_str("\r\n");
        bytes.push_str(&body);
        let asked = Asked {
            path,
            generates: true,
            model: Some(model(is_sick)),
            key,
            text: Some("Hello"),
            header: &|name| (name == SWITCH && may_fail).then_some("on"),
            content: faults::content_of(path, body.as_bytes()),
            is_stream: form == Form::Stream,
            load: 0,
            at: SimTime::ZERO,
        };
        let Settings { rules, seed, .. } = &self.settings;
        let candidates = faults::candidates(rules, &asked);
        let decision = faults::decide(&candidates, *seed, &mut self.tallies, &asked);
        let place = |rule: &Rule| {
            let place = rules.iter().position(|other| other.id == rule.id);
            place.expect("a decision is made of the plan's own rules")
        };
        let ways = ways(&decision, &place, surface, form, is_sick);
        Request { number, surface, form, is_sick, bytes: bytes.into_bytes(), ways }
    }

    /// The rules that hit requests, with their places.
    pub(crate) fn of_requests(&self) -> impl Iterator<Item = (usize, &Rule)> {
        let all = self.settings.rules.iter().enumerate();
        all.filter(|(_, rule)| rule.fault.stage() != Stage::Engine)
    }

    /// How often each kind of disturbance befalls a GPU of the sick model.
    pub(crate) fn disturbances(&self) -> Vec<(&'static str, u64)> {
        let mut counts: Vec<(&'static str, u64)> = Vec::new();
        for rule in &self.settings.rules {
            if !matches!(rule.fault, Fault::Engine(_)) {
                continue;
            }
            let gpus = if rule.when.gpu.is_some() { 1 } else { u64::from(SICK_GPUS) };
            match counts.iter_mut().find(|(kind, _)| *kind == rule.fault.kind()) {
                Some((_, count)) => *count += gpus,
                None => counts.push((rule.fault.kind(), gpus)),
            }
        }
        counts
    }
}

/// The ways in which a request may end of which this has been decided.
fn ways(
    decision: &Decision<'_>,
    place: &dyn Fn(&Rule) -> usize,
    surface: Surface,
    form: Form,
    is_sick: bool,
) -> Vec<Expected> {
    let before = decision.before.map(|rule| (&rule.fault, place(rule)));
    let stream = decision.stream.map(|rule| (&rule.fault, place(rule)));
    let mut ways = vec![Expected::of(before, stream, surface, form)];
    let is_answered = ways[0].is_answered;
    if let (Some(rule), false) = (decision.limits.first(), is_answered) {
        ways.push(Expected::refused(429, before.into_iter().chain([(&rule.fault, place(rule))])));
    }
    if is_sick {
        ways.push(Expected::down());
        ways.extend(Expected::crashed(form));
    }
    ways
}

/// The name of a model.
pub(crate) fn model(is_sick: bool) -> &'static str {
    if is_sick { SICK } else { WELL }
}

const SICK_GPUS: u32 = 2;

/// Two models whose steps all take the same time, whatever is in them.
pub(crate) fn models_yml(step_ms: u64) -> String {
    let model = |name: &str, replicas: u32, blocks: u32| {
        format!(
            "  - name: {name}
    context_length: 4096
    engine: scheduler
    replicas: {replicas}
    hardware: even
    weights: {{ gib: 0.0001 }}
    kv_cache: {{ bytes_per_token: 1, num_gpu_blocks_override: {blocks} }}
    scheduler: {{ max_batch_tokens: 65536, max_num_sequences: 4096 }}
    latency: {{ step_overhead_ms: {step_ms} }}
"
        )
    };
    format!(
        "version: 1
hardware:
  even: {{ hbm_gib: 8, memory_bandwidth_gbps: 1000000000, peak_tflops: 1000000000 }}
models:
{}{}",
        model(WELL, 1, 100_000),
        model(SICK, SICK_GPUS, 2_000),
    )
}
