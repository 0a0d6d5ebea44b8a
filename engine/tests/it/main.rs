//! Integration tests of the engine: one binary, features told as stories.
