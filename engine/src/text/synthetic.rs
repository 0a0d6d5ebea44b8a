//! Filler text of an exact number of tokens, for when only the length matters.
//!
//! Not stored: any piece is computed from the seed when asked for, so a million tokens of filler
//! cost nothing until they are sent. The one invariant: the pieces put together are cut into just
//! these pieces again by the `regex` tokenizer, so a text of N pieces counts N tokens everywhere.
//!
//! The text looks like prose: sentences with a capital and a full stop, a comma here and there, a
//! paragraph every [`PARAGRAPH`] tokens. Every piece is plain ASCII; its only characters that JSON
//! escapes are the line feeds between paragraphs.

use std::ops::Range;

use super::prompt::{self, Message};
use crate::seed::Seed;
use crate::units::Tokens;

/// A filler text: a seed and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filler {
    base: u64,
    len: u32,
}

impl Filler {
    /// The filler of `len` tokens that belongs to `seed`. Fillers of one seed and different lengths
    /// differ in their last two pieces only, for the full stop at the end.
    pub fn new(seed: Seed, len: Tokens) -> Self {
        Self { base: seed.value(), len: len.get() }
    }

    /// How many pieces it has.
    pub fn len(&self) -> Tokens {
        Tokens::new(self.len)
    }

    /// Whether it has no pieces.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The piece at `k`, from 0.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn piece(&self, k: u32) -> &'static str {
        self.laid_out(k, self.layout(k))
    }

    /// The piece at `k`, where its paragraph is laid out like that.
    fn laid_out(&self, k: u32, layout: &Layout) -> &'static str {
        assert!(k < self.len, "piece {k} of {}", self.len);
        let at_end = self.len - k;
        let place = k % PARAGRAPH;
        let slot = match (layout[place as usize], at_end) {
            // The text ends with a full stop, and no two stops may touch: they would be one token.
            (_, 1) if self.len > 1 => Slot::Stop,
            (Slot::Comma | Slot::Stop, 2) => Slot::Word,
            (Slot::Break, 2) => Slot::Start,
            (slot, _) => slot,
        };
        match slot {
            Slot::Stop => ".",
            Slot::Comma => ",",
            Slot::Break => "\n\n",
            Slot::Word => self.word(k).lower,
            // After a break there is no space.
            Slot::Start if place == 0 => &self.word(k).capital[1..],
            Slot::Start => self.word(k).capital,
        }
    }

    /// The piece at `k` as the content of a JSON string.
    ///
    /// # Panics
    /// If `k` is not below the length.
    pub fn escaped(&self, k: u32) -> &'static [u8] {
        escaped(self.piece(k))
    }

    /// Appends the pieces of `range` as the content of a JSON string.
    ///
    /// # Panics
    /// If the range goes beyond the length.
    pub fn append_escaped(&self, range: Range<u32>, out: &mut Vec<u8>) {
        let Range { mut start, end } = range;
        while start < end {
            let layout = self.layout(start);
            let next = end.min((start / PARAGRAPH + 1) * PARAGRAPH);
            for k in start..next {
                out.extend_from_slice(escaped(self.laid_out(k, layout)));
            }
            start = next;
        }
    }

    /// That of the paragraph of piece `k`.
    fn layout(&self, k: u32) -> &'static Layout {
        let layout = self.random(Purpose::Layout, k / PARAGRAPH) % LAYOUTS.len() as u64;
        &LAYOUTS[layout as usize]
    }

    fn word(&self, k: u32) -> &'static Word {
        &WORDS[(self.random(Purpose::Word, k) % WORDS.len() as u64) as usize]
    }

    /// A random number that depends on the seed, what it is for, and `k`.
    fn random(&self, purpose: Purpose, k: u32) -> u64 {
        let index = u64::from(k) << 1 | purpose as u64;
        Seed::new(self.base.wrapping_add(index)).value()
    }
}

