//! `POST /v1/responses` and what was stored of it.
//!
//! Each part of an answer is an item of the response's output. The invariant: which number an event
//! has follows from the answer alone, so that any of them can be rendered again.

use std::borrow::Cow;
use std::mem::take;
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

use super::answer::{
    Answer, Draft, Format, Lane, Limits, MOST_TOKENS_INLINE, Progress, SCORE_BYTES, SCORED,
};
use super::chat::append_timing;
use super::intake::{self, Asked, Conversation, Naming};
use super::words::{self, Facts, Places, Speaker};
use crate::api::{self, Reply, probes};
use crate::helper::{self, Helper, Length};
use crate::http::head::Head;
use crate::http::response::{RequestId, Response};
use crate::io_thread::Io;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Served;
use crate::stored::{Keep, Turn};

/// The beginning of a response's id.
const PREFIX: &str = "resp_";

/// How a response is framed.
#[derive(Debug)]
pub(crate) struct ResponsesFormat {
    id: String,
    frames: Arc<Frames>,
    /// What was said before, if the response is to be kept.
    before: Option<Arc<Before>>,
    /// Who drops what makes room for it; nobody else, if not said.
    helper: Option<Helper>,
}

/// What a response's events and objects share.
#[derive(Debug)]
struct Frames {
    head: ResponseHead,
    /// One for each part of the answer.
    items: Box<[Place]>,
    /// How many of the likeliest tokens are told at each place of a text, if any score is.
    logprobs: Option<u32>,
    is_stream: bool,
}

/// What was said before a response.
#[derive(Debug)]
struct Before {
    turns: Box<[Turn]>,
    /// The items of its own input.
    input: Box<[StoredItem]>,
}

/// A response that can be had again. Nothing of it is written before somebody wants it.
#[derive(Debug)]
pub(crate) struct Kept {
    frames: Arc<Frames>,
    before: Arc<Before>,
    lane: Lane,
    progress: Progress,
    bytes: usize,
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
        Ok(mut answer) => {
            if let Format::Responses(response) = &mut answer.format {
                response.helper = Some(io.helper.clone());
            }
            Reply::Generate(answer)
        }
        Err(error) => Reply::Whole(api::error(&error)),
    }
}

/// `GET /v1/responses/{id}`.
pub(crate) async fn get(io: &Io, head: &Head, id: &str) -> Response {
    let Some(kept) = find(&io.served, id) else {
        return api::error(&ApiError::response_not_found(id));
    };
    let is_yes = |value: &str| ["true", "1"].contains(&value.to_ascii_lowercase().as_str());
    // A client that waits for events would find none in an object, and say nothing of it.
    if probes::query(head, "stream").any(is_yes) {
        let why = "only responses that were made in the background can be streamed again, and none \
                   are made so here. Leave 'stream' out to get the whole response.";
        return api::error(&ApiError::invalid_value("stream", why));
    }
    let work = kept.frames.work(u64::from(kept.progress.released.get()));
    Response::json(200, write(io, work, move || kept.object()).await)
}

/// `GET /v1/responses/{id}/input_items`.
pub(crate) async fn input_items(io: &Io, id: &str, query: Option<&str>) -> Response {
    let page = match ListQuery::parse(query.unwrap_or_default()) {
        Ok(page) => page,
        Err(error) => return api::error(&error),
    };
    let Some(kept) = find(&io.served, id) else {
        return api::error(&ApiError::response_not_found(id));
    };
    let input = &kept.before.input;
    let newest_first = page.newest_first;
    let place = |at: usize| if newest_first { input.len() - 1 - at } else { at };
    let first = match page.after.as_deref() {
        None => 0,
        Some(after) => match (0..input.len()).find(|&at| *input[place(at)].id == *after) {
            Some(at) => at + 1,
            None => return api::error(&ApiError::item_not_found_after(after)),
        },
    };
    let end = input.len().min(first + page.limit);
    let items = move |kept: &Kept| {
        let input = &kept.before.input;
        let place = |at: usize| if newest_first { input.len() - 1 - at } else { at };
        let mut body = Vec::new();
        let page = (first..end).map(|at| &input[place(at)]);
        let has_more = end < input.len();
        write_list(page.map(|item| (&*item.id, &*item.json)), has_more, &mut body);
        body
    };
    let bytes: usize = (first..end).map(|at| input[place(at)].json.len()).sum();
    Response::json(200, write(io, bytes as u64, move || items(&kept)).await)
}

