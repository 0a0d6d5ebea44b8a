//! What routers and gateways ask: vLLM's routes beside OpenAI's API, and SGLang's probes.
//!
//! The invariant: nothing here touches an engine but to let it forget its prefixes; sleeping only
//! means that new requests are refused.

use std::sync::Arc;

use llmsim_engine::observe::vllm::SleepState;
use llmsim_engine::sim::EngineSpec;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::probes::{
    ReplicaLoad, ServerInfo, write_loads, write_model_info, write_server_info,
};

use crate::api;
use crate::helper;
use crate::http::head::Head;
use crate::http::response::Response;
use crate::io_thread::Io;
use crate::served::{Model, Scope};

/// vLLM's `GET /load`: generations in flight, of all threads.
pub(crate) async fn load(io: &Io) -> Response {
    let load = match io.served.scope {
        Scope::Server => io.observatory.in_flight(),
        Scope::Replica(_) => loads_in_view(io).await.iter().map(|load| load.requests).sum(),
    };
    let body = format!("{{\"server_load\":{load}}}");
    Response::json(200, body.into_bytes())
}

/// SGLang's `GET /get_load`: of each replica, in the order of the configuration.
pub(crate) async fn loads(io: &Io) -> Response {
    let loads = loads_in_view(io).await;
    let mut body = Vec::with_capacity(96 * loads.len() + 2);
    write_loads(&loads, &mut body);
    Response::json(200, body)
}

async fn loads_in_view(io: &Io) -> Vec<ReplicaLoad> {
    let (observatory, scope) = (Arc::clone(&io.observatory), io.served.scope);
    helper::run(&io.metrics_helper, move || observatory.loads(scope)).await
}

/// `GET /server_info`: of all models, the first one's in front.
pub(crate) fn server_info(io: &Io) -> Response {
    let infos: Vec<ServerInfo<'_>> = io.served.models.iter().map(info).collect();
    let mut body = Vec::with_capacity(1024 * infos.len());
    write_server_info(&infos, &mut body);
    Response::json(200, body)
}

fn info(model: &Model) -> ServerInfo<'_> {
    let scheduler = match &model.spec {
        EngineSpec::Scheduler(spec) => Some(spec),
        EngineSpec::Instant | EngineSpec::FixedRate(_) => None,
    };
    ServerInfo {
        model: &model.name,
        version: env!("CARGO_PKG_VERSION"),
        replicas: model.replicas().len(),
        context: model.context.get(),
        kv_tokens: scheduler.map(|_| model.kv_tokens()),
        step_tokens: scheduler.map(|spec| spec.max_num_batched_tokens.get()),
        running: scheduler.map(|spec| spec.max_num_seqs),
    }
}

/// `GET /model_info`: of the first model.
pub(crate) fn model_info(io: &Io) -> Response {
    let mut body = Vec::with_capacity(512);
    write_model_info(&io.served.first_model().name, &mut body);
    Response::json(200, body)
}

/// SGLang's `/flush_cache`: the same as vLLM's `/reset_prefix_cache`, with words.
pub(crate) fn flush_cache(io: &Io) -> Response {
    io.reset_prefix_caches();
    Response {
        status: 200,
        content_type: "text/plain; charset=utf-8".into(),
        body: b"Cache flushed.\n".to_vec(),
        headers: Vec::new(),
    }
}

/// SGLang's `/health_generate`: healthy, and awake.
pub(crate) fn health_generate(io: &Io) -> Response {
    match io.served.sleep.is_asleep() {
        true => api::error(&ApiError::asleep()),
        false => api::health(io),
    }
}

/// `GET /is_sleeping`.
pub(crate) fn is_sleeping(io: &Io) -> Response {
    let body = format!("{{\"is_sleeping\":{}}}", io.served.sleep.is_asleep());
    Response::json(200, body.into_bytes())
}

/// `POST /sleep?level=1`: new requests are refused, cached prefixes forgotten, and requests under
/// way finish. Level 0 of vLLM only pauses, which here is the same.
pub(crate) fn sleep(io: &Io, head: &Head) -> Response {
    let query = head.uri.query().unwrap_or_default();
    let level = query.split('&').find_map(|pair| pair.strip_prefix("level="));
    let state = match level {
        None | Some("0" | "1") => SleepState::WeightsOffloaded,
        Some("2") => SleepState::DiscardAll,
        Some(_) => {
            return api::error(&ApiError::invalid_value("level", "it must be 0, 1 or 2."));
        }
    };
    io.served.sleep.set(state);
    io.reset_prefix_caches();
    Response::empty(200)
}

/// `POST /wake_up`. Which parts to wake (`tags`) makes no difference.
pub(crate) fn wake_up(io: &Io) -> Response {
    io.served.sleep.set(SleepState::Awake);
    Response::empty(200)
}
