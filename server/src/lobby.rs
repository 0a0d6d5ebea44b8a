//! Where requests are between their arrival and the engine's queue.
//!
//! A real server spends milliseconds on a request (HTTP, tokenizing, hand-over) before its engine
//! sees it; `request_overhead_ms` says how many. The engine is not told: it gets the request when
//! that time is over. The invariant: requests leave in the order in which they came.

use std::collections::{BTreeSet, VecDeque};

use llmsim_engine::sim::Job;
use llmsim_engine::units::{JobId, SimSpan, SimTime};

/// The requests on their way to one engine: at most one for each lane of each connection. Those whose
/// clients are gone stay in the line until it is their turn, but never more of them than of others.
#[derive(Debug)]
pub(crate) struct Lobby {
    overhead: SimSpan,
    line: VecDeque<(SimTime, Job)>,
    /// Of the line, those whose clients are here.
    waiting: BTreeSet<JobId>,
}

impl Lobby {
    pub(crate) fn new(overhead: SimSpan) -> Self {
        Self { overhead, line: VecDeque::new(), waiting: BTreeSet::new() }
    }

    /// Takes a request in that arrived at `at`, or gives it back if it need not wait.
    pub(crate) fn enter(&mut self, at: SimTime, job: Job) -> Option<Job> {
        if self.overhead == SimSpan::ZERO {
            return Some(job);
        }
        // Stamps of different threads can be a little out of order.
        let before = self.line.back().map_or(SimTime::ZERO, |(due, _)| *due);
        self.waiting.insert(job.id);
        self.line.push_back(((at + self.overhead).max(before), job));
        None
    }

    /// When the next request goes on.
    pub(crate) fn due(&self) -> Option<SimTime> {
        self.line.front().map(|(due, _)| *due)
    }

    /// The next request that goes on at `now` or before, with its instant.
    pub(crate) fn leave(&mut self, now: SimTime) -> Option<(SimTime, Job)> {
        self.due().filter(|&due| due <= now)?;
        let next = self.line.pop_front();
        if let Some((_, job)) = &next {
            self.waiting.remove(&job.id);
        }
        self.drop_gone();
        next
    }

    /// Its client is gone; false if it is not here.
    pub(crate) fn cancel(&mut self, id: JobId) -> bool {
        if !self.waiting.remove(&id) {
            return false;
        }
        if self.line.len() > 2 * self.waiting.len() {
            self.line.retain(|(_, job)| self.waiting.contains(&job.id));
        }
        self.drop_gone();
        true
    }

    /// Keeps the invariant that somebody who waits is first.
    fn drop_gone(&mut self) {
        while self.line.front().is_some_and(|(_, job)| !self.waiting.contains(&job.id)) {
            self.line.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::units::Tokens;

    use super::*;

    fn job(id: u64) -> Job {
        Job {
            id: JobId(id),
            prompt: Tokens::new(1),
            max_tokens: Tokens::new(1),
            stop_after: None,
            priority: 0,
            chain: None,
        }
    }

    fn ms(ms: u64) -> SimTime {
        SimTime::ZERO + SimSpan::from_ms(ms)
    }

    #[test]
    fn a_request_goes_on_when_its_overhead_is_over() {
        let mut lobby = Lobby::new(SimSpan::from_ms(12));
        assert_eq!(lobby.enter(ms(5), job(1)), None);
        assert_eq!(lobby.enter(ms(4), job(2)), None);
        assert_eq!(lobby.enter(ms(6), job(3)), None);
        assert_eq!(lobby.due(), Some(ms(17)));
        assert_eq!(lobby.leave(ms(16)), None);
        assert!(lobby.cancel(JobId(2)));
        assert!(!lobby.cancel(JobId(2)));
        assert_eq!(lobby.leave(ms(20)), Some((ms(17), job(1))));
        assert_eq!(lobby.leave(ms(20)), Some((ms(18), job(3))));
        assert_eq!((lobby.leave(ms(20)), lobby.due()), (None, None));
    }

    #[test]
    fn clients_that_hang_up_leave_no_longer_a_line_than_those_who_wait() {
        let mut lobby = Lobby::new(SimSpan::from_ms(3_600_000));
        (0..1_000).for_each(|id| assert_eq!(lobby.enter(ms(id), job(id)), None));
        for id in 1_000..20_000 {
            assert_eq!(lobby.enter(ms(id), job(id)), None);
            assert!(lobby.cancel(JobId(id)));
            assert!(lobby.line.len() <= 2 * lobby.waiting.len());
        }
        // From the front to the back, each is the first of the line when it goes.
        for id in 0..999 {
            assert!(lobby.cancel(JobId(id)));
            assert_eq!(lobby.line.front().map(|(_, job)| job.id), Some(JobId(id + 1)));
        }
        assert!(lobby.cancel(JobId(999)));
        assert_eq!((lobby.due(), lobby.line.len()), (None, 0));
    }

    #[test]
    fn without_an_overhead_nobody_waits() {
        let mut lobby = Lobby::new(SimSpan::ZERO);
        assert_eq!(lobby.enter(ms(5), job(1)), Some(job(1)));
        assert_eq!(lobby.due(), None);
    }
}