/// A piece as the content of a JSON string.
fn escaped(piece: &'static str) -> &'static [u8] {
    match piece {
        "\n\n" => br"\n\n",
        plain => plain.as_bytes(),
    }
}

#[derive(Clone, Copy)]
enum Purpose {
    Layout,
    Word,
}

/// What stands at a place of a paragraph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// A word with a capital.
    Start,
    Word,
    Comma,
    Stop,
    /// Between paragraphs.
    Break,
}

/// Tokens of a paragraph, the break after it included.
pub const PARAGRAPH: u32 = 96;

/// A sentence of a layout: its tokens with the full stop, and where its comma is (0: none).
type Sentence = (usize, usize);

/// What stands where in a paragraph. Its only break is its last place.
type Layout = [Slot; PARAGRAPH as usize];

static LAYOUTS: [Layout; 8] = [
    layout(&[(9, 0), (16, 7), (12, 0), (21, 9), (8, 0), (17, 5), (12, 4)]),
    layout(&[(14, 6), (7, 0), (19, 8), (11, 0), (15, 5), (10, 0), (19, 12)]),
    layout(&[(11, 0), (18, 4), (13, 0), (6, 0), (22, 11), (10, 0), (15, 7)]),
    layout(&[(17, 9), (12, 0), (9, 0), (20, 6), (13, 5), (8, 0), (16, 0)]),
    layout(&[(8, 0), (13, 4), (24, 10), (10, 0), (16, 6), (11, 0), (13, 0)]),
    layout(&[(20, 13), (9, 0), (14, 5), (12, 0), (18, 8), (7, 0), (15, 4)]),
    layout(&[(12, 5), (15, 0), (10, 0), (17, 6), (9, 0), (23, 14), (9, 0)]),
    layout(&[(16, 4), (11, 0), (21, 12), (8, 0), (14, 7), (12, 0), (13, 0)]),
];

/// Lays sentences out; they must fill all but the last place of a paragraph. Checked at compile
/// time.
const fn layout(sentences: &[Sentence]) -> Layout {
    let mut slots = [Slot::Word; PARAGRAPH as usize];
    let mut at = 0;
    let mut i = 0;
    while i < sentences.len() {
        let (tokens, comma) = sentences[i];
        slots[at] = Slot::Start;
        if comma > 0 {
            assert!(comma > 1 && comma + 2 < tokens, "a comma stands between words");
            slots[at + comma] = Slot::Comma;
        }
        slots[at + tokens - 1] = Slot::Stop;
        at += tokens;
        i += 1;
    }
    assert!(at + 1 == PARAGRAPH as usize, "sentences must fill the paragraph");
    slots[at] = Slot::Break;
    slots
}

/// A chat prompt of exactly `tokens` tokens, as one user message with all overhead included, that
/// begins with `prefix` and goes on with filler that depends on `seed`.
///
/// # Errors
/// If the prefix and the overhead alone are longer than that.
pub fn prompt(seed: Seed, tokens: Tokens, prefix: &str) -> Result<String, PromptTooShort> {
    let count = |content: &str| prompt::count([Message { role: "user", content }]).get();
    let least = count(prefix);
    if tokens.get() < least {
        return Err(PromptTooShort { asked: tokens, least: Tokens::new(least) });
    }
    // Where prefix and filler meet, two tokens can become one or one two. That shifts the count by
    // the same amount whatever the length of the filler, so the second try is exact, unless the
    // filler is so short that its length decides what meets the prefix.
    let wanted = tokens.get();
    let mut len = wanted - least;
    let mut tries = [0; 4];
    for tried in &mut tries {
        *tried = len;
        let content = with_filler(seed, len, prefix);
        let got = count(&content);
        if got == wanted {
            return Ok(content);
        }
        len = (len + wanted).saturating_sub(got);
    }
    unreachable!("no filler of {tries:?} tokens after {prefix:?} gives {wanted}");
}

fn with_filler(seed: Seed, len: u32, prefix: &str) -> String {
    let filler = Filler::new(seed, Tokens::new(len));
    let mut content = String::with_capacity(prefix.len() + 6 * len as usize);
    content.push_str(prefix);
    (0..len).for_each(|k| content.push_str(filler.piece(k)));
    content
}

