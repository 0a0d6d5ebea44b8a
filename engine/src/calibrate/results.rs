//! Benchmark results, as the tools write them.
//!
//! Three layouts are told apart by what they have: our own (`tool: llmsim-bench`, one run per
//! level), that of `vllm bench serve --save-result` (`mean_ttft_ms` and so on; several in an
//! array), and that of aiperf (`time_to_first_token` with its unit). Lengths and times of single
//! requests are used where a result has them; else lengths are taken to be alike. The invariant: a
//! figure that is not there is not made up.

use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value};

use crate::calibrate::fit::Observed;
use crate::calibrate::range;
use crate::calibrate::spread::Gaps;
use crate::calibrate::workload::{Load, Metric, Phases, Request, Workload};
use crate::units::{SimSpan, Tokens};

/// One run of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Which run of the result it is.
    pub name: String,
    /// What the client sent.
    pub workload: Workload,
    /// What it saw.
    pub observed: Vec<Observed>,
    /// The gaps between tokens, if the result has their percentiles.
    pub gaps: Option<Gaps>,
}

/// Deeper than any result is.
const DEEPEST: usize = 64;

/// The runs of a result in JSON.
///
/// # Errors
/// Which key is wrong or missing, and what it should be.
pub fn read_json(text: &str) -> Result<Vec<Measured>, String> {
    if nests_deeper_than(DEEPEST, text) {
        return Err("not a benchmark result: nested too deeply".to_owned());
    }
    let value: Value = sonic_rs::from_str(text).map_err(|error| {
        let first = error.to_string();
        format!("not JSON: {}", first.lines().next().unwrap_or_default())
    })?;
    let runs = match value.as_array() {
        Some(array) => array
            .iter()
            .enumerate()
            .map(|(place, run)| one(run, &format!("[{place}]")))
            .collect::<Result<Vec<_>, _>>()?
            .concat(),
        None => one(&value, "")?,
    };
    if runs.is_empty() {
        return Err("it holds no run with figures".to_owned());
    }
    Ok(runs)
}

fn one(value: &Value, at: &str) -> Result<Vec<Measured>, String> {
    if !value.is_object() {
        return Err(format!("`{at}` is not an object; a benchmark result is expected"));
    }
    if value.get("levels").is_some() {
        return ours(value);
    }
    if ["mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "output_throughput"]
        .iter()
        .any(|key| value.get(key).is_some())
    {
        return vllm(value, at).map(|run| vec![run]);
    }
    let records = value.get("records").filter(|records| records.is_object()).unwrap_or(value);
    if records.get("time_to_first_token").is_some() || records.get("inter_token_latency").is_some()
    {
        return aiperf(value, records).map(|run| vec![run]);
    }
    Err("not a result of llmsim-bench (`levels`), `vllm bench serve` (`mean_ttft_ms`, ...) or \
         aiperf (`time_to_first_token`)"
        .to_owned())
}

fn number(value: &Value, key: &str) -> Option<f64> {
    value.get(key)?.as_f64().filter(|number| number.is_finite())
}

fn positive(value: &Value, key: &str) -> Option<f64> {
    number(value, key).filter(|&number| number > 0.0)
}

fn path<'a>(value: &'a Value, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().try_fold(value, |value, key| value.get(key))
}

/// A figure of the given unit (seconds per unit), as a mean or else a median. 0 is none.
fn seen(
    mean: Option<f64>,
    median: Option<f64>,
    [as_mean, as_median]: [Metric; 2],
    unit: f64,
    weight: f64,
) -> Option<Observed> {
    let some = |value: Option<f64>| value.filter(|&value| value != 0.0);
    some(mean)
        .map(|value| Observed { metric: as_mean, value: value * unit, weight })
        .or(some(median).map(|value| Observed { metric: as_median, value: value * unit, weight }))
}

/// Refuses a figure that no server has.
fn possible(run: &str, seen: &Observed) -> Result<(), String> {
    let name = seen.metric.as_str();
    let (value, unit, within) = match seen.metric {
        Metric::OutputRate => (seen.value, "tok/s", range::TOKENS_PER_SECOND),
        _ => (seen.value * 1e3, "ms", range::LATENCY_MS),
    };
    if within.contains(&value) {
        return Ok(());
    }
    let (least, most) = within.into_inner();
    Err(format!("{run}: {name} is {value:e} {unit}; it must be from {least} to {most} {unit}"))
}

