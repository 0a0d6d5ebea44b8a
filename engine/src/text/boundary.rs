//! Patterns with `\b`, made fit for texts that are not all ASCII.
//!
//! A lazy DFA does not know Unicode's word boundaries: on a text with a single `é` the regex engine
//! falls back to simulating an NFA, 46 ns a byte instead of 1.5 (measured with `llmsim-perf
//! matching`), which for a prompt of 64 KB is a lag of 3 ms. ASCII's word boundaries it knows. So a
//! pattern is searched for with those first, and only what was found is checked with the others.
//!
//! The one invariant: in a text without [`FOLD_TO_ASCII`], whatever the exact pattern matches, the
//! relaxed one matches too, from the same start; in a text of ASCII they are the same. That holds
//! for a boundary beside which the pattern itself demands an ASCII word character, as in
//! `\bhamlet\b`: the character on the other side is then no word character of Unicode, so it is
//! none of ASCII. Other patterns (`\b\w+`, `\bécole`) have no relaxed form.

use std::ops::Range;

use regex_automata::meta::Regex;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::captures::Captures;
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Capture, Class, Hir, HirKind, Look, Repetition};

/// The characters beyond ASCII that `(?i)` takes for ASCII letters: a pattern that demands `k` also
/// matches the Kelvin sign, which is no ASCII word character.
const FOLD_TO_ASCII: [char; 2] = ['\u{17F}', '\u{212A}'];

/// `hir` with ASCII word boundaries; `None` if it has no others, or they cannot be relaxed.
pub(super) fn relaxed(hir: &Hir) -> Option<Hir> {
    hir.properties().look_set().contains_word_unicode().then(|| relax(hir)).flatten()
}

/// The exact form of a relaxed pattern.
#[derive(Debug)]
pub(super) struct Exact {
    vm: PikeVM,
}

impl Exact {
    pub(super) fn new(vm: PikeVM) -> Self {
        Self { vm }
    }

    pub(super) fn memory_usage(&self) -> usize {
        self.vm.get_nfa().memory_usage()
    }

    /// Whether `text` contains a match, given the relaxed form.
    pub(super) fn is_match(&self, relaxed: &Regex, text: &str) -> bool {
        if text.is_ascii() {
            return relaxed.is_match(text);
        }
        let start = if text.contains(FOLD_TO_ASCII) {
            0
        } else {
            let Some(found) = relaxed.find(text) else { return false };
            if boundaries_hold(text, found.range()) {
                return true;
            }
            found.start()
        };
        let mut cache = self.vm.create_cache();
        let rest = Input::new(text).span(start..text.len()).earliest(true);
        self.vm.is_match(&mut cache, rest.clone().anchored(Anchored::Yes))
            || self.vm.is_match(&mut cache, rest)
    }

    /// The groups of the first match.
    pub(super) fn captures(&self, relaxed: &Regex, text: &str) -> Captures {
        let mut captures = self.vm.create_captures();
        // No exact match starts before the first relaxed one.
        let start = match relaxed.find(text) {
            Some(found) if !text.contains(FOLD_TO_ASCII) => found.start(),
            _ => 0,
        };
        let mut cache = self.vm.create_cache();
        self.vm.captures(&mut cache, Input::new(text).span(start..text.len()), &mut captures);
        captures
    }
}

/// Whether all ASCII word boundaries in `range` of `text`, its ends included, are also Unicode's:
/// no word character of ASCII stands beside one that is not of ASCII. Then a relaxed match there is
/// an exact one.
fn boundaries_hold(text: &str, range: Range<usize>) -> bool {
    let before = text[..range.start].chars().next_back();
    let after = text[range.end..].chars().next();
    let mut last = WordChar::None;
    for c in before.into_iter().chain(text[range].chars()).chain(after) {
        let kind = match c {
            _ if c.is_ascii_alphanumeric() || c == '_' => WordChar::Ascii,
            _ if !c.is_ascii() && regex_syntax::is_word_character(c) => WordChar::Other,
            _ => WordChar::None,
        };
        match (last, kind) {
            (WordChar::Ascii, WordChar::Other) | (WordChar::Other, WordChar::Ascii) => {
                return false;
            }
            _ => last = kind,
        }
    }
    true
}

