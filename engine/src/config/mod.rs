//! The two configuration files: from text to what it means.
//!
//! The steps are `tree` (YAML with positions), `value` and `fields` (typed access), `raw` and
//! `rules` (each key as typed), `resolve`, `scheduler` and `sizes` (what the keys mean together)
//! and, for whatever went wrong on the way, [`problem`](Problems). No file is read here: the texts
//! come in as [`Source`]s. The invariant: a [`Config`] that exists is valid, and nothing behind
//! this module checks a setting again.

mod faults;
mod fields;
mod fitted;
mod problem;
mod raw;
mod reasoning;
mod resolve;
mod rules;
mod scalar;
mod scheduler;
#[cfg(test)]
mod schema_test;
mod sizes;
mod tokenizer;
mod tree;
mod value;

pub use faults::gpus;
pub use fitted::{with_constants, with_step_residual};
pub use problem::{Problem, Problems};
pub use resolve::{Basis, BlocksFrom, Memory, ModelSpec};
pub use tree::{MAX_BYTES, Place};

use problem::Report;
use value::Value;

use crate::faults::Settings;
use crate::text::responses::Responses;

/// A configuration file's text, and what to call it in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// As the user named it: a path or `builtin:NAME`.
    pub name: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// A text under a name.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }
}

/// Both files, valid.
#[derive(Debug)]
pub struct Config {
    /// The models in the order of the file; `ModelSpec::id` is the index.
    pub models: Vec<ModelSpec>,
    /// What they say.
    pub responses: Responses,
    /// What goes wrong on purpose.
    pub faults: Settings,
}

/// Reads a file that a configuration file names (`hf_config:`, `tokenizer:`), for [`load_with`].
pub type ReadFile<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

/// What the two files mean together.
///
/// # Errors
/// All that is wrong with either file, at once.
pub fn load(models: &Source, responses: &Source) -> Result<Config, Problems> {
    let mut none = |_: &str| Err("files named by a configuration are not read here".to_owned());
    load_with(models, responses, &mut none)
}

/// Like [`load`], with a way to read the files that `hf_config:` and `tokenizer:` name.
///
/// # Errors
/// All that is wrong with either file, at once.
pub fn load_with(
    models: &Source,
    responses: &Source,
    read_file: ReadFile<'_>,
) -> Result<Config, Problems> {
    let mut report = Report::on(models);
    let (specs, faults) = match root(models, &mut report) {
        Some(root) => {
            let mut typed = raw::Models::read(&root, &mut report);
            let specs = resolve::models(&typed, &mut report, read_file);
            let faults = std::mem::take(&mut typed.faults).resolve(&specs, &mut report);
            (specs, faults)
        }
        None => Default::default(),
    };
    let model_problems = report.finish();

    let mut report = Report::on(responses);
    let rules = root(responses, &mut report).and_then(|root| rules::responses(&root, &mut report));
    let rule_problems = report.finish();

    match (problem::collect([model_problems, rule_problems]), rules) {
        (Some(problems), _) => Err(problems),
        (None, Some(responses)) => {
            specs.iter().for_each(|spec| responses.cut_for(&spec.tokenizer));
            Ok(Config { models: specs, responses, faults })
        }
        (None, None) => unreachable!("what could not be read has been reported"),
    }
}

/// What a faults file means for these models.
///
/// # Errors
/// All that is wrong with it, at once.
pub fn load_faults(source: &Source, models: &[ModelSpec]) -> Result<Settings, Problems> {
    let mut report = Report::on(source);
    let typed = root(source, &mut report).map(|root| faults::Faults::read(&root, &mut report));
    let settings = typed.unwrap_or_default().resolve(models, &mut report);
    match problem::collect([report.finish(), Vec::new()]) {
        Some(problems) => Err(problems),
        None => Ok(settings),
    }
}

/// The document of a file, if it is one.
fn root(source: &Source, report: &mut Report<'_>) -> Option<Value> {
    let (root, faults) = tree::parse(&source.text);
    for fault in faults {
        report.add(fault.at, "", fault.message, problem::Hint::maybe(fault.hint));
    }
    root.map(Value::root)
}
