//! The scheduler under thousands of random workloads: tight memory, cancellations, shared prefixes,
//! every policy. Everything follows from one seed; `LLMSIM_SEED=N` replays one workload.

use std::collections::BTreeMap;

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::sim::journal::{self, Journal};
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, Recording, Scheduler, SchedulerSpec,
    Scheduling, StepLog,
};
use llmsim_engine::sim::virtual_time::{self, Happening};
use llmsim_engine::sim::{
    ALL_REQUESTS, Arrives, BlockHash, Disturbance, Engine, Event, Finish, Input, Job, NORMAL,
    Refusal, Verdict, What,
};
use llmsim_engine::units::{Blocks, JobId, SimSpan, SimTime, Tokens};

/// Workloads per `cargo test`: about three seconds.
const WORKLOADS: u64 = 2_000;

/// Seeds that failed once.
const ONCE_FAILED: &[u64] = &[];

#[test]
fn every_invariant_holds_whatever_arrives() {
    let seen = std::cell::RefCell::new(BTreeMap::<&str, u32>::new());
    let seeds = for_each_seed(|seed| {
        let workload = Workload::new(seed);
        let (heard, resets) = workload.live_through();
        workload.check_fates(&heard);
        for (kind, count) in ["reset refused", "reset done"].into_iter().zip(resets) {
            *seen.borrow_mut().entry(kind).or_default() += count;
        }
        for happening in &heard {
            let kind = match happening {
                Happening::Refused { why, .. } => why.as_str(),
                Happening::Event(event) => match event.what {
                    What::Admitted { cached } if cached > Tokens::ZERO => "hit",
                    What::Resumed { cached } if cached > Tokens::ZERO => "hit when resumed",
                    What::Preempted => "preempted",
                    What::Lost => "lost",
                    What::Token { finish: Some(finish), .. } => finish.as_str(),
                    _ => continue,
                },
            };
            *seen.borrow_mut().entry(kind).or_default() += 1;
        }
    });
    // The workloads must be worth the name: everything happens, and often.
    if seeds > 1 {
        let kinds = ["hit", "hit when resumed", "preempted", "stop", "length", "lost"];
        let kinds = kinds.into_iter().chain(["reset refused", "reset done"]);
        let refusals = ["queue_full", "prompt_too_long", "never_fits", "down"];
        for kind in kinds.chain(refusals) {
            let count = seen.borrow().get(kind).copied().unwrap_or(0);
            assert!(count > 200, "{kind} happened only {count} times: {:?}", seen.borrow());
        }
    }
}

#[test]
fn how_often_time_is_asked_for_changes_nothing() {
    for_each_seed(|seed| {
        let workload = Workload::new(seed);
        let offline = workload.log();
        let (live, journal) = workload.log_with_random_polling(seed);
        assert!(live == offline, "polling at random instants changed the events");
        let replayed = journal::replay(&journal, &mut workload.engine()).unwrap();
        assert!(replayed == offline, "the journal's replay differs");
    });
}

/// Runs `check` for many seeds, or for the one in `LLMSIM_SEED`, and says for how many; a failure
/// names its seed.
fn for_each_seed(check: impl Fn(u64)) -> usize {
    let one = std::env::var("LLMSIM_SEED").ok();
    let one = one.map(|text| text.parse().expect("LLMSIM_SEED is a number"));
    let seeds = match one {
        Some(seed) => vec![seed],
        None => ONCE_FAILED.iter().copied().chain(0..WORKLOADS).collect(),
    };
    let count = seeds.len();
    for seed in seeds {
        let named = Named(seed);
        check(seed);
        std::mem::forget(named);
    }
    count
}

/// Dropped only by a panic: says which seed it was.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        eprintln!("to replay this workload alone: LLMSIM_SEED={}", self.0);
    }
}

/// How many resets of the prefix cache were refused, and how many done.
type Resets = [u32; 2];

struct Workload {
    spec: SchedulerSpec,
    inputs: Vec<Input>,
}

