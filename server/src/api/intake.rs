//! The way in that all generating routes share: from a body to a draft, or to a refusal.
//!
//! Each route brings the function that reads its body; here is where it runs, and what every answer
//! is checked for. The invariant: nothing is decided here that depends on the route.

use std::borrow::Cow;
use std::num::IntErrorKind;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use aho_corasick::{AhoCorasick, MatchKind};
use llmsim_engine::text::model_tokenizer::{ModelTokenizer, Token, Tokenizer};
use llmsim_engine::text::prompt::{Chain, ChainSpec, End, Message, PromptReader};
use llmsim_engine::text::tokenizer;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{self, PromptEnd, Side, Truncation};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::inputs::Input;
use llmsim_engine::wire::orca;
use llmsim_engine::wire::tools::Tools;
use llmsim_engine::wire::within_floats;
use memchr::memmem;

use super::answer::{Answer, Draft, Format, Lane, Limits};
use super::words;
use crate::api;
use crate::clock;
use crate::helper::{self, Length};
use crate::http::head::Head;
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::served::{Model, Served};

/// The longest body that is read on the I/O thread, where all that is done is lag for every other
/// stream of the thread. Reading, matching and counting 32 KB takes 0.12 ms, 64 KB 0.24 ms (one
/// core of a server, prefix caching on), and an echo as much again.
const LONGEST_INLINE: usize = 32 * 1024;

/// The same if a model has a real one's tokenizer: byte-level BPE with Qwen's pattern takes 0.19 ms for
/// 1 KiB of prose, 0.9 ms for 4 KiB, 9 ms for 32 KiB (Hugging Face's own build, one busy core,
/// 2026-12): some fifty times as long as ours.
const LONGEST_INLINE_OF_A_MODEL: usize = 512;

/// The limit for any request: which model is meant, only the body says.
fn longest_inline(served: &Served) -> usize {
    let limits = served.models.iter().map(|model| match &model.tokenizer {
        Tokenizer::Regex => LONGEST_INLINE,
        Tokenizer::Model(tokenizer) if tokenizer.has_filler_words() => LONGEST_INLINE_OF_A_MODEL,
        // A short request may want a filler that has to be cut.
        Tokenizer::Model(_) => 0,
    });
    limits.min().unwrap_or(LONGEST_INLINE)
}

/// Words that lead to values being drawn from a schema or a pattern.
const DRAWN: [&str; 3] = ["schema", "parameters", "structured_outputs"];

/// Fields of vLLM's that name ids, or want them.
const OF_IDS: [&str; 3] = ["token_ids", "prompt_logprobs", "return_logprob"];

/// Words with which a conversation that is kept here goes on.
const GOES_BACK: [&str; 2] = ["previous_response_id", "item_reference"];

/// Words which together ask for the scores of a prompt.
const SCORED: [&str; 2] = ["echo", "logprobs"];

/// How the escape of an ASCII character begins.
const ESCAPE: &str = "\\u00";

/// All that is looked for in every body: one search finds nothing of it in nearly all of them.
static WORDS: LazyLock<AhoCorasick> = LazyLock::new(|| {
    let words = DRAWN.iter().chain(&OF_IDS).chain(&GOES_BACK).chain(&SCORED).chain([&ESCAPE]);
    // Only searches for the leftmost of them go sixteen bytes at a time.
    let mut builder = AhoCorasick::builder();
    builder.match_kind(MatchKind::LeftmostFirst);
    builder.build(words).expect("a few short words fit into any automaton")
});

/// Whether a body certainly asks for nothing that may take longer than its length says, or that is for
/// helpers alone.
fn is_plain(body: &[u8]) -> bool {
    !has_list_of_numbers(body) && !WORDS.is_match(body)
}

/// Words of a schema, or of a request with one, with which a small body can ask for much work: up to
/// [`llmsim_engine::text::schema`]'s budget for every value, a call or a choice each.
const LABORIOUS: [&[u8]; 11] = [
    b"\"$ref\"",
    b"\"allOf\"",
    b"\"anyOf\"",
    b"\"oneOf\"",
    b"\"not\"",
    b"\"if\"",
    b"\"enum\"",
    b"\"uniqueItems\"",
    b"attern",
    b"\"regex\"",
    b"\"n\"",
];

