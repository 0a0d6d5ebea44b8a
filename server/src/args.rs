//! What the user asked for: the command line and the `LLM_SIM_*` variables.
//!
//! [`LowArgs`] is what was typed; [`Command`] is what it means, with files read and checked. A flag
//! beats its variable, and an empty variable counts as unset. The invariant: [`Settings`] are
//! complete and valid, so that the server starts with all of them or not at all.

mod admin;
mod values;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use llmsim_engine::config::Config;

pub use self::admin::Admin;
use self::admin::AdminAddress;
use self::values::{Count, FromText, Samples, Time};
use crate::commands;
use crate::tls::Identity;

/// What the program is to do.
#[derive(Debug)]
pub enum Command {
    /// Serve until told to stop.
    Serve(Box<Settings>),
    /// Validate both files and print what follows from them.
    Check(Files),
    /// Print a built-in file.
    PrintConfig(String),
    /// Print the JSON Schema of a kind of file.
    PrintSchema(String),
    /// Print a script that completes the command line.
    Completions(Shell),
    /// Print the manual page, of the program or of one of its subcommands.
    Man(Option<String>),
    /// Print what a `models.yml` can name.
    Presets,
    /// Fit a model's constants to measured runs.
    Calibrate(commands::calibrate::Options),
    /// Run arrivals through the engines in virtual time.
    Simulate(commands::simulate::Options),
    /// Tell an engine again what a journal says that it was told.
    Replay(commands::replay::Options),
}

/// Everything that serving depends on.
#[derive(Debug)]
pub struct Settings {
    /// What is served.
    pub config: Config,
    /// The names of the files that `config` came from.
    pub files: Files,
    /// The address to listen on, as typed: a name or an IP address.
    pub host: String,
    /// The port to listen on; 0 lets the system choose.
    pub port: u16,
    /// `--port-per-replica`: the port of the first replica, those of the others follow; with 0 the
    /// system chooses each, and with nothing there is the shared port alone.
    pub port_per_replica: Option<u16>,
    /// Threads and where they run.
    pub threads: Threads,
    /// What a connection may ask for.
    pub limits: Limits,
    /// Files that a run writes.
    pub logs: Logs,
    /// How much `/metrics/summary` remembers.
    pub summary: SummarySizes,
    /// What `/metrics` shows, and when the server says that it is late.
    pub metrics: MetricsSettings,
    /// `--tls-cert` and `--tls-key`: with them, HTTPS is spoken and nothing else.
    pub tls: Option<Identity>,
    /// `--admin` and `--admin-address`.
    pub admin: Admin,
    /// `--api-key`: what clients must show under `/v1`; nothing if there are none.
    pub api_keys: ApiKeys,
}

/// Keys of the clients. Their text stays out of logs and debug output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// These keys, none of them empty.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// How many there are; with none, everyone is let in.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether everyone is let in.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `key` is one of them. Takes as long for a wrong key as for a nearly right one.
    pub fn has(&self, key: &str) -> bool {
        let same = |known: &String| {
            let bytes = known.bytes().zip(key.bytes());
            let differences = bytes.fold(0, |all, (one, other)| all | (one ^ other));
            known.len() == key.len() && std::hint::black_box(differences) == 0
        };
        self.0.iter().fold(false, |found, known| found | same(known))
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} of them)", self.len())
    }
}

/// The configuration files, by the names that the user gave: paths or `builtin:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// `--models`.
    pub models: String,
    /// `--responses`.
    pub responses: String,
    /// `--faults`.
    pub faults: Option<String>,
}

/// Threads and where they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    /// `--io-threads`; `None` lets the machine decide.
    pub io_threads: Option<usize>,
    /// `--cpus`: the only cores that may be used; `None` is all that the process may use.
    pub cpus: Option<CpuSet>,
    /// `--no-pin`.
    pub pinning: Pinning,
    /// `--spin`.
    pub spin: Spin,
    /// `--realtime`.
    pub priority: Priority,
    /// `--io-driver`.
    pub io_driver: IoDriver,
}

