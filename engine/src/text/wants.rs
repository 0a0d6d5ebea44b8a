//! What a client wants of the form of an answer, and the answer that has it: calls of tools, a
//! required format.
//!
//! Not how the API spells it, and not what the rules say: this is where both meet. The one
//! invariant: what was asked for is kept whatever the rules say, so that a script for one client
//! does not break another; and it is a pure function of the reply and the wish.
//!
//! 1. With `tool_choice: required` or a named function there is always a call: the scripted ones if
//!    they fit, else one of a function drawn with the reply's seed. With `auto` there are only
//!    scripted ones. A scripted call of a function that was not offered is left out.
//! 2. Arguments are the scripted ones, or are made from the function's schema.
//! 3. Without calls, content in a required format is the scripted one if it satisfies the format,
//!    else it is made: for `json_object` around the scripted text, for a schema from the schema.

use std::cell::OnceCell;
use std::sync::Arc;

use super::model_tokenizer::Tokenizer;
use super::output::{Beyond, Call, Kind, Output};
use super::responses::{Finish, Reply};
use super::schema::{self, Document, Problem};
use super::script::{PieceTable, Script};
use crate::seed::Seed;

/// What a client wants.
#[derive(Clone, Debug, Default)]
pub struct Wants {
    /// The functions that may be called.
    pub tools: Vec<Tool>,
    /// Whether one is.
    pub calls: Calls,
    /// At most one call.
    pub only_one: bool,
    /// The format of content.
    pub form: Form,
    /// What of the request, beside what decides the reply, makes the ids of calls its own.
    pub turn: u32,
}

/// A function that may be called.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: Box<str>,
    /// Its place in the request, for a refusal.
    pub place: usize,
    /// The JSON schema of its arguments; any object if there is none.
    pub parameters: Option<Schema>,
}

/// A JSON schema as a text, read when an answer needs it, and once however many do.
#[derive(Clone, Debug)]
pub struct Schema {
    text: String,
    document: OnceCell<Result<Document, Problem>>,
}

impl Schema {
    /// The schema of that text.
    pub fn new(text: String) -> Self {
        Self { text, document: OnceCell::new() }
    }

    fn document(&self) -> Result<&Document, Problem> {
        self.document.get_or_init(|| Document::parse(&self.text)).as_ref().map_err(Clone::clone)
    }
}

/// Whether a function is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Calls {
    /// None is.
    Forbidden,
    /// Those that are scripted.
    #[default]
    IfScripted,
    /// At least one is.
    Required,
    /// This one is.
    Named(Box<str>),
}

/// The format of content.
#[derive(Clone, Debug, Default)]
pub enum Form {
    /// Any text.
    #[default]
    Text,
    /// A JSON object.
    Object,
    /// JSON that satisfies this schema.
    Schema(Schema),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text that this pattern matches as a whole.
    Pattern(String),
}

/// An answer, and why it ends when it ends by itself.
#[derive(Clone, Debug)]
pub struct Said {
    /// Its words.
    pub output: Output,
    /// Why it ends.
    pub finish: Finish,
}

/// Why a wish cannot be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// By the schema of the tool at this place of the request.
    Tool(usize, Problem),
    /// By the format.
    Form(Problem),
}

/// The answer that says `reply` as far as `wants` allow it.
///
/// # Errors
/// If a schema is wrong, is not supported, or cannot be satisfied.
pub fn say(reply: Reply, wants: &Wants) -> Result<Said, Unmet> {
    let calls = calls(&reply, wants)?;
    let Reply { entry, seed, reasoning, content, refusal, finish, tokenizer, .. } = reply;
    let mut parts: Vec<(Kind, Script)> = Vec::new();
    parts.extend(reasoning.map(|script| (Kind::Reasoning, script)));
    let mut beyond = Beyond::Silence;
    let is_forced = matches!(wants.calls, Calls::Required | Calls::Named(_));
    let has_calls = !calls.is_empty();
    let last = if has_calls {
        // Beside calls the model may say something, but not where it has no choice.
        let beside = content.filter(|_| !is_forced);
        parts.extend(beside.map(|script| (Kind::Content, script)));
        parts.extend(calls.into_iter().map(|call| call.part(&entry, &tokenizer)));
        None
    } else if let Some(refusal) = refusal {
        Some((Kind::Refusal, refusal))
    } else {
        let content = content.unwrap_or_else(|| said(&entry, String::new(), &tokenizer));
        let content = match &wants.form {
            Form::Text => {
                beyond = Beyond::Again;
                content
            }
            form => formed(form, content, &entry, seed, &tokenizer).map_err(Unmet::Form)?,
        };
        Some((Kind::Content, content))
    };
    let output = match last {
        Some((kind, script)) if parts.is_empty() => Output::single(kind, script, beyond),
        last => {
            parts.extend(last);
            Output::new(parts, beyond)
        }
    };
    let usual = match wants.calls {
        _ if !has_calls => Finish::Stop,
        // Where the client named the function, the model did not decide to call it.
        Calls::Named(_) => Finish::Stop,
        _ => Finish::ToolCalls,
    };
    Ok(Said { output, finish: finish.unwrap_or(usual) })
}

