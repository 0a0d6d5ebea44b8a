//! Which rule a message matches.
//!
//! The one invariant: the result is that of trying every rule from top to bottom, every value of a
//! rule from first to last. It is found without trying most of them:
//!
//! 1. `exact` and `starts_with` values are walked along together, from the first byte of the input.
//! 2. All `contains` values, and the words that the patterns of `regex` cannot do without, are
//!    looked for in one pass (see the prefilter). A found `contains` value is a match; a found word
//!    makes its pattern a candidate.
//! 3. Only candidates that stand above the best match so far are tried, in order, and the first
//!    that matches wins.
//!
//! So the cost is one pass over the input, plus linear time for each pattern whose words occur; a
//! pattern that needs no word (`^.{500,}`) is tried on every request. Patterns cannot backtrack.
//!
//! Case is ignored as `(?i)` does it, in every operator. The input comes trimmed; an `exact` value
//! is trimmed too, and a `starts_with` value at its start, since neither could match otherwise.

use memchr::memmem;
use regex_automata::PatternID;
use regex_automata::meta::Regex;
use regex_automata::nfa::thompson::{NFA, pikevm::PikeVM};
use regex_automata::util::captures::Captures;
use regex_syntax::hir::Hir;

use super::boundary::{self, Exact};
use super::fold::{Fold, FoldBuilder, ROOM};
use super::numbers::Numbers;
use super::prefilter::{self, Found, WordId, Words, WordsBuilder};
use super::responses::{Operator, Place, Rule, RuleProblem};

/// The automaton of a pattern may take so many bytes.
const PATTERN_BYTES: usize = 4 << 20;

/// All compiled patterns together may take so many bytes: a pattern of words takes about 10 KB, one
/// with a `\w+` about 70 KB (measured), so thousands of ordinary ones fit.
const ALL_PATTERNS_BYTES: usize = 256 << 20;

/// What a pattern that was refused for its size counts as, so that a file full of them is refused
/// after a few and not after minutes.
const REFUSED_PATTERN_BYTES: usize = 16 << 20;

/// A pattern may be so long: parsing takes up to some kilobytes of memory for each byte (`\w` is a
/// list of 770 ranges).
const MAX_PATTERN_LEN: usize = 8 << 10;

/// A `contains` value is searched for by so many of its first bytes and compared in full where they
/// occur.
const MAX_WORD: usize = 64;

/// The conditions of all rules, compiled.
#[derive(Debug)]
pub struct Matcher {
    fold: Fold,
    anchored: Anchored,
    words: Words,
    /// For each word, what its presence means.
    meanings: Vec<Vec<Meaning>>,
    /// In the order of the rules and of their values.
    patterns: Vec<Pattern>,
    /// Patterns that need no word, in order.
    wordless: Vec<PatternIndex>,
    /// The first rule that is not decided by `anchored`.
    first_searched: RuleIndex,
}

type RuleIndex = usize;
type PatternIndex = u32;

/// What it means that a word occurs.
#[derive(Debug)]
enum Meaning {
    /// A `contains` rule matches, ...
    Contains {
        rule: RuleIndex,
        /// ... if all of this occurs; `None` if the word is the whole value.
        full: Option<String>,
    },
    /// A pattern may match.
    Candidate(PatternIndex),
}

/// A pattern of a `regex` rule.
#[derive(Debug)]
struct Pattern {
    rule: RuleIndex,
    search: Search,
    /// Of each of these at least one word must occur. The first makes it a candidate.
    clauses: Vec<Vec<WordId>>,
}

/// A compiled pattern.
#[derive(Debug)]
struct Search {
    /// The pattern, or its relaxed form.
    regex: Regex,
    /// The pattern itself, if `regex` is its relaxed form.
    exact: Option<Exact>,
}

impl Search {
    fn memory_usage(&self) -> usize {
        self.regex.memory_usage() + self.exact.as_ref().map_or(0, Exact::memory_usage)
    }

    fn is_match(&self, input: &str) -> bool {
        match &self.exact {
            Some(exact) => exact.is_match(&self.regex, input),
            None => self.regex.is_match(input),
        }
    }

