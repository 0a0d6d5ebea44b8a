//! From bytes to the head of a request.
//!
//! `monoio-http`'s decoder does the parsing, behind a guard that makes its faults unreachable: it
//! sets no limit on the size of a head, panics on a header name over 64 KiB, and accepts what lets
//! two servers disagree on where a request ends (both framings at once, repeated lengths, bare line
//! feeds, no or two hosts). The invariant: the decoder sees only complete heads of at most
//! [`MAX_HEAD`] bytes whose lines all end in CR LF.

use std::fmt;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use http::{HeaderMap, Method, Uri, Version};
use memchr::memchr2;
use monoio_codec::{Decoded, Decoder};
use monoio_http::h1::codec::decoder::{DecodeError, RequestHeadDecoder};

/// The most bytes that a request line and headers may have together.
pub(crate) const MAX_HEAD: usize = 16 * 1024;

/// The most headers; the decoder's own bound.
const MAX_HEADERS: usize = 96;

/// The head of a request, with its framing settled.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: Headers,
    /// Whether the client speaks HTTP/1.0, which knows no chunks.
    pub(crate) is_http10: bool,
    /// Whether the connection may serve another request afterwards.
    pub(crate) keep_alive: bool,
    pub(crate) framing: Framing,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub(crate) expects_continue: bool,
}

/// How the body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// So many bytes, often none.
    Length(u64),
    /// Chunks, then trailers.
    Chunked,
}

/// Why a head cannot be served. The connection ends after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHead {
    pub(crate) status: u16,
    pub(crate) message: &'static str,
}

impl fmt::Display for BadHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

const fn bad(message: &'static str) -> BadHead {
    BadHead { status: 400, message }
}

/// The headers of a request. There are some twenty at most, and a few are asked for, of which most were
/// not sent: those are known by `marks`, and the others are looked for one by one, since to hash a name
/// takes longer.
#[derive(Debug)]
pub(crate) struct Headers {
    map: HeaderMap,
    /// The [`mark`] of each name, so that one which is missing was not sent.
    marks: u64,
}

/// One bit for a name, whatever its case: its length and its first letter tell most names apart.
fn mark(name: &str) -> u64 {
    let first = name.bytes().next().unwrap_or_default();
    // Upper and lower case differ in a bit above these five.
    1 << ((name.len() + 7 * usize::from(first & 0x1f)) % 64)
}

impl Headers {
    fn new(map: HeaderMap) -> Self {
        let marks = map.keys().fold(0, |marks, name| marks | mark(name.as_str()));
        Self { map, marks }
    }

    /// The value of the first header of that name, in whatever case.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).next()
    }

    /// The same as text, if it is plain: visible ASCII, spaces and tabs.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t');
        let value = self.get(name).filter(|value| value.iter().all(is_plain))?;
        std::str::from_utf8(value).ok()
    }

    /// The values of all headers of that name, in their order.
    fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let is_it = move |(known, _): &(&http::HeaderName, _)| {
            known.as_str().len() == name.len() && known.as_str().eq_ignore_ascii_case(name)
        };
        let headers = (self.marks & mark(name) != 0).then(|| self.map.iter());
        headers.into_iter().flatten().filter(is_it).map(|(_, value)| value.as_bytes())
    }

    /// The value of the header of that name; `repeated` if there is more than one.
    fn only(&self, name: &str, repeated: &'static str) -> Result<Option<&[u8]>, BadHead> {
        let mut all = self.all(name);
        let first = all.next();
        if all.next().is_some() { Err(bad(repeated)) } else { Ok(first) }
    }
}

/// The heads that a thread's clients sent last, so that one which comes again need not be read again.
/// Who keeps a connection sends the same bytes with each request, as long as the bodies are of one length
/// and no header names the request. A head is known by all of its bytes, and so is equal to
/// what reading it anew would give.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    known: Vec<Known>,
    /// The next place to be taken.
    oldest: usize,
}

