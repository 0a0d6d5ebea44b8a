//! What passes between an I/O thread and a GPU thread, and how the sleeper is woken.
//!
//! Orders go up through one bounded queue per GPU thread, since many I/O threads feed it at a low
//! rate. Reports come down through one single-producer ring per pair of threads, since that is the
//! token path. Nothing here knows sockets or engines. The invariant: whoever publishes rings the
//! bell afterwards, and whoever goes to sleep looks at its queue once more after saying so; with
//! the two full fences one of them always sees the other.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::Thread;

use crossbeam::queue::ArrayQueue;
use llmsim_engine::faults::Timed;
use llmsim_engine::observe::Siblings;
use llmsim_engine::sim::{Event, Job, Refusal, What};
use llmsim_engine::units::{JobId, SimTime};

use crate::tally::Vote;

/// What an I/O thread wants of a GPU thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// A new request for the GPU in this seat.
    Submit { seat: u16, at: SimTime, received: SimTime, job: Job, siblings: Siblings },
    /// Its client is gone.
    Cancel { seat: u16, at: SimTime, id: JobId },
    /// Forget all cached prefixes of the GPU in this seat.
    ResetPrefixCache { seat: u16, at: SimTime, done: Vote },
    /// This, and nothing that was planned before, befalls the GPU in this seat; void if it has been
    /// told of a later change.
    Disturb { seat: u16, at: SimTime, change: u64, timeline: Box<[Timed]> },
}

impl Order {
    /// The seat of the GPU that it is for.
    pub(crate) fn seat(&self) -> u16 {
        match self {
            Self::Submit { seat, .. }
            | Self::Cancel { seat, .. }
            | Self::ResetPrefixCache { seat, .. }
            | Self::Disturb { seat, .. } => *seat,
        }
    }

    /// When it was given.
    pub(crate) fn at(&self) -> SimTime {
        match self {
            Self::Submit { at, .. }
            | Self::Cancel { at, .. }
            | Self::ResetPrefixCache { at, .. }
            | Self::Disturb { at, .. } => *at,
        }
    }
}

/// What a GPU thread tells an I/O thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    /// The engine holds the job, since this instant.
    Queued(JobId, SimTime),
    /// The engine does not take the job.
    Refused(JobId, Refusal),
    /// Something happened to the job, and was released at this instant. Of a token that speaks for
    /// later ones, too, the instants are those of the oldest of them.
    Event(Event, SimTime),
}

/// Wakes one sleeper, and only if it sleeps: waking a sleeping thread costs 17 µs here, looking at
/// the flag 0.2 µs.
#[derive(Debug, Default)]
pub(crate) struct Doorbell {
    asleep: AtomicBool,
    sleeper: OnceLock<Sleeper>,
}

#[derive(Debug)]
enum Sleeper {
    Task(Waker),
    Thread(Thread),
}

impl Doorbell {
    /// Names the task to wake. A doorbell serves one sleeper for its whole life.
    pub(crate) fn serve_task(&self, waker: &Waker) {
        self.sleeper.get_or_init(|| Sleeper::Task(waker.clone()));
    }

    /// Names the thread to wake.
    pub(crate) fn serve_thread(&self, thread: Thread) {
        self.sleeper.get_or_init(|| Sleeper::Thread(thread));
    }

    /// Wakes the sleeper if it sleeps; to be called after publishing.
    pub(crate) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            match self.sleeper.get() {
                Some(Sleeper::Task(waker)) => waker.wake_by_ref(),
                Some(Sleeper::Thread(thread)) => thread.unpark(),
                None => unreachable!("a sleeper says who it is before it sleeps"),
            }
        }
    }

    /// The sleeper is about to sleep: it must look at its queues once more before it does.
    pub(crate) fn about_to_sleep(&self) {
        debug_assert!(self.sleeper.get().is_some(), "nobody to wake");
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake, whoever woke it.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

/// The orders waiting for a GPU thread. Bounded: what an I/O thread does that finds it full is told at
/// [`Outbox`](crate::outbox::Outbox).
#[derive(Debug)]
pub(crate) struct Inbox {
    orders: ArrayQueue<Order>,
    closed: AtomicBool,
    pub(crate) bell: Doorbell,
}

impl Inbox {
    /// Orders, of all I/O threads together, that may wait: many times what arrives while a GPU
    /// thread is busy with one step.
    const CAPACITY: usize = 8192;

    pub(crate) fn new() -> Self {
        Self {
            orders: ArrayQueue::new(Self::CAPACITY),
            closed: AtomicBool::new(false),
            bell: Doorbell::default(),
        }
    }

    /// Hands the order over and wakes the GPU thread, or gives it back if the queue is full.
    pub(crate) fn push(&self, order: Order) -> Result<(), Order> {
        self.orders.push(order)?;
        self.bell.ring();
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<Order> {
        self.orders.pop()
    }

    /// Nothing more will be ordered, and the GPU thread may end.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.orders.is_empty()
    }

    /// Whether the GPU thread may sleep: no order waits, nor the end.
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_empty() && !self.is_closed()
    }
}

