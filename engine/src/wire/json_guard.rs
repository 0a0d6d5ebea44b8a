//! Looks through a body before the JSON parser does, and refuses what would hurt it.
//!
//! It is not a validator: it sees brackets and strings, nothing else. The invariant: wherever the
//! parser stands in a body that passed, it is at most [`MAX_DEPTH`] levels deep. sonic-rs recurses
//! once per level also in fields that it skips, and has no limit of its own on its fast path
//! (upstream issues 239 and 232): 100,000 open brackets end the process.

use memchr::memchr2;

/// The deepest nesting accepted: serde_json's own limit, so clients know it.
pub const MAX_DEPTH: usize = 128;

/// Nesting deeper than [`MAX_DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep {
    /// Byte offset of the bracket that went too deep.
    pub at: usize,
}

/// Checks the nesting of `json`, jumping over strings.
///
/// # Errors
/// [`TooDeep`] at the first bracket that opens a level beyond [`MAX_DEPTH`].
pub fn check(json: &[u8]) -> Result<(), TooDeep> {
    // Most bodies are a few messages, however long: they have too few brackets to be deep, and
    // that is seen 30 times faster than where each string ends.
    if json.len() <= MAX_DEPTH || opened(json) <= MAX_DEPTH {
        return Ok(());
    }
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'"' => at = end_of_string(json, at),
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(TooDeep { at: at - 1 });
                }
            }
            // A closing bracket too many is the parser's to refuse; it stops there.
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// How many brackets open anywhere in `json`, strings included.
fn opened(json: &[u8]) -> usize {
    // They differ by the bit of lower case alone, and no other byte becomes `{` by it. A sum of so
    // few fits a byte, so that a vector register counts sixteen.
    let of_part = |part: &[u8]| part.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum::<u8>();
    json.chunks(255).map(|part| usize::from(of_part(part))).sum()
}

/// Strings up to this length are scanned byte by byte: most are names and roles, for which the
/// call of a vector routine costs more than it saves.
const SHORT: usize = 16;

/// The offset after the closing quote of the string whose content starts at `at`; the length of
/// `json` if it never closes.
fn end_of_string(json: &[u8], mut at: usize) -> usize {
    'after_escape: loop {
        let rest = json.get(at..).unwrap_or(&[]);
        for (offset, &byte) in rest.iter().take(SHORT).enumerate() {
            match byte {
                b'"' => return at + offset + 1,
                // A backslash and whatever it escapes.
                b'\\' => {
                    at += offset + 2;
                    continue 'after_escape;
                }
                _ => {}
            }
        }
        match rest.get(SHORT..).and_then(|long| memchr2(b'"', b'\\', long)) {
            None => return json.len(),
            Some(offset) if rest[SHORT + offset] == b'"' => return at + SHORT + offset + 1,
            Some(offset) => at += SHORT + offset + 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(open: &str, close: &str, levels: usize) -> String {
        open.repeat(levels) + &close.repeat(levels)
    }

    #[test]
    fn a_hundred_and_twenty_eight_levels_pass_and_one_more_does_not() {
        assert_eq!(check(nested("[", "]", 128).as_bytes()), Ok(()));
        assert_eq!(check(nested("[", "]", 129).as_bytes()), Err(TooDeep { at: 128 }));
        assert_eq!(check(nested("{\"a\":", "}", 129).as_bytes()), Err(TooDeep { at: 5 * 128 }));
    }

    #[test]
    fn every_bracket_that_opens_is_counted_and_no_other_byte() {
        let every_byte: Vec<u8> = (0..=u8::MAX).collect();
        assert_eq!(opened(&every_byte), 2);
        for length in [0, 1, 254, 255, 256, 511, 10_000] {
            assert_eq!(opened("[{".repeat(length).as_bytes()), 2 * length);
        }
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        let text = format!(r#"{{"a":"{}\"{}\\","b":[]}}"#, "[".repeat(500), "{".repeat(500));
        assert_eq!(check(text.as_bytes()), Ok(()));
    }

    #[test]
    fn a_string_ends_at_its_own_quote_and_not_at_an_escaped_one() {
        let deep = "[".repeat(200);
        assert_eq!(check(format!(r#""\\"{deep}"#).as_bytes()), Err(TooDeep { at: 4 + 128 }));
        assert_eq!(check(format!(r#""\""{deep}"#).as_bytes()), Err(TooDeep { at: 4 + 128 }));
        assert_eq!(check(format!(r#""\"{deep}"#).as_bytes()), Ok(()), "never closed");
    }

    #[test]
    fn siblings_are_not_depth_and_stray_brackets_are_no_panic() {
        assert_eq!(check("[[]],".repeat(10_000).as_bytes()), Ok(()));
        for odd in ["", "]", "]]]][", "\"", "\"\\", "\"\\\"", "\\"] {
            assert_eq!(check(odd.as_bytes()), Ok(()), "{odd}");
        }
    }
}
