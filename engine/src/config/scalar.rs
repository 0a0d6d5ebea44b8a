//! What a scalar means.
//!
//! `serde_yaml` decides (YAML 1.2: `true`, `1.5`, `0x10`, `~`); on top of it come the two habits of
//! YAML 1.1 that files written for PyYAML have: `yes`/`no`/`on`/`off` where a boolean is expected,
//! and `1_000` where a number is. They are looked at only where such a value is asked for, so a
//! text `no` stays a text.

use serde_yaml::Value;

use super::tree::{Form, Scalar};

/// What an unquoted scalar is by itself; a quoted one is always text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning {
    Null,
    Boolean(bool),
    /// A whole number.
    Whole(i128),
    /// A number with a fraction or exponent; may be infinite or NaN.
    Number(f64),
    Text,
}

pub(super) fn meaning(scalar: &Scalar) -> Meaning {
    if scalar.form == Form::Text {
        return Meaning::Text;
    }
    resolve(&scalar.text)
}

/// Like [`meaning`], where a number is expected: `1_000` is one too.
pub(super) fn meaning_as_number(scalar: &Scalar) -> Meaning {
    match meaning(scalar) {
        Meaning::Text if scalar.form == Form::Plain && groups_digits(&scalar.text) => {
            resolve(&scalar.text.replace('_', ""))
        }
        other => other,
    }
}

/// Like [`meaning`], where a boolean is expected: `yes`, `no`, `on`, `off` are too.
pub(super) fn meaning_as_boolean(scalar: &Scalar) -> Meaning {
    match meaning(scalar) {
        Meaning::Text if scalar.form == Form::Plain => {
            match scalar.text.to_ascii_lowercase().as_str() {
                "yes" | "on" => Meaning::Boolean(true),
                "no" | "off" => Meaning::Boolean(false),
                _ => Meaning::Text,
            }
        }
        other => other,
    }
}

fn resolve(text: &str) -> Meaning {
    // Nothing longer is a number, and texts can be long.
    if text.len() > 64 {
        return Meaning::Text;
    }
    match serde_yaml::from_str::<Value>(text) {
        Ok(Value::Null) => Meaning::Null,
        Ok(Value::Bool(value)) => Meaning::Boolean(value),
        Ok(Value::Number(number)) => {
            let whole = number.as_u64().map(i128::from).or_else(|| number.as_i64().map(i128::from));
            match (whole, number.as_f64()) {
                (Some(whole), _) => Meaning::Whole(whole),
                (None, Some(float)) => Meaning::Number(float),
                (None, None) => Meaning::Text,
            }
        }
        // A text that only looks like YAML, or an error: it is the text that it is.
        Ok(_) | Err(_) => Meaning::Text,
    }
}

/// Digits with single underscores between them, as in `1_000` or `-2_500.5`.
fn groups_digits(text: &str) -> bool {
    let bytes = text.as_bytes();
    let between_digits = |i: usize| {
        i > 0 && bytes[i - 1].is_ascii_digit() && bytes.get(i + 1).is_some_and(u8::is_ascii_digit)
    };
    bytes.contains(&b'_')
        && bytes.iter().enumerate().all(|(i, &byte)| match byte {
            b'_' => between_digits(i),
            b'0'..=b'9' | b'.' | b'+' | b'-' => true,
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> Scalar {
        Scalar { text: text.to_owned(), form: Form::Plain }
    }

    #[test]
    fn plain_scalars_mean_what_yaml_1_2_says() {
        for (text, expected) in [
            ("", Meaning::Null),
            ("~", Meaning::Null),
            ("null", Meaning::Null),
            ("true", Meaning::Boolean(true)),
            ("12", Meaning::Whole(12)),
            ("-3", Meaning::Whole(-3)),
            ("0x10", Meaning::Whole(16)),
            ("1.5", Meaning::Number(1.5)),
            ("1e3", Meaning::Number(1000.0)),
            (".inf", Meaning::Number(f64::INFINITY)),
            ("no", Meaning::Text),
            ("1_000", Meaning::Text),
            ("010", Meaning::Text),
            ("12ab", Meaning::Text),
            ("[", Meaning::Text),
        ] {
            assert_eq!(meaning(&plain(text)), expected, "{text:?}");
        }
        let quoted = Scalar { text: "12".to_owned(), form: Form::Text };
        assert_eq!(meaning(&quoted), Meaning::Text);
    }

    #[test]
    fn habits_of_yaml_1_1_count_where_they_can_only_mean_that() {
        assert_eq!(meaning_as_number(&plain("1_000")), Meaning::Whole(1000));
        assert_eq!(meaning_as_number(&plain("1_000.5")), Meaning::Number(1000.5));
        for not in ["_1", "1_", "1__0", "a_b"] {
            assert_eq!(meaning_as_number(&plain(not)), Meaning::Text, "{not}");
        }
        assert_eq!(meaning_as_boolean(&plain("Off")), Meaning::Boolean(false));
        assert_eq!(meaning_as_boolean(&plain("yes")), Meaning::Boolean(true));
        assert_eq!(meaning_as_boolean(&plain("y")), Meaning::Text);
    }
}
