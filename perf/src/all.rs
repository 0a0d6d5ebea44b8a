//! Every measurement that we publish, one after the other, and what they show beside what they
//! should: one command for an idle machine.
//!
//! Each part is this program again, in a process of its own with a limit on its time: a part that
//! hangs or fails costs its own figures and no others. The invariant: a bar is judged from the file
//! that the part has just written, and a figure that is not there is 'not measured', never reached.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::envelope::BARE_EACH;
use crate::isolation;
use crate::report::{Keep, RESULTS_VARIABLE, Report, Reporter, Table};
use crate::sys;

/// `llmsim-perf all`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
    /// Seconds in which no further part is begun.
    #[arg(long, default_value_t = 900)]
    within_s: u64,
    /// llmsim, the peer on crates.io [default: looked up in PATH].
    #[arg(long, value_name = "BIN")]
    peer: Option<PathBuf>,
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// One short run of everything, to see that it works; its figures say nothing.
    #[arg(long)]
    smoke: bool,
}

struct Part {
    name: &'static str,
    options: &'static str,
    smoke: &'static str,
    /// It keeps its own tables; of others the printed text is kept.
    has_tables: bool,
    limit_s: u64,
}

/// In the order of what matters most, in case the time runs out.
const PARTS: [Part; 9] = [
    Part {
        name: "envelope",
        options: "--rounds 3 --full-speed-s 1.5",
        smoke: "--rounds 1 --streams 8,16 --unsynchronised 20 --tokens 30 --full-speed-s 0.3",
        has_tables: true,
        limit_s: 400,
    },
    Part {
        name: "isolation",
        options: "--rounds 3 --tokens 120",
        smoke: "--rounds 1 --streams 10 --tokens 40",
        has_tables: true,
        limit_s: 200,
    },
    Part {
        name: "knee",
        options: "--rounds 2 --streams 64,96,128,160,256,512,640,768 --tokens 100",
        smoke: "--rounds 1 --streams 8 --tokens 30",
        has_tables: true,
        limit_s: 180,
    },
    Part {
        name: "scale",
        options: "",
        smoke: "--streams 20,40 --tokens 4 --step-ms 50",
        has_tables: true,
        limit_s: 120,
    },
    Part {
        name: "soak",
        options: "--minutes 1",
        smoke: "--minutes 0.02 --streams 8",
        has_tables: true,
        limit_s: 90,
    },
    Part { name: "instructions", options: "", smoke: "--brief", has_tables: true, limit_s: 120 },
    Part {
        name: "scrape",
        options: "--rounds 2 --tokens 100",
        smoke: "--rounds 1 --streams 8 --tokens 30",
        has_tables: false,
        limit_s: 60,
    },
    Part {
        name: "bench-accuracy",
        options: "--runs 1 --rounds 3",
        smoke: "--runs 1 --rounds 1 --streams 5 --tokens 5",
        has_tables: false,
        limit_s: 60,
    },
    Part {
        name: "offline",
        options: "--runs 1",
        smoke: "--brief --requests 100 --runs 1",
        has_tables: false,
        limit_s: 60,
    },
];

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("llmsim-perf all: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<ExitCode> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    println!("load average before: {load}\n");
    if load.parse().is_ok_and(|load: f64| load > 1.0) {
        println!("The machine is busy: lags will tell about its load.\n");
    }
    let folder = if args.save {
        PathBuf::from(Report::FOLDER)
    } else {
        std::env::temp_dir().join(format!("llmsim-perf-{}", std::process::id()))
    };
    std::fs::create_dir_all(&folder)?;
    let began = Instant::now();
    let mut failed = Vec::new();
    let is_wanted = |part: &&Part| args.only.is_empty() || args.only.iter().any(|n| n == part.name);
    for part in PARTS.iter().filter(is_wanted) {
        let left = args.within_s.saturating_sub(began.elapsed().as_secs());
        if left == 0 {
            failed.push(format!("{}: no time left", part.name));
            continue;
        }
        // A file of an earlier run must not be judged as if it were this one's.
        let _ = std::fs::remove_file(folder.join(format!("{}.json", part.name)));
        let limit = Duration::from_secs(part.limit_s.min(left));
        println!("== {} ({} s so far)\n", part.name, began.elapsed().as_secs());
        if let Err(why) = play(part, args, &folder, limit) {
            println!("== {}: {why}\n", part.name);
            failed.push(format!("{}: {why}", part.name));
        }
    }
    let code = judge(&folder, args.save);
    for failure in &failed {
        println!("failed: {failure}");
    }
    println!("took {} s", began.elapsed().as_secs());
    if !args.save {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(if failed.is_empty() { code } else { ExitCode::FAILURE })
}

fn play(part: &Part, args: &Args, folder: &Path, limit: Duration) -> Result<(), String> {
    let options = if args.smoke { part.smoke } else { part.options };
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.arg(part.name).args(options.split_whitespace()).env(RESULTS_VARIABLE, folder);
    command.stdin(Stdio::null());
    if part.has_tables {
        command.arg("--save");
    } else {
        command.stdout(Stdio::piped());
    }
    if let (Some(peer), "envelope") = (&args.peer, part.name) {
        command.arg("--peer").arg(peer);
    }
    // Whatever it has started ends with it.
    sys::end_with_us(&mut command);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let reader = child.stdout.take().map(|mut output| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = output.read_to_string(&mut text);
            text
        })
    });
    let ended = wait(&mut child, limit);
    if let Some(reader) = reader {
        let text = reader.join().unwrap_or_default();
        println!("{text}");
        keep(part, options, &text, folder).map_err(|error| error.to_string())?;
    }
    ended
}

