//! A stream server of known timing, to measure clients with.
//!
//! It answers any POST with `max_tokens` chunks (its own number if none is given): the first at an
//! exact time after the request arrived, the others at exact distances, by absolute deadlines on
//! one thread. It keeps the instant at which each chunk was really handed to the kernel, so that
//! its own lateness is known and not blamed on the client. It is no part of any measurement of a
//! real server.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use llmsim_engine::units::{SimSpan, SimTime};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::clock::Clock;

/// The timing that it keeps.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the arrival of the request's last byte to the first chunk.
    pub ttft: SimSpan,
    /// Between chunks.
    pub itl: SimSpan,
    /// Chunks, where the request does not say `max_tokens`.
    pub tokens: u32,
    /// Nothing is sent during this time after the start of the server; what is due then comes at
    /// its end.
    pub stall: Option<(SimSpan, SimSpan)>,
}

/// When chunks were handed to the kernel: per connection (by the client's port) and answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The client's port.
    pub port: u16,
    /// When the kernel had the last byte of the request.
    pub arrived: SimTime,
    /// When each chunk was handed to the kernel.
    pub chunks: Vec<Handed>,
}

/// The call that handed a chunk to the kernel: it had it at some instant in between. The thread may
/// be preempted on either side, so neither end alone is the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Just before the call.
    pub began: SimTime,
    /// Just after it.
    pub ended: SimTime,
}

/// The running server; stops when dropped.
#[derive(Debug)]
pub struct Reference {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    log: Arc<Mutex<Vec<Sent>>>,
    thread: Option<JoinHandle<()>>,
}

