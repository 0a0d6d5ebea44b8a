//! The paged KV cache: blocks, the free list, reference counts, keys.
//!
//! It obeys; whether a request may have blocks is decided in `policy`. It knows no tokens, only
//! blocks and their keys. The invariant: every block but the placeholder 0 is either on the free
//! list with no user, or off it with at least one; a cached block without a user is *free* and
//! keeps its key until it is handed out again.

use crate::sim::BlockHash;
use crate::sim::scheduler::FreedBlocks;
use crate::sim::scheduler::prefix::PrefixIndex;

/// The number of a KV-cache block. 0 is the placeholder that is never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(u32);

impl BlockId {
    /// The placeholder block; in links and tables: none.
    pub const NONE: Self = Self(0);

    /// Block number `number`.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u32 {
        self.0
    }

    const fn at(self) -> usize {
        self.0 as usize
    }
}

/// One block: 32 bytes that never straddle two cache lines, so that handing one out touches one
/// line, whatever the size of the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Block {
    /// Neighbours on the free list; meaningless while the block has a user.
    next: BlockId,
    prev: BlockId,
    users: u32,
    has_key: bool,
    key: BlockHash,
    /// Blocks with the same key, in order of publication, as a ring: the first one's `twin_prev` is
    /// the last one.
    twin_next: BlockId,
    twin_prev: BlockId,
}

const UNUSED: Block = Block {
    next: BlockId::NONE,
    prev: BlockId::NONE,
    users: 0,
    has_key: false,
    key: BlockHash(0),
    twin_next: BlockId::NONE,
    twin_prev: BlockId::NONE,
};

/// The KV cache of one simulated GPU.
#[derive(Debug)]
pub(super) struct KvCache {
    /// Index 0, the placeholder, is also the sentinel of the free list.
    blocks: Box<[Block]>,
    free: u32,
    freed: FreedBlocks,
    prefix: Option<PrefixIndex>,
    /// Blocks that nobody may have at present; the cache itself counts as their user.
    withheld: Vec<BlockId>,
    /// Scratch of [`KvCache::release`].
    keyed: Vec<BlockId>,
    unkeyed: Vec<BlockId>,
}

impl KvCache {
    /// A cache of `num_blocks` blocks, the placeholder included, all free in order 1, 2, 3, ….
    pub(super) fn new(num_blocks: u32, prefix_caching: bool, freed: FreedBlocks) -> Self {
        assert!(num_blocks >= 2, "a KV cache of {num_blocks} blocks has none to hand out");
        let blocks = (0..num_blocks)
            .map(|number| Block {
                next: BlockId((number + 1) % num_blocks),
                prev: BlockId((number + num_blocks - 1) % num_blocks),
                ..UNUSED
            })
            .collect();
        Self {
            blocks,
            free: num_blocks - 1,
            freed,
            prefix: prefix_caching.then(|| PrefixIndex::new(num_blocks)),
            withheld: Vec::new(),
            keyed: Vec::new(),
            unkeyed: Vec::new(),
        }
    }

    /// Blocks that can be handed out as long as none is withheld.
    pub(super) fn capacity(&self) -> u32 {
        self.blocks.len() as u32 - 1
    }

    /// Blocks that can be handed out at all.
    pub(super) fn usable(&self) -> u32 {
        self.capacity() - self.withheld.len() as u32
    }

    /// Takes free blocks out of circulation until `count` are; returns how many are missing.
    pub(super) fn withhold(&mut self, count: u32) -> u32 {
        let missing = count.saturating_sub(self.withheld.len() as u32);
        let taken = missing.min(self.free);
        let mut withheld = std::mem::take(&mut self.withheld);
        self.take(taken, &mut withheld);
        self.withheld = withheld;
        missing - taken
    }

    /// Lets blocks back into circulation until only `count` are withheld.
    pub(super) fn give_back(&mut self, count: u32) {
        if self.withheld.len() > count as usize {
            let mut back = self.withheld.split_off(count as usize);
            self.release(&mut back);
        }
    }

