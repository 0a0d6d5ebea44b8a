//! How many tokens a second the simulated GPU computes offline, on one core, and how that grows
//! with batch, context, cache and queue.
//!
//! The prediction, made before the first measurement: a decode costs a step one look at the
//! request's cache line when it is planned, one when the plan is committed and one when its token
//! comes, about 45 instructions together, and one event of 32 bytes: 7 to 8 ns. A new block every 16
//! tokens adds 1 to 2 ns, arrival and departure (maps, queue, 48 blocks taken and freed) about 1 µs a
//! request, which is 4 ns a token at 256 tokens. Together 12 to 14 ns per scheduled sequence, or
//! about 75 million tokens/s; nothing of it depends on how large the cache is or how many wait.

use std::process::ExitCode;
use std::time::Duration;

use llmsim_engine::seed::Seed;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, Scheduler, SchedulerSpec, Scheduling,
};
use llmsim_engine::sim::{BlockHash, Engine, Event, Job, Verdict, What};
use llmsim_engine::units::{Blocks, JobId, SimSpan, SimTime, Tokens};

use crate::sys;

/// Options of `offline`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests in the main workload.
    #[arg(long, default_value_t = 4_000)]
    requests: u64,
    /// Runs of each workload; the median is printed.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only the main workload.
    #[arg(long)]
    brief: bool,
}

/// A closed loop: each request that finishes is followed by the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) requests: u64,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    /// Requests that run at once.
    pub(crate) batch: u32,
    /// Requests that wait besides.
    pub(crate) waiting: u32,
    pub(crate) blocks: u32,
    pub(crate) prefix_caching: bool,
    pub(crate) scheduling: Scheduling,
}

impl Workload {
    const fn main(requests: u64) -> Self {
        Self {
            requests,
            prompt: 512,
            output: 256,
            batch: 256,
            waiting: 0,
            blocks: 16_384,
            prefix_caching: false,
            scheduling: Scheduling::Asynchronous,
        }
    }
}

/// What a run took, in CPU time of its thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    pub(crate) tokens: u64,
    pub(crate) time: Duration,
}

impl Took {
    pub(crate) fn million_per_second(self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64() / 1e6
    }

    fn ns_per_token(self) -> f64 {
        self.time.as_nanos() as f64 / self.tokens as f64
    }
}

