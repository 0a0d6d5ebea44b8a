//! What the live page is fed: one JSON object a second.
//!
//! The shape is documented in `docs/metrics.md`. The invariant: a figure that nothing was measured
//! for is `null`, never a zero that was made up.

use std::fmt::Write;

use llmsim_engine::observe::summary::{decimals, string};
use llmsim_engine::observe::{Measure, Reading};
use llmsim_engine::stats::percentile::{Percent, linear, sort};
use llmsim_engine::units::SimSpan;

use crate::clock;
use crate::faults::admin;
use crate::metrics::observatory::{
    LIVE_SECONDS, Model, Observatory, Progress, Replica, State, Tick, load, since,
};
use crate::metrics::process::{self, Threads};
use crate::served::Scope;

/// The most values that a percentile of the page is taken over: sorting them takes a millisecond.
const MOST_VALUES: usize = 20_000;

impl Observatory {
    /// One event of `GET /ui/data`, without its frame.
    pub(crate) fn live(&self) -> String {
        let replicas = self.replicas(Scope::Server);
        let readings = self.by_model(&replicas);
        let state = self.state();
        let mut out = String::with_capacity(4096);
        let now = self.clock.now();
        let _ = write!(
            out,
            "{{\"time\":{},\"uptime_seconds\":{},\"version\":\"{}\",\
             \"window_seconds\":{LIVE_SECONDS},",
            decimals(clock::unix_time(), 3),
            decimals(now.as_ns() as f64 / 1e9, 3),
            env!("CARGO_PKG_VERSION"),
        );
        self.write_verdict(&state, &mut out);
        self.write_process(&state, &mut out);
        out.push_str("\"gpus\":[");
        for (index, replica) in replicas.iter().enumerate() {
            out.push_str(if index > 0 { "," } else { "" });
            self.write_gpu(replica, &state, &mut out);
        }
        out.push_str("],\"models\":[");
        for (place, reading) in readings.iter().enumerate() {
            out.push_str(if place > 0 { "," } else { "" });
            self.write_model(place, reading, &state, &mut out);
        }
        out.push_str("],\"faults\":{");
        admin::write_hits(&self.faults, 10, &mut out);
        out.push_str("}}");
        out
    }

    fn write_verdict(&self, state: &State, out: &mut String) {
        let judgement = state.verdict.judgement();
        let window = &state.window;
        let reasons: Vec<_> =
            judgement.reasons.iter().map(|reason| format!("\"{}\"", reason.as_str())).collect();
        let lag = window.token_lag_p99.max(window.engine_lag_p99);
        let is_judged = window.tokens >= self.thresholds().least_tokens;
        let _ = write!(
            out,
            "\"verdict\":{{\"ok\":{},\"reason\":\"{}\",\"reasons\":[{}],\"since_seconds\":{},\
             \"p99_lag_seconds\":{},\"threshold_seconds\":{},\"window_seconds\":{},\
             \"tokens\":{}}},",
            judgement.is_ok(),
            judgement.word(),
            reasons.join(","),
            decimals(self.clock.now().saturating_since(state.verdict.since()).as_secs_f64(), 1),
            number(is_judged.then(|| lag.as_secs_f64()), 9),
            decimals(self.thresholds().lag.as_secs_f64(), 9),
            self.settings.fidelity_window.as_secs(),
            window.tokens,
        );
    }

    fn write_process(&self, state: &State, out: &mut String) {
        out.push_str("\"process\":{\"cpu_seconds_per_second\":");
        match last_two(state) {
            Some((before, after)) => {
                let elapsed = after.at.saturating_since(before.at).as_secs_f64().max(1e-9);
                let [then, now] =
                    [before, after].map(|tick| Threads::seconds(&tick.threads.cpu_ns));
                let shares = now.iter().zip(then).map(|((role, now), (_, then))| {
                    format!("\"{role}\":{}", decimals((now - then).max(0.0) / elapsed, 4))
                });
                let _ = write!(out, "{{{}}}", shares.collect::<Vec<_>>().join(","));
            }
            None => out.push_str("null"),
        }
        let _ = write!(
            out,
            ",\"resident_bytes\":{},\"connections\":{},\"requests_in_flight\":{},\
             \"io_driver\":\"{}\",\"io_threads\":{}}},",
            process::resident_bytes(),
            self.io.iter().map(|shard| shard.connections.get()).sum::<u64>(),
            self.io.iter().map(|shard| shard.in_flight.get()).sum::<u64>(),
            self.driver.get().map_or("", |driver| driver.name),
            self.io.len(),
        );
    }

