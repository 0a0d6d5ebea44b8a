//! The engines in which a job is alone on its own timetable: `instant` and `fixed_rate`.
//!
//! No job here ever delays another, and nothing is planned: when a job arrives, the instant of each
//! of its tokens is known. The invariant: a token's instant is computed from the arrival and the
//! token's number alone, never from the token before it, so a timetable cannot drift.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use crate::seed::LookupMap;
use crate::sim::{Disturbance, Event, Finish, Job, NORMAL, Refusal, Verdict, What, stretched};
use crate::units::{JobId, Rate, SimSpan, SimTime, Tokens};

/// The timetable of `engine: fixed_rate`: the first token after `overhead` + prompt ÷ `prefill`,
/// then one every 1 ÷ `decode`, on absolute deadlines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedRateSpec {
    /// Time before the prompt is looked at.
    pub overhead: SimSpan,
    /// Prompt tokens per second.
    pub prefill: Rate,
    /// Output tokens per second.
    pub decode: Rate,
}

/// How many tokens a job gets, and why no more.
fn output_of(job: &Job) -> (Tokens, Finish) {
    let most = job.max_tokens.max(Tokens::new(1));
    match job.stop_after.map(|stop| stop.max(Tokens::new(1))) {
        Some(stop) if stop <= most => (stop, Finish::Stop),
        _ => (most, Finish::Length),
    }
}

/// `engine: instant`: a job's tokens all happen at the instant of its arrival.
#[derive(Debug, Default)]
pub struct Instant {
    now: SimTime,
    /// Jobs whose events have not been fetched, in order of arrival.
    arrived: VecDeque<Arrived>,
}

#[derive(Clone, Copy, Debug)]
struct Arrived {
    at: SimTime,
    job: JobId,
    tokens: Tokens,
    finish: Finish,
    /// Tokens told so far.
    told: u32,
    is_admitted: bool,
}

impl Arrived {
    /// Its admission, the first time.
    fn admit(&mut self) -> Option<Event> {
        let is_new = !std::mem::replace(&mut self.is_admitted, true);
        let what = What::Admitted { cached: Tokens::ZERO };
        is_new.then_some(Event { at: self.at, job: self.job, what })
    }

    fn token(&self, index: u32) -> Event {
        let finish = (index == self.tokens.get()).then_some(self.finish);
        let what = What::Token { index: Tokens::new(index), finish };
        Event { at: self.at, job: self.job, what }
    }
}

impl Instant {
    /// An idle engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// See [`Engine::submit`](crate::sim::Engine::submit).
    pub fn submit(&mut self, now: SimTime, job: &Job) -> Verdict {
        self.pass_to(now);
        let (tokens, finish) = output_of(job);
        let job = job.id;
        self.arrived.push_back(Arrived {
            at: now,
            job,
            tokens,
            finish,
            told: 0,
            is_admitted: false,
        });
        Verdict::Queued
    }

    /// See [`Engine::cancel`](crate::sim::Engine::cancel): too late unless it arrives at the very
    /// instant of the job.
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        self.pass_to(now);
        self.arrived.retain(|arrived| arrived.job != id || arrived.at < now);
    }

    /// See [`Engine::deadline`](crate::sim::Engine::deadline).
    pub fn deadline(&self) -> Option<SimTime> {
        self.arrived.front().map(|arrived| arrived.at)
    }

    /// See [`Engine::advance`](crate::sim::Engine::advance).
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        self.pass_to(now);
        while let Some(mut arrived) = self.arrived.pop_front() {
            out.extend(arrived.admit());
            out.extend((arrived.told + 1..=arrived.tokens.get()).map(|index| arrived.token(index)));
        }
    }

    /// See [`Engine::advance_some`](crate::sim::Engine::advance_some). Jobs with more to tell take
    /// turns.
    pub fn advance_some(&mut self, now: SimTime, most: usize, out: &mut Vec<Event>) {
        self.pass_to(now);
        let mut left = most;
        while left > 0
            && let Some(mut arrived) = self.arrived.pop_front()
        {
            out.extend(arrived.admit());
            let more = u32::try_from(left).unwrap_or(u32::MAX);
            let end = arrived.tokens.get().min(arrived.told.saturating_add(more));
            out.push(arrived.token(end));
            left -= (end - arrived.told) as usize;
            arrived.told = end;
            if end < arrived.tokens.get() {
                self.arrived.push_back(arrived);
            }
        }
    }

    /// Jobs that the engine holds.
    pub fn held(&self) -> usize {
        self.arrived.len()
    }

    fn pass_to(&mut self, now: SimTime) {
        assert!(now >= self.now, "time runs back from {} to {now}", self.now);
        self.now = now;
    }
}

