//! What one simulated GPU is seen to do, counted as it happens.
//!
//! A [`Recorder`] lives on the thread that drives the GPU and is told everything with the time at
//! which that thread *saw* it; [`Figures`] is what it counts into, and what others read. It draws no
//! conclusion and knows no metric name: `vllm` and `sim` beside it say what is exported. The
//! invariant: no time in here was planned. The stamps of events, which say when something was due,
//! are only used to tell steps apart and to measure the lag.

use std::sync::Arc;

use crate::observe::bounds;
use crate::observe::count::{Count, LagBuckets, LagCounts};
use crate::observe::ring::Ring;
use crate::seed::LookupMap;
use crate::sim::scheduler::core::AdmissionStop;
use crate::sim::scheduler::cost::{Bound, StepTerms};
use crate::sim::scheduler::{Gauges, StepLog};
use crate::sim::{Event, Finish, Refusal, What};
use crate::stats::histogram::{Histogram, Shard};
use crate::units::{JobId, SimSpan, SimTime, Tokens};

/// A request for a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id towards the engine.
    pub job: JobId,
    /// Prompt length.
    pub prompt: Tokens,
    /// The most tokens that may be generated.
    pub max_tokens: Tokens,
    /// When the request was complete.
    pub arrived: SimTime,
    /// When the GPU took it.
    pub queued: SimTime,
    /// The choices that it is one of.
    pub siblings: Siblings,
}

/// The requests that are made of one prompt, one for each of its choices (`n`). The first is submitted
/// before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The id of the first of them.
    pub first: JobId,
    /// How many they are, at least one.
    pub count: u32,
}

impl Siblings {
    /// A request that has none.
    pub fn none(job: JobId) -> Self {
        Self { first: job, count: 1 }
    }
}

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
const BOUNDS: [Bound; 5] =
    [Bound::Compute, Bound::Memory, Bound::Communication, Bound::Host, Bound::Fixed];
const STOPS: [AdmissionStop; 7] = [
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
    waiting: Count,
    running: Count,
    waiting_preempted: Count,
    usable_blocks: Count,
    free_blocks: Count,
    prefix_queries: Count,
    prefix_hits: Count,
    preemptions: Count,
    /// As vLLM counts them: when the request next outputs.
    preemptions_told: Count,
    /// Requests that are held, by the recorder's own book.
    held: Count,
    /// Prompts and outputs of those.
    held_tokens: Count,
    /// Prompts of those that were never scheduled.
    queued_tokens: Count,
    prompt_tokens: Count,
    cached_tokens: Count,
    generation_tokens: Count,
    stopped: Count,
    reached_length: Count,
    cancelled: Count,
    queue_full: Count,
    impossible: Count,
    failed: Count,

    first_token: Shard,
    inter_token: Shard,
    per_output_token: Shard,
    end_to_end: Shard,
    queue: Shard,
    inference: Shard,
    prefill: Shard,
    decode: Shard,
    iteration_tokens: Shard,
    prompt_length: Shard,
    generation_length: Shard,
    max_tokens: Shard,
    choices: Shard,
    longest_choice: Shard,
    request_preemptions: Shard,
    prefill_computed: Shard,

    step_duration: Shard,
    step_sequences: Shard,
    step_tokens: Shard,
    steps_by_bound: [Count; BOUNDS.len()],
    admission_stops: [Count; STOPS.len()],
    last_stop: Count,
    prefill_tokens_scheduled: Count,
    decode_tokens_scheduled: Count,
    busy_ns: Count,
    arithmetic_ns: Count,
    memory_ns: Count,

    engine_lag: LagBuckets,
    engine_lag_seconds: Shard,
    windows: Windows,
}

