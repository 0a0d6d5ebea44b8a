//! The `input` of a response: items, and the chat messages that say the same.

use std::borrow::Cow;

use serde::Deserialize;

use crate::wire::chat::fields::{required, string, wrong_type};
use crate::wire::chat::{Message, Role};
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Shape, Shaped};

/// The most items of one request: a bound on our memory that no conversation reaches.
const MAX_ITEMS: usize = 65_536;

/// What an item stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputItem<'a> {
    /// Words, of whomever.
    Message(Message<'a>),
    /// An item of an earlier response.
    Reference(Reference<'a>),
}

/// An item of an earlier response, named by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference<'a> {
    /// `msg_...`, `fc_...` or `rs_...`.
    pub id: Cow<'a, str>,
    /// Its place in `input`.
    pub at: usize,
}

/// An item as typed.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
pub(super) struct RawItem<'a> {
    #[serde(rename = "type")]
    kind: Json<'a>,
    role: Json<'a>,
    content: Shaped<'a, RawPart<'a>>,
    id: Json<'a>,
    // function_call, function_call_output
    call_id: Json<'a>,
    name: Json<'a>,
    arguments: Json<'a>,
    output: Shaped<'a, RawPart<'a>>,
}

impl Shape for RawItem<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!((&self.kind, &self.role), (Json::String(_), _) | (_, Json::String(_)))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawPart<'a> {
    #[serde(rename = "type")]
    kind: Json<'a>,
    text: Json<'a>,
    refusal: Json<'a>,
}

impl Shape for RawPart<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.kind, Json::String(_))
    }
}

/// Reads `input`: a text is the user's message.
pub(super) fn check<'a>(raw: Shaped<'a, RawItem<'a>>) -> Result<Vec<InputItem<'a>>, ApiError> {
    let items = match raw {
        Shaped::String(content) => {
            return Ok(vec![InputItem::Message(Message { role: Role::User, content })]);
        }
        Shaped::Array(items) => items,
        absent if absent.is_absent() => return Ok(Vec::new()),
        other => {
            let expected = "one of a string or an array of input items";
            return Err(wrong_type("input", expected, other.kind()));
        }
    };
    if items.len() > MAX_ITEMS {
        return Err(ApiError::array_too_long("input", MAX_ITEMS, items.len()));
    }
    let mut input = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        input.extend(item_at(at, item)?);
    }
    Ok(input)
}

const TYPES: [&str; 5] =
    ["message", "function_call", "function_call_output", "reasoning", "item_reference"];

fn item_at<'a>(at: usize, raw: Shaped<'a, RawItem<'a>>) -> Result<Option<InputItem<'a>>, ApiError> {
    let item = match raw {
        Shaped::Object(item) => item,
        other => return Err(wrong_type(format!("input[{at}]"), "an object", other.kind())),
    };
    let path = |member: &str| format!("input[{at}].{member}");
    let kind = string(item.kind, path("type"))?;
    match kind.as_deref() {
        None | Some("message") => {
            let role = role(&required(item.role, path("role"))?, path("role"))?;
            let content = texts(item.content, &path("content"))?;
            Ok(Some(InputItem::Message(Message { role, content })))
        }
        Some("function_call" | "custom_tool_call") => {
            required(item.call_id, path("call_id"))?;
            let mut content = required(item.name, path("name"))?;
            content += string(item.arguments, path("arguments"))?.unwrap_or_default();
            Ok(Some(InputItem::Message(Message { role: Role::Assistant, content })))
        }
        Some("function_call_output" | "custom_tool_call_output") => {
            required(item.call_id, path("call_id"))?;
            let content = texts(item.output, &path("output"))?;
            Ok(Some(InputItem::Message(Message { role: Role::Tool, content })))
        }
        // What was thought is no part of later turns.
        Some("reasoning") => Ok(None),
        Some("item_reference") => {
            let id = required(item.id, path("id"))?;
            Ok(Some(InputItem::Reference(Reference { id, at })))
        }
        // Items of OpenAI's own tools, which are never called here.
        Some(
            "web_search_call"
            | "file_search_call"
            | "computer_call"
            | "code_interpreter_call"
            | "image_generation_call"
            | "mcp_call"
            | "mcp_list_tools",
        ) => Ok(None),
        Some(other) => Err(ApiError::not_one_of(path("type"), other, &TYPES)),
    }
}

fn role(name: &str, path: String) -> Result<Role, ApiError> {
    let roles = [Role::System, Role::Developer, Role::User, Role::Assistant];
    roles.into_iter().find(|role| role.as_str() == name).ok_or_else(|| {
        ApiError::not_one_of(path, name, &["assistant", "system", "developer", "user"])
    })
}

/// A text, or parts joined without a separator.
fn texts<'a>(raw: Shaped<'a, RawPart<'a>>, path: &str) -> Result<Cow<'a, str>, ApiError> {
    let parts = match raw {
        Shaped::String(text) => return Ok(text),
        Shaped::Array(parts) => parts,
        absent if absent.is_absent() => return Err(ApiError::missing(path.to_owned())),
        other => {
            let expected = "one of a string or an array of objects";
            return Err(wrong_type(path.to_owned(), expected, other.kind()));
        }
    };
    let mut whole = Cow::Borrowed("");
    for (index, part) in parts.into_iter().enumerate() {
        let path = |member: &str| format!("{path}[{index}]{member}");
        let part = match part {
            Shaped::Object(part) => part,
            other => return Err(wrong_type(path(""), "an object", other.kind())),
        };
        whole += match required(part.kind, path(".type"))?.as_ref() {
            "input_text" | "output_text" | "text" | "summary_text" => {
                required(part.text, path(".text"))?
            }
            "refusal" => required(part.refusal, path(".refusal"))?,
            media @ ("input_image" | "input_file" | "input_audio" | "computer_screenshot") => {
                return Err(ApiError::media_part(path(".type"), media));
            }
            other => {
                let allowed = ["input_text", "output_text", "refusal"];
                return Err(ApiError::not_one_of(path(".type"), other, &allowed));
            }
        };
    }
    Ok(whole)
}
