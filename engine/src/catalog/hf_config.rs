//! From a Hugging Face `config.json` to a [`ModelShape`].
//!
//! Only published architecture fields are read; unknown ones are ignored, as new models add some
//! all the time. What cannot be costed (layers that keep a state instead of a KV cache) is refused
//! rather than guessed.

use std::fmt;

use serde::Deserialize;

use super::{Attention, ModelShape, WeightDtype};
use crate::units::Tokens;

/// Why no shape follows from a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub enum CannotDerive {
    /// It is not JSON, or a field has the wrong type; with the parser's words.
    NotJson(String),
    /// Brackets are nested deeper than any such file needs.
    TooDeep,
    /// A field that is needed is not there.
    Missing(&'static str),
    /// A field's value is zero or beyond what a model can have.
    OutOfRange(&'static str, f64),
    /// A layer of this type keeps no KV cache.
    UnknownLayer(String),
}

impl fmt::Display for CannotDerive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson(why) => write!(f, "not a model's config.json: {why}"),
            Self::TooDeep => write!(f, "not a model's config.json: nested too deeply"),
            Self::Missing(field) => write!(f, "`{field}` is missing"),
            Self::OutOfRange(field, value) => write!(f, "`{field}: {value}` cannot be"),
            Self::UnknownLayer(kind) => {
                write!(f, "layers of type `{kind}` keep no KV cache, and are not simulated")
            }
        }
    }
}

/// The fields of interest, by their names in `config.json`.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct HfConfig {
    text_config: Option<Box<HfConfig>>,
    model_type: Option<String>,
    num_hidden_layers: Option<f64>,
    hidden_size: Option<f64>,
    num_attention_heads: Option<f64>,
    num_key_value_heads: Option<f64>,
    head_dim: Option<f64>,
    vocab_size: Option<f64>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: Option<f64>,
    intermediate_size: Option<f64>,
    // Latent attention.
    kv_lora_rank: Option<f64>,
    q_lora_rank: Option<f64>,
    qk_rope_head_dim: Option<f64>,
    qk_nope_head_dim: Option<f64>,
    v_head_dim: Option<f64>,
    // Sliding windows.
    sliding_window: Option<f64>,
    use_sliding_window: Option<bool>,
    sliding_window_pattern: Option<f64>,
    layer_types: Option<Vec<String>>,
    // Mixtures of experts.
    num_local_experts: Option<f64>,
    n_routed_experts: Option<f64>,
    num_experts: Option<f64>,
    num_experts_per_tok: Option<f64>,
    experts_per_token: Option<f64>,
    moe_intermediate_size: Option<f64>,
    first_k_dense_replace: Option<f64>,
    mlp_only_layers: Option<Vec<f64>>,
    n_shared_experts: Option<f64>,
    shared_expert_intermediate_size: Option<f64>,
    quantization_config: Option<Quantization>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Quantization {
    quant_method: Option<String>,
    quant_algo: Option<String>,
    bits: Option<f64>,
}

/// The shape that follows from the text of a `config.json`; `id` is how the caller names it.
///
/// # Errors
/// If it is no such file, or describes a model that cannot be costed.
pub fn derive(id: &str, config_json: &str) -> Result<ModelShape, CannotDerive> {
    if nests_deeper_than(64, config_json.as_bytes()) {
        return Err(CannotDerive::TooDeep);
    }
    let outer: HfConfig = sonic_rs::from_str(config_json)
        .map_err(|error| CannotDerive::NotJson(first_line(&error.to_string())))?;
    // Multimodal wrappers: the text tower.
    let config = match outer.text_config {
        Some(text) => HfConfig {
            quantization_config: text.quantization_config.or(outer.quantization_config),
            tie_word_embeddings: text.tie_word_embeddings.or(outer.tie_word_embeddings),
            ..*text
        },
        None => outer,
    };
    config.shape(id)
}

