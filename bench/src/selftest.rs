//! What the client itself adds, measured against an in-process stream of known timing.

use serde::Serialize;

/// The client's own error at one concurrency and chunk rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stamp {
    /// Streams at once.
    pub concurrency: u32,
    /// Chunks per second of all streams.
    pub chunks_per_s: f64,
    /// From release of the first chunk to its receipt.
    pub ttft_added: Added,
    /// Error of a chunk gap.
    pub itl_error: Added,
    /// From schedule to send.
    pub schedule_lag: Added,
}

/// Percentiles of something that the client adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Added {
    /// Median in ms.
    pub p50_ms: f64,
    /// 99th percentile in ms.
    pub p99_ms: f64,
}

impl Stamp {
    /// One line for the console.
    pub fn line(&self) -> String {
        format!(
            "client adds TTFT p50 {:.2} ms · p99 {:.2} ms · ITL p99 {:.2} ms · schedule lag p99 \
             {:.2} ms (at {} streams, {:.0} chunks/s)",
            self.ttft_added.p50_ms,
            self.ttft_added.p99_ms,
            self.itl_error.p99_ms,
            self.schedule_lag.p99_ms,
            self.concurrency,
            self.chunks_per_s,
        )
    }
}
