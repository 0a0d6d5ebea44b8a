//! `llmsimulator`: the server.

use std::process::ExitCode;

fn main() -> ExitCode {
    llmsimulator::main()
}
