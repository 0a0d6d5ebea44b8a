//! The one hash and the one generator of the project.
//!
//! Everything that looks random (variants, synthetic lengths, arrival gaps, faults) comes from
//! here, so that the same seed gives the same run on every machine, forever. The algorithms are
//! fixed by tests against published values and must not change.

use std::hash::{BuildHasher, Hasher};

/// A seed that callers derive further: from the file's or the request's seed, by adding whatever
/// the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

impl Seed {
    /// The seed of a run, as the user typed it.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A new seed that depends on this one and on all of `bytes`.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Self {
        let mut hasher = FixedHasher { state: self.0 ^ FNV_OFFSET };
        hasher.write(bytes);
        Self(mix(hasher.state ^ (bytes.len() as u64).rotate_left(32)))
    }

    /// A number that depends on the seed alone.
    pub const fn value(self) -> u64 {
        mix(self.0)
    }

    /// A number in `0..bound`; `bound` must not be zero. Without modulo bias worth mentioning: the
    /// error is below bound / 2^64.
    pub fn below(self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to choose from");
        scale(self.value(), bound)
    }

    /// The generator that starts at this seed.
    pub const fn generator(self) -> Generator {
        Generator { state: self.0 }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, good enough for arrivals and lengths.
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        finish(self.state)
    }

    /// A number in `0..bound`; `bound` must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing to choose from");
        scale(self.next_u64(), bound)
    }

    /// A number in `0.0..1.0` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A gap of a Poisson process with mean 1: exponentially distributed.
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
const FNV_OFFSET: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01B3;

const fn mix(value: u64) -> u64 {
    finish(value.wrapping_add(GOLDEN))
}

const fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

/// A `BuildHasher` without a random state: for maps on the token path that are looked up but never
/// iterated.
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedState;

impl BuildHasher for FixedState {
    type Hasher = FixedHasher;
    fn build_hasher(&self) -> FixedHasher {
        FixedHasher { state: FNV_OFFSET }
    }
}

/// A map that is looked up and never iterated: its order depends on nothing random, but on history.
#[expect(clippy::disallowed_types, reason = "the one place that names it, with a fixed hasher")]
pub type LookupMap<K, V> = std::collections::HashMap<K, V, FixedState>;

/// The hasher of [`FixedState`]: FNV-1a over 8-byte words with a SplitMix64 finish.
#[derive(Clone, Debug)]
pub struct FixedHasher {
    state: u64,
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let word = u64::from_le_bytes(word.try_into().expect("chunks of eight"));
            self.write_u64(word);
        }
        for &byte in words.remainder() {
            self.state = (self.state ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
    }

    fn write_u64(&mut self, word: u64) {
        // One multiplication leaves the high bits of the word only in the high bits of the state:
        // fold them back, or keys that differ there alone would collide.
        let product = (self.state ^ word).wrapping_mul(FNV_PRIME | GOLDEN);
        self.state = product ^ (product >> 32);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn finish(&self) -> u64 {
        finish(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first outputs of SplitMix64 for seed 1234567 (Rosetta Code, "Pseudo-random
    /// numbers/Splitmix64").
    #[test]
    fn the_generator_is_splitmix64() {
        let mut generator = Seed::new(1_234_567).generator();
        let first: Vec<u64> = (0..5).map(|_| generator.next_u64()).collect();
        assert_eq!(
            first,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn derived_seeds_depend_on_every_byte_and_on_the_length() {
        let seed = Seed::new(42);
        let all = [seed.with(b""), seed.with(b"a"), seed.with(b"b"), seed.with(b"a\0"), seed];
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                assert_ne!(a, b);
            }
        }
    }
}
