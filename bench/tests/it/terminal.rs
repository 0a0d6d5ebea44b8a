//! What stands on a terminal while a run goes on and after it: seen through a pseudo-terminal.
//!
//! Needs `script` (util-linux), which makes one. Where there is none the test says so and passes.

use std::process::{Command, Output};

use crate::server::{one_token, serve, whole};

/// The screen that these bytes leave behind, line by line, and every state of a line that was taken
/// away again. As wide as need be: what would wrap is found by its length.
#[derive(Default)]
struct Screen {
    lines: Vec<String>,
    line: Vec<char>,
    column: usize,
    taken_away: Vec<String>,
}

impl Screen {
    fn of(bytes: &str) -> Self {
        let mut screen = Self::default();
        let mut rest = bytes;
        while let Some(next) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix("\u{1b}[2K") {
                let text: String = screen.line.drain(..).collect();
                if !text.trim().is_empty() {
                    screen.taken_away.push(text);
                }
                rest = after;
                continue;
            }
            rest = &rest[next.len_utf8()..];
            match next {
                '\r' => screen.column = 0,
                '\n' => {
                    screen.lines.push(screen.line.drain(..).collect());
                    screen.column = 0;
                }
                _ => {
                    if screen.line.len() <= screen.column {
                        screen.line.resize(screen.column + 1, ' ');
                    }
                    screen.line[screen.column] = next;
                    screen.column += 1;
                }
            }
        }
        screen.lines.push(screen.line.drain(..).collect());
        screen
    }
}

fn on_a_terminal(columns: u32, command: &str) -> Option<Output> {
    let whole = format!("stty cols {columns}; exec {command}");
    let made = Command::new("script").args(["-qefc", &whole, "/dev/null"]).output();
    made.inspect_err(|error| eprintln!("no `script` here, nothing was looked at: {error}")).ok()
}

#[test]
fn the_line_that_tells_how_it_goes_fits_the_window_and_leaves_no_trace() {
    let address = serve(|head, _, stream| {
        if head.starts_with("POST /v1/chat") {
            return one_token(stream);
        }
        whole(stream, "404 Not Found", "text/plain", "")
    });
    let bench = env!("CARGO_BIN_EXE_llmsim-bench");
    let command =
        format!("{bench} --url http://{address} -m m -c 1,2 -d 1.2 --no-selftest --warmup 1");
    let Some(out) = on_a_terminal(72, &command) else { return };
    let shown = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{shown}");
    let screen = Screen::of(&shown);
    let told: Vec<&String> =
        screen.taken_away.iter().filter(|line| line.contains("in flight")).collect();
    assert!(told.iter().any(|line| line.starts_with("concurrency 1 · ")), "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("concurrency 2 · ")), "{told:?}");
    for line in &screen.taken_away {
        assert!(line.chars().count() < 72, "it would wrap: {line}");
    }
    // What stays: the head, the columns and a row per level, with nothing of the line in them.
    let rows: Vec<&String> = screen.lines.iter().filter(|line| !line.is_empty()).collect();
    assert!(rows[0].starts_with("sweep concurrency"), "{rows:?}");
    assert!(rows[1].starts_with("concurrency  "), "{rows:?}");
    assert!(
        rows[2].starts_with("          1  ") && rows[3].starts_with("          2  "),
        "{rows:?}"
    );
    assert!(screen.lines.iter().all(|line| !line.contains("in flight")), "{rows:?}");
}
