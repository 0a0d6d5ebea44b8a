//! `tools`, `tool_choice`, `response_format` and `logit_bias`: validated as OpenAI does, so that a
//! wrong request is told so whether or not the answer would use them.

use std::borrow::Cow;

use super::fields::{boolean, decimal, short_string, string, wrong_type};
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Object};
use crate::wire::tools::{Choice, Tool, allow_only, list, not_among_tools};

const MAX_NAME_CHARS: usize = 64;

/// The functions among the tools. Custom tools are known and never called.
pub(in crate::wire) fn tools<'a>(json: &Json<'a>) -> Result<Vec<Tool<'a>>, ApiError> {
    match json {
        Json::Array(array) if array.len == 0 => Err(ApiError::empty_array("tools")),
        other => list(other, tool),
    }
}

fn tool<'a>(path: &str, json: &Json<'a>) -> Result<Option<(Cow<'a, str>, Json<'a>)>, ApiError> {
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
    let own = required_string(inner, &path, "name")?;
    name(&path, own)?;
    string(inner.get("description").clone(), format!("{path}.description"))?;
    optional_object(inner, &path, "parameters")?;
    boolean(inner.get("strict"), format!("{path}.strict"))?;
    let parameters = inner.get("parameters").clone();
    Ok((member == "function").then(|| (Cow::Owned(own.to_owned()), parameters)))
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

/// Checks `tool_choice` against the `tools` beside it; `callable` are the functions among them.
pub(super) fn tool_choice(
    json: &Json<'_>,
    tools: &Json<'_>,
    callable: &mut [Tool<'_>],
) -> Result<Choice<'static>, ApiError> {
    if json.is_absent() {
        return Ok(Choice::Auto);
    }
    if tools.is_absent() {
        return Err(ApiError::only_with("tool_choice", "'tools' are specified"));
    }
    let choice = match json {
        Json::String(word) => {
            return match word.as_ref() {
                "none" => Ok(Choice::None),
                "auto" => Ok(Choice::Auto),
                "required" => Ok(Choice::Required),
                word => {
                    let allowed = ["none", "auto", "required"];
                    Err(ApiError::not_one_of("tool_choice", word, &allowed))
                }
            };
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
        "allowed_tools" => {
            let subset = required_object(choice, "tool_choice", "allowed_tools")?;
            return allow_only(subset, "tool_choice.allowed_tools", callable, |tool, path| {
                let member = match required_string(tool, path, "type")? {
                    "custom" => "custom",
                    "function" => "function",
                    other => {
                        let allowed = ["function", "custom"];
                        return Err(ApiError::not_one_of(format!("{path}.type"), other, &allowed));
                    }
                };
                let inner = required_object(tool, path, member)?;
                let name = required_string(inner, &format!("{path}.{member}"), "name")?;
                let is_known = names_of(tools, member).any(|known| known == name);
                if is_known { Ok(name) } else { Err(not_among_tools()) }
            });
        }
        other => {
            let allowed = ["function", "custom", "allowed_tools"];
            return Err(ApiError::not_one_of("tool_choice.type", other, &allowed));
        }
    };
    let inner = required_object(choice, "tool_choice", member)?;
    let chosen = required_string(inner, &format!("tool_choice.{member}"), "name")?;
    if !names_of(tools, member).any(|name| name == chosen) {
        return Err(not_among_tools());
    }
    if member == "custom" {
        return Err(ApiError::invalid_value(
            "tool_choice",
            "custom tools are taken but never called; choose one of type 'function'.",
        ));
    }
    Ok(Choice::Named(Cow::Owned(chosen.to_owned())))
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

/// The form of answer that `response_format` or vLLM's `structured_outputs` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    Object,
    /// JSON that satisfies a schema, given as a text.
    Schema {
        /// Where the schema stood in the request.
        param: &'static str,
        /// The schema.
        schema: String,
    },
    /// One of these texts; at least one.
    Choice(Vec<String>),
    /// A text that this pattern matches as a whole.
    Pattern(String),
}

pub(in crate::wire) fn response_format(json: &Json<'_>) -> Result<Format, ApiError> {
    const FIELD: &str = "response_format";
    let format = match json {
        absent if absent.is_absent() => return Ok(Format::Text),
        Json::Object(format) => format,
        other => return Err(wrong_type(FIELD, "an object", other.kind())),
    };
    match required_string(format, FIELD, "type")? {
        "text" => Ok(Format::Text),
        "json_object" => Ok(Format::Object),
        "structural_tag" => Err(ApiError::unsupported_format(FIELD)),
        "json_schema" => {
            let path = format!("{FIELD}.json_schema");
            let inner = required_object(format, FIELD, "json_schema")?;
            name(&path, required_string(inner, &path, "name")?)?;
            optional_object(inner, &path, "schema")?;
            boolean(inner.get("strict"), path + ".strict")?;
            Ok(match inner.get("schema") {
                absent if absent.is_absent() => Format::Object,
                schema => Format::Schema {
                    param: "response_format.json_schema.schema",
                    schema: schema.to_text(),
                },
            })
        }
        other => {
            let allowed = ["text", "json_object", "json_schema"];
            Err(ApiError::not_one_of(format!("{FIELD}.type"), other, &allowed))
        }
    }
}

/// The format that either field asks for; both may not.
pub(in crate::wire) fn one_format(
    response_format: Format,
    structured_outputs: Option<Format>,
) -> Result<Format, ApiError> {
    if response_format != Format::Text && structured_outputs.is_some() {
        return Err(ApiError::contradiction(
            "structured_outputs",
            "'structured_outputs' and 'response_format' cannot both be asked for; send one of \
             them.",
        ));
    }
    Ok(structured_outputs.unwrap_or(response_format))
}

/// vLLM's way to ask for a format: exactly one member of these.
pub(super) fn structured_outputs(json: &Json<'_>) -> Result<Option<Format>, ApiError> {
    const FIELD: &str = "structured_outputs";
    const KINDS: [&str; 6] =
        ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
    let wanted = match json {
        absent if absent.is_absent() => return Ok(None),
        Json::Object(wanted) => wanted,
        other => return Err(wrong_type(FIELD, "an object", other.kind())),
    };
    let given: Vec<&str> = KINDS.into_iter().filter(|kind| !wanted.get(kind).is_absent()).collect();
    let path = |member: &str| format!("{FIELD}.{member}");
    match given[..] {
        [] => Ok(None),
        ["json"] => match wanted.get("json") {
            // A schema, or its text.
            Json::String(schema) => Ok(Some(Format::Schema {
                param: "structured_outputs.json",
                schema: schema.to_string(),
            })),
            schema @ Json::Object(_) => Ok(Some(Format::Schema {
                param: "structured_outputs.json",
                schema: schema.to_text(),
            })),
            other => Err(wrong_type(path("json"), "one of an object or a string", other.kind())),
        },
        ["json_object"] => {
            let is_wanted = boolean(wanted.get("json_object"), path("json_object"))?;
            Ok(is_wanted.filter(|wanted| *wanted).map(|_| Format::Object))
        }
        ["regex"] => {
            let pattern = string(wanted.get("regex").clone(), path("regex"))?;
            Ok(pattern.map(|pattern| Format::Pattern(pattern.into_owned())))
        }
        ["choice"] => {
            let choices = match wanted.get("choice") {
                Json::Array(choices) => choices,
                other => {
                    return Err(wrong_type(path("choice"), "an array of strings", other.kind()));
                }
            };
            if choices.len == 0 {
                return Err(ApiError::empty_array(path("choice")));
            }
            let text = |(at, item): (usize, &Json<'_>)| match item {
                Json::String(text) => Ok(text.to_string()),
                other => Err(wrong_type(format!("{FIELD}.choice[{at}]"), "a string", other.kind())),
            };
            let texts: Result<Vec<String>, ApiError> =
                choices.items.iter().enumerate().map(text).collect();
            Ok(Some(Format::Choice(texts?)))
        }
        [_] => Err(ApiError::unsupported_format(FIELD)),
        [one, other, ..] => Err(ApiError::contradiction(
            FIELD,
            &format!("'{one}' and '{other}' cannot both be asked for; send one of them."),
        )),
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
