//! Performance measurements, as ratios against the physical limit of the machine they run on.
//!
//! Each subcommand is a module of its own that predicts, measures and prints. Nothing here asserts
//! wall-clock times; the numbers that we publish are kept in `perf/results/` with the command that
//! made them.

use clap::{Parser, Subcommand};

mod all;
mod answers;
mod bench_accuracy;
mod calibration;
mod closed_loop;
mod drain;
mod envelope;
mod faults;
mod instructions;
mod isolation;
mod knee;
mod lag;
mod matching;
mod metrics_cost;
mod offline;
mod raw;
mod report;
mod sample;
mod scale;
mod scrape;
mod soak;
mod sys;
mod target;
mod timeline;
mod wire;

/// Measures llmsimulator, side by side with what the machine could do at best.
#[derive(Parser)]
#[command(name = "llmsim-perf", version)]
struct Args {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// Everything that is published, one after the other, and what it shows beside what it should.
    All(all::Args),
    /// What llmsim-bench adds to what it measures, against a target of known timing.
    BenchAccuracy(bench_accuracy::Args),
    /// How far the presets are from runs measured on real engines.
    Calibration(calibration::Args),
    /// The whole fidelity envelope: bare loops, every engine, and peers, side by side.
    Envelope(envelope::Args),
    /// One request in five meets a fault, of every kind: how each ends, what is left, and the lag of
    /// the others beside the same without.
    Faults(faults::Args),
    /// Instructions per token and per request, whatever else the machine does.
    Instructions(instructions::Args),
    /// Token lag while another client does its worst, beside the same without.
    Isolation(isolation::Args),
    /// The largest number of streams in one step whose p99 lag stays below a bar.
    Knee(knee::Args),
    /// Token lag with all streams in one step, beside a bare loop of send() over as many sockets.
    Lag(lag::Args),
    /// What deciding an answer costs: matching, tokenising and hashing of short and long messages.
    Matching(matching::Args),
    /// What counting costs per token, beside a bare send().
    MetricsCost(metrics_cost::Args),
    /// Token lag while a Prometheus scrapes ten times a second, beside the same without.
    Scrape(scrape::Args),
    /// Ten thousand open streams, sixteen simulated GPUs: what each costs.
    Scale(scale::Args),
    /// Hours at load, with an eye on the server's memory.
    Soak(soak::Args),
    /// What the wire costs: reading requests, making and reading frames.
    Wire(wire::Args),
    /// Tokens simulated per second offline, on one core.
    Offline(offline::Args),
}

fn main() -> std::process::ExitCode {
    match Args::parse().measurement {
        Measurement::All(args) => all::run(&args),
        Measurement::Instructions(args) => instructions::run(&args),
        Measurement::BenchAccuracy(args) => bench_accuracy::run(&args),
        Measurement::Calibration(args) => calibration::run(&args),
        Measurement::Envelope(args) => envelope::run(&args),
        Measurement::Faults(args) => faults::run(&args),
        Measurement::Isolation(args) => isolation::run(&args),
        Measurement::Knee(args) => knee::run(&args),
        Measurement::Lag(args) => lag::run(&args),
        Measurement::Matching(args) => matching::run(&args),
        Measurement::MetricsCost(args) => metrics_cost::run(&args),
        Measurement::Scrape(args) => scrape::run(&args),
        Measurement::Scale(args) => scale::run(&args),
        Measurement::Soak(args) => soak::run(&args),
        Measurement::Wire(args) => wire::run(&args),
        Measurement::Offline(args) => offline::run(&args),
    }
}