impl Workload {
    fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed).with(b"workload").generator();
        let spec = random_spec(&mut random);
        let mut inputs = random_inputs(&mut random, &spec);
        if seed % 2 == 1 {
            let mut random = Seed::new(seed).with(b"disturbances").generator();
            disturb(&mut random, &mut inputs);
        }
        Self { spec, inputs }
    }

    fn engine(&self) -> Engine {
        Engine::Scheduler(Box::new(Scheduler::new(self.spec.clone())))
    }

    fn log(&self) -> String {
        let mut log = String::new();
        virtual_time::run(&mut self.engine(), self.inputs.iter().cloned(), |happening| {
            write(&mut log, &happening);
        });
        log
    }

    /// A live thread polls when it likes; now and then it does not poll before an input at all.
    fn log_with_random_polling(&self, seed: u64) -> (String, String) {
        let mut random = Seed::new(seed).with(b"polling").generator();
        let (mut engine, mut journal, mut log) = (self.engine(), Journal::new(), String::new());
        let mut refused = String::new();
        let mut now = SimTime::ZERO;
        let mut poll = |engine: &mut Engine, journal: &mut Journal, at: SimTime| {
            let mut events = Vec::new();
            journal.advance(at);
            engine.advance(at, &mut events);
            events.iter().for_each(|event| journal::write_event(&mut log, event));
        };
        for input in &self.inputs {
            while random.below(3) > 0 && input.at > now {
                // Inputs at an instant come before it is polled for.
                let span = (input.at - now).as_ns();
                now += SimSpan::from_ns(random.below(span));
                poll(&mut engine, &mut journal, now);
                if now + SimSpan::from_ns(1) >= input.at {
                    break;
                }
            }
            now = input.at;
            match &input.what {
                Arrives::Submit(job) => {
                    journal.submit(now, job);
                    if let Verdict::Refused(why) = engine.submit(now, job.clone()) {
                        journal::write_refusal(&mut refused, now, job.id, why);
                    }
                }
                Arrives::Cancel(id) => {
                    journal.cancel(now, *id);
                    engine.cancel(now, *id);
                }
                Arrives::ResetPrefixCache => {
                    journal.reset_prefix_cache(now);
                    engine.reset_prefix_cache(now);
                }
                Arrives::Disturb(what) => {
                    journal.disturb(now, *what);
                    engine.disturb(now, *what);
                }
                Arrives::Advance => unreachable!("not generated"),
            }
        }
        while let Some(due) = engine.deadline() {
            let late = due.max(now) + SimSpan::from_ns(random.below(30_000_000));
            now = late;
            poll(&mut engine, &mut journal, late);
        }
        (merge(&log, &refused), journal.text().into())
    }

    /// Runs the workload and checks the whole scheduler after every thing that happens.
    fn live_through(&self) -> (Vec<Happening>, Resets) {
        let mut scheduler = Scheduler::new(self.spec.clone());
        scheduler.record_steps(Recording::On);
        let mut steps = Steps { spec: &self.spec, log: StepLog::default(), ended: SimTime::ZERO };
        let mut heard = Vec::new();
        let mut events = Vec::new();
        let mut resets = Resets::default();
        // Places in `heard`, and instants, at which nothing was cached.
        let mut empty_from: Vec<(usize, SimTime)> = Vec::new();
        for input in &self.inputs {
            while let Some(due) = scheduler.deadline().filter(|&due| due < input.at) {
                scheduler.advance(due, &mut events);
                steps.check(&mut scheduler);
            }
            heard.extend(events.drain(..).map(Happening::Event));
            match &input.what {
                Arrives::Submit(job) => {
                    if let Verdict::Refused(why) = scheduler.submit(input.at, job.clone()) {
                        heard.push(Happening::Refused { at: input.at, job: job.id, why });
                    }
                }
                Arrives::Cancel(id) => {
                    let free = scheduler.gauges().free_blocks;
                    let held = scheduler.core().table(*id).len();
                    scheduler.cancel(input.at, *id);
                    assert!(scheduler.core().state(*id).is_none(), "a cancelled job is held");
                    assert!(scheduler.gauges().free_blocks.get() <= free.get() + held as u32);
                }
                Arrives::ResetPrefixCache => {
                    let before = scheduler.gauges();
                    let done = scheduler.reset_prefix_cache(input.at);
                    let gauges = scheduler.gauges();
                    assert_eq!(done, before.free_blocks == before.usable_blocks, "done if unused");
                    assert_eq!(gauges.free_blocks, before.free_blocks, "it frees nothing");
                    empty_from.extend(done.then_some((heard.len(), input.at)));
                    resets[usize::from(done)] += 1;
                }
                Arrives::Disturb(what) => {
                    scheduler.disturb(input.at, *what);
                    if let Disturbance::Crash { .. } = what {
                        let gauges = scheduler.gauges();
                        assert_eq!((gauges.running, gauges.waiting), (0, 0), "a crash loses all");
                        assert_eq!(gauges.free_blocks, gauges.usable_blocks, "and frees all");
                        empty_from.push((heard.len(), input.at));
                    }
                }
                Arrives::Advance => unreachable!("not generated"),
            }
            scheduler.core().check();
        }
        let mut turns = 0;
        while let Some(due) = scheduler.deadline() {
            scheduler.advance(due, &mut events);
            steps.check(&mut scheduler);
            turns += 1;
            assert!(turns < 100_000, "the workload never ends: somebody starves");
        }
        heard.extend(events.drain(..).map(Happening::Event));
        let gauges = scheduler.gauges();
        assert_eq!((gauges.running, gauges.waiting), (0, 0), "somebody was left behind");
        assert_eq!(gauges.free_blocks, gauges.usable_blocks, "blocks leaked");
        assert_eq!(gauges.usable_blocks.get(), self.spec.num_blocks.get() - 1, "blocks withheld");
        for (from, since) in empty_from {
            // Of what happened before, some may not have been fetched yet.
            let first = heard[from..].iter().find_map(|happening| match happening {
                Happening::Event(Event {
                    at,
                    what: What::Admitted { cached } | What::Resumed { cached },
                    ..
                }) => (*at >= since).then_some(*cached),
                _ => None,
            });
            assert!(first.is_none_or(|cached| cached == Tokens::ZERO), "a forgotten prefix is hit");
        }
        (heard, resets)
    }

    /// Each job's events tell a possible life, and the right end.
    fn check_fates(&self, heard: &[Happening]) {
        let cancelled: BTreeMap<JobId, SimTime> = self
            .inputs
            .iter()
            .filter_map(|input| match input.what {
                Arrives::Cancel(id) => Some((id, input.at)),
                _ => None,
            })
            .collect();
        let mut lives: BTreeMap<JobId, Vec<Event>> = BTreeMap::new();
        let mut refused: BTreeMap<JobId, Refusal> = BTreeMap::new();
        let mut now = SimTime::ZERO;
        for happening in heard {
            let at = match *happening {
                Happening::Event(event) => {
                    lives.entry(event.job).or_default().push(event);
                    event.at
                }
                Happening::Refused { at, job, why } => {
                    refused.insert(job, why);
                    at
                }
            };
            assert!(at >= now, "time runs back from {now} to {at}");
            now = at;
        }
        let crashes: Vec<(SimTime, SimTime)> = self
            .inputs
            .iter()
            .filter_map(|input| match input.what {
                Arrives::Disturb(Disturbance::Crash { down }) => Some((input.at, input.at + down)),
                _ => None,
            })
            .collect();
        for input in &self.inputs {
            let Arrives::Submit(job) = &input.what else { continue };
            let life = lives.remove(&job.id).unwrap_or_default();
            if let Some(why) = refused.get(&job.id) {
                assert!(life.is_empty(), "refused job {} lives", job.id);
                self.check_refusal(job, *why);
                // Of one instant, what arrives comes before the crash.
                let is_down = crashes.iter().any(|&(from, to)| from < input.at && input.at < to);
                assert_eq!(*why == Refusal::Down, is_down, "job {} at {}", job.id, input.at);
                continue;
            }
            if let Some(Event { at, what: What::Lost, .. }) = life.last() {
                assert!(crashes.iter().any(|(from, _)| from == at), "lost without a crash");
            }
            check_life(job, input.at, &life, cancelled.get(&job.id).copied(), &self.spec);
        }
        assert!(lives.is_empty(), "events of jobs that nobody submitted: {lives:?}");
    }

    fn check_refusal(&self, job: &Job, why: Refusal) {
        match why {
            Refusal::PromptTooLong => assert!(job.prompt >= self.spec.max_model_len),
            Refusal::QueueFull => assert!(self.spec.max_num_queued_reqs.is_some()),
            Refusal::Down => {}
            Refusal::NeverFits => {
                let (tokens, _) = expected_end(job, &self.spec);
                let most = job.prompt.get() + tokens - 1;
                let blocks = most.div_ceil(self.spec.block_size.get());
                assert!(
                    blocks >= self.spec.num_blocks.get()
                        || (!self.spec.chunked_prefill
                            && most > self.spec.max_num_batched_tokens.get()),
                    "job {} would have fitted",
                    job.id
                );
            }
        }
    }
}