/// Whether threads are bound to cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// Where there are enough cores.
    Auto,
    /// Nowhere.
    Never,
}

/// Whether a thread waits for the last microseconds before a deadline with its core awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Spin {
    /// As long as cores are to spare.
    Auto,
    /// Not at all.
    Never,
    /// GPU threads never sleep while they have work.
    Always,
}

/// How the system's scheduler treats the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Like those of any program.
    Ordinary,
    /// As real-time threads, if the system allows it.
    Realtime,
}

/// How sockets are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoDriver {
    /// io_uring where the system allows it, else epoll.
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll.
    Epoll,
}

/// What a connection may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections; one more is refused.
    pub max_connections: usize,
    /// Bytes of a request body; more is a 413.
    pub max_body_bytes: usize,
    /// From the first byte of a request to the end of its head.
    pub head_timeout: Duration,
    /// From the end of the head to the end of the body.
    pub body_timeout: Duration,
    /// Between two requests of one connection.
    pub idle_timeout: Duration,
    /// How long a client may leave its stream unread before it is cut off.
    pub write_timeout: Duration,
    /// How long streams may go on after a SIGTERM.
    pub drain_timeout: Duration,
}

/// Files that a run writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logs {
    /// `--journal`: the inputs of every simulated GPU.
    pub journal: Option<PathBuf>,
    /// `--step-log`: what each step did, as JSON lines.
    pub step_log: Option<PathBuf>,
    /// `--trace`: the same for Perfetto.
    pub trace: Option<PathBuf>,
}

/// How much `/metrics/summary` remembers, of each model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummarySizes {
    /// Requests whose values are kept.
    pub request_samples: usize,
    /// Tokens whose ITL and lag are kept.
    pub token_samples: usize,
    /// Throughput is averaged over this time.
    pub rate_window: Duration,
}

/// What `/metrics` shows, and when the server says that it is late.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// `--metrics`.
    pub families: MetricFamilies,
    /// `--fidelity-lag`: the largest good 99th percentile of the token lag.
    pub fidelity_lag: Duration,
    /// `--fidelity-window`: what it is taken over.
    pub fidelity_window: Duration,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self {
            families: MetricFamilies { vllm: true, llm_sim: true },
            fidelity_lag: Duration::from_millis(5),
            fidelity_window: Duration::from_secs(10),
        }
    }
}

/// Which families `/metrics` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricFamilies {
    /// Those in vLLM's names.
    pub vllm: bool,
    /// Our own, and the process's.
    pub llm_sim: bool,
}

/// A set of cores, as `0-3,6` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuSet(pub BTreeSet<usize>);

/// What the process was started with means. Prints help, the version or what is wrong, and ends the
/// process, where that is the answer: 0 for help, 2 for a mistake.
pub fn parse() -> Command {
    let low = LowArgs::parse();
    let variable = |name: &str| std::env::var_os(name).map(|value| value.into_string());
    match Command::from_low(low, &variable) {
        Ok(command) => command,
        Err(mistake) => {
            eprintln!("llmsimulator: {mistake}");
            std::process::exit(2);
        }
    }
}

/// The command line as clap knows it.
pub(crate) fn command_line() -> clap::Command {
    LowArgs::command()
}

/// A deterministic, GPU-free stand-in for an OpenAI-compatible LLM server.
///
/// Without a subcommand it serves. Wherever a config file is asked for, `builtin:NAME` names a
/// built-in one. Each `[VARIABLE]` is read if its flag is not given; an empty one counts as unset.
#[derive(Debug, Parser)]
#[command(
    name = "llmsimulator",
    version,
    args_conflicts_with_subcommands = true,
    after_help = AFTER_HELP
)]
struct LowArgs {
    #[command(subcommand)]
    task: Option<Task>,

    #[command(flatten)]
    files: LowFiles,

    /// Print a built-in config file and exit: models, responses or bench-responses.
    #[arg(long, value_name = "NAME", conflicts_with = "check")]
    print_config: Option<String>,

    /// Print the JSON Schema of a config file, for editors, and exit: models or responses.
    #[arg(long, value_name = "KIND", conflicts_with_all = ["check", "print_config"])]
    print_schema: Option<String>,

