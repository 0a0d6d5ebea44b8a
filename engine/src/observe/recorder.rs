//! What one simulated GPU is seen to do, counted as it happens.
//!
//! A [`Recorder`] lives on the thread that drives the GPU and is told everything with the time at
//! which that thread *saw* it; [`Figures`] is what it counts into, and what others read. It draws
//! no conclusion and knows no metric name: `vllm` and `sim` beside it say what is exported. The
//! invariant: no time in here was planned. The stamps of events, which say when something was due,
//! are only used to tell steps apart and to measure the lag.

use std::sync::Arc;

use super::figures::{BOUNDS, Figures, STOPS};
use crate::seed::LookupMap;
use crate::sim::scheduler::cost::StepTerms;
use crate::sim::scheduler::{Gauges, StepLog};
use crate::sim::{Event, Finish, Refusal, What};
use crate::units::{JobId, SimSpan, SimTime, Tokens};

/// A request for a simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// Its id towards the engine.
    pub job: JobId,
    /// Prompt length.
    pub prompt: Tokens,
    /// The most tokens that may be generated.
    pub max_tokens: Tokens,
    /// When the request was complete.
    pub arrived: SimTime,
    /// When the GPU took it.
    pub queued: SimTime,
    /// The choices that it is one of.
    pub siblings: Siblings,
}

/// The requests that are made of one prompt, one for each of its choices (`n`). The first is
/// submitted before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The id of the first of them.
    pub first: JobId,
    /// How many they are, at least one.
    pub count: u32,
}

impl Siblings {
    /// A request that has none.
    pub fn none(job: JobId) -> Self {
        Self { first: job, count: 1 }
    }
}

/// What is known of a request that is under way.
#[derive(Clone, Copy, Debug)]
struct Life {
    arrived: SimTime,
    queued: SimTime,
    scheduled: SimTime,
    first_token: SimTime,
    last_token: SimTime,
    prompt: u32,
    max_tokens: u32,
    cached: u32,
    output: u32,
    preemptions: u32,
    /// Of these, not told yet.
    preemptions_untold: u32,
    is_scheduled: bool,
    siblings: Siblings,
}

/// The choices of one prompt, while some of them are under way.
#[derive(Clone, Copy, Debug)]
struct Choices {
    unfinished: u32,
    /// Output tokens of the longest that has finished.
    longest: u32,
}

/// Watches one simulated GPU.
#[derive(Debug)]
pub struct Recorder {
    figures: Arc<Figures>,
    lives: LookupMap<JobId, Life>,
    /// Of prompts with more than one choice, by the first, until one of them is given up or all
    /// have finished: no more than there are prompts under way.
    choices: LookupMap<JobId, Choices>,
    update: Update,
    /// Tokens with the same inter-token latency, one after another: a step's are alike.
    alike: Alike,
    lags: Alike,
    /// Tokens of the requests in `lives`, and of those never scheduled.
    held_tokens: u64,
    queued_tokens: u64,
}

/// How often the same span came, one after another.
#[derive(Clone, Copy, Debug, Default)]
struct Alike {
    span: SimSpan,
    times: u64,
}

impl Alike {
    /// It came so often again; if it is another, `tell` hears of the one before.
    fn add(&mut self, span: SimSpan, times: u64, tell: impl FnOnce(Self)) {
        if span != self.span {
            tell(std::mem::replace(self, Self { span, times: 0 }));
        }
        self.times += times;
    }
}

/// The update (a step's results) whose tokens are coming in.
#[derive(Clone, Copy, Debug, Default)]
struct Update {
    /// When its tokens were due: all tokens of one step share it.
    due: SimTime,
    output: u64,
    prefill: u64,
}

impl Recorder {
    /// A recorder that counts into `figures`, whose only writer it must be.
    pub fn new(figures: Arc<Figures>) -> Self {
        Self {
            figures,
            lives: LookupMap::default(),
            choices: LookupMap::default(),
            update: Update::default(),
            alike: Alike::default(),
            lags: Alike::default(),
            held_tokens: 0,
            queued_tokens: 0,
        }
    }

    /// A request is on its way into the GPU's queue.
    pub fn submitted(&mut self, request: &Submitted) {
        self.lives.insert(
            request.job,
            Life {
                arrived: request.arrived,
                queued: request.queued,
                scheduled: SimTime::ZERO,
                first_token: SimTime::ZERO,
                last_token: SimTime::ZERO,
                prompt: request.prompt.get(),
                max_tokens: request.max_tokens.get(),
                cached: 0,
                output: 0,
                preemptions: 0,
                preemptions_untold: 0,
                is_scheduled: false,
                siblings: request.siblings,
            },
        );
        let Siblings { first, count } = request.siblings;
        if count > 1 && first == request.job {
            self.choices.insert(first, Choices { unfinished: count, longest: 0 });
        }
        self.held_tokens += u64::from(request.prompt.get());
        self.queued_tokens += u64::from(request.prompt.get());
        self.publish_held();
    }

