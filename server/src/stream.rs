//! Generations in progress on one I/O thread: the table of them, and whose turn it is to be sent.
//!
//! A generation stores how many tokens the engine has released and how many *units* of its answer
//! the kernel has taken, never bytes: all units can be rendered again from the script. So a slow
//! reader costs the same memory as a fast one, and gets everything due in one write when it reads
//! on. One thing is kept: a unit longer than a write (a scored prompt, or the whole text once more at
//! the end) of which the kernel has taken a part, since to render it anew for each further part takes
//! time that grows with the square of its length. The invariant: a unit is always the same bytes,
//! whenever and with whatever else it is sent; what reaches the client depends on timing only in how it
//! is cut into writes, and with several lanes in how their units are interleaved.

mod ahead;
mod ended;
mod generation;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use llmsim_engine::faults::Style;
use llmsim_engine::observe::Siblings;
use llmsim_engine::sim::{Event, Job};
use llmsim_engine::units::SimTime;

use self::ahead::Prepared;
pub(crate) use self::ended::Ended;
pub(crate) use self::generation::{Delivery, Sent, State, WRITE_SIZE};
use self::generation::{Generation, Scratch};
use crate::api::answer::Answer;
use crate::clock::Clock;
use crate::faults::in_stream::{InStream, Voice};
use crate::gpu_thread::Address;
use crate::http::connection::Conn;
use crate::metrics::record::{IoShard, Outcome};
use crate::ring::Report;
use crate::send_batch::SendBatch;
use crate::served::Replica;
use crate::sys;

/// The table of one I/O thread's generations.
#[derive(Debug)]
pub(crate) struct Generations {
    io: u8,
    clock: Clock,
    shard: Arc<IoShard>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with something to send, each at most once.
    dirty: VecDeque<u32>,
    /// Turns the order of sending a little further with each batch: without it, the same clients
    /// would always be last.
    turn: usize,
    scratch: Scratch,
    /// Generations whose next send goes with the batch; empty between two turns.
    batched: Vec<Batched>,
}

/// A send of a batch.
#[derive(Clone, Copy, Debug)]
struct Batched {
    slot: u32,
    socket: sys::Number,
    prepared: Prepared,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Generation>,
}

/// So many bytes take as long as the call that sends them: 5 µs.
const BYTES_LIKE_A_SEND: usize = 8 * 1024;

impl Generations {
    pub(crate) fn new(io: u8, clock: Clock, shard: Arc<IoShard>) -> Self {
        Self {
            io,
            clock,
            shard,
            slots: Vec::new(),
            free: Vec::new(),
            dirty: VecDeque::new(),
            turn: 0,
            scratch: Scratch::default(),
            batched: Vec::new(),
        }
    }

