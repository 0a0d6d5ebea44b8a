//! A server that says what a test scripts, byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// What to do with one request on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Keep the connection for the next request.
    Keep,
    /// Close it.
    Close,
    /// Reset it.
    Reset,
    /// Say nothing more and keep it open until the client goes.
    Hang,
}

/// Serves every connection on a thread of its own; `script` gets the request's head and body.
pub(crate) fn serve(
    script: impl Fn(&str, &str, &mut TcpStream) -> Then + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let script = Arc::new(script);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let script = Arc::clone(&script);
            std::thread::spawn(move || connection(stream, &*script));
        }
    });
    address
}

fn connection(
    mut stream: TcpStream,
    script: &(impl Fn(&str, &str, &mut TcpStream) -> Then + ?Sized),
) {
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let head = input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        let complete = head.and_then(|head| {
            let text = String::from_utf8_lossy(&input[..head]).into_owned();
            let length = text
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .and_then(|value| value.trim().parse::<usize>().ok())
                })
                .unwrap_or(0);
            let body = input.get(head..head + length)?;
            Some((text, String::from_utf8_lossy(body).into_owned(), head + length))
        });
        let Some((head, body, used)) = complete else {
            match stream.read(&mut buffer) {
                Ok(n) if n > 0 => input.extend_from_slice(&buffer[..n]),
                _ => return,
            }
            continue;
        };
        input.drain(..used);
        match script(&head, &body, &mut stream) {
            Then::Keep => {}
            Then::Close => return,
            Then::Reset => {
                // Without time to linger, closing is a reset.
                let socket = socket2::SockRef::from(&stream);
                let _ = socket.set_linger(Some(std::time::Duration::ZERO));
                return;
            }
            Then::Hang => {
                while matches!(stream.read(&mut buffer), Ok(n) if n > 0) {}
                return;
            }
        }
    }
}

/// An answer of known length.
pub(crate) fn whole(stream: &mut TcpStream, status: &str, content_type: &str, body: &str) -> Then {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let sent = stream.write_all((head + body).as_bytes());
    if sent.is_ok() { Then::Keep } else { Then::Close }
}

/// An event stream that ends with the connection.
pub(crate) fn events(stream: &mut TcpStream, events: &[&str]) -> Then {
    let mut text = String::from("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
    for event in events {
        text.push_str(&format!("data: {event}\n\n"));
    }
    let _ = stream.write_all(text.as_bytes());
    Then::Close
}

pub(crate) const TOKEN: &str = r#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#;
pub(crate) const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

/// A complete answer of one token.
pub(crate) fn one_token(stream: &mut TcpStream) -> Then {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1}}"#;
    let mut body = String::new();
    for event in [TOKEN, FINISH, usage, "[DONE]"] {
        body.push_str(&format!("data: {event}\n\n"));
    }
    whole(stream, "200 OK", "text/event-stream", &body)
}
