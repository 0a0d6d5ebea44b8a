//! The log probabilities of a chat's tokens, as they stand in `logprobs.content`, and of a
//! response's.

use std::io::Write as _;

use super::json::push_string;
use super::push_decimal;

/// Appends the entry of one token and the `likeliest` at its place. `own` are the bytes of `token`,
/// which of a part of a character are no text.
pub fn write_entry<'a>(
    token: &str,
    own: &[u8],
    logprob: f64,
    likeliest: impl Iterator<Item = (&'a str, f64)>,
    out: &mut Vec<u8>,
) {
    let bytes = |other: &str, out: &mut Vec<u8>| {
        write_bytes(if other == token { own } else { other.as_bytes() }, out);
    };
    write_with(bytes, token, logprob, likeliest, out);
}

/// The same without the bytes: that of the deltas of a response.
pub fn write_short_entry<'a>(
    token: &str,
    logprob: f64,
    likeliest: impl Iterator<Item = (&'a str, f64)>,
    out: &mut Vec<u8>,
) {
    write_with(|_, _| {}, token, logprob, likeliest, out);
}

fn write_with<'a>(
    bytes: impl Fn(&str, &mut Vec<u8>),
    token: &str,
    logprob: f64,
    likeliest: impl Iterator<Item = (&'a str, f64)>,
    out: &mut Vec<u8>,
) {
    write_scored(token, logprob, out);
    bytes(token, out);
    out.extend_from_slice(b",\"top_logprobs\":[");
    for (at, (token, logprob)) in likeliest.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_scored(token, logprob, out);
        bytes(token, out);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

/// An entry's beginning.
fn write_scored(token: &str, logprob: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"token\":");
    push_string(out, token);
    // Six digits are more than a model's arithmetic is good for, and the same everywhere.
    write!(out, ",\"logprob\":{logprob:.6}").expect("writing to memory cannot fail");
}

fn write_bytes(token: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"bytes\":[");
    for (at, byte) in token.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_decimal(out, u64::from(*byte));
    }
    out.push(b']');
}
