//! How a run is doing, while it runs.
//!
//! The client's thread only bumps counters; a thread of its own prints them twice a second. On a
//! terminal it is one line that is rewritten and never wider than the window, since a line that
//! wraps cannot be taken back. The invariant: whatever else is printed while a run goes on is
//! printed through [`Progress`], which takes its line away first.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;
use llmsim_engine::units::{SimSpan, SimTime};

use crate::clock::Clock;
use crate::record::Record;
use crate::report::grouped;

/// Counters of the running level.
#[derive(Debug)]
pub struct Live {
    began_ns: AtomicU64,
    planned: AtomicU32,
    target_millirate: AtomicU64,
    started: AtomicU32,
    last_sent_ns: AtomicU64,
    done: AtomicU32,
    failed: AtomicU32,
    chunks: AtomicU64,
    /// Where a virtual clock stands; 0 while real time counts.
    virtual_ns: AtomicU64,
    ttft: Mutex<Histogram<u64>>,
    /// What is going on, as it stands before the figures.
    title: Mutex<String>,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            began_ns: AtomicU64::new(0),
            planned: AtomicU32::new(0),
            target_millirate: AtomicU64::new(0),
            started: AtomicU32::new(0),
            last_sent_ns: AtomicU64::new(0),
            done: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            chunks: AtomicU64::new(0),
            virtual_ns: AtomicU64::new(0),
            ttft: Mutex::new(empty()),
            title: Mutex::new(String::new()),
        }
    }
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 3_600_000_000, 2).expect("1 us to 1 h at two digits is allowed")
}

impl Live {
    /// What comes next, such as `warm-up` or the level of a sweep.
    pub fn title(&self, title: &str) {
        let mut known = self.title.lock().unwrap_or_else(PoisonError::into_inner);
        title.clone_into(&mut known);
    }

    /// Requests begin to be sent; counters start again.
    pub fn begin(&self, at: SimTime, target_rate: Option<f64>, planned: Option<u32>) {
        for counter in [&self.started, &self.done, &self.failed] {
            counter.store(0, Ordering::Relaxed);
        }
        for counter in [&self.chunks, &self.virtual_ns, &self.last_sent_ns] {
            counter.store(0, Ordering::Relaxed);
        }
        self.planned.store(planned.unwrap_or(0), Ordering::Relaxed);
        let millirate = (target_rate.unwrap_or(0.0) * 1000.0) as u64;
        self.target_millirate.store(millirate, Ordering::Relaxed);
        self.latencies().reset();
        self.began_ns.store(at.as_ns().max(1), Ordering::Release);
    }

    /// They are over.
    pub fn end(&self) {
        self.began_ns.store(0, Ordering::Release);
    }

    /// The level runs in virtual time, which now stands here.
    pub(crate) fn virtual_time(&self, at: SimTime) {
        self.virtual_ns.store(at.as_ns().max(1), Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, at: SimTime) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.last_sent_ns.store(at.as_ns(), Ordering::Relaxed);
    }

