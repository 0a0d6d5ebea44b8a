//! The report for people.

use std::fmt::Write as _;

use llmsim_engine::units::SimSpan;

use super::{Done, Measured, grouped, span};
use crate::compare::{self, Joined, ServerModel, ServerSide, Told};
use crate::plan::{Arrivals, Gaps, Load};
use crate::result::{Goals, Stat, Summary};
use crate::selftest::Stamp;
use crate::settings::{LevelSetting, Settings, Sweep};

/// `concurrency 8`, `rate 50/s (Poisson, seed 0)`.
pub fn describe_load(load: &Load, seed: u64) -> String {
    let gaps = |gaps: &Gaps| match gaps {
        Gaps::Poisson => "Poisson".to_owned(),
        Gaps::Constant => "constant".to_owned(),
        Gaps::Gamma(shape) => format!("gamma, burstiness {shape}"),
    };
    match load {
        Load::Closed { concurrency } => format!("closed loop · concurrency {concurrency}"),
        Load::Open { arrivals, max_concurrency } => {
            let arrivals = match arrivals {
                Arrivals::AtOnce => "all at once".to_owned(),
                Arrivals::Steady { rate, gaps: g } => {
                    format!("rate {rate}/s ({}, seed {seed})", gaps(g))
                }
                Arrivals::Staged { stages, gaps: g } => {
                    format!("{} stages ({}, seed {seed})", stages.len(), gaps(g))
                }
                Arrivals::Trace(_) => "arrivals from the trace".to_owned(),
            };
            let cap = max_concurrency.map(|n| format!(" · max concurrency {n}"));
            format!("open loop · {arrivals}{}", cap.unwrap_or_default())
        }
    }
}

/// The line above a run.
pub fn heading(settings: &Settings, level: &LevelSetting, planned: Option<u32>) -> String {
    let requests = planned.or(level.extent.requests);
    let mut extent = requests.map(|n| format!("{n} requests")).unwrap_or_default();
    if let Some(lasts) = level.extent.duration {
        let lasts = lasts.as_secs_f64();
        let joint = if extent.is_empty() { "" } else { " in " };
        let _ = write!(extent, "{joint}{lasts} s");
    }
    if let Load::Open { arrivals: Arrivals::Staged { stages, .. }, .. } = &level.load {
        let lasts: f64 = stages.iter().map(|stage| stage.lasts.as_secs_f64()).sum();
        if extent.is_empty() {
            extent = format!("{lasts} s");
        }
    }
    let (target, warmup) = match &settings.simulate {
        Some((models, _)) => (format!("virtual time, {models}"), String::new()),
        None => (settings.api_root.to_string(), format!(" · warm-up {}", level.warmup)),
    };
    format!(
        "{} @ {target} · {}{warmup} · {extent} · {}",
        settings.model,
        describe_load(&level.load, settings.seed),
        settings.workload.describe(),
    )
}

/// The whole report of one level.
pub fn level(settings: &Settings, done: &Measured, stamp: Option<&Stamp>) -> String {
    let mut out = String::new();
    let summary = &done.summary;
    requests(&mut out, summary);
    throughput(&mut out, summary);
    if let Some(arrivals) = &summary.arrivals {
        let rate = |rate: Option<f64>| rate.map_or("–".to_owned(), |rate| format!("{rate:.2}/s"));
        let achieved = rate(arrivals.achieved);
        let mut line = match arrivals.target {
            Some(target) => format!(
                "arrivals    target {}/s · offered {} · achieved {achieved}",
                trim(target),
                rate(arrivals.offered)
            ),
            None => format!(
                "arrivals    target all at once · sent within {} ({achieved})",
                span(arrivals.spread.as_ns() as f64)
            ),
        };
        if let Some(raw) = &summary.raw {
            let wait = |p| raw.queue_wait.percentile(p).map_or("–".into(), span);
            let _ = write!(line, " · queue wait p50 {} · p99 {}", wait(50.0), wait(99.0));
        }
        let _ = writeln!(out, "{line} · {} waited", arrivals.waited);
    }
    if settings.simulate.is_none() {
        client(&mut out, summary, stamp);
    }
    server_line(&mut out, settings, summary, &done.server);
    if let (Some(goals), Some(good)) = (settings.goals, summary.good) {
        goodput(&mut out, summary, goals, good);
    }
    cached(&mut out, summary);
    out.push('\n');
    latency(&mut out, settings, summary);
    tokens(&mut out, summary);
    if let ServerSide::Known(server) = &done.server {
        comparison(&mut out, done, server, stamp);
    }
    if let Some(joined) = &done.joined {
        per_request(&mut out, joined);
    }
    warnings(&mut out, summary, &done.server);
    out
}