    /// The GPU took the request at `at`, later than [`Submitted::queued`] said.
    pub fn queued(&mut self, job: JobId, at: SimTime) {
        if let Some(life) = self.lives.get_mut(&job) {
            life.queued = at;
        }
    }

    /// The GPU did not take a request.
    pub fn refused(&mut self, job: JobId, why: Refusal) {
        if let Some(life) = self.lives.remove(&job) {
            self.let_go(&life);
            self.give_up(&life);
        }
        match why {
            Refusal::QueueFull => self.figures.queue_full.add(1),
            Refusal::PromptTooLong | Refusal::NeverFits => self.figures.impossible.add(1),
            Refusal::Down => self.figures.failed.add(1),
        }
    }

    /// The client of a request went away; what is still said about it does not count.
    pub fn cancelled(&mut self, job: JobId) {
        // If it is the first of some that never came, there is no other whose end would be counted.
        self.choices.remove(&job);
        if let Some(life) = self.lives.remove(&job) {
            self.figures.cancelled.add(1);
            self.let_go(&life);
            self.give_up(&life);
        }
    }

    /// Something was seen to happen at `now`. A token speaks for those before it that no event told
    /// of. Call [`Self::settle`] after the last one.
    pub fn happened(&mut self, event: &Event, now: SimTime) {
        match event.what {
            What::Admitted { cached } => {
                if let Some(life) = self.lives.get_mut(&event.job)
                    && !life.is_scheduled
                {
                    life.is_scheduled = true;
                    life.scheduled = now;
                    life.cached = cached.get();
                    self.queued_tokens -= u64::from(life.prompt);
                }
            }
            What::Resumed { .. } => {}
            What::Preempted => {
                self.figures.preemptions.add(1);
                if let Some(life) = self.lives.get_mut(&event.job) {
                    life.preemptions += 1;
                    life.preemptions_untold += 1;
                }
            }
            What::Token { index, finish } => self.token(event, index, finish, now),
            What::Lost => {
                if let Some(life) = self.lives.remove(&event.job) {
                    self.figures.failed.add(1);
                    self.let_go(&life);
                    self.give_up(&life);
                }
            }
        }
    }

    fn token(&mut self, event: &Event, index: Tokens, finish: Option<Finish>, now: SimTime) {
        if event.at != self.update.due {
            self.end_update();
            self.update.due = event.at;
        }
        let figures = &*self.figures;
        let lag = now.saturating_since(event.at);
        let Some(life) = self.lives.get_mut(&event.job) else {
            return self.lags.add(lag, 1, |lags| count_engine_lag(figures, lags));
        };
        assert!(index.get() > life.output, "tokens come in order");
        let tokens = u64::from(index.get() - life.output);
        self.lags.add(lag, tokens, |lags| count_engine_lag(figures, lags));
        self.update.output += tokens;
        if life.preemptions_untold > 0 {
            figures.preemptions_told.add(u64::from(life.preemptions_untold));
            life.preemptions_untold = 0;
        }
        self.held_tokens += tokens;
        if life.output == 0 {
            life.first_token = now;
            let computed = life.prompt - life.cached;
            self.update.prefill += u64::from(computed);
            figures.prompt_tokens.add(u64::from(life.prompt));
            figures.cached_tokens.add(u64::from(life.cached));
            let latency = now.saturating_since(life.arrived);
            figures.first_token.observe(latency.as_secs_f64());
            figures.windows.first_token.push(latency.as_ns(), 1);
        } else {
            let latency = now.saturating_since(life.last_token);
            self.alike.add(latency, 1, |alike| count_inter_token(figures, alike));
        }
        if tokens > 1 {
            self.alike.add(SimSpan::ZERO, tokens - 1, |alike| count_inter_token(figures, alike));
        }
        life.output = index.get();
        life.last_token = now;
        if let Some(finish) = finish {
            let life = *life;
            self.lives.remove(&event.job);
            self.finished(&life, finish);
        }
    }

    /// A request is held no more.
    fn let_go(&mut self, life: &Life) {
        self.held_tokens -= u64::from(life.prompt) + u64::from(life.output);
        if !life.is_scheduled {
            self.queued_tokens -= u64::from(life.prompt);
        }
        self.publish_held();
    }

    fn publish_held(&self) {
        self.figures.held.set(self.lives.len() as u64);
        self.figures.held_tokens.set(self.held_tokens);
        self.figures.queued_tokens.set(self.queued_tokens);
    }

