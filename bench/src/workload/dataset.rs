//! Prompts from files: JSON lines, OpenAI batch lines, ShareGPT arrays.

use std::borrow::Cow;

use llmsim_engine::text::tokenizer;
use serde::Deserialize;
use sonic_rs::{JsonContainerTrait, JsonValueTrait, LazyValue};

use super::Item;
use super::request::Content;

/// Reads JSON lines: `{"prompt": ..., "max_tokens": ...}`, `{"messages": [...]}`, or an OpenAI
/// batch line with `body`.
///
/// # Errors
/// A sentence that names the line.
pub fn json_lines(text: &str) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let item = json_line(line).map_err(|why| format!("line {}: {why}", number + 1))?;
        items.push(item);
    }
    if items.is_empty() {
        return Err("no prompts in it".into());
    }
    Ok(items)
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    prompt: Option<Cow<'a, str>>,
    #[serde(borrow)]
    messages: Option<LazyValue<'a>>,
    #[serde(borrow)]
    body: Option<LazyValue<'a>>,
    #[serde(borrow)]
    url: Option<Cow<'a, str>>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    /// vLLM's custom dataset.
    output_tokens: Option<u32>,
}

fn json_line(line: &str) -> Result<Item, String> {
    let parsed: Line<'_> = sonic_rs::from_str(line).map_err(|error| first_line(&error))?;
    if let Some(body) = parsed.body {
        if let Some(url) = parsed.url.filter(|url| !url.ends_with("/completions")) {
            return Err(format!("url '{url}' is not a completion"));
        }
        return batch_body(body.as_raw_str());
    }
    let max_tokens = parsed.max_tokens.or(parsed.max_completion_tokens).or(parsed.output_tokens);
    let content = match (parsed.prompt, parsed.messages) {
        (Some(prompt), None) => Content::Text(prompt.into_owned()),
        (None, Some(messages)) if messages.is_array() => {
            Content::Messages(messages.as_raw_str().to_owned())
        }
        _ => return Err("needs a text 'prompt', an array 'messages' or a batch 'body'".into()),
    };
    Ok(Item { content, max_tokens })
}

/// The members of a batch request that are sent as they are: all but those we set ourselves.
fn batch_body(json: &str) -> Result<Item, String> {
    let value: sonic_rs::Value = sonic_rs::from_str(json).map_err(|error| first_line(&error))?;
    let object = value.as_object().ok_or("'body' is not an object")?;
    let mut members = Vec::new();
    let mut max_tokens = None;
    for (key, value) in object.iter() {
        match key {
            "model" | "stream" | "stream_options" => {}
            "max_tokens" | "max_completion_tokens" => {
                max_tokens = value.as_u64().and_then(|n| u32::try_from(n).ok());
            }
            _ => {
                let key = sonic_rs::to_string(key).map_err(|error| first_line(&error))?;
                let value = sonic_rs::to_string(value).map_err(|error| first_line(&error))?;
                members.push(format!("{key}:{value}"));
            }
        }
    }
    if members.is_empty() {
        return Err("'body' asks nothing".into());
    }
    Ok(Item { content: Content::Body(members.join(",")), max_tokens })
}

/// Which turn of a ShareGPT conversation is the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareGptRule {
    /// The first that a person wrote and a model answered.
    FirstHuman,
    /// The first, whoever wrote it: what other loaders do (37 % of the public file begin with an
    /// answer).
    FirstTurn,
}

