//! What a fault rule looks at in a body, of whatever surface, before anyone has checked it.
//!
//! Not validation: what is not as expected is as if it were not there, and the surface itself says
//! what is wrong. The invariant: nothing a client sends makes this fail.

use std::borrow::Cow;

use llmsim_engine::wire::json_guard;
use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value};

/// What there is.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) model: Option<String>,
    /// The last user message, the prompt or the input.
    pub(super) text: Option<String>,
    pub(super) is_stream: bool,
}

pub(super) fn peek(body: &[u8]) -> Seen {
    if body.is_empty() || json_guard::check(body).is_err() {
        return Seen::default();
    }
    let Ok(value) = sonic_rs::from_slice::<Value>(body) else { return Seen::default() };
    let text = |name: &str| value.get(name).and_then(|field| field.as_str().map(str::to_owned));
    Seen {
        model: text("model"),
        text: ["messages", "prompt", "input", "text"]
            .iter()
            .find_map(|name| said(value.get(*name)?))
            .map(Cow::into_owned),
        is_stream: value.get("stream").and_then(|stream| stream.as_bool()).unwrap_or(false),
    }
}

/// A text, the last of several, or the last message of a user.
fn said(value: &Value) -> Option<Cow<'_, str>> {
    if let Some(text) = value.as_str() {
        return Some(Cow::Borrowed(text));
    }
    let items = value.as_array()?;
    let of_user = items
        .iter()
        .rev()
        .find(|item| item.get("role").is_some_and(|role| role.as_str() == Some("user")));
    match of_user {
        Some(message) => content(message.get("content")?),
        None => items.iter().rev().find_map(|item| item.as_str()).map(Cow::Borrowed),
    }
}

/// A text, or the texts of parts.
fn content(value: &Value) -> Option<Cow<'_, str>> {
    if let Some(text) = value.as_str() {
        return Some(Cow::Borrowed(text));
    }
    let parts = value.as_array()?.iter();
    let texts: Vec<&str> =
        parts.filter_map(|part| part.get("text").and_then(|text| text.as_str())).collect();
    Some(Cow::Owned(texts.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_surface_has_a_model_and_a_text() {
        for (body, text) in [
            (
                r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#,
                "a",
            ),
            (
                r#"{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#,
                "a\nb",
            ),
            (r#"{"model":"m","stream":true,"prompt":"p"}"#, "p"),
            (r#"{"model":"m","stream":true,"prompt":["p","q"]}"#, "q"),
            (
                r#"{"model":"m","stream":true,"input":[{"role":"user","content":[{"type":"input_text","text":"i"}]}]}"#,
                "i",
            ),
        ] {
            let seen = peek(body.as_bytes());
            let expected =
                Seen { model: Some("m".into()), text: Some(text.into()), is_stream: true };
            assert_eq!(seen, expected, "{body}");
        }
    }

    #[test]
    fn what_is_no_request_shows_nothing() {
        let deep = "[".repeat(100_000);
        for body in
            ["", "{", "null", "[1]", r#"{"model":3,"messages":[[],{}],"stream":"x"}"#, &deep]
        {
            assert_eq!(peek(body.as_bytes()), Seen::default(), "{body:.40}");
        }
    }
}
