//! How long a step takes: the one place in `sim` with floating point, rounded once on exit.
//!
//! It is a formula, not a scheduler: it never sees single requests, only the sums in [`StepShape`],
//! and it keeps nothing between two steps. The invariant: the same shape always costs the same
//! time, and no term is ever negative, so a step that does more is never shorter.
//!
//! The physical quantities of a [`Roofline`] come from the catalogue (the `catalog` module) or
//! straight from `models.yml`; `docs/cost-model.md` says where each number is from and what the
//! result is good for.

use crate::units::SimSpan;

/// What a step computes, in the quantities that its duration depends on. The scheduler keeps the
/// sums up to date as it plans; the cost model never sees single requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Sequences in the step.
    pub sequences: u32,
    /// Sequences that get exactly one token and have all earlier ones computed: decodes.
    pub decodes: u32,
    /// Sum over the decodes of the context that each reads (tokens, its own included).
    pub decode_context: u64,
    /// Prefill chunks in the step.
    pub chunks: u32,
    /// Sum of the chunks' tokens.
    pub chunk_tokens: u64,
    /// Sum over the chunks of the tokens already computed (cached or earlier chunks).
    pub chunk_cached: u64,
    /// Sum over the chunks of `t * (c + t / 2)`: (new token, context token) pairs, for quadratic
    /// attention. Kept doubled, `t * (2 c + t)`, to stay integral.
    pub chunk_pairs_doubled: u128,
    /// Sequences that yield a token at the end of the step.
    pub sampled: u32,
}

impl StepShape {
    /// Tokens that pass through the model's weights in this step.
    pub const fn tokens(&self) -> u64 {
        self.decodes as u64 + self.chunk_tokens
    }
}

/// What took the largest part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// FLOPs: the GPU's arithmetic.
    Compute,
    /// Bytes: the GPU's memory bandwidth.
    Memory,
    /// The all-reduce between tensor-parallel GPUs.
    Communication,
    /// Work of the host: scheduling, launching, sampling.
    Host,
    /// Nothing was computed: every step takes a time that was simply given.
    Fixed,
}

impl Bound {
    /// The word for logs, traces and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Communication => "communication",
            Self::Host => "host",
            Self::Fixed => "fixed",
        }
    }
}

/// How long a step takes, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// From the start of the step to its results.
    pub total: SimSpan,
    /// What took the largest part of it.
    pub bound: Bound,
    /// The parts, each rounded for itself. Weights and arithmetic overlap, so that the parts can
    /// add up to more than the total.
    pub terms: StepTerms,
}

/// The parts of a step's duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTerms {
    /// Reading the weights, were nothing else to do.
    pub weights: SimSpan,
    /// The linear layers' and the LM head's arithmetic, were nothing else to do.
    pub linear: SimSpan,
    /// Reading the KV cache.
    pub kv_read: SimSpan,
    /// The attention's own arithmetic: quadratic in the prompt; in decode only where it takes
    /// longer than reading the cache does (multi-head latent attention).
    pub attention: SimSpan,
    /// All-reduces between tensor-parallel GPUs.
    pub all_reduce: SimSpan,
    /// The host's share.
    pub host: SimSpan,
}

/// The cost model of a simulated GPU.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one per engine, read by every step")]
pub enum StepCost {
    /// Every step takes the same time: tests, and recorded traces.
    Fixed(SimSpan),
    /// As long as the hardware needs for what the step does.
    Roofline(Roofline),
}

impl StepCost {
    /// The duration of a step. Pure; about 30 ns with a [`Overlap::Totals`] or `p = 1` model, about
    /// 100 ns otherwise.
    pub fn time(&self, shape: &StepShape) -> StepTime {
        match self {
            Self::Fixed(total) => {
                StepTime { total: *total, bound: Bound::Fixed, terms: StepTerms::default() }
            }
            Self::Roofline(roofline) => roofline.time(shape),
        }
    }
}

