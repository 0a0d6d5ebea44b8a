//! The body of an answer that is not a stream.

use super::json::push_string;
use super::push_decimal;
use super::sse::End;
use super::token_ids::push_ids;
use super::usage::Usage;

/// A whole answer of `POST /v1/chat/completions`: [`Self::open`], each choice, [`Self::close`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion<'a> {
    /// `chatcmpl-...`.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: &'a str,
    /// Names the backend's configuration; the same as long as answers are.
    pub fingerprint: &'a str,
    /// What it took.
    pub usage: Usage,
}

/// One choice of a whole answer. Texts are the content of JSON strings, without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    /// Its number, from 0.
    pub index: u32,
    /// What is answered; `None` is `null`.
    pub content: Option<&'a [u8]>,
    /// Why nothing is answered.
    pub refusal: Option<&'a [u8]>,
    /// What a reasoning model thought, sent under both names that clients know.
    pub reasoning: Option<&'a [u8]>,
    /// The calls of tools; without any, the member is left out.
    pub calls: &'a [CallBody<'a>],
    /// The value of `logprobs`, as JSON.
    pub logprobs: Option<&'a [u8]>,
    /// vLLM's `return_token_ids`: what it is made of.
    pub token_ids: Option<&'a [u32]>,
    /// Why it ended.
    pub end: End<'a>,
}

/// A call of a tool in a whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBody<'a> {
    /// `call_...`.
    pub id: &'a str,
    /// The function.
    pub name: &'a str,
    /// A JSON text, escaped as the content of a JSON string.
    pub arguments: &'a [u8],
}

impl Completion<'_> {
    /// Appends all that stands before the choices.
    pub fn open(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_string(out, self.id);
        out.extend_from_slice(b",\"object\":\"chat.completion\",\"created\":");
        push_decimal(out, self.created);
        out.extend_from_slice(b",\"model\":");
        push_string(out, self.model);
        out.extend_from_slice(b",\"choices\":[");
    }

    /// Appends all that stands behind the choices.
    pub fn close(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"],\"usage\":");
        self.usage.write(out);
        out.extend_from_slice(b",\"service_tier\":\"default\",\"system_fingerprint\":");
        push_string(out, self.fingerprint);
        out.push(b'}');
    }
}

impl Choice<'_> {
    /// Appends the choice, with a comma before it unless it is the first.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(b"{\"index\":");
        push_decimal(out, u64::from(self.index));
        out.extend_from_slice(b",\"message\":{\"role\":\"assistant\",\"content\":");
        push_text(self.content, out);
        out.extend_from_slice(b",\"refusal\":");
        push_text(self.refusal, out);
        out.extend_from_slice(b",\"annotations\":[]");
        if let Some(reasoning) = self.reasoning {
            for name in [b",\"reasoning_content\":".as_slice(), b",\"reasoning\":"] {
                out.extend_from_slice(name);
                push_text(Some(reasoning), out);
            }
        }
        if !self.calls.is_empty() {
            out.extend_from_slice(b",\"tool_calls\":[");
            for (at, call) in self.calls.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                call.write(out);
            }
            out.push(b']');
        }
        out.extend_from_slice(b"},\"logprobs\":");
        out.extend_from_slice(self.logprobs.unwrap_or(b"null"));
        if let Some(ids) = self.token_ids {
            push_ids(b",\"token_ids\":", ids.iter().copied(), out);
        }
        self.end.write_reasons(out);
        out.push(b'}');
    }
}

impl CallBody<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_string(out, self.id);
        out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
        push_string(out, self.name);
        out.extend_from_slice(b",\"arguments\":");
        push_text(Some(self.arguments), out);
        out.extend_from_slice(b"}}");
    }
}

fn push_text(escaped: Option<&[u8]>, out: &mut Vec<u8>) {
    match escaped {
        Some(escaped) => {
            out.push(b'"');
            out.extend_from_slice(escaped);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
}
