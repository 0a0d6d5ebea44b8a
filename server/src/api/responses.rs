//! `POST /v1/responses` and what was stored of it.
//!
//! Each part of an answer is an item of the response's output. The invariant: which number an event
//! has follows from the answer alone, so that any of them can be rendered again.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use llmsim_engine::text::logprobs;
use llmsim_engine::text::output::{Kind, Output};
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{Message, Role};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::logprobs::{write_entry, write_short_entry};
use llmsim_engine::wire::responses::frames::{
    Content, Cut, FIRST_SEQUENCE, Item, ItemKind, ResponseHead, Status, Thought, write_list,
};
use llmsim_engine::wire::responses::{
    InputItem, ListQuery, ResponsesRequest, StoredItem, stored_items,
};
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Answer, Draft, Format, Limits, Progress, SCORED};
use super::chat::append_timing;
use super::intake::{self, Asked, Conversation, Naming};
use super::words::{self, Facts, Places, Speaker};
use crate::api::{self, Reply, probes};
use crate::http::head::Head;
use crate::http::response::{RequestId, Response};
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;
use crate::stored::{Stored, Turn};

/// The beginning of a response's id.
const PREFIX: &str = "resp_";

/// How a response is framed.
#[derive(Debug)]
pub(crate) struct ResponsesFormat {
    id: String,
    head: ResponseHead,
    /// One for each part of the answer.
    items: Box<[Place]>,
    /// What the response is kept with, if it is to be kept: until it is.
    kept: RefCell<Option<Kept>>,
    /// How many of the likeliest tokens are told at each place of a text, if any score is.
    logprobs: Option<u32>,
}

/// What was said before a response.
#[derive(Debug)]
struct Kept {
    turns: Vec<Turn>,
    /// The items of its own input.
    input: Box<[StoredItem]>,
}

/// Where a part of the answer stands among the events.
#[derive(Debug)]
struct Place {
    /// None for what was thought and is not to be sent.
    item: Option<Item>,
    /// The number of the first event of it, or after it.
    first: u32,
}

impl Place {
    /// The number of the event that comes after so many of its deltas.
    fn after_deltas(&self, deltas: u32) -> u32 {
        self.item.as_ref().map_or(self.first, |item| item.after_deltas(deltas))
    }

    /// The number of the first event after it, if it has so many deltas.
    fn after(&self, deltas: u32) -> u32 {
        self.item.as_ref().map_or(self.first, |item| item.after(deltas))
    }
}

