//! Whether a server keeps its timeline, and if not, why.
//!
//! [`judge`] is a pure function of what one rolling window showed; [`Verdict`] remembers the last
//! judgement, so that a change is told once. The invariant: a server is only ever found wanting for
//! lag that it had; a starved processor or a slow driver explains lag, and is no offence by itself.

use crate::units::{SimSpan, SimTime};

/// What a rolling window showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Tokens whose lag was measured.
    pub tokens: u64,
    /// 99th percentile of released − scheduled.
    pub engine_lag_p99: SimSpan,
    /// 99th percentile of sent − scheduled.
    pub token_lag_p99: SimSpan,
    /// The share of the time that the most starved GPU or I/O thread stood ready to run and did
    /// not; `None` where the kernel does not say.
    pub starved: Option<f64>,
    /// How often per second the processor was taken from the GPU and I/O threads.
    pub involuntary_switches: f64,
    /// The I/O threads run on a driver that is not the one they should have.
    pub driver_fallback: bool,
}

/// Where good ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// The largest good 99th percentile of the lag.
    pub lag: SimSpan,
    /// Fewer tokens than this are not judged: one hiccup would be a percentile.
    pub least_tokens: u64,
    /// From this share on, a starved thread explains its lag.
    pub starved: f64,
    /// Where the share is not known: from so many involuntary switches per second on.
    pub involuntary_switches: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            lag: SimSpan::from_ms(5),
            least_tokens: 100,
            starved: 0.05,
            involuntary_switches: 50.0,
        }
    }
}

/// Why a server is late. In the order in which they are told: causes before symptoms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// GPU or I/O threads did not get a processor when they needed one.
    CpuStarved,
    /// GPU threads released tokens late.
    EngineLate,
    /// I/O threads were late with tokens that had been released in time.
    IoLate,
    /// I/O threads were late, and on the fallback driver.
    DriverFallback,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 4] =
        [Self::CpuStarved, Self::EngineLate, Self::IoLate, Self::DriverFallback];

    /// The word for logs and labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CpuStarved => "cpu_starved",
            Self::EngineLate => "engine_late",
            Self::IoLate => "io_late",
            Self::DriverFallback => "driver_fallback",
        }
    }
}

/// The outcome of [`judge`]: no reasons is good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// In the order of [`Reason::ALL`].
    pub reasons: Vec<Reason>,
}

impl Judgement {
    /// Whether the timeline is kept.
    pub fn is_ok(&self) -> bool {
        self.reasons.is_empty()
    }

    /// `ok`, or the first reason.
    pub fn word(&self) -> &'static str {
        self.reasons.first().map_or("ok", |reason| reason.as_str())
    }
}

/// Judges a window.
pub fn judge(window: &Window, thresholds: &Thresholds) -> Judgement {
    let Window { engine_lag_p99: engine, token_lag_p99: token, .. } = *window;
    let mut reasons = Vec::new();
    if window.tokens < thresholds.least_tokens || engine.max(token) <= thresholds.lag {
        return Judgement { reasons };
    }
    let is_engine_late = engine > thresholds.lag;
    // What the engine was late is not the I/O threads' fault.
    let after_release = SimSpan::from_ns(token.as_ns().saturating_sub(engine.as_ns()));
    let is_io_late = token > thresholds.lag && (!is_engine_late || after_release > thresholds.lag);
    let is_starved = match window.starved {
        Some(share) => share >= thresholds.starved,
        None => window.involuntary_switches >= thresholds.involuntary_switches,
    };
    for (reason, holds) in [
        (Reason::CpuStarved, is_starved),
        (Reason::EngineLate, is_engine_late),
        (Reason::IoLate, is_io_late),
        (Reason::DriverFallback, is_io_late && window.driver_fallback),
    ] {
        if holds {
            reasons.push(reason);
        }
    }
    Judgement { reasons }
}

/// The judgement that stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    judgement: Judgement,
    since: SimTime,
}

impl Verdict {
    /// Good until something else is seen.
    pub fn new(now: SimTime) -> Self {
        Self { judgement: Judgement::default(), since: now }
    }

