//! The frames of a streamed chat completion, in OpenAI's order: one role frame, a content frame per
//! token, one finish frame, the usage frame if asked for, `[DONE]`.

use std::io::Write as _;

use crate::wire::error::ApiError;
use crate::wire::json::push_string;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFrames {
    /// `data: {"id":...,"choices":[` and, from `choices_len` on, the beginning of a content choice.
    head: Box<[u8]>,
    choices_len: usize,
    include_usage: bool,
}

const CONTENT: &[u8] = b"{\"index\":0,\"delta\":{\"content\":\"";
const CONTENT_END: &[u8] = b"\"},\"logprobs\":null,\"finish_reason\":null}";
const ROLE: &[u8] = b"{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\",\
                      \"refusal\":null},\"logprobs\":null,\"finish_reason\":null}";
const FINISH: &[u8] = b"{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"";

/// `CONTENT_END` and the end of the frame, in one piece.
const CONTENT_TAIL: &[u8] = b"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";
const CONTENT_TAIL_USAGE: &[u8] =
    b"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";

impl StreamFrames {
    /// Renders what the frames of one stream share.
    pub fn new(head: &StreamHead<'_>) -> Self {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"data: {\"id\":");
        push_string(&mut out, head.id);
        write!(
            out,
            ",\"object\":\"chat.completion.chunk\",\"created\":{},\"model\":",
            head.created
        )
        .expect("writing to memory cannot fail");
        push_string(&mut out, head.model);
        out.extend_from_slice(b",\"service_tier\":\"default\",\"system_fingerprint\":");
        push_string(&mut out, head.fingerprint);
        out.extend_from_slice(b",\"choices\":[");
        let choices_len = out.len();
        out.extend_from_slice(CONTENT);
        Self { head: out.into_boxed_slice(), choices_len, include_usage: head.include_usage }
    }

    /// Appends the first frame: the role, and no content.
    pub fn role(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        out.extend_from_slice(ROLE);
        self.end_of_choices(out);
    }

    /// Appends the first frame with the usage so far: vLLM's `continuous_usage_stats`.
    pub fn role_with_usage(&self, usage: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        out.extend_from_slice(ROLE);
        end_with_usage(usage, out);
    }

    /// Appends the frame of one token. `escaped` is its text as JSON string content, without
    /// quotes.
    pub fn content(&self, escaped: &[u8], out: &mut Vec<u8>) {
        let tail = if self.include_usage { CONTENT_TAIL_USAGE } else { CONTENT_TAIL };
        out.reserve(self.head.len() + escaped.len() + tail.len());
        out.extend_from_slice(&self.head);
        out.extend_from_slice(escaped);
        out.extend_from_slice(tail);
    }

    /// Appends the frame of one token with the usage so far: vLLM's `continuous_usage_stats`.
    pub fn content_with_usage(&self, escaped: &[u8], usage: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
        out.extend_from_slice(escaped);
        out.extend_from_slice(CONTENT_END);
        end_with_usage(usage, out);
    }

    /// Appends the frame that says why the answer ended.
    pub fn finish(&self, reason: FinishReason, out: &mut Vec<u8>) {
        self.finish_choice(reason, out);
        self.end_of_choices(out);
    }

    /// The same with the totals: vLLM's `continuous_usage_stats`.
    pub fn finish_with_usage(&self, reason: FinishReason, usage: &Usage, out: &mut Vec<u8>) {
        self.finish_choice(reason, out);
        end_with_usage(usage, out);
    }

    fn finish_choice(&self, reason: FinishReason, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        out.extend_from_slice(FINISH);
        out.extend_from_slice(reason.as_str().as_bytes());
        out.extend_from_slice(b"\"}");
    }

    /// Appends the usage frame: no choices. Only for streams that asked for it.
    pub fn usage(&self, usage: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        end_with_usage(usage, out);
    }

    /// The length of [`Self::content`] for `escaped` bytes of text.
    pub fn content_len(&self, escaped: usize) -> usize {
        let tail = if self.include_usage { CONTENT_TAIL_USAGE } else { CONTENT_TAIL };
        self.head.len() + escaped + tail.len()
    }

    fn end_of_choices(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if self.include_usage {
            b"],\"usage\":null}\n\n".as_slice()
        } else {
            b"]}\n\n"
        });
    }
}

fn end_with_usage(usage: &Usage, out: &mut Vec<u8>) {
    out.extend_from_slice(b"],\"usage\":");
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
