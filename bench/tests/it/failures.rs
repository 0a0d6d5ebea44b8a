//! Every way in which a server can let a client down has a class of its own, and none is retried.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use llmsim_bench::args::IoDriver;
use llmsim_bench::clock::Clock;
use llmsim_bench::http::tls::Trust;
use llmsim_bench::http::url::Url;
use llmsim_bench::progress::Live;
use llmsim_bench::record::{FailureClass, Outcome, Record};
use llmsim_bench::runtime;
use llmsim_bench::target::http::{Client, Prepared, Stamps, Texts, Timeouts};
use llmsim_engine::units::SimSpan;

use crate::server::{FINISH, TOKEN, Then, events, one_token, serve, whole};

/// Sends one request to `address` over each driver; both must tell the same.
fn ask(address: SocketAddr, exact: bool) -> Record {
    let [first, second] = [IoDriver::Auto, IoDriver::Epoll].map(|driver| {
        runtime::block_on(driver, async |_| {
            let url = Url::parse(&format!("http://{address}")).expect("an address");
            let timeouts =
                Timeouts { connect: SimSpan::from_ms(5_000), silence: SimSpan::from_ms(300) };
            let clock = Clock::start();
            let client = Client::start(
                clock,
                &url,
                timeouts,
                Stamps::Kernel,
                Texts::Drop,
                Arc::new(Live::default()),
                &Trust::System,
            )
            .expect("resolved");
            let mut record = Record::planned(0, clock.now());
            let request = Prepared {
                bytes: b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
                max_tokens: Some(2),
                exact,
                expected_cached: None,
            };
            client.perform(request, &mut record).await;
            record
        })
        .expect("a runtime")
    });
    assert_eq!(first.outcome, second.outcome, "io_uring and epoll");
    second
}

fn check(record: &Record, class: FailureClass, detail: &str) {
    let Outcome::Failed(failure) = &record.outcome else { panic!("{:?}", record.outcome) };
    assert_eq!(failure.class, class, "{failure:?}");
    assert!(failure.detail.contains(detail), "{failure:?}");
}

fn scripted(
    script: impl Fn(&mut TcpStream) -> Then + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&asked);
    let address = serve(move |_, _, stream| {
        counter.fetch_add(1, Ordering::SeqCst);
        script(stream)
    });
    (address, asked)
}

#[test]
fn statuses_are_told_apart_with_what_the_server_says() {
    for (status, class) in [
        ("429 Too Many Requests", FailureClass::RateLimited),
        ("404 Not Found", FailureClass::ClientError),
        ("503 Service Unavailable", FailureClass::ServerError),
    ] {
        let (address, asked) = scripted(move |stream| {
            whole(stream, status, "application/json", r#"{"error":{"message":"too busy"}}"#)
        });
        check(&ask(address, false), class, "too busy");
        assert_eq!(asked.load(Ordering::SeqCst), 2, "one request per driver, no retry");
    }
}

#[test]
fn an_answer_that_is_no_stream_is_not_measured() {
    let (address, _) = scripted(|stream| whole(stream, "200 OK", "application/json", "{}"));
    check(&ask(address, false), FailureClass::UnexpectedAnswer, "event stream was due");
    let (address, _) = scripted(|stream| whole(stream, "302 Found", "text/html", ""));
    check(&ask(address, false), FailureClass::UnexpectedAnswer, "302");
    let (address, _) = scripted(|stream| whole(stream, "200 OK", "text/html", "<html>sign in"));
    check(&ask(address, false), FailureClass::UnexpectedAnswer, "'text/html' where an event");
    let (address, _) = scripted(|stream| answered(stream, "content-encoding: gzip", "\x1f\x08"));
    check(&ask(address, false), FailureClass::UnexpectedAnswer, "content-encoding 'gzip'");
    let (address, _) = scripted(|stream| {
        use std::io::Write;
        let _ = stream.write_all(
            b"HTTP/1.1 308 Permanent Redirect\r\nlocation: /v2/\r\ncontent-length: 0\r\n\r\n",
        );
        Then::Keep
    });
    check(&ask(address, false), FailureClass::UnexpectedAnswer, "308 redirect to '/v2/'");
}

/// An event stream of known length with one more header.
fn answered(stream: &mut TcpStream, header: &str, body: &str) -> Then {
    use std::io::Write;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{header}\r\ncontent-length: {length}"
    );
    let _ = write!(stream, "{head}\r\n\r\n{body}");
    Then::Keep
}

