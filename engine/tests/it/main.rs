//! Integration tests of the engine: one binary, features told as stories.

mod differential;
mod text_matching;
mod text_properties;
mod text_responses;
mod wire_bad_bodies;
mod wire_bodies;
mod wire_chat;
mod wire_sse;
