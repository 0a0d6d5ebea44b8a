//! JSON Schema: answers and arguments made from a schema and a seed.
//!
//! Not a validator for others to use: it only judges what is made here. The one invariant: a value
//! that comes out satisfies its schema, or nothing comes out; and the same schema and seed give the
//! same value on every machine.
//!
//! A value is drawn keyword by keyword ([`generate`]) and then judged by all rules of the schema
//! ([`check`]), so that what drawing does not foresee (`not`, `if`, overlapping branches of
//! `oneOf`) costs another draw, not a wrong answer. What is known: JSON Schema 2020-12 and the
//! older spellings `definitions`, `items: [...]` and `additionalItems`, without `$dynamicRef`,
//! `unevaluatedItems` and references to other documents.

mod check;
mod generate;
pub mod json;
mod pattern;
mod work;

use std::fmt;

use self::json::Value;
use self::work::{VISIT, Work};
use crate::seed::Seed;

/// A schema that can be drawn from.
#[derive(Clone, Debug)]
pub struct Document {
    root: Value,
    /// How long its text is.
    bytes: usize,
    work: Work,
}

/// What is wrong with a schema, or why no value was found for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as in `properties.age`; empty for the whole schema.
    pub path: String,
    /// What it is, and what to write instead.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "at {path}: {}", self.message),
        }
    }
}

impl Problem {
    fn new(path: &str, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), message: message.into() }
    }
}

/// Values drawn at all for one answer, parts and discarded ones included.
const MAX_VALUES: usize = 8_000;

/// Values drawn before a schema counts as one that cannot be satisfied.
const ATTEMPTS: u64 = 24;

impl Document {
    /// Reads a schema and looks at every keyword that is known.
    ///
    /// # Errors
    /// The first thing that is wrong or not supported.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let root = Value::parse(text).map_err(|at| {
            Problem::new("", format!("it is no JSON, or nested too deep, at byte {}", at.at))
        })?;
        let document = Self { root, bytes: text.len(), work: Work::new() };
        document.look_at(&document.root, "")?;
        Ok(document)
    }

    /// Whether `text` is JSON that satisfies the schema.
    pub fn accepts(&self, text: &str) -> bool {
        self.work.refill();
        Value::parse(text).is_ok_and(|value| self.is_valid(&self.root, &value))
    }

    /// A JSON text that satisfies the schema.
    ///
    /// # Errors
    /// If none was found: the schema cannot be satisfied, or asks for too much at once.
    pub fn generate(&self, seed: Seed) -> Result<String, Problem> {
        self.work.refill();
        let mut problem = None;
        let mut left = MAX_VALUES;
        for attempt in 0..ATTEMPTS {
            if self.work.is_over() {
                return Err(Problem::new("", TOO_MUCH));
            }
            match generate::draw(self, &self.root, seed, attempt, &mut left) {
                Ok(value) if self.is_valid(&self.root, &value) => {
                    let mut text = String::new();
                    value.write(&mut text);
                    return Ok(text);
                }
                Ok(_) => {}
                Err(why) => {
                    problem.get_or_insert(why);
                }
            }
        }
        Err(problem.unwrap_or_else(|| {
            let message = "no value was found that satisfies all of it; make its rules simpler, \
                           for example without 'not', 'if' or overlapping branches";
            Problem::new("", message)
        }))
    }

    /// What a `$ref` means.
    fn target(&self, reference: &str) -> Option<&Value> {
        let fragment = reference.strip_prefix('#')?;
        if fragment.is_empty() {
            return Some(&self.root);
        }
        let Some(pointer) = fragment.strip_prefix('/') else {
            // An anchor is looked for everywhere.
            return self.work.spend(self.bytes / 16).then(|| anchored(&self.root, fragment))?;
        };
        pointer.split('/').try_fold(&self.root, |value, step| {
            let step =
                step.replace("%25", "%").replace("%22", "\"").replace("~1", "/").replace("~0", "~");
            match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                value => {
                    let members = value.as_object().map_or(0, <[_]>::len);
                    self.work.spend(VISIT + members / 4).then(|| value.get(&step))?
                }
            }
        })
    }

    fn look_at(&self, schema: &Value, path: &str) -> Result<(), Problem> {
        let members = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(members) => members,
            _ => return Err(Problem::new(path, "a schema is an object, true or false")),
        };
        for (keyword, rule) in members {
            let at = join(path, keyword);
            self.look_at_keyword(keyword, rule, &at)?;
        }
        Ok(())
    }

    fn look_at_keyword(&self, keyword: &str, rule: &Value, at: &str) -> Result<(), Problem> {
        let wrong = |message: &str| Err(Problem::new(at, message));
        match keyword {
            "$ref" => match rule.as_str().map(|reference| self.target(reference)) {
                Some(Some(_)) => Ok(()),
                Some(None) if self.work.is_over() => Err(Problem::new("", TOO_MUCH)),
                Some(None) => wrong(
                    "it refers to nothing in this schema; write '#/$defs/NAME' for a member of '$defs'",
                ),
                None => wrong("it is a string"),
            },
            "$dynamicRef" | "$recursiveRef" | "unevaluatedItems" => {
                wrong("this keyword is not supported; use '$ref', 'items' and 'prefixItems'")
            }
            "type" => {
                let names = match rule {
                    Value::Array(names) => names.as_slice(),
                    name => std::slice::from_ref(name),
                };
                let is_known = |name: &Value| name.as_str().is_some_and(|it| TYPES.contains(&it));
                if names.is_empty() || !names.iter().all(is_known) {
                    return wrong(
                        "it is one or a list of string, number, integer, boolean, object, array, null",
                    );
                }
                Ok(())
            }
            "enum" => match rule.as_array() {
                Some([]) => wrong("no value is in an empty list"),
                Some(_) => Ok(()),
                None => wrong("it is a list of values"),
            },
            "required" => match rule.as_array() {
                Some(names) if names.iter().all(|name| name.as_str().is_some()) => Ok(()),
                _ => wrong("it is a list of names"),
            },
            "pattern" => match rule.as_str() {
                Some(pattern) if self.work.knows(pattern) => Ok(()),
                Some(_) if self.work.is_over() => Err(Problem::new("", TOO_MUCH)),
                Some(_) => wrong(UNKNOWN_PATTERN),
                None => wrong("it is a string"),
            },
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => match rule.as_array() {
                Some([]) | None => wrong("it is a list of at least one schema"),
                Some(schemas) => self.look_at_all(schemas, at),
            },
            "items" if matches!(rule, Value::Array(_)) => {
                self.look_at_all(rule.as_array().unwrap_or_default(), at)
            }
            "items"
            | "additionalItems"
            | "contains"
            | "additionalProperties"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "unevaluatedProperties" => self.look_at(rule, at),
            "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" => {
                let Some(schemas) = rule.as_object() else {
                    return wrong("it is an object whose members are schemas");
                };
                for (name, schema) in schemas {
                    if keyword == "patternProperties" && !self.work.knows(name) {
                        if self.work.is_over() {
                            return Err(Problem::new("", TOO_MUCH));
                        }
                        return Err(Problem::new(&join(at, name), UNKNOWN_PATTERN));
                    }
                    self.look_at(schema, &join(at, name))?;
                }
                Ok(())
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                if rule.as_f64().is_some() { Ok(()) } else { wrong("it is a number") }
            }
            "multipleOf" => match rule.as_f64() {
                Some(step) if step > 0.0 => Ok(()),
                _ => wrong("it is a number above 0"),
            },
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" | "minContains" | "maxContains" => match whole(rule) {
                Some(_) => Ok(()),
                None => wrong("it is a whole number of at least 0"),
            },
            _ => Ok(()),
        }
    }

    fn look_at_all(&self, schemas: &[Value], at: &str) -> Result<(), Problem> {
        let mut numbered = schemas.iter().enumerate();
        numbered.try_for_each(|(index, schema)| self.look_at(schema, &format!("{at}[{index}]")))
    }
}

