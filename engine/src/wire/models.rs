//! `GET /v1/models` and `GET /v1/models/{id}`: OpenAI's card with the fields that vLLM adds, of
//! which benchmark tools read `max_model_len`.

use std::io::Write as _;

use super::json::{push_optional_string, push_string};

/// One served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCard<'a> {
    /// The name to put into a request.
    pub id: &'a str,
    /// Seconds since 1970 at which it began to be served.
    pub created: u64,
    /// Who serves it.
    pub owned_by: &'a str,
    /// Context length in tokens.
    pub max_model_len: u32,
    /// Of an adapter: the model that it adapts, and where its weights would be.
    pub adapts: Option<(&'a str, &'a str)>,
}

impl ModelCard<'_> {
    /// Appends the card alone: the body of `GET /v1/models/{id}`.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"id\":");
        push_string(out, self.id);
        write!(out, ",\"object\":\"model\",\"created\":{},\"owned_by\":", self.created)
            .expect("writing to memory cannot fail");
        push_string(out, self.owned_by);
        out.extend_from_slice(b",\"root\":");
        push_string(out, self.adapts.map_or(self.id, |(_, path)| path));
        out.extend_from_slice(b",\"parent\":");
        push_optional_string(out, self.adapts.map(|(parent, _)| parent));
        write!(out, ",\"max_model_len\":{},\"permission\":[]}}", self.max_model_len)
            .expect("writing to memory cannot fail");
    }
}

/// Appends the body of `GET /v1/models`.
pub fn write_list<'a>(cards: impl IntoIterator<Item = ModelCard<'a>>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"object\":\"list\",\"data\":[");
    for (at, card) in cards.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        card.write(out);
    }
    out.extend_from_slice(b"]}");
}
