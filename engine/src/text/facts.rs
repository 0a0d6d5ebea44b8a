//! What of a conversation decides what is said next.
//!
//! Not how it is written (that is the API's), nor what is said (see
//! [`responses`](super::responses)). The one invariant: a conversation of the same messages is the
//! same query, whoever asks.

use super::prompt::Message;
use super::responses::Query;

/// What [`Query`] has of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'m> {
    input: &'m str,
    system: String,
    turn: u32,
    tool_result: Option<String>,
}

impl<'m> Facts<'m> {
    /// Those of a conversation.
    pub fn of(messages: impl DoubleEndedIterator<Item = Message<'m>> + Clone) -> Self {
        let texts = |roles: &'static [&'static str]| {
            let of = messages.clone().filter(move |message| roles.contains(&message.role));
            of.map(|message| message.content)
        };
        let is_result = |message: &Message<'_>| matches!(message.role, "tool" | "function");
        let results = messages.clone().rev().take_while(is_result);
        let mut results: Vec<&str> = results.map(|message| message.content).collect();
        results.reverse();
        Self {
            input: texts(&["user"]).next_back().unwrap_or_default(),
            system: texts(&["system", "developer"]).collect::<Vec<_>>().join("\n"),
            turn: u32::try_from(texts(&["user"]).count()).unwrap_or(u32::MAX),
            tool_result: (!results.is_empty()).then(|| results.join("\n")),
        }
    }

    /// The query that they are, without what is asked beside the conversation.
    pub fn query(&self) -> Query<'_> {
        Query {
            input: self.input,
            system: &self.system,
            turn: self.turn,
            tool_result: self.tool_result.as_deref(),
            ..Query::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_its_last_question_its_rules_and_what_its_tools_said() {
        let says = |role, content| Message { role, content };
        let begun = [
            says("system", "be brief"),
            says("user", "one"),
            says("assistant", "1"),
            says("developer", "be kind"),
            says("user", "two"),
        ];
        let facts = Facts::of(begun.into_iter());
        let query = facts.query();
        assert_eq!((query.input, query.system, query.turn), ("two", "be brief\nbe kind", 2));
        assert_eq!(query.tool_result, None);

        let asked = [says("assistant", ""), says("tool", "5 C"), says("function", "windy")];
        let all = [&begun[..], &asked].concat();
        assert_eq!(Facts::of(all.iter().copied()).query().tool_result, Some("5 C\nwindy"));
        // They count only where the conversation ends with them.
        let all = [&all[..], &[says("user", "three")]].concat();
        assert_eq!(Facts::of(all.iter().copied()).query().tool_result, None);
        let facts = Facts::of([].into_iter());
        let nothing = facts.query();
        assert_eq!((nothing.input, nothing.system, nothing.turn), ("", "", 0));
    }
}
