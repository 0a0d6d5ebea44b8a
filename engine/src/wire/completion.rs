//! The body of an answer that is not a stream.

use super::json::push_string;
use super::push_decimal;
use super::usage::{FinishReason, Usage};

/// A whole answer of `POST /v1/chat/completions`.
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
    /// Why it ended.
    pub finish: FinishReason,
    /// What it took.
    pub usage: Usage,
}

impl Completion<'_> {
    /// Appends the body. `escaped` are the pieces of the text as JSON string content, without
    /// quotes.
    pub fn write<'p>(&self, escaped: impl IntoIterator<Item = &'p [u8]>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_string(out, self.id);
        out.extend_from_slice(b",\"object\":\"chat.completion\",\"created\":");
        push_decimal(out, self.created);
        out.extend_from_slice(b",\"model\":");
        push_string(out, self.model);
        out.extend_from_slice(
            b",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"",
        );
        for piece in escaped {
            out.extend_from_slice(piece);
        }
        out.extend_from_slice(
            b"\",\"refusal\":null,\"annotations\":[]},\"logprobs\":null,\"finish_reason\":\"",
        );
        out.extend_from_slice(self.finish.as_str().as_bytes());
        out.extend_from_slice(b"\"}],\"usage\":");
        self.usage.write(out);
        out.extend_from_slice(b",\"service_tier\":\"default\",\"system_fingerprint\":");
        push_string(out, self.fingerprint);
        out.push(b'}');
    }
}
