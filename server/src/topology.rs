//! Which threads there are, and on which processors.
//!
//! Pure: it is told what the machine allows and what the user wants, and starts nothing. The
//! invariant: threads are pinned only if each pinned thread has a processor that no other thread
//! of the server is pinned to, but for the one GPU thread of a machine of two processors, which
//! stands on the I/O thread's; and nothing spins unless a processor would be left over.

use std::fmt;

use crate::args::Spin;

/// What the process may really use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Processors in the affinity mask, ascending.
    pub(crate) allowed: Vec<usize>,
    /// Processors' worth of time that the mask and the cgroup quota leave.
    pub(crate) parallelism: usize,
}

impl Machine {
    /// Asks the operating system.
    pub(crate) fn look() -> Self {
        let parallelism = std::thread::available_parallelism().map_or(1, usize::from);
        let allowed: Vec<usize> = core_affinity::get_core_ids()
            .unwrap_or_default()
            .into_iter()
            .map(|core| core.id)
            .collect();
        Self { allowed, parallelism }
    }
}

/// What the user asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) io_threads: Option<usize>,
    pub(crate) no_pin: bool,
    pub(crate) spin: Spin,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// One entry per I/O thread: its processor, if it is pinned.
    pub(crate) io: Vec<Option<usize>>,
    /// One entry per GPU thread.
    pub(crate) gpu: Vec<GpuSeats>,
    pub(crate) spin: Spin,
}

/// The simulated GPUs that one thread runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuSeats {
    pub(crate) cpu: Option<usize>,
    /// Which of the GPUs, by number.
    pub(crate) gpus: Vec<usize>,
}

/// How often the simulated GPUs have tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// All of a batch in a step of some milliseconds.
    Steps,
    /// Some of them now and then, at any time: one of them at least is of `fixed_rate`.
    Streams,
}

/// More I/O threads than this gain nothing: one serves about 230,000 tokens/s.
const MOST_IO_THREADS: usize = 16;