/// How many requests were under way, under `key`.
fn at_once(value: &Value, key: &str) -> Result<u32, String> {
    match value.as_f64() {
        Some(count) if range::AT_ONCE.contains(&count) => Ok(count as u32),
        _ => {
            let (least, most) = range::AT_ONCE.into_inner();
            let what = format!("it must be a number of requests from {least} to {most}");
            Err(format!("`{key}` is {value}; {what}"))
        }
    }
}

/// Requests per second, under `key`; `None` if they were sent as fast as could be.
fn per_second(value: &Value, key: &str) -> Result<Option<f64>, String> {
    if value.is_null() || value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("inf")) {
        return Ok(None);
    }
    match value.as_f64() {
        Some(rate) if range::PER_SECOND.contains(&rate) => Ok(Some(rate)),
        // What Python makes of infinity.
        Some(rate) if rate == f64::INFINITY => Ok(None),
        _ => {
            let (least, most) = range::PER_SECOND.into_inner();
            let what = format!("requests per second, from {least} to {most}, or \"inf\"");
            Err(format!("`{key}` is {value}; it must be {what}"))
        }
    }
}

const TTFT: [Metric; 2] = [Metric::MeanTtft, Metric::MedianTtft];
const TPOT: [Metric; 2] = [Metric::MeanTpot, Metric::MedianTpot];

/// What all results come to.
struct Parts {
    name: String,
    /// `None`: an open loop whose times are with the requests.
    load: Option<Load>,
    rate: Option<f64>,
    requests: Vec<Request>,
    ttft: Option<Observed>,
    tpot: Option<Observed>,
    output_rate: Option<f64>,
    gaps: Option<Gaps>,
}

impl Parts {
    fn measured(self) -> Result<Measured, String> {
        if self.requests.is_empty() {
            return Err(format!("{}: no request was completed", self.name));
        }
        let mut observed: Vec<Observed> = self.tpot.into_iter().chain(self.ttft).collect();
        if let Some(value) = self.output_rate
            && matches!(self.load, Some(Load::Closed { .. }))
        {
            // It says again what TTFT and TPOT say, but for the run's end.
            let weight = if observed.is_empty() { 1.0 } else { 0.1 };
            observed.push(Observed { metric: Metric::OutputRate, value, weight });
        }
        for seen in &observed {
            possible(&self.name, seen)?;
        }
        if observed.is_empty() {
            return Err(format!("{}: no TTFT, TPOT or throughput over 0", self.name));
        }
        let load = self.load.unwrap_or(Load::Open);
        let workload =
            Workload { load, requests: self.requests, repeats: 1.0, phases: Phases::AsTheyCome };
        let workload = match self.rate {
            Some(rate) => workload.at_rate(rate),
            None => workload,
        };
        Ok(Measured { name: self.name, workload, observed, gaps: self.gaps })
    }
}

/// The percentiles of ITL, by their names.
fn gaps(percentile: impl Fn(&str) -> Option<f64>) -> Option<Gaps> {
    let over_zero = |name| percentile(name).filter(|&value| value > 0.0);
    Some(Gaps { p50: percentile("p50")?, p90: over_zero("p90"), p99: over_zero("p99") })
}

/// So many requests, all of the mean length.
fn alike(count: f64, prompt: f64, output: f64) -> Vec<Request> {
    const MOST: f64 = 1e6;
    let length = |tokens: f64| Tokens::new(tokens.round().clamp(1.0, 1e9) as u32);
    let request = Request {
        prompt: length(prompt),
        output: length(output),
        shared: Tokens::ZERO,
        at: SimSpan::ZERO,
    };
    vec![request; count.clamp(0.0, MOST) as usize]
}

fn request(prompt: f64, output: f64, sent: Option<f64>) -> Option<Request> {
    (prompt >= 1.0 && output >= 1.0).then(|| Request {
        at: SimSpan::from_secs_f64(sent.unwrap_or(0.0).clamp(0.0, 1e9)),
        ..alike(1.0, prompt, output)[0]
    })
}