fn requests(out: &mut String, summary: &Summary) {
    let counts = &summary.counts;
    let _ = write!(
        out,
        "requests    {} planned · {} sent · {} ok · {} failed",
        counts.planned, counts.sent, counts.completed, counts.failed
    );
    if counts.cut > 0 {
        let _ = write!(out, " · {} stopped in flight", counts.cut);
    }
    for (reason, n) in &counts.finish {
        let _ = write!(out, " · finish {reason} {n}");
    }
    out.push('\n');
    for (class, seen) in &counts.failures {
        let _ = writeln!(out, "failed      {} × {}", counts.failures_of(*class), class.label());
        for (detail, n) in seen.iter().take(3) {
            let _ = writeln!(out, "            {n} × {detail}");
        }
        if seen.len() > 3 {
            let _ = writeln!(out, "            and {} other messages", seen.len() - 3);
        }
    }
}

fn throughput(out: &mut String, summary: &Summary) {
    let _ = write!(out, "duration    {:.2} s", summary.duration.as_secs_f64());
    if summary.drain > SimSpan::ZERO {
        let _ = write!(out, " (drain {:.2} s included)", summary.drain.as_secs_f64());
    }
    let _ = writeln!(
        out,
        "\nthroughput  {:.2} req/s · {} output tok/s · {} total tok/s · at most {} in flight",
        summary.requests_per_s,
        grouped(summary.output_tokens_per_s.round() as u64),
        grouped(summary.total_tokens_per_s.round() as u64),
        summary.peak_in_flight,
    );
}

fn client(out: &mut String, summary: &Summary, stamp: Option<&Stamp>) {
    let lag = |ns: Option<f64>| ns.map_or("–".into(), span);
    let state = if summary.client_late() { "late" } else { "healthy" };
    let _ = writeln!(
        out,
        "client      loop lag p50 {} · p99 {} · max {}{} · CPU {:.0}% · memory {} MB · {state}",
        lag(summary.loop_lag.percentile(50.0)),
        lag(summary.loop_lag.percentile(99.0)),
        lag(summary.loop_lag.max()),
        summary.health.read_lag.map_or(String::new(), |[_, p99, _]| {
            format!(" · read lag p99 {} (not in latencies)", span(p99.as_ns() as f64))
        }),
        summary.health.cpu_share() * 100.0,
        summary.health.peak_memory_bytes / 1_000_000,
    );
    if let Some(stamp) = stamp {
        let _ = writeln!(out, "self-test   {}", stamp.line());
    }
}

fn server_line(out: &mut String, settings: &Settings, summary: &Summary, server: &ServerSide) {
    let Some(url) = &settings.server_metrics else { return };
    if settings.simulate.is_some() {
        return;
    }
    match server {
        ServerSide::Skipped => {}
        ServerSide::NotAvailable(why) => {
            let _ = writeln!(out, "server      not available ({why})");
        }
        ServerSide::Known(model) => {
            let (theirs, ours) = (compare::finished(model), summary.counts.sent);
            let mark = if theirs == u64::from(ours) { "✓" } else { "≠" };
            let source = match model.estimated {
                true => url.with_path(url.path.trim_end_matches("/summary")),
                false => url.clone(),
            };
            let _ =
                writeln!(out, "server      {source} · {theirs} requests (client {ours} {mark})");
        }
    }
}

