//! How far single steps stray from their mean, told by the percentiles of ITL.
//!
//! A run with the fitted constants has a distribution of gaps between tokens of its own: batching,
//! prefills and preemption make it. What the measured one is wider is put down to steps that stray.
//! The invariant: the percentiles are compared as ratios to the median, so that an error of the
//! constants is not taken for jitter, and where there is no ratio nothing is made up.

use crate::calibrate::rerun::{Rerun, Weighed};
use crate::sim::scheduler::Residual;
use crate::units::SimTime;

/// Percentiles of the gaps between the tokens of all requests of a run, as a client measured them;
/// seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    /// Median.
    pub p50: f64,
    /// 90th percentile, if it is known.
    pub p90: Option<f64>,
    /// 99th percentile, if it is known.
    pub p99: Option<f64>,
}

/// What the percentiles tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The residual that meets them best.
    pub residual: Residual,
    /// Measured and simulated ratios to the median, without and with the residual.
    pub ratios: Vec<Ratio>,
    /// What they do not tell, in words.
    pub untold: Vec<&'static str>,
}

/// A percentile of ITL over the median.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// `p90` or `p99`.
    pub percentile: &'static str,
    /// As measured.
    pub measured: f64,
    /// With steps that take exactly what the cost model says.
    pub without: f64,
    /// With the residual.
    pub with: f64,
}

/// Stragglers are taken to be this share of the steps: one run's 99th percentile cannot tell rare
/// and heavy ones from frequent and light ones. With 2 %, it is the middle of them.
const STRAGGLERS: f64 = 0.02;
/// A ratio that differs by less is none of the steps' doing.
const TELLING: f64 = 0.01;

impl Rerun {
    /// The lengths of the gaps between tokens, seconds, and how many gaps are of each.
    pub(super) fn gaps(&self) -> Vec<(f64, f64)> {
        let mut gaps = Vec::new();
        // When any step ended last, and when one with decodes did, and how many it had.
        let (mut ended, mut decoded) = (SimTime::ZERO, (SimTime::ZERO, 0));
        for Weighed { record, .. } in &self.steps {
            if record.started > ended {
                // Nobody waits for a token while the GPU idles.
                decoded.1 = 0;
            }
            let decodes = record.shape.decodes;
            if decodes > 0 {
                // Where prefills run alone, those who decode wait for them.
                let waited = decodes.min(decoded.1);
                let span = |from: SimTime| record.ended.saturating_since(from).as_secs_f64();
                gaps.push((span(decoded.0), f64::from(waited)));
                gaps.push((span(record.started), f64::from(decodes - waited)));
                decoded = (record.ended, decodes);
            }
            ended = record.ended;
        }
        gaps.retain(|&(_, count)| count > 0.0);
        gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
        gaps
    }
}

