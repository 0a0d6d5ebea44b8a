//! `POST /v1/embeddings`: the request, checked completely, and its body.
//!
//! It does not make vectors. The invariant is that of [`chat`](super::chat): whoever holds a
//! request need not check it again.

use std::borrow::Cow;
use std::io::Write as _;

use serde::Deserialize;

use super::chat::fields::{boolean, integer, only_type, string};
use super::chat::vllm::{PromptEnd, prompt_end};
use super::chat::{self, Message, body};
use super::conversations::RawConversations;
use super::error::ApiError;
use super::inputs::{Input, RawInputs};
use super::json::{Json, Kind, push_string};

/// The most inputs of one request (OpenAI's limit).
pub const MAX_INPUTS: usize = 2048;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// An array of numbers.
    Float,
    /// Numbers in base64: what OpenAI's SDKs ask for, as little-endian 32-bit floats.
    Base64(Number, ByteOrder),
}

/// vLLM's `embed_dtype`: what a coordinate becomes in base64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Number {
    /// IEEE 754's `binary32`.
    #[default]
    Float32,
    /// IEEE 754's `binary16`.
    Float16,
    /// The upper half of a `binary32`.
    Bfloat16,
    /// One byte: 4 bits of exponent, 3 of mantissa (`float8_e4m3fn`).
    Fp8E4m3,
    /// One byte: 5 bits of exponent, 2 of mantissa.
    Fp8E5m2,
}

/// vLLM's `endianness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ByteOrder {
    /// The low byte first: `little`, and `native` as on every machine that vLLM knows.
    #[default]
    Little,
    /// The high byte first.
    Big,
}

/// What is to be embedded.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs<'a> {
    /// At least one; no text is empty.
    Plain(Vec<Input<'a>>),
    /// vLLM's `messages`: at least one conversation, each of at least one message.
    Conversations {
        /// Each becomes a vector.
        list: Vec<Vec<Message<'a>>>,
        /// What the prompt of each ends with.
        end: PromptEnd,
        /// The field that has them.
        field: &'static str,
    },
}

/// A valid request for embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest<'a> {
    /// The model as named by the client: not yet looked up.
    pub model: Cow<'a, str>,
    /// What is to be embedded.
    pub inputs: Inputs<'a>,
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
    messages: RawConversations<'a>,
    add_generation_prompt: Json<'a>,
    continue_final_message: Json<'a>,
    chat_template_kwargs: Kind,
    encoding_format: Json<'a>,
    embed_dtype: Json<'a>,
    endianness: Json<'a>,
    dimensions: Json<'a>,
    user: Json<'a>,
    truncate_prompt_tokens: Json<'a>,
    add_special_tokens: Json<'a>,
    normalize: Json<'a>,
    priority: Json<'a>,
}

/// The same body where `input` has conversations.
#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct RawInputMessages<'a> {
    input: RawConversations<'a>,
}