/// The response of that id, if it is kept.
fn find(served: &Served, id: &str) -> Option<Arc<Kept>> {
    served.stored().get(id)
}

/// What `body` writes: what is much work is left to a helper.
async fn write(io: &Io, work: u64, body: impl FnOnce() -> Vec<u8> + Send + 'static) -> Vec<u8> {
    if work <= u64::from(MOST_TOKENS_INLINE) {
        body()
    } else {
        helper::run(&io.helper, Length::of_tokens(work), body).await
    }
}

/// `POST /v1/responses/{id}/cancel`: only what is made in the background can be cancelled, and
/// nothing is.
pub(crate) fn cancel(served: &Served, id: &str) -> Response {
    api::error(&if find(served, id).is_some() {
        ApiError::not_in_background()
    } else {
        ApiError::response_not_found(id)
    })
}

/// `DELETE /v1/responses/{id}`.
pub(crate) fn delete(io: &Io, id: &str) -> Response {
    // Dropped when the lock is free again.
    let removed = io.served.stored().remove(id);
    match removed {
        Some(kept) => {
            discard(vec![kept], Some(&io.helper));
            let mut body = Vec::with_capacity(96);
            llmsim_engine::wire::responses::frames::write_deleted(id, &mut body);
            Response::json(200, body)
        }
        None => api::error(&ApiError::response_not_found(id)),
    }
}

/// Drops what is no longer kept; much of it is left to a helper, see [`Io::discard`].
fn discard(gone: Vec<Arc<Kept>>, helper: Option<&Helper>) {
    const MOST_INLINE: usize = 1 << 20;
    let bytes: usize = gone.iter().map(|kept| kept.bytes()).sum();
    if let Some(helper) = helper.filter(|_| bytes > MOST_INLINE) {
        helper::leave(helper, move || drop(gone));
    }
}

fn prepare(body: &[u8], served: &Arc<Served>, naming: &mut Naming) -> Result<Draft, ApiError> {
    let request = ResponsesRequest::parse(body)?;
    let asked = Asked::through_gateway(served, &request.model, request.priority, naming)?;
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
    let before = request.store.then(|| {
        let input = stored_items(body, &naming.id);
        Arc::new(Before { turns: turns.into(), input })
    });
    let manner = naming.manner(request.stream);
    let frames = Frames {
        head,
        items,
        logprobs: request.logprobs.then_some(u32::from(request.top_logprobs)),
        is_stream: request.stream,
    };
    let frames = Arc::new(frames);
    let format = Format::Responses(ResponsesFormat {
        id: take(&mut naming.id),
        frames,
        before,
        helper: None,
    });
    Ok(Draft {
        answer: asked.answer(manner, Lanes::of([lane]), format),
        chains: vec![prompt.chain],
        stops: request.stop.into_iter().map(Cow::into_owned).collect(),
        keeps_match: false,
        min_tokens: request.min_tokens,
    })
}

