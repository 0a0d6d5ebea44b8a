//! A server in a process of its own, ours or a peer, and streams opened on it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::sys;

/// A running server, killed when dropped.
pub(crate) struct Target {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Where it takes chat requests.
    pub(crate) path: &'static str,
    config: PathBuf,
    /// What it writes, where that is kept while it runs.
    log: Option<PathBuf>,
}

/// Where a peer's log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLog {
    /// To `/dev/null`.
    Null,
    /// To a file of its own for each start, as Docker's or CI's.
    File,
}

/// What every stream asks for.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) model: &'a str,
    pub(crate) content: &'a str,
    pub(crate) max_tokens: u32,
    /// Over how long the requests are spread.
    pub(crate) stagger_us: u64,
}

impl Target {
    /// Starts `binary` with `models_yml`, on a port that the system chooses, confined to `cpus`.
    pub(crate) fn start(binary: &Path, models_yml: &str, extra: &[String]) -> io::Result<Self> {
        let name = format!("llmsim-perf-{}-{}.yml", std::process::id(), models_yml.len());
        let config = std::env::temp_dir().join(name);
        std::fs::write(&config, models_yml)?;
        let command = Command::new(binary);
        Self::start_as(command, binary, config, extra)
    }

    /// The same under callgrind, which leaves its counts in `out` at the end.
    pub(crate) fn start_under_callgrind(
        binary: &Path,
        models_yml: &str,
        out: &Path,
    ) -> io::Result<Self> {
        let name = format!("llmsim-perf-{}-{}.yml", std::process::id(), models_yml.len());
        let config = std::env::temp_dir().join(name);
        std::fs::write(&config, models_yml)?;
        let mut command = Command::new("valgrind");
        command.arg("--tool=callgrind").arg("-q");
        command.arg(format!("--callgrind-out-file={}", out.display())).arg(binary);
        let extra = ["--io-driver", "epoll", "--spin", "never"].map(str::to_owned);
        Self::start_as(command, Path::new("valgrind"), config, &extra)
    }

    fn start_as(
        mut command: Command,
        binary: &Path,
        config: PathBuf,
        extra: &[String],
    ) -> io::Result<Self> {
        // Also if this program is killed.
        sys::end_with_us(&mut command);
        let mut child = command
            .args(["--host", "127.0.0.1", "--port", "0", "--responses", "builtin:bench-responses"])
            .arg("--models")
            .arg(&config)
            .args(extra)
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                io::Error::new(
                    error.kind(),
                    format!(
                        "{}: {error}; build it with `cargo build --release`, or install it",
                        binary.display()
                    ),
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
                return Ok(Self {
                    child,
                    address,
                    path: "/v1/chat/completions",
                    config,
                    log: None,
                });
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

    /// Lets it end in good order, and waits for that.
    pub(crate) fn end(mut self) -> io::Result<()> {
        sys::ask_to_end(self.pid());
        let until = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > until {
                return Err(io::Error::other("the server does not end"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts llmsim (the peer on crates.io) with a configuration in its own format.
    pub(crate) fn start_llmsim(binary: &Path, toml: &str, log: PeerLog) -> io::Result<Self> {
        let config = std::env::temp_dir().join(format!("llmsim-peer-{}.toml", std::process::id()));
        std::fs::write(&config, toml)?;
        let log = (log == PeerLog::File).then(|| config.with_extension("log"));
        let stdout = match &log {
            Some(path) => Stdio::from(File::create(path)?),
            None => Stdio::null(),
        };
        // It cannot choose a port by itself.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(binary);
        sys::end_with_us(&mut command);
        let child = command
            .args(["serve", "--host", "127.0.0.1", "--port", &address.port().to_string()])
            .arg("--config")
            .arg(&config)
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", binary.display()))
            })?;
        let target = Self { child, address, path: "/openai/v1/chat/completions", config, log };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > until {
                return Err(io::Error::other("the peer does not listen"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(target)
    }

    /// Opens `streams` connections, and on each sends one streaming request.
    pub(crate) fn open(&self, streams: usize, ask: Ask<'_>) -> io::Result<Vec<TcpStream>> {
        let connections: io::Result<Vec<TcpStream>> =
            (0..streams).map(|_| connect(self.address)).collect();
        let connections = connections?;
        let request = request(self.path, ask.model, ask.content, ask.max_tokens, Form::Stream);
        let start = Instant::now();
        for (i, mut socket) in connections.iter().enumerate() {
            // Offsets by the golden ratio: even over the whole time, and in no simple ratio to any
            // period.
            let share = (i as f64 + (i as f64 * 0.618_034).fract()) / streams as f64;
            let due = Duration::from_micros((ask.stagger_us as f64 * share) as u64);
            while ask.stagger_us > 0 && start.elapsed() < due {
                std::thread::sleep(Duration::from_micros(50));
            }
            socket.write_all(&request)?;
        }
        Ok(connections)
    }
}

pub(crate) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// In which form an answer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Stream,
    Whole,
}

/// The bytes of a chat request.
pub(crate) fn request(
    path: &str,
    model: &str,
    content: &str,
    max_tokens: u32,
    form: Form,
) -> Vec<u8> {
    let is_stream = form == Form::Stream;
    let body = format!(
        r#"{{"model":"{model}","stream":{is_stream},"max_tokens":{max_tokens},"messages":[{{"role":"user","content":"{content}"}}]}}"#
    );
    format!(
        "POST {path} HTTP/1.1\r\nhost: perf\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for path in [Some(&self.config), self.log.as_ref()].into_iter().flatten() {
            let _ = std::fs::remove_file(path);
        }
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
