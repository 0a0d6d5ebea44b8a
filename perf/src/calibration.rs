//! How far the presets are from what was measured on real engines.
//!
//! Every measured run with a known client (closed loops and static batches) is run again through
//! the simulated GPU in virtual time, with the preset that its engine, GPU and number format ask
//! for and nothing fitted to the run. The client's behaviour is part of it: the first `concurrency`
//! requests arrive together, each next one when one before it is done, lengths as published.
//!
//! What is not scored is said, with the reason and the number of rows: distributions of lengths that
//! are not published, open loops, and TTFT where a row says that it is not the first token's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use llmsim_engine::catalog::{
    self, Deployment, EngineClass, KvCacheDtype, Memory, ModelShape, WeightDtype,
};
use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::sim::scheduler::SchedulerSpec;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::{Engine, EngineSpec, Job, Verdict, What};
use llmsim_engine::units::{JobId, SimSpan, SimTime, Tokens};

/// `llmsim-perf calibration`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory with CSV files of measured runs; what their columns mean is in its README.
    #[arg(long, value_name = "DIR")]
    measured: PathBuf,
    /// Runs are cut to about this many output tokens; their burst and some rounds remain.
    #[arg(long, default_value_t = 400_000)]
    most_tokens: u64,
    /// Print each row.
    #[arg(long)]
    rows: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match score(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("llmsim-perf calibration: {message}");
            ExitCode::from(2)
        }
    }
}

fn score(args: &Args) -> Result<(), String> {
    let mut tables: BTreeMap<String, Errors> = BTreeMap::new();
    let mut all = Errors::default();
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    for row in read(&args.measured)? {
        let outcome = Run::of(&row).and_then(|run| {
            let simulated = run.simulate(args.most_tokens)?;
            Ok((run, simulated))
        });
        let (run, simulated) = match outcome {
            Ok(both) => both,
            Err(why) => {
                *left_out.entry(why).or_default() += 1;
                continue;
            }
        };
        let error = Error {
            tpot: off(simulated.tpot_ms, row.number("tpot_ms_mean").or(row.number("tpot_ms_p50"))),
            // A cut run has the burst, but not all that came after it.
            ttft: (row.text("ttft_ok") == "1" && simulated.is_whole)
                .then(|| row.number("ttft_ms_mean").or(row.number("ttft_ms_p50")))
                .and_then(|measured| off(simulated.ttft_ms, measured)),
            throughput: off(simulated.tokens_per_second, row.number("out_tok_s")),
        };
        if args.rows {
            println!(
                "{} {} {} at {}, {} in, {} out: {error}",
                row.text("id"),
                row.text("pair"),
                run.class.id,
                run.concurrency,
                run.input,
                run.output
            );
        }
        let table = tables.entry(run.class.id.to_owned()).or_default();
        table.add(&error);
        all.add(&error);
    }
    println!(
        "{:<28} {:>5}  {:>18} {:>18} {:>18}",
        "engine class", "rows", "TPOT median/p90", "TTFT median/p90", "tok/s median/p90"
    );
    for (class, errors) in &tables {
        println!("{class:<28} {errors}");
    }
    for (why, rows) in &left_out {
        println!("not scored: {rows} rows, {why}");
    }
    println!("{:<28} {all}", "all");
    Ok(())
}

/// Simulated over measured, less one.
fn off(simulated: f64, measured: Option<f64>) -> Option<f64> {
    measured.filter(|&measured| measured > 0.0).map(|measured| simulated / measured - 1.0)
}

