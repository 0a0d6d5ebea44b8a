//! How a run is doing, while it runs.
//!
//! The client's thread only bumps counters; a thread of its own prints them twice a second.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;
use llmsim_engine::units::{SimSpan, SimTime};

use crate::clock::Clock;
use crate::record::Record;

/// Counters of the running level.
#[derive(Debug)]
pub struct Live {
    began_ns: AtomicU64,
    planned: AtomicU32,
    target_millirate: AtomicU64,
    started: AtomicU32,
    done: AtomicU32,
    failed: AtomicU32,
    chunks: AtomicU64,
    /// Where a virtual clock stands; 0 while real time counts.
    virtual_ns: AtomicU64,
    ttft: Mutex<Histogram<u64>>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            began_ns: AtomicU64::new(0),
            planned: AtomicU32::new(0),
            target_millirate: AtomicU64::new(0),
            started: AtomicU32::new(0),
            done: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            chunks: AtomicU64::new(0),
            virtual_ns: AtomicU64::new(0),
            ttft: Mutex::new(empty()),
        }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("1 us to 1 h at two digits is allowed")
}

impl Live {
    /// A level begins; counters start again.
    pub fn begin(&self, at: SimTime, target_rate: Option<f64>, planned: Option<u32>) {
        for counter in [&self.started, &self.done, &self.failed] {
            counter.store(0, Ordering::Relaxed);
        }
        self.chunks.store(0, Ordering::Relaxed);
        self.virtual_ns.store(0, Ordering::Relaxed);
        self.planned.store(planned.unwrap_or(0), Ordering::Relaxed);
        let millirate = (target_rate.unwrap_or(0.0) * 1000.0) as u64;
        self.target_millirate.store(millirate, Ordering::Relaxed);
        self.lock().reset();
        self.began_ns.store(at.as_ns().max(1), Ordering::Release);
    }

    /// The level is over.
    pub fn end(&self) {
        self.began_ns.store(0, Ordering::Release);
    }

    /// The level runs in virtual time, which now stands here.
    pub(crate) fn virtual_time(&self, at: SimTime) {
        self.virtual_ns.store(at.as_ns().max(1), Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Chunks that a read has added to `record`.
    pub(crate) fn chunks(&self, before: u32, record: &Record, at: SimTime) {
        let more = record.output.chunks - before;
        if more > 0 {
            self.chunks.fetch_add(u64::from(more), Ordering::Relaxed);
            if before == 0 {
                let ttft = at.saturating_since(record.scheduled).as_ns() / 1000;
                self.lock().saturating_record(ttft.max(1));
            }
        }
    }

    pub(crate) fn finished(&self, record: &Record) {
        let counter = if record.ok() { &self.done } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that have ended well so far.
    #[cfg(test)]
    pub(crate) fn answered(&self) -> u32 {
        self.done.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.ttft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line; `None` between levels.
    fn line(&self, now: SimTime, last: &mut Last) -> Option<String> {
        let began = self.began_ns.load(Ordering::Acquire);
        if began == 0 {
            return None;
        }
        let elapsed = now.saturating_since(SimTime::from_ns(began)).as_secs_f64();
        let load = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let (started, done, failed) = (load(&self.started), load(&self.done), load(&self.failed));
        let chunks = self.chunks.load(Ordering::Relaxed);
        let since = (elapsed - last.elapsed).max(1e-3);
        let fresh = chunks < last.chunks || elapsed < last.elapsed;
        let rate = if fresh { 0.0 } else { (chunks - last.chunks) as f64 / since };
        *last = Last { elapsed, chunks };
        let planned = load(&self.planned);
        let of = if planned > 0 { format!("/{planned}") } else { String::new() };
        let target = self.target_millirate.load(Ordering::Relaxed) as f64 / 1000.0;
        let sent_rate = f64::from(started) / elapsed.max(1e-3);
        let target = if target > 0.0 { format!(" of {target:.1}") } else { String::new() };
        let (p50, p99) = {
            let ttft = self.lock();
            let at = |q| ttft.value_at_quantile(q) as f64 / 1000.0;
            (at(0.5), at(0.99))
        };
        Some(format!(
            "{elapsed:6.1} s  done {done}{of}  in flight {}  sent {sent_rate:.1}{target}/s  \
             {rate:.0} chunks/s  TTFT p50 {p50:.1} ms p99 {p99:.1} ms  errors {failed}",
            started.saturating_sub(done + failed),
        ))
    }
}

#[derive(Default)]
struct Last {
    elapsed: f64,
    chunks: u64,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// One line that is rewritten.
    Terminal,
    /// A line every few seconds.
    Lines,
    /// Not at all.
    Off,
}

impl Style {
    /// What suits stderr.
    pub fn for_stderr(wanted: bool) -> Self {
        match (wanted, std::io::stderr().is_terminal()) {
            (false, _) => Self::Off,
            (true, true) => Self::Terminal,
            (true, false) => Self::Lines,
        }
    }
}

/// The printing thread; stops when dropped.
#[derive(Debug)]
pub struct Progress {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts to print to stderr.
    pub fn start(clock: Clock, live: Arc<Live>, style: Style) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let every = match style {
            Style::Off => return Self { stop, thread: None },
            Style::Terminal => SimSpan::from_ms(500),
            Style::Lines => SimSpan::from_ms(5000),
        };
        let theirs = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("progress".into()).spawn(move || {
            let mut last = Last::default();
            while !theirs.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_nanos(every.as_ns()));
                let Some(line) = live.line(clock.now(), &mut last) else { continue };
                let mut out = std::io::stderr().lock();
                // Nobody to tell if stderr is gone.
                let _ = match style {
                    Style::Terminal => write!(out, "\r\x1b[2K{line}\r"),
                    _ => writeln!(out, "{line}"),
                };
                let _ = out.flush();
            }
            if style == Style::Terminal {
                let _ = write!(std::io::stderr(), "\r\x1b[2K");
            }
        });
        Self { stop, thread: thread.ok() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
