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
use super::model_tokenizer::{REGEX, Tokenizer};
use super::script::{PieceTable, Script};
use super::template::{Groups, Template, Values};
use crate::escape;
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
    /// When it applies, by what the user said.
    pub operator: Operator,
    /// What else must hold.
    pub when: When,
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
    /// Whatever the input is: the other conditions decide.
    Always,
}

/// What must hold beside the input. Case never matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The model is one of these; any if there are none.
    pub models: Vec<String>,
    /// One of these occurs in a system or developer message; any if there are none.
    pub system: Vec<String>,
    /// The conversation has so many user messages, both ends included.
    pub turns: Option<(u32, u32)>,
    /// The conversation ends with results of tools, in one of which one of these occurs; an empty
    /// text occurs in all.
    pub tool_result: Vec<String>,
}

impl When {
    /// Whether only the input decides.
    pub fn is_always(&self) -> bool {
        *self == Self::default()
    }

    fn holds(&self, query: &Query<'_>) -> bool {
        let occurs = |text: &str, values: &[String]| {
            let text = text.to_lowercase();
            values.iter().any(|value| text.contains(&value.to_lowercase()))
        };
        let is_any = |names: &[String]| {
            names.iter().any(|name| name.to_lowercase() == query.model.to_lowercase())
        };
        (self.models.is_empty() || is_any(&self.models))
            && (self.system.is_empty() || occurs(query.system, &self.system))
            && self.turns.is_none_or(|(least, most)| (least..=most).contains(&query.turn))
            && (self.tool_result.is_empty()
                || query.tool_result.is_some_and(|text| occurs(text, &self.tool_result)))
    }
}

impl Operator {
    /// Its name in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Exact(_) => "exact",
            Self::Contains(_) => "contains",
            Self::StartsWith(_) => "starts_with",
            Self::Regex(_) => "regex",
            Self::Always => "always",
        }
    }

    /// Its values.
    pub fn values(&self) -> &[String] {
        match self {
            Self::Exact(values)
            | Self::Contains(values)
            | Self::StartsWith(values)
            | Self::Regex(values) => values,
            Self::Always => &[],
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
    /// More than a text.
    Parts(Box<Parts>),
}

/// An answer of more than a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// `reasoning`: what is thought before.
    pub reasoning: Option<Variant>,
    /// `content`, `variants` or `synthetic`; no further [`Answer::Parts`].
    pub content: Option<Answer>,
    /// `refusal`: why there is no answer.
    pub refusal: Option<String>,
    /// `tool_calls`, in this order.
    pub tool_calls: Vec<ToolCall>,
    /// `finish_reason`, if it is not the usual one.
    pub finish: Option<Finish>,
}

/// A call of a tool in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// A JSON text; what stands for placeholders in it is escaped as in a JSON string. Without it,
    /// arguments are made from the function's schema.
    pub arguments: Option<String>,
}

/// Why a scripted answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// By itself.
    Stop,
    /// As if a limit had been reached.
    Length,
    /// With calls of tools.
    ToolCalls,
    /// Something withheld the rest.
    ContentFilter,
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

/// Whether a model's answers think before they speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// As the entries say.
    #[default]
    Scripted,
    /// Never, whatever an entry says.
    Never,
    /// Always: what an entry says, else filler.
    Always(Lengths),
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
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The last user message as sent; empty if there is none.
    pub input: &'a str,
    /// The model that the request named.
    pub model: &'a str,
    /// The request's own seed.
    pub seed: Option<i64>,
    /// Which of several answers to the same request it is, from 0.
    pub choice: u32,
    /// How that model cuts its texts.
    pub tokenizer: &'a Tokenizer,
    /// The texts of all system and developer messages.
    pub system: &'a str,
    /// How many user messages there are.
    pub turn: u32,
    /// The results of tools with which the conversation ends, if it does.
    pub tool_result: Option<&'a str>,
}

impl Default for Query<'_> {
    /// Nothing said, and our own tokenizer.
    fn default() -> Self {
        Self {
            input: "",
            model: "",
            seed: None,
            choice: 0,
            tokenizer: &REGEX,
            system: "",
            turn: 0,
            tool_result: None,
        }
    }
}

