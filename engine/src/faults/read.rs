//! From words to a [`Rule`].
//!
//! The one reader of the vocabulary, whoever wrote the words down. The invariant: every word is
//! either understood or complained about.

use super::fault::{
    Body, End, Fault, GpuName, Per, Rule, Stage, Status, Style, Unready, Wait, When,
};
use super::words::{BadWord, KEYS, Word, split};
use crate::seed::Seed;
use crate::sim::{ALL_REQUESTS, Disturbance, NORMAL};
use crate::units::SimSpan;

/// The rules in a text, such as the value of a header: `status=429 first=2; stall=2s after=3`.
///
/// # Errors
/// The first word that is wrong, counted from the beginning of the text.
pub fn parse(text: &str) -> Result<Vec<Rule>, BadWord> {
    let mut before = 0;
    let mut rules = Vec::new();
    let split = split(text)?;
    if split.len() > MOST_OF_ONE {
        let message = format!("one text has {} rules; the most are {MOST_OF_ONE}", split.len());
        return Err(BadWord::whole(message).hint("put them into a plan"));
    }
    for words in split {
        let rule = read(&words)
            .map_err(|bad| BadWord { word: bad.word.map(|word| word + before), ..bad })?;
        before += words.len();
        rules.push(rule);
    }
    Ok(rules)
}

/// The most rules in one text: what a request asks for itself.
const MOST_OF_ONE: usize = 32;

/// The most words of a rule: all that there are, and a few headers.
const MOST_WORDS: usize = 64;

/// The rule that these words make.
///
/// # Errors
/// The first word that is wrong, or what is missing.
pub fn read(words: &[Word]) -> Result<Rule, BadWord> {
    if words.len() > MOST_WORDS {
        let message = format!("a rule has {} words; the most are {MOST_WORDS}", words.len());
        return Err(BadWord::at(MOST_WORDS, message).hint("make several rules of it"));
    }
    let said: Vec<String> = words.iter().map(Word::to_string).collect();
    let text = said.join(" ");
    let mut reader = Reader { words, taken: vec![false; words.len()] };
    reader.refuse_twice()?;
    let mut when = reader.when()?;
    let delay = reader.span("delay")?;
    let fault = reader.fault(delay.is_some(), &mut when)?;
    reader.close()?;
    reader.check(&fault, &when, delay.is_some())?;
    let id = Seed::new(0).with(text.as_bytes()).value();
    Ok(Rule { text, id, fault, delay: delay.unwrap_or(SimSpan::ZERO), when })
}

struct Reader<'a> {
    words: &'a [Word],
    taken: Vec<bool>,
}

/// The longest time that can be asked for.
const LONGEST: f64 = 7.0 * 86_400.0;

/// Whether a word alone names a fault: all but a delay, which may stand beside another, and a rate
/// limit, which is named by what it limits.
fn names_a_fault(word: &str) -> bool {
    Fault::KINDS.contains(&word) && !matches!(word, "delay" | "rate_limit")
}

impl<'a> Reader<'a> {
    fn refuse_twice(&self) -> Result<(), BadWord> {
        for (at, word) in self.words.iter().enumerate() {
            if self.words[..at].iter().any(|other| other.key == word.key) {
                return Err(BadWord::at(at, format!("`{}` is said twice", word.key))
                    .hint("keep one of them"));
            }
        }
        Ok(())
    }

    fn find(&self, key: &str) -> Option<usize> {
        self.words.iter().position(|word| word.key == key)
    }

    /// The place of a word, which counts as understood from now on.
    fn take(&mut self, key: &str) -> Option<usize> {
        let at = self.find(key)?;
        self.taken[at] = true;
        Some(at)
    }

    /// A word that must have a value.
    fn value(&mut self, key: &str) -> Result<Option<(usize, &'a str)>, BadWord> {
        let Some(at) = self.take(key) else { return Ok(None) };
        match self.words[at].value.as_deref() {
            Some(value) if !value.is_empty() => Ok(Some((at, value))),
            _ => {
                Err(BadWord::at(at, format!("`{key}` needs a value"))
                    .hint(format!("write {key}=...")))
            }
        }
    }

    /// A word that must have none.
    fn bare(&mut self, key: &str) -> Result<bool, BadWord> {
        let Some(at) = self.take(key) else { return Ok(false) };
        match self.words[at].value.as_deref() {
            None | Some("true") => Ok(true),
            Some(_) => {
                Err(BadWord::at(at, format!("`{key}` takes no value")).hint(format!("write {key}")))
            }
        }
    }

