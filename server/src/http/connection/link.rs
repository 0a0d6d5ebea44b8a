//! A connection as its own task sees it: bytes in, bytes out, and the waits between.
//!
//! What the bytes mean is not known here. The invariant: a wait can be given up at any point without
//! losing a byte, since bytes are moved only by calls that do not wait, into and out of buffers that
//! outlive the wait.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::BytesMut;
use llmsim_engine::units::SimSpan;

use super::Close;
use super::conn::{Conn, Signal};
use crate::io_thread::Io;
use crate::stream::WRITE_SIZE;
use crate::sys;

/// The connection as its own task sees it.
pub(super) struct Link {
    pub(super) io: Rc<Io>,
    pub(super) conn: Rc<Conn>,
    /// Bytes that were read and not yet used.
    pub(super) buffer: BytesMut,
    /// A wait for the socket that is under way. It survives the phase that began it, since giving
    /// it up and asking anew costs the kernel twice.
    readable: Option<Ready>,
    writable: Option<Ready>,
}

type Ready = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// The socket or a signal, whichever comes first.
pub(super) enum Turn {
    Readable,
    Writable,
    Signalled,
}

/// Why a wait for bytes ended without any.
pub(super) enum Broken {
    Expired,
    Drain,
    Cut,
    Gone,
}

pub(super) enum Received {
    Nothing,
    Broken,
}

/// The most bytes of an oversized body that are read and dropped before its sender gets the 413
/// with the connection's end instead.
pub(super) const MOST_DRAINED: u64 = 64 * 1024 * 1024;

/// How long a closing connection waits for its client to have read all.
pub(super) const LINGER: SimSpan = SimSpan::from_ms(1_000);

impl Link {
    pub(super) fn new(io: Rc<Io>, conn: Rc<Conn>) -> Self {
        Self { io, conn, buffer: BytesMut::new(), readable: None, writable: None }
    }

    /// Reads what there is into the buffer, waiting until there is something. Zero is the end of
    /// the client's side.
    pub(super) async fn fill(&mut self) -> Result<usize, Broken> {
        loop {
            match self.turn(true, false).await {
                Turn::Writable => {}
                Turn::Readable => match self.receive() {
                    Ok(count) => return Ok(count),
                    Err(Received::Nothing) => {}
                    Err(Received::Broken) => return Err(Broken::Gone),
                },
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    if self.conn.take(Signal::Expired) {
                        return Err(Broken::Expired);
                    }
                    if self.conn.is_set(Signal::Cut) {
                        return Err(Broken::Cut);
                    }
                    if self.conn.take(Signal::Drain) {
                        return Err(Broken::Drain);
                    }
                }
            }
        }
    }

    pub(super) fn receive(&mut self) -> Result<usize, Received> {
        let mut scratch = self.io.read_scratch.borrow_mut();
        match self.conn.receive(&mut scratch, &mut self.buffer) {
            Ok(count) => Ok(count),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Err(Received::Nothing),
                _ => Err(Received::Broken),
            },
        }
    }

    pub(super) async fn send_all(&mut self, mut bytes: &[u8]) -> Result<(), Close> {
        self.conn.never_expire();
        while !bytes.is_empty() {
            match self.conn.send(&bytes[..bytes.len().min(WRITE_SIZE)]) {
                Ok(count) => {
                    bytes = &bytes[count..];
                    if !bytes.is_empty() {
                        // However fast the client reads, others wait for one write at most.
                        self.io.tend();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.expire_in(self.io.served.limits.stall);
                    self.until_writable().await?;
                }
                Err(_) => return Err(Close::Gone),
            }
        }
        Ok(())
    }

    /// Waits until the socket takes bytes again, for as long as was set before.
    pub(super) async fn until_writable(&mut self) -> Result<(), Close> {
        loop {
            match self.turn(false, true).await {
                Turn::Writable => return Ok(()),
                Turn::Readable => {}
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    self.conn.take(Signal::Drain);
                    if self.conn.take(Signal::Expired) || self.conn.is_set(Signal::Cut) {
                        return Err(Close::Gone);
                    }
                }
            }
        }
    }

    /// Closes our side and reads on for a moment: closing with unread bytes would reset the
    /// connection, and the client might lose the answer.
    pub(super) async fn linger(&mut self) {
        self.expire_in(LINGER);
        while let Err(error) = self.conn.take_leave() {
            // Behind an answer that fills the socket there may be no room for it yet.
            if error.kind() != io::ErrorKind::WouldBlock || self.until_writable().await.is_err() {
                return;
            }
        }
        if sys::close_write(&self.conn.stream).is_err() {
            return;
        }
        let mut dropped = 0;
        while dropped < MOST_DRAINED as usize {
            self.buffer.clear();
            match self.fill().await {
                Ok(0) | Err(Broken::Expired | Broken::Cut | Broken::Gone) => return,
                Ok(count) => dropped += count,
                Err(Broken::Drain) => {}
            }
        }
    }

    pub(super) fn expire_in(&self, span: SimSpan) {
        self.conn.take(Signal::Expired);
        self.conn.expire_at(self.io.clock.now() + span);
    }

    /// Waits for the socket or a signal. What follows is work of this connection alone, so tokens
    /// that are due go first.
    pub(super) async fn turn(&mut self, read: bool, write: bool) -> Turn {
        let turn = self.wait(read, write).await;
        self.io.tend();
        turn
    }

    async fn wait(&mut self, read: bool, write: bool) -> Turn {
        let Self { conn, readable, writable, .. } = self;
        let turn = poll_fn(|cx| {
            if conn.is_signalled() {
                return Poll::Ready(Turn::Signalled);
            }
            if read && conn.has_ended() {
                return Poll::Ready(Turn::Readable);
            }
            if read {
                let ready = readable.get_or_insert_with(|| {
                    let conn = Rc::clone(conn);
                    Box::pin(async move { conn.stream.readable(false).await })
                });
                // An error of the wait shows again when the socket is read.
                if ready.as_mut().poll(cx).is_ready() {
                    *readable = None;
                    return Poll::Ready(Turn::Readable);
                }
            }
            if write {
                let ready = writable.get_or_insert_with(|| {
                    let conn = Rc::clone(conn);
                    Box::pin(async move { conn.stream.writable(false).await })
                });
                if ready.as_mut().poll(cx).is_ready() {
                    *writable = None;
                    return Poll::Ready(Turn::Writable);
                }
            }
            conn.wake(cx.waker());
            Poll::Pending
        })
        .await;
        // From here on the task works: an answer that is made at once would only wake it for a second
        // turn in which there is nothing to do.
        conn.forget_waker();
        turn
    }
}
