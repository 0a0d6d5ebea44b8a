//! The index of the prefix cache: from a block's key to the blocks that hold its content.
//!
//! It stores no token and decides nothing; it answers "which block has this key". A fixed table with
//! linear probing, sized once, because a growing map would stall one unlucky step for a
//! million-block cache. The invariant: a key has an entry exactly while at least one block carries
//! it, and the entry names the block that was published first.

use crate::sim::BlockHash;
use crate::sim::scheduler::kv_cache::BlockId;

/// Key → the first-published block with that key.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    entries: Box<[Entry]>,
    mask: usize,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: BlockHash,
    /// [`BlockId::NONE`] marks an empty place.
    block: BlockId,
}

const EMPTY: Entry = Entry { key: BlockHash(0), block: BlockId::NONE };

impl PrefixIndex {
    /// An index that can hold a key for each of `blocks` blocks and stays at most half full.
    pub(super) fn new(blocks: u32) -> Self {
        let places = (blocks.max(4) as usize * 2).next_power_of_two();
        Self { entries: vec![EMPTY; places].into_boxed_slice(), mask: places - 1, len: 0 }
    }

    /// How many distinct keys are in.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn get(&self, key: BlockHash) -> Option<BlockId> {
        let entry = self.entries[self.find(key)];
        (entry.block != BlockId::NONE).then_some(entry.block)
    }

    /// Makes `block` the first of `key`, which may or may not be in.
    pub(super) fn set(&mut self, key: BlockHash, block: BlockId) {
        let place = self.find(key);
        if self.entries[place].block == BlockId::NONE {
            self.len += 1;
            assert!(
                (self.len as usize) * 2 <= self.entries.len(),
                "more keys than blocks can be cached"
            );
        }
        self.entries[place] = Entry { key, block };
    }

    /// Removes `key`, closing the gap so that probing never needs tombstones.
    pub(super) fn remove(&mut self, key: BlockHash) {
        let mut hole = self.find(key);
        assert!(self.entries[hole].block != BlockId::NONE, "an uncached key is removed");
        self.len -= 1;
        let mut place = hole;
        loop {
            place = (place + 1) & self.mask;
            let entry = self.entries[place];
            if entry.block == BlockId::NONE {
                break;
            }
            // An entry may move into the hole unless its home lies strictly between the two.
            let home = self.home(entry.key);
            if (place.wrapping_sub(home) & self.mask) >= (place.wrapping_sub(hole) & self.mask) {
                self.entries[hole] = entry;
                hole = place;
            }
        }
        self.entries[hole] = EMPTY;
    }

    pub(super) fn clear(&mut self) {
        self.entries.fill(EMPTY);
        self.len = 0;
    }

    /// Where `key` is, or the empty place where it belongs.
    fn find(&self, key: BlockHash) -> usize {
        let mut place = self.home(key);
        loop {
            let entry = self.entries[place];
            if entry.block == BlockId::NONE || entry.key == key {
                return place;
            }
            place = (place + 1) & self.mask;
        }
    }

    fn home(&self, key: BlockHash) -> usize {
        // Keys are hashes, but perhaps poor ones: spread them once more.
        (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as usize & self.mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use std::collections::BTreeMap;

    #[test]
    fn the_index_agrees_with_an_ordered_map_under_churn() {
        let mut random = Seed::new(7).generator();
        let mut index = PrefixIndex::new(64);
        let mut model = BTreeMap::new();
        for turn in 0..20_000u32 {
            let key = BlockHash(random.below(96) << 56);
            if model.contains_key(&key) && random.below(2) == 0 {
                model.remove(&key);
                index.remove(key);
            } else if model.len() < 64 {
                let block = BlockId::new(1 + turn % 64);
                model.insert(key, block);
                index.set(key, block);
            }
            assert_eq!(index.len() as usize, model.len());
            for probe in 0..96 {
                let key = BlockHash(probe << 56);
                assert_eq!(index.get(key), model.get(&key).copied(), "turn {turn}");
            }
        }
    }
}
