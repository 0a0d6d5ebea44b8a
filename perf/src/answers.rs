//! The physical limit of whole answers: a bare loop that receives whatever comes and sends the same
//! bytes back each time. It reads, decides and counts nothing, so that no server that makes these two
//! calls for each answer is quicker on one processor.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sys::{self, Epoll};

/// A bare loop that answers, on a thread of its own from [`Bare::run`].
pub(crate) struct Bare {
    listener: TcpListener,
    answer: Vec<u8>,
    is_over: AtomicBool,
    cpu_ns: AtomicU64,
}

impl Bare {
    /// Listens; every answer will have `answer_bytes` bytes, head and body together.
    pub(crate) fn new(answer_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            listener: TcpListener::bind("127.0.0.1:0")?,
            answer: answer_of(answer_bytes),
            is_over: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers on `connections` connections until [`Bare::stop`].
    pub(crate) fn run(&self, connections: usize, cpu: usize) -> io::Result<()> {
        sys::pin(cpu);
        let mut epoll = Epoll::new()?;
        let mut sockets: Vec<TcpStream> = Vec::with_capacity(connections);
        for i in 0..connections {
            let (socket, _) = self.listener.accept()?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            epoll.add(&socket, i as u64)?;
            sockets.push(socket);
        }
        let mut ready = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        let cpu_before = sys::thread_cpu_ns();
        while !self.is_over.load(Ordering::Relaxed) {
            epoll.wait(10, &mut ready)?;
            for &token in &ready {
                let mut socket = &sockets[token as usize];
                // A request is small, and the client waits for its answer: one read has all of it.
                // A client that has seen enough leaves without reading: that ends the loop.
                let Ok(1..) = socket.read(&mut buffer) else { return Ok(()) };
                if sys::send_now(socket, &self.answer).is_err() {
                    return Ok(());
                }
            }
            self.cpu_ns.store(sys::thread_cpu_ns() - cpu_before, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// CPU time of the loop since its connections are there.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }
}

/// An answer of `bytes` bytes, or of the least that a head takes.
fn answer_of(bytes: usize) -> Vec<u8> {
    let head = |body: usize| {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {body}\r\n\r\n"
        )
    };
    let body = bytes.saturating_sub(head(bytes).len());
    let mut answer = head(body).into_bytes();
    answer.resize(answer.len() + body, b'x');
    answer
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::Duration;

    use super::*;
    use crate::closed_loop::{self, whole_length};
    use crate::target::Form;

    #[test]
    fn an_answer_has_the_length_that_was_asked_for_and_its_head_says_so() {
        // Between 2-digit and 3-digit, 3-digit and 4-digit bodies the head grows, too.
        for bytes in 100..1_200 {
            let answer = answer_of(bytes);
            assert_eq!(whole_length(&answer), Some(answer.len()), "{bytes}");
            assert!(answer.len().abs_diff(bytes) <= 1, "{bytes}: {}", answer.len());
        }
    }

    #[test]
    fn the_bare_loop_answers_whoever_asks_until_the_client_leaves() {
        let bare = Bare::new(500).unwrap();
        let address = bare.address().unwrap();
        let served = std::thread::scope(|scope| {
            let server = scope.spawn(|| bare.run(3, 0));
            let time = Duration::from_millis(500);
            let served = closed_loop::run(address, 3, b"?", Form::Whole, time, &mut || ());
            bare.stop();
            server.join().unwrap().unwrap();
            served
        })
        .unwrap();
        assert!(served.answers >= 3, "{served:?}");
        assert_eq!(served.answer_bytes, 500);
    }

    #[test]
    fn a_client_that_hangs_up_with_answers_unread_ends_the_loop_without_an_error() {
        let bare = Bare::new(500).unwrap();
        let mut client = TcpStream::connect(bare.address().unwrap()).unwrap();
        client.write_all(b"?").unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| bare.run(1, 0));
            // The answer has come and is not read: closing resets the connection.
            client.peek(&mut [0]).unwrap();
            drop(client);
            server.join().unwrap().unwrap();
        });
    }
}
