//! Words without which a rule cannot match, and one search for all of them.
//!
//! Not a matcher: it says which rules are worth trying. The one invariant: a rule that matches is
//! never left out. What the words of a regex are is read off its syntax tree: a match of
//! `\b(hamlet|macbeth)\b.*ghost` must contain `hamlet` or `macbeth`, and it must contain `ghost`.
//!
//! All words here are folded (see [`super::fold`]) and so are the texts that they are looked for
//! in.

use std::collections::BTreeMap;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, MatchKind, StartKind, dfa, nfa::contiguous};
use regex_syntax::hir::{Class, Hir, HirKind, Repetition};

use super::fold::FoldBuilder;
use super::numbers::Numbers;

/// Words of which a match must contain at least one.
pub(super) type Clause = Vec<String>;

/// Clauses that all hold for every match of `hir`, the most telling one first; empty if nothing is
/// known.
pub(super) fn required(hir: &Hir, fold: &mut FoldBuilder) -> Vec<Clause> {
    let facts = Facts::of(hir, fold);
    let mut clauses = facts.into_clauses();
    // A long word is rare, and few words are rarer than many.
    clauses.sort_by_key(|clause| {
        let shortest = clause.iter().map(String::len).min().unwrap_or(0);
        (std::cmp::Reverse(shortest.min(8)), clause.len())
    });
    clauses.truncate(MAX_CLAUSES);
    clauses
}

const MAX_CLAUSES: usize = 8;

/// An alternation of more words than this is not followed.
const MAX_WORDS: usize = 64;

/// A character class of more members than this counts as 'anything'.
const MAX_CLASS: u32 = 16;

/// What is known of all matches of an expression.
enum Facts {
    /// A match is one of these, folded.
    OneOf(Vec<String>),
    /// A match satisfies all of these.
    All(Vec<Clause>),
}

impl Facts {
    const NOTHING: Self = Self::All(Vec::new());

    fn empty_match() -> Self {
        Self::OneOf(vec![String::new()])
    }

    fn of(hir: &Hir, fold: &mut FoldBuilder) -> Self {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => Self::empty_match(),
            HirKind::Literal(literal) => match std::str::from_utf8(&literal.0) {
                Ok(text) => Self::OneOf(vec![fold.text(text)]),
                Err(_) => Self::NOTHING,
            },
            HirKind::Class(class) => Self::of_class(class, fold),
            HirKind::Repetition(repetition) => Self::of_repetition(repetition, fold),
            HirKind::Capture(capture) => Self::of(&capture.sub, fold),
            HirKind::Concat(parts) => Self::of_concat(parts, fold),
            HirKind::Alternation(arms) => Self::of_alternation(arms, fold),
        }
    }

    fn of_class(class: &Class, fold: &mut FoldBuilder) -> Self {
        let mut words = Vec::new();
        match class {
            Class::Unicode(class) => {
                let size = class.iter().map(|range| range.len() as u32).sum::<u32>();
                if size > MAX_CLASS {
                    return Self::NOTHING;
                }
                let chars = class.iter().flat_map(|range| range.start()..=range.end());
                words.extend(chars.map(|c| fold.char(c).to_string()));
            }
            Class::Bytes(class) => {
                let size = class.iter().map(|range| range.len() as u32).sum::<u32>();
                if size > MAX_CLASS || !class.is_ascii() {
                    return Self::NOTHING;
                }
                let bytes = class.iter().flat_map(|range| range.start()..=range.end());
                words.extend(bytes.map(|byte| fold.char(char::from(byte)).to_string()));
            }
        }
        words.sort_unstable();
        words.dedup();
        // A class without members matches nothing; to claim nothing is right for it too.
        if words.is_empty() { Self::NOTHING } else { Self::OneOf(words) }
    }

    fn of_repetition(repetition: &Repetition, fold: &mut FoldBuilder) -> Self {
        let facts = Self::of(&repetition.sub, fold);
        match (repetition.min, repetition.max, facts) {
            (0, Some(1), Self::OneOf(mut words)) => {
                words.push(String::new());
                Self::OneOf(words)
            }
            (0, _, _) => Self::NOTHING,
            (1, Some(1), facts) => facts,
            (_, _, facts) => Self::All(facts.into_clauses()),
        }
    }

    fn of_concat(parts: &[Hir], fold: &mut FoldBuilder) -> Self {
        let mut clauses = Vec::new();
        let mut run = vec![String::new()];
        let mut whole = true;
        for part in parts {
            match Self::of(part, fold) {
                Self::OneOf(words) if run.len() * words.len() <= MAX_WORDS => {
                    run = products(&run, &words);
                }
                facts => {
                    whole = false;
                    clauses.extend(as_clause(std::mem::replace(&mut run, vec![String::new()])));
                    clauses.extend(facts.into_clauses());
                }
            }
        }
        if whole {
            return Self::OneOf(run);
        }
        clauses.extend(as_clause(run));
        Self::All(clauses)
    }

    fn of_alternation(arms: &[Hir], fold: &mut FoldBuilder) -> Self {
        let arms: Vec<Self> = arms.iter().map(|arm| Self::of(arm, fold)).collect();
        let mut words = Vec::new();
        let mut exact = true;
        for arm in arms {
            match arm {
                Self::OneOf(more) => words.extend(more),
                Self::All(clauses) => {
                    exact = false;
                    let best = clauses
                        .into_iter()
                        .max_by_key(|clause| clause.iter().map(String::len).min().unwrap_or(0));
                    let Some(best) = best else { return Self::NOTHING };
                    words.extend(best);
                }
            }
        }
        words.sort_unstable();
        words.dedup();
        match (words.len() <= MAX_WORDS, exact) {
            (true, true) => Self::OneOf(words),
            (true, false) => Self::All(as_clause(words).into_iter().collect()),
            (false, _) => Self::NOTHING,
        }
    }

    fn into_clauses(self) -> Vec<Clause> {
        match self {
            Self::OneOf(words) => as_clause(words).into_iter().collect(),
            Self::All(clauses) => clauses,
        }
    }
}

