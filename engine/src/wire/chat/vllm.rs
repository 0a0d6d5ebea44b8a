//! The fields that vLLM adds to OpenAI's chat request. Those that change a scripted answer or its
//! timing are kept; sampling and template options are checked and otherwise without effect.

use std::borrow::Cow;

use super::body::{Member, Raw};
use super::fields::{Path, boolean, decimal, integer, only_type};
use super::tools::{Format, structured_outputs};
use crate::units::Tokens;
use crate::wire::error::{ApiError, Bound};
use crate::wire::json::{Json, Kind};

/// What vLLM tells of tokens, and what it keeps of a prompt's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenFields {
    /// `stream_interval`: tokens in a chunk of a stream; at least 1.
    pub interval: u32,
    /// `return_token_ids`: the ids of the prompt's and of the answer's tokens.
    pub ids: bool,
    /// `prompt_logprobs`: how many alternatives to each token of the prompt are told, from 0 to 20.
    /// Not with streams.
    pub prompt_logprobs: Option<u32>,
    /// `truncate_prompt_tokens`.
    pub truncation: Option<Truncation>,
}

impl TokenFields {
    /// What nobody asked for.
    pub const NONE: Self =
        Self { interval: 1, ids: false, prompt_logprobs: None, truncation: None };
    /// What shows a prompt's tokens with their texts.
    pub const SCORED: Self = Self { ids: true, prompt_logprobs: Some(0), ..Self::NONE };
}

/// What a chat's prompt ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptEnd {
    /// What begins the answer: `add_generation_prompt`, the default of chats.
    AnswerBegins,
    /// The end of the last message.
    Closed,
    /// The text of the last message: `continue_final_message`.
    Open,
}

/// How a long prompt is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// So many tokens stay; `None` for as many as leave room for one of the answer.
    pub most: Option<Tokens>,
    /// `truncation_side`: which end goes.
    pub side: Side,
}

/// An end of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Side {
    /// The beginning goes, the last tokens stay: vLLM's default for models that generate.
    #[default]
    Left,
    /// The end goes.
    Right,
}

pub(in crate::wire) struct VllmFields<'a> {
    pub(in crate::wire) end: PromptEnd,
    pub(in crate::wire) min_tokens: Tokens,
    pub(in crate::wire) ignore_eos: bool,
    pub(in crate::wire) include_stop: bool,
    pub(in crate::wire) priority: i32,
    pub(in crate::wire) cache_salt: Option<Cow<'a, str>>,
    pub(in crate::wire) request_id: Option<Cow<'a, str>>,
    pub(in crate::wire) tokens: TokenFields,
    pub(in crate::wire) structured_outputs: Option<Format>,
    pub(in crate::wire) include_reasoning: bool,
    pub(in crate::wire) most_thinking: Option<Tokens>,
}

impl VllmFields<'_> {
    /// Those of a request that has none.
    const NONE: Self = Self {
        end: PromptEnd::AnswerBegins,
        min_tokens: Tokens::ZERO,
        ignore_eos: false,
        include_stop: false,
        priority: 0,
        cache_salt: None,
        request_id: None,
        tokens: TokenFields::NONE,
        structured_outputs: None,
        include_reasoning: true,
        most_thinking: None,
    };
}

