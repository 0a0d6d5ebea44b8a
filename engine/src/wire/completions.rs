//! `POST /v1/completions`: the request, checked completely, and its answer as frames or as a body.
//!
//! It does not know a tokenizer or a model: prompts that are token ids stay ids. The invariants are
//! those of [`chat`](super::chat), with which it shares the fields that are the same: whoever holds
//! a [`CompletionRequest`] need not check a type or a range again; a frame is appended without
//! allocating.

mod frames;
mod logprobs;

use std::borrow::Cow;

use serde::Deserialize;

pub use self::frames::{TextBody, TextFrames};
pub use self::logprobs::{ScoredPrompt, ScoredToken, write_scored};
use super::chat::body::{self, Member, Raw};
use super::chat::fields::{boolean, decimal, integer, only_type, string, wrong_type};
use super::chat::{self, Format, TokenFields, tools, vllm};
use super::error::ApiError;
use super::inputs::{Input, RawInputs};
use super::json::{Json, Kind};
use crate::units::Tokens;

/// The most prompts of one request (vLLM's limit).
pub const MAX_PROMPTS: usize = 1024;

/// The most choices of one request: prompts times `n`. A bound on the jobs that one request makes.
pub const MAX_CHOICES: usize = 2048;

/// The limit on output tokens if none is sent, on OpenAI and vLLM.
pub const DEFAULT_MAX_TOKENS: Tokens = Tokens::new(16);

/// A valid request for completions.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// At least one; no text is empty.
    pub prompts: Vec<Input<'a>>,
    /// The text behind the gap to be filled: counted with each prompt, and otherwise without
    /// effect.
    pub suffix: Option<Cow<'a, str>>,
    /// Choices for each prompt: 1 to 128.
    pub choices: u32,
    /// vLLM: the form of answer that is asked for.
    pub format: Format,
    /// vLLM: what is told of tokens, and what is kept of each prompt's.
    pub tokens: TokenFields,
    /// The prompt's text comes before the answer's.
    pub echo: bool,
    /// Scores for each token, with as many alternatives.
    pub logprobs: Option<u8>,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// `stream_options.include_usage`: a usage chunk at the end.
    pub include_usage: bool,
    /// vLLM's `stream_options.continuous_usage_stats`: usage on every chunk.
    pub continuous_usage: bool,
    /// The limit on output tokens. Zero only with `echo`: the prompt is only scored.
    pub max_tokens: Tokens,
    /// vLLM: no natural end before this many output tokens.
    pub min_tokens: Tokens,
    /// vLLM: no natural end at all; output runs to the limit.
    pub ignore_eos: bool,
    /// Texts that end the answer: at most [`chat::MAX_STOPS`], none of them empty.
    pub stop: Vec<Cow<'a, str>>,
    /// vLLM: the text that ended the answer stays at its end.
    pub include_stop: bool,
    /// Chooses among the variants of an answer.
    pub seed: Option<i64>,
    /// vLLM: lower is more urgent.
    pub priority: i32,
    /// vLLM: keeps this client's prefixes apart from others' in the cache.
    pub cache_salt: Option<Cow<'a, str>>,
    /// vLLM: becomes part of the answer's id.
    pub request_id: Option<Cow<'a, str>>,
}

/// What chat has not, or has otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Own<'a> {
    prompt: RawInputs<'a>,
    prompt_embeds: Kind,
    suffix: Json<'a>,
    best_of: Json<'a>,
    echo: Json<'a>,
}

