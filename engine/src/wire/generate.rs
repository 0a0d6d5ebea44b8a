//! SGLang's own `POST /generate`: the request, checked completely, and its answer.
//!
//! It does not know a tokenizer: prompts that are token ids stay ids. A stream's events carry all
//! the text so far, as SGLang's do by default, so each costs as much as the text is long. The
//! invariant is that of [`chat`](super::chat): whoever holds a [`GenerateRequest`] need not check
//! it again.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;

use super::chat;
use super::chat::body;
use super::chat::fields::{boolean, decimal, integer, only_type, string, wrong_type};
use super::chat::vllm::request_id;
use super::error::ApiError;
use super::inputs::{Input, RawInputs};
use super::json::{Array, Json, Kind, push_optional_string, push_string};
use super::usage::Usage;
use crate::units::Tokens;

/// The limit on output tokens if none is sent.
pub const DEFAULT_MAX_NEW_TOKENS: Tokens = Tokens::new(128);

/// The most prompts of one request.
pub const MAX_PROMPTS: usize = 1024;

/// A valid request.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateRequest<'a> {
    /// A model's or an adapter's name; the first model's if not said. SGLang has `lora_path` for
    /// adapters, which is taken the same way.
    pub model: Option<Cow<'a, str>>,
    /// At least one; no text is empty.
    pub prompts: Vec<Input<'a>>,
    /// Whether they came as a list, so that the answer is one.
    pub is_batch: bool,
    /// `rid`.
    pub ids: Ids<'a>,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// `sampling_params`.
    pub sampling: Sampling<'a>,
    /// `return_logprob`: what is told of the tokens' scores.
    pub scores: Option<Scores>,
}

/// How the client names its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ids<'a> {
    /// Not at all.
    Ours,
    /// All by one id; those of a batch have their number behind it, as in SGLang.
    One(Cow<'a, str>),
    /// Those of each prompt of a batch by one of its own.
    Each(Vec<Cow<'a, str>>),
}

/// Which scores are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// `logprob_start_len`: the first token of the prompt that is scored; `None` for none of them.
    pub from: Option<u32>,
    /// `top_logprobs_num`: alternatives to each token, at most [`MAX_ALTERNATIVES`].
    pub alternatives: u32,
    /// `return_text_in_logprobs`: with the token's text.
    pub texts: bool,
}

/// The most alternatives to a token.
pub const MAX_ALTERNATIVES: u32 = 20;

/// What of `sampling_params` has an effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling<'a> {
    /// The limit on output tokens; at least 1.
    pub max_tokens: Tokens,
    /// No natural end before this many output tokens.
    pub min_tokens: Tokens,
    /// Choices for each prompt: 1 to 128.
    pub choices: u32,
    /// No natural end at all; output runs to the limit.
    pub ignore_eos: bool,
    /// Texts that end the answer; none of them empty.
    pub stop: Vec<Cow<'a, str>>,
    /// The text that ended the answer stays at its end.
    pub include_stop: bool,
    /// Chooses among the variants of an answer.
    pub seed: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Raw<'a> {
    model: Json<'a>,
    lora_path: Json<'a>,
    text: RawInputs<'a>,
    input_ids: RawInputs<'a>,
    input_embeds: Kind,
    image_data: Kind,
    rid: Json<'a>,
    sampling_params: Json<'a>,
    stream: Json<'a>,
    return_logprob: Json<'a>,
    logprob_start_len: Json<'a>,
    top_logprobs_num: Json<'a>,
    return_text_in_logprobs: Json<'a>,
}

impl<'a> GenerateRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        for (kind, name) in [(raw.input_embeds, "input_embeds"), (raw.image_data, "image_data")] {
            if !kind.is_absent() {
                let why = "the models read text only; send 'text' or 'input_ids'.";
                return Err(ApiError::unsupported_parameter(name, why));
            }
        }
        let is_batch = matches!(
            (&raw.text, &raw.input_ids),
            (RawInputs::Several { .. }, _) | (_, RawInputs::Several { .. })
        );
        let texts = raw.text.check_filled("text", MAX_PROMPTS)?;
        let ids = raw.input_ids.check("input_ids", MAX_PROMPTS)?;
        let prompts = match (texts, ids) {
            (Some(_), Some(_)) => {
                let why = "send either 'text' or 'input_ids', not both.";
                return Err(ApiError::contradiction("text", why));
            }
            (Some(prompts), None) | (None, Some(prompts)) => prompts,
            (None, None) => return Err(ApiError::missing("text")),
        };
        let ids = match raw.rid {
            Json::Array(ids) if is_batch => each_id(*ids, prompts.len())?,
            other => request_id(other, "rid")?.map_or(Ids::Ours, Ids::One),
        };
        let scores = Scores {
            from: integer(&raw.logprob_start_len, "logprob_start_len", -1..=i64::MAX)?
                .and_then(|from| u32::try_from(from.min(u32::MAX.into())).ok()),
            alternatives: integer(
                &raw.top_logprobs_num,
                "top_logprobs_num",
                0..=MAX_ALTERNATIVES.into(),
            )?
            .map_or(0, |count| count as u32),
            texts: boolean(&raw.return_text_in_logprobs, "return_text_in_logprobs")?
                .unwrap_or(false),
        };
        let is_scored = boolean(&raw.return_logprob, "return_logprob")?.unwrap_or(false);
        let model = string(raw.model, "model")?;
        let adapter = match raw.lora_path {
            Json::Array(_) => None,
            other => string(other, "lora_path")?,
        };
        let sampling = sampling(raw.sampling_params)?;
        if prompts.len() * sampling.choices as usize > super::completions::MAX_CHOICES {
            let why = "prompts times n are too many; send fewer prompts.";
            return Err(ApiError::contradiction("sampling_params", why));
        }
        Ok(Self {
            model: adapter.or(model),
            prompts,
            is_batch,
            ids,
            stream: boolean(&raw.stream, "stream")?.unwrap_or(false),
            sampling,
            scores: is_scored.then_some(scores),
        })
    }
}

