//! The tokenizer of a real model, from its `tokenizer.json`, and the choice between it and our own.
//!
//! Not a file reader: bytes are handed in. The invariant: the pieces of a cut text put together are
//! the text, whatever the tokenizer does to it on the way to its ids; a token that is only a part
//! of a character has an empty piece, and the token that completes the character carries it, which
//! is how vLLM streams them.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::{ModelWrapper, PostProcessorWrapper};

use super::synthetic::Filler;
use super::{growth, token_ids, tokenizer};
use crate::seed::Seed;
use crate::units::Tokens;

/// How a model's texts are counted and cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Tokenizer {
    /// Words, numbers and marks, split by a fixed pattern: see [`tokenizer`].
    #[default]
    Regex,
    /// A real model's.
    Model(Arc<ModelTokenizer>),
}

/// The tokenizer of those who have none of their own.
pub static REGEX: Tokenizer = Tokenizer::Regex;

impl PartialEq for ModelTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Tokenizer {
    /// How many tokens `text` has.
    pub fn count(&self, text: &str) -> Tokens {
        match self {
            Self::Regex => tokenizer::count(text),
            Self::Model(model) => Tokens::new(model.ids(text).len() as u32),
        }
    }

    /// The id of the token that ends a turn.
    pub fn end_of_turn(&self) -> u32 {
        match self {
            Self::Regex => token_ids::id(MARKS[1]),
            Self::Model(model) => model.end,
        }
    }
}

/// One token of a text, for those who tell texts apart by their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A tokenizer without a vocabulary: its text is all there is.
    Piece(&'a str),
    /// A place in a vocabulary.
    Id(u32),
}

/// A tokenizer with a vocabulary.
pub struct ModelTokenizer {
    inner: tokenizers::Tokenizer,
    /// Of the file.
    digest: u64,
    start: u32,
    end: u32,
    words: Box<[Word]>,
    /// Whether prose is cut into tokens fast enough to make filler of it.
    cuts_filler: bool,
    /// The least of the vocabulary, for text that has no token of its own.
    any: u32,
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is that of the foreign library, which is caught and told by
/// other means: a hook of panics that ends the program leaves it alone.
pub fn catches_panics() -> bool {
    GUARDED.get()
}

/// What the foreign library does, whose panic on a file or a text that it is not made for is no
/// mistake of ours; `None` if it panics. It only reads what it is called with, so nothing half done
/// remains.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    let outer = GUARDED.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(outer);
    done.ok()
}

/// Why ids have no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoText {
    /// The one at this place is not in the vocabulary.
    Unknown(usize),
    /// The tokenizer's decoder fails on them.
    Decoder,
}

/// A word, with the space before it, that is one token wherever it stands between others.
#[derive(Debug)]
struct Word {
    piece: Box<str>,
    id: u32,
}

/// A text cut into tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Their ids.
    pub ids: Vec<u32>,
    /// Where the piece of each ends in the text; the last at its end.
    pub ends: Vec<usize>,
}

impl fmt::Debug for ModelTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not a hundred thousand words.
        write!(f, "ModelTokenizer({} tokens)", self.vocabulary_size())
    }
}

/// What begins and ends a message.
const MARKS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];

/// Words that filler is made of; those that a tokenizer has no single token for are left out.
const FILLER: &str = "\
    the of and to in is that for it as was with be by on not he his but at are this have from or had an \
    they which one you were all her she there would their we him been has when who will no more if out \
    so up said what its about than into them can only other time new some could these two may first then \
    do any like my now over such our man me even most made after also did many before must well back \
    through years much where your way down should because long each just state people those how too good \
    very make world still see own work men day get here old life both between";

/// Prose of so many pieces tells whether filler can be cut from it.
const SAMPLE_PIECES: u32 = 96;
/// A tokenizer that makes fewer tokens than one of so many pieces takes whole sentences for one, or
/// drops most of what it reads.
const MOST_PIECES_PER_TOKEN: u32 = 4;
/// So often the prose that filler is cut from is doubled; with [`MOST_PIECES_PER_TOKEN`] two are
/// due.
const MOST_DOUBLINGS: u32 = 4;
/// So many tokens are decoded when a file is read, to see whether they can be.
const DECODED_SAMPLE: usize = 4_096;

/// With fewer words than this, filler is cut from ordinary filler instead.
const FEWEST_WORDS: usize = 8;

