//! The few system calls that no safe crate in use wraps.
//!
//! Not a portability layer: Linux only. Every block says why it is sound; nothing here keeps a
//! pointer or a descriptor beyond the call.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use monoio::net::TcpStream;
use socket2::SockRef;

/// Sends what the socket takes now; never waits.
///
/// # Errors
/// `WouldBlock` if it takes nothing; else the connection is broken.
pub(crate) fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    SockRef::from(&descriptor(stream))
        .send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// A socket's number, for whoever holds the socket itself, too, and must not go through three
/// pointers to it for every token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number(RawFd);

impl Number {
    pub(crate) fn of(stream: &impl AsRawFd) -> Self {
        Self(stream.as_raw_fd())
    }

    /// For an operation of io_uring.
    pub(crate) fn in_ring(self) -> io_uring::types::Fd {
        io_uring::types::Fd(self.0)
    }

    /// [`send`] by number.
    ///
    /// # Errors
    /// As [`send`].
    pub(crate) fn send(self, bytes: &[u8]) -> io::Result<usize> {
        // The call itself: libc's `send` is a point where a thread can be cancelled, which none of
        // ours ever is, and in a process of many threads that takes two atomic operations a token.
        #[expect(unsafe_code, reason = "a system call without libc's function for it")]
        // SAFETY: the kernel reads `bytes`, which live across the call, and no address. Numbers are
        // kept only beside the connection that owns the stream, which closes its descriptor only when
        // the last of its owners is dropped.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                libc::c_long::from(self.0),
                bytes.as_ptr(),
                bytes.len(),
                libc::c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL),
                std::ptr::null::<libc::sockaddr>(),
                0 as libc::c_long,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Reads what has arrived; never waits, since all our sockets are non-blocking.
///
/// # Errors
/// `WouldBlock` if nothing has; else the connection is broken.
pub(crate) fn receive(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    (&*SockRef::from(&descriptor(stream))).read(buffer)
}

/// Whether the other side has closed or broken the connection, even if bytes that came before that
/// are not read yet; never waits.
pub(crate) fn has_hung_up(stream: &TcpStream) -> bool {
    let mut asked = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    #[expect(unsafe_code, reason = "poll has no safe wrapper")]
    // SAFETY: one pollfd, which lives across the call, and its count; the descriptor is `stream`'s
    // and open.
    let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
    ready > 0 && asked.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Tells the other side that nothing more will be sent.
///
/// # Errors
/// The connection is broken already.
pub(crate) fn close_write(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(&descriptor(stream)).shutdown(Shutdown::Write)
}

/// The end of the connection will be a reset, and what has not been sent is lost.
pub(crate) fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    SockRef::from(&descriptor(stream)).set_linger(Some(std::time::Duration::ZERO))
}

/// Reads and writes a socket without waiting, for whoever asks for that in the library's words.
pub(crate) struct Now<'a>(pub(crate) &'a TcpStream);

impl io::Read for Now<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        receive(self.0, into)
    }
}

impl io::Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn descriptor(stream: &TcpStream) -> BorrowedFd<'_> {
    let raw = stream.as_raw_fd();
    #[expect(unsafe_code, reason = "monoio's stream has AsRawFd but not AsFd")]
    // SAFETY: `stream` owns the descriptor and closes it only when dropped; the result borrows
    // `stream`, so it cannot outlive it.
    unsafe {
        BorrowedFd::borrow_raw(raw)
    }
}

/// Lets this thread's timed waits end as close to their time as the kernel can (the default is
/// 50 µs of slack; measured effect: median error 145 → 105 µs idle, 93 → 44 µs busy).
pub(crate) fn smallest_timer_slack() {
    #[expect(unsafe_code, reason = "prctl has no safe wrapper")]
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches only the calling thread.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64);
    }
}

/// Keeps this thread, and all that it starts from now on, on these processors.
///
/// # Errors
/// If none of them exists or may be used.
pub(crate) fn use_only(cpus: &BTreeSet<usize>) -> io::Result<()> {
    #[expect(unsafe_code, reason = "processor sets have no safe wrapper")]
    // SAFETY: an all-zero set is a valid, empty one; CPU_SET ignores numbers beyond its size; the
    // call reads the set, which lives across it, and pid 0 is the calling thread.
    let refused = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as usize) {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks for real-time scheduling of this thread.
///
/// # Errors
/// The kernel's refusal; without `CAP_SYS_NICE` or an rtprio limit that is the usual answer.
pub(crate) fn realtime(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    #[expect(unsafe_code, reason = "sched_setscheduler has no safe wrapper")]
    // SAFETY: `param` lives across the call and is only read; pid 0 is the calling thread.
    let refused = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const param) };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks for turns of `slice` on the processor, at least 0.1 ms: when this thread wakes, it need not
