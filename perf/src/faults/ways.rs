//! The ways in which an exchange ends: what must come, and what came.
//!
//! A stream is compared event by event with one of the same surface that nothing befell, but for
//! ids and times. What a fault does to it is said here once more, in the words of its documentation
//! and not by the code that does it. The invariant: a byte that does not fit is a wrong end.

use std::borrow::Cow;

use llmsim_engine::faults::{Body, End, Fault, Style};

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surface {
    Chat,
    Completions,
    Responses,
    Messages,
}

/// In which form an answer is asked for.
pub(crate) use crate::target::Form;

impl Surface {
    pub(crate) const ALL: [Self; 4] =
        [Self::Chat, Self::Completions, Self::Responses, Self::Messages];

    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
            Self::Messages => "/v1/messages",
        }
    }

    /// A body; `user` is what tells requests apart, and in no way changes the answer.
    pub(crate) fn body(self, model: &str, user: &str, form: Form, tokens: u32) -> String {
        let is_stream = form == Form::Stream;
        let rest = match self {
            Self::Chat | Self::Messages => {
                let messages = r#""messages":[{"role":"user","content":"Hello"}]"#;
                format!(r#""max_tokens":{tokens},{messages}"#)
            }
            Self::Completions => format!(r#""max_tokens":{tokens},"prompt":"Hello""#),
            // Not stored: thousands of kept responses would look like a leak of a few MiB.
            Self::Responses => {
                format!(r#""max_output_tokens":{tokens},"store":false,"input":"Hello""#)
            }
        };
        let user = match self {
            Self::Messages => format!(r#""metadata":{{"user_id":"{user}"}}"#),
            _ => format!(r#""user":"{user}""#),
        };
        format!(r#"{{"model":"{model}","stream":{is_stream},{user},{rest}}}"#)
    }

    /// What the events begin with that bring a token.
    const fn token(self) -> &'static [u8] {
        match self {
            // Not the role, which is an event of its own before.
            Self::Chat => b"{\"content\":\"",
            Self::Completions => b"\"text\":\"",
            Self::Responses => b"event: response.output_text.delta",
            Self::Messages => b"event: content_block_delta",
        }
    }

    /// What an event says that brings a token: our answers have no quotes in them.
    fn said(self, event: &[u8]) -> &[u8] {
        let key: &[u8] = match self {
            Self::Chat => b"{\"content\":\"",
            Self::Completions | Self::Messages => b"\"text\":\"",
            Self::Responses => b"\"delta\":\"",
        };
        let begin = memchr::memmem::find(event, key).map_or(event.len(), |at| at + key.len());
        let end = memchr::memchr(b'"', &event[begin..]).map_or(event.len(), |at| begin + at);
        &event[begin..end]
    }

    /// Whether an event says why the answer ended.
    fn is_finish(self, event: &[u8]) -> bool {
        match self {
            Self::Chat | Self::Completions => contains(event, b"\"finish_reason\":\""),
            Self::Responses => event.starts_with(b"event: response.incomplete"),
            Self::Messages => event.starts_with(b"event: message_delta"),
        }
    }
}

/// How the connection ended, or that it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is as good as before.
    Kept,
    Closed,
    Reset,
    /// Nothing more comes.
    Silent,
}

/// What came on one connection for one request.
#[derive(Debug)]
pub(crate) struct Seen {
    /// From the status line on.
    pub(crate) bytes: Vec<u8>,
    pub(crate) ending: Ending,
}

/// Answers that nothing befell.
pub(crate) struct Reference {
    surface: Surface,
    events: Vec<Vec<u8>>,
    /// Which event brings the first token.
    first_token: usize,
    /// What each token says.
    texts: Vec<Vec<u8>>,
    whole: Vec<u8>,
}

/// The reference of each model and surface.
pub(crate) struct References(pub(crate) Vec<(bool, Reference)>);

impl References {
    pub(crate) fn of(&self, is_sick: bool, surface: Surface) -> &Reference {
        let is_it = |(sick, reference): &&(bool, Reference)| {
            (*sick, reference.surface) == (is_sick, surface)
        };
        &self.0.iter().find(is_it).expect("there is one for each").1
    }
}

/// One way to end.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    said: Said,
    ending: Ending,
    /// In place of the usual one.
    content_type: Option<String>,
    /// Which rules of the plan have struck then.
    pub(crate) strikes: Vec<usize>,
    /// A fault has answered, or broken the connection, in place of the model.
    pub(crate) is_answered: bool,
    /// Its simulated GPU has crashed, or was down when it came.
    is_lost: bool,
}

/// The status of a request whose simulated GPUs are all down.
const DOWN: u16 = 503;

/// What is said until then.
#[derive(Clone, Debug)]
enum Said {
    Nothing,
    /// An error of that status.
    Error(u16, Body),
    /// The whole answer.
    Whole,
    /// The body, changed.
    Body(BodyChange),
    /// The stream, changed.
    Stream(Change),
}

/// What befalls a body; numbers are tokens before it.
#[derive(Clone, Copy, Debug)]
enum BodyChange {
    /// It ends there, and its length says so or does not.
    Ends(u32, Whole),
    NotJson,
    NotUtf8(u32),
    /// An error in its place, when its job was under way.
    Failed,
}

/// What befalls a stream's events; numbers are tokens before it.
#[derive(Clone, Copy, Debug)]
enum Change {
    None,
    /// The body ends in good order, or in its middle.
    Ends(u32, Whole),
    /// After half an event.
    EndsInside(u32),
    NotJson(u32),
    NotUtf8(u32),
    Twice(u32),
    Missing(u32),
    ErrorAfter(u32, Style),
    /// After any number of tokens.
    Crash,
    NoDone,
    NoFinish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Yes,
    No,
}

impl Expected {
    /// The way of a request that these faults befall.
    pub(crate) fn of(
        before: Option<(&Fault, usize)>,
        stream: Option<(&Fault, usize)>,
        surface: Surface,
        form: Form,
    ) -> Self {
        let said = match form {
            Form::Stream => Said::Stream(Change::None),
            Form::Whole => Said::Whole,
        };
        let mut way = Self {
            said,
            ending: Ending::Kept,
            content_type: None,
            strikes: Vec::new(),
            is_answered: false,
            is_lost: false,
        };
        if let Some((fault, place)) = before {
            way.strikes.push(place);
            way.befall(fault);
        }
        if let (Some((fault, place)), false) = (stream, way.is_answered) {
            way.strikes.push(place);
            match form {
                Form::Stream => way.befall_stream(fault, surface),
                Form::Whole => way.befall_body(fault),
            }
        }
        way
    }

    fn befall_body(&mut self, fault: &Fault) {
        let (change, ending) = match *fault {
            Fault::Stop { after, end } => match end {
                End::Clean => (BodyChange::Ends(after, Whole::Yes), Ending::Kept),
                End::Close => (BodyChange::Ends(after, Whole::No), Ending::Closed),
                End::Reset => (BodyChange::Ends(after, Whole::No), Ending::Reset),
                End::Silence => (BodyChange::Ends(after, Whole::No), Ending::Silent),
            },
            Fault::TruncatedEvent { after } => (BodyChange::Ends(after, Whole::No), Ending::Closed),
            Fault::MalformedJson { .. } => (BodyChange::NotJson, Ending::Kept),
            Fault::InvalidUtf8 { after } => (BodyChange::NotUtf8(after), Ending::Kept),
            Fault::ErrorEvent { .. } => (BodyChange::Failed, Ending::Kept),
            // A stall changes no byte.
            _ => return,
        };
        (self.said, self.ending) = (Said::Body(change), ending);
    }

    /// The way of a request that is refused.
    pub(crate) fn refused<'a>(
        status: u16,
        strikes: impl IntoIterator<Item = (&'a Fault, usize)>,
    ) -> Self {
        let strikes: Vec<(&Fault, usize)> = strikes.into_iter().collect();
        Self {
            said: Said::Error(status, Body::Json),
            ending: Ending::Kept,
            content_type: None,
            strikes: strikes.into_iter().map(|(_, place)| place).collect(),
            is_answered: true,
            is_lost: false,
        }
    }

    /// The way of a request whose simulated GPUs are all down: its engine refuses it.
    pub(crate) fn down() -> Self {
        Self { is_lost: true, ..Self::refused(DOWN, []) }
    }

    /// The ways of a request whose simulated GPU crashes: before the first byte, and in the stream.
    pub(crate) fn crashed(form: Form) -> Vec<Self> {
        let early = Self { is_lost: true, ..Self::refused(500, []) };
        let late = Self { said: Said::Stream(Change::Crash), ..early.clone() };
        match form {
            Form::Stream => vec![early, late],
            Form::Whole => vec![early],
        }
    }

    fn befall(&mut self, fault: &Fault) {
        let error = |status| Some((Said::Error(status, Body::Json), Ending::Kept));
        let instead = match fault {
            Fault::Status(status) => Some((Said::Error(status.status, status.body), Ending::Kept)),
            Fault::QueueFull | Fault::Capacity | Fault::Unready(_) => error(503),
            Fault::Hang(None) => Some((Said::Nothing, Ending::Silent)),
            Fault::Hang(Some(_)) | Fault::Close => Some((Said::Nothing, Ending::Closed)),
            Fault::Reset => Some((Said::Nothing, Ending::Reset)),
            Fault::ContentType(content_type) => {
                self.content_type = Some(content_type.clone());
                None
            }
            _ => None,
        };
        if let Some((said, ending)) = instead {
            (self.said, self.ending, self.is_answered) = (said, ending, true);
        }
    }

    fn befall_stream(&mut self, fault: &Fault, surface: Surface) {
        let (change, ending) = match *fault {
            Fault::Stop { after, end } => match end {
                End::Clean => (Change::Ends(after, Whole::Yes), Ending::Kept),
                End::Close => (Change::Ends(after, Whole::No), Ending::Closed),
                End::Reset => (Change::Ends(after, Whole::No), Ending::Reset),
                End::Silence => (Change::Ends(after, Whole::No), Ending::Silent),
            },
            Fault::MalformedJson { after } => (Change::NotJson(after), Ending::Kept),
            Fault::TruncatedEvent { after } => (Change::EndsInside(after), Ending::Closed),
            Fault::InvalidUtf8 { after } => (Change::NotUtf8(after), Ending::Kept),
            Fault::Duplicate { after } => (Change::Twice(after), Ending::Kept),
            Fault::Drop { after } => (Change::Missing(after), Ending::Kept),
            Fault::ErrorEvent { after, style } => {
                let style = if surface == Surface::Messages { Style::OpenAi } else { style };
                (Change::ErrorAfter(after, style), Ending::Kept)
            }
            Fault::NoDone => (Change::NoDone, Ending::Kept),
            Fault::NoFinish => (Change::NoFinish, Ending::Kept),
            _ => (Change::None, Ending::Kept),
        };
        self.said = Said::Stream(change);
        self.ending = ending;
    }

    /// Whether nothing more is to come after this many events, and nothing says so.
    pub(crate) fn is_silent_after(&self, bytes: usize, events: u32, reference: &Reference) -> bool {
        self.ending == Ending::Silent
            && match self.said {
                Said::Stream(Change::Ends(after, _)) => events == reference.before(after) as u32,
                Said::Body(_) => bytes > 0,
                _ => bytes == 0,
            }
    }

    /// Tokens that are sent in a stream that ends like this and had so many events.
    pub(crate) fn tokens_sent(&self, events: usize, reference: &Reference) -> u64 {
        let Said::Stream(change) = self.said else { return 0 };
        u64::from(match change {
            Change::Ends(after, _) | Change::EndsInside(after) | Change::ErrorAfter(after, _) => {
                after
            }
            Change::Crash => {
                // What is behind the tokens: the error, and `[DONE]` where the surface has one.
                let behind = if reference.surface == Surface::Messages { 1 } else { 2 };
                (events - behind).saturating_sub(reference.first_token) as u32
            }
            _ => reference.tokens(),
        })
    }

    /// How the engine's job ends, as its counter says: in full, cancelled, by an error, not begun.
    pub(crate) fn job(&self) -> Option<&'static str> {
        match self.said {
            _ if self.is_lost => Some("error"),
            Said::Nothing | Said::Error(..) => None,
            Said::Stream(Change::Ends(..) | Change::EndsInside(_) | Change::ErrorAfter(..))
            | Said::Body(BodyChange::Failed) => Some("cancelled"),
            Said::Whole | Said::Body(_) | Said::Stream(_) => Some("length"),
        }
    }

    /// How the delivery of the answer ends, as its counter says.
    pub(crate) fn delivery(&self) -> Option<&'static str> {
        match self.said {
            Said::Body(BodyChange::Ends(..)) => Some("faulted"),
            Said::Error(DOWN, _) if self.is_lost => Some("refused"),
            _ => self.job().map(|job| if job == "length" { "sent" } else { "faulted" }),
        }
    }

    /// Whether this is how it ended; the number of events then.
    ///
    /// # Errors
    /// Where it differs.
    pub(crate) fn check(&self, reference: &Reference, seen: &Seen) -> Result<usize, String> {
        if seen.ending != self.ending {
            return Err(format!("{:?} in place of {:?}", seen.ending, self.ending));
        }
        if matches!(self.said, Said::Nothing) {
            return match seen.bytes.is_empty() {
                true => Ok(0),
                false => Err(format!("{} bytes in place of none", seen.bytes.len())),
            };
        }
        let answer = Answer::read(&seen.bytes)?;
        let status = match self.said {
            Said::Error(status, _) => status,
            Said::Body(BodyChange::Failed) => 500,
            _ => 200,
        };
        if answer.status != status {
            return Err(format!("status {} in place of {status}", answer.status));
        }
        let usual = match &self.said {
            Said::Error(_, Body::Html) => "text/html",
            Said::Error(_, Body::Empty) => "",
            Said::Stream(_) => "text/event-stream; charset=utf-8",
            _ => "application/json",
        };
        let content_type = self.content_type.as_deref().unwrap_or(usual);
        if !usual.is_empty() && answer.content_type != content_type {
            return Err(format!("type {} in place of {content_type}", answer.content_type));
        }
        match &self.said {
            Said::Nothing => Ok(0),
            Said::Error(_, body) => reference.check_error(*body, &answer),
            Said::Body(BodyChange::Failed) => reference.check_error(Body::Json, &answer),
            Said::Body(change) => reference.check_body(*change, &answer),
            Said::Whole => match answer.is_whole && normal(&answer.body) == reference.whole {
                true => Ok(0),
                false => Err(format!("another body {}", text(&answer.body))),
            },
            Said::Stream(change) => reference.check(*change, &answer),
        }
    }
}

