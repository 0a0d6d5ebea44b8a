//! Recording, on the token path: one shard per thread, written by that thread alone.
//!
//! Not the export: whoever answers a scrape reads the shards and adds them up. The invariant: a
//! shard has a single writer, so that counting is a plain load and store without a locked bus, and
//! a reader may be one observation behind but never sees a torn number.

use std::sync::atomic::{AtomicU64, Ordering};

use llmsim_engine::sim::Finish;
use llmsim_engine::sim::scheduler::Gauges;
use llmsim_engine::units::{SimSpan, SimTime, Tokens};

/// A count with one writer and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Durations in buckets that grow by a sixteenth of a power of two: at most 6.25 % wide.
#[derive(Debug)]
pub(crate) struct Buckets {
    counts: Box<[Counter]>,
    sum_ns: Counter,
    max_ns: Counter,
}

/// Sub-buckets per power of two, as a power of two.
const SUB_BITS: u32 = 4;

/// Powers of two that are told apart: up to 2^40 ns, 18 minutes; longer ones count as that.
const TOP_BIT: u32 = 40;

impl Default for Buckets {
    fn default() -> Self {
        let counts = (0..=bucket(u64::MAX)).map(|_| Counter::default()).collect();
        Self { counts, sum_ns: Counter::default(), max_ns: Counter::default() }
    }
}

impl Buckets {
    /// Counts `times` observations of the same duration.
    pub(crate) fn record(&self, duration: SimSpan, times: u64) {
        let ns = duration.as_ns();
        self.counts[bucket(ns)].add(times);
        self.sum_ns.add(ns.wrapping_mul(times));
        if ns > self.max_ns.get() {
            self.max_ns.set(ns);
        }
    }

    /// Each bucket that has something in it: its upper bound in nanoseconds, and its count.
    pub(crate) fn filled(&self) -> impl Iterator<Item = (u64, u64)> {
        let counts = self.counts.iter().map(Counter::get).enumerate();
        counts.filter(|&(_, count)| count > 0).map(|(index, count)| (upper_bound(index), count))
    }

    /// The longest duration seen, exactly.
    pub(crate) fn max(&self) -> SimSpan {
        SimSpan::from_ns(self.max_ns.get())
    }

    /// The sum of all durations, for a mean.
    pub(crate) fn sum_ns(&self) -> u64 {
        self.sum_ns.get()
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << TOP_BIT) - 1);
    if ns < 1 << SUB_BITS {
        return ns as usize;
    }
    let top = ns.ilog2();
    let sub = (ns >> (top - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((top - SUB_BITS + 1) << SUB_BITS) + sub as u32) as usize
}

fn upper_bound(index: usize) -> u64 {
    let (group, sub) = (index as u64 >> SUB_BITS, index as u64 & ((1 << SUB_BITS) - 1));
    if group == 0 { sub } else { (((1 << SUB_BITS) + sub + 1) << (group - 1)) - 1 }
}

/// What one I/O thread counts.
#[derive(Debug, Default)]
pub(crate) struct IoShard {
    /// Connections open now.
    pub(crate) connections: Counter,
    /// Connections ever accepted.
    pub(crate) accepted: Counter,
    /// Connections turned away at the limit.
    pub(crate) turned_away: Counter,
    /// Generations being served now, streamed or not.
    pub(crate) in_flight: Counter,
    /// Generations that ended by themselves with `stop`.
    pub(crate) finished_stop: Counter,
    /// Generations that ended at a limit.
    pub(crate) finished_length: Counter,
    /// Generations whose client went away.
    pub(crate) disconnected: Counter,
    /// Generations given up since the client did not read for too long.
    pub(crate) stalled: Counter,
    /// Generations cut by a shut-down.
    pub(crate) cut: Counter,
    /// Generations that the engine refused.
    pub(crate) refused: Counter,
    /// Tokens handed to the kernel.
    pub(crate) tokens: Counter,
    /// Tokens that waited for a slow reader: these are not in `token_lag`.
    pub(crate) delayed_tokens: Counter,
    /// From a token's instant on the simulated timeline to its bytes being handed to the kernel.
    pub(crate) token_lag: Buckets,
    /// Between two tokens of a stream, as handed to the kernel.
    pub(crate) inter_token: Buckets,
    /// From the request's last byte to its first token being handed to the kernel.
    pub(crate) first_token: Buckets,
    /// From the request's last byte to the end of its answer.
    pub(crate) end_to_end: Buckets,
    /// Prompt tokens of finished generations.
    pub(crate) prompt_tokens: Counter,
    /// Of these, found in the prefix cache.
    pub(crate) cached_tokens: Counter,
}

