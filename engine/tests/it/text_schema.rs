//! Values for JSON schemas. That they satisfy them is said by an independent validator too, in
//! `tests/clients`, over the same file of schemas.

use llmsim_engine::seed::Seed;
use llmsim_engine::text::schema::json::Value;
use llmsim_engine::text::schema::{self, Document};

const SCHEMAS: &str = include_str!("../cases/schemas.json");

fn cases() -> Vec<(String, String)> {
    let cases = Value::parse(SCHEMAS).unwrap();
    let text = |case: &Value| {
        let mut schema = String::new();
        case.get("schema").unwrap().write(&mut schema);
        (case.get("name").unwrap().as_str().unwrap().to_owned(), schema)
    };
    cases.as_array().unwrap().iter().map(text).collect()
}

#[test]
fn every_schema_gets_a_value_that_satisfies_it() {
    for (name, schema) in cases() {
        let document =
            Document::parse(&schema).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        for seed in 0..40 {
            let value = document
                .generate(Seed::new(seed))
                .unwrap_or_else(|problem| panic!("{name}, seed {seed}: {problem}"));
            assert!(document.accepts(&value), "{name}: {value}");
            assert_eq!(value, document.generate(Seed::new(seed)).unwrap(), "{name}");
        }
    }
}

#[test]
fn other_seeds_give_other_values() {
    let (_, schema) = &cases()[0];
    let document = Document::parse(schema).unwrap();
    let values: std::collections::BTreeSet<_> =
        (0..20).map(|seed| document.generate(Seed::new(seed)).unwrap()).collect();
    assert!(values.len() > 15, "{values:#?}");
}

#[test]
fn what_is_wrong_with_a_schema_is_told_with_its_place() {
    for (schema, path, words) in [
        ("[1]", "", "an object, true or false"),
        ("{", "", "no JSON"),
        (r#"{"type":"strin"}"#, "type", "one or a list of string"),
        (r#"{"properties":{"a":{"type":3}}}"#, "properties.a.type", "one or a list"),
        (r#"{"properties":[1]}"#, "properties", "whose members are schemas"),
        (r#"{"anyOf":[{"type":"string"},{"enum":[]}]}"#, "anyOf[1].enum", "empty list"),
        (r##"{"items":{"$ref":"#/$defs/x"}}"##, "items.$ref", "refers to nothing"),
        (r#"{"$ref":"https://example.com/x.json"}"#, "$ref", "refers to nothing"),
        (r#"{"pattern":"(?=a)"}"#, "pattern", "look-around"),
        (r#"{"$dynamicRef":"a"}"#, "$dynamicRef", "not supported"),
        (r#"{"required":"a"}"#, "required", "a list of names"),
        (r#"{"minLength":-1}"#, "minLength", "whole number"),
        (r#"{"multipleOf":0}"#, "multipleOf", "above 0"),
    ] {
        let problem = Document::parse(schema).expect_err(schema);
        assert_eq!(problem.path, path, "{schema}");
        assert!(problem.message.contains(words), "{schema}: {problem}");
    }
}

#[test]
fn a_schema_that_nothing_satisfies_says_where() {
    for (schema, path) in [
        ("false", ""),
        (
            r#"{"type":"object","required":["a"],"properties":{"a":{"enum":[1],"type":"string"}}}"#,
            "a",
        ),
        (r#"{"type":"object","required":["a"],"properties":{"a":false}}"#, "a"),
        (r#"{"type":"integer","minimum":3,"maximum":2}"#, ""),
        (r#"{"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4}"#, ""),
        (r#"{"type":"string","minLength":3,"maxLength":2}"#, ""),
        (r#"{"type":"array","items":{"const":1},"minItems":2,"uniqueItems":true}"#, "[1]"),
        (r#"{"allOf":[{"type":"string"},{"type":"number"}]}"#, ""),
        (r#"{"type":"object","required":["a"],"additionalProperties":false}"#, "a"),
        (r#"{"type":"string","not":{"type":"string"}}"#, ""),
    ] {
        let problem = Document::parse(schema).unwrap().generate(Seed::new(1)).expect_err(schema);
        assert_eq!(problem.path, path, "{schema}: {problem}");
    }
    // It contains itself and has no way out.
    let endless = r##"{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}"##;
    assert!(Document::parse(endless).unwrap().generate(Seed::new(1)).is_err());
    let circle =
        r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##;
    assert!(Document::parse(circle).unwrap().generate(Seed::new(1)).is_err());
}

#[test]
fn hostile_schemas_cost_little() {
    let wide =
        format!(r#"{{"type":"array","items":{{"type":"string"}},"minItems":{}}}"#, 1_000_000);
    assert!(Document::parse(&wide).unwrap().generate(Seed::new(1)).is_err());
    let long = r#"{"type":"string","minLength":1000000000}"#;
    assert!(Document::parse(long).unwrap().generate(Seed::new(1)).is_err());
    let deep = format!("{}{}", r#"{"items":"#.repeat(200), "{}".to_owned() + &"}".repeat(200));
    assert!(Document::parse(&deep).is_err());
    // Each level needs two of the next.
    let defs: Vec<String> = (0..40)
        .map(|at| {
            let next = at + 1;
            format!(
                r##""d{at}":{{"type":"array","minItems":2,"items":{{"$ref":"#/$defs/d{next}"}}}}"##
            )
        })
        .collect();
    let bomb = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d40":{{}}}}}}"##, defs.join(","));
    assert!(Document::parse(&bomb).unwrap().generate(Seed::new(1)).is_err());
}

#[test]
fn texts_match_a_pattern_as_a_whole() {
    for pattern in ["[a-z]{3}-[0-9]+", "yes|no", "^a$", "(\\d{1,3}\\.){3}\\d{1,3}"] {
        let text = schema::matching(pattern, Seed::new(3)).unwrap();
        let whole =
            Document::parse(&format!(r#"{{"pattern":"^({})$"}}"#, pattern.replace('\\', "\\\\")));
        assert!(whole.unwrap().accepts(&format!("{text:?}")), "{pattern}: {text}");
    }
    assert!(schema::matching("(?<=a)b", Seed::new(3)).is_err());
}