    /// Blocks without a user, cached or not.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    pub(super) fn caches_prefixes(&self) -> bool {
        self.prefix.is_some()
    }

    /// Distinct keys in the prefix cache.
    pub(super) fn keys(&self) -> u32 {
        self.prefix.as_ref().map_or(0, PrefixIndex::len)
    }

    pub(super) fn has_users(&self, block: BlockId) -> bool {
        self.blocks[block.at()].users > 0
    }

    /// The block with `key` that was published first among those that still live.
    pub(super) fn find(&self, key: BlockHash) -> Option<BlockId> {
        self.prefix.as_ref()?.get(key, |block| self.blocks[block.at()].key)
    }

    /// One more user of a cached block, which leaves the free list if it was there.
    pub(super) fn share(&mut self, block: BlockId) {
        let users = &mut self.blocks[block.at()].users;
        *users += 1;
        if *users == 1 {
            self.unlink(block);
            self.free -= 1;
        }
    }

    /// Appends `count` blocks from the front of the free list to `table`; each loses its key.
    pub(super) fn take(&mut self, count: u32, table: &mut Vec<BlockId>) {
        assert!(count <= self.free, "{count} blocks wanted, {} free", self.free);
        self.free -= count;
        for _ in 0..count {
            let block = self.blocks[0].next;
            assert!(block != BlockId::NONE && self.blocks[block.at()].users == 0, "{block:?}");
            self.unlink(block);
            if self.blocks[block.at()].has_key {
                self.evict(block);
            }
            self.blocks[block.at()].users = 1;
            table.push(block);
        }
    }

    /// One user fewer for each block of `table`, tail first. Those without users go to the free
    /// list: blocks without a key to its front, so that the tail is reused next; blocks with a key
    /// to its end, so that the deepest block of this table is evicted before its prefix.
    pub(super) fn release(&mut self, table: &mut Vec<BlockId>) {
        self.keyed.clear();
        self.unkeyed.clear();
        while let Some(block) = table.pop() {
            let state = &mut self.blocks[block.at()];
            assert!(state.users > 0, "{block:?} is freed twice");
            state.users -= 1;
            if state.users == 0 {
                match (state.has_key, self.freed) {
                    (false, FreedBlocks::UncachedFirst) => self.unkeyed.push(block),
                    _ => self.keyed.push(block),
                }
            }
        }
        self.free += (self.keyed.len() + self.unkeyed.len()) as u32;
        for at in (0..self.unkeyed.len()).rev() {
            self.link_after(BlockId::NONE, self.unkeyed[at]);
        }
        for at in 0..self.keyed.len() {
            let last = self.blocks[0].prev;
            self.link_after(last, self.keyed[at]);
        }
        assert!(self.free <= self.usable(), "more blocks free than there are");
    }

    /// Gives `block` its key. Equal content that was computed twice is not merged.
    pub(super) fn publish(&mut self, block: BlockId, key: BlockHash) {
        let Some(prefix) = &mut self.prefix else { return };
        assert!(!self.blocks[block.at()].has_key, "{block:?} has a key already");
        let blocks = &self.blocks;
        let key_of = |block: BlockId| blocks[block.at()].key;
        let (next, prev) = match prefix.get(key, key_of) {
            None => {
                prefix.set(key, block, key_of);
                (block, block)
            }
            Some(first) => {
                let last = self.blocks[first.at()].twin_prev;
                self.blocks[first.at()].twin_prev = block;
                self.blocks[last.at()].twin_next = block;
                (first, last)
            }
        };
        let state = &mut self.blocks[block.at()];
        state.has_key = true;
        state.key = key;
        state.twin_next = next;
        state.twin_prev = prev;
    }

    /// Forgets every key; the order of the free list stays.
    pub(super) fn forget_keys(&mut self) {
        for block in &mut self.blocks {
            block.has_key = false;
        }
        if let Some(prefix) = &mut self.prefix {
            prefix.clear();
        }
    }

    fn evict(&mut self, block: BlockId) {
        let Block { key, twin_next, twin_prev, .. } = self.blocks[block.at()];
        let prefix = self.prefix.as_mut().expect("only with prefix caching has a block a key");
        let blocks = &self.blocks;
        let key_of = |block: BlockId| blocks[block.at()].key;
        if twin_next == block {
            prefix.remove(key, key_of);
        } else {
            if prefix.get(key, key_of) == Some(block) {
                prefix.set(key, twin_next, key_of);
            }
            self.blocks[twin_next.at()].twin_prev = twin_prev;
            self.blocks[twin_prev.at()].twin_next = twin_next;
        }
        self.blocks[block.at()].has_key = false;
    }

    fn unlink(&mut self, block: BlockId) {
        let Block { next, prev, .. } = self.blocks[block.at()];
        self.blocks[prev.at()].next = next;
        self.blocks[next.at()].prev = prev;
    }

    fn link_after(&mut self, before: BlockId, block: BlockId) {
        let after = self.blocks[before.at()].next;
        self.blocks[block.at()].prev = before;
        self.blocks[block.at()].next = after;
        self.blocks[before.at()].next = block;
        self.blocks[after.at()].prev = block;
    }

    /// Checks every block against the tables that hold it: for tests, it looks at the whole cache.
    ///
    /// # Panics
    /// If a block is lost, held twice, or free and held.
    pub(super) fn check<'a>(&self, tables: impl Iterator<Item = &'a [BlockId]>) {
        let mut users = vec![0u32; self.blocks.len()];
        for block in tables.flatten().copied().chain(self.withheld.iter().copied()) {
            users[block.at()] += 1;
        }
        let mut free = vec![false; self.blocks.len()];
        let (mut at, mut before, mut listed) = (self.blocks[0].next, BlockId::NONE, 0);
        while at != BlockId::NONE {
            assert!(!free[at.at()], "{at:?} is on the free list twice");
            assert_eq!(self.blocks[at.at()].prev, before, "the free list is torn at {at:?}");
            free[at.at()] = true;
            listed += 1;
            (before, at) = (at, self.blocks[at.at()].next);
        }
        assert_eq!(listed, self.free, "the free list and its count disagree");
        let mut keys = std::collections::BTreeSet::new();
        for (number, block) in self.blocks.iter().enumerate().skip(1) {
            assert_eq!(block.users, users[number], "users of block {number}");
            assert_eq!(free[number], block.users == 0, "block {number} is lost or free and used");
            if block.has_key {
                keys.insert(block.key);
                assert!(self.find(block.key).is_some(), "block {number} has an unknown key");
            }
        }
        assert_eq!(keys.len(), self.keys() as usize, "distinct keys");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(table: &[BlockId]) -> Vec<u32> {
        table.iter().map(|block| block.get()).collect()
    }

    #[test]
    fn freed_blocks_are_reused_tail_first() {
        let mut cache = KvCache::new(9, false, FreedBlocks::UncachedFirst);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        cache.take(3, &mut a);
        cache.take(2, &mut b);
        assert_eq!((numbers(&a), numbers(&b)), (vec![1, 2, 3], vec![4, 5]));
        cache.release(&mut a);
        cache.take(4, &mut a);
        assert_eq!(numbers(&a), [3, 2, 1, 6]);
        cache.check([a.as_slice(), b.as_slice()].into_iter());
    }

    #[test]
    fn before_0_23_freed_blocks_went_to_the_end() {
        let mut cache = KvCache::new(6, false, FreedBlocks::AllLast);
        let mut a = Vec::new();
        cache.take(2, &mut a);
        cache.release(&mut a);
        cache.take(5, &mut a);
        assert_eq!(numbers(&a), [3, 4, 5, 2, 1]);
    }

    #[test]
    fn cached_blocks_are_evicted_deepest_first_and_only_when_handed_out() {
        let mut cache = KvCache::new(5, true, FreedBlocks::UncachedFirst);
        let mut a = Vec::new();
        cache.take(3, &mut a);
        cache.publish(a[0], BlockHash(10));
        cache.publish(a[1], BlockHash(11));
        cache.release(&mut a);
        assert_eq!((cache.free(), cache.keys()), (4, 2));
        // Block 3 has no key and goes first; then 4, never used; then the deepest cached one, 2.
        cache.take(3, &mut a);
        assert_eq!(numbers(&a), [3, 4, 2]);
        assert_eq!(cache.find(BlockHash(11)), None);
        assert_eq!(cache.find(BlockHash(10)), Some(BlockId::new(1)));
        cache.check([a.as_slice()].into_iter());
    }

    #[test]
    fn of_equal_blocks_the_one_published_first_is_found() {
        let mut cache = KvCache::new(5, true, FreedBlocks::UncachedFirst);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        cache.take(1, &mut a);
        cache.take(1, &mut b);
        cache.publish(a[0], BlockHash(7));
        cache.publish(b[0], BlockHash(7));
        assert_eq!(cache.find(BlockHash(7)), Some(a[0]));
        assert_eq!(cache.keys(), 1);
        cache.release(&mut a);
        cache.take(3, &mut a);
        assert_eq!(cache.find(BlockHash(7)), Some(b[0]), "1 was handed out again");
        cache.check([a.as_slice(), b.as_slice()].into_iter());
    }
}
