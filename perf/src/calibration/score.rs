//! The scoring, and its tables.

use std::collections::BTreeMap;
use std::fmt;

use llmsim_engine::calibrate::{Constants, Fitting, Linear, Metric, Outcome, Run, fit, linearise};

use super::case::{Case, preset};
use super::classes_file::Cells;
use super::refit::{Fitter, was_fitted};

/// The errors of all rows, printed as tables whose last line is the summary.
pub(super) struct Table {
    preset: BTreeMap<String, Errors>,
    one_run: BTreeMap<String, Errors>,
    all_preset: Errors,
    all_one_run: Errors,
    /// As shipped, rows that it was fitted on included.
    as_shipped: Errors,
    left_out: BTreeMap<String, usize>,
    nearest: BTreeMap<String, usize>,
    refitted: usize,
}

const TTFT: [Metric; 2] = [Metric::MeanTtft, Metric::MedianTtft];
const TPOT: [Metric; 2] = [Metric::MeanTpot, Metric::MedianTpot];

pub(super) fn score(
    cases: Vec<Case>,
    left_out: &mut BTreeMap<String, usize>,
    args: &super::Args,
) -> Table {
    let mut lived: Vec<(&Case, Linear)> = Vec::new();
    for case in &cases {
        match linearise(&case.run.spec, &preset(case.class), &case.run.workload) {
            Ok(linear) => lived.push((case, linear)),
            Err(why) => {
                let why = format!("a request is refused: {}", why.as_str());
                *left_out.entry(why).or_default() += 1;
            }
        }
    }
    let mut table = Table {
        preset: BTreeMap::new(),
        one_run: BTreeMap::new(),
        all_preset: Errors::default(),
        all_one_run: Errors::default(),
        as_shipped: Errors::default(),
        left_out: std::mem::take(left_out),
        nearest: BTreeMap::new(),
        refitted: 0,
    };
    for (case, linear) in &lived {
        table.as_shipped.add(&Error::of(case, &linear.outcome));
        if case.is_nearest {
            let used = format!("{} for {}", case.class.id, scope(case));
            *table.nearest.entry(used).or_default() += 1;
        }
    }

    // Rows that a class was fitted on: that class anew, without their pair.
    let fitted: Vec<(&Case, Linear)> = lived
        .iter()
        .filter(|(case, _)| was_fitted(case) && !case.is_nearest)
        .map(|(case, linear)| (*case, linear.clone()))
        .collect();
    let fitter = Fitter::new(fitted, args);
    let mut without: BTreeMap<(&str, &str), Constants> = BTreeMap::new();
    for (case, _) in &fitter.cases {
        let part = args.hold_out.of(case);
        without
            .entry((part, case.class.id))
            .or_insert_with(|| fitter.class(case.class, Some(part)));
    }
    let mut groups: BTreeMap<&str, Vec<(&Case, Constants)>> = BTreeMap::new();
    for (case, linear) in &lived {
        let held_out = was_fitted(case)
            .then(|| without.get(&(args.hold_out.of(case), case.class.id)))
            .flatten()
            .copied();
        let constants = held_out.unwrap_or(preset(case.class));
        table.refitted += usize::from(held_out.is_some());
        let outcome = match held_out {
            Some(constants) => rerun(&case.run, &constants),
            None => Some(linear.outcome.clone()),
        };
        let Some(outcome) = outcome else { continue };
        let error = Error::of(case, &outcome);
        if args.rows {
            print_row("preset", case, &error);
        }
        table.preset.entry(case.class.id.to_owned()).or_default().add(&error);
        table.all_preset.add(&error);
        groups.entry(&case.group).or_default().push((case, constants));
    }

    let fitting = Fitting { prior: args.prior, ..Fitting::default() };
    for group in groups.values() {
        let Some(chosen) = typical(group) else { continue };
        let (known, constants) = &group[chosen];
        let runs = std::slice::from_ref(&known.run);
        let Ok(fit) = fit(runs, constants, fitting) else { continue };
        for (place, (case, _)) in group.iter().enumerate() {
            if place == chosen {
                continue;
            }
            let Some(outcome) = rerun(&case.run, &fit.constants) else { continue };
            let error = Error::of(case, &outcome);
            if args.rows {
                print_row("one-run", case, &error);
            }
            table.one_run.entry(case.class.id.to_owned()).or_default().add(&error);
            table.all_one_run.add(&error);
        }
    }
    table
}

fn rerun(run: &Run, constants: &Constants) -> Option<Outcome> {
    linearise(&run.spec, constants, &run.workload).ok().map(|linear| linear.outcome)
}

fn scope(case: &Case) -> String {
    format!(
        "{} {}, {} on {}",
        case.row.text("engine"),
        case.row.text("engine_version"),
        case.row.text("weight_dtype"),
        case.row.text("gpu")
    )
}