    /// Validate both config files, print what follows from them, and exit.
    #[arg(long)]
    check: bool,

    /// Address to listen on [default: 0.0.0.0] [LLM_SIM_HOST]
    #[arg(long, value_name = "HOST", help_heading = "Network")]
    host: Option<String>,

    /// Port to listen on; 0 lets the system choose [default: 8080] [LLM_SIM_PORT]
    #[arg(long, value_name = "PORT", help_heading = "Network")]
    port: Option<u16>,

    /// Give each simulated GPU a port of its own beside the shared one, from BASE upwards in the
    /// order of the configuration; 0 lets the system choose [default: none]
    /// [LLM_SIM_PORT_PER_REPLICA]
    #[arg(long, value_name = "BASE", help_heading = "Network")]
    port_per_replica: Option<u16>,

    /// A key that clients must send to use /v1, as `Authorization: Bearer KEY`; may be given several
    /// times [default: none, everyone may] [LLM_SIM_API_KEY, with commas between]
    #[arg(long = "api-key", value_name = "KEY", help_heading = "Network")]
    api_keys: Vec<String>,

    /// Speak HTTPS, with this certificate and those that lead to its root, in PEM [LLM_SIM_TLS_CERT]
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    tls_cert: Option<PathBuf>,

    /// The certificate's private key, in PEM [LLM_SIM_TLS_KEY]
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    tls_key: Option<PathBuf>,

    /// Serve /admin, where failures on purpose can be read and set while the server runs
    #[arg(long, help_heading = "Network")]
    admin: bool,

    /// Serve /admin, and there only: an address and a port [default: with all else]
    /// [LLM_SIM_ADMIN_ADDRESS]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Network")]
    admin_address: Option<AdminAddress>,

    /// Open connections, above which new ones are refused [default: 16384] [LLM_SIM_MAX_CONNECTIONS]
    #[arg(long, value_name = "N", help_heading = "Network")]
    max_connections: Option<Count>,

    /// Largest request body in bytes [default: 10485760] [LLM_SIM_MAX_BODY_BYTES]
    #[arg(long, value_name = "BYTES", help_heading = "Network")]
    max_body_bytes: Option<Count>,

    /// Time for a request's head to arrive [default: 10s] [LLM_SIM_HEAD_TIMEOUT]
    #[arg(long, value_name = "TIME", help_heading = "Network")]
    head_timeout: Option<Time>,

    /// Time for a request's body to arrive [default: 30s] [LLM_SIM_BODY_TIMEOUT]
    #[arg(long, value_name = "TIME", help_heading = "Network")]
    body_timeout: Option<Time>,

    /// Time that a connection is kept open between requests [default: 75s] [LLM_SIM_IDLE_TIMEOUT]
    #[arg(long, value_name = "TIME", help_heading = "Network")]
    idle_timeout: Option<Time>,

    /// Time after which a client that does not read its stream is cut off [default: 60s]
    /// [LLM_SIM_WRITE_TIMEOUT]
    #[arg(long, value_name = "TIME", help_heading = "Network")]
    write_timeout: Option<Time>,

    /// Time for running streams to finish after a SIGTERM [default: 30s] [LLM_SIM_DRAIN_TIMEOUT]
    #[arg(long, value_name = "TIME", help_heading = "Network")]
    drain_timeout: Option<Time>,

    /// Threads that serve connections [default: by the number of cores] [LLM_SIM_IO_THREADS]
    #[arg(long, value_name = "N", help_heading = "Threads")]
    io_threads: Option<Count>,

    /// The only cores to use, for example 0-3,6 [default: all that the process may use]
    /// [LLM_SIM_CPUS]
    #[arg(long, value_name = "LIST", help_heading = "Threads")]
    cpus: Option<CpuSet>,

    /// Do not bind threads to cores
    #[arg(long, help_heading = "Threads")]
    no_pin: bool,

