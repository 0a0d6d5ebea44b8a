//! How a request is written: HTTP head and JSON body.

use llmsim_engine::escape::json_string_content;
use llmsim_engine::text::prompt;
use llmsim_engine::units::Tokens;

/// What is asked, before it is dressed for the wire.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// One user message, or the prompt of a legacy completion.
    Text(String),
    /// A JSON array of messages.
    Messages(String),
    /// A whole JSON request whose members win over ours, except for `model` and streaming.
    Body(String),
}

impl Content {
    /// With `prefix` before the text; what is not plain text is left alone.
    #[must_use]
    pub fn prefixed(&self, prefix: &str) -> Self {
        match self {
            Self::Text(text) if !prefix.is_empty() => Self::Text(format!("{prefix}{text}")),
            other => other.clone(),
        }
    }
}

/// Everything of a request that does not depend on the prompt.
#[derive(Clone, Debug)]
pub struct Form {
    /// Chat or legacy.
    pub api: Api,
    /// `model`.
    pub model: String,
    /// The HTTP head up to the length.
    pub head: String,
    /// Members for every body, each with a comma before it: `,"temperature":0`.
    pub members: String,
}

/// Which endpoint is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

impl Api {
    /// Prompt tokens beside those of the text, as llmsimulator counts them.
    pub const fn overhead(self) -> Tokens {
        match self {
            Self::Chat => Tokens::new(prompt::PER_MESSAGE.get() + prompt::BEFORE_ANSWER.get()),
            Self::Completions => Tokens::ZERO,
        }
    }

    /// Those of them that stand before the text: opening tag, role and line feed of ChatML.
    pub const fn before_prompt(self) -> Tokens {
        match self {
            Self::Chat => Tokens::new(prompt::PER_MESSAGE.get() - 1),
            Self::Completions => Tokens::ZERO,
        }
    }

    /// What vLLM's benchmark calls it.
    pub const fn backend(self) -> &'static str {
        match self {
            Self::Chat => "openai-chat",
            Self::Completions => "openai",
        }
    }
}

impl Form {
    /// A bare form for tests.
    #[cfg(test)]
    pub(crate) fn chat(model: &str) -> Self {
        Self {
            api: Api::Chat,
            model: model.into(),
            head: "POST / HTTP/1.1\r\n".into(),
            members: String::new(),
        }
    }

    /// The bytes of a request.
    pub fn write(&self, content: &Content, max_tokens: Option<u32>, nonce: Option<u64>) -> Vec<u8> {
        let mut body = Vec::with_capacity(256);
        body.extend_from_slice(b"{\"model\":\"");
        json_string_content(&self.model, &mut body);
        body.extend_from_slice(b"\",");
        self.write_content(content, nonce, &mut body);
        body.extend_from_slice(b",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
        if let Some(limit) = max_tokens {
            body.extend_from_slice(format!(",\"max_tokens\":{limit}").as_bytes());
        }
        body.extend_from_slice(self.members.as_bytes());
        body.push(b'}');
        let mut bytes = Vec::with_capacity(self.head.len() + body.len() + 32);
        bytes.extend_from_slice(self.head.as_bytes());
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    fn write_content(&self, content: &Content, nonce: Option<u64>, body: &mut Vec<u8>) {
        match (content, self.api) {
            (Content::Text(text), Api::Completions) => {
                body.extend_from_slice(b"\"prompt\":\"");
                if let Some(nonce) = nonce {
                    body.extend_from_slice(format!("{nonce:016x} ").as_bytes());
                }
                json_string_content(text, body);
                body.push(b'"');
            }
            (Content::Text(text), Api::Chat) => {
                body.extend_from_slice(b"\"messages\":[");
                if let Some(nonce) = nonce {
                    write_nonce(nonce, body);
                    body.push(b',');
                }
                body.extend_from_slice(b"{\"role\":\"user\",\"content\":\"");
                json_string_content(text, body);
                body.extend_from_slice(b"\"}]");
            }
            (Content::Messages(json), _) => {
                body.extend_from_slice(b"\"messages\":");
                write_messages(json, nonce, body);
            }
            (Content::Body(members), _) => match (nonce, members.find("\"messages\":[")) {
                (Some(nonce), Some(at)) => {
                    let split = at + "\"messages\":[".len();
                    body.extend_from_slice(&members.as_bytes()[..split]);
                    write_nonce(nonce, body);
                    body.push(b',');
                    body.extend_from_slice(&members.as_bytes()[split..]);
                }
                _ => body.extend_from_slice(members.as_bytes()),
            },
        }
    }
}

/// The nonce goes into a system message of its own: the prompt then differs from its first tokens
/// on, and rules about the user's message still match.
fn write_nonce(nonce: u64, body: &mut Vec<u8>) {
    let message = format!("{{\"role\":\"system\",\"content\":\"{nonce:016x}\"}}");
    body.extend_from_slice(message.as_bytes());
}

fn write_messages(json: &str, nonce: Option<u64>, body: &mut Vec<u8>) {
    let inside = json.trim_start().strip_prefix('[');
    match (nonce, inside) {
        (Some(nonce), Some(rest)) => {
            body.push(b'[');
            write_nonce(nonce, body);
            if !rest.trim_start().starts_with(']') {
                body.push(b',');
            }
            body.extend_from_slice(rest.as_bytes());
        }
        _ => body.extend_from_slice(json.as_bytes()),
    }
}
