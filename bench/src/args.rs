//! What can be typed on the command line, and nothing of what it means: that is `settings`.
//!
//! Every flag of `vllm bench serve` that has an equal here is accepted as an alias, so that fingers
//! need not learn.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

/// A load generator for OpenAI-compatible servers that never hides queueing and prints its own
/// error.
#[derive(Debug, Parser)]
#[command(name = "llmsim-bench", version, about, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Something else than a benchmark.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The benchmark.
    #[command(flatten)]
    pub bench: BenchArgs,
}

/// What the program does besides running a benchmark.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure what this client itself adds, against an in-process stream of known timing.
    Selftest(SelftestArgs),
    /// Print a script that completes llmsim-bench's command line in a shell.
    Completions {
        /// Which shell.
        #[arg(value_enum, value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page in troff: llmsim-bench man | man -l -
    Man,
    /// A stream server of known timing, to measure load generators with (this one or others).
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

/// Options of `llmsim-bench selftest`.
#[derive(Debug, ClapArgs)]
pub struct SelftestArgs {
    /// Streams at once.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub concurrency: u32,
    /// Tokens per second of each stream.
    #[arg(long, default_value_t = 100.0, value_name = "RATE")]
    pub tokens_per_second: f64,
    /// Tokens per stream.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub tokens: u32,
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which I/O interface of the kernel to use.
    #[arg(long, value_enum, default_value_t = IoDriver::Auto)]
    pub io_driver: IoDriver,
    /// Whose instant counts as the arrival of a chunk.
    #[arg(long, value_enum, default_value_t = StampsName::Kernel)]
    pub stamps: StampsName,
}

/// Options of `llmsim-bench reference`.
#[derive(Debug, ClapArgs)]
pub struct ReferenceArgs {
    /// Port to listen on; 0 takes a free one. The address is printed.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Time to the first token in milliseconds.
    #[arg(long, default_value_t = 50.0, value_name = "MS")]
    pub ttft: f64,
    /// Time between tokens in milliseconds.
    #[arg(long, default_value_t = 10.0, value_name = "MS")]
    pub itl: f64,
    /// Tokens per answer; `max_tokens` of a request cuts them.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub tokens: u32,
    /// CPUs to run on, such as `0` or `0,2-3`.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
}

/// Options of a benchmark.
#[derive(Debug, ClapArgs)]
pub struct BenchArgs {
    /// Where the target is and how to talk to it.
    #[command(flatten, next_help_heading = "Target")]
    pub target: TargetArgs,
    /// When requests are sent.
    #[command(flatten, next_help_heading = "Load")]
    pub load: LoadArgs,
    /// What is asked.
    #[command(flatten, next_help_heading = "Prompts")]
    pub prompts: PromptArgs,
    /// What comes out.
    #[command(flatten, next_help_heading = "Report")]
    pub report: ReportArgs,
}

/// Options about the target.
#[derive(Debug, ClapArgs)]
pub struct TargetArgs {
    /// Root of the API, with or without `/v1` [default: http://localhost:8080/v1].
    #[arg(long, visible_alias = "base-url", value_name = "URL")]
    pub url: Option<String>,
    /// Host of the target, instead of --url.
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Port of the target, instead of --url.
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
    /// Path of the endpoint; one that ends with `/completions` but not `/chat/completions` is asked
    /// in the legacy form [default: /v1/chat/completions].
    #[arg(long, value_name = "PATH")]
    pub endpoint: Option<String>,
    /// As vLLM names the two forms: `openai-chat`, or `openai` or `vllm` for legacy completions.
    #[arg(long, value_name = "NAME")]
    pub backend: Option<String>,
    /// Model to ask for.
    #[arg(long, short = 'm', value_name = "NAME")]
    pub model: Option<String>,
    /// Name that the server knows the model by, where it differs from --model.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Sent as a Bearer token.
    #[arg(long, env = "OPENAI_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub api_key: Option<String>,
    /// A header to add, `Name: value` or `Name=value`; may be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub headers: Vec<String>,
    /// JSON object whose members are added to every request body.
    #[arg(long, visible_alias = "extra-request-body", value_name = "JSON")]
    pub extra_body: Option<String>,
    /// https: PEM file of the certificates to trust in place of the system's.
    #[arg(long, visible_alias = "cacert", value_name = "FILE", conflicts_with = "insecure")]
    pub ca_cert: Option<PathBuf>,
    /// https: take any certificate.
    #[arg(long)]
    pub insecure: bool,
    /// Seconds allowed before the first chunk and between chunks.
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS")]
    pub timeout: f64,
    /// Seconds allowed to open a connection.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS")]
    pub connect_timeout: f64,
    /// Run against the engine of this models.yml (or builtin:models) in virtual time: nothing is
    /// sent.
    #[arg(long, value_name = "MODELS")]
    pub simulate: Option<String>,
    /// Answers of the virtual server [default: builtin:bench-responses].
    #[arg(long, value_name = "FILE")]
    pub simulate_responses: Option<String>,
    /// Do not look for the server's own metrics.
    #[arg(long)]
    pub no_server_metrics: bool,
    /// Where the server's `/metrics/summary` is, if not beside the API.
    #[arg(long, value_name = "URL")]
    pub server_metrics_url: Option<String>,
    /// CPUs to run on, such as `1` or `0,2-3`.
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// Which I/O interface of the kernel to use.
    #[arg(long, value_enum, default_value_t = IoDriver::Auto)]
    pub io_driver: IoDriver,
    /// Whose instant counts as the arrival of a chunk.
    #[arg(long, value_enum, default_value_t = StampsName::Kernel)]
    pub stamps: StampsName,
}

/// Options about the load.
#[derive(Debug, ClapArgs)]
pub struct LoadArgs {
    /// Closed loop: this many requests in flight. Several values make a sweep.
    #[arg(long, short = 'c', value_delimiter = ',', value_name = "N[,N...]")]
    pub concurrency: Vec<u32>,
    /// Open loop: this many requests per second, `inf` for all at once. Several make a sweep.
    #[arg(
        long,
        short = 'r',
        visible_alias = "request-rate",
        value_delimiter = ',',
        allow_negative_numbers = true,
        value_name = "R[,R...]",
        conflicts_with = "concurrency"
    )]
    pub rate: Vec<f64>,
    /// Open loop in stages: `ramp 0->100 60s; hold 120s; spike 400 10s; pause 5s`.
    #[arg(long, value_name = "STAGES", conflicts_with_all = ["concurrency", "rate"])]
    pub load: Option<String>,
    /// How the gaps between arrivals are drawn [default: poisson].
    #[arg(long, value_enum)]
    pub arrivals: Option<ArrivalsName>,
    /// Shape of gamma-distributed gaps: 1 is Poisson, below 1 more bursty, above more even.
    #[arg(long, value_name = "SHAPE")]
    pub burstiness: Option<f64>,
    /// Open loop: at most this many requests in flight; later arrivals wait.
    #[arg(long, value_name = "N")]
    pub max_concurrency: Option<u32>,
    /// Requests to measure [default: 100, or all that --duration allows].
    #[arg(long, short = 'n', visible_aliases = ["num-prompts", "request-count"], value_name = "N")]
    pub requests: Option<u32>,
    /// Measure every request sent within so many seconds.
    #[arg(long, short = 'd', value_name = "SECONDS")]
    pub duration: Option<f64>,
    /// Unmeasured requests before the measurement [default: one per stream; 8 in an open loop].
    #[arg(long, visible_alias = "num-warmups", value_name = "N")]
    pub warmup: Option<u32>,
    /// Seed of arrivals, prompts and lengths.
    #[arg(long, default_value_t = 0, visible_alias = "random-seed", value_name = "N")]
    pub seed: u64,
    /// Connections opened before the schedule starts [default: as many as can be in flight].
    #[arg(long, value_name = "N")]
    pub connections: Option<u32>,
}

