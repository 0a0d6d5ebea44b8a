//! The report for programs: our own layout, and that of `vllm bench serve`.

use std::collections::BTreeMap;

use llmsim_engine::units::{SimSpan, SimTime};
use serde::Serialize;

use super::{Done, Measured};
use crate::compare::{self, ServerSide, Told};
use crate::plan::{Arrivals, Gaps, Load};
use crate::record::{FailureClass, Outcome, Record};
use crate::result::{Stat, Summary};
use crate::selftest::Stamp;
use crate::settings::{Settings, Sweep};
use crate::target::http::Stamps;

/// Version of our layout; grows when a key changes its meaning or goes away.
const LAYOUT: u32 = 1;

#[derive(Serialize)]
struct File<'a> {
    tool: &'static str,
    version: &'static str,
    layout: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<&'a str, &'a str>,
    command: Vec<String>,
    started_unix_s: u64,
    config: Config<'a>,
    environment: &'a Environment,
    selftest: Option<&'a Stamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sweep: Option<&'static str>,
    levels: Vec<Level<'a>>,
}

/// The machine and the build, as they bear on the figures.
#[derive(Clone, Debug, Serialize)]
pub struct Environment {
    /// Operating system and CPU architecture.
    pub platform: String,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// `io_uring` or `epoll`.
    pub io_driver: String,
    /// When it started, seconds since 1970.
    pub started_unix_s: u64,
}

#[derive(Serialize)]
struct Config<'a> {
    url: String,
    model: &'a str,
    api_key: Option<&'static str>,
    prompts: String,
    max_tokens: Option<u32>,
    prompt_prefix: &'a str,
    ignore_eos: bool,
    seed: u64,
    nonce: Option<u64>,
    timeout_s: f64,
    arrival_stamps: &'static str,
}

#[derive(Serialize)]
struct Level<'a> {
    name: &'a str,
    load: LoadJson,
    requests_asked: Option<u32>,
    duration_asked_s: Option<f64>,
    warmup: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(flatten)]
    figures: Option<Figures<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum LoadJson {
    ClosedLoop {
        concurrency: u32,
    },
    OpenLoop {
        arrivals: &'static str,
        rate_per_s: Option<f64>,
        burstiness: Option<f64>,
        max_concurrency: Option<u32>,
    },
}

#[derive(Serialize)]
struct Figures<'a> {
    requests: Requests<'a>,
    duration_s: f64,
    drain_s: f64,
    interrupted: bool,
    throughput: Throughput,
    latency_clock: &'static str,
    latency_ms: BTreeMap<&'static str, StatJson>,
    tokens_per_request: BTreeMap<&'static str, StatJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arrivals: Option<ArrivalsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<Goodput>,
    cached_prompt_tokens: Cached,
    client: Client,
    server: ServerJson<'a>,
    warnings: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    records: Vec<RecordJson<'a>>,
}

#[derive(Serialize)]
struct Requests<'a> {
    planned: u32,
    sent: u32,
    completed: u32,
    failed: u32,
    stopped_in_flight: u32,
    finish_reasons: &'a BTreeMap<String, u32>,
    failures: BTreeMap<&'static str, u32>,
    failure_messages: BTreeMap<&'static str, BTreeMap<&'a str, u32>>,
}

#[derive(Serialize)]
struct Throughput {
    requests_per_s: f64,
    output_tokens_per_s: f64,
    total_tokens_per_s: f64,
    peak_in_flight: u32,
}

#[derive(Serialize)]
struct StatJson {
    count: usize,
    mean: Option<f64>,
    stddev: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    percentiles: BTreeMap<String, Option<f64>>,
    /// Failures as +infinity, which JSON cannot write: `null` is infinite here.
    #[serde(skip_serializing_if = "Option::is_none")]
    percentiles_with_failures: Option<BTreeMap<String, Option<f64>>>,
}

#[derive(Serialize)]
struct ArrivalsJson {
    target_per_s: Option<f64>,
    offered_per_s: Option<f64>,
    achieved_per_s: Option<f64>,
    spread_s: f64,
    waited: u32,
    late: u32,
}

#[derive(Serialize)]
struct Goodput {
    good: u32,
    requests_per_s: f64,
    share_of_sent: f64,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    e2e_ms: Option<f64>,
}