/// Whether drawing what a body asks for may take longer than its length says. The words are searched
/// in the raw bytes, so a chat that only speaks of such things goes the long way too, which costs it
/// a hand-over and nothing else.
fn may_draw_long(body: &[u8]) -> bool {
    let has_laborious = |word: &&[u8]| memmem::find(body, word).is_some();
    escapes_ascii(body) || has_any(body, &DRAWN) && LABORIOUS.iter().any(has_laborious)
}

/// Whether a body may name tokens by their ids, or want them: an array of numbers, or one of vLLM's
/// fields. The memory of ids is for helpers alone.
fn may_touch_ids(body: &[u8]) -> bool {
    has_list_of_numbers(body) || has_any(body, &OF_IDS)
}

fn has_list_of_numbers(body: &[u8]) -> bool {
    let is_number = |at: usize| {
        let inside = body[at + 1..].iter().find(|byte| !byte.is_ascii_whitespace());
        inside.is_some_and(u8::is_ascii_digit)
    };
    memchr::memchr_iter(b'[', body).any(is_number)
}

/// Whether a body may go on with a conversation that is kept here, which may be any number of times
/// longer.
fn may_go_back(body: &[u8]) -> bool {
    has_any(body, &GOES_BACK)
}

/// Whether the scores of a whole prompt may be wanted: 1.2 us for each of its tokens.
fn may_score_prompt(body: &[u8]) -> bool {
    body.len() > LONGEST_SCORED_INLINE && SCORED.iter().all(|word| has_any(body, &[word]))
}

/// With its tokens scored: at most 0.3 ms.
const LONGEST_SCORED_INLINE: usize = 1024;

/// Whether a body may have any of these words, in whatever spelling.
fn has_any(body: &[u8], words: &[&str]) -> bool {
    let has = |word: &&str| memmem::find(body, word.as_bytes()).is_some();
    words.iter().any(has) || escapes_ascii(body)
}

/// Whether an ASCII letter or sign is spelled as an escape: no client does, unless to hide it.
fn escapes_ascii(body: &[u8]) -> bool {
    let Some(first) = memchr::memchr(b'\\', body) else { return false };
    let body = &body[first..];
    let mut escapes = memmem::find_iter(body, ESCAPE);
    escapes.any(|at| matches!(body.get(at + ESCAPE.len()), Some(b'2'..=b'7')))
}

/// Reads a route's bodies.
pub(super) type Prepare = fn(&[u8], &Arc<Served>, &mut Naming) -> Result<Draft, ApiError>;

/// How an answer is called. The id is taken by an answer, not by a refusal.
pub(super) struct Naming {
    pub(super) id: String,
    /// The client's `x-request-id` wins over its `request_id` (vLLM's order).
    pub(super) is_final: bool,
    pub(super) created: u64,
    /// The client wants to know when things happened.
    pub(super) wants_timing: bool,
    /// A gateway wants to know how much there is to do here.
    load_report: Option<orca::Format>,
    /// vLLM's `X-Vllm-Priority`, where it is a number.
    priority: Option<i64>,
    /// vLLM's `X-data-parallel-rank`, where it is a number.
    rank: Option<i64>,
}

/// Answers that are kept by their ids. A header that gateways and retries send again must not name
/// them, and neither OpenAI nor vLLM lets it.
const KEPT: &str = "resp_";

/// The header with which a client asks when things happened.
const TIMING: &str = "x-llmsim-timing";

/// The header with which a gateway sets a priority.
const PRIORITY: &str = "x-vllm-priority";

/// The header with which a gateway chooses a replica.
const RANK: &str = "x-data-parallel-rank";

/// The header with which a gateway asks for a report of the load.
const LOAD_FORMAT: &str = "endpoint-load-metrics-format";

/// What Python's `int` makes of a header, as far as 64 bits go; nothing of what is no number.
fn number_in(head: &Head, name: &str) -> Option<i64> {
    let number: Result<i64, _> = head.headers.text(name)?.trim().parse();
    match number.as_ref().map_err(|error| error.kind()) {
        Ok(&number) => Some(number),
        Err(IntErrorKind::PosOverflow) => Some(i64::MAX),
        Err(IntErrorKind::NegOverflow) => Some(i64::MIN),
        Err(_) => None,
    }
}

