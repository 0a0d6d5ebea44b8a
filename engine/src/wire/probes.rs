//! What routers and gateways ask vLLM and SGLang about themselves, as bodies.
//!
//! It knows no engine: all figures are the caller's. SGLang's members and vLLM's stand in one
//! object where both have the same route.

use std::io::Write as _;

use super::error::ApiError;
use super::json::push_string;

const INFALLIBLE: &str = "writing to memory cannot fail";

/// What `GET /server_info` says of one model; SGLang's route, and vLLM's in its development mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerInfo<'a> {
    /// The model.
    pub model: &'a str,
    /// Our release.
    pub version: &'a str,
    /// Replicas: SGLang's data parallel ranks.
    pub replicas: usize,
    /// GPUs that share a replica.
    pub tensor_parallel: u32,
    /// Tokens of prompt and answer together.
    pub context: u32,
    /// Tokens that one replica's KV cache holds; `None` for an engine without one.
    pub kv_tokens: Option<u64>,
    /// Tokens that one step may compute; `None` for an engine without steps.
    pub step_tokens: Option<u32>,
    /// Requests that may run at a time; `None` for an engine without a batch.
    pub running: Option<u32>,
    /// Of an engine with a scheduler: what else vLLM's configuration says of it.
    pub scheduler: Option<SchedulerInfo>,
}

/// What vLLM's configuration says of a scheduler and its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerInfo {
    /// Tokens in a block.
    pub block_size: u32,
    /// Blocks, with the one that stands for none.
    pub blocks: u32,
    /// Whether prefixes are cached.
    pub prefix_caching: bool,
    /// Whether a prompt may be computed in parts.
    pub chunked_prefill: bool,
    /// `fcfs` or `priority`.
    pub policy: &'static str,
}

/// vLLM's `config_format`: how `/server_info` tells `vllm_config`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigFormat {
    /// One string, as Python prints a `VllmConfig`.
    #[default]
    Text,
    /// An object.
    Json,
}

impl ConfigFormat {
    /// The one of this name.
    ///
    /// # Errors
    /// There are two.
    pub fn named(name: &str) -> Result<Self, ApiError> {
        match name {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(ApiError::not_one_of("config_format", other, &["text", "json"])),
        }
    }
}

/// Of the members of vLLM's `system_env` (`SystemEnv` in collect_env.py) those that nothing can be
/// said of by a server without Python, PyTorch and a GPU; `nvidia-smi` and its like are not there
/// to be asked.
const UNKNOWN_OF_SYSTEM: [&str; 37] = [
    "torch_version",
    "is_debug_build",
    "cuda_compiled_version",
    "gcc_version",
    "clang_version",
    "cmake_version",
    "libc_version",
    "python_version",
    "python_platform",
    "cuda_runtime_version",
    "cuda_module_loading",
    "nvidia_driver_version",
    "nvidia_gpu_models",
    "cudnn_version",
    "xpu_runtime_version",
    "intel_graphics_compiler_version",
    "intel_gpu_models",
    "oneapi_compiler_version",
    "level_zero_loader_version",
    "level_zero_driver_version",
    "oneccl_version",
    "libigdgmm_version",
    "vllm_xpu_kernels_version",
    "sycl_version",
    "pip_version",
    "pip_packages",
    "conda_packages",
    "hip_compiled_version",
    "hip_runtime_version",
    "miopen_runtime_version",
    "caching_allocator_config",
    "is_xnnpack_available",
    "cpu_info",
    "rocm_version",
    "vllm_build_flags",
    "gpu_topo",
    "env_vars",
];

