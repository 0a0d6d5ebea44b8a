//! Instructions per token and per request, in user space: figures that do not depend on how busy
//! the machine is.
//!
//! The server runs under callgrind with epoll and without spinning, and does the same work in a
//! small and in a large amount; the difference, by the amount, is what one token or one request
//! takes. Start and end cancel out. The kernel's part, most of the time, is not in it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::closed_loop::whole_length;
use crate::drain;
use crate::report::{Keep, Reporter, Table};
use crate::target::{Ask, Form, Target, connect, request, server_binary};

/// `llmsim-perf instructions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only one short case.
    #[arg(long)]
    brief: bool,
    /// The server to measure.
    #[arg(long, default_value_os_t = server_binary())]
    server: PathBuf,
    /// Keep the results in perf/results/.
    #[arg(long)]
    save: bool,
}

struct Case {
    name: &'static str,
    /// What the amount counts.
    unit: &'static str,
    small: u32,
    large: u32,
    yml: fn() -> String,
    /// Does it, and says how many units that were.
    act: fn(&Target, u32) -> io::Result<u64>,
}

const STREAMS: usize = 64;

const CASES: [Case; 4] = [
    Case {
        name: "instant, whole answers of 16 tokens",
        unit: "request",
        small: 200,
        large: 1_200,
        yml: || "version: 1\nmodels:\n  - { name: now, context_length: 8192 }\n".to_owned(),
        act: whole_answers,
    },
    Case {
        name: "scheduler, 64 streams in one step",
        unit: "token",
        small: 20,
        large: 80,
        yml: || crate::lag::models_yml(50),
        act: |target, tokens| streams(target, "lag", tokens),
    },
    Case {
        name: "fixed_rate, 64 streams",
        unit: "token",
        small: 20,
        large: 80,
        yml: || crate::envelope::fixed_rate_yml(20.0),
        act: |target, tokens| streams(target, "fixed", tokens),
    },
    Case {
        name: "instant, streamed answers",
        unit: "token",
        small: 64,
        large: 512,
        yml: || "version: 1\nmodels:\n  - { name: now, context_length: 8192 }\n".to_owned(),
        act: |target, tokens| streams(target, "now", tokens),
    },
];

pub(crate) fn run(args: &Args) -> ExitCode {
    match measure(args) {
        Ok(reporter) => reporter.finish("instructions", Keep::asked(args.save)),
        Err(error) => {
            eprintln!("llmsim-perf instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<Reporter> {
    let mut reporter = Reporter::new("Instructions");
    let title = "User-space instructions of all threads of the server, by callgrind";
    let mut table = Table::new(title, &["what", "instructions", "per"]);
    for case in CASES.iter().take(if args.brief { 1 } else { CASES.len() }) {
        let (small, large) = if args.brief { (20, 60) } else { (case.small, case.large) };
        let (less, base) = counted(&args.server, case, small)?;
        let (more, all) = counted(&args.server, case, large)?;
        let each = all.saturating_sub(base) as f64 / (more - less) as f64;
        table.row(vec![case.name.into(), each.round().into(), case.unit.into()]);
    }
    reporter.table(table);
    Ok(reporter)
}

/// Units done, and instructions in all.
fn counted(server: &Path, case: &Case, amount: u32) -> io::Result<(u64, u64)> {
    let out = std::env::temp_dir().join(format!("llmsim-perf-callgrind-{}", std::process::id()));
    let target = Target::start_under_callgrind(server, &(case.yml)(), &out)?;
    let units = (case.act)(&target, amount)?;
    target.end()?;
    let text = std::fs::read_to_string(&out)?;
    let _ = std::fs::remove_file(&out);
    let total = text.lines().rev().find_map(|line| line.strip_prefix("totals: "));
    let total = total.and_then(|total| total.trim().parse().ok());
    Ok((units, total.ok_or_else(|| io::Error::other("callgrind told no total"))?))
}

fn whole_answers(target: &Target, requests: u32) -> io::Result<u64> {
    let mut socket = connect(target.address)?;
    let request = request(target.path, "now", "Hello", 16, Form::Whole);
    let mut buffer = vec![0; 65_536];
    for _ in 0..requests {
        socket.write_all(&request)?;
        read_whole(&mut socket, &mut buffer)?;
    }
    Ok(u64::from(requests))
}

fn read_whole(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut got = 0;
    loop {
        match socket.read(&mut buffer[got..])? {
            0 => return Err(io::Error::other("the server closed the connection")),
            more => got += more,
        }
        if whole_length(&buffer[..got]).is_some_and(|length| got >= length) {
            return Ok(());
        }
    }
}

fn streams(target: &Target, model: &str, tokens: u32) -> io::Result<u64> {
    let ask = Ask { model, content: "Hello", max_tokens: tokens, stagger_us: 0 };
    let mut sockets = target.open(STREAMS, ask)?;
    // The role, the tokens and the end.
    drain::drain(&mut sockets, tokens + 2, &mut Vec::new())?;
    Ok(u64::from(tokens) * STREAMS as u64)
}