/// The windows for exact percentiles, nanoseconds or tokens.
#[derive(Debug)]
struct Windows {
    first_token: Ring,
    inter_token: Ring,
    per_output_token: Ring,
    end_to_end: Ring,
    queue: Ring,
    prefill: Ring,
    decode: Ring,
    engine_lag: Ring,
    prompt_length: Ring,
    generation_length: Ring,
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

/// What is known of a request that is under way.
#[derive(Clone, Copy, Debug)]
struct Life {
    arrived: SimTime,
    queued: SimTime,
    scheduled: SimTime,
    first_token: SimTime,
    last_token: SimTime,
    prompt: u32,
    max_tokens: u32,
    cached: u32,
    output: u32,
    preemptions: u32,
    /// Of these, not told yet.
    preemptions_untold: u32,
    is_scheduled: bool,
    siblings: Siblings,
}

/// The choices of one prompt, while some of them are under way.
#[derive(Clone, Copy, Debug)]
struct Choices {
    unfinished: u32,
    /// Output tokens of the longest that has finished.
    longest: u32,
}

/// Watches one simulated GPU.
#[derive(Debug)]
pub struct Recorder {
    figures: Arc<Figures>,
    lives: LookupMap<JobId, Life>,
    /// Of prompts with more than one choice, by the first; until one of them is given up.
    choices: LookupMap<JobId, Choices>,
    update: Update,
    /// Tokens with the same inter-token latency, one after another: a step's are alike.
    alike: (SimSpan, u64),
    lags: (SimSpan, u64),
    /// Tokens of the requests in `lives`, and of those never scheduled.
    held_tokens: u64,
    queued_tokens: u64,
}

/// The update (a step's results) whose tokens are coming in.
#[derive(Clone, Copy, Debug, Default)]
struct Update {
    /// When its tokens were due: all tokens of one step share it.
    due: SimTime,
    output: u64,
    prefill: u64,
}

impl Recorder {
    /// A recorder that counts into `figures`, whose only writer it must be.
    pub fn new(figures: Arc<Figures>) -> Self {
        Self {
            figures,
            lives: LookupMap::default(),
            choices: LookupMap::default(),
            update: Update::default(),
            alike: (SimSpan::ZERO, 0),
            lags: (SimSpan::ZERO, 0),
            held_tokens: 0,
            queued_tokens: 0,
        }
    }

    /// A request is on its way into the GPU's queue.
    pub fn submitted(&mut self, request: &Submitted) {
        self.lives.insert(
            request.job,
            Life {
                arrived: request.arrived,
                queued: request.queued,
                scheduled: SimTime::ZERO,
                first_token: SimTime::ZERO,
                last_token: SimTime::ZERO,
                prompt: request.prompt.get(),
                max_tokens: request.max_tokens.get(),
                cached: 0,
                output: 0,
                preemptions: 0,
                preemptions_untold: 0,
                is_scheduled: false,
                siblings: request.siblings,
            },
        );
        let Siblings { first, count } = request.siblings;
        if count > 1 && first == request.job {
            self.choices.insert(first, Choices { unfinished: count, longest: 0 });
        }
        self.held_tokens += u64::from(request.prompt.get());
        self.queued_tokens += u64::from(request.prompt.get());
        self.publish_held();
    }

    /// The GPU took the request at `at`, later than [`Submitted::queued`] said.
    pub fn queued(&mut self, job: JobId, at: SimTime) {
        if let Some(life) = self.lives.get_mut(&job) {
            life.queued = at;
        }
    }

    /// The GPU did not take a request.
    pub fn refused(&mut self, job: JobId, why: Refusal) {
        if let Some(life) = self.lives.remove(&job) {
            self.let_go(&life);
            self.give_up(&life);
        }
        match why {
            Refusal::QueueFull => self.figures.queue_full.add(1),
            Refusal::PromptTooLong | Refusal::NeverFits => self.figures.impossible.add(1),
            Refusal::Down => self.figures.failed.add(1),
        }
    }

    /// The client of a request went away; what is still said about it does not count.
    pub fn cancelled(&mut self, job: JobId) {
        if let Some(life) = self.lives.remove(&job) {
            self.figures.cancelled.add(1);
            self.let_go(&life);
            self.give_up(&life);
        }
    }

    /// Something was seen to happen at `now`. Call [`Self::settle`] after the last one.
    pub fn happened(&mut self, event: &Event, now: SimTime) {
        match event.what {
            What::Admitted { cached } => {
                if let Some(life) = self.lives.get_mut(&event.job)
                    && !life.is_scheduled
                {
                    life.is_scheduled = true;
                    life.scheduled = now;
                    life.cached = cached.get();
                    self.queued_tokens -= u64::from(life.prompt);
                }
            }
            What::Resumed { .. } => {}
            What::Preempted => {
                self.figures.preemptions.add(1);
                if let Some(life) = self.lives.get_mut(&event.job) {
                    life.preemptions += 1;
                    life.preemptions_untold += 1;
                }
            }
            What::Token { finish, .. } => self.token(event, finish, now),
            What::Lost => {
                if let Some(life) = self.lives.remove(&event.job) {
                    self.figures.failed.add(1);
                    self.let_go(&life);
                    self.give_up(&life);
                }
            }
        }
    }

