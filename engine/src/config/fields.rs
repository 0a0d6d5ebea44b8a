//! Mappings, read key by key.
//!
//! [`Fields`] hands out the values of a mapping by name, remembers which names were asked for, and
//! reports all others when it is closed. The invariant: a key is either asked for or reported.

use std::ops::RangeInclusive;
use std::rc::Rc;

use super::problem::{Hint, Report, nearest};
use super::tree::{Entry, Kind, Place};
use super::value::{Placed, Range, Value};

impl Value {
    /// A mapping with fixed keys.
    pub(super) fn fields(&self, report: &mut Report<'_>) -> Option<Fields> {
        let entries = self.entries(report)?;
        Some(Fields {
            at: self.at(),
            path: self.path.clone(),
            entries,
            asked: Vec::new(),
            aliases: Vec::new(),
        })
    }

    /// A mapping whose keys the user chooses.
    pub(super) fn entries(&self, report: &mut Report<'_>) -> Option<Vec<Field>> {
        let Kind::Mapping(entries) = &self.node.kind else {
            // `name:a` is a text for YAML.
            let hint = self.scalar().and_then(|scalar| {
                let (key, value) = scalar.text.split_once(':')?;
                let named =
                    !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
                named.then(|| format!("write `{key}: {value}`, with a space after the colon"))
            });
            self.not(report, "a mapping (`key: value` lines)", Hint::maybe(hint));
            return None;
        };
        let field = |entry: &Entry| {
            let path = join(&self.path, &entry.key);
            let value = Value { node: Rc::clone(&entry.value), path };
            Field { key: entry.key.clone(), key_at: entry.key_at, value, taken: false }
        };
        Some(entries.iter().map(field).collect())
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// A key and its value.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) key: String,
    pub(super) key_at: Place,
    pub(super) value: Value,
    taken: bool,
}

/// A mapping with fixed keys, being read.
#[derive(Debug)]
pub(super) struct Fields {
    pub(super) at: Place,
    pub(super) path: String,
    entries: Vec<Field>,
    asked: Vec<&'static str>,
    /// Other names of what was asked for.
    aliases: Vec<&'static str>,
}

impl Fields {
    /// Whether there is a value of that name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|field| field.key == name && !field.value.is_null())
    }

    /// The value of `name`, or of the first of `aliases` that is there; nothing and `null` count as
    /// not there. Two of the names at once are reported.
    pub(super) fn take(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
    ) -> Option<Value> {
        self.asked.push(name);
        self.aliases.extend(aliases);
        let mut found: Option<(String, Value)> = None;
        for entry in &mut self.entries {
            let known = same_key(&entry.key, name)
                || aliases.iter().any(|alias| same_key(&entry.key, alias));
            if !known {
                continue;
            }
            entry.taken = true;
            match &found {
                None => found = Some((entry.key.clone(), entry.value.clone())),
                Some((first, _)) => {
                    let message =
                        format!("`{}` and `{first}` are two names of one setting", entry.key);
                    report.add(
                        entry.key_at,
                        &entry.value.path,
                        message,
                        Hint::new("keep one of them"),
                    );
                }
            }
        }
        found.map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// Like [`take`](Self::take), but its absence is reported.
    pub(super) fn require(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
        hint: Hint,
    ) -> Option<Value> {
        let value = self.take(report, name, aliases);
        if value.is_none() {
            let written = self.entries.iter().find(|entry| same_key(&entry.key, name));
            let (at, path) = match written {
                Some(entry) => (entry.key_at, entry.value.path.clone()),
                None => (self.at, self.path.clone()),
            };
            let what = if written.is_some() { "is empty" } else { "is missing" };
            report.add(at, &path, format!("`{name}` {what}"), hint);
        }
        value
    }

    /// [`take`](Self::take), as a whole number in `range`.
    pub(super) fn whole(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
        range: RangeInclusive<u64>,
    ) -> Option<Placed<u64>> {
        self.take(report, name, aliases)?.whole(report, range)
    }

    /// [`take`](Self::take), as a number in `range`.
    pub(super) fn number(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
        range: Range,
    ) -> Option<Placed<f64>> {
        self.take(report, name, aliases)?.number(report, range)
    }

    /// [`take`](Self::take), as a text with something in it.
    pub(super) fn name(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
    ) -> Option<Placed<String>> {
        self.take(report, name, aliases)?.name(report)
    }

    /// [`take`](Self::take), as one of `allowed`.
    pub(super) fn one_of(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
        aliases: &[&'static str],
        allowed: &'static [&'static str],
    ) -> Option<Placed<&'static str>> {
        self.take(report, name, aliases)?.one_of(report, allowed)
    }

    /// [`take`](Self::take), as a section of its own.
    pub(super) fn section(
        &mut self,
        report: &mut Report<'_>,
        name: &'static str,
    ) -> Option<Fields> {
        self.take(report, name, &[])?.fields(report)
    }

    /// Leaves the keys alone of which `whether` holds.
    pub(super) fn ignore(&mut self, whether: impl Fn(&str) -> bool) {
        for entry in &mut self.entries {
            entry.taken |= whether(&entry.key);
        }
    }

    /// Reports the keys that nobody asked for. `elsewhere` says of a key where it belongs, if not
    /// here.
    pub(super) fn close(
        self,
        report: &mut Report<'_>,
        elsewhere: impl Fn(&str) -> Option<&'static str>,
    ) {
        #[cfg(test)]
        report.asked.push((self.path.clone(), [&self.asked[..], &self.aliases].concat()));
        for entry in self.entries.iter().filter(|entry| !entry.taken) {
            let hint = match elsewhere(&entry.key) {
                Some(place) => Hint::new(format!("`{}` belongs {place}", entry.key)),
                None if !report.is_read() => Hint::NONE,
                None => {
                    let all = self.asked.iter().chain(&self.aliases).copied();
                    match nearest(&entry.key, all) {
                        Some(near) => Hint::new(format!("did you mean `{near}`?")),
                        None if self.asked.len() > MOST_LISTED => {
                            Hint::new("docs/schema.md lists all keys")
                        }
                        None => Hint::one_of(&entry.key, self.asked.iter().copied()),
                    }
                }
            };
            let message = format!("unknown key `{}`", entry.key);
            report.add(entry.key_at, &self.path, message, hint);
        }
    }
}

/// More names than this help nobody on one line.
const MOST_LISTED: usize = 16;

/// vLLM writes its options with underscores in Python and with hyphens on the command line and in
/// its own YAML files; both are one key here.
fn same_key(typed: &str, name: &str) -> bool {
    typed.len() == name.len()
        && typed.bytes().zip(name.bytes()).all(|(t, n)| t == n || (t == b'-' && n == b'_'))
}
