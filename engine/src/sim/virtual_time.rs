//! The offline driver: inputs in, happenings out, no sleeping.
//!
//! It adds nothing to an engine but the clock, which jumps from one thing to the next. The
//! invariant: the happenings come in order of time, and are those of a live run with the same
//! inputs.

use crate::seed::LookupMap;
use crate::sim::{Arrives, Engine, Event, Finish, Input, Refusal, Verdict, What};
use crate::units::{JobId, SimSpan, SimTime, Tokens};

/// Something that an engine said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// An event of a job that it holds or held.
    Event(Event),
    /// A job that it did not take.
    Refused {
        /// When.
        at: SimTime,
        /// Which.
        job: JobId,
        /// Why.
        why: Refusal,
    },
}

/// What [`watch`] shows of a run, in order.
#[derive(Debug)]
pub enum Seen<'a> {
    /// An input is about to be given to the engine.
    Input(&'a Input),
    /// The engine said something.
    Heard(Happening),
    /// The engine was told the time, and all that happened until then has been heard. Here its
    /// records of steps can be fetched.
    Advanced(&'a mut Engine, SimTime),
}

/// Lets `engine` live through `inputs`, which must be in order of time, and on until it is idle.
///
/// # Panics
/// If the times of the inputs run back.
pub fn run(
    engine: &mut Engine,
    inputs: impl IntoIterator<Item = Input>,
    mut heard: impl FnMut(Happening),
) {
    watch(engine, inputs, |seen| match seen {
        Seen::Heard(happening) => heard(happening),
        Seen::Input(_) | Seen::Advanced(..) => {}
    });
}

/// [`run`] for whoever wants to see more than what the engine says.
///
/// # Panics
/// If the times of the inputs run back.
pub fn watch(
    engine: &mut Engine,
    inputs: impl IntoIterator<Item = Input>,
    mut seen: impl FnMut(Seen<'_>),
) {
    let mut events = Vec::new();
    for input in inputs {
        let at = input.at;
        while let Some(due) = engine.deadline().filter(|&due| due < at) {
            advance(engine, due, &mut events, &mut seen);
        }
        seen(Seen::Input(&input));
        match input.what {
            Arrives::Submit(job) => {
                let id = job.id;
                if let Verdict::Refused(why) = engine.submit(at, job) {
                    seen(Seen::Heard(Happening::Refused { at, job: id, why }));
                }
            }
            Arrives::Cancel(id) => engine.cancel(at, id),
            Arrives::ResetPrefixCache => {
                engine.reset_prefix_cache(at);
            }
            Arrives::Disturb(what) => engine.disturb(at, what),
            Arrives::Advance => advance(engine, at, &mut events, &mut seen),
        }
    }
    while let Some(due) = engine.deadline() {
        advance(engine, due, &mut events, &mut seen);
    }
}

fn advance(
    engine: &mut Engine,
    to: SimTime,
    events: &mut Vec<Event>,
    seen: &mut impl FnMut(Seen<'_>),
) {
    engine.advance(to, events);
    events.drain(..).for_each(|event| seen(Seen::Heard(Happening::Event(event))));
    seen(Seen::Advanced(engine, to));
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobResult {
    /// Which.
    pub job: JobId,
    /// When it was submitted.
    pub arrived: SimTime,
    /// When it was first scheduled.
    pub admitted: Option<SimTime>,
    /// When its first token existed.
    pub first_token: Option<SimTime>,
    /// When its last token so far existed.
    pub last_token: Option<SimTime>,
    /// Output tokens.
    pub tokens: Tokens,
    /// The longest time between two of its tokens.
    pub longest_gap: SimSpan,
    /// Prompt tokens found in the prefix cache when it was first admitted.
    pub cached: Tokens,
    /// How often it was preempted.
    pub preemptions: u32,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not.
    Unfinished,
    /// By itself.
    Finished(Finish),
    /// Its client went away.
    Cancelled,
    /// Its GPU crashed.
    Lost,
    /// It was not taken.
    Refused(Refusal),
}

impl JobResult {
    /// Time to first token.
    pub fn ttft(&self) -> Option<SimSpan> {
        Some(self.first_token? - self.arrived)
    }

    /// From arrival to the last token.
    pub fn e2e(&self) -> Option<SimSpan> {
        Some(self.last_token? - self.arrived)
    }

    /// Mean time per output token after the first; `None` with fewer than two.
    pub fn tpot(&self) -> Option<SimSpan> {
        let decode = self.last_token? - self.first_token?;
        let gaps = u64::from(self.tokens.get()).checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some(SimSpan::from_ns((decode.as_ns() + gaps / 2) / gaps))
    }
}

/// Runs `inputs` and sums up each job, in order of submission.
///
/// # Panics
/// If the times of the inputs run back.
pub fn results(engine: &mut Engine, inputs: impl IntoIterator<Item = Input>) -> Vec<JobResult> {
    results_watched(engine, inputs, |_| ())
}

/// [`results`] for whoever wants to see the run as well.
///
/// # Panics
/// If the times of the inputs run back.
pub fn results_watched(
    engine: &mut Engine,
    inputs: impl IntoIterator<Item = Input>,
    mut see: impl FnMut(Seen<'_>),
) -> Vec<JobResult> {
    let mut ledger = Ledger::default();
    let inputs: Vec<_> = inputs.into_iter().collect();
    for Input { at, what } in &inputs {
        match what {
            Arrives::Submit(job) => ledger.open(job.id, *at),
            Arrives::Cancel(_)
            | Arrives::ResetPrefixCache
            | Arrives::Disturb(_)
            | Arrives::Advance => {}
        }
    }
    let cancelled: Vec<_> = inputs
        .iter()
        .filter_map(|input| match input.what {
            Arrives::Cancel(id) => Some(id),
            _ => None,
        })
        .collect();
    watch(engine, inputs, |seen| {
        if let Seen::Heard(happening) = seen {
            ledger.note(happening);
        }
        see(seen);
    });
    for id in cancelled {
        ledger.cancelled(id);
    }
    ledger.results
}

/// Per-job results under construction.
#[derive(Debug, Default)]
struct Ledger {
    results: Vec<JobResult>,
    by_id: LookupMap<JobId, usize>,
}

impl Ledger {
    fn open(&mut self, job: JobId, arrived: SimTime) {
        let before = self.by_id.insert(job, self.results.len());
        assert!(before.is_none(), "job {job} arrives twice");
        self.results.push(JobResult {
            job,
            arrived,
            admitted: None,
            first_token: None,
            last_token: None,
            tokens: Tokens::ZERO,
            longest_gap: SimSpan::ZERO,
            cached: Tokens::ZERO,
            preemptions: 0,
            outcome: Outcome::Unfinished,
        });
    }

    fn note(&mut self, happening: Happening) {
        let job = match happening {
            Happening::Event(event) => event.job,
            Happening::Refused { job, .. } => job,
        };
        let Some(&at) = self.by_id.get(&job) else { return };
        let result = &mut self.results[at];
        match happening {
            Happening::Refused { why, .. } => result.outcome = Outcome::Refused(why),
            Happening::Event(Event { at, what, .. }) => match what {
                What::Admitted { cached } => {
                    result.admitted = Some(at);
                    result.cached = cached;
                }
                What::Resumed { .. } => {}
                What::Preempted => result.preemptions += 1,
                What::Lost => result.outcome = Outcome::Lost,
                What::Token { index, finish } => {
                    result.tokens = index;
                    result.first_token.get_or_insert(at);
                    if let Some(before) = result.last_token.replace(at) {
                        result.longest_gap = result.longest_gap.max(at - before);
                    }
                    if let Some(finish) = finish {
                        result.outcome = Outcome::Finished(finish);
                    }
                }
            },
        }
    }

    fn cancelled(&mut self, job: JobId) {
        if let Some(&at) = self.by_id.get(&job)
            && self.results[at].outcome == Outcome::Unfinished
        {
            self.results[at].outcome = Outcome::Cancelled;
        }
    }
}
