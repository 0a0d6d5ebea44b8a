//! The address of the target.

use std::fmt;

/// An `http://` or `https://` address in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// In the clear or not.
    pub scheme: Scheme,
    /// Name or address, without brackets.
    pub host: String,
    /// Port, that of the scheme if not given.
    pub port: u16,
    /// Path without a trailing slash; empty for the root.
    pub path: String,
}

/// How to speak to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP in the clear.
    Http,
    /// HTTP within TLS.
    Https,
}

impl Scheme {
    const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Url {
    /// Reads `http://host:port/path` or `https://host:port/path`.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("https", rest)) => (Scheme::Https, rest),
            Some((scheme, _)) => return Err(format!("{text}: unknown scheme '{scheme}://'")),
            None => (Scheme::Http, text),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(format!("{text}: credentials in an address are not supported; --api-key"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, after) =
                    rest.split_once(']').ok_or_else(|| format!("{text}: no ']' after '['"))?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() {
            return Err(format!("{text}: no host; write http://localhost:8080/v1"));
        }
        let port = match port {
            None | Some("") => scheme.default_port(),
            Some(port) => port.parse().map_err(|_| format!("{text}: '{port}' is not a port"))?,
        };
        let path = path.trim_end_matches('/').to_owned();
        Ok(Self { scheme, host: host.to_owned(), port, path })
    }

    /// The same server, another path.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Self {
        Self { path: path.to_owned(), ..self.clone() }
    }

    /// Value of the `Host` header.
    pub fn authority(&self) -> String {
        let host =
            if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        if self.port == self.scheme.default_port() { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn addresses_are_taken_apart_and_put_together_again() {
        for text in [
            "http://localhost:8080/v1",
            "http://[::1]:9000",
            "http://example.org/a/b?c=d",
            "https://example.org/v1",
            "https://example.org:80",
        ] {
            assert_eq!(Url::parse(text).expect(text).to_string(), text);
        }
        assert_eq!(
            Url::parse("localhost:80/v1/").expect("no scheme").to_string(),
            "http://localhost/v1"
        );
    }

    #[test]
    fn a_scheme_has_its_port() {
        let port = |text| Url::parse(text).expect("valid").port;
        assert_eq!((port("http://h"), port("https://h"), port("https://h:8443")), (80, 443, 8443));
    }

    #[test]
    fn what_cannot_work_is_said_with_a_way_out() {
        for (text, part) in [
            ("ftp://x", "unknown scheme"),
            ("http://:80", "no host"),
            ("http://h:port", "not a port"),
            ("http://me:pw@h", "--api-key"),
        ] {
            let problem = Url::parse(text).expect_err(text);
            assert!(problem.contains(part), "{text}: {problem}");
        }
    }
}
