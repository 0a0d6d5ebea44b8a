//! How well the client itself kept up: a client that is late makes every server look slow.

use llmsim_engine::units::SimSpan;

/// Above this lateness of the client's loop at p99, its latencies are not the server's.
pub const LATE: SimSpan = SimSpan::from_ms(5);

/// What the client noticed about itself during one level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// How late the loop answered pings.
    pub loop_lags: Vec<SimSpan>,
    /// How long bytes lay in the kernel before this client read them: p50, p99, greatest. Latencies
    /// do not contain it, they count from the kernel's stamp. `None` without such stamps.
    pub read_lag: Option<[SimSpan; 3]>,
    /// CPU time of the client's I/O thread.
    pub cpu: SimSpan,
    /// Over so much time.
    pub elapsed: SimSpan,
    /// The most memory resident so far, in bytes.
    pub peak_memory_bytes: u64,
    /// Requests whose bytes were not ready when they were due.
    pub unready: u32,
}

impl Health {
    /// CPU use of the I/O thread, 1.0 for a whole core.
    pub fn cpu_share(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 { self.cpu.as_secs_f64() / elapsed } else { 0.0 }
    }
}
