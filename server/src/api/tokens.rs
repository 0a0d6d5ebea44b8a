//! vLLM's `POST /tokenize` and `POST /detokenize`, and its `/render` routes.
//!
//! All of it is done by a helper: no stream waits for somebody's long text. The invariant: a chat
//! has as many tokens here as `usage.prompt_tokens` says of the same chat.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use llmsim_engine::text::model_tokenizer::{ModelTokenizer, NoText, Tokenizer};
use llmsim_engine::text::prompt::Message;
use llmsim_engine::text::{token_ids, tokenizer};
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{ChatRequest, TokenFields};
use llmsim_engine::wire::completions::CompletionRequest;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::inputs::Input;
use llmsim_engine::wire::render::Rendered;
use llmsim_engine::wire::tokenize::{
    DetokenizeRequest, Input as ToTokenize, TokenizeRequest, write_text, write_tokens,
};

use super::intake::{self, Conversation};
use super::telling::PromptTokens;
use crate::api;
use crate::helper::{self, Length};
use crate::http::response::{RequestId, Response};
use crate::io_thread::Io;
use crate::served::{Model, Served};

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
    work: impl FnOnce(&Served, &[u8]) -> Result<Vec<u8>, ApiError> + Send + 'static,
) -> Response {
    let served = Arc::clone(&io.served);
    match helper::run(&io.helper, Length::of_bytes(body.len()), move || work(&served, &body)).await
    {
        Ok(body) => Response::json(200, body),
        Err(error) => api::error(&error),
    }
}

fn cut(served: &Served, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let request = TokenizeRequest::parse(body)?;
    let model = api::model_or_first(served, request.model.as_deref())?;
    let conversation;
    let (ids, names) = match &request.input {
        ToTokenize::Prompt(text) => text_tokens(served, model, text),
        ToTokenize::Chat { messages, end, tools } => {
            conversation = Conversation::new(model, tools, messages).ending(*end);
            chat_tokens(served, model, &conversation)
        }
    };
    let names: Option<Vec<&str>> =
        request.wants_pieces.then(|| names.iter().map(AsRef::as_ref).collect());
    let mut out = Vec::with_capacity(64 + 24 * ids.len());
    write_tokens(&ids, names.as_deref(), model.context.get(), &mut out);
    Ok(out)
}

/// The ids of a text's tokens, and how its tokenizer writes them.
fn text_tokens<'a>(served: &Served, model: &Model, text: &'a str) -> (Vec<u32>, Vec<Cow<'a, str>>) {
    match &model.tokenizer {
        Tokenizer::Regex => learn(served, tokenizer::pieces(text)),
        Tokenizer::Model(tokenizer) => named(tokenizer, tokenizer.ids(text)),
    }
}

/// The same of a chat, with the definitions of its tools in front as in a chat's prompt.
fn chat_tokens<'a>(
    served: &Served,
    model: &Model,
    conversation: &'a Conversation<'_>,
) -> (Vec<u32>, Vec<Cow<'a, str>>) {
    let messages: Vec<Message<'_>> = conversation.messages().collect();
    match &model.tokenizer {
        Tokenizer::Regex => {
            learn(served, token_ids::chat_pieces(&messages, conversation.end).into_iter())
        }
        Tokenizer::Model(tokenizer) => {
            named(tokenizer, token_ids::chat_ids(tokenizer, &messages, conversation.end))
        }
    }
}

/// The tokens of a chat that are left of it, for one who asks to be told of them.
pub(super) fn of_prompt(
    served: &Served,
    model: &Model,
    fields: &TokenFields,
    conversation: &Conversation<'_>,
) -> PromptTokens {
    let (ids, names) = chat_tokens(served, model, conversation);
    told(model, fields, ids, &names, &conversation.kept)
}

/// The same of a plain prompt, which was cut before.
pub(super) fn of_text(
    served: &Served,
    model: &Model,
    fields: &TokenFields,
    input: &Input<'_>,
    suffix: &str,
) -> PromptTokens {
    let (mut ids, mut names) = match (input, &model.tokenizer) {
        (Input::Text(text), _) => text_tokens(served, model, text),
        (Input::Ids(ids), Tokenizer::Model(tokenizer)) => named(tokenizer, ids.clone()),
        (Input::Ids(ids), Tokenizer::Regex) => {
            let texts = ids.iter().map(|id| {
                let one = Input::Ids(vec![*id]);
                Cow::Owned(intake::text_of(served, model, &one).into_owned())
            });
            (ids.clone(), texts.collect())
        }
    };
    let (more_ids, more_names) = text_tokens(served, model, suffix);
    ids.extend(more_ids);
    names.extend(more_names);
    told(model, fields, ids, &names, &(0..u32::MAX))
}

/// What each token of a plain prompt says, where the whole of it says `text`.
pub(super) fn pieces<'a>(
    served: &Served,
    model: &Model,
    input: &Input<'_>,
    text: &'a str,
) -> Vec<Cow<'a, str>> {
    match (input, &model.tokenizer) {
        (Input::Text(_), Tokenizer::Regex) => tokenizer::pieces(text).map(Cow::Borrowed).collect(),
        (Input::Text(_), Tokenizer::Model(tokenizer)) => {
            let mut start = 0;
            let ends = tokenizer.cut(text).ends.into_iter();
            ends.map(|end| Cow::Borrowed(&text[std::mem::replace(&mut start, end)..end])).collect()
        }
        (Input::Ids(_), _) => {
            let told = of_text(served, model, &TokenFields::SCORED, input, "");
            told.tokens().map(|(_, text)| Cow::Owned(text.to_owned())).collect()
        }
    }
}