#[test]
fn what_comes_after_the_last_event_is_nobodys_concern() {
    // Open until the connection closes, which it never does; without the end of its chunked body;
    // reset in place of that end.
    const OPEN: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    for (head, then) in [(OPEN, Then::Hang), (CHUNKED, Then::Hang), (CHUNKED, Then::Reset)] {
        let (address, _) = scripted(move |stream| {
            use std::io::Write;
            let body = format!("data: {TOKEN}\n\ndata: {FINISH}\n\ndata: [DONE]\n\n");
            let _ = match head {
                OPEN => write!(stream, "{head}{body}"),
                _ => write!(stream, "{head}{:x}\r\n{body}\r\n", body.len()),
            };
            then
        });
        let record = ask(address, false);
        assert_eq!(record.outcome, Outcome::Finished("stop".into()), "{then:?} after {head}");
        assert_eq!(record.output.chunks, 1);
    }
}

#[test]
fn nobody_there_is_told_from_one_who_takes_the_request_and_hangs_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let record = ask(address, false);
    check(&record, FailureClass::Connect, "refused");
    assert_eq!(record.sent, None);
    let (address, _) = scripted(|_| Then::Close);
    let record = ask(address, false);
    check(&record, FailureClass::Unanswered, "before an answer");
    assert!(record.sent.is_some());
    let (address, _) = scripted(|_| Then::Reset);
    check(&ask(address, false), FailureClass::Unanswered, "reset");
}

#[test]
fn silence_before_and_between_chunks_are_two_classes() {
    let (address, _) = scripted(|_| Then::Hang);
    check(&ask(address, false), FailureClass::TimeoutFirstChunk, "before the first chunk");
    let (address, _) = scripted(|stream| {
        events(stream, &[TOKEN]);
        Then::Hang
    });
    let record = ask(address, false);
    check(&record, FailureClass::TimeoutBetweenChunks, "after a chunk");
    assert_eq!(record.output.chunks, 1);
}

/// Sends `start`, and then `again` until the client goes.
fn endless(start: impl Into<String>, again: impl Into<String>) -> SocketAddr {
    use std::io::Write;
    let (start, again) = (start.into(), again.into().repeat(200));
    let (address, _) = scripted(move |stream| {
        let _ = stream.write_all(start.as_bytes());
        while stream.write_all(again.as_bytes()).is_ok() {}
        Then::Close
    });
    address
}

/// As one piece of a chunked body.
fn piece(of: &str) -> String {
    format!("{:x}\r\n{of}\r\n", of.len())
}

const CHUNKED: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

#[test]
fn what_is_no_chunk_does_not_put_the_timeout_off() {
    let comments = piece(": ping\n\n");
    let empty = piece("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"}}]}\n\n");
    for noise in [comments, empty] {
        let record = ask(endless(CHUNKED, noise.clone()), false);
        check(&record, FailureClass::TimeoutFirstChunk, "no chunk for 0.3 s before the first");
        let started = format!("{CHUNKED}{}", piece(&format!("data: {TOKEN}\n\n")));
        let record = ask(endless(started, noise), false);
        check(&record, FailureClass::TimeoutBetweenChunks, "no chunk for 0.3 s after a chunk");
    }
}

#[test]
fn an_answer_without_an_end_has_one_for_us() {
    let token = format!("data: {TOKEN}\n\n");
    let finish = format!("data: {FINISH}\n\ndata: [DONE]\n\n");
    // 8 x 2 tokens + 1024.
    let record = ask(endless(CHUNKED, piece(&token)), false);
    check(&record, FailureClass::WrongTokenCount, "no end after 1040 chunks where 2 tokens");
    let error = "HTTP/1.1 500 Oops\r\n\r\nengine died. ";
    check(&ask(endless(error, "e".repeat(100)), false), FailureClass::ServerError, "engine died");
    // All was said with [DONE].
    let whole = format!("{CHUNKED}{}", piece(&format!("{token}{finish}")));
    for (start, noise) in [
        (whole.clone(), piece(&token)),
        (format!("{whole}5;"), "e".repeat(100)),
        (format!("{whole}0\r\n"), "x-trailer: a\r\n".to_owned()),
    ] {
        let record = ask(endless(start, noise.clone()), false);
        assert_eq!(record.outcome, Outcome::Finished("stop".into()), "{noise:?}");
        assert_eq!(record.output.chunks, 1, "{noise:?}");
    }
}

#[test]
fn endless_framing_is_malformed() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    check(&ask(endless("", interim), false), FailureClass::Malformed, "16 interim answers");
    let extension = endless(format!("{CHUNKED}5;"), "e".repeat(100));
    check(&ask(extension, false), FailureClass::Malformed, "an extension or trailer of more than");
}

