//! `simulate`: a list of arrivals through the same engines that serve, in virtual time.

use std::path::PathBuf;

use crate::args::Files;

/// What to simulate.
#[derive(Debug)]
pub struct Options {
    /// The configuration.
    pub files: Files,
    /// JSON lines, one request each; `-` is standard input.
    pub arrivals: PathBuf,
}

/// Runs the arrivals and gives the results as JSON lines.
///
/// # Errors
/// What is wrong with the input, as the whole message.
pub fn run(options: &Options) -> Result<String, String> {
    let _ = super::load(&options.files)?;
    Err("simulate is not built yet".to_owned())
}
