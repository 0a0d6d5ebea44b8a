//! A client's tools, as every API has them: names and schemas, and which are wanted.
//!
//! Not how an API writes them down: each reads its own form into this. The invariant: names are
//! valid, and a tool that is wanted by name is in the list.

use std::borrow::Cow;

use super::chat::fields::wrong_type;
use super::error::ApiError;
use super::json::Json;

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
        if is_known {
            return Ok(());
        }
        Err(ApiError::invalid_value(
            "tool_choice",
            "the chosen tool is not among 'tools'; take the 'name' of one of them.",
        ))
    }
}

/// Reads `tools`; `tool` reads an element at a path, and gives nothing for one that is never called.
pub(super) fn list<'a>(
    json: &Json<'a>,
    mut tool: impl FnMut(&str, &Json<'a>) -> Result<Option<Tool<'a>>, ApiError>,
) -> Result<Vec<Tool<'a>>, ApiError> {
    let array = match json {
        absent if absent.is_absent() => return Ok(Vec::new()),
        Json::Array(array) => array,
        other => return Err(wrong_type("tools", "an array of objects", other.kind())),
    };
    if array.len > MAX_TOOLS {
        return Err(ApiError::array_too_long("tools", MAX_TOOLS, array.len));
    }
    let read = |(at, item)| tool(&format!("tools[{at}]"), item).transpose();
    array.items.iter().enumerate().filter_map(read).collect()
}
