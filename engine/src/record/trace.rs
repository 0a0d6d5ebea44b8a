//! The same run as a trace in Chrome's JSON format, for Perfetto and `chrome://tracing`.
//!
//! Every GPU is a process. Its steps are slices on one track; batch, queue, tokens and used blocks
//! are counters; every request is a track of its own with its phases: queue, prefill, decode,
//! preempted. The file is a JSON array with one event per line; readers accept it without its last
//! bracket, which [`Trace::end`] writes.

use std::collections::BTreeMap;
use std::io::Write;

use super::{GpuName, Note, put, put_list, put_string};
use crate::sim::scheduler::{Queues, StepLog, StepRecord};
use crate::sim::{Event, Finish, What};
use crate::units::{Blocks, JobId, SimTime, Tokens};

/// A GPU of a trace; from 1, in the order in which they were introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpu(u32);

/// A trace being written. Keeps the phase of every request that is under way, and when each GPU was
/// last busy.
#[derive(Debug, Default)]
pub struct Trace {
    gpus: Vec<State>,
    phases: BTreeMap<(Gpu, JobId), Phase>,
}

/// What a trace keeps of a GPU.
#[derive(Clone, Copy, Debug)]
struct State {
    usable_blocks: Blocks,
    /// When the last step ended.
    ended: SimTime,
}

/// What a request is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Queue,
    Prefill,
    Decode,
    Preempted,
}

impl Phase {
    const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Preempted => "preempted",
        }
    }
}

impl Trace {
    /// Starts a trace.
    pub fn begin(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(
            b"[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"trace\",\"args\":{\"time\":\"simulated\"}}",
        );
        Self::default()
    }

    /// Introduces a GPU by its name.
    pub fn gpu(&mut self, gpu: GpuName<'_>, out: &mut Vec<u8>) -> Gpu {
        let GpuName { name, usable_blocks } = gpu;
        self.gpus.push(State { usable_blocks, ended: SimTime::ZERO });
        let gpu = Gpu(self.gpus.len() as u32);
        for (what, thread, name) in [("process_name", 0, name), ("thread_name", 1, "steps")] {
            put!(
                out,
                ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{thread},\"name\":\"{what}\",\
                 \"args\":{{\"name\":",
                gpu.0
            );
            put_string(name, out);
            out.extend_from_slice(b"}}");
        }
        gpu
    }

    /// A step: its slice, and the counters as its plan left them.
    pub fn step(&mut self, gpu: Gpu, log: &StepLog, step: &StepRecord, out: &mut Vec<u8>) {
        let (prefill, decode) = (step.prefill_tokens.get(), step.decode_tokens.get());
        put!(out, ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":1,\"ts\":", gpu.0);
        put_microseconds(step.started.as_ns(), out);
        out.extend_from_slice(b",\"dur\":");
        put_microseconds(step.time.total.as_ns(), out);
        out.extend_from_slice(b",\"cat\":\"step\",\"name\":\"");
        match (prefill, decode) {
            (0, _) => put!(out, "decode {decode}"),
            (_, 0) => put!(out, "prefill {prefill}"),
            _ => put!(out, "prefill {prefill} + decode {decode}"),
        }
        put!(
            out,
            "\",\"args\":{{\"step\":{},\"bound by\":\"{}\",\"sequences\":{},",
            step.index,
            step.time.bound.as_str(),
            step.sequences
        );
        let terms = &step.time.terms;
        let terms = [
            ("weights ms", terms.weights),
            ("linear ms", terms.linear),
            ("kv read ms", terms.kv_read),
            ("attention ms", terms.attention),
            ("all-reduce ms", terms.all_reduce),
            ("host ms", terms.host),
        ];
        for (name, span) in terms {
            put!(out, "\"{name}\":{},", span.as_secs_f64() * 1e3);
        }
        if let Some(factor) = step.residual {
            put!(out, "\"residual\":{factor},");
        }
        out.extend_from_slice(b"\"preempted\":");
        put_list(*b"[]", log.preempted(step), out, |job, out| put!(out, "\"{job}\""));
        put!(out, ",\"admission stopped\":\"{}\"}}}}", step.admission.as_str());

        let state = &mut self.gpus[gpu.0 as usize - 1];
        let State { usable_blocks, ended } = *state;
        state.ended = step.ended;
        if ended < step.planned {
            idle(gpu, ended, usable_blocks, out);
        }
        queues(gpu, step.planned, &step.after, usable_blocks, out);
        counters(
            gpu,
            step.started,
            "batch tokens",
            [("prefill", prefill), ("decode", decode)],
            out,
        );
    }

    /// What is to be told of a request.
    pub fn note(&mut self, gpu: Gpu, note: &Note, out: &mut Vec<u8>) {
        match *note {
            Note::Arrived { at, job, prompt } => self.arrived(gpu, at, job, prompt, out),
            Note::Happened(event) => self.event(gpu, &event, out),
            Note::Cancelled { at, job } => self.leave(gpu, at, job, "cancelled", None, out),
        }
    }

