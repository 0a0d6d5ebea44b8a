//! The live driver of simulated GPUs: real time in, events out.
//!
//! It decides nothing about scheduling and knows no socket. It takes orders, tells its engines the
//! time, publishes what happened to the I/O threads, wakes each of them once, and waits for the
//! next deadline. The invariant: it never waits for anyone but the clock and its inbox, so that
//! simulated step times are exact whatever the clients do; being late shows only as lag.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use llmsim_engine::faults::Timed;
use llmsim_engine::observe::{Recorder, Submitted};
use llmsim_engine::record::Note;
use llmsim_engine::sim::scheduler::{Recording, StepLog};
use llmsim_engine::sim::{Disturbance, Engine, Event, Job, NORMAL, Verdict};
use llmsim_engine::units::{JobId, SimSpan, SimTime};

use crate::args::Spin;
use crate::clock::Clock;
use crate::faults::Faults;
use crate::journal::SeatJournal;
use crate::lobby::Lobby;
use crate::metrics::record::{GpuGauges, GpuShard};
use crate::ring::{Inbox, Order, Report, Reporter};
use crate::served::Down;
use crate::step_writer::Tap;
use crate::sys;

/// Where a job's reports go: its id says so, and the engine never looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// The I/O thread.
    pub(crate) io: u8,
    /// The slot in that thread's table of generations.
    pub(crate) slot: u32,
    /// Which use of the slot: a report for an earlier one is stale.
    pub(crate) generation: u32,
    /// Which of the generation's lanes.
    pub(crate) lane: u16,
}

impl Address {
    /// Generations wrap after this many uses of one slot.
    pub(crate) const GENERATIONS: u32 = 1 << 20;
    /// Slots of an I/O thread. A process has no more sockets than that (Linux: `nr_open`).
    pub(crate) const SLOTS: u32 = 1 << 20;

    pub(crate) fn job_id(self) -> JobId {
        debug_assert!(self.generation < Self::GENERATIONS && self.slot < Self::SLOTS);
        let (io, generation) = (u64::from(self.io), u64::from(self.generation));
        JobId(io << 56 | generation << 36 | u64::from(self.lane) << 20 | u64::from(self.slot))
    }

    pub(crate) fn of(job: JobId) -> Self {
        Self {
            io: (job.0 >> 56) as u8,
            generation: (job.0 >> 36) as u32 % Self::GENERATIONS,
            lane: (job.0 >> 20) as u16,
            slot: job.0 as u32 % Self::SLOTS,
        }
    }

    /// The same generation's lane of that number.
    pub(crate) fn lane(self, lane: usize) -> Self {
        Self { lane: u16::try_from(lane).expect("lanes are counted in 16 bits"), ..self }
    }
}

/// One simulated GPU and where it stands.
#[derive(Debug)]
pub(crate) struct Seat {
    engine: Engine,
    lobby: Lobby,
    /// The latest time that the engine was told.
    told: SimTime,
    /// When tokens were last released, for the quantum.
    released: Option<SimTime>,
    quantum: SimSpan,
    gauges: Arc<GpuGauges>,
    recorder: Recorder,
    /// The steps that ended; storage that goes back and forth with the engine.
    steps: StepLog,
    /// Something happened since the gauges were published.
    is_changed: bool,
    journal: Option<SeatJournal>,
    tap: Option<Tap>,
    troubles: Troubles,
}

/// What is to befall a simulated GPU, and who hears of it.
#[derive(Debug)]
pub(crate) struct Troubles {
    /// In order of time.
    pub(crate) timeline: VecDeque<Timed>,
    /// Which change of the plan it is from.
    pub(crate) change: u64,
    /// The GPU's place among those with a timeline.
    pub(crate) gpu: usize,
    pub(crate) faults: Arc<Faults>,
    /// Until when it takes no requests, for those who deal them out.
    pub(crate) down: Arc<Down>,
}

impl Troubles {
    /// Tells those who deal requests out of a crash.
    fn announce(&self, at: SimTime, what: Disturbance) {
        if let Disturbance::Crash { down } = what {
            self.down.until(at + down);
        }
    }

    /// Takes another timeline, unless it is from an earlier change than this one; whether it was taken.
    fn replace(&mut self, change: u64, timeline: Box<[Timed]>) -> bool {
        let is_later = change > self.change;
        if is_later {
            self.change = change;
            self.timeline = VecDeque::from(timeline.into_vec());
        }
        is_later
    }
}

