//! Generations in progress on one I/O thread, and their bytes.
//!
//! A generation stores how many tokens the engine has released and how many *units* of its answer
//! the kernel has taken, never bytes: all units can be rendered again from the script. So a slow
//! reader costs the same memory as a fast one, and gets everything due in one write when it reads
//! on. One thing is kept: a unit longer than a write (a scored prompt, or the whole text once more at
//! the end) of which the kernel has taken a part, since to render it anew for each further part takes
//! time that grows with the square of its length. The invariant: a unit is always the same bytes,
//! whenever and with whatever else it is sent; what reaches the client depends on timing only in how it
//! is cut into writes, and with several lanes in how their units are interleaved.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use llmsim_engine::faults::Style;
use llmsim_engine::observe::Siblings;
use llmsim_engine::sim::{Event, Job, Refusal, What};
use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};

use crate::api::answer::{Answer, Format, Progress};
use crate::clock::Clock;
use crate::faults::in_stream::{InStream, Unit, Voice};
use crate::gpu_thread::Address;
use crate::http::connection::{Conn, Signal};
use crate::lanes::Lanes;
use crate::metrics::record::{IoShard, Outcome};
use crate::metrics::timing::Timing;
use crate::ring::Report;
use crate::served::Replica;
use crate::sys;

/// One request being answered. What every token looks at stands together, in few lines of the cache:
/// between two tokens of a stream the kernel has sent those of all others, and all of it is cold.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Generation {
    lanes: Lanes<Lane>,
    /// Lanes of which the engine has not said that it holds them. Nothing is sent before it has,
    /// since it may refuse any of them.
    undecided: u32,
    /// Lanes whose last token does not exist.
    unfinished: u32,
    /// Lanes whose last unit the kernel has not taken.
    open: u32,
    /// The kernel has taken the head of the response.
    is_head_sent: bool,
    /// The lane whose turn it is, and how many bytes of its next unit, or of the head, the kernel
    /// has taken.
    turn: usize,
    bytes_of_next: usize,
    /// That unit, if it is a long one of which a part has been taken: at most one, and no longer than
    /// the body of the same answer not streamed would be.
    cut: Option<Box<CutUnit>>,
    /// The kernel has taken the first token.
    is_begun: bool,
    /// Its client wants to know when things happened.
    timing: Option<Box<Timing>>,
    /// It stands in the list of generations with something to send.
    is_dirty: bool,
    /// Its client did not read, and has not yet caught up.
    lags: bool,
    state: State,
    /// What goes wrong on purpose; for nearly all, nothing.
    fault: Option<Box<InStream>>,
    /// The connection's socket, if it is sent to directly.
    socket: Option<sys::Number>,
    conn: Rc<Conn>,
    received: SimTime,
    replica: Replica,
    delivery: Delivery,
    answer: Answer,
}

/// One lane of a generation. Its units are its opening, its tokens, and its end.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    progress: Progress,
    standing: Standing,
    /// Units that the kernel has taken whole.
    units_sent: u32,
    /// The instant of the oldest token that the kernel has not taken.
    oldest_unsent: SimTime,
}

/// What the engine has said of a lane's job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Asked,
    Held,
    Refused,
}

/// A unit longer than [`WRITE_SIZE`], until the kernel has taken all of it.
#[derive(Debug)]
struct CutUnit {
    /// Whose it is, as in [`Rendered`].
    lane: usize,
    bytes: Vec<u8>,
}

/// How the answer goes out.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// Unit by unit, after the head of the response.
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
    /// The engine does not take the job of a lane; nothing was sent.
    Refused { lane: usize, why: Refusal },
    /// The client is gone.
    Lost,
    /// A fault strikes: nothing is sent until the connection has done what it says.
    Struck,
    /// The simulated GPU crashed.
    Crashed,
}

/// What has gone out of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Nothing,
    /// The head, and whole units.
    WholeUnits,
    /// The last one only in part.
    PartOfUnit,
}

/// What a generation is after its connection has taken it out of the table.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) answer: Answer,
    pub(crate) replica: Replica,
    pub(crate) progress: Lanes<Progress>,
    /// Lanes whose jobs the engine still works on.
    pub(crate) unfinished: Vec<usize>,
    pub(crate) timing: Option<Box<Timing>>,
    /// A fault that changed bytes of it, or is to do so to its body.
    pub(crate) struck: Option<Box<InStream>>,
}

impl Ended {
    /// Tokens of all lanes.
    pub(crate) fn released(&self) -> u64 {
        self.progress.iter().map(|lane| u64::from(lane.released.get())).sum()
    }

