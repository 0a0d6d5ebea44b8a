//! A server in this process, on a port of its own, with models whose timing is easy to follow.

use std::time::{Duration, Instant};

use llmsim_engine::config::{self, Source};
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::cost::StepCost;
use llmsim_engine::units::SimSpan;
use llmsimulator::args::{
    Admin, ApiKeys, Files, IoDriver, Limits, Logs, MetricsSettings, Pinning, Priority, Settings,
    Spin, SummarySizes, Threads,
};
use llmsimulator::boot::Server;
use llmsimulator::metrics::Totals;

/// `instant`, `paced` (1 ms per token) and `batched` (up to 1,024 sequences, 5 ms per step).
const MODELS: &str = "
version: 1
hardware:
  gpu: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }
models:
  - { name: instant, context_length: 100000, engine: instant }
  - name: org/paced
    context_length: 100000
    engine: fixed_rate
    performance: { prefill_tokens_per_second: 1000000, decode_tokens_per_second: 1000 }
  - name: batched
    context_length: 4096
    engine: scheduler
    hardware: gpu
    weights: { parameters_billion: 1, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 57344, block_size: 16, num_gpu_blocks_override: 300000 }
    scheduler: { max_batch_tokens: 16384, max_num_sequences: 1024 }
";

const RESPONSES: &str = r#"
version: 1
seed: 7
responses:
  - id: long
    match: { starts_with: ["[long]"] }
    synthetic: { tokens: 50000 }
  - id: hundred
    match: { starts_with: ["[hundred]"] }
    synthetic: { tokens: 100 }
  - id: quotes
    match: { exact: ["quotes"] }
    content: "She said \"no\\yes\"\nand\tthen \u4f60\u597d \U0001F600."
default:
  content: "One two three four five six seven."
"#;

/// What a person would read as "One two three four five six seven.": 8 tokens.
pub(crate) const DEFAULT_TEXT: &str = "One two three four five six seven.";

/// Settings for a server in a test: any port, short waits nowhere.
pub(crate) fn settings() -> Settings {
    let mut config =
        config::load(&Source::new("models", MODELS), &Source::new("responses", RESPONSES))
            .unwrap_or_else(|problems| panic!("{problems}"));
    for model in &mut config.models {
        if let EngineSpec::Scheduler(spec) = &mut model.engine {
            spec.cost = StepCost::Fixed(SimSpan::from_ms(5));
        }
    }
    Settings {
        config,
        files: Files {
            models: "models".to_owned(),
            responses: "responses".to_owned(),
            faults: None,
        },
        host: "127.0.0.1".to_owned(),
        port: 0,
        port_per_replica: None,
        threads: Threads {
            io_threads: None,
            cpus: None,
            pinning: Pinning::Never,
            spin: Spin::Never,
            priority: Priority::Ordinary,
            io_driver: IoDriver::Auto,
        },
        limits: Limits {
            max_connections: 4096,
            max_body_bytes: 1 << 20,
            head_timeout: Duration::from_secs(60),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(60),
        },
        logs: Logs::default(),
        summary: SummarySizes {
            request_samples: 100,
            token_samples: 100,
            rate_window: Duration::from_secs(60),
        },
        metrics: MetricsSettings::default(),
        tls: None,
        admin: Admin::default(),
        api_keys: ApiKeys::default(),
    }
}

/// A server with the settings of [`settings`].
pub(crate) fn start() -> Server {
    start_with(|_| {})
}

/// A server with the settings of [`settings`], changed.
pub(crate) fn start_with(change: impl FnOnce(&mut Settings)) -> Server {
    let mut settings = settings();
    change(&mut settings);
    Server::start(settings).unwrap()
}

/// Looks again and again until the server's totals are as wanted; fails after a minute.
pub(crate) fn wait_until(
    server: &Server,
    what: &str,
    mut wanted: impl FnMut(&Totals) -> bool,
) -> Totals {
    let start = Instant::now();
    loop {
        let totals = server.totals();
        if wanted(&totals) {
            return totals;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited for {what}: {totals:#?}");
        std::thread::yield_now();
    }
}
