//! Integration tests of the engine: one binary, features told as stories.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report, in helpers too")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests read case files and settings; the core does not"
)]

mod calibrate;
mod config;

mod differential;
mod model_tokenizer;
mod observe_vllm;
mod scheduler;
mod simulation;
mod stats;
mod text_matching;
mod text_properties;
mod text_responses;
mod text_schema;
mod tidy;
mod wire_bad_bodies;
mod wire_bodies;
mod wire_chat;
mod wire_completions;
mod wire_fuzz;
mod wire_messages;
mod wire_other;
mod wire_responses;
mod wire_sse;