/// The steps' records, checked as they come.
struct Steps<'a> {
    spec: &'a SchedulerSpec,
    log: StepLog,
    ended: SimTime,
}

impl Steps<'_> {
    fn check(&mut self, scheduler: &mut Scheduler) {
        scheduler.core().check();
        scheduler.swap_steps(&mut self.log);
        let cap = self.spec.max_num_active_seqs.unwrap_or(u32::MAX).min(self.spec.max_num_seqs);
        for step in self.log.steps() {
            let granted = self.log.granted(step);
            let tokens: u32 = granted.iter().map(|grant| grant.tokens.get()).sum();
            assert!(tokens <= self.spec.max_num_batched_tokens.get(), "over budget: {step:?}");
            assert_eq!(tokens, (step.decode_tokens + step.prefill_tokens).get(), "{step:?}");
            assert_eq!(granted.len(), step.sequences as usize, "{step:?}");
            assert!(step.sequences <= step.after.running && step.after.running <= cap, "{step:?}");
            assert!(step.planned <= step.started && step.started <= step.ended, "{step:?}");
            assert!(self.ended <= step.started, "two steps at once: {step:?}");
            assert!(self.log.preempted(step).is_empty() || self.log.admitted(step).is_empty());
            let threshold = self.spec.long_prefill_token_threshold.get();
            if threshold > 0 && !self.spec.long_prefill_adaptive {
                let alone = step.before.running + step.before.waiting == 1;
                let most = granted.iter().map(|grant| grant.tokens.get()).max();
                assert!(alone || most <= Some(threshold), "a chunk above the threshold: {step:?}");
            }
            self.ended = step.ended;
        }
    }
}

