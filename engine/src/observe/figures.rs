//! What is counted of one simulated GPU: where it is kept, read, and added up.
//!
//! Not what counts, and when: that is the [`Recorder`](super::Recorder)'s, the only writer.
//! [`Figures`] is what it counts into and others read, [`Reading`] the same at one moment. The
//! invariant: what is read is merged, too, or it does not compile.

use crate::observe::bounds;
use crate::observe::count::{Count, LagBuckets, LagCounts};
use crate::observe::ring::Ring;
use crate::sim::scheduler::core::AdmissionStop;
use crate::sim::scheduler::cost::Bound;
use crate::stats::histogram::{Histogram, Shard};
use crate::units::{SimSpan, Tokens};

/// How much the windows for exact percentiles keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSizes {
    /// Requests, for values per request.
    pub requests: usize,
    /// Tokens, for values per token.
    pub tokens: usize,
}

impl Default for WindowSizes {
    /// The last 10,000 requests and 100,000 tokens.
    fn default() -> Self {
        Self { requests: 10_000, tokens: 100_000 }
    }
}

/// What can bound a step, and what can end its admissions: a counter each.
pub(super) const BOUNDS: [Bound; 5] =
    [Bound::Compute, Bound::Memory, Bound::Communication, Bound::Host, Bound::Fixed];
pub(super) const STOPS: [AdmissionStop; 7] = [
    AdmissionStop::QueueEmpty,
    AdmissionStop::BudgetSpent,
    AdmissionStop::SequenceLimit,
    AdmissionStop::NoFreeBlocks,
    AdmissionStop::Preempted,
    AdmissionStop::PrefillHeld,
    AdmissionStop::ChunkTooLarge,
];

/// What is counted about one simulated GPU. Written by its thread alone, read by any.
#[derive(Debug)]
pub struct Figures {
    pub(super) waiting: Count,
    pub(super) running: Count,
    pub(super) waiting_preempted: Count,
    pub(super) usable_blocks: Count,
    pub(super) free_blocks: Count,
    pub(super) prefix_queries: Count,
    pub(super) prefix_hits: Count,
    pub(super) preemptions: Count,
    /// As vLLM counts them: when the request next outputs.
    pub(super) preemptions_told: Count,
    /// Requests that are held, by the recorder's own book.
    pub(super) held: Count,
    /// Prompts and outputs of those.
    pub(super) held_tokens: Count,
    /// Prompts of those that were never scheduled.
    pub(super) queued_tokens: Count,
    pub(super) prompt_tokens: Count,
    pub(super) cached_tokens: Count,
    pub(super) generation_tokens: Count,
    pub(super) stopped: Count,
    pub(super) reached_length: Count,
    pub(super) cancelled: Count,
    pub(super) queue_full: Count,
    pub(super) impossible: Count,
    pub(super) failed: Count,

    pub(super) first_token: Shard,
    pub(super) inter_token: Shard,
    pub(super) per_output_token: Shard,
    pub(super) end_to_end: Shard,
    pub(super) queue: Shard,
    pub(super) inference: Shard,
    pub(super) prefill: Shard,
    pub(super) decode: Shard,
    pub(super) iteration_tokens: Shard,
    pub(super) prompt_length: Shard,
    pub(super) generation_length: Shard,
    pub(super) max_tokens: Shard,
    pub(super) choices: Shard,
    pub(super) longest_choice: Shard,
    pub(super) request_preemptions: Shard,
    pub(super) prefill_computed: Shard,

    pub(super) step_duration: Shard,
    pub(super) step_sequences: Shard,
    pub(super) step_tokens: Shard,
    pub(super) steps_by_bound: [Count; BOUNDS.len()],
    pub(super) admission_stops: [Count; STOPS.len()],
    pub(super) last_stop: Count,
    pub(super) prefill_tokens_scheduled: Count,
    pub(super) decode_tokens_scheduled: Count,
    pub(super) busy_ns: Count,
    pub(super) arithmetic_ns: Count,
    pub(super) memory_ns: Count,

    pub(super) engine_lag: LagBuckets,
    pub(super) engine_lag_seconds: Shard,
    pub(super) windows: Windows,
}