/// Another simulator of the same scheduler, for comparison: its name, and a run of it.
pub(crate) type Peer = (&'static str, fn(Workload) -> Took);

pub(crate) fn run(args: &Args) -> ExitCode {
    run_beside(args, None)
}

/// As `run`, and the main workload on `peer` too.
pub(crate) fn run_beside(args: &Args, peer: Option<Peer>) -> ExitCode {
    let main = Workload::main(args.requests);
    println!("predicted: 12 to 14 ns per scheduled sequence, about 75 million tokens/s");
    println!("{:<58} {:>9} {:>9}", "workload (median of CPU times)", "M tok/s", "ns/token");
    let ours = report("asynchronous, 4000 x (512 + 256), 256 at a time", main, args.runs);
    let synchronous = Workload { scheduling: Scheduling::Synchronous, ..main };
    report("the same, synchronous", synchronous, args.runs);
    let caching = Workload { prefix_caching: true, ..main };
    report("the same, prefix caching", caching, args.runs);
    match peer {
        None => println!("(perf/peer compares with aisimulate-core in the same run)"),
        Some((name, simulate)) => {
            let theirs = median(args.runs, || simulate(main));
            show(name, theirs);
            let ratio = ours.million_per_second() / theirs.million_per_second();
            println!("ours / theirs: {ratio:.1}");
        }
    }
    if args.brief {
        return ExitCode::SUCCESS;
    }
    println!("\nbatch");
    for batch in [1, 16, 64, 256, 1_024, 4_096] {
        let requests = (u64::from(batch) * 8).clamp(200, 16_000);
        let blocks = 64 * batch + 1_024;
        report(
            &format!("  batch {batch}"),
            Workload { batch, requests, blocks, ..main },
            args.runs,
        );
    }
    println!("context (each request takes and frees the blocks of its prompt once)");
    for prompt in [128, 2_048, 32_768, 131_072] {
        let workload = Workload { prompt, requests: 512, blocks: 256 * (prompt / 16 + 32), ..main };
        report(&format!("  prompt {prompt}"), workload, args.runs);
    }
    println!("cache (blocks), prefix caching on, batch 16");
    for blocks in [1_000, 30_000, 1_000_000] {
        let workload = Workload { blocks, batch: 16, prefix_caching: true, ..main };
        report(&format!("  {blocks} blocks"), workload, args.runs);
    }
    println!("waiting");
    for waiting in [0, 1_000, 100_000] {
        let requests = args.requests + u64::from(waiting);
        report(&format!("  {waiting} wait"), Workload { waiting, requests, ..main }, args.runs);
    }
    ExitCode::SUCCESS
}

fn report(name: &str, workload: Workload, runs: usize) -> Took {
    let took = median(runs, || simulate(workload));
    show(name, took);
    took
}

fn median(runs: usize, run: impl Fn() -> Took) -> Took {
    let mut took: Vec<_> = (0..runs.max(1)).map(|_| run()).collect();
    took.sort_by_key(|took| took.time);
    took[took.len() / 2]
}

fn show(name: &str, took: Took) {
    println!("{name:<58} {:>9.1} {:>9.1}", took.million_per_second(), took.ns_per_token());
}

/// Simulates the workload until `requests` have finished.
pub(crate) fn simulate(workload: Workload) -> Took {
    let mut engine = Engine::Scheduler(Box::new(Scheduler::new(spec(workload))));
    let mut events: Vec<Event> = Vec::new();
    let mut next = 0;
    let mut submit = |engine: &mut Engine, now: SimTime| {
        if next < workload.requests {
            let verdict = engine.submit(now, job(workload, next));
            assert_eq!(verdict, Verdict::Queued, "the workload must fit");
            next += 1;
        }
    };
    let started = cpu_time();
    for _ in 0..workload.batch + workload.waiting {
        submit(&mut engine, SimTime::ZERO);
    }
    let mut tokens = 0;
    while let Some(now) = engine.deadline() {
        engine.advance(now, &mut events);
        for event in events.drain(..) {
            if let What::Token { finish, .. } = event.what {
                tokens += 1;
                if finish.is_some() {
                    submit(&mut engine, now);
                }
            }
        }
    }
    let time = cpu_time() - started;
    assert_eq!(tokens, workload.requests * u64::from(workload.output), "tokens were lost");
    Took { tokens, time }
}

/// CPU time of this thread: what else runs on the machine does not count.
pub(crate) fn cpu_time() -> Duration {
    Duration::from_nanos(sys::thread_cpu_ns())
}

fn job(workload: Workload, id: u64) -> Job {
    let blocks = u64::from((workload.prompt + workload.output) / 16);
    Job {
        id: JobId(id),
        prompt: Tokens::new(workload.prompt),
        max_tokens: Tokens::new(workload.output),
        stop_after: None,
        priority: 0,
        chain: workload.prefix_caching.then(|| {
            let keys = (0..blocks).map(|block| Seed::new(id * blocks + block).value());
            keys.map(BlockHash).collect()
        }),
    }
}

fn spec(workload: Workload) -> SchedulerSpec {
    SchedulerSpec {
        max_num_batched_tokens: Tokens::new(8_192),
        max_num_seqs: workload.batch,
        max_num_active_seqs: None,
        max_model_len: Tokens::new(workload.prompt + workload.output + 1),
        block_size: Tokens::new(16),
        num_blocks: Blocks::new(workload.blocks),
        prefix_caching: workload.prefix_caching,
        policy: Policy::Fcfs,
        long_prefill_token_threshold: Tokens::ZERO,
        long_prefill_adaptive: false,
        chunked_prefill: true,
        reserve_full_isl: true,
        watermark: 0.0,
        prefill_interval: 1,
        scheduling: workload.scheduling,
        max_num_queued_reqs: None,
        freed_blocks: FreedBlocks::UncachedFirst,
        prefill_order: PrefillOrder::Mixed,
        output_blocks: OutputBlocks::AsNeeded,
        cost: StepCost::Fixed(SimSpan::from_ms(20)),
        residual: None,
    }
}
