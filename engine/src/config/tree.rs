//! YAML text as a tree in which every node knows where it was written.
//!
//! Not a schema: this module knows YAML and no key of ours. The parser gives events, so nothing
//! here recurses over the input and every limit below is checked before memory is spent. The
//! invariant: whatever the text, [`parse`] ends in time linear in it, and what it returns is
//! finite, at most [`MAX_DEPTH`] deep, and at most [`MAX_NODES`] nodes large with all aliases
//! written out.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

/// Deeper nesting is refused. Our schema needs seven levels.
const MAX_DEPTH: usize = 64;

/// More nodes, counting each alias as often as it is used, are refused. A response takes about
/// eight, so this is room for a hundred thousand of them.
const MAX_NODES: u64 = 1_000_000;

/// Bytes of text that are looked at.
pub const MAX_BYTES: usize = 16 << 20;

/// A line and a column of the text, both from 1; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

impl Place {
    /// The start of the text.
    pub const START: Self = Self { line: 1, column: 1 };

    fn start_of(span: &Span) -> Self {
        Self::new(span.start.line(), span.start.col())
    }

    /// From a 1-based line and a 0-based column.
    fn new(line: usize, column: usize) -> Self {
        let line = u32::try_from(line).unwrap_or(u32::MAX).max(1);
        Self { line, column: u32::try_from(column).unwrap_or(u32::MAX).saturating_add(1) }
    }
}

/// A value of the document.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Place,
    pub(super) kind: Kind,
    /// Nodes in this one, itself included, with aliases written out.
    weight: u64,
}

#[derive(Debug)]
pub(super) enum Kind {
    Scalar(Scalar),
    Sequence(Vec<Rc<Node>>),
    Mapping(Vec<Entry>),
}

/// A scalar as it was written; what it means depends on who asks (see `scalar.rs`).
#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) form: Form,
}

/// Which types a scalar may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Unquoted: a number, a boolean, nothing or a text, as YAML's rules say.
    Plain,
    /// Quoted, a block scalar, or tagged `!!str`: a text.
    Text,
}

/// A key of a mapping with its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_at: Place,
    pub(super) value: Rc<Node>,
}

/// Something that is wrong with the text as YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Place,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    fn new(at: Place, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The document in `text`, and what is wrong with it. There may be a document although there are
/// faults (a duplicate key), so that the rest of it can be checked too; without one there is at
/// least one fault.
pub(super) fn parse(text: &str) -> (Option<Rc<Node>>, Vec<Fault>) {
    let mut builder = Builder::default();
    let root = builder.document(text);
    match root {
        Ok(root) => (Some(root), builder.faults),
        Err(fatal) => {
            builder.faults.push(fatal);
            (None, builder.faults)
        }
    }
}

#[derive(Default)]
struct Builder {
    faults: Vec<Fault>,
    open: Vec<Open>,
    root: Option<Rc<Node>>,
    anchors: BTreeMap<usize, Rc<Node>>,
    nodes: u64,
}

/// A collection that has not ended yet.
struct Open {
    at: Place,
    anchor: usize,
    weight: u64,
    filling: Filling,
}

enum Filling {
    Sequence(Vec<Rc<Node>>),
    Mapping { entries: Vec<Entry>, index: BTreeMap<String, Place>, key: Option<PendingKey> },
}

struct PendingKey {
    text: String,
    at: Place,
    /// Seen before, or not usable as a key: its value is dropped.
    dropped: bool,
    /// An unquoted `<<`.
    merge: bool,
}

impl Builder {
    fn document(&mut self, text: &str) -> Result<Rc<Node>, Fault> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        if text.len() > MAX_BYTES {
            let limit = MAX_BYTES >> 20;
            return Err(Fault::new(Place::START, format!("the file is larger than {limit} MiB")));
        }
        refuse_control_characters(text)?;