impl Reference {
    /// From answers that nothing befell.
    ///
    /// # Errors
    /// They are none.
    pub(crate) fn new(
        surface: Surface,
        tokens: u32,
        stream: &[u8],
        whole: &[u8],
    ) -> Result<Self, String> {
        let [stream, whole] = [stream, whole].map(Answer::read);
        let (stream, whole) = (stream?, whole?);
        if (stream.status, whole.status) != (200, 200) || !stream.is_whole {
            return Err(format!("{surface:?} is not answered: {}", text(&whole.body)));
        }
        let (events, rest) = events(&stream.body);
        let events: Vec<Vec<u8>> = events.into_iter().map(normal).collect();
        let is_token = |event: &Vec<u8>| {
            contains(event, surface.token()) && !contains(event, b"\"finish_reason\":\"")
        };
        let first_token = events.iter().position(is_token).unwrap_or(0);
        let count = events.iter().filter(|event| is_token(event)).count();
        if count != tokens as usize || !rest.is_empty() {
            return Err(format!("{surface:?}: {count} tokens of {tokens} in {}", events.len()));
        }
        let tokens = events.iter().filter(|event| is_token(event));
        let texts = tokens.map(|event| surface.said(event).to_vec()).collect();
        Ok(Self { surface, events, first_token, texts, whole: normal(&whole.body) })
    }