/// Lays out threads for `gpus` simulated GPUs that need a timeline of their own.
pub(crate) fn plan(machine: &Machine, gpus: usize, pace: Pace, wishes: &Wishes) -> Topology {
    let cpus = &machine.allowed;
    let cores = match cpus.len() {
        0 => machine.parallelism.max(1),
        allowed => allowed.min(machine.parallelism).max(1),
    };

    // Up to three processors: one I/O thread, one GPU thread, and room for the client or the
    // kernel. Beyond, a quarter of them runs GPUs and one is left over.
    let gpu_threads = if gpus == 0 {
        0
    } else if cores <= 3 {
        1
    } else {
        gpus.min((cores / 4).max(1))
    };
    let io_threads = wishes
        .io_threads
        .unwrap_or(if cores <= 3 { 1 } else { cores - gpu_threads - 1 })
        .clamp(1, MOST_IO_THREADS);
    let threads = io_threads + gpu_threads;

    // A quota below the mask means that pinned threads would be stopped on their processor while
    // others are idle; then the kernel is left to choose.
    let may_pin = !wishes.no_pin && !cpus.is_empty() && cpus.len() <= machine.parallelism;
    let pin_io = may_pin && cpus.len() >= threads;
    let pin_gpu = may_pin && cpus.len() > threads;
    // With two processors the client, or the kernel's half of it, has the second. The GPU thread then
    // stands on the first, where its step wakes an I/O thread whose processor is awake already: 2 µs,
    // against 17 µs and more for a processor that the host has halted (KVM guest, kernel 6.18,
    // 2026-12). While the GPU thread works, the I/O thread has nothing to send. Streams with timetables
    // of their own are another matter: they keep both threads busy at the same time.
    let shares = may_pin
        && pace == Pace::Steps
        && cpus.len() == threads
        && (io_threads, gpu_threads) == (1, 1)
        // One that never sleeps would take half of the I/O thread's time.
        && wishes.spin != Spin::Always;
    let mut free = cpus.iter().copied();
    let io: Vec<_> = (0..io_threads).map(|_| if pin_io { free.next() } else { None }).collect();
    let mut place = || {
        if pin_gpu {
            free.next()
        } else if shares {
            io[0]
        } else {
            None
        }
    };
    let mut gpu: Vec<GpuSeats> =
        (0..gpu_threads).map(|_| GpuSeats { cpu: place(), gpus: Vec::new() }).collect();
    for number in 0..gpus {
        gpu[number % gpu_threads].gpus.push(number);
    }

    let taken = if shares { 1 } else { threads };
    let spin = match wishes.spin {
        Spin::Auto if cores > taken => Spin::Auto,
        Spin::Auto => Spin::Never,
        asked => asked,
    };
    Topology { io, gpu, spin }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = |cpus: Vec<Option<usize>>| {
            let pinned: Vec<String> = cpus.iter().flatten().map(usize::to_string).collect();
            if pinned.is_empty() {
                "not pinned".to_owned()
            } else {
                format!("on processor {}", pinned.join(", "))
            }
        };
        write!(f, "{} I/O ({})", self.io.len(), cpus(self.io.clone()))?;
        if self.gpu.is_empty() {
            return f.write_str(", no GPU thread");
        }
        let gpus: usize = self.gpu.iter().map(|seats| seats.gpus.len()).sum();
        write!(
            f,
            ", {} GPU for {gpus} simulated GPU{} ({}), {}",
            self.gpu.len(),
            if gpus == 1 { "" } else { "s" },
            cpus(self.gpu.iter().map(|seats| seats.cpu).collect()),
            match self.spin {
                Spin::Auto => "short spin before a deadline",
                Spin::Never => "no spinning",
                Spin::Always => "spinning all the time",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Wishes = Wishes { io_threads: None, no_pin: false, spin: Spin::Auto };

    fn machine(cpus: usize) -> Machine {
        Machine { allowed: (0..cpus).collect(), parallelism: cpus }
    }

    fn check(machine: &Machine, gpus: usize, wishes: &Wishes, expected: &str) {
        assert_eq!(plan(machine, gpus, Pace::Steps, wishes).to_string(), expected);
    }

    #[test]
    fn on_two_processors_the_gpus_stand_beside_the_io_thread_and_leave_one_to_the_client() {
        let expected = "1 I/O (on processor 0), 1 GPU for 3 simulated GPUs (on processor 0), short \
                        spin before a deadline";
        check(&machine(2), 3, &NONE, expected);
        let second_half = Machine { allowed: vec![2, 3], parallelism: 2 };
        let expected = "1 I/O (on processor 2), 1 GPU for 1 simulated GPU (on processor 2), short \
                        spin before a deadline";
        check(&second_half, 1, &NONE, expected);
    }

    #[test]
    fn on_two_processors_streams_with_timetables_of_their_own_leave_the_gpus_free() {
        assert_eq!(
            plan(&machine(2), 1, Pace::Streams, &NONE).to_string(),
            "1 I/O (on processor 0), 1 GPU for 1 simulated GPU (not pinned), no spinning",
        );
    }

    #[test]
    fn on_two_processors_more_io_threads_than_one_leave_nobody_a_place_of_its_own() {
        let wishes = Wishes { io_threads: Some(2), ..NONE };
        check(
            &machine(2),
            1,
            &wishes,
            "2 I/O (not pinned), 1 GPU for 1 simulated GPU (not pinned), no spinning",
        );
        let wishes = Wishes { no_pin: true, ..NONE };
        check(
            &machine(2),
            1,
            &wishes,
            "1 I/O (not pinned), 1 GPU for 1 simulated GPU (not pinned), no spinning",
        );
    }

    #[test]
    fn a_gpu_thread_that_never_sleeps_does_not_stand_beside_the_io_thread() {
        let wishes = Wishes { spin: Spin::Always, ..NONE };
        check(
            &machine(2),
            1,
            &wishes,
            "1 I/O (on processor 0), 1 GPU for 1 simulated GPU (not pinned), spinning all the time",
        );
    }

    #[test]
    fn one_processor_pins_nothing() {
        check(
            &machine(1),
            1,
            &NONE,
            "1 I/O (not pinned), 1 GPU for 1 simulated GPU (not pinned), no spinning",
        );
    }

    #[test]
    fn with_processors_to_spare_every_thread_has_its_own() {
        check(
            &machine(8),
            2,
            &NONE,
            "5 I/O (on processor 0, 1, 2, 3, 4), 2 GPU for 2 simulated GPUs (on processor 5, 6), \
             short spin before a deadline",
        );
    }

    #[test]
    fn a_quota_below_the_mask_pins_nothing() {
        let quota = Machine { allowed: (0..64).collect(), parallelism: 2 };
        check(
            &quota,
            1,
            &NONE,
            "1 I/O (not pinned), 1 GPU for 1 simulated GPU (not pinned), no spinning",
        );
    }

    #[test]
    fn wishes_win() {
        let wishes = Wishes { io_threads: Some(2), no_pin: true, spin: Spin::Always };
        check(
            &machine(8),
            1,
            &wishes,
            "2 I/O (not pinned), 1 GPU for 1 simulated GPU (not pinned), spinning all the time",
        );
    }

    #[test]
    fn instant_models_need_no_gpu_thread() {
        check(&machine(2), 0, &NONE, "1 I/O (on processor 0), no GPU thread");
    }

    #[test]
    fn sixteen_gpus_on_two_processors_share_one_thread() {
        let plan = plan(&machine(2), 16, Pace::Steps, &NONE);
        assert_eq!(plan.gpu.len(), 1);
        assert_eq!(plan.gpu[0].gpus, (0..16).collect::<Vec<_>>());
    }
}