/// Appends the body of `/server_info`: the members of the first model, as both servers with their
/// one model have them, and `models` with those of all. `system` is the operating system and its
/// processor's kind.
///
/// # Panics
/// If there are none.
pub fn write_server_info(
    models: &[ServerInfo<'_>],
    format: ConfigFormat,
    system: &str,
    out: &mut Vec<u8>,
) {
    let first = models.first().expect("a server has at least one model");
    first.members(out);
    // One entry for each replica, read by SGLang's benchmark.
    let states = vec!["{}"; first.replicas].join(",");
    write!(out, ",\"internal_states\":[{states}],\"status\":\"ready\",\"version\":")
        .expect(INFALLIBLE);
    push_string(out, first.version);
    out.extend_from_slice(b",\"vllm_config\":");
    match format {
        ConfigFormat::Text => push_string(out, &first.config_text()),
        ConfigFormat::Json => first.config(out),
    }
    out.extend_from_slice(b",\"vllm_env\":{},\"system_env\":{\"os\":");
    push_string(out, system);
    out.extend_from_slice(b",\"is_cuda_available\":\"False\",\"xpu_available\":\"False\"");
    out.extend_from_slice(b",\"vllm_version\":");
    push_string(out, first.version);
    for name in UNKNOWN_OF_SYSTEM {
        write!(out, ",\"{name}\":null").expect(INFALLIBLE);
    }
    out.extend_from_slice(b"},\"models\":[");
    for (at, model) in models.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        model.members(out);
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

impl ServerInfo<'_> {
    /// Appends `{` and the members of one model.
    fn members(&self, out: &mut Vec<u8>) {
        for name in ["{\"model_path\":", ",\"tokenizer_path\":", ",\"served_model_name\":"] {
            out.extend_from_slice(name.as_bytes());
            push_string(out, self.model);
        }
        write!(out, ",\"dp_size\":{},\"tp_size\":{}", self.replicas, self.tensor_parallel)
            .expect(INFALLIBLE);
        out.extend_from_slice(b",\"pp_size\":1");
        write!(out, ",\"context_length\":{}", self.context).expect(INFALLIBLE);
        for (name, value) in [
            ("max_total_tokens", self.kv_tokens),
            ("max_total_num_tokens", self.kv_tokens),
            ("max_prefill_tokens", self.step_tokens.map(u64::from)),
            ("max_running_requests", self.running.map(u64::from)),
        ] {
            match value {
                Some(value) => write!(out, ",\"{name}\":{value}"),
                None => write!(out, ",\"{name}\":null"),
            }
            .expect(INFALLIBLE);
        }
    }

    /// vLLM's configuration in a line: of its settings those that there are here, by vLLM's names.
    fn config_text(&self) -> String {
        let mut text = format!(
            "model='{0}', tokenizer='{0}', max_seq_len={1}, tensor_parallel_size={2}, \
             pipeline_parallel_size=1, data_parallel_size={3}, served_model_name={0}",
            self.model, self.context, self.tensor_parallel, self.replicas
        );
        if let Some(scheduler) = self.scheduler {
            let python = |is: bool| if is { "True" } else { "False" };
            text += &format!(
                ", enable_prefix_caching={}, enable_chunked_prefill={}",
                python(scheduler.prefix_caching),
                python(scheduler.chunked_prefill)
            );
        }
        text
    }

    /// Appends the same as an object of vLLM's parts.
    fn config(&self, out: &mut Vec<u8>) {
        let opening = "{\"model_config\":{\"model\":";
        for name in [opening, ",\"tokenizer\":", ",\"served_model_name\":"] {
            out.extend_from_slice(name.as_bytes());
            push_string(out, self.model);
        }
        write!(
            out,
            ",\"max_model_len\":{}}},\"parallel_config\":{{\"pipeline_parallel_size\":1,\
             \"tensor_parallel_size\":{},\"data_parallel_size\":{}}}",
            self.context, self.tensor_parallel, self.replicas
        )
        .expect(INFALLIBLE);
        if let Some(scheduler) = self.scheduler {
            let SchedulerInfo { block_size, blocks, prefix_caching, chunked_prefill, policy } =
                scheduler;
            write!(
                out,
                ",\"cache_config\":{{\"block_size\":{block_size},\"num_gpu_blocks\":{blocks},\
                 \"enable_prefix_caching\":{prefix_caching}}},\"scheduler_config\":{{\
                 \"max_num_batched_tokens\":{},\"max_num_seqs\":{},\
                 \"enable_chunked_prefill\":{chunked_prefill},\"policy\":\"{policy}\"}}",
                self.step_tokens.unwrap_or_default(),
                self.running.unwrap_or_default()
            )
            .expect(INFALLIBLE);
        }
        out.push(b'}');
    }
}

/// Appends the body of SGLang's `GET /model_info`.
pub fn write_model_info(model: &str, out: &mut Vec<u8>) {
    for name in ["{\"model_path\":", ",\"tokenizer_path\":"] {
        out.extend_from_slice(name.as_bytes());
        push_string(out, model);
    }
    out.extend_from_slice(
        b",\"is_generation\":true,\"preferred_sampling_params\":null,\"weight_version\":\"default\",\
          \"has_image_understanding\":false,\"has_audio_understanding\":false,\
          \"model_type\":\"llmsimulator\",\"architectures\":[\"LlmSimulator\"]}",
    );
}

/// What one replica holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaLoad {
    /// Requests, waiting ones included.
    pub requests: u64,
    /// Of those, waiting.
    pub waiting: u64,
    /// Tokens in its KV cache, and those of prompts that wait: what SGLang's router goes by.
    pub tokens: u64,
}

/// Appends the body of SGLang's `GET /get_load`.
pub fn write_loads(loads: &[ReplicaLoad], out: &mut Vec<u8>) {
    out.push(b'[');
    for (rank, load) in loads.iter().enumerate() {
        if rank > 0 {
            out.push(b',');
        }
        write!(
            out,
            "{{\"dp_rank\":{rank},\"num_reqs\":{},\"num_waiting_reqs\":{},\"num_tokens\":{}}}",
            load.requests, load.waiting, load.tokens
        )
        .expect(INFALLIBLE);
    }
    out.push(b']');
}

/// Appends the body of vLLM's `POST /wake_up`; `tags` as they came, null without any.
pub fn write_woken(status: &str, tags: &[&str], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"status\":");
    push_string(out, status);
    out.extend_from_slice(b",\"tags\":");
    if tags.is_empty() {
        out.extend_from_slice(b"null}");
        return;
    }
    for (at, tag) in tags.iter().enumerate() {
        out.push(if at == 0 { b'[' } else { b',' });
        push_string(out, tag);
    }
    out.extend_from_slice(b"]}");
}
