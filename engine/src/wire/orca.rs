//! Envoy's ORCA load report in a header, as vLLM sends it to gateways that ask.
//!
//! It knows no engine: the figures are the caller's. The names are vLLM's
//! (serve/utils/orca_metrics.py), and so are the two forms; ORCA's third, `BIN`, it has not.

use std::fmt::Write as _;

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `TEXT`: names and values with commas between.
    Text,
    /// `JSON`: an object.
    Json,
}

/// What is reported: of all simulated GPUs that a gateway cannot tell apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Requests that wait.
    pub waiting: u64,
    /// The share of the KV cache that is in use.
    pub kv_usage: f64,
}

impl Format {
    /// What the header `endpoint-load-metrics-format` asks for, in any case; nothing if it is
    /// neither.
    pub fn asked(header: &str) -> Option<Self> {
        match header {
            text if text.eq_ignore_ascii_case("text") => Some(Self::Text),
            json if json.eq_ignore_ascii_case("json") => Some(Self::Json),
            _ => None,
        }
    }

    /// The value of the header `endpoint-load-metrics`.
    pub fn report(self, load: Load) -> String {
        const INFALLIBLE: &str = "writing to memory cannot fail";
        // Decimals without exponents: not every parser of the text form reads those.
        let usage = match load.kv_usage {
            whole if whole.fract() == 0.0 => format!("{whole:.1}"),
            other => other.to_string(),
        };
        let values = [
            ("num_requests_waiting", format!("{}.0", load.waiting)),
            ("kv_cache_usage_perc", usage),
        ];
        let (opening, before, between, close) = match self {
            Self::Text => ("TEXT ", "named_metrics.", "=", ""),
            Self::Json => ("JSON {\"named_metrics\": {", "\"", "\": ", "}}"),
        };
        let mut out = opening.to_owned();
        for (at, (name, value)) in values.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(out, "{comma}{before}{name}{between}{value}").expect(INFALLIBLE);
        }
        out.push_str(close);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_what_vllm_s_would_be() {
        // `metrics_header` of vLLM 0.33 with its gauges at 3 and 0.25.
        let load = Load { waiting: 3, kv_usage: 0.25 };
        for (header, expected) in [
            (
                "TEXT",
                "TEXT named_metrics.num_requests_waiting=3.0, \
                 named_metrics.kv_cache_usage_perc=0.25",
            ),
            (
                "json",
                "JSON {\"named_metrics\": {\"num_requests_waiting\": 3.0, \
                 \"kv_cache_usage_perc\": 0.25}}",
            ),
        ] {
            assert_eq!(Format::asked(header).unwrap().report(load), expected);
        }
        assert_eq!(Format::asked("BIN"), None);
        assert_eq!(Format::asked(""), None);
        let small = Format::Text.report(Load { waiting: 0, kv_usage: 1e-6 });
        assert!(small.ends_with("=0.000001"), "{small}");
        let full = Format::Text.report(Load { waiting: 0, kv_usage: 1.0 });
        assert!(full.ends_with("=1.0"), "{full}");
    }
}
