//! Many connections that ask again when they have their answer, and look at each answer whole.
//!
//! One thread, as for every measurement. A connection on which a fault has struck is replaced, as a
//! client would; after an error it rests for a moment, as a client should. The invariant: every
//! request that was sent is judged, once.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::plan::{Plan, Request};
use super::ways::{Ending, Expected, Form, Reference, References, Seen, Surface};
use crate::closed_loop::whole_length;
use crate::drain::{Arrival, count_frames};
use crate::sys::{self, Epoll};
use crate::target::connect;

/// For how long, with how many, and in which parts of the time nothing may befall anybody.
pub(crate) struct Load {
    pub(crate) streams: usize,
    pub(crate) time_ns: u64,
    /// The time is cut into pieces of this length; in every second one, beginning with the second,
    /// requests may be hit.
    pub(crate) phase_ns: u64,
}

/// What the client saw.
#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) requests: u64,
    /// By rule of the plan, how often it struck.
    pub(crate) strikes: BTreeMap<usize, u64>,
    /// By model and way, how many jobs ended so.
    pub(crate) jobs: BTreeMap<(&'static str, &'static str), u64>,
    /// By how they ended, answers of both models.
    pub(crate) deliveries: BTreeMap<&'static str, u64>,
    /// By model, tokens of streams.
    pub(crate) tokens: BTreeMap<&'static str, u64>,
    pub(crate) wrong: u64,
    /// The first few that ended in no way, or in more than one way, that they may.
    pub(crate) complaints: Vec<String>,
    /// Requests that something befell.
    pub(crate) hit: u64,
    /// Of the spared streams, and since when.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) spared: u32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// How long nothing must come until it counts as silence.
const SILENCE_NS: u64 = 300_000_000;
/// After which time of silence a request counts as forgotten.
const FORGOTTEN_NS: u64 = 20_000_000_000;
/// How long a client rests after an error.
const REST_NS: u64 = 100_000_000;
/// How often those that rest or are silent are looked at.
const LOOK_NS: u64 = 20_000_000;

struct Slot {
    socket: Option<TcpStream>,
    state: State,
}

enum State {
    /// Until then.
    Rests(u64),
    Asks(Box<Exchange>),
}

struct Exchange {
    request: Request,
    bytes: Vec<u8>,
    after_newline: bool,
    frames: u32,
    last_ns: u64,
    /// Its number among the spared streams.
    spared: Option<u32>,
}

/// Runs the load; `tick` is called ten times a second with the part of the time that is over.
pub(crate) fn run(
    address: SocketAddr,
    load: &Load,
    plan: &mut Plan,
    references: &References,
    tick: &mut dyn FnMut(f64),
) -> io::Result<Judged> {
    let mut epoll = Epoll::new()?;
    let start = sys::monotonic_ns();
    let mut judged = Judged { start_ns: start, ..Judged::default() };
    // Begun over the first tenth of the time, and over two seconds at most.
    let stagger = (load.time_ns / 10).min(2_000_000_000) / load.streams.max(1) as u64;
    let rests = |i: usize| State::Rests(start + i as u64 * stagger);
    let mut slots: Vec<Slot> =
        (0..load.streams).map(|i| Slot { socket: None, state: rests(i) }).collect();
    let mut buffer = vec![0; 256 * 1024];
    let (mut ready, mut next, mut last_look, mut last_tick) = (Vec::new(), 0_u64, 0, 0);
    loop {
        epoll.wait((LOOK_NS / 1_000_000) as i32, &mut ready)?;
        let mut over: Vec<(usize, Ending)> = Vec::new();
        for &token in &ready {
            let slot = &mut slots[token as usize];
            let Some(ending) = slot.read(&mut buffer, &mut judged.arrivals)? else { continue };
            over.push((token as usize, ending));
        }
        let now = sys::monotonic_ns();
        let elapsed = now - start;
        if elapsed / 100_000_000 > last_tick {
            last_tick = elapsed / 100_000_000;
            tick(elapsed as f64 / load.time_ns as f64);
        }
        let looks = now - last_look >= LOOK_NS;
        if looks {
            last_look = now;
            let quiet = |(i, slot): (usize, &Slot)| {
                let State::Asks(exchange) = &slot.state else { return None };
                exchange
                    .is_silent(
                        now,
                        references.of(exchange.request.is_sick, exchange.request.surface),
                    )
                    .then_some((i, Ending::Silent))
            };
            over.extend(slots.iter().enumerate().filter_map(quiet));
        }
        for (i, ending) in over {
            let rest = slots[i].judge(ending, references, &mut judged);
            slots[i].state = State::Rests(now + rest);
        }
        let is_over = elapsed >= load.time_ns;
        let mut all_rest = true;
        for (i, slot) in slots.iter_mut().enumerate() {
            let State::Rests(until) = slot.state else {
                all_rest = false;
                continue;
            };
            if is_over || until > now {
                continue;
            }
            all_rest = false;
            let may_fail = elapsed / load.phase_ns % 2 == 1;
            slot.ask(plan.request(next, may_fail), address, i, &epoll, &mut judged)?;
            next += 1;
        }
        if is_over && all_rest {
            judged.end_ns = sys::monotonic_ns();
            return Ok(judged);
        }
    }
}

