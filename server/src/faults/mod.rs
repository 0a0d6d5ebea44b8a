//! Failures on purpose, in this process: the plan in force, what it has counted, and who was hit.
//!
//! Which request is hit is decided by `llmsim_engine::faults`; what happens to its connection is
//! done in `http::connection` and `stream`. The invariant: where no plan has rules for requests and
//! nobody may ask for a fault of their own, a request costs one look at a flag, and a token nothing.

pub(crate) mod admin;
pub(crate) mod in_stream;
mod log;
mod peek;
pub(crate) mod respond;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use llmsim_engine::config::{ModelSpec, gpus};
use llmsim_engine::faults::{
    self, Asked, Buckets, Decision, Exceeded, Fault, GpuAt, LimitKind, Remaining, Rule, Settings,
    Stage, Tallies, Timed, Unready,
};
use llmsim_engine::seed::Seed;
use llmsim_engine::units::{SimSpan, SimTime};
use llmsim_engine::wire::error::ApiError;

use crate::api;
use crate::clock;
use crate::http::head::Head;
use crate::http::response::rfc3339;
use log::Log;

/// The faults of a server.
#[derive(Debug)]
pub(crate) struct Faults {
    /// Whether requests have to be asked about.
    asks: AtomicBool,
    plan: RwLock<Arc<Plan>>,
    /// How often the plan was changed. Held from the reading of a plan to its change: two additions at
    /// once are both kept.
    changes: Mutex<u64>,
    counts: Mutex<Counts>,
    pub(crate) log: Log,
    models: Vec<ModelSpec>,
}

/// What befalls each simulated GPU with a timeline, in the order of the configuration.
pub(crate) type Timelines = Vec<Vec<Timed>>;

/// What a change of the plan means for the simulated GPUs.
#[derive(Debug, PartialEq)]
pub(crate) struct Change {
    /// Counted from 1, in the order in which plans were put in force. They are told by whoever made
    /// the change, so two at once may be told in the other order.
    pub(crate) number: u64,
    /// What befalls each of them from now on, beginning with the end of what befell it before.
    pub(crate) timelines: Timelines,
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    /// When it began: times of rules count from here.
    pub(crate) since: SimTime,
    /// Rules and headers that a request is compared with.
    compared: usize,
    /// Rules that search its text.
    searched: usize,
}

/// The longest body that is looked into on an I/O thread.
const LONGEST_INLINE: usize = 32 * 1024;

/// The most [work](Plan::work) that is done there: a quarter of a millisecond if each takes a
/// nanosecond, which is an estimate and no measurement.
const MOST_WORK_INLINE: usize = 256 * 1024;

#[derive(Debug, Default)]
struct Counts {
    tallies: Tallies,
    buckets: Buckets,
}

/// What befalls one request.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) before: Option<Rule>,
    pub(crate) stream: Option<Rule>,
    limits: Vec<Rule>,
    /// Whose limits it counts for.
    key: Option<String>,
    /// For logs and metrics.
    pub(crate) model: String,
}

