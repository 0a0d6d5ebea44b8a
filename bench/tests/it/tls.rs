//! Targets that speak https: a certificate has to be trusted, and then all is as in the clear.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::server::{FINISH, TOKEN, Then, one_token, serve};

/// What a certificate that signs itself says of its owner.
#[derive(Clone, Copy)]
enum Says {
    /// That it is a server.
    Server,
    /// That it is an authority, as `openssl req -x509` writes unless it is told otherwise.
    Authority,
}

/// A server for `localhost` with a certificate of its own, and that certificate in a file.
fn secure(name: &str, says: Says) -> (SocketAddr, PathBuf) {
    let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    params.is_ca = match says {
        Says::Server => IsCa::NoCa,
        Says::Authority => IsCa::Ca(BasicConstraints::Unconstrained),
    };
    let signing_key = KeyPair::generate().expect("a key");
    let cert = params.self_signed(&signing_key).expect("a certificate");
    let folder = std::env::temp_dir().join(format!("llmsim-bench-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join(format!("{name}.pem"));
    std::fs::write(&file, cert.pem()).expect("written");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key.into())
        .expect("a key that fits");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let tls = ServerConnection::new(Arc::clone(&config)).expect("a connection");
            std::thread::spawn(move || answer_all(StreamOwned::new(tls, socket)));
        }
    });
    (address, file)
}

/// Answers every request with two tokens, each event in a record of its own.
fn answer_all(mut stream: StreamOwned<ServerConnection, std::net::TcpStream>) {
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => input.extend_from_slice(&buffer[..n]),
            _ => return,
        }
        // A request's body ends with the only closing brace at the end of a read.
        if !input.ends_with(b"}") {
            continue;
        }
        input.clear();
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}"#;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        let mut sent = stream.write_all(head.as_bytes());
        for event in [TOKEN, TOKEN, FINISH, usage, "[DONE]"] {
            let event = format!("data: {event}\n\n");
            sent = sent.and_then(|()| write!(stream, "{:x}\r\n{event}\r\n", event.len()));
            sent = sent.and_then(|()| stream.flush());
        }
        if sent.and_then(|()| stream.write_all(b"0\r\n\r\n")).is_err() {
            return;
        }
    }
}

fn bench(url: &str, args: &[&str]) -> (Output, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_llmsim-bench"))
        .args(["--url", url, "-m", "x", "-n", "6", "-c", "2", "--max-tokens", "2", "--quiet"])
        .args(["--no-server-metrics"])
        .args(args)
        .output()
        .expect("the program runs");
    let said =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out, said)
}

#[test]
fn a_trusted_server_is_measured_as_one_in_the_clear() {
    let (server, server_file) = secure("trusted", Says::Server);
    let (authority, authority_file) = secure("authority", Says::Authority);
    for (address, trust) in [
        (server, &["--ca-cert", server_file.to_str().expect("a path in ASCII")][..]),
        (server, &["--insecure"]),
        (authority, &["--ca-cert", authority_file.to_str().expect("a path in ASCII")]),
    ] {
        let url = format!("https://localhost:{}/v1", address.port());
        for driver in ["auto", "epoll"] {
            let (out, said) = bench(&url, &[trust, &["--io-driver", driver]].concat());
            assert_eq!(out.status.code(), Some(0), "{said}");
            assert!(said.contains("6 ok · 0 failed"), "{said}");
            assert!(said.contains("output                 2"), "{said}");
            // The tickets that a server sends unasked do not spoil a waiting connection.
            assert!(!said.contains("had to be opened"), "{said}");
        }
    }
}

#[test]
fn a_stranger_is_refused_with_a_way_out() {
    let (address, _) = secure("stranger", Says::Authority);
    let (_, other) = secure("other", Says::Authority);
    let url = format!("https://localhost:{}/v1", address.port());
    let other = other.to_str().expect("a path in ASCII");
    let (out, said) = bench(&url, &["--ca-cert", other]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("connect: ") && said.contains("--insecure trusts anybody"), "{said}");
    // The name counts, too, whatever the certificate says of its owner.
    for (name, says) in [("named", Says::Server), ("named-authority", Says::Authority)] {
        let (address, file) = secure(name, says);
        let url = format!("https://127.0.0.1:{}/v1", address.port());
        let (out, said) = bench(&url, &["--ca-cert", file.to_str().expect("a path in ASCII")]);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("--insecure trusts anybody"), "{said}");
    }
}

#[test]
fn the_wrong_scheme_is_told_from_either_side() {
    let address = serve(|_, _, stream| {
        one_token(stream);
        Then::Keep
    });
    let (out, said) = bench(&format!("https://localhost:{}/v1", address.port()), &["--insecure"]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("TLS"), "{said}");
    let (address, _) = secure("in-the-clear", Says::Server);
    let (out, said) = bench(&format!("http://localhost:{}/v1", address.port()), &[]);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("is the target https?"), "{said}");
}

#[test]
fn trust_without_tls_or_in_nothing_is_refused() {
    for (args, why) in [
        (&["--insecure"][..], "--insecure does nothing without an https:// address"),
        (&["--ca-cert", "x.pem"], "--ca-cert does nothing without an https:// address"),
    ] {
        let (out, said) = bench("http://localhost:1/v1", args);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains(why), "{said}");
    }
    let (out, said) = bench("https://localhost:1/v1", &["--ca-cert", "/dev/null"]);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--ca-cert /dev/null: no certificate in it"), "{said}");
}
