//! What an answer says: the rules' reply, in the form that the client wants.
//!
//! Shared by all surfaces that have tools and formats. The invariant: a wish that cannot be met is
//! refused here, before anything is sent.

use llmsim_engine::text::responses::{Finish, Query};
use llmsim_engine::text::wants::{self, Calls, Form, Said, Tool, Unmet, Wants};
use llmsim_engine::wire::chat::Format;
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::tools::{Choice, Tools};
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Lane, Limits};
use crate::served::Served;

/// A wish as the engine knows it. `turn` is what makes ids of calls differ from turn to turn.
pub(super) fn wants(tools: &Tools<'_>, format: &Format, turn: usize) -> Wants {
    let tool = |tool: &llmsim_engine::wire::tools::Tool<'_>| Tool {
        name: tool.name.as_ref().into(),
        parameters: tool.schema(),
    };
    Wants {
        tools: tools.list.iter().map(tool).collect(),
        calls: match &tools.choice {
            Choice::None => Calls::Forbidden,
            Choice::Auto => Calls::IfScripted,
            Choice::Required => Calls::Required,
            Choice::Named(name) => Calls::Named(name.as_ref().into()),
        },
        only_one: !tools.parallel,
        form: match format {
            Format::Text => Form::Text,
            Format::Object => Form::Object,
            Format::Schema { schema, .. } => Form::Schema(schema.clone()),
            Format::Choice(choices) => Form::Choice(choices.clone()),
            Format::Pattern(pattern) => Form::Pattern(pattern.clone()),
        },
        turn: u32::try_from(turn).unwrap_or(u32::MAX),
    }
}

/// The lane that answers `query`. `schema` is where the request had a format's schema.
pub(super) fn lane(
    served: &Served,
    query: &Query<'_>,
    wants: &Wants,
    limits: &Limits,
    schema: &'static str,
) -> Result<Lane, ApiError> {
    let said = wants::say(served.responses.reply(query), wants);
    let Said { output, finish } = said.map_err(|unmet| {
        let (place, problem) = match unmet {
            Unmet::Tool(at, problem) => (format!("tools[{at}].function.parameters"), problem),
            Unmet::Form(problem) => (schema.to_owned(), problem),
        };
        let param = match problem.path.as_str() {
            "" => place,
            path => format!("{place}.{path}"),
        };
        ApiError::invalid_value(param, &format!("{}.", problem.message))
    })?;
    let reason = match finish {
        Finish::Stop => FinishReason::Stop,
        Finish::Length => FinishReason::Length,
        Finish::ToolCalls => FinishReason::ToolCalls,
        Finish::ContentFilter => FinishReason::ContentFilter,
    };
    let lane = Lane::new(output, reason, limits);
    Ok(Lane { counts_prompt: query.choice == 0, ..lane })
}

/// Where a request has the schema of its format.
pub(super) fn place_of(format: &Format) -> &'static str {
    match format {
        Format::Schema { param, .. } => param,
        Format::Pattern(_) => "structured_outputs.regex",
        Format::Text | Format::Object | Format::Choice(_) => "response_format",
    }
}
