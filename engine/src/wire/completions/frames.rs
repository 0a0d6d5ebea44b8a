//! A text completion on the wire: chunks of a stream, or one body.
//!
//! A choice is appended in three steps, [`TextFrames::open`], its text, [`TextFrames::close`], so
//! that an echoed prompt and an answer can be put together without a copy between them.

use std::io::Write as _;

use crate::wire::json::push_string;
use crate::wire::push_decimal;
use crate::wire::sse::{End, StreamHead};
use crate::wire::usage::Usage;

const INFALLIBLE: &str = "writing to memory cannot fail";

/// The name of chunks and bodies alike.
const OBJECT: &str = "text_completion";

/// A stream's frames: what they share is rendered once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFrames {
    /// `data: {"id":...,"choices":[` and, from `choices_len` on, the beginning of a choice.
    head: Box<[u8]>,
    choices_len: usize,
    include_usage: bool,
}

const TEXT: &[u8] = b"{\"text\":\"";

impl TextFrames {
    /// Renders what the frames of one stream share; the id begins with `cmpl-`.
    pub fn new(head: &StreamHead<'_>) -> Self {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"data: ");
        write_head(head.id, head.created, head.model, head.fingerprint, &mut out);
        let choices_len = out.len();
        out.extend_from_slice(TEXT);
        Self { head: out.into_boxed_slice(), choices_len, include_usage: head.include_usage }
    }

    /// Begins a frame. Its text follows as JSON string content, without quotes.
    pub fn open(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head);
    }

    /// Ends a frame behind its text. `logprobs` appends a value, and may append members.
    pub fn close(
        &self,
        choice: u32,
        logprobs: impl FnOnce(&mut Vec<u8>),
        end: &End<'_>,
        out: &mut Vec<u8>,
    ) {
        close_choice(choice, logprobs, end, out);
        match end.usage {
            Some(usage) => end_with_usage(usage, out),
            None if self.include_usage => out.extend_from_slice(b"],\"usage\":null}\n\n"),
            None => out.extend_from_slice(b"]}\n\n"),
        }
    }

    /// Appends the usage frame: no choices. Only for streams that asked for it.
    pub fn usage(&self, usage: &Usage, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head[..self.choices_len]);
        end_with_usage(usage, out);
    }
}

fn end_with_usage(usage: &Usage, out: &mut Vec<u8>) {
    out.extend_from_slice(b"],\"usage\":");
    usage.write(out);
    out.extend_from_slice(b"}\n\n");
}

fn write_head(id: &str, created: u64, model: &str, fingerprint: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    push_string(out, id);
    write!(out, ",\"object\":\"{OBJECT}\",\"created\":{created},\"model\":").expect(INFALLIBLE);
    push_string(out, model);
    out.extend_from_slice(b",\"system_fingerprint\":");
    push_string(out, fingerprint);
    out.extend_from_slice(b",\"choices\":[");
}

fn close_choice(
    choice: u32,
    logprobs: impl FnOnce(&mut Vec<u8>),
    end: &End<'_>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"\",\"index\":");
    push_decimal(out, choice.into());
    out.extend_from_slice(b",\"logprobs\":");
    logprobs(out);
    end.write_reasons(out);
    out.push(b'}');
}

/// An answer that is not a stream, written choice by choice.
#[derive(Debug)]
pub struct TextBody<'o> {
    out: &'o mut Vec<u8>,
    choices: u32,
}

impl<'o> TextBody<'o> {
    /// Begins the body.
    pub fn open(head: &StreamHead<'_>, out: &'o mut Vec<u8>) -> Self {
        write_head(head.id, head.created, head.model, head.fingerprint, out);
        Self { out, choices: 0 }
    }

    /// Appends the next choice. `text` appends JSON string content, without quotes; `logprobs` a
    /// value, and maybe members.
    pub fn choice(
        &mut self,
        text: impl FnOnce(&mut Vec<u8>),
        logprobs: impl FnOnce(&mut Vec<u8>),
        end: &End<'_>,
    ) {
        if self.choices > 0 {
            self.out.push(b',');
        }
        self.out.extend_from_slice(TEXT);
        text(self.out);
        close_choice(self.choices, logprobs, end, self.out);
        self.choices += 1;
    }

    /// Ends the body.
    pub fn close(self, usage: &Usage) {
        self.out.extend_from_slice(b"],\"usage\":");
        usage.write(self.out);
        self.out.push(b'}');
    }
}
