//! One line of a trace: a flat JSON object whose empty fields are left out.

use std::fmt::{Display, Write};

use crate::sim::scheduler::BlockId;

/// A JSON object under construction.
pub(super) struct Line {
    text: String,
}

impl Line {
    pub(super) fn new(step: u64) -> Self {
        Self { text: format!("{{\"s\":{step}") }
    }

    pub(super) fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }

    pub(super) fn number(&mut self, name: &str, value: impl Display) {
        self.field(name, &value.to_string());
    }

    pub(super) fn list<T: Display>(&mut self, name: &str, items: &[T]) {
        if !items.is_empty() {
            self.always_list(name, items);
        }
    }

    /// Written even if it is empty.
    pub(super) fn always_list<T: Display>(&mut self, name: &str, items: &[T]) {
        self.field(name, &array(items.iter().map(ToString::to_string)));
    }

    pub(super) fn pairs(&mut self, name: &str, pairs: &[(usize, u32)]) {
        if !pairs.is_empty() {
            self.field(name, &array(pairs.iter().map(|(a, b)| format!("[{a},{b}]"))));
        }
    }

    /// [request, text] pairs.
    pub(super) fn marks<T: Display>(&mut self, name: &str, marks: &[(usize, T)]) {
        if !marks.is_empty() {
            self.field(name, &array(marks.iter().map(|(a, b)| format!("[{a},\"{b}\"]"))));
        }
    }

    /// [request, blocks] pairs.
    pub(super) fn tables(&mut self, name: &str, tables: &[(usize, &[BlockId])]) {
        if !tables.is_empty() {
            let entries = tables.iter().map(|(request, blocks)| {
                let numbers = array(blocks.iter().map(|block| block.get().to_string()));
                format!("[{request},{numbers}]")
            });
            self.field(name, &array(entries));
        }
    }

    fn field(&mut self, name: &str, value: &str) {
        write!(self.text, ",\"{name}\":{value}").expect("a String takes all that is written");
    }
}

fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

/// A JSON string in ASCII, as Python's `json.dumps` writes it.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for unit in text.encode_utf16() {
        match char::from_u32(u32::from(unit)) {
            Some('"') => quoted.push_str("\\\""),
            Some('\\') => quoted.push_str("\\\\"),
            Some('\n') => quoted.push_str("\\n"),
            Some('\r') => quoted.push_str("\\r"),
            Some('\t') => quoted.push_str("\\t"),
            Some(plain @ ' '..='~') => quoted.push(plain),
            _ => write!(quoted, "\\u{unit:04x}").expect("a String takes all that is written"),
        }
    }
    quoted.push('"');
    quoted
}
