//! `POST /v1/chat/completions`: from a body to an answer whose words are decided and whose timing
//! is not.
//!
//! Not when, and not how lanes become jobs: that is [`super::answer`]'s. The invariant: a request is
//! checked whole before its answer begins.

use std::borrow::Cow;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use llmsim_engine::text::logprobs;
use llmsim_engine::text::output::{Call, Kind, Output, Spot};
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::ChatRequest;
use llmsim_engine::wire::completion::{CallBody, Choice, Completion};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::logprobs::write_entry;
use llmsim_engine::wire::sse::{DONE, Delta, End, StreamFrames, StreamHead};
use llmsim_engine::wire::token_ids::push_ids;
use llmsim_engine::wire::usage::Usage;

use super::answer::{Answer, Draft, Format, Limits, Progress, SCORE_BYTES, SCORED};
use super::intake::{self, Asked, Conversation, Naming};
use super::telling::Telling;
use super::tokens;
use super::words::{self, Facts, Places, Speaker};
use crate::api::{self, Reply};
use crate::http::head::Head;
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;

/// How a chat's answer is framed.
#[derive(Debug)]
pub(crate) struct Chat {
    id: String,
    created: u64,
    /// As the client named it.
    model: Box<str>,
    /// Of a stream only.
    frames: Option<StreamFrames>,
    include_usage: bool,
    continuous_usage: bool,
    /// How many of the likeliest tokens are told at each place, if any probability is.
    logprobs: Option<u32>,
    telling: Telling,
    sends_reasoning: bool,
    /// Frames of content say nothing but the content.
    is_bare: bool,
}

/// The beginning of an answer's id.
const PREFIX: &str = "chatcmpl-";

/// Bytes of most bodies, beside what is said.
const BODY_ROOM: usize = 704;

/// Bytes of a token's text that most texts do not need, so that a buffer need not grow.
const TEXT_ROOM: usize = 8;

/// Answers a chat request.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, PREFIX, prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = ChatRequest::parse(body)?;
    let asked = Asked::through_gateway(served, &request.model, request.priority, naming)?;
    let model = asked.model;
    let conversation = Conversation::new(model, &request.tools, &request.messages)
        .ending(request.end)
        .cut(request.tokens.truncation)?;
    let prompt = conversation.count(served, &request.model, request.cache_salt.as_deref());
    let limits = Limits {
        min_tokens: request.min_tokens,
        ignore_eos: request.ignore_eos,
        ..intake::limits(model, prompt.tokens, request.max_tokens, "messages")?
    };
    let places = Places { tool: "function.parameters", form: words::place_of(&request.format) };
    let wants = words::wants(&request.tools, &request.format, request.messages.len());
    let facts = Facts::of(&request.messages);
    let thinking = request.most_thinking;
    let speaker = Speaker { served, model, wants: &wants, limits, places, thinking };
    let lane = |choice| speaker.lane(&facts.query(model, &request.model, request.seed, choice));
    let lanes = Lanes::try_of((0..request.choices).map(lane))?;
    let telling = Telling::new(&request.tokens, 1, |_| {
        tokens::of_prompt(served, model, &request.tokens, &conversation)
    });

    naming.asked(PREFIX, request.request_id.as_deref());
    let include_usage = request.include_usage || naming.wants_timing;
    let frames = request.stream.then(|| {
        StreamFrames::new(&StreamHead {
            id: &naming.id,
            created: naming.created,
            model: &request.model,
            fingerprint: &served.fingerprint,
            include_usage,
        })
    });
    let chains = match prompt.chain {
        None => Vec::new(),
        chain => vec![chain; lanes.len()],
    };
    let continuous_usage = request.include_usage && request.continuous_usage;
    let manner = naming.manner(request.stream);
    let format = Format::Chat(Chat {
        id: take(&mut naming.id),
        created: naming.created,
        model: request.model.as_ref().into(),
        frames,
        include_usage,
        continuous_usage,
        logprobs: request.logprobs,
        is_bare: telling.is_plain() && !continuous_usage && request.logprobs.is_none(),
        telling,
        sends_reasoning: request.include_reasoning,
    });
    Ok(Draft {
        answer: asked.answer(manner, lanes, format),
        chains,
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: request.include_stop,
        min_tokens: request.min_tokens,
    })
}

