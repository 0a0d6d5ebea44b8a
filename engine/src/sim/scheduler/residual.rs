//! How single steps stray from what the cost model says: off unless it is asked for.
//!
//! Real steps jitter: kernels wait for clocks and caches, hosts for garbage and other processes.
//! The cost model is their mean. A [`Residual`] multiplies each step's duration by a factor:
//! log-normal in its body, and now and then far off. It knows nothing of what a step does. The
//! invariant: the factor is a pure function of the seed and the step's number, and its mean is 1,
//! so that it widens ITL without moving throughput.

use crate::seed::Seed;
use crate::units::SimSpan;

/// A distribution of factors, and the seed that they are drawn with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Which sequence of factors.
    pub seed: u64,
    /// Standard deviation of the logarithm of a usual step's factor; 0 to 1.
    pub sigma: f64,
    /// The share of steps that are stragglers; 0 to 0.5.
    pub tail_probability: f64,
    /// How many times as long as usual a straggler takes; 1 to 1,000.
    pub tail_factor: f64,
}

/// A factor in parts per million. Whole, so that the last bit of a logarithm, which may differ from
/// one machine's library to another's, does not reach the timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(u64);

impl Factor {
    /// Nothing is stretched.
    pub const ONE: Self = Self(1_000_000);

    /// The factor in parts per million.
    pub const fn parts_per_million(self) -> u64 {
        self.0
    }

    /// A span times the factor, rounded down to a nanosecond.
    pub fn of(self, span: SimSpan) -> SimSpan {
        let ns = u128::from(span.as_ns()) * u128::from(self.0) / u128::from(Self::ONE.0);
        SimSpan::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Factor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / Self::ONE.0, self.0 % Self::ONE.0)
    }
}

impl Residual {
    /// The factor of a step, by its number. About 30 ns.
    pub fn factor(&self, step: u64) -> Factor {
        let mut random = Seed::new(self.seed).with(&step.to_le_bytes()).generator();
        let is_straggler = random.unit() < self.tail_probability;
        // Box and Muller (1958).
        let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * random.unit()).cos();
        let stretch = if is_straggler { self.tail_factor } else { 1.0 };
        let factor = self.usual() * (self.sigma * normal).exp() * stretch;
        Factor((factor * Factor::ONE.0 as f64).round() as u64)
    }

    /// The median factor of a usual step, below 1: it makes up for what the upper half of a
    /// log-normal distribution and the stragglers add to the mean.
    pub fn usual(&self) -> f64 {
        let stragglers = 1.0 + self.tail_probability * (self.tail_factor - 1.0);
        (-self.sigma * self.sigma / 2.0).exp() / stragglers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Residual =
        Residual { seed: 7, sigma: 0.0, tail_probability: 0.0, tail_factor: 1.0 };

    fn factors(residual: Residual, count: u64) -> Vec<f64> {
        (1..=count).map(|step| residual.factor(step).parts_per_million() as f64 / 1e6).collect()
    }

    #[test]
    fn without_width_and_stragglers_every_factor_is_one() {
        assert!((1..100).all(|step| NONE.factor(step) == Factor::ONE));
        let span = SimSpan::from_ns(123_456_789);
        assert_eq!(Factor::ONE.of(span), span);
    }

    #[test]
    fn a_factor_stretches_a_span_exactly() {
        // 20 ms times 1.25 is 25 ms.
        let span = SimSpan::from_ms(20);
        assert_eq!(Factor(1_250_000).of(span), SimSpan::from_ms(25));
        assert_eq!(Factor(1_250_000).to_string(), "1.250000");
        assert_eq!(Factor(999_999).to_string(), "0.999999");
        let longest = SimSpan::from_ns(u64::MAX);
        assert_eq!(Factor(2_000_000).of(longest), longest, "no overflow");
    }

    /// One step in four takes five times as long, and nothing else happens: with a mean of 1, a
    /// usual step takes u and a straggler 5 u, where 0.75 u + 0.25 * 5 u = 1, so u = 1/2.
    #[test]
    fn stragglers_are_paid_for_by_the_usual_steps() {
        let residual = Residual { tail_probability: 0.25, tail_factor: 5.0, ..NONE };
        assert!((residual.usual() - 0.5).abs() < 1e-12);
        let all = factors(residual, 10_000);
        let stragglers = all.iter().filter(|&&factor| factor == 2.5).count();
        assert_eq!(all.iter().filter(|&&factor| factor == 0.5).count(), 10_000 - stragglers);
        // Binomial: 2,500 with a standard deviation of 43.3; five of them.
        assert!(stragglers.abs_diff(2_500) < 217, "{stragglers}");
    }

    /// A log-normal body: half of the logarithms are below -sigma^2 / 2, 15.87 % below one sigma
    /// less, 2.275 % above two sigmas more, and the factors' mean is 1.
    #[test]
    fn the_body_is_log_normal_with_mean_one() {
        let residual = Residual { sigma: 0.2, ..NONE };
        let count = 40_000;
        let all = factors(residual, count);
        let below = |log: f64| all.iter().filter(|factor| factor.ln() < log).count() as f64;
        let n = count as f64;
        for (sigmas, share) in [(0.0, 0.5), (-1.0, 0.158_655), (2.0, 0.977_250)] {
            // Five standard deviations of a binomial count.
            let spread = 5.0 * (n * share * (1.0 - share)).sqrt();
            let found = below(-0.02 + 0.2 * sigmas);
            assert!((found - n * share).abs() < spread, "{sigmas} sigmas: {found}");
        }
        // The factor's variance is e^(sigma^2) - 1 = 0.0408: the mean of 40,000 is within 0.00101.
        let mean = all.iter().sum::<f64>() / n;
        assert!((mean - 1.0).abs() < 5.0 * 0.00101, "{mean}");
    }

    #[test]
    fn a_factor_hangs_on_the_seed_and_the_step_alone() {
        let residual = Residual { sigma: 0.1, tail_probability: 0.01, tail_factor: 4.0, ..NONE };
        let forwards = factors(residual, 100);
        let mut backwards: Vec<f64> = (1..=100)
            .rev()
            .map(|step| residual.factor(step).parts_per_million() as f64 / 1e6)
            .collect();
        backwards.reverse();
        assert_eq!(forwards, backwards);
        let other = factors(Residual { seed: 8, ..residual }, 100);
        let alike = forwards.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(alike <= 1, "another seed, other factors: {alike} alike");
    }
}
