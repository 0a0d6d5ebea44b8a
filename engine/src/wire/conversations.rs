//! vLLM's `messages` of embeddings: one conversation, or a list of them.
//!
//! What a message is, [`chat`](super::chat) says. The invariant is that of [`json`](super::json):
//! reading never fails on well-formed JSON and keeps a bounded number of conversations.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::chat::fields::wrong_type;
use super::chat::messages::{self, Message, RawMessages};
use super::error::ApiError;
use super::inputs::MOST_KEPT;
use super::json::{Json, Kind, Shape, Shaped};

/// As typed.
#[derive(Debug)]
pub(super) enum RawConversations<'a> {
    /// A value that can be none.
    Other(Kind),
    /// One conversation, or none that can be taken.
    One(Vec<RawMessages<'a>>),
    /// The first of them, and how many there are.
    Several {
        /// At most [`MOST_KEPT`].
        items: Vec<RawMessages<'a>>,
        /// Of the whole array.
        len: usize,
    },
}

impl Default for RawConversations<'_> {
    fn default() -> Self {
        Self::Other(Kind::Absent)
    }
}

impl<'a> RawConversations<'a> {
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Other(kind) if kind.is_absent())
    }

    /// The conversations of the field `param`: at least one, and at most `most`.
    pub(super) fn check(
        self,
        param: &'static str,
        most: usize,
    ) -> Result<Vec<Vec<Message<'a>>>, ApiError> {
        match self {
            Self::Other(absent) if absent.is_absent() => Err(ApiError::missing(param)),
            Self::Other(other) => {
                let expected = "an array of objects, or an array of arrays of objects";
                Err(wrong_type(param, expected, other))
            }
            Self::One(items) => Ok(vec![messages::check_at(Shaped::Array(items), param)?]),
            Self::Several { len, .. } if len > most => {
                Err(ApiError::array_too_long(param, most, len))
            }
            Self::Several { items, .. } => {
                let check = |(at, item)| messages::check_at(item, &format!("{param}[{at}]"));
                items.into_iter().enumerate().map(check).collect()
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawConversations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyConversations(PhantomData))
    }
}

struct AnyConversations<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for AnyConversations<'a> {
    type Value = RawConversations<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Kind::Null))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Kind::Bool))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Kind::Integer))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Kind::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Json::Decimal(value).kind()))
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(RawConversations::Other(Kind::String))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(RawConversations::Other(Kind::Object))
    }

    /// A message in front makes it one conversation, a list in front a list of them.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items: Vec<RawMessages<'a>> = Vec::new();
        let mut len = 0;
        while let Some(item) = seq.next_element::<RawMessages<'a>>()? {
            len += 1;
            let goes_on = match (&item, items.first()) {
                (Shaped::Object(message), None | Some(Shaped::Object(_))) => !message.is_hopeless(),
                (Shaped::Array(_), None | Some(Shaped::Array(_))) => items.len() + 1 < MOST_KEPT,
                _ => false,
            };
            items.push(item);
            if !goes_on {
                break;
            }
        }
        while seq.next_element::<IgnoredAny>()?.is_some() {
            len += 1;
        }
        Ok(match items.first() {
            Some(Shaped::Array(_)) => RawConversations::Several { items, len },
            _ => RawConversations::One(items),
        })
    }
}
