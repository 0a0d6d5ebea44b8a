//! What the server says of single requests, placed beside what arrived here.
//!
//! It measures nothing: `compare` has the definitions. The invariant: a server's clock is never
//! read as this client's; its spans are laid from the instant of the send, so both ways of the
//! network are within what is called delivery.

use llmsim_engine::units::SimSpan;
use serde::Serialize;

use super::ms;
use crate::compare::{self, Joined, Told};
use crate::record::Record;
use crate::result::Stat;

/// One request as its server tells it; instants in ms from its scheduled send.
#[derive(Serialize)]
pub(super) struct Clocks {
    /// In the engine's queue.
    queued_ms: Option<f64>,
    /// The engine's instants of the first and the last token; unknown where only phases are told.
    scheduled_ms: Option<[f64; 2]>,
    /// When the server handed them on; by phases, when its engine had them.
    released_ms: [Option<f64>; 2],
    /// When the kernel there took the bytes of the first token.
    first_sent_ms: Option<f64>,
    /// What was beyond until they were here: beyond the sending of the first token, the release of
    /// the last.
    delivery_ms: [Option<f64>; 2],
}

impl Clocks {
    /// `None` where the server told nothing, or the request failed.
    pub(super) fn of(record: &Record) -> Option<Self> {
        let (_, delivery) = compare::delivery(record)?;
        let sent = record.sent?;
        let since = |span: SimSpan| ms((sent + span).saturating_since(record.scheduled));
        let delivery_ms = [Some(ms(delivery.first)), delivery.last.map(ms)];
        if let Some(timing) = record.server {
            return Some(Self {
                queued_ms: timing.queued.map(ms),
                scheduled_ms: Some([timing.first_scheduled, timing.last_scheduled].map(since)),
                released_ms: [timing.first_released, timing.last_released]
                    .map(|span| Some(since(span))),
                first_sent_ms: Some(since(timing.first_sent)),
                delivery_ms,
            });
        }
        let reported = record.reported?;
        Some(Self {
            queued_ms: reported.queue.map(ms),
            scheduled_ms: None,
            released_ms: [reported.to_first(), reported.to_last()].map(|span| span.map(since)),
            first_sent_ms: None,
            delivery_ms,
        })
    }
}

/// Percentiles of one span over all joined requests, in ms.
#[derive(Serialize)]
pub(super) struct JoinedRow {
    name: &'static str,
    n: usize,
    /// p50, p90, p99 and the greatest.
    cells: [Option<f64>; 4],
}

/// The join of all requests, row by row.
pub(super) fn joined_rows(joined: &Joined) -> Vec<JoinedRow> {
    let rows: &[(&'static str, &Vec<u64>)] = match joined.told {
        Told::Clock => &[
            ("First token scheduled by the engine", &joined.scheduled),
            ("First token sent late by the server", &joined.server_late),
            ("Delivery of the first token", &joined.first),
            ("Last token scheduled by the engine", &joined.last_scheduled),
            ("Delivery of the last token", &joined.last),
        ],
        Told::Phases => &[
            ("In the server's queue", &joined.queue),
            ("Prefill", &joined.prefill),
            ("Outside the engine: first token", &joined.first),
            ("Outside the engine: last token", &joined.last),
        ],
    };
    rows.iter()
        .filter(|(_, spans)| !spans.is_empty())
        .map(|&(name, spans)| {
            let stat = Stat::new(spans.iter().map(|&ns| ns as f64 / 1e6), 0);
            let at = |p| stat.percentile(p);
            JoinedRow { name, n: stat.n, cells: [at(50.0), at(90.0), at(99.0), stat.max()] }
        })
        .collect()
}
