//! What the client itself adds, measured against an in-process stream of known timing.
//!
//! Client and reference share one clock and the records of both are joined chunk by chunk, so the
//! reference's own lateness is not blamed on the client. The invariant: the client runs the same
//! code here as against a real server.

pub mod reference;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use llmsim_engine::seed::Seed;
use llmsim_engine::units::{SimSpan, SimTime};
use serde::Serialize;

use crate::args::{ReferenceArgs, SelftestArgs};
use crate::clock::Clock;
use crate::compare::Resolution;
use crate::http::tls::Trust;
use crate::http::url::Url;
use crate::plan::{Arrivals, Extent, Gaps, Load};
use crate::progress::Live;
use crate::result::{Level, Stat};
use crate::run::{Context, LevelSpec, measure};
use crate::target::http::{Client, Stamps, Texts, Timeouts};
use crate::workload::request::{Api, Form};
use crate::workload::{Source, Workload};
use reference::{Handed, Reference, Sent, Timing};

/// The client's own error at one concurrency and chunk rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stamp {
    /// Streams at once.
    pub concurrency: u32,
    /// Chunks per second of all streams, as received.
    pub chunks_per_s: f64,
    /// Both ways through kernel and client: TTFT as the client saw it, less what the reference
    /// really took.
    pub ttft_added: Added,
    /// Error of a chunk gap, in either direction.
    pub itl_error: Added,
    /// From schedule to send.
    pub schedule_lag: Added,
}

/// Percentiles of something that the client adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Added {
    /// Median in ms.
    pub p50_ms: f64,
    /// 99th percentile in ms.
    pub p99_ms: f64,
}

impl Added {
    fn of(spans: Vec<u64>) -> Self {
        let stat = Stat::new(spans.into_iter().map(|ns| ns as f64 / 1e6), 0);
        let at = |p| stat.percentile(p).unwrap_or(0.0);
        Self { p50_ms: at(50.0), p99_ms: at(99.0) }
    }
}

impl Stamp {
    /// What this client cannot tell apart.
    pub const fn resolution(&self) -> Resolution {
        Resolution { ttft_ms: self.ttft_added.p99_ms, itl_ms: self.itl_error.p99_ms }
    }

    /// One line for the console.
    pub fn line(&self) -> String {
        format!(
            "client adds TTFT p50 {:.2} ms · p99 {:.2} ms · ITL p99 {:.2} ms · schedule lag p99 \
             {:.2} ms (at {} streams, {:.0} chunks/s)",
            self.ttft_added.p50_ms,
            self.ttft_added.p99_ms,
            self.itl_error.p99_ms,
            self.schedule_lag.p99_ms,
            self.concurrency,
            self.chunks_per_s,
        )
    }
}

/// What to test.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Streams at once.
    pub concurrency: u32,
    /// Tokens per second of each.
    pub tokens_per_second: f64,
    /// Tokens per stream.
    pub tokens: u32,
    /// Whose instant counts as an arrival.
    pub stamps: Stamps,
}

impl Setup {
    /// As a run will be that has so many streams with this mean gap between chunks (`None` if
    /// answers have one chunk), within what the reference can keep up with and a second or two.
    pub fn like(streams: u32, gap: Option<SimSpan>, stamps: Stamps) -> Self {
        /// One thread serves the reference; beyond this it would measure itself.
        const MOST_CHUNKS_PER_S: f64 = 50_000.0;
        // More streams tell nothing new about the client.
        let concurrency = streams.clamp(1, 1024);
        let most = (MOST_CHUNKS_PER_S / f64::from(concurrency)).min(1000.0);
        let rate = gap.map_or(100.0, |gap| 1.0 / gap.as_secs_f64().max(1e-6));
        let tokens_per_second = rate.clamp(10.0, most);
        let tokens = (tokens_per_second / 2.0).clamp(5.0, 500.0) as u32;
        Self { concurrency, tokens_per_second, tokens, stamps }
    }

    /// How long one answer takes.
    fn answer(&self) -> SimSpan {
        SimSpan::from_secs_f64(0.05 + f64::from(self.tokens) / self.tokens_per_second)
    }
}

