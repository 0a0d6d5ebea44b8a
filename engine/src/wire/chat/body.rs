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
pub(in crate::wire) struct Raw<'a> {
    pub(in crate::wire) model: Json<'a>,
    pub(in crate::wire) messages: RawMessages<'a>,
    pub(in crate::wire) functions: Kind,
    pub(in crate::wire) tools: Json<'a>,
    pub(in crate::wire) tool_choice: Json<'a>,
    pub(in crate::wire) parallel_tool_calls: Json<'a>,
    pub(in crate::wire) max_completion_tokens: Json<'a>,
    pub(in crate::wire) n: Json<'a>,
    pub(in crate::wire) temperature: Json<'a>,
    pub(in crate::wire) top_p: Json<'a>,
    pub(in crate::wire) presence_penalty: Json<'a>,
    pub(in crate::wire) frequency_penalty: Json<'a>,
    pub(in crate::wire) logprobs: Json<'a>,
    pub(in crate::wire) top_logprobs: Json<'a>,
    pub(in crate::wire) user: Json<'a>,
    pub(in crate::wire) seed: Json<'a>,
    pub(in crate::wire) response_format: Json<'a>,
    pub(in crate::wire) service_tier: Json<'a>,
    pub(in crate::wire) max_tokens: Json<'a>,
    pub(in crate::wire) reasoning_effort: Json<'a>,
    pub(in crate::wire) logit_bias: Json<'a>,
    pub(in crate::wire) stop: Json<'a>,
    pub(in crate::wire) stream: Json<'a>,
    pub(in crate::wire) stream_options: Json<'a>,
    pub(in crate::wire) store: Json<'a>,
    pub(in crate::wire) metadata: Kind,
    pub(in crate::wire) prediction: Kind,
    pub(in crate::wire) verbosity: Json<'a>,
    pub(in crate::wire) modalities: Kind,
    pub(in crate::wire) audio: Kind,
    pub(in crate::wire) web_search_options: Kind,
    pub(in crate::wire) safety_identifier: Json<'a>,
    pub(in crate::wire) prompt_cache_key: Json<'a>,

    // vLLM's own.
    pub(in crate::wire) top_k: Json<'a>,
    pub(in crate::wire) min_p: Json<'a>,
    pub(in crate::wire) repetition_penalty: Json<'a>,
    pub(in crate::wire) length_penalty: Json<'a>,
    pub(in crate::wire) use_beam_search: Json<'a>,
    pub(in crate::wire) min_tokens: Json<'a>,
    pub(in crate::wire) ignore_eos: Json<'a>,
    pub(in crate::wire) stop_token_ids: Kind,
    pub(in crate::wire) bad_words: Kind,
    pub(in crate::wire) allowed_token_ids: Kind,
    pub(in crate::wire) include_stop_str_in_output: Json<'a>,
    pub(in crate::wire) skip_special_tokens: Json<'a>,
    pub(in crate::wire) spaces_between_special_tokens: Json<'a>,
    pub(in crate::wire) truncate_prompt_tokens: Json<'a>,
    pub(in crate::wire) truncation_side: Json<'a>,
    pub(in crate::wire) prompt_logprobs: Json<'a>,
    pub(in crate::wire) echo: Json<'a>,
    pub(in crate::wire) add_generation_prompt: Json<'a>,
    pub(in crate::wire) continue_final_message: Json<'a>,
    pub(in crate::wire) add_special_tokens: Json<'a>,
    pub(in crate::wire) chat_template_kwargs: Json<'a>,
    pub(in crate::wire) documents: Kind,
    pub(in crate::wire) mm_processor_kwargs: Kind,
    pub(in crate::wire) structured_outputs: Json<'a>,
    pub(in crate::wire) priority: Json<'a>,
    pub(in crate::wire) request_id: Json<'a>,
    pub(in crate::wire) return_token_ids: Json<'a>,
    pub(in crate::wire) stream_interval: Json<'a>,
    pub(in crate::wire) cache_salt: Json<'a>,
    pub(in crate::wire) session_id: Json<'a>,
    pub(in crate::wire) vllm_xargs: Kind,
    pub(in crate::wire) kv_transfer_params: Kind,
    pub(in crate::wire) include_reasoning: Json<'a>,
    pub(in crate::wire) thinking_token_budget: Json<'a>,
}

/// Parses a chat request's body.
pub(in crate::wire) fn read(body: &[u8]) -> Result<Raw<'_>, ApiError> {
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
