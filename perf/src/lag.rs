//! Token lag at the client, with all streams in one step: the server on its scheduler engine,
//! beside a bare loop of `send()` over as many sockets, in turns, drained by the same client.

use std::io;
use std::process::ExitCode;

use crate::raw::By;
use crate::sample::{self, Figures, Load};
use crate::sys;
use crate::target::{Target, server_binary};

/// `llmsim-perf lag`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams that are released together, one series of runs each.
    #[arg(long, value_delimiter = ',', default_values_t = [25, 256, 1000])]
    streams: Vec<usize>,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 150)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Runs of each kind, in turns; the table shows the median over the runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: std::path::PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    println!(
        "lag behind the earliest frame of the run, at the client; steps of {} ms, {} tokens a \
         stream, median of {} runs in turns; microseconds",
        args.step_ms, args.tokens, args.rounds
    );
    println!(
        "{:>7} {:<12} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}",
        "streams", "who", "p50", "p90", "p99", "p99.9", "max", "burst", "cpu/frame"
    );
    for &streams in &args.streams {
        if let Err(error) = series(args, streams) {
            eprintln!("llmsim-perf lag: {streams} streams: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn series(args: &Args, streams: usize) -> io::Result<()> {
    let (mut raws, mut ours) = (Vec::new(), Vec::new());
    let mut frame_bytes = 200;
    let steal = sys::steal_ticks();
    for _ in 0..args.rounds {
        let run = Run { server: &args.server, streams, tokens: args.tokens, step_ms: args.step_ms };
        let (figures, bytes) = server_run(run, |_| ())?;
        ours.push(figures);
        frame_bytes = bytes;
        raws.push(raw_run(args, streams, frame_bytes)?);
    }
    let (raw, our) = (Figures::median(&raws), Figures::median(&ours));
    print(streams, "raw send()", raw);
    print(streams, "llmsimulator", our);
    let ratio = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    println!(
        "{streams:>7} {:<12} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>9.2}   frames of {frame_bytes} bytes, steal {} ticks",
        "ratio",
        ratio(our.p50, raw.p50),
        ratio(our.p90, raw.p90),
        ratio(our.p99, raw.p99),
        ratio(our.p999, raw.p999),
        ratio(our.max, raw.max),
        ratio(our.burst, raw.burst),
        ratio(our.cpu_per_frame, raw.cpu_per_frame),
        sys::steal_ticks() - steal,
    );
    Ok(())
}

fn print(streams: usize, who: &str, f: Figures) {
    let us = |ns: u64| ns as f64 / 1e3;
    println!(
        "{streams:>7} {who:<12} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.2}",
        us(f.p50),
        us(f.p90),
        us(f.p99),
        us(f.p999),
        us(f.max),
        us(f.burst),
        us(f.cpu_per_frame)
    );
}

fn raw_run(args: &Args, streams: usize, frame_bytes: usize) -> io::Result<Figures> {
    let load = Load::in_step(streams, args.tokens, args.step_ms);
    sample::of_bare_loop(By::Send, load, frame_bytes)
}

/// One run of the server.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) server: &'a std::path::Path,
    pub(crate) streams: usize,
    pub(crate) tokens: u32,
    pub(crate) step_ms: u64,
}

/// What the client saw, and the bytes of a frame. `beside` is started when the streams are open, and
/// what it gives back is dropped when they have ended.
pub(crate) fn server_run<T>(
    run: Run<'_>,
    beside: impl FnOnce(std::net::SocketAddr) -> T,
) -> io::Result<(Figures, usize)> {
    let target = Target::start(run.server, &models_yml(run.step_ms), &[])?;
    let load = Load::in_step(run.streams, run.tokens, run.step_ms);
    sample::of_server(&target, "lag", load, beside)
}

/// One simulated GPU whose every step takes the same time, whatever is in it: the overhead.
pub(crate) fn models_yml(step_ms: u64) -> String {
    format!(
        "version: 1
hardware:
  even: {{ hbm_gib: 8, memory_bandwidth_gbps: 100000, peak_tflops: 1000000 }}
models:
  - name: lag
    context_length: 4096
    engine: scheduler
    hardware: even
    weights: {{ gib: 0.001 }}
    kv_cache: {{ bytes_per_token: 1024 }}
    scheduler: {{ max_batch_tokens: 65536, max_num_sequences: 4096 }}
    latency: {{ step_overhead_ms: {step_ms} }}
"
    )
}
