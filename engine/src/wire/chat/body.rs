//! The body of a chat request as typed: every field of any type.
//!
//! A well-formed object always gets through here, whatever it holds.

use serde::Deserialize;

use super::messages::RawMessages;
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Kind};
use crate::wire::json_guard::{self, MAX_DEPTH, TooDeep};

/// Every field that is looked at. `Kind` where only the type matters: its content is skipped.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
pub(super) struct Raw<'a> {
    pub(super) model: Json<'a>,
    pub(super) messages: RawMessages<'a>,
    pub(super) functions: Kind,
    pub(super) tools: Json<'a>,
    pub(super) tool_choice: Json<'a>,
    pub(super) parallel_tool_calls: Json<'a>,
    pub(super) max_completion_tokens: Json<'a>,
    pub(super) n: Json<'a>,
    pub(super) temperature: Json<'a>,
    pub(super) top_p: Json<'a>,
    pub(super) presence_penalty: Json<'a>,
    pub(super) frequency_penalty: Json<'a>,
    pub(super) logprobs: Json<'a>,
    pub(super) top_logprobs: Json<'a>,
    pub(super) user: Json<'a>,
    pub(super) seed: Json<'a>,
    pub(super) response_format: Json<'a>,
    pub(super) service_tier: Json<'a>,
    pub(super) max_tokens: Json<'a>,
    pub(super) reasoning_effort: Json<'a>,
    pub(super) logit_bias: Json<'a>,
    pub(super) stop: Json<'a>,
    pub(super) stream: Json<'a>,
    pub(super) stream_options: Json<'a>,
    pub(super) store: Json<'a>,
    pub(super) metadata: Kind,
    pub(super) prediction: Kind,
    pub(super) verbosity: Json<'a>,
    pub(super) modalities: Kind,
    pub(super) audio: Kind,
    pub(super) web_search_options: Kind,
    pub(super) safety_identifier: Json<'a>,
    pub(super) prompt_cache_key: Json<'a>,

    // vLLM's own.
    pub(super) top_k: Json<'a>,
    pub(super) min_p: Json<'a>,
    pub(super) repetition_penalty: Json<'a>,
    pub(super) length_penalty: Json<'a>,
    pub(super) use_beam_search: Json<'a>,
    pub(super) min_tokens: Json<'a>,
    pub(super) ignore_eos: Json<'a>,
    pub(super) stop_token_ids: Kind,
    pub(super) bad_words: Kind,
    pub(super) allowed_token_ids: Kind,
    pub(super) include_stop_str_in_output: Json<'a>,
    pub(super) skip_special_tokens: Json<'a>,
    pub(super) spaces_between_special_tokens: Json<'a>,
    pub(super) truncate_prompt_tokens: Json<'a>,
    pub(super) prompt_logprobs: Json<'a>,
    pub(super) echo: Json<'a>,
    pub(super) add_generation_prompt: Json<'a>,
    pub(super) continue_final_message: Json<'a>,
    pub(super) add_special_tokens: Json<'a>,
    pub(super) chat_template_kwargs: Kind,
    pub(super) documents: Kind,
    pub(super) mm_processor_kwargs: Kind,
    pub(super) structured_outputs: Kind,
    pub(super) priority: Json<'a>,
    pub(super) request_id: Json<'a>,
    pub(super) return_token_ids: Json<'a>,
    pub(super) stream_interval: Json<'a>,
    pub(super) cache_salt: Json<'a>,
    pub(super) session_id: Json<'a>,
    pub(super) vllm_xargs: Kind,
    pub(super) kv_transfer_params: Kind,
    pub(super) include_reasoning: Json<'a>,
}

/// Parses a chat request's body.
pub(super) fn read(body: &[u8]) -> Result<Raw<'_>, ApiError> {
    read_as(body)
}

/// Parses a body behind the depth guard. `T` must take fields of any type.
pub(in crate::wire) fn read_as<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::malformed_json("it is empty"));
    }
    json_guard::check(body).map_err(|TooDeep { at }| {
        ApiError::malformed_json(&format!(
            "it is nested deeper than {MAX_DEPTH} levels at byte {at}"
        ))
    })?;
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        let kind: Kind = sonic_rs::from_slice(body).map_err(|error| refusal(&error))?;
        return Err(ApiError::not_an_object(kind.with_article()));
    }
    sonic_rs::from_slice(body).map_err(|error| refusal(&error))
}

/// No body's type refuses a type, so an error that is not about syntax is serde's
/// `duplicate field`.
fn refusal(error: &sonic_rs::Error) -> ApiError {
    let text = error.to_string();
    // The lines after the first draw the surroundings.
    let first = text.lines().next().unwrap_or_default();
    if error.is_unmatched_type() {
        ApiError::duplicate_member(first)
    } else {
        ApiError::malformed_json(first)
    }
}
