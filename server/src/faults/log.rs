//! Who was hit by what: counters, and the last few in words.
//!
//! Touched only when a fault happens, so a lock does for connections. A GPU thread never waits for it:
//! it leaves a note of a few numbers, of which words are made when somebody looks. The invariant: what
//! is kept is bounded, and what was not written to the log in time is counted, not waited for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam::queue::ArrayQueue;
use llmsim_engine::observe::family::{Family, Kind};
use llmsim_engine::sim::Disturbance;
use llmsim_engine::units::SimTime;

/// The hits of a server.
#[derive(Debug)]
pub(crate) struct Log {
    kept: Mutex<Kept>,
    /// By number.
    gpus: Vec<Gpu>,
    disturbed: ArrayQueue<Disturbed>,
    /// Notes that found the queue full: told in the log, and in no counter.
    lost: AtomicU64,
}

/// A simulated GPU, as the log names it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) model: String,
    pub(crate) name: String,
}

/// A note of a GPU thread.
#[derive(Clone, Copy, Debug)]
struct Disturbed {
    gpu: usize,
    what: Disturbance,
    at: SimTime,
}

/// Notes that may wait for somebody to look, which the observer does once a second.
const MOST_NOTES: usize = 1024;

#[derive(Debug, Default)]
struct Kept {
    counts: BTreeMap<(String, &'static str), u64>,
    /// The last ones, newest at the end.
    recent: VecDeque<Hit>,
    /// Of those, not written yet.
    unwritten: usize,
    /// Not written, since there were too many at once.
    skipped: u64,
}

/// One hit.
#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) at: SimTime,
    pub(crate) model: String,
    pub(crate) kind: &'static str,
    /// The rule.
    pub(crate) rule: String,
    /// The request's id; empty where no request was hit.
    pub(crate) request: String,
}

/// How often what hit whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) model: String,
    pub(crate) kind: &'static str,
    pub(crate) count: u64,
}

/// Hits that are remembered: what the live page shows, and what may wait for the log.
const MOST: usize = 200;

impl Log {
    pub(crate) fn new(gpus: Vec<Gpu>) -> Self {
        Self {
            kept: Mutex::default(),
            gpus,
            disturbed: ArrayQueue::new(MOST_NOTES),
            lost: AtomicU64::new(0),
        }
    }

    /// A simulated GPU was disturbed. It waits for nobody and makes nothing.
    pub(crate) fn disturbed(&self, gpu: usize, what: Disturbance, at: SimTime) {
        if self.disturbed.push(Disturbed { gpu, what, at }).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes words of what the GPU threads have left.
    fn take_in(&self) {
        while let Some(Disturbed { gpu, what, at }) = self.disturbed.pop() {
            let Gpu { model, name } = &self.gpus[gpu];
            self.note(model, what.kind(), &format!("{what} gpu={name}"), "", at);
        }
    }

    pub(crate) fn note(
        &self,
        model: &str,
        kind: &'static str,
        rule: &str,
        request: &str,
        at: SimTime,
    ) {
        let mut kept = self.kept();
        *kept.counts.entry((model.to_owned(), kind)).or_default() += 1;
        if kept.recent.len() == MOST {
            kept.recent.pop_front();
        }
        if kept.unwritten == MOST {
            kept.skipped += 1;
        } else {
            kept.unwritten += 1;
        }
        let (model, rule, request) = (model.to_owned(), rule.to_owned(), request.to_owned());
        kept.recent.push_back(Hit { at, model, kind, rule, request });
    }

    /// All counters, by model and kind.
    pub(crate) fn counts(&self) -> Vec<Counted> {
        self.take_in();
        let kept = self.kept();
        let counts = kept.counts.iter();
        counts
            .map(|((model, kind), count)| Counted { model: model.clone(), kind, count: *count })
            .collect()
    }

    /// The counters as a metric.
    pub(crate) fn family(&self) -> Family {
        let help = "Failures on purpose, by what was hit and how.";
        let mut family = Family::new("llm_sim_faults_total", help, Kind::Counter);
        for Counted { model, kind, count } in self.counts() {
            family.number(vec![("kind", kind.to_owned()), ("model", model)], count as f64);
        }
        if family.samples.is_empty() {
            // Something to see before the first one.
            let none = || String::from("none");
            family.number(vec![("kind", none()), ("model", none())], 0.0);
        }
        family
    }

    /// The last hits, newest first.
    pub(crate) fn recent(&self, most: usize) -> Vec<Hit> {
        self.take_in();
        self.kept().recent.iter().rev().take(most).cloned().collect()
    }

    /// The lines that have not been written yet.
    pub(crate) fn take_lines(&self) -> Vec<String> {
        self.take_in();
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut kept = self.kept();
        let unwritten = std::mem::take(&mut kept.unwritten);
        let skipped = std::mem::take(&mut kept.skipped) + lost;
        let from = kept.recent.len() - unwritten;
        let mut lines: Vec<String> = kept.recent.iter().skip(from).map(Hit::to_string).collect();
        if skipped > 0 {
            lines.push(format!("fault: and {skipped} more since the last line"));
        }
        lines
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Display for Hit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { at, model, kind, rule, request } = self;
        write!(f, "fault: {kind} model={model} at={at} rule=\"{}\"", rule.replace('"', "'"))?;
        if request.is_empty() { Ok(()) } else { write!(f, " request={request}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_counted_remembered_and_written_once() {
        let log = Log::new(Vec::new());
        for request in ["r1", "r2"] {
            log.note("m", "close", "close first=2", request, SimTime::from_ns(1_000_000));
        }
        log.note("gpu", "crash", "crash=1s", "", SimTime::ZERO);
        let counted = log.counts();
        assert_eq!(counted[0], Counted { model: "gpu".into(), kind: "crash", count: 1 });
        assert_eq!(counted[1], Counted { model: "m".into(), kind: "close", count: 2 });
        let lines = log.take_lines();
        assert_eq!(lines[0], "fault: close model=m at=1ms rule=\"close first=2\" request=r1");
        assert_eq!(lines[2], "fault: crash model=gpu at=0ms rule=\"crash=1s\"");
        assert!(log.take_lines().is_empty());
        assert_eq!(log.recent(1)[0].kind, "crash");
    }

    #[test]
    fn more_than_can_be_written_is_counted() {
        let log = Log::new(Vec::new());
        for _ in 0..MOST + 50 {
            log.note("m", "close", "close", "r", SimTime::ZERO);
        }
        let lines = log.take_lines();
        assert_eq!(lines.len(), MOST + 1);
        assert_eq!(lines[MOST], "fault: and 50 more since the last line");
        assert_eq!(log.counts()[0].count, (MOST + 50) as u64);
    }

    #[test]
    fn a_gpu_thread_leaves_its_note_though_somebody_has_the_lock() {
        let gpu = Gpu { model: "m".into(), name: "m/1".into() };
        let log = Log::new(vec![gpu]);
        let kept = log.kept();
        for _ in 0..MOST_NOTES + 3 {
            log.disturbed(0, Disturbance::Preempt { requests: 2 }, SimTime::ZERO);
        }
        drop(kept);
        assert_eq!(log.counts()[0].count, MOST_NOTES as u64);
        let lines = log.take_lines();
        assert_eq!(lines[0], "fault: preempt model=m at=0ms rule=\"preempt=2 gpu=m/1\"");
        let more = MOST_NOTES - MOST + 3;
        assert_eq!(lines[MOST], format!("fault: and {more} more since the last line"));
    }
}
