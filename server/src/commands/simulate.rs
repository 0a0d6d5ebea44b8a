//! `simulate`: a list of arrivals through the same engines that serve, in virtual time.
//!
//! No clock, no socket, no text: only counts. The invariant: the output is a function of the two
//! inputs (configuration and arrivals) alone, byte for byte, and its lines are in the order of the
//! arrivals' lines.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use llmsim_engine::config::{Config, ModelSpec};
use llmsim_engine::faults::Timed;
use llmsim_engine::record::Note;
use llmsim_engine::seed::Seed;
use llmsim_engine::sim::scheduler::Recording;
use llmsim_engine::sim::virtual_time::{self, Happening, JobResult, Outcome, Seen};
use llmsim_engine::sim::{Arrives, BlockHash, Engine, EngineSpec, Input, Job};
use llmsim_engine::units::{Blocks, JobId, SimSpan, SimTime, Tokens};
use llmsim_engine::wire::json_guard;
use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value};

use crate::args::Files;
use crate::faults;
use crate::step_writer::{Recorder, StepFiles, usable_blocks};

/// What to simulate.
#[derive(Debug)]
pub struct Options {
    /// The configuration.
    pub files: Files,
    /// JSON lines, one request each; `-` is standard input.
    pub arrivals: PathBuf,
    /// `--step-log`: what each step did, as JSON lines.
    pub step_log: Option<PathBuf>,
    /// `--trace`: the same for Perfetto.
    pub trace: Option<PathBuf>,
}

/// Runs the arrivals and gives the results as JSON lines.
///
/// # Errors
/// What is wrong with the configuration or the arrivals, as the whole message.
pub fn run(options: &Options) -> Result<String, String> {
    let config = super::load(&options.files)?;
    let name = options.arrivals.display().to_string();
    let cannot_read = |error: io::Error| format!("{name}: cannot be read: {error}");
    let lines: Box<dyn BufRead> = if options.arrivals == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(std::fs::File::open(&options.arrivals).map_err(cannot_read)?))
    };
    let name = if options.arrivals == Path::new("-") { "standard input" } else { &name };
    let (step_log, trace) = (options.step_log.as_deref(), options.trace.as_deref());
    let mut steps = StepFiles::create(step_log, trace, gpus(&config))?;
    let out = simulate(&config, name, lines, steps.as_mut())?;
    if let Some(steps) = steps {
        steps.finish().map_err(cannot_record)?;
    }
    Ok(out)
}

fn cannot_record(error: io::Error) -> String {
    format!("--step-log or --trace: cannot be written: {error}")
}

/// Name and blocks of each simulated GPU, model by model, replica by replica.
fn gpus(config: &Config) -> Vec<(String, Blocks)> {
    let gpus = config.models.iter().flat_map(|spec| {
        let blocks = usable_blocks(&spec.engine);
        (0..spec.replicas).map(move |replica| (format!("{}/{replica}", spec.name), blocks))
    });
    gpus.collect()
}

/// [`run`] on inputs that have been opened.
fn simulate(
    config: &Config,
    name: &str,
    lines: impl BufRead,
    mut steps: Option<&mut StepFiles>,
) -> Result<String, String> {
    let arrivals = read(config, name, lines)?;
    let mut results: Vec<Option<JobResult>> = vec![None; arrivals.len()];
    let mut first_gpu = 0;
    // Of simulated GPUs with a timeline, in the same order.
    let mut troubles = faults::disturbances_of(&config.faults, &config.models).into_iter();
    for (model, spec) in config.models.iter().enumerate() {
        let mut own: Vec<usize> =
            (0..arrivals.len()).filter(|&i| arrivals[i].model == model).collect();
        // Stable: of two requests at one instant the one that is written first arrives first.
        own.sort_by_key(|&i| arrivals[i].at);
        let replicas = usize::from(spec.replicas);
        let mut troubles: Vec<Vec<Timed>> = match spec.engine {
            EngineSpec::Instant => Vec::new(),
            _ => troubles.by_ref().take(replicas.max(1)).collect(),
        };
        for replica in 0..replicas.min(own.len()) {
            // Requests are dealt out in turn, as the server does.
            let dealt = own.iter().skip(replica).step_by(replicas).copied();
            let recorder =
                steps.as_deref_mut().map(|files| Recorder::new(files, first_gpu + replica));
            let troubles = troubles.get_mut(replica).map(std::mem::take).unwrap_or_default();
            one_gpu(spec, dealt, troubles, &arrivals, &mut results, recorder)
                .map_err(cannot_record)?;
        }
        first_gpu += replicas;
    }
    let mut out = String::new();
    for (index, (arrival, result)) in arrivals.iter().zip(&results).enumerate() {
        let spec = &config.models[arrival.model];
        write_result(&mut out, index, arrival, spec, result.as_ref())
            .expect("writing to a string cannot fail");
    }
    Ok(out)
}

