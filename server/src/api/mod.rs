//! What the server answers: routes, and the refusals of the HTTP level in the form of the API that
//! was spoken.
//!
//! Nothing here reads or writes a socket. The invariant: every path through this module ends in one
//! answer, and an answer that is an error has OpenAI's error object as its body, or Anthropic's under
//! `/v1/messages`.

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod generate;
mod intake;
mod lora;
pub(crate) mod messages;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod probes;
pub(crate) mod responses;
mod telling;
pub(crate) mod tokens;
pub(crate) mod ui;
mod words;

use std::sync::Arc;

use http::Method;
use llmsim_engine::faults::Unready;
use llmsim_engine::wire::error::{ApiError, ErrorHeader};

use crate::args::ApiKeys;
use crate::faults::admin;
use crate::helper::{self, Length};
use crate::http::head::{BadHead, Head, MAX_HEAD};
use crate::http::response::{RequestId, Response};
use crate::io_thread::Io;
use crate::served::{Model, Served};

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Chat,
    RenderChat,
    Completions,
    RenderCompletions,
    Embeddings,
    Responses,
    /// A stored response's id.
    Response(String),
    /// The same.
    InputItems(String),
    /// The same.
    CancelResponse(String),
    Messages,
    CountTokens,
    Generate,
    LoadAdapter,
    UnloadAdapter,
    Models,
    /// The model's name, percent-decoded.
    Model(String),
    Health,
    Version,
    Load,
    Loads,
    ServerInfo,
    ModelInfo,
    HealthGenerate,
    ResetPrefixCache,
    FlushCache,
    IsSleeping,
    Sleep,
    WakeUp,
    Tokenize,
    Detokenize,
    Metrics,
    Summary,
    ResetSummary,
    LiveData,
    /// `/admin/faults`.
    Faults,
    /// The live page.
    Page,
    /// `OPTIONS`, with the methods of the path if it is known.
    Options(Option<&'static str>),
    /// The path is known, the method is not; these are.
    NotAllowed(&'static str),
    Unknown,
}

impl Route {
    /// Whether it makes a simulated GPU work for its answer: faults without a `path` hit these alone.
    pub(crate) fn generates(&self) -> bool {
        match self {
            Self::Chat
            | Self::Completions
            | Self::Embeddings
            | Self::Responses
            | Self::Messages
            | Self::Generate => true,
            Self::RenderChat
            | Self::RenderCompletions
            | Self::Response(_)
            | Self::InputItems(_)
            | Self::CancelResponse(_)
            | Self::CountTokens
            | Self::LoadAdapter
            | Self::UnloadAdapter
            | Self::Models
            | Self::Model(_)
            | Self::Health
            | Self::Version
            | Self::Load
            | Self::Loads
            | Self::ServerInfo
            | Self::ModelInfo
            | Self::HealthGenerate
            | Self::ResetPrefixCache
            | Self::FlushCache
            | Self::IsSleeping
            | Self::Sleep
            | Self::WakeUp
            | Self::Tokenize
            | Self::Detokenize
            | Self::Metrics
            | Self::Summary
            | Self::ResetSummary
            | Self::LiveData
            | Self::Faults
            | Self::Page
            | Self::Options(_)
            | Self::NotAllowed(_)
            | Self::Unknown => false,
        }
    }
}

/// What a request gets.
pub(crate) enum Reply {
    Whole(Response),
    /// The live page's events, until the client has enough.
    Feed,
    /// An answer that takes its time.
    Generate(Box<answer::Answer>),
}

/// Whose API a request speaks: how its refusals look, and under which name its answer has its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    pub(crate) fn of(head: &Head) -> Self {
        Self::of_path(head.uri.path().as_bytes())
    }

    /// That of a request which may never become one, from what there is of its first line.
    pub(crate) fn of_line(line: &[u8]) -> Self {
        let target = line.iter().take(16).position(|&byte| byte == b' ').map_or(0, |at| at + 1);
        Self::of_path(&line[target..])
    }

    fn of_path(path: &[u8]) -> Self {
        match path.strip_prefix(b"/v1/messages") {
            Some([] | [b'/' | b'?' | b' ', ..]) => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// An error as a response.
    pub(crate) fn error(self, refusal: &ApiError, id: &RequestId) -> Response {
        match self {
            Self::OpenAi => error(refusal),
            Self::Anthropic => messages::error(refusal, id),
        }
    }
}

const GET_DELETE: &str = "GET, HEAD, DELETE, OPTIONS";
const GET: &str = "GET, HEAD, OPTIONS";
const POST: &str = "POST, OPTIONS";
const GET_POST: &str = "GET, HEAD, POST, OPTIONS";

/// Finds the route of a request.
pub(crate) fn route(head: &Head) -> Route {
    let path = head.uri.path();
    if path == "/admin/faults" {
        return match head.method {
            Method::OPTIONS => Route::Options(Some(admin::ALLOW)),
            Method::GET | Method::HEAD | Method::PUT | Method::POST | Method::DELETE => {
                Route::Faults
            }
            _ => Route::NotAllowed(admin::ALLOW),
        };
    }
    let (allow, route) = match path {
        "/v1/chat/completions" => (POST, Route::Chat),
        "/v1/chat/completions/render" => (POST, Route::RenderChat),
        "/v1/completions" => (POST, Route::Completions),
        "/v1/completions/render" => (POST, Route::RenderCompletions),
        "/v1/embeddings" => (POST, Route::Embeddings),
        "/v1/responses" => (POST, Route::Responses),
        "/v1/messages" => (POST, Route::Messages),
        "/v1/messages/count_tokens" => (POST, Route::CountTokens),
        "/generate" => (POST, Route::Generate),
        "/v1/load_lora_adapter" => (POST, Route::LoadAdapter),
        "/v1/unload_lora_adapter" => (POST, Route::UnloadAdapter),
        "/v1/models" => (GET, Route::Models),
        "/health" => (GET, Route::Health),
        // SageMaker's name for it.
        "/ping" => (GET_POST, Route::Health),
        "/version" => (GET, Route::Version),
        "/load" => (GET, Route::Load),
        "/reset_prefix_cache" => (POST, Route::ResetPrefixCache),
        "/is_sleeping" => (GET, Route::IsSleeping),
        "/sleep" => (POST, Route::Sleep),
        "/wake_up" => (POST, Route::WakeUp),
        "/tokenize" => (POST, Route::Tokenize),
        "/detokenize" => (POST, Route::Detokenize),
        // SGLang's, in their former spelling too.
        "/server_info" | "/get_server_info" => (GET, Route::ServerInfo),
        "/model_info" | "/get_model_info" => (GET, Route::ModelInfo),
        "/get_load" => (GET, Route::Loads),
        "/health_generate" => (GET, Route::HealthGenerate),
        "/flush_cache" => (GET_POST, Route::FlushCache),
        "/metrics" | "/metrics/" => (GET, Route::Metrics),
        "/metrics/summary" => (GET, Route::Summary),
        "/metrics/summary/reset" => (POST, Route::ResetSummary),
        "/ui/data" => (GET, Route::LiveData),
        "/" | "/ui" => (GET, Route::Page),
        _ => match named(path) {
            Some(found) => found,
            None if head.method == Method::OPTIONS => return Route::Options(None),
            None => return Route::Unknown,
        },
    };
    match head.method {
        Method::OPTIONS => Route::Options(Some(allow)),
        Method::DELETE if allow == GET_DELETE => route,
        Method::GET | Method::HEAD if allow != POST => route,
        Method::POST if allow == POST || allow == GET_POST => route,
        _ => Route::NotAllowed(allow),
    }
}

/// Routes that end in a name.
fn named(path: &str) -> Option<(&'static str, Route)> {
    if let Some(name) = path.strip_prefix("/v1/models/").filter(|name| !name.is_empty()) {
        return Some((GET, Route::Model(percent_decode(name))));
    }
    let rest = path.strip_prefix("/v1/responses/").filter(|id| !id.starts_with('/'))?;
    let Some((id, of_it)) = rest.split_once('/') else {
        let route = Route::Response(percent_decode(rest));
        return (!rest.is_empty()).then_some((GET_DELETE, route));
    };
    match of_it {
        "input_items" => Some((GET, Route::InputItems(percent_decode(id)))),
        "cancel" => Some((POST, Route::CancelResponse(percent_decode(id)))),
        _ => None,
    }
}

/// Answers a request whose body has arrived.
pub(crate) async fn answer(
    io: &Io,
    route: Route,
    head: &Head,
    body: Vec<u8>,
    id: &RequestId,
) -> Reply {
    let (method, path) = (head.method.as_str(), head.uri.path());
    let error = |refusal: &ApiError| Dialect::of(head).error(refusal, id);
    if let Err(refusal) = check_key(&io.served.api_keys, head) {
        return Reply::Whole(error(&refusal).header("www-authenticate", "Bearer"));
    }
    let is_read = !matches!(route, Route::Unknown | Route::NotAllowed(_) | Route::Options(_));
    if is_read
        && !body.is_empty()
        && let Err(refusal) = refuse_coding(head)
    {
        return Reply::Whole(error(&refusal));
    }
    Reply::Whole(match route {
        Route::Chat => return chat::answer(io, head, body, id).await,
        Route::RenderChat => tokens::render_chat(io, body, id).await,
        Route::Completions => return completions::answer(io, head, body, id).await,
        Route::RenderCompletions => tokens::render_completions(io, body, id).await,
        Route::Embeddings => return embeddings::answer(io, head, body, id).await,
        Route::Responses => return responses::answer(io, head, body, id).await,
        Route::Response(stored) if head.method == Method::DELETE => responses::delete(io, &stored),
        Route::Response(stored) => responses::get(io, head, &stored).await,
        Route::InputItems(stored) => responses::input_items(io, &stored, head.uri.query()).await,
        Route::CancelResponse(stored) => responses::cancel(&io.served, &stored),
        Route::Messages => return messages::answer(io, head, body, id).await,
        Route::CountTokens => messages::count(io, head, body, id).await,
        Route::Generate => return generate::answer(io, head, body, id).await,
        Route::LoadAdapter => lora::load(&io.served, &body),
        Route::UnloadAdapter => lora::unload(&io.served, &body),
        Route::Models => models::list(&io.served),
        Route::Model(name) => models::card(&io.served, &name),
        Route::Health => health(io),
        Route::Version => Response::json(200, version().into_bytes()),
        Route::Load => probes::load(io).await,
        Route::Loads => probes::loads(io).await,
        Route::ServerInfo => probes::server_info(io, head),
        Route::ModelInfo => probes::model_info(io),
        Route::HealthGenerate => probes::health_generate(io),
        Route::FlushCache => probes::flush_cache(io).await,
        Route::IsSleeping => probes::is_sleeping(io),
        Route::Sleep => probes::sleep(io, head).await,
        Route::WakeUp => probes::wake_up(io, head),
        Route::Tokenize => tokens::tokenize(io, body).await,
        Route::Detokenize => tokens::detokenize(io, body).await,
        Route::ResetPrefixCache => probes::reset_prefix_cache(io).await,
        Route::Metrics => metrics::scrape(io, head).await,
        Route::Summary => metrics::summary(io).await,
        Route::ResetSummary => metrics::reset(io).await,
        Route::Faults if !io.served.has_admin => error(&ApiError::unknown_url(method, path)),
        Route::Faults => {
            // A plan is read, compiled and told by a helper, whatever its length.
            let length = Length::of_bytes(body.len());
            let (faults, clock) = (Arc::clone(&io.served.faults), io.clock);
            let method = head.method.clone();
            let work = move || admin::answer(&faults, &method, &body, clock.now());
            match helper::run(&io.helper, length, work).await {
                Ok((response, changed)) => {
                    if let Some(change) = changed {
                        io.disturb(change);
                    }
                    response
                }
                Err(refusal) => error(&refusal),
            }
        }
        Route::LiveData => return Reply::Feed,
        Route::Page => ui::page(),
        Route::Options(allow) => preflight(head, allow),
        Route::NotAllowed(allow) => error(&ApiError::method_not_allowed(method, path, allow)),
        Route::Unknown => error(&ApiError::unknown_url(method, path)),
    })
}

/// An error as a response.
pub(crate) fn error(error: &ApiError) -> Response {
    let response = Response::json(error.status, error.body());
    match error.header {
        None => response,
        Some(ErrorHeader::Allow(allow)) => response.header("allow", allow),
        Some(ErrorHeader::RetryAfter { seconds }) => {
            response.header("retry-after", seconds.to_string())
        }
    }
}

/// What is wrong with a head, in OpenAI's form.
pub(crate) fn bad_head(bad: BadHead) -> ApiError {
    match bad.status {
        431 => ApiError::head_too_large(MAX_HEAD as u64),
        417 => ApiError::expectation_failed("an unknown one"),
        505 => ApiError::http_version_not_supported(),
        _ => ApiError::malformed_http(bad.message),
    }
}

/// With keys on, everything under `/v1` wants one, but a browser's question whether it may.
fn check_key(keys: &ApiKeys, head: &Head) -> Result<(), ApiError> {
    let path = head.uri.path();
    let is_open = !(path == "/v1" || path.starts_with("/v1/")) || head.method == Method::OPTIONS;
    if keys.is_empty() || is_open {
        return Ok(());
    }
    let bearer = head.headers.text("authorization").and_then(|value| {
        let (scheme, key) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    // Anthropic's clients send theirs apart.
    let key = bearer.or_else(|| head.headers.text("x-api-key").map(str::trim));
    match key {
        Some(key) if keys.has(key) => Ok(()),
        Some(key) if !key.is_empty() => Err(ApiError::wrong_api_key(key)),
        _ => Err(ApiError::missing_api_key()),
    }
}

/// A body behind `Content-Encoding: gzip` and the like would be misread as malformed JSON.
fn refuse_coding(head: &Head) -> Result<(), ApiError> {
    match head.headers.text("content-encoding") {
        Some(coding) if !coding.eq_ignore_ascii_case("identity") => {
            Err(ApiError::unsupported_content_encoding(coding))
        }
        _ => Ok(()),
    }
}

fn health(io: &Io) -> Response {
    let now = io.clock.now();
    if io.is_draining() {
        return error(&ApiError::shutting_down());
    }
    match io.served.faults.unready(now) {
        Some(Unready::Starting) => error(&ApiError::starting(1)),
        Some(Unready::Draining) => error(&ApiError::shutting_down()),
        // vLLM's engine is dead then.
        None if io.served.has_crashed(now) => error(&ApiError::down(1)),
        None => Response::empty(200),
    }
}

fn version() -> String {
    format!("{{\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION"))
}

/// The answer to a browser that asks whether it may: it may.
fn preflight(head: &Head, allow: Option<&'static str>) -> Response {
    let methods = allow.unwrap_or(GET_POST);
    let wanted = head.headers.text("access-control-request-headers");
    // Names of headers only; nothing else of the client's goes back into a header.
    let fits = |names: &&str| {
        names.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(&byte))
    };
    Response::empty(204)
        .header("allow", methods)
        .header("access-control-allow-methods", methods)
        .header("access-control-allow-headers", wanted.filter(fits).unwrap_or("*"))
        .header("access-control-max-age", "86400")
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let hex = |at: usize| tail.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The model of that name, or that the adapter of that name adapts, and its place.
pub(crate) fn find_model<'a>(
    served: &'a Served,
    name: &str,
) -> Result<(usize, &'a Model), ApiError> {
    let of = |name: &str| served.models.iter().enumerate().find(|(_, model)| model.name == name);
    of(name)
        .or_else(|| of(&served.adapters.get(name)?.base))
        .ok_or_else(|| ApiError::model_not_found(name))
}

/// The model of that name, or as vLLM has it the first if there is no name.
fn model_or_first<'a>(served: &'a Served, name: Option<&str>) -> Result<&'a Model, ApiError> {
    match name {
        Some(name) => find_model(served, name).map(|(_, model)| model),
        None => Ok(served.first_model()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::http::head::Heads;

    fn routed(request_line: &str) -> Route {
        let text = format!("{request_line} HTTP/1.1\r\nHost: h\r\n\r\n");
        route(&Heads::default().take(&mut BytesMut::from(&text[..])).unwrap().unwrap())
    }

    #[test]
    fn what_is_asked_of_a_kept_response_stands_behind_its_id() {
        let id = || "resp_1".to_owned();
        assert_eq!(routed("GET /v1/responses/resp_1"), Route::Response(id()));
        assert_eq!(routed("GET /v1/responses/resp_1/input_items?limit=2"), Route::InputItems(id()));
        assert_eq!(routed("POST /v1/responses/resp_1/cancel"), Route::CancelResponse(id()));
        assert_eq!(routed("GET /v1/responses/resp_1/cancel"), Route::NotAllowed(POST));
        for path in
            ["/v1/responses/", "/v1/responses//cancel", "/v1/responses/a/b", "/v1/responses/a/"]
        {
            assert_eq!(routed(&format!("GET {path}")), Route::Unknown, "{path}");
        }
    }

    #[test]
    fn a_first_line_tells_whose_api_is_spoken_even_if_it_is_malformed() {
        for (line, dialect) in [
            ("POST /v1/messages HTTP/1.1\r\n", Dialect::Anthropic),
            ("POST /v1/messages/count_tokens HTTP/1.1", Dialect::Anthropic),
            ("POST /v1/messages?beta=true HTTP/9", Dialect::Anthropic),
            ("POST /v1/messages2 HTTP/1.1", Dialect::OpenAi),
            ("POST /v1/chat/completions HTTP/1.1", Dialect::OpenAi),
            ("\u{16}\u{3}\u{1}", Dialect::OpenAi),
            ("", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of_line(line.as_bytes()), dialect, "{line}");
        }
    }

    #[test]
    fn routes_look_at_the_path_and_not_at_the_query() {
        assert_eq!(routed("POST /v1/chat/completions?api-version=1"), Route::Chat);
        assert_eq!(routed("GET http://host/v1/models"), Route::Models);
        assert_eq!(routed("HEAD /health"), Route::Health);
        assert_eq!(routed("GET /v1/models/org%2Fname/x"), Route::Model("org/name/x".to_owned()));
        assert_eq!(routed("GET /v1/models/"), Route::Unknown);
        assert_eq!(routed("GET /v1/chat/completions"), Route::NotAllowed(POST));
        assert_eq!(routed("HEAD /v1/chat/completions"), Route::NotAllowed(POST));
        assert_eq!(routed("DELETE /v1/models/x"), Route::NotAllowed(GET));
        assert_eq!(routed("OPTIONS /v1/models"), Route::Options(Some(GET)));
        assert_eq!(routed("GET /?theme=dark"), Route::Page);
        assert_eq!(routed("GET /ui"), Route::Page);
        assert_eq!(routed("POST /"), Route::NotAllowed(GET));
        assert_eq!(routed("OPTIONS *"), Route::Options(None));
        assert_eq!(routed("POST /v1/nonsense"), Route::Unknown);
        assert_eq!(routed("DELETE /v1/responses/r1"), Route::Response("r1".to_owned()));
        assert_eq!(routed("POST /v1/responses/r1"), Route::NotAllowed(GET_DELETE));
        assert_eq!(routed("PUT /v1/responses/r1"), Route::NotAllowed(GET_DELETE));
    }

    #[test]
    fn percent_signs_that_mean_nothing_stay() {
        assert_eq!(percent_decode("a%2Fb%zz%4"), "a/b%zz%4");
        assert_eq!(percent_decode("%e4%bd%a0"), "你");
    }
}
