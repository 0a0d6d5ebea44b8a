//! Server-sent events, both ways: the frames of a streamed answer, and a parser of such streams.
//!
//! It knows no socket: frames are appended to a caller's buffer, the parser is fed whatever a read
//! returned. The invariant of the first half: a content frame is three copies and nothing else, no
//! allocation and no formatting. The invariant of the second: where a stream is cut into reads
//! changes nothing.

mod chunked;
mod frames;
mod parser;

pub use self::chunked::{LAST_CHUNK, OpenChunk};
pub use self::frames::{DONE, Delta, End, StreamFrames, StreamHead, write_error};
pub use self::parser::{SseEvent, SseParser, TooLong};