/// What a model and its GPUs need per step, and how well the engine uses them. All sizes and rates
/// are of the whole model and of *one* GPU; `tensor_parallel` divides.
///
/// Every number must be finite and not negative, and every rate positive ([`Roofline::check`]).
/// The defaults of [`Roofline::ideal`] switch every refinement off: what is left is the textbook
/// roofline.
#[derive(Clone, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes of the weights that every step reads: attention, dense and shared MLPs, router, LM
    /// head. Not the input embeddings, of which a step reads only a few rows.
    pub dense_weight_bytes: f64,
    /// Bytes of all routed experts; 0 for a dense model.
    pub expert_weight_bytes: f64,
    /// The share of the routed experts that one token activates (k / E); read only if there are
    /// experts. A step of T tokens touches `1 - (1 - share)^T` of them (uniform routing).
    pub expert_share: f64,
    /// FLOP per token in the linear layers: twice the active parameters, LM head not included.
    pub linear_flop_per_token: f64,
    /// FLOP per *sampled* token in the LM head: 2 x vocabulary x hidden size.
    pub head_flop_per_sample: f64,
    /// KV-cache bytes per token of context, all layers, before sharding.
    pub kv_bytes_per_token: f64,
    /// Into how many shards tensor parallelism splits the KV cache: min(TP, KV heads); 1 for MLA,
    /// whose latent every GPU holds whole.
    pub kv_shards: f64,
    /// FLOP per (new token, context token) pair in the attention of a prefill.
    pub prefill_flop_per_pair: f64,
    /// FLOP per (new token, context token) pair in the attention of a decode.
    pub decode_flop_per_pair: f64,
    /// Layers with a sliding window, as a share of all layers (0 to 1).
    pub window_share: f64,
    /// How many tokens back such a layer looks.
    pub window_tokens: f64,
    /// Layers; two all-reduces and one host term each.
    pub layers: f64,
    /// GPUs that share every layer.
    pub tensor_parallel: f64,
    /// Bytes per token that one all-reduce carries: hidden size x 2.
    pub all_reduce_bytes_per_token: f64,

    /// Memory bandwidth of one GPU, bytes/s.
    pub bandwidth: f64,
    /// Peak rate of one GPU for the linear layers' number format, FLOP/s, without sparsity.
    pub linear_peak: f64,
    /// Peak rate of one GPU for the attention's number format, FLOP/s.
    pub attention_peak: f64,
    /// One-way bandwidth of one GPU to the others, bytes/s; unused with one GPU.
    pub link: f64,

    /// How well the engine uses all this.
    pub efficiency: Efficiency,
}

/// The constants of an engine class: how near to the peaks it comes and what the host adds. Within
/// a class they were fitted together, so they are only good as a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Share of the bandwidth reached when reading weights (`mbu`).
    pub weight_bandwidth: f64,
    /// Share of the peak reached in linear layers (`mfu`).
    pub linear_compute: f64,
    /// Share of the bandwidth reached when reading the KV cache (`mbu_kv`).
    pub kv_bandwidth: f64,
    /// Share of the peak reached in attention (`mfu_attn`).
    pub attention_compute: f64,
    /// Share of the link's bandwidth that an all-reduce reaches.
    pub link_bandwidth: f64,
    /// Latency of one all-reduce between two GPUs, seconds. More GPUs wait longer for the last of
    /// them: it grows with the square root of their number, which measured runs of 2, 4 and 8 GPUs
    /// follow better than a constant or a straight line.
    pub all_reduce_latency: f64,
    /// Host time per step, seconds.
    pub host_per_step: f64,
    /// Host (launch) time per layer and step, seconds.
    pub host_per_layer: f64,
    /// Host time per sequence in the step, seconds.
    pub host_per_sequence: f64,
    /// Time to launch a layer's kernels one by one, seconds: a step with a prefill in it is no
    /// captured graph, so that it takes at least so long per layer, however little the GPU has to
    /// do.
    pub launch_per_layer: f64,
    /// How memory and arithmetic overlap.
    pub overlap: Overlap,
}

/// How the time for memory and the time for arithmetic make one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Overlap {
    /// The longer of *all* bytes (weights and KV cache) and *all* FLOPs (linear and attention): the
    /// textbook roofline.
    Totals,
    /// Linear layers take `(memory^p + compute^p)^(1/p)`, and attention adds to that: p = 1 is no
    /// overlap at all, [`f64::INFINITY`] is the longer of the two, 2 to 4 is what GPUs do.
    Norm(f64),
}

impl Efficiency {
    /// An ideal machine: peaks reached, no latency, no host.
    pub const IDEAL: Self = Self {
        weight_bandwidth: 1.0,
        linear_compute: 1.0,
        kv_bandwidth: 1.0,
        attention_compute: 1.0,
        link_bandwidth: 1.0,
        all_reduce_latency: 0.0,
        host_per_step: 0.0,
        host_per_layer: 0.0,
        host_per_sequence: 0.0,
        launch_per_layer: 0.0,
        overlap: Overlap::Totals,
    };
}

/// The five numbers of the textbook roofline, for a model of which no more is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdealRoofline {
    /// Bytes of all weights, each read once per step.
    pub weight_bytes: f64,
    /// Parameters that one token passes through; a token costs twice as many FLOP.
    pub active_parameters: f64,
    /// KV-cache bytes per token of context.
    pub kv_bytes_per_token: f64,
    /// Memory bandwidth, bytes/s.
    pub bandwidth: f64,
    /// Peak rate, FLOP/s.
    pub peak: f64,
    /// Share of the peak that is reached, over 0 and at most 1.
    pub compute_efficiency: f64,
    /// Share of the bandwidth that is reached, over 0 and at most 1.
    pub memory_efficiency: f64,
    /// Time that every step takes on top.
    pub overhead: SimSpan,
}