/// Runs the self-test on the runtime of this thread.
///
/// # Errors
/// A sentence if the reference cannot be started or nothing came through.
pub async fn run(setup: Setup) -> Result<Stamp, String> {
    let clock = Clock::start();
    let itl = SimSpan::from_secs_f64(1.0 / setup.tokens_per_second);
    let timing = Timing { ttft: SimSpan::from_ms(50), itl, tokens: setup.tokens, stall: None };
    let reference = Reference::start(clock, 0, timing)
        .map_err(|error| format!("self-test: cannot start the reference stream: {error}"))?;
    let url = Url::parse(&format!("http://{}", reference.address()))?;
    let timeouts = Timeouts { connect: SimSpan::from_ms(5000), silence: SimSpan::from_ms(10_000) };
    let live = Arc::new(Live::default());
    let client = Client::start(
        clock,
        &url,
        timeouts,
        setup.stamps,
        Texts::Drop,
        Arc::clone(&live),
        &Trust::System,
    )?;
    client.warm(setup.concurrency).await;
    let context = Context { clock, client, workload: Arc::new(workload(&url, setup)), live };
    // Streams begin spread over the time of one answer, as they do in an open loop.
    let answer = setup.answer();
    let rate = f64::from(setup.concurrency) / answer.as_secs_f64();
    let level = measure(
        &context,
        &LevelSpec {
            number: 0,
            load: Load::Open {
                arrivals: Arrivals::Steady { rate, gaps: Gaps::Poisson },
                max_concurrency: None,
            },
            extent: Extent { requests: Some(setup.concurrency * ANSWERS), duration: None },
            seed: Seed::new(1),
        },
    )
    .await;
    let mut errors = Errors::default();
    let log = by_port(reference.take_log());
    for record in level.records.iter().filter(|record| record.ok()) {
        let Some(sent) = record.sent else { continue };
        errors.schedule_lag.push(sent.saturating_since(record.scheduled).as_ns());
        errors.join(record.local_port, sent, &record.output.stamps, &log);
    }
    if errors.ttft.is_empty() {
        return Err("self-test: no answer of the reference stream could be joined".into());
    }
    Ok(Stamp {
        concurrency: setup.concurrency,
        chunks_per_s: steady_chunks_per_s(&level, answer),
        ttft_added: Added::of(errors.ttft),
        itl_error: Added::of(errors.itl),
        schedule_lag: Added::of(errors.schedule_lag),
    })
}

/// Answers of each stream, one after the other: while the first ones begin and the last ones end,
/// fewer than all are in flight.
const ANSWERS: u32 = 3;

/// Chunks per second while all streams are in flight: after the first answer's time, until the last
/// arrival.
fn steady_chunks_per_s(level: &Level, answer: SimSpan) -> f64 {
    let from = level.began + answer;
    let last = level.records.iter().map(|record| record.scheduled).max();
    let until = last.unwrap_or(level.ended).max(from + answer);
    let stamps = level.records.iter().flat_map(|record| &record.output.stamps);
    let count = stamps.filter(|at| (from..until).contains(at)).count();
    count as f64 / until.saturating_since(from).as_secs_f64().max(1e-9)
}

fn workload(url: &Url, setup: Setup) -> Workload {
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\n", url.authority());
    Workload {
        source: Source::Fixed("Count.".into()),
        form: Form { api: Api::Chat, model: "reference".into(), head, members: String::new() },
        prefix: String::new(),
        max_tokens: Some(setup.tokens),
        ignore_eos: false,
        seed: Seed::new(0),
        nonce: None,
    }
}

fn by_port(log: Vec<Sent>) -> HashMap<u16, Vec<Sent>> {
    let mut ports: HashMap<u16, Vec<Sent>> = HashMap::new();
    for sent in log {
        ports.entry(sent.port).or_default().push(sent);
    }
    ports
}

/// The two clocks (wall and monotonic) behind a kernel stamp are read one after the other.
const SLACK: SimSpan = SimSpan::from_us(200);

#[derive(Default)]
struct Errors {
    ttft: Vec<u64>,
    itl: Vec<u64>,
    schedule_lag: Vec<u64>,
}

impl Errors {
    /// Compares one answer with what the reference did on that connection right after `sent`.
    fn join(
        &mut self,
        port: u16,
        sent: SimTime,
        stamps: &[SimTime],
        log: &HashMap<u16, Vec<Sent>>,
    ) {
        let answers = log.get(&port).map_or(&[][..], Vec::as_slice);
        let Some(truth) =
            answers.iter().filter(|a| a.arrived + SLACK >= sent).min_by_key(|a| a.arrived)
        else {
            return;
        };
        let (Some(&first), Some(&released)) = (stamps.first(), truth.chunks.first()) else {
            return;
        };
        // What the client saw beyond the latest instant at which the kernel can have had it.
        let took = released.ended.saturating_since(truth.arrived);
        let seen = first.saturating_since(sent);
        self.ttft.push(seen.as_ns().saturating_sub(took.as_ns()));
        for (seen, truth) in stamps.windows(2).zip(truth.chunks.windows(2)) {
            self.itl.push(gap_error([seen[0], seen[1]], [truth[0], truth[1]]));
        }
    }
}