/// What an entry says to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The entry; `default` if none matched.
    pub entry: Arc<str>,
    /// What further choices for this reply depend on.
    pub seed: Seed,
    /// What is thought before.
    pub reasoning: Option<Script>,
    /// The answer.
    pub content: Option<Script>,
    /// Why there is none.
    pub refusal: Option<Script>,
    /// Names of functions, and the arguments that are scripted.
    pub tool_calls: Vec<(Arc<str>, Option<String>)>,
    /// Why it ends, if not as usual.
    pub finish: Option<Finish>,
    /// How what is made of it is cut.
    pub tokenizer: Tokenizer,
}

/// All rules, compiled. Immutable; share it between threads.
#[derive(Debug)]
pub struct Responses {
    seed: i64,
    /// Of the entries that only the input decides.
    matcher: Matcher,
    /// Which entries those are.
    plain: Vec<usize>,
    /// The others, in the order of the file. Each is tried alone: there are few of them.
    conditional: Vec<Conditional>,
    entries: Vec<Entry>,
    default: Entry,
}

#[derive(Debug)]
struct Conditional {
    entry: usize,
    when: When,
    /// Nothing if the input does not matter.
    matcher: Option<Matcher>,
    /// It does not apply to a conversation that ends with the result of a tool.
    not_after_tools: bool,
}

#[derive(Debug, Default)]
struct Entry {
    id: Arc<str>,
    says: Vec<Says>,
    reasoning: Option<Says>,
    refusal: Option<Says>,
    tool_calls: Vec<(Arc<str>, Option<Template>)>,
    finish: Option<Finish>,
}

