//! Log probabilities, as a model might have had them.
//!
//! Not those of any model: a plausible number for each token and plausible tokens beside it. The
//! one invariant: they depend on the token's text alone, so that a frame can be rendered again, and
//! the chosen token is always the likeliest.

use crate::seed::Seed;

/// What else a model might have said.
const OTHERS: [&str; 32] = [
    " the", " a", " and", " of", " to", " in", " is", " that", " it", " for", " as", " with",
    " on", " this", " be", " are", ".", ",", " not", " or", " an", " by", " from", " at", " which",
    " one", " all", " will", " can", " has", "\n", ":",
];

/// The probability of a token that was chosen: from 0.5 to 1.
fn chosen(piece: &str) -> f64 {
    0.5 + 0.499 * seed(piece).with(b"p").generator().unit()
}

/// The log probability of a token that was chosen.
pub fn logprob(piece: &str) -> f64 {
    chosen(piece).ln()
}

/// The likeliest tokens at the place of `piece`, itself first, and their log probabilities,
/// falling.
pub fn likeliest(piece: &str, count: u32) -> impl Iterator<Item = (&str, f64)> {
    let rest = 1.0 - chosen(piece);
    let start = seed(piece).below(OTHERS.len() as u64) as usize;
    let others = (0..OTHERS.len()).map(move |at| OTHERS[(start + at) % OTHERS.len()]);
    let others = others.filter(move |other| *other != piece).enumerate();
    let beside =
        others.map(move |(rank, other)| (other, (rest * 0.5f64.powi(rank as i32 + 1)).ln()));
    std::iter::once((piece, logprob(piece))).chain(beside).take(count as usize)
}

fn seed(piece: &str) -> Seed {
    Seed::new(0x1097).with(piece.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_token_is_the_likeliest_and_all_together_are_no_more_than_certain() {
        for piece in ["One", " the", "", "😀", "."] {
            let all: Vec<(&str, f64)> = likeliest(piece, 20).collect();
            assert_eq!((all.len(), all[0].0), (20, piece));
            assert!(all.windows(2).all(|pair| pair[0].1 > pair[1].1), "{all:?}");
            assert!(all.iter().map(|(_, logprob)| logprob.exp()).sum::<f64>() <= 1.0);
            let different: std::collections::BTreeSet<_> = all.iter().map(|(it, _)| it).collect();
            assert_eq!(different.len(), 20);
        }
        assert_eq!(likeliest("x", 0).count(), 0);
    }
}
