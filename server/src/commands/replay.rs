//! `replay`: what a simulated GPU was told in a live run, told to its engine again without a clock.
//!
//! The invariant: with the configuration of the live run, the events are those of the live run,
//! byte for byte.

use std::path::{Path, PathBuf};

use llmsim_engine::config::{Config, ModelSpec};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::journal;

use crate::args::Files;
use crate::journal::percent_encoded;

/// What to replay.
#[derive(Debug)]
pub struct Options {
    /// The configuration of the live run.
    pub files: Files,
    /// The journal of one simulated GPU.
    pub journal: PathBuf,
    /// `--model`: whose it was, if neither the configuration nor the file's name tells.
    pub model: Option<String>,
    /// `--events`: the event log to compare with.
    pub events: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug)]
pub enum Replayed {
    /// The event log, or that it is the expected one.
    Said(String),
    /// Where it differs from the expected one.
    Differs(String),
}

/// Replays a journal.
///
/// # Errors
/// What is wrong with the configuration or the files, as the whole message.
pub fn run(options: &Options) -> Result<Replayed, String> {
    let config = super::load(&options.files)?;
    let model = model(&config, options)?;
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|why| format!("{}: cannot be read: {why}", path.display()))
    };
    let inputs = read(&options.journal)?;
    let events = journal::replay(&inputs, &mut model.engine.build())
        .map_err(|bad| format!("{}: {bad}", options.journal.display()))?;
    let Some(path) = &options.events else { return Ok(Replayed::Said(events)) };
    let expected = read(path)?;
    if events == expected {
        let count = events.lines().count();
        return Ok(Replayed::Said(format!("{count} events, all as in {}\n", path.display())));
    }
    let same = events.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count();
    let line = |log: &str| log.lines().nth(same).unwrap_or("(the end)").to_owned();
    Ok(Replayed::Differs(format!(
        "{}:{}: the replay differs\n  in the file: {}\n  replayed:    {}\nIs this the configuration \
         of the live run?",
        path.display(),
        same + 1,
        line(&expected),
        line(&events),
    )))
}

/// The model that is named; else the only one with a timeline, else the one in the file's name.
fn model<'a>(config: &'a Config, options: &Options) -> Result<&'a ModelSpec, String> {
    let timed = || config.models.iter().filter(|model| model.engine != EngineSpec::Instant);
    let names = || timed().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ");
    if let Some(name) = &options.model {
        return timed().find(|model| model.name == *name).ok_or_else(|| {
            format!("--model {name}: no such model with a timeline; there are: {}", names())
        });
    }
    if let (Some(only), None) = (timed().next(), timed().nth(1)) {
        return Ok(only);
    }
    // FILE.MODEL.REPLICA
    let file = options.journal.file_name().unwrap_or_default().to_string_lossy();
    let stem = file.rsplit_once('.').map_or("", |(stem, _)| stem);
    timed()
        .filter(|model| stem.ends_with(&format!(".{}", percent_encoded(&model.name))))
        .max_by_key(|model| model.name.len())
        .ok_or_else(|| {
            format!("{file}: whose journal is this? Name its model with --model: {}", names())
        })
}
