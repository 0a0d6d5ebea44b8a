//! The client's side: bodies of requests, and what a chunk or an answer says.
//!
//! It is not an HTTP client and keeps no state of a stream. The invariant: every server's dialect
//! is read (OpenAI, vLLM, SGLang, gateways), so a member of an unexpected type counts as absent,
//! and only what is not a JSON object at all is an error.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;

use super::chat::Role;
use super::json::{Json, Object, Shape, Shaped, push_string};
use super::json_guard;

/// The body of a chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatBody<'a> {
    /// The model to ask.
    pub model: &'a str,
    /// The conversation.
    pub messages: &'a [(Role, &'a str)],
    /// Whether to stream, and with the usage chunk or without.
    pub answer: Answer,
    /// The most tokens to generate, and under which name.
    pub limit: Option<(LimitField, u32)>,
    /// vLLM: no natural end before this many tokens.
    pub min_tokens: Option<u32>,
    /// vLLM: run to the limit.
    pub ignore_eos: bool,
    /// Chooses among variants.
    pub seed: Option<i64>,
    /// Sampling temperature; must be finite.
    pub temperature: Option<f64>,
    /// Further members as JSON, without braces: `"top_p":0.5,"user":"x"`. Empty for none.
    pub extra: &'a str,
}

/// The form in which an answer is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One JSON body.
    Whole,
    /// Server-sent events.
    Stream,
    /// Server-sent events with a usage chunk at the end.
    StreamWithUsage,
}

/// Which field carries the limit: old servers know only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitField {
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

impl<'a> ChatBody<'a> {
    /// A streamed request without any option.
    pub fn new(model: &'a str, messages: &'a [(Role, &'a str)]) -> Self {
        Self {
            model,
            messages,
            answer: Answer::Stream,
            limit: None,
            min_tokens: None,
            ignore_eos: false,
            seed: None,
            temperature: None,
            extra: "",
        }
    }

    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"model\":");
        push_string(out, self.model);
        out.extend_from_slice(b",\"messages\":[");
        for (at, (role, content)) in self.messages.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"role\":\"");
            out.extend_from_slice(role.as_str().as_bytes());
            out.extend_from_slice(b"\",\"content\":");
            push_string(out, content);
            out.push(b'}');
        }
        out.push(b']');
        out.extend_from_slice(match self.answer {
            Answer::Whole => b"".as_slice(),
            Answer::Stream => b",\"stream\":true",
            Answer::StreamWithUsage => {
                b",\"stream\":true,\"stream_options\":{\"include_usage\":true}"
            }
        });
        if let Some((field, limit)) = self.limit {
            let field = match field {
                LimitField::MaxTokens => "max_tokens",
                LimitField::MaxCompletionTokens => "max_completion_tokens",
            };
            member(out, field, limit);
        }
        if let Some(min_tokens) = self.min_tokens {
            member(out, "min_tokens", min_tokens);
        }
        if self.ignore_eos {
            member(out, "ignore_eos", true);
        }
        if let Some(seed) = self.seed {
            member(out, "seed", seed);
        }
        if let Some(temperature) = self.temperature {
            member(out, "temperature", temperature);
        }
        if !self.extra.is_empty() {
            out.push(b',');
            out.extend_from_slice(self.extra.as_bytes());
        }
        out.push(b'}');
    }
}

fn member(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    write!(out, ",\"{name}\":{value}").expect("writing to memory cannot fail");
}

/// What one chunk of a stream says, or a whole answer: that has the same members with `message`
/// for `delta`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk<'a> {
    /// How many choices it carries; 0 on a usage chunk.
    pub choices: usize,
    /// Whether the first choice names a role.
    pub has_role: bool,
    /// The first choice's text; `Some("")` if it says so.
    pub content: Option<Cow<'a, str>>,
    /// The first choice's reasoning, under either name.
    pub reasoning: Option<Cow<'a, str>>,
    /// Whether the first choice carries tool calls.
    pub has_tool_calls: bool,
    /// The first choice's finish reason.
    pub finish: Option<Cow<'a, str>>,
    /// The usage object.
    pub usage: Option<ReportedUsage>,
    /// An error in place of, or beside, all that.
    pub error: Option<ReportedError<'a>>,
}

/// Token counts as a server reports them; what it leaves out is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedUsage {
    /// Prompt tokens.
    pub prompt: Option<u64>,
    /// Of these, found in a prefix cache.
    pub cached: Option<u64>,
    /// Answer tokens, reasoning included.
    pub completion: Option<u64>,
    /// Of these, reasoning.
    pub reasoning: Option<u64>,
}

