//! Stop strings: where they end an answer, and what a stream must hold back until they have not.
//!
//! Not part of the token path: an answer is known before its first token, so all of this is decided
//! at the request, and what comes out is a script like any other. The one invariant: the tokens of
//! the result are those of the answer, one piece for one token; only how the text is spread over
//! them differs, and what follows a stop string is gone.
//!
//! The rules are vLLM's. After each token the text so far is searched; the first token that
//! completes a stop string is the last one, and among those that it completes the one that begins
//! first decides. Text that may be the beginning of a stop string waits for the tokens that decide,
//! as in a server that cannot know them; unlike vLLM, which always holds back as many characters as
//! the longest stop string has, nothing else waits.

use std::sync::Arc;

use super::output::{Beyond, Kind, Output, Part};
use super::script::{PieceTable, Script};
use crate::units::Tokens;

/// What is to be stopped at.
#[derive(Clone, Copy, Debug)]
pub struct Stops<'a, S> {
    /// The strings, none of them empty.
    pub strings: &'a [S],
    /// vLLM's `include_stop_str_in_output`: the stop string stays at the end of the text.
    pub keeps_match: bool,
    /// vLLM's `min_tokens`: what these tokens complete does not stop.
    pub after: Tokens,
}

/// A scripted answer under stop strings.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// What to say; if the answer is stopped, the stopping token is the script's last.
    pub script: Script,
    /// Which of the strings stopped it.
    pub by: Option<usize>,
}

/// Searches the content among the first `limit` tokens of `output`, which is never longer than
/// before: where it is stopped, nothing follows. Returns which of the strings stopped it.
pub fn apply_to<S: AsRef<str>>(
    output: Output,
    limit: Tokens,
    stops: &Stops<'_, S>,
) -> (Output, Option<usize>) {
    let is_content = |part: &Part| part.kind == Kind::Content;
    if stops.strings.is_empty() || !output.parts().any(is_content) {
        return (output, None);
    }
    let beyond = output.beyond();
    let last = output.part_count() - 1;
    let mut parts = Vec::with_capacity(last + 1);
    for (index, part) in output.parts().enumerate() {
        let left = limit.get().saturating_sub(part.start.get());
        if !is_content(part) || left == 0 {
            parts.push((part.kind.clone(), part.script.clone()));
            continue;
        }
        let says_on = index == last && beyond == Beyond::Again;
        let left = if says_on { left } else { left.min(part.script.len().get()) };
        let after = Tokens::new(stops.after.get().saturating_sub(part.start.get()));
        let stops = Stops { after, ..*stops };
        let stopped = apply(part.script.clone(), Tokens::new(left), &stops);
        parts.push((Kind::Content, stopped.script));
        if stopped.by.is_some() {
            return (Output::new(parts, beyond), stopped.by);
        }
    }
    (Output::new(parts, beyond), None)
}

/// Searches the first `limit` tokens of `script`, which says itself again if it is shorter. Without
/// a stop string and its beginnings in them, the script comes back as it is.
pub fn apply<S: AsRef<str>>(script: Script, limit: Tokens, stops: &Stops<'_, S>) -> Stopped {
    let mut searches: Vec<Search<'_>> =
        stops.strings.iter().map(|stop| Search::new(stop.as_ref())).collect();
    let (mut text, mut ends) = (String::new(), Vec::new());
    let mut is_changed = false;
    let mut by = None;
    for k in 0..limit.get() {
        let before = text.len();
        text.push_str(script.piece(k % script.len().get()));
        let piece = &text.as_bytes()[before..];
        let found = searches.iter_mut().enumerate().filter_map(|(index, search)| {
            let end = before + search.read(piece)?;
            Some((end - search.stop.len(), end, index))
        });
        // All of them read the piece, whoever is first.
        let first = found.collect::<Vec<_>>().into_iter().min();
        if let Some((start, end, index)) = first.filter(|_| k >= stops.after.get()) {
            text.truncate(if stops.keeps_match { end } else { start });
            by = Some(index);
            is_changed = true;
            ends.push(text.len());
            break;
        }
        let held = match stops.keeps_match {
            true => 0,
            false => searches.iter().map(|search| search.matched).max().unwrap_or(0),
        };
        is_changed |= held > 0;
        ends.push(text.len() - held);
    }
    if !is_changed {
        return Stopped { script, by };
    }
    // The last token lets go of what was held back, or of what is left of it.
    if let Some(last) = ends.last_mut() {
        *last = text.len();
    }
    // A stop string may begin before what an earlier token would have let go: never, since all of
    // it was held back; and with the match kept nothing is held back.
    debug_assert!(ends.is_sorted(), "text is let go of in order");
    let table = PieceTable::with_ends(text, &ends);
    Stopped { script: Script::from_table(script.entry_id().into(), Arc::new(table)), by }
}

