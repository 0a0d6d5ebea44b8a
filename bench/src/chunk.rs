//! What one chunk of an event stream means for a measurement.
//!
//! JSON is decoded only where a cheap look does not settle what a chunk carries. It takes no time
//! itself: the caller stamped the bytes when it got them.

use std::borrow::Cow;
use std::sync::LazyLock;

use llmsim_engine::units::SimSpan;
use llmsim_engine::wire::client::Chunk;
use memchr::memchr2;
use memchr::memmem::{self, Finder};
use serde::Deserialize;

use crate::record::{Reported, ServerTiming, Usage};

/// What one event means.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meaning {
    /// It carries output: content, reasoning, a tool call.
    pub output: bool,
    /// Why the answer ended.
    pub finish: Option<String>,
    /// Token counts.
    pub usage: Option<Usage>,
    /// The server's own clock.
    pub timing: Option<ServerTiming>,
    /// vLLM's account of the request.
    pub reported: Option<Reported>,
    /// The server reported an error.
    pub error: Option<String>,
}

/// Reads the data of one event (not `[DONE]`) and remembers it for the next in `usual`.
///
/// # Errors
/// One line about what is wrong with it.
pub fn meaning(data: &[u8], usual: &mut Usual) -> Result<Meaning, String> {
    if std::str::from_utf8(data).is_err() {
        return Err("not UTF-8".to_owned());
    }
    if let Some(text_at) = plain_content(data) {
        usual.learn(data, text_at);
        return Ok(Meaning { output: true, ..Meaning::default() });
    }
    let chunk = Chunk::parse(data).map_err(|bad| bad.0)?;
    if let Some(error) = chunk.error {
        return Ok(Meaning { error: Some(error.message.into_owned()), ..Meaning::default() });
    }
    let some = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
    let count = |n: Option<u64>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    if chunk.choices == 0 && is_error_object(data) {
        return Ok(Meaning { error: Some(error_message(data)), ..Meaning::default() });
    }
    // One that does not tell the output tokens in a number is no usage: zero would be a claim.
    let usage = chunk.usage.and_then(|usage| {
        Some(Usage {
            prompt: count(usage.prompt).unwrap_or(0),
            completion: count(usage.completion)?,
            cached: count(usage.cached),
        })
    });
    // Some servers send an empty list with every chunk.
    let calls = chunk.has_tool_calls
        && memmem::find(data, b"\"tool_calls\":[]").is_none()
        && memmem::find(data, b"\"tool_calls\": []").is_none();
    let (timing, reported) = usage.and_then(|_| metrics(data)).unwrap_or_default();
    Ok(Meaning {
        output: some(&chunk.content) || some(&chunk.reasoning) || calls,
        finish: chunk.finish.map(Cow::into_owned),
        timing,
        reported,
        usage,
        error: None,
    })
}

/// True for `{"object":"error","message":...}`, which servers built on older vLLM and FastChat send
/// in place of a chunk.
fn is_error_object(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        object: Option<Cow<'a, str>>,
    }
    // The depth was checked when the chunk was parsed.
    sonic_rs::from_slice::<Named<'_>>(data)
        .is_ok_and(|named| named.object.as_deref() == Some("error"))
}

