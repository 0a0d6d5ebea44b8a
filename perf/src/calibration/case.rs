//! A measured run as it can be run again: which preset, which client, which figures.
//!
//! Where a row does not say something, this file says what is taken instead, and why. The
//! invariant: nothing here looks at a measured figure, but for telling whether the engine was
//! saturated.

use std::path::Path;

use llmsim_engine::calibrate::{
    Constants, Load, Metric, Observed, Phases, Request, Row, Run, Workload, observed, table,
    workload,
};
use llmsim_engine::catalog::{
    self, Deployment, EngineClass, KvCacheDtype, Memory, ModelShape, WeightDtype,
};
use llmsim_engine::sim::scheduler::SchedulerSpec;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::units::{SimSpan, Tokens};

/// A measured run.
pub(super) struct Case {
    pub(super) row: Row,
    pub(super) pair: String,
    /// Pair and release: what one calibration is for.
    pub(super) group: String,
    pub(super) class: &'static EngineClass,
    /// Nobody fitted a class for exactly this.
    pub(super) is_nearest: bool,
    /// The whole client.
    pub(super) run: Run,
    /// TTFT counts: it is the first token's, and the engine keeps up.
    pub(super) scores_ttft: bool,
}

/// The constants of a class.
pub(super) fn preset(class: &EngineClass) -> Constants {
    Constants { efficiency: class.efficiency, request_overhead: class.request_overhead }
}

impl Case {
    /// # Errors
    /// Why the row cannot be run again.
    pub(super) fn of(row: Row, directory: &Path, most_tokens: u64) -> Result<Self, String> {
        if row.text("suspect") == "1" {
            return Err("marked as contradicting its neighbours".to_owned());
        }
        let load = row.text("load").to_owned();
        let model = catalog::model(row.text("model"))
            .map_err(|_| format!("model `{}` is not in the catalogue", row.text("model")))?;
        let gpu = catalog::gpu(row.text("gpu"))
            .map_err(|_| format!("GPU `{}` is not in the catalogue", row.text("gpu")))?;
        let (class, is_nearest) = class_for(&row, model, catalog::architecture(gpu).unwrap_or(""));
        let workload = match row.text("len_dist").strip_prefix("trace:") {
            Some(file) => trace(directory, file.trim())?,
            None => workload(&row, class.prefill_order)?.shortened(most_tokens),
        };

        let longest = workload
            .requests
            .iter()
            .map(|request| request.prompt.get() + request.output.get())
            .max()
            .unwrap_or(0);
        let at_once = match workload.load {
            Load::Closed { concurrency } => concurrency,
            Load::Open => row.positive("max_num_seqs").unwrap_or(256.0) as u32,
        };
        let prompts: u64 = workload.requests.iter().map(|r| u64::from(r.prompt.get())).sum();
        let batched = row.positive("max_batched_tokens").unwrap_or(match load.as_str() {
            // The whole batch is prefilled together.
            "static-batch" => prompts as f64,
            _ => f64::from(gpu.default_limits().0.get()),
        });
        let budget = Tokens::new(batched.clamp(1.0, f64::from(1 << 30)) as u32);
        let memory = Memory {
            // Activations of a whole static batch are not kept all at once.
            max_num_batched_tokens: budget.min(Tokens::new(16_384)),
            max_num_seqs: at_once,
            ..Memory::default()
        };
        let deployment = Deployment {
            gpu,
            model,
            tensor_parallel_size: row.positive("tp").map_or(1, |number| number as u32),
            weight_dtype: WeightDtype::parse(row.text("weight_dtype")).unwrap_or_default(),
            kv_cache_dtype: KvCacheDtype::parse(row.text("kv_dtype")).unwrap_or_default(),
            class,
            efficiency: class.efficiency,
            memory,
        };
        let plan = deployment.plan().or_else(|_| {
            // It was run, so it did fit, if barely.
            let memory = Memory { gpu_memory_utilization: 1.0, ..memory };
            Deployment { memory, ..deployment.clone() }
                .plan()
                .map_err(|problems| format!("{}: {}", row.pair(), problems[0].message))
        })?;
        let blocks_of_one = longest.div_ceil(memory.block_size.get()) + 2;
        let spec = SchedulerSpec {
            max_num_batched_tokens: budget,
            max_num_seqs: memory.max_num_seqs,
            block_size: memory.block_size,
            prefix_caching: workload.requests.iter().any(|r| r.shared > Tokens::ZERO),
            prefill_order: class.prefill_order,
            output_blocks: class.output_blocks,
            ..SchedulerSpec::vllm(
                Tokens::new(longest + 16),
                plan.num_blocks.max(llmsim_engine::units::Blocks::new(blocks_of_one)),
                StepCost::Roofline(plan.cost),
            )
        };
        let (observed, scores_ttft) = observed(&row);
        if observed.is_empty() {
            return Err("no figure is published".to_owned());
        }
        Ok(Self {
            pair: row.pair(),
            group: format!("{}|{}", row.pair(), row.text("engine_version")),
            class,
            is_nearest,
            run: Run { spec, workload, observed },
            scores_ttft,
            row,
        })
    }

