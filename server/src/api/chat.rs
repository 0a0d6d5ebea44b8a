//! `POST /v1/chat/completions`: from a body to an answer whose words are decided and whose timing
//! is not.
//!
//! The engine decides when; this module only says how much of everything there is. The invariant:
//! an [`Answer`] is a pure function of the request, the configuration and its id, so that the same
//! request gets the same bytes on every thread, driver and run.

use std::sync::Arc;

use http::HeaderName;
use llmsim_engine::sim::{BlockHash, Finish, Job, Refusal};
use llmsim_engine::text::prompt::{ChainSpec, Message, PromptReader};
use llmsim_engine::text::responses::Query;
use llmsim_engine::text::script::Script;
use llmsim_engine::text::stop::{self, Stops};
use llmsim_engine::units::{JobId, Tokens};
use llmsim_engine::wire::chat::ChatRequest;
use llmsim_engine::wire::completion::Completion;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::sse::{DONE, StreamFrames, StreamHead};
use llmsim_engine::wire::usage::{FinishReason, Usage};

use crate::api::{self, Reply};
use crate::clock;
use crate::helper;
use crate::http::head::{self, Head};
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::metrics::timing::Timing;
use crate::served::Served;
use crate::stream::Ended;

/// The longest body that is read on the I/O thread: parsing, matching and counting it takes up to
/// 0.1 ms, which is lag for every other stream of the thread.
const LONGEST_INLINE: usize = 64 * 1024;

/// Whether a whole conversation fits into the context, what will be said, and how it is framed.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its place in the configuration.
    pub(crate) model: usize,
    pub(crate) is_stream: bool,
    pub(crate) prompt: Tokens,
    /// `x-llmsim-timing: 1`.
    pub(crate) wants_timing: bool,
    include_usage: bool,
    continuous_usage: bool,
    script: Script,
    max_tokens: Tokens,
    stop_after: Option<Tokens>,
    priority: i32,
    chain: Option<Arc<[BlockHash]>>,
    frames: StreamFrames,
    id: String,
    created: u64,
    served: Arc<Served>,
}

/// Answers a chat request.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    if let Err(error) = api::refuse_coding(head) {
        return Reply::Whole(api::error(&error));
    }
    let naming = Naming {
        id: if id.from_client {
            format!("chatcmpl-{}", id.as_str())
        } else {
            io.make_id("chatcmpl-")
        },
        is_final: id.from_client,
        created: clock::unix_seconds(),
        wants_timing: head::text(&head.headers, TIMING) == Some("1"),
    };
    let served = Arc::clone(&io.served);
    let prepared = if body.len() <= LONGEST_INLINE {
        prepare(&body, &served, naming)
    } else {
        helper::run(&io.helper, move || prepare(&body, &served, naming)).await
    };
    match prepared {
        Ok(answer) => Reply::Generate(Box::new(answer)),
        Err(error) => Reply::Whole(api::error(&hint_at_type(error, head))),
    }
}

/// How an answer is called.
struct Naming {
    id: String,
    /// The client's `x-request-id` wins over its `request_id` (vLLM's order).
    is_final: bool,
    created: u64,
    /// The client wants to know when things happened.
    wants_timing: bool,
}

/// The header with which a client asks when things happened.
const TIMING: HeaderName = HeaderName::from_static("x-llmsim-timing");

fn prepare(body: &[u8], served: &Arc<Served>, naming: Naming) -> Result<Answer, ApiError> {
    let request = ChatRequest::parse(body)?;
    let model = api::find_model(served, &request.model)?;
    let place = served.models.iter().position(|other| std::ptr::eq(other, model));
    if request.priority != 0 && !model.takes_priority {
        return Err(ApiError::invalid_value(
            "priority",
            "this model does not schedule by priority. Leave 'priority' out, or set the model's \
             scheduling policy to 'priority'.",
        ));
    }

    let messages = request
        .messages
        .iter()
        .map(|message| Message { role: message.role.as_str(), content: &message.content });
    let chain = model
        .cached_blocks
        .map(|block_size| ChainSpec { block_size, salt: request.cache_salt.as_deref() });
    let prompt = PromptReader::new(messages, chain).finish();
    let prompt_tokens = prompt.tokens();
    let room = model.context.get().saturating_sub(prompt_tokens.get());
    let asked = request.max_tokens;
    if room == 0 || asked.is_some_and(|asked| asked.get() > room) {
        return Err(ApiError::context_length_exceeded(
            model.context.get(),
            prompt_tokens.get(),
            asked.map(Tokens::get),
        ));
    }

    let script = served.responses.answer(&Query {
        input: request.last_user_text(),
        model: &request.model,
        seed: request.seed,
    });
    let max_tokens = asked.unwrap_or(Tokens::new(room));
    // With `ignore_eos` the answer says itself again until the limit; with `min_tokens` until then.
    let natural_end = script.len().max(request.min_tokens);
    let stop_after = (!request.ignore_eos && natural_end <= max_tokens).then_some(natural_end);
    let Spoken { script, said, stop_after } =
        speak(&request, script, stop_after, stop_after.unwrap_or(max_tokens));
    let output = stop_after.unwrap_or(max_tokens);

    let chain = prompt.into_chain().map(|mut chain| {
        for k in 0..output.get() {
            chain.push(script.piece(k % script.len().get()));
        }
        chain.into_keys().into_iter().map(BlockHash).collect()
    });

    let id = match &request.request_id {
        Some(id) if !naming.is_final => format!("chatcmpl-{id}"),
        _ => naming.id,
    };
    let include_usage = request.include_usage || naming.wants_timing;
    let frames = StreamFrames::new(&StreamHead {
        id: &id,
        created: naming.created,
        model: &request.model,
        fingerprint: &served.fingerprint,
        include_usage,
    });
    Ok(Answer {
        model: place.expect("it was found in this list"),
        is_stream: request.stream,
        prompt: prompt_tokens,
        wants_timing: naming.wants_timing,
        include_usage,
        continuous_usage: request.include_usage && request.continuous_usage,
        script: said,
        max_tokens,
        stop_after,
        priority: request.priority,
        chain,
        frames,
        id,
        created: naming.created,
        served: Arc::clone(served),
    })
}

