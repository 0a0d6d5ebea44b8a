//! What befalls simulated GPUs, on a timeline; and the sentences of a timeline file.
//!
//! Rules overlap as they like: of two that slow a GPU down both count, of two that shrink its cache
//! the smaller share. The invariant: what comes out is in order of time, and after the last rule
//! has ended every GPU is as it was.

use super::decide::fits;
use super::fault::{Fault, GpuName, Rule, Unready};
use super::words::{BadWord, Word, split};
use crate::sim::{Disturbance, NORMAL};
use crate::units::{SimSpan, SimTime};

/// A simulated GPU with a timeline of its own, as rules name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuAt<'a> {
    /// Its model.
    pub model: &'a str,
    /// Which replica of it, from 0.
    pub replica: u32,
    /// Whether it has a batch and a cache, as a scheduler has: without them there is nothing to be
    /// preempted or to shrink.
    pub has_batch: bool,
}

/// A disturbance and its instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// When.
    pub at: SimTime,
    /// What.
    pub what: Disturbance,
}

/// What `rules` do to each of `gpus`, if their plan begins at `origin`.
pub fn disturbances(rules: &[Rule], gpus: &[GpuAt<'_>], origin: SimTime) -> Vec<Vec<Timed>> {
    let of = |(number, gpu): (usize, &GpuAt<'_>)| {
        let own: Vec<(&Rule, Disturbance)> = rules
            .iter()
            .filter_map(|rule| match rule.fault {
                Fault::Engine(what) if rule.befalls(number, gpu) && gpu.feels(what) => {
                    Some((rule, what))
                }
                _ => None,
            })
            .collect();
        one_gpu(&own, origin)
    };
    gpus.iter().enumerate().map(of).collect()
}

impl Rule {
    /// Whether it names this GPU, the `number`th of all that have a timeline.
    pub(crate) fn befalls(&self, number: usize, gpu: &GpuAt<'_>) -> bool {
        let is_model = self.when.model.as_ref().is_none_or(|model| fits(model, gpu.model));
        is_model
            && match &self.when.gpu {
                None => true,
                Some(GpuName::Number(wanted)) => *wanted as usize == number,
                Some(GpuName::Of(model, replica)) => model == gpu.model && *replica == gpu.replica,
            }
    }
}

impl GpuAt<'_> {
    /// Whether a disturbance does anything to it.
    pub(crate) fn feels(&self, what: Disturbance) -> bool {
        match what {
            Disturbance::Shrink { .. } | Disturbance::Preempt { .. } => self.has_batch,
            Disturbance::Slow { .. } | Disturbance::Pause { .. } | Disturbance::Crash { .. } => {
                true
            }
        }
    }
}

fn one_gpu(rules: &[(&Rule, Disturbance)], origin: SimTime) -> Vec<Timed> {
    let mut timed: Vec<Timed> = Vec::new();
    for is_speed in [true, false] {
        // Those that last: what all of them together come to changes where one begins or ends.
        let lasting: Vec<(SimSpan, Option<SimSpan>, u32)> = rules
            .iter()
            .filter_map(|(rule, what)| match *what {
                Disturbance::Slow { thousandths } if is_speed => {
                    Some((rule.when.at, rule.ends(), thousandths))
                }
                Disturbance::Shrink { thousandths } if !is_speed => {
                    Some((rule.when.at, rule.ends(), thousandths))
                }
                _ => None,
            })
            .collect();
        let mut changes: Vec<SimSpan> =
            lasting.iter().flat_map(|&(from, to, _)| [Some(from), to]).flatten().collect();
        changes.sort_unstable();
        changes.dedup();
        let mut last = None;
        for change in changes {
            let active = lasting
                .iter()
                .filter(|&&(from, to, _)| from <= change && to.is_none_or(|to| change < to));
            let what = if is_speed {
                let product = active.fold(f64::from(NORMAL), |all, &(.., thousandths)| {
                    all * f64::from(thousandths) / f64::from(NORMAL)
                });
                Disturbance::Slow { thousandths: product.round().clamp(1.0, 1e9) as u32 }
            } else {
                let least = active.map(|&(.., thousandths)| thousandths).min();
                Disturbance::Shrink { thousandths: least.unwrap_or(NORMAL) }
            };
            if last.replace(what) != Some(what) {
                timed.push(Timed { at: origin + change, what });
            }
        }
    }
    timed.extend(rules.iter().filter_map(|&(rule, what)| {
        let lasts = matches!(what, Disturbance::Slow { .. } | Disturbance::Shrink { .. });
        (!lasts).then_some(Timed { at: origin + rule.when.at, what })
    }));
    // Stable: at one instant in the order above.
    timed.sort_by_key(|timed| timed.at);
    timed
}

