//! One page to look at: self-contained, no network, light and dark.
//!
//! What is drawn is worked out here, so that the page's script only draws. The invariant: the page
//! stays below a few megabytes however long the run was, and what is thinned out keeps the worst.

mod clocks;

use llmsim_engine::units::{SimSpan, SimTime};
use serde::Serialize;

use self::clocks::{Clocks, JoinedRow};
use super::json::{Environment, redacted_command};
use super::{Done, Measured, console};
use crate::compare::{self, ServerSide};
use crate::record::{Outcome, Record};
use crate::result::{Goals, Stat, Summary};
use crate::selftest::Stamp;
use crate::settings::{Settings, Sweep};

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");

/// Points of a chart over time.
const SLICES: usize = 120;
/// Requests drawn one by one.
const DOTS: usize = 1500;
/// Waterfalls.
const SLOWEST: usize = 12;

#[derive(Serialize)]
struct Page {
    title: String,
    is_virtual: bool,
    subtitle: String,
    command: String,
    environment: Vec<(String, String)>,
    selftest: Option<Stamp>,
    sweep: Option<&'static str>,
    levels: Vec<LevelData>,
    knee: Option<usize>,
}

#[derive(Serialize)]
struct LevelData {
    name: String,
    load: String,
    error: Option<String>,
    figures: Option<Figures>,
}

#[derive(Serialize)]
struct Figures {
    open: bool,
    planned: u32,
    sent: u32,
    completed: u32,
    failed: u32,
    failures: Vec<(String, u32)>,
    duration_s: f64,
    requests_per_s: f64,
    output_tokens_per_s: f64,
    target_per_s: Option<f64>,
    achieved_per_s: Option<f64>,
    table: Vec<TableRow>,
    server: Vec<compare_row::Row>,
    server_note: Option<String>,
    joined: Vec<JoinedRow>,
    goodput: Option<Goodput>,
    client_late: bool,
    loop_lag_p99_ms: Option<f64>,
    warnings: Vec<String>,
    slices: Vec<Slice>,
    dots: Vec<(f64, f64, bool)>,
    spectrum: Vec<[Option<f64>; 4]>,
    slowest: Vec<Waterfall>,
}

#[derive(Serialize)]
struct TableRow {
    name: &'static str,
    note: &'static str,
    cells: Vec<Option<f64>>,
    /// p50 and p99 with failures as infinitely late, `None` within for infinity; `None` where
    /// nothing failed.
    with_failures: Option<[Option<f64>; 2]>,
}

/// Requests that kept all goals.
#[derive(Serialize)]
struct Goodput {
    goals: String,
    good: u32,
    per_s: f64,
    share_of_sent: f64,
}

impl Goodput {
    fn of(summary: &Summary, goals: Goals) -> Option<Self> {
        let good = summary.good?;
        Some(Self {
            goals: console::describe_goals(goals),
            good,
            per_s: f64::from(good) / summary.duration.as_secs_f64().max(1e-9),
            share_of_sent: f64::from(good) / f64::from(summary.counts.sent.max(1)),
        })
    }
}

mod compare_row {
    use serde::Serialize;

    #[derive(Serialize)]
    pub(super) struct Row {
        pub(super) name: &'static str,
        pub(super) client: Option<f64>,
        pub(super) server: Option<f64>,
        pub(super) simulated: Option<f64>,
        pub(super) delivery: Option<f64>,
        pub(super) below_resolution: bool,
    }
}

/// What happened in one stretch of time; latencies in ms of the requests scheduled in it.
#[derive(Serialize)]
struct Slice {
    at_s: f64,
    scheduled_per_s: f64,
    done_per_s: f64,
    in_flight: f64,
    p50_ms: Option<f64>,
    max_ms: Option<f64>,
    failed: u32,
}

/// Phases of one request in ms from its scheduled send.
#[derive(Serialize)]
struct Waterfall {
    index: u32,
    scheduled_s: f64,
    queue_ms: f64,
    headers_ms: Option<f64>,
    first_ms: Option<f64>,
    last_ms: f64,
    longest_gap_ms: Option<f64>,
    longest_gap_at_ms: Option<f64>,
    tokens: u32,
    outcome: String,
    server: Option<Clocks>,
}