    fn text(&mut self, key: &str) -> Result<Option<String>, BadWord> {
        Ok(self.value(key)?.map(|(_, value)| value.to_owned()))
    }

    fn whole(&mut self, key: &str, least: u32, most: u32) -> Result<Option<u32>, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(None) };
        match value.parse::<u32>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(BadWord::at(
                at,
                format!("`{key}` must be a whole number from {least} to {most}, but is `{value}`"),
            )),
        }
    }

    fn span(&mut self, key: &str) -> Result<Option<SimSpan>, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(None) };
        match span(value) {
            Some(span) => Ok(Some(span)),
            None => Err(BadWord::at(at, format!("`{key}` must be a time, but is `{value}`"))
                .hint("for example 2s, 250ms or 1m; at most a week")),
        }
    }

    fn one_of<T: Copy>(&mut self, key: &str, allowed: &[(&str, T)]) -> Result<Option<T>, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(None) };
        if let Some((_, meaning)) = allowed.iter().find(|(word, _)| *word == value) {
            return Ok(Some(*meaning));
        }
        let all: Vec<String> = allowed.iter().map(|(word, _)| format!("`{word}`")).collect();
        let message = format!("`{key}` must be one of {}, but is `{value}`", all.join(", "));
        Err(BadWord::at(at, message))
    }

    fn when(&mut self) -> Result<When, BadWord> {
        let mut headers = Vec::new();
        for at in 0..self.words.len() {
            let Some(name) = self.words[at].key.strip_prefix("header.") else { continue };
            let name = name.to_ascii_lowercase();
            if !is_header_name(&name) {
                let message = format!("no header can be called `{name}`");
                return Err(BadWord::at(at, message).hint("write header.NAME=VALUE"));
            }
            let value = self.words[at].value.clone().unwrap_or_default();
            self.taken[at] = true;
            headers.push((name, value));
        }
        let probability = match self.value("p")? {
            None => None,
            Some((at, value)) => match share(value) {
                Some(share) => Some(share),
                None => {
                    return Err(BadWord::at(
                        at,
                        format!("`p` must be a probability from 0 to 1, but is `{value}`"),
                    )
                    .hint("for example 0.2 or 20%"));
                }
            },
        };
        let gpu = match self.value("gpu")? {
            None => None,
            Some((at, value)) => match gpu(value) {
                Some(gpu) => Some(gpu),
                None => {
                    return Err(BadWord::at(at, format!("`{value}` names no simulated GPU"))
                        .hint("write its number, as in gpu=0, or gpu=MODEL/REPLICA"));
                }
            },
        };
        let per = [("request", Per::Request), ("rule", Per::Rule)];
        Ok(When {
            model: self.text("model")?,
            gpu,
            path: self.text("path")?,
            headers,
            key: self.text("key")?,
            contains: self.text("contains")?.map(|text| text.to_lowercase()),
            probability,
            first: self.whole("first", 1, u32::MAX)?,
            every: self.whole("every", 1, u32::MAX)?,
            per: self.one_of("per", &per)?,
            at: self.span("at")?.unwrap_or(SimSpan::ZERO),
            lasts: self.span("for")?,
            load: self.whole("load", 0, u32::MAX)?,
            stream: self.one_of("stream", &[("true", true), ("false", false)])?,
        })
    }

    fn fault(&mut self, has_delay: bool, when: &mut When) -> Result<Fault, BadWord> {
        let named: Vec<usize> =
            (0..self.words.len()).filter(|&at| names_a_fault(&self.words[at].key)).collect();
        let limits = self.find("rpm").or_else(|| self.find("tpm"));
        let named: Vec<usize> = named.into_iter().chain(limits).collect();
        match named[..] {
            [] if has_delay => return Ok(Fault::Delay),
            [] => {
                let unknown =
                    (0..self.words.len()).find(|&at| !KEYS.contains(&base(&self.words[at].key)));
                return Err(match unknown {
                    Some(at) => self.unknown(at),
                    None => BadWord::whole("no fault is named")
                        .hint("name one, such as status=503, stall=2s or crash=10s"),
                });
            }
            [_] => {}
            [first, second, ..] => {
                let message = format!(
                    "`{}` and `{}` are two faults",
                    self.words[first].key, self.words[second].key
                );
                return Err(BadWord::at(second, message).hint("make a rule of each"));
            }
        }
        let key = self.words[named[0]].key.as_str();
        const MOST: u32 = 1 << 30;
        let after =
            |reader: &mut Self| Ok::<_, BadWord>(reader.whole("after", 0, MOST)?.unwrap_or(0));
        Ok(match key {
            "status" => Fault::Status(Box::new(self.status()?)),
            "queue_full" if self.bare(key)? => Fault::QueueFull,
            "capacity" if self.bare(key)? => Fault::Capacity,
            "starting" if self.bare(key)? => Fault::Unready(Unready::Starting),
            "draining" if self.bare(key)? => Fault::Unready(Unready::Draining),
            "hang" => match self.words[named[0]].value.as_deref() {
                None | Some("true") => {
                    self.taken[named[0]] = true;
                    Fault::Hang(None)
                }
                Some(_) => Fault::Hang(self.span(key)?),
            },
            "close" if self.bare(key)? => Fault::Close,
            "reset" if self.bare(key)? => Fault::Reset,
            "slow_headers" => Fault::SlowHeaders(self.span(key)?.unwrap_or(SimSpan::ZERO)),
            "content_type" => Fault::ContentType(self.header_value(key)?),
            "rpm" | "tpm" => Fault::RateLimit {
                requests: self.whole("rpm", 1, u32::MAX)?,
                tokens: self.whole("tpm", 1, u32::MAX)?,
            },
            "stop" => Fault::Stop {
                after: self.whole(key, 0, MOST)?.unwrap_or(0),
                end: self
                    .one_of(
                        "end",
                        &[
                            ("clean", End::Clean),
                            ("close", End::Close),
                            ("reset", End::Reset),
                            ("silence", End::Silence),
                        ],
                    )?
                    .unwrap_or(End::Close),
            },
            "stall" => {
                Fault::Stall { span: self.span(key)?.unwrap_or(SimSpan::ZERO), after: after(self)? }
            }
            "malformed_json" if self.bare(key)? => Fault::MalformedJson { after: after(self)? },
            "truncated_event" if self.bare(key)? => Fault::TruncatedEvent { after: after(self)? },
            "invalid_utf8" if self.bare(key)? => Fault::InvalidUtf8 { after: after(self)? },
            "duplicate" if self.bare(key)? => Fault::Duplicate { after: after(self)? },
            "drop" if self.bare(key)? => Fault::Drop { after: after(self)? },
            "error_event" => Fault::ErrorEvent {
                style: self
                    .one_of(key, &[("openai", Style::OpenAi), ("vllm", Style::Vllm)])?
                    .unwrap_or(Style::OpenAi),
                after: after(self)?,
            },
            "no_done" if self.bare(key)? => Fault::NoDone,
            "no_finish" if self.bare(key)? => Fault::NoFinish,
            "slow" => Fault::Engine(Disturbance::Slow { thousandths: self.factor(key)? }),
            "pause" => {
                Fault::Engine(Disturbance::Pause { span: self.span(key)?.unwrap_or(SimSpan::ZERO) })
            }
            "shrink" => Fault::Engine(Disturbance::Shrink { thousandths: self.share(key, when)? }),
            "preempt" => match self.words[named[0]].value.as_deref() {
                None | Some("true" | "all") => {
                    self.taken[named[0]] = true;
                    Fault::Engine(Disturbance::Preempt { requests: ALL_REQUESTS })
                }
                Some(_) => Fault::Engine(Disturbance::Preempt {
                    requests: self.whole(key, 1, MOST)?.unwrap_or(ALL_REQUESTS),
                }),
            },
            "crash" => {
                Fault::Engine(Disturbance::Crash { down: self.span(key)?.unwrap_or(SimSpan::ZERO) })
            }
            _ => {
                return Err(BadWord::at(named[0], format!("`{key}` is switched off"))
                    .hint("leave the rule out"));
            }
        })
    }

    fn status(&mut self) -> Result<Status, BadWord> {
        let status = self.whole("status", 400, 599)?.unwrap_or(500) as u16;
        let mut waits = Vec::new();
        for (key, wait) in [
            ("retry_after", Wait::Seconds as fn(SimSpan) -> Wait),
            ("retry_after_date", Wait::Date),
            ("retry_after_ms", Wait::Millis),
        ] {
            // The key says the unit; a bare number of `retry_after_ms` is not in seconds.
            let millis = self.find(key).filter(|_| key == "retry_after_ms").and_then(|at| {
                let number = self.words[at].value.as_deref()?.parse::<u32>().ok()?;
                Some((at, SimSpan::from_ms(u64::from(number))))
            });
            let span = match millis {
                Some((at, span)) => {
                    self.taken[at] = true;
                    Some(span)
                }
                None => self.span(key)?,
            };
            waits.extend(span.map(|span| (self.find(key), wait(span))));
        }
        if let [_, (Some(second), _), ..] = waits[..] {
            return Err(BadWord::at(second, "the client is told twice when to come back")
                .hint("keep one of retry_after, retry_after_date and retry_after_ms"));
        }
        Ok(Status {
            status,
            message: self.text("message")?,
            kind: self.text("type")?,
            code: self.text("code")?,
            wait: waits.first().map(|(_, wait)| *wait),
            should_retry: self.one_of("should_retry", &[("true", true), ("false", false)])?,
            body: self
                .one_of(
                    "body",
                    &[("json", Body::Json), ("html", Body::Html), ("empty", Body::Empty)],
                )?
                .unwrap_or_default(),
        })
    }

    /// A text that may stand in the head of an answer.
    fn header_value(&mut self, key: &str) -> Result<String, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(String::new()) };
        if value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
            return Err(BadWord::at(at, format!("`{key}` must be printable ASCII")));
        }
        Ok(value.to_owned())
    }

    fn factor(&mut self, key: &str) -> Result<u32, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(NORMAL) };
        match value.trim_end_matches('x').parse::<f64>() {
            Ok(factor) if (0.001..=100_000.0).contains(&factor) => {
                Ok((factor * 1e3).round() as u32)
            }
            _ => Err(BadWord::at(at, format!("`{key}` must be a factor, but is `{value}`"))
                .hint("3 makes every step take three times as long; from 0.001 to 100000")),
        }
    }

    fn share(&mut self, key: &str, when: &When) -> Result<u32, BadWord> {
        let Some((at, value)) = self.value(key)? else { return Ok(NORMAL) };
        if when.lasts.is_none() {
            return Err(BadWord::at(at, format!("`{key}` needs `for`"))
                .hint("requests wait while the cache is too small for them: say for how long"));
        }
        match share(value) {
            Some(millionths) => Ok(millionths / 1_000),
            None => Err(BadWord::at(
                at,
                format!("`{key}` must be the share of the KV cache that is left, but is `{value}`"),
            )
            .hint("for example 0.5 or 50%")),
        }
    }

    fn unknown(&self, at: usize) -> BadWord {
        let bad = BadWord::at(at, format!("unknown word `{}`", self.words[at].key));
        BadWord { is_unknown: true, ..bad }
    }

    /// Complains about the first word that nobody asked for.
    fn close(&self) -> Result<(), BadWord> {
        let Some(at) = self.taken.iter().position(|taken| !taken) else { return Ok(()) };
        let key = base(&self.words[at].key);
        if !KEYS.contains(&key) {
            return Err(self.unknown(at));
        }
        let fault = self.words.iter().find(|word| names_a_fault(&word.key));
        let with = fault.map_or("delay", |word| word.key.as_str());
        Err(BadWord::at(at, format!("`{key}` says nothing beside `{with}`")).hint("remove it"))
    }

    /// What does not fit together.
    fn check(&self, fault: &Fault, when: &When, has_delay: bool) -> Result<(), BadWord> {
        let complain = |key: &str, message: String| {
            Err(BadWord { word: self.find(key), ..BadWord::whole(message) })
        };
        let kind = fault.kind();
        if has_delay && fault.stage() != Stage::Before {
            return complain("delay", format!("`delay` comes before an answer, `{kind}` does not"));
        }
        let counts = [
            ("p", when.probability.is_some()),
            ("first", when.first.is_some()),
            ("every", when.every.is_some()),
            ("load", when.load.is_some()),
            ("stream", when.stream.is_some()),
        ];
        if fault.stage() == Stage::Engine {
            let requests = [
                ("path", when.path.is_some()),
                ("key", when.key.is_some()),
                ("contains", when.contains.is_some()),
            ];
            for (key, is_said) in counts.into_iter().chain(requests) {
                if is_said {
                    let message = format!("`{key}` is about requests, `{kind}` befalls a GPU");
                    return complain(key, message);
                }
            }
            let lasts = matches!(
                fault,
                Fault::Engine(Disturbance::Slow { .. } | Disturbance::Shrink { .. })
            );
            if when.lasts.is_some() && !lasts {
                return complain(
                    "for",
                    format!("`{kind}` does not last: say how long in its value"),
                );
            }
            if !when.headers.is_empty() {
                return complain(
                    "header",
                    format!("a header is a request's, `{kind}` befalls a GPU"),
                );
            }
        } else if when.gpu.is_some() {
            return complain("gpu", format!("`{kind}` is not about a GPU: match by `model`"));
        }
        if let Fault::RateLimit { .. } = fault {
            for (key, is_said) in counts {
                if is_said {
                    return complain(key, format!("a rate limit counts by itself: remove `{key}`"));
                }
            }
        }
        if when.stream == Some(false) && fault.stage() == Stage::Stream && !fault.fits_a_body() {
            return complain("stream", format!("`{kind}` is about the events of a stream"));
        }
        if when.lasts == Some(SimSpan::ZERO) {
            return complain("for", "for no time at all a rule hits nothing".to_owned());
        }
        if let Some(path) = &when.path {
            if !path.starts_with('/') && path != "*" {
                let message = format!("no path begins as `{path}` does: all begin with `/`");
                return complain("path", message);
            }
            if path.starts_with("/admin/") {
                let message = format!("no rule hits `{path}`, where faults are taken back");
                return complain("path", message);
            }
        }
        if when.per.is_some() && when.first.is_none() && when.every.is_none() {
            return complain("per", "`per` says what `first` or `every` counts".to_owned());
        }
        Ok(())
    }
}

