//! A configuration with other constants in it.
//!
//! The opposite of reading: a models file's text goes in, and one comes out that says the same, but
//! for the constants of one model. Comments are lost. The invariant: what comes out is valid if
//! what went in was.

use serde_yaml::{Mapping, Value};

/// The text of a models file whose model number `model` has these constants under `efficiency:`
/// and this overhead under `latency:`; what was said of them before is dropped.
///
/// # Errors
/// If the text is no models file, or has no such model.
pub fn with_constants(
    text: &str,
    model: usize,
    efficiency: &[(&str, f64)],
    request_overhead_ms: Option<f64>,
) -> Result<String, String> {
    edited(text, model, |entry| {
        let mut section = Mapping::new();
        for &(key, value) in efficiency {
            section.insert(key.into(), value.into());
        }
        entry.insert("efficiency".into(), Value::Mapping(section));
        let latency = Value::from("latency");
        let mut section = match entry.remove(&latency) {
            Some(Value::Mapping(section)) => section,
            _ => Mapping::new(),
        };
        // Part of `host_per_step_ms` now.
        for key in ["scheduler_overhead_ms", "step_overhead_ms"] {
            section.remove(Value::from(key));
        }
        if let Some(overhead) = request_overhead_ms {
            section.insert("request_overhead_ms".into(), overhead.into());
        }
        if !section.is_empty() {
            entry.insert(latency, Value::Mapping(section));
        }
    })
}

/// The text of a models file whose model number `model` has these numbers under `step_residual:`;
/// the seed stays as it was.
///
/// # Errors
/// If the text is no models file, or has no such model.
pub fn with_step_residual(
    text: &str,
    model: usize,
    numbers: &[(&str, f64)],
) -> Result<String, String> {
    edited(text, model, |entry| {
        let key = Value::from("step_residual");
        let seed = entry.get(&key).and_then(|section| section.get("seed")).cloned();
        let mut section = Mapping::new();
        section.insert("seed".into(), seed.unwrap_or(0.into()));
        for &(name, value) in numbers {
            section.insert(name.into(), value.into());
        }
        entry.insert(key, Value::Mapping(section));
    })
}

/// The text of a models file after a change to its model number `model`.
fn edited(text: &str, model: usize, change: impl FnOnce(&mut Mapping)) -> Result<String, String> {
    let mut root: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    let entry = root
        .get_mut("models")
        .and_then(|models| models.get_mut(model))
        .and_then(Value::as_mapping_mut)
        .ok_or_else(|| format!("there is no `models[{model}]`"))?;
    change(entry);
    serde_yaml::to_string(&root).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_models_constants_are_replaced_and_the_rest_stays() {
        let text = "hardware: {mine: {hbm_gib: 80}}\nmodels:\n  - name: a\n  - name: b\n    \
                    efficiency: {scale: 2}\n    latency: {step_overhead_ms: 1}\n";
        let out = with_constants(text, 1, &[("overlap", 1.5)], Some(20.0)).unwrap();
        assert_eq!(
            out,
            "hardware:\n  mine:\n    hbm_gib: 80\nmodels:\n- name: a\n- name: b\n  efficiency:\n    \
             overlap: 1.5\n  latency:\n    request_overhead_ms: 20.0\n"
        );
        let text = "models:\n- name: a\n  step_residual: {seed: 5, tail_factor: 3}\n";
        let out = with_step_residual(text, 0, &[("sigma", 0.25)]).unwrap();
        assert_eq!(out, "models:\n- name: a\n  step_residual:\n    seed: 5\n    sigma: 0.25\n");
        assert!(with_step_residual(text, 1, &[]).is_err());
        assert!(with_constants(text, 2, &[], None).is_err());
        assert!(with_constants("[", 0, &[], None).is_err());
    }
}
