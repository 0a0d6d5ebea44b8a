//! Tables of figures: printed, and kept as Markdown and JSON with what is needed to make them again.
//!
//! The invariant: a kept file and the printed text say the same, from the same table.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde::Serialize;

use crate::sys;

/// All that one measurement has to say.
#[derive(Serialize)]
pub(crate) struct Report {
    what: String,
    command: String,
    commit: String,
    host: String,
    kernel: String,
    cpus: usize,
    date: String,
    /// Ticks of 10 ms that the host took from this machine meanwhile.
    steal_ticks: u64,
    tables: Vec<Table>,
}

/// Figures under a heading.
#[derive(Serialize)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A figure or a word.
#[derive(Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Number(f64),
    Word(String),
    Nothing,
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

impl From<&str> for Cell {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl From<String> for Cell {
    fn from(word: String) -> Self {
        Self::Word(word)
    }
}

impl Cell {
    /// How many times `a` is `b`.
    pub(crate) fn ratio(a: u64, b: u64) -> Self {
        if b == 0 { Self::Nothing } else { Self::Number(a as f64 / b as f64) }
    }

    /// Nanoseconds as microseconds.
    pub(crate) fn us(ns: u64) -> Self {
        Self::Number((ns as f64 / 10.0).round() / 100.0)
    }

    fn text(&self) -> String {
        match self {
            Self::Nothing => String::new(),
            Self::Word(word) => word.clone(),
            Self::Number(n) if n.abs() >= 100.0 || n.fract() == 0.0 => thousands(*n),
            Self::Number(n) => format!("{n:.2}"),
        }
    }
}

fn thousands(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut text = if number < 0.0 { "-".to_owned() } else { String::new() };
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|&name| name.to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let texts: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |i: usize| {
            let cells = texts.iter().map(|row| row[i].chars().count());
            cells.chain([self.columns[i].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let mut line = String::from("|");
            for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let _ = if i == 0 {
                    write!(line, " {cell:<width$} |")
                } else {
                    write!(line, " {cell:>width$} |")
                };
            }
            line + "\n"
        };
        let mut text = format!("{}\n\n{}", self.title, line(&self.columns));
        for (i, width) in widths.iter().enumerate() {
            let dashes = "-".repeat(*width);
            let _ = if i == 0 {
                write!(text, "| {dashes} |")
            } else {
                write!(text, " {}: |", &dashes[1..])
            };
        }
        text.push('\n');
        texts.iter().for_each(|row| text.push_str(&line(row)));
        text
    }
}

/// Collects tables, prints each when it is complete.
pub(crate) struct Reporter {
    report: Report,
    steal_before: u64,
}

impl Reporter {
    pub(crate) fn new(what: &str) -> Self {
        let output = |program: &str, args: &[&str]| {
            let output = Command::new(program).args(args).output();
            output.map_or_else(
                |_| "unknown".to_owned(),
                |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            )
        };
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let mut command = String::from("llmsim-perf");
        for argument in std::env::args().skip(1).filter(|argument| argument != "--save") {
            let _ = write!(command, " {argument}");
        }
        let report = Report {
            what: what.to_owned(),
            command,
            commit: output("git", &["rev-parse", "--short", "HEAD"]),
            host: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: output("uname", &["-r"]),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            date: output("date", &["-u", "+%F"]),
            steal_ticks: 0,
            tables: Vec::new(),
        };
        println!("{what}\n");
        Self { report, steal_before: sys::steal_ticks() }
    }

    pub(crate) fn table(&mut self, table: Table) {
        println!("{}", table.markdown());
        self.report.tables.push(table);
    }

    /// Says how much the host took away, and keeps all in `perf/results/NAME.{md,json}` if asked.
    pub(crate) fn finish(mut self, name: &str, keep: Keep) -> ExitCode {
        self.report.steal_ticks = sys::steal_ticks() - self.steal_before;
        let Report { what, command, commit, host, kernel, cpus, date, steal_ticks, tables } =
            &self.report;
        let about = format!(
            "{host}, {cpus} processors, Linux {kernel}, commit {commit}, {date}; the host took \
             {steal_ticks} ticks of 10 ms meanwhile."
        );
        println!("{about}");
        if keep == Keep::Nothing {
            return ExitCode::SUCCESS;
        }
        let tables: Vec<String> = tables.iter().map(Table::markdown).collect();
        let run = command.replacen("llmsim-perf", "cargo run --release -p llmsim-perf --", 1);
        let text = format!("# {what}\n\n{about}\n\n    {run}\n\n{}", tables.join("\n"));
        let folder = Path::new("perf/results");
        let json = sonic_rs::to_string_pretty(&self.report).unwrap_or_default() + "\n";
        let kept = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join(format!("{name}.md")), text))
            .and_then(|()| std::fs::write(folder.join(format!("{name}.json")), json));
        match kept {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("llmsim-perf: {}: {error}", folder.display());
                ExitCode::FAILURE
            }
        }
    }
}

/// What becomes of a report when it has been printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Files,
    Nothing,
}

impl Keep {
    pub(crate) fn asked(save: bool) -> Self {
        if save { Self::Files } else { Self::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown_with_numbers_as_people_read_them() {
        let mut table = Table::new("Lag", &["who", "us"]);
        table.row(vec!["raw".into(), Cell::us(1_234_567)]);
        table.row(vec!["ours".into(), Cell::us(2_500)]);
        table.row(vec!["ratio".into(), Cell::ratio(1, 0)]);
        assert_eq!(
            table.markdown(),
            "Lag\n\n| who   |    us |\n| ----- | ----: |\n| raw   | 1,235 |\n| ours  |  2.50 |\n| ratio |       |\n"
        );
    }
}
