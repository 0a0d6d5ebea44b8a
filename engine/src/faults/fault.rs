//! What can go wrong, and when: the vocabulary as data.
//!
//! No words and no decisions here, only what they come to. The invariant: a [`Rule`] that exists is
//! complete; nothing later asks whether two of its parts fit together.

use crate::sim::Disturbance;
use crate::units::SimSpan;

/// One line of a failure plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The words that it was made from, in one line.
    pub text: String,
    /// Tells rules of different words apart; what they count is kept under this number.
    pub id: u64,
    /// What goes wrong.
    pub fault: Fault,
    /// How long the answer waits before it does (`delay=`), for faults before the answer.
    pub delay: SimSpan,
    /// Whom it hits.
    pub when: When,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// An error status instead of an answer.
    Status(Box<Status>),
    /// The 503 of a full queue.
    QueueFull,
    /// The 503 of a service without capacity.
    Capacity,
    /// The 503 of a server that is not ready; `/health` says so too.
    Unready(Unready),
    /// The request is taken and never answered; after this time, if any, the connection is closed.
    Hang(Option<SimSpan>),
    /// The connection is closed in good order, without an answer.
    Close,
    /// The connection is reset.
    Reset,
    /// The answer comes later (by the rule's `delay`), and is right.
    Delay,
    /// The head of the answer takes this long, byte by byte.
    SlowHeaders(SimSpan),
    /// The answer is right, but says that it is of this type.
    ContentType(String),
    /// So many requests and tokens a minute; more get a 429.
    RateLimit {
        /// Requests a minute.
        requests: Option<u32>,
        /// Tokens a minute: those of the prompt and the most that the answer can have.
        tokens: Option<u32>,
    },
    /// The stream stops after so many tokens.
    Stop {
        /// Tokens sent before.
        after: u32,
        /// How it stops.
        end: End,
    },
    /// The stream says nothing for a time after so many tokens, and goes on.
    Stall {
        /// Tokens sent before.
        after: u32,
        /// How long.
        span: SimSpan,
    },
    /// The event after so many tokens is not JSON; the stream goes on.
    MalformedJson {
        /// Tokens sent before.
        after: u32,
    },
    /// The event after so many tokens breaks off in the middle, and the connection is closed.
    TruncatedEvent {
        /// Tokens sent before.
        after: u32,
    },
    /// The event after so many tokens has a byte that is not UTF-8; the stream goes on.
    InvalidUtf8 {
        /// Tokens sent before.
        after: u32,
    },
    /// The event after so many tokens comes twice.
    Duplicate {
        /// Tokens sent before.
        after: u32,
    },
    /// The event after so many tokens does not come.
    Drop {
        /// Tokens sent before.
        after: u32,
    },
    /// An error event after so many tokens, and the end of the stream.
    ErrorEvent {
        /// Tokens sent before.
        after: u32,
        /// As whom.
        style: Style,
    },
    /// The last event, `[DONE]`, is missing.
    NoDone,
    /// No event says why the answer ended.
    NoFinish,
    /// A simulated GPU is disturbed. Of those that last ([`Disturbance::Slow`],
    /// [`Disturbance::Shrink`]) this is the beginning.
    Engine(Disturbance),
}

/// An error status and what it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// From 400 to 599.
    pub status: u16,
    /// `error.message`, if it is not to be the usual one.
    pub message: Option<String>,
    /// `error.type`, if it is not to be the usual one.
    pub kind: Option<String>,
    /// `error.code`, if it is not to be the usual one.
    pub code: Option<String>,
    /// When the client may come back.
    pub wait: Option<Wait>,
    /// `x-should-retry`, which the SDKs of OpenAI look at first.
    pub should_retry: Option<bool>,
    /// What the body is.
    pub body: Body,
}

/// How a client is told when to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `retry-after` in whole seconds.
    Seconds(SimSpan),
    /// `retry-after` as a date.
    Date(SimSpan),
    /// `retry-after-ms`.
    Millis(SimSpan),
}

/// The body of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// The error object of the API.
    #[default]
    Json,
    /// A page as a proxy writes it.
    Html,
    /// Nothing.
    Empty,
}

/// How a stream stops before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The body ends as if it were whole: nothing on the HTTP level tells.
    Clean,
    /// The connection is closed in the middle of the body.
    Close,
    /// The connection is reset.
    Reset,
    /// Nothing more comes, and the connection stays open.
    Silence,
}

/// Whose error events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// OpenAI: `type` and `code` are words, and nothing follows.
    OpenAi,
    /// vLLM: `code` is the status, and `[DONE]` follows.
    Vllm,
}

/// Why a server is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unready {
    /// It still loads.
    Starting,
    /// It takes nothing new and finishes what it has.
    Draining,
}

/// Where in the life of a request a fault has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Before the first byte of the answer.
    Before,
    /// In an answer: in a stream, and some in a body, too ([`Fault::fits_a_body`]).
    Stream,
    /// Not in a request's: in a simulated GPU's.
    Engine,
}

