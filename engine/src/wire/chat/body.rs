//! The body of a chat request as typed: every field of any type.
//!
//! A well-formed object always gets through here, whatever it holds.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::fields::string;
use super::messages::RawMessages;
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Kind};
use crate::wire::json_guard::{self, MAX_DEPTH, TooDeep};

/// A member that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(field_identifier)]
#[expect(non_camel_case_types, reason = "they are the members' names as clients spell them")]
pub(in crate::wire) enum Member {
    model,
    messages,
    functions,
    tools,
    tool_choice,
    parallel_tool_calls,
    max_completion_tokens,
    n,
    temperature,
    top_p,
    presence_penalty,
    frequency_penalty,
    logprobs,
    top_logprobs,
    user,
    seed,
    response_format,
    service_tier,
    max_tokens,
    reasoning_effort,
    logit_bias,
    stop,
    stream,
    stream_options,
    store,
    metadata,
    prediction,
    verbosity,
    modalities,
    audio,
    web_search_options,
    safety_identifier,
    prompt_cache_key,

    // vLLM's own: all from here on.
    top_k,
    min_p,
    repetition_penalty,
    length_penalty,
    use_beam_search,
    min_tokens,
    ignore_eos,
    stop_token_ids,
    bad_words,
    allowed_token_ids,
    include_stop_str_in_output,
    skip_special_tokens,
    spaces_between_special_tokens,
    truncate_prompt_tokens,
    truncation_side,
    prompt_logprobs,
    echo,
    add_generation_prompt,
    continue_final_message,
    add_special_tokens,
    chat_template_kwargs,
    documents,
    mm_processor_kwargs,
    structured_outputs,
    priority,
    request_id,
    return_token_ids,
    stream_interval,
    cache_salt,
    session_id,
    vllm_xargs,
    kv_transfer_params,
    include_reasoning,
    thinking_token_budget,
    #[serde(other)]
    Unknown,
}

/// What was sent of it. Of some sixty members that are looked at a request has five: a place for each
/// would be two kilobytes to be filled, moved and cleared.
#[derive(Debug, Default)]
pub(in crate::wire) struct Raw<'a> {
    pub(in crate::wire) messages: RawMessages<'a>,
    values: Vec<(Member, Json<'a>)>,
    /// Where only the type matters: the content is skipped.
    kinds: Vec<(Member, Kind)>,
    /// A bit for each that was sent.
    sent: u128,
}

impl<'a> Raw<'a> {
    /// A member's value.
    #[inline]
    pub(in crate::wire) fn get(&self, member: Member) -> &Json<'a> {
        if !self.has(member) {
            return &Json::Absent;
        }
        let found = self.values.iter().find(|(sent, _)| *sent == member);
        found.map_or(&Json::Absent, |(_, value)| value)
    }

    /// A member's value, which is absent afterwards.
    #[inline]
    pub(in crate::wire) fn take(&mut self, member: Member) -> Json<'a> {
        if !self.has(member) {
            return Json::Absent;
        }
        let found = self.values.iter_mut().find(|(sent, _)| *sent == member);
        found.map_or(Json::Absent, |(_, value)| std::mem::take(value))
    }

    /// A member that is a string. Of the many that may be one a request has one or two, and for the
    /// others nothing is moved.
    #[inline]
    pub(in crate::wire) fn string(
        &mut self,
        member: Member,
        param: &'static str,
    ) -> Result<Option<Cow<'a, str>>, ApiError> {
        if self.has(member) { string(self.take(member), param) } else { Ok(None) }
    }

    /// The type of a member of which only that is known.
    #[inline]
    pub(in crate::wire) fn kind(&self, member: Member) -> Kind {
        if !self.has(member) {
            return Kind::Absent;
        }
        let found = self.kinds.iter().find(|(sent, _)| *sent == member);
        found.map_or(Kind::Absent, |(_, kind)| *kind)
    }

    /// Whether any of vLLM's own members was sent.
    pub(in crate::wire) fn has_vllm(&self) -> bool {
        const ALL: u128 = bit(Member::Unknown) - bit(Member::top_k);
        self.sent & ALL != 0
    }

    fn has(&self, member: Member) -> bool {
        self.sent & bit(member) != 0
    }
}

const fn bit(member: Member) -> u128 {
    1 << member as u32
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members(PhantomData))
    }
}

struct Members<'a>(PhantomData<Raw<'a>>);

impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
    type Value = Raw<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut raw = Raw { values: Vec::with_capacity(8), ..Raw::default() };
        while let Some(member) = members.next_key()? {
            if member != Member::Unknown && raw.has(member) {
                return Err(A::Error::custom(format_args!("duplicate field `{member:?}`")));
            }
            match member {
                Member::messages => raw.messages = members.next_value()?,
                Member::Unknown => {
                    members.next_value::<IgnoredAny>()?;
                }
                Member::functions
                | Member::metadata
                | Member::prediction
                | Member::modalities
                | Member::audio
                | Member::web_search_options
                | Member::stop_token_ids
                | Member::bad_words
                | Member::allowed_token_ids
                | Member::documents
                | Member::mm_processor_kwargs
                | Member::vllm_xargs
                | Member::kv_transfer_params => {
                    raw.kinds.push((member, members.next_value()?));
                }
                _ => raw.values.push((member, members.next_value()?)),
            }
            raw.sent |= bit(member);
        }
        Ok(raw)
    }
}

/// Parses a chat request's body.
pub(in crate::wire) fn read(body: &[u8]) -> Result<Raw<'_>, ApiError> {
    read_as(body)
}

/// Parses a body behind the depth guard. `T` must take fields of any type.
pub(in crate::wire) fn read_as<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    let Some(first) = body.iter().find(|byte| !byte.is_ascii_whitespace()) else {
        return Err(ApiError::malformed_json("it is empty"));
    };
    json_guard::check(body).map_err(|TooDeep { at }| {
        ApiError::malformed_json(&format!(
            "it is nested deeper than {MAX_DEPTH} levels at byte {at}"
        ))
    })?;
    if *first != b'{' {
        let kind: Kind = sonic_rs::from_slice(body).map_err(|error| refusal(&error))?;
        return Err(ApiError::not_an_object(kind.with_article()));
    }
    sonic_rs::from_slice(body).map_err(|error| refusal(&error))
}

/// No body's type refuses a type, so an error that is not about syntax is serde's
/// `duplicate field`.
fn refusal(error: &sonic_rs::Error) -> ApiError {
    let text = error.to_string();
    // The lines after the first draw the surroundings.
    let first = text.lines().next().unwrap_or_default();
    if error.is_unmatched_type() {
        ApiError::duplicate_member(first)
    } else {
        ApiError::malformed_json(first)
    }
}
