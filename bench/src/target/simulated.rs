//! The virtual target: the same plan and the same request bytes, against the engine of
//! `models.yml`, in virtual time.
//!
//! Nothing is sent and nothing sleeps: an hour of traffic takes as long as its steps take to
//! compute. It is what the server would do with a network and a client of no cost. The invariant:
//! records come out as from a live run, so every statistic is the same code.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZeroU32;

use llmsim_engine::config::{self, Config, ModelSpec, Source};
use llmsim_engine::sim::{
    BlockHash, Engine, EngineSpec, Event, Finish, Job, Refusal, Verdict, What,
};
use llmsim_engine::text::facts::Facts;
use llmsim_engine::text::prompt::{ChainSpec, End, Message, PromptReader};
use llmsim_engine::text::responses::{Query, Responses};
use llmsim_engine::text::stop::{self, Stops};
use llmsim_engine::text::wants::{self, Said, Wants};
use llmsim_engine::units::{JobId, SimSpan, SimTime, Tokens};
use llmsim_engine::wire::chat::{ChatRequest, PromptEnd};

use crate::health::Health;
use crate::plan::Load;
use crate::progress::Live;
use crate::record::{Failure, FailureClass, Outcome, Record, StampRoom, Usage};
use crate::result::Level;
use crate::run::LevelSpec;
use crate::workload::{Number, Phase, Workload};

/// A server that exists only in virtual time.
#[derive(Debug)]
pub struct Simulated {
    model: ModelSpec,
    responses: Responses,
    /// Frozen from the first instant for the second span: for tests of what a stall looks like.
    stall: Option<(SimTime, SimSpan)>,
}

impl Simulated {
    /// The model named `model` of two configuration files.
    ///
    /// # Errors
    /// All that is wrong with the files, or that there is no such model.
    pub fn new(models: &Source, responses: &Source, model: &str) -> Result<Self, String> {
        // As the server reads them, so that it is the same file for both.
        let mut read_file = |path: &str| {
            llmsim_defaults::read(path).map(|file| file.text).map_err(|error| error.to_string())
        };
        let Config { models, responses, .. } = config::load_with(models, responses, &mut read_file)
            .map_err(|problems| problems.to_string())?;
        let names: Vec<String> = models.iter().map(|spec| spec.name.clone()).collect();
        let model = models.into_iter().find(|spec| spec.name == model).ok_or_else(|| {
            format!("--model {model}: no such model; the file has {}", names.join(", "))
        })?;
        Ok(Self { model, responses, stall: None })
    }

    /// The same server, frozen for `lasts` from `at` on.
    #[must_use]
    pub fn stalled(self, at: SimTime, lasts: SimSpan) -> Self {
        Self { stall: Some((at, lasts)), ..self }
    }

    /// Runs one level from an idle state to its end.
    pub fn measure(&self, workload: &Workload, spec: &LevelSpec) -> Level {
        self.measure_until(workload, spec, &Live::default(), || false)
    }

