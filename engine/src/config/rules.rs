//! `responses.yml`: from the tree to a [`RuleSet`], and the problems of compiling it back to lines.
//!
//! What a rule does is `text::responses`' business; here is only how it is written. The invariant:
//! every value that the compiler can complain about has its place remembered under its path, and
//! what cannot be read is reported and replaced, so that one mistake hides no other.

use std::collections::{BTreeMap, BTreeSet};

use crate::escape;
use crate::text::responses::{
    Answer, Finish, Lengths, Operator, Parts, Responses, Rule, RuleProblem, RuleSet, ToolCall,
    Variant, When,
};
use crate::units::Tokens;

use super::fields::Fields;
use super::problem::{Hint, Report};
use super::raw::{close_file, read_version};
use super::scalar::{Meaning, meaning};
use super::tree::Place;
use super::value::{Placed, Value};

/// Reads and compiles the file. If something is wrong with it, that has been reported, and the
/// result is `None` or has stand-ins in it.
pub(super) fn responses(root: &Value, report: &mut Report<'_>) -> Option<Responses> {
    let mut reader = Reader {
        report,
        places: BTreeMap::new(),
        paths: Vec::new(),
        unread_operators: BTreeSet::new(),
    };
    let set = reader.file(root);
    let Reader { report, places, paths, unread_operators } = reader;
    let problems = match Responses::compile(set) {
        Ok(responses) => return Some(responses),
        Err(problems) => problems,
    };
    for problem in &problems {
        let stands_in = problem.rule.is_some_and(|rule| unread_operators.contains(&rule));
        if !(stands_in && problem.field.starts_with("match")) {
            tell(problem, &paths, &places, report);
        }
    }
    None
}

/// Puts a problem of the compiler where the rule was written.
fn tell(
    problem: &RuleProblem,
    paths: &[String],
    places: &BTreeMap<String, Place>,
    report: &mut Report<'_>,
) {
    let base = match problem.rule.map(|rule| paths.get(rule)) {
        Some(Some(path)) => path.as_str(),
        Some(None) => "responses",
        None => "default",
    };
    let path = format!("{base}.{}", problem.field);
    // Reported with both lines by `Reader::file`, or a stand-in for what could not be read.
    if problem.field == "id" || report.mentions(&path) {
        return;
    }
    // The nearest value around it that was written: a single pattern has no index, for example.
    let mut written = path.as_str();
    let place = loop {
        if let Some(place) = places.get(written) {
            break *place;
        }
        match written.rfind(['.', '[']) {
            Some(cut) => written = &written[..cut],
            None => break Place::START,
        }
    };
    report.add(place, written, entry_named(problem), Hint::NONE);
}

/// The message, naming the entry, since its number alone is hard to find.
fn entry_named(problem: &RuleProblem) -> String {
    match problem.rule {
        Some(_) if !problem.id.is_empty() => {
            format!("{} (entry `{}`)", problem.message, problem.id)
        }
        _ => problem.message.clone(),
    }
}

/// What could be read of an entry.
struct Entry {
    id: Option<Placed<String>>,
    operator: Option<Operator>,
    when: When,
    answer: Option<Answer>,
}

struct Reader<'r, 'a> {
    report: &'r mut Report<'a>,
    /// Where each value stands, by its path.
    places: BTreeMap<String, Place>,
    /// The path of each rule of the set.
    paths: Vec<String>,
    /// The rules of the set whose operator could not be read.
    unread_operators: BTreeSet<usize>,
}

