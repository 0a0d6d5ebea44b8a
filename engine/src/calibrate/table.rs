//! Measured runs as a table of comma-separated values holds them, one run a line.
//!
//! Columns come in any order, and any of them may be missing: an absent cell and an empty one are
//! the same. Where a row does not say something, this file says what is taken instead, and why. The
//! invariant: what a client sends does not hang on what was measured.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::calibrate::fit::Observed;
use crate::calibrate::range;
use crate::calibrate::workload::{Load, Metric, Workload};
use crate::sim::scheduler::PrefillOrder;
use crate::units::SimSpan;

/// A row of a CSV file with a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    cells: BTreeMap<String, String>,
}

impl Row {
    /// A row with these cells, by column.
    pub fn new(cells: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { cells: cells.into_iter().collect() }
    }

    /// Whether the table has the column.
    pub fn has(&self, column: &str) -> bool {
        self.cells.contains_key(column)
    }

    /// The cell in a column, nothing if there is none.
    pub fn text(&self, column: &str) -> &str {
        self.cells.get(column).map_or("", |cell| cell.trim())
    }

    /// The number in a column.
    pub fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse().ok().filter(|number: &f64| number.is_finite())
    }

    /// A number over 0.
    pub fn positive(&self, column: &str) -> Option<f64> {
        self.number(column).filter(|&number| number > 0.0)
    }

    /// The mean of a figure in ms or else its median, as seconds, and which of them it is.
    pub fn figure(&self, name: &str) -> Option<(f64, Middle)> {
        let mean = self.positive(&format!("{name}_ms_mean")).map(|ms| (ms, Middle::Mean));
        let (ms, middle) = mean
            .or_else(|| self.positive(&format!("{name}_ms_p50")).map(|ms| (ms, Middle::Median)))?;
        Some((ms / 1e3, middle))
    }

    /// The pair of model, GPUs and engine that it is of.
    pub fn pair(&self) -> String {
        match self.text("pair") {
            "" => format!(
                "{}|{}|tp{}|{}|{}",
                self.text("model"),
                self.text("gpu"),
                self.text("tp"),
                self.text("engine"),
                self.text("weight_dtype")
            ),
            pair => pair.to_owned(),
        }
    }

    /// What was run, without what came of it.
    pub fn key(&self) -> String {
        let columns = ["load", "concurrency", "rate_rps", "isl", "osl", "engine_version", "notes"];
        let cells: Vec<&str> = columns.iter().map(|column| self.text(column)).collect();
        format!("{}|{}", self.pair(), cells.join("|"))
    }
}

/// Which middle a figure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    Mean,
    Median,
}

/// What the columns can hold.
const POSSIBLE: [(&str, RangeInclusive<f64>); 11] = [
    ("concurrency", range::AT_ONCE),
    ("rate_rps", range::PER_SECOND),
    ("num_requests", range::REQUESTS),
    ("isl", range::LENGTH),
    ("osl", range::LENGTH),
    ("prefix_cached_frac", range::SHARE),
    ("ttft_ms_mean", range::LATENCY_MS),
    ("ttft_ms_p50", range::LATENCY_MS),
    ("tpot_ms_mean", range::LATENCY_MS),
    ("tpot_ms_p50", range::LATENCY_MS),
    ("out_tok_s", range::TOKENS_PER_SECOND),
];

/// Refuses a row with a number that cannot be; an empty cell is none.
///
/// # Errors
/// Which column, what it holds, and what it can.
pub fn possible(row: &Row) -> Result<(), String> {
    for (column, within) in POSSIBLE {
        let text = row.text(column);
        if !text.is_empty() && !row.number(column).is_some_and(|number| within.contains(&number)) {
            let (least, most) = within.into_inner();
            return Err(format!(
                "`{column}` is `{text}`; it must be a number from {least} to {most}, or empty"
            ));
        }
    }
    Ok(())
}

/// The rows of a CSV text, by column.
pub fn table(text: &str) -> Vec<Row> {
    let mut records = records(text.trim_start_matches('\u{feff}')).into_iter();
    let Some(columns) = records.next() else { return Vec::new() };
    let columns: Vec<String> = columns.iter().map(|name| name.trim().to_owned()).collect();
    records
        .filter(|cells| cells.iter().any(|cell| !cell.is_empty()))
        .map(|cells| Row::new(columns.iter().cloned().zip(cells)))
        .collect()
}

