//! TLS as a client: whom to trust, and one connection's plaintext and records.
//!
//! It neither reads nor writes a socket: bytes that arrived go in, bytes to send come out. The
//! invariant: arrivals are stamped before they come here, so that decrypting is in no latency.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};

/// Whose certificates are good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Those that the system's authorities have signed.
    #[default]
    System,
    /// Those that are in this PEM file or signed by one of it.
    File(PathBuf),
    /// Any (`--insecure`).
    Anybody,
}

/// What all connections share.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

/// Where systems keep the authorities' certificates: Debian and Arch, Fedora, SUSE, Alpine and BSD.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Tls {
    /// Reads the certificates that `trust` names.
    ///
    /// # Errors
    /// A sentence that names the option.
    pub fn new(trust: &Trust) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("https: {error}"))?;
        let mut config = match trust {
            Trust::Anybody => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
                .with_no_client_auth(),
            Trust::System | Trust::File(_) => {
                let Roots { store, named } = roots(trust)?;
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
                        .build()
                        .map_err(|error| format!("https: {error}"))?;
                builder
                    .dangerous()
                    .with_custom_certificate_verifier(Arc::new(Known { verifier, named }))
                    .with_no_client_auth()
            }
        };
        // Connections are kept: what a new one costs is the same for each.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }

    /// A connection to `host`, which has to prove that it is.
    ///
    /// # Errors
    /// A sentence if it is no name that a certificate can have.
    pub fn session(&self, host: &str) -> Result<Session, String> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("'{host}' is no name that a certificate can have"))?;
        let mut tls = ClientConnection::new(Arc::clone(&self.config), name)
            .map_err(|error| format!("TLS: {error}"))?;
        // A request is sealed whole: nothing of it may be left out.
        tls.set_buffer_limit(None);
        Ok(Session { tls, has_ended: false })
    }
}

/// Who is trusted.
struct Roots {
    store: RootCertStore,
    /// The certificates that the user has named.
    named: Vec<CertificateDer<'static>>,
}

fn roots(trust: &Trust) -> Result<Roots, String> {
    let mut roots = Roots { store: RootCertStore::empty(), named: Vec::new() };
    let (path, option) = match trust {
        Trust::File(path) => (path.clone(), "--ca-cert"),
        _ => {
            let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
            let found = || BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file());
            let path = named.or_else(found).ok_or(
                "https: this system has no certificates of authorities; --ca-cert FILE names some",
            )?;
            (path, "https")
        }
    };
    let told = |why: String| format!("{option} {}: {why}", path.display());
    let pem = std::fs::read(&path).map_err(|error| told(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| told(error.to_string()))?;
        if let Trust::File(_) = trust {
            roots.named.push(certificate.clone());
        }
        let added = roots.store.add(certificate);
        // In a bundle of hundreds one may be of a kind that is not known here.
        if let (Err(error), Trust::File(_)) = (added, trust) {
            return Err(told(error.to_string()));
        }
    }
    if roots.store.is_empty() {
        return Err(told("no certificate in it; it must be PEM".into()));
    }
    Ok(roots)
}

/// One connection.
#[derive(Debug)]
pub struct Session {
    tls: ClientConnection,
    has_ended: bool,
}

impl Session {
    /// True until both sides have agreed; nothing can be sealed before.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// True once the server has said that nothing more comes.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Drives it over a blocking socket.
    pub fn over<S: Read + Write>(self, socket: S) -> impl Read + Write {
        rustls::StreamOwned::new(self.tls, socket)
    }

    /// What has to be sent now: of the handshake, or alerts.
    pub fn outgoing(&mut self) -> Vec<u8> {
        let mut records = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut records).expect("memory takes all that is written to it");
        }
        records
    }

    /// `plain` as records to be sent.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(plain).expect("its buffer has no limit");
        self.outgoing()
    }

    /// Takes `records` that arrived and appends what was in them to `plain`.
    ///
    /// # Errors
    /// What is wrong with them, and what to try.
    pub fn take(&mut self, mut records: &[u8], plain: &mut Vec<u8>) -> Result<(), String> {
        while !records.is_empty() {
            self.tls.read_tls(&mut records).map_err(|error| format!("TLS: {error}"))?;
            let state = self.tls.process_new_packets().map_err(|error| told(&error))?;
            self.has_ended |= state.peer_has_closed();
            // It says `WouldBlock` when it has no more, and that an end was none, which the
            // framing of the answer tells better.
            let _ = self.tls.reader().read_to_end(plain);
            if self.has_ended {
                break;
            }
        }
        Ok(())
    }
}

/// The library's words with a way out.
fn told(error: &rustls::Error) -> String {
    let hint = match error {
        rustls::Error::InvalidCertificate(_) => {
            "; --ca-cert FILE trusts its issuer, --insecure trusts anybody"
        }
        rustls::Error::InvalidMessage(_) => "; does the target speak plain http://?",
        _ => "",
    };
    format!("TLS: {error}{hint}")
}

/// Takes what leads to a root, and what the user has named itself: `openssl req -x509` makes
/// certificates for servers that say they are an authority's, and those lead to no root.
#[derive(Debug)]
struct Known {
    verifier: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        let Err(error) = verified else { return verified };
        // That it is an authority's has no error of its own in the library's interface; dates,
        // names and signatures have.
        let may_be_authority =
            matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(_)));
        if !may_be_authority || !self.named.iter().any(|named| named == end_entity) {
            return Err(error);
        }
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Takes every certificate, and still checks that the server holds its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
