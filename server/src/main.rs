//! `llmsimulator`: the server.

use std::process::ExitCode;

/// musl's own allocator has one lock for all threads. glibc's has not: with it a stream takes 8.3 KiB
/// instead of 10.4 and a server at work 42 MiB instead of 67, at the same speed (`llmsim-perf scale`,
/// `soak` and `envelope` side by side, 2026-12).
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    llmsimulator::main()
}