/// Options about prompts.
#[derive(Debug, ClapArgs)]
pub struct PromptArgs {
    /// A different synthetic prompt per request, each of exactly N prompt tokens.
    #[arg(long, visible_aliases = ["random-input-len", "input-len", "isl"], value_name = "N")]
    pub input_tokens: Option<u32>,
    /// The most tokens per answer.
    #[arg(long, visible_aliases = ["random-output-len", "output-len", "osl"], value_name = "N")]
    pub max_tokens: Option<u32>,
    /// Draw both lengths uniformly from N(1-R)..=N(1+R).
    #[arg(long, visible_alias = "random-range-ratio", value_name = "R")]
    pub range_ratio: Option<f64>,
    /// JSON lines `{"prompt": "...", "max_tokens": 64}`, or with `messages`; cycled.
    #[arg(long, visible_alias = "dataset-path", value_name = "FILE")]
    pub dataset: Option<PathBuf>,
    /// What kind of file --dataset is.
    #[arg(long, visible_alias = "dataset-name", value_enum, default_value_t = DatasetKind::Auto)]
    pub dataset_format: DatasetKind,
    /// ShareGPT: also take the first turn when a person did not write it, as other loaders do.
    #[arg(long)]
    pub sharegpt_compat: bool,
    /// The same prompt for every request (the default).
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Put before every prompt.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub prompt_prefix: String,
    /// Replay a trace: Mooncake JSONL, Azure CSV or BurstGPT CSV; arrivals come from it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["dataset", "prompt", "input_tokens"])]
    pub trace: Option<PathBuf>,
    /// What kind of file --trace is.
    #[arg(long, value_enum, default_value_t = TraceKind::Auto)]
    pub trace_format: TraceKind,
    /// Play a trace this many times faster.
    #[arg(long, value_name = "FACTOR")]
    pub time_scale: Option<f64>,
    /// Spread requests that a trace stamps with the same tick over the time to the next one.
    #[arg(long, value_enum, default_value_t = Jitter::None)]
    pub trace_jitter: Jitter,
    /// Send prompts as they are: without it every prompt begins differently, so that a prefix cache
    /// does not flatter the target.
    #[arg(long)]
    pub reuse_prompts: bool,
    /// Repeat the nonces of an earlier run (its JSON has them under `config.nonce`).
    #[arg(long, value_name = "N")]
    pub nonce: Option<u64>,
    /// Ask for exactly --max-tokens tokens (`ignore_eos`, a vLLM extension).
    #[arg(long)]
    pub ignore_eos: bool,
    /// Sampling temperature to send.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Sampling parameter to send.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Sampling parameter to send (a vLLM extension).
    #[arg(long, value_name = "K")]
    pub top_k: Option<i64>,
    /// Sampling parameter to send (a vLLM extension).
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Sampling parameter to send.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f64>,
    /// Sampling parameter to send.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub presence_penalty: Option<f64>,
    /// Sampling parameter to send (a vLLM extension).
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f64>,
    /// For vLLM's sake: kept in the JSON. Tokens are counted by the server's usage.
    #[arg(long, value_name = "NAME", hide = true)]
    pub tokenizer: Option<String>,
    /// For vLLM's sake: nothing is downloaded here, so there is nothing to trust.
    #[arg(long, hide = true)]
    pub trust_remote_code: bool,
}