impl Entry {
    /// All that it can say.
    fn texts(&self) -> impl Iterator<Item = &Says> {
        self.says.iter().chain(&self.reasoning).chain(&self.refusal)
    }
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
        let is_plain = |rule: &Rule| {
            rule.when.is_always() && rule.operator != Operator::Always && !rule.answer.calls_tools()
        };
        let plain: Vec<usize> =
            (0..set.rules.len()).filter(|&index| is_plain(&set.rules[index])).collect();
        let compiled = |indices: &[usize]| {
            let rules: Vec<Rule> = indices.iter().map(|&index| set.rules[index].clone()).collect();
            let (matcher, mut problems) = Matcher::compile(&rules);
            for problem in &mut problems {
                problem.rule = problem.rule.map(|rule| indices[rule]);
            }
            (matcher, problems)
        };
        let (matcher, mut problems) = compiled(&plain);
        let mut conditional = Vec::new();
        for (entry, rule) in set.rules.iter().enumerate().filter(|(_, rule)| !is_plain(rule)) {
            let matcher = (rule.operator != Operator::Always).then(|| {
                let (matcher, own) = compiled(&[entry]);
                problems.extend(own);
                matcher
            });
            conditional.push(Conditional {
                entry,
                when: rule.when.clone(),
                matcher,
                not_after_tools: rule.answer.calls_tools() && rule.when.tool_result.is_empty(),
            });
        }
        let groups_of = |index: usize| match plain.binary_search(&index) {
            Ok(place) => matcher.groups(place),
            Err(_) => {
                let own = conditional.iter().find(|own: &&Conditional| own.entry == index);
                own.and_then(|own| own.matcher.as_ref()).map_or_else(Vec::new, |own| own.groups(0))
            }
        };
        let refused: BTreeSet<_> = problems.iter().map(|problem| problem.rule).collect();
        let mut ids = BTreeSet::new();
        let mut entries = Vec::with_capacity(set.rules.len());
        for (index, rule) in set.rules.iter().enumerate() {
            let place = Place { rule: Some(index), id: &rule.id };
            if !ids.insert(&rule.id) {
                problems
                    .push(place.problem("id", "this id is used by an earlier entry".to_owned()));
            }
            let mut names = groups_of(index);
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
            return Ok(Self { seed: set.seed, matcher, plain, conditional, entries, default });
        }
        problems.sort_by_key(|problem| problem.rule.unwrap_or(usize::MAX));
        Err(problems)
    }

    /// Cuts all fixed texts as `tokenizer` does, so that no request has to.
    pub fn cut_for(&self, tokenizer: &Tokenizer) {
        let entries = self.entries.iter().chain([&self.default]);
        for says in entries.flat_map(Entry::texts) {
            if let Says::Fixed(table) = says {
                table.recut(tokenizer);
            }
        }
    }

    /// The text of the reply to `query`, where nothing else can be said: the content, or else the
    /// refusal, or else one empty token.
    pub fn answer(&self, query: &Query<'_>) -> Script {
        let Reply { entry, content, refusal, .. } = self.reply(query);
        let nothing = || Script::from_table(entry, Arc::new(PieceTable::new(String::new())));
        content.or(refusal).unwrap_or_else(nothing)
    }

    /// All that is said to `query`.
    pub fn reply(&self, query: &Query<'_>) -> Reply {
        let input = query.input.trim();
        let (entry, hit) = match self.find(input, query) {
            Some((index, hit)) => (&self.entries[index], hit),
            None => (&self.default, None),
        };
        let choice = Choice::of(query.seed.unwrap_or(self.seed), &entry.id, input, query.choice);
        let id = || Arc::clone(&entry.id);
        let rendered = |template: &Template| render(template, query, input, hit.as_ref());
        let script = |says: &Says, length: &str, filler: &str| match says {
            Says::Fixed(table) => Script::from_table(id(), table.recut(query.tokenizer)),
            Says::Rendered(template) => {
                let table = PieceTable::cut(rendered(template), query.tokenizer);
                Script::from_table(id(), Arc::new(table))
            }
            Says::Filler(lengths) => {
                let len = choice.length(length, *lengths);
                Script::filler(id(), query.tokenizer, choice.seed(filler), len)
            }
        };
        let content = match &entry.says[..] {
            [] => None,
            [only] => Some(only),
            variants => Some(&variants[choice.below("variant", variants.len() as u64) as usize]),
        };
        let text = |template: &Template| match template {
            Template::Fixed(text) => text.clone(),
            parts @ Template::Parts(_) => render_json(parts, query, input, hit.as_ref()),
        };
        let calls = entry.tool_calls.iter();
        Reply {
            entry: id(),
            seed: choice.seed("reply"),
            reasoning: entry
                .reasoning
                .as_ref()
                .map(|says| script(says, "reasoning length", "reasoning filler")),
            content: content.map(|says| script(says, "length", "filler")),
            refusal: entry.refusal.as_ref().map(|says| script(says, "length", "filler")),
            tool_calls: calls
                .map(|(name, arguments)| (Arc::clone(name), arguments.as_ref().map(text)))
                .collect(),
            finish: entry.finish,
            tokenizer: query.tokenizer.clone(),
        }
    }

    /// The first entry that applies, and what of the input did.
    fn find(&self, input: &str, query: &Query<'_>) -> Option<(usize, Option<Hit<'_>>)> {
        let hit = self.matcher.find(input);
        let plain = hit.as_ref().map_or(usize::MAX, |hit| self.plain[hit.rule]);
        for own in self.conditional.iter().take_while(|own| own.entry < plain) {
            if !own.when.holds(query) || own.not_after_tools && query.tool_result.is_some() {
                continue;
            }
            match &own.matcher {
                None => return Some((own.entry, None)),
                Some(matcher) => match matcher.find(input) {
                    Some(hit) => return Some((own.entry, Some(hit))),
                    None => continue,
                },
            }
        }
        hit.map(|hit| (plain, Some(hit)))
    }
}

impl Reply {
    /// The reply of a model that thinks as `thinking` says: before a refusal, too, but not where
    /// its entry thinks already. `most` is how many tokens a client lets it think; 0 is none at
    /// all.
    #[must_use]
    pub fn thinking(mut self, thinking: Thinking, most: Option<Tokens>) -> Self {
        if thinking == Thinking::Never || most == Some(Tokens::ZERO) {
            self.reasoning = None;
        } else if let (Thinking::Always(Lengths { min, max }), None) = (thinking, &self.reasoning) {
            let choices = u64::from(max.get() - min.get()) + 1;
            let more = self.seed.with(b"reasoning length").below(choices) as u32;
            let len = min + Tokens::new(more);
            let len = most.map_or(len, |most| len.min(most));
            let filler = self.seed.with(b"reasoning filler");
            let entry = Arc::clone(&self.entry);
            self.reasoning = Some(Script::filler(entry, &self.tokenizer, filler, len));
        }
        self
    }
}