    /// Stay awake shortly before a deadline [default: auto] [LLM_SIM_SPIN]
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "Threads")]
    spin: Option<Spin>,

    /// Ask for real-time scheduling; goes on without it where it is not allowed
    #[arg(long, help_heading = "Threads")]
    realtime: bool,

    /// How sockets are driven [default: auto] [LLM_SIM_IO_DRIVER]
    #[arg(long, value_enum, value_name = "DRIVER", help_heading = "Threads")]
    io_driver: Option<IoDriver>,

    /// Write the inputs of every simulated GPU to FILE, or FILE.MODEL.REPLICA if there are several,
    /// for `llmsimulator replay` [LLM_SIM_JOURNAL]
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    journal: Option<PathBuf>,

    /// Write what each scheduler step did to FILE, as JSON lines [LLM_SIM_STEP_LOG]
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    step_log: Option<PathBuf>,

    /// Write the scheduler steps to FILE as a trace for Perfetto [LLM_SIM_TRACE]
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    trace: Option<PathBuf>,

    /// Families that GET /metrics shows, of vllm and llm_sim [default: vllm,llm_sim]
    /// [LLM_SIM_METRICS]
    #[arg(long, value_name = "LIST", help_heading = "Metrics")]
    metrics: Option<MetricFamilies>,

    /// The 99th percentile of the token lag above which the server says that it is late
    /// [default: 5ms] [LLM_SIM_FIDELITY_LAG]
    #[arg(long, value_name = "TIME", help_heading = "Metrics")]
    fidelity_lag: Option<Time>,

    /// What that percentile is taken over [default: 10s] [LLM_SIM_FIDELITY_WINDOW]
    #[arg(long, value_name = "TIME", help_heading = "Metrics")]
    fidelity_window: Option<Time>,
}

const AFTER_HELP: &str = "\
What GET /metrics/summary remembers of each model has variables only:
  LLM_SIM_SUMMARY_REQUEST_SAMPLES  requests whose values are kept [default: 10000]
  LLM_SIM_SUMMARY_TOKEN_SAMPLES    tokens whose ITL and lag are kept [default: 100000]
  LLM_SIM_SUMMARY_RATE_SECONDS     seconds that throughput is averaged over [default: 60]
At most 10000000 samples are kept; their memory is taken at the start.

A TIME is 30s, 500ms or 2m; a bare number is in seconds. The format of the config files is in
docs/schema.md.";

#[derive(Debug, Args)]
struct LowFiles {
    /// Which models there are and how fast they answer [default: builtin:models] [LLM_SIM_MODELS]
    #[arg(long, value_name = "FILE")]
    models: Option<String>,

    /// What they answer [default: builtin:responses] [LLM_SIM_RESPONSES]
    #[arg(long, value_name = "FILE")]
    responses: Option<String>,

    /// What goes wrong on purpose, beside what `faults:` of the models says: docs/faults.md
    /// [LLM_SIM_FAULTS]
    #[arg(long, value_name = "FILE")]
    faults: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Print a script that completes llmsimulator's command line in a shell.
    Completions {
        /// Which shell
        #[arg(value_enum, value_name = "SHELL")]
        shell: Shell,
    },

    /// Print the manual page in troff: llmsimulator man | man -l -
    Man {
        /// Of this subcommand
        #[arg(value_name = "SUBCOMMAND")]
        topic: Option<String>,
    },

    /// List the GPUs, models and engine classes that a models.yml can name.
    Presets,

    /// Fit a model's constants to benchmark results, and print a models file that has them; the
    /// report stands above it, as comments.
    Calibrate {
        #[command(flatten)]
        files: LowFiles,

        #[command(flatten)]
        asked: commands::calibrate::Asked,
    },

    /// Run a list of arrivals through the same engines in virtual time, and print per-request
    /// latencies as JSON lines.
    Simulate {
        #[command(flatten)]
        files: LowFiles,

        /// One request per line, `-` for standard input:
        /// {"arrival_ms": 0, "model": "qwen-mock", "prompt_tokens": 512, "output_tokens": 128}
        #[arg(long, value_name = "FILE")]
        arrivals: PathBuf,

        /// Write what each scheduler step did to FILE, as JSON lines
        #[arg(long, value_name = "FILE")]
        step_log: Option<PathBuf>,

        /// Write the scheduler steps to FILE as a trace for Perfetto
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
    },

