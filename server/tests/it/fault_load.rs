//! Five hundred streams, one in five of them hit by a fault of every kind in turn, on a GPU that is
//! not well either: each ends in exactly the way that its fault says, and nothing is left over.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::time::Duration;

use llmsim_engine::config::{self, Source};

use crate::client::{Client, post, streaming};
use crate::fixture;

/// What a request asks for, and how it must end: status, framing, events. An answer of 100 tokens
/// is the role, the tokens, the finish reason and `[DONE]`.
const FATES: [(&str, &str); 26] = [
    ("status=503", "503 whole"),
    ("status=429 retry_after=1s", "429 whole"),
    ("queue_full", "503 whole"),
    ("capacity", "503 whole"),
    ("starting", "503 whole"),
    ("draining", "503 whole"),
    ("rpm=1000000", "200 whole 103"),
    ("close", "nothing, closed"),
    ("reset", "nothing, reset"),
    ("hang=300ms", "nothing, closed"),
    ("delay=100ms", "200 whole 103"),
    ("slow_headers=200ms", "200 whole 103"),
    ("content_type=text/html", "200 whole 103"),
    ("stop=5 end=clean", "200 whole 6"),
    ("stop=5 end=close", "200 cut 6, closed"),
    ("stop=5 end=reset", "200 cut 6, reset"),
    ("stall=100ms after=5", "200 whole 103"),
    ("malformed_json after=5", "200 whole 103"),
    ("truncated_event after=5", "200 cut 6, closed"),
    ("invalid_utf8 after=5", "200 whole 103"),
    ("duplicate after=5", "200 whole 104"),
    ("drop after=5", "200 whole 102"),
    ("error_event=openai after=5", "200 whole 7"),
    ("error_event=vllm after=5", "200 whole 8"),
    ("no_done", "200 whole 102"),
    ("no_finish", "200 whole 102"),
];

const STREAMS: usize = 500;
const ROUNDS: usize = 3;

#[test]
fn of_five_hundred_streams_with_faults_each_ends_as_it_must() {
    // For as long as a slow machine may take.
    let unwell: String = (0..120)
        .map(|second| {
            format!(
                "  at {second}s: slow gpu1 by 2 for 200ms\n  at {second}.3s: preempt gpu1\n  at \
                 {second}.5s: pause gpu1 for 20ms\n  at {second}.6s: shrink gpu1 to 1% for 200ms\n"
            )
        })
        .collect();
    let unwell = format!("timeline:\n{unwell}");
    let server = fixture::start_with(|settings| {
        let models = &settings.config.models;
        settings.config.faults = config::load_faults(&Source::new("faults", unwell), models)
            .unwrap_or_else(|problems| panic!("{problems}"));
    });
    let mut ends: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut clients: Vec<(&str, Client)> = (0..STREAMS)
            .map(|number| {
                let words = match number % 5 {
                    0 => FATES[(round * STREAMS + number) / 5 % FATES.len()].0,
                    _ => "",
                };
                let mut client = Client::new(&server);
                let headers =
                    format!("Host: h\r\nConnection: close\r\nx-llmsim-fault: {words}\r\n");
                let request = post("/v1/chat/completions", &streaming("batched", "[hundred] x"));
                client.send(request.replacen("Host: h\r\n", &headers, 1));
                (words, client)
            })
            .collect();
        for (words, client) in &mut clients {
            *ends.entry((words, end(client))).or_default() += 1;
        }
    }
    let expected: BTreeMap<&str, &str> = FATES.into_iter().chain([("", "200 whole 103")]).collect();
    for ((words, end), count) in &ends {
        assert_eq!(*end, expected[words], "{count} of `{words}`: {ends:#?}");
    }
    let count: usize = ends.values().sum();
    assert_eq!(
        (count, ends.len()),
        (ROUNDS * STREAMS, FATES.len() + 1),
        "every kind, one end each"
    );

    let totals = fixture::wait_until(&server, "nothing to be left", |totals| {
        totals.in_flight == 0
            && totals.connections == 0
            && totals
                .gpus
                .iter()
                .all(|gpu| gpu.running + gpu.waiting == 0 && gpu.free_blocks == gpu.usable_blocks)
    });
    assert!(totals.gpus[1].preemptions > 0, "the GPU was not well");
    // Requests that never became generations were answered, or not, before.
    let never = [
        "status=503",
        "status=429 retry_after=1s",
        "queue_full",
        "capacity",
        "starting",
        "draining",
        "close",
        "reset",
        "hang=300ms",
    ];
    let ended_early = |words: &str| {
        words.starts_with("stop")
            || words.starts_with("truncated")
            || words.starts_with("error_event")
    };
    let number = |hit: &dyn Fn(&str) -> bool| -> u64 {
        ends.iter().filter(|((words, _), _)| hit(words)).map(|(_, count)| *count as u64).sum()
    };
    assert_eq!(totals.faulted, number(&ended_early));
    assert_eq!(
        totals.finished,
        number(&|words| !ended_early(words) && !never.contains(&words)),
        "every other one came to its end"
    );
    assert_eq!((totals.disconnected, totals.stalled, totals.cut, totals.refused), (0, 0, 0, 0));
    let end = server.stop(Duration::from_secs(10));
    assert_eq!((end.in_flight, end.connections), (0, 0));
}

/// How a connection ended: the status, whether the body was whole, and how many events came whole.
fn end(client: &mut Client) -> String {
    let mut bytes = Vec::new();
    let how = match client.stream.read_to_end(&mut bytes) {
        Ok(_) => "closed",
        Err(error) if error.kind() == ErrorKind::ConnectionReset => "reset",
        Err(error) => panic!("{error}"),
    };
    if bytes.is_empty() {
        return format!("nothing, {how}");
    }
    let head_end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let status = &head[9..12];
    let mut rest = &bytes[head_end..];
    if !head.contains("transfer-encoding: chunked") {
        let length = format!("content-length: {}\r\n", rest.len());
        assert!(head.contains(&length), "{head}");
        return format!("{status} whole");
    }
    let mut body = Vec::new();
    let is_whole = loop {
        let Some(line) = rest.windows(2).position(|two| two == b"\r\n") else { break false };
        let size = std::str::from_utf8(&rest[..line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[line + 2..];
        if size == 0 {
            assert_eq!(rest, b"\r\n");
            break true;
        }
        if rest.len() < size + 2 {
            break false;
        }
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    };
    let events = body.windows(2).filter(|two| two == b"\n\n").count();
    match is_whole {
        true => format!("{status} whole {events}"),
        false => format!("{status} cut {events}, {how}"),
    }
}
