//! Combinations of options that contradict each other or would do nothing.
//!
//! A run that silently ignores a part of its command line measures something else than was asked
//! for. So an option without an effect is refused, each with its reason and all at once. Options
//! that only concern the way to a server are noted, not refused, under `--simulate`: a command line
//! can be tried in virtual time as it is. What each option means is not here but in `settings`.

use crate::args::{ArrivalsName, BenchArgs, DatasetKind, Format, IoDriver, Jitter, StampsName};
use crate::args::{LoadArgs, PromptArgs, ReportArgs, TargetArgs, TraceKind};

/// An option that was given although something keeps it from having an effect.
struct Idle {
    given: bool,
    works: bool,
    /// The option and the reason.
    why: &'static str,
}

/// Refuses options that would do nothing.
///
/// # Errors
/// One line for each.
pub fn check(args: &BenchArgs) -> Result<(), String> {
    let BenchArgs { target, load, prompts, report } = args;
    let all = [target_options(target), load_options(load, prompts), prompt_options(prompts)];
    let idle = all.into_iter().flatten().chain(report_options(report));
    let problems: Vec<&str> =
        idle.filter(|option| option.given && !option.works).map(|option| option.why).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\nerror: ")) }
}

fn target_options(target: &TargetArgs) -> Vec<Idle> {
    let TargetArgs { url, host, port, simulate, simulate_responses, .. } = target;
    let https = [url, &target.server_metrics_url]
        .into_iter()
        .any(|url| url.as_ref().is_some_and(|url| url.starts_with("https://")));
    vec![
        Idle {
            given: url.is_some(),
            works: host.is_none() && port.is_none(),
            why: "--url already says where the target is; leave out --host and --port",
        },
        Idle {
            given: target.ca_cert.is_some(),
            works: https,
            why: "--ca-cert does nothing without an https:// address",
        },
        Idle {
            given: target.insecure,
            works: https,
            why: "--insecure does nothing without an https:// address",
        },
        Idle {
            given: simulate_responses.is_some(),
            works: simulate.is_some(),
            why: "--simulate-responses does nothing without --simulate",
        },
        Idle {
            given: target.server_metrics_url.is_some(),
            works: !target.no_server_metrics,
            why: "--server-metrics-url does nothing with --no-server-metrics",
        },
    ]
}

fn load_options(load: &LoadArgs, prompts: &PromptArgs) -> Vec<Idle> {
    let drawn = load.load.is_some() || load.rate.iter().any(|rate| rate.is_finite());
    let only_at_once = !load.rate.is_empty() && !drawn;
    let trace_paced = prompts.trace.is_some() && load.rate.is_empty() && load.load.is_none();
    let why_gaps = "--arrivals draws the gaps of --rate and --load; this run has none to draw";
    let why_shape = "--burstiness shapes the gaps of --rate and --load; this run has none to draw";
    vec![
        Idle { given: load.arrivals.is_some(), works: drawn, why: why_gaps },
        Idle {
            // 1 is vLLM's default: those who write it ask for nothing.
            given: load.burstiness.is_some_and(|shape| (shape - 1.0).abs() > 1e-12),
            works: drawn,
            why: why_shape,
        },
        Idle {
            given: load.arrivals == Some(ArrivalsName::Poisson),
            works: load.burstiness.is_none(),
            why: "--arrivals poisson has no shape; --burstiness makes them gamma",
        },
        Idle {
            given: load.max_concurrency.is_some(),
            works: load.concurrency.is_empty(),
            why: "--max-concurrency caps an open loop; --concurrency already says how many are in \
                  flight",
        },
        Idle {
            given: load.duration.is_some() && load.requests.is_some(),
            works: !only_at_once,
            why: "--duration does nothing to --rate inf, which sends all at the start",
        },
        Idle {
            given: prompts.time_scale.is_some(),
            works: trace_paced && load.concurrency.is_empty(),
            why: "--time-scale plays the arrivals of a --trace faster; this run has none",
        },
        Idle {
            given: prompts.trace_jitter != Jitter::None,
            works: trace_paced && load.concurrency.is_empty(),
            why: "--trace-jitter spreads the arrivals of a --trace; this run has none",
        },
    ]
}

fn prompt_options(prompts: &PromptArgs) -> Vec<Idle> {
    let kind = prompts.dataset_format;
    let random = kind == DatasetKind::Random;
    let file = prompts.dataset.is_some();
    let synthetic = prompts.input_tokens.is_some() || random;
    vec![
        Idle {
            given: matches!(kind, DatasetKind::Jsonl | DatasetKind::Sharegpt),
            works: file,
            why: "--dataset-name says how to read a file: --dataset (or --dataset-path) is missing",
        },
        Idle {
            given: random,
            works: prompts.prompt.is_none() && prompts.trace.is_none(),
            why: "--dataset-name random makes prompts up; leave out --prompt and --trace",
        },
        Idle {
            given: prompts.sharegpt_compat,
            works: file && kind != DatasetKind::Jsonl,
            why: "--sharegpt-compat does nothing without a ShareGPT --dataset",
        },
        Idle {
            given: prompts.range_ratio.is_some_and(|ratio| ratio != 0.0),
            works: synthetic,
            why: "--range-ratio varies the lengths of --input-tokens, which is missing",
        },
        Idle {
            given: prompts.trace_format != TraceKind::Auto,
            works: prompts.trace.is_some(),
            why: "--trace-format does nothing without --trace",
        },
        Idle {
            given: prompts.max_tokens.is_some(),
            works: prompts.trace.is_none(),
            why: "--max-tokens does nothing with --trace, whose rows say how long answers are",
        },
    ]
}

