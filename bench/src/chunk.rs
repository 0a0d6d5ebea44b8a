//! What one chunk of an event stream means for a measurement.
//!
//! JSON is decoded only where a cheap look does not settle what a chunk carries. It takes no time
//! itself: the caller stamped the bytes when it got them.

use std::borrow::Cow;

use llmsim_engine::units::SimSpan;
use llmsim_engine::wire::client::Chunk;
use memchr::memmem;
use serde::Deserialize;

use crate::record::{ServerTiming, Usage};

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
    /// The server reported an error.
    pub error: Option<String>,
}

/// Reads the data of one event (not `[DONE]`).
///
/// # Errors
/// One line about what is wrong with it.
pub fn meaning(data: &[u8]) -> Result<Meaning, String> {
    if is_plain_content(data) {
        return Ok(Meaning { output: true, ..Meaning::default() });
    }
    let chunk = Chunk::parse(data).map_err(|bad| bad.0)?;
    if let Some(error) = chunk.error {
        return Ok(Meaning { error: Some(error.message.into_owned()), ..Meaning::default() });
    }
    let some = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
    let count = |n: Option<u64>| n.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let usage = chunk.usage.map(|usage| Usage {
        prompt: count(usage.prompt).unwrap_or(0),
        completion: count(usage.completion).unwrap_or(0),
        cached: count(usage.cached),
    });
    // Some servers send an empty list with every chunk.
    let calls = chunk.has_tool_calls
        && memmem::find(data, b"\"tool_calls\":[]").is_none()
        && memmem::find(data, b"\"tool_calls\": []").is_none();
    Ok(Meaning {
        output: some(&chunk.content) || some(&chunk.reasoning) || calls,
        finish: chunk.finish.map(Cow::into_owned),
        timing: usage.and_then(|_| server_timing(data)),
        usage,
        error: None,
    })
}

/// Settles the chunk that makes up almost all of a stream without decoding it: non-empty
/// `"content"`, no finish reason, no usage, no error. Any doubt is answered with false.
fn is_plain_content(data: &[u8]) -> bool {
    const KEY: &[u8] = b"\"content\":\"";
    let Some(at) = memmem::find(data, KEY) else { return false };
    data.get(at + KEY.len()).is_some_and(|&next| next != b'"')
        && data.last() == Some(&b'}')
        && memmem::find(data, b"\"finish_reason\":\"").is_none()
        && memmem::find(data, b"\"finish_reason\": \"").is_none()
        && memmem::find(data, b"\"usage\":{").is_none()
        && memmem::find(data, b"\"usage\": {").is_none()
        && memmem::find(data, b"\"error\":").is_none()
}

/// Reads the `metrics` object beside `usage`, which our server adds when a request carries
/// `x-llmsim-timing: 1`: instants in seconds from the arrival of the request.
fn server_timing(data: &[u8]) -> Option<ServerTiming> {
    #[derive(Deserialize)]
    struct Envelope {
        metrics: Option<Metrics>,
    }
    #[derive(Deserialize)]
    struct Metrics {
        queued_time: Option<f64>,
        first_token_scheduled: f64,
        first_token_released: f64,
        first_token_sent: Option<f64>,
        last_token_scheduled: f64,
        last_token_released: f64,
        max_token_lag: Option<f64>,
    }
    memmem::find(data, b"\"metrics\"")?;
    // The depth was checked when the chunk was parsed.
    let metrics = sonic_rs::from_slice::<Envelope>(data).ok()?.metrics?;
    let span = |seconds: f64| {
        (seconds.is_finite() && seconds >= 0.0).then(|| SimSpan::from_secs_f64(seconds))
    };
    let first_released = span(metrics.first_token_released)?;
    Some(ServerTiming {
        queued: metrics.queued_time.and_then(span),
        first_scheduled: span(metrics.first_token_scheduled)?,
        first_released,
        first_sent: metrics.first_token_sent.and_then(span).unwrap_or(first_released),
        last_scheduled: span(metrics.last_token_scheduled)?,
        last_released: span(metrics.last_token_released)?,
        lag_max: metrics.max_token_lag.and_then(span),
    })
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
        assert!(meaning(b"{\"choices\":[").is_err());
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
    fn vllm_metrics_without_our_fields_are_no_clock() {
        let told = meaning(
            br#"{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3},
            "metrics":{"queued_time":0.000051,"first_token_latency":0.004}}"#,
        );
        assert_eq!(told.expect("valid").timing, None);
    }
}
