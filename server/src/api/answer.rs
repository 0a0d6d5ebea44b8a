//! An answer whose words are decided and whose timing is not, whatever surface it is for.
//!
//! The engine decides when; here is only how much of everything there is, and how it is framed. An
//! answer has one lane for each choice, or for each prompt of a batch, and each lane is one job of
//! the engine, as vLLM makes them. The invariant: an [`Answer`] is a pure function of the request,
//! the configuration and its id, so that the same request gets the same bytes on every thread,
//! driver and run, and whatever was sent can be rendered again.

use std::ops::Range;
use std::sync::Arc;

use llmsim_engine::sim::{BlockHash, Finish, Job, Refusal};
use llmsim_engine::text::model_tokenizer::{Token, Tokenizer};
use llmsim_engine::text::output::Output;
use llmsim_engine::text::prompt::Chain;
use llmsim_engine::text::stop::{self, Stops};
use llmsim_engine::text::token_ids;
use llmsim_engine::units::{JobId, Tokens};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::orca;
use llmsim_engine::wire::sse::End;
use llmsim_engine::wire::usage::{FinishReason, Usage};

use super::chat::Chat;
use super::completions::Completions;
use super::embeddings::Embeddings;
use super::generate::Generate;
use super::messages::Messages;
use super::responses::ResponsesFormat;
use crate::adapters::Lease;
use crate::helper::{self, Helper, Length};
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;

/// The most output tokens that are gone through at once on the I/O thread, to make their block
/// keys, to search them for a stop string, or to put a whole answer together. The keys of 4,096 take
/// 42 µs there and the whole answer 29 µs; of 131,072 it is 1.3 ms and 0.9 ms, of a million 38 ms
/// and 26 ms.
pub(crate) const MOST_TOKENS_INLINE: u32 = 4096;

/// What a token with its log probability takes, in tokens without: 1.2 µs, some 250 bytes of numbers,
/// against 7 ns (a million of them, unoptimised build: a second or so).
pub(crate) const SCORED: u64 = 128;

/// Bytes of a plain token's text, about. These were measured with the built-in texts, 2026-12.
pub(super) const TEXT_BYTES: u64 = 4;

/// Bytes of a token's id in a list, about.
pub(super) const ID_BYTES: u64 = 11;

/// Bytes of a token and its log probability, about, where they stand with the token's own bytes in a
/// chat or a response: 83 of one alone, and 59 more for each of the likeliest beside it.
pub(super) const SCORE_BYTES: u64 = 64;

/// The most bytes of an answer in one body, which is held in memory until it is sent. A stream has no
/// such limit.
const MOST_BYTES: u64 = 128 << 20;

/// What will be said, in how many lanes, and how it is framed.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its place in the configuration.
    pub(crate) model: usize,
    pub(crate) is_stream: bool,
    /// `x-llmsim-timing: 1`.
    pub(crate) wants_timing: bool,
    /// A gateway asked for a report of the load.
    pub(super) load_report: Option<orca::Format>,
    pub(crate) priority: i32,
    /// Which of the model's replicas is to answer, if that was said.
    pub(crate) rank: Option<usize>,
    pub(crate) lanes: Lanes<Lane>,
    pub(crate) format: Format,
    pub(crate) served: Arc<Served>,
    /// Of a model that was asked for by an adapter's name: counts as long as the answer lives.
    #[expect(dead_code, reason = "it acts when it is dropped")]
    pub(crate) adapter: Option<Lease>,
}

/// One choice, or the answer to one prompt of a batch: one job of the engine.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    pub(crate) prompt: Tokens,
    /// Whether `usage` counts its prompt: of several choices for a prompt, only the first does.
    pub(crate) counts_prompt: bool,
    pub(crate) max_tokens: Tokens,
    pub(crate) stop_after: Option<Tokens>,
    pub(crate) chain: Option<Arc<[BlockHash]>>,
    /// What is said.
    pub(crate) output: Output,
    /// The tokens that the engine makes, where what each adds to the text is another: text that may
    /// begin a stop string waits for later tokens.
    pub(super) made: Option<Box<Output>>,
    pub(crate) ending: Ending,
}

/// What is said of an answer that came to its end by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    /// The stop string that ended it.
    pub(crate) stopped_by: Option<Box<str>>,
}

