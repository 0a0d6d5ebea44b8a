//! `POST /v1/responses`: the request, checked completely, and its answer as events or as a body.
//!
//! Input items become the chat that says the same, so that the same rules answer it and its
//! prefixes are shared with chat completions. The invariant is that of [`chat`](super::chat):
//! whoever holds a [`ResponsesRequest`] need not check it again; what refers to earlier responses
//! is for the caller to look up.

pub mod frames;
mod items;
mod listed;

use std::borrow::Cow;

use serde::Deserialize;

use self::items::RawItem;
pub use self::items::{InputItem, Reference};
pub use self::listed::{ListQuery, StoredItem, stored_items};
use super::chat::body;
use super::chat::fields::{boolean, decimal, integer, only_type, short_string, string, wrong_type};
use super::chat::tools::{name, optional_object, required_object, required_string};
use super::chat::{self, Format};
use super::error::ApiError;
use super::json::{Json, Kind, Object, Shaped, push_string};
use super::tools::{Choice, Tools, allow_only};
use crate::units::Tokens;

/// A valid request for a response.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// The system's words, before all input.
    pub instructions: Option<Cow<'a, str>>,
    /// What was said, in order; at least one item unless there is a previous response.
    pub input: Vec<InputItem<'a>>,
    /// The response that this one continues.
    pub previous: Option<Cow<'a, str>>,
    /// The limit on output tokens, at least 1.
    pub max_tokens: Option<Tokens>,
    /// Whether the answer is a stream.
    pub stream: bool,
    /// Whether the response can be had again; true if not said.
    pub store: bool,
    /// The client's tools and whether it wants them called.
    pub tools: Tools<'a>,
    /// The form of the text.
    pub format: Format,
    /// The client wants what was thought as a summary.
    pub summarizes: bool,
    /// How many tokens may be thought: none with an effort of `none`.
    pub most_thinking: Option<Tokens>,
    /// Alternatives for each token.
    pub top_logprobs: u8,
    /// `include` asks for the scores of the text.
    pub logprobs: bool,
    /// vLLM's: whether what is thought is an item of the output.
    pub include_reasoning: bool,
    /// What the response repeats of the request: members of an object, each with a comma before.
    pub echo: Vec<u8>,
    /// vLLM's: chooses among the variants of an answer.
    pub seed: Option<i64>,
    /// vLLM's: texts that end the answer.
    pub stop: Vec<Cow<'a, str>>,
    /// vLLM's: no natural end at all; output runs to the limit.
    pub ignore_eos: bool,
    /// vLLM's: no natural end before this many output tokens.
    pub min_tokens: Tokens,
    /// vLLM's: lower is more urgent.
    pub priority: i32,
    /// vLLM's: keeps this client's prefixes apart from others' in the cache.
    pub cache_salt: Option<Cow<'a, str>>,
    /// vLLM's: becomes part of the response's id.
    pub request_id: Option<Cow<'a, str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Raw<'a> {
    model: Json<'a>,
    input: Shaped<'a, RawItem<'a>>,
    instructions: Json<'a>,
    previous_response_id: Json<'a>,
    conversation: Kind,
    prompt: Kind,
    background: Json<'a>,
    include: Json<'a>,
    max_output_tokens: Json<'a>,
    max_tool_calls: Json<'a>,
    metadata: Json<'a>,
    parallel_tool_calls: Json<'a>,
    prompt_cache_key: Json<'a>,
    reasoning: Json<'a>,
    safety_identifier: Json<'a>,
    service_tier: Json<'a>,
    store: Json<'a>,
    stream: Json<'a>,
    stream_options: Json<'a>,
    temperature: Json<'a>,
    text: Json<'a>,
    tool_choice: Json<'a>,
    tools: Json<'a>,
    top_logprobs: Json<'a>,
    top_p: Json<'a>,
    truncation: Json<'a>,
    user: Json<'a>,
    // vLLM's.
    seed: Json<'a>,
    stop: Json<'a>,
    ignore_eos: Json<'a>,
    min_tokens: Json<'a>,
    top_k: Json<'a>,
    min_p: Json<'a>,
    repetition_penalty: Json<'a>,
    priority: Json<'a>,
    cache_salt: Json<'a>,
    request_id: Json<'a>,
    include_reasoning: Json<'a>,
    presence_penalty: Json<'a>,
    frequency_penalty: Json<'a>,
    logit_bias: Kind,
    structured_outputs: Kind,
    vllm_xargs: Kind,
}

