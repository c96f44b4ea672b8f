//! A daemon that serves its API over TCP, too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::daemon::Daemon;
use crate::http::exchange;

/// The header of a client that has the token.
pub const AUTHORIZED: &str = "Authorization: Bearer 0123456789abcdef0123\r\n";

/// A daemon that serves its API at an address of this host.
pub struct OverTcp {
    /// The daemon.
    pub daemon: Daemon,
    /// Where it serves clients that have the token.
    pub address: SocketAddr,
    _place: tempfile::TempDir,
}

/// The token in a file of this mode.
#[must_use]
pub fn token_file(dir: &Path, mode: u32) -> PathBuf {
    let file = dir.join("token");
    std::fs::write(&file, "0123456789abcdef0123\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    file
}

/// A free port. The daemon is given its number, because with port 0 the test would not know which
/// one it got.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl OverTcp {
    /// Starts one with further options.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let place = tempfile::tempdir().unwrap();
        let token = token_file(place.path(), 0o600);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let listen = address.to_string();
        let tcp = ["--listen-tcp", &listen, "--token-file", token.to_str().unwrap()];
        let daemon = Daemon::start_with(&[&tcp, options].concat());
        Self { daemon, address, _place: place }
    }

    /// One request with the token.
    #[must_use]
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        exchange(self.connect(), method, path, AUTHORIZED, &body)
    }

    /// One GET request with another token.
    #[must_use]
    pub fn ask_with(&self, token: &str, method: &str, path: &str) -> (u16, Value) {
        let header = format!("Authorization: Bearer {token}\r\n");
        exchange(self.connect(), method, path, &header, "")
    }

    /// A connection without a word so far.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// A connection from another address of this host.
    #[must_use]
    pub fn connect_from(&self, from: [u8; 4]) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        connect(&socket, &self.address).unwrap();
        socket.into()
    }
}

/// Writes `bytes`, and reads until the daemon hangs up. `None` if it does not within `time`.
#[must_use]
pub fn until_hung_up(mut stream: &TcpStream, bytes: &[u8], time: Duration) -> Option<String> {
    stream.set_read_timeout(Some(time)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut said = Vec::new();
    loop {
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => said.extend(&piece[..n]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(_) => return None,
        }
    }
    Some(String::from_utf8(said).unwrap())
}
