//! The engines in which a job is alone on its own timetable: `instant` and `fixed_rate`.

use crate::sim::{Event, Job, Verdict};
use crate::units::{JobId, Rate, SimSpan, SimTime};

/// The timetable of `engine: fixed_rate`: the first token after `overhead` + prompt ÷ `prefill`,
/// then one every 1 ÷ `decode`, on absolute deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRateSpec {
    /// Time before the prompt is looked at.
    pub overhead: SimSpan,
    /// Prompt tokens per second.
    pub prefill: Rate,
    /// Output tokens per second.
    pub decode: Rate,
}

/// `engine: instant`.
#[derive(Debug, Default)]
pub struct Instant {}

/// `engine: fixed_rate`.
#[derive(Debug)]
pub struct FixedRate {}

#[expect(clippy::todo, unused_variables, missing_docs, reason = "filled in by the next commits")]
impl Instant {
    pub fn new() -> Self {
        todo!()
    }
    pub fn submit(&mut self, now: SimTime, job: &Job) -> Verdict {
        todo!()
    }
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        todo!()
    }
    pub fn deadline(&self) -> Option<SimTime> {
        todo!()
    }
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        todo!()
    }
}

#[expect(clippy::todo, unused_variables, missing_docs, reason = "filled in by the next commits")]
impl FixedRate {
    pub fn new(spec: FixedRateSpec) -> Self {
        todo!()
    }
    pub fn submit(&mut self, now: SimTime, job: &Job) -> Verdict {
        todo!()
    }
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        todo!()
    }
    pub fn deadline(&self) -> Option<SimTime> {
        todo!()
    }
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        todo!()
    }
}
