//! What `engine: scheduler` means: the settings of one simulated GPU and the cost of its steps.
//!
//! There are two ways to say what runs: a model by name or `config.json` (`model:`, `hf_config:`),
//! which the catalogue turns into a plan, or sizes in the file itself (`weights:`, `kv_cache:`),
//! which make a textbook roofline. The invariant: either way the KV cache of the result holds at
//! least one request of `context_length`, so that nothing waits for ever.

use std::borrow::Cow;

use crate::catalog::{
    self, Deployment, EngineClass, GpuShape, KvCacheDtype, ModelShape, WeightDtype,
};
use crate::sim::scheduler::cost::{Efficiency, Overlap, Roofline, StepCost};
use crate::sim::scheduler::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, Residual, SchedulerSpec, Scheduling,
};
use crate::units::{Blocks, Bytes, SimSpan, Tokens};

use super::ReadFile;
use super::problem::{Hint, Report};
use super::raw;
use super::resolve::{Basis, find_hardware, milliseconds, needs, tokens, value_or};
use super::sizes;
use super::value::Placed;

/// An engine, and what follows for the model as a whole.
pub(super) struct Resolved {
    pub(super) spec: SchedulerSpec,
    pub(super) basis: Basis,
    pub(super) context_length: Tokens,
    /// The engine class's; the file can say otherwise.
    pub(super) request_overhead: SimSpan,
}

/// What the two ways of describing a model have in common.
pub(super) struct Parts {
    pub(super) cost: Roofline,
    pub(super) num_blocks: u64,
    pub(super) basis: Basis,
    pub(super) context: u64,
    pub(super) request_overhead: SimSpan,
    pub(super) prefill_order: PrefillOrder,
    pub(super) output_blocks: OutputBlocks,
}

pub(super) fn resolve(
    model: &raw::Model,
    profiles: &raw::Profiles,
    report: &mut Report<'_>,
    read_file: ReadFile<'_>,
) -> Option<Resolved> {
    let gpu = gpu(model, profiles, report);
    let class = engine_class(model, report);
    let limits = Limits::of(&model.settings, gpu.as_deref());
    let by_name = model.preset.is_some() || model.hf_config.is_some();
    let parts = if by_name {
        planned(model, gpu.as_deref(), class, &limits, report, read_file)
    } else {
        sizes::given(model, gpu.as_deref(), class, report)
    };
    consistent(model, &limits, report);
    let parts = parts?;
    let block_size = block_size(&model.settings);
    fits_one_request(model, parts.context, parts.num_blocks, block_size, report)?;
    let spec = SchedulerSpec {
        residual: residual(model, report),
        ..spec(&model.settings, &limits, &parts)
    };
    Some(Resolved {
        spec,
        basis: parts.basis,
        context_length: tokens(parts.context),
        request_overhead: parts.request_overhead,
    })
}

pub(super) const GIB: f64 = (1u64 << 30) as f64;

/// vLLM 0.33's default.
const DEFAULT_BLOCK_SIZE: u64 = 16;
/// vLLM 0.33's default.
pub(super) const DEFAULT_UTILIZATION: f64 = 0.92;
/// 268 million tokens at the usual block size; a simulated cache costs real memory per block.
pub(super) const MOST_BLOCKS: u64 = 1 << 24;

pub(super) fn block_size(settings: &raw::Settings) -> u64 {
    value_or(&settings.block_size, DEFAULT_BLOCK_SIZE)
}

/// `max_num_batched_tokens` and `max_num_seqs`; the GPU decides where nothing is said.
struct Limits {
    batch_tokens: u64,
    sequences: u64,
}

impl Limits {
    fn of(settings: &raw::Settings, gpu: Option<&GpuShape>) -> Self {
        // Without a GPU there is a problem already, and no engine comes of it.
        let (tokens, sequences) = gpu.map_or((Tokens::new(2048), 256), GpuShape::default_limits);
        Self {
            batch_tokens: value_or(&settings.max_batch_tokens, u64::from(tokens.get())),
            sequences: value_or(&settings.max_num_sequences, u64::from(sequences)),
        }
    }
}

