//! The requests that the scheduler holds, and the queue of those that wait.
//!
//! Counts only: no block is moved and no decision is taken here. What every step touches of a
//! request stands in one cache line ([`Hot`]), the rest in [`Cold`]. The invariant: a slot is
//! reused only with a new generation, so that a batch still in flight can tell a request from its
//! successor.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::seed::LookupMap;
use crate::sim::scheduler::Policy;
use crate::sim::scheduler::kv_cache::BlockId;
use crate::sim::{BlockHash, Finish, Job};
use crate::units::JobId;

/// Where a request is kept; valid together with its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// Never scheduled yet.
    Waiting,
    /// Thrown out of the running batch, and waiting again.
    Preempted,
    /// In the running batch.
    Running,
}

/// What a step reads and writes of each running request. All counts are tokens.
#[derive(Clone, Debug)]
pub(super) struct Hot {
    /// C: computed, those of steps in flight included.
    pub(super) computed: u32,
    /// T: prompt and output so far.
    pub(super) total: u32,
    /// Output tokens that steps in flight will yield (asynchronous scheduling only).
    pub(super) pending: u32,
    /// How many tokens the blocks in its table can hold.
    pub(super) room: u32,
    /// P + `max_tokens`, as far as the server knows how long it gets.
    pub(super) limit: u32,
    /// The total at which it finishes.
    pub(super) finish_at: u32,
    pub(super) prompt: u32,
    /// The computed count from which its next block gets a key; `u32::MAX`: never.
    pub(super) next_key_at: u32,
    pub(super) generation: u32,
    pub(super) state: JobState,
    /// Its last step left some of its tokens uncomputed: it is in prefill.
    pub(super) partial: bool,
    /// Not vacant.
    pub(super) held: bool,
    pub(super) finish: Finish,
    pub(super) id: JobId,
}

/// What is needed only when a request arrives, grows by a block, or leaves.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) table: Vec<BlockId>,
    /// How many blocks of the table have been given their keys.
    pub(super) published: u32,
    pub(super) chain: Option<Arc<[BlockHash]>>,
    pub(super) place: Place,
    pub(super) preemptions: u32,
}

/// A place in the waiting queue, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// 0 under FCFS.
    priority: i32,
    /// Order of arrival; under FCFS a preempted request gets one before everybody else's.
    order: i64,
}

/// All requests, and the order of those that wait.
#[derive(Debug)]
pub(super) struct Jobs {
    policy: Policy,
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    vacant: Vec<Slot>,
    by_id: LookupMap<JobId, Slot>,
    waiting: BTreeMap<Place, Slot>,
    /// Waiting requests that were preempted.
    preempted: u32,
    arrivals: i64,
    /// Under FCFS: the order that the next preempted request gets.
    front: i64,
}

impl Jobs {
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy,
            hot: Vec::new(),
            cold: Vec::new(),
            vacant: Vec::new(),
            by_id: Default::default(),
            waiting: BTreeMap::new(),
            preempted: 0,
            arrivals: 0,
            front: -1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn waiting_preempted(&self) -> u32 {
        self.preempted
    }

    pub(super) fn hot(&self, slot: Slot) -> &Hot {
        &self.hot[slot.0 as usize]
    }

    pub(super) fn hot_mut(&mut self, slot: Slot) -> &mut Hot {
        &mut self.hot[slot.0 as usize]
    }

    pub(super) fn cold(&self, slot: Slot) -> &Cold {
        &self.cold[slot.0 as usize]
    }

    pub(super) fn both_mut(&mut self, slot: Slot) -> (&mut Hot, &mut Cold) {
        (&mut self.hot[slot.0 as usize], &mut self.cold[slot.0 as usize])
    }

    pub(super) fn slot(&self, id: JobId) -> Option<Slot> {
        self.by_id.get(&id).copied()
    }

    /// The tables of all requests, for checks.
    pub(super) fn tables(&self) -> impl Iterator<Item = &[BlockId]> {
        self.cold.iter().map(|cold| cold.table.as_slice())
    }

