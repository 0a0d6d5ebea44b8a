//! What routers and gateways ask: vLLM's routes beside OpenAI's API, and SGLang's probes.
//!
//! The invariant: nothing here touches an engine but to let it forget its prefixes; sleeping only
//! means that new requests are refused.

use std::sync::Arc;

use llmsim_engine::sim::EngineSpec;
use llmsim_engine::sim::scheduler::Policy;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::probes::{
    ConfigFormat, ReplicaLoad, SchedulerInfo, ServerInfo, write_loads, write_model_info,
    write_server_info, write_woken,
};

use crate::api;
use crate::helper::{self, Length};
use crate::http::head::Head;
use crate::http::response::Response;
use crate::io_thread::Io;
use crate::served::{Model, Parts, Scope};

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
    helper::run(&io.metrics_helper, Length::Short, move || observatory.loads(scope)).await
}

/// `GET /server_info?config_format=text`: of all models, the first one's in front.
pub(crate) fn server_info(io: &Io, head: &Head) -> Response {
    let format = query(head, "config_format").last().map(ConfigFormat::named).transpose();
    let format = match format {
        Ok(format) => format.unwrap_or_default(),
        Err(refusal) => return api::error(&refusal),
    };
    let infos: Vec<ServerInfo<'_>> = io.served.models.iter().map(info).collect();
    let mut body = Vec::with_capacity(1024 * infos.len() + 2048);
    let system = format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH);
    write_server_info(&infos, format, &system, &mut body);
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
        tensor_parallel: model.tensor_parallel,
        context: model.context.get(),
        kv_tokens: scheduler.map(|_| model.kv_tokens()),
        step_tokens: scheduler.map(|spec| spec.max_num_batched_tokens.get()),
        running: scheduler.map(|spec| spec.max_num_seqs),
        scheduler: scheduler.map(|spec| SchedulerInfo {
            block_size: spec.block_size.get(),
            blocks: spec.num_blocks.get(),
            prefix_caching: spec.prefix_caching,
            chunked_prefill: spec.chunked_prefill,
            policy: match spec.policy {
                Policy::Fcfs => "fcfs",
                Policy::Priority => "priority",
            },
        }),
    }
}

/// `GET /model_info`: of the first model.
pub(crate) fn model_info(io: &Io) -> Response {
    let mut body = Vec::with_capacity(512);
    write_model_info(&io.served.first_model().name, &mut body);
    Response::json(200, body)
}

/// vLLM's `POST /reset_prefix_cache`: nothing is forgotten where a request holds blocks, and the answer
/// says so.
pub(crate) async fn reset_prefix_cache(io: &Io) -> Response {
    let body = format!("{{\"success\":{}}}", io.reset_prefix_caches().await);
    Response::json(200, body.into_bytes())
}

/// SGLang's `/flush_cache`: the same; it says the same words either way, and tells by the status.
pub(crate) async fn flush_cache(io: &Io) -> Response {
    const WORDS: &str = "Cache flushed.\nPlease check backend logs for more details. (When there are \
                         running or waiting requests, the operation will not be performed.)\n";
    Response {
        status: if io.reset_prefix_caches().await { 200 } else { 400 },
        content_type: "text/plain; charset=utf-8".into(),
        body: WORDS.as_bytes().to_vec(),
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
pub(crate) async fn sleep(io: &Io, head: &Head) -> Response {
    let level = match query(head, "level").last() {
        None | Some("1") => 1,
        Some("0") => 0,
        Some("2") => 2,
        Some(_) => return api::error(&ApiError::invalid_value("level", "it must be 0, 1 or 2.")),
    };
    io.served.sleep.sleep(level);
    if level > 0 {
        // Requests that are under way keep theirs.
        io.reset_prefix_caches().await;
    }
    Response::json(200, format!("{{\"status\":\"sleeping\",\"level\":{level}}}").into_bytes())
}

/// `POST /wake_up?tags=weights&tags=kv_cache`: what is named, or all. The server sleeps until all of it
/// is awake, as vLLM does for trainers that load weights before they need a cache.
pub(crate) fn wake_up(io: &Io, head: &Head) -> Response {
    let tags: Vec<&str> = query(head, "tags").collect();
    let part = |tag: &&str| match *tag {
        "weights" => Some(Parts::WEIGHTS),
        "kv_cache" => Some(Parts::KV_CACHE),
        "scheduling" => Some(0),
        _ => None,
    };
    let parts: Option<Vec<u8>> = tags.iter().map(part).collect();
    match parts {
        Some(parts) if parts.is_empty() => io.served.sleep.wake(),
        // With an unknown one vLLM wakes no part.
        parts => {
            let parts = parts.unwrap_or_default().into_iter().fold(0, |all, part| all | part);
            io.served.sleep.wake_parts(parts);
        }
    }
    let status = if io.served.sleep.is_asleep() { "sleeping" } else { "awake" };
    let mut body = Vec::with_capacity(96);
    write_woken(status, &tags, &mut body);
    Response::json(200, body)
}

/// The values of a parameter in the query.
pub(super) fn query<'a>(head: &'a Head, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = head.uri.query().unwrap_or_default().split('&');
    pairs.filter_map(move |pair| pair.strip_prefix(name)?.strip_prefix('='))
}
