//! `responses.yml` as its users know it: the example of the manual, and what it promises.

use std::collections::BTreeSet;

use llmsim_engine::text::responses::{
    Answer, Lengths, Operator, Query, Responses, Rule, RuleSet, Variant, When,
};
use llmsim_engine::text::script::Script;
use llmsim_engine::text::tokenizer;
use llmsim_engine::units::Tokens;

fn strings(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

fn variants(texts: &[&str]) -> Answer {
    Answer::Variants(texts.iter().map(|&text| Variant::Text(text.to_owned())).collect())
}

fn tokens(min: u32, max: u32) -> Lengths {
    Lengths { min: Tokens::new(min), max: Tokens::new(max) }
}

fn rule(id: &str, operator: Operator, answer: Answer) -> Rule {
    Rule { id: id.to_owned(), operator, when: When::default(), answer }
}

/// The example of the manual.
fn example() -> RuleSet {
    RuleSet {
        seed: 42,
        rules: vec![
            rule(
                "greeting",
                Operator::Exact(strings(&["hi", "hello"])),
                Answer::Content("Hello! How can I help you today?".to_owned()),
            ),
            rule(
                "weather",
                Operator::Regex(strings(&[r"weather in (?P<city>\w+)"])),
                variants(&["It's sunny in {city} today.", "Expect light rain in {city}."]),
            ),
            rule(
                "echo",
                Operator::StartsWith(strings(&["/echo"])),
                Answer::Content("You said: {last_user_message}".to_owned()),
            ),
            rule(
                "long-answer",
                Operator::Contains(strings(&["explain"])),
                Answer::Synthetic(tokens(200, 400)),
            ),
        ],
        default: variants(&["I'm a simulated model ({model}).", "This is a canned response."]),
    }
}

fn ask(responses: &Responses, input: &str, seed: Option<i64>) -> Script {
    responses.answer(&Query { input, model: "qwen-mock", seed, ..Query::default() })
}

#[test]
fn the_example_of_the_manual_answers_as_it_says() {
    let responses = Responses::compile(example()).unwrap();
    let check = |input: &str, entry: &str, texts: &[&str]| {
        let script = ask(&responses, input, None);
        assert_eq!(script.entry_id(), entry, "{input:?}");
        assert!(texts.contains(&script.text().as_str()), "{input:?}: {:?}", script.text());
    };
    check(" Hello \n", "greeting", &["Hello! How can I help you today?"]);
    let weather = ["It's sunny in Oslo today.", "Expect light rain in Oslo."];
    check("What's the WEATHER in Oslo?", "weather", &weather);
    check("/echo  me ", "echo", &["You said: /echo  me "]);
    let default = ["I'm a simulated model (qwen-mock).", "This is a canned response."];
    check("who are you", "default", &default);
    check("", "default", &default);

    let script = ask(&responses, "Please explain TCP", None);
    assert_eq!(script.entry_id(), "long-answer");
    assert!((200..=400).contains(&script.len().get()));
    assert_eq!(tokenizer::count(&script.text()), script.len());
}

#[test]
fn the_same_request_gets_the_same_answer_from_every_server() {
    let all = |responses: &Responses| -> Vec<String> {
        (0..200)
            .flat_map(|i| {
                let weather = format!("weather in city{i}");
                let long = format!("explain {i}");
                [ask(responses, &weather, None).text(), ask(responses, &long, None).text()]
            })
            .collect()
    };
    let first = Responses::compile(example()).unwrap();
    let restarted = Responses::compile(example()).unwrap();
    let expected = all(&first);
    assert_eq!(all(&restarted), expected);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| all(&first))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    });
}