    /// Run the journal of one simulated GPU through its engine again, and print what happens.
    Replay {
        #[command(flatten)]
        files: LowFiles,

        /// The model it was, if the configuration has several and FILE's name does not tell
        #[arg(long, value_name = "NAME")]
        model: Option<String>,

        /// Compare with this event log instead of printing; exit code 1 if something differs
        #[arg(long, value_name = "FILE")]
        events: Option<PathBuf>,

        /// What --journal wrote
        #[arg(value_name = "FILE")]
        journal: PathBuf,
    },
}

/// The value of an environment variable, if it is set; `Err` holds one that is not Unicode.
type Variables<'a> = &'a dyn Fn(&str) -> Option<Result<String, std::ffi::OsString>>;

impl Command {
    fn from_low(low: LowArgs, variables: Variables<'_>) -> Result<Self, Mistake> {
        let from = Flags { variables };
        if let Some(name) = low.print_config {
            return Ok(Self::PrintConfig(name));
        }
        if let Some(kind) = low.print_schema {
            return Ok(Self::PrintSchema(kind));
        }
        match low.task {
            Some(Task::Completions { shell }) => return Ok(Self::Completions(shell)),
            Some(Task::Man { topic }) => return Ok(Self::Man(topic)),
            Some(Task::Presets) => return Ok(Self::Presets),
            Some(Task::Calibrate { files, asked }) => {
                let files = from.files(files)?;
                return Ok(Self::Calibrate(commands::calibrate::Options { files, asked }));
            }
            Some(Task::Simulate { files, arrivals, step_log, trace }) => {
                let files = from.files(files)?;
                let options = commands::simulate::Options { files, arrivals, step_log, trace };
                return Ok(Self::Simulate(options));
            }
            Some(Task::Replay { files, model, events, journal }) => {
                let files = from.files(files)?;
                let options = commands::replay::Options { files, journal, model, events };
                return Ok(Self::Replay(options));
            }
            None => {}
        }
        let only_checks = low.check;
        // What would keep the server from starting is a mistake for the check too.
        let settings = Settings::from_low(low, from)?;
        Ok(if only_checks { Self::Check(settings.files) } else { Self::Serve(Box::new(settings)) })
    }
}

