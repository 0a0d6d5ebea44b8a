//! The bytes of a generation's units, rendered when they are to be written.
//!
//! Nothing is sent or counted here. The invariant: a unit is the same bytes whenever it is rendered, and
//! whatever with.

use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};

use super::lane::OPENING;
use super::{Delivery, Generation};
use crate::faults::in_stream::Unit;
use crate::stream::ahead::Ahead;

/// Buffers that live as long as the thread, so that sending allocates nothing.
#[derive(Debug, Default)]
pub(in crate::stream) struct Scratch {
    pub(super) bytes: Vec<u8>,
    pub(super) units: Vec<Rendered>,
    /// Of each lane, which unit is to be rendered next.
    next: Vec<u32>,
    /// Units rendered before they are due.
    pub(in crate::stream) ahead: Ahead,
    /// Bytes rendered so far.
    #[cfg(test)]
    rendered: usize,
}

/// A unit in the scratch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rendered {
    /// Whose it is; [`HEAD`] for the head of the response.
    pub(super) lane: usize,
    /// Where it ends.
    pub(super) end: usize,
}

/// Stands for a lane where the head of the response is meant.
pub(super) const HEAD: usize = usize::MAX;

/// The most bytes rendered for one write.
pub(crate) const WRITE_SIZE: usize = 64 * 1024;

/// A unit longer than [`WRITE_SIZE`], until the kernel has taken all of it.
#[derive(Debug)]
pub(super) struct CutUnit {
    /// Whose it is, as in [`Rendered`].
    pub(super) lane: usize,
    pub(super) bytes: Vec<u8>,
}

impl Scratch {
    /// The most room that is kept for the next write: what a long unit has taken is given back.
    const MOST_KEPT: usize = 4 * WRITE_SIZE;

    /// Bytes rendered so far.
    #[cfg(test)]
    pub(in crate::stream) fn rendered(&self) -> usize {
        self.rendered
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.units.clear();
        if self.bytes.capacity() > Self::MOST_KEPT {
            self.bytes.shrink_to(WRITE_SIZE);
        }
    }

    /// The unit that begins at `start`; a long one is always the last.
    pub(super) fn take(&mut self, start: usize, unit: Rendered) -> Box<CutUnit> {
        debug_assert_eq!(unit.end, self.bytes.len(), "nothing is rendered behind a write's fill");
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..start);
        Box::new(CutUnit { lane: unit.lane, bytes })
    }
}

impl Generation {
    /// Renders units from the first that was not taken whole, up to all that are due or a write's
    /// fill. Lanes take turns.
    pub(super) fn render(&self, scratch: &mut Scratch) {
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

    /// Renders the unit of the token that is expected next, for when it comes.
    pub(in crate::stream) fn render_ahead(&mut self, slot: u32, ahead: &mut Ahead) {
        if self.prepared.is_none() && self.awaits_token() {
            let next = self.lanes.first().units_sent;
            self.prepared = ahead.keep(slot, |room| self.render_unit(0, next, false, room));
        }
    }

    pub(super) fn lane_after(&self, lane: usize) -> usize {
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

    /// The bytes that come next: the head of the response, or a unit of the first lane.
    pub(in crate::stream) fn next_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let lane = self.lanes.first();
        if !self.is_head_sent {
            self.render_head(&mut bytes);
        } else if lane.units_sent < lane.units_due() {
            let is_last = self.open == 1 && lane.is_end(lane.units_sent);
            self.render_unit(0, lane.units_sent, is_last, &mut bytes);
        }
        bytes
    }
}