/// How far a seen gap lies outside of what the gap can have been, in ns.
fn gap_error(seen: [SimTime; 2], truth: [Handed; 2]) -> u64 {
    let seen = seen[1].saturating_since(seen[0]).as_ns();
    let shortest = truth[1].began.saturating_since(truth[0].ended).as_ns();
    let longest = truth[1].ended.saturating_since(truth[0].began).as_ns();
    shortest.saturating_sub(seen).max(seen.saturating_sub(longest))
}

/// `llmsim-bench selftest`.
///
/// # Errors
/// A sentence.
pub fn main(args: &SelftestArgs) -> Result<ExitCode, String> {
    let rate = args.tokens_per_second;
    if args.concurrency == 0 || args.tokens < 2 || !(rate.is_finite() && rate > 0.0) {
        return Err("selftest: needs a stream, two tokens and a rate above 0".into());
    }
    crate::os::raise_open_files();
    let setup = Setup {
        concurrency: args.concurrency,
        tokens_per_second: rate,
        tokens: args.tokens,
        stamps: crate::settings::stamps(args.stamps),
    };
    let stamp = crate::runtime::block_on(args.io_driver, async |driver| {
        println!("self-test · {} streams · {rate} tokens/s each · {driver}", args.concurrency);
        run(setup).await
    })??;
    println!("{}", stamp.line());
    if let Some(path) = &args.output {
        let text = sonic_rs::to_string_pretty(&stamp).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `llmsim-bench reference`.
///
/// # Errors
/// A sentence.
pub fn serve(args: &ReferenceArgs) -> Result<ExitCode, String> {
    let span = |ms: f64| {
        let valid = ms.is_finite() && ms >= 0.0;
        valid.then(|| SimSpan::from_secs_f64(ms / 1000.0)).ok_or("reference: not a time in ms")
    };
    if let Some(cpus) = &args.cpus {
        crate::os::use_cpus(cpus)?;
    }
    crate::os::raise_open_files();
    let timing =
        Timing { ttft: span(args.ttft)?, itl: span(args.itl)?, tokens: args.tokens, stall: None };
    let reference = Reference::start(Clock::start(), args.port, timing)
        .map_err(|error| format!("reference: port {}: {error}", args.port))?;
    println!("http://{}", reference.address());
    reference.join();
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_at_the_streams_and_the_chunk_rate_of_the_run() {
        let like = |streams, gap_us: Option<u64>| {
            let setup = Setup::like(streams, gap_us.map(SimSpan::from_us), Stamps::Kernel);
            (setup.concurrency, setup.tokens_per_second.round() as u32, setup.tokens)
        };
        // 16 streams of 25 ms per chunk: half a second of 40 chunks per second each.
        assert_eq!(like(16, Some(25_000)), (16, 40, 20));
        assert_eq!(like(100, Some(4_000)), (100, 250, 125));
        // No answer had two chunks: a rate has to be assumed.
        assert_eq!(like(1, None), (1, 100, 50));
        // An instant server and a very slow one; 500 streams share 50,000 chunks per second.
        assert_eq!(like(8, Some(0)), (8, 1000, 500));
        assert_eq!(like(8, Some(2_000_000)), (8, 10, 5));
        assert_eq!(like(500, Some(1_000)), (500, 100, 50));
    }

    #[test]
    fn a_gap_is_wrong_only_beyond_what_it_can_have_been() {
        let at = |us: u64| SimTime::from_ns(us * 1000);
        let handed = |began, ended| Handed { began: at(began), ended: at(ended) };
        // Between 9 and 11 ms apart.
        let truth = [handed(0, 1_000), handed(10_000, 11_000)];
        let error = |gap: u64| gap_error([at(500), at(500 + gap)], truth);
        assert_eq!(
            [error(8_000), error(9_000), error(11_000), error(11_400)],
            [1_000_000, 0, 0, 400_000]
        );
    }
}
