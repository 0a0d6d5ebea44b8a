//! A client that asks again as soon as it has its answer: for what a server can do at most.
//!
//! It checks what every answer begins and ends with, and nothing between; it counts frames and
//! answers. One and the same for our server and for peers.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::drain::count_frames;
use crate::sys::{self, Epoll};
use crate::target::{Form, connect};

/// What came back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) answers: u64,
    /// Events of streams.
    pub(crate) frames: u64,
    pub(crate) elapsed_s: f64,
    /// CPU time of the client, ns: what it takes says how much more it could ask for.
    pub(crate) client_cpu_ns: u64,
    /// Length of the read that ended the last answer: all of a short one.
    pub(crate) answer_bytes: usize,
}

struct Connection {
    socket: TcpStream,
    after_newline: bool,
    /// The answer so far if it is a whole one; the last bytes of a stream.
    tail: Vec<u8>,
    is_begun: bool,
}

/// Keeps `connections` busy with `request` for `time`, then breaks off; `tick` is called about ten
/// times a second.
pub(crate) fn run(
    address: SocketAddr,
    connections: usize,
    request: &[u8],
    form: Form,
    time: Duration,
    tick: &mut dyn FnMut(),
) -> io::Result<Served> {
    let mut epoll = Epoll::new()?;
    let mut all = Vec::with_capacity(connections);
    for i in 0..connections {
        let mut socket = connect(address)?;
        socket.write_all(request)?;
        socket.set_nonblocking(true)?;
        epoll.add(&socket, i as u64)?;
        let tail = Vec::with_capacity(4096);
        all.push(Connection { socket, after_newline: false, tail, is_begun: false });
    }
    let mut served = Served::default();
    let mut buffer = vec![0; 256 * 1024];
    let mut ready = Vec::new();
    let start = Instant::now();
    let cpu_before = sys::thread_cpu_ns();
    let (mut ticks, mut last_ns) = (0, sys::monotonic_ns());
    while start.elapsed() < time {
        epoll.wait(100, &mut ready)?;
        if start.elapsed().as_millis() / 100 > ticks {
            ticks = start.elapsed().as_millis() / 100;
            tick();
        }
        if !ready.is_empty() {
            last_ns = sys::monotonic_ns();
        } else if sys::monotonic_ns() - last_ns > 20_000_000_000 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "nothing arrived for 20 s"));
        }
        for &token in &ready {
            let connection = &mut all[token as usize];
            let got = match connection.socket.read(&mut buffer) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let (frames, is_over) = connection.take(&buffer[..got], form)?;
            served.frames += frames;
            if is_over {
                served.answers += 1;
                served.answer_bytes = got;
                // A request is small and the socket idle: it fits.
                connection.socket.write_all(request)?;
            }
        }
    }
    served.elapsed_s = start.elapsed().as_secs_f64();
    served.client_cpu_ns = sys::thread_cpu_ns() - cpu_before;
    Ok(served)
}

impl Connection {
    /// Counts the frames of what came, and tells whether the answer is over.
    fn take(&mut self, bytes: &[u8], form: Form) -> io::Result<(u64, bool)> {
        if !self.is_begun {
            if !bytes.starts_with(b"HTTP/1.1 200") {
                let line = bytes.split(|&byte| byte == b'\r').next().unwrap_or_default();
                let line = String::from_utf8_lossy(line).into_owned();
                return Err(io::Error::other(format!("refused: {line}")));
            }
            self.is_begun = true;
        }
        let (frames, is_over) = match form {
            Form::Stream => {
                const END: &[u8] = b"\r\n0\r\n\r\n";
                self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(END.len())..]);
                let is_over = self.tail.ends_with(END);
                let surplus = self.tail.len().saturating_sub(END.len());
                self.tail.drain(..surplus);
                (u64::from(count_frames(bytes, &mut self.after_newline)), is_over)
            }
            Form::Whole => {
                self.tail.extend_from_slice(bytes);
                (0, whole_length(&self.tail).is_some_and(|length| self.tail.len() >= length))
            }
        };
        if is_over {
            self.tail.clear();
            self.after_newline = false;
            self.is_begun = false;
        }
        Ok((frames, is_over))
    }
}

/// Length of an answer with a `content-length`, once its head is there.
pub(crate) fn whole_length(bytes: &[u8]) -> Option<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head_length)) = head.parse(bytes) else { return None };
    let length = head.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"))?;
    Some(head_length + std::str::from_utf8(length.value).ok()?.parse::<usize>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_over_at_its_last_byte_wherever_reads_cut_it() {
        let stream = b"HTTP/1.1 200 OK\r\n\r\n9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n";
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        for (bytes, form, events) in [(&stream[..], Form::Stream, 2), (whole, Form::Whole, 0)] {
            for cut in 12..bytes.len() {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let socket = connect(listener.local_addr().unwrap()).unwrap();
                let mut it =
                    Connection { socket, after_newline: false, tail: Vec::new(), is_begun: false };
                let (first, early) = it.take(&bytes[..cut], form).unwrap();
                let (second, over) = it.take(&bytes[cut..], form).unwrap();
                assert_eq!((first + second, early, over), (events, false, true), "cut at {cut}");
            }
        }
    }
}
