//! The scheduler's state without time: vLLM's two calls, `schedule()` and `update()`.
//!
//! Both the timed [`Scheduler`](super::Scheduler) and the replay of recorded traces drive this one
//! value. It does not know how long a step takes or when a job arrived. The invariant: between the
//! calls every block is free or in the table of exactly those requests that count as its users.

use crate::sim::scheduler::cost::StepShape;
use crate::sim::scheduler::jobs::{Ends, JobState, Jobs, Slot};
use crate::sim::scheduler::kv_cache::{BlockId, KvCache};
use crate::sim::scheduler::{OutputBlocks, Policy, PrefillOrder, SchedulerSpec, Scheduling};
use crate::sim::{Finish, Job, NORMAL, Refusal};
use crate::units::{Blocks, JobId, Tokens};

/// The settings in the form in which each step needs them.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) max_num_batched_tokens: u32,
    pub(super) max_running: usize,
    pub(super) max_model_len: u32,
    pub(super) block_size: u32,
    pub(super) policy: Policy,
    pub(super) long_prefill_token_threshold: u32,
    pub(super) long_prefill_adaptive: bool,
    pub(super) chunked_prefill: bool,
    pub(super) reserve_full_isl: bool,
    pub(super) watermark_blocks: u32,
    pub(super) prefill_interval: u32,
    pub(super) scheduling: Scheduling,
    pub(super) prefill_order: PrefillOrder,
    pub(super) output_blocks: OutputBlocks,
}

/// The scheduler's state between two calls.
#[derive(Debug)]
pub struct Core {
    pub(super) limits: Limits,
    pub(super) jobs: Jobs,
    pub(super) cache: KvCache,
    /// In order of admission; never sorted again.
    pub(super) running: Vec<Slot>,
    /// Number of the step planned last, from 1.
    pub(super) step: u64,
    /// The last step that computed prefill; 0: none yet.
    pub(super) last_prefill_step: u64,
    /// The last step that was free to admit prefills left requests waiting.
    pub(super) last_release_left_waiting: bool,
    pub(super) preemptions: u64,
    pub(super) prefix_stats: PrefixStats,
    /// Scratch: the cached blocks of the request at the head of the queue.
    pub(super) hits: Vec<BlockId>,
    /// Blocks that no request may have at present.
    pub(super) withheld: u32,
    /// Running requests that the next plan begins by preempting.
    pub(super) preempt_next: u32,
}

/// What one step computes: the outcome of [`Core::schedule`], handed back to [`Core::update`].
#[derive(Debug, Default)]
pub struct Batch {
    /// Number of the step, from 1.
    pub step: u64,
    pub(super) grants: Vec<Grant>,
    /// Admitted in this step, in order.
    pub admitted: Vec<Admission>,
    /// Preempted while this step was planned, in order.
    pub preempted: Vec<JobId>,
    /// Why admission stopped.
    pub admission: AdmissionStop,
    /// Tokens of all grants.
    pub tokens: u32,
    /// The sums that the duration of the step depends on.
    pub shape: StepShape,
}

/// One request's share of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) slot: Slot,
    pub(super) generation: u32,
    pub(super) tokens: u32,
    /// It was in prefill before this step.
    pub(super) prefill: bool,
    /// All its tokens are computed then: it yields a new one.
    pub(super) yields: bool,
}

/// A request that enters the running batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Which.
    pub job: JobId,
    /// Tokens found in the prefix cache.
    pub cached: Tokens,
    /// Whether it had been preempted before.
    pub resumed: bool,
}

/// Why a step admitted no more requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdmissionStop {
    /// Nobody waits any more.
    #[default]
    QueueEmpty,
    /// `max_num_batched_tokens` are given out.
    BudgetSpent,
    /// `max_num_seqs` (or `max_num_active_seqs`) requests run.
    SequenceLimit,
    /// The head of the queue does not get its blocks.
    NoFreeBlocks,
    /// Something was preempted in this step.
    Preempted,
    /// `prefill_schedule_interval` holds prefills back.
    PrefillHeld,
    /// Without chunked prefill: the prompt does not fit into the rest of the budget.
    ChunkTooLarge,
}

