//! Plain inputs: `prompt` of completions, `input` of embeddings, `text` and `input_ids` of SGLang's
//! `/generate`. One text or several, each as text or as token ids.
//!
//! It knows no tokenizer: ids stay ids. The invariant is that of [`json`](super::json): reading
//! never fails on well-formed JSON and keeps a bounded number of inputs; what is wrong with them is
//! said by [`RawInputs::check`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::chat::fields::wrong_type;
use super::error::{ApiError, BEYOND_64_BITS, Bound};
use super::json::{Kind, is_beyond_64_bits};

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// As text.
    Text(Cow<'a, str>),
    /// As the ids of its tokens; at least one.
    Ids(Vec<u32>),
}

/// The most inputs of one request that are kept: no API takes more.
pub(super) const MOST_KEPT: usize = 2048;

/// Inputs as typed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RawInputs<'a> {
    /// A value that can be none.
    Other(Kind),
    /// One text.
    Text(Cow<'a, str>),
    /// An array of numbers: one input.
    Ids(Ids),
    /// Any other array: its first items, and how many there are.
    Several {
        /// At most [`MOST_KEPT`].
        items: Vec<Item<'a>>,
        /// Of the whole array.
        len: usize,
    },
}

/// An element of an array of inputs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item<'a> {
    Text(Cow<'a, str>),
    Id(Number),
    Ids(Ids),
    Other(Kind),
}

/// Numbers up to the first that is no id.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ids {
    ids: Vec<u32>,
    wrong: Option<Wrong>,
}

/// A number, which may be no id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Id(u32),
    /// An integer outside of 32 bits.
    OutOfRange(Far),
}

/// An integer outside of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Far {
    Known(i128),
    /// Of more than 64 bits.
    Below,
    Above,
}

/// Why an element is no id.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    Kind(Kind),
    OutOfRange(Far),
}

impl Default for RawInputs<'_> {
    fn default() -> Self {
        Self::Other(Kind::Absent)
    }
}

impl<'a> RawInputs<'a> {
    /// The same where an empty text is no input: the refusal says which one it is.
    pub(super) fn check_filled(
        self,
        param: &'static str,
        most: usize,
    ) -> Result<Option<Vec<Input<'a>>>, ApiError> {
        let is_one = matches!(self, Self::Text(_));
        let Some(inputs) = self.check(param, most)? else { return Ok(None) };
        let is_empty = |input: &Input<'_>| matches!(input, Input::Text(text) if text.is_empty());
        match inputs.iter().position(is_empty) {
            Some(_) if is_one => Err(ApiError::empty_string(param)),
            Some(at) => Err(ApiError::empty_string(format!("{param}[{at}]"))),
            None => Ok(Some(inputs)),
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Other(kind) if kind.is_absent())
    }

    /// Whether these are, or begin with, objects or lists of objects: conversations.
    pub(super) fn begins_with_messages(&self) -> bool {
        let Self::Several { items, .. } = self else { return false };
        match items.first() {
            Some(Item::Other(kind)) => *kind == Kind::Object,
            Some(Item::Ids(ids)) => {
                ids.ids.is_empty() && ids.wrong == Some(Wrong::Kind(Kind::Object))
            }
            _ => false,
        }
    }

    /// The inputs, if there are at least one and at most `most`; nothing if the field is absent.
    pub(super) fn check(
        self,
        param: &'static str,
        most: usize,
    ) -> Result<Option<Vec<Input<'a>>>, ApiError> {
        match self {
            Self::Other(absent) if absent.is_absent() => Ok(None),
            Self::Other(other) => {
                let expected = "one of a string, an array of strings, an array of integers, or an \
                                array of integer arrays";
                Err(wrong_type(param, expected, other))
            }
            Self::Text(text) => Ok(Some(vec![Input::Text(text)])),
            Self::Ids(ids) => Ok(Some(vec![ids.check(param)?])),
            Self::Several { len: 0, .. } => Err(ApiError::empty_array(param)),
            Self::Several { len, .. } if len > most => {
                Err(ApiError::array_too_long(param, most, len))
            }
            Self::Several { items, .. } => {
                // All are what the first one is.
                let expected = match items.first() {
                    Some(Item::Ids(_)) => "an array of integers",
                    _ => "a string",
                };
                let wants_ids = expected != "a string";
                let check = |(at, item)| match item {
                    Item::Text(text) if !wants_ids => Ok(Input::Text(text)),
                    Item::Ids(ids) if wants_ids => ids.check(&format!("{param}[{at}]")),
                    other => Err(wrong_type(format!("{param}[{at}]"), expected, other.kind())),
                };
                items.into_iter().enumerate().map(check).collect::<Result<_, _>>().map(Some)
            }
        }
    }
}

impl Item<'_> {
    fn kind(&self) -> Kind {
        match self {
            Self::Text(_) => Kind::String,
            Self::Id(_) => Kind::Integer,
            Self::Ids(_) => Kind::Array,
            Self::Other(kind) => *kind,
        }
    }
}

