//! The last N values of one thread, readable by any: what exact percentiles are taken over.
//!
//! [`Ring`] only collects; sorting is the reader's work, on a copy. The invariant: one writer,
//! whose push is two stores; a reader that comes in the middle gets each value whole, and at worst
//! some newer ones in the place of the oldest it asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// A ring of the last values, and how many were ever pushed.
#[derive(Debug)]
pub struct Ring {
    values: Box<[AtomicU64]>,
    pushed: AtomicU64,
}

impl Ring {
    /// Keeps the last `capacity` values; 0 keeps none and still counts.
    pub fn new(capacity: usize) -> Self {
        let values = (0..capacity).map(|_| AtomicU64::new(0)).collect();
        Self { values, pushed: AtomicU64::new(0) }
    }

    /// Takes a value `times` times. Only ever called by the ring's own thread.
    pub fn push(&self, value: u64, times: u64) {
        let pushed = self.pushed.load(Ordering::Relaxed);
        let capacity = self.values.len() as u64;
        if capacity > 0 {
            let mut at = pushed % capacity;
            for _ in 0..times.min(capacity) {
                self.values[at as usize].store(value, Ordering::Relaxed);
                at += 1;
                if at == capacity {
                    at = 0;
                }
            }
        }
        // After the values, so that a reader that sees the number sees them.
        self.pushed.store(pushed + times, Ordering::Release);
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
    fn a_ring_without_room_counts_only() {
        let ring = Ring::new(0);
        ring.push(1, 5);
        assert_eq!((since(&ring, 0, 9).len(), ring.pushed()), (0, 5));
    }
}
