//! How far the presets are from what was measured on real engines.
//!
//! Every measured run is run again through the simulated GPU in virtual time, client and all: the
//! first `concurrency` requests of a closed loop arrive together, open loops send at their rate,
//! lengths are as published. Two things are scored. *Preset*: the class that its engine, GPU and
//! number format ask for, and nothing else known. *After one run*: the same, calibrated on one run
//! of the same pair of model, GPUs and engine, scored on the pair's other runs.
//!
//! The invariant: no run is scored with constants that it had a part in. Rows that a shipped class
//! was fitted on (`data/fitted_rows.txt`) are scored with the class fitted anew without any row of
//! their pair; all others are scored with the class as it is shipped.

mod case;
mod classes_file;
mod refit;
mod rows;
mod score;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use case::Case;

/// `llmsim-perf calibration`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory with CSV files of measured runs; what their columns mean is in its README.
    #[arg(long, value_name = "DIR")]
    measured: PathBuf,
    /// Closed loops are cut to about this many output tokens; their burst and some rounds remain,
    /// and what remains counts for the rest.
    #[arg(long, default_value_t = 200_000)]
    most_tokens: u64,
    /// Print each row.
    #[arg(long)]
    rows: bool,
    /// How tightly the calibration on one run is held to the preset.
    #[arg(long, default_value_t = llmsim_engine::calibrate::Fitting::default().prior)]
    prior: f64,
    /// The same of an engine's set to `generic`, and of a class to its engine's set.
    #[arg(long, value_names = ["ENGINE", "CLASS"], num_args = 2, default_values_t = [1.0, 2.0])]
    fit_priors: Vec<f64>,
    /// Score each row with its class fitted without the rows of the same pair of model and GPUs, or
    /// of the same model or kind of GPU altogether.
    #[arg(long, value_enum, default_value_t = refit::HoldOut::Pair)]
    hold_out: refit::HoldOut,
    /// Fit the classes anew to all rows and write the constants into
    /// `engine/data/engine_classes.csv`, and which rows they were into `perf/data/fitted_rows.txt`.
    #[arg(long)]
    fit: bool,
    /// Write each class's errors into `engine/data/engine_classes.csv`, for `llmsimulator presets`.
    #[arg(long, conflicts_with = "fit")]
    state_errors: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match calibration(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("llmsim-perf calibration: {message}");
            ExitCode::from(2)
        }
    }
}

fn calibration(args: &Args) -> Result<(), String> {
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    let mut cases = Vec::new();
    for (row, directory) in rows::read(&args.measured)? {
        match Case::of(row, &directory, args.most_tokens) {
            Ok(case) => cases.push(case),
            Err(why) => *left_out.entry(why).or_default() += 1,
        }
    }
    if args.fit {
        return refit::write(&cases, args);
    }
    let table = score::score(cases, &mut left_out, args);
    print!("{table}");
    if args.state_errors {
        classes_file::rewrite(|id| table.stated(id))?;
    }
    Ok(())
}