/// Whom a rule hits: all of this must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The model's name; `*` at its end stands for any rest.
    pub model: Option<String>,
    /// Which simulated GPU, for engine faults.
    pub gpu: Option<GpuName>,
    /// The path; without one, only the routes that generate are hit.
    pub path: Option<String>,
    /// Headers that the request must have, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The API key.
    pub key: Option<String>,
    /// What the last user message must contain, whatever its case.
    pub contains: Option<String>,
    /// In millionths.
    pub probability: Option<u32>,
    /// Only the first so many.
    pub first: Option<u32>,
    /// Only every so-many-th.
    pub every: Option<u32>,
    /// What `first` and `every` count; `None`: `first` the same request, `every` the rule's.
    pub per: Option<Per>,
    /// From this time on, since the plan began.
    pub at: SimSpan,
    /// For so long.
    pub lasts: Option<SimSpan>,
    /// Only while more generations than this are under way.
    pub load: Option<u32>,
    /// Only requests for a stream, or only others.
    pub stream: Option<bool>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Per {
    /// How often this same request came: the same whatever comes in between.
    Request,
    /// All requests that the rule's other conditions let through, in order of arrival.
    Rule,
}

/// Which simulated GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuName {
    /// By its place among all simulated GPUs, in the order of the configuration, from 0.
    Number(u32),
    /// By its model and replica.
    Of(String, u32),
}

impl Fault {
    /// Where it has its place.
    pub const fn stage(&self) -> Stage {
        match self {
            Self::Status(_)
            | Self::QueueFull
            | Self::Capacity
            | Self::Unready(_)
            | Self::Hang(_)
            | Self::Close
            | Self::Reset
            | Self::Delay
            | Self::SlowHeaders(_)
            | Self::ContentType(_)
            | Self::RateLimit { .. } => Stage::Before,
            Self::Stop { .. }
            | Self::Stall { .. }
            | Self::MalformedJson { .. }
            | Self::TruncatedEvent { .. }
            | Self::InvalidUtf8 { .. }
            | Self::Duplicate { .. }
            | Self::Drop { .. }
            | Self::ErrorEvent { .. }
            | Self::NoDone
            | Self::NoFinish => Stage::Stream,
            Self::Engine(_) => Stage::Engine,
        }
    }

    /// Whether a fault of a stream has a meaning for an answer in one body, too. One that is about
    /// an event has none.
    pub const fn fits_a_body(&self) -> bool {
        matches!(
            self,
            Self::Stop { .. }
                | Self::Stall { .. }
                | Self::MalformedJson { .. }
                | Self::TruncatedEvent { .. }
                | Self::InvalidUtf8 { .. }
                | Self::ErrorEvent { .. }
        )
    }

    /// After how many tokens a fault of a stream strikes; `None`: at its end, or it is none.
    pub const fn after(&self) -> Option<u32> {
        match *self {
            Self::Stop { after, .. }
            | Self::Stall { after, .. }
            | Self::MalformedJson { after }
            | Self::TruncatedEvent { after }
            | Self::InvalidUtf8 { after }
            | Self::Duplicate { after }
            | Self::Drop { after }
            | Self::ErrorEvent { after, .. } => Some(after),
            _ => None,
        }
    }

    /// The word for logs and metrics, which is the word that asks for it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::QueueFull => "queue_full",
            Self::Capacity => "capacity",
            Self::Unready(Unready::Starting) => "starting",
            Self::Unready(Unready::Draining) => "draining",
            Self::Hang(_) => "hang",
            Self::Close => "close",
            Self::Reset => "reset",
            Self::Delay => "delay",
            Self::SlowHeaders(_) => "slow_headers",
            Self::ContentType(_) => "content_type",
            Self::RateLimit { .. } => "rate_limit",
            Self::Stop { .. } => "stop",
            Self::Stall { .. } => "stall",
            Self::MalformedJson { .. } => "malformed_json",
            Self::TruncatedEvent { .. } => "truncated_event",
            Self::InvalidUtf8 { .. } => "invalid_utf8",
            Self::Duplicate { .. } => "duplicate",
            Self::Drop { .. } => "drop",
            Self::ErrorEvent { .. } => "error_event",
            Self::NoDone => "no_done",
            Self::NoFinish => "no_finish",
            Self::Engine(disturbance) => disturbance.kind(),
        }
    }

    /// Every word of [`Fault::kind`], in the order of the documentation.
    pub const KINDS: [&'static str; 27] = [
        "status",
        "queue_full",
        "capacity",
        "starting",
        "draining",
        "hang",
        "close",
        "reset",
        "delay",
        "slow_headers",
        "content_type",
        "rate_limit",
        "stop",
        "stall",
        "malformed_json",
        "truncated_event",
        "invalid_utf8",
        "duplicate",
        "drop",
        "error_event",
        "no_done",
        "no_finish",
        "slow",
        "pause",
        "shrink",
        "preempt",
        "crash",
    ];
}
