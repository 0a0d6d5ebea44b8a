//! One I/O thread: a runtime, its connections, and the dispatcher between them and the GPU threads.
//!
//! A connection never leaves its thread, so nothing here is locked. The dispatcher is the thread's
//! main future: it takes in new sockets and the reports of all GPU threads, and writes what is due
//! itself, without a task per token. The invariant: after the dispatcher has looked at everything
//! that can wake it and found nothing, and only then, it sleeps.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::TcpStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use llmsim_engine::observe::{Figures, Recorder, Submitted};
use llmsim_engine::sim::{Engine, Event, Finish, Verdict};
use llmsim_engine::units::SimTime;
use llmsim_engine::wire::error::ApiError;
use monoio::net::TcpStream;
use monoio::{FusionRuntime, IoUringDriver, LegacyDriver, RuntimeBuilder};

use crate::api::chat::Answer;
use crate::args::IoDriver;
use crate::clock::{self, Clock};
use crate::drain::{Control, Phase};
use crate::gpu_thread::Address;
use crate::helper::Helper;
use crate::http::connection::{self, Conn, Signal};
use crate::http::response::{Ids, RequestId, http_date};
use crate::metrics::observatory::Observatory;
use crate::metrics::record::{IoShard, Outcome};
use crate::ring::{Doorbell, Inbox, Order, Report};
use crate::served::{Home, Served};
use crate::stream::{Delivery, Ended, Generations};
use crate::sys;

/// A socket on its way from the acceptor to its thread.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) socket: StdStream,
    /// The gate that it came by.
    pub(crate) gate: u16,
    /// Over the limit: say so, and close.
    pub(crate) turned_away: bool,
}

/// The door of an I/O thread, as other threads know it.
#[derive(Debug)]
pub(crate) struct Door {
    /// Bounded: an acceptor that finds it full waits a moment, and the kernel's backlog grows.
    pub(crate) arrivals: ArrayQueue<Arrival>,
    pub(crate) bell: Arc<Doorbell>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { arrivals: ArrayQueue::new(1024), bell: Arc::new(Doorbell::default()) }
    }
}

/// What an I/O thread is made of, before it runs.
pub(crate) struct IoThread {
    pub(crate) number: u8,
    pub(crate) clock: Clock,
    /// What each gate serves; the shared one is the first.
    pub(crate) gates: Vec<Arc<Served>>,
    pub(crate) door: Arc<Door>,
    /// One ring per GPU thread.
    pub(crate) rings: Vec<rtrb::Consumer<Report>>,
    /// One per GPU thread.
    pub(crate) inboxes: Vec<Arc<Inbox>>,
    pub(crate) helper: Helper,
    /// For the rendering of metrics.
    pub(crate) metrics_helper: Helper,
    pub(crate) control: Arc<Control>,
    pub(crate) shard: Arc<IoShard>,
    /// Engines that need no timeline, in the order of their seats here, and what they do.
    pub(crate) here: Vec<(Engine, Arc<Figures>)>,
    pub(crate) observatory: Arc<Observatory>,
    pub(crate) entropy: u64,
}

/// An I/O thread as the connections of one gate see it.
pub(crate) struct Io {
    /// What the gate serves.
    pub(crate) served: Arc<Served>,
    hall: Rc<Hall>,
}

impl std::ops::Deref for Io {
    type Target = Hall;

    fn deref(&self) -> &Hall {
        &self.hall
    }
}

/// What all tasks of an I/O thread share.
pub(crate) struct Hall {
    pub(crate) clock: Clock,
    pub(crate) generations: RefCell<Generations>,
    pub(crate) helper: Helper,
    /// For the rendering of metrics.
    pub(crate) metrics_helper: Helper,
    pub(crate) observatory: Arc<Observatory>,
    pub(crate) read_scratch: RefCell<Box<[u8]>>,
    inboxes: Vec<Arc<Inbox>>,
    /// Cancellations that found an inbox full, to be tried again.
    unsent: RefCell<VecDeque<(u16, Order)>>,
    /// The engines that need no timeline, by seat.
    engines: RefCell<Vec<(Engine, Recorder)>>,
    events: RefCell<Vec<Event>>,
    reports: RefCell<Vec<Report>>,
    conns: RefCell<Conns>,
    ids: RefCell<Ids>,
    date: RefCell<(u64, Rc<str>)>,
    control: Arc<Control>,
    shard: Arc<IoShard>,
    told_phase: Cell<Phase>,
}

