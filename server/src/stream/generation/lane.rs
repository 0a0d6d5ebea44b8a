//! One lane of a generation: the tokens that exist, and the units of it that have gone out.
//!
//! It counts and knows no bytes. The invariant: units are numbered in the order in which they go out, and
//! the number of a token's never changes: the opening, the tokens, the end.

use llmsim_engine::units::SimTime;

use crate::api::answer::Progress;

/// One lane of a generation. Its units are its opening, its tokens, and its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lane {
    pub(super) progress: Progress,
    pub(super) standing: Standing,
    /// Units that the kernel has taken whole.
    pub(super) units_sent: u32,
    /// The instant of the oldest token that the kernel has not taken.
    pub(super) oldest_unsent: SimTime,
}

/// What the engine has said of a lane's job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Asked,
    Held,
    Refused,
}

/// The unit of a lane's opening; token `k`, counted from 1, is the unit `OPENING + k`.
pub(super) const OPENING: u32 = 0;

impl Lane {
    /// Units that exist so far.
    pub(super) fn units_due(&self) -> u32 {
        match self.progress.released.get() {
            0 => 0,
            released => OPENING + 1 + released + u32::from(self.progress.finish.is_some()),
        }
    }

    /// Tokens whose unit the kernel has taken.
    pub(super) fn tokens_sent(&self) -> u32 {
        self.units_sent.saturating_sub(OPENING + 1).min(self.progress.released.get())
    }

    pub(super) fn has_unsent_token(&self) -> bool {
        self.tokens_sent() < self.progress.released.get()
    }

    /// Whether a unit is the lane's end.
    pub(super) fn is_end(&self, unit: u32) -> bool {
        self.progress.finish.is_some() && unit == OPENING + 1 + self.progress.released.get()
    }
}
