//! Collecting what `GET /metrics/summary` tells.
//!
//! The invariant: everything is counted from the last reset, and percentiles are taken over the very
//! values, not over buckets.

use llmsim_engine::observe::summary::{ModelSummary, SchedulerSummary, Values, json};
use llmsim_engine::observe::{Measure, Reading};
use llmsim_engine::units::SimSpan;

use crate::metrics::observatory::{Observatory, Progress, Replica, State, since};
use crate::served::Scope;

/// The measures in seconds, by their names in the answer.
const LATENCIES: [(&str, Measure); 7] = [
    ("ttft", Measure::FirstToken),
    ("itl", Measure::InterToken),
    ("tpot", Measure::PerOutputToken),
    ("e2e", Measure::EndToEnd),
    ("queue", Measure::Queue),
    ("prefill", Measure::Prefill),
    ("decode", Measure::Decode),
];

impl Observatory {
    /// The body of `GET /metrics/summary`.
    pub(crate) fn summary(&self, scope: Scope) -> String {
        let now = self.clock.now();
        let replicas = self.replicas(scope);
        let readings = self.by_model(&replicas);
        let state = self.state();
        let models = self.models_in(scope).map(|place| {
            let model = &self.models[place];
            let mut summary = self.model_summary(place, scope, &readings[place], &state);
            if model.has_steps() {
                summary.scheduler = Some(self.steps(place, &replicas, &readings[place], &state));
            }
            summary
        });
        json(now.saturating_since(state.baseline.at), &models.collect::<Vec<_>>())
    }

    /// The seats of a model that are in view.
    pub(super) fn seats_of(&self, model: usize, scope: Scope) -> impl Iterator<Item = usize> {
        let replica = match scope {
            Scope::Server => None,
            Scope::Replica(place) => Some(self.places[place].replica),
        };
        let seats = self.seats.iter().enumerate().filter(move |(_, seat)| {
            seat.model == model && replica.is_none_or(|replica| seat.replica == replica)
        });
        seats.map(|(index, _)| index)
    }

    fn model_summary(
        &self,
        place: usize,
        scope: Scope,
        reading: &Reading,
        state: &State,
    ) -> ModelSummary<'_> {
        let base = |of: fn(&Reading) -> u64| -> u64 {
            self.seats_of(place, scope).map(|seat| of(&state.baseline.seats[seat].0)).sum()
        };
        let new = |of: fn(&Reading) -> u64| of(reading).saturating_sub(base(of));
        let mut latency_seconds: Vec<(&'static str, Values)> = LATENCIES
            .iter()
            .map(|&(name, measure)| (name, self.values(place, scope, measure, state, 1e-9)))
            .collect();
        latency_seconds.push(("lag", self.lags(place, scope, state)));
        latency_seconds
            .push(("engine_lag", self.values(place, scope, Measure::EngineLag, state, 1e-9)));
        let mut summary = ModelSummary {
            model: &self.models[place].name,
            engine: self.models[place].engine,
            running: reading.held,
            finished: [
                new(|reading| reading.stopped),
                new(|reading| reading.reached_length),
                new(|reading| reading.cancelled),
                new(|reading| reading.errors()),
            ],
            tokens: [
                new(|reading| reading.prompt_tokens),
                new(|reading| reading.generation_tokens),
            ],
            latency_seconds,
            tokens_per_request: vec![
                ("prompt", self.values(place, scope, Measure::PromptLength, state, 1.0)),
                ("generation", self.values(place, scope, Measure::GenerationLength, state, 1.0)),
            ],
            ..ModelSummary::default()
        };
        self.throughput(place, scope, reading, state, &mut summary);
        summary
    }

