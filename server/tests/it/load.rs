//! Many streams at once, and clients that misbehave among them.

use std::io::Read as _;
use std::time::Duration;

use llmsimulator::args::IoDriver;
use llmsimulator::boot::Server;

use crate::client::{Client, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

fn open(server: &Server, count: usize, body: &str) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| Client::new(server)).collect();
    for client in &mut clients {
        client.post("/v1/chat/completions", body);
    }
    clients
}

#[test]
fn of_a_thousand_streams_on_one_gpu_none_is_lost_short_or_out_of_order() {
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let server = fixture::start_with(|settings| settings.threads.io_driver = driver);
        let alone = {
            let mut client = Client::new(&server);
            client.chat(&streaming("instant", "[hundred] x")).streamed_text()
        };
        let clients = open(&server, 1000, &streaming("batched", "[hundred] x"));
        for mut client in clients {
            let response = client.response();
            assert_eq!(response.status, 200);
            assert_eq!(response.events().len(), 1 + 100 + 2);
            assert_eq!(response.streamed_text(), alone);
        }
        let totals = server.stop(Duration::from_secs(60));
        assert_eq!((totals.finished, totals.disconnected, totals.cut), (1001, 0, 0));
        assert_eq!(totals.tokens, 100 + 1000 * 100);
        assert_eq!(totals.token_lag.count, totals.tokens, "every token has a lag");
    }
}

#[test]
fn clients_that_hang_up_free_their_blocks_by_the_next_step() {
    let server = fixture::start();
    let body = streaming("batched", "[long]");
    let usable = server.totals().gpus[1].usable_blocks;
    let mut clients = open(&server, 1000, &body);
    fixture::wait_until(&server, "1,000 running", |totals| totals.gpus[1].running == 1000);
    let before = server.totals().gpus[1].clone();
    assert!(before.free_blocks < usable);
    clients.truncate(500);
    let gone = fixture::wait_until(&server, "500 hang-ups", |totals| totals.disconnected == 500);
    // The step that was being executed then may still end with them in it; the one after may not.
    let step = gone.gpus[1].steps;
    let after = fixture::wait_until(&server, "two steps", |totals| totals.gpus[1].steps > step + 1);
    assert_eq!(after.gpus[1].running, 500);
    assert_eq!((after.in_flight, after.disconnected), (500, 500));
    drop(clients);
    let end = fixture::wait_until(&server, "no stream", |totals| {
        totals.in_flight == 0 && totals.gpus[1].running == 0
    });
    assert_eq!(end.gpus[1].free_blocks, usable, "not a block is lost");
}

#[test]
fn a_client_that_hangs_up_while_it_waits_is_noticed() {
    // Nothing is written to a client that waits for its first token, so only a read can tell.
    let server = fixture::start();
    let mut client = Client::new(&server);
    let long = "word ".repeat(90_000);
    client.post("/v1/chat/completions", &streaming("org/paced", &long));
    fixture::wait_until(&server, "the generation", |totals| totals.in_flight == 1);
    drop(client);
    let totals = fixture::wait_until(&server, "the hang-up", |totals| totals.disconnected == 1);
    assert_eq!(totals.in_flight, 0);
}

#[test]
fn a_client_that_closes_its_side_only_has_gone_but_gets_what_needs_no_time() {
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let server = fixture::start_with(|settings| settings.threads.io_driver = driver);
        let half_closed = |request: &str| {
            let mut client = Client::new(&server);
            client.send(request);
            client.stream.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            client
        };
        assert_eq!(half_closed("GET /health HTTP/1.1\r\nHost: h\r\n\r\n").response().status, 200);
        let instant = post("/v1/chat/completions", &whole("instant", "x"));
        assert!(half_closed(&instant).response().text().contains(DEFAULT_TEXT));
        let paced = post("/v1/chat/completions", &streaming("org/paced", "[long]"));
        let mut cut = half_closed(&paced);
        fixture::wait_until(&server, "the hang-up", |totals| totals.disconnected == 1);
        let mut rest = Vec::new();
        let _ = cut.stream.read_to_end(&mut rest);
        assert!(!rest.ends_with(b"0\r\n\r\n"), "a cancelled stream has no end");
    }
}

#[test]
fn a_client_that_hangs_up_behind_much_that_it_pipelined_is_noticed() {
    // The server does not read that far ahead, so the end of the stream never reaches its buffer.
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let server = fixture::start_with(|settings| settings.threads.io_driver = driver);
        let mut client = Client::new(&server);
        client.post("/v1/chat/completions", &whole("org/paced", "[long]"));
        fixture::wait_until(&server, "the generation", |totals| totals.in_flight == 1);
        client.send("GET /health HTTP/1.1\r\nHost: h\r\n\r\n".repeat(4_000));
        drop(client);
        let totals = fixture::wait_until(&server, "the hang-up", |totals| totals.disconnected == 1);
        assert_eq!(totals.in_flight, 0);
    }
}

#[test]
fn a_client_that_does_not_read_holds_nobody_up_and_misses_nothing() {
    for driver in [IoDriver::Auto, IoDriver::Epoll] {
        let server = fixture::start_with(|settings| settings.threads.io_driver = driver);
        // 50,000 tokens at once are ten megabytes: far more than the kernel takes.
        let mut slow = open(&server, 1, &streaming("instant", "[long]")).remove(0);
        fixture::wait_until(&server, "tokens on their way", |totals| totals.tokens > 0);
        let mut others = open(&server, 20, &streaming("batched", "x"));
        for other in &mut others {
            assert_eq!(other.response().streamed_text(), DEFAULT_TEXT);
        }
        let totals = fixture::wait_until(&server, "the others", |totals| totals.finished == 20);
        assert_eq!(totals.in_flight, 1, "the slow one still waits");
        let response = slow.response();
        assert_eq!(response.events().len(), 1 + 50_000 + 2);
        assert!(!response.streamed_text().is_empty());
        assert_eq!(server.stop(Duration::from_secs(60)).finished, 21);
    }
}

#[test]
fn a_client_that_does_not_read_for_too_long_is_given_up() {
    let server = fixture::start_with(|settings| {
        settings.limits.write_timeout = Duration::from_millis(300);
    });
    let mut client = open(&server, 1, &streaming("instant", "[long]")).remove(0);
    let totals = fixture::wait_until(&server, "the stall", |totals| totals.stalled == 1);
    assert_eq!((totals.in_flight, totals.disconnected), (0, 0));
    let metrics = Client::new(&server).get("/metrics");
    assert!(metrics.text().contains("llm_sim_answers_total{ended=\"write_timeout\"} 1\n"));
    assert!(metrics.text().contains("llm_sim_answers_total{ended=\"sent\"} 0\n"));
    // What was sent can still be read, but it has no end.
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"));
}