/// The page.
pub fn render(
    settings: &Settings,
    environment: &Environment,
    stamp: Option<&Stamp>,
    levels: &[Done],
) -> String {
    let page = Page {
        title: settings.model.clone(),
        is_virtual: settings.simulate.is_some(),
        subtitle: subtitle(settings),
        command: command(),
        environment: vec![
            ("Tool".into(), concat!("llmsim-bench ", env!("CARGO_PKG_VERSION")).into()),
            ("Platform".into(), environment.platform.clone()),
            ("Kernel".into(), environment.kernel.clone()),
            ("CPUs".into(), environment.cpus.to_string()),
            ("I/O".into(), environment.io_driver.clone()),
            ("Seed".into(), settings.seed.to_string()),
            (
                "Nonce".into(),
                settings.workload.nonce.map_or("off".into(), |nonce| nonce.to_string()),
            ),
            ("Started".into(), format!("{} s since 1970", environment.started_unix_s)),
        ],
        selftest: stamp.cloned(),
        sweep: settings.sweep.map(|sweep| match sweep {
            Sweep::Concurrency => "concurrency",
            Sweep::Rate => "requests/s asked for",
        }),
        levels: levels.iter().map(|done| level(settings, stamp, done)).collect(),
        knee: knee(levels),
    };
    let data = sonic_rs::to_string(&page)
        .expect("plain data with text keys and finite numbers is always written")
        // Nothing in the data may end the script that carries it.
        .replace('<', "\\u003c");
    PAGE.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*DATA*/", &data)
}

fn subtitle(settings: &Settings) -> String {
    let target = match &settings.simulate {
        Some((models, _)) => format!("virtual time, {models}"),
        None => settings.api_root.to_string(),
    };
    format!("{target} · {}", settings.workload.describe())
}

/// As it can be pasted into a shell.
fn command() -> String {
    let quote = |arg: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
        if !arg.is_empty() && arg.chars().all(plain) {
            arg
        } else {
            format!("'{}'", arg.replace('\'', "'\\''"))
        }
    };
    redacted_command().into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// The level of the greatest power, throughput over mean response time (Kleinrock 1979): beyond it
/// latency grows faster than throughput.
fn knee(levels: &[Done]) -> Option<usize> {
    let power = |done: &Done| {
        let summary = &done.outcome.as_ref().ok()?.summary;
        (summary.e2e.mean > 0.0).then(|| summary.requests_per_s / summary.e2e.mean)
    };
    let powers: Vec<(usize, f64)> =
        levels.iter().enumerate().filter_map(|(i, done)| Some((i, power(done)?))).collect();
    if powers.len() < 3 {
        return None;
    }
    let (best, _) = powers.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    // At the last level it is only the end of the sweep.
    (powers.last()?.0 != best).then_some(best)
}

fn level(settings: &Settings, stamp: Option<&Stamp>, done: &Done) -> LevelData {
    LevelData {
        name: done.setting.name.clone(),
        load: console::describe_load(&done.setting.load, settings.seed),
        error: done.outcome.as_ref().err().cloned(),
        figures: done.outcome.as_ref().ok().map(|measured| figures(settings, stamp, measured)),
    }
}

