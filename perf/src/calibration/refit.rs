//! The classes' constants, fitted to measured rows.
//!
//! In two stages, because some classes have rows of a single pair: first one set for all rows of an
//! engine, held to `generic`; then each class, held to its engine's set. The invariant: `without` a
//! pair, no row of that pair has a part in either stage.

use std::collections::BTreeMap;

use llmsim_engine::calibrate::{
    Constant, Constants, Fitting, Free, Linear, Observed, linearise, solve,
};
use llmsim_engine::catalog::{self, EngineClass};

use super::Args;
use super::case::{Case, preset};
use super::classes_file;

/// Rows with their linear forms, near the constants of their classes.
pub(super) struct Fitter<'a> {
    pub(super) cases: Vec<(&'a Case, Linear)>,
    /// The engines' sets with all rows: a good place to search from.
    engines: BTreeMap<&'static str, Constants>,
    /// Which rows are left out together.
    hold_out: HoldOut,
    /// How tightly an engine's set is held to `generic`, and a class to its engine's set.
    priors: [f64; 2],
}

/// What the rows that are scored have in common with none of the rows that were fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum HoldOut {
    /// Model, GPUs and engine together.
    Pair,
    /// The model, whatever ran it.
    Model,
    /// The kind of GPU, whatever it ran.
    Gpu,
}

impl HoldOut {
    /// What a row has in common with those that are left out with it.
    pub(super) fn of(self, case: &Case) -> &str {
        match self {
            Self::Pair => &case.pair,
            Self::Model => case.row.text("model"),
            Self::Gpu => case.row.text("gpu"),
        }
    }
}

/// All constants are free; how tightly they are held is the command's to say.
fn all(prior: f64) -> Fitting {
    Fitting {
        prior,
        request_prior: prior,
        common: 0.0,
        rounds: 1,
        free: Free::All,
        tolerance: 1e-4,
    }
}

impl<'a> Fitter<'a> {
    pub(super) fn new(cases: Vec<(&'a Case, Linear)>, args: &Args) -> Self {
        let priors = [args.fit_priors[0], args.fit_priors[1]];
        let mut fitter = Self { cases, engines: BTreeMap::new(), hold_out: args.hold_out, priors };
        let pools: Vec<&'static str> =
            fitter.cases.iter().map(|(case, _)| case.class.scope.pool).collect();
        for pool in pools {
            if !fitter.engines.contains_key(pool) {
                let constants = fitter.engine(pool, None);
                fitter.engines.insert(pool, constants);
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

    fn stays(&self, case: &Case, without: Option<&str>) -> bool {
        without.is_none_or(|part| self.hold_out.of(case) != part)
    }

    fn engine(&self, pool: &str, without: Option<&str>) -> Constants {
        let (runs, observed) =
            self.chosen(|case| case.class.scope.pool == pool && self.stays(case, without));
        let prior = preset(EngineClass::generic());
        let known = self.engines.get(pool);
        if let (None, Some(constants)) = (without, known) {
            return *constants;
        }
        let from = known.unwrap_or(&prior);
        let observed: Vec<&[Observed]> = observed.iter().map(Vec::as_slice).collect();
        solve(&runs, &observed, &prior, from, all(self.priors[0]))
    }

    /// The constants of a class, fitted without the rows of a pair, model or GPU.
    pub(super) fn class(&self, class: &EngineClass, without: Option<&str>) -> Constants {
        let prior = self.engine(class.scope.pool, without);
        let (runs, observed) =
            self.chosen(|case| case.class.id == class.id && self.stays(case, without));
        let observed: Vec<&[Observed]> = observed.iter().map(Vec::as_slice).collect();
        solve(&runs, &observed, &prior, &prior, all(self.priors[1]))
    }
}

/// Fits all classes that have rows, and writes the constants into `engine_classes.csv`. Begins with
/// `generic` for all, so that the same rows give the same constants, whatever is shipped.
pub(super) fn write(cases: &[Case], args: &Args) -> Result<(), String> {
    const MOST_ROUNDS: usize = 24;
    // A run that is lived through again can fall out otherwise, and constants then go to and fro
    // between two answers: from here on, they go half of the way, which ends between the two.
    const FREE_ROUNDS: usize = 6;
    const SETTLED: f64 = 0.05;
    let generic = preset(EngineClass::generic());
    let mut fitted: BTreeMap<&str, Constants> =
        catalog::engine_classes().iter().map(|class| (class.id, generic)).collect();
    // A class that is only the nearest one learns nothing from rows that are not its own.
    let own: Vec<&Case> = cases.iter().filter(|case| !case.is_nearest).collect();
    for round in 1..=MOST_ROUNDS {
        let lived = own
            .iter()
            .filter_map(|case| {
                let constants = &fitted[case.class.id];
                let linear = linearise(&case.run.spec, constants, &case.run.workload).ok()?;
                Some((*case, linear))
            })
            .collect();
        let fitter = Fitter::new(lived, args);
        let mut most: f64 = 0.0;
        for class in catalog::engine_classes() {
            if own.iter().any(|case| case.class.id == class.id) {
                let share = if round > FREE_ROUNDS { 0.5 } else { 1.0 };
                let found = fitted[class.id].towards(&fitter.class(class, None), share);
                if let Some(before) = fitted.insert(class.id, found) {
                    most = Constant::ALL.iter().fold(most, |most, &constant| {
                        let ratio = found.get(constant).zip(before.get(constant));
                        ratio.map_or(most, |(now, then)| most.max((now / then).ln().abs()))
                    });
                }
            }
        }
        eprintln!("round {round}: constants moved by up to {:.1} %", most * 100.0);
        if most < SETTLED {
            break;
        }
    }
    classes_file::rewrite(|id| {
        let constants = fitted.get(id).filter(|_| id != EngineClass::generic().id)?;
        let own = own.iter().any(|case| case.class.id == id);
        own.then(|| {
            let cell = |(column, constant): (&'static str, Constant)| {
                (column, short(constants.get(constant).unwrap_or(1.0)))
            };
            COLUMNS.into_iter().map(cell).collect()
        })
    })?;
    let mut keys: Vec<String> = own.iter().map(|case| fingerprint(&case.row.key())).collect();
    keys.sort();
    keys.dedup();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/data/fitted_rows.txt");
    std::fs::write(path, keys.join("\n") + "\n").map_err(|error| format!("{path}: {error}"))?;
    println!("written: {} and {path}", classes_file::PATH);
    Ok(())
}

/// The columns of `engine_classes.csv` that are fitted.
const COLUMNS: [(&str, Constant); 12] = [
    ("mbu", Constant::WeightBandwidth),
    ("mfu", Constant::LinearCompute),
    ("mbu_kv", Constant::KvBandwidth),
    ("mfu_attn", Constant::AttentionCompute),
    ("t_step_ms", Constant::HostPerStep),
    ("t_layer_us", Constant::HostPerLayer),
    ("t_seq_us", Constant::HostPerSequence),
    ("t_launch_us", Constant::LaunchPerLayer),
    ("ar_lat_us", Constant::AllReduceLatency),
    ("ar_eff", Constant::LinkBandwidth),
    ("t_req_ms", Constant::RequestOverhead),
    ("p", Constant::Overlap),
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
