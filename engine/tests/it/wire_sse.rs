//! Streams: what our frames say, byte by byte, and what the parser reads out of anybody's.

use llmsim_engine::units::Tokens;
use llmsim_engine::wire::client::Chunk;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::sse::{
    DONE, Delta, End, LAST_CHUNK, OpenChunk, SseParser, StreamFrames, StreamHead, TooLong,
    write_error,
};
use llmsim_engine::wire::usage::{FinishReason, Usage};

fn frames(include_usage: bool) -> StreamFrames {
    StreamFrames::new(&StreamHead {
        id: "chatcmpl-1",
        created: 1_700_000_000,
        model: "a \"model\"",
        fingerprint: "fp_x",
        include_usage,
    })
}

const SEVEN_AND_TWO: Usage = Usage {
    prompt: Tokens::new(7),
    cached: Tokens::new(4),
    completion: Tokens::new(2),
    reasoning: Tokens::new(0),
};

const HEAD: &str = concat!(
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"#,
    r#""model":"a \"model\"","service_tier":"default","system_fingerprint":"fp_x","choices":["#
);

fn rendered(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    String::from_utf8(out).unwrap()
}

fn role(frames: &StreamFrames, out: &mut Vec<u8>) {
    frames.frame(0, Delta::Role, &End::default(), out);
}

fn finish(frames: &StreamFrames, reason: FinishReason, out: &mut Vec<u8>) {
    frames.frame(0, Delta::Nothing, &End { finish: Some(reason), ..End::default() }, out);
}

