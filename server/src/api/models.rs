//! `GET /v1/models` and `GET /v1/models/{id}`.

use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::models::{ModelCard, write_list};

use crate::adapters::Adapter;
use crate::api;
use crate::http::response::Response;
use crate::served::{Model, Served};

/// All models, in the order of the configuration, and the adapters of each that are loaded.
pub(crate) fn list(served: &Served) -> Response {
    let adapters = served.adapters.all();
    let adapters = adapters.iter().filter_map(|adapter| {
        let base = served.models.iter().find(|model| model.name == adapter.base)?;
        Some(adapted(adapter, base))
    });
    let mut body = Vec::with_capacity(256 * served.models.len());
    write_list(served.models.iter().map(|model| of(model, served)).chain(adapters), &mut body);
    Response::json(200, body)
}

/// One model, or one adapter.
pub(crate) fn card(served: &Served, name: &str) -> Response {
    let mut body = Vec::with_capacity(256);
    match api::find_model(served, name) {
        Ok((_, model)) if model.name == name => of(model, served).write(&mut body),
        Ok((_, base)) => match served.adapters.get(name) {
            Some(adapter) => adapted(&adapter, base).write(&mut body),
            // Unloaded just now.
            None => return api::error(&ApiError::model_not_found(name)),
        },
        Err(error) => return api::error(&error),
    }
    Response::json(200, body)
}

fn of<'a>(model: &'a Model, served: &Served) -> ModelCard<'a> {
    ModelCard {
        id: &model.name,
        created: served.started,
        owned_by: OWNER,
        max_model_len: model.context.get(),
        adapts: None,
    }
}

fn adapted<'a>(adapter: &'a Adapter, base: &'a Model) -> ModelCard<'a> {
    ModelCard {
        id: &adapter.name,
        created: adapter.loaded,
        owned_by: OWNER,
        max_model_len: base.context.get(),
        adapts: Some((&base.name, &adapter.path)),
    }
}

/// Who serves all of them.
const OWNER: &str = "llmsimulator";
