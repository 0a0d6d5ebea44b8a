//! What an answer says: the rules' reply, in the form that the client wants.
//!
//! Shared by all surfaces that have tools and formats. The invariant: a wish that cannot be met is
//! refused here, before anything is sent.

use llmsim_engine::text::responses::{Finish, Query, Reply};
use llmsim_engine::text::wants::{self, Calls, Form, Said, Schema, Tool, Unmet, Wants};
use llmsim_engine::text::{facts, prompt};
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::{Format, Message};
use llmsim_engine::wire::error::ApiError;
use llmsim_engine::wire::tools::{Choice, Tools};
use llmsim_engine::wire::usage::FinishReason;

use super::answer::{Lane, Limits};
use crate::served::{Model, Served};

/// A wish as the engine knows it. `turn` is what makes ids of calls differ from turn to turn.
pub(super) fn wants(tools: &Tools<'_>, format: &Format, turn: usize) -> Wants {
    let tool = |tool: &llmsim_engine::wire::tools::Tool<'_>| Tool {
        name: tool.name.as_ref().into(),
        place: tool.place,
        parameters: tool.schema().map(Schema::new),
    };
    Wants {
        tools: tools.list.iter().filter(|tool| tool.is_allowed).map(tool).collect(),
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
            Format::Schema { schema, .. } => Form::Schema(Schema::new(schema.clone())),
            Format::Choice(choices) => Form::Choice(choices.clone()),
            Format::Pattern(pattern) => Form::Pattern(pattern.clone()),
        },
        turn: u32::try_from(turn).unwrap_or(u32::MAX),
    }
}

/// What a prompt says of the tools, whether or not they may be called: a message of its own.
pub(super) fn definitions(tools: &Tools<'_>) -> Option<String> {
    if tools.list.is_empty() {
        return None;
    }
    let mut text = String::new();
    for tool in &tools.list {
        text.push_str(&tool.name);
        text.push(' ');
        text.push_str(&tool.schema().unwrap_or_default());
        text.push('\n');
    }
    Some(text)
}

/// What of a conversation decides what is said next.
#[derive(Debug)]
pub(super) struct Facts<'m>(facts::Facts<'m>);

impl<'m> Facts<'m> {
    pub(super) fn of(messages: &'m [Message<'_>]) -> Self {
        let all = messages
            .iter()
            .map(|Message { role, content }| prompt::Message { role: role.as_str(), content });
        Self(facts::Facts::of(all))
    }

    /// `asked` is the name by which the model was asked for.
    pub(super) fn query<'q>(
        &'q self,
        model: &'q Model,
        asked: &'q str,
        seed: Option<i64>,
        choice: u32,
    ) -> Query<'q> {
        Query { model: asked, seed, choice, tokenizer: &model.tokenizer, ..self.0.query() }
    }
}

/// Where an API has schemas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// In a tool.
    pub(super) tool: &'static str,
    /// Of the format, in the request.
    pub(super) form: &'static str,
}

/// Who answers a request, and what it may say.
#[derive(Debug)]
pub(super) struct Speaker<'a> {
    pub(super) served: &'a Served,
    pub(super) model: &'a Model,
    pub(super) wants: &'a Wants,
    pub(super) limits: Limits,
    pub(super) places: Places,
    /// How many tokens the client lets it think before it speaks.
    pub(super) thinking: Option<Tokens>,
}

impl Speaker<'_> {
    /// The lane that answers `query`.
    pub(super) fn lane(&self, query: &Query<'_>) -> Result<Lane, ApiError> {
        let reply = self.served.responses.reply(query);
        self.lane_of(reply.thinking(self.model.reasoning, self.thinking), query)
    }

    /// The same of what is text and nothing else: what the rules think or call is left out, and why
    /// it ends, too.
    pub(super) fn text_lane(&self, query: &Query<'_>) -> Result<Lane, ApiError> {
        let reply = self.served.responses.reply(query);
        let reply = Reply {
            content: reply.content.or(reply.refusal),
            reasoning: None,
            refusal: None,
            tool_calls: Vec::new(),
            finish: None,
            ..reply
        };
        self.lane_of(reply, query)
    }

    fn lane_of(&self, reply: Reply, query: &Query<'_>) -> Result<Lane, ApiError> {
        let Said { output, finish } = wants::say(reply, self.wants).map_err(|unmet| {
            let (place, problem) = match unmet {
                Unmet::Tool(at, problem) => (format!("tools[{at}].{}", self.places.tool), problem),
                Unmet::Form(problem) => (self.places.form.to_owned(), problem),
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
        let lane = Lane::new(output, reason, &self.limits);
        Ok(Lane { counts_prompt: query.choice == 0, ..lane })
    }
}

/// Where a request has the schema of its format.
pub(super) fn place_of(format: &Format) -> &'static str {
    match format {
        Format::Schema { param, .. } => param,
        Format::Pattern(_) => "structured_outputs.regex",
        Format::Text | Format::Object | Format::Choice(_) => "response_format",
    }
}
