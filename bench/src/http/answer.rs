//! Reading one HTTP/1.1 answer from bytes that arrive in any pieces.
//!
//! Pure and incremental: cutting the input anywhere gives the same result. The head is bounded;
//! bodies are handed on in pieces as they come and never gathered here.

/// A head longer than this is not a head.
const MOST_HEAD: usize = 64 * 1024;
const MOST_HEADERS: usize = 128;
/// More interim answers (100 Continue, 103 Early Hints) than any server has to say.
const MOST_INTERIM: u8 = 16;
/// More bytes of chunked coding in one go, between data or after it, are nobody's extension or
/// trailer.
const MOST_FRAMING: usize = MOST_HEAD;

/// What the head of an answer says, as far as a client cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the connection may be used again.
    pub keep_alive: bool,
    /// `content-type`, in lower case.
    pub content_type: String,
    /// `retry-after`, as sent.
    pub retry_after: Option<String>,
    /// `content-encoding` in lower case, unless it is `identity`.
    pub encoding: Option<String>,
    /// `location`, as sent.
    pub location: Option<String>,
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// By chunked coding.
    Chunked,
    /// By its length.
    Length(u64),
    /// By closing the connection.
    Close,
}

/// Why bytes are not an HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

/// Reads one answer: feed it what arrives.
#[derive(Debug)]
pub struct Reader {
    head_bytes: Vec<u8>,
    head: Option<Head>,
    body: Body,
    /// Interim answers so far.
    interim: u8,
    /// Bytes of chunked coding since the last data.
    framing: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Body {
    Waiting,
    Sized { left: u64 },
    Open,
    Chunked(Chunked),
    Done,
}

#[derive(Debug, PartialEq, Eq)]
enum Chunked {
    /// Reading the hexadecimal size; whether a digit was seen.
    Size {
        size: u64,
        any: bool,
    },
    /// Skipping an extension up to the line's end.
    Extension {
        size: u64,
    },
    /// After the size line's CR.
    SizeLf {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// In the trailer: whether the current line has anything on it.
    Trailer {
        empty: bool,
    },
    TrailerLf {
        empty: bool,
    },
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// Expects the first byte of an answer.
    pub const fn new() -> Self {
        Self { head_bytes: Vec::new(), head: None, body: Body::Waiting, interim: 0, framing: 0 }
    }

    /// Takes `bytes`, hands each piece of the body to `piece`, and tells how many bytes belonged to
    /// this answer (all of them unless it is [`Self::done`]).
    ///
    /// # Errors
    /// [`Malformed`]; the connection is of no use any more.
    pub fn feed(&mut self, bytes: &[u8], mut piece: impl FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut used = 0;
        if self.head.is_none() {
            used = self.feed_head(bytes)?;
            if self.head.is_none() {
                return Ok(used);
            }
        }
        while used < bytes.len() && self.body != Body::Done {
            used += self.feed_body(&bytes[used..], &mut piece)?;
        }
        Ok(used)
    }

    /// The head, once it is complete.
    pub const fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// True once the body is complete.
    pub fn done(&self) -> bool {
        self.body == Body::Done
    }

    /// True if nothing has arrived yet.
    pub const fn untouched(&self) -> bool {
        self.head.is_none() && self.head_bytes.is_empty()
    }

    /// The connection was closed: true if that is a proper end of this answer.
    pub fn close(&mut self) -> bool {
        if self.body == Body::Open {
            self.body = Body::Done;
        }
        self.done()
    }

    /// Takes bytes up to the end of the head and no further; tells how many. For callers that must
    /// know the head before they see a piece of the body; [`Self::feed`] does both.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn feed_head(&mut self, bytes: &[u8]) -> Result<usize, Malformed> {
        if self.head.is_some() {
            return Ok(0);
        }
        let before = self.head_bytes.len();
        // The end may straddle what came before and what comes now.
        let from = before.saturating_sub(3);
        self.head_bytes.extend_from_slice(bytes);
        expect_http(&self.head_bytes)?;
        let Some(end) = end_of_head(&self.head_bytes, from) else {
            if self.head_bytes.len() > MOST_HEAD {
                return Err(Malformed(format!("no end of the head in {MOST_HEAD} bytes")));
            }
            return Ok(bytes.len());
        };
        let head = parse_head(&self.head_bytes[..end])?;
        let used = end - before;
        self.head_bytes.clear();
        // An interim answer (100 Continue, 103 Early Hints) is followed by the real one.
        if (100..200).contains(&head.status) && head.status != 101 {
            self.interim += 1;
            if self.interim > MOST_INTERIM {
                return Err(Malformed(format!("head: more than {MOST_INTERIM} interim answers")));
            }
            return Ok(used + self.feed_head(&bytes[used..])?);
        }
        self.body = match head.framing {
            _ if head.status == 204 || head.status == 304 => Body::Done,
            Framing::Chunked => Body::Chunked(Chunked::Size { size: 0, any: false }),
            Framing::Length(0) => Body::Done,
            Framing::Length(left) => Body::Sized { left },
            Framing::Close => Body::Open,
        };
        self.head = Some(head);
        Ok(used)
    }

