//! Statistics against values from outside: textbook examples, numpy, vLLM's bucket lists.

use llmsim_engine::seed::Seed;
use llmsim_engine::stats::histogram::{Bounds, Histogram, Shard};
use llmsim_engine::stats::percentile::{
    Percent, Summary, linear, nearest_rank, nearest_rank_with_failures, needed, sort,
};

fn percent(value: f64) -> Percent {
    Percent::new(value).unwrap()
}

/// The worked example of the nearest-rank method in Wikipedia's "Percentile": 15, 20, 35, 40, 50.
#[test]
fn the_nearest_rank_is_one_of_the_values() {
    let values = [15.0, 20.0, 35.0, 40.0, 50.0];
    for (p, want) in
        [(5.0, 15.0), (30.0, 20.0), (40.0, 20.0), (50.0, 35.0), (100.0, 50.0), (0.0, 15.0)]
    {
        assert_eq!(nearest_rank(&values, percent(p)), Some(want), "p{p}");
    }
}

/// The same article's example of linear interpolation with C = 1 (numpy's default): the 40th
/// percentile of 15, 20, 35, 40, 50 is 29; of 1, 2, 3, 4 the 75th is 3.25.
#[test]
fn the_linear_percentile_is_numpys() {
    let values = [15.0, 20.0, 35.0, 40.0, 50.0];
    assert_eq!(linear(&values, percent(40.0)), Some(29.0));
    assert_eq!(linear(&values, Percent::P50), Some(35.0));
    assert_eq!(linear(&[1.0, 2.0, 3.0, 4.0], percent(75.0)), Some(3.25));
    assert_eq!(linear(&values, percent(0.0)), Some(15.0));
    assert_eq!(linear(&values, percent(100.0)), Some(50.0));
}

#[test]
fn ranks_that_are_whole_numbers_are_not_missed_by_rounding() {
    // 29 % of 100 values: the 29th, though 0.29 * 100 is a little less than 29 in floating point,
    // and 7 % of 100 a little more than 7.
    let values: Vec<f64> = (1..=100).map(f64::from).collect();
    for p in 1..=100 {
        assert_eq!(nearest_rank(&values, percent(f64::from(p))), Some(f64::from(p)), "p{p}");
    }
    let values: Vec<f64> = (1..=1000).map(f64::from).collect();
    assert_eq!(nearest_rank(&values, percent(99.9)), Some(999.0));
}

#[test]
fn nothing_and_one_value() {
    assert_eq!(linear(&[], Percent::P99), None);
    assert_eq!(nearest_rank(&[], Percent::P99), None);
    assert_eq!(nearest_rank_with_failures(&[], 0, Percent::P99), None);
    assert_eq!(Summary::of(&mut []), None);
    for p in [0.0, 50.0, 100.0] {
        assert_eq!(linear(&[7.0], percent(p)), Some(7.0));
        assert_eq!(nearest_rank(&[7.0], percent(p)), Some(7.0));
    }
    assert_eq!(Percent::new(-0.1), None);
    assert_eq!(Percent::new(100.1), None);
    assert_eq!(Percent::new(f64::NAN), None);
}

#[test]
fn a_failed_request_counts_as_infinitely_slow() {
    // 98 answers and two failures: the 98th value is the last finite one.
    let values: Vec<f64> = (1..=98).map(f64::from).collect();
    let at = |p| nearest_rank_with_failures(&values, 2, percent(p));
    assert_eq!(at(50.0), Some(50.0));
    assert_eq!(at(98.0), Some(98.0));
    assert_eq!(at(99.0), Some(f64::INFINITY));
    assert_eq!(nearest_rank_with_failures(&[], 3, Percent::P50), Some(f64::INFINITY));
}

#[test]
fn infinities_never_become_nan() {
    let inf = f64::INFINITY;
    for p in [0.0, 10.0, 50.0, 60.0, 75.0, 99.0, 100.0] {
        for values in [&[1.0, 2.0, inf, inf][..], &[inf], &[1.0, inf]] {
            assert!(!linear(values, percent(p)).unwrap().is_nan(), "{values:?} p{p}");
        }
    }
    assert_eq!(linear(&[1.0, 2.0, inf], Percent::P50), Some(2.0));
    assert_eq!(linear(&[1.0, 2.0, inf], percent(51.0)), Some(inf));
}

#[test]
#[should_panic(expected = "NaN")]
fn nan_is_no_measurement() {
    sort(&mut [1.0, f64::NAN]);
}