        let mut parser = Parser::new_from_str(text);
        let mut documents = 0;
        while let Some(event) = parser.next_event() {
            let (event, span) = event.map_err(|error| {
                let at = Place::new(error.marker().line(), error.marker().col());
                // The parser looks ahead over opening brackets, and has a limit of its own.
                if error.info() == "recursion limit exceeded" {
                    return too_deep(at);
                }
                let fault = Fault::new(at, format!("this is not YAML: {}", error.info()));
                Fault { hint: syntax_hint(error.info()).map(str::to_owned), ..fault }
            })?;
            let at = Place::start_of(&span);
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(Fault::new(at, "a second document starts here")
                            .hint("a config file is one document: remove the `---`"));
                    }
                }
                Event::Alias(anchor) => {
                    let node = self.anchors.get(&anchor).cloned().ok_or_else(|| {
                        Fault::new(at, "an alias is used inside the value that it stands for")
                    })?;
                    self.count(at, node.weight)?;
                    self.add(at, node);
                }
                Event::Scalar(text, style, anchor, tag) => {
                    self.count(at, 1)?;
                    let form = self.form(at, style, tag.as_deref());
                    let kind = Kind::Scalar(Scalar { text: text.into_owned(), form });
                    self.finish(Node { at, kind, weight: 1 }, anchor);
                }
                Event::SequenceStart(anchor, tag) => {
                    self.check_collection_tag(at, tag);
                    self.enter(at, anchor, Filling::Sequence(Vec::new()))?;
                }
                Event::MappingStart(anchor, tag) => {
                    self.check_collection_tag(at, tag);
                    let (entries, index) = (Vec::new(), BTreeMap::new());
                    self.enter(at, anchor, Filling::Mapping { entries, index, key: None })?;
                }
                Event::SequenceEnd | Event::MappingEnd => {
                    let open = self.open.pop().expect("the parser ends only what it started");
                    let kind = match open.filling {
                        Filling::Sequence(items) => Kind::Sequence(items),
                        Filling::Mapping { entries, .. } => Kind::Mapping(self.merge(entries)),
                    };
                    self.finish(Node { at: open.at, kind, weight: open.weight }, open.anchor);
                }
                Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Nothing => {}
            }
        }
        self.root.take().ok_or_else(|| Fault::new(Place::START, "the file is empty"))
    }

    fn enter(&mut self, at: Place, anchor: usize, filling: Filling) -> Result<(), Fault> {
        self.count(at, 1)?;
        if self.open.len() == MAX_DEPTH {
            return Err(too_deep(at));
        }
        self.open.push(Open { at, anchor, weight: 1, filling });
        Ok(())
    }

    fn count(&mut self, at: Place, nodes: u64) -> Result<(), Fault> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let what = format!("more than {MAX_NODES} values, with aliases written out");
            return Err(Fault::new(at, what));
        }
        Ok(())
    }

    fn finish(&mut self, node: Node, anchor: usize) {
        let at = node.at;
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.add(at, node);
    }

    /// Puts a finished node where it belongs. `at` is where it was used: not where it was written,
    /// if it comes from an alias.
    fn add(&mut self, at: Place, node: Rc<Node>) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        open.weight = open.weight.saturating_add(node.weight);
        match &mut open.filling {
            Filling::Sequence(items) => items.push(node),
            Filling::Mapping { entries, index, key } => match key.take() {
                Some(key) if key.dropped => {}
                Some(key) => {
                    // Merge keys keep a name that no text can have, until `merge` takes them.
                    let text = if key.merge { MERGE.to_owned() } else { key.text };
                    entries.push(Entry { key: text, key_at: key.at, value: node });
                }
                None => *key = Some(next_key(&mut self.faults, index, at, &node)),
            },
        }
    }

    /// `<<: *base` and `<<: [*a, *b]`: what the mapping does not say itself comes from there, the
    /// first one that says it winning (YAML 1.1, the merge type).
    fn merge(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        if !entries.iter().any(|entry| entry.key == MERGE) {
            return entries;
        }
        let (merges, mut own): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.key == MERGE);
        let mut said: BTreeSet<String> = own.iter().map(|entry| entry.key.clone()).collect();
        for merge in merges {
            let bases: &[Rc<Node>] = match &merge.value.kind {
                Kind::Sequence(items) => items,
                _ => std::slice::from_ref(&merge.value),
            };
            for base in bases {
                let Kind::Mapping(inherited) = &base.kind else {
                    let fault = Fault::new(merge.key_at, "`<<` can merge only mappings");
                    self.faults.push(fault.hint("write `<<: *name`, with `&name` at a mapping"));
                    continue;
                };
                for entry in inherited {
                    if said.insert(entry.key.clone()) {
                        own.push(entry.clone());
                    }
                }
            }
        }
        own
    }

    fn form(&mut self, at: Place, style: ScalarStyle, tag: Option<&Tag>) -> Form {
        let by_style = if style == ScalarStyle::Plain { Form::Plain } else { Form::Text };
        let Some(tag) = tag else { return by_style };
        match tag.suffix.as_str() {
            "str" if tag.is_yaml_core_schema() => Form::Text,
            "int" | "float" | "bool" | "null" if tag.is_yaml_core_schema() => Form::Plain,
            // The non-specific tag: "not a plain scalar".
            "" | "!" => Form::Text,
            _ => {
                self.unknown_tag(at, tag);
                by_style
            }
        }
    }

    fn check_collection_tag(&mut self, at: Place, tag: Option<Cow<'_, Tag>>) {
        if let Some(tag) = tag {
            let known = matches!(tag.suffix.as_str(), "map" | "seq") && tag.is_yaml_core_schema();
            if !known && !matches!(tag.suffix.as_str(), "" | "!") {
                self.unknown_tag(at, &tag);
            }
        }
    }

    fn unknown_tag(&mut self, at: Place, tag: &Tag) {
        let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
        let message = format!("the tag `{handle}{}` is not supported", tag.suffix);
        self.faults.push(Fault::new(at, message).hint("remove it"));
    }
}