    /// Where in the body the text ends that so many tokens say.
    fn place_after(&self, tokens: u32) -> usize {
        let said = self.texts[..tokens as usize].concat();
        memchr::memmem::find(&self.whole, &said).map_or(0, |at| at + said.len())
    }

    fn check_error(&self, body: Body, answer: &Answer<'_>) -> Result<usize, String> {
        let begin: &[u8] = match (body, self.surface) {
            (Body::Html, _) => b"<html>",
            (Body::Empty, _) => b"",
            (Body::Json, Surface::Messages) => b"{\"type\":\"error\",\"error\":{",
            (Body::Json, _) => b"{\"error\":{\"message\":\"",
        };
        match answer.is_whole && answer.body.starts_with(begin) {
            true => Ok(0),
            false => Err(format!("an error {}", text(&answer.body))),
        }
    }

    fn check_body(&self, change: BodyChange, answer: &Answer<'_>) -> Result<usize, String> {
        let is_cut = matches!(change, BodyChange::Ends(_, Whole::No));
        let got = normal(&answer.body);
        let is_right = match change {
            BodyChange::Ends(after, _) => got == self.whole[..self.place_after(after)],
            BodyChange::NotJson => !is_json(&answer.body) && got.len() + 1 == self.whole.len(),
            BodyChange::NotUtf8(after) => {
                let (before, behind) = self.whole.split_at(self.place_after(after));
                got == [before, &[0xff], behind].concat()
            }
            BodyChange::Failed => false,
        };
        match is_right && answer.is_whole != is_cut {
            true => Ok(0),
            false => Err(format!("{change:?}: a body {}", text(&answer.body))),
        }
    }

