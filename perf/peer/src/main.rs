//! `offline` of `llmsim-perf`, and the same workload on `aisimulate-core`, NVIDIA's imitation of the
//! same scheduler: `cargo run --release --manifest-path perf/peer/Cargo.toml`.

use std::process::ExitCode;

use aisimulate_core::engine::{Backend, EngineConfig, TimingModelConfig};
use aisimulate_core::replay::{
    ProviderSpec, ReplayAdapters, ReplayEngineConfig, ReplayRequest, ReplaySpec, ReplayTopology,
    WorkerPoolSpec, run_engine_replay,
};
use clap::Parser;

use offline::{Took, Workload};

#[allow(dead_code, reason = "`run` is for llmsim-perf itself")]
#[path = "../../src/offline.rs"]
mod offline;
#[allow(dead_code, reason = "the other measurements use the rest")]
#[path = "../../src/sys.rs"]
mod sys;

#[derive(Parser)]
struct Args {
    #[command(flatten)]
    offline: offline::Args,
}

fn main() -> ExitCode {
    let peer = ("aisimulate-core 0.13, the first workload", simulate as fn(Workload) -> Took);
    offline::run_beside(&Args::parse().offline, Some(peer))
}

/// The workload as aisimulate-core takes it: synchronous (it has no other mode), lengths only, no
/// records of single requests.
fn simulate(workload: Workload) -> Took {
    let rank = EngineConfig {
        num_gpu_blocks: workload.blocks as usize,
        block_size: 16,
        max_num_seqs: workload.batch as usize,
        max_num_batched_tokens: 8_192,
        enable_prefix_caching: workload.prefix_caching,
        timing_model: TimingModelConfig::Fixed { prefill_ms: 20.0, decode_ms: 20.0 },
        ..EngineConfig::for_backend(Backend::Vllm)
    };
    let engine = ReplayEngineConfig { rank, ..ReplayEngineConfig::default() };
    let spec = ReplaySpec {
        version: 1,
        topology: ReplayTopology::Aggregated {
            workers: WorkerPoolSpec { initial_workers: 1, startup_delay_ms: 0.0 },
        },
        engine: serde_json::to_value(engine).expect("its own settings become JSON"),
        adapters: ReplayAdapters {
            placement: ProviderSpec::round_robin(),
            scaling: ProviderSpec::no_scaling(),
        },
        max_sim_time_ms: None,
        max_in_flight: Some(workload.batch as usize),
        record_per_request: false,
        sla: Default::default(),
        requests: (0..workload.requests).map(|id| request(workload, id)).collect(),
    };
    let started = offline::cpu_time();
    run_engine_replay(spec).expect("the workload fits");
    let time = offline::cpu_time() - started;
    Took { tokens: workload.requests * u64::from(workload.output), time }
}

fn request(workload: Workload, id: u64) -> ReplayRequest {
    ReplayRequest {
        id: id.to_string(),
        arrival_time_ms: 0.0,
        input_tokens: workload.prompt as usize,
        input_token_ids: None,
        output_tokens: workload.output as usize,
        output_token_ids: None,
        dp_rank: None,
        prefill_dp_rank: None,
        session_id: None,
        turn_index: None,
        metadata: serde_json::Value::Null,
    }
}
