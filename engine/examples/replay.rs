//! Prints our trace of a scenario in the format of the recorded ones:
//! `cargo run --release -p llmsim-engine --example replay -- SCENARIO.json`.

use std::io::Write;
use std::process::ExitCode;

use llmsim_engine::replay::{Scenario, trace};

#[expect(clippy::disallowed_methods, reason = "an example is a shell around the pure core")]
fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: replay SCENARIO.json");
        return ExitCode::from(2);
    };
    let lines = std::fs::read_to_string(&path)
        .map_err(|error| error.to_string())
        .and_then(|text| Scenario::parse(&text))
        .and_then(|scenario| trace(&scenario));
    match lines {
        Ok(lines) => {
            let text = lines.join("\n") + "\n";
            // A reader that stops early (`| head`) is no error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("replay: {path}: {error}");
            ExitCode::from(2)
        }
    }
}