struct Error {
    tpot: Option<f64>,
    ttft: Option<f64>,
    throughput: Option<f64>,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named = [("TPOT", self.tpot), ("TTFT", self.ttft), ("tok/s", self.throughput)];
        for (name, error) in named {
            if let Some(error) = error {
                write!(f, "{name} {:+.1}% ", error * 100.0)?;
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Errors {
    rows: usize,
    tpot: Vec<f64>,
    ttft: Vec<f64>,
    throughput: Vec<f64>,
}

impl Errors {
    fn add(&mut self, error: &Error) {
        self.rows += 1;
        self.tpot.extend(error.tpot);
        self.ttft.extend(error.ttft);
        self.throughput.extend(error.throughput);
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>5} ", self.rows)?;
        for errors in [&self.tpot, &self.ttft, &self.throughput] {
            let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs() * 100.0).collect();
            sizes.sort_by(f64::total_cmp);
            let text = match sizes.len() {
                0 => "-".to_owned(),
                n => format!("{:.1} / {:.1} %", sizes[n / 2], sizes[n * 9 / 10]),
            };
            write!(f, " {text:>18}")?;
        }
        Ok(())
    }
}

/// A measured run, as it can be run again.
struct Run {
    class: &'static EngineClass,
    spec: SchedulerSpec,
    overhead: SimSpan,
    concurrency: usize,
    requests: usize,
    input: f64,
    output: f64,
    /// Lengths are drawn evenly from this share of the nominal one up to all of it.
    shortest: f64,
}

/// What came of it.
struct Simulated {
    ttft_ms: f64,
    tpot_ms: f64,
    tokens_per_second: f64,
    is_whole: bool,
}

impl Run {
    fn of(row: &Row) -> Result<Self, String> {
        if row.text("suspect") == "1" {
            return Err("marked as contradicting its neighbours".to_owned());
        }
        let concurrency = row.number("concurrency").map_or(0, |number| number as usize);
        let load = row.text("load");
        let rounds = match load {
            "closed" => 10,
            "static-batch" => 1,
            _ => return Err(format!("load `{load}` is not built")),
        };
        let shortest = match row.text("len_dist") {
            "fixed" => 1.0,
            other => match other.strip_prefix("uniform:").and_then(|share| share.parse().ok()) {
                Some(share) => share,
                // One at a time, mean lengths are nearly as good as the lengths themselves.
                None if concurrency == 1 => 1.0,
                None => return Err("the lengths are not published".to_owned()),
            },
        };
        let (Some(input), Some(output)) = (row.number("isl"), row.number("osl")) else {
            return Err("the lengths are not published".to_owned());
        };
        if concurrency == 0 {
            return Err("the concurrency is not published".to_owned());
        }
        let model = catalog::model(row.text("model"))
            .map_err(|_| format!("model `{}` is not in the catalogue", row.text("model")))?;
        let gpu = catalog::gpu(row.text("gpu"))
            .map_err(|_| format!("GPU `{}` is not in the catalogue", row.text("gpu")))?;
        let class = preset(row, model, catalog::architecture(gpu).unwrap_or("any"));
        let longest = input + output;
        let batched = row.number("max_batched_tokens").unwrap_or(match load {
            // The whole batch is prefilled together.
            "static-batch" => input * concurrency as f64,
            _ => f64::from(gpu.default_limits().0.get()),
        });
        let memory = Memory {
            max_num_batched_tokens: Tokens::new(batched.max(1.0) as u32),
            max_num_seqs: concurrency as u32,
            ..Memory::default()
        };
        let deployment = Deployment {
            gpu,
            model,
            tensor_parallel_size: row.number("tp").map_or(1, |number| number as u32),
            weight_dtype: WeightDtype::parse(row.text("weight_dtype")).unwrap_or_default(),
            kv_cache_dtype: KvCacheDtype::parse(row.text("kv_dtype")).unwrap_or_default(),
            class,
            efficiency: class.efficiency,
            memory,
        };
        let plan = deployment
            .plan()
            .map_err(|problems| format!("{}: {}", row.text("pair"), problems[0].message))?;
        let spec = SchedulerSpec {
            max_num_batched_tokens: memory.max_num_batched_tokens,
            max_num_seqs: memory.max_num_seqs,
            block_size: memory.block_size,
            prefix_caching: false,
            ..SchedulerSpec::vllm(
                Tokens::new(longest as u32 + 16),
                plan.num_blocks,
                StepCost::Roofline(plan.cost),
            )
        };
        let requests = match row.number("num_requests") {
            Some(requests) if load == "closed" => requests as usize,
            _ => rounds * concurrency,
        };
        let overhead = class.request_overhead;
        Ok(Self { class, spec, overhead, concurrency, requests, input, output, shortest })
    }

