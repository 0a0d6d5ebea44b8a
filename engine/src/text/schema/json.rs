//! JSON as a value: what schemas are written in and what they describe.
//!
//! Not the wire's JSON, which keeps no more of a value than it needs to judge it. The one
//! invariant: a number is written as it was read.

use std::fmt::Write as _;

/// A JSON value. Members keep their order.
#[derive(Clone, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object.
    Object(Vec<(String, Value)>),
}

/// A number, as it was or will be written.
#[derive(Clone, Debug)]
pub struct Number {
    text: Box<str>,
    /// The nearest floating-point number.
    pub value: f64,
}

/// A text that is no JSON, or none that is read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson {
    /// Where, in bytes.
    pub at: usize,
}

/// Deeper values are not read: the reader calls itself.
const MAX_DEPTH: usize = 128;

impl Value {
    /// Reads a text.
    ///
    /// # Errors
    /// Where it is no JSON, or nested deeper than 128 levels.
    pub fn parse(text: &str) -> Result<Self, NotJson> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at == text.len() { Ok(value) } else { Err(NotJson { at: reader.at }) }
    }

    /// An integer.
    pub fn integer(value: i64) -> Self {
        Self::Number(Number { text: value.to_string().into(), value: value as f64 })
    }

    /// A finite number.
    pub fn decimal(value: f64) -> Self {
        assert!(value.is_finite(), "JSON has no other numbers");
        Self::Number(Number { text: value.to_string().into(), value })
    }

    /// The member of that name, if this is an object that has one.
    pub fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        members.iter().rev().find_map(|(key, value)| (key == name).then_some(value))
    }

    /// The text, if this is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if this is one.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number.value),
            _ => None,
        }
    }

    /// The elements, if this is an array.
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The members, if this is an object.
    pub fn as_object(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    /// Whether two values are equal as JSON Schema has it: `1` is `1.0`, and members have no order.
    pub fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(one), Self::Bool(other)) => one == other,
            (Self::Number(one), Self::Number(other)) => one.value == other.value,
            (Self::String(one), Self::String(other)) => one == other,
            (Self::Array(one), Self::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.equals(b))
            }
            (Self::Object(one), Self::Object(members)) => {
                one.len() == members.len()
                    && one.iter().all(|(key, a)| other.get(key).is_some_and(|b| a.equals(b)))
            }
            _ => false,
        }
    }

    /// Appends the value as models write it: a blank after each comma and colon.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Number(number) => out.push_str(&number.text),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (at, (key, value)) in members.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    write_string(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char < ' ' => {
                write!(out, "\\u{:04x}", u32::from(char)).expect("writing to memory cannot fail");
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, NotJson> {
        self.space();
        if depth > MAX_DEPTH {
            return self.fail();
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'n') => self.word("null", Value::Null),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.fail(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut members = Vec::new();
        self.at += 1;
        self.space();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.fail();
            }
            let key = self.string()?;
            self.space();
            if !self.take(b':') {
                return self.fail();
            }
            members.push((key, self.value(depth + 1)?));
            self.space();
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.take(b',') {
                return self.fail();
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut items = Vec::new();
        self.at += 1;
        self.space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return self.fail();
            }
        }
    }

    fn string(&mut self) -> Result<String, NotJson> {
        let mut text = String::new();
        self.at += 1;
        loop {
            let rest = &self.text[self.at..];
            let Some(stop) = rest.find(|char| matches!(char, '"' | '\\') || char < ' ') else {
                return self.fail();
            };
            text.push_str(&rest[..stop]);
            self.at += stop;
            match rest.as_bytes()[stop] {
                b'"' => {
                    self.at += 1;
                    return Ok(text);
                }
                b'\\' => text.push(self.escape()?),
                _ => return self.fail(),
            }
        }
    }

    fn escape(&mut self) -> Result<char, NotJson> {
        let letter = self.text.as_bytes().get(self.at + 1).copied();
        let char = match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.code_point(),
            _ => return self.fail(),
        };
        self.at += 2;
        Ok(char)
    }

    fn code_point(&mut self) -> Result<char, NotJson> {
        let high = self.hex()?;
        let code = if (0xD800..0xDC00).contains(&high) {
            let low = self.hex()?;
            0x10000 + ((high - 0xD800) << 10) + low.wrapping_sub(0xDC00)
        } else {
            high
        };
        char::from_u32(code).ok_or(NotJson { at: self.at })
    }

    /// `\uXXXX` at the present place.
    fn hex(&mut self) -> Result<u32, NotJson> {
        let digits = self.text.get(self.at..self.at + 6).and_then(|it| it.strip_prefix("\\u"));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at += 6;
        code.ok_or(NotJson { at: self.at })
    }

    fn number(&mut self) -> Result<Value, NotJson> {
        let rest = &self.text[self.at..];
        let end = rest.find(|char| !matches!(char, '0'..='9' | '-' | '+' | '.' | 'e' | 'E'));
        let text = &rest[..end.unwrap_or(rest.len())];
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => {
                self.at += text.len();
                Ok(Value::Number(Number { text: text.into(), value }))
            }
            _ => self.fail(),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, NotJson> {
        if !self.text[self.at..].starts_with(word) {
            return self.fail();
        }
        self.at += word.len();
        Ok(value)
    }

    fn space(&mut self) {
        let rest = self.text[self.at..].trim_start_matches([' ', '\t', '\n', '\r']);
        self.at = self.text.len() - rest.len();
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn fail<T>(&self) -> Result<T, NotJson> {
        Err(NotJson { at: self.at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Result<String, NotJson> {
        let mut out = String::new();
        Value::parse(text)?.write(&mut out);
        Ok(out)
    }

    #[test]
    fn a_value_is_written_as_it_was_read() {
        let text =
            r#"{"a": [1, -2.50, 1e3, null, true, false], "b": {}, "c": [], "d\n\"": "é😀\u0001"}"#;
        assert_eq!(written(text).unwrap(), text);
        assert_eq!(written(" [ \"\\ud83d\\ude00\\/\" ] ").unwrap(), "[\"😀/\"]");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in
            ["", "{", "[1,]", "{\"a\"}", "\"\\x\"", "\"\\ud83d\"", "nul", "1e999", "1 2", "é"]
        {
            assert!(written(text).is_err(), "{text}");
        }
        assert!(written(&"[".repeat(100_000)).is_err());
    }

    #[test]
    fn members_have_no_order_and_numbers_no_spelling() {
        let equal = |one, other| Value::parse(one).unwrap().equals(&Value::parse(other).unwrap());
        assert!(equal(r#"{"a":1,"b":[2]}"#, r#"{"b":[2.0],"a":1e0}"#));
        assert!(!equal(r#"{"a":1}"#, r#"{"a":1,"b":1}"#));
        assert!(!equal("0", "false"));
    }
}
