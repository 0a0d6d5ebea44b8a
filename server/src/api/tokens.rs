//! vLLM's `POST /tokenize` and `POST /detokenize`.
//!
//! All of it is done by a helper: no stream waits for somebody's long text. The invariant: a chat
//! has as many tokens here as `usage.prompt_tokens` says of the same chat.

use std::sync::Arc;

use llmsim_engine::text::prompt::Message;
use llmsim_engine::text::{token_ids, tokenizer};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::tokenize::{
    DetokenizeRequest, Input, TokenizeRequest, write_text, write_tokens,
};

use crate::api;
use crate::helper;
use crate::http::response::Response;
use crate::io_thread::Io;
use crate::served::Served;

/// Answers `/tokenize`.
pub(crate) async fn tokenize(io: &Io, body: Vec<u8>) -> Response {
    answer(io, body, cut).await
}

/// Answers `/detokenize`.
pub(crate) async fn detokenize(io: &Io, body: Vec<u8>) -> Response {
    answer(io, body, join).await
}

async fn answer(
    io: &Io,
    body: Vec<u8>,
    work: fn(&Served, &[u8]) -> Result<Vec<u8>, ApiError>,
) -> Response {
    let served = Arc::clone(&io.served);
    match helper::run(&io.helper, move || work(&served, &body)).await {
        Ok(body) => Response::json(200, body),
        Err(error) => api::error(&error),
    }
}

fn cut(served: &Served, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let request = TokenizeRequest::parse(body)?;
    let model = api::model_or_first(served, request.model.as_deref())?;
    let pieces: Vec<&str> = match &request.input {
        Input::Prompt(text) => tokenizer::pieces(text).collect(),
        Input::Chat { messages, begins_answer } => {
            let messages: Vec<Message<'_>> = messages
                .iter()
                .map(|message| Message { role: message.role.as_str(), content: &message.content })
                .collect();
            token_ids::chat_pieces(&messages, *begins_answer)
        }
    };
    let mut vocabulary = served.vocabulary();
    let ids: Vec<u32> = pieces.iter().map(|piece| vocabulary.learn(piece)).collect();
    drop(vocabulary);
    let mut out = Vec::with_capacity(64 + 24 * ids.len());
    let shown = request.wants_pieces.then_some(&pieces[..]);
    write_tokens(&ids, shown, model.context.get(), &mut out);
    Ok(out)
}

fn join(served: &Served, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let request = DetokenizeRequest::parse(body)?;
    api::model_or_first(served, request.model.as_deref())?;
    let mut text = String::new();
    let vocabulary = served.vocabulary();
    for (at, &id) in request.tokens.iter().enumerate() {
        let piece = vocabulary.piece(id).ok_or_else(|| {
            ApiError::invalid_value(
                format!("tokens[{at}]"),
                &format!(
                    "{id} is not an id that this server has given lately. Ids come from POST \
                     /tokenize; there is no vocabulary that knows all of them."
                ),
            )
        })?;
        text.push_str(piece);
    }
    drop(vocabulary);
    let mut out = Vec::with_capacity(16 + text.len());
    write_text(&text, &mut out);
    Ok(out)
}
