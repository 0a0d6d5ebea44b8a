//! `calibrate`: constants that explain measured runs, as a models file that has them.
//!
//! It reads and writes; the fit is the engine's (`llmsim_engine::calibrate`). What it prints is a
//! models file that loads, with the report as comments above it.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use llmsim_engine::calibrate::{
    Constant, Constants, Fitting, Gaps, Load, Measured, Report, Run, fit, fit_residual, linearise,
    observed, possible, read_json, relive, table, workload, written,
};
use llmsim_engine::config::{self, Config, ModelSpec};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::sim::scheduler::{PrefillOrder, Residual, SchedulerSpec};

use crate::args::Files;

/// What to calibrate on what.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The configuration to begin with.
    pub files: Files,
    /// What else was asked for.
    pub asked: Asked,
}

/// What is asked for besides the configuration.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct Asked {
    /// The model that was measured, if the configuration has several
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,

    /// Write the models file to FILE, and the report to standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// The share of each prompt that the prefix cache held, from 0 to 1, if the results do not tell
    #[arg(long, value_name = "SHARE")]
    pub prefix_cached: Option<f64>,

    /// Write how far single steps stray from their mean, too (`step_residual`), as far as the
    /// percentiles of ITL tell it; without this it is only reported
    #[arg(long)]
    pub step_residual: bool,

    /// JSON of llmsim-bench, `vllm bench serve` or aiperf, or CSV with the columns load,
    /// concurrency (or rate_rps), isl, osl, ttft_ms_mean and tpot_ms_mean
    #[arg(value_name = "RESULT", required = true)]
    pub results: Vec<PathBuf>,
}

/// Longer closed loops are cut to this; their burst and some rounds remain. Many runs share
/// [`MOST_OF_ALL`], so that a calibration ends in seconds.
const MOST_TOKENS: u64 = 400_000;

/// Output tokens of all runs, where closed loops can be cut to it.
const MOST_OF_ALL: u64 = 4_000_000;

/// More runs than this say nothing that a part of them does not.
const MOST_RUNS: usize = 100;

/// What a run may generate that cannot be cut further.
const MOST_UNCUT: u64 = 10_000_000;

/// The largest file that is read. With `--save-detailed` a result has a number per token.
const MOST_BYTES: u64 = 64 << 20;