impl Faults {
    pub(crate) fn new(settings: Settings, models: Vec<ModelSpec>) -> Self {
        let plan = Arc::new(Plan::new(settings, SimTime::ZERO));
        Self {
            asks: AtomicBool::new(plan.asks()),
            plan: RwLock::new(plan),
            changes: Mutex::default(),
            counts: Mutex::default(),
            log: Log::new(gpus(&models).iter().map(named).collect()),
            models,
        }
    }

    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self::new(Settings::default(), Vec::new())
    }

    /// The plan in force.
    pub(crate) fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.plan.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another plan in force; nothing has been counted for it.
    pub(crate) fn replace(&self, settings: Settings, now: SimTime) -> Change {
        self.replace_by(|_| settings, now)
    }

    /// Takes all rules away. Who may ask stays as it was configured.
    pub(crate) fn clear(&self, now: SimTime) -> Change {
        let without_rules = |&Settings { seed, headers, markers, .. }: &Settings| Settings {
            seed,
            headers,
            markers,
            rules: Vec::new(),
        };
        self.replace_by(without_rules, now)
    }

    fn replace_by(&self, settings: impl FnOnce(&Settings) -> Settings, now: SimTime) -> Change {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = Arc::new(Plan::new(settings(&self.plan().settings), now));
        let timelines = self.disturbances(&plan);
        // What was counted may be megabytes: dropped when nobody waits for the lock.
        let counted = std::mem::take(&mut *self.counts());
        drop(counted);
        self.put_in_force(plan);
        *changes += 1;
        Change { number: *changes, timelines }
    }

    /// Adds rules to the plan in force; their times count from now. What was counted stays.
    ///
    /// # Errors
    /// With those of the plan they are too many: so many.
    pub(crate) fn add(&self, mut more: Settings, now: SimTime) -> Result<Change, usize> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = self.plan();
        let mut settings = plan.settings.clone();
        let since = now.saturating_since(plan.since);
        for rule in &mut more.rules {
            rule.when.at += since;
        }
        settings.merge(more)?;
        let plan = Arc::new(Plan::new(settings, plan.since));
        let whole = self.disturbances(&plan);
        self.put_in_force(plan);
        *changes += 1;
        let timelines = whole.into_iter().map(|all| admin::from_now_on(all, now)).collect();
        Ok(Change { number: *changes, timelines })
    }

    fn put_in_force(&self, plan: Arc<Plan>) {
        self.asks.store(plan.asks(), Ordering::Relaxed);
        let before = {
            let mut in_force = self.plan.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *in_force, plan)
        };
        // Not under the lock.
        drop(before);
    }

    /// What befalls each simulated GPU with a timeline, in the order of the configuration.
    pub(crate) fn disturbances(&self, plan: &Plan) -> Timelines {
        faults::disturbances(&plan.settings.rules, &gpus(&self.models), plan.since)
    }

    /// Why the server is not ready, if a rule says that it is not.
    pub(crate) fn unready(&self, now: SimTime) -> Option<Unready> {
        if !self.asks.load(Ordering::Relaxed) {
            return None;
        }
        let plan = self.plan();
        faults::is_ready(&plan.settings.rules, plan.at(now)).err()
    }

    /// Whether anything may befall a request; not so in nearly all cases, and never what takes faults
    /// away again.
    pub(crate) fn may_befall(&self, head: &Head) -> bool {
        if head.uri.path().starts_with("/admin/") {
            return false;
        }
        self.asks.load(Ordering::Relaxed) || head.headers.get(faults::HEADER).is_some()
    }

    /// Whether what befalls a request with so long a body is found at once.
    pub(crate) fn is_quick(&self, body: usize) -> bool {
        body <= LONGEST_INLINE && self.plan().work(body) <= MOST_WORK_INLINE
    }

    /// What befalls a request that something may befall. It reads the body and goes through all rules:
    /// if that is not [quick](Self::is_quick), it is for a helper thread.
    ///
    /// # Errors
    /// It asks for a fault of its own in words that are not understood.
    pub(crate) fn ask(
        &self,
        head: &Head,
        body: &[u8],
        load: u64,
        now: SimTime,
    ) -> Result<Option<Verdict>, ApiError> {
        let plan = self.plan();
        let path = head.uri.path();
        let generates = api::route(head).generates();
        let mut own = Vec::new();
        if plan.settings.headers != Some(false)
            && let Some(words) = head.headers.text(faults::HEADER)
        {
            own = read_own(words, &format!("the header '{}'", faults::HEADER))?;
        }
        let seen = peek::peek(body);
        if plan.settings.markers == Some(true)
            && let Some(words) = seen.text.as_deref().and_then(faults::marker)
        {
            own.extend(read_own(words, "the marker in the last message")?);
        }
        if own.is_empty() && plan.settings.rules.is_empty() {
            return Ok(None);
        }
        // Once, and not while others wait for the counts.
        let rules = || own.iter().chain(&plan.settings.rules);
        let text = seen.text.filter(|_| rules().any(|rule| rule.when.contains.is_some()));
        let text = text.map(|text| text.to_lowercase());
        let bearer = head
            .headers
            .text("authorization")
            .and_then(|value| value.split_once(' '))
            .map(|(_, key)| key.trim());
        let key = bearer.or_else(|| head.headers.text("x-api-key"));
        let asked = Asked {
            path,
            generates,
            model: seen.model.as_deref(),
            key,
            text: text.as_deref(),
            header: &|name| head.headers.text(name),
            content: faults::content_of(path, body),
            is_stream: seen.is_stream,
            load,
            at: plan.at(now),
        };
        // What a request asks for itself goes before what is planned.
        let candidates = faults::candidates(rules(), &asked);
        if candidates.is_empty() {
            return Ok(None);
        }
        let decision =
            faults::decide(&candidates, plan.settings.seed, &mut self.counts().tallies, &asked);
        if decision.is_empty() {
            return Ok(None);
        }
        let Decision { before, stream, limits } = decision;
        Ok(Some(Verdict {
            before: before.cloned(),
            stream: stream.cloned(),
            limits: limits.into_iter().cloned().collect(),
            key: key.map(str::to_owned),
            model: self.known_model(seen.model.as_deref()),
        }))
    }

    /// Counts a request of `tokens` for its rate limits; says what is left, the least first.
    ///
    /// # Errors
    /// It is too much for one of them, which this gives back.
    pub(crate) fn charge(
        &self,
        verdict: &Verdict,
        tokens: u32,
        now: SimTime,
    ) -> Result<Vec<Remaining>, Box<(Exceeded, Rule)>> {
        let mut left: Vec<Remaining> = Vec::new();
        for rule in &verdict.limits {
            let Fault::RateLimit { requests, tokens: per_minute } = rule.fault else { continue };
            let user = Seed::new(rule.id)
                .with(verdict.model.as_bytes())
                .with(verdict.key.as_deref().unwrap_or_default().as_bytes())
                .value();
            let charged = self.counts().buckets.take(user, now, (requests, per_minute), tokens);
            match charged {
                Ok(remaining) => left.extend(remaining),
                Err(exceeded) => return Err(Box::new((exceeded, rule.clone()))),
            }
        }
        left.sort_by_key(|remaining| remaining.left);
        Ok(left)
    }

    /// Notes that a rule has hit.
    pub(crate) fn count(&self, model: &str, rule: &Rule, request: &str, now: SimTime) {
        self.log.note(model, rule.fault.kind(), &rule.text, request, now);
    }

    /// Labels must not be what any client invents.
    fn known_model(&self, asked: Option<&str>) -> String {
        let known = self.models.iter().find(|model| Some(model.name.as_str()) == asked);
        known.map_or_else(|| "unknown".to_owned(), |model| model.name.clone())
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verdict {
    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }
}

