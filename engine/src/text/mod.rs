//! What is said: rules, answers, tokens and prompts.
//!
//! Not when: nothing here knows of time or of engines. The one invariant: every text is a sequence
//! of pieces (tokens) that put together give the text again, byte for byte, and the same request
//! gives the same pieces on every machine, thread and surface.
//!
//! Read in this order: [`facts`] are what of a chat decides, [`responses`] decides what to answer,
//! [`matcher`] which rule applies, [`script`] holds a text of the answer, [`output`] all its parts,
//! [`stop`] ends it early, [`tokenizer`] cuts texts into pieces, [`model_tokenizer`] as a real
//! model does, [`prompt`] counts what was asked.

mod boundary;
pub mod embedding;
pub mod facts;
mod fold;
mod growth;
pub mod logprobs;
pub mod matcher;
pub mod model_tokenizer;
mod numbers;
pub mod output;
mod own_bytes;
mod prefilter;
pub mod prompt;
pub mod responses;
pub mod schema;
pub mod script;
pub mod stop;
pub mod synthetic;
pub mod template;
pub mod token_ids;
pub mod tokenizer;
pub mod wants;
