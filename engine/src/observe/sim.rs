//! The families under our own names: `llm_sim_*`, and the process's.
//!
//! Labelled by `model`; what belongs to one simulated GPU has `replica` too. The times are those of
//! vLLM's families (one observation feeds both), with finer buckets. The invariant: every family is
//! there from the start, with every value of its labels, so that a rate has a beginning.

use crate::observe::family::{Family, Kind, Labels};
use crate::observe::verdict::{Judgement, Reason};
use crate::observe::{Delivered, Reading};
use crate::stats::histogram::Histogram;
use crate::units::{Bytes, SimSpan};

/// A model, all replicas added up.
#[derive(Clone, Debug)]
pub struct ModelView<'a> {
    /// Its name.
    pub model: &'a str,
    /// What its simulated GPUs did.
    pub reading: &'a Reading,
    /// What I/O threads delivered of it.
    pub delivered: &'a Delivered,
}

/// One simulated GPU of a model with `engine: scheduler`.
#[derive(Clone, Debug)]
pub struct GpuView<'a> {
    /// The model that it serves.
    pub model: &'a str,
    /// Which replica.
    pub replica: u16,
    /// What it did.
    pub reading: &'a Reading,
    /// Its memory, if the configuration tells.
    pub memory: Option<GpuMemory>,
    /// How busy it was of late.
    pub load: Load,
}

/// The memory of one simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// All it has.
    pub total: Bytes,
    /// Taken by weights.
    pub weights: Bytes,
    /// Kept for activations, logits and the runtime.
    pub reserved: Bytes,
    /// One KV-cache block.
    pub block: Bytes,
}

impl GpuMemory {
    /// Bytes of the KV-cache blocks that have a user.
    pub fn kv_used(&self, reading: &Reading) -> Bytes {
        let used = reading.usable_blocks.saturating_sub(reading.free_blocks);
        Bytes::new(used.saturating_mul(self.block.get()))
    }

    /// All that is in use.
    pub fn used(&self, reading: &Reading) -> Bytes {
        self.weights + self.reserved + self.kv_used(reading)
    }
}

/// Shares of a stretch of time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// A step was in execution.
    pub busy: f64,
    /// What the arithmetic alone would have taken.
    pub compute: f64,
    /// What reading weights and KV cache alone would have taken.
    pub memory_bandwidth: f64,
}

impl Load {
    /// Of the `elapsed` time between two readings. A step counts when it ends, so that a stretch
    /// shorter than a step can show more than there is; it is cut off at 1.
    pub fn between(earlier: [SimSpan; 3], later: [SimSpan; 3], elapsed: SimSpan) -> Self {
        let share = |index: usize| {
            let spent = later[index].as_ns().saturating_sub(earlier[index].as_ns()) as f64;
            (spent / (elapsed.as_ns().max(1) as f64)).min(1.0)
        };
        Self { busy: share(0), compute: share(1), memory_bandwidth: share(2) }
    }

    /// The sums that [`Self::between`] compares.
    pub fn sums(reading: &Reading) -> [SimSpan; 3] {
        [reading.busy, reading.arithmetic, reading.memory]
    }
}