impl Seat {
    /// Streams that are not in step are released at most this often: with a wake-up per token, the
    /// GPU thread never slept at 10 to 20 µs between tokens, and starved the I/O thread for up to a
    /// second. With 200 µs, 2,000 streams of 50 tokens/s had a lag of 0.25 ms p50 and 0.33 ms p90
    /// (2 cores, kernel 6.18).
    const QUANTUM: SimSpan = SimSpan::from_us(200);

    pub(crate) fn new(
        mut engine: Engine,
        request_overhead: SimSpan,
        gauges: Arc<GpuGauges>,
        mut recorder: Recorder,
        journal: Option<SeatJournal>,
        tap: Option<Tap>,
        troubles: Troubles,
    ) -> Self {
        engine.record_steps(Recording::On);
        recorder.gauges(&engine.gauges());
        let quantum = match engine {
            Engine::FixedRate(_) => Self::QUANTUM,
            _ => SimSpan::ZERO,
        };
        gauges.publish(&engine.gauges());
        // What is down from the start is so before anyone can ask, however late this thread runs.
        for timed in troubles.timeline.iter().take_while(|timed| timed.at == SimTime::ZERO) {
            troubles.announce(timed.at, timed.what);
        }
        Self {
            engine,
            lobby: Lobby::new(request_overhead),
            told: SimTime::ZERO,
            released: None,
            quantum,
            gauges,
            recorder,
            steps: StepLog::default(),
            is_changed: false,
            journal,
            tap,
            troubles,
        }
    }

    /// When this GPU wants to be looked at.
    fn due(&self) -> Option<SimTime> {
        let engine = self.engine.deadline().map(|deadline| {
            self.released.map_or(deadline, |released| deadline.max(released + self.quantum))
        });
        let trouble = self.troubles.timeline.front().map(|timed| timed.at);
        [engine, self.lobby.due(), trouble].into_iter().flatten().min()
    }

    /// Lets the requests into the engine whose overhead is over at `now`, each at its own instant,
    /// and reports the verdicts; and lets happen in between what is to befall the GPU.
    fn admit(&mut self, now: SimTime, events: &mut Vec<Event>, reporters: &mut [Reporter]) {
        loop {
            let request = self.lobby.due().filter(|&due| due <= now);
            let next = request.unwrap_or(now);
            if let Some(timed) = self.troubles.timeline.front().filter(|timed| timed.at <= next) {
                let Timed { at, what } = *timed;
                self.troubles.timeline.pop_front();
                self.disturb(at, what);
                continue;
            }
            let Some((due, job)) = self.lobby.leave(now) else { return };
            let at = due.max(self.told);
            if self.engine.deadline().is_some_and(|due| due < at) {
                self.advance(at, events);
            }
            let io = usize::from(Address::of(job.id).io);
            reporters[io].publish(self.submit(at, job));
            self.told = at;
            self.is_changed = true;
        }
    }

    fn advance(&mut self, now: SimTime, events: &mut Vec<Event>) {
        self.told = now;
        let before = events.len();
        self.engine.advance(now, events);
        if let Some(journal) = &mut self.journal {
            journal.advance(now, &events[before..]);
        }
        if let Some(tap) = &mut self.tap {
            events[before..].iter().for_each(|event| tap.note(Note::Happened(*event)));
        }
    }

    fn submit(&mut self, at: SimTime, job: Job) -> Report {
        if let Some(journal) = &mut self.journal {
            journal.inputs.submit(at, &job);
        }
        let (id, prompt) = (job.id, job.prompt);
        match self.engine.submit(at, job) {
            Verdict::Queued => {
                if let Some(tap) = &mut self.tap {
                    tap.note(Note::Arrived { at, job: id, prompt });
                }
                self.recorder.queued(id, at);
                Report::Queued(id, at)
            }
            Verdict::Refused(why) => {
                self.recorder.refused(id, why);
                if let Some(journal) = &mut self.journal {
                    journal.refuse(at, id, why);
                }
                Report::Refused(id, why)
            }
        }
    }

    fn cancel(&mut self, at: SimTime, id: JobId) {
        self.recorder.cancelled(id);
        if self.lobby.cancel(id) {
            return;
        }
        if let Some(journal) = &mut self.journal {
            journal.inputs.cancel(at, id);
        }
        if let Some(tap) = &mut self.tap {
            tap.note(Note::Cancelled { at, job: id });
        }
        self.engine.cancel(at, id);
    }

