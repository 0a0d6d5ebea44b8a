//! What vLLM's fields ask to be told of tokens: their ids, the scores of a prompt, and several of
//! them in one frame of a stream.
//!
//! Not the frames: those are each surface's. The invariant: which tokens a frame has follows from
//! their numbers alone, so that a unit of a stream is the same bytes whenever it is rendered.

use std::ops::Range;

use llmsim_engine::text::logprobs;
use llmsim_engine::text::model_tokenizer::Tokenizer;
use llmsim_engine::text::token_ids;
use llmsim_engine::units::Tokens;
use llmsim_engine::wire::chat::TokenFields;
use llmsim_engine::wire::token_ids::{push_ids, push_ranked};

use super::answer::ID_BYTES;

/// What an answer tells of tokens beside their text.
#[derive(Debug)]
pub(super) struct Telling {
    /// Tokens in a frame; at least 1.
    interval: u32,
    /// Their ids.
    pub(super) ids: bool,
    /// For each token of the prompt, how many of the likeliest are told.
    ranks: Option<u32>,
    /// If anything is told of it, each prompt.
    prompts: Box<[PromptTokens]>,
}

/// A prompt's tokens.
#[derive(Debug)]
pub(super) struct PromptTokens {
    ids: Box<[u32]>,
    /// Their texts; only if they are scored.
    texts: Box<[Box<str>]>,
}

impl PromptTokens {
    /// Those with these ids and texts; the texts are kept if `fields` ask for scores.
    pub(super) fn new<T: AsRef<str>>(fields: &TokenFields, ids: Vec<u32>, texts: &[T]) -> Self {
        let texts = fields.prompt_logprobs.map(|_| texts.iter().map(|text| text.as_ref().into()));
        Self { ids: ids.into(), texts: texts.into_iter().flatten().collect() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Those whose texts were kept.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (u32, &str)> + Clone {
        self.ids.iter().copied().zip(self.texts.iter().map(AsRef::as_ref))
    }
}

impl Telling {
    /// What `fields` ask for; `prompt` gives the tokens of a prompt by its number, of `prompts`.
    pub(super) fn new(
        fields: &TokenFields,
        prompts: usize,
        prompt: impl FnMut(usize) -> PromptTokens,
    ) -> Self {
        let shows_prompt = fields.ids || fields.prompt_logprobs.is_some();
        Self {
            interval: fields.interval,
            ids: fields.ids,
            // vLLM tells the token itself, whatever is asked.
            ranks: fields.prompt_logprobs.map(|count| count.max(1)),
            prompts: (0..if shows_prompt { prompts } else { 0 }).map(prompt).collect(),
        }
    }

    /// Whether a stream is as without any of it.
    pub(super) fn is_plain(&self) -> bool {
        self.interval == 1 && !self.ids
    }

    /// The tokens that go out with token `k`: the first goes alone, as vLLM sends it.
    pub(super) fn due(&self, k: u32) -> Option<Range<u32>> {
        match self.interval {
            1 => Some(k..k + 1),
            interval if k.is_multiple_of(interval) => Some(last_of(k, interval)),
            _ => None,
        }
    }

    /// The tokens that no frame had, of so many.
    pub(super) fn left(&self, released: Tokens) -> Range<u32> {
        let released = released.get();
        let sent = released.saturating_sub(1) / self.interval * self.interval + 1;
        sent.min(released)..released
    }

    /// Appends the member with a prompt's ids, if they are told.
    pub(super) fn prompt_ids(&self, prompt: usize, out: &mut Vec<u8>) {
        if self.ids {
            let ids = &self.prompts[prompt].ids;
            push_ids(b",\"prompt_token_ids\":", ids.iter().copied(), out);
        }
    }

    /// Appends the member with a prompt's scores, if they are told: null for the first token, since
    /// nothing stands before it that could make it likely.
    pub(super) fn prompt_scores(&self, prompt: usize, tokenizer: &Tokenizer, out: &mut Vec<u8>) {
        let Some(ranks) = self.ranks else { return };
        out.extend_from_slice(b",\"prompt_logprobs\":[");
        for (at, (id, text)) in self.prompts[prompt].tokens().enumerate() {
            if at == 0 {
                out.extend_from_slice(b"null");
                continue;
            }
            out.push(b',');
            let ranked = logprobs::likeliest(text, ranks).enumerate();
            let ranked = ranked.map(|(rank, (other, logprob))| match rank {
                0 => (id, other, logprob),
                _ => (id_of(tokenizer, other), other, logprob),
            });
            push_ranked(ranked, out);
        }
        out.push(b']');
    }

    /// About how many bytes it adds to a body of `released` tokens that tells of each prompt so many
    /// times.
    pub(super) fn bytes(&self, released: u64, times: u64) -> u64 {
        // A rank's id, score, place and text in `prompt_logprobs`, measured as `ID_BYTES` was.
        const RANK_BYTES: u64 = 68;
        let of_prompts: u64 = self.prompts.iter().map(|prompt| prompt.len() as u64).sum();
        let ids = if self.ids { (released + of_prompts * times) * ID_BYTES } else { 0 };
        ids + self.scored() * times * u64::from(self.ranks.unwrap_or(0)) * RANK_BYTES
    }

    /// What the scores of prompts take, in tokens that are scored.
    pub(super) fn scored(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.texts.len() as u64).sum()
    }
}

/// Of every `interval` tokens behind the first, those up to `k`.
fn last_of(k: u32, interval: u32) -> Range<u32> {
    (k + 1).saturating_sub(interval)..k + 1
}

/// The id of a text that is one token, or of the first that it has.
pub(super) fn id_of(tokenizer: &Tokenizer, text: &str) -> u32 {
    match tokenizer {
        Tokenizer::Regex => token_ids::id(text),
        Tokenizer::Model(model) => model.ids(text).first().copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(interval: u32) -> Telling {
        let fields = TokenFields { interval, ..TokenFields::NONE };
        Telling::new(&fields, 1, |_| unreachable!("nothing is told of the prompt"))
    }

    #[test]
    fn a_frame_has_the_first_token_or_as_many_as_asked_or_what_is_left() {
        // vLLM's output processor: finished, first, or `stream_interval` since the last.
        let frames = |interval, tokens| -> Vec<Range<u32>> {
            let telling = every(interval);
            let due = (0..tokens).filter_map(|k| telling.due(k));
            due.chain(Some(telling.left(Tokens::new(tokens)))).filter(|it| !it.is_empty()).collect()
        };
        assert_eq!(frames(1, 3), [0..1, 1..2, 2..3]);
        assert_eq!(frames(3, 8), [0..1, 1..4, 4..7, 7..8]);
        assert_eq!(frames(3, 7), [0..1, 1..4, 4..7]);
        assert_eq!(frames(100, 5), [0..1, 1..5]);
        assert_eq!(frames(u32::MAX, 1).first(), Some(&(0..1)));
        assert_eq!(frames(2, 0), [] as [Range<u32>; 0]);
    }
}