/// The windows for exact percentiles, nanoseconds or tokens.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) first_token: Ring,
    pub(super) inter_token: Ring,
    pub(super) per_output_token: Ring,
    pub(super) end_to_end: Ring,
    pub(super) queue: Ring,
    pub(super) prefill: Ring,
    pub(super) decode: Ring,
    pub(super) engine_lag: Ring,
    pub(super) prompt_length: Ring,
    pub(super) generation_length: Ring,
}

/// Which window is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names of the measures")]
pub enum Measure {
    FirstToken,
    InterToken,
    PerOutputToken,
    EndToEnd,
    Queue,
    Prefill,
    Decode,
    EngineLag,
    PromptLength,
    GenerationLength,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::FirstToken,
        Self::InterToken,
        Self::PerOutputToken,
        Self::EndToEnd,
        Self::Queue,
        Self::Prefill,
        Self::Decode,
        Self::EngineLag,
        Self::PromptLength,
        Self::GenerationLength,
    ];
}

impl Figures {
    /// All zero, for a model of this context length.
    pub fn new(max_model_len: Tokens, windows: WindowSizes) -> Self {
        let tokens = || Shard::new(bounds::request_tokens(max_model_len));
        let (requests, per_token) = (|| Ring::new(windows.requests), || Ring::new(windows.tokens));
        Self {
            waiting: Count::default(),
            running: Count::default(),
            waiting_preempted: Count::default(),
            usable_blocks: Count::default(),
            free_blocks: Count::default(),
            prefix_queries: Count::default(),
            prefix_hits: Count::default(),
            preemptions: Count::default(),
            preemptions_told: Count::default(),
            held: Count::default(),
            held_tokens: Count::default(),
            queued_tokens: Count::default(),
            prompt_tokens: Count::default(),
            cached_tokens: Count::default(),
            generation_tokens: Count::default(),
            stopped: Count::default(),
            reached_length: Count::default(),
            cancelled: Count::default(),
            queue_full: Count::default(),
            impossible: Count::default(),
            failed: Count::default(),
            first_token: Shard::new(bounds::first_token()),
            inter_token: Shard::new(bounds::inter_token()),
            per_output_token: Shard::new(bounds::inter_token()),
            end_to_end: Shard::new(bounds::request()),
            queue: Shard::new(bounds::request()),
            inference: Shard::new(bounds::request()),
            prefill: Shard::new(bounds::request()),
            decode: Shard::new(bounds::request()),
            iteration_tokens: Shard::new(bounds::iteration_tokens()),
            prompt_length: tokens(),
            generation_length: tokens(),
            max_tokens: tokens(),
            choices: Shard::new(bounds::choices()),
            longest_choice: tokens(),
            request_preemptions: Shard::new(bounds::preemptions()),
            prefill_computed: tokens(),
            step_duration: Shard::new(bounds::step()),
            step_sequences: Shard::new(bounds::sequences()),
            step_tokens: Shard::new(bounds::iteration_tokens()),
            steps_by_bound: Default::default(),
            admission_stops: Default::default(),
            last_stop: Count::default(),
            prefill_tokens_scheduled: Count::default(),
            decode_tokens_scheduled: Count::default(),
            busy_ns: Count::default(),
            arithmetic_ns: Count::default(),
            memory_ns: Count::default(),
            engine_lag: LagBuckets::default(),
            engine_lag_seconds: Shard::new(bounds::lag()),
            windows: Windows {
                first_token: requests(),
                inter_token: per_token(),
                per_output_token: requests(),
                end_to_end: requests(),
                queue: requests(),
                prefill: requests(),
                decode: requests(),
                engine_lag: per_token(),
                prompt_length: requests(),
                generation_length: requests(),
            },
        }
    }

