//! A benchmark from settings to exit code: the order of things, and nothing of how they are done.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use llmsim_engine::config::Source;
use llmsim_engine::seed::Seed;

use crate::args::{BenchArgs, Format};
use crate::clock::Clock;
use crate::compare::{self, ServerSide};
use crate::fetch::fetch;
use crate::http::url::Url;
use crate::plan::Load;
use crate::progress::{Live, Progress, Style};
use crate::report::json::Environment;
use crate::report::{Done, Measured, console, html, json, vllm};
use crate::result::{Level, Summary};
use crate::run::{Context, LevelSpec, measure, warm_up};
use crate::scrape;
use crate::selftest::{self, Stamp};
use crate::settings::{LevelSetting, Settings};
use crate::target::http::Client;
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
    let mut session = Session::new(settings);
    session.announce();
    let ran = session.levels(args.target.api_key.as_deref());
    // Whatever was finished is shown and saved, also if the rest was impossible or stopped.
    session.conclude()?;
    ran?;
    Ok(session.exit_code())
}

fn check_open_files(settings: &Settings) -> Result<(), String> {
    let limit = crate::os::raise_open_files();
    let most = settings.levels.iter().map(|level| in_flight(settings, level)).max().unwrap_or(1);
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
fn in_flight(settings: &Settings, level: &LevelSetting) -> u32 {
    if let Some(connections) = settings.connections {
        return connections;
    }
    let requests = level.extent.requests.unwrap_or(u32::MAX);
    match &level.load {
        Load::Closed { concurrency } => (*concurrency).min(requests),
        Load::Open { max_concurrency: Some(cap), .. } => (*cap).min(requests),
        Load::Open { arrivals, max_concurrency: None } => {
            // By Little's law so many are in flight if an answer takes two seconds.
            let by_rate = arrivals.target_rate().map_or(f64::from(requests), |rate| rate * 2.0);
            let rounded = by_rate.ceil().clamp(8.0, 1024.0);
            (rounded as u32).min(requests)
        }
    }
}

struct Session {
    settings: Settings,
    environment: Environment,
    stamp: Option<Stamp>,
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
        Self { settings, environment, stamp: None, done: Vec::new() }
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
        if let Some(sweep) = self.settings.sweep {
            println!("{}", console::sweep_columns(sweep));
        }
        let live = Arc::new(Live::default());
        let style = Style::for_stderr(self.settings.report.progress);
        let _progress = Progress::start(Clock::start(), Arc::clone(&live), style);
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
            let level = target.measure_until(workload, &spec, &live, crate::os::interrupted);
            live.end();
            let outcome = Ok(conclude_level(&self.settings, level, ServerSide::Skipped));
            let done = Done { setting, outcome };
            if let Some(sweep) = self.settings.sweep {
                println!("{}", console::sweep_row(sweep, &done));
            }
            self.done.push(done);
        }
        Ok(())
    }

    async fn http_levels(&mut self, api_key: Option<&str>) -> Result<(), String> {
        let clock = Clock::start();
        let live = Arc::new(Live::default());
        let settings = &self.settings;
        let client = Client::start(
            clock,
            &settings.url,
            settings.timeouts,
            settings.stamps,
            Arc::clone(&live),
        )?;
        let workload = Arc::new(settings.workload.clone());
        let context = Context { clock, client, workload, live: Arc::clone(&live) };
        if settings.selftest {
            self.stamp = self.selftest().await;
            if let (Some(stamp), true) = (&self.stamp, settings.sweep.is_some()) {
                println!("self-test: {}", stamp.line());
            }
        }
        if let Some(sweep) = self.settings.sweep {
            println!("{}", console::sweep_columns(sweep));
        }
        let style = Style::for_stderr(settings.report.progress);
        let _progress = Progress::start(clock, Arc::clone(&live), style);
        for (number, setting) in (0..).zip(settings.levels.clone()) {
            if crate::os::interrupted() {
                break;
            }
            let outcome = self.http_level(&context, number, &setting, api_key).await;
            context.live.end();
            let done = Done { setting, outcome };
            if let Some(sweep) = self.settings.sweep {
                println!("{}", console::sweep_row(sweep, &done));
            }
            self.done.push(done);
        }
        Ok(())
    }

    /// The client's own error under about this load; a failed self-test is no reason not to measure.
    async fn selftest(&self) -> Option<Stamp> {
        let settings = &self.settings;
        let streams = settings.levels.iter().map(|level| in_flight(settings, level)).max();
        let setup = selftest::Setup {
            // More tell nothing new about the client, and the test would take longer than the run.
            concurrency: streams.unwrap_or(8).clamp(8, 1024),
            tokens_per_second: 100.0,
            tokens: 50,
            stamps: settings.stamps,
        };
        match selftest::run(setup).await {
            Ok(stamp) => Some(stamp),
            Err(why) => {
                eprintln!("note: {why}");
                None
            }
        }
    }

    async fn http_level(
        &self,
        context: &Context,
        number: u32,
        setting: &LevelSetting,
        api_key: Option<&str>,
    ) -> Result<Measured, String> {
        let settings = &self.settings;
        let streams = in_flight(settings, setting);
        context.client.warm(streams).await;
        let at_once = match setting.load {
            Load::Closed { concurrency } => concurrency,
            Load::Open { max_concurrency, .. } => max_concurrency.unwrap_or(setting.warmup),
        };
        let warm = warm_up(context, number, setting.warmup, at_once.max(1)).await;
        if !warm.is_empty() && warm.iter().all(|record| !record.ok()) {
            return Err(warm_up_failed(&warm));
        }
        context.client.warm(streams).await;
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
        Ok(conclude_level(settings, level, server))
    }

    fn conclude(&self) -> Result<(), String> {
        let settings = &self.settings;
        let stamp = self.stamp.as_ref();
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
        if let Some(path) = &settings.report.output {
            let text = match settings.report.format {
                Format::Llmsim => json::render(settings, &self.environment, stamp, &self.done),
                Format::Vllm => vllm::render(settings, &self.environment, &self.done),
            };
            write_file("--output", path, &text)?;
        }
        if let Some(path) = &settings.report.html {
            let page = html::render(settings, &self.environment, stamp, &self.done);
            write_file("--html", path, &page)?;
        }
        Ok(())
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

fn conclude_level(settings: &Settings, level: Level, server: ServerSide) -> Measured {
    let summary = Summary::of(&level, settings.goals);
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
        let why = match fetch("POST", &reset, api_key) {
            Ok((200..=299, _)) => return Self::Summary(url.clone()),
            Ok((status, _)) => format!("{reset} answered {status}"),
            Err(why) => format!("{reset}: {why}"),
        };
        let metrics = url.with_path(url.path.trim_end_matches("/summary"));
        match read_metrics(&metrics, api_key, &settings.model) {
            Ok(before) => Self::Metrics(metrics, Box::new(before)),
            Err(_) => Self::NotAvailable(why),
        }
    }

    fn end(self, settings: &Settings, api_key: Option<&str>, lasted_s: f64) -> ServerSide {
        let model = &settings.model;
        let read = match &self {
            Self::Nothing => return ServerSide::Skipped,
            Self::NotAvailable(why) => Err(why.clone()),
            Self::Summary(url) => fetch("GET", url, api_key).and_then(|(status, body)| {
                if status != 200 {
                    return Err(format!("{url} answered {status}"));
                }
                compare::read_summary(&body, model)
            }),
            Self::Metrics(url, before) => {
                read_metrics(url, api_key, model).map(|after| after.since(before, lasted_s))
            }
        };
        match read {
            Ok(model) => ServerSide::Known(Box::new(model)),
            Err(why) => ServerSide::NotAvailable(why),
        }
    }
}

fn read_metrics(url: &Url, api_key: Option<&str>, model: &str) -> Result<scrape::Scrape, String> {
    let (status, body) = fetch("GET", url, api_key)?;
    if status != 200 {
        return Err(format!("{url} answered {status}"));
    }
    scrape::read(&String::from_utf8_lossy(&body), model)
}

fn warm_up_failed(records: &[crate::record::Record]) -> String {
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

fn write_file(option: &str, path: &std::path::Path, text: &str) -> Result<(), String> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .map_err(|error| format!("{option} {}: {error}", parent.display()))?;
    }
    std::fs::write(path, text).map_err(|error| format!("{option} {}: {error}", path.display()))
}