    fn captures(&self, input: &str) -> Captures {
        match &self.exact {
            Some(exact) if !input.is_ascii() => exact.captures(&self.regex, input),
            _ => {
                let mut captures = self.regex.create_captures();
                self.regex.captures(input, &mut captures);
                captures
            }
        }
    }
}

/// The first rule that matches.
#[derive(Clone, Debug)]
pub struct Hit<'a> {
    /// Its index.
    pub rule: usize,
    /// The pattern that matched, if it is a `regex` rule.
    pattern: Option<&'a Search>,
}

impl<'a> Hit<'a> {
    /// The named groups of the match in `input`, which must be the text that was matched; empty
    /// where a group took no part.
    pub fn named_groups<'i>(&self, input: &'i str) -> Vec<(&'a str, &'i str)> {
        let Some(search) = self.pattern else { return Vec::new() };
        let captures = search.captures(input);
        let names = search.regex.group_info().pattern_names(PatternID::ZERO);
        names
            .enumerate()
            .filter_map(|(index, name)| {
                let span = captures.get_group(index);
                Some((name?, span.map_or("", |span| &input[span.range()])))
            })
            .collect()
    }
}

impl Matcher {
    /// Compiles the conditions of `rules`; what is wrong with them comes back too.
    pub fn compile(rules: &[Rule]) -> (Self, Vec<RuleProblem>) {
        let mut builder = Builder::new();
        for (index, rule) in rules.iter().enumerate() {
            builder.add(index, rule);
        }
        builder.build()
    }

    /// The names of the groups that a match of `rule` can give, sorted.
    pub fn groups(&self, rule: usize) -> Vec<String> {
        let first = self.patterns.partition_point(|pattern| pattern.rule < rule);
        let mut names: Vec<String> = self.patterns[first..]
            .iter()
            .take_while(|pattern| pattern.rule == rule)
            .flat_map(|pattern| pattern.search.regex.group_info().all_names())
            .filter_map(|(_, _, name)| name.map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The first rule that matches `input`, which has no surrounding white space.
    pub fn find(&self, input: &str) -> Option<Hit<'_>> {
        let mut room = [0; ROOM];
        let folded = self.fold.text_in(input, &mut room);
        let anchored = self.anchored.find(&folded);
        if anchored < self.first_searched {
            return Some(Hit { rule: anchored, pattern: None });
        }
        let found = self.words.find(&folded);
        let mut candidates = Numbers::none_below(self.patterns.len());
        let best = self.judge(&found, &folded, anchored, &mut candidates);
        for index in merged(self.wordless.iter().copied(), candidates.iter()) {
            let pattern = &self.patterns[index as usize];
            if pattern.rule > best {
                break;
            }
            if pattern.is_match(input, &found) {
                return Some(Hit { rule: pattern.rule, pattern: Some(&pattern.search) });
            }
        }
        (best != usize::MAX).then_some(Hit { rule: best, pattern: None })
    }

    /// Collects the patterns worth trying beside the wordless; returns the best match without any
    /// pattern, at most `best`.
    fn judge(
        &self,
        found: &Found,
        folded: &[u8],
        mut best: RuleIndex,
        candidates: &mut Numbers,
    ) -> RuleIndex {
        for word in found.ids() {
            for meaning in &self.meanings[word as usize] {
                match meaning {
                    Meaning::Candidate(pattern) => candidates.insert(*pattern),
                    Meaning::Contains { rule, full } if *rule < best => {
                        let whole = full
                            .as_ref()
                            .is_none_or(|full| memmem::find(folded, full.as_bytes()).is_some());
                        if whole {
                            best = *rule;
                        }
                    }
                    Meaning::Contains { .. } => {}
                }
            }
        }
        best
    }
}

/// The numbers of two ascending sequences, ascending.
fn merged(
    a: impl Iterator<Item = PatternIndex>,
    b: impl Iterator<Item = PatternIndex>,
) -> impl Iterator<Item = PatternIndex> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(from_a), Some(from_b)) if from_a > from_b => b.next(),
        (None, _) => b.next(),
        _ => a.next(),
    })
}

