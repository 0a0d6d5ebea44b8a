//! `faults:` of `models.yml`, and a faults file, which says the same by itself.
//!
//! The words are read by [`faults`](crate::faults); here they are taken out of YAML, and whatever
//! is wrong with them is told with its place. A rule is a text of words or a mapping of them. The
//! invariant: a rule that names a model or a GPU names one that there is.

use crate::faults::{self, BadWord, Fault, GpuAt, GpuName, MOST_RULES, Rule, Settings, Word, fits};
use crate::sim::EngineSpec;

use super::problem::{Hint, Report, nearest};
use super::resolve::ModelSpec;
use super::tree::{Form, Kind, Place};
use super::value::{Placed, Value};

/// A section as typed.
#[derive(Debug, Default)]
pub(super) struct Faults {
    seed: u64,
    headers: Option<bool>,
    markers: Option<bool>,
    pub(super) rules: Vec<Placed<Rule>>,
}

impl Faults {
    /// A list of rules, or a mapping with `rules` and what else there is to say.
    pub(super) fn read(value: &Value, report: &mut Report<'_>) -> Self {
        if !value.is_mapping() {
            return Self { rules: rules(value, None, report), ..Self::default() };
        }
        let Some(mut fields) = value.fields(report) else { return Self::default() };
        super::raw::read_version(&mut fields, report);
        let seed = fields.whole(report, "seed", &[], 0..=u64::MAX).map_or(0, |seed| seed.value);
        let mut switch = |name: &'static str, report: &mut Report<'_>| {
            let value = fields.take(report, name, &[])?;
            value.boolean(report).map(|value| value.value)
        };
        let headers = switch("headers", report);
        let markers = switch("markers", report);
        let mut all = Vec::new();
        if let Some(value) = fields.take(report, "rules", &[]) {
            all.extend(rules(&value, None, report));
        }
        if let Some(value) = fields.take(report, "timeline", &[]) {
            all.extend(timeline(&value, report));
        }
        super::raw::close_file(fields, report);
        Self { seed, headers, markers, rules: all }
    }

    /// Checks the names in it.
    pub(super) fn resolve(self, models: &[ModelSpec], report: &mut Report<'_>) -> Settings {
        if let Some(rule) = self.rules.get(MOST_RULES) {
            let message = format!("more than {MOST_RULES} rules");
            report.add(
                rule.at,
                &rule.path,
                message,
                Hint::new("every request looks at all of them"),
            );
        }
        for rule in self.rules.iter().take(MOST_RULES) {
            check_names(rule, models, report);
        }
        Settings {
            seed: self.seed,
            headers: self.headers,
            markers: self.markers,
            rules: self.rules.into_iter().map(|rule| rule.value).collect(),
        }
    }
}

/// A list of rules, or one; those of a model's section hit only that model.
pub(super) fn rules(
    value: &Value,
    model: Option<&str>,
    report: &mut Report<'_>,
) -> Vec<Placed<Rule>> {
    let mut all = Vec::new();
    for item in value.one_or_more() {
        match &item.node.kind {
            Kind::Scalar(_) => {
                let Some(text) = item.text(report) else { continue };
                match faults::split(&text.value) {
                    Ok(split) => {
                        let places = Places::of_text(&item);
                        for words in split {
                            all.extend(one(&item, words, &places, model, report));
                        }
                    }
                    Err(bad) => complain(&item, &bad, item.at(), None, report),
                }
            }
            Kind::Mapping(_) => {
                let Some((words, places)) = words_of(&item, report) else { continue };
                all.extend(one(&item, words, &Places::Each(places), model, report));
            }
            Kind::Sequence(_) => {
                item.not(report, "a rule", Hint::new("write it as `status=503 first=2`"));
            }
        }
    }
    all
}

/// Where words stand in the file.
enum Places {
    /// In a text that begins here; the words know their offsets.
    Text(Place),
    /// In a text that is not as it stands in the file (escapes, several lines): only where it
    /// begins.
    Somewhere(Place),
    Each(Vec<Place>),
}

