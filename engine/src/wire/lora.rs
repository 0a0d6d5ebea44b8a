//! vLLM's `POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: requests. What is loaded is
//! for the caller to know.

use std::borrow::Cow;

use serde::Deserialize;

use super::chat::body;
use super::chat::fields::{boolean, string};
use super::error::ApiError;
use super::json::Json;

/// The longest name or path of an adapter, in bytes: what is loaded stays in memory.
const LONGEST: usize = 1024;

/// A valid request to load an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadAdapter<'a> {
    /// The name that requests give as `model`.
    pub name: Cow<'a, str>,
    /// Where its weights would be.
    pub path: Cow<'a, str>,
    /// `base_model_name`: the model that it adapts; the first one's if not said.
    pub base: Option<Cow<'a, str>>,
    /// `load_inplace`: takes the place of an adapter of that name.
    pub replaces: bool,
}

/// A valid request to unload an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnloadAdapter<'a> {
    /// Its name.
    pub name: Cow<'a, str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"), default)]
struct Raw<'a> {
    lora_name: Json<'a>,
    lora_path: Json<'a>,
    base_model_name: Json<'a>,
    load_inplace: Json<'a>,
}

impl<'a> LoadAdapter<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        Ok(Self {
            name: required(raw.lora_name, "lora_name")?,
            path: required(raw.lora_path, "lora_path")?,
            base: string(raw.base_model_name, "base_model_name")?.filter(|name| !name.is_empty()),
            replaces: boolean(&raw.load_inplace, "load_inplace")?.unwrap_or(false),
        })
    }
}

impl<'a> UnloadAdapter<'a> {
    /// Reads and checks a request body.
    ///
    /// # Errors
    /// The first fault.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let raw: Raw<'a> = body::read_as(body)?;
        Ok(Self { name: required(raw.lora_name, "lora_name")? })
    }
}

fn required<'a>(json: Json<'a>, param: &'static str) -> Result<Cow<'a, str>, ApiError> {
    match string(json, param)? {
        Some(text) if text.len() > LONGEST => {
            Err(ApiError::string_too_long(param, LONGEST, text.len()))
        }
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(ApiError::missing(param)),
    }
}