/// The GPU that the model names: a profile of the file, or else one of the catalogue.
fn gpu<'a>(
    model: &raw::Model,
    profiles: &raw::Profiles,
    report: &mut Report<'_>,
) -> Option<Cow<'a, GpuShape>> {
    let Some(name) = &model.hardware else {
        let example =
            "hardware: h100-80gb-sxm, or the name of a profile of yours under `hardware:`";
        needs(model, raw::SCHEDULER, "hardware", example, report);
        return None;
    };
    if let Some(profile) = profiles.get(&name.value) {
        return complete_gpu(profile, report).map(Cow::Owned);
    }
    find_hardware(name, profiles, report);
    catalog::gpu(&name.value).ok().map(Cow::Borrowed)
}

fn complete_gpu(profile: &raw::Hardware, report: &mut Report<'_>) -> Option<GpuShape> {
    let mut number = |name: &str, value: &Option<Placed<f64>>| {
        if value.is_none() {
            let path = format!("{}.{name}", profile.name.path);
            if !report.mentions(&path) {
                let message = format!("`engine: scheduler` needs `{name}` of this profile");
                let hint = Hint::new("the vendor's data sheet says it");
                report.add(profile.name.at, &profile.name.path, message, hint);
            }
        }
        value.as_ref().map(|value| value.value)
    };
    let hbm_gib = number("hbm_gib", &profile.hbm_gib);
    let bandwidth = number("memory_bandwidth_gbps", &profile.memory_bandwidth_gbps);
    let peak = number("peak_tflops", &profile.peak_tflops);
    Some(GpuShape {
        id: profile.name.value.clone(),
        name: profile.name.value.clone(),
        hbm: bytes(hbm_gib? * GIB),
        bandwidth: bandwidth? * 1e9,
        bf16_peak: peak? * 1e12,
        fp8_peak: profile.fp8_tflops.as_ref().map(|tflops| tflops.value * 1e12),
        fp4_peak: profile.fp4_tflops.as_ref().map(|tflops| tflops.value * 1e12),
        link: profile.link_gbps.as_ref().map(|gbps| gbps.value * 1e9),
    })
}

/// `Ok(None)` if none is named.
fn engine_class(
    model: &raw::Model,
    report: &mut Report<'_>,
) -> Result<Option<&'static EngineClass>, Reported> {
    let Some(name) = &model.engine_class else { return Ok(None) };
    catalog::engine_class(&name.value).map(Some).map_err(|unknown| {
        let all = catalog::engine_classes().iter().map(|class| class.id);
        let hint = candidates(&unknown, all);
        report.add(name.at, &name.path, format!("there is no engine class `{}`", name.value), hint);
        Reported
    })
}

/// Something that has been put into the report.
pub(super) struct Reported;

/// What a name of the catalogue could have been.
pub(super) fn candidates<'a>(
    unknown: &catalog::Unknown,
    all: impl Iterator<Item = &'a str> + Clone,
) -> Hint {
    match &unknown.candidates[..] {
        [] => Hint::new(format!("there are {}", all.collect::<Vec<_>>().join(", "))),
        [one] => Hint::new(format!("did you mean `{one}`?")),
        several => Hint::new(format!("did you mean one of {}?", several.join(", "))),
    }
}

