//! Texts without case, so that they can be compared byte by byte.
//!
//! Case is folded as a regex with `(?i)` does it: Unicode simple case folding, character by
//! character (`ß` is not `ss`; the Kelvin sign is `k`; `İ` and `ı` are only themselves). The tables
//! are those of the regex parser, so that `contains` and `regex` can never disagree.
//!
//! Not general: a [`Fold`] knows the characters of the patterns it was built for, and leaves all
//! others alone. The one invariant: a folded pattern occurs in a folded text exactly where the
//! pattern occurs in the text when case is ignored.

use std::borrow::Cow;
use std::collections::BTreeMap;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// Collects the characters of patterns while folding them.
#[derive(Debug)]
pub(super) struct FoldBuilder {
    /// Characters beyond ASCII that fold to another; and all of which that is known.
    folds: BTreeMap<char, char>,
}

impl FoldBuilder {
    pub(super) fn new() -> Self {
        let mut builder = Self { folds: BTreeMap::new() };
        // The long s and the Kelvin sign equal ASCII letters, which every pattern may have.
        ('a'..='z').for_each(|letter| builder.learn(letter));
        builder
    }

    /// The character that stands for `c` and all that equal it.
    pub(super) fn char(&mut self, c: char) -> char {
        if c.is_ascii() {
            return c.to_ascii_lowercase();
        }
        if !self.folds.contains_key(&c) {
            self.learn(c);
        }
        self.folds[&c]
    }

    /// A pattern, folded.
    pub(super) fn text(&mut self, pattern: &str) -> String {
        pattern.chars().map(|c| self.char(c)).collect()
    }

    pub(super) fn build(self) -> Fold {
        Fold { folds: self.folds.into_iter().filter(|(from, to)| from != to).collect() }
    }

    fn learn(&mut self, c: char) {
        let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
        class.try_case_fold_simple().expect("regex-syntax is built with its case folding tables");
        let orbit = || class.iter().flat_map(|range| range.start()..=range.end());
        let stands_for_all = orbit()
            .find(char::is_ascii_lowercase)
            .unwrap_or_else(|| orbit().next().expect("c is in its own orbit"));
        self.folds.extend(orbit().filter(|c| !c.is_ascii()).map(|c| (c, stands_for_all)));
    }
}

/// Folds texts for comparison with the patterns of its builder.
#[derive(Debug)]
pub(super) struct Fold {
    /// Sorted by the first.
    folds: Vec<(char, char)>,
}

/// Room for the bytes of most questions: those up to here, in ASCII, take no other memory.
pub(super) const ROOM: usize = 128;

impl Fold {
    /// `text`, folded; UTF-8. Where it may be, it is in `room`.
    pub(super) fn text_in<'a>(&self, text: &str, room: &'a mut [u8; ROOM]) -> Cow<'a, [u8]> {
        match room.get_mut(..text.len()) {
            Some(room) if text.is_ascii() => {
                room.copy_from_slice(text.as_bytes());
                room.make_ascii_lowercase();
                Cow::Borrowed(room)
            }
            _ => Cow::Owned(self.text(text)),
        }
    }

    /// `text`, folded; UTF-8.
    pub(super) fn text(&self, text: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len() + 16);
        let mut rest = text;
        while !rest.is_empty() {
            let ascii = rest.bytes().position(|byte| !byte.is_ascii()).unwrap_or(rest.len());
            let start = out.len();
            out.extend_from_slice(&rest.as_bytes()[..ascii]);
            out[start..].make_ascii_lowercase();
            rest = &rest[ascii..];
            let mut chars = rest.chars();
            while let Some(c) = chars.clone().next().filter(|c| !c.is_ascii()) {
                chars.next();
                let folded = self.folds.binary_search_by_key(&c, |fold| fold.0);
                let folded = folded.map_or(c, |at| self.folds[at].1);
                out.extend_from_slice(folded.encode_utf8(&mut [0; 4]).as_bytes());
            }
            rest = chars.as_str();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(pattern: &str, text: &str) -> bool {
        let mut builder = FoldBuilder::new();
        let folded = builder.text(pattern);
        folded.as_bytes() == builder.build().text(text)
    }

    #[test]
    fn case_is_that_of_a_case_insensitive_regex() {
        for (a, b) in [
            ("Hello", "hELLO"),
            ("k", "\u{212A}"),
            ("S", "ſ"),
            ("ÄÖÜ", "äöü"),
            ("σς", "ΣΣ"),
            ("straße", "STRAẞE"),
            ("привет", "ПРИВЕТ"),
            ("µ", "Μ"),
            ("å", "\u{212B}"),
        ] {
            assert!(same(a, b) && same(b, a), "{a} {b}");
        }
        for (a, b) in [("ß", "ss"), ("i", "İ"), ("i", "ı"), ("a", "ä"), ("é", "e\u{301}")] {
            assert!(!same(a, b) && !same(b, a), "{a} {b}");
        }
    }

    #[test]
    fn a_text_is_the_same_with_room_and_without() {
        let fold = FoldBuilder::new().build();
        for length in [0, 1, ROOM - 1, ROOM, ROOM + 1, 1000] {
            for letters in ["Az[`", "\u{212A}K"] {
                let text: String = letters.chars().cycle().take(length).collect();
                let mut room = [b'x'; ROOM];
                let folded = fold.text_in(&text, &mut room);
                assert_eq!(*folded, *fold.text(&text), "{text}");
                let has_room = matches!(folded, Cow::Borrowed(_));
                assert_eq!(has_room, text.is_ascii() && text.len() <= ROOM, "{text}");
            }
        }
    }

    /// For every cased character: it folds with exactly the characters that `(?i)` matches.
    #[test]
    fn every_cased_character_folds_with_its_regex_class() {
        let cased = (0..=0x1_F000u32)
            .filter_map(char::from_u32)
            .filter(|c| c.to_lowercase().next() != Some(*c) || c.to_uppercase().next() != Some(*c));
        for c in cased {
            let regex = regex_automata::meta::Regex::builder()
                .syntax(regex_automata::util::syntax::Config::new().case_insensitive(true))
                .build(&format!(r"\A\x{{{:X}}}\z", c as u32))
                .unwrap();
            for other in c.to_lowercase().chain(c.to_uppercase()).chain([c]) {
                let (c, other) = (c.to_string(), other.to_string());
                assert_eq!(same(&c, &other), regex.is_match(&other), "{c} {other}");
            }
        }
    }
}