impl Roofline {
    /// `max(FLOPs / peak, bytes / bandwidth) + overhead`, where FLOPs are 2 x parameters x tokens,
    /// and bytes are the weights and the KV cache of the contexts that are read.
    pub fn ideal(given: &IdealRoofline) -> Self {
        Self {
            dense_weight_bytes: given.weight_bytes,
            expert_weight_bytes: 0.0,
            expert_share: 1.0,
            linear_flop_per_token: 2.0 * given.active_parameters,
            head_flop_per_sample: 0.0,
            kv_bytes_per_token: given.kv_bytes_per_token,
            kv_shards: 1.0,
            prefill_flop_per_pair: 0.0,
            decode_flop_per_pair: 0.0,
            window_share: 0.0,
            window_tokens: 0.0,
            layers: 0.0,
            tensor_parallel: 1.0,
            all_reduce_bytes_per_token: 0.0,
            bandwidth: given.bandwidth,
            linear_peak: given.peak,
            attention_peak: given.peak,
            link: 1.0,
            efficiency: Efficiency {
                weight_bandwidth: given.memory_efficiency,
                kv_bandwidth: given.memory_efficiency,
                linear_compute: given.compute_efficiency,
                attention_compute: given.compute_efficiency,
                host_per_step: given.overhead.as_secs_f64(),
                ..Efficiency::IDEAL
            },
        }
    }

