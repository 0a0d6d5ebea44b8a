//! The frames of a streamed chat completion, in OpenAI's order: a role frame for each choice, a
//! frame per token, a finish frame for each choice, the usage frame if asked for, `[DONE]`.

use crate::wire::error::ApiError;
use crate::wire::json::{push_optional_string, push_string};
use crate::wire::push_decimal;
use crate::wire::usage::{FinishReason, Usage};

/// The end of a stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// What all frames of a stream say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead<'a> {
    /// `chatcmpl-...`.
    pub id: &'a str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model as the client named it.
    pub model: &'a str,
    /// Names the backend's configuration; the same as long as answers are.
    pub fingerprint: &'a str,
    /// With `stream_options.include_usage` every frame but the usage frame says `usage: null`.
    pub include_usage: bool,
}

/// A stream's frames: what they share is rendered once.
///
/// A frame is either one of the whole ones ([`Self::content`], [`Self::usage`]), or it is begun
/// with [`Self::begin`], gets the value of `logprobs`, and is ended with [`Self::end`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFrames {
    /// `data: {"id":...,"choices":[` and, from `choices_len` on, the beginning of a content choice.
    head: Box<[u8]>,
    choices_len: usize,
    include_usage: bool,
}

/// What a frame adds to its choice. Texts are the content of JSON strings, without quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delta<'a> {
    /// Who speaks, and empty content.
    Role,
    /// Who speaks, and that there is no content: the answer begins with calls of tools.
    RoleWithoutContent,
    /// Some of the answer.
    Content(&'a [u8]),
    /// Some of what a reasoning model thinks, under both names that clients know.
    Reasoning(&'a [u8]),
    /// Some of why there is no answer.
    Refusal(&'a [u8]),
    /// A call of a tool begins: `index`, `id` and the function's name.
    ToolCall {
        /// Its place among the calls, from 0.
        index: u32,
        /// `call_...`, unescaped.
        id: &'a str,
        /// The function, unescaped.
        name: &'a str,
    },
    /// Some of a call's arguments.
    Arguments {
        /// The call's place among the calls, from 0.
        index: u32,
        /// A piece of a JSON text, escaped as the content of a string.
        escaped: &'a [u8],
    },
    /// Nothing: the last frame of a choice.
    Nothing,
}

/// What stands behind a frame's `logprobs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End<'a> {
    /// Why the choice ended.
    pub finish: Option<FinishReason>,
    /// vLLM's: the stop string that ended it.
    pub stop_reason: Option<&'a str>,
    /// vLLM's `continuous_usage_stats`: the usage so far.
    pub usage: Option<&'a Usage>,
}

const CONTENT: &[u8] = b"{\"index\":0,\"delta\":{\"content\":\"";

/// The end of a content frame of the first choice, in one piece.
const CONTENT_TAIL: &[u8] = b"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const CONTENT_TAIL_USAGE: &[u8] =
    b"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";

impl StreamFrames {
    /// Renders what the frames of one stream share.
    pub fn new(head: &StreamHead<'_>) -> Self {
        let mut out = Vec::with_capacity(512);
        out.extend_from_slice(b"data: {\"id\":");
        push_string(&mut out, head.id);
        out.extend_from_slice(b",\"object\":\"chat.completion.chunk\",\"created\":");
        push_decimal(&mut out, head.created);
        out.extend_from_slice(b",\"model\":");
        push_string(&mut out, head.model);
        out.extend_from_slice(b",\"service_tier\":\"default\",\"system_fingerprint\":");
        push_string(&mut out, head.fingerprint);
        out.extend_from_slice(b",\"choices\":[");
        let choices_len = out.len();
        out.extend_from_slice(CONTENT);
        Self { head: out.into_boxed_slice(), choices_len, include_usage: head.include_usage }
    }

    /// Appends the frame of one token of the first choice: three copies. `escaped` is its text as
    /// JSON string content, without quotes.
    pub fn content(&self, escaped: &[u8], out: &mut Vec<u8>) {
        let tail = if self.include_usage { CONTENT_TAIL_USAGE } else { CONTENT_TAIL };
        out.reserve(self.head.len() + escaped.len() + tail.len());
        out.extend_from_slice(&self.head);
        out.extend_from_slice(escaped);
        out.extend_from_slice(tail);
    }

    /// Appends a frame without log probabilities.
    pub fn frame(&self, choice: u32, delta: Delta<'_>, end: &End<'_>, out: &mut Vec<u8>) {
        self.begin(choice, delta, out);
        out.extend_from_slice(b"null");
        self.end(end, out);
    }

    /// Begins a frame, up to `"logprobs":`, whose value is to be appended next; members may follow
    /// it.
    pub fn begin(&self, choice: u32, delta: Delta<'_>, out: &mut Vec<u8>) {
        self.begin_with(choice, delta, |_| {}, out);
    }

    /// The same of several tokens: `rest` appends the text of those behind the first, as JSON
    /// string content without quotes.
    pub fn begin_with(
        &self,
        choice: u32,
        delta: Delta<'_>,
        rest: impl Fn(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        out.extend_from_slice(b"{\"index\":");
        push_number(out, choice);
        out.extend_from_slice(b",\"delta\":{");
        delta.write(rest, out);
        out.extend_from_slice(b"},\"logprobs\":");
    }

    /// Ends a frame.
    pub fn end(&self, end: &End<'_>, out: &mut Vec<u8>) {
        end.write_reasons(out);
        out.extend_from_slice(match end.usage {
            Some(usage) => return end_with_usage(b"}],\"usage\":", usage, out),
            None if self.include_usage => b"}],\"usage\":null}\n\n".as_slice(),
            None => b"}]}\n\n",
        });
    }

    /// Appends the usage frame: no choices. Only for streams that asked for it.
    pub fn usage(&self, usage: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        end_with_usage(b"],\"usage\":", usage, out);
    }
}

impl End<'_> {
    /// Appends why the choice ended, with a comma before.
    pub(in crate::wire) fn write_reasons(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"finish_reason\":");
        match self.finish {
            None => out.extend_from_slice(b"null"),
            Some(finish) => {
                out.push(b'"');
                out.extend_from_slice(finish.as_str().as_bytes());
                out.push(b'"');
            }
        }
        if self.stop_reason.is_some() {
            out.extend_from_slice(b",\"stop_reason\":");
            push_optional_string(out, self.stop_reason);
        }
    }
}

