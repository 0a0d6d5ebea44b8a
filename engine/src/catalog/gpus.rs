//! What a GPU can do, from its datasheet.

use std::sync::LazyLock;

use super::{Row, Unknown, find};
use crate::units::{Bytes, Tokens};

/// One GPU: from the catalogue, or from a hardware profile of the user's own.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuShape {
    /// Its name in the catalogue or in the file.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Device memory that a program finds.
    pub hbm: Bytes,
    /// Memory bandwidth, bytes/s.
    pub bandwidth: f64,
    /// Peak rate in 16-bit formats, FLOP/s, without sparsity.
    pub bf16_peak: f64,
    /// Peak rate in FP8; `None` if it computes no FP8 (weights are then widened to 16 bits).
    pub fp8_peak: Option<f64>,
    /// Peak rate in FP4; `None` if it computes no FP4.
    pub fp4_peak: Option<f64>,
    /// One-way bandwidth to the other GPUs of a tensor-parallel group, bytes/s; `None` if not
    /// known.
    pub link: Option<f64>,
}

impl GpuShape {
    /// What vLLM's server takes for (`max_num_batched_tokens`, `max_num_seqs`) where nothing is
    /// said: more on GPUs with more memory, except for the A100.
    pub fn default_limits(&self) -> (Tokens, u32) {
        let gib = self.hbm.get() >> 30;
        if gib >= 160 {
            (Tokens::new(16_384), 1024)
        } else if gib >= 70 && !self.id.starts_with("a100") {
            (Tokens::new(8192), 1024)
        } else {
            (Tokens::new(2048), 256)
        }
    }
}

static GPUS: LazyLock<Vec<(&'static str, GpuShape)>> = LazyLock::new(|| {
    Row::parse_all(include_str!("../../data/gpus.csv"), |row| {
        let tera = |column| row.maybe_number(column).map(|tflops| tflops * 1e12);
        let gpu = GpuShape {
            id: row.text("id").to_owned(),
            name: row.text("name").to_owned(),
            hbm: Bytes::new((row.number("hbm_gib") * f64::from(1 << 30)).round() as u64),
            bandwidth: row.number("bandwidth_gbps") * 1e9,
            bf16_peak: row.number("bf16_tflops_dense") * 1e12,
            fp8_peak: tera("fp8_tflops_dense"),
            fp4_peak: tera("fp4_tflops_dense"),
            link: row.maybe_number("link_gbps_per_gpu_one_way").map(|gigabytes| gigabytes * 1e9),
        };
        (row.text("id"), gpu)
    })
});

/// All GPUs of the catalogue.
pub fn gpus() -> impl Iterator<Item = &'static GpuShape> + Clone {
    GPUS.iter().map(|(_, gpu)| gpu)
}

/// The architecture of a GPU of the catalogue: `Hopper`, `CDNA3`, ...; GPUs of one architecture run
/// the same kernels.
pub fn architecture(gpu: &GpuShape) -> Option<&'static str> {
    let place = GPUS.iter().position(|(id, _)| *id == gpu.id)?;
    Some(ARCHITECTURES[place])
}

static ARCHITECTURES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| Row::parse_all(include_str!("../../data/gpus.csv"), |row| row.text("arch")));

/// The GPU that `name` means.
///
/// # Errors
/// If no entry, or more than one, fits.
pub fn gpu(name: &str) -> Result<&'static GpuShape, Unknown> {
    find(name, GPUS.iter().map(|(id, _)| *id)).map(|place| &GPUS[place].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_h100_is_what_its_datasheet_says() {
        let h100 = gpu("h100-sxm").unwrap();
        assert_eq!(h100.name, "H100 SXM5 80GB");
        assert_eq!((h100.bandwidth, h100.bf16_peak), (3.35e12, 989e12));
        assert_eq!((h100.fp8_peak, h100.fp4_peak, h100.link), (Some(1979e12), None, Some(450e9)));
        assert_eq!(architecture(h100), Some("Hopper"));
        // 79.6 GiB.
        assert_eq!(h100.hbm.get(), 85_469_849_190);
    }

    #[test]
    fn limits_grow_with_memory_as_in_vllm() {
        let limits = |id| {
            let (budget, sequences) = gpu(id).unwrap().default_limits();
            (budget.get(), sequences)
        };
        assert_eq!(limits("l4"), (2048, 256));
        assert_eq!(limits("a100-80gb-sxm"), (2048, 256));
        assert_eq!(limits("h100-sxm"), (8192, 1024));
        assert_eq!(limits("h200"), (8192, 1024));
        assert_eq!(limits("b200"), (16_384, 1024));
    }

    #[test]
    fn every_gpu_of_the_catalogue_has_sensible_numbers() {
        assert_eq!(gpus().count(), 29);
        for gpu in gpus() {
            assert!((1e11..1e13).contains(&gpu.bandwidth), "{}", gpu.id);
            assert!((5e13..3e15).contains(&gpu.bf16_peak), "{}", gpu.id);
            assert!((15_u64..300).contains(&(gpu.hbm.get() >> 30)), "{}", gpu.id);
            assert!(gpu.fp8_peak.is_none_or(|fp8| fp8 > gpu.bf16_peak), "{}", gpu.id);
        }
    }

    #[test]
    fn a_family_alone_is_ambiguous() {
        let unknown = gpu("a100-sxm").unwrap_err();
        assert_eq!(unknown.candidates, ["a100-40gb-sxm", "a100-80gb-sxm"]);
    }
}
