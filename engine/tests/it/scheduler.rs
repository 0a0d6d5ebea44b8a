//! Hand-worked timelines: every file in `tests/cases` is a set-up, inputs, and what must happen.
//!
//! Above `--`: one engine line, then inputs in order of time. Below: the timeline. A person can
//! check each line with the rules of the engine and a pencil; `tests/cases/README.md` explains the
//! words.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use llmsim_engine::faults::{self, GpuAt, Timed};
use llmsim_engine::seed::Seed;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, Recording, Residual, Scheduler, SchedulerSpec,
    Scheduling, StepLog, StepRecord,
};
use llmsim_engine::sim::solo::FixedRateSpec;
use llmsim_engine::sim::{BlockHash, Engine, EngineSpec, Event, Finish, Job, Verdict, What};
use llmsim_engine::units::{Blocks, JobId, Rate, SimSpan, SimTime, Tokens};

#[test]
fn timelines_are_as_worked_out_by_hand() {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases"));
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(files.len() >= 25, "only {} cases in {}", files.len(), directory.display());
    let mut failures = String::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let outcome = std::panic::catch_unwind(|| check(&text));
        let problem = match outcome {
            Ok(Ok(())) => continue,
            Ok(Err(problem)) => problem,
            Err(_) => "panicked; see above".into(),
        };
        write!(failures, "\n{}: {problem}", file.display()).unwrap();
    }
    assert!(failures.is_empty(), "{failures}");
}

fn check(text: &str) -> Result<(), String> {
    let (given, expected) = text.split_once("\n--\n").ok_or("no line `--`")?;
    let said = |part: &str| -> Vec<String> {
        let lines = part.lines().map(|line| line.split('#').next().unwrap_or_default());
        // `a#1` is a token, `# …` a comment.
        let lines = lines.zip(part.lines()).map(|(before, line)| match line.split_once(" # ") {
            Some((said, _)) => said.to_string(),
            None if before.trim().is_empty() => String::new(),
            None => line.to_string(),
        });
        lines.map(|line| squeeze(&line)).filter(|line| !line.is_empty()).collect()
    };
    let mut given = said(given).into_iter();
    let mut case = Case::new(&given.next().ok_or("no engine line")?)?;
    for input in given {
        case.input(&input)?;
    }
    let actual = case.finish();
    let expected = said(expected);
    if actual == expected {
        return Ok(());
    }
    let at = actual.iter().zip(&expected).take_while(|(a, e)| a == e).count();
    Err(format!(
        "differs from line {} of the timeline\n  expected:\n{}\n  actual:\n{}",
        at + 1,
        indent(&expected),
        indent(&actual)
    ))
}

