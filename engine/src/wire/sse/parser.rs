//! An incremental parser of `text/event-stream`, after the WHATWG standard (HTML, section 9.2).

use memchr::{memchr, memchr2};

/// Reads events out of a stream that arrives in pieces. Fields may end in LF, CRLF or CR, and the
/// pieces may be cut anywhere.
///
/// Memory is bounded: one event may take as many bytes as the limit says, then [`TooLong`] ends the
/// stream.
#[derive(Debug)]
pub struct SseParser {
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// The data of the event being read, lines joined by LF.
    data: Vec<u8>,
    /// Whether it has any data line: an empty one counts.
    has_data: bool,
    event: Vec<u8>,
    id: Vec<u8>,
    retry_ms: Option<u64>,
    limit: usize,
    /// The last byte was CR: an LF that follows belongs to it.
    after_cr: bool,
    /// No line has ended yet: a byte order mark may stand before it.
    at_start: bool,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// The `event:` field; empty means `message`.
    pub event: &'a [u8],
    /// All `data:` fields, joined by LF.
    pub data: &'a [u8],
    /// The last `id:` field of the stream so far; empty if there was none.
    pub id: &'a [u8],
}

/// An event is longer than the parser's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// The limit in bytes.
    pub limit: usize,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an event of the stream is longer than {} bytes", self.limit)
    }
}

impl std::error::Error for TooLong {}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl SseParser {
    /// A parser at the start of a stream, of which no event may be longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            event: Vec::new(),
            id: Vec::new(),
            retry_ms: None,
            limit,
            after_cr: false,
            at_start: true,
        }
    }

    /// Takes the next piece of the stream and hands each event that it completes to `on_event`.
    ///
    /// # Errors
    /// [`TooLong`], after which the stream is lost: where the next event begins is unknown.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut on_event: impl FnMut(SseEvent<'_>),
    ) -> Result<(), TooLong> {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        // The usual event is one data line and a blank one in the same read: it is handed over
        // without being copied.
        let mut whole: Option<&[u8]> = None;
        while let Some(end) = memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end..]);
            bytes = match rest {
                [b'\r', b'\n', after @ ..] => after,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                _ => &rest[1..],
            };
            if self.line.is_empty() {
                self.take_line(line, &mut whole, &mut on_event)?;
            } else {
                self.check(self.line.len() + line.len())?;
                self.line.extend_from_slice(line);
                let joined = std::mem::take(&mut self.line);
                self.take_cut_line(&joined, &mut whole, &mut on_event)?;
                self.line = joined;
                self.line.clear();
            }
        }
        if let Some(first) = whole {
            self.append_data(first)?;
        }
        self.check(self.line.len() + bytes.len())?;
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Whether the stream, if it ended here, would have lost an event that had begun.
    pub fn is_mid_event(&self) -> bool {
        !self.line.is_empty() || self.has_data || !self.event.is_empty()
    }

    /// The last `retry:` field, in milliseconds.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// A line that had to be joined: what it says must be copied, since the joint is reused.
    fn take_cut_line(
        &mut self,
        line: &[u8],
        whole: &mut Option<&[u8]>,
        on_event: &mut impl FnMut(SseEvent<'_>),
    ) -> Result<(), TooLong> {
        if let Some(first) = whole.take() {
            self.append_data(first)?;
        }
        let mut own = None;
        self.take_line(line, &mut own, on_event)?;
        match own {
            Some(data) => self.append_data(data),
            None => Ok(()),
        }
    }

    fn take_line<'a>(
        &mut self,
        mut line: &'a [u8],
        whole: &mut Option<&'a [u8]>,
        on_event: &mut impl FnMut(SseEvent<'_>),
    ) -> Result<(), TooLong> {
        self.check(line.len())?;
        if self.at_start {
            self.at_start = false;
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            self.dispatch(whole.take(), on_event);
            return Ok(());
        }
        let (name, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &[][..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match name {
            b"data" if !self.has_data && whole.is_none() => *whole = Some(value),
            b"data" => {
                if let Some(first) = whole.take() {
                    self.append_data(first)?;
                }
                self.append_data(value)?;
            }
            b"event" => {
                self.event.clear();
                self.event.extend_from_slice(value);
            }
            b"id" if memchr(0, value).is_none() => {
                self.id.clear();
                self.id.extend_from_slice(value);
            }
            b"retry" => self.retry_ms = digits(value).or(self.retry_ms),
            // A comment (no name), or a field that the standard does not know.
            _ => {}
        }
        Ok(())
    }

    fn append_data(&mut self, value: &[u8]) -> Result<(), TooLong> {
        self.check(self.data.len() + value.len() + 1)?;
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
        Ok(())
    }

    fn dispatch(&mut self, whole: Option<&[u8]>, on_event: &mut impl FnMut(SseEvent<'_>)) {
        let data = match whole {
            Some(data) => Some(data),
            None => self.has_data.then_some(self.data.as_slice()),
        };
        if let Some(data) = data {
            on_event(SseEvent { event: &self.event, data, id: &self.id });
        }
        self.data.clear();
        self.has_data = false;
        self.event.clear();
    }

    fn check(&self, len: usize) -> Result<(), TooLong> {
        if len > self.limit { Err(TooLong { limit: self.limit }) } else { Ok(()) }
    }
}

fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}
