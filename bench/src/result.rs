//! From records to figures: pure, exact, and the same for live and virtual runs.
//!
//! Definitions, with s the scheduled send, a the actual one, c1..ck the arrivals of chunks with
//! output and n the output tokens: TTFT = c1 - s, E2E = ck - s, TPOT = (ck - c1)/(n - 1) for n > 1,
//! ITL = every c(i) - c(i-1). `raw` TTFT and E2E count from a. In a closed loop a stream sends when
//! it is free, so its headline counts from a. Percentiles interpolate linearly, as numpy does;
//! those with failures are nearest-rank. The invariant: failures are never dropped; they are
//! +infinity in the second percentile column.

use std::collections::BTreeMap;

use llmsim_engine::stats::percentile::{self, Percent};
use llmsim_engine::units::{SimSpan, SimTime};

use crate::health::{Health, LATE};
use crate::plan::{Arrivals, Extent, Load};
use crate::record::{FailureClass, NO_REASON, Outcome, Record};

/// A level that has been run.
#[derive(Clone, Debug)]
pub struct Level {
    /// The load it ran under.
    pub load: Load,
    /// Where it was to end.
    pub extent: Extent,
    /// How many requests the plan had.
    pub planned: u32,
    /// One per started request, by index.
    pub records: Vec<Record>,
    /// Start of the schedule.
    pub began: SimTime,
    /// When the last request had ended.
    pub ended: SimTime,
    /// How the client kept up.
    pub health: Health,
    /// Connections that had to be opened during the measurement.
    pub connections_opened: u32,
    /// Arrivals that had fallen due and still waited for a slot when the user stopped it.
    pub never_sent: u32,
    /// The user stopped it.
    pub interrupted: bool,
}

/// Service levels that a good request keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Goals {
    /// Time to first token.
    pub ttft: Option<SimSpan>,
    /// Time per output token after the first.
    pub tpot: Option<SimSpan>,
    /// End to end.
    pub e2e: Option<SimSpan>,
}

/// The figures of one level.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Requests by fate.
    pub counts: Counts,
    /// From the start of the schedule to the end of the last request.
    pub duration: SimSpan,
    /// How much of that was after the last planned send (only with a set duration).
    pub drain: SimSpan,
    /// Successful requests per second.
    pub requests_per_s: f64,
    /// Output tokens of successful requests per second.
    pub output_tokens_per_s: f64,
    /// Chunks with output per second, of all requests: what the client had to read.
    pub chunks_per_s: f64,
    /// Prompt and output tokens of successful requests per second.
    pub total_tokens_per_s: f64,
    /// Headline: from the scheduled send in an open loop, from the send in a closed one.
    pub ttft: Stat,
    /// Chunk gaps.
    pub itl: Stat,
    /// Time per output token after the first.
    pub tpot: Stat,
    /// Headline, as TTFT.
    pub e2e: Stat,
    /// Open loop: from the send.
    pub raw: Option<Raw>,
    /// Time to open a connection, where one had to be opened.
    pub connect: Stat,
    /// Prompt tokens per request.
    pub prompt_tokens: Stat,
    /// Output tokens per request.
    pub output_tokens: Stat,
    /// Sums of tokens over successful requests: prompt, output.
    pub tokens: (u64, u64),
    /// The arrivals, in an open loop.
    pub arrivals: Option<ArrivalFigures>,
    /// Expected and observed prompt tokens from the prefix cache.
    pub cached: CachedFigures,
    /// Requests that kept all goals.
    pub good: Option<u32>,
    /// How late the client's loop ran.
    pub loop_lag: Stat,
    /// How the client kept up.
    pub health: Health,
    /// Connections opened during the measurement.
    pub connections_opened: u32,
    /// The most requests in flight.
    pub peak_in_flight: u32,
    /// What a reader must know before believing the rest.
    pub warnings: Vec<String>,
    /// The user stopped it.
    pub interrupted: bool,
}

/// Open loop: what it looks like from the actual send.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    /// TTFT from the send.
    pub ttft: Stat,
    /// E2E from the send.
    pub e2e: Stat,
    /// From the schedule to the send.
    pub queue_wait: Stat,
}

