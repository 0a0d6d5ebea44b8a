//! Replays a recorded scenario on the scheduler's untimed core, and writes what each step did in
//! the format of the recordings.
//!
//! It schedules nothing itself: it feeds arrivals and cancellations step by step, as the recording
//! driver fed them to vLLM, and reads the outcome. The invariant: one line per step of vLLM, byte
//! for byte, so that the first difference of two files is the first step that went differently.

mod line;
mod scenario;

pub use self::scenario::{Config, Number, PolicyName, Request, Scenario, When};

use std::collections::{BTreeMap, VecDeque};

use self::line::{Line, quote};
use crate::sim::Finish;
use crate::sim::scheduler::core::{Batch, Core, PrefixStats};
use crate::sim::scheduler::{JobState, VLLM_VERSION};
use crate::units::JobId;

/// Our trace of a scenario: one line per step, between a head and an end line.
///
/// # Errors
/// If the scenario does not finish within its `max_steps`.
pub fn trace(scenario: &Scenario) -> Result<Vec<String>, String> {
    let mut replay = Replay::new(scenario);
    replay.run()?;
    let head = format!(
        "{{\"trace\":1,\"scenario\":{},\"vllm\":\"{VLLM_VERSION}\",\"config\":{},\
         \"usable_blocks\":{}}}",
        quote(&scenario.name),
        scenario.config.to_json(),
        replay.core.usable_blocks(),
    );
    let end = replay.end();
    let mut lines = vec![head];
    lines.append(&mut replay.lines);
    lines.push(end);
    Ok(lines)
}

struct Replay<'a> {
    scenario: &'a Scenario,
    core: Core,
    /// Scheduled, oldest first, results not processed; with their step.
    in_flight: VecDeque<(u64, Batch)>,
    spare: Vec<Batch>,
    requests: Vec<Fate>,
    lines: Vec<String>,
    scheduled_tokens: u64,
    max_running: usize,
    /// Statistics that lines have told already.
    told: PrefixStats,
}

/// What became of a request: steps, `None` if never.
#[derive(Clone, Default)]
struct Fate {
    admitted: Option<u64>,
    first_token: Option<u64>,
    finished: Option<u64>,
    reason: Option<&'static str>,
    output: u32,
    preemptions: u32,
    cached: Option<u32>,
    /// How many blocks of its table lines have told already.
    told_blocks: usize,
}

