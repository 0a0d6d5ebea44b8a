//! The knee: the largest number of streams in one step whose lag stays below a bar, for our server
//! and for the bare loop in the same run.
//!
//! Predicted: a step of N streams is sent in N x 5.3 us, so p99 passes 1 ms at some 128 streams and
//! 5 ms at some 700, for the bare loop as for us.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::lag;
use crate::raw::By;
use crate::report::{Cell, Keep, Reporter, Table};
use crate::sample::{self, Figures, Load};
use crate::target::{Target, server_binary};

/// `llmsim-perf knee`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of streams to try, ascending.
    #[arg(
        long,
        value_delimiter = ',',
        default_values_t = [64, 96, 128, 160, 192, 256, 384, 512, 640, 768, 896, 1024]
    )]
    streams: Vec<usize>,
    /// The bars for p99, in milliseconds.
    #[arg(long, value_delimiter = ',', default_values_t = [1.0, 5.0])]
    bars_ms: Vec<f64>,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 110)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Runs of each kind, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: PathBuf,
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(reporter) => reporter.finish("knee", Keep::asked(args.save)),
        Err(error) => {
            eprintln!("llmsim-perf knee: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<Reporter> {
    let mut reporter = Reporter::new("The knee of the fidelity envelope");
    let title = format!(
        "Lag with all streams in one step of {} ms, {} tokens each; median of {} runs in turns",
        args.step_ms, args.tokens, args.rounds
    );
    let columns = ["streams", "bare p50 us", "p90", "p99", "our p50 us", "p90", "p99", "p99 ratio"];
    let mut table = Table::new(title, &columns);
    let mut p99s = Vec::new();
    for &streams in &args.streams {
        let load = Load::in_step(streams, args.tokens, args.step_ms);
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let target = Target::start(&args.server, &lag::models_yml(args.step_ms), &[])?;
            let (figures, frame_bytes) = sample::of_server(&target, "lag", load, |_| ())?;
            drop(target);
            ours.push(figures);
            bare.push(sample::of_bare_loop(By::Send, load, frame_bytes)?);
        }
        let [ours, bare] = [&ours, &bare].map(|runs| Figures::median(runs));
        let mut row: Vec<Cell> = vec![streams.into()];
        row.extend([bare.p50, bare.p90, bare.p99, ours.p50, ours.p90, ours.p99].map(Cell::us));
        row.push(Cell::ratio(ours.p99, bare.p99));
        table.row(row);
        p99s.push((streams, bare.p99, ours.p99));
    }
    reporter.table(table);
    let columns = ["p99 under", "bare send()", "llmsimulator"];
    let mut table = Table::new("Largest number of streams", &columns);
    for &bar in &args.bars_ms {
        let largest = |of: fn(&(usize, u64, u64)) -> u64| {
            let good = p99s.iter().filter(|run| of(run) as f64 <= bar * 1e6);
            good.map(|run| run.0).max().unwrap_or(0)
        };
        table.row(vec![
            format!("{bar} ms").into(),
            largest(|run| run.1).into(),
            largest(|run| run.2).into(),
        ]);
    }
    reporter.table(table);
    Ok(reporter)
}
