//! One request being answered: what the engine has said of it, what has gone out, and what is due.
//!
//! It does not know where it stands in the table, or what else its thread does. The invariant: units go
//! out only when the engine has taken the jobs of all lanes, in order within each lane, and up to where a
//! fault holds them back.

mod lane;
mod render;
mod send;

use std::collections::VecDeque;
use std::rc::Rc;

use llmsim_engine::faults::Style;
use llmsim_engine::sim::{Event, Refusal, What};
use llmsim_engine::units::SimTime;

use self::lane::{Lane, OPENING, Standing};
use self::render::CutUnit;
pub(super) use self::render::Scratch;
pub(crate) use self::render::WRITE_SIZE;
use super::Ended;
use super::ahead::Prepared;
use crate::api::answer::{Answer, Format};
use crate::faults::in_stream::{InStream, Voice};
use crate::http::connection::{Conn, Signal};
use crate::lanes::Lanes;
use crate::metrics::record::{IoShard, Outcome};
use crate::metrics::timing::Timing;
use crate::served::Replica;
use crate::sys;

/// One request being answered. What every token looks at stands together, in few lines of the cache:
/// between two tokens of a stream the kernel has sent those of all others, and all of it is cold.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Generation {
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
    /// It stands in the list of generations with something to send; the table's own.
    pub(super) is_dirty: bool,
    /// Its client did not read, and has not yet caught up.
    lags: bool,
    state: State,
    /// The unit of the token that is expected next, of the only lane.
    prepared: Option<Prepared>,
    /// What goes wrong on purpose; for nearly all, nothing.
    fault: Option<Box<InStream>>,
    /// The connection's socket, if it is sent to directly.
    socket: Option<sys::Number>,
    conn: Rc<Conn>,
    received: SimTime,
    replica: Replica,
    delivery: Delivery,
    answer: Box<Answer>,
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
    /// [`Generations::resume`](super::Generations::resume).
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

impl Generation {
    /// An answer of which nothing is decided yet.
    pub(super) fn new(
        conn: Rc<Conn>,
        answer: Box<Answer>,
        replica: Replica,
        delivery: Delivery,
        received: SimTime,
        fault: Option<Box<InStream>>,
    ) -> Self {
        let timing = answer.wants_timing.then(|| Box::new(Timing::new(received)));
        let lanes = answer.lanes.map(|_| Lane::default());
        let count = u32::try_from(lanes.len()).expect("lanes are counted in 16 bits");
        Self {
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
            prepared: None,
            fault,
            socket: conn.plain(),
            conn,
            received,
            replica,
            delivery,
            answer,
        }
    }

    /// Where it stands.
    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// The engine holds a lane's job. Whether that is something to be sent.
    #[must_use]
    pub(super) fn queued(&mut self, lane: usize, at: SimTime) -> bool {
        self.hold(lane);
        if let Some(timing) = &mut self.timing {
            timing.queued(at);
        }
        self.undecided == 0 && matches!(self.delivery, Delivery::Stream { .. })
    }

    /// The engine does not take a lane's job.
    pub(super) fn refused(&mut self, lane: usize, why: Refusal) {
        self.lanes[lane].standing = Standing::Refused;
        // Of several refusals, the first is the answer.
        if self.state == State::Running {
            self.state = State::Refused { lane, why };
            self.conn.signal(Signal::Generation);
        }
    }

    /// The engine did something for a lane, seen at `released`. Whether that is something to be sent.
    #[must_use]
    pub(super) fn happened(
        &mut self,
        number: usize,
        event: &Event,
        released: SimTime,
        shard: &IoShard,
    ) -> bool {
        if let Some(timing) = &mut self.timing {
            timing.happened(event, released);
        }
        let lane = &mut self.lanes[number];
        match event.what {
            What::Admitted { cached } => {
                debug_assert!(self.prepared.is_none(), "the prompt comes before any token");
                lane.progress.cached = cached;
                false
            }
            What::Resumed { .. } | What::Preempted => false,
            What::Lost => {
                if self.state != State::Lost {
                    self.state = State::Crashed;
                    self.conn.signal(Signal::Generation);
                }
                false
            }
            What::Token { index, finish } => {
                debug_assert!(index > lane.progress.released, "tokens come in order");
                // Of several tokens that one report tells of, this is the oldest one's instant.
                if !lane.has_unsent_token() {
                    lane.oldest_unsent = event.at;
                }
                let before = lane.progress.released;
                lane.progress.released = index;
                lane.progress.finish = finish;
                self.unfinished -= u32::from(finish.is_some());
                self.hold(number);
                let is_stream = match self.delivery {
                    Delivery::Stream { .. } => true,
                    Delivery::Whole => {
                        let fails = |fault: &InStream| number == 0 && fault.fails_body(index.get());
                        if self.state == State::Running && self.fault.as_deref().is_some_and(fails)
                        {
                            self.state = State::Struck;
                            self.conn.signal(Signal::Generation);
                        } else if self.unfinished == 0 && self.state == State::Running {
                            self.state = State::Complete;
                            self.conn.signal(Signal::Generation);
                        }
                        shard.unstreamed_tokens.add(u64::from((index - before).get()));
                        false
                    }
                };
                let is_whole = matches!(self.state, State::Running | State::Complete);
                if finish.is_some() && self.unfinished == 0 && is_whole {
                    let progress = self.lanes.first().progress;
                    self.answer.format.finished(&self.answer, &progress);
                }
                is_stream
            }
        }
    }