/// Answers a request for a response.
pub(crate) async fn answer(io: &Io, head: &Head, body: Vec<u8>, id: &RequestId) -> Reply {
    match intake::answer(io, head, body, id, PREFIX, prepare).await {
        Ok(answer) => Reply::Generate(answer),
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

/// `GET /v1/responses/{id}`.
pub(crate) fn get(served: &Served, head: &Head, id: &str) -> Response {
    let is_yes = |value: &str| ["true", "1"].contains(&value.to_ascii_lowercase().as_str());
    match served.stored().get(id) {
        // A client that waits for events would find none in an object, and say nothing of it.
        Some(_) if probes::query(head, "stream").any(is_yes) => {
            let why = "only responses that were made in the background can be streamed again, and \
                       none are made so here. Leave 'stream' out to get the whole response.";
            api::error(&ApiError::invalid_value("stream", why))
        }
        Some(stored) => Response::json(200, stored.body.to_vec()),
        None => api::error(&ApiError::response_not_found(id)),
    }
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) fn input_items(served: &Served, id: &str, query: Option<&str>) -> Response {
    let page = match ListQuery::parse(query.unwrap_or_default()) {
        Ok(page) => page,
        Err(error) => return api::error(&error),
    };
    let stored = served.stored();
    let Some(Stored { input, .. }) = stored.get(id) else {
        return api::error(&ApiError::response_not_found(id));
    };
    let mut items: Vec<&StoredItem> = input.iter().collect();
    if page.newest_first {
        items.reverse();
    }
    let first = match page.after.as_deref() {
        None => 0,
        Some(after) => match items.iter().position(|item| *item.id == *after) {
            Some(at) => at + 1,
            None => return api::error(&ApiError::item_not_found_after(after)),
        },
    };
    let page = &items[first..items.len().min(first + page.limit)];
    let mut body = Vec::new();
    let has_more = first + page.len() < items.len();
    write_list(page.iter().map(|item| (&*item.id, &*item.json)), has_more, &mut body);
    Response::json(200, body)
}

/// `POST /v1/responses/{id}/cancel`: only what is made in the background can be cancelled, and
/// nothing is.
pub(crate) fn cancel(served: &Served, id: &str) -> Response {
    let is_known = served.stored().get(id).is_some();
    api::error(&if is_known {
        ApiError::not_in_background()
    } else {
        ApiError::response_not_found(id)
    })
}

/// `DELETE /v1/responses/{id}`.
pub(crate) fn delete(served: &Served, id: &str) -> Response {
    match served.stored().remove(id) {
        true => {
            let mut body = Vec::with_capacity(96);
            llmsim_engine::wire::responses::frames::write_deleted(id, &mut body);
            Response::json(200, body)
        }
        false => api::error(&ApiError::response_not_found(id)),
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, mut naming: Naming) -> Result<Draft, ApiError> {
    let request = ResponsesRequest::parse(body)?;
    let asked = Asked::through_gateway(served, &request.model, request.priority, &naming)?;
    let model = asked.model;
    let turns = turns(served, &request)?;
    let instructions = request.instructions.as_deref().filter(|text| !text.is_empty());
    let mut messages: Vec<Message<'_>> = instructions
        .map(|text| Message { role: Role::System, content: Cow::Borrowed(text) })
        .into_iter()
        .collect();
    messages.extend(turns.iter().map(Turn::message));
    let tools = &request.tools;
    let prompt = Conversation::new(model, tools, &messages).count(
        served,
        &request.model,
        request.cache_salt.as_deref(),
    );
    let limits = intake::limits(model, prompt.tokens, request.max_tokens, "input")?;
    let limits = Limits {
        min_tokens: request.min_tokens.min(limits.max_tokens),
        ignore_eos: request.ignore_eos,
        ..limits
    };
    let facts = Facts::of(&messages);
    let query = facts.query(model, &request.model, request.seed, 0);
    let wants = words::wants(tools, &request.format, messages.len());
    let places = Places { tool: "parameters", form: words::place_of(&request.format) };
    let thinking = request.most_thinking;
    let lane = Speaker { served, model, wants: &wants, limits, places, thinking }.lane(&query)?;
    drop(messages);

    naming.asked(PREFIX, request.request_id.as_deref());
    let head = ResponseHead::new(&naming.id, naming.created, &request.model, &request.echo);
    let shown = match (request.include_reasoning, request.summarizes) {
        (false, _) => None,
        (true, true) => Some(Thought::Summary),
        (true, false) => Some(Thought::Text),
    };
    let items = items(&naming.id, &lane.output, shown);
    let kept = request.store.then(|| Kept { turns, input: stored_items(body, &naming.id) });
    let manner = naming.manner(request.stream);
    let format = Format::Responses(ResponsesFormat {
        id: naming.id,
        head,
        items,
        kept: RefCell::new(kept),
        logprobs: request.logprobs.then_some(u32::from(request.top_logprobs)),
    });
    Ok(Draft {
        answer: asked.answer(manner, [lane], format),
        chains: vec![prompt.chain],
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: false,
        min_tokens: request.min_tokens,
    })
}

/// All that was said before the answer, without instructions: those of an earlier response do not
/// hold for this one.
fn turns(served: &Served, request: &ResponsesRequest<'_>) -> Result<Vec<Turn>, ApiError> {
    let stored = served.stored();
    let mut turns = match request.previous.as_deref() {
        None => Vec::new(),
        Some(id) => match stored.get(id) {
            Some(previous) => previous.turns.to_vec(),
            None => return Err(ApiError::previous_response_not_found(id)),
        },
    };
    for item in &request.input {
        match item {
            InputItem::Message(message) => turns.push(Turn::of(message)),
            InputItem::Reference(reference) => match stored.item(&reference.id) {
                Some(turn) => turns.extend(turn.cloned()),
                None => return Err(ApiError::item_not_found(reference.at, &reference.id)),
            },
        }
    }
    Ok(turns)
}

/// The items of an answer's parts. Their events are numbered as if all were said; what a limit or a
/// stop string cuts off comes after what was said.
fn items(id: &str, output: &Output, shown: Option<Thought>) -> Box<[Place]> {
    let suffix = id.strip_prefix(PREFIX).unwrap_or(id);
    let (mut index, mut next) = (0, FIRST_SEQUENCE);
    let place = |part: &llmsim_engine::text::output::Part| {
        let kind = match &part.kind {
            Kind::Content => Some(ItemKind::Text),
            Kind::Refusal => Some(ItemKind::Refusal),
            Kind::Reasoning => shown.map(ItemKind::Reasoning),
            Kind::ToolCall(call) => Some(ItemKind::Call { id: &call.id, name: &call.name }),
        };
        let item = kind.map(|kind| Item::new(suffix, index, kind, next));
        let place = Place { first: next, item };
        index += usize::from(place.item.is_some());
        next = place.after(part.script.len().get() - silent(&part.kind));
        place
    };
    output.parts().map(place).collect()
}

/// Tokens at the beginning of a part that have no delta: the name of a tool.
fn silent(kind: &Kind) -> u32 {
    u32::from(matches!(kind, Kind::ToolCall(_)))
}

impl ResponsesFormat {
    /// The response, still empty.
    pub(crate) fn open_stream(&self, out: &mut Vec<u8>) {
        self.head.start(out);
    }

    /// The event of one token, and what opens and closes items before it.
    pub(crate) fn token(&self, answer: &Answer, k: u32, out: &mut Vec<u8>) {
        let output = &answer.lanes.first().output;
        let spot = output.locate(k);
        if let Some(before) = spot.part.checked_sub(1).filter(|_| spot.token == 0) {
            let whole = output.part(before).script.len();
            self.close_item(answer, before, whole, Status::Completed, out);
        }
        let Some(item) = &self.items[spot.part].item else { return };
        if spot.token == 0 {
            item.open(out);
        }
        let silent = silent(&output.part(spot.part).kind);
        if let Some(delta) = spot.token.checked_sub(silent) {
            let scores = |out: &mut Vec<u8>| {
                if let Some(count) = self.logprobs {
                    let token = String::from_utf8_lossy(answer.lanes.first().made().bytes(k));
                    let likeliest = logprobs::likeliest(&token, count);
                    write_short_entry(&token, logprobs::logprob(&token), likeliest, out);
                }
            };
            item.delta_with(delta, output.escaped_at(spot), scores, out);
        }
    }

    /// See [`Format::work`](super::answer::Format::work).
    pub(crate) fn work(&self, released: u64) -> u64 {
        if self.logprobs.is_some() { released * SCORED } else { released }
    }

    /// The number of the event that comes after so many tokens.
    pub(crate) fn sequence_after(&self, answer: &Answer, tokens: u32) -> u32 {
        // The response was created, and is in progress.
        let Some(last) = tokens.checked_sub(1) else { return FIRST_SEQUENCE };
        let output = &answer.lanes.first().output;
        let spot = output.locate(last);
        let silent = silent(&output.part(spot.part).kind);
        self.items[spot.part].after_deltas((spot.token + 1).saturating_sub(silent))
    }

    /// What closes the last item, and the whole response. It can be had again from then on, which
    /// is before its client knows that it is complete.
    pub(crate) fn end_lane(&self, answer: &Answer, progress: &Progress, out: &mut Vec<u8>) {
        self.keep(answer, progress);
        let output = &answer.lanes.first().output;
        let last = output.locate(progress.released.get().saturating_sub(1)).part;
        let said = output.said_of(last, progress.released);
        let status = status(answer, progress);
        self.close_item(answer, last, said, status, out);
        let deltas = said.get() - silent(&output.part(last).kind).min(said.get());
        let usage = answer.usage_of(0, progress.released, progress.cached);
        let items = |out: &mut Vec<u8>| self.output(answer, progress, out);
        self.head.end(status, self.items[last].after(deltas), items, &usage, out);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
    ) -> Vec<u8> {
        self.keep(answer, progress.first());
        let mut body = self.object(answer, progress.first());
        if let Some(timing) = timing {
            append_timing(timing, progress.first().released, b"}", &mut body);
        }
        body
    }

    /// Keeps a finished response, once, and if the client did not ask for the contrary.
    fn keep(&self, answer: &Answer, progress: &Progress) {
        let Some(Kept { mut turns, input }) = self.kept.borrow_mut().take() else { return };
        let output = &answer.lanes.first().output;
        let mut items = Vec::new();
        for (at, part) in output.parts().enumerate() {
            let said = output.said_of(at, progress.released).get();
            if said == 0 {
                break;
            }
            let first = part.start.get();
            let text: String = (first..first + said).map(|k| output.piece(k)).collect();
            let turn = Turn { role: Role::Assistant, content: text.into() };
            // What was thought is no part of later turns.
            let turn = (part.kind != Kind::Reasoning).then_some(turn);
            if let Some(item) = &self.items[at].item {
                items.push((item.id().into(), turn.clone()));
            }
            turns.extend(turn);
        }
        let body = self.object(answer, progress);
        let stored = Stored { body: body.into(), turns: turns.into(), items: items.into(), input };
        answer.served.stored().keep(self.id.as_str().into(), stored);
    }

    fn object(&self, answer: &Answer, progress: &Progress) -> Vec<u8> {
        let usage = answer.usage_of(0, progress.released, progress.cached);
        let mut body = Vec::with_capacity(2048 + 6 * progress.released.get() as usize);
        let items = |out: &mut Vec<u8>| self.output(answer, progress, out);
        self.head.object(status(answer, progress), items, Some(&usage), &mut body);
        body
    }

    /// All items of which something was said.
    fn output(&self, answer: &Answer, progress: &Progress, out: &mut Vec<u8>) {
        let output = &answer.lanes.first().output;
        let mut is_first = true;
        for (at, place) in self.items.iter().enumerate().take(output.part_count()) {
            let said = output.said_of(at, progress.released);
            if said == Tokens::ZERO {
                break;
            }
            let Some(item) = &place.item else { continue };
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
            let status = status_of(output, at, said, status(answer, progress));
            let text = text_of(output, at, said);
            let logprobs = |out: &mut Vec<u8>| self.scores(answer, at, said, out);
            item.object(Some(status), Content { text: &text, logprobs: &logprobs }, out);
        }
    }

    /// The scores of a text as a whole. A stream has told them piece by piece, and the end of one
    /// must not hold up other streams: it does not tell them again.
    fn scores(&self, answer: &Answer, at: usize, said: Tokens, out: &mut Vec<u8>) {
        let Some(count) = self.logprobs.filter(|_| !answer.is_stream) else { return };
        let made = answer.lanes.first().made();
        let first = made.part(at).start.get();
        for k in first..first + said.get() {
            if k > first {
                out.push(b',');
            }
            let own = made.bytes(k);
            let token = &*String::from_utf8_lossy(own);
            let likeliest = logprobs::likeliest(token, count);
            write_entry(token, own, logprobs::logprob(token), likeliest, out);
        }
    }

    fn close_item(
        &self,
        answer: &Answer,
        at: usize,
        said: Tokens,
        status: Status,
        out: &mut Vec<u8>,
    ) {
        let Some(item) = &self.items[at].item else { return };
        let output = &answer.lanes.first().output;
        let silent = silent(&output.part(at).kind);
        let deltas = said.get().saturating_sub(silent);
        let text = text_of(output, at, said);
        let content = Content { text: &text, ..Content::NONE };
        item.close(deltas, status_of(output, at, said, status), content, out);
    }
}

/// The status of an item of which so many tokens were said, in a response with this one. Whatever cut
/// the response off cut its last part, also where that went on beyond its script.
fn status_of(output: &Output, at: usize, said: Tokens, response: Status) -> Status {
    let is_last = at + 1 == output.part_count();
    let is_whole = said >= output.part(at).script.len();
    if is_whole && !is_last { Status::Completed } else { response }
}

/// Appends the text of a part's first `said` tokens as JSON string content.
fn text_of(output: &Output, at: usize, said: Tokens) -> impl Fn(&mut Vec<u8>) {
    let part = output.part(at);
    let first = part.start.get();
    let range = first + silent(&part.kind).min(said.get())..first + said.get();
    move |out| range.clone().for_each(|k| out.extend_from_slice(output.escaped(k)))
}

fn status(answer: &Answer, progress: &Progress) -> Status {
    match answer.lanes.first().reason(progress.finish) {
        FinishReason::Stop | FinishReason::ToolCalls => Status::Completed,
        FinishReason::Length => Status::Incomplete(Cut::MaxOutputTokens),
        FinishReason::ContentFilter => Status::Incomplete(Cut::ContentFilter),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::answer::tests::{answer, said, thinking_talking_calling};

    fn response(limit: u32, turns: Option<Vec<Turn>>) -> (String, String, Arc<Served>) {
        let output = thinking_talking_calling();
        let format = Format::Responses(ResponsesFormat {
            id: "resp_1".to_owned(),
            head: ResponseHead::new("resp_1", 0, "m", b""),
            items: items("resp_1", &output, Some(Thought::Summary)),
            kept: RefCell::new(turns.map(|turns| Kept { turns, input: Box::default() })),
            logprobs: None,
        });
        let answer = answer(output, limit, format);
        let (stream, body) = said(&answer);
        (stream, body, answer.served)
    }

    fn names(stream: &str) -> Vec<&str> {
        stream
            .split_terminator("\n\n")
            .filter_map(|event| event.lines().next()?.strip_prefix("event: response."))
            .collect()
    }

    #[test]
    fn each_part_is_an_item_and_events_are_numbered_without_gaps_wherever_it_is_cut() {
        let len = thinking_talking_calling().len().get();
        for limit in 1..=len {
            let (stream, body, _) = response(limit, None);
            for (at, event) in stream.split_terminator("\n\n").enumerate() {
                let end = format!(r#","sequence_number":{at}}}"#);
                assert!(event.ends_with(&end), "limit {limit}, event {at}: {event}");
            }
            let names = names(&stream);
            let count = |name: &str| names.iter().filter(|it| **it == name).count();
            assert_eq!(count("output_item.added"), count("output_item.done"), "{names:?}");
            assert_eq!(
                count("output_item.added"),
                match limit {
                    1..=2 => 1,
                    3..=5 => 2,
                    _ => 3,
                }
            );
            let end = if limit < len { "incomplete" } else { "completed" };
            assert_eq!(names.last(), Some(&end));
            // The last event has the same response as an answer that is not streamed.
            let last = stream.split_terminator("\n\n").last().unwrap();
            assert!(last.contains(&body), "{last}\n{body}");
            assert!(body.contains(&format!(r#""status":"{end}""#)));
        }
    }

    #[test]
    fn the_events_of_all_kinds_of_parts() {
        let (stream, body, _) = response(100, None);
        let names = names(&stream);
        let expected = [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
        ];
        assert_eq!(names[..expected.len()], expected);
        let after = ["function_call_arguments.done", "output_item.done", "completed"];
        assert_eq!(names[names.len() - 3..], after);
        let output = concat!(
            r#""output":[{"id":"rs_1_0","type":"reasoning","summary":[{"type":"summary_text","text":"Hm."}],"#,
            r#""content":[],"encrypted_content":null,"status":"completed"},"#,
            r#"{"id":"msg_1_1","type":"message","status":"completed","role":"assistant","content":["#,
            r#"{"type":"output_text","annotations":[],"logprobs":[],"text":"I look."}]},"#,
            r#"{"id":"fc_1_2","type":"function_call","call_id":"call_1","name":"weather","#,
            r#""arguments":"{\"city\": \"Oslo\"}","status":"completed"}],"usage":{"input_tokens":8,"#,
            r#""input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0}"#
        );
        assert!(body.contains(output), "{body}");
        assert!(body.contains(r#""output_tokens_details":{"reasoning_tokens":2}"#), "{body}");
    }

    #[test]
    fn later_turns_are_told_what_was_said_and_not_what_was_thought() {
        let hello = Turn { role: Role::User, content: "Hello".into() };
        let (_, _, served) = response(100, Some(vec![hello]));
        let stored = served.stored();
        let turns = &stored.get("resp_1").unwrap().turns;
        let said: Vec<&str> = turns.iter().map(|turn| &*turn.content).collect();
        assert_eq!(said, ["Hello", "I look.", r#"weather{"city": "Oslo"}"#]);
        assert!(stored.item("rs_1_0").is_some_and(|turn| turn.is_none()));
        assert!(stored.item("msg_1_1").is_some_and(|turn| turn.is_some()));
    }
}
