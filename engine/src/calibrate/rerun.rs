//! A workload is lived through in virtual time, client and all.
//!
//! The client is part of it: a closed loop sends the next request when it has the last token of
//! one before it. A request's overhead lies between sending it and its place in the queue, as in a
//! server. The invariant: each request gets a first and a last token, or the whole is refused.

use std::collections::BTreeSet;

use crate::calibrate::workload::{Load, Metric, Workload};
use crate::sim::scheduler::{Recording, Scheduler, SchedulerSpec, StepLog, StepRecord};
use crate::sim::{Refusal, Verdict, What};
use crate::units::{SimSpan, SimTime, Tokens};

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// When the client sent it.
    pub sent: SimTime,
    /// When its first token existed.
    pub first: SimTime,
    /// When its last token existed.
    pub last: SimTime,
    /// Output tokens.
    pub tokens: Tokens,
    /// How many requests of the real run it stands for.
    pub count: f64,
    /// Its pace counts.
    pub is_paced: bool,
}

impl Timing {
    fn ttft(&self) -> f64 {
        (self.first - self.sent).as_secs_f64()
    }

    fn e2e(&self) -> f64 {
        (self.last - self.sent).as_secs_f64()
    }

    /// `None` with a single token, or if its pace does not count.
    fn tpot(&self) -> Option<f64> {
        if !self.is_paced {
            return None;
        }
        let gaps = self.tokens.get().checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some((self.last - self.first).as_secs_f64() / f64::from(gaps))
    }
}

/// What a client would have seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Each request, in the order of sending.
    pub requests: Vec<Timing>,
    /// How often a request was thrown out of the batch.
    pub preemptions: u64,
    /// The most tokens that a step took.
    pub largest_step: u64,
    /// The most sequences in a step.
    pub largest_batch: u32,
}

/// A run's outcome, and how its steps made it.
#[derive(Clone, Debug, Default)]
pub struct Rerun {
    /// What the client would have seen.
    pub outcome: Outcome,
    /// What each step did, and how much its duration counts.
    pub(super) steps: Vec<Weighed>,
}

/// A step, and by how much a figure would grow if the step took a second longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weighed {
    pub(super) record: StepRecord,
    /// The sum of all requests' TTFTs.
    pub(super) ttft: f64,
    /// The sum of all requests' TPOTs.
    pub(super) tpot: f64,
}

impl Outcome {
    /// The figure, in seconds or tokens per second; `None` where there is none (TPOT of requests of
    /// one token).
    pub fn get(&self, metric: Metric) -> Option<f64> {
        let all = self.requests.iter();
        match metric {
            Metric::MeanTtft => mean(all.map(|timing| (timing.ttft(), timing.count))),
            Metric::MedianTtft => median(all.map(Timing::ttft)),
            Metric::MeanTpot => mean(all.filter_map(|timing| Some((timing.tpot()?, timing.count)))),
            Metric::MedianTpot => median(all.filter_map(Timing::tpot)),
            Metric::MeanE2e => mean(
                all.filter(|timing| timing.is_paced).map(|timing| (timing.e2e(), timing.count)),
            ),
            Metric::OutputRate => {
                let tokens: u64 = all.clone().map(|timing| u64::from(timing.tokens.get())).sum();
                let seconds = self.seconds();
                (seconds > 0.0).then(|| tokens as f64 / seconds)
            }
        }
    }

    /// From the first request sent to the last token.
    pub fn seconds(&self) -> f64 {
        let start = self.requests.iter().map(|timing| timing.sent).min().unwrap_or_default();
        let end = self.requests.iter().map(|timing| timing.last).max().unwrap_or_default();
        end.saturating_since(start).as_secs_f64()
    }

    /// The share of the requests under way that wait for their first token, averaged over the run
    /// (Little's law): near 0 where the engine keeps up, towards 1 where it is saturated.
    pub fn waiting_share(&self) -> f64 {
        let ttft: f64 = self.requests.iter().map(Timing::ttft).sum();
        let e2e: f64 = self.requests.iter().map(Timing::e2e).sum();
        if e2e > 0.0 { ttft / e2e } else { 0.0 }
    }
}

/// Of values and how often each counts.
fn mean(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for (value, times) in values {
        sum += value * times;
        count += times;
    }
    (count > 0.0).then(|| sum / count)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        let pair = values.get(middle.checked_sub(1)?..=middle)?;
        return mean(pair.iter().map(|&value| (value, 1.0)));
    }
    values.get(middle).copied()
}

