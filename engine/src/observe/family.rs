//! Metric families as values, and their text.
//!
//! Two texts of the same families: the Prometheus text format as Python's client writes it (which
//! is how vLLM's `/metrics` looks: labels in alphabetical order with `le` among them, every value a
//! float, count before sum), and OpenMetrics 1.0. The `prometheus` crate's encoder can write
//! neither: it puts `le` last, prints whole floats as integers, the sum before the count, and sorts
//! families by name. The invariant: what is written depends on the families alone, never on a clock
//! or an order of insertion into a map.

use std::fmt::Write;

use crate::stats::histogram::Histogram;

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, a count and a sum.
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric and all its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name as the Prometheus text shows it: of a counter, with `_total`.
    pub name: &'static str,
    /// One line.
    pub help: &'static str,
    /// What it is.
    pub kind: Kind,
    /// In the order in which they are written.
    pub samples: Vec<Sample>,
}

/// One series of a family.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// In alphabetical order of their names.
    pub labels: Labels,
    /// What is shown.
    pub value: Value,
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// What a series shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a counter or a gauge.
    Number(f64),
    /// Of a histogram.
    Histogram(Histogram),
}

impl Family {
    /// A family without series.
    pub const fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Self { name, help, kind, samples: Vec::new() }
    }

    /// Adds a series that shows a number.
    pub fn number(&mut self, labels: Labels, value: f64) {
        debug_assert!(self.kind != Kind::Histogram, "{} is a histogram", self.name);
        self.push(labels, Value::Number(value));
    }

    /// Adds a series that shows a histogram.
    pub fn histogram(&mut self, labels: Labels, value: Histogram) {
        debug_assert!(self.kind == Kind::Histogram, "{} is no histogram", self.name);
        self.push(labels, Value::Histogram(value));
    }

    fn push(&mut self, mut labels: Labels, value: Value) {
        labels.sort_unstable_by_key(|(name, _)| *name);
        self.samples.push(Sample { labels, value });
    }
}

/// Which text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The value of `content-type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What a client that sent this `Accept` gets: OpenMetrics if it names it with a weight that is
    /// not zero and not below that of plain text (Prometheus names both, OpenMetrics first).
    pub fn accepted(accept: &str) -> Self {
        let mut weights = [None::<f64>, None];
        for item in accept.split(',') {
            let mut parts = item.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let mut weight = 1.0;
            let mut version_fits = true;
            for part in parts {
                match part.split_once('=') {
                    Some(("q", q)) => weight = q.trim().parse().unwrap_or(0.0),
                    Some(("version", version)) => {
                        version_fits = !kind.contains("openmetrics") || version.starts_with("1.");
                    }
                    _ => {}
                }
            }
            let of = match kind {
                "application/openmetrics-text" if version_fits => 0,
                "text/plain" => 1,
                _ => continue,
            };
            weights[of] = Some(weights[of].map_or(weight, |other| weight.max(other)));
        }
        match weights {
            [Some(open), plain] if open > 0.0 && open >= plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Prometheus,
        }
    }

    /// The text of these families.
    pub fn write<'a>(self, families: impl IntoIterator<Item = &'a Family>) -> String {
        let mut text = String::with_capacity(64 * 1024);
        for family in families {
            self.write_family(family, &mut text);
        }
        if self == Self::OpenMetrics {
            text.push_str("# EOF\n");
        }
        text
    }

    fn write_family(self, family: &Family, text: &mut String) {
        // OpenMetrics names a counter without its suffix, except on its samples.
        let name = match (self, family.kind) {
            (Self::OpenMetrics, Kind::Counter) => {
                family.name.strip_suffix("_total").unwrap_or(family.name)
            }
            _ => family.name,
        };
        let kind = family.kind.as_str();
        text.push_str("# HELP ");
        text.push_str(name);
        text.push(' ');
        escape(family.help, self == Self::OpenMetrics, text);
        let _ = writeln!(text, "\n# TYPE {name} {kind}");
        for sample in &family.samples {
            match &sample.value {
                Value::Number(value) => {
                    write_sample(family.name, "", &sample.labels, None, *value, text);
                }
                Value::Histogram(histogram) => {
                    for (bound, count) in histogram.cumulative() {
                        let le = Some(number(bound));
                        write_sample(name, "_bucket", &sample.labels, le, count as f64, text);
                    }
                    let count = histogram.count() as f64;
                    write_sample(name, "_count", &sample.labels, None, count, text);
                    write_sample(name, "_sum", &sample.labels, None, histogram.sum(), text);
                }
            }
        }
    }
}

