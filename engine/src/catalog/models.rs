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
    use crate::catalog::{Deployment, EngineClass, KvCacheDtype, Memory, gpu};
    use crate::units::Blocks;

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

    /// (id, KV bytes per token in 16 bits and bytes of all weights in the format as published, both
    /// worked out from the published shape, published number of parameters). A layer's attention
    /// has hidden x head size x (2 x heads + 2 x KV heads) parameters, its MLP 3 x hidden x width;
    /// the vocabulary's tables vocabulary x hidden each. Norms and biases are left out.
    const PUBLISHED: [(&str, u64, u64, u64); 10] = [
        // KV: 2 x 16 layers x 8 KV heads x 64 x 2 B.
        // 16 x (2,048 x 64 x 80 + 3 x 2,048 x 8,192) = 973,078,528; one table of 128,256 x 2,048 =
        // 262,668,288; x 2 B.
        ("llama-3.2-1b", 32_768, 2_471_493_632, 1_235_814_400),
        // KV: 2 x 32 x 8 x 128 x 2.
        // 32 x (4,096 x 128 x 80 + 3 x 4,096 x 14,336) = 6,979,321,856; two tables of 128,256 x
        // 4,096 = 525,336,576; x 2 B.
        ("llama-3.1-8b", 131_072, 16_059_990_016, 8_030_261_248),
        // KV: 2 x 80 x 8 x 128 x 2.
        // 80 x (8,192 x 128 x 144 + 3 x 8,192 x 28,672) = 68,451,041,280; two tables of 128,256 x
        // 8,192 = 1,050,673,152; x 2 B.
        ("llama-3.1-70b", 327_680, 141_104_775_168, 70_553_706_496),
        // KV: 2 x 28 x 4 x 128 x 2.
        // 28 x (3,584 x 128 x 64 + 3 x 3,584 x 18,944) = 6,525,288,448; two tables of 152,064 x
        // 3,584 = 544,997,376; x 2 B.
        ("qwen2.5-7b", 57_344, 15_230_566_400, 7_615_616_512),
        // KV: 2 x 40 x 8 x 128 x 2.
        // 40 x (5,120 x 128 x 96 + 3 x 5,120 x 17,408) = 13,212,057,600; two tables of 151,936 x
        // 5,120 = 777,912,320; x 2 B.
        ("qwen3-14b", 163_840, 29_535_764_480, 14_768_307_200),
        // KV: 2 x 32 x 8 x 128 x 2.
        // 32 x (4,096 x 128 x 80 + a router of 8 x 4,096) = 1,343,225,856; experts 32 x 8 x 3 x
        // 4,096 x 14,336 = 45,097,156,608; two tables of 32,000 x 4,096 = 131,072,000; x 2 B.
        ("mixtral-8x7b", 131_072, 93_405_052_928, 46_702_792_704),
        // KV: 2 x 48 x 4 x 128 x 2.
        // 48 x (2,048 x 128 x 72 + a router of 128 x 2,048) = 918,552,576; experts 48 x 128 x 3 x
        // 2,048 x 768 = 28,991,029,248; two tables of 151,936 x 2,048 = 311,164,928; x 2 B.
        ("qwen3-30b-a3b", 98_304, 61_063_823_360, 30_532_122_624),
        // KV: 2 x 36 x 8 x 64 x 2; half of the layers have a window, but keep as much.
        // 36 x (2,880 x 64 x 144 + a router of 128 x 2,880) = 968,785,920 and two tables of 201,088
        // x 2,880 = 579,133,440, x 2 B = 4,254,105,600; experts 36 x 128 x 3 x 2,880 x 2,880 =
        // 114,661,785,600 x (1/2 + 1/32) B = 60,914,073,600.
        ("gpt-oss-120b", 73_728, 65_168_179_200, 116_829_156_672),
        // KV: 61 x (512 + 64) x 2: one latent and its rotary part. Attention: 7,168 x 1,536 + 1,536
        // x 128 x 192 + 7,168 x 576 + 512 x 128 x 256 + 128 x 128 x 7,168 = 187,105,280 in each of
        // 61 layers; 3 dense MLPs of 3 x 7,168 x 18,432; in 58 layers a shared expert of 3 x 7,168
        // x 2,048 and a router of 256 x 7,168: 15,263,268,864 B; 58 x 256 experts of 3 x 7,168 x
        // 2,048: 653,908,770,816 B; two tables of 129,280 x 7,168 = 926,679,040, x 2 B.
        ("deepseek-v3", 70_272, 672_878_755_840, 671_026_419_200),
        // KV: 2 x 62 x 16 x 128 x 2.
        // The language model without the vision tower: 62 x (5,376 x 128 x 96 + 3 x 5,376 x 21,504)
        // = 25,598,361,600; one table of 262,208 x 5,376 = 1,409,630,208; x 2 B.
        ("gemma-3-27b", 507_904, 54_015_983_616, 27_009_346_304),
    ];

    #[test]
    fn ten_models_keep_and_weigh_what_their_published_shapes_say() {
        for (id, kv_bytes, weights, parameters) in PUBLISHED {
            let shape = model(id).unwrap();
            let class = EngineClass::generic();
            let memory =
                Memory { num_gpu_blocks_override: Some(Blocks::new(100)), ..Memory::default() };
            let deployment = Deployment {
                gpu: gpu("b200").unwrap(),
                model: shape,
                tensor_parallel_size: 1,
                weight_dtype: WeightDtype::Auto,
                kv_cache_dtype: KvCacheDtype::Auto,
                class,
                efficiency: class.efficiency,
                memory,
            };
            let derived = deployment.plan().unwrap().derived;
            assert_eq!(derived.kv_bytes_per_token.get(), kv_bytes, "{id}");
            // The catalogue has billions of parameters with three or four decimals.
            let off = derived.weights.get() as f64 / weights as f64 - 1.0;
            assert!(off.abs() < 1e-4, "{id}: {} against {weights}", derived.weights.get());
            // What is left out is little.
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
