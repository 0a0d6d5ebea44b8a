//! What the server says about the same requests, and how the two sides differ.
//!
//! llmsimulator's `/metrics/summary` is reset after warm-up and read after the run. Three clocks
//! meet: `simulated` (scheduled by the engine), `server` (released to the socket) and `client`
//! (received). Any other server is reported as not available, and the run goes on.

use std::collections::BTreeMap;

use llmsim_engine::units::{SimSpan, SimTime};
use serde::Deserialize;

use crate::record::Record;
use crate::result::{Stat, Summary};

/// What `/metrics/summary` says of one model.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ServerModel {
    /// Engine.
    #[serde(default)]
    pub engine: String,
    /// Requests.
    #[serde(default)]
    pub requests: ServerRequests,
    /// Throughput.
    #[serde(default)]
    pub throughput: ServerThroughput,
    /// Latencies by name.
    #[serde(default)]
    pub latency_seconds: BTreeMap<String, ServerStat>,
    /// The engine's own timeline, by name, where the server tells it.
    #[serde(default)]
    pub simulated_seconds: BTreeMap<String, ServerStat>,
    /// Percentiles are estimates from histogram buckets.
    #[serde(skip)]
    pub estimated: bool,
}

/// Requests of one model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct ServerRequests {
    /// In progress.
    #[serde(default)]
    pub running: u64,
    /// Finished, by reason.
    #[serde(default)]
    pub finished: BTreeMap<String, u64>,
}

/// Throughput of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct ServerThroughput {
    /// Output tokens per second.
    #[serde(default)]
    pub output_tokens_per_second: f64,
}

/// Order statistics in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct ServerStat {
    /// Values.
    #[serde(default)]
    pub count: u64,
    /// Mean.
    pub mean: Option<f64>,
    /// Least.
    pub min: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Greatest.
    pub max: Option<f64>,
}

/// What is known of the server's side.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerSide {
    /// Not asked for.
    Skipped,
    /// It has no summary, or not for this model.
    NotAvailable(String),
    /// Its figures.
    Known(Box<ServerModel>),
}

#[derive(Deserialize)]
struct SummaryBody {
    models: BTreeMap<String, ServerModel>,
}

/// Reads the body of `/metrics/summary`.
///
/// # Errors
/// Why there is nothing to compare with.
pub fn read_summary(body: &[u8], model: &str) -> Result<ServerModel, String> {
    let mut summary: SummaryBody = sonic_rs::from_slice(body)
        .map_err(|_| "its answer is not a summary that this client knows".to_owned())?;
    summary.models.remove(model).ok_or_else(|| format!("its summary has no model '{model}'"))
}

/// One row of the comparison; values in ms, or tokens per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Metric and percentile.
    pub name: &'static str,
    /// Received.
    pub client: Option<f64>,
    /// Released.
    pub server: Option<f64>,
    /// Scheduled by the engine.
    pub simulated: Option<f64>,
    /// `client - server`: HTTP, network and this client.
    pub delivery: Option<f64>,
    /// The difference is smaller than what the client can tell apart (self-test).
    pub below_resolution: bool,
}

/// Differences below these are not findings: the client adds as much itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resolution {
    /// For times from the send.
    pub ttft_ms: f64,
    /// For times between chunks.
    pub itl_ms: f64,
}

impl Resolution {
    fn of(self, key: &str) -> f64 {
        if matches!(key, "itl" | "tpot") { self.itl_ms } else { self.ttft_ms }
    }
}

