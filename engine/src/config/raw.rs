//! `models.yml` as typed: every key, its type and its range, each value with the place it was
//! written at.
//!
//! What the values mean together is [`resolve`](super::resolve)'s business. The invariant: nothing
//! here looks at two keys at once, except to refuse two names of one setting.

use std::collections::BTreeMap;

use crate::catalog::{KvCacheDtype, WeightDtype};
use crate::text::responses::Thinking;

use super::faults::Faults;
use super::fields::{Field, Fields};
use super::problem::{Hint, Report};
use super::reasoning;
use super::tokenizer;
use super::tree::Place;
use super::value::{Placed, Range, Value};

/// The whole file.
#[derive(Debug, Default)]
pub(super) struct Models {
    pub(super) hardware: Profiles,
    pub(super) models: Vec<Model>,
    /// Those of the file, and those of each model.
    pub(super) faults: Faults,
}

/// The profiles by name.
pub(super) type Profiles = BTreeMap<String, Hardware>;

/// A profile of `hardware:`.
#[derive(Clone, Debug)]
pub(super) struct Hardware {
    pub(super) name: Placed<String>,
    pub(super) hbm_gib: Option<Placed<f64>>,
    pub(super) memory_bandwidth_gbps: Option<Placed<f64>>,
    pub(super) peak_tflops: Option<Placed<f64>>,
    pub(super) fp8_tflops: Option<Placed<f64>>,
    pub(super) fp4_tflops: Option<Placed<f64>>,
    pub(super) link_gbps: Option<Placed<f64>>,
}

/// An entry of `models:`.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) at: Place,
    pub(super) path: String,
    pub(super) name: Option<Placed<String>>,
    pub(super) context_length: Option<Placed<u64>>,
    pub(super) engine: Option<Placed<&'static str>>,
    /// Was an engine named at all, even a wrong one?
    pub(super) engine_written: bool,
    pub(super) hardware: Option<Placed<String>>,
    pub(super) preset: Option<Placed<String>>,
    pub(super) hf_config: Option<Placed<String>>,
    pub(super) engine_class: Option<Placed<String>>,
    pub(super) dtype: Option<Placed<WeightDtype>>,
    pub(super) tensor_parallel: Option<Placed<u64>>,
    pub(super) replicas: Option<Placed<u64>>,
    pub(super) weights: Option<Weights>,
    pub(super) kv_cache: Option<KvCache>,
    pub(super) performance: Option<Performance>,
    pub(super) has_scheduler: bool,
    pub(super) settings: Settings,
    pub(super) latency: Latency,
    pub(super) efficiency: Efficiency,
    pub(super) step_residual: Option<StepResidual>,
    pub(super) faults: Option<Value>,
    /// The file of its tokenizer.
    pub(super) reasoning: Thinking,
    pub(super) tokenizer: Option<Placed<String>>,
}

/// `weights:`.
#[derive(Debug)]
pub(super) struct Weights {
    pub(super) at: Place,
    pub(super) path: String,
    pub(super) gib: Option<Placed<f64>>,
    pub(super) parameters_billion: Option<Placed<f64>>,
    pub(super) active_parameters_billion: Option<Placed<f64>>,
    pub(super) bytes_per_parameter: Option<Placed<f64>>,
}

/// `kv_cache:`, without the settings that vLLM users may write elsewhere.
#[derive(Debug)]
pub(super) struct KvCache {
    pub(super) at: Place,
    pub(super) path: String,
    pub(super) bytes_per_token: Option<Placed<u64>>,
    pub(super) gib: Option<Placed<f64>>,
}

/// `performance:`.
#[derive(Debug)]
pub(super) struct Performance {
    pub(super) at: Place,
    pub(super) path: String,
    pub(super) prefill_tokens_per_second: Option<Placed<f64>>,
    pub(super) decode_tokens_per_second: Option<Placed<f64>>,
}

