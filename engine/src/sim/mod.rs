//! The simulated GPU: a value that is told the time and gives back what happened.
//!
//! It is not a task, a thread or a clock, and it never sees text: only token counts and block
//! hashes cross the border. The invariant to keep in mind: an [`Event`] is stamped with the instant
//! at which it *happened*, never with the instant at which somebody asked, so a late caller does
//! not bend the timeline.
//!
//! Calling order: [`Engine::submit`] and [`Engine::cancel`] whenever something arrives, with the
//! time of the arrival; then [`Engine::advance`] at (or any time after) [`Engine::deadline`]. The
//! engine asserts that time never runs back.
//!
//! Inputs at an instant come before what is due at that instant, and how often `advance` is called
//! changes nothing: an input at `now` lets all happen that is due *before* `now` (it is kept for
//! the next `advance`), and the next `advance(now)` lets happen what is due at `now`. Only a caller
//! that advances to `now` and then hands in another input at the same `now` is too late for that
//! instant's plan, and hears of it with the next one.

pub mod journal;
pub mod scheduler;
pub mod solo;
pub mod virtual_time;

use std::sync::Arc;

use crate::units::{JobId, SimSpan, SimTime, Tokens};
use scheduler::{Gauges, Recording, StepLog};

/// A request as an engine sees it: how much of everything, never what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Unique among the jobs that this engine holds.
    pub id: JobId,
    /// Prompt length; at least 1.
    pub prompt: Tokens,
    /// The most tokens that may be generated; at least 1. Reaching it finishes with
    /// [`Finish::Length`].
    pub max_tokens: Tokens,
    /// The output token after which the answer ends by itself with [`Finish::Stop`] (vLLM: the
    /// end-of-sequence token is sampled); `None` if the answer is longer than `max_tokens`. Where
    /// it equals `max_tokens`, stop wins (vLLM's order).
    pub stop_after: Option<Tokens>,
    /// Lower is more urgent; only the priority policy looks at it.
    pub priority: i32,
    /// With prefix caching: the keys of the full blocks of prompt and output, in order; each covers
    /// its own tokens and all before it. Must cover floor((prompt + min(stop_after, max_tokens)) /
    /// block size) blocks. `None` takes no part in prefix caching.
    pub chain: Option<Arc<[BlockHash]>>,
}

/// The key of a full block: its tokens and the whole prefix before them (and the cache salt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub u64);

/// Something handed to an engine, with its time; what a live thread does, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// When it arrives.
    pub at: SimTime,
    /// What arrives.
    pub what: Arrives,
}

/// What arrives at an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrives {
    /// [`Engine::submit`].
    Submit(Job),
    /// [`Engine::cancel`].
    Cancel(JobId),
    /// [`Engine::reset_prefix_cache`].
    ResetPrefixCache,
    /// [`Engine::disturb`].
    Disturb(Disturbance),
    /// [`Engine::advance`]: only to say that inputs of the same instant came after it.
    Advance,
}

/// What became of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits or runs; its fate arrives as events.
    Queued,
    /// The engine does not hold it, and nothing further will be heard of it.
    Refused(Refusal),
}

/// Why a job was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// `max_num_queued_reqs` or the engine's own bound on held jobs is reached.
    QueueFull,
    /// The prompt leaves no room for an output token in `max_model_len`.
    PromptTooLong,
    /// The whole KV cache is smaller than the job.
    NeverFits,
    /// The GPU has crashed and is not up again.
    Down,
}

/// Something that happened to a job, stamped with when it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened on the simulated timeline.
    pub at: SimTime,
    /// To which job.
    pub job: JobId,
    /// What happened.
    pub what: What,
}

/// What happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Scheduled for the first time; the stamp ends its queue time.
    Admitted {
        /// Prompt tokens found in the prefix cache.
        cached: Tokens,
    },
    /// Scheduled again after a preemption.
    Resumed {
        /// Tokens found in the prefix cache this time.
        cached: Tokens,
    },
    /// Thrown out of the running batch; its blocks are free, its output is kept.
    Preempted,
    /// An output token exists. `index` counts from 1.
    Token {
        /// Which output token, from 1. Of those of one instant, the last may speak for all.
        index: Tokens,
        /// Set on the last one.
        finish: Option<Finish>,
    },
    /// The GPU crashed: the engine has forgotten the job, and nothing further happens to it.
    Lost,
}

