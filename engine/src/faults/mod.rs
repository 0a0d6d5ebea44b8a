//! Failures on purpose: one vocabulary, wherever a failure is asked for.
//!
//! A [`Rule`] says what goes wrong and when, in words such as `status=429 retry_after=2s first=2`.
//! The same words stand in `models.yml`, in a faults file, in a request's header or message, and in
//! what the admin endpoint takes. Some faults come before an answer, some inside a stream or a
//! body, some befall a simulated GPU. Nothing here acts: this module reads words, decides whom a
//! rule hits ([`decide`]), counts rate limits ([`Buckets`]) and puts disturbances of GPUs on a
//! timeline ([`disturbances`]); sockets and threads are the server's.
//!
//! The invariant: a decision is a function of the seed, the rule, the request and how often that
//! same request came before. Neither the order in which different requests arrive nor the thread
//! that serves them changes it, except where a rule counts arrivals or looks at the clock or the
//! load, and says so.

mod decide;
mod fault;
mod limit;
mod read;
mod timeline;
mod words;

pub(crate) use self::decide::fits;
pub use self::decide::{Asked, Decision, Tallies, candidates, content_of, decide, is_ready};
pub use self::fault::{
    Body, End, Fault, GpuName, Per, Rule, Stage, Status, Style, Unready, Wait, When,
};
pub use self::limit::{Buckets, Exceeded, LimitKind, Remaining};
pub use self::read::{parse, read};
pub use self::timeline::{GpuAt, Timed, disturbances, phrase};
pub use self::words::{BadWord, KEYS, Word, split};

/// What is configured: nothing unless somebody asks for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What the decisions by probability depend on beside the request.
    pub seed: u64,
    /// Whether a request may ask for its own failure in a header; `None`: not said.
    pub headers: Option<bool>,
    /// Whether a request may ask for its own failure in its last message; `None`: not said.
    pub markers: Option<bool>,
    /// In order: of two that hit one request at the same stage, the first counts.
    pub rules: Vec<Rule>,
}

/// The most rules of a plan: every request looks at all of them. Ten times what a plan by hand has.
pub const MOST_RULES: usize = 1_000;

impl Settings {
    /// Adds what another source says; its own seed and switches win where they are set.
    ///
    /// # Errors
    /// Together they have more than [`MOST_RULES`]: so many. Nothing is added then.
    pub fn merge(&mut self, other: Self) -> Result<(), usize> {
        let all = self.rules.len() + other.rules.len();
        if all > MOST_RULES {
            return Err(all);
        }
        if other.seed != 0 {
            self.seed = other.seed;
        }
        self.headers = other.headers.or(self.headers);
        self.markers = other.markers.or(self.markers);
        self.rules.extend(other.rules);
        Ok(())
    }
}

/// The header with which a request asks for its own failure.
pub const HEADER: &str = "x-llmsim-fault";

/// What a marker in a message begins and ends with: `[[fault: status=500]]`.
pub const MARKER: (&str, &str) = ("[[fault:", "]]");

/// The words of the first marker in a text.
pub fn marker(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(MARKER.0)?;
    rest.split_once(MARKER.1).map(|(words, _)| words.trim())
}
