//! One request, read: its head, then its body.
//!
//! The rules of HTTP/1.1 are in `head` and `body`; here is how long a client may take, and what it is
//! told. The invariant: after an error that leaves open where the next request would begin, there is no
//! next request.

use std::sync::Arc;

use llmsim_engine::units::SimTime;
use llmsim_engine::wire::error::ApiError;

use super::super::body::{BodyReader, Progress};
use super::super::head::{self, Head};
use super::super::response::{self, Exchange, RequestId};
use super::Close;
use super::link::{Broken, Link, MOST_DRAINED};
use crate::api::{self, Dialect};

impl Link {
    pub(super) async fn read_head(&mut self) -> Result<Arc<Head>, Close> {
        let mut is_idle = true;
        self.expire_in(self.io.served.limits.idle);
        loop {
            let dialect = Dialect::of_line(&self.buffer);
            let taken = self.io.heads.borrow_mut().take(&mut self.buffer);
            match taken {
                Ok(Some(head)) => return Ok(head),
                Ok(None) => {}
                Err(bad) => {
                    let error = api::bad_head(bad);
                    return self.refuse_and_close(dialect, &error).await;
                }
            }
            if is_idle && !self.buffer.is_empty() {
                is_idle = false;
                self.expire_in(self.io.served.limits.head);
            }
            if is_idle && self.io.is_draining() {
                return Err(Close::Gone);
            }
            match self.fill().await {
                Ok(0) => return Err(Close::Gone),
                Ok(_) => {}
                Err(Broken::Expired) if is_idle => return Err(Close::Gone),
                Err(Broken::Expired) => {
                    let seconds = self.io.served.limits.head.as_ns() / 1_000_000_000;
                    let error = ApiError::request_timeout(seconds);
                    return self.refuse_and_close(dialect, &error).await;
                }
                Err(Broken::Drain) if is_idle => return Err(Close::Gone),
                Err(Broken::Drain) => {}
                Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
            }
        }
    }

    /// The body, and when it was whole; or nothing if the request has been answered already since it was
    /// too large.
    pub(super) async fn read_body(
        &mut self,
        head: &Head,
        exchange: &mut Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<Option<(Vec<u8>, SimTime)>, Close> {
        let limit = self.io.served.limits.body;
        let dialect = exchange.dialect;
        let too_large = || dialect.error(&ApiError::body_too_large(limit as u64), id);
        let mut reader = BodyReader::new(head.framing, limit);
        let mut progress = reader.advance(&mut self.buffer);
        if progress == Ok(Progress::Whole) {
            self.conn.never_expire();
            return Ok(Some((reader.into_body(), started)));
        }
        self.expire_in(self.io.served.limits.body_time);
        if head.expects_continue && progress == Ok(Progress::Unfinished) {
            if matches!(head.framing, head::Framing::Length(length) if length > limit as u64) {
                exchange.keep_alive = false;
                self.respond(too_large(), *exchange, id, started).await?;
                return Ok(None);
            }
            self.send_all(response::CONTINUE).await?;
        }
        loop {
            match progress {
                Ok(Progress::Whole) => {
                    return Ok(Some((reader.into_body(), self.io.clock.now())));
                }
                Ok(Progress::TooLarge) => {
                    self.respond(too_large(), *exchange, id, started).await?;
                    return Ok(None);
                }
                Ok(Progress::Unfinished) if reader.dropped() > MOST_DRAINED => {
                    exchange.keep_alive = false;
                    self.respond(too_large(), *exchange, id, started).await?;
                    return Ok(None);
                }
                Ok(Progress::Unfinished) => {}
                Err(bad) => {
                    let error = ApiError::malformed_http(bad.0);
                    return self.refuse_and_close(exchange.dialect, &error).await;
                }
            }
            match self.fill().await {
                Ok(0) => return Err(Close::Gone),
                Ok(_) => {}
                Err(Broken::Expired) => {
                    let seconds = self.io.served.limits.body_time.as_ns() / 1_000_000_000;
                    let error = ApiError::request_timeout(seconds);
                    return self.refuse_and_close(exchange.dialect, &error).await;
                }
                Err(Broken::Drain) => {}
                Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
            }
            progress = reader.advance(&mut self.buffer);
        }
    }
}
