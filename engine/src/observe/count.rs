//! Counters and lag buckets with one writer.
//!
//! Nothing here has a name or a label. The invariant: a value has a single writing thread, so that
//! counting is a load and a store without a locked bus; a reader may be one observation behind but
//! never sees a torn number.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::units::SimSpan;

/// A number with one writer and any number of readers.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds to it. Only ever called by its own thread.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Replaces it. Only ever called by its own thread.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// What it is now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Lags in buckets that grow by a sixteenth of a power of two (at most 6.25 % wide): from them a
/// percentile can be told over any stretch of time, as the difference of two readings.
#[derive(Debug)]
pub struct LagBuckets {
    counts: Box<[Count]>,
    sum_ns: Count,
    max_ns: Count,
}

/// Sub-buckets per power of two, as a power of two.
const SUB_BITS: u32 = 4;

/// Powers of two that are told apart: up to 2^40 ns, 18 minutes; longer lags count as that.
const TOP_BIT: u32 = 40;

/// How many buckets there are.
const BUCKETS: usize = ((TOP_BIT - SUB_BITS + 1) as usize) << SUB_BITS;

impl Default for LagBuckets {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| Count::default()).collect();
        Self { counts, sum_ns: Count::default(), max_ns: Count::default() }
    }
}

impl LagBuckets {
    /// Counts `times` tokens with the same lag.
    pub fn record(&self, lag: SimSpan, times: u64) {
        let ns = lag.as_ns();
        self.counts[bucket(ns)].add(times);
        self.sum_ns.add(ns.wrapping_mul(times));
        if ns > self.max_ns.get() {
            self.max_ns.set(ns);
        }
    }

    /// What has been counted so far.
    pub fn read(&self) -> LagCounts {
        LagCounts {
            counts: self.counts.iter().map(Count::get).collect(),
            sum_ns: self.sum_ns.get(),
            max_ns: self.max_ns.get(),
        }
    }
}

/// Lags as they stood at one reading, or between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LagCounts {
    counts: Box<[u64]>,
    sum_ns: u64,
    max_ns: u64,
}

impl Default for LagCounts {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), sum_ns: 0, max_ns: 0 }
    }
}

impl LagCounts {
    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What came after the `earlier` reading; the largest lag is still that of all time.
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.counts.iter().zip(&earlier.counts);
        Self {
            counts: pairs.map(|(now, then)| now.saturating_sub(*then)).collect(),
            sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns),
            max_ns: self.max_ns,
        }
    }

    /// The exact mean; zero without tokens.
    pub fn mean(&self) -> SimSpan {
        SimSpan::from_ns(self.sum_ns.checked_div(self.count()).unwrap_or(0))
    }

    /// The largest lag, exactly.
    pub fn max(&self) -> SimSpan {
        SimSpan::from_ns(self.max_ns)
    }

    /// How many tokens were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The least lag that at least `percent` of the tokens did not exceed, rounded up to its
    /// bucket's bound but not beyond the largest; `None` without tokens.
    pub fn percentile(&self, percent: f64) -> Option<SimSpan> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = ((count as f64 * percent / 100.0).ceil() as u64).clamp(1, count);
        let mut below = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return Some(SimSpan::from_ns(upper_bound(index).min(self.max_ns)));
            }
        }
        None
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
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_percentile_is_over_what_came_between_two_readings() {
        let lags = LagBuckets::default();
        lags.record(SimSpan::from_ms(50), 1_000);
        let before = lags.read();
        lags.record(SimSpan::from_us(100), 99);
        lags.record(SimSpan::from_ms(8), 1);
        let window = lags.read().since(&before);
        assert_eq!(window.count(), 100);
        let p99 = window.percentile(99.0).unwrap().as_secs_f64();
        assert!((0.000_1..0.000_107).contains(&p99), "{p99}");
        let p100 = window.percentile(100.0).unwrap().as_secs_f64();
        assert!((0.008..0.008_5).contains(&p100), "{p100}");
        assert_eq!(LagCounts::default().percentile(99.0), None);
    }
}
