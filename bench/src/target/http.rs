//! The client of a real server: connections that are warm before they are needed, one exchange per
//! request, each arrival stamped by the kernel, or when the read returns and before anything is
//! parsed.
//!
//! It decides nothing about when to send and knows no statistics. A failed request is never sent
//! again: what happened is what the record says.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::rc::{Rc, Weak};
use std::time::Duration;

use hdrhistogram::Histogram;
use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::sse::{SseEvent, SseParser};
use monoio::io::AsyncWriteRentExt;
use monoio::net::TcpStream;

use crate::chunk::{self, Usual};
use crate::clock::Clock;
use crate::http::answer::{Framing, Head, Reader};
use crate::http::tls::{Session, Tls, Trust};
use crate::http::url::{Scheme, Url};
use crate::local::{Stopped, Watch, give_way};
use crate::os::Received;
use crate::progress::Live;
use crate::record::{Failure, FailureClass, NO_REASON, Outcome, Record};

/// One read takes at most this much. The buffer is shared: a read never waits.
const READ_BYTES: usize = 64 * 1024;
/// The most kept of an error's body.
const MOST_ERROR_BODY: usize = 64 * 1024;
/// How often deadlines are looked at.
const SWEEP: Duration = Duration::from_millis(20);
/// How long the end of a body may take after `[DONE]`, which was the last that it had to say.
const AFTER_DONE: SimSpan = SimSpan::from_ms(1_000);
/// After so many reads the other streams of the thread have their turn, and the deadlines: a server
/// that sends faster than this reads would have the thread to itself.
const READS_AT_ONCE: u32 = 16;
/// An answer of more chunks than this for each token that was asked for, and then some, has no end.
/// Some servers send a token in two or three chunks.
const CHUNKS_PER_TOKEN: u32 = 8;
const SPARE_CHUNKS: u32 = 1_024;

/// A request in its final bytes, made before it is due.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Head and body as they go onto the wire.
    pub bytes: Vec<u8>,
    /// The most output tokens asked for.
    pub max_tokens: Option<u32>,
    /// Whether exactly that many must come.
    pub exact: bool,
    /// Prompt tokens that a prefix cache should hold by now (trace replay).
    pub expected_cached: Option<u32>,
}

/// Limits on how long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// To open a connection.
    pub connect: SimSpan,
    /// Before the first chunk and between chunks, whatever else comes meanwhile.
    pub silence: SimSpan,
}

/// The client of one server. Lives on one thread.
#[derive(Debug)]
pub struct Client {
    clock: Clock,
    addresses: Vec<SocketAddr>,
    /// Where it is https: with whom, by name.
    tls: Option<(Tls, String)>,
    /// What was decrypted of the last read.
    plain: RefCell<Vec<u8>>,
    timeouts: Timeouts,
    idle: RefCell<Vec<Connection>>,
    watches: RefCell<Vec<Weak<Watch>>>,
    opened: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
    stamps: Stamps,
    /// Whether the content of answers is kept.
    keep: bool,
    read_lag: RefCell<Histogram<u64>>,
    live: std::sync::Arc<Live>,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    local_port: u16,
    tls: Option<Box<Session>>,
}

/// Whose instant counts as the arrival of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamps {
    /// The kernel's, when the packet came in: free of what this client adds.
    Kernel,
    /// The return of the read.
    Read,
}

/// What becomes of the content of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texts {
    /// It is dropped: only its arrival counts.
    Drop,
    /// It is kept with the record, which costs a decoding of every chunk.
    Keep,
}

/// How an exchange may end early.
enum Broken {
    Failed(Failure),
    Interrupted,
}

/// How the agreement on keys may fail.
enum Secured {
    Refused(String),
    Stopped(Stopped),
}

