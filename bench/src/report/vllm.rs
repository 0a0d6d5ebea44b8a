//! The keys of `vllm bench serve --save-result`, for scripts that already read them.
//!
//! Their clock starts at the actual send, so these are our raw figures; TPOT, ITL and percentiles
//! are defined alike. One object per level; a sweep is an array of them, or a line for each where
//! results are appended.

use std::collections::BTreeMap;

use serde::Serialize;
use sonic_rs::{Value, json};

use super::json::Environment;
use super::{Done, Measured};
use crate::plan::{Arrivals, Gaps, Load};
use llmsim_engine::units::{SimSpan, SimTime};

use crate::record::{Outcome, Record, Reported};
use crate::result::Stat;
use crate::settings::Settings;

/// Keys in alphabetical order: what they are is fixed by vLLM, their order means nothing.
type Object = BTreeMap<String, Value>;

/// The results as vLLM's benchmark writes them.
pub fn render(settings: &Settings, environment: &Environment, levels: &[Done]) -> String {
    let mut objects: Vec<Object> = levels
        .iter()
        .filter_map(|done| {
            let measured = done.outcome.as_ref().ok()?;
            Some(object(settings, environment, &done.setting.load, measured))
        })
        .collect();
    if settings.report.append {
        return objects.iter().map(|object| line(object) + "\n").collect();
    }
    let whole = match (settings.sweep, objects.len()) {
        (None, 1) => sonic_rs::to_string_pretty(&objects.remove(0)),
        _ => sonic_rs::to_string_pretty(&objects),
    };
    let mut text = whole.expect("plain data with text keys and finite numbers is always written");
    text.push('\n');
    text
}

fn line(object: &Object) -> String {
    sonic_rs::to_string(object)
        .expect("plain data with text keys and finite numbers is always written")
}

fn object(
    settings: &Settings,
    environment: &Environment,
    load: &Load,
    measured: &Measured,
) -> Object {
    let summary = &measured.summary;
    let (rate, burstiness, cap) = load_words(load);
    let mut out = Object::new();
    set(&mut out, "date", &date(environment.started_unix_s));
    let backend = settings.workload.form.api.backend();
    set(&mut out, "endpoint_type", &backend);
    set(&mut out, "backend", &backend);
    set(&mut out, "label", &settings.report.label);
    set(&mut out, "model_id", &settings.model);
    let tokenizer = settings.report.tokenizer.as_ref().unwrap_or(&settings.model);
    set(&mut out, "tokenizer_id", tokenizer);
    set(&mut out, "num_prompts", &summary.counts.planned);
    set(&mut out, "request_rate", &rate);
    set(&mut out, "burstiness", &burstiness);
    set(&mut out, "max_concurrency", &cap);
    set(&mut out, "duration", &summary.duration.as_secs_f64());
    set(&mut out, "completed", &summary.counts.completed);
    set(&mut out, "failed", &summary.counts.failed);
    set(&mut out, "total_input_tokens", &summary.tokens.0);
    set(&mut out, "total_output_tokens", &summary.tokens.1);
    set(&mut out, "request_throughput", &summary.requests_per_s);
    set(&mut out, "output_throughput", &summary.output_tokens_per_s);
    set(&mut out, "total_token_throughput", &summary.total_tokens_per_s);
    set(&mut out, "max_output_tokens_per_s", &peak_chunks_per_s(&measured.records));
    set(&mut out, "max_concurrent_requests", &summary.peak_in_flight);
    let good = summary.good.map(|good| f64::from(good) / summary.duration.as_secs_f64().max(1e-9));
    set(&mut out, "request_goodput", &good);
    // Of transcriptions only, but always there.
    set(&mut out, "rtfx", &0.0);
    latencies(&mut out, &measured.records);
    let raw = summary.raw.as_ref();
    if let (Some(raw), Some(_)) = (raw, cap) {
        statistics(&mut out, settings, "client_queue_time", &raw.queue_wait);
        if summary.arrivals.is_some_and(|arrivals| arrivals.target.is_some()) {
            statistics(&mut out, settings, "e2el_including_client_queue", &summary.e2e);
        }
    }
    statistics(&mut out, settings, "ttft", raw.map_or(&summary.ttft, |raw| &raw.ttft));
    statistics(&mut out, settings, "tpot", &summary.tpot);
    statistics(&mut out, settings, "itl", &summary.itl);
    statistics(&mut out, settings, "e2el", raw.map_or(&summary.e2e, |raw| &raw.e2e));
    for (key, value) in &settings.report.metadata {
        set(&mut out, key, value);
    }
    if settings.report.detailed {
        details(&mut out, measured);
    }
    out
}

