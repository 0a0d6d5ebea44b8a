//! When things happened to one request: what `x-llmsim-timing: 1` asks for.
//!
//! The shape is documented in `docs/metrics.md`. The invariant: once the last token is sent, or all
//! tokens of a plain answer exist, nothing in here changes any more, so that rendering twice gives
//! the same bytes.

use std::fmt::Write;

use llmsim_engine::observe::summary::decimals;
use llmsim_engine::sim::{Event, What};
use llmsim_engine::units::{SimSpan, SimTime, Tokens};

/// The instants of one request.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    arrived: SimTime,
    queued: SimTime,
    scheduled: Option<SimTime>,
    first: Option<Instants>,
    last: Option<Instants>,
    first_sent: Option<SimTime>,
    cached: Tokens,
    preemptions: u32,
    max_engine_lag: SimSpan,
    max_token_lag: Option<SimSpan>,
}

/// Of a token.
#[derive(Clone, Copy, Debug)]
struct Instants {
    /// When it was due on the simulated timeline.
    due: SimTime,
    released: SimTime,
}

impl Timing {
    pub(crate) fn new(arrived: SimTime) -> Self {
        Self {
            arrived,
            queued: arrived,
            scheduled: None,
            first: None,
            last: None,
            first_sent: None,
            cached: Tokens::ZERO,
            preemptions: 0,
            max_engine_lag: SimSpan::ZERO,
            max_token_lag: None,
        }
    }

    /// The engine holds it.
    pub(crate) fn queued(&mut self, at: SimTime) {
        self.queued = at;
    }

    /// The engine did something for it, seen at `released`.
    pub(crate) fn happened(&mut self, event: &Event, released: SimTime) {
        match event.what {
            What::Admitted { cached } => {
                self.scheduled.get_or_insert(released);
                self.cached = cached;
            }
            What::Resumed { .. } => {}
            What::Preempted => self.preemptions += 1,
            What::Lost => {}
            What::Token { .. } => {
                let instants = Instants { due: event.at, released };
                self.first.get_or_insert(instants);
                self.last = Some(instants);
                let lag = released.saturating_since(event.at);
                self.max_engine_lag = self.max_engine_lag.max(lag);
            }
        }
    }

    /// The kernel took a token's bytes, that much after it was due.
    pub(crate) fn sent(&mut self, now: SimTime, lag: SimSpan) {
        self.first_sent.get_or_insert(now);
        self.max_token_lag = Some(self.max_token_lag.unwrap_or_default().max(lag));
    }