/// A synthetic prompt was asked for that is shorter than its fixed parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptTooShort {
    /// The length asked for.
    pub asked: Tokens,
    /// The length of prefix and chat overhead alone.
    pub least: Tokens,
}

impl std::fmt::Display for PromptTooShort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a prompt of {} tokens cannot be made: the chat format and the prefix alone are {} tokens",
            self.asked, self.least
        )
    }
}

impl std::error::Error for PromptTooShort {}

/// A word as it stands in a sentence and at its start, each with the space before it.
struct Word {
    lower: &'static str,
    capital: &'static str,
}

const fn w(lower: &'static str, capital: &'static str) -> Word {
    Word { lower, capital }
}

/// From Cicero's *De finibus bonorum et malorum*, I 32 and 33, and its usual garbling.
#[rustfmt::skip]
static WORDS: [Word; 128] = [
    w(" lorem", " Lorem"), w(" ipsum", " Ipsum"), w(" dolor", " Dolor"), w(" sit", " Sit"),
    w(" amet", " Amet"), w(" consectetur", " Consectetur"), w(" adipiscing", " Adipiscing"),
    w(" elit", " Elit"), w(" sed", " Sed"), w(" eiusmod", " Eiusmod"), w(" tempor", " Tempor"),
    w(" incididunt", " Incididunt"), w(" ut", " Ut"), w(" labore", " Labore"), w(" et", " Et"),
    w(" dolore", " Dolore"), w(" magna", " Magna"), w(" aliqua", " Aliqua"), w(" enim", " Enim"),
    w(" ad", " Ad"), w(" minim", " Minim"), w(" veniam", " Veniam"), w(" quis", " Quis"),
    w(" nostrud", " Nostrud"), w(" exercitation", " Exercitation"), w(" ullamco", " Ullamco"),
    w(" laboris", " Laboris"), w(" nisi", " Nisi"), w(" aliquip", " Aliquip"), w(" ex", " Ex"),
    w(" ea", " Ea"), w(" commodo", " Commodo"), w(" consequat", " Consequat"), w(" duis", " Duis"),
    w(" aute", " Aute"), w(" irure", " Irure"), w(" in", " In"),
    w(" reprehenderit", " Reprehenderit"), w(" voluptate", " Voluptate"), w(" velit", " Velit"),
    w(" esse", " Esse"), w(" cillum", " Cillum"), w(" eu", " Eu"), w(" fugiat", " Fugiat"),
    w(" nulla", " Nulla"), w(" pariatur", " Pariatur"), w(" excepteur", " Excepteur"),
    w(" sint", " Sint"), w(" occaecat", " Occaecat"), w(" cupidatat", " Cupidatat"),
    w(" non", " Non"), w(" proident", " Proident"), w(" sunt", " Sunt"), w(" culpa", " Culpa"),
    w(" qui", " Qui"), w(" officia", " Officia"), w(" deserunt", " Deserunt"),
    w(" mollit", " Mollit"), w(" anim", " Anim"), w(" id", " Id"), w(" est", " Est"),
    w(" laborum", " Laborum"), w(" perspiciatis", " Perspiciatis"), w(" unde", " Unde"),
    w(" omnis", " Omnis"), w(" iste", " Iste"), w(" natus", " Natus"), w(" error", " Error"),
    w(" accusantium", " Accusantium"), w(" doloremque", " Doloremque"),
    w(" laudantium", " Laudantium"), w(" totam", " Totam"), w(" rem", " Rem"),
    w(" aperiam", " Aperiam"), w(" eaque", " Eaque"), w(" ipsa", " Ipsa"), w(" quae", " Quae"),
    w(" ab", " Ab"), w(" illo", " Illo"), w(" inventore", " Inventore"),
    w(" veritatis", " Veritatis"), w(" quasi", " Quasi"), w(" architecto", " Architecto"),
    w(" beatae", " Beatae"), w(" vitae", " Vitae"), w(" dicta", " Dicta"),
    w(" explicabo", " Explicabo"), w(" nemo", " Nemo"), w(" ipsam", " Ipsam"), w(" quia", " Quia"),
    w(" voluptas", " Voluptas"), w(" aspernatur", " Aspernatur"), w(" aut", " Aut"),
    w(" odit", " Odit"), w(" fugit", " Fugit"), w(" consequuntur", " Consequuntur"),
    w(" magni", " Magni"), w(" dolores", " Dolores"), w(" eos", " Eos"), w(" ratione", " Ratione"),
    w(" sequi", " Sequi"), w(" nesciunt", " Nesciunt"), w(" neque", " Neque"),
    w(" porro", " Porro"), w(" quisquam", " Quisquam"), w(" dolorem", " Dolorem"),
    w(" adipisci", " Adipisci"), w(" numquam", " Numquam"), w(" eius", " Eius"),
    w(" modi", " Modi"), w(" tempora", " Tempora"), w(" incidunt", " Incidunt"),
    w(" quaerat", " Quaerat"), w(" vero", " Vero"), w(" accusamus", " Accusamus"),
    w(" iusto", " Iusto"), w(" odio", " Odio"), w(" dignissimos", " Dignissimos"),
    w(" ducimus", " Ducimus"), w(" blanditiis", " Blanditiis"), w(" praesentium", " Praesentium"),
    w(" deleniti", " Deleniti"), w(" atque", " Atque"), w(" corrupti", " Corrupti"),
    w(" quos", " Quos"), w(" quas", " Quas"), w(" molestias", " Molestias"),
    w(" excepturi", " Excepturi"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer;

    fn text(filler: Filler) -> String {
        (0..filler.len().get()).map(|k| filler.piece(k)).collect()
    }

    #[test]
    fn filler_is_cut_into_its_own_pieces_again() {
        for seed in 0..300 {
            for len in (0..=200).chain([1000]) {
                let filler = Filler::new(Seed::new(seed), Tokens::new(len));
                let text = text(filler);
                let pieces: Vec<&str> = tokenizer::pieces(&text).collect();
                let expected: Vec<&str> = (0..len).map(|k| filler.piece(k)).collect();
                assert_eq!(pieces, expected, "seed {seed}, {len} tokens: {text:?}");
            }
        }
    }

    #[test]
    fn filler_reads_like_prose() {
        let filler = Filler::new(Seed::new(7), Tokens::new(500));
        let text = text(filler);
        assert!(text.ends_with('.'), "{text}");
        for sentence in text.split_terminator(". ").flat_map(|part| part.split(".\n\n")) {
            let first = sentence.chars().next().unwrap();
            assert!(first.is_ascii_uppercase(), "{sentence:?} in {text}");
            let rest = &sentence[1..];
            assert!(!rest.contains(|c: char| c.is_ascii_uppercase()), "{sentence:?} in {text}");
        }
        assert!(text.contains(", ") && text.contains("\n\n"), "{text}");
    }

    #[test]
    fn a_different_seed_is_a_different_text_from_the_start() {
        let starts: std::collections::BTreeSet<String> =
            (0..1000).map(|seed| text(Filler::new(Seed::new(seed), Tokens::new(16)))).collect();
        assert_eq!(starts.len(), 1000);
    }

    #[test]
    fn a_prompt_counts_exactly_what_was_asked_for() {
        for prefix in
            ["", "[short] ", "Hi", "Hi ", "a.", "1", "  ", "\n", "x\n\n", "a,", "it'", "你"]
        {
            let least = prompt::count([Message { role: "user", content: prefix }]);
            for more in (0..150).chain([512, 4096]) {
                let tokens = least + Tokens::new(more);
                let content = prompt(Seed::new(u64::from(more)), tokens, prefix).unwrap();
                assert!(content.starts_with(prefix));
                let got = prompt::count([Message { role: "user", content: &content }]);
                assert_eq!(got, tokens, "{prefix:?} + {more}: {content:?}");
            }
        }
    }

    #[test]
    fn a_prompt_shorter_than_its_overhead_is_refused() {
        let error = prompt(Seed::new(0), Tokens::new(6), "").unwrap_err();
        assert_eq!(error.least, Tokens::new(7));
        assert!(error.to_string().contains("7 tokens"), "{error}");
    }
}
