//! The last N values of one thread, readable by any: what exact percentiles are taken over.
//!
//! [`Ring`] only collects; sorting is the reader's work, on a copy. The invariant: one writer, who
//! stores values before their number; a reader that comes in the middle gets each value whole, and
//! at worst some newer ones in the place of the oldest it asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// A ring of the last values, and how many were ever pushed.
#[derive(Debug)]
pub struct Ring {
    values: Box<[AtomicU64]>,
    pushed: AtomicU64,
    /// Where the next value goes: `pushed` modulo the capacity, without a division for each value.
    next: AtomicU64,
}

impl Ring {
    /// Keeps the last `capacity` values; 0 keeps none and still counts.
    pub fn new(capacity: usize) -> Self {
        let values = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        Self { values, pushed: AtomicU64::new(0), next: AtomicU64::new(0) }
    }

    /// Takes a value `times` times. Only ever called by the ring's own thread.
    pub fn push(&self, value: u64, times: u64) {
        let pushed = self.pushed.load(Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed) as usize;
        // Most pushes do not reach the end, and then there is nothing to divide.
        let next = match self.values.get(next..next.saturating_add(times as usize)) {
            Some(values) => {
                values.iter().for_each(|place| place.store(value, Ordering::Relaxed));
                next + values.len()
            }
            None => self.push_over_end(value, times),
        };
        self.next.store(next as u64, Ordering::Relaxed);
        // After the values, so that a reader that sees the number sees them.
        self.pushed.store(pushed + times, Ordering::Release);
    }

    /// Stores a value `times` times, of which the last does not fit behind the others; returns where
    /// the next value goes.
    #[cold]
    fn push_over_end(&self, value: u64, times: u64) -> usize {
        let (capacity, next) = (self.values.len() as u64, self.next.load(Ordering::Relaxed));
        for number in next..next + times.min(capacity) {
            self.values[(number % capacity) as usize].store(value, Ordering::Relaxed);
        }
        (next + times).checked_rem(capacity).unwrap_or(0) as usize
    }

    /// How many values were ever pushed.
    pub fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Acquire)
    }

    /// Appends the values from number `from` on (counted as [`Self::pushed`] counts) that are still
    /// here, oldest first, at most the last `most`; and says up to which number it read.
    pub fn since(&self, from: u64, most: usize, out: &mut Vec<u64>) -> u64 {
        let pushed = self.pushed();
        let capacity = self.values.len() as u64;
        let kept = (pushed - from.min(pushed)).min(capacity).min(most as u64);
        for number in pushed - kept..pushed {
            let value = &self.values[(number % capacity) as usize];
            out.push(value.load(Ordering::Relaxed));
        }
        pushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(ring: &Ring, from: u64, most: usize) -> Vec<u64> {
        let mut out = Vec::new();
        ring.since(from, most, &mut out);
        out
    }

    #[test]
    fn the_oldest_values_go_first_and_all_are_counted() {
        let ring = Ring::new(4);
        for value in 1..=3 {
            ring.push(value, 1);
        }
        assert_eq!(since(&ring, 0, 9), [1, 2, 3]);
        ring.push(7, 3);
        assert_eq!((since(&ring, 0, 9), ring.pushed()), (vec![3, 7, 7, 7], 6));
        assert_eq!(since(&ring, 4, 9), [7, 7]);
        assert_eq!(since(&ring, 0, 2), [7, 7]);
        assert!(since(&ring, 6, 9).is_empty());
        ring.push(9, 100);
        assert_eq!((since(&ring, 0, 9), ring.pushed()), (vec![9; 4], 106));
    }

    #[test]
    fn the_last_values_are_kept_wherever_a_push_begins_and_ends() {
        for times in 0..12 {
            let ring = Ring::new(5);
            let mut all = Vec::new();
            for value in 0..40 {
                ring.push(value, (value * times) % 12);
                all.extend((0..(value * times) % 12).map(|_| value));
                assert_eq!(since(&ring, 0, 9), all[all.len().saturating_sub(5)..], "{times}");
            }
        }
    }

    #[test]
    fn a_ring_without_room_counts_only() {
        let ring = Ring::new(0);
        ring.push(1, 5);
        assert_eq!((since(&ring, 0, 9).len(), ring.pushed()), (0, 5));
    }
}
