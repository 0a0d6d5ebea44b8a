//! `POST /v1/chat/completions`: the request, checked completely before anything is done.
//!
//! It does not know which models exist, how long a context is, or what the answer will be: that is
//! checked by the server, which has those. The invariant: whoever holds a [`ChatRequest`] need not
//! check a type or a range again; whoever gets an [`ApiError`] sends it before the first byte of a
//! stream.
//!
//! Fields are checked in OpenAI's order, and only the first fault is reported. Null counts as not
//! sent, unknown top-level fields are ignored (OpenAI refuses them, vLLM ignores them, and gateways
//! add their own), and vLLM's fields are taken beside OpenAI's.

pub(super) mod body;
pub(super) mod fields;
pub(super) mod messages;
pub(super) mod tools;
pub(super) mod vllm;

use std::borrow::Cow;
use std::mem::take;

use self::body::Member;
use self::fields::{boolean, decimal, integer, only_type, short_string, string, wrong_type};
pub use self::messages::{Message, Role};
pub use self::tools::Format;
pub use self::vllm::{PromptEnd, Side, TokenFields, Truncation};
use super::error::ApiError;
use super::json::{Json, Kind};
use super::tools::{Choice, Tools};
use crate::units::Tokens;

/// A valid request for a chat completion. Texts are borrowed from the body where it spells them
/// without escapes.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// The conversation; at least one message.
    pub messages: Vec<Message<'a>>,
    /// vLLM: what the prompt ends with.
    pub end: PromptEnd,
    /// The functions that may be called, and whether one is.
    pub tools: Tools<'a>,
    /// The form of answer that is asked for.
    pub format: Format,
    /// With `logprobs`: how many alternatives to each token are told, from 0 to 20.
    pub logprobs: Option<u32>,
    /// vLLM: whether what is thought before the answer is sent.
    pub include_reasoning: bool,
    /// How many tokens may be thought before the answer; `None` for as many as there are.
    pub most_thinking: Option<Tokens>,
    /// vLLM: what is told of tokens, and what is kept of the prompt's.
    pub tokens: TokenFields,
    /// How many answers: `n`, from 1 to 128.
    pub choices: u32,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// `stream_options.include_usage`: a usage chunk at the end.
    pub include_usage: bool,
    /// vLLM's `stream_options.continuous_usage_stats`: usage on every chunk.
    pub continuous_usage: bool,
    /// The limit on output tokens, at least 1; `max_completion_tokens` wins over `max_tokens`.
    pub max_tokens: Option<Tokens>,
    /// vLLM: no natural end before this many output tokens.
    pub min_tokens: Tokens,
    /// vLLM: no natural end at all; output runs to the limit.
    pub ignore_eos: bool,
    /// Texts that end the answer: at most [`MAX_STOPS`], none of them empty.
    pub stop: Vec<Cow<'a, str>>,
    /// vLLM: the text that ended the answer stays at its end.
    pub include_stop: bool,
    /// Chooses among the variants of an answer.
    pub seed: Option<i64>,
    /// vLLM: lower is more urgent. Not zero only makes sense under the priority policy.
    pub priority: i32,
    /// vLLM: keeps this client's prefixes apart from others' in the cache.
    pub cache_salt: Option<Cow<'a, str>>,
    /// vLLM: becomes part of the answer's id.
    pub request_id: Option<Cow<'a, str>>,
    /// The end user, as told by the client.
    pub user: Option<Cow<'a, str>>,
}

