//! How a server ends, and how it refuses to start.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::client::{Client, streaming, whole};
use crate::fixture;

#[test]
fn streams_finish_before_a_drained_server_ends() {
    let server = fixture::start();
    let mut streaming_client = Client::new(&server);
    streaming_client.post("/v1/chat/completions", &streaming("org/paced", "[hundred] x"));
    assert_eq!(streaming_client.head().0, 200);
    let mut idle = Client::new(&server);
    assert_eq!(idle.get("/health").status, 200);
    let address = server.address();
    let stopping = std::thread::spawn(move || server.stop(Duration::from_secs(60)));
    let mut events = Vec::new();
    while let Some(chunk) = streaming_client.chunk() {
        events.extend(chunk);
    }
    assert!(String::from_utf8(events).unwrap().ends_with("data: [DONE]\n\n"));
    assert!(idle.is_at_end(), "an idle connection is closed");
    let totals = stopping.join().unwrap();
    assert_eq!((totals.finished, totals.cut), (1, 0));
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_stream_that_outlasts_the_drain_is_cut() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    client.post("/v1/chat/completions", &streaming("org/paced", "[long] x"));
    assert_eq!(client.head().0, 200);
    let totals = server.stop(Duration::from_millis(100));
    assert_eq!((totals.finished, totals.cut), (0, 1));
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a cut stream has no proper end");
}

/// The program itself, on a port that the system chooses.
struct Program {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    seen: Vec<String>,
    address: std::net::SocketAddr,
}

fn run(arguments: &[&str]) -> Program {
    run_with(arguments, &[])
}

fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Program {
    let mut child = Command::new(env!("CARGO_BIN_EXE_llmsimulator"))
        .args(["--host", "127.0.0.1", "--port", "0"])
        .args(arguments)
        .envs(variables.iter().copied())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let mut program = Program { child, log, seen: Vec::new(), address: ([127, 0, 0, 1], 0).into() };
    let line = program.read_log_until("listening on http://");
    let (_, address) = line.split_once("http://").unwrap();
    program.address = address.trim().parse().unwrap();
    program
}

impl Program {
    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        kill(&[name, &pid]);
    }

    fn read_log_until(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "the log ended before {what:?}");
            self.seen.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
    }
}

/// The shell's own: a small system has no program of this name.
pub(crate) fn kill(arguments: &[&str]) {
    let shell = Command::new("sh").args(["-c", "kill \"$@\"", "sh"]).args(arguments).status();
    assert!(shell.unwrap().success());
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn sigterm_lets_streams_finish_and_exits_with_0() {
    let mut program = run(&[]);
    let mut client = Client::to(program.address);
    client.post("/v1/chat/completions", &streaming("qwen-mock", "hello"));
    assert_eq!(client.head().0, 200);
    program.signal("-TERM");
    let mut events = Vec::new();
    while let Some(chunk) = client.chunk() {
        events.extend(chunk);
    }
    assert!(String::from_utf8(events).unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    program.log.read_to_string(&mut log).unwrap();
    assert!(log.contains("token lag p50"), "{log}");
}

#[test]
fn a_server_that_streamed_nothing_does_not_claim_a_lag_of_zero() {
    let mut program = run(&[]);
    let mut client = Client::to(program.address);
    assert_eq!(client.chat(&whole("qwen-mock", "hello")).status, 200);
    program.signal("-TERM");
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    program.log.read_to_string(&mut log).unwrap();
    assert!(log.ends_with("llmsimulator: 1 answers; no tokens were streamed\n"), "{log}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let mut program = run(&["--drain-timeout", "3600s"]);
    let mut client = Client::to(program.address);
    let endless = streaming("qwen-mock", "x")
        .replace("\"stream\"", "\"ignore_eos\":true,\"max_tokens\":30000,\"stream\"");
    client.post("/v1/chat/completions", &endless);
    assert_eq!(client.head().0, 200);
    program.signal("-INT");
    program.read_log_until("streams may finish");
    // As somebody does who will not wait.
    let code = loop {
        program.signal("-INT");
        if let Some(status) = program.child.try_wait().unwrap() {
            break status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(code, Some(130));
}

/// `timeout` sends its signal to the child and then to the child's group.
#[test]
fn a_signal_that_comes_twice_at_once_still_lets_streams_finish() {
    let mut program = run(&[]);
    let mut client = Client::to(program.address);
    client.post("/v1/chat/completions", &streaming("qwen-mock", "hello"));
    assert_eq!(client.head().0, 200);
    let pid = program.child.id().to_string();
    kill(&["-TERM", &pid, &pid]);
    let mut events = Vec::new();
    while let Some(chunk) = client.chunk() {
        events.extend(chunk);
    }
    assert!(String::from_utf8(events).unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_one_clear_message_and_exit_code_2() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_llmsimulator"))
        .args(["--host", "127.0.0.1", "--port", &port])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains(&port) && message.contains("--port"), "{message}");
}

#[test]
fn io_uring_that_was_forced_off_is_told_with_its_reason() {
    let mut program = run_with(&[], &[("MONOIO_FORCE_LEGACY_DRIVER", "1")]);
    let line = program.seen.iter().find(|line| line.contains("I/O driver")).unwrap();
    assert!(line.contains("epoll (io_uring is refused here"), "{line}");
    program.signal("-TERM");
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}
