//! Whom a rule hits.
//!
//! Pure: the caller says what was asked, when, and how loaded it is, and keeps the [`Tallies`]. The
//! invariant: by `p`, and by `first` unless it counts the rule's arrivals, a request is decided
//! from the seed, the rule and the request alone, counting only how often that same request came.

use std::hash::Hash;

use super::fault::{Fault, Per, Rule, Stage, Unready, When};
use crate::seed::{LookupMap, Seed};
use crate::units::{SimSpan, SimTime};

/// What a decision looks at of a request.
pub struct Asked<'a> {
    /// The path of the URL, without the query.
    pub path: &'a str,
    /// Whether the path is one that generates; rules without a `path` hit only these.
    pub generates: bool,
    /// The model that is asked for.
    pub model: Option<&'a str>,
    /// The API key.
    pub key: Option<&'a str>,
    /// The last user message in lower case, if a rule asks what it contains.
    pub text: Option<&'a str>,
    /// The value of a header, by its name in lower case.
    pub header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// Says which requests are the same: [`content_of`].
    pub content: u64,
    /// Whether a stream is asked for.
    pub is_stream: bool,
    /// Generations under way.
    pub load: u64,
    /// The time since the plan began.
    pub at: SimTime,
}

/// What befalls a request.
#[derive(Debug, Default, PartialEq)]
pub struct Decision<'a> {
    /// Before the answer.
    pub before: Option<&'a Rule>,
    /// In the stream, or in the body, if it comes to that.
    pub stream: Option<&'a Rule>,
    /// The rate limits that it counts for.
    pub limits: Vec<&'a Rule>,
}

impl Decision<'_> {
    /// Nothing at all.
    pub fn is_empty(&self) -> bool {
        self.before.is_none() && self.stream.is_none() && self.limits.is_empty()
    }
}

/// How often what came.
#[derive(Debug, Default)]
pub struct Tallies {
    /// How often the same request came, whatever befell it: what draws depend on. One number for
    /// all rules, so that a request costs 16 bytes, however many rules there are.
    contents: LookupMap<u64, u64>,
    /// By rule and request, for rules that count the attempts they could hit.
    requests: LookupMap<(u64, u64), u64>,
    /// By rule.
    arrivals: LookupMap<u64, u64>,
}

/// Different requests that are told apart, in each map: 16 to 24 MB at most. Beyond that a request
/// that was not seen before counts as new each time.
const MOST_REQUESTS: usize = 1 << 20;
/// Rules that are counted for: those of plans, and those that requests bring for themselves.
const MOST_COUNTED: usize = 1 << 16;

impl Tallies {
    /// Which time this request came, from 1.
    fn content(&mut self, content: u64) -> u64 {
        count(&mut self.contents, content, MOST_REQUESTS)
    }

    /// Which time it came to this rule, from 1.
    fn request(&mut self, rule: u64, content: u64) -> u64 {
        count(&mut self.requests, (rule, content), MOST_REQUESTS)
    }

    fn arrival(&mut self, rule: u64) -> u64 {
        count(&mut self.arrivals, rule, MOST_COUNTED)
    }
}

/// One more of `key`; in a map that is full, what is new is always the first.
fn count<K: Eq + Hash>(map: &mut LookupMap<K, u64>, key: K, most: usize) -> u64 {
    let is_full = map.len() >= most;
    match map.get_mut(&key) {
        Some(count) => {
            *count += 1;
            *count
        }
        None => {
            if !is_full {
                map.insert(key, 1);
            }
            1
        }
    }
}

/// Those of `rules` that may hit a request: all holds of them that is not counted or drawn. This is
/// where texts are searched, so that [`decide`] never is long: whoever shares its tallies with
/// others locks them only then.
pub fn candidates<'a>(
    rules: impl IntoIterator<Item = &'a Rule>,
    asked: &Asked<'_>,
) -> Vec<&'a Rule> {
    rules.into_iter().filter(|rule| matches(&rule.when, asked)).collect()
}

