//! Integration tests of the server: real sockets, real clients.
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report, in helpers too")]

mod bad_inputs;
mod choices;
mod cli;
mod client;
mod completions;
mod contract;
mod ending;
mod fault_bodies;
mod fault_load;
mod fault_neighbours;
mod fault_replicas;
mod faults;
mod fixture;
mod fleet;
mod http;
mod identity;
mod ignored;
mod journal;
mod keys;
mod live_cases;
mod load;
mod messages;
mod metrics;
mod parts;
mod probes;
mod responses;
mod scheduling;
mod step_files;
mod streams;
mod tls;
mod token_fields;
mod tokenizers;
mod tools;
