//! The pure core of `llmsimulator`: simulated GPUs, scripted texts, wire formats, statistics and
//! configuration.
//!
//! Nothing in this crate reads a clock, starts a thread, opens a file or touches a socket: every
//! function that depends on the time is told it, every function that is random takes a seed. The
//! same code therefore runs live, in virtual time, and against recorded vLLM steps.
//!
//! Which module may use which is fixed (see `docs/architecture.md`) and checked by
//! `tests/it/tidy.rs`: `sim` knows no text, `text` knows no time.
#![forbid(unsafe_code)]

pub mod calibrate;
pub mod catalog;
pub mod config;
pub mod escape;
pub mod faults;
pub mod observe;
pub mod record;
pub mod replay;
pub mod seed;
pub mod sim;
pub mod stats;
pub mod text;
pub mod units;
pub mod wire;