impl HfConfig {
    fn shape(&self, id: &str) -> Result<ModelShape, CannotDerive> {
        let layers = required("num_hidden_layers", self.num_hidden_layers)?;
        let hidden = required("hidden_size", self.hidden_size)?;
        let heads = required("num_attention_heads", self.num_attention_heads)?;
        let vocabulary = required("vocab_size", self.vocab_size)?;
        let attention = self.attention(hidden, heads)?;
        let (sliding_layers, window) = self.sliding(layers)?;
        let mlp = self.mlp(layers, hidden)?;

        let dense = layers * attention.params + mlp.dense;
        let head = vocabulary * hidden;
        Ok(ModelShape {
            id: id.to_owned(),
            layers: layers as u32,
            hidden: hidden as u32,
            heads: heads as u32,
            kv_heads: attention.kv_heads as u32,
            attention: attention.kind,
            dense_params: dense as u64,
            expert_params: mlp.all_experts as u64,
            active_params: (dense + mlp.active_experts) as u64,
            head_params: head as u64,
            vocabulary: vocabulary as u32,
            tied_embeddings: self.tie_word_embeddings.unwrap_or(self.ties_by_default()),
            experts: mlp.experts as u32,
            experts_per_token: mlp.experts_per_token as u32,
            kv_elements_per_token: (attention.kv_elements * layers) as u64,
            prefill_flop_per_pair: (attention.prefill_flop * layers) as u64,
            decode_flop_per_pair: (attention.decode_flop * layers) as u64,
            sliding_layers: sliding_layers as u32,
            window: if sliding_layers > 0.0 { window as u32 } else { 0 },
            max_context: Tokens::new(
                optional("max_position_embeddings", self.max_position_embeddings)?.unwrap_or(0.0)
                    as u32,
            ),
            native_dtype: self.native_dtype(),
        })
    }

    /// Gemma's configuration classes tie the embeddings unless told otherwise, and their files do
    /// not say so.
    fn ties_by_default(&self) -> bool {
        self.model_type.as_deref().is_some_and(|kind| kind.starts_with("gemma"))
    }

    fn attention(&self, hidden: f64, heads: f64) -> Result<AttentionShape, CannotDerive> {
        if let Some(rank) = optional("kv_lora_rank", self.kv_lora_rank)? {
            let rope = required("qk_rope_head_dim", self.qk_rope_head_dim)?;
            let nope = required("qk_nope_head_dim", self.qk_nope_head_dim)?;
            let value = required("v_head_dim", self.v_head_dim)?;
            let query = match optional("q_lora_rank", self.q_lora_rank)? {
                Some(q_rank) => hidden * q_rank + q_rank * heads * (nope + rope),
                None => hidden * heads * (nope + rope),
            };
            let key_value = hidden * (rank + rope) + rank * heads * (nope + value);
            return Ok(AttentionShape {
                kind: Attention::Mla,
                kv_heads: 1.0,
                params: query + key_value + heads * value * hidden,
                kv_elements: rank + rope,
                prefill_flop: 2.0 * heads * (nope + rope + value),
                // Queries and outputs are projected into the latent, which is then all that is
                // read.
                decode_flop: 2.0 * heads * (rank + rope + rank),
            });
        }
        let kv_heads = optional("num_key_value_heads", self.num_key_value_heads)?.unwrap_or(heads);
        let width = match optional("head_dim", self.head_dim)? {
            Some(width) => width,
            None => (hidden / heads).floor(),
        };
        Ok(AttentionShape {
            kind: Attention::Gqa,
            kv_heads,
            params: 2.0 * hidden * heads * width + 2.0 * hidden * kv_heads * width,
            kv_elements: 2.0 * kv_heads * width,
            prefill_flop: 4.0 * heads * width,
            decode_flop: 4.0 * heads * width,
        })
    }

