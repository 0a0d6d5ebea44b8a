//! The matcher finds what trying every rule in turn finds.

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::text::matcher::Matcher;
use llmsim_engine::text::responses::{Answer, Operator, Rule, When};
use regex_automata::meta::Regex;
use regex_automata::util::syntax;

/// Every rule in turn, every value in turn, each as one case-insensitive regex.
struct Reference {
    rules: Vec<Vec<Regex>>,
}

impl Reference {
    fn new(rules: &[Rule]) -> Self {
        let escaped =
            |text: &str| text.chars().map(|c| format!(r"\x{{{:X}}}", c as u32)).collect::<String>();
        let compile = |rule: &Rule| {
            let regex = |value: &String| {
                let pattern = match &rule.operator {
                    Operator::Exact(_) => format!(r"\A{}\z", escaped(value.trim())),
                    Operator::Contains(_) => escaped(value),
                    Operator::StartsWith(_) => format!(r"\A{}", escaped(value.trim_start())),
                    Operator::Regex(_) => value.to_owned(),
                    Operator::Always => unreachable!("it has no values"),
                };
                let syntax = syntax::Config::new().case_insensitive(true);
                Regex::builder().syntax(syntax).build(&pattern).unwrap()
            };
            rule.operator.values().iter().map(regex).collect()
        };
        Self { rules: rules.iter().map(compile).collect() }
    }

    fn find(&self, input: &str) -> Option<usize> {
        self.rules.iter().position(|regexes| regexes.iter().any(|regex| regex.is_match(input)))
    }
}

/// Few and similar words, so that random rules meet random inputs.
const WORDS: [&str; 24] = [
    "a", "b", "ab", "aba", "hamlet", "Hamlet", "HAM", "let", "k", "\u{212A}", "s", "ſ", "ß", "SS",
    "é", "É", "Σ", "ς", "你", "😀", " ", ".", "1", "\n",
];

fn words(random: &mut Generator, most: u64) -> String {
    let count = 1 + random.below(most);
    (0..count).map(|_| WORDS[random.below(WORDS.len() as u64) as usize]).collect()
}

/// A random expression that uses every construct whose words the prefilter reads.
fn pattern(random: &mut Generator, depth: u32) -> String {
    if depth == 0 {
        let atoms = [
            "a",
            "b",
            "ham",
            "hamlet",
            "K",
            "s",
            "ß",
            "é",
            "ς",
            "[ab]",
            "[^a]",
            r"\w",
            ".",
            r"\d",
            r"\b",
            r"\bham",
            r"\bhamlet\b",
            r"\b(?:a|k)",
            r"s\b",
            "(?-i:Ham)",
            "[^ab]*",
            "x*",
            "^",
            "$",
            "你",
            r"[a-z]+",
            "",
        ];
        return atoms[random.below(atoms.len() as u64) as usize].to_owned();
    }
    let a = pattern(random, depth - 1);
    let b = pattern(random, depth - 1);
    match random.below(9) {
        0 | 1 => format!("{a}{b}"),
        2 => format!("(?:{a}|{b})"),
        3 => format!("({a})?{b}"),
        4 => format!("(?:{a})+{b}"),
        5 => format!("(?:{a}){{2}}"),
        6 => format!("{a}.*{b}"),
        7 => format!("(?:{a}|{b}|hamlet)"),
        _ => format!("(?:{a})*{b}"),
    }
}

fn rule(random: &mut Generator) -> Rule {
    let kind = random.below(4);
    let values: Vec<String> = (0..=random.below(3))
        .map(|_| match kind {
            3 => {
                let depth = random.below(4) as u32;
                pattern(random, depth)
            }
            _ => words(random, 3),
        })
        .collect();
    let operator = match kind {
        0 => Operator::Exact(values),
        1 => Operator::Contains(values),
        2 => Operator::StartsWith(values),
        _ => Operator::Regex(values),
    };
    Rule {
        id: String::new(),
        operator,
        when: When::default(),
        answer: Answer::Content(String::new()),
    }
}

/// Whether the matcher takes the rule (an empty `contains` value is a problem, for example).
fn is_valid(rule: &Rule) -> bool {
    Matcher::compile(std::slice::from_ref(rule)).1.is_empty()
}

#[test]
fn random_rules_match_as_if_tried_one_by_one() {
    let mut hits = [0u32; 2];
    for seed in 0..1_000 {
        let mut random = Seed::new(seed).generator();
        let count = random.below(8);
        let rules: Vec<Rule> = (0..count).map(|_| rule(&mut random)).filter(is_valid).collect();
        let (matcher, problems) = Matcher::compile(&rules);
        assert_eq!(problems, []);
        let reference = Reference::new(&rules);
        for most in [8, 8, 8, 8, 40, 1_500] {
            let input = words(&mut random, most);
            let input = input.trim();
            let expected = reference.find(input);
            let got = matcher.find(input).map(|hit| hit.rule);
            assert_eq!(got, expected, "seed {seed}: {input:?} in {rules:#?}");
            hits[usize::from(expected.is_some())] += 1;
        }
    }
    assert!(hits.iter().all(|&hits| hits > 1_000), "misses and hits: {hits:?}");
}

/// More words than fit the fast automaton: the small one gives the same answers.
#[test]
fn thousands_of_values_match_as_if_tried_one_by_one() {
    let rules: Vec<Rule> = (0..3_000)
        .map(|i| Rule {
            id: i.to_string(),
            operator: Operator::Contains(vec![format!("the answer to question {i} is É")]),
            when: When::default(),
            answer: Answer::Content(String::new()),
        })
        .collect();
    let (matcher, problems) = Matcher::compile(&rules);
    assert_eq!(problems, []);
    for i in [0, 7, 999, 2_999] {
        let input = format!("I think The Answer to Question {i} is é, no?");
        assert_eq!(matcher.find(&input).map(|hit| hit.rule), Some(i));
    }
    assert!(matcher.find("the answer to question 3000 is é").is_none());
}