/// Worked out by a separate program from the description in `text::responses` and the algorithm in
/// `seed.rs`: a release that changes them changes everybody's answers.
#[test]
fn choices_are_those_of_the_documented_formula() {
    let responses = Responses::compile(example()).unwrap();
    for (seed, city, variant, length) in [
        (42, "Oslo", 1, 234),
        (42, "Bergen", 0, 374),
        (42, "São Paulo", 1, 314),
        (7, "Oslo", 1, 223),
        (7, "Bergen", 1, 399),
        (7, "São Paulo", 0, 395),
        (-7, "Oslo", 1, 270),
        (-7, "Bergen", 1, 266),
        (-7, "São Paulo", 1, 332),
    ] {
        let weather = ask(&responses, &format!("weather in {city}"), Some(seed)).text();
        let expected = ["It's sunny in", "Expect light rain in"][variant];
        assert!(weather.starts_with(expected), "{seed} {city}: {weather}");
        let explained = ask(&responses, &format!("explain {city}"), Some(seed));
        assert_eq!(explained.len(), Tokens::new(length), "{seed} {city}");
    }
}

#[test]
fn the_seed_of_a_request_overrides_that_of_the_file() {
    let responses = Responses::compile(example()).unwrap();
    let other_file = Responses::compile(RuleSet { seed: 7, ..example() }).unwrap();
    let texts = |responses: &Responses, seed| -> Vec<String> {
        (0..50).map(|i| ask(responses, &format!("weather in c{i}"), seed).text()).collect()
    };
    assert_eq!(texts(&responses, Some(7)), texts(&other_file, None));
    assert_eq!(texts(&responses, Some(42)), texts(&responses, None));
    assert_ne!(texts(&responses, Some(7)), texts(&responses, None));
    assert_ne!(texts(&responses, Some(-7)), texts(&responses, Some(7)));
}

/// 2,000 coin tosses stray from 1,000 by more than 150 once in 10^11 tries.
#[test]
fn variants_and_lengths_are_chosen_evenly() {
    let responses = Responses::compile(example()).unwrap();
    let sunny = (0..2_000)
        .filter(|seed| ask(&responses, "weather in Oslo", Some(*seed)).text().contains("sunny"))
        .count();
    assert!((850..=1_150).contains(&sunny), "{sunny}");
    let lengths: BTreeSet<u32> =
        (0..5_000).map(|seed| ask(&responses, "explain", Some(seed)).len().get()).collect();
    assert_eq!(lengths.first(), Some(&200));
    assert_eq!(lengths.last(), Some(&400));
    assert_eq!(lengths.len(), 201);
}

#[test]
fn case_changes_no_rule_but_may_change_the_variant() {
    let responses = Responses::compile(example()).unwrap();
    for input in ["weather in oslo", "WEATHER IN oslo", "  weather in oslo\n"] {
        assert_eq!(ask(&responses, input, None).entry_id(), "weather");
    }
    let trimmed = ask(&responses, "weather in oslo", None).text();
    assert_eq!(ask(&responses, "  weather in oslo\n", None).text(), trimmed);
}

#[test]
fn an_answer_rendered_to_nothing_is_one_empty_piece() {
    let set = RuleSet {
        seed: 0,
        rules: Vec::new(),
        default: Answer::Content("{last_user_message}".to_owned()),
    };
    let responses = Responses::compile(set).unwrap();
    let script = ask(&responses, "", None);
    assert_eq!((script.len(), script.text().as_str()), (Tokens::new(1), ""));
}

#[test]
fn a_megabyte_is_echoed_whole() {
    let responses = Responses::compile(example()).unwrap();
    let message = format!("/echo {}", "x\"😀".repeat(200_000));
    let script = ask(&responses, &message, None);
    assert_eq!(script.text(), format!("You said: {message}"));
}

