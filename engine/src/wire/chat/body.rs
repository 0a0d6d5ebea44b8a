//! The body of a chat request as typed: every field of any type.
//!
//! A well-formed object always gets through here, whatever it holds.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::messages::RawMessages;
use crate::wire::error::ApiError;
use crate::wire::json::{Json, Kind};
use crate::wire::json_guard::{self, MAX_DEPTH, TooDeep};

/// Declares a body and reads it, member by member, into its default.
///
/// What serde derives keeps a place apart for every member, and puts them together at the end. Of
/// the chat's sixty-odd members a request has five, and that was two thirds of its reading.
macro_rules! body {
    ($(#[$meta:meta])* struct $body:ident<'a> { $($name:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        pub(in crate::wire) struct $body<'a> {
            $(pub(in crate::wire) $name: $type,)*
        }

        #[derive(Clone, Copy, Deserialize)]
        #[serde(field_identifier)]
        #[expect(non_camel_case_types, reason = "they are the members' names as clients spell them")]
        enum Member {
            $($name,)*
            #[serde(other)]
            Unknown,
        }

        impl<'de: 'a, 'a> Deserialize<'de> for $body<'a> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Members<'a>(PhantomData<$body<'a>>);

                impl<'de: 'a, 'a> Visitor<'de> for Members<'a> {
                    type Value = $body<'a>;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str("an object")
                    }

                    fn visit_map<A: MapAccess<'de>>(
                        self,
                        mut members: A,
                    ) -> Result<Self::Value, A::Error> {
                        let mut body = $body::default();
                        let mut seen = 0_u128;
                        while let Some(member) = members.next_key()? {
                            let bit = 1 << member as u32;
                            match member {
                                $(Member::$name => {
                                    if seen & bit != 0 {
                                        return Err(A::Error::duplicate_field(stringify!($name)));
                                    }
                                    body.$name = members.next_value()?;
                                })*
                                Member::Unknown => {
                                    members.next_value::<IgnoredAny>()?;
                                }
                            }
                            seen |= bit;
                        }
                        Ok(body)
                    }
                }

                deserializer.deserialize_map(Members(PhantomData))
            }
        }
    };
}

body! {
    /// Every field that is looked at. `Kind` where only the type matters: its content is skipped.
    struct Raw<'a> {
        model: Json<'a>,
        messages: RawMessages<'a>,
        functions: Kind,
        tools: Json<'a>,
        tool_choice: Json<'a>,
        parallel_tool_calls: Json<'a>,
        max_completion_tokens: Json<'a>,
        n: Json<'a>,
        temperature: Json<'a>,
        top_p: Json<'a>,
        presence_penalty: Json<'a>,
        frequency_penalty: Json<'a>,
        logprobs: Json<'a>,
        top_logprobs: Json<'a>,
        user: Json<'a>,
        seed: Json<'a>,
        response_format: Json<'a>,
        service_tier: Json<'a>,
        max_tokens: Json<'a>,
        reasoning_effort: Json<'a>,
        logit_bias: Json<'a>,
        stop: Json<'a>,
        stream: Json<'a>,
        stream_options: Json<'a>,
        store: Json<'a>,
        metadata: Kind,
        prediction: Kind,
        verbosity: Json<'a>,
        modalities: Kind,
        audio: Kind,
        web_search_options: Kind,
        safety_identifier: Json<'a>,
        prompt_cache_key: Json<'a>,

        // vLLM's own.
        top_k: Json<'a>,
        min_p: Json<'a>,
        repetition_penalty: Json<'a>,
        length_penalty: Json<'a>,
        use_beam_search: Json<'a>,
        min_tokens: Json<'a>,
        ignore_eos: Json<'a>,
        stop_token_ids: Kind,
        bad_words: Kind,
        allowed_token_ids: Kind,
        include_stop_str_in_output: Json<'a>,
        skip_special_tokens: Json<'a>,
        spaces_between_special_tokens: Json<'a>,
        truncate_prompt_tokens: Json<'a>,
        truncation_side: Json<'a>,
        prompt_logprobs: Json<'a>,
        echo: Json<'a>,
        add_generation_prompt: Json<'a>,
        continue_final_message: Json<'a>,
        add_special_tokens: Json<'a>,
        chat_template_kwargs: Json<'a>,
        documents: Kind,
        mm_processor_kwargs: Kind,
        structured_outputs: Json<'a>,
        priority: Json<'a>,
        request_id: Json<'a>,
        return_token_ids: Json<'a>,
        stream_interval: Json<'a>,
        cache_salt: Json<'a>,
        session_id: Json<'a>,
        vllm_xargs: Kind,
        kv_transfer_params: Kind,
        include_reasoning: Json<'a>,
        thinking_token_budget: Json<'a>,
    }
}

/// Parses a chat request's body.
pub(in crate::wire) fn read(body: &[u8]) -> Result<Raw<'_>, ApiError> {
    read_as(body)
}

/// Parses a body behind the depth guard. `T` must take fields of any type.
pub(in crate::wire) fn read_as<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::malformed_json("it is empty"));
    }
    json_guard::check(body).map_err(|TooDeep { at }| {
        ApiError::malformed_json(&format!(
            "it is nested deeper than {MAX_DEPTH} levels at byte {at}"
        ))
    })?;
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
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