/// The connections of a thread, so that they can be swept and told to stop.
#[derive(Default)]
struct Conns {
    slots: Vec<Option<Rc<Conn>>>,
    free: Vec<usize>,
    open: usize,
}

/// A runtime on whichever driver could be had.
pub(crate) type Runtime =
    FusionRuntime<monoio::time::TimeDriver<IoUringDriver>, monoio::time::TimeDriver<LegacyDriver>>;

/// Sends for so many streams before other tasks of the thread get a turn: 0.7 ms.
const SENDS_PER_TURN: usize = 128;

/// Room for so many events is kept between answers that are made here: 1 MiB. What an answer of
/// millions of tokens took beyond that is given back.
const KEPT_EVENTS: usize = 16 * 1024;

/// How often time-outs are looked at, and so how much later than asked they may come.
const SWEEP: Duration = Duration::from_millis(100);

/// The runtime that the user asked for, or the best that can be had; and a word on why.
///
/// # Errors
/// If io_uring was demanded and cannot be had, or not even epoll can.
pub(crate) fn build_runtime(driver: IoDriver) -> io::Result<(Runtime, String)> {
    // A ring of 256 entries locks 28 KiB of memory, one of monoio's default size 104 KiB.
    const ENTRIES: u32 = 256;
    let uring =
        || RuntimeBuilder::<IoUringDriver>::new().with_entries(ENTRIES).enable_timer().build();
    let epoll = || RuntimeBuilder::<LegacyDriver>::new().enable_timer().build();
    match driver {
        IoDriver::Uring => Ok((uring()?.into(), "io_uring (asked for)".to_owned())),
        IoDriver::Epoll => Ok((epoll()?.into(), "epoll (asked for)".to_owned())),
        IoDriver::Auto if monoio::utils::detect_uring() => match uring() {
            Ok(runtime) => Ok((runtime.into(), "io_uring".to_owned())),
            // The kernel has io_uring, but this user may not lock the memory of a ring.
            Err(why) => Ok((epoll()?.into(), format!("epoll (io_uring cannot be set up: {why})"))),
        },
        IoDriver::Auto => {
            let why = "epoll (io_uring is refused here: an old kernel, a container's seccomp \
                       profile, or MONOIO_FORCE_LEGACY_DRIVER)";
            Ok((epoll()?.into(), why.to_owned()))
        }
    }
}

impl IoThread {
    /// Runs until the server has drained or is cut; to be called on the thread's own stack.
    pub(crate) fn run(self, runtime: &mut Runtime) {
        sys::smallest_timer_slack();
        let Self { number, clock, gates, door, mut rings, inboxes, .. } = self;
        let engines =
            self.here.into_iter().map(|(engine, figures)| (engine, Recorder::new(figures)));
        let hall = Rc::new(Hall {
            clock,
            generations: RefCell::new(Generations::new(number, clock, Arc::clone(&self.shard))),
            helper: self.helper,
            metrics_helper: self.metrics_helper,
            observatory: self.observatory,
            read_scratch: RefCell::new(vec![0; 64 * 1024].into_boxed_slice()),
            inboxes,
            unsent: RefCell::default(),
            engines: RefCell::new(engines.collect()),
            events: RefCell::default(),
            reports: RefCell::default(),
            conns: RefCell::default(),
            ids: RefCell::new(Ids::new(self.entropy)),
            date: RefCell::new((0, "".into())),
            control: self.control,
            shard: self.shard,
            told_phase: Cell::new(Phase::Serving),
        });
        let gates: Vec<Rc<Io>> = gates
            .into_iter()
            .map(|served| Rc::new(Io { served, hall: Rc::clone(&hall) }))
            .collect();
        runtime.block_on(async {
            monoio::spawn(sweep(Rc::clone(&hall)));
            let pass = Rc::new(RefCell::new(Pass::default()));
            monoio::spawn(pass_the_turn(Rc::clone(&pass)));
            poll_fn(|cx| hall.dispatch(cx, &gates, &door, &mut rings, &pass)).await;
        });
    }
}

/// Lets the dispatcher give way: a task of monoio 0.2 that wakes itself runs again before all
/// others, so it wakes this one, which stands behind them, and is woken by it.
#[derive(Default)]
struct Pass {
    passer: Option<Waker>,
    dispatcher: Option<Waker>,
}

