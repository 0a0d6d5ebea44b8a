//! A connection as the rest of its thread knows it: where its bytes go, and word for its task.
//!
//! It moves what the socket takes or has at this moment, through TLS or not, and never waits; who waits
//! is the [`Link`](super::link::Link). The invariant: whoever leaves a signal wakes the task, and the
//! task looks at the signals before it sleeps, so that none is slept through.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::task::Waker;

use bytes::BytesMut;
use llmsim_engine::units::SimTime;
use monoio::net::TcpStream;

use crate::sys;
use crate::tls::Session;

/// What the rest of its thread knows of a connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    /// With TLS, once its handshake is done: what stands between the socket and everyone else.
    tls: OnceCell<Box<RefCell<Session>>>,
    waker: RefCell<Option<Waker>>,
    signals: Cell<u8>,
    /// When the present wait is over, in nanoseconds of the server's clock.
    expires: Cell<u64>,
    /// What its task has posted, and what came of it.
    posted: RefCell<Option<(Vec<u8>, io::Result<usize>)>>,
}

/// Why a connection's task is woken, beside its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Look at the generation's state.
    Generation = 1,
    /// The wait took too long.
    Expired = 2,
    /// The server drains: serve nothing new.
    Drain = 4,
    /// The server stops: give up what is under way.
    Cut = 8,
}

impl Conn {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            tls: OnceCell::new(),
            waker: RefCell::new(None),
            signals: Cell::new(0),
            expires: Cell::new(u64::MAX),
            posted: RefCell::default(),
        }
    }

    /// Sends what the socket takes now; never waits. After anything less than all, the next call must
    /// begin with the bytes that were not counted: with TLS some of them may be under way.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing; else the connection is broken.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls.get() {
            None => sys::send(&self.stream, bytes),
            Some(session) => session.borrow_mut().send(&mut sys::Now(&self.stream), bytes),
        }
    }

    /// Bytes that its task had posted were sent, with this outcome.
    pub(crate) fn posted(&self, bytes: Vec<u8>, sent: io::Result<usize>) {
        self.posted.replace(Some((bytes, sent)));
    }

    /// What came of the bytes that were posted, if they were sent.
    pub(crate) fn take_posted(&self) -> Option<(Vec<u8>, io::Result<usize>)> {
        self.posted.take()
    }

    /// Its socket's number, if what is sent goes there as it is.
    pub(crate) fn plain(&self) -> Option<sys::Number> {
        self.tls.get().is_none().then(|| sys::Number::of(&self.stream))
    }

    /// Appends what has arrived to `into`; never waits. Zero is the end.
    pub(super) fn receive(&self, scratch: &mut [u8], into: &mut BytesMut) -> io::Result<usize> {
        match self.tls.get() {
            None => {
                let count = sys::receive(&self.stream, scratch)?;
                into.extend_from_slice(&scratch[..count]);
                Ok(count)
            }
            Some(session) => {
                let mut wire = sys::Now(&self.stream);
                session.borrow_mut().receive(&mut wire, into, scratch.len())
            }
        }
    }

    /// Whether the client has ended its side in a way that the socket does not show.
    pub(super) fn has_ended(&self) -> bool {
        self.tls.get().is_some_and(|session| session.borrow().has_ended())
    }

    /// With TLS: says that nothing more will come.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take it yet: call again. Else the connection is broken.
    pub(super) fn take_leave(&self) -> io::Result<()> {
        match self.tls.get() {
            None => Ok(()),
            Some(session) => session.borrow_mut().close(&mut sys::Now(&self.stream)),
        }
    }

    /// From now on the connection is a TLS one.
    pub(super) fn secure(&self, session: Session) {
        let _ = self.tls.set(Box::new(RefCell::new(session)));
    }

    /// Leaves word for the connection's task and wakes it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.signals.set(self.signals.get() | signal as u8);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The present wait is over at this instant.
    pub(super) fn expire_at(&self, at: SimTime) {
        self.expires.set(at.as_ns());
    }

    /// The present wait may take as long as it will.
    pub(super) fn never_expire(&self) {
        self.expires.set(u64::MAX);
    }

    /// Whether the present wait has an end.
    pub(super) fn expires(&self) -> bool {
        self.expires.get() != u64::MAX
    }

    /// Signals expiry if it is time.
    pub(crate) fn sweep(&self, now: SimTime) {
        if now.as_ns() >= self.expires.get() {
            self.never_expire();
            self.signal(Signal::Expired);
        }
    }

    pub(super) fn take(&self, signal: Signal) -> bool {
        let is_set = self.signals.get() & signal as u8 != 0;
        self.signals.set(self.signals.get() & !(signal as u8));
        is_set
    }

    pub(super) fn is_set(&self, signal: Signal) -> bool {
        self.signals.get() & signal as u8 != 0
    }
    /// Whether the task has to look at its signals.
    pub(super) fn is_signalled(&self) -> bool {
        self.signals.get() != 0
    }

    /// The task works, and looks at the signals before it sleeps again: it need not be woken.
    pub(super) fn forget_waker(&self) {
        *self.waker.borrow_mut() = None;
    }

    /// Who is to be woken by the next signal.
    pub(super) fn wake(&self, waker: &Waker) {
        *self.waker.borrow_mut() = Some(waker.clone());
    }
}