/// A model by name or by its `config.json`.
fn planned(
    model: &raw::Model,
    gpu: Option<&GpuShape>,
    class: Result<Option<&'static EngineClass>, Reported>,
    limits: &Limits,
    report: &mut Report<'_>,
    read_file: ReadFile<'_>,
) -> Option<Parts> {
    let shape = shape(model, report, read_file);
    let context = match (&model.context_length, &shape) {
        (Some(typed), Some(shape)) if typed.value > u64::from(shape.max_context.get()) => {
            let most = shape.max_context;
            let message = format!("`{}` was trained for at most {most} tokens", shape.id);
            report.add(typed.at, &typed.path, message, Hint::new(format!("write {most} or less")));
            None
        }
        (Some(typed), _) => Some(typed.value),
        (None, Some(shape)) => Some(u64::from(shape.max_context.get())),
        (None, None) => None,
    };
    already_known(model, report);
    let (gpu, shape, class) = (gpu?, shape?, class.ok()?.unwrap_or(EngineClass::generic()));

    let settings = &model.settings;
    let deployment = Deployment {
        gpu,
        model: &shape,
        tensor_parallel_size: tensor_parallel(model),
        weight_dtype: value_or(&model.dtype, WeightDtype::Auto),
        kv_cache_dtype: value_or(&settings.kv_cache_dtype, KvCacheDtype::Auto),
        class,
        efficiency: adjusted(class.efficiency, model),
        memory: catalog::Memory {
            gpu_memory_utilization: value_or(&settings.gpu_memory_utilization, DEFAULT_UTILIZATION),
            block_size: tokens(block_size(settings)),
            max_num_batched_tokens: tokens(limits.batch_tokens),
            max_num_seqs: limits.sequences as u32,
            num_gpu_blocks_override: settings
                .num_blocks
                .as_ref()
                .map(|blocks| Blocks::new(blocks.value as u32)),
        },
    };
    match deployment.plan() {
        Ok(plan) => Some(Parts {
            cost: plan.cost,
            num_blocks: u64::from(plan.num_blocks.get()).min(MOST_BLOCKS),
            basis: Basis::Planned(Box::new(plan.derived)),
            context: context?,
            request_overhead: class.request_overhead,
            prefill_order: class.prefill_order,
            output_blocks: class.output_blocks,
        }),
        Err(problems) => {
            for problem in problems {
                let (at, path) = place_of(model, problem.field);
                report.add(at, &path, problem.message, Hint::new(problem.hint));
            }
            None
        }
    }
}

/// Where the key stands that the catalogue complains about; the model, if it is not written.
fn place_of(model: &raw::Model, field: &str) -> (super::tree::Place, String) {
    let named = match field {
        "model" => model.preset.as_ref().or(model.hf_config.as_ref()),
        "hardware" => model.hardware.as_ref(),
        _ => None,
    };
    let number = model.tensor_parallel.as_ref().filter(|_| field == "tensor_parallel_size");
    match (named, number) {
        (Some(name), _) => (name.at, name.path.clone()),
        (None, Some(number)) => (number.at, number.path.clone()),
        (None, None) => (model.at, model.path.clone()),
    }
}

fn shape(
    model: &raw::Model,
    report: &mut Report<'_>,
    read_file: ReadFile<'_>,
) -> Option<ModelShape> {
    match (&model.preset, &model.hf_config) {
        (Some(_), Some(file)) => {
            let message = "`model` and `hf_config` both say which model it is";
            report.add(file.at, &file.path, message, Hint::new("keep one of them"));
            None
        }
        (Some(preset), None) => match catalog::model(&preset.value) {
            Ok(shape) => Some(shape.clone()),
            Err(unknown) => {
                let hint = candidates(&unknown, catalog::models().map(|model| model.id.as_str()));
                let message = format!("there is no model `{}` in the catalogue", preset.value);
                report.add(preset.at, &preset.path, message, hint);
                None
            }
        },
        (None, Some(file)) => {
            let hint = "hf_config names a Hugging Face config.json; the path starts at the working \
                        directory";
            let text = match read_file(&file.value) {
                Ok(text) => text,
                Err(why) => {
                    report.add(file.at, &file.path, why, Hint::new(hint));
                    return None;
                }
            };
            match catalog::derive(&file.value, &text) {
                Ok(shape) => Some(shape),
                Err(why) => {
                    let message = format!("{}: {why}", file.value);
                    report.add(file.at, &file.path, message, Hint::new(hint));
                    None
                }
            }
        }
        (None, None) => None,
    }
}

/// With a named model its sizes are known; saying them again could only contradict.
fn already_known(model: &raw::Model, report: &mut Report<'_>) {
    let key = if model.preset.is_some() { "model" } else { "hf_config" };
    let hint = || Hint::new(format!("remove it, or remove `{key}` and give all sizes yourself"));
    if let Some(weights) = &model.weights {
        let message = format!("`weights` follow from `{key}`");
        report.add(weights.at, &weights.path, message, hint());
    }
    if let Some(kv_cache) = &model.kv_cache {
        if let Some(bytes) = &kv_cache.bytes_per_token {
            let message = format!("`bytes_per_token` follows from `{key}`");
            report.add(bytes.at, &bytes.path, message, hint());
        }
        if let Some(gib) = &kv_cache.gib {
            let message = format!("with `{key}` the size of the KV cache follows");
            let hint = "remove it, or set `num_gpu_blocks_override` or `gpu_memory_utilization`";
            report.add(gib.at, &gib.path, message, Hint::new(hint));
        }
    }
}

