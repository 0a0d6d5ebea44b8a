//! The published JSON Schemas against the loader: the same sections with the same keys in both.
//!
//! Reading `tests/schema/*.yml` tells which keys the loader asks for in each section; a file that
//! does not open a section cannot tell of it, so each section must occur there. What values the two
//! accept is compared by `tests/schema/run`, with an independent validator.

use std::collections::{BTreeMap, BTreeSet};

use sonic_rs::{JsonContainerTrait as _, JsonValueTrait as _, Value as Json};

use super::problem::Report;
use super::{Source, raw, root, rules};

/// The keys of each section; `[]` stands for an item of a list, `*` for a name of the user's.
type Sections = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_schema_of_models_has_the_keys_that_the_loader_reads() {
    let text = include_str!("../../../tests/schema/models.yml");
    let source = Source::new("tests/schema/models.yml", text);
    let mut report = Report::on(&source);
    let typed = raw::Models::read(&root(&source, &mut report).unwrap(), &mut report);
    assert_eq!(typed.models.len(), 4);
    let schema = include_str!("../../../docs/schema/models.json");
    compare("docs/schema/models.json", schema, report);
}

#[test]
fn the_schema_of_responses_has_the_keys_that_the_loader_reads() {
    let text = include_str!("../../../tests/schema/responses.yml");
    let source = Source::new("tests/schema/responses.yml", text);
    let mut report = Report::on(&source);
    let read = root(&source, &mut report).and_then(|root| rules::responses(&root, &mut report));
    assert!(read.is_some());
    let schema = include_str!("../../../docs/schema/responses.json");
    compare("docs/schema/responses.json", schema, report);
}

#[test]
fn the_schema_knows_the_words_of_a_fault() {
    let schema: Json =
        sonic_rs::from_str(include_str!("../../../docs/schema/models.json")).unwrap();
    let forms = schema["$defs"]["rule"]["oneOf"].as_array().unwrap();
    let mapping = forms.iter().find(|form| form["type"] == "object").unwrap();
    let words = mapping["propertyNames"]["anyOf"][0]["enum"].as_array().unwrap();
    let words: Vec<&str> = words.iter().filter_map(|word| word.as_str()).collect();
    assert_eq!(words, crate::faults::KEYS, "docs/schema/models.json, the enum of `rule`");
}

fn compare(name: &str, schema: &str, report: Report<'_>) {
    let asked = report.asked.clone();
    assert_eq!(report.finish(), [], "the example is valid");
    let schema: Json = sonic_rs::from_str(schema).unwrap();
    let mut in_schema = Sections::new();
    collect(&schema, &schema, "", &mut in_schema);
    let mut read = Sections::new();
    for (path, keys) in asked {
        let path = generic(&path, &in_schema);
        read.entry(path).or_default().extend(keys.into_iter().map(str::to_owned));
    }
    let mut wrong = Vec::new();
    for (section, keys) in &read {
        let known = in_schema.get(section).cloned().unwrap_or_default();
        for key in keys.difference(&known) {
            wrong
                .push(format!("{name}: `{section}` lacks `{key}`, which the loader reads: add it"));
        }
    }
    for (section, keys) in &in_schema {
        let Some(known) = read.get(section) else {
            // The same definition at another place, which there is an example of.
            if read.keys().any(|other| in_schema.get(other) == Some(keys)) {
                continue;
            }
            wrong.push(format!(
                "tests/schema has no example of `{section}`, which {name} describes: add one"
            ));
            continue;
        };
        for key in keys.difference(known) {
            wrong.push(format!("{name}: `{section}` has `{key}`, which the loader does not read"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// All sections below a part of the schema: whatever has properties.
fn collect(root: &Json, part: &Json, path: &str, sections: &mut Sections) {
    for part in alternatives(root, part) {
        let Some(properties) = part["properties"].as_object() else {
            if part["items"].is_object() {
                collect(root, &part["items"], &format!("{path}[]"), sections);
            }
            if part["additionalProperties"].is_object() {
                collect(root, &part["additionalProperties"], &join(path, "*"), sections);
            }
            continue;
        };
        for (key, value) in properties {
            sections.entry(path.to_owned()).or_default().insert(key.to_owned());
            collect(root, value, &join(path, key), sections);
        }
    }
}

/// A part with everything that it refers to.
fn alternatives<'a>(root: &'a Json, part: &'a Json) -> Vec<&'a Json> {
    let mut all = vec![part];
    if let Some(reference) = part["$ref"].as_str() {
        let name = reference.strip_prefix("#/$defs/").unwrap();
        assert!(root["$defs"][name].is_object(), "{reference} is defined");
        all.extend(alternatives(root, &root["$defs"][name]));
    }
    for several in ["allOf", "oneOf", "anyOf"] {
        for one in part[several].as_array().into_iter().flatten() {
            all.extend(alternatives(root, one));
        }
    }
    all
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// `models[0].kv_cache` as `models[].kv_cache`, and a name of the user's as `*`.
fn generic(path: &str, sections: &Sections) -> String {
    let mut generic = String::new();
    for step in path.split('.').filter(|step| !step.is_empty()) {
        let name = step.split('[').next().unwrap_or_default();
        let indices = step.matches('[').count();
        let keys = sections.get(&generic);
        let name = match keys {
            Some(keys) if keys.contains(name) => name,
            // Not a section of the schema at all, but one whose keys are names; else its own.
            _ if sections.contains_key(&join(&generic, "*")) => "*",
            _ => name,
        };
        generic = join(&generic, name);
        generic.push_str(&"[]".repeat(indices));
    }
    generic
}
