//! The TLS handshake of a connection, before its first request.
//!
//! What a session computes is in `tls`; here is who waits for what, and for how long. The invariant: no
//! private key is used on the I/O thread, where everybody's tokens would wait for it.

use std::io;

use llmsim_engine::wire::error::ApiError;

use super::Close;
use super::conn::Signal;
use super::link::{Link, Turn};
use crate::api::Dialect;
use crate::helper::{self, Length};
use crate::sys;
use crate::tls::{Handshake, Session, Tls};

impl Link {
    /// Makes the connection a TLS one.
    pub(super) async fn secure(&mut self, tls: &Tls) -> Result<(), Close> {
        let (handshake, session) = match self.shake_hands(tls).await {
            Ok(session) => (Handshake::Done, Some(session)),
            Err(why) => (why, None),
        };
        self.io.shard.handshakes[handshake as usize].add(1);
        match session {
            Some(mut session) => {
                // A request may have come with the end of the handshake.
                session.plaintext(&mut self.buffer);
                self.conn.secure(session);
                Ok(())
            }
            None if handshake == Handshake::PlainHttp => {
                let error = ApiError::malformed_http(
                    "plain HTTP on a port that speaks HTTPS. Begin the URL with https://.",
                );
                self.refuse_and_close(Dialect::OpenAi, &error).await
            }
            None => Err(Close::Gone),
        }
    }

    /// A handshake within the time for a request's head.
    async fn shake_hands(&mut self, tls: &Tls) -> Result<Session, Handshake> {
        self.expire_in(self.io.served.limits.head);
        let mut session = Session::new(&tls.identity).map_err(|_| Handshake::Failed)?;
        loop {
            self.handshake_turn(true, false).await?;
            match session.take_in(&mut sys::Now(&self.conn.stream)) {
                Ok(0) => return Err(Handshake::Closed),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => continue,
                    _ => return Err(Handshake::Closed),
                },
            }
            if session.may_be_http() {
                return Err(Handshake::PlainHttp);
            }
            let advanced;
            (session, advanced) = helper::run(&tls.helper, Length::Short, move || {
                let advanced = session.advance();
                (session, advanced)
            })
            .await;
            loop {
                match session.flush(&mut sys::Now(&self.conn.stream)) {
                    Ok(()) => break,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.handshake_turn(false, true).await?;
                    }
                    Err(_) => return Err(Handshake::Closed),
                }
            }
            // After the flush: what went wrong is said to the client, too.
            if advanced.is_err() {
                return Err(Handshake::Failed);
            }
            if !session.is_handshaking() {
                return Ok(session);
            }
        }
    }

    /// Waits for the socket for as long as a handshake may take.
    async fn handshake_turn(&mut self, read: bool, write: bool) -> Result<(), Handshake> {
        loop {
            match self.turn(read, write).await {
                Turn::Readable | Turn::Writable => return Ok(()),
                Turn::Signalled => {
                    self.conn.take(Signal::Generation);
                    if self.conn.take(Signal::Expired) {
                        return Err(Handshake::TimedOut);
                    }
                    // Nothing is under way here that a drain would wait for.
                    if self.conn.take(Signal::Drain) || self.conn.is_set(Signal::Cut) {
                        return Err(Handshake::Closed);
                    }
                }
            }
        }
    }
}