impl Places {
    fn of_text(item: &Value) -> Self {
        let at = item.at();
        let Some(scalar) = item.scalar() else { return Self::Somewhere(at) };
        if scalar.text.contains('\n') {
            return Self::Somewhere(at);
        }
        let quote = u32::from(scalar.form == Form::Text);
        Self::Text(Place { column: at.column + quote, ..at })
    }

    fn of(&self, words: &[Word], at: Option<usize>) -> Place {
        match (self, at) {
            (Self::Text(begin), Some(at)) => {
                let offset = words.get(at).map_or(0, |word| word.offset);
                let offset = u32::try_from(offset).unwrap_or(0);
                Place { column: begin.column + offset, ..*begin }
            }
            (Self::Each(places), Some(at)) => places.get(at).copied().unwrap_or(Place::START),
            (Self::Each(places), None) => places.first().copied().unwrap_or(Place::START),
            (Self::Text(begin) | Self::Somewhere(begin), _) => *begin,
        }
    }
}

fn one(
    item: &Value,
    mut words: Vec<Word>,
    places: &Places,
    model: Option<&str>,
    report: &mut Report<'_>,
) -> Option<Placed<Rule>> {
    let written = words.clone();
    if let Some(model) = model {
        // Behind the others, so that their numbers stay.
        words.push(Word::new("model", Some(model.to_owned())));
    }
    match faults::read(&words) {
        Ok(rule) => Some(item.placed(rule)),
        Err(bad) if model.is_some() && bad.word == Some(written.len()) => {
            let at = places.of(&written, None);
            let hint = "a model's own rules hit only that model: leave `model` and `gpu` out";
            report.add(at, &item.path, bad.message, Hint::new(hint));
            None
        }
        Err(bad) => {
            let typed = bad.word.and_then(|word| written.get(word)).map(|word| word.key.clone());
            complain(item, &bad, places.of(&written, bad.word), typed.as_deref(), report);
            None
        }
    }
}

fn complain(item: &Value, bad: &BadWord, at: Place, typed: Option<&str>, report: &mut Report<'_>) {
    let near = typed
        .filter(|_| bad.is_unknown)
        .and_then(|typed| nearest(typed, faults::KEYS.iter().copied()))
        .map(|near| format!("did you mean `{near}`?"));
    let elsewhere = bad.is_unknown.then(|| "docs/faults.md lists the words".to_owned());
    let hint = bad.hint.clone().or(near).or(elsewhere);
    report.add(at, &item.path, bad.message.clone(), Hint::maybe(hint));
}

/// The entries of a mapping as words, with the places of the keys.
fn words_of(item: &Value, report: &mut Report<'_>) -> Option<(Vec<Word>, Vec<Place>)> {
    let (mut words, mut places) = (Vec::new(), Vec::new());
    for field in item.entries(report)? {
        if field.key == "header" && field.value.is_mapping() {
            for header in field.value.entries(report)? {
                let value = scalar_of(&header.value, report)?;
                words.push(Word::new(format!("header.{}", header.key), value));
                places.push(header.key_at);
            }
            continue;
        }
        words.push(Word::new(field.key.clone(), scalar_of(&field.value, report)?));
        places.push(field.key_at);
    }
    Some((words, places))
}

/// A value as it was typed; nothing if nothing was.
fn scalar_of(value: &Value, report: &mut Report<'_>) -> Option<Option<String>> {
    match value.scalar() {
        Some(_) if value.is_null() => Some(None),
        Some(scalar) => Some(Some(scalar.text.clone())),
        None => {
            value.not(report, "one value", Hint::NONE);
            None
        }
    }
}

