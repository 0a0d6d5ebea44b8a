//! The live feed, `GET /ui/data`: what the live page shows.
//!
//! What an event says is decided in `api::metrics`. The invariant: a feed is the last answer of its
//! connection, and holds up no drain.

use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::sse::{LAST_CHUNK, OpenChunk};

use super::super::response::{self, Exchange, Extra, RequestId, SSE};
use super::link::{Broken, Link};
use super::{Close, millis};
use crate::api;

impl Link {
    /// An event a second until the client goes or the server drains.
    pub(super) async fn feed(
        &mut self,
        exchange: Exchange,
        id: &RequestId,
        started: SimTime,
    ) -> Result<(), Close> {
        const PERIOD: SimSpan = SimSpan::from_ms(1_000);
        let mut bytes = Vec::with_capacity(512);
        let elapsed = self.io.clock.now().saturating_since(started);
        let date = self.io.date();
        response::write_stream_head(
            &mut bytes,
            exchange,
            id,
            millis(elapsed),
            &date,
            Extra { content_type: SSE, headers: &[] },
        );
        self.send_all(&bytes).await?;
        while !exchange.head_only && !self.io.is_draining() {
            let event = api::metrics::live_event(&self.io).await;
            bytes.clear();
            let chunk = (!exchange.is_http10).then(|| OpenChunk::open(&mut bytes));
            bytes.extend_from_slice(&event);
            if let Some(chunk) = chunk {
                chunk.close(&mut bytes);
            }
            self.send_all(&bytes).await?;
            self.expire_in(PERIOD);
            loop {
                match self.fill().await {
                    Ok(0) | Err(Broken::Cut | Broken::Gone) => return Err(Close::Gone),
                    // Nothing more is answered on this connection.
                    Ok(_) => self.buffer.clear(),
                    Err(Broken::Expired | Broken::Drain) => break,
                }
            }
        }
        if !exchange.head_only && !exchange.is_http10 {
            self.send_all(LAST_CHUNK).await?;
        }
        Ok(())
    }
}