/// `llmsim-bench`: levels.
fn ours(value: &Value) -> Result<Vec<Measured>, String> {
    let levels = value
        .get("levels")
        .and_then(|levels| levels.as_array())
        .ok_or("`levels` is not an array")?;
    let mut runs = Vec::new();
    for (place, level) in levels.iter().enumerate() {
        // A level that failed has no figures.
        if level.get("latency_ms").is_none() {
            continue;
        }
        let at = format!("levels[{place}]");
        let name = level.get("name").and_then(|name| name.as_str()).unwrap_or("").to_owned();
        let kind = path(level, &["load", "kind"]).and_then(|kind| kind.as_str()).unwrap_or("");
        let load = match kind {
            "closed_loop" => {
                let key = format!("{at}.load.concurrency");
                let count = path(level, &["load", "concurrency"])
                    .ok_or_else(|| format!("`{key}` is missing"))?;
                Some(Load::Closed { concurrency: at_once(count, &key)? })
            }
            "open_loop" => None,
            _ => return Err(format!("`{at}.load.kind` is neither closed_loop nor open_loop")),
        };
        let mut requests: Vec<Request> = Vec::new();
        if let Some(records) = level.get("records").and_then(|records| records.as_array()) {
            requests = records
                .iter()
                .filter_map(|record| {
                    let sent = number(record, "sent_s").or(number(record, "scheduled_s"));
                    request(
                        number(record, "prompt_tokens")?,
                        number(record, "output_tokens")?,
                        sent,
                    )
                })
                .collect();
        }
        let mut rate = None;
        if requests.is_empty() {
            let mean = |kind: &str| {
                path(level, &["tokens_per_request", kind]).and_then(|stat| positive(stat, "mean"))
            };
            let missing = |kind: &str| {
                format!("`{at}.tokens_per_request.{kind}.mean` is missing (no `usage` was sent?)")
            };
            let count = path(level, &["requests", "completed"])
                .and_then(|count| count.as_f64())
                .ok_or(format!("`{at}.requests.completed` is missing"))?;
            let prompt = mean("prompt").ok_or(missing("prompt"))?;
            let output = mean("output").ok_or(missing("output"))?;
            requests = alike(count, prompt, output);
            if load.is_none() {
                for keys in [["load", "rate_per_s"], ["arrivals", "offered_per_s"]] {
                    if let (None, Some(value)) = (rate, path(level, &keys)) {
                        rate = per_second(value, &format!("{at}.{}", keys.join(".")))?;
                    }
                }
            }
        }
        let prompts: f64 = requests.iter().map(|r| f64::from(r.prompt.get())).sum();
        if let Some(cached) = path(level, &["cached_prompt_tokens", "observed"])
            .and_then(|tokens| tokens.as_f64())
            .filter(|&cached| cached > 0.0 && prompts > 0.0)
        {
            let shared =
                Workload { load: Load::Open, requests, repeats: 1.0, phases: Phases::AsTheyCome };
            requests = shared.sharing(cached / prompts).requests;
        }
        let latency = |name: &str| path(level, &["latency_ms", name]);
        let middle = |name: &str, metrics, weight| {
            let stat = latency(name)?;
            let median = path(stat, &["percentiles", "p50"])
                .or(path(stat, &["percentiles", "50"]))
                .and_then(|median| median.as_f64());
            seen(number(stat, "mean"), median, metrics, 1e-3, weight)
        };
        let ttft = if latency("ttft_raw").is_some() { "ttft_raw" } else { "ttft" };
        let parts = Parts {
            name: if name.is_empty() { at } else { name },
            load,
            rate,
            requests,
            ttft: middle(ttft, TTFT, 0.5),
            tpot: middle("tpot", TPOT, 1.0).or_else(|| middle("itl", TPOT, 1.0)),
            output_rate: path(level, &["throughput", "output_tokens_per_s"])
                .and_then(|rate| rate.as_f64()),
            gaps: gaps(|name| {
                let percentiles = latency("itl")?.get("percentiles")?;
                number(percentiles, name).or(number(percentiles, &name[1..])).map(|ms| ms * 1e-3)
            }),
        };
        runs.push(parts.measured()?);
    }
    Ok(runs)
}

