//! Beside every fault of the documentation, streams that it does not hit: each gets all its bytes, each
//! token on the instant of its timetable; and in the end every answer is counted once.
//!
//! How late tokens are sent is for a measurement; here it is the simulated GPUs that must not notice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use llmsim_engine::faults::{self, Fault, Stage};
use llmsimulator::args::Admin;
use llmsimulator::boot::Server;

use crate::client::{Client, streaming};
use crate::faults::{ask_once, examples, hits, nothing_is_left, put, rest};
use crate::fixture;

/// A server that writes down what its GPUs do.
struct Written {
    server: Server,
    directory: PathBuf,
}

impl Written {
    fn start(name: &str) -> Self {
        let name = format!("llmsim-neighbours-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let server = fixture::start_with(|settings| {
            settings.logs.journal = Some(directory.join("run"));
            settings.admin = Admin { is_on: true, address: None };
        });
        Self { server, directory }
    }

    /// How far apart the tokens of each request to each of these models were, in nanoseconds.
    fn gaps<const N: usize>(self, models: [&str; N]) -> [Vec<u64>; N] {
        self.server.stop(Duration::from_secs(60));
        let gaps = models.map(|model| {
            let file = self.directory.join(format!("run.{model}.0.events"));
            let mut last: BTreeMap<String, u64> = BTreeMap::new();
            let mut gaps = Vec::new();
            for line in std::fs::read_to_string(file).unwrap().lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let [at, job, "token", ..] = words[..] else { continue };
                let at: u64 = at.parse().unwrap();
                gaps.extend(last.insert(job.to_owned(), at).map(|before| at - before));
            }
            gaps
        });
        std::fs::remove_dir_all(&self.directory).unwrap();
        gaps
    }
}

/// A stream of a hundred tokens that is under way.
fn neighbour(server: &Server, model: &str) -> Client {
    let mut client = Client::new(server);
    client.post("/v1/chat/completions", &streaming(model, "[hundred] x"));
    assert_eq!(client.head().0, 200);
    client.chunk().unwrap();
    client
}

/// The text of what is left of a neighbour's stream, behind its role.
fn text_of(client: &mut Client) -> String {
    let mut text = String::new();
    while let Some(chunk) = client.chunk() {
        text.push_str(&String::from_utf8(chunk).unwrap());
    }
    let events =
        text.split_terminator("\n\n").filter(|event| event.contains("\"delta\":{\"content\":"));
    events.map(crate::client::content_of).collect()
}

/// The examples of one stage with what they are called.
fn of_stage(wanted: fn(Stage) -> bool) -> Vec<(String, Fault)> {
    let read = |words: String| (faults::parse(&words).unwrap().remove(0).fault, words);
    let all = examples().into_iter().map(read);
    all.filter(|(fault, _)| wanted(fault.stage())).map(|(fault, words)| (words, fault)).collect()
}

/// The counts of answers by how they ended, added up.
fn answers(server: &Server) -> f64 {
    let metrics = Client::new(server).get("/metrics").text().to_owned();
    let lines = metrics.lines().filter(|line| line.starts_with("llm_sim_answers_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn whatever_befalls_a_request_the_streams_beside_it_keep_their_timetable() {
    let written = Written::start("requests");
    let server = &written.server;
    let said = server_says(server);
    let (mut finished, mut faulted) = (1, 0);
    for (words, fault) in of_stage(|stage| stage != Stage::Engine) {
        let mut beside = ["org/paced", "batched"].map(|model| neighbour(server, model));
        // A rate limit hits what is too much.
        let times = if matches!(fault, Fault::RateLimit { .. }) { 4 } else { 1 };
        for _ in 0..times {
            drop(rest(&mut ask_once(server, &words, &streaming("batched", "x"))));
        }
        for client in &mut beside {
            assert_eq!(text_of(client), said, "{words}");
        }
        fixture::wait_until(server, &words, |_| hits(server, fault.kind()) == 1.0);
        finished += 2;
        match fault {
            Fault::Status(_)
            | Fault::QueueFull
            | Fault::Capacity
            | Fault::Unready(_)
            | Fault::Hang(_)
            | Fault::Close
            | Fault::Reset => {}
            Fault::Stop { .. } | Fault::TruncatedEvent { .. } | Fault::ErrorEvent { .. } => {
                faulted += 1;
            }
            Fault::RateLimit { .. } => finished += 3,
            _ => finished += 1,
        }
    }
    let totals = fixture::wait_until(server, "all to end", |totals| totals.in_flight == 0);
    assert_eq!((totals.finished, totals.faulted), (finished, faulted));
    assert_eq!((totals.disconnected, totals.stalled, totals.cut, totals.refused), (0, 0, 0, 0));
    assert_eq!(answers(server), (finished + faulted) as f64);
    nothing_is_left(server);
    let [paced, batched] = written.gaps(["org%2Fpaced", "batched"]);
    // A millisecond for each token, and a step of five: of neighbours, of whoever was hit, of all.
    assert!(paced.len() >= 22 * 99 && paced.iter().all(|gap| *gap == 1_000_000), "{paced:?}");
    assert!(batched.len() >= 22 * 99 && batched.iter().all(|gap| *gap == 5_000_000), "{batched:?}");
}

#[test]
fn whatever_befalls_a_gpu_the_streams_of_others_keep_their_timetable() {
    let written = Written::start("gpus");
    let server = &written.server;
    let said = server_says(server);
    let (mut finished, mut faulted) = (1, 0);
    for (words, fault) in of_stage(|stage| stage == Stage::Engine) {
        let mut victim = neighbour(server, "batched");
        let mut beside = ["org/paced", "org/paced"].map(|model| neighbour(server, model));
        put(server, &format!("- {words} model=batched"));
        for client in &mut beside {
            assert_eq!(text_of(client), said, "{words}");
        }
        let survives = fault.kind() != "crash";
        assert_eq!(text_of(&mut victim) == said, survives, "{words}");
        finished += 2 + u64::from(survives);
        faulted += u64::from(!survives);
        fixture::wait_until(server, &words, |_| hits(server, fault.kind()) >= 1.0);
        put(server, "[]");
        fixture::wait_until(server, "the restart", |_| {
            Client::new(server).get("/health").status == 200
        });
    }
    let totals = fixture::wait_until(server, "all to end", |totals| totals.in_flight == 0);
    assert_eq!((totals.finished, totals.faulted), (finished, faulted));
    assert_eq!((totals.disconnected, totals.stalled, totals.cut, totals.refused), (0, 0, 0, 0));
    assert_eq!(answers(server), (finished + faulted) as f64);
    nothing_is_left(server);
    let [paced] = written.gaps(["org%2Fpaced"]);
    assert!(paced.len() >= 10 * 99 && paced.iter().all(|gap| *gap == 1_000_000), "{paced:?}");
}

/// What a neighbour says where nothing befalls anybody.
fn server_says(server: &Server) -> String {
    let said = text_of(&mut neighbour(server, "batched"));
    assert!(said.len() > 100, "{said}");
    said
}
