//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.
//!
//! The invariant: everything under this path, refusals of the HTTP level included, has Anthropic's
//! form; see [`Dialect`](crate::api::Dialect).

use std::borrow::Cow;
use std::mem::take;
use std::sync::Arc;

use llmsim_engine::text::output::{Kind, Part};
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::messages::frames::{self, Block, MessageBody, StopReason};
use llmsim_engine::wire::messages::{self, MessagesRequest, Purpose};
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Answer, Draft, Format, Lane, Limits, Progress};
use super::chat::append_timing;
use super::intake::{self, Asked, Conversation, Naming};
use super::words::{self, Facts, Places, Speaker};
use crate::api::{self, Reply};
use crate::helper::{self, Length};
use crate::http::head::Head;
use crate::http::response::{RequestId, Response};
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;

/// The beginning of an answer's id.
const PREFIX: &str = "msg_";

/// How a message is framed.
#[derive(Debug)]
pub(crate) struct Messages {
    id: String,
    /// As the client named it.
    model: Box<str>,
}

/// Answers a request for a message.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, PREFIX, prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(refusal) => Reply::Whole(error(&refusal, id)),
    }
}

/// Answers a request for a count.
pub(crate) async fn count(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Response {
    let served = Arc::clone(&io.served);
    let length = Length::of_bytes(body.len());
    let counted = helper::run(&io.helper, length, move || counted(&body, &served)).await;
    match counted {
        Ok(tokens) => {
            let mut body = Vec::with_capacity(32);
            frames::count(tokens.get(), &mut body);
            Response::json(200, body)
        }
        Err(refusal) => error(&intake::hint_at_type(refusal, head), id),
    }
}

/// A refusal in Anthropic's form.
pub(crate) fn error(error: &ApiError, id: &RequestId) -> Response {
    let mut response = api::error(error);
    response.body.clear();
    messages::error::write(error, id.as_str(), &mut response.body);
    response
}

fn counted(body: &[u8], served: &Served) -> Result<Tokens, ApiError> {
    let request = MessagesRequest::parse(body, Purpose::Count)?;
    let (_, model) = api::find_model(served, &request.model)?;
    let prompt = Conversation::new(model, &request.tools, &request.messages);
    Ok(prompt.count(served, &request.model, None).tokens)
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = MessagesRequest::parse(body, Purpose::Answer)?;
    let asked = Asked::through_gateway(served, &request.model, request.priority, naming)?;
    let model = asked.model;
    let prompt = Conversation::new(model, &request.tools, &request.messages).count(
        served,
        &request.model,
        request.cache_salt.as_deref(),
    );
    let limits = intake::limits(model, prompt.tokens, request.max_tokens, "messages")?;
    let limits = Limits { ignore_eos: request.ignore_eos, ..limits };
    let facts = Facts::of(&request.messages);
    let query = facts.query(model, &request.model, request.seed, 0);
    let wants = words::wants(&request.tools, &request.format, request.messages.len());
    let places = Places { tool: "input_schema", form: words::place_of(&request.format) };
    let thinking = request.most_thinking;
    let lane = Speaker { served, model, wants: &wants, limits, places, thinking }.lane(&query)?;
    let manner = naming.manner(request.stream);
    let format = Format::Messages(Messages {
        id: take(&mut naming.id),
        model: request.model.as_ref().into(),
    });
    Ok(Draft {
        answer: asked.answer(manner, Lanes::of([lane]), format),
        chains: vec![prompt.chain],
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: false,
        min_tokens: Tokens::ZERO,
    })
}

impl Messages {
    /// The message, still empty. What of its prompt was cached is told at the end.
    pub(crate) fn open_stream(&self, answer: &Answer, out: &mut Vec<u8>) {
        frames::start(&self.id, &self.model, answer.lanes.first().prompt.get(), out);
    }

    /// The event of one token, and what opens and closes blocks before it.
    pub(crate) fn token(&self, answer: &Answer, k: u32, out: &mut Vec<u8>) {
        let output = &answer.lanes.first().output;
        let spot = output.locate(k);
        let block = block_of(output.part(spot.part));
        if spot.token == 0 {
            if let Some(before) = spot.part.checked_sub(1) {
                frames::close(before, block_of(output.part(before)), out);
            }
            frames::open(spot.part, block, out);
            if spot.part == 0 {
                frames::ping(out);
            }
        }
        // The name of a tool stands in what opens its block.
        let is_name = spot.token == 0 && matches!(block, Block::ToolUse { .. });
        let escaped = if is_name { b"" } else { output.escaped_at(spot) };
        frames::delta(spot.part, block, escaped, out);
    }

    /// What closes the last block, and why it was the last.
    pub(crate) fn end_lane(&self, answer: &Answer, progress: &Progress, out: &mut Vec<u8>) {
        let lane = answer.lanes.first();
        let last = lane.output.locate(progress.released.get().saturating_sub(1)).part;
        frames::close(last, block_of(lane.output.part(last)), out);
        let usage = answer.usage_of(0, progress.released, progress.cached);
        frames::end(stop_reason(lane, progress), &usage, out);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
    ) -> Vec<u8> {
        let (lane, progress) = (answer.lanes.first(), progress.first());
        let output = &lane.output;
        let mut out = Vec::with_capacity(1024 + 6 * progress.released.get() as usize);
        let mut body = MessageBody::open(&self.id, &self.model, &mut out);
        for (at, part) in output.parts().enumerate() {
            let said = output.said_of(at, progress.released).get();
            if said == 0 {
                break;
            }
            let block = block_of(part);
            let range = part.start.get()..part.start.get() + said;
            body.block(block, |out| match block {
                Block::ToolUse { .. } => {
                    let json: String = range.skip(1).map(|k| output.piece(k)).collect();
                    // Cut off by the limit it is no object, and nothing that a client could read.
                    let is_whole = messages::is_object(&json);
                    out.extend_from_slice(if is_whole { json.as_bytes() } else { b"{}" });
                }
                Block::Text | Block::Thinking => {
                    output.append_escaped(range, out);
                }
            });
        }
        body.close(
            stop_reason(lane, progress),
            &answer.usage_of(0, progress.released, progress.cached),
        );
        if let Some(timing) = timing {
            append_timing(timing, progress.released, b"}", &mut out);
        }
        out
    }
}

fn block_of(part: &Part) -> Block<'_> {
    match &part.kind {
        Kind::Reasoning => Block::Thinking,
        Kind::Content | Kind::Refusal => Block::Text,
        Kind::ToolCall(call) => Block::ToolUse { id: &call.id, name: &call.name },
    }
}