/// A search for one string through a text that comes in pieces (Knuth, Morris and Pratt 1977).
struct Search<'a> {
    stop: &'a [u8],
    /// For each length of a beginning of `stop`: the longest shorter beginning that it ends with.
    shorter: Vec<usize>,
    /// How many bytes of `stop` the text so far ends with; less than all.
    matched: usize,
}

impl<'a> Search<'a> {
    fn new(stop: &'a str) -> Self {
        assert!(!stop.is_empty(), "an empty stop string is refused with the request");
        let stop = stop.as_bytes();
        let mut shorter = vec![0; stop.len() + 1];
        let mut matched = 0;
        for at in 1..stop.len() {
            while matched > 0 && stop[at] != stop[matched] {
                matched = shorter[matched];
            }
            matched += usize::from(stop[at] == stop[matched]);
            shorter[at + 1] = matched;
        }
        Self { stop, shorter, matched: 0 }
    }

    /// Reads on; returns where in `bytes` the first occurrence ends.
    fn read(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut first = None;
        for (at, &byte) in bytes.iter().enumerate() {
            while self.matched > 0 && byte != self.stop[self.matched] {
                self.matched = self.shorter[self.matched];
            }
            self.matched += usize::from(byte == self.stop[self.matched]);
            if self.matched == self.stop.len() {
                first = first.or(Some(at + 1));
                self.matched = self.shorter[self.matched];
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        Script::from_table("greeting".into(), Arc::new(PieceTable::new(text.to_owned())))
    }

    /// Pieces after stopping, joined by `|`, and the index of the string that stopped.
    fn check(text: &str, limit: u32, stops: &Stops<'_, &str>, pieces: &str, by: Option<usize>) {
        let stopped = apply(script(text), Tokens::new(limit), stops);
        let count = stopped.script.len().min(Tokens::new(limit));
        let got: Vec<&str> = stopped.script.pieces(count).collect();
        assert_eq!((got.join("|").as_str(), stopped.by), (pieces, by), "{text:?} {stops:?}");
        assert_eq!(stopped.script.entry_id(), "greeting");
    }

    fn at<'a>(strings: &'a [&'a str]) -> Stops<'a, &'a str> {
        Stops { strings, keeps_match: false, after: Tokens::ZERO }
    }

    #[test]
    fn a_stop_string_inside_a_token_cuts_it() {
        check("One two three four.", 5, &at(&["re"]), "One| two| th", Some(0));
        check("One two three four.", 5, &at(&["One"]), "", Some(0));
    }

    #[test]
    fn a_stop_string_across_tokens_is_held_back_until_it_is_whole() {
        // "o" might begin "o three"; with " three" it has.
        check("One two three four.", 5, &at(&["o three"]), "One| tw|", Some(0));
        // " two" might begin " two t..."; " three" shows that it does not.
        check("One two three four.", 5, &at(&[" two x"]), "One|| two three| four|.", None);
    }

    #[test]
    fn the_end_lets_go_of_what_was_held_back() {
        check("One two.", 3, &at(&[".\n"]), "One| two|.", None);
        // So does the limit.
        check("One two three.", 2, &at(&["two t"]), "One| two", None);
    }

    #[test]
    fn the_first_token_that_completes_one_decides_then_the_earliest_beginning() {
        // " two" is complete before "wo three" is, though listed later.
        check("One two three.", 4, &at(&["wo three", " two"]), "One|", Some(1));
        // Both are complete with " three".
        check("One two three.", 4, &at(&["th", "o t"]), "One| tw|", Some(1));
        check("One two three.", 4, &at(&["t", "e t"]), "On|", Some(1));
    }

    #[test]
    fn the_match_can_stay() {
        let stops = Stops { keeps_match: true, ..at(&["o th"]) };
        check("One two three.", 4, &stops, "One| two| th", Some(0));
    }

    #[test]
    fn what_the_first_tokens_complete_does_not_stop() {
        // The first "a" is the 1st token, the second the 3rd.
        for (after, pieces, by) in
            [(0, "", Some(0)), (1, "a| b| ", Some(0)), (3, "a| b| a", None), (9, "a| b| a", None)]
        {
            let stops = Stops { after: Tokens::new(after), ..at(&["a"]) };
            check("a b a", 3, &stops, pieces, by);
        }
    }

    #[test]
    fn an_answer_that_says_itself_again_is_searched_across_the_seam() {
        check("One two", 4, &at(&["twoO"]), "One| |", Some(0));
        check("ab", 3, &at(&["abc"]), "|ab|abab", None);
    }

    #[test]
    fn a_failed_beginning_may_hold_another_beginning() {
        check("a a a a b", 5, &at(&["a a b"]), "||a |a |", Some(0));
    }

    #[test]
    fn characters_are_never_cut() {
        // The stop string begins with the first three bytes of neither.
        check("你好 😀😁", 9, &at(&["😁"]), "你|好| |😀|", Some(0));
    }
}
