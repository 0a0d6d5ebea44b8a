//! Our scheduler against recordings of vLLM's own, step by step and byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use llmsim_engine::replay::{Scenario, trace};

/// The recordings; `LLMSIM_TRACES` names another directory of the same kind.
fn recordings() -> Vec<PathBuf> {
    let directory = std::env::var("LLMSIM_TRACES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces").into());
    let mut scenarios: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{directory}: {error}"))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    scenarios.sort();
    assert!(!scenarios.is_empty(), "no scenario (*.json) in {directory}");
    scenarios
}

#[test]
fn every_step_is_vllms() {
    let mut failures = Vec::new();
    let scenarios = recordings();
    for scenario in &scenarios {
        if let Err(difference) = compare(scenario) {
            failures.push(format!("{}:\n{difference}", scenario.display()));
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {} scenarios differ; the first diverging step of each:\n\n{}",
        failures.len(),
        scenarios.len(),
        failures.join("\n\n")
    );
}

fn compare(path: &Path) -> Result<(), String> {
    let recorded = path.with_extension("trace.jsonl");
    let theirs = fs::read_to_string(&recorded)
        .map_err(|error| format!("{}: {error}", recorded.display()))?;
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let ours = trace(&Scenario::parse(&text)?)?;
    let theirs: Vec<_> = theirs.lines().collect();
    for (number, (their, our)) in theirs.iter().zip(&ours).enumerate() {
        // A newer vLLM says so in the first line, and only there may it differ.
        if their != our && !(number == 0 && without_version(their) == without_version(our)) {
            return Err(format!("line {}\n  vLLM: {their}\n  ours: {our}", number + 1));
        }
    }
    if theirs.len() != ours.len() {
        return Err(format!("vLLM wrote {} lines, we {}", theirs.len(), ours.len()));
    }
    Ok(())
}

/// The head line without its `"vllm":"…",`.
fn without_version(head: &str) -> String {
    match head.split_once("\"vllm\":\"") {
        Some((before, rest)) => match rest.split_once("\",") {
            Some((_, after)) => format!("{before}{after}"),
            None => head.into(),
        },
        None => head.into(),
    }
}
