//! Our metrics in vLLM's names against vLLM's own, after the same recorded scenarios.
//!
//! The recordings (`*.metrics.txt`, see `traces/metrics_vllm.py`) run on a made-up clock: step k is
//! scheduled at 0.0253 k seconds, its results are processed at 0.0253 (k + 1), and a request
//! arrives at the start of its step.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use llmsim_engine::observe::family::{Family, Format};
use llmsim_engine::observe::vllm::{AdaptersView, CacheConfig, EngineView, SleepState, families};
use llmsim_engine::observe::{Figures, Reading, Recorder, Siblings, Submitted, WindowSizes};
use llmsim_engine::replay::{Scenario, When};
use llmsim_engine::sim::scheduler::Gauges;
use llmsim_engine::sim::scheduler::core::{Batch, Core};
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::{Engine, EngineSpec, Event, Finish, Job, What};
use llmsim_engine::units::{JobId, SimSpan, SimTime, Tokens};

const STEP: SimSpan = SimSpan::from_us(25_300);

fn start_of(step: u64) -> SimTime {
    SimTime::from_ns(STEP.as_ns() * step)
}

fn submitted(job: &Job, at: SimTime) -> Submitted {
    Submitted {
        job: job.id,
        prompt: job.prompt,
        max_tokens: job.max_tokens,
        arrived: at,
        queued: at,
        siblings: Siblings::none(job.id),
    }
}

/// As vLLM's `ParentRequest.observe_finished_request` (v1/engine/parallel_sampling.py): one
/// observation for a prompt, when the last of its choices has finished, and none if one was
/// aborted.
#[test]
fn the_choices_of_a_prompt_are_counted_once_and_by_the_longest() {
    let figures = Arc::new(Figures::new(Tokens::new(4096), WindowSizes::default()));
    let mut recorder = Recorder::new(Arc::clone(&figures));
    let submit = |recorder: &mut Recorder, first: u64, count: u32| {
        for id in first..first + u64::from(count) {
            recorder.submitted(&Submitted {
                job: JobId(id),
                prompt: Tokens::new(5),
                max_tokens: Tokens::new(9),
                arrived: SimTime::ZERO,
                queued: SimTime::ZERO,
                siblings: Siblings { first: JobId(first), count },
            });
        }
    };
    let say = |recorder: &mut Recorder, id: u64, tokens: u32| {
        for index in 1..=tokens {
            let finish = (index == tokens).then_some(Finish::Stop);
            let what = What::Token { index: Tokens::new(index), finish };
            let at = start_of(u64::from(index));
            recorder.happened(&Event { at, job: JobId(id), what }, at);
        }
        recorder.settle();
    };
    let counted = || {
        let reading = figures.read();
        let sums = [&reading.choices, &reading.longest_choice].map(|h| (h.count(), h.sum()));
        (sums, reading.generation_length.count())
    };
    submit(&mut recorder, 10, 3);
    say(&mut recorder, 11, 7);
    say(&mut recorder, 10, 2);
    assert_eq!(counted(), ([(0, 0.0), (0, 0.0)], 2));
    say(&mut recorder, 12, 4);
    assert_eq!(counted(), ([(1, 3.0), (1, 7.0)], 3));
    submit(&mut recorder, 20, 1);
    say(&mut recorder, 20, 5);
    assert_eq!(counted(), ([(2, 4.0), (2, 12.0)], 4));
    submit(&mut recorder, 30, 2);
    say(&mut recorder, 30, 5);
    recorder.cancelled(JobId(31));
    assert_eq!(counted(), ([(2, 4.0), (2, 12.0)], 5));
}

fn arrivals(scenario: &Scenario) -> BTreeMap<u64, Vec<usize>> {
    let mut arrivals: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, request) in scenario.requests.iter().enumerate() {
        arrivals.entry(request.arrive).or_default().push(index);
    }
    arrivals
}

fn figures(scenario: &Scenario) -> (Arc<Figures>, Recorder) {
    let context = Tokens::new(scenario.config.max_model_len);
    let figures = Arc::new(Figures::new(context, WindowSizes::default()));
    (Arc::clone(&figures), Recorder::new(figures))
}

