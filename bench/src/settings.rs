//! What the command line means: every default filled in, every contradiction refused.
//!
//! Files are read here and nowhere later. Past this module no `Option` means 'look it up'.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use llmsim_engine::seed::Seed;
use llmsim_engine::units::SimSpan;

use crate::args::{
    ArrivalsName, BenchArgs, DatasetKind, Format, IoDriver, Jitter, StampsName, TargetArgs,
    TraceKind,
};
use crate::http::tls::Trust;
use crate::http::url::Url;
use crate::plan::{Arrivals, Extent, Gaps, Load, parse_stages};
use crate::result::Goals;
use crate::target::http::{Stamps, Timeouts};
use crate::workload::dataset::{self, ShareGptRule};
use crate::workload::request::{Api, Form};
use crate::workload::{Source, Workload, synthetic_prompt, trace};

/// A benchmark, ready to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The endpoint.
    pub url: Url,
    /// As shown: the root of the API.
    pub api_root: Url,
    /// Model asked for.
    pub model: String,
    /// Whom to trust where it is https.
    pub trust: Trust,
    /// Limits on waiting.
    pub timeouts: Timeouts,
    /// Where the server's summary is; `None`: do not look.
    pub server_metrics: Option<Url>,
    /// The levels, in order.
    pub levels: Vec<LevelSetting>,
    /// Which option was given several values.
    pub sweep: Option<Sweep>,
    /// The prompts.
    pub workload: Workload,
    /// Seed as typed.
    pub seed: u64,
    /// Connections opened before.
    pub connections: Option<u32>,
    /// Virtual target: its models and responses.
    pub simulate: Option<(String, String)>,
    /// Goodput.
    pub goals: Option<Goals>,
    /// Run the self-test first.
    pub selftest: bool,
    /// CPUs to use.
    pub cpus: Option<String>,
    /// Kernel interface.
    pub io_driver: IoDriver,
    /// Whose instant counts as an arrival.
    pub stamps: Stamps,
    /// The report.
    pub report: ReportSettings,
}

/// One level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelSetting {
    /// As a row of a sweep names it.
    pub name: String,
    /// The load.
    pub load: Load,
    /// Where it ends.
    pub extent: Extent,
    /// Unmeasured requests before.
    pub warmup: u32,
}

/// What a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// `--concurrency`.
    Concurrency,
    /// `--rate`.
    Rate,
}

/// Where results go.
#[derive(Clone, Debug)]
pub struct ReportSettings {
    /// JSON.
    pub output: Option<PathBuf>,
    /// Add to it instead of replacing it.
    pub append: bool,
    /// Kept in vLLM's JSON; tokens are counted by the server.
    pub tokenizer: Option<String>,
    /// Its dialect.
    pub format: Format,
    /// With one entry per request.
    pub detailed: bool,
    /// HTML.
    pub html: Option<PathBuf>,
    /// Percentiles of tables.
    pub percentiles: Vec<f64>,
    /// Metrics of tables; empty for all.
    pub metrics: Vec<String>,
    /// Only the result.
    pub quiet: bool,
    /// Show progress.
    pub progress: bool,
    /// Kept in the JSON.
    pub label: Option<String>,
    /// Kept in the JSON.
    pub metadata: Vec<(String, String)>,
}