impl<'a> CompletionRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault, as OpenAI would report it.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        // Twice over the body, each time past what the other reads: skipping is cheap.
        let mut raw: Raw<'a> = body::read_as(body)?;
        let own: Own<'a> = body::read_as(body)?;
        let model = chat::model(raw.take(Member::model))?;
        if !own.prompt_embeds.is_absent() {
            return Err(ApiError::unsupported_parameter(
                "prompt_embeds",
                "no model reads embeddings; send 'prompt' as text or token ids.",
            ));
        }
        let prompts = prompts(own.prompt)?;
        let best_of = integer(&own.best_of, "best_of", 0..=20)?;
        let echo = boolean(&own.echo, "echo")?.unwrap_or(false);
        decimal(raw.get(Member::frequency_penalty), "frequency_penalty", -2.0..=2.0)?;
        tools::logit_bias(raw.get(Member::logit_bias))?;
        let logprobs = logprobs(raw.get(Member::logprobs))?;
        let max_tokens = max_tokens(raw.get(Member::max_tokens), echo)?;
        let choices = integer(raw.get(Member::n), "n", 1..=128)?.unwrap_or(1) as u32;
        decimal(raw.get(Member::presence_penalty), "presence_penalty", -2.0..=2.0)?;
        let seed = integer(raw.get(Member::seed), "seed", i64::MIN..=i64::MAX)?;
        let stop = chat::stop(raw.take(Member::stop), "stop")?;
        let stream = boolean(raw.get(Member::stream), "stream")?.unwrap_or(false);
        let stream_options = chat::stream_options(raw.get(Member::stream_options), stream)?;
        let suffix = string(own.suffix, "suffix")?;
        decimal(raw.get(Member::temperature), "temperature", 0.0..=2.0)?;
        decimal(raw.get(Member::top_p), "top_p", 0.0..=1.0)?;
        raw.string(Member::user, "user")?;
        only_type(raw.kind(Member::metadata), "metadata", Kind::Object)?;
        let response_format = tools::response_format(raw.get(Member::response_format))?;
        check_best_of(best_of, choices, stream)?;
        if prompts.len() * choices as usize > MAX_CHOICES {
            let why = format!(
                "{} prompts with {choices} choices each are more than the {MAX_CHOICES} choices \
                 that one request may have. Send fewer prompts.",
                prompts.len()
            );
            return Err(ApiError::contradiction("n", &why));
        }

        let limit = (max_tokens > Tokens::ZERO).then_some(max_tokens);
        let vllm = vllm::check(&mut raw, limit, stream)?;
        let format = tools::one_format(response_format, vllm.structured_outputs)?;
        if suffix.is_some() && vllm.tokens.truncation.is_some() {
            let why = "a prompt with a suffix is not cut; leave one of them out.";
            return Err(ApiError::contradiction("truncate_prompt_tokens", why));
        }

        Ok(Self {
            model,
            prompts,
            suffix,
            choices,
            format,
            tokens: vllm.tokens,
            echo,
            logprobs,
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
        })
    }
}

/// OpenAI would take a missing prompt for the beginning of a document; vLLM refuses it and an empty
/// one, which here helps more.
fn prompts(raw: RawInputs<'_>) -> Result<Vec<Input<'_>>, ApiError> {
    raw.check_filled("prompt", MAX_PROMPTS)?.ok_or_else(|| ApiError::missing("prompt"))
}

/// 0 to 5 alternatives on OpenAI, 0 to 20 on vLLM.
fn logprobs(json: &Json<'_>) -> Result<Option<u8>, ApiError> {
    if let Json::Bool(_) = json {
        // The chat API's form.
        return Err(wrong_type("logprobs", "an integer", Kind::Bool));
    }
    Ok(integer(json, "logprobs", 0..=20)?.map(|count| count as u8))
}

fn max_tokens(json: &Json<'_>, echo: bool) -> Result<Tokens, ApiError> {
    let least = i64::from(!echo);
    let limit = integer(json, "max_tokens", least..=i64::MAX)?;
    Ok(limit
        .map_or(DEFAULT_MAX_TOKENS, |limit| Tokens::new(u32::try_from(limit).unwrap_or(u32::MAX))))
}

/// Of `best_of` candidates `n` are returned, so there are at least as many.
fn check_best_of(best_of: Option<i64>, choices: u32, stream: bool) -> Result<(), ApiError> {
    let Some(best_of) = best_of.filter(|&best_of| best_of != i64::from(choices)) else {
        return Ok(());
    };
    if best_of < i64::from(choices) {
        let why = format!("it must be at least n = {choices}, but is {best_of}.");
        return Err(ApiError::contradiction("best_of", &why));
    }
    if stream {
        let why = "which candidate is best is only known at the end; leave best_of out or stream \
                   no answer.";
        return Err(ApiError::contradiction("best_of", why));
    }
    Ok(())
}
