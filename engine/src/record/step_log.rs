//! The step log: one JSON object per line and step.
//!
//! Times are whole nanoseconds of the simulated timeline. `tokens` has every sequence of the step
//! in the order in which it was served. Queues and blocks are as the plan left them; with
//! asynchronous scheduling a step is planned while the one before it runs.

use std::io::Write;

use super::{GpuName, put, put_job, put_list, put_string};
use crate::sim::scheduler::{StepLog, StepRecord};

/// Appends the line of one of the steps of `log`.
pub fn line(gpu: GpuName<'_>, log: &StepLog, step: &StepRecord, out: &mut Vec<u8>) {
    let terms = &step.time.terms;
    out.extend_from_slice(b"{\"gpu\":");
    put_string(gpu.name, out);
    put!(
        out,
        ",\"step\":{},\"planned_ns\":{},\"start_ns\":{},\"duration_ns\":{},\"bound_by\":\"{}\"",
        step.index,
        step.planned.as_ns(),
        step.started.as_ns(),
        step.time.total.as_ns(),
        step.time.bound.as_str()
    );
    put!(
        out,
        ",\"terms_ns\":{{\"weights\":{},\"linear\":{},\"kv_read\":{},\"attention\":{},\
         \"all_reduce\":{},\"host\":{}}}",
        terms.weights.as_ns(),
        terms.linear.as_ns(),
        terms.kv_read.as_ns(),
        terms.attention.as_ns(),
        terms.all_reduce.as_ns(),
        terms.host.as_ns()
    );
    if let Some(factor) = step.residual {
        put!(out, ",\"residual\":{factor}");
    }
    out.extend_from_slice(b",\"tokens\":");
    put_list(*b"{}", log.granted(step), out, |granted, out| {
        put_job(granted.job, out);
        put!(out, ":{}", granted.tokens);
    });
    put!(
        out,
        ",\"decode_tokens\":{},\"prefill_tokens\":{},\"running\":{},\"waiting\":{},\
         \"blocks_free\":{},\"blocks\":{}",
        step.decode_tokens,
        step.prefill_tokens,
        step.after.running,
        step.after.waiting,
        step.after.free_blocks,
        gpu.usable_blocks
    );
    for (name, resumed) in [("admitted", false), ("resumed", true)] {
        put!(out, ",\"{name}\":");
        let admissions = log.admitted(step).iter().filter(|entry| entry.resumed == resumed);
        put_list(*b"{}", admissions, out, |admission, out| {
            put_job(admission.job, out);
            put!(out, ":{{\"cached\":{}}}", admission.cached);
        });
    }
    out.extend_from_slice(b",\"preempted\":");
    put_list(*b"[]", log.preempted(step), out, |job, out| put_job(*job, out));
    put!(out, ",\"admission_stopped\":\"{}\"}}\n", step.admission.as_str());
}