/// Something that goes wrong with a simulated GPU, as an input with a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    /// Steps that begin from now on take this many thousandths of their time, until the next of
    /// these; [`NORMAL`] ends it.
    Slow {
        /// 3000: three times as long.
        thousandths: u32,
    },
    /// Nothing goes on for this long (a garbage collection, a reload of weights): the step in
    /// execution ends that much later.
    Pause {
        /// How long.
        span: SimSpan,
    },
    /// Only this share of the KV cache can be handed out, until the next of these; [`NORMAL`] ends
    /// it. Takes hold with the next plan, which preempts requests until the blocks are free.
    Shrink {
        /// Of the whole cache; at least one block stays.
        thousandths: u32,
    },
    /// The next plan begins by preempting so many of the running requests.
    Preempt {
        /// At most; [`ALL_REQUESTS`] for all.
        requests: u32,
    },
    /// All requests and all cached prefixes are lost, and none is taken for this long.
    Crash {
        /// How long until it is up again.
        down: SimSpan,
    },
}

impl std::fmt::Display for Disturbance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind();
        match *self {
            Self::Slow { thousandths } | Self::Shrink { thousandths } => {
                write!(f, "{kind}={}", f64::from(thousandths) / f64::from(NORMAL))
            }
            Self::Pause { span } | Self::Crash { down: span } => write!(f, "{kind}={span}"),
            Self::Preempt { requests: ALL_REQUESTS } => write!(f, "{kind}=all"),
            Self::Preempt { requests } => write!(f, "{kind}={requests}"),
        }
    }
}

/// The thousandths of a GPU that is not disturbed.
pub const NORMAL: u32 = 1_000;

/// A span that takes this many thousandths of its time.
pub(crate) fn stretched(span: SimSpan, thousandths: u32) -> SimSpan {
    if thousandths == NORMAL {
        return span;
    }
    let ns = u128::from(span.as_ns()) * u128::from(thousandths) / u128::from(NORMAL);
    SimSpan::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
}

/// More requests than an engine can hold.
pub const ALL_REQUESTS: u32 = u32::MAX;

impl Disturbance {
    /// The word for logs, metrics and journals.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Slow { .. } => "slow",
            Self::Pause { .. } => "pause",
            Self::Shrink { .. } => "shrink",
            Self::Preempt { .. } => "preempt",
            Self::Crash { .. } => "crash",
        }
    }

    /// Whether it is only the end of another.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Slow { thousandths: NORMAL } | Self::Shrink { thousandths: NORMAL })
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finish {
    /// The scripted answer was complete.
    Stop,
    /// `max_tokens` or the context length was reached.
    Length,
}

impl Finish {
    /// The word for logs and journals; also the API's `finish_reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

impl Refusal {
    /// The word for logs, metrics and journals.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::PromptTooLong => "prompt_too_long",
            Self::NeverFits => "never_fits",
            Self::Down => "down",
        }
    }
}

/// The engine of one simulated GPU.
#[derive(Debug)]
pub enum Engine {
    /// Every token at once.
    Instant(solo::Instant),
    /// Each job alone on its own timetable.
    FixedRate(solo::FixedRate),
    /// Continuous batching.
    Scheduler(Box<scheduler::Scheduler>),
}

/// How an engine is set up: one arm per `engine:` of `models.yml`.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineSpec {
    /// `engine: instant`.
    Instant,
    /// `engine: fixed_rate`.
    FixedRate(solo::FixedRateSpec),
    /// `engine: scheduler`.
    Scheduler(Box<scheduler::SchedulerSpec>),
}

impl EngineSpec {
    /// A fresh, idle engine.
    pub fn build(&self) -> Engine {
        match self {
            Self::Instant => Engine::Instant(solo::Instant::new()),
            Self::FixedRate(spec) => Engine::FixedRate(solo::FixedRate::new(*spec)),
            Self::Scheduler(spec) => {
                Engine::Scheduler(Box::new(scheduler::Scheduler::new(spec.as_ref().clone())))
            }
        }
    }
}

