//! When requests are to be sent: pure, seeded, computed before the run.
//!
//! It knows nothing of prompts or of the target. The invariant: the same plan and seed give the
//! same instants, live or virtual, and the schedule never depends on how the target behaves.

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::units::SimSpan;

/// The load of one level.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// So many requests in flight, each stream sends its next when its last one ended.
    Closed {
        /// Requests in flight.
        concurrency: u32,
    },
    /// Requests arrive whether or not earlier ones have finished.
    Open {
        /// When they arrive.
        arrivals: Arrivals,
        /// The most in flight; later ones wait, and the wait is measured.
        max_concurrency: Option<u32>,
    },
}

/// An arrival schedule before it is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// All at the start (`--rate inf`).
    AtOnce,
    /// A steady mean rate.
    Steady {
        /// Requests per second.
        rate: f64,
        /// How gaps are drawn.
        gaps: Gaps,
    },
    /// A rate that changes.
    Staged {
        /// One after the other.
        stages: Vec<Stage>,
        /// How gaps are drawn.
        gaps: Gaps,
    },
    /// Instants taken from a trace, from its start; sorted.
    Trace(Vec<SimSpan>),
}

/// The distribution of gaps between arrivals, with mean 1 before scaling by the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// Exponential: independent users.
    Poisson,
    /// All equal.
    Constant,
    /// Gamma of this shape; 1 is exponential, below 1 burstier. vLLM's `--burstiness`.
    Gamma(f64),
}

/// A stretch of time in which the rate goes evenly from `from` to `to`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Requests per second at its start.
    pub from: f64,
    /// Requests per second at its end.
    pub to: f64,
    /// Its length.
    pub lasts: SimSpan,
}

/// Where a level ends: at whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// So many requests.
    pub requests: Option<u32>,
    /// Sends within so much time.
    pub duration: Option<SimSpan>,
}

/// More than this many requests in one level is a slip of the hand, not a plan.
const MOST_REQUESTS: usize = 50_000_000;

impl Arrivals {
    /// The instants of arrival, from the start of the level, in order.
    pub fn draw(&self, extent: Extent, seed: Seed) -> Vec<SimSpan> {
        let most = extent.requests.map_or(MOST_REQUESTS, |n| n as usize);
        let end = extent.duration;
        let within = |at: SimSpan| end.is_none_or(|end| at < end);
        match self {
            Self::AtOnce => vec![SimSpan::ZERO; extent.requests.unwrap_or(0) as usize],
            Self::Trace(instants) => {
                instants.iter().copied().take(most).take_while(|&at| within(at)).collect()
            }
            Self::Steady { rate, gaps } => Positions::new(*gaps, seed)
                .take(most)
                .map(|position| SimSpan::from_secs_f64(position / rate))
                .take_while(|&at| within(at))
                .collect(),
            Self::Staged { stages, gaps } => {
                let mut clock = StageClock::new(stages);
                Positions::new(*gaps, seed)
                    .take(most)
                    .map_while(|position| clock.instant(position))
                    .take_while(|&at| within(at))
                    .collect()
            }
        }
    }

    /// Requests per second that the plan asks for on average; `None` where there is no such number.
    pub fn target_rate(&self) -> Option<f64> {
        match self {
            Self::AtOnce => None,
            Self::Steady { rate, .. } => Some(*rate),
            Self::Staged { stages, .. } => {
                let time: f64 = stages.iter().map(|s| s.lasts.as_secs_f64()).sum();
                let area: f64 = stages.iter().map(Stage::requests).sum();
                (time > 0.0).then(|| area / time)
            }
            Self::Trace(instants) => {
                let last = instants.last()?.as_secs_f64();
                // Between the first, at zero, and the last.
                (last > 0.0).then(|| (instants.len() - 1) as f64 / last)
            }
        }
    }
}

impl Arrivals {
    /// How long it goes on by itself; `None` if it has no end or ends with its last arrival.
    pub fn lasts(&self) -> Option<SimSpan> {
        match self {
            Self::Staged { stages, .. } => {
                Some(stages.iter().fold(SimSpan::ZERO, |sum, stage| sum + stage.lasts))
            }
            _ => None,
        }
    }

    /// The greatest rate that the plan reaches, where it has rates.
    pub fn peak_rate(&self) -> Option<f64> {
        match self {
            Self::Staged { stages, .. } => {
                stages.iter().map(|stage| stage.from.max(stage.to)).max_by(f64::total_cmp)
            }
            other => other.target_rate(),
        }
    }
}

impl Stage {
    fn requests(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.lasts.as_secs_f64()
    }
}

