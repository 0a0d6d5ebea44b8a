//! Scores of tokens in the form of text completions: four arrays side by side.

use std::io::Write as _;

use crate::wire::json::push_string;
use crate::wire::push_decimal;

/// A token and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredToken<'a> {
    /// Its text.
    pub piece: &'a str,
    /// Its natural logarithm of probability; none for the first token of a prompt.
    pub logprob: Option<f64>,
    /// Where it begins in the text of the choice, in characters.
    pub offset: usize,
}

/// Appends the `logprobs` object of `tokens`. `likeliest` gives what else might have stood in a
/// token's place, each text once, the token itself among it.
pub fn write_scored<'a, T: Iterator<Item = (&'a str, f64)>>(
    tokens: impl Iterator<Item = ScoredToken<'a>> + Clone,
    likeliest: impl Fn(&'a str) -> T,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"tokens\":[");
    array(tokens.clone(), out, |token, out| push_string(out, token.piece));
    out.extend_from_slice(b"],\"token_logprobs\":[");
    array(tokens.clone(), out, |token, out| match token.logprob {
        Some(logprob) => score(logprob, out),
        None => out.extend_from_slice(b"null"),
    });
    out.extend_from_slice(b"],\"top_logprobs\":[");
    array(tokens.clone(), out, |token, out| {
        if token.logprob.is_none() {
            return out.extend_from_slice(b"null");
        }
        out.push(b'{');
        for (at, (piece, logprob)) in likeliest(token.piece).enumerate() {
            if at > 0 {
                out.push(b',');
            }
            push_string(out, piece);
            out.push(b':');
            score(logprob, out);
        }
        out.push(b'}');
    });
    out.extend_from_slice(b"],\"text_offset\":[");
    array(tokens, out, |token, out| push_decimal(out, token.offset as u64));
    out.extend_from_slice(b"]}");
}

fn array<'a>(
    tokens: impl Iterator<Item = ScoredToken<'a>>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(ScoredToken<'a>, &mut Vec<u8>),
) {
    for (at, token) in tokens.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(token, out);
    }
}

fn score(logprob: f64, out: &mut Vec<u8>) {
    // Six digits are more than a model's arithmetic is good for, and the same everywhere.
    write!(out, "{logprob:.6}").expect("writing to memory cannot fail");
}