/// Which of the [`candidates`] hit a request: of those at one stage the first, and every rate
/// limit.
pub fn decide<'a>(
    candidates: &[&'a Rule],
    seed: u64,
    tallies: &mut Tallies,
    asked: &Asked<'_>,
) -> Decision<'a> {
    let mut decision = Decision::default();
    let mut attempt = None;
    for &rule in candidates {
        let is_limit = matches!(rule.fault, Fault::RateLimit { .. });
        let is_open = match rule.fault.stage() {
            Stage::Before => is_limit || decision.before.is_none(),
            Stage::Stream => {
                decision.stream.is_none() && (asked.is_stream || rule.fault.fits_a_body())
            }
            Stage::Engine => false,
        };
        if !is_open || !hits(rule, seed, tallies, &mut attempt, asked.content) {
            continue;
        }
        match rule.fault.stage() {
            _ if is_limit => decision.limits.push(rule),
            Stage::Before => decision.before = Some(rule),
            _ => decision.stream = Some(rule),
        }
    }
    decision
}

/// Why the server is not ready at this time, if a rule says so of all requests: one that hits some
/// of them, by whatever condition, says nothing of the server.
pub fn is_ready<'a>(rules: impl IntoIterator<Item = &'a Rule>, at: SimTime) -> Result<(), Unready> {
    let unready = rules.into_iter().find_map(|rule| match rule.fault {
        Fault::Unready(why) if is_of_all(&rule.when) && in_window(&rule.when, at) => Some(why),
        _ => None,
    });
    unready.map_or(Ok(()), Err)
}

/// Whether a candidate hits. `attempt`: which time this request came, once somebody has asked.
fn hits(
    rule: &Rule,
    seed: u64,
    tallies: &mut Tallies,
    attempt: &mut Option<u64>,
    content: u64,
) -> bool {
    let when = &rule.when;
    let counts_requests = when.first.is_some() && when.per != Some(Per::Rule)
        || when.every.is_some() && when.per == Some(Per::Request);
    let counts_arrivals = when.every.is_some() && when.per != Some(Per::Request)
        || when.first.is_some() && when.per == Some(Per::Rule);
    let again = if counts_requests { tallies.request(rule.id, content) } else { 1 };
    let arrival = if counts_arrivals { tallies.arrival(rule.id) } else { 1 };
    let count = |usual: Per| match when.per.unwrap_or(usual) {
        Per::Request => again,
        Per::Rule => arrival,
    };
    let is_first = when.first.is_none_or(|first| count(Per::Request) <= u64::from(first));
    let is_nth = when.every.is_none_or(|every| count(Per::Rule).is_multiple_of(u64::from(every)));
    let is_drawn = when.probability.is_none_or(|probability| {
        let attempt = *attempt.get_or_insert_with(|| tallies.content(content));
        let drawn = Seed::new(seed)
            .with(&rule.id.to_le_bytes())
            .with(&content.to_le_bytes())
            .with(&attempt.to_le_bytes());
        drawn.below(1_000_000) < u64::from(probability)
    });
    is_first && is_nth && is_drawn
}

/// Whether all holds that is not counted.
fn matches(when: &When, asked: &Asked<'_>) -> bool {
    let is_there = |pattern: &Option<String>, value: Option<&str>| match pattern {
        None => true,
        Some(pattern) => value.is_some_and(|value| fits(pattern, value)),
    };
    let has_path = match &when.path {
        None => asked.generates,
        Some(path) => fits(path, asked.path),
    };
    has_path
        && in_window(when, asked.at)
        && when.load.is_none_or(|load| asked.load > u64::from(load))
        && when.stream.is_none_or(|stream| stream == asked.is_stream)
        && is_there(&when.model, asked.model)
        && when.key.as_deref().is_none_or(|key| asked.key == Some(key))
        && when.headers.iter().all(|(name, value)| {
            (asked.header)(name).is_some_and(|sent| value.is_empty() || fits(value, sent))
        })
        && when
            .contains
            .as_deref()
            .is_none_or(|wanted| asked.text.is_some_and(|text| text.contains(wanted)))
}