    /// Over the rate window, or since the reset if that is shorter.
    fn throughput(
        &self,
        place: usize,
        scope: Scope,
        reading: &Reading,
        state: &State,
        summary: &mut ModelSummary<'_>,
    ) {
        let now = self.clock.now();
        let longest = SimSpan::from_ns(
            u64::try_from(self.summary.rate_window.as_nanos()).unwrap_or(u64::MAX / 4),
        );
        let baseline = &state.baseline;
        let tick = since(&state.history, now, longest)
            .filter(|tick| tick.at > baseline.at && now.saturating_since(baseline.at) > longest);
        let (at, from): (_, Vec<&Progress>) = match tick {
            Some(tick) => {
                (tick.at, self.seats_of(place, scope).map(|seat| &tick.seats[seat]).collect())
            }
            None => {
                let seats = self.seats_of(place, scope);
                (baseline.at, seats.map(|seat| &baseline.seats[seat].1).collect())
            }
        };
        let elapsed = now.saturating_since(at).as_secs_f64().max(1e-9);
        let rate = |total: u64, before: fn(&Progress) -> u64| {
            let before: u64 = from.iter().map(|progress| before(progress)).sum();
            total.saturating_sub(before) as f64 / elapsed
        };
        summary.window_seconds = elapsed;
        summary.requests_per_second =
            rate(reading.stopped + reading.reached_length, |progress| progress.finished);
        summary.input_tokens_per_second =
            rate(reading.prompt_tokens, |progress| progress.prompt_tokens);
        summary.output_tokens_per_second =
            rate(reading.generation_tokens, |progress| progress.generation_tokens);
    }

    fn values(
        &self,
        model: usize,
        scope: Scope,
        measure: Measure,
        state: &State,
        unit: f64,
    ) -> Values {
        let index = Measure::ALL.iter().position(|other| *other == measure);
        let index = index.expect("the list names all measures");
        let mut values = Values::default();
        let mut raw = Vec::new();
        for seat in self.seats_of(model, scope) {
            let from = state.baseline.seats[seat].1.pushed[index];
            let ring = self.seats[seat].figures.window(measure);
            values.count += ring.since(from, usize::MAX, &mut raw).saturating_sub(from);
        }
        values.samples = raw.into_iter().map(|value| value as f64 * unit).collect();
        values
    }

    fn lags(&self, model: usize, scope: Scope, state: &State) -> Values {
        let mut values = Values::default();
        let mut raw = Vec::new();
        for (shard, from) in self.io.iter().zip(&state.baseline.delivered) {
            for place in self.places_of(model, scope) {
                let (ring, from) = (shard.replicas[place].window(), from[place]);
                values.count += ring.since(from, usize::MAX, &mut raw).saturating_sub(from);
            }
        }
        values.samples = raw.into_iter().map(|ns| ns as f64 * 1e-9).collect();
        values
    }

    fn steps(
        &self,
        model: usize,
        replicas: &[Replica],
        reading: &Reading,
        state: &State,
    ) -> SchedulerSummary {
        let seats = replicas.iter().filter(|replica| replica.model == model);
        let before: Vec<&(Reading, Progress)> = seats
            .flat_map(|replica| &replica.seats)
            .map(|&seat| &state.baseline.seats[seat])
            .collect();
        let base = |of: fn(&Reading) -> u64| -> u64 {
            before.iter().map(|(reading, _)| of(reading)).sum()
        };
        let new = |of: fn(&Reading) -> u64| of(reading).saturating_sub(base(of));
        let steps = reading.steps_by_bound().enumerate().map(|(index, (bound, count))| {
            let before: u64 = before.iter().map(|(_, progress)| progress.bounds[index].1).sum();
            (bound.as_str(), count.saturating_sub(before))
        });
        let stops = reading.admission_stops().map(|(reason, count)| {
            let before: u64 = before
                .iter()
                .flat_map(|(reading, _)| reading.admission_stops())
                .filter(|(other, _)| *other == reason)
                .map(|(_, count)| count)
                .sum();
            (reason.as_str(), count.saturating_sub(before))
        });
        let sum = |of: fn(&Reading) -> f64| {
            of(reading) - before.iter().map(|(reading, _)| of(reading)).sum::<f64>()
        };
        SchedulerSummary {
            steps: steps.collect(),
            admission_stops: stops.collect(),
            sums: [
                sum(|reading| reading.step_sequences.sum()),
                sum(|reading| reading.step_tokens.sum()),
                sum(|reading| reading.step_duration.sum()),
            ],
            preemptions: new(|reading| reading.preemptions),
            prefix: [new(|reading| reading.prefix_queries), new(|reading| reading.prefix_hits)],
            reading: reading.clone(),
        }
    }
}