impl AdmissionStop {
    /// The word for logs, metrics and traces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueEmpty => "queue_empty",
            Self::BudgetSpent => "budget_spent",
            Self::SequenceLimit => "sequence_limit",
            Self::NoFreeBlocks => "no_free_blocks",
            Self::Preempted => "preempted",
            Self::PrefillHeld => "prefill_held",
            Self::ChunkTooLarge => "chunk_too_large",
        }
    }
}

/// A token that a step brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Whose.
    pub job: JobId,
    /// Which output token, from 1.
    pub index: Tokens,
    /// Set on the last one.
    pub finish: Option<Finish>,
}

/// Prefix-cache statistics in tokens, as vLLM counts them: once per admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Tokens looked up by requests that had never been preempted.
    pub queries: u64,
    /// Of those, found.
    pub hits: u64,
    /// Tokens looked up by requests that return after a preemption.
    pub preempted_queries: u64,
    /// Of those, found.
    pub preempted_hits: u64,
}

impl PrefixStats {
    pub(super) fn count(&mut self, resumed: bool, queries: u32, hits: u32) {
        let (queries, hits) = (u64::from(queries), u64::from(hits));
        if resumed {
            self.preempted_queries += queries;
            self.preempted_hits += hits;
        } else {
            self.queries += queries;
            self.hits += hits;
        }
    }
}

impl Core {
    /// An empty scheduler.
    ///
    /// # Panics
    /// On settings with which nothing could ever run (no budget, no sequence, no block, block size
    /// 0, a watermark outside 0..=1): configuration refuses them first.
    pub fn new(spec: &SchedulerSpec) -> Self {
        let running = spec.max_num_active_seqs.unwrap_or(u32::MAX).min(spec.max_num_seqs);
        assert!(spec.max_num_batched_tokens > Tokens::ZERO, "a token budget of 0");
        assert!(running > 0, "no sequence may run");
        assert!(spec.block_size > Tokens::ZERO, "a block size of 0");
        assert!((0.0..=1.0).contains(&spec.watermark), "a watermark of {}", spec.watermark);
        let num_blocks = spec.num_blocks.get();
        let limits = Limits {
            max_num_batched_tokens: spec.max_num_batched_tokens.get(),
            max_running: running as usize,
            max_model_len: spec.max_model_len.get(),
            block_size: spec.block_size.get(),
            policy: spec.policy,
            long_prefill_token_threshold: spec.long_prefill_token_threshold.get(),
            long_prefill_adaptive: spec.long_prefill_adaptive,
            chunked_prefill: spec.chunked_prefill,
            reserve_full_isl: spec.reserve_full_isl,
            watermark_blocks: (spec.watermark * f64::from(num_blocks)) as u32,
            prefill_interval: spec.prefill_interval,
            scheduling: spec.scheduling,
            prefill_order: spec.prefill_order,
            output_blocks: spec.output_blocks,
        };
        Self {
            jobs: Jobs::new(spec.policy),
            cache: KvCache::new(num_blocks, spec.prefix_caching, spec.freed_blocks),
            limits,
            running: Vec::new(),
            step: 0,
            last_prefill_step: 0,
            last_release_left_waiting: false,
            preemptions: 0,
            prefix_stats: PrefixStats::default(),
            hits: Vec::new(),
            withheld: 0,
            preempt_next: 0,
        }
    }

    /// Whether a job can run at all.
    ///
    /// # Errors
    /// Why not: it would wait for ever, or a server would not take it.
    pub fn accepts(&self, job: &Job) -> Result<(), Refusal> {
        let limits = &self.limits;
        if job.prompt >= Tokens::new(limits.max_model_len) {
            return Err(Refusal::PromptTooLong);
        }
        // The token sampled last is never stored; before a return from preemption all others may
        // have to be computed, and to find room, at once.
        let most = Ends::of(job, limits.max_model_len).finish_at - 1;
        if most.div_ceil(limits.block_size) > self.cache.capacity()
            || (!limits.chunked_prefill && most > limits.max_num_batched_tokens)
        {
            return Err(Refusal::NeverFits);
        }
        Ok(())
    }

