//! Whether a value satisfies a schema: JSON Schema 2020-12, with what earlier drafts wrote
//! otherwise.
//!
//! `format` is a note and not a rule, as in the standard; `$dynamicRef` and the `unevaluated...`
//! pair are not looked at here.

use super::json::Value;
use super::work::{VISIT, Work};
use super::{Document, whole};

/// More references than that without reaching the end are a circle.
const MAX_DEPTH: usize = 512;

impl Document {
    /// Whether `value` satisfies the schema `schema` of this document.
    pub(super) fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        self.holds(schema, value, 0) && !self.work.is_over()
    }

    fn holds(&self, schema: &Value, value: &Value, depth: usize) -> bool {
        if depth > MAX_DEPTH || !self.work.spend(VISIT) {
            return false;
        }
        let schema_members = match schema {
            Value::Bool(holds) => return *holds,
            Value::Object(members) => members,
            _ => return false,
        };
        let holds = |schema: &Value| self.holds(schema, value, depth + 1);
        let is_type = |name: &Value| name.as_str().is_some_and(|name| has_type(value, name));
        schema_members.iter().all(|(keyword, rule)| match (keyword.as_str(), rule) {
            ("$ref", rule) => rule.as_str().and_then(|it| self.target(it)).is_some_and(holds),
            ("type", Value::Array(names)) => names.iter().any(is_type),
            ("type", name) => is_type(name),
            ("enum", Value::Array(values)) => {
                values.iter().any(|it| self.work.spend(1) && it.equals(value))
            }
            ("const", allowed) => allowed.equals(value),
            ("allOf", Value::Array(all)) => all.iter().all(holds),
            ("anyOf", Value::Array(any)) => any.iter().any(holds),
            ("oneOf", Value::Array(one)) => one.iter().filter(|schema| holds(schema)).count() == 1,
            ("not", schema) => !holds(schema),
            ("if", condition) => {
                let branch = if holds(condition) { "then" } else { "else" };
                schema.get(branch).is_none_or(holds)
            }
            ("dependentSchemas", Value::Object(schemas)) => {
                schemas.iter().all(|(name, schema)| value.get(name).is_none() || holds(schema))
            }
            _ => match value {
                Value::Object(members) => self.object_holds(schema, keyword, rule, members, depth),
                Value::Array(items) => self.array_holds(schema, keyword, rule, items, depth),
                Value::String(text) => string_holds(&self.work, keyword, rule, text),
                Value::Number(number) => number_holds(keyword, rule, number.value),
                Value::Null | Value::Bool(_) => true,
            },
        })
    }

    fn object_holds(
        &self,
        schema: &Value,
        keyword: &str,
        rule: &Value,
        members: &[(String, Value)],
        depth: usize,
    ) -> bool {
        let has = |name: &str| members.iter().any(|(key, _)| key == name);
        let names_are_there = |names: &[Value]| names.iter().filter_map(Value::as_str).all(has);
        let holds = |schema: &Value, value: &Value| self.holds(schema, value, depth + 1);
        match (keyword, rule) {
            ("properties", Value::Object(schemas)) => members.iter().all(|(key, value)| {
                schemas
                    .iter()
                    .filter(|(name, _)| name == key)
                    .all(|(_, schema)| holds(schema, value))
            }),
            ("patternProperties", Value::Object(schemas)) => members.iter().all(|(key, value)| {
                let mut rules = schemas.iter().filter(|(pattern, _)| self.work.finds(pattern, key));
                rules.all(|(_, schema)| holds(schema, value))
            }),
            ("additionalProperties", additional) => members
                .iter()
                .filter(|(key, _)| !is_named(&self.work, schema, key))
                .all(|(_, value)| holds(additional, value)),
            ("propertyNames", names) => {
                members.iter().all(|(key, _)| holds(names, &Value::String(key.clone())))
            }
            ("required", Value::Array(names)) => names_are_there(names),
            ("dependentRequired", Value::Object(lists)) => lists
                .iter()
                .all(|(name, names)| !has(name) || names.as_array().is_none_or(names_are_there)),
            ("minProperties", count) => whole(count).is_none_or(|count| members.len() >= count),
            ("maxProperties", count) => whole(count).is_none_or(|count| members.len() <= count),
            _ => true,
        }
    }

    fn array_holds(
        &self,
        schema: &Value,
        keyword: &str,
        rule: &Value,
        items: &[Value],
        depth: usize,
    ) -> bool {
        let holds = |schema: &Value, value: &Value| self.holds(schema, value, depth + 1);
        let first = first_items(schema);
        match (keyword, rule) {
            ("prefixItems", _) | ("items", Value::Array(_)) => {
                items.iter().zip(first).all(|(item, schema)| holds(schema, item))
            }
            ("items", rest) | ("additionalItems", rest) => {
                items.iter().skip(first.len()).all(|item| holds(rest, item))
            }
            ("contains", wanted) => {
                let count = items.iter().filter(|item| holds(wanted, item)).count();
                let least = schema.get("minContains").and_then(whole).unwrap_or(1);
                let most = schema.get("maxContains").and_then(whole).unwrap_or(usize::MAX);
                (least..=most).contains(&count)
            }
            ("minItems", count) => whole(count).is_none_or(|count| items.len() >= count),
            ("maxItems", count) => whole(count).is_none_or(|count| items.len() <= count),
            ("uniqueItems", Value::Bool(true)) => items.iter().enumerate().all(|(at, item)| {
                !items[..at].iter().any(|it| !self.work.spend(1) || it.equals(item))
            }),
            _ => true,
        }
    }
}

/// Whether `properties` or `patternProperties` of an object's schema know this member.
pub(super) fn is_named(work: &Work, schema: &Value, key: &str) -> bool {
    let patterns = schema.get("patternProperties").and_then(Value::as_object).unwrap_or_default();
    schema.get("properties").is_some_and(|named| named.get(key).is_some())
        || patterns.iter().any(|(pattern, _)| work.finds(pattern, key))
}

/// The schemas of an array's first items.
pub(super) fn first_items(schema: &Value) -> &[Value] {
    let first = schema.get("prefixItems").or_else(|| schema.get("items"));
    first.and_then(Value::as_array).unwrap_or_default()
}

pub(super) fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => {
            name == "number" || name == "integer" && number.value.fract() == 0.0
        }
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

fn string_holds(work: &Work, keyword: &str, rule: &Value, text: &str) -> bool {
    match (keyword, rule) {
        ("minLength", count) => whole(count).is_none_or(|count| text.chars().count() >= count),
        ("maxLength", count) => whole(count).is_none_or(|count| text.chars().count() <= count),
        ("pattern", Value::String(pattern)) => work.finds(pattern, text),
        _ => true,
    }
}

fn number_holds(keyword: &str, rule: &Value, value: f64) -> bool {
    let Some(bound) = rule.as_f64() else { return true };
    match keyword {
        "minimum" => value >= bound,
        "maximum" => value <= bound,
        "exclusiveMinimum" => value > bound,
        "exclusiveMaximum" => value < bound,
        "multipleOf" => bound == 0.0 || (value / bound).fract() == 0.0,
        _ => true,
    }
}
