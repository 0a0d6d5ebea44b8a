//! `llmsimulator completions SHELL` and `llmsimulator man`: what a shell and `man` know of the
//! command line. Both follow from the flags themselves, and so cannot be out of date.

use clap::Command;
use clap_complete::Shell;

use crate::args;

/// The script that completes the command line in a shell.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command_line(), "llmsimulator", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The manual page in troff, of the program or of a subcommand.
pub(crate) fn man(topic: Option<&str>) -> Result<String, String> {
    let mut program = args::command_line();
    program.build();
    let command = match topic {
        None => program,
        Some(name) => subcommand(&program, name)?,
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|why| format!("the manual page cannot be made: {why}"))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn subcommand(program: &Command, name: &str) -> Result<Command, String> {
    program.find_subcommand(name).cloned().ok_or_else(|| {
        let all: Vec<_> = program.get_subcommands().map(Command::get_name).collect();
        format!("there is no subcommand `{name}`; there are {}", all.join(", "))
    })
}