#[derive(Serialize)]
struct Cached {
    expected: Option<u64>,
    observed: Option<u64>,
}

#[derive(Serialize)]
struct Client {
    loop_lag_ms: StatJson,
    /// From the kernel's stamp to the read: p50, p99, max. Not contained in latencies.
    read_lag_ms: Option<[f64; 3]>,
    cpu_share: f64,
    peak_memory_bytes: u64,
    connections_opened: u32,
    requests_not_ready: u32,
    healthy: bool,
}

#[derive(Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum ServerJson<'a> {
    Skipped,
    NotAvailable {
        why: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        per_request: Option<BTreeMap<&'static str, StatJson>>,
    },
    Known(Box<ServerKnown>),
}

#[derive(Serialize)]
struct ServerKnown {
    source: &'static str,
    requests_finished: u64,
    output_tokens_per_s: f64,
    lag_ms_p50: Option<f64>,
    lag_ms_p99: Option<f64>,
    lag_ms_max: Option<f64>,
    comparison: Vec<RowJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_request: Option<BTreeMap<&'static str, StatJson>>,
}

#[derive(Serialize)]
struct RowJson {
    metric: &'static str,
    client_ms: Option<f64>,
    server_ms: Option<f64>,
    simulated_ms: Option<f64>,
    delivery_ms: Option<f64>,
    below_client_resolution: bool,
}

#[derive(Serialize)]
struct RecordJson<'a> {
    index: u32,
    scheduled_s: f64,
    sent_s: Option<f64>,
    connect_ms: Option<f64>,
    headers_s: Option<f64>,
    first_s: Option<f64>,
    last_s: Option<f64>,
    end_s: f64,
    status: Option<u16>,
    outcome: &'a str,
    detail: &'a str,
    chunks: u32,
    prompt_tokens: Option<u32>,
    output_tokens: u32,
    cached_tokens: Option<u32>,
    gaps_ms: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<RecordServer>,
}

/// The server's side of one request: spans from when it had read the request (our server's clock)
/// or the lengths of its phases (vLLM), and what the client saw beyond.
#[derive(Serialize)]
#[serde(tag = "told", rename_all = "snake_case")]
enum RecordServer {
    Clock {
        queued_ms: Option<f64>,
        first_scheduled_ms: f64,
        first_released_ms: f64,
        first_sent_ms: f64,
        last_scheduled_ms: f64,
        last_released_ms: f64,
        token_lag_max_ms: Option<f64>,
        delivery_first_ms: Option<f64>,
        delivery_last_ms: Option<f64>,
    },
    Phases {
        queue_ms: Option<f64>,
        first_token_ms: Option<f64>,
        generation_ms: Option<f64>,
        outside_engine_first_ms: Option<f64>,
        outside_engine_last_ms: Option<f64>,
    },
}

/// The results as JSON.
pub fn render(
    settings: &Settings,
    environment: &Environment,
    stamp: Option<&Stamp>,
    levels: &[Done],
) -> String {
    let file = File {
        tool: "llmsim-bench",
        version: env!("CARGO_PKG_VERSION"),
        layout: LAYOUT,
        label: settings.report.label.as_deref(),
        metadata: metadata(settings),
        command: redacted_command(),
        started_unix_s: environment.started_unix_s,
        config: Config {
            url: settings.url.to_string(),
            model: &settings.model,
            api_key: settings.workload.form.head.contains("authorization: ").then_some("redacted"),
            prompts: settings.workload.describe(),
            max_tokens: settings.workload.max_tokens,
            prompt_prefix: &settings.workload.prefix,
            ignore_eos: settings.workload.ignore_eos,
            seed: settings.seed,
            nonce: settings.workload.nonce,
            timeout_s: settings.timeouts.silence.as_secs_f64(),
            arrival_stamps: match settings.stamps {
                Stamps::Kernel => "kernel",
                Stamps::Read => "read",
            },
        },
        environment,
        selftest: stamp,
        sweep: settings.sweep.map(|sweep| match sweep {
            Sweep::Concurrency => "concurrency",
            Sweep::Rate => "rate",
        }),
        levels: levels.iter().map(|done| level(settings, stamp, done)).collect(),
    };
    let text = match settings.report.append {
        true => sonic_rs::to_string(&file),
        false => sonic_rs::to_string_pretty(&file),
    };
    let mut text = text.expect("plain data with text keys and finite numbers is always written");
    text.push('\n');
    text
}

