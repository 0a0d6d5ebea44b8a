//! The constants that explain measured runs best.
//!
//! Least squares on log ratios with a soft-L1 loss, so that a run that contradicts all others does
//! not drag them along, and log-normal priors around the constants that one begins with, so that
//! what the runs do not tell stays as it was. Levenberg-Marquardt on the runs' linear forms, which
//! are made anew with the constants found, until nothing moves. The invariant: a fit is never
//! worse by its own measure than where it began.

use crate::calibrate::constants::{COUNT, Constant, Constants, clamp};
use crate::calibrate::linear::{Linear, linearise};
use crate::calibrate::workload::{Metric, Workload};
use crate::sim::Refusal;
use crate::sim::scheduler::SchedulerSpec;

/// A figure that somebody measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observed {
    /// Which.
    pub metric: Metric,
    /// Its value, seconds or tokens per second; over 0.
    pub value: f64,
    /// How much it counts; 1 is usual.
    pub weight: f64,
}

/// A measured run: what was sent to what, and what came of it.
#[derive(Clone, Debug)]
pub struct Run {
    /// The GPU. Its cost must be a roofline; the constants in it do not matter.
    pub spec: SchedulerSpec,
    /// The client.
    pub workload: Workload,
    /// What was measured.
    pub observed: Vec<Observed>,
}

/// What a fit may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fitting {
    /// How tightly the constants of a step are held to where they begin, each for itself: 1 is the
    /// spread found over engines and models, less is looser, 0 lets them go.
    pub prior: f64,
    /// The same of the overhead of a request, which has nothing to do with the GPU.
    pub request_prior: f64,
    /// How much faster or slower than where it begins a step may be as a whole, all terms alike:
    /// the standard deviation of its logarithm. 0: the terms know nothing of each other.
    pub common: f64,
    /// How often the runs are lived through again with the constants found.
    pub rounds: u32,
    /// Which constants may move.
    pub free: Free,
    /// A search ends when a step gains less than this share.
    pub tolerance: f64,
}

impl Default for Fitting {
    /// For a server of one's own: it is as a whole faster or slower than its class (another
    /// release, clock or host), and stays near the class's proportions. Of several such priors this
    /// one predicted the other runs of a pair best after one run of it (`docs/cost-model.md`).
    fn default() -> Self {
        Self {
            prior: 5.0,
            request_prior: 0.1,
            common: 0.3,
            rounds: 8,
            free: Free::All,
            tolerance: 1e-9,
        }
    }
}

impl Fitting {
    /// What so many runs of one server can tell. One run tells little more than how fast the server
    /// is as a whole; several, at other loads and lengths, tell the proportions of its terms, which
    /// are therefore held less.
    pub fn of(runs: usize) -> Self {
        if runs > 1 { Self { prior: 0.2, ..Self::default() } } else { Self::default() }
    }
}

/// Which constants a fit may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// All.
    All,
    /// One of each kind that runs of a single deployment can tell apart; host time per layer, for
    /// example, cannot be told from host time per step. The others stay where they began.
    Telling,
}

impl Free {
    fn holds(self, constant: Constant) -> bool {
        self == Self::Telling
            && matches!(
                constant,
                Constant::AttentionCompute
                    | Constant::HostPerLayer
                    | Constant::AllReduceLatency
                    | Constant::LinkBandwidth
                    | Constant::Overlap
            )
    }
}

/// What came of a fit.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The constants.
    pub constants: Constants,
    /// How well the runs know each, in the order of [`Constant::ALL`].
    pub trust: [Trust; COUNT],
    /// The runs with these constants, in order.
    pub runs: Vec<Linear>,
}

/// How well a constant is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// By the runs.
    Measured,
    /// Half by the runs, half by where it began.
    Weak,
    /// The runs say nothing about it: it is where it began.
    Assumed,
}

