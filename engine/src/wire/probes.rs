//! What routers and gateways ask vLLM and SGLang about themselves, as bodies.
//!
//! It knows no engine: all figures are the caller's. SGLang's members and vLLM's stand in one
//! object where both have the same route.

use std::io::Write as _;

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
    /// Tokens of prompt and answer together.
    pub context: u32,
    /// Tokens that one replica's KV cache holds; `None` for an engine without one.
    pub kv_tokens: Option<u64>,
    /// Tokens that one step may compute; `None` for an engine without steps.
    pub step_tokens: Option<u32>,
    /// Requests that may run at a time; `None` for an engine without a batch.
    pub running: Option<u32>,
}

/// Appends the body of `/server_info`: the members of the first model, as both servers with their one
/// model have them, and `models` with those of all.
///
/// # Panics
/// If there are none.
pub fn write_server_info(models: &[ServerInfo<'_>], out: &mut Vec<u8>) {
    let first = models.first().expect("a server has at least one model");
    first.members(out);
    // One entry for each replica, read by SGLang's benchmark.
    let states = vec!["{}"; first.replicas].join(",");
    write!(out, ",\"internal_states\":[{states}],\"status\":\"ready\",\"version\":")
        .expect(INFALLIBLE);
    push_string(out, first.version);
    out.extend_from_slice(b",\"vllm_config\":{\"model_config\":{\"model\":");
    push_string(out, first.model);
    write!(out, ",\"max_model_len\":{}}}}},\"models\":[", first.context).expect(INFALLIBLE);
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
        write!(out, ",\"dp_size\":{},\"tp_size\":1,\"pp_size\":1", self.replicas)
            .expect(INFALLIBLE);
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
