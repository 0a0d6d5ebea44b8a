//! From bytes to the head of a request.
//!
//! `monoio-http`'s decoder does the parsing, behind a guard that makes its faults unreachable: it
//! sets no limit on the size of a head, panics on a header name over 64 KiB, and accepts what lets
//! two servers disagree on where a request ends (both framings at once, repeated lengths, bare line
//! feeds, no or two hosts). The invariant: the decoder sees only complete heads of at most
//! [`MAX_HEAD`] bytes whose lines all end in CR LF.

use std::fmt;

use bytes::BytesMut;
use http::header::{self, HeaderMap, HeaderName};
use http::{Method, Uri, Version};
use memchr::{memchr2_iter, memmem};
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
    pub(crate) headers: HeaderMap,
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

/// Takes one head from the front of `buffer`, or nothing while it is incomplete.
///
/// # Errors
/// A head that is too large (431), not HTTP/1 (400, 505) or ambiguous (400).
pub(crate) fn take(buffer: &mut BytesMut) -> Result<Option<Head>, BadHead> {
    skip_empty_lines(buffer);
    let window = &buffer[..buffer.len().min(MAX_HEAD)];
    let Some(end) = memmem::find(window, b"\r\n\r\n").map(|at| at + 4) else {
        if buffer.len() >= MAX_HEAD {
            return Err(BadHead {
                status: 431,
                message: "The request line and headers are larger than 16 KiB.",
            });
        }
        // A head that can never become valid is refused at once, not when its time is up.
        check_lines(&buffer[..], Part::Unfinished)?;
        return Ok(None);
    };
    check_lines(&buffer[..end], Part::Whole)?;
    let is_foreign = speaks_another_version(&buffer[..end]);
    let parts = match RequestHeadDecoder.decode(buffer) {
        Ok(Decoded::Some(parts)) => parts,
        Ok(_) => return Err(bad("The request head is malformed.")),
        Err(_) if is_foreign => {
            return Err(BadHead { status: 505, message: "Only HTTP/1 is spoken here." });
        }
        Err(error) => return Err(explain(&error)),
    };
    let is_http10 = parts.version == Version::HTTP_10;
    check_host(&parts.headers, is_http10)?;
    let framing = framing(&parts.headers, is_http10)?;
    let expects_continue = expects_continue(&parts.headers, is_http10)?;
    let keep_alive = keep_alive(&parts.headers, is_http10);
    Ok(Some(Head {
        method: parts.method,
        uri: parts.uri,
        headers: parts.headers,
        is_http10,
        keep_alive,
        framing,
        expects_continue,
    }))
}

/// Line ends before a request line are skipped (RFC 9112, 2.2); some clients send one after a body.
fn skip_empty_lines(buffer: &mut BytesMut) {
    while buffer.starts_with(b"\r\n") {
        let _ = buffer.split_to(2);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Unfinished,
}

/// Every CR belongs to a CR LF, every line has an end, no line is folded, and there are not too
/// many of them.
fn check_lines(head: &[u8], part: Part) -> Result<(), BadHead> {
    let mut lines = 0;
    for at in memchr2_iter(b'\r', b'\n', head) {
        if head[at] == b'\r' {
            match head.get(at + 1) {
                Some(b'\n') => {}
                None if part == Part::Unfinished => {}
                _ => return Err(bad("A carriage return without a line feed in the request head.")),
            }
            continue;
        }
        if at == 0 || head[at - 1] != b'\r' {
            return Err(bad("A line feed without a carriage return in the request head."));
        }
        lines += 1;
        if matches!(head.get(at + 1), Some(b' ' | b'\t')) {
            return Err(bad("Header lines must not be folded."));
        }
    }
    // The request line and the empty line are not headers.
    if lines > MAX_HEADERS + 2 {
        return Err(BadHead { status: 431, message: "More than 96 request headers." });
    }
    Ok(())
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

/// The error is never cloned: cloning it recurses without end in 0.3.12.
fn explain(error: &DecodeError) -> BadHead {
    match error {
        DecodeError::Uri(_) => bad("The request target is malformed."),
        DecodeError::Method(_) => bad("The request method is malformed."),
        _ => bad("The request head is malformed."),
    }
}

fn check_host(headers: &HeaderMap, is_http10: bool) -> Result<(), BadHead> {
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Err(bad("More than one Host header.")),
        (None, None) if !is_http10 => Err(bad("The Host header is missing.")),
        _ => Ok(()),
    }
}

/// RFC 9112, 6.3, without its leniencies: what could be read in two ways is refused.
fn framing(headers: &HeaderMap, is_http10: bool) -> Result<Framing, BadHead> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(bad("More than one Content-Length header."));
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let coding = codings.next();
    if codings.next().is_some() {
        return Err(bad("More than one Transfer-Encoding header."));
    }
    match (length, coding) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(_), Some(_)) => Err(bad("Both Content-Length and Transfer-Encoding.")),
        (Some(length), None) => digits(length.as_bytes())
            .map(Framing::Length)
            .ok_or(bad("Content-Length must be a plain number.")),
        (None, Some(_)) if is_http10 => Err(bad("HTTP/1.0 has no Transfer-Encoding.")),
        (None, Some(coding)) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            Ok(Framing::Chunked)
        }
        (None, Some(_)) => Err(bad("The only Transfer-Encoding understood is chunked.")),
    }
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

fn expects_continue(headers: &HeaderMap, is_http10: bool) -> Result<bool, BadHead> {
    match headers.get(header::EXPECT) {
        None => Ok(false),
        // RFC 9110, 10.1.1: ignored from an HTTP/1.0 client.
        Some(_) if is_http10 => Ok(false),
        Some(value) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => Ok(true),
        Some(_) => Err(BadHead {
            status: 417,
            message: "The only expectation understood is 100-continue.",
        }),
    }
}

fn keep_alive(headers: &HeaderMap, is_http10: bool) -> bool {
    let has = |token: &str| {
        headers.get_all(header::CONNECTION).iter().any(|value| {
            value
                .as_bytes()
                .split(|&byte| byte == b',')
                .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
        })
    };
    if has("close") { false } else { !is_http10 || has("keep-alive") }
}

/// The header's value as text, if it is there and plain.
pub(crate) fn text(headers: &HeaderMap, name: impl Into<HeaderName>) -> Option<&str> {
    headers.get(name.into()).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &str) -> Result<Option<Head>, BadHead> {
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
    fn http_1_0_closes_unless_told_otherwise() {
        assert!(!read("GET / HTTP/1.0\r\n\r\n").unwrap().unwrap().keep_alive);
        assert!(
            read("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").unwrap().unwrap().keep_alive
        );
    }
}