/// Requests by fate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// In the plan.
    pub planned: u32,
    /// Handed to a socket.
    pub sent: u32,
    /// Ended well.
    pub completed: u32,
    /// Ended badly.
    pub failed: u32,
    /// Stopped by the user while in flight.
    pub cut: u32,
    /// Finish reasons of the completed.
    pub finish: BTreeMap<String, u32>,
    /// Classes of the failed, each with the details seen, most frequent first.
    pub failures: BTreeMap<FailureClass, Vec<(String, u32)>>,
}

/// How the schedule was kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArrivalFigures {
    /// Asked for; `None` if all at once.
    pub target: Option<f64>,
    /// In the schedule as drawn, up to where it ended or was stopped; `None` if all at once.
    pub offered: Option<f64>,
    /// Sent; `None` for fewer than two sends.
    pub achieved: Option<f64>,
    /// From the first send to the last.
    pub spread: SimSpan,
    /// Requests that waited for a slot.
    pub waited: u32,
    /// Sends that fell behind the schedule by over a millisecond without waiting for a slot.
    pub late: u32,
}

/// Prefix-cache hits in prompt tokens, over successful requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedFigures {
    /// What the trace implies; `None` if it implies nothing.
    pub expected: Option<u64>,
    /// What the server reports; `None` if it reports nothing.
    pub observed: Option<u64>,
}

/// Order statistics of one metric. Spans are in ns, counts are plain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stat {
    /// Values.
    pub n: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation (of the population).
    pub stddev: f64,
    sorted: Vec<f64>,
    /// Failures, which count as +infinity in [`Self::with_failures`].
    pub failures: usize,
}

/// A wait shorter than this is the client's own scheduling, not a queue.
const WAITED: SimSpan = SimSpan::from_ms(1);

impl Stat {
    /// Of these values, with so many failures beside them.
    pub fn new(values: impl IntoIterator<Item = f64>, failures: usize) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        percentile::sort(&mut sorted);
        let n = sorted.len();
        let mean = sorted.iter().sum::<f64>() / n.max(1) as f64;
        let square = sorted.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        Self { n, mean, stddev: (square / n.max(1) as f64).sqrt(), sorted, failures }
    }

    /// Of spans, in ns.
    pub fn spans(values: impl IntoIterator<Item = SimSpan>, failures: usize) -> Self {
        Self::new(values.into_iter().map(|span| span.as_ns() as f64), failures)
    }

    /// The least value.
    pub fn min(&self) -> Option<f64> {
        self.sorted.first().copied()
    }

    /// The greatest value.
    pub fn max(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    /// The percentile over successes, by linear interpolation; `None` without values.
    pub fn percentile(&self, p: f64) -> Option<f64> {
        percentile::linear(&self.sorted, Percent::new(p)?)
    }

    /// The nearest-rank percentile with failures as +infinity; `None` if nothing was tried.
    pub fn with_failures(&self, p: f64) -> Option<f64> {
        percentile::nearest_rank_with_failures(&self.sorted, self.failures, Percent::new(p)?)
    }

    /// The values, sorted.
    pub fn sorted(&self) -> &[f64] {
        &self.sorted
    }
}

/// How many values a percentile needs to be more than the greatest value by another name.
pub fn values_needed(p: f64) -> usize {
    Percent::new(p).map_or(usize::MAX, percentile::needed)
}

