//! What one I/O thread sees of one model's tokens: when their bytes left.
//!
//! The other half of a [`Recorder`](crate::observe::Recorder), on the other side of the ring. It
//! knows no request; whoever sends says how late. The invariant: one writing thread.

use crate::observe::bounds;
use crate::observe::count::{Count, LagBuckets, LagCounts};
use crate::observe::ring::Ring;
use crate::stats::histogram::{Histogram, Shard};
use crate::units::SimSpan;

/// Written by one I/O thread, read by any.
#[derive(Debug)]
pub struct Delivery {
    lag: LagBuckets,
    lag_seconds: Shard,
    first_token: Shard,
    tokens: Count,
    delayed: Count,
    window: Ring,
}

impl Delivery {
    /// All zero; keeps the lags of the last `token_samples` tokens.
    pub fn new(token_samples: usize) -> Self {
        Self {
            lag: LagBuckets::default(),
            lag_seconds: Shard::new(bounds::lag()),
            first_token: Shard::new(bounds::first_token()),
            tokens: Count::default(),
            delayed: Count::default(),
            window: Ring::new(token_samples),
        }
    }

    /// The kernel took the bytes of `times` tokens, so long after they were due.
    pub fn sent(&self, lag: SimSpan, times: u64) {
        self.tokens.add(times);
        self.lag.record(lag, times);
        self.lag_seconds.observe_times(lag.as_secs_f64(), times);
        self.window.push(lag.as_ns(), times);
    }

    /// The kernel took `times` tokens that had waited for their client to read: how long says
    /// nothing about us.
    pub fn sent_after_a_stall(&self, times: u64) {
        self.tokens.add(times);
        self.delayed.add(times);
    }

    /// The kernel took a request's first token, so long after the request had arrived.
    pub fn sent_first(&self, since_arrival: SimSpan) {
        self.first_token.observe(since_arrival.as_secs_f64());
    }

    /// The lags of the last tokens, ns.
    pub fn window(&self) -> &Ring {
        &self.window
    }

    /// What has been counted so far.
    pub fn read(&self) -> Delivered {
        Delivered {
            lag: self.lag.read(),
            lag_seconds: self.lag_seconds.snapshot(),
            first_token: self.first_token.snapshot(),
            tokens: self.tokens.get(),
            delayed: self.delayed.get(),
        }
    }
}

/// [`Delivery`] at one moment, as plain values.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// Sent minus scheduled, per token.
    pub lag: LagCounts,
    /// The same as a histogram, s.
    pub lag_seconds: Histogram,
    /// Arrival to the first token's bytes, s.
    pub first_token: Histogram,
    /// Tokens whose bytes the kernel took.
    pub tokens: u64,
    /// Of those, tokens that had waited for their client to read.
    pub delayed: u64,
}

impl Delivered {
    /// Nothing sent yet.
    pub fn empty() -> Self {
        Delivery::new(0).read()
    }

    /// Adds another thread's figures.
    pub fn merge(&mut self, other: &Self) {
        // Without `..`, so that no figure can be forgotten here.
        let Self { lag, lag_seconds, first_token, tokens, delayed } = other;
        self.lag.merge(lag);
        self.lag_seconds.merge(lag_seconds);
        self.first_token.merge(first_token);
        self.tokens += tokens;
        self.delayed += delayed;
    }
}
