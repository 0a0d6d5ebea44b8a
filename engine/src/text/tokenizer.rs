//! The `regex` tokenizer: cuts a text into pieces like the pre-tokenizers of GPT models do.
//!
//! Not a model's vocabulary: counts are of the right size (about four to five bytes of English to
//! the token), not those of any real model. The one invariant: the pieces put together are the
//! text, and any number of first pieces put together are cut into the same pieces again. The second
//! half is what lets an answer that was cut off at `max_tokens` come back in the next turn as the
//! very same tokens.
//!
//! The rules, from the start of the rest of the text; no piece is longer than [`MAX_PIECE`] bytes,
//! and longer runs are continued in the next piece:
//! 1. letters, with one space or apostrophe before them if there is one (` word`, `'s`);
//! 2. up to three digits;
//! 3. other visible characters (punctuation, symbols), with one space before them if there is one;
//! 4. white space; its last character is left to rules 1 and 3 if they can use it;
//! 5. characters from U+2E80 on (CJK, Hangul, emoji) are a piece each.

use crate::units::Tokens;

/// No piece has more bytes than this, so a megabyte of one letter is 65,536 tokens and not one.
pub const MAX_PIECE: usize = 16;

/// The pieces of `text`, in order; put together, they are `text`.
pub fn pieces(text: &str) -> Pieces<'_> {
    Pieces { rest: text }
}

/// How many pieces `text` has. Texts stay far below 2^32 pieces: a request body is limited to
/// megabytes.
pub fn count(text: &str) -> Tokens {
    let mut count = 0u32;
    for _ in pieces(text) {
        count += 1;
    }
    Tokens::new(count)
}

/// The iterator over a text's pieces; can be left and resumed at any piece.
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    rest: &'a str,
}

impl<'a> Pieces<'a> {
    /// What has not been cut yet.
    pub fn rest(&self) -> &'a str {
        self.rest
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    #[inline]
    fn next(&mut self) -> Option<&'a str> {
        if self.rest.is_empty() {
            return None;
        }
        let (piece, rest) = self.rest.split_at(piece_len(self.rest));
        self.rest = rest;
        Some(piece)
    }
}

/// The length in bytes of the first piece of `text`, which must not be empty.
#[inline]
fn piece_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (class, length) = class_at(text, 0);
    match class {
        Class::Letter => run(text, length, Class::Letter),
        Class::Punctuation if bytes[0] == b'\'' && is(text, 1, Class::Letter) => {
            run(text, 1, Class::Letter)
        }
        Class::Punctuation => run(text, length, Class::Punctuation),
        Class::Digit => digits(text, length),
        Class::Space if bytes[0] == b' ' && is(text, 1, Class::Letter) => {
            run(text, 1, Class::Letter)
        }
        Class::Space if bytes[0] == b' ' && is(text, 1, Class::Punctuation) => {
            run(text, 1, Class::Punctuation)
        }
        Class::Space => spaces(text, length),
        Class::Wide => length,
    }
}

/// Extends a piece that is `end` bytes long by characters of `class`, up to [`MAX_PIECE`] bytes.
#[inline]
fn run(text: &str, mut end: usize, class: Class) -> usize {
    let bytes = text.as_bytes();
    while let Some(&byte) = bytes.get(end) {
        if byte < 0x80 {
            if end == MAX_PIECE || ASCII[usize::from(byte)] != class {
                break;
            }
            end += 1;
        } else {
            let (found, length) = class_at(text, end);
            if found != class || end + length > MAX_PIECE {
                break;
            }
            end += length;
        }
    }
    end
}

fn digits(text: &str, mut end: usize) -> usize {
    for _ in 1..3 {
        if end >= text.len() {
            break;
        }
        let (class, length) = class_at(text, end);
        if class != Class::Digit {
            break;
        }
        end += length;
    }
    end
}

/// White space: all of it, but for a last space that belongs to what follows.
fn spaces(text: &str, first: usize) -> usize {
    let mut end = first;
    let mut before_last = 0;
    while end < text.len() {
        let (class, length) = class_at(text, end);
        match class {
            Class::Space if end + length > MAX_PIECE => return end,
            Class::Space => {
                before_last = end;
                end += length;
            }
            Class::Letter | Class::Punctuation
                if before_last > 0 && text.as_bytes()[end - 1] == b' ' =>
            {
                return before_last;
            }
            _ => return end,
        }
    }
    end
}

