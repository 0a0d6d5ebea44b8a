//! The files with measured runs.
//!
//! All CSV files of a directory are read that have a model and a GPU per row; others, such as
//! traces beside them, are none of ours.

use std::path::{Path, PathBuf};

use llmsim_engine::calibrate::{Row, table};

/// The rows of all CSV files with a `model` and a `gpu` column in a directory (or of one file),
/// each with the directory of its file.
pub(super) fn read(path: &Path) -> Result<Vec<(Row, PathBuf)>, String> {
    let mut paths = Vec::new();
    if path.is_file() {
        paths.push(path.to_owned());
    } else {
        let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
        for entry in std::fs::read_dir(path).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv")) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut rows = Vec::new();
    for path in paths {
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        let directory = path.parent().unwrap_or(Path::new(".")).to_owned();
        let measured = table(&text).into_iter().filter(|row| row.has("model") && row.has("gpu"));
        rows.extend(measured.map(|row| (row, directory.clone())));
    }
    if rows.is_empty() {
        return Err(format!(
            "{}: no CSV file with measured runs (columns `model`, `gpu`, ...)",
            path.display()
        ));
    }
    Ok(rows)
}
