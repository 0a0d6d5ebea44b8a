//! Ten thousand open streams on sixteen simulated GPUs: what a stream and a token cost as their
//! number grows.
//!
//! Predicted: 10,000 streams in steps of 500 ms are 20,000 tokens/s, 10 % of a core; a stream holds
//! its task, its frames and its entry in the table: 4 to 6 KiB, and the same in the kernel for its
//! socket while nothing waits in it.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::report::{Cell, Keep, Reporter, Table};
use crate::sample::{self, Load};
use crate::sys;
use crate::target::{Target, server_binary};

/// `llmsim-perf scale`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Open streams, one run each.
    #[arg(long, value_delimiter = ',', default_values_t = [1250, 2500, 5000, 10000])]
    streams: Vec<usize>,
    /// Simulated GPUs that share them.
    #[arg(long, default_value_t = 16)]
    gpus: usize,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 12)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 500)]
    step_ms: u64,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: PathBuf,
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(reporter) => reporter.finish("scale", Keep::asked(args.save)),
        Err(error) => {
            eprintln!("llmsim-perf scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<Reporter> {
    sys::raise_open_files();
    let mut reporter = Reporter::new("Open streams and simulated GPUs");
    let title = format!(
        "One process, {} simulated GPUs, {} tokens a stream, a token every {} ms; lag of each \
         stream behind its own best frame",
        args.gpus, args.tokens, args.step_ms
    );
    let columns = [
        "streams",
        "tokens/s",
        "CPU/token us",
        "CPU %",
        "server KiB/stream",
        "kernel KiB/stream",
        "p50 us",
        "p99 us",
    ];
    let mut table = Table::new(title, &columns);
    let yml = format!(
        "version: 1
hardware:
  even: {{ hbm_gib: 80, memory_bandwidth_gbps: 100000, peak_tflops: 1000000 }}
models:
  - name: fleet
    context_length: 4096
    engine: scheduler
    hardware: even
    replicas: {}
    weights: {{ gib: 0.001 }}
    kv_cache: {{ bytes_per_token: 1024 }}
    scheduler: {{ max_batch_tokens: 65536, max_num_sequences: 4096 }}
    latency: {{ step_overhead_ms: {} }}
",
        args.gpus, args.step_ms
    );
    let mut memory = Vec::new();
    for &streams in &args.streams {
        let target = Target::start(&args.server, &yml, &[])?;
        let kernel_before = sys::slab_bytes();
        let load = Load::each(streams, args.tokens, args.step_ms);
        let load = Load { skip: 2, ..load };
        let mut kernel = 0;
        let (figures, _) = sample::of_server(&target, "fleet", load, |_| {
            // Both ends of each connection are on this machine.
            kernel = sys::slab_bytes().saturating_sub(kernel_before) / 2 / streams as u64;
        })?;
        let busy = figures.cpu_per_frame as f64 * figures.frames_per_second as f64 / 1e7;
        let kib = |bytes: u64| Cell::from((bytes as f64 / 102.4).round() / 10.0);
        table.row(vec![
            streams.into(),
            figures.frames_per_second.into(),
            Cell::us(figures.cpu_per_frame),
            ((busy * 10.0).round() / 10.0).into(),
            kib(figures.bytes_per_stream),
            kib(kernel),
            Cell::us(figures.p50),
            Cell::us(figures.p99),
        ]);
        memory.push((streams as f64, figures.bytes_per_stream as f64 * streams as f64));
    }
    reporter.table(table);
    if let Some(slope) = slope(&memory) {
        let mut table = Table::new("Memory grows by", &["what", "KiB"]);
        table.row(vec!["another stream".into(), ((slope / 102.4).round() / 10.0).into()]);
        reporter.table(table);
    }
    Ok(reporter)
}

/// The slope of the line of least squares through points.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    (spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope_and_a_point_has_none() {
        assert_eq!(slope(&[(1.0, 12.0), (2.0, 14.0), (3.0, 16.0)]), Some(2.0));
        assert_eq!(slope(&[(1.0, 12.0)]), None);
    }
}
