//! Token lag at the kernel border: the server against a bare loop of `send()`.

use std::process::ExitCode;

/// `llmsim-perf lag`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams that are released together, one run each.
    #[arg(long, value_delimiter = ',', default_values_t = [25, 256, 1000])]
    streams: Vec<usize>,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    for streams in &args.streams {
        println!("{streams} streams: not measured yet");
    }
    ExitCode::SUCCESS
}