/// The engine settings that vLLM has too. They are found in `scheduler:`, in `kv_cache:` or beside
/// them, wherever a vLLM user puts them, under our name or vLLM's.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) max_batch_tokens: Option<Placed<u64>>,
    pub(super) max_num_sequences: Option<Placed<u64>>,
    pub(super) max_num_active_seqs: Option<Placed<u64>>,
    pub(super) max_num_queued_reqs: Option<Placed<u64>>,
    pub(super) block_size: Option<Placed<u64>>,
    pub(super) num_blocks: Option<Placed<u64>>,
    pub(super) gpu_memory_utilization: Option<Placed<f64>>,
    pub(super) prefix_caching: Option<Placed<bool>>,
    pub(super) chunked_prefill: Option<Placed<bool>>,
    pub(super) long_prefill_token_threshold: Option<Placed<u64>>,
    pub(super) long_prefill_adaptive: Option<Placed<bool>>,
    pub(super) policy: Option<Placed<&'static str>>,
    pub(super) async_scheduling: Option<Placed<bool>>,
    pub(super) watermark: Option<Placed<f64>>,
    pub(super) reserve_full_isl: Option<Placed<bool>>,
    pub(super) prefill_interval: Option<Placed<u64>>,
    pub(super) freed_blocks: Option<Placed<&'static str>>,
    pub(super) prefill_order: Option<Placed<&'static str>>,
    pub(super) output_blocks: Option<Placed<&'static str>>,
    pub(super) kv_cache_dtype: Option<Placed<KvCacheDtype>>,
}

/// `latency:`.
#[derive(Debug, Default)]
pub(super) struct Latency {
    pub(super) scheduler_overhead_ms: Option<Placed<f64>>,
    pub(super) request_overhead_ms: Option<Placed<f64>>,
}

/// `step_residual:`.
#[derive(Debug)]
pub(super) struct StepResidual {
    pub(super) at: Place,
    pub(super) path: String,
    pub(super) seed: Option<Placed<u64>>,
    pub(super) sigma: Option<Placed<f64>>,
    pub(super) tail_probability: Option<Placed<f64>>,
    pub(super) tail_factor: Option<Placed<f64>>,
}

/// `efficiency:`.
#[derive(Debug, Default)]
pub(super) struct Efficiency {
    pub(super) compute: Option<Placed<f64>>,
    pub(super) memory: Option<Placed<f64>>,
    pub(super) weight_bandwidth: Option<Placed<f64>>,
    pub(super) linear_compute: Option<Placed<f64>>,
    pub(super) kv_bandwidth: Option<Placed<f64>>,
    pub(super) attention_compute: Option<Placed<f64>>,
    pub(super) link_bandwidth: Option<Placed<f64>>,
    pub(super) all_reduce_latency_us: Option<Placed<f64>>,
    pub(super) host_per_step_ms: Option<Placed<f64>>,
    pub(super) host_per_layer_us: Option<Placed<f64>>,
    pub(super) host_per_sequence_us: Option<Placed<f64>>,
    pub(super) launch_per_layer_us: Option<Placed<f64>>,
    pub(super) overlap: Option<Placed<f64>>,
    pub(super) scale: Option<Placed<f64>>,
}

/// The names of the three engines.
pub(super) const INSTANT: &str = "instant";
pub(super) const FIXED_RATE: &str = "fixed_rate";
pub(super) const SCHEDULER: &str = "scheduler";

const ENGINES: &[&str] = &[INSTANT, FIXED_RATE, SCHEDULER];

/// Token counts are held in 32 bits.
const MOST_TOKENS: u64 = u32::MAX as u64;
/// Far longer than any context, and still short enough that sums of two cannot overflow 32 bits.
const MOST_CONTEXT: u64 = 1 << 30;

