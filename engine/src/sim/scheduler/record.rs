//! What steps did, for step logs, traces and metrics; and the gauges of the moment.
//!
//! Nothing here influences a plan. Steps are recorded only when switched on, into storage that is
//! handed back and forth with the reader, so that recording allocates nothing in the long run. The
//! invariant: a record tells a whole step, after it has ended, as it was planned.

use crate::sim::scheduler::Factor;
use crate::sim::scheduler::core::{Admission, AdmissionStop, PrefixStats};
use crate::sim::scheduler::cost::{StepShape, StepTime};
use crate::units::{Blocks, JobId, SimTime, Tokens};

/// The state of a simulated GPU at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Requests in the running batch (`vllm:num_requests_running`).
    pub running: u32,
    /// Requests waiting, preempted ones included (`vllm:num_requests_waiting`).
    pub waiting: u32,
    /// Of those, preempted ones.
    pub waiting_preempted: u32,
    /// KV-cache blocks that can be handed out at all; zero for engines without a KV cache.
    pub usable_blocks: Blocks,
    /// Blocks without a user, cached or not (usage is 1 − free ÷ usable).
    pub free_blocks: Blocks,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Prefix-cache statistics since the start.
    pub prefix: PrefixStats,
    /// Steps that have ended since the start.
    pub steps: u64,
}

/// Requests and blocks before or after a step was planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// In the running batch.
    pub running: u32,
    /// Waiting, preempted ones included.
    pub waiting: u32,
    /// Blocks without a user.
    pub free_blocks: Blocks,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRecord {
    /// Number of the step, from 1; steps that compute nothing have numbers but no records.
    pub index: u64,
    /// When it was decided; asynchronous: before the results of the step before it were in.
    pub planned: SimTime,
    /// When the GPU began to execute it.
    pub started: SimTime,
    /// When its results were in.
    pub ended: SimTime,
    /// Its duration, with the residual if there is one, and what bound it.
    pub time: StepTime,
    /// By how much its duration strays from the cost model's; `None` if it never does.
    pub residual: Option<Factor>,
    /// What it computed, in the sums that its duration depends on.
    pub shape: StepShape,
    /// Requests that computed.
    pub sequences: u32,
    /// Tokens of decodes, one each.
    pub decode_tokens: Tokens,
    /// Tokens of prefill chunks.
    pub prefill_tokens: Tokens,
    /// Just before it was planned.
    pub before: Queues,
    /// Just after it was planned.
    pub after: Queues,
    /// Why it admitted no more requests.
    pub admission: AdmissionStop,
    granted: Part,
    admitted: Part,
    preempted: Part,
}

/// A part of one of the log's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Part {
    start: u32,
    end: u32,
}

impl Part {
    fn of<T>(self, list: &[T]) -> &[T] {
        &list[self.start as usize..self.end as usize]
    }
}

/// One request's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Which request.
    pub job: JobId,
    /// How many tokens it computed.
    pub tokens: Tokens,
}

/// Records of steps, and the lists that they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepLog {
    steps: Vec<StepRecord>,
    granted: Vec<Granted>,
    admitted: Vec<Admission>,
    preempted: Vec<JobId>,
    dropped: u64,
}

/// A log that nobody reads stops here, and counts what it drops: at 20 ms a step, 5 minutes.
const MOST_STEPS: usize = 16_384;

impl StepLog {
    /// The steps, oldest first.
    pub fn steps(&self) -> &[StepRecord] {
        &self.steps
    }

    /// Who computed how many tokens, in the order granted.
    pub fn granted(&self, step: &StepRecord) -> &[Granted] {
        step.granted.of(&self.granted)
    }

    /// Who was admitted, in order.
    pub fn admitted(&self, step: &StepRecord) -> &[Admission] {
        step.admitted.of(&self.admitted)
    }

    /// Who was preempted while the step was planned. (A plan that preempted all it ran, and so
    /// computed nothing, leaves events but no record.)
    pub fn preempted(&self, step: &StepRecord) -> &[JobId] {
        step.preempted.of(&self.preempted)
    }

    /// Steps that were not recorded because nobody read the log in time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Empties the log and keeps its storage.
    pub fn clear(&mut self) {
        self.steps.clear();
        self.granted.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.dropped = 0;
    }

    pub(super) fn push(&mut self, step: StepSummary, details: &Details) {
        if self.steps.len() >= MOST_STEPS {
            self.dropped += 1;
            return;
        }
        let StepSummary { index, planned, started, ended, time, residual, .. } = step;
        let StepSummary { before, after, admission, .. } = step;
        self.steps.push(StepRecord {
            index,
            planned,
            started,
            ended,
            time,
            residual,
            shape: step.shape,
            sequences: step.sequences,
            decode_tokens: step.decode_tokens,
            prefill_tokens: step.prefill_tokens,
            before,
            after,
            admission,
            granted: append(&mut self.granted, &details.granted),
            admitted: append(&mut self.admitted, &details.admitted),
            preempted: append(&mut self.preempted, &details.preempted),
        });
    }
}

fn append<T: Copy>(list: &mut Vec<T>, more: &[T]) -> Part {
    let start = list.len() as u32;
    list.extend_from_slice(more);
    Part { start, end: list.len() as u32 }
}

/// A record without its lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSummary {
    pub(super) index: u64,
    pub(super) planned: SimTime,
    pub(super) started: SimTime,
    pub(super) ended: SimTime,
    pub(super) time: StepTime,
    pub(super) residual: Option<Factor>,
    pub(super) shape: StepShape,
    pub(super) sequences: u32,
    pub(super) decode_tokens: Tokens,
    pub(super) prefill_tokens: Tokens,
    pub(super) before: Queues,
    pub(super) after: Queues,
    pub(super) admission: AdmissionStop,
}

/// The lists of a step that is planned and has not ended.
#[derive(Debug, Default)]
pub(super) struct Details {
    pub(super) granted: Vec<Granted>,
    pub(super) admitted: Vec<Admission>,
    pub(super) preempted: Vec<JobId>,
}

impl Details {
    pub(super) fn clear(&mut self) {
        self.granted.clear();
        self.admitted.clear();
        self.preempted.clear();
    }
}