impl Pattern {
    fn is_match(&self, input: &str, found: &Found) -> bool {
        self.clauses.iter().all(|words| words.iter().any(|&word| found.has(word)))
            && self.search.is_match(input)
    }
}

/// Collects what is compiled so far.
struct Builder {
    fold: FoldBuilder,
    anchored: Vec<AnchoredValue>,
    words: WordsBuilder,
    meanings: Vec<Vec<Meaning>>,
    patterns: Vec<Pattern>,
    wordless: Vec<PatternIndex>,
    first_searched: RuleIndex,
    problems: Vec<RuleProblem>,
    /// Bytes of all patterns so far.
    pattern_bytes: usize,
}

impl Builder {
    fn new() -> Self {
        Self {
            fold: FoldBuilder::new(),
            anchored: Vec::new(),
            words: WordsBuilder::default(),
            meanings: Vec::new(),
            patterns: Vec::new(),
            wordless: Vec::new(),
            first_searched: usize::MAX,
            problems: Vec::new(),
            pattern_bytes: 0,
        }
    }

    fn add(&mut self, index: RuleIndex, rule: &Rule) {
        let place = Place { rule: Some(index), id: &rule.id };
        let operator = rule.operator.name();
        if rule.operator.values().is_empty() && rule.operator != Operator::Always {
            let message = "an empty list matches nothing; write at least one value".to_owned();
            self.problems.push(place.problem(&format!("match.{operator}"), message));
        }
        for (i, value) in rule.operator.values().iter().enumerate() {
            let added = match &rule.operator {
                Operator::Exact(_) => {
                    let folded = self.fold.text(value.trim());
                    self.anchored.push(AnchoredValue::new(folded, Some(index), None));
                    Ok(())
                }
                Operator::StartsWith(_) => self.add_starts_with(index, value),
                Operator::Contains(_) => self.add_contains(index, value),
                Operator::Regex(_) => self.add_pattern(index, value),
                Operator::Always => Ok(()),
            };
            if let Err(message) = added {
                let field = match rule.operator.values() {
                    [_] => format!("match.{operator}"),
                    _ => format!("match.{operator}[{i}]"),
                };
                self.problems.push(place.problem(&field, message));
            }
        }
    }

    fn add_starts_with(&mut self, rule: RuleIndex, value: &str) -> Result<(), String> {
        let folded = self.fold.text(value.trim_start());
        if folded.is_empty() {
            return Err(MATCHES_EVERYTHING.to_owned());
        }
        self.anchored.push(AnchoredValue::new(folded, None, Some(rule)));
        Ok(())
    }

    fn add_contains(&mut self, rule: RuleIndex, value: &str) -> Result<(), String> {
        let folded = self.fold.text(value);
        if folded.is_empty() {
            return Err(MATCHES_EVERYTHING.to_owned());
        }
        self.first_searched = self.first_searched.min(rule);
        let word = word(&folded);
        let full = (word.len() < folded.len()).then(|| folded.clone());
        self.mean(word, Meaning::Contains { rule, full });
        Ok(())
    }

    fn add_pattern(&mut self, rule: RuleIndex, pattern: &str) -> Result<(), String> {
        let hir = parse(pattern)?;
        if self.pattern_bytes > ALL_PATTERNS_BYTES {
            return Err(format!(
                "the patterns up to here already take {} MiB compiled; make those with large \
                 repetitions such as `{{500}}` smaller",
                ALL_PATTERNS_BYTES >> 20
            ));
        }
        let search = compile(&hir).inspect_err(|_| {
            self.pattern_bytes += REFUSED_PATTERN_BYTES;
        })?;
        self.pattern_bytes += search.memory_usage();
        for (_, _, name) in search.regex.group_info().all_names() {
            if let Some(name @ ("last_user_message" | "model")) = name {
                return Err(format!("the group `{name}` has the name of a placeholder; rename it"));
            }
        }
        self.first_searched = self.first_searched.min(rule);
        let index = self.patterns.len() as PatternIndex;
        let required = prefilter::required(&hir, &mut self.fold);
        match required.first() {
            Some(telling) => {
                for required in telling {
                    self.mean(word(required), Meaning::Candidate(index));
                }
            }
            None => self.wordless.push(index),
        }
        let clauses = required
            .iter()
            .map(|words| words.iter().map(|required| self.words.id(word(required))).collect())
            .collect();
        self.patterns.push(Pattern { rule, search, clauses });
        Ok(())
    }

