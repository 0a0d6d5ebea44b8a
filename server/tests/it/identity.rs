//! The same request gives the same bytes, whatever serves it.

use llmsimulator::args::IoDriver;

use crate::client::{Client, post, streaming, whole};
use crate::fixture;

/// All answers of a server to a few requests, with fixed ids and without times.
fn answers(io_threads: usize, io_driver: IoDriver) -> Vec<String> {
    let server = fixture::start_with(|settings| {
        settings.threads.io_threads = Some(io_threads);
        settings.threads.io_driver = io_driver;
    });
    let mut clients = Vec::new();
    for model in ["instant", "org/paced", "batched"] {
        for message in ["x", "quotes", "[hundred] a", "[hundred] b"] {
            for body in [streaming(model, message), whole(model, message)] {
                // A new connection each, so that all I/O threads get some.
                let mut client = Client::new(&server);
                let request = post("/v1/chat/completions", &body)
                    .replace("Host: h", "Host: h\r\nX-Request-Id: same");
                client.send(request);
                clients.push(client);
            }
        }
    }
    clients.iter_mut().map(|client| without_times(client.response().text())).collect()
}

/// `created` is the only thing that may differ.
fn without_times(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(r#""created":"#) {
        out += before;
        rest = after.trim_start_matches(|char: char| char.is_ascii_digit());
    }
    out + rest
}

#[test]
fn restarts_threads_and_drivers_do_not_change_a_byte() {
    let first = answers(1, IoDriver::Epoll);
    assert_eq!(first, answers(1, IoDriver::Epoll), "a restart");
    assert_eq!(first, answers(2, IoDriver::Epoll), "two I/O threads");
    // Where io_uring is refused this is epoll again, which the boot log says.
    assert_eq!(first, answers(1, IoDriver::Auto), "io_uring");
    assert_eq!(first, answers(2, IoDriver::Auto), "io_uring on two I/O threads");
}