/// The records of a CSV text: quotes protect commas and line ends, two quotes are one.
fn records(text: &str) -> Vec<Vec<String>> {
    let mut records = vec![vec![String::new()]];
    let mut quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let record = records.last_mut().expect("there is always a record");
        let cell = record.last_mut().expect("there is always a cell");
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => record.push(String::new()),
            '\r' if !quoted => {}
            '\n' if !quoted => records.push(vec![String::new()]),
            other => cell.push(other),
        }
    }
    records
}

/// The client of a row, of an engine with this order of prefills.
///
/// Nobody runs a closed loop in which all requests stay in step for long, but on an engine that
/// does: one that prefills first makes all wait while one is prefilled, so that those that came
/// together go on together. Where the number of requests is not published, and lengths are not
/// known to be all the same, a run is therefore taken to be out of step after its burst, if the
/// engine mixes prefills with decodes.
///
/// # Errors
/// What is missing, or cannot be.
pub fn workload(row: &Row, order: PrefillOrder) -> Result<Workload, String> {
    let distribution = row.text("len_dist");
    let rate = row.positive("rate_rps");
    let (Some(input), Some(output)) = (row.positive("isl"), row.positive("osl")) else {
        return Err("the lengths are not published".to_owned());
    };
    let concurrency =
        row.positive("concurrency").map(|number| number.min(*range::AT_ONCE.end()) as u32);
    let shortest: f64 = match distribution {
        "" | "fixed" => 1.0,
        other => other
            .strip_prefix("uniform:")
            .and_then(|share| share.trim().parse().ok())
            .filter(|share: &f64| (0.0..=1.0).contains(share))
            // A mixed text: mean lengths are all that is published. One at a time they are nearly
            // as good as the lengths; several at once must not stay in step.
            .unwrap_or(if concurrency == Some(1) { 1.0 } else { 0.0 }),
    };
    // A mean is given: lengths drawn from 0 to twice as much have it.
    let (input, output) = match (distribution.starts_with("uniform"), shortest) {
        (false, 0.0) => (2.0 * input, 2.0 * output),
        _ => (input, output),
    };
    let requests =
        row.positive("num_requests").map(|count| count.min(*range::REQUESTS.end()) as usize);
    let shared = row.positive("prefix_cached_frac").unwrap_or(0.0);
    let drawn = |load, count| Workload::drawn(load, count, input, output, shortest).sharing(shared);
    match (row.text("load"), concurrency, rate) {
        ("closed", Some(concurrency), _) => {
            let all =
                drawn(Load::Closed { concurrency }, requests.unwrap_or(10 * concurrency as usize));
            let varies = distribution.starts_with("uniform");
            Ok(match (requests, order) {
                (None, PrefillOrder::Mixed) if varies => all.out_of_step(),
                _ => all,
            })
        }
        ("static-batch", Some(concurrency), _) => {
            Ok(drawn(Load::Closed { concurrency }, concurrency as usize))
        }
        ("open-poisson", _, Some(rate)) => {
            Ok(drawn(Load::Open, requests.unwrap_or(300)).at_rate(rate))
        }
        ("open-constant", _, Some(rate)) => {
            let mut workload = drawn(Load::Open, requests.unwrap_or(300));
            for (place, request) in workload.requests.iter_mut().enumerate() {
                request.at = SimSpan::from_secs_f64(place as f64 / rate);
            }
            Ok(workload)
        }
        ("closed" | "static-batch", None, _) => Err("the concurrency is not published".to_owned()),
        ("open-poisson" | "open-constant", _, None) => {
            Err("the arrival rate is not published".to_owned())
        }
        (load, ..) => Err(format!("load `{load}` is unknown")),
    }
}

/// With more than this share of a request's time before its first token, the engine is saturated:
/// requests queue, and TTFT adds up the errors of all steps before.
const SATURATED: f64 = 0.25;