/// How far a lane has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Prompt tokens that the prefix cache had.
    pub(crate) cached: Tokens,
    /// Tokens that exist.
    pub(crate) released: Tokens,
    pub(crate) finish: Option<Finish>,
}

/// How an answer is framed: one variant for each surface.
///
/// A stream is made of units, each the same bytes whenever it is rendered: what opens the stream;
/// for each lane its opening, a unit for every token, and its end; and the end of the stream, in
/// one unit with the end of the last lane.
#[derive(Debug)]
pub(crate) enum Format {
    Chat(Chat),
    Completions(Completions),
    Embeddings(Embeddings),
    Responses(ResponsesFormat),
    Messages(Messages),
    Generate(Generate),
}

impl Format {
    /// Appends what opens the stream. It goes out with the head of the response, as soon as the
    /// engine has taken all lanes and before it has begun; often there is nothing.
    pub(crate) fn open_stream(&self, answer: &Answer, out: &mut Vec<u8>) {
        match self {
            Self::Responses(response) => response.open_stream(out),
            Self::Messages(message) => message.open_stream(answer, out),
            Self::Chat(_) | Self::Completions(_) | Self::Embeddings(_) | Self::Generate(_) => {}
        }
    }

    /// Appends what opens a lane; it goes out with its first token.
    pub(crate) fn open_lane(&self, answer: &Answer, lane: usize, out: &mut Vec<u8>) {
        match self {
            Self::Chat(chat) => chat.open_lane(answer, lane, out),
            Self::Completions(_)
            | Self::Embeddings(_)
            | Self::Responses(_)
            | Self::Messages(_)
            | Self::Generate(_) => {}
        }
    }

    /// Appends the frames of token `k` of a lane, counted from 0. `cached` is the lane's.
    pub(crate) fn token(
        &self,
        answer: &Answer,
        lane: usize,
        k: u32,
        cached: Tokens,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Chat(chat) => chat.token(answer, lane, k, cached, out),
            Self::Completions(text) => text.token(answer, lane, k, cached, out),
            Self::Responses(response) => response.token(answer, k, out),
            Self::Messages(message) => message.token(answer, k, out),
            Self::Generate(generate) => generate.token(answer, lane, k, cached, out),
            Self::Embeddings(_) => {}
        }
    }

    /// Appends what ends a lane.
    pub(crate) fn end_lane(
        &self,
        answer: &Answer,
        lane: usize,
        progress: &Progress,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Chat(chat) => chat.end_lane(answer, lane, progress, out),
            Self::Completions(text) => text.end_lane(answer, lane, progress, out),
            Self::Responses(response) => response.end_lane(answer, progress, out),
            Self::Messages(message) => message.end_lane(answer, progress, out),
            Self::Generate(generate) => generate.end_lane(answer, lane, progress, out),
            Self::Embeddings(_) => {}
        }
    }

    /// Appends what ends the stream, after the ends of all lanes.
    pub(crate) fn end_stream(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
        out: &mut Vec<u8>,
    ) {
        match self {
            Self::Chat(chat) => chat.end_stream(answer, progress, timing, out),
            Self::Completions(text) => text.end_stream(answer, progress, timing, out),
            Self::Generate(generate) => generate.end_stream(out),
            Self::Embeddings(_) | Self::Responses(_) | Self::Messages(_) => {}
        }
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
    ) -> Vec<u8> {
        match self {
            Self::Chat(chat) => chat.whole_body(answer, progress, timing),
            Self::Completions(text) => text.whole_body(answer, progress, timing),
            Self::Embeddings(embeddings) => embeddings.whole_body(answer, timing),
            Self::Responses(response) => response.whole_body(answer, progress, timing),
            Self::Messages(message) => message.whole_body(answer, progress, timing),
            Self::Generate(generate) => generate.whole_body(answer, progress),
        }
    }

    /// All tokens of all lanes exist; `progress` is the first lane's.
    pub(crate) fn finished(&self, answer: &Answer, progress: &Progress) {
        match self {
            Self::Responses(response) => response.finished(answer, progress),
            Self::Chat(_)
            | Self::Completions(_)
            | Self::Embeddings(_)
            | Self::Messages(_)
            | Self::Generate(_) => {}
        }
    }

    /// What it takes to put the body of `released` tokens together, in plain tokens: 7 ns each. One
    /// whose likeliest neighbours are named takes about [`SCORED`] of them.
    pub(crate) fn work(&self, released: u64) -> u64 {
        match self {
            Self::Chat(chat) => chat.work(released),
            Self::Completions(text) => text.work(released),
            Self::Responses(response) => response.work(released),
            Self::Generate(generate) => generate.work(released),
            Self::Embeddings(_) | Self::Messages(_) => released,
        }
    }

    /// About how many bytes the body of `released` tokens has.
    fn bytes(&self, released: u64) -> u64 {
        let more = match self {
            Self::Chat(chat) => chat.bytes(released),
            Self::Completions(text) => text.bytes(released),
            Self::Responses(response) => response.bytes(released),
            Self::Generate(generate) => generate.bytes(released),
            Self::Embeddings(_) | Self::Messages(_) => 0,
        };
        released * TEXT_BYTES + more
    }

    /// Whether the client gets the ids of tokens.
    fn tells_ids(&self) -> bool {
        match self {
            Self::Chat(chat) => chat.tells_ids(),
            Self::Completions(text) => text.tells_ids(),
            _ => false,
        }
    }
}

