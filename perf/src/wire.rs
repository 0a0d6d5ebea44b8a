//! What the wire costs: reading and checking a request, making a frame, reading a stream.
//!
//! Predicted before the first run (3 GHz, one core; the study of JSON parsers measured 12.6 us for
//! one message of 64 KB and 98 us for 1,000 messages): a long message costs two vector scans and a
//! UTF-8 check, 0.2 ns a byte; 1,000 short messages cost 0.2 us each, since values keep their type
//! for the checks; a frame costs three copies of some 300 bytes, 10 ns.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use llmsim_engine::wire::chat::ChatRequest;
use llmsim_engine::wire::client::Chunk;
use llmsim_engine::wire::json_guard;
use llmsim_engine::wire::sse::{OpenChunk, SseParser, StreamFrames, StreamHead};

use crate::matching::Bench;

/// `llmsim-perf wire`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long each figure is measured, in milliseconds; the table shows the median run, in CPU time
    /// of the thread.
    #[arg(long, default_value_t = 300)]
    measure_ms: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let time = Duration::from_millis(args.measure_ms);
    Bench::heading();
    for (what, body) in bodies() {
        let bench = Bench { size: body.len(), time };
        bench.row(&format!("guard: {what}"), || json_guard::check(black_box(&body)));
        let request = ChatRequest::parse(&body).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!request.messages.is_empty());
        bench.row(&format!("parse: {what}"), || {
            ChatRequest::parse(black_box(&body)).is_ok_and(|request| request.stream)
        });
    }
    frames(time);
    ExitCode::SUCCESS
}

fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let one = |content: &str| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#)
    };
    let repeated = |text: &str, size: usize| text.repeat(size / text.len());
    let fox = "The quick brown fox jumps over the lazy dog. ";
    let message = r#"{"role":"user","content":"hello there my friend, all well?"}"#;
    let typical = concat!(
        r#"{"model":"qwen-mock","messages":[{"role":"system","content":"You are helpful."},"#,
        r#"{"role":"user","content":"Tell me about the whale."}],"stream":true,"#,
        r#""stream_options":{"include_usage":true},"max_tokens":200,"temperature":0.7}"#
    );
    let many = format!(r#"{{"model":"m","messages":[{}]}}"#, vec![message; 1000].join(","));
    let brackets = repeated("fn f(x: [u8; 4]) { if x[0] > 1 { g({}) } } ", 64 << 10);
    [
        ("a typical request", typical.to_owned()),
        ("one message of 64 KiB", one(&repeated(fox, 64 << 10))),
        ("one message of 1 MiB", one(&repeated(fox, 1 << 20))),
        ("1 MiB of Cyrillic", one(&repeated("Съешь ещё этих мягких булок. ", 1 << 20))),
        ("1 MiB full of escapes", one(&repeated(r#"\"one\"\n\ttwo\\ three "#, 1 << 20))),
        ("64 KiB full of brackets", one(&brackets)),
        ("1,000 messages", many),
    ]
    .map(|(what, body)| (what, body.into_bytes()))
    .into()
}

fn frames(time: Duration) {
    let frames = StreamFrames::new(&StreamHead {
        id: "chatcmpl-0123456789abcdef0123456789abcdef",
        created: 1_700_000_000,
        model: "qwen-mock",
        fingerprint: "fp_0123456789",
        include_usage: true,
    });
    let mut out = Vec::new();
    let frame = |out: &mut Vec<u8>| {
        out.clear();
        let chunk = OpenChunk::open(out);
        frames.content(black_box(b" hello"), out);
        chunk.close(out);
        out.len()
    };
    let bench = Bench { size: frame(&mut out), time };
    bench.row("make a frame and its chunk", || frame(&mut out));

    let mut event = Vec::new();
    frames.content(b" hello", &mut event);
    let data = &event["data: ".len()..event.len() - 2];
    assert!(Chunk::parse(data).is_ok_and(|chunk| chunk.content.as_deref() == Some(" hello")));
    let bench = Bench { size: data.len(), time };
    bench.row("read a frame's JSON", || {
        Chunk::parse(black_box(data)).is_ok_and(|chunk| chunk.content.is_some())
    });

    let stream = event.repeat(100);
    let bench = Bench { size: stream.len(), time };
    let mut parser = SseParser::new(1 << 20);
    let mut read = || {
        let mut events = 0;
        parser.feed(black_box(&stream), |_| events += 1).map(|()| events)
    };
    assert_eq!(read(), Ok(100));
    bench.row("find 100 events", read);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The measurement itself, tiny: its own checks are the test.
    #[test]
    fn the_measured_bodies_and_frames_are_good() {
        assert_eq!(run(&Args { measure_ms: 0 }), ExitCode::SUCCESS);
    }
}