/// Output tokens and reason, from the job alone.
fn expected_end(job: &Job, spec: &SchedulerSpec) -> (u32, Finish) {
    let longest = job.max_tokens.get().min(spec.max_model_len.get() - job.prompt.get());
    match job.stop_after {
        Some(stop) if stop.get() <= longest => (stop.get(), Finish::Stop),
        _ => (longest, Finish::Length),
    }
}

fn check_life(
    job: &Job,
    arrived: SimTime,
    life: &[Event],
    cancelled: Option<SimTime>,
    spec: &SchedulerSpec,
) {
    #[derive(Debug, PartialEq)]
    enum Stands {
        Waiting,
        Running,
        Preempted,
        Done,
    }
    let mut stands = Stands::Waiting;
    let mut tokens = 0;
    for event in life {
        let context = format!("job {} of {life:?}", job.id);
        assert!(event.at >= arrived, "before it arrived: {context}");
        // Events at the instant of the cancellation come after it.
        assert!(cancelled.is_none_or(|gone| event.at < gone), "after the cancel: {context}");
        match event.what {
            What::Admitted { cached } => {
                assert_eq!(stands, Stands::Waiting, "{context}");
                assert!(cached < job.prompt, "the last token is always computed: {context}");
                assert_eq!(cached.get() % spec.block_size.get(), 0, "{context}");
                stands = Stands::Running;
            }
            What::Resumed { cached } => {
                assert_eq!(stands, Stands::Preempted, "{context}");
                assert!(cached.get() < job.prompt.get() + tokens, "{context}");
                stands = Stands::Running;
            }
            What::Preempted => {
                assert_eq!(stands, Stands::Running, "{context}");
                stands = Stands::Preempted;
            }
            What::Lost => {
                assert_ne!(stands, Stands::Done, "{context}");
                stands = Stands::Done;
            }
            What::Token { index, finish } => {
                // A token in flight may come while it waits after a preemption.
                let may = match spec.scheduling {
                    Scheduling::Synchronous => stands == Stands::Running,
                    Scheduling::Asynchronous => {
                        matches!(stands, Stands::Running | Stands::Preempted)
                    }
                };
                assert!(may, "{context}");
                tokens += 1;
                assert_eq!(index.get(), tokens, "{context}");
                let expected = expected_end(job, spec);
                assert_eq!(finish, (expected.0 == tokens).then_some(expected.1), "{context}");
                if finish.is_some() {
                    stands = Stands::Done;
                }
            }
        }
    }
    assert!(stands == Stands::Done || cancelled.is_some(), "job {} starves: {life:?}", job.id);
}

