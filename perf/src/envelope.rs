//! The fidelity envelope, in one run on one machine: the bare loops, our server on each of its
//! engines, and the peers that are installed, all drained by the same client.
//!
//! Predicted before the first run, from the costs of one `send()` (5 us paced, 3 us saturated) and
//! of our own work per token (a ring entry, a frame rendered from three slices, two buckets: 0.25
//! us): burst spread and CPU per token within 1.1 of the bare loop from 256 streams on; p50 and p90
//! within 1.15; p99 governed by the host. On fixed_rate the quantum of 200 us is the lag: 0.25 ms at
//! the median. On instant 64 KiB go out in one write, and the client is the limit.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::answers::Bare;
use crate::closed_loop::{self, Served};
use crate::drain::Arrival;
use crate::lag;
use crate::raw::By;
use crate::report::{Cell, Keep, Reporter, Table};
use crate::sample::{self, Figures, Load};
use crate::sys;
use crate::target::{Form, PeerLog, Target, request, server_binary};

/// `llmsim-perf envelope`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams that are released together, one series of runs each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128, 256, 512, 640, 1024])]
    streams: Vec<usize>,
    /// Streams that are not in step, one series of runs each.
    #[arg(long, value_delimiter = ',', default_values_t = [1000, 2000])]
    unsynchronised: Vec<usize>,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 100)]
    tokens: u32,
    /// Step time, and time between tokens of streams that are not in step, in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Runs of each kind, in turns; the tables show the median over the runs, figure by figure.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each run at full speed.
    #[arg(long, default_value_t = 2.0)]
    full_speed_s: f64,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: PathBuf,
    /// llmsim, the peer on crates.io [default: looked up in PATH].
    #[arg(long, value_name = "BIN")]
    peer: Option<PathBuf>,
    /// Only the part without any timing, kept as `untimed`.
    #[arg(long)]
    untimed_only: bool,
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let (name, title) = match args.untimed_only {
        true => ("untimed", "What the path from request to answer carries without timing"),
        false => ("envelope", "The fidelity envelope"),
    };
    let mut reporter = Reporter::new(title);
    let peer = args.peer.clone().or_else(in_path);
    if peer.is_none() {
        println!("no peer: `cargo install llmsim --version 0.6.0`, or --peer BIN\n");
    }
    let peer = peer.as_ref();
    let result = if args.untimed_only {
        instant(args, peer, &mut reporter)
    } else {
        in_step(args, &mut reporter)
            .and_then(|()| unsynchronised(args, peer, &mut reporter))
            .and_then(|()| saturated(args, &mut reporter))
            .and_then(|()| instant(args, peer, &mut reporter))
            .and_then(|()| step_times(args, &mut reporter))
    };
    if let Err(error) = result {
        eprintln!("llmsim-perf envelope: {error}");
        return ExitCode::FAILURE;
    }
    reporter.finish(name, Keep::asked(args.save))
}

fn in_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("llmsim")).find(|file| file.is_file())
}

const LAG_COLUMNS: [&str; 11] = [
    "who",
    "streams",
    "p50 us",
    "p90 us",
    "p99 us",
    "p99.9 us",
    "max us",
    "burst us",
    "CPU/token us",
    "tokens/s",
    "KiB/stream",
];

fn lag_row(who: &str, streams: usize, f: Figures) -> Vec<Cell> {
    let mut row = vec![who.into(), streams.into()];
    row.extend([f.p50, f.p90, f.p99, f.p999, f.max].map(Cell::us));
    row.push(if f.burst == 0 { Cell::Nothing } else { Cell::us(f.burst) });
    row.extend([Cell::us(f.cpu_per_frame), f.frames_per_second.into()]);
    let memory = (f.bytes_per_stream as f64 / 1024.0).into();
    row.push(if f.bytes_per_stream == 0 { Cell::Nothing } else { memory });
    row
}

