//! The items of a response's input, as `GET /v1/responses/{id}/input_items` lists them.
//!
//! Not a check of the request: that is done. The invariant: every item has an id, a type, and its
//! content in parts, however short the client wrote it.

use serde::Deserialize;

use crate::wire::chat::body;
use crate::wire::error::{ApiError, Bound};
use crate::wire::json::{Json, Object, push_string};

/// An item and its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredItem {
    /// The client's own, or one made of the response's.
    pub id: Box<str>,
    /// The object.
    pub json: Box<[u8]>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct OnlyInput<'a> {
    input: Json<'a>,
}

/// The items of the body of a request that was taken, for the response with the id `resp_<suffix>`:
/// the first thousand or so.
pub fn stored_items(body: &[u8], id: &str) -> Box<[StoredItem]> {
    let suffix = id.strip_prefix("resp_").unwrap_or(id);
    let Ok(OnlyInput { input }) = body::read_as(body) else { return Box::default() };
    let text;
    let items = match input {
        Json::Array(array) => array.items,
        Json::String(_) => {
            let role = ("role".into(), Json::String("user".into()));
            text = Object { members: vec![role, ("content".into(), input)], len: 2 };
            vec![Json::Object(Box::new(text))]
        }
        _ => Vec::new(),
    };
    let objects = items.iter().filter_map(|item| match item {
        Json::Object(item) => Some(item),
        _ => None,
    });
    objects.enumerate().map(|(at, item)| stored(item, suffix, at)).collect()
}

fn stored(item: &Object<'_>, suffix: &str, at: usize) -> StoredItem {
    let kind = match item.get("type") {
        Json::String(kind) => kind.as_ref(),
        _ => "message",
    };
    let id = match item.get("id") {
        Json::String(id) if !id.is_empty() => id.to_string(),
        _ => {
            let prefix = match kind {
                "message" => "msg",
                "function_call" => "fc",
                "function_call_output" => "fco",
                "reasoning" => "rs",
                _ => "item",
            };
            format!("{prefix}_{suffix}_in{at}")
        }
    };
    let mut json = Vec::with_capacity(128);
    json.extend_from_slice(b"{\"id\":");
    push_string(&mut json, &id);
    json.extend_from_slice(b",\"type\":");
    push_string(&mut json, kind);
    if kind == "message" && item.get("status").is_absent() {
        json.extend_from_slice(b",\"status\":\"completed\"");
    }
    let speaks = *item.get("role") == Json::String("assistant".into());
    for (name, value) in item.members.iter().filter(|(name, _)| name != "id" && name != "type") {
        json.push(b',');
        push_string(&mut json, name);
        json.push(b':');
        match value {
            Json::String(text) if name == "content" => {
                let part = if speaks { "output_text" } else { "input_text" };
                json.extend_from_slice(b"[{\"type\":");
                push_string(&mut json, part);
                json.extend_from_slice(b",\"text\":");
                push_string(&mut json, text);
                json.extend_from_slice(b"}]");
            }
            value => value.write(&mut json),
        }
    }
    json.push(b'}');
    StoredItem { id: id.into(), json: json.into() }
}

/// Which part of a list is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListQuery {
    /// Items of a page: 1 to 100.
    pub limit: usize,
    /// The last item comes first, which is what OpenAI does unless told otherwise.
    pub newest_first: bool,
    /// The id of the item before the first of the page.
    pub after: Option<String>,
}

impl ListQuery {
    /// Reads the query of a URL. Ids need no escapes, so none are undone.
    ///
    /// # Errors
    /// A limit that is none, or an order that is not known.
    pub fn parse(query: &str) -> Result<Self, ApiError> {
        let mut page = Self { limit: 20, newest_first: true, after: None };
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            match name {
                "limit" => {
                    let limit = value.parse::<i64>().map_err(|_| {
                        ApiError::invalid_value("limit", "it is a number from 1 to 100.")
                    })?;
                    let bound = if limit < 1 { Bound::Min(1) } else { Bound::Max(100) };
                    if !(1..=100).contains(&limit) {
                        return Err(ApiError::integer_out_of_range("limit", bound, limit));
                    }
                    page.limit = limit as usize;
                }
                "order" => match value {
                    "asc" => page.newest_first = false,
                    "desc" => page.newest_first = true,
                    other => return Err(ApiError::not_one_of("order", other, &["asc", "desc"])),
                },
                "after" => page.after = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(page)
    }
}