    /// The engine holds a lane's job.
    fn hold(&mut self, lane: usize) {
        if self.lanes[lane].standing == Standing::Asked {
            self.lanes[lane].standing = Standing::Held;
            self.undecided -= 1;
        }
    }

    /// Puts it into the list of those with something to send, where it stands once.
    pub(super) fn mark(&mut self, slot: u32, dirty: &mut VecDeque<u32>) {
        if !self.is_dirty && self.state == State::Running {
            self.is_dirty = true;
            dirty.push_back(slot);
        }
    }

    /// The last turn ended before all was sent that is due, and the socket takes more.
    pub(super) fn has_more_to_send(&self) -> bool {
        self.state == State::Running && self.is_due()
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

    /// Whether a token has gone out, all that is due with it, and the next that is heard of is most
    /// likely a token.
    pub(super) fn awaits_token(&self) -> bool {
        let lane = self.lanes.first();
        self.state == State::Running
            && self.lanes.is_single()
            && self.fault.is_none()
            && self.bytes_of_next == 0
            && lane.tokens_sent() > 0
            && lane.units_sent == lane.units_due()
            && lane.progress.finish.is_none()
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

    /// The socket takes bytes again. Whether that was waited for.
    pub(super) fn unblock(&mut self) -> bool {
        let was_blocked = self.state == State::Blocked;
        if was_blocked {
            self.state = State::Running;
        }
        was_blocked
    }

    /// What strikes it, if it is [`State::Struck`].
    pub(super) fn fault(&self) -> Option<&InStream> {
        self.fault.as_deref()
    }

    /// The fault has struck, and what it held back may go.
    pub(super) fn go_on(&mut self) {
        if self.state != State::Struck {
            return;
        }
        if let Some(fault) = &mut self.fault {
            self.is_head_sent |= fault.holds_head();
            fault.open_gate();
        }
        // Tokens that waited here were late on purpose.
        self.lags = true;
        self.state = State::Blocked;
    }

    /// How its client is told of an error in mid-stream.
    pub(super) fn voice<'a>(&self, style: Style, request: &'a str) -> Voice<'a> {
        match &self.answer.format {
            Format::Messages(_) => Voice::Anthropics(request),
            Format::Responses(format) => {
                let sent = self.lanes.first().tokens_sent();
                Voice::Responses(style, format.sequence_after(&self.answer, sent))
            }
            _ => Voice::OpenAis(style),
        }
    }

    /// What has gone out of it.
    pub(super) fn sent(&self) -> Sent {
        match self {
            _ if self.bytes_of_next > 0 => Sent::PartOfUnit,
            _ if self.is_head_sent => Sent::WholeUnits,
            _ => Sent::Nothing,
        }
    }

    /// What is left of it, once it is counted how it ended.
    pub(super) fn end(self, outcome: Outcome, shard: &IoShard) -> Ended {
        let is_unfinished =
            |lane: &Lane| lane.standing != Standing::Refused && lane.progress.finish.is_none();
        let numbered = self.lanes.iter().enumerate();
        let first = self.lanes.first();
        let (sent, released) = (first.tokens_sent(), first.progress.released.get());
        let has_struck = |fault: &InStream| match self.delivery {
            Delivery::Stream { .. } => fault.has_struck(sent, self.open == 0),
            // Nothing of the body has been sent: only if it comes to that.
            Delivery::Whole => {
                outcome == Outcome::Finished
                    && fault.cuts_body().is_some_and(|after| released > after)
            }
        };
        let struck = self.fault.filter(|fault| has_struck(fault));
        let breaks_off = struck.as_ref().is_some_and(|fault| fault.breaks_body_off());
        shard.finish(if breaks_off { Outcome::Faulted } else { outcome });
        Ended {
            struck,
            unfinished: match self.unfinished {
                0 => Vec::new(),
                _ => numbered.filter(|(_, lane)| is_unfinished(lane)).map(|(at, _)| at).collect(),
            },
            progress: self.lanes.map(|lane| lane.progress),
            answer: self.answer,
            replica: self.replica,
            timing: self.timing,
        }
    }
}