    /// The window of a measure, in nanoseconds or tokens.
    pub fn window(&self, measure: Measure) -> &Ring {
        let windows = &self.windows;
        match measure {
            Measure::FirstToken => &windows.first_token,
            Measure::InterToken => &windows.inter_token,
            Measure::PerOutputToken => &windows.per_output_token,
            Measure::EndToEnd => &windows.end_to_end,
            Measure::Queue => &windows.queue,
            Measure::Prefill => &windows.prefill,
            Measure::Decode => &windows.decode,
            Measure::EngineLag => &windows.engine_lag,
            Measure::PromptLength => &windows.prompt_length,
            Measure::GenerationLength => &windows.generation_length,
        }
    }

    /// What has been counted so far.
    pub fn read(&self) -> Reading {
        let at = |index: u64| STOPS.get(index as usize).copied().unwrap_or_default();
        Reading {
            running: self.running.get(),
            waiting: self.waiting.get(),
            waiting_preempted: self.waiting_preempted.get(),
            usable_blocks: self.usable_blocks.get(),
            free_blocks: self.free_blocks.get(),
            prefix_queries: self.prefix_queries.get(),
            prefix_hits: self.prefix_hits.get(),
            preemptions: self.preemptions.get(),
            preemptions_told: self.preemptions_told.get(),
            held: self.held.get(),
            held_tokens: self.held_tokens.get(),
            queued_tokens: self.queued_tokens.get(),
            prompt_tokens: self.prompt_tokens.get(),
            cached_tokens: self.cached_tokens.get(),
            generation_tokens: self.generation_tokens.get(),
            stopped: self.stopped.get(),
            reached_length: self.reached_length.get(),
            cancelled: self.cancelled.get(),
            queue_full: self.queue_full.get(),
            impossible: self.impossible.get(),
            failed: self.failed.get(),
            first_token: self.first_token.snapshot(),
            inter_token: self.inter_token.snapshot(),
            per_output_token: self.per_output_token.snapshot(),
            end_to_end: self.end_to_end.snapshot(),
            queue: self.queue.snapshot(),
            inference: self.inference.snapshot(),
            prefill: self.prefill.snapshot(),
            decode: self.decode.snapshot(),
            iteration_tokens: self.iteration_tokens.snapshot(),
            prompt_length: self.prompt_length.snapshot(),
            generation_length: self.generation_length.snapshot(),
            max_tokens: self.max_tokens.snapshot(),
            choices: self.choices.snapshot(),
            longest_choice: self.longest_choice.snapshot(),
            request_preemptions: self.request_preemptions.snapshot(),
            prefill_computed: self.prefill_computed.snapshot(),
            step_duration: self.step_duration.snapshot(),
            step_sequences: self.step_sequences.snapshot(),
            step_tokens: self.step_tokens.snapshot(),
            steps_by_bound: std::array::from_fn(|at| self.steps_by_bound[at].get()),
            admission_stops: std::array::from_fn(|at| self.admission_stops[at].get()),
            last_stop: at(self.last_stop.get()),
            prefill_tokens_scheduled: self.prefill_tokens_scheduled.get(),
            decode_tokens_scheduled: self.decode_tokens_scheduled.get(),
            busy: SimSpan::from_ns(self.busy_ns.get()),
            arithmetic: SimSpan::from_ns(self.arithmetic_ns.get()),
            memory: SimSpan::from_ns(self.memory_ns.get()),
            engine_lag: self.engine_lag.read(),
            engine_lag_seconds: self.engine_lag_seconds.snapshot(),
        }
    }
}