fn wait(child: &mut Child, limit: Duration) -> Result<(), String> {
    let until = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if Instant::now() >= until => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("ended after {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// The printed text of a part that has no tables of its own.
fn keep(part: &Part, options: &str, text: &str, folder: &Path) -> io::Result<()> {
    let about = Report::about_this_machine();
    let name = part.name;
    let text = format!(
        "# `llmsim-perf {name}`\n\n{about}\n\n    cargo run --release -p llmsim-perf -- {name} \
         {options}\n\n```\n{}\n```\n",
        text.trim_end()
    );
    std::fs::write(folder.join(format!("{name}.md")), text)
}

/// Which side of a goal is good.
#[derive(Clone, Copy)]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Either way from zero.
    Within(f64),
    /// What the bare loop of the same run does not reach is not asked of us.
    AtMostIfBare {
        goal: f64,
        bare: Option<f64>,
    },
}

impl Goal {
    fn text(self) -> String {
        match self {
            Self::AtMost(goal) | Self::AtMostIfBare { goal, .. } => format!("at most {goal}"),
            Self::AtLeast(goal) => format!("at least {goal}"),
            Self::Within(goal) => format!("within {goal}"),
        }
    }

    fn verdict(self, measured: Option<f64>) -> &'static str {
        let Some(measured) = measured else { return "not measured" };
        let is_reached = match self {
            Self::AtMost(goal) | Self::AtMostIfBare { goal, .. } => measured <= goal,
            Self::AtLeast(goal) => measured >= goal,
            Self::Within(goal) => measured.abs() <= goal,
        };
        match self {
            _ if is_reached => "reached",
            Self::AtMostIfBare { goal, bare: Some(bare) } if bare > goal => {
                "not reached, nor by the bare loop"
            }
            _ => "not reached",
        }
    }
}