/// `vllm bench serve`: one object.
fn vllm(value: &Value, at: &str) -> Result<Measured, String> {
    let key_of = |name: &str| format!("{at}{}{name}", if at.is_empty() { "" } else { "." });
    let key = |name: &str| format!("`{}`", key_of(name));
    let completed = positive(value, "completed")
        .or(positive(value, "num_prompts"))
        .ok_or(format!("{} is missing", key("completed")))?;
    let lengths = |name: &str| -> Vec<f64> {
        value
            .get(name)
            .and_then(|list| list.as_array())
            .map(|list| list.iter().map(|item| item.as_f64().unwrap_or(0.0)).collect())
            .unwrap_or_default()
    };
    let (inputs, outputs) = (lengths("input_lens"), lengths("output_lens"));
    let starts = lengths("start_times");
    let first = starts.iter().copied().fold(f64::INFINITY, f64::min);
    let rate = match value.get("request_rate") {
        Some(rate) => per_second(rate, &key_of("request_rate"))?,
        None => None,
    };
    let mut requests: Vec<Request> = inputs
        .iter()
        .zip(&outputs)
        .enumerate()
        .filter_map(|(place, (&prompt, &output))| {
            request(prompt, output, starts.get(place).map(|start| start - first))
        })
        .collect();
    let has_times = !requests.is_empty() && starts.len() == inputs.len();
    if requests.is_empty() {
        let total = |name: &str| positive(value, name).ok_or(format!("{} is missing", key(name)));
        requests = alike(
            completed,
            total("total_input_tokens")? / completed,
            total("total_output_tokens")? / completed,
        );
    }
    let concurrency = match value.get("max_concurrency") {
        Some(count) if !count.is_null() => Some(at_once(count, &key_of("max_concurrency"))?),
        _ => None,
    };
    let (load, rate) = match (rate, concurrency) {
        (Some(_), _) if has_times => (None, None),
        (Some(rate), _) => (None, Some(rate)),
        (None, Some(concurrency)) => (Some(Load::Closed { concurrency }), None),
        // All at once.
        (None, None) => (Some(Load::Closed { concurrency: requests.len() as u32 }), None),
    };
    let figure = |name: &str| {
        (number(value, &format!("mean_{name}_ms")), number(value, &format!("median_{name}_ms")))
    };
    let (ttft, tpot) = (figure("ttft"), figure("tpot"));
    Parts {
        name: if at.is_empty() { "run".to_owned() } else { at.to_owned() },
        load,
        rate,
        requests,
        ttft: seen(ttft.0, ttft.1, TTFT, 1e-3, 0.5),
        tpot: seen(tpot.0, tpot.1, TPOT, 1e-3, 1.0),
        output_rate: positive(value, "output_throughput"),
        gaps: gaps(|name| {
            let name = if name == "p50" { "median" } else { name };
            number(value, &format!("{name}_itl_ms")).map(|ms| ms * 1e-3)
        }),
    }
    .measured()
}