/// What people usually did when the parser says this.
fn syntax_hint(info: &str) -> Option<&'static str> {
    const USUALLY: [(&str, &str); 10] = [
        ("tab", "indent with spaces"),
        ("escape", "in double quotes write a backslash as \\\\, or use single quotes"),
        ("mapping values are not allowed", "quote a text that has `: ` in it"),
        ("indentation in quoted scalar", "is a closing quote missing?"),
        ("quoted scalar", "is a closing quote missing?"),
        (
            "unknown anchor",
            "quote a text that begins with `*`; an alias needs its `&name` before it",
        ),
        ("',' or", "is a closing bracket or a comma missing?"),
        ("plain scalar cannot start", "quote a text that begins like this"),
        ("unexpected character", "quote a text that begins with this character"),
        ("expected '-' indicator", "the keys of one mapping begin in the same column"),
    ];
    USUALLY.iter().find(|(words, _)| info.contains(words)).map(|(_, hint)| *hint)
}

fn too_deep(at: Place) -> Fault {
    Fault::new(at, format!("nested more than {MAX_DEPTH} levels deep"))
}

/// Cannot collide: control characters were refused before.
const MERGE: &str = "\0<<";

fn next_key(
    faults: &mut Vec<Fault>,
    index: &mut BTreeMap<String, Place>,
    at: Place,
    node: &Node,
) -> PendingKey {
    let Kind::Scalar(scalar) = &node.kind else {
        let fault = Fault::new(at, "a list or mapping cannot be a key");
        faults.push(fault.hint("quote the key if it is meant as text, for example \"{model}\""));
        return PendingKey { text: String::new(), at, dropped: true, merge: false };
    };
    let merge = scalar.form == Form::Plain && scalar.text == "<<";
    let mut dropped = false;
    if let Some(first) = index.get(&scalar.text) {
        let message =
            format!("the key `{}` is given twice; first on line {}", scalar.text, first.line);
        let hint = if merge { "write `<<: [*first, *second]`" } else { "keep one of them" };
        faults.push(Fault::new(at, message).hint(hint));
        dropped = true;
    } else {
        index.insert(scalar.text.clone(), at);
    }
    PendingKey { text: scalar.text.clone(), at, dropped, merge }
}

