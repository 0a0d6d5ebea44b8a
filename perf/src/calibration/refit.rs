//! The classes' constants, fitted to measured rows.
//!
//! In two stages, because some classes have rows of a single pair: first one set for all rows of
//! an engine, held to `generic`; then each class, held to its engine's set. The invariant: `without`
//! a pair, no row of that pair has a part in either stage.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use llmsim_engine::calibrate::{
    Constant, Constants, Fitting, Free, Linear, Observed, linearise, solve,
};
use llmsim_engine::catalog::{self, EngineClass};

use super::Args;
use super::case::{Case, preset};

/// Rows with their linear forms, near the constants of their classes.
pub(super) struct Fitter<'a> {
    pub(super) cases: Vec<(&'a Case, Linear)>,
    /// The engines' sets with all rows: a good place to search from.
    engines: BTreeMap<&'static str, Constants>,
    /// How tightly an engine's set is held to `generic`, and a class to its engine's set.
    priors: [f64; 2],
}

/// All constants are free; how tightly they are held is the command's to say.
const ALL: Fitting = Fitting { prior: 1.0, rounds: 1, free: Free::All, tolerance: 1e-4 };

impl<'a> Fitter<'a> {
    pub(super) fn new(cases: Vec<(&'a Case, Linear)>, args: &Args) -> Self {
        let priors = [args.fit_priors[0], args.fit_priors[1]];
        let mut fitter = Self { cases, engines: BTreeMap::new(), priors };
        let families: Vec<&'static str> =
            fitter.cases.iter().map(|(case, _)| case.class.scope.family).collect();
        for family in families {
            if !fitter.engines.contains_key(family) {
                let constants = fitter.engine(family, None);
                fitter.engines.insert(family, constants);
            }
        }
        fitter
    }

    fn chosen(&self, wanted: impl Fn(&Case) -> bool) -> (Vec<&Linear>, Vec<Vec<Observed>>) {
        let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
        let chosen: Vec<&(&Case, Linear)> =
            self.cases.iter().filter(|(case, _)| wanted(case)).collect();
        for (case, _) in &chosen {
            *sizes.entry(&case.pair).or_default() += 1.0;
        }
        chosen
            .iter()
            .map(|(case, linear)| {
                // A pair with four times the rows counts twice as much.
                let weight = 1.0 / sizes[case.pair.as_str()].sqrt();
                let weighed = case
                    .run
                    .observed
                    .iter()
                    .map(|seen| Observed { weight: seen.weight * weight * 3.0, ..*seen })
                    .collect();
                (linear, weighed)
            })
            .unzip()
    }

    fn engine(&self, family: &str, without: Option<&str>) -> Constants {
        let (runs, observed) = self.chosen(|case| {
            case.class.scope.family == family && without.is_none_or(|pair| case.pair != pair)
        });
        let prior = preset(EngineClass::generic());
        let known = self.engines.get(family);
        if let (None, Some(constants)) = (without, known) {
            return *constants;
        }
        let from = known.unwrap_or(&prior);
        let observed: Vec<&[Observed]> = observed.iter().map(Vec::as_slice).collect();
        solve(&runs, &observed, &prior, from, Fitting { prior: self.priors[0], ..ALL })
    }

    /// The constants of a class, fitted without the rows of a pair.
    pub(super) fn class(&self, class: &EngineClass, without: Option<&str>) -> Constants {
        let prior = self.engine(class.scope.family, without);
        let (runs, observed) = self.chosen(|case| {
            case.class.id == class.id && without.is_none_or(|pair| case.pair != pair)
        });
        let observed: Vec<&[Observed]> = observed.iter().map(Vec::as_slice).collect();
        solve(&runs, &observed, &prior, &prior, Fitting { prior: self.priors[1], ..ALL })
    }
}

/// Fits all classes that have rows, and prints what `engine_classes.csv` is to hold.
pub(super) fn print(cases: &[Case], args: &Args) -> Result<(), String> {
    const ROUNDS: usize = 4;
    let mut fitted: BTreeMap<&str, Constants> =
        catalog::engine_classes().iter().map(|class| (class.id, preset(class))).collect();
    // A class that is only the nearest one learns nothing from rows that are not its own.
    let own: Vec<&Case> = cases.iter().filter(|case| !case.is_nearest).collect();
    for round in 1..=ROUNDS {
        let lived = own
            .iter()
            .filter_map(|case| {
                let constants = &fitted[case.class.id];
                let linear = linearise(&case.run.spec, constants, &case.run.workload).ok()?;
                Some((*case, linear))
            })
            .collect();
        let fitter = Fitter::new(lived, args);
        for class in catalog::engine_classes() {
            if own.iter().any(|case| case.class.id == class.id) {
                fitted.insert(class.id, fitter.class(class, None));
            }
        }
        eprintln!("round {round} of {ROUNDS}");
    }
    for class in catalog::engine_classes() {
        let constants = &fitted[class.id];
        let mut line = class.id.to_owned();
        for constant in COLUMNS {
            let value = constants.get(constant).unwrap_or(1.0);
            write!(line, ",{}", short(value)).expect("writing to a string cannot fail");
        }
        println!("{line}");
    }
    let mut keys: Vec<String> = own.iter().map(|case| fingerprint(&case.row.key())).collect();
    keys.sort();
    keys.dedup();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/fitted_rows.txt");
    std::fs::write(path, keys.join("\n") + "\n").map_err(|error| format!("{path}: {error}"))
}

/// The order of the columns of `engine_classes.csv`, from `mbu` on.
const COLUMNS: [Constant; 11] = [
    Constant::WeightBandwidth,
    Constant::LinearCompute,
    Constant::KvBandwidth,
    Constant::AttentionCompute,
    Constant::HostPerStep,
    Constant::HostPerLayer,
    Constant::HostPerSequence,
    Constant::AllReduceLatency,
    Constant::LinkBandwidth,
    Constant::RequestOverhead,
    Constant::Overlap,
];

/// Three digits.
fn short(value: f64) -> String {
    let digits = (2.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 6.0) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// What was run, in few letters.
pub(super) fn fingerprint(key: &str) -> String {
    format!("{:016x}", llmsim_engine::seed::Seed::new(9).with(key.as_bytes()).value())
}

/// Whether a shipped class was fitted on this row.
pub(super) fn was_fitted(case: &Case) -> bool {
    static ROWS: std::sync::LazyLock<std::collections::BTreeSet<&str>> =
        std::sync::LazyLock::new(|| include_str!("../../data/fitted_rows.txt").lines().collect());
    ROWS.contains(fingerprint(&case.row.key()).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.7754, 1.0, 12.345, 123.4, 0.0345].map(short);
        assert_eq!(shown, ["0.775", "1", "12.3", "123", "0.0345"]);
    }
}