fn metadata(settings: &Settings) -> BTreeMap<&str, &str> {
    settings.report.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect()
}

/// The command line without the API key and without values of headers.
pub fn redacted_command() -> Vec<String> {
    redact(std::env::args())
}

fn redact(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut hide_next = false;
    args.map(|arg| {
        if std::mem::take(&mut hide_next) {
            return "REDACTED".to_owned();
        }
        match arg.split_once('=') {
            Some((name @ ("--api-key" | "--header"), _)) => format!("{name}=REDACTED"),
            _ => {
                hide_next = matches!(arg.as_str(), "--api-key" | "--header");
                arg
            }
        }
    })
    .collect()
}

fn level<'a>(settings: &Settings, stamp: Option<&Stamp>, done: &'a Done) -> Level<'a> {
    let setting = &done.setting;
    Level {
        name: &setting.name,
        load: load(&setting.load),
        requests_asked: setting.extent.requests,
        duration_asked_s: setting.extent.duration.map(|lasts| lasts.as_secs_f64()),
        warmup: setting.warmup,
        error: done.outcome.as_ref().err().map(String::as_str),
        figures: done.outcome.as_ref().ok().map(|measured| figures(settings, stamp, measured)),
    }
}

fn load(load: &Load) -> LoadJson {
    match load {
        Load::Closed { concurrency } => LoadJson::ClosedLoop { concurrency: *concurrency },
        Load::Open { arrivals, max_concurrency } => {
            let (name, gaps) = match arrivals {
                Arrivals::AtOnce => ("at_once", None),
                Arrivals::Steady { gaps, .. } => ("steady", Some(gaps)),
                Arrivals::Staged { gaps, .. } => ("staged", Some(gaps)),
                Arrivals::Trace(_) => ("trace", None),
            };
            LoadJson::OpenLoop {
                arrivals: name,
                rate_per_s: arrivals.target_rate(),
                burstiness: gaps.and_then(|gaps| match gaps {
                    Gaps::Poisson => Some(1.0),
                    Gaps::Gamma(shape) => Some(*shape),
                    Gaps::Constant => None,
                }),
                max_concurrency: *max_concurrency,
            }
        }
    }
}

fn figures<'a>(settings: &Settings, stamp: Option<&Stamp>, measured: &'a Measured) -> Figures<'a> {
    let summary = &measured.summary;
    let percentiles = &settings.report.percentiles;
    let ms = |stat: &Stat| stat_json(stat, percentiles, 1e-6);
    let mut latency = BTreeMap::from([
        ("ttft", ms(&summary.ttft)),
        ("itl", ms(&summary.itl)),
        ("tpot", ms(&summary.tpot)),
        ("e2e", ms(&summary.e2e)),
        ("connect", ms(&summary.connect)),
    ]);
    if let Some(raw) = &summary.raw {
        latency.insert("ttft_raw", ms(&raw.ttft));
        latency.insert("e2e_raw", ms(&raw.e2e));
        latency.insert("queue_wait", ms(&raw.queue_wait));
    }
    let count = |stat: &Stat| stat_json(stat, percentiles, 1.0);
    let mut warnings = summary.warnings.clone();
    if let ServerSide::Known(server) = &measured.server {
        warnings.extend(compare::warnings(summary, server));
    }
    Figures {
        requests: requests(summary),
        duration_s: summary.duration.as_secs_f64(),
        drain_s: summary.drain.as_secs_f64(),
        interrupted: summary.interrupted,
        throughput: Throughput {
            requests_per_s: summary.requests_per_s,
            output_tokens_per_s: summary.output_tokens_per_s,
            total_tokens_per_s: summary.total_tokens_per_s,
            peak_in_flight: summary.peak_in_flight,
        },
        latency_clock: if summary.raw.is_some() { "scheduled_send" } else { "send" },
        latency_ms: latency,
        tokens_per_request: BTreeMap::from([
            ("prompt", count(&summary.prompt_tokens)),
            ("output", count(&summary.output_tokens)),
        ]),
        arrivals: summary.arrivals.map(|arrivals| ArrivalsJson {
            target_per_s: arrivals.target,
            offered_per_s: arrivals.offered,
            achieved_per_s: arrivals.achieved,
            spread_s: arrivals.spread.as_secs_f64(),
            waited: arrivals.waited,
            late: arrivals.late,
        }),
        goodput: settings.goals.zip(summary.good).map(|(goals, good)| Goodput {
            good,
            requests_per_s: f64::from(good) / summary.duration.as_secs_f64().max(1e-9),
            share_of_sent: f64::from(good) / f64::from(summary.counts.sent.max(1)),
            ttft_ms: goals.ttft.map(|span| span.as_ns() as f64 / 1e6),
            tpot_ms: goals.tpot.map(|span| span.as_ns() as f64 / 1e6),
            e2e_ms: goals.e2e.map(|span| span.as_ns() as f64 / 1e6),
        }),
        cached_prompt_tokens: Cached {
            expected: summary.cached.expected,
            observed: summary.cached.observed,
        },
        client: Client {
            loop_lag_ms: ms(&summary.loop_lag),
            read_lag_ms: summary
                .health
                .read_lag
                .map(|lags| lags.map(|lag| lag.as_ns() as f64 / 1e6)),
            cpu_share: summary.health.cpu_share(),
            peak_memory_bytes: summary.health.peak_memory_bytes,
            connections_opened: summary.connections_opened,
            requests_not_ready: summary.health.unready,
            healthy: !summary.client_late(),
        },
        server: server(summary, measured, stamp, percentiles),
        warnings,
        records: if settings.report.detailed {
            measured.records.iter().map(|r| record(r, measured.began)).collect()
        } else {
            Vec::new()
        },
    }
}

