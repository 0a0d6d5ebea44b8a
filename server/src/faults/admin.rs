//! `/admin/faults`: the plan in force, to be read, replaced, added to and cleared.
//!
//! A body is a faults file: words, a list of rules, or a mapping, in YAML or JSON. The invariant: a
//! plan is put in force whole or not at all.

use std::fmt::Write as _;

use http::Method;
use llmsim_engine::config::{self, Source};
use llmsim_engine::faults::{MOST_RULES, Settings, Timed};
use llmsim_engine::observe::summary;
use llmsim_engine::sim::Disturbance;
use llmsim_engine::units::SimTime;
use llmsim_engine::wire::error::ApiError;

use super::{Change, Faults, Plan};
use crate::http::response::Response;

/// The methods of the route.
pub(crate) const ALLOW: &str = "GET, HEAD, PUT, POST, DELETE, OPTIONS";

/// Does what is asked, which may take long, and tells what is in force then; and what simulated GPUs
/// are to be told, if it was a change.
///
/// # Errors
/// What is wrong with the body.
pub(crate) fn answer(
    faults: &Faults,
    method: &Method,
    body: &[u8],
    now: SimTime,
) -> Result<(Response, Option<Change>), ApiError> {
    let changed = match *method {
        Method::PUT => Some(faults.replace(read(faults, body)?, now)),
        Method::POST => {
            let added = faults.add(read(faults, body)?, now);
            Some(added.map_err(|all| {
                let why = format!(
                    "with those in force there would be {all} rules; the most are {MOST_RULES}. PUT \
                     a whole plan instead, or DELETE the one in force first."
                );
                ApiError::invalid_value("body", &why)
            })?)
        }
        Method::DELETE => Some(faults.clear(now)),
        _ => None,
    };
    Ok((Response::json(200, told(faults, &faults.plan(), now).into_bytes()), changed))
}

fn read(faults: &Faults, body: &[u8]) -> Result<Settings, ApiError> {
    let text =
        std::str::from_utf8(body).map_err(|_| ApiError::malformed_json("the body is not UTF-8"))?;
    config::load_faults(&Source::new("body", text), &faults.models)
        .map_err(|problems| ApiError::invalid_value("body", &problems.to_string()))
}

/// A JSON string.
fn string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    summary::string(text, &mut out);
    out
}

/// The state as JSON.
fn told(faults: &Faults, plan: &Plan, now: SimTime) -> String {
    let Settings { seed, headers, markers, rules } = &plan.settings;
    let mut out = format!(
        "{{\"seed\":{seed},\"headers\":{},\"markers\":{},\"seconds\":{},\"rules\":[",
        headers.unwrap_or(true),
        markers.unwrap_or(false),
        now.saturating_since(plan.since).as_secs_f64(),
    );
    for (at, rule) in rules.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            out,
            "{comma}{{\"kind\":\"{}\",\"rule\":{}}}",
            rule.fault.kind(),
            string(&rule.text)
        );
    }
    out.push_str("],");
    write_hits(faults, 20, &mut out);
    out.push('}');
    out
}

/// Appends the members `counts` and `recent`.
pub(crate) fn write_hits(faults: &Faults, most: usize, out: &mut String) {
    out.push_str("\"counts\":[");
    for (at, counted) in faults.log.counts().iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            out,
            "{comma}{{\"model\":{},\"kind\":\"{}\",\"count\":{}}}",
            string(&counted.model),
            counted.kind,
            counted.count
        );
    }
    out.push_str("],\"recent\":[");
    for (at, hit) in faults.log.recent(most).iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(
            out,
            "{comma}{{\"seconds\":{},\"model\":{},\"kind\":\"{}\",\"rule\":{},\"request\":{}}}",
            (hit.at.as_ns() / 1_000_000) as f64 / 1e3,
            string(&hit.model),
            hit.kind,
            string(&hit.rule),
            string(&hit.request)
        );
    }
    out.push(']');
}

/// Of a plan that is under way at `now`: what is still to come, and before it the speed and the
/// cache that it has come to.
pub(super) fn from_now_on(plan: Vec<Timed>, now: SimTime) -> Vec<Timed> {
    let (past, to_come): (Vec<Timed>, Vec<Timed>) =
        plan.into_iter().partition(|timed| timed.at < now);
    let last = |is_speed: bool| {
        past.iter().rev().map(|timed| timed.what).find(|what| match what {
            Disturbance::Slow { .. } => is_speed,
            Disturbance::Shrink { .. } => !is_speed,
            _ => false,
        })
    };
    let standing = [last(true), last(false)].into_iter().flatten();
    standing.map(|what| Timed { at: now, what }).chain(to_come).collect()
}

#[cfg(test)]
mod tests {
    use llmsim_engine::units::SimSpan;

    use super::*;

    #[test]
    fn a_plan_under_way_keeps_its_speed_and_does_not_crash_again() {
        let at = |seconds: u64| SimTime::ZERO + SimSpan::from_ms(seconds * 1_000);
        let timed = |seconds, what| Timed { at: at(seconds), what };
        let plan = vec![
            timed(1, Disturbance::Slow { thousandths: 2_000 }),
            timed(2, Disturbance::Crash { down: SimSpan::from_ms(10) }),
            timed(3, Disturbance::Slow { thousandths: 3_000 }),
            timed(9, Disturbance::Slow { thousandths: 1_000 }),
        ];
        let left = from_now_on(plan, at(5));
        assert_eq!(
            left,
            [
                timed(5, Disturbance::Slow { thousandths: 3_000 }),
                timed(9, Disturbance::Slow { thousandths: 1_000 })
            ]
        );
    }
}