impl Models {
    pub(super) fn read(root: &Value, report: &mut Report<'_>) -> Self {
        let Some(mut file) = root.fields(report) else { return Self::default() };
        read_version(&mut file, report);
        let hardware = match file.take(report, "hardware", &[]) {
            Some(profiles) => profiles.entries(report).unwrap_or_default(),
            None => Vec::new(),
        };
        let hardware = hardware.into_iter().filter_map(|entry| {
            Hardware::read(entry, report).map(|profile| (profile.name.value.clone(), profile))
        });
        let hardware = hardware.collect();

        let hint = Hint::new("write `models:` and below it, for each model, `- name: ...`");
        let list = file.require(report, "models", &[], hint);
        let models = match list.and_then(|list| list.list(report).map(|items| (list, items))) {
            None => Vec::new(),
            Some((list, items)) => {
                if items.is_empty() {
                    let hint = "a model needs `name` and `context_length`";
                    list.problem(report, "lists no model", Hint::new(hint));
                }
                items.iter().filter_map(|item| Model::read(item, report)).collect()
            }
        };
        let mut faults = match file.take(report, "faults", &[]) {
            Some(value) => Faults::read(&value, report),
            None => Faults::default(),
        };
        for model in &models {
            let model: &Model = model;
            let name = model.name.as_ref().map(|name| name.value.as_str());
            if let (Some(value), Some(name)) = (&model.faults, name) {
                faults.rules.extend(super::faults::rules(value, Some(name), report));
            }
        }
        close_file(file, report);
        Self { hardware, models, faults }
    }
}

/// `version: 1`, which may be left out.
pub(super) fn read_version(file: &mut Fields, report: &mut Report<'_>) {
    let Some(version) = file.take(report, "version", &[]) else { return };
    if version.whole(report, 1..=u64::MAX).is_some_and(|version| version.value > 1) {
        version.problem(report, "this version of the format is not known", Hint::new("write 1"));
    }
}

/// Keys that begin with `x-` are the user's own: a place for anchors.
pub(super) fn close_file(mut file: Fields, report: &mut Report<'_>) {
    file.ignore(|key| key.starts_with("x-"));
    file.close(report, |_| None);
}

impl Hardware {
    fn read(entry: Field, report: &mut Report<'_>) -> Option<Self> {
        let name = Placed { value: entry.key, at: entry.key_at, path: entry.value.path.clone() };
        let mut fields = entry.value.fields(report)?;
        let profile = Self {
            hbm_gib: fields.number(report, "hbm_gib", &[], Range::Positive),
            memory_bandwidth_gbps: fields.number(
                report,
                "memory_bandwidth_gbps",
                &[],
                Range::Positive,
            ),
            peak_tflops: fields.number(report, "peak_tflops", &[], Range::Positive),
            fp8_tflops: fields.number(report, "fp8_tflops", &[], Range::Positive),
            fp4_tflops: fields.number(report, "fp4_tflops", &[], Range::Positive),
            link_gbps: fields.number(report, "link_gbps", &[], Range::Positive),
            name,
        };
        fields.close(report, |_| None);
        Some(profile)
    }
}