#[inline]
fn is(text: &str, at: usize, class: Class) -> bool {
    at < text.len() && class_at(text, at).0 == class
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Letter,
    Digit,
    Space,
    Punctuation,
    /// One character is one piece: see rule 5.
    Wide,
}

/// The class of the character that starts at byte `at`, and its length in bytes.
#[inline]
fn class_at(text: &str, at: usize) -> (Class, usize) {
    let byte = text.as_bytes()[at];
    if byte < 0x80 { (ASCII[usize::from(byte)], 1) } else { beyond_ascii(&text[at..]) }
}

fn beyond_ascii(text: &str) -> (Class, usize) {
    let c = text.chars().next().expect("the caller saw a byte of it");
    let class = match c {
        _ if c.is_whitespace() => Class::Space,
        '\u{2E80}'.. => Class::Wide,
        // Combining accents are part of the word that they stand in.
        '\u{300}'..='\u{36F}' => Class::Letter,
        _ if c.is_alphabetic() => Class::Letter,
        _ if c.is_numeric() => Class::Digit,
        _ => Class::Punctuation,
    };
    (class, c.len_utf8())
}

const ASCII: [Class; 256] = {
    let mut table = [Class::Punctuation; 256];
    let mut byte = 0;
    while byte < 0x80 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Digit,
            b' ' | 0x09..=0x0D => Class::Space,
            _ => Class::Punctuation,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[&str]) {
        let got: Vec<&str> = pieces(text).collect();
        assert_eq!(got, expected, "{text:?}");
        assert_eq!(count(text), Tokens::new(u32::try_from(expected.len()).unwrap()), "{text:?}");
    }

    #[test]
    fn words_take_the_space_or_apostrophe_before_them() {
        check("Hello", &["Hello"]);
        check("Hello world", &["Hello", " world"]);
        check("It's Hamlet's ghost.", &["It", "'s", " Hamlet", "'s", " ghost", "."]);
        check("naïve café", &["naïve", " café"]);
        check("'", &["'"]);
    }

    #[test]
    fn digits_come_in_groups_of_three() {
        check("in 1234567 days", &["in", " ", "123", "456", "7", " days"]);
        check("3.14", &["3", ".", "14"]);
    }

    #[test]
    fn punctuation_runs_together_with_a_space_before_it() {
        check("well... no -- yes!?", &["well", "...", " no", " --", " yes", "!?"]);
        check("((a))", &["((", "a", "))"]);
        check("<|im_end|>", &["<|", "im", "_", "end", "|>"]);
    }

    #[test]
    fn the_last_space_of_many_goes_to_the_next_word() {
        check("a   b", &["a", "  ", " b"]);
        check("a\n\n  b", &["a", "\n\n ", " b"]);
        check("a\n\nb", &["a", "\n\n", "b"]);
        check("a  1", &["a", "  ", "1"]);
        check("a  ", &["a", "  "]);
        check("  -", &[" ", " -"]);
    }

    #[test]
    fn long_runs_are_cut_at_sixteen_bytes_and_never_inside_a_character() {
        check(&"a".repeat(33), &[&"a".repeat(16), &"a".repeat(16), "a"]);
        check(&format!(" {}", "a".repeat(16)), &[&format!(" {}", "a".repeat(15)), "a"]);
        check(&"é".repeat(9), &[&"é".repeat(8), "é"]);
        check(&format!("a{}", "é".repeat(8)), &[&format!("a{}", "é".repeat(7)), "é"]);
        check(&format!("{}b", " ".repeat(17)), &[&" ".repeat(16), " b"]);
        check(&format!("{}b", " ".repeat(16)), &[&" ".repeat(15), " b"]);
    }

    #[test]
    fn wide_characters_are_a_piece_each() {
        check("你好, 世界", &["你", "好", ",", " ", "世", "界"]);
        check("ok 😀👍", &["ok", " ", "😀", "👍"]);
    }
}