    /// Enters a generation into the table. Its address is the job's id towards the engine.
    pub(crate) fn open(
        &mut self,
        conn: Rc<Conn>,
        answer: Box<Answer>,
        replica: Replica,
        delivery: Delivery,
        received: SimTime,
        fault: Option<Box<InStream>>,
    ) -> Address {
        let entry = Generation::new(conn, answer, replica, delivery, received, fault);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            let slot = u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX);
            assert!(slot < Address::SLOTS, "a process has fewer sockets than that");
            slot
        });
        let place = &mut self.slots[slot as usize];
        debug_assert!(place.entry.is_none(), "a free slot is empty");
        place.entry = Some(entry);
        self.shard.in_flight.add(1);
        Address { io: self.io, slot, generation: place.generation, lane: 0 }
    }

    /// Bytes rendered so far.
    #[cfg(test)]
    pub(crate) fn rendered(&self) -> usize {
        self.scratch.rendered()
    }

    /// What the connection should know about its generation.
    pub(crate) fn state(&self, address: Address) -> State {
        self.get(address).map_or(State::Lost, Generation::state)
    }

    /// How many lanes a generation has that was just opened.
    pub(crate) fn lanes(&self, address: Address) -> usize {
        self.get(address).expect("it was just opened").lanes()
    }

    /// The lanes of the same prompt as a lane of a generation that was just opened.
    pub(crate) fn siblings(&self, address: Address) -> Siblings {
        let entry = self.get(address).expect("it was just opened");
        let lanes = entry.answer().choices_beside(usize::from(address.lane));
        let count = u32::try_from(lanes.len()).expect("lanes are counted in 16 bits");
        Siblings { first: address.lane(lanes.start).job_id(), count }
    }

    /// The job of a lane of a generation that was just opened.
    pub(crate) fn job(&self, address: Address) -> Job {
        let entry = self.get(address).expect("it was just opened");
        entry.answer().job(usize::from(address.lane), address.job_id())
    }

    /// Takes a generation out of the table and counts how it ended. Reports that still come for it
    /// find its address stale.
    pub(crate) fn close(&mut self, address: Address, outcome: Outcome) -> Option<Ended> {
        let place = self.slots.get_mut(address.slot as usize)?;
        if place.generation != address.generation {
            return None;
        }
        let entry = place.entry.take()?;
        place.generation = (place.generation + 1) % Address::GENERATIONS;
        if !entry.is_dirty {
            self.free.push(address.slot);
        }
        self.shard.in_flight.set(self.shard.in_flight.get() - 1);
        Some(entry.end(outcome, &self.shard))
    }

    /// Takes in what a GPU thread, or an engine on this thread, has to say.
    pub(crate) fn apply(&mut self, report: &Report) {
        match *report {
            Report::Queued(job, at) => {
                let address = Address::of(job);
                let Some((entry, lane)) = lane_in(&mut self.slots, address) else { return };
                if entry.queued(lane, at) {
                    entry.mark(address.slot, &mut self.dirty);
                }
            }
            Report::Refused(job, why) => {
                let address = Address::of(job);
                let Some((entry, lane)) = lane_in(&mut self.slots, address) else { return };
                entry.refused(lane, why);
            }
            Report::Event(event, released) => self.apply_event(event, released),
        }
    }

    fn apply_event(&mut self, event: Event, released: SimTime) {
        let address = Address::of(event.job);
        let Some((entry, lane)) = lane_in(&mut self.slots, address) else { return };
        if entry.happened(lane, &event, released, &self.shard) {
            // Not by its slot: this is every token, and one look into the table is enough.
            entry.mark(address.slot, &mut self.dirty);
        }
    }

    fn mark(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].entry.as_mut().expect("only live slots are marked");
        entry.mark(slot, &mut self.dirty);
    }

    /// A batch has been taken in: changes who is first.
    pub(crate) fn rotate(&mut self) {
        if self.dirty.len() > 1 {
            // A step coprime to most lengths, so that everyone gets every place in turn.
            self.turn = self.turn.wrapping_add(97);
            let by = self.turn % self.dirty.len();
            self.dirty.rotate_left(by);
        }
    }

    /// Sends what is due for up to `most` generations, fewer if they have much to send; returns
    /// whether some are left.
    pub(crate) fn send_some(&mut self, most: usize, batch: &mut SendBatch) -> bool {
        let mut spent = 0;
        while spent < most {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some(entry) = &mut self.slots[slot as usize].entry else {
                // Closed while it waited here; only now may the slot be used again.
                self.free.push(slot);
                continue;
            };
            entry.is_dirty = false;
            spent += 1;
            if entry.state() != State::Running {
                continue;
            }
            if let Some((socket, prepared)) = entry.take_prepared() {
                self.batched.push(Batched { slot, socket, prepared });
                if self.batched.len() == batch.most() {
                    self.send_batch(batch);
                }
            } else {
                let bytes = entry.send(self.clock, &self.shard, &mut self.scratch);
                spent += bytes / BYTES_LIKE_A_SEND;
                self.settle(slot, bytes);
            }
        }
        self.send_batch(batch);
        !self.dirty.is_empty()
    }

    /// Sends the frames that were put together.
    fn send_batch(&mut self, batch: &mut SendBatch) {
        if self.batched.is_empty() {
            return;
        }
        let ahead = &self.scratch.ahead;
        let frames = self.batched.iter().map(|one| (one.socket, ahead.unit(one.prepared)));
        let outcomes = batch.send(frames);
        let now = self.clock.now();
        let mut batched = std::mem::take(&mut self.batched);
        for (index, Batched { slot, prepared, .. }) in batched.drain(..).enumerate() {
            let length = self.scratch.ahead.unit(prepared).len();
            let entry = self.slots[slot as usize].entry.as_mut();
            let entry = entry.expect("nothing is closed while a batch is sent");
            let bytes = entry.sent_prepared(outcomes.of(index), length, now, &self.shard);
            self.settle(slot, bytes);
        }
        self.batched = batched;
    }

    /// A generation has sent so many bytes: sees to what it sends next.
    fn settle(&mut self, slot: u32, bytes: usize) {
        let Some(entry) = &mut self.slots[slot as usize].entry else { return };
        if entry.awaits_token() {
            self.scratch.ahead.want(slot, bytes);
        }
        if entry.has_more_to_send() {
            entry.is_dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Renders up to `most` of the frames that will be due next; returns whether some are left. To be
    /// called when nothing is due.
    pub(crate) fn render_ahead(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(slot) = self.scratch.ahead.next_wanted() else { return false };
            if let Some(entry) = &mut self.slots[slot as usize].entry {
                entry.render_ahead(slot, &mut self.scratch.ahead);
            }
        }
        self.scratch.ahead.is_wanted()
    }

    /// Takes in what an engine on this thread says, and sends what of it concerns this generation at
    /// once. Whether something is left for [`Generations::send_some`].
    pub(crate) fn apply_and_send(&mut self, address: Address, reports: &[Report]) -> bool {
        let set_dirty = |table: &mut Self, is_dirty| {
            if let Some(entry) = table.get_mut(address) {
                entry.is_dirty = is_dirty;
            }
        };
        // As if it stood in the list already, so that it is not put there.
        set_dirty(self, true);
        for report in reports {
            self.apply(report);
        }
        set_dirty(self, false);
        let (clock, shard) = (self.clock, Arc::clone(&self.shard));
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Some(entry) = self.get_mut(address)
            && entry.state() == State::Running
        {
            entry.send(clock, &shard, &mut scratch);
            if entry.has_more_to_send() {
                self.mark(address.slot);
            }
        }
        self.scratch = scratch;
        !self.dirty.is_empty()
    }

    /// The socket takes bytes again. Whether something is left for [`Generations::send_some`].
    pub(crate) fn resume(&mut self, address: Address) -> bool {
        let (clock, shard) = (self.clock, Arc::clone(&self.shard));
        let mut scratch = std::mem::take(&mut self.scratch);
        if let Some(entry) = self.get_mut(address)
            && entry.unblock()
        {
            entry.send(clock, &shard, &mut scratch);
            if entry.has_more_to_send() {
                self.mark(address.slot);
            }
        }
        self.scratch = scratch;
        !self.dirty.is_empty()
    }

    /// What strikes a generation that is [`State::Struck`].
    pub(crate) fn fault(&self, address: Address) -> Option<&InStream> {
        self.get(address)?.fault()
    }

    /// How a generation is told of an error in mid-stream.
    pub(crate) fn voice<'a>(&self, address: Address, style: Style, request: &'a str) -> Voice<'a> {
        match self.get(address) {
            Some(entry) => entry.voice(style, request),
            None => Voice::OpenAis(style),
        }
    }

    /// What has gone out of a stream.
    pub(crate) fn sent(&self, address: Address) -> Sent {
        self.get(address).map_or(Sent::Nothing, Generation::sent)
    }

    /// The bytes that come next: the head of the response, or a unit of the first lane.
    pub(crate) fn next_bytes(&self, address: Address) -> Vec<u8> {
        self.get(address).map_or_else(Vec::new, Generation::next_bytes)
    }

    /// The fault has struck, and the stream goes on; if it was at the head of the response, that
    /// has been sent. Whether something is left for [`Generations::send_some`].
    pub(crate) fn go_on(&mut self, address: Address) -> bool {
        if let Some(entry) = self.get_mut(address) {
            entry.go_on();
        }
        self.resume(address)
    }

    fn get(&self, address: Address) -> Option<&Generation> {
        let place = self.slots.get(address.slot as usize)?;
        if place.generation == address.generation { place.entry.as_ref() } else { None }
    }

    fn get_mut(&mut self, address: Address) -> Option<&mut Generation> {
        let place = self.slots.get_mut(address.slot as usize)?;
        if place.generation == address.generation { place.entry.as_mut() } else { None }
    }
}

/// The generation, and which of its lanes is meant.
fn lane_in(slots: &mut [Slot], address: Address) -> Option<(&mut Generation, usize)> {
    let place = slots.get_mut(address.slot as usize)?;
    if place.generation != address.generation {
        return None;
    }
    let entry = place.entry.as_mut()?;
    let lane = usize::from(address.lane);
    debug_assert!(lane < entry.lanes(), "jobs are submitted for lanes that exist");
    Some((entry, lane))
}
