//! The memory of token ids that all threads share.
//!
//! Not the rule by which a piece gets its id: that is the engine's. A helper thread has a low priority
//! and may stand still with the lock in its hand, and whoever waits for it then stands still, too. So
//! the invariant is twofold: the lock is held for one piece at a time, never for a text; and no I/O
//! thread takes it (`api::intake` hands over every body that may name or want ids).

use std::sync::{Mutex, MutexGuard, PoisonError};

use llmsim_engine::text::token_ids::Vocabulary;

/// A [`Vocabulary`] behind a lock.
#[derive(Debug, Default)]
pub(crate) struct SharedVocabulary(Mutex<Vocabulary>);

impl SharedVocabulary {
    /// Remembers a piece and gives its id.
    pub(crate) fn learn(&self, piece: &str) -> u32 {
        self.lock().learn(piece)
    }

    /// The piece of an id; `None` if it was never seen, or forgotten.
    pub(crate) fn piece(&self, id: u32) -> Option<Box<str>> {
        self.lock().piece(id).map(Box::from)
    }

    fn lock(&self) -> MutexGuard<'_, Vocabulary> {
        debug_assert!(!is_io_thread(), "an I/O thread would wait for a helper here");
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_io_thread() -> bool {
    std::thread::current().name().is_some_and(|name| name.starts_with("io-"))
}

#[cfg(test)]
mod tests {
    use llmsim_engine::text::tokenizer;

    use super::*;

    #[test]
    fn others_get_at_it_between_any_two_pieces_of_a_text() {
        let vocabulary = SharedVocabulary::default();
        let pieces = tokenizer::pieces("One two three four.").inspect(|_| {
            assert!(vocabulary.0.try_lock().is_ok(), "somebody else's turn");
        });
        let ids: Vec<u32> = pieces.map(|piece| vocabulary.learn(piece)).collect();
        let back: String = ids.iter().filter_map(|&id| vocabulary.piece(id)).collect();
        assert_eq!(back, "One two three four.");
    }
}
