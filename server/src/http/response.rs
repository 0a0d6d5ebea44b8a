//! Response heads and whole responses, as bytes.
//!
//! Not about what an answer says; only about how HTTP frames it. The invariant: every response,
//! errors included, carries `x-request-id`, the CORS headers and a length or a chunked coding, and
//! nothing from the request reaches a header unchecked.

use std::borrow::Cow;

use llmsim_engine::wire::push_decimal;

use crate::api::Dialect;

/// What a response says beside its body.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) content_type: Cow<'static, str>,
    pub(crate) body: Vec<u8>,
    /// Further headers; values are our own text, never the client's.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// JSON, as every API answer and error is.
pub(crate) const JSON: &str = "application/json";

/// Server-sent events.
pub(crate) const SSE: &str = "text/event-stream; charset=utf-8";

impl Response {
    /// A JSON answer.
    pub(crate) fn json(status: u16, body: Vec<u8>) -> Self {
        Self { status, content_type: JSON.into(), body, headers: Vec::new() }
    }

    /// An answer without content.
    pub(crate) fn empty(status: u16) -> Self {
        Self { status, content_type: "".into(), body: Vec::new(), headers: Vec::new() }
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// How one exchange was asked for: what the answer's framing depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) is_http10: bool,
    pub(crate) keep_alive: bool,
    /// A HEAD request: the head of the answer to GET, and no body.
    pub(crate) head_only: bool,
    /// Whose API it is.
    pub(crate) dialect: Dialect,
}

/// The response as bytes, appended to `out`, with at most so many bytes of its body: what a long one is
/// sent from is its own memory. Returns how much of the body needs no more sending.
pub(crate) fn write(
    out: &mut Vec<u8>,
    response: &Response,
    most: usize,
    exchange: Exchange,
    request_id: &RequestId,
    processing_ms: u64,
    date: &str,
) -> usize {
    write_status(out, response.status);
    if response.status != 204 {
        if !response.content_type.is_empty() {
            push_header(out, "content-type", &response.content_type);
        }
        push_number(out, "content-length", response.body.len() as u64);
    }
    write_common(out, exchange, request_id, date);
    push_number(out, "openai-processing-ms", processing_ms);
    for (name, value) in &response.headers {
        push_header(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
    if exchange.head_only {
        return response.body.len();
    }
    let begun = response.body.len().min(most);
    out.extend_from_slice(&response.body[..begun]);
    begun
}

/// The head of a streamed response, appended to `out`. An HTTP/1.0 client gets the events as they
/// are, ended by the end of the connection; all others get one chunk per event.
pub(crate) fn write_stream_head(
    out: &mut Vec<u8>,
    exchange: Exchange,
    request_id: &RequestId,
    processing_ms: u64,
    date: &str,
    extra: Extra<'_>,
) {
    write_status(out, 200);
    push_header(out, "content-type", extra.content_type);
    push_header(out, "cache-control", "no-cache");
    // nginx would otherwise collect events before it passes them on.
    push_header(out, "x-accel-buffering", "no");
    if !exchange.is_http10 {
        push_header(out, "transfer-encoding", "chunked");
    }
    write_common(out, exchange, request_id, date);
    push_number(out, "openai-processing-ms", processing_ms);
    for (name, value) in extra.headers {
        push_header(out, name, value);
    }
    out.extend_from_slice(b"\r\n");
}

/// What the head of a streamed response says beside the usual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extra<'a> {
    pub(crate) content_type: &'a str,
    /// Further headers; values are our own text, never the client's.
    pub(crate) headers: &'a [(&'static str, String)],
}

/// The interim answer to `Expect: 100-continue`.
pub(crate) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

