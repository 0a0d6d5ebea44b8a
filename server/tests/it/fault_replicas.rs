//! Failures on purpose where a model has several simulated GPUs, or the server ends meanwhile.

use std::time::Duration;

use llmsim_engine::config::{self, Source};
use llmsimulator::args::{Admin, Settings};
use llmsimulator::boot::Server;

use crate::client::{Client, streaming, whole};
use crate::faults::{ask, hits, nothing_is_left, put, rest, text};
use crate::fixture::{self, DEFAULT_TEXT};

/// Three replicas of `batched` alone, a port each, and `/admin/faults`.
fn three(settings: &mut Settings) {
    settings.config.models.retain(|model| model.name == "batched");
    settings.config.models[0].replicas = 3;
    settings.port_per_replica = Some(0);
    settings.admin = Admin { is_on: true, address: None };
}

fn healths(server: &Server) -> Vec<u16> {
    let ports = server.replica_addresses();
    ports.iter().map(|&port| Client::to(port).get("/health").status).collect()
}

/// A stream of 300 tokens, which takes 1.5 s, on each of these replicas; each has begun.
fn begun(server: &Server, replicas: &[usize]) -> Vec<Client> {
    let body = streaming("batched", "[hundred] x")
        .replace("\"stream\"", "\"max_tokens\":300,\"ignore_eos\":true,\"stream\"");
    let ports = server.replica_addresses();
    let open = |replica: &usize| {
        let mut client = Client::to(ports[*replica]);
        client.post("/v1/chat/completions", &body);
        client.head();
        client.chunk().unwrap();
        client
    };
    replicas.iter().map(open).collect()
}

/// The events that still come.
fn remaining(client: &mut Client) -> Vec<String> {
    let chunks: Vec<u8> = std::iter::from_fn(|| client.chunk()).flatten().collect();
    text(&chunks).split_terminator("\n\n").map(str::to_owned).collect()
}

#[test]
fn a_crash_of_one_replica_befalls_its_own_requests_and_no_others() {
    let server = fixture::start_with(three);
    let mut streams = begun(&server, &[0, 1, 2]);
    put(&server, "crash=1h gpu=batched/1");
    let [first, crashed, third] = &mut streams[..] else { panic!("three replicas") };
    let events = remaining(crashed);
    assert!(events.len() < 300);
    let [.., error, done] = &events[..] else { panic!("{events:?}") };
    assert!(error.contains("\"InternalServerError\""), "{error}");
    assert_eq!(done, "data: [DONE]");
    // Its port says so, and the shared one goes to the others.
    assert_eq!(healths(&server), [200, 503, 200]);
    assert_eq!(Client::new(&server).get("/health").status, 200);
    let port = server.replica_addresses()[1];
    let refused = Client::to(port).chat(&streaming("batched", "x"));
    assert_eq!(refused.status, 503);
    assert!(refused.header("retry-after").is_some());
    for _ in 0..6 {
        let answer = Client::new(&server).chat(&streaming("batched", "x"));
        assert_eq!(answer.streamed_text(), DEFAULT_TEXT);
    }
    // The role has been read; 300 tokens, the finish reason and `[DONE]` are to come.
    for other in [first, third] {
        assert_eq!(remaining(other).len(), 302);
    }
    assert_eq!(hits(&server, "crash"), 1.0);
    let totals = fixture::wait_until(&server, "all to end", |totals| totals.in_flight == 0);
    assert_eq!((totals.faulted, totals.finished), (1, 8));
    for gpu in &totals.gpus {
        assert_eq!((gpu.running, gpu.waiting, gpu.free_blocks), (0, 0, gpu.usable_blocks));
    }
}

#[test]
fn replicas_that_start_late_get_nothing_until_they_are_up() {
    let server = fixture::start_with(|settings| {
        three(settings);
        let rules = "- crash=1h gpu=batched/0\n- crash=300ms gpu=batched/2\n";
        let source = Source::new("faults", rules);
        settings.config.faults = config::load_faults(&source, &settings.config.models)
            .unwrap_or_else(|problems| panic!("{problems}"));
    });
    // From the first request on: nobody is sent to one that is not up, and all are served.
    for _ in 0..6 {
        let answer = Client::new(&server).chat(&streaming("batched", "x"));
        assert_eq!(answer.streamed_text(), DEFAULT_TEXT);
    }
    fixture::wait_until(&server, "the third to be up", |_| healths(&server) == [503, 200, 200]);
    let port = server.replica_addresses()[2];
    assert_eq!(Client::to(port).chat(&whole("batched", "x")).status, 200);
    let totals = server.totals();
    assert_eq!((totals.faulted, totals.finished), (0, 7));
}

#[test]
fn all_replicas_down_is_a_503_until_one_is_up() {
    let server = fixture::start_with(three);
    put(&server, "- crash=1h gpu=0\n- crash=1h gpu=1\n- crash=400ms gpu=2\n");
    let status = || Client::new(&server).chat(&whole("batched", "x")).status;
    fixture::wait_until(&server, "one that is up", |_| {
        let status = status();
        assert!([200, 503].contains(&status), "{status}");
        status == 200
    });
    assert_eq!(healths(&server), [503, 503, 200]);
    assert_eq!(hits(&server, "crash"), 3.0);
}

#[test]
fn a_gpu_that_is_slow_slows_its_own_requests_only() {
    let server = fixture::start_with(three);
    put(&server, "slow=1000 gpu=batched/0");
    let mut streams = begun(&server, &[1, 2]);
    for stream in &mut streams {
        assert_eq!(remaining(stream).len(), 302);
    }
    // A step of that one takes five seconds.
    let mut slow = Client::to(server.replica_addresses()[0]);
    slow.post("/v1/chat/completions", &streaming("batched", "x"));
    slow.stream.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let (bytes, _) = rest(&mut slow);
    assert!(!text(&bytes).contains("content\":\"One"), "{}", text(&bytes));
    drop(slow);
    fixture::wait_until(&server, "it to be let go", |totals| totals.in_flight == 0);
}

#[test]
fn a_drain_on_purpose_lets_finish_what_runs() {
    let server = fixture::start_with(three);
    let mut streams = begun(&server, &[0, 1, 2]);
    put(&server, "draining for=1h");
    assert_eq!(Client::new(&server).chat(&whole("batched", "x")).status, 503);
    assert_eq!(healths(&server), [503, 503, 503]);
    for stream in &mut streams {
        assert_eq!(remaining(stream).len(), 302);
    }
    put(&server, "[]");
    assert_eq!(healths(&server), [200, 200, 200]);
    nothing_is_left(&server);
}

#[test]
fn a_server_that_ends_does_not_wait_for_silence_but_for_what_still_comes() {
    let server = fixture::start();
    let stream = streaming("batched", "[hundred] x");
    let mut silent = vec![
        ask(&server, "hang", &stream),
        ask(&server, "stop=3 end=silence", &stream),
        ask(&server, "stop=3 end=silence", &whole("batched", "x")),
    ];
    let mut stalled = ask(&server, "stall=300ms after=3", &stream);
    fixture::wait_until(&server, "all to be struck", |_| {
        hits(&server, "hang") + hits(&server, "stop") + hits(&server, "stall") == 4.0
    });
    // An hour, if it waited for the three that say nothing more.
    let end = server.stop(Duration::from_secs(3_600));
    assert_eq!((end.in_flight, end.connections, end.cut), (0, 0, 0));
    for client in &mut silent {
        let (_, ended) = rest(client);
        assert_eq!(ended, None);
    }
    let answer = stalled.response();
    assert_eq!(answer.events().len(), 103, "the stalled one got all of it");
}