impl Plan {
    fn new(settings: Settings, since: SimTime) -> Self {
        let rules = &settings.rules;
        let compared = rules.iter().map(|rule| 1 + rule.when.headers.len()).sum();
        let searched = rules.iter().filter(|rule| rule.when.contains.is_some()).count();
        Self { settings, since, compared, searched }
    }

    /// What all rules together look at for a request: bytes of text, and a few for whatever else is
    /// compared.
    fn work(&self, body: usize) -> usize {
        const PER_COMPARISON: usize = 16;
        self.compared * PER_COMPARISON + self.searched * body
    }

    /// Whether requests have to be asked about.
    fn asks(&self) -> bool {
        let rules = &self.settings.rules;
        self.settings.markers == Some(true)
            || rules.iter().any(|rule| rule.fault.stage() != Stage::Engine)
    }

    fn at(&self, now: SimTime) -> SimTime {
        SimTime::ZERO + now.saturating_since(self.since)
    }
}

fn read_own(words: &str, place: &str) -> Result<Vec<Rule>, ApiError> {
    let rules = faults::parse(words)
        .map_err(|bad| ApiError::invalid_value(faults::HEADER, &format!("in {place}: {bad}.")))?;
    match rules.iter().find(|rule| rule.fault.stage() == Stage::Engine) {
        Some(rule) => Err(ApiError::invalid_value(
            faults::HEADER,
            &format!(
                "in {place}: `{}` befalls a simulated GPU and with it other requests. Put it into \
                 the configuration, or PUT it to /admin/faults.",
                rule.fault.kind()
            ),
        )),
        None => Ok(rules),
    }
}

/// A simulated GPU, as the log names it.
fn named(gpu: &GpuAt<'_>) -> log::Gpu {
    let GpuAt { model, replica, .. } = gpu;
    log::Gpu { model: (*model).to_owned(), name: format!("{model}/{replica}") }
}

/// What `rules` do to each simulated GPU of `models` from the start of a run.
pub(crate) fn disturbances_of(settings: &Settings, models: &[ModelSpec]) -> Timelines {
    faults::disturbances(&settings.rules, &gpus(models), SimTime::ZERO)
}

