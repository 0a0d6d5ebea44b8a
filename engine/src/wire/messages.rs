//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`: the request, checked
//! completely, and its answer as events or as a body.
//!
//! A conversation becomes the chat that says the same, so that the same rules answer it and its
//! prefixes are shared with chat completions: `system` is a first message, a `tool_result` a
//! message of a tool. The invariant is that of [`chat`](super::chat): whoever holds a
//! [`MessagesRequest`] need not check it again.
//!
//! As in vLLM, no header is required, and null counts as not sent (Anthropic refuses it). Refusals
//! are those of the other routes in Anthropic's form, see [`error`].

mod content;
pub mod error;
pub mod frames;

use std::borrow::Cow;

use serde::Deserialize;

use self::content::{RawMessage, RawSystem};
use super::chat::body;
use super::chat::fields::{boolean, decimal, integer, only_type, string, wrong_type};
use super::chat::tools::{optional_object, required_object, required_string};
use super::chat::{Format, Message};
use super::error::ApiError;
use super::json::{Json, Kind, Shaped};
use super::tools::{Choice, Tools};
use crate::units::Tokens;

/// The most stop sequences of one request: a bound on our work that no client reaches.
pub const MAX_STOP_SEQUENCES: usize = 64;

/// A valid request for a message, or for the count of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// The conversation as a chat; at least one message.
    pub messages: Vec<Message<'a>>,
    /// The limit on output tokens: at least 1; none only if tokens are counted.
    pub max_tokens: Option<Tokens>,
    /// Texts that end the answer; none of them empty.
    pub stop: Vec<Cow<'a, str>>,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// The client's tools and whether it wants them called.
    pub tools: Tools<'a>,
    /// How many tokens may be thought: the budget, or none if `thinking` is off.
    pub most_thinking: Option<Tokens>,
    /// The form of the text: `output_config.format`.
    pub format: Format,
    /// vLLM's: chooses among the variants of an answer.
    pub seed: Option<i64>,
    /// vLLM's: lower is more urgent.
    pub priority: i32,
    /// vLLM's: keeps this client's prefixes apart from others' in the cache.
    pub cache_salt: Option<Cow<'a, str>>,
    /// vLLM's: no natural end at all; output runs to the limit.
    pub ignore_eos: bool,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `POST /v1/messages`.
    Answer,
    /// `POST /v1/messages/count_tokens`, which needs no limit.
    Count,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Raw<'a> {
    model: Json<'a>,
    messages: Shaped<'a, RawMessage<'a>>,
    max_tokens: Json<'a>,
    system: RawSystem<'a>,
    temperature: Json<'a>,
    top_p: Json<'a>,
    top_k: Json<'a>,
    stop_sequences: Json<'a>,
    stream: Json<'a>,
    tools: Json<'a>,
    tool_choice: Json<'a>,
    thinking: Json<'a>,
    output_config: Json<'a>,
    metadata: Json<'a>,
    service_tier: Json<'a>,
    // vLLM's.
    seed: Json<'a>,
    priority: Json<'a>,
    cache_salt: Json<'a>,
    ignore_eos: Json<'a>,
}

impl<'a> MessagesRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault; to be sent in Anthropic's form.
    pub fn parse(body: &'a [u8], purpose: Purpose) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        let model = match string(raw.model, "model")? {
            Some(model) if !model.is_empty() => model,
            _ => return Err(ApiError::missing("model")),
        };
        let limit = integer(&raw.max_tokens, "max_tokens", 1..=i64::MAX)?
            .map(|limit| Tokens::new(u32::try_from(limit).unwrap_or(u32::MAX)));
        if limit.is_none() && purpose == Purpose::Answer {
            return Err(ApiError::missing("max_tokens"));
        }
        let messages = content::chat(raw.system, raw.messages)?;
        decimal(&raw.temperature, "temperature", 0.0..=1.0)?;
        decimal(&raw.top_p, "top_p", 0.0..=1.0)?;
        integer(&raw.top_k, "top_k", -1..=i64::MAX)?;
        let tools = tools(&raw.tools, &raw.tool_choice)?;
        let (format, effort) = output_config(&raw.output_config)?;
        only_type(effort, "output_config.effort", Kind::String)?;
        if let Json::Object(metadata) = &raw.metadata {
            string(metadata.get("user_id").clone(), "metadata.user_id")?;
        } else {
            only_type(raw.metadata.kind(), "metadata", Kind::Object)?;
        }
        string(raw.service_tier, "service_tier")?;
        let priority = integer(&raw.priority, "priority", i32::MIN.into()..=i32::MAX.into())?;
        Ok(Self {
            model,
            messages,
            max_tokens: limit,
            stop: stop_sequences(raw.stop_sequences)?,
            stream: boolean(&raw.stream, "stream")?.unwrap_or(false),
            tools,
            most_thinking: thinking(&raw.thinking, limit)?,
            format,
            seed: integer(&raw.seed, "seed", i64::MIN..=i64::MAX)?,
            priority: priority.map_or(0, |value| value as i32),
            cache_salt: super::chat::vllm::cache_salt(raw.cache_salt)?,
            ignore_eos: boolean(&raw.ignore_eos, "ignore_eos")?.unwrap_or(false),
        })
    }
}

