//! Scenario files: requests, cancellations and settings of one recorded run.
//!
//! Parsing only. The invariant: a [`Scenario`] that parsed is complete and consistent; nothing has
//! to be checked again while it is replayed.

use serde::Deserialize;

use crate::seed::Seed;
use crate::sim::scheduler::cost::StepCost;
use crate::sim::scheduler::{
    FreedBlocks, OutputBlocks, Policy, PrefillOrder, SchedulerSpec, Scheduling,
};
use crate::sim::{BlockHash, Job};
use crate::units::{Blocks, JobId, SimSpan, Tokens};

/// One recorded run's inputs; see `engine/tests/traces/README.md` for the format.
#[derive(Clone, Debug, Deserialize)]
pub struct Scenario {
    /// Its name; also the file's.
    pub name: String,
    /// The scheduler's settings.
    #[serde(default)]
    pub config: Config,
    /// Request i is the i-th entry.
    pub requests: Vec<Request>,
    /// [request, step, when].
    #[serde(default)]
    pub cancels: Vec<(usize, u64, When)>,
    /// A run that takes more steps has got stuck.
    #[serde(default = "max_steps")]
    pub max_steps: u64,
}

fn max_steps() -> u64 {
    100_000
}

/// When in its step a cancellation arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// After the step's arrivals, before it is scheduled.
    Before,
    /// After it was scheduled, before results are processed.
    During,
}

/// One request.
#[derive(Clone, Debug, Deserialize)]
pub struct Request {
    /// The step at whose start it arrives.
    pub arrive: u64,
    /// [segment, length]: the tokens (segment, 0) … (segment, length − 1), one after another.
    pub prompt: Vec<(u64, u32)>,
    /// The most output tokens.
    pub max_tokens: u32,
    /// Output token k is (`out_segment`, k).
    pub out_segment: u64,
    /// The output token, from 1, that is a stop token.
    pub stop_after: Option<u32>,
    /// Lower is more urgent.
    #[serde(default)]
    pub priority: i32,
    /// Keeps prefixes of different salts apart.
    pub salt: Option<String>,
}

/// The settings, in vLLM's (or nearly vLLM's) names and in the order of the recording.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of `SchedulerSpec`")]
pub struct Config {
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
    pub max_model_len: u32,
    pub block_size: u32,
    pub num_blocks: u32,
    pub prefix_caching: bool,
    pub policy: PolicyName,
    pub long_prefill_token_threshold: u32,
    pub long_prefill_adaptive: bool,
    pub chunked_prefill: bool,
    pub reserve_full_isl: bool,
    pub watermark: Number,
    pub max_num_active_seqs: Option<u32>,
    pub prefill_interval: u32,
    pub async_scheduling: bool,
}

/// `policy`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words of the file")]
pub enum PolicyName {
    Fcfs,
    Priority,
}

