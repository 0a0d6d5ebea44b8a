//! What deciding an answer costs: matching, tokenising, hashing and rendering of short and long
//! messages. All of it runs before a request reaches its simulated GPU, on a thread that also sends
//! other streams' tokens, so it is lag for them.
//!
//! Predicted before the first run (3 GHz, one core): the automaton takes one dependent table
//! look-up a byte, 6 cycles, so 2.1 ms for 1 MiB, and folding case adds 0.15 ms; a message of 40
//! bytes costs mostly five small allocations, 0.4 us. A piece of text is 5 bytes and costs 12 ns to
//! cut (400 MB/s) and 8 ns more to hash (250 MB/s).

use std::hint::black_box;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::text::matcher::Matcher;
use llmsim_engine::text::prompt::{ChainSpec, Message, PromptReader};
use llmsim_engine::text::responses::{Answer, Operator, Query, Responses, Rule, RuleSet, When};
use llmsim_engine::text::script::PieceTable;
use llmsim_engine::text::synthetic::Filler;
use llmsim_engine::text::tokenizer;
use llmsim_engine::units::Tokens;

use crate::sys;

/// `llmsim-perf matching`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Entries of `responses.yml`.
    #[arg(long, default_value_t = 1000)]
    entries: usize,
    /// Message sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [40, 1 << 10, 64 << 10, 1 << 20])]
    sizes: Vec<usize>,
    /// How long each figure is measured, in milliseconds; the table shows the median run, in CPU time
    /// of the thread, so that others on the machine disturb it less.
    #[arg(long, default_value_t = 300)]
    measure_ms: u64,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let rules = rules(args.entries);
    let start = sys::thread_cpu_ns();
    let (matcher, problems) = Matcher::compile(&rules);
    let compiled_ns = sys::thread_cpu_ns() - start;
    assert!(problems.is_empty(), "our own rules compile: {problems:?}");
    println!("{} entries compiled in {:.1} ms", rules.len(), compiled_ns as f64 / 1e6);

    let echo = Answer::Content("{last_user_message}".to_owned());
    let echo = Responses::compile(RuleSet { seed: 0, rules: Vec::new(), default: echo })
        .unwrap_or_else(|problems| panic!("our own answer compiles: {problems:?}"));
    Bench::heading();
    for &size in &args.sizes {
        let bench = Bench { size, time: Duration::from_millis(args.measure_ms) };
        measure(&bench, &matcher, &echo, rules.len());
    }
    ExitCode::SUCCESS
}

fn measure(bench: &Bench, matcher: &Matcher, echo: &Responses, entries: usize) {
    let message = message(bench.size);
    let input = message.trim();
    assert!(matcher.find(input).is_none(), "the message matches nothing");
    bench.row("match, no entry", || matcher.find(black_box(input)).is_some());

    let last = (0..entries).rev().find(|entry| entry % 4 == 1).unwrap_or(0);
    let mut hit = message.clone();
    let end = format!(" who wrote the {}", title(last));
    hit.replace_range(hit.len().saturating_sub(end.len()).., &end);
    assert_eq!(matcher.find(&hit).map(|hit| hit.rule), Some(last));
    bench.row("match, last regex at the end", || matcher.find(black_box(&hit)).is_some());

    // A pattern with a Unicode `\b` cannot be run by a DFA over other than ASCII.
    for (what, word) in [("the same, with dashes", " – "), ("the same, with umlauts", " öf ")] {
        let hit = hit.replace(" of ", word);
        bench.row(what, || matcher.find(black_box(&hit)).is_some());
    }

    bench.row("count tokens", || tokenizer::count(black_box(input)));
    let block_size = NonZeroU32::new(16).expect("not zero");
    bench.row("count and hash blocks of 16", || {
        let messages = [Message { role: "user", content: black_box(input) }];
        let reader = PromptReader::new(messages, Some(ChainSpec { block_size, salt: None }));
        reader.finish().into_chain().map(|chain| chain.into_keys())
    });
    bench.row("cut and escape", || PieceTable::new(black_box(input).to_owned()));
    bench.row("echo: render, cut, escape", || {
        echo.answer(&Query { input: black_box(input), model: "m", ..Query::default() })
    });
    let filler = Filler::new(Seed::new(1), Tokens::new(bench.size as u32 / 6));
    bench.row("filler, 6 bytes a piece", || {
        (0..filler.len().get()).map(|k| filler.escaped(k).len()).sum::<usize>()
    });
}

/// One line of a table of costs: what something takes for so many bytes.
pub(crate) struct Bench {
    pub(crate) size: usize,
    pub(crate) time: Duration,
}

impl Bench {
    /// The heading of [`Self::row`]'s columns.
    pub(crate) fn heading() {
        println!("{:<38} {:>9} {:>12} {:>9} {:>9}", "what", "bytes", "CPU us", "ns/byte", "MB/s");
    }

