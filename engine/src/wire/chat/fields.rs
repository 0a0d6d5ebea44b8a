//! The checks of single fields: right type, right range, or the refusal that OpenAI would send.
//!
//! Each takes a value as typed and the field's path; absent and null both give `None`, which is what
//! nearly all fields of nearly all requests are: it is looked at where the check stands, without a call.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use crate::wire::error::{ApiError, BEYOND_64_BITS, Bound};
use crate::wire::json::{Json, Kind, is_beyond_64_bits};

/// A path for `param`; built only when a refusal needs it, except for constants.
pub(in crate::wire) type Path = Cow<'static, str>;

#[inline]
pub(in crate::wire) fn boolean(
    json: &Json<'_>,
    param: impl Into<Path>,
) -> Result<Option<bool>, ApiError> {
    match json {
        Json::Absent | Json::Null => Ok(None),
        Json::Bool(value) => Ok(Some(*value)),
        other => Err(wrong_type(param, "a boolean", other.kind())),
    }
}

#[inline]
pub(in crate::wire) fn integer(
    json: &Json<'_>,
    param: impl Into<Path>,
    range: RangeInclusive<i64>,
) -> Result<Option<i64>, ApiError> {
    if json.is_absent() { Ok(None) } else { integer_sent(json, param.into(), &range).map(Some) }
}

fn integer_sent(
    json: &Json<'_>,
    param: Path,
    range: &RangeInclusive<i64>,
) -> Result<i64, ApiError> {
    let (min, max) = (Bound::Min(*range.start()), Bound::Max(*range.end()));
    match *json {
        Json::Integer(value) if value < *range.start() => {
            Err(ApiError::integer_out_of_range(param, min, value))
        }
        Json::Integer(value) if value > *range.end() => {
            Err(ApiError::integer_out_of_range(param, max, value))
        }
        Json::Integer(value) => Ok(value),
        Json::HugeInteger(value) => Err(ApiError::integer_out_of_range(param, max, value)),
        Json::Decimal(value) if is_beyond_64_bits(value) => {
            let bound = if value > 0.0 { max } else { min };
            Err(ApiError::integer_out_of_range(param, bound, BEYOND_64_BITS))
        }
        ref other => Err(wrong_type(param, "an integer", other.kind())),
    }
}

#[inline]
pub(in crate::wire) fn decimal(
    json: &Json<'_>,
    param: impl Into<Path>,
    range: RangeInclusive<f64>,
) -> Result<Option<f64>, ApiError> {
    if json.is_absent() { Ok(None) } else { decimal_sent(json, param.into(), &range).map(Some) }
}

fn decimal_sent(
    json: &Json<'_>,
    param: Path,
    range: &RangeInclusive<f64>,
) -> Result<f64, ApiError> {
    let value = match *json {
        Json::Integer(value) => value as f64,
        Json::HugeInteger(value) => value as f64,
        Json::Decimal(value) => value,
        ref other => return Err(wrong_type(param, "a decimal", other.kind())),
    };
    if value < *range.start() {
        return Err(ApiError::decimal_out_of_range(param, Bound::Min(*range.start()), value));
    }
    if value > *range.end() {
        return Err(ApiError::decimal_out_of_range(param, Bound::Max(*range.end()), value));
    }
    Ok(value)
}

#[inline]
pub(in crate::wire) fn string<'a>(
    json: Json<'a>,
    param: impl Into<Path>,
) -> Result<Option<Cow<'a, str>>, ApiError> {
    match json {
        Json::Absent | Json::Null => Ok(None),
        Json::String(text) => Ok(Some(text)),
        other => Err(wrong_type(param, "a string", other.kind())),
    }
}

/// A string that must be there; it may be empty.
pub(in crate::wire) fn required<'a>(
    json: Json<'a>,
    param: impl Into<Path>,
) -> Result<Cow<'a, str>, ApiError> {
    match json {
        Json::String(text) => Ok(text),
        absent if absent.is_absent() => Err(ApiError::missing(param)),
        other => Err(wrong_type(param, "a string", other.kind())),
    }
}

/// A string of at most `max` characters.
#[inline]
pub(in crate::wire) fn short_string<'a>(
    json: Json<'a>,
    param: impl Into<Path>,
    max: usize,
) -> Result<Option<Cow<'a, str>>, ApiError> {
    if json.is_absent() {
        return Ok(None);
    }
    let param = param.into();
    let text = string(json, param.clone())?;
    if let Some(text) = &text
        // Characters are at most bytes: count them only if there is a doubt.
        && text.len() > max
        && text.chars().count() > max
    {
        return Err(ApiError::string_too_long(param, max, text.chars().count()));
    }
    Ok(text)
}

/// A field of which only the type is looked at.
#[inline]
pub(in crate::wire) fn only_type(
    got: Kind,
    param: &'static str,
    expected: Kind,
) -> Result<(), ApiError> {
    if got.is_absent() || got == expected {
        return Ok(());
    }
    Err(wrong_type(param, expected.with_article(), got))
}

pub(in crate::wire) fn wrong_type(param: impl Into<Path>, expected: &str, got: Kind) -> ApiError {
    ApiError::invalid_type(param, expected, got.with_article())
}