    /// (layers with a sliding window, its length).
    fn sliding(&self, layers: f64) -> Result<(f64, f64), CannotDerive> {
        if let Some(types) = &self.layer_types {
            let no_cache =
                types.iter().find(|kind| !kind.contains("attention") || kind.contains("linear"));
            if let Some(kind) = no_cache {
                return Err(CannotDerive::UnknownLayer(kind.clone()));
            }
        }
        let window = match optional("sliding_window", self.sliding_window)? {
            Some(window) if self.use_sliding_window.unwrap_or(true) => window,
            _ => return Ok((0.0, 0.0)),
        };
        if let Some(types) = &self.layer_types {
            let sliding = types.iter().filter(|kind| kind.contains("sliding")).count();
            return Ok(((sliding as f64).min(layers), window));
        }
        // One layer in so many is a full one. Gemma 2 alternates without saying so.
        let pattern = match optional("sliding_window_pattern", self.sliding_window_pattern)? {
            Some(pattern) => Some(pattern),
            None => (self.model_type.as_deref() == Some("gemma2")).then_some(2.0),
        };
        let full = pattern.map_or(0.0, |pattern| (layers / pattern).floor());
        Ok((layers - full, window))
    }

    fn mlp(&self, layers: f64, hidden: f64) -> Result<MlpShape, CannotDerive> {
        let inner = optional("intermediate_size", self.intermediate_size)?.unwrap_or(4.0 * hidden);
        let experts = optional(
            "num_experts",
            self.num_local_experts
                .or(self.n_routed_experts)
                .or(self.num_experts)
                .filter(|n| *n != 0.0),
        )?;
        let matrices = if self.mlp_is_gated() { 3.0 } else { 2.0 };
        let dense_mlp = matrices * hidden * inner;
        let Some(experts) = experts else {
            return Ok(MlpShape { dense: layers * dense_mlp, ..MlpShape::default() });
        };
        let experts_per_token =
            required("num_experts_per_tok", self.num_experts_per_tok.or(self.experts_per_token))?
                .min(experts);
        let expert_inner =
            optional("moe_intermediate_size", self.moe_intermediate_size)?.unwrap_or(inner);
        let dense_layers = self.first_k_dense_replace.unwrap_or(0.0)
            + self.mlp_only_layers.as_ref().map_or(0.0, |layers| layers.len() as f64);
        let dense_layers = dense_layers.clamp(0.0, layers);
        let expert_layers = layers - dense_layers;
        let shared = match optional(
            "shared_expert_intermediate_size",
            self.shared_expert_intermediate_size.filter(|n| *n != 0.0),
        )? {
            Some(shared_inner) => 3.0 * hidden * shared_inner,
            None => {
                self.n_shared_experts.unwrap_or(0.0).clamp(0.0, MOST) * 3.0 * hidden * expert_inner
            }
        };
        let router = hidden * experts;
        let expert = 3.0 * hidden * expert_inner;
        Ok(MlpShape {
            dense: dense_layers * dense_mlp + expert_layers * (shared + router),
            all_experts: expert_layers * experts * expert,
            active_experts: expert_layers * experts_per_token * expert,
            experts,
            experts_per_token,
        })
    }

    /// Nearly all current models multiply by a gate, so have three matrices; these have two.
    fn mlp_is_gated(&self) -> bool {
        const PLAIN: [&str; 9] = [
            "gpt2",
            "gpt_bigcode",
            "gpt_neox",
            "gptj",
            "opt",
            "falcon",
            "phi",
            "starcoder2",
            "bloom",
        ];
        !self.model_type.as_deref().is_some_and(|kind| PLAIN.contains(&kind))
    }

    fn native_dtype(&self) -> WeightDtype {
        let Some(quantization) = &self.quantization_config else {
            return WeightDtype::Bf16;
        };
        let method = quantization.quant_method.as_deref().unwrap_or("");
        let algorithm = quantization.quant_algo.as_deref().unwrap_or("");
        match method {
            "fp8" | "fbgemm_fp8" => WeightDtype::Fp8,
            "mxfp4" => WeightDtype::Mxfp4,
            "awq" | "gptq" if quantization.bits == Some(8.0) => WeightDtype::Int8,
            "awq" | "gptq" => WeightDtype::Int4,
            _ if algorithm.eq_ignore_ascii_case("nvfp4") => WeightDtype::Nvfp4,
            _ if algorithm.eq_ignore_ascii_case("fp8") => WeightDtype::Fp8,
            _ => WeightDtype::Bf16,
        }
    }
}