pub(in crate::wire) fn check<'a>(
    raw: &mut Raw<'a>,
    max_tokens: Option<Tokens>,
    stream: bool,
) -> Result<VllmFields<'a>, ApiError> {
    if !raw.has_vllm() {
        return Ok(VllmFields::NONE);
    }
    sampling(raw)?;
    let end = template(raw)?;
    let min_tokens = min_tokens(raw.get(Member::min_tokens), max_tokens, "max_tokens")?;
    let prompt_logprobs = integer(raw.get(Member::prompt_logprobs), "prompt_logprobs", 0..=20)?;
    if prompt_logprobs > Some(0) && stream {
        return Err(ApiError::only_with("prompt_logprobs", "'stream' is not enabled"));
    }
    let structured_outputs = structured_outputs(raw.get(Member::structured_outputs))?;
    let interval = integer(raw.get(Member::stream_interval), "stream_interval", 1..=i64::MAX)?;
    let tokens = TokenFields {
        interval: interval.map_or(1, |tokens| u32::try_from(tokens).unwrap_or(u32::MAX)),
        ids: boolean(raw.get(Member::return_token_ids), "return_token_ids")?.unwrap_or(false),
        prompt_logprobs: prompt_logprobs.filter(|_| !stream).map(|count| count as u32),
        truncation: truncation(raw)?,
    };
    let include_reasoning =
        boolean(raw.get(Member::include_reasoning), "include_reasoning")?.unwrap_or(true);
    raw.string(Member::session_id, "session_id")?;
    only_type(raw.kind(Member::vllm_xargs), "vllm_xargs", Kind::Object)?;
    only_type(raw.kind(Member::kv_transfer_params), "kv_transfer_params", Kind::Object)?;
    let priority =
        integer(raw.get(Member::priority), "priority", i64::from(i32::MIN)..=i64::from(i32::MAX))?;

    Ok(VllmFields {
        end,
        min_tokens,
        ignore_eos: boolean(raw.get(Member::ignore_eos), "ignore_eos")?.unwrap_or(false),
        include_stop: boolean(
            raw.get(Member::include_stop_str_in_output),
            "include_stop_str_in_output",
        )?
        .unwrap_or(false),
        priority: priority.map_or(0, |value| value as i32),
        cache_salt: cache_salt(raw.take(Member::cache_salt))?,
        request_id: request_id(raw.take(Member::request_id), "request_id")?,
        tokens,
        structured_outputs,
        include_reasoning,
        most_thinking: most_thinking(raw)?,
    })
}

/// How many tokens may be thought: none for those who switch it off as the templates of Qwen and
/// DeepSeek understand it.
fn most_thinking(raw: &Raw<'_>) -> Result<Option<Tokens>, ApiError> {
    let budget =
        integer(raw.get(Member::thinking_token_budget), "thinking_token_budget", -1..=i64::MAX)?;
    if let Json::Object(arguments) = raw.get(Member::chat_template_kwargs) {
        let is_off = |name| *arguments.get(name) == Json::Bool(false);
        if is_off("enable_thinking") || is_off("thinking") {
            return Ok(Some(Tokens::ZERO));
        }
    }
    let budget = budget.filter(|&budget| budget >= 0);
    Ok(budget.map(|budget| Tokens::new(u32::try_from(budget).unwrap_or(u32::MAX))))
}

fn sampling(raw: &Raw<'_>) -> Result<(), ApiError> {
    integer(raw.get(Member::top_k), "top_k", -1..=i64::MAX)?;
    decimal(raw.get(Member::min_p), "min_p", 0.0..=1.0)?;
    repetition_penalty(raw.get(Member::repetition_penalty))?;
    decimal(raw.get(Member::length_penalty), "length_penalty", f64::MIN..=f64::MAX)?;
    boolean(raw.get(Member::use_beam_search), "use_beam_search")?;
    only_type(raw.kind(Member::stop_token_ids), "stop_token_ids", Kind::Array)?;
    only_type(raw.kind(Member::bad_words), "bad_words", Kind::Array)?;
    only_type(raw.kind(Member::allowed_token_ids), "allowed_token_ids", Kind::Array)?;
    boolean(raw.get(Member::skip_special_tokens), "skip_special_tokens")?;
    boolean(raw.get(Member::spaces_between_special_tokens), "spaces_between_special_tokens")?;
    Ok(())
}

fn truncation(raw: &mut Raw<'_>) -> Result<Option<Truncation>, ApiError> {
    const FIELD: &str = "truncate_prompt_tokens";
    let most = integer(raw.get(Member::truncate_prompt_tokens), FIELD, -1..=i64::MAX)?;
    let side = match raw.string(Member::truncation_side, "truncation_side")?.as_deref() {
        None => Side::default(),
        Some("left") => Side::Left,
        Some("right") => Side::Right,
        Some(other) => {
            return Err(ApiError::not_one_of("truncation_side", other, &["left", "right"]));
        }
    };
    let most = match most {
        None => return Ok(None),
        // Nothing would be left to answer to; vLLM's engine refuses an empty prompt.
        Some(0) => return Err(ApiError::integer_out_of_range(FIELD, Bound::Min(1), 0)),
        Some(-1) => None,
        Some(most) => Some(Tokens::new(u32::try_from(most).unwrap_or(u32::MAX))),
    };
    Ok(Some(Truncation { most, side }))
}