impl<'a> Replay<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            core: Core::new(&scenario.spec()),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            requests: vec![Fate::default(); scenario.requests.len()],
            lines: Vec::new(),
            scheduled_tokens: 0,
            max_running: 0,
            told: PrefixStats::default(),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut arrivals: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, request) in self.scenario.requests.iter().enumerate() {
            arrivals.entry(request.arrive).or_default().push(index);
        }
        let depth = if self.scenario.config.async_scheduling { 2 } else { 1 };
        let mut step = 0;
        while step <= self.scenario.max_steps {
            let mut line = Line::new(step);
            let arrived = arrivals.get(&step).map_or(&[][..], Vec::as_slice);
            for &index in arrived {
                self.core.add(self.scenario.job(index));
            }
            line.list("arr", arrived);
            let cancelled = self.cancel(step, When::Before);
            line.marks("can", &cancelled);
            if self.core.held() > 0 || self.in_flight.iter().any(|(_, batch)| !batch.is_empty()) {
                let mut batch = self.spare.pop().unwrap_or_default();
                self.core.schedule(&mut batch);
                self.tell_schedule(step, &batch, &mut line);
                let idle = batch.is_empty() && self.core.held() == 0;
                self.in_flight.push_back((step, batch));
                let cancelled = self.cancel(step, When::During);
                line.marks("mid", &cancelled);
                if self.in_flight.len() == depth || idle {
                    self.update(step, depth, &mut line);
                }
                self.tell_counts("re", "we", "fe", &mut line);
                if self.scenario.config.prefix_caching {
                    line.number("ch", self.core.cached_keys());
                }
                self.lines.push(line.end());
                step += 1;
                continue;
            }
            if !cancelled.is_empty() || !arrived.is_empty() {
                // An arrival that was cancelled before the engine saw it.
                self.tell_counts("re", "we", "fe", &mut line);
                self.lines.push(line.end());
            }
            // Only empty batches are left.
            self.spare.extend(self.in_flight.drain(..).map(|(_, batch)| batch));
            match arrivals.range(step + 1..).next() {
                Some((&later, _)) => step = later,
                None => return Ok(()),
            }
        }
        Err(format!("not finished after {} steps", self.scenario.max_steps))
    }

    /// The cancellations of this moment, each with where the request stood.
    fn cancel(&mut self, step: u64, when: When) -> Vec<(usize, char)> {
        let mut marks = Vec::new();
        for &(request, at, then) in &self.scenario.cancels {
            if at == step && then == when {
                let mark = match self.core.abort(JobId(request as u64)) {
                    None => 'F',
                    Some(state) => {
                        let fate = &mut self.requests[request];
                        fate.finished = Some(step);
                        fate.reason = Some("abort");
                        match state {
                            JobState::Waiting => 'W',
                            JobState::Preempted => 'P',
                            JobState::Running => 'R',
                        }
                    }
                };
                marks.push((request, mark));
            }
        }
        marks
    }

    fn tell_schedule(&mut self, step: u64, batch: &Batch, line: &mut Line) {
        let index = |job: JobId| job.0 as usize;
        let (mut new, mut resumed) = (Vec::new(), Vec::new());
        for admission in &batch.admitted {
            let (request, cached) = (index(admission.job), admission.cached.get());
            let fate = &mut self.requests[request];
            if admission.resumed {
                resumed.push((request, cached));
            } else {
                new.push((request, cached));
                fate.admitted = Some(step);
                fate.cached = Some(cached);
            }
        }
        for &job in &batch.preempted {
            let fate = &mut self.requests[index(job)];
            fate.preemptions += 1;
            fate.told_blocks = 0;
        }
        let preempted: Vec<_> = batch.preempted.iter().map(|&job| index(job)).collect();
        let grants: Vec<_> =
            self.core.grants(batch).map(|(job, tokens)| (index(job), tokens.get())).collect();
        line.pairs("new", &new);
        line.pairs("res", &resumed);
        line.list("pre", &preempted);
        line.pairs("sched", &grants);
        let mut blocks = Vec::new();
        for &(request, tokens) in &grants {
            self.scheduled_tokens += u64::from(tokens);
            let table = self.core.table(JobId(request as u64));
            let told = std::mem::replace(&mut self.requests[request].told_blocks, table.len());
            if table.len() > told {
                blocks.push((request, &table[told..]));
            }
        }
        line.tables("blk", &blocks);
        if !preempted.is_empty() {
            let queue: Vec<_> = self.core.queue().take(8).map(index).collect();
            line.always_list("wq", &queue);
        }
        self.tell_counts("rs", "ws", "fs", line);
        self.max_running = self.max_running.max(self.core.running());
    }

    fn tell_counts(&self, running: &str, waiting: &str, free: &str, line: &mut Line) {
        line.number(running, self.core.running());
        line.number(waiting, self.core.waiting());
        line.number(free, self.core.free_blocks());
    }

    /// Processes the results of the oldest step in flight.
    fn update(&mut self, step: u64, depth: usize, line: &mut Line) {
        let Some((of, batch)) = self.in_flight.pop_front() else { return };
        if depth > 1 {
            line.number("of", of);
        }
        let (mut tokens, mut first, mut finished) = (0u32, Vec::new(), Vec::new());
        let requests = &mut self.requests;
        self.core.update(&batch, |output| {
            let request = output.job.0 as usize;
            let fate = &mut requests[request];
            tokens += 1;
            fate.output += 1;
            if fate.first_token.is_none() {
                fate.first_token = Some(step);
                first.push(request);
            }
            if let Some(finish) = output.finish {
                let reason = match finish {
                    Finish::Stop => "stop",
                    Finish::Length => "length",
                };
                fate.finished = Some(step);
                fate.reason = Some(reason);
                finished.push((request, reason));
            }
        });
        self.spare.push(batch);
        self.tell_prefix_stats(line);
        if tokens > 0 {
            line.number("tok", tokens);
        }
        line.list("ft", &first);
        line.marks("fin", &finished);
    }

    fn tell_prefix_stats(&mut self, line: &mut Line) {
        let now = self.core.prefix_stats();
        let new = [
            now.queries - self.told.queries,
            now.hits - self.told.hits,
            now.preempted_queries - self.told.preempted_queries,
            now.preempted_hits - self.told.preempted_hits,
        ];
        if new[0] > 0 || new[2] > 0 {
            line.list("pc", &new);
        }
        self.told = now;
    }

    fn end(&self) -> String {
        let or_null = |step: Option<u64>| step.map_or_else(|| "null".into(), |s| s.to_string());
        let rows: Vec<_> = self
            .requests
            .iter()
            .zip(&self.scenario.requests)
            .enumerate()
            .map(|(index, (fate, request))| {
                format!(
                    "[{index},{},{},{},{},{},{},{},{}]",
                    request.arrive,
                    or_null(fate.admitted),
                    or_null(fate.first_token),
                    or_null(fate.finished),
                    fate.reason.map_or_else(|| "null".into(), quote),
                    fate.output,
                    fate.preemptions,
                    or_null(fate.cached.map(u64::from)),
                )
            })
            .collect();
        format!(
            "{{\"end\":{{\"lines\":{},\"requests\":[{}],\"scheduled_tokens\":{},\
             \"preemptions\":{},\"max_running\":{},\"queries\":{},\"hits\":{},\
             \"preempted_queries\":{},\"preempted_hits\":{}}}}}",
            self.lines.len(),
            rows.join(","),
            self.scheduled_tokens,
            self.core.preemptions(),
            self.max_running,
            self.told.queries,
            self.told.hits,
            self.told.preempted_queries,
            self.told.preempted_hits,
        )
    }
}