impl Summary {
    /// The figures of `level`.
    pub fn of(level: &Level, goals: Option<Goals>) -> Self {
        let open = matches!(level.load, Load::Open { .. });
        let ok: Vec<&Record> = level.records.iter().filter(|record| record.ok()).collect();
        let counts = Counts::of(level);
        let failed = counts.failed as usize;
        let from_send = |record: &Record, at: SimTime| {
            at.saturating_since(record.sent.unwrap_or(record.scheduled))
        };
        let headline = |record: &Record, at: SimTime| {
            if open { at.saturating_since(record.scheduled) } else { from_send(record, at) }
        };
        let first = |of: &dyn Fn(&Record, SimTime) -> SimSpan| {
            Stat::spans(ok.iter().filter_map(|r| Some(of(r, r.output.first?))), failed)
        };
        let last = |of: &dyn Fn(&Record, SimTime) -> SimSpan| {
            Stat::spans(ok.iter().map(|r| of(r, r.last_output())), failed)
        };
        let duration = level.ended.saturating_since(level.began);
        let seconds = duration.as_secs_f64().max(1e-9);
        let prompt: u64 = ok.iter().filter_map(|r| r.usage).map(|u| u64::from(u.prompt)).sum();
        let output: u64 = ok.iter().map(|r| u64::from(r.output_tokens())).sum();
        let good = goals.map(|goals| {
            let kept = |r: &&&Record| goals.kept(r, headline);
            u32::try_from(ok.iter().filter(kept).count()).unwrap_or(u32::MAX)
        });
        let planned_end = level.extent.duration.map(|lasts| level.began + lasts);
        let mut summary = Self {
            duration,
            drain: planned_end.map_or(SimSpan::ZERO, |end| level.ended.saturating_since(end)),
            requests_per_s: ok.len() as f64 / seconds,
            output_tokens_per_s: output as f64 / seconds,
            chunks_per_s: level.records.iter().map(|r| u64::from(r.output.chunks)).sum::<u64>()
                as f64
                / seconds,
            total_tokens_per_s: (prompt + output) as f64 / seconds,
            ttft: first(&headline),
            itl: Stat::spans(ok.iter().flat_map(|r| gaps(r)), 0),
            tpot: Stat::spans(ok.iter().filter_map(|r| tpot(r)), 0),
            e2e: last(&headline),
            raw: open.then(|| Raw {
                ttft: first(&from_send),
                e2e: last(&from_send),
                queue_wait: Stat::spans(level.records.iter().filter_map(queue_wait), 0),
            }),
            connect: Stat::spans(level.records.iter().filter_map(|r| r.connect), 0),
            prompt_tokens: Stat::new(ok.iter().filter_map(|r| Some(f64::from(r.usage?.prompt))), 0),
            output_tokens: Stat::new(ok.iter().map(|r| f64::from(r.output_tokens())), 0),
            tokens: (prompt, output),
            arrivals: ArrivalFigures::of(level),
            cached: CachedFigures::of(&ok),
            good,
            loop_lag: Stat::spans(level.health.loop_lags.iter().copied(), 0),
            health: level.health.clone(),
            connections_opened: level.connections_opened,
            peak_in_flight: peak_in_flight(&level.records),
            warnings: Vec::new(),
            interrupted: level.interrupted,
            counts,
        };
        summary.warnings = warnings(level, &summary, &ok);
        summary
    }

    /// True if nothing succeeded although something was tried.
    pub const fn all_failed(&self) -> bool {
        self.counts.completed == 0 && self.counts.failed > 0
    }

    /// True if the client itself was late.
    pub fn client_late(&self) -> bool {
        self.loop_lag.percentile(99.0).is_some_and(|lag| lag > LATE.as_ns() as f64)
    }
}

fn gaps(record: &Record) -> impl Iterator<Item = SimSpan> + '_ {
    record.output.stamps.windows(2).map(|pair| pair[1].saturating_since(pair[0]))
}

/// `None` for answers of one token, which have no time between tokens.
fn tpot(record: &Record) -> Option<SimSpan> {
    let between = u64::from(record.output_tokens().checked_sub(1)?);
    let (first, last) = (record.output.first?, record.output.last?);
    (between > 0).then(|| SimSpan::from_ns(last.saturating_since(first).as_ns() / between))
}

fn queue_wait(record: &Record) -> Option<SimSpan> {
    Some(record.sent?.saturating_since(record.scheduled))
}

impl Goals {
    fn kept(&self, record: &Record, headline: impl Fn(&Record, SimTime) -> SimSpan) -> bool {
        let within = |goal: Option<SimSpan>, value: Option<SimSpan>| match (goal, value) {
            (Some(goal), Some(value)) => value <= goal,
            _ => true,
        };
        let ttft = record.output.first.map(|at| headline(record, at));
        within(self.ttft, ttft)
            && within(self.tpot, tpot(record))
            && within(self.e2e, Some(headline(record, record.last_output())))
    }
}