fn write(log: &mut String, happening: &Happening) {
    match happening {
        Happening::Event(event) => journal::write_event(log, event),
        Happening::Refused { at, job, why } => journal::write_refusal(log, *at, *job, *why),
    }
}

/// Events and refusals in order of time; refusals first, as inputs precede what is due.
fn merge(events: &str, refused: &str) -> String {
    let time = |line: &&str| -> u64 { line.split_once(' ').unwrap().0.parse().unwrap() };
    let mut lines: Vec<&str> = refused.lines().chain(events.lines()).collect();
    lines.sort_by_key(time);
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn pick<T: Copy>(random: &mut Generator, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn between(random: &mut Generator, low: u32, high: u32) -> u32 {
    low + random.below(u64::from(high - low + 1)) as u32
}

fn random_spec(random: &mut Generator) -> SchedulerSpec {
    let block_size = pick(random, &[1, 2, 4, 16]);
    let mut spec = vllm_spec(random, block_size);
    // Of a generator of their own, so that older seeds go on to mean what they meant.
    let mut more = Seed::new(u64::from(spec.num_blocks.get()) << 8).generator();
    spec.prefill_order = pick(&mut more, &[PrefillOrder::Mixed, PrefillOrder::First]);
    let kinds = [OutputBlocks::AsNeeded, OutputBlocks::AsNeeded, OutputBlocks::Reserved];
    spec.output_blocks = pick(&mut more, &kinds);
    spec
}

fn vllm_spec(random: &mut Generator, block_size: u32) -> SchedulerSpec {
    SchedulerSpec {
        max_num_batched_tokens: Tokens::new(between(random, 3, 70)),
        max_num_seqs: between(random, 1, 8),
        max_num_active_seqs: pick(random, &[None, None, None, Some(2), Some(5)]),
        max_model_len: Tokens::new(between(random, 20, 120)),
        block_size: Tokens::new(block_size),
        num_blocks: Blocks::new(2 + between(random, 20, 160) / block_size),
        prefix_caching: pick(random, &[true, true, false]),
        policy: pick(random, &[Policy::Fcfs, Policy::Priority]),
        long_prefill_token_threshold: Tokens::new(pick(random, &[0, 0, 5, 12])),
        long_prefill_adaptive: pick(random, &[false, true]),
        chunked_prefill: pick(random, &[true, true, true, false]),
        reserve_full_isl: pick(random, &[true, true, false]),
        watermark: pick(random, &[0.0, 0.0, 0.01, 0.1, 0.3]),
        prefill_interval: pick(random, &[1, 1, 1, 2, 4]),
        scheduling: pick(random, &[Scheduling::Asynchronous, Scheduling::Synchronous]),
        max_num_queued_reqs: pick(random, &[None, None, None, Some(3)]),
        freed_blocks: pick(random, &[FreedBlocks::UncachedFirst, FreedBlocks::AllLast]),
        prefill_order: PrefillOrder::Mixed,
        output_blocks: OutputBlocks::AsNeeded,
        // Round numbers, so that arrivals and steps often fall on the same instant.
        cost: StepCost::Fixed(SimSpan::from_ms(pick(random, &[1, 10, 10, 7]))),
        residual: None,
    }
}

fn random_inputs(random: &mut Generator, spec: &SchedulerSpec) -> Vec<Input> {
    let jobs = between(random, 1, 24);
    let spread = pick(random, &[1, 50, 400]);
    let mut inputs = Vec::new();
    for id in 0..jobs {
        let at = SimTime::from_ns(u64::from(between(random, 0, spread)) * 1_000_000);
        let job = random_job(random, spec, u64::from(id));
        if random.below(5) == 0 {
            let later = u64::from(between(random, 0, 300)) * 1_000_000;
            let what = Arrives::Cancel(job.id);
            inputs.push(Input { at: at + SimSpan::from_ns(later), what });
        }
        inputs.push(Input { at, what: Arrives::Submit(job) });
    }
    for _ in 0..random.below(4) {
        let at = u64::from(between(random, 0, spread + 600)) * 1_000_000;
        inputs.push(Input { at: SimTime::from_ns(at), what: Arrives::ResetPrefixCache });
    }
    // Stable: a job and its cancellation at one instant come in this order.
    inputs.sort_by_key(|input| (input.at, matches!(input.what, Arrives::Cancel(_))));
    inputs
}

/// A GPU that slows down, stops, loses memory, throws requests out and crashes, and is well in the
/// end.
fn disturb(random: &mut Generator, inputs: &mut Vec<Input>) {
    let last = inputs.last().map_or(0, |input| input.at.as_ns() / 1_000_000) as u32;
    let mut add = |at: u32, what: Disturbance| {
        let at = SimTime::from_ns(u64::from(at) * 1_000_000);
        inputs.push(Input { at, what: Arrives::Disturb(what) });
    };
    for _ in 0..between(random, 1, 6) {
        let what = match random.below(6) {
            0 => Disturbance::Slow { thousandths: pick(random, &[500, 2_000, 3_333]) },
            1 => Disturbance::Pause { span: SimSpan::from_ms(u64::from(between(random, 0, 60))) },
            2 | 3 => Disturbance::Shrink { thousandths: pick(random, &[0, 100, 300, 700, NORMAL]) },
            4 => Disturbance::Preempt { requests: pick(random, &[1, 2, ALL_REQUESTS]) },
            _ => Disturbance::Crash { down: SimSpan::from_ms(u64::from(between(random, 0, 80))) },
        };
        add(between(random, 0, last + 100), what);
    }
    add(last + 500, Disturbance::Slow { thousandths: NORMAL });
    add(last + 500, Disturbance::Shrink { thousandths: NORMAL });
    // Stable: at one instant a disturbance comes after the requests.
    inputs.sort_by_key(|input| {
        let rank = match input.what {
            Arrives::Cancel(_) => 1,
            Arrives::Disturb(_) => 2,
            _ => 0,
        };
        (input.at, rank)
    });
}

fn random_job(random: &mut Generator, spec: &SchedulerSpec, id: u64) -> Job {
    let prompt = between(random, 1, 90);
    let max_tokens = between(random, 1, 40);
    let stop_after = (random.below(2) == 0).then(|| Tokens::new(between(random, 1, 45)));
    Job {
        id: JobId(id),
        prompt: Tokens::new(prompt),
        max_tokens: Tokens::new(max_tokens),
        stop_after,
        priority: between(random, 0, 3) as i32,
        chain: (random.below(8) > 0).then(|| {
            let family = random.below(3);
            let shared = between(random, 0, prompt);
            chain(spec.block_size.get(), family, shared, id, prompt + max_tokens).into()
        }),
    }
}

/// The first `shared` tokens are those of the family; the others nobody else has.
fn chain(block_size: u32, family: u64, shared: u32, id: u64, tokens: u32) -> Vec<BlockHash> {
    let mut key = Seed::new(0);
    (1..=tokens / block_size)
        .map(|block| {
            let content = if block * block_size <= shared { family } else { 1_000 + id };
            key = key.with(&content.to_le_bytes());
            BlockHash(key.value())
        })
        .collect()
}