/// The clause that one of `words` must occur; `None` if that says nothing.
fn as_clause(mut words: Vec<String>) -> Option<Clause> {
    words.sort_unstable();
    words.dedup();
    let telling = words.iter().all(|word| !word.is_empty());
    telling.then_some(words)
}

/// Every word of `heads` followed by every word of `tails`.
fn products(heads: &[String], tails: &[String]) -> Vec<String> {
    heads.iter().flat_map(|head| tails.iter().map(move |tail| format!("{head}{tail}"))).collect()
}

/// The number of a word in a [`Words`].
pub(super) type WordId = u32;

/// Collects words; equal ones get the same number.
#[derive(Debug, Default)]
pub(super) struct WordsBuilder {
    words: Vec<String>,
    ids: BTreeMap<String, WordId>,
}

impl WordsBuilder {
    /// The number of `word`, which must not be empty.
    pub(super) fn id(&mut self, word: &str) -> WordId {
        assert!(!word.is_empty(), "an empty word is everywhere");
        if let Some(&id) = self.ids.get(word) {
            return id;
        }
        let id = self.words.len() as WordId;
        self.words.push(word.to_owned());
        self.ids.insert(word.to_owned(), id);
        id
    }

    /// How many words there are.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The search for all of them; an error if they are too many and too long to hold.
    pub(super) fn build(self) -> Result<Words, aho_corasick::BuildError> {
        let bytes: usize = self.words.iter().map(String::len).sum();
        let longest = self.words.iter().map(String::len).max().unwrap_or(0);
        let search = if self.words.is_empty() {
            Search::Nothing
        } else if bytes <= DFA_BYTES {
            let mut builder = dfa::Builder::new();
            builder.match_kind(MatchKind::Standard).start_kind(StartKind::Unanchored);
            Search::Fast(Box::new(builder.prefilter(false).build(&self.words)?))
        } else {
            let mut builder = contiguous::Builder::new();
            builder.match_kind(MatchKind::Standard);
            Search::Small(Box::new(builder.prefilter(false).build(&self.words)?))
        };
        Ok(Words { search, count: self.words.len(), longest })
    }
}

/// Up to so many bytes of words get a table of all transitions, which takes about 200 bytes for
/// each (ASCII words; the transitions of a state, 4 bytes for each class of equivalent bytes).
const DFA_BYTES: usize = 64 << 10;

/// All words, searched for in one pass.
#[derive(Debug)]
pub(super) struct Words {
    search: Search,
    count: usize,
    /// Bytes of the longest word.
    longest: usize,
}

#[derive(Debug)]
enum Search {
    Nothing,
    Fast(Box<dfa::DFA>),
    Small(Box<contiguous::NFA>),
}

impl Words {
    /// Which words occur in `text`: one pass, whatever their number.
    pub(super) fn find(&self, text: &[u8]) -> Found {
        let mut found = Found(Numbers::none_below(self.count));
        match &self.search {
            Search::Nothing => {}
            Search::Fast(automaton) => search(&**automaton, text, self.longest, &mut found),
            Search::Small(automaton) => search(&**automaton, text, self.longest, &mut found),
        }
        found
    }
}

/// The words that occur in a text.
#[derive(Debug)]
pub(super) struct Found(Numbers);

impl Found {
    /// The words, by number.
    pub(super) fn ids(&self) -> impl Iterator<Item = WordId> {
        self.0.iter()
    }

    /// Whether `word` occurs.
    pub(super) fn has(&self, word: WordId) -> bool {
        self.0.has(word)
    }
}

/// Texts from this length on are searched in [`LANES`] parts at once.
const LONG: usize = 2 << 10;

/// A step waits for the table look-up of the step before, 5 to 6 cycles, in which a core can do
/// four such look-ups.
const LANES: usize = 4;

