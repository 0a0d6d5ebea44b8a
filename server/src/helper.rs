//! A thread for what takes long: the parsing, matching and counting of long prompts.
//!
//! It has the lowest priority of the process, so that streams keep their timing. The invariant: a
//! connection has at most one piece of work here, so the queue is bounded by the number of
//! connections; whoever finds it full all the same does the work itself.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crossbeam::channel::{self, Receiver, Sender};

use crate::sys;

type Work = Box<dyn FnOnce() + Send>;

/// A way to the helper threads.
#[derive(Clone, Debug)]
pub(crate) struct Helper {
    queue: Sender<Work>,
}

/// The queue for at most `capacity` pieces of work, and where the threads take them from.
pub(crate) fn queue(capacity: usize) -> (Helper, HelperThread) {
    let (queue, work) = channel::bounded(capacity.max(1));
    (Helper { queue }, HelperThread { work })
}

/// One helper thread.
#[derive(Clone)]
pub(crate) struct HelperThread {
    work: Receiver<Work>,
}

impl HelperThread {
    /// Works until nobody is left who could ask for anything.
    pub(crate) fn run(self) {
        sys::lowest_priority();
        while let Ok(work) = self.work.recv() {
            work();
        }
    }
}

/// Lets a helper do `work`, and waits for it without holding up the thread.
pub(crate) async fn run<T: Send + 'static>(
    helper: &Helper,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let desk = Arc::new(Mutex::new(Desk { result: None, waiter: None }));
    let theirs = Arc::clone(&desk);
    let task: Work = Box::new(move || {
        let result = work();
        let waiter = {
            let mut desk = theirs.lock().unwrap_or_else(PoisonError::into_inner);
            desk.result = Some(result);
            desk.waiter.take()
        };
        // Not under the lock: the thread that wakes takes it at once, at a higher priority, and would
        // wait for as long as this one gets no processor.
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    });
    if let Err(refused) = helper.queue.try_send(task) {
        refused.into_inner()();
    }
    poll_fn(|cx| {
        let mut desk = desk.lock().unwrap_or_else(PoisonError::into_inner);
        match desk.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                desk.waiter = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

struct Desk<T> {
    result: Option<T>,
    waiter: Option<Waker>,
}
