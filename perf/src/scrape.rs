//! Whether being scraped costs the streams anything: token lag of many streams with a client that
//! asks for `/metrics` ten times a second, beside the same without, in turns.
//!
//! Predicted before the first run: a scrape renders for about 2 ms on a helper thread of low
//! priority; on two cores that are busy anyway it takes 2 % of one, and p99 moves less than from run
//! to run.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::lag::{Run, server_run};
use crate::sample::Figures;
use crate::sys;
use crate::target::server_binary;

/// `llmsim-perf scrape`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams that are released together.
    #[arg(long, default_value_t = 1000)]
    streams: usize,
    /// Output tokens of each stream.
    #[arg(long, default_value_t = 150)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// Scrapes per second.
    #[arg(long, default_value_t = 10)]
    rate: u32,
    /// Runs of each kind, in turns; the table shows the median over the runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: std::path::PathBuf,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("llmsim-perf scrape: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let Args { streams, tokens, step_ms, .. } = *args;
    let run = Run { server: &args.server, streams, tokens, step_ms };
    let (mut alone, mut scraped) = (Vec::new(), Vec::new());
    let scrapes = Arc::new(AtomicUsize::new(0));
    let steal = sys::steal_ticks();
    for _ in 0..args.rounds {
        alone.push(server_run(run, |_| ())?.0);
        let rate = args.rate;
        let counter = Arc::clone(&scrapes);
        scraped.push(server_run(run, |address| Scraper::start(address, rate, counter))?.0);
    }
    println!(
        "lag at the client, {streams} streams in one step of {step_ms} ms, {tokens} tokens each, \
         median of {} runs in turns; microseconds",
        args.rounds
    );
    println!("{:<24} {:>8} {:>8} {:>8} {:>8} {:>9}", "", "p50", "p90", "p99", "max", "cpu/frame");
    let (without, with) = (Figures::median(&alone), Figures::median(&scraped));
    let row = |name: &str, f: Figures| {
        let us = |ns: u64| ns as f64 / 1e3;
        println!(
            "{name:<24} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.2}",
            us(f.p50),
            us(f.p90),
            us(f.p99),
            us(f.max),
            us(f.cpu_per_frame)
        );
    };
    row("not scraped", without);
    row(&format!("{} scrapes a second", args.rate), with);
    let ratio = |of: fn(Figures) -> u64| of(with) as f64 / of(without).max(1) as f64;
    println!(
        "{:<24} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>9.2}   {} scrapes answered, steal {} ticks",
        "ratio",
        ratio(|f| f.p50),
        ratio(|f| f.p90),
        ratio(|f| f.p99),
        ratio(|f| f.max),
        ratio(|f| f.cpu_per_frame),
        scrapes.load(Ordering::Relaxed),
        sys::steal_ticks() - steal,
    );
    Ok(())
}

/// Asks for `/metrics` again and again until it is dropped.
pub(crate) struct Scraper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scraper {
    pub(crate) fn start(address: SocketAddr, rate: u32, scrapes: Arc<AtomicUsize>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if scrape(address).is_ok() {
                    scrapes.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_secs(1) / rate.max(1));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn scrape(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: perf\r\nconnection: close\r\n\r\n")?;
    let mut text = Vec::new();
    socket.read_to_end(&mut text)?;
    match text.windows(20).any(|window| window == b"llm_sim_fidelity_ok ") {
        true => Ok(()),
        false => Err(io::Error::other("that was no scrape")),
    }
}
