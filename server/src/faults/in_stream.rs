//! A fault inside an answer: where it is, and what it does to the bytes.
//!
//! In a stream two kinds: those that change the bytes of a unit, and those that are a *gate*, beyond which the
//! table of generations sends nothing until the connection, which then owns the socket, has done
//! what the fault says. A body has neither units nor gates: what befalls it does so when it is put
//! together. The invariant: what a fault does to a unit depends on the unit alone, so
//! that it is the same bytes whenever it is rendered.

use llmsim_engine::faults::{Fault, Rule, Style};
use llmsim_engine::units::SimSpan;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::{messages, responses, sse};

/// The fault of one generation.
#[derive(Debug)]
pub(crate) struct InStream {
    /// For the stream or the body; `None` if only the stream's head is slow.
    pub(crate) rule: Option<Rule>,
    /// For logs and metrics.
    pub(crate) model: String,
    /// The head of the response is to take this long.
    pub(crate) slow_head: Option<SimSpan>,
    gate: Gate,
}

/// Where nothing more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nowhere.
    Open,
    /// Before the head of the response.
    Head,
    /// After so many tokens of the first lane.
    After(u32),
}

/// Which unit of a lane is being rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Opening,
    /// A token, from 0.
    Token(u32),
    End,
}

impl InStream {
    pub(crate) fn new(rule: Option<Rule>, slow_head: Option<SimSpan>, model: String) -> Self {
        let gate = match slow_head {
            Some(_) => Gate::Head,
            None => gate_of(rule.as_ref()),
        };
        Self { rule, model, slow_head, gate }
    }

    pub(crate) fn holds_head(&self) -> bool {
        self.gate == Gate::Head
    }

    /// Tokens of the first lane that may be sent; `None`: all.
    pub(crate) fn most_tokens(&self) -> Option<u32> {
        match self.gate {
            Gate::After(tokens) => Some(tokens),
            Gate::Open | Gate::Head => None,
        }
    }

    /// The fault at the gate has done its work; says whether another gate is behind it.
    pub(crate) fn open_gate(&mut self) {
        self.gate = match self.gate {
            Gate::Head => gate_of(self.rule.as_ref()),
            Gate::Open | Gate::After(_) => Gate::Open,
        };
    }

    fn fault(&self) -> Option<&Fault> {
        self.rule.as_ref().map(|rule| &rule.fault)
    }

    /// Leaves out of a lane's end, whose events begin at `start`, the one that says why it ended, if
    /// the fault says so. Where events have names it is one of them; else it is all there is.
    pub(crate) fn transform_finish(&self, start: usize, bytes: &mut Vec<u8>) {
        if !matches!(self.fault(), Some(Fault::NoFinish)) {
            return;
        }
        let names: [&[u8]; 3] = [
            b"event: message_delta\n",
            b"event: response.completed\n",
            b"event: response.incomplete\n",
        ];
        let end = bytes.split_off(start);
        let mut rest = &end[..];
        while let Some(at) = rest.windows(2).position(|two| two == b"\n\n") {
            let (event, others) = rest.split_at(at + 2);
            let says_why =
                !event.starts_with(b"event: ") || names.iter().any(|name| event.starts_with(name));
            if !says_why {
                bytes.extend_from_slice(event);
            }
            rest = others;
        }
    }

    /// Whether it is one that changes bytes, and has, after so many tokens of the first lane.
    pub(crate) fn has_struck(&self, tokens: u32, is_over: bool) -> bool {
        match self.fault() {
            Some(
                Fault::MalformedJson { after }
                | Fault::InvalidUtf8 { after }
                | Fault::Duplicate { after }
                | Fault::Drop { after },
            ) => tokens > *after,
            Some(Fault::NoDone | Fault::NoFinish) => is_over,
            _ => false,
        }
    }

    /// After how many tokens of the first lane it befalls a body, if it does that when the body is
    /// put together.
    pub(crate) fn cuts_body(&self) -> Option<u32> {
        let fault = self.fault().filter(|fault| fault.fits_a_body())?;
        if matches!(fault, Fault::ErrorEvent { .. }) { None } else { fault.after() }
    }

    /// Whether a body that it befalls does not come whole.
    pub(crate) fn breaks_body_off(&self) -> bool {
        let is_cut =
            matches!(self.fault(), Some(Fault::Stop { .. } | Fault::TruncatedEvent { .. }));
        is_cut && self.cuts_body().is_some()
    }

    /// Whether an answer in one body fails when it has so many tokens of the first lane.
    pub(crate) fn fails_body(&self, tokens: u32) -> bool {
        matches!(self.fault(), Some(Fault::ErrorEvent { after, .. }) if tokens > *after)
    }

    /// Does to the bytes of a unit of the first lane, which begin at `start`, what the fault says.
    pub(crate) fn transform(&self, unit: Unit, start: usize, bytes: &mut Vec<u8>) {
        let Unit::Token(token) = unit else { return };
        match self.fault() {
            Some(Fault::MalformedJson { after }) if *after == token => malform(start, bytes),
            Some(Fault::InvalidUtf8 { after }) if *after == token => {
                let at = inside_a_string(&bytes[start..]);
                bytes.insert(start + at, 0xff);
            }
            Some(Fault::Duplicate { after }) if *after == token => {
                bytes.extend_from_within(start..);
            }
            Some(Fault::Drop { after }) if *after == token => bytes.truncate(start),
            _ => {}
        }
    }

    /// Leaves the last event of the stream out, if the fault says so.
    pub(crate) fn transform_end(&self, start: usize, bytes: &mut Vec<u8>) {
        if !matches!(self.fault(), Some(Fault::NoDone)) {
            return;
        }
        let events = bytes[start..].strip_suffix(b"\n\n").unwrap_or_default();
        let before = events.windows(2).rposition(|two| two == b"\n\n").map_or(0, |at| at + 2);
        bytes.truncate(start + before);
    }
}

