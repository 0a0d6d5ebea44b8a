//! SGLang's `POST /generate`: a text, or several, with a lane for each choice of each.
//!
//! The events of a stream carry all the text so far. The invariant is that of [`super::answer`].

use std::borrow::Cow;
use std::sync::Arc;

use llmsim_engine::text::logprobs;
use llmsim_engine::text::responses::Query;
use llmsim_engine::text::wants::Wants;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::TokenFields;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::generate::{self, End, GenerateRequest, Ids, Scores, push_score};
use llmsim_engine::wire::sse::DONE;
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Answer, Draft, Format, Limits, Progress, SCORED};
use super::intake::{self, Asked, Naming};
use super::telling::{self, PromptTokens};
use super::tokens;
use super::words::{Places, Speaker};
use crate::api::{self, Reply};
use crate::http::head::Head;
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::served::Served;

/// How SGLang frames an answer.
#[derive(Debug)]
pub(crate) struct Generate {
    /// Of each lane.
    ids: Box<[Box<str>]>,
    /// The token that ends a turn.
    end: u32,
    /// The body is a list, and events say which lane they are of.
    is_list: bool,
    /// Lanes for each prompt.
    choices: usize,
    /// With `return_logprob`.
    scored: Option<Scored>,
}

/// Which scores are told.
#[derive(Debug)]
struct Scored {
    fields: Scores,
    prompts: Box<[PromptTokens]>,
}

/// Answers a request.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, "", prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = GenerateRequest::parse(body)?;
    let first = || served.first_model().name.as_str();
    let name = request.model.as_deref().unwrap_or_else(first);
    let asked = Asked::find(served, name, 0)?;
    let model = asked.model;
    intake::in_vocabulary(model, &request.prompts, "input_ids")?;
    let sampling = request.sampling;
    let mut lanes = Vec::with_capacity(request.prompts.len() * sampling.choices as usize);
    let mut chains = Vec::with_capacity(lanes.capacity());
    // SGLang's formats are not read, so that nothing can be wrong with one.
    let (wants, places) = (Wants::default(), Places { tool: "", form: "" });
    for prompt in &request.prompts {
        let (text, counted) = intake::plain(served, (model, name), None, prompt, "");
        // As in SGLang, the default gives way to a long prompt, and so does what was asked.
        let room = Tokens::new(model.context.get().saturating_sub(counted.tokens.get()));
        let most = sampling.max_tokens.min(room.max(Tokens::new(1)));
        let limits = intake::limits(model, counted.tokens, Some(most), "text")?;
        let limits = Limits {
            min_tokens: sampling.min_tokens.min(most),
            ignore_eos: sampling.ignore_eos,
            ..limits
        };
        let speaker = Speaker { served, model, wants: &wants, limits, places, thinking: None };
        for choice in 0..sampling.choices {
            let query = Query {
                input: &text,
                model: name,
                seed: sampling.seed,
                choice,
                tokenizer: &model.tokenizer,
                ..Query::default()
            };
            lanes.push(speaker.text_lane(&query)?);
            chains.push(counted.chain.clone());
        }
    }
    let is_list = request.is_batch || lanes.len() > 1;
    let ids = ids(&request.ids, &naming.id, lanes.len(), sampling.choices as usize, is_list);
    let manner = naming.manner(request.stream);
    let scored = request.scores.map(|fields| {
        let told = |prompt| tokens::of_text(served, model, &TokenFields::SCORED, prompt, "");
        Scored { fields, prompts: request.prompts.iter().map(told).collect() }
    });
    let format = Format::Generate(Generate {
        ids,
        is_list,
        end: model.tokenizer.end_of_turn(),
        choices: sampling.choices as usize,
        scored,
    });
    Ok(Draft {
        answer: asked.answer(manner, Lanes::of(lanes), format),
        chains,
        stops: sampling.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: sampling.include_stop,
        min_tokens: sampling.min_tokens,
    })
}

/// The ids of all lanes: the client's `rid`, which in SGLang no header overrules, or ours.
fn ids(
    asked: &Ids<'_>,
    ours: &str,
    lanes: usize,
    choices: usize,
    is_list: bool,
) -> Box<[Box<str>]> {
    let id = |lane: usize| match asked {
        Ids::Each(ids) if choices == 1 => ids[lane].as_ref().into(),
        Ids::Each(ids) => format!("{}_{}", ids[lane / choices], lane % choices).into(),
        Ids::One(id) if is_list => format!("{id}_{lane}").into(),
        Ids::One(id) => id.as_ref().into(),
        Ids::Ours if is_list => format!("{ours}_{lane}").into(),
        Ids::Ours => ours.into(),
    };
    (0..lanes).map(id).collect()
}

impl Generate {
    /// The event of one token: all up to it.
    pub(crate) fn token(
        &self,
        answer: &Answer,
        lane: usize,
        k: u32,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        let progress = Progress { cached, released: Tokens::new(k + 1), finish: None };
        out.extend_from_slice(b"data: ");
        self.write(answer, lane, &progress, out);
        out.extend_from_slice(b"\n\n");
    }

