//! Answers with placeholders: `{last_user_message}`, `{model}` and the named groups of a regex.
//!
//! Not a template language: a placeholder is a name in braces, `{{` and `}}` are braces, and that
//! is all. The one invariant: what was compiled cannot fail when rendered, and a rendered text has
//! at most [`MAX_RENDERED`] bytes.

/// A rendered answer is cut off here, at a character: long enough to echo any message that the
/// server takes, short enough that a template that repeats it a thousand times does no harm.
pub const MAX_RENDERED: usize = 8 << 20;

/// An answer, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// The same text for every request.
    Fixed(String),
    /// Depends on the request.
    Parts(Vec<Part>),
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// As it stands.
    Text(String),
    /// `{last_user_message}`: the message as sent, surrounding white space included.
    LastUserMessage,
    /// `{model}`: the model that the request named.
    Model,
    /// `{name}` of a named group; empty where the group took no part in the match.
    Group(String),
}

/// What a template is rendered with.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The message as sent.
    pub last_user_message: &'a str,
    /// The model that the request named.
    pub model: &'a str,
}

impl Template {
    /// Compiles `source`; `groups` are the names that a match of the rule can give.
    ///
    /// # Errors
    /// All that is wrong with it, each in a sentence.
    pub fn compile(source: &str, groups: &[String]) -> Result<Self, Vec<String>> {
        Self::compile_with(source, Groups::Known(groups))
    }

    /// [`compile`](Self::compile), where the names may be unknown.
    pub(super) fn compile_with(source: &str, groups: Groups<'_>) -> Result<Self, Vec<String>> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut problems = Vec::new();
        let mut rest = source;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let brace = &rest[at..];
            rest = if let Some(after) = brace.strip_prefix("{{") {
                text.push('{');
                after
            } else if let Some(after) = brace.strip_prefix("}}") {
                text.push('}');
                after
            } else if let Some(after) = brace.strip_prefix('}') {
                problems.push(format!(
                    "a `}}` without its `{{` at byte {}; write `}}}}` for a brace",
                    source.len() - brace.len()
                ));
                after
            } else if let Some(end) = brace.find('}') {
                match placeholder(&brace[1..end], groups) {
                    Ok(part) => {
                        if !text.is_empty() {
                            parts.push(Part::Text(std::mem::take(&mut text)));
                        }
                        parts.push(part);
                    }
                    Err(problem) => problems.push(problem),
                }
                &brace[end + 1..]
            } else {
                problems.push(format!(
                    "a `{{` without its `}}` at byte {}; write `{{{{` for a brace",
                    source.len() - brace.len()
                ));
                ""
            };
        }
        text.push_str(rest);
        if !problems.is_empty() {
            return Err(problems);
        }
        if parts.is_empty() {
            return Ok(Self::Fixed(text));
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self::Parts(parts))
    }

    /// Whether rendering needs the named groups of the match.
    pub fn needs_groups(&self) -> bool {
        matches!(self, Self::Parts(parts) if parts.iter().any(|part| matches!(part, Part::Group(_))))
    }

    /// The text for one request; `group` gives the text of a named group.
    pub fn render<'a>(&'a self, values: Values<'a>, group: impl Fn(&str) -> &'a str) -> String {
        let parts = match self {
            Self::Fixed(text) => return text.clone(),
            Self::Parts(parts) => parts,
        };
        let texts: Vec<&str> = parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text,
                Part::LastUserMessage => values.last_user_message,
                Part::Model => values.model,
                Part::Group(name) => group(name),
            })
            .collect();
        let total = texts.iter().fold(0usize, |sum, text| sum.saturating_add(text.len()));
        let mut out = String::with_capacity(total.min(MAX_RENDERED));
        for text in texts {
            out.push_str(first_bytes(text, MAX_RENDERED - out.len()));
        }
        out
    }
}

/// The names that a match of the rule can give.
#[derive(Clone, Copy, Debug)]
pub(super) enum Groups<'a> {
    /// These.
    Known(&'a [String]),
    /// Nobody knows, since the rule has no pattern to ask: any name may be one of them.
    Unknown,
}

fn placeholder(name: &str, groups: Groups<'_>) -> Result<Part, String> {
    let groups = match (name, groups) {
        ("last_user_message", _) => return Ok(Part::LastUserMessage),
        ("model", _) => return Ok(Part::Model),
        (_, Groups::Unknown) => return Ok(Part::Group(name.to_owned())),
        (_, Groups::Known(groups)) => groups,
    };
    if groups.iter().any(|group| group == name) {
        return Ok(Part::Group(name.to_owned()));
    }
    let mut known = String::from("{last_user_message}, {model}");
    for group in groups {
        known.push_str(&format!(", {{{group}}}"));
    }
    Err(format!(
        "unknown placeholder `{{{}}}`; known here: {known}. Write `{{{{` and `}}}}` for braces",
        shortened(name)
    ))
}

/// At most `limit` bytes of `text`, cut between characters.
fn first_bytes(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// At most 40 characters of `text`, for messages.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: Values<'_> = Values { last_user_message: " Hi {x} ", model: "qwen-mock" };

    fn check(source: &str, groups: &[&str], expected: &str) {
        let groups: Vec<String> = groups.iter().map(|&group| group.to_owned()).collect();
        let template = Template::compile(source, &groups).unwrap();
        let rendered = template.render(VALUES, |name| if name == "city" { "Oslo" } else { "" });
        assert_eq!(rendered, expected, "{source:?}");
    }

    #[test]
    fn placeholders_are_replaced_once_and_double_braces_become_single() {
        check("You said: {last_user_message}", &[], "You said:  Hi {x} ");
        check("I am {model}.", &[], "I am qwen-mock.");
        check("{model}{model}", &[], "qwen-mockqwen-mock");
        check("It's sunny in {city}.", &["city"], "It's sunny in Oslo.");
        check("{{\"a\": {{}}}}", &[], "{\"a\": {}}");
        check("{{{model}}}", &[], "{qwen-mock}");
        check("", &[], "");
    }

    #[test]
    fn a_text_without_placeholders_is_fixed() {
        let template = Template::compile("{{plain}}", &[]).unwrap();
        assert_eq!(template, Template::Fixed("{plain}".to_owned()));
    }

    fn check_problem(source: &str, words: &str) {
        let problems = Template::compile(source, &["city".to_owned()]).unwrap_err();
        assert!(problems.iter().any(|problem| problem.contains(words)), "{source:?}: {problems:?}");
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write_instead() {
        check_problem("{town}", "unknown placeholder `{town}`");
        check_problem("{town}", "{last_user_message}, {model}, {city}");
        check_problem("{ model }", "unknown placeholder `{ model }`");
        check_problem("{}", "unknown placeholder `{}`");
        check_problem("a } b", "`}` without its `{` at byte 2");
        check_problem("a { b", "`{` without its `}` at byte 2");
        assert_eq!(Template::compile("{a} {b} }", &[]).unwrap_err().len(), 3);
    }

    #[test]
    fn a_rendered_text_is_bounded() {
        let source = "{last_user_message}".repeat(1000);
        let template = Template::compile(&source, &[]).unwrap();
        let message = "é".repeat(1 << 20);
        let values = Values { last_user_message: &message, model: "" };
        let rendered = template.render(values, |_| "");
        assert!(rendered.len() <= MAX_RENDERED && rendered.len() >= MAX_RENDERED - 4);
    }
}
