//! A load generator for OpenAI-compatible servers that never hides queueing and prints its own
//! error.
//!
//! The way of a run: `args` (what was typed) → `settings` (what it means) → `plan` (when to send,
//! pure) and `workload` (what to send) → `run` over `target::http` (one thread, monoio) → `record`
//! (what happened, as instants) → `result` (figures, pure) and `compare` (the server's side) →
//! `report`.

pub mod args;
pub mod bench;
pub mod chunk;
pub mod clock;
pub mod combinations;
pub mod compare;
pub mod fetch;
pub mod health;
pub mod http;
pub mod local;
pub mod os;
pub mod pacer;
pub mod plan;
pub mod progress;
pub mod record;
pub mod report;
pub mod result;
pub mod run;
pub mod runtime;
pub mod scrape;
pub mod selftest;
pub mod settings;
mod shell_help;
pub mod target;
pub mod workload;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// The program: parses the command line, runs, and tells how it went. 0: measured; 1: every request
/// failed; 2: not understood or impossible; 130: stopped by the user after saving what was
/// finished.
pub fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match &args.command {
        None => bench::run(&args.bench),
        Some(Command::Selftest(args)) => selftest::main(args),
        Some(Command::Reference(args)) => selftest::serve(args),
        Some(Command::Completions { shell }) => print(shell_help::completions(*shell)),
        Some(Command::Man) => shell_help::man().and_then(print),
    };
    match outcome {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("error: {problem}");
            ExitCode::from(2)
        }
    }
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: String) -> Result<ExitCode, String> {
    use std::io::Write as _;
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write: {why}"))
        }
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}