/// What was measured in a row, and whether its TTFT is one of an engine that keeps up.
pub fn observed(row: &Row) -> (Vec<Observed>, bool) {
    let load = row.text("load");
    let mut observed = Vec::new();
    let ttft = row.figure("ttft").filter(|_| row.text("ttft_ok") != "0");
    let tpot = row.figure("tpot");
    let is_saturated = match (ttft, tpot, row.positive("osl")) {
        (Some((ttft, _)), Some((tpot, _)), Some(output)) if load != "static-batch" => {
            ttft / (ttft + tpot * (output - 1.0).max(1.0)) > SATURATED
        }
        _ => false,
    };
    if let Some((value, middle)) = tpot {
        let metric = match middle {
            Middle::Mean => Metric::MeanTpot,
            Middle::Median => Metric::MedianTpot,
        };
        observed.push(Observed { metric, value, weight: 1.0 });
    }
    if let Some((value, middle)) = ttft {
        let metric = match middle {
            Middle::Mean => Metric::MeanTtft,
            Middle::Median => Metric::MedianTtft,
        };
        let weight = if is_saturated { 0.1 } else { 0.5 };
        observed.push(Observed { metric, value, weight });
    }
    if let Some(value) = row.positive("out_tok_s") {
        observed.push(Observed { metric: Metric::OutputRate, value, weight: 1.0 });
    }
    (observed, ttft.is_some() && !is_saturated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::workload::Phases;

    #[test]
    fn quoted_cells_keep_their_commas_and_lines() {
        assert_eq!(
            records("a,\"b, \"\"c\"\"\",,d\r\n\"two\nlines\",x"),
            [vec!["a", "b, \"c\"", "", "d"], vec!["two\nlines", "x"]]
        );
        assert_eq!(records(""), [[""]]);
    }

    #[test]
    fn columns_may_be_missing_and_rows_may_be_short() {
        let rows = table("model,gpu,isl\nllama, h100 ,12\n\nqwen\n");
        assert_eq!(rows.len(), 2);
        let row = &rows[0];
        assert_eq!(
            (row.text("gpu"), row.number("isl"), row.number("osl")),
            ("h100", Some(12.0), None)
        );
        assert_eq!(row.pair(), "llama|h100|tp||");
        assert_eq!(rows[1].text("gpu"), "");
    }

    #[test]
    fn a_number_that_cannot_be_is_named() {
        let of = |text: &str| possible(&table(text).remove(0));
        assert_eq!(of("concurrency,isl,osl,tpot_ms_mean\n4,100,10,12.5"), Ok(()));
        assert_eq!(of("concurrency,rate_rps\n,2"), Ok(()));
        for (column, number) in [
            ("concurrency", "0"),
            ("concurrency", "-3"),
            ("rate_rps", "abc"),
            ("rate_rps", "0"),
            ("prefix_cached_frac", "nan"),
            ("prefix_cached_frac", "1.5"),
            ("ttft_ms_mean", "1e300"),
            ("tpot_ms_p50", "1e-300"),
        ] {
            let why = of(&format!("{column},x\n{number},")).unwrap_err();
            assert!(why.starts_with(&format!("`{column}` is `{number}`; it must be")), "{why}");
        }
    }

    #[test]
    fn a_run_of_unknown_length_is_out_of_step_where_the_engine_mixes_prefills_with_decodes() {
        let of = |more: &str, order| {
            let text =
                format!("load,concurrency,isl,osl,len_dist,num_requests\nclosed,4,100,1000,{more}");
            let workload = workload(&table(&text)[0], order).unwrap();
            let outputs = workload.requests.iter().map(|request| request.output.get());
            (workload.phases, outputs.take(4).collect::<Vec<_>>())
        };
        use PrefillOrder::{First, Mixed};
        // Halves of the golden ratio's multiples: 0.31, 0.93, 0.55, 0.16 of 950 to 1,000.
        let (phases, burst) = of("uniform:0.95,", Mixed);
        assert_eq!(phases, Phases::Spread);
        for (output, share) in burst.into_iter().zip([0.309, 0.927, 0.545, 0.163]) {
            let least = (950.0 * share) as u32;
            assert!((least..=least + 60).contains(&output), "{output}, {share}");
        }
        for (more, order) in
            [("uniform:0.95,", First), ("uniform:0.95,40", Mixed), ("fixed,", Mixed)]
        {
            let (phases, burst) = of(more, order);
            assert_eq!(phases, Phases::AsTheyCome, "{more}");
            assert!(burst.iter().all(|&output| output >= 950), "{more}: {burst:?}");
        }
    }

    #[test]
    fn a_figure_is_the_mean_or_else_the_median() {
        let row = |text: &str| table(text).remove(0);
        let both = row("tpot_ms_mean,tpot_ms_p50\n20,10");
        assert_eq!(both.figure("tpot"), Some((0.02, Middle::Mean)));
        let one = row("tpot_ms_mean,tpot_ms_p50\n,10");
        assert_eq!(one.figure("tpot"), Some((0.01, Middle::Median)));
        assert_eq!(row("tpot_ms_mean\nnan").figure("tpot"), None);
    }
}
