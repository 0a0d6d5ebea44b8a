//! Hours at load with no growth: streams that end and begin again, and the server's memory.
//!
//! The one measurement with a verdict: memory after the first fifth of the time and at its end may
//! differ by what a stream's own ups and downs explain, 2 % or 1 MiB, and no more.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::closed_loop;
use crate::report::{Keep, Reporter, Table};
use crate::sample;
use crate::sys;
use crate::target::{Form, Target, request, server_binary};

/// `llmsim-perf soak`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long; an hour for a release, a minute in CI.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Streams at once.
    #[arg(long, default_value_t = 256)]
    streams: usize,
    /// Output tokens of each answer.
    #[arg(long, default_value_t = 32)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 5)]
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
        Ok((reporter, Growth::Small)) => reporter.finish("soak", Keep::asked(args.save)),
        Ok((reporter, Growth::TooMuch)) => {
            reporter.finish("soak", Keep::asked(args.save));
            eprintln!("llmsim-perf soak: the server's memory grows");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("llmsim-perf soak: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Growth {
    Small,
    TooMuch,
}

fn measure(args: &Args) -> io::Result<(Reporter, Growth)> {
    let mut reporter = Reporter::new("A soak");
    let target = Target::start(&args.server, &crate::lag::models_yml(args.step_ms), &[])?;
    let request = request(target.path, "lag", "Hello", args.tokens, Form::Stream);
    let time = Duration::from_secs_f64(args.minutes * 60.0);
    let start = Instant::now();
    let mut memory: Vec<(f64, u64)> = Vec::new();
    let mut unseen = None;
    let cpu_before = sys::process_cpu_ns(target.pid())?;
    let mut tick = || {
        let part = start.elapsed().as_secs_f64() / time.as_secs_f64();
        match sys::resident_bytes(target.pid()) {
            Ok(bytes) => memory.push((part, bytes)),
            Err(error) => unseen = Some(error),
        }
    };
    let served = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            sys::pin(sample::CLIENT_CPU);
            let streams = args.streams;
            closed_loop::run(target.address, streams, &request, Form::Stream, time, &mut tick)
        });
        client.join().expect("the client does not panic")
    })?;
    if let Some(error) = unseen {
        return Err(error);
    }
    let cpu = sys::process_cpu_ns(target.pid())? - cpu_before;
    let most = |from: f64, to: f64| {
        let part = memory.iter().filter(|(at, _)| (from..to).contains(at));
        part.map(|&(_, bytes)| bytes).max().unwrap_or(0)
    };
    let (early, late) = (most(0.1, 0.3), most(0.8, 2.0));
    let mib = |bytes: u64| (bytes as f64 / 10_485.76).round() / 100.0;
    let title = format!(
        "{} streams of {} tokens, begun again as they end, steps of {} ms, {} minutes",
        args.streams, args.tokens, args.step_ms, args.minutes
    );
    let columns = ["answers", "tokens/s", "CPU/token us", "MiB after 1/5", "MiB at the end"];
    let mut table = Table::new(title, &columns);
    table.row(vec![
        served.answers.into(),
        (served.frames as f64 / served.elapsed_s).round().into(),
        crate::report::Cell::us(cpu / served.frames.max(1)),
        mib(early).into(),
        mib(late).into(),
    ]);
    reporter.table(table);
    let allowed = early + (early / 50).max(1 << 20);
    Ok((reporter, if late <= allowed { Growth::Small } else { Growth::TooMuch }))
}
