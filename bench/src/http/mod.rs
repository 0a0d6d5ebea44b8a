//! The client's half of HTTP/1.1: where to send, and how to read an answer. Pure: no sockets here.

pub mod answer;
pub mod tls;
pub mod url;
