//! TTFT, ITL, TPOT and E2E on bytes that arrive at scripted instants: every figure is worked out by
//! hand, and no cut of the bytes may change one.

use llmsim_bench::health::Health;
use llmsim_bench::plan::{Extent, Load};
use llmsim_bench::record::{Outcome, Record};
use llmsim_bench::result::{Level, Summary};
use llmsim_bench::target::http::Answer;
use llmsim_engine::units::{SimSpan, SimTime};

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
const ROLE: &str = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
const FINISH: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

fn token(text: &str) -> String {
    format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#)
}

fn usage(n: u32) -> String {
    format!(r#"{{"choices":[],"usage":{{"prompt_tokens":8,"completion_tokens":{n}}}}}"#)
}

fn at(ms: u64) -> SimTime {
    SimTime::from_ns(ms * 1_000_000)
}

/// Scheduled and sent at 0; the parts arrive at these milliseconds. `eol` ends lines.
fn receive(parts: &[(u64, Vec<String>)], eol: &str) -> Record {
    let mut record = Record::planned(0, at(0));
    record.sent = Some(at(0));
    let mut answer = Answer::default();
    answer.take(HEAD.as_bytes(), at(1), &mut record).expect("a head");
    for (ms, events) in parts {
        let text: String = events.iter().map(|data| format!("data: {data}{eol}{eol}")).collect();
        answer.take(text.as_bytes(), at(*ms), &mut record).expect("well-formed");
        record.end = at(*ms);
    }
    let finish = answer.closed().and_then(|()| answer.finish(&record));
    record.outcome = Outcome::Finished(finish.expect("complete"));
    record
}

fn summary(record: Record) -> Summary {
    Summary::of(
        &Level {
            load: Load::Closed { concurrency: 1 },
            extent: Extent::default(),
            planned: 1,
            ended: record.end,
            records: vec![record],
            began: at(0),
            health: Health::default(),
            connections_opened: 0,
            never_sent: 0,
            interrupted: false,
        },
        None,
    )
}

fn done(n: u32) -> Vec<String> {
    vec![FINISH.into(), usage(n), "[DONE]".into()]
}

/// `expected`: TTFT, ITLs, TPOT, E2E in ms.
fn check(parts: &[(u64, Vec<String>)], expected: (f64, &[f64], Option<f64>, f64)) {
    for eol in ["\n", "\r\n", "\r"] {
        let summary = summary(receive(parts, eol));
        let ms = |value: Option<f64>| value.map(|ns| ns / 1e6);
        let itl: Vec<f64> = summary.itl.sorted().iter().map(|ns| ns / 1e6).collect();
        assert_eq!(
            (ms(summary.ttft.max()), itl.as_slice(), ms(summary.tpot.max()), ms(summary.e2e.max())),
            (Some(expected.0), expected.1, expected.2, Some(expected.3)),
            "{parts:?} with {eol:?}"
        );
    }
}

#[test]
fn a_role_only_first_chunk_is_no_token() {
    check(
        &[
            (5, vec![ROLE.into()]),
            (40, vec![token("a")]),
            (50, vec![token("b")]),
            (62, vec![token("c")]),
            (70, done(3)),
        ],
        // TPOT (62 - 40) / 2; E2E ends with the last output, not with [DONE].
        (40.0, &[10.0, 12.0], Some(11.0), 62.0),
    );
}

#[test]
fn one_token_has_no_time_between_tokens() {
    check(&[(40, vec![ROLE.into(), token("a")]), (41, done(1))], (40.0, &[], None, 40.0));
}

#[test]
fn several_tokens_per_chunk_divide_tpot_but_not_itl() {
    // Six tokens in three chunks, 40 ms apart: the gap is 40 ms, a token takes (120 - 40)/5.
    check(
        &[
            (40, vec![token("a b")]),
            (80, vec![token("c d")]),
            (120, vec![token("e f")]),
            (121, done(6)),
        ],
        (40.0, &[40.0, 40.0], Some(16.0), 120.0),
    );
}

#[test]
fn chunks_that_arrive_together_have_no_time_between_them() {
    check(
        &[(40, vec![token("a"), token("b")]), (60, vec![token("c")]), (60, done(3))],
        (40.0, &[0.0, 20.0], Some(10.0), 60.0),
    );
}

#[test]
fn a_finish_reason_on_the_last_token_is_a_token_too() {
    let last = r#"{"choices":[{"delta":{"content":"z"},"finish_reason":"length"}]}"#;
    check(
        &[(40, vec![token("a")]), (55, vec![last.into()]), (56, vec![usage(2), "[DONE]".into()])],
        (40.0, &[15.0], Some(15.0), 55.0),
    );
}

#[test]
fn without_usage_every_chunk_is_one_token() {
    check(
        &[
            (40, vec![token("a")]),
            (50, vec![token("b")]),
            (51, vec![FINISH.into(), "[DONE]".into()]),
        ],
        (40.0, &[10.0], Some(10.0), 50.0),
    );
}

#[test]
fn the_first_reasoning_token_is_the_first_token() {
    let thought = r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#;
    check(
        &[(30, vec![thought.into()]), (40, vec![token("a")]), (41, done(2))],
        (30.0, &[10.0], Some(10.0), 40.0),
    );
}

#[test]
fn bytes_may_be_cut_anywhere() {
    let mut whole = String::from(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
    for data in [ROLE, &token("a"), ": keep-alive", &token("b"), FINISH, &usage(2), "[DONE]"] {
        let line = if data.starts_with(':') {
            format!("{data}\n\n")
        } else {
            format!("data: {data}\r\n\r\n")
        };
        whole.push_str(&format!("{:x}\r\n{line}\r\n", line.len()));
    }
    whole.push_str("0\r\n\r\n");
    let bytes = whole.as_bytes();
    let read = |parts: &[&[u8]]| {
        let mut record = Record::planned(0, at(0));
        let mut answer = Answer::default();
        let mut complete = false;
        for part in parts {
            complete = answer.take(part, at(9), &mut record).expect("well-formed");
        }
        assert!(complete);
        let finish = answer.finish(&record).expect("complete");
        (record.output.chunks, finish, record.usage.map(|usage| usage.completion))
    };
    let expected = (2, "stop".to_owned(), Some(2));
    assert_eq!(read(&[bytes]), expected);
    for cut in 1..bytes.len() {
        assert_eq!(read(&[&bytes[..cut], &bytes[cut..]]), expected, "cut at {cut}");
    }
    assert_eq!(read(&bytes.chunks(1).collect::<Vec<_>>()), expected);
}

#[test]
fn failures_are_infinitely_late_in_the_second_column() {
    use llmsim_bench::record::{Failure, FailureClass};
    let answered = |ms: u64| receive(&[(ms, vec![token("a")]), (ms, done(1))], "\n");
    // 97 answers after 1..=97 ms and three failures.
    let mut records: Vec<Record> = (1..=97).map(answered).collect();
    for class in [FailureClass::RateLimited, FailureClass::Connect, FailureClass::Cut] {
        let mut record = Record::planned(0, at(0));
        record.outcome = Outcome::Failed(Failure::new(class, "x"));
        records.push(record);
    }
    let summary = Summary::of(
        &Level {
            load: Load::Closed { concurrency: 1 },
            extent: Extent::default(),
            planned: 100,
            records,
            began: at(0),
            ended: at(1000),
            health: Health::default(),
            connections_opened: 0,
            never_sent: 0,
            interrupted: false,
        },
        None,
    );
    let ms = |value: Option<f64>| value.expect("known") / 1e6;
    // Linear among 97: rank 48 is the 49th value. Nearest rank among 100: the 50th.
    assert_eq!(ms(summary.ttft.percentile(50.0)), 49.0);
    assert_eq!(ms(summary.ttft.with_failures(50.0)), 50.0);
    assert_eq!(ms(summary.ttft.with_failures(97.0)), 97.0);
    assert_eq!(summary.ttft.with_failures(98.0), Some(f64::INFINITY));
    assert_eq!(summary.duration, SimSpan::from_ms(1000));
    assert_eq!(summary.requests_per_s, 97.0);
}

#[test]
fn what_does_not_add_up_is_said() {
    let warned = |parts: &[(u64, Vec<String>)], of: &str| {
        summary(receive(parts, "\n")).warnings.iter().any(|warning| warning.contains(of))
    };
    let three = || (10, vec![token("a"), token("b"), token("c")]);
    let unfinished = || (20, vec![usage(3), "[DONE]".into()]);
    let (more, reason) = ("more chunks than tokens", "without a finish reason");
    assert!(warned(&[three(), (20, done(2))], more), "three chunks for two tokens");
    assert!(warned(&[three(), unfinished()], reason), "[DONE] is all that ends it");
    for of in [more, reason] {
        assert!(!warned(&[three(), (20, done(3))], of), "{of}: all is well");
    }
}