impl Naming {
    fn new(io: &Io, head: &Head, id: &RequestId, prefix: &str) -> Self {
        let is_final = id.from_client && prefix != KEPT;
        Self {
            id: if is_final { format!("{prefix}{}", id.as_str()) } else { io.make_id(prefix) },
            is_final,
            created: clock::unix_seconds(),
            wants_timing: head.headers.text(TIMING) == Some("1"),
            load_report: head.headers.text(LOAD_FORMAT).and_then(orca::Format::asked),
            priority: number_in(head, PRIORITY),
            rank: number_in(head, RANK),
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            is_final: true,
            created: 0,
            wants_timing: false,
            load_report: None,
            priority: None,
            rank: None,
        }
    }

    /// How an answer is wanted that the body asks to be a stream, or not.
    pub(super) fn manner(&self, is_stream: bool) -> Manner {
        let Self { wants_timing, load_report, .. } = *self;
        Manner { is_stream, wants_timing, load_report }
    }

    /// Takes the id that the body has, unless the headers had one.
    pub(super) fn asked(&mut self, prefix: &str, id: Option<&str>) {
        if let Some(id) = id.filter(|_| !self.is_final) {
            self.id = format!("{prefix}{id}");
        }
    }
}

/// Reads a body into an answer; `prefix` begins its id.
pub(super) async fn answer(
    io: &Io,
    head: &Head,
    body: Vec<u8>,
    id: &RequestId,
    prefix: &str,
    prepare: Prepare,
) -> Result<Box<Answer>, ApiError> {
    let naming = enter(io, head, id, prefix)?;
    let served = Arc::clone(&io.served);
    let is_plain = is_plain(&body);
    let takes_long = !is_plain && (may_draw_long(&body) || may_go_back(&body));
    let is_for_helper =
        !is_plain && (takes_long || may_touch_ids(&body) || may_score_prompt(&body));
    let prepared = if body.len() <= longest_inline(&served) && !is_for_helper {
        read(&body, &served, naming, prepare)
    } else {
        let length = match takes_long {
            true => Length::Long,
            false => Length::of_bytes(body.len()),
        };
        helper::run(&io.helper, length, move || read(&body, &served, naming, prepare)).await
    };
    leave(io, head, prepared).await
}

/// Reads a body. A number that no float holds is not a fault of syntax, so that what is wrong with
/// it is told as of other numbers.
fn read(
    body: &[u8],
    served: &Arc<Served>,
    mut naming: Naming,
    prepare: Prepare,
) -> Result<Draft, ApiError> {
    match prepare(body, served, &mut naming) {
        Err(error) if is_unparsed(&error) => match within_floats(body) {
            Some(body) => prepare(&body, served, &mut naming),
            None => Err(error),
        },
        prepared => prepared,
    }
}

/// Whether a body was no JSON.
fn is_unparsed(error: &ApiError) -> bool {
    error.status == 400 && error.param.is_none() && error.code.is_none()
}

/// A body that is no JSON and does not claim to be: the type is the better hint.
pub(super) fn hint_at_type(error: ApiError, head: &Head) -> ApiError {
    match head.headers.text("content-type") {
        Some(kind) if is_unparsed(&error) && !kind.to_ascii_lowercase().contains("json") => {
            ApiError::unsupported_media_type(kind)
        }
        _ => error,
    }
}

/// The same where reading the body takes long whatever its size: always on a helper thread.
pub(super) async fn answer_slowly(
    io: &Io,
    head: &Head,
    body: Vec<u8>,
    id: &RequestId,
    prefix: &str,
    prepare: Prepare,
) -> Result<Box<Answer>, ApiError> {
    let naming = enter(io, head, id, prefix)?;
    let served = Arc::clone(&io.served);
    // With a vector of 0.1 ms for every few bytes, 512 bytes are short.
    let length = Length::of_bytes(64 * body.len());
    let prepared =
        helper::run(&io.helper, length, move || read(&body, &served, naming, prepare)).await;
    leave(io, head, prepared).await
}