impl Slot {
    /// Sends a request.
    fn ask(
        &mut self,
        request: Request,
        address: SocketAddr,
        number: usize,
        epoll: &Epoll,
        judged: &mut Judged,
    ) -> io::Result<()> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let socket = connect(address)?;
                socket.set_nonblocking(true)?;
                epoll.add(&socket, number as u64)?;
                socket
            }
        };
        // A request is small and the socket idle: it fits.
        socket.write_all(&request.bytes)?;
        self.socket = Some(socket);
        let is_spared =
            request.is_spared() && (request.surface, request.form) == (Surface::Chat, Form::Stream);
        let spared = is_spared.then_some(judged.spared);
        judged.spared += u32::from(is_spared);
        judged.requests += 1;
        self.state = State::Asks(Box::new(Exchange {
            request,
            bytes: Vec::with_capacity(32 * 1024),
            after_newline: false,
            frames: 0,
            last_ns: sys::monotonic_ns(),
            spared,
        }));
        Ok(())
    }

    /// Takes in what has come, and says whether it is over, and how.
    fn read(
        &mut self,
        buffer: &mut [u8],
        arrivals: &mut Vec<Arrival>,
    ) -> io::Result<Option<Ending>> {
        let (Some(socket), State::Asks(exchange)) = (&mut self.socket, &mut self.state) else {
            // The server has ended a connection that rests.
            self.socket = None;
            return Ok(None);
        };
        let got = match socket.read(buffer) {
            Ok(0) => return Ok(Some(Ending::Closed)),
            Ok(got) => got,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => return Ok(None),
                io::ErrorKind::ConnectionReset => return Ok(Some(Ending::Reset)),
                _ => return Err(error),
            },
        };
        let at_ns = sys::monotonic_ns();
        let frames = count_frames(&buffer[..got], &mut exchange.after_newline);
        if let Some(stream) = exchange.spared
            && frames > 0
        {
            arrivals.push(Arrival { stream, first: exchange.frames, frames, at_ns });
        }
        exchange.frames += frames;
        exchange.last_ns = at_ns;
        exchange.bytes.extend_from_slice(&buffer[..got]);
        Ok(exchange.is_over().then_some(Ending::Kept))
    }

    /// Judges how a request has ended. Says how long to rest.
    fn judge(&mut self, ending: Ending, references: &References, judged: &mut Judged) -> u64 {
        let state = std::mem::replace(&mut self.state, State::Rests(0));
        let State::Asks(exchange) = state else { return 0 };
        let Exchange { request, bytes, .. } = *exchange;
        if ending != Ending::Kept {
            self.socket = None;
        }
        let seen = Seen { bytes, ending };
        let reference = references.of(request.is_sick, request.surface);
        let checked = request.ways.iter().map(|way| (way, way.check(reference, &seen)));
        let (right, wrong): (Vec<_>, Vec<_>) = checked.partition(|(_, checked)| checked.is_ok());
        let [(way, Ok(events))] = &right[..] else {
            judged.wrong += 1;
            if judged.complaints.len() < 20 {
                let why: Vec<String> =
                    wrong.into_iter().filter_map(|(_, checked)| checked.err()).collect();
                judged.complaints.push(format!(
                    "request {} ({:?}, {:?}{}) ended in {} of its {} ways: {}",
                    request.number,
                    request.surface,
                    request.form,
                    if request.is_sick { ", sick" } else { "" },
                    right.len(),
                    request.ways.len(),
                    why.join("; ")
                ));
            }
            return REST_NS;
        };
        judged.hit += u64::from(!way.strikes.is_empty());
        for &place in &way.strikes {
            *judged.strikes.entry(place).or_default() += 1;
        }
        let model = super::plan::model(request.is_sick);
        if let Some(job) = way.job() {
            *judged.jobs.entry((model, job)).or_default() += 1;
        }
        if let Some(delivery) = way.delivery() {
            *judged.deliveries.entry(delivery).or_default() += 1;
        }
        *judged.tokens.entry(model).or_default() += way.tokens_sent(*events, reference);
        if way.is_answered { REST_NS } else { 0 }
    }
}

impl Exchange {
    /// Whether the answer has come to its end, as HTTP says.
    fn is_over(&self) -> bool {
        const END: &[u8] = b"\r\n0\r\n\r\n";
        self.bytes.ends_with(END)
            || whole_length(&self.bytes).is_some_and(|length| self.bytes.len() >= length)
    }

    /// Whether nothing has come for so long that nothing will: if that is one of its ways, as soon
    /// as all has come that is to come before.
    fn is_silent(&self, now: u64, reference: &Reference) -> bool {
        let quiet = now.saturating_sub(self.last_ns);
        let expects =
            |way: &Expected| way.is_silent_after(self.bytes.len(), self.frames, reference);
        quiet >= FORGOTTEN_NS || quiet >= SILENCE_NS && self.request.ways.iter().any(expects)
    }
}
