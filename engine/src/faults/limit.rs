//! Rate limits: so many requests and tokens a minute, counted as OpenAI's headers tell it.
//!
//! A bucket for each limit holds a minute's worth and fills up evenly, so that "remaining" and
//! "reset" (the time until the bucket is full again) follow from one number. It is told the time.
//! The invariant: what is taken from a bucket and what it says is left always add up to what has
//! flowed in, so that a client that believes the headers is never refused.

use crate::seed::LookupMap;
use crate::units::{SimSpan, SimTime};

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests a minute.
    Requests,
    /// Tokens a minute.
    Tokens,
}

impl LimitKind {
    /// The word of headers and error types.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

/// What a limit says after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// What is limited.
    pub kind: LimitKind,
    /// A minute's worth.
    pub limit: u32,
    /// How many are left, whole ones.
    pub left: u32,
    /// Until all are there again.
    pub reset: SimSpan,
}

/// A request that is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// Of which limit.
    pub of: Remaining,
    /// What it asked for.
    pub requested: u32,
    /// Until it would be let through; `None`: never, it is larger than the limit itself.
    pub wait: Option<SimSpan>,
}

/// The buckets of a limit's users.
#[derive(Debug, Default)]
pub struct Buckets {
    buckets: LookupMap<u64, Bucket>,
}

/// Users that are told apart; all others share one bucket.
const MOST_USERS: usize = 1 << 16;

/// A minute's worth of one thing, in its parts: a limit of `n` a minute gives `n` parts each
/// nanosecond, and one request costs as many parts as a minute has nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Level {
    missing: u128,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    at: SimTime,
    requests: Level,
    tokens: Level,
}

const MINUTE_NS: u128 = 60_000_000_000;

impl Level {
    const FULL: Self = Self { missing: 0 };

    fn flow(&mut self, limit: u32, span: SimSpan) {
        self.missing = self.missing.saturating_sub(u128::from(limit) * u128::from(span.as_ns()));
    }

    fn remaining(self, kind: LimitKind, limit: u32) -> Remaining {
        let whole = u128::from(limit) * MINUTE_NS;
        let left = whole.saturating_sub(self.missing) / MINUTE_NS;
        let reset = self.missing.div_ceil(u128::from(limit));
        Remaining { kind, limit, left: left as u32, reset: SimSpan::from_ns(reset as u64) }
    }

    /// What there is too little of for `count`, if there is.
    fn lacks(self, kind: LimitKind, limit: u32, count: u32) -> Option<Exceeded> {
        let after = self.missing + u128::from(count) * MINUTE_NS;
        let over = after.checked_sub(u128::from(limit) * MINUTE_NS).filter(|&over| over > 0)?;
        let wait = SimSpan::from_ns(over.div_ceil(u128::from(limit)) as u64);
        Some(Exceeded {
            of: self.remaining(kind, limit),
            requested: count,
            wait: (count <= limit).then_some(wait),
        })
    }
}

impl Buckets {
    /// Counts a request of `tokens` by `user` at `now`, and says what is left.
    ///
    /// # Errors
    /// It is too much; nothing is counted.
    pub fn take(
        &mut self,
        user: u64,
        now: SimTime,
        (requests, tokens): (Option<u32>, Option<u32>),
        count: u32,
    ) -> Result<Vec<Remaining>, Exceeded> {
        let is_full = self.buckets.len() >= MOST_USERS && !self.buckets.contains_key(&user);
        let full = Bucket { at: now, requests: Level::FULL, tokens: Level::FULL };
        let bucket = self.buckets.entry(if is_full { 0 } else { user }).or_insert(full);
        // Stamps of different threads can be a little out of order.
        let span = now.saturating_since(bucket.at);
        bucket.at = bucket.at.max(now);
        let mut levels = Vec::new();
        for (kind, limit, level, count) in [
            (LimitKind::Requests, requests, &mut bucket.requests, 1),
            (LimitKind::Tokens, tokens, &mut bucket.tokens, count),
        ] {
            let Some(limit) = limit else { continue };
            level.flow(limit, span);
            if let Some(exceeded) = level.lacks(kind, limit, count) {
                return Err(exceeded);
            }
            levels.push((kind, limit, level, count));
        }
        let left = levels.into_iter().map(|(kind, limit, level, count)| {
            level.missing += u128::from(count) * MINUTE_NS;
            level.remaining(kind, limit)
        });
        Ok(left.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SimTime {
        SimTime::ZERO + SimSpan::from_ms(ms)
    }

    #[test]
    fn requests_count_down_and_come_back_evenly() {
        // 60 a minute: one a second.
        let mut buckets = Buckets::default();
        let mut take = |ms| buckets.take(1, at(ms), (Some(60), None), 0);
        for left in (0..60).rev() {
            let remaining = take(0).unwrap()[0];
            assert_eq!((remaining.limit, remaining.left), (60, left));
            assert_eq!(remaining.reset, SimSpan::from_ms(u64::from(60 - left) * 1_000));
        }
        let exceeded = take(250).unwrap_err();
        assert_eq!(exceeded.wait, Some(SimSpan::from_ms(750)));
        assert_eq!((exceeded.of.left, exceeded.of.kind), (0, LimitKind::Requests));
        assert!(take(999).is_err());
        assert_eq!(take(1_000).unwrap()[0].left, 0);
        // A minute without requests later it is full again.
        assert_eq!(take(62_000).unwrap()[0].left, 59);
    }

    #[test]
    fn tokens_are_limited_beside_requests_and_a_refused_request_costs_nothing() {
        let mut buckets = Buckets::default();
        let mut take = |ms, tokens| buckets.take(1, at(ms), (Some(100), Some(6_000)), tokens);
        let left = take(0, 4_000).unwrap();
        assert_eq!((left[0].left, left[1].left), (99, 2_000));
        let exceeded = take(0, 2_500).unwrap_err();
        // 500 tokens are missing, and 100 flow in each second.
        assert_eq!(exceeded.wait, Some(SimSpan::from_ms(5_000)));
        assert_eq!((exceeded.of.kind, exceeded.requested), (LimitKind::Tokens, 2_500));
        assert_eq!(take(0, 2_000).unwrap()[0].left, 98, "the refused one was not counted");
        assert_eq!(take(5_000, 6_001).unwrap_err().wait, None, "larger than the limit");
    }

    #[test]
    fn users_have_buckets_of_their_own() {
        let mut buckets = Buckets::default();
        assert!(buckets.take(1, at(0), (Some(1), None), 0).is_ok());
        assert!(buckets.take(2, at(0), (Some(1), None), 0).is_ok());
        assert!(buckets.take(1, at(0), (Some(1), None), 0).is_err());
    }
}