    /// What putting the body together takes, in plain tokens.
    pub(crate) fn work(&self) -> u64 {
        self.answer.format.work(self.released())
    }

    /// Where in the body of an answer that is not streamed the text of the first lane's next token
    /// begins, after so many. Of what does not stand there as it was said (the arguments of a call
    /// in some forms, a vector) it is the middle of the body.
    pub(crate) fn place_after(&self, tokens: u32, body: &[u8]) -> usize {
        let output = &self.answer.lanes.first().output;
        let of_part = tokens - output.locate(tokens).token;
        let mut said: Vec<u8> = Vec::new();
        (of_part..tokens).for_each(|k| said.extend_from_slice(output.escaped(k)));
        let before = said.len();
        said.extend_from_slice(output.escaped(tokens));
        let found = memchr::memmem::find(body, &said).filter(|_| !said.is_empty());
        found.map_or(body.len() / 2, |at| at + before)
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(&self) -> Vec<u8> {
        self.answer.format.whole_body(&self.answer, &self.progress, self.timing.as_deref())
    }
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
    units: Vec<Rendered>,
    /// Of each lane, which unit is to be rendered next.
    next: Vec<u32>,
    /// Bytes rendered so far.
    #[cfg(test)]
    rendered: usize,
}

/// A unit in the scratch.
#[derive(Clone, Copy, Debug)]
struct Rendered {
    /// Whose it is; [`HEAD`] for the head of the response.
    lane: usize,
    /// Where it ends.
    end: usize,
}

/// Stands for a lane where the head of the response is meant.
const HEAD: usize = usize::MAX;

/// The most bytes rendered for one write.
pub(crate) const WRITE_SIZE: usize = 64 * 1024;

/// Writes to one client before others get their turn, however fast it reads: some 80 µs.
const WRITES_PER_TURN: usize = 2;

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
        fault: Option<Box<InStream>>,
    ) -> Address {
        let timing = answer.wants_timing.then(|| Box::new(Timing::new(received)));
        let lanes = answer.lanes.map(|_| Lane::default());
        let count = u32::try_from(lanes.len()).expect("lanes are counted in 16 bits");
        let entry = Generation {
            lanes,
            undecided: count,
            unfinished: count,
            open: count,
            is_head_sent: false,
            turn: 0,
            bytes_of_next: 0,
            cut: None,
            is_begun: false,
            timing,
            is_dirty: false,
            lags: false,
            state: State::Running,
            fault,
            socket: conn.plain(),
            conn,
            received,
            replica,
            delivery,
            answer,
        };
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
        self.scratch.rendered
    }

    /// What the connection should know about its generation.
    pub(crate) fn state(&self, address: Address) -> State {
        self.get(address).map_or(State::Lost, |entry| entry.state)
    }

    /// How many lanes a generation has that was just opened.
    pub(crate) fn lanes(&self, address: Address) -> usize {
        self.get(address).expect("it was just opened").lanes.len()
    }

    /// The lanes of the same prompt as a lane of a generation that was just opened.
    pub(crate) fn siblings(&self, address: Address) -> Siblings {
        let entry = self.get(address).expect("it was just opened");
        let lanes = entry.answer.choices_beside(usize::from(address.lane));
        let count = u32::try_from(lanes.len()).expect("lanes are counted in 16 bits");
        Siblings { first: address.lane(lanes.start).job_id(), count }
    }

    /// The job of a lane of a generation that was just opened.
    pub(crate) fn job(&self, address: Address) -> Job {
        let entry = self.get(address).expect("it was just opened");
        entry.answer.job(usize::from(address.lane), address.job_id())
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
        let is_unfinished =
            |lane: &Lane| lane.standing != Standing::Refused && lane.progress.finish.is_none();
        let numbered = entry.lanes.iter().enumerate();
        let first = entry.lanes.first();
        let (sent, released) = (first.tokens_sent(), first.progress.released.get());
        let has_struck = |fault: &InStream| match entry.delivery {
            Delivery::Stream { .. } => fault.has_struck(sent, entry.open == 0),
            // Nothing of the body has been sent: only if it comes to that.
            Delivery::Whole => {
                outcome == Outcome::Finished
                    && fault.cuts_body().is_some_and(|after| released > after)
            }
        };
        let struck = entry.fault.filter(|fault| has_struck(fault));
        let breaks_off = struck.as_ref().is_some_and(|fault| fault.breaks_body_off());
        self.shard.finish(if breaks_off { Outcome::Faulted } else { outcome });
        Some(Ended {
            struck,
            unfinished: match entry.unfinished {
                0 => Vec::new(),
                _ => numbered.filter(|(_, lane)| is_unfinished(lane)).map(|(at, _)| at).collect(),
            },
            progress: entry.lanes.map(|lane| lane.progress),
            answer: entry.answer,
            replica: entry.replica,
            timing: entry.timing,
        })
    }

    /// Takes in what a GPU thread, or an engine on this thread, has to say.
    pub(crate) fn apply(&mut self, report: &Report) {
        match *report {
            Report::Queued(job, at) => {
                let address = Address::of(job);
                let Some((entry, lane)) = self.lane_mut(address) else { return };
                entry.hold(lane);
                if let Some(timing) = &mut entry.timing {
                    timing.queued(at);
                }
                if entry.undecided == 0 && matches!(entry.delivery, Delivery::Stream { .. }) {
                    self.mark(address.slot);
                }
            }
            Report::Refused(job, why) => {
                let Some((entry, lane)) = self.lane_mut(Address::of(job)) else { return };
                entry.lanes[lane].standing = Standing::Refused;
                // Of several refusals, the first is the answer.
                if entry.state == State::Running {
                    entry.state = State::Refused { lane, why };
                    entry.conn.signal(Signal::Generation);
                }
            }
            Report::Event(event, released) => self.apply_event(event, released),
        }
    }

    fn apply_event(&mut self, event: Event, released: SimTime) {
        let address = Address::of(event.job);
        let Some((entry, number)) = lane_in(&mut self.slots, address) else { return };
        if let Some(timing) = &mut entry.timing {
            timing.happened(&event, released);
        }
        let lane = &mut entry.lanes[number];
        match event.what {
            What::Admitted { cached } => lane.progress.cached = cached,
            What::Resumed { .. } | What::Preempted => {}
            What::Lost => {
                if entry.state != State::Lost {
                    entry.state = State::Crashed;
                    entry.conn.signal(Signal::Generation);
                }
            }
            What::Token { index, finish } => {
                debug_assert!(index > lane.progress.released, "tokens come in order");
                // Of several that one report tells of, the oldest bears this stamp.
                if !lane.has_unsent_token() {
                    lane.oldest_unsent = event.at;
                }
                let before = lane.progress.released;
                lane.progress.released = index;
                lane.progress.finish = finish;
                entry.unfinished -= u32::from(finish.is_some());
                entry.hold(number);
                match entry.delivery {
                    // Not by its slot: this is every token, and one look into the table is enough.
                    Delivery::Stream { .. } => entry.mark(address.slot, &mut self.dirty),
                    Delivery::Whole => {
                        let fails = |fault: &InStream| number == 0 && fault.fails_body(index.get());
                        if entry.state == State::Running
                            && entry.fault.as_deref().is_some_and(fails)
                        {
                            entry.state = State::Struck;
                            entry.conn.signal(Signal::Generation);
                        } else if entry.unfinished == 0 && entry.state == State::Running {
                            entry.state = State::Complete;
                            entry.conn.signal(Signal::Generation);
                        }
                        self.shard.unstreamed_tokens.add(u64::from((index - before).get()));
                    }
                }
                let is_whole = matches!(entry.state, State::Running | State::Complete);
                if finish.is_some() && entry.unfinished == 0 && is_whole {
                    let progress = entry.lanes.first().progress;
                    entry.answer.format.finished(&entry.answer, &progress);
                }
            }
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

    /// What strikes a generation that is [`State::Struck`].
    pub(crate) fn fault(&self, address: Address) -> Option<&InStream> {
        self.get(address)?.fault.as_deref()
    }

    /// How a generation is told of an error in mid-stream.
    pub(crate) fn voice<'a>(&self, address: Address, style: Style, request: &'a str) -> Voice<'a> {
        let Some(entry) = self.get(address) else { return Voice::OpenAis(style) };
        match &entry.answer.format {
            Format::Messages(_) => Voice::Anthropics(request),
            Format::Responses(format) => {
                let sent = entry.lanes.first().tokens_sent();
                Voice::Responses(style, format.sequence_after(&entry.answer, sent))
            }
            _ => Voice::OpenAis(style),
        }
    }

    /// What has gone out of a stream.
    pub(crate) fn sent(&self, address: Address) -> Sent {
        match self.get(address) {
            Some(entry) if entry.bytes_of_next > 0 => Sent::PartOfUnit,
            Some(entry) if entry.is_head_sent => Sent::WholeUnits,
            _ => Sent::Nothing,
        }
    }

    /// The bytes that come next: the head of the response, or a unit of the first lane.
    pub(crate) fn next_bytes(&self, address: Address) -> Vec<u8> {
        let mut bytes = Vec::new();
        let Some(entry) = self.get(address) else { return bytes };
        let lane = entry.lanes.first();
        if !entry.is_head_sent {
            entry.render_head(&mut bytes);
        } else if lane.units_sent < lane.units_due() {
            let is_last = entry.open == 1 && lane.is_end(lane.units_sent);
            entry.render_unit(0, lane.units_sent, is_last, &mut bytes);
        }
        bytes
    }

    /// The fault has struck, and the stream goes on; if it was at the head of the response, that
    /// has been sent. Whether something is left for [`Generations::send_some`].
    pub(crate) fn go_on(&mut self, address: Address) -> bool {
        if let Some(entry) = self.get_mut(address)
            && entry.state == State::Struck
        {
            if let Some(fault) = &mut entry.fault {
                entry.is_head_sent |= fault.holds_head();
                fault.open_gate();
            }
            // Tokens that waited here were late on purpose.
            entry.lags = true;
            entry.state = State::Blocked;
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

    /// The generation, and which of its lanes is meant.
    fn lane_mut(&mut self, address: Address) -> Option<(&mut Generation, usize)> {
        lane_in(&mut self.slots, address)
    }
}

fn lane_in(slots: &mut [Slot], address: Address) -> Option<(&mut Generation, usize)> {
    let place = slots.get_mut(address.slot as usize)?;
    if place.generation != address.generation {
        return None;
    }
    let entry = place.entry.as_mut()?;
    let lane = usize::from(address.lane);
    debug_assert!(lane < entry.lanes.len(), "jobs are submitted for lanes that exist");
    Some((entry, lane))
}

impl Scratch {
    /// The most room that is kept for the next write: what a long unit has taken is given back.
    const MOST_KEPT: usize = 4 * WRITE_SIZE;

    fn clear(&mut self) {
        self.bytes.clear();
        self.units.clear();
        if self.bytes.capacity() > Self::MOST_KEPT {
            self.bytes.shrink_to(WRITE_SIZE);
        }
    }

    /// The unit that begins at `start`; a long one is always the last.
    fn take(&mut self, start: usize, unit: Rendered) -> Box<CutUnit> {
        debug_assert_eq!(unit.end, self.bytes.len(), "nothing is rendered behind a write's fill");
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..start);
        Box::new(CutUnit { lane: unit.lane, bytes })
    }
}

