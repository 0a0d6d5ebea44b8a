//! The few system calls that the measurements need and the standard library lacks: the clock that
//! all processes share, pinning, and readiness of thousands of sockets.
//!
//! Not a general wrapper; each function does one thing for `lag` and `raw`.
#![expect(
    unsafe_code,
    reason = "clock_gettime, sched_setaffinity, prctl, kill and epoll have no safe form in std"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of one machine share.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to fill in.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    assert_eq!(failed, 0, "CLOCK_MONOTONIC exists on every Linux");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of all live threads of a process, user and system, in nanoseconds: the same clock as
/// [`thread_cpu_ns`], where `/proc/PID/stat` would count in ticks of 10 ms.
pub(crate) fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the look.
        let Ok(line) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        total += line.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0_u64);
    }
    Ok(total)
}

/// Memory of a process that is in RAM, in bytes.
pub(crate) fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other(format!("no VmRSS of process {pid}")))
}

/// Memory of the kernel's own objects, sockets among them, in bytes.
pub(crate) fn slab_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Lets this process open as many files as an unprivileged process may.
pub(crate) fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for both calls; the second only reads it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// Lets the calling thread run only when its processor has nothing else to do.
pub(crate) fn only_when_idle() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` lives across the call and is only read; pid 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) };
}

/// Has the kernel end the program when the thread that starts it ends, however that comes about.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call, which touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Asks a process to end in good order.
pub(crate) fn ask_to_end(pid: u32) {
    // SAFETY: two integers; a process that is gone is no error that matters.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGTERM) };
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec for the call to fill in.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    assert_eq!(failed, 0, "CLOCK_THREAD_CPUTIME_ID exists on every Linux");
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Ticks that the host stole from all CPUs of this machine since boot.
pub(crate) fn steal_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    first.split_whitespace().nth(8).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Pins the calling thread to `cpu`; without effect where that is refused.
pub(crate) fn pin(cpu: usize) {
    // SAFETY: a zeroed cpu_set_t is an empty set; CPU_SET stays inside it for cpu < 1024.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu % 1024, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Lets sleeps of the calling thread end within a nanosecond of their time, not 50 µs after it.
pub(crate) fn precise_sleep() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Lets thousands of connections wait to be accepted: the standard library asks for 128.
pub(crate) fn lengthen_backlog(listener: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: two integers, of which the first is a descriptor that is open across the call.
    let failed = unsafe { libc::listen(listener.as_raw_fd(), 4_096) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends without waiting; `Ok(0)` if the socket is full.
pub(crate) fn send_now(socket: &impl AsRawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the pointer and length are those of a live slice.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    if sent >= 0 {
        return Ok(sent as usize);
    }
    match io::Error::last_os_error() {
        full if full.kind() == io::ErrorKind::WouldBlock => Ok(0),
        broken => Err(broken),
    }
}

/// Readiness of many sockets.
pub(crate) struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; a non-negative result is a descriptor that we own.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 1024] })
    }

    /// Reports `socket` as `token` whenever it is readable.
    pub(crate) fn add(&self, socket: &impl AsRawFd, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: both descriptors are open and `event` is valid for the call.
        let failed = unsafe {
            libc::epoll_ctl(
                self.fd.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket.as_raw_fd(),
                &mut event,
            )
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Fills `ready` with the tokens of the readable sockets, waiting at most `timeout_ms`.
    pub(crate) fn wait(&mut self, timeout_ms: i32, ready: &mut Vec<u64>) -> io::Result<()> {
        ready.clear();
        // SAFETY: the buffer is valid for its whole length.
        let count = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as i32,
                timeout_ms,
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        }
        ready.extend(self.events[..count as usize].iter().map(|event| event.u64));
        Ok(())
    }
}
