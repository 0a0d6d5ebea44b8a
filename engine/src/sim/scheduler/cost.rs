//! How long a step takes: the one place in `sim` with floating point, rounded once on exit.

use crate::units::SimSpan;

/// What a step computes, in the quantities that its duration depends on. The scheduler keeps the
/// sums up to date as it plans; the cost model never sees single requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepShape {
    /// Sequences in the step.
    pub sequences: u32,
    /// Sequences that get exactly one token and have all earlier ones computed: decodes.
    pub decodes: u32,
    /// Sum over the decodes of the context that each reads (tokens, its own included).
    pub decode_context: u64,
    /// Prefill chunks in the step.
    pub chunks: u32,
    /// Sum of the chunks' tokens.
    pub chunk_tokens: u64,
    /// Sum over the chunks of the tokens already computed (cached or earlier chunks).
    pub chunk_cached: u64,
    /// Sum over the chunks of `t * (c + t / 2)`: (new token, context token) pairs, for quadratic
    /// attention. Kept doubled, `t * (2 c + t)`, to stay integral.
    pub chunk_pairs_doubled: u128,
    /// Sequences that yield a token at the end of the step.
    pub sampled: u32,
}

/// Which resource decided the duration of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// FLOPs.
    Compute,
    /// Bytes read.
    Memory,
    /// Neither: a fixed time, or host work.
    Fixed,
}

/// The cost model of a simulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum StepCost {
    /// Every step takes the same time: tests, and recorded traces.
    Fixed(SimSpan),
    // Roofline(Roofline) follows.
}