impl Chat {
    fn frames(&self) -> &StreamFrames {
        self.frames.as_ref().expect("only what is streamed has frames")
    }

    /// The role, and no content.
    pub(crate) fn open_lane(&self, answer: &Answer, lane: usize, out: &mut Vec<u8>) {
        let delta = match answer.lanes[lane].output.part(0).kind {
            Kind::ToolCall(_) => Delta::RoleWithoutContent,
            Kind::Reasoning | Kind::Content | Kind::Refusal => Delta::Role,
        };
        // What is cached is not known yet, and may become known while this is being sent.
        let usage = self.running_usage(answer, lane, Tokens::ZERO, Tokens::ZERO);
        let end = End { usage: usage.as_ref(), ..End::default() };
        self.frames().frame(number(lane), delta, &end, out);
        if self.telling.ids {
            append_members(b"}\n\n", |out| self.telling.prompt_ids(0, out), out);
        }
    }

    /// The frame of one token, or of some that waited for it.
    pub(crate) fn token(
        &self,
        answer: &Answer,
        lane: usize,
        k: u32,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        let output = &answer.lanes[lane].output;
        if lane == 0 && self.is_bare && output.only_content().is_some() {
            return self.frames().content(output.escaped(k), out);
        }
        if let Some(tokens) = self.telling.due(k) {
            self.tokens(answer, lane, tokens, cached, out);
        }
    }

    /// The frames of some tokens: one for those that are of one kind.
    fn tokens(
        &self,
        answer: &Answer,
        lane: usize,
        tokens: Range<u32>,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        let output = &answer.lanes[lane].output;
        let Range { mut start, end } = tokens;
        while start < end {
            let Spot { part, token } = output.locate(start);
            let run = match &output.part(part).kind {
                // The function's name is a frame of its own.
                Kind::ToolCall(_) if token == 0 => start + 1,
                _ if part + 1 == output.part_count() => end,
                _ => end.min(output.part(part + 1).start.get()),
            };
            self.run(answer, lane, start..run, cached, out);
            start = run;
        }
    }

    /// The frame of tokens that are of one kind.
    fn run(
        &self,
        answer: &Answer,
        lane: usize,
        range: Range<u32>,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        let output = &answer.lanes[lane].output;
        let spot = output.locate(range.start);
        let escaped = output.escaped_at(spot);
        let kind = &output.part(spot.part).kind;
        let delta = match kind {
            Kind::Content => Delta::Content(escaped),
            // It is a token like any other, and nothing is said of it.
            Kind::Reasoning if !self.sends_reasoning => return,
            Kind::Reasoning => Delta::Reasoning(escaped),
            Kind::Refusal => Delta::Refusal(escaped),
            Kind::ToolCall(Call { index, id, name }) if spot.token == 0 => {
                Delta::ToolCall { index: *index, id, name }
            }
            Kind::ToolCall(Call { index, .. }) => Delta::Arguments { index: *index, escaped },
        };
        let usage = self.running_usage(answer, lane, Tokens::new(range.end), cached);
        let rest = |out: &mut Vec<u8>| output.append_escaped(range.start + 1..range.end, out);
        self.frames().begin_with(number(lane), delta, rest, out);
        let made = answer.lanes[lane].made();
        match kind {
            Kind::Content => self.logprobs(made, range.clone(), 0..0, out),
            Kind::Refusal => self.logprobs(made, 0..0, range.clone(), out),
            Kind::Reasoning | Kind::ToolCall(_) => out.extend_from_slice(b"null"),
        }
        if self.telling.ids {
            push_ids(b",\"token_ids\":", answer.ids(lane, range), out);
        }
        self.frames().end(&End { usage: usage.as_ref(), ..End::default() }, out);
    }

    /// See [`Format::work`](super::answer::Format::work).
    pub(crate) fn work(&self, released: u64) -> u64 {
        let scored = if self.logprobs.is_some() { released * SCORED } else { released };
        scored + self.telling.scored() * SCORED
    }

    /// About how many bytes a body of `released` tokens has beside their text.
    pub(crate) fn bytes(&self, released: u64) -> u64 {
        let scores = self.logprobs.map_or(0, |count| (1 + u64::from(count)) * SCORE_BYTES);
        released * scores + self.telling.bytes(released, 1)
    }