fn ratio_row(who: &str, streams: usize, f: Figures, to: Figures) -> Vec<Cell> {
    vec![
        who.into(),
        streams.into(),
        Cell::ratio(f.p50, to.p50),
        Cell::ratio(f.p90, to.p90),
        Cell::ratio(f.p99, to.p99),
        Cell::ratio(f.p999, to.p999),
        Cell::ratio(f.max, to.max),
        Cell::ratio(f.burst, to.burst),
        Cell::ratio(f.cpu_per_frame, to.cpu_per_frame),
        Cell::ratio(f.frames_per_second, to.frames_per_second),
        Cell::Nothing,
    ]
}

/// All streams in one step.
fn in_step(args: &Args, reporter: &mut Reporter) -> io::Result<()> {
    let title = format!(
        "All streams in one step of {} ms, {} tokens each; lag behind the earliest frame of the \
         run, at the client; median of {} runs in turns",
        args.step_ms, args.tokens, args.rounds
    );
    let mut table = Table::new(title, &LAG_COLUMNS);
    for &streams in &args.streams {
        let load = Load::in_step(streams, args.tokens, args.step_ms);
        let (mut ours, mut sends, mut urings) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let target = Target::start(&args.server, &lag::models_yml(args.step_ms), &[])?;
            let (figures, frame_bytes) = sample::of_server(&target, "lag", load, |_| ())?;
            drop(target);
            ours.push(figures);
            sends.push(sample::of_bare_loop(By::Send, load, frame_bytes)?);
            urings.push(sample::of_bare_loop(By::Uring, load, frame_bytes)?);
        }
        let [ours, send, uring] = [&ours, &sends, &urings].map(|runs| Figures::median(runs));
        table.row(lag_row("bare send()", streams, send));
        table.row(lag_row("bare io_uring", streams, uring));
        table.row(lag_row("llmsimulator scheduler", streams, ours));
        table.row(ratio_row("ratio to send()", streams, ours, send));
        table.row(ratio_row("ratio to io_uring", streams, ours, uring));
    }
    reporter.table(table);
    Ok(())
}

/// A bare loop of `send()` that looks every 0.2 ms at what is due.
pub(crate) const BARE_EACH: &str = "bare send() in quanta";

/// Each stream with its own timetable, and the bare loop and the peer with the same.
fn unsynchronised(args: &Args, peer: Option<&PathBuf>, reporter: &mut Reporter) -> io::Result<()> {
    let rate = 1_000.0 / args.step_ms as f64;
    let title = format!(
        "Streams with a timetable of their own, {rate} tokens/s each, {} tokens; lag of each \
         stream behind its own best frame; median of {} runs in turns",
        args.tokens, args.rounds
    );
    let mut columns = LAG_COLUMNS.to_vec();
    columns.push("drift us");
    let mut table = Table::new(title, &columns);
    let with_drift = |mut row: Vec<Cell>, figures: Figures| {
        row.push(Cell::us(figures.drift));
        row
    };
    for &streams in &args.unsynchronised {
        let load = Load::each(streams, args.tokens, args.step_ms);
        let (mut ours, mut bare, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let target = Target::start(&args.server, &fixed_rate_yml(rate), &[])?;
            let (figures, frame_bytes) = sample::of_server(&target, "fixed", load, |_| ())?;
            drop(target);
            ours.push(figures);
            bare.push(sample::of_bare_loop(By::Send, load, frame_bytes)?);
            if let Some(peer) = peer {
                let toml = llmsim_toml(args.step_ms, args.tokens);
                let target = Target::start_llmsim(peer, &toml, PeerLog::Null)?;
                theirs.push(sample::of_server(&target, "gpt-4", load, |_| ())?.0);
            }
        }
        let [ours, bare] = [&ours, &bare].map(|runs| Figures::median(runs));
        table.row(with_drift(lag_row(BARE_EACH, streams, bare), bare));
        table.row(with_drift(lag_row("llmsimulator fixed_rate", streams, ours), ours));
        if !theirs.is_empty() {
            let theirs = Figures::median(&theirs);
            table.row(with_drift(lag_row("llmsim 0.6.0", streams, theirs), theirs));
            let mut row = ratio_row("llmsim / llmsimulator", streams, theirs, ours);
            row.push(Cell::Nothing);
            table.row(row);
        }
    }
    reporter.table(table);
    Ok(())
}