fn stop_reason<'a>(lane: &'a Lane, progress: &Progress) -> StopReason<'a> {
    if let Some(text) = lane.stopped_by(progress.finish) {
        return StopReason::StopSequence(text);
    }
    match lane.reason(progress.finish) {
        FinishReason::Length => StopReason::MaxTokens,
        FinishReason::ToolCalls => StopReason::ToolUse,
        FinishReason::ContentFilter => StopReason::Refusal,
        FinishReason::Stop => {
            let refuses = lane.output.parts().any(|part| part.kind == Kind::Refusal);
            let calls = lane.output.parts().any(|part| matches!(part.kind, Kind::ToolCall(_)));
            match (refuses, calls) {
                (true, _) => StopReason::Refusal,
                (_, true) => StopReason::ToolUse,
                _ => StopReason::EndTurn,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::answer::tests::{answer, said, thinking_talking_calling};

    fn message(limit: u32) -> (String, String) {
        let format = Format::Messages(Messages { id: "msg_1".to_owned(), model: "m".into() });
        said(&answer(thinking_talking_calling(), limit, format))
    }

    /// What each event is of: `start 0 thinking`, `delta 0 Hm`, `stop 0`, ...
    fn story(stream: &str) -> Vec<String> {
        let between = |text: &str, from: &str, to: &str| {
            text.split_once(from)?.1.split_once(to).map(|(inside, _)| inside.to_owned())
        };
        stream
            .split_terminator("\n\n")
            .filter_map(|event| {
                let kind = between(event, "event: ", "\n").unwrap();
                let index = between(event, "\"index\":", ",").unwrap_or_default();
                match kind.strip_prefix("content_block_")? {
                    "start" => {
                        let block = between(event, "\"content_block\":{\"type\":\"", "\"").unwrap();
                        Some(format!("start {index} {block}"))
                    }
                    "delta" => {
                        let (_, text) = event.rsplit_once("_delta\",").unwrap();
                        let (_, text) = text.split_once(":\"").unwrap();
                        Some(format!("delta {index} {}", text.strip_suffix("\"}}").unwrap()))
                    }
                    _ => Some("stop".to_owned()),
                }
            })
            .collect()
    }

    #[test]
    fn each_part_is_a_block_of_its_own() {
        let (stream, body) = message(100);
        let expected = [
            "start 0 thinking",
            "delta 0 Hm",
            "delta 0 .",
            "delta 0 c2ltdWxhdGVk",
            "stop",
            "start 1 text",
            "delta 1 I",
            "delta 1  look",
            "delta 1 .",
            "stop",
            "start 2 tool_use",
            // The name stands in what opens the block.
            "delta 2 ",
        ];
        let story = story(&stream);
        assert_eq!(story[..expected.len()], expected);
        let arguments: String = story[expected.len()..story.len() - 1]
            .iter()
            .map(|delta| delta.strip_prefix("delta 2 ").unwrap())
            .collect();
        assert_eq!(arguments, r#"{\"city\": \"Oslo\"}"#);
        assert_eq!(story.last().unwrap(), "stop");
        assert!(stream.contains(r#""id":"toolu_1","name":"weather","input":{}"#), "{stream}");
        assert!(stream.contains(r#""stop_reason":"tool_use""#));
        // What was cached is told at the end.
        assert!(stream.contains(r#""usage":{"input_tokens":8,"#));
        assert!(stream.contains(r#""usage":{"input_tokens":4,"#));
        let content = concat!(
            r#""content":[{"type":"thinking","thinking":"Hm.","signature":"c2ltdWxhdGVk"},"#,
            r#"{"type":"text","text":"I look."},{"type":"tool_use","id":"toolu_1","#,
            r#""name":"weather","input":{"city": "Oslo"}}],"stop_reason":"tool_use""#
        );
        assert!(body.contains(content), "{body}");
    }

    #[test]
    fn wherever_it_is_cut_every_block_is_closed() {
        let len = thinking_talking_calling().len().get();
        for limit in 1..len {
            let (stream, body) = message(limit);
            let story = story(&stream);
            let mut is_open = false;
            for event in &story {
                match event.split(' ').next().unwrap() {
                    "start" => assert!(!std::mem::replace(&mut is_open, true), "{story:?}"),
                    "stop" => assert!(std::mem::replace(&mut is_open, false), "{story:?}"),
                    _ => assert!(is_open, "{story:?}"),
                }
            }
            assert!(!is_open, "{story:?}");
            assert!(stream.contains(r#""stop_reason":"max_tokens""#), "{stream}");
            // Half an object is none.
            let is_calling = limit > 5;
            assert_eq!(body.contains(r#""name":"weather","input":{}}"#), is_calling, "{body}");
        }
    }
}