impl Lane {
    /// A lane that says `output`, ending by itself as `reason` says, under the request's limits.
    pub(crate) fn new(output: Output, reason: FinishReason, limits: &Limits) -> Self {
        let Limits { prompt, max_tokens, min_tokens, ignore_eos } = *limits;
        // With `ignore_eos` the answer goes on to the limit; with `min_tokens` until then.
        let natural_end = output.len().max(min_tokens);
        Self {
            prompt,
            counts_prompt: true,
            max_tokens,
            stop_after: (!ignore_eos && natural_end <= max_tokens).then_some(natural_end),
            chain: None,
            output,
            made: None,
            ending: Ending { reason, stopped_by: None },
        }
    }

    /// Its tokens as the engine makes them: as many as it says, and each with its own text.
    pub(crate) fn made(&self) -> &Output {
        self.made.as_deref().unwrap_or(&self.output)
    }

    /// Output tokens, if nobody ends it before.
    pub(crate) fn longest(&self) -> Tokens {
        self.stop_after.unwrap_or(self.max_tokens)
    }

    /// What it has taken so far: the prompt as if it were alone.
    pub(crate) fn usage(&self, completion: Tokens, cached: Tokens) -> Usage {
        let reasoning = self.output.reasoning_in(completion);
        Usage { prompt: self.prompt, cached, completion, reasoning }
    }

    /// Why it ended.
    pub(crate) fn reason(&self, finish: Option<Finish>) -> FinishReason {
        match finish {
            Some(Finish::Stop) => self.ending.reason,
            Some(Finish::Length) | None => FinishReason::Length,
        }
    }

    /// The stop string that ended it, if one did.
    pub(crate) fn stopped_by(&self, finish: Option<Finish>) -> Option<&str> {
        self.ending.stopped_by.as_deref().filter(|_| finish == Some(Finish::Stop))
    }

    /// Why it ended, as OpenAI and vLLM say it.
    pub(crate) fn end(&self, progress: &Progress) -> End<'_> {
        End {
            finish: Some(self.reason(progress.finish)),
            stop_reason: self.stopped_by(progress.finish),
            usage: None,
        }
    }
}

/// How long an answer may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) prompt: Tokens,
    pub(crate) max_tokens: Tokens,
    pub(crate) min_tokens: Tokens,
    pub(crate) ignore_eos: bool,
}

impl Answer {
    /// In which form the answer's head reports the load, if it does: as in vLLM, if it is not that of a
    /// stream, and is a chat's or a completion's.
    pub(crate) fn load_report(&self) -> Option<orca::Format> {
        let reports = matches!(self.format, Format::Chat(_) | Format::Completions(_));
        self.load_report.filter(|_| reports && !self.is_stream)
    }

    /// What the engine is told of a lane.
    pub(crate) fn job(&self, lane: usize, id: JobId) -> Job {
        let lane = &self.lanes[lane];
        Job {
            id,
            prompt: lane.prompt,
            max_tokens: lane.max_tokens,
            stop_after: lane.stop_after,
            priority: self.priority,
            chain: lane.chain.clone(),
        }
    }

