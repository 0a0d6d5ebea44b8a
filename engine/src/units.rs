//! The quantities of the simulation, each in a type of its own.
//!
//! Time is integral nanoseconds since the start of the run; there is no floating point outside the
//! cost model. The one invariant: a [`SimTime`] is an instant, a [`SimSpan`] a length of time, and
//! the compiler keeps them apart.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

/// An instant on the simulation's timeline: nanoseconds since the run began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: Self = Self(0);

    /// The instant `ns` nanoseconds after the start of the run.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the start of the run.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to `self`; zero if `earlier` is in fact later.
    pub const fn saturating_since(self, earlier: Self) -> SimSpan {
        SimSpan(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimSpan(u64);

impl SimSpan {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// A span of `us` microseconds.
    pub const fn from_us(us: u64) -> Self {
        Self(us * 1_000)
    }

    /// A span of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// The span nearest to `seconds`, which must be finite and not negative.
    ///
    /// # Panics
    /// On a negative or non-finite argument: callers validate user input first.
    pub fn from_secs_f64(seconds: f64) -> Self {
        assert!(seconds.is_finite() && seconds >= 0.0, "a span of {seconds} s");
        Self((seconds * 1e9).round() as u64)
    }

    /// Nanoseconds in this span.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Seconds in this span, for display and statistics only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add<SimSpan> for SimTime {
    type Output = SimTime;
    fn add(self, span: SimSpan) -> SimTime {
        SimTime(self.0 + span.0)
    }
}

impl AddAssign<SimSpan> for SimTime {
    fn add_assign(&mut self, span: SimSpan) {
        self.0 += span.0;
    }
}

impl Sub for SimTime {
    type Output = SimSpan;
    /// The span between two instants; asserts that the right one is not later.
    fn sub(self, earlier: SimTime) -> SimSpan {
        assert!(self.0 >= earlier.0, "time ran back: {self} - {earlier}");
        SimSpan(self.0 - earlier.0)
    }
}

impl Add for SimSpan {
    type Output = SimSpan;
    fn add(self, other: SimSpan) -> SimSpan {
        SimSpan(self.0 + other.0)
    }
}

impl AddAssign for SimSpan {
    fn add_assign(&mut self, other: SimSpan) {
        self.0 += other.0;
    }
}

impl Sub for SimSpan {
    type Output = SimSpan;
    fn sub(self, other: SimSpan) -> SimSpan {
        SimSpan(self.0 - other.0)
    }
}

impl SubAssign for SimSpan {
    fn sub_assign(&mut self, other: SimSpan) {
        self.0 -= other.0;
    }
}

/// Milliseconds with as many decimals as needed: `12.5ms`, `0ms`.
fn fmt_ms(ns: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (whole, rest) = (ns / 1_000_000, ns % 1_000_000);
    if rest == 0 {
        return write!(f, "{whole}ms");
    }
    let decimals = format!("{rest:06}");
    write!(f, "{whole}.{}ms", decimals.trim_end_matches('0'))
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_ms(self.0, f)
    }
}

impl fmt::Display for SimSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt_ms(self.0, f)
    }
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($inner);

        impl $name {
            /// None of them.
            pub const ZERO: Self = Self(0);

            /// `count` of them.
            pub const fn new(count: $inner) -> Self {
                Self(count)
            }

            /// The bare number.
            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

count! {
    /// A number of tokens.
    Tokens(u32)
}
count! {
    /// A number of KV-cache blocks.
    Blocks(u32)
}
count! {
    /// A number of bytes.
    Bytes(u64)
}

/// A rate, in millionths per second, so that timetables are computed in integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate {
    micro_per_second: u64,
}

impl Rate {
    /// The rate nearest to `per_second`; `None` unless it is finite and at least 1e-6.
    pub fn per_second(per_second: f64) -> Option<Self> {
        let micro = (per_second * 1e6).round();
        (micro >= 1.0 && micro <= u64::MAX as f64)
            .then_some(Self { micro_per_second: micro as u64 })
    }

    /// The time that `count` of them take, rounded to the nearest nanosecond. Computed from the
    /// whole count, so that the n-th deadline of a timetable never drifts.
    pub fn time_for(self, count: u64) -> SimSpan {
        let numerator = u128::from(count) * 1_000_000_000_000_000;
        let rate = u128::from(self.micro_per_second);
        SimSpan(u64::try_from((numerator + rate / 2) / rate).unwrap_or(u64::MAX))
    }

    /// The rate as a floating-point number per second, for display.
    pub fn as_f64(self) -> f64 {
        self.micro_per_second as f64 / 1e6
    }
}

/// A request inside an engine; unique among the requests that one engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A configured model, by its place in `models.yml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timetable_of_a_third_of_a_second_does_not_drift() {
        let rate = Rate::per_second(3.0).unwrap();
        assert_eq!(rate.time_for(1).as_ns(), 333_333_333);
        assert_eq!(rate.time_for(3).as_ns(), 1_000_000_000);
        assert_eq!(rate.time_for(3_000_000).as_ns(), 1_000_000_000_000_000);
    }

    #[test]
    fn rates_that_cannot_be_are_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-9] {
            assert_eq!(Rate::per_second(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_print_as_milliseconds() {
        assert_eq!(SimTime::from_ns(12_500_000).to_string(), "12.5ms");
        assert_eq!(SimTime::ZERO.to_string(), "0ms");
        assert_eq!(SimSpan::from_ns(1).to_string(), "0.000001ms");
    }
}