pub(crate) fn fixed_rate_yml(rate: f64) -> String {
    format!(
        "version: 1
models:
  - name: fixed
    context_length: 131072
    engine: fixed_rate
    performance: {{ prefill_tokens_per_second: 1000000, decode_tokens_per_second: {rate} }}
"
    )
}

/// The peer's tokens are words and the spaces between them.
fn llmsim_toml(period_ms: u64, tokens: u32) -> String {
    let words = tokens / 2 + 1;
    format!(
        "[latency]\nttft_mean_ms = {period_ms}\nttft_stddev_ms = 0\ntbt_mean_ms = {period_ms}\n\
         tbt_stddev_ms = 0\n[response]\ngenerator = \"sequence\"\ntarget_tokens = {words}\n"
    )
}

/// Streams that ask for more than one core can send: what comes through.
fn saturated(args: &Args, reporter: &mut Reporter) -> io::Result<()> {
    const STREAMS: usize = 256;
    const RATE: u32 = 4_000;
    let title = format!(
        "More than one core can send: {STREAMS} streams; the bare loop without a pause, and \
         fixed_rate at {RATE} tokens/s each; median of {} runs in turns",
        args.rounds
    );
    let columns = ["who", "tokens/s", "CPU/token us", "tokens/s per busy core"];
    let mut table = Table::new(title, &columns);
    let tokens = (f64::from(RATE) * args.full_speed_s) as u32;
    let load = Load { skip: tokens / 10, period_ns: 0, ..Load::in_step(STREAMS, tokens, 0) };
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        let target = Target::start(&args.server, &fixed_rate_yml(f64::from(RATE)), &[])?;
        let (figures, frame_bytes) = sample::of_server(&target, "fixed", load, |_| ())?;
        drop(target);
        ours.push(figures);
        let steps = (300_000.0 * args.full_speed_s / STREAMS as f64) as u32;
        let load = Load { tokens: steps.max(4), skip: steps / 10, ..load };
        bare.push(sample::of_bare_loop(By::Send, load, frame_bytes)?);
    }
    let [ours, bare] = [&ours, &bare].map(|runs| Figures::median(runs));
    let per_core = |f: Figures| 1_000_000_000 / f.cpu_per_frame.max(1);
    for (who, f) in [("bare send()", bare), ("llmsimulator fixed_rate", ours)] {
        let cpu = Cell::us(f.cpu_per_frame);
        table.row(vec![who.into(), f.frames_per_second.into(), cpu, per_core(f).into()]);
    }
    table.row(vec![
        "ratio".into(),
        Cell::ratio(ours.frames_per_second, bare.frames_per_second),
        Cell::ratio(ours.cpu_per_frame, bare.cpu_per_frame),
        Cell::ratio(per_core(ours), per_core(bare)),
    ]);
    reporter.table(table);
    Ok(())
}

/// What is asked for without timing, and how llmsim is set up for it.
///
/// Its whole answers are asked for in three ways, since what it spends on one is mostly the making
/// and the counting of its words: `lorem` of 100 tokens is what it answers with when its user says
/// nothing about that; `lorem` of 16 is what its own throughput benchmark sets
/// (`benchmarks/config/throughput.toml` of its package, with the same request as here); and
/// `sequence` is the cheapest answer that it can give. It takes no notice of `max_tokens`. Ours gets
/// the same request, and answers with as many tokens as that says.
///
/// It writes four lines for each answer, whatever `RUST_LOG` says (`src/main.rs` of its package adds
/// `tower_http=debug` behind it). Who installs it has them kept, by Docker or by CI, and so has the row
/// *as installed*. Its own benchmark throws them away, and so do all other rows.
struct Untimed {
    name: &'static str,
    form: Form,
    connections: usize,
    tokens: u32,
    llmsim: fn(u32) -> String,
    log: PeerLog,
}