    /// Notes of a GPU were lost up to `at`: what its requests do is not known any more, so their
    /// tracks end. (Those that go on are ignored from here.)
    pub fn gap(&mut self, gpu: Gpu, at: SimTime, out: &mut Vec<u8>) {
        let mine = (gpu, JobId(0))..=(gpu, JobId(u64::MAX));
        let open: Vec<JobId> = self.phases.range(mine).map(|(&(_, job), _)| job).collect();
        for job in open {
            self.leave(gpu, at, job, "not recorded", None, out);
        }
    }

    fn arrived(&mut self, gpu: Gpu, at: SimTime, job: JobId, prompt: Tokens, out: &mut Vec<u8>) {
        request_event(b'b', gpu, at, job, "request", out);
        put!(out, ",\"args\":{{\"job\":\"{job}\",\"prompt tokens\":{prompt}}}}}");
        self.enter(gpu, at, job, Phase::Queue, out);
    }

    /// Events of requests whose arrival was not told are ignored: a trace may begin in the middle
    /// of a run.
    fn event(&mut self, gpu: Gpu, event: &Event, out: &mut Vec<u8>) {
        let (at, job) = (event.at, event.job);
        let Some(phase) = self.phases.get(&(gpu, job)).copied() else { return };
        match event.what {
            What::Admitted { .. } | What::Resumed { .. } => {
                self.enter(gpu, at, job, Phase::Prefill, out);
            }
            What::Preempted => self.enter(gpu, at, job, Phase::Preempted, out),
            What::Token { finish: None, .. } => {
                // A token that was in flight when its request was preempted changes nothing.
                if phase == Phase::Prefill {
                    self.enter(gpu, at, job, Phase::Decode, out);
                }
            }
            What::Lost => self.leave(gpu, at, job, "lost", None, out),
            What::Token { finish: Some(finish), index } => {
                let reason = match finish {
                    Finish::Stop => "stop",
                    Finish::Length => "length",
                };
                self.leave(gpu, at, job, reason, Some(index), out);
            }
        }
    }

    /// Closes the file. Requests under way stay open: readers draw them to the end.
    pub fn end(self, out: &mut Vec<u8>) {
        for (place, state) in self.gpus.iter().enumerate() {
            idle(Gpu(place as u32 + 1), state.ended, state.usable_blocks, out);
        }
        out.extend_from_slice(b"\n]\n");
    }

    fn enter(&mut self, gpu: Gpu, at: SimTime, job: JobId, phase: Phase, out: &mut Vec<u8>) {
        if let Some(before) = self.phases.insert((gpu, job), phase) {
            request_event(b'e', gpu, at, job, before.name(), out);
            out.push(b'}');
        }
        request_event(b'b', gpu, at, job, phase.name(), out);
        out.push(b'}');
    }

    fn leave(
        &mut self,
        gpu: Gpu,
        at: SimTime,
        job: JobId,
        reason: &str,
        outputs: Option<Tokens>,
        out: &mut Vec<u8>,
    ) {
        let Some(phase) = self.phases.remove(&(gpu, job)) else { return };
        request_event(b'e', gpu, at, job, phase.name(), out);
        out.push(b'}');
        request_event(b'e', gpu, at, job, "request", out);
        put!(out, ",\"args\":{{\"finish\":\"{reason}\"");
        if let Some(outputs) = outputs {
            put!(out, ",\"output tokens\":{outputs}");
        }
        out.extend_from_slice(b"}}");
    }
}

/// An event on a request's track, without its closing brace.
fn request_event(kind: u8, gpu: Gpu, at: SimTime, job: JobId, name: &str, out: &mut Vec<u8>) {
    put!(out, ",\n{{\"ph\":\"{}\",\"pid\":{},\"tid\":0,\"ts\":", char::from(kind), gpu.0);
    put_microseconds(at.as_ns(), out);
    put!(out, ",\"cat\":\"request\",\"id2\":{{\"local\":\"{:#x}\"}},\"name\":\"{name}\"", job.0);
}

/// Between two steps that do not follow each other, and after the last, a GPU holds nothing.
fn idle(gpu: Gpu, at: SimTime, usable_blocks: Blocks, out: &mut Vec<u8>) {
    let nothing = Queues { running: 0, waiting: 0, free_blocks: usable_blocks };
    queues(gpu, at, &nothing, usable_blocks, out);
    counters(gpu, at, "batch tokens", [("prefill", 0), ("decode", 0)], out);
}

