//! What `models.yml` means: each model with the settings of its engine, complete and consistent.
//!
//! Here keys are looked at together: a model's engine and the sections that it needs, a name and
//! the profile behind it, a cache and the context that must fit into it. The invariant: a
//! [`ModelSpec`] holds no `Option` that means 'checked elsewhere'.

use crate::catalog::{self, Derived};
use crate::sim::EngineSpec;
use crate::sim::solo::FixedRateSpec;
use crate::text::model_tokenizer::Tokenizer;
use crate::text::responses::Thinking;
use crate::units::{Bytes, ModelId, Rate, SimSpan, Tokens};

use super::ReadFile;
use super::problem::{Hint, Report, nearest};
use super::raw;
use super::scheduler;
use super::tokenizer::Tokenizers;
use super::value::Placed;

/// A model as the server serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Its place in the file.
    pub id: ModelId,
    /// What clients ask for; unique.
    pub name: String,
    /// The most tokens of prompt and output together.
    pub context_length: Tokens,
    /// How text is counted.
    pub tokenizer: Tokenizer,
    /// Whether its answers think before they speak.
    pub reasoning: Thinking,
    /// When tokens are sent.
    pub engine: EngineSpec,
    /// How many simulated GPUs (or groups of `tensor_parallel_size` GPUs) serve it, each with its
    /// own engine.
    pub replicas: u16,
    /// How many GPUs share it in each of these groups.
    pub tensor_parallel: u32,
    /// Time between a request's arrival and its place in the engine's queue: what a server spends
    /// on it outside of steps.
    pub request_overhead: SimSpan,
    /// What a scheduler model's settings were worked out from; `None` for the other engines.
    pub basis: Option<Basis>,
}

/// What a scheduler model's settings were worked out from, for people to read.
#[derive(Clone, Debug, PartialEq)]
pub enum Basis {
    /// A model of the catalogue or a `config.json`.
    Planned(Box<Derived>),
    /// Sizes in the file itself.
    Given(Memory),
}

/// Where the memory of a simulated GPU goes: what the number of blocks was worked out from.
#[derive(Clone, Debug, PartialEq)]
pub struct Memory {
    /// The hardware profile or catalogue name.
    pub hardware: String,
    /// GPUs that share the model.
    pub tensor_parallel: u32,
    /// Memory of one of them.
    pub hbm: Bytes,
    /// `gpu_memory_utilization`: the share of it that the engine may use.
    pub gpu_memory_utilization: f64,
    /// Weights on one of them.
    pub weights: Bytes,
    /// KV cache on one of them.
    pub kv_cache: Bytes,
    /// KV-cache bytes per token of context on one of them.
    pub kv_per_token: f64,
    /// Said by the file, or worked out from the memory?
    pub blocks: BlocksFrom,
}

/// Where the number of blocks comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksFrom {
    /// `num_gpu_blocks_override`.
    Setting,
    /// The memory that the weights leave.
    Memory,
}

/// The models of the file; those with problems are left out, which nobody sees, since problems keep
/// the configuration from existing.
pub(super) fn models(
    typed: &raw::Models,
    report: &mut Report<'_>,
    read_file: ReadFile<'_>,
) -> Vec<ModelSpec> {
    unique_names(typed, report);
    let mut tokenizers = Tokenizers::beside(report.name());
    let mut specs = Vec::new();
    for (index, model) in typed.models.iter().enumerate() {
        let Ok(id) = u16::try_from(index) else {
            report.add(model.at, &model.path, "more than 65535 models", Hint::NONE);
            break;
        };
        let tokenizer = tokenizers.find(model.tokenizer.as_ref(), report, read_file);
        let spec = resolve(model, ModelId(id), &typed.hardware, report, read_file);
        specs.extend(spec.map(|spec| ModelSpec { tokenizer, ..spec }));
    }
    specs
}

fn unique_names(typed: &raw::Models, report: &mut Report<'_>) {
    let mut seen: std::collections::BTreeMap<&str, u32> = std::collections::BTreeMap::new();
    for name in typed.models.iter().filter_map(|model| model.name.as_ref()) {
        if let Some(line) = seen.get(name.value.as_str()) {
            let message =
                format!("the model name `{}` is used twice; first on line {line}", name.value);
            report.add(
                name.at,
                &name.path,
                message,
                Hint::new("give each model a name of its own"),
            );
        } else {
            seen.insert(&name.value, name.at.line);
        }
    }
}