    fn mean(&mut self, word: &str, meaning: Meaning) {
        let id = self.words.id(word) as usize;
        self.meanings.resize_with(self.meanings.len().max(id + 1), Vec::new);
        self.meanings[id].push(meaning);
    }

    fn build(mut self) -> (Matcher, Vec<RuleProblem>) {
        self.meanings.resize_with(self.words.len(), Vec::new);
        let words = self.words.build().unwrap_or_else(|error| {
            // Automata count states in 31 bits: some gigabytes of values.
            let (id, field) = (String::new(), "match.contains".to_owned());
            let message = format!("all values together are too long to search for: {error}");
            self.problems.push(RuleProblem { rule: Some(0), id, field, message });
            WordsBuilder::default().build().expect("no words make no automaton")
        });
        let matcher = Matcher {
            fold: self.fold.build(),
            anchored: Anchored::new(self.anchored),
            words,
            meanings: self.meanings,
            patterns: self.patterns,
            wordless: self.wordless,
            first_searched: self.first_searched,
        };
        (matcher, self.problems)
    }
}

const MATCHES_EVERYTHING: &str =
    "an empty value would match every message; leave it out, or put the answer under `default`";

/// What of a folded value is searched for.
fn word(folded: &str) -> &str {
    let mut end = folded.len().min(MAX_WORD);
    while !folded.is_char_boundary(end) {
        end -= 1;
    }
    &folded[..end]
}

fn parse(pattern: &str) -> Result<Hir, String> {
    if pattern.len() > MAX_PATTERN_LEN {
        return Err(format!(
            "a pattern of {} bytes; at most {MAX_PATTERN_LEN}. Split it into a list of patterns",
            pattern.len()
        ));
    }
    let mut parser = regex_syntax::ParserBuilder::new().case_insensitive(true).build();
    parser.parse(pattern).map_err(|error| {
        let (what, at) = match &error {
            regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span().start),
            regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span().start),
            _ => return format!("not a regular expression: {error}"),
        };
        format!("not a regular expression: {what} (line {}, character {})", at.line, at.column)
    })
}

fn compile(hir: &Hir) -> Result<Search, String> {
    // Without the one-pass and the full DFA: a `(?P<city>\w+)` takes 66 KB instead of 740, and one
    // matching pattern per request does not need them.
    let config = Regex::config().nfa_size_limit(Some(PATTERN_BYTES)).onepass(false).dfa(false);
    let relaxed = boundary::relaxed(hir);
    let regex = Regex::builder()
        .configure(config)
        .build_from_hir(relaxed.as_ref().unwrap_or(hir))
        .map_err(|error| too_large(error.size_limit(), &error))?;
    let exact = match relaxed {
        None => None,
        Some(_) => {
            let nfa = NFA::compiler()
                .configure(NFA::config().nfa_size_limit(Some(PATTERN_BYTES)))
                .build_from_hir(hir)
                .map_err(|error| too_large(error.size_limit(), &error))?;
            let vm = PikeVM::new_from_nfa(nfa).map_err(|error| too_large(None, &error))?;
            Some(Exact::new(vm))
        }
    };
    Ok(Search { regex, exact })
}

fn too_large(limit: Option<usize>, error: &dyn std::error::Error) -> String {
    match limit {
        Some(limit) => format!(
            "takes more than {} MiB compiled; use smaller repetitions, or `(?-u)` for classes of \
             ASCII only",
            limit >> 20
        ),
        None => format!("not a regular expression: {error}"),
    }
}

/// All `exact` and `starts_with` values, sorted, so that those that agree with the input so far are
/// neighbours.
#[derive(Debug)]
struct Anchored {
    values: Vec<AnchoredValue>,
}