    /// The ids of a lane's tokens. It allocates nothing but for the name of a function in a model's
    /// own vocabulary, where it has no id of its own: then it is that of its first token.
    pub(crate) fn ids(&self, lane: usize, range: Range<u32>) -> impl Iterator<Item = u32> + Clone {
        let (output, tokenizer) =
            (self.lanes[lane].made(), &self.served.models[self.model].tokenizer);
        range.map(move |k| match (output.token(k), tokenizer) {
            (Token::Id(u32::MAX), Tokenizer::Model(model)) => {
                model.ids(output.piece(k)).first().copied().unwrap_or_default()
            }
            (Token::Id(id), _) => id,
            (Token::Piece(piece), _) => token_ids::id(piece),
        })
    }

    /// The lanes of the same prompt, a lane itself among them.
    pub(crate) fn choices_beside(&self, lane: usize) -> Range<usize> {
        let begins = |lane: &usize| self.lanes[*lane].counts_prompt;
        let first = (0..=lane).rev().find(begins).unwrap_or(0);
        let end = (lane + 1..self.lanes.len()).find(begins).unwrap_or(self.lanes.len());
        first..end
    }

    /// What one lane has taken so far: the prompt as if it were alone.
    pub(crate) fn usage_of(&self, lane: usize, completion: Tokens, cached: Tokens) -> Usage {
        self.lanes[lane].usage(completion, cached)
    }

    /// What all lanes have taken: each prompt once, and every token of every lane.
    pub(crate) fn usage(&self, progress: &Lanes<Progress>) -> Usage {
        let mut usage = Usage::default();
        for (lane, progress) in self.lanes.iter().zip(progress.iter()) {
            if lane.counts_prompt {
                usage.prompt += lane.prompt;
                usage.cached += progress.cached;
            }
            usage.completion += progress.released;
            usage.reasoning += lane.output.reasoning_in(progress.released);
        }
        usage
    }

    /// An engine's refusal of a lane, as the client sees it.
    pub(crate) fn refused(&self, lane: usize, why: Refusal) -> ApiError {
        let (lane, model) = (&self.lanes[lane], &self.served.models[self.model]);
        match why {
            Refusal::QueueFull => ApiError::overloaded(1),
            Refusal::Down => ApiError::down(1),
            Refusal::PromptTooLong => {
                ApiError::context_length_exceeded(model.context.get(), lane.prompt.get(), None)
            }
            Refusal::NeverFits => {
                let needed = u64::from(lane.prompt.get()) + u64::from(lane.max_tokens.get());
                ApiError::never_fits(model.kv_tokens(), needed)
            }
        }
    }
}

/// An answer whose tokens are decided, but have not been gone through.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) answer: Box<Answer>,
    /// With prefix caching, of each lane: the keys of its prompt, to be continued with those of the
    /// output. Without, they may be left out.
    pub(crate) chains: Vec<Option<Chain>>,
    /// Strings that end a lane.
    pub(crate) stops: Vec<String>,
    /// The string that ended it stays.
    pub(crate) keeps_match: bool,
    /// What so many tokens complete does not end it.
    pub(crate) min_tokens: Tokens,
}

impl Draft {
    /// Refuses what is not to be streamed and too long for one body: a small request can ask for
    /// gigabytes, with many choices that each echo it.
    pub(crate) fn check_size(&self) -> Result<(), ApiError> {
        let answer = &self.answer;
        let longest = answer.lanes.iter().map(|lane| u64::from(lane.longest().get())).sum();
        let bytes = answer.format.bytes(longest);
        if answer.is_stream || bytes <= MOST_BYTES {
            return Ok(());
        }
        let why = format!(
            "in one body this answer could have about {bytes} bytes; the most are {MOST_BYTES}. Ask \
             for a stream ('stream': true), for fewer choices, or for fewer tokens."
        );
        Err(ApiError::invalid_value("stream", &why))
    }

    /// Goes through the tokens; a helper thread does it if they are many. However small a request
    /// is, its answer may fill the context.
    pub(crate) async fn finish(self, helper: &Helper) -> Box<Answer> {
        let is_keyed = self.chains.iter().any(Option::is_some);
        let learns = self.answer.format.tells_ids();
        let passes = (self.stops.len() + usize::from(is_keyed) + usize::from(learns)) as u64;
        let tokens: u64 =
            self.answer.lanes.iter().map(|lane| u64::from(lane.longest().get())).sum();
        let work = passes * tokens;
        // The memory of ids is for helpers alone.
        if learns || work > u64::from(MOST_TOKENS_INLINE) {
            helper::run(helper, Length::of_tokens(work), move || self.complete()).await
        } else {
            self.complete()
        }
    }