    /// A client that keeps `concurrency` requests under way. Half of a request's overhead lies
    /// before the engine sees it, half after its tokens.
    fn simulate(&self, most_tokens: u64) -> Result<Simulated, String> {
        let affordable = (most_tokens as f64 / self.output) as usize;
        let requests = self.requests.min(affordable.max(3 * self.concurrency));
        let half = SimSpan::from_ns(self.overhead.as_ns() / 2);
        let mut client = Client {
            engine: EngineSpec::Scheduler(Box::new(self.spec.clone())).build(),
            lengths: Seed::new(42).generator(),
            run: self,
            half,
            arrivals: BTreeMap::new(),
            sent: Vec::new(),
        };
        for _ in 0..self.concurrency.min(requests) {
            client.send(SimTime::ZERO);
        }
        let mut events = Vec::new();
        let (mut ttft, mut tpot, mut tokens, mut end) = (0.0, 0.0, 0_u64, SimTime::ZERO);
        while let Some(now) = client.next() {
            client.arrive(now)?;
            if client.engine.deadline().is_none_or(|due| due > now) {
                continue;
            }
            client.engine.advance(now, &mut events);
            for event in events.drain(..) {
                let What::Token { index, finish } = event.what else { continue };
                let request = &mut client.sent[event.job.0 as usize];
                if index == Tokens::new(1) {
                    request.first = event.at;
                }
                if finish.is_none() {
                    continue;
                }
                let gaps = f64::from(index.get().max(2) - 1);
                ttft += (request.first + half - request.at).as_secs_f64();
                tpot += (event.at - request.first).as_secs_f64() / gaps;
                tokens += u64::from(index.get());
                end = event.at + half;
                if client.sent.len() < requests {
                    client.send(end);
                }
            }
        }
        let count = client.sent.len() as f64;
        Ok(Simulated {
            ttft_ms: ttft / count * 1e3,
            tpot_ms: tpot / count * 1e3,
            tokens_per_second: tokens as f64 / end.saturating_since(SimTime::ZERO).as_secs_f64(),
            is_whole: requests == self.requests,
        })
    }
}

struct Client<'a> {
    engine: Engine,
    lengths: Generator,
    run: &'a Run,
    half: SimSpan,
    /// On their way to the engine, by when they reach it.
    arrivals: BTreeMap<(SimTime, JobId), Job>,
    sent: Vec<Sent>,
}

struct Sent {
    at: SimTime,
    first: SimTime,
}

impl Client<'_> {
    fn send(&mut self, at: SimTime) {
        let id = JobId(self.sent.len() as u64);
        let (input, output) = (self.length(self.run.input), self.length(self.run.output));
        self.sent.push(Sent { at, first: at });
        let job = Job {
            id,
            prompt: input,
            max_tokens: output,
            stop_after: None,
            priority: 0,
            chain: None,
        };
        self.arrivals.insert((at + self.half, id), job);
    }

    fn length(&mut self, nominal: f64) -> Tokens {
        let share = self.run.shortest + (1.0 - self.run.shortest) * self.lengths.unit();
        Tokens::new((nominal * share).round().max(1.0) as u32)
    }

    /// When something happens next.
    fn next(&self) -> Option<SimTime> {
        let arrival = self.arrivals.keys().next().map(|&(at, _)| at);
        [self.engine.deadline(), arrival].into_iter().flatten().min()
    }

    fn arrive(&mut self, now: SimTime) -> Result<(), String> {
        while let Some(entry) = self.arrivals.first_entry() {
            if entry.key().0 > now {
                break;
            }
            if let Verdict::Refused(why) = self.engine.submit(now, entry.remove()) {
                return Err(format!("a request is refused: {}", why.as_str()));
            }
        }
        Ok(())
    }
}

/// The class that was fitted for this engine, GPU and format, or else `generic`.
fn preset(row: &Row, model: &ModelShape, architecture: &str) -> &'static EngineClass {
    let weights = match row.text("weight_dtype") {
        "fp16" => "bf16",
        other => other,
    };
    let models = if model.experts > 0 { "moe" } else { "dense" };
    let version = row.text("engine_version");
    let is_v0 = ["0.7", "2023", "2024"].iter().any(|old| version.starts_with(old));
    let family = match row.text("engine") {
        "vllm" if is_v0 => "vllm-v0",
        other => other,
    };
    catalog::engine_classes()
        .iter()
        .find(|class| {
            let scope = class.scope;
            scope.family == family
                && architecture.starts_with(scope.architecture)
                && scope.weights == weights
                && scope.models == models
        })
        .unwrap_or(EngineClass::generic())
}