/// YAML's own rule (section 5.1), and the first thing that tells a binary file from a text.
fn refuse_control_characters(text: &str) -> Result<(), Fault> {
    let forbidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{85}');
    let Some((offset, c)) = text.char_indices().find(|&(_, c)| forbidden(c)) else {
        return Ok(());
    };
    let before = &text[..offset];
    let line = 1 + before.matches('\n').count();
    let column = before.rsplit('\n').next().map_or(0, |rest| rest.chars().count());
    let message =
        format!("the control character U+{:04X} may not stand in a YAML file", u32::from(c));
    Err(Fault::new(Place::new(line, column), message)
        .hint("is this a binary file? In quoted text, write it as an escape"))
}

#[cfg(test)]
mod tests {
    use serde_yaml::Value;

    use super::super::scalar::{Meaning, meaning};
    use super::*;
    use crate::seed::{Generator, Seed};

    /// The node as `serde_yaml` would give it.
    fn value(node: &Node) -> Value {
        match &node.kind {
            Kind::Scalar(scalar) => match meaning(scalar) {
                Meaning::Null => Value::Null,
                Meaning::Boolean(value) => value.into(),
                Meaning::Whole(value) => match u64::try_from(value) {
                    Ok(value) => value.into(),
                    Err(_) => i64::try_from(value).unwrap().into(),
                },
                Meaning::Number(value) => value.into(),
                Meaning::Text => scalar.text.clone().into(),
            },
            Kind::Sequence(items) => items.iter().map(|item| value(item)).collect(),
            Kind::Mapping(entries) => Value::Mapping(
                entries
                    .iter()
                    .map(|entry| (entry.key.clone().into(), value(&entry.value)))
                    .collect(),
            ),
        }
    }

    const WORDS: [&str; 18] = [
        "plain",
        "two words",
        "12",
        "-7",
        "1.5",
        "1e3",
        "0x1F",
        "true",
        "no",
        "~",
        "null",
        "'it''s'",
        "\"a\\tb\\u00e9\"",
        "a:b",
        "a #b",
        "'[x]'",
        "\"\"",
        "é漢",
    ];

    /// A random document in block and flow style, with anchors, aliases and comments.
    fn write(text: &mut String, depth: usize, random: &mut Generator) {
        let pad = "  ".repeat(depth);
        let count = 1 + random.below(4);
        let mapping = random.below(2) == 0;
        for i in 0..count {
            if random.below(8) == 0 {
                text.push_str(&format!("{pad}# a comment\n"));
            }
            let start = if mapping { format!("{pad}k{i}:") } else { format!("{pad}-") };
            text.push_str(&start);
            let word = WORDS[random.below(WORDS.len() as u64) as usize];
            match random.below(7) {
                0 if depth < 5 => {
                    text.push('\n');
                    write(text, depth + 1, random);
                }
                1 => text.push_str(&format!(" [{word}, {{ a: {word}, b: [] }}]\n")),
                2 => text.push_str(&format!(" |\n{pad}    block\n{pad}    {word}\n")),
                3 => text.push_str(&format!(" >-\n{pad}    folded\n{pad}    {word}\n")),
                // Names are used once: serde_yaml lets an alias see an anchor that comes after it.
                4 => {
                    let name = format!("x{}", text.len());
                    let next = if mapping { format!("{pad}k{i}2:") } else { format!("{pad}-") };
                    text.push_str(&format!(" &{name} {word}\n{next} *{name}\n"));
                }
                _ => text.push_str(&format!(" {word}\n")),
            }
        }
    }