/// All that was said before the answer, without instructions: those of an earlier response do not
/// hold for this one.
fn turns(served: &Served, request: &ResponsesRequest<'_>) -> Result<Vec<Turn>, ApiError> {
    let mut turns = Vec::new();
    if let Some(id) = request.previous.as_deref() {
        let previous = find(served, id);
        turns = previous.ok_or_else(|| ApiError::previous_response_not_found(id))?.turns();
    }
    for item in &request.input {
        match item {
            InputItem::Message(message) => turns.push(Turn::of(message)),
            InputItem::Reference(reference) => {
                let found = served.stored().item(&reference.id);
                let (kept, place) =
                    found.ok_or_else(|| ApiError::item_not_found(reference.at, &reference.id))?;
                turns.extend(kept.turn(place));
            }
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
        self.frames.head.start(out);
    }

    /// The event of one token, and what opens and closes items before it.
    pub(crate) fn token(&self, answer: &Answer, k: u32, out: &mut Vec<u8>) {
        let (frames, lane) = (&*self.frames, answer.lanes.first());
        let output = &lane.output;
        let spot = output.locate(k);
        if let Some(before) = spot.part.checked_sub(1).filter(|_| spot.token == 0) {
            let whole = output.part(before).script.len();
            frames.close_item(lane, before, whole, Status::Completed, out);
        }
        let Some(item) = &frames.items[spot.part].item else { return };
        if spot.token == 0 {
            item.open(out);
        }
        let silent = silent(&output.part(spot.part).kind);
        if let Some(delta) = spot.token.checked_sub(silent) {
            let scores = |out: &mut Vec<u8>| {
                if let Some(count) = frames.logprobs {
                    let token = String::from_utf8_lossy(lane.made().bytes(k));
                    let likeliest = logprobs::likeliest(&token, count);
                    write_short_entry(&token, logprobs::logprob(&token), likeliest, out);
                }
            };
            item.delta_with(delta, output.escaped_at(spot), scores, out);
        }
    }

    /// See [`Format::work`](super::answer::Format::work).
    pub(crate) fn work(&self, released: u64) -> u64 {
        self.frames.work(released)
    }

    /// About how many bytes a body of `released` tokens has beside their text.
    pub(crate) fn bytes(&self, released: u64) -> u64 {
        let scores = self.frames.logprobs.map_or(0, |count| (1 + u64::from(count)) * SCORE_BYTES);
        released * scores
    }

    /// The number of the event that comes after so many tokens.
    pub(crate) fn sequence_after(&self, answer: &Answer, tokens: u32) -> u32 {
        // The response was created, and is in progress.
        let Some(last) = tokens.checked_sub(1) else { return FIRST_SEQUENCE };
        let output = &answer.lanes.first().output;
        let spot = output.locate(last);
        let silent = silent(&output.part(spot.part).kind);
        self.frames.items[spot.part].after_deltas((spot.token + 1).saturating_sub(silent))
    }

    /// What closes the last item, and the whole response.
    pub(crate) fn end_lane(&self, answer: &Answer, progress: &Progress, out: &mut Vec<u8>) {
        let (frames, lane) = (&*self.frames, answer.lanes.first());
        let output = &lane.output;
        let last = output.locate(progress.released.get().saturating_sub(1)).part;
        let said = output.said_of(last, progress.released);
        let status = status(lane, progress);
        frames.close_item(lane, last, said, status, out);
        let deltas = said.get() - silent(&output.part(last).kind).min(said.get());
        let usage = lane.usage(progress.released, progress.cached);
        let items = |out: &mut Vec<u8>| frames.output(lane, progress, out);
        frames.head.end(status, frames.items[last].after(deltas), items, &usage, out);
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(
        &self,
        answer: &Answer,
        progress: &Lanes<Progress>,
        timing: Option<&Timing>,
    ) -> Vec<u8> {
        let mut body = self.frames.object(answer.lanes.first(), progress.first());
        if let Some(timing) = timing {
            append_timing(timing, progress.first().released, b"}", &mut body);
        }
        body
    }

    /// All tokens exist. If the client did not ask for the contrary, the response can be had again
    /// from now on, which is before its client knows that it is complete, and whatever becomes of its
    /// stream.
    pub(crate) fn finished(&self, answer: &Answer, progress: &Progress) {
        let Some(before) = &self.before else { return };
        let lane = answer.lanes.first().clone();
        let kept = Kept::new(Arc::clone(&self.frames), Arc::clone(before), lane, *progress);
        let gone = answer.served.stored().keep(self.id.as_str().into(), Arc::new(kept));
        // Only now that nobody waits for the lock.
        discard(gone, self.helper.as_ref());
    }
}

impl Kept {
    fn new(frames: Arc<Frames>, before: Arc<Before>, lane: Lane, progress: Progress) -> Self {
        // All of what could have been said, though the client may have let little of it be said.
        let made = lane.made.as_ref().map_or(0, |made| made.size());
        let output = lane.output.size() + made;
        let bytes = frames.head.size() + before.bytes() + output + 128 * (1 + frames.items.len());
        Self { frames, before, lane, progress, bytes }
    }

    /// The object that the client got.
    fn object(&self) -> Vec<u8> {
        self.frames.object(&self.lane, &self.progress)
    }

    /// The conversation that ends with it.
    fn turns(&self) -> Vec<Turn> {
        let said = (0..self.said_parts()).filter_map(|part| self.turn(part));
        self.before.turns.iter().cloned().chain(said).collect()
    }

    /// What a part says to later turns, if it says anything.
    fn turn(&self, place: usize) -> Option<Turn> {
        let output = &self.lane.output;
        let part = output.part(place);
        // What was thought is no part of later turns.
        if part.kind == Kind::Reasoning {
            return None;
        }
        let first = part.start.get();
        let said = output.said_of(place, self.progress.released).get();
        let text: String = (first..first + said).map(|k| output.piece(k)).collect();
        Some(Turn { role: Role::Assistant, content: text.into() })
    }

    /// Parts of which something was said.
    fn said_parts(&self) -> usize {
        let output = &self.lane.output;
        let said = |part: &usize| output.said_of(*part, self.progress.released) > Tokens::ZERO;
        (0..output.part_count()).take_while(said).count()
    }
}

impl Keep for Kept {
    fn items(&self) -> impl Iterator<Item = (usize, &str)> {
        let said = self.frames.items.iter().take(self.said_parts()).enumerate();
        said.filter_map(|(at, place)| Some((at, place.item.as_ref()?.id())))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Before {
    /// What it takes. Turns are counted for each response that has them, though they are shared.
    fn bytes(&self) -> usize {
        let turns: usize = self.turns.iter().map(|turn| turn.content.len() + 32).sum();
        let input: usize = self.input.iter().map(|item| item.id.len() + item.json.len() + 32).sum();
        turns + input
    }
}

impl Frames {
    fn work(&self, released: u64) -> u64 {
        if self.logprobs.is_some() { released * SCORED } else { released }
    }

    fn object(&self, lane: &Lane, progress: &Progress) -> Vec<u8> {
        let usage = lane.usage(progress.released, progress.cached);
        let mut body = Vec::with_capacity(2048 + 6 * progress.released.get() as usize);
        let items = |out: &mut Vec<u8>| self.output(lane, progress, out);
        self.head.object(status(lane, progress), items, Some(&usage), &mut body);
        body
    }

    /// All items of which something was said.
    fn output(&self, lane: &Lane, progress: &Progress, out: &mut Vec<u8>) {
        let output = &lane.output;
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
            let status = status_of(output, at, said, status(lane, progress));
            let text = text_of(output, at, said);
            let logprobs = |out: &mut Vec<u8>| self.scores(lane, at, said, out);
            item.object(Some(status), Content { text: &text, logprobs: &logprobs }, out);
        }
    }

    /// The scores of a text as a whole. A stream has told them piece by piece, and the end of one
    /// must not hold up other streams: it does not tell them again.
    fn scores(&self, lane: &Lane, at: usize, said: Tokens, out: &mut Vec<u8>) {
        let Some(count) = self.logprobs.filter(|_| !self.is_stream) else { return };
        let made = lane.made();
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

    fn close_item(&self, lane: &Lane, at: usize, said: Tokens, status: Status, out: &mut Vec<u8>) {
        let Some(item) = &self.items[at].item else { return };
        let output = &lane.output;
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
    move |out| output.append_escaped(range.clone(), out)
}

fn status(lane: &Lane, progress: &Progress) -> Status {
    match lane.reason(progress.finish) {
        FinishReason::Stop | FinishReason::ToolCalls => Status::Completed,
        FinishReason::Length => Status::Incomplete(Cut::MaxOutputTokens),
        FinishReason::ContentFilter => Status::Incomplete(Cut::ContentFilter),
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::sim::Finish;

    use super::*;
    use crate::api::answer::tests::{answer, said, thinking_talking_calling};

    fn response(limit: u32, turns: Option<Vec<Turn>>) -> (String, String, Arc<Served>) {
        let answer = response_of(limit, turns);
        let (stream, body) = said(&answer);
        (stream, body, answer.served)
    }

    fn response_of(limit: u32, turns: Option<Vec<Turn>>) -> Answer {
        let output = thinking_talking_calling();
        let before = turns.map(|turns| Before { turns: turns.into(), input: Box::default() });
        let format = Format::Responses(ResponsesFormat {
            id: "resp_1".to_owned(),
            frames: Arc::new(Frames {
                head: ResponseHead::new("resp_1", 0, "m", b""),
                items: items("resp_1", &output, Some(Thought::Summary)),
                logprobs: None,
                is_stream: true,
            }),
            before: before.map(Arc::new),
            helper: None,
        });
        answer(output, limit, format)
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
        let (_, body, served) = response(100, Some(vec![hello]));
        // Rendered it was, as a stream and as a whole, and that kept nothing.
        assert!(served.stored().get("resp_1").is_none());
        let kept = finish(100, true);
        let stored = kept.stored();
        let response = stored.get("resp_1").unwrap();
        assert_eq!(String::from_utf8(response.object()).unwrap(), body);
        let turns = response.turns();
        let said: Vec<&str> = turns.iter().map(|turn| &*turn.content).collect();
        assert_eq!(said, ["Hello", "I look.", r#"weather{"city": "Oslo"}"#]);
        let turn = |item: &str| {
            let (response, place) = stored.item(item).unwrap();
            response.turn(place)
        };
        assert_eq!(turn("rs_1_0"), None);
        assert_eq!(turn("msg_1_1").as_ref(), Some(&turns[1]));
        // Of one that was cut, what was said; and nothing, if nothing is to be kept.
        let cut = finish(3, true);
        assert_eq!(cut.stored().get("resp_1").unwrap().turns()[1].content.as_ref(), "I");
        assert!(cut.stored().item("msg_1_1").is_some() && cut.stored().item("fc_1_2").is_none());
        assert!(finish(100, false).stored().get("resp_1").is_none());
    }

    #[test]
    fn much_that_makes_room_is_dropped_by_a_helper_and_little_at_once() {
        let (helper, thread) = helper::queue(8);
        let drop_one = |said: usize| {
            let answer = response_of(100, Some(vec![]));
            let Format::Responses(response) = &answer.format else { unreachable!() };
            let turn = Turn { role: Role::User, content: "x".repeat(said).into() };
            let before = Before { turns: [turn].into(), input: Box::default() };
            let lane = answer.lanes.first().clone();
            let frames = Arc::clone(&response.frames);
            let kept = Arc::new(Kept::new(frames, Arc::new(before), lane, Progress::default()));
            let is_there = Arc::downgrade(&kept);
            discard(vec![kept], Some(&helper));
            is_there
        };
        assert!(drop_one(1_000).upgrade().is_none());
        let much = drop_one(2_000_000);
        assert!(much.upgrade().is_some());
        drop(helper);
        std::thread::spawn(|| thread.run()).join().unwrap();
        assert!(much.upgrade().is_none());
    }

    /// What is kept where a response has come to its end.
    fn finish(limit: u32, store: bool) -> Arc<Served> {
        let hello = Turn { role: Role::User, content: "Hello".into() };
        let answer = response_of(limit, store.then(|| vec![hello]));
        let released = answer.lanes.first().longest();
        let finish = if released.get() == limit { Finish::Length } else { Finish::Stop };
        let progress = Progress { cached: Tokens::new(4), released, finish: Some(finish) };
        answer.format.finished(&answer, &progress);
        answer.served
    }
}
