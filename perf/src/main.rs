//! Performance measurements, as ratios against the physical limit of the machine they run on.

fn main() {}
