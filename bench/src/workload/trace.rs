//! Recorded workloads: arrival times, lengths and shared prefixes, without the texts.
//!
//! Mooncake JSONL (timestamps in ms, `hash_ids` of 512-token blocks), Azure LLM inference CSV,
//! BurstGPT CSV. Texts are made up so that two requests share exactly the prefix that their
//! `hash_ids` share.

use std::collections::HashMap;
use std::fmt::Write as _;

use llmsim_engine::seed::{Generator, Seed};
use llmsim_engine::units::SimSpan;
use serde::Deserialize;

use super::request::Api;

/// Tokens that one of Mooncake's `hash_ids` stands for.
pub const MOONCAKE_BLOCK: u32 = 512;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Arrival, from the start of the trace.
    pub at: SimSpan,
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens.
    pub output: u32,
    /// Blocks of [`MOONCAKE_BLOCK`] tokens; equal ids are equal blocks. Empty: shares nothing.
    pub blocks: Vec<u64>,
    /// Prompt tokens that a prefix cache without limit can hold from earlier requests, in whole
    /// blocks of [`CACHE_BLOCK`]; `None` if the trace has no blocks.
    pub expected_cached: Option<u32>,
}

/// Tokens of one block of a server's cache: vLLM's default, and ours.
const CACHE_BLOCK: u32 = 16;

/// A trace as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Its requests by arrival; the first arrives at zero.
    pub rows: Vec<Row>,
    /// Rows that ask nothing or were not answered when the trace was recorded.
    pub left_out: u32,
}

impl Row {
    /// A text of as many tokens as the row says, less those that the endpoint adds.
    pub fn text(&self, api: Api, salt: Seed, index: u32) -> String {
        let mut left = self.content(api);
        let mut text = String::with_capacity(left as usize * 6);
        for (id, tokens) in self.parts(api) {
            push_words(salt.with(&id.to_le_bytes()), tokens, &mut text);
            left -= tokens;
        }
        push_words(salt.with(b"own").with(&index.to_le_bytes()), left, &mut text);
        text
    }

    /// Tokens of the text.
    fn content(&self, api: Api) -> u32 {
        self.input.saturating_sub(api.overhead().get()).max(1)
    }

    /// The blocks of the text and the tokens of each; the last may be a part of one, which is then
    /// its beginning.
    fn parts(&self, api: Api) -> impl Iterator<Item = (u64, u32)> + '_ {
        let mut left = self.content(api);
        self.blocks.iter().map_while(move |&id| {
            let tokens = left.min(MOONCAKE_BLOCK);
            left -= tokens;
            (tokens > 0).then_some((id, tokens))
        })
    }
}

/// Appends `count` words of one token each (a space and letters).
fn push_words(seed: Seed, count: u32, text: &mut String) {
    const ONSETS: &[u8] = b"bcdfghklmnprstvz";
    const VOWELS: &[u8] = b"aeiouaei";
    let mut random: Generator = seed.generator();
    for _ in 0..count {
        let mut bits = random.next_u64();
        text.push(' ');
        for _ in 0..2 + bits % 2 {
            text.push(char::from(ONSETS[(bits >> 8) as usize % ONSETS.len()]));
            text.push(char::from(VOWELS[(bits >> 16) as usize % VOWELS.len()]));
            bits >>= 12;
        }
    }
}

/// Reads a trace for requests to `api`, telling its kind by its content unless `kind` is given.
///
/// # Errors
/// A sentence that names the line.
pub fn read(text: &str, kind: Option<Kind>, api: Api) -> Result<Trace, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let header = text.lines().next().unwrap_or_default();
    let kind = match kind {
        Some(kind) => kind,
        None if header.trim_start().starts_with('{') => Kind::Mooncake,
        None if header.contains("ContextTokens") => Kind::Azure,
        None if header.contains("Request tokens") => Kind::BurstGpt,
        None => {
            return Err(format!(
                "no known trace: its first line is neither JSON nor a header of Azure \
                 (TIMESTAMP,ContextTokens,GeneratedTokens) or BurstGPT \
                 (Timestamp,Model,Request tokens,...): {}",
                header.chars().take(80).collect::<String>()
            ));
        }
    };
    let mut rows = match kind {
        Kind::Mooncake => mooncake(text)?,
        Kind::Azure => azure(text)?,
        Kind::BurstGpt => burstgpt(text)?,
    };
    let all = rows.len();
    rows.retain(|row| row.output > 0 && row.input > 0);
    let left_out = u32::try_from(all - rows.len()).unwrap_or(u32::MAX);
    if rows.is_empty() {
        return Err("no requests with an answer in it".into());
    }
    rows.sort_by_key(|row| row.at);
    let start = rows[0].at;
    for row in &mut rows {
        row.at -= start;
    }
    expect_reuse(&mut rows, api);
    Ok(Trace { rows, left_out })
}

