//! The physical limit: a bare loop of `send()` that gives every socket one frame per step and does
//! nothing else.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys;

/// What the bare loop does.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) streams: usize,
    pub(crate) steps: u32,
    pub(crate) step_ns: u64,
    pub(crate) frame_bytes: usize,
    pub(crate) cpu: Option<usize>,
}

/// What the bare loop reports of itself.
pub(crate) struct Sent {
    /// From each step's deadline to the return of each `send()`.
    pub(crate) lags_ns: Vec<u64>,
    pub(crate) cpu_ns: u64,
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
    Ok((clients, std::thread::spawn(move || send_all(plan, &servers))))
}

fn send_all(plan: Plan, sockets: &[TcpStream]) -> io::Result<Sent> {
    if let Some(cpu) = plan.cpu {
        sys::pin(cpu);
    }
    sys::precise_sleep();
    let frame = frame(plan.frame_bytes);
    let mut lags_ns = Vec::with_capacity(sockets.len() * plan.steps as usize);
    let start = sys::monotonic_ns() + 50_000_000;
    let cpu_before = sys::thread_cpu_ns();
    for step in 0..plan.steps {
        let deadline = start + u64::from(step) * plan.step_ns;
        wait_until(deadline);
        let turn = step as usize % sockets.len();
        for socket in sockets[turn..].iter().chain(&sockets[..turn]) {
            let mut sent = 0;
            while sent < frame.len() {
                sent += sys::send_now(socket, &frame[sent..])?;
            }
            lags_ns.push(sys::monotonic_ns() - deadline);
        }
    }
    Ok(Sent { lags_ns, cpu_ns: sys::thread_cpu_ns() - cpu_before })
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
