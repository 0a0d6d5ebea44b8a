//! What one choice of an answer says, in parts: reasoning, content, a refusal, calls of tools.
//!
//! Not how it is framed: every surface (chat, completions, ...) makes its own frames of the same
//! output. The one invariant: token `k` is the same piece of the same part whenever it is asked
//! for, and asking costs no allocation, so that frames can be rendered again at any time.

use std::iter;
use std::ops::Range;

use super::model_tokenizer::Token;
use super::script::Script;
use crate::units::Tokens;

/// An answer's parts, in the order in which they are said; at least one, each at least one token
/// long. All their tokens are completion tokens.
#[derive(Clone, Debug)]
pub struct Output {
    // Nearly every output has one part, which is looked at for every token.
    first: Part,
    others: Box<[Part]>,
    beyond: Beyond,
    len: Tokens,
}

/// One part of an answer.
#[derive(Clone, Debug)]
pub struct Part {
    /// What it is.
    pub kind: Kind,
    /// What it says. Of a call, the first token is the function's whole name, the others are its
    /// arguments.
    pub script: Script,
    /// Tokens of the parts before it.
    pub start: Tokens,
}

/// What a part of an answer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What a reasoning model thinks before it answers.
    Reasoning,
    /// The answer.
    Content,
    /// Why there is no answer.
    Refusal,
    /// A call of a tool.
    ToolCall(Call),
}

/// Which call of a tool it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its place among the calls of this answer, from 0.
    pub index: u32,
    /// `call_...`.
    pub id: Box<str>,
    /// The function.
    pub name: Box<str>,
}

/// What is said when all is said and the engine is told to go on (`ignore_eos`, `min_tokens`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// The last part says itself again.
    Again,
    /// Tokens without text, so that what must stay whole (JSON) does.
    Silence,
}

/// Where a token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// The part, from 0.
    pub part: usize,
    /// The token's number in it, from 0; of the last part also beyond its length.
    pub token: u32,
}

impl Output {
    /// An answer that is content and nothing else, and says itself again if it must go on.
    pub fn content(script: Script) -> Self {
        Self::single(Kind::Content, script, Beyond::Again)
    }

    /// An answer of one part.
    pub fn single(kind: Kind, script: Script, beyond: Beyond) -> Self {
        let len = script.len();
        let first = Part { kind, script, start: Tokens::ZERO };
        Self { first, others: Box::default(), beyond, len }
    }

    /// An answer of several parts.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(parts: Vec<(Kind, Script)>, beyond: Beyond) -> Self {
        let mut start = Tokens::ZERO;
        let mut parts = parts.into_iter().map(|(kind, script)| {
            let part = Part { kind, script, start };
            start += part.script.len();
            part
        });
        let first = parts.next().expect("an answer has at least one part");
        let others = if parts.len() == 0 { Box::default() } else { parts.collect() };
        Self { first, others, beyond, len: start }
    }

    /// The id of the entry that decided; `default` if none matched.
    pub fn entry_id(&self) -> &str {
        self.first.script.entry_id()
    }

    /// How many tokens it has until its natural end; at least 1.
    pub fn len(&self) -> Tokens {
        self.len
    }

    /// Bytes that it takes in memory, about. What it shares with other answers is counted, too.
    pub fn size(&self) -> usize {
        self.parts().map(|part| part.script.size()).sum()
    }

    /// Its parts.
    pub fn parts(&self) -> impl DoubleEndedIterator<Item = &Part> {
        iter::once(&self.first).chain(&self.others)
    }

    /// How many parts it has.
    pub fn part_count(&self) -> usize {
        1 + self.others.len()
    }

    /// The part at `index`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn part(&self, index: usize) -> &Part {
        match index {
            0 => &self.first,
            _ => &self.others[index - 1],
        }
    }

    /// Its script, if it is content and nothing else.
    pub fn only_content(&self) -> Option<&Script> {
        let is_plain = self.others.is_empty() && self.first.kind == Kind::Content;
        is_plain.then_some(&self.first.script)
    }

    /// What is said when all is said.
    pub fn beyond(&self) -> Beyond {
        self.beyond
    }

    /// Where token `k` stands, counted from 0; any number, also beyond the length.
    pub fn locate(&self, k: u32) -> Spot {
        let part = self.others.iter().rposition(|part| part.start.get() <= k);
        match part {
            None => Spot { part: 0, token: k },
            Some(index) => Spot { part: index + 1, token: k - self.others[index].start.get() },
        }
    }

    /// The text of token `k`, counted from 0; any number, also beyond the length.
    pub fn piece(&self, k: u32) -> &str {
        let Spot { part, token } = self.locate(k);
        let script = &self.part(part).script;
        self.within(script, token).map_or("", |token| script.piece(token))
    }

    /// The bytes of token `k`: of a part of a character that part.
    pub fn bytes(&self, k: u32) -> &[u8] {
        let Spot { part, token } = self.locate(k);
        let script = &self.part(part).script;
        self.within(script, token).map_or(b"", |token| script.bytes(token))
    }

    /// Token `k` as those see it who tell texts apart by their tokens.
    pub fn token(&self, k: u32) -> Token<'_> {
        let Spot { part, token } = self.locate(k);
        let script = &self.part(part).script;
        self.within(script, token).map_or(Token::Piece(""), |token| script.token(token))
    }

    /// The text of token `k` as the content of a JSON string, without quotes.
    pub fn escaped(&self, k: u32) -> &[u8] {
        self.escaped_at(self.locate(k))
    }

    /// The text of the token at `spot` as the content of a JSON string, without quotes.
    pub fn escaped_at(&self, spot: Spot) -> &[u8] {
        let script = &self.part(spot.part).script;
        self.within(script, spot.token).map_or(b"", |token| script.escaped(token))
    }

    /// Appends the texts of tokens as the content of a JSON string: those that [`Self::escaped`] gives
    /// one by one.
    pub fn append_escaped(&self, tokens: Range<u32>, out: &mut Vec<u8>) {
        let Range { mut start, end } = tokens;
        while start < end {
            let Spot { part, token } = self.locate(start);
            let script = &self.part(part).script;
            // Behind the last part's own tokens there is silence to the end.
            let Some(token) = self.within(script, token) else { return };
            let count = (script.len().get() - token).min(end - start);
            script.append_escaped(token..token + count, out);
            start += count;
        }
    }

    /// What [`Self::append_escaped`] appends, if it stands somewhere in one piece.
    pub fn escaped_run(&self, tokens: Range<u32>) -> Option<&[u8]> {
        let Spot { part, token } = self.locate(tokens.start);
        let script = &self.part(part).script;
        let token = self.within(script, token)?;
        let end = token.checked_add(tokens.len() as u32)?;
        if end > script.len().get() { None } else { script.escaped_run(token..end) }
    }

    /// How many of the first `count` tokens are reasoning.
    pub fn reasoning_in(&self, count: Tokens) -> Tokens {
        let of = |part: &Part| said(part, count).min(part.script.len().get());
        let reasoning = self.parts().filter(|part| part.kind == Kind::Reasoning);
        Tokens::new(reasoning.map(of).sum())
    }

    /// How many tokens of the part at `index` are among the first `count` of the answer; for the
    /// last part with those that come after its own.
    pub fn said_of(&self, index: usize, count: Tokens) -> Tokens {
        let part = self.part(index);
        let said = said(part, count);
        let is_last = index + 1 == self.part_count();
        Tokens::new(if is_last { said } else { said.min(part.script.len().get()) })
    }

    /// The token of `script` that stands for its token `token`.
    fn within(&self, script: &Script, token: u32) -> Option<u32> {
        let len = script.len().get();
        match self.beyond {
            _ if token < len => Some(token),
            Beyond::Again => Some(token % len),
            Beyond::Silence => None,
        }
    }
}