impl<'a> EmbeddingRequest<'a> {
    /// Reads and checks a request body; vectors have at most `most_dimensions` coordinates.
    ///
    /// # Errors
    /// The first fault, as OpenAI would report it.
    pub fn parse(body: &'a [u8], most_dimensions: usize) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        let model = chat::model(raw.model)?;
        let (adds, continues) = (&raw.add_generation_prompt, &raw.continue_final_message);
        let end = prompt_end(adds, continues, PromptEnd::Closed)?;
        only_type(raw.chat_template_kwargs, "chat_template_kwargs", Kind::Object)?;
        let in_messages = !raw.messages.is_absent();
        let inputs = match in_messages || raw.input.begins_with_messages() {
            true if in_messages && !raw.input.is_absent() => {
                let why = "send either 'input' or 'messages', not both.";
                return Err(ApiError::contradiction("input", why));
            }
            true => {
                let (field, raw) = match in_messages {
                    true => ("messages", raw.messages),
                    false => ("input", body::read_as::<RawInputMessages<'a>>(body)?.input),
                };
                Inputs::Conversations { list: raw.check(field, MAX_INPUTS)?, end, field }
            }
            false => {
                let inputs = raw.input.check_filled("input", MAX_INPUTS)?;
                Inputs::Plain(inputs.ok_or_else(|| ApiError::missing("input"))?)
            }
        };
        let most = i64::try_from(most_dimensions).unwrap_or(i64::MAX);
        let dimensions = integer(&raw.dimensions, "dimensions", 1..=most)?;
        let encodings = [("float", false), ("base64", true)];
        let is_base64 = one_of(raw.encoding_format, "encoding_format", &encodings)?;
        let number = one_of(raw.embed_dtype, "embed_dtype", &NUMBERS)?.unwrap_or_default();
        let order = one_of(raw.endianness, "endianness", &BYTE_ORDERS)?.unwrap_or_default();
        let encoding = match is_base64 {
            Some(true) => Encoding::Base64(number, order),
            Some(false) | None => Encoding::Float,
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

const NUMBERS: [(&str, Number); 5] = [
    ("float32", Number::Float32),
    ("float16", Number::Float16),
    ("bfloat16", Number::Bfloat16),
    ("fp8_e4m3", Number::Fp8E4m3),
    ("fp8_e5m2", Number::Fp8E5m2),
];

const BYTE_ORDERS: [(&str, ByteOrder); 3] =
    [("native", ByteOrder::Little), ("big", ByteOrder::Big), ("little", ByteOrder::Little)];

/// What a word stands for.
fn one_of<T: Copy>(
    json: Json<'_>,
    param: &'static str,
    words: &[(&str, T)],
) -> Result<Option<T>, ApiError> {
    let Some(word) = string(json, param)? else { return Ok(None) };
    match words.iter().find(|(known, _)| *known == word) {
        Some(&(_, meaning)) => Ok(Some(meaning)),
        None => {
            let known: Vec<&str> = words.iter().map(|&(word, _)| word).collect();
            Err(ApiError::not_one_of(param, &word, &known))
        }
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
        Encoding::Base64(number, order) => {
            out.push(b'"');
            base64(vector.iter().flat_map(|&coordinate| number.bytes(coordinate, order)), out);
            out.push(b'"');
        }
    }
    out.push(b'}');
}

impl Number {
    /// A coordinate as this kind of number; it is at most 1, so none is beyond its range.
    fn bytes(self, coordinate: f32, order: ByteOrder) -> impl Iterator<Item = u8> {
        let (bits, len) = match self {
            Self::Float32 => (coordinate.to_bits(), 4),
            Self::Float16 => (rounded(coordinate, 5, 10), 2),
            Self::Bfloat16 => (rounded(coordinate, 8, 7), 2),
            Self::Fp8E4m3 => (rounded(coordinate, 4, 3), 1),
            Self::Fp8E5m2 => (rounded(coordinate, 5, 2), 1),
        };
        (0..len).map(move |at| {
            let place = match order {
                ByteOrder::Little => at,
                ByteOrder::Big => len - 1 - at,
            };
            bits.to_le_bytes()[place]
        })
    }
}

/// The bits of the nearest number with so many bits of exponent and mantissa; of two, the even one,
/// as IEEE 754 and PyTorch round. `value` is at most 1 in size.
fn rounded(value: f32, exponent_bits: u32, mantissa_bits: i32) -> u32 {
    debug_assert!(value.abs() <= 1.0, "a coordinate of a vector of length 1");
    let bias = (1 << (exponent_bits - 1)) - 1;
    // Below the least normal exponent, numbers stand as close as there.
    let exponent = ((value.abs().to_bits() >> 23) as i32 - 127).max(1 - bias);
    let size = f64::from(value.abs()) * 2f64.powi(mantissa_bits - exponent);
    // From one with the implied bit, or without one below the normal numbers; a carry goes into the
    // exponent, where it belongs.
    let mantissa = size.round_ties_even() as i32 - (1 << mantissa_bits);
    let bits = ((exponent + bias) << mantissa_bits) + mantissa;
    let sign = u32::from(value.is_sign_negative()) << (exponent_bits as i32 + mantissa_bits);
    sign | bits as u32
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
