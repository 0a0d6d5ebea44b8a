//! The commands that do not serve: each reads, prints and ends.

pub mod calibrate;
pub mod check;
pub mod presets;
pub mod replay;
pub mod shell_help;
pub mod simulate;

use std::io::Write as _;
use std::process::ExitCode;

use llmsim_engine::config::{self, Config, Problems, Source};
use llmsim_engine::faults::MOST_RULES;

use crate::args::{Command, Files};

/// Exit code for something that the user has to put right.
pub(crate) const MISTAKE: u8 = 2;

/// Does what `command` says, if it is not to serve.
///
/// # Errors
/// Gives the command back if it is to serve.
pub fn run(command: Command) -> Result<ExitCode, Box<crate::args::Settings>> {
    let done = match command {
        Command::Serve(settings) => return Err(settings),
        Command::Check(files) => check::run(&files),
        Command::PrintConfig(name) => print_config(&name),
        Command::PrintSchema(kind) => print_schema(&kind),
        Command::Completions(shell) => Ok(shell_help::completions(shell)),
        Command::Man(topic) => shell_help::man(topic.as_deref()),
        Command::Calibrate(options) => calibrate::run(&options),
        Command::Presets => Ok(presets::run()),
        Command::Simulate(options) => simulate::run(&options),
        Command::Replay(options) => match replay::run(&options) {
            Ok(replay::Replayed::Said(text)) => Ok(text),
            Ok(replay::Replayed::Differs(message)) => {
                eprintln!("llmsimulator: {message}");
                return Ok(ExitCode::FAILURE);
            }
            Err(message) => Err(message),
        },
    };
    Ok(match done {
        Ok(text) => print(&text),
        Err(message) => {
            eprintln!("llmsimulator: {message}");
            ExitCode::from(MISTAKE)
        }
    })
}

/// A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("llmsimulator: cannot write: {error}");
            ExitCode::FAILURE
        }
        Ok(()) | Err(_) => ExitCode::SUCCESS,
    }
}

fn print_config(name: &str) -> Result<String, String> {
    let name = name.strip_prefix("builtin:").unwrap_or(name);
    llmsim_defaults::builtin(name).map(str::to_owned).ok_or_else(|| {
        let all: Vec<_> = llmsim_defaults::names().collect();
        format!("there is no built-in config `{name}`; there are {}", all.join(", "))
    })
}

fn print_schema(kind: &str) -> Result<String, String> {
    llmsim_defaults::schema(kind).map(str::to_owned).ok_or_else(|| {
        let all: Vec<_> = llmsim_defaults::kinds().collect();
        format!("there is no schema of `{kind}` files; there are {}", all.join(", "))
    })
}

/// Reads and validates both files; the error is the whole message.
pub(crate) fn load(files: &Files) -> Result<Config, String> {
    let read = |name: &str| {
        llmsim_defaults::read(name)
            .map(|file| Source::new(file.name, file.text))
            .map_err(|error| error.to_string())
    };
    // Both, so that two mistyped paths are told at once.
    let (models, responses) = match (read(&files.models), read(&files.responses)) {
        (Ok(models), Ok(responses)) => (models, responses),
        (Err(first), Err(second)) => return Err(format!("{first}\nllmsimulator: {second}")),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
    };
    let mut read_file = |path: &str| {
        llmsim_defaults::read(path).map(|file| file.text).map_err(|error| error.to_string())
    };
    let mut config = config::load_with(&models, &responses, &mut read_file)
        .map_err(|problems| told(&problems))?;
    if let Some(file) = &files.faults {
        let faults = config::load_faults(&read(file)?, &config.models)
            .map_err(|problems| told(&problems))?;
        config.faults.merge(faults).map_err(|all| {
            format!(
                "{file}: with the rules of {} there are {all}; the most are {MOST_RULES}. Leave some out: \
                 every request looks at all of them.",
                files.models
            )
        })?;
    }
    Ok(config)
}

fn told(problems: &Problems) -> String {
    let count = problems.iter().count();
    let noun = if count == 1 { "problem" } else { "problems" };
    format!("{count} {noun} in the configuration\n\n{problems}")
}
