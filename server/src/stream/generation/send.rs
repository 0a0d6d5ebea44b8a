//! What is due of a generation goes to the kernel, and is counted.
//!
//! What is due is known to the generation; how it reads, to [`render`](super::render). The invariant: a
//! token is counted once, when the kernel has taken all bytes of its unit, with the lag of the oldest that
//! had not been sent.

use std::io::{self, ErrorKind};

use llmsim_engine::units::{SimSpan, SimTime};

use super::render::{HEAD, Rendered, Scratch, WRITE_SIZE};
use super::{Generation, State};
use crate::clock::Clock;
use crate::http::connection::Signal;
use crate::metrics::record::IoShard;
use crate::stream::ahead::Prepared;
use crate::sys;

/// Writes to one client before others get their turn, however fast it reads: some 80 µs.
const WRITES_PER_TURN: usize = 2;

impl Generation {
    /// Writes the units that are due, in as few writes as they need and no more than a turn may
    /// have. Never waits. Returns how many bytes the kernel took.
    pub(in crate::stream) fn send(
        &mut self,
        clock: Clock,
        shard: &IoShard,
        scratch: &mut Scratch,
    ) -> usize {
        let (mut writes, mut taken) = (0, 0);
        while self.is_due() {
            if writes == WRITES_PER_TURN {
                return taken;
            }
            writes += 1;
            let bytes = match (self.prepared.take(), &self.cut) {
                (Some(prepared), _) if self.owes_one_token() => {
                    let unit = scratch.ahead.unit(prepared);
                    scratch.units.clear();
                    scratch.units.push(Rendered { lane: 0, end: unit.len() });
                    unit
                }
                (_, None) => {
                    self.render(scratch);
                    &scratch.bytes
                }
                (_, Some(cut)) => {
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
            let Some(sent) = self.taken(sent) else { return taken };
            taken += sent;
            let now = clock.now();
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

    /// What is due, if that is one token whose unit is ready and can be sent as it is. Whoever takes it
    /// sends it, and tells [`Self::sent_prepared`] what came of that.
    pub(in crate::stream) fn take_prepared(&mut self) -> Option<(sys::Number, Prepared)> {
        let (socket, prepared) = (self.socket?, self.prepared.take()?);
        self.owes_one_token().then_some((socket, prepared))
    }

    /// What came of sending a unit of `length` bytes that was ready, and when. Returns how many bytes
    /// the kernel took.
    pub(in crate::stream) fn sent_prepared(
        &mut self,
        sent: io::Result<usize>,
        length: usize,
        now: SimTime,
        shard: &IoShard,
    ) -> usize {
        let Some(sent) = self.taken(sent) else { return 0 };
        if sent == length {
            self.count_units(&[Rendered { lane: 0, end: length }], now, shard);
            self.lags = false;
        } else {
            self.bytes_of_next = sent;
            self.block();
        }
        sent
    }

    /// How many bytes the kernel took, unless nothing can be sent any more for now, or at all.
    fn taken(&mut self, sent: io::Result<usize>) -> Option<usize> {
        match sent {
            Ok(sent) => Some(sent),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                self.block();
                None
            }
            Err(_) => {
                self.state = State::Lost;
                self.conn.signal(Signal::Generation);
                None
            }
        }
    }

    /// Whether what is due is one token, and not the last.
    fn owes_one_token(&self) -> bool {
        let lane = self.lanes.first();
        lane.units_due() == lane.units_sent + 1 && lane.progress.finish.is_none()
    }

    fn block(&mut self) {
        self.lags = true;
        self.state = State::Blocked;
        self.conn.signal(Signal::Generation);
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