impl Settings {
    /// The meaning of `args`.
    ///
    /// # Errors
    /// Sentences for the user, each naming the option.
    pub fn resolve(args: &BenchArgs) -> Result<Self, String> {
        crate::combinations::check(args)?;
        let (url, api_root, api) = target(args)?;
        let model = args
            .target
            .served_model_name
            .clone()
            .or_else(|| args.target.model.clone())
            .ok_or("--model is missing: which model shall be asked? The server lists them at /v1/models")?;
        if args.target.simulate.is_some() && api == Api::Completions {
            return Err(
                "--simulate answers chat completions only; leave out --backend and --endpoint"
                    .into(),
            );
        }
        let workload = workload(args, &url, &model, api)?;
        let timeouts = Timeouts {
            connect: seconds("--connect-timeout", args.target.connect_timeout)?,
            silence: seconds("--timeout", args.target.timeout)?,
        };
        let server_metrics = match (&args.target.server_metrics_url, args.target.no_server_metrics)
        {
            (_, true) => None,
            (Some(url), false) => Some(Url::parse(url)?),
            (None, false) => {
                let root = api_root.path.trim_end_matches("/v1");
                Some(api_root.with_path(&format!("{root}/metrics/summary")))
            }
        };
        let (levels, sweep) = levels(args, &workload)?;
        let open = levels.iter().any(|level| matches!(level.load, Load::Open { .. }));
        Ok(Self {
            url,
            api_root,
            model,
            trust: trust(&args.target),
            timeouts,
            server_metrics,
            selftest: (open || levels.len() > 1)
                && !args.report.no_selftest
                && args.target.simulate.is_none(),
            levels,
            sweep,
            workload,
            seed: args.load.seed,
            connections: args.load.connections,
            simulate: args
                .target
                .simulate
                .clone()
                .map(|models| (models, simulated_responses(args))),
            goals: goals(&args.report.goodput)?,
            cpus: args.target.cpus.clone(),
            io_driver: args.target.io_driver,
            stamps: stamps(args.target.stamps),
            report: report(args)?,
        })
    }
}

/// What `name` means.
pub const fn stamps(name: StampsName) -> Stamps {
    match name {
        StampsName::Kernel => Stamps::Kernel,
        StampsName::Read => Stamps::Read,
    }
}

fn trust(target: &TargetArgs) -> Trust {
    match &target.ca_cert {
        Some(path) => Trust::File(path.clone()),
        None if target.insecure => Trust::Anybody,
        None => Trust::System,
    }
}

fn simulated_responses(args: &BenchArgs) -> String {
    args.target.simulate_responses.clone().unwrap_or_else(|| "builtin:bench-responses".into())
}

fn target(args: &BenchArgs) -> Result<(Url, Url, Api), String> {
    let target = &args.target;
    let given = match (&target.host, target.port) {
        (None, None) => target.url.clone().unwrap_or_else(|| "http://localhost:8080/v1".to_owned()),
        (host, port) => {
            let host = host.as_deref().unwrap_or("localhost");
            let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
            format!("http://{host}:{}", port.unwrap_or(8080))
        }
    };
    let given = Url::parse(&given)?;
    let backend = target.backend.as_deref().map(backend).transpose()?;
    let endpoint = match (target.endpoint.as_deref(), backend) {
        (Some(endpoint), _) => endpoint,
        (None, Some(Api::Completions)) => "/v1/completions",
        (None, _) => "/v1/chat/completions",
    };
    let endpoint = format!("/{}", endpoint.trim_start_matches('/'));
    let api = if endpoint.ends_with("/completions") && !endpoint.ends_with("/chat/completions") {
        Api::Completions
    } else {
        Api::Chat
    };
    if let (Some(backend), Some(name)) =
        (backend.filter(|backend| *backend != api), &target.backend)
    {
        let form = match backend {
            Api::Chat => "chat completions",
            Api::Completions => "legacy completions",
        };
        return Err(format!("--backend {name} asks for {form}, --endpoint {endpoint} does not"));
    }
    // The root may or may not have the `/v1` that the endpoint has too.
    let root = given.path.trim_end_matches("/v1");
    let api_root = if given.path.ends_with("/v1") || endpoint.starts_with("/v1/") {
        given.with_path(&format!("{root}/v1"))
    } else {
        given.clone()
    };
    Ok((given.with_path(&format!("{root}{endpoint}")), api_root, api))
}

fn backend(name: &str) -> Result<Api, String> {
    match name {
        "openai-chat" | "vllm-chat" | "sglang-oai-chat" => Ok(Api::Chat),
        "openai" | "vllm" | "sglang-oai" => Ok(Api::Completions),
        _ => Err(format!(
            "--backend {name}: one of openai-chat (/v1/chat/completions), openai or vllm \
             (/v1/completions)"
        )),
    }
}