/// A ring for reports and the bell of the I/O thread that reads it.
pub(crate) fn reports(capacity: usize, bell: Arc<Doorbell>) -> (Reporter, rtrb::Consumer<Report>) {
    let (ring, reader) = rtrb::RingBuffer::new(capacity);
    let reporter = Reporter {
        ring,
        bell,
        spilled: VecDeque::new(),
        moved: 0,
        latest: HashMap::new(),
        merged: 0,
        unrung: false,
    };
    (reporter, reader)
}

/// The GPU thread's end of a ring.
///
/// If the I/O thread lags so far that the ring is full, reports spill into a list. If that is full
/// too, of each job one plain token is still put into it, and speaks for those after it: it says
/// 'up to here' and keeps its own stamp, so that all of them count as late as the oldest. What is lost
/// is the stamps of the others. Preemptions and what follows on them, of which a request may have any
/// number and which only its timing tells of, are left out. What is left (verdicts, admissions, first
/// and last tokens) is always kept: of each request the full list takes at most five reports.
#[derive(Debug)]
pub(crate) struct Reporter {
    ring: rtrb::Producer<Report>,
    bell: Arc<Doorbell>,
    spilled: VecDeque<Report>,
    /// Reports that have left the list, ever: what is its front was put in after so many others.
    moved: u64,
    /// Of each job, after how many others the token was put into the full list that speaks for later
    /// ones. The list has been full since, so no other plain token of the job stands behind it.
    latest: HashMap<JobId, u64>,
    merged: u64,
    unrung: bool,
}

impl Reporter {
    const SPILL_LIMIT: usize = 65_536;

    /// Puts a report into the ring, without waking anyone.
    pub(crate) fn publish(&mut self, report: Report) {
        self.unrung = true;
        if self.spilled.is_empty() {
            match self.ring.push(report) {
                Ok(()) => return,
                Err(rtrb::PushError::Full(_)) => {}
            }
        }
        if self.spilled.len() < Self::SPILL_LIMIT {
            self.latest.clear();
            self.spilled.push_back(report);
            return;
        }
        match Weight::of(&report) {
            Weight::Kept => self.spilled.push_back(report),
            Weight::Merged(event, released) => self.merge(event, released),
            Weight::LeftOut => {}
        }
    }

    /// Lets the job's token in the full list speak for this one, too, or puts this one there.
    fn merge(&mut self, event: Event, released: SimTime) {
        let behind = self.moved + self.spilled.len() as u64;
        let place = self.latest.entry(event.job).or_insert(behind);
        let at = place.checked_sub(self.moved).and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.spilled.get_mut(at)) {
            Some(Report::Event(older, older_released)) => {
                older.what = event.what;
                // The greatest lag of a release is told of a request, and is no less for this.
                let late = released.saturating_since(event.at);
                *older_released = (*older_released).max(older.at + late);
                self.merged += 1;
            }
            _ => {
                *place = behind;
                self.spilled.push_back(Report::Event(event, released));
            }
        }
    }

    /// Moves what has spilled into the ring as far as there is room, and wakes the reader if
    /// anything was published since the last call.
    pub(crate) fn deliver(&mut self) {
        while let Some(report) = self.spilled.front() {
            if self.ring.push(*report).is_err() {
                break;
            }
            self.spilled.pop_front();
            self.moved += 1;
            self.unrung = true;
        }
        if std::mem::take(&mut self.unrung) {
            self.bell.ring();
        }
    }

    /// Whether reports wait for room: the GPU thread must come back soon, deadline or not.
    pub(crate) fn is_behind(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Tokens for which an older one spoke because the reader lagged too far.
    pub(crate) fn merged(&self) -> u64 {
        self.merged
    }
}

