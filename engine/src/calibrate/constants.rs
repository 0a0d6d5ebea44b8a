//! The constants that are fitted, as a vector.
//!
//! All are positive and differ by their order of magnitude, so they are fitted as logarithms. The
//! invariant: whatever vector a search tries, the constants made of it can be (shares stay at most
//! 1, the overlap at least 1).

use crate::sim::scheduler::cost::{Efficiency, Overlap};
use crate::units::SimSpan;

/// How many there are.
pub(super) const COUNT: usize = 12;

/// A set of constants: how near to the peaks an engine comes, and what a request costs outside of
/// steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Of a step.
    pub efficiency: Efficiency,
    /// Of a request.
    pub request_overhead: SimSpan,
}

/// One of the constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// `weight_bandwidth`.
    WeightBandwidth,
    /// `linear_compute`.
    LinearCompute,
    /// `kv_bandwidth`.
    KvBandwidth,
    /// `attention_compute`.
    AttentionCompute,
    /// `host_per_step_ms`.
    HostPerStep,
    /// `host_per_layer_us`.
    HostPerLayer,
    /// `host_per_sequence_us`.
    HostPerSequence,
    /// `launch_per_layer_us`.
    LaunchPerLayer,
    /// `all_reduce_latency_us`.
    AllReduceLatency,
    /// `link_bandwidth`.
    LinkBandwidth,
    /// `request_overhead_ms`.
    RequestOverhead,
    /// `overlap`.
    Overlap,
}

impl Constant {
    /// All, in the order of the vector.
    pub const ALL: [Self; COUNT] = [
        Self::WeightBandwidth,
        Self::LinearCompute,
        Self::KvBandwidth,
        Self::AttentionCompute,
        Self::HostPerStep,
        Self::HostPerLayer,
        Self::HostPerSequence,
        Self::LaunchPerLayer,
        Self::AllReduceLatency,
        Self::LinkBandwidth,
        Self::RequestOverhead,
        Self::Overlap,
    ];

    /// The key of `models.yml`, and its unit as a factor of what the key takes.
    pub const fn key(self) -> &'static str {
        match self {
            Self::WeightBandwidth => "weight_bandwidth",
            Self::LinearCompute => "linear_compute",
            Self::KvBandwidth => "kv_bandwidth",
            Self::AttentionCompute => "attention_compute",
            Self::HostPerStep => "host_per_step_ms",
            Self::HostPerLayer => "host_per_layer_us",
            Self::HostPerSequence => "host_per_sequence_us",
            Self::LaunchPerLayer => "launch_per_layer_us",
            Self::AllReduceLatency => "all_reduce_latency_us",
            Self::LinkBandwidth => "link_bandwidth",
            Self::RequestOverhead => "request_overhead_ms",
            Self::Overlap => "overlap",
        }
    }

    /// How far a constant may be from where it begins without being strange: the standard
    /// deviation of its logarithm over engines, GPUs and models.
    pub(super) const fn spread(self) -> f64 {
        match self {
            Self::WeightBandwidth => 0.20,
            Self::LinearCompute => 0.35,
            Self::KvBandwidth => 0.25,
            Self::AttentionCompute => 0.4,
            Self::HostPerStep => 0.8,
            Self::HostPerLayer => 0.5,
            Self::HostPerSequence | Self::LaunchPerLayer => 0.7,
            Self::AllReduceLatency => 0.5,
            Self::LinkBandwidth => 0.5,
            Self::RequestOverhead => 1.0,
            Self::Overlap => 0.4,
        }
    }

    /// The smallest and the largest value, in the key's unit.
    const fn bounds(self) -> (f64, f64) {
        match self {
            Self::WeightBandwidth
            | Self::LinearCompute
            | Self::KvBandwidth
            | Self::AttentionCompute
            | Self::LinkBandwidth => (0.02, 1.0),
            Self::HostPerStep => (0.01, 1000.0),
            Self::HostPerLayer | Self::AllReduceLatency => (0.1, 10_000.0),
            Self::HostPerSequence | Self::LaunchPerLayer => (0.01, 10_000.0),
            Self::RequestOverhead => (0.01, 60_000.0),
            Self::Overlap => (1.0, 10.0),
        }
    }
}

