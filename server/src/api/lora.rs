//! vLLM's `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`. Always on: vLLM wants
//! `VLLM_ALLOW_RUNTIME_LORA_UPDATING` for it.

use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::lora::{LoadAdapter, UnloadAdapter};

use crate::api;
use crate::http::response::Response;
use crate::served::Served;

/// Loads an adapter.
pub(super) fn load(served: &Served, body: &[u8]) -> Response {
    told("loaded", try_load(served, body))
}

/// Unloads an adapter.
pub(super) fn unload(served: &Served, body: &[u8]) -> Response {
    let done = UnloadAdapter::parse(body).and_then(|request| {
        served.adapters.unload(&request)?;
        Ok(request.name.into_owned())
    });
    told("removed", done)
}

fn try_load(served: &Served, body: &[u8]) -> Result<String, ApiError> {
    let request = LoadAdapter::parse(body)?;
    let base = match request.base.as_deref() {
        None => served.first_model(),
        Some(base) => match served.models.iter().find(|model| model.name == base) {
            Some(model) => model,
            None => return Err(ApiError::model_not_found(base)),
        },
    };
    if served.models.iter().any(|model| model.name == request.name) {
        return Err(ApiError::adapter_refused(&format!(
            "The name '{}' is that of a model; give the adapter another.",
            request.name
        )));
    }
    served.adapters.load(&request, &base.name)?;
    Ok(request.name.into_owned())
}

/// vLLM's words for it, as plain text.
fn told(what: &str, done: Result<String, ApiError>) -> Response {
    match done {
        Ok(name) => Response {
            status: 200,
            content_type: "text/plain; charset=utf-8".into(),
            body: format!("Success: LoRA adapter '{name}' {what} successfully.").into_bytes(),
            headers: Vec::new(),
        },
        Err(error) => api::error(&error),
    }
}
