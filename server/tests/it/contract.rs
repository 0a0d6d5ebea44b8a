//! Every field, header, route and answer of the API, as a table: `contract.txt`, walked against a
//! server. It holds what was copied from OpenAI's, vLLM's and Anthropic's documents and what is done
//! with it here; `docs/api.md` must name the same fields and say the same of each.
//!
//! A line that begins with `#` opens a section, `on SURFACE` says where the rows below are sent. A row
//! is `NAMES | KIND | TEST`; its indented lines are requests, each the surface's plainest one with
//! members (or a header) put in, replaced, or left out (`!name`):
//!
//! - `changes MEMBERS`: 200, and another answer than without; `same MEMBERS`: 200, and the same answer,
//!   as a whole and as a stream;
//! - `tells MEMBERS => WORDS ; !WORDS`: 200, with these words in head or body, and without those;
//! - `denies MEMBERS => STATUS PARAM CODE`: an error (under `/v1/messages` `STATUS TYPE WORDS`);
//! - `asks METHOD PATH [HEADER]... BODY => STATUS WORDS ; !WORDS`: anything else.
//!
//! KIND is the word of `docs/api.md`, or `told` for what is no field of a request. The invariant: each
//! name of a row stands in one of its requests, and a row shows what its kind says.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use llmsim_engine::config::{self, Source};
use llmsim_engine::text::schema::json::Value;
use llmsimulator::args::Admin;
use llmsimulator::boot::Server;

use crate::client::{Client, Response};
use crate::fixture;

const MODELS: &str = "
version: 1
models:
  - { name: m, context_length: 1000, engine: instant }
  - { name: other, context_length: 1000, engine: instant }
";

const RESPONSES: &str = r#"
version: 1
seed: 7
responses:
  - { id: think, match: { exact: [think] }, reasoning: "Hm, so.", content: "Yes." }
  - { id: "no", match: { exact: ["no"] }, refusal: "I cannot." }
  - { id: cut, match: { exact: [cut] }, content: "Some", finish_reason: content_filter }
  - id: look
    match: { exact: [look] }
    content: "Let me look."
    tool_calls:
      - { name: f, arguments: { a: 1 } }
      - { name: g, arguments: { b: 2 } }
  - { id: draw, match: { exact: [draw] }, variants: [a, b, c, d] }
default: { content: "One two three four five six seven." }
"#;

/// Where requests go, and what the plainest of them consists of.
struct Surface {
    name: &'static str,
    path: &'static str,
    base: &'static [(&'static str, &'static str)],
    /// How its part of `docs/api.md` begins.
    heading: &'static str,
}

