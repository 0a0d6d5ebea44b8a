//! JSON as a client may have typed it: values that keep their type until somebody asks for the
//! right one, so that a wrong type is our own precise refusal and not the parser's.
//!
//! It is not a document model: arrays and objects keep a bounded number of their members, enough
//! to judge them. The invariant: deserializing a [`Json`], a [`Kind`] or a [`Shaped`] never fails
//! on well-formed JSON, so whatever the parser reports is a fault of syntax.

use std::borrow::Cow;
use std::fmt;
use std::io::Write as _;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::escape;

/// Appends `text` as a JSON string, quotes included.
pub(super) fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    escape::json_string_content(text, out);
    out.push(b'"');
}

/// Appends `text` as a JSON string, or `null`.
pub(super) fn push_optional_string(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => push_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Whether a number is an integer of more than 64 bits, which reaches us as floating point.
pub(super) fn is_beyond_64_bits(value: f64) -> bool {
    value.fract() == 0.0 && (value >= 2f64.powi(64) || value <= -(2f64.powi(63)))
}

/// Appends a decimal with its point, so that it stays one.
fn push_float(out: &mut Vec<u8>, value: f64) {
    write!(out, "{:?}", value.clamp(f64::MIN, f64::MAX)).expect("writing to memory cannot fail");
}

/// A body whose numbers no float can hold, such as `1e400`, are replaced by the largest that there
/// is; `None` if it has none. The parser takes such a number for a fault of syntax, but it is one
/// of range or of type, and whoever reads the largest float as a [`Json`] gets infinity.
pub fn within_floats(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    // Where what has been copied ends.
    let (mut copied, mut at) = (0, 0);
    while let Some(&byte) = body.get(at) {
        match byte {
            b'"' => {
                at += 1;
                while let Some(&byte) = body.get(at).filter(|&&byte| byte != b'"') {
                    at += if byte == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                let len = body[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = std::str::from_utf8(&body[at..at + len]).ok()?;
                if let Some(float) = number.parse().ok().filter(|float: &f64| float.is_infinite()) {
                    out.extend_from_slice(&body[copied..at]);
                    push_float(&mut out, float);
                    copied = at + len;
                }
                at += len;
            }
            _ => at += 1,
        }
    }
    (copied > 0).then(|| {
        out.extend_from_slice(&body[copied..]);
        out
    })
}

/// The type of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Not sent.
    #[default]
    Absent,
    Null,
    Bool,
    Integer,
    Decimal,
    String,
    Array,
    Object,
}

impl Kind {
    /// With its article, as OpenAI's messages name it.
    pub(super) fn with_article(self) -> &'static str {
        match self {
            Self::Absent => "nothing",
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Integer => "an integer",
            Self::Decimal => "a decimal number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }

    /// Null counts as not sent, as on OpenAI and vLLM.
    pub(super) fn is_absent(self) -> bool {
        matches!(self, Self::Absent | Self::Null)
    }
}

/// A value of any type.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Json<'a> {
    #[default]
    Absent,
    Null,
    Bool(bool),
    Integer(i64),
    /// An integer above `i64::MAX`.
    HugeInteger(u64),
    Decimal(f64),
    String(Cow<'a, str>),
    /// Boxed like objects, so that the strings and numbers that most values are take 24 bytes and
    /// not 40: each is moved several times on its way out of the parser.
    Array(Box<Array<'a>>),
    Object(Box<Object<'a>>),
}

/// The first [`KEPT`] elements, and how many there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Array<'a> {
    pub(super) items: Vec<Json<'a>>,
    pub(super) len: usize,
}

/// The first [`KEPT`] members, and how many there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Object<'a> {
    pub(super) members: Vec<(Cow<'a, str>, Json<'a>)>,
    pub(super) len: usize,
}

/// How many members an array or object keeps. A value takes 12 times the bytes of `1,` in memory:
/// without a bound a body of a few megabytes would take some hundred.
const KEPT: usize = 1024;

impl<'a> Json<'a> {
    /// Appends the value as JSON, as far as it was kept; what is absent is `null`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Absent | Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
            Self::Integer(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::HugeInteger(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Decimal(value) => push_float(out, *value),
            Self::String(text) => push_string(out, text),
            Self::Array(array) => {
                out.push(b'[');
                for (at, item) in array.items.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b"," } else { b"" });
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Object(object) => {
                out.push(b'{');
                for (at, (name, value)) in object.members.iter().enumerate() {
                    out.extend_from_slice(if at > 0 { b"," } else { b"" });
                    push_string(out, name);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
        }
    }

    /// The value as a text of JSON.
    pub(super) fn to_text(&self) -> String {
        let mut out = Vec::new();
        self.write(&mut out);
        String::from_utf8(out).expect("what is appended is text")
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Absent => Kind::Absent,
            Self::Null => Kind::Null,
            Self::Bool(_) => Kind::Bool,
            Self::Integer(_) | Self::HugeInteger(_) => Kind::Integer,
            Self::Decimal(value) if is_beyond_64_bits(*value) => Kind::Integer,
            Self::Decimal(_) => Kind::Decimal,
            Self::String(_) => Kind::String,
            Self::Array(_) => Kind::Array,
            Self::Object(_) => Kind::Object,
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent | Self::Null)
    }
}

impl<'a> Object<'a> {
    /// The member of that name; a repeated one counts as its last, as in most parsers.
    pub(super) fn get(&self, name: &str) -> &Json<'a> {
        self.members
            .iter()
            .rev()
            .find_map(|(key, value)| (key == name).then_some(value))
            .unwrap_or(&Json::Absent)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson(PhantomData))
    }
}

struct AnyJson<'a>(PhantomData<&'a ()>);