/// An answer's tokens, and how they are said.
struct Spoken {
    /// The tokens as the engine makes them: what a next turn finds in the prefix cache.
    script: Script,
    /// What each of them adds to the text.
    said: Script,
    stop_after: Option<Tokens>,
}

/// Puts a request's stop strings to its answer.
fn speak(
    request: &ChatRequest<'_>,
    script: Script,
    stop_after: Option<Tokens>,
    output: Tokens,
) -> Spoken {
    if request.stop.is_empty() {
        return Spoken { said: script.clone(), script, stop_after };
    }
    let stops = Stops {
        strings: &request.stop,
        keeps_match: request.include_stop,
        after: request.min_tokens,
    };
    let stopped = stop::apply(script.clone(), output, &stops);
    let stop_after = stopped.by.map(|_| stopped.script.len()).or(stop_after);
    Spoken { script, said: stopped.script, stop_after }
}

/// A body that is no JSON and does not claim to be: the type is the better hint.
fn hint_at_type(error: ApiError, head: &Head) -> ApiError {
    let is_unparsed = error.status == 400 && error.param.is_none() && error.code.is_none();
    match head::text(&head.headers, http::header::CONTENT_TYPE) {
        Some(kind) if is_unparsed && !kind.to_ascii_lowercase().contains("json") => {
            ApiError::unsupported_media_type(kind)
        }
        _ => error,
    }
}

/// An engine's refusal, as the client sees it.
pub(crate) fn refused(answer: &Answer, why: Refusal) -> ApiError {
    let model = &answer.served.models[answer.model];
    match why {
        Refusal::QueueFull => ApiError::overloaded(1),
        Refusal::PromptTooLong => {
            ApiError::context_length_exceeded(model.context.get(), answer.prompt.get(), None)
        }
        Refusal::NeverFits => {
            let needed = u64::from(answer.prompt.get()) + u64::from(answer.max_tokens.get());
            ApiError::never_fits(model.kv_tokens(), needed)
        }
    }
}

impl Answer {
    /// What the engine is told of it.
    pub(crate) fn job(&self, id: JobId) -> Job {
        Job {
            id,
            prompt: self.prompt,
            max_tokens: self.max_tokens,
            stop_after: self.stop_after,
            priority: self.priority,
            chain: self.chain.clone(),
        }
    }

    /// Appends the first frame.
    pub(crate) fn role_frame(&self, out: &mut Vec<u8>) {
        self.frames.role(out);
    }

    /// Appends the frame of token `k`, counted from 1.
    pub(crate) fn token_frame(&self, k: u32, cached: Tokens, out: &mut Vec<u8>) {
        let escaped = self.script.escaped((k - 1) % self.script.len().get());
        if self.continuous_usage {
            self.frames.content_with_usage(escaped, &self.usage(Tokens::new(k), cached), out);
        } else {
            self.frames.content(escaped, out);
        }
    }

    /// Appends all that follows the last token.
    pub(crate) fn end_frames(
        &self,
        finish: Finish,
        completion: Tokens,
        cached: Tokens,
        timing: Option<&Timing>,
        out: &mut Vec<u8>,
    ) {
        self.frames.finish(reason(finish), out);
        if self.include_usage {
            self.frames.usage(&self.usage(completion, cached), out);
            if let Some(timing) = timing {
                append_timing(timing, completion, b"}\n\n", out);
            }
        }
        out.extend_from_slice(DONE);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(&self, ended: &Ended) -> Vec<u8> {
        let completion = Completion {
            id: &self.id,
            created: self.created,
            model: &self.served.models[self.model].name,
            fingerprint: &self.served.fingerprint,
            finish: reason(ended.finish.unwrap_or(Finish::Length)),
            usage: self.usage(Tokens::new(ended.released), ended.cached),
        };
        let pieces = (0..ended.released).map(|k| self.script.escaped(k % self.script.len().get()));
        let mut body = Vec::with_capacity(1024 + 6 * ended.released as usize);
        completion.write(pieces, &mut body);
        if let Some(timing) = &ended.timing {
            append_timing(timing, Tokens::new(ended.released), b"}", &mut body);
        }
        body
    }

    fn usage(&self, completion: Tokens, cached: Tokens) -> Usage {
        Usage { prompt: self.prompt, cached, completion, reasoning: Tokens::ZERO }
    }
}

/// Puts `metrics` at the end of the object that `out` ends with.
fn append_timing(timing: &Timing, completion: Tokens, end: &[u8], out: &mut Vec<u8>) {
    debug_assert!(out.ends_with(end));
    out.truncate(out.len() - end.len());
    out.extend_from_slice(b",\"metrics\":");
    out.extend_from_slice(timing.json(completion).as_bytes());
    out.extend_from_slice(end);
}

fn reason(finish: Finish) -> FinishReason {
    match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
    }
}
