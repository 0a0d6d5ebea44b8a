//! One level against a real server: warm-up, measurement, drain.
//!
//! Runs on one thread. It decides when to send from the plan and the pacer, and never looks at what
//! came back except to know that a stream is free. In an open loop an arrival is scheduled whether
//! or not earlier ones have finished; what it waits for a free slot is part of its record.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use llmsim_engine::seed::Seed;
use llmsim_engine::units::{SimSpan, SimTime};

use crate::clock::{Clock, duration};
use crate::health::Health;
use crate::local::Bell;
use crate::pacer::Pacer;
use crate::plan::{Extent, Load};
use crate::progress::Live;
use crate::record::{Record, StampRoom};
use crate::result::Level;
use crate::target::http::{Client, Prepared};
use crate::workload::{Number, Phase, Workload};

/// What one level is to do.
#[derive(Clone, Debug)]
pub struct LevelSpec {
    /// Its number in the sweep, from 0.
    pub number: u32,
    /// The load.
    pub load: Load,
    /// Where it ends.
    pub extent: Extent,
    /// Seed of the arrivals.
    pub seed: Seed,
}

/// What a level is run with.
#[derive(Clone)]
pub struct Context {
    /// The clock of all records.
    pub clock: Clock,
    /// The server.
    pub client: Rc<Client>,
    /// The prompts.
    pub workload: Arc<Workload>,
    /// For the display.
    pub live: Arc<Live>,
}

/// Sends `count` unmeasured requests, at most `at_once` at a time.
pub async fn warm_up(context: &Context, level: u32, count: u32, at_once: u32) -> Vec<Record> {
    if count == 0 {
        return Vec::new();
    }
    let feed = Feed::start(&context.workload, level, Phase::Warmup, Some(count), 64);
    let run = Run::new(context, feed, Some(count));
    context.live.begin(context.clock.now(), None, Some(count));
    run.streams(at_once.min(count), None);
    run.drained().await;
    context.live.end();
    run.take_records()
}

/// Measures one level; connections and warm-up are the caller's.
pub async fn measure(context: &Context, spec: &LevelSpec) -> Level {
    let clock = context.clock;
    let cpu_before = crate::os::thread_cpu();
    let opened_before = context.client.opened();
    context.client.take_read_lag();
    let began;
    let (run, planned) = match &spec.load {
        Load::Closed { concurrency } => {
            let limit = spec.extent.requests;
            let feed = Feed::start(
                &context.workload,
                spec.number,
                Phase::Measured,
                limit,
                *concurrency as usize + 256,
            );
            feed.wait_until_ready().await;
            let run = Run::new(context, feed, limit);
            let mut pacer = Pacer::start(clock, Arc::from([]));
            began = clock.now();
            let end = spec.extent.duration.map(|lasts| began + lasts);
            context.live.begin(began, None, limit);
            run.streams(*concurrency, end);
            run.follow(&mut pacer, &[], None).await;
            (run, limit)
        }
        Load::Open { arrivals, max_concurrency } => {
            let offsets = arrivals.draw(spec.extent, spec.seed);
            let planned = u32::try_from(offsets.len()).unwrap_or(u32::MAX);
            let feed =
                Feed::start(&context.workload, spec.number, Phase::Measured, Some(planned), 1024);
            feed.wait_until_ready().await;
            let run = Run::new(context, feed, Some(planned));
            // A little in the future, so that the pacing thread is up before the first arrival.
            began = clock.now() + SimSpan::from_ms(5);
            let instants: Arc<[SimTime]> = offsets.iter().map(|&at| began + at).collect();
            let mut pacer = Pacer::start(clock, Arc::clone(&instants));
            context.live.begin(began, arrivals.target_rate(), Some(planned));
            run.follow(&mut pacer, &instants, *max_concurrency).await;
            (run, Some(planned))
        }
    };
    let ended = clock.now();
    let mut health = run.health.take();
    health.read_lag = context.client.take_read_lag();
    health.elapsed = ended.saturating_since(began);
    // One thread: what it used before the start of the schedule must not show as more than all.
    health.cpu = (crate::os::thread_cpu() - cpu_before).min(health.elapsed);
    health.peak_memory_bytes = crate::os::peak_memory_bytes();
    health.unready = run.feed.borrow().unready;
    let never_sent = u32::try_from(run.waiting.borrow().len()).unwrap_or(u32::MAX);
    let records = run.take_records();
    Level {
        planned: planned.unwrap_or_else(|| u32::try_from(records.len()).unwrap_or(u32::MAX)),
        records,
        began,
        ended,
        load: spec.load.clone(),
        extent: spec.extent,
        health,
        connections_opened: context.client.opened() - opened_before,
        never_sent,
        interrupted: crate::os::interrupted(),
    }
}

