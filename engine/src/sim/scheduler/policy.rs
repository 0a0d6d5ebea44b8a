//! One step's plan: who computes how many tokens, who is admitted, who is preempted.
//!
//! This is vLLM's `Scheduler.schedule()`, and free of time. It reads from the top: running requests
//! in order, then the waiting queue from its head. The invariant: after [`Core::schedule`] every
//! granted token has a place in a block, and the grants never exceed the budget.

use crate::sim::scheduler::core::{Admission, AdmissionStop, Batch, Core, Grant};
use crate::sim::scheduler::cost::StepShape;
use crate::sim::scheduler::jobs::{JobState, Slot};
use crate::sim::scheduler::{OutputBlocks, Policy, PrefillOrder, Scheduling};
use crate::units::Tokens;

/// What is fixed while one step is planned.
#[derive(Clone, Copy)]
struct StepRules {
    /// The most tokens that one request may get (`long_prefill_token_threshold`).
    cap: u32,
    /// In-progress and new prefills wait for their turn (`prefill_schedule_interval`).
    hold_prefills: bool,
}

/// Which running requests get tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Those in prefill.
    Prefill,
    /// All.
    Any,
}

/// Whether a running request got its blocks.
enum Blocks {
    Granted,
    /// It was its own victim.
    Preempted,
}

impl Core {
    /// Plans the next step into `batch`, whose storage is reused.
    pub fn schedule(&mut self, batch: &mut Batch) {
        self.step += 1;
        batch.clear(self.step);
        let rules = self.rules();
        let mut budget = self.limits.max_num_batched_tokens;
        if self.withheld > 0 || self.preempt_next > 0 {
            self.give_way(batch);
        }
        match self.limits.prefill_order {
            PrefillOrder::Mixed => {
                self.grant_running(rules, Phase::Any, &mut budget, batch);
                batch.admission = self.admit_unless_preempted(rules, &mut budget, batch);
            }
            PrefillOrder::First => {
                self.grant_running(rules, Phase::Prefill, &mut budget, batch);
                batch.admission = self.admit_unless_preempted(rules, &mut budget, batch);
                if batch.grants.is_empty() {
                    self.grant_running(rules, Phase::Any, &mut budget, batch);
                }
            }
        }
        self.commit(batch);
    }

    fn admit_unless_preempted(
        &mut self,
        rules: StepRules,
        budget: &mut u32,
        batch: &mut Batch,
    ) -> AdmissionStop {
        if !batch.preempted.is_empty() {
            return AdmissionStop::Preempted;
        }
        let stop = self.admit_waiting(rules, budget, batch);
        if !rules.hold_prefills {
            self.last_release_left_waiting = self.jobs.waiting() > 0;
        }
        stop
    }

    fn rules(&self) -> StepRules {
        let limits = &self.limits;
        let held = self.running.len() + self.jobs.waiting();
        let cap = match limits.long_prefill_token_threshold {
            0 => u32::MAX,
            // A request that is alone in the engine delays nobody.
            _ if held == 1 => u32::MAX,
            threshold if limits.long_prefill_adaptive => {
                threshold.max(limits.max_num_batched_tokens / (held.max(1) as u32))
            }
            threshold => threshold,
        };
        let throttle = self.step - self.last_prefill_step < u64::from(limits.prefill_interval)
            && self.last_prefill_step > 0
            && !self.last_release_left_waiting;
        let hold_prefills =
            throttle && self.running.iter().any(|&slot| !self.jobs.hot(slot).partial);
        StepRules { cap, hold_prefills }
    }

    /// Preempts those that a disturbance wants out, and as many as hold blocks that it wants.
    fn give_way(&mut self, batch: &mut Batch) {
        let mut wanted_out = std::mem::take(&mut self.preempt_next);
        while self.cache.withhold(self.withheld) > 0 || wanted_out > 0 {
            if self.running.is_empty() {
                break;
            }
            let at = self.victim();
            let victim = self.running.remove(at);
            self.preempt(victim);
            batch.preempted.push(self.jobs.hot(victim).id);
            wanted_out = wanted_out.saturating_sub(1);
        }
    }