/// aiperf: `records` (or the whole) with one object per metric.
fn aiperf(value: &Value, records: &Value) -> Result<Measured, String> {
    let stat = |name: &str, which: &str| records.get(name).and_then(|metric| number(metric, which));
    let unit = |name: &str| {
        let unit = path(records, &[name, "unit"]).and_then(|unit| unit.as_str()).unwrap_or("ms");
        match unit {
            "s" | "sec" | "seconds" => 1.0,
            "us" => 1e-6,
            "ns" => 1e-9,
            _ => 1e-3,
        }
    };
    let figure = |name: &str, metrics, weight| {
        seen(stat(name, "avg"), stat(name, "p50"), metrics, unit(name), weight)
    };
    let need = |name: &str| {
        stat(name, "avg").filter(|&n| n > 0.0).ok_or(format!("`{name}.avg` is missing"))
    };
    let input = value.get("input_config").unwrap_or(value);
    let option = |name: &str| {
        let option = path(input, &["loadgen", name]).or_else(|| input.get(name))?;
        (!option.is_null()).then_some(option)
    };
    let count = stat("request_count", "avg")
        .or(option("request_count").and_then(|count| count.as_f64()))
        .ok_or("`request_count.avg` is missing")?;
    let output = need("output_sequence_length").or_else(|_| need("output_token_count"))?;
    let requests = alike(count, need("input_sequence_length")?, output);
    let rate = match option("request_rate") {
        Some(rate) => per_second(rate, "request_rate")?,
        None => None,
    };
    let (load, rate) = match (rate, option("concurrency")) {
        (Some(rate), _) => (None, Some(rate)),
        (None, Some(count)) => {
            (Some(Load::Closed { concurrency: at_once(count, "concurrency")? }), None)
        }
        (None, None) => {
            return Err("neither `input_config.loadgen.concurrency` nor `.request_rate` is there"
                .to_owned());
        }
    };
    Parts {
        name: "run".to_owned(),
        load,
        rate,
        requests,
        ttft: figure("time_to_first_token", TTFT, 0.5),
        tpot: figure("inter_token_latency", TPOT, 1.0),
        output_rate: stat("output_token_throughput", "avg"),
        // Its percentiles of ITL are of requests' means, not of gaps.
        gaps: None,
    }
    .measured()
}