fn seconds(name: &str, value: f64) -> Result<SimSpan, String> {
    if value.is_finite() && value > 0.0 && value < 1e7 {
        return Ok(SimSpan::from_secs_f64(value));
    }
    Err(format!("{name} {value}: must be a positive number of seconds"))
}

fn levels(
    args: &BenchArgs,
    workload: &Workload,
) -> Result<(Vec<LevelSetting>, Option<Sweep>), String> {
    let load = &args.load;
    let duration = load.duration.map(|value| seconds("--duration", value)).transpose()?;
    if load.requests == Some(0) {
        return Err("--requests 0: at least one request must be measured".into());
    }
    let extent = |bounded: bool| {
        let natural = workload.natural_count();
        let requests = load.requests.or(natural);
        // A plan that ends by itself needs no count.
        let default = if duration.is_some() || bounded { None } else { Some(100) };
        Extent { requests: requests.or(default), duration }
    };
    let open = |name: String, arrivals: Arrivals, bounded: bool| LevelSetting {
        name,
        load: Load::Open { arrivals, max_concurrency: load.max_concurrency },
        extent: extent(bounded),
        warmup: load.warmup.unwrap_or_else(|| load.max_concurrency.unwrap_or(8)),
    };
    if load.max_concurrency == Some(0) {
        return Err("--max-concurrency 0: nothing could ever be sent".into());
    }
    let gaps = gaps(args)?;
    if let Some(stages) = &load.load {
        let stages = parse_stages(stages)?;
        let arrivals = Arrivals::Staged { stages, gaps };
        return Ok((vec![open("stages".into(), arrivals, true)], None));
    }
    if !load.rate.is_empty() {
        let levels: Result<Vec<_>, String> = load
            .rate
            .iter()
            .map(|&rate| {
                if rate == f64::INFINITY {
                    if duration.is_some() && load.requests.is_none() {
                        return Err("--rate inf needs --requests: how many at once?".into());
                    }
                    return Ok(open("inf".into(), Arrivals::AtOnce, false));
                }
                if !(rate.is_finite() && rate > 0.0 && rate <= 1e6) {
                    return Err(format!(
                        "--rate {rate}: must be requests per second, above 0 and at most a million, or inf"
                    ));
                }
                Ok(open(rate.to_string(), Arrivals::Steady { rate, gaps }, false))
            })
            .collect();
        let sweep = (load.rate.len() > 1).then_some(Sweep::Rate);
        return Ok((levels?, sweep));
    }
    if load.concurrency.is_empty() {
        if let Some(instants) = workload.arrivals() {
            return Ok((vec![open("trace".into(), Arrivals::Trace(instants), true)], None));
        }
        if let Some(cap) = load.max_concurrency {
            // vLLM's default rate is inf; --max-concurrency alone is then a closed loop.
            return closed(&[cap], load.warmup, extent(false));
        }
        return closed(&[1], load.warmup, extent(false));
    }
    closed(&load.concurrency, load.warmup, extent(false))
}

fn closed(
    values: &[u32],
    warmup: Option<u32>,
    extent: Extent,
) -> Result<(Vec<LevelSetting>, Option<Sweep>), String> {
    if values.contains(&0) {
        return Err("--concurrency 0: nothing would ever be sent".into());
    }
    let levels = values
        .iter()
        .map(|&concurrency| LevelSetting {
            name: concurrency.to_string(),
            load: Load::Closed { concurrency },
            extent,
            warmup: warmup.unwrap_or(concurrency),
        })
        .collect();
    Ok((levels, (values.len() > 1).then_some(Sweep::Concurrency)))
}

