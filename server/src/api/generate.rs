//! SGLang's `POST /generate`: a text, or several, with a lane for each choice of each.
//!
//! The events of a stream carry all the text so far. The invariant is that of [`super::answer`].

use std::borrow::Cow;
use std::sync::Arc;

use llmsim_engine::text::output::Output;
use llmsim_engine::text::responses::Query;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::generate::{self, End, GenerateRequest, Ids};
use llmsim_engine::wire::sse::DONE;
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Answer, Draft, Format, Lane, Limits, Progress};
use super::intake::{self, Naming};
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
}

/// Answers a request.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, "", prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: Naming) -> Result<Draft, ApiError> {
    let request = GenerateRequest::parse(body)?;
    let first = || served.first_model().name.as_str();
    let name = request.model.as_deref().unwrap_or_else(first);
    let (place, model) = api::find_model(served, name)?;
    let sampling = request.sampling;
    let mut lanes = Vec::with_capacity(request.prompts.len() * sampling.choices as usize);
    let mut chains = Vec::with_capacity(lanes.capacity());
    for prompt in &request.prompts {
        let (text, counted) = intake::plain(served, (model, name), None, prompt, "");
        // As in SGLang, the default gives way to a long prompt, and so does what was asked.
        let room = Tokens::new(model.context.get().saturating_sub(counted.tokens.get()));
        let asked = sampling.max_tokens.min(room.max(Tokens::new(1)));
        let limits = intake::limits(model, counted.tokens, Some(asked), "text")?;
        let limits = Limits {
            min_tokens: sampling.min_tokens.min(asked),
            ignore_eos: sampling.ignore_eos,
            ..limits
        };
        for choice in 0..sampling.choices {
            let script = served.responses.answer(&Query {
                input: &text,
                model: name,
                seed: sampling.seed,
                choice,
                tokenizer: &model.tokenizer,
                ..Query::default()
            });
            let lane = Lane::new(Output::content(script), FinishReason::Stop, &limits);
            lanes.push(Lane { counts_prompt: choice == 0, ..lane });
            chains.push(counted.chain.clone());
        }
    }
    let is_list = request.is_batch || lanes.len() > 1;
    let ids = ids(&request.ids, &naming.id, lanes.len(), sampling.choices as usize, is_list);
    let answer = Answer {
        model: place,
        is_stream: request.stream,
        wants_timing: naming.wants_timing,
        priority: 0,
        lanes: Lanes::of(lanes).expect("a request has at least one prompt and one choice"),
        format: Format::Generate(Generate { ids, end: model.tokenizer.end_of_turn(), is_list }),
        served: Arc::clone(served),
        adapter: intake::lease(served, model, name),
    };
    Ok(Draft {
        answer,
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
        let output = &answer.lanes[lane].output;
        let text = |out: &mut Vec<u8>| {
            (0..progress.released.get()).for_each(|k| out.extend_from_slice(output.escaped(k)));
        };
        let of = &answer.lanes[lane];
        let end = progress.finish.map(|finish| match of.stopped_by(Some(finish)) {
            Some(text) => End::Text(text),
            None if of.reason(Some(finish)) == FinishReason::Length => End::Length,
            None => End::Token(self.end),
        });
        let index = (self.is_list && answer.is_stream)
            .then(|| u32::try_from(lane).expect("lanes are counted in 16 bits"));
        generate::write(&self.ids[lane], index, text, end, &usage, out);
    }
}