impl Settings {
    fn from_low(low: LowArgs, from: Flags<'_>) -> Result<Self, Mistake> {
        let files = from.files(low.files)?;
        let count = |value: Option<Count>, variable: &str, default: usize| {
            from.or_variable(value, variable).map(|value| value.map_or(default, |count| count.0))
        };
        let time = |value: Option<Time>, variable: &str, default: u64| {
            let value = from.or_variable(value, variable)?;
            Ok::<_, Mistake>(value.map_or(Duration::from_secs(default), |time| time.0))
        };
        let samples = |variable: &str, default: usize| {
            let value = from.or_variable(None, variable)?;
            Ok::<_, Mistake>(value.map_or(default, |Samples(count)| count))
        };
        let limits = Limits {
            max_connections: count(low.max_connections, "LLM_SIM_MAX_CONNECTIONS", 16_384)?,
            max_body_bytes: count(low.max_body_bytes, "LLM_SIM_MAX_BODY_BYTES", 10 << 20)?,
            head_timeout: time(low.head_timeout, "LLM_SIM_HEAD_TIMEOUT", 10)?,
            body_timeout: time(low.body_timeout, "LLM_SIM_BODY_TIMEOUT", 30)?,
            idle_timeout: time(low.idle_timeout, "LLM_SIM_IDLE_TIMEOUT", 75)?,
            write_timeout: time(low.write_timeout, "LLM_SIM_WRITE_TIMEOUT", 60)?,
            drain_timeout: time(low.drain_timeout, "LLM_SIM_DRAIN_TIMEOUT", 30)?,
        };
        let threads = Threads {
            io_threads: from
                .or_variable(low.io_threads, "LLM_SIM_IO_THREADS")?
                .map(|count| count.0),
            cpus: from.or_variable(low.cpus, "LLM_SIM_CPUS")?,
            pinning: if low.no_pin { Pinning::Never } else { Pinning::Auto },
            spin: from.or_variable(low.spin, "LLM_SIM_SPIN")?.unwrap_or(Spin::Auto),
            priority: if low.realtime { Priority::Realtime } else { Priority::Ordinary },
            io_driver: from
                .or_variable(low.io_driver, "LLM_SIM_IO_DRIVER")?
                .unwrap_or(IoDriver::Auto),
        };
        let logs = Logs {
            journal: from.or_variable(low.journal, "LLM_SIM_JOURNAL")?,
            step_log: from.or_variable(low.step_log, "LLM_SIM_STEP_LOG")?,
            trace: from.or_variable(low.trace, "LLM_SIM_TRACE")?,
        };
        let summary = SummarySizes {
            request_samples: samples("LLM_SIM_SUMMARY_REQUEST_SAMPLES", 10_000)?,
            token_samples: samples("LLM_SIM_SUMMARY_TOKEN_SAMPLES", 100_000)?,
            rate_window: time(None, "LLM_SIM_SUMMARY_RATE_SECONDS", 60)?,
        };
        let usual = MetricsSettings::default();
        let metrics = MetricsSettings {
            families: from.or_variable(low.metrics, "LLM_SIM_METRICS")?.unwrap_or(usual.families),
            fidelity_lag: from
                .or_variable(low.fidelity_lag, "LLM_SIM_FIDELITY_LAG")?
                .map_or(usual.fidelity_lag, |time| time.0),
            fidelity_window: from
                .or_variable(low.fidelity_window, "LLM_SIM_FIDELITY_WINDOW")?
                .map_or(usual.fidelity_window, |time| time.0),
        };
        let api_keys = from.api_keys(low.api_keys)?;
        let address = from.or_variable(low.admin_address, "LLM_SIM_ADMIN_ADDRESS")?;
        let admin = Admin::of(low.admin, address);
        let tls = from.tls(low.tls_cert, low.tls_key)?;
        let host = from.or_variable(low.host, "LLM_SIM_HOST")?.unwrap_or("0.0.0.0".to_owned());
        let port = from.or_variable(low.port, "LLM_SIM_PORT")?.unwrap_or(8080);
        let port_per_replica =
            from.or_variable(low.port_per_replica, "LLM_SIM_PORT_PER_REPLICA")?;
        // Last, so that a mistyped flag is told before a file is read.
        let config = commands::load(&files).map_err(Mistake)?;
        Ok(Self {
            config,
            files,
            host,
            port,
            port_per_replica,
            threads,
            limits,
            logs,
            summary,
            metrics,
            tls,
            admin,
            api_keys,
        })
    }
}

/// Something that the user has to put right; its text is the whole message.
#[derive(Debug)]
struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Copy)]
struct Flags<'a> {
    variables: Variables<'a>,
}