/// A call, before it is cut into tokens.
struct Made {
    call: Call,
    arguments: String,
}

impl Made {
    /// One token for the name, then those of the arguments.
    fn part(self, entry: &Arc<str>, tokenizer: &Tokenizer) -> (Kind, Script) {
        let table = PieceTable::behind(&self.call.name, &self.arguments, tokenizer);
        (Kind::ToolCall(self.call), Script::from_table(Arc::clone(entry), Arc::new(table)))
    }
}

fn calls(reply: &Reply, wants: &Wants) -> Result<Vec<Made>, Unmet> {
    if wants.tools.is_empty() || wants.calls == Calls::Forbidden {
        return Ok(Vec::new());
    }
    let place = |name: &str| wants.tools.iter().position(|tool| &*tool.name == name);
    let mut planned: Vec<(usize, Option<&str>)> = reply
        .tool_calls
        .iter()
        .filter_map(|(name, arguments)| Some((place(name)?, arguments.as_deref())))
        .collect();
    match &wants.calls {
        Calls::Named(name) => {
            planned.retain(|(tool, _)| wants.tools[*tool].name == *name);
            if planned.is_empty() {
                planned.extend(place(name).map(|tool| (tool, None)));
            }
        }
        Calls::Required if planned.is_empty() => {
            let tool = reply.seed.with(b"tool").below(wants.tools.len() as u64) as usize;
            planned.push((tool, None));
        }
        Calls::Required | Calls::IfScripted | Calls::Forbidden => {}
    }
    if wants.only_one {
        planned.truncate(1);
    }
    let make = |(index, (tool, scripted)): (usize, (usize, Option<&str>))| {
        let seed = reply.seed.with(b"call").with(&(index as u64).to_le_bytes());
        let Tool { name, place, parameters } = &wants.tools[tool];
        let arguments = match (scripted, parameters) {
            (Some(scripted), _) => scripted.to_owned(),
            (None, None) => "{}".to_owned(),
            (None, Some(schema)) => schema
                .document()
                .and_then(|schema| schema.generate(seed))
                .map_err(|problem| Unmet::Tool(*place, problem))?,
        };
        let id = id(seed.with(&wants.turn.to_le_bytes())).into();
        let call = Call { index: index as u32, id, name: name.clone() };
        Ok(Made { call, arguments })
    };
    planned.into_iter().enumerate().map(make).collect()
}

/// The id of a call: 24 letters and digits, as OpenAI has them.
fn id(seed: Seed) -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut draw = seed.with(b"id").generator();
    let letters = (0..24).map(|_| char::from(LETTERS[draw.below(62) as usize]));
    "call_".chars().chain(letters).collect()
}

/// Content in a format.
fn formed(
    form: &Form,
    scripted: Script,
    entry: &Arc<str>,
    seed: Seed,
    tokenizer: &Tokenizer,
) -> Result<Script, Problem> {
    let text = scripted.text();
    let seed = seed.with(b"form");
    let made = match form {
        Form::Text => return Ok(scripted),
        Form::Object => {
            let any = Document::parse(r#"{"type":"object"}"#)?;
            if any.accepts(&text) {
                return Ok(scripted);
            }
            let mut object = String::new();
            let answer = schema::json::Value::String(text);
            schema::json::Value::Object(vec![("answer".to_owned(), answer)]).write(&mut object);
            object
        }
        Form::Schema(schema) => {
            let schema = schema.document()?;
            if schema.accepts(&text) {
                return Ok(scripted);
            }
            schema.generate(seed)?
        }
        Form::Choice(choices) if choices.contains(&text) => return Ok(scripted),
        Form::Choice(choices) => choices[seed.below(choices.len() as u64) as usize].clone(),
        Form::Pattern(pattern) => schema::matching(pattern, seed)?,
    };
    Ok(said(entry, made, tokenizer))
}

fn said(entry: &Arc<str>, text: String, tokenizer: &Tokenizer) -> Script {
    Script::from_table(Arc::clone(entry), Arc::new(PieceTable::cut(text, tokenizer)))
}
