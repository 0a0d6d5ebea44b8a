//! Whether all of several threads did what each was told to: the way back of an order.
//!
//! Not for the token path. The invariant: a vote that is dropped counts as a no, so that whoever waits
//! for a thread that has gone does not wait for ever.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Votes that are still out, and what the others said.
#[derive(Debug)]
struct Ballot {
    out: usize,
    all_yes: bool,
    waiter: Option<Waker>,
}

/// One thread's answer, to be given once.
#[derive(Debug)]
pub(crate) struct Vote {
    ballot: Arc<Mutex<Ballot>>,
    is_yes: bool,
}

/// Where the answers come together.
#[derive(Debug)]
pub(crate) struct Tally(Arc<Mutex<Ballot>>);

impl Tally {
    /// Nobody has been asked.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Ballot { out: 0, all_yes: true, waiter: None })))
    }

    /// One more to be waited for.
    pub(crate) fn vote(&self) -> Vote {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).out += 1;
        Vote { ballot: Arc::clone(&self.0), is_yes: false }
    }

    /// Waits for all votes; whether they were all yes.
    pub(crate) async fn all_yes(self) -> bool {
        poll_fn(|cx| {
            let mut ballot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if ballot.out == 0 {
                return Poll::Ready(ballot.all_yes);
            }
            ballot.waiter = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Vote {
    /// Gives the answer.
    pub(crate) fn cast(mut self, is_yes: bool) {
        self.is_yes = is_yes;
    }
}

impl Drop for Vote {
    fn drop(&mut self) {
        let waiter = {
            let mut ballot = self.ballot.lock().unwrap_or_else(PoisonError::into_inner);
            ballot.out -= 1;
            ballot.all_yes &= self.is_yes;
            if ballot.out == 0 { ballot.waiter.take() } else { None }
        };
        // Its thread takes the lock at once.
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(cast: impl FnOnce(&Tally)) -> Poll<bool> {
        let tally = Tally::new();
        cast(&tally);
        let mut asked = std::pin::pin!(tally.all_yes());
        asked.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()))
    }

    #[test]
    fn it_takes_everybodys_yes_and_the_silent_say_no() {
        assert_eq!(outcome(|_| {}), Poll::Ready(true));
        assert_eq!(
            outcome(|tally| (0..3).for_each(|_| tally.vote().cast(true))),
            Poll::Ready(true)
        );
        let one_no = |tally: &Tally| [true, false].into_iter().for_each(|v| tally.vote().cast(v));
        assert_eq!(outcome(one_no), Poll::Ready(false));
        assert_eq!(outcome(|tally| drop(tally.vote())), Poll::Ready(false));
        let mut held = None;
        assert_eq!(outcome(|tally| held = Some(tally.vote())), Poll::Pending);
    }
}
