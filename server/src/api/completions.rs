//! `POST /v1/completions`: from a body to an answer with a lane for each choice of each prompt.
//!
//! A prompt is read as it is, without a template. The invariant is that of [`super::answer`]: what
//! is rendered depends on the request alone, an echoed prompt included.

use std::borrow::Cow;
use std::cell::Cell;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use llmsim_engine::escape;
use llmsim_engine::text::logprobs;
use llmsim_engine::text::responses::Query;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::completions::{
    CompletionRequest, ScoredPrompt, ScoredToken, TextBody, TextFrames, write_scored,
};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::inputs::Input;
use llmsim_engine::wire::sse::{DONE, End, StreamHead};
use llmsim_engine::wire::token_ids::push_ids;
use llmsim_engine::wire::tools::Tools;
use llmsim_engine::wire::usage::{FinishReason, Usage};

use super::answer::{Answer, Draft, Format, Lane, Progress, SCORED};
use super::chat::append_timing;
use super::intake::{self, Asked, Naming};
use super::telling::Telling;
use super::tokens;
use super::words::{self, Places, Speaker};
use crate::api::{self, Reply};
use crate::http::head::Head;
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;

/// What copying a token and its rendered scores takes, in tokens without.
const COPIED: u64 = 4;

/// The beginning of an answer's id.
const PREFIX: &str = "cmpl-";

/// How a text completion is framed.
#[derive(Debug)]
pub(crate) struct Completions {
    id: String,
    created: u64,
    /// As the client named it.
    model: Box<str>,
    /// Of a stream only.
    frames: Option<TextFrames>,
    include_usage: bool,
    continuous_usage: bool,
    /// With `echo`: each prompt.
    echoes: Option<Box<[Echo]>>,
    /// With `logprobs`.
    scores: Option<Scores>,
    telling: Telling,
    /// Lanes for each prompt.
    choices: usize,
    /// Only the prompt is wanted: the one token that the engine makes is not shown.
    hides_answer: bool,
}

/// A prompt that comes before its answer.
#[derive(Debug)]
struct Echo {
    /// Its text as JSON string content.
    escaped: Box<[u8]>,
    /// If its tokens are scored.
    scores: Option<EchoScores>,
}

/// The scores of a prompt, made with the request: they are the same for every choice, and many.
#[derive(Debug)]
struct EchoScores {
    rendered: ScoredPrompt,
    /// Characters of the prompt, which the places of the answer's tokens count from.
    chars: usize,
}

/// What is told of each token beside its text.
#[derive(Debug)]
struct Scores {
    /// How many tokens are named for each place, the chosen one among them.
    likeliest: u32,
    /// Of each lane: the last token whose place in the text was asked for, and that place. It saves
    /// counting all characters before it for every token.
    places: Box<[Cell<(u32, usize)>]>,
}

