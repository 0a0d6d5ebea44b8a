//! HTTP/1.1 as the server speaks it: reading requests, writing responses.
//!
//! Not a framework and not a router. `monoio-http` gives the head decoder and its types; what it
//! does not do is done here: limits, refusal of ambiguous framing, chunked bodies with extensions
//! and trailers, HTTP/1.0. The invariant: bytes that do not follow the rules end in one error
//! response and a closed connection, never in a second reading of them.

pub(crate) mod body;
pub(crate) mod connection;
pub(crate) mod head;
pub(crate) mod response;