/// Kinds of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Mooncake JSONL.
    Mooncake,
    /// Azure LLM inference CSV.
    Azure,
    /// BurstGPT CSV.
    BurstGpt,
}

/// Plays the trace `factor` times faster.
pub fn scale(rows: &mut [Row], factor: f64) {
    for row in rows {
        row.at = SimSpan::from_secs_f64(row.at.as_secs_f64() / factor);
    }
}

/// Spreads requests that share one timestamp evenly at random up to the next timestamp (Mooncake's
/// public traces are quantised to 3 s, which would replay as bursts).
pub fn spread_ties(rows: &mut [Row], seed: Seed) {
    let mut random = seed.with(b"jitter").generator();
    let mut start = 0;
    while start < rows.len() {
        let at = rows[start].at;
        let end = start + rows[start..].iter().take_while(|row| row.at == at).count();
        if let Some(next) = rows.get(end) {
            let width = (next.at - at).as_ns();
            for row in &mut rows[start..end] {
                row.at = at + SimSpan::from_ns(random.below(width.max(1)));
            }
        }
        start = end;
    }
    rows.sort_by_key(|row| row.at);
}

fn expect_reuse(rows: &mut [Row], api: Api) {
    // The most tokens of each block that a request has carried so far.
    let mut seen: HashMap<u64, u32> = HashMap::new();
    for row in rows.iter_mut().filter(|row| !row.blocks.is_empty()) {
        let mut shared = 0;
        for (id, tokens) in row.parts(api) {
            let known = seen.get(&id).map_or(0, |&known| known.min(tokens));
            shared += known;
            if known < tokens {
                break;
            }
        }
        let with_head = if shared > 0 { shared + api.before_prompt().get() } else { 0 };
        // The last token of a prompt is always computed: its answer begins there.
        let most = with_head.min(row.input.saturating_sub(1));
        row.expected_cached = Some(most / CACHE_BLOCK * CACHE_BLOCK);
        for (id, tokens) in row.parts(api) {
            let known = seen.entry(id).or_default();
            *known = tokens.max(*known);
        }
    }
}

fn mooncake(text: &str) -> Result<Vec<Row>, String> {
    #[derive(Deserialize)]
    struct Line {
        timestamp: f64,
        input_length: u32,
        output_length: u32,
        #[serde(default)]
        hash_ids: Vec<u64>,
    }
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: Line = sonic_rs::from_str(line).map_err(|error| {
            let mut why = format!("line {}: ", number + 1);
            let _ = write!(why, "{}", error.to_string().lines().next().unwrap_or_default());
            why
        })?;
        if !(line.timestamp.is_finite() && line.timestamp >= 0.0) {
            return Err(format!("line {}: timestamp {}", number + 1, line.timestamp));
        }
        rows.push(Row {
            at: SimSpan::from_secs_f64(line.timestamp / 1000.0),
            input: line.input_length,
            output: line.output_length,
            blocks: line.hash_ids,
            expected_cached: None,
        });
    }
    Ok(rows)
}

/// A CSV by its column names; none of these files quotes fields.
struct Columns<'a> {
    names: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(header: &'a str) -> Self {
        Self { names: header.split(',').map(str::trim).collect() }
    }

    fn place(&self, name: &str) -> Result<usize, String> {
        self.names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("line 1: no column '{name}'"))
    }
}