    /// Takes a request in, at its place in the waiting queue.
    pub(super) fn insert(&mut self, job: Job, ends: Ends) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.hot.push(Hot::vacant());
            self.cold.push(Cold::vacant());
            Slot(self.hot.len() as u32 - 1)
        });
        let priority = match self.policy {
            Policy::Fcfs => 0,
            Policy::Priority => job.priority,
        };
        let place = Place { priority, order: self.arrivals };
        self.arrivals += 1;
        let (hot, cold) = self.both_mut(slot);
        *hot = Hot {
            computed: 0,
            total: job.prompt.get(),
            pending: 0,
            room: 0,
            limit: ends.limit,
            finish_at: ends.finish_at,
            prompt: job.prompt.get(),
            next_key_at: u32::MAX,
            generation: hot.generation,
            state: JobState::Waiting,
            partial: false,
            held: true,
            finish: ends.finish,
            id: job.id,
        };
        cold.published = 0;
        cold.chain = job.chain;
        cold.place = place;
        cold.preemptions = 0;
        let before = self.by_id.insert(job.id, slot);
        assert!(before.is_none(), "job {} is submitted twice", job.id);
        self.waiting.insert(place, slot);
    }

    /// The next one to be admitted.
    pub(super) fn head(&self) -> Option<Slot> {
        self.waiting.first_key_value().map(|(_, &slot)| slot)
    }

    /// Takes the head out of the queue: it runs now.
    pub(super) fn admit_head(&mut self) {
        let (_, slot) = self.waiting.pop_first().expect("only a head that was seen is admitted");
        let hot = self.hot_mut(slot);
        let was = std::mem::replace(&mut hot.state, JobState::Running);
        self.preempted -= u32::from(was == JobState::Preempted);
    }

    /// Puts a preempted request back: to the front under FCFS, to its place by priority otherwise.
    pub(super) fn wait_again(&mut self, slot: Slot) {
        if self.policy == Policy::Fcfs {
            self.cold[slot.0 as usize].place.order = self.front;
            self.front -= 1;
        }
        let (hot, cold) = self.both_mut(slot);
        hot.state = JobState::Preempted;
        cold.preemptions += 1;
        let place = cold.place;
        self.waiting.insert(place, slot);
        self.preempted += 1;
    }

    /// Forgets a request; its blocks must have been released.
    pub(super) fn remove(&mut self, slot: Slot) {
        let hot = &mut self.hot[slot.0 as usize];
        let cold = &mut self.cold[slot.0 as usize];
        assert!(cold.table.is_empty(), "job {} leaves with blocks", hot.id);
        hot.generation = hot.generation.wrapping_add(1);
        hot.held = false;
        cold.chain = None;
        self.by_id.remove(&hot.id);
        if hot.state != JobState::Running {
            self.waiting.remove(&cold.place);
            self.preempted -= u32::from(hot.state == JobState::Preempted);
        }
        self.vacant.push(slot);
    }

    /// The larger, the sooner it is preempted under the priority policy.
    pub(super) fn place(&self, slot: Slot) -> Place {
        self.cold(slot).place
    }

    /// The waiting queue in order.
    pub(super) fn queue(&self) -> impl Iterator<Item = JobId> {
        self.waiting.values().map(|&slot| self.hot(slot).id)
    }
}

/// Where a request ends, in total tokens (prompt and output).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    /// P + `max_tokens`.
    pub(super) limit: u32,
    /// The total at which it really finishes: the earliest of stop, `max_tokens`, `max_model_len`.
    pub(super) finish_at: u32,
    pub(super) finish: Finish,
}

impl Ends {
    /// A stop is looked for first, then the two lengths (vLLM's order).
    pub(super) fn of(job: &Job, max_model_len: u32) -> Self {
        let prompt = job.prompt.get();
        let limit = prompt.saturating_add(job.max_tokens.get().max(1));
        // At least one token is always sampled before lengths are looked at.
        let length = limit.min(max_model_len.max(prompt.saturating_add(1)));
        match job.stop_after {
            Some(stop) if prompt.saturating_add(stop.get().max(1)) <= length => {
                Self { limit, finish_at: prompt + stop.get().max(1), finish: Finish::Stop }
            }
            _ => Self { limit, finish_at: length, finish: Finish::Length },
        }
    }
}

impl Hot {
    fn vacant() -> Self {
        Self {
            computed: 0,
            total: 0,
            pending: 0,
            room: 0,
            limit: 0,
            finish_at: 0,
            prompt: 0,
            next_key_at: u32::MAX,
            generation: 0,
            state: JobState::Waiting,
            partial: false,
            held: false,
            finish: Finish::Length,
            id: JobId(0),
        }
    }
}

impl Cold {
    fn vacant() -> Self {
        Self {
            table: Vec::new(),
            published: 0,
            chain: None,
            place: Place { priority: 0, order: 0 },
            preemptions: 0,
        }
    }
}
