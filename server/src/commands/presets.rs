//! `presets`: the GPUs, models and engine classes that a `models.yml` can name.

use std::fmt::Write as _;

use llmsim_engine::catalog;

/// Three tables.
pub fn run() -> String {
    let mut out = String::new();
    write(&mut out).expect("writing to a string cannot fail");
    out
}

fn write(out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "hardware:{:>19} {:>9} {:>12} {:>11} {:>10}",
        "GiB", "GB/s", "bf16 TFLOP/s", "fp8", "link GB/s"
    )?;
    for gpu in catalog::gpus() {
        let per = |value: Option<f64>, unit: f64| {
            value.map_or("-".to_owned(), |value| format!("{:.0}", value / unit))
        };
        writeln!(
            out,
            "  {:<20} {:>5.1} {:>9} {:>12} {:>11} {:>10}",
            gpu.id,
            gpu.hbm.get() as f64 / (1u64 << 30) as f64,
            per(Some(gpu.bandwidth), 1e9),
            per(Some(gpu.bf16_peak), 1e12),
            per(gpu.fp8_peak, 1e12),
            per(gpu.link, 1e9),
        )?;
    }
    writeln!(
        out,
        "\nmodel:{:>32} {:>8} {:>10} {:>13}",
        "parameters", "layers", "context", "KV B/token"
    )?;
    for model in catalog::models() {
        writeln!(
            out,
            "  {:<24} {:>9.1} B {:>8} {:>10} {:>13}",
            model.id,
            model.total_params() as f64 / 1e9,
            model.layers,
            model.max_context.get(),
            model.kv_elements_per_token * 2,
        )?;
    }
    writeln!(out, "\nengine_class:")?;
    for class in catalog::engine_classes() {
        writeln!(out, "  {:<26} {}; fitted on: {}", class.id, class.engine, class.fitted_on)?;
        if let Some(error) = class.error {
            let named =
                [("ITL", error.itl), ("TTFT", error.ttft), ("output tok/s", error.output_rate)];
            let told: Vec<String> = named
                .iter()
                .filter_map(|(name, error)| Some((name, (*error)?)))
                .map(|(name, (median, p90))| format!("{name} {median:.0} / {p90:.0} %"))
                .collect();
            writeln!(out, "  {:<26} error on {} runs: {}", "", error.runs, told.join(", "))?;
        }
    }
    writeln!(
        out,
        "\nErrors: median / 90th percentile of the absolute error on measured runs, each with the \
         class fitted\nwithout the runs of the same model, GPUs and engine, from\n  {}",
        catalog::ERRORS_FROM
    )?;
    writeln!(
        out,
        "\nAny part of a name that only one entry has will do: h100-sxm, llama-8b. How good the \
         figures are: docs/cost-model.md"
    )
}