/// Options about the report.
#[derive(Debug, ClapArgs)]
pub struct ReportArgs {
    /// Write the results as JSON.
    #[arg(long, short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Which keys the JSON has.
    #[arg(long, value_enum, default_value_t = Format::Llmsim)]
    pub format: Format,
    /// Write JSON under a name made from model, load and time.
    #[arg(long)]
    pub save_result: bool,
    /// Add to the JSON file instead of replacing it: one object per line.
    #[arg(long)]
    pub append_result: bool,
    /// Also write what happened to each request.
    #[arg(long, visible_alias = "details")]
    pub save_detailed: bool,
    /// Folder for --save-result.
    #[arg(long, value_name = "DIR")]
    pub result_dir: Option<PathBuf>,
    /// File name for --save-result.
    #[arg(long, value_name = "NAME")]
    pub result_filename: Option<String>,
    /// Label kept in the JSON.
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
    /// `KEY=VALUE` pairs kept in the JSON.
    #[arg(long, num_args = 1.., value_name = "KEY=VALUE")]
    pub metadata: Vec<String>,
    /// Write one self-contained page to look at.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Service levels in ms: `ttft:200 tpot:50 e2el:5000`.
    #[arg(long, num_args = 1.., value_name = "METRIC:MS")]
    pub goodput: Vec<String>,
    /// Metrics to show, such as `ttft,tpot,itl,e2el` [default: all].
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub percentile_metrics: Vec<String>,
    /// Percentiles to show and save besides 50, 90, 95, 99.
    #[arg(long, value_delimiter = ',', value_name = "P[,P...]")]
    pub metric_percentiles: Vec<f64>,
    /// Only the result: no progress, no notes.
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// No progress while it runs.
    #[arg(long, visible_alias = "disable-tqdm")]
    pub no_progress: bool,
    /// Skip the self-test before open-loop runs and sweeps.
    #[arg(long)]
    pub no_selftest: bool,
}

/// Names of arrival processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ArrivalsName {
    /// Independent users: exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
    /// Gamma-distributed gaps of shape --burstiness.
    Gamma,
}

/// Names of dataset formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DatasetKind {
    /// Told by its content.
    Auto,
    /// Lines with `prompt` or `messages`.
    #[value(alias = "custom", alias = "openai")]
    Jsonl,
    /// A ShareGPT array.
    Sharegpt,
    /// OpenAI batch input lines.
    Batch,
    /// No file: synthetic prompts (vLLM's name for them).
    Random,
}

/// Names of trace formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceKind {
    /// Told by its content.
    Auto,
    /// Mooncake JSONL: `timestamp` in ms, lengths, `hash_ids` of 512-token blocks.
    Mooncake,
    /// Azure LLM inference CSV.
    Azure,
    /// BurstGPT CSV.
    Burstgpt,
}

/// What to do with requests of a trace that share one timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Jitter {
    /// Leave them as a burst.
    None,
    /// Spread them uniformly up to the next timestamp.
    Uniform,
}

/// Whose clock stamps an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StampsName {
    /// The kernel, when the packet came in.
    Kernel,
    /// This program, when its read returned.
    Read,
}

/// JSON dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Our own.
    #[value(alias = "json")]
    Llmsim,
    /// The keys of `vllm bench serve --save-result`.
    Vllm,
}

/// Kernel interfaces for I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoDriver {
    /// io_uring where allowed, else epoll.
    Auto,
    /// io_uring or fail.
    Uring,
    /// epoll.
    Epoll,
}
