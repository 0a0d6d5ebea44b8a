//! The bytes that a token of a vocabulary stands for.
//!
//! Not its piece, which is the text that it completes: of a character in several tokens, the last
//! has the whole and the others nothing. The one invariant: nothing is told here that does not put
//! together to the text, so what a vocabulary writes in a way that is not known is left out.

/// The tokens of `text` that are not their pieces, by their place, with their bytes. Pieces end at
/// `ends`; `name` is how the vocabulary writes the token at a place.
pub(super) fn differing(
    text: &str,
    ends: &[usize],
    name: impl Fn(usize) -> String,
) -> Box<[(u32, Box<[u8]>)]> {
    if text.is_ascii() {
        // Its characters have no parts.
        return Box::default();
    }
    let mut found = Vec::new();
    // How far the tokens' bytes go, and those of the tokens since a piece ended there.
    let (mut told, mut since) = (0, Vec::new());
    for (place, &end) in ends.iter().enumerate() {
        let fits = |bytes: &Vec<u8>| text.as_bytes()[told..].starts_with(bytes);
        if let Some(bytes) = of_name(&name(place)).filter(fits) {
            told += bytes.len();
            since.push(bytes.into_boxed_slice());
            if told > end {
                // The piece of a later token has the rest.
                continue;
            }
            if told == end && since.len() > 1 {
                let first = place + 1 - since.len();
                found.extend((first as u32..).zip(since.drain(..)));
            }
        }
        since.clear();
        told = end;
    }
    found.into_boxed_slice()
}

/// The bytes of a token as GPT-2's vocabulary and its relatives write it, a character for each
/// byte, or as SentencePiece writes a single byte: `<0x0A>`.
fn of_name(name: &str) -> Option<Vec<u8>> {
    let digits = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
        return Some(vec![byte]);
    }
    name.chars().map(|char| of_char(u32::from(char))).collect()
}

/// GPT-2's `bytes_to_unicode` backwards: bytes that are seen are themselves, the others are
/// numbered from U+0100 on.
fn of_char(char: u32) -> Option<u8> {
    match char {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(char).ok(),
        0x100..=0x120 => u8::try_from(char - 0x100).ok(),
        0x121..=0x142 => u8::try_from(char - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_a_character_of_its_own() {
        // From GPT-2's vocabulary: Ġ is a space, Ċ a line feed.
        assert_eq!(of_name("ĠaĊ"), Some(b" a\n".to_vec()));
        assert_eq!(of_name("<0xE4>"), Some(vec![0xe4]));
        assert_eq!(of_name("▁a"), None);
        let mut bytes: Vec<u8> = (0..0x200).filter_map(of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn what_does_not_put_together_is_left_out() {
        let names = ["<0xE4>", "<0xBD>", "<0xA0>", "▁x"];
        let of = |text: &str, ends: &[usize]| differing(text, ends, |at| names[at].to_owned());
        let parts = of("你 x", &[0, 0, 3, 5]);
        let bytes: Vec<u8> = parts.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect();
        assert_eq!((parts.len(), bytes), (3, "你".as_bytes().to_vec()));
        assert!(of("好 x", &[0, 0, 3, 5]).is_empty());
        // The third byte is no token's, so the first two are not all that there is of the text.
        assert!(of("你", &[0, 3]).is_empty());
    }
}
