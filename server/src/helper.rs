//! Threads for what takes long: the parsing, matching and counting of long prompts.
//!
//! They have the lowest priority of the process, so that streams keep their timing. What is short has
//! a queue of its own and a thread that does nothing else, so that a request of a few tokens waits for
//! others like it and never for somebody's book. The invariant: a connection has at most one piece of
//! work here that it waits for, so each queue is bounded by about the number of connections; whoever
//! finds it full all the same does the work itself.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use crossbeam::channel::{self, Receiver, Sender, select_biased};

use crate::sys;

type Work = Box<dyn FnOnce() + Send>;

/// How long a piece of work takes, as far as its size tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Ten milliseconds at most.
    Short,
    /// Nobody knows.
    Long,
}

impl Length {
    /// Bytes of a request that are read in the time of short work: 9 ms with a real model's tokenizer,
    /// 0.12 ms with ours (one busy core, 2026-12).
    const SHORT_BYTES: usize = 32 * 1024;

    /// Tokens that are gone through in the time of short work: 7 ns each.
    const SHORT_TOKENS: u64 = 1 << 20;

    /// Of reading a body of so many bytes.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        if bytes <= Self::SHORT_BYTES { Self::Short } else { Self::Long }
    }

    /// Of going through so many tokens.
    pub(crate) fn of_tokens(tokens: u64) -> Self {
        if tokens <= Self::SHORT_TOKENS { Self::Short } else { Self::Long }
    }
}

/// A way to the helper threads.
#[derive(Clone, Debug)]
pub(crate) struct Helper {
    short: Sender<Work>,
    long: Sender<Work>,
}

/// Queues for at most `capacity` pieces of work each, and where the threads take them from.
pub(crate) fn queue(capacity: usize) -> (Helper, HelperThread) {
    let (short, short_work) = channel::bounded(capacity.max(1));
    let (long, long_work) = channel::bounded(capacity.max(1));
    (Helper { short, long }, HelperThread { short: short_work, long: long_work })
}

/// One helper thread.
#[derive(Clone)]
pub(crate) struct HelperThread {
    short: Receiver<Work>,
    long: Receiver<Work>,
}

impl HelperThread {
    /// Works until nobody is left who could ask for anything: first what is short.
    pub(crate) fn run(self) {
        sys::lowest_priority();
        // When one queue is over, what is left of the other is still to be done.
        let next = || {
            select_biased! {
                recv(self.short) -> work => work.or_else(|_| self.long.recv()),
                recv(self.long) -> work => work.or_else(|_| self.short.recv()),
            }
        };
        while let Ok(work) = next() {
            work();
        }
    }

    /// The same for what is short alone.
    pub(crate) fn run_short(self) {
        let Self { short, long } = self;
        drop(long);
        sys::lowest_priority();
        while let Ok(work) = short.recv() {
            work();
        }
    }
}

/// Lets a helper do `work`, and waits for it without holding up the thread.
pub(crate) async fn run<T: Send + 'static>(
    helper: &Helper,
    length: Length,
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
    let queue = match length {
        Length::Short => &helper.short,
        Length::Long => &helper.long,
    };
    if let Err(refused) = queue.try_send(task) {
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

/// Lets a helper do `work`, for which nobody waits.
pub(crate) fn leave(helper: &Helper, work: impl FnOnce() + Send + 'static) {
    if let Err(refused) = helper.long.try_send(Box::new(work)) {
        refused.into_inner()();
    }
}

struct Desk<T> {
    result: Option<T>,
    waiter: Option<Waker>,
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn wait<T>(work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match work.as_mut().poll(&mut cx) {
                Poll::Ready(result) => return result,
                Poll::Pending => std::thread::yield_now(),
            }
        }
    }

    #[test]
    fn what_is_short_never_waits_for_what_is_long() {
        let (helper, thread) = queue(8);
        let (for_short, for_all) = (thread.clone(), thread);
        let threads =
            [std::thread::spawn(|| for_short.run_short()), std::thread::spawn(|| for_all.run())];
        // Somebody's book, which is not read before all the short ones are.
        let (close_book, book) = channel::bounded::<()>(1);
        let of_book = helper.clone();
        let mut read =
            Box::pin(async move { run(&of_book, Length::Long, move || book.recv()).await });
        assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        for number in 0..100 {
            assert_eq!(wait(run(&helper, Length::Short, move || number)), number);
        }
        close_book.send(()).unwrap();
        assert_eq!(wait(read), Ok(()));
        // They end when nobody can ask any more.
        drop(helper);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn of_what_waits_a_thread_for_all_takes_the_short_first() {
        let (helper, thread) = queue(8);
        let (done, order) = channel::unbounded();
        let mut cx = Context::from_waker(Waker::noop());
        for length in [Length::Long, Length::Short, Length::Long, Length::Short] {
            let done = done.clone();
            let work = run(&helper, length, move || done.send(length).unwrap());
            assert!(pin!(work).poll(&mut cx).is_pending());
        }
        drop(helper);
        thread.run();
        let order: Vec<Length> = order.try_iter().collect();
        assert_eq!(order, [Length::Short, Length::Short, Length::Long, Length::Long]);
    }
}
