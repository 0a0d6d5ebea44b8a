//! Responses that can be had again: by `GET /v1/responses/{id}`, `previous_response_id` and
//! `item_reference`.
//!
//! Not a database: what is kept is bounded in number and bytes, the oldest goes first, and nothing
//! outlives the process. The invariant: [`Responses::bytes`] is the sum of what is kept, and never
//! above [`MOST_BYTES`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use llmsim_engine::wire::chat::{Message, Role};
use llmsim_engine::wire::responses::StoredItem;

/// Responses that are kept at most.
const MOST: usize = 4096;

/// Bytes that all of them take at most, bodies and conversations together.
const MOST_BYTES: usize = 64 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) role: Role,
    pub(crate) content: Arc<str>,
}

/// A response as it is kept.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The object that the client got.
    pub(crate) body: Arc<[u8]>,
    /// The conversation that ends with it.
    pub(crate) turns: Arc<[Turn]>,
    /// The items of its output by their ids, and what each says to later turns.
    pub(crate) items: Box<[(Box<str>, Option<Turn>)]>,
    /// The items of its own input.
    pub(crate) input: Box<[StoredItem]>,
}

/// All responses that are kept.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    by_id: BTreeMap<Box<str>, Stored>,
    /// Which response an item belongs to.
    by_item: BTreeMap<Box<str>, Box<str>>,
    /// In the order in which they came.
    order: VecDeque<Box<str>>,
    bytes: usize,
}

impl Turn {
    pub(crate) fn of(message: &Message<'_>) -> Self {
        Self { role: message.role, content: message.content.as_ref().into() }
    }

    pub(crate) fn message(&self) -> Message<'_> {
        Message { role: self.role, content: self.content.as_ref().into() }
    }
}

impl Stored {
    /// What it takes. Turns are counted for each response that has them, though they are shared.
    fn bytes(&self) -> usize {
        let turns: usize = self.turns.iter().map(|turn| turn.content.len() + 32).sum();
        let input: usize = self.input.iter().map(|item| item.id.len() + item.json.len() + 32).sum();
        self.body.len() + turns + input + 128 * (1 + self.items.len())
    }
}

impl Responses {
    /// The response with this id.
    pub(crate) fn get(&self, id: &str) -> Option<&Stored> {
        self.by_id.get(id)
    }

    /// What an item of a kept response says to later turns: `Some(None)` for one that says nothing.
    pub(crate) fn item(&self, id: &str) -> Option<Option<&Turn>> {
        let stored = self.by_id.get(self.by_item.get(id)?)?;
        let (_, turn) = stored.items.iter().find(|(item, _)| **item == *id)?;
        Some(turn.as_ref())
    }

    /// Keeps a response; the oldest make room. One that is too large alone is not kept.
    pub(crate) fn keep(&mut self, id: Box<str>, stored: Stored) {
        self.remove(&id);
        let bytes = stored.bytes();
        if bytes > MOST_BYTES {
            return;
        }
        while self.bytes + bytes > MOST_BYTES || self.order.len() >= MOST {
            let Some(oldest) = self.order.pop_front() else { break };
            self.forget(&oldest);
        }
        for (item, _) in &stored.items {
            self.by_item.insert(item.clone(), id.clone());
        }
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.by_id.insert(id, stored);
    }

    /// Removes a response; returns whether it was there.
    pub(crate) fn remove(&mut self, id: &str) -> bool {
        let was_there = self.forget(id);
        if was_there {
            self.order.retain(|kept| **kept != *id);
        }
        was_there
    }

    fn forget(&mut self, id: &str) -> bool {
        let Some(stored) = self.by_id.remove(id) else { return false };
        self.bytes -= stored.bytes();
        for (item, _) in &stored.items {
            self.by_item.remove(item);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(id: &str, bytes: usize) -> Stored {
        let turn = Turn { role: Role::Assistant, content: id.into() };
        Stored {
            body: vec![b'x'; bytes].into(),
            turns: [turn.clone()].into(),
            items: [(format!("msg_{id}").into(), Some(turn))].into(),
            input: Box::default(),
        }
    }

    #[test]
    fn a_response_is_found_by_its_id_and_by_its_items() {
        let mut responses = Responses::default();
        responses.keep("a".into(), stored("a", 5));
        assert_eq!(&*responses.get("a").unwrap().turns[0].content, "a");
        assert_eq!(&*responses.item("msg_a").unwrap().unwrap().content, "a");
        assert!(responses.get("b").is_none() && responses.item("msg_b").is_none());
        assert!(responses.remove("a") && !responses.remove("a"));
        assert!(responses.get("a").is_none() && responses.item("msg_a").is_none());
        assert_eq!((responses.bytes, responses.order.len(), responses.by_item.len()), (0, 0, 0));
    }

    #[test]
    fn the_oldest_make_room_in_number_and_in_bytes() {
        let mut responses = Responses::default();
        for number in 0..MOST + 10 {
            responses.keep(number.to_string().into(), stored(&number.to_string(), 5));
        }
        assert!(responses.get("9").is_none() && responses.get("10").is_some());
        assert_eq!((responses.by_id.len(), responses.by_item.len()), (MOST, MOST));
        responses.keep("big".into(), stored("big", MOST_BYTES - 1000));
        assert!(responses.by_id.len() < 10 && responses.bytes <= MOST_BYTES);
        assert_eq!(responses.order.len(), responses.by_id.len());
        responses.keep("huge".into(), stored("huge", MOST_BYTES));
        assert!(responses.get("huge").is_none() && responses.get("big").is_some());
        let sum: usize = responses.by_id.values().map(Stored::bytes).sum();
        assert_eq!(responses.bytes, sum);
    }
}
