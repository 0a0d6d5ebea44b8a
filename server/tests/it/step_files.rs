//! `--step-log` and `--trace` of a live server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value};

const MODELS: &str = "
models:
  - name: batched
    context_length: 4096
    engine: scheduler
    hardware: h100-sxm
    model: llama-3.1-8b
";

#[test]
fn a_live_request_is_in_the_step_log_and_in_the_trace() {
    let directory = std::env::temp_dir().join(format!("llmsim-steps-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = |name: &str| directory.join(name);
    std::fs::write(path("models.yml"), MODELS).unwrap();
    let mut server = Command::new(env!("CARGO_BIN_EXE_llmsimulator"))
        .args(["--host", "127.0.0.1", "--port", "0", "--responses", "builtin:bench-responses"])
        .args(["--models".as_ref(), path("models.yml").as_os_str()])
        .args(["--step-log".as_ref(), path("steps.jsonl").as_os_str()])
        .args(["--trace".as_ref(), path("trace.json").as_os_str()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(server.stderr.take().unwrap()).lines();
    let address = log
        .find_map(|line| Some(line.unwrap().split_once("listening on http://")?.1.to_owned()))
        .expect("the server says where it listens");

    let body =
        r#"{"model":"batched","messages":[{"role":"user","content":"[long]"}],"max_tokens":5}"#;
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");

    crate::ending::kill(&["-TERM", &server.id().to_string()]);
    log.for_each(drop);
    assert!(server.wait().unwrap().success());
    let steps = std::fs::read_to_string(path("steps.jsonl")).unwrap();
    let trace = std::fs::read_to_string(path("trace.json")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();

    // The prompt in one step, and four more tokens in as many steps: reaching `max_tokens` costs no
    // further one. Reading 16 GB of weights is what bounds them all.
    let steps: Vec<Value> = steps.lines().map(|line| sonic_rs::from_str(line).unwrap()).collect();
    let of = |key: &str| steps.iter().map(|step| step.get(key).as_u64()).collect::<Vec<_>>();
    assert_eq!(of("decode_tokens"), [0, 1, 1, 1, 1].map(Some));
    assert_eq!(of("running"), [1; 5].map(Some));
    for step in &steps {
        assert_eq!(step.get("gpu").as_str(), Some("batched/0"));
        assert_eq!(step.get("bound_by").as_str(), Some("memory"));
        assert_eq!(step.get("tokens").as_object().map(|tokens| tokens.len()), Some(1));
    }

    let events: Vec<Value> = sonic_rs::from_str(&trace).unwrap();
    let count = |kind: &str, name: &str| {
        let wanted = |event: &&Value| {
            event.get("ph").as_str() == Some(kind)
                && event.get("name").as_str().is_some_and(|text| text.starts_with(name))
        };
        events.iter().filter(wanted).count()
    };
    assert_eq!((count("X", "prefill"), count("X", "decode")), (1, 4));
    assert_eq!((count("b", "request"), count("e", "request")), (1, 1));
    let ended = events.iter().find_map(|event| event.get("args")?.get("finish")?.as_str());
    assert_eq!(ended, Some("length"));
}
