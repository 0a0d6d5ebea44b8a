//! `--admin` and `--admin-address`. The invariant: an address is one that can be listened on, as far
//! as its text tells.

use std::str::FromStr;

/// Whether `/admin` is served, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// Whether it is served at all.
    pub is_on: bool,
    /// The address and port that it has to itself; `None`: where all else is served.
    pub address: Option<(String, u16)>,
}

impl Admin {
    /// What the two flags mean: an address is reason enough.
    pub(super) fn of(is_on: bool, address: Option<AdminAddress>) -> Self {
        Self {
            is_on: is_on || address.is_some(),
            address: address.map(|AdminAddress(host, port)| (host, port)),
        }
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminAddress(String, u16);

impl FromStr for AdminAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_owned(), port.parse().ok()?))
        });
        match split {
            Some((host, port)) if !host.is_empty() => Ok(Self(host, port)),
            _ => Err("must be an address and a port, for example 127.0.0.1:8081".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port() {
        let of = |text: &str| text.parse::<AdminAddress>().ok().map(|it| (it.0, it.1));
        assert_eq!(of("127.0.0.1:8081"), Some(("127.0.0.1".to_owned(), 8081)));
        assert_eq!(of("[::1]:8081"), Some(("::1".to_owned(), 8081)));
        for bad in ["8081", ":8081", "host", "host:port", "host:99999"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