    pub(crate) fn complete(self) -> Box<Answer> {
        let Self { mut answer, chains, stops, keeps_match, min_tokens } = self;
        let mut chains = chains.into_iter();
        let stops = Stops { strings: &stops, keeps_match, after: min_tokens };
        for lane in answer.lanes.iter_mut() {
            if !stops.strings.is_empty() {
                lane.stop(&stops);
            }
            // What a next turn finds in the prefix cache are the tokens as the engine makes them,
            // not what each of them adds to the text.
            lane.chain = chains.next().flatten().map(|mut chain| {
                for k in 0..lane.longest().get() {
                    chain.push_token(lane.made().token(k));
                }
                chain.into_keys().into_iter().map(BlockHash).collect()
            });
        }
        if answer.format.tells_ids() {
            answer.learn();
        }
        answer
    }
}

impl Answer {
    /// Remembers the tokens whose ids are told, so that `/detokenize` knows them. Of more than can be
    /// remembered, the first.
    fn learn(&self) {
        let mut left = token_ids::REMEMBERED;
        for lane in self.lanes.iter() {
            let tokens = (lane.longest().get() as usize).min(left);
            left -= tokens;
            for k in 0..tokens as u32 {
                if let Token::Piece(piece) = lane.made().token(k) {
                    self.served.vocabulary.learn(piece);
                }
            }
        }
    }
}

impl Lane {
    fn stop(&mut self, stops: &Stops<'_, String>) {
        let output = self.output.clone();
        let (output, by) = stop::apply_to(output, self.longest(), stops);
        self.made = Some(Box::new(std::mem::replace(&mut self.output, output)));
        if let Some(by) = by {
            self.stop_after = Some(self.output.len());
            self.ending = Ending {
                reason: FinishReason::Stop,
                stopped_by: Some(stops.strings[by].as_str().into()),
            };
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use llmsim_engine::text::output::{Beyond, Call, Kind};
    use llmsim_engine::text::script::{PieceTable, Script};

    use super::*;
    use crate::api::chat;

    /// Thinks for 2 tokens, says 3, and calls a tool: its name and 7 of its arguments.
    pub(in crate::api) fn thinking_talking_calling() -> Output {
        let script =
            |text: &str| Script::from_table("x".into(), Arc::new(PieceTable::new(text.to_owned())));
        let call = Call { index: 0, id: "call_1".into(), name: "weather".into() };
        let parts = vec![
            (Kind::Reasoning, script("Hm.")),
            (Kind::Content, script("I look.")),
            // The name is a token of its own, as it would not be in front of a brace.
            (Kind::ToolCall(call), script("weather{\"city\": \"Oslo\"}")),
        ];
        Output::new(parts, Beyond::Silence)
    }

    /// An answer of one lane that says `output` under a limit.
    pub(in crate::api) fn answer(output: Output, limit: u32, format: Format) -> Answer {
        let limits = Limits {
            prompt: Tokens::new(8),
            max_tokens: Tokens::new(limit),
            min_tokens: Tokens::ZERO,
            ignore_eos: false,
        };
        let lane = Lane::new(output, FinishReason::ToolCalls, &limits);
        Answer {
            model: 0,
            is_stream: true,
            wants_timing: false,
            load_report: None,
            priority: 0,
            rank: None,
            lanes: Lanes::of([lane]),
            format,
            served: chat::tests::served(),
            adapter: None,
        }
    }

    /// All of an answer's stream, with 4 tokens of its prompt cached, and its whole body.
    pub(in crate::api) fn said(answer: &Answer) -> (String, String) {
        let lane = answer.lanes.first();
        let released = lane.longest();
        let finish = if lane.stop_after.is_some() { Finish::Stop } else { Finish::Length };
        let cached = Tokens::new(4);
        let progress = Progress { cached, released, finish: Some(finish) };
        let all = Lanes::of([progress]);
        let (format, mut out) = (&answer.format, Vec::new());
        format.open_stream(answer, &mut out);
        format.open_lane(answer, 0, &mut out);
        (0..released.get()).for_each(|k| format.token(answer, 0, k, cached, &mut out));
        format.end_lane(answer, 0, &progress, &mut out);
        format.end_stream(answer, &all, None, &mut out);
        let body = format.whole_body(answer, &all, None);
        (String::from_utf8(out).unwrap(), String::from_utf8(body).unwrap())
    }
}
