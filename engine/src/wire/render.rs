//! vLLM's `/render` routes: what a request would ask of an engine, as token ids. Routers ask for it
//! to know a prompt's prefixes before they choose who answers.

use std::io::Write as _;

use super::json::push_string;
use super::token_ids::push_ids;

/// A request with its prompt cut into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendered<'a> {
    /// The id that the answer would have.
    pub id: &'a str,
    /// The model as the client named it.
    pub model: &'a str,
    /// The prompt.
    pub tokens: &'a [u32],
    /// The limit on output tokens.
    pub max_tokens: u32,
    /// Whether the answer would be a stream.
    pub stream: bool,
}

impl Rendered<'_> {
    /// Appends the object.
    pub fn write(&self, out: &mut Vec<u8>) {
        const INFALLIBLE: &str = "writing to memory cannot fail";
        out.extend_from_slice(b"{\"request_id\":");
        push_string(out, self.id);
        push_ids(b",\"token_ids\":", self.tokens.iter().copied(), out);
        write!(
            out,
            ",\"features\":null,\"sampling_params\":{{\"max_tokens\":{}}},\"model\":",
            self.max_tokens
        )
        .expect(INFALLIBLE);
        push_string(out, self.model);
        write!(out, ",\"stream\":{}}}", self.stream).expect(INFALLIBLE);
    }
}