impl Reference {
    /// Listens on `port` (0: any free one) of the loopback interface.
    ///
    /// # Errors
    /// If the port cannot be had or the thread not be started.
    pub fn start(clock: Clock, port: u16, timing: Timing) -> io::Result<Self> {
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let stop = Arc::new(AtomicBool::new(false));
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut server = Server {
            clock,
            timing,
            started: clock.now(),
            poll,
            listener,
            connections: HashMap::new(),
            next_token: 1,
            due: BinaryHeap::new(),
            looked: clock.now(),
            spins: std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
            log: Arc::clone(&log),
        };
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("reference".into()).spawn(move || {
            crate::os::finest_timer_slack();
            while !theirs.load(Ordering::Acquire) {
                server.turn();
            }
        })?;
        Ok(Self { address, stop, log, thread: Some(thread) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has been sent in finished answers since the last call.
    pub fn take_log(&self) -> Vec<Sent> {
        std::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until the thread ends, which it does not by itself.
    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const LISTENER: Token = Token(0);
/// How long it may sleep without looking at whether it shall stop.
const LONGEST_SLEEP: SimSpan = SimSpan::from_ms(20);
/// A wait shorter than this costs less to spin than to sleep: two system calls and a wake-up.
const SPUN: SimSpan = SimSpan::from_us(20);
/// How long chunks may keep it from looking for requests. They are answered from the kernel's stamp
/// on, so that looking late does not make their first chunk late.
const LOOK_EVERY: SimSpan = SimSpan::from_us(200);

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
    transfer-encoding: chunked\r\n\r\n";
const CHUNK: &[u8] = b"data: {\"id\":\"chatcmpl-reference\",\"object\":\"chat.completion.chunk\",\
    \"created\":0,\"model\":\"reference\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\
    \"finish_reason\":null}]}\n\n";
const FINISH: &[u8] =
    b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n";

struct Server {
    clock: Clock,
    timing: Timing,
    started: SimTime,
    poll: Poll,
    listener: TcpListener,
    connections: HashMap<Token, Connection>,
    next_token: usize,
    /// Earliest first; the connection may be gone.
    due: BinaryHeap<Reverse<(SimTime, usize)>>,
    /// When it last looked for requests.
    looked: SimTime,
    /// Whether there is a CPU to spin on beside the client's.
    spins: bool,
    log: Arc<Mutex<Vec<Sent>>>,
}

struct Connection {
    stream: TcpStream,
    port: u16,
    input: Vec<u8>,
    answer: Option<Answer>,
}

struct Answer {
    left: u32,
    total: u32,
    sent: Sent,
}

impl Server {
    /// Sends what is due, takes what has come, sleeps until there is more to do.
    fn turn(&mut self) {
        self.send_due();
        let now = self.clock.now();
        let next = self.due.peek().map_or(now + LONGEST_SLEEP, |due| due.0.0);
        let wait = next.saturating_since(now).min(LONGEST_SLEEP);
        if self.spins && wait < SPUN && now < self.looked + LOOK_EVERY {
            std::hint::spin_loop();
            return;
        }
        self.looked = now;
        wait_readable(&self.poll, wait);
        let mut events = Events::with_capacity(256);
        // With nothing to wait for it only collects what is there.
        if self.poll.poll(&mut events, Some(Duration::ZERO)).is_err() {
            return;
        }
        for event in &events {
            if event.token() == LISTENER { self.accept() } else { self.readable(event.token()) }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, peer)) = self.listener.accept() {
            let _ = stream.set_nodelay(true);
            crate::os::stamp_arrivals(stream.as_raw_fd());
            let token = Token(self.next_token);
            self.next_token += 1;
            if self.poll.registry().register(&mut stream, token, Interest::READABLE).is_ok() {
                let connection =
                    Connection { stream, port: peer.port(), input: Vec::new(), answer: None };
                self.connections.insert(token, connection);
            }
        }
    }

    fn readable(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let mut buffer = [0; 16 * 1024];
        let mut arrived = self.clock.now();
        loop {
            match crate::os::receive_now(connection.stream.as_raw_fd(), &mut buffer) {
                Ok(Some(got)) if got.bytes > 0 => {
                    connection.input.extend_from_slice(&buffer[..got.bytes]);
                    // From the kernel's stamp, so that reading late does not make it answer late.
                    let age = got.age.unwrap_or_default().as_ns();
                    arrived = SimTime::from_ns(self.clock.now().as_ns().saturating_sub(age));
                }
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Some(_)) | Err(_) => {
                    self.connections.remove(&token);
                    return;
                }
            }
        }
        if let Some(total) = connection.take_request(self.timing.tokens) {
            let sent = Sent {
                port: connection.port,
                arrived,
                chunks: Vec::with_capacity(total.min(4096) as usize),
            };
            connection.answer = Some(Answer { left: total, total, sent });
            self.due.push(Reverse((self.shift(arrived + self.timing.ttft), token.0)));
        }
    }

    /// What falls into the stall comes at its end.
    fn shift(&self, at: SimTime) -> SimTime {
        let Some((after, lasts)) = self.timing.stall else { return at };
        let begin = self.started + after;
        if at >= begin && at < begin + lasts { begin + lasts } else { at }
    }

    fn send_due(&mut self) {
        loop {
            let now = self.clock.now();
            let Some(&Reverse((at, token))) = self.due.peek() else { return };
            if at > now {
                return;
            }
            self.due.pop();
            let itl = self.timing.itl;
            let Some(connection) = self.connections.get_mut(&Token(token)) else { continue };
            let began = self.clock.now();
            let more = connection.send_chunk();
            let ended = self.clock.now();
            let Some(answer) = &mut connection.answer else { continue };
            answer.sent.chunks.push(Handed { began, ended });
            if more {
                let next = self.shift(at + itl);
                self.due.push(Reverse((next, token)));
            } else if let Some(answer) = connection.answer.take() {
                self.log.lock().unwrap_or_else(PoisonError::into_inner).push(answer.sent);
            }
        }
    }
}

impl Connection {
    /// Takes a complete request off the input and tells how many tokens it wants.
    fn take_request(&mut self, default: u32) -> Option<u32> {
        let head = memchr::memmem::find(&self.input, b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&self.input[..head]).to_ascii_lowercase();
        let length: usize = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|value| value.trim().parse().ok())
            .unwrap_or(0);
        let body = self.input.get(head..head + length)?;
        let key = b"\"max_tokens\":";
        let wanted = memchr::memmem::find(body, key).and_then(|at| {
            let digits = body[at + key.len()..].iter().take_while(|byte| byte.is_ascii_digit());
            let digits: String = digits.map(|&byte| char::from(byte)).collect();
            digits.parse().ok()
        });
        self.input.drain(..head + length);
        Some(wanted.unwrap_or(default).max(1))
    }

    /// Sends the next chunk; false after the last. A client that does not read loses its chunks:
    /// it is no client of this server.
    fn send_chunk(&mut self) -> bool {
        /// All but the first and the last are this one.
        static USUAL: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let mut bytes = Vec::new();
            push_chunk(&mut bytes, CHUNK);
            bytes
        });
        let Some(answer) = &mut self.answer else { return false };
        if answer.left < answer.total && answer.left > 1 {
            answer.left -= 1;
            // Best effort, see above.
            let _ = self.stream.write(&USUAL);
            return true;
        }
        let mut bytes = Vec::with_capacity(1024);
        if answer.left == answer.total {
            bytes.extend_from_slice(HEAD);
        }
        push_chunk(&mut bytes, CHUNK);
        answer.left -= 1;
        if answer.left == 0 {
            push_chunk(&mut bytes, FINISH);
            let usage = format!(
                "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":8,\"completion_tokens\":{0},\
                 \"total_tokens\":{1}}}}}\n\ndata: [DONE]\n\n",
                answer.total,
                answer.total + 8
            );
            push_chunk(&mut bytes, usage.as_bytes());
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        // Best effort, see above.
        let _ = self.stream.write(&bytes);
        answer.left > 0
    }
}

fn push_chunk(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Sleeps until something can be read or `wait` is over, to the microsecond: epoll's own limit
/// counts milliseconds.
#[expect(unsafe_code, reason = "ppoll has no safe wrapper in the standard library")]
fn wait_readable(poll: &Poll, wait: SimSpan) {
    if wait == SimSpan::ZERO {
        return;
    }
    let mut fds = [libc::pollfd { fd: poll.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    let limit = libc::timespec {
        tv_sec: (wait.as_ns() / 1_000_000_000) as libc::time_t,
        tv_nsec: (wait.as_ns() % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: one initialised pollfd and one timespec on this stack; the epoll descriptor is owned
    // by `poll`, which outlives the call; no signal mask is given.
    unsafe {
        libc::ppoll(fds.as_mut_ptr(), 1, &raw const limit, std::ptr::null());
    }
}
