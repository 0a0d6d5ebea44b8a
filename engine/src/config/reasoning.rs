//! `reasoning:` of a model: whether its answers think before they speak, and for how long.
//!
//! Not what is thought: that is an entry's of `responses.yml`, or filler. The invariant: a length
//! that comes through here has `min` at most `max`.

use super::fields::Fields;
use super::problem::{Hint, Report};
use super::value::Value;
use crate::text::responses::{Lengths, Thinking};
use crate::units::Tokens;

/// What the model says; nothing if it leaves it to the entries.
pub(super) fn read(fields: &mut Fields, report: &mut Report<'_>) -> Thinking {
    let Some(value) = fields.take(report, "reasoning", &[]) else { return Thinking::Scripted };
    if !value.is_mapping() {
        return match value.one_of(report, &["scripted", "never"]) {
            Some(word) if word.value == "never" => Thinking::Never,
            _ => Thinking::Scripted,
        };
    }
    value
        .fields(report)
        .and_then(|mut section| {
            let hint = Hint::new("write { tokens: 100 } or { tokens: [min, max] }");
            let tokens = section.require(report, "tokens", &[], hint);
            section.close(report, |_| None);
            lengths(&tokens?, report)
        })
        .map_or(Thinking::Scripted, Thinking::Always)
}

/// The longest: no context is longer.
const MOST: u64 = 10_000_000;

/// A number of tokens, or the least and the most.
fn lengths(tokens: &Value, report: &mut Report<'_>) -> Option<Lengths> {
    let items = tokens.one_or_more();
    if !tokens.is_scalar() && items.len() != 2 {
        let hint = Hint::new("write [min, max], for example [200, 400]");
        tokens.problem(report, "must be a number or a pair of numbers", hint);
        return None;
    }
    let mut counts = Vec::with_capacity(2);
    for item in &items {
        let count = item.whole(report, 1..=MOST)?;
        counts.push(Tokens::new(u32::try_from(count.value).unwrap_or(u32::MAX)));
    }
    let (min, max) = (*counts.first()?, *counts.last()?);
    if min > max {
        tokens.problem(report, "has a minimum above its maximum", Hint::new("write [min, max]"));
        return None;
    }
    Some(Lengths { min, max })
}