/// Whether nothing but the time decides whom a rule hits.
fn is_of_all(when: &When) -> bool {
    let When { at, lasts, .. } = *when;
    *when == When { at, lasts, ..When::default() }
}

fn in_window(when: &When, at: SimTime) -> bool {
    let since = at.as_ns().checked_sub(when.at.as_ns());
    since.is_some_and(|since| when.lasts.is_none_or(|lasts| since < lasts.as_ns()))
}

/// A `*` at the end of a pattern stands for any rest.
pub(crate) fn fits(pattern: &str, value: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => value.starts_with(start),
        None => value == pattern,
    }
}

/// Says which requests are the same: those with the same body, to the same path. Of a body of more
/// than 128 KiB both ends and the length count.
pub fn content_of(path: &str, body: &[u8]) -> u64 {
    const END: usize = 64 * 1024;
    let seed = Seed::new(0).with(path.as_bytes());
    if body.len() <= 2 * END {
        return seed.with(body).value();
    }
    let (head, tail) = (&body[..END], &body[body.len() - END..]);
    seed.with(&body.len().to_le_bytes()).with(head).with(tail).value()
}

impl Rule {
    /// How long it holds from the beginning of the plan, if it ends.
    pub fn ends(&self) -> Option<SimSpan> {
        self.when.lasts.map(|lasts| self.when.at + lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn decide<'a>(
        rules: &'a [Rule],
        seed: u64,
        tallies: &mut Tallies,
        asked: &Asked<'_>,
    ) -> Decision<'a> {
        super::decide(&candidates(rules, asked), seed, tallies, asked)
    }

    fn asked<'a>(content: u64, header: &'a dyn Fn(&str) -> Option<&'a str>) -> Asked<'a> {
        Asked {
            path: "/v1/chat/completions",
            generates: true,
            model: Some("m-large"),
            key: Some("sk-1"),
            text: Some("tell me about hamlet"),
            header,
            content,
            is_stream: true,
            load: 10,
            at: SimTime::ZERO + SimSpan::from_ms(5_000),
        }
    }

