//! What the server counts about itself.

mod export;
mod live;
pub(crate) mod observatory;
mod process;
pub(crate) mod record;
mod summary;
pub(crate) mod timing;

use std::time::Duration;

use llmsim_engine::observe::count::{Count, LagCounts};
use llmsim_engine::observe::{Delivered, Delivery, Figures};
use llmsim_engine::units::SimSpan;

use self::record::{GpuGauges, IoShard, Outcome};

/// What a server has done so far, added up over its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections open now.
    pub connections: u64,
    /// Generations being served now.
    pub in_flight: u64,
    /// Generations that ended by themselves or at a limit.
    pub finished: u64,
    /// Generations whose client went away.
    pub disconnected: u64,
    /// Generations given up since the client did not read.
    pub stalled: u64,
    /// Generations cut by a shut-down.
    pub cut: u64,
    /// Generations that the engine refused.
    pub refused: u64,
    /// Generations that a fault on purpose ended, or a crash.
    pub faulted: u64,
    /// Tokens handed to the kernel.
    pub tokens: u64,
    /// How late tokens were handed to the kernel, against the simulated timeline.
    pub token_lag: Lateness,
    /// How late GPU threads released them: the part of `token_lag` that is theirs.
    pub release_lag: Lateness,
    /// Each simulated GPU with a timeline of its own, in the order of the configuration.
    pub gpus: Vec<GpuState>,
}

/// The state of a simulated GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuState {
    /// The model that it serves.
    pub model: String,
    /// Requests in the running batch.
    pub running: u64,
    /// Requests waiting.
    pub waiting: u64,
    /// KV-cache blocks that can be handed out at all; zero without a KV cache.
    pub usable_blocks: u64,
    /// KV-cache blocks without a user.
    pub free_blocks: u64,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Steps since the start.
    pub steps: u64,
}

/// A distribution in three numbers: percentiles are upper bounds of buckets 6 % wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Observations.
    pub count: u64,
    /// Their mean, exactly.
    pub mean: Duration,
    /// Half were at most this late.
    pub p50: Duration,
    /// 99 of 100 were at most this late.
    pub p99: Duration,
    /// None was later.
    pub max: Duration,
}

impl Lateness {
    fn of(all: impl Iterator<Item = LagCounts>) -> Self {
        let mut lag = LagCounts::default();
        all.for_each(|more| lag.merge(&more));
        let duration = |span: SimSpan| Duration::from_nanos(span.as_ns());
        let percentile = |percent| duration(lag.percentile(percent).unwrap_or(SimSpan::ZERO));
        Self {
            count: lag.count(),
            mean: duration(lag.mean()),
            p50: percentile(50.0),
            p99: percentile(99.0),
            max: duration(lag.max()),
        }
    }
}

/// Adds the shards up.
pub(crate) fn totals<'a>(
    io: &[std::sync::Arc<IoShard>],
    figures: impl Iterator<Item = &'a Figures>,
    gpus: impl Iterator<Item = (&'a str, &'a GpuGauges)>,
) -> Totals {
    let sum = |of: fn(&IoShard) -> &Count| io.iter().map(|shard| of(shard).get()).sum();
    let ended = |outcome| io.iter().map(|shard| shard.ended(outcome)).sum();
    let delivered: Vec<Delivered> =
        io.iter().flat_map(|shard| shard.replicas.iter()).map(Delivery::read).collect();
    let unstreamed: u64 = sum(|shard| &shard.unstreamed_tokens);
    Totals {
        connections: sum(|shard| &shard.connections),
        in_flight: sum(|shard| &shard.in_flight),
        finished: ended(Outcome::Finished),
        disconnected: ended(Outcome::Disconnected),
        stalled: ended(Outcome::Stalled),
        cut: ended(Outcome::Cut),
        refused: ended(Outcome::Refused),
        faulted: ended(Outcome::Faulted),
        tokens: unstreamed + delivered.iter().map(|replica| replica.tokens).sum::<u64>(),
        token_lag: Lateness::of(delivered.into_iter().map(|replica| replica.lag)),
        release_lag: Lateness::of(figures.map(|figures| figures.read().engine_lag)),
        gpus: gpus
            .map(|(model, gauges)| GpuState {
                model: model.to_owned(),
                running: gauges.running.get(),
                waiting: gauges.waiting.get(),
                usable_blocks: gauges.usable_blocks.get(),
                free_blocks: gauges.free_blocks.get(),
                preemptions: gauges.preemptions.get(),
                steps: gauges.steps.get(),
            })
            .collect(),
    }
}