impl Reader<'_, '_> {
    /// All rules. What could not be read has been reported; a stand-in keeps the rest checkable.
    fn file(&mut self, root: &Value) -> RuleSet {
        let Some(mut file) = root.fields(self.report) else {
            return RuleSet { seed: 0, rules: Vec::new(), default: stand_in() };
        };
        read_version(&mut file, self.report);
        let seed = file.take(self.report, "seed", &[]);
        let seed = seed.and_then(|seed| seed.integer(self.report)).map_or(0, |seed| seed.value);

        let mut rules = Vec::new();
        let list = file.take(self.report, "responses", &[]);
        if let Some(items) = list.and_then(|list| list.list(self.report)) {
            let mut lines: BTreeMap<String, u32> = BTreeMap::new();
            for item in &items {
                let Some(entry) = self.entry(item) else { continue };
                if let Some(id) = &entry.id {
                    if let Some(first) = lines.get(&id.value) {
                        let message =
                            format!("the id `{}` is used twice; first on line {first}", id.value);
                        let hint = Hint::new("give each entry an id of its own");
                        self.report.add(id.at, &id.path, message, hint);
                    } else {
                        lines.insert(id.value.clone(), id.at.line);
                    }
                }
                let operator = entry.operator.unwrap_or_else(|| {
                    self.unread_operators.insert(rules.len());
                    // Of no pattern, so that any placeholder may be one of its groups.
                    Operator::Regex(Vec::new())
                });
                self.paths.push(item.path.clone());
                rules.push(Rule {
                    id: entry.id.map(|id| id.value).unwrap_or_default(),
                    operator,
                    when: entry.when,
                    answer: entry.answer.unwrap_or_else(stand_in),
                });
            }
        }

        let hint = "write what to answer when nothing matches: default: { content: \"...\" }";
        let default = file.require(self.report, "default", &[], Hint::new(hint));
        let default = default.and_then(|default| {
            self.note(&default);
            let mut fields = default.fields(self.report)?;
            let answer = self.answer(&mut fields, "`default`");
            fields.close(self.report, |key| match key {
                "match" | "id" => Some("to entries of `responses:`; the default has none"),
                _ => None,
            });
            answer
        });
        close_file(file, self.report);
        RuleSet { seed, rules, default: default.unwrap_or_else(stand_in) }
    }

    fn note(&mut self, value: &Value) {
        self.places.insert(value.path.clone(), value.at());
    }

    fn entry(&mut self, item: &Value) -> Option<Entry> {
        self.note(item);
        let mut fields = item.fields(self.report)?;
        let hint = Hint::new("a short name, unique in the file, for example `id: greeting`");
        let id = fields.require(self.report, "id", &[], hint);
        let id = id.and_then(|id| {
            self.note(&id);
            id.name(self.report)
        });
        let hint = Hint::new("for example match: { contains: \"weather\" }");
        let condition = fields.require(self.report, "match", &[], hint);
        let (operator, when) = condition.map_or((None, When::default()), |it| self.condition(&it));
        let answer = self.answer(&mut fields, "an entry");
        fields.close(self.report, |key| match key {
            "exact" | "contains" | "starts_with" | "regex" => Some("under `match:`"),
            "model" | "system" | "turn" | "tool_result" => Some("under `match:`"),
            "tokens" => Some("under `synthetic:`"),
            "arguments" | "name" => Some("in an item of `tool_calls:`"),
            _ => None,
        });
        Some(Entry { id, operator, when, answer })
    }

