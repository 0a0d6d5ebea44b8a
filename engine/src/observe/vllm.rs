//! vLLM's `/metrics`: its families, in its order, with its names, labels, types and buckets.
//!
//! After vLLM 0.33 ([`VLLM_VERSION`](crate::sim::scheduler::VLLM_VERSION)). When each value is
//! counted is the [`Recorder`](crate::observe::Recorder)'s business. Behind vLLM's own families
//! stand spellings of older releases, since some routers still read those. The invariant: what vLLM
//! would show for the same run is shown line by line; what a simulator cannot have (images, KV
//! transfer) is there and 0, as it is in a vLLM without them.

use crate::observe::Reading;
use crate::observe::family::{Family, Kind, Labels, number};
use crate::stats::histogram::{Bounds, Histogram};
use crate::units::{Blocks, Tokens};

/// One replica of a model, as vLLM sees an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineView<'a> {
    /// `model_name`.
    pub model: &'a str,
    /// `engine`: 0 for the first.
    pub replica: u16,
    /// What it has done.
    pub reading: &'a Reading,
    /// Its KV cache; `None` for engines without one.
    pub cache: Option<CacheConfig>,
    /// Whether it sleeps.
    pub sleep: SleepState,
}

/// What is told of a KV cache's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Tokens per block.
    pub block_size: Tokens,
    /// Blocks, the placeholder included.
    pub num_blocks: Blocks,
    /// Whether prefixes are cached.
    pub prefix_caching: bool,
    /// The share of the GPU's memory that the engine may use.
    pub gpu_memory_utilization: f64,
}

/// Whether an engine sleeps: vLLM's `sleep_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SleepState {
    /// They serve.
    #[default]
    Awake,
    /// Level 1.
    WeightsOffloaded,
    /// Level 2.
    DiscardAll,
}

/// The adapters of a server, as far as they are told.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptersView<'a> {
    /// How many can be loaded.
    pub most: usize,
    /// Those that requests are being answered with, in any order.
    pub running: &'a [String],
}

/// vLLM's families for these engines; `now` is the Unix time in seconds.
pub fn families(engines: &[EngineView<'_>], adapters: AdaptersView<'_>, now: f64) -> Vec<Family> {
    let mut all = Vec::with_capacity(50);
    let mut show = Shown { engines, all: &mut all };
    own(&mut show, adapters, now);
    old_spellings(&mut show);
    all
}

/// What a series shows of an engine.
type Shows<'a> = &'a dyn Fn(&Reading) -> f64;

/// Families under construction.
struct Shown<'a> {
    engines: &'a [EngineView<'a>],
    all: &'a mut Vec<Family>,
}

impl Shown<'_> {
    /// A family with a series per engine.
    fn numbers(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        value: impl Fn(&Reading) -> f64,
    ) {
        self.split(name, help, kind, "", &[("", &value)]);
    }

    /// A family with several series per engine, told apart by one more label.
    fn split(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        label: &'static str,
        values: &[(&str, Shows<'_>)],
    ) {
        let mut family = Family::new(name, help, kind);
        for engine in self.engines {
            for (word, value) in values {
                let mut labels = labels(engine);
                if !label.is_empty() {
                    labels.push((label, (*word).into()));
                }
                family.number(labels, value(engine.reading));
            }
        }
        self.all.push(family);
    }

    fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        bounds: Option<&Bounds>,
        value: impl Fn(&Reading) -> &Histogram,
    ) {
        let mut family = Family::new(name, help, Kind::Histogram);
        for engine in self.engines {
            let values = value(engine.reading);
            let values = bounds.map_or_else(|| values.clone(), |bounds| values.coarser(bounds));
            family.histogram(labels(engine), values);
        }
        self.all.push(family);
    }
}

fn labels(engine: &EngineView<'_>) -> Labels {
    vec![("engine", engine.replica.to_string()), ("model_name", engine.model.to_owned())]
}

/// A figure that is always 0 here.
fn none(_: &Reading) -> f64 {
    0.0
}