    /// Gives running requests their missing tokens, in order of admission.
    fn grant_running(
        &mut self,
        rules: StepRules,
        phase: Phase,
        budget: &mut u32,
        batch: &mut Batch,
    ) {
        let mut at = 0;
        while at < self.running.len() && *budget > 0 {
            let slot = self.running[at];
            let hot = self.jobs.hot(slot);
            if phase == Phase::Prefill && !hot.partial {
                at += 1;
                continue;
            }
            let last_token_is_on_its_way =
                hot.pending > 0 && hot.computed + 2 - hot.pending >= hot.limit;
            if last_token_is_on_its_way || (rules.hold_prefills && hot.partial) {
                at += 1;
                continue;
            }
            let missing = hot.total + hot.pending - hot.computed;
            let tokens = missing
                .min(rules.cap)
                .min(*budget)
                .min(self.limits.max_model_len.saturating_sub(1 + hot.computed));
            if tokens == 0 {
                at += 1;
                continue;
            }
            if hot.computed + tokens > hot.room {
                match self.grow(slot, tokens, &mut at, budget, batch) {
                    Blocks::Granted => {}
                    Blocks::Preempted if self.limits.policy == Policy::Fcfs => break,
                    Blocks::Preempted => continue,
                }
            }
            self.publish(slot, tokens);
            let hot = self.jobs.hot(slot);
            batch.grants.push(Grant {
                slot,
                generation: hot.generation,
                tokens,
                prefill: hot.partial,
                yields: false,
            });
            *budget -= tokens;
            at += 1;
        }
    }

    /// Gets blocks for `tokens` more of `slot`, preempting as often as needed. `at` stays the index
    /// of `slot`, or, if it is preempted itself, becomes that of its successor.
    fn grow(
        &mut self,
        slot: Slot,
        tokens: u32,
        at: &mut usize,
        budget: &mut u32,
        batch: &mut Batch,
    ) -> Blocks {
        loop {
            let (hot, cold) = self.jobs.both_mut(slot);
            let wanted = (hot.computed + tokens).div_ceil(self.limits.block_size);
            let missing = wanted - cold.table.len() as u32;
            if missing <= self.cache.free() {
                self.cache.take(missing, &mut cold.table);
                hot.room = wanted * self.limits.block_size;
                return Blocks::Granted;
            }
            let victim_at = self.victim();
            let victim = self.running.remove(victim_at);
            if victim_at < *at {
                *at -= 1;
            }
            // Only under the priority policy can a victim have been served already.
            if let Some(served) = batch.grants.iter().position(|grant| grant.slot == victim) {
                *budget += batch.grants.remove(served).tokens;
            }
            self.preempt(victim);
            batch.preempted.push(self.jobs.hot(victim).id);
            if victim == slot {
                return Blocks::Preempted;
            }
        }
    }

    /// Where in `running` the one to be preempted is.
    fn victim(&self) -> usize {
        match self.limits.policy {
            Policy::Fcfs => self.running.len() - 1,
            Policy::Priority => (0..self.running.len())
                .max_by_key(|&at| self.jobs.place(self.running[at]))
                .expect("the request that wants blocks is running"),
        }
    }

    /// Its blocks are free, its output is kept, and it waits again.
    fn preempt(&mut self, slot: Slot) {
        let (hot, cold) = self.jobs.both_mut(slot);
        self.cache.release(&mut cold.table);
        hot.computed = 0;
        hot.room = 0;
        hot.partial = false;
        self.jobs.wait_again(slot);
        self.preemptions += 1;
    }

    /// Admits from the head of the waiting queue until something stops it.
    fn admit_waiting(
        &mut self,
        rules: StepRules,
        budget: &mut u32,
        batch: &mut Batch,
    ) -> AdmissionStop {
        loop {
            let Some(slot) = self.jobs.head() else { return AdmissionStop::QueueEmpty };
            if *budget == 0 {
                return AdmissionStop::BudgetSpent;
            }
            if self.running.len() >= self.limits.max_running {
                return AdmissionStop::SequenceLimit;
            }
            self.find_prefix(slot);
            let block_size = self.limits.block_size;
            let hit = self.hits.len() as u32 * block_size;
            let total = self.jobs.hot(slot).total;
            let left = total - hit;
            if rules.hold_prefills && left > 1 {
                return AdmissionStop::PrefillHeld;
            }
            let mut tokens = left.min(rules.cap);
            if !self.limits.chunked_prefill && tokens > *budget {
                return AdmissionStop::ChunkTooLarge;
            }
            tokens = tokens.min(*budget);
            let spare = if self.running.is_empty() { 0 } else { self.limits.watermark_blocks };
            let must_fit = if self.limits.reserve_full_isl {
                total.min(self.limits.max_model_len)
            } else {
                hit + tokens
            };
            let unused = self.hits.iter().filter(|&&block| !self.cache.has_users(block)).count();
            let needed =
                |tokens: u32| tokens.div_ceil(block_size) - self.hits.len() as u32 + unused as u32;
            let set_aside = match self.limits.output_blocks {
                OutputBlocks::AsNeeded => spare,
                OutputBlocks::Reserved => self.set_aside() + spare,
            };
            let must_fit = match self.limits.output_blocks {
                OutputBlocks::AsNeeded => must_fit,
                OutputBlocks::Reserved => self.longest(slot),
            };
            if needed(must_fit) + set_aside > self.cache.free()
                || needed(hit + tokens) + set_aside > self.cache.free()
            {
                return AdmissionStop::NoFreeBlocks;
            }
            self.admit(slot, hit, tokens, batch);
            *budget -= tokens;
        }
    }