impl Model {
    fn read(item: &Value, report: &mut Report<'_>) -> Option<Self> {
        let mut fields = item.fields(report)?;
        let engine = fields.take(report, "engine", &[]);
        let mut model = Self {
            at: item.at(),
            path: item.path.clone(),
            name: fields
                .require(report, "name", &["served_model_name"], Hint::new("clients ask for it"))
                .and_then(|value| value.name(report)),
            context_length: fields.whole(
                report,
                "context_length",
                &["max_model_len"],
                2..=MOST_CONTEXT,
            ),
            engine_written: engine.is_some(),
            engine: engine.and_then(|engine| engine.one_of(report, ENGINES)),
            hardware: fields.take(report, "hardware", &[]).and_then(|hardware| {
                if hardware.is_mapping() {
                    let hint = "define the profile under `hardware:` at the top of the file";
                    hardware.problem(report, "must be the name of a profile", Hint::new(hint));
                    return None;
                }
                hardware.name(report)
            }),
            preset: fields.name(report, "model", &[]),
            hf_config: fields.name(report, "hf_config", &[]),
            engine_class: fields.name(report, "engine_class", &[]),
            dtype: fields
                .one_of(report, "weight_dtype", &["dtype", "quantization"], &WeightDtype::NAMES)
                .map(|name| name.map(|name| WeightDtype::parse(name).unwrap_or_default())),
            tensor_parallel: fields.whole(report, "tensor_parallel_size", &["tp"], 1..=64),
            replicas: fields.whole(report, "replicas", &["data_parallel_size"], 1..=256),
            weights: None,
            kv_cache: None,
            performance: None,
            has_scheduler: false,
            settings: Settings::default(),
            latency: Latency::default(),
            efficiency: Efficiency::default(),
            step_residual: None,
            faults: fields.take(report, "faults", &[]),
            tokenizer: tokenizer::file(&mut fields, report),
            reasoning: reasoning::read(&mut fields, report),
        };

        if let Some(section) = fields.section(report, "weights") {
            model.weights = Some(Weights::read(section, report));
        }
        if let Some(mut section) = fields.section(report, "kv_cache") {
            model.settings.read(&mut section, report);
            model.settings.read_kv_dtype("dtype", &mut section, report);
            model.kv_cache = Some(KvCache::read(section, report));
        }
        if let Some(section) = fields.section(report, "performance") {
            model.performance = Some(Performance::read(section, report));
        }
        if let Some(mut section) = fields.section(report, "scheduler") {
            model.has_scheduler = true;
            model.settings.read(&mut section, report);
            section.close(report, belongs);
        }
        if let Some(mut section) = fields.section(report, "latency") {
            model.latency = Latency {
                scheduler_overhead_ms: section.number(
                    report,
                    "scheduler_overhead_ms",
                    &["step_overhead_ms"],
                    Range::Milliseconds,
                ),
                request_overhead_ms: section.number(
                    report,
                    "request_overhead_ms",
                    &[],
                    Range::Milliseconds,
                ),
            };
            section.close(report, belongs);
        }
        if let Some(section) = fields.section(report, "efficiency") {
            model.efficiency = Efficiency::read(section, report);
        }
        if let Some(section) = fields.section(report, "step_residual") {
            model.step_residual = Some(StepResidual::read(section, report));
        }
        model.settings.read(&mut fields, report);
        fields.close(report, belongs);
        Some(model)
    }
}

/// Where a key belongs that was found in the wrong place.
fn belongs(key: &str) -> Option<&'static str> {
    Some(match key {
        "hbm_gib" | "memory_bandwidth_gbps" | "peak_tflops" => "in a profile under `hardware:`",
        "bytes_per_token" => "under `kv_cache:`",
        "prefill_tokens_per_second" | "decode_tokens_per_second" => "under `performance:`",
        "max_batch_tokens" | "max_num_sequences" | "max_num_seqs" | "max_num_batched_tokens" => {
            "under `scheduler:`"
        }
        "scheduler_overhead_ms" | "step_overhead_ms" | "request_overhead_ms" => "under `latency:`",
        "parameters_billion" | "bytes_per_parameter" => "under `weights:`",
        "context_length" | "engine" | "replicas" | "tensor_parallel_size" => {
            "directly in the model, not in a section of it"
        }
        _ => return None,
    })
}

impl Weights {
    fn read(mut section: Fields, report: &mut Report<'_>) -> Self {
        let weights = Self {
            at: section.at,
            path: section.path.clone(),
            gib: section.number(report, "gib", &[], Range::Positive),
            parameters_billion: section.number(
                report,
                "parameters_billion",
                &["params_billion"],
                Range::Positive,
            ),
            active_parameters_billion: section.number(
                report,
                "active_parameters_billion",
                &["active_params_billion"],
                Range::Positive,
            ),
            bytes_per_parameter: section.number(
                report,
                "bytes_per_parameter",
                &["bytes_per_param"],
                Range::Positive,
            ),
        };
        section.close(report, belongs);
        weights
    }
}

