//! Text as the content of a JSON string.
//!
//! Not a JSON encoder: only what stands between two quotes. The one invariant: the escaped form of
//! a text is the escaped forms of its parts put together, wherever it was cut between characters,
//! so pieces can be escaped once, alone, and be copied into frames later.
//!
//! Beyond what JSON demands (RFC 8259 section 7: quote, backslash, U+0000 to U+001F), the line
//! separators U+0085, U+2028 and U+2029 are escaped too: clients that split an event stream with a
//! Unicode-aware `splitlines` would otherwise cut a frame in two.

/// Appends `text`, escaped as the content of a JSON string, without the quotes.
pub fn json_string_content(text: &str, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    out.reserve(bytes.len());
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        if let Some(word) = bytes[at..].first_chunk::<8>()
            && !may_need_escape(u64::from_ne_bytes(*word))
        {
            at += 8;
            continue;
        }
        let byte = bytes[at];
        if !MAY_NEED_ESCAPE[usize::from(byte)] {
            at += 1;
            continue;
        }
        let Some((length, escape)) = escape_at(&bytes[at..]) else {
            at += 1;
            continue;
        };
        out.extend_from_slice(&bytes[copied..at]);
        match escape {
            Escape::Short(letter) => out.extend_from_slice(&[b'\\', letter]),
            Escape::Code(code) => {
                out.extend_from_slice(b"\\u");
                for shift in [12, 8, 4, 0] {
                    out.push(b"0123456789abcdef"[usize::from(code >> shift & 0xF)]);
                }
            }
        }
        at += length;
        copied = at;
    }
    out.extend_from_slice(&bytes[copied..]);
}

/// Whether any of eight bytes may: most text goes by in such strides. The tests of all bytes at
/// once are those of "Bit Twiddling Hacks" (S. E. Anderson), "Determine if a word has a byte less
/// than n" and "equal to n"; a borrow can only make them see one too many, never too few.
fn may_need_escape(word: u64) -> bool {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let is_zero = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let has = |byte: u8| is_zero(word ^ (ONES * u64::from(byte)));
    let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
    (controls | has(b'"') | has(b'\\') | has(0xC2) | has(0xE2)) != 0
}

enum Escape {
    Short(u8),
    Code(u16),
}

/// How many bytes to replace at the start of `rest`, and by what; `None` if they stay.
fn escape_at(rest: &[u8]) -> Option<(usize, Escape)> {
    let escape = match rest {
        [b'"', ..] => (1, Escape::Short(b'"')),
        [b'\\', ..] => (1, Escape::Short(b'\\')),
        [b'\n', ..] => (1, Escape::Short(b'n')),
        [b'\r', ..] => (1, Escape::Short(b'r')),
        [b'\t', ..] => (1, Escape::Short(b't')),
        [0x08, ..] => (1, Escape::Short(b'b')),
        [0x0C, ..] => (1, Escape::Short(b'f')),
        [control @ 0..0x20, ..] => (1, Escape::Code(u16::from(*control))),
        [0xC2, 0x85, ..] => (2, Escape::Code(0x0085)),
        [0xE2, 0x80, 0xA8, ..] => (3, Escape::Code(0x2028)),
        [0xE2, 0x80, 0xA9, ..] => (3, Escape::Code(0x2029)),
        _ => return None,
    };
    Some(escape)
}

/// Bytes at which an escape can begin.
const MAY_NEED_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = true;
        control += 1;
    }
    table[b'"' as usize] = true;
    table[b'\\' as usize] = true;
    table[0xC2] = true;
    table[0xE2] = true;
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = Vec::new();
        json_string_content(text, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn quotes_controls_and_line_separators_are_escaped_and_nothing_else() {
        assert_eq!(escaped("plain text, é and 😀"), "plain text, é and 😀");
        assert_eq!(escaped("a \"b\" \\ c"), r#"a \"b\" \\ c"#);
        assert_eq!(
            escaped("\n\r\t\u{8}\u{c}\0\u{1f}\u{7f}"),
            "\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}"
        );
        assert_eq!(escaped("a\u{2028}b\u{2029}c\u{85}d"), r"a\u2028b\u2029c\u0085d");
        // Neighbours of the separators that share their first bytes.
        assert_eq!(escaped("\u{2027}\u{202a}\u{20a8}\u{a0}"), "\u{2027}\u{202a}\u{20a8}\u{a0}");
    }

    /// Eight bytes at a time or one by one.
    #[test]
    fn what_needs_an_escape_is_found_wherever_it_stands() {
        for (raw, escape) in [("\"", "\\\""), ("\u{1f}", "\\u001f"), ("\u{2028}", "\\u2028")] {
            for before in 0..20 {
                for after in 0..20 {
                    let [left, right] = ["é".repeat(before / 2) + "!", "a".repeat(after)];
                    let text = format!("{left}{raw}{right}");
                    assert_eq!(escaped(&text), format!("{left}{escape}{right}"));
                }
            }
        }
    }

    /// An independent JSON parser reads every character back, alone and between others.
    #[test]
    fn every_character_reads_back() {
        for c in (0..=0x3_0000).filter_map(char::from_u32) {
            let text = format!("{c}é{c}\"");
            let json = format!("\"{}\"", escaped(&text));
            let back: String = sonic_rs::from_str(&json).unwrap();
            assert_eq!(back, text, "U+{:04X}", c as u32);
        }
    }
}