const HELLO: (&str, &str) = ("messages", r#"[{"role":"user","content":"Hello"}]"#);
const MODEL: (&str, &str) = ("model", r#""m""#);

const SURFACES: [Surface; 10] = [
    Surface {
        name: "chat",
        path: "/v1/chat/completions",
        base: &[MODEL, HELLO],
        heading: "## `POST /v1/chat/completions`",
    },
    Surface {
        name: "completions",
        path: "/v1/completions",
        base: &[MODEL, ("prompt", r#""Hello""#)],
        heading: "## `POST /v1/completions`",
    },
    Surface {
        name: "responses",
        path: "/v1/responses",
        base: &[MODEL, ("input", r#""Hello""#), ("request_id", r#""contract""#)],
        heading: "## `POST /v1/responses`",
    },
    Surface {
        name: "messages",
        path: "/v1/messages",
        base: &[MODEL, HELLO, ("max_tokens", "100")],
        heading: "## `POST /v1/messages`",
    },
    Surface {
        name: "embeddings",
        path: "/v1/embeddings",
        base: &[MODEL, ("input", r#""Hello""#), ("dimensions", "4")],
        heading: "## `POST /v1/embeddings`",
    },
    Surface {
        name: "generate",
        path: "/generate",
        base: &[("text", r#""Hello""#), ("rid", r#""contract""#)],
        heading: "## `POST /generate`",
    },
    Surface {
        name: "tokenize",
        path: "/tokenize",
        base: &[("prompt", r#""Hello""#)],
        heading: "## `POST /tokenize`, `POST /detokenize`",
    },
    Surface {
        name: "lora",
        path: "/v1/load_lora_adapter",
        base: &[("lora_name", r#""a""#), ("lora_path", r#""/a""#), ("load_inplace", "true")],
        heading: "## LoRA adapters",
    },
    Surface { name: "sleep", path: "/sleep", base: &[], heading: "## `POST /sleep`, `POST" },
    Surface { name: "http", path: "", base: &[], heading: "## Routes" },
];

impl Surface {
    fn named(name: &str) -> &'static Self {
        SURFACES.iter().find(|surface| surface.name == name).unwrap_or_else(|| panic!("on {name}"))
    }

    /// Its part of `docs/api.md`.
    fn documentation(&self) -> &'static str {
        let docs = file("docs/api.md");
        let (_, part) = docs.split_once(self.heading).unwrap_or_else(|| panic!("{}", self.heading));
        part.split_once("\n## ").map_or(part, |(part, _)| part)
    }

    /// The fields that the tables of its part name, each with the word beside it.
    fn documented(&self) -> Vec<(&'static str, &'static str)> {
        let mut fields = Vec::new();
        for row in self.documentation().lines().filter(|line| line.starts_with("| ")) {
            let columns: Vec<&str> = row.split(" | ").collect();
            for name in backticked(columns[0]) {
                // `include: ["..."]` is about include.
                fields.push((leaf(name.split(':').next().unwrap()), columns[1]));
            }
        }
        fields
    }

    fn is_named_in_documentation(&self, name: &str) -> bool {
        backticked(self.documentation()).any(|words| {
            words
                .split(|c: char| !c.is_ascii_alphanumeric() && !"_-".contains(c))
                .any(|w| w == name)
        })
    }

    fn can_stream(&self) -> bool {
        ["chat", "completions", "responses", "messages"].contains(&self.name)
    }
}

/// A file of the repository as it is now, which the walk needs to its end.
fn file(path: &str) -> &'static str {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display())).leak()
}

fn backticked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The last step of a field's path: `include_usage` of `stream_options.include_usage`.
fn leaf(path: &str) -> &str {
    path.rsplit('.').next().unwrap().trim_end_matches("[]")
}

/// A row of the table.
struct Row {
    place: String,
    surface: &'static Surface,
    names: Vec<&'static str>,
    kind: &'static str,
    test: &'static str,
    cases: Vec<(&'static str, &'static str)>,
}

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let (mut section, mut surface) = ("", Surface::named("http"));
    for (line, text) in (1..).zip(file("server/tests/it/contract.txt").lines()) {
        let place = format!("contract.txt:{line} ({section})");
        if let Some(title) = text.strip_prefix("# ") {
            section = title;
        } else if let Some(name) = text.strip_prefix("on ") {
            surface = Surface::named(name);
        } else if let Some(case) = text.strip_prefix("  ") {
            let (verb, rest) = case.split_once(' ').unwrap_or_else(|| panic!("{place}: {case}"));
            rows.last_mut().unwrap_or_else(|| panic!("{place}: no row")).cases.push((verb, rest));
        } else if !text.is_empty() {
            let columns: Vec<&'static str> = text.split(" | ").collect();
            let [names, kind, test] = columns[..] else { panic!("{place}: {text}") };
            let names = names.split(", ").collect();
            rows.push(Row { place, surface, names, kind, test, cases: Vec::new() });
        }
    }
    rows
}

/// The members of an object without its braces, as (name, text); a name alone is one to leave out.
fn members(text: &str) -> Vec<(&str, Option<&str>)> {
    let (mut depth, mut in_string, mut from) = (0i32, false, 0);
    let mut parts = Vec::new();
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if in_string => drop(bytes.next()),
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            b',' if !in_string && depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| match part.strip_prefix('!') {
            Some(name) => (name, None),
            None => {
                let (name, value) = part.split_once(':').unwrap_or_else(|| panic!("{part}"));
                (name.trim_matches('"'), Some(value))
            }
        })
        .collect()
}

struct Walk {
    _server: Server,
    address: std::net::SocketAddr,
    faults: String,
}

impl Walk {
    fn new() -> Self {
        let server = fixture::start_with(|settings| {
            let sources = (Source::new("models", MODELS), Source::new("responses", RESPONSES));
            settings.config = config::load(&sources.0, &sources.1)
                .unwrap_or_else(|problems| panic!("{problems}"));
            settings.admin = Admin { is_on: true, address: None };
        });
        let address = server.address();
        Self { _server: server, address, faults: String::new() }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Response {
        let mut client = Client::to(self.address);
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        client.response()
    }

    /// The plainest request of a surface with these members, or this header, put in.
    fn ask(&self, surface: &Surface, change: &str, stream: bool) -> Response {
        let is_header = change.starts_with(|c: char| c.is_ascii_alphabetic());
        let mut headers = String::new();
        if is_header {
            let _ = write!(headers, "{change}\r\n");
        }
        if !change.to_ascii_lowercase().starts_with("x-request-id") {
            headers.push_str("X-Request-Id: contract\r\n");
        }
        let changed = if is_header { Vec::new() } else { members(change) };
        let base = surface.base.iter().map(|&(name, value)| (name, Some(value)));
        let mut all: Vec<_> = base
            .filter(|(name, _)| !changed.iter().any(|(changed, _)| changed == name))
            .chain(changed.iter().copied())
            .collect();
        if stream {
            all.push(("stream", Some("true")));
        }
        let body: Vec<String> = all
            .iter()
            .filter_map(|(name, value)| value.map(|value| format!("\"{name}\":{value}")))
            .collect();
        self.send("POST", surface.path, &headers, &format!("{{{}}}", body.join(",")))
    }

    fn check(&mut self, row: &Row, holds: bool, what: &str) {
        if !holds {
            let _ = writeln!(self.faults, "{}: {}: {what}", row.place, row.names.join(", "));
        }
    }

    fn walk(&mut self, row: &Row) {
        let mut verbs = BTreeSet::new();
        for &(verb, case) in &row.cases {
            verbs.insert(verb);
            let (request, wanted) = case.split_once(" => ").unwrap_or((case, ""));
            match verb {
                "changes" | "same" => self.compare(row, verb == "same", request),
                "tells" => {
                    let answer = self.ask(row.surface, request, false);
                    self.check(row, answer.status == 200, &shown(case, &answer));
                    self.look(row, case, &answer, wanted);
                }
                "denies" => self.denied(row, case, request, wanted),
                "asks" => self.anything(row, case, request, wanted),
                other => panic!("{}: {other}", row.place),
            }
        }
        let has = |verb: &str| verbs.contains(verb);
        let is_shown = match row.kind {
            "answered" | "counted" => has("changes") || has("tells") || has("asks"),
            "ignored" => has("same") && !has("changes"),
            "checked" => has("same") && has("denies") && !has("changes"),
            "refused" => has("denies") && !has("same") && !has("changes"),
            "told" => !verbs.is_empty() || row.test != "-",
            other => panic!("{}: {other}", row.place),
        };
        self.check(row, is_shown, "its requests do not show its kind");
        for &name in row.names.iter().filter(|_| row.kind != "told") {
            let name = leaf(name);
            let is_sent = row.cases.iter().any(|(_, case)| {
                case.contains(&format!("\"{name}\""))
                    || case.contains(&format!("{name}: "))
                    || case.contains(&format!("{name}="))
            });
            self.check(row, is_sent, &format!("no request has {name}"));
        }
        for test in row.test.split(", ").filter(|test| *test != "-") {
            self.check(row, exists(test), &format!("there is no test {test}"));
        }
    }

    /// With the change, and without.
    fn compare(&mut self, row: &Row, same: bool, change: &str) {
        let streams = [false, true];
        let count =
            1 + usize::from(same && row.surface.can_stream() && !change.contains("\"stream"));
        for stream in &streams[..count] {
            let with = self.ask(row.surface, change, *stream);
            let as_stream = if change.contains("\"stream\":true") { "\"stream\":true" } else { "" };
            let without = self.ask(row.surface, as_stream, *stream);
            self.check(row, with.status == 200, &shown(change, &with));
            let (with_text, without_text) = (essence(&with), essence(&without));
            let what = format!("{change}\n  with:    {with_text}\n  without: {without_text}");
            self.check(row, (with_text == without_text) == same, &what);
        }
    }

    fn look(&mut self, row: &Row, case: &str, answer: &Response, wanted: &str) {
        let heads = answer.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
        let all = format!("{}\n{}", heads.collect::<String>(), answer.text());
        for words in wanted.split(" ; ").filter(|words| !words.is_empty()) {
            let (words, is_there) =
                words.strip_prefix('!').map_or((words, true), |words| (words, false));
            let what = format!("{case}\n  {words}\n{all}");
            self.check(row, all.contains(words) == is_there, &what);
        }
    }

    fn denied(&mut self, row: &Row, case: &str, request: &str, wanted: &str) {
        for stream in [false, true] {
            if stream && (!row.surface.can_stream() || request.contains("\"stream")) {
                break;
            }
            let answer = self.ask(row.surface, request, stream);
            let got = if row.surface.name == "messages" {
                let error = Value::parse(answer.text()).unwrap();
                let text = |name| {
                    error.get("error").and_then(|e| e.get(name)?.as_str().map(str::to_owned))
                };
                format!(
                    "{} {} {}",
                    answer.status,
                    text("type").unwrap_or_default(),
                    text("message").unwrap_or_default()
                )
            } else {
                refusal(&answer)
            };
            let holds = match wanted.splitn(3, ' ').collect::<Vec<_>>()[..] {
                [_, _, words] if row.surface.name == "messages" => {
                    let start = &wanted[..wanted.len() - words.len()];
                    got.starts_with(start) && got.contains(words)
                }
                _ => got == wanted,
            };
            self.check(row, holds, &format!("{case}\n  got: {got}"));
        }
    }

    fn anything(&mut self, row: &Row, case: &str, request: &str, wanted: &str) {
        let (method, rest) = request.split_once(' ').unwrap_or((request, ""));
        let (path, mut rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let mut headers = String::new();
        while let Some((header, body)) =
            rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        {
            let _ = write!(headers, "{header}\r\n");
            rest = body.trim_start();
        }
        let answer = self.send(method, path, &headers, rest);
        let (status, words) = wanted.split_once(' ').unwrap_or((wanted, ""));
        self.check(row, answer.status.to_string() == status, &shown(case, &answer));
        self.look(row, case, &answer, words);
    }
}

fn shown(case: &str, answer: &Response) -> String {
    format!("{case}\n  {} {}", answer.status, answer.text())
}

/// `STATUS PARAM CODE` of an error in OpenAI's form; what is null is a dash.
fn refusal(answer: &Response) -> String {
    let Ok(error) = Value::parse(answer.text()) else { return shown("no JSON", answer) };
    let text = |name: &str| {
        let member = error.get("error").and_then(|error| error.get(name));
        member.and_then(Value::as_str).unwrap_or("-").to_owned()
    };
    format!("{} {} {}", answer.status, text("param"), text("code"))
}

/// What an answer says, without when it was made and without the settings that a response repeats.
fn essence(answer: &Response) -> String {
    let mut text = answer.text();
    if text.starts_with("{\"id\":\"resp_") {
        text = text.split_once(",\"output\":").map_or(text, |(_, output)| output);
    }
    let mut left = String::new();
    for line in text.lines().filter(|line| !line.contains("\"response\":{")) {
        for (at, part) in line.split("\"created\":").enumerate() {
            left.push_str(if at == 0 {
                part
            } else {
                part.trim_start_matches(|c: char| c.is_ascii_digit())
            });
        }
        left.push('\n');
    }
    left
}

/// Whether a test is there: `module::name` of these tests, or `path: words` of another file.
fn exists(test: &str) -> bool {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let (file, words) = match test.split_once(": ") {
        Some((path, words)) => (root.join(path), words.to_owned()),
        None => {
            let (module, name) = test.split_once("::").unwrap_or((test, ""));
            let file = root.join("server/tests/it").join(format!("{module}.rs"));
            (file, format!("#[test]\nfn {name}()"))
        }
    };
    fs::read_to_string(file).is_ok_and(|text| text.contains(&words))
}

#[test]
fn every_row_of_the_contract_is_as_it_says() {
    let mut walk = Walk::new();
    for row in rows() {
        walk.walk(&row);
    }
    assert!(walk.faults.is_empty(), "{}", walk.faults);
}

#[test]
fn the_manual_and_the_contract_name_the_same_fields_and_say_the_same() {
    let rows = rows();
    let mut faults = String::new();
    for surface in SURFACES.iter().filter(|surface| surface.name != "http") {
        let mine = || rows.iter().filter(|row| row.surface.name == surface.name);
        let names = |row: &Row| row.names.iter().map(|name| leaf(name)).collect::<Vec<_>>();
        for (name, kind) in surface.documented() {
            if !mine().any(|row| names(row).contains(&name) && row.kind == kind) {
                let _ = writeln!(faults, "{}: no row for {name}, {kind}", surface.name);
            }
        }
        let documented = surface.documented();
        let ignored_by_chat = Surface::named("chat").documented();
        for row in mine().filter(|row| row.kind != "told") {
            for name in names(row) {
                let is_named = documented.iter().any(|&(other, _)| other == name);
                let holds = if is_named {
                    documented.contains(&(name, row.kind))
                } else {
                    surface.is_named_in_documentation(name)
                        || (surface.name == "completions"
                            && row.kind == "ignored"
                            && ignored_by_chat.contains(&(name, "ignored")))
                };
                if !holds {
                    let _ = writeln!(
                        faults,
                        "{}: docs/api.md does not say of {name}, on {}, that it is {}",
                        row.place, surface.name, row.kind
                    );
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn every_route_of_the_manual_is_asked() {
    let rows = rows();
    let asked: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.cases.iter())
        .filter(|(verb, _)| *verb == "asks")
        .map(|(_, case)| *case)
        .collect();
    let is_asked = |method: &str, path: &str| {
        let (start, end) = path.split_once("{id}").unwrap_or((path, ""));
        let is_it = |asked: &str| match asked.strip_prefix(start) {
            Some(rest) if start != path => rest.ends_with(end) && rest.len() > end.len(),
            rest => rest == Some(""),
        };
        asked.iter().any(|case| {
            let mut words = case.split([' ', '?']);
            words.next() == Some(method) && words.next().is_some_and(is_it)
        }) || rows.iter().any(|row| row.test != "-" && row.names.contains(&path))
            || (method == "POST" && SURFACES.iter().any(|surface| surface.path == path))
    };
    let mut missing = String::new();
    for row in Surface::named("http").documentation().lines() {
        // `GET`, `POST /ping`: both have the path, and `GET /a`, `/b`: both have the method.
        let Some(names) = row.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            continue;
        };
        let (mut methods, mut path) = (Vec::new(), None);
        for words in backticked(names) {
            let (method, its_path) = match words.split_once(' ') {
                Some((method, path)) => (Some(method), Some(path)),
                None if words.starts_with('/') => (None, Some(words)),
                None => (Some(words), None),
            };
            if method.is_some() && path.is_some() {
                methods.clear();
            }
            methods.extend(method);
            path = its_path;
            for method in methods.iter().filter(|_| path.is_some()) {
                let path = path.unwrap_or_default();
                if !is_asked(method, path) {
                    let _ = writeln!(missing, "no row asks {method} {path}");
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing}");
}