/// The comparison of both sides, row by row. The engine's own timeline comes from `joined`, where
/// the server told it request by request.
pub fn rows(
    summary: &Summary,
    server: &ServerModel,
    joined: Option<&Joined>,
    resolution: Option<Resolution>,
) -> Vec<Row> {
    let simulated = |key: &str, take: Take| {
        let spans = match key {
            "ttft" => &joined?.scheduled,
            "e2e" => &joined?.last_scheduled,
            _ => return None,
        };
        take.client(&Stat::new(spans.iter().map(|&ns| ns as f64 / 1e6), 0))
    };
    let raw = summary.raw.as_ref();
    let ttft = raw.map_or(&summary.ttft, |raw| &raw.ttft);
    let e2e = raw.map_or(&summary.e2e, |raw| &raw.e2e);
    // From buckets only the mean is exact: a difference of estimated percentiles says nothing.
    let metrics: &[(&str, &str, Take, &Stat)] = if server.estimated {
        &[
            ("TTFT mean", "ttft", Take::Mean, ttft),
            ("TPOT mean", "tpot", Take::Mean, &summary.tpot),
            ("E2E mean", "e2e", Take::Mean, e2e),
        ]
    } else {
        &[
            ("TTFT p50", "ttft", Take::P50, ttft),
            ("TTFT p99", "ttft", Take::P99, ttft),
            ("ITL p50", "itl", Take::P50, &summary.itl),
            ("ITL p99", "itl", Take::P99, &summary.itl),
            ("TPOT p50", "tpot", Take::P50, &summary.tpot),
            ("E2E p50", "e2e", Take::P50, e2e),
            ("E2E p99", "e2e", Take::P99, e2e),
        ]
    };
    metrics
        .iter()
        .map(|&(name, key, take, stat)| {
            let of =
                |stats: &BTreeMap<String, ServerStat>| Some(take.server(stats.get(key)?)? * 1e3);
            let client = take.client(stat).map(|ns| ns / 1e6);
            let server_value = of(&server.latency_seconds);
            let delivery = client.zip(server_value).map(|(client, server)| client - server);
            Row {
                name,
                client,
                server: server_value,
                simulated: of(&server.simulated_seconds).or_else(|| simulated(key, take)),
                delivery,
                below_resolution: delivery
                    .zip(resolution)
                    .is_some_and(|(delivery, limit)| delivery.abs() < limit.of(key)),
            }
        })
        .collect()
}

/// Which figure of a metric is compared.
#[derive(Clone, Copy)]
enum Take {
    Mean,
    P50,
    P99,
}

impl Take {
    fn client(self, stat: &Stat) -> Option<f64> {
        match self {
            Self::Mean => (stat.n > 0).then_some(stat.mean),
            Self::P50 => stat.percentile(50.0),
            Self::P99 => stat.percentile(99.0),
        }
    }

    const fn server(self, stat: &ServerStat) -> Option<f64> {
        match self {
            Self::Mean => stat.mean,
            Self::P50 => stat.p50,
            Self::P99 => stat.p99,
        }
    }
}

/// Requests that the server has finished.
pub fn finished(server: &ServerModel) -> u64 {
    server.requests.finished.values().sum()
}

/// Above this the server's own timing cannot be trusted.
pub const LAG_LIMIT_MS: f64 = 5.0;

/// What a reader must know about the server's side.
pub fn warnings(summary: &Summary, server: &ServerModel) -> Vec<String> {
    let mut warnings = Vec::new();
    let (theirs, ours) = (finished(server), u64::from(summary.counts.sent));
    if theirs > ours {
        warnings.push(format!(
            "the server finished {theirs} requests where this client sent {ours}: other traffic is \
             mixed into its figures"
        ));
    }
    let lag = server.latency_seconds.get("lag").and_then(|stat| stat.p99);
    if let Some(lag) = lag.map(|lag| lag * 1e3).filter(|lag| *lag > LAG_LIMIT_MS) {
        warnings.push(format!(
            "the simulator ran behind its own timeline: token lag p99 {lag:.1} ms; less load or \
             more CPU brings it back under {LAG_LIMIT_MS} ms"
        ));
    }
    warnings
}

/// What a request took here beyond what the server says that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// To the first token.
    pub first: SimSpan,
    /// To the last token; `None` if the server does not tell.
    pub last: Option<SimSpan>,
}

/// How servers tell about single requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// llmsimulator: the instants at which tokens were scheduled and handed on, from when it had
    /// read the request. What is beyond is the network and this client.
    #[default]
    Clock,
    /// vLLM: the lengths of queue, prefill and decode. What is beyond is all that is outside of its
    /// engine: its front end with tokenising and parsing, the network and this client.
    Phases,
}

/// What `record` took beyond what its server tells of it, and how that told. Both ways of the
/// network are in it.
pub fn delivery(record: &Record) -> Option<(Told, Delivery)> {
    let (sent, first) = (record.sent.filter(|_| record.ok())?, record.output.first?);
    let beyond = |at: SimTime, span: SimSpan| at.saturating_since(sent + span);
    let last = record.last_output();
    if let Some(timing) = record.server {
        let last = Some(beyond(last, timing.last_released));
        return Some((Told::Clock, Delivery { first: beyond(first, timing.first_sent), last }));
    }
    let reported = record.reported?;
    let last = reported.to_last().map(|span| beyond(last, span));
    Some((Told::Phases, Delivery { first: beyond(first, reported.to_first()?), last }))
}