/// What a line of a timeline says, as words: either the words themselves, or a sentence such as
/// `slow gpu0 by 3`, `crash gpu0 for 10s` or `drain for 5s`.
///
/// # Errors
/// What is wrong with the sentence.
pub fn phrase(text: &str) -> Result<Vec<Word>, BadWord> {
    let pieces = match split(text)?.as_slice() {
        [pieces] => pieces.clone(),
        [] => return Err(BadWord::whole("says nothing")),
        _ => return Err(BadWord::whole("says two things").hint("write a line for each")),
    };
    if pieces.iter().any(|piece| piece.value.is_some()) || pieces.len() == 1 {
        return Ok(pieces);
    }
    let verb = pieces[0].key.as_str();
    // Which preposition gives the fault's own value.
    let (fault, own) = match verb {
        "slow" => ("slow", "by"),
        "pause" => ("pause", "for"),
        "shrink" => ("shrink", "to"),
        "preempt" => ("preempt", "of"),
        "crash" => ("crash", "for"),
        "drain" | "draining" => (Unready::Draining.as_str(), ""),
        "start" | "starting" => (Unready::Starting.as_str(), ""),
        // Bare words, such as `close`.
        _ => return Ok(pieces),
    };
    let word = |at: usize, key: &str, value: Option<&str>| Word {
        offset: pieces[at].offset,
        ..Word::new(key, value.map(str::to_owned))
    };
    let mut words = vec![word(0, fault, None)];
    let mut rest = 1;
    while let Some(piece) = pieces.get(rest) {
        let next = pieces.get(rest + 1).map(|next| next.key.as_str());
        match (piece.key.as_str(), next) {
            (preposition, Some(value)) if preposition == own => {
                words[0].value = Some(value.to_owned());
                rest += 2;
            }
            ("for", Some(value)) => {
                words.push(word(rest, "for", Some(value)));
                rest += 2;
            }
            ("by" | "for" | "to" | "of", None) => {
                let message = format!("nothing follows `{}`", piece.key);
                return Err(BadWord::at(rest, message));
            }
            ("by" | "to" | "of", Some(_)) => {
                let message = format!("`{verb}` is not said with `{}`", piece.key);
                return Err(BadWord::at(rest, message)
                    .hint("as in `slow gpu0 by 3 for 10s`, `shrink gpu0 to 50% for 10s`"));
            }
            (count, _) if fault == "preempt" && count.bytes().all(|b| b.is_ascii_digit()) => {
                words[0].value = Some(count.to_owned());
                rest += 1;
            }
            (target, _) => {
                // A model's name may have a `/` in it, too.
                let number = target.strip_prefix("gpu").or(target.rsplit_once('/').map(|(_, r)| r));
                let is_gpu = number.is_some_and(|number| number.parse::<u32>().is_ok());
                words.push(word(rest, if is_gpu { "gpu" } else { "model" }, Some(target)));
                rest += 1;
            }
        }
    }
    Ok(words)
}

