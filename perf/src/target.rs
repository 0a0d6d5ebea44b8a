//! A server of ours in a process of its own, and streams opened on it.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running `llmsimulator`, killed when dropped.
pub(crate) struct Target {
    child: Child,
    pub(crate) address: SocketAddr,
    config: PathBuf,
}

impl Target {
    /// Starts `binary` with `models_yml`, on a port that the system chooses, confined to `cpus`.
    pub(crate) fn start(binary: &Path, models_yml: &str, extra: &[String]) -> io::Result<Self> {
        let name = format!("llmsim-perf-{}-{}.yml", std::process::id(), models_yml.len());
        let config = std::env::temp_dir().join(name);
        std::fs::write(&config, models_yml)?;
        let mut child = Command::new(binary)
            .args(["--host", "127.0.0.1", "--port", "0", "--responses", "builtin:bench-responses"])
            .arg("--models")
            .arg(&config)
            .args(extra)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!("{}: {error}; build it with `cargo build --release`", binary.display()),
                )
            })?;
        let log = child.stderr.take().expect("stderr is piped above");
        let mut lines = BufReader::new(log).lines();
        let mut seen = String::new();
        for line in &mut lines {
            let line = line?;
            if let Some(address) = address_in(&line) {
                // Keep reading, or the server would block on a full pipe one day.
                std::thread::spawn(move || lines.for_each(drop));
                return Ok(Self { child, address, config });
            }
            seen.push_str(&line);
            seen.push('\n');
        }
        let _ = child.wait();
        Err(io::Error::other(format!("the server ended without an address:\n{seen}")))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens `streams` connections, and on each sends one streaming request of `max_tokens`.
    pub(crate) fn open(
        &self,
        model: &str,
        streams: usize,
        max_tokens: u32,
    ) -> io::Result<Vec<TcpStream>> {
        let connections: io::Result<Vec<TcpStream>> = (0..streams)
            .map(|_| {
                let socket = TcpStream::connect(self.address)?;
                socket.set_nodelay(true)?;
                Ok(socket)
            })
            .collect();
        let connections = connections?;
        for (i, mut socket) in connections.iter().enumerate() {
            let body = format!(
                r#"{{"model":"{model}","stream":true,"max_tokens":{max_tokens},"messages":[{{"role":"user","content":"stream {i}"}}]}}"#
            );
            write!(
                socket,
                "POST /v1/chat/completions HTTP/1.1\r\nhost: perf\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )?;
        }
        Ok(connections)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.config);
    }
}

/// The address in a boot line such as `listening on http://127.0.0.1:8080`.
fn address_in(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    let end = rest.find(|c: char| c.is_whitespace() || c == '/').unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// The server's binary beside ours: both are built into the same folder.
pub(crate) fn server_binary() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.with_file_name("llmsimulator")
}