fn resolve(
    model: &raw::Model,
    id: ModelId,
    profiles: &raw::Profiles,
    report: &mut Report<'_>,
    read_file: ReadFile<'_>,
) -> Option<ModelSpec> {
    // An engine that was misspelt is no reason to complain about the sections of another one.
    let engine = match &model.engine {
        Some(engine) => engine.value,
        None if model.engine_written => return None,
        None => raw::INSTANT,
    };
    let overhead = model.latency.request_overhead_ms.as_ref().map(|ms| milliseconds(Some(ms)));
    let name = model.name.as_ref().map(|name| name.value.clone());
    let replicas = model.replicas.as_ref().map_or(1, |replicas| replicas.value as u16);

    if engine == raw::SCHEDULER {
        let resolved = scheduler::resolve(model, profiles, report, read_file)?;
        return Some(ModelSpec {
            id,
            name: name?,
            context_length: resolved.context_length,
            tokenizer: Tokenizer::Regex,
            reasoning: model.reasoning,
            engine: EngineSpec::Scheduler(Box::new(resolved.spec)),
            replicas,
            tensor_parallel: scheduler::tensor_parallel(model),
            request_overhead: overhead.unwrap_or(resolved.request_overhead),
            basis: Some(resolved.basis),
        });
    }

    if let Some(residual) = &model.step_residual {
        let message = format!("`engine: {engine}` has no steps that could stray");
        let hint = "remove it, or use `engine: scheduler`";
        report.add(residual.at, &residual.path, message, Hint::new(hint));
    }
    if let Some(hardware) = &model.hardware {
        find_hardware(hardware, profiles, report);
    }
    if model.context_length.is_none() {
        missing(model, "context_length", report);
    }
    let engine = match engine {
        raw::FIXED_RATE => fixed_rate(model, report).map(EngineSpec::FixedRate),
        _ => Some(EngineSpec::Instant),
    };
    Some(ModelSpec {
        id,
        name: name?,
        context_length: tokens(model.context_length.as_ref()?.value),
        tokenizer: Tokenizer::Regex,
        reasoning: model.reasoning,
        replicas,
        tensor_parallel: scheduler::tensor_parallel(model),
        // `instant` is instant.
        request_overhead: match &engine {
            Some(EngineSpec::Instant) | None => SimSpan::ZERO,
            Some(_) => overhead.unwrap_or(SimSpan::ZERO),
        },
        engine: engine?,
        basis: None,
    })
}

/// `context_length` is required and was not written. If it was written but wrong, that has been
/// reported.
pub(super) fn missing(model: &raw::Model, name: &str, report: &mut Report<'_>) {
    if !report.mentions(&format!("{}.{name}", model.path)) {
        let hint = Hint::new("the most tokens of prompt and answer together, for example 32768");
        report.add(model.at, &model.path, format!("`{name}` is missing"), hint);
    }
}

/// Reports a name that is neither a profile of the file nor in the catalogue.
pub(super) fn find_hardware(
    name: &Placed<String>,
    profiles: &raw::Profiles,
    report: &mut Report<'_>,
) {
    if profiles.contains_key(&name.value) {
        return;
    }
    let Err(unknown) = catalog::gpu(&name.value) else { return };
    let own = profiles.keys().map(String::as_str);
    let near = report.is_read().then(|| nearest(&name.value, own)).flatten();
    let hint = match near {
        Some(near) => Hint::new(format!("did you mean `{near}`?")),
        None => scheduler::candidates(&unknown, catalog::gpus().map(|gpu| gpu.id.as_str())),
    };
    let message = format!("there is no hardware profile `{}`", name.value);
    report.add(name.at, &name.path, message, hint);
}

fn fixed_rate(model: &raw::Model, report: &mut Report<'_>) -> Option<FixedRateSpec> {
    let Some(performance) = &model.performance else {
        let hint =
            "performance: { prefill_tokens_per_second: 100000, decode_tokens_per_second: 250 }";
        needs(model, raw::FIXED_RATE, "performance", hint, report);
        return None;
    };
    let mut rate = |name: &str, value: &Option<Placed<f64>>, example: &str| match value {
        Some(value) => Rate::per_second(value.value),
        None => {
            let path = format!("{}.{name}", performance.path);
            if !report.mentions(&path) {
                let message = format!("`engine: fixed_rate` needs `{name}`");
                let hint = Hint::new(format!("write {name}: {example}"));
                report.add(performance.at, &performance.path, message, hint);
            }
            None
        }
    };
    let prefill = &performance.prefill_tokens_per_second;
    let prefill = rate("prefill_tokens_per_second", prefill, "100000");
    let decode = &performance.decode_tokens_per_second;
    let decode = rate("decode_tokens_per_second", decode, "250");
    let overhead = milliseconds(model.latency.scheduler_overhead_ms.as_ref());
    Some(FixedRateSpec { overhead, prefill: prefill?, decode: decode? })
}

/// The model's engine needs a section that the model does not define.
pub(super) fn needs(
    model: &raw::Model,
    engine: &str,
    section: &str,
    example: &str,
    report: &mut Report<'_>,
) {
    let path = format!("{}.{section}", model.path);
    if report.mentions(&path) {
        return;
    }
    let at = model.engine.as_ref().map_or(model.at, |engine| engine.at);
    let message = format!("`engine: {engine}` needs `{section}`, which the model does not define");
    report.add(at, &model.path, message, Hint::new(format!("write {example}")));
}

pub(super) fn value_or<T: Copy>(value: &Option<Placed<T>>, default: T) -> T {
    value.as_ref().map_or(default, |value| value.value)
}

/// Ranges of `raw` keep token counts inside 32 bits.
pub(super) fn tokens(count: u64) -> Tokens {
    Tokens::new(u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) fn milliseconds(value: Option<&Placed<f64>>) -> SimSpan {
    value.map_or(SimSpan::ZERO, |ms| SimSpan::from_secs_f64(ms.value / 1e3))
}
