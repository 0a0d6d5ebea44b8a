//! Failures on purpose under load: five hundred connections, of whose requests one in five meets a
//! fault of every kind in turn, beside simulated GPUs that slow down, pause, shrink, preempt and
//! crash.
//!
//! What befalls a request is predicted, request by request, by the function of the engine that the
//! server decides with; each must end in one of the ways that its fault allows, to the byte. Its
//! verdict is on ends, counters and leaks, which no busy machine disturbs. Beside it: the token lag
//! of the streams that nothing befalls, in the parts of the run with faults and in those without,
//! in turns.
//!
//! Predicted: a fault costs what the request's own end costs, and a new connection, 15 us; so p50
//! and p99 of the others stay as they are.

mod client;
mod plan;
mod ways;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::client::{Judged, Load};
use self::plan::{Plan, SICK, WELL, Window};
use self::ways::{Form, Reference, References, Surface};
use crate::drain::Arrival;
use crate::report::{Cell, Keep, Reporter, Table};
use crate::sample;
use crate::sys;
use crate::target::{Target, connect, server_binary};
use crate::timeline::percentile;

/// `llmsim-perf faults`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Requests under way at once.
    #[arg(long, default_value_t = 500)]
    streams: usize,
    /// How long.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Part of the requests that something befalls, from 0 to 1, while it may.
    #[arg(long, default_value_t = 0.2)]
    share: f64,
    /// Decides which requests are sent and what befalls them.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Output tokens of each answer.
    #[arg(long, default_value_t = 100)]
    tokens: u32,
    /// Step time in milliseconds.
    #[arg(long, default_value_t = 20)]
    step_ms: u64,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: PathBuf,
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok((reporter, complaints)) => {
            let kept = reporter.finish("faults", Keep::asked(args.save));
            for complaint in &complaints {
                eprintln!("llmsim-perf faults: {complaint}");
            }
            if complaints.is_empty() { kept } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("llmsim-perf faults: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Pieces into which the time is cut, in turns without and with faults.
const PHASES: u64 = 10;

/// Tokens after which every fault in a stream has struck.
const LEAST_TOKENS: u32 = 20;

fn measure(args: &Args) -> io::Result<(Reporter, Vec<String>)> {
    if args.tokens < LEAST_TOKENS || !(0.0..=1.0).contains(&args.share) {
        let message = format!("give at least {LEAST_TOKENS} tokens, and a share from 0 to 1");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    sys::raise_open_files();
    let mut reporter = Reporter::new("Failures on purpose under load");
    let time_s = args.minutes * 60.0;
    let phase_s = time_s / PHASES as f64;
    // In the middle of each part with faults; the server begins to count a moment before us.
    let windows: Vec<Window> = (0..PHASES / 2)
        .map(|pair| (2 * pair + 1) as f64 * phase_s)
        .map(|from| (from + 0.3 * phase_s, from + 0.9 * phase_s))
        .collect();
    let mut plan = Plan::new(args.seed, args.share, args.tokens, &windows)?;
    let models = plan::models_yml(args.step_ms);
    // From a server of their own: the timeline of the other begins when it starts.
    let references = references(&Target::start(&args.server, &models, &[])?, args)?;
    let file = std::env::temp_dir().join(format!("llmsim-perf-faults-{}.yml", std::process::id()));
    std::fs::write(&file, &plan.yml)?;
    let extra = ["--faults".to_owned(), file.display().to_string()];
    let started = Target::start(&args.server, &models, &extra);
    let _ = std::fs::remove_file(&file);
    let target = started?;
    let load = Load {
        streams: args.streams,
        time_ns: (time_s * 1e9) as u64,
        phase_ns: (phase_s * 1e9) as u64,
    };
    let mut memory: Vec<(f64, u64)> = Vec::new();
    let mut unseen = None;
    let mut tick = |part: f64| match sys::resident_bytes(target.pid()) {
        Ok(bytes) => memory.push((part, bytes)),
        Err(error) => unseen = Some(error),
    };
    let judged = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            sys::pin(sample::CLIENT_CPU);
            client::run(target.address, &load, &mut plan, &references, &mut tick)
        });
        client.join().expect("the client does not panic")
    })?;
    if let Some(error) = unseen {
        return Err(error);
    }
    let left = Left::wait(target.address)?;
    let mut complaints: Vec<String> = judged.complaints.clone();
    if judged.wrong > complaints.len() as u64 {
        complaints.push(format!("and {} more", judged.wrong - complaints.len() as u64));
    }

    reporter.table(ends(args, &plan, &judged, &left.metrics, &mut complaints));
    reporter.table(counters(&judged, &left.metrics, &mut complaints));
    reporter.table(leaks(&left, &memory, judged.requests, &mut complaints));
    reporter.table(lags(args, &judged, &load));
    Ok((reporter, complaints))
}

