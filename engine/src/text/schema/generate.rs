//! A value for a schema, drawn keyword by keyword.
//!
//! What must hold at a place is a list of schemas, all of them: references and `allOf` add to it,
//! and so does the chosen branch of `anyOf` and `oneOf`. What is drawn is a good guess, judged
//! afterwards; here is only made sure that it ends.

use super::check::{first_items, is_named};
use super::json::Value;
use super::work::{VISIT, Work};
use super::{Document, Problem, TOO_MUCH, join, pattern, whole};
use crate::seed::Seed;
use crate::text::synthetic::Filler;
use crate::units::Tokens;

/// At this nesting only what must be there is drawn.
const SPARSE_DEPTH: usize = 4;

/// At this nesting drawing gives up: a schema that contains itself without a way out.
const MAX_DEPTH: usize = 48;

/// Schemas that hold at one place at once.
const MAX_SCHEMAS: usize = 256;

/// Draws of an item or text that collides with a rule seen only afterwards.
const REDRAWS: u64 = 24;

/// What reading a pattern backwards costs of a schema's work.
const SAMPLE: usize = 1_000;

/// Draws a value for `schema`. Other attempts choose other branches.
pub(super) fn draw(
    document: &Document,
    schema: &Value,
    seed: Seed,
    attempt: u64,
    left: &mut usize,
) -> Result<Value, Problem> {
    let seed = if attempt == 0 { seed } else { seed.with(&attempt.to_le_bytes()) };
    let mut drawing = Drawing { document, attempt, left: *left };
    let drawn = drawing.value(vec![schema], seed, 0, "");
    *left = drawing.left;
    drawn
}

struct Drawing<'a> {
    document: &'a Document,
    attempt: u64,
    left: usize,
}

type Schemas<'a> = Vec<&'a Value>;