fn gaps(args: &BenchArgs) -> Result<Gaps, String> {
    let shape = args.load.burstiness;
    let arrivals = args.load.arrivals.unwrap_or(ArrivalsName::Poisson);
    if let Some(shape) = shape.filter(|shape| !(shape.is_finite() && *shape > 0.0)) {
        return Err(format!("--burstiness {shape}: must be above 0; 1 is Poisson"));
    }
    Ok(match (arrivals, shape) {
        (ArrivalsName::Constant, None) => Gaps::Constant,
        (ArrivalsName::Constant, Some(_)) => {
            return Err("--burstiness does nothing to --arrivals constant".into());
        }
        (ArrivalsName::Gamma, None) => {
            return Err("--arrivals gamma needs --burstiness, the shape".into());
        }
        (_, Some(shape)) if (shape - 1.0).abs() > 1e-12 => Gaps::Gamma(shape),
        (_, _) => Gaps::Poisson,
    })
}

fn workload(args: &BenchArgs, url: &Url, model: &str, api: Api) -> Result<Workload, String> {
    let prompts = &args.prompts;
    let seed = Seed::new(args.load.seed);
    if prompts.max_tokens == Some(0) {
        return Err("--max-tokens 0: an answer has at least one token".into());
    }
    let source = source(args, seed, api)?;
    if prompts.ignore_eos && prompts.max_tokens.is_none() && !matches!(source, Source::Trace(_)) {
        return Err("--ignore-eos needs --max-tokens: how long shall answers be?".into());
    }
    if let (Source::Items(items), Api::Completions) = (&source, api) {
        let text = |item: &crate::workload::Item| {
            matches!(item.content, crate::workload::request::Content::Text(_))
        };
        if !items.iter().all(text) {
            return Err(
                "--endpoint: legacy completions take texts, the dataset has messages".into()
            );
        }
    }
    if let (Source::Items(items), false) = (&source, prompts.prompt_prefix.is_empty()) {
        let text = |item: &crate::workload::Item| {
            matches!(item.content, crate::workload::request::Content::Text(_))
        };
        if !items.iter().all(text) {
            return Err("--prompt-prefix stands before texts, the dataset has messages".into());
        }
    }
    let nonce = match (prompts.reuse_prompts, prompts.nonce) {
        (true, Some(_)) => return Err("--nonce does nothing with --reuse-prompts".into()),
        (true, None) => None,
        (false, Some(nonce)) => Some(nonce),
        (false, None) => Some(fresh_nonce()),
    };
    Ok(Workload {
        source,
        form: form(args, url, model, api)?,
        prefix: prompts.prompt_prefix.clone(),
        max_tokens: prompts.max_tokens,
        ignore_eos: prompts.ignore_eos,
        seed,
        nonce,
    })
}

/// Different in every run: a server that has seen the last run must not know the prompts.
fn fresh_nonce() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let bits = u64::try_from(since.as_nanos() & u128::from(u64::MAX)).unwrap_or(0);
    // 48 bits, so that the number survives JSON readers that keep 53.
    Seed::new(bits ^ u64::from(std::process::id()).rotate_left(40)).value() >> 16
}

fn source(args: &BenchArgs, seed: Seed, api: Api) -> Result<Source, String> {
    let prompts = &args.prompts;
    let given = [
        ("--input-tokens", prompts.input_tokens.is_some()),
        ("--dataset", prompts.dataset.is_some()),
        ("--prompt", prompts.prompt.is_some()),
        ("--trace", prompts.trace.is_some()),
    ];
    let given: Vec<&str> = given.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    if given.len() > 1 {
        return Err(format!("{}: prompts come from one source per run", given.join(" and ")));
    }
    if let Some(path) = &prompts.trace {
        return read_trace(args, path, seed, api).map(Source::Trace);
    }
    if let Some(path) = &prompts.dataset {
        let text = read("--dataset", path)?;
        let looks_like_array = text.trim_start().starts_with('[');
        let items = match prompts.dataset_format {
            DatasetKind::Sharegpt => dataset::sharegpt(&text, sharegpt_rule(args)),
            DatasetKind::Auto if looks_like_array => dataset::sharegpt(&text, sharegpt_rule(args)),
            DatasetKind::Random => {
                return Err("--dataset-name random takes no file; use --input-tokens".into());
            }
            _ => dataset::json_lines(&text),
        };
        let items = items.map_err(|why| format!("--dataset {}: {why}", path.display()))?;
        return Ok(Source::Items(items));
    }
    let random = prompts.dataset_format == DatasetKind::Random;
    if let Some(input) = prompts.input_tokens.or(random.then_some(1024)) {
        let output = prompts.max_tokens.unwrap_or(128);
        let ratio = prompts.range_ratio.unwrap_or(0.0);
        if !(0.0..1.0).contains(&ratio) {
            return Err(format!("--range-ratio {ratio}: must be at least 0 and below 1"));
        }
        let spread = |n: u32| {
            let low = (f64::from(n) * (1.0 - ratio)).floor().max(1.0);
            (low as u32, (f64::from(n) * (1.0 + ratio)).ceil() as u32)
        };
        let input = spread(input);
        let probe = synthetic_prompt(api, seed, input.0, &prompts.prompt_prefix);
        probe.map_err(|why| format!("--input-tokens: {why}"))?;
        return Ok(Source::Synthetic { input, output: spread(output) });
    }
    let text = prompts.prompt.clone().unwrap_or_else(|| "Tell me about Hamlet".to_owned());
    Ok(Source::Fixed(text))
}

