//! What counting costs per token, on the GPU thread and on the I/O thread, beside a bare `send()`.
//!
//! Predicted before the first run (feasibility figures of this host: 13 ns for a bucket, 3.0 to 5 us
//! for a send): on the GPU thread a look-up of the request and some ten stores, 40 ns, since a
//! step's equal latencies and lags are counted once; on the I/O thread two buckets and a ring, 25 ns:
//! 65 ns, 1.5 % of the cheapest token. The bar is 5 %.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use llmsim_engine::observe::{Delivery, Figures, Recorder, Siblings, Submitted, WindowSizes};
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{Recording, SchedulerSpec, StepLog};
use llmsim_engine::sim::{EngineSpec, Event, Job};
use llmsim_engine::units::{Blocks, JobId, SimSpan, SimTime, Tokens};

use crate::drain::drain;
use crate::raw;
use crate::sample::Timeline;
use crate::sys;
use crate::timeline::percentile;

/// `llmsim-perf metrics-cost`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Streams in a step, one row each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64, 1000])]
    streams: Vec<usize>,
    /// Tokens that each figure is measured over; the table shows the median of the runs.
    #[arg(long, default_value_t = 400_000)]
    tokens: usize,
    /// Runs of each kind, in turns.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    println!("CPU per token, ns, median of {} runs in turns", args.rounds);
    println!(
        "{:>7} {:>9} {:>9} {:>9} {:>9} {:>12} {:>7}",
        "streams", "engine", "+ counts", "GPU side", "I/O side", "bare send()", "share"
    );
    for &streams in &args.streams {
        let steps = (args.tokens / streams).max(1);
        let (mut bare, mut counted, mut sent, mut send) = (vec![], vec![], vec![], vec![]);
        for _ in 0..args.rounds {
            bare.push(engine(streams, steps, Counting::Off));
            counted.push(engine(streams, steps, Counting::On));
            sent.push(delivery(streams, steps));
            match bare_send(streams) {
                Ok(ns) => send.push(ns),
                Err(error) => {
                    eprintln!("llmsim-perf metrics-cost: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
        let [bare, counted, sent, send] = [bare, counted, sent, send].map(|mut runs| {
            runs.sort_unstable();
            percentile(&runs, 50.0) as f64 / 1e3
        });
        let gpu = (counted - bare).max(0.0);
        println!(
            "{streams:>7} {bare:>9.1} {counted:>9.1} {gpu:>9.1} {sent:>9.1} {send:>12.0} {:>6.2}%",
            (gpu + sent) / send * 100.0
        );
    }
    ExitCode::SUCCESS
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    On,
    Off,
}

/// CPU time of an engine's thread per token, in picoseconds, with and without a recorder.
fn engine(streams: usize, steps: usize, counting: Counting) -> u64 {
    const STEP: SimSpan = SimSpan::from_ms(20);
    let tokens = Tokens::new(steps as u32 + 64);
    let spec = SchedulerSpec {
        max_num_batched_tokens: Tokens::new(65_536),
        max_num_seqs: streams as u32,
        prefix_caching: false,
        ..SchedulerSpec::vllm(
            Tokens::new(u32::MAX / 4),
            Blocks::new((streams * (steps / 16 + 16) + 16) as u32),
            StepCost::Fixed(STEP),
        )
    };
    let mut engine = EngineSpec::Scheduler(Box::new(spec)).build();
    let figures = Arc::new(Figures::new(Tokens::new(32_768), WindowSizes::default()));
    let mut recorder = Recorder::new(Arc::clone(&figures));
    let mut log = StepLog::default();
    if counting == Counting::On {
        engine.record_steps(Recording::On);
    }
    for stream in 0..streams {
        let job = Job {
            id: JobId(stream as u64),
            prompt: Tokens::new(16),
            max_tokens: tokens,
            stop_after: None,
            priority: 0,
            chain: None,
        };
        recorder.submitted(&Submitted {
            job: job.id,
            prompt: job.prompt,
            max_tokens: job.max_tokens,
            arrived: SimTime::ZERO,
            queued: SimTime::ZERO,
            siblings: Siblings::none(job.id),
        });
        engine.submit(SimTime::ZERO, job);
    }
    let mut events: Vec<Event> = Vec::with_capacity(4 * streams);
    let mut one_step = |lag: u64| {
        let due = engine.deadline().expect("the streams are long enough");
        engine.advance(due, &mut events);
        if counting == Counting::On {
            let now = due + SimSpan::from_ns(lag);
            for event in &events {
                recorder.happened(event, now);
            }
            recorder.settle();
            recorder.gauges(&engine.gauges_after_step());
            engine.swap_steps(&mut log);
            recorder.steps(&log);
        }
        let count = events.len();
        black_box(&events);
        events.clear();
        count
    };
    for lag in 0..8 {
        one_step(40_000 + lag);
    }
    let start = sys::thread_cpu_ns();
    let mut tokens = 0;
    for step in 0..steps {
        // Every step is late by another time.
        tokens += one_step(40_000 + (step as u64 * 7_919) % 30_000);
    }
    (sys::thread_cpu_ns() - start) * 1_000 / tokens.max(1) as u64
}

/// CPU time of counting what was sent per token, in picoseconds: each token by itself, each later
/// than the one before.
fn delivery(streams: usize, steps: usize) -> u64 {
    let delivery = Delivery::new(100_000);
    let start = sys::thread_cpu_ns();
    for _ in 0..steps {
        for stream in 0..streams {
            delivery.sent(SimSpan::from_ns(black_box(60_000 + 4_000 * stream as u64)), 1);
        }
    }
    let ns = sys::thread_cpu_ns() - start;
    black_box(delivery.read().tokens);
    ns * 1_000 / (streams * steps) as u64
}

/// CPU time of one paced `send()` of a frame, in picoseconds.
fn bare_send(streams: usize) -> std::io::Result<u64> {
    let plan = raw::Plan {
        streams,
        steps: (20_000 / streams).clamp(20, 200) as u32,
        step_ns: 10_000_000,
        frame_bytes: 300,
        cpu: Some(0),
        by: raw::By::Send,
        timeline: Timeline::InStep,
        skip: 0,
    };
    let (mut sockets, sender) = raw::start(plan)?;
    let mut arrivals = Vec::with_capacity(streams * plan.steps as usize);
    drain(&mut sockets, plan.steps, &mut arrivals)?;
    let sent = sender.join().expect("the bare loop does not panic")?;
    Ok(sent.cpu_ns * 1_000 / sent.lags_ns.len().max(1) as u64)
}