/// The families of the current release, in its order.
fn own(show: &mut Shown<'_>, adapters: AdaptersView<'_>, now: f64) {
    work_estimates(show);
    queues(show);
    caches(show);
    tokens(show);
    outcomes(show);
    sizes(show);
    latencies(show);
    show.histogram(
        "vllm:request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        None,
        |reading| &reading.request_preemptions,
    );
    show.histogram(
        "vllm:request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        None,
        |reading| &reading.prefill_computed,
    );
    show.all.push(cache_config(show.engines));
    show.all.push(lora(adapters, now));
}

/// Zero unless vLLM is told to estimate, which it is not by default.
fn work_estimates(show: &mut Shown<'_>) {
    show.numbers(
        "vllm:estimated_flops_per_gpu_total",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization \
         calculations).",
        Kind::Counter,
        none,
    );
    show.numbers(
        "vllm:estimated_read_bytes_per_gpu_total",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization \
         calculations).",
        Kind::Counter,
        none,
    );
    show.numbers(
        "vllm:estimated_write_bytes_per_gpu_total",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization \
         calculations).",
        Kind::Counter,
        none,
    );
}

fn queues(show: &mut Shown<'_>) {
    show.numbers(
        "vllm:num_requests_running",
        "Number of requests in model execution batches.",
        Kind::Gauge,
        |reading| reading.running as f64,
    );
    show.numbers(
        "vllm:num_requests_waiting",
        "Number of requests waiting to be processed.",
        Kind::Gauge,
        |reading| reading.waiting as f64,
    );
    show.split(
        "vllm:num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling \
         capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked \
         status). Sum of all reasons equals vllm:num_requests_waiting.",
        Kind::Gauge,
        "reason",
        &[("capacity", &|reading| reading.waiting as f64), ("deferred", &none)],
    );
    let mut sleep = Family::new(
        "vllm:engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; \
         weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        Kind::Gauge,
    );
    for engine in show.engines {
        for (word, state) in [
            ("awake", SleepState::Awake),
            ("weights_offloaded", SleepState::WeightsOffloaded),
            ("discard_all", SleepState::DiscardAll),
        ] {
            let mut labels = labels(engine);
            labels.push(("sleep_state", word.into()));
            sleep.number(labels, f64::from(u8::from(engine.sleep == state)));
        }
    }
    show.all.push(sleep);
}

fn caches(show: &mut Shown<'_>) {
    show.numbers(
        "vllm:kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        Kind::Gauge,
        Reading::kv_usage,
    );
    show.numbers(
        "vllm:prefix_cache_queries_total",
        "Prefix cache queries, in terms of number of queried tokens.",
        Kind::Counter,
        |reading| reading.prefix_queries as f64,
    );
    show.numbers(
        "vllm:prefix_cache_hits_total",
        "Prefix cache hits, in terms of number of cached tokens.",
        Kind::Counter,
        |reading| reading.prefix_hits as f64,
    );
    show.numbers(
        "vllm:external_prefix_cache_queries_total",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of \
         number of queried tokens.",
        Kind::Counter,
        none,
    );
    show.numbers(
        "vllm:external_prefix_cache_hits_total",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of \
         number of cached tokens.",
        Kind::Counter,
        none,
    );
    show.numbers(
        "vllm:mm_cache_queries_total",
        "Multi-modal cache queries, in terms of number of queried items.",
        Kind::Counter,
        none,
    );
    show.numbers(
        "vllm:mm_cache_hits_total",
        "Multi-modal cache hits, in terms of number of cached items.",
        Kind::Counter,
        none,
    );
}