    /// The engine sees it before all else that is due at `at`.
    fn disturb(&mut self, at: SimTime, what: Disturbance) {
        let at = at.max(self.told);
        if let Some(journal) = &mut self.journal {
            journal.inputs.disturb(at, what);
        }
        self.engine.disturb(at, what);
        self.told = at;
        self.is_changed = true;
        self.troubles.announce(at, what);
        let Troubles { faults, gpu, .. } = &self.troubles;
        if !what.is_end() {
            faults.log.disturbed(*gpu, what, at);
        }
    }

    fn reset_prefix_cache(&mut self, at: SimTime) -> bool {
        if let Some(journal) = &mut self.journal {
            journal.inputs.reset_prefix_cache(at);
        }
        self.engine.reset_prefix_cache(at)
    }

    /// Nothing else is to be done: whoever looks at the journal sees all that has happened.
    fn flush_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
    }

    /// Hands the steps that ended to whoever counts them and writes them down.
    fn tell_steps(&mut self) {
        self.engine.swap_steps(&mut self.steps);
        self.recorder.steps(&self.steps);
        if let Some(tap) = &mut self.tap {
            tap.flush_steps(self.told, &mut self.steps);
        }
    }

    /// Sends each event to the I/O thread that serves its job, counts it as released now, and
    /// empties the list.
    fn publish(&mut self, events: &mut Vec<Event>, reporters: &mut [Reporter], clock: Clock) {
        if events.is_empty() {
            return;
        }
        let now = clock.now();
        for event in events.drain(..) {
            self.recorder.happened(&event, now);
            let io = usize::from(Address::of(event.job).io);
            reporters[io].publish(Report::Event(event, now));
        }
        self.recorder.settle();
    }
}

/// Everything a GPU thread owns.
#[derive(Debug)]
pub(crate) struct GpuThread {
    pub(crate) clock: Clock,
    pub(crate) seats: Vec<Seat>,
    pub(crate) inbox: Arc<Inbox>,
    /// One per I/O thread.
    pub(crate) reporters: Vec<Reporter>,
    pub(crate) shard: Arc<GpuShard>,
    pub(crate) spin: Spin,
}

/// Orders taken in before the deadlines are looked at again and the I/O threads are told: a burst
/// of 8,192 cancels, at 1 µs each, must not hold up other seats' steps.
const ORDERS_PER_TURN: usize = 64;

/// Before so long a pause, and one without an end, what the journals hold is passed on.
const LONG_PAUSE: SimSpan = SimSpan::from_ms(100);

/// The shortest there is: a step's tokens are not to wait for the turn of whoever works just now, be
/// it the I/O thread on the same processor. See [`sys::short_turns`].
const TURN: Duration = Duration::from_micros(100);

impl GpuThread {
    /// Runs until told to stop; to be called on the thread's own stack.
    pub(crate) fn run(mut self) {
        sys::smallest_timer_slack();
        sys::short_turns(TURN);
        self.inbox.bell.serve_thread(std::thread::current());
        let mut events = Vec::with_capacity(4096);
        let mut pause = Pause::new(self.spin);
        while !self.inbox.is_closed() {
            self.take_orders(&mut events);
            self.advance(&mut events);
            for reporter in &mut self.reporters {
                reporter.deliver();
            }
            self.seats.iter_mut().for_each(Seat::tell_steps);
            let deadline = self.deadline();
            if deadline.is_none_or(|deadline| deadline > self.clock.now() + LONG_PAUSE) {
                self.seats.iter_mut().for_each(Seat::flush_journal);
            }
            pause.until(deadline, self.clock, &self.inbox);
        }
        // Cancellations of streams that were cut belong into the journal.
        while !self.inbox.is_empty() {
            self.take_orders(&mut events);
        }
        self.advance(&mut events);
        self.seats.iter_mut().for_each(Seat::tell_steps);
    }

