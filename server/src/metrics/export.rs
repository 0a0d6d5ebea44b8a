//! Our own families through the `prometheus` crate: its registry checks names and labels, its
//! encoder writes the text.
//!
//! vLLM's families do not come this way. They have to look as Python's client writes them, and the
//! crate puts `le` behind all labels, writes `1` for `1.0`, the sum before the count, and sorts by
//! name; OpenMetrics it does not write at all. Both are [`Format`](
//! llmsim_engine::observe::family::Format)'s work. The invariant: a family that the registry does
//! not take is a mistake of ours, and found by a test.

use std::sync::Mutex;

use llmsim_engine::observe::family::{Family, Kind, Sample, Value};
use prometheus::core::{Collector, Desc};
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};
use prometheus::{Encoder, Registry, TextEncoder};

/// The Prometheus text of these families.
///
/// # Errors
/// The registry's or the encoder's, if a family is not what Prometheus takes.
pub(super) fn text(families: Vec<Family>) -> Result<String, prometheus::Error> {
    let registry = Registry::new();
    registry.register(Box::new(Snapshot::of(families)?))?;
    let mut text = Vec::with_capacity(64 * 1024);
    TextEncoder::new().encode(&registry.gather(), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Families as they stood at one moment, to be collected once.
struct Snapshot {
    descriptions: Vec<Desc>,
    families: Mutex<Vec<MetricFamily>>,
}

impl Snapshot {
    fn of(families: Vec<Family>) -> Result<Self, prometheus::Error> {
        let describe = |family: &Family| {
            let labels = family.samples.first().map_or(&[][..], |sample| &sample.labels);
            let labels = labels.iter().map(|(name, _)| (*name).to_owned()).collect();
            Desc::new(family.name.into(), family.help.into(), labels, Default::default())
        };
        let descriptions = families.iter().map(describe).collect::<Result<_, _>>()?;
        let families = families.into_iter().map(convert).collect();
        Ok(Self { descriptions, families: Mutex::new(families) })
    }
}

impl Collector for Snapshot {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.families.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *families)
    }
}

fn convert(family: Family) -> MetricFamily {
    let mut converted = MetricFamily::default();
    converted.set_name(family.name.to_owned());
    converted.set_help(family.help.to_owned());
    converted.set_field_type(match family.kind {
        Kind::Counter => MetricType::COUNTER,
        Kind::Gauge => MetricType::GAUGE,
        Kind::Histogram => MetricType::HISTOGRAM,
    });
    let metrics = family.samples.into_iter().map(|sample| metric(family.kind, sample));
    converted.set_metric(metrics.collect());
    converted
}

fn metric(kind: Kind, sample: Sample) -> Metric {
    let mut metric = Metric::default();
    let labels = sample.labels.into_iter().map(|(name, value)| {
        let mut label = LabelPair::default();
        label.set_name(name.to_owned());
        label.set_value(value);
        label
    });
    metric.set_label(labels.collect());
    match sample.value {
        Value::Number(value) if kind == Kind::Counter => {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        Value::Number(value) => {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Value::Histogram(values) => {
            let mut histogram = Histogram::default();
            // The encoder adds the last bucket, up to infinity, itself.
            let finite = values.cumulative().filter(|(bound, _)| bound.is_finite());
            let buckets = finite.map(|(bound, count)| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(count);
                bucket
            });
            histogram.set_bucket(buckets.collect());
            histogram.set_sample_count(values.count());
            histogram.set_sample_sum(values.sum());
            metric.set_histogram(histogram);
        }
    }
    metric
}

#[cfg(test)]
mod tests {
    use llmsim_engine::stats::histogram::{self, Bounds};

    use super::*;

    #[test]
    fn families_come_out_as_the_crate_writes_them() {
        let mut counter = Family::new("b_total", "Counts.", Kind::Counter);
        counter.number(vec![("model", "m \"x\"".into())], 3.0);
        let mut values = histogram::Histogram::new(Bounds::new(&[0.5]).unwrap());
        values.observe(0.25);
        values.observe(2.0);
        let mut times = Family::new("a_seconds", "Times.", Kind::Histogram);
        times.histogram(vec![("model", "m".into())], values);
        let expected = "# HELP a_seconds Times.\n# TYPE a_seconds histogram\n\
                        a_seconds_bucket{model=\"m\",le=\"0.5\"} 1\n\
                        a_seconds_bucket{model=\"m\",le=\"+Inf\"} 2\n\
                        a_seconds_sum{model=\"m\"} 2.25\na_seconds_count{model=\"m\"} 2\n\
                        # HELP b_total Counts.\n# TYPE b_total counter\n\
                        b_total{model=\"m \\\"x\\\"\"} 3\n";
        assert_eq!(text(vec![counter, times]).unwrap(), expected);
    }

    #[test]
    fn two_families_of_one_name_are_refused() {
        let family = || Family::new("twice", "Help.", Kind::Gauge);
        assert!(text(vec![family(), family()]).is_err());
        assert!(text(vec![Family::new("not-a-name", "Help.", Kind::Gauge)]).is_err());
    }
}