async fn pass_the_turn(pass: Rc<RefCell<Pass>>) {
    poll_fn(|cx| {
        let mut pass = pass.borrow_mut();
        pass.passer = Some(cx.waker().clone());
        if let Some(dispatcher) = pass.dispatcher.take() {
            dispatcher.wake();
        }
        Poll::<()>::Pending
    })
    .await;
}

async fn sweep(io: Rc<Hall>) {
    loop {
        monoio::time::sleep(SWEEP).await;
        let now = io.clock.now();
        for conn in io.conns.borrow().slots.iter().flatten() {
            conn.sweep(now);
        }
        io.send_unsent_orders();
    }
}

impl Io {
    fn welcome(self: &Rc<Self>, arrival: Arrival) {
        self.shard.accepted.add(1);
        let Ok(stream) = TcpStream::from_std(arrival.socket) else {
            self.control.connection_closed();
            return;
        };
        let conn = Rc::new(Conn::new(stream));
        let slot = self.conns.borrow_mut().enter(Rc::clone(&conn));
        self.shard.connections.add(1);
        if self.told_phase.get() == Phase::Cutting {
            conn.signal(Signal::Cut);
        }
        let io = Rc::clone(self);
        monoio::spawn(async move {
            if arrival.turned_away {
                io.shard.turned_away.add(1);
                let limit = io.served.limits.connections;
                connection::turn_away(Rc::clone(&io), conn, limit).await;
            } else {
                connection::serve(Rc::clone(&io), conn).await;
            }
            io.farewell(slot);
        });
    }

    /// Enters a generation and hands its job to an engine.
    pub(crate) fn submit(
        &self,
        conn: &Rc<Conn>,
        answer: Answer,
        delivery: Delivery,
        received: SimTime,
    ) -> Result<Address, ApiError> {
        let Some(replica) = self.served.next_replica(answer.model) else {
            return Err(ApiError::asleep());
        };
        let mut generations = self.generations.borrow_mut();
        let address = generations.open(Rc::clone(conn), answer, replica, delivery, received);
        let job = generations.job(address);
        match replica.home {
            Home::Thread { thread, seat } => {
                let order = Order::Submit { seat, at: self.clock.now(), received, job };
                if self.inboxes[usize::from(thread)].push(order).is_err() {
                    generations.close(address, Outcome::Refused);
                    return Err(ApiError::overloaded(1));
                }
            }
            Home::Here { seat } => {
                let mut engines = self.engines.borrow_mut();
                let (engine, recorder) = &mut engines[usize::from(seat)];
                let mut reports = self.reports.borrow_mut();
                reports.clear();
                let (id, now) = (job.id, self.clock.now());
                recorder.submitted(&Submitted {
                    job: id,
                    prompt: job.prompt,
                    max_tokens: job.max_tokens,
                    arrived: received,
                    queued: now,
                });
                reports.push(match engine.submit(now, job) {
                    Verdict::Queued => Report::Queued(id, now),
                    Verdict::Refused(why) => {
                        recorder.refused(id, why);
                        Report::Refused(id, why)
                    }
                });
                let mut events = self.events.borrow_mut();
                engine.advance(now, &mut events);
                let released = self.clock.now();
                for event in events.drain(..) {
                    recorder.happened(&event, released);
                    reports.push(Report::Event(event, released));
                }
                recorder.settle();
                generations.apply_and_send(address, &reports);
                events.shrink_to(KEPT_EVENTS);
                reports.clear();
                reports.shrink_to(KEPT_EVENTS);
            }
        }
        Ok(address)
    }

    /// Tells every simulated GPU behind this gate to forget its cached prefixes.
    pub(crate) fn reset_prefix_caches(&self) {
        let at = self.clock.now();
        for replica in self.served.models.iter().flat_map(|model| model.replicas()) {
            if let Home::Thread { thread, seat } = replica.home {
                self.order(thread, Order::ResetPrefixCache { seat, at });
            }
        }
    }
}

