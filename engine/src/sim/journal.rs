//! The journal of an engine: inputs and events as lines of text, both ways.
//!
//! A live thread writes down each input with the time that it told the engine; replayed offline,
//! the same inputs give the same events, byte for byte. It opens no file: lines are appended to a
//! string that the caller writes and clears. The invariant: what is written parses back to an equal
//! value, times never run back, and what is incomplete says so and is not replayed.
//!
//! Inputs: `submit NS ID prompt=N max=N [stop=N] [priority=N] [chain=HEX,HEX,…]`, `cancel NS ID`,
//! `reset NS`, `slow NS THOUSANDTHS`, `pause NS NS`, `shrink NS THOUSANDTHS`, `preempt NS
//! REQUESTS`, `crash NS NS`, `advance NS`. Events: `NS ID admitted CACHED`, `… resumed CACHED`, `…
//! preempted`, `… token INDEX [stop|length]`, `… lost`, `… refused WHY`. In both, `gap N` stands
//! where N lines were lost. Blank lines and lines that begin with `#` say nothing.

use std::fmt::{self, Write};
use std::str::FromStr;

use crate::sim::virtual_time::{self, Happening};
use crate::sim::{
    Arrives, BlockHash, Disturbance, Engine, Event, Finish, Input, Job, Refusal, What,
};
use crate::units::{JobId, SimSpan, SimTime, Tokens};

/// Writes the inputs of one engine down as they happen.
#[derive(Debug, Default)]
pub struct Journal {
    text: String,
    advanced_to: Option<SimTime>,
}

impl Journal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a submit.
    pub fn submit(&mut self, now: SimTime, job: &Job) {
        self.note_advance(now);
        write_submit(&mut self.text, now, job);
    }

    /// Notes a cancel.
    pub fn cancel(&mut self, now: SimTime, id: JobId) {
        self.note_advance(now);
        write_cancel(&mut self.text, now, id);
    }

    /// Notes a reset of the prefix cache.
    pub fn reset_prefix_cache(&mut self, now: SimTime) {
        self.note_advance(now);
        line(&mut self.text, format_args!("reset {}", now.as_ns()));
    }

    /// Notes a disturbance.
    pub fn disturb(&mut self, now: SimTime, what: Disturbance) {
        self.note_advance(now);
        write_disturbance(&mut self.text, now, what);
    }

    /// Notes an advance. It changes nothing, and nothing is written, unless an input of the same
    /// instant comes after it.
    pub fn advance(&mut self, now: SimTime) {
        self.advanced_to = Some(now);
    }

    /// The lines since the last [`Journal::clear`].
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Forgets the lines, which the caller has written; to be called often, they are not bounded.
    pub fn clear(&mut self) {
        self.text.clear();
    }

    fn note_advance(&mut self, now: SimTime) {
        if self.advanced_to.take() == Some(now) {
            line(&mut self.text, format_args!("advance {}", now.as_ns()));
        }
    }
}

/// A line of a journal that says nothing sensible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "journal line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for BadLine {}

#[cfg(test)]
fn write_input(text: &mut String, input: &Input) {
    match &input.what {
        Arrives::Submit(job) => write_submit(text, input.at, job),
        Arrives::Cancel(id) => write_cancel(text, input.at, *id),
        Arrives::ResetPrefixCache => line(text, format_args!("reset {}", input.at.as_ns())),
        Arrives::Disturb(what) => write_disturbance(text, input.at, *what),
        Arrives::Advance => line(text, format_args!("advance {}", input.at.as_ns())),
    }
}

/// Reads the inputs of a journal.
///
/// # Errors
/// The first bad line, or the first whose time runs back.
pub fn parse_inputs(text: &str) -> Result<Vec<Input>, BadLine> {
    let mut inputs: Vec<Input> = Vec::new();
    for (number, said) in said_lines(text) {
        let bad = |problem| BadLine { line: number, problem };
        let input = parse_input(said).map_err(bad)?;
        if inputs.last().is_some_and(|before| before.at > input.at) {
            return Err(bad(format!("time runs back to {}", input.at)));
        }
        inputs.push(input);
    }
    Ok(inputs)
}