fn rows_of(
    text: &str,
    columns: [&str; 3],
    instant: impl Fn(&str) -> Option<SimSpan>,
) -> Result<Vec<Row>, String> {
    let mut lines = text.lines().enumerate();
    let header = Columns::of(lines.next().map(|(_, line)| line).unwrap_or_default());
    let [at, input, output] = columns.map(|name| header.place(name));
    let (at, input, output) = (at?, input?, output?);
    let mut rows = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        let wrong = |what: &str, place: usize| {
            format!("line {}: '{}' is not {what}", number + 1, field(place))
        };
        let tokens = |place: usize| {
            field(place).parse::<u32>().map_err(|_| wrong("a number of tokens", place))
        };
        rows.push(Row {
            at: instant(field(at)).ok_or_else(|| wrong("a time", at))?,
            input: tokens(input)?,
            output: tokens(output)?,
            blocks: Vec::new(),
            expected_cached: None,
        });
    }
    Ok(rows)
}

fn azure(text: &str) -> Result<Vec<Row>, String> {
    rows_of(text, ["TIMESTAMP", "ContextTokens", "GeneratedTokens"], since_1970)
}

fn burstgpt(text: &str) -> Result<Vec<Row>, String> {
    rows_of(text, ["Timestamp", "Request tokens", "Response tokens"], |field| {
        let seconds = field.parse::<f64>().ok().filter(|s| s.is_finite() && *s >= 0.0)?;
        Some(SimSpan::from_secs_f64(seconds))
    })
}

