//! `llmsimulator`: the server.

fn main() {
    llmsimulator::main();
}
