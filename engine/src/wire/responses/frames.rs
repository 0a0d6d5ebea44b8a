//! A response on the wire: typed events of a stream, or one body.
//!
//! Each part of an answer is an item of `output`. Events are numbered without gaps; so that any of
//! them can be rendered again, an item knows the number of its first event, and the number of a
//! token's event follows from its place. The invariant: [`Item::delta`], the event of every token,
//! copies and nothing else.

use std::io::Write as _;

use crate::wire::json::{push_optional_string, push_string};
use crate::wire::push_decimal;
use crate::wire::usage::Usage;

const INFALLIBLE: &str = "writing to memory cannot fail";

/// What all of a response's objects say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// `{"id":...,"status":"`.
    before_status: Box<[u8]>,
    /// The request's settings, each with a comma before.
    echo: Box<[u8]>,
}

/// How a response ended, or that it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is being made.
    InProgress,
    /// It was complete.
    Completed,
    /// It was cut off.
    Incomplete(Cut),
}

/// What cut a response off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A limit on output tokens was reached.
    MaxOutputTokens,
    /// What follows was withheld.
    ContentFilter,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete(_) => "incomplete",
        }
    }
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind<'a> {
    /// What is said.
    Text,
    /// Why nothing is said.
    Refusal,
    /// What was thought.
    Reasoning(Thought),
    /// A call of a tool.
    Call {
        /// `call_...`.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
}

/// In which form what was thought is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thought {
    /// As a summary: OpenAI's, if the client asks for one.
    Summary,
    /// As it is: that of open models.
    Text,
}

/// What an item says in the end.
#[derive(Clone, Copy)]
pub struct Content<'a> {
    /// Appends its text as JSON string content, without quotes.
    pub text: &'a dyn Fn(&mut Vec<u8>),
    /// Appends the scores of a text's tokens, separated by commas: often nothing.
    pub logprobs: &'a dyn Fn(&mut Vec<u8>),
}

impl Content<'_> {
    /// Nothing yet.
    pub const NONE: Content<'static> = Content { text: &|_| {}, logprobs: &|_| {} };
}

/// Events before the first item's: `response.created` and `response.in_progress`.
pub const FIRST_SEQUENCE: u32 = 2;

/// An item of the output, and the events that tell of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// `msg_...`, `fc_...` or `rs_...`.
    id: Box<str>,
    index: usize,
    form: Form,
    /// The number of its first event.
    first: u32,
    /// A delta's event up to its text, with the event's name.
    delta: Box<[u8]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Refusal,
    Reasoning(Thought),
    Call { id: Box<str>, name: Box<str> },
}

impl ResponseHead {
    /// Renders what the objects of one response share; the id begins with `resp_`, and `echo` is
    /// that of the request.
    pub fn new(id: &str, created: u64, model: &str, echo: &[u8]) -> Self {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(b"{\"id\":");
        push_string(&mut out, id);
        write!(out, ",\"object\":\"response\",\"created_at\":{created},\"model\":")
            .expect(INFALLIBLE);
        push_string(&mut out, model);
        out.extend_from_slice(b",\"background\":false,\"error\":null,\"status\":\"");
        Self { before_status: out.into(), echo: echo.into() }
    }

    /// Bytes of an object without its output.
    pub fn size(&self) -> usize {
        self.before_status.len() + self.echo.len()
    }

    /// Appends the first two events.
    pub fn start(&self, out: &mut Vec<u8>) {
        for (sequence, kind) in [(0, "response.created"), (1, "response.in_progress")] {
            open_event(kind, out);
            out.extend_from_slice(b",\"response\":");
            self.object(Status::InProgress, |_| {}, None, out);
            close_event(sequence, out);
        }
    }

    /// Appends the last event. `items` appends the output, separated by commas.
    pub fn end(
        &self,
        status: Status,
        sequence: u32,
        items: impl FnOnce(&mut Vec<u8>),
        usage: &Usage,
        out: &mut Vec<u8>,
    ) {
        open_event(
            match status {
                Status::Incomplete(_) => "response.incomplete",
                _ => "response.completed",
            },
            out,
        );
        out.extend_from_slice(b",\"response\":");
        self.object(status, items, Some(usage), out);
        close_event(sequence, out);
    }

