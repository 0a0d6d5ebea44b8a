//! A deterministic, GPU-free stand-in for an OpenAI-compatible LLM server.

/// The program.
pub fn main() {}
