//! Which buckets our histograms have.
//!
//! Each list holds all of vLLM's bounds for the same measure and finer ones below, where a
//! simulated GPU is interesting: so a value is counted once, and vLLM's family is the same
//! histogram with fewer bounds. The invariant: `bounds ⊇ vLLM's bounds`, held by a test.

use crate::stats::histogram::Bounds;
use crate::units::Tokens;

fn with(base: Bounds, finer: &[f64]) -> Bounds {
    let mut all: Vec<f64> = base.as_slice().iter().chain(finer).copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    all.dedup();
    Bounds::new(&all).expect("finite, sorted, without repetition")
}

/// Time to first token, s.
pub(super) fn first_token() -> Bounds {
    let finer = [0.002, 0.003, 0.015, 0.03, 0.05, 0.15, 0.2, 0.3, 0.4];
    with(Bounds::vllm_first_token_seconds(), &finer)
}

/// Between tokens, s.
pub(super) fn inter_token() -> Bounds {
    let finer = [0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.015, 0.02, 0.03, 0.04];
    with(Bounds::vllm_inter_token_seconds(), &finer)
}

/// Requests and their phases, s.
pub(super) fn request() -> Bounds {
    let finer = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2];
    with(Bounds::vllm_request_seconds(), &finer)
}

/// Token counts of requests.
pub(super) fn request_tokens(max_model_len: Tokens) -> Bounds {
    Bounds::vllm_request_tokens(max_model_len.get())
}

/// Tokens of a step.
pub(super) fn iteration_tokens() -> Bounds {
    Bounds::vllm_iteration_tokens()
}

/// `n` of requests.
pub(super) fn choices() -> Bounds {
    Bounds::vllm_choices()
}

/// Preemptions of requests.
pub(super) fn preemptions() -> Bounds {
    Bounds::vllm_preemptions()
}

/// Durations of steps, s.
pub(super) fn step() -> Bounds {
    with(Bounds::vllm_inter_token_seconds(), &[0.001, 0.002, 0.005, 0.0075, 0.015, 0.02, 0.03])
}

/// Requests in a step.
pub(super) fn sequences() -> Bounds {
    with(Bounds::vllm_choices(), &[4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
}

/// Lags, s: 5 ms is the default bar of the verdict.
pub(super) fn lag() -> Bounds {
    const LAG: [f64; 16] = [
        0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1,
        0.25, 0.5, 1.0, 5.0,
    ];
    Bounds::new(&LAG).expect("written in order")
}