fn load_words(load: &Load) -> (Value, f64, Option<u32>) {
    let infinite = || json!("inf");
    match load {
        Load::Closed { concurrency } => (infinite(), 1.0, Some(*concurrency)),
        Load::Open { arrivals, max_concurrency } => {
            let rate = arrivals.target_rate().map_or_else(infinite, |rate| json!(rate));
            let burstiness = match arrivals {
                Arrivals::Steady { gaps, .. } | Arrivals::Staged { gaps, .. } => match gaps {
                    Gaps::Gamma(shape) => *shape,
                    // Equal gaps are the limit of an infinite shape, which JSON cannot write.
                    Gaps::Poisson | Gaps::Constant => 1.0,
                },
                Arrivals::AtOnce | Arrivals::Trace(_) => 1.0,
            };
            (rate, burstiness, *max_concurrency)
        }
    }
}

fn statistics(out: &mut Object, settings: &Settings, name: &str, stat: &Stat) {
    let ms = |value: Option<f64>| value.unwrap_or(0.0) / 1e6;
    set(out, &format!("mean_{name}_ms"), &ms(Some(stat.mean)));
    set(out, &format!("median_{name}_ms"), &ms(stat.percentile(50.0)));
    set(out, &format!("std_{name}_ms"), &ms(Some(stat.stddev)));
    for &p in &settings.report.percentiles {
        set(out, &format!("p{p}_{name}_ms"), &ms(stat.percentile(p)));
    }
}

fn set(out: &mut Object, key: &str, value: &(impl Serialize + ?Sized)) {
    out.insert(key.to_owned(), sonic_rs::to_value(value).unwrap_or_default());
}

/// vLLM counts the chunks of each whole second, and calls them tokens.
fn peak_chunks_per_s(records: &[Record]) -> u64 {
    let mut seconds = std::collections::BTreeMap::<u64, u64>::new();
    let stamps = records.iter().filter(|record| record.ok()).flat_map(|r| &r.output.stamps);
    for at in stamps {
        *seconds.entry(at.as_ns() / 1_000_000_000).or_default() += 1;
    }
    seconds.into_values().max().unwrap_or(0)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn sent(record: &Record) -> SimTime {
    record.sent.unwrap_or(record.scheduled)
}

/// What it writes of each request even without `--save-detailed`: the latency from the send, 0 for
/// a failure, and the wait before it.
fn latencies(out: &mut Object, records: &[Record]) {
    let latency = |r: &Record| match r.ok() {
        true => seconds(r.last_output().saturating_since(sent(r)).as_ns()),
        false => 0.0,
    };
    set(out, "latencies", &records.iter().map(latency).collect::<Vec<_>>());
    let wait = |r: &Record| seconds(sent(r).saturating_since(r.scheduled).as_ns());
    set(out, "queue_times", &records.iter().map(wait).collect::<Vec<_>>());
}

fn details(out: &mut Object, measured: &Measured) {
    let records = &measured.records;
    let each = |of: &dyn Fn(&Record) -> Value| records.iter().map(of).collect::<Vec<Value>>();
    set(out, "input_lens", &each(&|r| json!(r.usage.map_or(0, |usage| usage.prompt))));
    set(out, "output_lens", &each(&|r| json!(if r.ok() { r.output_tokens() } else { 0 })));
    let ttft =
        |r: &Record| r.output.first.map_or(0.0, |at| seconds(at.saturating_since(sent(r)).as_ns()));
    set(out, "ttfts", &each(&|r| json!(ttft(r))));
    let gaps = |r: &Record| -> Vec<f64> {
        let pairs = r.output.stamps.windows(2);
        pairs.map(|pair| seconds(pair[1].saturating_since(pair[0]).as_ns())).collect()
    };
    set(out, "itls", &each(&|r| json!(gaps(r))));
    let start = |r: &Record| seconds(sent(r).saturating_since(measured.began).as_ns());
    set(out, "start_times", &each(&|r| json!(start(r))));
    let error = |r: &Record| match &r.outcome {
        Outcome::Failed(failure) => format!("{}: {}", failure.class.label(), failure.detail),
        Outcome::Finished(_) | Outcome::Interrupted => String::new(),
    };
    set(out, "errors", &each(&|r| json!(error(r))));
    set(out, "generated_texts", &each(&|r| json!(r.text.as_deref().unwrap_or_default())));
    if records.iter().any(|r| r.reported.is_some()) {
        let told = |of: fn(&Reported) -> Option<SimSpan>| {
            each(&|r| json!(r.reported.as_ref().and_then(of).map(|span| span.as_secs_f64())))
        };
        set(out, "server_queue_times", &told(|reported| reported.queue));
        set(out, "server_ttfts", &told(|reported| reported.first_token));
    }
}

/// `20261201-201500`, in UTC.
fn date(unix_s: u64) -> String {
    let (days, rest) = (unix_s / 86_400, unix_s % 86_400);
    // Civil from days (Hinnant).
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "19700101-000000");
        // Leap day of a century that is a leap year.
        assert_eq!(date(951_782_400), "20000229-000000");
        assert_eq!(date(1_796_155_199), "20261201-195959");
    }
}