    fn tokens(&self) -> u32 {
        self.texts.len() as u32
    }

    /// Events before the one that comes after so many tokens.
    fn before(&self, tokens: u32) -> usize {
        self.first_token + tokens as usize
    }

    /// Whether the events of `answer` are those of the reference after this change.
    fn check(&self, change: Change, answer: &Answer<'_>) -> Result<usize, String> {
        let (got, rest) = events(&answer.body);
        let is_cut = matches!(change, Change::Ends(_, Whole::No) | Change::EndsInside(_));
        if answer.is_whole == is_cut {
            return Err(format!("a body that is {}", if is_cut { "whole" } else { "cut" }));
        }
        let all = 0..self.events.len();
        let same: Vec<usize> = match change {
            Change::None | Change::NotJson(_) | Change::NotUtf8(_) => all.collect(),
            Change::Ends(after, _) | Change::EndsInside(after) | Change::ErrorAfter(after, _) => {
                (0..self.before(after)).collect()
            }
            Change::Crash => {
                let behind = if self.surface == Surface::Messages { 1 } else { 2 };
                let Some(count) = got.len().checked_sub(behind) else {
                    return Err(format!("{} events", got.len()));
                };
                (0..count.min(self.events.len())).collect()
            }
            Change::Twice(after) => {
                let at = self.before(after);
                (0..=at).chain(at..self.events.len()).collect()
            }
            Change::Missing(after) => all.filter(|&at| at != self.before(after)).collect(),
            Change::NoDone => (0..self.events.len() - 1).collect(),
            Change::NoFinish => {
                all.filter(|&at| !self.surface.is_finish(&self.events[at])).collect()
            }
        };
        let changed = match change {
            Change::NotJson(after) | Change::NotUtf8(after) => Some(self.before(after)),
            _ => None,
        };
        for (number, &at) in same.iter().enumerate() {
            let Some(event) = got.get(number) else {
                return Err(format!("{} events in place of {}", got.len(), same.len()));
            };
            let is_right = match (changed == Some(at), change) {
                (true, Change::NotUtf8(_)) => {
                    let valid: Vec<u8> = event.iter().copied().filter(|b| *b != 0xff).collect();
                    std::str::from_utf8(event).is_err() && normal(&valid) == self.events[at]
                }
                (true, _) => !is_json(event) && normal(event).len() + 1 == self.events[at].len(),
                (false, _) => normal(event) == self.events[at],
            };
            if !is_right {
                return Err(format!("event {number} is {}", text(event)));
            }
        }
        let style = match change {
            Change::ErrorAfter(_, style) => Some(style),
            Change::Crash => Some(Style::Vllm),
            _ => None,
        };
        let behind: &[&[u8]] = match (style, self.surface) {
            (None, _) => &[],
            (Some(_), Surface::Messages) => &[b"event: error\ndata: {\"type\":\"error\","],
            (Some(Style::OpenAi), Surface::Responses) => {
                &[b"event: error\ndata: {\"type\":\"error\","]
            }
            (Some(Style::OpenAi), _) => &[b"data: {\"error\":{\"message\":\""],
            (Some(Style::Vllm), _) => &[b"data: {\"error\":{\"message\":\"", b"data: [DONE]"],
        };
        let tail = &got[same.len().min(got.len())..];
        let fits = tail.iter().zip(behind).all(|(event, begin)| event.starts_with(begin));
        if tail.len() != behind.len() || !fits {
            return Err(format!("{} events behind {}", tail.len(), same.len()));
        }
        let half = if let Change::EndsInside(after) = change {
            Some(&self.events[self.before(after)][..6])
        } else {
            None
        };
        match half {
            Some(begin) if rest.starts_with(begin) => {}
            None if rest.is_empty() => {}
            _ => return Err(format!("at the end {}", text(rest))),
        }
        Ok(got.len())
    }
}