impl Lane {
    /// Units that exist so far.
    fn units_due(&self) -> u32 {
        match self.progress.released.get() {
            0 => 0,
            released => OPENING + 1 + released + u32::from(self.progress.finish.is_some()),
        }
    }

    /// Tokens whose unit the kernel has taken.
    fn tokens_sent(&self) -> u32 {
        self.units_sent.saturating_sub(OPENING + 1).min(self.progress.released.get())
    }

    fn has_unsent_token(&self) -> bool {
        self.tokens_sent() < self.progress.released.get()
    }

    /// Whether a unit is the lane's end.
    fn is_end(&self, unit: u32) -> bool {
        self.progress.finish.is_some() && unit == OPENING + 1 + self.progress.released.get()
    }
}

/// The unit of a lane's opening; token `k`, counted from 1, is the unit `OPENING + k`.
const OPENING: u32 = 0;

impl Generation {
    /// The engine holds a lane's job.
    fn hold(&mut self, lane: usize) {
        if self.lanes[lane].standing == Standing::Asked {
            self.lanes[lane].standing = Standing::Held;
            self.undecided -= 1;
        }
    }

    /// Puts it into the list of those with something to send, where it stands once.
    fn mark(&mut self, slot: u32, dirty: &mut VecDeque<u32>) {
        if !self.is_dirty && self.state == State::Running {
            self.is_dirty = true;
            dirty.push_back(slot);
        }
    }

