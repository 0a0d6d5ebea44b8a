//! A client's tools, as every API has them: names and schemas, and which are wanted.
//!
//! Not how an API writes them down: each reads its own form into this. The invariant: names are
//! valid, and a tool that is wanted by name is in the list.

use std::borrow::Cow;

use super::chat::fields::wrong_type;
use super::chat::tools::required_string;
use super::error::ApiError;
use super::json::{Json, Object};

/// The most tools of one request.
pub(super) const MAX_TOOLS: usize = 128;

/// Tools, and which of them are to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools<'a> {
    /// At most [`MAX_TOOLS`].
    pub list: Vec<Tool<'a>>,
    /// Whether and which.
    pub choice: Choice<'a>,
    /// More than one call in an answer.
    pub parallel: bool,
}

/// A tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its place in the request's list, where tools of other types stand, too.
    pub place: usize,
    /// Whether it may be called: not if the client's choice is a subset without it.
    pub is_allowed: bool,
    /// The JSON schema of its arguments; absent if there is none.
    pub(super) parameters: Json<'a>,
}

impl Tool<'_> {
    /// The JSON schema of its arguments as a text, if there is one.
    pub fn schema(&self) -> Option<String> {
        (!self.parameters.is_absent()).then(|| self.parameters.to_text())
    }
}

/// What the client wants of its tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice<'a> {
    /// None is called.
    None,
    /// As the model likes.
    #[default]
    Auto,
    /// At least one is called.
    Required,
    /// This one is called.
    Named(Cow<'a, str>),
}

impl Default for Tools<'_> {
    fn default() -> Self {
        Self { list: Vec::new(), choice: Choice::Auto, parallel: true }
    }
}

impl Tools<'_> {
    /// Refuses a choice that needs tools which there are not.
    pub(super) fn check_choice(&self) -> Result<(), ApiError> {
        let is_known = match &self.choice {
            Choice::None | Choice::Auto => true,
            Choice::Required if self.list.is_empty() => {
                return Err(ApiError::only_with("tool_choice", "'tools' are specified"));
            }
            Choice::Required => true,
            Choice::Named(name) => self.list.iter().any(|tool| tool.name == *name),
        };
        if is_known { Ok(()) } else { Err(not_among_tools()) }
    }
}

/// The refusal of a choice that names what is not there.
pub(super) fn not_among_tools() -> ApiError {
    let why = "the chosen tool is not among 'tools'; take the 'name' of one of them.";
    ApiError::invalid_value("tool_choice", why)
}

/// OpenAI's subset of the tools, a `mode` and a list: only these may be called. `choice` is at
/// `path`; `name` reads the name of an element at a path.
pub(super) fn allow_only<'a, 'b>(
    choice: &'a Object<'b>,
    path: &str,
    tools: &mut [Tool<'_>],
    mut name: impl FnMut(&'a Object<'b>, &str) -> Result<&'a str, ApiError>,
) -> Result<Choice<'static>, ApiError> {
    let mode = match required_string(choice, path, "mode")? {
        "auto" => Choice::Auto,
        "required" => Choice::Required,
        other => {
            return Err(ApiError::not_one_of(format!("{path}.mode"), other, &["auto", "required"]));
        }
    };
    let path = format!("{path}.tools");
    let array = match choice.get("tools") {
        Json::Array(array) if array.len == 0 => return Err(ApiError::empty_array(path)),
        Json::Array(array) => array,
        absent if absent.is_absent() => return Err(ApiError::missing(path)),
        other => return Err(wrong_type(path, "an array of objects", other.kind())),
    };
    let mut names = Vec::with_capacity(array.items.len());
    for (at, item) in array.items.iter().enumerate() {
        let path = format!("{path}[{at}]");
        match item {
            Json::Object(item) => names.push(name(item, &path)?),
            other => return Err(wrong_type(path, "an object", other.kind())),
        }
    }
    for tool in &mut *tools {
        tool.is_allowed = names.contains(&tool.name.as_ref());
    }
    let is_callable = tools.iter().any(|tool| tool.is_allowed);
    if mode == Choice::Required && !is_callable { Err(not_among_tools()) } else { Ok(mode) }
}

/// Reads `tools`; `tool` reads an element at a path as name and schema, and gives nothing for one
/// that is never called.
pub(super) fn list<'a>(
    json: &Json<'a>,
    mut tool: impl FnMut(&str, &Json<'a>) -> Result<Option<(Cow<'a, str>, Json<'a>)>, ApiError>,
) -> Result<Vec<Tool<'a>>, ApiError> {
    let array = match json {
        absent if absent.is_absent() => return Ok(Vec::new()),
        Json::Array(array) => array,
        other => return Err(wrong_type("tools", "an array of objects", other.kind())),
    };
    if array.len > MAX_TOOLS {
        return Err(ApiError::array_too_long("tools", MAX_TOOLS, array.len));
    }
    let mut tools = Vec::with_capacity(array.items.len());
    for (place, item) in array.items.iter().enumerate() {
        let tool = tool(&format!("tools[{place}]"), item)?;
        tools.extend(tool.map(|(name, parameters)| Tool {
            name,
            place,
            is_allowed: true,
            parameters,
        }));
    }
    Ok(tools)
}