    fn write_gpu(&self, replica: &Replica, state: &State, out: &mut String) {
        let model = &self.models[replica.model];
        let reading = &replica.reading;
        out.push_str("{\"model\":");
        string(&model.name, out);
        let lately = last_two(state).map(|ticks| Lately::of(ticks, &replica.seats));
        let rate = |of: fn(&Lately) -> f64| number(lately.as_ref().map(of), 4);
        let running = if model.has_steps() { reading.running } else { reading.held };
        let _ = write!(
            out,
            ",\"replica\":{},\"engine\":\"{}\",\"running\":{running},\"waiting\":{},\
             \"waiting_preempted\":{},\"preemptions\":{},\"preemptions_per_second\":{},\
             \"prompt_tokens_per_second\":{},\"output_tokens_per_second\":{},",
            replica.replica,
            model.engine,
            reading.waiting,
            reading.waiting_preempted,
            reading.preemptions,
            rate(|lately| lately.preemptions),
            rate(|lately| lately.prompt_tokens),
            rate(|lately| lately.generation_tokens),
        );
        write_steps(model, reading, lately.as_ref(), out);
        let load = load(&state.history, &replica.seats);
        let if_steps = |value: f64| number(model.has_steps().then_some(value), 4);
        let memory = model.memory;
        let _ = write!(
            out,
            "\"memory_used_bytes\":{},\"memory_total_bytes\":{},\"compute_utilisation\":{},\
             \"memory_bandwidth_utilisation\":{},\"busy\":{}}}",
            or_null(memory.map(|memory| memory.used(reading).get())),
            or_null(memory.map(|memory| memory.total.get())),
            if_steps(load.compute),
            if_steps(load.memory_bandwidth),
            if_steps(load.busy),
        );
    }

    fn write_model(&self, place: usize, reading: &Reading, state: &State, out: &mut String) {
        let model = &self.models[place];
        let seats: Vec<usize> = self.seats_of(place, Scope::Server).collect();
        let lately = last_two(state).map(|ticks| Lately::of(ticks, &seats));
        let rate = |of: fn(&Lately) -> f64| number(lately.as_ref().map(of), 4);
        out.push_str("{\"model\":");
        string(&model.name, out);
        let _ = write!(
            out,
            ",\"engine\":\"{}\",\"running\":{},\"requests\":{{\"stop\":{},\"length\":{},\
             \"cancelled\":{},\"error\":{}}},\"requests_per_second\":{},\
             \"prompt_tokens_per_second\":{},\"output_tokens_per_second\":{}",
            model.engine,
            reading.held,
            reading.stopped,
            reading.reached_length,
            reading.cancelled,
            reading.errors(),
            rate(|lately| lately.finished),
            rate(|lately| lately.prompt_tokens),
            rate(|lately| lately.generation_tokens),
        );
        let from =
            since(&state.history, self.clock.now(), SimSpan::from_ns(LIVE_SECONDS * 1_000_000_000));
        for (name, measure) in [
            ("ttft", Measure::FirstToken),
            ("itl", Measure::InterToken),
            ("engine_lag", Measure::EngineLag),
        ] {
            let index = Measure::ALL.iter().position(|other| *other == measure);
            let mut values = Vec::new();
            for &seat in &seats {
                let pushed = from.map_or(0, |tick| {
                    tick.seats[seat].pushed[index.expect("the list names all measures")]
                });
                self.seats[seat].figures.window(measure).since(pushed, MOST_VALUES, &mut values);
            }
            write_percentiles(name, values, out);
        }
        let mut values = Vec::new();
        for (thread, shard) in self.io.iter().enumerate() {
            for place in self.places_of(place, Scope::Server) {
                let pushed = from.map_or(0, |tick| tick.delivered[thread][place]);
                shard.replicas[place].window().since(pushed, MOST_VALUES, &mut values);
            }
        }
        write_percentiles("lag", values, out);
        out.push('}');
    }
}

