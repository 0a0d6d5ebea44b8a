//! The one place of this crate that reads the monotonic clock.

use std::time::{Duration, Instant};

use llmsim_engine::units::{SimSpan, SimTime};

/// A monotonic clock that counts from its own start, so that live and virtual runs share one type
/// of instant. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts at zero now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> SimTime {
        SimTime::from_ns(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// How long from now until `at`; zero if it has passed.
    pub fn until(&self, at: SimTime) -> Duration {
        Duration::from_nanos(at.saturating_since(self.now()).as_ns())
    }
}

/// `span` as the standard library's type.
pub fn duration(span: SimSpan) -> Duration {
    Duration::from_nanos(span.as_ns())
}
