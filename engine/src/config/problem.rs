//! What is wrong with a configuration, told so that it can be put right.
//!
//! Every problem says where it is (file, line, column, path in the file), what is wrong, and where
//! possible what to write instead. The invariant: problems are collected, never thrown, so that one
//! run shows all of them.

use std::collections::BTreeSet;
use std::fmt;

use super::Source;
use super::tree::Place;

/// Everything that is wrong with the files of a configuration; at least one problem.
///
/// `Display` prints them all, in the order of the files and lines, each with its source line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name as the user gave it.
    pub file: String,
    /// Where in the file; `None` if it is about the file as a whole.
    pub place: Option<Place>,
    /// Which value, for example `models[1].kv_cache.bytes_per_token`; empty for the whole file.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
    /// The source line of `place`, without its end.
    pub line: String,
}

/// More problems than this are counted, not printed: the rest usually follows from the first ones.
const MOST_PRINTED: usize = 50;

/// The widest excerpt of a source line, in characters.
const EXCERPT: usize = 100;

impl Problems {
    /// All of them, in the order of the files and lines.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    /// Both lists in one, `self`'s first.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

impl std::error::Error for Problems {}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(MOST_PRINTED).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        if self.0.len() > MOST_PRINTED {
            write!(f, "\nand {} more problems", self.0.len() - MOST_PRINTED)?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some(place) = self.place {
            write!(f, "{}:{}:", place.line, place.column)?;
        }
        if !self.path.is_empty() {
            write!(f, " {}:", printable(&self.path))?;
        }
        write!(f, " {}", printable(&self.message))?;
        if let Some(place) = self.place
            && !self.line.trim().is_empty()
        {
            let (excerpt, column) = excerpt(&self.line, place.column as usize);
            let number = place.line.to_string();
            let margin = " ".repeat(number.len());
            write!(f, "\n {number} | {excerpt}\n {margin} | {}^", " ".repeat(column - 1))?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n   -> {}", printable(hint))?;
        }
        Ok(())
    }
}

/// The part of `line` around `column`, and the column in that part, both from 1. Characters that
/// would move the marker or the cursor are replaced.
fn excerpt(line: &str, column: usize) -> (String, usize) {
    let skip = column.saturating_sub(EXCERPT * 2 / 3);
    let shown = line.chars().skip(skip).take(EXCERPT);
    let shown: String = shown.map(|c| if c.is_control() { ' ' } else { c }).collect();
    (shown.trim_end().to_owned(), (column - skip).max(1))
}

