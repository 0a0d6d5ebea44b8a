//! Typed access to a [`tree`](super::tree): the one way from a node to a Rust value.
//!
//! The invariant: a getter that returns `None` has reported why.

use std::ops::RangeInclusive;
use std::rc::Rc;

use super::problem::{Hint, Report};
use super::scalar::{Meaning, meaning, meaning_as_boolean, meaning_as_number};
use super::tree::{Form, Kind, Node, Place, Scalar};

/// A value with the place it was read from, for checks that come later.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub(super) value: T,
    pub(super) at: Place,
    pub(super) path: String,
}

impl<T> Placed<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Placed<U> {
        Placed { value: change(self.value), at: self.at, path: self.path }
    }
}

/// A node with the path that leads to it.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) node: Rc<Node>,
    pub(super) path: String,
}

impl Value {
    pub(super) fn root(node: Rc<Node>) -> Self {
        Self { node, path: String::new() }
    }

    pub(super) fn at(&self) -> Place {
        self.node.at
    }

    pub(super) fn placed<T>(&self, value: T) -> Placed<T> {
        Placed { value, at: self.at(), path: self.path.clone() }
    }

    /// Nothing was written, or `null`: as good as not there.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.node.kind, Kind::Scalar(scalar) if meaning(scalar) == Meaning::Null)
    }

    pub(super) fn is_scalar(&self) -> bool {
        matches!(self.node.kind, Kind::Scalar(_))
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.kind, Kind::Mapping(_))
    }

    pub(super) fn problem(&self, report: &mut Report<'_>, message: impl Into<String>, hint: Hint) {
        report.add(self.at(), &self.path, message, hint);
    }

    /// The value is not of the kind that is wanted.
    pub(super) fn not(&self, report: &mut Report<'_>, wanted: &str, hint: Hint) {
        let message = format!("must be {wanted}, but is {}", describe(&self.node));
        self.problem(report, message, hint);
    }

    pub(super) fn scalar(&self) -> Option<&Scalar> {
        match &self.node.kind {
            Kind::Scalar(scalar) => Some(scalar),
            Kind::Sequence(_) | Kind::Mapping(_) => None,
        }
    }

    /// A text. Unquoted numbers and booleans are not: which of `1.0` and `1.00` would be meant?
    pub(super) fn text(&self, report: &mut Report<'_>) -> Option<Placed<String>> {
        match self.scalar().map(|scalar| (scalar, meaning(scalar))) {
            Some((scalar, Meaning::Text)) => Some(self.placed(scalar.text.clone())),
            Some((scalar, Meaning::Null)) if !scalar.text.is_empty() => {
                self.not(report, "text", Hint::new(format!("quote it: \"{}\"", scalar.text)));
                None
            }
            Some((_, Meaning::Null)) => {
                self.not(report, "text", Hint::new("for an empty text write \"\""));
                None
            }
            Some((scalar, _)) => {
                self.not(report, "text", Hint::new(format!("quote it: \"{}\"", scalar.text)));
                None
            }
            None => {
                self.not(report, "text", Hint::NONE);
                None
            }
        }
    }

    /// A text with something in it.
    pub(super) fn name(&self, report: &mut Report<'_>) -> Option<Placed<String>> {
        let text = self.text(report)?;
        if text.value.trim().is_empty() {
            self.problem(report, "must not be empty", Hint::NONE);
            return None;
        }
        Some(text)
    }

    /// One of `allowed`; gives its index.
    pub(super) fn one_of(
        &self,
        report: &mut Report<'_>,
        allowed: &'static [&'static str],
    ) -> Option<Placed<&'static str>> {
        let scalar = self.scalar();
        let typed = scalar.map(|scalar| scalar.text.as_str()).unwrap_or_default();
        if let Some(found) = allowed.iter().find(|name| **name == typed) {
            return Some(self.placed(*found));
        }
        let all: Vec<String> = allowed.iter().map(|name| format!("`{name}`")).collect();
        let hint = Hint::one_of(typed, allowed.iter().copied());
        self.not(report, &format!("one of {}", all.join(", ")), hint);
        None
    }

    /// `true` or `false` (also `yes`, `no`, `on`, `off`).
    pub(super) fn boolean(&self, report: &mut Report<'_>) -> Option<Placed<bool>> {
        match self.scalar().map(meaning_as_boolean) {
            Some(Meaning::Boolean(value)) => Some(self.placed(value)),
            _ => {
                self.not(report, "`true` or `false`", Hint::NONE);
                None
            }
        }
    }

    /// A whole number in `range`.
    pub(super) fn whole(
        &self,
        report: &mut Report<'_>,
        range: RangeInclusive<u64>,
    ) -> Option<Placed<u64>> {
        let whole = match self.scalar().map(meaning_as_number) {
            Some(Meaning::Whole(whole)) => whole,
            // `1e6` and `8192.0` are whole numbers too, if a little oddly put.
            Some(Meaning::Number(number)) if number.fract() == 0.0 && number.abs() < 1e18 => {
                number as i128
            }
            _ if self.is_digits() => i128::MAX,
            _ => {
                self.not_whole(report);
                return None;
            }
        };
        match u64::try_from(whole) {
            Ok(value) if range.contains(&value) => Some(self.placed(value)),
            _ => {
                let (least, most) = (range.start(), range.end());
                let shown = match whole {
                    i128::MAX => "far larger".to_owned(),
                    whole => whole.to_string(),
                };
                let message = match *most {
                    u64::MAX if whole < 0 || whole < i128::from(*least) => {
                        format!("must be at least {least}, but is {shown}")
                    }
                    u64::MAX => format!("must be at most {}, but is {shown}", u64::MAX),
                    most => format!("must be from {least} to {most}, but is {shown}"),
                };
                self.problem(report, message, Hint::NONE);
                None
            }
        }
    }

    /// A whole number of 64 bits, which may be negative.
    pub(super) fn integer(&self, report: &mut Report<'_>) -> Option<Placed<i64>> {
        let Some(Meaning::Whole(whole)) = self.scalar().map(meaning_as_number) else {
            self.not_whole(report);
            return None;
        };
        match i64::try_from(whole) {
            Ok(value) => Some(self.placed(value)),
            Err(_) => {
                self.problem(report, format!("does not fit into 64 bits: {whole}"), Hint::NONE);
                None
            }
        }
    }

    /// Says so, and how it would be a whole number; of a fraction nobody can know which.
    fn not_whole(&self, report: &mut Report<'_>) {
        let fraction = match self.scalar().map(meaning_as_number) {
            Some(Meaning::Number(_)) => true,
            Some(Meaning::Text) => self.bare_number().is_some_and(|(number, unit)| {
                unit.is_empty() && number.parse::<f64>().is_ok_and(|it| it.fract() != 0.0)
            }),
            _ => false,
        };
        let hint = if fraction { Hint::NONE } else { self.number_hint() };
        self.not(report, "a whole number", hint);
    }

    /// A finite number in `range`.
    pub(super) fn number(&self, report: &mut Report<'_>, range: Range) -> Option<Placed<f64>> {
        let number = match self.scalar().map(meaning_as_number) {
            Some(Meaning::Whole(whole)) => whole as f64,
            Some(Meaning::Number(number)) if number.is_finite() => number,
            Some(Meaning::Number(number)) => {
                self.problem(report, format!("must be finite, but is {number}"), Hint::NONE);
                return None;
            }
            _ => {
                self.not(report, "a number", self.number_hint());
                return None;
            }
        };
        if !range.contains(number) {
            let hint = Hint::maybe(range.advice(number));
            self.problem(report, format!("must be {range}, but is {number}"), hint);
            return None;
        }
        Some(self.placed(number))
    }

    /// An unquoted number with more digits than any type has.
    fn is_digits(&self) -> bool {
        self.scalar().is_some_and(|scalar| {
            scalar.form == Form::Plain
                && !scalar.text.starts_with('0')
                && !scalar.text.is_empty()
                && scalar.text.bytes().all(|byte| byte.is_ascii_digit())
        })
    }

    /// For the ways in which people write numbers that YAML does not know.
    fn number_hint(&self) -> Hint {
        let Some((number, unit)) = self.bare_number() else { return Hint::NONE };
        let (number, unit) = (number.as_str(), unit.as_str());
        if unit.is_empty() {
            return Hint::new(format!("write {number}"));
        }
        let factor: Option<u64> = match unit.to_ascii_lowercase().as_str() {
            "k" => Some(1_000),
            "m" => Some(1_000_000),
            "ki" | "kib" => Some(1 << 10),
            "mi" | "mib" => Some(1 << 20),
            "gi" | "gib" => Some(1 << 30),
            _ => None,
        };
        match (factor, number.parse::<u64>()) {
            (Some(factor), Ok(number)) => Hint::new(format!(
                "write the number without a unit, here {}",
                u128::from(number) * u128::from(factor)
            )),
            _ => Hint::new(format!(
                "write the number without a unit: the key's name says it ({})",
                { self.path.rsplit('.').next().unwrap_or_default() }
            )),
        }
    }

    /// The digits that were typed, without what stands between and before them, and what follows.
    fn bare_number(&self) -> Option<(String, String)> {
        let text = self.scalar()?.text.trim();
        let bare: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
        let digits = bare.chars().take_while(|c| c.is_ascii_digit() || *c == '.').count();
        let (number, unit) = bare.split_at(digits);
        let number = match number.trim_start_matches('0') {
            "" if !number.is_empty() => "0",
            trimmed if trimmed.starts_with('.') => number,
            trimmed => trimmed,
        };
        let is_number = !number.is_empty() && number.parse::<f64>().is_ok();
        is_number.then(|| (number.to_owned(), unit.to_owned()))
    }

    /// A list; each item with its path.
    pub(super) fn list(&self, report: &mut Report<'_>) -> Option<Vec<Value>> {
        match &self.node.kind {
            Kind::Sequence(items) => Some(self.items(items)),
            Kind::Scalar(_) | Kind::Mapping(_) => {
                self.not(report, "a list", Hint::new("start each item with `- `, dash and space"));
                None
            }
        }
    }

    /// A list, or one value that stands for a list of one.
    pub(super) fn one_or_more(&self) -> Vec<Value> {
        match &self.node.kind {
            Kind::Sequence(items) => self.items(items),
            Kind::Scalar(_) | Kind::Mapping(_) => vec![self.clone()],
        }
    }

    fn items(&self, items: &[Rc<Node>]) -> Vec<Value> {
        let item = |(i, node): (usize, &Rc<Node>)| Value {
            node: Rc::clone(node),
            path: format!("{}[{i}]", self.path),
        };
        items.iter().enumerate().map(item).collect()
    }
}