/// The state of one simulated GPU, as its thread last published it.
#[derive(Debug, Default)]
pub(crate) struct GpuGauges {
    pub(crate) running: Counter,
    pub(crate) waiting: Counter,
    pub(crate) usable_blocks: Counter,
    pub(crate) free_blocks: Counter,
    pub(crate) preemptions: Counter,
    pub(crate) steps: Counter,
}

impl GpuGauges {
    pub(crate) fn publish(&self, gauges: &Gauges) {
        self.running.set(u64::from(gauges.running));
        self.waiting.set(u64::from(gauges.waiting));
        self.usable_blocks.set(u64::from(gauges.usable_blocks.get()));
        self.free_blocks.set(u64::from(gauges.free_blocks.get()));
        self.preemptions.set(gauges.preemptions);
        self.steps.set(gauges.steps);
    }
}

/// What one GPU thread counts.
#[derive(Debug, Default)]
pub(crate) struct GpuShard {
    /// From a token's instant on the simulated timeline to its release into the ring.
    pub(crate) release_lag: Buckets,
    /// Tokens released.
    pub(crate) tokens: Counter,
    /// Tokens whose own report was left out since an I/O thread lagged too far.
    pub(crate) merged_tokens: Counter,
    /// Times the kernel took the processor away.
    pub(crate) involuntary_switches: Counter,
}

/// One generation, measured: all times are the actual ones, on the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The request was complete.
    pub(crate) received: SimTime,
    /// The engine scheduled it for the first time, on the simulated timeline.
    pub(crate) admitted: Option<SimTime>,
    /// The first token was handed to the kernel.
    pub(crate) first_token: Option<SimTime>,
    /// The last byte was handed to the kernel, or the generation was given up.
    pub(crate) ended: SimTime,
    pub(crate) prompt: Tokens,
    pub(crate) cached: Tokens,
    pub(crate) output: Tokens,
    pub(crate) outcome: Outcome,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished(Finish),
    Disconnected,
    Stalled,
    Cut,
    Refused,
}

impl IoShard {
    /// Counts a generation that is over.
    pub(crate) fn finish(&self, record: &Record) {
        match record.outcome {
            Outcome::Finished(Finish::Stop) => self.finished_stop.add(1),
            Outcome::Finished(Finish::Length) => self.finished_length.add(1),
            Outcome::Disconnected => self.disconnected.add(1),
            Outcome::Stalled => self.stalled.add(1),
            Outcome::Cut => self.cut.add(1),
            Outcome::Refused => self.refused.add(1),
        }
        if let Some(first) = record.first_token {
            self.first_token.record(first.saturating_since(record.received), 1);
        }
        if let Outcome::Finished(_) = record.outcome {
            self.end_to_end.record(record.ended.saturating_since(record.received), 1);
            self.prompt_tokens.add(u64::from(record.prompt.get()));
            self.cached_tokens.add(u64::from(record.cached.get()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_its_bound_says() {
        for ns in (0..2_000).chain([1 << 20, (1 << 20) + 1, 123_456_789, (1 << TOP_BIT) - 1]) {
            let index = bucket(ns);
            assert!(ns <= upper_bound(index), "{ns} in {index}");
            assert!(index == 0 || ns > upper_bound(index - 1), "{ns} in {index}");
            assert!(upper_bound(index) as f64 <= ns as f64 * 1.0625 + 1.0);
        }
        assert_eq!(bucket(u64::MAX), bucket((1 << TOP_BIT) - 1));
    }
}
