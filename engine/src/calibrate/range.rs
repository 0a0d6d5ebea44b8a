//! Numbers that a run on a GPU can have: what is beyond is a mistake of whoever wrote it down.
//!
//! Not how a refusal reads, which depends on the file. The invariant: one range for a quantity,
//! whatever kind of file it stands in.

use std::ops::RangeInclusive;

/// Requests under way at a time.
pub(super) const AT_ONCE: RangeInclusive<f64> = 1.0..=65_536.0;
/// Requests that are sent in a second.
pub(super) const PER_SECOND: RangeInclusive<f64> = 1e-6..=1e6;
/// Requests of a run.
pub(super) const REQUESTS: RangeInclusive<f64> = 1.0..=100_000.0;
/// Tokens of a prompt, or of an answer.
pub(super) const LENGTH: RangeInclusive<f64> = 1.0..=1e8;
/// A share of something.
pub(super) const SHARE: RangeInclusive<f64> = 0.0..=1.0;
/// A TTFT, a TPOT or an E2E, ms.
pub(super) const LATENCY_MS: RangeInclusive<f64> = 1e-3..=1e8;
/// Output tokens in a second, of all requests.
pub(super) const TOKENS_PER_SECOND: RangeInclusive<f64> = 1e-6..=1e9;
