//! `POST /v1/chat/completions`: from a body to an answer whose words are decided and whose timing
//! is not.
//!
//! The engine decides when; this module only says how much of everything there is. The invariant:
//! an [`Answer`] is a pure function of the request, the configuration and its id, so that the same
//! request gets the same bytes on every thread, driver and run.

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderName;
use llmsim_engine::sim::{BlockHash, Finish, Job, Refusal};
use llmsim_engine::text::prompt::{Chain, ChainSpec, Message, PromptReader};
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
use crate::helper::{self, Helper};
use crate::http::head::{self, Head};
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::metrics::timing::Timing;
use crate::served::Served;
use crate::stream::Ended;

/// The longest body that is read on the I/O thread, where all that is done is lag for every other
/// stream of the thread. Reading, matching and counting 32 KB takes 0.12 ms, 64 KB 0.24 ms (one
/// core of a server, prefix caching on), and an echo as much again.
const LONGEST_INLINE: usize = 32 * 1024;

/// The most output tokens that are gone through at once on the I/O thread, to make their block
/// keys, to search them for a stop string, or to put a whole answer together. The keys of 4,096 take
/// 42 µs there and the whole answer 29 µs; of 131,072 it is 1.3 ms and 0.9 ms, of a million 38 ms
/// and 26 ms.
pub(crate) const MOST_TOKENS_INLINE: u32 = 4096;

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
    if io.served.sleep.is_asleep() {
        return Reply::Whole(api::error(&ApiError::asleep()));
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
        Ok(draft) => Reply::Generate(Box::new(draft.finish(&io.helper).await)),
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

/// An answer whose tokens are decided, but have not been gone through.
struct Draft {
    answer: Answer,
    /// With prefix caching: the keys of the prompt, to be continued with those of the output.
    prompt_chain: Option<Chain>,
    stops: Vec<String>,
    keeps_match: bool,
    min_tokens: Tokens,
}

impl Draft {
    /// Goes through the tokens; a helper thread does it if they are many. However small a request
    /// is, its answer may fill the context.
    async fn finish(self, helper: &Helper) -> Answer {
        let passes = self.stops.len() + usize::from(self.prompt_chain.is_some());
        if passes as u64 * u64::from(self.answer.longest().get()) > u64::from(MOST_TOKENS_INLINE) {
            helper::run(helper, move || self.complete()).await
        } else {
            self.complete()
        }
    }

    fn complete(self) -> Answer {
        let Self { mut answer, prompt_chain, stops, keeps_match, min_tokens } = self;
        // What a next turn finds in the prefix cache are the tokens as the engine makes them, not
        // what each of them adds to the text.
        let tokens = answer.script.clone();
        if !stops.is_empty() {
            let stops = Stops { strings: &stops, keeps_match, after: min_tokens };
            let stopped = stop::apply(tokens.clone(), answer.longest(), &stops);
            if stopped.by.is_some() {
                answer.stop_after = Some(stopped.script.len());
            }
            answer.script = stopped.script;
        }
        answer.chain = prompt_chain.map(|mut chain| {
            for k in 0..answer.longest().get() {
                chain.push(tokens.piece(k % tokens.len().get()));
            }
            chain.into_keys().into_iter().map(BlockHash).collect()
        });
        answer
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: Naming) -> Result<Draft, ApiError> {
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
    let answer = Answer {
        model: place.expect("it was found in this list"),
        is_stream: request.stream,
        prompt: prompt_tokens,
        wants_timing: naming.wants_timing,
        include_usage,
        continuous_usage: request.include_usage && request.continuous_usage,
        script,
        max_tokens,
        stop_after,
        priority: request.priority,
        chain: None,
        frames,
        id,
        created: naming.created,
        served: Arc::clone(served),
    };
    Ok(Draft {
        answer,
        prompt_chain: prompt.into_chain(),
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: request.include_stop,
        min_tokens: request.min_tokens,
    })
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
        Refusal::Down => ApiError::down(1),
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
    /// Output tokens, if nobody ends it before.
    fn longest(&self) -> Tokens {
        self.stop_after.unwrap_or(self.max_tokens)
    }

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
        if self.continuous_usage {
            // What is cached is not known yet, and may become known while this is being sent.
            self.frames.role_with_usage(&self.usage(Tokens::ZERO, Tokens::ZERO), out);
        } else {
            self.frames.role(out);
        }
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
        let usage = self.usage(completion, cached);
        if self.continuous_usage {
            self.frames.finish_with_usage(reason(finish), &usage, out);
        } else {
            self.frames.finish(reason(finish), out);
        }
        if self.include_usage {
            self.frames.usage(&usage, out);
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use llmsim_engine::config::{self, Source};
    use llmsim_engine::text::prompt;
    use llmsim_engine::units::SimSpan;

    use super::*;
    use crate::served::{Home, Limits, Model, Replica, Scope, Sleep, Sleepers};

    fn served() -> Arc<Served> {
        let models = "
version: 1
hardware:
  gpu: { hbm_gib: 80, memory_bandwidth_gbps: 3000, peak_tflops: 989 }
models:
  - name: m
    context_length: 1000000
    engine: scheduler
    hardware: gpu
    weights: { parameters_billion: 1, bytes_per_parameter: 2 }
    kv_cache: { bytes_per_token: 1024, block_size: 16 }
    scheduler: { enable_prefix_caching: true }
";
        let responses = "version: 1\ndefault: { content: \"One two three four.\" }\n";
        let config = config::load(&Source::new("m", models), &Source::new("r", responses)).unwrap();
        let models = config.models.into_iter().map(|model| {
            let replica = Replica { number: 0, place: 0, home: Home::Here { seat: 0 } };
            Model::new(model.name, model.context_length, model.engine, vec![replica])
        });
        Arc::new(Served {
            models: models.collect(),
            responses: Arc::new(config.responses),
            started: 0,
            fingerprint: "fp".to_owned(),
            limits: Limits {
                body: 1 << 20,
                head: SimSpan::ZERO,
                body_time: SimSpan::ZERO,
                idle: SimSpan::ZERO,
                stall: SimSpan::ZERO,
                connections: 1,
            },
            api_keys: crate::args::ApiKeys::default(),
            sleep: Sleep::new(Arc::new(Sleepers::new(1)), vec![0]),
            scope: Scope::Server,
            vocabulary: Arc::default(),
        })
    }

    fn draft(served: &Arc<Served>, more: &str) -> Draft {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hello"}}]{more}}}"#);
        let naming = Naming { id: "x".to_owned(), is_final: true, created: 0, wants_timing: false };
        prepare(body.as_bytes(), served, naming).unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn a_tiny_request_for_a_long_answer_does_not_hold_up_the_io_thread() {
        let served = served();
        let (helper, thread) = helper::queue(2);
        let mut cx = Context::from_waker(Waker::noop());

        // Five tokens, and as many as may be gone through at once: done where they are.
        for more in ["", r#","ignore_eos":true,"max_tokens":4096"#] {
            let mut finished = pin!(draft(&served, more).finish(&helper));
            assert!(finished.as_mut().poll(&mut cx).is_ready(), "{more}");
        }

        // Two stop strings are two searches.
        let more = r#","ignore_eos":true,"max_tokens":4096,"stop":["five","six"]"#;
        assert!(pin!(draft(&served, more).finish(&helper)).poll(&mut cx).is_pending());

        // The rest of the context: nothing is done before a helper thread does it.
        let mut finished = pin!(draft(&served, r#","ignore_eos":true"#).finish(&helper));
        assert!(finished.as_mut().poll(&mut cx).is_pending());
        std::thread::spawn(|| thread.run());
        let answer = loop {
            match finished.as_mut().poll(&mut cx) {
                Poll::Ready(answer) => break answer,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        // 1,000,000 tokens of context in blocks of 16.
        assert_eq!(answer.chain.unwrap().len(), 62_500);
    }

    #[test]
    fn block_keys_are_those_of_prompt_and_answer_whoever_makes_them() {
        let served = served();
        let answer = draft(&served, r#","ignore_eos":true,"max_tokens":12,"cache_salt":"s""#);
        let spec = ChainSpec { block_size: NonZeroU32::new(16).unwrap(), salt: Some("s") };
        let hello = Message { role: "user", content: "Hello" };
        let mut chain =
            prompt::PromptReader::new([hello], Some(spec)).finish().into_chain().unwrap();
        // The prompt is 8 tokens; 12 more make one full block.
        let words = ["One", " two", " three", " four", "."];
        words.iter().cycle().take(12).for_each(|word| chain.push(word));
        let keys: Vec<_> = chain.keys().iter().map(|&key| BlockHash(key)).collect();
        assert_eq!(keys.len(), 1);
        assert_eq!(answer.complete().chain.unwrap()[..], keys[..]);
    }
}
