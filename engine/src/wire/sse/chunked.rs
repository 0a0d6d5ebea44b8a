//! HTTP/1.1 chunked coding around whatever is appended to a buffer.

/// The end of a chunked body.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Room for the size line of nearly every chunk: one frame of 256 bytes and more, or a train of
/// frames up to 4 KiB.
const USUAL_DIGITS: usize = 3;

/// A chunk being written: everything appended between [`OpenChunk::open`] and [`OpenChunk::close`]
/// is its content, so that one chunk carries as many events as are due.
#[derive(Debug)]
#[must_use = "an open chunk has no size yet"]
pub struct OpenChunk {
    /// Where the size line begins.
    at: usize,
}

impl OpenChunk {
    /// Reserves the size line at the end of `out`.
    pub fn open(out: &mut Vec<u8>) -> Self {
        let at = out.len();
        out.extend_from_slice(b"000\r\n");
        Self { at }
    }

    /// Fills in the size, without leading zeros, and ends the chunk. A chunk without content leaves
    /// no trace: it would end the body.
    pub fn close(self, out: &mut Vec<u8>) {
        let content = self.at + USUAL_DIGITS + 2;
        let size = out.len() - content;
        if size == 0 {
            out.truncate(self.at);
            return;
        }
        let digits = (size.ilog2() / 4 + 1) as usize;
        // A size of another width moves the content: some hundred bytes by one place.
        if digits > USUAL_DIGITS {
            let extra = digits - USUAL_DIGITS;
            let end = out.len();
            out.resize(end + extra, 0);
            out.copy_within(content..end, content + extra);
        } else if digits < USUAL_DIGITS {
            let less = USUAL_DIGITS - digits;
            let end = out.len();
            out.copy_within(content..end, content - less);
            out.truncate(end - less);
        }
        let mut rest = size;
        for digit in out[self.at..self.at + digits].iter_mut().rev() {
            *digit = b"0123456789abcdef"[rest & 15];
            rest >>= 4;
        }
        out[self.at + digits] = b'\r';
        out[self.at + digits + 1] = b'\n';
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_written_without_leading_zeros() {
        for size in [1, 9, 15, 16, 255, 256, 4095, 4096, 65_535, 65_536, 1_048_576] {
            let mut out = b"before".to_vec();
            let chunk = OpenChunk::open(&mut out);
            let content: Vec<u8> = (0..size).map(|i| b'a' + (i % 26) as u8).collect();
            out.extend_from_slice(&content);
            chunk.close(&mut out);
            let want = [format!("before{size:x}\r\n").as_bytes(), &content, b"\r\n"].concat();
            assert!(out == want, "size {size}");
        }
    }

    #[test]
    fn an_empty_chunk_does_not_end_the_body() {
        let mut out = b"before".to_vec();
        OpenChunk::open(&mut out).close(&mut out);
        assert_eq!(out, b"before");
    }
}
