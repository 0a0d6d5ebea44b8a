//! What a model weighs and computes, from its published shape.

use std::sync::LazyLock;

use super::{Row, Unknown, WeightDtype, find};
use crate::units::Tokens;

/// A model as its cost depends on it. Parameters count matrices only; norms and biases are under
/// 0.1 %.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Its name in the catalogue, or where it was read from.
    pub id: String,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Attention heads; tensor parallelism must divide them.
    pub heads: u32,
    /// Key/value heads, as the cache is split by; 1 with latent attention.
    pub kv_heads: u32,
    /// How keys and values are kept.
    pub attention: Attention,
    /// Parameters in attention, dense and shared MLPs and the router: read by every step.
    pub dense_params: u64,
    /// Parameters of all routed experts.
    pub expert_params: u64,
    /// Parameters that one token passes through, without the LM head.
    pub active_params: u64,
    /// Parameters of the LM head: vocabulary x hidden.
    pub head_params: u64,
    /// Entries of the vocabulary.
    pub vocabulary: u32,
    /// The LM head is the embedding table.
    pub tied_embeddings: bool,
    /// Routed experts per layer; 0 if dense.
    pub experts: u32,
    /// Routed experts that one token uses.
    pub experts_per_token: u32,
    /// Numbers kept in the KV cache per token, all layers.
    pub kv_elements_per_token: u64,
    /// FLOP per (new token, context token) pair in prefill attention, all layers.
    pub prefill_flop_per_pair: u64,
    /// The same in decode; differs with latent attention.
    pub decode_flop_per_pair: u64,
    /// Layers that look back only [`ModelShape::window`] tokens.
    pub sliding_layers: u32,
    /// How far they look; 0 without such layers.
    pub window: u32,
    /// The longest context that it was made for.
    pub max_context: Tokens,
    /// The format that it is published in.
    pub native_dtype: WeightDtype,
}

/// How a model keeps keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// Grouped-query attention (multi-head and multi-query included): keys and values per KV head.
    Gqa,
    /// Multi-head latent attention: one latent for all heads, held whole by every GPU.
    Mla,
}

impl ModelShape {
    /// All parameters.
    pub fn total_params(&self) -> u64 {
        let tables = if self.tied_embeddings { 1 } else { 2 };
        self.dense_params + self.expert_params + self.head_params * tables
    }
}

static MODELS: LazyLock<Vec<(&'static str, &'static str, ModelShape)>> = LazyLock::new(|| {
    Row::parse_all(include_str!("../../data/models.csv"), |row| {
        let billions = |column| (row.number(column) * 1e9).round() as u64;
        let shape = ModelShape {
            id: row.text("id").to_owned(),
            layers: row.count("layers"),
            hidden: row.count("hidden"),
            heads: row.count("heads"),
            kv_heads: row.count("kv_heads"),
            attention: if row.text("attention") == "mla" { Attention::Mla } else { Attention::Gqa },
            dense_params: billions("params_dense_b"),
            expert_params: billions("params_experts_b"),
            active_params: billions("linear_active_b"),
            head_params: row.number("vocab") as u64 * row.number("hidden") as u64,
            vocabulary: row.count("vocab"),
            tied_embeddings: row.text("tied") == "1",
            experts: row.count("experts"),
            experts_per_token: row.count("top_k"),
            kv_elements_per_token: row.number("kv_bytes_per_token_bf16") as u64 / 2,
            prefill_flop_per_pair: row.number("attn_flop_prefill") as u64,
            decode_flop_per_pair: row.number("attn_flop_decode") as u64,
            sliding_layers: row.count("sliding_layers"),
            window: row.count("window"),
            max_context: Tokens::new(row.count("max_context")),
            native_dtype: match row.text("native_weight_dtype") {
                "fp8" => WeightDtype::Fp8,
                "mxfp4 experts" => WeightDtype::Mxfp4,
                _ => WeightDtype::Bf16,
            },
        };
        (row.text("id"), row.text("hf_repo"), shape)
    })
});

/// All models of the catalogue.
pub fn models() -> impl Iterator<Item = &'static ModelShape> + Clone {
    MODELS.iter().map(|(.., model)| model)
}