fn queues(gpu: Gpu, at: SimTime, queues: &Queues, usable_blocks: Blocks, out: &mut Vec<u8>) {
    let Queues { running, waiting, free_blocks } = *queues;
    let used = usable_blocks.get().saturating_sub(free_blocks.get());
    counters(gpu, at, "requests", [("running", running), ("waiting", waiting)], out);
    counters(gpu, at, "KV blocks", [("used", used), ("free", free_blocks.get())], out);
}

fn counters(gpu: Gpu, at: SimTime, name: &str, values: [(&str, u32); 2], out: &mut Vec<u8>) {
    put!(out, ",\n{{\"ph\":\"C\",\"pid\":{},\"ts\":", gpu.0);
    put_microseconds(at.as_ns(), out);
    put!(out, ",\"name\":\"{name}\",\"args\":");
    put_list(*b"{}", values, out, |(name, value), out| put!(out, "\"{name}\":{value}"));
    out.push(b'}');
}

/// The format counts in microseconds; decimals keep it exact to the nanosecond.
fn put_microseconds(ns: u64, out: &mut Vec<u8>) {
    put!(out, "{}", ns / 1000);
    if !ns.is_multiple_of(1000) {
        put!(out, ".{:03}", ns % 1000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::samples;

    const GPU: GpuName<'static> = GpuName { name: "m/0", usable_blocks: Blocks::new(4) };

    fn at_ms(ms: u64) -> SimTime {
        SimTime::from_ns(ms * 1_000_000)
    }

    fn arrived(job: JobId, prompt: Tokens) -> Note {
        Note::Arrived { at: SimTime::ZERO, job, prompt }
    }

    fn lines(out: &[u8]) -> Vec<String> {
        String::from_utf8(out.to_vec()).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_step_is_a_slice_and_three_counters() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(story.gpu, &mut out);
        out.clear();
        let [first, second, ..] = story.log.steps() else { panic!("four steps") };
        trace.step(gpu, &story.log, first, &mut out);
        out.clear();
        trace.step(gpu, &story.log, second, &mut out);
        assert_eq!(
            lines(&out),
            [
                ",",
                concat!(
                    r#"{"ph":"X","pid":1,"tid":1,"ts":33000,"dur":11017,"cat":"step","#,
                    r#""name":"decode 1","args":{"step":2,"bound by":"memory","#,
                    r#""sequences":1,"weights ms":10,"linear ms":1,"kv read ms":0.017,"#,
                    r#""attention ms":0,"all-reduce ms":0,"host ms":1,"#,
                    r#""preempted":["2"],"admission stopped":"preempted"}},"#
                ),
                concat!(
                    r#"{"ph":"C","pid":1,"ts":33000,"name":"requests","#,
                    r#""args":{"running":1,"waiting":1}},"#
                ),
                concat!(
                    r#"{"ph":"C","pid":1,"ts":33000,"name":"KV blocks","#,
                    r#""args":{"used":2,"free":2}},"#
                ),
                concat!(
                    r#"{"ph":"C","pid":1,"ts":33000,"name":"batch tokens","#,
                    r#""args":{"prefill":0,"decode":1}}"#
                ),
            ]
        );
    }

    #[test]
    fn a_step_that_strays_says_by_how_much() {
        use crate::sim::scheduler::Residual;
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(story.gpu, &mut out);
        let mut step = *story.log.steps().first().unwrap();
        let residual = Residual { seed: 0, sigma: 0.0, tail_probability: 0.0, tail_factor: 1.0 };
        step.residual = Some(residual.factor(1));
        out.clear();
        trace.step(gpu, &story.log, &step, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(r#""host ms":1,"residual":1.000000,"preempted":"#), "{text}");
    }

    #[test]
    fn counters_fall_to_zero_when_the_gpu_idles() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let [first, .., last] = story.log.steps() else { panic!("four steps") };
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(story.gpu, &mut out);
        let idle_at = |out: &[u8], at: &str| {
            let running =
                format!(r#""ts":{at},"name":"requests","args":{{"running":0,"waiting":0}}"#);
            let used = format!(r#""ts":{at},"name":"KV blocks","args":{{"used":0,"free":4}}"#);
            let text = String::from_utf8(out.to_vec()).unwrap();
            text.contains(&running) && text.contains(&used)
        };
        // The first step ends at 33 ms; were there none until the last one, at 77.017 ms, nothing
        // would run in between. That one ends at 94.017 ms.
        trace.step(gpu, &story.log, first, &mut out);
        assert!(!idle_at(&out, "33000"));
        trace.step(gpu, &story.log, last, &mut out);
        assert!(idle_at(&out, "33000"));
        assert!(!idle_at(&out, "94017"));
        trace.end(&mut out);
        assert!(idle_at(&out, "94017"));
    }

    /// The events of one request: kind, microseconds, name.
    fn told(out: &[u8], job: &str) -> Vec<String> {
        let field = |line: &str, name: &str| {
            let start = line.find(name).unwrap() + name.len();
            line[start..].chars().take_while(|c| !",\"".contains(*c)).collect::<String>()
        };
        lines(out)
            .iter()
            .filter(|line| line.contains(&format!("\"id2\":{{\"local\":\"{job}\"}}")))
            .map(|line| {
                let (kind, at) = (field(line, "\"ph\":\""), field(line, "\"ts\":"));
                format!("{kind} {at} {}", field(line, "\"name\":\""))
            })
            .collect()
    }

    #[test]
    fn a_request_waits_computes_is_preempted_returns_and_ends() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(story.gpu, &mut out);
        for job in &story.jobs {
            trace.note(gpu, &arrived(job.id, job.prompt), &mut out);
        }
        for event in &story.events {
            trace.note(gpu, &Note::Happened(*event), &mut out);
        }
        assert_eq!(
            told(&out, "0x1"),
            [
                "b 0 request",
                "b 0 queue",
                "e 0 queue",
                "b 0 prefill",
                "e 33000 prefill",
                "b 33000 decode",
                "e 44017 decode",
                "e 44017 request",
            ]
        );
        assert_eq!(
            told(&out, "0x2"),
            [
                "b 0 request",
                "b 0 queue",
                "e 0 queue",
                "b 0 prefill",
                "e 33000 prefill",
                "b 33000 preempted",
                "e 44017 preempted",
                "b 44017 prefill",
                "e 94017 prefill",
                "e 94017 request",
            ]
        );
        assert!(trace.phases.is_empty());
    }

    #[test]
    fn a_token_in_flight_does_not_end_a_preemption() {
        let happened = |ms, what| Note::Happened(Event { at: at_ms(ms), job: JobId(1), what });
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(GPU, &mut out);
        trace.note(gpu, &arrived(JobId(1), Tokens::new(9)), &mut out);
        trace.note(gpu, &happened(1, What::Admitted { cached: Tokens::ZERO }), &mut out);
        trace.note(gpu, &happened(2, What::Preempted), &mut out);
        out.clear();
        let token = What::Token { index: Tokens::new(1), finish: None };
        trace.note(gpu, &happened(3, token), &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn a_cancelled_request_ends_and_what_is_not_known_is_ignored() {
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let gpu = trace.gpu(GPU, &mut out);
        trace.note(gpu, &arrived(JobId(1), Tokens::new(9)), &mut out);
        trace.note(gpu, &Note::Cancelled { at: at_ms(2), job: JobId(1) }, &mut out);
        assert!(lines(&out).last().unwrap().contains("cancelled"));
        out.clear();
        trace.note(gpu, &Note::Cancelled { at: at_ms(3), job: JobId(1) }, &mut out);
        let stranger = Event { at: at_ms(3), job: JobId(2), what: What::Preempted };
        trace.note(gpu, &Note::Happened(stranger), &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn after_a_gap_the_requests_of_that_gpu_are_not_known_any_more() {
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let (first, second) = (trace.gpu(GPU, &mut out), trace.gpu(GPU, &mut out));
        for (gpu, job) in [(first, 1), (first, u64::MAX), (second, 2)] {
            trace.note(gpu, &arrived(JobId(job), Tokens::new(9)), &mut out);
        }
        out.clear();
        trace.gap(first, at_ms(5), &mut out);
        assert_eq!(told(&out, "0x1"), ["e 5000 queue", "e 5000 request"]);
        assert_eq!(told(&out, "0xffffffffffffffff"), ["e 5000 queue", "e 5000 request"]);
        assert_eq!(told(&out, "0x2"), Vec::<String>::new());
        assert_eq!(trace.phases.len(), 1);
    }

    #[test]
    fn the_whole_is_a_json_array_and_every_line_of_it_an_event() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        let mut trace = Trace::begin(&mut out);
        let first = trace.gpu(GpuName { name: "a \"quoted\" name", ..story.gpu }, &mut out);
        let second = trace.gpu(story.gpu, &mut out);
        assert_ne!(first, second);
        for step in story.log.steps() {
            trace.step(second, &story.log, step, &mut out);
        }
        trace.note(second, &arrived(JobId(u64::MAX), Tokens::new(9)), &mut out);
        trace.end(&mut out);
        let text = String::from_utf8(out).unwrap();
        let events: Vec<sonic_rs::Value> = sonic_rs::from_str(&text).unwrap();
        // Begin, 2 x (process, thread), 4 x (slice, 3 counters), request and its queue, and 2 x 3
        // counters at the end.
        assert_eq!(events.len(), 1 + 4 + 16 + 2 + 6);
        for line in text.lines().filter(|line| line.len() > 1) {
            let event = line.trim_end_matches(',');
            assert!(sonic_rs::from_str::<sonic_rs::Value>(event).is_ok(), "{line}");
        }
    }
}
