//! A deterministic, GPU-free stand-in for an OpenAI-compatible LLM server.
//!
//! The order in which to read the path of a streaming request: `io_thread` takes the connection in,
//! `http::connection` reads one request, `api::chat` decides the words, `connection::generate` submits
//! them, `ring` carries the counts to a GPU thread, `gpu_thread` tells the engine the time, and `stream`
//! turns what happened into frames: `generation` takes it in, `render` words it, `send` hands it over.

mod adapters;
mod api;
pub mod args;
pub mod boot;
mod clock;
pub mod commands;
mod drain;
mod faults;
mod gate;
mod gpu_thread;
mod helper;
mod http;
mod io_thread;
mod journal;
mod lanes;
mod lobby;
pub mod metrics;
mod outbox;
mod ring;
mod send_batch;
mod served;
pub mod step_writer;
mod stored;
mod stream;
mod sys;
mod tally;
pub mod tls;
mod topology;
mod vocabulary;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use llmsim_engine::text::model_tokenizer::catches_panics;

use crate::metrics::Totals;

/// The program.
pub fn main() -> ExitCode {
    // What the reader of a tokenizer.json panics on is caught and told as a problem of the file.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !catches_panics() {
            report(panic);
        }
    }));
    match commands::run(args::parse()) {
        Ok(code) => code,
        Err(settings) => serve(*settings),
    }
}

/// A signal that comes again this soon is still the first. `timeout 60 llmsimulator` sends it to its
/// child and then to its group, and a journal would be lost; nobody asks twice as fast as that.
const ECHO: Duration = Duration::from_millis(250);

/// Serves until a signal ends it: the first lets streams finish, the second stops at once.
fn serve(settings: args::Settings) -> ExitCode {
    // A server that has lost a thread would go on with wrong timing, or with connections that
    // nobody serves. Better that it ends, and says why.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !catches_panics() {
            std::process::exit(101);
        }
    }));
    // Before the first thread, so that all inherit it.
    sys::hold_stop_signals();
    let grace = settings.limits.drain_timeout;
    let server = match boot::Server::start(settings) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("llmsimulator: {error}");
            return ExitCode::from(2);
        }
    };
    for line in server.boot_log() {
        eprintln!("llmsimulator: {line}");
    }
    let first = sys::wait_for_stop_signal();
    let asked = Instant::now();
    eprintln!("llmsimulator: {}, streams may finish for {grace:?}", signal_name(first));
    std::thread::spawn(move || {
        let second = loop {
            let signal = sys::wait_for_stop_signal();
            if asked.elapsed() >= ECHO {
                break signal;
            }
        };
        eprintln!("llmsimulator: {} again, stopping at once", signal_name(second));
        std::process::exit(128 + second);
    });
    let totals = server.stop(grace);
    if totals.cut > 0 {
        eprintln!("llmsimulator: {} answers were cut", totals.cut);
    }
    eprintln!("llmsimulator: {}", last_words(&totals));
    ExitCode::SUCCESS
}

/// What the server did, and how well it kept the timeline.
fn last_words(totals: &Totals) -> String {
    let Totals { finished, tokens, token_lag: lag, .. } = totals;
    if lag.count == 0 {
        return format!("{finished} answers; no tokens were streamed");
    }
    format!(
        "{finished} answers, {tokens} tokens; token lag p50 {:?}, p99 {:?}, max {:?}",
        lag.p50, lag.p99, lag.max
    )
}

fn signal_name(signal: i32) -> &'static str {
    if signal == libc::SIGINT { "interrupt" } else { "SIGTERM" }
}
