//! The last N values, exactly: what the summary's percentiles are taken over.
//!
//! The invariant: pushing allocates nothing once the window is full, and takes the same time
//! always; sorting is the reader's work, on a copy.

/// A ring of the last `capacity` values, and the number of values ever pushed.
#[derive(Clone, Debug)]
pub struct Window<T> {
    values: Vec<T>,
    capacity: usize,
    /// Where the next value goes once the ring is full: the oldest one's place.
    next: usize,
    count: u64,
}

impl<T: Copy> Window<T> {
    /// An empty window over the last `capacity` values; `capacity` 0 keeps none and still counts.
    pub fn new(capacity: usize) -> Self {
        Self { values: Vec::new(), capacity, next: 0, count: 0 }
    }

    /// Takes a value; the oldest one goes when the window is full.
    pub fn push(&mut self, value: T) {
        self.count += 1;
        if self.values.len() < self.capacity {
            self.values.push(value);
            return;
        }
        if let Some(oldest) = self.values.get_mut(self.next) {
            *oldest = value;
            self.next += 1;
            if self.next == self.capacity {
                self.next = 0;
            }
        }
    }

    /// How many values were pushed since the start or the last [`Self::clear`].
    pub fn count(&self) -> u64 {
        self.count
    }

    /// How many of them are still here: what a percentile is taken over.
    pub fn samples(&self) -> usize {
        self.values.len()
    }

    /// The values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        let (newer, older) = self.values.split_at(self.next);
        older.iter().chain(newer).copied()
    }

    /// Starts a fresh period: no values, count 0. Keeps its memory.
    pub fn clear(&mut self) {
        self.values.clear();
        self.next = 0;
        self.count = 0;
    }
}

impl Window<u32> {
    /// Appends the values to `out` as seconds, the values being microseconds. Unsorted.
    pub fn seconds_into(&self, out: &mut Vec<f64>) {
        out.extend(self.values.iter().map(|&us| f64::from(us) / 1e6));
    }
}

/// A length of time as the windows keep it: microseconds, at most 71 minutes, rounded to the
/// nearest.
pub fn saturating_us(ns: u64) -> u32 {
    u32::try_from(ns.saturating_add(500) / 1_000).unwrap_or(u32::MAX)
}