impl<'a> ChatRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault, as OpenAI would report it.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let mut raw = body::read(body)?;
        let model = model(raw.take(Member::model))?;
        let messages = messages::check(take(&mut raw.messages))?;

        // OpenAI's order from here on.
        only_type(raw.kind(Member::functions), "functions", Kind::Array)?;
        let mut list = tools::tools(raw.get(Member::tools))?;
        let choice =
            tools::tool_choice(raw.get(Member::tool_choice), raw.get(Member::tools), &mut list)?;
        let parallel =
            boolean(raw.get(Member::parallel_tool_calls), "parallel_tool_calls")?.unwrap_or(true);
        let tools = Tools { list, choice, parallel };
        if tools.list.is_empty() && tools.choice == Choice::Required {
            let why = "none of the tools is of type 'function', and others are never called.";
            return Err(ApiError::invalid_value("tool_choice", why));
        }
        let max_completion_tokens =
            limit(raw.get(Member::max_completion_tokens), "max_completion_tokens")?;
        let choices = integer(raw.get(Member::n), "n", 1..=128)?.unwrap_or(1);
        decimal(raw.get(Member::temperature), "temperature", 0.0..=2.0)?;
        decimal(raw.get(Member::top_p), "top_p", 0.0..=1.0)?;
        decimal(raw.get(Member::presence_penalty), "presence_penalty", -2.0..=2.0)?;
        decimal(raw.get(Member::frequency_penalty), "frequency_penalty", -2.0..=2.0)?;
        let logprobs = boolean(raw.get(Member::logprobs), "logprobs")?.unwrap_or(false);
        let top_logprobs = top_logprobs(raw.get(Member::top_logprobs), logprobs)?;
        let user = raw.string(Member::user, "user")?;
        let seed = integer(raw.get(Member::seed), "seed", i64::MIN..=i64::MAX)?;
        let response_format = tools::response_format(raw.get(Member::response_format))?;
        raw.string(Member::service_tier, "service_tier")?;
        let max_tokens = limit(raw.get(Member::max_tokens), "max_tokens")?;
        let effort = raw.string(Member::reasoning_effort, "reasoning_effort")?;
        tools::logit_bias(raw.get(Member::logit_bias))?;
        let stop = stop(raw.take(Member::stop), "stop")?;
        let stream = boolean(raw.get(Member::stream), "stream")?.unwrap_or(false);
        let stream_options = stream_options(raw.get(Member::stream_options), stream)?;
        boolean(raw.get(Member::store), "store")?;
        only_type(raw.kind(Member::metadata), "metadata", Kind::Object)?;
        only_type(raw.kind(Member::prediction), "prediction", Kind::Object)?;
        raw.string(Member::verbosity, "verbosity")?;
        only_type(raw.kind(Member::modalities), "modalities", Kind::Array)?;
        only_type(raw.kind(Member::audio), "audio", Kind::Object)?;
        only_type(raw.kind(Member::web_search_options), "web_search_options", Kind::Object)?;
        short_string(raw.take(Member::safety_identifier), "safety_identifier", 64)?;
        raw.string(Member::prompt_cache_key, "prompt_cache_key")?;

        let max_tokens = max_completion_tokens.or(max_tokens);
        let vllm = vllm::check(&mut raw, max_tokens, stream)?;
        let format = tools::one_format(response_format, vllm.structured_outputs)?;

        Ok(Self {
            model,
            messages,
            end: vllm.end,
            tools,
            format,
            logprobs: logprobs.then_some(top_logprobs),
            include_reasoning: vllm.include_reasoning,
            most_thinking: most_thinking(effort.as_deref()).or(vllm.most_thinking),
            tokens: vllm.tokens,
            choices: u32::try_from(choices).unwrap_or(1),
            stream,
            include_usage: stream_options.include_usage,
            continuous_usage: stream_options.continuous_usage,
            max_tokens,
            min_tokens: vllm.min_tokens,
            ignore_eos: vllm.ignore_eos,
            stop,
            include_stop: vllm.include_stop,
            seed,
            priority: vllm.priority,
            cache_salt: vllm.cache_salt,
            request_id: vllm.request_id,
            user,
        })
    }
}

/// `model`: required, with OpenAI's own wording if it is missing.
pub(super) fn model(json: Json<'_>) -> Result<Cow<'_, str>, ApiError> {
    match string(json, "model")? {
        Some(name) if !name.is_empty() => Ok(name),
        _ => Err(ApiError::missing_model()),
    }
}

/// A limit on output tokens: at least 1, and as good as none beyond 32 bits.
pub(super) fn limit(json: &Json<'_>, param: &'static str) -> Result<Option<Tokens>, ApiError> {
    let limit = integer(json, param, 1..=i64::MAX)?;
    Ok(limit.map(|limit| Tokens::new(u32::try_from(limit).unwrap_or(u32::MAX))))
}

/// An effort of none is no thinking; the others are a model's to weigh.
pub(super) fn most_thinking(effort: Option<&str>) -> Option<Tokens> {
    (effort == Some("none")).then_some(Tokens::ZERO)
}

fn top_logprobs(json: &Json<'_>, logprobs: bool) -> Result<u32, ApiError> {
    let asked = integer(json, "top_logprobs", 0..=20)?;
    if asked.is_some() && !logprobs {
        return Err(ApiError::only_with("top_logprobs", "'logprobs' is enabled"));
    }
    Ok(asked.map_or(0, |count| count as u32))
}

/// The most stop strings that a request may have.
pub const MAX_STOPS: usize = 4;

pub(super) fn stop<'a>(json: Json<'a>, param: &'static str) -> Result<Vec<Cow<'a, str>>, ApiError> {
    let array = match json {
        Json::Absent | Json::Null => return Ok(Vec::new()),
        Json::String(text) if text.is_empty() => return Err(ApiError::empty_string(param)),
        Json::String(text) => return Ok(vec![text]),
        Json::Array(array) => array,
        other => {
            let expected = "one of a string or an array of strings";
            return Err(wrong_type(param, expected, other.kind()));
        }
    };
    if array.len > MAX_STOPS {
        return Err(ApiError::array_too_long(param, MAX_STOPS, array.len));
    }
    let check = |(at, item)| match item {
        Json::String(text) if text.is_empty() => {
            Err(ApiError::empty_string(format!("{param}[{at}]")))
        }
        Json::String(text) => Ok(text),
        other => Err(wrong_type(format!("{param}[{at}]"), "a string", other.kind())),
    };
    array.items.into_iter().enumerate().map(check).collect()
}

#[derive(Default)]
pub(super) struct StreamOptions {
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
}

pub(super) fn stream_options(json: &Json<'_>, stream: bool) -> Result<StreamOptions, ApiError> {
    let options = match json {
        absent if absent.is_absent() => return Ok(StreamOptions::default()),
        Json::Object(options) => options,
        other => return Err(wrong_type("stream_options", "an object", other.kind())),
    };
    if !stream {
        return Err(ApiError::only_with("stream_options", "'stream' is enabled"));
    }
    let member = |name: &'static str, path: &'static str| {
        boolean(options.get(name), path).map(Option::unwrap_or_default)
    };
    member("include_obfuscation", "stream_options.include_obfuscation")?;
    Ok(StreamOptions {
        include_usage: member("include_usage", "stream_options.include_usage")?,
        continuous_usage: member(
            "continuous_usage_stats",
            "stream_options.continuous_usage_stats",
        )?,
    })
}