    /// The first quantity that cannot be, by its name: rates, efficiencies and counts must be
    /// positive, the rest not negative, all finite (only the overlap's p may be infinite).
    pub fn check(&self) -> Result<(), &'static str> {
        let e = &self.efficiency;
        let positive = [
            ("kv_shards", self.kv_shards),
            ("tensor_parallel", self.tensor_parallel),
            ("bandwidth", self.bandwidth),
            ("linear_peak", self.linear_peak),
            ("attention_peak", self.attention_peak),
            ("link", self.link),
            ("weight_bandwidth", e.weight_bandwidth),
            ("linear_compute", e.linear_compute),
            ("kv_bandwidth", e.kv_bandwidth),
            ("attention_compute", e.attention_compute),
            ("link_bandwidth", e.link_bandwidth),
        ];
        let not_negative = [
            ("dense_weight_bytes", self.dense_weight_bytes),
            ("expert_weight_bytes", self.expert_weight_bytes),
            ("expert_share", self.expert_share),
            ("linear_flop_per_token", self.linear_flop_per_token),
            ("head_flop_per_sample", self.head_flop_per_sample),
            ("kv_bytes_per_token", self.kv_bytes_per_token),
            ("prefill_flop_per_pair", self.prefill_flop_per_pair),
            ("decode_flop_per_pair", self.decode_flop_per_pair),
            ("window_share", self.window_share),
            ("window_tokens", self.window_tokens),
            ("layers", self.layers),
            ("all_reduce_bytes_per_token", self.all_reduce_bytes_per_token),
            ("all_reduce_latency", e.all_reduce_latency),
            ("host_per_step", e.host_per_step),
            ("host_per_layer", e.host_per_layer),
            ("host_per_sequence", e.host_per_sequence),
            ("launch_per_layer", e.launch_per_layer),
        ];
        for (name, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(name);
            }
        }
        for (name, value) in not_negative {
            if !(value.is_finite() && value >= 0.0) {
                return Err(name);
            }
        }
        let at_most_one =
            [("expert_share", self.expert_share), ("window_share", self.window_share)];
        for (name, value) in at_most_one {
            if value > 1.0 {
                return Err(name);
            }
        }
        match e.overlap {
            Overlap::Norm(p) if p.is_nan() || p < 1.0 => Err("overlap"),
            Overlap::Norm(_) | Overlap::Totals => Ok(()),
        }
    }

    /// The duration of a step.
    pub fn time(&self, shape: &StepShape) -> StepTime {
        let e = &self.efficiency;
        let gpus = self.tensor_parallel;
        let tokens = shape.tokens() as f64;

        let weight_bytes =
            self.dense_weight_bytes + self.expert_weight_bytes * self.touched_experts(tokens);
        let weights = weight_bytes / (gpus * self.bandwidth * e.weight_bandwidth);
        let linear_flop = self.linear_flop_per_token * tokens
            + self.head_flop_per_sample * f64::from(shape.sampled);
        let linear = linear_flop / (gpus * self.linear_peak * e.linear_compute);

        let seen = self.seen(shape);
        let kv_second_per_token =
            self.kv_bytes_per_token / (self.kv_shards * self.bandwidth * e.kv_bandwidth);
        let decode_kv = seen.decode_context * kv_second_per_token;
        let kv_read = decode_kv + seen.chunk_cached * kv_second_per_token;
        let attention_rate = gpus * self.attention_peak * e.attention_compute;
        let decode_attention = seen.decode_context * self.decode_flop_per_pair / attention_rate;
        let prefill_attention = seen.chunk_pairs * self.prefill_flop_per_pair / attention_rate;

        let all_reduce = if gpus > 1.0 {
            let bytes = 2.0 * (gpus - 1.0) / gpus * tokens * self.all_reduce_bytes_per_token;
            let latency = e.all_reduce_latency * (gpus / 2.0).sqrt();
            2.0 * self.layers * (latency + bytes / (self.link * e.link_bandwidth))
        } else {
            0.0
        };

        // A decode's attention streams the cache while it computes; what arithmetic takes beyond
        // that is all that shows.
        let (on_gpu, attention) = match e.overlap {
            Overlap::Totals => {
                let attention = decode_attention + prefill_attention;
                ((weights + kv_read).max(linear + attention), attention)
            }
            Overlap::Norm(p) => {
                let beyond_read = (decode_attention - decode_kv).max(0.0);
                let attention = beyond_read + prefill_attention;
                (norm(weights, linear, p) + kv_read + attention, attention)
            }
        };

        let busy = on_gpu + all_reduce;
        let launched = if shape.chunks > 0 { self.launched(busy) } else { busy };
        let host = e.host_per_step
            + e.host_per_layer * self.layers
            + e.host_per_sequence * f64::from(shape.sequences)
            + (launched - busy);

        let parts = [
            (Bound::Memory, weights + kv_read),
            (Bound::Compute, linear + attention),
            (Bound::Communication, all_reduce),
            (Bound::Host, host),
        ];
        let mut bound = parts[0];
        for part in &parts[1..] {
            if part.1 > bound.1 {
                bound = *part;
            }
        }
        StepTime {
            total: span(busy + host),
            bound: bound.0,
            terms: StepTerms {
                weights: span(weights),
                linear: span(linear),
                kv_read: span(kv_read),
                attention: span(attention),
                all_reduce: span(all_reduce),
                host: span(host),
            },
        }
    }

    /// How long the GPU takes for `busy` seconds of work whose kernels the host launches one by one
    /// while it runs: the longer of the two, and somewhat more where they are nearly equal (p = 4).
    fn launched(&self, busy: f64) -> f64 {
        let launching = self.efficiency.launch_per_layer * self.layers;
        if launching == 0.0 {
            return busy;
        }
        let (longer, shorter) = (busy.max(launching), busy.min(launching));
        let ratio = (shorter / longer).powi(4);
        longer * (1.0 + ratio).sqrt().sqrt()
    }

    /// The share of the routed experts that at least one of `tokens` picks.
    fn touched_experts(&self, tokens: f64) -> f64 {
        if self.expert_weight_bytes == 0.0 {
            return 0.0;
        }
        1.0 - (1.0 - self.expert_share).powf(tokens)
    }

    /// The contexts as attention sees them: layers with a sliding window see only its length.
    /// [`StepShape`] carries sums, so each sequence is taken to be the mean one, which is exact
    /// while all of them are on the same side of the window.
    fn seen(&self, shape: &StepShape) -> Seen {
        let full = Seen {
            decode_context: shape.decode_context as f64,
            chunk_cached: shape.chunk_cached as f64,
            chunk_pairs: shape.chunk_pairs_doubled as f64 / 2.0,
        };
        if self.window_share == 0.0 {
            return full;
        }
        let (share, window) = (self.window_share, self.window_tokens);
        let (decodes, chunks) = (f64::from(shape.decodes), f64::from(shape.chunks));
        let windowed = Seen {
            decode_context: full.decode_context.min(decodes * window),
            chunk_cached: full.chunk_cached.min(chunks * window),
            chunk_pairs: if shape.chunks == 0 {
                0.0
            } else {
                let tokens = shape.chunk_tokens as f64 / chunks;
                let cached = full.chunk_cached / chunks;
                (chunks * windowed_pairs(tokens, cached, window)).min(full.chunk_pairs)
            },
        };
        Seen {
            decode_context: (1.0 - share) * full.decode_context + share * windowed.decode_context,
            chunk_cached: (1.0 - share) * full.chunk_cached + share * windowed.chunk_cached,
            chunk_pairs: (1.0 - share) * full.chunk_pairs + share * windowed.chunk_pairs,
        }
    }
}

/// Context tokens (and pairs with them), averaged over the layers.
struct Seen {
    decode_context: f64,
    chunk_cached: f64,
    chunk_pairs: f64,
}

/// (new token, context token) pairs of a chunk of `tokens` after `cached`, where no token looks
/// further back than `window`: the area under `min(cached + x, window)` for x from 0 to `tokens`.
fn windowed_pairs(tokens: f64, cached: f64, window: f64) -> f64 {
    let rising = (window - cached).clamp(0.0, tokens);
    rising * (cached + rising / 2.0) + (tokens - rising) * window
}

/// `(a^p + b^p)^(1/p)`, written so that it neither overflows nor loses the smaller term.
fn norm(a: f64, b: f64, p: f64) -> f64 {
    let (large, small) = if a >= b { (a, b) } else { (b, a) };
    if small == 0.0 || p == f64::INFINITY {
        return large;
    }
    if p == 1.0 {
        return large + small;
    }
    large * (1.0 + (small / large).powf(p)).powf(1.0 / p)
}