/// Whether brackets outside of strings nest deeper than `limit`, so that a parser that recurses may
/// be trusted with the text.
fn nests_deeper_than(limit: usize, json: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_result_is_read() {
        let run = &read_json(
            r#"{"max_concurrency": 4, "request_rate": "inf", "completed": 10, "num_prompts": 10,
                "total_input_tokens": 1000, "total_output_tokens": 500, "mean_ttft_ms": 50.0,
                "mean_tpot_ms": 10.0, "output_throughput": 300.0}"#,
        )
        .unwrap()[0];
        assert_eq!(run.workload.load, Load::Closed { concurrency: 4 });
        assert_eq!(run.workload.requests.len(), 10);
        assert_eq!(run.workload.requests[3].prompt, Tokens::new(100));
        assert_eq!(run.workload.requests[3].output, Tokens::new(50));
        let figures: Vec<_> = run.observed.iter().map(|seen| (seen.metric, seen.value)).collect();
        assert_eq!(
            figures,
            [(Metric::MeanTpot, 0.010), (Metric::MeanTtft, 0.050), (Metric::OutputRate, 300.0)]
        );
    }

    #[test]
    fn a_rate_makes_an_open_loop_and_details_give_the_lengths() {
        let run = &read_json(
            r#"[{"request_rate": 2.0, "completed": 2, "median_ttft_ms": 50.0,
                "input_lens": [10, 20], "output_lens": [3, 4], "start_times": [100.5, 101.0]}]"#,
        )
        .unwrap()[0];
        assert_eq!(run.workload.load, Load::Open);
        assert_eq!(run.workload.requests[1].at, SimSpan::from_ms(500));
        assert_eq!(run.workload.requests[1].prompt, Tokens::new(20));
        assert_eq!(run.observed[0].metric, Metric::MedianTtft);
    }

    #[test]
    fn aiperfs_result_is_read() {
        let run = &read_json(
            r#"{"input_config": {"loadgen": {"concurrency": 8}}, "records": {
                "request_count": {"unit": "requests", "avg": 40},
                "input_sequence_length": {"avg": 512.0}, "output_sequence_length": {"avg": 64.0},
                "time_to_first_token": {"unit": "ms", "avg": 120.5},
                "inter_token_latency": {"unit": "us", "avg": 9500.0}}}"#,
        )
        .unwrap()[0];
        assert_eq!(run.workload.load, Load::Closed { concurrency: 8 });
        assert_eq!(run.workload.requests.len(), 40);
        assert!((run.observed[0].value - 0.0095).abs() < 1e-12);
        assert!((run.observed[1].value - 0.1205).abs() < 1e-12);
    }

    #[test]
    fn our_own_result_is_read_level_by_level() {
        let runs = read_json(
            r#"{"tool": "llmsim-bench", "levels": [
                {"name": "c1", "load": {"kind": "closed_loop", "concurrency": 1},
                 "requests": {"completed": 3}, "latency_ms": {"ttft": {"mean": 20.0},
                 "tpot": {"mean": 5.0}}, "tokens_per_request": {"prompt": {"mean": 100.0},
                 "output": {"mean": 10.0}}, "throughput": {"output_tokens_per_s": 150.0}},
                {"name": "failed", "error": "refused"},
                {"name": "open", "load": {"kind": "open_loop"}, "latency_ms": {"itl":
                 {"mean": 5.0}}, "records": [{"sent_s": 0.25, "prompt_tokens": 7,
                 "output_tokens": 3}, {"sent_s": 0.5, "outcome": "failed"}]}]}"#,
        )
        .unwrap();
        assert_eq!(runs.len(), 2);
        assert_eq!((runs[0].name.as_str(), runs[0].workload.requests.len()), ("c1", 3));
        assert_eq!(runs[1].workload.requests.len(), 1);
        assert_eq!(runs[1].workload.requests[0].at, SimSpan::from_ms(250));
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_key_and_range() {
        let vllm = |more: &str| {
            let text = format!(
                r#"[{{"completed": 2, "total_input_tokens": 200, "total_output_tokens": 20, {more}}}]"#
            );
            read_json(&text).map(|runs| runs.len())
        };
        let good = r#""mean_ttft_ms": 50.0, "mean_tpot_ms": 0.0, "request_rate": "inf""#;
        assert_eq!(vllm(&format!(r#"{good}, "max_concurrency": null"#)), Ok(1));
        for (more, expected) in [
            (
                r#""mean_ttft_ms": 5, "max_concurrency": 0"#,
                "`[0].max_concurrency` is 0; it must be",
            ),
            (r#""mean_ttft_ms": 5, "max_concurrency": -3"#, "`[0].max_concurrency` is -3; it must"),
            (
                r#""mean_ttft_ms": 5, "request_rate": "abc""#,
                "`[0].request_rate` is \"abc\"; it must",
            ),
            (r#""mean_ttft_ms": 5, "request_rate": 0"#, "`[0].request_rate` is 0; it must be"),
            (r#""mean_ttft_ms": 1e300"#, "[0]: mean TTFT is 1e300 ms; it must be from"),
            (r#""mean_tpot_ms": 1e-300"#, "[0]: mean TPOT is 1e-300 ms; it must be from"),
            (r#""median_tpot_ms": -3"#, "[0]: median TPOT is -3e0 ms; it must be from"),
            (r#""output_throughput": 1e300, "max_concurrency": 2"#, "[0]: output tok/s is 1e300"),
        ] {
            let why = vllm(more).unwrap_err();
            assert!(why.starts_with(expected), "{why}");
        }
        let ours = r#"{"levels": [{"latency_ms": {}, "load": {"kind": "closed_loop",
            "concurrency": 0}}]}"#;
        assert!(read_json(ours).unwrap_err().starts_with("`levels[0].load.concurrency` is 0;"));
        let aiperf = r#"{"input_config": {"loadgen": {"concurrency": -1}}, "records": {
            "request_count": {"avg": 4}, "input_sequence_length": {"avg": 5.0},
            "output_sequence_length": {"avg": 6.0}, "time_to_first_token": {"avg": 12.5}}}"#;
        assert!(read_json(aiperf).unwrap_err().starts_with("`concurrency` is -1; it must be"));
    }

    #[test]
    fn what_is_wrong_is_told_by_its_key() {
        let wrong = |text: &str| read_json(text).unwrap_err();
        assert!(wrong("{").starts_with("not JSON"));
        assert!(wrong("[3]").contains("[0]"));
        assert!(wrong("{}").contains("llmsim-bench"));
        assert!(wrong(r#"{"mean_ttft_ms": 3, "completed": 2}"#).contains("total_input_tokens"));
        assert!(wrong(&"[".repeat(100_000)).contains("nested"));
        assert!(
            wrong(r#"{"levels": [{"latency_ms": {}, "load": {"kind": "x"}}]}"#)
                .contains("levels[0].load.kind")
        );
    }
}