/// The untimed core, stepped and timed as the recording driver stepped and timed vLLM's.
struct Replay<'a> {
    scenario: &'a Scenario,
    core: Core,
    in_flight: VecDeque<Batch>,
    recorder: Recorder,
}

impl Replay<'_> {
    fn run(&mut self) {
        let arrivals = arrivals(self.scenario);
        let depth = if self.scenario.config.async_scheduling { 2 } else { 1 };
        let mut step = 0;
        loop {
            let now = start_of(step);
            for &index in arrivals.get(&step).into_iter().flatten() {
                let job = self.scenario.job(index);
                self.recorder.submitted(&submitted(&job, now));
                self.core.add(job);
            }
            self.cancel(step, When::Before);
            if self.core.held() > 0 || self.in_flight.iter().any(|batch| !batch.is_empty()) {
                let mut batch = Batch::default();
                self.core.schedule(&mut batch);
                self.tell_schedule(&batch, now);
                let idle = batch.is_empty() && self.core.held() == 0;
                self.in_flight.push_back(batch);
                self.cancel(step, When::During);
                if self.in_flight.len() == depth || idle {
                    self.update(start_of(step + 1));
                }
                step += 1;
                continue;
            }
            self.in_flight.clear();
            match arrivals.range(step + 1..).next() {
                Some((&later, _)) => step = later,
                None => return,
            }
        }
    }

    fn cancel(&mut self, step: u64, when: When) {
        for &(request, at, then) in &self.scenario.cancels {
            if at == step && then == when {
                self.core.abort(JobId(request as u64));
                self.recorder.cancelled(JobId(request as u64));
            }
        }
    }

    fn tell_schedule(&mut self, batch: &Batch, now: SimTime) {
        for &job in &batch.preempted {
            self.recorder.happened(&Event { at: now, job, what: What::Preempted }, now);
        }
        for admission in &batch.admitted {
            let cached = admission.cached;
            let what = if admission.resumed {
                What::Resumed { cached }
            } else {
                What::Admitted { cached }
            };
            self.recorder.happened(&Event { at: now, job: admission.job, what }, now);
        }
    }

    fn update(&mut self, now: SimTime) {
        let Some(batch) = self.in_flight.pop_front() else { return };
        let recorder = &mut self.recorder;
        self.core.update(&batch, |output| {
            let what = What::Token { index: output.index, finish: output.finish };
            recorder.happened(&Event { at: now, job: output.job, what }, now);
        });
        recorder.settle();
        recorder.gauges(&Gauges {
            running: self.core.running() as u32,
            waiting: self.core.waiting() as u32,
            waiting_preempted: 0,
            usable_blocks: self.core.usable_blocks(),
            free_blocks: self.core.free_blocks(),
            preemptions: self.core.preemptions(),
            prefix: self.core.prefix_stats(),
            steps: 0,
        });
    }
}

