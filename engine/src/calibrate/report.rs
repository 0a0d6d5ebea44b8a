//! What a fit tells, and what it does not.
//!
//! For people: residuals run by run, the range in which the constants were seen at work, and
//! warnings where the runs could not tell. The invariant: a constant that stayed where it began
//! because no run says anything about it is named.

use std::fmt;

use crate::calibrate::constants::{Constant, Constants};
use crate::calibrate::fit::{Fit, Observed, Run, Trust};
use crate::calibrate::linear::Linear;
use crate::calibrate::workload::{Load, Metric};

/// A fit with the runs that it is of; prints as lines.
#[derive(Debug)]
pub struct Report<'a> {
    /// What each run is called.
    pub names: &'a [String],
    /// The runs.
    pub runs: &'a [Run],
    /// The same with the constants that one began with.
    pub before: &'a [Linear],
    /// What came of it.
    pub fit: &'a Fit,
}

/// An error that is more than what runs repeated on the same machine differ by.
const LARGE_ERROR: f64 = 0.10;
/// With more than this share of a request's time before its first token, requests queue.
const SATURATED: f64 = 0.25;

impl Report<'_> {
    /// Simulated over measured, less one.
    fn error(linear: &Linear, seen: &Observed) -> Option<f64> {
        Some(linear.outcome.get(seen.metric)? / seen.value - 1.0)
    }

    /// Where the runs cannot tell, or the model cannot follow.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let trust = |constant: Constant| self.fit.trust[constant as usize];
        let observed = || self.runs.iter().flat_map(|run| &run.observed);
        let is_ttft = |metric| matches!(metric, Metric::MeanTtft | Metric::MedianTtft);
        let is_tpot = |metric| matches!(metric, Metric::MeanTpot | Metric::MedianTpot);
        if !observed().any(|seen| is_ttft(seen.metric)) {
            warnings.push(
                "no run tells TTFT: request_overhead_ms and the prefill rate are those that one \
                 began with"
                    .to_owned(),
            );
        } else if trust(Constant::LinearCompute) == Trust::Assumed {
            warnings.push(
                "the runs do not tell the prefill rate (linear_compute): their prompts are too \
                 short; add a run with prompts of 1,000 tokens or more"
                    .to_owned(),
            );
        }
        if !observed().any(|seen| is_tpot(seen.metric)) {
            warnings.push(
                "no run tells TPOT: what decodes take is known from other figures only".to_owned(),
            );
        }
        if trust(Constant::KvBandwidth) == Trust::Assumed
            && trust(Constant::HostPerSequence) == Trust::Assumed
        {
            warnings.push(
                "the runs do not tell how a step grows with its batch and context (kv_bandwidth, \
                 host_per_sequence_us); add a run at a high concurrency"
                    .to_owned(),
            );
        }
        if self.runs.len() == 1 {
            warnings.push(
                "one run fixes as many constants as it has figures; the others moved with them, \
                 mostly in proportion. A second run at another concurrency *and* prompt length \
                 tells far more"
                    .to_owned(),
            );
        } else if self
            .span(|request| request.prompt.get())
            .is_some_and(|(least, most)| f64::from(most) < 1.5 * f64::from(least))
        {
            warnings.push(
                "all prompts are about as long: prefill and overhead per request cannot be told \
                 apart; add a run with another prompt length"
                    .to_owned(),
            );
        }
        for ((name, linear), run) in self.names.iter().zip(&self.fit.runs).zip(self.runs) {
            if linear.outcome.waiting_share() > SATURATED && matches!(run.workload.load, Load::Open)
            {
                warnings.push(format!(
                    "{name}: the engine is saturated, so its TTFT is a queue, and tells the \
                     throughput rather than a latency"
                ));
            }
            for seen in &run.observed {
                if let Some(error) = Self::error(linear, seen).filter(|e| e.abs() > LARGE_ERROR) {
                    warnings.push(format!(
                        "{name}: {} is still off by {:+.1} %: the runs contradict each other, or \
                         the engine does something that is not simulated (check the chunk size, \
                         max_num_seqs, prefix caching and lengths)",
                        seen.metric.as_str(),
                        error * 100.0
                    ));
                }
            }
        }
        warnings
    }

    /// The least and the most of something over all requests.
    fn span(&self, of: impl Fn(&super::Request) -> u32) -> Option<(u32, u32)> {
        let all = || self.runs.iter().flat_map(|run| &run.workload.requests).map(&of);
        Some((all().min()?, all().max()?))
    }
}

/// A constant as the configuration takes it, with four digits.
pub fn written(constants: &Constants, constant: Constant) -> Option<f64> {
    let value = constants.get(constant)?;
    let digits = 10_f64.powf(3.0 - value.abs().max(1e-9).log10().floor());
    Some((value * digits).round() / digits)
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<32} {:<13} {:>12} {:>9} {:>9}", "run", "", "measured", "before", "after")?;
        for (place, run) in self.runs.iter().enumerate() {
            for seen in &run.observed {
                let percent = |linear: &Linear| {
                    Self::error(linear, seen)
                        .map_or("-".to_owned(), |error| format!("{:+.1} %", error * 100.0))
                };
                let value = match seen.metric {
                    Metric::OutputRate => format!("{:.1}", seen.value),
                    _ => format!("{:.2} ms", seen.value * 1e3),
                };
                writeln!(
                    f,
                    "{:<32} {:<13} {value:>12} {:>9} {:>9}",
                    self.names[place],
                    seen.metric.as_str(),
                    percent(&self.before[place]),
                    percent(&self.fit.runs[place]),
                )?;
            }
        }
        let prompts = self.span(|request| request.prompt.get()).unwrap_or_default();
        let outputs = self.span(|request| request.output.get()).unwrap_or_default();
        let batches = || self.fit.runs.iter().map(|run| run.outcome.largest_batch);
        writeln!(
            f,
            "\nvalid for up to {} requests in a step, prompts of {} to {} tokens, answers of {} to \
             {}",
            batches().max().unwrap_or(0),
            prompts.0,
            prompts.1,
            outputs.0,
            outputs.1
        )?;
        for (title, wanted) in [
            ("told by the runs", Trust::Measured),
            ("told in part", Trust::Weak),
            ("not told, moved with the others if at all", Trust::Assumed),
        ] {
            let names: Vec<&str> = Constant::ALL
                .iter()
                .zip(self.fit.trust)
                .filter(|(_, trust)| *trust == wanted)
                .map(|(constant, _)| constant.key())
                .collect();
            if !names.is_empty() {
                writeln!(f, "{title}: {}", names.join(", "))?;
            }
        }
        for warning in self.warnings() {
            writeln!(f, "warning: {warning}")?;
        }
        Ok(())
    }
}