/// How many of the first `count` tokens come in `part` or after it.
fn said(part: &Part, count: Tokens) -> u32 {
    count.get().saturating_sub(part.start.get())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::seed::Seed;
    use crate::text::model_tokenizer::REGEX;
    use crate::text::script::PieceTable;

    fn script(text: &str) -> Script {
        Script::from_table("entry".into(), Arc::new(PieceTable::new(text.to_owned())))
    }

    fn call(index: u32) -> Kind {
        Kind::ToolCall(Call { index, id: "call_1".into(), name: "f".into() })
    }

    fn said(output: &Output, count: u32) -> String {
        (0..count).map(|k| output.piece(k)).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn tokens_are_found_in_their_parts() {
        // Two tokens, three, one.
        let parts = vec![
            (Kind::Reasoning, script("Let me")),
            (Kind::Content, script("One two.")),
            (call(0), script("f")),
        ];
        let output = Output::new(parts, Beyond::Silence);
        assert_eq!(output.len(), Tokens::new(6));
        let spots: Vec<_> =
            (0..7).map(|k| output.locate(k)).map(|at| (at.part, at.token)).collect();
        assert_eq!(spots, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]);
        assert_eq!(said(&output, 8), "Let| me|One| two|.|f||");
        let reasoning = |count| output.reasoning_in(Tokens::new(count)).get();
        assert_eq!([0, 1, 2, 6].map(reasoning), [0, 1, 2, 2]);
        let of_content = |count| output.said_of(1, Tokens::new(count)).get();
        assert_eq!([1, 3, 5, 9].map(of_content), [0, 1, 3, 3]);
    }

    #[test]
    fn the_last_part_goes_on_if_it_may() {
        assert_eq!(said(&Output::content(script("a b")), 7), "a| b|a| b|a| b|a");
        let parts = vec![(Kind::Reasoning, script("Hm.")), (Kind::Content, script("a b"))];
        assert_eq!(said(&Output::new(parts, Beyond::Again), 7), "Hm|.|a| b|a| b|a");
    }

    #[test]
    fn tokens_are_the_same_bytes_together_as_one_by_one() {
        for beyond in [Beyond::Again, Beyond::Silence] {
            let filler = Script::filler("x".into(), &REGEX, Seed::new(1), Tokens::new(3));
            let parts = vec![(Kind::Reasoning, script("\"Hm.\"")), (Kind::Content, filler)];
            let output = Output::new(parts, beyond);
            for (start, end) in (0..12).flat_map(|end| (0..=end).map(move |start| (start, end))) {
                let mut all = Vec::new();
                output.append_escaped(start..end, &mut all);
                let each: Vec<&[u8]> = (start..end).map(|k| output.escaped(k)).collect();
                assert_eq!(all, each.concat(), "{start}..{end} {beyond:?}");
                let run = output.escaped_run(start..end);
                assert!(run.is_none_or(|run| run == all), "{start}..{end} {beyond:?}");
                // The table is one text, the filler is not.
                let table = output.part(1).start.get();
                let is_one = end <= table && start < table;
                assert_eq!(run.is_some(), is_one, "{start}..{end} {beyond:?}");
            }
        }
    }
}