/// Answers a completion request.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, PREFIX, prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = CompletionRequest::parse(body)?;
    let asked = Asked::through_gateway(served, &request.model, request.priority, naming)?;
    let model = asked.model;
    intake::in_vocabulary(model, &request.prompts, "prompt")?;
    let suffix = request.suffix.as_deref().unwrap_or_default();
    let hides_answer = request.max_tokens == Tokens::ZERO;
    let limit = request.max_tokens.max(Tokens::new(1));
    let choices = request.choices as usize;
    let prompts = request.prompts.iter();
    let prompts: Result<Vec<Cow<'_, Input<'_>>>, ApiError> =
        prompts.map(|prompt| intake::cut(model, prompt, request.tokens.truncation)).collect();
    let prompts = prompts?;
    let wants = words::wants(&Tools::default(), &request.format, 0);
    let places = Places { tool: "", form: words::place_of(&request.format) };

    let mut lanes = Vec::with_capacity(request.prompts.len() * choices);
    let mut chains = Vec::with_capacity(lanes.capacity());
    let mut echoes = request.echo.then(Vec::new);
    for prompt in &prompts {
        let salt = request.cache_salt.as_deref();
        let (text, counted) = intake::plain(served, (model, &request.model), salt, prompt, suffix);
        let limits = intake::limits(model, counted.tokens, Some(limit), "prompt")?;
        let limits = super::answer::Limits {
            min_tokens: request.min_tokens,
            ignore_eos: request.ignore_eos,
            ..limits
        };
        let speaker = Speaker { served, model, wants: &wants, limits, places, thinking: None };
        for choice in 0..request.choices {
            let query = Query {
                input: &text,
                model: &request.model,
                seed: request.seed,
                choice,
                tokenizer: &model.tokenizer,
                ..Query::default()
            };
            lanes.push(speaker.text_lane(&query)?);
            chains.push(counted.chain.clone());
        }
        if let Some(echoes) = &mut echoes {
            let mut escaped = Vec::with_capacity(text.len() + text.len() / 16);
            // vLLM takes who asks for ids to want no text of a prompt.
            if !request.tokens.ids {
                escape::json_string_content(&text, &mut escaped);
            }
            let scores = request.logprobs.map(|count| {
                let pieces = tokens::pieces(served, model, prompt, &text);
                EchoScores::new(&text, &pieces, likeliest(count))
            });
            echoes.push(Echo { escaped: escaped.into(), scores });
        }
    }
    let telling = Telling::new(&request.tokens, prompts.len(), |prompt| {
        tokens::of_text(served, model, &request.tokens, &prompts[prompt], suffix)
    });

    naming.asked(PREFIX, request.request_id.as_deref());
    let include_usage = request.include_usage || naming.wants_timing;
    let frames = request.stream.then(|| {
        TextFrames::new(&StreamHead {
            id: &naming.id,
            created: naming.created,
            model: &request.model,
            fingerprint: &served.fingerprint,
            include_usage,
        })
    });
    let manner = naming.manner(request.stream);
    let format = Format::Completions(Completions {
        id: take(&mut naming.id),
        created: naming.created,
        model: request.model.as_ref().into(),
        frames,
        include_usage,
        continuous_usage: request.include_usage && request.continuous_usage,
        echoes: echoes.map(Into::into),
        scores: request.logprobs.map(|count| Scores {
            likeliest: likeliest(count),
            places: lanes.iter().map(|_| Cell::default()).collect(),
        }),
        telling,
        choices,
        hides_answer,
    });
    Ok(Draft {
        answer: asked.answer(manner, Lanes::of(lanes), format),
        chains,
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: request.include_stop,
        min_tokens: request.min_tokens,
    })
}

impl Completions {
    fn frames(&self) -> &TextFrames {
        self.frames.as_ref().expect("only what is streamed has frames")
    }

    /// The frame of one token, or of some that waited for it; with `echo` the first also has the
    /// prompt's text.
    pub(crate) fn token(
        &self,
        answer: &Answer,
        lane: usize,
        k: u32,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        if let Some(tokens) = self.telling.due(k) {
            self.tokens(answer, lane, tokens, cached, out);
        }
    }

    fn tokens(
        &self,
        answer: &Answer,
        lane: usize,
        tokens: Range<u32>,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        self.frames().open(out);
        let is_first = tokens.start == 0;
        if is_first {
            self.echo(lane, out);
        }
        let usage = self.running_usage(answer, lane, Tokens::new(tokens.end), cached);
        let said = if self.hides_answer { tokens.start..tokens.start } else { tokens };
        for k in said.clone() {
            out.extend_from_slice(answer.lanes[lane].output.escaped(k));
        }
        let scores = |out: &mut Vec<u8>| {
            self.scores(answer, lane, said.clone(), out);
            if is_first {
                self.telling.prompt_ids(lane / self.choices, out);
            }
            self.answer_ids(answer, lane, said, out);
        };
        let end = End { usage: usage.as_ref(), ..End::default() };
        self.frames().close(number(lane), scores, &end, out);
    }