fn one_gpu(
    spec: &ModelSpec,
    dealt: impl Iterator<Item = usize>,
    troubles: Vec<Timed>,
    arrivals: &[Arrival],
    results: &mut [Option<JobResult>],
    recorder: Option<Recorder<'_>>,
) -> io::Result<()> {
    let inputs = dealt.filter_map(|index| {
        let arrival = &arrivals[index];
        let job = arrival.job(index, spec)?;
        Some(Input { at: arrival.at + spec.request_overhead, what: Arrives::Submit(job) })
    });
    let inputs = with_troubles(troubles, inputs);
    let mut engine = spec.engine.build();
    let (own, recorded) = match recorder {
        None => (virtual_time::results(&mut engine, inputs), Ok(())),
        Some(recorder) => recorded(&mut engine, inputs, recorder),
    };
    for result in own {
        // Ids are indices into the arrivals.
        results[result.job.0 as usize] = Some(result);
    }
    recorded
}

/// What arrives, and in between what befalls the GPU: of one instant that comes first.
fn with_troubles(
    troubles: Vec<Timed>,
    inputs: impl Iterator<Item = Input>,
) -> impl Iterator<Item = Input> {
    let mut troubles = troubles.into_iter().peekable();
    let mut inputs = inputs.peekable();
    std::iter::from_fn(move || {
        let is_due = match (troubles.peek(), inputs.peek()) {
            (Some(timed), Some(input)) => timed.at <= input.at,
            (timed, _) => timed.is_some(),
        };
        if is_due {
            return troubles
                .next()
                .map(|Timed { at, what }| Input { at, what: Arrives::Disturb(what) });
        }
        inputs.next()
    })
}

fn recorded(
    engine: &mut Engine,
    inputs: impl Iterator<Item = Input>,
    mut recorder: Recorder<'_>,
) -> (Vec<JobResult>, io::Result<()>) {
    engine.record_steps(Recording::On);
    let mut written = Ok(());
    let results = virtual_time::results_watched(engine, inputs, |seen| match seen {
        Seen::Input(Input { at, what: Arrives::Submit(job) }) => {
            recorder.note(Note::Arrived { at: *at, job: job.id, prompt: job.prompt });
        }
        Seen::Input(_) => {}
        Seen::Heard(Happening::Event(event)) => recorder.note(Note::Happened(event)),
        Seen::Heard(Happening::Refused { at, job, .. }) => {
            recorder.note(Note::Cancelled { at, job });
        }
        Seen::Advanced(engine, now) => {
            if written.is_ok() {
                written = recorder.write(engine, now);
            }
        }
    });
    (results, written)
}

/// A line of the arrivals.
#[derive(Debug, PartialEq)]
struct Arrival {
    at: SimTime,
    model: usize,
    prompt: u32,
    output: u32,
    max_tokens: Option<u32>,
    priority: i32,
    hash_ids: Vec<u64>,
}

/// Tokens that one of `hash_ids` stands for, as in the Mooncake traces.
const HASH_ID_TOKENS: u64 = 512;

impl Arrival {
    /// `None` if prompt and answer together are longer than the context: the server's 400.
    fn job(&self, index: usize, spec: &ModelSpec) -> Option<Job> {
        let room = spec.context_length.get().checked_sub(self.prompt)?;
        let max_tokens = self.max_tokens.unwrap_or(self.output);
        if max_tokens > room {
            return None;
        }
        Some(Job {
            id: JobId(index as u64),
            prompt: Tokens::new(self.prompt),
            max_tokens: Tokens::new(max_tokens),
            // Without `max_tokens` the output is as long as a load test asks for it to be.
            stop_after: (self.max_tokens.is_some() && self.output <= max_tokens)
                .then(|| Tokens::new(self.output)),
            priority: self.priority,
            chain: self.chain(index, spec, max_tokens),
        })
    }

