//! Generations in progress on one I/O thread, and their bytes.
//!
//! A generation stores how many tokens the engine has released and how many *units* of its answer
//! the kernel has taken, never bytes: all units can be rendered again from the script. So a slow
//! reader costs the same memory as a fast one, and gets everything due in one write when it reads
//! on. The invariant: unit `n` is always the same bytes, whenever and with whatever else it is
//! sent; what reaches the client depends on timing only in how it is cut into writes.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use llmsim_engine::sim::{Event, Finish, Job, Refusal, What};
use llmsim_engine::units::{SimTime, Tokens};
use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};

use crate::api::chat::Answer;
use crate::clock::Clock;
use crate::gpu_thread::Address;
use crate::http::connection::{Conn, Signal};
use crate::metrics::record::{IoShard, Outcome};
use crate::metrics::timing::Timing;
use crate::ring::Report;
use crate::served::Replica;

/// One request being answered.
#[derive(Debug)]
pub(crate) struct Generation {
    conn: Rc<Conn>,
    answer: Answer,
    replica: Replica,
    delivery: Delivery,
    received: SimTime,
    /// The engine holds it.
    queued: bool,
    cached: Tokens,
    /// Tokens that exist.
    released: u32,
    finish: Option<Finish>,
    /// Units that the kernel has taken whole, and bytes of the one after.
    units_sent: u32,
    bytes_of_next: usize,
    /// The instant of the oldest token that the kernel has not taken.
    oldest_unsent: SimTime,
    /// The kernel has taken the first token.
    is_begun: bool,
    /// Its client wants to know when things happened.
    timing: Option<Box<Timing>>,
    /// It stands in the list of generations with something to send.
    is_dirty: bool,
    /// Its client did not read, and has not yet caught up.
    lags: bool,
    state: State,
}

/// How the answer goes out.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// Unit by unit; the head of the response is unit 0.
    Stream { head: Box<[u8]>, chunked: bool },
    /// At the end, by the connection itself.
    Whole,
}

/// Where a generation stands, as its connection sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Tokens are coming or going.
    Running,
    /// The socket takes no more: the connection waits until it does, then calls
    /// [`Generations::resume`].
    Blocked,
    /// All was sent, or for a whole answer: all tokens exist.
    Complete,
    /// The engine does not take the job; nothing was sent.
    Refused(Refusal),
    /// The client is gone.
    Lost,
}

/// What a generation is after its connection has taken it out of the table.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) replica: Replica,
    pub(crate) cached: Tokens,
    pub(crate) released: u32,
    pub(crate) finish: Option<Finish>,
    pub(crate) timing: Option<Box<Timing>>,
}

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
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    entry: Option<Generation>,
}

/// Buffers that live as long as the thread, so that sending allocates nothing.
#[derive(Debug, Default)]
struct Scratch {
    bytes: Vec<u8>,
    /// Where each unit in `bytes` ends.
    ends: Vec<usize>,
}

/// The most bytes rendered for one write.
pub(crate) const WRITE_SIZE: usize = 64 * 1024;

/// Writes to one client before others get their turn, however fast it reads: some 80 µs.
const WRITES_PER_TURN: usize = 2;

/// So many bytes take as long as the call that sends them: 5 µs.
const BYTES_LIKE_A_SEND: usize = 8 * 1024;

