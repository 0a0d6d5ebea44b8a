//! What a client sends, and which figures it takes.

use std::sync::Arc;

use crate::seed::Seed;
use crate::sim::{BlockHash, Job};
use crate::units::{JobId, SimSpan, Tokens};

/// A client's requests, in the order in which it sends them.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// When it sends them.
    pub load: Load,
    /// What it sends; at least one.
    pub requests: Vec<Request>,
    /// 1, or more if the run was a longer one: each request of the middle then stands for so many
    /// (see [`Workload::shortened`]).
    pub repeats: f64,
    /// Whether a closed loop's requests stay in step with each other.
    pub phases: Phases,
}

/// Whether the requests of a closed loop, all of which begin together, stay in step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phases {
    /// As their lengths and the engine make it.
    #[default]
    AsTheyCome,
    /// They do not: after the burst they are at all stages of their outputs. The outputs of the
    /// burst are cut for that, so that its requests have a TTFT, but no pace that counts.
    Spread,
}

/// When a client sends its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// So many are always under way: that many at once in the beginning, then one for each that is
    /// done.
    Closed {
        /// Requests under way; at least 1.
        concurrency: u32,
    },
    /// Each at its time ([`Request::at`]), whatever becomes of the others.
    Open,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Prompt length.
    pub prompt: Tokens,
    /// Tokens that are generated.
    pub output: Tokens,
    /// How much of the prompt is the same in all requests of the workload, so that a prefix cache
    /// can hold it.
    pub shared: Tokens,
    /// When it is sent; only an open load looks at it.
    pub at: SimSpan,
}

impl Workload {
    /// `count` requests whose lengths are drawn evenly from `shortest` (a share from 0 to 1) of the
    /// nominal length up to all of it.
    pub fn drawn(load: Load, count: usize, prompt: f64, output: f64, shortest: f64) -> Self {
        let mut lengths = Seed::new(42).generator();
        let mut length = |nominal: f64| {
            let share = shortest + (1.0 - shortest) * lengths.unit();
            Tokens::new((nominal * share).round().clamp(1.0, 1e9) as u32)
        };
        let requests = (0..count)
            .map(|_| Request {
                prompt: length(prompt),
                output: length(output),
                shared: Tokens::ZERO,
                at: SimSpan::ZERO,
            })
            .collect();
        Self { load, requests, repeats: 1.0, phases: Phases::AsTheyCome }
    }

    /// The same closed loop, whose requests do not stay in step ([`Phases::Spread`]).
    #[must_use]
    pub fn out_of_step(mut self) -> Self {
        let Load::Closed { concurrency } = self.load else { return self };
        // Multiples of the golden ratio fill 0 to 1 evenly, in no order.
        const GOLDEN: f64 = 0.618_033_988_749_895;
        for (place, request) in self.requests.iter_mut().take(concurrency as usize).enumerate() {
            let left = ((place as f64 + 0.5) * GOLDEN).fract();
            request.output = Tokens::new((f64::from(request.output.get()) * left).ceil() as u32);
        }
        self.phases = Phases::Spread;
        self
    }

    /// A closed loop cut to about `most_tokens` output tokens. Its beginning (all at once) and its
    /// end stay as they are, and means count what is left of its middle for the whole of it.
    #[must_use]
    pub fn shortened(mut self, most_tokens: u64) -> Self {
        let Load::Closed { concurrency } = self.load else { return self };
        let (edges, all) = (2 * concurrency as usize, self.requests.len());
        let affordable = most_tokens as f64 / self.output_tokens().max(1) as f64 * all as f64;
        let kept = (affordable as usize).max(2 * edges).min(all);
        if kept < all {
            self.repeats *= (all - edges) as f64 / (kept - edges) as f64;
            self.requests.truncate(kept);
        }
        self
    }

    /// How many requests of the real run the request in `place` stands for.
    pub(super) fn stands_for(&self, place: usize) -> f64 {
        let Load::Closed { concurrency } = self.load else { return 1.0 };
        let edge = concurrency as usize;
        let middle = edge..self.requests.len().saturating_sub(edge);
        if middle.contains(&place) { self.repeats } else { 1.0 }
    }

    /// Whether the pace of the request in `place` is one of the run's.
    pub(super) fn is_paced(&self, place: usize) -> bool {
        match (self.load, self.phases) {
            (Load::Closed { concurrency }, Phases::Spread) => place >= concurrency as usize,
            _ => true,
        }
    }

    /// The same requests, sent at random (Poisson) with so many per second on average.
    #[must_use]
    pub fn at_rate(mut self, per_second: f64) -> Self {
        let mut gaps = Seed::new(43).generator();
        let mut at = 0.0;
        for request in &mut self.requests {
            request.at = SimSpan::from_secs_f64(at);
            at += gaps.exponential() / per_second.max(1e-6);
        }
        self.load = Load::Open;
        self
    }

    /// The same requests, of whose prompts this share is common to all.
    #[must_use]
    pub fn sharing(mut self, share: f64) -> Self {
        for request in &mut self.requests {
            let shared = f64::from(request.prompt.get()) * share.clamp(0.0, 1.0);
            request.shared = Tokens::new(shared as u32);
        }
        self
    }

    /// All tokens that are generated.
    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| u64::from(request.output.get())).sum()
    }
}

impl Request {
    /// The request as the engine sees it.
    pub(super) fn job(&self, place: usize, block_size: Tokens) -> Job {
        Job {
            id: JobId(place as u64),
            prompt: self.prompt,
            max_tokens: self.output,
            stop_after: None,
            priority: 0,
            chain: (self.shared > Tokens::ZERO).then(|| self.chain(place, block_size)),
        }
    }

    /// Keys of all full blocks: the first ones those of every request, the rest its own.
    fn chain(&self, place: usize, block_size: Tokens) -> Arc<[BlockHash]> {
        let block = block_size.get().max(1);
        let shared = self.shared.get() / block;
        let blocks = (self.prompt.get() + self.output.get()) / block;
        (0..blocks)
            .map(|block| {
                let owner = if block < shared { 0 } else { place as u64 + 1 };
                BlockHash(owner << 32 | u64::from(block))
            })
            .collect()
    }
}

/// A figure that a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Mean time to the first token, seconds.
    MeanTtft,
    /// Median time to the first token, seconds.
    MedianTtft,
    /// Mean over the requests of the time per output token after the first, seconds.
    MeanTpot,
    /// Its median, seconds.
    MedianTpot,
    /// Mean time from sending a request to its last token, seconds.
    MeanE2e,
    /// Output tokens per second of the whole run.
    OutputRate,
}

impl Metric {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::MeanTtft,
        Self::MedianTtft,
        Self::MeanTpot,
        Self::MedianTpot,
        Self::MeanE2e,
        Self::OutputRate,
    ];

    /// Its name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MeanTtft => "mean TTFT",
            Self::MedianTtft => "median TTFT",
            Self::MeanTpot => "mean TPOT",
            Self::MedianTpot => "median TPOT",
            Self::MeanE2e => "mean E2E",
            Self::OutputRate => "output tok/s",
        }
    }
}