impl Delta<'_> {
    fn write(self, rest: impl Fn(&mut Vec<u8>), out: &mut Vec<u8>) {
        let text = |before: &[u8], escaped: &[u8], after: &[u8], out: &mut Vec<u8>| {
            out.extend_from_slice(before);
            out.extend_from_slice(escaped);
            rest(out);
            out.extend_from_slice(after);
        };
        match self {
            Self::Role => {
                out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\",\"refusal\":null");
            }
            Self::RoleWithoutContent => {
                out.extend_from_slice(b"\"role\":\"assistant\",\"content\":null,\"refusal\":null");
            }
            Self::Content(escaped) => text(b"\"content\":\"", escaped, b"\"", out),
            Self::Reasoning(escaped) => {
                text(b"\"reasoning_content\":\"", escaped, b"\"", out);
                text(b",\"reasoning\":\"", escaped, b"\"", out);
            }
            Self::Refusal(escaped) => text(b"\"refusal\":\"", escaped, b"\"", out),
            Self::ToolCall { index, id, name } => {
                out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
                push_number(out, index);
                out.extend_from_slice(b",\"id\":");
                push_string(out, id);
                out.extend_from_slice(b",\"type\":\"function\",\"function\":{\"name\":");
                push_string(out, name);
                out.extend_from_slice(b",\"arguments\":\"\"}}]");
            }
            Self::Arguments { index, escaped } => {
                out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
                push_number(out, index);
                text(b",\"function\":{\"arguments\":\"", escaped, b"\"}}]", out);
            }
            Self::Nothing => {}
        }
    }
}

fn push_number(out: &mut Vec<u8>, number: u32) {
    push_decimal(out, u64::from(number));
}

fn end_with_usage(before: &[u8], usage: &Usage, out: &mut Vec<u8>) {
    out.extend_from_slice(before);
    usage.write(out);
    out.extend_from_slice(b"}\n\n");
}

/// Appends an error in the middle of a stream, as vLLM and OpenAI send it: SDKs raise on it. The
/// HTTP status has long been 200.
pub fn write_error(error: &ApiError, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    error.write(out);
    out.extend_from_slice(b"\n\n");
}
