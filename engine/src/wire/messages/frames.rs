//! An answer of `POST /v1/messages` on the wire: named events of a stream, or one body.
//!
//! Content is a list of blocks, one for each part of the answer. The invariant: each function
//! appends whole events, and [`delta`], the one for every token, copies and nothing else.

use std::io::Write as _;

use crate::escape;
use crate::wire::json::{push_optional_string, push_string};
use crate::wire::push_decimal;
use crate::wire::usage::Usage;

const INFALLIBLE: &str = "writing to memory cannot fail";

/// A block of content, empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// What is said.
    Text,
    /// What is thought before.
    Thinking,
    /// A call of a tool.
    ToolUse {
        /// The id of the call as chats have it, `call_...`; here it begins with `toolu_`.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason<'a> {
    /// It was complete.
    EndTurn,
    /// A limit was reached.
    MaxTokens,
    /// This text came.
    StopSequence(&'a str),
    /// Tools are to be called.
    ToolUse,
    /// The answer was refused.
    Refusal,
}

impl StopReason<'_> {
    /// As it stands in `stop_reason`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence(_) => "stop_sequence",
            Self::ToolUse => "tool_use",
            Self::Refusal => "refusal",
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write!(out, "\"stop_reason\":\"{}\",\"stop_sequence\":", self.as_str()).expect(INFALLIBLE);
        let text = match self {
            Self::StopSequence(text) => Some(*text),
            _ => None,
        };
        push_optional_string(out, text);
    }
}

/// Appends the first event. What of the prompt was cached is known only later, and told at the end.
pub fn start(id: &str, model: &str, input: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    head(id, model, out);
    out.extend_from_slice(b"\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    let counts = Usage { prompt: crate::units::Tokens::new(input), ..Usage::default() };
    usage(&counts, out);
    out.extend_from_slice(b"}}\n\n");
}

/// Appends the event that opens the block at `index`.
pub fn open(index: usize, block: Block<'_>, out: &mut Vec<u8>) {
    write!(
        out,
        "event: content_block_start\ndata: {{\"type\":\"content_block_start\",\"index\":{index},\
         \"content_block\":"
    )
    .expect(INFALLIBLE);
    match block {
        Block::Text => out.extend_from_slice(b"{\"type\":\"text\",\"text\":\"\"}"),
        Block::Thinking => {
            out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
        }
        Block::ToolUse { id, name } => {
            tool_use(id, name, out);
            out.extend_from_slice(b"{}}");
        }
    }
    out.extend_from_slice(b"}\n\n");
}

/// Appends the event of one token. `escaped` is its text as JSON string content, without quotes.
pub fn delta(index: usize, block: Block<'_>, escaped: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":",
    );
    push_decimal(out, index as u64);
    out.extend_from_slice(match block {
        Block::Text => b",\"delta\":{\"type\":\"text_delta\",\"text\":\"".as_slice(),
        Block::Thinking => b",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"",
        Block::ToolUse { .. } => b",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"",
    });
    out.extend_from_slice(escaped);
    out.extend_from_slice(b"\"}}\n\n");
}

/// Appends what closes the block at `index`; thinking is signed before.
pub fn close(index: usize, block: Block<'_>, out: &mut Vec<u8>) {
    if block == Block::Thinking {
        write!(
            out,
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":\
             {index},\"delta\":{{\"type\":\"signature_delta\",\"signature\":\"{SIGNATURE}\"}}}}\n\n"
        )
        .expect(INFALLIBLE);
    }
    write!(
        out,
        "event: content_block_stop\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
    )
    .expect(INFALLIBLE);
}

/// A stand-in for the signature of what was thought; nothing is checked when it comes back.
const SIGNATURE: &str = "c2ltdWxhdGVk";

/// Appends a sign of life, which may come at any time.
pub fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

/// Appends the last two events.
pub fn end(reason: StopReason<'_>, counts: &Usage, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    reason.write(out);
    out.extend_from_slice(b"},\"usage\":");
    usage(counts, out);
    out.extend_from_slice(b"}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

/// An answer that is not a stream, written block by block.
#[derive(Debug)]
pub struct MessageBody<'o> {
    out: &'o mut Vec<u8>,
    blocks: usize,
}

impl<'o> MessageBody<'o> {
    /// Begins the body.
    pub fn open(id: &str, model: &str, out: &'o mut Vec<u8>) -> Self {
        head(id, model, out);
        out.extend_from_slice(b"\"content\":[");
        Self { out, blocks: 0 }
    }

    /// Appends a block. `content` appends JSON string content without quotes for text and thinking,
    /// a JSON object for the input of a tool.
    pub fn block(&mut self, block: Block<'_>, content: impl FnOnce(&mut Vec<u8>)) {
        if self.blocks > 0 {
            self.out.push(b',');
        }
        self.blocks += 1;
        match block {
            Block::Text => self.out.extend_from_slice(b"{\"type\":\"text\",\"text\":\""),
            Block::Thinking => {
                self.out.extend_from_slice(b"{\"type\":\"thinking\",\"thinking\":\"");
            }
            Block::ToolUse { id, name } => tool_use(id, name, self.out),
        }
        content(self.out);
        match block {
            Block::Text => self.out.extend_from_slice(b"\"}"),
            Block::Thinking => {
                write!(self.out, "\",\"signature\":\"{SIGNATURE}\"}}").expect(INFALLIBLE)
            }
            Block::ToolUse { .. } => self.out.push(b'}'),
        }
    }

    /// Ends the body.
    pub fn close(self, reason: StopReason<'_>, counts: &Usage) {
        self.out.extend_from_slice(b"],");
        reason.write(self.out);
        self.out.extend_from_slice(b",\"usage\":");
        usage(counts, self.out);
        self.out.push(b'}');
    }
}

/// Appends the answer of `/v1/messages/count_tokens`.
pub fn count(input: u32, out: &mut Vec<u8>) {
    write!(out, "{{\"input_tokens\":{input}}}").expect(INFALLIBLE);
}

fn head(id: &str, model: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    push_string(out, id);
    out.extend_from_slice(b",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    push_string(out, model);
    out.push(b',');
}

/// Up to the value of `input`.
fn tool_use(id: &str, name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"tool_use\",\"id\":\"toolu_");
    escape::json_string_content(id.strip_prefix("call_").unwrap_or(id), out);
    out.push(b'"');
    out.extend_from_slice(b",\"name\":");
    push_string(out, name);
    out.extend_from_slice(b",\"input\":");
}

/// `input_tokens` are those that the cache did not have.
fn usage(counts: &Usage, out: &mut Vec<u8>) {
    let fresh = counts.prompt.get().saturating_sub(counts.cached.get());
    write!(
        out,
        "{{\"input_tokens\":{fresh},\"cache_creation_input_tokens\":0,\
         \"cache_read_input_tokens\":{},\"output_tokens\":{},\"service_tier\":\"standard\"}}",
        counts.cached, counts.completion
    )
    .expect(INFALLIBLE);
}
