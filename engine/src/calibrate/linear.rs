//! A run's figures as a function of the constants, without running it again.
//!
//! Which steps a run takes hangs on counts far more than on times, so a figure is a weighted sum of
//! step durations, and a run that was lived through once tells the weights. Steps that look alike
//! are one. The invariant: at the constants of the run itself the figures are exactly the run's.

use std::collections::BTreeMap;

use crate::calibrate::constants::Constants;
use crate::calibrate::rerun::{Outcome, Rerun, Weighed, rerun};
use crate::calibrate::workload::{Metric, Workload};
use crate::sim::Refusal;
use crate::sim::scheduler::SchedulerSpec;
use crate::sim::scheduler::cost::{Roofline, StepCost, StepShape};
use crate::units::SimSpan;

/// A run's figures near the constants with which it was lived through.
#[derive(Clone, Debug)]
pub struct Linear {
    /// What the client saw.
    pub outcome: Outcome,
    /// Its figures, in the order of [`Metric::ALL`].
    seen: [Option<f64>; Metric::ALL.len()],
    cost: Roofline,
    overhead: SimSpan,
    kinds: Vec<Kind>,
    /// The sums with the constants of the run.
    base: Sums,
    /// Time in which no step ran, such as waiting for requests.
    idle: f64,
}

/// Steps that look alike; their shapes are added up first, and then their mean.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    shape: StepShape,
    ttft: f64,
    tpot: f64,
    count: f64,
}

/// Weighted sums of step durations, seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    ttft: f64,
    tpot: f64,
    all: f64,
}

/// Lives through `workload` with `constants` and keeps what is needed to tell how its figures
/// change with them.
///
/// # Errors
/// If the engine refuses a request.
pub fn linearise(
    spec: &SchedulerSpec,
    constants: &Constants,
    workload: &Workload,
) -> Result<Linear, Refusal> {
    let cost = with(spec, constants);
    let rerun = relive(spec, constants, workload)?;
    let mut linear = Linear {
        kinds: kinds(&rerun.steps),
        seen: Metric::ALL.map(|metric| rerun.outcome.get(metric)),
        outcome: rerun.outcome,
        cost,
        overhead: constants.request_overhead,
        base: Sums::default(),
        idle: 0.0,
    };
    linear.base = linear.sums(&linear.cost);
    linear.idle = (linear.outcome.seconds() - linear.base.all).max(0.0);
    Ok(linear)
}

/// Lives through `workload` with `constants`, every step taking exactly what the cost model says.
///
/// # Errors
/// If the engine refuses a request.
pub fn relive(
    spec: &SchedulerSpec,
    constants: &Constants,
    workload: &Workload,
) -> Result<Rerun, Refusal> {
    let cost = StepCost::Roofline(with(spec, constants));
    // Constants are means, so that no step strays.
    let spec = SchedulerSpec { cost, residual: None, ..spec.clone() };
    rerun(&spec, constants.request_overhead, workload)
}

fn with(spec: &SchedulerSpec, constants: &Constants) -> Roofline {
    let StepCost::Roofline(base) = &spec.cost else {
        unreachable!("a fixed step has no constants to fit")
    };
    Roofline { efficiency: constants.efficiency, ..base.clone() }
}

fn kinds(steps: &[Weighed]) -> Vec<Kind> {
    let mut kinds: BTreeMap<[u16; 5], Kind> = BTreeMap::new();
    for step in steps {
        let shape = step.record.shape;
        let key = [
            size(f64::from(shape.decodes)),
            size(shape.decode_context as f64),
            size(shape.chunk_tokens as f64),
            size(shape.chunk_cached as f64),
            size(f64::from(shape.chunks)),
        ];
        let kind = kinds.entry(key).or_default();
        kind.ttft += step.ttft;
        kind.tpot += step.tpot;
        kind.count += 1.0;
        let sum = &mut kind.shape;
        sum.sequences += shape.sequences;
        sum.decodes += shape.decodes;
        sum.decode_context += shape.decode_context;
        sum.chunks += shape.chunks;
        sum.chunk_tokens += shape.chunk_tokens;
        sum.chunk_cached += shape.chunk_cached;
        sum.chunk_pairs_doubled += shape.chunk_pairs_doubled;
        sum.sampled += shape.sampled;
    }
    kinds.into_values().map(|kind| Kind { shape: mean(&kind), ..kind }).collect()
}

/// The mean step of a kind.
fn mean(kind: &Kind) -> StepShape {
    let count = kind.count;
    let whole = |sum: f64| (sum / count).round();
    let sum = &kind.shape;
    StepShape {
        sequences: whole(f64::from(sum.sequences)) as u32,
        decodes: whole(f64::from(sum.decodes)) as u32,
        decode_context: whole(sum.decode_context as f64) as u64,
        chunks: whole(f64::from(sum.chunks)) as u32,
        chunk_tokens: whole(sum.chunk_tokens as f64) as u64,
        chunk_cached: whole(sum.chunk_cached as f64) as u64,
        chunk_pairs_doubled: whole(sum.chunk_pairs_doubled as f64) as u128,
        sampled: whole(f64::from(sum.sampled)) as u32,
    }
}

/// Sizes within a fifth of each other are alike.
fn size(value: f64) -> u16 {
    if value < 1.0 { 0 } else { 1 + (value.ln() / 1.2_f64.ln()).round() as u16 }
}

impl Linear {
    fn sums(&self, cost: &Roofline) -> Sums {
        let mut sums = Sums::default();
        for kind in &self.kinds {
            let seconds = cost.time(&kind.shape).total.as_secs_f64();
            sums.ttft += kind.ttft * seconds;
            sums.tpot += kind.tpot * seconds;
            sums.all += kind.count * seconds;
        }
        sums
    }

    /// The figures with other constants.
    pub(super) fn at(&self, constants: &Constants) -> Figures<'_> {
        let cost = Roofline { efficiency: constants.efficiency, ..self.cost.clone() };
        let sums = self.sums(&cost);
        let ratio = |now: f64, then: f64| if then > 0.0 { now / then } else { 1.0 };
        Figures {
            run: self,
            ttft: ratio(sums.ttft, self.base.ttft),
            tpot: ratio(sums.tpot, self.base.tpot),
            seconds: self.idle + sums.all,
            base_seconds: self.idle + self.base.all,
            overhead: constants.request_overhead.as_secs_f64(),
        }
    }
}

/// A run's figures with some constants.
pub(super) struct Figures<'a> {
    run: &'a Linear,
    ttft: f64,
    tpot: f64,
    seconds: f64,
    base_seconds: f64,
    overhead: f64,
}

impl Figures<'_> {
    /// The figure, in seconds or tokens per second.
    pub(super) fn get(&self, metric: Metric) -> Option<f64> {
        let then = self.run.seen[metric as usize]?;
        let before = self.run.overhead.as_secs_f64();
        Some(match metric {
            Metric::MeanTtft | Metric::MedianTtft => {
                self.overhead + (then - before).max(0.0) * self.ttft
            }
            Metric::MeanTpot | Metric::MedianTpot => then * self.tpot,
            Metric::MeanE2e => {
                let ttft = self.run.seen[Metric::MeanTtft as usize]?;
                let first = self.overhead + (ttft - before).max(0.0) * self.ttft;
                first + (then - ttft) * self.tpot
            }
            Metric::OutputRate => then * self.base_seconds / self.seconds.max(1e-12),
        })
    }
}
