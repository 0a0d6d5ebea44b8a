//! The two configuration files: from text to what it means.
//!
//! The steps are `tree` (YAML with positions), `value` and `fields` (typed access), `raw` and `rules`
//! (each key as typed), `resolve`, `scheduler` and `sizes` (what the keys mean together) and, for
//! whatever went wrong on the way, [`problem`](Problems). No file is read here: the texts come in as [`Source`]s. The invariant: a
//! [`Config`] that exists is valid, and nothing behind this module checks a setting again.

mod fields;
mod problem;
mod raw;
mod resolve;
mod rules;
mod scalar;
mod scheduler;
mod sizes;
mod tree;
mod value;

pub use problem::{Problem, Problems};
pub use resolve::{Basis, BlocksFrom, Memory, ModelSpec, Tokenizer};
pub use tree::{MAX_BYTES, Place};

use problem::Report;
use value::Value;

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
}

/// Reads a file that a configuration file names (`hf_config:`), for [`load_with`].
pub type ReadFile<'a> = &'a mut dyn FnMut(&str) -> Result<String, String>;

/// What the two files mean together.
///
/// # Errors
/// All that is wrong with either file, at once.
pub fn load(models: &Source, responses: &Source) -> Result<Config, Problems> {
    let mut none = |_: &str| Err("files named by a configuration are not read here".to_owned());
    load_with(models, responses, &mut none)
}

/// Like [`load`], with a way to read the files that `hf_config:` names.
///
/// # Errors
/// All that is wrong with either file, at once.
pub fn load_with(
    models: &Source,
    responses: &Source,
    read_file: ReadFile<'_>,
) -> Result<Config, Problems> {
    let mut report = Report::on(models);
    let specs = match root(models, &mut report) {
        Some(root) => {
            let typed = raw::Models::read(&root, &mut report);
            resolve::models(&typed, &mut report, read_file)
        }
        None => Vec::new(),
    };
    let model_problems = report.finish();

    let mut report = Report::on(responses);
    let rules = root(responses, &mut report).and_then(|root| rules::responses(&root, &mut report));
    let rule_problems = report.finish();

    match (problem::collect([model_problems, rule_problems]), rules) {
        (Some(problems), _) => Err(problems),
        (None, Some(responses)) => Ok(Config { models: specs, responses }),
        (None, None) => unreachable!("what could not be read has been reported"),
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