#[derive(Debug)]
struct Known {
    bytes: Box<[u8]>,
    head: Arc<Head>,
}

/// So many are compared with each head: a client of one head or a few, beside probes and scrapes. By
/// callgrind, to read a head of three headers takes 6,000 instructions and one of seven 10,000; to
/// compare takes 75, so that a client whose heads are all different, since they carry an id, pays some
/// 850 of 37,000 for a request: comparisons, a copy, and a head to be dropped.
const MOST_KNOWN: usize = 4;

/// A longer head is read each time: few are, and what is kept of a thread's clients is bounded.
const LONGEST_KNOWN: usize = 2 * 1024;

impl Heads {
    /// Takes one head from the front of `buffer`, or nothing while it is incomplete.
    ///
    /// # Errors
    /// A head that is too large (431), not HTTP/1 (400, 505) or ambiguous (400).
    pub(crate) fn take(&mut self, buffer: &mut BytesMut) -> Result<Option<Arc<Head>>, BadHead> {
        skip_empty_lines(buffer);
        // What is kept ends with the empty line that ends a head, and has no other.
        if let Some(known) = self.known.iter().find(|known| buffer.starts_with(&known.bytes)) {
            buffer.advance(known.bytes.len());
            return Ok(Some(Arc::clone(&known.head)));
        }
        let Some(end) = complete(buffer)? else { return Ok(None) };
        // What is read refers to these bytes, and must not keep alive all that came with them.
        let mut bytes = BytesMut::from(&buffer[..end]);
        let head = Arc::new(parse(&mut bytes)?);
        if end <= LONGEST_KNOWN {
            self.remember(Known { bytes: Box::from(&buffer[..end]), head: Arc::clone(&head) });
        }
        buffer.advance(end);
        Ok(Some(head))
    }

    fn remember(&mut self, head: Known) {
        if self.known.len() < MOST_KNOWN {
            self.known.push(head);
        } else {
            self.known[self.oldest] = head;
            self.oldest = (self.oldest + 1) % MOST_KNOWN;
        }
    }
}

/// Where the head at the front of `buffer` ends, or nothing while it is incomplete.
fn complete(buffer: &[u8]) -> Result<Option<usize>, BadHead> {
    // A head that can never become valid is refused at once, not when its time is up.
    match end(&buffer[..buffer.len().min(MAX_HEAD)])? {
        Some(end) => Ok(Some(end)),
        None if buffer.len() < MAX_HEAD => Ok(None),
        None => Err(BadHead {
            status: 431,
            message: "The request line and headers are larger than 16 KiB.",
        }),
    }
}

/// Line ends before a request line are skipped (RFC 9112, 2.2); some clients send one after a body.
fn skip_empty_lines(buffer: &mut BytesMut) {
    while buffer.starts_with(b"\r\n") {
        buffer.advance(2);
    }
}

/// Where a head ends, if it does. Up to there every CR belongs to a CR LF, every line has an end, no
/// line is folded, and there are not too many of them.
fn end(head: &[u8]) -> Result<Option<usize>, BadHead> {
    let (mut line, mut lines) = (0, 0);
    while let Some(length) = memchr2(b'\r', b'\n', &head[line..]) {
        if head[line + length] == b'\n' {
            return Err(bad("A line feed without a carriage return in the request head."));
        }
        match head.get(line + length + 1) {
            Some(b'\n') => {}
            None => break,
            Some(_) => {
                return Err(bad("A carriage return without a line feed in the request head."));
            }
        }
        line += length + 2;
        if length == 0 {
            return Ok(Some(line));
        }
        lines += 1;
        if matches!(head.get(line), Some(b' ' | b'\t')) {
            return Err(bad("Header lines must not be folded."));
        }
        // The request line is none of them.
        if lines > MAX_HEADERS + 1 {
            return Err(BadHead { status: 431, message: "More than 96 request headers." });
        }
    }
    Ok(None)
}

