//! A scripted answer: its pieces, ready to be sent.
//!
//! Not a stream: a script knows nothing of how far it was sent. The one invariant: a script is a
//! pure function of the request, so an answer cut off at `max_tokens` is a shorter prefix of the
//! same pieces, and a slow reader's bytes can be made again from a range of piece numbers.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::model_tokenizer::{ModelTokenizer, Token, Tokenizer};
use super::own_bytes;
use super::synthetic::Filler;
use super::tokenizer;
use crate::escape;
use crate::seed::Seed;
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
    /// Filler of single tokens of a real model.
    Words(Arc<ModelTokenizer>, Words),
}

/// How many words, and which.
#[derive(Clone, Copy, Debug)]
struct Words {
    base: u64,
    len: Tokens,
}

impl Words {
    fn at<'a>(&self, model: &'a ModelTokenizer, k: u32) -> (&'a str, u32) {
        assert!(k < self.len.get(), "word {k} of {}", self.len);
        model.filler_word(Seed::new(self.base.wrapping_add(u64::from(k))).value())
    }
}

impl Script {
    /// A script that says `table`, decided by the entry `entry`.
    pub fn from_table(entry: Arc<str>, table: Arc<PieceTable>) -> Self {
        Self { entry, body: Body::Table(table) }
    }

    /// Filler of `len` tokens of `tokenizer` that belongs to `seed`.
    ///
    /// # Panics
    /// If `len` is zero.
    pub fn filler(entry: Arc<str>, tokenizer: &Tokenizer, seed: Seed, len: Tokens) -> Self {
        assert!(len > Tokens::ZERO, "an answer has at least one piece");
        let body = match tokenizer {
            Tokenizer::Regex => Body::Filler(Filler::new(seed, len)),
            Tokenizer::Model(model) if model.has_filler_words() => {
                Body::Words(Arc::clone(model), Words { base: seed.value(), len })
            }
            Tokenizer::Model(model) => {
                let (text, cut) = model.cut_filler(seed, len);
                Body::Table(Arc::new(PieceTable::of_ids(text, &cut.ends, cut.ids, model)))
            }
        };
        Self { entry, body }
    }

    /// The id of the entry that decided; `default` if none matched.
    pub fn entry_id(&self) -> &str {
        &self.entry
    }

    /// Bytes that it takes in memory, about: none to speak of if it is made when it is wanted.
    pub(super) fn size(&self) -> usize {
        match &self.body {
            Body::Table(table) => table.size(),
            Body::Filler(_) | Body::Words(..) => 0,
        }
    }

    /// How many pieces it has; at least 1.
    pub fn len(&self) -> Tokens {
        match &self.body {
            Body::Table(table) => table.len(),
            Body::Filler(filler) => filler.len(),
            Body::Words(_, words) => words.len,
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
            Body::Words(model, words) => words.at(model, k).0,
        }
    }

    /// The bytes of the token at `k`: of a part of a character that part, where the piece is
    /// nothing or the whole.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn bytes(&self, k: u32) -> &[u8] {
        match &self.body {
            Body::Table(table) => table.bytes(k),
            _ => self.piece(k).as_bytes(),
        }
    }

    /// The token at `k`.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn token(&self, k: u32) -> Token<'_> {
        match &self.body {
            Body::Table(table) => table.token(k),
            Body::Filler(filler) => Token::Piece(filler.piece(k)),
            Body::Words(model, words) => Token::Id(words.at(model, k).1),
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
            // Letters and a space.
            Body::Words(model, words) => words.at(model, k).0.as_bytes(),
        }
    }

    /// Appends the pieces of `range` as they are.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn append_text(&self, range: Range<u32>, out: &mut String) {
        match &self.body {
            Body::Table(table) => out.push_str(table.text_range(range)),
            Body::Filler(_) | Body::Words(..) => range.for_each(|k| out.push_str(self.piece(k))),
        }
    }

    /// Appends the pieces of `range` as the content of a JSON string.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn append_escaped(&self, range: Range<u32>, out: &mut Vec<u8>) {
        match &self.body {
            Body::Table(table) => out.extend_from_slice(table.escaped_range(range)),
            Body::Filler(filler) => filler.append_escaped(range, out),
            Body::Words(..) => range.for_each(|k| out.extend_from_slice(self.escaped(k))),
        }
    }

    /// The escaped texts of pieces, if they stand somewhere one behind the other.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn escaped_run(&self, range: Range<u32>) -> Option<&[u8]> {
        match &self.body {
            Body::Table(table) => Some(table.escaped_range(range)),
            Body::Filler(_) | Body::Words(..) => None,
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
    /// Of a real model's tokens.
    ids: Option<Box<[u32]>>,
    /// The bytes of those tokens that are not their pieces, by their place: parts of characters.
    own: Box<[(u32, Box<[u8]>)]>,
    /// The same text as real models cut it, of those that have said it.
    recuts: OnceLock<Box<Recut>>,
}

