//! What stands behind a flag or in a variable: from its text to its value. The invariant: both are
//! read alike, and whatever is wrong is told with what would be right.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

use super::admin::AdminAddress;
use super::{CpuSet, IoDriver, MetricFamilies, Spin};

/// What a flag and its variable can both hold.
pub(super) trait FromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
}

macro_rules! from_text_by_from_str {
    ($($type:ty: $what:literal),* $(,)?) => {$(
        impl FromText for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse().map_err(|why| format!("{} ({why})", $what))
            }
        }
    )*};
}

from_text_by_from_str! {
    String: "a text",
    u16: "must be a port from 0 to 65535",
    PathBuf: "a path",
}

macro_rules! from_text_by_value_enum {
    ($($type:ty),*) => {$(
        impl FromText for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                <$type as ValueEnum>::from_str(text, false).map_err(|_| {
                    let all = <$type as ValueEnum>::value_variants().iter();
                    let names: Vec<_> = all
                        .filter_map(ValueEnum::to_possible_value)
                        .map(|value| value.get_name().to_owned())
                        .collect();
                    format!("must be one of {}", names.join(", "))
                })
            }
        }
    )*};
}

from_text_by_value_enum!(Spin, IoDriver);

macro_rules! from_text_as_parsed {
    ($($type:ty),*) => {$(
        impl FromText for $type {
            fn from_text(text: &str) -> Result<Self, String> {
                text.parse()
            }
        }
    )*};
}

from_text_as_parsed!(AdminAddress, Count, Samples, Time, CpuSet, MetricFamilies);

/// At least one of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(pub(super) usize);

impl FromStr for Count {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u32>() {
            Ok(count) if count > 0 => Ok(Self(count as usize)),
            _ => Err("must be a whole number from 1 to 4294967295".to_owned()),
        }
    }
}

/// Samples that are kept for each model, in memory that is taken at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Samples(pub(super) usize);

impl FromStr for Samples {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count @ 1..=10_000_000) => Ok(Self(count)),
            _ => Err("must be a whole number from 1 to 10000000".to_owned()),
        }
    }
}

/// A length of time: `30`, `0.5`, `30s`, `500ms`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) Duration);

impl FromStr for Time {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = if let Some(number) = text.strip_suffix("ms") {
            (number, 1e-3)
        } else if let Some(number) = text.strip_suffix('m') {
            (number, 60.0)
        } else {
            (text.strip_suffix('s').unwrap_or(text), 1.0)
        };
        let seconds = number.parse::<f64>().map(|number| number * unit);
        match seconds {
            Ok(seconds) if (0.001..=604_800.0).contains(&seconds) => {
                Ok(Self(Duration::from_secs_f64(seconds)))
            }
            _ => Err("must be a time from 1ms to a week, for example 30s or 500ms".to_owned()),
        }
    }
}

impl FromStr for MetricFamilies {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut families = Self { vllm: false, llm_sim: false };
        for name in text.split(',').map(str::trim) {
            match name {
                "vllm" => families.vllm = true,
                "llm_sim" => families.llm_sim = true,
                _ => return Err("must be vllm, llm_sim, or both with a comma between".to_owned()),
            }
        }
        Ok(families)
    }
}

impl FromStr for CpuSet {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 4096;
        let wrong = || format!("must be cores like 0-3,6, below {MOST}");
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&cpu| cpu < MOST);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(wrong()),
            }
        }
        Ok(Self(cpus))
    }
}