fn told(
    model: &Model,
    fields: &TokenFields,
    ids: Vec<u32>,
    names: &[Cow<'_, str>],
    kept: &Range<u32>,
) -> PromptTokens {
    let kept = kept.start as usize..(kept.end as usize).min(ids.len());
    let names = &names[kept.clone()];
    let ids = ids[kept].to_vec();
    match &model.tokenizer {
        Tokenizer::Model(tokenizer) if fields.prompt_logprobs.is_some() => {
            // Not as the vocabulary writes them.
            let text = |(&id, name): (&u32, &Cow<'_, str>)| {
                tokenizer.text(&[id]).unwrap_or_else(|_| name.clone().into_owned())
            };
            let texts: Vec<String> = ids.iter().zip(names).map(text).collect();
            PromptTokens::new(fields, ids, &texts)
        }
        _ => PromptTokens::new(fields, ids, names),
    }
}

fn learn<'a>(
    served: &Served,
    pieces: impl Iterator<Item = &'a str>,
) -> (Vec<u32>, Vec<Cow<'a, str>>) {
    pieces.map(|piece| (served.vocabulary.learn(piece), Cow::Borrowed(piece))).unzip()
}

fn named(tokenizer: &ModelTokenizer, ids: Vec<u32>) -> (Vec<u32>, Vec<Cow<'static, str>>) {
    let names = ids.iter().map(|&id| Cow::Owned(tokenizer.name(id))).collect();
    (ids, names)
}

/// Answers `/v1/chat/completions/render`.
pub(crate) async fn render_chat(io: &Io, body: Vec<u8>, id: &RequestId) -> Response {
    let id = format!("chatcmpl-{}", id.as_str());
    answer(io, body, move |served, body| {
        let request = ChatRequest::parse(body)?;
        let (_, model) = api::find_model(served, &request.model)?;
        let conversation = Conversation::new(model, &request.tools, &request.messages)
            .ending(request.end)
            .cut(request.tokens.truncation)?;
        let (ids, _) = chat_tokens(served, model, &conversation);
        let kept = &conversation.kept;
        let ids = &ids[kept.start as usize..(kept.end as usize).min(ids.len())];
        let prompt = Tokens::new(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        let limits = intake::limits(model, prompt, request.max_tokens, "messages")?;
        let rendered = Rendered {
            id: &id,
            model: &request.model,
            tokens: ids,
            max_tokens: limits.max_tokens.get(),
            stream: request.stream,
        };
        let mut out = Vec::with_capacity(128 + 12 * ids.len());
        rendered.write(&mut out);
        Ok(out)
    })
    .await
}

/// Answers `/v1/completions/render`: a list, one for each prompt.
pub(crate) async fn render_completions(io: &Io, body: Vec<u8>, id: &RequestId) -> Response {
    let id = format!("cmpl-{}", id.as_str());
    answer(io, body, move |served, body| {
        let request = CompletionRequest::parse(body)?;
        let (_, model) = api::find_model(served, &request.model)?;
        intake::in_vocabulary(model, &request.prompts, "prompt")?;
        let mut out = vec![b'['];
        for (at, prompt) in request.prompts.iter().enumerate() {
            let prompt = intake::cut(model, prompt, request.tokens.truncation)?;
            let ids: Cow<'_, [u32]> = match prompt.as_ref() {
                Input::Ids(ids) => ids.into(),
                Input::Text(text) => text_tokens(served, model, text).0.into(),
            };
            let tokens = Tokens::new(u32::try_from(ids.len()).unwrap_or(u32::MAX));
            let limit = request.max_tokens.max(Tokens::new(1));
            intake::limits(model, tokens, Some(limit), "prompt")?;
            if at > 0 {
                out.push(b',');
            }
            let of_many = format!("{id}-{at}");
            let rendered = Rendered {
                id: if request.prompts.len() == 1 { &id } else { &of_many },
                model: &request.model,
                tokens: &ids,
                max_tokens: request.max_tokens.get(),
                stream: request.stream,
            };
            rendered.write(&mut out);
        }
        out.push(b']');
        Ok(out)
    })
    .await
}

fn join(served: &Served, body: &[u8]) -> Result<Vec<u8>, ApiError> {
    let request = DetokenizeRequest::parse(body)?;
    let model = api::model_or_first(served, request.model.as_deref())?;
    if let Tokenizer::Model(tokenizer) = &model.tokenizer {
        let text = tokenizer.text(&request.tokens).map_err(|why| match why {
            NoText::Unknown(at) => ApiError::invalid_value(
                format!("tokens[{at}]"),
                "this id is not in the vocabulary of the model's tokenizer.",
            ),
            NoText::Decoder => ApiError::invalid_value(
                "tokens".to_owned(),
                "the decoder of the model's tokenizer fails on these ids.",
            ),
        })?;
        let mut out = Vec::with_capacity(16 + text.len());
        write_text(&text, &mut out);
        return Ok(out);
    }
    let mut text = String::new();
    for (at, &id) in request.tokens.iter().enumerate() {
        let piece = served.vocabulary.piece(id).ok_or_else(|| {
            ApiError::invalid_value(
                format!("tokens[{at}]"),
                &format!(
                    "{id} is not an id that this server has given lately. Ids come from POST \
                     /tokenize; there is no vocabulary that knows all of them."
                ),
            )
        })?;
        text.push_str(&piece);
    }
    let mut out = Vec::with_capacity(16 + text.len());
    write_text(&text, &mut out);
    Ok(out)
}