/// [`Figures`] at one moment, as plain values.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Requests in the running batch at the end of the last update.
    pub running: u64,
    /// Requests waiting at the end of the last update, preempted ones included.
    pub waiting: u64,
    /// Of those, preempted ones.
    pub waiting_preempted: u64,
    /// KV-cache blocks that can be handed out at all; 0 without a KV cache.
    pub usable_blocks: u64,
    /// Blocks without a user.
    pub free_blocks: u64,
    /// Prefix-cache look-ups, tokens.
    pub prefix_queries: u64,
    /// Of those, found.
    pub prefix_hits: u64,
    /// Preemptions, each when it happened.
    pub preemptions: u64,
    /// Preemptions as vLLM counts them: when the request next outputs a token.
    pub preemptions_told: u64,
    /// Requests taken and neither finished nor cancelled.
    pub held: u64,
    /// Tokens of those requests: their prompts, and what they have output.
    pub held_tokens: u64,
    /// Prompt tokens of those requests that were never scheduled.
    pub queued_tokens: u64,
    /// Prompt tokens, counted at the first token.
    pub prompt_tokens: u64,
    /// Of those, found in the prefix cache.
    pub cached_tokens: u64,
    /// Tokens released.
    pub generation_tokens: u64,
    /// Requests that finished by themselves.
    pub stopped: u64,
    /// Requests that finished at a limit.
    pub reached_length: u64,
    /// Requests whose client went away.
    pub cancelled: u64,
    /// Requests not taken since too many waited.
    pub queue_full: u64,
    /// Requests not taken since they could never run.
    pub impossible: u64,
    /// Requests lost to a crash of the GPU, or not taken while it was down.
    pub failed: u64,
    /// Arrival to first token released, s.
    pub first_token: Histogram,
    /// Between two tokens of a request as released, s.
    pub inter_token: Histogram,
    /// Decode time by output tokens but the first, s.
    pub per_output_token: Histogram,
    /// Arrival to last token released, s.
    pub end_to_end: Histogram,
    /// Taken to first scheduled, s.
    pub queue: Histogram,
    /// First scheduled to last token, s.
    pub inference: Histogram,
    /// First scheduled to first token, s.
    pub prefill: Histogram,
    /// First to last token, s.
    pub decode: Histogram,
    /// Per update with output: tokens released and prompt tokens computed of requests at their
    /// first token.
    pub iteration_tokens: Histogram,
    /// Prompt lengths of finished requests.
    pub prompt_length: Histogram,
    /// Output lengths of finished requests.
    pub generation_length: Histogram,
    /// `max_tokens` of finished requests.
    pub max_tokens: Histogram,
    /// `n` of prompts all of whose choices have finished.
    pub choices: Histogram,
    /// Output lengths of the longest choices of those.
    pub longest_choice: Histogram,
    /// Preemptions of finished requests.
    pub request_preemptions: Histogram,
    /// Prompt tokens computed, not found in the cache, of finished requests.
    pub prefill_computed: Histogram,
    /// Durations of steps on the simulated timeline, s.
    pub step_duration: Histogram,
    /// Requests that computed in a step.
    pub step_sequences: Histogram,
    /// Tokens that a step computed.
    pub step_tokens: Histogram,
    steps_by_bound: [u64; BOUNDS.len()],
    admission_stops: [u64; STOPS.len()],
    /// Why the last step admitted no more.
    pub last_stop: AdmissionStop,
    /// Prefill tokens computed by steps.
    pub prefill_tokens_scheduled: u64,
    /// Decode tokens computed by steps.
    pub decode_tokens_scheduled: u64,
    /// Simulated time that steps took.
    pub busy: SimSpan,
    /// Of it, what the arithmetic alone would have taken.
    pub arithmetic: SimSpan,
    /// Of it, what reading weights and KV cache alone would have taken.
    pub memory: SimSpan,
    /// Released minus scheduled, per token.
    pub engine_lag: LagCounts,
    /// The same as a histogram, s.
    pub engine_lag_seconds: Histogram,
}

impl Reading {
    /// Nothing counted yet.
    pub fn empty(max_model_len: Tokens) -> Self {
        Figures::new(max_model_len, WindowSizes { requests: 0, tokens: 0 }).read()
    }

