//! Where all figures of a server come together: scrapes, summary, live page, verdict.
//!
//! Threads write their own shards; this reads them, once a second for the verdict and the rates, and
//! whenever somebody asks. The invariant: nothing here is called from a GPU thread, and from an I/O
//! thread only by way of a helper: adding up and rendering takes a millisecond.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use llmsim_engine::catalog;
use llmsim_engine::config::{Basis, ModelSpec};
use llmsim_engine::observe::count::LagCounts;
use llmsim_engine::observe::family::{Family, Format};
use llmsim_engine::observe::sim::{
    FidelityView, GpuMemory, GpuView, Load, ModelView, ProcessView, View,
};
use llmsim_engine::observe::verdict::{Judgement, Reason, Thresholds, Verdict, Window, judge};
use llmsim_engine::observe::vllm::{AdaptersView, CacheConfig, EngineView};
use llmsim_engine::observe::{Delivered, Figures, Measure, Reading, WindowSizes, sim, vllm};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::units::{Bytes, SimSpan, SimTime, Tokens};
use llmsim_engine::wire::orca;
use llmsim_engine::wire::probes::ReplicaLoad;

use crate::adapters;
use crate::args::{MetricsSettings, SummarySizes};
use crate::clock::{self, Clock};
use crate::faults::Faults;
use crate::metrics::export;
use crate::metrics::process::{self, Threads};
use crate::metrics::record::{GpuShard, IoShard, Outcome};
use crate::served::{Scope, Sleepers};
use crate::tls::Handshake;

/// Everything that is observed of a server.
#[derive(Debug)]
pub(crate) struct Observatory {
    pub(super) clock: Clock,
    pub(super) faults: Arc<Faults>,
    /// Shared with those who serve.
    pub(crate) sleepers: Arc<Sleepers>,
    pub(super) models: Vec<Model>,
    pub(super) seats: Vec<Observed>,
    /// All replicas, in the order of the configuration.
    pub(super) places: Vec<Place>,
    pub(super) io: Vec<Arc<IoShard>>,
    gpu: Vec<Arc<GpuShard>>,
    pub(super) settings: MetricsSettings,
    pub(super) summary: SummarySizes,
    started: f64,
    pub(super) driver: OnceLock<Driver>,
    state: Mutex<State>,
}

/// How the I/O threads wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    /// `io_uring` or `epoll`.
    pub(crate) name: &'static str,
    /// It is not the one that was to be had.
    pub(crate) is_fallback: bool,
}

/// What does not change about a model.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: String,
    pub(super) engine: &'static str,
    pub(super) cache: Option<CacheConfig>,
    pub(super) memory: Option<GpuMemory>,
    pub(super) max_running: u32,
    context: Tokens,
}

/// A simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) model: usize,
    pub(super) replica: u16,
}

/// A simulated GPU, or one thread's part of it.
#[derive(Debug)]
pub(crate) struct Observed {
    /// The model's place in the configuration.
    pub(crate) model: usize,
    pub(crate) replica: u16,
    pub(crate) figures: Arc<Figures>,
}

/// What is remembered from second to second.
#[derive(Debug)]
pub(super) struct State {
    pub(super) history: VecDeque<Tick>,
    pub(super) verdict: Verdict,
    /// The window that the verdict rests on.
    pub(super) window: Window,
    /// p99 of the token lag over that window, by model.
    pub(super) lag_p99: Vec<Option<SimSpan>>,
    pub(super) baseline: Baseline,
}

/// One look at everything.
#[derive(Debug)]
pub(super) struct Tick {
    pub(super) at: SimTime,
    pub(super) threads: Threads,
    /// By seat.
    pub(super) seats: Vec<Progress>,
    /// By model: lag of the engine, lag of the token.
    lags: Vec<[LagCounts; 2]>,
    /// By I/O thread and place: values pushed into the lag window.
    pub(super) delivered: Vec<Vec<u64>>,
}

