//! The plainest HTTP client: it sends what it is told and reads by the rules, not by leniency.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use llmsimulator::boot::Server;

/// A connection to a server.
pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: BufReader<S>,
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(server: &Server) -> Self {
        Self::to(server.address())
    }

    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::over(connect(address))
    }
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a POST of JSON.
    pub(crate) fn post(&mut self, path: &str, body: &str) {
        self.send(post(path, body));
    }

    /// Sends a chat request and reads the response.
    pub(crate) fn chat(&mut self, body: &str) -> Response {
        self.post("/v1/chat/completions", body);
        self.response()
    }

    pub(crate) fn get(&mut self, path: &str) -> Response {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        self.response()
    }

    /// Reads a response whose request was not a HEAD.
    pub(crate) fn response(&mut self) -> Response {
        let (status, headers) = self.head();
        let mut response = Response { status, headers, body: Vec::new() };
        if response.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                response.body.extend(chunk);
            }
        } else if let Some(length) = response.header("content-length") {
            response.body = vec![0; length.parse().unwrap()];
            self.stream.read_exact(&mut response.body).unwrap();
        } else if response.header("connection") == Some("close") {
            self.stream.read_to_end(&mut response.body).unwrap();
        }
        response
    }

    /// Reads the head of a response.
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status_line = self.line();
        let status = status_line.strip_prefix("HTTP/1.1 ").expect(&status_line)[..3].parse();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            if line.is_empty() {
                return (status.unwrap(), headers);
            }
            let (name, value) = line.split_once(": ").expect(&line);
            headers.push((name.to_owned(), value.to_owned()));
        }
    }

    /// Reads one chunk of a chunked body; nothing is its end.
    pub(crate) fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk).unwrap();
        assert_eq!(self.line(), "");
        (size > 0).then_some(chunk)
    }

    /// Whether the server has closed its side, and sent nothing more before.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.stream.fill_buf().unwrap().is_empty()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").unwrap_or_else(|| panic!("{line:?}")).to_owned()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // A server that says nothing for that long has forgotten us.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The payloads of a stream's events.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.text()
            .split_terminator("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap_or_else(|| panic!("{self:?}")))
            .collect()
    }

    /// The text of a stream, put together, after checking the order of its chunks: role, content,
    /// finish, `[DONE]`.
    pub(crate) fn streamed_text(&self) -> String {
        let events = self.events();
        let [role, content @ .., finish, done] = &events[..] else { panic!("{events:?}") };
        assert!(role.contains(r#""delta":{"role":"assistant","content":"""#), "{role}");
        assert!(finish.contains(r#""delta":{}"#), "{finish}");
        assert_eq!(*done, "[DONE]");
        content.iter().map(|event| content_of(event)).collect()
    }
}

/// The text of one content chunk.
pub(crate) fn content_of(event: &str) -> String {
    let (_, rest) = event.split_once(r#""delta":{"content":"#).unwrap_or_else(|| panic!("{event}"));
    let end = rest.find(r#"},"logprobs""#).unwrap();
    unquote(&rest[..end])
}

/// A JSON string without its quotes and escapes, as far as the tests' texts need it.
fn unquote(json: &str) -> String {
    let inner = json.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap();
    let mut text = String::new();
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '\\' => match chars.next().unwrap() {
                'n' => '\n',
                't' => '\t',
                other => other,
            },
            other => other,
        });
    }
    text
}

/// A POST of JSON as bytes.
pub(crate) fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A request for a stream.
pub(crate) fn streaming(model: &str, message: &str) -> String {
    format!(
        r#"{{"model":"{model}","messages":[{{"role":"user","content":"{message}"}}],"stream":true}}"#
    )
}

/// A request for a whole answer.
pub(crate) fn whole(model: &str, message: &str) -> String {
    format!(r#"{{"model":"{model}","messages":[{{"role":"user","content":"{message}"}}]}}"#)
}
