//! What the compiler cannot see: which module of the engine may use which, who may name which
//! crate, and that every file says what it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules of this crate a module may use. The reasons stand in `docs/architecture.md`: the
/// simulator never sees text, text never knows time, the wire knows neither.
const BORDERS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("seed", &[]),
    ("escape", &[]),
    ("sim", &["units", "seed"]),
    ("text", &["units", "seed", "escape"]),
    ("stats", &["units"]),
    ("wire", &["units", "stats", "escape"]),
    ("catalog", &["units", "seed", "sim"]),
    ("calibrate", &["units", "seed", "sim"]),
    ("faults", &["units", "seed", "sim"]),
    ("config", &["units", "seed", "escape", "sim", "text", "catalog", "faults"]),
    ("record", &["units", "seed", "escape", "stats", "sim"]),
    ("replay", &["units", "seed", "escape", "sim"]),
    ("observe", &["units", "seed", "escape", "stats", "sim"]),
];

/// Crates that only these modules may name.
const CRATES: &[(&str, &[&str])] = &[
    ("serde_yaml", &["config"]),
    ("sonic_rs", &["wire", "calibrate", "catalog", "record", "replay"]),
    ("serde", &["wire", "config", "catalog", "record", "replay"]),
    ("regex_automata", &["text"]),
];

/// Longest file, in lines: beyond it a module is missing a noun.
const MAX_LINES: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All Rust files below `dir`, in a fixed order.
fn sources(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no sources in {}", dir.display());
    found
}

/// The module of the crate that a file belongs to: `wire` for `wire/sse.rs`.
fn module_of(path: &Path) -> String {
    let below = path.strip_prefix(root()).unwrap();
    let first = below.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The code without its comments and its unit tests, which may ask anybody for a second opinion.
/// Strings stay; none of ours says `crate::`.
fn code(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// The first names behind `crate::`, in paths and in groups such as `crate::{sim::Job, units}`.
fn used_modules(code: &str) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `$crate` and longer names are none of our business.
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => used.extend(name(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut item_start = true;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => item_start = true,
                        c if c.is_whitespace() => {}
                        _ if item_start && depth == 0 => {
                            used.extend(name(&group[at..]));
                            item_start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    used
}

fn name(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

#[test]
fn the_scanner_sees_paths_and_groups() {
    let code = "use crate::sim::Job; use crate::{\n units::{A, B},\n seed, text::tokenizer,\n};\
                fn f() { crate::escape::g(); $crate::wire!(); mycrate::config(); }";
    let used: Vec<String> = used_modules(code).into_iter().collect();
    assert_eq!(used, ["escape", "seed", "sim", "text", "units"]);
}

#[test]
fn modules_use_only_what_they_may() {
    let mut problems = Vec::new();
    for (path, text) in sources(&root()) {
        let module = module_of(&path);
        if module == "lib" {
            continue;
        }
        let Some((_, allowed)) = BORDERS.iter().find(|(name, _)| *name == module) else {
            problems.push(format!("{}: module `{module}` has no line in BORDERS", path.display()));
            continue;
        };
        for used in used_modules(&code(&text)) {
            let known = BORDERS.iter().any(|(name, _)| *name == used);
            if known && used != module && !allowed.contains(&used.as_str()) {
                problems.push(format!("{}: `{module}` must not use `{used}`", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn crates_are_named_only_where_they_belong() {
    let mut problems = Vec::new();
    // A file of unit tests may ask anybody for a second opinion too.
    let is_test = |path: &Path| path.to_string_lossy().ends_with("_test.rs");
    for (path, text) in sources(&root()).into_iter().filter(|(path, _)| !is_test(path)) {
        let (module, code) = (module_of(&path), code(&text));
        for (name, allowed) in CRATES {
            let word = format!("{name}::");
            let named = code.match_indices(&word).any(|(at, _)| {
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':')
            });
            if named && !allowed.contains(&module.as_str()) {
                problems.push(format!("{}: `{module}` must not name `{name}`", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn every_file_of_the_workspace_says_what_it_is() {
    let mut problems = Vec::new();
    for package in ["engine", "server", "bench", "defaults", "perf"] {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(package).join("src");
        for (path, text) in sources(&src) {
            if !text.starts_with("//!") {
                problems.push(format!("{}: does not open with `//!`", path.display()));
            }
            if text.lines().count() > MAX_LINES {
                problems.push(format!("{}: more than {MAX_LINES} lines", path.display()));
            }
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}