/// Fits and writes.
///
/// # Errors
/// What is wrong with a file, as the whole message.
pub fn run(options: &Options) -> Result<String, String> {
    if let Some(share) = options.asked.prefix_cached.filter(|share| !(0.0..=1.0).contains(share)) {
        return Err(format!(
            "--prefix-cached is {share}; it is a share of the prompt: a number from 0 to 1"
        ));
    }
    let config = super::load(&options.files)?;
    let (model, spec, start) = chosen(&config, options)?;
    let mut names = Vec::new();
    let mut gaps = Vec::new();
    let mut all = Vec::new();
    for path in &options.asked.results {
        for mut measured in read(path, spec.prefill_order)? {
            names.push(format!("{}: {}", file_name(path), measured.name));
            gaps.push(measured.gaps.take());
            all.push(measured);
        }
    }
    if all.len() > MOST_RUNS {
        return Err(format!(
            "there are {} runs; at most {MOST_RUNS} are fitted at once. Give a dozen or so, at \
             different concurrencies and prompt lengths: more of the same tell no more",
            all.len()
        ));
    }
    let each = MOST_TOKENS.min(MOST_OF_ALL / all.len().max(1) as u64);
    let mut runs = Vec::new();
    for (measured, name) in all.into_iter().zip(&names) {
        let run = as_run(measured, spec, options, each);
        let tokens = run.workload.output_tokens();
        if tokens > MOST_UNCUT {
            return Err(format!(
                "{name}: {} requests with {tokens} output tokens; at most {MOST_UNCUT} are lived \
                 through. Give a shorter part of the run, or one with fewer requests at a time",
                run.workload.requests.len()
            ));
        }
        runs.push(run);
    }
    let refused = |place: usize, why: llmsim_engine::sim::Refusal| {
        format!(
            "{}: `{}` refuses a request of this run ({}); raise context_length or the KV cache, or \
             give the model that was measured",
            names[place],
            model.name,
            why.as_str()
        )
    };
    let before = runs
        .iter()
        .enumerate()
        .map(|(place, run)| {
            linearise(&run.spec, &start, &run.workload).map_err(|why| refused(place, why))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let found =
        fit(&runs, &start, Fitting::of(runs.len())).map_err(|(place, why)| refused(place, why))?;
    let mut report =
        Report { names: &names, runs: &runs, before: &before, fit: &found }.to_string();
    let strays = spread(&names, &runs, &gaps, &found.constants, &mut report);

    let efficiency: Vec<(&str, f64)> = Constant::ALL
        .into_iter()
        .filter(|&constant| constant != Constant::RequestOverhead)
        .filter_map(|constant| Some((constant.key(), written(&found.constants, constant)?)))
        .collect();
    let overhead = written(&found.constants, Constant::RequestOverhead);
    let source = llmsim_defaults::read(&options.files.models).map_err(|error| error.to_string())?;
    let place = config.models.iter().position(|other| other.name == model.name).unwrap_or(0);
    let yaml = config::with_constants(&source.text, place, &efficiency, overhead)
        .map_err(|why| format!("{}: {why}", options.files.models))?;
    let yaml = match strays.filter(|_| options.asked.step_residual) {
        Some(residual) => {
            let numbers = [
                ("sigma", residual.sigma),
                ("tail_probability", residual.tail_probability),
                ("tail_factor", residual.tail_factor),
            ]
            .map(|(name, value)| (name, (value * 1e4).round() / 1e4));
            config::with_step_residual(&yaml, place, &numbers)
                .map_err(|why| format!("{}: {why}", options.files.models))?
        }
        None => yaml,
    };

    let mut out = format!(
        "# `{}` of {}, fitted to {} measured run{} by llmsimulator calibrate.\n#\n",
        model.name,
        options.files.models,
        runs.len(),
        if runs.len() == 1 { "" } else { "s" }
    );
    for line in report.lines() {
        let end = if line.is_empty() { "" } else { " " };
        writeln!(out, "#{end}{}", line.trim_end()).expect("writing to a string cannot fail");
    }
    out.push('\n');
    out.push_str(&yaml);
    let Some(path) = &options.asked.output else { return Ok(out) };
    std::fs::write(path, &out).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(format!("{report}written to {}\n", path.display()))
}

/// How far single steps stray, from the run with the most tokens of those that tell it; says so in
/// the report.
fn spread(
    names: &[String],
    runs: &[Run],
    gaps: &[Option<Gaps>],
    constants: &Constants,
    report: &mut String,
) -> Option<Residual> {
    let say = |report: &mut String, what: std::fmt::Arguments<'_>| {
        writeln!(report, "{what}").expect("writing to a string cannot fail");
    };
    let told = names
        .iter()
        .zip(runs)
        .zip(gaps)
        .filter_map(|((name, run), gaps)| Some((name, run, gaps.as_ref()?)));
    let Some((name, run, gaps)) = told.max_by_key(|(_, run, _)| run.workload.output_tokens())
    else {
        let why = "no run has percentiles of the gaps between tokens (ITL)";
        say(report, format_args!("jitter of single steps: not told; {why}"));
        return None;
    };
    let spread = relive(&run.spec, constants, &run.workload)
        .map_err(|why| why.as_str())
        .and_then(|rerun| fit_residual(&rerun, gaps));
    match spread {
        Err(why) => {
            say(report, format_args!("jitter of single steps: not told; {name}: {why}"));
            None
        }
        Ok(spread) => {
            let Residual { sigma, tail_probability, tail_factor, .. } = spread.residual;
            say(
                report,
                format_args!(
                    "jitter of single steps ({name}): sigma {sigma:.4}, and {:.0} % of them \
                     {tail_factor:.2} times as long",
                    tail_probability * 100.0
                ),
            );
            for ratio in &spread.ratios {
                say(
                    report,
                    format_args!(
                        "  ITL {} / p50: measured {:.3}, without jitter {:.3}, with it {:.3}",
                        ratio.percentile, ratio.measured, ratio.without, ratio.with
                    ),
                );
            }
            for untold in &spread.untold {
                say(report, format_args!("warning: {untold}"));
            }
            Some(spread.residual)
        }
    }
}

/// The model that is meant, its GPU and the constants that it has now.
fn chosen<'a>(
    config: &'a Config,
    options: &Options,
) -> Result<(&'a ModelSpec, &'a SchedulerSpec, Constants), String> {
    let name = &options.files.models;
    let all = |models: &[&ModelSpec]| {
        models.iter().map(|model| format!("`{}`", model.name)).collect::<Vec<_>>().join(", ")
    };
    let schedulers: Vec<&ModelSpec> = config
        .models
        .iter()
        .filter(|model| matches!(model.engine, EngineSpec::Scheduler(_)))
        .collect();
    let model = match (&options.asked.model, &schedulers[..]) {
        (Some(wanted), _) => {
            let every: Vec<&ModelSpec> = config.models.iter().collect();
            config.models.iter().find(|model| model.name == *wanted).ok_or_else(|| {
                format!("{name}: there is no model `{wanted}`; there are {}", all(&every))
            })?
        }
        (None, [one]) => one,
        (None, []) => return Err(format!("{name}: no model has `engine: scheduler`")),
        (None, several) => {
            return Err(format!(
                "{name} has several models; say --model with one of {}",
                all(several)
            ));
        }
    };
    let EngineSpec::Scheduler(spec) = &model.engine else {
        return Err(format!(
            "{name}: model `{}` does not have `engine: scheduler`, and so no constants to fit",
            model.name
        ));
    };
    let StepCost::Roofline(roofline) = &spec.cost else {
        return Err(format!("{name}: the steps of `{}` take a fixed time", model.name));
    };
    let start =
        Constants { efficiency: roofline.efficiency, request_overhead: model.request_overhead };
    Ok((model, spec, start))
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or(path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// The runs of a result, whatever tool wrote it.
fn read(path: &Path, order: PrefillOrder) -> Result<Vec<Measured>, String> {
    let name = path.display();
    let wrong = |error: std::io::Error| format!("{name}: {error}");
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(wrong)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(wrong)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!(
            "{name}: larger than {} MiB, the most that is read; save the result without the times \
             of every token (--save-detailed), or give fewer runs",
            MOST_BYTES >> 20
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{name}: not UTF-8"))?;
    if text.trim_start().starts_with(['{', '[']) {
        return read_json(&text).map_err(|why| format!("{name}: {why}"));
    }
    let rows = table(&text);
    if rows.is_empty() {
        return Err(format!(
            "{name}: neither JSON nor CSV with a header line (`load,concurrency,isl,osl,\
             ttft_ms_mean,tpot_ms_mean`) and a line per run"
        ));
    }
    rows.iter()
        .enumerate()
        .map(|(place, row)| {
            let line = place + 2;
            let at = |why: String| format!("{name}, line {line}: {why}");
            possible(row).map_err(at)?;
            let workload = workload(row, order).map_err(at)?;
            let (observed, _) = observed(row);
            if observed.is_empty() {
                return Err(format!(
                    "{name}, line {line}: none of ttft_ms_mean, tpot_ms_mean, out_tok_s (or \
                     ttft_ms_p50, tpot_ms_p50) is a number over 0"
                ));
            }
            Ok(Measured { name: format!("line {line}"), workload, observed, gaps: None })
        })
        .collect()
}

fn as_run(measured: Measured, spec: &SchedulerSpec, options: &Options, most_tokens: u64) -> Run {
    let mut workload = measured.workload;
    if let Some(share) = options.asked.prefix_cached {
        workload = workload.sharing(share);
    }
    if let Load::Closed { .. } = workload.load {
        workload = workload.shortened(most_tokens);
    }
    Run { spec: spec.clone(), workload, observed: measured.observed }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODELS: &str = "models:\n  - name: qwen\n    engine: scheduler\n    model: qwen3-14b\n    \
                          hardware: h100-80gb-sxm\n    engine_class: vllm-v1-hopper-bf16\n    \
                          context_length: 8192\n";

    /// A directory of its own with these files, gone at the end.
    struct Directory(PathBuf);

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn calibrated(name: &str, models: &str, result: &str) -> Result<String, String> {
        let directory =
            Directory(std::env::temp_dir().join(format!("llmsim-{name}-{}", std::process::id())));
        std::fs::create_dir_all(&directory.0).unwrap();
        let (models_file, result_file) =
            (directory.0.join("models.yml"), directory.0.join("result"));
        std::fs::write(&models_file, models).unwrap();
        std::fs::write(&result_file, result).unwrap();
        run(&Options {
            files: Files {
                models: models_file.to_string_lossy().into_owned(),
                responses: "builtin:responses".to_owned(),
                faults: None,
            },
            asked: Asked {
                model: None,
                output: None,
                prefix_cached: None,
                step_residual: true,
                results: vec![result_file],
            },
        })
    }

    #[test]
    fn a_result_becomes_a_models_file_that_loads_and_explains_it() {
        let result = r#"{"max_concurrency": 4, "request_rate": "inf", "completed": 20,
            "total_input_tokens": 20000, "total_output_tokens": 2000, "mean_ttft_ms": 200.0,
            "mean_tpot_ms": 15.0}"#;
        let text = calibrated("loads", MODELS, result).unwrap();
        assert!(text.contains("# result: run"), "{text}");
        assert!(text.contains("valid for up to 4 requests"), "{text}");
        assert!(text.contains("weight_bandwidth: 0."), "{text}");
        // Once more, from there: the file that was written does what the fit said it would.
        let again = calibrated("again", &text, result).unwrap();
        let percent = |text: &str, column: usize| -> f64 {
            let line = text.lines().find(|line| line.contains("mean TPOT")).unwrap();
            let word = line.split_whitespace().rev().nth(column);
            word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
        };
        let (after, before) = (percent(&text, 1), percent(&again, 3));
        assert!((after - before).abs() < 0.15, "{after} then {before}: {again}");
        assert!(after.abs() < percent(&text, 3).abs() / 2.0, "{text}");
    }

    #[test]
    fn a_small_table_will_do() {
        let table = "load,concurrency,isl,osl,num_requests,tpot_ms_mean\nclosed,1,500,50,4,12\n";
        let text = calibrated("table", MODELS, table).unwrap();
        assert!(text.contains("result: line 2"), "{text}");
        assert!(text.contains("warning: no run tells TTFT"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_field_run_and_range() {
        let row = "concurrency,rate_rps,isl,osl,num_requests,tpot_ms_mean,load";
        for (line, expected) in [
            ("0,,500,50,4,12,closed", "line 2: `concurrency` is `0`; it must be a number from 1"),
            (",abc,500,50,4,12,open-poisson", "line 2: `rate_rps` is `abc`; it must be a number"),
            ("1,,500,50,4,1e300,closed", "line 2: `tpot_ms_mean` is `1e300`; it must be"),
        ] {
            let why = calibrated("cell", MODELS, &format!("{row}\n{line}\n")).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
        let many = "1,,500,50,4,12,closed\n".repeat(MOST_RUNS + 1);
        let why = calibrated("many", MODELS, &format!("{row}\n{many}")).unwrap_err();
        assert!(why.contains("there are 101 runs; at most 100"), "{why}");
        let why = calibrated("uncut", MODELS, &format!("{row}\n5000,,500,5000,,12,closed\n"));
        assert!(why.unwrap_err().contains("at most 10000000 are lived through"));
        for share in [2.0, -1.0, f64::NAN] {
            let options = Options {
                files: Files {
                    models: "none".to_owned(),
                    responses: "builtin:responses".to_owned(),
                    faults: None,
                },
                asked: Asked {
                    model: None,
                    output: None,
                    prefix_cached: Some(share),
                    step_residual: false,
                    results: Vec::new(),
                },
            };
            let why = run(&options).unwrap_err();
            assert!(why.starts_with(&format!("--prefix-cached is {share}; it is")), "{why}");
        }
    }

    #[test]
    fn a_file_over_the_limit_is_not_read() {
        let path = std::env::temp_dir().join(format!("llmsim-large-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(MOST_BYTES + 1).unwrap();
        let why = read(&path, PrefillOrder::Mixed).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(why.contains("larger than 64 MiB, the most that is read"), "{why}");
    }

    #[test]
    fn what_is_wrong_is_told_by_file_and_key() {
        let wrong = |name, result| calibrated(name, MODELS, result).unwrap_err();
        assert!(wrong("none", "").contains("neither JSON nor CSV"));
        let message = wrong("keys", r#"{"mean_ttft_ms": 3, "completed": 2}"#);
        assert!(message.contains("result: `total_input_tokens` is missing"), "{message}");
        let message = wrong("line", "load,concurrency,isl,osl\nclosed,1,5,5\n");
        assert!(message.contains("line 2: none of ttft_ms_mean"), "{message}");
        let long = "load,concurrency,isl,osl,tpot_ms_mean\nclosed,1,9000,5,10\n";
        assert!(wrong("long", long).contains("prompt_too_long"));
        let instant = "models:\n  - name: a\n    engine: instant\n    context_length: 100\n";
        assert!(calibrated("instant", instant, "x").unwrap_err().contains("no model has"));
    }
}
