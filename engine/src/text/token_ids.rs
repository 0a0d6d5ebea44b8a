//! Numbers for tokens, for clients that want them: `/tokenize` and `/detokenize`.
//!
//! Not a model's vocabulary: the `regex` tokenizer has none, its pieces are open-ended. A piece's
//! id is a hash of its text, so it is the same on every server and in every run; the way back needs
//! a memory of pieces seen. The one invariant: the ids that a memory has just given for a text of
//! at most [`REMEMBERED`] different pieces give the text back. Two pieces share an id once in two
//! billion pairs; then the one seen last is meant.

use std::collections::{BTreeMap, VecDeque};

use super::model_tokenizer::ModelTokenizer;
use super::prompt::{End, Message};
use super::tokenizer;
use crate::seed::Seed;

/// Pieces that a [`Vocabulary`] keeps: 65,536 of at most 16 bytes are some 5 MB. Beyond that the
/// oldest are forgotten.
pub const REMEMBERED: usize = 1 << 16;

/// The id of a piece: 31 bits, since clients keep ids in signed and unsigned 32-bit numbers.
pub fn id(piece: &str) -> u32 {
    (Seed::new(0).with(piece.as_bytes()).value() >> 33) as u32
}

/// The pieces of a chat as the model would see them, special tokens spelled out. As many as
/// a [`PromptReader`](super::prompt::PromptReader) with that end counts.
pub fn chat_pieces<'a>(messages: &[Message<'a>], end: End) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    for message in messages {
        pieces.extend(["<|im_start|>", message.role, "\n"]);
        pieces.extend(tokenizer::pieces(message.content));
        pieces.push("<|im_end|>");
    }
    match end {
        End::AnswerBegins => pieces.extend(["<|im_start|>", "assistant", "\n"]),
        End::Closed => {}
        End::Open => drop(pieces.pop()),
    }
    pieces
}

/// The same with a real model's tokenizer: the ids of its vocabulary.
pub fn chat_ids(model: &ModelTokenizer, messages: &[Message<'_>], end: End) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut push = |id| ids.push(id);
    let (last, before) = match messages.split_last() {
        Some((last, before)) if end == End::Open => (Some(last), before),
        _ => (None, messages),
    };
    for message in before {
        model.message(message.role, message.content, &mut push);
    }
    if let Some(last) = last {
        model.open_message(last.role, last.content, &mut push);
    }
    if end == End::AnswerBegins {
        model.before_answer(push);
    }
    ids
}

/// A memory of the pieces behind ids.
#[derive(Debug, Default)]
pub struct Vocabulary {
    pieces: BTreeMap<u32, Box<str>>,
    /// In the order in which they came.
    ids: VecDeque<u32>,
}

impl Vocabulary {
    /// Remembers a piece and gives its id.
    pub fn learn(&mut self, piece: &str) -> u32 {
        let id = id(piece);
        match self.pieces.get_mut(&id) {
            Some(known) if **known == *piece => {}
            Some(known) => *known = piece.into(),
            None => {
                if self.ids.len() == REMEMBERED
                    && let Some(oldest) = self.ids.pop_front()
                {
                    self.pieces.remove(&oldest);
                }
                self.pieces.insert(id, piece.into());
                self.ids.push_back(id);
            }
        }
        id
    }

    /// The piece of an id; `None` if it was never seen, or forgotten.
    pub fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(&id).map(|piece| &**piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::prompt;

    #[test]
    fn a_text_comes_back_from_its_ids() {
        let text = "She said \"no\\yes\"\n\n  and 12345 你好 😀 antidisestablishmentarianism.";
        let mut vocabulary = Vocabulary::default();
        let ids: Vec<u32> = tokenizer::pieces(text).map(|piece| vocabulary.learn(piece)).collect();
        let back: Vec<&str> = ids.iter().map(|&id| vocabulary.piece(id).unwrap()).collect();
        assert_eq!(back.concat(), text);
        assert!(ids.iter().all(|&id| id < 1 << 31));
    }

    #[test]
    fn ids_depend_on_the_piece_alone() {
        let mut one = Vocabulary::default();
        let mut other = Vocabulary::default();
        other.learn("something else");
        assert_eq!(one.learn(" word"), other.learn(" word"));
        assert_ne!(id("word"), id(" word"));
    }

    #[test]
    fn the_oldest_pieces_are_forgotten_when_it_is_full() {
        let mut vocabulary = Vocabulary::default();
        let first = vocabulary.learn("first");
        for number in 0..REMEMBERED + 10 {
            vocabulary.learn(&number.to_string());
        }
        assert_eq!(vocabulary.piece(first), None);
        assert!(vocabulary.pieces.len() <= REMEMBERED);
        assert_eq!(vocabulary.pieces.len(), vocabulary.ids.len());
        assert_eq!(vocabulary.learn("first"), first);
        assert_eq!(vocabulary.piece(first), Some("first"));
    }

    #[test]
    fn a_chat_has_as_many_pieces_as_its_prompt_counts() {
        let messages = [
            Message { role: "system", content: "Be brief." },
            Message { role: "user", content: "" },
            Message { role: "user", content: "One two three." },
        ];
        let count = prompt::count(messages).get() as usize;
        assert_eq!(chat_pieces(&messages, End::AnswerBegins).len(), count);
        assert_eq!(chat_pieces(&messages, End::Closed).len(), count - 3);
        // "Hello" from a user is 8 tokens.
        let hello = [Message { role: "user", content: "Hello" }];
        assert_eq!(
            chat_pieces(&hello, End::AnswerBegins).concat(),
            "<|im_start|>user\nHello<|im_end|><|im_start|>assistant\n"
        );
        assert_eq!(chat_pieces(&hello, End::AnswerBegins).len(), 8);
        assert_eq!(chat_pieces(&hello, End::Open).concat(), "<|im_start|>user\nHello");
    }
}
