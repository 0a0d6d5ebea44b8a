//! `tokenizer:` of a model: `regex`, or the `tokenizer.json` of a real one.
//!
//! Not what it does: that is [`crate::text::model_tokenizer`]'s. The invariant: a file is read
//! once, however many models name it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::text::model_tokenizer::{ModelTokenizer, Tokenizer};

use super::ReadFile;
use super::fields::Fields;
use super::problem::{Hint, Report};
use super::value::Placed;

/// The file that a model names; nothing for `regex`.
pub(super) fn file(fields: &mut Fields, report: &mut Report<'_>) -> Option<Placed<String>> {
    let value = fields.take(report, "tokenizer", &[])?;
    if value.is_mapping() {
        let mut section = value.fields(report)?;
        let hint = Hint::new("write `tokenizer: { file: tokenizer.json }`");
        let file = section.require(report, "file", &[], hint);
        section.close(report, |_| None);
        return file?.name(report);
    }
    if let Some(scalar) = value.scalar().filter(|scalar| scalar.text.ends_with(".json")) {
        let hint = format!("write `tokenizer: {{ file: {} }}`", scalar.text);
        value.not(report, "`regex` or a mapping", Hint::new(hint));
        return None;
    }
    value.one_of(report, &["regex"]);
    None
}

/// All tokenizers that models name.
pub(super) struct Tokenizers {
    /// The file that names them.
    models: String,
    known: BTreeMap<String, Option<Tokenizer>>,
}

impl Tokenizers {
    pub(super) fn beside(models: &str) -> Self {
        Self { models: models.to_owned(), known: BTreeMap::new() }
    }

    /// The tokenizer in `file`, whose path starts where the file that names it is.
    pub(super) fn find(
        &mut self,
        file: Option<&Placed<String>>,
        report: &mut Report<'_>,
        read_file: ReadFile<'_>,
    ) -> Tokenizer {
        let Some(file) = file else { return Tokenizer::Regex };
        let path = self.path(&file.value);
        if let Some(known) = self.known.get(&path) {
            return known.clone().unwrap_or_default();
        }
        let read = match read_file(&path) {
            Ok(json) => ModelTokenizer::from_json(json.as_bytes())
                .map(|model| Tokenizer::Model(Arc::new(model)))
                .map_err(|why| {
                    let hint = "it is the file `tokenizer.json` of a model's repository on Hugging \
                                Face, not tokenizer_config.json or tokenizer.model";
                    (format!("{path}: {why}"), hint)
                }),
            Err(why) => {
                Err((why, "a relative path starts where this file is, not where the server runs"))
            }
        };
        let read =
            read.map_err(|(why, hint)| report.add(file.at, &file.path, why, Hint::new(hint)));
        self.known.insert(path, read.clone().ok());
        read.unwrap_or_default()
    }

    fn path(&self, file: &str) -> String {
        // Of a built-in file there is no directory; `join` leaves an absolute path alone.
        let directory = Path::new(&self.models).parent().unwrap_or(Path::new(""));
        if self.models.starts_with("builtin:") {
            file.to_owned()
        } else {
            directory.join(file).to_string_lossy().into_owned()
        }
    }
}
