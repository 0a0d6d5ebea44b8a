//! The responses of faults that come before an answer.
//!
//! Bodies are those of the API that was asked: OpenAI's error object, or Anthropic's under
//! `/v1/messages`. The invariant: what is made here says nothing that the client could tell from a
//! real failure, but for the words of the message.

use llmsim_engine::faults::{Body, Exceeded, Fault, LimitKind, Rule, Status, Unready, Wait};
use llmsim_engine::units::SimSpan;
use llmsim_engine::wire::error::{ApiError, INVALID_REQUEST};
use llmsim_engine::wire::messages;

use super::{duration, limit_headers};
use crate::api;
use crate::clock;
use crate::http::response::{Response, http_date};

/// The response with which a fault answers, if it does.
pub(crate) fn response(rule: &Rule, path: &str, model: &str, id: &str) -> Option<Response> {
    let error = match &rule.fault {
        Fault::Status(status) => return Some(status_response(status, path, model, id)),
        Fault::QueueFull => ApiError::overloaded(1),
        Fault::Capacity => ApiError::no_capacity(1),
        Fault::Unready(Unready::Starting) => ApiError::starting(1),
        Fault::Unready(Unready::Draining) => ApiError::shutting_down(),
        _ => return None,
    };
    Some(shaped(&error, path, id))
}

/// A 429 with the headers that tell the truth about its limit.
pub(crate) fn rate_limited(exceeded: &Exceeded, path: &str, model: &str, id: &str) -> Response {
    let Exceeded { of, requested, wait } = exceeded;
    let kind = of.kind.as_str();
    let (unit, used) = match of.kind {
        LimitKind::Requests => ("requests per min (RPM)", of.limit - of.left),
        LimitKind::Tokens => ("tokens per min (TPM)", of.limit - of.left),
    };
    let limit = of.limit;
    let message = match wait {
        Some(wait) => format!(
            "Rate limit reached for {model} on {unit}: Limit {limit}, Used {used}, Requested \
             {requested}. Please try again in {}.",
            duration(*wait)
        ),
        None => format!(
            "Request too large for {model} on {unit}: Limit {limit}, Requested {requested}. Ask \
             for fewer tokens."
        ),
    };
    let error = ApiError {
        status: 429,
        kind,
        param: None,
        code: Some("rate_limit_exceeded"),
        message,
        header: None,
    };
    let mut response = shaped(&error, path, id);
    if let Some(wait) = wait {
        response = told(response, Wait::Seconds(*wait)).header("retry-after-ms", millis(*wait));
    }
    for (name, value) in limit_headers(std::slice::from_ref(of), path) {
        response = response.header(name, value);
    }
    response
}

fn status_response(status: &Status, path: &str, model: &str, id: &str) -> Response {
    let response = match status.body {
        Body::Empty => Response::empty(status.status),
        Body::Html => {
            let reason = http::StatusCode::from_u16(status.status)
                .ok()
                .and_then(|status| status.canonical_reason())
                .unwrap_or("Error");
            let title = format!("{} {reason}", status.status);
            let page = format!(
                "<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}\
                 </h1></center>\r\n<hr><center>nginx</center>\r\n</body>\r\n</html>\r\n"
            );
            Response {
                content_type: "text/html".into(),
                ..Response::json(status.status, page.into())
            }
        }
        Body::Json => {
            let (kind, code, message) = usual(status.status, model);
            let message = status.message.clone().unwrap_or(message);
            let is_custom = status.kind.is_some() || status.code.is_some();
            let param = (status.status == 404).then_some("model");
            let error = ApiError {
                status: status.status,
                kind,
                param: param.map(Into::into),
                code,
                message,
                header: None,
            };
            if is_custom && !path.starts_with(MESSAGES) {
                let kind = status.kind.as_deref().unwrap_or(kind);
                let code = status.code.as_deref().or(code);
                Response::json(status.status, error.body_named(kind, code))
            } else {
                shaped(&error, path, id)
            }
        }
    };
    let response = match status.wait {
        Some(wait) => told(response, wait),
        None => response,
    };
    match status.should_retry {
        Some(should) => response.header("x-should-retry", should.to_string()),
        None => response,
    }
}

pub(super) const MESSAGES: &str = "/v1/messages";

fn shaped(error: &ApiError, path: &str, id: &str) -> Response {
    let mut response = api::error(error);
    if path.starts_with(MESSAGES) {
        response.body.clear();
        messages::error::write(error, id, &mut response.body);
    }
    response
}

fn told(response: Response, wait: Wait) -> Response {
    let whole = |span: SimSpan| span.as_ns().div_ceil(1_000_000_000);
    match wait {
        Wait::Seconds(span) => response.header("retry-after", whole(span).to_string()),
        // A date has whole seconds: the next one after the time is over.
        Wait::Date(span) => {
            let at = clock::unix_seconds() + whole(span) + 1;
            response.header("retry-after", http_date(at))
        }
        Wait::Millis(span) => response.header("retry-after-ms", millis(span)),
    }
}

fn millis(span: SimSpan) -> String {
    span.as_ns().div_ceil(1_000_000).to_string()
}

/// What OpenAI says with a status: its type, its code, and a sentence.
fn usual(status: u16, model: &str) -> (&'static str, Option<&'static str>, String) {
    let (kind, code, message) = match status {
        401 => (INVALID_REQUEST, Some("invalid_api_key"), "Incorrect API key provided."),
        403 => (INVALID_REQUEST, None, "This key has no access to the requested resource."),
        404 => {
            let message =
                format!("The model `{model}` does not exist or you do not have access to it.");
            return (INVALID_REQUEST, Some("model_not_found"), message);
        }
        408 => (INVALID_REQUEST, Some("request_timeout"), "The request took too long."),
        409 => (INVALID_REQUEST, Some("conflict"), "Another request holds the resource."),
        413 => (INVALID_REQUEST, Some("request_too_large"), "The request is too large."),
        422 => (INVALID_REQUEST, None, "The request could not be processed."),
        429 => (
            "requests",
            Some("rate_limit_exceeded"),
            "Rate limit reached. Please slow down and try again later.",
        ),
        500 => ("server_error", None, "The server had an error while processing your request."),
        502 => ("server_error", None, "The upstream server gave no valid answer."),
        503 => {
            ("server_error", None, "The server is overloaded or not ready. Please try again later.")
        }
        504 => ("server_error", Some("timeout"), "The upstream server did not answer in time."),
        529 => ("overloaded_error", None, "The service is overloaded. Please try again later."),
        400..500 => (INVALID_REQUEST, None, "The request was refused."),
        _ => ("server_error", None, "The server failed."),
    };
    (kind, code, message.to_owned())
}