fn figures(settings: &Settings, stamp: Option<&Stamp>, measured: &Measured) -> Figures {
    let summary = &measured.summary;
    let counts = &summary.counts;
    let mut warnings = summary.warnings.clone();
    let mut server = Vec::new();
    let mut server_note = None;
    match &measured.server {
        ServerSide::Skipped => {}
        ServerSide::NotAvailable(why) => server_note = Some(format!("server not available: {why}")),
        ServerSide::Known(model) => {
            warnings.extend(compare::warnings(summary, model));
            let resolution = stamp.map(Stamp::resolution);
            let joined = measured.joined.as_ref();
            server.extend(compare::rows(summary, model, joined, resolution).into_iter().map(
                |row| compare_row::Row {
                    name: row.name,
                    client: row.client,
                    server: row.server,
                    simulated: row.simulated,
                    delivery: row.delivery,
                    below_resolution: row.below_resolution,
                },
            ));
        }
    }
    Figures {
        open: summary.raw.is_some(),
        planned: counts.planned,
        sent: counts.sent,
        completed: counts.completed,
        failed: counts.failed,
        failures: counts
            .failures
            .keys()
            .map(|class| (class.label().to_owned(), counts.failures_of(*class)))
            .collect(),
        duration_s: summary.duration.as_secs_f64(),
        requests_per_s: summary.requests_per_s,
        output_tokens_per_s: summary.output_tokens_per_s,
        target_per_s: summary.arrivals.and_then(|arrivals| arrivals.target),
        achieved_per_s: summary.arrivals.and_then(|arrivals| arrivals.achieved),
        table: table(summary),
        server,
        server_note,
        joined: measured.joined.as_ref().map(clocks::joined_rows).unwrap_or_default(),
        goodput: settings.goals.and_then(|goals| Goodput::of(summary, goals)),
        client_late: summary.client_late(),
        loop_lag_p99_ms: summary.loop_lag.percentile(99.0).map(|ns| ns / 1e6),
        warnings,
        slices: slices(measured),
        dots: dots(measured),
        spectrum: spectrum(summary),
        slowest: slowest(measured),
    }
}

fn table(summary: &Summary) -> Vec<TableRow> {
    let row = |name, note, stat: &Stat| {
        let ms = |value: Option<f64>| value.map(|ns| ns / 1e6);
        let mean = (stat.n > 0).then_some(stat.mean);
        let mut cells = vec![ms(mean), ms(stat.min())];
        cells.extend([50.0, 90.0, 95.0, 99.0].map(|p| ms(stat.percentile(p))));
        cells.push(ms(stat.max()));
        let with_failures =
            (stat.failures > 0).then(|| [50.0, 99.0].map(|p| ms(finite(stat.with_failures(p)))));
        TableRow { name, note, cells, with_failures }
    };
    let clock = if summary.raw.is_some() { "from the scheduled send" } else { "from the send" };
    let mut rows = vec![
        row("TTFT", clock, &summary.ttft),
        row("ITL", "gap between chunks", &summary.itl),
        row("TPOT", "per token after the first", &summary.tpot),
        row("E2E", clock, &summary.e2e),
    ];
    if let Some(raw) = &summary.raw {
        rows.push(row("TTFT raw", "from the actual send", &raw.ttft));
        rows.push(row("E2E raw", "from the actual send", &raw.e2e));
        rows.push(row("Queue wait", "schedule to send", &raw.queue_wait));
    }
    if summary.connect.n > 0 {
        rows.push(row("Connect", "where one was needed", &summary.connect));
    }
    rows
}

/// JSON has no infinity.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

fn ms(span: SimSpan) -> f64 {
    span.as_ns() as f64 / 1e6
}

/// TTFT as the headline counts it; `None` without a first token.
fn ttft(record: &Record, open: bool) -> Option<SimSpan> {
    let from = if open { record.scheduled } else { record.sent? };
    Some(record.output.first?.saturating_since(from))
}

fn slices(measured: &Measured) -> Vec<Slice> {
    let open = measured.summary.raw.is_some();
    let total = measured.summary.duration.as_ns().max(1);
    let width = total.div_ceil(SLICES as u64);
    let place = |at: SimTime| {
        let since = at.saturating_since(measured.began).as_ns();
        usize::try_from(since / width).unwrap_or(0).min(SLICES - 1)
    };
    let mut scheduled = [0_u32; SLICES];
    let mut done = [0_u32; SLICES];
    let mut failed = [0_u32; SLICES];
    let mut busy_ns = [0_u64; SLICES];
    let mut ttfts: Vec<Vec<f64>> = vec![Vec::new(); SLICES];
    for record in &measured.records {
        let slice = place(record.scheduled);
        scheduled[slice] += 1;
        if let Some(first) = ttft(record, open).filter(|_| record.ok()) {
            ttfts[slice].push(ms(first));
        }
        match record.outcome {
            Outcome::Finished(_) => done[place(record.end)] += 1,
            Outcome::Failed(_) => failed[place(record.end)] += 1,
            Outcome::Interrupted => {}
        }
        let Some(sent) = record.sent else { continue };
        let from = sent.saturating_since(measured.began).as_ns();
        let to = record.end.saturating_since(measured.began).as_ns().max(from);
        for (slice, busy) in
            busy_ns.iter_mut().enumerate().take(place(record.end) + 1).skip(place(sent))
        {
            let begin = slice as u64 * width;
            *busy += to.min(begin + width).saturating_sub(from.max(begin));
        }
    }
    let seconds = width as f64 / 1e9;
    (0..SLICES)
        .map(|i| {
            let stat = Stat::new(ttfts[i].drain(..), 0);
            Slice {
                at_s: (i as f64 + 0.5) * seconds,
                scheduled_per_s: f64::from(scheduled[i]) / seconds,
                done_per_s: f64::from(done[i]) / seconds,
                in_flight: busy_ns[i] as f64 / width as f64,
                p50_ms: stat.percentile(50.0),
                max_ms: stat.max(),
                failed: failed[i],
            }
        })
        .collect()
}