    fn feed_body(
        &mut self,
        bytes: &[u8],
        piece: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Malformed> {
        match &mut self.body {
            Body::Waiting | Body::Done => Ok(0),
            Body::Open => {
                piece(bytes);
                Ok(bytes.len())
            }
            Body::Sized { left } => {
                let n = take(bytes, *left);
                piece(&bytes[..n]);
                *left -= n as u64;
                if *left == 0 {
                    self.body = Body::Done;
                }
                Ok(n)
            }
            Body::Chunked(state) => {
                if let Chunked::Data { left } = state {
                    let n = take(bytes, *left);
                    piece(&bytes[..n]);
                    *left -= n as u64;
                    if *left == 0 {
                        *state = Chunked::DataCr;
                    }
                    return Ok(n);
                }
                if let Some((size, used)) = state.whole_line(bytes) {
                    self.framing = 0;
                    *state = Chunked::Data { left: size };
                    return Ok(used);
                }
                self.framing += 1;
                if self.framing > MOST_FRAMING {
                    return Err(Malformed(format!(
                        "chunked coding: an extension or trailer of more than {MOST_FRAMING} bytes"
                    )));
                }
                match state.step(bytes[0])? {
                    Some(next) => {
                        if matches!(next, Chunked::Data { .. }) {
                            self.framing = 0;
                        }
                        *state = next;
                    }
                    None => self.body = Body::Done,
                }
                Ok(1)
            }
        }
    }
}

impl Chunked {
    /// The usual framing between the data of two chunks, in one look: the end of the last one, a
    /// size of a few digits, no extension. Tells the size and how many bytes that was; `None` where
    /// it must be read byte by byte.
    fn whole_line(&self, bytes: &[u8]) -> Option<(u64, usize)> {
        /// No overflow, and no server sends more at once.
        const MOST_DIGITS: usize = 8;
        let skipped = match self {
            Self::Size { any: false, .. } => 0,
            Self::DataCr if bytes.starts_with(b"\r\n") => 2,
            _ => return None,
        };
        let line = &bytes[skipped..];
        let mut size = 0;
        for (place, &byte) in line.iter().enumerate().take(MOST_DIGITS + 1) {
            match char::from(byte).to_digit(16) {
                Some(digit) => size = size << 4 | u64::from(digit),
                None => {
                    let ends = size > 0 && line[place..].starts_with(b"\r\n");
                    return ends.then_some((size, skipped + place + 2));
                }
            }
        }
        None
    }

    /// The state after one byte of framing; `None` at the end of the body.
    fn step(&self, byte: u8) -> Result<Option<Self>, Malformed> {
        let wrong = |what: &str| Err(Malformed(format!("chunked coding: {what} {byte:#04x}")));
        Ok(Some(match *self {
            Self::Size { size, any } => match (byte, char::from(byte).to_digit(16)) {
                (_, Some(digit)) => match size.checked_mul(16) {
                    Some(size) => Self::Size { size: size | u64::from(digit), any: true },
                    None => return wrong("size too large at"),
                },
                (b'\r', _) if any => Self::SizeLf { size },
                (b'\n', _) if any => Self::after_size(size),
                (b';' | b' ' | b'\t', _) if any => Self::Extension { size },
                _ => return wrong("no size but"),
            },
            Self::Extension { size } => match byte {
                b'\r' => Self::SizeLf { size },
                b'\n' => Self::after_size(size),
                _ => Self::Extension { size },
            },
            Self::SizeLf { size } if byte == b'\n' => Self::after_size(size),
            Self::SizeLf { .. } => return wrong("no line feed after a size but"),
            Self::DataCr if byte == b'\r' => Self::DataLf,
            Self::DataCr | Self::DataLf if byte == b'\n' => Self::Size { size: 0, any: false },
            Self::DataCr | Self::DataLf => return wrong("no line end after a chunk but"),
            Self::Trailer { empty } => match byte {
                b'\r' => Self::TrailerLf { empty },
                b'\n' if empty => return Ok(None),
                b'\n' => Self::Trailer { empty: true },
                _ => Self::Trailer { empty: false },
            },
            Self::TrailerLf { empty } => match byte {
                b'\n' if empty => return Ok(None),
                b'\n' => Self::Trailer { empty: true },
                _ => return wrong("no line feed in the trailer but"),
            },
            Self::Data { .. } => unreachable!("data is taken in one piece"),
        }))
    }