impl Counts {
    fn of(level: &Level) -> Self {
        let mut counts = Self { planned: level.planned, ..Self::default() };
        for record in &level.records {
            counts.sent += u32::from(record.sent.is_some());
            match &record.outcome {
                Outcome::Finished(reason) => {
                    counts.completed += 1;
                    *counts.finish.entry(reason.clone()).or_default() += 1;
                }
                Outcome::Failed(failure) => {
                    counts.failed += 1;
                    let seen = counts.failures.entry(failure.class).or_default();
                    match seen.iter_mut().find(|(detail, _)| *detail == failure.detail) {
                        Some((_, n)) => *n += 1,
                        None => seen.push((failure.detail.clone(), 1)),
                    }
                }
                Outcome::Interrupted => counts.cut += 1,
            }
        }
        for seen in counts.failures.values_mut() {
            seen.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        }
        counts
    }

    /// Failures of one class.
    pub fn failures_of(&self, class: FailureClass) -> u32 {
        self.failures.get(&class).map_or(0, |seen| seen.iter().map(|(_, n)| n).sum())
    }
}

impl ArrivalFigures {
    fn of(level: &Level) -> Option<Self> {
        let Load::Open { arrivals, max_concurrency } = &level.load else { return None };
        let window = window(level);
        let rate = |instants: &mut dyn Iterator<Item = SimTime>, more: u32| match window {
            Some(window) => {
                let end = level.began + window;
                let within = instants.filter(|at| *at <= end).count() + more as usize;
                (window > SimSpan::ZERO).then(|| within as f64 / window.as_secs_f64())
            }
            None => rate_between(instants),
        };
        let scheduled = || level.records.iter().map(|record| record.scheduled);
        let sends = || level.records.iter().filter_map(|record| record.sent);
        let spread = sends().max().zip(sends().min()).map(|(last, first)| last - first);
        let at_once = matches!(arrivals, Arrivals::AtOnce);
        let behind = level.records.iter().filter_map(queue_wait).filter(|wait| *wait > WAITED);
        let behind = u32::try_from(behind.count()).unwrap_or(u32::MAX);
        let capped = max_concurrency.is_some();
        Some(Self {
            target: arrivals.target_rate(),
            offered: rate(&mut scheduled(), level.never_sent).filter(|_| !at_once),
            achieved: rate(&mut sends(), 0),
            spread: spread.unwrap_or_default(),
            waited: if capped { behind } else { 0 },
            late: if capped { 0 } else { behind },
        })
    }
}

/// Over how much time a schedule is counted: the asked duration, that of its stages, or up to where
/// the user stopped it. `None` where a number of requests ended it, so that the arrivals themselves
/// span the time.
fn window(level: &Level) -> Option<SimSpan> {
    let lasted = level.ended.saturating_since(level.began);
    if level.interrupted {
        return Some(level.extent.duration.map_or(lasted, |asked| asked.min(lasted)));
    }
    let Load::Open { arrivals, .. } = &level.load else { return level.extent.duration };
    let stages = arrivals.lasts();
    let by_count = level.extent.requests.is_some_and(|most| level.planned >= most);
    let asked = match (level.extent.duration, stages) {
        (Some(asked), Some(stages)) => Some(asked.min(stages)),
        (asked, stages) => asked.or(stages),
    };
    asked.filter(|_| !by_count)
}

/// Gaps per second between the first and the last of these instants; `None` without a gap.
fn rate_between(instants: &mut dyn Iterator<Item = SimTime>) -> Option<f64> {
    let (mut count, mut first, mut last) = (0_u64, SimTime::from_ns(u64::MAX), SimTime::ZERO);
    for at in instants {
        (count, first, last) = (count + 1, first.min(at), last.max(at));
    }
    let span = last.saturating_since(first).as_secs_f64();
    (count > 1 && span > 0.0).then(|| (count - 1) as f64 / span)
}

impl CachedFigures {
    fn of(ok: &[&Record]) -> Self {
        let sum = |of: &dyn Fn(&Record) -> Option<u32>| {
            let told: Vec<u32> = ok.iter().filter_map(|record| of(record)).collect();
            (!told.is_empty()).then(|| told.iter().map(|&n| u64::from(n)).sum())
        };
        Self {
            expected: sum(&|record| record.expected_cached),
            observed: sum(&|record| record.usage?.cached),
        }
    }
}

fn peak_in_flight(records: &[Record]) -> u32 {
    let mut changes: Vec<(SimTime, i32)> = Vec::with_capacity(records.len() * 2);
    for record in records {
        if let Some(sent) = record.sent {
            changes.push((sent, 1));
            changes.push((record.end, -1));
        }
    }
    // An end and a send at one instant are a stream handed on, not two at once.
    changes.sort_unstable();
    let mut now = 0;
    let peak = changes.iter().map(|(_, change)| {
        now += change;
        now
    });
    u32::try_from(peak.max().unwrap_or(0)).unwrap_or(0)
}

