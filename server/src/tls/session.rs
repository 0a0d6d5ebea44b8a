//! One TLS connection: plaintext on our side, records on the wire's.
//!
//! The wire is whatever reads or takes bytes now and says `WouldBlock` where a socket would. The
//! invariant: bytes count as sent when the wire has taken the whole record that carries them. So at
//! most one record waits here (16 KiB), a slow reader costs no more than that, and nothing is said to
//! be sent that is not.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use rustls::ServerConnection;

use super::Identity;

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    tls: ServerConnection,
    /// The first byte that came.
    first: Option<u8>,
    /// Bytes of the last [`Self::send`] whose record the wire has not taken whole.
    owed: usize,
    /// Nothing more will come.
    has_ended: bool,
}

/// The most plaintext that one record carries.
const RECORD: usize = 16 * 1024;

impl Session {
    /// # Errors
    /// The TLS library's; none is known that could come up here.
    pub(crate) fn new(identity: &Identity) -> Result<Self, rustls::Error> {
        let tls = ServerConnection::new(identity.config())?;
        Ok(Self { tls, first: None, owed: 0, has_ended: false })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether what has come so far begins like a request of plain HTTP, and not like TLS.
    pub(crate) fn may_be_http(&self) -> bool {
        self.first.is_some_and(|first| first.is_ascii_alphabetic())
    }

    /// Whether the client has said that it sends nothing more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes in what the wire has, without looking at it; zero is its end.
    ///
    /// # Errors
    /// The wire's.
    pub(crate) fn take_in(&mut self, wire: &mut impl Read) -> io::Result<usize> {
        let count = self.tls.read_tls(&mut FirstByte { wire, first: &mut self.first })?;
        self.has_ended |= count == 0;
        Ok(count)
    }

    /// Looks at what was taken in. In a handshake this takes long.
    ///
    /// # Errors
    /// What the client sent cannot be followed. An alert that says so waits to be flushed.
    pub(crate) fn advance(&mut self) -> Result<(), rustls::Error> {
        let state = self.tls.process_new_packets()?;
        self.has_ended |= state.peer_has_closed();
        Ok(())
    }

    /// Appends what has been decrypted; returns how much that was.
    pub(crate) fn plaintext(&mut self, into: &mut BytesMut) -> usize {
        let before = into.len();
        loop {
            let at = into.len();
            into.resize(at + RECORD, 0);
            // `WouldBlock`: no more for now. An end without a close_notify comes as an error, too,
            // and is seen at the wire.
            let count = self.tls.reader().read(&mut into[at..]).unwrap_or(0);
            into.truncate(at + count);
            if count == 0 {
                return into.len() - before;
            }
        }
    }

    /// Appends what has arrived, until there is nothing more or `most` is reached; zero is the end.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has; else the connection is broken.
    pub(crate) fn receive(
        &mut self,
        wire: &mut (impl Read + Write),
        into: &mut BytesMut,
        most: usize,
    ) -> io::Result<usize> {
        let mut received = 0;
        while received < most && !self.has_ended {
            match self.take_in(wire) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && received > 0 => break,
                Err(error) => return Err(error),
            }
            if let Err(why) = self.advance() {
                // The alert; whoever breaks the rules need not get it.
                let _ = self.flush(wire);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            received += self.plaintext(into);
        }
        Ok(received)
    }

    /// Sends what the wire takes now, like `send(2)`; but after anything less than all, the next call
    /// must begin with the bytes that were not counted: some may be under way.
    ///
    /// # Errors
    /// `WouldBlock` if the wire takes nothing; else the connection is broken.
    pub(crate) fn send(&mut self, wire: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
        assert!(self.owed <= bytes.len(), "what was begun is sent again");
        let mut sent = 0;
        loop {
            match self.flush(wire) {
                Ok(()) => sent += std::mem::take(&mut self.owed),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent > 0 => {
                    return Ok(sent);
                }
                Err(error) => return Err(error),
            }
            let rest = &bytes[sent..];
            if rest.is_empty() {
                return Ok(sent);
            }
            self.owed = self.tls.writer().write(&rest[..rest.len().min(RECORD)])?;
            if self.owed == 0 {
                // Its own buffer is full, though it was flushed: not a state that we can be in.
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }

    /// Sends what waits here.
    ///
    /// # Errors
    /// `WouldBlock` if the wire did not take all; else the connection is broken.
    pub(crate) fn flush(&mut self, wire: &mut impl Write) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(wire) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says that nothing more will come; once only, however often it is called.
    ///
    /// # Errors
    /// `WouldBlock` if the wire does not take it yet: call again. Else the connection is broken.
    pub(crate) fn close(&mut self, wire: &mut impl Write) -> io::Result<()> {
        self.tls.send_close_notify();
        self.flush(wire)
    }
}

/// Reads, and keeps the first byte that ever came.
struct FirstByte<'a, R> {
    wire: &'a mut R,
    first: &'a mut Option<u8>,
}

impl<R: Read> Read for FirstByte<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.wire.read(into)?;
        if count > 0 {
            self.first.get_or_insert(into[0]);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// A wire that holds `room` bytes on the way to the client.
    #[derive(Default)]
    struct Wire {
        to_client: VecDeque<u8>,
        to_server: VecDeque<u8>,
        room: usize,
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room - self.to_client.len());
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.to_client.extend(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Wire {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.to_server.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.to_server.read(into)
        }
    }

    /// A client and a session that have shaken hands over a wire with room for `room` bytes.
    fn acquainted(room: usize) -> (ClientConnection, Session, Wire) {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = signing_key.serialize_pem();
        let identity = Identity::from_pem(cert.pem().as_bytes(), key.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut session = Session::new(&identity).unwrap();
        let mut wire = Wire { room: 1 << 20, ..Wire::default() };
        while client.is_handshaking() || session.is_handshaking() {
            say(&mut client, &mut wire, b"");
            if session.take_in(&mut wire).is_ok() {
                session.advance().unwrap();
            }
            session.flush(&mut wire).unwrap();
            listen(&mut client, &mut wire);
        }
        assert!(!session.may_be_http());
        wire.room = room;
        (client, session, wire)
    }

    fn say(client: &mut ClientConnection, wire: &mut Wire, bytes: &[u8]) {
        client.writer().write_all(bytes).unwrap();
        while client.wants_write() {
            client.write_tls(&mut wire.to_server).unwrap();
        }
    }

    fn listen(client: &mut ClientConnection, wire: &mut Wire) -> Vec<u8> {
        let mut heard = Vec::new();
        while !wire.to_client.is_empty() {
            client.read_tls(&mut wire.to_client).unwrap();
            client.process_new_packets().unwrap();
            let _ = client.reader().read_to_end(&mut heard);
        }
        heard
    }

    #[test]
    fn a_reader_that_stops_and_goes_on_gets_every_byte_once() {
        let text: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
        for room in [1, 100, 5_000, 20_000, 70_000] {
            let (mut client, mut session, mut wire) = acquainted(room);
            let (mut sent, mut heard) = (0, Vec::new());
            while sent < text.len() {
                // Never more is counted than what stands on the wire whole.
                match session.send(&mut wire, &text[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                heard.extend(listen(&mut client, &mut wire));
                assert!(heard.len() >= sent, "room {room}: {} of {sent}", heard.len());
                assert!(heard.len() <= sent + RECORD, "room {room}");
            }
            assert!(heard == text, "room {room}");
        }
    }

    #[test]
    fn a_request_and_its_close_notify_are_told_one_after_the_other() {
        let (mut client, mut session, mut wire) = acquainted(1 << 20);
        let mut got = BytesMut::new();
        let nothing = session.receive(&mut wire, &mut got, 1 << 20).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        say(&mut client, &mut wire, b"GET /");
        client.send_close_notify();
        say(&mut client, &mut wire, b"");
        assert_eq!(session.receive(&mut wire, &mut got, 1 << 20).unwrap(), 5);
        assert_eq!(&got[..], b"GET /");
        assert!(session.has_ended());
        assert_eq!(session.receive(&mut wire, &mut got, 1 << 20).unwrap(), 0);
    }

    #[test]
    fn a_record_that_was_tampered_with_breaks_the_connection_and_gets_an_alert() {
        let (mut client, mut session, mut wire) = acquainted(1 << 20);
        say(&mut client, &mut wire, b"GET /");
        *wire.to_server.back_mut().unwrap() ^= 1;
        let broken = session.receive(&mut wire, &mut BytesMut::new(), 1 << 20).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::InvalidData);
        client.read_tls(&mut wire.to_client).unwrap();
        let told = client.process_new_packets().unwrap_err().to_string();
        assert!(told.contains("BadRecordMac"), "{told}");
    }

    #[test]
    fn a_close_notify_is_the_last_thing_that_a_client_hears() {
        let (mut client, mut session, mut wire) = acquainted(1 << 20);
        assert_eq!(session.send(&mut wire, b"bye").unwrap(), 3);
        // The answer fills the wire: the close_notify waits until there is room.
        wire.room = wire.to_client.len();
        let full = session.close(&mut wire).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        wire.room = 1 << 20;
        session.close(&mut wire).unwrap();
        session.close(&mut wire).unwrap();
        while !wire.to_client.is_empty() {
            client.read_tls(&mut wire.to_client).unwrap();
        }
        assert!(client.process_new_packets().unwrap().peer_has_closed());
        let mut heard = Vec::new();
        // Without the close_notify this would be an error: a truncation.
        client.reader().read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"bye");
    }
}