    fn token(&mut self, event: &Event, finish: Option<Finish>, now: SimTime) {
        if event.at != self.update.due {
            self.end_update();
            self.update.due = event.at;
        }
        self.count_lag(now.saturating_since(event.at));
        let Some(life) = self.lives.get_mut(&event.job) else { return };
        let figures = &*self.figures;
        self.update.output += 1;
        if life.preemptions_untold > 0 {
            figures.preemptions_told.add(u64::from(life.preemptions_untold));
            life.preemptions_untold = 0;
        }
        life.output += 1;
        self.held_tokens += 1;
        if life.output == 1 {
            life.first_token = now;
            let computed = life.prompt - life.cached;
            self.update.prefill += u64::from(computed);
            figures.prompt_tokens.add(u64::from(life.prompt));
            figures.cached_tokens.add(u64::from(life.cached));
            let latency = now.saturating_since(life.arrived);
            figures.first_token.observe(latency.as_secs_f64());
            figures.windows.first_token.push(latency.as_ns(), 1);
        } else {
            let latency = now.saturating_since(life.last_token);
            if latency != self.alike.0 {
                count_inter_token(figures, self.alike);
                self.alike = (latency, 0);
            }
            self.alike.1 += 1;
        }
        life.last_token = now;
        if let Some(finish) = finish {
            let life = *life;
            self.lives.remove(&event.job);
            self.finished(&life, finish);
        }
    }

    /// A request is held no more.
    fn let_go(&mut self, life: &Life) {
        self.held_tokens -= u64::from(life.prompt) + u64::from(life.output);
        if !life.is_scheduled {
            self.queued_tokens -= u64::from(life.prompt);
        }
        self.publish_held();
    }

    fn publish_held(&self) {
        self.figures.held.set(self.lives.len() as u64);
        self.figures.held_tokens.set(self.held_tokens);
        self.figures.queued_tokens.set(self.queued_tokens);
    }

    /// Its siblings go with it, or have gone; vLLM counts nothing of a prompt that was aborted.
    fn give_up(&mut self, life: &Life) {
        if life.siblings.count > 1 {
            self.choices.remove(&life.siblings.first);
        }
    }

    /// Once all choices of a prompt have finished: how many they are, and how long the longest is.
    fn count_choices(&mut self, life: &Life) {
        let Siblings { first, count } = life.siblings;
        let mut longest = life.output;
        if count > 1 {
            let Some(choices) = self.choices.get_mut(&first) else { return };
            choices.longest = choices.longest.max(longest);
            choices.unfinished -= 1;
            if choices.unfinished > 0 {
                return;
            }
            longest = choices.longest;
            self.choices.remove(&first);
        }
        self.figures.choices.observe(f64::from(count));
        self.figures.longest_choice.observe(f64::from(longest));
    }

    fn finished(&mut self, life: &Life, finish: Finish) {
        self.let_go(life);
        self.count_choices(life);
        let figures = &*self.figures;
        match finish {
            Finish::Stop => figures.stopped.add(1),
            Finish::Length => figures.reached_length.add(1),
        }
        let end_to_end = life.last_token.saturating_since(life.arrived);
        let queue = life.scheduled.saturating_since(life.queued);
        let prefill = life.first_token.saturating_since(life.scheduled);
        let decode = life.last_token.saturating_since(life.first_token);
        let inference = life.last_token.saturating_since(life.scheduled);
        let per_token = match life.output {
            0 | 1 => 0.0,
            output => decode.as_secs_f64() / f64::from(output - 1),
        };
        figures.end_to_end.observe(end_to_end.as_secs_f64());
        figures.queue.observe(queue.as_secs_f64());
        figures.prefill.observe(prefill.as_secs_f64());
        figures.decode.observe(decode.as_secs_f64());
        figures.inference.observe(inference.as_secs_f64());
        figures.per_output_token.observe(per_token);
        figures.prompt_length.observe(f64::from(life.prompt));
        figures.generation_length.observe(f64::from(life.output));
        figures.max_tokens.observe(f64::from(life.max_tokens));
        figures.request_preemptions.observe(f64::from(life.preemptions));
        figures.prefill_computed.observe(f64::from(life.prompt - life.cached));
        let windows = &figures.windows;
        windows.end_to_end.push(end_to_end.as_ns(), 1);
        windows.queue.push(queue.as_ns(), 1);
        windows.prefill.push(prefill.as_ns(), 1);
        windows.decode.push(decode.as_ns(), 1);
        // With one output token there is no time per further one.
        if life.output > 1 {
            windows.per_output_token.push((per_token * 1e9).round() as u64, 1);
        }
        windows.prompt_length.push(u64::from(life.prompt), 1);
        windows.generation_length.push(u64::from(life.output), 1);
    }

