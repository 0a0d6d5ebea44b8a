//! Who the server says that it is: a certificate chain and its private key, from PEM.
//!
//! The invariant: an [`Identity`] can make a handshake; everything that could be wrong with the files
//! has been told before.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate chain with its key, ready for handshakes.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Nothing of the key.
        f.write_str("Identity")
    }
}

/// One of the two files, for messages.
struct Input<'a> {
    flag: &'static str,
    name: &'a str,
    pem: &'a [u8],
}

impl Identity {
    /// Reads `--tls-cert` and `--tls-key`.
    ///
    /// # Errors
    /// The whole message: which file, what is wrong with it, and what to try.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, String> {
        let read = |flag: &str, path: &Path| {
            std::fs::read(path)
                .map_err(|why| format!("{flag}: cannot read {}: {why}", path.display()))
        };
        let (cert_pem, key_pem) = (read("--tls-cert", cert)?, read("--tls-key", key)?);
        let (cert, key) = (cert.display().to_string(), key.display().to_string());
        Self::from_inputs(
            &Input { flag: "--tls-cert", name: &cert, pem: &cert_pem },
            &Input { flag: "--tls-key", name: &key, pem: &key_pem },
        )
    }

    /// The same from text: the server's certificate first, then those that lead to its root.
    ///
    /// # Errors
    /// The whole message.
    pub fn from_pem(cert: &[u8], key: &[u8]) -> Result<Self, String> {
        Self::from_inputs(
            &Input { flag: "--tls-cert", name: "the certificate", pem: cert },
            &Input { flag: "--tls-key", name: "the key", pem: key },
        )
    }

    fn from_inputs(cert: &Input<'_>, key: &Input<'_>) -> Result<Self, String> {
        let (chain, key_der) = (certificates(cert)?, private_key(key)?);
        let unfit = |why: rustls::Error| match why {
            rustls::Error::InconsistentKeys(_) => format!(
                "--tls-key: the key in {} does not belong to the first certificate in {}: the \
                 server's own certificate comes first, its issuers after it",
                key.name, cert.name
            ),
            // `with_single_cert` looks at nothing but these two.
            rustls::Error::InvalidCertificate(why) => {
                format!("--tls-cert: the first certificate in {} cannot be used: {why}", cert.name)
            }
            why => format!(
                "--tls-key: the key in {} cannot be used: {why}. RSA (2048 to 8192 bits), ECDSA \
                 (P-256, P-384) and Ed25519 can",
                key.name
            ),
        };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|why| format!("TLS cannot be set up: {why}"))?
            .with_no_client_auth()
            .with_single_cert(chain, key_der)
            .map_err(unfit)?;
        // HTTP/2 is not spoken: see docs/api.md.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Tickets, so that a client that comes back saves us the signature and we remember nothing.
        config.ticketer = ring::Ticketer::new()
            .map_err(|why| format!("TLS cannot be set up: no randomness: {why}"))?;
        Ok(Self { config: Arc::new(config) })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }
}

fn certificates(input: &Input<'_>) -> Result<Vec<CertificateDer<'static>>, String> {
    let Input { flag, name, pem } = input;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|why| format!("{flag}: {name} is not valid PEM: {why}"))?;
    if !chain.is_empty() {
        return Ok(chain);
    }
    let hint = if PrivateKeyDer::from_pem_slice(pem).is_ok() {
        "; it holds a private key: are --tls-cert and --tls-key swapped?"
    } else {
        ": it must hold `-----BEGIN CERTIFICATE-----`"
    };
    Err(format!("{flag}: {name} holds no certificate in PEM form{hint}"))
}

fn private_key(input: &Input<'_>) -> Result<PrivateKeyDer<'static>, String> {
    let Input { flag, name, pem } = input;
    let why = match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => return Ok(key),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => None,
        Err(why) => Some(why),
    };
    if let Some(why) = why {
        return Err(format!("{flag}: {name} is not valid PEM: {why}"));
    }
    let has = |words: &[u8]| memchr::memmem::find(pem, words).is_some();
    let hint = if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") {
        "; the one there is locked with a passphrase: `openssl pkey -in KEY -out PLAIN` unlocks it"
    } else if has(b"BEGIN CERTIFICATE") {
        "; it holds a certificate: are --tls-cert and --tls-key swapped?"
    } else {
        ": it must hold `-----BEGIN PRIVATE KEY-----`, or one for RSA or EC"
    };
    Err(format!("{flag}: {name} holds no private key in PEM form{hint}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertifiedKey, generate_simple_self_signed};

    use super::*;

    fn pair() -> (String, String) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (cert.pem(), signing_key.serialize_pem())
    }

    fn mistake(cert: &str, key: &str) -> String {
        Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_certificate_and_its_key_make_an_identity_that_does_not_show_them() {
        let (cert, key) = pair();
        let identity = Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap();
        assert_eq!(format!("{identity:?}"), "Identity");
        // One file for both, as some tools write it.
        let both = format!("{key}{cert}");
        Identity::from_pem(both.as_bytes(), both.as_bytes()).unwrap();
    }

    #[test]
    fn what_is_wrong_with_the_files_is_told() {
        let (cert, key) = pair();
        let (_, other) = pair();
        for (mistake, words) in [
            (mistake("", &key), "--tls-cert: the certificate holds no certificate in PEM form: it"),
            (mistake(&cert, ""), "--tls-key: the key holds no private key in PEM form: it must"),
            (mistake(&key, &key), "are --tls-cert and --tls-key swapped?"),
            (mistake(&cert, &cert), "are --tls-cert and --tls-key swapped?"),
            (mistake(&cert, &other), "does not belong to the first certificate"),
            (mistake(&cert.replace("M", "?"), &key), "not valid PEM"),
            (mistake(&cert, &key.replace("PRIVATE", "ENCRYPTED PRIVATE")), "openssl pkey"),
        ] {
            assert!(mistake.contains(words), "{mistake}");
            assert_eq!(mistake.lines().count(), 1, "{mistake}");
        }
        let mistake =
            Identity::load(Path::new("no/such.pem"), Path::new("no/such.key")).unwrap_err();
        assert!(mistake.starts_with("--tls-cert: cannot read no/such.pem: No such"), "{mistake}");
    }
}
