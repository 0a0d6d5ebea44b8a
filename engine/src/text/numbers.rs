//! A set of small numbers, most often of very few.
//!
//! Not a general set: it has a limit that every number is below. The one invariant: numbers come
//! out ascending, and each once, whether they are held as a list or as bits.

/// So many numbers take no memory of their own: a short message has a few of the thousands of words
/// that are looked for, and room for a bit of each costs more than to find them.
const FEW: usize = 16;

/// Some of the numbers below a limit.
#[derive(Debug)]
pub(super) struct Numbers {
    limit: usize,
    /// A bit for each, modulo 64: most numbers that are asked for are seen not to be among them.
    hints: u64,
    /// Ascending; the first `len` count.
    few: [u32; FEW],
    len: usize,
    /// All of them, once they are more than a few; empty until then.
    bits: Vec<u64>,
}

impl Numbers {
    /// None of those below `limit`.
    pub(super) fn none_below(limit: usize) -> Self {
        Self { limit, hints: 0, few: [0; FEW], len: 0, bits: Vec::new() }
    }

    /// Takes `number` in, which is below the limit.
    pub(super) fn insert(&mut self, number: u32) {
        self.hints |= 1 << (number % 64);
        if self.bits.is_empty() {
            let Err(at) = self.few[..self.len].binary_search(&number) else { return };
            if self.len < FEW {
                self.few.copy_within(at..self.len, at + 1);
                self.few[at] = number;
                self.len += 1;
                return;
            }
            self.spill();
        }
        set(&mut self.bits, number);
    }

    /// Whether `number`, which is below the limit, is among them.
    #[inline]
    pub(super) fn has(&self, number: u32) -> bool {
        self.hints >> (number % 64) & 1 == 1 && self.holds(number)
    }

    fn holds(&self, number: u32) -> bool {
        match self.bits.get(number as usize / 64) {
            Some(word) => word >> (number % 64) & 1 == 1,
            None => self.few[..self.len].contains(&number),
        }
    }

    /// The numbers, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.bits.iter().enumerate().filter(|(_, word)| **word != 0);
        let many = words.flat_map(|(at, word)| {
            let is_set = move |bit: &u32| word >> bit & 1 == 1;
            (0..64).filter(is_set).map(move |bit| at as u32 * 64 + bit)
        });
        self.few[..self.len].iter().copied().chain(many)
    }

    #[cold]
    fn spill(&mut self) {
        self.bits = vec![0; self.limit.div_ceil(64)];
        for &number in &self.few[..self.len] {
            set(&mut self.bits, number);
        }
        self.len = 0;
    }
}

fn set(bits: &mut [u64], number: u32) {
    bits[number as usize / 64] |= 1 << (number % 64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_out_ascending_and_once_however_many_they_are() {
        const LIMIT: u32 = 1000;
        for count in (0..=FEW + 2).chain([100, 1000, 3000]) {
            let mut numbers = Numbers::none_below(LIMIT as usize);
            // Most of them twice, and in no order.
            let inserted = (0..count as u32).map(|i| (i / 2 * 2) * 337 % LIMIT);
            let mut expected: Vec<u32> = inserted.clone().collect();
            inserted.for_each(|number| numbers.insert(number));
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(numbers.iter().collect::<Vec<_>>(), expected);
            assert_eq!(numbers.bits.is_empty(), expected.len() <= FEW);
            assert!((0..LIMIT).all(|n| numbers.has(n) == expected.binary_search(&n).is_ok()));
        }
    }
}
