//! A benchmark from settings to exit code: the order of things, and nothing of how they are done.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use llmsim_engine::config::Source;
use llmsim_engine::seed::Seed;
use llmsim_engine::units::SimSpan;

use crate::args::{BenchArgs, Format};
use crate::clock::Clock;
use crate::combinations;
use crate::compare::{self, ServerSide};
use crate::fetch::{Access, fetch};
use crate::http::url::Url;
use crate::plan::Load;
use crate::progress::{Live, Progress, Style};
use crate::record::Record;
use crate::report::json::Environment;
use crate::report::{Done, Measured, console, html, json, vllm};
use crate::result::{Level, Summary};
use crate::run::{Context, LevelSpec, measure, warm_up};
use crate::scrape;
use crate::selftest::{self, Stamp};
use crate::settings::{LevelSetting, Settings, Sweep};
use crate::target::http::{Client, Texts};
use crate::target::simulated::Simulated;

/// Runs what `args` ask for.
///
/// # Errors
/// A sentence if nothing could be run.
pub fn run(args: &BenchArgs) -> Result<ExitCode, String> {
    let settings = Settings::resolve(args)?;
    if let Some(cpus) = &settings.cpus {
        crate::os::use_cpus(cpus)?;
    }
    crate::os::catch_interrupts();
    check_open_files(&settings)?;
    check_outputs(&settings)?;
    if let (Some(note), false) = (combinations::unused_in_virtual_time(args), settings.report.quiet)
    {
        eprintln!("note: {note}");
    }
    let mut session = Session::new(settings);
    session.announce();
    let ran = session.levels(args.target.api_key.as_deref());
    // Whatever was finished is shown and saved, also if the rest was impossible or stopped.
    session.conclude()?;
    ran?;
    Ok(session.exit_code())
}

