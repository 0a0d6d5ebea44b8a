//! Refusals in Anthropic's form: `{"type":"error","error":{"type","message"},"request_id"}`.
//!
//! The refusals themselves are those of every route. There is neither a param nor a code, so the
//! message begins with the field: `messages.0.role: ...`.

use crate::wire::error::ApiError;
use crate::wire::json::push_string;

/// Anthropic's `error.type` for an HTTP status.
pub const fn kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        503 | 529 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// Appends the body of a refusal; also the payload of an `error` event.
pub fn write(error: &ApiError, request_id: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"error\",\"error\":{\"type\":\"");
    out.extend_from_slice(kind(error.status).as_bytes());
    out.extend_from_slice(b"\",\"message\":");
    push_string(out, &message(error));
    out.extend_from_slice(b"},\"request_id\":");
    push_string(out, request_id);
    out.push(b'}');
}

fn message(error: &ApiError) -> String {
    let Some(param) = error.param.as_deref() else { return error.message.clone() };
    let path = param.replace('[', ".").replace(']', "");
    match error.code {
        Some("missing_required_parameter") => format!("{path}: Field required"),
        Some("empty_array") => format!("{path}: at least one element is required"),
        // About the whole, not about the field.
        Some("model_not_found" | "context_length_exceeded") => error.message.clone(),
        _ => format!("{path}: {}", error.message),
    }
}
