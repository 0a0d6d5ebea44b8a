//! Tables of figures: printed, and kept as Markdown and JSON with what is needed to make them again.
//!
//! The invariant: a kept file and the printed text say the same, from the same table.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::{Deserialize, Serialize};

use crate::sys;

/// All that one measurement has to say.
#[derive(Deserialize, Serialize)]
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
#[derive(Deserialize, Serialize)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A figure or a word.
#[derive(Clone, Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Cell {
    Number(f64),
    Word(String),
    Nothing,
}

/// The folder for results, if not [`Report::FOLDER`].
pub(crate) const RESULTS_VARIABLE: &str = "LLMSIM_PERF_RESULTS";

impl Report {
    /// Where results are kept.
    pub(crate) const FOLDER: &str = "perf/results";

    /// A report that was kept; `None` if it was not, or cannot be read.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        sonic_rs::from_slice(&std::fs::read(path).ok()?).ok()
    }

    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The table whose title begins like that.
    pub(crate) fn table(&self, title: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.title.starts_with(title))
    }

    /// Host, kernel, commit and date, in one line.
    pub(crate) fn about_this_machine() -> String {
        Self::begin("").about()
    }

    fn begin(what: &str) -> Self {
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
        Self {
            what: what.to_owned(),
            command,
            commit: output("git", &["rev-parse", "--short", "HEAD"]),
            host: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: output("uname", &["-r"]),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            date: output("date", &["-u", "+%F"]),
            steal_ticks: 0,
            tables: Vec::new(),
        }
    }

    fn about(&self) -> String {
        let Self { commit, host, kernel, cpus, date, .. } = self;
        format!("{host}, {cpus} processors, Linux {kernel}, commit {commit}, {date}")
    }
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

    /// Whether it is this word, or this number without separators.
    fn is(&self, word: &str) -> bool {
        match self {
            Self::Word(own) => own.replace(',', "") == word.replace(',', ""),
            Self::Number(own) => word.parse() == Ok(*own),
            Self::Nothing => false,
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Word(word) => word.parse().ok(),
            Self::Nothing => None,
        }
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

    /// The number in this column of the first row that begins like that.
    pub(crate) fn number(&self, row: &[&str], column: &str) -> Option<f64> {
        let column = self.columns.iter().position(|name| name == column)?;
        let is_it = |cells: &&Vec<Cell>| row.iter().zip(*cells).all(|(word, cell)| cell.is(word));
        self.rows.iter().find(is_it)?.get(column)?.number()
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
        let report = Report::begin(what);
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
        let Report { what, command, steal_ticks, tables, .. } = &self.report;
        let about = format!(
            "{}; the host took {steal_ticks} ticks of 10 ms meanwhile.",
            self.report.about()
        );
        println!("{about}");
        if keep == Keep::Nothing {
            return ExitCode::SUCCESS;
        }
        let tables: Vec<String> = tables.iter().map(Table::markdown).collect();
        let run = command.replacen("llmsim-perf", "cargo run --release -p llmsim-perf --", 1);
        let text = format!("# {what}\n\n{about}\n\n    {run}\n\n{}", tables.join("\n"));
        let folder =
            std::env::var_os(RESULTS_VARIABLE).map_or(Report::FOLDER.into(), PathBuf::from);
        let json = sonic_rs::to_string_pretty(&self.report).unwrap_or_default() + "\n";
        let kept = std::fs::create_dir_all(&folder)
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
    fn a_kept_figure_is_found_by_its_row_and_column() {
        let mut table = Table::new("Lag of all", &["who", "streams", "us"]);
        table.row(vec!["raw".into(), 64_usize.into(), Cell::us(1_000)]);
        table.row(vec!["raw".into(), 1_024_usize.into(), Cell::us(2_000)]);
        table.row(vec!["1,024".into(), Cell::Nothing, "3.5".into()]);
        let report = Report { tables: vec![table], ..Report::begin("x") };
        let text = sonic_rs::to_string(&report).unwrap();
        let report: Report = sonic_rs::from_str(&text).unwrap();
        let table = report.table("Lag of").unwrap();
        assert_eq!(table.number(&["raw", "1024"], "us"), Some(2.0));
        assert_eq!(table.number(&["1024"], "us"), Some(3.5));
        assert_eq!(table.number(&["raw", "65"], "us"), None);
        assert_eq!(table.number(&[], "us"), Some(1.0));
    }

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
