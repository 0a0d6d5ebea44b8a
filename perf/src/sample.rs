//! One run: streams, the client that drains them, and what came of it.
//!
//! Every run has the same client, on a processor of its own where there are two, in a thread of its
//! own, so that a server started afterwards does not inherit its processor. The invariant: CPU time
//! and frames are counted over the same part of the run, after the streams have begun.

use std::io;
use std::net::{SocketAddr, TcpStream};

use crate::drain::{Arrival, Drained, Wait, drain_with};
use crate::raw::{self, By};
use crate::sys;
use crate::target::{Ask, Target};
use crate::timeline::{Spread, percentile};

/// The processor of the client.
pub(crate) const CLIENT_CPU: usize = 1;

/// The processor of the bare loops, and of the server's I/O thread, which takes the first.
pub(crate) const SERVER_CPU: usize = 0;

/// Up to so many streams the client asks instead of sleeping: its own wake-up would be most of
/// what it measures.
const MOST_BUSY: usize = 192;

/// What one run showed; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// First to last frame of a step.
    pub(crate) burst: u64,
    pub(crate) cpu_per_frame: u64,
    pub(crate) frames_per_second: u64,
    /// Resident memory of the server that the streams brought, by stream.
    pub(crate) bytes_per_stream: u64,
    /// How much later, at the median, the last quarter of a stream's frames comes than the first.
    pub(crate) drift: u64,
}

impl Figures {
    const FIELDS: [fn(&mut Self) -> &mut u64; 10] = [
        |f| &mut f.p50,
        |f| &mut f.p90,
        |f| &mut f.p99,
        |f| &mut f.p999,
        |f| &mut f.max,
        |f| &mut f.burst,
        |f| &mut f.cpu_per_frame,
        |f| &mut f.frames_per_second,
        |f| &mut f.bytes_per_stream,
        |f| &mut f.drift,
    ];

    /// The median over the runs, figure by figure.
    pub(crate) fn median(runs: &[Self]) -> Self {
        let mut median = Self::default();
        for field in Self::FIELDS {
            let mut values: Vec<u64> = runs.iter().map(|run| *field(&mut run.clone())).collect();
            values.sort_unstable();
            *field(&mut median) = percentile(&values, 50.0);
        }
        median
    }
}

/// How frames are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timeline {
    /// All streams at once.
    InStep,
    /// Each stream from its own start.
    Each,
}

/// What is asked for and looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) streams: usize,
    /// Tokens of each stream; a role frame comes before them.
    pub(crate) tokens: u32,
    /// Frames at the start of each stream that are not looked at.
    pub(crate) skip: u32,
    pub(crate) period_ns: u64,
    pub(crate) timeline: Timeline,
}

impl Load {
    /// The role chunk, and the steps in which a batch still fills.
    const SKIPPED: u32 = 10;

    /// All streams in one step.
    pub(crate) fn in_step(streams: usize, tokens: u32, step_ms: u64) -> Self {
        let skip = Self::SKIPPED.min(tokens / 2);
        let period_ns = step_ms * 1_000_000;
        Self { streams, tokens, skip, period_ns, timeline: Timeline::InStep }
    }

    /// Each stream by itself, begun over 200 ms.
    pub(crate) fn each(streams: usize, tokens: u32, period_ms: u64) -> Self {
        let begun = STAGGER_MS / period_ms.max(1);
        let skip = (Self::SKIPPED + begun as u32).min(tokens / 2);
        let period_ns = period_ms * 1_000_000;
        Self { streams, tokens, skip, period_ns, timeline: Timeline::Each }
    }
}

/// Over how long the starts of streams that are not in step are spread.
const STAGGER_MS: u64 = 200;

/// One run of a server that was just started: what the client saw, and the bytes of a frame.
/// `beside` is called when the streams are open, and what it gives back is dropped when they have
/// ended.
pub(crate) fn of_server<T>(
    target: &Target,
    model: &str,
    load: Load,
    beside: impl FnOnce(SocketAddr) -> T,
) -> io::Result<(Figures, usize)> {
    let (figures, bytes, _) = of_server_seen(target, model, load, beside)?;
    Ok((figures, bytes))
}