    /// The keys of the job's full blocks: shared where the hash ids say so, its own behind them.
    fn chain(&self, index: usize, spec: &ModelSpec, output: u32) -> Option<Arc<[BlockHash]>> {
        let EngineSpec::Scheduler(spec) = &spec.engine else { return None };
        if !spec.prefix_caching || self.hash_ids.is_empty() {
            return None;
        }
        let block = u64::from(spec.block_size.get());
        let blocks = (u64::from(self.prompt) + u64::from(output)) / block;
        let prompt = u64::from(self.prompt);
        let key = |number: u64| {
            let last = (number + 1) * block - 1;
            let shared = self.hash_ids.get((last / HASH_ID_TOKENS) as usize);
            let seed = match shared.filter(|_| last < prompt) {
                // An id covers its tokens and all before them: one id, one place, one key.
                Some(&id) => Seed::new(id).with(&last.to_le_bytes()),
                None => Seed::new(index as u64).with(b"own").with(&last.to_le_bytes()),
            };
            BlockHash(seed.value())
        };
        Some((0..blocks).map(key).collect())
    }
}

/// Longer lines are refused: a request is a few numbers.
const LONGEST_LINE: u64 = 4 << 20;
/// The most lines with mistakes that are told.
const MOST_MISTAKES: usize = 20;

fn read(config: &Config, name: &str, mut lines: impl BufRead) -> Result<Vec<Arrival>, String> {
    let mut arrivals = Vec::new();
    let mut mistakes: Vec<String> = Vec::new();
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let limited = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        let read = limited.map_err(|error| format!("{name}: cannot be read: {error}"))?;
        if read == 0 {
            break;
        }
        let text = line.trim_ascii();
        let parsed = if line.len() as u64 >= LONGEST_LINE {
            Err("the line is longer than 4 MiB".to_owned())
        } else if text.is_empty() {
            continue;
        } else {
            parse(config, text)
        };
        match parsed {
            Ok(arrival) => arrivals.push(arrival),
            Err(why) => mistakes.push(format!("{name}:{number}: {why}")),
        }
        if mistakes.len() >= MOST_MISTAKES {
            mistakes.push("(and perhaps more)".to_owned());
            break;
        }
    }
    if mistakes.is_empty() { Ok(arrivals) } else { Err(mistakes.join("\n")) }
}

