//! What happened to one request, as instants. Definitions of metrics are not here but in `result`:
//! a record is the log from which every dialect of TTFT and ITL can be computed.
//!
//! All instants are on one clock: that of the client, or of the simulation in a virtual run.

use llmsim_engine::units::{SimSpan, SimTime};

/// One measured request.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its number in the plan, from 0.
    pub index: u32,
    /// When the plan wanted it sent. In a closed loop: when its stream became free.
    pub scheduled: SimTime,
    /// When its bytes were handed to the socket; `None` if it never got so far.
    pub sent: Option<SimTime>,
    /// The client's port of the connection that it was sent on; 0 if it was not sent.
    pub local_port: u16,
    /// Time spent on opening a connection for it, if none was idle.
    pub connect: Option<SimSpan>,
    /// When the response's head was complete.
    pub headers: Option<SimTime>,
    /// Arrivals of chunks with output. May have been dropped in very long runs (see
    /// [`Output::stamps`]), but never the first and the last instant.
    pub output: Output,
    /// When the response ended, well or badly.
    pub end: SimTime,
    /// HTTP status, once known.
    pub status: Option<u16>,
    /// How it ended.
    pub outcome: Outcome,
    /// Token counts as the server reported them.
    pub usage: Option<Usage>,
    /// Prompt tokens that the plan expects the prefix cache to hold (trace replay).
    pub expected_cached: Option<u32>,
    /// The most output tokens asked for.
    pub max_tokens: Option<u32>,
    /// The server's own clock, if it told.
    pub server: Option<ServerTiming>,
    /// What vLLM tells about it in place of a clock, or our server in its words.
    pub reported: Option<Reported>,
    /// The content of the answer, where it was asked to be kept.
    pub text: Option<String>,
}

/// Arrivals of chunks with output: the role chunk, the finish chunk and the usage chunk are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The first chunk with output.
    pub first: Option<SimTime>,
    /// The last one.
    pub last: Option<SimTime>,
    /// How many.
    pub chunks: u32,
    /// Each arrival. Empty although `chunks` is not if the run has more chunks than are kept.
    pub stamps: Vec<SimTime>,
}

impl Output {
    /// Notes a chunk that arrived at `at`.
    pub fn push(&mut self, at: SimTime) {
        self.first.get_or_insert(at);
        self.last = Some(at);
        self.chunks += 1;
        self.stamps.push(at);
    }

    /// The chunks that arrived at these instants.
    pub fn of(stamps: impl IntoIterator<Item = SimTime>) -> Self {
        let mut output = Self::default();
        stamps.into_iter().for_each(|at| output.push(at));
        output
    }
}

/// Decides whose single arrivals a level keeps: without a limit, hours of traffic would fill
/// memory.
///
/// Requests are asked about when they end. Of those that end when the room is used up, only the
/// first and the last arrival are kept, and the report says so.
#[derive(Clone, Copy, Debug)]
pub struct StampRoom {
    left: usize,
}

impl Default for StampRoom {
    /// Room for 16 million arrivals, which is 128 MB.
    fn default() -> Self {
        Self::of(16 << 20)
    }
}

impl StampRoom {
    /// Room for so many arrivals.
    pub const fn of(arrivals: usize) -> Self {
        Self { left: arrivals }
    }

    /// Keeps the arrivals of a request that has ended, or drops them if they find no room.
    pub fn keep(&mut self, output: &mut Output) {
        match self.left.checked_sub(output.stamps.len()) {
            Some(left) => {
                self.left = left;
                output.stamps.shrink_to_fit();
            }
            None => output.stamps = Vec::new(),
        }
    }
}

/// In place of a finish reason where the server gave none but said that it was done.
pub const NO_REASON: &str = "none";

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this finish reason.
    Finished(String),
    /// Badly.
    Failed(Failure),
    /// It was in flight when the run was stopped by the user: neither success nor failure.
    Interrupted,
}

/// Why a request failed: a class to count by, and one line of detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub class: FailureClass,
    /// What the server or the kernel said.
    pub detail: String,
}

impl Failure {
    /// A failure of this class. Control characters of `detail` are escaped: it is shown on a
    /// terminal, which would obey them.
    pub fn new(class: FailureClass, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.contains(char::is_control) {
            let escaped = detail.chars().map(|char| match char {
                char if char.is_control() => char.escape_default().to_string(),
                char => char.to_string(),
            });
            detail = escaped.collect();
        }
        Self { class, detail }
    }
}

/// Classes of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureClass {
    /// Status 429.
    RateLimited,
    /// Another 4xx.
    ClientError,
    /// 5xx.
    ServerError,
    /// A status that is no answer to a POST (1xx to 3xx, or 2xx without an event stream).
    UnexpectedAnswer,
    /// No connection.
    Connect,
    /// The connection was closed or reset after the request was sent and before the first byte of
    /// an answer.
    Unanswered,
    /// Nothing for too long before the first chunk.
    TimeoutFirstChunk,
    /// Nothing for too long between chunks.
    TimeoutBetweenChunks,
    /// The stream ended without a finish reason.
    Cut,
    /// The server reported an error inside the stream.
    ErrorInStream,
    /// Not HTTP, not SSE or not JSON where it should be.
    Malformed,
    /// More tokens than asked for, or other than asked for exactly.
    WrongTokenCount,
}

