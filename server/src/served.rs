//! What is served: the configuration as all threads read it. But for sleeping and what clients have
//! left here (tokens behind `/detokenize`, adapters, stored responses), it never changes after the
//! start.
//!
//! A port of one replica serves a part of it, and that part is a [`Served`] like the whole. The
//! invariant: whoever answers a request sees what its port serves and nothing else, so that nobody
//! has to ask which port it came by.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llmsim_engine::observe::vllm::SleepState;
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::Policy;
use llmsim_engine::text::model_tokenizer::Tokenizer;
use llmsim_engine::text::responses::{Responses, Thinking};
use llmsim_engine::units::{SimSpan, SimTime, Tokens};

use crate::adapters::Adapters;
use crate::api::responses::Kept;
use crate::args::ApiKeys;
use crate::faults::Faults;
use crate::stored;
use crate::vocabulary::SharedVocabulary;

/// Everything that an answer depends on beside its request.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) models: Vec<Model>,
    pub(crate) responses: Arc<Responses>,
    /// Seconds since 1970 at which the server started.
    pub(crate) started: u64,
    /// `system_fingerprint`: the same as long as answers are.
    pub(crate) fingerprint: String,
    pub(crate) limits: Limits,
    pub(crate) api_keys: ApiKeys,
    pub(crate) sleep: Sleep,
    /// What of the server this is.
    pub(crate) scope: Scope,
    /// Behind `/detokenize`.
    pub(crate) vocabulary: Arc<SharedVocabulary>,
    /// Further names of the models, loaded by clients.
    pub(crate) adapters: Arc<Adapters>,
    /// Responses that can be had again.
    pub(crate) stored: Arc<Mutex<stored::Responses<Kept>>>,
    pub(crate) faults: Arc<Faults>,
    /// By place.
    pub(crate) downs: Arc<[Arc<Down>]>,
    /// Whether `/admin` is here.
    pub(crate) has_admin: bool,
}

/// What a port serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All models, each with all its replicas.
    Server,
    /// One replica, by its place among all.
    Replica(usize),
}

impl Scope {
    /// Whether the replica at this place is in it.
    pub(crate) fn has(self, place: usize) -> bool {
        match self {
            Self::Server => true,
            Self::Replica(only) => only == place,
        }
    }
}

/// Who of all replicas sleeps: the one thing here that a request can change.
#[derive(Debug)]
pub(crate) struct Sleepers(Box<[AtomicU8]>);

impl Sleepers {
    /// So many replicas, all awake.
    pub(crate) fn new(replicas: usize) -> Self {
        Self((0..replicas).map(|_| AtomicU8::new(0)).collect())
    }

    pub(crate) fn state(&self, place: usize) -> SleepState {
        let state = self.0[place].load(Ordering::Relaxed);
        match state {
            0 => SleepState::Awake,
            _ if state & DISCARDED == 0 => SleepState::WeightsOffloaded,
            _ => SleepState::DiscardAll,
        }
    }

    fn sleep(&self, place: usize, state: u8) {
        self.0[place].store(state, Ordering::Relaxed);
    }

    /// Wakes parts. If one of them is not asleep, none is woken, as in vLLM's executor; and whatever is
    /// asked, a replica all of whose parts are awake works again.
    fn wake(&self, place: usize, parts: u8) {
        let wake = |state: u8| {
            let left = if state & parts == parts { state & !parts } else { state };
            Some(if left & Parts::ALL == 0 { 0 } else { left })
        };
        self.0[place]
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, wake)
            .expect("there is a next state to each");
    }
}

/// What of a replica can sleep, as bits of its state; beside them, that it takes no requests and that
/// its weights are forgotten.
pub(crate) struct Parts;

impl Parts {
    pub(crate) const WEIGHTS: u8 = 1;
    pub(crate) const KV_CACHE: u8 = 2;
    pub(crate) const ALL: u8 = Self::WEIGHTS | Self::KV_CACHE;
}