    /// Its siblings go with it, or have gone; vLLM counts nothing of a prompt that was aborted.
    fn give_up(&mut self, life: &Life) {
        if life.siblings.count > 1 {
            self.choices.remove(&life.siblings.first);
        }
    }

    /// Once all choices of a prompt have finished: how many they are, and how long the longest is.
    fn count_choices(&mut self, life: &Life) {
        let Siblings { first, count } = life.siblings;
        let mut longest = life.output;
        if count > 1 {
            let Some(choices) = self.choices.get_mut(&first) else { return };
            choices.longest = choices.longest.max(longest);
            choices.unfinished -= 1;
            if choices.unfinished > 0 {
                return;
            }
            longest = choices.longest;
            self.choices.remove(&first);
        }
        self.figures.choices.observe(f64::from(count));
        self.figures.longest_choice.observe(f64::from(longest));
    }

    fn finished(&mut self, life: &Life, finish: Finish) {
        self.let_go(life);
        self.count_choices(life);
        let figures = &*self.figures;
        match finish {
            Finish::Stop => figures.stopped.add(1),
            Finish::Length => figures.reached_length.add(1),
        }
        let end_to_end = life.last_token.saturating_since(life.arrived);
        let queue = life.scheduled.saturating_since(life.queued);
        let prefill = life.first_token.saturating_since(life.scheduled);
        let decode = life.last_token.saturating_since(life.first_token);
        let inference = life.last_token.saturating_since(life.scheduled);
        let per_token = match life.output {
            0 | 1 => 0.0,
            output => decode.as_secs_f64() / f64::from(output - 1),
        };
        figures.end_to_end.observe(end_to_end.as_secs_f64());
        figures.queue.observe(queue.as_secs_f64());
        figures.prefill.observe(prefill.as_secs_f64());
        figures.decode.observe(decode.as_secs_f64());
        figures.inference.observe(inference.as_secs_f64());
        figures.per_output_token.observe(per_token);
        figures.prompt_length.observe(f64::from(life.prompt));
        figures.generation_length.observe(f64::from(life.output));
        figures.max_tokens.observe(f64::from(life.max_tokens));
        figures.request_preemptions.observe(f64::from(life.preemptions));
        figures.prefill_computed.observe(f64::from(life.prompt - life.cached));
        let windows = &figures.windows;
        windows.end_to_end.push(end_to_end.as_ns(), 1);
        windows.queue.push(queue.as_ns(), 1);
        windows.prefill.push(prefill.as_ns(), 1);
        windows.decode.push(decode.as_ns(), 1);
        // With one output token there is no time per further one.
        if life.output > 1 {
            windows.per_output_token.push((per_token * 1e9).round() as u64, 1);
        }
        windows.prompt_length.push(u64::from(life.prompt), 1);
        windows.generation_length.push(u64::from(life.output), 1);
    }

    /// The tokens of a step are all in.
    fn end_update(&mut self) {
        let Update { output, prefill, .. } = std::mem::take(&mut self.update);
        if output > 0 {
            self.figures.generation_tokens.add(output);
            self.figures.iteration_tokens.observe((output + prefill) as f64);
        }
    }

    /// All that happened so far has been told.
    pub fn settle(&mut self) {
        self.end_update();
        count_inter_token(&self.figures, std::mem::take(&mut self.alike));
        count_engine_lag(&self.figures, std::mem::take(&mut self.lags));
        self.publish_held();
    }

    /// The state after an update. vLLM sets its gauges at no other time, so that they keep their
    /// values while a GPU idles.
    pub fn gauges(&mut self, gauges: &Gauges) {
        let figures = &*self.figures;
        figures.running.set(u64::from(gauges.running));
        figures.waiting.set(u64::from(gauges.waiting));
        figures.waiting_preempted.set(u64::from(gauges.waiting_preempted));
        figures.usable_blocks.set(u64::from(gauges.usable_blocks.get()));
        figures.free_blocks.set(u64::from(gauges.free_blocks.get()));
        figures.prefix_queries.set(gauges.prefix.queries);
        figures.prefix_hits.set(gauges.prefix.hits);
    }