/// Which numbers are allowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Range {
    /// Above zero.
    Positive,
    /// Zero or more.
    NotNegative,
    /// Above zero, at most one.
    Share,
    /// Zero or more, below one.
    Part,
    /// At least one.
    AtLeastOne,
    /// A time in milliseconds: from nothing to an hour.
    Milliseconds,
}

impl Range {
    /// No quantity of ours is larger, and none so near zero that a division overflows.
    const MOST: f64 = 1e15;
    const LEAST: f64 = 1e-6;

    fn contains(self, number: f64) -> bool {
        match self {
            Self::Positive => (Self::LEAST..=Self::MOST).contains(&number),
            Self::NotNegative => (0.0..=Self::MOST).contains(&number),
            Self::Share => (Self::LEAST..=1.0).contains(&number),
            Self::Part => (0.0..1.0).contains(&number),
            Self::AtLeastOne => (1.0..=Self::MOST).contains(&number),
            Self::Milliseconds => (0.0..=3_600_000.0).contains(&number),
        }
    }

    fn advice(self, number: f64) -> Option<String> {
        match self {
            Self::Share | Self::Part if number > 1.0 && number <= 100.0 => {
                Some(format!("for {number} percent write {}", number / 100.0))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Positive => "from 0.000001 to 1e15",
            Self::NotNegative => "from 0 to 1e15",
            Self::Share => "above 0 and at most 1",
            Self::Part => "from 0 to below 1",
            Self::AtLeastOne => "from 1 to 1e15",
            Self::Milliseconds => "from 0 to 3600000 milliseconds",
        })
    }
}

fn describe(node: &Node) -> String {
    match &node.kind {
        Kind::Sequence(_) => "a list".to_owned(),
        Kind::Mapping(_) => "a mapping".to_owned(),
        Kind::Scalar(scalar) => {
            let shown: String = scalar.text.chars().take(40).collect();
            let dots = if shown.len() < scalar.text.len() { "…" } else { "" };
            match meaning(scalar) {
                Meaning::Null => "empty".to_owned(),
                Meaning::Boolean(value) => format!("the boolean {value}"),
                Meaning::Whole(_) | Meaning::Number(_) => format!("the number {shown}"),
                Meaning::Text => format!("the text \"{shown}{dots}\""),
            }
        }
    }
}