/// Reads a complete head.
fn parse(head: &mut BytesMut) -> Result<Head, BadHead> {
    let is_foreign = speaks_another_version(head);
    let parts = match RequestHeadDecoder.decode(head) {
        Ok(Decoded::Some(parts)) => parts,
        Ok(_) => return Err(bad("The request head is malformed.")),
        Err(_) if is_foreign => {
            return Err(BadHead { status: 505, message: "Only HTTP/1 is spoken here." });
        }
        Err(error) => return Err(explain(&error)),
    };
    let is_http10 = parts.version == Version::HTTP_10;
    let headers = Headers::new(parts.headers);
    check_host(&headers, is_http10)?;
    Ok(Head {
        method: parts.method,
        uri: parts.uri,
        is_http10,
        keep_alive: keep_alive(&headers, is_http10),
        framing: framing(&headers, is_http10)?,
        expects_continue: expects_continue(&headers, is_http10)?,
        headers,
    })
}

/// The error is never cloned: cloning it recurses without end in 0.3.12.
fn explain(error: &DecodeError) -> BadHead {
    match error {
        DecodeError::Uri(_) => bad("The request target is malformed."),
        DecodeError::Method(_) => bad("The request method is malformed."),
        _ => bad("The request head is malformed."),
    }
}

/// Whether the request line is one of HTTP, but not of HTTP/1.0 or 1.1.
fn speaks_another_version(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let version = words.nth(2).and_then(|word| word.strip_prefix(b"HTTP/"));
    words.next().is_none()
        && version.is_some_and(|version| {
            !matches!(version, b"1.0" | b"1.1") && version.first().is_some_and(u8::is_ascii_digit)
        })
}

fn check_host(headers: &Headers, is_http10: bool) -> Result<(), BadHead> {
    match headers.only("host", "More than one Host header.")? {
        None if !is_http10 => Err(bad("The Host header is missing.")),
        _ => Ok(()),
    }
}

/// RFC 9112, 6.3, without its leniencies: what could be read in two ways is refused.
fn framing(headers: &Headers, is_http10: bool) -> Result<Framing, BadHead> {
    let length = headers.only("content-length", "More than one Content-Length header.")?;
    let coding = headers.only("transfer-encoding", "More than one Transfer-Encoding header.")?;
    match (length, coding) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(_), Some(_)) => Err(bad("Both Content-Length and Transfer-Encoding.")),
        (Some(length), None) => {
            digits(length).map(Framing::Length).ok_or(bad("Content-Length must be a plain number."))
        }
        (None, Some(_)) if is_http10 => Err(bad("HTTP/1.0 has no Transfer-Encoding.")),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        (None, Some(_)) => Err(bad("The only Transfer-Encoding understood is chunked.")),
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

fn expects_continue(headers: &Headers, is_http10: bool) -> Result<bool, BadHead> {
    match headers.get("expect") {
        None => Ok(false),
        // RFC 9110, 10.1.1: ignored from an HTTP/1.0 client.
        Some(_) if is_http10 => Ok(false),
        Some(value) if value.eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(BadHead {
            status: 417,
            message: "The only expectation understood is 100-continue.",
        }),
    }
}

