//! A deterministic, GPU-free stand-in for an OpenAI-compatible LLM server.

pub mod args;
pub mod commands;

use std::process::ExitCode;

/// The program.
pub fn main() -> ExitCode {
    match commands::run(args::parse()) {
        Ok(code) => code,
        Err(_settings) => ExitCode::FAILURE,
    }
}