impl FailureClass {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 12] = [
        Self::RateLimited,
        Self::ClientError,
        Self::ServerError,
        Self::UnexpectedAnswer,
        Self::Connect,
        Self::Unanswered,
        Self::TimeoutFirstChunk,
        Self::TimeoutBetweenChunks,
        Self::Cut,
        Self::ErrorInStream,
        Self::Malformed,
        Self::WrongTokenCount,
    ];

    /// The name in JSON.
    pub const fn key(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited_429",
            Self::ClientError => "client_error_4xx",
            Self::ServerError => "server_error_5xx",
            Self::UnexpectedAnswer => "unexpected_answer",
            Self::Connect => "connect",
            Self::Unanswered => "closed_before_answer",
            Self::TimeoutFirstChunk => "timeout_before_first_chunk",
            Self::TimeoutBetweenChunks => "timeout_between_chunks",
            Self::Cut => "stream_cut",
            Self::ErrorInStream => "error_in_stream",
            Self::Malformed => "malformed",
            Self::WrongTokenCount => "wrong_token_count",
        }
    }

    /// The name for people.
    pub const fn label(self) -> &'static str {
        match self {
            Self::RateLimited => "429 rate limited",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::UnexpectedAnswer => "unexpected answer",
            Self::Connect => "connect",
            Self::Unanswered => "closed before an answer",
            Self::TimeoutFirstChunk => "timeout before first chunk",
            Self::TimeoutBetweenChunks => "timeout between chunks",
            Self::Cut => "stream cut without finish",
            Self::ErrorInStream => "error in stream",
            Self::Malformed => "malformed",
            Self::WrongTokenCount => "wrong token count",
        }
    }
}

/// Token counts as the server reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: u32,
    /// Output tokens.
    pub completion: u32,
    /// Prompt tokens that came from a prefix cache; `None` if not told.
    pub cached: Option<u32>,
}

/// What our server tells about one request when asked with `x-llmsim-timing: 1`: spans from the
/// instant at which it had read the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerTiming {
    /// Time in the engine's queue.
    pub queued: Option<SimSpan>,
    /// The engine's instant of the first token.
    pub first_scheduled: SimSpan,
    /// When the engine handed it on.
    pub first_released: SimSpan,
    /// When the kernel took its bytes.
    pub first_sent: SimSpan,
    /// The engine's instant of the last token.
    pub last_scheduled: SimSpan,
    /// When the engine handed it on.
    pub last_released: SimSpan,
    /// How late the latest token was handed to the kernel.
    pub lag_max: Option<SimSpan>,
}

/// What vLLM with `--enable-per-request-metrics` tells about one request (`PerRequestMetrics` of
/// its version 0.33). It tells no instants, only lengths of phases that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reported {
    /// In the queue of the scheduler: `queue_time_ms`.
    pub queue: Option<SimSpan>,
    /// From there to the first token, which is the prefill: `time_to_first_token_ms`.
    pub first_token: Option<SimSpan>,
    /// From the first token to the last: `generation_time_ms`.
    pub generation: Option<SimSpan>,
}

impl Reported {
    /// From being queued to the first token.
    pub fn to_first(&self) -> Option<SimSpan> {
        Some(self.queue? + self.first_token?)
    }

    /// From being queued to the last token.
    pub fn to_last(&self) -> Option<SimSpan> {
        Some(self.to_first()? + self.generation?)
    }
}

impl Record {
    /// A record of a request that has not been sent yet.
    pub fn planned(index: u32, scheduled: SimTime) -> Self {
        Self {
            index,
            scheduled,
            sent: None,
            local_port: 0,
            connect: None,
            headers: None,
            output: Output::default(),
            end: scheduled,
            status: None,
            outcome: Outcome::Interrupted,
            usage: None,
            expected_cached: None,
            max_tokens: None,
            server: None,
            reported: None,
            text: None,
        }
    }

    /// True if it ended well.
    pub const fn ok(&self) -> bool {
        matches!(self.outcome, Outcome::Finished(_))
    }

    /// Output tokens: what the server says, else one per chunk.
    pub fn output_tokens(&self) -> u32 {
        self.usage.map_or(self.output.chunks, |usage| usage.completion)
    }

    /// The last chunk with output; where there was none, the end.
    pub fn last_output(&self) -> SimTime {
        self.output.last.unwrap_or(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_for_stamps_is_shared_by_the_requests_that_find_some() {
        let output = |chunks: u64| Output::of((1..=chunks).map(SimTime::from_ns));
        let mut room = StampRoom::of(5);
        let kept = [3, 3, 2, 1].map(|chunks| {
            let mut output = output(chunks);
            room.keep(&mut output);
            assert_eq!((output.first, output.chunks), (Some(SimTime::from_ns(1)), chunks as u32));
            assert_eq!(output.last, Some(SimTime::from_ns(chunks)));
            output.stamps.len()
        });
        // Three, no room for three more, but for two; then nothing is left.
        assert_eq!(kept, [3, 0, 2, 0]);
    }
}