    /// Appends the response itself: also the body of an answer that is not a stream.
    pub fn object(
        &self,
        status: Status,
        items: impl FnOnce(&mut Vec<u8>),
        usage: Option<&Usage>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&self.before_status);
        out.extend_from_slice(status.as_str().as_bytes());
        out.extend_from_slice(b"\",\"incomplete_details\":");
        out.extend_from_slice(match status {
            Status::Incomplete(Cut::MaxOutputTokens) => {
                b"{\"reason\":\"max_output_tokens\"}".as_slice()
            }
            Status::Incomplete(Cut::ContentFilter) => b"{\"reason\":\"content_filter\"}",
            _ => b"null",
        });
        out.extend_from_slice(&self.echo);
        out.extend_from_slice(b",\"output\":[");
        items(out);
        out.extend_from_slice(b"],\"usage\":");
        match usage {
            Some(usage) => write_usage(usage, out),
            None => out.extend_from_slice(b"null"),
        }
        out.push(b'}');
    }
}

impl Item {
    /// The item at `index` of the output of the response with the id `resp_<suffix>`; its first
    /// event has the number `first`.
    pub fn new(suffix: &str, index: usize, kind: ItemKind<'_>, first: u32) -> Self {
        let prefix = match kind {
            ItemKind::Text | ItemKind::Refusal => "msg",
            ItemKind::Reasoning(_) => "rs",
            ItemKind::Call { .. } => "fc",
        };
        let form = match kind {
            ItemKind::Text => Form::Text,
            ItemKind::Refusal => Form::Refusal,
            ItemKind::Reasoning(thought) => Form::Reasoning(thought),
            ItemKind::Call { id, name } => Form::Call { id: id.into(), name: name.into() },
        };
        let id = format!("{prefix}_{suffix}_{index}").into();
        let mut item = Self { id, index, form, first, delta: Box::default() };
        let mut delta = Vec::with_capacity(192);
        open_event(item.names().delta, &mut delta);
        item.place(&mut delta);
        delta.extend_from_slice(b",\"delta\":\"");
        item.delta = delta.into();
        item
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Events that open it.
    pub fn opening(&self) -> u32 {
        if self.is_call() { 1 } else { 2 }
    }

    /// Events that close it.
    fn closing(&self) -> u32 {
        if self.is_call() { 2 } else { 3 }
    }

    /// The number of the event that comes after so many of its deltas.
    pub fn after_deltas(&self, deltas: u32) -> u32 {
        self.first + self.opening() + deltas
    }

    /// The number of the first event after it, if it has so many deltas.
    pub fn after(&self, deltas: u32) -> u32 {
        self.after_deltas(deltas) + self.closing()
    }

    /// Appends the events that open it.
    pub fn open(&self, out: &mut Vec<u8>) {
        open_event("response.output_item.added", out);
        write!(out, ",\"output_index\":{},\"item\":", self.index).expect(INFALLIBLE);
        self.object(None, Content::NONE, out);
        close_event(self.first, out);
        if self.is_call() {
            return;
        }
        open_event(self.names().part_added, out);
        self.place(out);
        out.extend_from_slice(b",\"part\":");
        self.part(Content::NONE, out);
        close_event(self.first + 1, out);
    }

    /// Appends the event of its delta `k`, counted from 0. `escaped` is the text as JSON string
    /// content, without quotes.
    pub fn delta(&self, k: u32, escaped: &[u8], out: &mut Vec<u8>) {
        self.delta_with(k, escaped, |_| {}, out);
    }

    /// The same; of a text, `logprobs` appends the scores, separated by commas.
    pub fn delta_with(
        &self,
        k: u32,
        escaped: &[u8],
        logprobs: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&self.delta);
        out.extend_from_slice(escaped);
        out.push(b'"');
        if self.form == Form::Text {
            out.extend_from_slice(b",\"logprobs\":[");
            logprobs(out);
            out.push(b']');
        }
        close_event(self.first + self.opening() + k, out);
    }