    /// What stands under `match`.
    fn condition(&mut self, value: &Value) -> (Option<Operator>, When) {
        self.note(value);
        let Some(mut fields) = value.fields(self.report) else { return (None, When::default()) };
        let mut list = |this: &mut Self, name: &'static str, may_be_empty: bool| {
            let Some(values) = fields.take(this.report, name, &[]) else { return Vec::new() };
            let read = |item: &Value| match may_be_empty {
                true => item.text(this.report),
                false => item.name(this.report),
            };
            let texts: Vec<_> = values.one_or_more().iter().filter_map(read).collect();
            if values.one_or_more().is_empty() {
                values.problem(
                    this.report,
                    "is an empty list",
                    Hint::new("give at least one value"),
                );
            }
            texts.into_iter().map(|text| text.value).collect()
        };
        let when = When {
            models: list(self, "model", false),
            system: list(self, "system", false),
            tool_result: list(self, "tool_result", true),
            turns: None,
        };
        let turns = fields.take(self.report, "turn", &[]);
        let turns = turns.and_then(|turns| self.turns(&turns));
        let when = When { turns, ..when };
        let conditions = ["model", "system", "tool_result", "turn"];
        let operator = self.operator(value, fields, &conditions);
        (operator, when)
    }

    /// `N` or `[first, last]`.
    fn turns(&mut self, value: &Value) -> Option<(u32, u32)> {
        let items = value.one_or_more();
        let numbers: Vec<u32> = items
            .iter()
            .filter_map(|item| item.whole(self.report, 1..=u64::from(u32::MAX)))
            .map(|number| u32::try_from(number.value).unwrap_or(u32::MAX))
            .collect();
        match numbers[..] {
            [only] if items.len() == 1 => Some((only, only)),
            [first, last] if items.len() == 2 && first <= last => Some((first, last)),
            _ if numbers.len() < items.len() => None,
            _ => {
                let hint = Hint::new("write 2, or [2, 5] for the second to the fifth user message");
                value.problem(self.report, "must be a number or a rising pair of numbers", hint);
                None
            }
        }
    }

    fn operator(
        &mut self,
        value: &Value,
        mut fields: Fields,
        conditions: &[&str],
    ) -> Option<Operator> {
        let is_conditional = conditions.iter().any(|name| fields.has(name));
        let names = ["exact", "contains", "starts_with", "regex"];
        let mut given: Vec<(&str, Value)> = Vec::new();
        for name in names {
            given.extend(fields.take(self.report, name, &[]).map(|value| (name, value)));
        }
        fields.close(self.report, |_| None);
        match &given[..] {
            [] if is_conditional => return Some(Operator::Always),
            [] => {
                if !self.report.mentions(&value.path) {
                    let hint = "one of `exact`, `contains`, `starts_with`, `regex`, or a condition: \
                                `model`, `system`, `turn`, `tool_result`";
                    value.problem(self.report, "the entry matches nothing", Hint::new(hint));
                }
            }
            [_] => {}
            [(first, _), (second, again), ..] => {
                let message = format!("`{first}` and `{second}` cannot both decide");
                let hint = "an entry has one operator; write two entries with the same answer";
                // Not about the value itself, whose own mistakes are told besides.
                self.report.add(again.at(), &value.path, message, Hint::new(hint));
            }
        }
        let read: Vec<_> =
            given.iter().filter_map(|(name, values)| self.values(name, values)).collect();
        // Of several, any does for what is left to check; only patterns have groups to speak of.
        let pattern = read.iter().find(|operator| matches!(operator, Operator::Regex(_)));
        pattern.or(read.first()).cloned()
    }

    fn values(&mut self, name: &str, values: &Value) -> Option<Operator> {
        self.note(values);
        let items = values.one_or_more();
        if items.is_empty() {
            values.problem(self.report, "is an empty list", Hint::new("give at least one value"));
            return None;
        }
        let mut texts = Vec::with_capacity(items.len());
        let mut readable = false;
        for item in &items {
            self.note(item);
            // A message can be empty, and `exact` can ask for that; elsewhere it would always
            // match.
            let text =
                if name == "exact" { item.text(self.report) } else { item.name(self.report) };
            readable |= text.is_some();
            // Not a pattern either, and so none whose groups are known.
            texts.push(text.map_or_else(|| "(".to_owned(), |text| text.value));
        }
        readable.then_some(match name {
            "exact" => Operator::Exact(texts),
            "contains" => Operator::Contains(texts),
            "starts_with" => Operator::StartsWith(texts),
            _ => Operator::Regex(texts),
        })
    }

    /// What is said: a text, and what may stand beside it.
    fn answer(&mut self, fields: &mut Fields, whose: &str) -> Option<Answer> {
        let reasoning = fields.take(self.report, "reasoning", &[]);
        let refusal = fields.take(self.report, "refusal", &[]);
        let tool_calls = fields.take(self.report, "tool_calls", &[]);
        let finish = fields.take(self.report, "finish_reason", &[]);
        let is_plain = [&reasoning, &refusal, &tool_calls, &finish].iter().all(|it| it.is_none());
        // A refusal or a call may stand alone.
        let needs_text = refusal.is_none() && tool_calls.is_none();
        let content = self.words(fields, whose, needs_text);
        if is_plain {
            return content;
        }
        let parts = Parts {
            content,
            reasoning: reasoning.and_then(|value| {
                self.note(&value);
                self.variant(&value)
            }),
            refusal: refusal.and_then(|value| {
                self.note(&value);
                value.name(self.report).map(|text| text.value)
            }),
            tool_calls: tool_calls.map_or_else(Vec::new, |value| self.tool_calls(&value)),
            finish: finish.and_then(|value| self.finish(&value)),
        };
        Some(Answer::Parts(Box::new(parts)))
    }

    fn finish(&mut self, value: &Value) -> Option<Finish> {
        let names = &["stop", "length", "tool_calls", "content_filter"];
        Some(match value.one_of(self.report, names)?.value {
            "length" => Finish::Length,
            "tool_calls" => Finish::ToolCalls,
            "content_filter" => Finish::ContentFilter,
            _ => Finish::Stop,
        })
    }

    /// A list of `{ name: ..., arguments: ... }`.
    fn tool_calls(&mut self, value: &Value) -> Vec<ToolCall> {
        self.note(value);
        let items = value.list(self.report).unwrap_or_default();
        if items.is_empty() && !self.report.mentions(&value.path) {
            let hint = Hint::new("for example tool_calls: [{ name: get_weather }]");
            value.problem(self.report, "is an empty list", hint);
        }
        let mut calls = Vec::with_capacity(items.len());
        for item in &items {
            self.note(item);
            let Some(mut fields) = item.fields(self.report) else { continue };
            let hint = Hint::new("the function's name: `name: get_weather`");
            let name = fields.require(self.report, "name", &[], hint);
            let name = name.and_then(|name| name.name(self.report));
            let arguments = fields.take(self.report, "arguments", &[]);
            fields.close(self.report, |_| None);
            let arguments = arguments.map(|arguments| {
                self.note(&arguments);
                if arguments.scalar().is_some() {
                    return arguments.text(self.report).map_or_else(String::new, |it| it.value);
                }
                let mut json = String::new();
                self.json(&arguments, &mut json);
                json
            });
            let name = name.map(|name| name.value).unwrap_or_default();
            calls.push(ToolCall { name, arguments });
        }
        calls
    }

    /// Appends a value as a template of JSON: its braces doubled, placeholders as they stand.
    fn json(&mut self, value: &Value, out: &mut String) {
        if let Some(scalar) = value.scalar() {
            match meaning(scalar) {
                Meaning::Null => out.push_str("null"),
                Meaning::Boolean(value) => out.push_str(if value { "true" } else { "false" }),
                Meaning::Whole(number) => out.push_str(&number.to_string()),
                Meaning::Number(number) if number.is_finite() => out.push_str(&number.to_string()),
                Meaning::Number(_) => {
                    value.problem(self.report, "is no number in JSON", Hint::new("quote it"));
                }
                Meaning::Text => {
                    let mut escaped = Vec::new();
                    escape::json_string_content(&scalar.text, &mut escaped);
                    out.push('"');
                    out.push_str(&String::from_utf8_lossy(&escaped));
                    out.push('"');
                }
            }
        } else if value.is_mapping() {
            out.push_str("{{");
            let entries = value.entries(self.report).unwrap_or_default();
            for (at, entry) in entries.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                let mut key = Vec::new();
                escape::json_string_content(&entry.key, &mut key);
                out.push('"');
                out.push_str(&String::from_utf8_lossy(&key).replace('{', "{{").replace('}', "}}"));
                out.push_str("\": ");
                self.json(&entry.value, out);
            }
            out.push_str("}}");
        } else {
            out.push('[');
            let items = value.list(self.report).unwrap_or_default();
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                self.json(item, out);
            }
            out.push(']');
        }
    }

    /// Exactly one of `content`, `variants` and `synthetic`; or none, if the text need not be
    /// there.
    fn words(&mut self, fields: &mut Fields, whose: &str, needs_text: bool) -> Option<Answer> {
        let (at, path) = (fields.at, fields.path.clone());
        let content = fields.take(self.report, "content", &[]);
        let variants = fields.take(self.report, "variants", &[]);
        let synthetic = fields.take(self.report, "synthetic", &[]);
        let hint = || Hint::new("exactly one of `content`, `variants`, `synthetic`");
        match (content, variants, synthetic) {
            (Some(content), None, None) => self.content(&content),
            (None, Some(variants), None) => self.variants(&variants),
            (None, None, Some(synthetic)) => self.lengths(&synthetic).map(Answer::Synthetic),
            (None, None, None) if !needs_text => None,
            (None, None, None) => {
                self.report.add(at, &path, format!("{whose} must say what to answer"), hint());
                None
            }
            (content, variants, synthetic) => {
                self.report.add(at, &path, format!("{whose} has more than one answer"), hint());
                // Each may have its own mistakes, and one of them is going to stay.
                let content = content.and_then(|content| self.content(&content));
                let variants = variants.and_then(|variants| self.variants(&variants));
                let synthetic = synthetic.and_then(|synthetic| self.lengths(&synthetic));
                content.or(variants).or(synthetic.map(Answer::Synthetic))
            }
        }
    }

    fn content(&mut self, value: &Value) -> Option<Answer> {
        self.note(value);
        value.text(self.report).map(|text| Answer::Content(text.value))
    }

    fn variants(&mut self, value: &Value) -> Option<Answer> {
        self.note(value);
        let items = value.list(self.report)?;
        if items.is_empty() {
            value.problem(self.report, "is an empty list", Hint::new("give at least one answer"));
            return None;
        }
        let mut variants = Vec::with_capacity(items.len());
        for item in &items {
            self.note(item);
            let variant = self.variant(item);
            // In its place, so that those after it keep their numbers.
            variants.push(variant.unwrap_or_else(|| Variant::Text(String::new())));
        }
        Some(Answer::Variants(variants))
    }

    /// A text or `{ synthetic: ... }`.
    fn variant(&mut self, value: &Value) -> Option<Variant> {
        if value.is_mapping() {
            self.synthetic_variant(value).map(Variant::Synthetic)
        } else {
            value.text(self.report).map(|text| Variant::Text(text.value))
        }
    }

    fn synthetic_variant(&mut self, item: &Value) -> Option<Lengths> {
        let mut fields = item.fields(self.report)?;
        let hint = Hint::new("a variant is a text or { synthetic: { tokens: 100 } }");
        let synthetic = fields.require(self.report, "synthetic", &[], hint);
        fields.close(self.report, |_| None);
        self.lengths(&synthetic?)
    }

    /// `{ tokens: N }` or `{ tokens: [min, max] }`.
    fn lengths(&mut self, value: &Value) -> Option<Lengths> {
        self.note(value);
        let mut fields = value.fields(self.report)?;
        let hint = Hint::new("write { tokens: 100 } or { tokens: [min, max] }");
        let tokens = fields.require(self.report, "tokens", &[], hint);
        fields.close(self.report, |_| None);
        let tokens = tokens?;
        self.note(&tokens);
        let items = tokens.one_or_more();
        if !tokens.is_scalar() && items.len() != 2 {
            let hint = Hint::new("write [min, max], for example [200, 400]");
            tokens.problem(self.report, "must be a number or a pair of numbers", hint);
            return None;
        }
        let mut counts = Vec::with_capacity(2);
        for item in &items {
            counts.extend(item.whole(self.report, 1..=u64::from(u32::MAX)));
        }
        let count = |n: u64| Tokens::new(u32::try_from(n).unwrap_or(u32::MAX));
        match &counts[..] {
            [only] if items.len() == 1 => {
                Some(Lengths { min: count(only.value), max: count(only.value) })
            }
            [min, max] => Some(Lengths { min: count(min.value), max: count(max.value) }),
            _ => None,
        }
    }
}

/// Stands where an answer could not be read, so that the rest can be checked.
fn stand_in() -> Answer {
    Answer::Content(String::new())
}