/// Appends a line that says how many steps of a GPU are not in the log, because whoever writes it
/// could not keep up.
pub fn missing(gpu: GpuName<'_>, steps: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"gpu\":");
    put_string(gpu.name, out);
    put!(out, ",\"missing_steps\":{steps}}}\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::samples;

    #[test]
    fn every_step_is_a_line_with_all_that_it_did() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        for step in story.log.steps() {
            line(story.gpu, &story.log, step, &mut out);
        }
        let expected = [
            // 32 tokens of 1 ms each, against 10 ms of weights, and 1 ms of overhead.
            concat!(
                r#"{"gpu":"m/0","step":1,"planned_ns":0,"start_ns":0,"duration_ns":33000000,"#,
                r#""bound_by":"compute","terms_ns":{"weights":10000000,"linear":32000000,"#,
                r#""kv_read":0,"attention":0,"all_reduce":0,"host":1000000},"#,
                r#""tokens":{"1":16,"2":16},"decode_tokens":0,"prefill_tokens":32,"running":2,"#,
                r#""waiting":0,"blocks_free":2,"blocks":4,"#,
                r#""admitted":{"1":{"cached":0},"2":{"cached":0}},"resumed":{},"preempted":[],"#,
                r#""admission_stopped":"queue_empty"}"#,
            ),
            // The second token of job 1 reads 17 tokens of context, 1 us each; job 2 would need
            // two blocks, where one is left.
            concat!(
                r#"{"gpu":"m/0","step":2,"planned_ns":33000000,"start_ns":33000000,"#,
                r#""duration_ns":11017000,"bound_by":"memory","terms_ns":{"weights":10000000,"#,
                r#""linear":1000000,"kv_read":17000,"attention":0,"all_reduce":0,"#,
                r#""host":1000000},"tokens":{"1":1},"decode_tokens":1,"prefill_tokens":0,"#,
                r#""running":1,"waiting":1,"blocks_free":2,"blocks":4,"admitted":{},"#,
                r#""resumed":{},"preempted":["2"],"admission_stopped":"preempted"}"#,
            ),
            concat!(
                r#"{"gpu":"m/0","step":3,"planned_ns":44017000,"start_ns":44017000,"#,
                r#""duration_ns":33000000,"bound_by":"compute","terms_ns":{"weights":10000000,"#,
                r#""linear":32000000,"kv_read":0,"attention":0,"all_reduce":0,"host":1000000},"#,
                r#""tokens":{"2":32},"decode_tokens":0,"prefill_tokens":32,"running":1,"#,
                r#""waiting":0,"blocks_free":2,"blocks":4,"admitted":{},"#,
                r#""resumed":{"2":{"cached":0}},"preempted":[],"#,
                r#""admission_stopped":"queue_empty"}"#,
            ),
            concat!(
                r#"{"gpu":"m/0","step":4,"planned_ns":77017000,"start_ns":77017000,"#,
                r#""duration_ns":17000000,"bound_by":"compute","terms_ns":{"weights":10000000,"#,
                r#""linear":16000000,"kv_read":32000,"attention":0,"all_reduce":0,"#,
                r#""host":1000000},"tokens":{"2":16},"decode_tokens":0,"prefill_tokens":16,"#,
                r#""running":1,"waiting":0,"blocks_free":1,"blocks":4,"admitted":{},"#,
                r#""resumed":{},"preempted":[],"admission_stopped":"queue_empty"}"#,
            ),
        ];
        let text = String::from_utf8(out).unwrap();
        for (line, expected) in text.lines().zip(expected) {
            assert_eq!(line, expected);
        }
        assert_eq!(text.lines().count(), expected.len());
    }

    #[test]
    fn a_step_that_strays_says_by_how_much() {
        use crate::sim::scheduler::Residual;
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut step = *story.log.steps().first().unwrap();
        // Half of the steps take three times as long as the others: 0.5 and 1.5.
        let residual = Residual { seed: 0, sigma: 0.0, tail_probability: 0.5, tail_factor: 3.0 };
        step.residual = Some(residual.factor(1));
        let mut out = Vec::new();
        line(story.gpu, &story.log, &step, &mut out);
        let text = String::from_utf8(out).unwrap();
        let half = text.contains(r#""host":1000000},"residual":0.500000,"tokens":"#);
        let more = text.contains(r#""host":1000000},"residual":1.500000,"tokens":"#);
        assert!(half != more, "{text}");
        let value: sonic_rs::Value = sonic_rs::from_str(&text).unwrap();
        assert!(sonic_rs::JsonValueTrait::is_object(&value), "{text}");
    }

    #[test]
    fn every_line_is_json_whatever_the_name_of_the_gpu() {
        let story = samples::a_long_prompt_is_preempted_by_decode();
        let mut out = Vec::new();
        for name in ["a \"quoted\\\n\u{2028} name", ""] {
            let gpu = GpuName { name, ..story.gpu };
            for step in story.log.steps() {
                line(gpu, &story.log, step, &mut out);
            }
        }
        missing(story.gpu, 3, &mut out);
        assert!(out.ends_with(b"{\"gpu\":\"m/0\",\"missing_steps\":3}\n"));
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().count(), 9);
        for line in text.lines() {
            let value: sonic_rs::Value = sonic_rs::from_str(line).unwrap();
            assert!(sonic_rs::JsonValueTrait::is_object(&value), "{line}");
        }
    }
}
