//! One connection: its socket, what can happen to it, and the loop that serves it.
//!
//! All bytes are moved by non-blocking calls of our own; the runtime only says when a socket is
//! ready. That is the same code on io_uring and epoll, keeps no buffer pinned per idle connection,
//! and lets a wait be given up without losing bytes. The invariant: at any time at most one of the
//! connection's task and the generation table writes to the socket. The task hands the socket over
//! when it opens a generation, and has it back when it has closed it.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::BytesMut;
use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};
use monoio::net::TcpStream;

mod faulty;

use self::faulty::{Befallen, Fate};
use super::body::{BodyReader, Progress};
use super::head::{self, Head};
use super::response::{self, Exchange, Extra, RequestId, Response, SSE};
use crate::api::answer::{Answer, MOST_TOKENS_INLINE};
use crate::api::{self, Dialect, Reply};
use crate::gpu_thread::Address;
use crate::helper::{self, Length};
use crate::io_thread::Io;
use crate::metrics::record::Outcome;
use crate::stream::{Delivery, Ended, State, WRITE_SIZE};
use crate::sys;
use crate::tls::{Handshake, Session, Tls};

/// What the rest of its thread knows of a connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    /// With TLS, once its handshake is done: what stands between the socket and everyone else.
    tls: OnceCell<Box<RefCell<Session>>>,
    waker: RefCell<Option<Waker>>,
    signals: Cell<u8>,
    /// When the present wait is over, in nanoseconds of the server's clock.
    expires: Cell<u64>,
}

/// Why a connection's task is woken, beside its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Look at the generation's state.
    Generation = 1,
    /// The wait took too long.
    Expired = 2,
    /// The server drains: serve nothing new.
    Drain = 4,
    /// The server stops: give up what is under way.
    Cut = 8,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            tls: OnceCell::new(),
            waker: RefCell::new(None),
            signals: Cell::new(0),
            expires: Cell::new(u64::MAX),
        }
    }

    /// Sends what the socket takes now; never waits. After anything less than all, the next call must
    /// begin with the bytes that were not counted: with TLS some of them may be under way.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing; else the connection is broken.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => sys::send(&self.stream, bytes),
            Some(session) => session.borrow_mut().send(&mut sys::Now(&self.stream), bytes),
        }
    }

    /// Its socket's number, if what is sent goes there as it is.
    pub(crate) fn plain(&self) -> Option<sys::Number> {
        self.tls.get().is_none().then(|| sys::Number::of(&self.stream))
    }

    /// Appends what has arrived to `into`; never waits. Zero is the end.
    fn receive(&self, scratch: &mut [u8], into: &mut BytesMut) -> io::Result<usize> {
        match self.tls.get() {
            None => {
                let count = sys::receive(&self.stream, scratch)?;
                into.extend_from_slice(&scratch[..count]);
                Ok(count)
            }
            Some(session) => {
                let mut wire = sys::Now(&self.stream);
                session.borrow_mut().receive(&mut wire, into, scratch.len())
            }
        }
    }

    /// Whether the client has ended its side in a way that the socket does not show.
    fn has_ended(&self) -> bool {
        self.tls.get().is_some_and(|session| session.borrow().has_ended())
    }

    /// With TLS: says that nothing more will come.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take it yet: call again. Else the connection is broken.
    fn take_leave(&self) -> io::Result<()> {
        match self.tls.get() {
            None => Ok(()),
            Some(session) => session.borrow_mut().close(&mut sys::Now(&self.stream)),
        }
    }

    /// Leaves word for the connection's task and wakes it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.signals.set(self.signals.get() | signal as u8);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Signals expiry if it is time.
    pub(crate) fn sweep(&self, now: SimTime) {
        if now.as_ns() >= self.expires.get() {
            self.expires.set(u64::MAX);
            self.signal(Signal::Expired);
        }
    }

    fn take(&self, signal: Signal) -> bool {
        let is_set = self.signals.get() & signal as u8 != 0;
        self.signals.set(self.signals.get() & !(signal as u8));
        is_set
    }

    fn is_set(&self, signal: Signal) -> bool {
        self.signals.get() & signal as u8 != 0
    }
}