/// An error object as a server reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReportedError<'a> {
    /// `error.message`, or the error itself if it is a bare string.
    pub message: Cow<'a, str>,
    /// `error.type`.
    pub kind: Option<Cow<'a, str>>,
    /// `error.code`; vLLM's number as text.
    pub code: Option<Cow<'a, str>>,
}

/// The data of an event is not a JSON object, or too deep; the text is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadChunk(pub String);

impl std::fmt::Display for BadChunk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadChunk {}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawChunk<'a> {
    choices: Shaped<'a, RawChoice<'a>>,
    usage: Json<'a>,
    error: Json<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawChoice<'a> {
    delta: Shaped<'a, RawDelta<'a>>,
    /// In place of `delta` in an answer that is not a stream.
    message: Shaped<'a, RawDelta<'a>>,
    /// Of the older completions.
    text: Json<'a>,
    finish_reason: Json<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawDelta<'a> {
    role: Json<'a>,
    content: Json<'a>,
    reasoning_content: Json<'a>,
    reasoning: Json<'a>,
    tool_calls: super::json::Kind,
}

impl Shape for RawChoice<'_> {
    fn is_hopeless(&self) -> bool {
        false
    }
}

impl Shape for RawDelta<'_> {
    fn is_hopeless(&self) -> bool {
        false
    }
}

impl<'a> Chunk<'a> {
    /// Reads the data of one event (not `[DONE]`), or the body of an answer or of an error.
    ///
    /// # Errors
    /// [`BadChunk`] if it is not a JSON object.
    pub fn parse(data: &'a [u8]) -> Result<Self, BadChunk> {
        json_guard::check(data)
            .map_err(|deep| BadChunk(format!("JSON nested too deep at byte {}", deep.at)))?;
        // A struct may also be read from an array; nobody sends that.
        if data.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
            return Err(BadChunk("not a JSON object".to_owned()));
        }
        let raw: RawChunk<'a> = sonic_rs::from_slice(data).map_err(|error| {
            BadChunk(error.to_string().lines().next().unwrap_or_default().to_owned())
        })?;
        let mut chunk =
            Self { usage: usage(&raw.usage), error: error(raw.error), ..Self::default() };
        let Shaped::Array(choices) = raw.choices else { return Ok(chunk) };
        chunk.choices = choices.len();
        if let Some(Shaped::Object(choice)) = choices.into_iter().next() {
            chunk.take(choice);
        }
        Ok(chunk)
    }

    fn take(&mut self, choice: RawChoice<'a>) {
        self.finish = text(choice.finish_reason);
        self.content = text(choice.text);
        let ((Shaped::Object(delta), _) | (_, Shaped::Object(delta))) =
            (choice.delta, choice.message)
        else {
            return;
        };
        self.has_role = !delta.role.is_absent();
        self.content = text(delta.content).or(self.content.take());
        self.reasoning = text(delta.reasoning_content).or(text(delta.reasoning));
        self.has_tool_calls = !delta.tool_calls.is_absent();
    }
}

fn text<'a>(json: Json<'a>) -> Option<Cow<'a, str>> {
    match json {
        Json::String(text) => Some(text),
        _ => None,
    }
}

fn count(object: &Object<'_>, name: &str) -> Option<u64> {
    match object.get(name) {
        Json::Integer(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn usage(json: &Json<'_>) -> Option<ReportedUsage> {
    let Json::Object(usage) = json else { return None };
    let detail = |object: &str, name: &str| match usage.get(object) {
        Json::Object(details) => count(details, name),
        _ => None,
    };
    Some(ReportedUsage {
        prompt: count(usage, "prompt_tokens"),
        cached: detail("prompt_tokens_details", "cached_tokens"),
        completion: count(usage, "completion_tokens"),
        reasoning: detail("completion_tokens_details", "reasoning_tokens"),
    })
}

fn error<'a>(json: Json<'a>) -> Option<ReportedError<'a>> {
    match json {
        Json::String(message) => Some(ReportedError { message, kind: None, code: None }),
        Json::Object(object) => Some(ReportedError {
            message: text(object.get("message").clone()).unwrap_or_default(),
            kind: text(object.get("type").clone()),
            code: match object.get("code") {
                Json::Integer(number) => Some(Cow::Owned(number.to_string())),
                other => text(other.clone()),
            },
        }),
        _ => None,
    }
}
