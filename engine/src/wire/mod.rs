//! What crosses the wire: OpenAI's request and response bodies, errors, server-sent events.
//!
//! It is not a server: no socket, no header, no clock. Requests come in as bytes and go out as
//! typed values or as an [`error::ApiError`]; responses are appended to a caller's `Vec<u8>`. The
//! invariant to keep in mind: nothing here panics on a byte that a client sent, and nothing here
//! allocates per token.

pub mod chat;
pub mod client;
pub mod completion;
pub mod completions;
mod conversations;
mod decimal;
pub mod embeddings;
pub mod error;
pub mod generate;
pub mod inputs;
mod json;
pub mod json_guard;
pub mod logprobs;
pub mod lora;
pub mod messages;
pub mod models;
pub mod orca;
pub mod probes;
pub mod render;
pub mod responses;
pub mod sse;
pub mod token_ids;
pub mod tokenize;
pub mod tools;
pub mod usage;

pub use self::decimal::push_decimal;
pub use self::json::within_floats;
