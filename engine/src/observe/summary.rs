//! `GET /metrics/summary`: exact percentiles over recent traffic, as JSON.
//!
//! Only the form of the answer: whoever asks collects the values. The invariant: `count` says how
//! many values were recorded since the last reset, `samples` how many the figures beside it were
//! taken over; without values there are only these two.

use std::fmt::Write;

use crate::escape::json_string_content;
use crate::observe::Reading;
use crate::stats::percentile::Summary;
use crate::units::SimSpan;

/// The values of one measure: how many there were since the reset, and those that are still here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// Recorded since the reset.
    pub count: u64,
    /// Still here, in the unit in which they are shown.
    pub samples: Vec<f64>,
}

/// A model's part of the answer. Counts are since the reset.
#[derive(Clone, Debug, Default)]
pub struct ModelSummary<'a> {
    /// Its name.
    pub model: &'a str,
    /// `instant`, `fixed_rate` or `scheduler`.
    pub engine: &'a str,
    /// Requests under way now.
    pub running: u64,
    /// stop, length, cancelled, error.
    pub finished: [u64; 4],
    /// Prompt and output tokens.
    pub tokens: [u64; 2],
    /// Over how many seconds the throughput was averaged.
    pub window_seconds: f64,
    /// Requests finished per second.
    pub requests_per_second: f64,
    /// Prompt tokens per second.
    pub input_tokens_per_second: f64,
    /// Tokens released per second.
    pub output_tokens_per_second: f64,
    /// By name, in seconds: `ttft`, `itl`, ...
    pub latency_seconds: Vec<(&'static str, Values)>,
    /// By name, in tokens: `prompt`, `generation`.
    pub tokens_per_request: Vec<(&'static str, Values)>,
    /// Only for models on the scheduler.
    pub scheduler: Option<SchedulerSummary>,
}

/// What the steps of a model's simulated GPUs did since the reset, and how they stand.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerSummary {
    /// How they stand; counts since the reset.
    pub reading: Reading,
    /// Steps since the reset, by what bound them and by why admission stopped.
    pub steps: Vec<(&'static str, u64)>,
    /// Steps since the reset, by why they admitted no more.
    pub admission_stops: Vec<(&'static str, u64)>,
    /// Sums since the reset: sequences, tokens, and step time.
    pub sums: [f64; 3],
    /// Preemptions since the reset.
    pub preemptions: u64,
    /// Prefix-cache tokens queried and found since the reset.
    pub prefix: [u64; 2],
}

/// The whole answer.
pub fn json(since_reset: SimSpan, models: &[ModelSummary<'_>]) -> String {
    let mut out = String::with_capacity(4096);
    let _ = write!(
        out,
        "{{\"since_reset_seconds\":{},\"models\":{{",
        seconds(since_reset.as_secs_f64())
    );
    for (index, model) in models.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        string(model.model, &mut out);
        out.push(':');
        one(model, &mut out);
    }
    out.push_str("}}");
    out
}

fn one(model: &ModelSummary<'_>, out: &mut String) {
    out.push_str("{\"engine\":");
    string(model.engine, out);
    let [stop, length, cancelled, error] = model.finished;
    let [prompt, generation] = model.tokens;
    let _ = write!(
        out,
        ",\"requests\":{{\"running\":{},\"finished\":{{\"stop\":{stop},\"length\":{length},\
         \"cancelled\":{cancelled},\"error\":{error}}}}},\
         \"tokens\":{{\"prompt\":{prompt},\"generation\":{generation}}},\
         \"throughput\":{{\"window_seconds\":{},\"requests_per_second\":{},\
         \"input_tokens_per_second\":{},\"output_tokens_per_second\":{}}},\"latency_seconds\":",
        model.running,
        seconds(model.window_seconds),
        rate(model.requests_per_second),
        rate(model.input_tokens_per_second),
        rate(model.output_tokens_per_second),
    );
    statistics(&model.latency_seconds, out);
    out.push_str(",\"tokens_per_request\":");
    statistics(&model.tokens_per_request, out);
    if let Some(scheduler) = &model.scheduler {
        out.push_str(",\"scheduler\":");
        steps(scheduler, out);
    }
    out.push('}');
}

fn statistics(all: &[(&'static str, Values)], out: &mut String) {
    out.push('{');
    for (index, (name, values)) in all.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let _ = write!(out, "\"{name}\":{{\"count\":{},\"samples\":", values.count);
        let _ = write!(out, "{}", values.samples.len());
        if let Some(summary) = Summary::of(&mut values.samples.clone()) {
            let Summary { mean, min, p50, p90, p95, p99, max, .. } = summary;
            for (name, value) in [
                ("mean", mean),
                ("min", min),
                ("p50", p50),
                ("p90", p90),
                ("p95", p95),
                ("p99", p99),
                ("max", max),
            ] {
                let _ = write!(out, ",\"{name}\":{}", seconds(value));
            }
        }
        out.push('}');
    }
    out.push('}');
}

fn steps(scheduler: &SchedulerSummary, out: &mut String) {
    let SchedulerSummary { reading, steps, admission_stops, sums, preemptions, prefix } = scheduler;
    let count: u64 = steps.iter().map(|(_, count)| count).sum();
    let mean = |sum: f64| if count == 0 { 0.0 } else { sum / count as f64 };
    let _ = write!(
        out,
        "{{\"running\":{},\"waiting\":{},\"waiting_preempted\":{},\"steps\":{count},\
         \"step_seconds_mean\":{},\"batch_sequences_mean\":{},\"batch_tokens_mean\":{},\
         \"kv_cache\":{{\"blocks\":{},\"used_blocks\":{},\"usage\":{},\
         \"prefix_queried_tokens\":{},\"prefix_hit_tokens\":{}}},\"preemptions\":{preemptions}",
        reading.running,
        reading.waiting,
        reading.waiting_preempted,
        seconds(mean(sums[2])),
        rate(mean(sums[0])),
        rate(mean(sums[1])),
        reading.usable_blocks,
        reading.usable_blocks.saturating_sub(reading.free_blocks),
        seconds(reading.kv_usage()),
        prefix[0],
        prefix[1],
    );
    for (name, counts) in [("bound", steps), ("admission_stops", admission_stops)] {
        let _ = write!(out, ",\"{name}\":{{");
        for (index, (word, count)) in counts.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(out, "{comma}\"{word}\":{count}");
        }
        out.push('}');
    }
    out.push('}');
}

/// Nine decimals at most: nothing is measured finer.
fn seconds(value: f64) -> String {
    decimals(value, 9)
}

fn rate(value: f64) -> String {
    decimals(value, 4)
}

/// A number in JSON, without zeros at its end.
pub fn decimals(value: f64, most: usize) -> String {
    if !value.is_finite() {
        return "null".into();
    }
    let text = format!("{value:.most$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A string in JSON, with its quotes.
pub fn string(text: &str, out: &mut String) {
    let mut bytes = Vec::with_capacity(text.len());
    json_string_content(text, &mut bytes);
    out.push('"');
    out.push_str(&String::from_utf8_lossy(&bytes));
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The manual's example, with values whose percentiles are known: 1 to 5 ms.
    #[test]
    fn a_model_is_told_as_the_manual_tells_it() {
        let ttft = Values { count: 12, samples: vec![0.005, 0.001, 0.003, 0.002, 0.004] };
        let model = ModelSummary {
            model: "a \"b\"",
            engine: "fixed_rate",
            running: 1,
            finished: [3, 0, 2, 0],
            tokens: [24, 54],
            window_seconds: 2.34,
            requests_per_second: 3.0 / 2.34,
            input_tokens_per_second: 24.0 / 2.34,
            output_tokens_per_second: 54.0 / 2.34,
            latency_seconds: vec![("ttft", ttft), ("itl", Values::default())],
            tokens_per_request: vec![],
            scheduler: None,
        };
        assert_eq!(
            json(SimSpan::from_ms(2_340), &[model]),
            "{\"since_reset_seconds\":2.34,\"models\":{\"a \\\"b\\\"\":{\"engine\":\"fixed_rate\",\
             \"requests\":{\"running\":1,\"finished\":{\"stop\":3,\"length\":0,\"cancelled\":2,\
             \"error\":0}},\"tokens\":{\"prompt\":24,\"generation\":54},\
             \"throughput\":{\"window_seconds\":2.34,\"requests_per_second\":1.2821,\
             \"input_tokens_per_second\":10.2564,\"output_tokens_per_second\":23.0769},\
             \"latency_seconds\":{\"ttft\":{\"count\":12,\"samples\":5,\"mean\":0.003,\
             \"min\":0.001,\"p50\":0.003,\"p90\":0.0046,\"p95\":0.0048,\"p99\":0.00496,\
             \"max\":0.005},\"itl\":{\"count\":0,\"samples\":0}},\"tokens_per_request\":{}}}}"
        );
    }

    #[test]
    fn numbers_have_no_more_digits_than_they_need() {
        for (value, text) in [
            (0.0, "0"),
            (100.0, "100"),
            (1e-9, "0.000000001"),
            (0.1 + 0.2, "0.3"),
            (f64::NAN, "null"),
        ] {
            assert_eq!(decimals(value, 9), text);
        }
    }
}