/// What happened in the last second.
struct Lately {
    seconds: f64,
    prompt_tokens: f64,
    generation_tokens: f64,
    finished: f64,
    preemptions: f64,
    steps: f64,
    /// Sequences, tokens and seconds of those steps.
    step_sums: [f64; 3],
    /// What bound most of them.
    bound: Option<&'static str>,
}

impl Lately {
    /// Rates per second between two looks, over these seats.
    fn of((before, after): (&Tick, &Tick), seats: &[usize]) -> Self {
        let seconds = after.at.saturating_since(before.at).as_secs_f64().max(1e-9);
        let pairs = || seats.iter().map(|&seat| (&before.seats[seat], &after.seats[seat]));
        let count = |of: fn(&Progress) -> u64| -> f64 {
            pairs().map(|(then, now)| of(now).saturating_sub(of(then)) as f64).sum()
        };
        let mut bounds: Vec<(&'static str, u64)> = Vec::new();
        for (then, now) in pairs() {
            for ((word, now), (_, then)) in now.bounds.iter().zip(&then.bounds) {
                bounds.push((word, now.saturating_sub(*then)));
            }
        }
        let most = bounds.into_iter().max_by_key(|(_, count)| *count);
        Self {
            seconds,
            prompt_tokens: count(|progress| progress.prompt_tokens) / seconds,
            generation_tokens: count(|progress| progress.generation_tokens) / seconds,
            finished: count(|progress| progress.finished) / seconds,
            preemptions: count(|progress| progress.preemptions) / seconds,
            steps: count(|progress| progress.steps),
            step_sums: std::array::from_fn(|index| {
                pairs().map(|(then, now)| now.step_sums[index] - then.step_sums[index]).sum()
            }),
            bound: most.filter(|(_, count)| *count > 0).map(|(word, _)| word),
        }
    }

    fn per_step(&self, index: usize) -> Option<f64> {
        (self.steps > 0.0).then(|| self.step_sums[index] / self.steps)
    }
}

fn last_two(state: &State) -> Option<(&Tick, &Tick)> {
    let count = state.history.len();
    (count >= 2).then(|| (&state.history[count - 2], &state.history[count - 1]))
}

fn write_steps(model: &Model, reading: &Reading, lately: Option<&Lately>, out: &mut String) {
    if !model.has_steps() {
        out.push_str(
            "\"max_running\":null,\"kv_blocks_used\":null,\"kv_blocks_total\":null,\
             \"kv_usage\":null,\"steps_per_second\":null,\"step_seconds\":null,\
             \"step_bound\":null,\"batch_tokens\":null,\"batch_sequences\":null,\
             \"admission_stop\":null,",
        );
        return;
    }
    let bound = lately.and_then(|lately| lately.bound);
    let per_step = |index| lately.and_then(|lately| lately.per_step(index));
    let _ = write!(
        out,
        "\"max_running\":{},\"kv_blocks_used\":{},\"kv_blocks_total\":{},\"kv_usage\":{},\
         \"steps_per_second\":{},\"step_seconds\":{},\"step_bound\":{},\"batch_tokens\":{},\
         \"batch_sequences\":{},\"admission_stop\":\"{}\",",
        model.max_running,
        reading.usable_blocks.saturating_sub(reading.free_blocks),
        reading.usable_blocks,
        decimals(reading.kv_usage(), 6),
        number(lately.map(|lately| lately.steps / lately.seconds), 4),
        number(per_step(2), 9),
        bound.map_or("null".to_owned(), |word| format!("\"{word}\"")),
        number(per_step(1), 4),
        number(per_step(0), 4),
        reading.last_stop.as_str(),
    );
}

fn write_percentiles(name: &str, nanoseconds: Vec<u64>, out: &mut String) {
    let mut values: Vec<f64> = nanoseconds.into_iter().map(|ns| ns as f64 / 1e9).collect();
    sort(&mut values);
    let at = |percent| number(linear(&values, percent), 9);
    let _ = write!(
        out,
        ",\"{name}\":{{\"samples\":{},\"p50\":{},\"p90\":{},\"p99\":{}}}",
        values.len(),
        at(Percent::P50),
        at(Percent::P90),
        at(Percent::P99),
    );
}

fn number(value: Option<f64>, most: usize) -> String {
    value.map_or("null".into(), |value| decimals(value, most))
}

fn or_null(value: Option<u64>) -> String {
    value.map_or("null".into(), |value| value.to_string())
}
