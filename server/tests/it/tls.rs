//! HTTPS: the same bytes as over plain HTTP, and clients that misbehave before and after they shook
//! hands.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use llmsimulator::args::IoDriver;
use llmsimulator::boot::Server;
use llmsimulator::tls::Identity;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Client, connect, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

/// A server with a certificate of its own for `localhost`, and who trusts that certificate.
struct Secure {
    server: Server,
    config: ClientConfig,
}

type TlsStream<S = TcpStream> = StreamOwned<ClientConnection, S>;

fn start() -> Secure {
    start_with(|_| {})
}

fn start_with(change: impl FnOnce(&mut llmsimulator::args::Settings)) -> Secure {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = signing_key.serialize_pem();
    let identity = Identity::from_pem(cert.pem().as_bytes(), key.as_bytes()).unwrap();
    let server = fixture::start_with(|settings| {
        settings.tls = Some(identity);
        change(settings);
    });
    Secure { server, config: trusting(Some(cert.der())) }
}

fn trusting(cert: Option<&CertificateDer<'static>>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    if let Some(cert) = cert {
        roots.add(cert.clone()).unwrap();
    }
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

impl Secure {
    fn client(&self) -> Client<TlsStream> {
        self.client_over(connect(self.server.address()))
    }

    fn client_over<S: Read + Write>(&self, stream: S) -> Client<TlsStream<S>> {
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(self.config.clone()), name).unwrap();
        Client::over(StreamOwned::new(tls, stream))
    }

    fn metrics(&self) -> String {
        self.client().get("/metrics").text().to_owned()
    }

    /// Waits until so many handshakes ended in this way.
    fn wait_for_handshakes(&self, ended: &str, count: u64) {
        let wanted = format!("llm_sim_tls_handshakes_total{{ended=\"{ended}\"}} {count}\n");
        let start = Instant::now();
        loop {
            let metrics = self.metrics();
            if metrics.contains(&wanted) {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{wanted}{metrics}");
        }
    }
}

/// Lets only one byte through at a time.
struct Trickle(TcpStream);

impl Write for Trickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

/// All that a connection says to `request`, with what differs between two servers left out.
fn conversation(mut client: Client<impl Read + Write>, request: &str) -> String {
    client.send(request);
    let mut bytes = Vec::new();
    client.stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let mut lines: Vec<String> = Vec::new();
    for line in text.split_inclusive("\r\n") {
        let line = match line.split_once("\"created\":") {
            Some((before, after)) => {
                format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            None => line.to_owned(),
        };
        if !line.starts_with("date: ") && !line.starts_with("openai-processing-ms: ") {
            lines.push(line);
        }
    }
    lines.concat()
}

#[test]
fn an_answer_is_the_same_bytes_as_over_plain_http() {
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let plain = fixture::start_with(|settings| settings.threads.io_driver = driver);
        let secure = start_with(|settings| settings.threads.io_driver = driver);
        let bodies = [
            streaming("instant", "[long]"),
            streaming("org/paced", "[hundred]"),
            streaming("batched", "quotes"),
            whole("instant", "[long]"),
            whole("batched", "quotes"),
            "{".to_owned(),
        ];
        for body in &bodies {
            let request = post("/v1/chat/completions", body)
                .replace("Host: h", "Host: h\r\nX-Request-Id: same\r\nConnection: close");
            let expected = conversation(Client::new(&plain), &request);
            // Reading to the end fails if it is not announced by a close_notify.
            assert!(conversation(secure.client(), &request) == expected, "{body}");
        }
    }
}

