//! What the server counts about itself.

pub(crate) mod record;

use std::time::Duration;

use self::record::{Buckets, Counter, GpuGauges, GpuShard, IoShard};

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
    fn of<'a>(all: impl Iterator<Item = &'a Buckets> + Clone) -> Self {
        let mut counts = std::collections::BTreeMap::new();
        for (bound, count) in all.clone().flat_map(Buckets::filled) {
            *counts.entry(bound).or_insert(0) += count;
        }
        let count: u64 = counts.values().sum();
        let sum: u64 = all.clone().map(Buckets::sum_ns).sum();
        let mean = Duration::from_nanos(sum.checked_div(count).unwrap_or(0));
        let max = all.map(|buckets| buckets.max().as_ns()).max().unwrap_or(0);
        let percentile = |percent: u64| {
            let wanted = (count * percent).div_ceil(100);
            let mut seen = 0;
            let bound = counts.iter().find(|&(_, &count)| {
                seen += count;
                seen >= wanted
            });
            Duration::from_nanos(bound.map_or(0, |(&bound, _)| bound.min(max)))
        };
        Self {
            count,
            mean,
            p50: percentile(50),
            p99: percentile(99),
            max: Duration::from_nanos(max),
        }
    }
}

/// Adds the shards up.
pub(crate) fn totals<'a>(
    io: &[std::sync::Arc<IoShard>],
    gpu: &[std::sync::Arc<GpuShard>],
    gpus: impl Iterator<Item = (&'a str, &'a GpuGauges)>,
) -> Totals {
    let sum = |of: fn(&IoShard) -> &Counter| io.iter().map(|shard| of(shard).get()).sum();
    let stop: u64 = sum(|shard| &shard.finished_stop);
    let length: u64 = sum(|shard| &shard.finished_length);
    Totals {
        connections: sum(|shard| &shard.connections),
        in_flight: sum(|shard| &shard.in_flight),
        finished: stop + length,
        disconnected: sum(|shard| &shard.disconnected),
        stalled: sum(|shard| &shard.stalled),
        cut: sum(|shard| &shard.cut),
        refused: sum(|shard| &shard.refused),
        tokens: sum(|shard| &shard.tokens),
        token_lag: Lateness::of(io.iter().map(|shard| &shard.token_lag)),
        release_lag: Lateness::of(gpu.iter().map(|shard| &shard.release_lag)),
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
