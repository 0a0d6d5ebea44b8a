//! The client's monoio runtime, on io_uring where the kernel allows it, else on epoll.

use std::future::Future;

use crate::args::IoDriver;

/// Entries of the ring: requests in flight are not bounded by it.
const ENTRIES: u32 = 1024;

/// Runs `main` to its end on a fresh runtime of this thread; it is told which driver was taken.
///
/// # Errors
/// A sentence if no runtime can be built.
pub fn block_on<F, Fut>(driver: IoDriver, main: F) -> Result<Fut::Output, String>
where
    F: FnOnce(&'static str) -> Fut,
    Fut: Future,
{
    if driver != IoDriver::Epoll {
        // The fusion driver looks for itself whether io_uring is allowed; it does not notice that
        // the locked-memory limit is too small until it builds the ring.
        let uring = monoio::utils::detect_uring();
        let built = monoio::RuntimeBuilder::<monoio::FusionDriver>::new()
            .with_entries(ENTRIES)
            .enable_timer()
            .build();
        match built {
            Ok(_) if driver == IoDriver::Uring && !uring => {
                return Err(
                    "--io-driver uring: this kernel or container does not allow io_uring; \
                            try --io-driver auto"
                        .into(),
                );
            }
            Ok(mut runtime) => {
                let name = if uring { "io_uring" } else { "epoll" };
                return Ok(runtime.block_on(main(name)));
            }
            Err(error) if driver == IoDriver::Uring => {
                return Err(format!(
                    "--io-driver uring: {error} (is `ulimit -l` too small?); try --io-driver auto"
                ));
            }
            Err(_) => {}
        }
    }
    let mut runtime = monoio::RuntimeBuilder::<monoio::LegacyDriver>::new()
        .enable_timer()
        .build()
        .map_err(|error| format!("cannot start the I/O runtime: {error}"))?;
    Ok(runtime.block_on(main("epoll")))
}