fn squeeze(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn indent(lines: &[String]) -> String {
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

/// A case under way.
struct Case {
    engine: Engine,
    block_size: u32,
    prefix: bool,
    show_free: bool,
    show_why: bool,
    jobs: Vec<String>,
    events: Vec<Event>,
    log: StepLog,
    /// (instant, rank among things of one instant, order) → line.
    lines: BTreeMap<(SimTime, u8, usize), String>,
    /// Disturbances to come, in order of time.
    pending: Vec<Timed>,
}

impl Case {
    fn new(line: &str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let settings = Settings::new(words)?;
        let spec = match kind {
            "gpu" => EngineSpec::Scheduler(Box::new(settings.gpu()?)),
            "fixed_rate" => EngineSpec::FixedRate(FixedRateSpec {
                overhead: settings.time("overhead", SimTime::ZERO)? - SimTime::ZERO,
                prefill: settings.rate("prefill")?,
                decode: settings.rate("decode")?,
            }),
            "instant" => EngineSpec::Instant,
            other => return Err(format!("`{other}` is not gpu, fixed_rate or instant")),
        };
        let mut case = Self {
            engine: spec.build(),
            block_size: settings.number("block_size", 16)?,
            prefix: settings.flag("prefix"),
            show_free: settings.flag("show-free"),
            show_why: settings.flag("show-why"),
            jobs: Vec::new(),
            events: Vec::new(),
            log: StepLog::default(),
            lines: BTreeMap::new(),
            pending: Vec::new(),
        };
        case.engine.record_steps(Recording::On);
        Ok(case)
    }

    /// `at TIME NAME prompt=N …`, `at TIME cancel NAME`, `at TIME reset`, `at TIME fault WORDS`.
    fn input(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split(' ');
        if words.next() != Some("at") {
            return Err(format!("`{line}` does not begin with `at`"));
        }
        let at = time(words.next().unwrap_or_default())?;
        self.advance_before(at);
        match words.next().unwrap_or_default() {
            "cancel" => {
                let name = words.next().unwrap_or_default();
                self.engine.cancel(at, self.id(name)?);
            }
            "fault" => {
                let words: Vec<&str> = words.collect();
                let rules = faults::parse(&words.join(" ")).map_err(|bad| bad.to_string())?;
                let gpu = GpuAt { model: "", replica: 0, has_batch: true };
                self.pending.extend(faults::disturbances(&rules, &[gpu], at).remove(0));
                self.pending.sort_by_key(|timed| timed.at);
            }
            "reset" => {
                let said = if self.engine.reset_prefix_cache(at) { "done" } else { "refused" };
                self.line(at, 0, format!("reset {said}"));
            }
            name => {
                let settings = Settings::new(words)?;
                let job = self.job(name, &settings)?;
                self.jobs.push(name.into());
                if let Verdict::Refused(why) = self.engine.submit(at, job) {
                    self.line(at, 0, format!("refuse {name} {}", why.as_str()));
                }
            }
        }
        Ok(())
    }

    fn job(&self, name: &str, settings: &Settings<'_>) -> Result<Job, String> {
        let own = format!("{name}.prompt:{}", settings.number::<u32>("prompt", 0)?);
        let prompt = segments(settings.text("tokens").unwrap_or(&own))?;
        let length: u32 = prompt.iter().map(|(_, length)| length).sum();
        let stop = settings.optional::<u32>("output")?;
        let max = settings.number::<u32>("max", 1_000_000)?;
        let tokens = stop.unwrap_or(max).min(max);
        let mut content = prompt;
        content.push((name.into(), tokens));
        Ok(Job {
            id: JobId(self.jobs.len() as u64),
            prompt: Tokens::new(length),
            max_tokens: Tokens::new(max),
            stop_after: stop.map(Tokens::new),
            priority: settings.number("priority", 0)?,
            chain: self.prefix.then(|| {
                chain(&content, settings.text("salt").unwrap_or_default(), self.block_size).into()
            }),
        })
    }

    fn id(&self, name: &str) -> Result<JobId, String> {
        let at = self.jobs.iter().position(|job| job == name);
        at.map(|at| JobId(at as u64)).ok_or(format!("no job `{name}`"))
    }

    fn advance_before(&mut self, at: SimTime) {
        while let Some(timed) = self.pending.first().copied().filter(|timed| timed.at <= at) {
            self.pending.remove(0);
            self.advance_quietly_before(timed.at);
            self.engine.disturb(timed.at, timed.what);
        }
        self.advance_quietly_before(at);
    }

    fn advance_quietly_before(&mut self, at: SimTime) {
        while let Some(due) = self.engine.deadline().filter(|&due| due < at) {
            self.advance(due);
        }
    }

    fn advance(&mut self, to: SimTime) {
        let mut events = std::mem::take(&mut self.events);
        self.engine.advance(to, &mut events);
        for event in events.drain(..) {
            let name = &self.jobs[event.job.0 as usize];
            let (rank, line) = match event.what {
                What::Token { index, finish } => {
                    let end = match finish {
                        None => "",
                        Some(Finish::Stop) => " done",
                        Some(Finish::Length) => " length",
                    };
                    (1, format!("emit {name}#{index}{end}"))
                }
                What::Preempted => (2, format!("preempt {name}")),
                What::Lost => (0, format!("lose {name}")),
                What::Admitted { cached } | What::Resumed { cached } if cached > Tokens::ZERO => {
                    (3, format!("hit {name} {cached}"))
                }
                What::Admitted { .. } | What::Resumed { .. } => continue,
            };
            self.line(event.at, rank, line);
        }
        self.events = events;
        let mut log = std::mem::take(&mut self.log);
        self.engine.swap_steps(&mut log);
        for step in log.steps() {
            let mut line = String::from("step");
            for grant in log.granted(step) {
                write!(line, " {}+{}", self.jobs[grant.job.0 as usize], grant.tokens).unwrap();
            }
            if step.planned != step.started {
                write!(line, " planned={}", step.planned).unwrap();
            }
            if self.show_free {
                write!(line, " free={}", step.after.free_blocks).unwrap();
            }
            if self.show_why {
                write!(line, " why={}", step.admission.as_str()).unwrap();
            }
            self.line(step.started, 4, line);
        }
        self.log = log;
    }

    fn line(&mut self, at: SimTime, rank: u8, line: String) {
        let order = self.lines.len();
        self.lines.insert((at, rank, order), format!("{at} {line}"));
    }

    fn finish(mut self) -> Vec<String> {
        if let Some(last) = self.pending.last() {
            self.advance_before(last.at);
        }
        while let Some(due) = self.engine.deadline() {
            self.advance(due);
        }
        self.lines.into_values().collect()
    }
}

/// `name=value` words and flags.
struct Settings<'a> {
    words: BTreeMap<&'a str, Option<&'a str>>,
}

const WORDS: &[&str] = &[
    "active",
    "adaptive",
    "all-last",
    "async",
    "block_size",
    "blocks",
    "budget",
    "decode",
    "interval",
    "max",
    "model_len",
    "no-chunking",
    "no-reserve",
    "output",
    "overhead",
    "policy",
    "prefill",
    "prefix",
    "prefill-first",
    "priority",
    "prompt",
    "queued",
    "reserved",
    "salt",
    "seqs",
    "show-free",
    "show-why",
    "step",
    "sync",
    "threshold",
    "tokens",
    "watermark",
];

impl<'a> Settings<'a> {
    fn new(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for word in words {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if !WORDS.contains(&name) {
                return Err(format!("`{word}` is unknown"));
            }
            all.insert(name, value);
        }
        Ok(Self { words: all })
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.words.get(name).copied().flatten()
    }

    fn flag(&self, name: &str) -> bool {
        self.words.contains_key(name)
    }

    fn optional<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        let bad = |value| format!("{name}={value} is no number");
        self.text(name).map(|value| value.parse().map_err(|_| bad(value))).transpose()
    }

    fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    fn time(&self, name: &str, default: SimTime) -> Result<SimTime, String> {
        self.text(name).map_or(Ok(default), time)
    }

    fn rate(&self, name: &str) -> Result<Rate, String> {
        let per_second = self.text(name).and_then(|value| value.strip_suffix("/s"));
        let rate = per_second.and_then(|value| value.parse().ok()).and_then(Rate::per_second);
        rate.ok_or(format!("{name}=N/s is missing"))
    }

    fn gpu(&self) -> Result<SchedulerSpec, String> {
        Ok(SchedulerSpec {
            max_num_batched_tokens: Tokens::new(self.number("budget", 64)?),
            max_num_seqs: self.number("seqs", 8)?,
            max_num_active_seqs: self.optional("active")?,
            max_model_len: Tokens::new(self.number("model_len", 1_000)?),
            block_size: Tokens::new(self.number("block_size", 16)?),
            num_blocks: Blocks::new(1 + self.number("blocks", 100)?),
            prefix_caching: self.flag("prefix"),
            policy: match self.text("policy") {
                None | Some("fcfs") => Policy::Fcfs,
                Some("priority") => Policy::Priority,
                Some(other) => return Err(format!("policy={other} is unknown")),
            },
            long_prefill_token_threshold: Tokens::new(self.number("threshold", 0)?),
            long_prefill_adaptive: self.flag("adaptive"),
            chunked_prefill: !self.flag("no-chunking"),
            reserve_full_isl: !self.flag("no-reserve"),
            watermark: self.number("watermark", 0.0)?,
            prefill_interval: self.number("interval", 1)?,
            scheduling: match self.flag("async") {
                true => Scheduling::Asynchronous,
                false => Scheduling::Synchronous,
            },
            max_num_queued_reqs: self.optional("queued")?,
            freed_blocks: match self.flag("all-last") {
                true => FreedBlocks::AllLast,
                false => FreedBlocks::UncachedFirst,
            },
            prefill_order: match self.flag("prefill-first") {
                true => PrefillOrder::First,
                false => PrefillOrder::Mixed,
            },
            output_blocks: match self.flag("reserved") {
                true => OutputBlocks::Reserved,
                false => OutputBlocks::AsNeeded,
            },
            cost: StepCost::Fixed(self.time("step", SimTime::from_ns(10_000_000))? - SimTime::ZERO),
            residual: None,
        })
    }
}