    /// Runs one level from an idle state, to its end or until `stop` says so: what is in flight
    /// then is left as interrupted. How it goes is told to `live`.
    pub fn measure_until(
        &self,
        workload: &Workload,
        spec: &LevelSpec,
        live: &Live,
        stop: impl Fn() -> bool,
    ) -> Level {
        let mut world = World {
            target: self,
            workload,
            level: spec.number,
            engines: (0..self.model.replicas.max(1)).map(|_| self.model.engine.build()).collect(),
            placed: BTreeMap::new(),
            running: vec![0; usize::from(self.model.replicas.max(1))],
            clients: BinaryHeap::new(),
            sequence: 0,
            in_flight: 0,
            waiting: VecDeque::new(),
            most: u32::MAX,
            left: spec.extent.requests,
            end: None,
            closed: false,
            next: 0,
            records: Vec::new(),
            stamps: StampRoom::default(),
            now: SimTime::ZERO,
            ended: SimTime::ZERO,
            live,
        };
        let planned = match &spec.load {
            Load::Closed { concurrency } => {
                live.begin(SimTime::ZERO, None, spec.extent.requests);
                world.closed = true;
                world.end = spec.extent.duration.map(|lasts| SimTime::ZERO + lasts);
                for _ in 0..*concurrency {
                    world.arrive(SimTime::ZERO);
                }
                spec.extent.requests
            }
            Load::Open { arrivals, max_concurrency } => {
                let offsets = arrivals.draw(spec.extent, spec.seed);
                let planned = u32::try_from(offsets.len()).ok();
                live.begin(SimTime::ZERO, arrivals.target_rate(), planned);
                world.most = max_concurrency.unwrap_or(u32::MAX);
                world.left = planned;
                for &at in &offsets {
                    world.arrive(SimTime::ZERO + at);
                }
                planned
            }
        };
        let interrupted = world.live(stop);
        if interrupted {
            world.cut_short();
        }
        let never_sent = u32::try_from(world.waiting.len()).unwrap_or(u32::MAX);
        let mut records = world.records;
        records.sort_by_key(|record| record.index);
        Level {
            planned: planned.unwrap_or_else(|| u32::try_from(records.len()).unwrap_or(u32::MAX)),
            records,
            began: SimTime::ZERO,
            ended: world.ended,
            load: spec.load.clone(),
            extent: spec.extent,
            health: Health::default(),
            connections_opened: 0,
            never_sent,
            interrupted,
        }
    }

    /// Where the engine's clock stands when the world's stands at `at`.
    fn engine_time(&self, at: SimTime) -> SimTime {
        match self.stall {
            Some((begin, lasts)) if at >= begin + lasts => {
                SimTime::from_ns(at.as_ns() - lasts.as_ns())
            }
            Some((begin, _)) if at > begin => begin,
            _ => at,
        }
    }

    /// Where the world's clock stands when the engine's stands at `at`.
    fn world_time(&self, at: SimTime) -> SimTime {
        match self.stall {
            Some((begin, lasts)) if at >= begin => at + lasts,
            _ => at,
        }
    }

    fn half_overhead(&self) -> SimSpan {
        SimSpan::from_ns(self.model.request_overhead.as_ns() / 2)
    }

    /// The block size, if the model caches prefixes.
    fn cached_blocks(&self) -> Option<NonZeroU32> {
        match &self.model.engine {
            EngineSpec::Scheduler(spec) if spec.prefix_caching => {
                NonZeroU32::new(spec.block_size.get())
            }
            _ => None,
        }
    }