#[test]
fn what_a_terminal_would_obey_is_escaped() {
    let (address, _) =
        scripted(|stream| whole(stream, "500 Oops", "text/plain", "\u{1b}[2J\u{1b}]0;gone\u{7}é"));
    let shown = "\\u{1b}[2J\\u{1b}]0;gone\\u{7}é";
    check(&ask(address, false), FailureClass::ServerError, shown);
}

#[test]
fn a_stream_without_an_end_is_cut() {
    let (address, _) = scripted(|stream| events(stream, &[TOKEN]));
    check(&ask(address, false), FailureClass::Cut, "without a finish reason");
    // Also inside an answer of known length.
    let (address, _) = scripted(|stream| {
        use std::io::Write;
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 999\r\n\r\nda",
        );
        Then::Close
    });
    check(&ask(address, false), FailureClass::Cut, "inside the answer");
}

#[test]
fn nonsense_is_malformed_wherever_it_stands() {
    let (address, _) = scripted(|stream| events(stream, &["{\"choices\":["]));
    check(&ask(address, false), FailureClass::Malformed, "");
    let (address, _) = scripted(|stream| {
        use std::io::Write;
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n\r\n");
        Then::Close
    });
    check(&ask(address, false), FailureClass::Malformed, "head");
    // No blank line, and nobody who closes.
    let (address, _) = scripted(|stream| {
        use std::io::Write;
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        Then::Hang
    });
    check(&ask(address, false), FailureClass::Malformed, "no HTTP/1 answer but '220 mail.example");
    let (address, _) = scripted(|stream| answered(stream, "x: y", "\0\u{1}nonsense\n\n\n\n"));
    check(&ask(address, false), FailureClass::Malformed, "no event stream but '\\0");
}

#[test]
fn an_error_inside_the_stream_is_a_failure_with_its_message() {
    let (address, _) = scripted(|stream| {
        events(stream, &[TOKEN, r#"{"error":{"message":"engine died"}}"#, "[DONE]"])
    });
    check(&ask(address, false), FailureClass::ErrorInStream, "engine died");
    let body = format!("data: {TOKEN}\n\nevent: error\ndata: {{\"message\":\"gone\"}}\n\n");
    let (address, _) = scripted(move |stream| answered(stream, "x: y", &body));
    check(&ask(address, false), FailureClass::ErrorInStream, "gone");
    let old = r#"{"object":"error","message":"too old","code":500}"#;
    let (address, _) = scripted(move |stream| events(stream, &[TOKEN, old, "[DONE]"]));
    check(&ask(address, false), FailureClass::ErrorInStream, "too old");
}

#[test]
fn more_tokens_than_asked_for_or_other_than_exactly_asked_for_are_wrong() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3}}"#;
    let (address, _) = scripted(move |stream| events(stream, &[TOKEN, FINISH, usage, "[DONE]"]));
    check(&ask(address, false), FailureClass::WrongTokenCount, "3 output tokens where 2");
    let (address, _) = scripted(one_token);
    check(&ask(address, true), FailureClass::WrongTokenCount, "1 output tokens where 2");
    let (address, _) = scripted(one_token);
    assert!(ask(address, false).ok(), "fewer is no failure unless asked for exactly");
}

#[test]
fn a_stale_connection_is_noticed_before_it_is_used() {
    let closed = Arc::new(AtomicU32::new(0));
    let closes = Arc::clone(&closed);
    let url = serve(move |_, _, stream| {
        one_token(stream);
        stream.shutdown(std::net::Shutdown::Write).expect("a connection that is open");
        closes.fetch_add(1, Ordering::SeqCst);
        Then::Close
    });
    let outcomes = runtime::block_on(IoDriver::Auto, async |_| {
        let url = Url::parse(&format!("http://{url}")).expect("an address");
        let timeouts =
            Timeouts { connect: SimSpan::from_ms(5_000), silence: SimSpan::from_ms(5_000) };
        let clock = Clock::start();
        let client = Client::start(
            clock,
            &url,
            timeouts,
            Stamps::Kernel,
            Texts::Drop,
            Arc::new(Live::default()),
            &Trust::System,
        )
        .expect("resolved");
        let mut outcomes = Vec::new();
        for asked in 1..=3 {
            let mut record = Record::planned(0, clock.now());
            let request = Prepared {
                bytes: b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}".to_vec(),
                max_tokens: None,
                exact: false,
                expected_cached: None,
            };
            client.perform(request, &mut record).await;
            outcomes.push(record.ok());
            // On loopback the server's FIN is here when its call returns.
            while closed.load(Ordering::SeqCst) < asked {
                monoio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        }
        outcomes
    });
    assert_eq!(outcomes.expect("a runtime"), [true, true, true]);
}