    /// The most tokens that a request may store, as far as the server knows and the cache can hold.
    fn longest(&self, slot: Slot) -> u32 {
        let hot = self.jobs.hot(slot);
        let cache = self.cache.usable().saturating_mul(self.limits.block_size);
        hot.limit.min(self.limits.max_model_len).saturating_sub(1).max(hot.total).min(cache)
    }

    /// Blocks that are free, but promised to running requests.
    fn set_aside(&self) -> u32 {
        let missing = |&slot: &Slot| {
            let held = self.jobs.cold(slot).table.len() as u32;
            self.longest(slot).div_ceil(self.limits.block_size).saturating_sub(held)
        };
        self.running.iter().map(missing).sum()
    }

    /// Looks the request's prefix up: the cached blocks are left in `self.hits`. The last token is
    /// always computed.
    fn find_prefix(&mut self, slot: Slot) {
        self.hits.clear();
        let Some(chain) = &self.jobs.cold(slot).chain else { return };
        if !self.cache.caches_prefixes() {
            return;
        }
        let most = (self.jobs.hot(slot).total - 1) / self.limits.block_size;
        for &key in chain.iter().take(most as usize) {
            let Some(block) = self.cache.find(key) else { break };
            self.hits.push(block);
        }
    }

    fn admit(&mut self, slot: Slot, hit: u32, tokens: u32, batch: &mut Batch) {
        let (hot, cold) = self.jobs.both_mut(slot);
        for &block in &self.hits {
            self.cache.share(block);
            cold.table.push(block);
        }
        let wanted = (hit + tokens).div_ceil(self.limits.block_size);
        self.cache.take(wanted - self.hits.len() as u32, &mut cold.table);
        cold.published = self.hits.len() as u32;
        hot.computed = hit;
        hot.room = wanted * self.limits.block_size;
        hot.next_key_at = match &cold.chain {
            Some(chain) if self.cache.caches_prefixes() && chain.len() > self.hits.len() => {
                hit + self.limits.block_size
            }
            _ => u32::MAX,
        };
        let resumed = hot.state == JobState::Preempted;
        let (id, total, generation) = (hot.id, hot.total, hot.generation);
        if self.cache.caches_prefixes() {
            self.prefix_stats.count(resumed, total, hit);
        }
        self.jobs.admit_head();
        self.running.push(slot);
        self.publish(slot, tokens);
        batch.admitted.push(Admission { job: id, cached: Tokens::new(hit), resumed });
        batch.grants.push(Grant {
            slot,
            generation,
            tokens,
            prefill: total - hit > 1,
            yields: false,
        });
    }

    /// Keys for the blocks that `tokens` more will fill, as far as their content is known.
    fn publish(&mut self, slot: Slot, tokens: u32) {
        let hot = self.jobs.hot(slot);
        let known = (hot.computed + tokens).min(hot.total);
        if known >= hot.next_key_at {
            self.publish_up_to(slot, known);
        }
    }

    /// The step is decided: computed counts grow now, not when results arrive.
    fn commit(&mut self, batch: &mut Batch) {
        let asynchronous = u32::from(self.limits.scheduling == Scheduling::Asynchronous);
        let mut carries_prefill = false;
        let mut granted = 0;
        for grant in &mut batch.grants {
            let hot = self.jobs.hot_mut(grant.slot);
            let computed = hot.computed;
            hot.computed += grant.tokens;
            hot.partial = hot.computed < hot.total + hot.pending;
            grant.yields = !hot.partial;
            measure(&mut batch.shape, computed, grant);
            if grant.yields {
                hot.pending += asynchronous;
            }
            carries_prefill |= grant.prefill;
            granted += grant.tokens;
        }
        if carries_prefill {
            self.last_prefill_step = self.step;
        }
        batch.tokens = granted;
        assert!(granted <= self.limits.max_num_batched_tokens, "the budget is overdrawn");
        assert!(self.running.len() <= self.limits.max_running, "too many sequences run");
    }
}

/// Adds a grant after `computed` tokens to the sums that the step's duration depends on.
fn measure(shape: &mut StepShape, computed: u32, grant: &Grant) {
    shape.sequences += 1;
    shape.sampled += u32::from(grant.yields);
    let (computed, tokens) = (u64::from(computed), u64::from(grant.tokens));
    if tokens == 1 && grant.yields {
        shape.decodes += 1;
        shape.decode_context += computed + 1;
    } else {
        shape.chunks += 1;
        shape.chunk_tokens += tokens;
        shape.chunk_cached += computed;
        shape.chunk_pairs_doubled += u128::from(tokens) * u128::from(2 * computed + tokens);
    }
}