/// The run that one would calibrate on: below saturation, and otherwise in the middle of what the
/// group's runs do. `None` if there is no other to be scored.
fn typical(group: &[(&Case, Constants)]) -> Option<usize> {
    if group.len() < 2 {
        return None;
    }
    let place = |case: &Case| {
        ["concurrency", "isl", "osl"].map(|column| case.row.positive(column).unwrap_or(1.0).ln())
    };
    let mut middle = [0.0; 3];
    for (case, _) in group {
        for (sum, value) in middle.iter_mut().zip(place(case)) {
            *sum += value / group.len() as f64;
        }
    }
    let distance = |case: &Case| -> f64 {
        let off: f64 = place(case).iter().zip(middle).map(|(at, mean)| (at - mean).powi(2)).sum();
        off + if case.scores_ttft { 0.0 } else { 100.0 }
    };
    (0..group.len()).min_by(|&a, &b| distance(group[a].0).total_cmp(&distance(group[b].0)))
}

fn print_row(kind: &str, case: &Case, error: &Error) {
    println!(
        "{} {} {} {} at {}, {} in, {} out: {error}",
        kind,
        case.row.text("id"),
        case.pair,
        case.class.id,
        case.row.positive("concurrency").or(case.row.positive("rate_rps")).unwrap_or(0.0),
        case.row.text("isl"),
        case.row.text("osl"),
    );
}

/// Simulated over measured, less one.
struct Error {
    tpot: Option<f64>,
    ttft: Option<f64>,
    throughput: Option<f64>,
}

impl Error {
    fn of(case: &Case, outcome: &Outcome) -> Self {
        let off = |metrics: &[Metric]| {
            let seen = case.measured(metrics)?;
            Some(outcome.get(seen.metric)? / seen.value - 1.0)
        };
        Self {
            tpot: off(&TPOT),
            ttft: off(&TTFT).filter(|_| case.scores_ttft),
            throughput: off(&[Metric::OutputRate]),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [("TPOT", self.tpot), ("TTFT", self.ttft), ("tok/s", self.throughput)];
        for (name, error) in named {
            if let Some(error) = error {
                write!(f, "{name} {:+.1}% ", error * 100.0)?;
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Errors {
    rows: usize,
    tpot: Vec<f64>,
    ttft: Vec<f64>,
    throughput: Vec<f64>,
}

impl Errors {
    fn add(&mut self, error: &Error) {
        self.rows += 1;
        self.tpot.extend(error.tpot);
        self.ttft.extend(error.ttft);
        self.throughput.extend(error.throughput);
    }
}

/// `median / p90 %` of the absolute errors, by nearest rank.
fn middle(errors: &[f64]) -> String {
    let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs() * 100.0).collect();
    sizes.sort_by(f64::total_cmp);
    match sizes.len() {
        0 => "-".to_owned(),
        n => format!("{:.1} / {:.1} %", sizes[n / 2], sizes[(n * 9 / 10).min(n - 1)]),
    }
}

impl Table {
    /// The cells that state a class's errors.
    pub(super) fn stated(&self, id: &str) -> Option<Cells> {
        let errors = self.preset.get(id)?;
        let mut cells = Cells::from([("rows", errors.rows.to_string())]);
        for (median, p90, of) in [
            ("itl_median", "itl_p90", &errors.tpot),
            ("ttft_median", "ttft_p90", &errors.ttft),
            ("rate_median", "rate_p90", &errors.throughput),
        ] {
            let words = middle(of);
            let (low, high) = words.trim_end_matches(" %").split_once(" / ").unwrap_or_default();
            cells.insert(median, low.to_owned());
            cells.insert(p90, high.to_owned());
        }
        Some(cells)
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5} ", self.rows)?;
        for errors in [&self.tpot, &self.ttft, &self.throughput] {
            write!(f, " {:>18}", middle(errors))?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut section = |title: &str, classes: &BTreeMap<String, Errors>, all: &Errors| {
            writeln!(
                f,
                "{title:<28} {:>5}  {:>18} {:>18} {:>18}",
                "rows", "ITL median/p90", "TTFT median/p90", "tok/s median/p90"
            )?;
            for (class, errors) in classes {
                writeln!(f, "{class:<28} {errors}")?;
            }
            writeln!(f, "{:<28} {all}\n", "all")
        };
        section("preset alone", &self.preset, &self.all_preset)?;
        section("calibrated on one run", &self.one_run, &self.all_one_run)?;
        for (used, rows) in &self.nearest {
            writeln!(f, "nearest class: {rows} rows, {used}")?;
        }
        for (why, rows) in &self.left_out {
            writeln!(f, "not scored: {rows} rows, {why}")?;
        }
        writeln!(
            f,
            "{} rows had a part in fitting their class; they are scored with the class fitted \
             without their pair",
            self.refitted
        )?;
        writeln!(f, "as shipped, fitted rows included: {}", Words(&self.as_shipped))?;
        let left_out: usize = self.left_out.values().sum();
        writeln!(
            f,
            "summary (median / p90 absolute error): preset {}; after one run {}; {left_out} rows \
             not scored",
            Words(&self.all_preset),
            Words(&self.all_one_run)
        )
    }
}

/// Errors on one line.
struct Words<'a>(&'a Errors);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ITL {}, TTFT {}, tok/s {} ({} rows)",
            middle(&self.0.tpot),
            middle(&self.0.ttft),
            middle(&self.0.throughput),
            self.0.rows
        )
    }
}
