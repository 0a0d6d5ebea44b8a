//! Integration tests: real sockets, real clients.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report, in helpers too")]

mod cli;
