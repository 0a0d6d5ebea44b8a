//! What is asked: where prompts come from, and the bytes that are sent for each.
//!
//! Pure but for the reading of files at the start. The invariant: the request with a given number
//! is the same at every level of a sweep except for its nonce, and can be made on any thread in any
//! order.

pub mod dataset;
pub mod request;
pub mod trace;

use llmsim_engine::seed::Seed;
use llmsim_engine::text::synthetic;
use llmsim_engine::units::{SimSpan, Tokens};

use request::{Api, Content, Form};

use crate::target::http::Prepared;

/// Where prompts come from, and how they are dressed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The prompts.
    pub source: Source,
    /// How a request is written.
    pub form: Form,
    /// Put before every prompt.
    pub prefix: String,
    /// The most output tokens, where the source does not say.
    pub max_tokens: Option<u32>,
    /// Whether exactly that many tokens are asked for.
    pub ignore_eos: bool,
    /// Seed of prompts and lengths.
    pub seed: Seed,
    /// Makes prompts begin differently; `None` sends them as they are.
    pub nonce: Option<u64>,
}

/// A source of prompts.
#[derive(Clone, Debug)]
pub enum Source {
    /// A different text for each request, of exactly so many prompt tokens.
    Synthetic {
        /// Shortest and longest prompt in tokens.
        input: (u32, u32),
        /// Shortest and longest answer in tokens.
        output: (u32, u32),
    },
    /// The same text each time.
    Fixed(String),
    /// Prompts from a file, cycled.
    Items(Vec<Item>),
    /// Lengths and shared prefixes from a trace.
    Trace(trace::Trace),
}

/// A prompt from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// What is asked.
    pub content: Content,
    /// The most output tokens for it.
    pub max_tokens: Option<u32>,
}

/// Which request is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// The level of the sweep, from 0.
    pub level: u32,
    /// Whether it is measured.
    pub phase: Phase,
    /// Its number within level and phase.
    pub index: u32,
}

/// Warm-up prompts are not the measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Sent before the measurement.
    Warmup,
    /// Measured.
    Measured,
}

impl Workload {
    /// Requests that the source has of itself; `None` if it never ends.
    pub fn natural_count(&self) -> Option<u32> {
        match &self.source {
            Source::Trace(trace) => u32::try_from(trace.rows.len()).ok(),
            _ => None,
        }
    }

    /// Arrival instants of a trace.
    pub fn arrivals(&self) -> Option<Vec<SimSpan>> {
        match &self.source {
            Source::Trace(trace) => Some(trace.rows.iter().map(|row| row.at).collect()),
            _ => None,
        }
    }

    /// One line on what is sent, for the head of a report.
    pub fn describe(&self) -> String {
        let tokens = |limit: Option<u32>| {
            limit.map_or_else(|| "server's own length".to_owned(), |n| format!("{n} tokens"))
        };
        let range = |(low, high): (u32, u32)| {
            if low == high { low.to_string() } else { format!("{low}–{high}") }
        };
        match &self.source {
            Source::Synthetic { input, output } => {
                format!("synthetic {} input tokens → {} tokens", range(*input), range(*output))
            }
            Source::Fixed(_) => format!("one prompt → {}", tokens(self.max_tokens)),
            Source::Items(items) => {
                format!("dataset of {} prompts → {}", items.len(), tokens(self.max_tokens))
            }
            Source::Trace(trace) if trace.left_out > 0 => format!(
                "trace of {} requests ({} without tokens left out)",
                trace.rows.len(),
                trace.left_out
            ),
            Source::Trace(trace) => format!("trace of {} requests", trace.rows.len()),
        }
    }

    /// The bytes of a request.
    pub fn prepare(&self, number: Number) -> Prepared {
        let (content, max_tokens, expected_cached) = self.content(number);
        let nonce = match self.source {
            // These differ from their first token on by themselves, or are meant to be shared.
            Source::Synthetic { .. } | Source::Trace(_) => None,
            _ => self.nonce(number),
        };
        Prepared {
            bytes: self.form.write(&content, max_tokens, nonce),
            max_tokens,
            exact: self.ignore_eos,
            expected_cached,
        }
    }

    fn content(&self, number: Number) -> (Content, Option<u32>, Option<u32>) {
        let Number { phase, index, .. } = number;
        match &self.source {
            Source::Synthetic { input, output } => {
                let seed = self.request_seed(number);
                let lengths = self.seed.with(&index.to_le_bytes());
                let wanted = between(lengths.with(b"input"), *input);
                let text = synthetic_prompt(self.form.api, seed, wanted, &self.prefix)
                    .unwrap_or_else(|_| self.prefix.clone());
                (Content::Text(text), Some(between(lengths.with(b"output"), *output)), None)
            }
            Source::Fixed(text) => {
                (Content::Text(format!("{}{text}", self.prefix)), self.max_tokens, None)
            }
            Source::Items(items) => {
                // Warm-up takes from the far end, so that it does not fill the cache for the first.
                let at = match phase {
                    Phase::Measured => index as usize % items.len(),
                    Phase::Warmup => items.len() - 1 - index as usize % items.len(),
                };
                let item = &items[at];
                let content = item.content.prefixed(&self.prefix);
                (content, item.max_tokens.or(self.max_tokens), None)
            }
            Source::Trace(trace::Trace { rows, .. }) => {
                let row = &rows[index as usize % rows.len()];
                let salt = match phase {
                    Phase::Measured => self.nonce.unwrap_or(0),
                    Phase::Warmup => self.nonce.unwrap_or(0) ^ WARMUP_SALT,
                };
                // Levels differ, or the second would find the first's prompts in the cache.
                let salt = self.seed.with(&salt.to_le_bytes()).with(&number.level.to_le_bytes());
                let text = format!("{}{}", self.prefix, row.text(self.form.api, salt, index));
                let cached = (phase == Phase::Measured).then_some(row.expected_cached).flatten();
                (Content::Text(text), Some(row.output.max(1)), cached)
            }
        }
    }

