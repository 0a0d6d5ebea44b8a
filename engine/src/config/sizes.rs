//! A scheduler model whose sizes the file itself gives: a textbook roofline.
//!
//! The counterpart of a plan of the catalogue. The invariant: the KV cache and the weights share
//! the part of the memory that `gpu_memory_utilization` allows, unless the file says how many
//! blocks there are.

use crate::catalog::{EngineClass, GpuShape};
use crate::sim::scheduler::cost::{IdealRoofline, Roofline};
use crate::sim::scheduler::{OutputBlocks, PrefillOrder};
use crate::units::SimSpan;

use super::problem::{Hint, Report};
use super::raw;
use super::resolve::{Basis, BlocksFrom, Memory, missing, needs, value_or};
use super::scheduler::{
    DEFAULT_UTILIZATION, GIB, MOST_BLOCKS, Parts, Reported, adjusted, block_size, bytes,
    tensor_parallel,
};

/// Sizes in the file itself.
pub(super) fn given(
    model: &raw::Model,
    gpu: Option<&GpuShape>,
    class: Result<Option<&'static EngineClass>, Reported>,
    report: &mut Report<'_>,
) -> Option<Parts> {
    if !model.has_scheduler {
        let example = "scheduler: { max_batch_tokens: 8192, max_num_sequences: 256 }";
        needs(model, raw::SCHEDULER, "scheduler", example, report);
    }
    if model.context_length.is_none() {
        missing(model, "context_length", report);
    }
    for (dtype, instead) in [
        (model.dtype.as_ref().map(|it| (it.at, &it.path)), "bytes_per_parameter under `weights:`"),
        (
            model.settings.kv_cache_dtype.as_ref().map(|it| (it.at, &it.path)),
            "bytes_per_token for that type",
        ),
    ] {
        if let Some((at, path)) = dtype {
            let message = "only counts together with `model` or `hf_config`";
            report.add(at, path, message, Hint::new(format!("write {instead}")));
        }
    }
    let weights = match &model.weights {
        Some(weights) => weights_of(weights, report),
        None => {
            let example = "weights: { parameters_billion: 7.6, bytes_per_parameter: 2 }, or `model:` \
                           with a name of the catalogue";
            needs(model, raw::SCHEDULER, "weights", example, report);
            None
        }
    };
    let kv_per_token = kv_bytes_per_token(model, report);
    let (gpu, weights, kv_per_token) = (gpu?, weights?, kv_per_token?);
    let class = class.ok()?;

    let settings = &model.settings;
    let gpus = f64::from(tensor_parallel(model));
    let hbm = gpu.hbm.get() as f64;
    let share = value_or(&settings.gpu_memory_utilization, DEFAULT_UTILIZATION);
    let weights_per_gpu = weights.bytes / gpus;
    let bytes_per_block = kv_per_token * block_size(settings) as f64 / gpus;
    let kv_cache = match model.kv_cache.as_ref().and_then(|kv_cache| kv_cache.gib.as_ref()) {
        Some(gib) => gib.value * GIB,
        None => hbm * share - weights_per_gpu,
    };
    let num_blocks = match &settings.num_blocks {
        Some(blocks) => blocks.value,
        None if kv_cache < bytes_per_block * 2.0 => {
            no_room(model, gpu, weights_per_gpu, share, report);
            return None;
        }
        None => (kv_cache / bytes_per_block).min(MOST_BLOCKS as f64) as u64,
    };
    let ideal = Roofline::ideal(&IdealRoofline {
        weight_bytes: weights.bytes,
        active_parameters: weights.active_parameters,
        kv_bytes_per_token: kv_per_token,
        bandwidth: gpu.bandwidth,
        peak: gpu.bf16_peak,
        compute_efficiency: 1.0,
        memory_efficiency: 1.0,
        overhead: SimSpan::ZERO,
    });
    let efficiency = class.map_or(ideal.efficiency, |class| class.efficiency);
    let cost = Roofline {
        tensor_parallel: gpus,
        kv_shards: gpus,
        efficiency: adjusted(efficiency, model),
        ..ideal
    };
    let basis = Basis::Given(Memory {
        hardware: gpu.name.clone(),
        tensor_parallel: tensor_parallel(model),
        hbm: gpu.hbm,
        gpu_memory_utilization: share,
        weights: bytes(weights_per_gpu),
        kv_cache: bytes(num_blocks as f64 * bytes_per_block),
        kv_per_token: kv_per_token / gpus,
        blocks: match settings.num_blocks {
            Some(_) => BlocksFrom::Setting,
            None => BlocksFrom::Memory,
        },
    });
    let context = model.context_length.as_ref()?.value;
    let request_overhead = class.map_or(SimSpan::ZERO, |class| class.request_overhead);
    let prefill_order = class.map_or(PrefillOrder::Mixed, |class| class.prefill_order);
    let output_blocks = class.map_or(OutputBlocks::AsNeeded, |class| class.output_blocks);
    Some(Parts { cost, num_blocks, basis, context, request_overhead, prefill_order, output_blocks })
}