    /// The last turn ended before all was sent that is due, and the socket takes more.
    fn has_more_to_send(&self) -> bool {
        self.state == State::Running && self.is_due()
    }

    /// Writes the units that are due, in as few writes as they need and no more than a turn may
    /// have. Never waits. Returns how many bytes the kernel took.
    fn send(&mut self, clock: Clock, shard: &IoShard, scratch: &mut Scratch) -> usize {
        let (mut writes, mut taken) = (0, 0);
        while self.is_due() {
            if writes == WRITES_PER_TURN {
                return taken;
            }
            writes += 1;
            let bytes = match &self.cut {
                None => {
                    self.render(scratch);
                    &scratch.bytes
                }
                Some(cut) => {
                    scratch.units.clear();
                    scratch.units.push(Rendered { lane: cut.lane, end: cut.bytes.len() });
                    &cut.bytes
                }
            };
            let length = bytes.len();
            let next = &bytes[self.bytes_of_next..];
            let sent = match self.socket {
                Some(socket) => socket.send(next),
                None => self.conn.send(next),
            };
            match sent {
                Ok(sent) => {
                    let now = clock.now();
                    taken += sent;
                    let reached = self.bytes_of_next + sent;
                    let whole = if reached == length {
                        self.cut = None;
                        scratch.units.len()
                    } else {
                        scratch.units.partition_point(|unit| unit.end <= reached)
                    };
                    let start = if whole == 0 { 0 } else { scratch.units[whole - 1].end };
                    self.bytes_of_next = reached - start;
                    self.count_units(&scratch.units[..whole], now, shard);
                    if let Some(next) = scratch.units.get(whole) {
                        // What was cut must be what comes next.
                        if next.lane != HEAD {
                            self.turn = next.lane;
                        }
                        if self.cut.is_none() && next.end - start > WRITE_SIZE {
                            self.cut = Some(scratch.take(start, *next));
                        }
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
        if self.fault.is_some() && self.is_at_gate() {
            self.state = State::Struck;
            self.conn.signal(Signal::Generation);
            return taken;
        }
        self.lags = false;
        if self.open == 0 {
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

    /// Whether there are units to be sent.
    fn is_due(&self) -> bool {
        if self.undecided > 0 || matches!(self.delivery, Delivery::Whole) {
            return false;
        }
        if let Some(fault) = &self.fault {
            let due = |(number, lane): (usize, &Lane)| lane.units_sent < self.units_due(number);
            return !fault.holds_head()
                && (!self.is_head_sent || self.lanes.iter().enumerate().any(due));
        }
        !self.is_head_sent || self.lanes.any(|lane| lane.units_sent < lane.units_due())
    }

    /// Units of a lane that exist and that no gate holds back. When the first lane has come to its
    /// gate, the others stop, too.
    fn units_due(&self, number: usize) -> u32 {
        let (lane, first) = (&self.lanes[number], self.lanes.first());
        let Some(tokens) = self.fault.as_ref().and_then(|fault| fault.most_tokens()) else {
            return lane.units_due();
        };
        let most = OPENING + 1 + tokens;
        match number {
            0 => lane.units_due().min(most),
            _ if first.units_sent >= most => lane.units_sent,
            _ => lane.units_due(),
        }
    }

    /// Whether all has been sent that a gate lets through, and more would follow.
    fn is_at_gate(&self) -> bool {
        let Some(fault) = &self.fault else { return false };
        if matches!(self.delivery, Delivery::Whole) || self.undecided > 0 {
            return false;
        }
        let first = self.lanes.first();
        match fault.most_tokens() {
            _ if fault.holds_head() => !self.is_head_sent,
            Some(tokens) => {
                let most = OPENING + 1 + tokens;
                first.units_sent == most && first.units_due() > most
            }
            None => false,
        }
    }

    /// Renders units from the first that was not taken whole, up to all that are due or a write's
    /// fill. Lanes take turns.
    fn render(&self, scratch: &mut Scratch) {
        scratch.clear();
        self.render_units(scratch);
        #[cfg(test)]
        {
            scratch.rendered += scratch.bytes.len();
        }
    }

    fn render_units(&self, scratch: &mut Scratch) {
        if !self.is_head_sent {
            self.render_head(&mut scratch.bytes);
            scratch.units.push(Rendered { lane: HEAD, end: scratch.bytes.len() });
        }
        if self.lanes.is_single() {
            return self.render_single(scratch);
        }
        scratch.next.clear();
        scratch.next.extend(self.lanes.iter().map(|lane| lane.units_sent));
        let (mut number, mut open, mut passed_over) = (self.turn, self.open, 0);
        while passed_over < self.lanes.len() && scratch.bytes.len() < WRITE_SIZE {
            let lane = &self.lanes[number];
            let unit = scratch.next[number];
            let due = match &self.fault {
                None => lane.units_due(),
                Some(_) => self.units_due(number),
            };
            if unit < due {
                let is_last = open == 1 && lane.is_end(unit);
                // The last unit tells when the tokens before it were sent, so they go first.
                if is_last && self.timing.is_some() && !scratch.bytes.is_empty() {
                    break;
                }
                self.render_unit(number, unit, is_last, &mut scratch.bytes);
                scratch.units.push(Rendered { lane: number, end: scratch.bytes.len() });
                scratch.next[number] = unit + 1;
                open -= u32::from(lane.is_end(unit));
                passed_over = 0;
            } else {
                passed_over += 1;
            }
            number = self.lane_after(number);
        }
    }

    /// [`Self::render_units`] without turns: nearly every answer has one lane.
    fn render_single(&self, scratch: &mut Scratch) {
        let lane = self.lanes.first();
        let due = match &self.fault {
            None => lane.units_due(),
            Some(_) => self.units_due(0),
        };
        for unit in lane.units_sent..due {
            let is_last = lane.is_end(unit);
            if scratch.bytes.len() >= WRITE_SIZE
                || is_last && self.timing.is_some() && !scratch.bytes.is_empty()
            {
                break;
            }
            self.render_unit(0, unit, is_last, &mut scratch.bytes);
            scratch.units.push(Rendered { lane: 0, end: scratch.bytes.len() });
        }
    }

    fn lane_after(&self, lane: usize) -> usize {
        if lane + 1 == self.lanes.len() { 0 } else { lane + 1 }
    }

    fn render_head(&self, bytes: &mut Vec<u8>) {
        let Delivery::Stream { head, chunked } = &self.delivery else {
            unreachable!("whole answers are not sent in units");
        };
        bytes.extend_from_slice(head);
        let chunk = chunked.then(|| OpenChunk::open(bytes));
        self.answer.format.open_stream(&self.answer, bytes);
        if let Some(chunk) = chunk {
            chunk.close(bytes);
        }
    }

    fn render_unit(&self, number: usize, unit: u32, is_last: bool, bytes: &mut Vec<u8>) {
        let Delivery::Stream { chunked, .. } = self.delivery else {
            unreachable!("whole answers are not sent in units");
        };
        let (answer, format) = (&self.answer, &self.answer.format);
        let progress = &self.lanes[number].progress;
        // One chunk per unit, so that a unit is the same bytes whatever it is sent with.
        let chunk = chunked.then(|| OpenChunk::open(bytes));
        let start = bytes.len();
        let fault = self.fault.as_deref();
        let what = if unit == OPENING {
            format.open_lane(answer, number, bytes);
            Unit::Opening
        } else if self.lanes[number].is_end(unit) {
            format.end_lane(answer, number, progress, bytes);
            if let Some(fault) = fault {
                fault.transform_finish(start, bytes);
            }
            if is_last {
                let all = self.lanes.map(|lane| lane.progress);
                format.end_stream(answer, &all, self.timing.as_deref(), bytes);
                if let Some(fault) = fault {
                    fault.transform_end(start, bytes);
                }
            }
            Unit::End
        } else {
            let token = unit - OPENING - 1;
            format.token(answer, number, token, progress.cached, bytes);
            Unit::Token(token)
        };
        if let Some(fault) = fault.filter(|_| number == 0) {
            fault.transform(what, start, bytes);
        }
        if let Some(chunk) = chunk {
            chunk.close(bytes);
            if is_last {
                bytes.extend_from_slice(LAST_CHUNK);
            }
        }
    }

    /// The kernel has taken `units`.
    fn count_units(&mut self, units: &[Rendered], now: SimTime, shard: &IoShard) {
        for run in units.chunk_by(|one, other| one.lane == other.lane) {
            let number = run[0].lane;
            if number == HEAD {
                self.is_head_sent = true;
                continue;
            }
            let lane = &mut self.lanes[number];
            let tokens_before = lane.tokens_sent();
            lane.units_sent += run.len() as u32;
            let tokens = lane.tokens_sent() - tokens_before;
            self.open -= u32::from(lane.is_end(lane.units_sent - 1));
            // Tokens of one write are all as late as the oldest of them: never flattering.
            let lag = now.saturating_since(lane.oldest_unsent);
            self.turn = self.lane_after(number);
            self.count_tokens(tokens, lag, now, shard);
        }
    }

    fn count_tokens(&mut self, count: u32, lag: SimSpan, now: SimTime, shard: &IoShard) {
        if count == 0 {
            return;
        }
        let times = u64::from(count);
        let delivery = &shard.replicas[self.replica.place];
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