fn search<A: Automaton>(automaton: &A, text: &[u8], longest: usize, found: &mut Found) {
    let mut notes = Notes::new(automaton, found);
    let part = text.len() / LANES;
    if text.len() < LONG || part < longest {
        notes.walk(notes.start, text);
        return;
    }
    // A word across a border is found by the lane in which it ends, which begins early enough.
    let mut states: [StateID; LANES] = std::array::from_fn(|lane| {
        let border = lane * part;
        notes.walk(notes.start, &text[border.saturating_sub(longest)..border])
    });
    let [a, b, c, d]: [&[u8]; LANES] = std::array::from_fn(|lane| &text[lane * part..][..part]);
    for (((&a, &b), &c), &d) in a.iter().zip(b).zip(c).zip(d) {
        for (state, byte) in states.iter_mut().zip([a, b, c, d]) {
            *state = automaton.next_state(Anchored::No, *state, byte);
            notes.note(*state);
        }
    }
    notes.walk(states[LANES - 1], &text[LANES * part..]);
}

/// Notes the words of the states that are passed.
struct Notes<'a, A> {
    automaton: &'a A,
    start: StateID,
    found: &'a mut Found,
    /// States whose words were noted lately: a word on every line, or `aaaa…` where `a`, `aa`,
    /// `aaa`, … are words, must not cost a list of words every time.
    lately: [StateID; 64],
}

impl<'a, A: Automaton> Notes<'a, A> {
    fn new(automaton: &'a A, found: &'a mut Found) -> Self {
        let start = automaton
            .start_state(Anchored::No)
            .expect("both automata are built with an unanchored start state");
        // The start state has no words, since no word is empty.
        Self { automaton, start, found, lately: [start; 64] }
    }

    /// Passes from `state` through `bytes`; returns the state after them.
    fn walk(&mut self, mut state: StateID, bytes: &[u8]) -> StateID {
        for &byte in bytes {
            state = self.automaton.next_state(Anchored::No, state, byte);
            self.note(state);
        }
        state
    }

    #[inline(always)]
    fn note(&mut self, state: StateID) {
        if self.automaton.is_special(state) && self.automaton.is_match(state) {
            self.note_words(state);
        }
    }

    #[inline(never)]
    fn note_words(&mut self, state: StateID) {
        let slot = (state.as_u32() >> 4) as usize % self.lately.len();
        if self.lately[slot] == state {
            return;
        }
        self.lately[slot] = state;
        for i in 0..self.automaton.match_len(state) {
            self.found.0.insert(self.automaton.match_pattern(state, i).as_u32());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, expected: &[&str]) {
        let hir = regex_syntax::ParserBuilder::new()
            .case_insensitive(true)
            .build()
            .parse(pattern)
            .unwrap();
        let got: Vec<String> = required(&hir, &mut FoldBuilder::new())
            .into_iter()
            .map(|clause| clause.join("|"))
            .collect();
        assert_eq!(got, expected, "{pattern}");
    }

    #[test]
    fn the_words_of_a_pattern_are_found() {
        check("hamlet", &["hamlet"]);
        check(r"\bHamlet\b", &["hamlet"]);
        check(r"weather in (?P<city>\w+)", &["weather in "]);
        check(r"\b(hamlet|macbeth)\b.*ghost", &["hamlet|macbeth", "ghost"]);
        check(r"who (wrote|is the author of) (?P<book>.+)", &["who is the author of |who wrote "]);
        check(r"colou?r", &["color|colour"]);
        check(r"(ab)+c", &["ab", "c"]);
        check(r"straße|STRASSE", &["strasse|straße"]);
        check(r"gr[ae]y", &["gray|grey"]);
        check(r"\d+ (apples|pears) and \d+ plums", &[" apples and | pears and ", " plums"]);
    }

    #[test]
    fn a_pattern_that_needs_no_word_is_tried_always() {
        for pattern in ["^.{500,}", r"\w+", "(a|b*)", "", "x?", r"(foo|\d+)", "[a-z]+", "(?:a|)b?"]
        {
            check(pattern, &[]);
        }
    }

    #[test]
    fn one_pass_finds_all_words() {
        let mut builder = WordsBuilder::default();
        let words = ["he", "she", "his", "hers", "a", "aa", "aaaa"];
        let ids: Vec<WordId> = words.iter().map(|word| builder.id(word)).collect();
        assert_eq!(builder.id("she"), ids[1]);
        let built = builder.build().unwrap();
        let found = built.find(b"ushers aa");
        let got: Vec<&str> =
            (0..words.len()).filter(|&i| found.has(ids[i])).map(|i| words[i]).collect();
        assert_eq!(got, ["he", "she", "hers", "a", "aa"]);
        assert_eq!(found.ids().count(), 5);
    }

    #[test]
    fn a_word_is_found_wherever_it_stands_in_a_long_text() {
        let mut builder = WordsBuilder::default();
        let needle = builder.id("needle in the hay");
        let absent = builder.id("no such word");
        let built = builder.build().unwrap();
        for length in [LONG - 1, LONG, LONG + 3] {
            for at in 0..length - 17 {
                let mut text = vec![b'n'; length];
                text[at..at + 17].copy_from_slice(b"needle in the hay");
                let found = built.find(&text);
                assert!(found.has(needle) && !found.has(absent), "at {at} of {length}");
            }
        }
    }
}
