//! The `usage` object: how many tokens went in and came out.
//!
//! The invariant: `cached_tokens` and `reasoning_tokens` are always integers, as on OpenAI; vLLM
//! sends null for them unless told otherwise, and clients that add them up fail.

use super::push_decimal;
use crate::units::Tokens;

/// The token counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, cached ones included.
    pub prompt: Tokens,
    /// Prompt tokens that the prefix cache had.
    pub cached: Tokens,
    /// Tokens of the answer, reasoning included.
    pub completion: Tokens,
    /// Answer tokens that were reasoning.
    pub reasoning: Tokens,
}

impl Usage {
    /// Appends the object.
    pub fn write(&self, out: &mut Vec<u8>) {
        let total = u64::from(self.prompt.get()) + u64::from(self.completion.get());
        let count = |tokens: Tokens| u64::from(tokens.get());
        for (before, number) in [
            ("{\"prompt_tokens\":", count(self.prompt)),
            (",\"completion_tokens\":", count(self.completion)),
            (",\"total_tokens\":", total),
            (",\"prompt_tokens_details\":{\"cached_tokens\":", count(self.cached)),
            (
                ",\"audio_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":",
                count(self.reasoning),
            ),
        ] {
            out.extend_from_slice(before.as_bytes());
            push_decimal(out, number);
        }
        out.extend_from_slice(
            b",\"audio_tokens\":0,\"accepted_prediction_tokens\":0,\
              \"rejected_prediction_tokens\":0}}",
        );
    }
}

/// Why an answer ended, as the wire says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The answer was complete.
    Stop,
    /// A limit was reached.
    Length,
    /// The model calls a tool.
    ToolCalls,
    /// The answer was withheld.
    ContentFilter,
}

impl FinishReason {
    /// As it stands in `finish_reason`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}
