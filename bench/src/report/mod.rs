//! What comes out: for people on the console, for programs as JSON, to look at as HTML.

pub mod console;
pub mod html;
pub mod json;
pub mod vllm;

use crate::compare::{Joined, ServerSide};
use crate::record::Record;
use crate::result::Summary;
use crate::settings::LevelSetting;

/// A finished level with everything that a report needs.
#[derive(Clone, Debug)]
pub struct Done {
    /// What it was to do.
    pub setting: LevelSetting,
    /// What came of it; an error if it could not be measured.
    pub outcome: Result<Measured, String>,
}

/// The figures of a measured level.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The client's.
    pub summary: Summary,
    /// The server's.
    pub server: ServerSide,
    /// Both, request by request.
    pub joined: Option<Joined>,
    /// One per request.
    pub records: Vec<Record>,
    /// Start of the schedule on the records' clock.
    pub began: llmsim_engine::units::SimTime,
}

/// `12,345`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `11.46 ms`, `1.031 s`.
pub(crate) fn span(ns: f64) -> String {
    if ns.abs() >= 1e9 { format!("{:.3} s", ns / 1e9) } else { format!("{:.2} ms", ns / 1e6) }
}
