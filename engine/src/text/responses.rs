//! `responses.yml`, compiled: which answer a message gets.
//!
//! Never when: timing comes from the engine alone. The one invariant: an answer is a pure function
//! of (rules, seed, entry, message, model), the same across restarts, threads and surfaces.
//!
//! # How an answer is chosen
//! 1. The *input* is the last user message without surrounding white space. The first rule, top to
//!    bottom, that matches it is the entry; else `default` (see [`super::matcher`]).
//! 2. The *choice seed* is `Seed::new(s).with(id).with(input)` (see [`crate::seed`]), where s is the
//!    request's `seed` if it has one, else the file's, as 64 bits in two's complement; `id` is the
//!    entry's id (`default` for the default) and `input` keeps its case. Choice i of a request for
//!    several (`n`), from 0, has `.with("choice").with(i)` (four bytes, little-endian) behind it
//!    unless it is the first.
//! 3. Of n variants it takes number `choice.with("variant").below(n)`, from 0 in file order.
//! 4. A synthetic answer of [min, max] tokens has min + `choice.with("length").below(max - min + 1)`
//!    of them, and its words come from `choice.with("filler")`.
//! 5. Placeholders are filled in, and the text is cut into pieces. `max_tokens` then takes a prefix.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::matcher::{Hit, Matcher};
use super::script::{PieceTable, Script};
use super::synthetic::Filler;
use super::template::{Groups, Template, Values};
use crate::seed::Seed;
use crate::units::Tokens;

/// The longest synthetic answer that can be asked for. No model has a longer context.
pub const MAX_SYNTHETIC: Tokens = Tokens::new(10_000_000);

/// The id under which the default's choices are made and reported.
pub const DEFAULT_ID: &str = "default";

/// `responses.yml` as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    /// Seed of all choices, unless the request brings its own.
    pub seed: i64,
    /// Checked in this order.
    pub rules: Vec<Rule>,
    /// Used when none matches.
    pub default: Answer,
}

/// An entry of `responses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique in the file.
    pub id: String,
    /// When it applies.
    pub operator: Operator,
    /// What it says.
    pub answer: Answer,
}

/// When a rule applies: if any of its values does. Case never matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// The input equals a value.
    Exact(Vec<String>),
    /// The input contains a value.
    Contains(Vec<String>),
    /// The input begins with a value.
    StartsWith(Vec<String>),
    /// The input contains a match for a pattern.
    Regex(Vec<String>),
}

impl Operator {
    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "exact",
            Self::Contains(_) => "contains",
            Self::StartsWith(_) => "starts_with",
            Self::Regex(_) => "regex",
        }
    }

    /// Its values.
    pub fn values(&self) -> &[String] {
        match self {
            Self::Exact(values)
            | Self::Contains(values)
            | Self::StartsWith(values)
            | Self::Regex(values) => values,
        }
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `content`: one text, which may have placeholders.
    Content(String),
    /// `variants`: one of them is chosen.
    Variants(Vec<Variant>),
    /// `synthetic`: filler.
    Synthetic(Lengths),
}

/// One of several answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variant {
    /// A text, which may have placeholders.
    Text(String),
    /// Filler.
    Synthetic(Lengths),
}

/// The length of a synthetic answer: from `min` to `max` tokens, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// The shortest.
    pub min: Tokens,
    /// The longest; the same as `min` for a fixed length.
    pub max: Tokens,
}

/// Something wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleProblem {
    /// Its place in [`RuleSet::rules`]; `None` for the default.
    pub rule: Option<usize>,
    /// Its id.
    pub id: String,
    /// Where in the rule, as a path in the file: `match.regex[1]`, `variants[0]`, `id`.
    pub field: String,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            Some(rule) => write!(f, "responses[{rule}] ({:?})", self.id)?,
            None => f.write_str("default")?,
        }
        write!(f, ".{}: {}", self.field, self.message)
    }
}