fn tokens(show: &mut Shown<'_>) {
    show.numbers(
        "vllm:num_preemptions_total",
        "Cumulative number of preemption from the engine.",
        Kind::Counter,
        |reading| reading.preemptions_told as f64,
    );
    show.numbers(
        "vllm:prompt_tokens_total",
        "Number of prefill tokens processed.",
        Kind::Counter,
        |reading| reading.prompt_tokens as f64,
    );
    show.split(
        "vllm:prompt_tokens_by_source_total",
        "Number of prompt tokens by source.",
        Kind::Counter,
        "source",
        &[
            ("local_compute", &|reading| (reading.prompt_tokens - reading.cached_tokens) as f64),
            ("local_cache_hit", &|reading| reading.cached_tokens as f64),
            ("external_kv_transfer", &none),
        ],
    );
    show.numbers(
        "vllm:prompt_tokens_cached_total",
        "Number of cached prompt tokens (local + external).",
        Kind::Counter,
        |reading| reading.cached_tokens as f64,
    );
    show.split(
        "vllm:prompt_tokens_cached_by_source_total",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host \
         (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or \
         external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + \
         vllm:external_prefix_cache_hits.",
        Kind::Counter,
        "source",
        &[
            ("device", &|reading| reading.prefix_hits as f64),
            ("host", &none),
            ("p2p", &none),
            ("disk", &none),
            ("external_unspecified", &none),
        ],
    );
    show.numbers(
        "vllm:generation_tokens_total",
        "Number of generation tokens processed.",
        Kind::Counter,
        |reading| reading.generation_tokens as f64,
    );
}

fn outcomes(show: &mut Shown<'_>) {
    show.split(
        "vllm:request_success_total",
        "Count of successfully processed requests.",
        Kind::Counter,
        "finished_reason",
        &[
            ("stop", &|reading| reading.stopped as f64),
            ("length", &|reading| reading.reached_length as f64),
            // vLLM does not count aborts by the client here, and there are no others.
            ("abort", &none),
            ("error", &none),
            ("repetition", &none),
        ],
    );
    // Of the server in front of all engines of a model: no engine label.
    let mut family = Family::new(
        "vllm:admission_rejections_total",
        "Number of admission attempts rejected by a queue limit, by reason.",
        Kind::Counter,
    );
    let engines = show.engines;
    for (index, engine) in engines.iter().enumerate() {
        if engines[..index].iter().any(|other| other.model == engine.model) {
            continue;
        }
        let same = engines.iter().filter(|other| other.model == engine.model);
        let full: u64 = same.map(|other| other.reading.queue_full).sum();
        for (reason, count) in [("max_num_queued_reqs", full), ("max_num_queued_tokens", 0)] {
            let labels = vec![("model_name", engine.model.to_owned()), ("reason", reason.into())];
            family.number(labels, count as f64);
        }
    }
    show.all.push(family);
}

fn sizes(show: &mut Shown<'_>) {
    show.histogram(
        "vllm:request_prompt_tokens",
        "Number of prefill tokens processed.",
        None,
        |reading| &reading.prompt_length,
    );
    show.histogram(
        "vllm:request_generation_tokens",
        "Number of generation tokens processed.",
        None,
        |reading| &reading.generation_length,
    );
    show.histogram(
        "vllm:iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        None,
        |reading| &reading.iteration_tokens,
    );
    show.histogram(
        "vllm:request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        None,
        |reading| &reading.longest_choice,
    );
    show.histogram(
        "vllm:request_params_n",
        "Histogram of the n request parameter.",
        None,
        |reading| &reading.choices,
    );
    show.histogram(
        "vllm:request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        None,
        |reading| &reading.max_tokens,
    );
}

fn latencies(show: &mut Shown<'_>) {
    let (first, token, request) = (
        Bounds::vllm_first_token_seconds(),
        Bounds::vllm_inter_token_seconds(),
        Bounds::vllm_request_seconds(),
    );
    show.histogram(
        "vllm:time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        Some(&first),
        |reading| &reading.first_token,
    );
    show.histogram(
        "vllm:inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        Some(&token),
        |reading| &reading.inter_token,
    );
    show.histogram(
        "vllm:request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        Some(&token),
        |reading| &reading.per_output_token,
    );
    show.histogram(
        "vllm:e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        Some(&request),
        |reading| &reading.end_to_end,
    );
    show.histogram(
        "vllm:request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        Some(&request),
        |reading| &reading.queue,
    );
    show.histogram(
        "vllm:request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        Some(&request),
        |reading| &reading.inference,
    );
    show.histogram(
        "vllm:request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        Some(&request),
        |reading| &reading.prefill,
    );
    show.histogram(
        "vllm:request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        Some(&request),
        |reading| &reading.decode,
    );
}

/// Every setting of the cache as a label, as vLLM prints its own defaults for what has no
/// counterpart here.
fn cache_config(engines: &[EngineView<'_>]) -> Family {
    const HELP: &str = "Information of the LLMEngine CacheConfig";
    let mut family = Family::new("vllm:cache_config_info", HELP, Kind::Gauge);
    let mut told = Vec::new();
    for engine in engines {
        let Some(cache) = engine.cache else { continue };
        let truth = |truth: bool| if truth { "True" } else { "False" };
        let mut labels: Labels = [
            ("_block_size_resolved", "True"),
            ("cache_dtype", "auto"),
            ("cache_hit_alignment_tokens", "None"),
            ("effective_attention_block_size", "None"),
            ("enable_mamba_shared_prefix_checkpoint", "False"),
            ("enable_prefix_caching", truth(cache.prefix_caching)),
            ("hash_block_size", "None"),
            ("is_attention_free", "False"),
            ("kv_cache_dtype_skip_layers", "[]"),
            ("kv_cache_layout", "None"),
            ("kv_cache_max_concurrency", "None"),
            ("kv_cache_memory_bytes", "None"),
            ("kv_cache_size_tokens", "None"),
            ("kv_offloading_backend", "native"),
            ("kv_offloading_size", "None"),
            ("kv_sharing_fast_prefill", "False"),
            ("mamba_block_size", "None"),
            ("mamba_cache_dtype", "auto"),
            ("mamba_cache_mode", "none"),
            ("mamba_page_size_padded", "None"),
            ("mamba_ssm_cache_dtype", "auto"),
            ("num_cpu_blocks", "None"),
            ("num_gpu_blocks_override", "None"),
            ("prefix_cache_retention_interval", "0"),
            ("prefix_caching_hash_algo", "sha256"),
            ("prefix_match_unit", "None"),
            ("replayssm_buffer_len", "16"),
            ("simple_cpu_offload_num_blocks", "None"),
            ("skip_page_size_padded", "None"),
            ("sliding_window", "None"),
            ("swa_bounded_replay", "True"),
            ("use_kda_recoverssm", "False"),
            ("use_replayssm", "False"),
            ("user_specified_block_size", "True"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into();
        labels.push(("block_size", cache.block_size.to_string()));
        labels.push(("num_gpu_blocks", cache.num_blocks.to_string()));
        labels.push(("gpu_memory_utilization", number(cache.gpu_memory_utilization)));
        labels.push(("engine", engine.replica.to_string()));
        // vLLM has one model and no label for it: two models with equal caches are one series.
        if !told.contains(&labels) {
            told.push(labels.clone());
            family.number(labels, 1.0);
        }
    }
    family
}

/// Routers send requests to where their adapter runs already. Waiting ones are told as running.
fn lora(adapters: AdaptersView<'_>, now: f64) -> Family {
    let mut family =
        Family::new("vllm:lora_requests_info", "Running stats on lora requests.", Kind::Gauge);
    let labels = vec![
        ("max_lora", adapters.most.to_string()),
        ("running_lora_adapters", adapters.running.join(",")),
        ("waiting_lora_adapters", String::new()),
    ];
    family.number(labels, now);
    family
}

fn old_spellings(show: &mut Shown<'_>) {
    show.numbers(
        "vllm:gpu_cache_usage_perc",
        "GPU KV-cache usage. 1 means 100 percent usage. DEPRECATED: Use vllm:kv_cache_usage_perc \
         instead.",
        Kind::Gauge,
        Reading::kv_usage,
    );
    show.numbers(
        "vllm:gpu_prefix_cache_queries_total",
        "GPU prefix cache queries, in terms of number of queried tokens. DEPRECATED: Use \
         vllm:prefix_cache_queries instead.",
        Kind::Counter,
        |reading| reading.prefix_queries as f64,
    );
    show.numbers(
        "vllm:gpu_prefix_cache_hits_total",
        "GPU prefix cache hits, in terms of number of cached tokens. DEPRECATED: Use \
         vllm:prefix_cache_hits instead.",
        Kind::Counter,
        |reading| reading.prefix_hits as f64,
    );
    show.numbers(
        "vllm:gpu_prefix_cache_hit_rate",
        "GPU prefix cache block hit rate.",
        Kind::Gauge,
        |reading| match reading.prefix_queries {
            0 => 0.0,
            queries => reading.prefix_hits as f64 / queries as f64,
        },
    );
    let token = Bounds::vllm_inter_token_seconds();
    show.histogram(
        "vllm:time_per_output_token_seconds",
        "Histogram of time per output token in seconds. DEPRECATED: Use \
         vllm:inter_token_latency_seconds instead.",
        Some(&token),
        |reading| &reading.inter_token,
    );
}