#[test]
fn a_stream_without_usage() {
    let frames = frames(false);
    assert_eq!(
        rendered(|out| role(&frames, out)),
        format!(
            "{HEAD}{}\n\n",
            concat!(
                r#"{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"#,
                r#""logprobs":null,"finish_reason":null}]}"#
            )
        )
    );
    assert_eq!(
        rendered(|out| frames.content(br#"say \"hi\"\n"#, out)),
        format!(
            "{HEAD}{}\n\n",
            concat!(
                r#"{"index":0,"delta":{"content":"say \"hi\"\n"},"#,
                r#""logprobs":null,"finish_reason":null}]}"#
            )
        )
    );
    assert_eq!(
        rendered(|out| finish(&frames, FinishReason::Stop, out)),
        format!(
            "{HEAD}{}\n\n",
            r#"{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}"#
        )
    );
    assert_eq!(DONE, b"data: [DONE]\n\n");
}

#[test]
fn a_stream_with_usage_says_null_until_the_end() {
    let frames = frames(true);
    for frame in [
        rendered(|out| role(&frames, out)),
        rendered(|out| frames.content(b"x", out)),
        rendered(|out| finish(&frames, FinishReason::Length, out)),
    ] {
        assert!(frame.ends_with("}],\"usage\":null}\n\n"), "{frame}");
    }
    let usage = concat!(
        r#""usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"#,
        r#""prompt_tokens_details":{"cached_tokens":4,"audio_tokens":0},"#,
        r#""completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"#,
        r#""accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}"#
    );
    assert_eq!(rendered(|out| frames.usage(&SEVEN_AND_TWO, out)), format!("{HEAD}],{usage}}}\n\n"));
    assert_eq!(
        rendered(|out| {
            let end = End { usage: Some(&SEVEN_AND_TWO), ..End::default() };
            frames.frame(0, Delta::Content(b"x"), &end, out);
        }),
        format!(
            "{HEAD}{},{usage}}}\n\n",
            r#"{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]"#
        )
    );
}

#[test]
fn an_error_in_the_middle_of_a_stream_is_an_event() {
    assert_eq!(
        rendered(|out| write_error(&ApiError::internal(), out)),
        concat!(
            r#"data: {"error":{"message":"The server had an error while processing your "#,
            r#"request.","type":"server_error","param":null,"code":null}}"#,
            "\n\n"
        )
    );
}

/// A whole answer through the encoder, chunked coding, and back: what goes in comes out.
#[test]
fn an_answer_survives_the_round_trip() {
    let frames = frames(true);
    let mut wire = Vec::new();
    let chunk = OpenChunk::open(&mut wire);
    role(&frames, &mut wire);
    frames.content(b"He", &mut wire);
    chunk.close(&mut wire);
    for piece in [br"llo\n".as_slice(), br"\ud83d\ude00"] {
        let chunk = OpenChunk::open(&mut wire);
        frames.content(piece, &mut wire);
        chunk.close(&mut wire);
    }
    let chunk = OpenChunk::open(&mut wire);
    finish(&frames, FinishReason::Stop, &mut wire);
    frames.usage(&SEVEN_AND_TWO, &mut wire);
    wire.extend_from_slice(DONE);
    chunk.close(&mut wire);
    wire.extend_from_slice(LAST_CHUNK);

    let mut text = String::new();
    let (mut finish, mut completion, mut done) = (None, None, false);
    SseParserAll::read(&unchunked(&wire), |data| {
        if data == b"[DONE]" {
            done = true;
            return;
        }
        let chunk = Chunk::parse(data).unwrap();
        text.push_str(chunk.content.as_deref().unwrap_or_default());
        finish = finish.take().or(chunk.finish.map(String::from));
        completion = completion.or(chunk.usage.map(|usage| usage.completion));
        assert!(!done, "nothing follows [DONE]");
    });
    assert_eq!(text, "Hello\n😀");
    assert_eq!(finish.as_deref(), Some("stop"));
    assert_eq!(completion, Some(Some(2)));
    assert!(done);
}

/// An independent reading of RFC 9112's chunked coding, as strict as it can be.
fn unchunked(mut wire: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let end = wire.windows(2).position(|pair| pair == b"\r\n").expect("a size line");
        let digits = std::str::from_utf8(&wire[..end]).unwrap();
        assert!(digits == "0" || !digits.starts_with('0'), "leading zeros: {digits}");
        let size = usize::from_str_radix(digits, 16).unwrap();
        let content = &wire[end + 2..end + 2 + size];
        assert_eq!(&wire[end + 2 + size..end + 4 + size], b"\r\n");
        wire = &wire[end + 4 + size..];
        if size == 0 {
            assert!(wire.is_empty(), "nothing follows the last chunk");
            return body;
        }
        body.extend_from_slice(content);
    }
}

struct SseParserAll;

impl SseParserAll {
    fn read(stream: &[u8], mut on_data: impl FnMut(&[u8])) {
        let mut parser = SseParser::new(1 << 20);
        parser.feed(stream, |event| on_data(event.data)).unwrap();
        assert!(!parser.is_mid_event());
    }
}

/// Events as text: `event|data|id`.
fn events(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = SseParser::new(1 << 20);
    let mut seen = Vec::new();
    for piece in pieces {
        parser
            .feed(piece, |event| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace('\n', "\\n");
                seen.push(format!("{}|{}|{}", text(event.event), text(event.data), text(event.id)));
            })
            .unwrap();
    }
    seen
}

/// The examples of the standard, section 9.2.6, and what it says of line ends, byte order mark and
/// odd fields.
const STREAMS: &[(&str, &[&str])] = &[
    ("data: YHOO\ndata: +2\ndata: 10\n\n", &["|YHOO\\n+2\\n10|"]),
    (
        ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        &["|first event|1", "|second event|", "| third event|"],
    ),
    ("data\n\ndata\ndata\n\ndata:", &["||", "|\\n|"]),
    ("data:test\n\ndata: test\n\n", &["|test|", "|test|"]),
    (
        "event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\ndata: plain\n\n",
        &["add|73857293|", "remove|2153|", "|plain|"],
    ),
    ("data: a\r\rdata: b\r\n\r\ndata: c\n\n", &["|a|", "|b|", "|c|"]),
    ("data: a\r\ndata: b\rdata: c\n\r\n", &["|a\\nb\\nc|"]),
    ("\u{feff}data: marked\n\n\u{feff}data: not a field\n\n", &["|marked|"]),
    ("event: lost without data\n\ndata: x\n\n", &["|x|"]),
    (": keep-alive\n\n: keep-alive\n\ndata: x\n\n", &["|x|"]),
    ("data: x\n\nevent: cut off\ndata: y\n", &["|x|"]),
    ("id: a\u{0}b\ndata: x\n\n", &["|x|"]),
    ("retry: 10\nfoo: bar\nbar\nData: no\ndata: x\n\n", &["|x|"]),
    ("data:{\"a\":1}\n\ndata: [DONE]\n\n", &["|{\"a\":1}|", "|[DONE]|"]),
    ("\n\n\r\n\r\rdata: é😀\n\n", &["|é😀|"]),
    ("data: one\nid: 7\ndata: two\nevent: e\n\ndata: three\n\n", &["e|one\\ntwo|7", "|three|7"]),
];