/// What decides an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// The last user message as sent; empty if there is none.
    pub input: &'a str,
    /// The model that the request named.
    pub model: &'a str,
    /// The request's own seed.
    pub seed: Option<i64>,
    /// Which of several answers to the same request it is, from 0.
    pub choice: u32,
}

/// All rules, compiled. Immutable; share it between threads.
#[derive(Debug)]
pub struct Responses {
    seed: i64,
    matcher: Matcher,
    entries: Vec<Entry>,
    default: Entry,
}

#[derive(Debug)]
struct Entry {
    id: Arc<str>,
    says: Vec<Says>,
}

#[derive(Debug)]
enum Says {
    Fixed(Arc<PieceTable>),
    Rendered(Template),
    Filler(Lengths),
}

impl Responses {
    /// Compiles `set`.
    ///
    /// # Errors
    /// All that is wrong with it, in the order of the file.
    pub fn compile(set: RuleSet) -> Result<Self, Vec<RuleProblem>> {
        let (matcher, mut problems) = Matcher::compile(&set.rules);
        let refused: BTreeSet<_> = problems.iter().map(|problem| problem.rule).collect();
        let mut ids = BTreeSet::new();
        let mut entries = Vec::with_capacity(set.rules.len());
        for (index, rule) in set.rules.iter().enumerate() {
            let place = Place { rule: Some(index), id: &rule.id };
            if !ids.insert(&rule.id) {
                problems
                    .push(place.problem("id", "this id is used by an earlier entry".to_owned()));
            }
            let mut names = matcher.groups(index);
            let groups = match &rule.operator {
                Operator::Regex(patterns) if patterns.is_empty() => Groups::Unknown,
                // A placeholder of a pattern that did not compile is no second mistake.
                Operator::Regex(patterns) if refused.contains(&Some(index)) => {
                    names.extend(patterns.iter().flat_map(|pattern| names_written(pattern)));
                    Groups::Known(&names)
                }
                _ => Groups::Known(&names),
            };
            entries.push(Entry::compile(&rule.answer, groups, place, &mut problems));
        }
        let place = Place { rule: None, id: DEFAULT_ID };
        let default = Entry::compile(&set.default, Groups::Known(&[]), place, &mut problems);
        if problems.is_empty() {
            return Ok(Self { seed: set.seed, matcher, entries, default });
        }
        problems.sort_by_key(|problem| problem.rule.unwrap_or(usize::MAX));
        Err(problems)
    }

    /// The answer to `query`.
    pub fn answer(&self, query: &Query<'_>) -> Script {
        let input = query.input.trim();
        let hit = self.matcher.find(input);
        let entry = hit.as_ref().map_or(&self.default, |hit| &self.entries[hit.rule]);
        let choice = Choice {
            seed: query.seed.unwrap_or(self.seed),
            id: &entry.id,
            input,
            number: query.choice,
        };
        let says = match &entry.says[..] {
            [only] => only,
            variants => &variants[choice.below("variant", variants.len() as u64) as usize],
        };
        let id = Arc::clone(&entry.id);
        match says {
            Says::Fixed(table) => Script::from_table(id, Arc::clone(table)),
            Says::Rendered(template) => {
                let text = render(template, query, input, hit.as_ref());
                Script::from_table(id, Arc::new(PieceTable::new(text)))
            }
            Says::Filler(lengths) => {
                let len = choice.length(*lengths);
                Script::from_filler(id, Filler::new(choice.seed("filler"), len))
            }
        }
    }
}

fn render(template: &Template, query: &Query<'_>, input: &str, hit: Option<&Hit<'_>>) -> String {
    let values = Values { last_user_message: query.input, model: query.model };
    let groups = hit
        .filter(|_| template.needs_groups())
        .map_or_else(Vec::new, |hit| hit.named_groups(input));
    template.render(values, |name| {
        groups.iter().find(|(group, _)| *group == name).map_or("", |(_, text)| text)
    })
}

