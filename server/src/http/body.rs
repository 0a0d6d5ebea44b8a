//! From bytes to the body of a request.
//!
//! Bodies are collected whole, since JSON is parsed whole; this module only finds where one ends
//! and stops collecting at the limit. The invariant: not one byte behind the body is consumed, and
//! a body over the limit is still read to its end (without being kept), so that the answer can be
//! delivered on a connection whose other side is still writing.

use bytes::{Buf as _, BytesMut};

use super::head::Framing;

/// Reads one body out of a growing buffer.
#[derive(Debug)]
pub(crate) struct BodyReader {
    stage: Stage,
    limit: usize,
    body: Vec<u8>,
    dropped: u64,
    framing_bytes: usize,
}

/// How far a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More bytes are needed.
    Unfinished,
    /// The body is whole.
    Whole,
    /// It ended, but was larger than the limit and is not kept.
    TooLarge,
}

/// The chunks do not follow RFC 9112, 7.1. The connection ends after the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadChunk(pub(crate) &'static str);

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// So many bytes to come, and nothing after them.
    Counted(u64),
    /// At the line that says how long the next chunk is.
    ChunkSize,
    /// Inside a chunk.
    ChunkData(u64),
    /// At the line end after a chunk.
    ChunkEnd,
    /// In the trailer section.
    Trailers,
    Done,
}

/// The longest line of chunk size and extensions.
const MAX_SIZE_LINE: usize = 1024;

/// The most bytes of extensions and trailers in one body.
const MAX_FRAMING_BYTES: usize = 64 * 1024;

impl BodyReader {
    /// A reader for a body framed like that, of which at most `limit` bytes are kept.
    pub(crate) fn new(framing: Framing, limit: usize) -> Self {
        let (stage, expected) = match framing {
            Framing::Length(length) => (Stage::Counted(length), length),
            Framing::Chunked => (Stage::ChunkSize, 0),
        };
        let expected = usize::try_from(expected).unwrap_or(usize::MAX);
        let capacity = if expected <= limit { expected } else { 0 };
        // A client that only claims to send much does not get the memory for it.
        let body = Vec::with_capacity(capacity.min(64 * 1024));
        Self { stage, limit, body, dropped: 0, framing_bytes: 0 }
    }

    /// Moves what belongs to the body out of `buffer`.
    ///
    /// # Errors
    /// Chunks that do not follow the rules.
    pub(crate) fn advance(&mut self, buffer: &mut BytesMut) -> Result<Progress, BadChunk> {
        loop {
            match self.stage {
                Stage::Counted(left) => {
                    let left = self.keep(buffer, left);
                    self.stage = if left == 0 { Stage::Done } else { Stage::Counted(left) };
                    if left > 0 {
                        return Ok(Progress::Unfinished);
                    }
                }
                Stage::ChunkSize => {
                    let Some(line) = take_line(buffer, MAX_SIZE_LINE)? else {
                        return Ok(Progress::Unfinished);
                    };
                    let size = chunk_size(&line)?;
                    self.count_framing(line.len())?;
                    self.stage = if size == 0 { Stage::Trailers } else { Stage::ChunkData(size) };
                }
                Stage::ChunkData(left) => {
                    let left = self.keep(buffer, left);
                    if left > 0 {
                        self.stage = Stage::ChunkData(left);
                        return Ok(Progress::Unfinished);
                    }
                    self.stage = Stage::ChunkEnd;
                }
                Stage::ChunkEnd => {
                    if buffer.len() < 2 {
                        return Ok(Progress::Unfinished);
                    }
                    if &buffer.split_to(2)[..] != b"\r\n" {
                        return Err(BadChunk("A chunk is longer than its size says."));
                    }
                    self.stage = Stage::ChunkSize;
                }
                Stage::Trailers => {
                    let Some(line) = take_line(buffer, MAX_FRAMING_BYTES)? else {
                        return Ok(Progress::Unfinished);
                    };
                    self.count_framing(line.len())?;
                    if line.is_empty() {
                        self.stage = Stage::Done;
                    } else if !line.contains(&b':') {
                        return Err(BadChunk("A trailer without a colon."));
                    }
                }
                Stage::Done => {
                    return Ok(if self.dropped > 0 { Progress::TooLarge } else { Progress::Whole });
                }
            }
        }
    }

    /// Bytes that were read but not kept, since the body is over the limit.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The body, once it is whole.
    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Moves up to `left` bytes; returns how many are still to come.
    fn keep(&mut self, buffer: &mut BytesMut, left: u64) -> u64 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        if self.dropped == 0 && self.body.len() + now <= self.limit {
            self.body.extend_from_slice(&buffer[..now]);
        } else if now > 0 {
            self.dropped += now as u64 + self.body.len() as u64;
            self.body = Vec::new();
        }
        buffer.advance(now);
        left - now as u64
    }

    fn count_framing(&mut self, bytes: usize) -> Result<(), BadChunk> {
        self.framing_bytes += bytes;
        // Sizes are paid for by data; many bytes of framing for few of data are an attack.
        if self.framing_bytes > MAX_FRAMING_BYTES + self.body.len() {
            return Err(BadChunk("Too many chunk extensions or trailers."));
        }
        Ok(())
    }
}

