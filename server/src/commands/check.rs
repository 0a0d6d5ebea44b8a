//! `--check`: both files are valid, and this is what follows from them.

use std::fmt::Write as _;

use llmsim_engine::catalog::{DECODE_CONTEXT, decode_batches};
use llmsim_engine::config::{Basis, BlocksFrom, Memory, ModelSpec};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::cost::StepShape;
use llmsim_engine::sim::scheduler::{Policy, SchedulerSpec, Scheduling};
use llmsim_engine::sim::solo::FixedRateSpec;
use llmsim_engine::units::SimSpan;

use crate::args::Files;

/// Validates both files and tells what follows.
///
/// # Errors
/// What is wrong with them, as the whole message.
pub fn run(files: &Files) -> Result<String, String> {
    let config = super::load(files)?;
    let mut out = format!("{} and {} are valid\n", files.models, files.responses);
    for rule in &config.faults.rules {
        writeln!(out, "fault: {}", rule.text).expect("writing to a string cannot fail");
    }
    for model in &config.models {
        describe(model, &mut out).expect("writing to a string cannot fail");
    }
    Ok(out)
}

fn describe(model: &ModelSpec, out: &mut String) -> std::fmt::Result {
    write!(out, "\n{}: context {} tokens", model.name, model.context_length)?;
    if model.replicas > 1 {
        write!(out, ", {} replicas", model.replicas)?;
    }
    match &model.engine {
        EngineSpec::Instant => writeln!(out, "\n  instant: every token at once"),
        EngineSpec::FixedRate(spec) => fixed_rate(spec, out),
        EngineSpec::Scheduler(spec) => scheduler(spec, model, out),
    }
}

fn fixed_rate(spec: &FixedRateSpec, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n  fixed_rate: first token after {} + prompt / {} tokens/s, then one every {:.3} ms",
        spec.overhead,
        spec.prefill.as_f64(),
        spec.decode.time_for(1).as_secs_f64() * 1e3,
    )
}

fn scheduler(spec: &SchedulerSpec, model: &ModelSpec, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "\n  scheduler: {} sequences, {} tokens per step, prefix caching {}, {}, {} scheduling",
        spec.max_num_seqs,
        spec.max_num_batched_tokens,
        if spec.prefix_caching { "on" } else { "off" },
        match spec.policy {
            Policy::Fcfs => "first come first served",
            Policy::Priority => "by priority",
        },
        match spec.scheduling {
            Scheduling::Asynchronous => "asynchronous",
            Scheduling::Synchronous => "synchronous",
        },
    )?;
    match &model.basis {
        Some(Basis::Planned(derived)) => {
            for line in derived.to_string().lines() {
                writeln!(out, "  {line}")?;
            }
        }
        Some(Basis::Given(memory)) => given(spec, memory, out)?,
        None => {}
    }
    let usable = u64::from(spec.num_blocks.get() - 1) * u64::from(spec.block_size.get());
    writeln!(
        out,
        "  room for {:.1} requests of full context at once",
        usable as f64 / f64::from(spec.max_model_len.get()),
    )?;
    if model.request_overhead > SimSpan::ZERO {
        writeln!(
            out,
            "  {} from a request's arrival to the engine's queue",
            model.request_overhead
        )?;
    }
    Ok(())
}

fn given(spec: &SchedulerSpec, memory: &Memory, out: &mut String) -> std::fmt::Result {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    writeln!(
        out,
        "  memory     {:.1} GiB on each of {} x {}: weights {:.1} GiB, KV cache {:.1} GiB",
        gib(memory.hbm.get()),
        memory.tensor_parallel,
        memory.hardware,
        gib(memory.weights.get()),
        gib(memory.kv_cache.get()),
    )?;
    let usable = u64::from(spec.num_blocks.get()) - 1;
    let block = u64::from(spec.block_size.get());
    writeln!(
        out,
        "  capacity   {} tokens in {usable} blocks of {block} ({}), {:.0} bytes per token",
        usable * block,
        match memory.blocks {
            BlocksFrom::Setting => "as set",
            BlocksFrom::Memory => "what the weights leave",
        },
        memory.kv_per_token,
    )?;
    write!(out, "  decode     ")?;
    for (place, batch) in decode_batches(spec.max_num_seqs, usable * block).enumerate() {
        let time = spec.cost.time(&StepShape {
            sequences: batch,
            decodes: batch,
            decode_context: u64::from(batch) * DECODE_CONTEXT,
            sampled: batch,
            ..StepShape::default()
        });
        let comma = if place == 0 { "" } else { ", " };
        let (ms, bound) = (time.total.as_secs_f64() * 1e3, time.bound.as_str());
        write!(out, "{comma}{ms:.2} ms at batch {batch} ({bound}-bound)")?;
    }
    writeln!(out, " ({DECODE_CONTEXT} tokens of context)")?;
    let chunk = u64::from(spec.max_num_batched_tokens.get().min(spec.max_model_len.get()));
    let time = spec.cost.time(&StepShape {
        sequences: 1,
        chunks: 1,
        chunk_tokens: chunk,
        chunk_pairs_doubled: u128::from(chunk) * u128::from(chunk),
        sampled: 1,
        ..StepShape::default()
    });
    let seconds = time.total.as_secs_f64().max(1e-9);
    writeln!(
        out,
        "  prefill    {:.0} tokens/s ({} tokens in {:.2} ms, {}-bound)",
        chunk as f64 / seconds,
        chunk,
        seconds * 1e3,
        time.bound.as_str(),
    )
}