/// Reads a ShareGPT array. As in vLLM and SGLang, conversations that are too short (under 4 tokens)
/// or too long (prompt over 1024, both over 2048) are dropped, and the length of the answer becomes
/// `max_tokens`.
///
/// # Errors
/// A sentence.
pub fn sharegpt(text: &str, rule: ShareGptRule) -> Result<Vec<Item>, String> {
    #[derive(Deserialize)]
    struct Entry<'a> {
        #[serde(borrow, alias = "conversation")]
        conversations: Option<Vec<Turn<'a>>>,
    }
    #[derive(Deserialize)]
    struct Turn<'a> {
        #[serde(borrow, default)]
        from: Cow<'a, str>,
        #[serde(borrow, default)]
        value: Cow<'a, str>,
    }
    let entries: Vec<Entry<'_>> = sonic_rs::from_str(text).map_err(|error| first_line(&error))?;
    let mut items = Vec::new();
    for entry in entries {
        let turns = entry.conversations.unwrap_or_default();
        let by_person = |turn: &Turn<'_>| matches!(turn.from.as_ref(), "human" | "user");
        let pair = match rule {
            ShareGptRule::FirstTurn => turns.first().zip(turns.get(1)),
            ShareGptRule::FirstHuman => turns
                .windows(2)
                .find(|pair| by_person(&pair[0]) && !by_person(&pair[1]))
                .map(|pair| (&pair[0], &pair[1])),
        };
        let Some((prompt, answer)) = pair else { continue };
        let input = tokenizer::count(&prompt.value).get();
        let output = tokenizer::count(&answer.value).get();
        if input < 4 || output < 4 || input > 1024 || input + output > 2048 {
            continue;
        }
        items.push(Item {
            content: Content::Text(prompt.value.clone().into_owned()),
            max_tokens: Some(output),
        });
    }
    if items.is_empty() {
        return Err("no conversation in it is of a usable length".into());
    }
    Ok(items)
}

fn first_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or("not JSON").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_three_kinds_can_be_mixed() {
        let items = json_lines(concat!(
            "{\"prompt\": \"a\\nb\", \"max_tokens\": 64}\n\n",
            "{\"messages\": [{\"role\":\"user\",\"content\":\"c\"}]}\r\n",
            "{\"custom_id\":\"1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",",
            "\"body\":{\"model\":\"x\",\"messages\":[],\"stream\":false,\"max_tokens\":5,\"top_p\":0.5}}",
        ))
        .expect("valid");
        assert_eq!(items[0].content, Content::Text("a\nb".into()));
        assert_eq!(items[0].max_tokens, Some(64));
        assert!(matches!(&items[1].content, Content::Messages(json) if json.starts_with('[')));
        assert_eq!(items[2].max_tokens, Some(5));
        let Content::Body(body) = &items[2].content else { panic!("a body") };
        assert!(body.contains("\"top_p\":0.5") && !body.contains("stream"), "{body}");
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, part) in [
            ("{\"prompt\":\"a\"}\n{\"prompt\":1}", "line 2"),
            ("{\"max_tokens\":1}", "needs a text 'prompt'"),
            ("{\"url\":\"/v1/embeddings\",\"body\":{}}", "not a completion"),
            ("\n", "no prompts"),
        ] {
            let problem = json_lines(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }

    const CONVERSATIONS: &str = r#"[
        {"id":"1_0","conversations":[
            {"from":"gpt","value":"Sure, here is the second part."},
            {"from":"human","value":"Tell me about the sea."},
            {"from":"gpt","value":"It is deep and blue."}]},
        {"id":"2","conversation":[{"from":"human","value":"one"},{"from":"gpt","value":"two"}]},
        {"id":"3","conversations":[]}
    ]"#;

    #[test]
    fn the_first_turn_of_a_person_is_the_prompt() {
        let items = sharegpt(CONVERSATIONS, ShareGptRule::FirstHuman).expect("valid");
        assert_eq!(items.len(), 1, "the second is too short");
        assert_eq!(items[0].content, Content::Text("Tell me about the sea.".into()));
        // It| is| deep| and| blue|.
        assert_eq!(items[0].max_tokens, Some(6));
    }

    #[test]
    fn other_loaders_take_the_first_turn_whoever_wrote_it() {
        let items = sharegpt(CONVERSATIONS, ShareGptRule::FirstTurn).expect("valid");
        assert_eq!(items[0].content, Content::Text("Sure, here is the second part.".into()));
    }
}