impl<'a> ResponsesRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault, as OpenAI would report it.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        let model = match string(raw.model.clone(), "model")? {
            Some(model) if !model.is_empty() => model,
            _ => return Err(ApiError::missing("model")),
        };
        unsupported(&raw)?;
        let instructions = string(raw.instructions.clone(), "instructions")?;
        let previous = string(raw.previous_response_id.clone(), "previous_response_id")?;
        let stream = boolean(&raw.stream, "stream")?.unwrap_or(false);
        stream_options(&raw.stream_options, stream)?;
        let limit = integer(&raw.max_output_tokens, "max_output_tokens", 1..=i64::MAX)?
            .map(|limit| Tokens::new(u32::try_from(limit).unwrap_or(u32::MAX)));
        let store = boolean(&raw.store, "store")?.unwrap_or(true);
        let tools = tools(&raw.tools, &raw.tool_choice, &raw.parallel_tool_calls)?;
        let format = text(&raw.text)?;
        let (summarizes, most_thinking) = reasoning(&raw.reasoning)?;
        let logprobs = include(&raw.include)?;
        let top_logprobs = integer(&raw.top_logprobs, "top_logprobs", 0..=20)?.unwrap_or(0);
        only_checked(&raw)?;
        let echo = echo(&raw);
        let input = items::check(raw.input)?;
        if input.is_empty() && previous.is_none() {
            return Err(ApiError::missing("input"));
        }
        let min_tokens = chat::vllm::min_tokens(&raw.min_tokens, limit, "max_output_tokens")?;
        let priority = integer(&raw.priority, "priority", i32::MIN.into()..=i32::MAX.into())?;
        Ok(Self {
            model,
            instructions,
            input,
            previous,
            max_tokens: limit,
            stream,
            store,
            tools,
            format,
            summarizes,
            most_thinking,
            top_logprobs: top_logprobs as u8,
            logprobs,
            include_reasoning: boolean(&raw.include_reasoning, "include_reasoning")?
                .unwrap_or(true),
            echo,
            seed: integer(&raw.seed, "seed", i64::MIN..=i64::MAX)?,
            stop: chat::stop(raw.stop, "stop")?,
            ignore_eos: boolean(&raw.ignore_eos, "ignore_eos")?.unwrap_or(false),
            min_tokens,
            priority: priority.map_or(0, |value| value as i32),
            cache_salt: chat::vllm::cache_salt(raw.cache_salt)?,
            request_id: chat::vllm::request_id(raw.request_id, "request_id")?,
        })
    }
}

/// What needs more than this server has.
fn unsupported(raw: &Raw<'_>) -> Result<(), ApiError> {
    if boolean(&raw.background, "background")? == Some(true) {
        let why = "responses are made while the client waits; leave background out.";
        return Err(ApiError::invalid_value("background", why));
    }
    if !raw.conversation.is_absent() {
        let why = "there is no store of conversations; continue with previous_response_id, or send \
                   all items as 'input'.";
        return Err(ApiError::invalid_value("conversation", why));
    }
    if !raw.prompt.is_absent() {
        let why = "there is no store of prompts; send its text as 'instructions'.";
        return Err(ApiError::invalid_value("prompt", why));
    }
    Ok(())
}

/// Fields without effect.
fn only_checked(raw: &Raw<'_>) -> Result<(), ApiError> {
    decimal(&raw.temperature, "temperature", 0.0..=2.0)?;
    decimal(&raw.top_p, "top_p", 0.0..=1.0)?;
    integer(&raw.max_tool_calls, "max_tool_calls", 1..=i64::MAX)?;
    only_type(raw.metadata.kind(), "metadata", Kind::Object)?;
    string(raw.prompt_cache_key.clone(), "prompt_cache_key")?;
    short_string(raw.safety_identifier.clone(), "safety_identifier", 64)?;
    string(raw.service_tier.clone(), "service_tier")?;
    string(raw.user.clone(), "user")?;
    if let Some(word) = string(raw.truncation.clone(), "truncation")? {
        let allowed = ["disabled", "auto"];
        if !allowed.contains(&word.as_ref()) {
            return Err(ApiError::not_one_of("truncation", &word, &allowed));
        }
    }
    integer(&raw.top_k, "top_k", -1..=i64::MAX)?;
    decimal(&raw.min_p, "min_p", 0.0..=1.0)?;
    chat::vllm::repetition_penalty(&raw.repetition_penalty)?;
    decimal(&raw.presence_penalty, "presence_penalty", -2.0..=2.0)?;
    decimal(&raw.frequency_penalty, "frequency_penalty", -2.0..=2.0)?;
    only_type(raw.logit_bias, "logit_bias", Kind::Object)?;
    only_type(raw.structured_outputs, "structured_outputs", Kind::Object)?;
    only_type(raw.vllm_xargs, "vllm_xargs", Kind::Object)?;
    Ok(())
}