/// wait until a thread with longer turns has had its own, which is 1.4 ms by default and then as long
/// as the next tick. Its share of the time stays what it is, and its niceness; no privilege is
/// needed. Kernels before 6.12 take no notice, and threads in real time have no turns.
pub(crate) fn short_turns(slice: Duration) {
    const NO_FLAGS: libc::c_uint = 0;
    let Some(mut attributes) = scheduling() else { return };
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attributes.sched_runtime = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    #[expect(unsafe_code, reason = "sched_setattr has no wrapper, not even in libc")]
    // SAFETY: the kernel only reads the attributes, which live across the call and say their own size;
    // thread 0 is the calling one. A refusal leaves things as they were, which is harmless.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, NO_FLAGS);
    }
}

/// How this thread is scheduled; nothing if the kernel does not say.
fn scheduling() -> Option<libc::sched_attr> {
    const NO_FLAGS: libc::c_uint = 0;
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    #[expect(unsafe_code, reason = "sched_getattr has no wrapper, not even in libc")]
    // SAFETY: an all-zero sched_attr is a valid value of that plain C struct, of which the kernel writes
    // at most `size` bytes; thread 0 is the calling one.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let refused =
            libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, NO_FLAGS);
        (refused == 0).then_some(attributes)
    }
}

/// Lets all other threads of the process go first.
pub(crate) fn lowest_priority() {
    #[expect(unsafe_code, reason = "setpriority has no safe wrapper")]
    // SAFETY: three integers; on Linux PRIO_PROCESS with 0 means the calling thread. A refusal
    // leaves the priority as it was, which is harmless.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 10);
    }
}

/// How often the kernel has taken the processor from this thread against its will.
pub(crate) fn involuntary_switches() -> u64 {
    #[expect(unsafe_code, reason = "getrusage has no safe wrapper")]
    // SAFETY: an all-zero rusage is a valid value of that plain C struct, and the kernel writes
    // only into it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

/// A resource limit: what holds now, and how far an unprivileged process may raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// Raises the number of files that may be open to the hard limit, and returns what came of it.
pub(crate) fn raise_open_files() -> Limit {
    let before = limit(libc::RLIMIT_NOFILE);
    let wanted = libc::rlimit { rlim_cur: before.hard, rlim_max: before.hard };
    #[expect(unsafe_code, reason = "setrlimit has no safe wrapper")]
    // SAFETY: `wanted` lives across the call and is only read.
    unsafe {
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted);
    }
    limit(libc::RLIMIT_NOFILE)
}

/// How many bytes may be locked in memory: io_uring's rings count against it.
pub(crate) fn locked_memory() -> Limit {
    limit(libc::RLIMIT_MEMLOCK)
}

fn limit(resource: libc::__rlimit_resource_t) -> Limit {
    let mut answer = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    #[expect(unsafe_code, reason = "getrlimit has no safe wrapper")]
    // SAFETY: the kernel writes only into `answer`, which lives across the call.
    unsafe {
        libc::getrlimit(resource, &raw mut answer);
    }
    Limit { soft: answer.rlim_cur, hard: answer.rlim_max }
}

/// Keeps SIGINT and SIGTERM from killing the process, in this thread and all that it starts from
/// now on, so that [`wait_for_stop_signal`] can fetch them.
pub(crate) fn hold_stop_signals() {
    let set = stop_signals();
    #[expect(unsafe_code, reason = "pthread_sigmask has no safe wrapper")]
    // SAFETY: `set` is initialised and only read; the old mask is not asked for.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Waits for SIGINT or SIGTERM, held by [`hold_stop_signals`], and returns which came.
pub(crate) fn wait_for_stop_signal() -> i32 {
    let set = stop_signals();
    let mut signal = 0;
    #[expect(unsafe_code, reason = "sigwait has no safe wrapper")]
    // SAFETY: both pointers are to live locals; sigwait reads the first and writes the second.
    unsafe {
        libc::sigwait(&raw const set, &raw mut signal);
    }
    signal
}

fn stop_signals() -> libc::sigset_t {
    #[expect(unsafe_code, reason = "signal sets have no safe wrapper")]
    // SAFETY: sigemptyset initialises the set before anything reads it, and an all-zero value of
    // that plain C struct is valid to begin with.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_the_turns_that_it_asks_for_where_the_kernel_has_such() {
        let (before, after) = std::thread::spawn(|| {
            let before = scheduling();
            short_turns(Duration::from_micros(200));
            (before, scheduling())
        })
        .join()
        .unwrap();
        let (Some(before), Some(after)) = (before, after) else { return };
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, before.sched_nice);
        // Kernels before 6.12 tell no turns of such threads.
        if before.sched_policy == libc::SCHED_OTHER as u32 && before.sched_runtime != 0 {
            assert_eq!(after.sched_runtime, 200_000);
        }
    }
}