fn enter(io: &Io, head: &Head, id: &RequestId, prefix: &str) -> Result<Naming, ApiError> {
    if io.served.sleep.is_asleep() {
        return Err(ApiError::asleep());
    }
    Ok(Naming::new(io, head, id, prefix))
}

async fn leave(
    io: &Io,
    head: &Head,
    prepared: Result<Draft, ApiError>,
) -> Result<Box<Answer>, ApiError> {
    match prepared {
        Ok(draft) => {
            draft.check_size()?;
            Ok(draft.finish(&io.helper).await)
        }
        Err(error) => Err(hint_at_type(error, head)),
    }
}

/// The model that a request is for.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    served: &'a Arc<Served>,
    /// Its place in the configuration.
    place: usize,
    pub(super) model: &'a Model,
    /// The name by which it was asked for: its own or an adapter's.
    name: &'a str,
    priority: i32,
    /// Its number among the replicas that are served here, if a gateway has chosen one.
    rank: Option<usize>,
}

/// How an answer is wanted.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    is_stream: bool,
    wants_timing: bool,
    load_report: Option<orca::Format>,
}

impl<'a> Asked<'a> {
    /// The model of that name, if it looks at priorities or none was asked for.
    pub(super) fn find(
        served: &'a Arc<Served>,
        name: &'a str,
        priority: i32,
    ) -> Result<Self, ApiError> {
        let (place, model) = api::find_model(served, name)?;
        if priority != 0 && !model.takes_priority {
            return Err(ApiError::invalid_value(
                "priority",
                "this model does not schedule by priority. Leave 'priority' out, or set the \
                 model's scheduling policy to 'priority'.",
            ));
        }
        Ok(Self { served, place, model, name, priority, rank: None })
    }

    /// The same under what a gateway has put into the headers: a priority there wins over that of the
    /// body, and a rank chooses the replica. vLLM reads them on the routes of chat, completions,
    /// responses and messages (generate/base/serving.py), and refuses a rank that there is not
    /// (v1/engine/input_processor.py).
    pub(super) fn through_gateway(
        served: &'a Arc<Served>,
        name: &'a str,
        priority: i32,
        naming: &Naming,
    ) -> Result<Self, ApiError> {
        let priority = match naming.priority {
            Some(number) => number.clamp(i32::MIN.into(), i32::MAX.into()) as i32,
            None => priority,
        };
        let asked = Self::find(served, name, priority)?;
        let Some(number) = naming.rank else { return Ok(asked) };
        let ranks = asked.model.replicas().len();
        match usize::try_from(number).ok().filter(|&rank| rank < ranks) {
            Some(rank) => Ok(Self { rank: Some(rank), ..asked }),
            None => {
                let why = match ranks {
                    1 => "the model has one replica here, and its rank is 0.".to_owned(),
                    _ => format!("the model has {ranks} replicas here, ranks 0 to {}.", ranks - 1),
                };
                Err(ApiError::invalid_value(RANK, &why))
            }
        }
    }

    /// An answer of it. An adapter counts as in use as long as it lives.
    pub(super) fn answer(self, manner: Manner, lanes: Lanes<Lane>, format: Format) -> Box<Answer> {
        let is_own = self.model.name == self.name;
        Box::new(Answer {
            model: self.place,
            is_stream: manner.is_stream,
            wants_timing: manner.wants_timing,
            load_report: manner.load_report,
            priority: self.priority,
            rank: self.rank,
            lanes,
            format,
            served: Arc::clone(self.served),
            adapter: if is_own { None } else { self.served.adapters.lease(self.name) },
        })
    }
}

/// How long an answer to `prompt` tokens may be; all the rest of the context if nothing is asked.
pub(super) fn limits(
    model: &Model,
    prompt: Tokens,
    asked: Option<Tokens>,
    field: &'static str,
) -> Result<Limits, ApiError> {
    let room = model.context.get().saturating_sub(prompt.get());
    if room == 0 || asked.is_some_and(|asked| asked.get() > room) {
        return Err(too_long(model, prompt, asked, field));
    }
    let max_tokens = asked.unwrap_or(Tokens::new(room));
    Ok(Limits { prompt, max_tokens, min_tokens: Tokens::ZERO, ignore_eos: false })
}