/// What becomes of a report for which there is no room.
enum Weight {
    /// It is kept all the same.
    Kept,
    /// An older token of the job may speak for it.
    Merged(Event, SimTime),
    /// Nobody hears of it.
    LeftOut,
}

impl Weight {
    fn of(report: &Report) -> Self {
        let Report::Event(event, released) = report else { return Self::Kept };
        match event.what {
            What::Token { index, finish: None } if index.get() > 1 => {
                Self::Merged(*event, *released)
            }
            What::Preempted | What::Resumed { .. } => Self::LeftOut,
            What::Token { .. } | What::Admitted { .. } | What::Lost => Self::Kept,
        }
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::sim::Finish;
    use llmsim_engine::units::Tokens;

    use super::*;

    fn token(job: u64, index: u32) -> Report {
        let at = SimTime::from_ns(u64::from(index));
        let what = What::Token { index: Tokens::new(index), finish: None };
        Report::Event(Event { at, job: JobId(job), what }, at)
    }

    /// Of a report of tokens: their job, the instant that it bears, which in these tests is the number
    /// of a token, and the number of the newest.
    fn told(report: &Report) -> (u64, u64, u32) {
        match report {
            Report::Event(Event { at, job, what: What::Token { index, .. } }, _) => {
                (job.0, at.as_ns(), index.get())
            }
            other => panic!("{other:?}"),
        }
    }

    fn index_of(report: &Report) -> u32 {
        told(report).2
    }

    fn read_all(
        reporter: &mut Reporter,
        reader: &mut rtrb::Consumer<Report>,
        mut hear: impl FnMut(&Report),
    ) {
        loop {
            reporter.deliver();
            let Ok(first) = reader.pop() else { return };
            hear(&first);
            while let Ok(report) = reader.pop() {
                hear(&report);
            }
        }
    }

    #[test]
    fn a_full_ring_spills_and_keeps_the_order() {
        let (mut reporter, mut reader) = reports(4, Arc::new(Doorbell::default()));
        for index in 1..=10 {
            reporter.publish(token(1, index));
        }
        assert!(reporter.is_behind());
        let mut seen = Vec::new();
        while seen.len() < 10 {
            reporter.deliver();
            while let Ok(report) = reader.pop() {
                seen.push(index_of(&report));
            }
        }
        assert_eq!(seen, (1..=10).collect::<Vec<_>>());
        assert!(!reporter.is_behind());
    }

    #[test]
    fn a_reader_that_stopped_costs_bounded_memory_and_still_learns_how_far_things_are() {
        let (mut reporter, mut reader) = reports(4, Arc::new(Doorbell::default()));
        for index in 1..=200_000 {
            reporter.publish(token(1, index));
        }
        assert_eq!(reporter.spilled.len(), Reporter::SPILL_LIMIT + 1);
        assert_eq!(reporter.merged(), 200_000 - 4 - Reporter::SPILL_LIMIT as u64 - 1);
        let mut last = 0;
        read_all(&mut reporter, &mut reader, |report| {
            assert!(index_of(report) > last);
            last = index_of(report);
        });
        assert_eq!(last, 200_000);
        reporter.publish(token(1, 200_001));
        reporter.deliver();
        assert_eq!(index_of(&reader.pop().unwrap()), 200_001);
    }

    #[test]
    fn a_token_that_speaks_for_others_is_the_oldest_of_them() {
        const JOBS: u64 = 3;
        let (mut reporter, mut reader) = reports(4, Arc::new(Doorbell::default()));
        let (mut published, mut last) = (0, [0; JOBS as usize]);
        // What is told of a job begins where the last left off, and bears the stamp of its beginning.
        let mut hear = |report: &Report| {
            let (job, at, index) = told(report);
            let last = &mut last[job as usize];
            assert_eq!(at, u64::from(*last) + 1, "job {job} up to {index}");
            assert!(index > *last, "job {job}: {index} after {last}");
            *last = index;
        };
        // The reader stops, reads a little of the full list, then so much that it is no longer full,
        // and at last all.
        for reads in [0, 10, 40_000, 10, 0, usize::MAX, 0, usize::MAX] {
            for _ in 0..30_000 {
                published += 1;
                (0..JOBS).for_each(|job| reporter.publish(token(job, published)));
            }
            for _ in 0..reads {
                reporter.deliver();
                let Ok(report) = reader.pop() else { break };
                hear(&report);
            }
            assert!(reporter.spilled.len() <= Reporter::SPILL_LIMIT + JOBS as usize);
        }
        assert!(reporter.merged() > 0);
        assert_eq!(last, [published; JOBS as usize]);
    }

    #[test]
    fn of_tokens_that_another_speaks_for_the_greatest_lag_of_the_release_is_kept() {
        let (mut reporter, mut reader) = reports(1, Arc::new(Doorbell::default()));
        for index in 1..=1 + Reporter::SPILL_LIMIT as u32 {
            reporter.publish(token(1, index));
        }
        for (index, at, released) in [(1, 100, 101), (2, 200, 203), (3, 300, 309), (4, 400, 401)] {
            let what = What::Token { index: Tokens::new(index), finish: None };
            let event = Event { at: SimTime::from_ns(at), job: JobId(2), what };
            reporter.publish(Report::Event(event, SimTime::from_ns(released)));
        }
        let mut heard = Vec::new();
        read_all(&mut reporter, &mut reader, |report| {
            if let Report::Event(event @ Event { job: JobId(2), .. }, released) = report {
                heard.push((index_of(report), event.at.as_ns(), released.as_ns()));
            }
        });
        // A first token is always told. The second speaks for two more; the third was 9 ns late.
        assert_eq!(heard, [(1, 100, 101), (4, 200, 209)]);
    }

    #[test]
    fn a_gpu_that_thrashes_does_not_fill_the_memory_of_a_reader_that_stopped() {
        let (mut reporter, _reader) = reports(4, Arc::new(Doorbell::default()));
        let at = SimTime::ZERO;
        let event = |what| Report::Event(Event { at, job: JobId(1), what }, at);
        reporter.publish(Report::Queued(JobId(1), SimTime::ZERO));
        reporter.publish(event(What::Admitted { cached: Tokens::ZERO }));
        for _ in 0..100_000 {
            reporter.publish(event(What::Preempted));
            reporter.publish(event(What::Resumed { cached: Tokens::ZERO }));
        }
        assert_eq!(reporter.spilled.len(), Reporter::SPILL_LIMIT);
        // No token was merged into another, and the end is told.
        assert_eq!(reporter.merged(), 0);
        let last = What::Token { index: Tokens::new(2), finish: Some(Finish::Stop) };
        reporter.publish(event(last));
        assert_eq!(reporter.spilled.len(), Reporter::SPILL_LIMIT + 1);
    }

    #[test]
    fn a_sleeper_is_woken_whenever_something_was_published_before_it_slept() {
        // The publisher and the sleeper race a hundred thousand times; a lost wake-up would leave
        // the sleeper parked for ever, since it never parks with a time-out.
        const ROUNDS: u32 = 100_000;
        let inbox = Arc::new(Inbox::new());
        let reader = {
            let inbox = Arc::clone(&inbox);
            std::thread::spawn(move || {
                inbox.bell.serve_thread(std::thread::current());
                let mut received = 0;
                while received < ROUNDS {
                    if inbox.pop().is_some() {
                        received += 1;
                        continue;
                    }
                    inbox.bell.about_to_sleep();
                    if inbox.is_quiet() {
                        std::thread::park();
                    }
                    inbox.bell.awake();
                }
            })
        };
        for round in 0..ROUNDS {
            let mut order =
                Order::Cancel { seat: 0, at: SimTime::ZERO, id: JobId(u64::from(round)) };
            while let Err(back) = inbox.push(order) {
                order = back;
                std::thread::yield_now();
            }
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_sleeper_is_woken_by_the_end_whenever_it_comes() {
        for _ in 0..2_000 {
            let inbox = Arc::new(Inbox::new());
            let reader = {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || {
                    inbox.bell.serve_thread(std::thread::current());
                    while !inbox.is_closed() {
                        inbox.bell.about_to_sleep();
                        if inbox.is_quiet() {
                            std::thread::park();
                        }
                        inbox.bell.awake();
                    }
                })
            };
            inbox.close();
            reader.join().unwrap();
        }
    }
}