impl Hall {
    fn dispatch(
        &self,
        cx: &mut Context<'_>,
        gates: &[Rc<Io>],
        door: &Door,
        rings: &mut [rtrb::Consumer<Report>],
        pass: &RefCell<Pass>,
    ) -> Poll<()> {
        door.bell.serve_task(cx.waker());
        door.bell.awake();
        loop {
            self.follow_phase();
            while let Some(arrival) = door.arrivals.pop() {
                gates[usize::from(arrival.gate)].welcome(arrival);
            }
            self.take_reports(rings);
            if self.generations.borrow_mut().send_some(SENDS_PER_TURN) {
                let mut pass = pass.borrow_mut();
                let Some(passer) = &pass.passer else {
                    // It has not run yet: there is nobody to give way to.
                    continue;
                };
                passer.wake_by_ref();
                pass.dispatcher = Some(cx.waker().clone());
                return Poll::Pending;
            }
            if self.told_phase.get() != Phase::Serving && self.conns.borrow().open == 0 {
                return Poll::Ready(());
            }
            door.bell.about_to_sleep();
            let is_idle = door.arrivals.is_empty()
                && rings.iter().all(rtrb::Consumer::is_empty)
                && self.control.phase() == self.told_phase.get();
            if is_idle {
                return Poll::Pending;
            }
            door.bell.awake();
        }
    }

    /// Tells the connections when the server begins to drain or to stop.
    fn follow_phase(&self) {
        let phase = self.control.phase();
        if self.told_phase.replace(phase) == phase {
            return;
        }
        let signal = match phase {
            Phase::Serving => return,
            Phase::Draining => Signal::Drain,
            Phase::Cutting => Signal::Cut,
        };
        for conn in self.conns.borrow().slots.iter().flatten() {
            conn.signal(signal);
        }
    }

    fn take_reports(&self, rings: &mut [rtrb::Consumer<Report>]) {
        let mut generations = self.generations.borrow_mut();
        let mut any = false;
        for ring in rings {
            let Ok(chunk) = ring.read_chunk(ring.slots()) else { continue };
            let (first, second) = chunk.as_slices();
            any |= !first.is_empty();
            for report in first.iter().chain(second) {
                generations.apply(report);
            }
            chunk.commit_all();
        }
        if any {
            generations.rotate();
        }
    }

    fn farewell(&self, slot: usize) {
        self.conns.borrow_mut().leave(slot);
        self.shard.connections.set(self.shard.connections.get() - 1);
        self.control.connection_closed();
        if self.told_phase.get() != Phase::Serving && self.conns.borrow().open == 0 {
            self.control.wake_io_threads();
        }
    }

    /// Takes a finished generation out of the table.
    pub(crate) fn complete(&self, address: Address) -> Option<Ended> {
        let mut generations = self.generations.borrow_mut();
        let finish = generations.finish(address).unwrap_or(Finish::Length);
        generations.close(address, Outcome::Finished(finish))
    }

    /// Takes an unfinished generation out of the table and tells its engine to stop.
    pub(crate) fn give_up(&self, address: Address, outcome: Outcome) {
        let Some(ended) = self.generations.borrow_mut().close(address, outcome) else { return };
        if let (Home::Thread { thread, seat }, None) = (ended.replica.home, ended.finish) {
            let order = Order::Cancel { seat, at: self.clock.now(), id: address.job_id() };
            self.order(thread, order);
        }
    }

    fn order(&self, thread: u16, order: Order) {
        if let Err(order) = self.inboxes[usize::from(thread)].push(order) {
            // At most one per connection and reset, so the list is bounded.
            self.unsent.borrow_mut().push_back((thread, order));
        }
    }

    fn send_unsent_orders(&self) {
        let mut unsent = self.unsent.borrow_mut();
        for _ in 0..unsent.len() {
            let Some((thread, order)) = unsent.pop_front() else { break };
            if let Err(order) = self.inboxes[usize::from(thread)].push(order) {
                unsent.push_back((thread, order));
            }
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.told_phase.get() != Phase::Serving
    }

    pub(crate) fn request_id(&self, sent: Option<&[u8]>) -> RequestId {
        RequestId::new(sent, &mut self.ids.borrow_mut())
    }

    pub(crate) fn make_id(&self, prefix: &str) -> String {
        self.ids.borrow_mut().next(prefix)
    }

    /// The `date` header, rendered once a second.
    pub(crate) fn date(&self) -> Rc<str> {
        let now = clock::unix_seconds();
        let mut date = self.date.borrow_mut();
        if date.0 != now {
            *date = (now, http_date(now).into());
        }
        Rc::clone(&date.1)
    }
}

impl Conns {
    fn enter(&mut self, conn: Rc<Conn>) -> usize {
        self.open += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(conn);
                slot
            }
            None => {
                self.slots.push(Some(conn));
                self.slots.len() - 1
            }
        }
    }

    fn leave(&mut self, slot: usize) {
        self.open -= 1;
        self.slots[slot] = None;
        self.free.push(slot);
    }
}