/// The refusal of a prompt that, with an answer of the length asked for, is over the context.
pub(super) fn too_long(
    model: &Model,
    prompt: Tokens,
    asked: Option<Tokens>,
    field: &'static str,
) -> ApiError {
    let (context, asked) = (model.context.get(), asked.map(Tokens::get));
    ApiError::context_length_exceeded_by(field, context, prompt.get(), asked)
}

/// A prompt that was counted.
pub(super) struct Counted {
    pub(super) tokens: Tokens,
    /// With prefix caching: the keys of its blocks.
    pub(super) chain: Option<Chain>,
}

/// A conversation as a prompt: the definitions of its tools, if there are any, are its first message.
pub(super) struct Conversation<'a> {
    model: &'a Model,
    definitions: Option<String>,
    messages: &'a [chat::Message<'a>],
    /// What its prompt ends with.
    pub(super) end: End,
    /// Of its tokens, those that are left of it.
    pub(super) kept: Range<u32>,
}

impl<'a> Conversation<'a> {
    pub(super) fn new(
        model: &'a Model,
        tools: &Tools<'_>,
        messages: &'a [chat::Message<'a>],
    ) -> Self {
        let definitions = words::definitions(tools);
        Self { model, definitions, messages, end: End::AnswerBegins, kept: 0..u32::MAX }
    }

    /// The same with another end.
    pub(super) fn ending(self, end: PromptEnd) -> Self {
        let end = match end {
            PromptEnd::AnswerBegins => End::AnswerBegins,
            PromptEnd::Closed => End::Closed,
            PromptEnd::Open => End::Open,
        };
        Self { end, ..self }
    }

    /// Cuts it, if `truncation` says so.
    pub(super) fn cut(mut self, truncation: Option<Truncation>) -> Result<Self, ApiError> {
        if let Some(truncation) = truncation {
            let whole = PromptReader::with(&self.model.tokenizer, self.messages(), None);
            let tokens = whole.ending(self.end).finish().tokens();
            self.kept = kept(self.model, truncation, tokens.get())?;
        }
        Ok(self)
    }

    /// Its messages, that of the tools in front.
    pub(super) fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let first = self.definitions.as_deref();
        let first = first.map(|content| Message { role: chat::Role::System.as_str(), content });
        first.into_iter().chain(
            self.messages
                .iter()
                .map(|message| Message { role: message.role.as_str(), content: &message.content }),
        )
    }

    /// Counts it. `asked` is the name by which the model was asked for.
    pub(super) fn count(&self, served: &Served, asked: &str, salt: Option<&str>) -> Counted {
        let salt = salt_of(served, self.model, asked, salt);
        let blocks = self.model.cached_blocks;
        let chain = blocks.map(|block_size| ChainSpec { block_size, salt: salt.as_deref() });
        let reader = PromptReader::with(&self.model.tokenizer, self.messages(), chain);
        let prompt = reader.ending(self.end).keeping(self.kept.clone()).finish();
        Counted { tokens: prompt.tokens(), chain: prompt.into_chain() }
    }
}

/// Which of `tokens` stay.
fn kept(model: &Model, truncation: Truncation, tokens: u32) -> Result<Range<u32>, ApiError> {
    let context = model.context.get();
    let most = match truncation.most.map(Tokens::get) {
        // Room for one token of an answer.
        None => context.saturating_sub(1),
        Some(most) if most > context => {
            let why = format!("the model's context has {context} tokens; send at most so many.");
            return Err(ApiError::invalid_value("truncate_prompt_tokens", &why));
        }
        Some(most) => most,
    };
    Ok(match truncation.side {
        Side::Left => tokens.saturating_sub(most)..tokens,
        Side::Right => 0..most.min(tokens),
    })
}

