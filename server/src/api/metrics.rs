//! `GET /metrics`, `GET /metrics/summary`, `POST /metrics/summary/reset`, and the live page's feed.
//!
//! The invariant: figures are added up and rendered by a helper thread, never on the I/O thread that
//! the tokens of other connections go through.

use std::sync::Arc;

use llmsim_engine::observe::family::Format;
use llmsim_engine::wire::orca;

use crate::helper::{self, Length};
use crate::http::head::Head;
use crate::http::response::Response;
use crate::io_thread::Io;

/// The scrape, in the format that `Accept` asks for.
pub(crate) async fn scrape(io: &Io, head: &Head) -> Response {
    let accept = head.headers.text("accept").unwrap_or_default();
    let format = Format::accepted(accept);
    let (observatory, scope) = (Arc::clone(&io.observatory), io.served.scope);
    let adapters = Arc::clone(&io.served.adapters);
    let scrape = move || observatory.scrape(format, scope, &adapters.running());
    let body = helper::run(&io.metrics_helper, Length::Short, scrape).await;
    let content_type = format.content_type();
    Response {
        status: 200,
        content_type: content_type.into(),
        body: body.into_bytes(),
        headers: Vec::new(),
    }
}

/// Exact percentiles over recent traffic.
pub(crate) async fn summary(io: &Io) -> Response {
    let (observatory, scope) = (Arc::clone(&io.observatory), io.served.scope);
    let body =
        helper::run(&io.metrics_helper, Length::Short, move || observatory.summary(scope)).await;
    Response::json(200, body.into_bytes())
}

/// A fresh period begins, for the whole server.
pub(crate) async fn reset(io: &Io) -> Response {
    let observatory = Arc::clone(&io.observatory);
    helper::run(&io.metrics_helper, Length::Short, move || observatory.reset_summary()).await;
    Response::json(200, b"{\"status\":\"ok\"}".to_vec())
}

/// The load that a gateway is told of, of the model with this number among those that the port serves.
pub(crate) async fn load_of(io: &Io, model: usize) -> orca::Load {
    let (observatory, scope) = (Arc::clone(&io.observatory), io.served.scope);
    let load = move || observatory.load_of(scope, model);
    helper::run(&io.metrics_helper, Length::Short, load).await
}

/// One event of the live feed, framed.
pub(crate) async fn live_event(io: &Io) -> Vec<u8> {
    let observatory = Arc::clone(&io.observatory);
    let json = helper::run(&io.metrics_helper, Length::Short, move || observatory.live()).await;
    let mut event = Vec::with_capacity(json.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(json.as_bytes());
    event.extend_from_slice(b"\n\n");
    event
}
