//! What a plan is run against: a server over HTTP, or the engine in virtual time.

pub mod http;
pub mod simulated;