/// Whether a text is a whole JSON object: what the input of a tool must be.
pub fn is_object(text: &str) -> bool {
    super::json_guard::check(text.as_bytes()).is_ok()
        && matches!(sonic_rs::from_str::<Kind>(text), Ok(Kind::Object))
}

fn stop_sequences(json: Json<'_>) -> Result<Vec<Cow<'_, str>>, ApiError> {
    let array = match json {
        Json::Absent | Json::Null => return Ok(Vec::new()),
        Json::Array(array) => array,
        other => return Err(wrong_type("stop_sequences", "an array of strings", other.kind())),
    };
    if array.len > MAX_STOP_SEQUENCES {
        return Err(ApiError::array_too_long("stop_sequences", MAX_STOP_SEQUENCES, array.len));
    }
    let check = |(at, item)| match item {
        Json::String(text) if text.is_empty() => {
            Err(ApiError::empty_string(format!("stop_sequences[{at}]")))
        }
        Json::String(text) => Ok(text),
        other => Err(wrong_type(format!("stop_sequences[{at}]"), "a string", other.kind())),
    };
    array.items.into_iter().enumerate().map(check).collect()
}

fn tools<'a>(tools: &Json<'a>, choice: &Json<'a>) -> Result<Tools<'a>, ApiError> {
    let list = super::tools::list(tools, |path, tool| {
        let Json::Object(tool) = tool else {
            return Err(wrong_type(path.to_owned(), "an object", tool.kind()));
        };
        let name = required_string(tool, path, "name")?;
        super::chat::tools::name(path, name)?;
        string(tool.get("description").clone(), format!("{path}.description"))?;
        let kind = string(tool.get("type").clone(), format!("{path}.type"))?;
        let is_ours = kind.is_none_or(|kind| kind == "custom");
        // Anthropic's own tools (`web_search_20250305`, ...) have no schema, and are never called.
        let schema = match optional_object(tool, path, "input_schema")? {
            Some(schema) => Json::Object(Box::new(schema.clone())),
            None if is_ours => return Err(ApiError::missing(format!("{path}.input_schema"))),
            None => return Ok(None),
        };
        Ok(Some((name.to_owned().into(), schema)))
    })?;
    let choice = match choice {
        absent if absent.is_absent() => None,
        Json::Object(choice) => Some(choice),
        other => return Err(wrong_type("tool_choice", "an object", other.kind())),
    };
    let Some(choice) = choice else { return Ok(Tools { list, ..Tools::default() }) };
    let disable = choice.get("disable_parallel_tool_use");
    let parallel = boolean(disable, "tool_choice.disable_parallel_tool_use")? != Some(true);
    let choice = match required_string(choice, "tool_choice", "type")? {
        "auto" => Choice::Auto,
        "any" => Choice::Required,
        "none" => Choice::None,
        "tool" => {
            let name = required_string(choice, "tool_choice", "name")?;
            Choice::Named(name.to_owned().into())
        }
        other => {
            let allowed = ["auto", "any", "tool", "none"];
            return Err(ApiError::not_one_of("tool_choice.type", other, &allowed));
        }
    };
    let tools = Tools { list, choice, parallel };
    tools.check_choice()?;
    Ok(tools)
}

/// The least that a model may think, on Anthropic's API.
const LEAST_BUDGET: i64 = 1024;

fn thinking(json: &Json<'_>, max_tokens: Option<Tokens>) -> Result<Option<Tokens>, ApiError> {
    let thinking = match json {
        absent if absent.is_absent() => return Ok(None),
        Json::Object(thinking) => thinking,
        other => return Err(wrong_type("thinking", "an object", other.kind())),
    };
    match required_string(thinking, "thinking", "type")? {
        "enabled" => {
            let field = "thinking.budget_tokens";
            let budget = integer(thinking.get("budget_tokens"), field, LEAST_BUDGET..=i64::MAX)?;
            let Some(budget) = budget else { return Err(ApiError::missing(field)) };
            if max_tokens.is_some_and(|limit| budget >= i64::from(limit.get())) {
                return Err(ApiError::invalid_value(
                    field,
                    "`max_tokens` must be greater than it: what is thought counts, too.",
                ));
            }
            Ok(Some(Tokens::new(u32::try_from(budget).unwrap_or(u32::MAX))))
        }
        "adaptive" => Ok(None),
        "disabled" => Ok(Some(Tokens::ZERO)),
        other => {
            let allowed = ["enabled", "disabled", "adaptive"];
            Err(ApiError::not_one_of("thinking.type", other, &allowed))
        }
    }
}

/// `output_config`: its `format`, and the type of its `effort`.
fn output_config(json: &Json<'_>) -> Result<(Format, Kind), ApiError> {
    let config = match json {
        absent if absent.is_absent() => return Ok((Format::Text, Kind::Absent)),
        Json::Object(config) => config,
        other => return Err(wrong_type("output_config", "an object", other.kind())),
    };
    let effort = config.get("effort").kind();
    let path = "output_config.format";
    let Some(format) = optional_object(config, "output_config", "format")? else {
        return Ok((Format::Text, effort));
    };
    match required_string(format, path, "type")? {
        "json_schema" => {}
        other => return Err(ApiError::not_one_of(format!("{path}.type"), other, &["json_schema"])),
    }
    required_object(format, path, "schema")?;
    let schema = format.get("schema").to_text();
    Ok((Format::Schema { param: "output_config.format.schema", schema }, effort))
}
