//! What a request says of its scheduling reaches the engine.

use std::time::Duration;

use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::Policy;

use crate::client::{Client, post, streaming, whole};
use crate::fixture;

fn with(body: &str, more: &str) -> String {
    format!("{{{more},{}", body.strip_prefix('{').unwrap())
}

#[test]
fn a_cache_salt_keeps_a_clients_prefixes_to_itself() {
    let server = fixture::start();
    let mut client = Client::new(&server);
    let body = whole("batched", &"word ".repeat(100));
    let mut cached = |salt: &str| {
        let response = client.chat(&with(&body, &format!(r#""cache_salt":"{salt}""#)));
        let (_, rest) = response.text().split_once(r#""cached_tokens":"#).unwrap();
        rest.split(',').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(cached("mine"), 0);
    // Of 108 tokens six blocks of 16 are full.
    assert_eq!(cached("mine"), 96);
    assert_eq!(cached("yours"), 0);
    assert_eq!(cached("yours"), 96);
}

#[test]
fn the_urgent_request_overtakes_the_one_that_waited_longer() {
    let directory = std::env::temp_dir().join(format!("llmsim-urgent-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let server = fixture::start_with(|settings| {
        settings.logs.journal = Some(directory.join("run"));
        for model in &mut settings.config.models {
            if let EngineSpec::Scheduler(spec) = &mut model.engine {
                spec.policy = Policy::Priority;
                spec.max_num_seqs = 1;
            }
        }
    });
    // The head of a stream says that the engine has its job.
    // vLLM's order (generate/base/serving.py, `_get_priority`): the header, if it is a number.
    let queued = |message: &str, header: &str, field: i32| {
        let mut client = Client::new(&server);
        let body = with(&streaming("batched", message), &format!(r#""priority":{field}"#));
        let header = format!("Host: h\r\nX-Vllm-Priority: {header}");
        client.send(post("/v1/chat/completions", &body).replace("Host: h", &header));
        assert_eq!(client.head().0, 200);
        client
    };
    // Its 4,000 tokens would take 20 s; it goes away when the other two wait.
    let running = queued("[long]", "high", -9);
    let mut patient = queued("patient", "", 5);
    let mut urgent = queued("urgent", "-5", 9);
    drop(running);
    for client in [&mut urgent, &mut patient] {
        while client.chunk().is_some() {}
    }
    drop((urgent, patient));
    server.stop(Duration::from_secs(60));

    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let id_of = |line: &str, at| line.split(' ').nth(at).unwrap().to_owned();
    let (inputs, events) = (read("run.batched.0"), read("run.batched.0.events"));
    let submitted: Vec<_> = inputs
        .lines()
        .filter(|line| line.starts_with("submit"))
        .map(|line| id_of(line, 2))
        .collect();
    let admitted: Vec<_> = events
        .lines()
        .filter(|line| line.contains(" admitted "))
        .map(|line| id_of(line, 1))
        .collect();
    let [running, patient, urgent] = &submitted[..] else { panic!("{inputs}") };
    assert_eq!(admitted, [running.clone(), urgent.clone(), patient.clone()], "{events}");
    std::fs::remove_dir_all(&directory).unwrap();
}