fn each_id(ids: Array<'_>, prompts: usize) -> Result<Ids<'_>, ApiError> {
    if ids.len != prompts {
        let why = format!("{} ids for {prompts} prompts: it must have one for each.", ids.len);
        return Err(ApiError::contradiction("rid", &why));
    }
    let each = ids.items.into_iter().enumerate().map(|(at, id)| {
        let path = format!("rid[{at}]");
        request_id(id, path.clone())?.ok_or_else(|| ApiError::empty_string(path))
    });
    each.collect::<Result<_, _>>().map(Ids::Each)
}

fn sampling(json: Json<'_>) -> Result<Sampling<'_>, ApiError> {
    let params = match json {
        absent if absent.is_absent() => Box::default(),
        Json::Object(params) => params,
        // One for each prompt.
        Json::Array(_) => {
            let why = "one object for all prompts is what this server takes; send prompts with \
                       other parameters in a request of their own.";
            return Err(ApiError::invalid_value("sampling_params", why));
        }
        other => return Err(wrong_type("sampling_params", "an object", other.kind())),
    };
    let path = |name: &str| format!("sampling_params.{name}");
    let count = |name: &'static str, least: i64| {
        integer(params.get(name), path(name), least..=i64::MAX)
            .map(|count| count.map(|count| Tokens::new(u32::try_from(count).unwrap_or(u32::MAX))))
    };
    let max_tokens = count("max_new_tokens", 1)?.unwrap_or(DEFAULT_MAX_NEW_TOKENS);
    let min_tokens = count("min_new_tokens", 0)?.unwrap_or(Tokens::ZERO);
    if min_tokens > max_tokens {
        let why = format!("it must be at most max_new_tokens = {max_tokens}.");
        return Err(ApiError::invalid_value(path("min_new_tokens"), &why));
    }
    decimal(params.get("temperature"), path("temperature"), 0.0..=f64::MAX)?;
    decimal(params.get("top_p"), path("top_p"), 0.0..=1.0)?;
    integer(params.get("top_k"), path("top_k"), -1..=i64::MAX)?;
    decimal(params.get("min_p"), path("min_p"), 0.0..=1.0)?;
    only_type(params.get("stop_token_ids").kind(), "sampling_params.stop_token_ids", Kind::Array)?;
    let flag =
        |name: &'static str| boolean(params.get(name), path(name)).map(Option::unwrap_or_default);
    let choices = integer(params.get("n"), path("n"), 1..=128)?.unwrap_or(1);
    let seed = integer(params.get("sampling_seed"), path("sampling_seed"), i64::MIN..=i64::MAX)?;
    Ok(Sampling {
        max_tokens,
        min_tokens,
        choices: choices as u32,
        ignore_eos: flag("ignore_eos")?,
        include_stop: flag("no_stop_trim")?,
        stop: chat::stop(params.get("stop").clone(), "sampling_params.stop")?,
        seed,
    })
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<'a> {
    /// A limit was reached.
    Length,
    /// A stop string was said.
    Text(&'a str),
    /// By itself: with the token that ends a turn.
    Token(u32),
}

/// Appends an answer, or what there is of it. `text` appends all of it so far as JSON string
/// content, without quotes; `index` is its place in a batch that is streamed; `scores` appends
/// members of `meta_info`, each with a comma before.
pub fn write(
    id: &str,
    index: Option<u32>,
    text: impl FnOnce(&mut Vec<u8>),
    end: Option<End<'_>>,
    usage: &Usage,
    scores: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    const INFALLIBLE: &str = "writing to memory cannot fail";
    out.extend_from_slice(b"{\"text\":\"");
    text(out);
    out.extend_from_slice(b"\",\"meta_info\":{\"id\":");
    push_string(out, id);
    out.extend_from_slice(b",\"finish_reason\":");
    match end {
        None => out.extend_from_slice(b"null"),
        Some(End::Length) => {
            write!(out, "{{\"type\":\"length\",\"length\":{}}}", usage.completion)
                .expect(INFALLIBLE);
        }
        Some(End::Text(stop)) => {
            out.extend_from_slice(b"{\"type\":\"stop\",\"matched\":");
            push_string(out, stop);
            out.push(b'}');
        }
        Some(End::Token(id)) => {
            write!(out, "{{\"type\":\"stop\",\"matched\":{id}}}").expect(INFALLIBLE);
        }
    }
    write!(
        out,
        ",\"prompt_tokens\":{},\"completion_tokens\":{},\"cached_tokens\":{},\
         \"weight_version\":\"default\"",
        usage.prompt, usage.completion, usage.cached
    )
    .expect(INFALLIBLE);
    scores(out);
    out.push(b'}');
    if let Some(index) = index {
        write!(out, ",\"index\":{index}").expect(INFALLIBLE);
    }
    out.push(b'}');
}

/// Appends one score as SGLang has it: the number, the id, and the text or null.
pub fn push_score(logprob: Option<f64>, id: u32, text: Option<&str>, out: &mut Vec<u8>) {
    const INFALLIBLE: &str = "writing to memory cannot fail";
    match logprob {
        Some(logprob) => write!(out, "[{logprob:.6},{id},").expect(INFALLIBLE),
        None => write!(out, "[null,{id},").expect(INFALLIBLE),
    }
    push_optional_string(out, text);
    out.push(b']');
}
