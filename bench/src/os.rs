//! What the operating system has to be asked for: CPU time, memory, signals, timer slack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use llmsim_engine::units::SimSpan;

/// Asks for wake-ups without the default 50 us of slack, for the calling thread. Best effort.
#[expect(unsafe_code, reason = "prctl has no safe wrapper in the standard library")]
pub fn finest_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64);
    }
}

/// When the first SIGINT or SIGTERM arrived, on the monotonic clock; 0 before.
static FIRST_INTERRUPT_NS: AtomicU64 = AtomicU64::new(0);

/// A second signal sooner than this is the same wish, told twice: `timeout -s INT` signals its
/// child and then the child's whole group, terminals and shells do the like.
const SAME_WISH: SimSpan = SimSpan::from_ms(1_000);

/// From now on the first SIGINT or SIGTERM is only noted (see [`interrupted`]); another one a
/// second later or more ends the program.
#[expect(unsafe_code, reason = "sigaction has no safe wrapper in the standard library")]
pub fn catch_interrupts() {
    extern "C" fn note(signal: libc::c_int) {
        let now = monotonic_ns();
        let first =
            FIRST_INTERRUPT_NS.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire).err();
        if first.is_some_and(|first| is_another_wish(first, now)) {
            // SAFETY: both are async-signal-safe and touch no memory of ours. The signal is blocked
            // while its handler runs and is delivered to the default action when it returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    }
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler reads a clock, touches an atomic and restores the default action, all
        // async-signal-safe; the struct is fully initialised (zero is valid for all its fields)
        // before it is passed on.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigemptyset(&raw mut action.sa_mask);
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

const fn is_another_wish(first_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(first_ns) >= SAME_WISH.as_ns()
}

/// The standard library's clock is not promised to be safe inside a signal handler; this one is.
#[expect(unsafe_code, reason = "clock_gettime is the async-signal-safe clock")]
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the timespec lives on this stack and is written by the call.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
    }
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    (part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)).max(1)
}

/// True once SIGINT or SIGTERM has arrived.
pub fn interrupted() -> bool {
    FIRST_INTERRUPT_NS.load(Ordering::Acquire) > 0
}

/// CPU time that the calling thread has used; zero where the kernel does not tell.
pub fn thread_cpu() -> SimSpan {
    cpu_from("/proc/thread-self/schedstat")
}

fn cpu_from(path: &str) -> SimSpan {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|word| word.parse().ok());
    SimSpan::from_ns(ns.unwrap_or(0))
}

/// The most memory that this process has had resident, in bytes; 0 where unknown.
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|word| word.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The width of the terminal that stderr is, in characters; `None` if it is none or does not tell.
#[expect(unsafe_code, reason = "the window size has no safe wrapper in the standard library")]
pub fn stderr_columns() -> Option<usize> {
    // SAFETY: TIOCGWINSZ fills in the struct, which lives on this stack; zero is valid for all its
    // fields.
    let (refused, size) = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        let refused = libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) != 0;
        (refused, size)
    };
    (!refused && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Raises the soft limit of open files to the hard one and tells it.
#[expect(unsafe_code, reason = "setrlimit has no safe wrapper in the standard library")]
pub fn raise_open_files() -> u64 {
    // SAFETY: both calls get a pointer to a fully initialised struct on this stack.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 1024;
        }
        let wanted = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) == 0 {
            return limit.rlim_max;
        }
        limit.rlim_cur
    }
}

/// True if the peer has closed `fd` or sent bytes that nobody asked for: an idle connection in that
/// state must not be used for another request.
#[expect(unsafe_code, reason = "monoio offers no peek that returns at once")]
pub fn has_unexpected_input(fd: std::os::fd::RawFd) -> bool {
    let mut byte = 0_u8;
    // SAFETY: the buffer is one byte on this stack; the descriptor belongs to a socket that the
    // caller keeps open. MSG_PEEK takes nothing from it, MSG_DONTWAIT never blocks.
    let got =
        unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    let would_block =
        got < 0 && std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock;
    !would_block
}