/// `12.5ms`, exactly.
fn time(text: &str) -> Result<SimTime, String> {
    let bad = || format!("`{text}` is not a time in ms");
    let ms = text.strip_suffix("ms").ok_or_else(bad)?;
    let (whole, rest) = ms.split_once('.').unwrap_or((ms, ""));
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let rest: u64 = format!("{rest:0<6}").parse().map_err(|_| bad())?;
    Ok(SimTime::ZERO + SimSpan::from_ms(whole) + SimSpan::from_ns(rest))
}

/// `sys:32,user:5`: the first 32 tokens of a text called `sys`, then the first 5 of `user`. What a
/// job answers is a text of the job's name.
fn segments(text: &str) -> Result<Vec<(String, u32)>, String> {
    text.split(',')
        .map(|part| {
            let (name, length) = part.split_once(':').ok_or(format!("`{part}` is no NAME:N"))?;
            Ok((name.into(), length.parse().map_err(|_| format!("`{part}` is no NAME:N"))?))
        })
        .collect()
}

fn chain(content: &[(String, u32)], salt: &str, block_size: u32) -> Vec<BlockHash> {
    let mut key = Seed::new(0).with(salt.as_bytes());
    let mut keys = Vec::new();
    let tokens = content.iter().flat_map(|(name, length)| (0..*length).map(move |at| (name, at)));
    for (count, (name, at)) in tokens.enumerate() {
        key = key.with(format!("{name}:{at}").as_bytes());
        if (count as u32 + 1).is_multiple_of(block_size) {
            keys.push(BlockHash(key.value()));
        }
    }
    keys
}

