//! The client of every measurement: it drains many sockets and notes when which stream got how
//! many frames. One and the same for the raw limit and for each server, so that its own cost
//! cancels out of the ratios.

use std::io::{self, Read};
use std::net::TcpStream;

use crate::sys::{self, Epoll};

/// Frames that became readable on one stream in one read.
#[derive(Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) stream: u32,
    /// Number of frames of this stream before these.
    pub(crate) first: u32,
    pub(crate) frames: u32,
    /// `CLOCK_MONOTONIC` when the read returned.
    pub(crate) at_ns: u64,
}

/// Reads all of `sockets` until each has had `frames` frames or ended. A frame ends with an empty
/// line after a `data:` line, as server-sent events do.
pub(crate) fn drain(
    sockets: &mut [TcpStream],
    frames: u32,
    arrivals: &mut Vec<Arrival>,
) -> io::Result<Drained> {
    drain_with(sockets, frames, arrivals, Wait::Sleep, &mut |_| ())
}

/// How the client waits for bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// In the kernel; waking a halted processor takes 50 to 150 us.
    Sleep,
    /// Asking again and again: for few streams, where that wake-up would be most of the lag.
    Busy,
}

/// Like [`drain`]; `seen` is told after each turn how many frames have come in all.
pub(crate) fn drain_with(
    sockets: &mut [TcpStream],
    frames: u32,
    arrivals: &mut Vec<Arrival>,
    wait: Wait,
    seen: &mut dyn FnMut(u64),
) -> io::Result<Drained> {
    let timeout_ms = if wait == Wait::Busy { 0 } else { 1_000 };
    let mut last_ns = sys::monotonic_ns();
    let mut total = 0;
    let mut epoll = Epoll::new()?;
    for (i, socket) in sockets.iter().enumerate() {
        socket.set_nonblocking(true)?;
        epoll.add(socket, i as u64)?;
    }
    let mut counts = vec![0u32; sockets.len()];
    let mut after_newline = vec![false; sockets.len()];
    let mut open = sockets.len();
    let mut finished = vec![false; sockets.len()];
    let mut buffer = vec![0u8; 64 * 1024];
    let (mut ready, mut bytes) = (Vec::new(), 0u64);
    while open > 0 {
        epoll.wait(timeout_ms, &mut ready)?;
        if ready.is_empty() {
            if sys::monotonic_ns() - last_ns > 20_000_000_000 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing arrived for 20 s, with {open} streams unfinished"),
                ));
            }
            continue;
        }
        for &token in &ready {
            let i = token as usize;
            if finished[i] {
                continue;
            }
            let got = match sockets[i].read(&mut buffer) {
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let at_ns = sys::monotonic_ns();
            bytes += got as u64;
            // What ends a stream comes in one write with its last token, and is no token.
            let new = count_frames(&buffer[..got], &mut after_newline[i]).min(frames - counts[i]);
            if new > 0 {
                let arrival = Arrival { stream: i as u32, first: counts[i], frames: new, at_ns };
                arrivals.push(arrival);
                counts[i] += new;
                total += u64::from(new);
                last_ns = at_ns;
            }
            if got == 0 || counts[i] >= frames {
                finished[i] = true;
                open -= 1;
            }
        }
        seen(total);
    }
    Ok(Drained { counts, bytes })
}

/// What a drain saw in all.
pub(crate) struct Drained {
    /// Frames of each stream.
    pub(crate) counts: Vec<u32>,
    /// Bytes of all streams.
    pub(crate) bytes: u64,
}

/// Counts the empty lines that end an event; `after_newline` carries over from read to read. The
/// "\r\n" of heads and chunk sizes never makes one.
pub(crate) fn count_frames(bytes: &[u8], after_newline: &mut bool) -> u32 {
    let mut frames = 0;
    let mut next = if *after_newline { Some(0) } else { None };
    for at in memchr::memchr_iter(b'\n', bytes) {
        if next == Some(at) {
            frames += 1;
            next = None;
        } else {
            next = Some(at + 1);
        }
    }
    *after_newline = next == Some(bytes.len());
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_wherever_reads_cut_them() {
        let text = b"HTTP/1.1 200 OK\r\n\r\n10\r\ndata: a\n\n\r\n10\r\ndata: b\n\n\r\n";
        for cut in 0..text.len() {
            let mut state = false;
            let (left, right) = text.split_at(cut);
            let count = count_frames(left, &mut state) + count_frames(right, &mut state);
            assert_eq!(count, 2, "cut at {cut}");
        }
    }
}