/// `engine: fixed_rate`.
#[derive(Debug)]
pub struct FixedRate {
    spec: FixedRateSpec,
    now: SimTime,
    streams: Vec<Stream>,
    vacant: Vec<u32>,
    by_id: LookupMap<JobId, u32>,
    /// The next token of each stream, earliest first; of equal ones the job that arrived first.
    /// Cancelled streams leave their entry behind, told apart by the order of arrival; once these
    /// are more than the living, they are swept out, so that no more is kept than twice what is
    /// held.
    due: BinaryHeap<Reverse<(SimTime, u64, u32)>>,
    arrivals: u64,
    /// What happened and has not been fetched.
    events: Vec<Event>,
    /// Thousandths of its time that everything takes.
    pace: u32,
    /// Nothing goes on before this instant.
    paused_until: SimTime,
    /// No job is taken before this instant.
    down_until: SimTime,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    job: JobId,
    /// Order of arrival; `u64::MAX`: no stream.
    order: u64,
    /// When token `from + 1` is due; `from` is 0 unless a disturbance set the timetable anew.
    first: SimTime,
    from: u32,
    /// Tokens given out so far.
    given: u32,
    tokens: u32,
    finish: Finish,
}

impl FixedRate {
    /// An idle engine.
    pub fn new(spec: FixedRateSpec) -> Self {
        Self {
            spec,
            now: SimTime::ZERO,
            streams: Vec::new(),
            vacant: Vec::new(),
            by_id: Default::default(),
            due: BinaryHeap::new(),
            arrivals: 0,
            events: Vec::new(),
            pace: NORMAL,
            paused_until: SimTime::ZERO,
            down_until: SimTime::ZERO,
        }
    }

