//! Integration tests: real sockets, real clients.
