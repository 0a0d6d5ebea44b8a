//! From arrivals to lag: how late frames came on a timeline of equal steps whose start nobody told
//! us.
//!
//! The start is taken from the earliest frame, so 'lag' is lag behind the best delivery of the run:
//! the same yardstick for every target, with no trust in the target's own figures. What is lost is
//! the constant part (the wake-up of both sides, about 50–130 µs here), equal for all.

use crate::drain::Arrival;

/// What one run showed; all times in nanoseconds.
pub(crate) struct Spread {
    /// Lag of every frame, sorted.
    pub(crate) lags_ns: Vec<u64>,
    /// First to last frame of each full step, sorted.
    pub(crate) bursts_ns: Vec<u64>,
    /// Median lag of the last quarter of all frames, less that of the first.
    pub(crate) drift_ns: u64,
}

impl Spread {
    /// Looks at frames `skip..` of each stream, as long as all `streams` are running.
    pub(crate) fn of(arrivals: &[Arrival], streams: usize, skip: u32, step_ns: u64) -> Self {
        let base = |a: &Arrival, frame: u32| a.at_ns as i128 - i128::from(frame) * step_ns as i128;
        let frames = |a: &Arrival| (a.first..a.first + a.frames).filter(|frame| *frame >= skip);
        let mut earliest = vec![i128::MAX; streams];
        for a in arrivals {
            for frame in frames(a) {
                let own = &mut earliest[a.stream as usize];
                *own = (*own).min(base(a, frame));
            }
        }
        let start = earliest.iter().copied().min().unwrap_or(0);
        // A stream that was admitted some steps later runs that many steps behind.
        let shift: Vec<i128> = earliest
            .iter()
            .map(|own| (own.saturating_sub(start) + step_ns as i128 / 2) / (step_ns as i128).max(1))
            .collect();
        let mut steps: std::collections::BTreeMap<i128, (u64, u64, usize)> = Default::default();
        let mut lags_ns = Vec::new();
        for a in arrivals {
            for frame in frames(a) {
                let behind = shift[a.stream as usize];
                let lag = base(a, frame) - start - behind * step_ns as i128;
                lags_ns.push(lag.max(0) as u64);
                let step = steps.entry(i128::from(frame) + behind).or_insert((u64::MAX, 0, 0));
                *step = (step.0.min(a.at_ns), step.1.max(a.at_ns), step.2 + 1);
            }
        }
        let full = steps.values().filter(|(_, _, count)| *count == streams);
        let mut bursts_ns: Vec<u64> = full.map(|(first, last, _)| last - first).collect();
        lags_ns.sort_unstable();
        bursts_ns.sort_unstable();
        Self { lags_ns, bursts_ns, drift_ns: 0 }
    }

    /// Looks at frames `skip..` of streams that are not in step: each behind its own best frame, so
    /// that a stream's drift shows, and its start does not.
    pub(crate) fn of_each(arrivals: &[Arrival], streams: usize, skip: u32, period_ns: u64) -> Self {
        let base =
            |a: &Arrival, frame: u32| a.at_ns as i128 - i128::from(frame) * period_ns as i128;
        let frames = |a: &Arrival| (a.first..a.first + a.frames).filter(|frame| *frame >= skip);
        let mut earliest = vec![i128::MAX; streams];
        for a in arrivals {
            for frame in frames(a) {
                let own = &mut earliest[a.stream as usize];
                *own = (*own).min(base(a, frame));
            }
        }
        let mut lags_ns: Vec<u64> = arrivals
            .iter()
            .flat_map(|a| frames(a).map(|frame| base(a, frame) - earliest[a.stream as usize]))
            .map(|lag| lag as u64)
            .collect();
        let last = arrivals.iter().map(|a| a.first + a.frames).max().unwrap_or(skip);
        let quarter = last.saturating_sub(skip) / 4;
        let median_of = |range: std::ops::Range<u32>| {
            let in_range = |a: &Arrival| frames(a).filter(|frame| range.contains(frame));
            let lag = |a: &Arrival, frame| base(a, frame) - earliest[a.stream as usize];
            let mut lags: Vec<u64> = arrivals
                .iter()
                .flat_map(|a| in_range(a).map(|frame| lag(a, frame) as u64).collect::<Vec<_>>())
                .collect();
            lags.sort_unstable();
            percentile(&lags, 50.0)
        };
        let (first, end) = (median_of(skip..skip + quarter), median_of(last - quarter..last));
        lags_ns.sort_unstable();
        Self { lags_ns, bursts_ns: Vec::new(), drift_ns: end.saturating_sub(first) }
    }
}

/// The nearest-rank percentile of sorted values; 0 of none.
pub(crate) fn percentile(sorted: &[u64], percent: f64) -> u64 {
    if sorted.is_empty() {
        return 0;
    }
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two streams, the second admitted one step later; steps of 100 ns; frame 2 of stream 0 is
    /// 7 ns late and everything of stream 1 is 3 ns late.
    #[test]
    fn lag_is_measured_behind_the_best_frame_and_admission_is_no_lag() {
        let at = |stream, first, at_ns| Arrival { stream, first, frames: 1, at_ns };
        let arrivals = [
            at(0, 0, 1_000),
            at(0, 1, 1_100),
            at(1, 0, 1_103),
            at(0, 2, 1_207),
            at(1, 1, 1_203),
            at(1, 2, 1_303),
        ];
        let spread = Spread::of(&arrivals, 2, 0, 100);
        assert_eq!(spread.lags_ns, [0, 0, 3, 3, 3, 7]);
        assert_eq!(spread.bursts_ns, [3, 4]);
        assert_eq!(percentile(&spread.lags_ns, 50.0), 3);
    }

    /// Frames due every 100 ns; stream 1 starts at its own time and takes 110 ns for each.
    #[test]
    fn a_stream_that_is_not_in_step_is_measured_by_itself_and_its_drift_shows() {
        let at = |stream, first, at_ns| Arrival { stream, first, frames: 1, at_ns };
        let arrivals = [
            at(0, 0, 1_000),
            at(1, 0, 1_042),
            at(0, 1, 1_105),
            at(1, 1, 1_152),
            at(0, 2, 1_200),
            at(1, 2, 1_262),
        ];
        let spread = Spread::of_each(&arrivals, 2, 0, 100);
        assert_eq!(spread.lags_ns, [0, 0, 0, 5, 10, 20]);
    }

    /// Eight frames, each 10 ns later than the one before asks for: of the first two, 0 and 10 ns
    /// late, the median by rank is 0, of the last two 60.
    #[test]
    fn drift_is_what_the_end_of_a_stream_is_later_than_its_beginning() {
        let at = |frame: u32| Arrival {
            stream: 0,
            first: frame,
            frames: 1,
            at_ns: 1_000 + u64::from(frame) * 110,
        };
        let arrivals: Vec<Arrival> = (0..8).map(at).collect();
        assert_eq!(Spread::of_each(&arrivals, 1, 0, 100).drift_ns, 60);
    }
}
