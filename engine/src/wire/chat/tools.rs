//! `tools`, `tool_choice`, `response_format` and `logit_bias`: validated as OpenAI does, so that a
//! wrong request is told so whether or not the answer would use them.

use super::fields::{boolean, decimal, short_string, string, wrong_type};
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Object};

const MAX_TOOLS: usize = 128;
const MAX_NAME_CHARS: usize = 64;

/// How many tools there are.
pub(in crate::wire) fn tools(json: &Json<'_>) -> Result<usize, ApiError> {
    let array = match json {
        absent if absent.is_absent() => return Ok(0),
        Json::Array(array) => array,
        other => return Err(wrong_type("tools", "an array of objects", other.kind())),
    };
    if array.len == 0 {
        return Err(ApiError::empty_array("tools"));
    }
    if array.len > MAX_TOOLS {
        return Err(ApiError::array_too_long("tools", MAX_TOOLS, array.len));
    }
    for (at, item) in array.items.iter().enumerate() {
        tool(&format!("tools[{at}]"), item)?;
    }
    Ok(array.len)
}

fn tool(path: &str, json: &Json<'_>) -> Result<(), ApiError> {
    let Json::Object(tool) = json else {
        return Err(wrong_type(path.to_owned(), "an object", json.kind()));
    };
    let member = match required_string(tool, path, "type")? {
        "function" => "function",
        "custom" => "custom",
        other => {
            let allowed = ["function", "custom"];
            return Err(ApiError::not_one_of(format!("{path}.type"), other, &allowed));
        }
    };
    let inner = required_object(tool, path, member)?;
    let path = format!("{path}.{member}");
    name(&path, required_string(inner, &path, "name")?)?;
    string(inner.get("description").clone(), format!("{path}.description"))?;
    optional_object(inner, &path, "parameters")?;
    boolean(inner.get("strict"), format!("{path}.strict"))?;
    Ok(())
}

pub(in crate::wire) fn name(path: &str, name: &str) -> Result<(), ApiError> {
    let path = format!("{path}.name");
    if name.is_empty() {
        return Err(ApiError::empty_string(path));
    }
    short_string(Json::String(name.into()), path.clone(), MAX_NAME_CHARS)?;
    if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
        return Ok(());
    }
    let why = "the string does not match the pattern '^[a-zA-Z0-9_-]+$'.";
    Err(ApiError::invalid_value(path, why))
}

/// Checks `tool_choice` against the `tools` beside it.
pub(in crate::wire) fn tool_choice(json: &Json<'_>, tools: &Json<'_>) -> Result<(), ApiError> {
    if json.is_absent() {
        return Ok(());
    }
    if tools.is_absent() {
        return Err(ApiError::only_with("tool_choice", "'tools' are specified"));
    }
    let choice = match json {
        Json::String(word) => {
            let allowed = ["none", "auto", "required"];
            if allowed.contains(&word.as_ref()) {
                return Ok(());
            }
            return Err(ApiError::not_one_of("tool_choice", word, &allowed));
        }
        Json::Object(choice) => choice,
        other => {
            let expected = "one of a string or an object";
            return Err(wrong_type("tool_choice", expected, other.kind()));
        }
    };
    let member = match required_string(choice, "tool_choice", "type")? {
        "function" => "function",
        "custom" => "custom",
        // A subset of the tools: nothing to check that changes an answer.
        "allowed_tools" => return Ok(()),
        other => {
            let allowed = ["function", "custom", "allowed_tools"];
            return Err(ApiError::not_one_of("tool_choice.type", other, &allowed));
        }
    };
    let inner = required_object(choice, "tool_choice", member)?;
    let chosen = required_string(inner, &format!("tool_choice.{member}"), "name")?;
    if names_of(tools, member).any(|name| name == chosen) {
        return Ok(());
    }
    Err(ApiError::invalid_value(
        "tool_choice",
        "the chosen tool is not among 'tools'; take the 'name' of one of them.",
    ))
}

fn names_of<'a>(tools: &'a Json<'_>, member: &'a str) -> impl Iterator<Item = &'a str> {
    let items = match tools {
        Json::Array(array) => array.items.as_slice(),
        _ => &[],
    };
    items.iter().filter_map(move |tool| {
        let Json::Object(tool) = tool else { return None };
        let Json::Object(inner) = tool.get(member) else { return None };
        let Json::String(name) = inner.get("name") else { return None };
        Some(name.as_ref())
    })
}

/// The form of answer that `response_format` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::wire) enum ResponseFormat {
    #[default]
    Text,
    Json,
}

pub(in crate::wire) fn response_format(json: &Json<'_>) -> Result<ResponseFormat, ApiError> {
    const FIELD: &str = "response_format";
    let format = match json {
        absent if absent.is_absent() => return Ok(ResponseFormat::Text),
        Json::Object(format) => format,
        other => return Err(wrong_type(FIELD, "an object", other.kind())),
    };
    match required_string(format, FIELD, "type")? {
        "text" => Ok(ResponseFormat::Text),
        "json_object" | "structural_tag" => Ok(ResponseFormat::Json),
        "json_schema" => {
            let path = format!("{FIELD}.json_schema");
            let inner = required_object(format, FIELD, "json_schema")?;
            name(&path, required_string(inner, &path, "name")?)?;
            optional_object(inner, &path, "schema")?;
            boolean(inner.get("strict"), path + ".strict")?;
            Ok(ResponseFormat::Json)
        }
        other => {
            let allowed = ["text", "json_object", "json_schema"];
            Err(ApiError::not_one_of(format!("{FIELD}.type"), other, &allowed))
        }
    }
}

/// Token ids to biases; scripted answers have no use for them.
pub(in crate::wire) fn logit_bias(json: &Json<'_>) -> Result<(), ApiError> {
    let biases = match json {
        absent if absent.is_absent() => return Ok(()),
        Json::Object(biases) => biases,
        other => return Err(wrong_type("logit_bias", "an object", other.kind())),
    };
    for (token, bias) in &biases.members {
        if token.parse::<u32>().is_err() {
            let why = "keys are token ids: integers of at least 0 in quotes.";
            return Err(ApiError::invalid_value("logit_bias", why));
        }
        let path = format!("logit_bias.{token}");
        if bias.is_absent() {
            return Err(wrong_type(path, "a decimal", bias.kind()));
        }
        decimal(bias, path, -100.0..=100.0)?;
    }
    Ok(())
}

pub(in crate::wire) fn required_string<'a>(
    object: &'a Object<'_>,
    path: &str,
    member: &str,
) -> Result<&'a str, ApiError> {
    match object.get(member) {
        Json::String(text) => Ok(text),
        absent if absent.is_absent() => Err(ApiError::missing(format!("{path}.{member}"))),
        other => Err(wrong_type(format!("{path}.{member}"), "a string", other.kind())),
    }
}

pub(in crate::wire) fn required_object<'a, 'b>(
    object: &'a Object<'b>,
    path: &str,
    member: &str,
) -> Result<&'a Object<'b>, ApiError> {
    optional_object(object, path, member)?
        .ok_or_else(|| ApiError::missing(format!("{path}.{member}")))
}

pub(in crate::wire) fn optional_object<'a, 'b>(
    object: &'a Object<'b>,
    path: &str,
    member: &str,
) -> Result<Option<&'a Object<'b>>, ApiError> {
    match object.get(member) {
        Json::Object(inner) => Ok(Some(inner)),
        absent if absent.is_absent() => Ok(None),
        other => Err(wrong_type(format!("{path}.{member}"), "an object", other.kind())),
    }
}