    /// The last event of a lane: all of it, and why it ended.
    pub(crate) fn end_lane(
        &self,
        answer: &Answer,
        lane: usize,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(b"data: ");
        self.write(answer, lane, progress, out);
        out.extend_from_slice(b"\n\n");
    }

    /// The last word.
    pub(crate) fn end_stream(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(DONE);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(&self, answer: &Answer, progress: &Lanes<Progress>) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        if self.is_list {
            out.push(b'[');
        }
        for (lane, progress) in progress.iter().enumerate() {
            if lane > 0 {
                out.push(b',');
            }
            self.write(answer, lane, progress, &mut out);
        }
        if self.is_list {
            out.push(b']');
        }
        out
    }

    fn write(&self, answer: &Answer, lane: usize, progress: &Progress, out: &mut Vec<u8>) {
        let usage = answer.usage_of(lane, progress.released, progress.cached);
        let of = &answer.lanes[lane];
        let text = |out: &mut Vec<u8>| {
            of.output.append_escaped(0..progress.released.get(), out);
        };
        let end = progress.finish.map(|finish| match of.stopped_by(Some(finish)) {
            Some(text) => End::Text(text),
            None if of.reason(Some(finish)) == FinishReason::Length => End::Length,
            None => End::Token(self.end),
        });
        let index = (self.is_list && answer.is_stream)
            .then(|| u32::try_from(lane).expect("lanes are counted in 16 bits"));
        let scores = |out: &mut Vec<u8>| self.scores(answer, lane, progress.released, out);
        generate::write(&self.ids[lane], index, text, end, &usage, scores, out);
    }

    /// What is told of the scores of the tokens so far.
    fn scores(&self, answer: &Answer, lane: usize, released: Tokens, out: &mut Vec<u8>) {
        let Some(Scored { fields, prompts }) = &self.scored else { return };
        let tokenizer = &answer.served.models[answer.model].tokenizer;
        let prompt = &prompts[lane / self.choices];
        let made = answer.lanes[lane].made();
        let from = fields.from.map_or(prompt.len(), |from| from as usize);
        let of_prompt = prompt.tokens().enumerate().skip(from);
        let of_answer = answer
            .ids(lane, 0..released.get())
            .enumerate()
            .map(|(k, id)| (id, made.piece(k as u32)));
        let token = |is_first: bool, (id, piece): (u32, &str), out: &mut Vec<u8>| {
            // Nothing stands before it that could make it likely.
            let logprob = (!is_first).then(|| logprobs::logprob(piece));
            push_score(logprob, id, fields.texts.then_some(piece), out);
        };
        let others = |is_first: bool, (id, piece): (u32, &str), out: &mut Vec<u8>| {
            if is_first {
                return out.extend_from_slice(b"null");
            }
            out.push(b'[');
            let likeliest = logprobs::likeliest(piece, fields.alternatives).enumerate();
            for (rank, (other, logprob)) in likeliest {
                if rank > 0 {
                    out.push(b',');
                }
                let id = if rank == 0 { id } else { telling::id_of(tokenizer, other) };
                push_score(Some(logprob), id, fields.texts.then_some(other), out);
            }
            out.push(b']');
        };
        let in_prompt = || of_prompt.clone().map(|(at, token)| (at == 0, token));
        let in_answer = || of_answer.clone().map(|token| (false, token));
        list(b",\"input_token_logprobs\":", in_prompt(), token, out);
        list(b",\"output_token_logprobs\":", in_answer(), token, out);
        if fields.alternatives > 0 {
            list(b",\"input_top_logprobs\":", in_prompt(), others, out);
            list(b",\"output_top_logprobs\":", in_answer(), others, out);
        }
    }

    /// About how many bytes a body of `released` tokens has beside their text.
    pub(crate) fn bytes(&self, released: u64) -> u64 {
        // `[logprob, id, text]`, of a token and of each that is likely in its place.
        const SCORE_BYTES: u64 = 32;
        let Some(scored) = &self.scored else { return 0 };
        let of_each = (1 + u64::from(scored.fields.alternatives)) * SCORE_BYTES;
        (released + self.scored_of_prompts(scored)) * of_each
    }

    /// See [`Format::work`](super::answer::Format::work).
    pub(crate) fn work(&self, released: u64) -> u64 {
        let Some(scored) = &self.scored else { return released };
        (released + self.scored_of_prompts(scored)) * SCORED
    }

    /// Tokens of prompts whose scores are told, each by every choice.
    fn scored_of_prompts(&self, Scored { fields, prompts }: &Scored) -> u64 {
        let told = prompts.iter().filter(|_| fields.from.is_some());
        told.map(|prompt| prompt.len() as u64 * self.choices as u64).sum()
    }
}

/// Appends an array of tokens behind its name; `entry` appends what is told of one, which may be the
/// first of its prompt.
fn list<'p>(
    name: &[u8],
    tokens: impl Iterator<Item = (bool, (u32, &'p str))>,
    entry: impl Fn(bool, (u32, &str), &mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(name);
    out.push(b'[');
    for (at, (is_first, token)) in tokens.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        entry(is_first, token, out);
    }
    out.push(b']');
}
