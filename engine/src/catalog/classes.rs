//! Engine classes: how near to the hardware's peaks a kind of engine comes.

use std::sync::LazyLock;

use super::{Row, Unknown, find};
use crate::sim::scheduler::cost::{Efficiency, Overlap};
use crate::sim::scheduler::{OutputBlocks, PrefillOrder};
use crate::units::SimSpan;

/// A set of constants that were fitted together. Single numbers of it mean little: within a set,
/// bandwidth trades against host time, and arithmetic against overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineClass {
    /// Its name in `models.yml` (`engine_class`).
    pub id: &'static str,
    /// The engine and release whose measurements it was fitted on.
    pub engine: &'static str,
    /// The GPUs and runs that it was fitted on.
    pub fitted_on: &'static str,
    /// What it is for.
    pub scope: Scope,
    /// The constants of a step.
    pub efficiency: Efficiency,
    /// Time per request outside of steps, all of it spent between its arrival and its place in the
    /// engine's queue. It was fitted with one half there and the other between engine and client; a
    /// client sees the same times to the first and to the last token either way, and only the
    /// engine sees the request half of it later than in the fit.
    pub request_overhead: SimSpan,
    /// What the engine gives to its KV cache.
    pub kv_memory: KvMemory,
    /// Which routed experts its steps read.
    pub expert_reads: ExpertReads,
    /// What the engine does with prefills.
    pub prefill_order: PrefillOrder,
    /// When the engine sets blocks aside for outputs.
    pub output_blocks: OutputBlocks,
    /// How far its figures are from measured ones; `None` if nothing was measured.
    pub error: Option<StatedError>,
}

/// Absolute errors of a class on measured runs that had no part in its fit: each run was scored
/// with the class fitted without the runs of the same model, GPUs and engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatedError {
    /// How many runs.
    pub runs: u32,
    /// Of the mean ITL: median and 90th percentile, in percent.
    pub itl: Option<(f64, f64)>,
    /// Of TTFT below saturation.
    pub ttft: Option<(f64, f64)>,
    /// Of output tokens per second.
    pub output_rate: Option<(f64, f64)>,
}

/// The command that made all [`StatedError`]s.
pub const ERRORS_FROM: &str = "cargo run --release -p llmsim-perf -- calibration --measured DIR";

/// What an engine class is for; `any` in the one that was fitted on nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// `vllm`, `vllm-v0`, `trtllm`, `sglang` and so on.
    pub family: &'static str,
    /// The GPUs' architecture, as [`architecture`](super::architecture) names it.
    pub architecture: &'static str,
    /// The format of the weights: `bf16`, `fp8` or `mxfp4`.
    pub weights: &'static str,
    /// `dense` or `moe`.
    pub models: &'static str,
    /// How the release begins that it is for; empty if it is for all that have no class of their
    /// own.
    pub release: &'static str,
    /// Which classes were fitted from a common set: releases of an engine that behave alike.
    pub pool: &'static str,
}

/// Which routed experts a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertReads {
    /// Those that at least one token picks.
    Picked,
    /// All, however few are picked: engines whose kernels go through all of them.
    All,
}

/// How an engine sizes its KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvMemory {
    /// vLLM and SGLang: a fraction of all memory, less the weights and the reserve.
    OfTotal,
    /// TensorRT-LLM: a fraction of what weights and reserve leave.
    OfRest,
}