    /// What the server would make of a request's bytes, as far as they ask for one answer in words:
    /// `n`, tools, formats and the truncation of prompts have no effect.
    fn job(&self, id: JobId, bytes: &[u8]) -> Result<Job, Failure> {
        let refused = |status: u16, why: &str| {
            let class =
                if status >= 500 { FailureClass::ServerError } else { FailureClass::ClientError };
            Failure::new(class, format!("{status} {why}"))
        };
        let body = memchr::memmem::find(bytes, b"\r\n\r\n").map_or(bytes, |at| &bytes[at + 4..]);
        let request =
            ChatRequest::parse(body).map_err(|error| refused(error.status, &error.message))?;
        let messages: Vec<Message<'_>> = request
            .messages
            .iter()
            .map(|message| Message { role: message.role.as_str(), content: &message.content })
            .collect();
        let chain = self
            .cached_blocks()
            .map(|block_size| ChainSpec { block_size, salt: request.cache_salt.as_deref() });
        let end = match request.end {
            PromptEnd::AnswerBegins => End::AnswerBegins,
            PromptEnd::Closed => End::Closed,
            PromptEnd::Open => End::Open,
        };
        let tokenizer = &self.model.tokenizer;
        let prompt = PromptReader::with(tokenizer, messages.iter().copied(), chain);
        let prompt = prompt.ending(end).finish();
        let tokens = prompt.tokens();
        let room = self.model.context_length.get().saturating_sub(tokens.get());
        let max_tokens = request.max_tokens.unwrap_or(Tokens::new(room));
        if room == 0 || max_tokens.get() > room {
            let context = self.model.context_length;
            let why = format!("{tokens} prompt and {max_tokens} output tokens exceed {context}");
            return Err(refused(400, &why));
        }
        let facts = Facts::of(messages.iter().copied());
        let query = Query { model: &request.model, seed: request.seed, tokenizer, ..facts.query() };
        let reply = self.responses.reply(&query);
        let reply = reply.thinking(self.model.reasoning, request.most_thinking);
        let Said { output, .. } = wants::say(reply, &Wants::default())
            .expect("without tools and formats there is nothing that cannot be met");
        let natural_end = output.len().max(request.min_tokens);
        let ends_itself = !request.ignore_eos && natural_end <= max_tokens;
        let longest = if ends_itself { natural_end } else { max_tokens };
        let stops = Stops {
            strings: &request.stop,
            keeps_match: request.include_stop,
            after: request.min_tokens,
        };
        let stop_after = match stop::apply_to(output.clone(), longest, &stops) {
            (stopped, Some(_)) => Some(stopped.len()),
            (_, None) => ends_itself.then_some(natural_end),
        };
        let chain = prompt.into_chain().map(|mut chain| {
            for k in 0..stop_after.unwrap_or(max_tokens).get() {
                chain.push_token(output.token(k));
            }
            chain.into_keys().into_iter().map(BlockHash).collect()
        });
        Ok(Job { id, prompt: tokens, max_tokens, stop_after, priority: request.priority, chain })
    }
}

/// A run in progress.
struct World<'a> {
    target: &'a Simulated,
    workload: &'a Workload,
    level: u32,
    engines: Vec<Engine>,
    /// Jobs in flight: their record and the engine that has them.
    placed: BTreeMap<JobId, (Record, usize)>,
    running: Vec<u32>,
    /// What clients will do, earliest first, in order of decision at one instant.
    clients: BinaryHeap<Reverse<(SimTime, u64, Act)>>,
    sequence: u64,
    in_flight: u32,
    waiting: VecDeque<SimTime>,
    most: u32,
    left: Option<u32>,
    /// In a closed loop nothing is sent from here on.
    end: Option<SimTime>,
    closed: bool,
    next: u32,
    records: Vec<Record>,
    stamps: StampRoom,
    /// The latest instant that was reached.
    now: SimTime,
    /// When the last thing happened to a request.
    ended: SimTime,
    live: &'a Live,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    /// A request is due.
    Arrive,
    /// Its job reaches the engine.
    Submit(u64),
    /// Its answer is complete.
    Complete(u64),
}

