//! What one client can do to the others: token lag of streams in step while somebody else sends a
//! huge prompt, opens a thousand connections, scrapes, does not read, pipelines, or cancels.
//!
//! The disturber runs on the client's processor in the idle class, so that what is measured is the
//! server's lag and not a client that was kept waiting; what it costs in the kernel stays in the
//! figures. What it asks for runs on simulated GPUs of its own: a prompt that takes part in the
//! measured batch would lengthen its steps, as it should.
//!
//! Predicted: parsing 1 MB takes 1 ms, on a helper thread of the lowest priority; a scrape 2 ms
//! there; a new connection and its task 15 us, so a thousand of them 15 ms of the I/O thread, of
//! which the streams see at most one turn; a client that does not read costs one failed send.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lag;
use crate::report::{Cell, Keep, Reporter, Table};
use crate::sample::{self, Figures, Load};
use crate::sys;
use crate::target::{Form, Target, connect, request, server_binary};

/// `llmsim-perf isolation`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams in one step that must not notice. So many that the client sleeps between steps: one
    /// that polls would leave the disturber, in the idle class, no time at all.
    #[arg(long, default_value_t = 200)]
    streams: usize,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 150)]
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

/// What somebody else does, and how long they rest between.
struct Case {
    name: &'static str,
    rest: Duration,
    to: To,
    act: fn(SocketAddr) -> io::Result<()>,
}

/// To whom it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    /// The server that serves the streams.
    Server,
    /// A bare loop of `accept()` on the server's processor, which does nothing else: what the kernel
    /// itself takes from the streams, whoever is connected to.
    BareLoop,
}

const CASES: [Case; 7] = [
    Case::of("a prompt of 1 MB", 100, huge_prompt),
    Case::of(STORM_OF_CONNECTIONS, 200, connection_storm),
    Case { to: To::BareLoop, ..Case::of(BARE_STORM, 200, connection_storm) },
    Case::of("a scrape", 100, scrape),
    Case::of("slow readers", 100, slow_readers),
    Case::of("a pipelining client", 50, pipelined),
    Case::of("a burst of 200 cancels", 200, cancels),
];

const STORM_OF_CONNECTIONS: &str = "1,000 connections at once";
const BARE_STORM: &str = "the same, to a bare accept()";

impl Case {
    const fn of(name: &'static str, rest_ms: u64, act: fn(SocketAddr) -> io::Result<()>) -> Self {
        Self { name, rest: Duration::from_millis(rest_ms), to: To::Server, act }
    }
}

/// What somebody else does to the server, as the table calls it, and how the table calls the same
/// done to a bare loop.
pub(crate) fn cases() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let cases = CASES.iter().filter(|case| case.to == To::Server);
    cases.map(|case| (case.name, (case.name == STORM_OF_CONNECTIONS).then_some(BARE_STORM)))
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(reporter) => reporter.finish("isolation", Keep::asked(args.save)),
        Err(error) => {
            eprintln!("llmsim-perf isolation: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<Reporter> {
    sys::raise_open_files();
    let mut reporter = Reporter::new("Isolation of streams from other clients");
    let title = format!(
        "{} streams in one step of {} ms, {} tokens each, with and without somebody else; median \
         of {} runs in turns",
        args.streams, args.step_ms, args.tokens, args.rounds
    );
    let columns = [
        "somebody else does",
        "times",
        "p50 us",
        "p90 us",
        "p99 us",
        "max us",
        "p50 alone",
        "p90 alone",
        "p99 alone",
        "p99 more, us",
    ];
    let mut table = Table::new(title, &columns);
    for case in &CASES {
        let (mut alone, mut disturbed, mut times) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.rounds {
            alone.push(one(args, |_| ())?);
            let acts = Arc::new(Acts::default());
            let told = Arc::clone(&acts);
            disturbed.push(one(args, move |address| Disturber::start(case, address, told))?);
            times = acts.done.load(Ordering::Relaxed);
            if times == 0 || acts.gave_up.load(Ordering::Relaxed) {
                // Streams that nobody disturbs to the end would be found undisturbed.
                return Err(io::Error::other(format!("{}: not all the time", case.name)));
            }
        }
        let [alone, disturbed] = [&alone, &disturbed].map(|runs| Figures::median(runs));
        let us = |ns: u64| ns as f64 / 1e3;
        table.row(vec![
            case.name.into(),
            times.into(),
            Cell::us(disturbed.p50),
            Cell::us(disturbed.p90),
            Cell::us(disturbed.p99),
            Cell::us(disturbed.max),
            Cell::us(alone.p50),
            Cell::us(alone.p90),
            Cell::us(alone.p99),
            (us(disturbed.p99) - us(alone.p99)).round().into(),
        ]);
    }
    reporter.table(table);
    Ok(reporter)
}

fn one<T>(args: &Args, beside: impl FnOnce(SocketAddr) -> T) -> io::Result<Figures> {
    let mut yml = lag::models_yml(args.step_ms);
    yml.push_str(
        "  - name: other
    context_length: 1048576
    engine: scheduler
    hardware: even
    weights: { gib: 0.001 }
    kv_cache: { bytes_per_token: 1024, enable_prefix_caching: true }
    scheduler: { max_batch_tokens: 2097152, max_num_sequences: 4096 }
    latency: { step_overhead_ms: 20 }
  - name: fast
    context_length: 131072
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 1000000, decode_tokens_per_second: 2000 }
",
    );
    let target = Target::start(&args.server, &yml, &[])?;
    let load = Load::in_step(args.streams, args.tokens, args.step_ms);
    Ok(sample::of_server(&target, "lag", load, beside)?.0)
}