/// Tries the files of the report before the run: an hour of measurement must not end at a folder
/// that cannot be written.
fn check_outputs(settings: &Settings) -> Result<(), String> {
    let report = &settings.report;
    for (option, path) in [("--output", &report.output), ("--html", &report.html)] {
        let Some(path) = path else { continue };
        let existed = path.exists();
        open_for_writing(option, path, Mode::Append)?;
        if !existed {
            // Best effort: an empty file is no harm.
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

fn check_open_files(settings: &Settings) -> Result<(), String> {
    let limit = crate::os::raise_open_files();
    let most = settings.levels.iter().map(|level| connections(settings, level)).max().unwrap_or(1);
    if u64::from(most) + 32 > limit && settings.simulate.is_none() {
        return Err(format!(
            "{most} connections need more open files than this shell allows ({limit}); \
             `ulimit -n {}` first",
            u64::from(most) + 64
        ));
    }
    Ok(())
}

/// Connections that a level wants open before it starts.
fn connections(settings: &Settings, level: &LevelSetting) -> u32 {
    // Nothing is known of the target yet: two seconds per answer.
    settings.connections.unwrap_or_else(|| in_flight(level, SimSpan::from_ms(2000)))
}

/// Requests that a level will have in flight if an answer takes so long.
fn in_flight(level: &LevelSetting, answer: SimSpan) -> u32 {
    let requests = level.extent.requests.unwrap_or(u32::MAX);
    let most = match &level.load {
        Load::Closed { concurrency } => return (*concurrency).min(requests),
        Load::Open { max_concurrency, .. } => max_concurrency.unwrap_or(u32::MAX).min(requests),
    };
    let Load::Open { arrivals, .. } = &level.load else { return most };
    // Little's law.
    let by_rate = arrivals.peak_rate().map_or(f64::from(most), |rate| rate * answer.as_secs_f64());
    (by_rate.ceil().clamp(8.0, 1024.0) as u32).min(most)
}

struct Session {
    settings: Settings,
    environment: Environment,
    /// The client's own error, once it has been looked for.
    selftest: Option<Option<Stamp>>,
    done: Vec<Done>,
}

impl Session {
    fn new(settings: Settings) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let environment = Environment {
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: kernel.trim().to_owned(),
            io_driver: "none".into(),
            started_unix_s: since.as_secs(),
        };
        Self { settings, environment, selftest: None, done: Vec::new() }
    }

    fn announce(&self) {
        let settings = &self.settings;
        match settings.sweep {
            Some(sweep) => println!("{}", console::sweep_heading(settings, sweep)),
            None => {
                for level in &settings.levels {
                    println!("{}", console::heading(settings, level, None));
                }
            }
        }
    }

    fn levels(&mut self, api_key: Option<&str>) -> Result<(), String> {
        if let Some((models, responses)) = self.settings.simulate.clone() {
            return self.simulated_levels(&models, &responses);
        }
        let driver = self.settings.io_driver;
        crate::runtime::block_on(driver, async |driver| {
            driver.clone_into(&mut self.environment.io_driver);
            self.http_levels(api_key).await
        })?
    }

    fn simulated_levels(&mut self, models: &str, responses: &str) -> Result<(), String> {
        let source = |option: &str, name: &str| {
            llmsim_defaults::read(name)
                .map(|file| Source::new(file.name, file.text))
                .map_err(|error| format!("{option}: {error}"))
        };
        let models = source("--simulate", models)?;
        let responses = source("--simulate-responses", responses)?;
        let target = Simulated::new(&models, &responses, &self.settings.model)?;
        let live = Arc::new(Live::default());
        let style = Style::for_stderr(self.settings.report.progress);
        let progress = Progress::start(Clock::start(), Arc::clone(&live), style);
        if let Some(sweep) = self.settings.sweep {
            progress.print(&console::sweep_columns(&self.settings, sweep));
        }
        for (number, setting) in (0..).zip(self.settings.levels.clone()) {
            if crate::os::interrupted() {
                break;
            }
            let spec = LevelSpec {
                number,
                load: setting.load.clone(),
                extent: setting.extent,
                seed: Seed::new(self.settings.seed),
            };
            let workload = &self.settings.workload;
            live.title(&self.title(&setting));
            let level = target.measure_until(workload, &spec, &live, crate::os::interrupted);
            live.end();
            let outcome = Ok(conclude_level(&self.settings, None, level, ServerSide::Skipped));
            let done = Done { setting, outcome };
            if let Some(sweep) = self.settings.sweep {
                progress.print(&console::sweep_row(&self.settings, sweep, &done));
            }
            self.done.push(done);
        }
        Ok(())
    }

    /// What stands before the figures of a level while it runs.
    fn title(&self, setting: &LevelSetting) -> String {
        match self.settings.sweep {
            Some(Sweep::Concurrency) => format!("concurrency {}", setting.name),
            Some(Sweep::Rate) => format!("rate {}", setting.name),
            None => String::new(),
        }
    }

    async fn http_levels(&mut self, api_key: Option<&str>) -> Result<(), String> {
        let clock = Clock::start();
        let live = Arc::new(Live::default());
        let settings = &self.settings;
        let report = &settings.report;
        let texts = match report.format == Format::Vllm && report.detailed {
            true => Texts::Keep,
            false => Texts::Drop,
        };
        let client = Client::start(
            clock,
            &settings.url,
            settings.timeouts,
            settings.stamps,
            texts,
            Arc::clone(&live),
            &settings.trust,
        )?;
        let workload = Arc::new(settings.workload.clone());
        let context = Context { clock, client, workload, live: Arc::clone(&live) };
        let style = Style::for_stderr(settings.report.progress);
        let progress = Progress::start(clock, Arc::clone(&live), style);
        for (number, setting) in (0..).zip(settings.levels.clone()) {
            if crate::os::interrupted() {
                break;
            }
            live.title("warm-up");
            let warm = self.warm(&context, number, &setting).await;
            if number == 0 {
                if let (Ok(records), true) = (&warm, self.settings.selftest) {
                    live.title("self-test of this client");
                    self.selftest(records, &progress).await;
                }
                if let Some(sweep) = self.settings.sweep {
                    progress.print(&console::sweep_columns(&self.settings, sweep));
                }
            }
            live.title(&self.title(&setting));
            let outcome = match warm {
                Ok(_) => Ok(self.http_level(&context, number, &setting, api_key).await),
                Err(why) => Err(why),
            };
            live.end();
            let done = Done { setting, outcome };
            if let Some(sweep) = self.settings.sweep {
                progress.print(&console::sweep_row(&self.settings, sweep, &done));
            }
            self.done.push(done);
        }
        Ok(())
    }

    fn stamp(&self) -> Option<&Stamp> {
        self.selftest.as_ref()?.as_ref()
    }

    /// The client's own error at the streams and the chunk rate that the level with most of them
    /// will have, going by the warm-up. A failed self-test is no reason not to measure.
    async fn selftest(&mut self, warm: &[Record], progress: &Progress) {
        let settings = &self.settings;
        let pace = Pace::of(warm);
        let streams = settings.levels.iter().map(|level| in_flight(level, pace.answer)).max();
        let setup = selftest::Setup::like(streams.unwrap_or(1), pace.gap, settings.stamps);
        let stamp = selftest::run(setup).await;
        let stamp = stamp.inspect_err(|why| progress.note(&format!("note: {why}"))).ok();
        if let (Some(stamp), true) = (&stamp, settings.sweep.is_some()) {
            progress.print(&format!("self-test: {}", stamp.line()));
        }
        self.selftest = Some(stamp);
    }

    /// Opens connections and sends the unmeasured requests.
    async fn warm(
        &self,
        context: &Context,
        number: u32,
        setting: &LevelSetting,
    ) -> Result<Vec<Record>, String> {
        let streams = connections(&self.settings, setting);
        context.client.warm(streams).await;
        let at_once = match setting.load {
            Load::Closed { concurrency } => concurrency,
            Load::Open { max_concurrency, .. } => max_concurrency.unwrap_or(setting.warmup),
        };
        let warm = warm_up(context, number, setting.warmup, at_once.max(1)).await;
        if crate::os::interrupted() {
            return Err("stopped during the warm-up: nothing was measured".into());
        }
        if !warm.is_empty() && warm.iter().all(|record| !record.ok()) {
            return Err(warm_up_failed(&warm));
        }
        Ok(warm)
    }

    async fn http_level(
        &self,
        context: &Context,
        number: u32,
        setting: &LevelSetting,
        api_key: Option<&str>,
    ) -> Measured {
        let settings = &self.settings;
        context.client.warm(connections(settings, setting)).await;
        let watched = Watched::begin(settings, api_key);
        let spec = LevelSpec {
            number,
            load: setting.load.clone(),
            extent: setting.extent,
            seed: Seed::new(settings.seed),
        };
        let level = measure(context, &spec).await;
        let lasted = level.ended.saturating_since(level.began).as_secs_f64();
        let server = watched.end(settings, api_key, lasted);
        conclude_level(settings, self.stamp(), level, server)
    }

    fn conclude(&self) -> Result<(), String> {
        let settings = &self.settings;
        let stamp = self.stamp();
        if settings.sweep.is_none() {
            for done in &self.done {
                match &done.outcome {
                    Ok(measured) => print!("{}", console::level(settings, measured, stamp)),
                    Err(why) => eprintln!("error: {why}"),
                }
            }
        } else {
            for done in &self.done {
                let Ok(measured) = &done.outcome else { continue };
                for warning in &measured.summary.warnings {
                    println!("warning: {}: {warning}", done.setting.name);
                }
            }
        }
        // One that cannot be written is no reason to lose the other.
        let mut problems = Vec::new();
        if let Some(path) = &settings.report.output {
            let text = match settings.report.format {
                Format::Llmsim => json::render(settings, &self.environment, stamp, &self.done),
                Format::Vllm => vllm::render(settings, &self.environment, &self.done),
            };
            let mode = if settings.report.append { Mode::Append } else { Mode::Replace };
            problems.extend(write_file("--output", path, mode, &text).err());
        }
        if let Some(path) = &settings.report.html {
            let page = html::render(settings, &self.environment, stamp, &self.done);
            problems.extend(write_file("--html", path, Mode::Replace, &page).err());
        }
        if problems.is_empty() { Ok(()) } else { Err(problems.join("\nerror: ")) }
    }

    fn exit_code(&self) -> ExitCode {
        if crate::os::interrupted() {
            return ExitCode::from(130);
        }
        let failed = |done: &Done| match &done.outcome {
            Ok(measured) => measured.summary.all_failed(),
            Err(_) => true,
        };
        if self.done.iter().all(failed) { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

/// What warm-up tells about the answers to come.
struct Pace {
    /// Mean time of an answer.
    answer: SimSpan,
    /// Mean gap between its chunks; `None` if no answer had two.
    gap: Option<SimSpan>,
}

impl Pace {
    fn of(records: &[Record]) -> Self {
        let ok: Vec<&Record> = records.iter().filter(|record| record.ok()).collect();
        let mean = |total: u64, count: u64| (count > 0).then(|| SimSpan::from_ns(total / count));
        let took = |r: &&Record| r.end.saturating_since(r.sent.unwrap_or(r.scheduled)).as_ns();
        let output = |r: &&Record| Some(r.output.last?.saturating_since(r.output.first?).as_ns());
        let gaps = ok.iter().map(|r| u64::from(r.output.chunks.saturating_sub(1))).sum();
        Self {
            // As before anything is known.
            answer: mean(ok.iter().map(took).sum(), ok.len() as u64)
                .unwrap_or(SimSpan::from_ms(2000)),
            gap: mean(ok.iter().filter_map(output).sum(), gaps),
        }
    }
}

/// A run with this many times the chunks per second of the self-test is not covered by it.
const COVERED: f64 = 1.5;

fn conclude_level(
    settings: &Settings,
    stamp: Option<&Stamp>,
    level: Level,
    server: ServerSide,
) -> Measured {
    let mut summary = Summary::of(&level, settings.goals);
    if let Some(stamp) = stamp.filter(|stamp| summary.chunks_per_s > COVERED * stamp.chunks_per_s) {
        summary.warnings.push(format!(
            "the self-test ran at {:.0} chunks/s, this run at {:.0}: the client may add more than \
             it tells; `llmsim-bench selftest` measures it at any rate",
            stamp.chunks_per_s, summary.chunks_per_s
        ));
    }
    let joined = compare::delivery_per_request(&level.records);
    Measured { summary, server, joined, began: level.began, records: level.records }
}

/// Where the server's side of a level comes from.
enum Watched {
    Nothing,
    NotAvailable(String),
    /// llmsimulator's summary was reset.
    Summary(Url),
    /// vLLM's metrics were read.
    Metrics(Url, Box<scrape::Scrape>),
}

impl Watched {
    fn begin(settings: &Settings, api_key: Option<&str>) -> Self {
        let Some(url) = &settings.server_metrics else { return Self::Nothing };
        let reset = url.with_path(&format!("{}/reset", url.path));
        let how = Access { api_key, trust: &settings.trust };
        let why = match fetch("POST", &reset, how) {
            Ok((200..=299, _)) => return Self::Summary(url.clone()),
            Ok((status, _)) => format!("{reset} answered {status}"),
            Err(why) => format!("{reset}: {why}"),
        };
        let metrics = url.with_path(url.path.trim_end_matches("/summary"));
        match read_metrics(&metrics, how, &settings.model) {
            Ok(before) => Self::Metrics(metrics, Box::new(before)),
            Err(_) => Self::NotAvailable(why),
        }
    }

    fn end(self, settings: &Settings, api_key: Option<&str>, lasted_s: f64) -> ServerSide {
        let model = &settings.model;
        let how = Access { api_key, trust: &settings.trust };
        let read = match &self {
            Self::Nothing => return ServerSide::Skipped,
            Self::NotAvailable(why) => Err(why.clone()),
            Self::Summary(url) => fetch("GET", url, how).and_then(|(status, body)| {
                if status != 200 {
                    return Err(format!("{url} answered {status}"));
                }
                compare::read_summary(&body, model)
            }),
            Self::Metrics(url, before) => {
                read_metrics(url, how, model).map(|after| after.since(before, lasted_s))
            }
        };
        match read {
            Ok(model) => ServerSide::Known(Box::new(model)),
            Err(why) => ServerSide::NotAvailable(why),
        }
    }
}

fn read_metrics(url: &Url, how: Access<'_>, model: &str) -> Result<scrape::Scrape, String> {
    let (status, body) = fetch("GET", url, how)?;
    if status != 200 {
        return Err(format!("{url} answered {status}"));
    }
    scrape::read(&String::from_utf8_lossy(&body), model)
}

fn warm_up_failed(records: &[Record]) -> String {
    let why = records.iter().find_map(|record| match &record.outcome {
        crate::record::Outcome::Failed(failure) => {
            Some(format!("{}: {}", failure.class.label(), failure.detail))
        }
        _ => None,
    });
    format!(
        "all {} warm-up requests failed, so nothing was measured: {}",
        records.len(),
        why.unwrap_or_else(|| "stopped".into())
    )
}

/// What becomes of a file that is there already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Replace,
    /// Its lines stay, as with vLLM's `--append-result`.
    Append,
}

fn write_file(option: &str, path: &Path, mode: Mode, text: &str) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{option} {}: {error}", path.display());
    let mut file = open_for_writing(option, path, mode)?;
    if mode == Mode::Append && !ends_a_line(&mut file).map_err(told)? {
        file.write_all(b"\n").map_err(told)?;
    }
    file.write_all(text.as_bytes()).map_err(told)
}

/// True if what is appended begins a line; vLLM's own files end without a line feed.
fn ends_a_line(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

fn open_for_writing(option: &str, path: &Path, mode: Mode) -> Result<File, String> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .map_err(|error| format!("{option} {}: {error}", parent.display()))?;
    }
    let mut options = File::options();
    options.create(true);
    match mode {
        Mode::Replace => options.write(true).truncate(true),
        Mode::Append => options.read(true).append(true),
    };
    options.open(path).map_err(|error| format!("{option} {}: {error}", path.display()))
}