    fn nothing(_: &str) -> Option<&'static str> {
        None
    }

    /// How often each rule of `text` hits, of so many requests with contents from `contents`.
    fn hit(text: &str, contents: impl Iterator<Item = u64>) -> Vec<u64> {
        let rules = parse(text).unwrap();
        let mut tallies = Tallies::default();
        contents
            .filter(|&content| {
                !decide(&rules, 7, &mut tallies, &asked(content, &nothing)).is_empty()
            })
            .collect()
    }

    #[test]
    fn conditions_must_all_hold() {
        let tenant = |name: &str| (name == "x-tenant").then_some("acme");
        for (text, hits) in [
            ("close", true),
            ("close model=m-large", true),
            ("close model=m-*", true),
            ("close model=m", false),
            ("close key=sk-1", true),
            ("close key=sk-2", false),
            ("close contains=HAMLET", true),
            ("close contains=macbeth", false),
            ("close header.x-tenant=acme", true),
            ("close header.x-tenant", true),
            ("close header.x-tenant=other", false),
            ("close load=9", true),
            ("close load=10", false),
            ("close at=5s", true),
            ("close at=6s", false),
            ("close at=2s for=3s", false),
            ("close at=2s for=3001ms", true),
            ("close path=/v1/*", true),
            ("close path=/v1/models", false),
            ("close model=m-large key=sk-2", false),
            ("p=0 close", false),
            ("p=100% close", true),
        ] {
            let rules = parse(text).unwrap();
            let decision = decide(&rules, 0, &mut Tallies::default(), &asked(1, &tenant));
            assert_eq!(decision.before.is_some(), hits, "{text}");
        }
    }

    #[test]
    fn without_a_path_only_routes_that_generate_are_hit() {
        let rules = parse("close").unwrap();
        let asked = Asked { path: "/health", generates: false, ..asked(1, &nothing) };
        assert!(decide(&rules, 0, &mut Tallies::default(), &asked).is_empty());
    }

    #[test]
    fn the_first_k_are_those_of_each_request() {
        // Two clients with requests 1 and 2, however their attempts interleave.
        assert_eq!(hit("close first=2", [1, 2, 2, 2, 1, 1].into_iter()), [1, 2, 2, 1]);
        assert_eq!(hit("close first=2 per=rule", [1, 2, 2, 2, 1, 1].into_iter()), [1, 2]);
    }

    #[test]
    fn every_nth_counts_arrivals() {
        assert_eq!(hit("close every=3", 1..=10), [3, 6, 9]);
        assert_eq!(hit("close every=2 per=request", [1, 2, 1, 1, 2, 1].into_iter()), [1, 2, 1]);
    }

    #[test]
    fn a_draw_depends_on_the_request_and_on_nothing_that_came_between() {
        // The same 500 requests, each of them twice, in two orders.
        let mut forth = hit("close p=0.2", (0..500).chain(0..500));
        let mut back = hit("close p=0.2", (0..500).rev().flat_map(|content| [content; 2]));
        forth.sort_unstable();
        back.sort_unstable();
        assert_eq!(forth, back);
        // Of 1,000 draws at 0.2: 200 ± 4 standard deviations of 12.6.
        assert!((150..=250).contains(&forth.len()), "{}", forth.len());
    }

    #[test]
    fn however_many_rules_draw_a_request_is_remembered_once() {
        let rules = parse(&"close p=0.001; ".repeat(30)).unwrap();
        let mut tallies = Tallies::default();
        for content in (0..1_000).chain(0..1_000) {
            decide(&rules, 7, &mut tallies, &asked(content, &nothing));
        }
        assert_eq!((tallies.contents.len(), tallies.requests.len()), (1_000, 0));
        assert_eq!(tallies.contents[&5], 2);
    }

    #[test]
    fn at_each_stage_the_first_rule_counts() {
        let rules = parse("stall=1s; status=500 p=0; status=503; status=502; stop=1").unwrap();
        let decision = decide(&rules, 0, &mut Tallies::default(), &asked(1, &nothing));
        assert_eq!(decision.before.map(|rule| rule.text.as_str()), Some("status=503"));
        assert_eq!(decision.stream.map(|rule| rule.text.as_str()), Some("stall=1s"));
    }

    #[test]
    fn a_body_is_hit_by_what_has_a_meaning_for_it_and_by_rules_that_do_not_want_a_stream() {
        let body = Asked { is_stream: false, ..asked(1, &nothing) };
        let hit = |text: &str, asked: &Asked<'_>| {
            let rules = parse(text).unwrap();
            let decision = decide(&rules, 0, &mut Tallies::default(), asked);
            decision.stream.or(decision.before).map(|rule| rule.text.clone())
        };
        let events = "drop; duplicate; no_done; no_finish";
        assert_eq!(hit(events, &body), None);
        assert_eq!(hit(&format!("{events}; stall=1s"), &body).as_deref(), Some("stall=1s"));
        for (text, in_stream, in_body) in [
            ("stop=3", true, true),
            ("stop=3 stream=true", true, false),
            ("status=500 stream=false", false, true),
        ] {
            assert_eq!(hit(text, &asked(1, &nothing)).is_some(), in_stream, "{text}");
            assert_eq!(hit(text, &body).is_some(), in_body, "{text}");
        }
    }

    #[test]
    fn a_server_is_not_ready_while_it_starts_or_drains() {
        let rules = parse("starting for=10s; draining at=60s for=5s; starting model=m").unwrap();
        let at = |seconds: u64| is_ready(&rules, SimTime::ZERO + SimSpan::from_ms(seconds * 1_000));
        assert_eq!(at(0), Err(Unready::Starting));
        assert_eq!(at(10), Ok(()));
        assert_eq!(at(64), Err(Unready::Draining));
        assert_eq!(at(65), Ok(()));
        // Some requests are told so; a probe is not.
        for words in ["starting p=0.5", "draining first=2", "starting key=sk-1", "starting load=9"]
        {
            let rules = parse(words).unwrap();
            assert_eq!(is_ready(&rules, SimTime::ZERO), Ok(()), "{words}");
        }
    }
}