    /// Takes in what was ordered, but no more than fits between two looks at the deadlines.
    fn take_orders(&mut self, events: &mut Vec<Event>) {
        for _ in 0..ORDERS_PER_TURN {
            let Some(order) = self.inbox.pop() else { return };
            let at = order.at();
            let seat = &mut self.seats[usize::from(order.seat())];
            seat.admit(at, events, &mut self.reporters);
            // The order is as old as its stamp, but the engine's time never runs back. Whatever was
            // due before goes first, so that a late look at the inbox does not bend the timeline.
            let at = at.max(seat.told);
            if seat.engine.deadline().is_some_and(|due| due < at) {
                seat.advance(at, events);
            }
            seat.publish(events, &mut self.reporters, self.clock);
            match order {
                Order::Submit { job, received, siblings, .. } => {
                    seat.recorder.submitted(&Submitted {
                        job: job.id,
                        prompt: job.prompt,
                        max_tokens: job.max_tokens,
                        arrived: received,
                        queued: at,
                        siblings,
                    });
                    let io = usize::from(Address::of(job.id).io);
                    if let Some(job) = seat.lobby.enter(at, job) {
                        let report = seat.submit(at, job);
                        self.reporters[io].publish(report);
                    }
                }
                Order::Cancel { id, .. } => seat.cancel(at, id),
                Order::ResetPrefixCache { done, .. } => done.cast(seat.reset_prefix_cache(at)),
                Order::Disturb { change, timeline, .. } => {
                    if seat.troubles.replace(change, timeline) {
                        // Whatever was planned before is over.
                        seat.disturb(at, Disturbance::Slow { thousandths: NORMAL });
                        seat.disturb(at, Disturbance::Shrink { thousandths: NORMAL });
                    }
                }
            }
            seat.told = at;
            seat.is_changed = true;
        }
    }

    fn advance(&mut self, events: &mut Vec<Event>) {
        let now = self.clock.now();
        for seat in &mut self.seats {
            if seat.due().is_some_and(|due| due <= now) {
                seat.admit(now, events, &mut self.reporters);
                seat.advance(now, events);
                seat.publish(events, &mut self.reporters, self.clock);
                // At once: the steps of other seats that are due need not be waited for.
                self.reporters.iter_mut().for_each(Reporter::deliver);
                seat.released = Some(now);
                seat.is_changed = true;
            }
            if std::mem::take(&mut seat.is_changed) {
                seat.gauges.publish(&seat.engine.gauges());
                seat.recorder.gauges(&seat.engine.gauges_after_step());
                if let Some(journal) = &mut seat.journal {
                    journal.pass_on();
                }
            }
        }
        self.shard.merged_tokens.set(self.reporters.iter().map(Reporter::merged).sum());
    }

    fn deadline(&self) -> Option<SimTime> {
        let due = self.seats.iter().filter_map(Seat::due).min();
        if self.reporters.iter().any(Reporter::is_behind) {
            // An I/O thread has no room for what has happened already.
            let soon = self.clock.now() + SimSpan::from_ms(1);
            return Some(due.map_or(soon, |due| due.min(soon)));
        }
        due
    }
}

/// Waiting for a deadline, or for an order.
///
/// A sleep ends late: by 44 µs at the median on a busy two-core guest, 105 µs on an idle one. So
/// the thread sleeps up to a margin before the deadline and spins the rest. The margin follows the
/// lateness that this machine shows, and shrinks to the median (a spin only for what a sleep ended
/// early) where no processor can be spared for spinning.
#[derive(Debug)]
struct Pause {
    policy: Spin,
    margin: SimSpan,
    lateness: [u32; Pause::SAMPLES],
    taken: usize,
    last_deadline: SimTime,
    /// From the deadline before it to the last one.
    period: SimSpan,
    switches: u64,
}

impl Pause {
    const SAMPLES: usize = 256;
    const FIRST_MARGIN: SimSpan = SimSpan::from_us(100);
    const LEAST_MARGIN: SimSpan = SimSpan::from_us(20);
    const MOST_MARGIN: SimSpan = SimSpan::from_us(200);
    /// Where nothing may spin for long.
    const MOST_MARGIN_CROWDED: SimSpan = SimSpan::from_us(50);

    fn new(policy: Spin) -> Self {
        let margin = match policy {
            Spin::Auto => Self::FIRST_MARGIN,
            Spin::Never | Spin::Always => SimSpan::ZERO,
        };
        Self {
            policy,
            margin,
            lateness: [0; Self::SAMPLES],
            taken: 0,
            last_deadline: SimTime::ZERO,
            period: SimSpan::ZERO,
            switches: 0,
        }
    }