static CLASSES: LazyLock<Vec<EngineClass>> = LazyLock::new(|| {
    Row::parse_all(include_str!("../../data/engine_classes.csv"), |row| EngineClass {
        id: row.text("id"),
        engine: row.text("engine"),
        fitted_on: row.text("fitted_on"),
        scope: Scope {
            family: row.text("family"),
            architecture: row.text("architecture"),
            weights: row.text("weights"),
            models: row.text("models"),
            release: row.text("release"),
            pool: row.text("pool"),
        },
        efficiency: Efficiency {
            weight_bandwidth: row.number("mbu"),
            linear_compute: row.number("mfu"),
            kv_bandwidth: row.number("mbu_kv"),
            attention_compute: row.number("mfu_attn"),
            link_bandwidth: row.number("ar_eff"),
            all_reduce_latency: row.number("ar_lat_us") * 1e-6,
            host_per_step: row.number("t_step_ms") * 1e-3,
            host_per_layer: row.number("t_layer_us") * 1e-6,
            host_per_sequence: row.number("t_seq_us") * 1e-6,
            launch_per_layer: row.number("t_launch_us") * 1e-6,
            overlap: Overlap::Norm(row.number("p")),
        },
        request_overhead: SimSpan::from_secs_f64(row.number("t_req_ms") * 1e-3),
        kv_memory: match row.text("kv_memory") {
            "of_rest" => KvMemory::OfRest,
            _ => KvMemory::OfTotal,
        },
        expert_reads: match row.text("expert_reads") {
            "all" => ExpertReads::All,
            _ => ExpertReads::Picked,
        },
        prefill_order: match row.text("prefill_order") {
            "first" => PrefillOrder::First,
            _ => PrefillOrder::Mixed,
        },
        output_blocks: match row.text("output_blocks") {
            "reserved" => OutputBlocks::Reserved,
            _ => OutputBlocks::AsNeeded,
        },
        error: Some(row.count("rows")).filter(|&runs| runs > 0).map(|runs| {
            let error = |median, p90| Some((row.maybe_number(median)?, row.maybe_number(p90)?));
            StatedError {
                runs,
                itl: error("itl_median", "itl_p90"),
                ttft: error("ttft_median", "ttft_p90"),
                output_rate: error("rate_median", "rate_p90"),
            }
        }),
    })
});

impl EngineClass {
    /// `generic`: typical constants, set by hand, for engines and GPUs that nobody has measured.
    pub fn generic() -> &'static Self {
        &CLASSES[0]
    }
}

/// All engine classes, `generic` first.
pub fn engine_classes() -> &'static [EngineClass] {
    &CLASSES
}

/// The engine class that `name` means.
///
/// # Errors
/// If no entry, or more than one, fits.
pub fn engine_class(name: &str) -> Result<&'static EngineClass, Unknown> {
    find(name, CLASSES.iter().map(|class| class.id)).map(|place| &CLASSES[place])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_a_set_that_can_be() {
        assert_eq!(EngineClass::generic().id, "generic");
        assert_eq!(engine_classes().len(), 40);
        for class in engine_classes() {
            let e = class.efficiency;
            for share in [
                e.weight_bandwidth,
                e.linear_compute,
                e.kv_bandwidth,
                e.attention_compute,
                e.link_bandwidth,
            ] {
                assert!((0.05..=1.0).contains(&share), "{}: {share}", class.id);
            }
            assert!((0.1e-3..40e-3).contains(&e.host_per_step), "{}", class.id);
            assert!((3e-6..200e-6).contains(&e.host_per_layer), "{}", class.id);
            assert!((20e-6..2e-3).contains(&e.launch_per_layer), "{}", class.id);
        }
    }

    #[test]
    fn a_class_is_found_by_name() {
        let class = engine_class("vllm-v1-hopper-bf16").unwrap();
        assert_eq!((class.scope.family, class.scope.architecture), ("vllm", "Hopper"));
        assert!(class.request_overhead > SimSpan::ZERO && class.error.is_some());
        assert_eq!(class.prefill_order, PrefillOrder::Mixed);
        assert_eq!(engine_class("sglang-hopper-bf16").unwrap().prefill_order, PrefillOrder::First);
        assert_eq!(EngineClass::generic().error, None);
        assert_eq!(engine_class("trtllm-hopper-fp8").unwrap().kv_memory, KvMemory::OfRest);
        assert!(engine_class("vllm-hopper").unwrap_err().candidates.len() >= 3);
    }
}
