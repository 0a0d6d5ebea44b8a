//! A port, and the thread that takes connections in from it.
//!
//! The shared port and the ports of single replicas are the same thing with different
//! [`Scope`](crate::served::Scope)s behind them. The invariant: no more than one program listens on a port, so that a
//! port that is taken stops the start.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::drain::Control;
use crate::io_thread::{Arrival, Door};

/// A port that is listened on.
#[derive(Debug)]
pub(crate) struct Gate {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    acceptor: Option<JoinHandle<()>>,
}

/// Why a port cannot be had; its text is the whole message.
#[derive(Debug)]
pub(crate) struct Unavailable(String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Gate {
    /// Listens on a port, and takes nobody in yet; with port 0 on one that the system chooses.
    /// `flag` is what a user would choose another port with.
    ///
    /// # Errors
    /// If the port is taken, or the host is none of this machine's.
    pub(crate) fn bind(host: &str, port: u16, flag: &str) -> Result<Self, Unavailable> {
        let failed = |why: io::Error| {
            let hint = match why.kind() {
                io::ErrorKind::AddrInUse => {
                    format!(
                        "; another program uses the port: stop it, or choose another with {flag}"
                    )
                }
                io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege".to_owned(),
                io::ErrorKind::AddrNotAvailable => {
                    "; this machine has no such address: see --host".to_owned()
                }
                _ => String::new(),
            };
            Unavailable(format!("cannot listen on {host}:{port}: {why}{hint}"))
        };
        let addresses = (host, port).to_socket_addrs().map_err(failed)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            match listen(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
                Ok((address, listener)) => {
                    return Ok(Self { address, listener: Arc::new(listener), acceptor: None });
                }
                Err(why) => last = why,
            }
        }
        Err(failed(last))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to take connections in, as gate `number`: deals them out to the I/O threads in turn,
    /// until [`Self::close`].
    ///
    /// # Errors
    /// If the system has no thread for it.
    pub(crate) fn open(
        &mut self,
        number: u16,
        doors: &[Arc<Door>],
        control: &Arc<Control>,
        most_connections: usize,
    ) -> io::Result<()> {
        let listener = Arc::clone(&self.listener);
        let (doors, control) = (doors.to_vec(), Arc::clone(control));
        let work = move || accept(&listener, number, &doors, &control, most_connections);
        self.acceptor = Some(thread::Builder::new().name("acceptor".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Takes no more connections; waits until its thread has ended.
    pub(crate) fn close(&mut self) {
        // Wakes the acceptor out of its wait.
        let _ = SockRef::from(&*self.listener).shutdown(std::net::Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            // One that panicked has said so already.
            let _ = acceptor.join();
        }
    }
}

/// Without SO_REUSEPORT: with it, a second server on the same port would start and take half of the
/// connections.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    // A thousand clients that connect at once are not made to wait a second for their retry.
    const BACKLOG: i32 = 4096;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Keeps a burst of connections from taking a processor for longer than the kernel's scheduler
/// would notice: there may be no third one, and tokens are due on the others.
#[derive(Default)]
struct InARow {
    count: u32,
    began: Option<Instant>,
}

impl InARow {
    /// Connections taken in without a rest, at some 10 µs each.
    const MOST: u32 = 16;
    const REST: Duration = Duration::from_micros(100);
    /// Connections spread over more than this are no burst.
    const BURST: Duration = Duration::from_millis(1);

    /// Rests if the last connections came in a row.
    fn rest(&mut self) {
        self.count += 1;
        if self.count < Self::MOST {
            return;
        }
        self.count = 0;
        if self.began.replace(Instant::now()).is_some_and(|began| began.elapsed() < Self::BURST) {
            thread::sleep(Self::REST);
        }
    }
}

/// Takes connections and deals them out in turn until the listener is shut down.
fn accept(listener: &TcpListener, gate: u16, doors: &[Arc<Door>], control: &Control, limit: usize) {
    // The first connections of several gates do not all go to one thread.
    let mut next = usize::from(gate);
    let mut in_a_row = InARow::default();
    loop {
        in_a_row.rest();
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(why) if why.raw_os_error() == Some(libc::EINVAL) => return,
            Err(why) => {
                // Out of files or memory: the connection stays in the backlog.
                if matches!(why.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) {
                    thread::sleep(Duration::from_millis(10));
                }
                continue;
            }
        };
        let open = control.connection_opened();
        // Some more are taken in to be told so; beyond that the connection is just closed.
        if open > limit + 256 || prepare(&socket).is_err() {
            control.connection_closed();
            continue;
        }
        let mut arrival = Arrival { socket, gate, turned_away: open > limit };
        let door = &doors[next % doors.len()];
        next += 1;
        while let Err(back) = door.arrivals.push(arrival) {
            arrival = back;
            door.bell.ring();
            thread::sleep(Duration::from_millis(1));
        }
        door.bell.ring();
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    // With the default the kernel takes 4 MB of a stream that nobody reads.
    const SEND_BUFFER: usize = 64 * 1024;
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_send_buffer_size(SEND_BUFFER)
}