impl Ids {
    fn check<'a>(self, param: &str) -> Result<Input<'a>, ApiError> {
        let path = format!("{param}[{}]", self.ids.len());
        match self.wrong {
            Some(Wrong::Kind(kind)) => Err(wrong_type(path, "an integer", kind)),
            Some(Wrong::OutOfRange(far)) => {
                let (min, max) = (Bound::Min(0), Bound::Max(u32::MAX.into()));
                Err(match far {
                    Far::Known(got) if got < 0 => ApiError::integer_out_of_range(path, min, got),
                    Far::Known(got) => ApiError::integer_out_of_range(path, max, got),
                    Far::Below => ApiError::integer_out_of_range(path, min, BEYOND_64_BITS),
                    Far::Above => ApiError::integer_out_of_range(path, max, BEYOND_64_BITS),
                })
            }
            None if self.ids.is_empty() => Err(ApiError::empty_array(param.to_owned())),
            None => Ok(Input::Ids(self.ids)),
        }
    }

    /// Reads on from a sequence whose first elements are known.
    fn read<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<(), A::Error> {
        while self.wrong.is_none() {
            match seq.next_element::<Item<'de>>()? {
                Some(item) => self.push(&item),
                None => return Ok(()),
            }
        }
        skip(seq)?;
        Ok(())
    }

    fn push(&mut self, item: &Item<'_>) {
        match item {
            Item::Id(Number::Id(id)) => self.ids.push(*id),
            Item::Id(Number::OutOfRange(got)) => self.wrong = Some(Wrong::OutOfRange(*got)),
            other => self.wrong = Some(Wrong::Kind(other.kind())),
        }
    }
}

/// Skips the rest of a sequence; returns how long it was.
fn skip<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<usize, A::Error> {
    let mut count = 0;
    while seq.next_element::<IgnoredAny>()?.is_some() {
        count += 1;
    }
    Ok(count)
}

impl<'de: 'a, 'a> Deserialize<'de> for RawInputs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // An array is told from its first element, so the top level reads like an element.
        let mut array = None;
        let item = deserializer.deserialize_any(AnyValue((Top(&mut array), PhantomData)))?;
        Ok(match (array, item) {
            (Some(inputs), _) => inputs,
            (None, Item::Text(text)) => Self::Text(text),
            (None, other) => Self::Other(other.kind()),
        })
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Item<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue((Nested, PhantomData)))
    }
}

/// What to do with an array.
trait Reader<'de: 'a, 'a>: Sized {
    fn array<A: SeqAccess<'de>>(self, seq: A) -> Result<Item<'a>, A::Error>;
}

/// An array in an array: ids.
struct Nested;

impl<'de: 'a, 'a> Reader<'de, 'a> for Nested {
    fn array<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item<'a>, A::Error> {
        let mut ids = Ids::default();
        ids.read(&mut seq)?;
        Ok(Item::Ids(ids))
    }
}

/// The field itself as an array: one input of ids, or several inputs.
struct Top<'t, 'a>(&'t mut Option<RawInputs<'a>>);

impl<'de: 'a, 'a> Reader<'de, 'a> for Top<'_, 'a> {
    fn array<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item<'a>, A::Error> {
        let mut items = Vec::new();
        let mut len = 0;
        match seq.next_element::<Item<'a>>()? {
            Some(first @ Item::Id(_)) => {
                let mut ids = Ids::default();
                ids.push(&first);
                ids.read(&mut seq)?;
                *self.0 = Some(RawInputs::Ids(ids));
                return Ok(Item::Other(Kind::Array));
            }
            Some(first) => items.push(first),
            None => {}
        }
        if !items.is_empty() {
            while items.len() < MOST_KEPT {
                match seq.next_element::<Item<'a>>()? {
                    Some(item) => items.push(item),
                    None => break,
                }
            }
            len = items.len();
            if len == MOST_KEPT {
                len += skip(&mut seq)?;
            }
        }
        *self.0 = Some(RawInputs::Several { items, len });
        Ok(Item::Other(Kind::Array))
    }
}

/// Any value as an element; arrays are read by `R`.
struct AnyValue<R>(R);

impl<'de: 'a, 'a, R: Reader<'de, 'a>> Visitor<'de> for AnyValue<(R, PhantomData<&'a ()>)> {
    type Value = Item<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Item<'a>, E> {
        Ok(Item::Other(Kind::Null))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item<'a>, E> {
        Ok(Item::Other(Kind::Bool))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item<'a>, E> {
        Ok(Item::Id(
            u32::try_from(value).map_or(Number::OutOfRange(Far::Known(value.into())), Number::Id),
        ))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item<'a>, E> {
        Ok(Item::Id(
            u32::try_from(value).map_or(Number::OutOfRange(Far::Known(value.into())), Number::Id),
        ))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Item<'a>, E> {
        Ok(match is_beyond_64_bits(value) {
            true if value < 0.0 => Item::Id(Number::OutOfRange(Far::Below)),
            true => Item::Id(Number::OutOfRange(Far::Above)),
            false => Item::Other(Kind::Decimal),
        })
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Item<'a>, E> {
        Ok(Item::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Item<'a>, E> {
        Ok(Item::Text(Cow::Owned(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Item<'a>, E> {
        Ok(Item::Text(Cow::Owned(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Item<'a>, A::Error> {
        self.0.0.array(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item<'a>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item::Other(Kind::Object))
    }
}
