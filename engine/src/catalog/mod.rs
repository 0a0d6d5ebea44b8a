//! GPUs, models and engine classes by name, and what follows from a choice of them.
//!
//! The data are public facts (`engine/data/`, with sources); the code here only looks up and
//! multiplies. It reads no file and knows no YAML: the configuration hands it names, numbers and
//! the text of a `config.json`. The invariant: whatever comes out has passed
//! [`Roofline::check`](crate::sim::scheduler::cost::Roofline::check), so a plan that was made can
//! be simulated.
//!
//! The way through: [`gpu`] or a hardware profile of the user's own gives a [`GpuShape`], [`model`]
//! or [`derive`] a [`ModelShape`], [`engine_class`] an [`EngineClass`]; a [`Deployment`] puts them
//! together and [`Deployment::plan`] works out the cost model and the KV cache.

mod classes;
mod deployment;
mod gpus;
mod hf_config;
mod models;

pub use classes::{
    ERRORS_FROM, EngineClass, ExpertReads, KvMemory, Scope, StatedError, engine_class,
    engine_classes,
};
pub use deployment::{
    DECODE_CONTEXT, Deployment, Derived, KvCacheDtype, Memory, Plan, Problem, WeightDtype,
    decode_batches,
};
pub use gpus::{GpuShape, architecture, gpu, gpus};
pub use hf_config::{CannotDerive, derive};
pub use models::{Attention, ModelShape, model, models};

/// A name that is not in the catalogue, or that could mean several entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The entries that come nearest, best first; at most four, perhaps none.
    pub candidates: Vec<&'static str>,
}

/// The one entry of `names` that `typed` means: the same name, or the only one that has all of its
/// words (`h100-sxm` for `h100-80gb-sxm`). Case and the kind of separator do not matter.
fn find(typed: &str, names: impl Iterator<Item = &'static str> + Clone) -> Result<usize, Unknown> {
    let wanted = words(typed);
    if let Some(place) = names.clone().position(|name| words(name) == wanted) {
        return Ok(place);
    }
    let mut complete: Vec<(usize, &'static str)> = Vec::new();
    let mut near: Vec<(usize, usize, &'static str)> = Vec::new();
    for (place, name) in names.enumerate() {
        let has = words(name);
        let shared = wanted.iter().filter(|word| has.contains(word)).count();
        if shared == wanted.len() && shared > 0 {
            complete.push((place, name));
        }
        let prefix = common_prefix(&wanted.concat(), &has.concat());
        if shared > 0 || prefix >= 3 {
            near.push((shared, prefix, name));
        }
    }
    match complete[..] {
        [(place, _)] => Ok(place),
        [] => {
            near.sort_by_key(|&(shared, prefix, _)| std::cmp::Reverse((shared, prefix)));
            Err(Unknown { candidates: near.iter().take(4).map(|&(.., name)| name).collect() })
        }
        _ => Err(Unknown { candidates: complete.iter().take(4).map(|&(_, name)| name).collect() }),
    }
}

fn words(name: &str) -> Vec<String> {
    const LONGEST_NAME: usize = 200;
    name.chars()
        .take(LONGEST_NAME)
        .collect::<String>()
        .to_lowercase()
        .split(|c: char| !c.is_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count()
}

/// The rows of one of our own CSV files, each as (column name, cell) look-up. The files are
/// compiled in and every row is parsed by a test, so a wrong cell is our own mistake.
struct Row<'a> {
    columns: &'a [&'static str],
    cells: Vec<&'static str>,
}

impl Row<'_> {
    fn parse_all<T>(csv: &'static str, parse: impl Fn(&Row<'_>) -> T) -> Vec<T> {
        let mut lines = csv.lines();
        let header = lines.next().expect("our data files have a header");
        let columns: Vec<&'static str> = header.split(',').collect();
        lines
            .filter(|line| !line.is_empty())
            .map(|line| {
                let cells: Vec<&'static str> = line.split(',').collect();
                assert_eq!(cells.len(), columns.len(), "in our data file: {line}");
                parse(&Row { columns: &columns, cells })
            })
            .collect()
    }

    fn text(&self, column: &str) -> &'static str {
        let place = self.columns.iter().position(|name| *name == column);
        self.cells[place.expect("our data files have the columns that the code names")]
    }

    fn maybe_number(&self, column: &str) -> Option<f64> {
        let text = self.text(column);
        (!text.is_empty()).then(|| text.parse().expect("a number in our data file"))
    }

    fn number(&self, column: &str) -> f64 {
        self.maybe_number(column).expect("our data file gives this number in every row")
    }

    fn count(&self, column: &str) -> u32 {
        self.text(column).parse().expect("a whole number in our data file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["h100-80gb-sxm", "h100-80gb-pcie", "h200", "rtx4090", "llama-3.1-8b"];

    fn found(typed: &str) -> Result<&'static str, Vec<&'static str>> {
        find(typed, NAMES.iter().copied()).map(|place| NAMES[place]).map_err(|u| u.candidates)
    }

    #[test]
    fn a_name_is_found_whatever_its_case_and_separators() {
        assert_eq!(found("h100-80gb-sxm"), Ok("h100-80gb-sxm"));
        assert_eq!(found("H100_80GB SXM"), Ok("h100-80gb-sxm"));
        assert_eq!(found("Llama-3.1-8B"), Ok("llama-3.1-8b"));
    }

    #[test]
    fn words_that_only_one_entry_has_are_enough() {
        assert_eq!(found("h100-sxm"), Ok("h100-80gb-sxm"));
        assert_eq!(found("llama-8b"), Ok("llama-3.1-8b"));
    }

    #[test]
    fn an_ambiguous_name_is_refused_with_all_that_it_could_mean() {
        assert_eq!(found("h100"), Err(vec!["h100-80gb-sxm", "h100-80gb-pcie"]));
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_ones() {
        assert_eq!(found("h100-96gb-sxm").unwrap_err()[0], "h100-80gb-sxm");
        assert_eq!(found("lama-3.1-8b").unwrap_err()[0], "llama-3.1-8b");
        assert_eq!(found("rtx4080").unwrap_err(), ["rtx4090"]);
        assert_eq!(found("zzz").unwrap_err(), Vec::<&str>::new());
        assert_eq!(found("").unwrap_err(), Vec::<&str>::new());
    }
}