/// Both sides joined request by request; `None` where the server told nothing of single ones.
pub fn delivery_per_request(records: &[Record]) -> Option<Joined> {
    let mut joined = Joined::default();
    for record in records {
        let Some((told, delivery)) = delivery(record) else { continue };
        joined.told = told;
        joined.first.push(delivery.first.as_ns());
        joined.last.extend(delivery.last.map(SimSpan::as_ns));
        if let Some(timing) = record.server {
            let late = timing.first_sent.as_ns().saturating_sub(timing.first_scheduled.as_ns());
            joined.server_late.push(late);
            joined.scheduled.push(timing.first_scheduled.as_ns());
            joined.last_scheduled.push(timing.last_scheduled.as_ns());
        } else if let Some(reported) = record.reported {
            joined.queue.extend(reported.queue.map(SimSpan::as_ns));
            joined.prefill.extend(reported.first_token.map(SimSpan::as_ns));
        }
    }
    (!joined.first.is_empty()).then_some(joined)
}

/// Spans in ns, one per request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// How the server told.
    pub told: Told,
    /// First token, see [`Delivery`].
    pub first: Vec<u64>,
    /// Last token, see [`Delivery`].
    pub last: Vec<u64>,
    /// By its clock: first token, sent by the server less scheduled by its engine.
    pub server_late: Vec<u64>,
    /// By its clock: first token, scheduled by the engine, from the arrival of the request.
    pub scheduled: Vec<u64>,
    /// By its clock: last token, scheduled by the engine, from the arrival of the request.
    pub last_scheduled: Vec<u64>,
    /// By its phases: in the queue.
    pub queue: Vec<u64>,
    /// By its phases: from the queue to the first token.
    pub prefill: Vec<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read_for_the_model_asked_for() {
        let body = br#"{"since_reset_seconds":2.34,"models":{"qwen-mock":{"engine":"fixed_rate",
            "requests":{"running":0,"finished":{"stop":3,"length":2}},
            "throughput":{"window_seconds":2.34,"requests_per_second":1.28,"output_tokens_per_second":23.05},
            "latency_seconds":{"ttft":{"count":3,"samples":3,"mean":0.0073,"min":0.0023,"p50":0.0023,
            "p90":0.0144,"p95":0.0159,"p99":0.0171,"max":0.0174},"itl":{}}}}}"#;
        let model = read_summary(body, "qwen-mock").expect("valid");
        assert_eq!(finished(&model), 5);
        assert_eq!(model.latency_seconds["ttft"].p99, Some(0.0171));
        assert!(read_summary(body, "other").expect_err("missing").contains("'other'"));
        assert!(read_summary(b"<html>", "m").is_err());
    }

    fn answered() -> Record {
        let at = |ms: u64| SimTime::from_ns(ms * 1_000_000);
        let mut record = Record::planned(0, at(10));
        record.sent = Some(at(20));
        record.output = crate::record::Output::of([at(70), at(90)]);
        record.outcome = crate::record::Outcome::Finished("stop".into());
        record
    }

    /// Sent at 20 ms, tokens at 70 and 90: 50 and 70 ms after. vLLM says 3 ms of queue, 41 of
    /// prefill and 19 of decode.
    #[test]
    fn vllms_phases_leave_what_is_outside_of_its_engine() {
        let mut record = answered();
        assert_eq!(delivery(&record), None);
        record.reported = Some(crate::record::Reported {
            queue: Some(SimSpan::from_ms(3)),
            first_token: Some(SimSpan::from_ms(41)),
            generation: Some(SimSpan::from_ms(19)),
        });
        let joined = delivery_per_request(&[record.clone(), answered()]).expect("one is told");
        assert_eq!((joined.told, joined.first.len()), (Told::Phases, 1));
        let ms = |values: &[u64]| values[0] / 1_000_000;
        assert_eq!((ms(&joined.first), ms(&joined.last)), (6, 7));
        assert_eq!((ms(&joined.queue), ms(&joined.prefill)), (3, 41));
        assert!(joined.scheduled.is_empty());
    }

    #[test]
    fn our_servers_clock_leaves_the_network_and_this_client() {
        let mut record = answered();
        let ms = SimSpan::from_ms;
        record.server = Some(crate::record::ServerTiming {
            queued: None,
            first_scheduled: ms(46),
            first_released: ms(47),
            first_sent: ms(48),
            last_scheduled: ms(66),
            last_released: ms(67),
            lag_max: None,
        });
        let joined = delivery_per_request(&[record]).expect("told");
        let ms = |values: &[u64]| values[0] / 1_000_000;
        assert_eq!((ms(&joined.first), ms(&joined.last), ms(&joined.server_late)), (2, 3, 2));
    }
}