/// The steps of a GPU that decodes two requests, 10 ms a step.
fn steps_with(residual: Option<Residual>) -> Vec<StepRecord> {
    let spec = SchedulerSpec {
        residual,
        ..SchedulerSpec::vllm(
            Tokens::new(4096),
            Blocks::new(1_000),
            StepCost::Fixed(SimSpan::from_ms(10)),
        )
    };
    let mut gpu = Scheduler::new(spec);
    gpu.record_steps(Recording::On);
    for id in [1, 2] {
        let job = Job {
            id: JobId(id),
            prompt: Tokens::new(100),
            max_tokens: Tokens::new(200),
            stop_after: None,
            priority: 0,
            chain: None,
        };
        assert!(matches!(gpu.submit(SimTime::ZERO, job), Verdict::Queued));
    }
    let mut events = Vec::new();
    while let Some(due) = gpu.deadline() {
        gpu.advance(due, &mut events);
    }
    let mut log = StepLog::default();
    gpu.swap_steps(&mut log);
    log.steps().to_vec()
}

#[test]
fn steps_stray_as_their_numbers_say_and_only_if_asked() {
    let residual = Residual { seed: 5, sigma: 0.1, tail_probability: 0.05, tail_factor: 3.0 };
    let (still, strayed) = (steps_with(None), steps_with(Some(residual)));
    assert!(still.iter().all(|step| step.residual.is_none()));
    assert!(still.iter().all(|step| step.time.total == SimSpan::from_ms(10)));
    assert_eq!(strayed.len(), still.len(), "the plan is the same");
    for step in &strayed {
        let factor = residual.factor(step.index);
        assert_eq!(step.residual, Some(factor));
        assert_eq!(step.time.total, factor.of(SimSpan::from_ms(10)));
        assert_eq!(step.ended - step.started, step.time.total);
    }
    assert_eq!(strayed, steps_with(Some(residual)), "the same seed, the same steps");
    let other = steps_with(Some(Residual { seed: 6, ..residual }));
    assert_ne!(strayed, other);

    // Of no width, it changes nothing but that it says so.
    let none = Residual { sigma: 0.0, tail_probability: 0.0, ..residual };
    let spans = |steps: &[StepRecord]| {
        steps.iter().map(|step| (step.started, step.ended)).collect::<Vec<_>>()
    };
    assert_eq!(spans(&steps_with(Some(none))), spans(&still));
}