fn write_sample(
    name: &str,
    suffix: &str,
    labels: &Labels,
    mut le: Option<String>,
    value: f64,
    text: &mut String,
) {
    text.push_str(name);
    text.push_str(suffix);
    let mut opened = false;
    let mut label = |name: &str, value: &str, text: &mut String| {
        text.push(if opened { ',' } else { '{' });
        opened = true;
        text.push_str(name);
        text.push_str("=\"");
        escape(value, true, text);
        text.push('"');
    };
    for (name, value) in labels {
        if *name > "le"
            && let Some(bound) = le.take()
        {
            label("le", &bound, text);
        }
        label(name, value, text);
    }
    if let Some(bound) = le {
        label("le", &bound, text);
    }
    if opened {
        text.push('}');
    }
    text.push(' ');
    text.push_str(&number(value));
    text.push('\n');
}

/// Backslashes and line ends; in label values quotes too.
fn escape(from: &str, quotes: bool, text: &mut String) {
    for c in from.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

/// A float as Python's client prints it: Python's shortest form, but an exponent from a million on.
pub fn number(value: f64) -> String {
    if value == f64::INFINITY {
        return "+Inf".into();
    }
    if value == f64::NEG_INFINITY {
        return "-Inf".into();
    }
    if value.is_nan() {
        return "NaN".into();
    }
    let magnitude = value.abs();
    if magnitude >= 1e16 || (magnitude != 0.0 && magnitude < 1e-4) {
        // Rust's shortest digits, with Python's sign and two digits in the exponent.
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').expect("that is what `e` prints");
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    let plain = format!("{value:?}");
    let dot = plain.find('.').unwrap_or(plain.len());
    if value > 0.0 && dot > 6 {
        let digits = format!("{}.{}{}", &plain[..1], &plain[1..dot], &plain[dot + 1..]);
        // Two digits up to 9, three from 10 on: that is how it writes them.
        return format!("{}e+0{}", digits.trim_end_matches(['0', '.']), dot - 1);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::histogram::Bounds;

    /// Printed by prometheus_client 0.22's `floatToGoString` on Python 3.11.
    #[test]
    fn floats_look_as_python_s_client_prints_them() {
        for (value, text) in [
            (0.0, "0.0"),
            (1.0, "1.0"),
            (0.001, "0.001"),
            (7680.0, "7680.0"),
            (711.385400000001, "711.385400000001"),
            (999_999.0, "999999.0"),
            (1_000_000.0, "1e+06"),
            (98_313_546.0, "9.8313546e+07"),
            (1_764_618_451.25, "1.76461845125e+09"),
            (12_345_678_901.0, "1.2345678901e+010"),
            (0.00005, "5e-05"),
            (1e17, "1e+17"),
            (-3.5, "-3.5"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    fn families() -> Vec<Family> {
        let mut counter = Family::new("a_total", "Counts \"things\".", Kind::Counter);
        counter.number(vec![("z", "1".into()), ("b", "say \"x\"\\\n".into())], 2.0);
        let mut histogram = Family::new("h_seconds", "Times.", Kind::Histogram);
        let mut values = Histogram::new(Bounds::new(&[0.5, 1.0]).unwrap());
        values.observe(0.5);
        values.observe(3.0);
        histogram.histogram(vec![("model", "m".into()), ("engine", "0".into())], values);
        vec![counter, histogram]
    }

    #[test]
    fn the_prometheus_text_is_that_of_python_s_client() {
        let expected = r#"# HELP a_total Counts "things".
# TYPE a_total counter
a_total{b="say \"x\"\\\n",z="1"} 2.0
# HELP h_seconds Times.
# TYPE h_seconds histogram
h_seconds_bucket{engine="0",le="0.5",model="m"} 1.0
h_seconds_bucket{engine="0",le="1.0",model="m"} 1.0
h_seconds_bucket{engine="0",le="+Inf",model="m"} 2.0
h_seconds_count{engine="0",model="m"} 2.0
h_seconds_sum{engine="0",model="m"} 3.5
"#;
        assert_eq!(Format::Prometheus.write(&families()), expected);
    }

    #[test]
    fn openmetrics_names_a_counter_without_its_suffix_and_says_where_it_ends() {
        let text = Format::OpenMetrics.write(&families());
        assert!(text.starts_with("# HELP a Counts \\\"things\\\".\n# TYPE a counter\na_total{"));
        assert!(text.ends_with("h_seconds_sum{engine=\"0\",model=\"m\"} 3.5\n# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_is_what_accept_asks_for() {
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            application/openmetrics-text;version=0.0.1;q=0.4,\
                            text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, format) in [
            (prometheus_3, Format::OpenMetrics),
            ("application/openmetrics-text; version=1.0.0", Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text;version=0.0.1", Format::Prometheus),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("text/plain;q=0.9, application/openmetrics-text;q=0.2", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
