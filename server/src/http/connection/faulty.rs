//! What a fault on purpose does to a connection.
//!
//! Whom it hits is decided elsewhere; here it happens: an error instead of an answer, silence, the
//! end of the connection, a head that takes its time, a stream or a body that breaks off. The
//! invariant: a fault ends in one of the ways in which an exchange ends anyway, so that nothing it holds (a
//! generation, its jobs, their blocks, the connection) outlives it.

use std::future::Future as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use llmsim_engine::faults::{End, Fault, Rule, Style};
use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};

use super::super::head::Head;
use super::super::response::{self, Exchange, RequestId, Response};
use super::conn::Signal;
use super::generate::{MOST_PIPELINED, OpenGeneration};
use super::link::{Link, Received, Turn};
use super::{Close, millis};
use crate::api::answer::Answer;
use crate::faults::in_stream::{InStream, Voice, error_event, malform};
use crate::faults::{Verdict, limit_headers, respond};
use crate::gpu_thread::Address;
use crate::helper::{self, Length};
use crate::metrics::record::Outcome;
use crate::stream::Sent;

/// What is still to befall an exchange whose answer has been let through.
#[derive(Default)]
pub(super) struct Fate {
    verdict: Option<Box<Verdict>>,
    path: String,
    /// What the answer says that it is.
    pub(super) content_type: Option<String>,
    /// How long its head takes.
    slow_head: Option<SimSpan>,
    /// What is left of rate limits.
    pub(super) headers: Vec<(&'static str, String)>,
}

/// A request, and what is to befall it.
type Asked = (Arc<Head>, Vec<u8>, Result<Option<Verdict>, ApiError>);

/// What has befallen a request before its answer.
pub(super) enum Befallen {
    /// It has been answered, in a way.
    Answered,
    /// Its answer is let through.
    GoesOn(Fate),
}

/// As long as anyone would wait.
const FOR_EVER: SimSpan = SimSpan::from_ms(7 * 86_400_000);

/// Parts in which a slow head is sent, at most one each so often.
const DRIP: SimSpan = SimSpan::from_ms(10);

impl Link {
    /// What is to befall a request that something may befall.
    pub(super) async fn ask(&self, head: Arc<Head>, body: Vec<u8>, now: SimTime) -> Asked {
        let faults = &self.io.served.faults;
        let load = self.io.observatory.in_flight();
        if faults.is_quick(body.len()) {
            let verdict = faults.ask(&head, &body, load, now);
            return (head, body, verdict);
        }
        let faults = Arc::clone(faults);
        helper::run(&self.io.helper, Length::of_bytes(body.len()), move || {
            let verdict = faults.ask(&head, &body, load, now);
            (head, body, verdict)
        })
        .await
    }

