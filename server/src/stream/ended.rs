//! What a generation is after its connection has taken it out of the table.
//!
//! It can be made into the body of an answer in one piece, on any thread. The invariant: nothing that
//! happens afterwards changes it.

use crate::api::answer::{Answer, Progress};
use crate::faults::in_stream::InStream;
use crate::lanes::Lanes;
use crate::metrics::timing::Timing;
use crate::served::Replica;

/// What a generation is after its connection has taken it out of the table.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) answer: Box<Answer>,
    pub(crate) replica: Replica,
    pub(crate) progress: Lanes<Progress>,
    /// Lanes whose jobs the engine still works on.
    pub(crate) unfinished: Vec<usize>,
    pub(crate) timing: Option<Box<Timing>>,
    /// A fault that changed bytes of it, or is to do so to its body.
    pub(crate) struck: Option<Box<InStream>>,
}

impl Ended {
    /// Tokens of all lanes.
    pub(crate) fn released(&self) -> u64 {
        self.progress.iter().map(|lane| u64::from(lane.released.get())).sum()
    }

    /// What putting the body together takes, in plain tokens.
    pub(crate) fn work(&self) -> u64 {
        self.answer.format.work(self.released())
    }

    /// Where in the body of an answer that is not streamed the text of the first lane's next token
    /// begins, after so many. Of what does not stand there as it was said (the arguments of a call
    /// in some forms, a vector) it is the middle of the body.
    pub(crate) fn place_after(&self, tokens: u32, body: &[u8]) -> usize {
        let output = &self.answer.lanes.first().output;
        let of_part = tokens - output.locate(tokens).token;
        let mut said: Vec<u8> = Vec::new();
        output.append_escaped(of_part..tokens, &mut said);
        let before = said.len();
        said.extend_from_slice(output.escaped(tokens));
        let found = memchr::memmem::find(body, &said).filter(|_| !said.is_empty());
        found.map_or(body.len() / 2, |at| at + before)
    }

    /// The body of an answer that is not streamed.
    pub(crate) fn whole_body(&self) -> Vec<u8> {
        self.answer.format.whole_body(&self.answer, &self.progress, self.timing.as_deref())
    }
}