fn take_line(buffer: &mut BytesMut, limit: usize) -> Result<Option<BytesMut>, BadChunk> {
    let window = &buffer[..buffer.len().min(limit + 2)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        if buffer.len() > limit {
            return Err(BadChunk("A line of chunk framing is too long."));
        }
        return Ok(None);
    };
    let mut line = buffer.split_to(end + 1);
    if !line.ends_with(b"\r\n") {
        return Err(BadChunk("A line feed without a carriage return in the chunk framing."));
    }
    line.truncate(end - 1);
    if memchr::memchr(b'\r', &line).is_some() {
        return Err(BadChunk("A carriage return without a line feed in the chunk framing."));
    }
    Ok(Some(line))
}

fn chunk_size(line: &[u8]) -> Result<u64, BadChunk> {
    let end = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (hex, rest) = line.split_at(end);
    if hex.is_empty() || hex.len() > 15 {
        return Err(BadChunk("A chunk size is not a hexadecimal number."));
    }
    match rest.trim_ascii_start().first() {
        None if rest.is_empty() => {}
        Some(b';') => {}
        _ => return Err(BadChunk("A chunk size is not a hexadecimal number.")),
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map_or(0, u64::from);
    Ok(hex.iter().fold(0, |size, byte| size * 16 + digit(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 32;

    fn read_in_two(
        framing: Framing,
        bytes: &[u8],
        cut: usize,
    ) -> Result<(Progress, Vec<u8>, Vec<u8>), BadChunk> {
        let mut reader = BodyReader::new(framing, LIMIT);
        let mut buffer = BytesMut::from(&bytes[..cut]);
        let mut progress = reader.advance(&mut buffer)?;
        buffer.extend_from_slice(&bytes[cut..]);
        if progress == Progress::Unfinished {
            progress = reader.advance(&mut buffer)?;
        }
        Ok((progress, reader.into_body(), buffer.to_vec()))
    }

    #[test]
    fn a_chunked_body_with_extensions_and_trailers_is_the_same_wherever_it_is_cut() {
        let bytes = b"5;a=\"b\"\r\nhello\r\n006 ;x\r\n, you!\r\n0\r\nExpires: never\r\n\r\nGET ";
        for cut in 0..=bytes.len() {
            let (progress, body, rest) = read_in_two(Framing::Chunked, bytes, cut).unwrap();
            assert_eq!(progress, Progress::Whole, "cut at {cut}");
            assert_eq!((&body[..], &rest[..]), (&b"hello, you!"[..], &b"GET "[..]));
        }
    }

    #[test]
    fn a_counted_body_leaves_the_next_request_alone() {
        for cut in 0..=7 {
            let (progress, body, rest) = read_in_two(Framing::Length(4), b"bodyGET", cut).unwrap();
            assert_eq!(progress, Progress::Whole);
            assert_eq!((&body[..], &rest[..]), (&b"body"[..], &b"GET"[..]));
        }
    }

    #[test]
    fn a_body_over_the_limit_is_read_to_its_end_and_not_kept() {
        let bytes = [&b"a".repeat(100)[..], b"GET"].concat();
        for cut in 0..bytes.len() {
            let (progress, body, rest) = read_in_two(Framing::Length(100), &bytes, cut).unwrap();
            assert_eq!(progress, Progress::TooLarge);
            assert_eq!((body.len(), &rest[..]), (0, &b"GET"[..]));
        }
    }

    #[test]
    fn chunks_that_break_the_rules_are_refused_wherever_they_are_cut() {
        for bytes in [
            &b"\r\n"[..],
            b"g\r\n",
            b"-1\r\n",
            b"0x5\r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b"5\nhello\r\n",
            b"5\r\nhello!\r\n0\r\n\r\n",
            b"5\r\nhello\n\n",
            b"1000000000000000\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"5;\r;\r\nhello\r\n",
        ] {
            for cut in 0..=bytes.len() {
                let result = read_in_two(Framing::Chunked, bytes, cut);
                assert!(result.is_err(), "{:?} cut at {cut}: {result:?}", bytes.escape_ascii());
            }
        }
        let endless = b"5;".iter().copied().chain(std::iter::repeat_n(b'x', 2000));
        let endless: Vec<u8> = endless.collect();
        assert!(read_in_two(Framing::Chunked, &endless, 0).is_err());
    }
}