    fn until(&mut self, deadline: Option<SimTime>, clock: Clock, inbox: &Inbox) {
        let Some(deadline) = deadline else {
            sleep(inbox, None);
            return;
        };
        let margin = self.margin_before(deadline);
        loop {
            let now = clock.now();
            if now >= deadline || !inbox.is_quiet() {
                return;
            }
            let left = deadline - now;
            if self.policy != Spin::Always && left > margin {
                let nap = left - margin;
                sleep(inbox, Some(Duration::from_nanos(nap.as_ns())));
                let woken = clock.now();
                if woken >= now + nap {
                    self.learn(woken - (now + nap));
                }
                continue;
            }
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
    }

    /// How long before a deadline the sleep ends: at most 2 % of a step is spun away. Orders that
    /// come during a step interrupt the wait for its end, and do not make it another step.
    fn margin_before(&mut self, deadline: SimTime) -> SimSpan {
        if deadline != self.last_deadline {
            self.period = deadline.saturating_since(self.last_deadline);
            self.last_deadline = deadline;
        }
        self.margin.min(SimSpan::from_ns(self.period.as_ns() / 50))
    }

    fn learn(&mut self, late: SimSpan) {
        self.lateness[self.taken % Self::SAMPLES] = u32::try_from(late.as_ns()).unwrap_or(u32::MAX);
        self.taken += 1;
        if !self.taken.is_multiple_of(Self::SAMPLES) {
            return;
        }
        let switches = sys::involuntary_switches();
        let taken_away = switches - self.switches;
        self.switches = switches;
        let mut sorted = self.lateness;
        sorted.sort_unstable();
        // One wait in ten interrupted: somebody else needs this processor.
        let crowded = taken_away > Self::SAMPLES as u64 / 10;
        self.margin = if self.policy == Spin::Never || crowded {
            SimSpan::from_ns(u64::from(sorted[Self::SAMPLES / 2])).min(Self::MOST_MARGIN_CROWDED)
        } else {
            let p90 = u64::from(sorted[Self::SAMPLES * 9 / 10]);
            SimSpan::from_ns(p90 + p90 / 4).clamp(Self::LEAST_MARGIN, Self::MOST_MARGIN)
        };
    }
}

fn sleep(inbox: &Inbox, time: Option<Duration>) {
    inbox.bell.about_to_sleep();
    if inbox.is_quiet() {
        match time {
            Some(time) => std::thread::park_timeout(time),
            None => std::thread::park(),
        }
    }
    inbox.bell.awake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_into_which_orders_come_ends_as_exactly_as_any_other() {
        let at = |ms: u64| SimTime::ZERO + SimSpan::from_ms(ms);
        let mut pause = Pause::new(Spin::Auto);
        pause.margin_before(at(1_000));
        // A step of 4 ms: 2 % are 80 us, less than the 100 us that a sleep is not trusted with.
        assert_eq!(pause.margin_before(at(1_004)), SimSpan::from_us(80));
        // The wait for the same deadline, begun anew after each of three orders.
        for _ in 0..3 {
            assert_eq!(pause.margin_before(at(1_004)), SimSpan::from_us(80));
        }
        assert_eq!(pause.margin_before(at(1_024)), SimSpan::from_us(100));
    }

    /// Two plans that two I/O threads were given at once may come here in the other order.
    #[test]
    fn a_plan_that_comes_late_does_not_replace_a_later_one() {
        let mut troubles = Troubles {
            timeline: VecDeque::new(),
            change: 0,
            gpu: 0,
            faults: Arc::new(Faults::none()),
            down: Arc::new(Down::default()),
        };
        let slow = |thousandths| {
            let what = Disturbance::Slow { thousandths };
            Box::from([Timed { at: SimTime::ZERO, what }])
        };
        assert!(troubles.replace(2, slow(2_000)));
        assert!(!troubles.replace(1, slow(1_000)));
        assert_eq!(troubles.timeline, &*slow(2_000));
        assert!(troubles.replace(3, slow(3_000)));
        assert_eq!(troubles.timeline, &*slow(3_000));
    }

    #[test]
    fn an_address_survives_being_a_job_id() {
        for address in [
            Address { io: 0, slot: 0, generation: 0, lane: 0 },
            Address {
                io: 255,
                slot: Address::SLOTS - 1,
                generation: Address::GENERATIONS - 1,
                lane: u16::MAX,
            },
            Address { io: 3, slot: 17, generation: 5, lane: 2 },
        ] {
            assert_eq!(Address::of(address.job_id()), address);
        }
    }
}
