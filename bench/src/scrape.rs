//! What vLLM reports about itself: histograms of `/metrics`, read before and after a level.
//!
//! A stand-in for `/metrics/summary` where the target has none. Means are exact (sum over count of
//! the requests in between); percentiles are estimates inside a bucket, as Prometheus makes them.
//! Pure: bytes in, figures out.

use std::collections::BTreeMap;

use crate::compare::{ServerModel, ServerRequests, ServerStat, ServerThroughput};

/// One reading: samples by name and labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scrape {
    histograms: BTreeMap<String, Histogram>,
    finished: BTreeMap<String, f64>,
    generated: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Histogram {
    /// Cumulative counts by upper bound, ascending; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
    sum: f64,
    count: f64,
}

/// Our name of a latency and vLLM's names of its histogram, the newest first.
const LATENCIES: [(&str, &[&str]); 7] = [
    ("ttft", &["vllm:time_to_first_token_seconds"]),
    ("itl", &["vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"]),
    ("tpot", &["vllm:request_time_per_output_token_seconds"]),
    ("e2e", &["vllm:e2e_request_latency_seconds"]),
    ("queue", &["vllm:request_queue_time_seconds"]),
    ("prefill", &["vllm:request_prefill_time_seconds"]),
    ("decode", &["vllm:request_decode_time_seconds"]),
];