    /// The judgement that stands.
    pub fn judgement(&self) -> &Judgement {
        &self.judgement
    }

    /// Since when it has been good, or has not.
    pub fn since(&self) -> SimTime {
        self.since
    }

    /// Takes in a new judgement. Returns whether good has turned bad or bad good: what is worth a
    /// line in the log. Other reasons for the same verdict are taken in silently.
    pub fn update(&mut self, now: SimTime, judgement: Judgement) -> bool {
        let turned = judgement.is_ok() != self.judgement.is_ok();
        self.judgement = judgement;
        if turned {
            self.since = now;
        }
        turned
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(engine_us: u64, token_us: u64) -> Window {
        Window {
            tokens: 10_000,
            engine_lag_p99: SimSpan::from_us(engine_us),
            token_lag_p99: SimSpan::from_us(token_us),
            starved: Some(0.0),
            ..Window::default()
        }
    }

    fn words(window: &Window) -> Vec<&'static str> {
        let judgement = judge(window, &Thresholds::default());
        judgement.reasons.iter().map(|reason| reason.as_str()).collect()
    }

    #[test]
    fn five_milliseconds_is_still_good() {
        assert!(words(&window(100, 5_000)).is_empty());
        assert_eq!(words(&window(100, 5_001)), ["io_late"]);
    }

    #[test]
    fn whoever_is_late_is_named() {
        assert_eq!(words(&window(8_000, 8_200)), ["engine_late"]);
        assert_eq!(words(&window(8_000, 20_000)), ["engine_late", "io_late"]);
        // Only answers that are not streamed: nothing was sent token by token.
        assert_eq!(words(&window(8_000, 0)), ["engine_late"]);
    }

    #[test]
    fn a_starved_processor_explains_lag_and_is_no_offence_by_itself() {
        let starved = Window { starved: Some(0.4), ..window(7_000, 9_000) };
        assert_eq!(words(&starved), ["cpu_starved", "engine_late"]);
        let unhurt = Window { starved: Some(0.4), ..window(100, 300) };
        assert!(words(&unhurt).is_empty());
        let unknown = Window { starved: None, involuntary_switches: 400.0, ..window(100, 9_000) };
        assert_eq!(words(&unknown), ["cpu_starved", "io_late"]);
        let calm = Window { starved: None, involuntary_switches: 3.0, ..window(100, 9_000) };
        assert_eq!(words(&calm), ["io_late"]);
    }

    #[test]
    fn the_fallback_driver_is_named_only_where_io_is_late() {
        let late = Window { driver_fallback: true, ..window(100, 9_000) };
        assert_eq!(words(&late), ["io_late", "driver_fallback"]);
        let engine = Window { driver_fallback: true, ..window(9_000, 9_100) };
        assert_eq!(words(&engine), ["engine_late"]);
        assert!(words(&Window { driver_fallback: true, ..window(100, 200) }).is_empty());
    }

    #[test]
    fn a_hiccup_among_few_tokens_is_not_judged() {
        assert!(words(&Window { tokens: 99, ..window(90_000, 90_000) }).is_empty());
        assert!(!words(&Window { tokens: 100, ..window(90_000, 90_000) }).is_empty());
    }

    /// A processor hog comes at 10 s and goes at 14 s, with a window of ten seconds.
    #[test]
    fn the_log_is_told_once_when_it_turns_and_once_when_it_turns_back() {
        let mut verdict = Verdict::new(SimTime::ZERO);
        let mut told = Vec::new();
        for second in 0..40u64 {
            let late = (10..24).contains(&second);
            let reasons = if second < 12 { 9_000 } else { 30_000 };
            let seen = if late { window(reasons, 60_000) } else { window(50, 400) };
            let now = SimTime::from_ns(second * 1_000_000_000);
            if verdict.update(now, judge(&seen, &Thresholds::default())) {
                told.push((second, verdict.judgement().word()));
                assert_eq!(verdict.since(), now);
            }
        }
        assert_eq!(told, [(10, "engine_late"), (24, "ok")]);
    }
}