impl<'de: 'a, 'a> Visitor<'de> for AnyJson<'a> {
    type Value = Json<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'a>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'a>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'a>, E> {
        Ok(Json::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'a>, E> {
        Ok(i64::try_from(value).map_or(Json::HugeInteger(value), Json::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'a>, E> {
        let is_beyond = value.abs() == f64::MAX;
        Ok(Json::Decimal(if is_beyond { value * 2.0 } else { value }))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Owned(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Json<'a>, E> {
        Ok(Json::String(Cow::Owned(value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json<'a>, A::Error> {
        let mut array = Array::default();
        while array.items.len() < KEPT {
            match seq.next_element()? {
                Some(item) => array.items.push(item),
                None => break,
            }
        }
        array.len = array.items.len();
        if array.len == KEPT {
            while seq.next_element::<IgnoredAny>()?.is_some() {
                array.len += 1;
            }
        }
        Ok(Json::Array(Box::new(array)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'a>, A::Error> {
        let mut object = Object::default();
        while object.members.len() < KEPT {
            match map.next_entry::<Key<'a>, Json<'a>>()? {
                Some((key, value)) => object.members.push((key.0, value)),
                None => break,
            }
        }
        object.len = object.members.len();
        if object.len == KEPT {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                object.len += 1;
            }
        }
        Ok(Json::Object(Box::new(object)))
    }
}

/// A member's name, borrowed unless it is escaped.
struct Key<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Key<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for KeyVisitor<'a> {
            type Value = Key<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a member's name")
            }
            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Key<'a>, E> {
                Ok(Key(Cow::Borrowed(value)))
            }
            fn visit_str<E>(self, value: &str) -> Result<Key<'a>, E> {
                Ok(Key(Cow::Owned(value.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyKind;
        impl<'de> Visitor<'de> for AnyKind {
            type Value = Kind;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any JSON value")
            }
            fn visit_unit<E>(self) -> Result<Kind, E> {
                Ok(Kind::Null)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Kind, E> {
                Ok(Kind::Bool)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Kind, E> {
                Ok(Kind::Integer)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Kind, E> {
                Ok(Kind::Integer)
            }
            fn visit_f64<E>(self, value: f64) -> Result<Kind, E> {
                Ok(Json::Decimal(value).kind())
            }
            fn visit_str<E>(self, _: &str) -> Result<Kind, E> {
                Ok(Kind::String)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Kind::Array)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Kind::Object)
            }
        }
        deserializer.deserialize_any(AnyKind)
    }
}

/// A value that should be an object of the shape `T`, or an array of such, or a string; and is
/// one of them, or something else.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shaped<'a, T> {
    String(Cow<'a, str>),
    Array(Vec<Shaped<'a, T>>),
    Object(T),
    /// Any other type, absent included.
    Other(Kind),
}

/// What [`Shaped`] arrays hold.
pub(super) trait Shape {
    /// Whether this element alone will get the request refused. Arrays keep nothing behind such
    /// an element, so that a body of a few megabytes of `{},{},{}` takes no hundreds of megabytes.
    fn is_hopeless(&self) -> bool;
}

impl<T> Default for Shaped<'_, T> {
    fn default() -> Self {
        Self::Other(Kind::Absent)
    }
}

impl<T> Shaped<'_, T> {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::String(_) => Kind::String,
            Self::Array(_) => Kind::Array,
            Self::Object(_) => Kind::Object,
            Self::Other(kind) => *kind,
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.kind().is_absent()
    }
}

impl<'de: 'a, 'a, T: Deserialize<'de> + Shape> Deserialize<'de> for Shaped<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyShape(PhantomData))
    }
}

struct AnyShape<'a, T>(PhantomData<(&'a (), T)>);

impl<'de: 'a, 'a, T: Deserialize<'de> + Shape> Visitor<'de> for AnyShape<'a, T> {
    type Value = Shaped<'a, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Shaped::Other(Kind::Null))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(Shaped::Other(Kind::Bool))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(Shaped::Other(Kind::Integer))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(Shaped::Other(Kind::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Shaped::Other(Json::Decimal(value).kind()))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Shaped::String(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Shaped::String(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Shaped<'a, T>>()? {
            let hopeless = match &item {
                Shaped::Object(object) => object.is_hopeless(),
                _ => true,
            };
            items.push(item);
            if hopeless {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                break;
            }
        }
        Ok(Shaped::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Shaped::Object)
    }
}