const UNTIMED: [Untimed; 6] = [
    Untimed {
        name: "streaming",
        form: Form::Stream,
        connections: 64,
        tokens: 256,
        llmsim: |tokens| llmsim_toml(0, tokens),
        log: PeerLog::Null,
    },
    Untimed {
        name: "streaming",
        form: Form::Stream,
        connections: 256,
        tokens: 256,
        llmsim: |tokens| llmsim_toml(0, tokens),
        log: PeerLog::Null,
    },
    Untimed {
        name: "whole, 100 tokens, as installed",
        form: Form::Whole,
        connections: 64,
        tokens: 100,
        llmsim: |_| llmsim_instant(""),
        log: PeerLog::File,
    },
    Untimed {
        name: "whole, 100 tokens, as installed, no log",
        form: Form::Whole,
        connections: 64,
        tokens: 100,
        llmsim: |_| llmsim_instant(""),
        log: PeerLog::Null,
    },
    Untimed {
        name: "whole, 16 tokens, its own benchmark",
        form: Form::Whole,
        connections: 64,
        tokens: 16,
        llmsim: |tokens| {
            llmsim_instant(&format!(
                "[response]\ngenerator = \"lorem\"\ntarget_tokens = {tokens}\n"
            ))
        },
        log: PeerLog::Null,
    },
    Untimed {
        name: "whole, 16 tokens, its cheapest",
        form: Form::Whole,
        connections: 64,
        tokens: 16,
        llmsim: |tokens| llmsim_toml(0, tokens),
        log: PeerLog::Null,
    },
];

/// The peer without delays, and with whatever else it has by itself.
fn llmsim_instant(response: &str) -> String {
    format!("[latency]\nprofile = \"instant\"\n{response}")
}

/// No timing at all: what the path from request to bytes can carry.
fn instant(args: &Args, peer: Option<&PathBuf>, reporter: &mut Reporter) -> io::Result<()> {
    /// The model that llmsim's own benchmark asks for; ours has one of that name.
    const MODEL: &str = "gpt-5";
    let title = format!(
        "No timing: a client that asks again at once, for {} s; streams of 256 tokens; median of \
         {} runs in turns",
        args.full_speed_s, args.rounds
    );
    let columns = [
        "who",
        "form",
        "connections",
        "tokens/s",
        "requests/s",
        "CPU/request us",
        "client's CPU/request us",
    ];
    let mut table = Table::new(title, &columns);
    for case in &UNTIMED {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            let yml =
                format!("version: 1\nmodels:\n  - {{ name: {MODEL}, context_length: 8192 }}\n");
            let target = Target::start(&args.server, &yml, &[])?;
            ours.push(full_speed(&target, MODEL, case, args.full_speed_s)?);
            drop(target);
            if let Some(peer) = peer {
                let target = Target::start_llmsim(peer, &(case.llmsim)(case.tokens), case.log)?;
                theirs.push(full_speed(&target, MODEL, case, args.full_speed_s)?);
            }
        }
        let answer_bytes = ours[0].answer_bytes;
        let mut bare = Vec::new();
        for _ in 0..if case.form == Form::Whole { args.rounds } else { 0 } {
            bare.push(bare_answers(answer_bytes, MODEL, case, args.full_speed_s)?);
        }
        let ours = Rates::median(&ours);
        let row = |who: &str, values: [f64; 4]| {
            let mut row = vec![who.into(), case.name.into(), case.connections.into()];
            row.extend(values.map(Cell::from));
            row
        };
        table.row(row("llmsimulator instant", ours));
        if !bare.is_empty() {
            let bare = Rates::median(&bare);
            table.row(row("bare recv() and send()", bare));
            let ratio = std::array::from_fn(|i| ours[i] / bare[i].max(f64::MIN_POSITIVE));
            table.row(row("llmsimulator / bare", ratio));
        }
        if !theirs.is_empty() {
            let theirs = Rates::median(&theirs);
            table.row(row("llmsim 0.6.0", theirs));
            let ratio = std::array::from_fn(|i| ours[i] / theirs[i].max(f64::MIN_POSITIVE));
            table.row(row("llmsimulator / llmsim", ratio));
        }
    }
    reporter.table(table);
    Ok(())
}

struct Rates {
    tokens: f64,
    requests: f64,
    cpu_us: f64,
    client_cpu_us: f64,
    /// Length of an answer, head and body.
    answer_bytes: usize,
}

impl Rates {
    /// The median over the runs, figure by figure, in the order of the table's columns.
    fn median(runs: &[Self]) -> [f64; 4] {
        let of = |field: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        [of(|r| r.tokens), of(|r| r.requests), of(|r| r.cpu_us), of(|r| r.client_cpu_us)]
    }

