//! `GET /v1/models` and `GET /v1/models/{id}`.

use llmsim_engine::wire::models::{ModelCard, write_list};

use crate::api;
use crate::http::response::Response;
use crate::served::{Model, Served};

/// All models, in the order of the configuration.
pub(crate) fn list(served: &Served) -> Response {
    let mut body = Vec::with_capacity(256 * served.models.len());
    write_list(served.models.iter().map(|model| of(model, served)), &mut body);
    Response::json(200, body)
}

/// One model.
pub(crate) fn card(served: &Served, name: &str) -> Response {
    match api::find_model(served, name) {
        Ok(model) => {
            let mut body = Vec::with_capacity(256);
            of(model, served).write(&mut body);
            Response::json(200, body)
        }
        Err(error) => api::error(&error),
    }
}

fn of<'a>(model: &'a Model, served: &Served) -> ModelCard<'a> {
    ModelCard {
        id: &model.name,
        created: served.started,
        owned_by: "llmsimulator",
        max_model_len: model.context.get(),
    }
}
