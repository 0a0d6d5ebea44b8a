//! What steps did, as bytes for people and tools: a log of JSON lines, and a trace that
//! [Perfetto](https://ui.perfetto.dev) opens.
//!
//! Pure rendering: the caller hands over what the engine recorded and gets bytes to append to a
//! file. The invariant: whatever is cut off at a line's end is still readable, so a file can be
//! looked at while it grows, and survives a crash.

pub mod step_log;
pub mod trace;

use std::io::Write;

use crate::sim::Event;
use crate::units::{Blocks, JobId, SimTime, Tokens};

/// A simulated GPU as its records name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuName<'a> {
    /// Model and replica, for people.
    pub name: &'a str,
    /// Blocks that can be handed out at all; see [`Gauges`](crate::sim::scheduler::Gauges).
    pub usable_blocks: Blocks,
}

/// Something about a request that no step tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The engine took it.
    Arrived {
        /// When.
        at: SimTime,
        /// Which.
        job: JobId,
        /// How long its prompt is.
        prompt: Tokens,
    },
    /// Something happened to it.
    Happened(Event),
    /// Its client gave it up.
    Cancelled {
        /// When.
        at: SimTime,
        /// Which.
        job: JobId,
    },
}

/// Appends formatted text.
macro_rules! put {
    ($out:expr, $($format:tt)*) => {
        write!($out, $($format)*).expect("a Vec takes all that is written to it")
    };
}
use put;

/// Appends `"text"` as JSON.
fn put_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    crate::escape::json_string_content(text, out);
    out.push(b'"');
}

/// Appends a job as a JSON string: not every reader keeps 64 bits of a number.
fn put_job(job: JobId, out: &mut Vec<u8>) {
    put!(out, "\"{job}\"");
}

/// Appends `open`, the items with commas between, and `close`.
fn put_list<T>(
    [open, close]: [u8; 2],
    items: impl IntoIterator<Item = T>,
    out: &mut Vec<u8>,
    mut put_item: impl FnMut(T, &mut Vec<u8>),
) {
    out.push(open);
    for (place, item) in items.into_iter().enumerate() {
        if place > 0 {
            out.push(b',');
        }
        put_item(item, out);
    }
    out.push(close);
}

#[cfg(test)]
mod samples {
    use super::GpuName;
    use crate::sim::scheduler::cost::{IdealRoofline, Roofline, StepCost};
    use crate::sim::scheduler::{Recording, SchedulerSpec, Scheduling, StepLog};
    use crate::sim::{EngineSpec, Event, Job};
    use crate::units::{Blocks, JobId, SimSpan, SimTime, Tokens};

    /// What a simulated GPU did.
    pub(super) struct Story {
        pub(super) gpu: GpuName<'static>,
        pub(super) jobs: Vec<Job>,
        pub(super) log: StepLog,
        pub(super) events: Vec<Event>,
    }

    /// Four blocks of 16 tokens, 32 tokens per step. At 0 job 1 arrives with a prompt of 16 for 2
    /// tokens, and job 2 with one of 48 for 1 token.
    ///
    /// ```text
    ///  0.000 ms step 1+16 2+16
    /// 33.000 ms emit 1#1; job 1 needs its second block, job 2 two more where one is left
    /// 33.000 ms preempt 2, step 1+1
    /// 44.017 ms emit 1#2 done, step 2+32
    /// 77.017 ms step 2+16
    /// 94.017 ms emit 2#1 done
    /// ```
    pub(super) fn a_long_prompt_is_preempted_by_decode() -> Story {
        let cost = Roofline::ideal(&IdealRoofline {
            weight_bytes: 10e9,
            active_parameters: 0.5e9,
            kv_bytes_per_token: 1e6,
            bandwidth: 1e12,
            peak: 1e12,
            compute_efficiency: 1.0,
            memory_efficiency: 1.0,
            overhead: SimSpan::from_ms(1),
        });
        let spec = SchedulerSpec {
            max_num_batched_tokens: Tokens::new(32),
            max_num_seqs: 2,
            prefix_caching: false,
            scheduling: Scheduling::Synchronous,
            ..SchedulerSpec::vllm(Tokens::new(64), Blocks::new(5), StepCost::Roofline(cost))
        };
        let job = |id, prompt, output| Job {
            id: JobId(id),
            prompt: Tokens::new(prompt),
            max_tokens: Tokens::new(output),
            stop_after: None,
            priority: 0,
            chain: None,
        };
        let jobs = vec![job(1, 16, 2), job(2, 48, 1)];
        let mut engine = EngineSpec::Scheduler(Box::new(spec)).build();
        engine.record_steps(Recording::On);
        for job in &jobs {
            engine.submit(SimTime::ZERO, job.clone());
        }
        let mut events = Vec::new();
        while let Some(due) = engine.deadline() {
            engine.advance(due, &mut events);
        }
        let mut log = StepLog::default();
        engine.swap_steps(&mut log);
        let gpu = GpuName { name: "m/0", usable_blocks: engine.gauges().usable_blocks };
        Story { gpu, jobs, log, events }
    }
}