    /// Lets befall a request what comes before its answer.
    pub(super) async fn befall(
        &mut self,
        verdict: Verdict,
        path: &str,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<Befallen, Close> {
        let mut fate = Fate { path: path.to_owned(), ..Fate::default() };
        if let Some(rule) = &verdict.before {
            self.note_fault(&verdict.model, rule, id);
            if rule.delay > SimSpan::ZERO {
                self.pause(rule.delay).await?;
            }
            let model = &verdict.model;
            if let Some(response) = respond::response(rule, path, model, id.as_str()) {
                self.respond(response, exchange, id, started).await?;
                return Ok(Befallen::Answered);
            }
            match &rule.fault {
                Fault::Hang(time) => {
                    self.pause(time.unwrap_or(FOR_EVER)).await?;
                    return Err(Close::Done);
                }
                Fault::Close => return Err(Close::Done),
                Fault::Reset => return Err(Close::Reset),
                Fault::SlowHeaders(span) => fate.slow_head = Some(*span),
                Fault::ContentType(content_type) => fate.content_type = Some(content_type.clone()),
                _ => {}
            }
        }
        fate.verdict = Some(Box::new(verdict));
        Ok(Befallen::GoesOn(fate))
    }

    /// Counts an answer for its rate limits; gives the refusal if it is too much for one.
    pub(super) fn charge(
        &self,
        fate: &mut Fate,
        answer: &Answer,
        id: &RequestId,
    ) -> Option<Response> {
        let verdict = fate.verdict.as_ref().filter(|verdict| verdict.has_limits())?;
        let tokens = answer.lanes.iter().fold(0_u32, |all, lane| {
            let prompt = if lane.counts_prompt { lane.prompt.get() } else { 0 };
            all.saturating_add(prompt).saturating_add(lane.longest().get())
        });
        match self.io.served.faults.charge(verdict, tokens, self.io.clock.now()) {
            Ok(left) => {
                fate.headers = limit_headers(&left, &fate.path);
                None
            }
            Err(refused) => {
                let (exceeded, rule) = *refused;
                self.note_fault(&verdict.model, &rule, id);
                let model = &verdict.model;
                Some(respond::rate_limited(&exceeded, &fate.path, model, id.as_str()))
            }
        }
    }

    /// Answers as [`Link::respond`] does, under what the fate still holds.
    pub(super) async fn respond_fated(
        &mut self,
        mut response: Response,
        fate: &Fate,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        if let Some(content_type) = &fate.content_type {
            response.content_type = content_type.clone().into();
        }
        response.headers.extend(fate.headers.iter().cloned());
        if fate.slow_head.is_none() {
            return self.respond(response, exchange, id, started).await;
        }
        let all = response.body.len();
        let sent = self.begin(&response, all, fate, exchange, id, started).await;
        self.io.discard(response.body);
        sent
    }

    /// Sends a response as far as the first `most` bytes of its body.
    async fn begin(
        &mut self,
        response: &Response,
        most: usize,
        fate: &Fate,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        let mut head = Vec::with_capacity(512);
        let elapsed = millis(self.io.clock.now().saturating_since(started));
        let date = self.io.date();
        let begun = response::write(&mut head, response, 0, exchange, id, elapsed, &date);
        match fate.slow_head {
            Some(span) => self.drip(&head, span).await?,
            None => self.send_all(&head).await?,
        }
        self.send_all(&response.body[begun.min(most)..most]).await
    }

    /// Answers with a body that a fault befalls, where `place` says.
    pub(super) async fn respond_broken(
        &mut self,
        mut response: Response,
        (fault, place): (&Fault, usize),
        fate: &Fate,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        match fault {
            Fault::MalformedJson { .. } => malform(0, &mut response.body),
            Fault::InvalidUtf8 { .. } => response.body.insert(place, 0xff),
            Fault::Stop { end: End::Clean, .. } => response.body.truncate(place),
            _ => {
                response.headers.extend(fate.headers.iter().cloned());
                if let Some(content_type) = &fate.content_type {
                    response.content_type = content_type.clone().into();
                }
                self.begin(&response, place, fate, exchange, id, started).await?;
                return match fault {
                    Fault::Stall { span, .. } => {
                        self.pause(*span).await?;
                        self.send_all(&response.body[place..]).await
                    }
                    Fault::Stop { end: End::Silence, .. } => {
                        self.pause(FOR_EVER).await?;
                        Err(Close::Done)
                    }
                    Fault::Stop { end: End::Reset, .. } => Err(Close::Reset),
                    _ => Err(Close::Done),
                };
            }
        }
        self.respond_fated(response, fate, exchange, id, started).await
    }

    /// What the generation of a body is told of its fate.
    pub(super) fn in_body(fate: &mut Fate) -> Option<Box<InStream>> {
        let verdict = fate.verdict.as_mut()?;
        let rule = verdict.stream.take()?;
        Some(Box::new(InStream::new(Some(rule), None, verdict.model.clone())))
    }

    /// What a stream's generation is told of its fate.
    pub(super) fn in_stream(fate: &mut Fate) -> Option<Box<InStream>> {
        let verdict = fate.verdict.as_mut()?;
        let rule = verdict.stream.take();
        if rule.is_none() && fate.slow_head.is_none() {
            return None;
        }
        Some(Box::new(InStream::new(rule, fate.slow_head, verdict.model.clone())))
    }

    /// Does what the fault of a generation says that has come to its gate. `Ok(true)`: the stream
    /// goes on; `Ok(false)`: the exchange is over.
    pub(super) async fn strike(
        &mut self,
        open: &mut OpenGeneration<'_>,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
        fate: &Fate,
    ) -> Result<bool, Close> {
        let (address, chunked) = (open.address, !exchange.is_http10);
        let (slow_head, rule, model) = {
            let generations = self.io.generations.borrow();
            let Some(fault) = generations.fault(address) else { return Err(Close::Gone) };
            let slow_head = fault.slow_head.filter(|_| fault.holds_head());
            (slow_head, fault.rule.clone(), fault.model.clone())
        };
        if let Some(span) = slow_head {
            let head = self.io.generations.borrow().next_bytes(address);
            self.drip(&head, span).await?;
            self.go_on(address);
            return Ok(true);
        }
        let Some(rule) = rule else { return Err(Close::Gone) };
        self.note_fault(&model, &rule, id);
        match rule.fault {
            Fault::Stall { span, .. } => {
                if let Err(close) = self.pause(span).await {
                    open.give_up(Outcome::Disconnected);
                    return Err(close);
                }
                self.go_on(address);
                return Ok(true);
            }
            Fault::Stop { end, .. } => {
                open.give_up(Outcome::Faulted);
                match end {
                    End::Clean => {
                        if chunked {
                            self.send_all(LAST_CHUNK).await?;
                        }
                    }
                    End::Close => return Err(Close::Done),
                    End::Reset => return Err(Close::Reset),
                    End::Silence => {
                        self.pause(FOR_EVER).await?;
                        return Err(Close::Done);
                    }
                }
            }
            Fault::TruncatedEvent { .. } => {
                let unit = self.io.generations.borrow().next_bytes(address);
                open.give_up(Outcome::Faulted);
                self.send_all(&unit[..unit.len() / 2]).await?;
                return Err(Close::Done);
            }
            Fault::ErrorEvent { style, .. } => {
                let voice = self.io.generations.borrow().voice(address, style, id.as_str());
                let error = ApiError::internal();
                match open.give_up(Outcome::Faulted) {
                    Some(ended) if !ended.answer.is_stream => {
                        let mut response = exchange.dialect.error(&error, id);
                        if style == Style::Vllm && !matches!(voice, Voice::Anthropics(_)) {
                            response.body = error.vllm_body();
                        }
                        self.respond_fated(response, fate, exchange, id, started).await?;
                    }
                    _ => self.end_with_error(voice, &error, chunked).await?,
                }
            }
            _ => unreachable!("no other fault has a gate"),
        }
        Ok(false)
    }

    /// The simulated GPU has crashed under a generation: a 500 if nothing has been sent, an error
    /// event as vLLM sends it if the stream has begun.
    pub(super) async fn crash(
        &mut self,
        open: &mut OpenGeneration<'_>,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        let sent = self.io.generations.borrow().sent(open.address);
        let voice = self.io.generations.borrow().voice(open.address, Style::Vllm, id.as_str());
        if open.give_up(Outcome::Faulted).is_none() {
            return Err(Close::Gone);
        }
        let error = ApiError::crashed();
        match sent {
            Sent::Nothing => {
                let response = exchange.dialect.error(&error, id);
                self.respond(response, exchange, id, started).await
            }
            Sent::WholeUnits => self.end_with_error(voice, &error, !exchange.is_http10).await,
            // Nothing can be said in the middle of a chunk.
            Sent::PartOfUnit => Err(Close::Done),
        }
    }

    async fn end_with_error(
        &mut self,
        voice: Voice<'_>,
        error: &ApiError,
        chunked: bool,
    ) -> Result<(), Close> {
        let mut bytes = Vec::new();
        let chunk = chunked.then(|| OpenChunk::open(&mut bytes));
        error_event(voice, error, &mut bytes);
        if let Some(chunk) = chunk {
            chunk.close(&mut bytes);
            bytes.extend_from_slice(LAST_CHUNK);
        }
        self.send_all(&bytes).await
    }

    fn go_on(&self, address: Address) {
        self.io.go_on(address);
    }

    fn note_fault(&self, model: &str, rule: &Rule, id: &RequestId) {
        self.io.served.faults.count(model, rule, id.as_str(), self.io.clock.now());
    }

    /// Sends bytes over so much time, a few at a time.
    async fn drip(&mut self, bytes: &[u8], span: SimSpan) -> Result<(), Close> {
        let parts = (span.as_ns() / DRIP.as_ns()).clamp(1, bytes.len().max(1) as u64);
        let size = bytes.len().div_ceil(parts as usize).max(1);
        let wait = SimSpan::from_ns(span.as_ns() / bytes.len().div_ceil(size).max(1) as u64);
        for part in bytes.chunks(size) {
            self.pause(wait).await?;
            self.send_all(part).await?;
        }
        Ok(())
    }

    /// Waits, unless the client goes or the server is cut. A server that ends waits for what is
    /// under way: where nothing will come, that is nothing.
    async fn pause(&mut self, span: SimSpan) -> Result<(), Close> {
        if span == FOR_EVER && self.io.is_draining() {
            return Err(Close::Gone);
        }
        let mut timer = pin!(monoio::time::sleep(Duration::from_nanos(span.as_ns())));
        self.conn.never_expire();
        loop {
            let reads = self.buffer.len() < MOST_PIPELINED;
            let turn = {
                let mut turn = pin!(self.turn(reads, false));
                std::future::poll_fn(|cx| {
                    if timer.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(None);
                    }
                    turn.as_mut().poll(cx).map(Some)
                })
                .await
            };
            match turn {
                None => return Ok(()),
                Some(Turn::Writable) => {}
                Some(Turn::Readable) => match self.receive() {
                    Ok(0) | Err(Received::Broken) => return Err(Close::Gone),
                    Ok(_) | Err(Received::Nothing) => {}
                },
                Some(Turn::Signalled) => {
                    self.conn.take(Signal::Generation);
                    self.conn.take(Signal::Expired);
                    let is_draining = self.conn.take(Signal::Drain);
                    if self.conn.is_set(Signal::Cut) || is_draining && span == FOR_EVER {
                        return Err(Close::Gone);
                    }
                }
            }
        }
    }
}