/// Regular expressions: a text that matches `pattern`.
///
/// # Errors
/// If it is no pattern, or one whose matches are too long.
pub fn matching(pattern: &str, seed: Seed) -> Result<String, Problem> {
    if !pattern::is_known(pattern) {
        return Err(Problem::new("", UNKNOWN_PATTERN));
    }
    // The whole text is to match.
    let anchored = pattern::compile(&format!("^(?:{pattern})$"))
        .ok_or_else(|| Problem::new("", UNKNOWN_PATTERN))?;
    (0..ATTEMPTS)
        .filter_map(|attempt| {
            let mut draw = seed.with(&attempt.to_le_bytes()).generator();
            pattern::sample(pattern, 4, &mut draw)
        })
        .find(|text| anchored.is_match(text))
        .ok_or_else(|| Problem::new("", "no text was found that matches"))
}

const TOO_MUCH: &str = "it takes too long to find a value for it; make it smaller, with fewer \
                        branches, references and patterns";

const UNKNOWN_PATTERN: &str = "it is no regular expression that is supported: look-around \
                               ('(?=') and references to groups ('\\1') are not";

const TYPES: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A count: a whole number of at least 0, not absurdly large.
fn whole(value: &Value) -> Option<usize> {
    let count = value.as_f64()?;
    (count >= 0.0 && count.fract() == 0.0).then_some(count.min(1e9) as usize)
}

/// The schema with that `$anchor`.
fn anchored<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(members) => {
            let is_it = value.get("$anchor").and_then(Value::as_str) == Some(name);
            let below = || members.iter().find_map(|(_, value)| anchored(value, name));
            if is_it { Some(value) } else { below() }
        }
        Value::Array(items) => items.iter().find_map(|value| anchored(value, name)),
        _ => None,
    }
}
