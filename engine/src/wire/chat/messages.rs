//! The `messages` of a chat request: roles and texts.
//!
//! Content may be a string or a list of text parts, which are joined without a separator. What an
//! assistant called stands behind it, as in the prompts that models get: name and arguments. Other
//! members (`name`, `refusal`, ...) are taken as they come.

use std::borrow::Cow;

use serde::Deserialize;

use super::fields::{string, wrong_type};
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Shape, Shaped};

/// One message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who speaks.
    pub role: Role,
    /// What was said: all text parts joined, and each call's name and arguments behind. Empty if
    /// absent or null.
    pub content: Cow<'a, str>,
}

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The operator's instructions.
    System,
    /// The operator's instructions, by their newer name.
    Developer,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
    /// A function's result: the older form of `tool`.
    Function,
}

impl Role {
    /// All roles, in the order in which OpenAI lists them.
    pub const ALL: [Self; 6] =
        [Self::System, Self::Assistant, Self::User, Self::Function, Self::Tool, Self::Developer];

    /// As it stands in the request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Function => "function",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }
}

/// The most messages of one request: a bound on our memory that no conversation reaches.
const MAX_MESSAGES: usize = 65_536;

pub(in crate::wire) type RawMessages<'a> = Shaped<'a, RawMessage<'a>>;

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(in crate::wire) struct RawMessage<'a> {
    #[serde(default)]
    role: Json<'a>,
    #[serde(default)]
    content: Shaped<'a, RawPart<'a>>,
    #[serde(default)]
    tool_calls: Json<'a>,
    #[serde(default)]
    function_call: Json<'a>,
}

impl Shape for RawMessage<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.role, Json::String(_))
    }
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct RawPart<'a> {
    #[serde(default, rename = "type")]
    kind: Json<'a>,
    #[serde(default)]
    text: Json<'a>,
    #[serde(default)]
    refusal: Json<'a>,
}

impl Shape for RawPart<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.kind, Json::String(_))
    }
}

pub(in crate::wire) fn check(raw: RawMessages<'_>) -> Result<Vec<Message<'_>>, ApiError> {
    check_at(raw, "messages")
}

/// The same of a conversation that stands in the field `path`.
pub(in crate::wire) fn check_at<'a>(
    raw: RawMessages<'a>,
    path: &str,
) -> Result<Vec<Message<'a>>, ApiError> {
    let items = match raw {
        Shaped::Array(items) => items,
        other if other.is_absent() => return Err(ApiError::missing(path.to_owned())),
        other => return Err(wrong_type(path.to_owned(), "an array of objects", other.kind())),
    };
    if items.is_empty() {
        return Err(ApiError::empty_array(path.to_owned()));
    }
    if items.len() > MAX_MESSAGES {
        return Err(ApiError::array_too_long(path.to_owned(), MAX_MESSAGES, items.len()));
    }
    items.into_iter().enumerate().map(|(at, item)| message(path, at, item)).collect()
}

fn message<'a>(
    list: &str,
    at: usize,
    raw: Shaped<'a, RawMessage<'a>>,
) -> Result<Message<'a>, ApiError> {
    let raw = match raw {
        Shaped::Object(raw) => raw,
        other => {
            return Err(wrong_type(format!("{list}[{at}]"), "an object", other.kind()));
        }
    };
    let role = match raw.role {
        Json::String(name) => Role::from_name(&name).ok_or_else(|| {
            let allowed = Role::ALL.map(Role::as_str);
            ApiError::not_one_of(format!("{list}[{at}].role"), &name, &allowed)
        })?,
        absent if absent.is_absent() => {
            return Err(ApiError::missing(format!("{list}[{at}].role")));
        }
        other => {
            return Err(wrong_type(format!("{list}[{at}].role"), "a string", other.kind()));
        }
    };
    let mut content = match raw.content {
        Shaped::String(text) => text,
        Shaped::Array(parts) => joined(list, at, parts)?,
        absent if absent.is_absent() => Cow::Borrowed(""),
        other => {
            let expected = "one of a string or array of objects";
            return Err(wrong_type(format!("{list}[{at}].content"), expected, other.kind()));
        }
    };
    if role == Role::Assistant {
        add_call(&raw.function_call, &mut content);
        if let Json::Array(calls) = &raw.tool_calls {
            for call in &calls.items {
                if let Json::Object(call) = call {
                    add_call(call.get("function"), &mut content);
                    add_call(call.get("custom"), &mut content);
                }
            }
        }
    }
    Ok(Message { role, content })
}

/// Appends a call of an earlier turn; what is none, nothing. A model's own calls come back in this
/// form, and others are not judged.
fn add_call(call: &Json<'_>, content: &mut Cow<'_, str>) {
    let Json::Object(call) = call else { return };
    for member in ["name", "arguments", "input"] {
        if let Json::String(text) = call.get(member) {
            content.to_mut().push_str(text);
        }
    }
}

/// The parts' texts without a separator.
fn joined<'a>(
    list: &str,
    at: usize,
    parts: Vec<Shaped<'a, RawPart<'a>>>,
) -> Result<Cow<'a, str>, ApiError> {
    if parts.is_empty() {
        return Err(ApiError::empty_array(format!("{list}[{at}].content")));
    }
    let mut whole = Cow::Borrowed("");
    for (index, part) in parts.into_iter().enumerate() {
        // `+=` of a Cow keeps the first text borrowed as long as nothing follows.
        whole += text_of(part, || format!("{list}[{at}].content[{index}]"))?;
    }
    Ok(whole)
}

const PART_TYPES: [&str; 2] = ["text", "refusal"];

fn text_of<'a>(
    part: Shaped<'a, RawPart<'a>>,
    path: impl Fn() -> String,
) -> Result<Cow<'a, str>, ApiError> {
    let part = match part {
        Shaped::Object(part) => part,
        other => return Err(wrong_type(path(), "an object", other.kind())),
    };
    let kind = match part.kind {
        Json::String(kind) => kind,
        absent if absent.is_absent() => return Err(ApiError::missing(path() + ".type")),
        other => return Err(wrong_type(path() + ".type", "a string", other.kind())),
    };
    let (value, member) = match kind.as_ref() {
        "text" => (part.text, ".text"),
        "refusal" => (part.refusal, ".refusal"),
        "image_url" | "input_audio" | "file" | "audio_url" | "video_url" | "input_image" => {
            return Err(ApiError::media_part(path() + ".type", &kind));
        }
        other => return Err(ApiError::not_one_of(path() + ".type", other, &PART_TYPES)),
    };
    if value.is_absent() {
        return Err(ApiError::missing(path() + member));
    }
    // The path is only rendered for a wrong type.
    match value {
        Json::String(text) => Ok(text),
        other => string(other, path() + member).map(Option::unwrap_or_default),
    }
}
