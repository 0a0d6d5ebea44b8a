//! Texts for `pattern`: regular expressions, read backwards.
//!
//! The syntax is Rust's, which lacks what ECMA's has beyond regular languages: look-around and
//! references to groups.

use regex_automata::meta::Regex;
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::seed::Generator;

/// A text that a pattern matches as a whole is not made longer than that.
const MAX_CHARS: usize = 4096;

/// A compiled pattern is not larger than that.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Whether it is a pattern that can be searched for here.
pub(super) fn is_known(pattern: &str) -> bool {
    compile(pattern).is_some()
}

pub(super) fn compile(pattern: &str) -> Option<Regex> {
    let config = Regex::config().nfa_size_limit(Some(MAX_BYTES));
    Regex::builder().configure(config).build(pattern).ok()
}

/// A text that matches; `spread` is by how much repetitions may exceed their least.
pub(super) fn sample(pattern: &str, spread: u32, draw: &mut Generator) -> Option<String> {
    let hir = regex_syntax::parse(pattern).ok()?;
    let mut text = String::new();
    append(&hir, spread, draw, &mut text).then_some(text)
}

fn append(hir: &Hir, spread: u32, draw: &mut Generator, text: &mut String) -> bool {
    if text.len() > MAX_CHARS {
        return false;
    }
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => true,
        HirKind::Literal(literal) => match std::str::from_utf8(&literal.0) {
            Ok(literal) => {
                text.push_str(literal);
                true
            }
            Err(_) => false,
        },
        HirKind::Class(class) => match character(class, draw) {
            Some(char) => {
                text.push(char);
                true
            }
            None => false,
        },
        HirKind::Repetition(repetition) => {
            let most =
                repetition.max.unwrap_or(u32::MAX).min(repetition.min.saturating_add(spread));
            let count = repetition.min + draw.below(u64::from(most - repetition.min) + 1) as u32;
            (0..count).all(|_| append(&repetition.sub, spread, draw, text))
        }
        HirKind::Capture(capture) => append(&capture.sub, spread, draw, text),
        HirKind::Concat(parts) => parts.iter().all(|part| append(part, spread, draw, text)),
        HirKind::Alternation(branches) => {
            let branch = draw.below(branches.len() as u64) as usize;
            append(&branches[branch], spread, draw, text)
        }
    }
}

/// A character of the class; a plain one if it has any.
fn character(class: &Class, draw: &mut Generator) -> Option<char> {
    let ranges: Vec<(u32, u32)> = match class {
        Class::Unicode(class) => {
            class.iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
        Class::Bytes(class) => {
            class.iter().map(|range| (range.start().into(), range.end().into())).collect()
        }
    };
    let within = |least: u32, most: u32| -> Vec<(u32, u32)> {
        let cut = ranges.iter().map(|&(start, end)| (start.max(least), end.min(most)));
        cut.filter(|(start, end)| start <= end).collect()
    };
    // Letters and digits first, then what else is plain.
    let (small, digits) = (within(0x61, 0x7a), within(0x30, 0x39));
    let preferred =
        [[small, digits].concat(), within(0x41, 0x5a), within(0x20, 0x7e), ranges.clone()];
    let ranges = preferred.into_iter().find(|ranges| !ranges.is_empty())?;
    let size = ranges.iter().map(|(start, end)| u64::from(end - start) + 1).sum();
    let mut place = draw.below(size) as u32;
    for (start, end) in ranges {
        if place <= end - start {
            return char::from_u32(start + place);
        }
        place -= end - start + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    #[test]
    fn samples_match() {
        let patterns = [
            "^[A-Z]{3}-\\d{4}$",
            "^(red|green|blue)+$",
            "[0-9a-f]{8}",
            "^\\w+@\\w+\\.com$",
            "^$",
            "^.{5,}$",
            "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$",
            "^[^a-z0-9]$",
            "^\\p{Greek}+$",
        ];
        for pattern in patterns {
            for seed in 0..20 {
                let text = sample(pattern, 4, &mut Seed::new(seed).generator()).unwrap();
                assert!(compile(pattern).unwrap().is_match(&text), "{pattern}: {text}");
            }
        }
        assert_eq!(sample("(?=a)b", 4, &mut Seed::new(1).generator()), None);
        assert!(!is_known("(a)\\1"));
        assert_eq!(sample("a{100000}", 4, &mut Seed::new(1).generator()), None);
    }
}