impl<'a> Drawing<'a> {
    fn value(
        &mut self,
        schemas: Schemas<'a>,
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<Value, Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::new(path, "it contains itself without an end"));
        }
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| Problem::new(path, "it asks for too large a value"))?;
        if self.document.work.is_over() {
            return Err(Problem::new(path, TOO_MUCH));
        }
        let all = self.flatten(schemas, seed, depth, path)?;
        if let Some(value) = self.listed(&all, seed, path)? {
            return Ok(value);
        }
        let kind = choose_type(&all, seed, depth, path)?;
        match kind {
            "null" => Ok(Value::Null),
            "boolean" => Ok(Value::Bool(seed.with(b"boolean").below(2) == 1)),
            "integer" | "number" => number(&all, kind, seed, path),
            "string" => text(&self.document.work, &all, seed, path, self.attempt),
            "array" => self.array(&all, seed, depth, path),
            _ => self.object(&all, seed, depth, path),
        }
    }

    /// All schemas that must hold, with references followed and branches chosen.
    fn flatten(
        &mut self,
        mut pending: Schemas<'a>,
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<Schemas<'a>, Problem> {
        pending.reverse();
        let mut all: Schemas<'a> = Vec::new();
        let mut choices: u64 = 0;
        while let Some(schema) = pending.pop() {
            if !self.document.work.spend(VISIT) {
                return Err(Problem::new(path, TOO_MUCH));
            }
            match schema {
                Value::Bool(true) => continue,
                Value::Bool(false) => return Err(Problem::new(path, "nothing satisfies it")),
                _ => {}
            }
            if all.iter().any(|known| std::ptr::eq(*known, schema)) {
                continue;
            }
            if all.len() >= MAX_SCHEMAS {
                return Err(Problem::new(path, "it is made of too many schemas"));
            }
            all.push(schema);
            if let Some(target) = schema
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| self.document.target(reference))
            {
                pending.push(target);
            }
            if let Some(every) = schema.get("allOf").and_then(Value::as_array) {
                pending.extend(every.iter().rev());
            }
            for keyword in ["anyOf", "oneOf"] {
                let Some(branches) = schema.get(keyword).and_then(Value::as_array) else {
                    continue;
                };
                choices += 1;
                pending.push(self.branch(branches, seed.with(&choices.to_le_bytes()), depth));
            }
            if schema.get("if").is_some() {
                // Whether the condition holds is seen afterwards; either may turn out right.
                choices += 1;
                let branches: Vec<&Value> =
                    ["then", "else"].iter().filter_map(|name| schema.get(name)).collect();
                if seed.with(b"if").with(&self.attempt.to_le_bytes()).below(2) == 0 {
                    pending.extend(schema.get("if"));
                    pending.extend(branches.first());
                } else {
                    pending.extend(branches.last());
                }
            }
        }
        Ok(all)
    }

    fn branch(&self, branches: &'a [Value], seed: Seed, depth: usize) -> &'a Value {
        if depth < SPARSE_DEPTH {
            return &branches[seed.with(b"branch").below(branches.len() as u64) as usize];
        }
        // The way out: the branch that needs the least below it.
        let height = |branch: &&Value| self.height(branch, &mut Vec::new());
        branches.iter().min_by_key(height).unwrap_or(&branches[0])
    }

    /// How many levels a value for `schema` has at least; more than [`MAX_DEPTH`] if it cannot end.
    fn height(&self, schema: &'a Value, above: &mut Vec<*const Value>) -> usize {
        if above.contains(&std::ptr::from_ref(schema))
            || above.len() > MAX_DEPTH
            || !self.document.work.spend(VISIT)
        {
            return MAX_DEPTH + 1;
        }
        above.push(schema);
        let mut height = 0;
        if let Some(target) =
            schema.get("$ref").and_then(Value::as_str).and_then(|it| self.document.target(it))
        {
            height = height.max(self.height(target, above));
        }
        for every in schema.get("allOf").and_then(Value::as_array).unwrap_or_default() {
            height = height.max(self.height(every, above));
        }
        for keyword in ["anyOf", "oneOf"] {
            let branches = schema.get(keyword).and_then(Value::as_array).unwrap_or_default();
            let least = branches.iter().map(|branch| self.height(branch, above)).min();
            height = height.max(least.unwrap_or(0));
        }
        let types = schema.get("type").map(|types| match types {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            name => name.as_str().into_iter().collect::<Vec<_>>(),
        });
        let may_be = |name: &str| types.as_ref().is_none_or(|types| types.as_slice() == [name]);
        if may_be("object") {
            let required = schema.get("required").and_then(Value::as_array).unwrap_or_default();
            for name in required.iter().filter_map(Value::as_str) {
                if let Some(member) = schema.get("properties").and_then(|all| all.get(name)) {
                    height = height.max(1 + self.height(member, above));
                }
            }
        }
        if may_be("array")
            && schema.get("minItems").and_then(whole).unwrap_or(0) > 0
            && let Some(items @ Value::Object(_)) = schema.get("items")
        {
            height = height.max(1 + self.height(items, above));
        }
        above.pop();
        height
    }

    /// One of the values of `const` and `enum`, if there are such.
    fn listed(&self, all: &[&'a Value], seed: Seed, path: &str) -> Result<Option<Value>, Problem> {
        let lists: Vec<Vec<&Value>> = all
            .iter()
            .flat_map(|schema| {
                let one = schema.get("const").map(|value| vec![value]);
                let many =
                    schema.get("enum").and_then(Value::as_array).map(|all| all.iter().collect());
                [one, many]
            })
            .flatten()
            .collect();
        let Some((first, others)) = lists.split_first() else { return Ok(None) };
        let fits = |value: &&&Value| {
            let is_in = |list: &Vec<&Value>| {
                list.iter().any(|it| self.document.work.spend(1) && it.equals(value))
            };
            others.iter().all(is_in)
                && all.iter().all(|schema| self.document.is_valid(schema, value))
        };
        let fitting: Vec<&&Value> = first.iter().filter(fits).collect();
        if fitting.is_empty() {
            return Err(Problem::new(path, "none of the listed values satisfies the other rules"));
        }
        let chosen = seed.with(b"enum").below(fitting.len() as u64) as usize;
        Ok(Some((*fitting[chosen]).clone()))
    }

    fn array(
        &mut self,
        all: &[&'a Value],
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<Value, Problem> {
        let least = most_of(all, "minItems").unwrap_or(0);
        let most = least_of(all, "maxItems").unwrap_or(usize::MAX);
        let is_unique =
            all.iter().any(|it| matches!(it.get("uniqueItems"), Some(Value::Bool(true))));
        let contained: Schemas<'a> =
            all.iter().filter_map(|schema| schema.get("contains")).collect();
        let wanted =
            if contained.is_empty() { 0 } else { most_of(all, "minContains").unwrap_or(1) };
        let first = all.iter().map(|schema| first_items(schema).len()).max().unwrap_or(0);
        if least > most {
            return Err(Problem::new(path, "minItems is above maxItems"));
        }
        let count = if depth >= SPARSE_DEPTH {
            least.max(wanted)
        } else {
            let few = 1 + seed.with(b"items").below(3) as usize;
            few.max(first).max(least).max(wanted).min(most)
        };
        let mut items: Vec<Value> = Vec::new();
        for at in 0..count {
            let mut rules: Schemas<'a> = Vec::new();
            for schema in all {
                let first = first_items(schema);
                let rest = match schema.get("items") {
                    Some(Value::Array(_)) => schema.get("additionalItems"),
                    rest => rest,
                };
                rules.extend(first.get(at).or(rest));
            }
            if at < wanted {
                rules.extend(&contained);
            }
            let place = format!("{path}[{at}]");
            let seed = seed.with(&(at as u64).to_le_bytes());
            match self.item(&rules, seed, depth, &place, is_unique.then_some(&items)) {
                Ok(item) => items.push(item),
                // What need not be there may be impossible.
                Err(_) if at >= least && at >= wanted => break,
                Err(why) => return Err(why),
            }
        }
        Ok(Value::Array(items))
    }

    /// An item that is none of `others`.
    fn item(
        &mut self,
        rules: &Schemas<'a>,
        seed: Seed,
        depth: usize,
        path: &str,
        others: Option<&Vec<Value>>,
    ) -> Result<Value, Problem> {
        let mut item = self.value(rules.clone(), seed, depth + 1, path)?;
        let Some(others) = others else { return Ok(item) };
        for redraw in 0..REDRAWS {
            if !others.iter().any(|it| !self.document.work.spend(1) || it.equals(&item)) {
                return Ok(item);
            }
            let seed = seed.with(b"again").with(&redraw.to_le_bytes());
            item = self.value(rules.clone(), seed, depth + 1, path)?;
        }
        Err(Problem::new(path, "there are not enough different values for uniqueItems"))
    }

    fn object(
        &mut self,
        all: &[&'a Value],
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<Value, Problem> {
        let required: Vec<&'a str> = strings(all, "required").collect();
        let most = least_of(all, "maxProperties").unwrap_or(usize::MAX);
        let least = most_of(all, "minProperties").unwrap_or(0);
        let mut names: Vec<&'a str> = Vec::new();
        let named = all.iter().filter_map(|schema| schema.get("properties")?.as_object());
        for name in named.flatten().map(|(name, _)| name.as_str()).chain(required.iter().copied()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut must: Vec<&'a str> = required;
        let lists = all.iter().filter_map(|schema| schema.get("dependentRequired")?.as_object());
        for (name, others) in lists.flatten() {
            if must.contains(&name.as_str()) {
                must.extend(others.as_array().unwrap_or_default().iter().filter_map(Value::as_str));
            }
        }
        let mut members: Vec<(String, Value)> = Vec::new();
        for name in names {
            let is_required = must.contains(&name);
            let seed = seed.with(name.as_bytes());
            let room = most.saturating_sub(members.len());
            if !is_required && (depth >= SPARSE_DEPTH || self.leaves_out(seed) || room == 0) {
                continue;
            }
            let place = join(path, name);
            match self.member(all, name, seed, depth, &place) {
                Ok(value) => members.push((name.to_owned(), value)),
                Err(_) if !is_required => {}
                Err(why) => return Err(why),
            }
        }
        self.add_unnamed(all, &mut members, least, seed, depth, path)?;
        Ok(Value::Object(members))
    }

    /// Later attempts leave out some of what need not be there.
    fn leaves_out(&self, seed: Seed) -> bool {
        self.attempt > 0 && seed.with(b"left out").below(3) == 0
    }

    fn member(
        &mut self,
        all: &[&'a Value],
        name: &str,
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<Value, Problem> {
        let mut rules: Schemas<'a> = Vec::new();
        for schema in all {
            rules.extend(schema.get("properties").and_then(|named| named.get(name)));
            let patterns = schema.get("patternProperties").and_then(Value::as_object);
            for (pattern, rule) in patterns.unwrap_or_default() {
                if self.document.work.finds(pattern, name) {
                    rules.push(rule);
                }
            }
            if !is_named(&self.document.work, schema, name) {
                rules.extend(schema.get("additionalProperties"));
            }
        }
        self.value(rules, seed, depth + 1, path)
    }

    /// Members beyond the named ones, if there must be some.
    fn add_unnamed(
        &mut self,
        all: &[&'a Value],
        members: &mut Vec<(String, Value)>,
        least: usize,
        seed: Seed,
        depth: usize,
        path: &str,
    ) -> Result<(), Problem> {
        let names: Schemas<'a> =
            all.iter().filter_map(|schema| schema.get("propertyNames")).collect();
        let patterns: Vec<&'a str> = all
            .iter()
            .filter_map(|schema| schema.get("patternProperties")?.as_object())
            .flatten()
            .map(|(pattern, _)| pattern.as_str())
            .collect();
        // A map of anything shows what it is a map of.
        let is_map = all.iter().any(|schema| {
            matches!(schema.get("additionalProperties"), Some(Value::Object(_)))
                || schema.get("patternProperties").is_some()
        });
        let wanted = if is_map && members.is_empty() && depth < SPARSE_DEPTH { 2 } else { 0 };
        let wanted = wanted.min(least_of(all, "maxProperties").unwrap_or(usize::MAX));
        let mut number = 0;
        while members.len() < least.max(wanted) {
            number += 1;
            let seed = seed.with(b"unnamed").with(&(number as u64).to_le_bytes());
            let name = if !names.is_empty() {
                match self.value(names.clone(), seed, depth + 1, path)? {
                    Value::String(name) => name,
                    _ => return Err(Problem::new(path, "names of members are strings")),
                }
            } else if let Some(pattern) = patterns.first() {
                pattern::sample(pattern, 4, &mut seed.generator()).unwrap_or_default()
            } else {
                format!("{}{number}", word(seed))
            };
            let place = join(path, &name);
            let is_new = members.iter().all(|(known, _)| *known != name);
            match self.member(all, &name, seed, depth, &place) {
                Ok(value) if is_new => members.push((name, value)),
                Ok(_) if number < least + 100 => {}
                Err(_) if members.len() >= least => break,
                Err(why) => return Err(why),
                Ok(_) => {
                    return Err(Problem::new(path, "there are not enough names for minProperties"));
                }
            }
        }
        Ok(())
    }
}

/// The type that a value gets, of those that all schemas allow.
fn choose_type(
    all: &[&Value],
    seed: Seed,
    depth: usize,
    path: &str,
) -> Result<&'static str, Problem> {
    let mut allowed: Vec<&'static str> =
        vec!["object", "array", "string", "number", "boolean", "null"];
    let mut is_whole = false;
    let mut is_said = false;
    for rule in all.iter().filter_map(|schema| schema.get("type")) {
        is_said = true;
        let names: Vec<&str> = match rule {
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            name => name.as_str().into_iter().collect(),
        };
        is_whole |= names.contains(&"integer") && !names.contains(&"number");
        let says_number = names.contains(&"integer") || names.contains(&"number");
        allowed.retain(|kind| names.contains(kind) || *kind == "number" && says_number);
    }
    if allowed.is_empty() {
        return Err(Problem::new(path, "no type is allowed by all of its rules"));
    }
    if !is_said {
        // The type that its rules are about.
        let is_about = |kind: &&&'static str| {
            let keywords = keywords_of(kind);
            all.iter().any(|schema| keywords.iter().any(|keyword| schema.get(keyword).is_some()))
        };
        return Ok(allowed.iter().find(is_about).copied().unwrap_or("string"));
    }
    let full: Vec<&'static str> = allowed.iter().copied().filter(|kind| *kind != "null").collect();
    let chosen = match full.as_slice() {
        [] => "null",
        _ if depth >= SPARSE_DEPTH => full
            .iter()
            .rev()
            .copied()
            .find(|kind| !matches!(*kind, "object" | "array"))
            .unwrap_or(if allowed.contains(&"null") { "null" } else { full[0] }),
        full => full[seed.with(b"type").below(full.len() as u64) as usize],
    };
    Ok(if chosen == "number" && is_whole { "integer" } else { chosen })
}

fn keywords_of(kind: &str) -> &'static [&'static str] {
    match kind {
        "object" => &[
            "properties",
            "required",
            "additionalProperties",
            "patternProperties",
            "minProperties",
            "propertyNames",
        ],
        "array" => &["items", "prefixItems", "minItems", "contains", "uniqueItems"],
        "number" => &["minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"],
        _ => &[],
    }
}

fn number(all: &[&Value], kind: &str, seed: Seed, path: &str) -> Result<Value, Problem> {
    let bounds = |keyword: &'static str| {
        all.iter().filter_map(move |schema| schema.get(keyword).and_then(Value::as_f64))
    };
    let steps: Vec<f64> = bounds("multipleOf").collect();
    let step = steps
        .iter()
        .copied()
        .fold(None, |most: Option<f64>, step| Some(most.map_or(step, |most| most.max(step))));
    let step = match (step, kind) {
        (Some(step), "integer") if step.fract() != 0.0 => 1.0_f64.max(step.ceil()),
        (Some(step), _) => step,
        (None, "integer") => 1.0,
        (None, _) => 0.25,
    };
    let low = bounds("minimum").chain(bounds("exclusiveMinimum")).fold(f64::NEG_INFINITY, f64::max);
    let high = bounds("maximum").chain(bounds("exclusiveMaximum")).fold(f64::INFINITY, f64::min);
    let (low, high) = match (low.is_finite(), high.is_finite()) {
        (true, true) => (low, high),
        (true, false) => (low, low + 100.0 * step.max(1.0)),
        (false, true) => (high - 100.0 * step.max(1.0), high),
        (false, false) => (0.0, 100.0 * step.max(1.0)),
    };
    let fits = |value: f64| {
        bounds("minimum").all(|bound| value >= bound)
            && bounds("maximum").all(|bound| value <= bound)
            && bounds("exclusiveMinimum").all(|bound| value > bound)
            && bounds("exclusiveMaximum").all(|bound| value < bound)
            && steps.iter().all(|step| (value / step).fract() == 0.0)
            && (kind != "integer" || value.fract() == 0.0)
    };
    let (first, last) = ((low / step).ceil(), (high / step).floor());
    let mut draw = seed.with(b"number").generator();
    for redraw in 0..REDRAWS * 4 {
        // The ends of the range after many that did not fit.
        let at = match redraw {
            _ if first >= last => first,
            64 => first,
            65 => last,
            _ => first + (draw.unit() * (last - first + 1.0)).floor().min(last - first),
        };
        if fits(at * step) {
            return Ok(rounded(at * step, kind));
        }
    }
    // A range that holds no step: its middle, for numbers without one.
    let middle = [low + (high - low) / 2.0, low, high].into_iter().find(|value| fits(*value));
    middle
        .map(|value| rounded(value, kind))
        .ok_or_else(|| Problem::new(path, "no number satisfies its bounds and steps"))
}

fn rounded(value: f64, kind: &str) -> Value {
    // Beyond 2^53 every number is whole, and its digits as an integer are its own.
    if kind == "integer" && value.abs() < 9e18 {
        Value::integer(value as i64)
    } else {
        Value::decimal(value + 0.0)
    }
}

fn text(
    work: &Work,
    all: &[&Value],
    seed: Seed,
    path: &str,
    attempt: u64,
) -> Result<Value, Problem> {
    let least = most_of(all, "minLength").unwrap_or(0);
    let most = least_of(all, "maxLength").unwrap_or(usize::MAX);
    if least > most {
        return Err(Problem::new(path, "minLength is above maxLength"));
    }
    if least > 100_000 {
        return Err(Problem::new(path, "minLength is too large"));
    }
    let patterns: Vec<&str> = all.iter().filter_map(|it| it.get("pattern")?.as_str()).collect();
    let fits = |text: &str| {
        let count = text.chars().count();
        (least..=most).contains(&count) && patterns.iter().all(|it| work.finds(it, text))
    };
    if let Some(format) = all.iter().find_map(|schema| schema.get("format")?.as_str())
        && let Some(text) = formatted(format, seed)
        && fits(&text)
    {
        return Ok(Value::String(text));
    }
    if patterns.is_empty() {
        return Ok(Value::String(words(least, most, seed)));
    }
    for redraw in 0..REDRAWS * 2 {
        let source = patterns[(redraw % patterns.len() as u64) as usize];
        let mut draw =
            seed.with(b"pattern").with(&(redraw + attempt * 100).to_le_bytes()).generator();
        // First short ones, then as long as they must be.
        let spread = if redraw < 4 { 4 } else { 4 + least as u32 };
        if !work.spend(SAMPLE) {
            return Err(Problem::new(path, TOO_MUCH));
        }
        if let Some(text) = pattern::sample(source, spread, &mut draw)
            && fits(&text)
        {
            return Ok(Value::String(text));
        }
    }
    Err(Problem::new(path, "no text was found for its pattern and length"))
}

/// A few words, of at least and at most so many characters.
fn words(least: usize, most: usize, seed: Seed) -> String {
    let count = 1 + seed.with(b"words").below(4) as u32 + (least / 4) as u32;
    let filler = Filler::new(seed, Tokens::new(count + 4));
    let mut text = String::new();
    let mut chars = 0;
    for k in 0..count + 4 {
        let piece = filler.piece(k);
        if k >= count && chars >= least {
            break;
        }
        chars += piece.chars().count();
        text.push_str(piece);
    }
    let mut text: String = text.trim().trim_end_matches(['.', ',']).chars().take(most).collect();
    while text.ends_with(' ') {
        text.pop();
    }
    let missing = least.saturating_sub(text.chars().count());
    text.extend(std::iter::repeat_n('a', missing));
    text
}

/// A word of lower-case letters.
fn word(seed: Seed) -> &'static str {
    const WORDS: [&str; 8] = ["alpha", "beta", "gamma", "delta", "first", "second", "item", "key"];
    WORDS[seed.with(b"word").below(WORDS.len() as u64) as usize]
}

/// A text of a format that the standard names.
fn formatted(format: &str, seed: Seed) -> Option<String> {
    let mut draw = seed.with(b"format").generator();
    let mut below = |bound: u64| draw.below(bound);
    let date = |below: &mut dyn FnMut(u64) -> u64| {
        format!("20{:02}-{:02}-{:02}", 20 + below(10), 1 + below(12), 1 + below(28))
    };
    let time = |below: &mut dyn FnMut(u64) -> u64| {
        format!("{:02}:{:02}:{:02}Z", below(24), below(60), below(60))
    };
    Some(match format {
        "date-time" => format!("{}T{}", date(&mut below), time(&mut below)),
        "date" => date(&mut below),
        "time" => time(&mut below),
        "duration" => format!("P{}DT{}H", 1 + below(30), 1 + below(23)),
        "email" | "idn-email" => format!("{}.{}@example.com", word(seed), below(1000)),
        "hostname" | "idn-hostname" => format!("{}{}.example.com", word(seed), below(100)),
        "uri" | "url" | "iri" => format!("https://example.com/{}/{}", word(seed), below(1000)),
        "uri-reference" | "iri-reference" => format!("/{}/{}", word(seed), below(1000)),
        "ipv4" => format!("192.0.2.{}", below(256)),
        "ipv6" => format!("2001:db8::{:x}", 1 + below(65_535)),
        "uuid" => {
            let mut hex = |digits: usize| format!("{:0digits$x}", below(1 << (4 * digits)));
            format!("{}{}-{}-4{}-8{}-{}{}", hex(4), hex(4), hex(4), hex(3), hex(3), hex(6), hex(6))
        }
        "json-pointer" => format!("/{}/{}", word(seed), below(10)),
        "regex" => "^[a-z]+$".to_owned(),
        "byte" | "base64" => "c2ltdWxhdGVk".to_owned(),
        _ => return None,
    })
}

fn strings<'a>(all: &[&'a Value], keyword: &str) -> impl Iterator<Item = &'a str> {
    let lists = all.iter().filter_map(|schema| schema.get(keyword)?.as_array());
    lists.flatten().filter_map(Value::as_str).collect::<Vec<_>>().into_iter()
}

fn most_of(all: &[&Value], keyword: &str) -> Option<usize> {
    all.iter().filter_map(|schema| schema.get(keyword).and_then(whole)).max()
}

fn least_of(all: &[&Value], keyword: &str) -> Option<usize> {
    all.iter().filter_map(|schema| schema.get(keyword).and_then(whole)).min()
}