    /// What steps did that have ended.
    pub fn steps(&mut self, log: &StepLog) {
        let figures = &*self.figures;
        for step in log.steps() {
            let tokens = step.prefill_tokens + step.decode_tokens;
            figures.step_duration.observe(step.time.total.as_secs_f64());
            figures.step_sequences.observe(f64::from(step.sequences));
            figures.step_tokens.observe(f64::from(tokens.get()));
            figures.steps_by_bound[place(&BOUNDS, step.time.bound)].add(1);
            let stop = place(&STOPS, step.admission);
            figures.admission_stops[stop].add(1);
            figures.last_stop.set(stop as u64);
            figures.prefill_tokens_scheduled.add(u64::from(step.prefill_tokens.get()));
            figures.decode_tokens_scheduled.add(u64::from(step.decode_tokens.get()));
            figures.busy_ns.add(step.time.total.as_ns());
            let StepTerms { weights, linear, kv_read, attention, .. } = step.time.terms;
            figures.arithmetic_ns.add((linear + attention).as_ns());
            figures.memory_ns.add((weights + kv_read).as_ns());
        }
    }
}

fn count_inter_token(figures: &Figures, Alike { span: latency, times }: Alike) {
    if times > 0 {
        figures.inter_token.observe_times(latency.as_secs_f64(), times);
        figures.windows.inter_token.push(latency.as_ns(), times);
    }
}

fn count_engine_lag(figures: &Figures, Alike { span: lag, times }: Alike) {
    if times > 0 {
        figures.engine_lag.record(lag, times);
        figures.engine_lag_seconds.observe_times(lag.as_secs_f64(), times);
        figures.windows.engine_lag.push(lag.as_ns(), times);
    }
}

fn place<T: PartialEq>(all: &[T], one: T) -> usize {
    all.iter().position(|other| *other == one).expect("the list names all of them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::WindowSizes;

    const FIRST: JobId = JobId(7);
    const SECOND: JobId = JobId(8);

    /// Two choices of a prompt, of which so many have come.
    fn recorder(come: &[JobId]) -> Recorder {
        let figures = Figures::new(Tokens::new(100), WindowSizes { requests: 0, tokens: 0 });
        let mut recorder = Recorder::new(Arc::new(figures));
        for &job in come {
            recorder.submitted(&Submitted {
                job,
                prompt: Tokens::new(5),
                max_tokens: Tokens::new(1),
                arrived: SimTime::ZERO,
                queued: SimTime::ZERO,
                siblings: Siblings { first: FIRST, count: 2 },
            });
        }
        recorder
    }

    fn happens(recorder: &mut Recorder, job: JobId, what: What) {
        recorder.happened(&Event { at: SimTime::ZERO, job, what }, SimTime::ZERO);
        recorder.settle();
    }

    const DONE: What = What::Token { index: Tokens::new(1), finish: Some(Finish::Length) };

    /// As an engine does whose answers are not waited for.
    #[test]
    fn a_token_that_speaks_for_others_counts_for_them() {
        let mut one_by_one = recorder(&[FIRST]);
        let mut at_once = recorder(&[FIRST]);
        let seen = SimTime::from_ns(2_000_000);
        let token = |index, finish| {
            let what = What::Token { index: Tokens::new(index), finish };
            Event { at: SimTime::from_ns(1_000_000), job: FIRST, what }
        };
        let last = token(5, Some(Finish::Stop));
        for before in (1..5).map(|index| token(index, None)) {
            one_by_one.happened(&before, seen);
        }
        for recorder in [&mut one_by_one, &mut at_once] {
            recorder.happened(&last, seen);
            recorder.settle();
        }
        let (each, all) = (one_by_one.figures.read(), at_once.figures.read());
        assert_eq!(all, each);
        assert_eq!((all.generation_tokens, all.inter_token.count()), (5, 4));
        assert_eq!(all.engine_lag.count(), 5);
    }

    /// The I/O thread has no room for the second choice of a prompt, and takes the first one back,
    /// which has finished meanwhile.
    #[test]
    fn choices_that_never_come_leave_nothing_behind() {
        let mut recorder = recorder(&[FIRST]);
        happens(&mut recorder, FIRST, DONE);
        assert_eq!((recorder.lives.len(), recorder.choices.len()), (0, 1));
        recorder.cancelled(FIRST);
        assert!(recorder.choices.is_empty());
        let reading = recorder.figures.read();
        assert_eq!((reading.choices.count(), reading.cancelled), (0, 0));
    }

    #[test]
    fn choices_that_are_lost_or_not_taken_leave_nothing_behind() {
        let ends: [fn(&mut Recorder); 3] = [
            |recorder| recorder.refused(SECOND, Refusal::QueueFull),
            |recorder| recorder.cancelled(SECOND),
            |recorder| happens(recorder, SECOND, What::Lost),
        ];
        for end in ends {
            let mut recorder = recorder(&[FIRST, SECOND]);
            happens(&mut recorder, FIRST, DONE);
            end(&mut recorder);
            assert_eq!((recorder.lives.len(), recorder.choices.len()), (0, 0));
            assert_eq!(recorder.figures.read().choices.count(), 0);
        }
    }
}
