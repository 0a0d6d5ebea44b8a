//! `llmsim-bench`: the load generator.

fn main() -> std::process::ExitCode {
    llmsim_bench::main()
}