impl Flags<'_> {
    /// What the flag says, or else the variable.
    fn or_variable<T: FromText>(&self, flag: Option<T>, name: &str) -> Result<Option<T>, Mistake> {
        if flag.is_some() {
            return Ok(flag);
        }
        match (self.variables)(name) {
            None => Ok(None),
            Some(Ok(text)) if text.is_empty() => Ok(None),
            Some(Ok(text)) => match T::from_text(&text) {
                Ok(value) => Ok(Some(value)),
                Err(why) => Err(Mistake(format!("the variable {name} is `{text}`: {why}"))),
            },
            Some(Err(_)) => Err(Mistake(format!("the variable {name} is not valid Unicode"))),
        }
    }

    fn api_keys(&self, typed: Vec<String>) -> Result<ApiKeys, Mistake> {
        if typed.iter().any(String::is_empty) {
            return Err(Mistake("--api-key is empty: leave it out to let everyone in".to_owned()));
        }
        let keys = match self.or_variable(None::<String>, "LLM_SIM_API_KEY")? {
            Some(keys) if typed.is_empty() => {
                keys.split(',').map(|key| key.trim().to_owned()).collect()
            }
            _ => typed,
        };
        Ok(ApiKeys::new(keys))
    }

    fn tls(
        &self,
        cert: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Identity>, Mistake> {
        let cert = self.or_variable(cert, "LLM_SIM_TLS_CERT")?;
        let key = self.or_variable(key, "LLM_SIM_TLS_KEY")?;
        let missing = |given: &str, other: &str| {
            Mistake(format!("{given} is given without {other}: HTTPS needs both"))
        };
        match (cert, key) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => Identity::load(&cert, &key).map(Some).map_err(Mistake),
            (Some(_), None) => Err(missing("--tls-cert", "--tls-key")),
            (None, Some(_)) => Err(missing("--tls-key", "--tls-cert")),
        }
    }

    fn files(&self, typed: LowFiles) -> Result<Files, Mistake> {
        let models = self.or_variable(typed.models, "LLM_SIM_MODELS")?;
        let responses = self.or_variable(typed.responses, "LLM_SIM_RESPONSES")?;
        let faults = self.or_variable(typed.faults, "LLM_SIM_FAULTS")?;
        Ok(Files {
            faults,
            models: models.unwrap_or_else(|| "builtin:models".to_owned()),
            responses: responses.unwrap_or_else(|| "builtin:responses".to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str, variables: &[(&str, &str)]) -> Result<Command, String> {
        let words = std::iter::once("llmsimulator").chain(line.split_whitespace());
        let low = LowArgs::try_parse_from(words).map_err(|error| error.to_string())?;
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| Ok((*value).to_owned()))
        };
        Command::from_low(low, &variable).map_err(|mistake| mistake.to_string())
    }

    fn settings(line: &str, variables: &[(&str, &str)]) -> Settings {
        match command(line, variables) {
            Ok(Command::Serve(settings)) => *settings,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn a_bare_command_serves_the_builtins_on_port_8080() {
        let settings = settings("", &[]);
        assert_eq!((settings.host.as_str(), settings.port), ("0.0.0.0", 8080));
        assert_eq!(settings.files.models, "builtin:models");
        assert_eq!(settings.files.responses, "builtin:responses");
        let names: Vec<_> = settings.config.models.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["qwen-mock", "qwen-mock-batched", "tiny-mock"]);
        assert_eq!(settings.summary.request_samples, 10_000);
        assert_eq!(settings.summary.token_samples, 100_000);
        assert_eq!(settings.summary.rate_window, Duration::from_secs(60));
        assert_eq!(settings.metrics, MetricsSettings::default());
    }

    #[test]
    fn a_flag_beats_its_variable_and_an_empty_variable_is_unset() {
        let variables = [("LLM_SIM_PORT", "9000"), ("LLM_SIM_HOST", ""), ("LLM_SIM_SPIN", "never")];
        let from_variables = settings("", &variables);
        assert_eq!((from_variables.port, from_variables.host.as_str()), (9000, "0.0.0.0"));
        assert_eq!(from_variables.threads.spin, Spin::Never);
        let from_flags = settings("--port 9001 --spin always", &variables);
        assert_eq!((from_flags.port, from_flags.threads.spin), (9001, Spin::Always));
    }

    #[test]
    fn a_mistake_in_a_variable_names_the_variable() {
        for (variable, value, words) in [
            ("LLM_SIM_PORT", "http", "LLM_SIM_PORT is `http`: must be a port"),
            ("LLM_SIM_SPIN", "maybe", "must be one of auto, never, always"),
            ("LLM_SIM_SUMMARY_REQUEST_SAMPLES", "0", "must be a whole number from 1"),
            ("LLM_SIM_SUMMARY_TOKEN_SAMPLES", "4000000000", "number from 1 to 10000000"),
            ("LLM_SIM_DRAIN_TIMEOUT", "soon", "for example 30s"),
            ("LLM_SIM_METRICS", "vllm,tgi", "must be vllm, llm_sim, or both"),
            ("LLM_SIM_MODELS", "no/such.yml", "no/such.yml: cannot be read"),
        ] {
            for line in ["", "--check"] {
                let mistake = command(line, &[(variable, value)]).unwrap_err();
                assert!(mistake.contains(words), "{line} {variable}={value}: {mistake}");
            }
        }
    }

    #[test]
    fn keys_come_from_flags_or_the_variable_and_are_never_shown() {
        let variables = [("LLM_SIM_API_KEY", "sk-one, sk-two")];
        let keys = settings("", &variables).api_keys;
        assert!(keys.has("sk-one") && keys.has("sk-two"));
        for wrong in ["", "sk-", "sk-one, sk-two", "sk-onE", "sk-one ", "sk-three"] {
            assert!(!keys.has(wrong), "{wrong}");
        }
        let keys = settings("--api-key a --api-key b", &variables).api_keys;
        assert!(keys.has("a") && keys.has("b") && !keys.has("sk-one"));
        assert_eq!(format!("{keys:?}"), "ApiKeys(2 of them)");
        assert!(settings("", &[("LLM_SIM_API_KEY", "")]).api_keys.is_empty());
        assert!(command("--api-key=", &[]).unwrap_err().contains("--api-key is empty"));
    }

    #[test]
    fn a_certificate_and_its_key_are_wanted_together() {
        assert!(settings("", &[("LLM_SIM_TLS_CERT", ""), ("LLM_SIM_TLS_KEY", "")]).tls.is_none());
        for (line, variable, words) in [
            ("--tls-cert a.pem", "", "--tls-cert is given without --tls-key"),
            ("--tls-key a.pem", "", "--tls-key is given without --tls-cert"),
            ("", "a.pem", "--tls-key is given without --tls-cert"),
            ("--tls-cert no/a.pem", "no/b.pem", "--tls-cert: cannot read no/a.pem"),
            ("--check --tls-cert no/a.pem", "no/b.pem", "--tls-cert: cannot read no/a.pem"),
        ] {
            let mistake = command(line, &[("LLM_SIM_TLS_KEY", variable)]).unwrap_err();
            assert!(mistake.contains(words), "{line} {variable}: {mistake}");
        }
    }

    #[test]
    fn families_and_the_bar_of_the_verdict_are_chosen() {
        let chosen =
            settings("--metrics vllm --fidelity-lag 2ms", &[("LLM_SIM_FIDELITY_WINDOW", "3")]);
        assert_eq!(chosen.metrics.families, MetricFamilies { vllm: true, llm_sim: false });
        assert_eq!(chosen.metrics.fidelity_lag, Duration::from_millis(2));
        assert_eq!(chosen.metrics.fidelity_window, Duration::from_secs(3));
        let both = settings("--metrics llm_sim,vllm", &[]);
        assert_eq!(both.metrics.families, MetricsSettings::default().families);
    }

    #[test]
    fn times_and_cores_are_written_as_people_write_them() {
        for (text, ms) in [("30", 30_000), ("0.5", 500), ("2m", 120_000), ("500ms", 500)] {
            assert_eq!(text.parse::<Time>().unwrap().0.as_millis(), ms, "{text}");
        }
        assert_eq!("0-2,6".parse::<CpuSet>().unwrap().0, BTreeSet::from([0, 1, 2, 6]));
        for wrong in ["", "3-1", "a", "1,,2", "99999"] {
            assert!(wrong.parse::<CpuSet>().is_err(), "{wrong}");
        }
        for wrong in ["", "-1", "nan", "inf", "1h", "0"] {
            assert!(wrong.parse::<Time>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_other_commands_are_told_apart() {
        assert!(matches!(command("--check", &[]), Ok(Command::Check(_))));
        let print = command("--print-config models", &[]);
        assert!(matches!(print, Ok(Command::PrintConfig(name)) if name == "models"));
        let simulate = command("simulate --models builtin:models --arrivals -", &[]);
        assert!(matches!(simulate, Ok(Command::Simulate(_))), "{simulate:?}");
        assert!(command("--port 70000", &[]).unwrap_err().contains("70000"));
    }
}