/// Per layer.
struct AttentionShape {
    kind: Attention,
    kv_heads: f64,
    params: f64,
    kv_elements: f64,
    prefill_flop: f64,
    decode_flop: f64,
}

/// Parameters of all layers.
#[derive(Default)]
struct MlpShape {
    dense: f64,
    all_experts: f64,
    active_experts: f64,
    experts: f64,
    experts_per_token: f64,
}

/// More than any dimension of a model, and small enough that no product here overflows a `u64`
/// unnoticed: float to integer casts saturate.
const MOST: f64 = 1e8;

fn required(field: &'static str, value: Option<f64>) -> Result<f64, CannotDerive> {
    optional(field, value)?.ok_or(CannotDerive::Missing(field))
}

fn optional(field: &'static str, value: Option<f64>) -> Result<Option<f64>, CannotDerive> {
    match value {
        Some(value) if (1.0..=MOST).contains(&value) && value.fract() == 0.0 => Ok(Some(value)),
        Some(value) => Err(CannotDerive::OutOfRange(field, value)),
        None => Ok(None),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("").to_owned()
}

/// The parser recurses, so the depth is bounded before it starts.
fn nests_deeper_than(limit: usize, json: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > limit {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::model;

    /// Architecture fields as published with each model.
    const CONFIGS: [(&str, &str); 8] = [
        (
            "llama-3.1-8b",
            r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
            "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 131072,
            "rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "torch_dtype": "bfloat16"}"#,
        ),
        (
            "llama-3.2-1b",
            r#"{"hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "vocab_size": 128256, "tie_word_embeddings": true, "max_position_embeddings": 131072}"#,
        ),
        (
            "qwen2.5-7b",
            r#"{"hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944,
            "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
            "sliding_window": 131072, "use_sliding_window": false, "max_window_layers": 28,
            "tie_word_embeddings": false, "max_position_embeddings": 32768}"#,
        ),
        (
            "qwen3-14b",
            r#"{"hidden_size": 5120, "num_hidden_layers": 40, "intermediate_size": 17408,
            "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151936, "sliding_window": null, "use_sliding_window": false,
            "tie_word_embeddings": false, "max_position_embeddings": 40960}"#,
        ),
        (
            "mixtral-8x7b",
            r#"{"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
            "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null,
            "tie_word_embeddings": false, "max_position_embeddings": 32768}"#,
        ),
        (
            "qwen3-30b-a3b",
            r#"{"hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 6144,
            "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
            "mlp_only_layers": [], "num_attention_heads": 32, "num_key_value_heads": 4,
            "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": false,
            "max_position_embeddings": 40960}"#,
        ),
        (
            "deepseek-v3",
            r#"{"hidden_size": 7168, "num_hidden_layers": 61, "intermediate_size": 18432,
            "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_attention_heads": 128,
            "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
            "vocab_size": 129280, "tie_word_embeddings": false, "max_position_embeddings": 163840,
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#,
        ),
        (
            "gemma-3-27b",
            r#"{"model_type": "gemma3", "vision_config": {"hidden_size": 1152},
            "text_config": {"model_type": "gemma3_text", "hidden_size": 5376,
            "num_hidden_layers": 62, "intermediate_size": 21504, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 262208,
            "sliding_window": 1024, "sliding_window_pattern": 6,
            "max_position_embeddings": 131072}}"#,
        ),
    ];

    #[test]
    fn published_configs_give_the_shapes_of_the_catalogue() {
        for (id, json) in CONFIGS {
            let derived = derive(id, json).unwrap();
            let listed = model(id).unwrap();
            // The catalogue's table rounds parameters to 0.1 million, those of experts to 1.
            for (name, derived, listed, rounding) in [
                ("dense", derived.dense_params, listed.dense_params, 50_000),
                ("experts", derived.expert_params, listed.expert_params, 500_000),
                ("active", derived.active_params, listed.active_params, 50_000),
            ] {
                assert!(derived.abs_diff(listed) <= rounding, "{id} {name}: {derived}, {listed}");
            }
            let exact = ModelShape {
                dense_params: listed.dense_params,
                expert_params: listed.expert_params,
                active_params: listed.active_params,
                ..derived
            };
            assert_eq!(exact, *listed);
        }
    }

    #[test]
    fn a_layer_of_llama_8b_is_counted_by_hand() {
        // Attention 2 x 4096 x 4096 + 2 x 4096 x 1024 = 41,943,040; MLP 3 x 4096 x 14336 =
        // 176,160,768; 32 layers of 218,103,808.
        let (id, json) = CONFIGS[0];
        let shape = derive(id, json).unwrap();
        assert_eq!(shape.dense_params, 32 * 218_103_808);
        assert_eq!(shape.head_params, 525_336_576);
        assert_eq!(shape.prefill_flop_per_pair, 4 * 32 * 4096);
    }

    #[test]
    fn latent_attention_is_counted_by_hand() {
        // DeepSeek-V3, per layer: 7168 x 1536 + 1536 x 128 x 192 + 7168 x 576 + 512 x 128 x 256
        // + 128 x 128 x 7168 = 187,105,280 parameters; dense layers 3 of 3 x 7168 x 18432, the
        // other 58 a shared expert of 3 x 7168 x 2048 and a router of 7168 x 256.
        let (id, json) = CONFIGS[6];
        let shape = derive(id, json).unwrap();
        let dense = 61 * 187_105_280_u64 + 3 * 396_361_728 + 58 * (44_040_192 + 1_835_008);
        assert_eq!(shape.dense_params, dense);
        assert_eq!(shape.expert_params, 58 * 256 * 44_040_192);
        assert_eq!(shape.kv_elements_per_token, 61 * 576);
        assert_eq!(shape.prefill_flop_per_pair, 61 * 2 * 128 * 320);
        assert_eq!(shape.decode_flop_per_pair, 61 * 2 * 128 * 1088);
        assert_eq!(shape.native_dtype, WeightDtype::Fp8);
    }

    #[test]
    fn alternating_windows_are_counted() {
        let json = r#"{"hidden_size": 2880, "num_hidden_layers": 4, "num_attention_heads": 64,
            "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
            "intermediate_size": 2880, "num_local_experts": 128, "experts_per_token": 4,
            "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
            "full_attention"], "quantization_config": {"quant_method": "mxfp4"}}"#;
        let shape = derive("oss", json).unwrap();
        assert_eq!((shape.sliding_layers, shape.window), (2, 128));
        assert_eq!((shape.experts, shape.experts_per_token), (128, 4));
        assert_eq!(shape.native_dtype, WeightDtype::Mxfp4);
    }

    #[test]
    fn bad_files_are_refused_with_a_reason() {
        let refused = |json: &str| derive("x", json).unwrap_err().to_string();
        assert!(refused("").starts_with("not a model's config.json"), "{}", refused(""));
        assert!(refused("[1]").starts_with("not a model's config.json"));
        assert_eq!(refused("{}"), "`num_hidden_layers` is missing");
        assert_eq!(refused(r#"{"num_hidden_layers": 0}"#), "`num_hidden_layers: 0` cannot be");
        assert_eq!(refused(r#"{"num_hidden_layers": 2.5}"#), "`num_hidden_layers: 2.5` cannot be");
        assert!(refused(&"[".repeat(100_000)).ends_with("nested too deeply"));
        let hybrid = r#"{"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2,
            "vocab_size": 10, "layer_types": ["linear_attention"]}"#;
        assert!(refused(hybrid).contains("keep no KV cache"));
        let huge = r#"{"num_hidden_layers": 1e300}"#;
        assert!(refused(huge).contains("cannot be"));
    }
}