/// The longest step that is representable without doubt; anything longer is a configuration that
/// nobody would wait for, and saturates instead of panicking.
const LONGEST_STEP_SECONDS: f64 = 1e9;

fn span(seconds: f64) -> SimSpan {
    SimSpan::from_secs_f64(seconds.min(LONGEST_STEP_SECONDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(batch: u32, context: u64) -> StepShape {
        StepShape {
            sequences: batch,
            decodes: batch,
            decode_context: u64::from(batch) * context,
            sampled: batch,
            ..StepShape::default()
        }
    }

    fn prefill(tokens: u64, cached: u64) -> StepShape {
        StepShape {
            sequences: 1,
            chunks: 1,
            chunk_tokens: tokens,
            chunk_cached: cached,
            chunk_pairs_doubled: u128::from(tokens * (2 * cached + tokens)),
            sampled: 1,
            ..StepShape::default()
        }
    }

    /// 16 GB of weights, 8 G parameters, 100,000 B of KV per token, 1 TB/s, 100 TFLOP/s, 2 ms.
    fn textbook() -> IdealRoofline {
        IdealRoofline {
            weight_bytes: 16e9,
            active_parameters: 8e9,
            kv_bytes_per_token: 100_000.0,
            bandwidth: 1e12,
            peak: 100e12,
            compute_efficiency: 1.0,
            memory_efficiency: 1.0,
            overhead: SimSpan::from_ms(2),
        }
    }

    /// A model of one number each, so that every term is visible by itself: 1 GB/s, 1 GFLOP/s.
    fn plain() -> Roofline {
        Roofline {
            efficiency: Efficiency { overlap: Overlap::Norm(1.0), ..Efficiency::IDEAL },
            ..Roofline::ideal(&IdealRoofline {
                weight_bytes: 0.0,
                active_parameters: 0.0,
                kv_bytes_per_token: 0.0,
                bandwidth: 1e9,
                peak: 1e9,
                compute_efficiency: 1.0,
                memory_efficiency: 1.0,
                overhead: SimSpan::ZERO,
            })
        }
    }

    fn total_ns(roofline: &Roofline, shape: &StepShape) -> u64 {
        roofline.time(shape).total.as_ns()
    }

    #[track_caller]
    fn assert_ms(roofline: &Roofline, shape: &StepShape, expected_ms: f64) {
        let ms = roofline.time(shape).total.as_secs_f64() * 1e3;
        assert!((ms - expected_ms).abs() < 0.0005, "{ms} ms, expected {expected_ms} ms");
    }

    #[test]
    fn a_fixed_step_takes_its_time_whatever_it_does() {
        let cost = StepCost::Fixed(SimSpan::from_ms(20));
        let time = cost.time(&decode(1000, 1000));
        assert_eq!((time.total, time.bound), (SimSpan::from_ms(20), Bound::Fixed));
    }

    #[test]
    fn the_textbook_roofline_is_the_longer_of_bytes_and_flops_plus_overhead() {
        let roofline = Roofline::ideal(&textbook());
        // 16 GB + 4 x 1,000 x 0.1 MB = 16.4 GB at 1 TB/s = 16.4 ms; 2 x 8 G x 4 = 64 GFLOP at
        // 100 TFLOP/s = 0.64 ms.
        let time = roofline.time(&decode(4, 1000));
        assert_eq!((time.total.as_ns(), time.bound), (18_400_000, Bound::Memory));
        // 2,000 tokens: 32 TFLOP = 320 ms, against 16 ms of weights.
        let time = roofline.time(&prefill(2000, 0));
        assert_eq!((time.total.as_ns(), time.bound), (322_000_000, Bound::Compute));
    }

    #[test]
    fn one_maximum_is_taken_of_the_totals_not_one_per_kernel() {
        let roofline = Roofline::ideal(&textbook());
        // 100 tokens of prefill are 16 ms of FLOPs, the weights 16 ms of bytes, and the KV cache of
        // 10 decodes at 1,000 tokens another 1 ms: 17 ms of bytes against 17.6 ms of FLOPs.
        let mut shape = decode(10, 1000);
        (shape.sequences, shape.chunks, shape.chunk_tokens) = (11, 1, 100);
        assert_eq!(total_ns(&roofline, &shape), 19_600_000);
        // With 2,000 tokens of context each: 18 ms of bytes.
        shape.decode_context = 20_000;
        assert_eq!(total_ns(&roofline, &shape), 20_000_000);
    }

    #[test]
    fn efficiencies_stretch_compute_and_memory() {
        let roofline = Roofline::ideal(&IdealRoofline {
            compute_efficiency: 0.5,
            memory_efficiency: 0.8,
            ..textbook()
        });
        assert_eq!(total_ns(&roofline, &decode(4, 1000)), 16_400_000 * 5 / 4 + 2_000_000);
        assert_eq!(total_ns(&roofline, &prefill(2000, 0)), 642_000_000);
    }

    /// Qwen3-14B in bf16 on one H100 SXM, with the constants of vLLM V1 on Hopper. From the
    /// published shape: 40 layers of 2 x 5120 x 40 x 128 (q, o) + 2 x 5120 x 8 x 128 (k, v)
    /// + 3 x 5120 x 17408 (MLP) = 330,301,440 parameters, so 13,212,057,600; head
    ///   151,936 x 5120 = 777,912,320; KV 2 x 40 x 8 x 128 x 2 B = 163,840 B per token; attention
    ///   4 x 40 x 40 x 128 = 819,200 FLOP per pair.
    fn qwen3_14b_on_h100() -> Roofline {
        Roofline {
            dense_weight_bytes: 2.0 * (13_212_057_600.0 + 777_912_320.0),
            linear_flop_per_token: 2.0 * 13_212_057_600.0,
            head_flop_per_sample: 2.0 * 777_912_320.0,
            kv_bytes_per_token: 163_840.0,
            prefill_flop_per_pair: 819_200.0,
            decode_flop_per_pair: 819_200.0,
            layers: 40.0,
            bandwidth: 3.35e12,
            linear_peak: 989e12,
            attention_peak: 989e12,
            efficiency: Efficiency {
                weight_bandwidth: 0.90,
                linear_compute: 0.66,
                kv_bandwidth: 0.73,
                attention_compute: 0.46,
                link_bandwidth: 0.41,
                all_reduce_latency: 25e-6,
                host_per_step: 0.9e-3,
                host_per_layer: 12e-6,
                host_per_sequence: 4.7e-6,
                launch_per_layer: 0.0,
                overlap: Overlap::Norm(1.9),
            },
            ..plain()
        }
    }

    #[test]
    fn a_decode_step_of_qwen3_14b_on_an_h100_is_worked_out_by_hand() {
        // Weights 27,979,939,840 B / (3.35e12 x 0.90) = 9.280245 ms.
        // FLOPs 2 x (13.212057600 + 0.777912320) G = 27.97993984 G / (989e12 x 0.66) = 0.042866 ms;
        // (0.042866 / 9.280245)^1.9 = e^(1.9 x ln 0.0046190) = e^-10.2183 = 3.65e-5, so the norm
        // adds a factor 1 + 3.65e-5 / 1.9 = 1.0000192: 9.280423 ms.
        // KV 1,100 x 163,840 B / (3.35e12 x 0.73) = 0.073696 ms.
        // Host 0.9 + 40 x 0.012 + 0.0047 = 1.3847 ms. Sum 10.738819 ms (measured: 11.23 ms).
        assert_ms(&qwen3_14b_on_h100(), &decode(1, 1100), 10.7388);
    }

    #[test]
    fn each_further_decode_costs_its_kv_and_a_little_host_time() {
        // Measured from batch 1 to 11 at about 1,100 tokens of context: 0.097 ms per sequence.
        // Here 0.0737 ms of KV + 0.0047 ms of host + what little the FLOPs add.
        let roofline = qwen3_14b_on_h100();
        let slope_ns =
            (total_ns(&roofline, &decode(11, 1100)) - total_ns(&roofline, &decode(1, 1100))) / 10;
        assert!((78_000..97_000).contains(&slope_ns), "{slope_ns} ns");
    }

    #[test]
    fn a_step_with_a_prefill_of_1032_tokens_is_worked_out_by_hand() {
        // Weights 9.280245 ms. FLOPs 1,032 x 26.4241152 G + 1.55582464 G = 27.27124271 T
        // / (989e12 x 0.66) = 41.779913 ms. Norm with p = 1.9: ratio 0.222122,
        // 0.222122^1.9 = e^(1.9 x -1.504528) = e^-2.858603 = 0.057349;
        // 1.057349^(1/1.9) = e^(0.055765 / 1.9) = e^0.029350 = 1.029785: 43.024326 ms.
        // Attention 819,200 x 1,032^2 / 2 = 436.232 G / (989e12 x 0.46) = 0.958888 ms.
        // Host 1.3847 ms. Sum 45.3679 ms (measured: 39.9 ms).
        let time = qwen3_14b_on_h100().time(&prefill(1032, 0));
        let ms = time.total.as_secs_f64() * 1e3;
        assert!((ms - 45.368).abs() < 0.005, "{ms}");
        assert_eq!(time.bound, Bound::Compute);
    }

    #[test]
    fn a_mixture_of_experts_reads_the_experts_that_its_tokens_touch() {
        // 8 experts of 1 GB, 2 per token: one token reads 2 GB, two tokens 1 - 0.75^2 = 7/16 of
        // 8 GB = 3.5 GB, three 1 - 27/64 = 37/64 of 8 GB = 4.625 GB; at 1 GB/s.
        let roofline = Roofline { expert_weight_bytes: 8e9, expert_share: 0.25, ..plain() };
        assert_eq!(total_ns(&roofline, &decode(1, 1)), 2_000_000_000);
        assert_eq!(total_ns(&roofline, &decode(2, 1)), 3_500_000_000);
        assert_eq!(total_ns(&roofline, &prefill(3, 0)), 4_625_000_000);
        assert_eq!(total_ns(&roofline, &prefill(5000, 0)), 8_000_000_000);
        let dense_router = Roofline { expert_share: 1.0, ..roofline };
        assert_eq!(total_ns(&dense_router, &decode(1, 1)), 8_000_000_000);
    }

    #[test]
    fn the_head_is_computed_for_sampled_tokens_only() {
        let roofline =
            Roofline { linear_flop_per_token: 1e6, head_flop_per_sample: 1e9, ..plain() };
        // 3 tokens of 1 ms; one sampled: 1 s.
        assert_eq!(total_ns(&roofline, &prefill(3, 0)), 1_003_000_000);
        let partial = StepShape { sampled: 0, ..prefill(3, 0) };
        assert_eq!(total_ns(&roofline, &partial), 3_000_000);
    }

    #[test]
    fn prefill_attention_grows_with_the_square_and_with_what_was_cached() {
        let roofline = Roofline { prefill_flop_per_pair: 1e3, ..plain() };
        // 100 x 100 / 2 = 5,000 pairs of 1 us; after 50 cached tokens 100 x (50 + 50) = 10,000.
        assert_eq!(total_ns(&roofline, &prefill(100, 0)), 5_000_000);
        assert_eq!(total_ns(&roofline, &prefill(200, 0)), 20_000_000);
        assert_eq!(total_ns(&roofline, &prefill(100, 50)), 10_000_000);
    }

    #[test]
    fn latent_attention_decodes_at_the_speed_of_arithmetic_where_that_is_slower_than_memory() {
        // 1 KB and 3 kFLOP per context token: 1 us to read, 3 us to compute, overlapped.
        let roofline = Roofline { kv_bytes_per_token: 1e3, decode_flop_per_pair: 3e3, ..plain() };
        let time = roofline.time(&decode(1, 1000));
        assert_eq!(time.total.as_ns(), 3_000_000);
        assert_eq!(time.terms.kv_read.as_ns(), 1_000_000);
        assert_eq!(time.terms.attention.as_ns(), 2_000_000);
        // Two GPUs share the heads (1.5 us of arithmetic each), but each reads the whole latent.
        let shared = Roofline { tensor_parallel: 2.0, kv_shards: 1.0, ..roofline.clone() };
        assert_eq!(total_ns(&shared, &decode(1, 1000)), 1_500_000);
        let four = Roofline { tensor_parallel: 4.0, ..roofline };
        assert_eq!(total_ns(&four, &decode(1, 1000)), 1_000_000);
    }

    #[test]
    fn layers_with_a_sliding_window_read_no_further_than_it() {
        // Half of the layers look back 100 tokens; 1 us per token of context.
        let roofline = Roofline {
            kv_bytes_per_token: 1e3,
            prefill_flop_per_pair: 1e3,
            window_share: 0.5,
            window_tokens: 100.0,
            ..plain()
        };
        // Within the window nothing changes; at 1,000 tokens (1000 + 100) / 2.
        assert_eq!(total_ns(&roofline, &decode(3, 80)), 240_000);
        assert_eq!(total_ns(&roofline, &decode(3, 1000)), 3 * 550_000);
        // A prompt of 300: full layers 300^2 / 2 = 45,000 pairs; windowed ones 100^2 / 2 while the
        // window fills, then 200 x 100: 25,000. Mean 35,000.
        assert_eq!(total_ns(&roofline, &prefill(300, 0)), 35_000_000);
        // 10 tokens after 1,000: full 10 x 1,005, windowed 10 x 100: mean 5,525 us; and the cached
        // ones are read: (1,000 + 100) / 2 = 550 us.
        assert_eq!(total_ns(&roofline, &prefill(10, 1000)), 6_075_000);
    }

    #[test]
    fn tensor_parallel_gpus_share_the_work_and_pay_for_two_all_reduces_per_layer() {
        let alone = Roofline {
            dense_weight_bytes: 1e6,
            kv_bytes_per_token: 8e3,
            kv_shards: 1.0,
            layers: 10.0,
            all_reduce_bytes_per_token: 1e3,
            link: 1e9,
            efficiency: Efficiency { all_reduce_latency: 5e-6, ..plain().efficiency },
            ..plain()
        };
        // Alone: 1 ms of weights, 8 us of KV, no all-reduce.
        assert_eq!(total_ns(&alone, &decode(1, 1)), 1_008_000);
        // Two: 0.5 ms, 4 us, and 20 all-reduces of 5 us + 2 x 1/2 x 1 KB = 1 us.
        let two = Roofline { tensor_parallel: 2.0, kv_shards: 2.0, ..alone.clone() };
        assert_eq!(total_ns(&two, &decode(1, 1)), 500_000 + 4_000 + 120_000);
        // Eight: 0.125 ms, 1 us, and 20 of twice the latency of two (the square root of four) and
        // 2 x 7/8 x 1 KB = 1.75 us.
        let eight = Roofline { tensor_parallel: 8.0, kv_shards: 8.0, ..alone.clone() };
        let time = eight.time(&decode(1, 1));
        assert_eq!(time.terms.all_reduce.as_ns(), 235_000);
        assert_eq!(time.total.as_ns(), 125_000 + 1_000 + 235_000);
        // With 100 tokens: 20 x (10 + 175) us = 3.7 ms, more than anything else.
        let time = eight.time(&prefill(100, 0));
        assert_eq!(time.terms.all_reduce.as_ns(), 3_700_000);
        assert_eq!(time.bound, Bound::Communication);
    }

    #[test]
    fn the_host_costs_time_per_step_per_layer_and_per_sequence() {
        let roofline = Roofline {
            layers: 40.0,
            efficiency: Efficiency {
                host_per_step: 1e-3,
                host_per_layer: 10e-6,
                host_per_sequence: 5e-6,
                ..plain().efficiency
            },
            ..plain()
        };
        // 1 + 0.4 + 7 x 0.005 ms.
        let time = roofline.time(&decode(7, 1));
        assert_eq!((time.total.as_ns(), time.bound), (1_435_000, Bound::Host));
    }

    #[test]
    fn a_step_with_a_prefill_takes_as_long_as_launching_its_kernels() {
        // 10 layers of 100 us: 1 ms of launching. Each token is 1 us of arithmetic.
        let roofline = Roofline {
            layers: 10.0,
            linear_flop_per_token: 1e3,
            efficiency: Efficiency { launch_per_layer: 100e-6, ..plain().efficiency },
            ..plain()
        };
        // A decode is a captured graph: 1 us, and nothing to launch.
        assert_eq!(total_ns(&roofline, &decode(1, 1)), 1_000);
        // 10 us of work hide in 1 ms of launching.
        let small = roofline.time(&prefill(10, 0));
        assert_eq!((small.total.as_ns(), small.bound), (1_000_000, Bound::Host));
        assert_eq!(small.terms.host.as_ns(), 990_000);
        // Both 1 ms: the fourth root of 2, 1.189207. 10 ms of work hide the launching:
        // 10 x (1 + 0.1^4)^(1/4) = 10.00025 ms.
        assert_eq!(total_ns(&roofline, &prefill(1_000, 0)), 1_189_207);
        let large = roofline.time(&prefill(10_000, 0));
        assert_eq!((large.total.as_ns(), large.bound), (10_000_250, Bound::Compute));
    }

    #[test]
    fn the_overlap_goes_from_the_sum_to_the_maximum() {
        // 3 s of weights, 4 s of FLOPs: 7 by the sum, 5 by Pythagoras, 4 by the maximum.
        let with = |p| Roofline {
            dense_weight_bytes: 3e9,
            linear_flop_per_token: 4e9,
            efficiency: Efficiency { overlap: Overlap::Norm(p), ..Efficiency::IDEAL },
            ..plain()
        };
        assert_eq!(total_ns(&with(1.0), &decode(1, 1)), 7_000_000_000);
        assert_eq!(total_ns(&with(2.0), &decode(1, 1)), 5_000_000_000);
        assert_eq!(total_ns(&with(f64::INFINITY), &decode(1, 1)), 4_000_000_000);
        assert_eq!(total_ns(&with(1e6), &decode(1, 1)), 4_000_000_000);
    }

    #[test]
    fn more_work_never_takes_less_time() {
        let models = [Roofline::ideal(&textbook()), qwen3_14b_on_h100()];
        for roofline in models {
            let mut before = SimSpan::ZERO;
            for batch in [1, 2, 8, 64, 500, 4000] {
                let now = roofline.time(&decode(batch, 700)).total;
                assert!(now >= before, "batch {batch}");
                before = now;
            }
        }
    }

    #[test]
    fn impossible_quantities_are_named() {
        assert_eq!(qwen3_14b_on_h100().check(), Ok(()));
        let broken = Roofline { bandwidth: 0.0, ..plain() };
        assert_eq!(broken.check(), Err("bandwidth"));
        let broken = Roofline { dense_weight_bytes: f64::NAN, ..plain() };
        assert_eq!(broken.check(), Err("dense_weight_bytes"));
        let broken = Roofline { window_share: 1.5, ..plain() };
        assert_eq!(broken.check(), Err("window_share"));
        let half = Efficiency { overlap: Overlap::Norm(0.5), ..Efficiency::IDEAL };
        assert_eq!(Roofline { efficiency: half, ..plain() }.check(), Err("overlap"));
    }

    #[test]
    fn a_step_of_centuries_saturates() {
        let slow = Roofline { dense_weight_bytes: 1e300, ..plain() };
        assert_eq!(slow.time(&decode(1, 1)).total.as_ns(), 1_000_000_000_000_000_000);
    }
}
