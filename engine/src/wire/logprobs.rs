//! The log probabilities of a chat's tokens, as they stand in `logprobs.content`.

use std::io::Write as _;

use super::json::push_string;
use super::push_decimal;

/// Appends the entry of one token and the `likeliest` at its place.
pub fn write_entry<'a>(
    token: &str,
    logprob: f64,
    likeliest: impl Iterator<Item = (&'a str, f64)>,
    out: &mut Vec<u8>,
) {
    write_scored(token, logprob, out);
    out.extend_from_slice(b",\"top_logprobs\":[");
    for (at, (token, logprob)) in likeliest.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_scored(token, logprob, out);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

/// An entry without its end.
fn write_scored(token: &str, logprob: f64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"token\":");
    push_string(out, token);
    // Six digits are more than a model's arithmetic is good for, and the same everywhere.
    write!(out, ",\"logprob\":{logprob:.6},\"bytes\":[").expect("writing to memory cannot fail");
    for (at, byte) in token.bytes().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_decimal(out, u64::from(byte));
    }
    out.push(b']');
}