struct WeightSize {
    bytes: f64,
    active_parameters: f64,
}

/// `weights` gives a size, a number of parameters, or both.
fn weights_of(weights: &raw::Weights, report: &mut Report<'_>) -> Option<WeightSize> {
    let parameters = weights.parameters_billion.as_ref().map(|billion| billion.value * 1e9);
    let size = weights.gib.as_ref().map(|gib| gib.value * GIB);
    let per_parameter = value_or(&weights.bytes_per_parameter, 2.0);
    if let (Some(gib), Some(_), Some(each)) =
        (&weights.gib, parameters, &weights.bytes_per_parameter)
    {
        let message =
            "`gib`, `parameters_billion` and `bytes_per_parameter` say one thing too many";
        let hint = format!("remove `gib` or, on line {}, `bytes_per_parameter`", each.at.line);
        report.add(gib.at, &weights.path, message, Hint::new(hint));
        return None;
    }
    let (bytes, parameters) = match (size, parameters) {
        (Some(bytes), Some(parameters)) => (bytes, parameters),
        (Some(bytes), None) => (bytes, bytes / per_parameter),
        (None, Some(parameters)) => (parameters * per_parameter, parameters),
        (None, None) => {
            if !report.mentions(&weights.path) {
                let message = "`weights` needs `parameters_billion` or `gib`";
                let hint = "write weights: { parameters_billion: 7.6, bytes_per_parameter: 2 }";
                report.add(weights.at, &weights.path, message, Hint::new(hint));
            }
            return None;
        }
    };
    let active = match &weights.active_parameters_billion {
        Some(active) if active.value * 1e9 > parameters => {
            let message = format!(
                "must be at most all parameters ({} billion), but is {}",
                parameters / 1e9,
                active.value
            );
            report.add(active.at, &active.path, message, Hint::NONE);
            return None;
        }
        Some(active) => active.value * 1e9,
        None => parameters,
    };
    Some(WeightSize { bytes, active_parameters: active })
}

fn kv_bytes_per_token(model: &raw::Model, report: &mut Report<'_>) -> Option<f64> {
    let example = "kv_cache: { bytes_per_token: 131072 }";
    let Some(kv_cache) = &model.kv_cache else {
        needs(model, raw::SCHEDULER, "kv_cache", example, report);
        return None;
    };
    if kv_cache.bytes_per_token.is_none() && !report.mentions(&kv_cache.path) {
        let message = "`engine: scheduler` needs `bytes_per_token`";
        let hint = "2 x layers x KV heads x head size x bytes per value; 131072 for Llama 3.1 8B";
        report.add(kv_cache.at, &kv_cache.path, message, Hint::new(hint));
    }
    kv_cache.bytes_per_token.as_ref().map(|bytes| bytes.value as f64)
}

fn no_room(
    model: &raw::Model,
    gpu: &GpuShape,
    weights_per_gpu: f64,
    share: f64,
    report: &mut Report<'_>,
) {
    let (at, path) = match &model.hardware {
        Some(hardware) => (hardware.at, &hardware.path),
        None => (model.at, &model.path),
    };
    let hbm = gpu.hbm.get() as f64;
    let message = format!(
        "the weights ({:.1} GiB) leave no room for a KV cache in the {:.1} GiB of `{}` that may be \
         used ({:.0} % of {:.1} GiB)",
        weights_per_gpu / GIB,
        hbm * share / GIB,
        gpu.id,
        share * 100.0,
        hbm / GIB,
    );
    let all = weights_per_gpu * f64::from(tensor_parallel(model));
    let enough = (1..=6).map(|doublings| 1 << doublings).find(|&gpus: &u32| {
        gpus > tensor_parallel(model) && all / f64::from(gpus) < hbm * share * 0.95
    });
    let hint = match enough {
        Some(gpus) => format!(
            "use a larger GPU or smaller weights, or spread them: tensor_parallel_size: {gpus}"
        ),
        None => "use a larger GPU or smaller weights".to_owned(),
    };
    report.add(at, path, message, Hint::new(hint));
}
