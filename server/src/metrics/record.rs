//! Recording, on the token path: one shard per thread, written by that thread alone.
//!
//! Not the export: whoever answers a scrape reads the shards and adds them up. The invariant: a
//! shard has a single writer, so that counting is a plain load and store without a locked bus, and
//! a reader may be one observation behind but never sees a torn number.

use llmsim_engine::observe::Delivery;
use llmsim_engine::observe::count::Count;
use llmsim_engine::sim::Finish;
use llmsim_engine::sim::scheduler::Gauges;

use crate::tls::Handshake;

/// What one I/O thread counts.
#[derive(Debug)]
pub(crate) struct IoShard {
    /// Connections open now.
    pub(crate) connections: Count,
    /// Connections ever accepted.
    pub(crate) accepted: Count,
    /// Connections turned away at the limit.
    pub(crate) turned_away: Count,
    /// TLS handshakes, by how they ended.
    pub(crate) handshakes: [Count; Handshake::ALL.len()],
    /// Generations being served now, streamed or not.
    pub(crate) in_flight: Count,
    /// Generations that ended by themselves or at a limit.
    pub(crate) finished: Count,
    /// Generations whose client went away.
    pub(crate) disconnected: Count,
    /// Generations given up since the client did not read for too long.
    pub(crate) stalled: Count,
    /// Generations cut by a shut-down.
    pub(crate) cut: Count,
    /// Generations that the engine refused.
    pub(crate) refused: Count,
    /// Generations that a fault on purpose ended, or a crash.
    pub(crate) faulted: Count,
    /// Tokens of answers that are not streamed.
    pub(crate) unstreamed_tokens: Count,
    /// Streamed tokens, by the replica's place among all.
    pub(crate) replicas: Box<[Delivery]>,
}

/// The state of one simulated GPU, as its thread last published it.
#[derive(Debug, Default)]
pub(crate) struct GpuGauges {
    pub(crate) running: Count,
    pub(crate) waiting: Count,
    pub(crate) usable_blocks: Count,
    pub(crate) free_blocks: Count,
    pub(crate) preemptions: Count,
    pub(crate) steps: Count,
}

impl GpuGauges {
    pub(crate) fn publish(&self, gauges: &Gauges) {
        self.running.set(u64::from(gauges.running));
        self.waiting.set(u64::from(gauges.waiting));
        self.usable_blocks.set(u64::from(gauges.usable_blocks.get()));
        self.free_blocks.set(u64::from(gauges.free_blocks.get()));
        self.preemptions.set(gauges.preemptions);
        self.steps.set(gauges.steps);
    }
}

/// What one GPU thread counts beside its GPUs' figures.
#[derive(Debug, Default)]
pub(crate) struct GpuShard {
    /// Tokens whose own report was left out since an I/O thread lagged too far.
    pub(crate) merged_tokens: Count,
}

/// How a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished(Finish),
    Disconnected,
    Stalled,
    Cut,
    Refused,
    Faulted,
}

impl IoShard {
    /// All zero, for so many replicas; keeps the lags of each one's last `token_samples` tokens.
    pub(crate) fn new(replicas: usize, token_samples: usize) -> Self {
        Self {
            connections: Count::default(),
            accepted: Count::default(),
            turned_away: Count::default(),
            handshakes: Default::default(),
            in_flight: Count::default(),
            finished: Count::default(),
            disconnected: Count::default(),
            stalled: Count::default(),
            cut: Count::default(),
            refused: Count::default(),
            faulted: Count::default(),
            unstreamed_tokens: Count::default(),
            replicas: (0..replicas).map(|_| Delivery::new(token_samples)).collect(),
        }
    }

    /// Counts a generation that is over.
    pub(crate) fn finish(&self, outcome: Outcome) {
        match outcome {
            Outcome::Finished(_) => self.finished.add(1),
            Outcome::Disconnected => self.disconnected.add(1),
            Outcome::Stalled => self.stalled.add(1),
            Outcome::Cut => self.cut.add(1),
            Outcome::Refused => self.refused.add(1),
            Outcome::Faulted => self.faulted.add(1),
        }
    }
}