    const fn after_size(size: u64) -> Self {
        if size == 0 { Self::Trailer { empty: true } } else { Self::Data { left: size } }
    }
}

/// Behind the blank line that ends a head, which begins at `from` or later. A lone line feed ends a
/// line too (RFC 9112, section 2.2).
fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at + 1).find_map(|next| {
        let rest = &bytes[next..];
        let blank = [b"\n".as_slice(), b"\r\n"].into_iter().find(|end| rest.starts_with(end))?;
        Some(next + blank.len())
    })
}

fn take(bytes: &[u8], left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())
}

/// Refuses what is no beginning of an answer as soon as it shows: a peer that speaks another
/// protocol may never send the blank line that ends a head.
fn expect_http(bytes: &[u8]) -> Result<(), Malformed> {
    const BEGIN: &[u8] = b"HTTP/1.";
    /// A TLS record: an alert or a handshake.
    const TLS: [&[u8]; 2] = [b"\x15\x03", b"\x16\x03"];
    let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let bytes = &bytes[start..];
    let known = bytes.len().min(BEGIN.len());
    if bytes[..known] == BEGIN[..known] {
        return Ok(());
    }
    if TLS.iter().any(|tls| bytes.starts_with(tls)) {
        return Err(Malformed("head: TLS, not HTTP: is the target https?".into()));
    }
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
    Err(Malformed(format!("head: no HTTP/1 answer but '{}'", shown.escape_debug())))
}