    /// What was measured.
    pub(super) fn measured(&self, metrics: &[Metric]) -> Option<Observed> {
        self.run.observed.iter().copied().find(|seen| metrics.contains(&seen.metric))
    }
}

/// The requests of a trace file beside the table: `arrival_s`, `input_tokens`, `output_tokens`.
fn trace(directory: &Path, file: &str) -> Result<Workload, String> {
    let missing = || format!("the trace `{file}` is missing or unreadable");
    // A name, not a path out of the directory.
    if file.contains(['/', '\\']) {
        return Err(missing());
    }
    let text = std::fs::read_to_string(directory.join(file)).map_err(|_| missing())?;
    let requests: Vec<Request> = table(&text)
        .into_iter()
        .filter_map(|line| {
            Some(Request {
                prompt: Tokens::new(line.positive("input_tokens")? as u32),
                output: Tokens::new(line.positive("output_tokens")? as u32),
                shared: Tokens::ZERO,
                at: SimSpan::from_secs_f64(line.number("arrival_s")?.max(0.0)),
            })
        })
        .collect();
    if requests.is_empty() {
        return Err(missing());
    }
    Ok(Workload { load: Load::Open, requests, repeats: 1.0, phases: Phases::AsTheyCome })
}

/// The class that was fitted for this engine, GPU and format, or else the one that comes nearest,
/// and whether it is only that.
fn class_for(row: &Row, model: &ModelShape, architecture: &str) -> (&'static EngineClass, bool) {
    let weights = match row.text("weight_dtype") {
        "" | "auto" => match model.native_dtype {
            WeightDtype::Auto => "bf16",
            native => native.as_str(),
        },
        // Weight-only formats compute in 16 bits.
        "fp16" | "bfloat16" | "float16" | "int4" | "awq" => "bf16",
        "int8" => "fp8",
        "nvfp4" => "mxfp4",
        other => other,
    };
    let models = if model.experts > 0 { "moe" } else { "dense" };
    let family = family(row.text("engine"), row.text("engine_version"));
    let distance = |class: &EngineClass| {
        let scope = class.scope;
        if scope.family == "any" {
            return GENERIC;
        }
        let family = match (scope.family == family, engine_of(scope.family) == engine_of(family)) {
            (true, _) => 0,
            (false, true) => 4,
            (false, false) => 8,
        };
        let release = row.text("engine_version");
        family
            + if release.starts_with(scope.release) { 0 } else { 2 }
            + if scope.models == models { 0 } else { 3 }
            + if scope.weights == weights { 0 } else { 2 }
            + if scope.architecture == architecture { 0 } else { 2 }
    };
    /// An engine that nobody fitted, on a GPU or with a format that nobody did either.
    const GENERIC: u32 = 10;
    let class = catalog::engine_classes()
        .iter()
        // Of two that fit, the one that is for the release.
        .min_by_key(|class| (distance(class), class.scope.release.is_empty()))
        .unwrap_or(EngineClass::generic());
    (class, distance(class) > 0)
}