fn keep_alive(headers: &Headers, is_http10: bool) -> bool {
    let has = |token: &str| {
        headers.all("connection").any(|value| {
            value
                .split(|&byte| byte == b',')
                .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    };
    if has("close") { false } else { !is_http10 || has("keep-alive") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(buffer: &mut BytesMut) -> Result<Option<Arc<Head>>, BadHead> {
        Heads::default().take(buffer)
    }

    fn read(bytes: &str) -> Result<Option<Arc<Head>>, BadHead> {
        take(&mut BytesMut::from(bytes))
    }

    fn refused(bytes: &str) -> u16 {
        match read(bytes) {
            Err(bad) => bad.status,
            Ok(head) => panic!("{bytes:?} was read as {head:?}"),
        }
    }

    #[test]
    fn a_plain_request_is_read_and_the_rest_stays() {
        let mut buffer = BytesMut::from(
            "\r\nPOST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbodyGET /",
        );
        let head = take(&mut buffer).unwrap().unwrap();
        assert_eq!(head.method, Method::POST);
        assert_eq!(head.uri.path(), "/v1/x");
        assert_eq!(head.framing, Framing::Length(4));
        assert!(head.keep_alive && !head.is_http10 && !head.expects_continue);
        assert_eq!(&buffer[..], b"bodyGET /");
    }

    #[test]
    fn a_head_is_read_the_same_wherever_it_is_cut() {
        let whole = "GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close, x\r\n\r\n";
        for cut in 1..whole.len() {
            let mut buffer = BytesMut::from(&whole[..cut]);
            assert!(take(&mut buffer).unwrap().is_none(), "cut at {cut}");
            buffer.extend_from_slice(&whole.as_bytes()[cut..]);
            let head = take(&mut buffer).unwrap().unwrap();
            assert!(!head.keep_alive);
            assert_eq!(head.uri.path(), "/v1/models");
        }
    }

    #[test]
    fn whatever_two_servers_could_read_differently_is_refused() {
        let head = |headers: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        for headers in [
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: \r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Host: other\r\n",
            "X: a\r\n b\r\n",
            "X: a\rb\r\n",
            "X: a\nY: b\r\n",
            "X : a\r\n",
            ": a\r\n",
        ] {
            assert_eq!(refused(&head(headers)), 400, "{headers:?}");
        }
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), 400, "no host");
        assert_eq!(refused("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 505);
        assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        assert_eq!(refused("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
        assert_eq!(refused("\u{16}\u{3}\u{1}\r\n\r\n"), 400);
        assert_eq!(refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: h\r\nExpect: cake\r\n\r\n"), 417);
    }

    #[test]
    fn a_bare_line_feed_is_refused_before_the_head_is_complete() {
        assert_eq!(refused("GET / HTTP/1.1\nHost: h\n\n"), 400);
    }

    #[test]
    fn heads_have_a_limit_in_bytes_and_in_headers() {
        let long = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "a".repeat(MAX_HEAD));
        assert_eq!(refused(&long), 431);
        let name = format!("GET / HTTP/1.1\r\nHost: h\r\n{}: 1\r\n\r\n", "n".repeat(70_000));
        assert_eq!(refused(&name), 431);
        let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: 1\r\n".repeat(97));
        assert_eq!(refused(&many), 431);
        let enough = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: 1\r\n".repeat(95));
        assert!(read(&enough).unwrap().is_some());
    }

    #[test]
    fn a_header_is_found_in_whatever_case_and_is_text_only_if_it_is_plain() {
        let bytes =
            b"GET / HTTP/1.1\r\nhOST: h\r\nX-A:  one\ttwo \r\nx-a: second\r\nX-B: \xe9\r\n\r\n";
        let head = take(&mut BytesMut::from(&bytes[..])).unwrap().unwrap();
        assert_eq!(head.headers.get("host"), Some(&b"h"[..]));
        assert_eq!(head.headers.text("x-a"), Some("one\ttwo"));
        assert_eq!(head.headers.text("X-A"), Some("one\ttwo"));
        assert_eq!(head.headers.all("x-a").count(), 2);
        assert_eq!((head.headers.get("x-b"), head.headers.text("x-b")), (Some(&b"\xe9"[..]), None));
        assert_eq!(head.headers.get("x"), None);
    }

    #[test]
    fn a_header_that_was_not_sent_is_missing_whatever_its_name_has_in_common_with_others() {
        // The first two have the length and the first letter of what was sent.
        let bytes = "GET / HTTP/1.1\r\nHost: h\r\nX-Same: 1\r\nyz: 2\r\n\r\n";
        let head = read(bytes).unwrap().unwrap();
        for name in ["x-sane", "x-samE", "hose", "HOST", "yy", "", "y"] {
            let sent = ["x-same", "host", "yz"].iter().any(|sent| sent.eq_ignore_ascii_case(name));
            assert_eq!(head.headers.get(name).is_some(), sent, "{name:?}");
        }
    }

    /// A request of a client, with the rest of a body behind it.
    fn of_client(client: usize, length: usize) -> String {
        format!("POST /v1/x HTTP/1.1\r\nHost: h{client}\r\nContent-Length: {length}\r\n\r\n")
    }

    #[test]
    fn a_head_that_comes_again_is_the_one_that_was_read_and_its_body_stays() {
        let mut heads = Heads::default();
        let mut buffer = BytesMut::from(format!("\r\n{}ab", of_client(1, 2)).as_bytes());
        let first = heads.take(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..], b"ab");
        let mut buffer = BytesMut::from(format!("\r\n{}cdGET /", of_client(1, 2)).as_bytes());
        let second = heads.take(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..], b"cdGET /");
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(second.headers.get("host"), Some(&b"h1"[..]));
    }

    #[test]
    fn a_head_that_differs_in_one_byte_is_another() {
        let mut heads = Heads::default();
        let mut take = |bytes: &str| heads.take(&mut BytesMut::from(bytes)).map(Option::unwrap);
        assert_eq!(take(&of_client(1, 2)).unwrap().framing, Framing::Length(2));
        assert_eq!(take(&of_client(1, 3)).unwrap().framing, Framing::Length(3));
        assert_eq!(take(&of_client(1, 22)).unwrap().framing, Framing::Length(22));
        assert_eq!(take(&of_client(2, 2)).unwrap().headers.get("host"), Some(&b"h2"[..]));
        // One that goes on where another ended.
        let longer = of_client(1, 2).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        assert!(!take(&longer).unwrap().keep_alive);
        assert!(take(&of_client(1, 2)).unwrap().keep_alive);
        // What is refused is refused again.
        let refused = of_client(1, 2).replace("Host", "Content-Length: 2\r\nHost");
        assert_eq!(take(&refused).unwrap_err().status, 400);
        assert_eq!(take(&refused).unwrap_err().status, 400);
    }

    #[test]
    fn heads_that_come_again_are_known_wherever_they_are_cut() {
        let bytes = of_client(1, 2);
        let mut heads = Heads::default();
        let whole = heads.take(&mut BytesMut::from(bytes.as_str())).unwrap().unwrap();
        for cut in 0..bytes.len() {
            let mut buffer = BytesMut::from(&bytes[..cut]);
            assert!(heads.take(&mut buffer).unwrap().is_none(), "cut at {cut}");
            buffer.extend_from_slice(&bytes.as_bytes()[cut..]);
            assert!(Arc::ptr_eq(&whole, &heads.take(&mut buffer).unwrap().unwrap()));
        }
    }

    #[test]
    fn of_more_clients_than_are_kept_and_of_long_heads_each_gets_its_own() {
        let mut heads = Heads::default();
        for client in (0..3 * MOST_KNOWN).chain(0..3 * MOST_KNOWN) {
            let name = "n".repeat(client * LONGEST_KNOWN / MOST_KNOWN);
            let bytes = of_client(client, client).replace("Host", &format!("X: {name}\r\nHost"));
            let head = heads.take(&mut BytesMut::from(bytes.as_str())).unwrap().unwrap();
            assert_eq!(head.framing, Framing::Length(client as u64));
            assert_eq!(head.headers.get("x"), Some(name.as_bytes()));
            assert!(heads.known.len() <= MOST_KNOWN);
            assert!(heads.known.iter().all(|known| known.bytes.len() <= LONGEST_KNOWN));
        }
    }

    #[test]
    fn http_1_0_closes_unless_told_otherwise() {
        assert!(!read("GET / HTTP/1.0\r\n\r\n").unwrap().unwrap().keep_alive);
        assert!(
            read("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").unwrap().unwrap().keep_alive
        );
    }
}