/// Fits to `runs`, beginning with `start`.
///
/// # Errors
/// If the engine refuses a request of a run: which run (from 0), and why.
pub fn fit(runs: &[Run], start: &Constants, fitting: Fitting) -> Result<Fit, (usize, Refusal)> {
    let live = |constants: &Constants| {
        runs.iter()
            .enumerate()
            .map(|(place, run)| {
                linearise(&run.spec, constants, &run.workload).map_err(|why| (place, why))
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let observed: Vec<&[Observed]> = runs.iter().map(|run| &run.observed[..]).collect();
    let mut kept = live(start)?;
    let mut best = Problem::new(&kept, &observed, start, fitting).true_loss(start);
    let mut constants = *start;
    // How much of the way to what the linear forms promise is gone: a queue can turn out otherwise.
    let mut stride = 1.0;
    for _ in 0..fitting.rounds {
        let goal = Problem::new(&kept, &observed, start, fitting).minimise(&constants);
        let found = constants.towards(&goal, stride);
        let lived = live(&found)?;
        let loss = Problem::new(&lived, &observed, start, fitting).true_loss(&found);
        let gained = best - loss;
        if gained > 0.0 {
            (best, constants, kept) = (loss, found, lived);
            stride = 1.0;
        } else {
            stride /= 2.0;
        }
        if gained.abs() < 1e-7 * best {
            break;
        }
    }
    let trust = Problem::new(&kept, &observed, start, fitting).trust(&constants);
    Ok(Fit { constants, trust, runs: kept })
}

/// Fits to runs that were lived through already, without living through them again: good near their
/// constants. Held to `prior`, searched from `from`.
pub fn solve(
    runs: &[&Linear],
    observed: &[&[Observed]],
    prior: &Constants,
    from: &Constants,
    fitting: Fitting,
) -> Constants {
    let problem = Problem {
        runs: runs.to_vec(),
        observed,
        prior: prior.logs(),
        start: *prior,
        fitting,
        precision: precision(fitting),
    };
    problem.minimise(from)
}

/// A relative error of TPOT that is nothing unusual.
const TPOT_SPREAD: f64 = 0.08;
/// The same of TTFT, which carries the queue's chance.
const TTFT_SPREAD: f64 = 0.16;

struct Problem<'a> {
    runs: Vec<&'a Linear>,
    observed: &'a [&'a [Observed]],
    prior: [f64; COUNT],
    start: Constants,
    fitting: Fitting,
    precision: Matrix,
}

type Matrix = [[f64; COUNT]; COUNT];

/// How strongly the constants are held to where they began: the inverse of a covariance with a
/// variance for each constant and one that the terms of a step share (Sherman and Morrison, 1950).
fn precision(fitting: Fitting) -> Matrix {
    const HELD: f64 = 1e9;
    let own = Constant::ALL.map(|constant| {
        let prior = match constant {
            _ if fitting.free.holds(constant) => return HELD,
            Constant::RequestOverhead => fitting.request_prior,
            _ => fitting.prior,
        };
        prior / constant.spread().powi(2)
    });
    // A step that takes longer as a whole: times grow, shares of peaks shrink.
    let together = Constant::ALL.map(|constant| match constant {
        _ if fitting.free.holds(constant) => 0.0,
        Constant::RequestOverhead | Constant::Overlap => 0.0,
        Constant::HostPerStep
        | Constant::HostPerLayer
        | Constant::HostPerSequence
        | Constant::LaunchPerLayer
        | Constant::AllReduceLatency => 1.0,
        _ => -1.0,
    });
    let shared = fitting.common.powi(2);
    let sum: f64 = own.iter().zip(together).map(|(own, part)| own * part * part).sum();
    let share = shared / (1.0 + shared * sum);
    let mut matrix = [[0.0; COUNT]; COUNT];
    for a in 0..COUNT {
        for b in 0..COUNT {
            matrix[a][b] = -share * own[a] * together[a] * own[b] * together[b];
        }
        matrix[a][a] += own[a];
    }
    matrix
}

impl<'a> Problem<'a> {
    fn new(
        runs: &'a [Linear],
        observed: &'a [&'a [Observed]],
        start: &Constants,
        fitting: Fitting,
    ) -> Self {
        Self {
            runs: runs.iter().collect(),
            observed,
            prior: start.logs(),
            start: *start,
            fitting,
            precision: precision(fitting),
        }
    }

    /// Log ratios of simulated to measured, in units of what is usual.
    fn residuals(&self, logs: &[f64; COUNT]) -> Vec<f64> {
        let constants = self.start.with_logs(logs);
        let mut residuals = Vec::new();
        for (run, observed) in self.runs.iter().zip(self.observed) {
            let figures = run.at(&constants);
            for seen in *observed {
                let spread = match seen.metric {
                    Metric::MeanTtft | Metric::MedianTtft => TTFT_SPREAD,
                    _ => TPOT_SPREAD,
                };
                let error = figures
                    .get(seen.metric)
                    .filter(|value| *value > 0.0 && seen.value > 0.0)
                    .map_or(0.0, |value| (value / seen.value).ln());
                residuals.push(seen.weight.sqrt() * error / spread);
            }
        }
        residuals
    }

    fn loss(&self, logs: &[f64; COUNT]) -> f64 {
        let data: f64 =
            self.residuals(logs).iter().map(|r| 2.0 * ((1.0 + r * r).sqrt() - 1.0)).sum();
        data + self.held(logs)
    }

    fn true_loss(&self, constants: &Constants) -> f64 {
        self.loss(&constants.logs())
    }

    fn held(&self, logs: &[f64; COUNT]) -> f64 {
        let pull = self.pull(logs);
        (0..COUNT).map(|place| (logs[place] - self.prior[place]) * pull[place]).sum()
    }

    /// Half the slope of what holds the constants.
    fn pull(&self, logs: &[f64; COUNT]) -> [f64; COUNT] {
        self.precision
            .map(|row| (0..COUNT).map(|place| row[place] * (logs[place] - self.prior[place])).sum())
    }

    /// J'WJ and J'Wr of the data alone, where W are the weights of the soft-L1 loss.
    fn normal(&self, logs: &[f64; COUNT]) -> (Matrix, [f64; COUNT]) {
        const STEP: f64 = 0.02;
        let here = self.residuals(logs);
        let slopes: Vec<Vec<f64>> = (0..COUNT)
            .map(|column| {
                let mut moved = *logs;
                // Away from a bound, if it is at one.
                moved[column] = clamp(Constant::ALL[column], logs[column] + STEP);
                if moved[column] - logs[column] < STEP / 2.0 {
                    moved[column] = logs[column] - STEP;
                }
                let width = moved[column] - logs[column];
                let there = self.residuals(&moved);
                there.iter().zip(&here).map(|(there, here)| (there - here) / width).collect()
            })
            .collect();
        let (mut matrix, mut vector) = ([[0.0; COUNT]; COUNT], [0.0; COUNT]);
        for (row, residual) in here.iter().enumerate() {
            let weight = 1.0 / (1.0 + residual * residual).sqrt();
            for a in 0..COUNT {
                vector[a] += weight * slopes[a][row] * residual;
                for b in 0..COUNT {
                    matrix[a][b] += weight * slopes[a][row] * slopes[b][row];
                }
            }
        }
        (matrix, vector)
    }

    fn minimise(&self, from: &Constants) -> Constants {
        const MOST_STEPS: usize = 60;
        let mut logs = from.logs();
        let mut loss = self.loss(&logs);
        let mut damping = 1e-2;
        for _ in 0..MOST_STEPS {
            let (mut matrix, mut vector) = self.normal(&logs);
            let pull = self.pull(&logs);
            for a in 0..COUNT {
                vector[a] += pull[a];
                for (cell, held) in matrix[a].iter_mut().zip(self.precision[a]) {
                    *cell += held;
                }
            }
            let mut moved = false;
            while damping < 1e8 {
                let mut damped = matrix;
                for (place, row) in damped.iter_mut().enumerate() {
                    row[place] += damping * (row[place] + 1e-6);
                }
                let mut trial = logs;
                for (place, step) in solved(damped, vector).iter().enumerate() {
                    let log = logs[place] - step.clamp(-1.0, 1.0);
                    trial[place] = clamp(Constant::ALL[place], log);
                }
                let trial_loss = self.loss(&trial);
                if trial_loss < loss {
                    moved = loss - trial_loss > self.fitting.tolerance * loss;
                    (logs, loss) = (trial, trial_loss);
                    damping = (damping / 5.0).max(1e-12);
                    break;
                }
                damping *= 5.0;
            }
            if !moved {
                break;
            }
        }
        self.start.with_logs(&logs)
    }

    /// Compares what the runs know of a constant, all others held, with what was known before.
    fn trust(&self, constants: &Constants) -> [Trust; COUNT] {
        let (matrix, _) = self.normal(&constants.logs());
        let mut trust = [Trust::Assumed; COUNT];
        for (place, constant) in Constant::ALL.iter().enumerate() {
            if self.fitting.free.holds(*constant) {
                continue;
            }
            let known = matrix[place][place] * constant.spread().powi(2);
            trust[place] = match known {
                known if known > 10.0 => Trust::Measured,
                known if known > 1.0 => Trust::Weak,
                _ => Trust::Assumed,
            };
        }
        trust
    }
}

/// Gauss with pivots; a direction that the matrix says nothing about is not moved in.
fn solved(mut matrix: Matrix, mut vector: [f64; COUNT]) -> [f64; COUNT] {
    for column in 0..COUNT {
        let pivot = (column..COUNT)
            .max_by(|&a, &b| matrix[a][column].abs().total_cmp(&matrix[b][column].abs()))
            .expect("the range is not empty");
        matrix.swap(column, pivot);
        vector.swap(column, pivot);
        if matrix[column][column].abs() < 1e-12 {
            continue;
        }
        for row in column + 1..COUNT {
            let factor = matrix[row][column] / matrix[column][column];
            let above = matrix[column];
            for (cell, above) in matrix[row].iter_mut().zip(above).skip(column) {
                *cell -= factor * above;
            }
            vector[row] -= factor * vector[column];
        }
    }
    let mut solution = [0.0; COUNT];
    for row in (0..COUNT).rev() {
        let rest: f64 = (row + 1..COUNT).map(|place| matrix[row][place] * solution[place]).sum();
        if matrix[row][row].abs() >= 1e-12 {
            solution[row] = (vector[row] - rest) / matrix[row][row];
        }
    }
    solution
}