    /// Adds another GPU's, or another thread's, figures.
    pub fn merge(&mut self, other: &Self) {
        // Without `..`, so that no figure can be forgotten here.
        let Self {
            running,
            waiting,
            waiting_preempted,
            usable_blocks,
            free_blocks,
            prefix_queries,
            prefix_hits,
            preemptions,
            preemptions_told,
            held,
            held_tokens,
            queued_tokens,
            prompt_tokens,
            cached_tokens,
            generation_tokens,
            stopped,
            reached_length,
            cancelled,
            queue_full,
            impossible,
            failed,
            first_token,
            inter_token,
            per_output_token,
            end_to_end,
            queue,
            inference,
            prefill,
            decode,
            iteration_tokens,
            prompt_length,
            generation_length,
            max_tokens,
            choices,
            longest_choice,
            request_preemptions,
            prefill_computed,
            step_duration,
            step_sequences,
            step_tokens,
            steps_by_bound,
            admission_stops,
            last_stop,
            prefill_tokens_scheduled,
            decode_tokens_scheduled,
            busy,
            arithmetic,
            memory,
            engine_lag,
            engine_lag_seconds,
        } = other;
        for (mine, more) in [
            (&mut self.running, running),
            (&mut self.waiting, waiting),
            (&mut self.waiting_preempted, waiting_preempted),
            (&mut self.usable_blocks, usable_blocks),
            (&mut self.free_blocks, free_blocks),
            (&mut self.prefix_queries, prefix_queries),
            (&mut self.prefix_hits, prefix_hits),
            (&mut self.preemptions, preemptions),
            (&mut self.preemptions_told, preemptions_told),
            (&mut self.held, held),
            (&mut self.held_tokens, held_tokens),
            (&mut self.queued_tokens, queued_tokens),
            (&mut self.prompt_tokens, prompt_tokens),
            (&mut self.cached_tokens, cached_tokens),
            (&mut self.generation_tokens, generation_tokens),
            (&mut self.stopped, stopped),
            (&mut self.reached_length, reached_length),
            (&mut self.cancelled, cancelled),
            (&mut self.queue_full, queue_full),
            (&mut self.impossible, impossible),
            (&mut self.failed, failed),
            (&mut self.prefill_tokens_scheduled, prefill_tokens_scheduled),
            (&mut self.decode_tokens_scheduled, decode_tokens_scheduled),
        ] {
            *mine += more;
        }
        for (mine, more) in [
            (&mut self.first_token, first_token),
            (&mut self.inter_token, inter_token),
            (&mut self.per_output_token, per_output_token),
            (&mut self.end_to_end, end_to_end),
            (&mut self.queue, queue),
            (&mut self.inference, inference),
            (&mut self.prefill, prefill),
            (&mut self.decode, decode),
            (&mut self.iteration_tokens, iteration_tokens),
            (&mut self.prompt_length, prompt_length),
            (&mut self.generation_length, generation_length),
            (&mut self.max_tokens, max_tokens),
            (&mut self.choices, choices),
            (&mut self.longest_choice, longest_choice),
            (&mut self.request_preemptions, request_preemptions),
            (&mut self.prefill_computed, prefill_computed),
            (&mut self.step_duration, step_duration),
            (&mut self.step_sequences, step_sequences),
            (&mut self.step_tokens, step_tokens),
            (&mut self.engine_lag_seconds, engine_lag_seconds),
        ] {
            mine.merge(more);
        }
        for (mine, more) in self.steps_by_bound.iter_mut().zip(steps_by_bound) {
            *mine += more;
        }
        for (mine, more) in self.admission_stops.iter_mut().zip(admission_stops) {
            *mine += more;
        }
        self.last_stop = *last_stop;
        self.busy += *busy;
        self.arithmetic += *arithmetic;
        self.memory += *memory;
        self.engine_lag.merge(engine_lag);
    }

    /// Requests that ended in an error: refused, or lost.
    pub fn errors(&self) -> u64 {
        self.queue_full + self.impossible + self.failed
    }

    /// Steps, by what took the largest part of their time.
    pub fn steps_by_bound(&self) -> impl Iterator<Item = (Bound, u64)> {
        BOUNDS.into_iter().zip(self.steps_by_bound)
    }

    /// Steps, by why they admitted no more requests.
    pub fn admission_stops(&self) -> impl Iterator<Item = (AdmissionStop, u64)> {
        STOPS.into_iter().zip(self.admission_stops)
    }

    /// Steps so far.
    pub fn steps(&self) -> u64 {
        self.steps_by_bound.iter().sum()
    }

    /// The used share of the KV cache, 0 to 1, as vLLM computes it.
    pub fn kv_usage(&self) -> f64 {
        match self.usable_blocks {
            0 => 0.0,
            usable => 1.0 - self.free_blocks as f64 / usable as f64,
        }
    }
}