    fn of(served: Served, cpu_ns: u64, case: &Untimed) -> Self {
        let per_second = |count: u64| count as f64 / served.elapsed_s;
        let per_answer_us = |ns: u64| ns as f64 / 1e3 / served.answers.max(1) as f64;
        Self {
            tokens: match case.form {
                Form::Stream => per_second(served.frames),
                Form::Whole => per_second(served.answers * u64::from(case.tokens)),
            },
            requests: per_second(served.answers),
            cpu_us: per_answer_us(cpu_ns),
            client_cpu_us: per_answer_us(served.client_cpu_ns),
            answer_bytes: served.answer_bytes,
        }
    }
}

fn full_speed(target: &Target, model: &str, case: &Untimed, seconds: f64) -> io::Result<Rates> {
    let Untimed { form, connections, tokens, .. } = *case;
    let request = request(target.path, model, "Hi", tokens, form);
    let cpu_before = sys::process_cpu_ns(target.pid())?;
    let served = std::thread::scope(|scope| {
        let client =
            scope.spawn(|| ask_again(target.address, connections, &request, form, seconds));
        client.join().expect("the client does not panic")
    })?;
    let cpu = sys::process_cpu_ns(target.pid())? - cpu_before;
    Ok(Rates::of(served, cpu, case))
}

/// The same questions to a bare loop on the processor where a server has its I/O thread.
fn bare_answers(bytes: usize, model: &str, case: &Untimed, seconds: f64) -> io::Result<Rates> {
    let Untimed { form, connections, tokens, .. } = *case;
    let request = request("/v1/chat/completions", model, "Hi", tokens, form);
    let bare = Bare::new(bytes)?;
    let address = bare.address()?;
    let served = std::thread::scope(|scope| {
        let server = scope.spawn(|| bare.run(connections, sample::SERVER_CPU));
        let client = scope.spawn(|| ask_again(address, connections, &request, form, seconds));
        let served = client.join().expect("the client does not panic");
        bare.stop();
        server.join().expect("the loop does not panic")?;
        served
    })?;
    Ok(Rates::of(served, bare.cpu_ns(), case))
}

fn ask_again(
    address: SocketAddr,
    connections: usize,
    request: &[u8],
    form: Form,
    seconds: f64,
) -> io::Result<Served> {
    sys::pin(sample::CLIENT_CPU);
    let time = Duration::from_secs_f64(seconds);
    closed_loop::run(address, connections, request, form, time, &mut || ())
}

