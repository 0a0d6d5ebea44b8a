//! A live run, written down and lived through again without a clock.

use std::time::Duration;

use llmsim_engine::config::{self, Source};
use llmsim_engine::sim::journal::replay;
use llmsim_engine::units::SimSpan;
use llmsimulator::args::Admin;
use llmsimulator::boot::Server;

use crate::client::{Client, post, streaming, whole};
use crate::fixture;

#[test]
fn a_live_run_replayed_offline_gives_the_same_events_byte_for_byte() {
    live_and_offline("plain", SimSpan::ZERO, "[]");
}

#[test]
fn a_live_run_with_a_request_overhead_is_replayed_the_same() {
    live_and_offline("overhead", SimSpan::from_us(3_300), "[]");
}

#[test]
fn a_live_run_on_gpus_that_are_not_well_is_replayed_the_same() {
    let unwell = "timeline:\n  at 50ms: slow batched by 2 for 200ms\n  at 100ms: shrink batched to \
                  0.1% for 300ms\n  at 150ms: preempt batched\n  at 200ms: pause org/paced for \
                  50ms\n  at 250ms: slow org/paced by 3 for 100ms\n";
    live_and_offline("unwell", SimSpan::from_us(700), unwell);
}

/// Both GPUs, with something on each.
fn crash(server: &Server) {
    let mut clients: Vec<Client> = (0..4).map(|_| Client::new(server)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let model = ["org/paced", "batched"][number % 2];
        client.post("/v1/chat/completions", &streaming(model, "[long]"));
    }
    fixture::wait_until(server, "four to run", |totals| {
        totals.gpus.iter().all(|gpu| gpu.running == 2)
    });
    let mut admin = Client::new(server);
    admin.send(post("/admin/faults", "crash=20ms").replacen("POST", "PUT", 1));
    assert_eq!(admin.response().status, 200);
    fixture::wait_until(server, "the crash", |totals| totals.faulted == 4);
    // Up again, or refused in between: both are in the journal.
    while admin.chat(&whole("batched", "x")).status != 200 {}
}

#[test]
fn a_journal_can_be_read_while_its_server_stands_idle() {
    let path = std::env::temp_dir().join(format!("llmsim-journal-idle-{}", std::process::id()));
    let server = fixture::start_with(|settings| {
        settings.config.models.retain(|model| model.name == "batched");
        settings.logs.journal = Some(path.clone());
    });
    assert_eq!(Client::new(&server).chat(&whole("batched", "x")).status, 200);
    fixture::wait_until(&server, "the request in the journal", |_| {
        std::fs::read_to_string(&path).unwrap_or_default().contains("submit ")
    });
    drop(server);
    std::fs::remove_file(&path).unwrap();
    let mut events = path.into_os_string();
    events.push(".events");
    std::fs::remove_file(events).unwrap();
}

fn live_and_offline(name: &str, overhead: SimSpan, unwell: &str) {
    let directory =
        std::env::temp_dir().join(format!("llmsim-journal-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("run");
    let settings = fixture::settings();
    let specs: Vec<_> = settings
        .config
        .models
        .iter()
        .map(|model| (model.name.clone(), model.engine.clone()))
        .collect();
    let server = fixture::start_with(|settings| {
        settings.logs.journal = Some(path.clone());
        settings.admin = Admin { is_on: true, address: None };
        let faults = Source::new("faults", unwell);
        settings.config.faults = config::load_faults(&faults, &settings.config.models)
            .unwrap_or_else(|problems| panic!("{problems}"));
        for model in &mut settings.config.models {
            model.request_overhead = overhead;
        }
    });
    let mut clients: Vec<Client> = (0..100).map(|_| Client::new(&server)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let model = ["org/paced", "batched"][number % 2];
        let message = format!("[hundred] {}", "word ".repeat(number));
        let body =
            if number % 3 == 0 { whole(model, &message) } else { streaming(model, &message) };
        client.post("/v1/chat/completions", &body);
    }
    // Some hang up in the middle of it.
    let quitters = clients.split_off(80);
    fixture::wait_until(&server, "tokens", |totals| totals.tokens > 500);
    drop(quitters);
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    fixture::wait_until(&server, "an end", |totals| totals.in_flight == 0);
    if unwell != "[]" {
        crash(&server);
    }
    let mut client = Client::new(&server);
    client.send("POST /reset_prefix_cache HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(client.response().status, 200);
    client.chat(&whole("batched", "x"));
    server.stop(Duration::from_secs(60));

    for (model, file) in [("org/paced", "run.org%2Fpaced.0"), ("batched", "run.batched.0")] {
        let inputs = std::fs::read_to_string(directory.join(file)).unwrap();
        let events = std::fs::read_to_string(directory.join(format!("{file}.events"))).unwrap();
        let (_, spec) = specs.iter().find(|(name, _)| name == model).unwrap();
        let replayed = replay(&inputs, &mut spec.build()).unwrap();
        assert!(events.lines().count() > 3000, "{model}: {} events", events.lines().count());
        assert!(replayed == events, "{model}: the replay differs");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
