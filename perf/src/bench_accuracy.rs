//! What `llmsim-bench` adds to what it measures: against a target whose timing is known.
//!
//! The target is `llmsim-bench reference` in a process of its own: TTFT 50 ms, ITL 10 ms, 100
//! tokens by default, on absolute deadlines. The client runs as a user would run it; its figures are
//! read from its JSON. The error is all that stands between the target's timetable and the report:
//! the kernel both ways, the target's own lateness, the client. Nothing here is asserted; the
//! goals are printed beside the figures.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use sonic_rs::{JsonContainerTrait, JsonValueTrait, Value};

/// How exact `llmsim-bench` is.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to measure [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    bench: Option<PathBuf>,
    /// Streams at once.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000])]
    streams: Vec<u32>,
    /// Requests per stream.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Runs of each; the median is shown.
    #[arg(long, default_value_t = 3)]
    runs: u32,
    /// The target's time to first token in ms.
    #[arg(long, default_value_t = 50.0)]
    ttft: f64,
    /// The target's time between tokens in ms.
    #[arg(long, default_value_t = 10.0)]
    itl: f64,
    /// Tokens per answer.
    #[arg(long, default_value_t = 100)]
    tokens: u32,
    /// Further options for the client, such as `--stamps read`.
    #[arg(last = true)]
    client: Vec<String>,
}

/// One run, as the client's JSON tells it.
struct Run {
    ttft_error_ms: f64,
    itl_p99_ms: f64,
    itl_p50_ms: f64,
    e2e_error_ms: f64,
    read_lag_p99_ms: f64,
    loop_lag_p99_ms: f64,
    cpu_share: f64,
    memory_mb: f64,
    failed: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn measure(args: &Args) -> Result<(), String> {
    let bench = match &args.bench {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(|error| error.to_string())?
            .with_file_name("llmsim-bench"),
    };
    if !bench.is_file() {
        return Err(format!(
            "{}: not built; `cargo build --release -p llmsim-bench`",
            bench.display()
        ));
    }
    println!(
        "target: TTFT {} ms, ITL {} ms, {} tokens, a process of its own on the same machine",
        args.ttft, args.itl, args.tokens
    );
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load average before: {}", load.split(' ').next().unwrap_or("unknown"));
    println!(
        "start-up to first connection: {:.1} ms (goal: under 20)",
        startup_ms(&bench, args.runs)?
    );
    println!(
        "{:>8} {:>14} {:>12} {:>12} {:>13} {:>13} {:>13} {:>7} {:>10} {:>7}",
        "streams",
        "TTFT error ms",
        "ITL p50 ms",
        "ITL p99 ms",
        "E2E error ms",
        "read lag p99",
        "loop lag p99",
        "CPU",
        "memory MB",
        "failed"
    );
    for &streams in &args.streams {
        let mut runs = Vec::new();
        for _ in 0..args.runs.max(1) {
            runs.push(one(&bench, args, streams)?);
        }
        let median = |of: fn(&Run) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "{streams:>8} {:>14.2} {:>12.2} {:>12.2} {:>13.2} {:>13.2} {:>13.2} {:>6.0}% {:>10.1} {:>7}",
            median(|run| run.ttft_error_ms),
            median(|run| run.itl_p50_ms),
            median(|run| run.itl_p99_ms),
            median(|run| run.e2e_error_ms),
            median(|run| run.read_lag_p99_ms),
            median(|run| run.loop_lag_p99_ms),
            median(|run| run.cpu_share) * 100.0,
            median(|run| run.memory_mb),
            runs.iter().map(|run| run.failed).sum::<u64>(),
        );
    }
    // On a busy machine the target is late too; the self-test tells what is the client's.
    for &streams in &args.streams {
        println!("self-test: {}", selftest(&bench, args, streams)?);
    }
    println!(
        "goals: mean TTFT error under 3 ms at 100 and 10 ms at 1,000 streams, ITL p99 at most 11 ms, memory under 50 MB"
    );
    Ok(())
}

