//! Statistics that server and bench share, so that a percentile means the same on both sides.
//!
//! It observes nothing itself and has no names, labels or clocks. The invariant: every figure says
//! over how many values it was taken, and none is made up where there are too few.

pub mod histogram;
pub mod percentile;
