//! Small requests beside the load (metrics), over the standard library's blocking sockets and the
//! same answer reader. Never called while a level is being measured.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::http::answer::Reader;
use crate::http::tls::{Tls, Trust};
use crate::http::url::{Scheme, Url};

const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BODY: usize = 16 << 20;

/// What a small request needs beside its address.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// Sent as a Bearer token.
    pub api_key: Option<&'a str>,
    /// Whom to trust where it is https.
    pub trust: &'a Trust,
}

/// Status and body of one small request.
///
/// # Errors
/// One line about what went wrong.
pub fn fetch(method: &str, url: &Url, how: Access<'_>) -> Result<(u16, Vec<u8>), String> {
    let told = |error: std::io::Error| error.to_string();
    let addresses = (url.host.as_str(), url.port).to_socket_addrs().map_err(told)?;
    let mut problem = "no address".to_owned();
    let mut stream = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(open) => {
                stream = Some(open);
                break;
            }
            Err(error) => problem = error.to_string(),
        }
    }
    let stream = stream.ok_or(problem)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(told)?;
    let mut stream: Box<dyn Both> = match url.scheme {
        Scheme::Http => Box::new(stream),
        Scheme::Https => Box::new(Tls::new(how.trust)?.session(&url.host)?.over(stream)),
    };
    let path = if url.path.is_empty() { "/" } else { &url.path };
    let key = how.api_key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {}\r\nuser-agent: llmsim-bench/{}\r\n{key}\
         content-length: 0\r\nconnection: close\r\n\r\n",
        url.authority(),
        env!("CARGO_PKG_VERSION"),
    );
    stream.write_all(head.as_bytes()).map_err(told)?;
    let mut reader = Reader::new();
    let mut body = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    while !reader.done() {
        let got = read_on(&mut stream, &mut buffer).map_err(told)?;
        if got == 0 {
            if reader.close() {
                break;
            }
            return Err("connection closed inside the answer".into());
        }
        reader.feed(&buffer[..got], |piece| body.extend_from_slice(piece)).map_err(|e| e.0)?;
        if body.len() > MOST_BODY {
            return Err("its answer is too long".into());
        }
    }
    let status = reader.head().map_or(0, |head| head.status);
    Ok((status, body))
}

trait Both: Read + Write {}
impl<T: Read + Write> Both for T {}

/// Reads, however often the wait is interrupted: a read with a time limit is not taken up again by
/// the kernel when a signal, or work of this thread's io_uring, comes in between.
fn read_on(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // TLS without a word of farewell; the answer's framing tells whether it was whole.
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(0),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind, Read};

    use super::read_on;

    /// Gives these one after the other.
    struct Script(Vec<Result<&'static str, ErrorKind>>);

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let text = self.0.remove(0).map_err(Error::from)?;
            buffer[..text.len()].copy_from_slice(text.as_bytes());
            Ok(text.len())
        }
    }

    #[test]
    fn an_interrupted_wait_goes_on_and_other_errors_end_it() {
        let mut buffer = [0; 8];
        let interrupted = ErrorKind::Interrupted;
        let mut script = Script(vec![Err(interrupted), Err(interrupted), Ok("abc")]);
        assert_eq!(read_on(&mut script, &mut buffer).expect("three bytes"), 3);
        let mut script = Script(vec![Err(interrupted), Err(ErrorKind::WouldBlock)]);
        let error = read_on(&mut script, &mut buffer).expect_err("too late");
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
}
