//! Where requests are between their arrival and the engine's queue.
//!
//! A real server spends milliseconds on a request (HTTP, tokenizing, hand-over) before its engine
//! sees it; `request_overhead_ms` says how many. The engine is not told: it gets the request when
//! that time is over. The invariant: requests leave in the order in which they came.

use std::collections::VecDeque;

use llmsim_engine::sim::Job;
use llmsim_engine::units::{JobId, SimSpan, SimTime};

/// The requests on their way to one engine. As many as there are connections, at most.
#[derive(Debug)]
pub(crate) struct Lobby {
    overhead: SimSpan,
    waiting: VecDeque<(SimTime, Job)>,
}

impl Lobby {
    pub(crate) fn new(overhead: SimSpan) -> Self {
        Self { overhead, waiting: VecDeque::new() }
    }

    /// Takes a request in that arrived at `at`, or gives it back if it need not wait.
    pub(crate) fn enter(&mut self, at: SimTime, job: Job) -> Option<Job> {
        if self.overhead == SimSpan::ZERO {
            return Some(job);
        }
        // Stamps of different threads can be a little out of order.
        let before = self.waiting.back().map_or(SimTime::ZERO, |(due, _)| *due);
        self.waiting.push_back(((at + self.overhead).max(before), job));
        None
    }

    /// When the next request goes on.
    pub(crate) fn due(&self) -> Option<SimTime> {
        self.waiting.front().map(|(due, _)| *due)
    }

    /// The next request that goes on at `now` or before, with its instant.
    pub(crate) fn leave(&mut self, now: SimTime) -> Option<(SimTime, Job)> {
        self.due().filter(|&due| due <= now)?;
        self.waiting.pop_front()
    }

    /// Its client is gone; false if it is not here.
    pub(crate) fn cancel(&mut self, id: JobId) -> bool {
        let place = self.waiting.iter().position(|(_, job)| job.id == id);
        place.is_some_and(|place| self.waiting.remove(place).is_some())
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
    fn without_an_overhead_nobody_waits() {
        let mut lobby = Lobby::new(SimSpan::ZERO);
        assert_eq!(lobby.enter(ms(5), job(1)), Some(job(1)));
        assert_eq!(lobby.due(), None);
    }
}