/// Appends an event's line.
pub fn write_event(text: &mut String, event: &Event) {
    let (at, job) = (event.at.as_ns(), event.job);
    match event.what {
        What::Admitted { cached } => line(text, format_args!("{at} {job} admitted {cached}")),
        What::Resumed { cached } => line(text, format_args!("{at} {job} resumed {cached}")),
        What::Preempted => line(text, format_args!("{at} {job} preempted")),
        What::Lost => line(text, format_args!("{at} {job} lost")),
        What::Token { index, finish: None } => line(text, format_args!("{at} {job} token {index}")),
        What::Token { index, finish: Some(finish) } => {
            line(text, format_args!("{at} {job} token {index} {}", finish.as_str()));
        }
    }
}

/// Appends a refusal's line.
pub fn write_refusal(text: &mut String, at: SimTime, job: JobId, why: Refusal) {
    line(text, format_args!("{} {job} refused {}", at.as_ns(), why.as_str()));
}

/// Appends the line that says that so many lines are missing here. Neither [`parse_inputs`] nor
/// [`parse_events`] reads beyond it.
pub fn write_gap(text: &mut String, lines: u64) {
    line(text, format_args!("gap {lines}"));
}

/// Reads the happenings of an event log.
///
/// # Errors
/// The first bad line.
pub fn parse_events(text: &str) -> Result<Vec<Happening>, BadLine> {
    said_lines(text)
        .map(|(number, said)| {
            parse_happening(said).map_err(|problem| BadLine { line: number, problem })
        })
        .collect()
}

/// Lets an engine live through the inputs of a journal, to the end of all it was given, and returns
/// the log of what happened.
///
/// # Errors
/// The first bad line.
pub fn replay(inputs: &str, engine: &mut Engine) -> Result<String, BadLine> {
    let inputs = parse_inputs(inputs)?;
    let mut log = String::new();
    virtual_time::run(engine, inputs, |happening| match happening {
        Happening::Event(event) => write_event(&mut log, &event),
        Happening::Refused { at, job, why } => write_refusal(&mut log, at, job, why),
    });
    Ok(log)
}

fn write_submit(text: &mut String, at: SimTime, job: &Job) {
    let mut say = |said: fmt::Arguments<'_>| {
        text.write_fmt(said).expect("a String takes all that is written");
    };
    say(format_args!(
        "submit {} {} prompt={} max={}",
        at.as_ns(),
        job.id,
        job.prompt,
        job.max_tokens
    ));
    if let Some(stop) = job.stop_after {
        say(format_args!(" stop={stop}"));
    }
    if job.priority != 0 {
        say(format_args!(" priority={}", job.priority));
    }
    if let Some(chain) = &job.chain {
        for (at, key) in chain.iter().enumerate() {
            say(format_args!("{}{:x}", if at == 0 { " chain=" } else { "," }, key.0));
        }
        if chain.is_empty() {
            say(format_args!(" chain="));
        }
    }
    text.push('\n');
}

fn write_cancel(text: &mut String, at: SimTime, id: JobId) {
    line(text, format_args!("cancel {} {id}", at.as_ns()));
}

fn write_disturbance(text: &mut String, at: SimTime, what: Disturbance) {
    let value = match what {
        Disturbance::Slow { thousandths } | Disturbance::Shrink { thousandths } => {
            u64::from(thousandths)
        }
        Disturbance::Pause { span } | Disturbance::Crash { down: span } => span.as_ns(),
        Disturbance::Preempt { requests } => u64::from(requests),
    };
    line(text, format_args!("{} {} {value}", what.kind(), at.as_ns()));
}