impl KvCache {
    fn read(mut section: Fields, report: &mut Report<'_>) -> Self {
        let kv_cache = Self {
            at: section.at,
            path: section.path.clone(),
            bytes_per_token: section.whole(report, "bytes_per_token", &[], 1..=1 << 40),
            gib: section.number(report, "gib", &[], Range::Positive),
        };
        section.close(report, belongs);
        kv_cache
    }
}

impl Performance {
    fn read(mut section: Fields, report: &mut Report<'_>) -> Self {
        let mut rate = |name| section.number(report, name, &[], Range::Positive);
        let prefill_tokens_per_second = rate("prefill_tokens_per_second");
        let decode_tokens_per_second = rate("decode_tokens_per_second");
        let (at, path) = (section.at, section.path.clone());
        section.close(report, belongs);
        Self { at, path, prefill_tokens_per_second, decode_tokens_per_second }
    }
}

impl Settings {
    /// Takes the settings that `fields` has, whatever section it is.
    fn read(&mut self, fields: &mut Fields, report: &mut Report<'_>) {
        let mut whole = |slot: &mut Option<Placed<u64>>, names: &[&'static str], range| {
            if let Some(value) = fields.take(report, names[0], &names[1..])
                && let Some(value) = value.whole(report, range)
            {
                once(slot, value, names[0], report);
            }
        };
        let tokens = 1..=MOST_TOKENS;
        whole(
            &mut self.max_batch_tokens,
            &["max_batch_tokens", "max_num_batched_tokens"],
            tokens.clone(),
        );
        whole(&mut self.max_num_sequences, &["max_num_sequences", "max_num_seqs"], 1..=1 << 20);
        whole(&mut self.max_num_active_seqs, &["max_num_active_seqs"], 1..=1 << 20);
        whole(&mut self.max_num_queued_reqs, &["max_num_queued_reqs"], 1..=1 << 30);
        whole(&mut self.block_size, &["block_size"], 1..=4096);
        whole(
            &mut self.num_blocks,
            &["num_gpu_blocks_override", "num_gpu_blocks", "num_blocks"],
            2..=1 << 24,
        );
        whole(
            &mut self.long_prefill_token_threshold,
            &["long_prefill_token_threshold"],
            0..=MOST_TOKENS,
        );
        whole(&mut self.prefill_interval, &["prefill_schedule_interval"], 1..=1 << 20);

        let mut boolean = |slot: &mut Option<Placed<bool>>, names: &[&'static str]| {
            if let Some(value) = fields.take(report, names[0], &names[1..])
                && let Some(value) = value.boolean(report)
            {
                once(slot, value, names[0], report);
            }
        };
        boolean(&mut self.prefix_caching, &["enable_prefix_caching", "prefix_caching"]);
        boolean(&mut self.chunked_prefill, &["enable_chunked_prefill", "chunked_prefill"]);
        boolean(&mut self.long_prefill_adaptive, &["long_prefill_token_threshold_adaptive"]);
        boolean(&mut self.async_scheduling, &["async_scheduling"]);
        boolean(&mut self.reserve_full_isl, &["scheduler_reserve_full_isl", "reserve_full_isl"]);

        if let Some(value) = fields.number(report, "gpu_memory_utilization", &[], Range::Share) {
            once(&mut self.gpu_memory_utilization, value, "gpu_memory_utilization", report);
        }
        if let Some(value) = fields.number(report, "watermark", &[], Range::Part) {
            once(&mut self.watermark, value, "watermark", report);
        }
        self.read_kv_dtype("kv_cache_dtype", fields, report);
        let orders = &["uncached_first", "all_last"];
        if let Some(value) = fields.one_of(report, "freed_blocks", &[], orders) {
            once(&mut self.freed_blocks, value, "freed_blocks", report);
        }
        if let Some(value) = fields.one_of(report, "prefill_order", &[], &["mixed", "first"]) {
            once(&mut self.prefill_order, value, "prefill_order", report);
        }
        let blocks = &["as_needed", "reserved"];
        if let Some(value) = fields.one_of(report, "output_blocks", &[], blocks) {
            once(&mut self.output_blocks, value, "output_blocks", report);
        }
        let policies = &["fcfs", "priority"];
        if let Some(value) = fields.one_of(report, "scheduling_policy", &["policy"], policies) {
            once(&mut self.policy, value, "scheduling_policy", report);
        }
    }
}