/// Both definitions stay within the values and never fall as p grows.
#[test]
fn percentiles_are_monotonous() {
    let mut generator = Seed::new(11).generator();
    for size in 1..60 {
        let mut values: Vec<f64> = (0..size).map(|_| generator.exponential()).collect();
        sort(&mut values);
        let (mut low, mut low_rank) = (values[0], values[0]);
        for tenth in 0..=1000 {
            let p = percent(f64::from(tenth) / 10.0);
            let (line, rank) = (linear(&values, p).unwrap(), nearest_rank(&values, p).unwrap());
            assert!(line >= low && rank >= low_rank && line <= values[size - 1]);
            // By definition: at least p percent of the values at or below it, fewer below.
            let share = |count: usize| count as f64 * 100.0 / size as f64;
            let at_or_below = values.iter().filter(|value| **value <= rank).count();
            assert!(share(at_or_below) >= p.get() - 1e-9, "{size} values, p{}", p.get());
            (low, low_rank) = (line, rank);
        }
    }
}

#[test]
fn a_percentile_needs_enough_values() {
    assert_eq!(needed(Percent::P50), 2);
    assert_eq!(needed(Percent::P90), 10);
    assert_eq!(needed(Percent::P99), 100);
    assert_eq!(needed(percent(99.9)), 1000);
    assert_eq!(needed(percent(100.0)), 1);
}

#[test]
fn a_summary_of_a_hundred_and_one_values() {
    let mut values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
    let summary = Summary::of(&mut values).unwrap();
    let want = Summary {
        samples: 101,
        mean: 50.0,
        min: 0.0,
        p50: 50.0,
        p90: 90.0,
        p95: 95.0,
        p99: 99.0,
        max: 100.0,
    };
    assert_eq!(summary, want);
}

#[test]
fn a_value_on_a_bound_belongs_below_it() {
    let mut histogram = Histogram::new(Bounds::new(&[1.0, 2.0, 5.0]).unwrap());
    for value in [0.0, 1.0, 1.5, 2.0, 2.000_001, 5.0, 6.0, 1e9] {
        histogram.observe(value);
    }
    let buckets: Vec<(f64, u64)> = histogram.cumulative().collect();
    assert_eq!(buckets, [(1.0, 2), (2.0, 4), (5.0, 6), (f64::INFINITY, 8)]);
    assert_eq!(histogram.count(), 8);
    assert_eq!(histogram.sum(), 0.0 + 1.0 + 1.5 + 2.0 + 2.000_001 + 5.0 + 6.0 + 1e9);
}

#[test]
fn bounds_must_ascend() {
    assert!(Bounds::new(&[]).is_some());
    for bad in [&[1.0, 1.0][..], &[2.0, 1.0], &[f64::INFINITY], &[f64::NAN]] {
        assert!(Bounds::new(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn shards_of_several_threads_add_up() {
    let bounds = Bounds::vllm_inter_token_seconds();
    let shards = [Shard::new(bounds.clone()), Shard::new(bounds.clone())];
    let mut alone = Histogram::new(bounds.clone());
    for i in 0..1000u32 {
        // Quarters: their sum is exact in any order.
        let value = f64::from(i) / 4.0;
        shards[i as usize % 2].observe(value);
        alone.observe(value);
    }
    shards[0].observe_times(0.25, 3);
    alone.observe_times(0.25, 3);
    let mut merged = Histogram::new(bounds);
    shards.iter().for_each(|shard| merged.merge(&shard.snapshot()));
    assert_eq!(merged, alone);
}

#[test]
#[should_panic(expected = "different bounds")]
fn histograms_of_different_bounds_are_not_added() {
    let mut a = Histogram::new(Bounds::vllm_choices());
    a.merge(&Histogram::new(Bounds::vllm_preemptions()));
}

/// vLLM 0.33's lists, and its series up to the model's length: 1, 2, 5, 10, ..., 20,000 for 32,768.
#[test]
fn buckets_are_vllms() {
    let series = Bounds::vllm_request_tokens(32_768);
    assert_eq!(
        series.as_slice(),
        [
            1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0,
            20000.0
        ]
    );
    assert_eq!(Bounds::vllm_request_tokens(2000).as_slice().last(), Some(&2000.0));
    assert_eq!(Bounds::vllm_request_tokens(u32::MAX).as_slice().last(), Some(&2e9));
    for (bounds, count, first, last) in [
        (Bounds::vllm_request_seconds(), 21, 0.3, 7680.0),
        (Bounds::vllm_first_token_seconds(), 22, 0.001, 2560.0),
        (Bounds::vllm_inter_token_seconds(), 19, 0.01, 80.0),
        (Bounds::vllm_iteration_tokens(), 13, 1.0, 16384.0),
    ] {
        let bounds = bounds.as_slice();
        assert_eq!((bounds.len(), bounds[0], bounds[count - 1]), (count, first, last));
        assert!(Bounds::new(bounds).is_some(), "ascending");
    }
}