    /// Why a choice ended.
    pub(crate) fn end_lane(
        &self,
        answer: &Answer,
        lane: usize,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) {
        let left = self.telling.left(progress.released);
        if !left.is_empty() {
            self.tokens(answer, lane, left, progress.cached, out);
        }
        self.frames().open(out);
        let usage = self.running_usage(answer, lane, progress.released, progress.cached);
        let end = End { usage: usage.as_ref(), ..self.end(&answer.lanes[lane], progress) };
        self.frames().close(number(lane), null, &end, out);
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
            let usage = self.usage(answer.usage(progress));
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
        let usage = self.usage(answer.usage(progress));
        let mut out = Vec::with_capacity(1024 + 6 * usage.completion.get() as usize);
        let head = StreamHead {
            id: &self.id,
            created: self.created,
            model: &self.model,
            fingerprint: &answer.served.fingerprint,
            include_usage: true,
        };
        let mut body = TextBody::open(&head, &mut out);
        for (index, (lane, progress)) in answer.lanes.iter().zip(progress.iter()).enumerate() {
            let text = |out: &mut Vec<u8>| {
                self.echo(index, out);
                let said = if self.hides_answer { 0 } else { progress.released.get() };
                lane.output.append_escaped(0..said, out);
            };
            let said = 0..if self.hides_answer { 0 } else { progress.released.get() };
            let tokenizer = &answer.served.models[answer.model].tokenizer;
            let scores = |out: &mut Vec<u8>| {
                self.scores(answer, index, said.clone(), out);
                let prompt = index / self.choices;
                self.telling.prompt_scores(prompt, tokenizer, out);
                self.telling.prompt_ids(prompt, out);
                self.answer_ids(answer, index, said, out);
            };
            body.choice(text, scores, &self.end(lane, progress));
        }
        body.close(&usage);
        if let Some(timing) = timing {
            append_timing(timing, usage.completion, b"}", &mut out);
        }
        out
    }

    /// See [`Format::work`](super::answer::Format::work): an echoed prompt is copied like an answer, and
    /// its scores, which are rendered, like some more of it.
    pub(crate) fn work(&self, released: u64) -> u64 {
        // Four bytes of text are about a token.
        let echoed = |echo: &Echo| echo.escaped.len() as u64 / 4 * self.choices as u64;
        let echoed: u64 = self.echoes.iter().flatten().map(echoed).sum();
        let scored = self.telling.scored() * self.choices as u64 * SCORED;
        scored
            + match self.scores {
                Some(_) => released * SCORED + echoed * COPIED,
                None => released + echoed,
            }
    }

    /// About how many bytes a body of `released` tokens has beside their text. What is told of a prompt
    /// is told by every choice.
    pub(crate) fn bytes(&self, released: u64) -> u64 {
        // A token's text, score and place; each of the likeliest takes half as much.
        const SCORE_BYTES: u64 = 36;
        let scores = |echo: &Echo| echo.scores.as_ref().map_or(0, |echo| echo.rendered.size());
        let echoed = |echo: &Echo| (echo.escaped.len() + scores(echo)) as u64;
        let echoed: u64 = self.echoes.iter().flatten().map(echoed).sum();
        let scored = |scores: &Scores| SCORE_BYTES + u64::from(scores.likeliest) * SCORE_BYTES / 2;
        let choices = self.choices as u64;
        echoed * choices
            + released * self.scores.as_ref().map_or(0, scored)
            + self.telling.bytes(released, choices)
    }

    /// Whether the ids of tokens are told.
    pub(crate) fn tells_ids(&self) -> bool {
        self.telling.ids
    }

    /// Appends the member with the ids of some tokens, if they are told.
    fn answer_ids(&self, answer: &Answer, lane: usize, tokens: Range<u32>, out: &mut Vec<u8>) {
        if self.telling.ids {
            push_ids(b",\"token_ids\":", answer.ids(lane, tokens), out);
        }
    }

    fn echo(&self, lane: usize, out: &mut Vec<u8>) {
        if let Some(echoes) = &self.echoes {
            out.extend_from_slice(&echoes[lane / self.choices].escaped);
        }
    }

