//! A model on GPUs under an engine: what a step costs and how much KV cache there is.

use std::fmt;

use super::{Attention, EngineClass, ExpertReads, GpuShape, KvMemory, ModelShape};
use crate::sim::scheduler::cost::{Efficiency, Roofline, StepShape};
use crate::units::{Blocks, Bytes, SimSpan, Tokens};

/// The format of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightDtype {
    /// As the model is published.
    #[default]
    Auto,
    /// bf16 or fp16.
    Bf16,
    /// FP8 weights and activations; computed in 16 bits where the GPU has no FP8.
    Fp8,
    /// INT8 weights and activations; counted at the FP8 rate, which it shares on GPUs that have
    /// both, else at the 16-bit one.
    Int8,
    /// 4-bit integers with group scales (AWQ, GPTQ), computed in 16 bits.
    Int4,
    /// MXFP4 with its scales, computed in 16 bits; in a mixture of experts only the experts.
    Mxfp4,
    /// NVFP4 with its scales; computed in FP4 where the GPU has it, else in 16 bits.
    Nvfp4,
}

impl WeightDtype {
    /// All names that [`WeightDtype::parse`] knows, `auto` first.
    pub const NAMES: [&'static str; 11] = [
        "auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "int8", "int4", "awq", "mxfp4",
        "nvfp4",
    ];

    /// The format of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "bf16" | "bfloat16" | "fp16" | "float16" => Self::Bf16,
            "fp8" => Self::Fp8,
            "int8" => Self::Int8,
            "int4" | "awq" => Self::Int4,
            "mxfp4" => Self::Mxfp4,
            "nvfp4" => Self::Nvfp4,
            _ => return None,
        })
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Mxfp4 => "mxfp4",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Bytes per parameter, scales included.
    const fn bytes(self) -> f64 {
        match self {
            Self::Auto | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
            // One 16-bit scale and zero point for 128 weights.
            Self::Int4 => 0.53,
            // One 8-bit scale for 32 weights.
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
            // One 8-bit scale for 16 weights.
            Self::Nvfp4 => 0.5 + 1.0 / 16.0,
        }
    }
}

/// The format of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvCacheDtype {
    /// 16 bits, as vLLM does with a bf16 model.
    #[default]
    Auto,
    /// 8 bits.
    Fp8,
}

impl KvCacheDtype {
    /// All names that [`KvCacheDtype::parse`] knows, `auto` first.
    pub const NAMES: [&'static str; 8] =
        ["auto", "bf16", "bfloat16", "fp16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"];

    /// The format of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "auto" | "bf16" | "bfloat16" | "fp16" | "float16" => Self::Auto,
            "fp8" | "fp8_e4m3" | "fp8_e5m2" => Self::Fp8,
            _ => return None,
        })
    }

    const fn bytes(self) -> f64 {
        match self {
            Self::Auto => 2.0,
            Self::Fp8 => 1.0,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "16 bits",
            Self::Fp8 => "fp8",
        }
    }
}

/// How the GPU's memory is shared out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// `gpu_memory_utilization`, over 0 and at most 1: the share of the memory that the engine may
    /// use.
    pub gpu_memory_utilization: f64,
    /// Tokens per KV-cache block.
    pub block_size: Tokens,
    /// `max_num_batched_tokens`: the reserve for activations grows with it.
    pub max_num_batched_tokens: Tokens,
    /// `max_num_seqs`: the reserve for logits grows with it.
    pub max_num_seqs: u32,
    /// `num_gpu_blocks_override`: this many blocks, whatever fits.
    pub num_gpu_blocks_override: Option<Blocks>,
}

impl Default for Memory {
    /// vLLM's defaults on large GPUs.
    fn default() -> Self {
        Self {
            gpu_memory_utilization: 0.92,
            block_size: Tokens::new(16),
            max_num_batched_tokens: Tokens::new(8192),
            max_num_seqs: 256,
            num_gpu_blocks_override: None,
        }
    }
}