/// Scenarios with a recording of vLLM's `/metrics`.
#[expect(clippy::disallowed_methods, reason = "recordings are files")]
fn recordings() -> Vec<(String, Scenario, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut found = Vec::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if let Some(name) = name.strip_suffix(".metrics.txt") {
            let scenario = fs::read_to_string(directory.join(format!("{name}.json"))).unwrap();
            let recorded = fs::read_to_string(&path).unwrap();
            found.push((name.to_owned(), Scenario::parse(&scenario).unwrap(), recorded));
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(found.len() >= 6, "recordings are missing");
    found
}

fn shown(scenario: &Scenario, reading: &Reading) -> Vec<Family> {
    let spec = scenario.spec();
    let cache = Some(CacheConfig {
        block_size: spec.block_size,
        num_blocks: spec.num_blocks,
        prefix_caching: spec.prefix_caching,
        gpu_memory_utilization: 0.92,
    });
    let engine = EngineView { model: "sim", replica: 0, reading, cache, sleep: SleepState::Awake };
    families(&[engine], AdaptersView::default(), 1.0)
}

/// What a vLLM without LoRA and of this release does not show.
fn is_extra(family: &Family) -> bool {
    family.name.starts_with("vllm:gpu_")
        || ["vllm:lora_requests_info", "vllm:time_per_output_token_seconds"].contains(&family.name)
}

/// Line by line. Whole numbers and whatever is not a sum of times must be equal as text; sums of
/// times to nine digits, since vLLM adds differences of floats around 1,000.
fn compare(scenario: &Scenario, reading: &Reading, recorded: &str) -> Result<(), String> {
    let families = shown(scenario, reading);
    let text = Format::Prometheus.write(families.iter().filter(|family| !is_extra(family)));
    let ours: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
    let theirs: Vec<&str> = recorded.lines().collect();
    for (our, their) in ours.iter().zip(&theirs) {
        let is_time = their.contains("_seconds_sum{");
        let (our_name, our_value) = our.rsplit_once(' ').unwrap();
        let (their_name, their_value) = their.rsplit_once(' ').unwrap();
        let equal = match is_time {
            true => {
                let [one, other]: [f64; 2] = [our_value, their_value].map(|v| v.parse().unwrap());
                our_name == their_name && (one - other).abs() <= 1e-9 * one.abs().max(1.0)
            }
            false => our == their,
        };
        if !equal {
            return Err(format!("vLLM: {their}\nours: {our}"));
        }
    }
    match ours.len() == theirs.len() {
        true => Ok(()),
        false => Err(format!("vLLM wrote {} lines, we {}", theirs.len(), ours.len())),
    }
}

#[test]
fn every_line_of_vllm_s_metrics_is_ours() {
    let mut failures = Vec::new();
    for (name, scenario, recorded) in recordings() {
        let (figures, recorder) = figures(&scenario);
        let core = Core::new(&scenario.spec());
        Replay { scenario: &scenario, core, in_flight: VecDeque::new(), recorder }.run();
        if let Err(difference) = compare(&scenario, &figures.read(), &recorded) {
            failures.push(format!("{name}:\n{difference}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
}

/// The way in which a live thread or an offline loop feeds a recorder: whole batches of events,
/// from an engine with a timeline. Steps of the recordings are as long as a step of this engine.
#[test]
fn an_engine_in_virtual_time_is_observed_alike() {
    let mut compared = 0;
    for (name, scenario, recorded) in recordings() {
        // Asynchronous: the recordings' clock has a step between plan and results that no real
        // engine has. Cancellations: theirs come between results and plan, which are one instant.
        if scenario.config.async_scheduling || !scenario.cancels.is_empty() {
            continue;
        }
        compared += 1;
        let (figures, mut recorder) = figures(&scenario);
        let spec = llmsim_engine::sim::scheduler::SchedulerSpec {
            cost: StepCost::Fixed(STEP),
            ..scenario.spec()
        };
        let mut engine = EngineSpec::Scheduler(Box::new(spec)).build();
        for (step, arrived) in arrivals(&scenario) {
            let now = start_of(step);
            while let Some(deadline) = engine.deadline().filter(|deadline| *deadline < now) {
                advance(deadline, &mut engine, &mut recorder);
            }
            for index in arrived {
                let job = scenario.job(index);
                recorder.submitted(&submitted(&job, now));
                engine.submit(now, job);
            }
        }
        while let Some(deadline) = engine.deadline() {
            advance(deadline, &mut engine, &mut recorder);
        }
        if let Err(difference) = compare(&scenario, &figures.read(), &recorded) {
            panic!("{name}:\n{difference}");
        }
    }
    assert!(compared >= 2);
}

fn advance(now: SimTime, engine: &mut Engine, recorder: &mut Recorder) {
    let mut events = Vec::new();
    engine.advance(now, &mut events);
    for event in &events {
        // Seen when it happened: virtual time is never late.
        recorder.happened(event, event.at);
    }
    recorder.settle();
    recorder.gauges(&engine.gauges_after_step());
}