/// State of a running level.
struct Run {
    context: Context,
    feed: RefCell<Feed>,
    /// Requests still to be started; `None` for no limit.
    left: Cell<Option<u32>>,
    next: Cell<u32>,
    active: Cell<u32>,
    /// Scheduled arrivals that wait for a slot. Bounded by the plan.
    waiting: RefCell<VecDeque<SimTime>>,
    records: RefCell<Vec<Record>>,
    stamps: RefCell<StampRoom>,
    health: RefCell<Health>,
    /// Rung when a stream or request ends.
    ended: Bell,
}

impl Run {
    fn new(context: &Context, feed: Feed, limit: Option<u32>) -> Rc<Self> {
        Rc::new(Self {
            context: context.clone(),
            feed: RefCell::new(feed),
            left: Cell::new(limit),
            next: Cell::new(0),
            active: Cell::new(0),
            waiting: RefCell::new(VecDeque::new()),
            records: RefCell::new(Vec::new()),
            stamps: RefCell::default(),
            health: RefCell::new(Health::default()),
            ended: Bell::default(),
        })
    }

    /// Starts streams of a closed loop that send until the limit or `end`.
    fn streams(self: &Rc<Self>, count: u32, end: Option<SimTime>) {
        self.active.set(self.active.get() + count);
        for _ in 0..count {
            let run = Rc::clone(self);
            monoio::spawn(async move {
                while !crate::os::interrupted() {
                    let free = run.context.clock.now();
                    if end.is_some_and(|end| free >= end) {
                        break;
                    }
                    let Some((index, request)) = run.take_request() else { break };
                    run.perform(index, free, request).await;
                }
                run.leave();
            });
        }
    }

    /// Starts a task for one arrival; when done it serves arrivals that wait for a slot.
    fn arrival(self: &Rc<Self>, scheduled: SimTime) {
        self.active.set(self.active.get() + 1);
        let run = Rc::clone(self);
        monoio::spawn(async move {
            let mut scheduled = Some(scheduled);
            while let Some(at) = scheduled.filter(|_| !crate::os::interrupted()) {
                let Some((index, request)) = run.take_request() else { break };
                run.perform(index, at, request).await;
                scheduled = run.waiting.borrow_mut().pop_front();
            }
            run.leave();
        });
    }

    async fn perform(&self, index: u32, scheduled: SimTime, request: Prepared) {
        let mut record = Record::planned(index, scheduled);
        self.context.live.sent(self.context.clock.now());
        self.context.client.perform(request, &mut record).await;
        self.context.live.finished(&record);
        self.stamps.borrow_mut().keep(&mut record.output);
        self.records.borrow_mut().push(record);
    }

    fn take_request(&self) -> Option<(u32, Prepared)> {
        if let Some(left) = self.left.get() {
            self.left.set(Some(left.checked_sub(1)?));
        }
        let index = self.next.get();
        self.next.set(index + 1);
        Some((index, self.feed.borrow_mut().take(index)))
    }

    fn leave(&self) {
        self.active.set(self.active.get() - 1);
        self.ended.ring();
    }

    async fn drained(&self) {
        while self.active.get() > 0 {
            self.ended.wait().await;
        }
    }

    /// Dispatches arrivals as they fall due and answers pings, until all are done.
    async fn follow(
        self: &Rc<Self>,
        pacer: &mut Pacer,
        instants: &[SimTime],
        max_concurrency: Option<u32>,
    ) {
        let mut dispatched = 0;
        let most = max_concurrency.unwrap_or(u32::MAX);
        loop {
            let all_sent = dispatched == instants.len() || crate::os::interrupted();
            if all_sent && self.active.get() == 0 {
                return;
            }
            let wake = monoio::select! {
                wake = pacer.woken() => Some(wake),
                () = self.ended.wait() => None,
            };
            let Some(wake) = wake else { continue };
            if let Some(sent) = wake.ping {
                let lag = self.context.clock.now().saturating_since(sent);
                self.health.borrow_mut().loop_lags.push(lag);
            }
            while dispatched < wake.due as usize && !crate::os::interrupted() {
                let at = instants[dispatched];
                dispatched += 1;
                if self.active.get() < most {
                    self.arrival(at);
                } else {
                    self.waiting.borrow_mut().push_back(at);
                }
            }
        }
    }

    fn take_records(&self) -> Vec<Record> {
        let mut records = self.records.take();
        records.sort_by_key(|record| record.index);
        records
    }
}

/// Requests in their final bytes, made ahead by a thread of their own.
struct Feed {
    ready: Receiver<Prepared>,
    workload: Arc<Workload>,
    level: u32,
    phase: Phase,
    made: Arc<AtomicU32>,
    /// Without one, or when it has ended early, requests are made as they are taken.
    maker: Option<JoinHandle<()>>,
    /// How many the maker will have made when it is as far ahead as it may be.
    ahead: u32,
    unready: u32,
}