const fn sharegpt_rule(args: &BenchArgs) -> ShareGptRule {
    if args.prompts.sharegpt_compat { ShareGptRule::FirstTurn } else { ShareGptRule::FirstHuman }
}

fn read_trace(args: &BenchArgs, path: &Path, seed: Seed, api: Api) -> Result<trace::Trace, String> {
    let factor = args.prompts.time_scale.unwrap_or(1.0);
    if !(factor.is_finite() && factor > 0.0) {
        return Err(format!("--time-scale {factor}: must be above 0"));
    }
    let kind = match args.prompts.trace_format {
        TraceKind::Auto => None,
        TraceKind::Mooncake => Some(trace::Kind::Mooncake),
        TraceKind::Azure => Some(trace::Kind::Azure),
        TraceKind::Burstgpt => Some(trace::Kind::BurstGpt),
    };
    let text = read("--trace", path)?;
    let mut trace = trace::read(&text, kind, api)
        .map_err(|why| format!("--trace {}: {why}", path.display()))?;
    if args.prompts.trace_jitter == Jitter::Uniform {
        trace::spread_ties(&mut trace.rows, seed);
    }
    trace::scale(&mut trace.rows, factor);
    Ok(trace)
}

fn read(option: &str, path: &Path) -> Result<String, String> {
    let mut text = std::fs::read_to_string(path)
        .map_err(|error| format!("{option} {}: {error}", path.display()))?;
    // Spreadsheets and editors put a byte order mark before what they export.
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

fn form(args: &BenchArgs, url: &Url, model: &str, api: Api) -> Result<Form, String> {
    let mut head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: llmsim-bench/{}\r\n\
         content-type: application/json\r\naccept: text/event-stream\r\nx-llmsim-timing: 1\r\n",
        url.path,
        url.authority(),
        env!("CARGO_PKG_VERSION"),
    );
    let mut add = |option: &str, name: &str, value: &str| {
        let name_ok = !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !name_ok || value.bytes().any(|b| b < b' ' || b == 0x7F) {
            return Err(format!("{option}: '{name}' with this value is no header"));
        }
        head.push_str(&format!("{name}: {value}\r\n"));
        Ok(())
    };
    if let Some(key) = args.target.api_key.as_ref().filter(|key| !key.is_empty()) {
        add("--api-key", "authorization", &format!("Bearer {key}"))?;
    }
    for header in &args.target.headers {
        let (name, value) = header
            .split_once([':', '='])
            .ok_or_else(|| format!("--header '{header}': write 'Name: value'"))?;
        add("--header", name.trim(), value.trim())?;
    }
    let mut members = String::new();
    let prompts = &args.prompts;
    for (option, value) in [
        ("temperature", prompts.temperature),
        ("top_p", prompts.top_p),
        ("min_p", prompts.min_p),
        ("frequency_penalty", prompts.frequency_penalty),
        ("presence_penalty", prompts.presence_penalty),
        ("repetition_penalty", prompts.repetition_penalty),
    ] {
        let Some(value) = value else { continue };
        if !value.is_finite() {
            return Err(format!("--{} {value}: must be a number", option.replace('_', "-")));
        }
        members.push_str(&format!(",\"{option}\":{value}"));
    }
    if let Some(top_k) = prompts.top_k {
        members.push_str(&format!(",\"top_k\":{top_k}"));
    }
    if args.prompts.ignore_eos {
        members.push_str(",\"ignore_eos\":true");
    }
    if let Some(extra) = &args.target.extra_body {
        let value: Result<sonic_rs::Value, _> = sonic_rs::from_str(extra);
        let inside = extra.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        match (value, inside) {
            (Ok(_), Some(inside)) if !inside.trim().is_empty() => {
                members.push_str(&format!(",{inside}"));
            }
            (Ok(_), Some(_)) => {}
            _ => return Err(format!("--extra-body '{extra}': must be a JSON object")),
        }
    }
    Ok(Form { api, model: model.to_owned(), head, members })
}