fn line(text: &mut String, said: fmt::Arguments<'_>) {
    text.write_fmt(said).expect("a String takes all that is written");
    text.push('\n');
}

fn said_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, said)| (at + 1, said.trim()));
    lines.filter(|(_, said)| !said.is_empty() && !said.starts_with('#'))
}

fn complain_of_gap(said: &str) -> Result<(), String> {
    match said.strip_prefix("gap ") {
        Some(lines) => Err(format!(
            "{lines} lines are missing here: the disk was slower than the run, which cannot be \
             replayed"
        )),
        None => Ok(()),
    }
}

fn parse_input(said: &str) -> Result<Input, String> {
    complain_of_gap(said)?;
    let mut words = said.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let at = SimTime::from_ns(number(words.next(), "a time in ns")?);
    let what = match verb {
        "submit" => Arrives::Submit(parse_job(&mut words)?),
        "cancel" => Arrives::Cancel(JobId(number(words.next(), "a job id")?)),
        "reset" => Arrives::ResetPrefixCache,
        "slow" => Arrives::Disturb(Disturbance::Slow {
            thousandths: number(words.next(), "a number of thousandths")?,
        }),
        "shrink" => Arrives::Disturb(Disturbance::Shrink {
            thousandths: number(words.next(), "a number of thousandths")?,
        }),
        "pause" => Arrives::Disturb(Disturbance::Pause {
            span: SimSpan::from_ns(number(words.next(), "a span in ns")?),
        }),
        "crash" => Arrives::Disturb(Disturbance::Crash {
            down: SimSpan::from_ns(number(words.next(), "a span in ns")?),
        }),
        "preempt" => Arrives::Disturb(Disturbance::Preempt {
            requests: number(words.next(), "a number of requests")?,
        }),
        "advance" => Arrives::Advance,
        other => {
            return Err(format!(
                "`{other}` is not submit, cancel, reset, advance, slow, pause, shrink, preempt or \
                 crash"
            ));
        }
    };
    match words.next() {
        Some(more) => Err(format!("`{more}` is too much")),
        None => Ok(Input { at, what }),
    }
}

fn parse_job<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Job, String> {
    let id = JobId(number(words.next(), "a job id")?);
    let (mut prompt, mut max_tokens) = (None, None);
    let mut job = Job {
        id,
        prompt: Tokens::ZERO,
        max_tokens: Tokens::ZERO,
        stop_after: None,
        priority: 0,
        chain: None,
    };
    for word in words {
        let (name, value) = word.split_once('=').ok_or(format!("`{word}` is not NAME=VALUE"))?;
        match name {
            "prompt" => prompt = Some(Tokens::new(number(Some(value), "prompt=N")?)),
            "max" => max_tokens = Some(Tokens::new(number(Some(value), "max=N")?)),
            "stop" => job.stop_after = Some(Tokens::new(number(Some(value), "stop=N")?)),
            "priority" => job.priority = number(Some(value), "priority=N")?,
            "chain" => job.chain = Some(parse_chain(value)?.into()),
            other => return Err(format!("`{other}=` is unknown")),
        }
    }
    job.prompt = prompt.ok_or("`prompt=` is missing")?;
    job.max_tokens = max_tokens.ok_or("`max=` is missing")?;
    Ok(job)
}

fn parse_chain(value: &str) -> Result<Vec<BlockHash>, String> {
    let keys = value.split(',').filter(|key| !key.is_empty());
    keys.map(|key| {
        u64::from_str_radix(key, 16)
            .map(BlockHash)
            .map_err(|_| format!("`{key}` is not a key in hexadecimal"))
    })
    .collect()
}