/// Arrival positions of a process of rate 1: 0.7, 1.9, 2.2, ...
struct Positions {
    gaps: Gaps,
    random: Generator,
    position: f64,
    first: bool,
}

impl Positions {
    fn new(gaps: Gaps, seed: Seed) -> Self {
        let random = seed.with(b"arrivals").generator();
        Self { gaps, random, position: 0.0, first: true }
    }
}

impl Iterator for Positions {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let gap = match self.gaps {
            Gaps::Poisson => self.random.exponential(),
            // Equal gaps start at once, so that R per second for D seconds are R x D requests.
            Gaps::Constant => f64::from(u8::from(!self.first)),
            Gaps::Gamma(shape) => gamma(&mut self.random, shape) / shape,
        };
        self.first = false;
        self.position += gap;
        Some(self.position)
    }
}

/// A gamma variate of this shape and scale 1 (Marsaglia and Tsang 2000).
fn gamma(random: &mut Generator, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - random.unit()).powf(1.0 / shape);
        return gamma(random, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(random);
        let v = (1.0 + c * x).powi(3);
        if v <= 0.0 {
            continue;
        }
        let u = 1.0 - random.unit();
        if u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// A standard normal variate (Box and Muller).
fn normal(random: &mut Generator) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

/// Maps positions of a process of rate 1 to instants under a changing rate: the instant at which
/// the area under the rate curve reaches the position.
struct StageClock<'a> {
    stages: &'a [Stage],
    /// Area and time before `stages[0]`.
    area: f64,
    time: f64,
}

impl<'a> StageClock<'a> {
    fn new(stages: &'a [Stage]) -> Self {
        Self { stages, area: 0.0, time: 0.0 }
    }

    /// Positions must not fall. `None` after the last stage.
    fn instant(&mut self, position: f64) -> Option<SimSpan> {
        loop {
            let stage = self.stages.first()?;
            let wanted = position - self.area;
            if wanted >= stage.requests() {
                self.area += stage.requests();
                self.time += stage.lasts.as_secs_f64();
                self.stages = &self.stages[1..];
                continue;
            }
            // from x + slope x^2 / 2 = wanted, in the form that does not cancel for small slopes.
            let slope = (stage.to - stage.from) / stage.lasts.as_secs_f64();
            let root = (stage.from * stage.from + 2.0 * slope * wanted).max(0.0).sqrt();
            let into = if wanted == 0.0 { 0.0 } else { 2.0 * wanted / (stage.from + root) };
            return Some(SimSpan::from_secs_f64(self.time + into));
        }
    }
}

/// Reads `ramp 0->100 60s; hold 120s; spike 400 10s; pause 5s`.
///
/// # Errors
/// A sentence that names the stage and shows the form.
pub fn parse_stages(text: &str) -> Result<Vec<Stage>, String> {
    let mut stages = Vec::new();
    let mut rate: Option<f64> = None;
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = |why: &str| {
            format!(
                "--load: stage '{part}': {why}; write 'ramp 0->100 60s', 'hold 120s', \
                 'hold 50 120s', 'spike 400 10s' or 'pause 5s'"
            )
        };
        let mut words = part.split_whitespace();
        let verb = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let stage = match (verb, words.as_slice()) {
            ("ramp", [ends, lasts]) => {
                let (from, to) = ends.split_once("->").ok_or_else(|| wrong("no '->'"))?;
                let (from, to) = (parse_rate(from), parse_rate(to));
                let (Some(from), Some(to)) = (from, to) else { return Err(wrong("not a rate")) };
                rate = Some(to);
                (from, to, lasts)
            }
            ("hold", [lasts]) => {
                let held = rate.ok_or_else(|| wrong("nothing before it sets a rate"))?;
                (held, held, lasts)
            }
            ("hold", [at, lasts]) => {
                let held = parse_rate(at).ok_or_else(|| wrong("not a rate"))?;
                rate = Some(held);
                (held, held, lasts)
            }
            ("spike", [at, lasts]) => {
                let peak = parse_rate(at).ok_or_else(|| wrong("not a rate"))?;
                (peak, peak, lasts)
            }
            ("pause", [lasts]) => (0.0, 0.0, lasts),
            _ => return Err(wrong("not understood")),
        };
        let lasts = parse_span(stage.2).ok_or_else(|| wrong("not a length of time"))?;
        stages.push(Stage { from: stage.0, to: stage.1, lasts });
    }
    if !stages.iter().any(|stage| stage.requests() > 0.0) {
        return Err("--load: no stage sends anything; try 'ramp 0->100 60s; hold 120s'".into());
    }
    Ok(stages)
}