/// What a choice depends on; see the module's documentation.
struct Choice<'a> {
    seed: i64,
    id: &'a str,
    input: &'a str,
    number: u32,
}

impl Choice<'_> {
    fn seed(&self, purpose: &str) -> Seed {
        let seed = Seed::new(self.seed.cast_unsigned())
            .with(self.id.as_bytes())
            .with(self.input.as_bytes());
        let seed = match self.number {
            0 => seed,
            number => seed.with(b"choice").with(&number.to_le_bytes()),
        };
        seed.with(purpose.as_bytes())
    }

    fn below(&self, purpose: &str, bound: u64) -> u64 {
        if bound == 1 { 0 } else { self.seed(purpose).below(bound) }
    }

    fn length(&self, lengths: Lengths) -> Tokens {
        let choices = u64::from(lengths.max.get() - lengths.min.get()) + 1;
        lengths.min + Tokens::new(self.below("length", choices) as u32)
    }
}

impl Entry {
    fn compile(
        answer: &Answer,
        groups: Groups<'_>,
        place: Place<'_>,
        problems: &mut Vec<RuleProblem>,
    ) -> Self {
        let mut says = Vec::new();
        let mut add = |compiled: Result<Says, Vec<String>>, field: String| match compiled {
            Ok(compiled) => says.push(compiled),
            Err(messages) => {
                problems.extend(messages.into_iter().map(|it| place.problem(&field, it)));
            }
        };
        match answer {
            Answer::Content(text) => add(Says::text(text, groups), "content".to_owned()),
            Answer::Synthetic(lengths) => {
                add(Says::filler(*lengths), "synthetic.tokens".to_owned());
            }
            Answer::Variants(variants) if variants.is_empty() => {
                let message = "an empty list; write at least one answer".to_owned();
                add(Err(vec![message]), "variants".to_owned());
            }
            Answer::Variants(variants) => {
                for (i, variant) in variants.iter().enumerate() {
                    match variant {
                        Variant::Text(text) => {
                            add(Says::text(text, groups), format!("variants[{i}]"));
                        }
                        Variant::Synthetic(lengths) => {
                            add(Says::filler(*lengths), format!("variants[{i}].synthetic.tokens"));
                        }
                    }
                }
            }
        }
        Self { id: place.id.into(), says }
    }
}

/// What looks like the names of groups, `(?P<city>` or `(?<city>`, in a pattern that is none.
fn names_written(pattern: &str) -> impl Iterator<Item = String> {
    let after_bracket = pattern.split('<').skip(1);
    after_bracket.filter_map(|rest| rest.split_once('>')).map(|(name, _)| name.to_owned())
}

impl Says {
    fn text(text: &str, groups: Groups<'_>) -> Result<Self, Vec<String>> {
        Ok(match Template::compile_with(text, groups)? {
            Template::Fixed(text) => Self::Fixed(Arc::new(PieceTable::new(text))),
            parts => Self::Rendered(parts),
        })
    }

    fn filler(lengths: Lengths) -> Result<Self, Vec<String>> {
        let (min, max) = (lengths.min, lengths.max);
        if min == Tokens::ZERO {
            return Err(vec!["an answer has at least 1 token".to_owned()]);
        }
        if min > max {
            return Err(vec![format!(
                "the range [{min}, {max}] is empty; write the smaller number first"
            )]);
        }
        if max > MAX_SYNTHETIC {
            return Err(vec![format!("{max} tokens are too many; at most {MAX_SYNTHETIC}")]);
        }
        Ok(Self::Filler(lengths))
    }
}

/// Which rule a problem belongs to.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) rule: Option<usize>,
    pub(super) id: &'a str,
}

impl Place<'_> {
    pub(super) fn problem(&self, field: &str, message: String) -> RuleProblem {
        let (id, field) = (self.id.to_owned(), field.to_owned());
        RuleProblem { rule: self.rule, id, field, message }
    }
}