/// A response taken apart.
struct Answer<'a> {
    status: u16,
    content_type: String,
    body: Cow<'a, [u8]>,
    /// The body came to its end.
    is_whole: bool,
}

impl<'a> Answer<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut head = httparse::Response::new(&mut headers);
        let length = match head.parse(bytes) {
            Ok(httparse::Status::Complete(length)) => length,
            _ => return Err(format!("no head in {} bytes", bytes.len())),
        };
        let header = |name: &str| {
            let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        let rest = &bytes[length..];
        let (body, is_whole) = match header("content-length") {
            Some(length) => (Cow::Borrowed(rest), length.parse() == Ok(rest.len())),
            None => {
                let (body, is_whole) = unchunked(rest)?;
                (Cow::Owned(body), is_whole)
            }
        };
        let content_type = header("content-type").unwrap_or_default();
        Ok(Self { status: head.code.unwrap_or(0), content_type, body, is_whole })
    }
}

/// The bytes of a chunked body, and whether it came to its end.
fn unchunked(mut bytes: &[u8]) -> Result<(Vec<u8>, bool), String> {
    let mut body = Vec::with_capacity(bytes.len());
    while !bytes.is_empty() {
        let Some(line) = memchr::memmem::find(bytes, b"\r\n") else { return Ok((body, false)) };
        let size = std::str::from_utf8(&bytes[..line]).ok();
        let Some(size) = size.and_then(|size| usize::from_str_radix(size, 16).ok()) else {
            return Err(format!("a chunk's size is {}", text(&bytes[..line])));
        };
        let rest = &bytes[line + 2..];
        if size == 0 {
            return if rest == b"\r\n" { Ok((body, true)) } else { Err("bytes behind".into()) };
        }
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        if rest.len() < size + 2 {
            return Ok((body, false));
        }
        bytes = &rest[size + 2..];
    }
    Ok((body, false))
}