const PAUSED: u8 = 4;
const DISCARDED: u8 = 8;

/// The replicas of a port, as far as sleeping goes.
#[derive(Clone, Debug)]
pub(crate) struct Sleep {
    all: Arc<Sleepers>,
    places: Vec<usize>,
}

impl Sleep {
    pub(crate) fn new(all: Arc<Sleepers>, places: Vec<usize>) -> Self {
        Self { all, places }
    }

    /// Puts all of them to sleep. At level 0 of vLLM's they only take no requests, at 2 they forget
    /// their weights, too.
    pub(crate) fn sleep(&self, level: u8) {
        let state = match level {
            0 => PAUSED,
            1 => PAUSED | Parts::ALL,
            _ => PAUSED | Parts::ALL | DISCARDED,
        };
        self.places.iter().for_each(|&place| self.all.sleep(place, state));
    }

    /// Wakes all of them.
    pub(crate) fn wake(&self) {
        self.places.iter().for_each(|&place| self.all.sleep(place, 0));
    }

    /// Wakes these of the [`Parts`] of each.
    pub(crate) fn wake_parts(&self, parts: u8) {
        self.places.iter().for_each(|&place| self.all.wake(place, parts));
    }

    /// Whether none of them is awake.
    pub(crate) fn is_asleep(&self) -> bool {
        self.places.iter().all(|&place| self.all.state(place) != SleepState::Awake)
    }

    fn is_awake(&self, replica: &Replica) -> bool {
        self.all.state(replica.place) == SleepState::Awake
    }
}

/// Until when a simulated GPU that has crashed takes no requests; its thread writes, those who deal
/// requests out read.
#[derive(Debug, Default)]
pub(crate) struct Down(AtomicU64);

impl Down {
    pub(crate) fn until(&self, instant: SimTime) {
        self.0.fetch_max(instant.as_ns(), Ordering::Relaxed);
    }

    pub(crate) fn is_up(&self, now: SimTime) -> bool {
        now.as_ns() >= self.0.load(Ordering::Relaxed)
    }
}

impl Served {
    /// What the port of one replica serves: this much of all.
    pub(crate) fn only(&self, place: usize) -> Self {
        let model = self.models.iter().find_map(|model| {
            let replica = model.replicas.iter().find(|replica| replica.place == place)?;
            Some(Model { replicas: vec![*replica], ..model.clone() })
        });
        let models = model.into_iter().collect();
        // The shared port has `/admin`.
        self.on_another_port(models, vec![place], Scope::Replica(place), false)
    }

    /// What the port serves that has `/admin` to itself.
    pub(crate) fn with_admin(&self) -> Self {
        self.on_another_port(self.models.clone(), self.sleep.places.clone(), Scope::Server, true)
    }

    /// The same server behind a port of its own, with `models` and the simulated GPUs at `places` in
    /// view. What is not listed here is shared by all ports.
    fn on_another_port(
        &self,
        models: Vec<Model>,
        places: Vec<usize>,
        scope: Scope,
        has_admin: bool,
    ) -> Self {
        Self {
            models,
            responses: Arc::clone(&self.responses),
            started: self.started,
            fingerprint: self.fingerprint.clone(),
            limits: self.limits,
            api_keys: self.api_keys.clone(),
            sleep: Sleep::new(Arc::clone(&self.sleep.all), places),
            scope,
            vocabulary: Arc::clone(&self.vocabulary),
            adapters: Arc::clone(&self.adapters),
            stored: Arc::clone(&self.stored),
            faults: Arc::clone(&self.faults),
            downs: Arc::clone(&self.downs),
            has_admin,
        }
    }