impl Constants {
    /// A constant, in the unit of its key; `None` for an overlap that has no number.
    pub fn get(&self, constant: Constant) -> Option<f64> {
        let e = &self.efficiency;
        Some(match constant {
            Constant::WeightBandwidth => e.weight_bandwidth,
            Constant::LinearCompute => e.linear_compute,
            Constant::KvBandwidth => e.kv_bandwidth,
            Constant::AttentionCompute => e.attention_compute,
            Constant::HostPerStep => e.host_per_step * 1e3,
            Constant::HostPerLayer => e.host_per_layer * 1e6,
            Constant::HostPerSequence => e.host_per_sequence * 1e6,
            Constant::LaunchPerLayer => e.launch_per_layer * 1e6,
            Constant::AllReduceLatency => e.all_reduce_latency * 1e6,
            Constant::LinkBandwidth => e.link_bandwidth,
            Constant::RequestOverhead => self.request_overhead.as_secs_f64() * 1e3,
            Constant::Overlap => match e.overlap {
                Overlap::Norm(p) => p,
                Overlap::Totals => return None,
            },
        })
    }

    /// The same with one constant replaced, in the unit of its key.
    #[must_use]
    pub fn with(mut self, constant: Constant, value: f64) -> Self {
        let e = &mut self.efficiency;
        match constant {
            Constant::WeightBandwidth => e.weight_bandwidth = value,
            Constant::LinearCompute => e.linear_compute = value,
            Constant::KvBandwidth => e.kv_bandwidth = value,
            Constant::AttentionCompute => e.attention_compute = value,
            Constant::HostPerStep => e.host_per_step = value * 1e-3,
            Constant::HostPerLayer => e.host_per_layer = value * 1e-6,
            Constant::HostPerSequence => e.host_per_sequence = value * 1e-6,
            Constant::LaunchPerLayer => e.launch_per_layer = value * 1e-6,
            Constant::AllReduceLatency => e.all_reduce_latency = value * 1e-6,
            Constant::LinkBandwidth => e.link_bandwidth = value,
            Constant::RequestOverhead => {
                self.request_overhead = SimSpan::from_secs_f64(value * 1e-3);
            }
            Constant::Overlap => {
                if let Overlap::Norm(p) = &mut e.overlap {
                    *p = value;
                }
            }
        }
        self
    }

    /// This share of the way to `goal`, in logarithms.
    #[must_use]
    pub fn towards(&self, goal: &Self, share: f64) -> Self {
        let (mut logs, goal) = (self.logs(), goal.logs());
        for (log, goal) in logs.iter_mut().zip(goal) {
            *log += share * (goal - *log);
        }
        self.with_logs(&logs)
    }

    /// The logarithms. A constant of zero (an ideal machine's host) begins at its smallest value.
    pub(super) fn logs(&self) -> [f64; COUNT] {
        Constant::ALL.map(|constant| {
            let (least, most) = constant.bounds();
            self.get(constant).unwrap_or(least).clamp(least, most).ln()
        })
    }

    /// The same with these logarithms.
    pub(super) fn with_logs(&self, logs: &[f64; COUNT]) -> Self {
        Constant::ALL.iter().zip(logs).fold(*self, |constants, (&constant, log)| {
            constants.with(constant, clamp(constant, *log).exp())
        })
    }
}

/// The logarithm nearest to `log` that a constant may have.
pub(super) fn clamp(constant: Constant, log: f64) -> f64 {
    let (least, most) = constant.bounds();
    log.clamp(least.ln(), most.ln())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_way_between_two_sets_is_their_geometric_mean() {
        let of = |value: f64| {
            let none = Constants { efficiency: Efficiency::IDEAL, request_overhead: SimSpan::ZERO };
            Constant::ALL.iter().fold(none, |set, &constant| set.with(constant, value))
        };
        // 0.4 and 0.9 lie within the bounds of all but the overlap, which is at least 1.
        for (share, expected) in [(0.0, 0.4), (0.5, 0.6), (1.0, 0.9)] {
            let found = of(0.4).towards(&of(0.9), share);
            for constant in Constant::ALL.into_iter().filter(|&one| one != Constant::Overlap) {
                let value = found.get(constant).expect("all are set");
                assert!((value - expected).abs() < 1e-6, "{}: {value}", constant.key());
            }
        }
    }
}
