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
mod spec;

pub use self::jobs::JobState;
pub use self::kv_cache::BlockId;
pub use self::spec::{FreedBlocks, Policy, SchedulerSpec, Scheduling, VLLM_VERSION};

use self::core::{Admission, Batch, Core};
use self::cost::StepCost;
use crate::sim::{Event, Job, Refusal, Verdict, What};
use crate::units::{JobId, SimTime};

/// `engine: scheduler`.
#[derive(Debug)]
pub struct Scheduler {
    core: Core,
    cost: StepCost,
    scheduling: Scheduling,
    max_num_queued_reqs: Option<u32>,
    gpu: Gpu,
    /// Asynchronous only: planned, and to be executed after the step in execution.
    next: Option<Batch>,
    /// Storage of batches done with.
    spare: Vec<Batch>,
    /// All that is due before this instant has happened.
    now: SimTime,
    /// What happened and has not been fetched.
    events: Vec<Event>,
}

/// What the simulated GPU does.
#[derive(Debug)]
enum Gpu {
    /// Nothing, and nobody waits for it.
    Idle,
    /// Nothing yet: a step is planned at this instant.
    Wakes(SimTime),
    /// It executes a step.
    Executes { batch: Batch, ends: SimTime },
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
            gpu: Gpu::Idle,
            next: None,
            spare: Vec::new(),
            now: SimTime::ZERO,
            events: Vec::new(),
        }
    }

    /// See [`Engine::submit`](crate::sim::Engine::submit).
    pub fn submit(&mut self, now: SimTime, job: Job) -> Verdict {
        self.run_before(now);
        if self.max_num_queued_reqs.is_some_and(|most| self.core.waiting() >= most as usize) {
            return Verdict::Refused(Refusal::QueueFull);
        }
        if let Err(refusal) = self.core.accepts(&job) {
            return Verdict::Refused(refusal);
        }
        self.core.add(job);
        if let Gpu::Idle = self.gpu {
            self.gpu = Gpu::Wakes(now);
        }
        Verdict::Queued
    }

    /// See [`Engine::cancel`](crate::sim::Engine::cancel). A step in execution goes on to its end.
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        self.run_before(now);
        self.core.abort(id);
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

    /// The simulated GPU's state, for gauges and checks.
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
        if let Gpu::Executes { batch, .. } = std::mem::replace(&mut self.gpu, Gpu::Idle) {
            self.core.update(&batch, |output| {
                let what = What::Token { index: output.index, finish: output.finish };
                events.push(Event { at, job: output.job, what });
            });
            self.spare.push(batch);
        }
        let batch = match self.next.take() {
            Some(batch) if !batch.is_empty() => Some(batch),
            planned => {
                self.spare.extend(planned);
                self.plan_until_work(at, events)
            }
        };
        let Some(batch) = batch else {
            // Whatever `accepts` let in can run once nothing else does.
            assert!(self.core.held() == 0, "the GPU idles while {} wait", self.core.held());
            return;
        };
        let ends = at + self.cost.time(&batch.shape).total;
        self.gpu = Gpu::Executes { batch, ends };
        if self.scheduling == Scheduling::Asynchronous && self.core.held() > 0 {
            self.next = Some(self.plan(at, events));
        }
    }

    /// Plans until a step computes something. Only steps that preempt everything they run compute
    /// nothing though requests are held; they take no time.
    fn plan_until_work(&mut self, at: SimTime, events: &mut Vec<Event>) -> Option<Batch> {
        loop {
            let batch = self.plan(at, events);
            if !batch.is_empty() {
                return Some(batch);
            }
            let again = !batch.preempted.is_empty();
            self.spare.push(batch);
            if !again {
                return None;
            }
        }
    }

    fn plan(&mut self, at: SimTime, events: &mut Vec<Event>) -> Batch {
        let mut batch = self.spare.pop().unwrap_or_default();
        self.core.schedule(&mut batch);
        for &job in &batch.preempted {
            events.push(Event { at, job, what: What::Preempted });
        }
        for &Admission { job, cached, resumed } in &batch.admitted {
            let what = if resumed { What::Resumed { cached } } else { What::Admitted { cached } };
            events.push(Event { at, job, what });
        }
        batch
    }
}