/// A row of a CSV file with a header.
struct Row {
    cells: BTreeMap<String, String>,
}

impl Row {
    fn text(&self, column: &str) -> &str {
        self.cells.get(column).map_or("", String::as_str)
    }

    fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// The rows of all CSV files with a `pair` column in a directory.
fn read(directory: &Path) -> Result<Vec<Row>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut lines = text.lines();
        let columns = cells(lines.next().unwrap_or(""));
        if !columns.iter().any(|column| column == "pair") {
            continue;
        }
        rows.extend(
            lines
                .filter(|line| !line.is_empty())
                .map(|line| Row { cells: columns.iter().cloned().zip(cells(line)).collect() }),
        );
    }
    if rows.is_empty() {
        return Err(format!("{}: no CSV file with measured runs", directory.display()));
    }
    Ok(rows)
}

/// The cells of a line of CSV: quotes protect commas, two quotes are one.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(letter) = chars.next() {
        match letter {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                push(&mut cells, '"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => push(&mut cells, other),
        }
    }
    cells
}

fn push(cells: &mut [String], letter: char) {
    cells.last_mut().expect("there is always a cell").push(letter);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_cells_keep_their_commas() {
        assert_eq!(cells(r#"a,"b, ""c""",,d"#), ["a", "b, \"c\"", "", "d"]);
        assert_eq!(cells(""), [""]);
    }

    fn row(text: &str) -> Row {
        let cells = text
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Row { cells }
    }

    const QWEN: &str = "pair=q model=qwen3-14b gpu=h100-80gb-sxm tp=1 engine=vllm \
         engine_version=0.20 weight_dtype=bf16 kv_dtype=auto len_dist=fixed ttft_ok=1";

    #[test]
    fn one_request_at_a_time_takes_prefill_and_decode_steps() {
        let row = row(&format!("{QWEN} load=closed concurrency=1 num_requests=3 isl=1100 osl=11"));
        let run = Run::of(&row).unwrap();
        assert_eq!(run.class.id, "vllm-v1-hopper-bf16");
        let simulated = run.simulate(1_000_000).unwrap();
        // Worked out in the cost model's tests: a decode step takes 10.74 ms; a prefill of 1,032
        // tokens 45.4 ms, of 1,100 some 3 ms more; and 25 ms of overhead per request.
        assert!((10.7..10.8).contains(&simulated.tpot_ms), "{}", simulated.tpot_ms);
        assert!((72.0..76.0).contains(&simulated.ttft_ms), "{}", simulated.ttft_ms);
        // 11 tokens in 73.5 + 10 x 10.74 ms.
        let rate = 11.0 / (simulated.ttft_ms + 10.0 * simulated.tpot_ms) * 1e3;
        assert!((simulated.tokens_per_second / rate - 1.0).abs() < 0.01);
        assert!(simulated.is_whole);
    }

    #[test]
    fn engines_that_nobody_fitted_get_the_generic_class() {
        for (engine, gpu, expected) in [
            ("vllm", "b200", "generic"),
            ("tgi", "h100-80gb-sxm", "generic"),
            ("sglang", "h200", "sglang-hopper-bf16"),
        ] {
            let text = QWEN.replace("engine=vllm", &format!("engine={engine}"));
            let text = text.replace("gpu=h100-80gb-sxm", &format!("gpu={gpu}"));
            let row = row(&format!("{text} load=closed concurrency=1 isl=10 osl=2"));
            assert_eq!(Run::of(&row).unwrap().class.id, expected, "{engine} on {gpu}");
        }
    }

    #[test]
    fn what_cannot_be_run_again_says_why() {
        let open = row(&format!("{QWEN} load=open-poisson concurrency=1 isl=10 osl=2"));
        assert_eq!(Run::of(&open).err().unwrap(), "load `open-poisson` is not built");
        let unknown = QWEN.replace("qwen3-14b", "gpt-9");
        let unknown = row(&format!("{unknown} load=closed concurrency=1 isl=10 osl=2"));
        assert_eq!(Run::of(&unknown).err().unwrap(), "model `gpt-9` is not in the catalogue");
    }
}