    /// See [`Engine::submit`](crate::sim::Engine::submit).
    pub fn submit(&mut self, now: SimTime, job: &Job) -> Verdict {
        self.run_before(now);
        if now < self.down_until {
            return Verdict::Refused(Refusal::Down);
        }
        let (tokens, finish) = output_of(job);
        let prompt = self.spec.prefill.time_for(u64::from(job.prompt.get()));
        let stream = Stream {
            job: job.id,
            order: self.arrivals,
            first: now.max(self.paused_until) + stretched(self.spec.overhead + prompt, self.pace),
            from: 0,
            given: 0,
            tokens: tokens.get(),
            finish,
        };
        self.arrivals += 1;
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.streams[slot as usize] = stream;
                slot
            }
            None => {
                self.streams.push(stream);
                self.streams.len() as u32 - 1
            }
        };
        let before = self.by_id.insert(job.id, slot);
        assert!(before.is_none(), "job {} is submitted twice", job.id);
        self.due.push(Reverse((stream.first, stream.order, slot)));
        self.events.push(Event {
            at: now,
            job: job.id,
            what: What::Admitted { cached: Tokens::ZERO },
        });
        Verdict::Queued
    }

    /// See [`Engine::cancel`](crate::sim::Engine::cancel).
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        self.run_before(now);
        if let Some(slot) = self.by_id.remove(&id) {
            self.vacate(slot);
            self.drop_cancelled();
            self.events.retain(|event| event.job != id || event.at < now);
        }
    }

    /// See [`Engine::disturb`](crate::sim::Engine::disturb). Timetables bend, from now on.
    pub fn disturb(&mut self, now: SimTime, what: Disturbance) {
        self.run_before(now);
        match what {
            Disturbance::Slow { thousandths } => {
                let before = self.pace;
                self.pace = thousandths.max(1);
                let (begin, pace) = (now.max(self.paused_until), u128::from(self.pace));
                self.reschedule(|due| {
                    let left = u128::from(due.saturating_since(begin).as_ns());
                    begin + SimSpan::from_ns((left * pace / u128::from(before)) as u64)
                });
            }
            Disturbance::Pause { span } => {
                let until = (now + span).max(self.paused_until);
                let longer = until - now.max(self.paused_until);
                self.paused_until = until;
                self.reschedule(|due| due + longer);
            }
            Disturbance::Crash { down } => {
                self.down_until = self.down_until.max(now + down);
                let mut lost: Vec<Stream> = self.streams.clone();
                lost.retain(|stream| stream.order != u64::MAX);
                lost.sort_unstable_by_key(|stream| stream.order);
                self.streams.clear();
                self.vacant.clear();
                self.due.clear();
                self.by_id.clear();
                let event = |stream: Stream| Event { at: now, job: stream.job, what: What::Lost };
                self.events.extend(lost.into_iter().map(event));
            }
            // No cache, and no batch to be thrown out of.
            Disturbance::Shrink { .. } | Disturbance::Preempt { .. } => {}
        }
    }

    /// Gives the next token of every stream another instant.
    fn reschedule(&mut self, moved: impl Fn(SimTime) -> SimTime) {
        let due = std::mem::take(&mut self.due);
        for Reverse((at, order, slot)) in due {
            let stream = &mut self.streams[slot as usize];
            if stream.order == order {
                stream.first = moved(at);
                stream.from = stream.given;
                self.due.push(Reverse((stream.first, order, slot)));
            }
        }
    }

    /// See [`Engine::deadline`](crate::sim::Engine::deadline).
    pub fn deadline(&self) -> Option<SimTime> {
        let unfetched = self.events.first().map(|event| event.at);
        unfetched.or_else(|| self.due.peek().map(|&Reverse((at, ..))| at))
    }

    /// See [`Engine::advance`](crate::sim::Engine::advance).
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        self.pass_to(now);
        out.append(&mut self.events);
        self.run(|at| at <= now, out);
    }

    /// Jobs that the engine holds.
    pub fn held(&self) -> usize {
        self.by_id.len()
    }

    fn run_before(&mut self, now: SimTime) {
        self.pass_to(now);
        let mut events = std::mem::take(&mut self.events);
        self.run(|at| at < now, &mut events);
        self.events = events;
    }

    fn run(&mut self, is_due: impl Fn(SimTime) -> bool, events: &mut Vec<Event>) {
        while let Some(mut entry) = self.due.peek_mut() {
            let Reverse((at, order, slot)) = *entry;
            if !is_due(at) {
                break;
            }
            let stream = &mut self.streams[slot as usize];
            if stream.order != order {
                PeekMut::pop(entry);
                continue;
            }
            stream.given += 1;
            let last = stream.given == stream.tokens;
            let what = What::Token {
                index: Tokens::new(stream.given),
                finish: last.then_some(stream.finish),
            };
            events.push(Event { at, job: stream.job, what });
            if last {
                let job = stream.job;
                PeekMut::pop(entry);
                stream.order = u64::MAX;
                self.vacant.push(slot);
                self.by_id.remove(&job);
            } else {
                // From the whole count, so that no rounding adds up.
                let count = u64::from(stream.given - stream.from);
                let next = stream.first + stretched(self.spec.decode.time_for(count), self.pace);
                *entry = Reverse((next, order, slot));
            }
        }
        self.drop_cancelled();
    }

    /// Keeps the head of the heap a live stream, so that `deadline` need not look further, and the
    /// entries of cancelled streams no more than the living: each sweep removes more than it keeps,
    /// so it costs a cancellation but its share.
    fn drop_cancelled(&mut self) {
        if self.due.len() > 2 * self.by_id.len() {
            let streams = &self.streams;
            self.due.retain(|&Reverse((_, order, slot))| streams[slot as usize].order == order);
        }
        while let Some(&Reverse((_, order, slot))) = self.due.peek() {
            if self.streams[slot as usize].order == order {
                break;
            }
            self.due.pop();
        }
    }

    fn vacate(&mut self, slot: u32) {
        self.streams[slot as usize].order = u64::MAX;
        self.vacant.push(slot);
    }

    fn pass_to(&mut self, now: SimTime) {
        assert!(now >= self.now, "time runs back from {} to {now}", self.now);
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: u64, tokens: u32) -> Job {
        let max_tokens = Tokens::new(tokens);
        let prompt = Tokens::new(1);
        Job { id: JobId(id), prompt, max_tokens, stop_after: None, priority: 0, chain: None }
    }

    /// Per slice: which jobs were admitted, which told tokens, up to which.
    fn told(events: &[Event]) -> String {
        let mut words: Vec<String> = Vec::new();
        for event in events {
            let id = event.job.0;
            match event.what {
                What::Token { index, finish } => {
                    let word = format!("{id}#{}", index.get());
                    let is_same =
                        words.last().is_some_and(|last| last.starts_with(&format!("{id}#")));
                    if is_same {
                        words.pop();
                    }
                    words.push(if finish.is_some() { word + "." } else { word });
                }
                _ => words.push(format!("{id}+")),
            }
        }
        words.join(" ")
    }

    #[test]
    fn clients_that_hang_up_during_a_long_prefill_leave_nothing_behind() {
        let rate = Rate::per_second(1.0).unwrap();
        let overhead = SimSpan::from_ms(3_600_000);
        let spec = FixedRateSpec { overhead, prefill: rate, decode: rate };
        let mut engine = FixedRate::new(spec);
        engine.submit(SimTime::ZERO, &job(0, 1));
        let mut most = 0;
        for id in 1..=1000 {
            let now = SimTime::from_ns(id);
            engine.submit(now, &job(id, 1));
            engine.cancel(now, JobId(id));
            most = most.max(engine.due.len());
        }
        // The one that is held, and as many of the dead at most.
        assert_eq!((engine.held(), most), (1, 2));
        let mut events = Vec::new();
        engine.advance(SimTime::ZERO + SimSpan::from_ms(3_601_000), &mut events);
        assert_eq!(told(&events), "0+ 0#1.");
    }

    #[test]
    fn a_long_answer_told_in_slices_lets_a_short_one_pass() {
        let now = SimTime::from_ns(5);
        let mut engine = Instant::new();
        engine.submit(now, &job(1, 10));
        let mut slices = Vec::new();
        let mut slice = |engine: &mut Instant| {
            let mut events = Vec::new();
            engine.advance_some(now, 4, &mut events);
            slices.push(told(&events));
        };
        slice(&mut engine);
        engine.submit(now, &job(2, 2));
        assert_eq!(engine.deadline(), Some(now));
        slice(&mut engine);
        slice(&mut engine);
        assert_eq!(engine.deadline(), None);
        // Of the third slice two tokens finish job 1, and the turn it had before came first.
        assert_eq!(slices, ["1+ 1#4", "1#8", "2+ 2#2. 1#10."]);
    }
}