fn goodput(out: &mut String, summary: &Summary, goals: Goals, good: u32) {
    let rate = f64::from(good) / summary.duration.as_secs_f64().max(1e-9);
    let share = f64::from(good) / f64::from(summary.counts.sent.max(1)) * 100.0;
    let _ = writeln!(
        out,
        "goodput     {rate:.2} req/s · {good} of {} sent ({share:.1}%) · {}",
        summary.counts.sent,
        describe_goals(goals),
    );
}

/// `TTFT ≤ 200.00 ms · E2E ≤ 5.000 s`.
pub(super) fn describe_goals(goals: Goals) -> String {
    [("TTFT", goals.ttft), ("TPOT", goals.tpot), ("E2E", goals.e2e)]
        .into_iter()
        .filter_map(|(name, goal)| Some(format!("{name} ≤ {}", span(goal?.as_ns() as f64))))
        .collect::<Vec<_>>()
        .join(" · ")
}

fn cached(out: &mut String, summary: &Summary) {
    let cached = summary.cached;
    let share = |n: u64| {
        let prompt = summary.tokens.0.max(1);
        format!("{} ({:.1}%)", grouped(n), n as f64 / prompt as f64 * 100.0)
    };
    let observed = match cached.observed {
        Some(n) => share(n),
        None if cached.expected.is_some() => "not told by the server".to_owned(),
        None => return,
    };
    match cached.expected {
        Some(expected) => {
            let _ = writeln!(
                out,
                "prefix      expected {} cached prompt tokens · observed {observed}",
                share(expected)
            );
        }
        None if cached.observed > Some(0) => {
            let _ = writeln!(out, "prefix      {observed} prompt tokens from the server's cache");
        }
        None => {}
    }
}

fn latency(out: &mut String, settings: &Settings, summary: &Summary) {
    let percentiles = &settings.report.percentiles;
    let infinite = summary.counts.failed > 0;
    let mut head = format!("{:<12}{:>12}{:>12}", "latency", "mean", "min");
    for p in percentiles {
        let _ = write!(head, "{:>12}", format!("p{}", trim(*p)));
    }
    let _ = write!(head, "{:>12}", "max");
    if infinite {
        for p in [50.0, 99.0] {
            let _ = write!(head, "{:>14}", format!("p{} w/ failed", trim(p)));
        }
    }
    let _ = writeln!(out, "{head}");
    let wanted = |name: &str| {
        let metrics = &settings.report.metrics;
        let is = |metric: &String| metric == name || (name == "e2e" && metric == "e2el");
        metrics.is_empty() || metrics.iter().any(is)
    };
    let mut row = |name: &str, stat: &Stat| {
        let _ = write!(out, "{name:<12}");
        let cell = |value: Option<f64>| value.map_or("–".into(), span);
        let mean = (stat.n > 0).then_some(stat.mean);
        let _ = write!(out, "{:>12}{:>12}", cell(mean), cell(stat.min()));
        for &p in percentiles {
            let text = if p > 99.0 && stat.n < crate::result::values_needed(p) {
                format!("n≥{}", crate::result::values_needed(p))
            } else {
                cell(stat.percentile(p))
            };
            let _ = write!(out, "{text:>12}");
        }
        let _ = write!(out, "{:>12}", cell(stat.max()));
        if infinite && stat.failures > 0 {
            for p in [50.0, 99.0] {
                let _ = write!(out, "{:>14}", with_failures(stat, p));
            }
        }
        out.push('\n');
    };
    if wanted("ttft") {
        row("TTFT", &summary.ttft);
    }
    if wanted("itl") {
        row("ITL", &summary.itl);
    }
    if wanted("tpot") {
        row("TPOT", &summary.tpot);
    }
    if wanted("e2e") {
        row("E2E", &summary.e2e);
    }
    if let Some(raw) = &summary.raw {
        if wanted("ttft") {
            row("TTFT raw", &raw.ttft);
        }
        if wanted("e2e") {
            row("E2E raw", &raw.e2e);
        }
        row("queue wait", &raw.queue_wait);
    }
    if summary.connect.n > 0 {
        row("connect", &summary.connect);
    }
    if summary.raw.is_some() {
        out.push_str("TTFT and E2E count from the scheduled send; raw from the actual one\n");
    }
    out.push('\n');
}