    /// A request arrives and waits.
    pub fn add(&mut self, job: Job) {
        let ends = Ends::of(&job, self.limits.max_model_len);
        self.jobs.insert(job, ends);
    }

    /// A request is aborted: its blocks are free at once, tokens in flight are dropped. Says where
    /// it stood; `None` if it is unknown, e.g. finished.
    pub fn abort(&mut self, id: JobId) -> Option<JobState> {
        let slot = self.jobs.slot(id)?;
        let state = self.jobs.hot(slot).state;
        if state == JobState::Running {
            self.running.retain(|&other| other != slot);
        }
        self.forget(slot);
        Some(state)
    }

    /// Applies the results of a step: tokens are appended in the order of the grants, finished
    /// requests leave and free their blocks.
    pub fn update(&mut self, batch: &Batch, mut output: impl FnMut(Output)) {
        let asynchronous = self.limits.scheduling == Scheduling::Asynchronous;
        let mut left = false;
        for grant in &batch.grants {
            if !grant.yields {
                continue;
            }
            let hot = self.jobs.hot_mut(grant.slot);
            if hot.generation != grant.generation {
                // Finished or aborted while the step was in flight.
                continue;
            }
            hot.total += 1;
            let finished = hot.total == hot.finish_at;
            output(Output {
                job: hot.id,
                index: Tokens::new(hot.total - hot.prompt),
                finish: finished.then_some(hot.finish),
            });
            if asynchronous {
                hot.pending -= 1;
                if hot.state == JobState::Running {
                    let known = hot.computed - hot.pending;
                    if known >= hot.next_key_at {
                        self.publish_up_to(grant.slot, known);
                    }
                }
            }
            if finished {
                left |= self.jobs.hot(grant.slot).state == JobState::Running;
                self.forget(grant.slot);
            }
        }
        if left {
            let jobs = &self.jobs;
            self.running.retain(|&slot| jobs.hot(slot).held);
        }
    }

    /// Keys for the first `known` tokens' blocks, as far as they are full and have none yet.
    pub(super) fn publish_up_to(&mut self, slot: Slot, known: u32) {
        let block_size = self.limits.block_size;
        let (hot, cold) = self.jobs.both_mut(slot);
        let Some(chain) = &cold.chain else { return };
        let full = (known / block_size).min(chain.len() as u32);
        for at in cold.published..full {
            self.cache.publish(cold.table[at as usize], chain[at as usize]);
        }
        cold.published = full;
        hot.next_key_at = match (full as usize) < chain.len() {
            true => (full + 1) * block_size,
            false => u32::MAX,
        };
    }

    fn forget(&mut self, slot: Slot) {
        let (_, cold) = self.jobs.both_mut(slot);
        self.cache.release(&mut cold.table);
        self.jobs.remove(slot);
    }

    /// Only this many thousandths of the cache can be handed out, from the next plan on; what may
    /// be handed out again can be at once.
    pub fn shrink_to(&mut self, thousandths: u32) {
        let capacity = self.cache.capacity();
        let kept = u64::from(capacity) * u64::from(thousandths) / u64::from(NORMAL);
        let kept = u32::try_from(kept).unwrap_or(capacity).clamp(1, capacity);
        self.withheld = capacity - kept;
        self.cache.give_back(self.withheld);
    }

    /// Whether less than the whole cache can be handed out.
    pub fn is_shrunk(&self) -> bool {
        self.withheld > 0
    }

    /// Takes from the free blocks what is to be withheld, as far as they go.
    pub fn withhold_free(&mut self) {
        self.cache.withhold(self.withheld);
    }

    /// The next plan begins by preempting so many more of the running requests.
    pub fn preempt_next(&mut self, requests: u32) {
        self.preempt_next = self.preempt_next.saturating_add(requests);
    }

