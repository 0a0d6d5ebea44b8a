//! An exchange whose answer a simulated GPU makes: from the submission of its jobs to the last byte.
//!
//! Meanwhile the generation table writes to the socket; this waits for what the table cannot see: a
//! client that reads no more or is gone, a fault, the end of the server. The invariant: an entry of the
//! table is closed, and its jobs are cancelled, however the exchange ends.

use std::rc::Rc;

use llmsim_engine::units::{SimSpan, SimTime};

use super::super::response::{self, Exchange, Extra, RequestId, Response, SSE};
use super::conn::Signal;
use super::faulty::Fate;
use super::link::{Link, Received, Turn};
use super::{Close, millis};
use crate::api;
use crate::api::answer::{Answer, MOST_TOKENS_INLINE};
use crate::gpu_thread::Address;
use crate::helper::{self, Length};
use crate::io_thread::Io;
use crate::metrics::record::Outcome;
use crate::stream::{Delivery, Ended, State};
use crate::sys;

/// The most bytes read ahead while an answer is under way; a client that pipelines more waits.
pub(super) const MOST_PIPELINED: usize = 64 * 1024;

/// How often a connection that is not read, since so much is pipelined, is asked whether its client
/// is still there.
const LOOK_FOR_CLIENT: SimSpan = SimSpan::from_ms(500);

impl Link {
    pub(super) async fn generate(
        &mut self,
        answer: Box<Answer>,
        exchange: Exchange,
        id: &RequestId,
        times: Times,
        mut fate: Fate,
    ) -> Result<(), Close> {
        let Times { started, received } = times;
        let fault;
        let delivery = if answer.is_stream {
            fault = Self::in_stream(&mut fate);
            let mut head = Vec::with_capacity(512);
            let elapsed = self.io.clock.now().saturating_since(started);
            let date = self.io.date();
            let content_type = fate.content_type.as_deref().unwrap_or(SSE);
            let extra = Extra { content_type, headers: &fate.headers };
            response::write_stream_head(&mut head, exchange, id, millis(elapsed), &date, extra);
            Delivery::Stream { head: head.into(), chunked: !exchange.is_http10 }
        } else {
            fault = Self::in_body(&mut fate);
            Delivery::Whole
        };
        let address = match self.io.submit(&self.conn, answer, delivery, received, fault) {
            Ok(address) => address,
            Err(refusal) => {
                let refusal = exchange.dialect.error(&refusal, id);
                return self.respond(refusal, exchange, id, started).await;
            }
        };
        let mut open = OpenGeneration::new(&self.io, address, id);
        self.conn.never_expire();
        let mut looks_for_client = false;
        loop {
            let reads = self.buffer.len() < MOST_PIPELINED;
            let state = self.io.generations.borrow().state(address);
            match state {
                State::Running => {
                    if !reads && !self.conn.expires() {
                        looks_for_client = true;
                        self.expire_in(LOOK_FOR_CLIENT);
                    }
                }
                State::Blocked => {
                    if looks_for_client || !self.conn.expires() {
                        looks_for_client = false;
                        self.expire_in(self.io.served.limits.stall);
                    }
                }
                State::Lost => {
                    open.give_up(Outcome::Disconnected);
                    return Err(Close::Gone);
                }
                State::Refused { lane, why } => {
                    let Some(ended) = open.give_up(Outcome::Refused) else {
                        return Err(Close::Gone);
                    };
                    let refusal = exchange.dialect.error(&ended.answer.refused(lane, why), id);
                    return self.respond(refusal, exchange, id, started).await;
                }
                State::Complete => {
                    return self.complete(open, exchange, id, started, &fate).await;
                }
                State::Struck => {
                    match self.strike(&mut open, exchange, id, started, &fate).await? {
                        true => continue,
                        false => return Ok(()),
                    }
                }
                State::Crashed => return self.crash(&mut open, exchange, id, started).await,
            }
            let is_blocked = state == State::Blocked;
            match self.turn(reads, is_blocked).await {
                Turn::Writable => {
                    self.conn.never_expire();
                    self.io.resume(address);
                }
                // A client that closes its side has gone: that is how every client gives up, and
                // one that only half-closes cannot be told from it before the next write.
                Turn::Readable => match self.receive() {
                    Ok(0) | Err(Received::Broken) => {
                        open.give_up(Outcome::Disconnected);
                        return Err(Close::Gone);
                    }
                    Ok(_) | Err(Received::Nothing) => {}
                },
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    self.conn.take(Signal::Drain);
                    if self.conn.take(Signal::Expired) {
                        if is_blocked {
                            open.give_up(Outcome::Stalled);
                            return Err(Close::Gone);
                        }
                        if looks_for_client && sys::has_hung_up(&self.conn.stream) {
                            open.give_up(Outcome::Disconnected);
                            return Err(Close::Gone);
                        }
                    }
                    if self.conn.is_set(Signal::Cut) {
                        open.give_up(Outcome::Cut);
                        return Err(Close::Gone);
                    }
                }
            }
        }
    }

    /// The generation is over, and the socket is this task's again.
    async fn complete(
        &mut self,
        mut open: OpenGeneration<'_>,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
        fate: &Fate,
    ) -> Result<(), Close> {
        let Some(mut ended) = open.complete() else { return Err(Close::Gone) };
        // It has been told of the end, and knows.
        self.conn.take(Signal::Generation);
        if ended.answer.is_stream {
            return Ok(());
        }
        let struck = ended.struck.take();
        let after = struck.as_ref().and_then(|fault| fault.cuts_body());
        let work = ended.work();
        let (report, model) = (ended.answer.load_report(), ended.answer.model);
        let put_together = move || {
            let body = ended.whole_body();
            let place = after.map_or(0, |tokens| ended.place_after(tokens, &body));
            (body, place)
        };
        let (body, place) = if work <= u64::from(MOST_TOKENS_INLINE) {
            put_together()
        } else {
            helper::run(&self.io.helper, Length::of_tokens(work), put_together).await
        };
        let mut response = Response::json(200, body);
        if let Some(format) = report {
            let load = api::metrics::load_of(&self.io, model).await;
            response = response.header("endpoint-load-metrics", format.report(load));
        }
        match struck.and_then(|fault| fault.rule) {
            None => self.respond_fated(response, fate, exchange, id, started).await,
            Some(rule) => {
                let fault = (&rule.fault, place);
                self.respond_broken(response, fault, fate, exchange, id, started).await
            }
        }
    }
}