fn tokens(out: &mut String, summary: &Summary) {
    let _ =
        writeln!(out, "{:<12}{:>12}{:>12}{:>12}{:>12}", "tokens/req", "mean", "min", "p50", "max");
    for (name, stat) in [("prompt", &summary.prompt_tokens), ("output", &summary.output_tokens)] {
        let cell = |value: Option<f64>| value.map_or("–".into(), |n| grouped(n.round() as u64));
        let mean = if stat.n > 0 { trim((stat.mean * 10.0).round() / 10.0) } else { "–".into() };
        let _ = writeln!(
            out,
            "{name:<12}{mean:>12}{:>12}{:>12}{:>12}",
            cell(stat.min()),
            cell(stat.percentile(50.0)),
            cell(stat.max())
        );
    }
    out.push('\n');
}

fn comparison(out: &mut String, done: &Measured, server: &ServerModel, stamp: Option<&Stamp>) {
    let summary = &done.summary;
    let resolution = stamp.map(Stamp::resolution);
    let _ = writeln!(
        out,
        "{:<12}{:>12}{:>12}{:>12}{:>12}",
        "vs server", "client", "server", "simulated", "delivery*"
    );
    let cell = |ms: Option<f64>| ms.map_or("—".into(), |ms| span(ms * 1e6));
    let mut marked = false;
    for row in compare::rows(summary, server, done.joined.as_ref(), resolution) {
        let mark = if row.below_resolution { " †" } else { "" };
        marked |= row.below_resolution;
        let _ = writeln!(
            out,
            "{:<12}{:>12}{:>12}{:>12}{:>12}{mark}",
            row.name,
            cell(row.client),
            cell(row.server),
            cell(row.simulated),
            cell(row.delivery)
        );
    }
    let theirs = server.throughput.output_tokens_per_second;
    let _ = writeln!(
        out,
        "{:<12}{:>12}{:>12}",
        "out tok/s",
        grouped(summary.output_tokens_per_s.round() as u64),
        grouped(theirs.round().max(0.0) as u64)
    );
    if let Some(lag) = server.latency_seconds.get("lag") {
        let cell = |s: Option<f64>| s.map_or("—".into(), |s| span(s * 1e9));
        let _ = writeln!(
            out,
            "fidelity    server lag p50 {} · p99 {} · max {}",
            cell(lag.p50),
            cell(lag.p99),
            cell(lag.max)
        );
    }
    out.push_str(if server.estimated {
        "* client mean − server mean; percentiles are not in the server's /metrics\n"
    } else {
        "* client percentile − server percentile\n"
    });
    if marked {
        out.push_str("† smaller than what this client adds itself (self-test): not a finding\n");
    }
}

fn per_request(out: &mut String, joined: &Joined) {
    let mut line = format!("per request joined {}", joined.first.len());
    let mut show = |name: &str, values: &[u64]| {
        let stat = Stat::new(values.iter().map(|&ns| ns as f64), 0);
        if let Some((p50, p99)) = stat.percentile(50.0).zip(stat.percentile(99.0)) {
            let _ = write!(line, " · {name} p50 {} p99 {}", span(p50), span(p99));
        }
    };
    match joined.told {
        Told::Clock => {
            show("delivery first token", &joined.first);
            show("last token", &joined.last);
            show("server late", &joined.server_late);
        }
        Told::Phases => {
            show("server queue", &joined.queue);
            show("prefill", &joined.prefill);
            show("outside the engine: first token", &joined.first);
            show("last token", &joined.last);
        }
    }
    let _ = writeln!(out, "{line}");
}

fn warnings(out: &mut String, summary: &Summary, server: &ServerSide) {
    let mut all = summary.warnings.clone();
    if let ServerSide::Known(server) = server {
        all.extend(compare::warnings(summary, server));
    }
    for warning in all {
        let _ = writeln!(out, "warning: {warning}");
    }
}