/// The key without what belongs to it: `header` of `header.x-tenant`.
fn base(key: &str) -> &str {
    if key.starts_with("header.") { "header" } else { key }
}

/// Whether it is a token of RFC 9110, as the names of headers are.
fn is_header_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_fit)
}

/// A time: `2s`, `250ms`, `50us`, `1m`, `1h`; a bare number is in seconds.
pub(super) fn span(text: &str) -> Option<SimSpan> {
    const UNITS: [(&str, f64); 5] =
        [("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("m", 60.0), ("h", 3_600.0)];
    let unit = UNITS
        .iter()
        .find_map(|(unit, in_seconds)| text.strip_suffix(unit).map(|number| (number, *in_seconds)));
    let (number, in_seconds) = unit.unwrap_or((text, 1.0));
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_plain)? * in_seconds;
    (0.0..=LONGEST).contains(&seconds).then(|| SimSpan::from_secs_f64(seconds))
}

/// A share in millionths: `0.2` or `20%`.
fn share(text: &str) -> Option<u32> {
    let (number, of) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.trim().parse::<f64>().ok()? / of;
    (0.0..=1.0).contains(&share).then(|| (share * 1e6).round() as u32)
}

fn gpu(text: &str) -> Option<GpuName> {
    let number = text.strip_prefix("gpu").unwrap_or(text);
    if let Ok(number) = number.parse() {
        return Some(GpuName::Number(number));
    }
    let (model, replica) = text.rsplit_once('/')?;
    replica.parse().ok().map(|replica| GpuName::Of(model.to_owned(), replica))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Rule {
        let mut rules = parse(text).unwrap_or_else(|bad| panic!("{text}: {bad}"));
        assert_eq!(rules.len(), 1, "{text}");
        rules.remove(0)
    }

    #[test]
    fn words_mean_what_they_say() {
        let rule = one("status=429 retry_after_ms=1500 first=2 model=m* delay=1s p=20%");
        let Fault::Status(status) = &rule.fault else { panic!("{rule:?}") };
        assert_eq!(status.status, 429);
        assert_eq!(status.wait, Some(Wait::Millis(SimSpan::from_ms(1_500))));
        assert_eq!(rule.delay, SimSpan::from_ms(1_000));
        assert_eq!((rule.when.first, rule.when.probability), (Some(2), Some(200_000)));
        assert_eq!(rule.when.model.as_deref(), Some("m*"));

        let rule = one("shrink=50% gpu=m/1 at=30s for=1m");
        assert_eq!(rule.fault, Fault::Engine(Disturbance::Shrink { thousandths: 500 }));
        assert_eq!(rule.when.gpu, Some(GpuName::Of("m".to_owned(), 1)));
        assert_eq!(rule.when.lasts, Some(SimSpan::from_ms(60_000)));

        assert_eq!(one("delay=250ms").fault, Fault::Delay);
        assert_eq!(one("hang=2s").fault, Fault::Hang(Some(SimSpan::from_ms(2_000))));
        assert_eq!(one("stop=3").fault, Fault::Stop { after: 3, end: End::Close });
        let limit = Fault::RateLimit { requests: Some(60), tokens: Some(1_000) };
        assert_eq!(one("rpm=60 tpm=1000 key=sk-1").fault, limit);
        let headers = one("reset header.X-Tenant=acme").when.headers;
        assert_eq!(headers, [("x-tenant".to_owned(), "acme".to_owned())]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_word() {
        for (text, word, message) in [
            ("status=200", Some(0), "from 400 to 599"),
            ("close; stauts=429", Some(1), "unknown word `stauts`"),
            ("close sometimes", Some(1), "unknown word `sometimes`"),
            ("close stop=3", Some(1), "two faults"),
            ("close close", Some(1), "said twice"),
            ("first=2", None, "no fault is named"),
            ("stall=2x", Some(0), "must be a time"),
            ("status=500 after=3", Some(1), "says nothing beside `status`"),
            ("stall=2s delay=1s", Some(1), "comes before an answer"),
            ("crash=10s p=0.5", Some(1), "befalls a GPU"),
            ("crash=10s for=10s", Some(1), "does not last"),
            ("shrink=0.5", Some(0), "needs `for`"),
            ("rpm=3 first=2", Some(1), "counts by itself"),
            ("close per=rule", Some(1), "`first` or `every`"),
            ("close gpu=0", Some(1), "match by `model`"),
            ("drop stream=false", Some(1), "events of a stream"),
            ("close=false", Some(0), "takes no value"),
            ("status=429 retry_after=1s retry_after_ms=1ms", Some(2), "told twice"),
            ("error_event=anthropic", Some(0), "one of `openai`, `vllm`"),
            ("slow=fast", Some(0), "must be a factor"),
            // What could never hit.
            ("close header.=x", Some(1), "no header can be called ``"),
            ("close header.x:y=z", Some(1), "no header can be called `x:y`"),
            ("close for=0s", Some(1), "for no time at all"),
            ("shrink=50% for=0s", Some(1), "for no time at all"),
            ("close path=v1/models", Some(1), "all begin with `/`"),
            ("close path=/admin/faults", Some(1), "where faults are taken back"),
        ] {
            let bad = parse(text).expect_err(text);
            assert_eq!(bad.word, word, "{text}: {bad}");
            assert!(bad.message.contains(message), "{text}: {bad}");
        }
    }

    #[test]
    fn a_request_and_a_rule_have_so_many_words_at_most() {
        assert_eq!(parse(&"close; ".repeat(MOST_OF_ONE)).unwrap().len(), MOST_OF_ONE);
        let bad = parse(&"close; ".repeat(MOST_OF_ONE + 1)).unwrap_err();
        assert_eq!(bad.message, "one text has 33 rules; the most are 32");
        let headers = |count| (0..count).map(|at| format!(" header.x{at}=1")).collect::<String>();
        assert_eq!(one(&format!("close{}", headers(63))).when.headers.len(), 63);
        let bad = parse(&format!("close{}", headers(64))).unwrap_err();
        assert_eq!(bad.message, "a rule has 65 words; the most are 64");
    }

    #[test]
    fn every_kind_has_a_word() {
        for (kind, text) in Fault::KINDS.iter().zip([
            "status=500",
            "queue_full",
            "capacity",
            "starting",
            "draining",
            "hang",
            "close",
            "reset",
            "delay=1s",
            "slow_headers=1s",
            "content_type=text/html",
            "rpm=1",
            "stop=1",
            "stall=1s",
            "malformed_json",
            "truncated_event",
            "invalid_utf8",
            "duplicate",
            "drop",
            "error_event=openai",
            "no_done",
            "no_finish",
            "slow=2",
            "pause=1s",
            "shrink=0.5 for=1s",
            "preempt",
            "crash=1s",
        ]) {
            assert_eq!(one(text).fault.kind(), *kind);
        }
    }
}