/// The headers that tell what is left of rate limits, the tightest of each kind, as the API of `path`
/// names them. OpenAI says in how long all is there again, Anthropic at which time of day.
pub(crate) fn limit_headers(left: &[Remaining], path: &str) -> Vec<(&'static str, String)> {
    let is_anthropics = path.starts_with(respond::MESSAGES);
    let mut headers = Vec::new();
    for kind in [LimitKind::Requests, LimitKind::Tokens] {
        let Some(remaining) = left.iter().find(|remaining| remaining.kind == kind) else {
            continue;
        };
        let names = match (is_anthropics, kind) {
            (false, LimitKind::Requests) => [
                "x-ratelimit-limit-requests",
                "x-ratelimit-remaining-requests",
                "x-ratelimit-reset-requests",
            ],
            (false, LimitKind::Tokens) => [
                "x-ratelimit-limit-tokens",
                "x-ratelimit-remaining-tokens",
                "x-ratelimit-reset-tokens",
            ],
            (true, LimitKind::Requests) => [
                "anthropic-ratelimit-requests-limit",
                "anthropic-ratelimit-requests-remaining",
                "anthropic-ratelimit-requests-reset",
            ],
            (true, LimitKind::Tokens) => [
                "anthropic-ratelimit-tokens-limit",
                "anthropic-ratelimit-tokens-remaining",
                "anthropic-ratelimit-tokens-reset",
            ],
        };
        let reset = if is_anthropics {
            // Whole seconds, none too early.
            let seconds = remaining.reset.as_ns().div_ceil(1_000_000_000);
            rfc3339(clock::unix_seconds() + seconds)
        } else {
            duration(remaining.reset)
        };
        let values = [remaining.limit.to_string(), remaining.left.to_string(), reset];
        headers.extend(names.into_iter().zip(values));
    }
    headers
}

/// A time as OpenAI's headers write it: `20ms`, `1s`, `1.5s`, `6m0s`.
pub(crate) fn duration(span: SimSpan) -> String {
    let ms = span.as_ns().div_ceil(1_000_000);
    let seconds = |ms: u64| match ms % 1_000 {
        0 => format!("{}s", ms / 1_000),
        rest => format!("{}.{rest:03}", ms / 1_000).trim_end_matches('0').to_owned() + "s",
    };
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => seconds(ms),
        60_000..3_600_000 => format!("{}m{}", ms / 60_000, seconds(ms % 60_000)),
        _ => format!("{}h{}m{}", ms / 3_600_000, ms / 60_000 % 60, seconds(ms % 60_000)),
    }
}

#[cfg(test)]
mod tests {
    use llmsim_engine::faults::MOST_RULES;

    use super::*;

    #[test]
    fn what_a_request_costs_an_io_thread_is_bounded_however_many_rules_there_are() {
        let quick = |words: &str, body| {
            let all = faults::parse(words).unwrap();
            let rules = all.iter().cycle().take(MOST_RULES).cloned().collect();
            let faults = Faults::new(Settings { rules, ..Settings::default() }, Vec::new());
            faults.is_quick(body)
        };
        assert!(quick("status=503 model=m p=0.5", LONGEST_INLINE));
        assert!(!quick("status=503 model=m p=0.5", LONGEST_INLINE + 1));
        // A thousand searches of a short text, but not of a long one.
        assert!(quick("status=503 contains=please", 200));
        assert!(!quick("status=503 contains=please", 20_000));
        let headers: String = (0..60).map(|at| format!(" header.x{at}=1")).collect();
        assert!(!quick(&format!("status=503{headers}"), 0));
    }

    #[test]
    fn a_plan_has_so_many_rules_at_most_whatever_is_added() {
        let rules = |count| {
            let rule = faults::parse("close p=0.5").unwrap();
            Settings {
                rules: rule.iter().cycle().take(count).cloned().collect(),
                ..Settings::default()
            }
        };
        let faults = Faults::new(rules(MOST_RULES - 1), Vec::new());
        assert_eq!(faults.add(rules(1), SimTime::ZERO).unwrap().number, 1);
        assert_eq!(faults.add(rules(1), SimTime::ZERO), Err(MOST_RULES + 1));
        assert_eq!(faults.plan().settings.rules.len(), MOST_RULES);
        // What was refused was no change.
        assert_eq!(faults.replace(rules(3), SimTime::ZERO).number, 2);
        assert_eq!(faults.clear(SimTime::ZERO).number, 3);
    }

    #[test]
    fn durations_are_written_as_openai_writes_them() {
        for (ms, text) in [
            (0, "0ms"),
            (20, "20ms"),
            (1_000, "1s"),
            (8_640, "8.64s"),
            (59_999, "59.999s"),
            (360_000, "6m0s"),
            (3_661_500, "1h1m1.5s"),
        ] {
            assert_eq!(duration(SimSpan::from_ms(ms)), text);
        }
    }
}