/// A number that is printed as it was written: `0` and `0.0` are different texts.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// Without a decimal point.
    Whole(u32),
    /// With one.
    Real(f64),
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Self::Whole(value) => f64::from(value),
            Self::Real(value) => value,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_num_seqs: 16,
            max_num_batched_tokens: 1024,
            max_model_len: 2048,
            block_size: 16,
            num_blocks: 129,
            prefix_caching: false,
            policy: PolicyName::Fcfs,
            long_prefill_token_threshold: 0,
            long_prefill_adaptive: false,
            chunked_prefill: true,
            reserve_full_isl: true,
            watermark: Number::Real(0.0),
            max_num_active_seqs: None,
            prefill_interval: 1,
            async_scheduling: false,
        }
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// What is wrong with it, for a person.
    pub fn parse(text: &str) -> Result<Self, String> {
        let scenario: Self = sonic_rs::from_str(text).map_err(|error| error.to_string())?;
        let config = &scenario.config;
        if scenario.requests.is_empty() {
            return Err("`requests` is empty".into());
        }
        for (name, value) in [
            ("max_num_seqs", config.max_num_seqs),
            ("max_num_batched_tokens", config.max_num_batched_tokens),
            ("block_size", config.block_size),
            ("num_blocks", config.num_blocks.saturating_sub(1)),
            ("max_num_active_seqs", config.max_num_active_seqs.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(format!("config.{name} is too small for anything to run"));
            }
        }
        if !(0.0..=1.0).contains(&config.watermark.value()) {
            return Err("config.watermark must lie between 0 and 1".into());
        }
        for (index, request) in scenario.requests.iter().enumerate() {
            if request.prompt.iter().map(|&(_, length)| u64::from(length)).sum::<u64>() == 0 {
                return Err(format!("requests[{index}] has an empty prompt"));
            }
        }
        for (at, &(request, step, _)) in scenario.cancels.iter().enumerate() {
            match scenario.requests.get(request) {
                None => return Err(format!("cancels[{at}] names request {request}: no such one")),
                Some(other) if step < other.arrive => {
                    return Err(format!("cancels[{at}] comes before its request arrives"));
                }
                Some(_) => {}
            }
        }
        Ok(scenario)
    }

    /// The settings as the scheduler takes them.
    pub fn spec(&self) -> SchedulerSpec {
        let config = &self.config;
        SchedulerSpec {
            max_num_batched_tokens: Tokens::new(config.max_num_batched_tokens),
            max_num_seqs: config.max_num_seqs,
            max_num_active_seqs: config.max_num_active_seqs,
            max_model_len: Tokens::new(config.max_model_len),
            block_size: Tokens::new(config.block_size),
            num_blocks: Blocks::new(config.num_blocks),
            prefix_caching: config.prefix_caching,
            policy: match config.policy {
                PolicyName::Fcfs => Policy::Fcfs,
                PolicyName::Priority => Policy::Priority,
            },
            long_prefill_token_threshold: Tokens::new(config.long_prefill_token_threshold),
            long_prefill_adaptive: config.long_prefill_adaptive,
            chunked_prefill: config.chunked_prefill,
            reserve_full_isl: config.reserve_full_isl,
            watermark: config.watermark.value(),
            prefill_interval: config.prefill_interval,
            scheduling: match config.async_scheduling {
                true => Scheduling::Asynchronous,
                false => Scheduling::Synchronous,
            },
            max_num_queued_reqs: None,
            freed_blocks: FreedBlocks::default(),
            prefill_order: PrefillOrder::Mixed,
            output_blocks: OutputBlocks::AsNeeded,
            cost: StepCost::Fixed(SimSpan::from_ms(1)),
            residual: None,
        }
    }

    /// Request `index` as the scheduler takes it.
    pub fn job(&self, index: usize) -> Job {
        let request = &self.requests[index];
        let prompt = request.prompt.iter().map(|&(_, length)| length).sum();
        Job {
            id: JobId(index as u64),
            prompt: Tokens::new(prompt),
            max_tokens: Tokens::new(request.max_tokens),
            stop_after: request.stop_after.map(Tokens::new),
            priority: request.priority,
            chain: self.config.prefix_caching.then(|| self.chain(request, prompt).into()),
        }
    }

    /// The keys of all full blocks that prompt and output can ever fill.
    fn chain(&self, request: &Request, prompt: u32) -> Vec<BlockHash> {
        let output = request.max_tokens.min(self.config.max_model_len.saturating_sub(prompt));
        let tokens = request
            .prompt
            .iter()
            .copied()
            .chain([(request.out_segment, output)])
            .flat_map(|(segment, length)| (0..length).map(move |offset| (segment, offset)));
        let mut key = Seed::new(0).with(request.salt.as_deref().unwrap_or("").as_bytes());
        let mut chain = Vec::new();
        let mut block = Vec::new();
        for (count, (segment, offset)) in tokens.enumerate() {
            block.extend_from_slice(&segment.to_le_bytes());
            block.extend_from_slice(&u64::from(offset).to_le_bytes());
            if (count + 1) % self.config.block_size as usize == 0 {
                key = key.with(&block);
                chain.push(BlockHash(key.value()));
                block.clear();
            }
        }
        chain
    }
}

impl Config {
    /// As it stands in the first line of a trace.
    pub(super) fn to_json(&self) -> String {
        let policy = match self.policy {
            PolicyName::Fcfs => "fcfs",
            PolicyName::Priority => "priority",
        };
        let active =
            self.max_num_active_seqs.map_or_else(|| "null".into(), |most| most.to_string());
        format!(
            "{{\"max_num_seqs\":{},\"max_num_batched_tokens\":{},\"max_model_len\":{},\
             \"block_size\":{},\"num_blocks\":{},\"prefix_caching\":{},\"policy\":\"{policy}\",\
             \"long_prefill_token_threshold\":{},\"long_prefill_adaptive\":{},\
             \"chunked_prefill\":{},\"reserve_full_isl\":{},\"watermark\":{},\
             \"max_num_active_seqs\":{active},\"prefill_interval\":{},\"async_scheduling\":{}}}",
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.max_model_len,
            self.block_size,
            self.num_blocks,
            self.prefix_caching,
            self.long_prefill_token_threshold,
            self.long_prefill_adaptive,
            self.chunked_prefill,
            self.reserve_full_isl,
            self.watermark.to_json(),
            self.prefill_interval,
            self.async_scheduling,
        )
    }
}

impl Number {
    /// As Python prints it: the recordings are Python's.
    fn to_json(self) -> String {
        match self {
            Self::Whole(value) => value.to_string(),
            Self::Real(value) => {
                let text = format!("{value:?}");
                match text.split_once("e-") {
                    Some((digits, exponent)) => format!("{digits}e-{exponent:0>2}"),
                    None => text,
                }
            }
        }
    }
}
