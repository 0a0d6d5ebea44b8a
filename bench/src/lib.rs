//! A load generator for OpenAI-compatible servers that never hides queueing.

/// The program.
pub fn main() {}
