//! Fitting the cost model's constants to measured runs.
//!
//! A benchmark's TTFT contains its queue: the burst at the start, the wait for the step in
//! execution, the prompts in front. So a run is not compared with a formula; its [`Workload`] is
//! lived through by the simulated GPU in virtual time ([`rerun`]), and what the client would have
//! seen is compared with what it saw. Nothing here reads a file or a clock. The invariant: the same
//! runs give the same constants, and a constant about which the runs say nothing stays where it
//! began.
//!
//! The way through: a [`Run`] is a workload on a GPU and what was [`Observed`]; [`fit`] finds the
//! [`Constants`] that explain all runs best without straying from where they began further than
//! the runs demand, and says how well each is known.

mod constants;
mod fit;
mod linear;
mod range;
mod report;
mod rerun;
mod results;
mod spread;
mod table;
mod workload;

pub use constants::{Constant, Constants};
pub use fit::{Fit, Fitting, Free, Observed, Run, Trust, fit, solve};
pub use linear::{Linear, linearise, relive};
pub use report::{Report, written};
pub use rerun::{Outcome, Rerun, Timing, rerun};
pub use results::{Measured, read_json};
pub use spread::{Gaps, Ratio, Spread, fit_residual};
pub use table::{Row, observed, possible, table, workload};
pub use workload::{Load, Metric, Phases, Request, Workload};
