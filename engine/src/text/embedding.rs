//! Vectors for texts: what an embedding model would answer, without the model.
//!
//! Not meaning: texts are near each other as far as they have the same words, whatever their order
//! and case. That is enough for retrieval tests to find what they put in. The one invariant: a
//! vector is a pure function of model, tokens and length, the same on every machine, and its
//! length is 1.
//!
//! Each token adds a few coordinates of a full vector, chosen and signed by a hash of the token (a
//! sparse random projection after Achlioptas 2003), and the whole text a little noise in all of
//! them, so that different texts never share a vector. Shorter vectors are the beginning of the
//! full one, scaled to length 1 again, as with models trained for it.

use crate::seed::Seed;

/// Coordinates of a full vector: those of OpenAI's `text-embedding-3-small`.
pub const DIMENSIONS: usize = 1536;

/// Coordinates that a token adds to.
const PER_TOKEN: usize = 24;

/// The noise of a text in one coordinate, against 1 of a token: its length is at most a quarter of
/// what one token adds.
const NOISE: f32 = 0.03;

/// The first `dimensions` coordinates of the vector of `tokens`, scaled to length 1.
///
/// # Panics
/// If `dimensions` is 0 or above [`DIMENSIONS`].
pub fn embed<'a>(
    model: &str,
    tokens: impl IntoIterator<Item = &'a str>,
    dimensions: usize,
) -> Vec<f32> {
    assert!((1..=DIMENSIONS).contains(&dimensions), "checked with the request");
    let model = Seed::new(0).with(model.as_bytes());
    let mut whole = model.with(b"text");
    let mut sums = vec![0i32; DIMENSIONS];
    let mut word = String::new();
    for token in tokens {
        whole = whole.with(token.as_bytes());
        word.clear();
        word.extend(token.trim_start().chars().flat_map(char::to_lowercase));
        let mut places = model.with(word.as_bytes()).generator();
        for _ in 0..PER_TOKEN {
            let place = places.next_u64();
            let sign = if place >> 63 == 0 { 1 } else { -1 };
            let at = (place as u32 as usize) % DIMENSIONS;
            sums[at] = sums[at].saturating_add(sign);
        }
    }
    let mut noise = whole.generator();
    let mut vector: Vec<f32> = sums[..dimensions]
        .iter()
        .map(|&sum| sum as f32 + NOISE * (noise.unit() as f32 - 0.5) * 2.0)
        .collect();
    normalize(&mut vector);
    vector
}

fn normalize(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    match square.sqrt() {
        length if length > 0.0 => {
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
        }
        // All of the noise was exactly nothing.
        _ => vector[0] = 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer;

    fn vector(text: &str, dimensions: usize) -> Vec<f32> {
        embed("m", tokenizer::pieces(text), dimensions)
    }

    fn cosine(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(x * y)).sum()
    }

    #[test]
    fn every_vector_has_length_one() {
        for text in ["", "x", "The rest is silence.", &"word ".repeat(5000)] {
            for dimensions in [1, 2, 256, DIMENSIONS] {
                let vector = vector(text, dimensions);
                assert_eq!(vector.len(), dimensions);
                assert!((cosine(&vector, &vector) - 1.0).abs() < 1e-5, "{text:.20} {dimensions}");
            }
        }
    }

    #[test]
    fn texts_are_as_near_as_they_share_words() {
        let whale = vector("Which book is about the white whale?", DIMENSIONS);
        let near = vector("A book about a white whale", DIMENSIONS);
        let far = vector("Quarterly revenue grew by nine percent", DIMENSIONS);
        assert!(cosine(&whale, &near) > 0.4, "{}", cosine(&whale, &near));
        assert!(cosine(&whale, &far).abs() < 0.2, "{}", cosine(&whale, &far));
        // Order and case leave only the noise.
        let turned = vector(" whale WHITE", DIMENSIONS);
        assert!(cosine(&turned, &vector(" White Whale", DIMENSIONS)) > 0.9);
    }

    #[test]
    fn different_texts_and_models_have_different_vectors() {
        assert_eq!(vector("a b", 8), vector("a b", 8));
        assert_ne!(vector("a b", 8), vector("b a", 8));
        assert_ne!(vector("a b", 8), embed("other", tokenizer::pieces("a b"), 8));
    }

    #[test]
    fn a_short_vector_points_where_the_full_one_begins() {
        let full = vector("The rest is silence.", DIMENSIONS);
        let short = vector("The rest is silence.", 256);
        let mut beginning = full[..256].to_vec();
        normalize(&mut beginning);
        assert!(beginning.iter().zip(&short).all(|(a, b)| (a - b).abs() < 1e-6));
    }
}