/// What is left of a plain prompt.
pub(super) fn cut<'a>(
    model: &Model,
    input: &'a Input<'a>,
    truncation: Option<Truncation>,
) -> Result<Cow<'a, Input<'a>>, ApiError> {
    let Some(truncation) = truncation else { return Ok(Cow::Borrowed(input)) };
    let of_ids = |ids: &[u32]| {
        let kept = kept(model, truncation, u32::try_from(ids.len()).unwrap_or(u32::MAX))?;
        Ok(Cow::Owned(Input::Ids(ids[kept.start as usize..kept.end as usize].to_vec())))
    };
    match (input, &model.tokenizer) {
        (Input::Ids(ids), _) => of_ids(ids),
        (Input::Text(text), Tokenizer::Model(tokenizer)) => of_ids(&tokenizer.ids(text)),
        (Input::Text(text), Tokenizer::Regex) => {
            let kept = kept(model, truncation, tokenizer::count(text).get())?;
            let bytes = |pieces: u32| -> usize {
                tokenizer::pieces(text).take(pieces as usize).map(str::len).sum()
            };
            let text = &text[bytes(kept.start)..bytes(kept.end)];
            Ok(Cow::Owned(Input::Text(Cow::Borrowed(text))))
        }
    }
}

/// Refuses ids that the model's vocabulary does not have, as vLLM does; `field` is what they stand in.
pub(super) fn in_vocabulary(
    model: &Model,
    inputs: &[Input<'_>],
    field: &str,
) -> Result<(), ApiError> {
    let Tokenizer::Model(tokenizer) = &model.tokenizer else { return Ok(()) };
    for (at, input) in inputs.iter().enumerate() {
        let Input::Ids(ids) = input else { continue };
        if let Some(place) = tokenizer.unknown(ids) {
            let param = match inputs.len() {
                1 => format!("{field}[{place}]"),
                _ => format!("{field}[{at}][{place}]"),
            };
            let why = format!(
                "token id {} is out of the model's vocabulary; /tokenize gives those of a text.",
                ids[place]
            );
            return Err(ApiError::invalid_value(param, &why));
        }
    }
    Ok(())
}

/// A plain prompt and its text, without a template around it. `suffix` is counted behind it.
pub(super) fn plain<'a>(
    served: &Served,
    (model, asked): (&Model, &str),
    salt: Option<&str>,
    input: &'a Input<'_>,
    suffix: &str,
) -> (Cow<'a, str>, Counted) {
    let text = text_of(served, model, input);
    let salt = salt_of(served, model, asked, salt);
    let mut chain = model
        .cached_blocks
        .map(|block_size| Chain::new(&ChainSpec { block_size, salt: salt.as_deref() }));
    let mut tokens = 0u32;
    let mut count = |token: Token<'_>| {
        tokens += 1;
        if let Some(chain) = &mut chain {
            chain.push_token(token);
        }
    };
    if let Tokenizer::Model(tokenizer) = &model.tokenizer {
        let mut read = |ids: &[u32]| ids.iter().for_each(|&id| count(Token::Id(id)));
        match input {
            Input::Text(text) => read(&tokenizer.ids(text)),
            Input::Ids(ids) => read(ids),
        }
        read(&tokenizer.ids(suffix));
        return (text, Counted { tokens: Tokens::new(tokens), chain });
    }
    let mut read = |piece: &str| count(Token::Piece(piece));
    match input {
        Input::Text(text) => tokenizer::pieces(text).for_each(&mut read),
        Input::Ids(ids) => {
            for &id in ids {
                match served.vocabulary.piece(id) {
                    Some(piece) => read(&piece),
                    None => read(&unknown(id)),
                }
            }
        }
    }
    tokenizer::pieces(suffix).for_each(read);
    (text, Counted { tokens: Tokens::new(tokens), chain })
}

/// The text of an input. Of token ids, that of those which the model's vocabulary has, or without
/// one, which this server has given.
pub(super) fn text_of<'a>(served: &Served, model: &Model, input: &'a Input<'_>) -> Cow<'a, str> {
    match (input, &model.tokenizer) {
        (Input::Text(text), _) => Cow::Borrowed(text),
        (Input::Ids(ids), Tokenizer::Model(tokenizer)) => text_of_ids(tokenizer, ids).into(),
        (Input::Ids(ids), Tokenizer::Regex) => {
            let mut text = String::new();
            for &id in ids {
                match served.vocabulary.piece(id) {
                    Some(piece) => text.push_str(&piece),
                    None => text.push_str(&unknown(id)),
                }
            }
            Cow::Owned(text)
        }
    }
}