fn gate_of(rule: Option<&Rule>) -> Gate {
    match rule.map(|rule| &rule.fault) {
        Some(
            Fault::Stop { after, .. }
            | Fault::Stall { after, .. }
            | Fault::TruncatedEvent { after }
            | Fault::ErrorEvent { after, .. },
        ) => Gate::After(*after),
        _ => Gate::Open,
    }
}

/// Takes the last brace away.
pub(crate) fn malform(start: usize, bytes: &mut Vec<u8>) {
    if let Some(at) = bytes[start..].iter().rposition(|&byte| byte == b'}') {
        bytes.remove(start + at);
    }
}

/// A place in the text of an event, or at least in one of its strings.
fn inside_a_string(event: &[u8]) -> usize {
    let texts: [&[u8]; 5] =
        [b"\"content\":\"", b"\"text\":\"", b"\"delta\":\"", b"\"arguments\":\"", b":\""];
    let find = |text: &[u8]| event.windows(text.len()).position(|window| window == text);
    texts.iter().find_map(|text| find(text).map(|at| at + text.len())).unwrap_or(0)
}

/// How an error is told in mid-stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Voice<'a> {
    /// In the form of OpenAI's API.
    OpenAis(Style),
    /// In the form of OpenAI's Responses API, with the event's number; as vLLM as on its other APIs.
    Responses(Style, u32),
    /// In the form of Anthropic's, with the request's id.
    Anthropics(&'a str),
}

/// An error event in mid-stream, and what follows it.
pub(crate) fn error_event(voice: Voice<'_>, error: &ApiError, out: &mut Vec<u8>) {
    let style = match voice {
        Voice::Responses(Style::OpenAi, sequence) => {
            responses::frames::write_error(error, sequence, out);
            return;
        }
        Voice::OpenAis(style) | Voice::Responses(style, _) => style,
        Voice::Anthropics(request) => {
            out.extend_from_slice(b"event: error\ndata: ");
            messages::error::write(error, request, out);
            out.extend_from_slice(b"\n\n");
            return;
        }
    };
    match style {
        Style::OpenAi => sse::write_error(error, out),
        Style::Vllm => {
            // vLLM's `create_streaming_error_response`: the class for a type, the status as code.
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(&error.vllm_body());
            out.extend_from_slice(b"\n\n");
            out.extend_from_slice(sse::DONE);
        }
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::faults;

    use super::*;

    const EVENT: &[u8] = b"data: {\"id\":\"x\",\"delta\":{\"content\":\"Hi\"}}\n\n";

    fn changed(words: &str, unit: Unit) -> Vec<u8> {
        let rule = faults::parse(words).unwrap().remove(0);
        let fault = InStream::new(Some(rule), None, String::new());
        let mut bytes = [b"before", EVENT].concat();
        fault.transform(unit, 6, &mut bytes);
        fault.transform(unit, 6, &mut bytes.clone());
        assert_eq!(&bytes[..6], b"before");
        bytes.split_off(6)
    }

    #[test]
    fn a_unit_is_changed_and_no_other() {
        let changed_at_3 = |words| changed(words, Unit::Token(3));
        assert_eq!(
            changed_at_3("malformed_json after=3"),
            b"data: {\"id\":\"x\",\"delta\":{\"content\":\"Hi\"}\n\n"
        );
        assert_eq!(
            changed_at_3("invalid_utf8 after=3"),
            b"data: {\"id\":\"x\",\"delta\":{\"content\":\"\xffHi\"}}\n\n"
        );
        assert_eq!(changed_at_3("duplicate after=3"), [EVENT, EVENT].concat());
        assert_eq!(changed_at_3("drop after=3"), b"");
        for words in ["malformed_json after=3", "drop after=3"] {
            assert_eq!(changed(words, Unit::Token(2)), EVENT);
            assert_eq!(changed(words, Unit::End), EVENT);
        }
    }

    #[test]
    fn the_event_that_says_why_it_ended_is_left_out() {
        let rule = faults::parse("no_finish").unwrap().remove(0);
        let fault = InStream::new(Some(rule), None, String::new());
        let left = |end: &[u8]| {
            let mut bytes = [b"before", end].concat();
            fault.transform_finish(6, &mut bytes);
            String::from_utf8(bytes.split_off(6)).unwrap()
        };
        assert_eq!(left(b"data: {\"finish_reason\":\"stop\"}\n\n"), "");
        let stop = "event: content_block_stop\ndata: {}\n\n";
        let delta = "event: message_delta\ndata: {}\n\n";
        let last = "event: message_stop\ndata: {}\n\n";
        assert_eq!(left([stop, delta, last].concat().as_bytes()), [stop, last].concat());
        let done = "event: response.output_item.done\ndata: {}\n\n";
        let completed = "event: response.completed\ndata: {}\n\n";
        assert_eq!(left([done, completed].concat().as_bytes()), done);
    }

    #[test]
    fn the_last_event_is_left_out() {
        let rule = faults::parse("no_done").unwrap().remove(0);
        let fault = InStream::new(Some(rule), None, String::new());
        let mut bytes = b"before\n\ndata: {}\n\ndata: [DONE]\n\n".to_vec();
        fault.transform_end(8, &mut bytes);
        assert_eq!(bytes, b"before\n\ndata: {}\n\n");
        let mut alone = b"x\n\ndata: [DONE]\n\n".to_vec();
        fault.transform_end(3, &mut alone);
        assert_eq!(alone, b"x\n\n");
    }
}
