//! The load generator from outside: its definitions on scripted bytes, its failure classes on
//! scripted servers, its program on the command line.

mod definitions;
mod failures;
mod page;
mod program;
mod server;
mod terminal;
mod tls;
