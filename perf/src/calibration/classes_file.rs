//! The file of the engine classes, whose numbers are fitted and scored here.
//!
//! The invariant: cells that nobody asks to change stay as they are, letter by letter.

use std::collections::BTreeMap;

/// In the source tree; it is compiled in, so that a change is seen after the next build.
pub(super) const PATH: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/data/engine_classes.csv");

/// Cells by column.
pub(super) type Cells = BTreeMap<&'static str, String>;

/// Puts other cells into the rows for which there are some, by the class's name.
///
/// # Errors
/// If the file cannot be read or written.
pub(super) fn rewrite(cells: impl Fn(&str) -> Option<Cells>) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{PATH}: {error}");
    let text = std::fs::read_to_string(PATH).map_err(wrong)?;
    std::fs::write(PATH, rewritten(&text, cells)).map_err(wrong)
}

fn rewritten(text: &str, cells: impl Fn(&str) -> Option<Cells>) -> String {
    let columns: Vec<&str> = text.lines().next().unwrap_or_default().split(',').collect();
    let mut out = String::new();
    for line in text.lines() {
        let id = line.split(',').next().unwrap_or_default();
        match cells(id) {
            Some(other) => {
                let row = line.split(',').zip(&columns);
                let row = row.map(|(cell, &column)| other.get(column).map_or(cell, |cell| cell));
                out.push_str(&row.collect::<Vec<_>>().join(","));
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_changes() {
        let text = "id,engine,mbu,p\na,A 1,0.5,2\nb,B,0.6,\n";
        let out = rewritten(text, |id| {
            (id == "b").then(|| [("mbu", "0.7".to_owned()), ("p", "3".to_owned())].into())
        });
        assert_eq!(out, "id,engine,mbu,p\na,A 1,0.5,2\nb,B,0.7,3\n");
    }
}
