//! The address of the target.

use std::fmt;

/// An `http://` address in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or address, without brackets.
    pub host: String,
    /// Port, 80 if not given.
    pub port: u16,
    /// Path without a trailing slash; empty for the root.
    pub path: String,
}

impl Url {
    /// Reads `http://host:port/path`.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(format!(
                    "{text}: https is not supported; put a TLS-terminating proxy on this machine \
                     in front of the target (for example `socat TCP-LISTEN:8443,fork,reuseaddr \
                     OPENSSL:HOST:443`) and use http://localhost:8443"
                ));
            }
            Some((scheme, _)) => return Err(format!("{text}: unknown scheme '{scheme}://'")),
            None => text,
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
            None | Some("") => 80,
            Some(port) => port.parse().map_err(|_| format!("{text}: '{port}' is not a port"))?,
        };
        Ok(Self { host: host.to_owned(), port, path: path.trim_end_matches('/').to_owned() })
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
        if self.port == 80 { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::Url;

    #[test]
    fn addresses_are_taken_apart_and_put_together_again() {
        for text in ["http://localhost:8080/v1", "http://[::1]:9000", "http://example.org/a/b?c=d"]
        {
            assert_eq!(Url::parse(text).expect(text).to_string(), text);
        }
        assert_eq!(
            Url::parse("localhost:80/v1/").expect("no scheme").to_string(),
            "http://localhost/v1"
        );
    }

    #[test]
    fn what_cannot_work_is_said_with_a_way_out() {
        for (text, part) in [
            ("https://api.openai.com/v1", "proxy"),
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