#[test]
fn the_standards_examples_are_read_as_it_says() {
    for (stream, want) in STREAMS {
        assert_eq!(&events(&[stream.as_bytes()]), want, "{stream:?}");
    }
}

#[test]
fn where_a_stream_is_cut_changes_nothing() {
    for (stream, want) in STREAMS {
        let bytes = stream.as_bytes();
        for cut in 1..bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            assert_eq!(&events(&[head, tail]), want, "{stream:?} cut at {cut}");
            for second in 1..tail.len() {
                let (middle, end) = tail.split_at(second);
                assert_eq!(&events(&[head, middle, end]), want, "{stream:?} at {cut}, {second}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(&events(&single), want, "{stream:?} byte by byte");
        let empties: Vec<&[u8]> = bytes.chunks(1).flat_map(|byte| [&[][..], byte]).collect();
        assert_eq!(&events(&empties), want, "{stream:?} with empty reads");
    }
}

#[test]
fn our_own_stream_is_read_wherever_it_is_cut() {
    let frames = frames(true);
    let mut stream = Vec::new();
    role(&frames, &mut stream);
    frames.content(b"He", &mut stream);
    frames.content(b"llo", &mut stream);
    finish(&frames, FinishReason::Stop, &mut stream);
    frames.usage(&SEVEN_AND_TWO, &mut stream);
    stream.extend_from_slice(DONE);
    let whole = events(&[&stream]);
    assert_eq!(whole.len(), 6);
    for cut in 1..stream.len() {
        let (head, tail) = stream.split_at(cut);
        assert_eq!(events(&[head, tail]), whole, "cut at {cut}");
    }
}

#[test]
fn a_reconnection_time_is_remembered_and_an_odd_one_ignored() {
    let mut parser = SseParser::new(100);
    parser.feed(b"retry: 1500\nretry: soon\nretry:\n\n", |_| {}).unwrap();
    assert_eq!(parser.retry_ms(), Some(1500));
}

#[test]
fn a_stream_that_ends_inside_an_event_is_noticed() {
    for (stream, mid) in [
        ("data: x\n\n", false),
        ("", false),
        ("data: x\n", true),
        ("data: x", true),
        ("data: x\n\nd", true),
        ("event: e\n", true),
        ("data: x\r", true),
        ("data: x\r\r", false),
    ] {
        let mut parser = SseParser::new(100);
        parser.feed(stream.as_bytes(), |_| {}).unwrap();
        assert_eq!(parser.is_mid_event(), mid, "{stream:?}");
    }
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let long = "x".repeat(200);
    for stream in [
        long.clone(),
        format!("data: {long}\n\n"),
        format!(": {long}\n"),
        "data: 0123456789\n".repeat(20),
        format!("{}\n\n", "data: 0123456789\n".repeat(20)),
    ] {
        for size in [1, 7, 1000] {
            let mut parser = SseParser::new(100);
            let result = stream
                .as_bytes()
                .chunks(size)
                .try_for_each(|piece| parser.feed(piece, |event| panic!("{event:?}")));
            assert_eq!(result, Err(TooLong { limit: 100 }), "{stream:?} by {size}");
        }
    }
    // Many events are no long event.
    let mut parser = SseParser::new(100);
    let mut count = 0;
    parser.feed("data: 0123456789\n\n".repeat(1000).as_bytes(), |_| count += 1).unwrap();
    assert_eq!(count, 1000);
}