fn stream_options(json: &Json<'_>, stream: bool) -> Result<(), ApiError> {
    let options = match json {
        absent if absent.is_absent() => return Ok(()),
        Json::Object(options) => options,
        other => return Err(wrong_type("stream_options", "an object", other.kind())),
    };
    if !stream {
        return Err(ApiError::only_with("stream_options", "'stream' is enabled"));
    }
    // The chat API's: here the last event always has the usage.
    if !options.get("include_usage").is_absent() {
        return Err(ApiError::unknown_parameter("stream_options.include_usage".to_owned()));
    }
    boolean(options.get("include_obfuscation"), "stream_options.include_obfuscation")?;
    Ok(())
}

fn tools<'a>(
    tools: &Json<'a>,
    choice: &Json<'a>,
    parallel: &Json<'a>,
) -> Result<Tools<'a>, ApiError> {
    let mut list = super::tools::list(tools, |path, tool| {
        let Json::Object(tool) = tool else {
            return Err(wrong_type(path.to_owned(), "an object", tool.kind()));
        };
        let kind = required_string(tool, path, "type")?;
        if kind != "function" && kind != "custom" {
            // OpenAI's own tools are known and never called.
            return Ok(None);
        }
        let own = required_string(tool, path, "name")?;
        name(path, own)?;
        string(tool.get("description").clone(), format!("{path}.description"))?;
        boolean(tool.get("strict"), format!("{path}.strict"))?;
        let parameters = optional_object(tool, path, "parameters")?
            .map_or(Json::Absent, |parameters| Json::Object(Box::new(parameters.clone())));
        Ok((kind == "function").then(|| (own.to_owned().into(), parameters)))
    })?;
    let choice = match choice {
        absent if absent.is_absent() => Choice::Auto,
        Json::String(word) => match word.as_ref() {
            "none" => Choice::None,
            "auto" => Choice::Auto,
            "required" => Choice::Required,
            other => {
                let allowed = ["none", "auto", "required"];
                return Err(ApiError::not_one_of("tool_choice", other, &allowed));
            }
        },
        Json::Object(choice) => match required_string(choice, "tool_choice", "type")? {
            "function" | "custom" => {
                let name = required_string(choice, "tool_choice", "name")?;
                Choice::Named(name.to_owned().into())
            }
            "allowed_tools" => allow_only(choice, "tool_choice", &mut list, |tool, path| {
                match required_string(tool, path, "type")? {
                    "function" | "custom" => required_string(tool, path, "name"),
                    // One of OpenAI's own.
                    other => Ok(other),
                }
            })?,
            // One of OpenAI's own.
            _ => Choice::Auto,
        },
        other => {
            let expected = "one of a string or an object";
            return Err(wrong_type("tool_choice", expected, other.kind()));
        }
    };
    let parallel = boolean(parallel, "parallel_tool_calls")?.unwrap_or(true);
    let tools = Tools { list, choice, parallel };
    tools.check_choice()?;
    Ok(tools)
}

fn text(json: &Json<'_>) -> Result<Format, ApiError> {
    let text = match json {
        absent if absent.is_absent() => return Ok(Format::Text),
        Json::Object(text) => text,
        other => return Err(wrong_type("text", "an object", other.kind())),
    };
    string(text.get("verbosity").clone(), "text.verbosity")?;
    let path = "text.format";
    let Some(format) = optional_object(text, "text", "format")? else { return Ok(Format::Text) };
    match required_string(format, path, "type")? {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::Object),
        "json_schema" => {
            name(path, required_string(format, path, "name")?)?;
            boolean(format.get("strict"), "text.format.strict")?;
            required_object(format, path, "schema")?;
            let schema = format.get("schema").to_text();
            Ok(Format::Schema { param: "text.format.schema", schema })
        }
        other => {
            let allowed = ["text", "json_object", "json_schema"];
            Err(ApiError::not_one_of("text.format.type", other, &allowed))
        }
    }
}