/// One line. Other keys than ours are left alone, so that traces of other tools can be used; the
/// names of the Mooncake traces are known too.
fn parse(config: &Config, text: &[u8]) -> Result<Arrival, String> {
    json_guard::check(text).map_err(|_| "nested too deeply".to_owned())?;
    let value: Value = sonic_rs::from_slice(text).map_err(|error| {
        let message = error.to_string();
        format!("not JSON: {}", message.lines().next().unwrap_or_default())
    })?;
    if !value.is_object() {
        return Err("must be an object like {\"arrival_ms\": 0, \"prompt_tokens\": 512, \
                    \"output_tokens\": 128}"
            .to_owned());
    }
    let field = |names: [&'static str; 2]| {
        let found = names.iter().find_map(|name| value.get(*name).filter(|it| !it.is_null()));
        found.map(|value| (names[0], value))
    };
    let missing = |name: &str| format!("`{name}` is missing");
    let required = |names: [&'static str; 2]| field(names).ok_or_else(|| missing(names[0]));
    let max_tokens = match field(["max_tokens", "max_completion_tokens"]) {
        Some(found) => Some(count(found)?),
        None => None,
    };
    let priority = match field(["priority", "priority"]) {
        Some((_, value)) => value
            .as_i64()
            .and_then(|priority| i32::try_from(priority).ok())
            .ok_or("`priority` must be a whole number of 32 bits")?,
        None => 0,
    };
    Ok(Arrival {
        at: instant(required(["arrival_ms", "timestamp"])?)?,
        model: model(config, field(["model", "model"]).map(|(_, value)| value))?,
        prompt: count(required(["prompt_tokens", "input_length"])?)?,
        output: count(required(["output_tokens", "output_length"])?)?,
        max_tokens,
        priority,
        hash_ids: match field(["hash_ids", "hash_ids"]) {
            Some((_, value)) => hash_ids(value)?,
            None => Vec::new(),
        },
    })
}

fn instant((name, value): (&str, &Value)) -> Result<SimTime, String> {
    // Thirty years; 64 bits of nanoseconds hold nearly six hundred.
    const MOST_MS: f64 = 1e12;
    match value.as_f64() {
        Some(ms) if (0.0..=MOST_MS).contains(&ms) => {
            Ok(SimTime::ZERO + SimSpan::from_ns((ms * 1e6).round() as u64))
        }
        _ => {
            Err(format!("`{name}` must be a number of milliseconds from 0 to 1e12, but is {value}"))
        }
    }
}

fn count((name, value): (&str, &Value)) -> Result<u32, String> {
    // Sums of two stay inside 32 bits.
    const MOST: u64 = 1 << 30;
    match value.as_u64() {
        Some(count @ 1..=MOST) => Ok(count as u32),
        _ => Err(format!("`{name}` must be a whole number from 1 to {MOST}, but is {value}")),
    }
}

fn hash_ids(value: &Value) -> Result<Vec<u64>, String> {
    let ids = value.as_array().map(|ids| ids.iter().map(|id| id.as_u64()).collect());
    ids.flatten().ok_or_else(|| "`hash_ids` must be a list of whole numbers".to_owned())
}

/// A file with one model needs no `model`.
fn model(config: &Config, value: Option<&Value>) -> Result<usize, String> {
    let names = || {
        let names: Vec<_> = config.models.iter().map(|model| model.name.as_str()).collect();
        names.join(", ")
    };
    let Some(value) = value else {
        return match config.models.len() {
            1 => Ok(0),
            _ => Err(format!("`model` is missing; there are {}", names())),
        };
    };
    let name = value.as_str().ok_or_else(|| format!("`model` must be a text, but is {value}"))?;
    config
        .models
        .iter()
        .position(|model| model.name == name)
        .ok_or_else(|| format!("there is no model `{name}`; there are {}", names()))
}

fn write_result(
    out: &mut String,
    index: usize,
    arrival: &Arrival,
    spec: &ModelSpec,
    result: Option<&JobResult>,
) -> std::fmt::Result {
    let name = sonic_rs::to_string(&spec.name).unwrap_or_default();
    let arrived = arrival.at.as_ns();
    write!(
        out,
        "{{\"index\":{index},\"model\":{name},\"arrival_ms\":{},\"prompt_tokens\":{}",
        Ms(arrived),
        arrival.prompt
    )?;
    let Some(result) = result else {
        return writeln!(out, ",\"output_tokens\":0,\"refused\":\"context_length_exceeded\"}}");
    };
    write!(out, ",\"output_tokens\":{}", result.tokens)?;
    match result.outcome {
        Outcome::Refused(why) => return writeln!(out, ",\"refused\":\"{}\"}}", why.as_str()),
        Outcome::Finished(finish) => write!(out, ",\"finish\":\"{}\"", finish.as_str())?,
        Outcome::Lost => write!(out, ",\"finish\":\"lost\"")?,
        // Nothing here cancels, and the driver runs until the engine is idle.
        Outcome::Unfinished | Outcome::Cancelled => write!(out, ",\"finish\":null")?,
    }
    write!(out, ",\"cached_tokens\":{},\"preemptions\":{}", result.cached, result.preemptions)?;
    // The engine counts from when the request reached its queue.
    let ttft = result.ttft().map(|ttft| spec.request_overhead + ttft);
    let e2e = result.e2e().map(|e2e| spec.request_overhead + e2e);
    let queue = result.admitted.map(|admitted| admitted - result.arrived);
    let longest = (result.tokens.get() > 1).then_some(result.longest_gap);
    for (key, span) in [
        ("queue_ms", queue),
        ("ttft_ms", ttft),
        ("itl_mean_ms", result.tpot()),
        ("itl_max_ms", longest),
        ("e2e_ms", e2e),
    ] {
        match span {
            Some(span) => write!(out, ",\"{key}\":{}", Ms(span.as_ns()))?,
            None => write!(out, ",\"{key}\":null")?,
        }
    }
    writeln!(out, "}}")
}

/// Nanoseconds as milliseconds, exactly.
struct Ms(u64);

impl std::fmt::Display for Ms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{rest:06}").trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::config::{self, Source};

    use super::*;

    const MODELS: &str = "\
hardware:
  # 1 GB/s and 1 TFLOP/s: with 10 MB of weights a step takes 10 ms, whatever is in it.
  slow: { hbm_gib: 1, memory_bandwidth_gbps: 1, peak_tflops: 1 }
models:
  - name: fixed
    context_length: 1000
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 10000, decode_tokens_per_second: 250 }
    latency: { scheduler_overhead_ms: 2, request_overhead_ms: 3 }
  - name: tiny
    context_length: 100
  - name: gpu
    context_length: 64
    engine: scheduler
    hardware: slow
    weights: { parameters_billion: 0.005, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 1, num_gpu_blocks_override: 100 }
    scheduler: { max_batch_tokens: 64, max_num_sequences: 2, async_scheduling: false }
    replicas: 1