fn warnings(level: &Level, summary: &Summary, ok: &[&Record]) -> Vec<String> {
    let mut warnings = Vec::new();
    let ms = |ns: f64| ns / 1e6;
    if summary.client_late() {
        let lag = ms(summary.loop_lag.percentile(99.0).unwrap_or(0.0));
        warnings.push(format!(
            "the client was late: its loop woke {lag:.1} ms late at p99, so the client, not the \
             server, inflates latencies and delays sends; give it a CPU of its own (--cpus) or less \
             load"
        ));
    }
    let short =
        ok.iter().filter(|r| r.max_tokens.is_some_and(|most| r.output_tokens() < most)).count();
    if short > 0 {
        warnings.push(format!(
            "{short} of {} responses ended before --max-tokens; for exact lengths use \
             `--responses builtin:bench-responses` (llmsimulator) or --ignore-eos (vLLM)",
            ok.len()
        ));
    }
    let packed = ok.iter().filter(|r| r.usage.is_some() && r.output.chunks > 0);
    let packed = packed.filter(|r| r.output_tokens() > r.output.chunks).count();
    if packed > 0 {
        warnings.push(format!(
            "{packed} of {} responses had several tokens in one chunk: ITL is the gap between \
             chunks, TPOT the time per token",
            ok.len()
        ));
    }
    let more =
        ok.iter().filter(|r| r.usage.is_some_and(|usage| usage.completion < r.output.chunks));
    let more = more.count();
    if more > 0 {
        warnings.push(format!(
            "{more} of {} responses had more chunks than tokens by their usage: chunks came twice, \
             tokens were split, or the server does not count all",
            ok.len()
        ));
    }
    let unfinished = summary.counts.finish.get(NO_REASON).copied().unwrap_or(0);
    if unfinished > 0 {
        warnings.push(format!(
            "{unfinished} of {} responses ended with [DONE] but without a finish reason: whether \
             they were whole is not known",
            ok.len()
        ));
    }
    let untold = ok.iter().filter(|r| r.usage.is_none()).count();
    if untold > 0 {
        warnings.push(format!(
            "{untold} of {} responses came without usage: output tokens are counted as one per \
             chunk, prompt tokens are unknown",
            ok.len()
        ));
    }
    let thinned = ok.iter().filter(|r| r.output.chunks > 1 && r.output.stamps.is_empty()).count();
    if thinned > 0 {
        warnings.push(format!(
            "ITL leaves out the last {thinned} of {} responses: more chunks than are kept in memory",
            ok.len()
        ));
    }
    if let Some(arrivals) = summary.arrivals {
        let total = level.records.len();
        if arrivals.waited > 0 {
            warnings.push(format!(
                "{} of {total} requests waited for a slot (--max-concurrency): latencies count \
                 from the scheduled send and include it; `raw` does not",
                arrivals.waited
            ));
        }
        if arrivals.late > 0 {
            warnings.push(format!(
                "{} of {total} sends fell over 1 ms behind the schedule",
                arrivals.late
            ));
        }
    }
    if level.connections_opened > 0 {
        warnings.push(format!(
            "{} connections had to be opened during the measurement; --connections opens more \
             before it",
            level.connections_opened
        ));
    }
    if level.health.unready > 0 {
        warnings.push(format!(
            "{} requests were not ready when they were due: making prompts was slower than the load",
            level.health.unready
        ));
    }
    if summary.counts.failed > 0 {
        warnings.push(format!(
            "{} of {} requests failed: percentiles cover successes; `with failures` counts a \
             failure as infinitely late",
            summary.counts.failed,
            level.records.len()
        ));
    }
    if level.interrupted {
        warnings.push(format!(
            "stopped by the user: {} of {} planned requests were sent, {} were in flight and are \
             left out",
            summary.counts.sent, level.planned, summary.counts.cut
        ));
        if level.never_sent > 0 {
            warnings.push(format!(
                "{} more requests were due and waited for a slot (--max-concurrency) when it was \
                 stopped: they are in no percentile",
                level.never_sent
            ));
        }
    }
    warnings
}