impl Settings {
    /// In `kv_cache:` it is simply called `dtype`.
    fn read_kv_dtype(&mut self, name: &'static str, fields: &mut Fields, report: &mut Report<'_>) {
        if let Some(dtype) = fields.one_of(report, name, &[], &KvCacheDtype::NAMES) {
            let dtype = dtype.map(|name| KvCacheDtype::parse(name).unwrap_or_default());
            once(&mut self.kv_cache_dtype, dtype, "kv_cache_dtype", report);
        }
    }
}

/// A setting may stand in several sections, but only in one of them at a time.
fn once<T>(slot: &mut Option<Placed<T>>, value: Placed<T>, name: &str, report: &mut Report<'_>) {
    match slot {
        None => *slot = Some(value),
        Some(first) => {
            let message =
                format!("`{name}` is already set by `{}` on line {}", first.path, first.at.line);
            report.add(value.at, &value.path, message, Hint::new("keep one of them"));
        }
    }
}

impl StepResidual {
    fn read(mut section: Fields, report: &mut Report<'_>) -> Self {
        let residual = Self {
            at: section.at,
            path: section.path.clone(),
            seed: section.whole(report, "seed", &[], 0..=u64::MAX),
            sigma: section.number(report, "sigma", &[], Range::Part),
            tail_probability: section.number(report, "tail_probability", &[], Range::Part),
            tail_factor: section.number(report, "tail_factor", &[], Range::AtLeastOne),
        };
        section.close(report, belongs);
        residual
    }
}

impl Efficiency {
    fn read(mut section: Fields, report: &mut Report<'_>) -> Self {
        let mut number =
            |name, aliases: &[&'static str], range| section.number(report, name, aliases, range);
        let efficiency = Self {
            compute: number("compute", &[], Range::Share),
            memory: number("memory", &[], Range::Share),
            weight_bandwidth: number("weight_bandwidth", &["mbu"], Range::Share),
            linear_compute: number("linear_compute", &["mfu"], Range::Share),
            kv_bandwidth: number("kv_bandwidth", &["mbu_kv"], Range::Share),
            attention_compute: number("attention_compute", &["mfu_attn"], Range::Share),
            link_bandwidth: number("link_bandwidth", &["ar_eff"], Range::Share),
            all_reduce_latency_us: number(
                "all_reduce_latency_us",
                &["ar_lat_us"],
                Range::NotNegative,
            ),
            host_per_step_ms: number("host_per_step_ms", &["t_step_ms"], Range::Milliseconds),
            host_per_layer_us: number("host_per_layer_us", &["t_layer_us"], Range::NotNegative),
            host_per_sequence_us: number("host_per_sequence_us", &["t_seq_us"], Range::NotNegative),
            launch_per_layer_us: number(
                "launch_per_layer_us",
                &["t_launch_us"],
                Range::NotNegative,
            ),
            overlap: number("overlap", &["p"], Range::AtLeastOne),
            scale: number("scale", &[], Range::Positive),
        };
        section.close(report, belongs);
        efficiency
    }
}