    fn count_lag(&mut self, lag: SimSpan) {
        if lag != self.lags.0 {
            count_engine_lag(&self.figures, self.lags);
            self.lags = (lag, 0);
        }
        self.lags.1 += 1;
    }

    /// The tokens of a step are all in.
    fn end_update(&mut self) {
        let Update { output, prefill, .. } = std::mem::take(&mut self.update);
        if output > 0 {
            self.figures.generation_tokens.add(output);
            self.figures.iteration_tokens.observe((output + prefill) as f64);
        }
    }

    /// All that happened so far has been told.
    pub fn settle(&mut self) {
        self.end_update();
        count_inter_token(&self.figures, std::mem::take(&mut self.alike));
        count_engine_lag(&self.figures, std::mem::take(&mut self.lags));
        self.publish_held();
    }

    /// The state after an update. vLLM sets its gauges at no other time, so that they keep their
    /// values while a GPU idles.
    pub fn gauges(&mut self, gauges: &Gauges) {
        let figures = &*self.figures;
        figures.running.set(u64::from(gauges.running));
        figures.waiting.set(u64::from(gauges.waiting));
        figures.waiting_preempted.set(u64::from(gauges.waiting_preempted));
        figures.usable_blocks.set(u64::from(gauges.usable_blocks.get()));
        figures.free_blocks.set(u64::from(gauges.free_blocks.get()));
        figures.prefix_queries.set(gauges.prefix.queries);
        figures.prefix_hits.set(gauges.prefix.hits);
    }

    /// What steps did that have ended.
    pub fn steps(&mut self, log: &StepLog) {
        let figures = &*self.figures;
        for step in log.steps() {
            let tokens = step.prefill_tokens + step.decode_tokens;
            figures.step_duration.observe(step.time.total.as_secs_f64());
            figures.step_sequences.observe(f64::from(step.sequences));
            figures.step_tokens.observe(f64::from(tokens.get()));
            figures.steps_by_bound[place(&BOUNDS, step.time.bound)].add(1);
            let stop = place(&STOPS, step.admission);
            figures.admission_stops[stop].add(1);
            figures.last_stop.set(stop as u64);
            figures.prefill_tokens_scheduled.add(u64::from(step.prefill_tokens.get()));
            figures.decode_tokens_scheduled.add(u64::from(step.decode_tokens.get()));
            figures.busy_ns.add(step.time.total.as_ns());
            let StepTerms { weights, linear, kv_read, attention, .. } = step.time.terms;
            figures.arithmetic_ns.add((linear + attention).as_ns());
            figures.memory_ns.add((weights + kv_read).as_ns());
        }
    }
}

fn count_inter_token(figures: &Figures, (latency, times): (SimSpan, u64)) {
    if times > 0 {
        figures.inter_token.observe_times(latency.as_secs_f64(), times);
        figures.windows.inter_token.push(latency.as_ns(), times);
    }
}

fn count_engine_lag(figures: &Figures, (lag, times): (SimSpan, u64)) {
    if times > 0 {
        figures.engine_lag.record(lag, times);
        figures.engine_lag_seconds.observe_times(lag.as_secs_f64(), times);
        figures.windows.engine_lag.push(lag.as_ns(), times);
    }
}

fn place<T: PartialEq>(all: &[T], one: T) -> usize {
    all.iter().position(|other| *other == one).expect("the list names all of them")
}
