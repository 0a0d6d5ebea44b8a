//! `POST /v1/embeddings`: vectors at once, and an answer when the engine has read the inputs.
//!
//! Each input is a job that ends with its first token, as vLLM's pooling models end with prefill: it
//! takes the time that its prompt takes, and shows as load. The invariant: which vector a text gets
//! does not depend on when.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use llmsim_engine::text::embedding::{self, DIMENSIONS};
use llmsim_engine::text::output::Output;
use llmsim_engine::text::script::{PieceTable, Script};
use llmsim_engine::text::tokenizer;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::Message;
use llmsim_engine::wire::embeddings::{EmbeddingRequest, Inputs, write_body, write_vector};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::tools::Tools;
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Answer, Draft, Format, Lane, Limits};
use super::chat::append_timing;
use super::intake::{self, Asked, Conversation, Counted, Naming};
use crate::api::{self, Reply};
use crate::http::head::Head;
use crate::http::response::RequestId;
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;

/// The beginning of an answer's id.
const PREFIX: &str = "embd-";

/// Vectors that wait for the engine.
#[derive(Debug)]
pub(crate) struct Embeddings {
    /// Rendered with the request, on a helper thread; taken when it is sent.
    body: RefCell<Vec<u8>>,
}

/// Answers a request for embeddings.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer_slowly(io, head, body, id, PREFIX, prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = EmbeddingRequest::parse(body, DIMENSIONS)?;
    let asked = Asked::find(served, &request.model, request.priority)?;
    let model = asked.model;
    let dimensions = request.dimensions.unwrap_or(DIMENSIONS);

    let (texts, field): (Vec<Read<'_>>, _) = match &request.inputs {
        Inputs::Plain(inputs) => {
            intake::in_vocabulary(model, inputs, "input")?;
            let read = |input| intake::plain(served, (model, &request.model), None, input, "");
            (inputs.iter().map(read).collect(), "input")
        }
        Inputs::Conversations { list, end, field } => {
            let read = |messages: &Vec<Message<'_>>| {
                let conversation = Conversation::new(model, &Tools::default(), messages);
                (
                    words_of(messages).into(),
                    conversation.ending(*end).count(served, &request.model, None),
                )
            };
            (list.iter().map(read).collect(), *field)
        }
    };
    let (mut vectors, mut tokens) = (Vec::new(), 0);
    let mut lanes = Vec::with_capacity(texts.len());
    let nothing = Arc::new(PieceTable::new(String::new()));
    for (index, (text, counted)) in texts.iter().enumerate() {
        if counted.tokens > model.context {
            return Err(intake::too_long(model, counted.tokens, None, field));
        }
        let vector = embedding::embed(&request.model, tokenizer::pieces(text), dimensions);
        if index > 0 {
            vectors.push(b',');
        }
        write_vector(index, &vector, request.encoding, &mut vectors);
        let script = Script::from_table("embedding".into(), Arc::clone(&nothing));
        let one = Tokens::new(1);
        let limits = Limits {
            // An embedding is no token, so its input may fill the context; the job that stands for it
            // has one, and is a token shorter then.
            prompt: counted.tokens.min(Tokens::new(model.context.get().saturating_sub(1))),
            max_tokens: one,
            min_tokens: Tokens::ZERO,
            ignore_eos: false,
        };
        tokens += u64::from(counted.tokens.get());
        lanes.push(Lane::new(Output::content(script), FinishReason::Stop, &limits));
    }
    let mut body = Vec::new();
    write_body(&naming.id, naming.created, &request.model, tokens, &vectors, &mut body);
    let manner = naming.manner(false);
    let format = Format::Embeddings(Embeddings { body: RefCell::new(body) });
    let answer = asked.answer(manner, Lanes::of(lanes), format);
    Ok(Draft {
        answer,
        chains: Vec::new(),
        stops: Vec::new(),
        keeps_match: false,
        min_tokens: Tokens::ZERO,
    })
}

/// An input's text, and what it counts.
type Read<'a> = (Cow<'a, str>, Counted);

/// What is said in a conversation: a vector is near those of texts with the same words, so marks and
/// roles are left out of it.
fn words_of(messages: &[Message<'_>]) -> String {
    let contents: Vec<&str> = messages.iter().map(|message| message.content.as_ref()).collect();
    contents.join("\n")
}

impl Embeddings {
    /// The body of the answer; it is there once.
    pub(crate) fn whole_body(&self, answer: &Answer, timing: Option<&Timing>) -> Vec<u8> {
        let mut body = self.body.take();
        if let Some(timing) = timing {
            let tokens = u32::try_from(answer.lanes.len()).unwrap_or(u32::MAX);
            append_timing(timing, Tokens::new(tokens), b"}", &mut body);
        }
        body
    }
}