fn parse_rate(text: &str) -> Option<f64> {
    let rate: f64 = text.trim().trim_end_matches("/s").parse().ok()?;
    (rate.is_finite() && rate >= 0.0).then_some(rate)
}

/// `250ms`, `1.5s`, `2m`, `1h`, or plain seconds.
fn parse_span(text: &str) -> Option<SimSpan> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * factor;
    (seconds > 0.0 && seconds < 1e7).then(|| SimSpan::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> SimSpan {
        SimSpan::from_ms(n * 1000)
    }

    #[test]
    fn constant_gaps_fill_the_duration_exactly() {
        let arrivals = Arrivals::Steady { rate: 4.0, gaps: Gaps::Constant };
        let extent = Extent { requests: None, duration: Some(seconds(1)) };
        let drawn = arrivals.draw(extent, Seed::new(1));
        assert_eq!(drawn, [0, 250, 500, 750].map(SimSpan::from_ms));
    }

    #[test]
    fn poisson_gaps_have_the_asked_mean_and_the_variation_of_an_exponential() {
        let arrivals = Arrivals::Steady { rate: 50.0, gaps: Gaps::Poisson };
        let extent = Extent { requests: Some(200_000), duration: None };
        let (mean, cv) = gap_moments(&arrivals.draw(extent, Seed::new(3)));
        assert!((mean - 0.02).abs() < 0.0002, "{mean}");
        assert!((cv - 1.0).abs() < 0.01, "{cv}");
    }

    #[test]
    fn gamma_gaps_vary_by_one_over_the_root_of_their_shape() {
        for shape in [0.25, 1.0, 4.0] {
            let arrivals = Arrivals::Steady { rate: 10.0, gaps: Gaps::Gamma(shape) };
            let extent = Extent { requests: Some(200_000), duration: None };
            let (mean, cv) = gap_moments(&arrivals.draw(extent, Seed::new(9)));
            assert!((mean - 0.1).abs() < 0.002, "{shape}: {mean}");
            assert!((cv - 1.0 / shape.sqrt()).abs() < 0.03, "{shape}: {cv}");
        }
    }

    fn gap_moments(instants: &[SimSpan]) -> (f64, f64) {
        let gaps: Vec<f64> =
            instants.windows(2).map(|w| w[1].as_secs_f64() - w[0].as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let var = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, var.sqrt() / mean)
    }

    /// Under a ramp from 0 to 2 per second the area at t is t^2/... : slope 1/s^2 gives t^2/2, so
    /// the nth arrival of a constant process is at sqrt(2n).
    #[test]
    fn a_ramp_places_arrivals_by_the_area_under_the_rate() {
        let stages = parse_stages("ramp 0->4 4s; hold 2s").expect("valid");
        let drawn =
            Arrivals::Staged { stages, gaps: Gaps::Constant }.draw(Extent::default(), Seed::new(0));
        let at: Vec<f64> = drawn.iter().map(|s| s.as_secs_f64()).collect();
        assert_eq!(at.len(), 16, "8 in the ramp, 8 in the hold: {at:?}");
        for (n, at) in at.iter().take(8).enumerate() {
            assert!((at - (2.0 * n as f64).sqrt()).abs() < 1e-6, "{n}: {at}");
        }
        assert!((at[9] - 4.25).abs() < 1e-6, "the hold goes on at 4/s: {}", at[9]);
    }

    #[test]
    fn a_spike_does_not_change_what_the_next_hold_holds() {
        let stages = parse_stages("hold 5 2s; spike 400 10s; pause 500ms; hold 1m").expect("valid");
        let rates: Vec<(f64, f64)> = stages.iter().map(|s| (s.from, s.to)).collect();
        assert_eq!(rates, [(5.0, 5.0), (400.0, 400.0), (0.0, 0.0), (5.0, 5.0)]);
        assert_eq!(stages[3].lasts, seconds(60));
    }

    #[test]
    fn a_wrong_stage_is_named_with_the_form_to_use() {
        for (text, part) in [
            ("ramp 0-100 60s", "no '->'"),
            ("hold 60s", "sets a rate"),
            ("jump 3 4s", "not understood"),
            ("hold 5 4x", "length of time"),
            ("", "no stage sends"),
        ] {
            let problem = parse_stages(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_schedule_and_another_seed_another() {
        let arrivals = Arrivals::Steady { rate: 7.0, gaps: Gaps::Poisson };
        let extent = Extent { requests: Some(20), duration: None };
        assert_eq!(arrivals.draw(extent, Seed::new(5)), arrivals.draw(extent, Seed::new(5)));
        assert_ne!(arrivals.draw(extent, Seed::new(5)), arrivals.draw(extent, Seed::new(6)));
    }
}
