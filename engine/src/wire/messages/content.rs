//! `system` and `messages`: blocks of content, and the chat that says the same.
//!
//! Thinking of earlier turns is left out, as Anthropic does. Pictures and documents are refused:
//! the models read text only.

use std::borrow::Cow;

use serde::Deserialize;
use sonic_rs::LazyValue;

use crate::wire::chat::fields::{boolean, required, string, wrong_type};
use crate::wire::chat::{Message, Role};
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Shape, Shaped};

/// The most messages of one request: a bound on our memory that no conversation reaches.
const MAX_MESSAGES: usize = 65_536;

pub(super) type RawSystem<'a> = Shaped<'a, RawText<'a>>;

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct RawMessage<'a> {
    #[serde(default)]
    role: Json<'a>,
    #[serde(default)]
    content: Shaped<'a, RawBlock<'a>>,
}

impl Shape for RawMessage<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.role, Json::String(_))
    }
}

/// A block of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawBlock<'a> {
    #[serde(rename = "type")]
    kind: Json<'a>,
    text: Json<'a>,
    // tool_use
    id: Json<'a>,
    name: Json<'a>,
    #[serde(borrow)]
    input: Option<LazyValue<'a>>,
    // tool_result
    tool_use_id: Json<'a>,
    content: Shaped<'a, RawText<'a>>,
    is_error: Json<'a>,
}

impl Shape for RawBlock<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.kind, Json::String(_))
    }
}

/// A block of `system` or of a tool's result: text, or nothing that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
pub(super) struct RawText<'a> {
    #[serde(rename = "type")]
    kind: Json<'a>,
    text: Json<'a>,
}

impl Shape for RawText<'_> {
    fn is_hopeless(&self) -> bool {
        !matches!(self.kind, Json::String(_))
    }
}

/// The chat that a conversation is.
pub(super) fn chat<'a>(
    system: RawSystem<'a>,
    messages: Shaped<'a, RawMessage<'a>>,
) -> Result<Vec<Message<'a>>, ApiError> {
    let items = match messages {
        Shaped::Array(items) => items,
        other if other.is_absent() => return Err(ApiError::missing("messages")),
        other => return Err(wrong_type("messages", "an array of objects", other.kind())),
    };
    if items.is_empty() {
        return Err(ApiError::empty_array("messages"));
    }
    if items.len() > MAX_MESSAGES {
        return Err(ApiError::array_too_long("messages", MAX_MESSAGES, items.len()));
    }
    let mut chat = Vec::with_capacity(items.len() + 1);
    if !system.is_absent() {
        let content = texts(system, "system")?;
        // An empty system prompt is none.
        if !content.is_empty() {
            chat.push(Message { role: Role::System, content });
        }
    }
    for (at, item) in items.into_iter().enumerate() {
        message(at, item, &mut chat)?;
    }
    Ok(chat)
}

fn message<'a>(
    at: usize,
    raw: Shaped<'a, RawMessage<'a>>,
    chat: &mut Vec<Message<'a>>,
) -> Result<(), ApiError> {
    let raw = match raw {
        Shaped::Object(raw) => raw,
        other => return Err(wrong_type(format!("messages[{at}]"), "an object", other.kind())),
    };
    let path = format!("messages[{at}].role");
    let role = match string(raw.role, path.clone())?.as_deref() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        // vLLM's; Anthropic has the field `system` for it.
        Some("system") => Role::System,
        Some(other) => return Err(ApiError::not_one_of(path, other, &["user", "assistant"])),
        None => return Err(ApiError::missing(path)),
    };
    let blocks = match raw.content {
        Shaped::String(content) => {
            chat.push(Message { role, content });
            return Ok(());
        }
        Shaped::Array(blocks) => blocks,
        absent if absent.is_absent() => {
            return Err(ApiError::missing(format!("messages[{at}].content")));
        }
        other => {
            let expected = "one of a string or an array of objects";
            return Err(wrong_type(format!("messages[{at}].content"), expected, other.kind()));
        }
    };
    let results_before = chat.len();
    let mut own = Message { role, content: Cow::Borrowed("") };
    for (index, block) in blocks.into_iter().enumerate() {
        let path = || format!("messages[{at}].content[{index}]");
        let block = match block {
            Shaped::Object(block) => block,
            other => return Err(wrong_type(path(), "an object", other.kind())),
        };
        match required(block.kind, path() + ".type")?.as_ref() {
            "text" => own.content += required(block.text, path() + ".text")?,
            "tool_use" => {
                required(block.id, path() + ".id")?;
                own.content += required(block.name, path() + ".name")?;
                let Some(input) = block.input else {
                    return Err(ApiError::missing(path() + ".input"));
                };
                own.content.to_mut().push_str(input.as_raw_str());
            }
            "tool_result" => {
                required(block.tool_use_id, path() + ".tool_use_id")?;
                boolean(&block.is_error, path() + ".is_error")?;
                let content = match block.content {
                    absent if absent.is_absent() => Cow::Borrowed(""),
                    content => texts(content, &(path() + ".content"))?,
                };
                chat.push(Message { role: Role::Tool, content });
            }
            "thinking" | "redacted_thinking" => {}
            // The searches of Anthropic's own tools, which are never made here.
            "server_tool_use" | "web_search_tool_result" => {}
            media @ ("image" | "document") => {
                return Err(ApiError::media_part(path() + ".type", media));
            }
            other => {
                let allowed = ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"];
                return Err(ApiError::not_one_of(path() + ".type", other, &allowed));
            }
        }
    }
    // A message of results alone is the tools' turn, and no user's.
    if chat.len() == results_before || !own.content.is_empty() {
        chat.push(own);
    }
    Ok(())
}

/// A text, or text blocks joined without a separator.
fn texts<'a>(raw: Shaped<'a, RawText<'a>>, path: &str) -> Result<Cow<'a, str>, ApiError> {
    let blocks = match raw {
        Shaped::String(text) => return Ok(text),
        Shaped::Array(blocks) => blocks,
        other => {
            let expected = "one of a string or an array of objects";
            return Err(wrong_type(path.to_owned(), expected, other.kind()));
        }
    };
    let mut whole = Cow::Borrowed("");
    for (index, block) in blocks.into_iter().enumerate() {
        let path = || format!("{path}[{index}]");
        let block = match block {
            Shaped::Object(block) => block,
            other => return Err(wrong_type(path(), "an object", other.kind())),
        };
        match required(block.kind, path() + ".type")?.as_ref() {
            "text" => whole += required(block.text, path() + ".text")?,
            media @ ("image" | "document") => {
                return Err(ApiError::media_part(path() + ".type", media));
            }
            other => return Err(ApiError::not_one_of(path() + ".type", other, &["text"])),
        }
    }
    Ok(whole)
}
