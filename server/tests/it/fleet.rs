//! Several simulated GPUs in one process, each with a port of its own beside the shared one.

use std::net::{SocketAddr, TcpListener, TcpStream};

use llmsimulator::args::Settings;
use llmsimulator::boot::Server;

use crate::client::{Client, post, streaming, whole};
use crate::fixture::{self, DEFAULT_TEXT};

/// Three replicas of `batched` alone, a port each.
fn three(settings: &mut Settings) {
    settings.config.models.retain(|model| model.name == "batched");
    settings.config.models[0].replicas = 3;
    settings.port_per_replica = Some(0);
}

fn at(address: SocketAddr) -> Client {
    Client::to(address)
}

/// The value of one series of `/metrics`.
fn metric(address: SocketAddr, series: &str) -> f64 {
    let text = at(address).get("/metrics").text().to_owned();
    let line = text
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')));
    let line = line.unwrap_or_else(|| panic!("no {series} at {address}:\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Requests that vLLM's metrics call finished at their own end, of one engine.
fn finished(address: SocketAddr, engine: u16) -> f64 {
    let labels = format!(r#"engine="{engine}",finished_reason="stop",model_name="batched""#);
    metric(address, &format!("vllm:request_success_total{{{labels}}}"))
}

/// Opens a long stream on a port and reads its first token.
fn open_stream(address: SocketAddr) -> Client {
    let mut client = at(address);
    let body =
        streaming("batched", "[long] x").replace("\"stream\"", "\"max_tokens\":4000,\"stream\"");
    client.post("/v1/chat/completions", &body);
    assert_eq!(client.head().0, 200);
    client.chunk();
    client.chunk();
    client
}

/// The refusal of a start.
fn refusal(change: impl FnOnce(&mut Settings)) -> String {
    let mut settings = fixture::settings();
    change(&mut settings);
    Server::start(settings).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_port_answers_only_from_its_replica_and_the_shared_one_from_all() {
    let server = fixture::start_with(three);
    let ports = server.replica_addresses();
    assert_eq!(ports.len(), 3);
    for _ in 0..4 {
        assert_eq!(at(ports[1]).chat(&streaming("batched", "x")).streamed_text(), DEFAULT_TEXT);
    }
    assert_eq!([0, 1, 2].map(|engine| finished(server.address(), engine)), [0.0, 4.0, 0.0]);
    // Six through the shared port go to each in turn.
    for _ in 0..6 {
        assert_eq!(at(server.address()).chat(&whole("batched", "x")).status, 200);
    }
    assert_eq!([0, 1, 2].map(|engine| finished(server.address(), engine)), [2.0, 6.0, 2.0]);
}

/// vLLM's `X-data-parallel-rank` (generate/base/serving.py): any number that there is no rank for is refused
/// (v1/engine/input_processor.py), and what is no number is not looked at.
#[test]
fn a_gateway_chooses_the_replica_by_its_rank() {
    let server = fixture::start_with(three);
    let ask = |address: SocketAddr, path: &str, body: &str, rank: &str| {
        let mut client = at(address);
        let header = format!("Host: h\r\nX-data-parallel-rank: {rank}");
        client.send(post(path, body).replace("Host: h", &header));
        client.response()
    };
    let finished = || [0, 1, 2].map(|engine| finished(server.address(), engine));
    let chat = ("/v1/chat/completions", whole("batched", "x"));
    let all = [
        chat.clone(),
        ("/v1/chat/completions", streaming("batched", "x")),
        ("/v1/completions", r#"{"model":"batched","prompt":["x","y"]}"#.to_owned()),
        ("/v1/responses", r#"{"model":"batched","input":"x"}"#.to_owned()),
        (
            "/v1/messages",
            r#"{"model":"batched","max_tokens":9,"messages":[{"role":"user","content":"x"}]}"#
                .to_owned(),
        ),
    ];
    for (path, body) in &all {
        let answer = ask(server.address(), path, body, " 2 ");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    }
    assert_eq!(finished(), [0.0, 0.0, 6.0]);
    for rank in ["3", "-1", "99999999999999999999"] {
        for (path, body) in &all {
            let answer = ask(server.address(), path, body, rank);
            assert_eq!(answer.status, 400, "{path} {rank}: {}", answer.text());
            let why = "the model has 3 replicas here, ranks 0 to 2.";
            assert!(answer.text().contains(why), "{path} {rank}: {}", answer.text());
        }
    }
    let (path, body) = &chat;
    for _ in 0..3 {
        assert_eq!(ask(server.address(), path, body, "two").status, 200);
    }
    assert_eq!(finished(), [1.0, 1.0, 7.0]);
    // By its own port a replica is the only one, as a vLLM behind its own port is.
    let port = server.replica_addresses()[1];
    assert_eq!(ask(port, path, body, "0").status, 200);
    assert_eq!(ask(port, path, body, "1").status, 400);
    assert_eq!(finished(), [1.0, 2.0, 7.0]);
    // Nobody stands in for one that sleeps.
    let mut sleeper = at(port);
    sleeper.post("/sleep", "");
    assert_eq!(sleeper.response().status, 200);
    assert_eq!(ask(server.address(), path, body, "1").status, 503);
    assert_eq!(ask(server.address(), path, body, "0").status, 200);
}

#[test]
fn a_scrape_of_a_replica_s_port_shows_an_engine_of_its_own() {
    let server = fixture::start_with(three);
    let ports = server.replica_addresses();
    assert_eq!(at(ports[2]).chat(&whole("batched", "x")).status, 200);
    // vLLM's names: engine 0 and no other, as behind any port of a vLLM with one engine.
    let text = at(ports[2]).get("/metrics").text().to_owned();
    assert!(text.contains(r#"engine="0""#) && !text.contains(r#"engine="2""#));
    assert_eq!(ports.iter().map(|&port| finished(port, 0)).collect::<Vec<_>>(), [0.0, 0.0, 1.0]);
    // Our own names keep the replica's number, so that both views of it can be joined.
    let steps = "llm_sim_scheduler_step_duration_seconds_count";
    for (replica, &port) in ports.iter().enumerate() {
        let own = metric(port, &format!(r#"{steps}{{model="batched",replica="{replica}"}}"#));
        assert_eq!(own > 0.0, replica == 2, "replica {replica}");
        let text = at(port).get("/metrics").text().to_owned();
        let others = text.lines().filter(|line| {
            line.contains("replica=\"") && !line.contains(&format!("replica=\"{replica}\""))
        });
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
    }
    // What was delivered is told apart too: 8 tokens of a whole answer are released, none streamed.
    let tokens = r#"llm_sim_generation_tokens_total{model="batched"}"#;
    assert_eq!(ports.iter().map(|&port| metric(port, tokens)).collect::<Vec<_>>(), [0.0, 0.0, 8.0]);
    assert_eq!(metric(server.address(), tokens), 8.0);
    at(ports[0]).chat(&streaming("batched", "x"));
    let sent = r#"llm_sim_sent_tokens_total{model="batched"}"#;
    assert_eq!(ports.iter().map(|&port| metric(port, sent)).collect::<Vec<_>>(), [8.0, 0.0, 0.0]);
    // And so are the percentiles of the summary.
    let summaries = ports.iter().map(|&port| at(port).get("/metrics/summary").text().to_owned());
    let counts: Vec<bool> = summaries.map(|text| text.contains(r#""stop":1"#)).collect();
    assert_eq!(counts, [true, false, true]);
}

#[test]
fn probes_tell_of_the_replica_behind_the_port() {
    let server = fixture::start_with(three);
    let ports = server.replica_addresses();
    let stream = open_stream(ports[1]);
    let loads: Vec<String> =
        ports.iter().map(|&port| at(port).get("/load").text().to_owned()).collect();
    let idle = r#"{"server_load":0}"#;
    assert_eq!(loads, [idle, r#"{"server_load":1}"#, idle]);
    // SGLang's: one entry, and its rank is 0, since each port is a server of its own.
    let ranked = at(ports[1]).get("/get_load").text().to_owned();
    assert!(ranked.starts_with(r#"[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":0,"#), "{ranked}");
    assert_eq!(ranked.matches("dp_rank").count(), 1);
    assert_eq!(at(server.address()).get("/get_load").text().matches("dp_rank").count(), 3);
    // Tokens are what SGLang's router goes by, and a model without a KV cache has them too.
    let tokens = |address| {
        let text = at(address).get("/get_load").text().to_owned();
        let (_, count) = text.rsplit_once("\"num_tokens\":").unwrap();
        count.trim_end_matches("}]").parse::<u64>().unwrap()
    };
    assert_eq!([0, 2].map(|idle: usize| tokens(ports[idle])), [0, 0]);
    fixture::wait_until(&server, "tokens of a stream", |_| tokens(ports[1]) > 0);
    let paced = fixture::start_with(|settings| {
        settings.config.models.retain(|model| model.name == "org/paced");
    });
    let mut client = at(paced.address());
    let body = streaming("org/paced", "[long] x");
    client.post(
        "/v1/chat/completions",
        &body.replace("\"stream\"", "\"max_tokens\":2000,\"stream\""),
    );
    assert_eq!(client.head().0, 200);
    // The prompt and more than one token.
    fixture::wait_until(&paced, "tokens of a paced stream", |_| tokens(paced.address()) > 14);
    drop(client);
    fixture::wait_until(&paced, "nothing held", |_| tokens(paced.address()) == 0);
    for (address, replicas) in [(ports[1], 1), (server.address(), 3)] {
        let info = at(address).get("/server_info").text().to_owned();
        assert!(info.contains(&format!(r#""dp_size":{replicas},"#)), "{info}");
    }
    drop(stream);
}

#[test]
fn one_replica_sleeps_and_the_shared_port_goes_to_the_others() {
    let server = fixture::start_with(three);
    let ports = server.replica_addresses();
    at(ports[0]).send_and_expect("/sleep", 200);
    let asleep = |address| at(address).get("/is_sleeping").text().contains("true");
    assert_eq!(ports.iter().map(|&port| asleep(port)).collect::<Vec<_>>(), [true, false, false]);
    assert!(!asleep(server.address()));
    assert_eq!(at(ports[0]).chat(&whole("batched", "x")).status, 503);
    for _ in 0..6 {
        assert_eq!(at(server.address()).chat(&whole("batched", "x")).status, 200);
    }
    assert_eq!(finished(ports[0], 0), 0.0);
    assert_eq!(finished(ports[1], 0) + finished(ports[2], 0), 6.0);
    let state = |engine| {
        let labels =
            format!(r#"engine="{engine}",model_name="batched",sleep_state="weights_offloaded""#);
        metric(server.address(), &format!("vllm:engine_sleep_state{{{labels}}}"))
    };
    assert_eq!([0, 1, 2].map(state), [1.0, 0.0, 0.0]);
    // The shared port speaks for all.
    at(server.address()).send_and_expect("/sleep", 200);
    assert!(ports.iter().all(|&port| asleep(port)));
    assert_eq!(at(server.address()).chat(&whole("batched", "x")).status, 503);
    at(server.address()).send_and_expect("/wake_up", 200);
    assert_eq!(at(ports[0]).chat(&whole("batched", "x")).status, 200);
}

#[test]
fn models_have_their_ports_in_the_order_of_the_configuration() {
    let server = fixture::start_with(|settings| {
        // `instant` needs no timeline, and has ports all the same.
        settings.config.models[0].replicas = 2;
        settings.port_per_replica = Some(0);
    });
    let ports = server.replica_addresses();
    let names = ["instant", "instant", "org/paced", "batched"];
    assert_eq!(ports.len(), names.len());
    for (name, &port) in names.iter().zip(&ports) {
        let list = at(port).get("/v1/models").text().to_owned();
        assert_eq!(list.matches(r#""object":"model""#).count(), 1, "{list}");
        assert!(list.contains(&format!(r#""id":"{name}""#)), "{list}");
        assert_eq!(at(port).chat(&streaming(name, "x")).streamed_text(), DEFAULT_TEXT);
        let other = if *name == "batched" { "instant" } else { "batched" };
        assert_eq!(at(port).chat(&streaming(other, "x")).status, 404);
    }
    for (replica, &port) in ports[..2].iter().enumerate() {
        let labels = r#"engine="0",finished_reason="stop",model_name="instant""#;
        let count = metric(port, &format!("vllm:request_success_total{{{labels}}}"));
        assert_eq!(count, 1.0, "replica {replica}");
    }
    let log = server.boot_log().join("\n");
    let line = format!("listening on http://{} for instant, replica 1 alone", ports[1]);
    assert!(log.contains(&line), "{log}");
}

#[test]
fn ports_follow_the_first_one() {
    // Three free ports in a row, with some luck at the first try.
    for _ in 0..100 {
        let probe = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = probe.local_addr().unwrap().port();
        drop(probe);
        if base > 65_000 {
            continue;
        }
        let mut settings = fixture::settings();
        three(&mut settings);
        settings.port_per_replica = Some(base);
        let Ok(server) = Server::start(settings) else { continue };
        let ports: Vec<u16> = server.replica_addresses().iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [base, base + 1, base + 2]);
        return;
    }
    panic!("no three free ports in a row");
}

#[test]
fn ports_that_cannot_be_had_are_told_before_anything_is_served() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = taken.local_addr().unwrap().port();
    let message = refusal(|settings| {
        three(settings);
        settings.port_per_replica = Some(base);
    });
    assert!(message.contains(&format!("cannot listen on 127.0.0.1:{base}")), "{message}");
    assert!(message.contains("choose another with --port-per-replica"), "{message}");
    let message = refusal(|settings| {
        three(settings);
        settings.port_per_replica = Some(65_534);
    });
    assert!(message.contains("would end at 65536, beyond 65535"), "{message}");
    let message = refusal(|settings| {
        three(settings);
        (settings.port, settings.port_per_replica) = (8001, Some(8000));
    });
    assert!(message.contains("--port 8001 is one of the ports 8000 to 8002"), "{message}");
}

#[test]
fn all_ports_close_when_the_server_ends() {
    let server = fixture::start_with(three);
    let ports = server.replica_addresses();
    let idle = TcpStream::connect(ports[2]).unwrap();
    let totals = server.stop(std::time::Duration::from_secs(60));
    assert_eq!(totals.connections, 0);
    drop(idle);
    for port in ports {
        assert!(TcpStream::connect(port).is_err());
    }
}

impl Client {
    fn send_and_expect(&mut self, path: &str, status: u16) {
        self.send(post(path, ""));
        assert_eq!(self.response().status, status, "{path}");
    }
}