    /// The value of `logprobs` for the tokens of `said`; an echoed prompt's come before the first.
    fn scores(&self, answer: &Answer, lane: usize, said: Range<u32>, out: &mut Vec<u8>) {
        let Some(scores) = &self.scores else { return null(out) };
        let output = answer.lanes[lane].made();
        let echo =
            self.echoes.as_ref().and_then(|echoes| echoes[lane / self.choices].scores.as_ref());
        let before = echo.map_or(0, |echo| echo.chars);
        let echo = echo.filter(|_| said.start == 0).map(|echo| &echo.rendered);
        let mut place = before + scores.place(lane, said.start, |k| chars(output.piece(k)));
        let of_answer = said.map(move |k| {
            let (piece, offset) = (output.piece(k), place);
            place += chars(piece);
            ScoredToken { piece, logprob: Some(logprobs::logprob(piece)), offset }
        });
        let likeliest = |piece| logprobs::likeliest(piece, scores.likeliest);
        write_scored(echo, of_answer, likeliest, out);
    }

    fn end<'l>(&self, lane: &'l Lane, progress: &Progress) -> End<'l> {
        if self.hides_answer {
            return End { finish: Some(FinishReason::Length), ..End::default() };
        }
        lane.end(progress)
    }

    fn usage(&self, usage: Usage) -> Usage {
        if self.hides_answer { Usage { completion: Tokens::ZERO, ..usage } } else { usage }
    }

    /// With `continuous_usage_stats`, what a choice has taken so far.
    fn running_usage(
        &self,
        answer: &Answer,
        lane: usize,
        completion: Tokens,
        cached: Tokens,
    ) -> Option<Usage> {
        self.continuous_usage.then(|| self.usage(answer.usage_of(lane, completion, cached)))
    }
}

impl EchoScores {
    /// Those of the text `prompt`, whose tokens are `pieces`.
    fn new(prompt: &str, pieces: &[Cow<'_, str>], count: u32) -> Self {
        let mut place = 0;
        let tokens = pieces.iter().map(AsRef::as_ref).enumerate().map(|(at, piece)| {
            let offset = place;
            place += chars(piece);
            // Nothing stands before the first token that could make it likely.
            let logprob = (at > 0).then(|| logprobs::logprob(piece));
            ScoredToken { piece, logprob, offset }
        });
        let rendered = ScoredPrompt::new(tokens, |piece| logprobs::likeliest(piece, count));
        Self { rendered, chars: chars(prompt) }
    }
}

impl Scores {
    /// How many characters stand before token `k` of a lane; `chars` counts those of one token.
    fn place(&self, lane: usize, k: u32, chars: impl Fn(u32) -> usize) -> usize {
        let (mut known, mut place) = self.places[lane].get();
        if known > k {
            (known, place) = (0, 0);
        }
        place += (known..k).map(chars).sum::<usize>();
        self.places[lane].set((k, place));
        place
    }
}

/// How many tokens are named for each place if `logprobs` is `count`.
fn likeliest(count: u8) -> u32 {
    u32::from(count).max(1)
}

fn chars(piece: &str) -> usize {
    piece.chars().count()
}

fn null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

/// A lane's number on the wire.
fn number(lane: usize) -> u32 {
    u32::try_from(lane).expect("lanes are counted in 16 bits")
}

#[cfg(test)]
mod tests {
    use super::super::chat::tests::served;
    use super::*;

    #[test]
    fn an_echoed_prompt_counts_as_work_for_every_choice() {
        // 4,000 letters are about 1,000 tokens, twice, beside the ten that were made.
        let prompt = "a".repeat(4000);
        let work = |more: &str| {
            let body = format!(r#"{{"model":"m","prompt":"{prompt}","n":2{more}}}"#);
            let draft = prepare(body.as_bytes(), &served(), &mut Naming::for_test("x"));
            draft.unwrap_or_else(|error| panic!("{error:?}")).answer.format.work(10)
        };
        assert_eq!(work(""), 10);
        assert_eq!(work(r#","echo":true"#), 2010);
        // The scores of the prompt are rendered already.
        assert_eq!(work(r#","echo":true,"logprobs":1"#), 10 * 128 + 2000 * 4);
    }
}
