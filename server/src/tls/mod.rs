//! TLS between a connection and its socket, if the server was given a certificate.
//!
//! Not the socket, and no waiting: [`Session`] is handed what reads or takes bytes now, as the rest of
//! the server does it. The invariant: whoever sends through a session sees what `send(2)` would tell,
//! so that a stream need not know which of the two it is on.

mod identity;
mod session;

pub use identity::Identity;
pub(crate) use session::Session;

use crate::helper::Helper;

/// What the connections of an I/O thread need to speak TLS.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    pub(crate) identity: Identity,
    /// Does what takes long in a handshake, so that streams of the same thread do not wait for it.
    /// Measured (medians of 300, TLS 1.3, 2 cores, 2026-12): answering the first flight takes 0.55 ms
    /// with a key of RSA-2048, 0.08 ms with one of P-256, and 0.07 ms for a client that comes back; a
    /// hundred clients that connect at once would else hold the thread's streams up for 55 ms.
    pub(crate) helper: Helper,
}

/// How a handshake ended: the label of its metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// The connection is secure.
    Done,
    /// The two do not agree: version, certificate, cipher, application protocol, or no TLS at all.
    Failed,
    /// It took longer than `--head-timeout`.
    TimedOut,
    /// The client spoke plain HTTP.
    PlainHttp,
    /// The client went before the end, as a port probe does.
    Closed,
}

impl Handshake {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] =
        [Self::Done, Self::Failed, Self::TimedOut, Self::PlainHttp, Self::Closed];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::PlainHttp => "plain_http",
            Self::Closed => "closed",
        }
    }
}
