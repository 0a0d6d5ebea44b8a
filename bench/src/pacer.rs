//! A thread that knows when the next request is due and wakes the runtime then.
//!
//! The runtime's own timers tick in whole milliseconds, so they cannot pace sends. This thread
//! sleeps until shortly before an absolute deadline, spins the rest, counts the arrival as due and
//! wakes the runtime once. It also sends a ping every 20 ms, from whose age at arrival the health
//! report learns how late the client's loop runs. The invariant: deadlines are absolute; a late one
//! is kept, never dropped, and never moves the next.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use llmsim_engine::units::{SimSpan, SimTime};

use crate::clock::Clock;

/// The last stretch before a deadline is spun: a sleeping thread wakes 50 to 150 us late here
/// (2 virtual cores, kernel 6.18), with the smallest timer slack.
const SPIN: Duration = Duration::from_micros(100);
const PING_EVERY: SimSpan = SimSpan::from_ms(20);

/// The pacing thread, from the runtime's side. Stops when dropped.
#[derive(Debug)]
pub struct Pacer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    seen: u64,
    pinged: u64,
}

#[derive(Debug, Default)]
struct Shared {
    due: AtomicU64,
    /// Instant of the last ping in ns; 0 before the first.
    ping: AtomicU64,
    waker: Mutex<Option<Waker>>,
    stop: AtomicBool,
}

/// What woke the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// How many arrivals are due since the start.
    pub due: u64,
    /// A ping, with the instant at which it was sent.
    pub ping: Option<SimTime>,
}

impl Pacer {
    /// Paces these instants, which must not fall. With a single CPU nothing spins.
    pub fn start(clock: Clock, instants: Arc<[SimTime]>) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pacer".into())
            .spawn(move || pace(clock, &instants, &theirs))
            .ok();
        Self { shared, thread, seen: 0, pinged: 0 }
    }

    /// Waits until more is due or a ping came.
    pub fn woken(&mut self) -> impl Future<Output = Wake> + '_ {
        Next { pacer: self }
    }

    fn news(&mut self) -> Option<Wake> {
        let due = self.shared.due.load(Ordering::Acquire);
        let ping = self.shared.ping.load(Ordering::Acquire);
        if due == self.seen && ping == self.pinged {
            return None;
        }
        let wake = Wake { due, ping: (ping != self.pinged).then(|| SimTime::from_ns(ping)) };
        (self.seen, self.pinged) = (due, ping);
        Some(wake)
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It panics nowhere; if it did, there is nothing left to pace.
            let _ = thread.join();
        }
    }
}

struct Next<'a> {
    pacer: &'a mut Pacer,
}

impl Future for Next<'_> {
    type Output = Wake;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Wake> {
        if let Some(wake) = self.pacer.news() {
            return Poll::Ready(wake);
        }
        let shared = &self.pacer.shared;
        *shared.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // It may have counted between the look and the registration.
        self.pacer.news().map_or(Poll::Pending, Poll::Ready)
    }
}

fn pace(clock: Clock, instants: &[SimTime], shared: &Shared) {
    crate::os::finest_timer_slack();
    let spins = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1);
    let mut next = 0;
    let mut ping = clock.now() + PING_EVERY;
    while !shared.stop.load(Ordering::Acquire) {
        let arrival = instants.get(next).copied();
        let target = arrival.map_or(ping, |at| at.min(ping));
        let spin = if spins && Some(target) == arrival { SPIN } else { Duration::ZERO };
        let wait = clock.until(target);
        if wait > spin {
            std::thread::park_timeout(wait - spin);
            continue;
        }
        while clock.now() < target {
            std::hint::spin_loop();
        }
        let now = clock.now();
        while instants.get(next).is_some_and(|&at| at <= now) {
            next += 1;
        }
        shared.due.store(next as u64, Ordering::Release);
        if ping <= now {
            shared.ping.store(now.as_ns().max(1), Ordering::Release);
            ping = now + PING_EVERY;
        }
        let waker = shared.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
