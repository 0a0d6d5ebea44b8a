//! The physical limit: a bare loop that gives every socket one frame per step and does nothing
//! else, with `send()` or with one batch of io_uring operations per step; and one whose sockets each
//! have their own time in a step.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::sample::Timeline;
use crate::sys;

/// What the bare loop does.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) streams: usize,
    pub(crate) steps: u32,
    /// Between steps; 0: as fast as it goes.
    pub(crate) step_ns: u64,
    pub(crate) frame_bytes: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) by: By,
    /// Whether all sockets get their frame at the beginning of a step, or each at its own time.
    pub(crate) timeline: Timeline,
    /// Steps at the start that its CPU time leaves out.
    pub(crate) skip: u32,
}

/// How bytes get into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// One system call per frame.
    Send,
    /// One operation per frame, one system call per step.
    Uring,
}

/// What the bare loop reports of itself.
pub(crate) struct Sent {
    /// From each step's deadline to the return of each `send()`, or of the step's one call.
    pub(crate) lags_ns: Vec<u64>,
    /// CPU time of the steps after the skipped ones.
    pub(crate) cpu_ns: u64,
    /// Frames of those steps.
    pub(crate) frames: u64,
}

/// Connects `plan.streams` sockets and starts sending on them from a thread of its own; gives back
/// the client's ends.
pub(crate) fn start(plan: Plan) -> io::Result<(Vec<TcpStream>, JoinHandle<io::Result<Sent>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..plan.streams {
        clients.push(TcpStream::connect(address)?);
        let (socket, _) = listener.accept()?;
        socket.set_nodelay(true)?;
        servers.push(socket);
    }
    let send = match (plan.timeline, plan.by) {
        (Timeline::InStep, By::Send) => send_all,
        (Timeline::InStep, By::Uring) => submit_all,
        (Timeline::Each, _) => send_each,
    };
    Ok((clients, std::thread::spawn(move || send(plan, &servers))))
}

fn send_all(plan: Plan, sockets: &[TcpStream]) -> io::Result<Sent> {
    let frame = frame(plan.frame_bytes);
    run(plan, |step, deadline, lags_ns| {
        let turn = step as usize % sockets.len();
        for socket in sockets[turn..].iter().chain(&sockets[..turn]) {
            send_frame(socket, &frame)?;
            lags_ns.push(sys::monotonic_ns() - deadline);
        }
        Ok(())
    })
}

fn send_frame(socket: &TcpStream, frame: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < frame.len() {
        sent += sys::send_now(socket, &frame[sent..])?;
    }
    Ok(())
}

/// Sends what is due, and sleeps for the quantum that the server's fixed_rate has.
fn send_each(plan: Plan, sockets: &[TcpStream]) -> io::Result<Sent> {
    const QUANTUM_NS: u64 = 200_000;
    if let Some(cpu) = plan.cpu {
        sys::pin(cpu);
    }
    sys::precise_sleep();
    let frame = frame(plan.frame_bytes);
    let streams = sockets.len() as u64;
    let (all, skipped) = (streams * u64::from(plan.steps), streams * u64::from(plan.skip));
    let mut lags_ns = Vec::with_capacity(all as usize);
    let start = sys::monotonic_ns() + 50_000_000;
    let due = |number: u64| start + number * plan.step_ns / streams;
    let (mut number, mut cpu_before) = (0, sys::thread_cpu_ns());
    while number < all {
        let now = sys::monotonic_ns();
        while number < all && due(number) <= now {
            send_frame(&sockets[(number % streams) as usize], &frame)?;
            lags_ns.push(sys::monotonic_ns() - due(number));
            number += 1;
            if number == skipped {
                cpu_before = sys::thread_cpu_ns();
            }
        }
        std::thread::sleep(Duration::from_nanos(QUANTUM_NS));
    }
    let cpu_ns = sys::thread_cpu_ns() - cpu_before;
    Ok(Sent { lags_ns, cpu_ns, frames: all - skipped })
}

fn submit_all(plan: Plan, sockets: &[TcpStream]) -> io::Result<Sent> {
    let frame = frame(plan.frame_bytes);
    let mut ring = IoUring::new((sockets.len().next_power_of_two() as u32).clamp(64, 4096))?;
    run(plan, |step, deadline, lags_ns| {
        let turn = step as usize % sockets.len();
        let mut pending = 0;
        for socket in sockets[turn..].iter().chain(&sockets[..turn]) {
            let to = types::Fd(socket.as_raw_fd());
            let operation = opcode::Send::new(to, frame.as_ptr(), frame.len() as u32).build();
            if ring.submission().is_full() {
                pending -= reap(&mut ring, pending, frame.len())?;
            }
            #[expect(unsafe_code, reason = "the kernel reads the frame through a raw pointer")]
            // SAFETY: `frame` and the sockets outlive the operation: `reap` has waited for all of
            // them before this step ends.
            let pushed = unsafe { ring.submission().push(&operation) };
            pushed.map_err(io::Error::other)?;
            pending += 1;
        }
        reap(&mut ring, pending, frame.len())?;
        lags_ns.extend(sockets.iter().map(|_| sys::monotonic_ns() - deadline));
        Ok(())
    })
}

/// Submits what is queued and waits for `pending` completions.
fn reap(ring: &mut IoUring, pending: usize, frame_bytes: usize) -> io::Result<usize> {
    ring.submit_and_wait(pending)?;
    let mut done = 0;
    for completion in ring.completion() {
        done += 1;
        match completion.result() {
            error if error < 0 => return Err(io::Error::from_raw_os_error(-error)),
            sent if sent as usize != frame_bytes => {
                return Err(io::Error::other("the client does not keep up with the bare loop"));
            }
            _ => {}
        }
    }
    if done == pending { Ok(done) } else { Err(io::Error::other("completions were lost")) }
}

/// The timeline around `send_step(step, deadline, lags)`.
fn run(
    plan: Plan,
    mut send_step: impl FnMut(u32, u64, &mut Vec<u64>) -> io::Result<()>,
) -> io::Result<Sent> {
    if let Some(cpu) = plan.cpu {
        sys::pin(cpu);
    }
    sys::precise_sleep();
    let mut lags_ns = Vec::with_capacity(plan.streams * plan.steps as usize);
    let start = sys::monotonic_ns() + 50_000_000;
    let mut cpu_before = sys::thread_cpu_ns();
    for step in 0..plan.steps {
        if step == plan.skip {
            cpu_before = sys::thread_cpu_ns();
        }
        let deadline = start + u64::from(step) * plan.step_ns;
        wait_until(deadline);
        send_step(step, deadline, &mut lags_ns)?;
    }
    let cpu_ns = sys::thread_cpu_ns() - cpu_before;
    let frames = u64::from(plan.steps.saturating_sub(plan.skip)) * plan.streams as u64;
    Ok(Sent { lags_ns, cpu_ns, frames })
}

/// Sleeps, then spins the last 100 µs.
fn wait_until(deadline_ns: u64) {
    loop {
        let left = deadline_ns.saturating_sub(sys::monotonic_ns());
        match left {
            0 => return,
            1..100_000 => std::hint::spin_loop(),
            _ => std::thread::sleep(Duration::from_nanos(left - 100_000)),
        }
    }
}

fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = b"data: ".to_vec();
    frame.resize(bytes.max(8) - 2, b'x');
    frame.extend(b"\n\n");
    frame
}