impl ModelTokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// It is not one, or not one that this library reads; the message says why.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        guarded(|| Self::read(json)).unwrap_or_else(|| {
            Err("not a tokenizer.json that Hugging Face's `tokenizers` can read: it panics on its \
                 normalizer, its pre_tokenizer, its decoder or its merges"
                .to_owned())
        })
    }

    fn read(json: &[u8]) -> Result<Self, String> {
        // A byte order mark, as editors on Windows leave it, says nothing.
        let json = json.strip_prefix("\u{feff}".as_bytes()).unwrap_or(json);
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|why| format!("not a tokenizer.json of Hugging Face's `tokenizers`: {why}"))?;
        // Padding, truncation and what is put around a text are for those who run models. Without
        // the last, offsets are those of whole tokens, too.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|why| format!("its truncation: {why}"))?;
        inner.with_post_processor(None::<PostProcessorWrapper>);
        if let ModelWrapper::BPE(bpe) = inner.get_model()
            && bpe.dropout.is_some()
        {
            return Err(
                "it drops merges at random (`dropout`), so that no text has one count; set \
                        `dropout` to null"
                    .to_owned(),
            );
        }
        growth::check(&inner)?;
        for sample in ["Hello, world! 12\n\tZß你😀", "\u{1}\u{7f}\u{fffd}"] {
            inner.encode_fast(sample, false).map_err(|why| {
                format!(
                    "it cannot cut any text: {sample:?} fails with {why}; it needs a token for \
                         what it does not know (`unk_token`)"
                )
            })?;
        }
        let size = inner.get_vocab_size(true);
        if size == 0 {
            return Err("its vocabulary is empty".to_owned());
        }
        let mut known: Vec<u32> = inner.get_vocab(true).into_values().collect();
        known.sort_unstable();
        known.dedup();
        let any = known.first().copied().unwrap_or(0);
        let mut made_up = known.last().copied().unwrap_or(0);
        known.truncate(DECODED_SAMPLE);
        // One by one and together: some steps of a decoder see what others have joined. That they
        // fail is told to those who ask; that they panic ends here.
        for &id in &known {
            let _ = inner.decode(&[id], false);
        }
        let _ = inner.decode(&known, false);
        let [start, end] = MARKS.map(|mark| {
            inner.token_to_id(mark).unwrap_or_else(|| {
                made_up = made_up.saturating_add(1);
                made_up
            })
        });
        let digest = Seed::new(0).with(json).value();
        let words = Box::default();
        let mut this = Self { inner, digest, start, end, words, cuts_filler: false, any };
        this.words = this.filler_words();
        let sample = this.cut(&prose(Seed::new(0), SAMPLE_PIECES)).ids.len();
        this.cuts_filler = sample >= (SAMPLE_PIECES / MOST_PIECES_PER_TOKEN) as usize;
        Ok(this)
    }

    /// How many different tokens there are.
    pub fn vocabulary_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The ids of `text`, of special tokens that it spells, too.
    pub fn ids(&self, text: &str) -> Vec<u32> {
        match guarded(|| self.inner.encode_fast(text, false)) {
            Some(Ok(encoding)) => encoding.get_ids().to_vec(),
            // Samples of everything went well when it was read.
            _ => Vec::new(),
        }
    }

    /// The tokens of `text` with what each adds to it.
    pub fn cut(&self, text: &str) -> Cut {
        let Some(Ok(encoding)) = guarded(|| self.inner.encode(text, false)) else {
            return Cut { ids: vec![self.any], ends: vec![text.len()] };
        };
        let (ids, offsets) = (encoding.get_ids().to_vec(), encoding.get_offsets());
        if ids.is_empty() && !text.is_empty() {
            // All of it is dropped by the tokenizer, but an answer that says something has a token.
            return Cut { ids: vec![self.any], ends: vec![text.len()] };
        }
        // Tokens that share a character have the whole of it as their offsets: only the last of
        // them completes it. So a token reaches no further than where a later one begins.
        let mut next = text.len();
        let mut ends = vec![text.len(); ids.len()];
        for (place, &(start, end)) in offsets.iter().enumerate().rev() {
            if place + 1 < ids.len() {
                ends[place] = floor_char_boundary(text, end.min(next));
            }
            next = next.min(start);
        }
        Cut { ids, ends }
    }

    /// The text of `ids`, special tokens spelled out.
    ///
    /// # Errors
    /// [`NoText`].
    pub fn text(&self, ids: &[u32]) -> Result<String, NoText> {
        if let Some(place) = ids.iter().position(|&id| self.inner.id_to_token(id).is_none()) {
            return Err(NoText::Unknown(place));
        }
        match guarded(|| self.inner.decode(ids, false)) {
            Some(Ok(text)) => Ok(text),
            _ => Err(NoText::Decoder),
        }
    }

    /// The place of the first of `ids` that is no token of the model's, nor one that its chats are
    /// made of.
    pub fn unknown(&self, ids: &[u32]) -> Option<usize> {
        let is_mark = |id| id == self.start || id == self.end;
        ids.iter().position(|&id| self.inner.id_to_token(id).is_none() && !is_mark(id))
    }

    /// How the vocabulary writes a token, which is not how it reads: `Ġworld`.
    pub fn name(&self, id: u32) -> String {
        let made_up = || {
            let mark = [self.start, self.end].iter().position(|&mark| mark == id);
            mark.map_or_else(String::new, |mark| MARKS[mark].to_owned())
        };
        self.inner.id_to_token(id).unwrap_or_else(made_up)
    }

    /// What a message of a chat is: [`super::prompt`] says how.
    pub(super) fn message(&self, role: &str, content: &str, mut each: impl FnMut(u32)) {
        self.open_message(role, content, &mut each);
        each(self.end);
        self.ids("\n").into_iter().for_each(&mut each);
    }

    /// The same without what ends it.
    pub(super) fn open_message(&self, role: &str, content: &str, mut each: impl FnMut(u32)) {
        each(self.start);
        self.ids(&format!("{role}\n{content}")).into_iter().for_each(each);
    }

    /// What begins the answer.
    pub(super) fn before_answer(&self, mut each: impl FnMut(u32)) {
        each(self.start);
        self.ids("assistant\n").into_iter().for_each(&mut each);
    }

    /// Words of one token, all of whose sequences are cut into just these tokens; none if there are
    /// too few.
    fn filler_words(&self) -> Box<[Word]> {
        let words = FILLER.split_whitespace().filter_map(|word| {
            let piece = format!(" {word}");
            match self.ids(&piece)[..] {
                [id] => Some(Word { piece: piece.into(), id }),
                _ => None,
            }
        });
        let words: Vec<Word> = words.collect();
        let text: String = words.iter().rev().map(|word| &*word.piece).collect();
        let ids: Vec<u32> = words.iter().rev().map(|word| word.id).collect();
        if words.len() < FEWEST_WORDS || self.ids(&text) != ids {
            Box::default()
        } else {
            words.into()
        }
    }

    /// The word of filler that belongs to this number, and its id.
    pub(super) fn filler_word(&self, random: u64) -> (&str, u32) {
        let word = &self.words[(random % self.words.len() as u64) as usize];
        (&word.piece, word.id)
    }

    /// Whether it has enough words of one token that filler of any length costs nothing to make.
    pub fn has_filler_words(&self) -> bool {
        !self.words.is_empty()
    }

    /// A text of just `len` tokens, cut from prose, which is of other tokens. Of a tokenizer that
    /// makes next to none of prose, each word and mark of it counts as one.
    pub(super) fn cut_filler(&self, seed: Seed, len: Tokens) -> (String, Cut) {
        let wanted = len.get() as usize;
        let mut pieces = len.get();
        let tries = if self.cuts_filler { MOST_DOUBLINGS } else { 0 };
        for _ in 0..tries {
            let mut text = prose(seed, pieces);
            let mut cut = self.cut(&text);
            if cut.ids.len() >= wanted {
                cut.ids.truncate(wanted);
                cut.ends.truncate(wanted);
                text.truncate(cut.ends.last().copied().unwrap_or(0));
                return (text, cut);
            }
            pieces = pieces.saturating_mul(2);
        }
        let (filler, mut text) = (Filler::new(seed, len), String::new());
        let ends = (0..len.get()).map(|k| {
            text.push_str(filler.piece(k));
            text.len()
        });
        let ends = ends.collect();
        (text, Cut { ids: vec![self.any; wanted], ends })
    }
}

/// Filler of so many pieces as one text.
fn prose(seed: Seed, pieces: u32) -> String {
    let filler = Filler::new(seed, Tokens::new(pieces));
    (0..pieces).map(|k| filler.piece(k)).collect()
}

fn floor_char_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