fn write_status(out: &mut Vec<u8>, status: u16) {
    // An HTTP/1.0 client, too, is answered in the server's own version (RFC 9110, 6.2).
    if status == 200 {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    push_decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_common(out: &mut Vec<u8>, exchange: Exchange, request_id: &RequestId, date: &str) {
    push_header(out, "date", date);
    push_header(out, "x-request-id", request_id.as_str());
    if exchange.dialect == Dialect::Anthropic {
        push_header(out, "request-id", request_id.as_str());
    }
    // What is exposed are rate limits and retries among others, whatever their names. The second star
    // counts for requests without cookies, the only ones that the first lets in.
    out.extend_from_slice(
        b"access-control-allow-origin: *\r\naccess-control-expose-headers: *\r\n",
    );
    if !exchange.keep_alive {
        push_header(out, "connection", "close");
    } else if exchange.is_http10 {
        push_header(out, "connection", "keep-alive");
    }
}

fn push_header(out: &mut Vec<u8>, name: &str, value: &str) {
    debug_assert!(!value.contains(['\r', '\n']), "{name}: {value:?}");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn push_number(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    push_decimal(out, value);
    out.extend_from_slice(b"\r\n");
}

fn reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Unknown")
}

/// The id of a request: the client's own if it is fit for a header, else one of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    text: String,
    pub(crate) from_client: bool,
}

impl RequestId {
    /// The most characters of a client's id.
    const LONGEST: usize = 128;

    /// Takes the client's id as it is: printable ASCII, of at most [`Self::LONGEST`] characters. In place
    /// of any other it makes one: an id that was changed would be nobody's.
    pub(crate) fn new(sent: Option<&[u8]>, ids: &mut Ids) -> Self {
        let is_fit = |byte: &u8| (b' '..=b'~').contains(byte);
        let sent = sent.map(<[u8]>::trim_ascii).filter(|sent| sent.iter().all(is_fit));
        match sent.and_then(|sent| std::str::from_utf8(sent).ok()) {
            Some(text) if (1..=Self::LONGEST).contains(&text.len()) => {
                Self { text: text.to_owned(), from_client: true }
            }
            _ => Self { text: ids.next("req_"), from_client: false },
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

/// A source of ids that no other thread and no earlier run has used.
#[derive(Debug)]
pub(crate) struct Ids {
    random: llmsim_engine::seed::Generator,
}

impl Ids {
    /// The source of one thread; `entropy` must differ between threads and runs.
    pub(crate) fn new(entropy: u64) -> Self {
        Self { random: llmsim_engine::seed::Seed::new(entropy).generator() }
    }

    /// `prefix` and 32 hexadecimal digits.
    pub(crate) fn next(&mut self, prefix: &str) -> String {
        let halves = [self.random.next_u64(), self.random.next_u64()].map(hexadecimal);
        let digits = std::str::from_utf8(halves.as_flattened());
        let mut id = String::with_capacity(prefix.len() + 32);
        id.push_str(prefix);
        id.push_str(digits.expect("hexadecimal digits are ASCII"));
        id
    }
}

/// The digits of a number, all at once: each goes to a byte of its own, and becomes a character there.
fn hexadecimal(number: u64) -> [u8; 16] {
    /// The same byte sixteen times.
    const fn all(byte: u8) -> u128 {
        u128::from_ne_bytes([byte; 16])
    }
    let mut digits = u128::from(number);
    digits = (digits | digits << 32) & 0x0000_0000_ffff_ffff_0000_0000_ffff_ffff;
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff_0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff_00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & all(0x0f);
    // One for each digit above nine.
    let letters = (digits + all(6)) >> 4 & all(1);
    (digits + all(b'0') + letters * u128::from(b'a' - b'0' - 10)).to_be_bytes()
}

/// The time of day as HTTP's `date` header wants it.
pub(crate) fn http_date(unix_seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!(
        "{}, {day:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// The time of day as RFC 3339 writes it.
pub(crate) fn rfc3339(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!(
        "{year}-{:02}-{day:02}T{:02}:{:02}:{:02}Z",
        month + 1,
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// The year, the month from 0, and the day of it, so many days after 1970 began.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // Days since 1970 to a civil date (H. Hinnant, "chrono-compatible low-level date algorithms"):
    // years begin in March, so that the leap day is the last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = (march_month + 2) % 12;
    (year_of_era + era * 400 + u64::from(month < 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_standard() {
        // RFC 9110, 5.6.7, and `date -u -d @N`.
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(http_date(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
        assert_eq!(http_date(1_767_225_599), "Wed, 31 Dec 2025 23:59:59 GMT");
        // `date -u -Iseconds -d @N`, with Z for the offset.
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_767_225_599), "2025-12-31T23:59:59Z");
    }

    #[test]
    fn a_clients_id_is_echoed_as_it_came_or_not_at_all() {
        let mut ids = Ids::new(1);
        let (whole, long) = ([b'a'; 128], [b'a'; 129]);
        for fit in [b"ab-1".as_slice(), b"a b c", br#"{"a":1}"#, br"a\b", b"~", &whole] {
            let id = RequestId::new(Some(fit), &mut ids);
            assert_eq!((id.as_str().as_bytes(), id.from_client), (fit, true));
        }
        for unfit in [b" \t".as_slice(), b"a\r\nset-cookie: x", b"a\xff", "é".as_bytes(), &long] {
            let id = RequestId::new(Some(unfit), &mut ids);
            assert!(id.as_str().starts_with("req_") && !id.from_client, "{unfit:?}");
        }
        assert_ne!(RequestId::new(None, &mut ids), RequestId::new(None, &mut ids));
    }

    #[test]
    fn an_id_is_a_prefix_and_two_random_numbers_in_hexadecimal() {
        let mut random = llmsim_engine::seed::Seed::new(7).generator();
        let expected = format!("x-{:016x}{:016x}", random.next_u64(), random.next_u64());
        assert_eq!(Ids::new(7).next("x-"), expected);
    }

    #[test]
    fn a_whole_response_says_how_long_it_is() {
        let mut out = Vec::new();
        let exchange = Exchange {
            is_http10: false,
            keep_alive: false,
            head_only: true,
            dialect: Dialect::OpenAi,
        };
        let id = RequestId::new(Some(b"r1"), &mut Ids::new(1));
        let response = Response::json(404, b"{}".to_vec()).header("allow", "GET");
        assert_eq!(write(&mut out, &response, 0, exchange, &id, 7, "D"), 2, "no body is sent");
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
             date: D\r\nx-request-id: r1\r\naccess-control-allow-origin: *\r\n\
             access-control-expose-headers: *\r\nconnection: close\r\n\
             openai-processing-ms: 7\r\nallow: GET\r\n\r\n"
        );
    }

    #[test]
    fn of_a_long_body_no_more_is_copied_than_is_written_at_once() {
        let exchange = Exchange {
            is_http10: false,
            keep_alive: true,
            head_only: false,
            dialect: Dialect::OpenAi,
        };
        let id = RequestId::new(Some(b"r1"), &mut Ids::new(1));
        let response = Response::json(200, vec![b'x'; 1 << 20]);
        let mut out = Vec::new();
        assert_eq!(write(&mut out, &response, 1_000, exchange, &id, 7, "D"), 1_000);
        let head = out.len() - 1_000;
        assert!(out[..head].ends_with(b"\r\n\r\n") && out[head..].iter().all(|&byte| byte == b'x'));
        assert!(String::from_utf8_lossy(&out[..head]).contains("content-length: 1048576\r\n"));
    }
}