/// Reads the text format. Samples of several engines of one model are added up.
///
/// # Errors
/// If it has no metric of vLLM's for this model.
pub fn read(text: &str, model: &str) -> Result<Scrape, String> {
    let mut scrape = Scrape::default();
    let mut known = false;
    for line in text.lines().filter(|line| line.starts_with("vllm:")) {
        let Some(sample) = Sample::parse(line) else { continue };
        if sample.label("model_name").is_some_and(|name| name != model) {
            continue;
        }
        known = true;
        scrape.add(&sample);
    }
    if known { Ok(scrape) } else { Err(format!("no vLLM metrics of model '{model}'")) }
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (head, labels, rest) = match line.find('{') {
            Some(open) => {
                let close = line.rfind('}')?;
                (&line[..open], &line[open + 1..close], &line[close + 1..])
            }
            None => {
                let space = line.find(' ')?;
                (&line[..space], "", &line[space..])
            }
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        // Label values of these metrics hold no escaped quotes; a comma inside one is no border.
        let mut pairs = Vec::new();
        let mut left = labels;
        while let Some((name, after)) = left.split_once("=\"") {
            let (text, next) = after.split_once('"')?;
            pairs.push((name.trim_start_matches([',', ' ']), text));
            left = next;
        }
        Some(Self { name: head, labels: pairs, value })
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl Scrape {
    fn add(&mut self, sample: &Sample<'_>) {
        match sample.name {
            "vllm:request_success_total" | "vllm:request_success" => {
                let reason = sample.label("finished_reason").unwrap_or("finished").to_owned();
                *self.finished.entry(reason).or_default() += sample.value;
            }
            "vllm:generation_tokens_total" | "vllm:generation_tokens" => {
                self.generated += sample.value;
            }
            name => self.add_histogram(name, sample),
        }
    }

    fn add_histogram(&mut self, name: &str, sample: &Sample<'_>) {
        let (base, part) = match name.rsplit_once('_') {
            Some((base, part @ ("bucket" | "sum" | "count"))) => (base, part),
            _ => return,
        };
        let histogram = self.histograms.entry(base.to_owned()).or_default();
        match part {
            "sum" => histogram.sum += sample.value,
            "count" => histogram.count += sample.value,
            _ => {
                let Some(bound) = sample.label("le").and_then(|le| le.parse::<f64>().ok()) else {
                    return;
                };
                match histogram.buckets.iter_mut().find(|(known, _)| *known == bound) {
                    Some((_, count)) => *count += sample.value,
                    None => histogram.buckets.push((bound, sample.value)),
                }
                histogram.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
        }
    }

    /// What happened since `before`, over `seconds`, in the shape of a summary.
    pub fn since(&self, before: &Self, seconds: f64) -> ServerModel {
        let mut latency_seconds = BTreeMap::new();
        for (name, sources) in LATENCIES {
            let found = sources.iter().find_map(|source| {
                let now = self.histograms.get(*source)?;
                let then = before.histograms.get(*source).cloned().unwrap_or_default();
                Some(now.less(&then)).filter(|delta| delta.count > 0.0)
            });
            if let Some(delta) = found {
                latency_seconds.insert(name.to_owned(), delta.stat());
            }
        }
        let finished = self.finished.iter().map(|(reason, n)| {
            let more = n - before.finished.get(reason).copied().unwrap_or(0.0);
            (reason.clone(), more.max(0.0) as u64)
        });
        ServerModel {
            engine: "vLLM metrics".into(),
            requests: ServerRequests { running: 0, finished: finished.collect() },
            throughput: ServerThroughput {
                output_tokens_per_second: (self.generated - before.generated).max(0.0)
                    / seconds.max(1e-9),
            },
            latency_seconds,
            simulated_seconds: BTreeMap::new(),
            estimated: true,
        }
    }
}

impl Histogram {
    fn less(&self, before: &Self) -> Self {
        let count_before = |bound: f64| {
            before.buckets.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, n)| *n)
        };
        Self {
            buckets: self.buckets.iter().map(|&(le, n)| (le, n - count_before(le))).collect(),
            sum: self.sum - before.sum,
            count: self.count - before.count,
        }
    }

    fn stat(&self) -> ServerStat {
        ServerStat {
            count: self.count as u64,
            mean: Some(self.sum / self.count),
            min: None,
            p50: self.quantile(0.5),
            p99: self.quantile(0.99),
            max: None,
        }
    }

    /// Linear inside the bucket that holds the rank; the last finite bound if it lies beyond.
    fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count;
        let (mut below, mut lower) = (0.0, 0.0);
        for &(upper, count) in &self.buckets {
            if count >= rank {
                if upper.is_infinite() {
                    return Some(lower);
                }
                let inside = count - below;
                let share = if inside > 0.0 { (rank - below) / inside } else { 1.0 };
                return Some(lower + (upper - lower) * share);
            }
            (below, lower) = (count, upper);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ok: u32, b1: u32, b2: u32, inf: u32, sum: f64) -> String {
        format!(
            "# HELP vllm:time_to_first_token_seconds x\n\
             vllm:request_success_total{{engine=\"0\",finished_reason=\"stop\",model_name=\"a,b\"}} {ok}\n\
             vllm:request_success_total{{engine=\"0\",finished_reason=\"stop\",model_name=\"other\"}} 99\n\
             vllm:generation_tokens_total{{engine=\"0\",model_name=\"a,b\"}} {}.0\n\
             vllm:time_to_first_token_seconds_bucket{{engine=\"0\",le=\"0.1\",model_name=\"a,b\"}} {b1}\n\
             vllm:time_to_first_token_seconds_bucket{{engine=\"0\",le=\"0.2\",model_name=\"a,b\"}} {b2}\n\
             vllm:time_to_first_token_seconds_bucket{{engine=\"0\",le=\"+Inf\",model_name=\"a,b\"}} {inf}\n\
             vllm:time_to_first_token_seconds_sum{{engine=\"0\",model_name=\"a,b\"}} {sum}\n\
             vllm:time_to_first_token_seconds_count{{engine=\"0\",model_name=\"a,b\"}} {inf}\n",
            ok * 10
        )
    }

    #[test]
    fn the_difference_of_two_readings_is_the_level_in_between() {
        let before = read(&text(5, 5, 5, 5, 0.25), "a,b").expect("known");
        let after = read(&text(15, 9, 15, 15, 1.5), "a,b").expect("known");
        let model = after.since(&before, 2.0);
        assert_eq!(model.requests.finished["stop"], 10);
        assert_eq!(model.throughput.output_tokens_per_second, 50.0);
        let ttft = model.latency_seconds["ttft"];
        assert_eq!(ttft.count, 10);
        assert!((ttft.mean.expect("known") - 0.125).abs() < 1e-12);
        // Four in the first bucket, six in the second: rank 5 is one sixth into the second.
        assert!((ttft.p50.expect("known") - (0.1 + 0.1 / 6.0)).abs() < 1e-12);
        assert!(!model.latency_seconds.contains_key("itl"), "nothing was told about it");
    }

    #[test]
    fn what_lies_beyond_the_last_bound_is_told_as_that_bound() {
        let before = Scrape::default();
        let after = read(&text(4, 0, 0, 4, 9.0), "a,b").expect("known");
        assert_eq!(after.since(&before, 1.0).latency_seconds["ttft"].p99, Some(0.2));
    }

    #[test]
    fn another_model_is_no_answer() {
        assert!(read(&text(1, 1, 1, 1, 1.0), "c").is_err());
        assert!(read("process_cpu_seconds_total 1\n", "c").is_err());
    }
}