/// The connection as its own task sees it.
struct Link {
    io: Rc<Io>,
    conn: Rc<Conn>,
    /// Bytes that were read and not yet used.
    buffer: BytesMut,
    /// A wait for the socket that is under way. It survives the phase that began it, since giving
    /// it up and asking anew costs the kernel twice.
    readable: Option<Ready>,
    writable: Option<Ready>,
}

type Ready = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The socket or a signal, whichever comes first.
enum Turn {
    Readable,
    Writable,
    Signalled,
}

/// Why a connection ends.
enum Close {
    /// The client closed, vanished or broke off, or nothing was said: there is nothing to wait for.
    Gone,
    /// All is said: close in good order.
    Done,
    /// On purpose, and not in good order.
    Reset,
}

/// The most bytes read ahead while an answer is under way; a client that pipelines more waits.
const MOST_PIPELINED: usize = 64 * 1024;

/// How often a connection that is not read, since so much is pipelined, is asked whether its client
/// is still there.
const LOOK_FOR_CLIENT: SimSpan = SimSpan::from_ms(500);

/// The most bytes of an oversized body that are read and dropped before its sender gets the 413
/// with the connection's end instead.
const MOST_DRAINED: u64 = 64 * 1024 * 1024;

/// How long a closing connection waits for its client to have read all.
const LINGER: SimSpan = SimSpan::from_ms(1_000);

/// Serves a connection until it ends.
pub(crate) async fn serve(io: Rc<Io>, conn: Rc<Conn>) {
    let mut link = Link { io, conn, buffer: BytesMut::new(), readable: None, writable: None };
    match link.run().await {
        Err(Close::Done) => link.linger().await,
        // If the socket takes it: whoever reads no more, or is gone, does not wait for it.
        Err(Close::Gone) => drop(link.conn.take_leave()),
        // Where it cannot be had, an ordinary end has to do.
        Err(Close::Reset) => drop(sys::reset_on_close(&link.conn.stream)),
    }
}

/// Tells a client that there are too many connections, and closes. With TLS it only closes: to say
/// anything would take a handshake, which is what there are too many of.
pub(crate) async fn turn_away(io: Rc<Io>, conn: Rc<Conn>, limit: usize) {
    if io.tls.is_some() {
        return;
    }
    let mut link = Link { io, conn, buffer: BytesMut::new(), readable: None, writable: None };
    link.expire_in(LINGER);
    // Most clients have sent their request by now; reading it keeps the answer from being lost to
    // the reset that unread bytes would cause.
    let _ = link.fill().await;
    let error = ApiError::too_many_connections(limit);
    let exchange = Exchange {
        is_http10: false,
        keep_alive: false,
        head_only: false,
        dialect: Dialect::OpenAi,
    };
    let id = link.io.request_id(None);
    if link.respond(api::error(&error), exchange, &id, link.io.clock.now()).await.is_ok() {
        link.linger().await;
    }
}

impl Link {
    /// Request after request. It has no `Ok`, since a connection ends only by a reason to close.
    async fn run(&mut self) -> Result<std::convert::Infallible, Close> {
        if let Some(tls) = self.io.tls.clone() {
            self.secure(&tls).await?;
        }
        loop {
            let head = self.read_head().await?;
            self.exchange(head).await?;
            if !self.buffer.is_empty() {
                // It has sent the next request already. Everybody else comes first.
                self.io.give_way().await;
                self.io.tend();
            }
        }
    }

    /// Makes the connection a TLS one.
    async fn secure(&mut self, tls: &Tls) -> Result<(), Close> {
        let (handshake, session) = match self.shake_hands(tls).await {
            Ok(session) => (Handshake::Done, Some(session)),
            Err(why) => (why, None),
        };
        self.io.shard.handshakes[handshake as usize].add(1);
        match session {
            Some(mut session) => {
                // A request may have come with the end of the handshake.
                session.plaintext(&mut self.buffer);
                let _ = self.conn.tls.set(Box::new(RefCell::new(session)));
                Ok(())
            }
            None if handshake == Handshake::PlainHttp => {
                let error = ApiError::malformed_http(
                    "plain HTTP on a port that speaks HTTPS. Begin the URL with https://.",
                );
                self.refuse_and_close(Dialect::OpenAi, &error).await
            }
            None => Err(Close::Gone),
        }
    }