fn report_options(report: &ReportArgs) -> Vec<Idle> {
    let saved = report.save_result || report.append_result || report.result_filename.is_some();
    let json = report.output.is_some() || saved;
    let needs = |given: bool, why: &'static str| Idle { given, works: json, why };
    vec![
        needs(
            report.format != Format::Llmsim,
            "--format does nothing without --output or --save-result",
        ),
        needs(
            report.save_detailed,
            "--save-detailed does nothing without --output or --save-result",
        ),
        needs(
            report.label.is_some(),
            "--label is kept in the JSON: --output or --save-result is missing",
        ),
        needs(
            !report.metadata.is_empty(),
            "--metadata is kept in the JSON: --output or --save-result is missing",
        ),
        Idle {
            given: report.result_dir.is_some(),
            works: saved,
            why: "--result-dir does nothing without --save-result",
        },
        Idle {
            given: report.output.is_some(),
            works: !report.save_result && report.result_filename.is_none(),
            why: "--output already names the file; leave out --save-result and --result-filename",
        },
    ]
}

/// What `--simulate` makes of no use, as a line for the user; `None` if there is nothing of it.
pub fn unused_in_virtual_time(args: &BenchArgs) -> Option<String> {
    let TargetArgs { url, host, port, headers, simulate, .. } = &args.target;
    simulate.as_ref()?;
    let given = [
        ("--url", url.is_some()),
        ("--host", host.is_some()),
        ("--port", port.is_some()),
        ("--header", !headers.is_empty()),
        ("--no-server-metrics", args.target.no_server_metrics),
        ("--server-metrics-url", args.target.server_metrics_url.is_some()),
        ("--io-driver", args.target.io_driver != IoDriver::Auto),
        ("--stamps", args.target.stamps != StampsName::Kernel),
        ("--connections", args.load.connections.is_some()),
        ("--warmup", args.load.warmup.is_some_and(|count| count > 0)),
        ("--no-selftest", args.report.no_selftest),
    ];
    let names: Vec<&str> = given.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "--simulate sends nothing and starts from an idle engine; of no use: {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn typed(line: &str) -> BenchArgs {
        let words = format!("bench -m m {line}");
        Args::try_parse_from(words.split_whitespace()).expect(line).bench
    }

    #[test]
    fn an_option_that_would_do_nothing_is_refused_by_name() {
        for (line, option) in [
            ("--url http://a --port 9", "--url"),
            ("--simulate-responses f", "--simulate-responses"),
            ("--no-server-metrics --server-metrics-url http://a", "--server-metrics-url"),
            ("--arrivals constant", "--arrivals"),
            ("--arrivals constant --trace t", "--arrivals"),
            ("--burstiness 0.5 -c 4", "--burstiness"),
            ("--burstiness 0.5 --rate inf", "--burstiness"),
            ("--arrivals poisson --burstiness 2 --rate 3", "--arrivals poisson"),
            ("-c 4 --max-concurrency 2", "--max-concurrency"),
            ("--rate inf -n 5 -d 3", "--duration"),
            ("--time-scale 2", "--time-scale"),
            ("--time-scale 2 --trace t --rate 3", "--time-scale"),
            ("--trace-jitter uniform", "--trace-jitter"),
            ("--dataset-name sharegpt", "--dataset-name"),
            ("--dataset-name random --prompt x", "--dataset-name random"),
            ("--sharegpt-compat", "--sharegpt-compat"),
            ("--range-ratio 0.5", "--range-ratio"),
            ("--trace-format azure", "--trace-format"),
            ("--trace t --max-tokens 5", "--max-tokens"),
            ("--format vllm", "--format"),
            ("--save-detailed", "--save-detailed"),
            ("--label x", "--label"),
            ("--metadata a=b", "--metadata"),
            ("--result-dir d", "--result-dir"),
            ("--output f --save-result", "--output"),
        ] {
            let problem = check(&typed(line)).expect_err(line);
            assert!(problem.starts_with(option), "{line}: {problem}");
            assert_eq!(problem.lines().count(), 1, "{line}: {problem}");
        }
    }

    #[test]
    fn what_has_an_effect_or_asks_for_nothing_is_taken() {
        for line in [
            "",
            "--host a --port 9",
            "--rate 5 --arrivals constant --max-concurrency 3",
            "--rate inf --burstiness 1.0 -n 5",
            "--rate 1,inf --burstiness 0.5 -n 5",
            "--load hold --arrivals gamma --burstiness 2",
            "--trace t --time-scale 2 --trace-jitter uniform",
            "--dataset-name sharegpt --dataset-path f --sharegpt-compat",
            "--dataset-name random --random-range-ratio 0.5",
            "--append-result --result-dir d --format vllm --label x",
            "--output f --append-result --save-detailed",
        ] {
            assert_eq!(check(&typed(line)), Ok(()), "{line}");
        }
    }

    #[test]
    fn all_of_them_are_told_at_once() {
        let problem = check(&typed("--time-scale 2 --save-detailed")).expect_err("two");
        assert_eq!(problem.lines().count(), 2, "{problem}");
    }

    #[test]
    fn virtual_time_notes_what_only_a_way_to_a_server_needs() {
        let note = unused_in_virtual_time(&typed("--simulate m --url http://a --warmup 3"));
        assert!(note.expect("a note").ends_with("of no use: --url, --warmup"));
        assert_eq!(unused_in_virtual_time(&typed("--simulate m")), None);
        assert_eq!(unused_in_virtual_time(&typed("--url http://a")), None);
    }
}