pub(super) fn tensor_parallel(model: &raw::Model) -> u32 {
    model.tensor_parallel.as_ref().map_or(1, |gpus| gpus.value as u32)
}

/// vLLM's rule, too: unless one request of `context_length` fits the cache, it could wait for ever.
fn fits_one_request(
    model: &raw::Model,
    context: u64,
    num_blocks: u64,
    block_size: u64,
    report: &mut Report<'_>,
) -> Option<()> {
    // Block 0 is a placeholder.
    let fits = (num_blocks - 1) * block_size;
    if fits >= context {
        return Some(());
    }
    let (at, path) = match (&model.settings.num_blocks, &model.context_length) {
        (Some(blocks), _) => (blocks.at, &blocks.path),
        (None, Some(length)) => (length.at, &length.path),
        (None, None) => (model.at, &model.path),
    };
    let message = format!(
        "the KV cache holds {fits} tokens ({} blocks of {block_size}), less than one request of \
         context_length {context}",
        num_blocks - 1
    );
    let hint = match model.settings.num_blocks {
        Some(_) => format!(
            "write {} blocks, or lower context_length to {fits} or less",
            context.div_ceil(block_size) + 1
        ),
        None if model.context_length.is_none() => {
            format!("write context_length: {fits} or less, or give the cache more memory")
        }
        None => format!("lower context_length to {fits} or less, or give the cache more memory"),
    };
    report.add(at, path, message, Hint::new(hint));
    None
}

/// The settings that must agree with each other, whatever the model.
fn consistent(model: &raw::Model, limits: &Limits, report: &mut Report<'_>) {
    let settings = &model.settings;
    if let (Some(chunked), Some(context)) = (&settings.chunked_prefill, &model.context_length)
        && !chunked.value
        && limits.batch_tokens < context.value
    {
        let message = format!(
            "without chunked prefill a prompt must fit into one step, but max_batch_tokens ({}) is \
             below context_length ({})",
            limits.batch_tokens, context.value
        );
        let hint =
            format!("raise max_batch_tokens to {}, or leave chunked prefill on", context.value);
        report.add(chunked.at, &chunked.path, message, Hint::new(hint));
    }
    if let Some(active) = &settings.max_num_active_seqs
        && active.value > limits.sequences
    {
        let (active, most) = (active, limits.sequences);
        let message =
            format!("must be at most max_num_sequences ({most}), but is {}", active.value);
        report.add(active.at, &active.path, message, Hint::NONE);
    }
}

/// The class's constants, with what the file says of its own.
pub(super) fn adjusted(base: Efficiency, model: &raw::Model) -> Efficiency {
    let typed = &model.efficiency;
    let share = |own: &Option<Placed<f64>>, shorthand: Option<&Placed<f64>>, base: f64| {
        own.as_ref().or(shorthand).map_or(base, |value| value.value)
    };
    let time = |own: &Option<Placed<f64>>, unit: f64, base: f64| {
        own.as_ref().map_or(base, |value| value.value * unit)
    };
    let (compute, memory) = (typed.compute.as_ref(), typed.memory.as_ref());
    // Calibration stretches all terms alike: rates shrink, times grow.
    let scale = value_or(&typed.scale, 1.0);
    let step_overhead = milliseconds(model.latency.scheduler_overhead_ms.as_ref()).as_secs_f64();
    let host_per_step = time(&typed.host_per_step_ms, 1e-3, base.host_per_step);
    Efficiency {
        weight_bandwidth: share(&typed.weight_bandwidth, memory, base.weight_bandwidth) / scale,
        linear_compute: share(&typed.linear_compute, compute, base.linear_compute) / scale,
        kv_bandwidth: share(&typed.kv_bandwidth, memory, base.kv_bandwidth) / scale,
        attention_compute: share(&typed.attention_compute, compute, base.attention_compute) / scale,
        link_bandwidth: share(&typed.link_bandwidth, None, base.link_bandwidth) / scale,
        all_reduce_latency: scale
            * time(&typed.all_reduce_latency_us, 1e-6, base.all_reduce_latency),
        host_per_step: scale * host_per_step + step_overhead,
        host_per_layer: scale * time(&typed.host_per_layer_us, 1e-6, base.host_per_layer),
        host_per_sequence: scale * time(&typed.host_per_sequence_us, 1e-6, base.host_per_sequence),
        launch_per_layer: scale * time(&typed.launch_per_layer_us, 1e-6, base.launch_per_layer),
        overlap: typed.overlap.as_ref().map_or(base.overlap, |p| Overlap::Norm(p.value)),
    }
}