/// The most bytes of requests made ahead.
const MOST_AHEAD_BYTES: usize = 32 << 20;

impl Feed {
    fn start(
        workload: &Arc<Workload>,
        level: u32,
        phase: Phase,
        count: Option<u32>,
        ahead: usize,
    ) -> Self {
        let first = workload.prepare(Number { level, phase, index: 0 });
        let fit = (MOST_AHEAD_BYTES / first.bytes.len().max(1)).max(1);
        let ahead = ahead.min(fit).min(count.map_or(usize::MAX, |n| n as usize)).max(1);
        // When full the maker waits: the schedule is never held up by it but by a missing request.
        let (sender, ready) = sync_channel(ahead);
        let made = Arc::new(AtomicU32::new(0));
        let theirs = (Arc::clone(workload), Arc::clone(&made));
        let maker = std::thread::Builder::new().name("prompts".into()).spawn(move || {
            let (workload, made) = theirs;
            for index in 0..count.unwrap_or(u32::MAX) {
                let request = workload.prepare(Number { level, phase, index });
                made.fetch_add(1, Ordering::Release);
                if sender.send(request).is_err() {
                    return;
                }
            }
        });
        let maker = maker.ok();
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        Self { ready, workload: Arc::clone(workload), level, phase, made, maker, ahead, unready: 0 }
    }

    /// Waits until the maker is as far ahead as it may be, has ended, or the run is interrupted.
    /// The runtime's thread goes on meanwhile: what is connected stays looked after.
    async fn wait_until_ready(&self) {
        while self.made.load(Ordering::Acquire) < self.ahead
            && !self.maker.as_ref().is_none_or(JoinHandle::is_finished)
            && !crate::os::interrupted()
        {
            monoio::time::sleep(duration(SimSpan::from_ms(1))).await;
        }
    }

    /// The request `index`; requests are taken in order.
    fn take(&mut self, index: u32) -> Prepared {
        match self.ready.try_recv() {
            Ok(request) => return request,
            Err(TryRecvError::Empty) => {
                self.unready += 1;
                if let Ok(request) = self.ready.recv() {
                    return request;
                }
            }
            Err(TryRecvError::Disconnected) => {}
        }
        self.workload.prepare(Number { level: self.level, phase: self.phase, index })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::SyncSender;
    use std::time::Duration;

    use super::*;
    use crate::workload::Source;
    use crate::workload::request::Form;

    fn workload() -> Arc<Workload> {
        Arc::new(Workload {
            source: Source::Synthetic { input: (20, 20), output: (5, 5) },
            form: Form::chat("m"),
            prefix: String::new(),
            max_tokens: None,
            ignore_eos: false,
            seed: Seed::new(1),
            nonce: None,
        })
    }

    /// Waits for a feed that is expected to be ready, or to have no hope of it.
    fn wait(feed: &Feed) {
        let mut runtime = monoio::RuntimeBuilder::<monoio::LegacyDriver>::new()
            .enable_timer()
            .build()
            .expect("epoll is there");
        runtime.block_on(async {
            let waited = monoio::time::timeout(Duration::from_secs(60), feed.wait_until_ready());
            waited.await.expect("waits for what nobody makes");
        });
    }

    fn number(index: u32) -> Number {
        Number { level: 0, phase: Phase::Measured, index }
    }

    #[test]
    fn a_schedule_begins_when_its_requests_are_made() {
        let workload = workload();
        // As far ahead as it may be, and no further; or to the end of a short run.
        for (count, ahead, made) in [(None, 4, 4), (Some(3), 1024, 3)] {
            let mut feed = Feed::start(&workload, 0, Phase::Measured, count, ahead);
            wait(&feed);
            assert!(feed.made.load(Ordering::Acquire) >= made);
            for index in 0..made {
                assert_eq!(feed.take(index).bytes, workload.prepare(number(index)).bytes);
            }
            assert_eq!(feed.unready, 0, "every request was there when it was due");
        }
    }

    /// One that could not be started, and one that ended before it had made what it should.
    #[test]
    fn without_a_maker_requests_are_made_as_they_are_taken() {
        let ended =
            std::thread::spawn(|| panic!("on purpose: what it made is not to be waited for"));
        for maker in [None, Some(ended)] {
            let (sender, ready): (SyncSender<Prepared>, _) = sync_channel(1);
            drop(sender);
            let workload = workload();
            let mut feed = Feed {
                ready,
                workload: Arc::clone(&workload),
                level: 0,
                phase: Phase::Measured,
                made: Arc::new(AtomicU32::new(0)),
                maker,
                ahead: 1024,
                unready: 0,
            };
            wait(&feed);
            for index in 0..3 {
                assert_eq!(feed.take(index).bytes, workload.prepare(number(index)).bytes);
            }
        }
    }
}
