//! The two percentiles of this project, and when each is meant.
//!
//! - [`linear`]: "the" percentile, in every figure that has no other name: the server's summary and
//!   the bench's report. Linear interpolation between the two closest ranks, Hyndman and Fan's
//!   definition 7 (The American Statistician 50, 1996), which numpy, pandas, `vllm bench serve`,
//!   SGLang, aiperf and genai-bench use.
//! - [`nearest_rank`]: the smallest value with at least p percent of all values at or below it. Its
//!   result is always one of the values, so it is the one for columns in which a failed request
//!   counts as infinitely slow, and no infinity is mixed with a finite value.
//!
//! Both take values sorted in ascending order ([`sort`]); infinities are values, NaN is not.

/// A share of the values, in percent.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    /// The median.
    pub const P50: Self = Self(50.0);
    /// Nine values in ten are not above it.
    pub const P90: Self = Self(90.0);
    /// 19 values in twenty are not above it.
    pub const P95: Self = Self(95.0);
    /// 99 values in a hundred are not above it.
    pub const P99: Self = Self(99.0);

    /// `percent`, which must be in 0..=100; otherwise `None`.
    pub fn new(percent: f64) -> Option<Self> {
        (0.0..=100.0).contains(&percent).then_some(Self(percent))
    }

    /// The bare number, 0 to 100.
    pub const fn get(self) -> f64 {
        self.0
    }
}

/// Sorts values for the functions below: infinities at the ends, -0 before 0.
///
/// # Panics
/// If a value is NaN: a missing measurement is left out, or counts as +infinity.
pub fn sort(values: &mut [f64]) {
    assert!(!values.iter().any(|value| value.is_nan()), "NaN is not a measurement");
    values.sort_unstable_by(f64::total_cmp);
}

/// The percentile by linear interpolation; `None` if there are no values.
///
/// With n values v0 ≤ v1 ≤ ..., it stands at rank h = (n − 1) · p / 100: the value there, or
/// between its neighbours in proportion to the fraction of h.
pub fn linear(sorted: &[f64], percent: Percent) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = last as f64 * percent.0 / 100.0;
    let below = (rank.floor() as usize).min(last);
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    let fraction = rank - below as f64;
    // Not `low + fraction * (high - low)` for equal neighbours or a whole rank: infinity minus
    // infinity, and zero times infinity, are NaN.
    if fraction <= 0.0 || low == high {
        return Some(low);
    }
    Some(low + fraction * (high - low))
}

/// The smallest value with at least `percent` of all values at or below it; the smallest of all for
/// 0 %; `None` if there are no values.
pub fn nearest_rank(sorted: &[f64], percent: Percent) -> Option<f64> {
    nearest_rank_index(sorted.len(), percent).map(|index| sorted[index])
}

/// Where [`nearest_rank`] stands among `count` sorted values, from 0.
pub fn nearest_rank_index(count: usize, percent: Percent) -> Option<usize> {
    let last = count.checked_sub(1)?;
    // 0.29 * 100 is 28.999999999999996: multiply first, and forgive the last bit.
    let exact = count as f64 * percent.0 / 100.0;
    let rank = (exact - exact * 4.0 * f64::EPSILON).ceil() as usize;
    Some(rank.saturating_sub(1).min(last))
}

/// [`nearest_rank`] over `sorted` and `failures` further requests that never answered, each of
/// which counts as +infinity.
pub fn nearest_rank_with_failures(
    sorted: &[f64],
    failures: usize,
    percent: Percent,
) -> Option<f64> {
    let index = nearest_rank_index(sorted.len() + failures, percent)?;
    Some(sorted.get(index).copied().unwrap_or(f64::INFINITY))
}

/// The fewest values from which a percentile can be told from the maximum: below it, print the
/// count and no figure. For p99.9 that is 1,000, for p99 100, for the median 2.
pub fn needed(percent: Percent) -> usize {
    let above = 100.0 - percent.0;
    if above <= 0.0 {
        return 1;
    }
    (100.0 / above - 1e-6).ceil() as usize
}

/// What is told about a set of values in a report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// How many values it was taken over.
    pub samples: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// Median, [`linear`].
    pub p50: f64,
    /// 90th percentile, [`linear`].
    pub p90: f64,
    /// 95th percentile, [`linear`].
    pub p95: f64,
    /// 99th percentile, [`linear`].
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// Of these values, in any order; sorts them. `None` if there are none.
    pub fn of(values: &mut [f64]) -> Option<Self> {
        sort(values);
        let (min, max) = (*values.first()?, *values.last()?);
        let at = |percent| linear(values, percent);
        Some(Self {
            samples: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            min,
            p50: at(Percent::P50)?,
            p90: at(Percent::P90)?,
            p95: at(Percent::P95)?,
            p99: at(Percent::P99)?,
            max,
        })
    }
}