    /// The simulated GPU for the next request of a model: the one that was asked for, else in turn,
    /// sleeping ones left out, and those that have crashed as long as there are others.
    pub(crate) fn next_replica(
        &self,
        model: usize,
        rank: Option<usize>,
        now: SimTime,
    ) -> Option<Replica> {
        let Model { replicas, turns, .. } = &self.models[model];
        if let Some(rank) = rank {
            return replicas.get(rank).filter(|replica| self.sleep.is_awake(replica)).copied();
        }
        if let [only] = replicas[..] {
            return self.sleep.is_awake(&only).then_some(only);
        }
        let turn = turns.0.fetch_add(1, Ordering::Relaxed) % replicas.len();
        let (before, after) = replicas.split_at(turn);
        let mut awake = after.iter().chain(before).filter(|replica| self.sleep.is_awake(replica));
        let first = awake.next()?;
        let is_up = |replica: &&Replica| self.downs[replica.place].is_up(now);
        std::iter::once(first).chain(awake).find(is_up).or(Some(first)).copied()
    }

    /// Whether a model has no simulated GPU that is up.
    pub(crate) fn has_crashed(&self, now: SimTime) -> bool {
        let is_up = |replica: &Replica| self.downs[replica.place].is_up(now);
        self.models.iter().any(|model| !model.replicas.iter().any(is_up))
    }

    /// The model of requests that name none.
    pub(crate) fn first_model(&self) -> &Model {
        self.models.first().expect("a configuration has at least one model")
    }

    pub(crate) fn stored(&self) -> MutexGuard<'_, stored::Responses<Kept>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A model and the simulated GPUs behind it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) context: Tokens,
    pub(crate) tokenizer: Tokenizer,
    /// Whether its answers think before they speak.
    pub(crate) reasoning: Thinking,
    pub(crate) spec: EngineSpec,
    /// With prefix caching: tokens per block.
    pub(crate) cached_blocks: Option<NonZeroU32>,
    pub(crate) takes_priority: bool,
    /// GPUs that share each replica.
    pub(crate) tensor_parallel: u32,
    replicas: Vec<Replica>,
    turns: Turns,
}

/// Whose turn it is. A copy deals out on its own, from the first on.
#[derive(Debug, Default)]
struct Turns(AtomicUsize);

impl Clone for Turns {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// One simulated GPU of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    /// Its number among those of its model.
    pub(crate) number: u16,
    /// Its place among all of the server, in the order of the configuration.
    pub(crate) place: usize,
    pub(crate) home: Home,
}

/// Where a simulated GPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// On the I/O thread of whoever asks, in one of its seats: it needs no timeline.
    Here { seat: u16 },
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
    pub(crate) fn new(
        name: String,
        context: Tokens,
        spec: EngineSpec,
        replicas: Vec<Replica>,
    ) -> Self {
        assert!(!replicas.is_empty(), "a model has at least one replica");
        let (cached_blocks, takes_priority) = match &spec {
            EngineSpec::Scheduler(spec) => (
                if spec.prefix_caching { NonZeroU32::new(spec.block_size.get()) } else { None },
                spec.policy == Policy::Priority,
            ),
            EngineSpec::Instant | EngineSpec::FixedRate(_) => (None, false),
        };
        let (tokenizer, reasoning) = (Tokenizer::Regex, Thinking::Scripted);
        Self {
            name,
            context,
            tokenizer,
            reasoning,
            spec,
            cached_blocks,
            takes_priority,
            tensor_parallel: 1,
            replicas,
            turns: Turns::default(),
        }
    }

    /// The same with another tokenizer than `regex`.
    pub(crate) fn with_tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self { tokenizer, ..self }
    }

    /// The same with answers that think, or never do.
    pub(crate) fn with_reasoning(self, reasoning: Thinking) -> Self {
        Self { reasoning, ..self }
    }

    /// The same with each replica spread over so many GPUs.
    pub(crate) fn on_gpus(self, tensor_parallel: u32) -> Self {
        Self { tensor_parallel, ..self }
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

    /// Those of its simulated GPUs that are served here.
    pub(crate) fn replicas(&self) -> &[Replica] {
        &self.replicas
    }
}