fn requests(summary: &Summary) -> Requests<'_> {
    let counts = &summary.counts;
    Requests {
        planned: counts.planned,
        sent: counts.sent,
        completed: counts.completed,
        failed: counts.failed,
        stopped_in_flight: counts.cut,
        finish_reasons: &counts.finish,
        failures: FailureClass::ALL.iter().map(|c| (c.key(), counts.failures_of(*c))).collect(),
        failure_messages: counts
            .failures
            .iter()
            .map(|(class, seen)| {
                // Ten are enough to see what goes wrong; the counts above are complete.
                let seen = seen.iter().take(10).map(|(text, n)| (text.as_str(), *n)).collect();
                (class.key(), seen)
            })
            .collect(),
    }
}

fn stat_json(stat: &Stat, percentiles: &[f64], factor: f64) -> StatJson {
    let scaled = |value: Option<f64>| value.map(|v| v * factor);
    let name = |p: f64| format!("p{p}");
    let known = stat.n > 0;
    StatJson {
        count: stat.n,
        mean: known.then_some(stat.mean * factor),
        stddev: known.then_some(stat.stddev * factor),
        min: scaled(stat.min()),
        max: scaled(stat.max()),
        percentiles: percentiles.iter().map(|&p| (name(p), scaled(stat.percentile(p)))).collect(),
        percentiles_with_failures: (stat.failures > 0).then(|| {
            let infinite = |p| scaled(stat.with_failures(p).filter(|v| v.is_finite()));
            percentiles.iter().map(|&p| (name(p), infinite(p))).collect()
        }),
    }
}

fn server<'a>(
    summary: &Summary,
    measured: &'a Measured,
    stamp: Option<&Stamp>,
    percentiles: &[f64],
) -> ServerJson<'a> {
    let model = match &measured.server {
        ServerSide::Skipped => return ServerJson::Skipped,
        ServerSide::NotAvailable(why) => {
            return ServerJson::NotAvailable {
                why,
                per_request: per_request(measured, percentiles),
            };
        }
        ServerSide::Known(model) => model,
    };
    let lag = model.latency_seconds.get("lag").copied().unwrap_or_default();
    let resolution = stamp.map(Stamp::resolution);
    let row = |row: compare::Row| RowJson {
        metric: row.name,
        client_ms: row.client,
        server_ms: row.server,
        simulated_ms: row.simulated,
        delivery_ms: row.delivery,
        below_client_resolution: row.below_resolution,
    };
    ServerJson::Known(Box::new(ServerKnown {
        source: if model.estimated { "vllm_metrics" } else { "summary" },
        requests_finished: compare::finished(model),
        output_tokens_per_s: model.throughput.output_tokens_per_second,
        lag_ms_p50: lag.p50.map(|s| s * 1e3),
        lag_ms_p99: lag.p99.map(|s| s * 1e3),
        lag_ms_max: lag.max.map(|s| s * 1e3),
        comparison: compare::rows(summary, model, measured.joined.as_ref(), resolution)
            .into_iter()
            .map(row)
            .collect(),
        per_request: per_request(measured, percentiles),
    }))
}