#[derive(Debug)]
struct AnchoredValue {
    folded: String,
    /// The first rule that wants the input to equal it; `usize::MAX` if none.
    exact: RuleIndex,
    /// The first rule that wants the input to begin with it; `usize::MAX` if none.
    starts_with: RuleIndex,
}

impl AnchoredValue {
    fn new(folded: String, exact: Option<RuleIndex>, starts_with: Option<RuleIndex>) -> Self {
        let or_none = |rule: Option<RuleIndex>| rule.unwrap_or(usize::MAX);
        Self { folded, exact: or_none(exact), starts_with: or_none(starts_with) }
    }
}

impl Anchored {
    fn new(mut values: Vec<AnchoredValue>) -> Self {
        values.sort_by(|a, b| a.folded.cmp(&b.folded));
        values.dedup_by(|later, kept| {
            let same = later.folded == kept.folded;
            if same {
                kept.exact = kept.exact.min(later.exact);
                kept.starts_with = kept.starts_with.min(later.starts_with);
            }
            same
        });
        Self { values }
    }

    /// The first rule that matches; `usize::MAX` if none.
    fn find(&self, folded: &[u8]) -> RuleIndex {
        let mut best = usize::MAX;
        // All that begin with the first `depth` bytes of the input.
        let mut alike = &self.values[..];
        for depth in 0.. {
            if let Some((first, rest)) = alike.split_first()
                && first.folded.len() == depth
            {
                best = best.min(first.starts_with);
                if folded.len() == depth {
                    best = best.min(first.exact);
                }
                alike = rest;
            }
            let Some(&byte) = folded.get(depth) else { break };
            let at_depth = |value: &AnchoredValue| value.folded.as_bytes()[depth];
            let start = alike.partition_point(|value| at_depth(value) < byte);
            let end = alike.partition_point(|value| at_depth(value) <= byte);
            alike = &alike[start..end];
            if alike.is_empty() {
                break;
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::responses::{Answer, When};

    fn rule(id: &str, operator: Operator) -> Rule {
        Rule {
            id: id.to_owned(),
            operator,
            when: When::default(),
            answer: Answer::Content(String::new()),
        }
    }

    fn rules(operators: &[Operator]) -> Vec<Rule> {
        operators.iter().map(|operator| rule("x", operator.clone())).collect()
    }

    fn list(values: &[&str]) -> Vec<String> {
        values.iter().map(|&value| value.to_owned()).collect()
    }

    fn exact(values: &[&str]) -> Operator {
        Operator::Exact(list(values))
    }

    fn contains(values: &[&str]) -> Operator {
        Operator::Contains(list(values))
    }

    fn starts_with(values: &[&str]) -> Operator {
        Operator::StartsWith(list(values))
    }

    fn regex(values: &[&str]) -> Operator {
        Operator::Regex(list(values))
    }

    fn check(operators: &[Operator], input: &str, expected: Option<usize>) {
        let (matcher, problems) = Matcher::compile(&rules(operators));
        assert_eq!(problems, []);
        assert_eq!(matcher.find(input).map(|hit| hit.rule), expected, "{operators:?} {input:?}");
    }

    #[test]
    fn each_operator_matches_what_the_manual_says() {
        check(&[exact(&["hi", "hello"])], "HELLO", Some(0));
        check(&[exact(&["hi", "hello"])], "hello!", None);
        check(&[contains(&["explain"])], "Please EXPLAIN this", Some(0));
        check(&[contains(&["explain"])], "exp lain", None);
        check(&[starts_with(&["/echo"])], "/Echo abc", Some(0));
        check(&[starts_with(&["/echo"])], "no /echo", None);
        check(&[starts_with(&["[short] "])], "[short] lorem", Some(0));
        check(&[regex(&[r"weather in (?P<city>\w+)"])], "The Weather in Oslo?", Some(0));
        check(&[regex(&["^a.c$"])], "abcd", None);
        check(&[exact(&[""])], "", Some(0));
    }

    #[test]
    fn the_first_rule_that_matches_wins_whatever_its_operator() {
        let all = [regex(&["h.llo"]), contains(&["ello"]), starts_with(&["he"]), exact(&["hello"])];
        check(&all, "hello", Some(0));
        check(&all[1..], "hello", Some(0));
        check(&all[2..], "hello", Some(0));
        let reversed: Vec<Operator> = all.iter().rev().cloned().collect();
        check(&reversed, "hello", Some(0));
        check(&reversed, "hello there", Some(1));
        check(&reversed, "a hello", Some(2));
        check(&reversed, "hallo", Some(3));
        check(&reversed, "bye", None);
    }

    #[test]
    fn patterns_with_and_without_words_are_tried_in_their_order() {
        // More candidates than a few, and a pattern that needs no word among them.
        let words: Vec<String> = (0..40).map(|i| format!("w{i:02} .*$")).collect();
        let mut all: Vec<Operator> =
            words.iter().map(|word| regex(&[word.as_str(), "never"])).collect();
        all.insert(20, regex(&["^.{150,}$"]));
        let input: String = (0..40).rev().map(|i| format!("w{i:02} ")).collect();
        check(&all, &input, Some(0));
        check(&all, input.trim_end_matches("w00 "), Some(1));
        check(&all, &input[..19 * 4], Some(22));
        check(&all, &"-".repeat(150), Some(20));
        check(&all, &format!("{} w30 .", "-".repeat(150)), Some(20));
        check(&all, &format!("{} w10 .", "-".repeat(150)), Some(10));
    }

    #[test]
    fn values_longer_than_the_searched_word_are_compared_in_full() {
        let long = "a".repeat(200);
        check(&[contains(&[&format!("{long}b")])], &format!("x{long}"), None);
        check(&[contains(&[&format!("{long}b")])], &format!("x{long}B"), Some(0));
        check(&[regex(&[&format!("{long}b")])], &format!("x{long}"), None);
        check(&[regex(&[&format!("{long}b")])], &format!("x{long}B"), Some(0));
    }

    #[test]
    fn named_groups_are_those_of_the_pattern_that_matched() {
        let operator = regex(&[r"from (?P<from>\w+)( to (?P<to>\w+))?", r"to (?P<to>\w+)"]);
        let (matcher, _) = Matcher::compile(&rules(&[operator]));
        assert_eq!(matcher.groups(0), ["from", "to"]);
        let groups = |input| matcher.find(input).unwrap().named_groups(input);
        assert_eq!(groups("from Oslo to Bergen"), [("from", "Oslo"), ("to", "Bergen")]);
        assert_eq!(groups("from Oslo"), [("from", "Oslo"), ("to", "")]);
        assert_eq!(groups("to Bergen"), [("to", "Bergen")]);
    }

    fn check_problem(operator: Operator, words: &str) {
        let (_, problems) = Matcher::compile(&rules(std::slice::from_ref(&operator)));
        assert_eq!(problems.len(), 1, "{operator:?}: {problems:?}");
        assert!(problems[0].message.contains(words), "{operator:?}: {problems:?}");
    }

    #[test]
    fn what_cannot_be_matched_is_a_problem_and_not_a_hang() {
        check_problem(regex(&["a(b"]), "unclosed group (line 1, character 2)");
        check_problem(regex(&["(?=a)b"]), "look-around");
        check_problem(regex(&[r"(a)\1"]), "backreferences are not supported");
        check_problem(regex(&[r"\w{2000}"]), "MiB compiled");
        check_problem(regex(&["((a{100}){100}){100}"]), "MiB compiled");
        check_problem(regex(&[&"a".repeat(10_000)]), "at most 8192");
        check_problem(regex(&[&"(".repeat(1_000)]), "not a regular expression");
        check_problem(regex(&["(?P<model>a)"]), "the name of a placeholder");
        check_problem(contains(&[""]), "match every message");
        check_problem(starts_with(&["  "]), "match every message");
        check_problem(exact(&[]), "empty list");
    }

    #[test]
    fn a_file_full_of_huge_patterns_is_refused_early() {
        let bombs = vec![regex(&["((a{100}){100}){100}"]); 1000];
        let (_, problems) = Matcher::compile(&rules(&bombs));
        assert_eq!(problems.len(), 1000);
        assert!(problems[999].message.contains("already take 256 MiB"), "{}", problems[999]);
    }
}
