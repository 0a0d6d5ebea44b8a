//! What a fault rule looks at in a body, of whatever surface, before anyone has checked it.
//!
//! Not validation: what is not as expected is as if it were not there, and the surface itself says
//! what is wrong. The invariant: nothing a client sends makes this fail.

use llmsim_engine::wire::json_guard;
use sonic_rs::{JsonValueTrait as _, LazyValue, to_object_iter};

/// What there is.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) model: Option<String>,
    /// The last user message, the prompt or the input.
    pub(super) text: Option<String>,
    pub(super) is_stream: bool,
}

/// Looks at a body. Nothing is made of what it does not look at: that is only passed over.
pub(super) fn peek(body: &[u8]) -> Seen {
    const TEXTS: [&str; 4] = ["messages", "prompt", "input", "text"];
    if body.is_empty() || json_guard::check(body).is_err() {
        return Seen::default();
    }
    let mut seen = Seen::default();
    let mut texts = TEXTS.map(|_| None);
    for field in to_object_iter(body) {
        let Ok((name, value)) = field else { return Seen::default() };
        match &*name {
            "model" => seen.model = value.as_str().map(str::to_owned),
            "stream" => seen.is_stream = value.as_bool().unwrap_or(false),
            name => {
                if let Some(at) = TEXTS.iter().position(|text| *text == name) {
                    texts[at] = Some(value);
                }
            }
        }
    }
    seen.text = texts.into_iter().flatten().find_map(said);
    seen
}

/// A text, the last of several, or the last message of a user.
fn said(value: LazyValue<'_>) -> Option<String> {
    if value.is_str() {
        return text(&value);
    }
    let (mut of_user, mut last) = (None, None);
    for item in value.into_array_iter()? {
        let item = item.ok()?;
        if item.get("role").is_some_and(|role| role.as_str() == Some("user")) {
            of_user = Some(item);
        } else if item.is_str() {
            last = Some(item);
        }
    }
    match of_user {
        Some(message) => content(message.get("content")?),
        None => text(&last?),
    }
}

/// A text, or the texts of parts.
fn content(value: LazyValue<'_>) -> Option<String> {
    if value.is_str() {
        return text(&value);
    }
    let mut texts = Vec::new();
    for part in value.into_array_iter()? {
        texts.extend(part.ok()?.get("text").as_ref().and_then(text));
    }
    Some(texts.join("\n"))
}

fn text(value: &LazyValue<'_>) -> Option<String> {
    value.as_str().map(str::to_owned)
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