fn goals(words: &[String]) -> Result<Option<Goals>, String> {
    if words.is_empty() {
        return Ok(None);
    }
    let mut goals = Goals::default();
    for word in words.iter().flat_map(|word| word.split([' ', ','])).filter(|w| !w.is_empty()) {
        let wrong = || format!("--goodput '{word}': write ttft:200, tpot:50 or e2el:5000 (ms)");
        let (name, value) = word.split_once(':').ok_or_else(wrong)?;
        let value: f64 = value.parse().map_err(|_| wrong())?;
        if !(value.is_finite() && value > 0.0) {
            return Err(wrong());
        }
        let span = Some(SimSpan::from_secs_f64(value / 1000.0));
        match name {
            "ttft" | "time_to_first_token" => goals.ttft = span,
            "tpot" | "itl" | "inter_token_latency" => goals.tpot = span,
            "e2el" | "e2e" | "request_latency" => goals.e2e = span,
            _ => return Err(wrong()),
        }
    }
    Ok(Some(goals))
}

fn report(args: &BenchArgs) -> Result<ReportSettings, String> {
    let report = &args.report;
    let mut percentiles = vec![50.0, 90.0, 95.0, 99.0];
    for &p in &report.metric_percentiles {
        if !(p > 0.0 && p < 100.0) {
            return Err(format!("--metric-percentiles {p}: must be between 0 and 100"));
        }
        percentiles.push(p);
    }
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    let mut metadata = Vec::new();
    for pair in &report.metadata {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("--metadata '{pair}': write KEY=VALUE"))?;
        metadata.push((key.to_owned(), value.to_owned()));
    }
    let mut output = report.output.clone();
    let named = report.save_result || report.append_result || report.result_filename.is_some();
    if output.is_none() && named {
        let name = report.result_filename.clone().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let model = args.target.model.as_deref().unwrap_or("model").replace('/', "_");
            format!("llmsim-bench-{model}-{}.json", since.as_secs())
        });
        output = Some(report.result_dir.clone().unwrap_or_default().join(name));
    }
    for metric in &report.percentile_metrics {
        const KNOWN: [&str; 7] = [
            "ttft",
            "tpot",
            "itl",
            "e2el",
            "e2e",
            "client_queue_time",
            "e2el_including_client_queue",
        ];
        if !KNOWN.contains(&metric.as_str()) {
            return Err(format!("--percentile-metrics '{metric}': one of {}", KNOWN.join(", ")));
        }
    }
    Ok(ReportSettings {
        output,
        append: report.append_result,
        tokenizer: args.prompts.tokenizer.clone(),
        format: report.format,
        detailed: report.save_detailed,
        html: report.html.clone(),
        percentiles,
        metrics: report.percentile_metrics.clone(),
        quiet: report.quiet,
        progress: !report.quiet && !report.no_progress,
        label: report.label.clone(),
        metadata,
    })
}