/// Messages quote the user's text: on one line, and not endlessly.
fn printable(text: &str) -> String {
    const LONGEST: usize = 400;
    let mut shown: String =
        text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// The problems of all files, if there are any.
pub(super) fn collect(reports: [Vec<Problem>; 2]) -> Option<Problems> {
    let all: Vec<Problem> = reports.into_iter().flatten().collect();
    (!all.is_empty()).then_some(Problems(all))
}

/// Collects the problems of one file.
#[derive(Debug)]
pub(super) struct Report<'a> {
    source: &'a Source,
    problems: Vec<Problem>,
    /// Of all problems, to be looked up.
    paths: BTreeSet<String>,
    /// Which keys were asked for, by section: what the published schema is compared with.
    #[cfg(test)]
    pub(super) asked: Vec<(String, Vec<&'static str>)>,
}

impl<'a> Report<'a> {
    pub(super) fn on(source: &'a Source) -> Self {
        Self {
            source,
            problems: Vec::new(),
            paths: BTreeSet::new(),
            #[cfg(test)]
            asked: Vec::new(),
        }
    }

    /// What the file is called.
    pub(super) fn name(&self) -> &'a str {
        &self.source.name
    }

    /// Notes a problem; one that was already noted (through an alias, say) is not noted again.
    pub(super) fn add(&mut self, at: Place, path: &str, message: impl Into<String>, hint: Hint) {
        let problem = Problem {
            file: self.source.name.clone(),
            place: Some(at),
            path: path.to_owned(),
            message: message.into(),
            hint: hint.0,
            line: String::new(),
        };
        // A file of garbage can have a million of them: compare with the latest only.
        let said =
            self.problems.iter().rev().take(MOST_PRINTED).any(|earlier| {
                earlier.place == problem.place && earlier.message == problem.message
            });
        if !said {
            self.paths.insert(path.to_owned());
            self.problems.push(problem);
        }
    }

    /// Is the next problem one that will be printed? A hint that takes time to find is only worth
    /// it then: a file of garbage has a million unknown keys.
    pub(super) fn is_read(&self) -> bool {
        self.problems.len() < MOST_PRINTED
    }

    /// Has anything been said about the value at `path` or below it?
    pub(super) fn mentions(&self, path: &str) -> bool {
        let below = |start: String| {
            self.paths.range(start.clone()..).next().is_some_and(|next| next.starts_with(&start))
        };
        self.paths.contains(path) || below(format!("{path}.")) || below(format!("{path}["))
    }

    /// All problems, by line, with their source lines filled in.
    pub(super) fn finish(self) -> Vec<Problem> {
        let mut problems = self.problems;
        problems.sort_by_key(|problem| problem.place);
        let mut lines = self.source.text.lines().enumerate().peekable();
        for problem in &mut problems {
            let wanted = problem.place.map_or(0, |place| place.line as usize - 1);
            while lines.next_if(|(number, _)| *number < wanted).is_some() {}
            if let Some((_, line)) = lines.peek().filter(|(number, _)| *number == wanted) {
                problem.line = line.trim_start_matches('\u{feff}').chars().take(2000).collect();
            }
        }
        problems
    }
}

/// What to write instead.
#[derive(Debug)]
pub(super) struct Hint(Option<String>);

impl Hint {
    /// Nothing that helps.
    pub(super) const NONE: Self = Self(None);

    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(Some(text.into()))
    }

    pub(super) fn maybe(text: Option<String>) -> Self {
        Self(text)
    }

    /// "did you mean" the nearest of `allowed`, or else all of them.
    pub(super) fn one_of<'a>(typed: &str, allowed: impl Iterator<Item = &'a str> + Clone) -> Self {
        if let Some(near) = nearest(typed, allowed.clone()) {
            return Self::new(format!("did you mean `{near}`?"));
        }
        let all: Vec<String> = allowed.map(|name| format!("`{name}`")).collect();
        if all.is_empty() { Self::NONE } else { Self::new(format!("allowed: {}", all.join(", "))) }
    }
}

/// The name that was probably meant: at most a third of its letters away.
pub(super) fn nearest<'a>(typed: &str, allowed: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if typed.len() > 100 {
        return None;
    }
    allowed
        .map(|name| (distance(&typed.to_lowercase(), &name.to_lowercase()), name))
        .filter(|&(distance, name)| distance <= name.chars().count().div_ceil(3))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// Insertions, deletions, replacements and swaps of neighbours between `a` and `b` (optimal string
/// alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant_is_found() {
        let allowed = ["scheduler", "kv_cache", "performance", "latency"];
        for (typed, meant) in [
            ("shceduler", Some("scheduler")),
            ("KV_Cache", Some("kv_cache")),
            ("kvcache", Some("kv_cache")),
            ("preformance", Some("performance")),
            ("weights", None),
        ] {
            assert_eq!(nearest(typed, allowed.into_iter()), meant, "{typed}");
        }
    }

    #[test]
    fn edits_are_counted() {
        for (a, b, edits) in [("", "", 0), ("ab", "ba", 1), ("kitten", "sitting", 3), ("a", "", 1)]
        {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn a_long_line_is_shown_around_the_marker() {
        let line = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let (shown, column) = excerpt(&line, 501);
        assert_eq!(shown.chars().nth(column - 1), Some('X'));
        assert!(shown.chars().count() <= EXCERPT);
    }
}
