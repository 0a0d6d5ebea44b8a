//! Recording, on the token path: one shard per thread, written by that thread alone.
//!
//! Not the export: whoever answers a scrape reads the shards and adds them up. The invariant: a
//! shard has a single writer, so that counting is a plain load and store without a locked bus, and
//! a reader may be one observation behind but never sees a torn number.

use llmsim_engine::observe::Delivery;
use llmsim_engine::observe::count::Count;
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
    /// Generations that are over, by how they ended.
    ended: [Count; Outcome::ALL.len()],
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

/// How the delivery of a generation ended: the label of its metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// By itself or at a limit, all of it sent.
    Finished,
    /// Its client went away.
    Disconnected,
    /// It was given up, since its client did not read for too long.
    Stalled,
    /// A shut-down cut it.
    Cut,
    /// The engine refused it.
    Refused,
    /// A fault on purpose ended it, or a crash.
    Faulted,
}

impl Outcome {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Self; 6] = [
        Self::Finished,
        Self::Disconnected,
        Self::Stalled,
        Self::Cut,
        Self::Refused,
        Self::Faulted,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "sent",
            Self::Disconnected => "disconnected",
            Self::Stalled => "write_timeout",
            Self::Cut => "cut",
            Self::Refused => "refused",
            Self::Faulted => "faulted",
        }
    }
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
            ended: Default::default(),
            unstreamed_tokens: Count::default(),
            replicas: (0..replicas).map(|_| Delivery::new(token_samples)).collect(),
        }
    }

    /// Counts a generation that is over.
    pub(crate) fn finish(&self, outcome: Outcome) {
        self.ended[outcome as usize].add(1);
    }

    /// Generations that ended so.
    pub(crate) fn ended(&self, outcome: Outcome) -> u64 {
        self.ended[outcome as usize].get()
    }
}
