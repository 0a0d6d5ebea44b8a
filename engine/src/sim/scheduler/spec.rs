//! The settings of the scheduler, in vLLM's names.
//!
//! Plain data: nothing here is checked, and defaults of a server (which depend on its GPU) are the
//! configuration's business.

use crate::sim::scheduler::Residual;
use crate::sim::scheduler::cost::StepCost;
use crate::units::{Blocks, Tokens};

/// The release of vLLM whose rules this scheduler follows.
pub const VLLM_VERSION: &str = "0.33.0";

/// How requests are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// By (priority, arrival).
    Priority,
}

/// Whether a step is planned before or after the results of the one before it are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// vLLM's server default: one step ahead of the results.
    #[default]
    Asynchronous,
    /// Each step waits for the results of the one before it.
    Synchronous,
}

/// Where blocks go when their last user leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreedBlocks {
    /// Blocks without a prefix key to the front of the free list, the others to its end: since
    /// vLLM 0.23.
    #[default]
    UncachedFirst,
    /// All to the end: vLLM before 0.23.
    AllLast,
}

/// Which of prefill and decode a step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillOrder {
    /// Both: decodes first, prefills with what is left of the budget. vLLM V1, TensorRT-LLM.
    #[default]
    Mixed,
    /// Prefills alone as long as there are any that can run, decodes wait. SGLang, vLLM V0.
    First,
}

/// When a request gets the blocks for its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputBlocks {
    /// As it grows; where there are none, somebody is preempted. vLLM.
    #[default]
    AsNeeded,
    /// They are set aside for `max_tokens` when it is admitted, so that nobody is ever preempted.
    /// TensorRT-LLM (`GUARANTEED_NO_EVICT`).
    Reserved,
}

/// The settings of one simulated GPU; names, meanings and defaults are vLLM's (see
/// [`VLLM_VERSION`]), except where a doc says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerSpec {
    /// `max_num_batched_tokens`: the token budget of a step.
    pub max_num_batched_tokens: Tokens,
    /// `max_num_seqs`: the most requests in the running batch.
    pub max_num_seqs: u32,
    /// `max_num_active_seqs`, if set lower than `max_num_seqs`.
    pub max_num_active_seqs: Option<u32>,
    /// `max_model_len`.
    pub max_model_len: Tokens,
    /// Tokens per KV-cache block.
    pub block_size: Tokens,
    /// All blocks of the KV cache, the placeholder block 0 included: usable are one fewer.
    pub num_blocks: Blocks,
    /// `enable_prefix_caching`.
    pub prefix_caching: bool,
    /// FCFS or priority.
    pub policy: Policy,
    /// `long_prefill_token_threshold`; 0 is off.
    pub long_prefill_token_threshold: Tokens,
    /// `long_prefill_token_threshold_adaptive`.
    pub long_prefill_adaptive: bool,
    /// `enable_chunked_prefill`.
    pub chunked_prefill: bool,
    /// `scheduler_reserve_full_isl`.
    pub reserve_full_isl: bool,
    /// `watermark`: the fraction of blocks that admission leaves free.
    pub watermark: f64,
    /// `prefill_schedule_interval`, in steps; 1 is off.
    pub prefill_interval: u32,
    /// Asynchronous (vLLM's default) or synchronous.
    pub scheduling: Scheduling,
    /// `max_num_queued_reqs`: above it a submit is refused; `None` is unlimited.
    pub max_num_queued_reqs: Option<u32>,
    /// Where freed blocks go on the free list; vLLM changed it in 0.23.
    pub freed_blocks: FreedBlocks,
    /// Not a setting of vLLM: what the engine does with prefills.
    pub prefill_order: PrefillOrder,
    /// Not a setting of vLLM: when the engine sets blocks aside for outputs.
    pub output_blocks: OutputBlocks,
    /// How long a step takes.
    pub cost: StepCost,
    /// Not a setting of vLLM: how single steps stray from that; `None` if they do not.
    pub residual: Option<Residual>,
}

impl SchedulerSpec {
    /// A GPU with the defaults of vLLM's server on a small card (see [`VLLM_VERSION`]): 2,048
    /// tokens and 256 sequences a step, blocks of 16 tokens, prefix caching, asynchronous
    /// scheduling.
    pub fn vllm(max_model_len: Tokens, num_blocks: Blocks, cost: StepCost) -> Self {
        Self {
            max_num_batched_tokens: Tokens::new(2048),
            max_num_seqs: 256,
            max_num_active_seqs: None,
            max_model_len,
            block_size: Tokens::new(16),
            num_blocks,
            prefix_caching: true,
            policy: Policy::Fcfs,
            long_prefill_token_threshold: Tokens::ZERO,
            long_prefill_adaptive: false,
            chunked_prefill: true,
            reserve_full_isl: true,
            watermark: 0.0,
            prefill_interval: 1,
            scheduling: Scheduling::Asynchronous,
            max_num_queued_reqs: None,
            freed_blocks: FreedBlocks::default(),
            prefill_order: PrefillOrder::default(),
            output_blocks: OutputBlocks::default(),
            cost,
            residual: None,
        }
    }
}