/// What a disturber has done.
#[derive(Default)]
struct Acts {
    done: AtomicU64,
    gave_up: AtomicBool,
}

/// Does it again and again until dropped.
struct Disturber {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Disturber {
    fn start(case: &'static Case, address: SocketAddr, acts: Arc<Acts>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let give_up = |error: io::Error| {
                eprintln!("{}: {error}", case.name);
                acts.gave_up.store(true, Ordering::Relaxed);
            };
            let address = match case.to {
                To::Server => address,
                To::BareLoop => match bare_accept() {
                    Ok(address) => address,
                    Err(error) => return give_up(error),
                },
            };
            sys::pin(sample::CLIENT_CPU);
            sys::only_when_idle();
            // Not into the steps in which the batch still fills.
            std::thread::sleep(Duration::from_millis(300));
            while !stopped.load(Ordering::Relaxed) {
                match (case.act)(address) {
                    Ok(()) => acts.done.fetch_add(1, Ordering::Relaxed),
                    Err(error) => return give_up(error),
                };
                std::thread::sleep(case.rest);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Disturber {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ask(socket: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(request)?;
    let mut answer = [0; 4096];
    let got = socket.read(&mut answer)?;
    if answer[..got].starts_with(b"HTTP/1.1 200") {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&answer[..got]).into_owned()))
}

const PATH: &str = "/v1/chat/completions";

fn huge_prompt(address: SocketAddr) -> io::Result<()> {
    let content = "The quick brown fox jumps over the lazy dog. ".repeat(1_000_000 / 45);
    ask(&mut connect(address)?, &request(PATH, "other", &content, 1, Form::Whole))
}

const STORM: usize = 1_000;

fn connection_storm(address: SocketAddr) -> io::Result<()> {
    let all: io::Result<Vec<TcpStream>> = (0..STORM).map(|_| connect(address)).collect();
    drop(all?);
    Ok(())
}

/// A loop that accepts connections on the server's processor, and closes them when a storm of them
/// is over; it ends with the process.
fn bare_accept() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    sys::lengthen_backlog(&listener)?;
    std::thread::spawn(move || {
        sys::pin(sample::SERVER_CPU);
        let mut open = Vec::new();
        while let Ok((socket, _)) = listener.accept() {
            open.push(socket);
            if open.len() == STORM {
                open.clear();
            }
        }
    });
    Ok(address)
}

fn scrape(address: SocketAddr) -> io::Result<()> {
    ask(&mut connect(address)?, b"GET /metrics HTTP/1.1\r\nhost: perf\r\n\r\n")
}

/// Opens `count` connections and sends `request` on each.
fn open(address: SocketAddr, count: usize, request: &[u8]) -> io::Result<Vec<TcpStream>> {
    let sent = |_| {
        let mut socket = connect(address)?;
        socket.write_all(request)?;
        Ok(socket)
    };
    (0..count).map(sent).collect()
}

/// Eight streams of which nothing is read until the kernel takes no more.
fn slow_readers(address: SocketAddr) -> io::Result<()> {
    let request = request(PATH, "fast", "Hello", 100_000, Form::Stream);
    let sockets = open(address, 8, &request)?;
    std::thread::sleep(Duration::from_millis(1_000));
    drop(sockets);
    Ok(())
}

/// Two hundred requests in one write, and all their answers.
fn pipelined(address: SocketAddr) -> io::Result<()> {
    let mut socket = connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(&b"GET /v1/models HTTP/1.1\r\nhost: perf\r\n\r\n".repeat(200))?;
    socket.shutdown(Shutdown::Write)?;
    let mut answers = Vec::new();
    socket.read_to_end(&mut answers)?;
    let count = answers.windows(12).filter(|window| *window == b"HTTP/1.1 200").count();
    if count == 200 { Ok(()) } else { Err(io::Error::other(format!("{count} answers of 200"))) }
}

/// Two hundred streams that are broken off together.
fn cancels(address: SocketAddr) -> io::Result<()> {
    let request = request(PATH, "other", "Hello", 1_000, Form::Stream);
    let sockets = open(address, 200, &request)?;
    std::thread::sleep(Duration::from_millis(100));
    drop(sockets);
    Ok(())
}
