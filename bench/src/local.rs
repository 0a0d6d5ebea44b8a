//! Small things that tasks of one thread share: a count to wait for, and a switch that ends a
//! waiting task from outside.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Poll, Waker};

use llmsim_engine::units::SimTime;

/// Lets one task wait until another one rings.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Bell {
    /// Wakes the waiting task, or the next one to wait.
    pub fn ring(&self) {
        self.rung.set(true);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for a ring; one that came earlier counts.
    pub async fn wait(&self) {
        std::future::poll_fn(|cx| {
            if self.rung.replace(false) {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Lets the other tasks of this thread run.
pub async fn give_way() {
    let mut asked = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A deadline that somebody else watches: one sweep over all streams every few milliseconds costs
/// less than a timer per read.
#[derive(Debug)]
pub struct Watch {
    deadline: Cell<SimTime>,
    stopped: Cell<Option<Stopped>>,
    waker: RefCell<Option<Waker>>,
}

/// Why a wait was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its deadline passed.
    TimedOut,
    /// The whole run is being stopped.
    Interrupted,
}

impl Watch {
    /// Not due before `deadline`.
    pub fn until(deadline: SimTime) -> Self {
        Self { deadline: Cell::new(deadline), stopped: Cell::new(None), waker: RefCell::new(None) }
    }

    /// Moves the deadline; one that passed before what moves it was seen is forgotten.
    pub fn set(&self, deadline: SimTime) {
        self.deadline.set(deadline);
        if self.stopped.get() == Some(Stopped::TimedOut) {
            self.stopped.set(None);
        }
    }

    /// Whether the wait was ended, for those whose work is always ready and so never waits.
    ///
    /// # Errors
    /// Why it was.
    pub fn go_on(&self, now: SimTime) -> Result<(), Stopped> {
        self.check(now);
        self.stopped.get().map_or(Ok(()), Err)
    }

    /// Ends the wait if the deadline has passed.
    pub fn check(&self, now: SimTime) {
        if now >= self.deadline.get() {
            self.stop(Stopped::TimedOut);
        }
    }

    /// Ends the wait.
    pub fn stop(&self, why: Stopped) {
        if self.stopped.get().is_none() {
            self.stopped.set(Some(why));
            if let Some(waker) = self.waker.borrow_mut().take() {
                waker.wake();
            }
        }
    }

    /// Runs `work` unless and until the watch ends it.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Stopped> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(value) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(value));
            }
            if let Some(why) = self.stopped.get() {
                return Poll::Ready(Err(why));
            }
            let mut waker = self.waker.borrow_mut();
            if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