/// Like [`of_server`], with all arrivals.
pub(crate) fn of_server_seen<T>(
    target: &Target,
    model: &str,
    load: Load,
    beside: impl FnOnce(SocketAddr) -> T,
) -> io::Result<(Figures, usize, Vec<Arrival>)> {
    let stagger_us = match load.timeline {
        Timeline::InStep => 0,
        Timeline::Each => STAGGER_MS * 1_000,
    };
    let pid = target.pid();
    let memory_before = sys::resident_bytes(pid)?;
    let ask = Ask { model, content: "Hello", max_tokens: load.tokens, stagger_us };
    let mut sockets = target.open(load.streams, ask)?;
    let beside = beside(target.address);
    let frames = load.tokens + 1;
    let seen = watch(&mut sockets, frames, load, || {
        Ok((sys::process_cpu_ns(pid)?, sys::resident_bytes(pid)?))
    })?;
    drop(beside);
    if let Some(short) = seen.drained.counts.iter().position(|count| *count < frames) {
        let count = seen.drained.counts[short];
        return Err(io::Error::other(format!("stream {short} got {count} frames of {frames}")));
    }
    let mut figures = seen.figures;
    let (cpu, memory) = seen.looked;
    figures.cpu_per_frame = cpu / seen.frames.max(1);
    figures.bytes_per_stream = memory.saturating_sub(memory_before) / load.streams as u64;
    let all: u64 = seen.drained.counts.iter().map(|count| u64::from(*count)).sum();
    Ok((figures, (seen.drained.bytes / all) as usize, seen.arrivals))
}

/// One run of the bare loop.
pub(crate) fn of_bare_loop(by: By, load: Load, frame_bytes: usize) -> io::Result<Figures> {
    let plan = raw::Plan {
        streams: load.streams,
        steps: load.tokens,
        step_ns: load.period_ns,
        frame_bytes,
        cpu: Some(SERVER_CPU),
        by,
        timeline: load.timeline,
        skip: load.skip,
    };
    let (mut sockets, sender) = raw::start(plan)?;
    let seen = watch(&mut sockets, load.tokens, load, || Ok((0, 0)))?;
    let sent = sender.join().expect("the bare loop does not panic")?;
    let mut figures = seen.figures;
    figures.cpu_per_frame = sent.cpu_ns / sent.frames.max(1);
    Ok(figures)
}

struct Seen {
    figures: Figures,
    drained: Drained,
    arrivals: Vec<Arrival>,
    /// CPU time between the two looks, memory at the second.
    looked: (u64, u64),
    /// Frames between the two looks.
    frames: u64,
}

/// A look at the server in the middle of a run.
struct Look {
    at_ns: u64,
    /// Frames that had arrived.
    frames: u64,
    /// CPU time of the server, ns, and its memory, bytes.
    seen: io::Result<(u64, u64)>,
}

/// Drains the sockets, and looks at CPU and memory after the skipped frames and near the end.
fn watch(
    sockets: &mut [TcpStream],
    frames: u32,
    load: Load,
    look: impl Fn() -> io::Result<(u64, u64)> + Sync,
) -> io::Result<Seen> {
    let all = u64::from(frames) * load.streams as u64;
    let begin = u64::from(load.skip) * load.streams as u64;
    let end = all - all / 50 - 1;
    let mut arrivals = Vec::with_capacity(all as usize);
    let mut looks: Vec<Look> = Vec::with_capacity(2);
    let wait = if load.streams <= MOST_BUSY { Wait::Busy } else { Wait::Sleep };
    let drained = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            sys::pin(CLIENT_CPU);
            drain_with(sockets, frames, &mut arrivals, wait, &mut |total| {
                let is_due = match looks.len() {
                    0 => total >= begin,
                    1 => total >= end,
                    _ => false,
                };
                if is_due {
                    looks.push(Look { at_ns: sys::monotonic_ns(), frames: total, seen: look() });
                }
            })
        });
        client.join().expect("the client does not panic")
    })?;
    let spread = match load.timeline {
        Timeline::InStep => Spread::of(&arrivals, load.streams, load.skip, load.period_ns),
        Timeline::Each => Spread::of_each(&arrivals, load.streams, load.skip, load.period_ns),
    };
    let lag = |percent| percentile(&spread.lags_ns, percent);
    let mut figures = Figures {
        p50: lag(50.0),
        p90: lag(90.0),
        p99: lag(99.0),
        p999: lag(99.9),
        max: lag(100.0),
        burst: percentile(&spread.bursts_ns, 50.0),
        drift: spread.drift_ns,
        ..Figures::default()
    };
    let Ok([first, second]) = <[_; 2]>::try_from(looks) else {
        return Err(io::Error::other("too few frames for a look at the server's CPU time"));
    };
    let ((cpu_before, _), (cpu, memory)) = (first.seen?, second.seen?);
    let frames = second.frames - first.frames;
    let looked = (cpu.saturating_sub(cpu_before), memory);
    let ns = u128::from((second.at_ns - first.at_ns).max(1));
    figures.frames_per_second = (u128::from(frames) * 1_000_000_000 / ns) as u64;
    Ok(Seen { figures, drained, arrivals, looked, frames })
}
