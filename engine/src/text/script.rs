//! A scripted answer: its pieces, ready to be sent.
//!
//! Not a stream: a script knows nothing of how far it was sent. The one invariant: a script is a
//! pure function of the request, so an answer cut off at `max_tokens` is a shorter prefix of the
//! same pieces, and a slow reader's bytes can be made again from a range of piece numbers.

use std::ops::Range;
use std::sync::Arc;

use super::synthetic::Filler;
use super::tokenizer;
use crate::escape;
use crate::units::Tokens;

/// An answer, cut into pieces. Cheap to clone; every piece can be had in constant time. Pieces
/// count from 0; there is always at least one, since an engine makes at least one token: an empty
/// answer is one empty piece.
#[derive(Clone, Debug)]
pub struct Script {
    entry: Arc<str>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Table(Arc<PieceTable>),
    Filler(Filler),
}

impl Script {
    /// A script that says `table`, decided by the entry `entry`.
    pub fn from_table(entry: Arc<str>, table: Arc<PieceTable>) -> Self {
        Self { entry, body: Body::Table(table) }
    }

    /// A script of filler.
    ///
    /// # Panics
    /// If the filler is empty.
    pub fn from_filler(entry: Arc<str>, filler: Filler) -> Self {
        assert!(!filler.is_empty(), "an answer has at least one piece");
        Self { entry, body: Body::Filler(filler) }
    }

    /// The id of the entry that decided; `default` if none matched.
    pub fn entry_id(&self) -> &str {
        &self.entry
    }

    /// How many pieces it has; at least 1.
    pub fn len(&self) -> Tokens {
        match &self.body {
            Body::Table(table) => table.len(),
            Body::Filler(filler) => filler.len(),
        }
    }

    /// The piece at `k`.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn piece(&self, k: u32) -> &str {
        match &self.body {
            Body::Table(table) => table.piece(k),
            Body::Filler(filler) => filler.piece(k),
        }
    }

    /// The piece at `k` as the content of a JSON string, without quotes.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn escaped(&self, k: u32) -> &[u8] {
        match &self.body {
            Body::Table(table) => table.escaped(k),
            Body::Filler(filler) => filler.escaped(k),
        }
    }

    /// Appends the pieces of `range` as the content of a JSON string: one copy for a fixed text.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn append_escaped(&self, range: Range<u32>, out: &mut Vec<u8>) {
        match &self.body {
            Body::Table(table) => out.extend_from_slice(table.escaped_range(range)),
            Body::Filler(filler) => range.for_each(|k| out.extend_from_slice(filler.escaped(k))),
        }
    }

    /// Appends the pieces of `range` as they are.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn append_text(&self, range: Range<u32>, out: &mut String) {
        match &self.body {
            Body::Table(table) => out.push_str(table.text_range(range)),
            Body::Filler(filler) => range.for_each(|k| out.push_str(filler.piece(k))),
        }
    }

    /// The whole answer.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.append_text(0..self.len().get(), &mut text);
        text
    }

    /// The first `count` pieces, or all if there are fewer.
    pub fn pieces(&self, count: Tokens) -> impl Iterator<Item = &str> {
        (0..count.min(self.len()).get()).map(|k| self.piece(k))
    }
}

/// A text with its pieces and their escaped forms, cut and escaped once.
#[derive(Debug)]
pub struct PieceTable {
    text: String,
    escaped: Vec<u8>,
    /// Where each piece begins in both, and the end of the last one.
    bounds: Vec<Bound>,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    text: u32,
    escaped: u32,
}

impl PieceTable {
    /// Cuts and escapes `text`, which must be shorter than 512 MiB.
    pub fn new(text: String) -> Self {
        let mut at = 0;
        let ends = tokenizer::pieces(&text).map(|piece| {
            at += piece.len();
            at
        });
        let ends: Vec<usize> = ends.collect();
        Self::with_ends(text, &ends)
    }

    /// Escapes `text`, whose pieces end at `ends`: in order, the last at its end.
    pub(super) fn with_ends(text: String, ends: &[usize]) -> Self {
        assert!(text.len() < 512 << 20, "offsets have 32 bits, escaping takes up to six times");
        let mut escaped = Vec::with_capacity(text.len() + text.len() / 16);
        let mut bounds = Vec::with_capacity(ends.len() + 1);
        let mut at = 0;
        bounds.push(Bound { text: 0, escaped: 0 });
        for &end in ends {
            escape::json_string_content(&text[at..end], &mut escaped);
            at = end;
            bounds.push(Bound { text: end as u32, escaped: escaped.len() as u32 });
        }
        assert_eq!(at, text.len(), "the pieces are the text");
        if bounds.len() == 1 {
            bounds.push(Bound { text: 0, escaped: 0 });
        }
        Self { text, escaped, bounds }
    }

    /// How many pieces it has; at least 1.
    pub fn len(&self) -> Tokens {
        Tokens::new(self.bounds.len() as u32 - 1)
    }

    fn piece(&self, k: u32) -> &str {
        self.text_range(k..k + 1)
    }

    fn escaped(&self, k: u32) -> &[u8] {
        self.escaped_range(k..k + 1)
    }

    fn text_range(&self, range: Range<u32>) -> &str {
        let (start, end) = (self.bounds[range.start as usize], self.bounds[range.end as usize]);
        &self.text[start.text as usize..end.text as usize]
    }

    fn escaped_range(&self, range: Range<u32>) -> &[u8] {
        let (start, end) = (self.bounds[range.start as usize], self.bounds[range.end as usize]);
        &self.escaped[start.escaped as usize..end.escaped as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    fn fixed(text: &str) -> Script {
        Script::from_table("greeting".into(), Arc::new(PieceTable::new(text.to_owned())))
    }

    /// Every piece, alone between quotes, is JSON that reads back as the piece.
    fn check(script: &Script) {
        let mut text = String::new();
        let mut escaped = Vec::new();
        for k in 0..script.len().get() {
            let json = [b"\"", script.escaped(k), b"\""].concat();
            let back: String = sonic_rs::from_slice(&json).unwrap();
            assert_eq!(back, script.piece(k));
            text.push_str(script.piece(k));
            escaped.extend_from_slice(script.escaped(k));
        }
        assert_eq!(text, script.text());
        let mut at_once = Vec::new();
        script.append_escaped(0..script.len().get(), &mut at_once);
        assert_eq!(at_once, escaped);
    }

    #[test]
    fn every_piece_is_valid_json_string_content_on_its_own() {
        check(&fixed("Hello! How can I help you today?"));
        check(&fixed("\"quoted\" \\ and\n\n\ttabbed \u{1} 😀👩‍👩‍👧 \u{2028}\u{2029} naïve 你好"));
        check(&fixed(&"\u{1f}😀".repeat(1000)));
        check(&Script::from_filler("x".into(), Filler::new(Seed::new(1), Tokens::new(300))));
    }

    #[test]
    fn an_empty_answer_is_one_empty_piece() {
        let script = fixed("");
        assert_eq!(script.len(), Tokens::new(1));
        assert_eq!((script.piece(0), script.escaped(0)), ("", &b""[..]));
        check(&script);
    }

    #[test]
    fn a_cut_answer_is_a_prefix() {
        let script = fixed("one two three four");
        assert_eq!(script.pieces(Tokens::new(2)).collect::<String>(), "one two");
        assert_eq!(script.pieces(Tokens::new(99)).count(), 4);
        let mut out = String::new();
        script.append_text(1..3, &mut out);
        assert_eq!(out, " two three");
    }
}