/// The events of a stream, without the empty lines between them, and what is behind the last.
fn events(body: &[u8]) -> (Vec<&[u8]>, &[u8]) {
    let (mut events, mut from) = (Vec::new(), 0);
    for at in memchr::memmem::find_iter(body, b"\n\n") {
        events.push(&body[from..at]);
        from = at + 2;
    }
    (events, &body[from..])
}

/// An answer without what is different in each: ids, the user, times.
fn normal(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut from) = (Vec::with_capacity(bytes.len()), 0);
    for colon in memchr::memmem::find_iter(bytes, b"\":") {
        if colon < from {
            continue;
        }
        let (key, value) = (&bytes[..colon], colon + 2);
        let is_text = bytes.get(value) == Some(&b'"');
        let ends = |words: &[&[u8]]| words.iter().any(|word| key.ends_with(word));
        let end = if is_text && ends(&[b"id", b"user"]) {
            let rest = &bytes[value + 1..];
            value + 1 + memchr::memchr(b'"', rest).unwrap_or(rest.len())
        } else if ends(&[b"\"created", b"ed_at"]) {
            let digits = bytes[value..].iter().take_while(|byte| byte.is_ascii_digit());
            value + digits.count()
        } else {
            continue;
        };
        // With both quotes of a text.
        out.extend_from_slice(&bytes[from..value + usize::from(is_text)]);
        from = end;
    }
    out.extend_from_slice(&bytes[from..]);
    out
}