/// Puts what was measured beside what it should be.
fn judge(folder: &Path, save: bool) -> ExitCode {
    let read = |name: &str| Report::read(&folder.join(format!("{name}.json")));
    let mut reporter = Reporter::new("What it must show");
    let mut table = Table::new(
        "Every bar of the fidelity envelope; times in us, ratios without a unit",
        &["figure", "goal", "measured", "verdict"],
    );
    let mut bar = |figure: String, goal: Goal, measured: Option<f64>| {
        let verdict = goal.verdict(measured);
        let measured = measured.map_or_else(String::new, |value| format!("{value:.2}"));
        table.row(vec![figure.into(), goal.text().into(), measured.into(), verdict.into()]);
    };
    let envelope = read("envelope");
    let in_step = |who: &str, streams: usize, column: &str| {
        envelope.as_ref()?.table("All streams in one step")?.number(&[who, &count(streams)], column)
    };
    for (figure, column) in [("burst spread", "burst us"), ("CPU per token", "CPU/token us")] {
        for streams in [256, 1024] {
            let measured = in_step("ratio to send()", streams, column);
            bar(format!("{figure}, {streams} streams, to send()"), Goal::AtMost(1.15), measured);
        }
    }
    for column in ["p50 us", "p90 us"] {
        for streams in [64, 256, 512, 1024] {
            let measured = in_step("ratio to send()", streams, column);
            let what = column.trim_end_matches(" us");
            bar(format!("{what}, {streams} in step, to send()"), Goal::AtMost(1.15), measured);
        }
    }
    for (streams, goal) in [(128, 1_000.0), (640, 5_000.0)] {
        let bare = in_step("bare send()", streams, "p99 us");
        let measured = in_step("llmsimulator scheduler", streams, "p99 us");
        bar(format!("p99, {streams} in step"), Goal::AtMostIfBare { goal, bare }, measured);
    }
    let apart = |who: &str, streams: usize, column: &str| {
        let table = envelope.as_ref()?.table("Streams with a timetable of their own")?;
        table.number(&[who, &count(streams)], column)
    };
    let ours = "llmsimulator fixed_rate";
    let bare = apart(BARE_EACH, 2000, "p99 us");
    for (column, goal) in [
        ("p90 us", Goal::AtMost(500.0)),
        ("p99 us", Goal::AtMostIfBare { goal: 5_000.0, bare }),
        ("tokens/s", Goal::AtLeast(98_000.0)),
    ] {
        bar(format!("fixed_rate, 2,000 x 50, {column}"), goal, apart(ours, 2000, column));
    }
    let drift = apart(ours, 1000, "drift us");
    bar("fixed_rate, 1,000 x 50, drift over a stream".into(), Goal::Within(100.0), drift);
    let to_llmsim = apart("llmsim / llmsimulator", 1000, "p50 us");
    bar("fixed_rate, 1,000 x 50, llmsim's p50 to ours".into(), Goal::AtLeast(100.0), to_llmsim);
    let saturated = envelope.as_ref().and_then(|report| {
        report.table("More than one core can send")?.number(&["ratio"], "tokens/s per busy core")
    });
    bar("saturated, tokens/s per core, to send()".into(), Goal::AtLeast(0.85), saturated);
    for (form, connections, column, goal) in [
        ("streaming", 64, "tokens/s", 2.0),
        ("streaming", 256, "tokens/s", 2.0),
        ("whole, 100 tokens, as installed", 64, "requests/s", 5.0),
        ("whole, 100 tokens, as installed, no log", 64, "requests/s", 5.0),
        ("whole, 16 tokens, its own benchmark", 64, "requests/s", 5.0),
        ("whole, 16 tokens, its cheapest", 64, "requests/s", 5.0),
    ] {
        let measured = envelope.as_ref().and_then(|report| {
            let row = ["llmsimulator / llmsim", form, &count(connections)];
            report.table("No timing")?.number(&row, column)
        });
        let figure = format!("instant, {form}, {connections} connections, {column} to llmsim's");
        bar(figure, Goal::AtLeast(goal), measured);
    }
    for streams in [1, 16, 64, 256, 1024] {
        let measured = envelope.as_ref().and_then(|report| {
            let table = report.table("Mean step time of a live server")?;
            table.number(&[&count(streams)], "deviation %")
        });
        bar(
            format!("live steps to the roofline, {streams} streams, %"),
            Goal::Within(0.3),
            measured,
        );
    }
    let report = read("isolation");
    let more = |case: &str| {
        report.as_ref().and_then(|report| report.tables().first()?.number(&[case], "p99 more, us"))
    };
    for (case, bare) in isolation::cases() {
        let goal = Goal::AtMostIfBare { goal: 1_000.0, bare: bare.and_then(more) };
        bar(format!("p99 more for others during {case}"), goal, more(case));
    }
    let scale = read("scale");
    let per_stream = |streams: usize| {
        let table = scale.as_ref()?.tables().first()?;
        table.number(&[&count(streams)], "server KiB/stream")
    };
    let growth = per_stream(10_000).zip(per_stream(1_250)).map(|(most, least)| most / least);
    bar("memory per stream, 10,000 to 1,250 streams".into(), Goal::AtMost(1.2), growth);
    let soak = read("soak");
    let grown = soak.as_ref().and_then(|report| {
        let table = report.tables().first()?;
        Some(table.number(&[], "MiB at the end")? / table.number(&[], "MiB after 1/5")?)
    });
    bar("soak, memory at the end to that after a fifth".into(), Goal::AtMost(1.02), grown);
    reporter.table(table);
    reporter.finish("bars", if save { Keep::Files } else { Keep::Nothing })
}

/// A number of streams as it stands in a table's first columns.
fn count(streams: usize) -> String {
    streams.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_reached_missed_excused_or_not_measured() {
        assert_eq!(Goal::AtMost(1.15).verdict(Some(1.15)), "reached");
        assert_eq!(Goal::AtMost(1.15).verdict(Some(1.16)), "not reached");
        assert_eq!(Goal::AtLeast(2.0).verdict(Some(1.9)), "not reached");
        assert_eq!(Goal::Within(0.3).verdict(Some(-0.31)), "not reached");
        assert_eq!(Goal::Within(0.3).verdict(None), "not measured");
        let goal = Goal::AtMostIfBare { goal: 5.0, bare: Some(5.5) };
        assert_eq!(goal.verdict(Some(6.0)), "not reached, nor by the bare loop");
        assert_eq!(goal.verdict(Some(4.9)), "reached");
    }

    #[test]
    fn a_part_that_hangs_is_ended() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let ended = wait(&mut child, Duration::from_millis(100));
        assert!(ended.is_err() && child.try_wait().unwrap().is_some());
    }
}