    /// Forgets all requests and all cached prefixes; says whom, the running ones first, each in
    /// the order of their queue.
    pub fn lose_all(&mut self) -> Vec<JobId> {
        let running = self.running.iter().map(|&slot| self.jobs.hot(slot).id);
        let lost: Vec<JobId> = running.chain(self.jobs.queue()).collect();
        self.running.clear();
        for id in &lost {
            let slot = self.jobs.slot(*id).expect("it was listed just now");
            self.forget(slot);
        }
        self.cache.forget_keys();
        self.preempt_next = 0;
        lost
    }

    /// Forgets all cached prefixes, which works only while no request holds blocks; says whether
    /// it did.
    pub fn reset_prefix_cache(&mut self) -> bool {
        let idle = self.cache.free() == self.cache.usable();
        if idle {
            self.cache.forget_keys();
        }
        idle
    }

    /// Requests held, waiting or running.
    pub fn held(&self) -> usize {
        self.jobs.len()
    }

    /// Requests in the running batch.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests waiting, preempted ones included.
    pub fn waiting(&self) -> usize {
        self.jobs.waiting()
    }

    /// Requests waiting after a preemption.
    pub fn waiting_preempted(&self) -> u32 {
        self.jobs.waiting_preempted()
    }

    /// The waiting queue from its head.
    pub fn queue(&self) -> impl Iterator<Item = JobId> {
        self.jobs.queue()
    }

    /// Where a request stands; `None` if it is unknown, e.g. finished.
    pub fn state(&self, id: JobId) -> Option<JobState> {
        self.jobs.slot(id).map(|slot| self.jobs.hot(slot).state)
    }

    /// The blocks that a request holds.
    pub fn table(&self, id: JobId) -> &[BlockId] {
        self.jobs.slot(id).map_or(&[], |slot| &self.jobs.cold(slot).table)
    }

    /// Blocks that can be handed out at all.
    pub fn usable_blocks(&self) -> Blocks {
        Blocks::new(self.cache.usable())
    }

    /// Blocks without a user, cached or not.
    pub fn free_blocks(&self) -> Blocks {
        Blocks::new(self.cache.free())
    }

    /// Distinct keys in the prefix cache.
    pub fn cached_keys(&self) -> u32 {
        self.cache.keys()
    }

    /// Preemptions so far.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Prefix-cache statistics so far.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.prefix_stats
    }

    /// The batch's grants in order: which request, how many tokens. Requests that finished since
    /// are left out.
    pub fn grants(&self, batch: &Batch) -> impl Iterator<Item = (JobId, Tokens)> {
        batch.grants.iter().filter_map(|grant| {
            let hot = self.jobs.hot(grant.slot);
            (hot.generation == grant.generation).then_some((hot.id, Tokens::new(grant.tokens)))
        })
    }

    /// Checks every block and queue: for tests, it looks at the whole cache.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.cache.check(self.jobs.tables());
        assert_eq!(self.running.len() + self.jobs.waiting(), self.jobs.len(), "a job is lost");
        assert!(self.running.len() <= self.limits.max_running);
        for &slot in &self.running {
            let (hot, cold) = (self.jobs.hot(slot), self.jobs.cold(slot));
            assert_eq!(hot.state, JobState::Running);
            assert_eq!(hot.room, cold.table.len() as u32 * self.limits.block_size);
            assert!(hot.computed <= hot.room, "job {} computes without a block", hot.id);
            assert!(hot.total <= hot.finish_at && hot.computed <= hot.total + hot.pending);
        }
    }
}

impl Batch {
    pub(super) fn clear(&mut self, step: u64) {
        self.step = step;
        self.grants.clear();
        self.admitted.clear();
        self.preempted.clear();
        self.tokens = 0;
        self.shape = StepShape::default();
        self.admission = AdmissionStop::QueueEmpty;
    }

    /// Nothing is computed in this step.
    pub fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// Requests that compute in this step.
    pub fn sequences(&self) -> usize {
        self.grants.len()
    }
}