/// The process around the simulated GPUs.
#[derive(Clone, Debug, Default)]
pub struct ProcessView<'a> {
    /// `x.y.z`.
    pub version: &'a str,
    /// Processor time per kind of thread, s.
    pub cpu_seconds: Vec<(&'static str, f64)>,
    /// Time that threads of a kind stood ready to run and did not, s.
    pub starved_seconds: Vec<(&'static str, f64)>,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// When the process started, Unix time.
    pub started: f64,
    /// The driver of the I/O threads.
    pub io_driver: &'a str,
    /// Connections open now.
    pub connections: u64,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Connections turned away at the limit.
    pub turned_away: u64,
    /// Answers, by how their delivery ended.
    pub answers: Vec<(&'static str, u64)>,
    /// TLS handshakes, by how they ended.
    pub tls_handshakes: Vec<(&'static str, u64)>,
    /// Tokens whose own report was left out since an I/O thread was too far behind.
    pub merged_tokens: u64,
}

/// The verdict and what it rests on.
#[derive(Clone, Debug)]
pub struct FidelityView<'a> {
    /// The judgement that stands.
    pub judgement: &'a Judgement,
    /// p99 of sent − scheduled over the rolling window, per model; those without tokens left out.
    pub lag_p99: Vec<(&'a str, SimSpan)>,
    /// Where bad begins.
    pub threshold: SimSpan,
}

/// Everything that there is to show.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// In the order of the configuration.
    pub models: Vec<ModelView<'a>>,
    /// GPUs with steps and a KV cache.
    pub gpus: Vec<GpuView<'a>>,
    /// The process.
    pub process: ProcessView<'a>,
    /// The verdict.
    pub fidelity: FidelityView<'a>,
}

/// Our families.
pub fn families(view: &View<'_>) -> Vec<Family> {
    let mut all = Vec::with_capacity(60);
    latencies(view, &mut all);
    counters(view, &mut all);
    lags(view, &mut all);
    steps(view, &mut all);
    kv_cache(view, &mut all);
    resources(view, &mut all);
    fidelity(view, &mut all);
    process(view, &mut all);
    all
}

fn by_model(model: &str) -> Labels {
    vec![("model", model.to_owned())]
}

fn by_gpu(gpu: &GpuView<'_>) -> Labels {
    vec![("model", gpu.model.to_owned()), ("replica", gpu.replica.to_string())]
}

/// A family of histograms, one per model.
fn histograms<'a>(
    view: &View<'a>,
    all: &mut Vec<Family>,
    name: &'static str,
    help: &'static str,
    of: impl Fn(&ModelView<'a>) -> &'a Histogram,
) {
    let mut family = Family::new(name, help, Kind::Histogram);
    for model in &view.models {
        family.histogram(by_model(model.model), of(model).clone());
    }
    all.push(family);
}

/// A family of numbers, one per model.
fn per_model(
    view: &View<'_>,
    all: &mut Vec<Family>,
    (name, help, kind): (&'static str, &'static str, Kind),
    of: impl Fn(&ModelView<'_>) -> u64,
) {
    let mut family = Family::new(name, help, kind);
    for model in &view.models {
        family.number(by_model(model.model), of(model) as f64);
    }
    all.push(family);
}

/// A family of numbers, one per simulated GPU.
fn per_gpu(
    view: &View<'_>,
    all: &mut Vec<Family>,
    (name, help, kind): (&'static str, &'static str, Kind),
    of: impl Fn(&GpuView<'_>) -> Option<f64>,
) {
    let mut family = Family::new(name, help, kind);
    for gpu in &view.gpus {
        if let Some(value) = of(gpu) {
            family.number(by_gpu(gpu), value);
        }
    }
    all.push(family);
}

fn latencies(view: &View<'_>, all: &mut Vec<Family>) {
    histograms(
        view,
        all,
        "llm_sim_time_to_first_token_seconds",
        "From the arrival of a request to the release of its first token.",
        |model| &model.reading.first_token,
    );
    histograms(
        view,
        all,
        "llm_sim_inter_token_latency_seconds",
        "Between the releases of two tokens of a request.",
        |model| &model.reading.inter_token,
    );
    histograms(
        view,
        all,
        "llm_sim_time_per_output_token_seconds",
        "Decode time of a request by its output tokens but the first; 0 with one token.",
        |model| &model.reading.per_output_token,
    );
    histograms(
        view,
        all,
        "llm_sim_e2e_request_latency_seconds",
        "From the arrival of a request to the release of its last token.",
        |model| &model.reading.end_to_end,
    );
    histograms(
        view,
        all,
        "llm_sim_queue_time_seconds",
        "From the simulated GPU taking a request to scheduling it for the first time.",
        |model| &model.reading.queue,
    );
    histograms(
        view,
        all,
        "llm_sim_prefill_time_seconds",
        "From the first scheduling of a request to the release of its first token.",
        |model| &model.reading.prefill,
    );
    histograms(
        view,
        all,
        "llm_sim_decode_time_seconds",
        "From the release of a request's first token to that of its last.",
        |model| &model.reading.decode,
    );
    histograms(
        view,
        all,
        "llm_sim_request_prompt_tokens",
        "Prompt tokens of finished requests.",
        |model| &model.reading.prompt_length,
    );
    histograms(
        view,
        all,
        "llm_sim_request_generation_tokens",
        "Output tokens of finished requests.",
        |model| &model.reading.generation_length,
    );
}

fn counters(view: &View<'_>, all: &mut Vec<Family>) {
    let prompt = (
        "llm_sim_prompt_tokens_total",
        "Prompt tokens, counted at the first output token.",
        Kind::Counter,
    );
    per_model(view, all, prompt, |model| model.reading.prompt_tokens);
    let cached = (
        "llm_sim_cached_prompt_tokens_total",
        "Prompt tokens found in the prefix cache, counted at the first output token.",
        Kind::Counter,
    );
    per_model(view, all, cached, |model| model.reading.cached_tokens);
    let generation = ("llm_sim_generation_tokens_total", "Output tokens released.", Kind::Counter);
    per_model(view, all, generation, |model| model.reading.generation_tokens);
    let sent = (
        "llm_sim_sent_tokens_total",
        "Output tokens of streams whose bytes the kernel has taken.",
        Kind::Counter,
    );
    per_model(view, all, sent, |model| model.delivered.tokens);
    let mut requests = Family::new(
        "llm_sim_requests_total",
        "Requests that are over, by how they ended; error: refused by the engine, or lost to its crash.",
        Kind::Counter,
    );
    for ModelView { model, reading, .. } in &view.models {
        for (reason, count) in [
            ("stop", reading.stopped),
            ("length", reading.reached_length),
            ("cancelled", reading.cancelled),
            ("error", reading.errors()),
        ] {
            let mut labels = by_model(model);
            labels.push(("finish_reason", reason.into()));
            requests.number(labels, count as f64);
        }
    }
    all.push(requests);
    let running =
        ("llm_sim_requests_running", "Requests taken and not over, queued ones too.", Kind::Gauge);
    per_model(view, all, running, |model| model.reading.held);
}

fn lags(view: &View<'_>, all: &mut Vec<Family>) {
    histograms(
        view,
        all,
        "llm_sim_token_lag_seconds",
        "From the instant at which a token was due to the kernel taking its bytes.",
        |model| &model.delivered.lag_seconds,
    );
    histograms(
        view,
        all,
        "llm_sim_engine_lag_seconds",
        "From the instant at which a token was due to its release by the engine's thread.",
        |model| &model.reading.engine_lag_seconds,
    );
    histograms(
        view,
        all,
        "llm_sim_first_token_sent_seconds",
        "From the arrival of a request to the kernel taking its first token's bytes.",
        |model| &model.delivered.first_token,
    );
    let delayed = (
        "llm_sim_delayed_tokens_total",
        "Tokens that waited for their client to read; they are in no lag.",
        Kind::Counter,
    );
    per_model(view, all, delayed, |model| model.delivered.delayed);
}

fn steps(view: &View<'_>, all: &mut Vec<Family>) {
    let running = (
        "llm_sim_scheduler_running_requests",
        "Requests in the running batch after the last step.",
        Kind::Gauge,
    );
    per_gpu(view, all, running, |gpu| Some(gpu.reading.running as f64));
    let mut waiting = Family::new(
        "llm_sim_scheduler_waiting_requests",
        "Requests waiting after the last step: new ones, and preempted ones.",
        Kind::Gauge,
    );
    let mut duration = Family::new(
        "llm_sim_scheduler_step_duration_seconds",
        "Durations of steps on the simulated timeline.",
        Kind::Histogram,
    );
    let mut sequences = Family::new(
        "llm_sim_scheduler_batch_sequences",
        "Requests that computed in a step.",
        Kind::Histogram,
    );
    let mut tokens = Family::new(
        "llm_sim_scheduler_batch_tokens",
        "Tokens that a step computed.",
        Kind::Histogram,
    );
    let mut scheduled = Family::new(
        "llm_sim_scheduler_scheduled_tokens_total",
        "Tokens computed by steps; recomputed ones count again.",
        Kind::Counter,
    );
    let mut bounds = Family::new(
        "llm_sim_scheduler_steps_total",
        "Steps, by what took the largest part of their time.",
        Kind::Counter,
    );
    let mut stops = Family::new(
        "llm_sim_scheduler_admission_stops_total",
        "Steps, by why they admitted no more requests.",
        Kind::Counter,
    );
    for gpu in &view.gpus {
        let reading = gpu.reading;
        let labelled = |name: &'static str, value: &str| {
            let mut labels = by_gpu(gpu);
            labels.push((name, value.to_owned()));
            labels
        };
        let preempted = reading.waiting_preempted;
        let new = reading.waiting.saturating_sub(preempted);
        waiting.number(labelled("state", "new"), new as f64);
        waiting.number(labelled("state", "preempted"), preempted as f64);
        duration.histogram(by_gpu(gpu), reading.step_duration.clone());
        sequences.histogram(by_gpu(gpu), reading.step_sequences.clone());
        tokens.histogram(by_gpu(gpu), reading.step_tokens.clone());
        for (phase, count) in [
            ("prefill", reading.prefill_tokens_scheduled),
            ("decode", reading.decode_tokens_scheduled),
        ] {
            scheduled.number(labelled("phase", phase), count as f64);
        }
        for (bound, count) in reading.steps_by_bound() {
            bounds.number(labelled("bound", bound.as_str()), count as f64);
        }
        for (reason, count) in reading.admission_stops() {
            stops.number(labelled("reason", reason.as_str()), count as f64);
        }
    }
    all.extend([waiting, duration, sequences, tokens, scheduled, bounds, stops]);
    let preemptions = (
        "llm_sim_preemptions_total",
        "Requests thrown out of the running batch, each time.",
        Kind::Counter,
    );
    per_gpu(view, all, preemptions, |gpu| Some(gpu.reading.preemptions as f64));
    let mut per_request = Family::new(
        "llm_sim_preemptions_per_request",
        "Preemptions of finished requests.",
        Kind::Histogram,
    );
    for gpu in &view.gpus {
        per_request.histogram(by_gpu(gpu), gpu.reading.request_preemptions.clone());
    }
    all.push(per_request);
}

fn kv_cache(view: &View<'_>, all: &mut Vec<Family>) {
    let usable =
        ("llm_sim_kv_cache_blocks", "KV-cache blocks that can be handed out.", Kind::Gauge);
    per_gpu(view, all, usable, |gpu| Some(gpu.reading.usable_blocks as f64));
    let used = ("llm_sim_kv_cache_used_blocks", "KV-cache blocks with a user.", Kind::Gauge);
    per_gpu(view, all, used, |gpu| {
        Some(gpu.reading.usable_blocks.saturating_sub(gpu.reading.free_blocks) as f64)
    });
    let ratio =
        ("llm_sim_kv_cache_usage_ratio", "Used share of the KV cache, 0 to 1.", Kind::Gauge);
    per_gpu(view, all, ratio, |gpu| Some(gpu.reading.kv_usage()));
    let queries = (
        "llm_sim_kv_cache_prefix_queried_tokens_total",
        "Tokens looked up in the prefix cache, at first admissions.",
        Kind::Counter,
    );
    per_gpu(view, all, queries, |gpu| Some(gpu.reading.prefix_queries as f64));
    let hits = (
        "llm_sim_kv_cache_prefix_hit_tokens_total",
        "Tokens found in the prefix cache, at first admissions.",
        Kind::Counter,
    );
    per_gpu(view, all, hits, |gpu| Some(gpu.reading.prefix_hits as f64));
}

fn resources(view: &View<'_>, all: &mut Vec<Family>) {
    let total = (
        "llm_sim_gpu_memory_bytes",
        "Memory of a simulated GPU (with tensor parallelism: of each).",
        Kind::Gauge,
    );
    per_gpu(view, all, total, |gpu| gpu.memory.map(|memory| memory.total.get() as f64));
    let mut used = Family::new(
        "llm_sim_gpu_memory_used_bytes",
        "Memory in use on a simulated GPU; of the KV cache, the blocks with a user.",
        Kind::Gauge,
    );
    for gpu in &view.gpus {
        let Some(memory) = gpu.memory else { continue };
        for (what, bytes) in [
            ("weights", memory.weights),
            ("reserved", memory.reserved),
            ("kv_cache", memory.kv_used(gpu.reading)),
        ] {
            let mut labels = by_gpu(gpu);
            labels.push(("use", what.into()));
            used.number(labels, bytes.get() as f64);
        }
    }
    all.push(used);
    let busy = (
        "llm_sim_gpu_busy_ratio",
        "Share of the last seconds in which a step was in execution.",
        Kind::Gauge,
    );
    per_gpu(view, all, busy, |gpu| Some(gpu.load.busy));
    let compute = (
        "llm_sim_gpu_compute_utilization_ratio",
        "Arithmetic of the last seconds' steps by what the GPU could do in that time.",
        Kind::Gauge,
    );
    per_gpu(view, all, compute, |gpu| Some(gpu.load.compute));
    let bandwidth = (
        "llm_sim_gpu_memory_bandwidth_utilization_ratio",
        "Memory traffic of the last seconds' steps by what the GPU could do in that time.",
        Kind::Gauge,
    );
    per_gpu(view, all, bandwidth, |gpu| Some(gpu.load.memory_bandwidth));
    let seconds = (
        "llm_sim_gpu_busy_seconds_total",
        "Simulated time in which steps were in execution.",
        Kind::Counter,
    );
    per_gpu(view, all, seconds, |gpu| Some(gpu.reading.busy.as_secs_f64()));
    let compute = (
        "llm_sim_gpu_compute_seconds_total",
        "Simulated time that the steps' arithmetic alone would have taken.",
        Kind::Counter,
    );
    per_gpu(view, all, compute, |gpu| Some(gpu.reading.arithmetic.as_secs_f64()));
    let bandwidth = (
        "llm_sim_gpu_memory_seconds_total",
        "Simulated time that the steps' memory traffic alone would have taken.",
        Kind::Counter,
    );
    per_gpu(view, all, bandwidth, |gpu| Some(gpu.reading.memory.as_secs_f64()));
}

fn fidelity(view: &View<'_>, all: &mut Vec<Family>) {
    let FidelityView { judgement, lag_p99, threshold } = &view.fidelity;
    let mut ok = Family::new(
        "llm_sim_fidelity_ok",
        "1 while the server keeps its timeline, by the rolling window; 0 while it does not.",
        Kind::Gauge,
    );
    ok.number(Vec::new(), f64::from(u8::from(judgement.is_ok())));
    let mut reasons = Family::new(
        "llm_sim_fidelity_reason",
        "1 for each reason why the timeline is not kept.",
        Kind::Gauge,
    );
    for reason in Reason::ALL {
        let holds = judgement.reasons.contains(&reason);
        let labels = vec![("reason", reason.as_str().to_owned())];
        reasons.number(labels, f64::from(u8::from(holds)));
    }
    let mut p99 = Family::new(
        "llm_sim_fidelity_lag_p99_seconds",
        "99th percentile of the token lag over the rolling window.",
        Kind::Gauge,
    );
    for (model, lag) in lag_p99 {
        p99.number(by_model(model), lag.as_secs_f64());
    }
    let mut bar = Family::new(
        "llm_sim_fidelity_threshold_seconds",
        "The 99th percentile of the lag above which the timeline is not kept.",
        Kind::Gauge,
    );
    bar.number(Vec::new(), threshold.as_secs_f64());
    all.extend([ok, reasons, p99, bar]);
}

fn process(view: &View<'_>, all: &mut Vec<Family>) {
    let process = &view.process;
    let mut one = |name, help, kind, labels: Labels, value: f64| {
        let mut family = Family::new(name, help, kind);
        family.number(labels, value);
        all.push(family);
    };
    let version = vec![("version", process.version.to_owned())];
    one("llm_sim_build_info", "The program's version; always 1.", Kind::Gauge, version, 1.0);
    let driver = vec![("driver", process.io_driver.to_owned())];
    one("llm_sim_io_driver_info", "How the I/O threads wait; always 1.", Kind::Gauge, driver, 1.0);
    for (name, help, kind, value) in [
        (
            "llm_sim_open_connections",
            "Connections open now.",
            Kind::Gauge,
            process.connections as f64,
        ),
        (
            "llm_sim_connections_total",
            "Connections accepted.",
            Kind::Counter,
            process.accepted as f64,
        ),
        (
            "llm_sim_connections_turned_away_total",
            "Connections turned away at the limit.",
            Kind::Counter,
            process.turned_away as f64,
        ),
        (
            "llm_sim_merged_token_reports_total",
            "Tokens told of together with an older one, and counted as late as it, since an I/O thread was too far behind.",
            Kind::Counter,
            process.merged_tokens as f64,
        ),
        (
            "process_resident_memory_bytes",
            "Resident memory size in bytes.",
            Kind::Gauge,
            process.resident_bytes as f64,
        ),
        (
            "process_open_fds",
            "Number of open file descriptors.",
            Kind::Gauge,
            process.open_files as f64,
        ),
        (
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            Kind::Gauge,
            process.started,
        ),
        (
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            Kind::Counter,
            process.cpu_seconds.iter().map(|(_, seconds)| seconds).sum(),
        ),
    ] {
        one(name, help, kind, Vec::new(), value);
    }
    for (name, help, counts) in [
        ("llm_sim_answers_total", "Answers, by how their delivery ended.", &process.answers),
        (
            "llm_sim_tls_handshakes_total",
            "TLS handshakes, by how they ended.",
            &process.tls_handshakes,
        ),
    ] {
        let mut family = Family::new(name, help, Kind::Counter);
        for &(ended, count) in counts {
            family.number(vec![("ended", ended.to_owned())], count as f64);
        }
        all.push(family);
    }
    for (name, help, values) in [
        (
            "llm_sim_thread_cpu_seconds_total",
            "CPU time spent, by kind of thread.",
            &process.cpu_seconds,
        ),
        (
            "llm_sim_thread_starved_seconds_total",
            "Time spent ready to run without a processor, by kind of thread.",
            &process.starved_seconds,
        ),
    ] {
        let mut family = Family::new(name, help, Kind::Counter);
        for (role, seconds) in values {
            family.number(vec![("role", (*role).to_owned())], *seconds);
        }
        all.push(family);
    }
}
