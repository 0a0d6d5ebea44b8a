//! Responses that can be had again: by `GET /v1/responses/{id}`, `previous_response_id` and
//! `item_reference`.
//!
//! Not a database: what is kept is bounded in number and bytes, the oldest goes first, and nothing
//! outlives the process. The invariant: [`Responses::bytes`] is the sum of what is kept, and never
//! above [`MOST_BYTES`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use llmsim_engine::wire::chat::{Message, Role};

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

impl Turn {
    pub(crate) fn of(message: &Message<'_>) -> Self {
        Self { role: message.role, content: message.content.as_ref().into() }
    }

    pub(crate) fn message(&self) -> Message<'_> {
        Message { role: self.role, content: self.content.as_ref().into() }
    }
}

/// What can be kept.
pub(crate) trait Keep {
    /// The ids of its items, each with its place in the response.
    fn items(&self) -> impl Iterator<Item = (usize, &str)>;

    /// What it takes. What others have, too, is counted for each of them.
    fn bytes(&self) -> usize;
}

/// All responses that are kept. Its methods only look things up, whatever the responses are like:
/// I/O threads wait for whoever is in one of them.
#[derive(Debug)]
pub(crate) struct Responses<T> {
    by_id: BTreeMap<Box<str>, Arc<T>>,
    /// Which response an item belongs to, and its place there.
    by_item: BTreeMap<Box<str>, (Box<str>, usize)>,
    /// In the order in which they came.
    order: VecDeque<Box<str>>,
    bytes: usize,
}

impl<T> Default for Responses<T> {
    fn default() -> Self {
        Self { by_id: BTreeMap::new(), by_item: BTreeMap::new(), order: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Keep> Responses<T> {
    /// The response with this id.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<T>> {
        self.by_id.get(id).map(Arc::clone)
    }

    /// The kept response that has this item, and the item's place in it.
    pub(crate) fn item(&self, id: &str) -> Option<(Arc<T>, usize)> {
        let (response, place) = self.by_item.get(id)?;
        Some((self.get(response)?, *place))
    }

    /// Keeps a response; the oldest make room, and are given back, so that they can be dropped where
    /// nobody waits for it. One that is too large alone is not kept.
    pub(crate) fn keep(&mut self, id: Box<str>, response: Arc<T>) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        gone.extend(self.remove(&id));
        let bytes = response.bytes();
        if bytes > MOST_BYTES {
            return gone;
        }
        while self.bytes + bytes > MOST_BYTES || self.order.len() >= MOST {
            let Some(oldest) = self.order.pop_front() else { break };
            gone.extend(self.forget(&oldest));
        }
        for (place, item) in response.items() {
            self.by_item.insert(item.into(), (id.clone(), place));
        }
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.by_id.insert(id, response);
        gone
    }

    /// Removes a response; gives it back if it was there.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Arc<T>> {
        let response = self.forget(id)?;
        self.order.retain(|kept| **kept != *id);
        Some(response)
    }

    fn forget(&mut self, id: &str) -> Option<Arc<T>> {
        let response = self.by_id.remove(id)?;
        self.bytes -= response.bytes();
        for (_, item) in response.items() {
            self.by_item.remove(item);
        }
        Some(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Kept {
        item: String,
        bytes: usize,
    }

    impl Keep for Kept {
        fn items(&self) -> impl Iterator<Item = (usize, &str)> {
            std::iter::once((0, &*self.item))
        }

        fn bytes(&self) -> usize {
            self.bytes
        }
    }

    fn kept(id: &str, bytes: usize) -> Arc<Kept> {
        Arc::new(Kept { item: format!("msg_{id}"), bytes })
    }

    #[test]
    fn a_response_is_found_by_its_id_and_by_its_items() {
        let mut responses = Responses::default();
        assert!(responses.keep("a".into(), kept("a", 5)).is_empty());
        assert_eq!(responses.get("a").unwrap().item, "msg_a");
        let (response, place) = responses.item("msg_a").unwrap();
        assert_eq!((&*response.item, place), ("msg_a", 0));
        assert!(responses.get("b").is_none() && responses.item("msg_b").is_none());
        assert!(responses.remove("a").is_some() && responses.remove("a").is_none());
        assert!(responses.get("a").is_none() && responses.item("msg_a").is_none());
        assert_eq!((responses.bytes, responses.order.len(), responses.by_item.len()), (0, 0, 0));
    }

    #[test]
    fn the_oldest_make_room_in_number_and_in_bytes_and_are_given_back() {
        let mut responses = Responses::default();
        let mut gone = 0;
        for number in 0..MOST + 10 {
            gone += responses.keep(number.to_string().into(), kept(&number.to_string(), 5)).len();
        }
        assert_eq!(gone, 10);
        assert!(responses.get("9").is_none() && responses.get("10").is_some());
        assert_eq!((responses.by_id.len(), responses.by_item.len()), (MOST, MOST));
        let gone = responses.keep("big".into(), kept("big", MOST_BYTES - 20));
        assert_eq!((responses.by_id.len(), gone.len()), (5, MOST - 4));
        assert_eq!(responses.order.len(), responses.by_id.len());
        responses.keep("huge".into(), kept("huge", MOST_BYTES + 1));
        assert!(responses.get("huge").is_none() && responses.get("big").is_some());
        // The same one again takes its own place.
        assert_eq!(responses.keep("big".into(), kept("big", 5)).len(), 1);
        let sum: usize = responses.by_id.values().map(|kept| kept.bytes()).sum();
        assert_eq!(responses.bytes, sum);
    }
}