/// Step times of a live server against the roofline, worked out here by hand: 10 GiB of weights and
/// 64 KiB of KV cache per token of context, read at 1,000 GB/s.
fn step_times(args: &Args, reporter: &mut Reporter) -> io::Result<()> {
    const WEIGHTS: f64 = 10.0 * 1_073_741_824.0;
    const KV: f64 = 65_536.0;
    const BYTES_PER_MS: f64 = 1e9;
    /// One message "Hello".
    const PROMPT: f64 = 8.0;
    let yml = "version: 1
hardware:
  slow: { hbm_gib: 80, memory_bandwidth_gbps: 1000, peak_tflops: 1000000 }
models:
  - name: roof
    context_length: 4096
    engine: scheduler
    hardware: slow
    weights: { gib: 10 }
    kv_cache: { bytes_per_token: 65536 }
    scheduler: { max_batch_tokens: 65536, max_num_sequences: 4096 }
";
    let columns = ["streams", "roofline ms", "live ms", "deviation %"];
    let title = format!(
        "Mean step time of a live server against the roofline, by the first frame of each step; \
         median of {} runs",
        args.rounds
    );
    let mut table = Table::new(title, &columns);
    let largest = args.streams.iter().copied().max().unwrap_or(1);
    for streams in [1, 16, 64, 256, 1024].into_iter().filter(|&n| n == 1 || n <= largest) {
        let load = Load::in_step(streams, args.tokens, 12);
        let mut runs = Vec::new();
        for _ in 0..args.rounds {
            let target = Target::start(&args.server, yml, &[])?;
            let (_, _, arrivals) = sample::of_server_seen(&target, "roof", load, |_| ())?;
            let Some(steps) = Steps::of(&arrivals, streams, args.tokens) else { continue };
            let context = |step: u32| {
                let tokens =
                    steps.behind.iter().map(|behind| PROMPT + f64::from(step - behind) - 1.0);
                tokens.sum::<f64>()
            };
            let roofline = |step: u32| (WEIGHTS + KV * context(step)) / BYTES_PER_MS;
            let (from, to) = steps.range;
            let count = f64::from(to - from);
            let live = (steps.end_ns - steps.start_ns) as f64 / count / 1e6;
            let roofline = (from + 1..=to).map(roofline).sum::<f64>() / count;
            runs.push((live / roofline, roofline, live));
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(&(ratio, roofline, live)) = runs.get(runs.len() / 2) else { continue };
        let deviation = (ratio - 1.0) * 100.0;
        let digits = |value: f64, places: i32| {
            Cell::from(format!("{value:.places$}", places = places as usize))
        };
        table.row(vec![streams.into(), digits(roofline, 4), digits(live, 4), digits(deviation, 3)]);
    }
    reporter.table(table);
    Ok(())
}

/// Steps of a batch that a client tells apart by itself.
struct Steps {
    /// For each stream, how many steps after the first stream it began.
    behind: Vec<u32>,
    /// From this step to that all streams run.
    range: (u32, u32),
    /// When the first frames of those two steps came.
    start_ns: u64,
    end_ns: u64,
}

impl Steps {
    /// Token k of a stream that began s steps after the first is of step k + s. The first frame of a
    /// step is the least delayed; the mean of all would have the whole burst in it, which is
    /// milliseconds at a thousand streams. `None` if there are too few steps with all streams.
    fn of(arrivals: &[Arrival], streams: usize, tokens: u32) -> Option<Self> {
        let of_token = |a: &&Arrival, token: u32| (a.first..a.first + a.frames).contains(&token);
        let at = |stream: u32, token: u32| {
            let mut own = arrivals.iter().filter(|a| a.stream == stream);
            own.find(|a| of_token(a, token)).map(|a| a.at_ns)
        };
        // In the middle, where the batch is full and a step is a step.
        let middle = tokens / 2;
        let mut firsts = vec![u64::MAX; streams];
        for a in arrivals {
            if of_token(&a, middle) {
                firsts[a.stream as usize] = a.at_ns;
            }
        }
        let (leader, &first) = firsts.iter().enumerate().min_by_key(|(_, at)| **at)?;
        let step = at(leader as u32, middle + 1)?.saturating_sub(first).max(1);
        let behind: Vec<u32> =
            firsts.iter().map(|at| ((at - first + step / 2) / step) as u32).collect();
        let last = behind.iter().copied().max()?;
        // Far from where the batch fills and empties.
        let range = (last + tokens / 4, tokens.checked_sub(tokens / 10)?);
        if range.1 <= range.0 {
            return None;
        }
        let first_of = |step: u32| {
            let own = |a: &&Arrival| {
                step.checked_sub(behind[a.stream as usize]).is_some_and(|token| of_token(a, token))
            };
            arrivals.iter().filter(own).map(|a| a.at_ns).min()
        };
        let (start_ns, end_ns) = (first_of(range.0)?, first_of(range.1)?);
        Some(Self { behind, range, start_ns, end_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams in steps of 100 ns, the second one step behind and 20 ns late each time, once 40.
    #[test]
    fn steps_are_told_by_their_first_frames() {
        let arrivals: Vec<Arrival> = (0..=20)
            .flat_map(|token: u32| {
                let at =
                    |stream: u32, at_ns: u64| Arrival { stream, first: token, frames: 1, at_ns };
                let late = if token == 10 { 40 } else { 20 };
                let due = 1_000 + 100 * u64::from(token);
                [at(0, due), at(1, due + 100 + late)]
            })
            .collect();
        let steps = Steps::of(&arrivals, 2, 20).unwrap();
        assert_eq!(steps.behind, [0, 1]);
        assert_eq!(steps.range, (6, 18));
        assert_eq!((steps.start_ns, steps.end_ns), (1_600, 2_800));
    }
}