/// A text as a real model cuts it, and the next model.
#[derive(Debug)]
struct Recut {
    model: Arc<ModelTokenizer>,
    table: Arc<PieceTable>,
    next: OnceLock<Box<Recut>>,
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

    /// Cuts `text` as `tokenizer` does.
    pub fn cut(text: String, tokenizer: &Tokenizer) -> Self {
        match tokenizer {
            Tokenizer::Regex => Self::new(text),
            Tokenizer::Model(model) => {
                let cut = model.cut(&text);
                Self::of_ids(text, &cut.ends, cut.ids, model)
            }
        }
    }

    /// A table made by [`Self::new`], as `tokenizer` cuts it. It is cut once for each tokenizer.
    pub fn recut(self: &Arc<Self>, tokenizer: &Tokenizer) -> Arc<Self> {
        let Tokenizer::Model(model) = tokenizer else { return Arc::clone(self) };
        let cut = || {
            let table = Arc::new(Self::cut(self.text.clone(), tokenizer));
            Box::new(Recut { model: Arc::clone(model), table, next: OnceLock::new() })
        };
        let mut recut = self.recuts.get_or_init(cut);
        while recut.model != *model {
            recut = recut.next.get_or_init(cut);
        }
        Arc::clone(&recut.table)
    }

    /// One token for `name`, then those of `text`.
    pub(super) fn behind(name: &str, text: &str, tokenizer: &Tokenizer) -> Self {
        let whole = format!("{name}{text}");
        let start = name.len();
        match tokenizer {
            Tokenizer::Regex => {
                let mut ends = vec![start];
                for piece in tokenizer::pieces(text) {
                    ends.push(ends[ends.len() - 1] + piece.len());
                }
                Self::with_ends(whole, &ends)
            }
            Tokenizer::Model(model) => {
                let cut = model.cut(text);
                let ends = std::iter::once(start).chain(cut.ends.iter().map(|end| start + end));
                // No vocabulary has so large an id.
                let ids = std::iter::once(u32::MAX).chain(cut.ids);
                Self::of_ids(whole, &ends.collect::<Vec<_>>(), ids.collect(), model)
            }
        }
    }

    fn of_ids(text: String, ends: &[usize], ids: Vec<u32>, model: &ModelTokenizer) -> Self {
        assert_eq!(ends.len(), ids.len(), "a piece for each token");
        let own = own_bytes::differing(&text, ends, |place| model.name(ids[place]));
        let table = Self::with_ends(text, ends);
        let ids = (!ids.is_empty()).then(|| ids.into_boxed_slice());
        Self { ids, own, ..table }
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
        Self { text, escaped, bounds, ids: None, own: Box::default(), recuts: OnceLock::new() }
    }

    /// Bytes that it takes in memory, about; not those of its text as other models cut it.
    fn size(&self) -> usize {
        let own: usize =
            self.own.iter().map(|(_, bytes)| size_of::<(u32, Box<[u8]>)>() + bytes.len()).sum();
        let ids = self.ids.as_deref().map_or(0, size_of_val);
        self.text.len() + self.escaped.len() + size_of_val(&self.bounds[..]) + ids + own
    }

    /// How many pieces it has; at least 1.
    pub fn len(&self) -> Tokens {
        Tokens::new(self.bounds.len() as u32 - 1)
    }

    fn piece(&self, k: u32) -> &str {
        self.text_range(k..k + 1)
    }

    fn bytes(&self, k: u32) -> &[u8] {
        match self.own.binary_search_by_key(&k, |(place, _)| *place) {
            Ok(at) => &self.own[at].1,
            Err(_) => self.piece(k).as_bytes(),
        }
    }

    fn token(&self, k: u32) -> Token<'_> {
        match &self.ids {
            Some(ids) => Token::Id(ids[k as usize]),
            None => Token::Piece(self.piece(k)),
        }
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
    use crate::text::model_tokenizer::REGEX;

    fn fixed(text: &str) -> Script {
        Script::from_table("greeting".into(), Arc::new(PieceTable::new(text.to_owned())))
    }

    /// Every piece, alone between quotes, is JSON that reads back as the piece.
    fn check(script: &Script) {
        let mut text = String::new();
        for k in 0..script.len().get() {
            let json = [b"\"", script.escaped(k), b"\""].concat();
            let back: String = sonic_rs::from_slice(&json).unwrap();
            assert_eq!(back, script.piece(k));
            text.push_str(script.piece(k));
        }
        assert_eq!(text, script.text());
    }

    #[test]
    fn every_piece_is_valid_json_string_content_on_its_own() {
        check(&fixed("Hello! How can I help you today?"));
        check(&fixed("\"quoted\" \\ and\n\n\ttabbed \u{1} 😀👩‍👩‍👧 \u{2028}\u{2029} naïve 你好"));
        check(&fixed(&"\u{1f}😀".repeat(1000)));
        check(&Script::filler("x".into(), &REGEX, Seed::new(1), Tokens::new(300)));
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