impl Unready {
    /// The word that asks for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Draining => "draining",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const GPUS: [GpuAt<'_>; 3] = [
        GpuAt { model: "a", replica: 0, has_batch: true },
        GpuAt { model: "a", replica: 1, has_batch: true },
        GpuAt { model: "b", replica: 0, has_batch: true },
    ];

    fn told(text: &str) -> Vec<String> {
        let rules = parse(text).unwrap();
        let mut lines = Vec::new();
        for (gpu, timed) in disturbances(&rules, &GPUS, SimTime::ZERO).iter().enumerate() {
            for Timed { at, what } in timed {
                let value = match what {
                    Disturbance::Slow { thousandths } | Disturbance::Shrink { thousandths } => {
                        thousandths.to_string()
                    }
                    Disturbance::Pause { span } | Disturbance::Crash { down: span } => {
                        span.to_string()
                    }
                    Disturbance::Preempt { requests } => requests.to_string(),
                };
                lines.push(format!("gpu{gpu} {at} {} {value}", what.kind()));
            }
        }
        lines
    }

    #[test]
    fn a_gpu_is_named_by_number_by_replica_or_by_model() {
        assert_eq!(told("crash=1s gpu=0 at=2s"), ["gpu0 2000ms crash 1000ms"]);
        assert_eq!(told("pause=1s gpu=a/1"), ["gpu1 0ms pause 1000ms"]);
        assert_eq!(told("preempt=4 model=a"), ["gpu0 0ms preempt 4", "gpu1 0ms preempt 4"]);
        assert_eq!(told("pause=1s").len(), 3);
    }

    #[test]
    fn what_has_no_batch_is_not_preempted_and_has_no_cache_to_shrink() {
        let solo = [GpuAt { has_batch: false, ..GPUS[0] }];
        let count = |text: &str| {
            let rules = parse(text).unwrap();
            disturbances(&rules, &solo, SimTime::ZERO).iter().map(Vec::len).sum::<usize>()
        };
        assert_eq!(count("shrink=50% for=1s; preempt; preempt=2 model=a"), 0);
        assert_eq!(count("slow=2; pause=1s; crash=1s"), 3);
    }

    #[test]
    fn what_lasts_ends_and_overlaps_multiply() {
        assert_eq!(
            told("slow=3 gpu=0 at=10s for=20s; slow=2 gpu=0 at=20s for=20s"),
            [
                "gpu0 10000ms slow 3000",
                "gpu0 20000ms slow 6000",
                "gpu0 30000ms slow 2000",
                "gpu0 40000ms slow 1000"
            ]
        );
        assert_eq!(
            told("shrink=50% gpu=2 for=10s; shrink=20% gpu=2 at=5s for=10s"),
            ["gpu2 0ms shrink 500", "gpu2 5000ms shrink 200", "gpu2 15000ms shrink 1000"]
        );
    }

    #[test]
    fn a_sentence_becomes_words() {
        for (sentence, words) in [
            ("slow gpu0 by 3", "slow=3 gpu=gpu0"),
            ("slow a/1 by 1.5 for 10s", "slow=1.5 gpu=a/1 for=10s"),
            ("crash gpu0 for 10s", "crash=10s gpu=gpu0"),
            ("pause qwen for 2s", "pause=2s model=qwen"),
            ("pause org/paced for 2s", "pause=2s model=org/paced"),
            ("crash org/paced/1 for 2s", "crash=2s gpu=org/paced/1"),
            ("shrink gpu1 to 50% for 1m", "shrink=50% gpu=gpu1 for=1m"),
            ("preempt gpu0 8", "preempt=8 gpu=gpu0"),
            ("preempt gpu0", "preempt gpu=gpu0"),
            ("drain for 5s", "draining for=5s"),
            ("status=503 for=10s", "status=503 for=10s"),
            ("close", "close"),
        ] {
            let said: Vec<String> = phrase(sentence).unwrap().iter().map(Word::to_string).collect();
            assert_eq!(said.join(" "), words, "{sentence}");
        }
        assert!(phrase("slow gpu0 to 3").is_err());
        assert!(phrase("slow gpu0 by").is_err());
    }
}
