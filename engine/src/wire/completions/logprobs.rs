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

/// The scores of a prompt, rendered once for all choices that echo it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScoredPrompt {
    tokens: Vec<u8>,
    logprobs: Vec<u8>,
    likeliest: Vec<u8>,
    offsets: Vec<u8>,
}

impl ScoredPrompt {
    /// Those of `tokens`; `likeliest` as in [`write_scored`].
    pub fn new<'a, T: Iterator<Item = (&'a str, f64)>>(
        tokens: impl Iterator<Item = ScoredToken<'a>>,
        likeliest: impl Fn(&'a str) -> T,
    ) -> Self {
        let mut prompt = Self::default();
        for (at, token) in tokens.enumerate() {
            let Self { tokens, logprobs, likeliest: alternatives, offsets } = &mut prompt;
            if at > 0 {
                tokens.push(b',');
                logprobs.push(b',');
                alternatives.push(b',');
                offsets.push(b',');
            }
            push_string(tokens, token.piece);
            push_logprob(token, logprobs);
            push_likeliest(token, &likeliest, alternatives);
            push_decimal(offsets, token.offset as u64);
        }
        prompt
    }

    /// Bytes of all that is rendered.
    pub fn size(&self) -> usize {
        let Self { tokens, logprobs, likeliest, offsets } = self;
        tokens.len() + logprobs.len() + likeliest.len() + offsets.len()
    }
}

/// Appends the `logprobs` object of `tokens`, with those of `prompt` before them. `likeliest` gives
/// what else might have stood in a token's place, each text once, the token itself among it.
pub fn write_scored<'a, T: Iterator<Item = (&'a str, f64)>>(
    prompt: Option<&ScoredPrompt>,
    tokens: impl Iterator<Item = ScoredToken<'a>> + Clone,
    likeliest: impl Fn(&'a str) -> T,
    out: &mut Vec<u8>,
) {
    let before = |array: fn(&ScoredPrompt) -> &Vec<u8>| prompt.map_or(&[][..], |it| array(it));
    out.extend_from_slice(b"{\"tokens\":[");
    array(before(|it| &it.tokens), tokens.clone(), out, |token, out| {
        push_string(out, token.piece);
    });
    out.extend_from_slice(b"],\"token_logprobs\":[");
    array(before(|it| &it.logprobs), tokens.clone(), out, push_logprob);
    out.extend_from_slice(b"],\"top_logprobs\":[");
    array(before(|it| &it.likeliest), tokens.clone(), out, |token, out| {
        push_likeliest(token, &likeliest, out);
    });
    out.extend_from_slice(b"],\"text_offset\":[");
    array(before(|it| &it.offsets), tokens, out, |token, out| {
        push_decimal(out, token.offset as u64);
    });
    out.extend_from_slice(b"]}");
}

fn array<'a>(
    before: &[u8],
    tokens: impl Iterator<Item = ScoredToken<'a>>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(ScoredToken<'a>, &mut Vec<u8>),
) {
    out.extend_from_slice(before);
    for (at, token) in tokens.enumerate() {
        if at > 0 || !before.is_empty() {
            out.push(b',');
        }
        write(token, out);
    }
}

fn push_logprob(token: ScoredToken<'_>, out: &mut Vec<u8>) {
    match token.logprob {
        Some(logprob) => score(logprob, out),
        None => out.extend_from_slice(b"null"),
    }
}

fn push_likeliest<'a, T: Iterator<Item = (&'a str, f64)>>(
    token: ScoredToken<'a>,
    likeliest: &impl Fn(&'a str) -> T,
    out: &mut Vec<u8>,
) {
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
}

fn score(logprob: f64, out: &mut Vec<u8>) {
    // Six digits are more than a model's arithmetic is good for, and the same everywhere.
    write!(out, "{logprob:.6}").expect("writing to memory cannot fail");
}