/// A model on GPUs under an engine.
#[derive(Clone, Debug)]
pub struct Deployment<'a> {
    /// Each of the GPUs.
    pub gpu: &'a GpuShape,
    /// The model.
    pub model: &'a ModelShape,
    /// GPUs that share every layer.
    pub tensor_parallel_size: u32,
    /// The format of the weights.
    pub weight_dtype: WeightDtype,
    /// The format of the KV cache.
    pub kv_cache_dtype: KvCacheDtype,
    /// Where the constants are from.
    pub class: &'a EngineClass,
    /// The constants: the class's, with what the user overrides.
    pub efficiency: Efficiency,
    /// How the memory is shared out.
    pub memory: Memory,
}

/// Why a deployment cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key of `models.yml` that it is about.
    pub field: &'static str,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

/// What follows from a deployment.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What a step costs.
    pub cost: Roofline,
    /// All KV-cache blocks, the placeholder block 0 included, as vLLM counts them.
    pub num_blocks: Blocks,
    /// The same for people.
    pub derived: Derived,
}

/// What followed from a deployment, for people; prints as a few lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Derived {
    /// `llama-3.1-8b on 2 x H100 SXM5 80GB, engine class generic`.
    pub title: String,
    /// The format of the weights, resolved.
    pub weight_dtype: WeightDtype,
    /// All weights.
    pub weights: Bytes,
    /// The weights on each GPU.
    pub weights_per_gpu: Bytes,
    /// The format of the KV cache.
    pub kv_cache_dtype: KvCacheDtype,
    /// KV cache per token of context, all GPUs.
    pub kv_bytes_per_token: Bytes,
    /// KV cache per token of context, on each GPU.
    pub kv_bytes_per_token_per_gpu: Bytes,
    /// What each GPU keeps free for activations, logits, graphs and its own runtime.
    pub reserved_per_gpu: Bytes,
    /// All memory of each GPU.
    pub hbm: Bytes,
    /// The share of it that the engine may use.
    pub gpu_memory_utilization: f64,
    /// Tokens that the KV cache holds: those of [`blocks`](Self::blocks).
    pub kv_tokens: u64,
    /// Blocks that requests can have: all but the placeholder, which is never handed out. vLLM's
    /// own log line counts it.
    pub blocks: Blocks,
    /// Tokens per block.
    pub block_size: Tokens,
    /// (batch, duration of a step that decodes so many sequences at [`DECODE_CONTEXT`] tokens).
    /// See [`decode_batches`].
    pub decode_steps: Vec<(u32, SimSpan)>,
    /// Tokens per second of one long prompt, in chunks of `max_num_batched_tokens`.
    pub prefill_tokens_per_second: f64,
}

/// The context at which [`Derived::decode_steps`] are stated.
pub const DECODE_CONTEXT: u64 = 1024;

/// The batches of which a decode step's time is told: 1, 16 and 256, as far as so many can run at
/// once, and the most that can: no more than `max_num_seqs`, and no more than have
/// [`DECODE_CONTEXT`] tokens each in a cache of `kv_tokens`.
pub fn decode_batches(max_num_seqs: u32, kv_tokens: u64) -> impl Iterator<Item = u32> {
    let fit = u32::try_from(kv_tokens / DECODE_CONTEXT).unwrap_or(u32::MAX);
    let most = max_num_seqs.min(fit).max(1);
    [1, 16, 256].into_iter().filter(move |&batch| batch < most).chain([most])
}