/// Which word characters a character is one of.
#[derive(Clone, Copy)]
enum WordChar {
    Ascii,
    Other,
    None,
}

fn relax(hir: &Hir) -> Option<Hir> {
    Some(match hir.kind() {
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => hir.clone(),
        HirKind::Look(look) => {
            let mut unicode = hir.properties().look_set();
            unicode = unicode.remove(Look::WordAscii).remove(Look::WordAsciiNegate);
            if unicode.contains_word() {
                return None;
            }
            Hir::look(*look)
        }
        HirKind::Repetition(repetition) => Hir::repetition(Repetition {
            sub: Box::new(relax(&repetition.sub)?),
            ..repetition.clone()
        }),
        HirKind::Capture(capture) => {
            Hir::capture(Capture { sub: Box::new(relax(&capture.sub)?), ..capture.clone() })
        }
        HirKind::Alternation(arms) => {
            Hir::alternation(arms.iter().map(relax).collect::<Option<_>>()?)
        }
        HirKind::Concat(parts) => {
            let mut out = Vec::with_capacity(parts.len());
            for (at, part) in parts.iter().enumerate() {
                let is_boundary = matches!(part.kind(), HirKind::Look(Look::WordUnicode));
                let (before, after) = (&parts[..at], &parts[at + 1..]);
                out.push(match is_boundary {
                    true if meets_word(before.iter().rev(), Edge::End)
                        || meets_word(after.iter(), Edge::Start) =>
                    {
                        Hir::look(Look::WordAscii)
                    }
                    true => return None,
                    false => relax(part)?,
                });
            }
            Hir::concat(out)
        }
    })
}

#[derive(Clone, Copy)]
enum Edge {
    Start,
    End,
}

/// Whether the first of `parts` that takes a character always takes an ASCII word character (or one
/// that folds to it) at this edge.
fn meets_word<'a>(mut parts: impl Iterator<Item = &'a Hir>, edge: Edge) -> bool {
    parts
        .find(|part| !matches!(part.kind(), HirKind::Look(_)))
        .is_some_and(|part| is_word_at(part, edge))
}

fn is_word_at(hir: &Hir, edge: Edge) -> bool {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => false,
        HirKind::Literal(literal) => match edge {
            Edge::Start => literal.0.first().copied().is_some_and(is_word_byte),
            Edge::End => literal.0.last().copied().is_some_and(is_word_byte),
        },
        HirKind::Class(Class::Unicode(class)) => class.iter().all(|range| {
            let is_word =
                |c: char| FOLD_TO_ASCII.contains(&c) || u8::try_from(c).is_ok_and(is_word_byte);
            range.len() < 64 && (range.start()..=range.end()).all(is_word)
        }),
        HirKind::Class(Class::Bytes(class)) => {
            class.iter().all(|range| (range.start()..=range.end()).all(is_word_byte))
        }
        HirKind::Repetition(repetition) => repetition.min > 0 && is_word_at(&repetition.sub, edge),
        HirKind::Capture(capture) => is_word_at(&capture.sub, edge),
        HirKind::Alternation(arms) => arms.iter().all(|arm| is_word_at(arm, edge)),
        HirKind::Concat(parts) => match edge {
            Edge::Start => meets_word(parts.iter(), edge),
            Edge::End => meets_word(parts.iter().rev(), edge),
        },
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, has_relaxed_form: bool) {
        let mut parser = regex_syntax::ParserBuilder::new().case_insensitive(true).build();
        let hir = parser.parse(pattern).unwrap();
        assert_eq!(relaxed(&hir).is_some(), has_relaxed_form, "{pattern}");
    }

    #[test]
    fn boundaries_beside_ascii_words_can_be_relaxed() {
        check(r"\bhamlet\b", true);
        check(r"\b(who|when)\b.*\b(?P<title>king lear|othello)s?\b", false);
        check(r"\b(who|when)\b.*\b(?P<title>king lear|othello)\b", true);
        check(r"^\bkings+\b$", true);
        check(r"hamlet", false);
        check(r"\b\w+", false);
        check(r"\bécole\b", false);
        check(r"a\Bb", false);
        check(r"\b.foo", false);
        check(r"\b 'foo", false);
        check(r"(\b|x)foo", false);
    }
}
