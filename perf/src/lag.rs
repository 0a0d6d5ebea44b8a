//! Token lag at the client, with all streams in one step: the server on its scheduler engine,
//! beside a bare loop of `send()` over as many sockets, in turns, drained by the same client.

use std::io;
use std::process::ExitCode;

use crate::drain::drain;
use crate::raw;
use crate::sys;
use crate::target::{Target, server_binary};
use crate::timeline::{Spread, percentile};

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

/// Frames at the start of each stream that are not looked at: the role chunk, and steps in which
/// the batch still fills.
const SKIPPED: u32 = 10;

/// What one run showed, in nanoseconds.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    pub(crate) burst: u64,
    pub(crate) cpu_per_frame: u64,
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
    let (raw, our) = (median(&raws), median(&ours));
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

/// The median over the runs, figure by figure.
pub(crate) fn median(runs: &[Figures]) -> Figures {
    let of = |field: fn(&Figures) -> u64| {
        let mut values: Vec<u64> = runs.iter().map(field).collect();
        values.sort_unstable();
        percentile(&values, 50.0)
    };
    Figures {
        p50: of(|f| f.p50),
        p90: of(|f| f.p90),
        p99: of(|f| f.p99),
        p999: of(|f| f.p999),
        max: of(|f| f.max),
        burst: of(|f| f.burst),
        cpu_per_frame: of(|f| f.cpu_per_frame),
    }
}

fn figures(spread: &Spread, cpu_per_frame: u64) -> Figures {
    let lag = |percent| percentile(&spread.lags_ns, percent);
    Figures {
        p50: lag(50.0),
        p90: lag(90.0),
        p99: lag(99.0),
        p999: lag(99.9),
        max: lag(100.0),
        burst: percentile(&spread.bursts_ns, 50.0),
        cpu_per_frame,
    }
}

fn raw_run(args: &Args, streams: usize, frame_bytes: usize) -> io::Result<Figures> {
    let plan = raw::Plan {
        streams,
        steps: args.tokens,
        step_ns: args.step_ms * 1_000_000,
        frame_bytes,
        cpu: Some(0),
    };
    let (mut sockets, sender) = raw::start(plan)?;
    let mut arrivals = Vec::with_capacity(streams * args.tokens as usize);
    sys::pin(1);
    drain(&mut sockets, args.tokens, &mut arrivals)?;
    let sent = sender.join().expect("the bare loop does not panic")?;
    let spread = Spread::of(&arrivals, streams, SKIPPED, plan.step_ns);
    Ok(figures(&spread, sent.cpu_ns / sent.lags_ns.len().max(1) as u64))
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
    let Run { server, streams, tokens, step_ms } = run;
    let target = Target::start(server, &models_yml(step_ms), &[])?;
    let mut sockets = target.open("lag", streams, tokens)?;
    let mut arrivals = Vec::with_capacity(streams * tokens as usize);
    let beside = beside(target.address);
    sys::pin(1);
    let cpu_before = sys::process_cpu_ns(target.pid())?;
    // The role chunk and one chunk a token.
    let drained = drain(&mut sockets, tokens + 1, &mut arrivals)?;
    let cpu = sys::process_cpu_ns(target.pid())? - cpu_before;
    drop(beside);
    if let Some(short) = drained.counts.iter().position(|count| *count <= tokens) {
        let message = format!("stream {short} got {} frames", drained.counts[short]);
        return Err(io::Error::other(message));
    }
    let frames: u64 = drained.counts.iter().map(|count| u64::from(*count)).sum();
    let spread = Spread::of(&arrivals, streams, SKIPPED, step_ms * 1_000_000);
    Ok((figures(&spread, cpu / frames), (drained.bytes / frames) as usize))
}

/// One simulated GPU whose every step takes the same time, whatever is in it: the overhead.
fn models_yml(step_ms: u64) -> String {
    format!(
        "version: 1
hardware:
  even: {{ hbm_gib: 80, memory_bandwidth_gbps: 100000, peak_tflops: 1000000 }}
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
