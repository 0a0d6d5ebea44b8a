//! Histograms with fixed buckets, as Prometheus has them.
//!
//! Two forms: [`Histogram`] is a plain value; [`Shard`] is written by one thread and read by any,
//! so that the token path neither locks nor shares a cache line, and whoever asks adds the shards
//! up. The invariant: a value is counted in the first bucket whose upper bound is not below it, and
//! in no other; the cumulative form of the text format is made on the way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of buckets, ascending, without the last one, which is +infinity.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds(Arc<[f64]>);

impl Bounds {
    /// These bounds; `None` unless they are finite and strictly ascending.
    pub fn new(bounds: &[f64]) -> Option<Self> {
        let ascending = bounds.windows(2).all(|pair| pair[0] < pair[1]);
        let finite = bounds.iter().all(|bound| bound.is_finite());
        (ascending && finite).then(|| Self(bounds.into()))
    }

    /// vLLM's buckets for the length of requests (`e2e_request_latency_seconds` and the phases of a
    /// request), seconds.
    pub fn vllm_request_seconds() -> Self {
        Self::fixed(&VLLM_REQUEST_SECONDS)
    }

    /// vLLM's buckets for `time_to_first_token_seconds`, seconds.
    pub fn vllm_first_token_seconds() -> Self {
        Self::fixed(&VLLM_FIRST_TOKEN_SECONDS)
    }

    /// vLLM's buckets for `inter_token_latency_seconds` and
    /// `request_time_per_output_token_seconds`, seconds.
    pub fn vllm_inter_token_seconds() -> Self {
        Self::fixed(&VLLM_INTER_TOKEN_SECONDS)
    }

    /// vLLM's buckets for `iteration_tokens_total`, tokens.
    pub fn vllm_iteration_tokens() -> Self {
        Self::fixed(&VLLM_ITERATION_TOKENS)
    }

    /// vLLM's buckets for `request_num_preemptions`.
    pub fn vllm_preemptions() -> Self {
        Self::fixed(&[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0])
    }

    /// vLLM's buckets for `request_params_n`.
    pub fn vllm_choices() -> Self {
        Self::fixed(&[1.0, 2.0, 5.0, 10.0, 20.0])
    }

    /// vLLM's buckets for token counts of requests: 1, 2, 5, 10, ... up to and including the last
    /// of the series that is at most `max_model_len`.
    pub fn vllm_request_tokens(max_model_len: u32) -> Self {
        let series = (0..).flat_map(|power| [1u64, 2, 5].map(|digit| digit * 10u64.pow(power)));
        let bounds: Vec<f64> = series
            .take_while(|bound| *bound <= u64::from(max_model_len))
            .map(|bound| bound as f64)
            .collect();
        Self(bounds.into())
    }

    fn fixed(bounds: &[f64]) -> Self {
        Self(bounds.into())
    }

    /// The bounds, ascending, without +infinity.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }

    /// Which bucket counts `value`: `as_slice().len()` is the one up to +infinity.
    pub fn bucket(&self, value: f64) -> usize {
        // Some twenty bounds, and times are mostly small: a scan from below beats bisection.
        self.0.iter().position(|bound| value <= *bound).unwrap_or(self.0.len())
    }
}

const VLLM_REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const VLLM_FIRST_TOKEN_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const VLLM_INTER_TOKEN_SECONDS: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const VLLM_ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];

/// A histogram as a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: Bounds,
    /// One more than there are bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: Bounds) -> Self {
        let buckets = bounds.as_slice().len() + 1;
        Self { bounds, counts: vec![0; buckets], sum: 0.0 }
    }

    /// Counts a value, which must not be NaN.
    pub fn observe(&mut self, value: f64) {
        self.observe_times(value, 1);
    }

    /// Counts a value `times` times: several tokens of one chunk.
    pub fn observe_times(&mut self, value: f64, times: u64) {
        let bucket = self.bounds.bucket(value);
        self.counts[bucket] += times;
        self.sum += value * times as f64;
    }

    /// Adds another histogram's counts.
    ///
    /// # Panics
    /// If its bounds are others: that is a mistake of ours, and the sum would mean nothing.
    pub fn merge(&mut self, other: &Self) {
        assert_eq!(self.bounds, other.bounds, "histograms of different bounds");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    /// The same values in fewer buckets.
    ///
    /// # Panics
    /// If one of `bounds` is none of its own: the counts below it are not known.
    pub fn coarser(&self, bounds: &Bounds) -> Self {
        let mut counts = Vec::with_capacity(bounds.as_slice().len() + 1);
        let mut own = self.bounds.as_slice().iter().zip(&self.counts);
        for bound in bounds.as_slice() {
            let mut count = 0;
            loop {
                let (other, more) = own.next().expect("each coarse bound is one of the fine ones");
                count += more;
                if other == bound {
                    break;
                }
                assert!(other < bound, "{bound} is none of the fine bounds");
            }
            counts.push(count);
        }
        counts.push(self.count() - counts.iter().sum::<u64>());
        Self { bounds: bounds.clone(), counts, sum: self.sum }
    }

    /// The bounds of its buckets.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Upper bound and number of values not above it, for each bucket; the last bound is +infinity.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.as_slice().iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }
}

/// A histogram that one thread writes and any thread reads.
///
/// Writing is a load and a store of two words, without a lock prefix: with two writers values would
/// be lost. A reader that comes in the middle of a write may see the count without the sum; both
/// are there the next time it looks, as Prometheus expects of any counter.
#[derive(Debug)]
pub struct Shard {
    bounds: Bounds,
    counts: Box<[AtomicU64]>,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Shard {
    /// An empty shard.
    pub fn new(bounds: Bounds) -> Self {
        let counts = (0..=bounds.as_slice().len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0f64.to_bits()) }
    }

    /// Counts a value, which must not be NaN. Only ever called by the shard's own thread.
    pub fn observe(&self, value: f64) {
        self.observe_times(value, 1);
    }

    /// Counts a value `times` times. Only ever called by the shard's own thread.
    pub fn observe_times(&self, value: f64, times: u64) {
        let count = &self.counts[self.bounds.bucket(value)];
        count.store(count.load(Ordering::Relaxed) + times, Ordering::Relaxed);
        let sum = f64::from_bits(self.sum.load(Ordering::Relaxed)) + value * times as f64;
        self.sum.store(sum.to_bits(), Ordering::Relaxed);
    }

    /// What it has counted so far.
    pub fn snapshot(&self) -> Histogram {
        Histogram {
            bounds: self.bounds.clone(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: f64::from_bits(self.sum.load(Ordering::Relaxed)),
        }
    }
}