    /// Without a nonce the seed depends on the request's number alone.
    fn request_seed(&self, number: Number) -> Seed {
        let seed = self.seed.with(&number.index.to_le_bytes()).with(match number.phase {
            Phase::Measured => b"measured",
            Phase::Warmup => b"warm-up ",
        });
        match self.nonce(number) {
            Some(nonce) => seed.with(&nonce.to_le_bytes()),
            None => seed,
        }
    }

    fn nonce(&self, number: Number) -> Option<u64> {
        let nonce = Seed::new(self.nonce?)
            .with(&number.level.to_le_bytes())
            .with(&number.index.to_le_bytes())
            .with(&[u8::from(number.phase == Phase::Warmup)]);
        Some(nonce.value())
    }
}

/// A text that makes a prompt of exactly so many tokens at this endpoint.
///
/// # Errors
/// If the prefix and what the endpoint adds are longer already.
pub fn synthetic_prompt(
    api: Api,
    seed: Seed,
    wanted: u32,
    prefix: &str,
) -> Result<String, synthetic::PromptTooShort> {
    // The generator counts a chat prompt; what a legacy one does not have is asked for in addition.
    let missing = Api::Chat.overhead().get() - api.overhead().get();
    synthetic::prompt(seed, Tokens::new(wanted.saturating_add(missing)), prefix)
}

const WARMUP_SALT: u64 = 0x7761_726D_2D75_7021;

fn between(seed: Seed, (low, high): (u32, u32)) -> u32 {
    let width = u64::from(high.saturating_sub(low)) + 1;
    low + u32::try_from(seed.below(width)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use llmsim_engine::text::prompt::{self, Message};

    use super::*;

    fn workload(source: Source, nonce: Option<u64>) -> Workload {
        Workload {
            source,
            form: Form::chat("m"),
            prefix: String::new(),
            max_tokens: Some(7),
            ignore_eos: false,
            seed: Seed::new(1),
            nonce,
        }
    }

    fn number(level: u32, phase: Phase, index: u32) -> Number {
        Number { level, phase, index }
    }

    fn body(prepared: &Prepared) -> String {
        let text = String::from_utf8(prepared.bytes.clone()).expect("text");
        text.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    #[test]
    fn a_synthetic_prompt_has_exactly_the_tokens_asked_for() {
        let source = Source::Synthetic { input: (40, 60), output: (5, 5) };
        let mut workload = workload(source, Some(9));
        workload.prefix = "[short] ".into();
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..200 {
            let (content, _, _) = workload.content(number(0, Phase::Measured, index));
            let Content::Text(text) = content else { panic!("a text") };
            let tokens = prompt::count([Message { role: "user", content: &text }]).get();
            assert!((40..=60).contains(&tokens), "{tokens}");
            assert!(text.starts_with("[short] "));
            seen.insert(tokens);
        }
        assert_eq!(seen.len(), 21, "every length occurs");
    }

    #[test]
    fn a_legacy_prompt_has_exactly_the_tokens_asked_for_too() {
        let mut workload = workload(Source::Synthetic { input: (40, 40), output: (5, 5) }, Some(9));
        workload.form.api = Api::Completions;
        let (content, _, _) = workload.content(number(0, Phase::Measured, 0));
        let Content::Text(text) = content else { panic!("a text") };
        assert_eq!(llmsim_engine::text::tokenizer::count(&text).get(), 40);
        let body = body(&workload.prepare(number(0, Phase::Measured, 0)));
        assert!(body.contains("\"prompt\":\"") && !body.contains("messages"), "{body}");
    }

    #[test]
    fn levels_and_warm_up_differ_by_the_nonce_and_repeat_without_it() {
        for source in
            [Source::Synthetic { input: (40, 40), output: (5, 5) }, Source::Fixed("Hello".into())]
        {
            let fresh = workload(source.clone(), Some(9));
            let one = fresh.prepare(number(0, Phase::Measured, 3)).bytes;
            assert_eq!(one, fresh.prepare(number(0, Phase::Measured, 3)).bytes);
            assert_ne!(one, fresh.prepare(number(1, Phase::Measured, 3)).bytes);
            assert_ne!(one, fresh.prepare(number(0, Phase::Measured, 4)).bytes);
            let reused = workload(source, None);
            assert_eq!(
                reused.prepare(number(0, Phase::Measured, 3)).bytes,
                reused.prepare(number(1, Phase::Measured, 3)).bytes
            );
        }
    }

    #[test]
    fn a_nonce_leaves_the_user_message_alone() {
        let prepared =
            workload(Source::Fixed("Hello".into()), Some(9)).prepare(number(0, Phase::Measured, 0));
        let body = body(&prepared);
        assert!(body.contains(r#"{"role":"user","content":"Hello"}"#), "{body}");
        assert!(body.contains(r#"{"role":"system","content":"#), "{body}");
        assert!(body.contains(r#""max_tokens":7"#), "{body}");
    }

    #[test]
    fn items_are_cycled_and_their_own_limit_wins() {
        let items = ["a", "b"].map(|text| Item {
            content: Content::Text(text.into()),
            max_tokens: (text == "b").then_some(3),
        });
        let workload = workload(Source::Items(items.to_vec()), None);
        let limits: Vec<_> = (0..4)
            .map(|index| workload.prepare(number(0, Phase::Measured, index)).max_tokens)
            .collect();
        assert_eq!(limits, [Some(7), Some(3), Some(7), Some(3)]);
    }
}
