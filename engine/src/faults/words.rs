//! Words: a text as keys and values, each with its place.
//!
//! What a word means is `read`'s business. The invariant: every word remembers which of the words
//! it was, so that a complaint can say where.

use std::fmt;

/// One word: `first=2`, or a bare `close`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// What stands before the `=`.
    pub key: String,
    /// What stands behind it, without quotes.
    pub value: Option<String>,
    /// Characters before it in the text that it was split from.
    pub offset: usize,
}

impl Word {
    /// A word that was not split from a text.
    pub fn new(key: impl Into<String>, value: Option<String>) -> Self {
        Self { key: key.into(), value, offset: 0 }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        match &self.value {
            None => Ok(()),
            Some(value) if value.is_empty() || value.contains([' ', ';', '\t']) => {
                write!(f, "=\"{value}\"")
            }
            Some(value) => write!(f, "={value}"),
        }
    }
}

/// What is wrong with a word, or with all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadWord {
    /// Which of the words; `None`: what is wrong is missing.
    pub word: Option<usize>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
    /// It is a key that is not known.
    pub is_unknown: bool,
}

impl BadWord {
    pub(super) fn at(word: usize, message: impl Into<String>) -> Self {
        Self { word: Some(word), message: message.into(), hint: None, is_unknown: false }
    }

    pub(super) fn whole(message: impl Into<String>) -> Self {
        Self { word: None, message: message.into(), hint: None, is_unknown: false }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for BadWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// All keys that a rule can have: the faults, what they take, and when they come.
pub const KEYS: &[&str] = &[
    "status",
    "queue_full",
    "capacity",
    "starting",
    "draining",
    "hang",
    "close",
    "reset",
    "delay",
    "slow_headers",
    "content_type",
    "rpm",
    "tpm",
    "stop",
    "stall",
    "malformed_json",
    "truncated_event",
    "invalid_utf8",
    "duplicate",
    "drop",
    "error_event",
    "no_done",
    "no_finish",
    "slow",
    "pause",
    "shrink",
    "preempt",
    "crash",
    "retry_after",
    "retry_after_date",
    "retry_after_ms",
    "should_retry",
    "message",
    "type",
    "code",
    "body",
    "after",
    "end",
    "model",
    "gpu",
    "path",
    "header",
    "key",
    "contains",
    "p",
    "first",
    "every",
    "per",
    "at",
    "for",
    "load",
    "stream",
];

/// Splits a text into rules at `;` and each into words at spaces. A value in double quotes may have
/// both in it.
///
/// # Errors
/// A quote without its end; the word is counted over the whole text.
pub fn split(text: &str) -> Result<Vec<Vec<Word>>, BadWord> {
    let mut rules = vec![Vec::new()];
    let mut count = 0;
    let mut chars = text.chars().enumerate().peekable();
    while let Some(&(offset, c)) = chars.peek() {
        if c == ';' || c.is_whitespace() {
            chars.next();
            if c == ';' {
                rules.push(Vec::new());
            }
            continue;
        }
        let (mut key, mut value) = (String::new(), None::<String>);
        let mut is_quoted = false;
        while let Some(&(_, c)) = chars.peek() {
            if !is_quoted && (c == ';' || c.is_whitespace()) {
                break;
            }
            chars.next();
            match (&mut value, c) {
                (Some(_), '"') => is_quoted = !is_quoted,
                (Some(value), c) => value.push(c),
                (None, '=') => value = Some(String::new()),
                (None, c) => key.push(c),
            }
        }
        if is_quoted {
            return Err(BadWord::at(count, "a quote has no end").hint("close it with \""));
        }
        count += 1;
        rules.last_mut().expect("there is always one").push(Word { key, value, offset });
    }
    rules.retain(|words| !words.is_empty());
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_split_at_spaces_and_semicolons_but_not_in_quotes() {
        let rules = split("status=429  first=2;contains=\"a; b\" close; ;").unwrap();
        let said: Vec<Vec<String>> =
            rules.iter().map(|words| words.iter().map(Word::to_string).collect()).collect();
        assert_eq!(said, [vec!["status=429", "first=2"], vec!["contains=\"a; b\"", "close"]]);
        assert_eq!(rules[1][0].offset, 20);
        assert_eq!(split("close message=\"x").unwrap_err().word, Some(1));
        assert_eq!(split("  ").unwrap(), Vec::<Vec<Word>>::new());
    }
}