fn selftest(bench: &Path, args: &Args, streams: u32) -> Result<String, String> {
    let out = Command::new(bench)
        .args(["selftest", "--concurrency", &streams.to_string()])
        .args(["--tokens", &args.tokens.to_string()])
        .args(["--tokens-per-second", &(1000.0 / args.itl).to_string()])
        .output()
        .map_err(|error| format!("{}: {error}", bench.display()))?;
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().last().unwrap_or("it said nothing").to_owned())
}

/// From the start of the process to its first connection, median.
fn startup_ms(bench: &Path, runs: u32) -> Result<f64, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let url = format!("http://{}", listener.local_addr().map_err(|error| error.to_string())?);
    let mut times = Vec::new();
    for _ in 0..runs.max(1) * 3 {
        let began = Instant::now();
        let mut child = Command::new(bench)
            .args(["--url", &url, "-m", "m", "-n", "1", "--quiet", "--no-server-metrics"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", bench.display()))?;
        let accepted = listener.accept();
        times.push(began.elapsed().as_secs_f64() * 1e3);
        drop(accepted);
        // It has been seen: nobody is going to answer it.
        let _ = child.kill();
        let _ = child.wait();
        // A second connection may be waiting: take it off the queue.
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        while listener.accept().is_ok() {}
        listener.set_nonblocking(false).map_err(|error| error.to_string())?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn one(bench: &Path, args: &Args, streams: u32) -> Result<Run, String> {
    let target = Target::start(bench, args)?;
    let file = std::env::temp_dir().join(format!("llmsim-accuracy-{}.json", std::process::id()));
    let status = Command::new(bench)
        .args(["--url", &target.url, "-m", "reference", "--quiet", "--no-server-metrics"])
        .args(["--concurrency", &streams.to_string()])
        .args(["--requests", &(streams * args.rounds.max(1)).to_string()])
        .args(["--max-tokens", &args.tokens.to_string(), "--prompt", "Count.", "--output"])
        .arg(&file)
        .args(&args.client)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("{}: {error}", bench.display()))?;
    if !status.success() {
        return Err(format!("the client ended with {status}"));
    }
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    let _ = std::fs::remove_file(&file);
    read(&text, args).ok_or_else(|| "the client's JSON lacks a figure".to_owned())
}

fn read(text: &str, args: &Args) -> Option<Run> {
    let file: Value = sonic_rs::from_str(text).ok()?;
    let level = file.get("levels")?.as_array()?.first()?;
    let latency = level.get("latency_ms")?;
    let mean = |name: &str| latency.get(name)?.get("mean")?.as_f64();
    let percentile = |name: &str, p: &str| latency.get(name)?.get("percentiles")?.get(p)?.as_f64();
    let client = level.get("client")?;
    let answer = args.ttft + args.itl * f64::from(args.tokens.saturating_sub(1));
    Some(Run {
        ttft_error_ms: mean("ttft")? - args.ttft,
        itl_p50_ms: percentile("itl", "p50")?,
        itl_p99_ms: percentile("itl", "p99")?,
        e2e_error_ms: mean("e2e")? - answer,
        read_lag_p99_ms: client
            .get("read_lag_ms")
            .and_then(|lags| lags.as_array()?.get(1)?.as_f64())
            .unwrap_or(f64::NAN),
        loop_lag_p99_ms: client.get("loop_lag_ms")?.get("percentiles")?.get("p99")?.as_f64()?,
        cpu_share: client.get("cpu_share")?.as_f64()?,
        memory_mb: client.get("peak_memory_bytes")?.as_f64()? / 1e6,
        failed: level.get("requests")?.get("failed")?.as_u64()?,
    })
}

/// The target's process; ends when dropped.
struct Target {
    child: Child,
    url: String,
}

impl Target {
    fn start(bench: &Path, args: &Args) -> Result<Self, String> {
        let mut child = Command::new(bench)
            .args(["reference", "--ttft", &args.ttft.to_string()])
            .args(["--itl", &args.itl.to_string(), "--tokens", &args.tokens.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{}: {error}", bench.display()))?;
        let out = child.stdout.take().ok_or("no output of the target")?;
        let mut url = String::new();
        BufReader::new(out).read_line(&mut url).map_err(|error| error.to_string())?;
        // Its thread listens before it prints; a moment for its timer slack to be set.
        std::thread::sleep(Duration::from_millis(20));
        Ok(Self { child, url: url.trim().to_owned() })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