/// Where a seat's counters and windows stood.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) prompt_tokens: u64,
    pub(super) generation_tokens: u64,
    pub(super) finished: u64,
    pub(super) preemptions: u64,
    pub(super) steps: u64,
    /// Sums over all steps: sequences, tokens, seconds.
    pub(super) step_sums: [f64; 3],
    pub(super) bounds: Vec<(&'static str, u64)>,
    pub(super) load: [SimSpan; 3],
    /// Values pushed, by measure.
    pub(super) pushed: [u64; Measure::ALL.len()],
}

impl Progress {
    pub(super) fn of(figures: &Figures, reading: &Reading) -> Self {
        Self {
            prompt_tokens: reading.prompt_tokens,
            generation_tokens: reading.generation_tokens,
            finished: reading.stopped + reading.reached_length,
            preemptions: reading.preemptions,
            steps: reading.steps(),
            step_sums: [
                reading.step_sequences.sum(),
                reading.step_tokens.sum(),
                reading.step_duration.sum(),
            ],
            bounds: reading
                .steps_by_bound()
                .map(|(bound, count)| (bound.as_str(), count))
                .collect(),
            load: Load::sums(reading),
            pushed: Measure::ALL.map(|measure| figures.window(measure).pushed()),
        }
    }
}

/// Where everything stood when the summary was reset.
#[derive(Debug)]
pub(super) struct Baseline {
    pub(super) at: SimTime,
    /// By seat.
    pub(super) seats: Vec<(Reading, Progress)>,
    /// By I/O thread and place.
    pub(super) delivered: Vec<Vec<u64>>,
}

/// One replica of a model, its threads' parts added up.
pub(super) struct Replica {
    /// Its place among all.
    pub(super) place: usize,
    pub(super) model: usize,
    pub(super) replica: u16,
    pub(super) reading: Reading,
    /// Its seats.
    pub(super) seats: Vec<usize>,
}

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);

/// Over how many seconds the shares of a GPU's time are taken.
pub(super) const LOAD_TICKS: usize = 5;

/// Over how many seconds the live page's percentiles are taken.
pub(super) const LIVE_SECONDS: u64 = 60;

/// What threads count into, beside the figures of simulated GPUs.
#[derive(Debug)]
pub(crate) struct Shards {
    pub(crate) io: Vec<Arc<IoShard>>,
    pub(crate) gpu: Vec<Arc<GpuShard>>,
}