fn text_of_ids(tokenizer: &ModelTokenizer, ids: &[u32]) -> String {
    tokenizer.text(ids).unwrap_or_else(|_| {
        let one = |&id: &u32| tokenizer.text(&[id]).unwrap_or_else(|_| unknown(id));
        ids.iter().map(one).collect()
    })
}

/// What stands for an id that nobody knows.
fn unknown(id: u32) -> String {
    format!("<|{id}|>")
}

/// Prefixes are shared only under the same salt, and by an adapter only with itself: vLLM has its name
/// and its path in the keys of blocks, so that one loaded in place from elsewhere finds none.
fn salt_of<'a>(
    served: &Served,
    model: &Model,
    asked: &str,
    salt: Option<&'a str>,
) -> Option<Cow<'a, str>> {
    if model.name == asked {
        return salt.map(Cow::Borrowed);
    }
    let path = served.adapters.get(asked).map(|adapter| adapter.path).unwrap_or_default();
    Some(Cow::Owned(format!("{asked}\0{path}\0{}", salt.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_body_that_may_ask_for_much_is_read_elsewhere() {
        let chat = |more: &str| format!(r#"{{"model":"m","messages":[]{more}}}"#).into_bytes();
        let schema = |inner: &str| {
            chat(&format!(
                r#","response_format":{{"type":"json_schema","json_schema":{{"schema":{inner}}}}}"#
            ))
        };
        // Many choices, plain objects and French are no work.
        assert!(!may_draw_long(&chat(r#","n":128"#)));
        assert!(!may_draw_long(&chat(r#","user":"Ren\u00e9""#)));
        assert!(!may_draw_long(&schema(r#"{"type":"object","required":["a"]}"#)));
        // References, alternatives and patterns may be, however they are spelled.
        assert!(may_draw_long(&schema(r##"{"$ref":"#/$defs/a"}"##)));
        assert!(may_draw_long(&schema(r#"{"patternProperties":{"(a+)+":{}}}"#)));
        assert!(may_draw_long(&schema(r#"{"\u0061nyOf":[]}"#)));
        assert!(may_draw_long(&chat(r#","structured_outputs":{"regex":"(a|b)*"}"#)));
        let tool = r#","tools":[{"function":{"name":"f","parameters":{"allOf":[]}}}]"#;
        assert!(may_draw_long(&chat(tool)));
    }

    #[test]
    fn what_is_found_in_a_body_is_not_plain() {
        let plain = r#"{"model":"m","messages":[{"role":"user","content":"Ça va?\n"}],"n":1}"#;
        assert!(is_plain(plain.as_bytes()));
        let words = DRAWN.iter().chain(&OF_IDS).chain(&GOES_BACK).chain(&SCORED);
        for word in words.chain(&[ESCAPE, "[ 1"]) {
            assert!(!is_plain(format!(r#"{{"a":"{word}"}}"#).as_bytes()), "{word}");
        }
    }

    #[test]
    fn a_body_with_token_ids_is_read_by_a_helper_since_only_helpers_take_their_memory() {
        for ids in [
            r#"{"prompt":[1,2]}"#,
            r#"{"prompt":[[ 1],"a"]}"#,
            "{\"text\":[\"a\",\n[\n1]]}",
            r#"{"messages":[],"return_token_ids":true}"#,
            r#"{"messages":[],"prompt_\u006cogprobs":1}"#,
        ] {
            assert!(may_touch_ids(ids.as_bytes()), "{ids}");
        }
        for none in [r#"{"prompt":["a","b"],"n":1,"stop":[]}"#, r#"{"messages":[{"n":[{}]}]}"#] {
            assert!(!may_touch_ids(none.as_bytes()), "{none}");
        }
    }

    #[test]
    fn a_prompt_to_be_scored_is_read_by_a_helper_though_it_is_not_long() {
        let body = |prompt: &str, more: &str| format!(r#"{{"prompt":"{prompt}"{more}}}"#);
        let scored = r#","echo":true,"logprobs":1"#;
        let long = "a ".repeat(1000);
        assert!(may_score_prompt(body(&long, scored).as_bytes()));
        assert!(!may_score_prompt(body("a ", scored).as_bytes()));
        assert!(!may_score_prompt(body(&long, r#","echo":true"#).as_bytes()));
    }
}
