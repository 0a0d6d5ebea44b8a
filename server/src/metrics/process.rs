//! What Linux tells of this process: processor time of each kind of thread, time spent waiting for
//! a processor, memory, files.
//!
//! Read from `/proc/self`; what is not there is left out or zero, and never an error. The invariant:
//! only helper and observer threads call this, since a look takes up to a millisecond.

use std::fs;

/// Kinds of threads, as their names begin.
const ROLES: [&str; 4] = ["gpu", "io", "helper", "other"];

/// One thread of a kind whose lateness is lag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimingThread {
    id: u64,
    /// Ready to run, and not running.
    pub(crate) waited_ns: u64,
    /// Times that the processor was taken from it.
    pub(crate) involuntary_switches: u64,
}

/// All threads at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Threads {
    /// Per role: processor time, ns.
    pub(crate) cpu_ns: [u64; ROLES.len()],
    /// Per role: time spent ready and not running, ns.
    pub(crate) waited_ns: [u64; ROLES.len()],
    /// GPU and I/O threads.
    pub(crate) timing: Vec<TimingThread>,
    /// The kernel keeps these counts.
    pub(crate) is_known: bool,
}

impl Threads {
    pub(crate) fn look() -> Self {
        let mut threads = Self::default();
        let Ok(tasks) = fs::read_dir("/proc/self/task") else { return threads };
        for task in tasks.flatten() {
            let path = task.path();
            let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let role = role(read("comm").trim());
            let Some((cpu, waited)) = schedstat(&read("schedstat")) else { continue };
            threads.is_known |= cpu > 0;
            threads.cpu_ns[role] += cpu;
            threads.waited_ns[role] += waited;
            let id = task.file_name().to_str().and_then(|id| id.parse().ok());
            if let (Some(id), "gpu" | "io") = (id, ROLES[role]) {
                let involuntary_switches = involuntary_switches(&read("status"));
                threads.timing.push(TimingThread { id, waited_ns: waited, involuntary_switches });
            }
        }
        threads
    }

    /// The largest share of `elapsed_ns` that a GPU or I/O thread stood ready and did not run.
    pub(crate) fn starved_since(&self, earlier: &Self, elapsed_ns: u64) -> Option<f64> {
        if !self.is_known || elapsed_ns == 0 {
            return None;
        }
        let waited = self.pairs(earlier).map(|(now, then)| {
            now.waited_ns.saturating_sub(then.waited_ns) as f64 / elapsed_ns as f64
        });
        Some(waited.fold(0.0, f64::max))
    }

    /// How often the processor was taken from GPU and I/O threads.
    pub(crate) fn switches_since(&self, earlier: &Self) -> u64 {
        let switches = self
            .pairs(earlier)
            .map(|(now, then)| now.involuntary_switches.saturating_sub(then.involuntary_switches));
        switches.sum()
    }

    fn pairs<'a>(
        &'a self,
        earlier: &'a Self,
    ) -> impl Iterator<Item = (&'a TimingThread, &'a TimingThread)> {
        self.timing.iter().filter_map(|now| {
            let then = earlier.timing.iter().find(|then| then.id == now.id)?;
            Some((now, then))
        })
    }

    /// Seconds per role.
    pub(crate) fn seconds(of: &[u64; ROLES.len()]) -> Vec<(&'static str, f64)> {
        ROLES.iter().zip(of).map(|(role, ns)| (*role, *ns as f64 / 1e9)).collect()
    }
}

fn role(name: &str) -> usize {
    let kind = name.split('-').next().unwrap_or_default();
    ROLES.iter().position(|role| *role == kind).unwrap_or(ROLES.len() - 1)
}

/// Time on a processor and time waiting for one, ns.
fn schedstat(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

fn involuntary_switches(status: &str) -> u64 {
    number_after(status, "nonvoluntary_ctxt_switches:")
}

/// Resident memory, bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    number_after(&status, "VmRSS:") * 1024
}

/// Open file descriptors.
pub(crate) fn open_files() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |files| files.count() as u64)
}

fn number_after(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_apart_by_their_names() {
        for (name, kind) in
            [("gpu-0", "gpu"), ("io-11", "io"), ("helper-1", "helper"), ("acceptor", "other")]
        {
            assert_eq!(ROLES[role(name)], kind);
        }
    }

    #[test]
    fn the_kernel_s_files_are_read_as_they_are_written() {
        assert_eq!(schedstat("123456789 42 17\n"), Some((123_456_789, 42)));
        assert_eq!(schedstat(""), None);
        let status = "Name:\tio-0\nVmRSS:\t    5120 kB\nnonvoluntary_ctxt_switches:\t31\n";
        assert_eq!(involuntary_switches(status), 31);
        assert_eq!(number_after(status, "VmRSS:"), 5120);
    }

    #[test]
    fn the_most_starved_timing_thread_counts() {
        let thread = |id, waited_ns| TimingThread { id, waited_ns, involuntary_switches: id };
        let at = |waits: [u64; 2]| Threads {
            timing: vec![thread(1, waits[0]), thread(2, waits[1])],
            is_known: true,
            ..Threads::default()
        };
        let (before, after) = (at([0, 50]), at([100, 450]));
        assert_eq!(after.starved_since(&before, 1_000), Some(0.4));
        let unknown = Threads { is_known: false, ..after };
        assert_eq!(unknown.starved_since(&before, 1_000), None);
    }
}