";

    fn config() -> Config {
        let responses = Source::new("responses.yml", "default: { content: fine }");
        config::load(&Source::new("models.yml", MODELS), &responses).unwrap()
    }

    #[track_caller]
    fn check(arrivals: &str, expected: &str) {
        let out = simulate(&config(), "a.jsonl", arrivals.as_bytes(), None).unwrap();
        assert_eq!(out, expected);
    }

    #[test]
    fn a_fixed_rate_request_takes_what_its_rates_say() {
        // 3 ms, 2 ms, and 50 tokens at 10 per ms: 10 ms to the first token;
        // then one every 4 ms. The answer of 5 tokens ends by itself, that of 3 is cut.
        check(
            "{\"arrival_ms\": 7, \"model\": \"fixed\", \"prompt_tokens\": 50, \"output_tokens\": 5, \"max_tokens\": 9}
{\"arrival_ms\": 0.5, \"model\": \"fixed\", \"prompt_tokens\": 50, \"output_tokens\": 3}
",
            "\
{\"index\":0,\"model\":\"fixed\",\"arrival_ms\":7,\"prompt_tokens\":50,\"output_tokens\":5,\
\"finish\":\"stop\",\"cached_tokens\":0,\"preemptions\":0,\"queue_ms\":0,\"ttft_ms\":10,\
\"itl_mean_ms\":4,\"itl_max_ms\":4,\"e2e_ms\":26}
{\"index\":1,\"model\":\"fixed\",\"arrival_ms\":0.5,\"prompt_tokens\":50,\"output_tokens\":3,\
\"finish\":\"length\",\"cached_tokens\":0,\"preemptions\":0,\"queue_ms\":0,\"ttft_ms\":10,\
\"itl_mean_ms\":4,\"itl_max_ms\":4,\"e2e_ms\":18}
",
        );
    }

    #[test]
    fn what_befalls_a_gpu_befalls_it_in_virtual_time_too() {
        // Twice as slow from 1 s to 1.9 s: 3 ms on the way to the engine, then 2 ms and 50 tokens
        // in 5 ms at half the speed are 17 ms to the first token, and 8 ms to each one after. At 2
        // s it crashes and is down for 1 s: of the answer that was asked for at 1,985 ms there are
        // the tokens of 1,995 ms and 1,999 ms.
        let mut config = config();
        let faults = "timeline:\n  at 1s: slow fixed by 2 for 900ms\n  at 2s: crash fixed for 1s\n";
        config.faults =
            config::load_faults(&Source::new("faults.yml", faults), &config.models).unwrap();
        let arrivals: String = [1_000, 1_985, 2_500, 3_000]
            .iter()
            .map(|at| {
                format!(
                    "{{\"arrival_ms\":{at},\"model\":\"fixed\",\"prompt_tokens\":50,\"output_tokens\":9}}\n"
                )
            })
            .collect();
        let out = simulate(&config, "a.jsonl", arrivals.as_bytes(), None).unwrap();
        let ends: Vec<&str> =
            out.lines().map(|line| &line[line.find("\"output").unwrap()..]).collect();
        let slow = "\"output_tokens\":9,\"finish\":\"length\",\"cached_tokens\":0,\"preemptions\":0,\
                    \"queue_ms\":0,\"ttft_ms\":17,\"itl_mean_ms\":8,";
        assert!(ends[0].starts_with(slow), "{out}");
        assert!(ends[1].starts_with("\"output_tokens\":2,\"finish\":\"lost\""), "{out}");
        assert_eq!(ends[2], "\"output_tokens\":0,\"refused\":\"down\"}");
        assert!(ends[3].contains("\"ttft_ms\":10,\"itl_mean_ms\":4,"), "{out}");
    }

    #[test]
    fn a_third_sequence_waits_for_one_of_two_seats() {
        // Steps of 10 ms (10 MB over 1 GB/s; the few KV bytes add nanoseconds). a and b run from 0
        // to 20 ms, c from then on.
        let line = |output| {
            format!(
                "{{\"arrival_ms\":0,\"model\":\"gpu\",\"prompt_tokens\":4,\"output_tokens\":{output}}}\n"
            )
        };
        let arrivals = [line(2), line(2), line(1)].concat();
        let out = simulate(&config(), "a.jsonl", arrivals.as_bytes(), None).unwrap();
        let whole_ms = |line: &str, key: &str| {
            let value: Value = sonic_rs::from_str(line).unwrap();
            value.get(key).unwrap().as_f64().unwrap().round()
        };
        let lines: Vec<&str> = out.lines().collect();
        let of = |key: &str| lines.iter().map(|line| whole_ms(line, key)).collect::<Vec<_>>();
        assert_eq!(of("queue_ms"), [0.0, 0.0, 20.0], "{out}");
        assert_eq!(of("ttft_ms"), [10.0, 10.0, 30.0], "{out}");
        assert_eq!(of("e2e_ms"), [20.0, 20.0, 30.0], "{out}");
    }

    #[test]
    fn a_shared_prefix_is_found_in_the_cache() {
        // Two prompts of 40 tokens that begin with the same 512-token block: of the second, two
        // full blocks of 16 are known.
        let line = |at, id| {
            format!(
                "{{\"timestamp\":{at},\"model\":\"gpu\",\"input_length\":40,\"output_length\":1,\
                 \"hash_ids\":[{id}]}}\n"
            )
        };
        let arrivals = [line(0, 7), line(100, 7), line(200, 8)].concat();
        let out = simulate(&config(), "a.jsonl", arrivals.as_bytes(), None).unwrap();
        let cached: Vec<bool> =
            out.lines().map(|line| line.contains("\"cached_tokens\":32")).collect();
        assert_eq!(cached, [false, true, false], "{out}");
    }

    /// A file that can be looked at afterwards.
    #[derive(Clone, Default)]
    struct Paper(Arc<std::sync::Mutex<Vec<u8>>>);

    impl io::Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn steps_and_requests_are_recorded_under_the_names_of_their_gpus() {
        let arrivals = "\
{\"arrival_ms\":0,\"model\":\"gpu\",\"prompt_tokens\":4,\"output_tokens\":2}
{\"arrival_ms\":0,\"model\":\"fixed\",\"prompt_tokens\":50,\"output_tokens\":3}
{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":5,\"output_tokens\":3}
";
        let (log, trace) = (Paper::default(), Paper::default());
        let config = config();
        let mut files = StepFiles::new(
            Some(Box::new(log.clone())),
            Some(Box::new(trace.clone())),
            gpus(&config),
        )
        .unwrap();
        let with = simulate(&config, "a.jsonl", arrivals.as_bytes(), Some(&mut files)).unwrap();
        files.finish().unwrap();
        let without = simulate(&config, "a.jsonl", arrivals.as_bytes(), None).unwrap();
        assert_eq!(with, without, "whoever watches changes nothing");

        let steps: Vec<Value> =
            log.text().lines().map(|line| sonic_rs::from_str(line).unwrap()).collect();
        assert_eq!(steps.len(), 2);
        for (step, (start_ms, prefill)) in steps.iter().zip([(0, 4), (10, 0)]) {
            assert_eq!(step.get("gpu").as_str(), Some("gpu/0"));
            assert_eq!(step.get("start_ns").as_u64().map(|ns| ns / 1_000_000), Some(start_ms));
            assert_eq!(step.get("prefill_tokens").as_u64(), Some(prefill));
        }

        let events: Vec<Value> = sonic_rs::from_str(&trace.text()).unwrap();
        let text = |event: &Value, key: &str| event.get(key).as_str().unwrap_or("").to_owned();
        let begun = |name: &str| {
            let begins = |event: &&Value| text(event, "ph") == "b" && text(event, "name") == name;
            events.iter().filter(begins).map(|e| e.get("pid").as_u64().unwrap()).collect::<Vec<_>>()
        };
        // Processes are counted from 1: fixed, tiny, gpu.
        assert_eq!(begun("request"), [1, 2, 3]);
        assert_eq!(begun("decode"), [1, 2, 3]);
    }

    #[test]
    fn what_is_longer_than_the_context_is_refused_as_the_server_refuses_it() {
        check(
            "{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":100,\"output_tokens\":1}
{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":99,\"output_tokens\":5}
{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":99,\"output_tokens\":1}
",
            "\
{\"index\":0,\"model\":\"tiny\",\"arrival_ms\":0,\"prompt_tokens\":100,\"output_tokens\":0,\
\"refused\":\"context_length_exceeded\"}
{\"index\":1,\"model\":\"tiny\",\"arrival_ms\":0,\"prompt_tokens\":99,\"output_tokens\":0,\
\"refused\":\"context_length_exceeded\"}
{\"index\":2,\"model\":\"tiny\",\"arrival_ms\":0,\"prompt_tokens\":99,\"output_tokens\":1,\
\"finish\":\"length\",\"cached_tokens\":0,\"preemptions\":0,\"queue_ms\":0,\"ttft_ms\":0,\
\"itl_mean_ms\":null,\"itl_max_ms\":null,\"e2e_ms\":0}
",
        );
    }

    #[test]
    fn every_wrong_line_is_told_with_its_number() {
        let nested = "[".repeat(100_000);
        let arrivals = format!(
            "{{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":1,\"output_tokens\":1}}

nonsense
[]
{{\"model\":\"tiny\",\"prompt_tokens\":1,\"output_tokens\":1}}
{{\"arrival_ms\":-1,\"model\":\"tiny\",\"prompt_tokens\":1,\"output_tokens\":1}}
{{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":0,\"output_tokens\":1}}
{{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":1,\"output_tokens\":\"many\"}}
{{\"arrival_ms\":0,\"model\":\"huge\",\"prompt_tokens\":1,\"output_tokens\":1}}
{{\"arrival_ms\":0,\"prompt_tokens\":1,\"output_tokens\":1}}
{{\"arrival_ms\":0,\"model\":\"tiny\",\"prompt_tokens\":1,\"output_tokens\":1,\"hash_ids\":[-1]}}
{{\"skipped\":{nested}
"
        );
        let told = simulate(&config(), "a.jsonl", arrivals.as_bytes(), None).unwrap_err();
        let expected = [
            "a.jsonl:3: not JSON",
            "a.jsonl:4: must be an object",
            "a.jsonl:5: `arrival_ms` is missing",
            "a.jsonl:6: `arrival_ms` must be a number of milliseconds from 0",
            "a.jsonl:7: `prompt_tokens` must be a whole number from 1",
            "a.jsonl:8: `output_tokens` must be a whole number from 1 to 1073741824, but is \"many\"",
            "a.jsonl:9: there is no model `huge`; there are fixed, tiny, gpu",
            "a.jsonl:10: `model` is missing",
            "a.jsonl:11: `hash_ids` must be a list",
            "a.jsonl:12: nested too deeply",
        ];
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{told}");
        for (line, expected) in lines.iter().zip(expected) {
            assert!(line.starts_with(expected), "{line}\n{expected}");
        }
    }
}