    /// The `metrics` object.
    pub(crate) fn json(&self, completion: Tokens) -> String {
        let seconds = |span: SimSpan| decimals(span.as_secs_f64(), 9);
        let span = |from: Option<SimTime>, to: Option<SimTime>| match (from, to) {
            (Some(from), Some(to)) => seconds(to.saturating_since(from)),
            _ => "null".to_owned(),
        };
        let since_arrival = |at: Option<SimTime>| span(Some(self.arrived), at);
        let (first, last) = (self.first.map(|at| at.released), self.last.map(|at| at.released));
        let decode = last.zip(first).map(|(last, first)| last.saturating_since(first));
        let per_token = decode.map(|decode| match completion.get() {
            0 | 1 => 0.0,
            tokens => decode.as_secs_f64() / f64::from(tokens - 1),
        });
        let ms = |from: Option<SimTime>, to: Option<SimTime>| match (from, to) {
            (Some(from), Some(to)) => decimals(to.saturating_since(from).as_secs_f64() * 1e3, 6),
            _ => "null".to_owned(),
        };
        let mean_itl = per_token.filter(|_| completion.get() > 1);
        let inference = self.scheduled.zip(last).map(|(from, to)| to.saturating_since(from));
        let rate = inference
            .filter(|span| *span > SimSpan::ZERO)
            .map(|span| f64::from(completion.get()) / span.as_secs_f64());
        let mut out = String::with_capacity(768);
        // First what vLLM 0.33 sends under this key (`PerRequestMetrics`), as it counts it: its
        // time to first token begins when the request is scheduled.
        let _ = write!(
            out,
            "{{\"time_to_first_token_ms\":{},\"generation_time_ms\":{},\"queue_time_ms\":{},\
             \"mean_itl_ms\":{},\"tokens_per_second\":{},",
            ms(self.scheduled, first),
            ms(first, last),
            ms(Some(self.queued), self.scheduled),
            mean_itl.map_or("null".to_owned(), |value| decimals(value * 1e3, 6)),
            rate.map_or("null".to_owned(), |value| decimals(value, 3)),
        );
        let _ = write!(
            out,
            "\"queued_time\":{},\"prefill_time\":{},\"decode_time\":{},\"inference_time\":{},\
             \"first_token_latency\":{},\"e2e_latency\":{},\"mean_time_per_output_token\":{},\
             \"num_cached_tokens\":{},\"num_preemptions\":{},\"first_token_scheduled\":{},\
             \"first_token_released\":{},\"first_token_sent\":{},\"last_token_scheduled\":{},\
             \"last_token_released\":{},\"max_engine_lag\":{},\"max_token_lag\":{}}}",
            span(Some(self.queued), self.scheduled),
            span(self.scheduled, first),
            span(first, last),
            span(self.scheduled, last),
            since_arrival(first),
            since_arrival(last),
            per_token.map_or("null".to_owned(), |value| decimals(value, 9)),
            self.cached,
            self.preemptions,
            since_arrival(self.first.map(|at| at.due)),
            since_arrival(first),
            since_arrival(self.first_sent),
            since_arrival(self.last.map(|at| at.due)),
            since_arrival(last),
            seconds(self.max_engine_lag),
            self.max_token_lag.map_or("null".to_owned(), seconds),
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::sim::Finish;
    use llmsim_engine::units::JobId;

    use super::*;

    fn us(us: u64) -> SimTime {
        SimTime::ZERO + SimSpan::from_us(us)
    }

    /// Arrives at 1 ms, queued 50 µs later, seen scheduled at 1.1 ms; three tokens due every 4 ms,
    /// released 80 µs and sent 130 µs late, the second one released 500 µs and sent 900 µs late.
    #[test]
    fn a_request_of_three_tokens_is_told_to_the_microsecond() {
        let mut timing = Timing::new(us(1_000));
        timing.queued(us(1_050));
        let event = |at, what| Event { at, job: JobId(1), what };
        let admitted = What::Admitted { cached: Tokens::new(16) };
        timing.happened(&event(us(1_060), admitted), us(1_100));
        for (index, [released, sent]) in [[80, 130], [500, 900], [80, 130]].into_iter().enumerate()
        {
            let due = us(5_000 + 4_000 * index as u64);
            let index = Tokens::new(index as u32 + 1);
            let finish = (index.get() == 3).then_some(Finish::Stop);
            let token = event(due, What::Token { index, finish });
            timing.happened(&token, due + SimSpan::from_us(released));
            timing.sent(due + SimSpan::from_us(sent), SimSpan::from_us(sent));
        }
        assert_eq!(
            timing.json(Tokens::new(3)),
            "{\"time_to_first_token_ms\":3.98,\"generation_time_ms\":8,\"queue_time_ms\":0.05,\
             \"mean_itl_ms\":4,\"tokens_per_second\":250.417,\"queued_time\":0.00005,\"prefill_time\":0.00398,\"decode_time\":0.008,\
             \"inference_time\":0.01198,\"first_token_latency\":0.00408,\"e2e_latency\":0.01208,\
             \"mean_time_per_output_token\":0.004,\"num_cached_tokens\":16,\"num_preemptions\":0,\
             \"first_token_scheduled\":0.004,\"first_token_released\":0.00408,\
             \"first_token_sent\":0.00413,\"last_token_scheduled\":0.012,\
             \"last_token_released\":0.01208,\"max_engine_lag\":0.0005,\"max_token_lag\":0.0009}"
        );
    }
}