    /// Whether the ids of tokens are told.
    pub(crate) fn tells_ids(&self) -> bool {
        self.telling.ids
    }

    /// The value of `logprobs` for tokens of content and tokens of a refusal.
    fn logprobs(
        &self,
        output: &Output,
        content: Range<u32>,
        refusal: Range<u32>,
        out: &mut Vec<u8>,
    ) {
        let Some(count) = self.logprobs else { return out.extend_from_slice(b"null") };
        for (name, tokens) in [(b"{\"content\":".as_slice(), content), (b",\"refusal\":", refusal)]
        {
            out.extend_from_slice(name);
            if tokens.is_empty() {
                out.extend_from_slice(b"null");
                continue;
            }
            out.push(b'[');
            for k in tokens.clone() {
                if k > tokens.start {
                    out.push(b',');
                }
                let own = output.bytes(k);
                let token = &*String::from_utf8_lossy(own);
                let likeliest = logprobs::likeliest(token, count);
                write_entry(token, own, logprobs::logprob(token), likeliest, out);
            }
            out.push(b']');
        }
        out.push(b'}');
    }

    /// Why a choice ended.
    pub(crate) fn end_lane(
        &self,
        answer: &Answer,
        lane: usize,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) {
        if !self.is_bare {
            let left = self.telling.left(progress.released);
            self.tokens(answer, lane, left, progress.cached, out);
        }
        let usage = self.running_usage(answer, lane, progress.released, progress.cached);
        let end = End { usage: usage.as_ref(), ..answer.lanes[lane].end(progress) };
        self.frames().frame(number(lane), Delta::Nothing, &end, out);
    }

    /// The usage, if asked for, and the last word.
    pub(crate) fn end_stream(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
        out: &mut Vec<u8>,
    ) {
        if self.include_usage {
            let usage = answer.usage(progress);
            self.frames().usage(&usage, out);
            if let Some(timing) = timing {
                append_timing(timing, usage.completion, b"}\n\n", out);
            }
        }
        out.extend_from_slice(DONE);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
    ) -> Vec<u8> {
        let completion = Completion {
            id: &self.id,
            created: self.created,
            model: &self.model,
            fingerprint: &answer.served.fingerprint,
            usage: answer.usage(progress),
        };
        let text = TEXT_ROOM * completion.usage.completion.get() as usize;
        let mut body = Vec::with_capacity(BODY_ROOM + text);
        completion.open(&mut body);
        for (lane, progress) in progress.iter().enumerate() {
            self.whole_choice(answer, lane, progress, &mut body);
        }
        completion.close(&mut body);
        let tokenizer = &answer.served.models[answer.model].tokenizer;
        append_members(
            b"}",
            |out| {
                self.telling.prompt_scores(0, tokenizer, out);
                self.telling.prompt_ids(0, out);
            },
            &mut body,
        );
        if let Some(timing) = timing {
            append_timing(timing, completion.usage.completion, b"}", &mut body);
        }
        body
    }

    /// With `continuous_usage_stats`, what a choice has taken so far.
    fn running_usage(
        &self,
        answer: &Answer,
        lane: usize,
        completion: Tokens,
        cached: Tokens,
    ) -> Option<Usage> {
        self.continuous_usage.then(|| answer.usage_of(lane, completion, cached))
    }