/// Since when an exchange goes on.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// Its head had arrived.
    pub(super) started: SimTime,
    /// All of it had.
    pub(super) received: SimTime,
}

/// An entry in the table of generations that is closed whatever happens to its connection's task.
pub(super) struct OpenGeneration<'a> {
    io: Rc<Io>,
    pub(super) address: Address,
    is_open: bool,
    request: &'a RequestId,
}

impl<'a> OpenGeneration<'a> {
    fn new(io: &Rc<Io>, address: Address, request: &'a RequestId) -> Self {
        Self { io: Rc::clone(io), address, is_open: true, request }
    }

    /// All tokens exist and, for a stream, are sent.
    fn complete(&mut self) -> Option<Ended> {
        self.is_open = false;
        let ended = self.io.complete(self.address);
        self.note_fault(ended.as_ref());
        ended
    }

    /// The engine still works on some of it, and must stop.
    pub(super) fn give_up(&mut self, outcome: Outcome) -> Option<Ended> {
        self.is_open = false;
        let ended = self.io.give_up(self.address, outcome);
        self.note_fault(ended.as_ref());
        ended
    }

    /// Counts a fault that has changed bytes.
    fn note_fault(&self, ended: Option<&Ended>) {
        let Some(fault) = ended.and_then(|ended| ended.struck.as_deref()) else { return };
        if let Some(rule) = &fault.rule {
            let (request, now) = (self.request.as_str(), self.io.clock.now());
            self.io.served.faults.count(&fault.model, rule, request, now);
        }
    }
}

impl Drop for OpenGeneration<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.io.give_up(self.address, Outcome::Cut);
        }
    }
}
