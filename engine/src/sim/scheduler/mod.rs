//! Continuous batching on one simulated GPU, after vLLM's V1 scheduler ([`VLLM_VERSION`]).
//!
//! This file puts the steps on the timeline: when a step is planned, starts and ends. What a step
//! does is decided in [`core`] and its parts, which know no time: `policy` plans, `kv_cache` and
//! `prefix` obey, `jobs` keeps the requests; [`cost`] says how long a step takes. The invariant: an
//! input at `now` is seen by every plan at or after `now` and by none before, however rarely anyone
//! calls [`Scheduler::advance`].
//!
//! Synchronous: step k + 1 is planned when step k has ended and its results are in. Asynchronous:
//! step k + 1 is planned when step k *starts*, which is when step k − 1 has ended; so the plan
//! knows the results up to k − 1, and the GPU never waits for a plan.

pub mod core;
pub mod cost;
mod jobs;
mod kv_cache;
mod policy;
mod prefix;
mod record;
mod residual;
mod spec;

pub use self::jobs::JobState;
pub use self::kv_cache::BlockId;
pub use self::record::{Gauges, Granted, Queues, StepLog, StepRecord};
pub use self::residual::{Factor, Residual};
pub use self::spec::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, SchedulerSpec, Scheduling, VLLM_VERSION,
};

use self::core::{Admission, Batch, Core};
use self::cost::{StepCost, StepTime};
use self::record::{Details, StepSummary};
use crate::sim::{Disturbance, Event, Job, NORMAL, Refusal, Verdict, What, stretched};
use crate::units::{JobId, SimTime, Tokens};

/// `engine: scheduler`.
#[derive(Debug)]
pub struct Scheduler {
    core: Core,
    cost: StepCost,
    residual: Option<Residual>,
    scheduling: Scheduling,
    max_num_queued_reqs: Option<u32>,
    gpu: Gpu,
    /// Asynchronous only: planned, and to be executed after the step in execution.
    next: Option<Planned>,
    /// Storage of plans done with.
    spare: Vec<Planned>,
    /// All that is due before this instant has happened.
    now: SimTime,
    /// What happened and has not been fetched.
    events: Vec<Event>,
    steps: u64,
    /// The gauges at the end of the last update, before the next plan.
    updated: Gauges,
    /// What steps did, if anybody wants to know.
    log: Option<StepLog>,
    /// Thousandths of its time that each step takes.
    pace: u32,
    /// No step begins or goes on before this instant.
    paused_until: SimTime,
    /// No request is taken before this instant.
    down_until: SimTime,
}

/// What the simulated GPU does.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per simulated GPU")]
enum Gpu {
    /// Nothing, and nobody waits for it.
    Idle,
    /// Nothing yet: a step is planned at this instant.
    Wakes(SimTime),
    /// It executes a step.
    Executes {
        plan: Planned,
        started: SimTime,
        time: StepTime,
        residual: Option<Factor>,
        ends: SimTime,
    },
}

/// A step that is decided, and what a record of it needs.
#[derive(Debug, Default)]
struct Planned {
    batch: Batch,
    at: SimTime,
    before: Queues,
    after: Queues,
    details: Details,
}

impl Scheduler {
    /// An idle GPU.
    ///
    /// # Panics
    /// On settings with which nothing could ever run; see [`Core::new`].
    pub fn new(spec: SchedulerSpec) -> Self {
        Self {
            core: Core::new(&spec),
            scheduling: spec.scheduling,
            max_num_queued_reqs: spec.max_num_queued_reqs,
            cost: spec.cost,
            residual: spec.residual,
            gpu: Gpu::Idle,
            next: None,
            spare: Vec::new(),
            now: SimTime::ZERO,
            events: Vec::new(),
            steps: 0,
            updated: Gauges::default(),
            log: None,
            pace: NORMAL,
            paused_until: SimTime::ZERO,
            down_until: SimTime::ZERO,
        }
    }

    /// See [`Engine::submit`](crate::sim::Engine::submit).
    pub fn submit(&mut self, now: SimTime, mut job: Job) -> Verdict {
        self.run_before(now);
        // Something has to be computed before a token can be sampled.
        job.prompt = job.prompt.max(Tokens::new(1));
        if now < self.down_until {
            return Verdict::Refused(Refusal::Down);
        }
        if self.max_num_queued_reqs.is_some_and(|most| self.core.waiting() >= most as usize) {
            return Verdict::Refused(Refusal::QueueFull);
        }
        if let Err(refusal) = self.core.accepts(&job) {
            return Verdict::Refused(refusal);
        }
        self.core.add(job);
        self.wake(now);
        Verdict::Queued
    }