/// Answers that nothing befalls, of each model and surface, all at once.
fn references(target: &Target, args: &Args) -> io::Result<References> {
    let ask = |is_sick: bool, surface: Surface, form: Form| {
        let body = surface.body(plan::model(is_sick), "reference", form, args.tokens);
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: perf\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            surface.path(),
            body.len()
        );
        exchange(target.address, &request)
    };
    let both = |is_sick: bool, surface: Surface| {
        let stream = ask(is_sick, surface, Form::Stream)?;
        let whole = ask(is_sick, surface, Form::Whole)?;
        let reference = Reference::new(surface, args.tokens, &stream, &whole);
        Ok((is_sick, reference.map_err(io::Error::other)?))
    };
    let each = [false, true].into_iter().flat_map(|sick| Surface::ALL.map(|one| (sick, one)));
    let all: io::Result<Vec<(bool, Reference)>> = std::thread::scope(|scope| {
        let both = &both;
        let threads: Vec<_> =
            each.map(|(sick, surface)| scope.spawn(move || both(sick, surface))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("asking does not panic")
        };
        threads.into_iter().map(join).collect()
    });
    Ok(References(all?))
}

/// Everything that comes for a request on a connection of its own.
fn exchange(address: SocketAddr, request: &str) -> io::Result<Vec<u8>> {
    let mut socket = connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    socket.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What `/metrics` says.
struct Metrics(Vec<(String, f64)>);

impl Metrics {
    fn ask(address: SocketAddr) -> io::Result<Self> {
        let request = "GET /metrics HTTP/1.1\r\nhost: perf\r\nconnection: close\r\n\r\n";
        let text = String::from_utf8_lossy(&exchange(address, request)?).into_owned();
        let samples = text.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(Self(samples.collect()))
    }

    /// The sum of a family's samples that have all of these labels.
    fn sum(&self, family: &str, labels: &[(&str, &str)]) -> u64 {
        let has =
            |name: &str, (key, value): &(&str, &str)| name.contains(&format!("{key}=\"{value}\""));
        let samples = self.0.iter().filter(|(name, _)| {
            name.split('{').next() == Some(family) && labels.iter().all(|label| has(name, label))
        });
        samples.map(|(_, value)| *value).sum::<f64>() as u64
    }
}

/// What must be zero when all is over.
const GAUGES: [&str; 5] = [
    "llm_sim_requests_running",
    "llm_sim_scheduler_running_requests",
    "llm_sim_scheduler_waiting_requests",
    "llm_sim_kv_cache_used_blocks",
    "llm_sim_open_connections",
];

/// What is left when all requests have ended.
struct Left {
    metrics: Metrics,
    gauges: Vec<(&'static str, u64)>,
}

impl Left {
    /// Looks until nothing is left, for ten seconds at most.
    fn wait(address: SocketAddr) -> io::Result<Self> {
        let start = Instant::now();
        loop {
            let metrics = Metrics::ask(address)?;
            let value = |gauge: &'static str| {
                // The one that asks.
                let own = u64::from(gauge == "llm_sim_open_connections");
                (gauge, metrics.sum(gauge, &[]).saturating_sub(own))
            };
            let gauges: Vec<_> = GAUGES.into_iter().map(value).collect();
            let is_clean = gauges.iter().all(|(_, value)| *value == 0);
            if is_clean || start.elapsed() > Duration::from_secs(10) {
                return Ok(Self { metrics, gauges });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Each rule: how often it struck as the client saw it, and as the server counted by kind.
fn ends(
    args: &Args,
    plan: &Plan,
    judged: &Judged,
    metrics: &Metrics,
    complaints: &mut Vec<String>,
) -> Table {
    let may_be_hit = judged.requests as f64 / 2.0;
    let title = format!(
        "{} requests at once for {} minutes, {} in all, {} struck ({:.0} % of those that could \
         be), {} that ended in no way that they may; by rule",
        args.streams,
        args.minutes,
        judged.requests,
        judged.hit,
        100.0 * judged.hit as f64 / may_be_hit.max(1.0),
        judged.wrong
    );
    let columns = ["fault", "seen by the client", "of the kind", "counted by the server"];
    let mut table = Table::new(title, &columns);
    let mut by_kind: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (place, rule) in plan.of_requests() {
        let seen = judged.strikes.get(&place).copied().unwrap_or(0);
        *by_kind.entry(rule.fault.kind()).or_default() += seen;
    }
    let counted = |kind: &str, model: &str| {
        metrics.sum("llm_sim_faults_total", &[("kind", kind), ("model", model)])
    };
    for (place, rule) in plan.of_requests() {
        let seen = judged.strikes.get(&place).copied().unwrap_or(0);
        let kind = rule.fault.kind();
        let words = rule.text.split(" p=").next().and_then(|text| text.split(" key=").next());
        table.row(vec![
            words.unwrap_or_default().into(),
            seen.into(),
            by_kind[kind].into(),
            counted(kind, WELL).into(),
        ]);
    }
    for (kind, seen) in &by_kind {
        let counted = counted(kind, WELL);
        if counted != *seen {
            complaints.push(format!("{kind}: the client saw {seen}, the server counted {counted}"));
        }
        // Of ten that are expected, none comes in one run of twenty thousand.
        if *seen == 0 && plan.probability * may_be_hit * 0.7 > 10.0 {
            complaints.push(format!("{kind}: it never struck"));
        }
    }
    for (kind, planned) in plan.disturbances() {
        let counted = counted(kind, SICK);
        if counted != planned {
            complaints.push(format!("{kind}: {planned} planned, the server counted {counted}"));
        }
        table.row(vec![
            format!("{kind} (of a GPU)").into(),
            Cell::Nothing,
            planned.into(),
            counted.into(),
        ]);
    }
    table
}

/// Jobs by how they ended and tokens of streams: the client's sums beside the server's counters.
fn counters(judged: &Judged, metrics: &Metrics, complaints: &mut Vec<String>) -> Table {
    let title = "Counters of /metrics beside what the client saw";
    let mut table = Table::new(title, &["counter", "model", "client", "server"]);
    let mut compare = |counter: &str, model: &str, client: u64, server: u64| {
        if client != server {
            complaints.push(format!("{counter} of {model}: {client} seen, {server} counted"));
        }
        table.row(vec![counter.into(), model.into(), client.into(), server.into()]);
    };
    for model in [WELL, SICK] {
        for reason in ["length", "cancelled", "error", "stop"] {
            let seen = judged.jobs.get(&(model, reason)).copied().unwrap_or(0);
            let labels = [("finish_reason", reason), ("model", model)];
            let counted = metrics.sum("llm_sim_requests_total", &labels);
            compare(&format!("requests_total, {reason}"), model, seen, counted);
        }
        let seen = judged.tokens.get(model).copied().unwrap_or(0);
        let counted = metrics.sum("llm_sim_sent_tokens_total", &[("model", model)]);
        compare("sent_tokens_total", model, seen, counted);
    }
    for ended in ["sent", "faulted", "refused", "disconnected", "write_timeout", "cut"] {
        let seen = judged.deliveries.get(ended).copied().unwrap_or(0);
        let counted = metrics.sum("llm_sim_answers_total", &[("ended", ended)]);
        compare(&format!("answers_total, {ended}"), "both", seen, counted);
    }
    table
}

/// What the server keeps of each request while a rule draws or counts, so as to know it again, up
/// to a million of them (`Tallies` in `engine/src/faults/decide.rs`): entries of 17 and 25 bytes in
/// two maps that have just doubled and are half empty.
const TOLD_APART_BYTES: u64 = 96;

/// What is left, and the memory.
fn leaks(left: &Left, memory: &[(f64, u64)], requests: u64, complaints: &mut Vec<String>) -> Table {
    let mut table = Table::new("What is left", &["what", "early", "at the end"]);
    for (gauge, value) in &left.gauges {
        if *value != 0 {
            complaints.push(format!("{gauge} is {value} when all is over"));
        }
        table.row(vec![(*gauge).into(), Cell::Nothing, (*value).into()]);
    }
    let most = |from: f64, to: f64| {
        let part = memory.iter().filter(|(at, _)| (from..to).contains(at));
        part.map(|&(_, bytes)| bytes).max().unwrap_or(0)
    };
    // Over whole pairs of parts without and with faults.
    let (early, late) = (most(0.2, 0.4), most(0.8, 2.0));
    // From the end of the early look on.
    let since = requests * 6 / 10;
    let allowed = early + (early / 50).max(1 << 20) + since * TOLD_APART_BYTES;
    if late > allowed {
        complaints.push(format!(
            "the memory grew from {early} to {late} bytes during {since} requests, of which \
             {TOLD_APART_BYTES} bytes each are kept on purpose"
        ));
    }
    let mib = |bytes: u64| (bytes as f64 / 10_485.76).round() / 100.0;
    table.row(vec!["MiB in RAM".into(), mib(early).into(), mib(late).into()]);
    table
}

/// Frames at the start of each stream that are not looked at: the role, and a batch that fills.
const SKIPPED: u32 = 10;

/// The lag of the streams that nothing befalls, in the parts with faults and in those without.
fn lags(args: &Args, judged: &Judged, load: &Load) -> Table {
    let step = i128::from(args.step_ms) * 1_000_000;
    let frames = |a: &Arrival| (a.first..a.first + a.frames).filter(|frame| *frame >= SKIPPED);
    // What ends a stream comes in one write with its last token, and is no token.
    let most = args.tokens + 1;
    let base = |a: &Arrival, frame: u32| i128::from(a.at_ns) - i128::from(frame.min(most)) * step;
    let mut earliest: Vec<i128> = vec![i128::MAX; judged.spared as usize];
    for a in &judged.arrivals {
        for frame in frames(a).filter(|frame| *frame < most) {
            let own = &mut earliest[a.stream as usize];
            *own = (*own).min(base(a, frame));
        }
    }
    let start = earliest.iter().copied().min().unwrap_or(0);
    // A stream that was admitted some steps later runs that many steps behind.
    let behind: Vec<i128> =
        earliest.iter().map(|own| (own.saturating_sub(start) + step / 2) / step * step).collect();
    let mut lags: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    // The first part of the run fills up, and in the first third of each of the others those
    // still run that were begun in the part before.
    for a in &judged.arrivals {
        let at = a.at_ns - judged.start_ns;
        let (phase, into) = (at / load.phase_ns, at % load.phase_ns);
        if phase == 0 || phase >= PHASES || into < load.phase_ns / 3 {
            continue;
        }
        for frame in frames(a).filter(|frame| *frame < most) {
            let lag = base(a, frame) - start - behind[a.stream as usize];
            lags[(phase % 2) as usize].push(lag.max(0) as u64);
        }
    }
    let title = format!(
        "Lag of chat streams that nothing befalls, at the client, steps of {} ms; without and with \
         faults for the others, in turns of {:.1} s of one run",
        args.step_ms,
        load.phase_ns as f64 / 1e9
    );
    let columns = ["", "frames", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"];
    let mut table = Table::new(title, &columns);
    lags.iter_mut().for_each(|lags| lags.sort_unstable());
    let percents = [50.0, 90.0, 99.0, 99.9, 100.0];
    for (name, lags) in ["without faults", "with faults"].into_iter().zip(&lags) {
        let cells = percents.map(|percent| Cell::us(percentile(lags, percent)));
        table.row([name.into(), lags.len().into()].into_iter().chain(cells).collect());
    }
    let [without, with] = &lags;
    let pairs = percents.map(|percent| (percentile(with, percent), percentile(without, percent)));
    let ratios = pairs.map(|(with, without)| Cell::ratio(with, without));
    table.row(["ratio".into(), Cell::Nothing].into_iter().chain(ratios).collect());
    let more = pairs.map(|(with, without)| ((with as f64 - without as f64) / 1e3).round().into());
    table.row(["more, us".into(), Cell::Nothing].into_iter().chain(more).collect());
    table
}