/// Asks the kernel to stamp what arrives on the socket `fd`; false where it does not.
#[expect(unsafe_code, reason = "monoio gives no access to socket options")]
pub fn stamp_arrivals(fd: std::os::fd::RawFd) -> bool {
    let on: libc::c_int = 1;
    // SAFETY: the option takes one int, which lives on this stack; the descriptor belongs to a
    // socket that the caller keeps open.
    let refused = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    refused == 0
}

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// How many bytes; 0 at the end of the stream.
    pub bytes: usize,
    /// How long ago the kernel had them, if it stamps them.
    pub age: Option<SimSpan>,
}

/// Reads what has arrived on the socket `fd`; `None` if nothing has.
///
/// # Errors
/// The kernel's.
#[expect(unsafe_code, reason = "only recvmsg hands out the kernel's stamp")]
pub fn receive_now(fd: std::os::fd::RawFd, buffer: &mut [u8]) -> std::io::Result<Option<Received>> {
    // Room for one timespec with its header, aligned as control messages must be.
    let mut control = [0_u64; 8];
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: zero is valid for all fields of msghdr; its pointers are then set to buffers that
    // outlive the call, with their true lengths. MSG_DONTWAIT never blocks.
    let (got, message) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        (libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT), message)
    };
    let Ok(bytes) = usize::try_from(got) else {
        return match std::io::Error::last_os_error() {
            error if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            error => Err(error),
        };
    };
    // SAFETY: the kernel has filled in control messages within the length that it set; the macros
    // stay inside it, and a timespec may be read unaligned.
    let stamp = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_stamp = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_TIMESTAMPNS;
        is_stamp.then(|| libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned())
    };
    Ok(Some(Received { bytes, age: stamp.and_then(age_of) }))
}

/// Time since a stamp of the wall clock; `None` if the clock was set in between.
fn age_of(stamp: libc::timespec) -> Option<SimSpan> {
    let then = Duration::new(stamp.tv_sec.try_into().ok()?, stamp.tv_nsec.try_into().ok()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let age = now.checked_sub(then).filter(|age| *age < Duration::from_secs(10))?;
    Some(SimSpan::from_ns(u64::try_from(age.as_nanos()).ok()?))
}

/// Hands as much of `bytes` to the socket `fd` as it takes at once; tells how much.
///
/// # Errors
/// The kernel's; a full buffer is not one, it takes 0 bytes.
#[expect(unsafe_code, reason = "monoio sends only when the runtime submits, after the stamp")]
pub fn send_now(fd: std::os::fd::RawFd, bytes: &[u8]) -> std::io::Result<usize> {
    // SAFETY: pointer and length are those of a live slice; the descriptor belongs to a socket that
    // the caller keeps open. MSG_DONTWAIT never blocks, MSG_NOSIGNAL raises no SIGPIPE.
    let sent = unsafe {
        libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(sent) => Ok(sent),
        Err(_) => match std::io::Error::last_os_error() {
            error if error.kind() == std::io::ErrorKind::WouldBlock => Ok(0),
            error => Err(error),
        },
    }
}

/// Restricts the process to the CPUs of a list such as `0,2-3`.
///
/// # Errors
/// A sentence if the list cannot be read or the kernel refuses it.
#[expect(unsafe_code, reason = "sched_setaffinity has no safe wrapper in the standard library")]
pub fn use_cpus(list: &str) -> Result<(), String> {
    let wrong = || format!("--cpus: '{list}' is no list of CPUs; write '0' or '0,2-3'");
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.trim().parse().map_err(|_| wrong())?;
        let last: usize = last.trim().parse().map_err(|_| wrong())?;
        if first > last || last >= libc::CPU_SETSIZE as usize {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    // SAFETY: a zeroed cpu_set_t is an empty set; every index was checked against CPU_SETSIZE.
    let refused = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for cpu in cpus {
            libc::CPU_SET(cpu, &mut set);
        }
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) != 0
    };
    if refused {
        return Err(format!("--cpus {list}: {}", std::io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_another_wish;

    #[test]
    fn signals_within_a_second_are_one_wish() {
        let first = 5_000_000_000;
        let after = |ms: u64| is_another_wish(first, first + ms * 1_000_000);
        assert_eq!([after(0), after(999), after(1_000), after(9_000)], [false, false, true, true]);
    }
}