/// `at 30s: slow gpu0 by 3`, as entries of a mapping or of a list.
fn timeline(value: &Value, report: &mut Report<'_>) -> Vec<Placed<Rule>> {
    let items = match &value.node.kind {
        Kind::Mapping(_) => vec![value.clone()],
        _ => match value.list(report) {
            Some(items) => items,
            None => return Vec::new(),
        },
    };
    let mut all = Vec::new();
    for item in items {
        let hint = || Hint::new("write `at 30s: slow gpu0 by 3`");
        if !item.is_mapping() {
            item.not(report, "a time and what happens then", hint());
            continue;
        }
        for field in item.entries(report).unwrap_or_default() {
            let Some(at) = field.key.strip_prefix("at ") else {
                let message = format!("`{}` is not a time", field.key);
                report.add(field.key_at, &item.path, message, hint());
                continue;
            };
            for said in field.value.one_or_more() {
                let Some(text) = said.text(report) else { continue };
                let places = Places::of_text(&said);
                match faults::phrase(&text.value) {
                    Ok(mut words) => {
                        // Behind the others, so that their numbers stay.
                        words.push(Word::new("at", Some(at.trim().to_owned())));
                        let last = words.len() - 1;
                        match faults::read(&words) {
                            Ok(rule) => all.push(said.placed(rule)),
                            Err(bad) if bad.word == Some(last) => {
                                complain(&item, &bad, field.key_at, None, report);
                            }
                            Err(bad) => {
                                let typed = bad.word.map(|word| words[word].key.clone());
                                let at = places.of(&words, bad.word);
                                complain(&said, &bad, at, typed.as_deref(), report);
                            }
                        }
                    }
                    Err(bad) => complain(&said, &bad, places.of(&[], None), None, report),
                }
            }
        }
    }
    all
}

fn check_names(rule: &Placed<Rule>, models: &[ModelSpec], report: &mut Report<'_>) {
    if let Err((message, hint)) = names_something(&rule.value, models) {
        report.add(rule.at, &rule.path, message, Hint::maybe(hint));
    }
}

/// Whether the model or the GPU that a rule names is there, and has what the rule takes from it.
///
/// # Errors
/// What is not, and what there is.
fn names_something(rule: &Rule, models: &[ModelSpec]) -> Result<(), (String, Option<String>)> {
    let names = || models.iter().map(|model| model.name.as_str());
    if let Some(wanted) = &rule.when.model
        && !names().any(|name| fits(wanted, name))
    {
        let near = nearest(wanted, names()).map(|near| format!("did you mean `{near}`?"));
        let all: Vec<&str> = names().collect();
        let hint = near.or_else(|| Some(format!("there are: {}", all.join(", "))));
        return Err((format!("there is no model `{wanted}`"), hint));
    }
    let Fault::Engine(what) = rule.fault else { return Ok(()) };
    let (gpus, kind) = (gpus(models), rule.fault.kind());
    let befallen = || {
        let named = gpus.iter().enumerate().filter(|(number, gpu)| rule.befalls(*number, gpu));
        named.map(|(_, gpu)| gpu)
    };
    if befallen().any(|gpu| gpu.feels(what)) {
        return Ok(());
    }
    if let Some(gpu) = befallen().next() {
        let hint = "models with `engine: fixed_rate` have no cache and no batch";
        return Err((format!("`{kind}` does nothing to `{}`", gpu.model), Some(hint.to_owned())));
    }
    let named = match &rule.when.gpu {
        Some(GpuName::Number(number)) => format!("there is no simulated GPU {number}"),
        Some(GpuName::Of(model, replica)) => {
            format!("there is no simulated GPU `{model}/{replica}`")
        }
        None => format!("`{kind}` has no simulated GPU to befall"),
    };
    let hint = match gpus.len() {
        0 => "models with `engine: instant` have none to disturb".to_owned(),
        1 => "there is one: gpu=0".to_owned(),
        many => format!("there are {many}: gpu=0 to gpu={}", many - 1),
    };
    Err((named, Some(hint)))
}

/// The simulated GPUs with a timeline of their own, in the order in which rules number them.
pub fn gpus(models: &[ModelSpec]) -> Vec<GpuAt<'_>> {
    let of = |model| {
        let ModelSpec { name, engine, replicas, .. }: &ModelSpec = model;
        let has_batch = matches!(engine, EngineSpec::Scheduler(_));
        let replicas = match engine {
            EngineSpec::Instant => 0,
            EngineSpec::FixedRate(_) | EngineSpec::Scheduler(_) => u32::from((*replicas).max(1)),
        };
        (0..replicas).map(move |replica| GpuAt { model: name, replica, has_batch })
    };
    models.iter().flat_map(of).collect()
}
