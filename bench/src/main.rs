//! `llmsim-bench`: the load generator.

fn main() {
    llmsim_bench::main();
}