impl Answer {
    fn calls_tools(&self) -> bool {
        matches!(self, Self::Parts(parts) if !parts.tool_calls.is_empty())
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

/// The same where the text is JSON and placeholders stand in its strings.
fn render_json(
    template: &Template,
    query: &Query<'_>,
    input: &str,
    hit: Option<&Hit<'_>>,
) -> String {
    let escaped = |text: &str| {
        let mut out = Vec::new();
        escape::json_string_content(text, &mut out);
        String::from_utf8(out).expect("escapes of a text are text")
    };
    let (message, model) = (escaped(query.input), escaped(query.model));
    let values = Values { last_user_message: &message, model: &model };
    let groups: Vec<(&str, String)> = hit
        .filter(|_| template.needs_groups())
        .map_or_else(Vec::new, |hit| hit.named_groups(input))
        .into_iter()
        .map(|(name, text)| (name, escaped(text)))
        .collect();
    template.render(values, |name| {
        groups.iter().find(|(group, _)| *group == name).map_or("", |(_, text)| text)
    })
}

/// What a choice depends on; see the module's documentation.
struct Choice(Seed);

impl Choice {
    fn of(seed: i64, id: &str, input: &str, number: u32) -> Self {
        let seed = Seed::new(seed.cast_unsigned()).with(id.as_bytes()).with(input.as_bytes());
        Self(match number {
            0 => seed,
            number => seed.with(b"choice").with(&number.to_le_bytes()),
        })
    }

    fn seed(&self, purpose: &str) -> Seed {
        self.0.with(purpose.as_bytes())
    }

    fn below(&self, purpose: &str, bound: u64) -> u64 {
        if bound == 1 { 0 } else { self.seed(purpose).below(bound) }
    }

    fn length(&self, purpose: &str, lengths: Lengths) -> Tokens {
        let choices = u64::from(lengths.max.get() - lengths.min.get()) + 1;
        lengths.min + Tokens::new(self.below(purpose, choices) as u32)
    }
}

impl Entry {
    fn compile(
        answer: &Answer,
        groups: Groups<'_>,
        place: Place<'_>,
        problems: &mut Vec<RuleProblem>,
    ) -> Self {
        let mut entry = Self { id: place.id.into(), ..Self::default() };
        let text = match answer {
            Answer::Parts(parts) => {
                entry.add_parts(parts, groups, place, problems);
                let Some(content) = &parts.content else { return entry };
                content
            }
            text => text,
        };
        let says = &mut entry.says;
        let mut add = |compiled: Result<Says, Vec<String>>, field: String| {
            says.extend(kept(compiled, &field, place, problems));
        };
        match text {
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
                    let (compiled, field) = variant.compile(groups);
                    add(compiled, format!("variants[{i}]{field}"));
                }
            }
            Answer::Parts(_) => {
                let message = "an answer of parts has no parts within its content".to_owned();
                add(Err(vec![message]), "content".to_owned());
            }
        }
        entry
    }

    fn add_parts(
        &mut self,
        parts: &Parts,
        groups: Groups<'_>,
        place: Place<'_>,
        problems: &mut Vec<RuleProblem>,
    ) {
        self.finish = parts.finish;
        if let Some(reasoning) = &parts.reasoning {
            let (compiled, field) = reasoning.compile(groups);
            self.reasoning = kept(compiled, &format!("reasoning{field}"), place, problems);
        }
        if let Some(refusal) = &parts.refusal {
            self.refusal = kept(Says::text(refusal, groups), "refusal", place, problems);
        }
        for (i, call) in parts.tool_calls.iter().enumerate() {
            let arguments = call.arguments.as_ref().and_then(|text| {
                let field = format!("tool_calls[{i}].arguments");
                kept(Template::compile_with(text, groups), &field, place, problems)
            });
            self.tool_calls.push((call.name.as_str().into(), arguments));
        }
    }
}

/// What was compiled, or nothing after telling why not.
fn kept<T>(
    compiled: Result<T, Vec<String>>,
    field: &str,
    place: Place<'_>,
    problems: &mut Vec<RuleProblem>,
) -> Option<T> {
    let tell = |messages: Vec<String>| {
        problems.extend(messages.into_iter().map(|it| place.problem(field, it)));
    };
    compiled.map_err(tell).ok()
}

impl Variant {
    /// What it says, or what is wrong with it; and where in it.
    fn compile(&self, groups: Groups<'_>) -> (Result<Says, Vec<String>>, &'static str) {
        match self {
            Self::Text(text) => (Says::text(text, groups), ""),
            Self::Synthetic(lengths) => (Says::filler(*lengths), ".synthetic.tokens"),
        }
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