    /// Chunks that a read has added to `record`.
    pub(crate) fn chunks(&self, before: u32, record: &Record, at: SimTime) {
        let more = record.output.chunks - before;
        if more > 0 {
            self.chunks.fetch_add(u64::from(more), Ordering::Relaxed);
            if before == 0 {
                let ttft = at.saturating_since(record.scheduled).as_ns() / 1000;
                self.latencies().saturating_record(ttft.max(1));
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

    fn latencies(&self) -> std::sync::MutexGuard<'_, Histogram<u64>> {
        self.ttft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One line of at most `columns` characters; `None` if there is nothing to tell.
    fn line(&self, now: SimTime, last: &mut Last, columns: usize) -> Option<String> {
        let title = self.title.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let began = self.began_ns.load(Ordering::Acquire);
        if began == 0 {
            return (!title.is_empty()).then_some(title);
        }
        let virtual_ns = self.virtual_ns.load(Ordering::Relaxed);
        let now = if virtual_ns > 0 { SimTime::from_ns(virtual_ns) } else { now };
        let since = |at: SimTime| at.saturating_since(SimTime::from_ns(began)).as_secs_f64();
        let elapsed = since(now);
        let load = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
        let (started, done, failed) = (load(&self.started), load(&self.done), load(&self.failed));
        let (ended, planned) = (done + failed, load(&self.planned));
        let target = self.target_millirate.load(Ordering::Relaxed);
        // At a target it is sends that keep it or not: once all are sent, those over their own
        // time.
        let all_sent = planned > 0 && started >= planned;
        let (count, over) = match (target > 0, all_sent) {
            (true, true) => {
                (started, since(SimTime::from_ns(self.last_sent_ns.load(Ordering::Relaxed))))
            }
            (true, false) => (started, elapsed),
            (false, _) => (ended, elapsed),
        };
        let rate = f64::from(count) / over.max(1e-3);
        let target = match target {
            0 => String::new(),
            millirate => format!(" of {:.1}", millirate as f64 / 1000.0),
        };
        let chunks = grouped(self.chunk_rate(elapsed, last).round() as u64);
        let (p50, p99) = {
            let ttft = self.latencies();
            let at = |q| ttft.value_at_quantile(q) as f64 / 1000.0;
            (at(0.5), at(0.99))
        };
        let clock = if virtual_ns > 0 { "virtual " } else { "" };
        let of = if planned > 0 { format!("/{planned}") } else { String::new() };
        let errors = if failed > 0 { format!("{failed} FAILED") } else { "0 errors".to_owned() };
        // From the left; the numbers say which goes first where there is no room.
        let mut parts = [
            (6, title),
            (9, format!("{clock}{elapsed:.1} s")),
            (1, bar(ended, planned)),
            (8, format!("{ended}{of} done")),
            (5, format!("{} in flight", started.saturating_sub(ended))),
            (4, format!("{rate:.1}{target} req/s")),
            (2, format!("{chunks} chunks/s")),
            (3, format!("TTFT p50 {p50:.1} p99 {p99:.1} ms")),
            (if failed > 0 { 7 } else { 0 }, errors),
        ]
        .to_vec();
        parts.retain(|(_, text)| !text.is_empty());
        loop {
            let texts: Vec<&str> = parts.iter().map(|(_, text)| text.as_str()).collect();
            let line = texts.join(" · ");
            if parts.len() == 1 || line.chars().count() <= columns {
                return Some(line.chars().take(columns).collect());
            }
            let least = (0..parts.len()).min_by_key(|&at| parts[at].0).unwrap_or(0);
            parts.remove(least);
        }
    }

    /// Chunks per second since the last look.
    fn chunk_rate(&self, elapsed: f64, last: &mut Last) -> f64 {
        let chunks = self.chunks.load(Ordering::Relaxed);
        let again = chunks < last.chunks || elapsed < last.elapsed;
        let before = if again { Last::default() } else { std::mem::take(last) };
        *last = Last { elapsed, chunks };
        (chunks - before.chunks) as f64 / (elapsed - before.elapsed).max(1e-3)
    }
}

/// How much is done, in twenty steps; empty where the end is not known.
fn bar(ended: u32, planned: u32) -> String {
    const STEPS: u64 = 20;
    if planned == 0 {
        return String::new();
    }
    let full = (u64::from(ended.min(planned)) * STEPS / u64::from(planned)) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(STEPS as usize - full))
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

/// The printing thread; stops when dropped and leaves no trace on a terminal.
#[derive(Debug)]
pub struct Progress {
    style: Style,
    stop: Arc<AtomicBool>,
    /// Held by who prints.
    screen: Arc<Mutex<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Takes the line on which the cursor stands away.
const CLEAR: &str = "\r\x1b[2K";

impl Progress {
    /// Starts to print to stderr.
    pub fn start(clock: Clock, live: Arc<Live>, style: Style) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let screen = Arc::new(Mutex::new(()));
        let every = match style {
            Style::Off => return Self { style, stop, screen, thread: None },
            Style::Terminal => SimSpan::from_ms(500),
            Style::Lines => SimSpan::from_ms(5000),
        };
        let theirs = (Arc::clone(&stop), Arc::clone(&screen));
        let thread = std::thread::Builder::new().name("progress".into()).spawn(move || {
            let (stop, screen) = theirs;
            let mut last = Last::default();
            while !stop.load(Ordering::Acquire) {
                std::thread::park_timeout(Duration::from_nanos(every.as_ns()));
                let columns = match style {
                    Style::Terminal => crate::os::stderr_columns().unwrap_or(80),
                    _ => usize::MAX,
                };
                // The last column stays free: some terminals wrap when it is written.
                let line = live.line(clock.now(), &mut last, columns.saturating_sub(1));
                let Some(line) = line.filter(|_| !stop.load(Ordering::Acquire)) else { continue };
                let _screen = screen.lock().unwrap_or_else(PoisonError::into_inner);
                let mut out = std::io::stderr().lock();
                // Nobody to tell if stderr is gone.
                let _ = match style {
                    Style::Terminal => write!(out, "{CLEAR}{line}"),
                    _ => writeln!(out, "{line}"),
                };
                let _ = out.flush();
            }
        });
        Self { style, stop, screen, thread: thread.ok() }
    }

    /// Prints a line of the result to stdout.
    pub fn print(&self, line: &str) {
        let _screen = self.clear();
        println!("{line}");
    }

    /// Prints a remark to stderr.
    pub fn note(&self, line: &str) {
        let _screen = self.clear();
        eprintln!("{line}");
    }

    fn clear(&self) -> std::sync::MutexGuard<'_, ()> {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.style == Style::Terminal {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "{CLEAR}");
            let _ = out.flush();
        }
        screen
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        drop(self.clear());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SimTime {
        SimTime::from_ns(ms * 1_000_000)
    }

    /// Begins at 1 s at a target of 20/s, ten requests; six sent, three done and one failed by 3 s.
    fn live() -> Live {
        let live = Live::default();
        live.title("rate 20");
        live.begin(at(1_000), Some(20.0), Some(10));
        for request in 0..6 {
            live.sent(at(1_000 + request * 50));
        }
        let mut record = Record::planned(0, at(1_000));
        let first = SimTime::from_ns(1_000_200_000);
        (0..4).for_each(|_| record.output.push(first));
        live.chunks(0, &record, first);
        record.outcome = crate::record::Outcome::Finished("stop".into());
        (0..3).for_each(|_| live.finished(&record));
        record.outcome = crate::record::Outcome::Interrupted;
        live.finished(&record);
        live
    }

    #[test]
    fn a_wide_line_tells_all() {
        let line = live().line(at(3_000), &mut Last::default(), 200).expect("a line");
        assert_eq!(
            line,
            "rate 20 · 2.0 s · [########------------] · 4/10 done · 2 in flight · 3.0 of 20.0 req/s \
             · 2 chunks/s · TTFT p50 0.2 p99 0.2 ms · 1 FAILED"
        );
    }

    #[test]
    fn a_narrow_line_drops_what_matters_least_and_never_wraps() {
        let live = live();
        let line = |columns| live.line(at(3_000), &mut Last::default(), columns).expect("a line");
        assert_eq!(line(63), "rate 20 · 2.0 s · 4/10 done · 2 in flight · 1 FAILED");
        assert_eq!(line(30), "2.0 s · 4/10 done · 1 FAILED");
        assert_eq!(line(3), "2.0");
        for columns in 1..150 {
            assert!(line(columns).chars().count() <= columns, "{columns}");
        }
    }

    #[test]
    fn the_rate_stands_still_when_all_are_sent() {
        let live = live();
        (6..10).for_each(|request| live.sent(at(1_000 + request * 50)));
        // Ten within 450 ms, whenever one looks.
        for now in [1_500, 9_000] {
            let line = live.line(at(now), &mut Last::default(), 200).expect("a line");
            assert!(line.contains(" 22.2 of 20.0 req/s "), "{line}");
        }
    }

    #[test]
    fn without_a_target_the_rate_is_of_those_that_ended() {
        let live = live();
        live.begin(at(1_000), None, Some(4));
        (0..4).for_each(|_| live.sent(at(1_000)));
        let line = |now| live.line(at(now), &mut Last::default(), 200).expect("a line");
        assert!(line(3_000).contains(" 0.0 req/s "), "{}", line(3_000));
        let mut record = Record::planned(0, at(1_000));
        record.outcome = crate::record::Outcome::Finished("stop".into());
        live.finished(&record);
        assert!(line(3_000).contains(" 0.5 req/s "), "{}", line(3_000));
    }

    #[test]
    fn between_levels_only_the_title_stands() {
        let live = live();
        live.end();
        live.title("self-test");
        let line = live.line(at(9_000), &mut Last::default(), 200);
        assert_eq!(line.as_deref(), Some("self-test"));
        live.title("");
        assert_eq!(live.line(at(9_000), &mut Last::default(), 200), None);
    }
}