impl From<String> for Secured {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl From<io::Error> for Secured {
    fn from(error: io::Error) -> Self {
        Self::Refused(format!("in the TLS handshake: {error}"))
    }
}

impl From<Stopped> for Secured {
    fn from(why: Stopped) -> Self {
        Self::Stopped(why)
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Client {
    /// Finds the address of the server; starts the task that watches deadlines.
    ///
    /// # Errors
    /// A sentence if the name cannot be resolved, or nobody can be trusted who is to be.
    pub fn start(
        clock: Clock,
        url: &Url,
        timeouts: Timeouts,
        stamps: Stamps,
        texts: Texts,
        live: std::sync::Arc<Live>,
        trust: &Trust,
    ) -> Result<Rc<Self>, String> {
        let tls = match url.scheme {
            Scheme::Http => None,
            Scheme::Https => {
                let tls = Tls::new(trust)?;
                tls.session(&url.host)?;
                Some((tls, url.host.clone()))
            }
        };
        let addresses: Vec<SocketAddr> = (url.host.as_str(), url.port)
            .to_socket_addrs()
            .map_err(|error| format!("{url}: cannot find host '{}': {error}", url.host))?
            .collect();
        if addresses.is_empty() {
            return Err(format!("{url}: host '{}' has no address", url.host));
        }
        let client = Rc::new(Self {
            clock,
            addresses,
            tls,
            plain: RefCell::default(),
            timeouts,
            idle: RefCell::new(Vec::new()),
            watches: RefCell::new(Vec::new()),
            opened: Cell::new(0),
            buffer: RefCell::new(vec![0; READ_BYTES]),
            stamps,
            keep: texts == Texts::Keep,
            read_lag: RefCell::new(no_lags()),
            live,
        });
        monoio::spawn(watch_deadlines(Rc::downgrade(&client)));
        Ok(client)
    }

    /// Opens connections until `wanted` are idle. Those that fail are left to the requests, whose
    /// records will say so.
    pub async fn warm(self: &Rc<Self>, wanted: u32) {
        /// More at once would overrun the accept queue of servers that keep the default of 128.
        const AT_ONCE: usize = 32;
        let missing = (wanted as usize).saturating_sub(self.idle.borrow().len());
        let left = Rc::new(Cell::new(missing));
        let openers: Vec<_> = (0..missing.min(AT_ONCE))
            .map(|_| {
                let (client, left) = (Rc::clone(self), Rc::clone(&left));
                monoio::spawn(async move {
                    while left.get() > 0 && !crate::os::interrupted() {
                        left.set(left.get() - 1);
                        let watch = client.watch(client.timeouts.connect);
                        match client.open(&watch).await {
                            Ok(connection) => client.idle.borrow_mut().push(connection),
                            Err(_) => left.set(0),
                        }
                    }
                })
            })
            .collect();
        for opener in openers {
            opener.await;
        }
    }

    /// Connections opened so far.
    pub fn opened(&self) -> u32 {
        self.opened.get()
    }

    /// Sends `request` and follows its answer to the end; all that happened is in `record`.
    pub async fn perform(&self, request: Prepared, record: &mut Record) {
        record.max_tokens = request.max_tokens;
        record.text = self.keep.then(String::new);
        record.expected_cached = request.expected_cached;
        let watch = self.watch(self.timeouts.connect);
        record.outcome = match self.exchange(&watch, request, record).await {
            Ok(finish) => Outcome::Finished(finish),
            Err(Broken::Failed(failure)) => Outcome::Failed(failure),
            Err(Broken::Interrupted) => Outcome::Interrupted,
        };
        if record.end <= record.scheduled {
            record.end = self.clock.now();
        }
    }

    async fn exchange(
        &self,
        watch: &Rc<Watch>,
        request: Prepared,
        record: &mut Record,
    ) -> Result<String, Broken> {
        let exact = request.exact;
        let mut connection = self.connection(watch, record).await?;
        let bytes = match &mut connection.tls {
            Some(tls) => tls.seal(&request.bytes),
            None => request.bytes,
        };
        watch.set(self.clock.now() + self.timeouts.silence);
        record.local_port = connection.local_port;
        record.sent = Some(self.clock.now());
        let written = self.write(watch, &mut connection, bytes, record).await?;
        // An early refusal may come before the server has read everything: look for it first.
        let unsent = written.err();
        let mut answer = Answer::default();
        let (finish, keep) =
            match self.read_answer(watch, &mut connection, &mut answer, record).await {
                Err(Broken::Failed(failure)) if failure.class == FailureClass::Unanswered => {
                    let detail = unsent.map_or(failure.detail, |error| error.to_string());
                    return Err(Failure::new(FailureClass::Unanswered, detail).into());
                }
                other => other?,
            };
        if keep {
            self.idle.borrow_mut().push(connection);
        }
        check_token_count(record, exact)?;
        Ok(finish)
    }

    /// Sends all of `bytes`: at once what the socket takes, so that the stamp of the send is true,
    /// the rest through the runtime.
    async fn write(
        &self,
        watch: &Rc<Watch>,
        connection: &mut Connection,
        mut bytes: Vec<u8>,
        record: &mut Record,
    ) -> Result<io::Result<usize>, Broken> {
        match crate::os::send_now(connection.stream.as_raw_fd(), &bytes) {
            Ok(sent) if sent == bytes.len() => Ok(Ok(sent)),
            Ok(sent) => {
                let rest = bytes.split_off(sent);
                let written = watch.guard(connection.stream.write_all(rest)).await;
                Ok(written.map_err(|why| self.stopped(why, record))?.0)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// An idle connection that is still good, else a new one.
    async fn connection(
        &self,
        watch: &Rc<Watch>,
        record: &mut Record,
    ) -> Result<Connection, Broken> {
        loop {
            let idle = self.idle.borrow_mut().pop();
            let Some(mut connection) = idle else { break };
            if self.is_good(&mut connection) {
                return Ok(connection);
            }
        }
        let began = self.clock.now();
        let opened = self.open(watch).await;
        let ended = self.clock.now();
        record.connect = Some(ended - began);
        opened.inspect_err(|_| record.end = ended)
    }

    /// Whether an idle connection can be used: nothing came that nobody asked for, but for the
    /// tickets of a TLS server.
    fn is_good(&self, connection: &mut Connection) -> bool {
        let fd = connection.stream.as_raw_fd();
        if !crate::os::has_unexpected_input(fd) {
            return true;
        }
        let Some(tls) = &mut connection.tls else { return false };
        let (mut buffer, mut plain) = (self.buffer.borrow_mut(), Vec::new());
        while let Ok(Some(received)) = crate::os::receive_now(fd, &mut buffer) {
            let taken = tls.take(&buffer[..received.bytes], &mut plain);
            if received.bytes == 0 || taken.is_err() || tls.has_ended() || !plain.is_empty() {
                return false;
            }
        }
        !crate::os::has_unexpected_input(fd)
    }

    /// Agrees with the server on keys; `None` where it speaks in the clear.
    async fn secure(
        &self,
        watch: &Rc<Watch>,
        stream: &mut TcpStream,
    ) -> Result<Option<Box<Session>>, Secured> {
        let Some((tls, host)) = &self.tls else { return Ok(None) };
        let mut session = Box::new(tls.session(host)?);
        loop {
            watch.go_on(self.clock.now())?;
            let records = session.outgoing();
            if !records.is_empty() {
                watch.guard(stream.write_all(records)).await?.0?;
            }
            if !session.is_handshaking() {
                return Ok(Some(session));
            }
            let ready = watch.guard(stream.readable(false)).await?;
            let mut buffer = self.buffer.borrow_mut();
            ready?;
            let fd = stream.as_raw_fd();
            let Some(received) = crate::os::receive_now(fd, &mut buffer)? else { continue };
            if received.bytes == 0 {
                return Err("closed in the TLS handshake".to_owned().into());
            }
            if let Err(why) = session.take(&buffer[..received.bytes], &mut Vec::new()) {
                // Best effort: the alert that says why.
                let _ = crate::os::send_now(fd, &session.outgoing());
                return Err(why.into());
            }
        }
    }

    async fn open(&self, watch: &Rc<Watch>) -> Result<Connection, Broken> {
        watch.set(self.clock.now() + self.timeouts.connect);
        let mut problem = None;
        for &address in &self.addresses {
            match watch.guard(TcpStream::connect_addr(address)).await {
                Ok(Ok(mut stream)) => {
                    // Without it Nagle's algorithm delays the second part of a request.
                    let _ = stream.set_nodelay(true);
                    let tls = match self.secure(watch, &mut stream).await {
                        Ok(tls) => tls,
                        Err(Secured::Stopped(Stopped::Interrupted)) => {
                            return Err(Broken::Interrupted);
                        }
                        Err(Secured::Stopped(Stopped::TimedOut)) => {
                            problem = Some(format!("{address}: no TLS handshake in time"));
                            break;
                        }
                        Err(Secured::Refused(why)) => {
                            problem = Some(format!("{address}: {why}"));
                            break;
                        }
                    };
                    self.opened.set(self.opened.get() + 1);
                    let local_port = stream.local_addr().map_or(0, |address| address.port());
                    if self.stamps == Stamps::Kernel {
                        crate::os::stamp_arrivals(stream.as_raw_fd());
                    }
                    return Ok(Connection { stream, local_port, tls });
                }
                Ok(Err(error)) => problem = Some(format!("{address}: {error}")),
                Err(Stopped::Interrupted) => return Err(Broken::Interrupted),
                Err(Stopped::TimedOut) => {
                    problem = Some(format!("{address}: no connection in time"));
                    break;
                }
            }
        }
        Err(Failure::new(FailureClass::Connect, problem.unwrap_or_default()).into())
    }

    /// Reads until the answer is complete: the finish reason, and whether the connection may be
    /// used again.
    async fn read_answer(
        &self,
        watch: &Rc<Watch>,
        connection: &mut Connection,
        answer: &mut Answer,
        record: &mut Record,
    ) -> Result<(String, bool), Broken> {
        let most_chunks = record
            .max_tokens
            .map(|tokens| tokens.saturating_mul(CHUNKS_PER_TOKEN).saturating_add(SPARE_CHUNKS));
        let mut reads = 0_u32;
        loop {
            reads = reads.wrapping_add(1);
            if reads.is_multiple_of(READS_AT_ONCE) {
                give_way().await;
            }
            let ready = match watch.guard(connection.stream.readable(false)).await {
                Ok(ready) => ready,
                Err(Stopped::TimedOut) if answer.has_said_all() => {
                    return Ok((answer.finish(record)?, false));
                }
                Err(why) => return Err(self.stopped(why, record)),
            };
            let mut buffer = self.buffer.borrow_mut();
            let read = ready
                .and_then(|()| crate::os::receive_now(connection.stream.as_raw_fd(), &mut buffer));
            let now = self.clock.now();
            let received = match read {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                Err(_) if answer.done => return Ok((answer.finish(record)?, false)),
                Err(error) => {
                    record.end = now;
                    return Err(answer.lost(&error).into());
                }
            };
            let at = self.arrival(now, &received);
            record.end = at;
            let got = received.bytes;
            let chunks = record.output.chunks;
            let (stage, was_done) = (answer.stage(record), answer.done);
            let taken = if got == 0 {
                answer.closed().map(|()| true)
            } else if let Some(tls) = &mut connection.tls {
                let mut plain = self.plain.borrow_mut();
                plain.clear();
                let wrong = |why| Failure::new(FailureClass::Malformed, why);
                tls.take(&buffer[..got], &mut plain).map_err(wrong).and_then(|()| {
                    let complete = answer.take(&plain, at, record)?;
                    if !complete && tls.has_ended() {
                        answer.closed()?;
                    }
                    Ok(complete || tls.has_ended())
                })
            } else {
                answer.take(&buffer[..got], at, record)
            };
            let complete = match taken {
                Ok(complete) => complete,
                Err(_) if was_done => return Ok((answer.finish(record)?, false)),
                Err(failure) => return Err(failure.into()),
            };
            self.live.chunks(chunks, record, at);
            if let Some(most) = most_chunks
                && record.output.chunks > most
            {
                let asked = record.max_tokens.unwrap_or_default();
                // The limit and not the count, which depends on how much a read brings: failures
                // alike are told alike.
                let detail =
                    format!("no end after {most} chunks where {asked} tokens were asked for");
                return Err(Failure::new(FailureClass::WrongTokenCount, detail).into());
            }
            // Only what brings the answer on counts: a server may send comments, empty chunks or an
            // error's body for ever.
            if answer.stage(record) != stage {
                let silence = self.timeouts.silence;
                watch.set(now + if answer.done { silence.min(AFTER_DONE) } else { silence });
            }
            if !complete && let Err(why) = watch.go_on(now) {
                if why == Stopped::TimedOut && answer.has_said_all() {
                    return Ok((answer.finish(record)?, false));
                }
                return Err(self.stopped(why, record));
            }
            if complete {
                let keep = got > 0
                    && answer.reader.done()
                    && answer.reader.head().is_some_and(|head| head.keep_alive);
                return Ok((answer.finish(record)?, keep));
            }
        }
    }

    /// When bytes arrived that were read at `now`.
    fn arrival(&self, now: SimTime, received: &Received) -> SimTime {
        let Some(age) = received.age else { return now };
        self.read_lag.borrow_mut().saturating_record(age.as_ns().max(1));
        SimTime::from_ns(now.as_ns().saturating_sub(age.as_ns()))
    }

    /// How long bytes lay in the kernel before they were read, since the last call: p50, p99 and
    /// greatest. `None` where the kernel does not stamp.
    pub fn take_read_lag(&self) -> Option<[SimSpan; 3]> {
        let lags = self.read_lag.replace(no_lags());
        (!lags.is_empty()).then(|| {
            [lags.value_at_quantile(0.5), lags.value_at_quantile(0.99), lags.max()]
                .map(SimSpan::from_ns)
        })
    }

    fn stopped(&self, why: Stopped, record: &mut Record) -> Broken {
        record.end = self.clock.now();
        let (class, what) = if record.output.chunks == 0 {
            (FailureClass::TimeoutFirstChunk, "before the first chunk")
        } else {
            (FailureClass::TimeoutBetweenChunks, "after a chunk")
        };
        match why {
            Stopped::Interrupted => Broken::Interrupted,
            Stopped::TimedOut => {
                let limit = self.timeouts.silence.as_secs_f64();
                Failure::new(class, format!("no chunk for {limit} s {what}")).into()
            }
        }
    }

    fn watch(&self, limit: SimSpan) -> Rc<Watch> {
        let watch = Rc::new(Watch::until(self.clock.now() + limit));
        self.watches.borrow_mut().push(Rc::downgrade(&watch));
        watch
    }

    fn sweep(&self) {
        let now = self.clock.now();
        let stop = crate::os::interrupted();
        self.watches.borrow_mut().retain(|watch| {
            let Some(watch) = watch.upgrade() else { return false };
            if stop {
                watch.stop(Stopped::Interrupted);
            } else {
                watch.check(now);
            }
            true
        });
    }
}

fn no_lags() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 10_000_000_000, 2).expect("1 ns to 10 s at two digits is allowed")
}

async fn watch_deadlines(client: Weak<Client>) {
    loop {
        monoio::time::sleep(SWEEP).await;
        let Some(client) = client.upgrade() else { return };
        client.sweep();
    }
}

fn check_token_count(record: &Record, exact: bool) -> Result<(), Failure> {
    let (Some(usage), Some(asked)) = (record.usage, record.max_tokens) else { return Ok(()) };
    let wrong = usage.completion > asked || (exact && usage.completion != asked);
    if wrong {
        let detail = format!("{} output tokens where {asked} were asked for", usage.completion);
        return Err(Failure::new(FailureClass::WrongTokenCount, detail));
    }
    Ok(())
}

/// What has been read of one answer.
#[derive(Debug)]
pub struct Answer {
    reader: Reader,
    events: SseParser,
    /// The body of what is no stream; of a stream what it began with.
    start: Vec<u8>,
    /// Whether an event was read.
    any: bool,
    finish: Option<String>,
    usual: Usual,
    done: bool,
}

/// An event longer than this is refused rather than gathered.
const MOST_EVENT: usize = 16 << 20;

impl Default for Answer {
    fn default() -> Self {
        Self {
            reader: Reader::new(),
            events: SseParser::new(MOST_EVENT),
            start: Vec::new(),
            any: false,
            finish: None,
            usual: Usual::default(),
            done: false,
        }
    }
}

impl Answer {
    /// How far the answer has come; it differs whenever that is further.
    fn stage(&self, record: &Record) -> (u32, bool, bool, bool, bool) {
        let has_usage = record.usage.is_some();
        (record.output.chunks, self.any, self.finish.is_some(), has_usage, self.done)
    }

    /// Whether nothing that may still come would change what this answer is.
    fn has_said_all(&self) -> bool {
        self.done || self.reader.head().is_some_and(|head| !is_stream(head))
    }

    /// Takes bytes that arrived at `at` into `record`; true once the answer is complete.
    ///
    /// # Errors
    /// The failure that these bytes are.
    pub fn take(
        &mut self,
        bytes: &[u8],
        at: SimTime,
        record: &mut Record,
    ) -> Result<bool, Failure> {
        let Self { reader, events, start, any, finish, usual, done } = self;
        let used = reader.feed_head(bytes).map_err(malformed)?;
        let Some(head) = reader.head() else { return Ok(false) };
        let streams = is_stream(head);
        let until_closed = head.framing == Framing::Close;
        let most_kept = if streams { MOST_START } else { MOST_ERROR_BODY };
        record.headers.get_or_insert(at);
        record.status = Some(head.status);
        let mut problem = None;
        reader
            .feed(&bytes[used..], |piece| {
                if !*any {
                    let room = most_kept.saturating_sub(start.len());
                    start.extend_from_slice(&piece[..piece.len().min(room)]);
                }
                if !streams {
                    return;
                }
                let fed = events.feed(piece, |event| {
                    if problem.is_some() || *done {
                        return;
                    }
                    *any = true;
                    if usual.is(event.data) {
                        take_output(event.data, at, record);
                    } else {
                        problem = take_event(event, at, record, finish, usual, done).err();
                    }
                });
                if let Err(long) = fed {
                    let failure = Failure::new(FailureClass::Malformed, long.to_string());
                    problem.get_or_insert(failure);
                }
            })
            .map_err(malformed)?;
        // After the last event there is nothing to wait for but the close of the connection.
        // Of an error, no more is kept than that.
        let full = !streams && start.len() >= MOST_ERROR_BODY;
        problem.map_or_else(|| Ok(reader.done() || full || (*done && until_closed)), Err)
    }

    /// The connection was closed.
    ///
    /// # Errors
    /// The failure that this is, unless it is the proper end.
    pub fn closed(&mut self) -> Result<(), Failure> {
        if self.reader.untouched() {
            let detail = "connection closed before an answer";
            return Err(Failure::new(FailureClass::Unanswered, detail));
        }
        if self.reader.close() || self.done {
            return Ok(());
        }
        Err(Failure::new(FailureClass::Cut, "connection closed inside the answer"))
    }

    fn lost(&self, error: &io::Error) -> Failure {
        let class = match self.reader.untouched() {
            true => FailureClass::Unanswered,
            false => FailureClass::Cut,
        };
        Failure::new(class, error.to_string())
    }

    /// The finish reason of a complete answer.
    ///
    /// # Errors
    /// The failure that this answer is.
    pub fn finish(&mut self, record: &Record) -> Result<String, Failure> {
        let Some(head) = self.reader.head() else {
            return Err(Failure::new(FailureClass::Malformed, "no head"));
        };
        if is_stream(head) {
            return match (self.finish.take(), self.done) {
                (Some(finish), _) => Ok(finish),
                (None, true) if record.output.chunks > 0 => Ok(NO_REASON.into()),
                (None, _) if !self.any && !head.content_type.starts_with(EVENT_STREAM) => {
                    Err(unexpected(head))
                }
                (None, _) if !self.any && !begins_like_events(&self.start) => {
                    let shown = String::from_utf8_lossy(&self.start);
                    let detail = format!("no event stream but '{}'", shown.escape_debug());
                    Err(Failure::new(FailureClass::Malformed, detail))
                }
                (None, _) => {
                    Err(Failure::new(FailureClass::Cut, "the stream ended without a finish reason"))
                }
            };
        }
        let message = chunk::error_message(&self.start);
        let class = match head.status {
            429 => FailureClass::RateLimited,
            400..=499 => FailureClass::ClientError,
            500..=599 => FailureClass::ServerError,
            _ => FailureClass::UnexpectedAnswer,
        };
        Err(match class {
            FailureClass::UnexpectedAnswer => unexpected(head),
            _ => Failure::new(class, format!("{} {message}", head.status)),
        })
    }
}

const EVENT_STREAM: &str = "text/event-stream";
/// So much of a stream is shown where it turns out to be none.
const MOST_START: usize = 40;

/// Whether events may be in it. Some servers name another type, so only JSON settles that there are
/// none.
fn is_stream(head: &Head) -> bool {
    head.status == 200
        && head.encoding.is_none()
        && !head.content_type.starts_with("application/json")
}

/// The failure of an answer that is neither a stream nor an error.
fn unexpected(head: &Head) -> Failure {
    let status = head.status;
    let detail = match (&head.location, &head.encoding) {
        (Some(location), _) if (300..400).contains(&status) => {
            format!("{status} redirect to '{location}', which is not followed: use that address")
        }
        (_, Some(encoding)) => {
            format!("{status} with content-encoding '{encoding}', which was not asked for")
        }
        _ => format!("{status} '{}' where an event stream was due", head.content_type),
    };
    Failure::new(FailureClass::UnexpectedAnswer, detail)
}

/// True if a stream that was cut in its first event can have begun so.
fn begins_like_events(start: &[u8]) -> bool {
    const FIELDS: [&[u8]; 7] = [b"data", b"event", b"id", b"retry", b":", b"\r", b"\n"];
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    FIELDS.iter().any(|field| {
        let known = start.len().min(field.len());
        start[..known] == field[..known]
    })
}

fn malformed(error: crate::http::answer::Malformed) -> Failure {
    Failure::new(FailureClass::Malformed, error.0)
}

fn take_output(data: &[u8], at: SimTime, record: &mut Record) {
    record.output.push(at);
    if let Some(text) = &mut record.text {
        text.push_str(&chunk::content(data).unwrap_or_default());
    }
}

fn take_event(
    event: SseEvent<'_>,
    at: SimTime,
    record: &mut Record,
    finish: &mut Option<String>,
    usual: &mut Usual,
    done: &mut bool,
) -> Result<(), Failure> {
    let data = event.data;
    if data == b"[DONE]" {
        *done = true;
        return Ok(());
    }
    if event.event == b"error" {
        return Err(Failure::new(FailureClass::ErrorInStream, chunk::error_message(data)));
    }
    let meaning = chunk::meaning(data, usual).map_err(|problem| {
        let start = String::from_utf8_lossy(&data[..data.len().min(80)]).into_owned();
        Failure::new(FailureClass::Malformed, format!("{problem}: {start}"))
    })?;
    if let Some(error) = meaning.error {
        return Err(Failure::new(FailureClass::ErrorInStream, error));
    }
    if meaning.output {
        take_output(data, at, record);
    }
    if meaning.finish.is_some() {
        *finish = meaning.finish;
    }
    if meaning.usage.is_some() {
        record.usage = meaning.usage;
        record.server = meaning.timing.or(record.server);
        record.reported = meaning.reported.or(record.reported);
    }
    Ok(())
}