    /// Appends the events that close it after so many deltas.
    pub fn close(&self, deltas: u32, status: Status, content: Content<'_>, out: &mut Vec<u8>) {
        let sequence = self.after_deltas(deltas);
        let names = self.names();
        open_event(names.done, out);
        self.place(out);
        if let Form::Call { name, .. } = &self.form {
            out.extend_from_slice(b",\"name\":");
            push_string(out, name);
        }
        out.extend_from_slice(b",\"");
        out.extend_from_slice(names.member.as_bytes());
        out.extend_from_slice(b"\":\"");
        (content.text)(out);
        out.push(b'"');
        if self.form == Form::Text {
            out.extend_from_slice(b",\"logprobs\":[");
            (content.logprobs)(out);
            out.push(b']');
        }
        close_event(sequence, out);
        if !self.is_call() {
            open_event(names.part_done, out);
            self.place(out);
            out.extend_from_slice(b",\"part\":");
            self.part(content, out);
            close_event(sequence + 1, out);
        }
        open_event("response.output_item.done", out);
        write!(out, ",\"output_index\":{},\"item\":", self.index).expect(INFALLIBLE);
        self.object(Some(status), content, out);
        close_event(sequence + self.closing() - 1, out);
    }

    /// Appends the item itself; without a status, as it is when it begins.
    pub fn object(&self, status: Option<Status>, content: Content<'_>, out: &mut Vec<u8>) {
        let status_word = status.unwrap_or(Status::InProgress).as_str();
        out.extend_from_slice(b"{\"id\":");
        push_string(out, &self.id);
        match &self.form {
            Form::Text | Form::Refusal => {
                write!(
                    out,
                    ",\"type\":\"message\",\"status\":\"{status_word}\",\"role\":\"assistant\",\
                     \"content\":["
                )
                .expect(INFALLIBLE);
                if status.is_some() {
                    self.part(content, out);
                }
                out.push(b']');
            }
            Form::Reasoning(thought) => {
                out.extend_from_slice(b",\"type\":\"reasoning\",\"summary\":[");
                if status.is_some() && *thought == Thought::Summary {
                    self.part(content, out);
                }
                out.extend_from_slice(b"],\"content\":[");
                if status.is_some() && *thought == Thought::Text {
                    self.part(content, out);
                }
                write!(out, "],\"encrypted_content\":null,\"status\":\"{status_word}\"")
                    .expect(INFALLIBLE);
            }
            Form::Call { id, name } => {
                out.extend_from_slice(b",\"type\":\"function_call\",\"call_id\":");
                push_string(out, id);
                out.extend_from_slice(b",\"name\":");
                push_string(out, name);
                out.extend_from_slice(b",\"arguments\":\"");
                (content.text)(out);
                write!(out, "\",\"status\":\"{status_word}\"").expect(INFALLIBLE);
            }
        }
        out.push(b'}');
    }

    /// The part of its content, with its text.
    fn part(&self, content: Content<'_>, out: &mut Vec<u8>) {
        let before: &[u8] = match &self.form {
            Form::Text => b"{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[",
            Form::Refusal => b"{\"type\":\"refusal\",\"refusal\":\"",
            Form::Reasoning(Thought::Summary) => b"{\"type\":\"summary_text\",\"text\":\"",
            Form::Reasoning(Thought::Text) => b"{\"type\":\"reasoning_text\",\"text\":\"",
            Form::Call { .. } => unreachable!("calls have no parts"),
        };
        out.extend_from_slice(before);
        if self.form == Form::Text {
            (content.logprobs)(out);
            out.extend_from_slice(b"],\"text\":\"");
        }
        (content.text)(out);
        out.extend_from_slice(b"\"}");
    }

