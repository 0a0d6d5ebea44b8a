//! Scores of tokens in the form of text completions: four arrays side by side.

use std::io::Write as _;

const INFALLIBLE: &str = "writing to memory cannot fail";

/// A token and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoredToken<'a> {
    /// Its text as JSON string content, without quotes.
    pub escaped: &'a [u8],
    /// Its natural logarithm of probability; none for the first token of a prompt.
    pub logprob: Option<f64>,
    /// Where it begins in the text of the choice, in characters.
    pub offset: usize,
    /// The likeliest tokens in its place, as `escaped` and `logprob`: the token itself may be among
    /// them, and is added if not.
    pub top: &'a [(&'a [u8], f64)],
}

/// Appends the `logprobs` object of `tokens`. With `top` each token has its map of alternatives.
pub fn write_scored<'a, I>(tokens: I, top: bool, out: &mut Vec<u8>)
where
    I: Iterator<Item = ScoredToken<'a>> + Clone,
{
    out.extend_from_slice(b"{\"tokens\":[");
    array(tokens.clone(), out, |token, out| push(token.escaped, out));
    out.extend_from_slice(b"],\"token_logprobs\":[");
    array(tokens.clone(), out, |token, out| score(token.logprob, out));
    out.extend_from_slice(b"],\"top_logprobs\":");
    if top {
        out.push(b'[');
        array(tokens.clone(), out, alternatives);
        out.push(b']');
    } else {
        out.extend_from_slice(b"null");
    }
    out.extend_from_slice(b",\"text_offset\":[");
    array(tokens, out, |token, out| write!(out, "{}", token.offset).expect(INFALLIBLE));
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

/// A map from text to score: a text that stands for two tokens would stand twice, so only the first
/// of them is named.
fn alternatives(token: ScoredToken<'_>, out: &mut Vec<u8>) {
    let Some(own) = token.logprob else { return out.extend_from_slice(b"null") };
    out.push(b'{');
    push(token.escaped, out);
    out.push(b':');
    score(Some(own), out);
    for (at, &(escaped, logprob)) in token.top.iter().enumerate() {
        let known = escaped == token.escaped || token.top[..at].iter().any(|it| it.0 == escaped);
        if !known {
            out.push(b',');
            push(escaped, out);
            out.push(b':');
            score(Some(logprob), out);
        }
    }
    out.push(b'}');
}

fn push(escaped: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(escaped);
    out.push(b'"');
}

fn score(logprob: Option<f64>, out: &mut Vec<u8>) {
    match logprob {
        Some(logprob) => write!(out, "{logprob}").expect(INFALLIBLE),
        None => out.extend_from_slice(b"null"),
    }
}