impl Deployment<'_> {
    /// Works out what a step costs and how many blocks there are.
    ///
    /// # Errors
    /// All reasons why the deployment cannot be.
    pub fn plan(&self) -> Result<Plan, Vec<Problem>> {
        let mut problems = Vec::new();
        if self.tensor_parallel_size == 0
            || !self.model.heads.is_multiple_of(self.tensor_parallel_size)
        {
            problems.push(self.uneven_tensor_parallel());
        }
        if self.tensor_parallel_size > 1 && self.gpu.link.is_none() {
            problems.push(Problem {
                field: "hardware",
                message: format!("`{}` states no bandwidth between GPUs", self.gpu.id),
                hint: "add `link_gbps` (one way, GB/s), or use `tensor_parallel_size: 1`"
                    .to_owned(),
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let cost = self.roofline();
        if let Err(quantity) = cost.check() {
            return Err(vec![Problem {
                field: "hardware",
                message: format!("the cost model's `{quantity}` cannot be worked out from this"),
                hint: "rates and efficiencies must be positive numbers".to_owned(),
            }]);
        }
        let num_blocks = match self.memory.num_gpu_blocks_override {
            Some(blocks) => blocks,
            None => self.blocks_that_fit().map_err(|problem| vec![problem])?,
        };
        let derived = self.derived(&cost, num_blocks);
        Ok(Plan { cost, num_blocks, derived })
    }

    fn uneven_tensor_parallel(&self) -> Problem {
        let heads = self.model.heads;
        let fitting: Vec<String> = (0..8)
            .map(|n| 1 << n)
            .filter(|n| heads.is_multiple_of(*n))
            .map(|n| n.to_string())
            .collect();
        Problem {
            field: "tensor_parallel_size",
            message: format!(
                "{} does not divide the {heads} attention heads of `{}`",
                self.tensor_parallel_size, self.model.id
            ),
            hint: format!("use one of {}", fitting.join(", ")),
        }
    }

    /// The format of the weights, with `auto` resolved.
    fn weight_dtype(&self) -> WeightDtype {
        match (self.weight_dtype, self.model.native_dtype) {
            (WeightDtype::Auto, WeightDtype::Auto) => WeightDtype::Bf16,
            (WeightDtype::Auto, native) => native,
            (given, _) => given,
        }
    }

    /// Bytes per parameter of attention, dense and shared MLPs and router.
    fn dense_bytes_per_param(&self) -> f64 {
        match self.weight_dtype() {
            WeightDtype::Mxfp4 if self.model.experts > 0 => 2.0,
            dtype => dtype.bytes(),
        }
    }

    fn gpus(&self) -> f64 {
        f64::from(self.tensor_parallel_size)
    }

    /// Embeddings and LM head stay in 16 bits, whatever the rest is in.
    fn weight_bytes(&self) -> f64 {
        let model = self.model;
        let tables = if model.tied_embeddings { 1.0 } else { 2.0 };
        model.dense_params as f64 * self.dense_bytes_per_param()
            + model.expert_params as f64 * self.weight_dtype().bytes()
            + model.head_params as f64 * tables * 2.0
    }

    fn kv_bytes_per_token(&self) -> f64 {
        self.model.kv_elements_per_token as f64 * self.kv_cache_dtype.bytes()
    }

    /// Into how many parts the KV cache is split; a latent is not split, and with more GPUs than
    /// KV heads some GPUs hold the same ones.
    fn kv_shards(&self) -> f64 {
        match self.model.attention {
            Attention::Mla => 1.0,
            Attention::Gqa => f64::from(self.tensor_parallel_size.min(self.model.kv_heads)),
        }
    }

    fn linear_peak(&self) -> f64 {
        let gpu = self.gpu;
        match self.weight_dtype() {
            WeightDtype::Fp8 | WeightDtype::Int8 => gpu.fp8_peak.unwrap_or(gpu.bf16_peak),
            WeightDtype::Nvfp4 => gpu.fp4_peak.unwrap_or(gpu.bf16_peak),
            _ => gpu.bf16_peak,
        }
    }

    fn attention_peak(&self) -> f64 {
        match self.kv_cache_dtype {
            KvCacheDtype::Fp8 => self.gpu.fp8_peak.unwrap_or(self.gpu.bf16_peak),
            KvCacheDtype::Auto => self.gpu.bf16_peak,
        }
    }

    fn roofline(&self) -> Roofline {
        let model = self.model;
        Roofline {
            dense_weight_bytes: model.dense_params as f64 * self.dense_bytes_per_param()
                + model.head_params as f64 * 2.0,
            expert_weight_bytes: model.expert_params as f64 * self.weight_dtype().bytes(),
            expert_share: if model.experts == 0 || self.class.expert_reads == ExpertReads::All {
                1.0
            } else {
                f64::from(model.experts_per_token) / f64::from(model.experts)
            },
            linear_flop_per_token: 2.0 * model.active_params as f64,
            head_flop_per_sample: 2.0 * model.head_params as f64,
            kv_bytes_per_token: self.kv_bytes_per_token(),
            kv_shards: self.kv_shards(),
            prefill_flop_per_pair: model.prefill_flop_per_pair as f64,
            decode_flop_per_pair: model.decode_flop_per_pair as f64,
            window_share: if model.layers == 0 {
                0.0
            } else {
                f64::from(model.sliding_layers) / f64::from(model.layers)
            },
            window_tokens: f64::from(model.window),
            layers: f64::from(model.layers),
            tensor_parallel: self.gpus(),
            all_reduce_bytes_per_token: f64::from(model.hidden) * 2.0,
            bandwidth: self.gpu.bandwidth,
            linear_peak: self.linear_peak(),
            attention_peak: self.attention_peak(),
            link: self.gpu.link.unwrap_or(1.0),
            efficiency: self.efficiency,
        }
    }

    /// What each GPU keeps free: its runtime (CUDA context, captured graphs) and the larger of the
    /// outputs of one layer's matrices for a full step and the logits of a full batch in 32 bits,
    /// twice; the one is freed before the other is needed. With 0.6 GB for the runtime this meets
    /// the KV capacity that vLLM 0.23 reported for Qwen3-14B on an H100 (288,608 tokens) within
    /// 0.4 %; mixtures of experts need more, for which 3 GB is a rough value.
    fn reserved_bytes_per_gpu(&self) -> f64 {
        let model = self.model;
        let runtime = if model.experts == 0 { 0.6e9 } else { 3e9 };
        let layer_width = model.active_params as f64
            / f64::from(model.layers.max(1))
            / f64::from(model.hidden.max(1));
        let activations = f64::from(self.memory.max_num_batched_tokens.get()) * layer_width * 2.0;
        let logits = f64::from(self.memory.max_num_seqs) * f64::from(model.vocabulary) * 4.0 * 2.0;
        runtime + activations.max(logits) / self.gpus()
    }

    fn blocks_that_fit(&self) -> Result<Blocks, Problem> {
        let total = self.gpu.hbm.get() as f64;
        let share = self.memory.gpu_memory_utilization;
        let taken = self.weight_bytes() / self.gpus() + self.reserved_bytes_per_gpu();
        let room = match self.class.kv_memory {
            KvMemory::OfTotal => total * share - taken,
            KvMemory::OfRest => (total - taken) * share,
        };
        let block = self.kv_bytes_per_token() / self.kv_shards()
            * f64::from(self.memory.block_size.get().max(1));
        let blocks = (room / block).floor();
        // Block 0 is never handed out.
        if blocks < 2.0 {
            return Err(self.does_not_fit(taken));
        }
        Ok(Blocks::new(if blocks >= f64::from(u32::MAX) { u32::MAX } else { blocks as u32 }))
    }

    fn does_not_fit(&self, taken: f64) -> Problem {
        let usable = self.gpu.hbm.get() as f64 * self.memory.gpu_memory_utilization;
        let mut larger: u32 = self.tensor_parallel_size;
        while larger <= 64 && self.model.heads.is_multiple_of(larger * 2) {
            larger *= 2;
            let each = self.weight_bytes() / f64::from(larger);
            if each + self.reserved_bytes_per_gpu() < usable {
                break;
            }
        }
        let hint = if larger > self.tensor_parallel_size {
            format!(
                "use `tensor_parallel_size: {larger}`, a smaller `weight_dtype`, or a larger GPU"
            )
        } else {
            "use a smaller `weight_dtype`, or a larger GPU".to_owned()
        };
        Problem {
            field: "model",
            message: format!(
                "`{}` leaves no room for a KV cache: weights and reserve take {} of the {} that \
                 `gpu_memory_utilization` gives on `{}`",
                self.model.id,
                gigabytes(taken),
                gigabytes(usable),
                self.gpu.id
            ),
            hint,
        }
    }

    fn derived(&self, cost: &Roofline, blocks: Blocks) -> Derived {
        let bytes = |value: f64| Bytes::new(value.round() as u64);
        // Block 0 is the placeholder.
        let usable = Blocks::new(blocks.get().saturating_sub(1));
        let kv_tokens = u64::from(usable.get()) * u64::from(self.memory.block_size.get());
        let decode = |batch: u32| {
            let shape = StepShape {
                sequences: batch,
                decodes: batch,
                decode_context: u64::from(batch) * DECODE_CONTEXT,
                sampled: batch,
                ..StepShape::default()
            };
            (batch, cost.time(&shape).total)
        };
        let chunk = u64::from(self.memory.max_num_batched_tokens.get().max(1));
        let prefill = cost.time(&StepShape {
            sequences: 1,
            chunks: 1,
            chunk_tokens: chunk,
            chunk_pairs_doubled: u128::from(chunk) * u128::from(chunk),
            sampled: 1,
            ..StepShape::default()
        });
        Derived {
            title: format!(
                "{} on {} x {}, engine class {}",
                self.model.id, self.tensor_parallel_size, self.gpu.name, self.class.id
            ),
            weight_dtype: self.weight_dtype(),
            weights: bytes(self.weight_bytes()),
            weights_per_gpu: bytes(self.weight_bytes() / self.gpus()),
            kv_cache_dtype: self.kv_cache_dtype,
            kv_bytes_per_token: bytes(self.kv_bytes_per_token()),
            kv_bytes_per_token_per_gpu: bytes(self.kv_bytes_per_token() / self.kv_shards()),
            reserved_per_gpu: bytes(self.reserved_bytes_per_gpu()),
            hbm: self.gpu.hbm,
            gpu_memory_utilization: self.memory.gpu_memory_utilization,
            kv_tokens,
            blocks: usable,
            block_size: self.memory.block_size,
            decode_steps: decode_batches(self.memory.max_num_seqs, kv_tokens).map(decode).collect(),
            prefill_tokens_per_second: chunk as f64 / prefill.total.as_secs_f64().max(1e-9),
        }
    }
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.2} GB", bytes / 1e9)
}

/// `288608` as `288,608`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl fmt::Display for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: Bytes| gigabytes(bytes.get() as f64);
        writeln!(f, "{}", self.title)?;
        writeln!(
            f,
            "  weights    {} in {}, {} per GPU",
            gb(self.weights),
            self.weight_dtype.as_str(),
            gb(self.weights_per_gpu)
        )?;
        writeln!(
            f,
            "  KV cache   {} B per token in {}, {} B per GPU; {} per GPU kept free",
            grouped(self.kv_bytes_per_token.get()),
            self.kv_cache_dtype.as_str(),
            grouped(self.kv_bytes_per_token_per_gpu.get()),
            gb(self.reserved_per_gpu)
        )?;
        writeln!(
            f,
            "  capacity   {} tokens in {} blocks of {}",
            grouped(self.kv_tokens),
            grouped(u64::from(self.blocks.get())),
            self.block_size
        )?;
        write!(f, "  decode     ")?;
        for (place, (batch, step)) in self.decode_steps.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{:.2} ms at batch {batch}", step.as_secs_f64() * 1e3)?;
        }
        writeln!(f, " ({DECODE_CONTEXT} tokens of context)")?;
        write!(
            f,
            "  prefill    {} tokens/s",
            grouped(self.prefill_tokens_per_second.round() as u64)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{engine_class, gpu, model};

    fn deployment(gpu_id: &str, model_id: &str, class: &str) -> Deployment<'static> {
        let class = engine_class(class).unwrap();
        Deployment {
            gpu: gpu(gpu_id).unwrap(),
            model: model(model_id).unwrap(),
            tensor_parallel_size: 1,
            weight_dtype: WeightDtype::Auto,
            kv_cache_dtype: KvCacheDtype::Auto,
            class,
            efficiency: class.efficiency,
            memory: Memory::default(),
        }
    }

    fn qwen() -> Deployment<'static> {
        deployment("h100-sxm", "qwen3-14b", "vllm-v1-hopper-bf16")
    }

    #[track_caller]
    fn assert_within(value: f64, expected: f64, share: f64) {
        assert!((value / expected - 1.0).abs() <= share, "{value}, expected {expected}");
    }

    #[test]
    fn the_kv_capacity_of_qwen3_14b_on_an_h100_is_what_vllm_reported() {
        // vLLM 0.23, gpu_memory_utilization 0.92, budget 8,192: 288,608 tokens in 18,038 blocks of
        // 16. By hand: 85.470 GB x 0.92 = 78.632; weights 29.536; reserve 0.6 + the larger of
        // 8,192 x 64,512 x 2 B = 1.057 and 256 x 151,936 x 8 B = 0.311: 1.657; the remaining
        // 47.439 GB / 163,840 B = 289,548 tokens. With 1,024 sequences 1.245 GB of logits:
        // 288,403 tokens.
        for (sequences, by_hand) in [(256, 289_548.0), (1024, 288_403.0)] {
            let memory = Memory { max_num_seqs: sequences, ..Memory::default() };
            let plan = Deployment { memory, ..qwen() }.plan().unwrap();
            assert_within(plan.derived.kv_tokens as f64, 288_608.0, 0.004);
            assert_within(f64::from(plan.num_blocks.get()), 18_038.0, 0.004);
            assert_within(plan.derived.kv_tokens as f64, by_hand, 0.0002);
        }
    }

    #[test]
    fn uncalibrated_decode_steps_are_near_the_measured_ones() {
        // Qwen3-14B, bf16, H100, about 1,100 tokens of context: 11.23 ms at batch 1, 12.15 at 11.
        // No row of it had a part in fitting the class.
        for (class, tolerance) in [("vllm-v1-hopper-bf16", 0.07), ("generic", 0.12)] {
            let cost = deployment("h100-sxm", "qwen3-14b", class).plan().unwrap().cost;
            for (batch, measured_ms) in [(1, 11.23), (4, 11.57), (8, 11.84), (11, 12.15)] {
                let step = cost.time(&StepShape {
                    sequences: batch,
                    decodes: batch,
                    decode_context: u64::from(batch) * 1100,
                    sampled: batch,
                    ..StepShape::default()
                });
                assert_within(step.total.as_secs_f64() * 1e3, measured_ms, tolerance);
            }
        }
    }

    #[test]
    fn weights_follow_from_the_format() {
        let llama = |dtype| Deployment {
            weight_dtype: dtype,
            ..deployment("h100-sxm", "llama-3.1-8b", "generic")
        };
        // 6.9793 G in layers, 0.52534 G each in embeddings and head, the latter two in 16 bits.
        assert_within(llama(WeightDtype::Auto).weight_bytes(), 16.060e9, 0.001);
        assert_within(llama(WeightDtype::Fp8).weight_bytes(), 6.9793e9 + 2.1013e9, 0.001);
        assert_within(llama(WeightDtype::Int4).weight_bytes(), 3.699e9 + 2.1013e9, 0.001);
        // Published sizes: gpt-oss-120b 65.2 GB with MXFP4 experts, DeepSeek-V3 672.9 GB in FP8.
        let oss = deployment("h100-sxm", "gpt-oss-120b", "generic");
        assert_within(oss.weight_bytes(), 65.168e9, 0.001);
        let deepseek = deployment("h200", "deepseek-v3", "generic");
        assert_within(deepseek.weight_bytes(), 672.879e9, 0.001);
    }

    #[test]
    fn a_step_reads_all_weights_but_the_embeddings() {
        // Llama-3.1-8B: (6.9793 + 0.52534) G x 2 B; Llama-3.2-1B shares head and embeddings:
        // 1.2357 G x 2 B.
        let read =
            |id| deployment("h100-sxm", id, "generic").plan().unwrap().cost.dense_weight_bytes;
        assert_within(read("llama-3.1-8b"), 15.0093e9, 0.0001);
        assert_within(read("llama-3.2-1b"), 2.4715e9, 0.0001);
    }

    #[test]
    fn the_kv_cache_is_split_by_heads_and_a_latent_is_not_split() {
        let with = |model, gpus, dtype| {
            let deployment = Deployment {
                tensor_parallel_size: gpus,
                kv_cache_dtype: dtype,
                ..deployment("b200", model, "generic")
            };
            deployment.plan().unwrap().derived.kv_bytes_per_token_per_gpu.get()
        };
        // 8 KV heads: 131,072 B on one GPU, a quarter on four, half of it in FP8; with 16 GPUs two
        // of them hold each head.
        assert_eq!(with("llama-3.1-8b", 1, KvCacheDtype::Auto), 131_072);
        assert_eq!(with("llama-3.1-8b", 4, KvCacheDtype::Auto), 32_768);
        assert_eq!(with("llama-3.1-8b", 4, KvCacheDtype::Fp8), 16_384);
        assert_eq!(with("llama-3.1-8b", 16, KvCacheDtype::Auto), 16_384);
        assert_eq!(with("deepseek-v3", 8, KvCacheDtype::Auto), 70_272);
    }

    #[test]
    fn the_peak_follows_the_format_and_the_gpu() {
        let peak = |gpu_id, dtype| {
            let deployment =
                Deployment { weight_dtype: dtype, ..deployment(gpu_id, "llama-3.1-8b", "generic") };
            deployment.linear_peak() / 1e12
        };
        assert_eq!(peak("h100-sxm", WeightDtype::Bf16), 989.0);
        assert_eq!(peak("h100-sxm", WeightDtype::Fp8), 1979.0);
        assert_eq!(peak("a100-80gb-sxm", WeightDtype::Fp8), 312.0);
        assert_eq!(peak("h100-sxm", WeightDtype::Int4), 989.0);
        assert_eq!(peak("b200", WeightDtype::Nvfp4), 9000.0);
        assert_eq!(peak("h100-sxm", WeightDtype::Nvfp4), 989.0);
    }

    #[test]
    fn a_model_that_does_not_fit_is_told_what_would() {
        let problems = deployment("h100-sxm", "llama-3.1-70b", "generic").plan().unwrap_err();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].field, "model");
        assert!(problems[0].message.contains("no room for a KV cache"), "{problems:?}");
        // 141.1 GB over two GPUs are 70.6 GB each, of 78.6 usable.
        assert!(problems[0].hint.contains("tensor_parallel_size: 2"), "{problems:?}");
        let two = Deployment {
            tensor_parallel_size: 2,
            ..deployment("h100-sxm", "llama-3.1-70b", "generic")
        };
        assert!(two.plan().is_ok());
    }

    #[test]
    fn tensor_parallelism_must_divide_the_heads() {
        for gpus in [0, 3] {
            let uneven = Deployment { tensor_parallel_size: gpus, ..qwen() };
            let problems = uneven.plan().unwrap_err();
            assert_eq!(problems[0].field, "tensor_parallel_size");
            assert_eq!(problems[0].hint, "use one of 1, 2, 4, 8");
        }
    }

    #[test]
    fn a_number_of_blocks_can_be_given() {
        let memory =
            Memory { num_gpu_blocks_override: Some(Blocks::new(1000)), ..Memory::default() };
        let plan = Deployment { memory, ..qwen() }.plan().unwrap();
        // One of them is a placeholder: 999 x 16 tokens.
        assert_eq!((plan.num_blocks.get(), plan.derived.blocks.get()), (1000, 999));
        assert_eq!(plan.derived.kv_tokens, 15_984);
    }

    #[test]
    fn decode_steps_are_told_of_batches_that_can_be() {
        // 1,000 usable blocks of 16 tokens hold 15 contexts of 1,024; 18,037 hold 281.
        for (most, blocks, told) in [
            (1, 18_038, &[1][..]),
            (8, 18_038, &[1, 8]),
            (16, 18_038, &[1, 16]),
            (64, 18_038, &[1, 16, 64]),
            (256, 18_038, &[1, 16, 256]),
            (1024, 18_038, &[1, 16, 256, 281]),
            (1024, 65_537, &[1, 16, 256, 1024]),
            (1024, 1_001, &[1, 15]),
            (1024, 3, &[1]),
        ] {
            let memory = Memory {
                max_num_seqs: most,
                num_gpu_blocks_override: Some(Blocks::new(blocks)),
                ..Memory::default()
            };
            let derived = Deployment { memory, ..qwen() }.plan().unwrap().derived;
            assert!(derived.decode_steps.iter().map(|step| &step.0).eq(told), "{derived}");
        }
    }

    #[test]
    fn what_followed_prints_for_people() {
        let memory =
            Memory { num_gpu_blocks_override: Some(Blocks::new(18_038)), ..Memory::default() };
        let text = Deployment { memory, ..qwen() }.plan().unwrap().derived.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            &lines[..4],
            [
                "qwen3-14b on 1 x H100 SXM5 80GB, engine class vllm-v1-hopper-bf16",
                "  weights    29.54 GB in bf16, 29.54 GB per GPU",
                "  KV cache   163,840 B per token in 16 bits, 163,840 B per GPU; 1.66 GB per GPU \
                 kept free",
                "  capacity   288,592 tokens in 18,037 blocks of 16",
            ]
        );
        assert!(lines[4].contains("ms at batch 256 (1024 tokens of context)"), "{text}");
        assert!(lines[5].ends_with(" tokens/s"), "{text}");
    }
}
