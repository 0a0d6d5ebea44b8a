//! The one place where the server reads the time.
//!
//! The invariant: all threads of a server share one origin, so that an instant stamped on one
//! thread means the same on another.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use llmsim_engine::units::SimTime;

/// The run's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose zero is now.
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The time since the run began.
    pub(crate) fn now(self) -> SimTime {
        let ns = self.origin.elapsed().as_nanos();
        SimTime::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Seconds since 1970, with fractions.
pub(crate) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64()
}

/// Seconds since 1970, as `created` and `date` show them.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
