//! Frames of tokens that do not exist yet, rendered while the thread has nothing to send.
//!
//! All streams of a step fall due at once, and what one of them takes is the lag of all that come
//! after it. The bytes of its next token have long been known by then, since an answer is decided
//! before it begins; so they are put here in the time between two steps, and a token that comes alone,
//! as nearly all do, only has to be handed to the kernel. Whatever comes otherwise (several at once,
//! the last one, a socket that took a part) is rendered as if there were nothing here. The invariant:
//! what is kept is what [`Generation::render`] would make of the same unit.
//!
//! [`Generation::render`]: super::generation::Generation::render

use std::collections::VecDeque;

/// The most bytes of a unit that is kept: a frame of a chat has some 300, with running usage 530.
const ROOM: usize = 1024;

/// Streams of a thread for which there are rooms, 4 MiB at most: of more, a burst takes tens of
/// milliseconds whatever is done here.
const MOST_ROOMS: usize = 4096;

/// A room for the next unit of each generation, by its slot in the table, and who wants one filled.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// As far as they have been used.
    rooms: Vec<Vec<u8>>,
    /// Slots of generations that sent one token. If there are too many, the rest goes without.
    wanted: VecDeque<u32>,
}

/// A filled room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    slot: u32,
}

impl Ahead {
    /// A generation has sent one token, in so many bytes: its next one will be much like it.
    pub(super) fn want(&mut self, slot: u32, bytes: usize) {
        // The next text may be longer by a word.
        let fits = bytes <= ROOM - ROOM / 4 && (slot as usize) < MOST_ROOMS;
        if fits && self.wanted.len() < MOST_ROOMS {
            self.wanted.push_back(slot);
        }
    }

    /// Who has waited longest.
    pub(super) fn next_wanted(&mut self) -> Option<u32> {
        self.wanted.pop_front()
    }

    /// Whether anybody waits.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Keeps what `render` appends, unless it is too long.
    pub(super) fn keep(
        &mut self,
        slot: u32,
        render: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Prepared> {
        let place = slot as usize;
        if self.rooms.len() <= place {
            self.rooms.resize_with(place + 1, Vec::new);
        }
        let room = &mut self.rooms[place];
        room.clear();
        render(room);
        if room.len() > ROOM {
            *room = Vec::new();
            return None;
        }
        Some(Prepared { slot })
    }

    /// The unit that was kept.
    pub(super) fn unit(&self, prepared: Prepared) -> &[u8] {
        &self.rooms[prepared.slot as usize]
    }
}