impl Engine {
    /// Hands a job over at `now`.
    pub fn submit(&mut self, now: SimTime, job: Job) -> Verdict {
        match self {
            Self::Instant(engine) => engine.submit(now, &job),
            Self::FixedRate(engine) => engine.submit(now, &job),
            Self::Scheduler(engine) => engine.submit(now, job),
        }
    }

    /// The client is gone: the job's blocks are free at once and nothing happens to it any more.
    /// Events of it that happened before `now` and were not fetched are still delivered. An unknown
    /// id (it has just finished) is no error.
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        match self {
            Self::Instant(engine) => engine.cancel(now, id),
            Self::FixedRate(engine) => engine.cancel(now, id),
            Self::Scheduler(engine) => engine.cancel(now, id),
        }
    }

    /// When the next thing happens; `None` if idle.
    pub fn deadline(&self) -> Option<SimTime> {
        match self {
            Self::Instant(engine) => engine.deadline(),
            Self::FixedRate(engine) => engine.deadline(),
            Self::Scheduler(engine) => engine.deadline(),
        }
    }

    /// Appends all that happened up to and including `now`, in order, each stamped with when it
    /// happened.
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        match self {
            Self::Instant(engine) => engine.advance(now, out),
            Self::FixedRate(engine) => engine.advance(now, out),
            Self::Scheduler(engine) => engine.advance(now, out),
        }
    }

    /// Like [`advance`](Self::advance), but a job that is alone may be left in the middle of its
    /// tokens once `most` of them exist: [`deadline`](Self::deadline) then says that there is more,
    /// and the next call goes on. In order for each job, not across jobs; and of its tokens, the last
    /// that exists may speak for all before it. Of use where the thread that calls has other things
    /// to do; only [`Instant`] can have so much to tell at one instant.
    pub fn advance_some(&mut self, now: SimTime, most: usize, out: &mut Vec<Event>) {
        match self {
            Self::Instant(engine) => engine.advance_some(now, most, out),
            Self::FixedRate(_) | Self::Scheduler(_) => self.advance(now, out),
        }
    }

    /// Forgets all cached prefixes. Works only while no job holds blocks (vLLM refuses otherwise),
    /// and says whether it did; engines without a prefix cache have nothing to forget.
    pub fn reset_prefix_cache(&mut self, now: SimTime) -> bool {
        match self {
            Self::Instant(_) | Self::FixedRate(_) => true,
            Self::Scheduler(engine) => engine.reset_prefix_cache(now),
        }
    }

    /// Something goes wrong at `now`. An engine without a KV cache has none that could shrink, and
    /// no batch that anyone could be thrown out of; an instant engine holds nothing for any time,
    /// and is never disturbed.
    pub fn disturb(&mut self, now: SimTime, what: Disturbance) {
        match self {
            Self::Instant(_) => {}
            Self::FixedRate(engine) => engine.disturb(now, what),
            Self::Scheduler(engine) => engine.disturb(now, what),
        }
    }

    /// The state of this moment. Solo engines have no queue and no blocks: whatever they hold runs.
    pub fn gauges(&self) -> Gauges {
        match self {
            Self::Instant(engine) => Gauges { running: engine.held() as u32, ..Gauges::default() },
            Self::FixedRate(engine) => {
                Gauges { running: engine.held() as u32, ..Gauges::default() }
            }
            Self::Scheduler(engine) => engine.gauges(),
        }
    }

    /// The state at the end of the last step, before the next was planned, which is when vLLM sets
    /// its gauges; of solo engines, the state of this moment.
    pub fn gauges_after_step(&self) -> Gauges {
        match self {
            Self::Instant(_) | Self::FixedRate(_) => self.gauges(),
            Self::Scheduler(engine) => engine.gauges_after_step(),
        }
    }

    /// Starts or stops recording what steps do; solo engines have no steps.
    pub fn record_steps(&mut self, recording: Recording) {
        if let Self::Scheduler(engine) = self {
            engine.record_steps(recording);
        }
    }

    /// Replaces the contents of `log` by the steps that ended since the last time.
    pub fn swap_steps(&mut self, log: &mut StepLog) {
        match self {
            Self::Instant(_) | Self::FixedRate(_) => log.clear(),
            Self::Scheduler(engine) => engine.swap_steps(log),
        }
    }
}