#[test]
fn a_handshake_and_a_request_may_come_byte_by_byte() {
    let secure = start();
    let mut client = secure.client_over(Trickle(connect(secure.server.address())));
    for _ in 0..2 {
        assert_eq!(client.chat(&streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
    }
    secure.wait_for_handshakes("done", 2);
}

#[test]
fn a_large_request_comes_in_whole() {
    let secure = start();
    let mut client = secure.client();
    // More than the server reads at once, in dozens of records.
    let body = whole("instant", &"word ".repeat(90_000));
    assert_eq!(client.chat(&body).status, 200);
    assert_eq!(client.chat(&whole("instant", "x")).status, 200);
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up_and_misses_nothing() {
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let secure = start_with(|settings| settings.threads.io_driver = driver);
        let mut slow = secure.client();
        slow.post("/v1/chat/completions", &streaming("instant", "[long]"));
        fixture::wait_until(&secure.server, "tokens on their way", |totals| totals.tokens > 0);
        for _ in 0..20 {
            let mut other = secure.client();
            assert_eq!(other.chat(&streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
        }
        let totals =
            fixture::wait_until(&secure.server, "the others", |totals| totals.finished == 20);
        assert_eq!(totals.in_flight, 1, "the slow one still waits");
        assert_eq!(slow.response().events().len(), 1 + 50_000 + 2);
        assert_eq!(secure.server.stop(Duration::from_secs(60)).finished, 21);
    }
}

#[test]
fn hundreds_of_streams_over_tls_all_come_to_their_end() {
    let secure = start();
    let mut clients: Vec<_> = (0..300).map(|_| secure.client()).collect();
    for client in &mut clients {
        client.post("/v1/chat/completions", &streaming("batched", "[hundred] x"));
    }
    for mut client in clients {
        assert_eq!(client.response().events().len(), 1 + 100 + 2);
    }
    let totals = secure.server.stop(Duration::from_secs(60));
    assert_eq!((totals.finished, totals.disconnected, totals.cut), (300, 0, 0));
    assert_eq!(totals.token_lag.count, 300 * 100, "every token has a lag");
}

#[test]
fn a_client_that_says_goodbye_but_keeps_the_socket_has_gone() {
    let secure = start();
    let mut client = secure.client();
    client.post("/v1/chat/completions", &streaming("org/paced", "[long]"));
    assert_eq!(client.head().0, 200);
    let stream = client.stream.get_mut();
    stream.conn.send_close_notify();
    stream.conn.write_tls(&mut stream.sock).unwrap();
    fixture::wait_until(&secure.server, "the hang-up", |totals| totals.disconnected == 1);
}

#[test]
fn a_handshake_that_does_not_come_to_its_end_is_given_up() {
    let secure = start_with(|settings| {
        settings.limits.head_timeout = Duration::from_millis(200);
    });
    let mut silent = connect(secure.server.address());
    let mut half = connect(secure.server.address());
    // The beginning of a record that announces 512 bytes of a handshake.
    half.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    for stalled in [&mut silent, &mut half] {
        let mut said = Vec::new();
        let _ = stalled.read_to_end(&mut said);
        assert_eq!(said, b"", "closed without a word");
    }
    secure.wait_for_handshakes("timed_out", 2);
}

#[test]
fn plain_http_on_a_tls_port_is_told_so() {
    let secure = start();
    let mut client = Client::new(&secure.server);
    let response = client.get("/health");
    assert_eq!((response.status, response.header("connection")), (400, Some("close")));
    assert!(response.text().contains("Begin the URL with https://."), "{}", response.text());
    assert!(client.is_at_end());
    secure.wait_for_handshakes("plain_http", 1);
}

#[test]
fn those_who_cannot_agree_part_and_are_counted() {
    let mut secure = start();
    // Neither HTTP nor TLS.
    let mut noise = connect(secure.server.address());
    noise.write_all(&[0xff; 64]).unwrap();
    let mut said = Vec::new();
    let _ = noise.read_to_end(&mut said);
    // An alert, the 21, if anything.
    assert!(said.first().is_none_or(|&first| first == 21), "{said:?}");
    secure.wait_for_handshakes("failed", 1);
    // A probe of the port.
    drop(connect(secure.server.address()));
    secure.wait_for_handshakes("closed", 1);
    // A client that does not know our certificate.
    let trusting = std::mem::replace(&mut secure.config, trusting(None));
    let mut client = secure.client();
    let error = client.stream.get_mut().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    drop(client);
    secure.config = trusting.clone();
    secure.wait_for_handshakes("failed", 2);
    // One that speaks HTTP/2 only.
    secure.config.alpn_protocols = vec![b"h2".to_vec()];
    let error = secure.client().stream.get_mut().write_all(b"PRI").unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    secure.config = trusting;
    secure.wait_for_handshakes("failed", 3);
}

#[test]
fn of_the_protocols_that_a_client_offers_http_1_1_is_chosen() {
    let mut secure = start();
    secure.config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut client = secure.client();
    assert_eq!(client.get("/health").status, 200);
    assert_eq!(client.stream.get_ref().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
}

#[test]
fn a_client_that_comes_back_need_not_prove_itself_again() {
    let secure = start();
    let kind = |client: &mut Client<TlsStream>| {
        assert_eq!(client.get("/health").status, 200);
        client.stream.get_ref().conn.handshake_kind()
    };
    assert_eq!(kind(&mut secure.client()), Some(rustls::HandshakeKind::Full));
    assert_eq!(kind(&mut secure.client()), Some(rustls::HandshakeKind::Resumed));
}

#[test]
fn one_connection_too_many_is_closed_without_a_handshake() {
    let secure = start_with(|settings| settings.limits.max_connections = 1);
    let mut first = secure.client();
    assert_eq!(first.get("/health").status, 200);
    let error = secure.client().stream.get_mut().write_all(b"GET").unwrap_err();
    let kind = error.kind();
    assert!(
        matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset),
        "{kind}"
    );
    assert_eq!(first.get("/health").status, 200);
}

#[test]
fn a_drained_server_says_goodbye_to_idle_clients() {
    let secure = start();
    let mut idle = secure.client();
    assert_eq!(idle.get("/health").status, 200);
    let half_open = connect(secure.server.address());
    secure.server.stop(Duration::from_secs(60));
    // Not an error: the end is announced.
    assert!(idle.is_at_end());
    drop(half_open);
}
