//! How a server ends: first nothing new, then nothing at all.
//!
//! The invariant: the phase only ever goes forward, and every I/O thread is woken after each step,
//! so that none sleeps through it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam::channel::Receiver;

use crate::io_thread::Door;

/// What the server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Taking connections and requests.
    Serving = 0,
    /// Finishing what is under way.
    Draining = 1,
    /// Giving up what is under way.
    Cutting = 2,
}

/// Shared by all threads: the phase, and how many connections are open.
#[derive(Debug)]
pub(crate) struct Control {
    phase: AtomicU8,
    connections: AtomicUsize,
    doors: Vec<Arc<Door>>,
}

impl Control {
    pub(crate) fn new(doors: Vec<Arc<Door>>) -> Self {
        Self { phase: AtomicU8::new(0), connections: AtomicUsize::new(0), doors }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Cutting,
        }
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
        self.wake_io_threads();
    }

    pub(crate) fn wake_io_threads(&self) {
        for door in &self.doors {
            door.bell.ring();
        }
    }

    /// Counts a new connection; returns how many there are with it.
    pub(crate) fn connection_opened(&self) -> usize {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn connection_closed(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets the streams finish until `grace` is over, then cuts the rest. Each I/O thread says over
/// `ended` that it is done.
pub(crate) fn drain(control: &Control, io_threads: usize, ended: &Receiver<()>, grace: Duration) {
    control.enter(Phase::Draining);
    // A deadline beyond what the clock can tell is none.
    let deadline = Instant::now().checked_add(grace);
    let mut running = io_threads;
    while running > 0 {
        let one_ended = match deadline {
            Some(deadline) => ended.recv_deadline(deadline).is_ok(),
            None => ended.recv().is_ok(),
        };
        if !one_ended {
            break;
        }
        running -= 1;
    }
    control.enter(Phase::Cutting);
    while running > 0 {
        if ended.recv().is_err() {
            break;
        }
        running -= 1;
    }
}

/// How long a server that ends waits for each disk to take the end of a file.
pub(crate) const DISK_PATIENCE: Duration = Duration::from_secs(10);

/// Waits for a thread that writes files, but not for ever: a disk that hangs must not keep a server from
/// ending. Whether the thread has ended; one that has not is left behind.
pub(crate) fn join_within(thread: JoinHandle<()>, patience: Duration) -> bool {
    let start = Instant::now();
    while !thread.is_finished() {
        if start.elapsed() >= patience {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    if thread.join().is_err() {
        eprintln!("llmsimulator: a thread that writes files failed; they are incomplete");
    }
    true
}

#[cfg(test)]
mod tests {
    use crossbeam::channel;

    use super::*;

    #[test]
    fn a_disk_that_hangs_does_not_keep_a_server_from_ending() {
        let (disk, waits) = channel::bounded::<()>(0);
        let writer = || {
            let waits = waits.clone();
            thread::spawn(move || {
                let _ = waits.recv();
            })
        };
        assert!(!join_within(writer(), Duration::ZERO));
        drop(disk);
        assert!(join_within(writer(), Duration::from_secs(60)));
    }
}