/// Lets `workload` happen on a GPU with `spec`, each request `overhead` late in its queue.
///
/// # Errors
/// If the engine refuses a request: it is longer than the context or the KV cache.
pub fn rerun(
    spec: &SchedulerSpec,
    overhead: SimSpan,
    workload: &Workload,
) -> Result<Rerun, Refusal> {
    let mut engine = Scheduler::new(spec.clone());
    engine.record_steps(Recording::On);
    let mut client = Client::new(workload, overhead);
    let mut weights = Weights::default();
    let mut rerun = Rerun::default();
    let (mut events, mut log) = (Vec::new(), StepLog::default());
    while let Some(now) = [engine.deadline(), client.next()].into_iter().flatten().min() {
        while let Some(place) = client.arrives(now) {
            let job = workload.requests[place].job(place, spec.block_size);
            if let Verdict::Refused(why) = engine.submit(now, job) {
                return Err(why);
            }
            weights.arrivals.push((now, client.timings[place].count));
        }
        if engine.deadline().is_none_or(|due| due > now) {
            continue;
        }
        engine.advance(now, &mut events);
        engine.swap_steps(&mut log);
        for record in log.steps() {
            rerun.steps.push(weights.weigh(record));
            let outcome = &mut rerun.outcome;
            outcome.largest_batch = outcome.largest_batch.max(record.sequences);
            outcome.largest_step = outcome.largest_step.max(record.shape.tokens());
        }
        for event in events.drain(..) {
            let What::Token { index, finish } = event.what else { continue };
            let place = event.job.0 as usize;
            let timing = &mut client.timings[place];
            let gaps = workload.requests[place].output.get().max(1) - 1;
            let each_gap =
                if gaps == 0 || !timing.is_paced { 0.0 } else { timing.count / f64::from(gaps) };
            if index == Tokens::new(1) {
                timing.first = event.at;
                weights.waiting -= timing.count;
                weights.decoding += each_gap;
            }
            if finish.is_some() {
                timing.last = event.at;
                timing.tokens = index;
                weights.decoding -= each_gap;
                client.done(event.at);
            }
        }
    }
    rerun.outcome.preemptions = engine.gauges().preemptions;
    rerun.outcome.requests = client.timings;
    Ok(rerun)
}

struct Client<'a> {
    workload: &'a Workload,
    overhead: SimSpan,
    /// On their way to the engine, by when they reach it.
    on_the_way: BTreeSet<(SimTime, usize)>,
    timings: Vec<Timing>,
    sent: usize,
}

impl<'a> Client<'a> {
    fn new(workload: &'a Workload, overhead: SimSpan) -> Self {
        let mut client = Self {
            workload,
            overhead,
            on_the_way: BTreeSet::new(),
            timings: (0..workload.requests.len())
                .map(|place| Timing {
                    count: workload.stands_for(place),
                    is_paced: workload.is_paced(place),
                    ..Timing::default()
                })
                .collect(),
            sent: 0,
        };
        match workload.load {
            Load::Closed { concurrency } => {
                for _ in 0..concurrency.max(1) {
                    client.send(SimTime::ZERO);
                }
            }
            Load::Open => {
                for request in &workload.requests {
                    client.send(SimTime::ZERO + request.at);
                }
            }
        }
        client
    }

    fn send(&mut self, at: SimTime) {
        if self.sent < self.workload.requests.len() {
            self.timings[self.sent].sent = at;
            self.on_the_way.insert((at + self.overhead, self.sent));
            self.sent += 1;
        }
    }

    fn next(&self) -> Option<SimTime> {
        self.on_the_way.first().map(|&(at, _)| at)
    }

    /// The next request that reaches the engine by `now`.
    fn arrives(&mut self, now: SimTime) -> Option<usize> {
        self.on_the_way.first().filter(|&&(at, _)| at <= now)?;
        self.on_the_way.pop_first().map(|(_, place)| place)
    }

    fn done(&mut self, at: SimTime) {
        if let Load::Closed { .. } = self.workload.load {
            self.send(at);
        }
    }
}

/// Who would feel it if a step took longer.
#[derive(Default)]
struct Weights {
    /// Requests that waited for their first token when the step began.
    waiting: f64,
    /// The sum of 1 / gaps over the requests that decode.
    decoding: f64,
    /// Arrivals since the last step was weighed, and how much each counts.
    arrivals: Vec<(SimTime, f64)>,
}

impl Weights {
    fn weigh(&mut self, record: &StepRecord) -> Weighed {
        let span = (record.ended - record.started).as_secs_f64();
        let mut ttft = self.waiting;
        let mut later = Vec::new();
        for (at, count) in self.arrivals.drain(..) {
            if at >= record.ended && span > 0.0 {
                later.push((at, count));
                continue;
            }
            self.waiting += count;
            let felt = record.ended.saturating_since(at.max(record.started)).as_secs_f64();
            ttft += count * if span > 0.0 { felt / span } else { 1.0 };
        }
        self.arrivals = later;
        Weighed { record: *record, ttft, tpot: self.decoding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scheduler::cost::StepCost;
    use crate::units::Blocks;

    /// Two requests, one after the other, of 10 tokens: if all steps were a second longer, each
    /// would have its first token a second later, and each of its gaps a second longer. The first
    /// has no pace that counts if it stands for one that had begun before.
    #[test]
    fn steps_weigh_as_much_as_those_feel_whose_pace_counts() {
        let cost = StepCost::Fixed(SimSpan::from_ms(10));
        let spec = SchedulerSpec::vllm(Tokens::new(4096), Blocks::new(1000), cost);
        let whole = Workload::drawn(Load::Closed { concurrency: 1 }, 2, 5.0, 10.0, 1.0);
        for (workload, paces) in [(whole.clone(), 2.0), (whole.out_of_step(), 1.0)] {
            let steps = rerun(&spec, SimSpan::ZERO, &workload).expect("they fit").steps;
            let sum = |of: fn(&Weighed) -> f64| steps.iter().map(of).sum::<f64>();
            let (ttft, tpot) = (sum(|step| step.ttft), sum(|step| step.tpot));
            assert!((ttft - 2.0).abs() < 1e-9 && (tpot - paces).abs() < 1e-9, "{ttft} {tpot}");
        }
    }
}
