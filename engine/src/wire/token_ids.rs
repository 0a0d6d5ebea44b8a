//! Tokens as numbers, for clients that ask vLLM for them: ids, and the scores of a prompt.
//!
//! Not how a token gets its id. The invariant: what is appended is always a member with its comma,
//! or an entry without.

use std::io::Write as _;

use super::json::push_string;
use super::push_decimal;

/// Appends ids as an array behind `name`, which is what stands before it.
pub fn push_ids(name: &[u8], ids: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.push(b'[');
    for (at, id) in ids.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        push_decimal(out, id.into());
    }
    out.push(b']');
}

/// Tokens in an entry at most: 20 alternatives may be asked for.
const MOST_RANKS: usize = 32;

/// Appends the entry of one token in `prompt_logprobs`: by their ids, the likeliest tokens at its
/// place with their log probabilities, falling. An id that comes again is left out.
pub fn push_ranked<'a>(likeliest: impl Iterator<Item = (u32, &'a str, f64)>, out: &mut Vec<u8>) {
    out.push(b'{');
    let mut seen = [0; MOST_RANKS];
    let mut rank = 0;
    for (id, text, logprob) in likeliest {
        if seen[..rank].contains(&id) {
            continue;
        }
        let comma = if rank > 0 { "," } else { "" };
        let Some(place) = seen.get_mut(rank) else { break };
        *place = id;
        rank += 1;
        write!(
            out,
            "{comma}\"{id}\":{{\"logprob\":{logprob:.6},\"rank\":{rank},\"decoded_token\":"
        )
        .expect("writing to memory cannot fail");
        push_string(out, text);
        out.push(b'}');
    }
    out.push(b'}');
}