    /// Where it stands.
    fn place(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b",\"item_id\":");
        push_string(out, &self.id);
        write!(out, ",\"output_index\":{}", self.index).expect(INFALLIBLE);
        match &self.form {
            Form::Call { .. } => {}
            Form::Reasoning(Thought::Summary) => out.extend_from_slice(b",\"summary_index\":0"),
            _ => out.extend_from_slice(b",\"content_index\":0"),
        }
    }

    fn is_call(&self) -> bool {
        matches!(self.form, Form::Call { .. })
    }

    fn names(&self) -> Names {
        match &self.form {
            Form::Text => Names {
                part_added: "response.content_part.added",
                delta: "response.output_text.delta",
                done: "response.output_text.done",
                part_done: "response.content_part.done",
                member: "text",
            },
            Form::Refusal => Names {
                part_added: "response.content_part.added",
                delta: "response.refusal.delta",
                done: "response.refusal.done",
                part_done: "response.content_part.done",
                member: "refusal",
            },
            Form::Reasoning(Thought::Summary) => Names {
                part_added: "response.reasoning_summary_part.added",
                delta: "response.reasoning_summary_text.delta",
                done: "response.reasoning_summary_text.done",
                part_done: "response.reasoning_summary_part.done",
                member: "text",
            },
            Form::Reasoning(Thought::Text) => Names {
                part_added: "response.content_part.added",
                delta: "response.reasoning_text.delta",
                done: "response.reasoning_text.done",
                part_done: "response.content_part.done",
                member: "text",
            },
            Form::Call { .. } => Names {
                part_added: "",
                delta: "response.function_call_arguments.delta",
                done: "response.function_call_arguments.done",
                part_done: "",
                member: "arguments",
            },
        }
    }
}

/// The names of an item's events, and of the member that holds its text.
struct Names {
    part_added: &'static str,
    delta: &'static str,
    done: &'static str,
    part_done: &'static str,
    member: &'static str,
}

/// Appends a page of a list: items as JSON, with their ids.
pub fn write_list<'a>(
    items: impl Iterator<Item = (&'a str, &'a [u8])> + Clone,
    has_more: bool,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    for (at, (_, item)) in items.clone().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item);
    }
    out.extend_from_slice(b"],\"first_id\":");
    push_optional_string(out, items.clone().next().map(|(id, _)| id));
    out.extend_from_slice(b",\"last_id\":");
    push_optional_string(out, items.last().map(|(id, _)| id));
    write!(out, ",\"has_more\":{has_more}}}").expect(INFALLIBLE);
}

/// Appends the answer of `DELETE /v1/responses/{id}`.
pub fn write_deleted(id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    push_string(out, id);
    out.extend_from_slice(b",\"object\":\"response\",\"deleted\":true}");
}

/// Appends an `error` event in the middle of a stream.
pub fn write_error(error: &crate::wire::error::ApiError, sequence: u32, out: &mut Vec<u8>) {
    open_event("error", out);
    out.extend_from_slice(b",\"code\":");
    push_string(out, error.code.unwrap_or(error.kind));
    out.extend_from_slice(b",\"message\":");
    push_string(out, &error.message);
    out.extend_from_slice(b",\"param\":");
    push_optional_string(out, error.param.as_deref());
    close_event(sequence, out);
}

fn open_event(kind: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\ndata: {\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.push(b'"');
}

fn close_event(sequence: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"sequence_number\":");
    push_decimal(out, sequence.into());
    out.extend_from_slice(b"}\n\n");
}

fn write_usage(usage: &Usage, out: &mut Vec<u8>) {
    let total = u64::from(usage.prompt.get()) + u64::from(usage.completion.get());
    write!(
        out,
        "{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{},\
         \"cache_write_tokens\":0}},\"output_tokens\":{},\"output_tokens_details\":{{\"reasoning_tokens\":{}}},\
         \"total_tokens\":{total}}}",
        usage.prompt, usage.cached, usage.completion, usage.reasoning
    )
    .expect(INFALLIBLE);
}