/// Releases that behave alike; `2023` and `2024` are what some tables say instead of a version.
fn family<'a>(engine: &'a str, version: &str) -> &'a str {
    match engine {
        "vllm" if version.starts_with("2023") => "vllm-2023",
        "vllm" if version.starts_with("2024") => "vllm-2024",
        "vllm" if ["0.4", "0.5", "0.6", "0.7"].iter().any(|old| version.starts_with(old)) => {
            "vllm-v0"
        }
        "trtllm" | "tensorrt-llm" if version.starts_with("2024") => "trtllm-2024",
        "tensorrt-llm" => "trtllm",
        other => other,
    }
}

fn engine_of(family: &str) -> &str {
    family.split('-').next().unwrap_or(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        let cells = text
            .split_whitespace()
            .map(|pair| pair.split_once('=').unwrap())
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Row::new(cells)
    }

    const QWEN: &str = "pair=q model=qwen3-14b gpu=h100-80gb-sxm tp=1 engine=vllm engine_version=0.20 \
         weight_dtype=bf16 kv_dtype=auto len_dist=fixed ttft_ok=1 tpot_ms_mean=11 ttft_ms_mean=70";

    #[test]
    fn a_class_is_chosen_by_engine_gpu_and_format_or_else_the_nearest() {
        for (engine, gpu, expected, nearest) in [
            ("vllm", "h100-80gb-sxm", "vllm-v1-hopper-bf16", false),
            ("sglang", "h200", "sglang-hopper-bf16", false),
            ("tgi", "mi355x", "generic", true),
        ] {
            let text = QWEN.replace("engine=vllm", &format!("engine={engine}"));
            let text = text.replace("gpu=h100-80gb-sxm", &format!("gpu={gpu}"));
            let row = row(&format!("{text} load=closed concurrency=1 isl=10 osl=2"));
            let case = Case::of(row, Path::new("."), 1000).unwrap();
            assert_eq!((case.class.id, case.is_nearest), (expected, nearest), "{engine} on {gpu}");
        }
    }

    #[test]
    fn what_cannot_be_run_again_says_why() {
        let wrong = |text: &str| Case::of(row(text), Path::new("."), 1000).err().unwrap();
        let with = |more: &str| wrong(&format!("{QWEN} {more}"));
        assert_eq!(with("load=wavy concurrency=1 isl=10 osl=2"), "load `wavy` is unknown");
        assert_eq!(with("load=open-poisson isl=10 osl=2"), "the arrival rate is not published");
        assert_eq!(with("load=closed concurrency=1 isl=10"), "the lengths are not published");
        let unknown = QWEN.replace("qwen3-14b", "gpt-9");
        assert_eq!(
            wrong(&format!("{unknown} load=closed concurrency=1 isl=10 osl=2")),
            "model `gpt-9` is not in the catalogue"
        );
        let silent = QWEN.replace("tpot_ms_mean", "x").replace("ttft_ms_mean", "y");
        assert_eq!(
            wrong(&format!("{silent} load=closed concurrency=1 isl=10 osl=2")),
            "no figure is published"
        );
    }

    #[test]
    fn open_loops_send_at_their_rate() {
        let row = row(&format!("{QWEN} load=open-constant rate_rps=4 num_requests=3 isl=10 osl=2"));
        let workload = Case::of(row, Path::new("."), 1000).unwrap().run.workload;
        let at: Vec<f64> = workload.requests.iter().map(|r| r.at.as_secs_f64()).collect();
        assert_eq!((workload.load, at), (Load::Open, vec![0.0, 0.25, 0.5]));
    }

    #[test]
    fn ttft_counts_only_where_the_engine_keeps_up() {
        let scores = |ttft: &str, more: &str| {
            let text = QWEN.replace("ttft_ms_mean=70", &format!("ttft_ms_mean={ttft}"));
            Case::of(
                row(&format!("{text} load=closed concurrency=4 isl=10 osl=101 {more}")),
                Path::new("."),
                1000,
            )
            .unwrap()
            .scores_ttft
        };
        // 100 gaps of 11 ms are 1.1 s: 0.3 s before them are 21 %, 0.4 s are 27 %.
        assert!(scores("300", ""));
        assert!(!scores("400", ""));
        assert!(!scores("300", "ttft_ok=0"));
    }
}