fn parse_happening(said: &str) -> Result<Happening, String> {
    complain_of_gap(said)?;
    let mut words = said.split_whitespace();
    let at = SimTime::from_ns(number(words.next(), "a time in ns")?);
    let job = JobId(number(words.next(), "a job id")?);
    let verb = words.next().unwrap_or_default();
    let what = match verb {
        "admitted" => What::Admitted { cached: Tokens::new(number(words.next(), "tokens")?) },
        "resumed" => What::Resumed { cached: Tokens::new(number(words.next(), "tokens")?) },
        "preempted" => What::Preempted,
        "lost" => What::Lost,
        "token" => {
            let index = Tokens::new(number(words.next(), "an index")?);
            let finish = match words.next() {
                None => None,
                Some("stop") => Some(Finish::Stop),
                Some("length") => Some(Finish::Length),
                Some(other) => return Err(format!("`{other}` is not stop or length")),
            };
            What::Token { index, finish }
        }
        "refused" => {
            let said = words.next().unwrap_or_default();
            let all =
                [Refusal::QueueFull, Refusal::PromptTooLong, Refusal::NeverFits, Refusal::Down];
            let why = all.into_iter().find(|why| why.as_str() == said);
            let why = why.ok_or_else(|| format!("`{said}` is no reason to refuse"))?;
            return Ok(Happening::Refused { at, job, why });
        }
        other => return Err(format!("`{other}` is no event")),
    };
    Ok(Happening::Event(Event { at, job, what }))
}

fn number<T: FromStr>(word: Option<&str>, meaning: &str) -> Result<T, String> {
    let word = word.ok_or_else(|| format!("{meaning} is missing"))?;
    word.parse().map_err(|_| format!("`{word}` is not {meaning}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_and_events_read_back_as_they_were_written() {
        let inputs = "submit 0 1 prompt=16 max=4\n\
                      submit 5 2 prompt=33 max=9 stop=3 priority=-2 chain=ff,0,12ab\n\
                      submit 5 3 prompt=1 max=1 chain=\n\
                      advance 7\ncancel 7 2\nreset 9\nslow 9 3000\npause 9 5\nshrink 10 500\n\
                      preempt 11 4294967295\ncrash 12 1000\n";
        let parsed = parse_inputs(inputs).unwrap();
        let mut written = String::new();
        parsed.iter().for_each(|input| write_input(&mut written, input));
        assert_eq!(written, inputs);

        let events = "0 1 admitted 0\n5 2 refused queue_full\n7 1 preempted\n7 1 resumed 16\n\
                      9 1 token 1\n10 1 token 2 stop\n12 4 lost\n12 5 refused down\n";
        let mut written = String::new();
        for happening in parse_events(events).unwrap() {
            match happening {
                Happening::Event(event) => write_event(&mut written, &event),
                Happening::Refused { at, job, why } => write_refusal(&mut written, at, job, why),
            }
        }
        assert_eq!(written, events);
    }

    #[test]
    fn bad_lines_are_named() {
        for (text, line, problem) in [
            ("submit 0 1 prompt=1 max=1\nsubmit x", 2, "`x` is not a time in ns"),
            (
                "# fine\n\nfinish 3",
                3,
                "`finish` is not submit, cancel, reset, advance, slow, pause, shrink, preempt or crash",
            ),
            ("submit 0 1 prompt=1", 1, "`max=` is missing"),
            ("cancel 5 1\ncancel 4 1", 2, "time runs back to 0.000004ms"),
            ("cancel 5 1 2", 1, "`2` is too much"),
        ] {
            let bad = parse_inputs(text).unwrap_err();
            assert_eq!((bad.line, bad.problem.as_str()), (line, problem));
        }
    }

    #[test]
    fn an_input_after_an_advance_to_the_same_instant_is_told_apart() {
        let mut journal = Journal::new();
        journal.advance(SimTime::from_ns(5));
        journal.cancel(SimTime::from_ns(5), JobId(1));
        journal.advance(SimTime::from_ns(6));
        journal.cancel(SimTime::from_ns(7), JobId(1));
        assert_eq!(journal.text(), "advance 5\ncancel 5 1\ncancel 7 1\n");
    }
}
