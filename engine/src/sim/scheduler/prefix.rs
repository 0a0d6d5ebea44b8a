//! The index of the prefix cache: from a block's key to the blocks that hold its content.
//!
//! It stores no token and decides nothing; it answers "which block has this key". A fixed table
//! with linear probing, sized once, because a growing map would stall one unlucky step for a
//! million-block cache. The invariant: a key has an entry exactly while at least one block carries
//! it, and the entry names the block that was published first.

use crate::sim::BlockHash;
use crate::sim::scheduler::kv_cache::BlockId;

/// Key → the first-published block with that key.
#[derive(Debug)]
pub(super) struct PrefixIndex {
    entries: Box<[Entry]>,
    mask: usize,
    /// A tag's top bits are its home.
    shift: u32,
    len: u32,
}

/// Eight bytes, so that a million blocks need 16 MB and not 32: the key itself stands in the block,
/// and is looked at only if the tag agrees.
#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: u32,
    /// [`BlockId::NONE`] marks an empty place.
    block: BlockId,
}

/// Not all zero, so that the table's memory is really there once it is built, and no later step
/// pays for it.
const EMPTY: Entry = Entry { tag: u32::MAX, block: BlockId::NONE };

impl PrefixIndex {
    /// An index that can hold a key for each of `blocks` blocks and stays at most half full.
    pub(super) fn new(blocks: u32) -> Self {
        let places = (u64::from(blocks.max(4)) * 2).next_power_of_two();
        assert!(places <= 1 << 32, "a cache of {blocks} blocks");
        Self {
            entries: vec![EMPTY; places as usize].into_boxed_slice(),
            mask: places as usize - 1,
            shift: 32 - places.trailing_zeros(),
            len: 0,
        }
    }

    /// How many distinct keys are in.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The block of `key`; `key_of` tells the key of a block that is in.
    pub(super) fn get(
        &self,
        key: BlockHash,
        key_of: impl Fn(BlockId) -> BlockHash,
    ) -> Option<BlockId> {
        let entry = self.entries[self.find(key, key_of)];
        (entry.block != BlockId::NONE).then_some(entry.block)
    }

    /// Makes `block` the first of `key`, which may or may not be in.
    pub(super) fn set(
        &mut self,
        key: BlockHash,
        block: BlockId,
        key_of: impl Fn(BlockId) -> BlockHash,
    ) {
        let place = self.find(key, key_of);
        if self.entries[place].block == BlockId::NONE {
            self.len += 1;
            assert!(
                (self.len as usize) * 2 <= self.entries.len(),
                "more keys than blocks can be cached"
            );
        }
        self.entries[place] = Entry { tag: tag(key), block };
    }

    /// Removes `key`, closing the gap so that probing never needs tombstones.
    pub(super) fn remove(&mut self, key: BlockHash, key_of: impl Fn(BlockId) -> BlockHash) {
        let mut hole = self.find(key, key_of);
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
            let home = self.home(entry.tag);
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
    fn find(&self, key: BlockHash, key_of: impl Fn(BlockId) -> BlockHash) -> usize {
        let tag = tag(key);
        let mut place = self.home(tag);
        loop {
            let entry = self.entries[place];
            if entry.block == BlockId::NONE || (entry.tag == tag && key_of(entry.block) == key) {
                return place;
            }
            place = (place + 1) & self.mask;
        }
    }

    fn home(&self, tag: u32) -> usize {
        (tag >> self.shift) as usize
    }
}

/// Keys are hashes, but perhaps poor ones: spread them once more.
fn tag(key: BlockHash) -> u32 {
    (key.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;
    use std::collections::BTreeMap;

    /// Keys that differ only in their top bits, and some that share a tag: the factor undoes the
    /// multiplication of [`tag`].
    fn key_number(number: u64) -> BlockHash {
        match number {
            0..80 => BlockHash(number << 56),
            _ => BlockHash((7 << 32 | number).wrapping_mul(0xF1DE_83E1_9937_733D)),
        }
    }

    #[test]
    fn some_keys_share_a_tag() {
        assert_eq!((tag(key_number(80)), tag(key_number(95))), (7, 7));
    }

    #[test]
    fn the_index_agrees_with_an_ordered_map_under_churn() {
        let mut random = Seed::new(7).generator();
        let mut index = PrefixIndex::new(64);
        let mut model: BTreeMap<u64, BlockId> = BTreeMap::new();
        let mut keys = vec![BlockHash(0); 97];
        for turn in 0..20_000u32 {
            // Each key has a block of its own.
            let number = random.below(96);
            let key = key_number(number);
            let block = BlockId::new(1 + number as u32);
            if model.contains_key(&key.0) && random.below(2) == 0 {
                model.remove(&key.0);
                index.remove(key, |block| keys[block.get() as usize]);
            } else if model.len() < 64 {
                model.insert(key.0, block);
                keys[block.get() as usize] = key;
                index.set(key, block, |block| keys[block.get() as usize]);
            }
            assert_eq!(index.len() as usize, model.len());
            for number in 0..96 {
                let key = key_number(number);
                let found = index.get(key, |block| keys[block.get() as usize]);
                assert_eq!(found, model.get(&key.0).copied(), "turn {turn}");
            }
        }
    }
}
