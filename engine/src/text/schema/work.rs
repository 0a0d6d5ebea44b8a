//! How much is done for one schema before it is given up.
//!
//! A few lines of schema can ask for more than any machine has time for: thirty `allOf` of two
//! references each are a billion checks. A schema is a stranger's, and is read on a thread that has
//! streams to serve. So drawing and judging pay for each step here, in units of very roughly 10 ns.
//! The one invariant: when nothing is left, nothing counts as satisfied any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use regex_automata::meta::Regex;

use super::pattern;

/// What one schema may cost; some 20 ms.
const BUDGET: usize = 2_000_000;

/// What looking at one schema for one value costs.
pub(super) const VISIT: usize = 10;

/// What searching a text with a pattern that is compiled costs, beside the text's length.
const SEARCH: usize = 50;

#[derive(Clone, Debug)]
pub(super) struct Work {
    left: Cell<usize>,
    /// Each pattern is compiled once; `None` is one that is not known here.
    patterns: RefCell<BTreeMap<String, Option<Regex>>>,
}

impl Work {
    pub(super) fn new() -> Self {
        Self { left: Cell::new(BUDGET), patterns: RefCell::default() }
    }

    /// The budget of another value.
    pub(super) fn refill(&self) {
        self.left.set(BUDGET);
    }

    /// Pays for a step; `false` if it cannot be afforded, and then nothing can be any more.
    pub(super) fn spend(&self, units: usize) -> bool {
        let left = self.left.get().saturating_sub(units);
        self.left.set(left);
        left > 0
    }

    pub(super) fn is_over(&self) -> bool {
        self.left.get() == 0
    }

    /// Whether a match for `pattern` is in `text`; never for what is no pattern here.
    pub(super) fn finds(&self, pattern: &str, text: &str) -> bool {
        self.with_pattern(pattern, |regex| {
            self.spend(SEARCH + text.len()) && regex.is_some_and(|regex| regex.is_match(text))
        })
    }

    /// Whether it is a pattern that can be searched for here.
    pub(super) fn knows(&self, pattern: &str) -> bool {
        self.with_pattern(pattern, |regex| regex.is_some())
    }

    fn with_pattern(&self, pattern: &str, then: impl FnOnce(Option<&Regex>) -> bool) -> bool {
        if self.is_over() {
            return false;
        }
        if let Some(known) = self.patterns.borrow().get(pattern) {
            return then(known.as_ref());
        }
        let regex = pattern::compile(pattern);
        // Compiling takes time with the size of what comes out, or of what was too large.
        let size = regex.as_ref().map_or(pattern::MAX_BYTES, Regex::memory_usage);
        self.spend(size / 8 + pattern.len());
        let holds = then(regex.as_ref());
        self.patterns.borrow_mut().insert(pattern.to_owned(), regex);
        holds
    }
}

#[cfg(test)]
mod tests {
    use crate::seed::Seed;
    use crate::text::schema::Document;

    /// Each is a page of schema that means more checks than could be made in a lifetime. They are
    /// refused, or answered, before the test's patience ends; none is looped over.
    #[test]
    fn a_schema_that_asks_for_endless_work_is_given_up() {
        let doubled = |link: &dyn Fn(usize) -> String, last: &str| {
            let links: Vec<String> =
                (0..40).map(|at| format!(r#""d{at}":{}"#, link(at + 1))).collect();
            format!(r##"{{"$defs":{{{},"d40":{last}}},"$ref":"#/$defs/d0"}}"##, links.join(","))
        };
        let twice = |keyword: &'static str| {
            move |to: usize| {
                let link = format!(r##"{{"$ref":"#/$defs/d{to}"}}"##);
                format!(r#"{{"{keyword}":[{link},{link}]}}"#)
            }
        };
        let held = doubled(&twice("allOf"), r#"{"type":"string"}"#);
        let never = doubled(&twice("anyOf"), r#"{"not":{}}"#);
        let either = doubled(&twice("oneOf"), r#"{"type":"string"}"#);
        let listed: Vec<String> = (0..100_000).map(|at| at.to_string()).collect();
        let listed = format!(r#"{{"enum":[{}]}}"#, listed.join(","));
        let heavy: Vec<String> =
            (0..5_000).map(|at| format!(r#""^\\\\p{{L}}{{50}}{at}$":{{"type":"null"}}"#)).collect();
        let heavy =
            format!(r#"{{"patternProperties":{{{}}}}}"#, heavy.join(",")).replace("\\\\", "\\");
        for schema in [&held, &never, &either, &listed, &heavy] {
            let Ok(document) = Document::parse(schema) else { continue };
            if let Ok(value) = document.generate(Seed::new(1)) {
                assert!(document.accepts(&value), "{value}");
            }
        }
        // What cannot be afforded is not taken for satisfied, under `not` neither.
        let not =
            Document::parse(&format!(r#"{{"not":{held}}}"#).replace("#/$defs", "#/not/$defs"));
        assert!(not.unwrap().generate(Seed::new(1)).is_err());
    }
}