/// `step_residual:`; what it does not say does nothing.
fn residual(model: &raw::Model, report: &mut Report<'_>) -> Option<Residual> {
    /// Beyond this a mean says nothing.
    const MOST: f64 = 1_000.0;
    let section = model.step_residual.as_ref()?;
    if let Some(factor) = section.tail_factor.as_ref().filter(|factor| factor.value > MOST) {
        let message = format!("`tail_factor` is {}, more than {MOST}", factor.value);
        let hint = "a pause of seconds is a fault, not jitter: see `faults:`";
        report.add(factor.at, &factor.path, message, Hint::new(hint));
    }
    if let Some(share) = section.tail_probability.as_ref().filter(|share| share.value > 0.5) {
        let message = format!("`tail_probability` is {}, more than half", share.value);
        let hint = "it is the share of steps that take unusually long; write 0.5 or less";
        report.add(share.at, &share.path, message, Hint::new(hint));
    }
    Some(Residual {
        seed: value_or(&section.seed, 0),
        sigma: value_or(&section.sigma, 0.0),
        tail_probability: value_or(&section.tail_probability, 0.0),
        tail_factor: value_or(&section.tail_factor, 1.0),
    })
}

fn spec(settings: &raw::Settings, limits: &Limits, parts: &Parts) -> SchedulerSpec {
    let count = |value: &Option<Placed<u64>>| value.as_ref().map(|value| value.value as u32);
    SchedulerSpec {
        max_num_batched_tokens: tokens(limits.batch_tokens),
        max_num_seqs: limits.sequences as u32,
        max_num_active_seqs: count(&settings.max_num_active_seqs),
        max_model_len: tokens(parts.context),
        block_size: tokens(block_size(settings)),
        num_blocks: Blocks::new(parts.num_blocks as u32),
        prefix_caching: value_or(&settings.prefix_caching, true),
        policy: match settings.policy.as_ref().map(|policy| policy.value) {
            Some("priority") => Policy::Priority,
            _ => Policy::Fcfs,
        },
        long_prefill_token_threshold: tokens(value_or(&settings.long_prefill_token_threshold, 0)),
        long_prefill_adaptive: value_or(&settings.long_prefill_adaptive, false),
        chunked_prefill: value_or(&settings.chunked_prefill, true),
        reserve_full_isl: value_or(&settings.reserve_full_isl, true),
        watermark: value_or(&settings.watermark, 0.0),
        prefill_interval: value_or(&settings.prefill_interval, 1) as u32,
        scheduling: if value_or(&settings.async_scheduling, true) {
            Scheduling::Asynchronous
        } else {
            Scheduling::Synchronous
        },
        max_num_queued_reqs: count(&settings.max_num_queued_reqs),
        freed_blocks: match settings.freed_blocks.as_ref().map(|freed| freed.value) {
            Some("all_last") => FreedBlocks::AllLast,
            _ => FreedBlocks::UncachedFirst,
        },
        prefill_order: match settings.prefill_order.as_ref().map(|order| order.value) {
            Some("first") => PrefillOrder::First,
            Some(_) => PrefillOrder::Mixed,
            None => parts.prefill_order,
        },
        output_blocks: match settings.output_blocks.as_ref().map(|blocks| blocks.value) {
            Some("reserved") => OutputBlocks::Reserved,
            Some(_) => OutputBlocks::AsNeeded,
            None => parts.output_blocks,
        },
        cost: StepCost::Roofline(parts.cost.clone()),
        residual: None,
    }
}

pub(super) fn bytes(count: f64) -> Bytes {
    Bytes::new(count.round() as u64)
}
