//! What is served: the configuration as all threads read it. But for sleeping and the memory behind
//! `/detokenize`, it never changes after the start.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llmsim_engine::observe::vllm::SleepState;
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::Policy;
use llmsim_engine::text::responses::Responses;
use llmsim_engine::text::token_ids::Vocabulary;
use llmsim_engine::units::{SimSpan, Tokens};

use crate::args::ApiKeys;

/// Everything that an answer depends on beside its request.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) models: Vec<Model>,
    pub(crate) responses: Responses,
    /// Seconds since 1970 at which the server started.
    pub(crate) started: u64,
    /// `system_fingerprint`: the same as long as answers are.
    pub(crate) fingerprint: String,
    pub(crate) limits: Limits,
    pub(crate) api_keys: ApiKeys,
    pub(crate) sleep: Arc<Sleep>,
    /// Behind `/detokenize`; taken by helpers only.
    pub(crate) vocabulary: Mutex<Vocabulary>,
}

/// Whether the server sleeps: the one thing here that a request can change.
#[derive(Debug, Default)]
pub(crate) struct Sleep(AtomicU8);

impl Sleep {
    pub(crate) fn set(&self, state: SleepState) {
        let level = match state {
            SleepState::Awake => 0,
            SleepState::WeightsOffloaded => 1,
            SleepState::DiscardAll => 2,
        };
        self.0.store(level, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> SleepState {
        match self.0.load(Ordering::Relaxed) {
            0 => SleepState::Awake,
            1 => SleepState::WeightsOffloaded,
            _ => SleepState::DiscardAll,
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.state() != SleepState::Awake
    }
}

impl Served {
    /// The model of requests that name none.
    pub(crate) fn first_model(&self) -> &Model {
        self.models.first().expect("a configuration has at least one model")
    }

    pub(crate) fn vocabulary(&self) -> MutexGuard<'_, Vocabulary> {
        self.vocabulary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model and the simulated GPUs behind it.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) context: Tokens,
    pub(crate) spec: EngineSpec,
    /// With prefix caching: tokens per block.
    pub(crate) cached_blocks: Option<NonZeroU32>,
    pub(crate) takes_priority: bool,
    /// One per replica.
    homes: Vec<Home>,
    next: AtomicUsize,
}

/// Where a simulated GPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// On the I/O thread of whoever asks: it needs no timeline.
    Here,
    /// On a GPU thread, in one of its seats.
    Thread { thread: u16, seat: u16 },
}

/// What a connection may ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Bytes of a body.
    pub(crate) body: usize,
    /// From the first byte of a request to the end of its head.
    pub(crate) head: SimSpan,
    /// From the end of a head to the end of its body.
    pub(crate) body_time: SimSpan,
    /// Between two requests.
    pub(crate) idle: SimSpan,
    /// How long a client may leave its answer unread.
    pub(crate) stall: SimSpan,
    /// Connections open at a time.
    pub(crate) connections: usize,
}

impl Model {
    pub(crate) fn new(name: String, context: Tokens, spec: EngineSpec, homes: Vec<Home>) -> Self {
        assert!(!homes.is_empty(), "a model has at least one replica");
        let (cached_blocks, takes_priority) = match &spec {
            EngineSpec::Scheduler(spec) => (
                if spec.prefix_caching { NonZeroU32::new(spec.block_size.get()) } else { None },
                spec.policy == Policy::Priority,
            ),
            EngineSpec::Instant | EngineSpec::FixedRate(_) => (None, false),
        };
        let next = AtomicUsize::new(0);
        Self { name, context, spec, cached_blocks, takes_priority, homes, next }
    }

    /// The replica for the next request: in turn.
    pub(crate) fn home(&self) -> Home {
        match self.homes[..] {
            [only] => only,
            _ => self.homes[self.next.fetch_add(1, Ordering::Relaxed) % self.homes.len()],
        }
    }

    /// Tokens that the KV cache of one replica holds.
    pub(crate) fn kv_tokens(&self) -> u64 {
        match &self.spec {
            EngineSpec::Scheduler(spec) => {
                // Block 0 is a placeholder.
                let blocks = u64::from(spec.num_blocks.get()).saturating_sub(1);
                blocks * u64::from(spec.block_size.get())
            }
            EngineSpec::Instant | EngineSpec::FixedRate(_) => u64::MAX,
        }
    }

    /// All its replicas.
    pub(crate) fn homes(&self) -> &[Home] {
        &self.homes
    }
}