    fn whole_choice(
        &self,
        answer: &Answer,
        number_of_lane: usize,
        progress: &Progress,
        body: &mut Vec<u8>,
    ) {
        let lane = &answer.lanes[number_of_lane];
        let (mut content, mut refusal, mut reasoning) = (None, None, None);
        let mut calls: Vec<(&Call, Cow<'_, [u8]>)> = Vec::new();
        let (mut content_tokens, mut refusal_tokens) = (0..0, 0..0);
        let output = &lane.output;
        for (at, part) in output.parts().enumerate() {
            let said = output.said_of(at, progress.released).get();
            if said == 0 {
                break;
            }
            let first = part.start.get();
            match &part.kind {
                Kind::Content => {
                    say(output, first..first + said, &mut content);
                    content_tokens = first..first + said;
                }
                Kind::Refusal => {
                    say(output, first..first + said, &mut refusal);
                    refusal_tokens = first..first + said;
                }
                Kind::Reasoning if !self.sends_reasoning => {}
                Kind::Reasoning => say(output, first..first + said, &mut reasoning),
                Kind::ToolCall(call) => {
                    // The first token is the function's name.
                    let mut arguments = None;
                    say(output, first + 1..first + said, &mut arguments);
                    calls.push((call, arguments.unwrap_or_default()));
                }
            }
        }
        let calls: Vec<_> = calls
            .iter()
            .map(|(call, arguments)| CallBody { id: &call.id, name: &call.name, arguments })
            .collect();
        let logprobs = self.logprobs.map(|_| {
            let mut value = Vec::new();
            self.logprobs(lane.made(), content_tokens, refusal_tokens, &mut value);
            value
        });
        // As in vLLM, what is hidden is not told as ids either.
        let hides = !self.sends_reasoning && output.part(0).kind == Kind::Reasoning;
        let ids: Option<Vec<u32>> = (self.telling.ids && !hides)
            .then(|| answer.ids(number_of_lane, 0..progress.released.get()).collect());
        let choice = Choice {
            index: number(number_of_lane),
            content: content.as_deref(),
            refusal: refusal.as_deref(),
            reasoning: reasoning.as_deref(),
            calls: &calls,
            logprobs: logprobs.as_deref(),
            token_ids: ids.as_deref(),
            end: lane.end(progress),
        };
        choice.write(body);
    }
}

/// Adds the texts of tokens, escaped, to what was said before: of most answers nothing was, and the
/// text need not be copied before it goes into the body.
fn say<'a>(output: &'a Output, tokens: Range<u32>, text: &mut Option<Cow<'a, [u8]>>) {
    if text.is_none()
        && let Some(run) = output.escaped_run(tokens.clone())
    {
        *text = Some(Cow::Borrowed(run));
        return;
    }
    let text = text.get_or_insert_default().to_mut();
    text.reserve(TEXT_ROOM * tokens.len());
    output.append_escaped(tokens, text);
}

/// A lane's number on the wire.
fn number(lane: usize) -> u32 {
    u32::try_from(lane).expect("lanes are counted in 16 bits")
}

/// Puts `metrics` at the end of the object that `out` ends with.
pub(super) fn append_timing(timing: &Timing, completion: Tokens, end: &[u8], out: &mut Vec<u8>) {
    let metrics = |out: &mut Vec<u8>| {
        out.extend_from_slice(b",\"metrics\":");
        out.extend_from_slice(timing.json(completion).as_bytes());
    };
    append_members(end, metrics, out);
}

/// Puts members, each with a comma before, at the end of the object that `out` ends with.
fn append_members(end: &[u8], members: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    debug_assert!(out.ends_with(end));
    out.truncate(out.len() - end.len());
    members(out);
    out.extend_from_slice(end);
}

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU32;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use llmsim_engine::config::{self, Source};
    use llmsim_engine::sim::BlockHash;
    use llmsim_engine::text::prompt::{self, ChainSpec, Message};
    use llmsim_engine::units::SimSpan;

    use super::*;
    use crate::helper;
    use crate::served::{self, Home, Model, Replica, Scope, Sleep, Sleepers};

    pub(in crate::api) fn served() -> Arc<Served> {
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
            limits: served::Limits {
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
            adapters: Arc::default(),
            stored: Arc::default(),
            faults: Arc::new(crate::faults::Faults::none()),
            downs: Arc::new([]),
            has_admin: false,
        })
    }

    fn draft(served: &Arc<Served>, more: &str) -> Draft {
        let body =
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hello"}}]{more}}}"#);
        let mut naming = Naming::for_test("x");
        prepare(body.as_bytes(), served, &mut naming).unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn scores_count_as_work_when_a_body_is_put_together() {
        let work = |more| draft(&served(), more).answer.format.work(1000);
        assert_eq!(work(""), 1000);
        assert_eq!(work(r#","logprobs":true"#), 128_000);
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
        assert_eq!(answer.lanes[0].chain.as_ref().unwrap().len(), 62_500);
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
        assert_eq!(answer.complete().lanes[0].chain.as_ref().unwrap()[..], keys[..]);
    }
}