/// `2023-11-16 18:15:46.6805900` (any number of digits, `T` and `Z` allowed). In whole nanoseconds:
/// seconds since 1970 with seven digits do not fit into a float.
fn since_1970(text: &str) -> Option<SimSpan> {
    let text = text.trim_end_matches('Z');
    let text = text.split_once('+').map_or(text, |(before, _)| before);
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.split('-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, digits) = time.split_once('.').unwrap_or((time, "0"));
    let mut clock = clock.split(':').map(str::parse::<i64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    let in_range = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    if !in_range || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ns: i64 = format!("{digits:0<9}").get(..9)?.parse().ok()?;
    // Days from civil (Hinnant).
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let total = seconds.checked_mul(1_000_000_000)?.checked_add(ns)?;
    u64::try_from(total).ok().map(SimSpan::from_ns)
}

#[cfg(test)]
mod tests {
    use llmsim_engine::text::prompt::{Message, count};

    use super::*;

    const MOONCAKE: &str = concat!(
        "{\"timestamp\": 27482, \"input_length\": 1100, \"output_length\": 52, \"hash_ids\": [46, 47, 48]}\n",
        "{\"timestamp\": 30535, \"input_length\": 1300, \"output_length\": 26, \"hash_ids\": [46, 47, 99]}\n",
        "{\"timestamp\": 30535, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [46, 50]}\n",
    );

    #[test]
    fn mooncake_rows_share_what_their_hashes_share() {
        let rows = rows(MOONCAKE);
        assert_eq!(rows[1].at, SimSpan::from_ms(3053));
        assert_eq!(
            rows.iter().map(|row| row.expected_cached).collect::<Vec<_>>(),
            [Some(0), Some(1024), Some(512)]
        );
        let salt = Seed::new(1);
        let texts: Vec<String> =
            (0..).zip(&rows).map(|(i, row)| row.text(Api::Chat, salt, i)).collect();
        let shared = |a: &str, b: &str| {
            let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
            llmsim_engine::text::tokenizer::count(&a[..same]).get()
        };
        assert!((1024..1030).contains(&shared(&texts[0], &texts[1])));
        assert!((512..518).contains(&shared(&texts[0], &texts[2])));
        for (text, row) in texts.iter().zip(&rows) {
            assert_eq!(count([Message { role: "user", content: text }]).get(), row.input);
        }
    }

    fn rows(text: &str) -> Vec<Row> {
        read(text, None, Api::Chat).expect("valid").rows
    }

    /// A chat prompt has 3 tokens before its text and 4 after it, so 1,100 tokens are two blocks of
    /// text and 69 tokens of a third. Blocks of the cache have 16 tokens.
    #[test]
    fn a_block_that_comes_back_in_part_is_expected_in_part() {
        let line = |input: u32, ids: &str| {
            format!(
                "{{\"timestamp\":0,\"input_length\":{input},\"output_length\":1,\"hash_ids\":{ids}}}\n"
            )
        };
        let text = [
            line(1100, "[1,2,3]"),
            // The same again: 3 + 1093 tokens, which is 68 blocks and a half.
            line(1100, "[1,2,3]"),
            // A longer one: 69 tokens of block 3 are known, the other 443 are not.
            line(1600, "[1,2,3,4]"),
            // A shorter one: 40 of them are asked for.
            line(1071, "[1,2,3]"),
            line(1100, "[9]"),
        ]
        .concat();
        let expected: Vec<_> = rows(&text).iter().map(|row| row.expected_cached).collect();
        assert_eq!(expected, [Some(0), Some(1088), Some(1088), Some(1056), Some(0)]);
        // A legacy prompt has no tokens around its text: 1,100 are 76 of the third block.
        let legacy = read(&text, None, Api::Completions).expect("valid").rows;
        assert_eq!(legacy[2].expected_cached, Some(1088));
        assert_eq!(legacy[3].expected_cached, Some(1056));
        let text = legacy[0].text(Api::Completions, Seed::new(1), 0);
        assert_eq!(llmsim_engine::text::tokenizer::count(&text).get(), 1100);
    }

    #[test]
    fn the_last_digit_of_azures_times_counts() {
        let apart = |first: &str, second: &str| {
            let text = format!(
                "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                 2023-11-16 18:17:03.{first},5,5\n2023-11-16 18:17:03.{second},5,5\n"
            );
            rows(&text)[1].at.as_ns()
        };
        assert_eq!(apart("0520000", "0520001"), 100);
        assert_eq!(apart("9", "95"), 50_000_000);
    }

    #[test]
    fn azure_times_have_seven_digits_and_lines_end_as_they_like() {
        let rows = rows(
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
             2023-11-16 18:17:03.9799600,4808,10\r\n2024-05-10T18:17:04Z,110,27",
        );
        assert_eq!((rows[0].input, rows[0].output), (4808, 10));
        // 176 days and 0.02004 s later.
        assert_eq!(rows[1].at.as_ns(), 176 * 86_400 * 1_000_000_000 + 20_040_000);
    }

    #[test]
    fn burstgpt_columns_are_found_by_name_and_failures_left_out_but_counted() {
        let six = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                   5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,0,1087,API log\n";
        let eight = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                     5,s,1.0,GPT-4,472,18,490,API log\n6,s,1.0,GPT-4,3,4,7,API log\n";
        let six = read(six, None, Api::Chat).expect("valid");
        assert_eq!((six.rows.len(), six.left_out), (1, 1));
        let rows = rows(eight);
        assert_eq!((rows[1].at, rows[1].input), (SimSpan::from_ms(1000), 3));
    }

    #[test]
    fn ties_are_spread_up_to_the_next_tick_and_time_is_scaled() {
        let line = |ms: u32| {
            format!(
                "{{\"timestamp\":{ms},\"input_length\":9,\"output_length\":1,\"hash_ids\":[1]}}\n"
            )
        };
        let text: String = [0, 0, 0, 3000, 3000, 6000].map(line).concat();
        let mut rows = rows(&text);
        spread_ties(&mut rows, Seed::new(4));
        let at: Vec<u64> = rows.iter().map(|row| row.at.as_ns() / 1_000_000).collect();
        assert!(at[..3].iter().all(|&ms| ms < 3000), "{at:?}");
        assert!(at[3..5].iter().all(|&ms| (3000..6000).contains(&ms)), "{at:?}");
        assert_ne!(at[0], at[1]);
        scale(&mut rows, 2.0);
        assert_eq!(rows[5].at, SimSpan::from_ms(3000));
    }

    #[test]
    fn what_is_no_trace_is_said_with_what_one_looks_like() {
        for (text, part) in [
            ("a,b\n1,2", "no known trace"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2", "line 2: 'yesterday'"),
            ("TIMESTAMP,ContextTokens\n", "no column 'GeneratedTokens'"),
            ("{\"timestamp\":0}", "line 1"),
        ] {
            let problem = read(text, None, Api::Chat).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