/// One dot per request: scheduled second, TTFT in ms, ended well. Thinned evenly, the slowest kept.
fn dots(measured: &Measured) -> Vec<(f64, f64, bool)> {
    let open = measured.summary.raw.is_some();
    let mut all: Vec<(f64, f64, bool)> = measured
        .records
        .iter()
        .filter_map(|record| {
            let at = record.scheduled.saturating_since(measured.began).as_secs_f64();
            Some((at, ms(ttft(record, open)?), record.ok()))
        })
        .collect();
    if all.len() <= DOTS {
        return all;
    }
    let group = all.len().div_ceil(DOTS);
    all.chunks_mut(group)
        .filter_map(|some| some.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)))
        .collect()
}

/// TTFT by percentile, on the axis of high percentiles: percentile, corrected (headline), raw, and
/// corrected with failures as far as that is finite.
fn spectrum(summary: &Summary) -> Vec<[Option<f64>; 4]> {
    let raw = summary.raw.as_ref();
    let needed = |p: f64| summary.ttft.n >= crate::result::values_needed(p);
    let percentiles = (0..=160).map(|i| 100.0 * (1.0 - 10_f64.powf(-f64::from(i) / 40.0)));
    percentiles
        .filter(|&p| p < 50.0 || needed(p))
        .map(|p| {
            let ms = |ns: f64| ns / 1e6;
            let failed = summary.ttft.failures > 0;
            [
                Some(p),
                summary.ttft.percentile(p).map(ms),
                raw.and_then(|raw| raw.ttft.percentile(p)).map(ms),
                finite(summary.ttft.with_failures(p)).filter(|_| failed).map(ms),
            ]
        })
        .collect()
}

fn slowest(measured: &Measured) -> Vec<Waterfall> {
    let mut records: Vec<&Record> =
        measured.records.iter().filter(|r| !matches!(r.outcome, Outcome::Interrupted)).collect();
    let lasted = |record: &Record| record.end.saturating_since(record.scheduled);
    records.sort_by(|a, b| lasted(b).cmp(&lasted(a)).then(a.index.cmp(&b.index)));
    records.truncate(SLOWEST);
    records.into_iter().map(|record| waterfall(record, measured.began)).collect()
}

fn waterfall(record: &Record, began: SimTime) -> Waterfall {
    let since = |at: SimTime| ms(at.saturating_since(record.scheduled));
    let stamps = &record.output.stamps;
    let gap = stamps.windows(2).max_by_key(|pair| pair[1].saturating_since(pair[0]));
    Waterfall {
        index: record.index,
        scheduled_s: record.scheduled.saturating_since(began).as_secs_f64(),
        queue_ms: since(record.sent.unwrap_or(record.end)),
        headers_ms: record.headers.map(since),
        first_ms: record.output.first.map(since),
        last_ms: since(record.output.last.unwrap_or(record.end)),
        longest_gap_ms: gap.map(|pair| ms(pair[1].saturating_since(pair[0]))),
        longest_gap_at_ms: gap.map(|pair| since(pair[0])),
        tokens: record.output_tokens(),
        outcome: match &record.outcome {
            Outcome::Finished(reason) => reason.clone(),
            Outcome::Failed(failure) => failure.class.label().to_owned(),
            Outcome::Interrupted => "stopped".to_owned(),
        },
        server: Clocks::of(record),
    }
}
