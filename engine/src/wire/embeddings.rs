//! `POST /v1/embeddings`: the request, checked completely, and its body.
//!
//! It does not make vectors. The invariant is that of [`chat`](super::chat): whoever holds a request
//! need not check it again.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;

use super::chat;
use super::chat::body;
use super::chat::fields::{boolean, integer, string};
use super::error::ApiError;
use super::inputs::{Input, RawInputs};
use super::json::{Json, push_string};

/// The most inputs of one request (OpenAI's limit).
pub const MAX_INPUTS: usize = 2048;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// An array of numbers.
    Float,
    /// Little-endian 32-bit floats in base64: what OpenAI's SDKs ask for.
    Base64,
}

/// A valid request for embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// At least one; no text is empty.
    pub inputs: Vec<Input<'a>>,
    /// How to write the vectors.
    pub encoding: Encoding,
    /// Coordinates of a vector; all that there are if not said.
    pub dimensions: Option<usize>,
    /// vLLM: lower is more urgent.
    pub priority: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Raw<'a> {
    model: Json<'a>,
    input: RawInputs<'a>,
    encoding_format: Json<'a>,
    dimensions: Json<'a>,
    user: Json<'a>,
    truncate_prompt_tokens: Json<'a>,
    add_special_tokens: Json<'a>,
    normalize: Json<'a>,
    priority: Json<'a>,
}

impl<'a> EmbeddingRequest<'a> {
    /// Reads and checks a request body; vectors have at most `most_dimensions` coordinates.
    ///
    /// # Errors
    /// The first fault, as OpenAI would report it.
    pub fn parse(body: &'a [u8], most_dimensions: usize) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        let model = chat::model(raw.model)?;
        let inputs = inputs(raw.input)?;
        let most = i64::try_from(most_dimensions).unwrap_or(i64::MAX);
        let dimensions = integer(&raw.dimensions, "dimensions", 1..=most)?;
        let encoding = match string(raw.encoding_format, "encoding_format")?.as_deref() {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(other) => {
                let allowed = ["float", "base64"];
                return Err(ApiError::not_one_of("encoding_format", other, &allowed));
            }
        };
        string(raw.user, "user")?;
        integer(&raw.truncate_prompt_tokens, "truncate_prompt_tokens", -1..=i64::MAX)?;
        boolean(&raw.add_special_tokens, "add_special_tokens")?;
        boolean(&raw.normalize, "normalize")?;
        let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
        let priority = integer(&raw.priority, "priority", range)?.map_or(0, |value| value as i32);
        Ok(Self {
            model,
            inputs,
            encoding,
            dimensions: dimensions.and_then(|count| usize::try_from(count).ok()),
            priority,
        })
    }
}

fn inputs(raw: RawInputs<'_>) -> Result<Vec<Input<'_>>, ApiError> {
    let Some(inputs) = raw.check("input", MAX_INPUTS)? else {
        return Err(ApiError::missing("input"));
    };
    let is_empty = |input: &Input<'_>| matches!(input, Input::Text(text) if text.is_empty());
    match inputs.iter().position(is_empty) {
        Some(_) if inputs.len() == 1 => Err(ApiError::empty_string("input")),
        Some(at) => Err(ApiError::empty_string(format!("input[{at}]"))),
        None => Ok(inputs),
    }
}

/// Appends the vector of the input at `index`: an element of `data`.
pub fn write_vector(index: usize, vector: &[f32], encoding: Encoding, out: &mut Vec<u8>) {
    const INFALLIBLE: &str = "writing to memory cannot fail";
    write!(out, "{{\"object\":\"embedding\",\"index\":{index},\"embedding\":").expect(INFALLIBLE);
    match encoding {
        Encoding::Float => {
            for (at, coordinate) in vector.iter().enumerate() {
                out.push(if at == 0 { b'[' } else { b',' });
                write!(out, "{coordinate}").expect(INFALLIBLE);
            }
            out.push(b']');
        }
        Encoding::Base64 => {
            out.push(b'"');
            base64(vector.iter().flat_map(|coordinate| coordinate.to_le_bytes()), out);
            out.push(b'"');
        }
    }
    out.push(b'}');
}

/// Appends the body. `vectors` are elements of `data`, separated by commas.
pub fn write_body(
    id: &str,
    created: u64,
    model: &str,
    tokens: u64,
    vectors: &[u8],
    out: &mut Vec<u8>,
) {
    const INFALLIBLE: &str = "writing to memory cannot fail";
    out.reserve(vectors.len() + 256);
    out.extend_from_slice(b"{\"id\":");
    push_string(out, id);
    write!(out, ",\"object\":\"list\",\"created\":{created},\"data\":[").expect(INFALLIBLE);
    out.extend_from_slice(vectors);
    out.extend_from_slice(b"],\"model\":");
    push_string(out, model);
    write!(out, ",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}}}")
        .expect(INFALLIBLE);
}

/// Appends `bytes` in base64 with padding (RFC 4648, section 4).
fn base64(bytes: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count) = (0u32, 0);
    let mut push = |bits: u32, chars: usize| {
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at)) & 63;
            out.push(if at < chars { ALPHABET[index as usize] } else { b'=' });
        }
    };
    for byte in bytes {
        bits = bits << 8 | u32::from(byte);
        count += 1;
        if count == 3 {
            push(bits, 4);
            (bits, count) = (0, 0);
        }
    }
    if count > 0 {
        push(bits << (8 * (3 - count)), count + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let mut out = Vec::new();
            base64(text.bytes(), &mut out);
            assert_eq!(out, expected.as_bytes());
        }
    }
}