/// The line above a sweep.
pub fn sweep_heading(settings: &Settings, sweep: Sweep) -> String {
    let what = match sweep {
        Sweep::Concurrency => "concurrency",
        Sweep::Rate => "rate",
    };
    let per_level = settings.levels.first().map(|level| match level.extent.duration {
        Some(lasts) => format!(" · {} s per level", lasts.as_secs_f64()),
        None => {
            level.extent.requests.map(|n| format!(" · {n} requests per level")).unwrap_or_default()
        }
    });
    format!(
        "sweep {what} · {} · {}{}",
        settings.model,
        settings.workload.describe(),
        per_level.unwrap_or_default()
    )
}

/// The names of the columns of a sweep.
pub fn sweep_columns(settings: &Settings, sweep: Sweep) -> String {
    let mut line = match sweep {
        Sweep::Concurrency => format!("{:>11}", "concurrency"),
        Sweep::Rate => format!("{:>11}", "rate"),
    };
    for name in [
        "req/s",
        "out tok/s",
        "TTFT p50",
        "TTFT p99",
        "p99 w/fail",
        "ITL p50",
        "E2E p50",
        "lag p99",
        "dlv TTFT",
    ] {
        let _ = write!(line, "{name:>12}");
    }
    if settings.goals.is_some() {
        let _ = write!(line, "{:>12}", "goodput/s");
    }
    let _ = write!(line, "{:>9}{:>8}", "client", "errors");
    if sweep == Sweep::Rate {
        let _ = write!(line, "{:>12}{:>12}{:>8}", "achieved/s", "raw p99", "waited");
    }
    line
}

/// One level as a row of a sweep.
pub fn sweep_row(settings: &Settings, sweep: Sweep, done: &Done) -> String {
    let measured = match &done.outcome {
        Ok(measured) => measured,
        Err(why) => return format!("{:>11}  failed: {why}", done.setting.name),
    };
    let summary = &measured.summary;
    let mut line = format!("{:>11}", done.setting.name);
    let cell = |ns: Option<f64>| ns.map_or("–".into(), span);
    let server = match &measured.server {
        ServerSide::Known(server) => Some(server),
        _ => None,
    };
    let lag = server.and_then(|s| s.latency_seconds.get("lag")?.p99).map(|s| span(s * 1e9));
    let delivery = server.and_then(|server| {
        compare::rows(summary, server, None, None).first().and_then(|row| row.delivery)
    });
    for text in [
        format!("{:.2}", summary.requests_per_s),
        grouped(summary.output_tokens_per_s.round() as u64),
        cell(summary.ttft.percentile(50.0)),
        cell(summary.ttft.percentile(99.0)),
        with_failures(&summary.ttft, 99.0),
        cell(summary.itl.percentile(50.0)),
        cell(summary.e2e.percentile(50.0)),
        lag.unwrap_or_else(|| "–".into()),
        delivery.map_or("–".into(), |ms| span(ms * 1e6)),
    ] {
        let _ = write!(line, "{text:>12}");
    }
    if let (Some(_), Some(good)) = (settings.goals, summary.good) {
        let rate = f64::from(good) / summary.duration.as_secs_f64().max(1e-9);
        let _ = write!(line, "{:>12}", format!("{rate:.2}"));
    }
    let client = if summary.client_late() { "late" } else { "ok" };
    let _ = write!(line, "{client:>9}{:>8}", summary.counts.failed);
    if let (Sweep::Rate, Some(arrivals)) = (sweep, summary.arrivals) {
        let raw = summary.raw.as_ref().and_then(|raw| raw.ttft.percentile(99.0));
        let achieved = arrivals.achieved.map_or("–".into(), |rate| format!("{rate:.2}"));
        let _ = write!(line, "{achieved:>12}{:>12}{:>8}", cell(raw), arrivals.waited);
    }
    line
}

/// A percentile in which failures are infinitely late.
fn with_failures(stat: &Stat, p: f64) -> String {
    match stat.with_failures(p) {
        Some(ns) if ns.is_finite() => span(ns),
        Some(_) => "+inf".into(),
        None => "–".into(),
    }
}

/// A number without useless zeros.
fn trim(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