fn per_request(
    measured: &Measured,
    percentiles: &[f64],
) -> Option<BTreeMap<&'static str, StatJson>> {
    let joined = measured.joined.as_ref()?;
    let ms = |values: &[u64]| {
        let stat = Stat::new(values.iter().map(|&ns| ns as f64), 0);
        stat_json(&stat, percentiles, 1e-6)
    };
    Some(match joined.told {
        Told::Clock => BTreeMap::from([
            ("delivery_first_token_ms", ms(&joined.first)),
            ("delivery_last_token_ms", ms(&joined.last)),
            ("server_late_first_token_ms", ms(&joined.server_late)),
        ]),
        Told::Phases => BTreeMap::from([
            ("outside_engine_first_token_ms", ms(&joined.first)),
            ("outside_engine_last_token_ms", ms(&joined.last)),
            ("server_queue_ms", ms(&joined.queue)),
            ("server_prefill_ms", ms(&joined.prefill)),
        ]),
    })
}

fn record_server(record: &Record) -> Option<RecordServer> {
    let delivery = compare::delivery(record).map(|(_, delivery)| delivery);
    let first = delivery.map(|delivery| ms(delivery.first));
    let last = delivery.and_then(|delivery| delivery.last).map(ms);
    if let Some(timing) = record.server {
        return Some(RecordServer::Clock {
            queued_ms: timing.queued.map(ms),
            first_scheduled_ms: ms(timing.first_scheduled),
            first_released_ms: ms(timing.first_released),
            first_sent_ms: ms(timing.first_sent),
            last_scheduled_ms: ms(timing.last_scheduled),
            last_released_ms: ms(timing.last_released),
            token_lag_max_ms: timing.lag_max.map(ms),
            delivery_first_ms: first,
            delivery_last_ms: last,
        });
    }
    let reported = record.reported?;
    Some(RecordServer::Phases {
        queue_ms: reported.queue.map(ms),
        first_token_ms: reported.first_token.map(ms),
        generation_ms: reported.generation.map(ms),
        outside_engine_first_ms: first,
        outside_engine_last_ms: last,
    })
}

fn ms(span: SimSpan) -> f64 {
    span.as_ns() as f64 / 1e6
}

fn record(record: &Record, began: SimTime) -> RecordJson<'_> {
    let since = |at: SimTime| at.saturating_since(began).as_secs_f64();
    let (outcome, detail) = match &record.outcome {
        Outcome::Finished(reason) => ("finished", reason.as_str()),
        Outcome::Failed(failure) => (failure.class.key(), failure.detail.as_str()),
        Outcome::Interrupted => ("interrupted", ""),
    };
    let stamps = &record.output.stamps;
    RecordJson {
        index: record.index,
        scheduled_s: since(record.scheduled),
        sent_s: record.sent.map(since),
        connect_ms: record.connect.map(|span| span.as_ns() as f64 / 1e6),
        headers_s: record.headers.map(since),
        first_s: record.output.first.map(since),
        last_s: record.output.last.map(since),
        end_s: since(record.end),
        status: record.status,
        outcome,
        detail,
        chunks: record.output.chunks,
        prompt_tokens: record.usage.map(|usage| usage.prompt),
        output_tokens: record.output_tokens(),
        cached_tokens: record.usage.and_then(|usage| usage.cached),
        gaps_ms: stamps.windows(2).map(|pair| ms(pair[1].saturating_since(pair[0]))).collect(),
        server: record_server(record),
    }
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn keys_do_not_leave_the_machine_in_a_report() {
        let typed = ["bench", "--api-key", "sk-1", "--header=X: y", "--model", "m"];
        let shown = redact(typed.iter().map(|&arg| arg.to_owned()));
        assert_eq!(shown, ["bench", "--api-key", "REDACTED", "--header=REDACTED", "--model", "m"]);
    }
}