/// The unit of the role chunk; the head is unit 0, and token `k` is unit `1 + k`.
const ROLE_UNIT: u32 = 1;

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
        }
    }

    /// Enters a generation into the table. Its address is the job's id towards the engine.
    pub(crate) fn open(
        &mut self,
        conn: Rc<Conn>,
        answer: Answer,
        replica: Replica,
        delivery: Delivery,
        received: SimTime,
    ) -> Address {
        let timing = answer.wants_timing.then(|| Box::new(Timing::new(received)));
        let entry = Generation {
            conn,
            answer,
            replica,
            delivery,
            received,
            queued: false,
            cached: Tokens::ZERO,
            released: 0,
            finish: None,
            units_sent: 0,
            bytes_of_next: 0,
            oldest_unsent: SimTime::ZERO,
            is_begun: false,
            timing,
            is_dirty: false,
            lags: false,
            state: State::Running,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer connections than that")
        });
        let place = &mut self.slots[slot as usize];
        debug_assert!(place.entry.is_none(), "a free slot is empty");
        place.entry = Some(entry);
        self.shard.in_flight.add(1);
        Address { io: self.io, slot, generation: place.generation }
    }

    /// What the connection should know about its generation.
    pub(crate) fn state(&self, address: Address) -> State {
        self.get(address).map_or(State::Lost, |entry| entry.state)
    }

    /// The job of a generation that was just opened.
    pub(crate) fn job(&self, address: Address) -> Job {
        let entry = self.get(address).expect("it was just opened");
        entry.answer.job(address.job_id())
    }

    /// Why a generation ended, once all its tokens exist.
    pub(crate) fn finish(&self, address: Address) -> Option<Finish> {
        self.get(address)?.finish
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
        self.shard.finish(outcome);
        Some(Ended {
            answer: entry.answer,
            replica: entry.replica,
            cached: entry.cached,
            released: entry.released,
            finish: entry.finish,
            timing: entry.timing,
        })
    }

    /// Takes in what a GPU thread, or an engine on this thread, has to say.
    pub(crate) fn apply(&mut self, report: &Report) {
        match *report {
            Report::Queued(job, at) => {
                if let Some(entry) = self.get_mut(Address::of(job)) {
                    entry.queued = true;
                    if let Some(timing) = &mut entry.timing {
                        timing.queued(at);
                    }
                    if matches!(entry.delivery, Delivery::Stream { .. }) {
                        self.mark(Address::of(job).slot);
                    }
                }
            }
            Report::Refused(job, why) => {
                if let Some(entry) = self.get_mut(Address::of(job)) {
                    entry.state = State::Refused(why);
                    entry.conn.signal(Signal::Generation);
                }
            }
            Report::Event(event, released) => self.apply_event(event, released),
        }
    }

    fn apply_event(&mut self, event: Event, released: SimTime) {
        let address = Address::of(event.job);
        let Some(entry) = self.get_mut(address) else { return };
        if let Some(timing) = &mut entry.timing {
            timing.happened(&event, released);
        }
        match event.what {
            What::Admitted { cached } => entry.cached = cached,
            What::Resumed { .. } | What::Preempted => {}
            What::Lost => {
                entry.state = State::Lost;
                entry.conn.signal(Signal::Generation);
            }
            What::Token { index, finish } => {
                debug_assert!(index.get() > entry.released, "tokens come in order");
                if !entry.has_unsent_token() {
                    entry.oldest_unsent = event.at;
                }
                entry.released = index.get();
                entry.finish = finish;
                match entry.delivery {
                    Delivery::Stream { .. } => self.mark(address.slot),
                    Delivery::Whole => {
                        self.shard.unstreamed_tokens.add(1);
                        let entry = self.get_mut(address).expect("looked up above");
                        if finish.is_some() {
                            entry.state = State::Complete;
                            entry.conn.signal(Signal::Generation);
                        }
                    }
                }
            }
        }
    }

    fn mark(&mut self, slot: u32) {
        let entry = self.slots[slot as usize].entry.as_mut().expect("only live slots are marked");
        if !entry.is_dirty && entry.state == State::Running {
            entry.is_dirty = true;
            self.dirty.push_back(slot);
        }
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
    pub(crate) fn send_some(&mut self, most: usize) -> bool {
        let mut spent = 0;
        while spent < most {
            let Some(slot) = self.dirty.pop_front() else { return false };
            match &mut self.slots[slot as usize].entry {
                Some(entry) => {
                    entry.is_dirty = false;
                    spent += 1;
                    if entry.state == State::Running {
                        let bytes = entry.send(self.clock, &self.shard, &mut self.scratch);
                        spent += bytes / BYTES_LIKE_A_SEND;
                        if entry.has_more_to_send() {
                            entry.is_dirty = true;
                            self.dirty.push_back(slot);
                        }
                    }
                }
                // Closed while it waited here; only now may the slot be used again.
                None => self.free.push(slot),
            }
        }
        !self.dirty.is_empty()
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
            && entry.state == State::Running
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
            && entry.state == State::Blocked
        {
            entry.state = State::Running;
            entry.send(clock, &shard, &mut scratch);
            if entry.has_more_to_send() {
                self.mark(address.slot);
            }
        }
        self.scratch = scratch;
        !self.dirty.is_empty()
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

impl Generation {
    /// Units that exist so far.
    fn units_due(&self) -> u32 {
        match (self.queued, self.released, self.finish) {
            (false, 0, _) => 0,
            (true, 0, _) => ROLE_UNIT,
            (_, released, None) => ROLE_UNIT + 1 + released,
            (_, released, Some(_)) => ROLE_UNIT + 2 + released,
        }
    }

    /// Tokens whose unit the kernel has taken.
    fn tokens_sent(&self) -> u32 {
        self.units_sent.saturating_sub(ROLE_UNIT + 1).min(self.released)
    }

    fn has_unsent_token(&self) -> bool {
        self.tokens_sent() < self.released
    }

    /// The last turn ended before all was sent that is due, and the socket takes more.
    fn has_more_to_send(&self) -> bool {
        let is_stream = matches!(self.delivery, Delivery::Stream { .. });
        is_stream && self.state == State::Running && self.units_sent < self.units_due()
    }

    /// Writes the units that are due, in as few writes as they need and no more than a turn may
    /// have. Never waits. Returns how many bytes the kernel took.
    fn send(&mut self, clock: Clock, shard: &IoShard, scratch: &mut Scratch) -> usize {
        if matches!(self.delivery, Delivery::Whole) {
            return 0;
        }
        let due = self.units_due();
        let (mut writes, mut taken) = (0, 0);
        while self.units_sent < due {
            if writes == WRITES_PER_TURN {
                return taken;
            }
            writes += 1;
            // The last unit tells when the tokens before it were sent, so they go first.
            let due = match &self.timing {
                Some(_) if self.finish.is_some() && self.has_unsent_token() => due - 1,
                _ => due,
            };
            self.render(due, scratch);
            let bytes = &scratch.bytes[self.bytes_of_next..];
            match self.conn.send(bytes) {
                Ok(sent) => {
                    let now = clock.now();
                    taken += sent;
                    let reached = self.bytes_of_next + sent;
                    let whole = scratch.ends.partition_point(|&end| end <= reached);
                    let start = if whole == 0 { 0 } else { scratch.ends[whole - 1] };
                    let tokens_before = self.tokens_sent();
                    self.units_sent += whole as u32;
                    self.bytes_of_next = reached - start;
                    self.count_tokens(self.tokens_sent() - tokens_before, now, shard);
                    if reached < scratch.bytes.len() {
                        self.block();
                        return taken;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.block();
                    return taken;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    self.state = State::Lost;
                    self.conn.signal(Signal::Generation);
                    return taken;
                }
            }
        }
        self.lags = false;
        if self.finish.is_some() {
            self.state = State::Complete;
            self.conn.signal(Signal::Generation);
        }
        taken
    }

    fn block(&mut self) {
        self.lags = true;
        self.state = State::Blocked;
        self.conn.signal(Signal::Generation);
    }

    /// Renders units from the first that was not taken whole, up to `due` or a write's fill.
    fn render(&self, due: u32, scratch: &mut Scratch) {
        scratch.bytes.clear();
        scratch.ends.clear();
        for unit in self.units_sent..due {
            self.render_unit(unit, scratch);
            scratch.ends.push(scratch.bytes.len());
            if scratch.bytes.len() >= WRITE_SIZE {
                break;
            }
        }
    }

    fn render_unit(&self, unit: u32, scratch: &mut Scratch) {
        let Delivery::Stream { head, chunked } = &self.delivery else {
            unreachable!("whole answers are not sent in units");
        };
        if unit == 0 {
            scratch.bytes.extend_from_slice(head);
            return;
        }
        let Scratch { bytes, .. } = scratch;
        // One chunk per unit, so that a unit is the same bytes whatever it is sent with.
        let chunk = chunked.then(|| OpenChunk::open(bytes));
        let is_end = self.finish.is_some() && unit == ROLE_UNIT + 1 + self.released;
        match (unit, self.finish) {
            (ROLE_UNIT, _) => self.answer.role_frame(bytes),
            (_, Some(finish)) if is_end => {
                let timing = self.timing.as_deref();
                let completion = Tokens::new(self.released);
                self.answer.end_frames(finish, completion, self.cached, timing, bytes);
            }
            _ => self.answer.token_frame(unit - ROLE_UNIT, self.cached, bytes),
        }
        if let Some(chunk) = chunk {
            chunk.close(bytes);
            if is_end {
                bytes.extend_from_slice(LAST_CHUNK);
            }
        }
    }

    fn count_tokens(&mut self, count: u32, now: SimTime, shard: &IoShard) {
        if count == 0 {
            return;
        }
        let times = u64::from(count);
        let delivery = &shard.replicas[self.replica.place];
        // Tokens of one write are all as late as the oldest of them: never flattering.
        let lag = now.saturating_since(self.oldest_unsent);
        if self.lags {
            delivery.sent_after_a_stall(times);
        } else {
            delivery.sent(lag, times);
        }
        if !self.is_begun {
            self.is_begun = true;
            delivery.sent_first(now.saturating_since(self.received));
        }
        if let Some(timing) = &mut self.timing {
            timing.sent(now, lag);
        }
    }
}