fn is_json(event: &[u8]) -> bool {
    let data = memchr::memmem::find(event, b"data: ").map_or(event, |at| &event[at + 6..]);
    sonic_rs::from_slice::<sonic_rs::Value>(data).is_ok()
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    memchr::memmem::find(bytes, words).is_some()
}

/// The beginning of what came, for a person.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned();
    format!("`{}`", text.escape_debug())
}

#[cfg(test)]
mod tests {
    use llmsim_engine::faults;

    use super::*;

    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                        transfer-encoding: chunked\r\n\r\n";

    fn stream(id: &str, events: &[&str], end: &str) -> Vec<u8> {
        let mut bytes = HEAD.to_owned();
        for event in events {
            let event = format!("data: {}\n\n", event.replace('#', id));
            bytes.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
        }
        (bytes + end).into_bytes()
    }

    const ROLE: &str = r##"{"id":"#","created":1,"delta":{"role":"assistant","content":""}}"##;
    const ONE: &str = r##"{"id":"#","created":1,"delta":{"content":"a"}}"##;
    const TWO: &str = r##"{"id":"#","created":1,"delta":{"content":"b"}}"##;
    const FINISH: &str = r##"{"id":"#","created":1,"delta":{},"finish_reason":"length"}"##;
    const DONE: &str = "[DONE]";
    const LAST: &str = "0\r\n\r\n";

    fn check(words: &str, events: &[&str], end: &str, ending: Ending) -> Result<usize, String> {
        let plain = stream("x1", &[ROLE, ONE, TWO, FINISH, DONE], LAST);
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        let reference = Reference::new(Surface::Chat, 2, &plain, whole).unwrap();
        let rules = faults::parse(words).unwrap();
        let fault = rules.first().map(|rule| (&rule.fault, 0));
        let way = Expected::of(None, fault, Surface::Chat, Form::Stream);
        let seen = Seen { bytes: stream("x22", events, end), ending };
        way.check(&reference, &seen)
    }

    #[test]
    fn a_stream_must_end_in_its_own_way_and_in_no_other() {
        let broken = &TWO[..TWO.len() - 1];
        let error = r#"{"error":{"message":"On purpose."}}"#;
        let kept = Ending::Kept;
        let ways: [(&str, &[&str], &str, Ending); 9] = [
            ("", &[ROLE, ONE, TWO, FINISH, DONE], LAST, kept),
            ("stop=1 end=clean", &[ROLE, ONE], LAST, kept),
            ("stop=1 end=close", &[ROLE, ONE], "", Ending::Closed),
            ("stop=1 end=reset", &[ROLE, ONE], "", Ending::Reset),
            ("malformed_json after=1", &[ROLE, ONE, broken, FINISH, DONE], LAST, kept),
            ("duplicate after=1", &[ROLE, ONE, TWO, TWO, FINISH, DONE], LAST, kept),
            ("drop after=1", &[ROLE, ONE, FINISH, DONE], LAST, kept),
            ("error_event=vllm after=1", &[ROLE, ONE, error, DONE], LAST, kept),
            ("no_finish", &[ROLE, ONE, TWO, DONE], LAST, kept),
        ];
        for (words, ..) in ways {
            for (other, events, end, ending) in ways {
                let checked = check(words, events, end, ending);
                assert_eq!(checked.is_ok(), words == other, "{words} and {other}: {checked:?}");
            }
        }
    }

    #[test]
    fn half_an_event_is_neither_none_nor_a_whole_one() {
        let end = |rest: &str| check("truncated_event after=1", &[ROLE, ONE], rest, Ending::Closed);
        assert_eq!(end("40\r\ndata: {\"id\":"), Ok(2));
        assert!(end("").is_err());
        assert!(end(LAST).is_err());
    }

    #[test]
    fn ids_and_times_are_what_may_differ() {
        let one = br#"{"id":"a","item_id":"b","created_at":12,"model":"m"}"#;
        assert_eq!(normal(one), br#"{"id":"","item_id":"","created_at":,"model":"m"}"#);
    }
}
