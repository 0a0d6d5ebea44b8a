//! `llmsim-bench completions SHELL` and `llmsim-bench man`, made of the flags themselves.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;

/// The script that completes the command line in a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "llmsim-bench", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The manual page in troff.
pub(crate) fn man() -> Result<String, String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Args::command())
        .render(&mut page)
        .map_err(|why| format!("the manual page cannot be made: {why}"))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}
