//! Which rule a message matches.
//!
//! The one invariant: the result is that of trying every rule from top to bottom.

use regex_automata::meta::Regex;
use regex_automata::util::syntax;

use super::responses::{Operator, Place, Rule, RuleProblem};

/// The conditions of all rules, compiled.
#[derive(Debug)]
pub struct Matcher {
    rules: Vec<Vec<Regex>>,
}

/// The first rule that matches.
#[derive(Clone, Debug)]
pub struct Hit<'a> {
    /// Its index.
    pub rule: usize,
    /// The regex that matched, if it was one.
    regex: Option<&'a Regex>,
}

impl Hit<'_> {
    /// The named groups of the match in `input`, which must be the one that was matched; empty
    /// where a group took no part.
    pub fn named_groups<'i>(&self, input: &'i str) -> Vec<(&str, &'i str)> {
        let Some(regex) = self.regex else { return Vec::new() };
        let mut captures = regex.create_captures();
        regex.captures(input, &mut captures);
        let names = regex.group_info().pattern_names(regex_automata::PatternID::ZERO);
        names
            .enumerate()
            .filter_map(|(index, name)| {
                let span = captures.get_group(index);
                Some((name?, span.map_or("", |span| &input[span.range()])))
            })
            .collect()
    }
}

impl Matcher {
    /// Compiles the conditions of `rules`; what is wrong with them comes back too.
    pub fn compile(rules: &[Rule]) -> (Self, Vec<RuleProblem>) {
        let mut problems = Vec::new();
        let mut compiled = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let place = Place { rule: Some(index), id: &rule.id };
            let mut regexes = Vec::new();
            for (i, value) in rule.operator.values().iter().enumerate() {
                let escaped = regex_syntax::escape(value.trim());
                let pattern = match &rule.operator {
                    Operator::Exact(_) => format!(r"\A{escaped}\z"),
                    Operator::Contains(_) => regex_syntax::escape(value),
                    Operator::StartsWith(_) => format!(r"\A{}", regex_syntax::escape(value)),
                    Operator::Regex(_) => value.clone(),
                };
                let syntax = syntax::Config::new().case_insensitive(true);
                match Regex::builder().syntax(syntax).build(&pattern) {
                    Ok(regex) => regexes.push(regex),
                    Err(error) => {
                        let field = format!("match.{}[{i}]", rule.operator.name());
                        problems.push(place.problem(&field, error.to_string()));
                    }
                }
            }
            compiled.push(regexes);
        }
        (Self { rules: compiled }, problems)
    }

    /// The names of the groups that a match of `rule` can give.
    pub fn groups(&self, rule: usize) -> Vec<String> {
        let mut names: Vec<String> = self.rules[rule]
            .iter()
            .flat_map(|regex| regex.group_info().all_names())
            .filter_map(|(_, _, name)| name.map(str::to_owned))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The first rule that matches `input`, which has no surrounding white space.
    pub fn find(&self, input: &str) -> Option<Hit<'_>> {
        self.rules.iter().enumerate().find_map(|(rule, regexes)| {
            let regex = regexes.iter().find(|regex| regex.is_match(input))?;
            Some(Hit { rule, regex: Some(regex) })
        })
    }
}