    #[test]
    fn a_document_means_what_serde_yaml_says_it_means() {
        for seed in 0..400 {
            let mut text = String::new();
            write(&mut text, 0, &mut Seed::new(seed).generator());
            let (root, faults) = parse(&text);
            let expected = serde_yaml::from_str::<Value>(&text);
            match expected {
                Ok(expected) => {
                    assert_eq!(faults, [], "seed {seed}:\n{text}");
                    assert_eq!(value(&root.unwrap()), expected, "seed {seed}:\n{text}");
                }
                Err(error) => assert!(!faults.is_empty(), "seed {seed}: {error}\n{text}"),
            }
        }
    }

    #[test]
    fn every_node_knows_its_place() {
        let (root, _) = parse("a: 1\nb:\n  - x\n  - 'é': y\n");
        let Kind::Mapping(entries) = &root.unwrap().kind else { panic!("not a mapping") };
        let b = &entries[1];
        assert_eq!((b.key_at.line, b.key_at.column), (2, 1));
        let Kind::Sequence(items) = &b.value.kind else { panic!("not a list") };
        assert_eq!((items[0].at.line, items[0].at.column), (3, 5));
        let Kind::Mapping(entries) = &items[1].kind else { panic!("not a mapping") };
        let at = entries[0].value.at;
        assert_eq!((at.line, at.column), (4, 10));
    }

    #[track_caller]
    fn refused(text: &str, words: &str) {
        let (root, faults) = parse(text);
        assert!(root.is_none(), "{words}: taken");
        assert!(faults.iter().any(|fault| fault.message.contains(words)), "{faults:?}");
    }

    #[test]
    fn an_alias_bomb_ends_at_the_limit() {
        let mut text = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for i in 1..10 {
            let alias = format!("*a{}, ", i - 1).repeat(9);
            text.push_str(&format!("a{i}: &a{i} [{}]\n", alias.trim_end_matches(", ")));
        }
        refused(&text, "more than 1000000 values, with aliases written out");
    }

    #[test]
    fn nesting_ends_at_the_limit_however_it_is_written() {
        for open in ["[", "{a: ", "- ", "? ", "a:\n"] {
            let mut text = open.repeat(20_000);
            if open == "a:\n" {
                text = (0..20_000).map(|i| format!("{}a:\n", " ".repeat(i))).take(200).collect();
            }
            refused(&text, "nested more than 64 levels deep");
        }
    }

    #[test]
    fn ten_megabytes_of_garbage_end_soon() {
        let large = 10 << 20;
        for (unit, words) in [
            ("\u{1}", "control character"),
            ("[", "nested more than"),
            ("]", "not YAML"),
            ("&a ", "not YAML"),
            ("*a ", "not YAML"),
            ("a: ", "not YAML"),
            ("%", "not YAML"),
            ("\"a", "not YAML"),
            ("!", "not YAML"),
            ("- [a]\n", "more than 1000000 values"),
        ] {
            refused(&unit.repeat(large / unit.len()), words);
        }
        // No garbage as far as YAML can see: one long text, and nothing at all.
        for unit in ["a", "a\n", "'", "é "] {
            let (root, _) = parse(&unit.repeat(large / unit.len()));
            assert!(root.is_none() || matches!(root.unwrap().kind, Kind::Scalar(_)), "{unit:?}");
        }
        for unit in [" ", "\n", "# \n"] {
            refused(&unit.repeat(large / unit.len()), "empty");
        }
        refused(&"a".repeat(MAX_BYTES + 1), "larger than 16 MiB");
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_text() {
        let (root, faults) = parse("\u{feff}a: 1\n");
        assert_eq!(faults, []);
        let Kind::Mapping(entries) = &root.unwrap().kind else { panic!("not a mapping") };
        assert_eq!(entries[0].key, "a");
        assert_eq!((entries[0].key_at.line, entries[0].key_at.column), (1, 1));
    }
}