/// The residual that makes the gaps of `rerun` as wide as the measured ones; `None` if they tell
/// nothing, with the reason.
///
/// # Errors
/// Why there is nothing to tell.
pub fn fit_residual(rerun: &Rerun, measured: &Gaps) -> Result<Spread, &'static str> {
    let gaps = rerun.gaps();
    if gaps.is_empty() {
        return Err("no request has a second token");
    }
    if measured.p50 <= 0.0 {
        return Err("the median ITL is 0: several tokens arrived together, and the gaps between \
                    such arrivals are no steps");
    }
    if measured.p90.or(measured.p99).is_none() {
        return Err("the results hold neither the 90th nor the 99th percentile of ITL");
    }
    let still = Residual { seed: 0, sigma: 0.0, tail_probability: 0.0, tail_factor: 1.0 };
    let ratio = |residual: &Residual, share| {
        percentile(&gaps, residual, share) / percentile(&gaps, residual, 0.5)
    };
    let wanted = |percentile: Option<f64>| percentile.map(|value| value / measured.p50);
    let (p90, p99) = (wanted(measured.p90), wanted(measured.p99));
    let mut untold = Vec::new();

    // The body first, then what the body does not explain of the tail.
    let (target, share) = match (p90, p99) {
        (Some(p90), _) => (p90, 0.90),
        (None, p99) => {
            untold.push(
                "without the 90th percentile, body and stragglers cannot be told apart: \
                         all is put down to the body",
            );
            (p99.unwrap_or(1.0), 0.99)
        }
    };
    let body = |sigma| Residual { sigma, ..still };
    let sigma = least(0.0, MOST_SIGMA, |sigma| ratio(&body(sigma), share) >= target);
    let mut residual = body(sigma);
    if ratio(&still, share) > target * (1.0 + TELLING) {
        untold.push(
            "the simulated gaps are wider than the measured ones with no jitter at all \
                     (batches, lengths or arrivals differ): the body is left at 0",
        );
    } else if sigma >= MOST_SIGMA {
        untold.push(
            "the measured gaps are wider than jitter of steps explains (bursts of the \
                     network, pauses, another workload): the body is at its limit",
        );
    }
    if let (Some(_), Some(p99)) = (p90, p99) {
        let with = |tail_factor| Residual { tail_probability: STRAGGLERS, tail_factor, ..residual };
        if ratio(&residual, 0.99) < p99 * (1.0 - TELLING) {
            let factor = least(1.0, MOST_FACTOR, |factor| ratio(&with(factor), 0.99) >= p99);
            residual = with(factor);
            untold.push(
                "the 99th percentile does not tell how rare stragglers are: they are taken \
                         to be 2 % of the steps",
            );
        }
    } else if p90.is_some() {
        untold.push("without the 99th percentile, nothing is known of stragglers");
    }
    let told = [("p90", 0.90, p90), ("p99", 0.99, p99)];
    let ratios = told
        .into_iter()
        .filter_map(|(percentile, share, measured)| {
            Some(Ratio {
                percentile,
                measured: measured?,
                without: ratio(&still, share),
                with: ratio(&residual, share),
            })
        })
        .collect();
    Ok(Spread { residual, ratios, untold })
}

/// Beyond this, a factor is no jitter.
const MOST_SIGMA: f64 = 0.6;
/// Beyond this, a straggler is a fault.
const MOST_FACTOR: f64 = 50.0;

/// The least value between two bounds that is enough, to a ten-thousandth of the range; the upper
/// bound if none is.
fn least(mut low: f64, mut high: f64, is_enough: impl Fn(f64) -> bool) -> f64 {
    if is_enough(low) {
        return low;
    }
    let range = high - low;
    while high - low > range * 1e-4 {
        let middle = (low + high) / 2.0;
        if is_enough(middle) { high = middle } else { low = middle }
    }
    high
}

/// A percentile (as a share) of gaps times factors of a residual.
fn percentile(gaps: &[(f64, f64)], residual: &Residual, share: f64) -> f64 {
    let all: f64 = gaps.iter().map(|gap| gap.1).sum();
    let usual = residual.usual();
    // The share of factors below one.
    let below = |factor: f64| {
        let normal = |median: f64| {
            let log = (factor / median).ln();
            if residual.sigma > 0.0 {
                normal_below(log / residual.sigma)
            } else {
                f64::from(u8::from(log >= -1e-12))
            }
        };
        let tail = residual.tail_probability;
        (1.0 - tail) * normal(usual) + tail * normal(usual * residual.tail_factor)
    };
    let reached = |length: f64| {
        let sum: f64 = gaps.iter().map(|&(gap, count)| count * below(length / gap)).sum();
        sum >= share * all
    };
    let longest = gaps.last().map_or(0.0, |gap| gap.0);
    let (mut low, mut high) = (0.0, longest * residual.tail_factor * (8.0 * residual.sigma).exp());
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if reached(middle) { high = middle } else { low = middle }
    }
    high
}