/// Whether a summary of what was thought is wanted, and how much may be.
fn reasoning(json: &Json<'_>) -> Result<(bool, Option<Tokens>), ApiError> {
    let reasoning = match json {
        absent if absent.is_absent() => return Ok((false, None)),
        Json::Object(reasoning) => reasoning,
        other => return Err(wrong_type("reasoning", "an object", other.kind())),
    };
    let effort = string(reasoning.get("effort").clone(), "reasoning.effort")?;
    let summary = string(reasoning.get("summary").clone(), "reasoning.summary")?;
    Ok((summary.is_some(), chat::most_thinking(effort.as_deref())))
}

/// Whether the scores of the text are wanted.
fn include(json: &Json<'_>) -> Result<bool, ApiError> {
    let wanted = match json {
        absent if absent.is_absent() => return Ok(false),
        Json::Array(wanted) => wanted,
        other => return Err(wrong_type("include", "an array of strings", other.kind())),
    };
    let mut logprobs = false;
    for (at, item) in wanted.items.iter().enumerate() {
        match item {
            Json::String(word) => logprobs |= word == "message.output_text.logprobs",
            other => return Err(wrong_type(format!("include[{at}]"), "a string", other.kind())),
        }
    }
    Ok(logprobs)
}

/// The settings that a response repeats, each with OpenAI's default where none was sent; of an
/// object, each of its members.
fn echo(raw: &Raw<'_>) -> Vec<u8> {
    const REASONING: [(&str, &str); 2] = [("effort", "null"), ("summary", "null")];
    const TEXT: [(&str, &str); 2] =
        [("format", "{\"type\":\"text\"}"), ("verbosity", "\"medium\"")];
    let mut out = Vec::with_capacity(512);
    for (name, value, default) in [
        ("instructions", &raw.instructions, "null"),
        ("max_output_tokens", &raw.max_output_tokens, "null"),
        ("max_tool_calls", &raw.max_tool_calls, "null"),
        ("metadata", &raw.metadata, "{}"),
        ("parallel_tool_calls", &raw.parallel_tool_calls, "true"),
        ("previous_response_id", &raw.previous_response_id, "null"),
        ("prompt_cache_key", &raw.prompt_cache_key, "null"),
        ("reasoning", &raw.reasoning, "{\"effort\":null,\"summary\":null}"),
        ("safety_identifier", &raw.safety_identifier, "null"),
        // The one that served it, whatever was asked for.
        ("service_tier", &Json::Absent, "\"default\""),
        ("store", &raw.store, "true"),
        ("temperature", &raw.temperature, "1.0"),
        ("text", &raw.text, "{\"format\":{\"type\":\"text\"},\"verbosity\":\"medium\"}"),
        ("tool_choice", &raw.tool_choice, "\"auto\""),
        ("tools", &raw.tools, "[]"),
        ("top_logprobs", &raw.top_logprobs, "0"),
        ("top_p", &raw.top_p, "1.0"),
        ("truncation", &raw.truncation, "\"disabled\""),
        ("user", &raw.user, "null"),
    ] {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        match (name, value) {
            _ if value.is_absent() => out.extend_from_slice(default.as_bytes()),
            ("reasoning", Json::Object(sent)) => push_members(&mut out, sent, &REASONING),
            ("text", Json::Object(sent)) => push_members(&mut out, sent, &TEXT),
            _ => value.write(&mut out),
        }
    }
    out
}

/// Appends an object as it was sent, with what it leaves out of the members with a default.
fn push_members(out: &mut Vec<u8>, sent: &Object<'_>, defaults: &[(&str, &str)]) {
    let is_defaulted = |name: &str| defaults.iter().any(|(member, _)| *member == name);
    for (at, (name, default)) in defaults.iter().enumerate() {
        out.push(if at == 0 { b'{' } else { b',' });
        push_string(out, name);
        out.push(b':');
        match sent.get(name) {
            absent if absent.is_absent() => out.extend_from_slice(default.as_bytes()),
            value => value.write(out),
        }
    }
    for (name, value) in sent.members.iter().filter(|(name, _)| !is_defaulted(name)) {
        out.push(b',');
        push_string(out, name);
        out.push(b':');
        value.write(out);
    }
    out.push(b'}');
}