/// Settles the chunk that makes up almost all of a stream without decoding it: non-empty
/// `"content"` (or `"text"` of a legacy completion), no finish reason, no usage, no error. Any
/// doubt is answered with `None`, else where the text begins.
fn plain_content(data: &[u8]) -> Option<usize> {
    /// Searchers are costly to make and cheap to use.
    static FINDERS: LazyLock<Finders> = LazyLock::new(|| Finders {
        content: Finder::new(b"\"content\":\""),
        text: Finder::new(b"\"text\":\""),
        delta: Finder::new(b"\"delta\""),
        others: OTHERS.map(Finder::new),
    });
    struct Finders {
        content: Finder<'static>,
        text: Finder<'static>,
        delta: Finder<'static>,
        others: [Finder<'static>; 5],
    }
    const OTHERS: [&[u8]; 5] = [
        b"\"finish_reason\":\"",
        b"\"finish_reason\": \"",
        b"\"usage\":{",
        b"\"usage\": {",
        b"\"error\":",
    ];
    let Finders { content, text, delta, others } = &*FINDERS;
    let begins = |key: &Finder<'_>| Some(key.find(data)? + key.needle().len());
    let legacy = || begins(text).filter(|_| delta.find(data).is_none());
    let at = begins(content).or_else(legacy)?;
    let some = data.get(at).is_some_and(|&next| next != b'"') && data.last() == Some(&b'}');
    (some && others.iter().all(|other| other.find(data).is_none())).then_some(at)
}

/// Recognises a plain chunk by the last one of its stream: servers write all but the text alike.
///
/// The invariant: what it takes for plain, [`meaning`] does too. The text between what is known to
/// stand before it and after it holds neither quotes nor backslashes, so the string that began
/// before it ends behind it; and it is UTF-8 like them.
#[derive(Debug, Default)]
pub struct Usual {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Usual {
    /// True if `data` is the last plain chunk with another text in it.
    pub fn is(&self, data: &[u8]) -> bool {
        let Some(rest) = data.strip_prefix(self.before.as_slice()) else { return false };
        let Some(text) = rest.strip_suffix(self.after.as_slice()) else { return false };
        !self.after.is_empty()
            && !text.is_empty()
            && memchr2(b'"', b'\\', text).is_none()
            && std::str::from_utf8(text).is_ok()
    }

    /// Remembers a chunk that [`meaning`] has settled, if it is a plain one of a simple text.
    fn learn(&mut self, data: &[u8], text_at: usize) {
        let (before, rest) = data.split_at(text_at);
        let Some(ends) = memchr2(b'"', b'\\', rest).filter(|&end| rest[end] == b'"') else {
            return;
        };
        self.before.clear();
        self.before.extend_from_slice(before);
        self.after.clear();
        self.after.extend_from_slice(&rest[ends..]);
    }
}

/// The content that a chunk carries, for those who keep it.
pub fn content(data: &[u8]) -> Option<String> {
    Chunk::parse(data).ok()?.content.map(Cow::into_owned)
}

/// Reads the `metrics` object beside `usage`. Our server adds instants, in seconds from the arrival
/// of the request, when it carries `x-llmsim-timing: 1`; vLLM tells lengths of phases in ms.
fn metrics(data: &[u8]) -> Option<(Option<ServerTiming>, Option<Reported>)> {
    #[derive(Deserialize)]
    struct Envelope {
        metrics: Option<Metrics>,
    }
    #[derive(Deserialize)]
    struct Metrics {
        queued_time: Option<f64>,
        first_token_scheduled: Option<f64>,
        first_token_released: Option<f64>,
        first_token_sent: Option<f64>,
        last_token_scheduled: Option<f64>,
        last_token_released: Option<f64>,
        max_token_lag: Option<f64>,
        queue_time_ms: Option<f64>,
        time_to_first_token_ms: Option<f64>,
        generation_time_ms: Option<f64>,
    }
    memmem::find(data, b"\"metrics\"")?;
    // The depth was checked when the chunk was parsed.
    let metrics = sonic_rs::from_slice::<Envelope>(data).ok()?.metrics?;
    let span = |seconds: Option<f64>| {
        let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0)?;
        Some(SimSpan::from_secs_f64(seconds))
    };
    let ms = |ms: Option<f64>| span(ms.map(|ms| ms / 1e3));
    let timing = || {
        let first_released = span(metrics.first_token_released)?;
        Some(ServerTiming {
            queued: span(metrics.queued_time),
            first_scheduled: span(metrics.first_token_scheduled)?,
            first_released,
            first_sent: span(metrics.first_token_sent).unwrap_or(first_released),
            last_scheduled: span(metrics.last_token_scheduled)?,
            last_released: span(metrics.last_token_released)?,
            lag_max: span(metrics.max_token_lag),
        })
    };
    let reported = Reported {
        queue: ms(metrics.queue_time_ms),
        first_token: ms(metrics.time_to_first_token_ms),
        generation: ms(metrics.generation_time_ms),
    };
    Some((timing(), (reported != Reported::default()).then_some(reported)))
}

/// The message of an error body (`{"error":{"message":...}}`, `{"detail":...}`), else its start.
pub fn error_message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Plain<'a> {
        #[serde(borrow)]
        message: Option<Cow<'a, str>>,
        #[serde(borrow)]
        detail: Option<Cow<'a, str>>,
    }
    let told = match Chunk::parse(body) {
        Ok(Chunk { error: Some(error), .. }) => error.message.into_owned(),
        // The depth is fine, or it would not have parsed.
        Ok(_) => match sonic_rs::from_slice::<Plain<'_>>(body) {
            Ok(Plain { message: Some(text), .. } | Plain { detail: Some(text), .. }) => {
                text.into_owned()
            }
            _ => start_of(body),
        },
        Err(_) => start_of(body),
    };
    told.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