    /// A handshake within the time for a request's head.
    async fn shake_hands(&mut self, tls: &Tls) -> Result<Session, Handshake> {
        self.expire_in(self.io.served.limits.head);
        let mut session = Session::new(&tls.identity).map_err(|_| Handshake::Failed)?;
        loop {
            self.handshake_turn(true, false).await?;
            match session.take_in(&mut sys::Now(&self.conn.stream)) {
                Ok(0) => return Err(Handshake::Closed),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => continue,
                    _ => return Err(Handshake::Closed),
                },
            }
            if session.may_be_http() {
                return Err(Handshake::PlainHttp);
            }
            let advanced;
            (session, advanced) = helper::run(&tls.helper, Length::Short, move || {
                let advanced = session.advance();
                (session, advanced)
            })
            .await;
            loop {
                match session.flush(&mut sys::Now(&self.conn.stream)) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.handshake_turn(false, true).await?;
                    }
                    Err(_) => return Err(Handshake::Closed),
                }
            }
            // After the flush: what went wrong is said to the client, too.
            if advanced.is_err() {
                return Err(Handshake::Failed);
            }
            if !session.is_handshaking() {
                return Ok(session);
            }
        }
    }

    /// Waits for the socket for as long as a handshake may take.
    async fn handshake_turn(&mut self, read: bool, write: bool) -> Result<(), Handshake> {
        loop {
            match self.turn(read, write).await {
                Turn::Readable | Turn::Writable => return Ok(()),
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    if self.conn.take(Signal::Expired) {
                        return Err(Handshake::TimedOut);
                    }
                    // Nothing is under way here that a drain would wait for.
                    if self.conn.take(Signal::Drain) || self.conn.is_set(Signal::Cut) {
                        return Err(Handshake::Closed);
                    }
                }
            }
        }
    }

    async fn read_head(&mut self) -> Result<Head, Close> {
        let mut is_idle = true;
        self.expire_in(self.io.served.limits.idle);
        loop {
            let dialect = Dialect::of_line(&self.buffer);
            match head::take(&mut self.buffer) {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(bad) => {
                    let error = api::bad_head(bad);
                    return self.refuse_and_close(dialect, &error).await;
                }
            }
            if is_idle && !self.buffer.is_empty() {
                is_idle = false;
                self.expire_in(self.io.served.limits.head);
            }
            if is_idle && self.io.is_draining() {
                return Err(Close::Gone);
            }
            match self.fill().await {
                Ok(0) => return Err(Close::Gone),
                Ok(_) => {}
                Err(Broken::Expired) if is_idle => return Err(Close::Gone),
                Err(Broken::Expired) => {
                    let seconds = self.io.served.limits.head.as_ns() / 1_000_000_000;
                    let error = ApiError::request_timeout(seconds);
                    return self.refuse_and_close(dialect, &error).await;
                }
                Err(Broken::Drain) if is_idle => return Err(Close::Gone),
                Err(Broken::Drain) => {}
                Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
            }
        }
    }

    async fn exchange(&mut self, mut head: Head) -> Result<(), Close> {
        let started = self.io.clock.now();
        let id = self.io.request_id(head.headers.get("x-request-id").map(|id| id.as_bytes()));
        let mut exchange = Exchange {
            is_http10: head.is_http10,
            keep_alive: head.keep_alive,
            head_only: head.method == http::Method::HEAD,
            dialect: Dialect::of(&head),
        };
        let route = api::route(&head);
        let mut body = match self.read_body(&head, &mut exchange, &id, started).await? {
            Some(body) => body,
            None => return self.after(exchange),
        };
        let received = self.io.clock.now();
        if self.io.is_draining() {
            exchange.keep_alive = false;
        }
        let mut fate = Fate::default();
        let verdict;
        (head, body, verdict) = self.ask(head, body, received).await;
        match verdict {
            Ok(None) => {}
            Ok(Some(verdict)) => {
                let path = head.uri.path();
                match self.befall(verdict, path, exchange, &id, started).await? {
                    Befallen::Answered => return self.after(exchange),
                    Befallen::GoesOn(left) => fate = left,
                }
            }
            Err(error) => {
                self.respond(api::error(&error), exchange, &id, started).await?;
                return self.after(exchange);
            }
        }
        let reply = api::answer(&self.io, route, &head, body, &id).await;
        // An open stream need not keep its request's headers.
        drop(head);
        match reply {
            Reply::Whole(response) => {
                self.respond_fated(response, &fate, exchange, &id, started).await?;
            }
            Reply::Feed => {
                exchange.keep_alive = false;
                self.feed(exchange, &id, started).await?;
            }
            Reply::Generate(answer) => {
                if answer.is_stream && exchange.is_http10 {
                    // Without chunks, only the end of the connection can end the stream.
                    exchange.keep_alive = false;
                }
                match self.charge(&mut fate, &answer, &id) {
                    Some(refusal) => self.respond(refusal, exchange, &id, started).await?,
                    None => {
                        let times = Times { started, received };
                        self.generate(*answer, exchange, &id, times, fate).await?;
                    }
                }
            }
        }
        self.after(exchange)
    }

    fn after(&self, exchange: Exchange) -> Result<(), Close> {
        if exchange.keep_alive { Ok(()) } else { Err(Close::Done) }
    }

    /// The body, or nothing if the request has been answered already since it was too large.
    async fn read_body(
        &mut self,
        head: &Head,
        exchange: &mut Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<Option<Vec<u8>>, Close> {
        let limit = self.io.served.limits.body;
        let dialect = exchange.dialect;
        let too_large = || dialect.error(&ApiError::body_too_large(limit as u64), id);
        let mut reader = BodyReader::new(head.framing, limit);
        self.expire_in(self.io.served.limits.body_time);
        let mut progress = reader.advance(&mut self.buffer);
        if head.expects_continue && progress == Ok(Progress::Unfinished) {
            if matches!(head.framing, head::Framing::Length(length) if length > limit as u64) {
                exchange.keep_alive = false;
                self.respond(too_large(), *exchange, id, started).await?;
                return Ok(None);
            }
            self.send_all(response::CONTINUE).await?;
        }
        loop {
            match progress {
                Ok(Progress::Whole) => return Ok(Some(reader.into_body())),
                Ok(Progress::TooLarge) => {
                    self.respond(too_large(), *exchange, id, started).await?;
                    return Ok(None);
                }
                Ok(Progress::Unfinished) if reader.dropped() > MOST_DRAINED => {
                    exchange.keep_alive = false;
                    self.respond(too_large(), *exchange, id, started).await?;
                    return Ok(None);
                }
                Ok(Progress::Unfinished) => {}
                Err(bad) => {
                    let error = ApiError::malformed_http(bad.0);
                    return self.refuse_and_close(exchange.dialect, &error).await;
                }
            }
            match self.fill().await {
                Ok(0) => return Err(Close::Gone),
                Ok(_) => {}
                Err(Broken::Expired) => {
                    let seconds = self.io.served.limits.body_time.as_ns() / 1_000_000_000;
                    let error = ApiError::request_timeout(seconds);
                    return self.refuse_and_close(exchange.dialect, &error).await;
                }
                Err(Broken::Drain) => {}
                Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
            }
            progress = reader.advance(&mut self.buffer);
        }
    }

    /// Answers something that cannot be a request, and ends the connection: where the next request
    /// would begin is not known.
    async fn refuse_and_close<T>(
        &mut self,
        dialect: Dialect,
        error: &ApiError,
    ) -> Result<T, Close> {
        let exchange = Exchange { is_http10: false, keep_alive: false, head_only: false, dialect };
        let id = self.io.request_id(None);
        let now = self.io.clock.now();
        self.respond(dialect.error(error, &id), exchange, &id, now).await?;
        Err(Close::Done)
    }

    /// Sends a response. Of its body no more is copied than goes out with the head, and a long one is
    /// given back to the system by a helper: that takes as long as putting it together.
    async fn respond(
        &mut self,
        response: Response,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        const BESIDE_HEAD: usize = WRITE_SIZE - 2048;
        let mut bytes = Vec::with_capacity(512 + response.body.len().min(BESIDE_HEAD));
        let elapsed = millis(self.io.clock.now().saturating_since(started));
        let date = self.io.date();
        let begun =
            response::write(&mut bytes, &response, BESIDE_HEAD, exchange, id, elapsed, &date);
        let mut sent = self.send_all(&bytes).await;
        if sent.is_ok() {
            sent = self.send_all(&response.body[begun..]).await;
        }
        self.io.discard(response.body);
        sent
    }

    async fn generate(
        &mut self,
        answer: Answer,
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
            Err(refusal) => return self.respond(refusal, exchange, id, started).await,
        };
        let mut open = OpenGeneration::new(&self.io, address, id);
        self.conn.expires.set(u64::MAX);
        let mut looks_for_client = false;
        loop {
            let reads = self.buffer.len() < MOST_PIPELINED;
            let state = self.io.generations.borrow().state(address);
            match state {
                State::Running => {
                    if !reads && self.conn.expires.get() == u64::MAX {
                        looks_for_client = true;
                        self.expire_in(LOOK_FOR_CLIENT);
                    }
                }
                State::Blocked => {
                    if looks_for_client || self.conn.expires.get() == u64::MAX {
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
                    let refusal = ended.answer.refused(lane, why);
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
                    self.conn.expires.set(u64::MAX);
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

    /// An event a second until the client goes or the server drains.
    async fn feed(
        &mut self,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        const PERIOD: SimSpan = SimSpan::from_ms(1_000);
        let mut bytes = Vec::with_capacity(512);
        let elapsed = self.io.clock.now().saturating_since(started);
        let date = self.io.date();
        response::write_stream_head(
            &mut bytes,
            exchange,
            id,
            millis(elapsed),
            &date,
            Extra { content_type: SSE, headers: &[] },
        );
        self.send_all(&bytes).await?;
        while !exchange.head_only && !self.io.is_draining() {
            let event = api::metrics::live_event(&self.io).await;
            bytes.clear();
            let chunk = (!exchange.is_http10).then(|| OpenChunk::open(&mut bytes));
            bytes.extend_from_slice(&event);
            if let Some(chunk) = chunk {
                chunk.close(&mut bytes);
            }
            self.send_all(&bytes).await?;
            self.expire_in(PERIOD);
            loop {
                match self.fill().await {
                    Ok(0) | Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
                    // Nothing more is answered on this connection.
                    Ok(_) => self.buffer.clear(),
                    Err(Broken::Expired | Broken::Drain) => break,
                }
            }
        }
        if !exchange.head_only && !exchange.is_http10 {
            self.send_all(LAST_CHUNK).await?;
        }
        Ok(())
    }

    /// The generation is over, and the socket is this task's again.
    async fn complete(
        &mut self,
        mut open: OpenGeneration,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
        fate: &Fate,
    ) -> Result<(), Close> {
        let Some(mut ended) = open.complete() else { return Err(Close::Gone) };
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

    /// Reads what there is into the buffer, waiting until there is something. Zero is the end of
    /// the client's side.
    async fn fill(&mut self) -> Result<usize, Broken> {
        loop {
            match self.turn(true, false).await {
                Turn::Writable => {}
                Turn::Readable => match self.receive() {
                    Ok(count) => return Ok(count),
                    Err(Received::Nothing) => {}
                    Err(Received::Broken) => return Err(Broken::Gone),
                },
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    if self.conn.take(Signal::Expired) {
                        return Err(Broken::Expired);
                    }
                    if self.conn.is_set(Signal::Cut) {
                        return Err(Broken::Cut);
                    }
                    if self.conn.take(Signal::Drain) {
                        return Err(Broken::Drain);
                    }
                }
            }
        }
    }

    fn receive(&mut self) -> Result<usize, Received> {
        let mut scratch = self.io.read_scratch.borrow_mut();
        match self.conn.receive(&mut scratch, &mut self.buffer) {
            Ok(count) => Ok(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(Received::Nothing),
                _ => Err(Received::Broken),
            },
        }
    }

    async fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), Close> {
        self.conn.expires.set(u64::MAX);
        while !bytes.is_empty() {
            match self.conn.send(&bytes[..bytes.len().min(WRITE_SIZE)]) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    if !bytes.is_empty() {
                        // However fast the client reads, others wait for one write at most.
                        self.io.tend();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.expire_in(self.io.served.limits.stall);
                    self.until_writable().await?;
                }
                Err(_) => return Err(Close::Gone),
            }
        }
        Ok(())
    }

    /// Waits until the socket takes bytes again, for as long as was set before.
    async fn until_writable(&mut self) -> Result<(), Close> {
        loop {
            match self.turn(false, true).await {
                Turn::Writable => return Ok(()),
                Turn::Readable => {}
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    self.conn.take(Signal::Drain);
                    if self.conn.take(Signal::Expired) || self.conn.is_set(Signal::Cut) {
                        return Err(Close::Gone);
                    }
                }
            }
        }
    }

    /// Closes our side and reads on for a moment: closing with unread bytes would reset the
    /// connection, and the client might lose the answer.
    async fn linger(&mut self) {
        self.expire_in(LINGER);
        while let Err(error) = self.conn.take_leave() {
            // Behind an answer that fills the socket there may be no room for it yet.
            if error.kind() != io::ErrorKind::WouldBlock || self.until_writable().await.is_err() {
                return;
            }
        }
        if sys::close_write(&self.conn.stream).is_err() {
            return;
        }
        let mut dropped = 0;
        while dropped < MOST_DRAINED as usize {
            self.buffer.clear();
            match self.fill().await {
                Ok(0) | Err(Broken::Expired | Broken::Cut | Broken::Gone) => return,
                Ok(count) => dropped += count,
                Err(Broken::Drain) => {}
            }
        }
    }

    fn expire_in(&self, span: SimSpan) {
        self.conn.take(Signal::Expired);
        self.conn.expires.set((self.io.clock.now() + span).as_ns());
    }

    /// Waits for the socket or a signal. What follows is work of this connection alone, so tokens
    /// that are due go first.
    async fn turn(&mut self, read: bool, write: bool) -> Turn {
        let turn = self.wait(read, write).await;
        self.io.tend();
        turn
    }

    async fn wait(&mut self, read: bool, write: bool) -> Turn {
        let Self { conn, readable, writable, .. } = self;
        poll_fn(|cx| {
            if conn.signals.get() != 0 {
                return Poll::Ready(Turn::Signalled);
            }
            if read && conn.has_ended() {
                return Poll::Ready(Turn::Readable);
            }
            if read {
                let ready = readable.get_or_insert_with(|| {
                    let conn = Rc::clone(conn);
                    Box::pin(async move { conn.stream.readable(false).await })
                });
                // An error of the wait shows again when the socket is read.
                if ready.as_mut().poll(cx).is_ready() {
                    *readable = None;
                    return Poll::Ready(Turn::Readable);
                }
            }
            if write {
                let ready = writable.get_or_insert_with(|| {
                    let conn = Rc::clone(conn);
                    Box::pin(async move { conn.stream.writable(false).await })
                });
                if ready.as_mut().poll(cx).is_ready() {
                    *writable = None;
                    return Poll::Ready(Turn::Writable);
                }
            }
            *conn.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Why a wait for bytes ended without any.
enum Broken {
    Expired,
    Drain,
    Cut,
    Gone,
}

enum Received {
    Nothing,
    Broken,
}

/// Since when an exchange goes on.
#[derive(Clone, Copy)]
struct Times {
    /// Its head had arrived.
    started: SimTime,
    /// All of it had.
    received: SimTime,
}

/// An entry in the table of generations that is closed whatever happens to its connection's task.
struct OpenGeneration {
    io: Rc<Io>,
    address: Address,
    is_open: bool,
    request: RequestId,
}

impl OpenGeneration {
    fn new(io: &Rc<Io>, address: Address, request: &RequestId) -> Self {
        Self { io: Rc::clone(io), address, is_open: true, request: request.clone() }
    }

    /// All tokens exist and, for a stream, are sent.
    fn complete(&mut self) -> Option<Ended> {
        self.is_open = false;
        let ended = self.io.complete(self.address);
        self.note_fault(ended.as_ref());
        ended
    }

    /// The engine still works on some of it, and must stop.
    fn give_up(&mut self, outcome: Outcome) -> Option<Ended> {
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

impl Drop for OpenGeneration {
    fn drop(&mut self) {
        if self.is_open {
            self.io.give_up(self.address, Outcome::Cut);
        }
    }
}

fn millis(span: SimSpan) -> u64 {
    span.as_ns() / 1_000_000
}