impl World<'_> {
    fn plan(&mut self, at: SimTime, act: Act) {
        self.clients.push(Reverse((at, self.sequence, act)));
        self.sequence += 1;
    }

    fn arrive(&mut self, at: SimTime) {
        self.plan(at, Act::Arrive);
    }

    /// Lets time pass; true if it was stopped before the end.
    fn live(&mut self, stop: impl Fn() -> bool) -> bool {
        let mut events = Vec::new();
        while !stop() {
            let due = (0..self.engines.len())
                .filter_map(|i| Some((self.target.world_time(self.engines[i].deadline()?), i)))
                .min();
            let act = self.clients.peek().map(|next| next.0.0);
            match (due, act) {
                (None, None) => return false,
                (Some((at, engine)), act) if act.is_none_or(|act| at < act) => {
                    let deadline = self.engines[engine].deadline().expect("it was just asked");
                    self.engines[engine].advance(deadline, &mut events);
                    for event in events.drain(..) {
                        self.heard(event);
                    }
                    self.reach(at);
                    self.ended = self.ended.max(at);
                }
                _ => {
                    let Some(Reverse((at, _, act))) = self.clients.pop() else { return false };
                    self.reach(at);
                    self.act(at, act);
                }
            }
        }
        true
    }

    fn reach(&mut self, at: SimTime) {
        self.now = self.now.max(at);
        self.live.virtual_time(at);
    }

    /// What is in flight ends here; an answer that was complete but for its last way stays one.
    fn cut_short(&mut self) {
        for (mut record, _) in std::mem::take(&mut self.placed).into_values() {
            record.end = self.now;
            self.stamps.keep(&mut record.output);
            self.records.push(record);
        }
        self.ended = self.now;
    }

    fn act(&mut self, at: SimTime, act: Act) {
        match act {
            Act::Arrive if self.in_flight >= self.most => self.waiting.push_back(at),
            Act::Arrive => self.send(at, at),
            Act::Submit(id) => self.submit(at, JobId(id)),
            Act::Complete(id) => {
                if let Some((mut record, engine)) = self.placed.remove(&JobId(id)) {
                    record.end = at;
                    self.running[engine] -= 1;
                    self.finish(record, at);
                }
            }
        }
    }

    fn send(&mut self, scheduled: SimTime, now: SimTime) {
        if self.end.is_some_and(|end| now >= end) {
            return;
        }
        if let Some(left) = &mut self.left {
            let Some(less) = left.checked_sub(1) else { return };
            *left = less;
        }
        let index = self.next;
        self.next += 1;
        self.in_flight += 1;
        let mut record = Record::planned(index, scheduled);
        record.sent = Some(now);
        self.live.sent(now);
        // The least loaded replica, the first of equals.
        let engine = (0..self.running.len()).min_by_key(|&i| self.running[i]).unwrap_or(0);
        self.running[engine] += 1;
        self.placed.insert(JobId(u64::from(index)), (record, engine));
        self.plan(now + self.target.half_overhead(), Act::Submit(u64::from(index)));
    }

    fn submit(&mut self, at: SimTime, id: JobId) {
        let Some((record, engine)) = self.placed.get_mut(&id) else { return };
        let number = Number { level: self.level, phase: Phase::Measured, index: record.index };
        let request = self.workload.prepare(number);
        record.max_tokens = request.max_tokens;
        record.expected_cached = request.expected_cached;
        let engine = *engine;
        let refused = match self.target.job(id, &request.bytes) {
            Err(failure) => Some(failure),
            Ok(job) => {
                let cached = self.target.cached_blocks().map(|_| 0);
                record.usage = Some(Usage { prompt: job.prompt.get(), completion: 0, cached });
                let verdict = self.engines[engine].submit(self.target.engine_time(at), job);
                match verdict {
                    Verdict::Queued => None,
                    Verdict::Refused(Refusal::QueueFull) => {
                        Some(Failure::new(FailureClass::ServerError, "503 the queue is full"))
                    }
                    Verdict::Refused(why) => {
                        Some(Failure::new(FailureClass::ClientError, format!("400 {why:?}")))
                    }
                }
            }
        };
        if let Some(failure) = refused {
            if let Some((record, _)) = self.placed.get_mut(&id) {
                record.outcome = Outcome::Failed(failure);
            }
            self.plan(at, Act::Complete(id.0));
        }
    }

    fn heard(&mut self, event: Event) {
        let at = self.target.world_time(event.at);
        let Some((record, _)) = self.placed.get_mut(&event.job) else { return };
        match event.what {
            What::Admitted { cached } => {
                if let Some(Usage { cached: Some(hit), .. }) = &mut record.usage {
                    *hit = cached.get();
                }
            }
            What::Resumed { .. } | What::Preempted | What::Lost => {}
            What::Token { index, finish } => {
                let before = record.output.chunks;
                record.output.push(at);
                self.live.chunks(before, record, at);
                if let Some(usage) = &mut record.usage {
                    usage.completion = index.get();
                }
                if let Some(finish) = finish {
                    let reason = match finish {
                        Finish::Stop => "stop",
                        Finish::Length => "length",
                    };
                    record.outcome = Outcome::Finished(reason.into());
                    self.plan(at + self.target.half_overhead(), Act::Complete(event.job.0));
                }
            }
        }
    }

    fn finish(&mut self, mut record: Record, at: SimTime) {
        self.live.finished(&record);
        self.stamps.keep(&mut record.output);
        self.records.push(record);
        self.in_flight -= 1;
        self.ended = self.ended.max(at);
        if self.closed {
            self.arrive(at);
        } else if let Some(scheduled) = self.waiting.pop_front() {
            self.send(scheduled, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::seed::Seed;

    use super::*;
    use crate::plan::{Arrivals, Extent, Gaps};
    use crate::result::{Goals, Summary};
    use crate::workload::Source as Prompts;
    use crate::workload::request::{Content, Form};

    /// One stream takes 100 ms for a prompt of 100 tokens, then 10 ms per token.
    const MODELS: &str = "
version: 1
models:
  - name: m
    context_length: 4096
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 1000, decode_tokens_per_second: 100 }
";
    const RESPONSES: &str = "
version: 1
default: { synthetic: { tokens: 1000 } }
";

    fn target() -> Simulated {
        let models = Source::new("models", MODELS);
        Simulated::new(&models, &Source::new("responses", RESPONSES), "m").expect("valid")
    }

    fn prompts(max_tokens: u32) -> Workload {
        Workload {
            source: Prompts::Synthetic { input: (100, 100), output: (max_tokens, max_tokens) },
            form: Form::chat("m"),
            prefix: String::new(),
            max_tokens: Some(max_tokens),
            ignore_eos: false,
            seed: Seed::new(1),
            nonce: None,
        }
    }

    fn spec(load: Load, requests: u32) -> LevelSpec {
        let extent = Extent { requests: Some(requests), duration: None };
        LevelSpec { number: 0, load, extent, seed: Seed::new(1) }
    }

    fn ms(value: Option<f64>) -> f64 {
        value.expect("measured") / 1e6
    }

    #[test]
    fn a_closed_loop_of_one_stream_is_known_to_the_nanosecond() {
        let level = target().measure(&prompts(11), &spec(Load::Closed { concurrency: 1 }, 5));
        let summary = Summary::of(&level, None);
        assert_eq!(summary.counts.completed, 5);
        assert_eq!((ms(summary.ttft.min()), ms(summary.ttft.max())), (100.0, 100.0));
        assert_eq!((ms(summary.itl.min()), ms(summary.itl.max())), (10.0, 10.0));
        assert_eq!(ms(summary.tpot.percentile(50.0)), 10.0);
        assert_eq!(ms(summary.e2e.percentile(99.0)), 200.0);
        // 5 x 200 ms, 11 output and 100 prompt tokens each.
        assert_eq!(summary.duration, SimSpan::from_ms(1000));
        assert_eq!(summary.requests_per_s, 5.0);
        assert_eq!(summary.output_tokens_per_s, 55.0);
        assert_eq!(summary.total_tokens_per_s, 555.0);
        assert_eq!(summary.peak_in_flight, 1);
    }

    fn constant(rate: f64, max_concurrency: Option<u32>) -> Load {
        let arrivals = Arrivals::Steady { rate, gaps: Gaps::Constant };
        Load::Open { arrivals, max_concurrency }
    }

    #[test]
    fn one_slot_too_few_makes_a_queue_that_only_the_schedule_shows() {
        // An arrival every 100 ms, 200 ms of service, one slot: request i waits i x 100 ms.
        let level = target().measure(&prompts(11), &spec(constant(10.0, Some(1)), 11));
        let summary = Summary::of(&level, None);
        let raw = summary.raw.expect("an open loop");
        assert_eq!(ms(raw.ttft.max()), 100.0);
        assert_eq!(ms(summary.ttft.percentile(50.0)), 100.0 + 500.0);
        assert_eq!(ms(summary.ttft.max()), 100.0 + 1000.0);
        assert_eq!(ms(raw.queue_wait.percentile(50.0)), 500.0);
        assert_eq!(summary.arrivals.expect("an open loop").waited, 10);
    }

    /// As above, stopped when the third answer is complete at 600 ms: the fourth request has just
    /// been sent, those that were due at 400, 500 and 600 ms wait.
    #[test]
    fn a_level_can_be_stopped_and_what_is_finished_counts() {
        let mut spec = spec(constant(10.0, Some(1)), 600);
        spec.extent.duration = Some(SimSpan::from_ms(60_000));
        let live = Live::default();
        let level = target().measure_until(&prompts(11), &spec, &live, || live.answered() == 3);
        let summary = Summary::of(&level, None);
        let counts = &summary.counts;
        assert_eq!((counts.planned, counts.sent, counts.completed, counts.cut), (600, 4, 3, 1));
        assert_eq!((level.never_sent, level.interrupted), (3, true));
        assert_eq!(summary.duration, SimSpan::from_ms(600));
        // Over the 600 ms that it ran, not over the minute that was asked for.
        let arrivals = summary.arrivals.expect("an open loop");
        assert_eq!(arrivals.offered, Some(7.0 / 0.6));
        assert_eq!(arrivals.achieved, Some(4.0 / 0.6));
    }

    #[test]
    fn a_count_that_ends_the_run_does_not_water_the_rates_down() {
        let mut spec = spec(constant(10.0, None), 5);
        spec.extent.duration = Some(SimSpan::from_ms(3_000));
        let level = target().measure(&prompts(11), &spec);
        let arrivals = Summary::of(&level, None).arrivals.expect("an open loop");
        // Four gaps of 100 ms.
        assert_eq!((arrivals.offered, arrivals.achieved), (Some(10.0), Some(10.0)));
    }

    /// Ten in the first second, nothing in the second: five per second over the plan, as asked.
    #[test]
    fn stages_are_counted_to_their_end() {
        let stages = crate::plan::parse_stages("hold 10 1s; pause 1s").expect("valid");
        let arrivals = Arrivals::Staged { stages, gaps: Gaps::Constant };
        let load = Load::Open { arrivals, max_concurrency: None };
        let spec = LevelSpec { extent: Extent::default(), ..spec(load, 1) };
        let arrivals = Summary::of(&target().measure(&prompts(11), &spec), None).arrivals;
        let arrivals = arrivals.expect("an open loop");
        assert_eq!((arrivals.target, arrivals.offered), (Some(5.0), Some(5.0)));
        assert_eq!(arrivals.achieved, Some(5.0));
    }

    #[test]
    fn a_burst_has_no_offered_rate_but_a_spread() {
        let load = Load::Open { arrivals: Arrivals::AtOnce, max_concurrency: Some(1) };
        let level = target().measure(&prompts(11), &spec(load, 5));
        let arrivals = Summary::of(&level, None).arrivals.expect("an open loop");
        assert_eq!((arrivals.target, arrivals.offered), (None, None));
        // One slot, 200 ms each: sent at 0, 200, 400, 600 and 800 ms.
        assert_eq!((arrivals.achieved, arrivals.spread), (Some(5.0), SimSpan::from_ms(800)));
    }

    /// 100 requests at one per 100 ms; from 2 s on the server is frozen for 2 s. With one slot
    /// (service 60 ms) the frozen request is the only one that is slow from its send; the 20 that
    /// arrive meanwhile wait for it, and the queue drains at 40 ms per arrival, so some 50 requests
    /// feel the stall.
    #[test]
    fn a_stalled_server_shows_in_scheduled_percentiles_and_not_only_in_one_request() {
        let prompts = Workload {
            source: Prompts::Synthetic { input: (50, 50), output: (2, 2) },
            ..prompts(2)
        };
        let stalled = target().stalled(SimTime::from_ns(2_000_000_000), SimSpan::from_ms(2000));
        let level = stalled.measure(&prompts, &spec(constant(10.0, Some(1)), 100));
        let summary = Summary::of(&level, None);
        let raw = summary.raw.expect("an open loop");
        assert_eq!(summary.counts.completed, 100);
        let slow =
            |stat: &crate::result::Stat| stat.sorted().iter().filter(|ns| **ns > 100e6).count();
        assert_eq!(slow(&raw.ttft), 1, "from the send one request was slow");
        assert!(slow(&summary.ttft) >= 48, "from the schedule {}", slow(&summary.ttft));
        assert_eq!(ms(raw.ttft.percentile(90.0)), 50.0);
        assert!(ms(summary.ttft.percentile(90.0)) > 1200.0);
    }

    #[test]
    fn goodput_counts_from_the_schedule() {
        let level = target().measure(&prompts(11), &spec(constant(10.0, Some(1)), 11));
        let goals = Goals { ttft: Some(SimSpan::from_ms(350)), ..Goals::default() };
        // Waits of 0, 100 and 200 ms with 100 ms of prefill keep 350 ms.
        assert_eq!(Summary::of(&level, Some(goals)).good, Some(3));
    }

    #[test]
    fn a_request_that_does_not_fit_is_refused_as_the_server_would() {
        let level = target().measure(&prompts(4000), &spec(Load::Closed { concurrency: 1 }, 2));
        let summary = Summary::of(&level, None);
        assert_eq!(summary.counts.failures_of(FailureClass::ClientError), 2);
        assert!(summary.all_failed());
        assert_eq!(summary.ttft.with_failures(50.0), Some(f64::INFINITY));
    }

    #[test]
    fn a_duration_ends_a_closed_loop() {
        let spec = LevelSpec {
            number: 0,
            load: Load::Closed { concurrency: 2 },
            extent: Extent { requests: None, duration: Some(SimSpan::from_ms(500)) },
            seed: Seed::new(1),
        };
        let level = target().measure(&prompts(11), &spec);
        // Each stream sends at 0, 200 and 400 ms; the last ones end at 600.
        assert_eq!(level.records.len(), 6);
        let summary = Summary::of(&level, None);
        assert_eq!(summary.drain, SimSpan::from_ms(100));
    }

    #[test]
    fn a_model_of_a_config_json_is_simulated_as_the_server_would() {
        let file = std::env::temp_dir().join(format!("llmsim-{}-config.json", std::process::id()));
        let json = r#"{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
            "max_position_embeddings": 131072}"#;
        std::fs::write(&file, json).expect("the directory for it is there");
        let models = format!(
            "models:\n  - name: m\n    engine: scheduler\n    hardware: h200\n    hf_config: {}\n    \
             context_length: 8192\n",
            file.display()
        );
        let responses = Source::new("responses", RESPONSES);
        let made = Simulated::new(&Source::new("models", models), &responses, "m");
        std::fs::remove_file(&file).expect("it was just written");
        assert_eq!(made.expect("valid").model.context_length, Tokens::new(8192));
    }

    /// Its job for a chat of these messages, with `members` in the body.
    fn job(target: &Simulated, messages: &str, members: &str) -> Job {
        let form = Form { members: members.to_owned(), ..Form::chat("m") };
        let bytes = form.write(&Content::Messages(messages.to_owned()), Some(50), None);
        target.job(JobId(1), &bytes).expect("well-formed")
    }

    fn of(model: &str, responses: &str) -> Simulated {
        let models = format!("models: [{{ name: m, context_length: 4096, {model} }}]");
        let responses = Source::new("responses", responses);
        Simulated::new(&Source::new("models", models), &responses, "m").expect("valid")
    }

    const USER: &str = r#"[{"role": "user", "content": "hello world"}]"#;

    /// A tokenizer for which `hello world` from a user is 18 tokens; by ours it is 9.
    const TOKENIZER: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/tests/tokenizers/hello.json");

    #[test]
    fn a_model_with_a_tokenizer_counts_in_its_tokens() {
        let content = "default: { content: hello world }";
        let ours = job(&of("engine: instant", content), USER, "");
        assert_eq!((ours.prompt.get(), ours.stop_after), (9, Some(Tokens::new(2))));
        let model = format!("engine: instant, tokenizer: {{ file: {TOKENIZER} }}");
        let theirs = job(&of(&model, content), USER, "");
        assert_eq!((theirs.prompt.get(), theirs.stop_after), (18, Some(Tokens::new(2))));
    }

    /// The next turn repeats the answer as text, and its tokens are those that the engine made.
    #[test]
    fn an_answer_is_found_in_the_cache_by_the_turn_that_repeats_it() {
        let scheduler = "engine: scheduler, hardware: h100-80gb-sxm, model: llama-3.1-8b, \
                         kv_cache: { block_size: 1 }";
        let with_file = format!("{scheduler}, tokenizer: {{ file: {TOKENIZER} }}");
        for model in [scheduler, &with_file] {
            let target = of(model, "default: { content: hello world }");
            let first = job(&target, USER, "").chain.expect("prefixes are cached");
            let again = r#"[{"role": "user", "content": "hello world"},
                {"role": "assistant", "content": "hello world"},
                {"role": "user", "content": "hello"}]"#;
            let second = job(&target, again, "").chain.expect("prefixes are cached");
            assert!(second.len() > first.len() && second.starts_with(&first), "{model}");
        }
    }

    #[test]
    fn what_ends_or_lengthens_an_answer_does_so_without_a_server() {
        let stop_after = |model: &str, responses: &str, messages: &str, members: &str| {
            job(&of(model, responses), messages, members).stop_after.map(Tokens::get)
        };
        let five = "default: { content: one two three four five }";
        let solo = "engine: instant";
        assert_eq!(stop_after(solo, five, USER, ""), Some(5));
        assert_eq!(stop_after(solo, five, USER, r#","stop":["three"]"#), Some(3));
        assert_eq!(stop_after(solo, five, USER, r#","stop":"x""#), Some(5));
        assert_eq!(stop_after(solo, five, USER, r#","ignore_eos":true"#), None);
        // Seven tokens of thought before it, unless the client wants none.
        let thinks = "engine: instant, reasoning: { tokens: 7 }";
        assert_eq!(stop_after(thinks, five, USER, ""), Some(12));
        assert_eq!(stop_after(thinks, five, USER, r#","reasoning_effort":"none""#), Some(5));
        // A rule on the system's message, and one on the turn.
        let rules = "responses:\n  - { id: a, match: { system: brief }, content: yes }\n  \
                     - { id: b, match: { turn: 2 }, content: and again }\n\
                     default: { content: one two three four five }\n";
        let brief = r#"[{"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"}]"#;
        let twice = r#"[{"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"}, {"role": "user", "content": "hello"}]"#;
        assert_eq!(stop_after(solo, rules, USER, ""), Some(5));
        assert_eq!(stop_after(solo, rules, brief, ""), Some(1));
        assert_eq!(stop_after(solo, rules, twice, ""), Some(2));
        // The answer goes on with what is there: no end of the message, nothing before the answer.
        let target = of(solo, five);
        let open = r#","add_generation_prompt":false,"continue_final_message":true"#;
        assert_eq!(job(&target, twice, "").prompt.get(), 8 + 5 + 5);
        assert_eq!(job(&target, twice, open).prompt.get(), 8 + 5 + 5 - 4);
    }

    #[test]
    fn an_unknown_model_is_refused_with_those_there_are() {
        let models = Source::new("models", MODELS);
        let responses = Source::new("responses", RESPONSES);
        let problem = Simulated::new(&models, &responses, "x").expect_err("no such model");
        assert!(problem.contains("the file has m"), "{problem}");
    }
}