impl Observatory {
    pub(crate) fn new(
        clock: Clock,
        models: &[ModelSpec],
        seats: Vec<Observed>,
        Shards { io, gpu }: Shards,
        settings: MetricsSettings,
        summary: SummarySizes,
        faults: Arc<Faults>,
    ) -> Self {
        let models: Vec<Model> = models.iter().map(Model::of).collect();
        let mut places = Vec::new();
        for Observed { model, replica, .. } in &seats {
            let place = Place { model: *model, replica: *replica };
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
        let now = clock.now();
        let baseline = Baseline { at: now, seats: Vec::new(), delivered: Vec::new() };
        let observatory = Self {
            clock,
            faults,
            sleepers: Arc::new(Sleepers::new(places.len())),
            seats,
            places,
            io,
            gpu,
            settings,
            summary,
            started: clock::unix_time(),
            driver: OnceLock::new(),
            state: Mutex::new(State {
                history: VecDeque::new(),
                verdict: Verdict::new(now),
                window: Window::default(),
                lag_p99: models.iter().map(|_| None).collect(),
                baseline,
            }),
            models,
        };
        observatory.reset_summary();
        observatory
    }

    /// Figures for a model's simulated GPU.
    pub(crate) fn figures(model: &ModelSpec, summary: SummarySizes) -> Arc<Figures> {
        let windows =
            WindowSizes { requests: summary.request_samples, tokens: summary.token_samples };
        Arc::new(Figures::new(model.context_length, windows))
    }

    /// Says which driver the I/O threads got.
    pub(crate) fn set_driver(&self, driver: Driver) {
        self.driver.get_or_init(|| driver);
    }

    /// Looks once a second until told to stop; to be called on a thread of its own.
    pub(crate) fn run(&self, stop: &AtomicBool) {
        self.tick();
        while !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(TICK);
            for line in self.tick().into_iter().chain(self.faults.log.take_lines()) {
                eprintln!("llmsimulator: {line}");
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes everything in; returns what is worth a line in the log.
    fn tick(&self) -> Option<String> {
        let tick = self.look();
        let mut state = self.state();
        let state = &mut *state;
        let window = SimSpan::from_ns(duration_ns(self.settings.fidelity_window));
        let seen = since(&state.history, tick.at, window).map(|from| self.window(from, &tick));
        let line = seen.and_then(|(window, lag_p99)| {
            state.lag_p99 = lag_p99;
            state.window = window;
            let judgement = judge(&window, &self.thresholds());
            let turned = state.verdict.update(tick.at, judgement);
            turned.then(|| {
                let judgement = state.verdict.judgement();
                verdict_line(judgement, &window, self.settings.fidelity_window, &self.thresholds())
            })
        });
        let keep = self
            .settings
            .fidelity_window
            .max(self.summary.rate_window)
            .max(Duration::from_secs(LIVE_SECONDS))
            .as_secs() as usize
            + 2;
        state.history.push_back(tick);
        while state.history.len() > keep {
            state.history.pop_front();
        }
        line
    }

    fn look(&self) -> Tick {
        let mut lags: Vec<[LagCounts; 2]> =
            self.models.iter().map(|_| Default::default()).collect();
        let mut seats = Vec::with_capacity(self.seats.len());
        for seat in &self.seats {
            let reading = seat.figures.read();
            lags[seat.model][0].merge(&reading.engine_lag);
            seats.push(Progress::of(&seat.figures, &reading));
        }
        for shard in &self.io {
            for (place, delivery) in self.places.iter().zip(&shard.replicas) {
                lags[place.model][1].merge(&delivery.read().lag);
            }
        }
        let (at, threads, delivered) = (self.clock.now(), Threads::look(), self.pushed());
        Tick { at, threads, seats, lags, delivered }
    }

    /// Values pushed into the lag windows, by I/O thread and place.
    fn pushed(&self) -> Vec<Vec<u64>> {
        let of = |shard: &Arc<IoShard>| {
            shard.replicas.iter().map(|delivery| delivery.window().pushed()).collect()
        };
        self.io.iter().map(of).collect()
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        let lag = SimSpan::from_ns(duration_ns(self.settings.fidelity_lag));
        Thresholds { lag, ..Thresholds::default() }
    }

    /// What happened between two looks: the worst model counts.
    fn window(&self, from: &Tick, to: &Tick) -> (Window, Vec<Option<SimSpan>>) {
        let elapsed = to.at.saturating_since(from.at);
        let mut window = Window {
            starved: to.threads.starved_since(&from.threads, elapsed.as_ns()),
            involuntary_switches: to.threads.switches_since(&from.threads) as f64
                / elapsed.as_secs_f64().max(1e-9),
            driver_fallback: self.driver.get().is_some_and(|driver| driver.is_fallback),
            ..Window::default()
        };
        let least = self.thresholds().least_tokens;
        let mut p99 = Vec::new();
        for (now, then) in to.lags.iter().zip(&from.lags) {
            let [engine, token] = [0, 1].map(|index| now[index].since(&then[index]));
            p99.push(token.percentile(99.0));
            window.tokens = window.tokens.max(engine.count());
            for (lag, worst) in
                [(engine, &mut window.engine_lag_p99), (token, &mut window.token_lag_p99)]
            {
                if lag.count() >= least {
                    *worst = (*worst).max(lag.percentile(99.0).unwrap_or_default());
                }
            }
        }
        (window, p99)
    }

    /// Adds up what threads did for each replica that is in view.
    pub(super) fn replicas(&self, scope: Scope) -> Vec<Replica> {
        let in_view = self.places.iter().enumerate().filter(|(place, _)| scope.has(*place));
        let replicas = in_view.map(|(place, &Place { model, replica })| {
            let mut reading = Reading::empty(self.models[model].context);
            let mut seats = Vec::new();
            for (index, seat) in self.seats.iter().enumerate() {
                if (seat.model, seat.replica) == (model, replica) {
                    reading.merge(&seat.figures.read());
                    seats.push(index);
                }
            }
            Replica { place, model, replica, reading, seats }
        });
        replicas.collect()
    }

    /// The models that are in view: their places in the configuration.
    pub(super) fn models_in(&self, scope: Scope) -> std::ops::Range<usize> {
        match scope {
            Scope::Server => 0..self.models.len(),
            Scope::Replica(place) => {
                let model = self.places[place].model;
                model..model + 1
            }
        }
    }

    /// The replicas of a model that are in view: their places.
    pub(super) fn places_of(&self, model: usize, scope: Scope) -> impl Iterator<Item = usize> {
        let places = self.places.iter().enumerate();
        let of_it = places.filter(move |(place, known)| known.model == model && scope.has(*place));
        of_it.map(|(place, _)| place)
    }

    /// Generations being served now.
    pub(crate) fn in_flight(&self) -> u64 {
        self.io.iter().map(|shard| shard.in_flight.get()).sum()
    }

    /// What each replica in view holds now.
    pub(crate) fn loads(&self, scope: Scope) -> Vec<ReplicaLoad> {
        let load = |replica: Replica| {
            let Replica { model, reading, .. } = replica;
            // As SGLang counts: what the cache holds for users, and the prompts that wait to get in.
            let tokens = match self.models[model].cache {
                Some(cache) => {
                    let used = reading.usable_blocks.saturating_sub(reading.free_blocks);
                    used * u64::from(cache.block_size.get()) + reading.queued_tokens
                }
                None => reading.held_tokens,
            };
            ReplicaLoad { requests: reading.held, waiting: reading.waiting, tokens }
        };
        self.replicas(scope).into_iter().map(load).collect()
    }

    /// What a gateway is told of the load of the model with this number among those in view.
    pub(crate) fn load_of(&self, scope: Scope, model: usize) -> orca::Load {
        let models = self.models_in(scope);
        let readings = self.by_model(&self.replicas(scope));
        let reading = &readings[models][model];
        orca::Load { waiting: reading.waiting, kv_usage: reading.kv_usage() }
    }

    /// Adds up the replicas of each model.
    pub(super) fn by_model(&self, replicas: &[Replica]) -> Vec<Reading> {
        let mut models: Vec<_> =
            self.models.iter().map(|model| Reading::empty(model.context)).collect();
        for replica in replicas {
            models[replica.model].merge(&replica.reading);
        }
        models
    }

    /// The body of a scrape.
    pub(crate) fn scrape(&self, format: Format, scope: Scope, adapters: &[String]) -> String {
        let replicas = self.replicas(scope);
        let mut vllms = Vec::new();
        if self.settings.families.vllm {
            let engines: Vec<EngineView<'_>> = replicas
                .iter()
                .map(|replica| EngineView {
                    model: &self.models[replica.model].name,
                    // By its own port a replica is an engine of its own, and such a one is 0.
                    replica: if scope == Scope::Server { replica.replica } else { 0 },
                    reading: &replica.reading,
                    cache: self.models[replica.model].cache,
                    sleep: self.sleepers.state(replica.place),
                })
                .collect();
            let adapters = AdaptersView { most: adapters::MOST, running: adapters };
            vllms = vllm::families(&engines, adapters, clock::unix_time());
        }
        let mut own = Vec::new();
        if self.settings.families.llm_sim {
            own = self.own_families(&replicas, scope);
        }
        match format {
            Format::OpenMetrics => format.write(vllms.iter().chain(&own)),
            Format::Prometheus => {
                let mut text = format.write(&vllms);
                text.push_str(&export::text(own).expect("a test shows that all can be registered"));
                text
            }
        }
    }

    fn own_families(&self, replicas: &[Replica], scope: Scope) -> Vec<Family> {
        let readings = self.by_model(replicas);
        let mut delivered: Vec<_> = self.models.iter().map(|_| Delivered::empty()).collect();
        for shard in &self.io {
            for replica in replicas {
                delivered[replica.model].merge(&shard.replicas[replica.place].read());
            }
        }
        let threads = Threads::look();
        let state = self.state();
        let models = self.models_in(scope).map(|place| ModelView {
            model: &self.models[place].name,
            reading: &readings[place],
            delivered: &delivered[place],
        });
        let stepping = replicas.iter().filter(|replica| self.models[replica.model].has_steps());
        let gpus = stepping.map(|replica| {
            let model = &self.models[replica.model];
            GpuView {
                model: &model.name,
                replica: replica.replica,
                reading: &replica.reading,
                memory: model.memory,
                load: load(&state.history, &replica.seats),
            }
        });
        let p99 = self.models_in(scope).map(|place| (&self.models[place], &state.lag_p99[place]));
        let sum = |of: fn(&IoShard) -> u64| self.io.iter().map(|shard| of(shard)).sum();
        let handshakes = Handshake::ALL.iter().map(|&ended| {
            let counts = self.io.iter().map(|shard| shard.handshakes[ended as usize].get());
            (ended.as_str(), counts.sum())
        });
        let answers = Outcome::ALL.iter().map(|&outcome| {
            (outcome.as_str(), self.io.iter().map(|shard| shard.ended(outcome)).sum())
        });
        let view = View {
            models: models.collect(),
            gpus: gpus.collect(),
            process: ProcessView {
                version: env!("CARGO_PKG_VERSION"),
                cpu_seconds: Threads::seconds(&threads.cpu_ns),
                starved_seconds: Threads::seconds(&threads.waited_ns),
                resident_bytes: process::resident_bytes(),
                open_files: process::open_files(),
                started: self.started,
                io_driver: self.driver.get().map_or("", |driver| driver.name),
                connections: sum(|shard| shard.connections.get()),
                accepted: sum(|shard| shard.accepted.get()),
                turned_away: sum(|shard| shard.turned_away.get()),
                answers: answers.collect(),
                tls_handshakes: handshakes.collect(),
                merged_tokens: self.gpu.iter().map(|shard| shard.merged_tokens.get()).sum(),
            },
            fidelity: FidelityView {
                judgement: state.verdict.judgement(),
                lag_p99: p99
                    .filter_map(|(model, lag)| Some((model.name.as_str(), (*lag)?)))
                    .collect(),
                threshold: self.thresholds().lag,
            },
        };
        let mut families = sim::families(&view);
        families.push(self.faults.log.family());
        families
    }

    /// Starts a fresh period of the summary.
    pub(crate) fn reset_summary(&self) {
        let seats = self.seats.iter().map(|seat| {
            let reading = seat.figures.read();
            let progress = Progress::of(&seat.figures, &reading);
            (reading, progress)
        });
        let baseline =
            Baseline { at: self.clock.now(), seats: seats.collect(), delivered: self.pushed() };
        self.state().baseline = baseline;
    }
}

/// The oldest look that is at most `span` old, or the newest if none is.
pub(super) fn since(history: &VecDeque<Tick>, now: SimTime, span: SimSpan) -> Option<&Tick> {
    // A look comes a little later than asked for; half a second is forgiven.
    let span = span + SimSpan::from_ms(500);
    history.iter().find(|tick| now.saturating_since(tick.at) <= span).or_else(|| history.back())
}

/// The shares of a GPU's time over the last seconds.
pub(super) fn load(history: &VecDeque<Tick>, seats: &[usize]) -> Load {
    let Some(last) = history.back() else { return Load::default() };
    let first = &history[history.len().saturating_sub(LOAD_TICKS + 1)];
    let sums = |tick: &Tick| {
        seats.iter().fold([SimSpan::ZERO; 3], |sum, &seat| {
            std::array::from_fn(|index| sum[index] + tick.seats[seat].load[index])
        })
    };
    Load::between(sums(first), sums(last), last.at.saturating_since(first.at))
}

/// What the log says when the verdict turns.
fn verdict_line(
    judgement: &Judgement,
    window: &Window,
    over: Duration,
    thresholds: &Thresholds,
) -> String {
    let (said, why) = match judgement.is_ok() {
        true => ("the timeline is kept again", String::new()),
        false => {
            let words = judgement.reasons.iter().map(|reason: &Reason| reason.as_str());
            ("the timeline is NOT kept", format!(" ({})", words.collect::<Vec<_>>().join(", ")))
        }
    };
    let over = over.as_secs();
    // A percentile of too few tokens was not taken.
    if window.token_lag_p99 == SimSpan::ZERO {
        return format!(
            "{said}{why}: over the last {over} s the token lag was not measured, since fewer than \
             {} tokens were streamed",
            thresholds.least_tokens
        );
    }
    let Window { engine_lag_p99, token_lag_p99, .. } = window;
    format!(
        "{said}{why}: over the last {over} s the p99 token lag was {token_lag_p99}, of it the \
         engine's {engine_lag_p99}; good is up to {}",
        thresholds.lag,
    )
}

fn duration_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

impl Model {
    fn of(spec: &ModelSpec) -> Self {
        let (engine, cache, max_running) = match &spec.engine {
            EngineSpec::Instant => ("instant", None, 0),
            EngineSpec::FixedRate(_) => ("fixed_rate", None, 0),
            EngineSpec::Scheduler(scheduler) => {
                let cache = CacheConfig {
                    block_size: scheduler.block_size,
                    num_blocks: scheduler.num_blocks,
                    prefix_caching: scheduler.prefix_caching,
                    gpu_memory_utilization: memory_share(spec),
                };
                let most = scheduler.max_num_active_seqs.unwrap_or(u32::MAX);
                ("scheduler", Some(cache), scheduler.max_num_seqs.min(most))
            }
        };
        Self {
            name: spec.name.clone(),
            engine,
            cache,
            memory: memory(spec),
            max_running,
            context: spec.context_length,
        }
    }

    pub(super) fn has_steps(&self) -> bool {
        self.cache.is_some()
    }
}

/// The share of its memory that a GPU's engine may use.
fn memory_share(spec: &ModelSpec) -> f64 {
    match &spec.basis {
        Some(Basis::Planned(derived)) => derived.gpu_memory_utilization,
        Some(Basis::Given(memory)) => memory.gpu_memory_utilization,
        None => catalog::Memory::default().gpu_memory_utilization,
    }
}

/// Where a simulated GPU's memory goes, if the configuration tells.
fn memory(spec: &ModelSpec) -> Option<GpuMemory> {
    let EngineSpec::Scheduler(scheduler) = &spec.engine else { return None };
    let per_block = |per_token: f64| {
        Bytes::new((per_token * f64::from(scheduler.block_size.get())).round() as u64)
    };
    Some(match spec.basis.as_ref()? {
        Basis::Planned(derived) => GpuMemory {
            total: derived.hbm,
            weights: derived.weights_per_gpu,
            reserved: derived.reserved_per_gpu,
            block: per_block(derived.kv_bytes_per_token_per_gpu.get() as f64),
        },
        Basis::Given(memory) => GpuMemory {
            total: memory.hbm,
            weights: memory.weights,
            reserved: Bytes::ZERO,
            block: per_block(memory.kv_per_token),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_that_was_not_measured_is_not_called_zero() {
        let line = |window: &Window| {
            let verdict = Judgement { reasons: Vec::new() };
            verdict_line(&verdict, window, Duration::from_secs(10), &Thresholds::default())
        };
        assert_eq!(
            line(&Window::default()),
            "the timeline is kept again: over the last 10 s the token lag was not measured, since \
             fewer than 100 tokens were streamed"
        );
        let measured = Window {
            tokens: 500,
            engine_lag_p99: SimSpan::from_us(100),
            token_lag_p99: SimSpan::from_us(300),
            ..Window::default()
        };
        assert!(line(&measured).contains("the p99 token lag was 0.3ms, of it the engine's 0.1ms"));
    }
}