fn template(raw: &Raw<'_>) -> Result<PromptEnd, ApiError> {
    boolean(raw.get(Member::echo), "echo")?;
    boolean(raw.get(Member::add_special_tokens), "add_special_tokens")?;
    let (adds, continues) =
        (raw.get(Member::add_generation_prompt), raw.get(Member::continue_final_message));
    let end = prompt_end(adds, continues, PromptEnd::AnswerBegins)?;
    only_type(raw.get(Member::chat_template_kwargs).kind(), "chat_template_kwargs", Kind::Object)?;
    only_type(raw.kind(Member::documents), "documents", Kind::Array)?;
    only_type(raw.kind(Member::mm_processor_kwargs), "mm_processor_kwargs", Kind::Object)?;
    Ok(end)
}

/// What `add_generation_prompt` and `continue_final_message` make of a prompt's end, which without
/// them is `usual`.
pub(in crate::wire) fn prompt_end(
    adds: &Json<'_>,
    continues: &Json<'_>,
    usual: PromptEnd,
) -> Result<PromptEnd, ApiError> {
    let adds = boolean(adds, "add_generation_prompt")?;
    let continues = boolean(continues, "continue_final_message")?;
    match (adds, continues) {
        // The default of add_generation_prompt may be true, but only a client that says so is
        // wrong.
        (Some(true), Some(true)) => Err(ApiError::contradiction(
            "continue_final_message",
            "it cannot be true together with add_generation_prompt; set one of them to false.",
        )),
        (_, Some(true)) => Ok(PromptEnd::Open),
        (Some(true), _) => Ok(PromptEnd::AnswerBegins),
        (Some(false), _) => Ok(PromptEnd::Closed),
        (None, _) => Ok(usual),
    }
}

/// `min_tokens`, which must leave room under the limit that the field `max` has set.
pub(in crate::wire) fn min_tokens(
    json: &Json<'_>,
    limit: Option<Tokens>,
    max: &str,
) -> Result<Tokens, ApiError> {
    let min_tokens = integer(json, "min_tokens", 0..=i64::from(u32::MAX))?
        .map_or(Tokens::ZERO, |count| Tokens::new(u32::try_from(count).unwrap_or(u32::MAX)));
    match limit.filter(|limit| min_tokens > *limit) {
        Some(limit) => Err(ApiError::contradiction(
            "min_tokens",
            &format!("min_tokens must be less than or equal to {max}={limit}, got {min_tokens}."),
        )),
        None => Ok(min_tokens),
    }
}

pub(in crate::wire) fn repetition_penalty(json: &Json<'_>) -> Result<(), ApiError> {
    match decimal(json, "repetition_penalty", 0.0..=f64::MAX)? {
        Some(0.0) => Err(ApiError::invalid_value("repetition_penalty", "it must be above 0.")),
        _ => Ok(()),
    }
}

/// The longest id of a request: it stands in every chunk of a stream.
const MAX_ID_CHARS: usize = 128;

/// An id by which the client names its request; vLLM takes an empty one as none.
pub(in crate::wire) fn request_id<'a>(
    json: Json<'a>,
    param: impl Into<Path>,
) -> Result<Option<Cow<'a, str>>, ApiError> {
    Ok(super::short_string(json, param, MAX_ID_CHARS)?.filter(|id| !id.is_empty()))
}

const MAX_SALT_CHARS: usize = 128;

pub(in crate::wire) fn cache_salt(json: Json<'_>) -> Result<Option<Cow<'_, str>>, ApiError> {
    let Some(salt) = super::short_string(json, "cache_salt", MAX_SALT_CHARS)? else {
        return Ok(None);
    };
    if salt.is_empty() {
        return Err(ApiError::empty_string("cache_salt"));
    }
    if salt.contains(['@', '/', '\\', '\0']) {
        let why = "it must not contain '@', '/', '\\' or NUL.";
        return Err(ApiError::invalid_value("cache_salt", why));
    }
    Ok(Some(salt))
}