fn parse_head(bytes: &[u8]) -> Result<Head, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let complete = response.parse(bytes).map_err(|error| Malformed(format!("head: {error}")))?;
    let (true, Some(status)) = (complete.is_complete(), response.code) else {
        return Err(Malformed("head: incomplete".into()));
    };
    let mut head = Head {
        status,
        framing: Framing::Close,
        keep_alive: response.version == Some(1),
        content_type: String::new(),
        retry_after: None,
        encoding: None,
        location: None,
    };
    let mut length = None;
    let mut chunked = false;
    for header in response.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        if is("content-length") {
            let parsed = value.trim().parse::<u64>().ok();
            if parsed.is_none() || length.is_some_and(|known| Some(known) != parsed) {
                return Err(Malformed(format!("head: content-length '{value}'")));
            }
            length = parsed;
        } else if is("transfer-encoding") {
            chunked = value.trim().to_ascii_lowercase().ends_with("chunked");
            if !chunked {
                return Err(Malformed(format!("head: transfer-encoding '{value}'")));
            }
        } else if is("connection") {
            for word in value.split(',').map(str::trim) {
                if word.eq_ignore_ascii_case("close") {
                    head.keep_alive = false;
                } else if word.eq_ignore_ascii_case("keep-alive") {
                    head.keep_alive = true;
                }
            }
        } else if is("content-type") {
            head.content_type = value.to_ascii_lowercase();
        } else if is("retry-after") {
            head.retry_after = Some(value.into_owned());
        } else if is("location") {
            head.location = Some(value.into_owned());
        } else if is("content-encoding") {
            let encoding = value.trim().to_ascii_lowercase();
            head.encoding = (!matches!(&*encoding, "" | "identity")).then_some(encoding);
        }
    }
    head.framing = match (chunked, length) {
        (true, _) => Framing::Chunked,
        (false, Some(length)) => Framing::Length(length),
        (false, None) => Framing::Close,
    };
    head.keep_alive &= head.framing != Framing::Close;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `parts` one after the other; gives the body and whether the answer is complete.
    fn read(parts: &[&[u8]]) -> Result<(Option<Head>, Vec<u8>, bool), Malformed> {
        let mut reader = Reader::new();
        let mut body = Vec::new();
        for part in parts {
            let used = reader.feed(part, |piece| body.extend_from_slice(piece))?;
            assert!(used == part.len() || reader.done(), "bytes left over before the end");
        }
        Ok((reader.head().cloned(), body, reader.done()))
    }

    /// Whole, and cut in two at every byte, and byte by byte.
    fn check(answer: &str, body: &str) -> Head {
        let bytes = answer.as_bytes();
        let whole = read(&[bytes]).expect("well-formed");
        assert_eq!((String::from_utf8_lossy(&whole.1).as_ref(), whole.2), (body, true), "{answer}");
        for cut in 1..bytes.len() {
            assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]).as_ref(), Ok(&whole), "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single).as_ref(), Ok(&whole));
        whole.0.expect("a head")
    }

    #[test]
    fn a_chunked_body_with_extensions_and_trailers() {
        let head = check(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: Text/Event-Stream\r\n\r\n\
             5\r\nhello\r\n6;a=b\r\n world\r\n0\r\nx-sum: 1\r\n\r\n",
            "hello world",
        );
        assert_eq!((head.status, head.keep_alive), (200, true));
        assert_eq!(head.content_type, "text/event-stream");
    }

    #[test]
    fn a_body_of_known_length() {
        let head = check(
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\nRetry-After: 2\r\n\
             connection: close\r\n\r\nslow",
            "slow",
        );
        assert_eq!((head.status, head.keep_alive), (429, false));
        assert_eq!(head.retry_after.as_deref(), Some("2"));
    }

    #[test]
    fn lone_line_feeds_end_lines_too() {
        let head = check("HTTP/1.1 200 OK\ncontent-length: 2\n\nok", "ok");
        assert_eq!(head.status, 200);
        check("HTTP/1.1 200 OK\ncontent-length: 2\r\n\r\nok", "ok");
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\n\nok", "ok");
    }

    #[test]
    fn where_it_sends_one_on_and_how_it_is_packed_is_kept() {
        let head = check(
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://other/v1\r\n\
             Content-Encoding: GZIP\r\nContent-Length: 0\r\n\r\n",
            "",
        );
        assert_eq!(head.location.as_deref(), Some("http://other/v1"));
        assert_eq!(head.encoding.as_deref(), Some("gzip"));
        let plain =
            check("HTTP/1.1 200 OK\r\ncontent-encoding: identity\r\ncontent-length: 0\r\n\r\n", "");
        assert_eq!((plain.encoding, plain.location), (None, None));
    }

    #[test]
    fn an_interim_answer_is_skipped() {
        let head = check(
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
            "ok",
        );
        assert_eq!(head.status, 200);
    }

    #[test]
    fn what_never_comes_to_the_point_is_refused() {
        const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let refused = |start: &str, endless: &str| {
            let bytes = start.to_owned() + &endless.repeat(70_000 / endless.len());
            read(&[bytes.as_bytes()]).expect_err("no end").0
        };
        assert!(refused("", "HTTP/1.1 100 Continue\r\n\r\n").contains("16 interim"));
        assert!(refused(&format!("{CHUNKED}5;"), "e").contains("extension or trailer"));
        assert!(refused(&format!("{CHUNKED}0\r\n"), "x-t: a\r\n").contains("extension or trailer"));
        // Many chunks, each with a short extension, are none of that.
        let many = format!("{CHUNKED}{}0\r\n\r\n", "1;a=b\r\nx\r\n".repeat(20_000));
        assert_eq!(read(&[many.as_bytes()]).map(|read| read.1.len()), Ok(20_000));
    }

    #[test]
    fn a_body_without_a_length_ends_when_the_connection_does() {
        let mut reader = Reader::new();
        let mut body = Vec::new();
        reader
            .feed(b"HTTP/1.0 200 OK\r\n\r\nabc", |piece| body.extend_from_slice(piece))
            .expect("well-formed");
        assert!(!reader.done());
        assert!(reader.close(), "closing is its proper end");
        assert_eq!(body, b"abc");
        assert!(!reader.head().expect("a head").keep_alive);
    }

    #[test]
    fn a_closed_connection_inside_a_sized_body_is_no_end() {
        let mut reader = Reader::new();
        reader.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", |_| {}).expect("so far");
        assert!(!reader.close());
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for answer in [
            "SSH-2.0-OpenSSH\r\n\r\n",
            // No blank line ever comes.
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/2 200\r\n",
            "\x15\x03\x01\x00\x02",
            "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        ] {
            assert!(read(&[answer.as_bytes()]).is_err(), "{answer}");
        }
        assert!(read(&[&vec![b'a'; 70_000]]).is_err(), "endless head");
    }
}