/// The model that `name` means: its name here, or its repository on Hugging Face.
///
/// # Errors
/// If no entry, or more than one, fits.
pub fn model(name: &str) -> Result<&'static ModelShape, Unknown> {
    let by_repository = MODELS.iter().find(|(_, repository, _)| {
        // A remark may follow the repository's name.
        repository.split(' ').next().is_some_and(|repository| {
            repository.eq_ignore_ascii_case(name)
                || repository.split('/').next_back().is_some_and(|r| r.eq_ignore_ascii_case(name))
        })
    });
    if let Some((.., model)) = by_repository {
        return Ok(model);
    }
    // The same network as DeepSeek-V3, trained further.
    let name = if name.eq_ignore_ascii_case("deepseek-r1") { "deepseek-v3" } else { name };
    find(name, MODELS.iter().map(|(id, ..)| *id)).map(|place| &MODELS[place].2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_its_name_here_and_on_hugging_face() {
        for name in ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct"] {
            assert_eq!(model(name).unwrap().id, "llama-3.1-8b", "{name}");
        }
        assert_eq!(model("deepseek-ai/DeepSeek-V3").unwrap().id, "deepseek-v3");
        assert_eq!(model("DeepSeek-R1").unwrap().id, "deepseek-v3");
    }

    #[test]
    fn a_near_miss_gets_candidates() {
        assert!(model("llama-3.1-7b").unwrap_err().candidates.contains(&"llama-3.1-8b"));
        assert_eq!(model("qwen3-14").unwrap_err().candidates[0], "qwen3-14b");
    }

    /// (id, KV bytes per token in 16 bits worked out from the published shape, published number of
    /// parameters).
    const PUBLISHED: [(&str, u64, u64); 10] = [
        // 2 x 16 layers x 8 KV heads x 64 x 2 B
        ("llama-3.2-1b", 32_768, 1_235_814_400),
        // 2 x 32 x 8 x 128 x 2
        ("llama-3.1-8b", 131_072, 8_030_261_248),
        // 2 x 80 x 8 x 128 x 2
        ("llama-3.1-70b", 327_680, 70_553_706_496),
        // 2 x 28 x 4 x 128 x 2
        ("qwen2.5-7b", 57_344, 7_615_616_512),
        // 2 x 40 x 8 x 128 x 2
        ("qwen3-14b", 163_840, 14_768_307_200),
        // 2 x 32 x 8 x 128 x 2; 8 experts
        ("mixtral-8x7b", 131_072, 46_702_792_704),
        // 2 x 48 x 4 x 128 x 2; 128 experts
        ("qwen3-30b-a3b", 98_304, 30_532_122_624),
        // 2 x 36 x 8 x 64 x 2; 128 experts, half of the layers with a window
        ("gpt-oss-120b", 73_728, 116_829_156_672),
        // 61 x (512 + 64) x 2: one latent and its rotary part
        ("deepseek-v3", 70_272, 671_026_419_200),
        // 2 x 62 x 16 x 128 x 2; the language model without the vision tower
        ("gemma-3-27b", 507_904, 27_009_346_304),
    ];

    #[test]
    fn ten_models_keep_and_weigh_what_their_published_shapes_say() {
        for (id, kv_bytes, parameters) in PUBLISHED {
            let shape = model(id).unwrap();
            assert_eq!(shape.kv_elements_per_token * 2, kv_bytes, "{id}");
            let off = shape.total_params() as f64 / parameters as f64 - 1.0;
            assert!(off.abs() < 1e-3, "{id}: {} against {parameters}", shape.total_params());
        }
    }

    #[test]
    fn every_model_of_the_catalogue_is_consistent() {
        assert_eq!(models().count(), 32);
        for shape in models() {
            assert!(shape.active_params <= shape.dense_params + shape.expert_params + 1_000_000);
            assert!(shape.sliding_layers <= shape.layers, "{}", shape.id);
            assert!(shape.experts_per_token <= shape.experts, "{}", shape.id);
            assert_eq!(shape.experts > 0, shape.expert_params > 0, "{}", shape.id);
            assert_eq!(shape.heads % shape.kv_heads, 0, "{}", shape.id);
        }
    }
}