fn start_of(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(data: &[u8]) -> Result<Meaning, String> {
        super::meaning(data, &mut Usual::default())
    }

    fn check(data: &str, output: bool, finish: Option<&str>, usage: Option<(u32, u32)>) {
        let meaning = meaning(data.as_bytes()).expect(data);
        assert_eq!(meaning.output, output, "{data}");
        assert_eq!(meaning.finish.as_deref(), finish, "{data}");
        assert_eq!(meaning.usage.map(|u| (u.prompt, u.completion)), usage, "{data}");
    }

    #[test]
    fn what_counts_as_output() {
        let delta = |delta: &str| format!(r#"{{"choices":[{{"delta":{delta},"index":0}}]}}"#);
        check(&delta(r#"{"role":"assistant","content":""}"#), false, None, None);
        check(&delta(r#"{"role":"assistant"}"#), false, None, None);
        check(&delta(r#"{"content":"a"}"#), true, None, None);
        check(&delta(r#"{"content": "a"}"#), true, None, None);
        check(&delta(r#"{"content":null,"reasoning_content":"hm"}"#), true, None, None);
        check(&delta(r#"{"reasoning":"hm"}"#), true, None, None);
        check(&delta(r#"{"tool_calls":[{"index":0}]}"#), true, None, None);
        check(&delta(r#"{"tool_calls":[]}"#), false, None, None);
        check(r#"{"choices":[{"text":"a","index":0}]}"#, true, None, None);
    }

    #[test]
    fn a_finish_reason_may_ride_on_the_last_token_or_come_alone() {
        check(
            r#"{"choices":[{"delta":{"content":"z"},"finish_reason":"length"}]}"#,
            true,
            Some("length"),
            None,
        );
        check(r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, false, Some("stop"), None);
        check(
            r#"{"choices":[{"delta":{"content":"z"},"finish_reason":null}],"usage":null}"#,
            true,
            None,
            None,
        );
    }

    #[test]
    fn usage_comes_alone_or_on_every_chunk() {
        check(
            r#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11}}"#,
            false,
            None,
            Some((8, 3)),
        );
        check(
            r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":8,"completion_tokens":1}}"#,
            true,
            None,
            Some((8, 1)),
        );
        let cached = meaning(
            br#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        );
        assert_eq!(cached.expect("valid").usage.expect("usage").cached, Some(4));
    }

    #[test]
    fn a_usage_without_a_count_claims_nothing() {
        for count in ["-3", "99999999999999999999999", "null", "\"3\"", "3.5"] {
            let usage = format!(r#"{{"prompt_tokens":8,"completion_tokens":{count}}}"#);
            check(&format!(r#"{{"choices":[],"usage":{usage}}}"#), false, None, None);
        }
    }

    #[test]
    fn a_text_that_looks_like_a_field_is_not_one() {
        check(
            r#"{"choices":[{"delta":{"content":"\"finish_reason\":\"stop\""}}]}"#,
            true,
            None,
            None,
        );
        check(
            r#"{"choices":[{"delta":{"role":"x","content":""},"logprobs":{"content":"y"}}]}"#,
            false,
            None,
            None,
        );
    }

    #[test]
    fn errors_inside_the_stream_are_seen() {
        let told = meaning(br#"{"error":{"message":"out of memory","code":500}}"#).expect("valid");
        assert_eq!(told.error.as_deref(), Some("out of memory"));
        let told = meaning(br#"{"object":"error","message":"too long","type":"X","code":400}"#);
        assert_eq!(told.expect("valid").error.as_deref(), Some("too long"));
        assert!(meaning(b"{\"choices\":[").is_err());
        let broken = b"{\"choices\":[{\"delta\":{\"content\":\"a\xff\"}}]}";
        assert_eq!(meaning(broken), Err("not UTF-8".to_owned()));
        let mut usual = Usual::default();
        let sound = br#"{"choices":[{"delta":{"content":"a"}}]}"#;
        super::meaning(sound, &mut usual).expect("valid");
        assert!(usual.is(br#"{"choices":[{"delta":{"content":"b"}}]}"#));
        assert!(!usual.is(broken), "nor is it taken for one of the usual");
        assert!(meaning("[".repeat(100_000).as_bytes()).is_err(), "and no stack overflows");
    }

    #[test]
    fn our_server_tells_its_clock_beside_the_usage() {
        let told = meaning(
            br#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3,"total_tokens":11},
            "metrics":{"queued_time":0.000051,"first_token_scheduled":0.004112,
            "first_token_released":0.004188,"first_token_sent":0.00424,
            "last_token_scheduled":0.012112,"last_token_released":0.012191,
            "max_engine_lag":0.000079,"max_token_lag":0.000131}}"#,
        );
        let timing = told.expect("valid").timing.expect("told");
        assert_eq!(timing.first_scheduled, SimSpan::from_us(4112));
        assert_eq!(timing.first_sent, SimSpan::from_us(4240));
        assert_eq!(timing.lag_max, Some(SimSpan::from_us(131)));
    }

    #[test]
    fn vllm_tells_phases_and_no_clock() {
        let told = meaning(
            br#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3},
            "metrics":{"time_to_first_token_ms":41.5,"generation_time_ms":20.25,
            "queue_time_ms":3.5,"mean_itl_ms":10.125,"tokens_per_second":48.6,
            "speculative_decoding":null}}"#,
        )
        .expect("valid");
        assert_eq!(told.timing, None);
        let reported = told.reported.expect("told");
        assert_eq!(reported.to_first(), Some(SimSpan::from_ms(45)));
        assert_eq!(reported.to_last(), Some(SimSpan::from_us(65_250)));
    }

    #[test]
    fn metrics_that_tell_nothing_are_nothing() {
        let told = meaning(
            br#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":1},
            "metrics":{"time_to_first_token_ms":null,"queue_time_ms":null}}"#,
        )
        .expect("valid");
        assert_eq!((told.timing, told.reported), (None, None));
    }

    #[test]
    fn a_legacy_chunk_is_settled_by_its_text() {
        check(
            r#"{"id":"c","choices":[{"index":0,"text":" a","finish_reason":null}],"usage":null}"#,
            true,
            None,
            None,
        );
        check(
            r#"{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#,
            false,
            Some("stop"),
            None,
        );
        check(r#"{"choices":[{"delta":{"content":"","x":{"text":"y"}}}]}"#, false, None, None);
        assert_eq!(content(br#"{"choices":[{"text":"a\n"}]}"#).as_deref(), Some("a\n"));
    }

    /// Everything that [`Usual`] takes for plain after `first` must be so in its own right.
    #[test]
    fn a_chunk_is_known_by_the_last_one_only_if_it_is_plain() {
        let first = r#"{"id":"c","choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#;
        let mut usual = Usual::default();
        assert!(!usual.is(first.as_bytes()), "nothing is known yet");
        super::meaning(first.as_bytes(), &mut usual).expect("valid");
        for (next, known) in [
            (r#"{"id":"c","choices":[{"delta":{"content":" bcd"},"finish_reason":null}]}"#, true),
            (r#"{"id":"c","choices":[{"delta":{"content":"é"},"finish_reason":null}]}"#, true),
            // Settled the long way: a quote or a backslash in the text.
            (r#"{"id":"c","choices":[{"delta":{"content":"\n"},"finish_reason":null}]}"#, false),
            (r#"{"id":"c","choices":[{"delta":{"content":"a\""},"finish_reason":null}]}"#, false),
            (
                r#"{"id":"c","choices":[{"delta":{"content":"a"},"x":"b"},"finish_reason":null}]}"#,
                false,
            ),
            // No output, an end, another stream.
            (r#"{"id":"c","choices":[{"delta":{"content":""},"finish_reason":null}]}"#, false),
            (r#"{"id":"c","choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}"#, false),
            (r#"{"id":"d","choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#, false),
            (r#"{"id":"c","choices":[{"delta":{"content":"#, false),
        ] {
            assert_eq!(usual.is(next.as_bytes()), known, "{next}");
            if known {
                let plain = Meaning { output: true, ..Meaning::default() };
                assert_eq!(meaning(next.as_bytes()), Ok(plain), "{next}");
            }
        }
    }

    #[test]
    fn what_was_learnt_is_replaced_when_the_server_writes_otherwise() {
        let mut usual = Usual::default();
        let chunk = |created: u32, text: &str| {
            format!(r#"{{"created":{created},"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#)
        };
        super::meaning(chunk(1, "a").as_bytes(), &mut usual).expect("valid");
        assert!(usual.is(chunk(1, "b").as_bytes()) && !usual.is(chunk(2, "b").as_bytes()));
        super::meaning(chunk(2, "b").as_bytes(), &mut usual).expect("valid");
        assert!(usual.is(chunk(2, "c").as_bytes()) && !usual.is(chunk(1, "c").as_bytes()));
    }
}