    pub(crate) fn row<T>(&self, what: &str, mut run: impl FnMut() -> T) {
        // Batches of at least 50 us, so that reading the clock does not count.
        let once = sys::thread_cpu_ns();
        black_box(run());
        let batch = 50_000 / (sys::thread_cpu_ns() - once).max(1) + 1;
        let mut times = Vec::new();
        let end = Instant::now() + self.time;
        while times.len() < 5 || Instant::now() < end {
            let start = sys::thread_cpu_ns();
            for _ in 0..batch {
                black_box(run());
            }
            times.push((sys::thread_cpu_ns() - start) / batch);
        }
        times.sort_unstable();
        let median_ns = times[times.len() / 2] as f64;
        let size = self.size as f64;
        println!(
            "{what:<38} {:>9} {:>12.2} {:>9.2} {:>9.0}",
            self.size,
            median_ns / 1e3,
            median_ns / size,
            size / median_ns * 1e3
        );
    }
}

/// Rules like those of a large scripted conversation: three in four are patterns or phrases that
/// must be searched for.
fn rules(count: usize) -> Vec<Rule> {
    let rule = |entry: usize| {
        let title = title(entry);
        let operator = match entry % 4 {
            0 => Operator::Contains(vec![format!("about the {title}")]),
            1 => Operator::Regex(vec![format!(r"\b(?:who|when)\b.*\b{title}\b")]),
            2 => Operator::Regex(vec![format!(r"{title} by (?P<author>\w+)")]),
            _ => Operator::Exact(vec![title.clone(), format!("the {title}")]),
        };
        Rule {
            id: title,
            operator,
            when: When::default(),
            answer: Answer::Content("yes".to_owned()),
        }
    };
    (0..count).map(rule).collect()
}

/// Titles share their words, as titles do.
fn title(entry: usize) -> String {
    let (number, rest) = (entry / 1024, entry % 1024);
    let suffix = if number == 0 { String::new() } else { format!(" part {number}") };
    format!("{} {}{suffix}", ADJECTIVES[rest / 32], NOUNS[rest % 32])
}

/// Prose of `size` bytes, in which single words of titles occur but no title does.
fn message(size: usize) -> String {
    let mut random: Generator = Seed::new(5).generator();
    let mut text = String::new();
    while text.len() < size {
        let words: &[&str] = match random.below(20) {
            0 => &NOUNS,
            _ => &COMMON,
        };
        text.push_str(words[random.below(words.len() as u64) as usize]);
        text.push_str([" ", " ", " ", " ", " ", ", ", ". ", ".\n"][random.below(8) as usize]);
    }
    text.truncate(size);
    text
}

const ADJECTIVES: [&str; 32] = [
    "silent",
    "crimson",
    "hollow",
    "gilded",
    "restless",
    "ancient",
    "burning",
    "frozen",
    "wandering",
    "broken",
    "scarlet",
    "forgotten",
    "hidden",
    "bitter",
    "golden",
    "hungry",
    "iron",
    "jealous",
    "lonely",
    "mighty",
    "narrow",
    "obscure",
    "painted",
    "quiet",
    "ragged",
    "savage",
    "twisted",
    "unseen",
    "velvet",
    "weary",
    "yellow",
    "zealous",
];

const NOUNS: [&str; 32] = [
    "harbour",
    "garden",
    "mirror",
    "throne",
    "whale",
    "letter",
    "island",
    "forest",
    "orchard",
    "castle",
    "shadow",
    "voyage",
    "sailor",
    "widow",
    "captain",
    "river",
    "window",
    "monk",
    "prince",
    "lantern",
    "cathedral",
    "desert",
    "valley",
    "merchant",
    "soldier",
    "painter",
    "clock",
    "raven",
    "stranger",
    "village",
    "winter",
    "tempest",
];

const COMMON: [&str; 64] = [
    "the", "of", "and", "to", "a", "in", "is", "that", "it", "was", "for", "on", "are", "as",
    "with", "his", "they", "at", "be", "this", "from", "have", "or", "by", "one", "had", "not",
    "but", "what", "all", "were", "when", "we", "there", "can", "an", "your", "which", "their",
    "said", "if", "do", "will", "each", "about", "how", "up", "out", "them", "then", "she", "many",
    "some", "so", "these", "would", "other", "into", "has", "more", "two", "like", "him", "time",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The measurement itself, tiny: its own checks of what matches are the test.
    #[test]
    fn the_measured_rules_and_messages_fit_together() {
        let args = Args { entries: 1000, sizes: vec![40, 4096], measure_ms: 0 };
        assert_eq!(run(&args), ExitCode::SUCCESS);
    }
}
