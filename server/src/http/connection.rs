//! One connection, and the loop that serves it, request after request.
//!
//! All bytes are moved by non-blocking calls of our own; the runtime only says when a socket is
//! ready. That is the same code on io_uring and epoll, keeps no buffer pinned per idle connection,
//! and lets a wait be given up without losing bytes. The invariant: at any time at most one of the
//! connection's task and the generation table writes to the socket. The task hands the socket over
//! when it opens a generation, and has it back when it has closed it.

use std::rc::Rc;
use std::sync::Arc;

use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::error::ApiError;

mod conn;
mod faulty;
mod feed;
mod generate;
mod handshake;
mod link;
mod request;

pub(crate) use self::conn::{Conn, Signal};
use self::faulty::{Befallen, Fate};
use self::generate::Times;
use self::link::{LINGER, Link};
use super::head::Head;
use super::response::{self, Exchange, RequestId, Response};
use crate::api::{self, Dialect, Reply};
use crate::io_thread::Io;
use crate::stream::WRITE_SIZE;
use crate::sys;

/// Why a connection ends.
enum Close {
    /// The client closed, vanished or broke off, or nothing was said: there is nothing to wait for.
    Gone,
    /// All is said: close in good order.
    Done,
    /// On purpose, and not in good order.
    Reset,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(io: Rc<Io>, conn: Rc<Conn>) {
    let mut link = Link::new(io, conn);
    match link.run().await {
        Err(Close::Done) => link.linger().await,
        // If the socket takes it: whoever reads no more, or is gone, does not wait for it.
        Err(Close::Gone) => drop(link.conn.take_leave()),
        // Where it cannot be had, an ordinary end has to do.
        Err(Close::Reset) => drop(sys::reset_on_close(&link.conn.stream)),
    }
}

/// Tells a client that there are too many connections, and closes. With TLS it only closes: to say
/// anything would take a handshake, which is what there are too many of.
pub(crate) async fn turn_away(io: Rc<Io>, conn: Rc<Conn>, limit: usize) {
    if io.tls.is_some() {
        return;
    }
    let mut link = Link::new(io, conn);
    link.expire_in(LINGER);
    // Most clients have sent their request by now; reading it keeps the answer from being lost to
    // the reset that unread bytes would cause.
    let _ = link.fill().await;
    let error = ApiError::too_many_connections(limit);
    let exchange = Exchange {
        is_http10: false,
        keep_alive: false,
        head_only: false,
        dialect: Dialect::OpenAi,
    };
    let id = link.io.request_id(None);
    if link.respond(api::error(&error), exchange, &id, link.io.clock.now()).await.is_ok() {
        link.linger().await;
    }
}

impl Link {
    /// Request after request. It has no `Ok`, since a connection ends only by a reason to close.
    async fn run(&mut self) -> Result<std::convert::Infallible, Close> {
        if let Some(tls) = self.io.tls.clone() {
            self.secure(&tls).await?;
        }
        loop {
            let head = self.read_head().await?;
            self.exchange(head).await?;
            if !self.buffer.is_empty() {
                // It has sent the next request already. Everybody else comes first.
                self.io.give_way().await;
                self.io.tend();
            }
        }
    }

    async fn exchange(&mut self, mut head: Arc<Head>) -> Result<(), Close> {
        let started = self.io.clock.now();
        let id = self.io.request_id(head.headers.get("x-request-id"));
        let mut exchange = Exchange {
            is_http10: head.is_http10,
            keep_alive: head.keep_alive,
            head_only: head.method == http::Method::HEAD,
            dialect: Dialect::of(&head),
        };
        let route = api::route(&head);
        let body = self.read_body(&head, &mut exchange, &id, started).await?;
        let Some((mut body, received)) = body else { return self.after(exchange) };
        if self.io.is_draining() {
            exchange.keep_alive = false;
        }
        let mut fate = Fate::default();
        let mut verdict = Ok(None);
        if self.io.served.faults.may_befall(&head) {
            (head, body, verdict) = self.ask(head, body, received).await;
        }
        match verdict {
            Ok(None) => {}
            Ok(Some(verdict)) => {
                let path = head.uri.path();
                match self.befall(verdict, path, exchange, &id, started).await? {
                    Befallen::Answered => return self.after(exchange),
                    Befallen::GoesOn(left) => fate = left,
                }
            }
            Err(error) => {
                self.respond(api::error(&error), exchange, &id, started).await?;
                return self.after(exchange);
            }
        }
        let reply = api::answer(&self.io, route, &head, body, &id).await;
        // An open stream need not keep its request's headers.
        drop(head);
        match reply {
            Reply::Whole(response) => {
                self.respond_fated(response, &fate, exchange, &id, started).await?;
            }
            Reply::Feed => {
                exchange.keep_alive = false;
                self.feed(exchange, &id, started).await?;
            }
            Reply::Generate(answer) => {
                if answer.is_stream && exchange.is_http10 {
                    // Without chunks, only the end of the connection can end the stream.
                    exchange.keep_alive = false;
                }
                match self.charge(&mut fate, &answer, &id) {
                    Some(refusal) => self.respond(refusal, exchange, &id, started).await?,
                    None => {
                        let times = Times { started, received };
                        self.generate(answer, exchange, &id, times, fate).await?;
                    }
                }
            }
        }
        self.after(exchange)
    }

    fn after(&self, exchange: Exchange) -> Result<(), Close> {
        if exchange.keep_alive { Ok(()) } else { Err(Close::Done) }
    }

    /// Answers something that cannot be a request, and ends the connection: where the next request
    /// would begin is not known.
    async fn refuse_and_close<T>(
        &mut self,
        dialect: Dialect,
        error: &ApiError,
    ) -> Result<T, Close> {
        let exchange = Exchange { is_http10: false, keep_alive: false, head_only: false, dialect };
        let id = self.io.request_id(None);
        let now = self.io.clock.now();
        self.respond(dialect.error(error, &id), exchange, &id, now).await?;
        Err(Close::Done)
    }

    /// Sends a response. Of its body no more is copied than goes out with the head, and a long one is
    /// given back to the system by a helper: that takes as long as putting it together.
    async fn respond(
        &mut self,
        response: Response,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        const BESIDE_HEAD: usize = WRITE_SIZE - 2048;
        // Most heads are shorter, and glibc is quicker with what is not longer than 1 KiB.
        const HEAD: usize = 300;
        let mut bytes = Vec::with_capacity(HEAD + response.body.len().min(BESIDE_HEAD));
        let elapsed = millis(self.io.clock.now().saturating_since(started));
        let date = self.io.date();
        let begun =
            response::write(&mut bytes, &response, BESIDE_HEAD, exchange, id, elapsed, &date);
        // The time that its request had is over: it must not run out while others catch up.
        self.conn.never_expire();
        let (bytes, taken) = self.io.send_together(&self.conn, bytes).await;
        // What is wrong with the socket shows again when the rest is sent.
        let mut sent = self.send_all(&bytes[taken.unwrap_or_default()..]).await;
        if sent.is_ok() {
            sent = self.send_all(&response.body[begun..]).await;
        }
        self.io.discard(response.body);
        sent
    }
}

fn millis(span: SimSpan) -> u64 {
    span.as_ns() / 1_000_000
}