#[test]
fn every_problem_is_reported_with_its_place() {
    let set = RuleSet {
        seed: 0,
        rules: vec![
            rule(
                "a",
                Operator::Regex(strings(&["ok", "(bad"])),
                Answer::Content("{town} and } here".to_owned()),
            ),
            rule("a", Operator::Exact(strings(&["x"])), Answer::Variants(Vec::new())),
            rule(
                "b",
                Operator::Contains(strings(&[""])),
                Answer::Variants(vec![
                    Variant::Text("fine".to_owned()),
                    Variant::Synthetic(tokens(5, 4)),
                ]),
            ),
        ],
        default: Answer::Synthetic(tokens(0, 4)),
    };
    let problems = Responses::compile(set).unwrap_err();
    let places: Vec<String> = problems
        .iter()
        .map(|problem| format!("{:?} {} {}", problem.rule, problem.id, problem.field))
        .collect();
    assert_eq!(
        places,
        [
            "Some(0) a match.regex[1]",
            "Some(0) a content",
            "Some(0) a content",
            "Some(1) a id",
            "Some(1) a variants",
            "Some(2) b match.contains",
            "Some(2) b variants[1].synthetic.tokens",
            "None default synthetic.tokens",
        ]
    );
    assert_eq!(
        problems[3].to_string(),
        "responses[1] (\"a\").id: this id is used by an earlier entry"
    );
}

/// The examples of `docs/schema.md`.
mod documented {
    use llmsim_engine::config::{self, Source};
    use llmsim_engine::text::output::Kind;
    use llmsim_engine::text::responses::Finish;
    use llmsim_engine::text::wants::{self, Said, Tool, Wants};

    use super::*;

    const MODELS: &str =
        "version: 1\nmodels: [{ name: qwen-mock, context_length: 100, engine: instant }]\n";

    /// The files of responses that stand in the manual.
    fn examples() -> Vec<Responses> {
        let manual = include_str!("../../../docs/schema.md");
        let blocks =
            manual.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
        let files = blocks.filter(|block| block.contains("\nresponses:\n"));
        files
            .map(|file| {
                let loaded =
                    config::load(&Source::new("models", MODELS), &Source::new("responses", file));
                loaded.unwrap_or_else(|problems| panic!("{file}\n{problems}")).responses
            })
            .collect()
    }

    fn said(responses: &Responses, query: &Query<'_>) -> Said {
        let weather = Tool { name: "get_weather".into(), place: 0, parameters: None };
        let wants = Wants { tools: vec![weather], ..Wants::default() };
        wants::say(responses.reply(query), &wants).unwrap()
    }

    fn text(said: &Said) -> String {
        (0..said.output.len().get()).map(|k| said.output.piece(k)).collect()
    }

    #[test]
    fn the_examples_of_the_manual_do_what_it_says() {
        let examples = examples();
        let [first, parts] = &examples[..] else { panic!("{} examples", examples.len()) };
        let of = |input| Query { input, model: "qwen-mock", turn: 1, ..Query::default() };
        assert_eq!(text(&said(first, &of("what?"))), "I'm a simulated model (qwen-mock).");

        let call = said(parts, &of("the weather in Oslo"));
        assert_eq!(call.finish, Finish::ToolCalls);
        assert!(
            matches!(&call.output.part(0).kind, Kind::ToolCall(call) if &*call.name == "get_weather")
        );
        assert_eq!(text(&call), r#"get_weather{"city": "Oslo", "days": 2}"#);
        let known = Query { tool_result: Some("20 Degrees"), ..of("the weather in Oslo") };
        assert_eq!(text(&said(parts, &known)), "It is warm enough.");
        let unknown = Query { tool_result: Some("no idea"), ..of("the weather in Oslo") };
        assert_eq!(text(&said(parts, &unknown)), "I'm a simulated model (qwen-mock).");
        let riddle = said(parts, &of("a riddle"));
        assert_eq!(riddle.output.part(0).kind, Kind::Reasoning);
        assert_eq!(text(&riddle), "What has keys but no locks?A piano.");
        let careful = Query { system: "You must Be Careful.", ..of("forbidden") };
        assert_eq!(said(parts, &careful).output.part(0).kind, Kind::Refusal);
        let second = Query { turn: 2, ..of("withheld") };
        assert_eq!(said(parts, &second).finish, Finish::ContentFilter);
        assert_eq!(said(parts, &of("withheld")).finish, Finish::Stop);
    }
}
