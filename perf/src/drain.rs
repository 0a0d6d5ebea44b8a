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
    let (mut ready, mut bytes, mut idle) = (Vec::new(), 0u64, 0);
    while open > 0 {
        epoll.wait(1_000, &mut ready)?;
        if ready.is_empty() {
            idle += 1;
            if idle == 20 {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing arrived for 20 s, with {open} streams unfinished"),
                ));
            }
            continue;
        }
        idle = 0;
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
            let new = count_frames(&buffer[..got], &mut after_newline[i]);
            if new > 0 {
                let arrival = Arrival { stream: i as u32, first: counts[i], frames: new, at_ns };
                arrivals.push(arrival);
                counts[i] += new;
            }
            if got == 0 || counts[i] >= frames {
                finished[i] = true;
                open -= 1;
            }
        }
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

fn count_frames(bytes: &[u8], after_newline: &mut bool) -> u32 {
    let mut frames = 0;
    for &byte in bytes {
        // "\n\n" ends an event; the "\r\n" of heads and chunk sizes never makes one.
        if byte == b'\n' {
            frames += u32::from(*after_newline);
            *after_newline = !*after_newline;
        } else {
            *after_newline = false;
        }
    }
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
