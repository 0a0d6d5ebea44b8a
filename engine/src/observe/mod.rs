//! What is observed of simulated GPUs, and how it is shown: counting, names, texts.
//!
//! Not the observing itself: a driver (a live thread, a loop in virtual time, a test) tells a
//! [`Recorder`] what it saw and when, and somebody else asks for the families. Pure like the rest
//! of the crate; the only shared state are atomics with one writer each. The invariant: an exported
//! time is one that happened, never one that was planned.

mod bounds;
pub mod count;
mod delivery;
pub mod family;
mod figures;
mod recorder;
pub mod ring;
pub mod sim;
pub mod summary;
pub mod verdict;
pub mod vllm;

pub use self::delivery::{Delivered, Delivery};
pub use self::figures::{Figures, Measure, Reading, WindowSizes};
pub use self::recorder::{Recorder, Siblings, Submitted};