    /// See [`Engine::cancel`](crate::sim::Engine::cancel). A step in execution goes on to its end.
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        self.run_before(now);
        self.core.abort(id);
        // It may have stood before others in a cache that is too small for it at present.
        if self.core.is_shrunk() && self.core.held() > 0 {
            self.wake(now);
        }
    }

    /// See [`Engine::disturb`](crate::sim::Engine::disturb).
    pub fn disturb(&mut self, now: SimTime, what: Disturbance) {
        self.run_before(now);
        match what {
            // The step in execution was on its way.
            Disturbance::Slow { thousandths } => self.pace = thousandths.max(1),
            Disturbance::Pause { span } => {
                let until = (now + span).max(self.paused_until);
                let longer = until - now.max(self.paused_until);
                self.paused_until = until;
                match &mut self.gpu {
                    Gpu::Idle => {}
                    Gpu::Wakes(at) => *at = (*at).max(until),
                    Gpu::Executes { ends, .. } => *ends += longer,
                }
            }
            Disturbance::Shrink { thousandths } => {
                self.core.shrink_to(thousandths);
                if self.core.held() > 0 {
                    self.wake(now);
                } else if let Gpu::Idle = self.gpu {
                    self.core.withhold_free();
                }
            }
            Disturbance::Preempt { requests } => self.core.preempt_next(requests),
            Disturbance::Crash { down } => {
                self.down_until = self.down_until.max(now + down);
                if let Gpu::Executes { plan, .. } = std::mem::replace(&mut self.gpu, Gpu::Idle) {
                    self.spare.push(plan);
                }
                self.spare.extend(self.next.take());
                let lost = |job| Event { at: now, job, what: What::Lost };
                self.events.extend(self.core.lose_all().into_iter().map(lost));
                // What comes up again is another process, with gauges of its own.
                self.updated = self.gauges();
            }
        }
    }

    /// Has a step planned as soon as may be, if the GPU does nothing.
    fn wake(&mut self, now: SimTime) {
        if let Gpu::Idle = self.gpu {
            self.gpu = Gpu::Wakes(now.max(self.paused_until));
        }
    }

    /// See [`Engine::deadline`](crate::sim::Engine::deadline).
    pub fn deadline(&self) -> Option<SimTime> {
        self.events.first().map(|event| event.at).or_else(|| self.due())
    }

    /// See [`Engine::advance`](crate::sim::Engine::advance).
    pub fn advance(&mut self, now: SimTime, out: &mut Vec<Event>) {
        assert!(now >= self.now, "time runs back from {} to {now}", self.now);
        out.append(&mut self.events);
        while let Some(due) = self.due().filter(|&due| due <= now) {
            self.run(due, out);
        }
        self.now = now;
    }

    /// Forgets all cached prefixes; works only while no request holds blocks, and says whether it
    /// did.
    pub fn reset_prefix_cache(&mut self, now: SimTime) -> bool {
        self.run_before(now);
        self.core.reset_prefix_cache()
    }

    /// Starts or stops recording what steps do; see [`Scheduler::swap_steps`].
    pub fn record_steps(&mut self, recording: Recording) {
        self.log = match recording {
            Recording::On => Some(self.log.take().unwrap_or_default()),
            Recording::Off => None,
        };
    }

    /// Replaces the contents of `log` by what was recorded since the last time; the storage is
    /// reused. A log that is never read is bounded: later steps are dropped and counted.
    pub fn swap_steps(&mut self, log: &mut StepLog) {
        log.clear();
        if let Some(recorded) = &mut self.log {
            std::mem::swap(recorded, log);
        }
    }

    /// The state of this moment.
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.core.running() as u32,
            waiting: self.core.waiting() as u32,
            waiting_preempted: self.core.waiting_preempted(),
            usable_blocks: self.core.usable_blocks(),
            free_blocks: self.core.free_blocks(),
            preemptions: self.core.preemptions(),
            prefix: self.core.prefix_stats(),
            steps: self.steps,
        }
    }

    /// The state at the end of the last step, before the next was planned: when vLLM looks.
    pub fn gauges_after_step(&self) -> Gauges {
        if self.steps == 0 { self.gauges() } else { self.updated }
    }

    /// The simulated GPU's untimed state, for checks.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Lets all happen that is due before `now`: inputs at `now` come before the plans of `now`.
    fn run_before(&mut self, now: SimTime) {
        assert!(now >= self.now, "time runs back from {} to {now}", self.now);
        if self.due().is_some_and(|due| due < now) {
            let mut events = std::mem::take(&mut self.events);
            while let Some(due) = self.due().filter(|&due| due < now) {
                self.run(due, &mut events);
            }
            self.events = events;
        }
        self.now = now;
    }

    /// When the next thing happens.
    fn due(&self) -> Option<SimTime> {
        match &self.gpu {
            Gpu::Idle => None,
            Gpu::Wakes(at) => Some(*at),
            Gpu::Executes { ends, .. } => Some(*ends),
        }
    }

    /// What is due at `at`: the end of a step and the start of the next.
    fn run(&mut self, at: SimTime, events: &mut Vec<Event>) {
        let gpu = std::mem::replace(&mut self.gpu, Gpu::Idle);
        if let Gpu::Executes { plan, started, time, residual, .. } = gpu {
            self.core.update(&plan.batch, |output| {
                let what = What::Token { index: output.index, finish: output.finish };
                events.push(Event { at, job: output.job, what });
            });
            self.steps += 1;
            self.updated = self.gauges();
            if let Some(log) = &mut self.log {
                log.push(plan.summary(started, at, time, residual), &plan.details);
            }
            self.spare.push(plan);
        }
        let plan = match self.next.take() {
            Some(plan) if !plan.batch.is_empty() => Some(plan),
            planned => {
                self.spare.extend(planned);
                self.plan_until_work(at, events)
            }
        };
        let Some(plan) = plan else { return };
        let mut time = self.cost.time(&plan.batch.shape);
        let residual = self.residual.map(|residual| residual.factor(plan.batch.step));
        if let Some(factor) = residual {
            time.total = factor.of(time.total);
        }
        let ends = at + stretched(time.total, self.pace);
        self.gpu = Gpu::Executes { plan, started: at, time, residual, ends };
        if self.scheduling == Scheduling::Asynchronous {
            self.next = Some(self.plan(at, events));
        }
    }

    /// Plans until a step computes something. Only steps that preempt everything they run compute
    /// nothing though requests are held; they take no time.
    fn plan_until_work(&mut self, at: SimTime, events: &mut Vec<Event>) -> Option<Planned> {
        while self.core.held() > 0 {
            let plan = self.plan(at, events);
            if !plan.batch.is_empty() {
                return Some(plan);
            }
            let is_stuck = plan.batch.preempted.is_empty();
            self.spare.push(plan);
            if is_stuck {
                // Whatever `accepts` let in can run once nothing else does, in the whole cache.
                assert!(self.core.is_shrunk(), "the GPU idles while somebody waits");
                return None;
            }
        }
        None
    }

    fn plan(&mut self, at: SimTime, events: &mut Vec<Event>) -> Planned {
        let mut plan = self.spare.pop().unwrap_or_default();
        plan.at = at;
        plan.before = self.queues();
        self.core.schedule(&mut plan.batch);
        plan.after = self.queues();
        for &job in &plan.batch.preempted {
            events.push(Event { at, job, what: What::Preempted });
        }
        for &Admission { job, cached, resumed } in &plan.batch.admitted {
            let what = if resumed { What::Resumed { cached } } else { What::Admitted { cached } };
            events.push(Event { at, job, what });
        }
        plan.details.clear();
        if self.log.is_some() {
            let grants = self.core.grants(&plan.batch);
            plan.details.granted.extend(grants.map(|(job, tokens)| Granted { job, tokens }));
            plan.details.admitted.extend_from_slice(&plan.batch.admitted);
            plan.details.preempted.extend_from_slice(&plan.batch.preempted);
        }
        plan
    }

    fn queues(&self) -> Queues {
        Queues {
            running: self.core.running() as u32,
            waiting: self.core.waiting() as u32,
            free_blocks: self.core.free_blocks(),
        }
    }
}

impl Planned {
    fn summary(
        &self,
        started: SimTime,
        ended: SimTime,
        time: StepTime,
        residual: Option<Factor>,
    ) -> StepSummary {
        StepSummary {
            index: self.batch.step,
            planned: self.at,
            started,
            ended,
            time,
            residual,
            shape: self.batch.shape,
            sequences: self.batch.sequences() as u32,
            decode_tokens: Tokens::new(self.batch.shape.decodes),
            prefill_tokens: Tokens::new(self.batch.tokens - self.batch.shape.decodes),
            before: self.before,
            after: self.after,
            admission: self.batch.admission,
        }
    }
}

/// Whether steps are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recording {
    /// Each step leaves a record.
    On,
    /// None does.
    Off,
}
