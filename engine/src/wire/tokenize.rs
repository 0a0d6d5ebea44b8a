//! vLLM's `POST /tokenize` and `POST /detokenize`: requests and answers.
//!
//! It does not know a tokenizer: ids and pieces are the caller's. The invariant is that of
//! [`chat`](super::chat): whoever holds a request need not check it again.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;
use sonic_rs::LazyValue;

use super::chat::body;
use super::chat::fields::{boolean, string};
use super::chat::messages::{self, Message, RawMessages};
use super::chat::tools;
use super::chat::vllm::{PromptEnd, prompt_end};
use super::error::ApiError;
use super::json::{Json, push_string};
use super::token_ids::push_ids;
use super::tools::Tools;

/// What is to be cut into tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Input<'a> {
    /// A text as it is.
    Prompt(Cow<'a, str>),
    /// A chat, as a chat request would have it.
    Chat {
        /// At least one message.
        messages: Vec<Message<'a>>,
        /// What the prompt ends with.
        end: PromptEnd,
        /// Functions whose definitions are part of the prompt.
        tools: Tools<'a>,
    },
}

/// A valid request for tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest<'a> {
    /// Whose tokens; the first model's if not said.
    pub model: Option<Cow<'a, str>>,
    /// What is to be cut.
    pub input: Input<'a>,
    /// `return_token_strs`: the pieces beside their ids.
    pub wants_pieces: bool,
}

/// A valid request for a text.
#[derive(Clone, Debug, PartialEq)]
pub struct DetokenizeRequest<'a> {
    /// Whose tokens; the first model's if not said.
    pub model: Option<Cow<'a, str>>,
    /// The ids.
    pub tokens: Vec<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawTokenize<'a> {
    model: Json<'a>,
    prompt: Json<'a>,
    messages: RawMessages<'a>,
    add_generation_prompt: Json<'a>,
    continue_final_message: Json<'a>,
    add_special_tokens: Json<'a>,
    return_token_strs: Json<'a>,
    tools: Json<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawDetokenize<'a> {
    model: Json<'a>,
    #[serde(borrow)]
    tokens: Option<LazyValue<'a>>,
}

impl<'a> TokenizeRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: RawTokenize<'a> = body::read_as(body)?;
        let model = string(raw.model, "model")?;
        boolean(&raw.add_special_tokens, "add_special_tokens")?;
        let (adds, continues) = (&raw.add_generation_prompt, &raw.continue_final_message);
        let end = prompt_end(adds, continues, PromptEnd::AnswerBegins)?;
        let wants_pieces = boolean(&raw.return_token_strs, "return_token_strs")?.unwrap_or(false);
        let input = match string(raw.prompt, "prompt")? {
            Some(text) => Input::Prompt(text),
            None if raw.messages.is_absent() => return Err(ApiError::missing("prompt")),
            None => {
                let messages = messages::check(raw.messages)?;
                let tools = Tools { list: tools::tools(&raw.tools)?, ..Tools::default() };
                Input::Chat { messages, end, tools }
            }
        };
        Ok(Self { model, input, wants_pieces })
    }
}

impl<'a> DetokenizeRequest<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: RawDetokenize<'a> = body::read_as(body)?;
        let model = string(raw.model, "model")?;
        let Some(tokens) = raw.tokens else { return Err(ApiError::missing("tokens")) };
        let tokens = sonic_rs::from_str(tokens.as_raw_str()).map_err(|_| {
            let why = "it must be an array of token ids: whole numbers from 0 to 4294967295.";
            ApiError::invalid_value("tokens", why)
        })?;
        Ok(Self { model, tokens })
    }
}

/// Appends the answer of `/tokenize`.
pub fn write_tokens(ids: &[u32], pieces: Option<&[&str]>, max_model_len: u32, out: &mut Vec<u8>) {
    const INFALLIBLE: &str = "writing to memory cannot fail";
    write!(out, "{{\"count\":{},\"max_model_len\":{max_model_len}", ids.len()).expect(INFALLIBLE);
    push_ids(b",\"tokens\":", ids.iter().copied(), out);
    out.extend_from_slice(b",\"token_strs\":");
    match pieces {
        None => out.extend_from_slice(b"null"),
        Some(pieces) => {
            out.push(b'[');
            for (at, piece) in pieces.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                push_string(out, piece);
            }
            out.push(b']');
        }
    }
    out.push(b'}');
}

/// Appends the answer of `/detokenize`.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"prompt\":");
    push_string(out, text);
    out.push(b'}');
}