/// The share of a standard normal distribution below `z`: Abramowitz and Stegun 26.2.17, to 7.5e-8.
fn normal_below(z: f64) -> f64 {
    const SERIES: [f64; 5] =
        [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let sum = SERIES.iter().rev().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let above = sum * (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    if z > 0.0 { 1.0 - above } else { above }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STILL: Residual =
        Residual { seed: 0, sigma: 0.0, tail_probability: 0.0, tail_factor: 1.0 };

    #[test]
    fn the_normal_distribution_is_the_tabulated_one() {
        for (z, below) in [(0.0, 0.5), (1.0, 0.841_345), (-1.644_854, 0.05), (2.326_348, 0.99)] {
            assert!((normal_below(z) - below).abs() < 1e-6, "{z}");
        }
    }

    #[test]
    fn percentiles_of_gaps_times_factors() {
        // 90 gaps of 10 ms and 10 of 40 ms.
        let gaps = [(0.010, 90.0), (0.040, 10.0)];
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-4;
        assert!(near(percentile(&gaps, &STILL, 0.5), 0.010));
        assert!(near(percentile(&gaps, &STILL, 0.95), 0.040));
        // Gaps of 10 ms, log-normal with sigma 0.1: the median is 10 e^(-0.005) ms, the 99th
        // percentile e^(0.1 x 2.3263) times that.
        let body = Residual { sigma: 0.1, ..STILL };
        let median = percentile(&[(0.010, 5.0)], &body, 0.5);
        assert!(near(median, 0.010 * (-0.005_f64).exp()), "{median}");
        let high = percentile(&[(0.010, 5.0)], &body, 0.99);
        assert!(near(high / median, 0.232_635_f64.exp()), "{high}");
    }

    /// A GPU of 10 ms a step whose steps stray as we say: what the percentiles tell is what we
    /// said.
    #[test]
    fn the_jitter_that_made_the_gaps_is_found_again() {
        use crate::calibrate::workload::{Load, Workload};
        use crate::calibrate::{linear::relive, rerun::rerun};
        use crate::sim::scheduler::SchedulerSpec;
        use crate::sim::scheduler::cost::{IdealRoofline, Roofline, StepCost};
        use crate::units::{Blocks, SimSpan, Tokens};

        let cost = Roofline::ideal(&IdealRoofline {
            weight_bytes: 1e10,
            active_parameters: 1e9,
            kv_bytes_per_token: 1e3,
            bandwidth: 1e12,
            peak: 1e15,
            compute_efficiency: 1.0,
            memory_efficiency: 1.0,
            overhead: SimSpan::ZERO,
        });
        let truth = Residual { seed: 1, sigma: 0.08, tail_probability: 0.02, tail_factor: 3.0 };
        let spec = SchedulerSpec {
            residual: Some(truth),
            ..SchedulerSpec::vllm(
                Tokens::new(4096),
                Blocks::new(10_000),
                StepCost::Roofline(cost.clone()),
            )
        };
        let workload = Workload::drawn(Load::Closed { concurrency: 4 }, 40, 100.0, 1000.0, 0.5);
        let strayed = rerun(&spec, SimSpan::ZERO, &workload).unwrap().gaps();
        let of = |share| percentile(&strayed, &STILL, share);
        let measured = Gaps { p50: of(0.5), p90: Some(of(0.9)), p99: Some(of(0.99)) };
        let constants = crate::calibrate::Constants {
            efficiency: cost.efficiency,
            request_overhead: SimSpan::ZERO,
        };
        let still = relive(&spec, &constants, &workload).unwrap();
        assert!(still.gaps().last().unwrap().0 < 0.011, "steps of 10 ms, no jitter");
        let spread = fit_residual(&still, &measured).unwrap();
        // The 90th percentile of some 7,500 steps knows sigma to about 3 %, and the 99th is that of
        // 150 stragglers in the middle of theirs.
        assert!((spread.residual.sigma / 0.08 - 1.0).abs() < 0.1, "{spread:?}");
        assert!((spread.residual.tail_factor / 3.0 - 1.0).abs() < 0.1, "{spread:?}");
        for ratio in &spread.ratios {
            assert!((ratio.with / ratio.measured - 1.0).abs() < 0.02, "{spread:?}");
        }
        // The same percentiles without the tail's: the body alone is told, and that is said.
        let without = fit_residual(&still, &Gaps { p99: None, ..measured }).unwrap();
        assert_eq!(without.residual.tail_probability, 0.0);
        assert!(without.untold[0].contains("stragglers"), "{without:?}");
    }

    #[test]
    fn where_there_is_nothing_to_tell_it_says_why() {
        let none = Rerun::default();
        let gaps = Gaps { p50: 0.01, p90: None, p99: None };
        assert!(fit_residual(&none, &gaps).unwrap_err().contains("second token"));
    }
}
