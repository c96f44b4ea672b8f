//! Where a socket is.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use crate::Invalid;

/// Longest socket path in bytes: `sun_path` without the terminating zero byte.
const MAX_SOCKET_PATH: usize = 107;

/// Where a socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket.
    Path(PathBuf),
    /// TCP or UDP.
    Inet(SocketAddr),
}

impl Place {
    /// An address and port, else a path.
    #[must_use]
    pub fn of(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Path(text.into()), Self::Inet)
    }

    /// Where a port's socket is: as named, else in the runtime directory.
    #[must_use]
    pub fn of_port(dir: &Path, switch: &str, port: &str, named: Option<&str>) -> Self {
        let default = || Self::Path(dir.join(format!("{switch}-{port}.sock")));
        named.map_or_else(default, Self::of)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Inet(address) => address.fmt(f),
        }
    }
}

/// Checks a socket's path, or an address and port. An address must be on this machine, because
/// frames have neither authentication nor encryption.
pub(crate) fn check(port: &str, place: &str) -> Result<(), Invalid> {
    match Place::of(place) {
        Place::Path(_) => check_socket_path(port, place),
        Place::Inet(address) if address.ip().is_loopback() && address.port() != 0 => Ok(()),
        Place::Inet(address) => {
            let reason = format!("{port}: {address} is not a loopback address with a port");
            let remedy =
                "use 127.0.0.1 or [::1]; to reach other machines, use a tunnel such as ssh -L";
            Err(Invalid::new(reason, remedy))
        }
    }
}

/// Checks a socket's path, if there is one.
pub(crate) fn check_named(port: &str, path: Option<&String>) -> Result<(), Invalid> {
    path.map_or(Ok(()), |path| check_socket_path(port, path))
}

fn check_socket_path(port: &str, path: &str) -> Result<(), Invalid> {
    check_absolute(port, path)?;
    if path.len() > MAX_SOCKET_PATH || path.contains('\0') {
        let reason = format!("{port}: {path:?} cannot be a socket's path");
        return Err(Invalid::new(reason, format!("use at most {MAX_SOCKET_PATH} bytes")));
    }
    Ok(())
}

/// Checks that a path is absolute.
pub(crate) fn check_absolute(port: &str, path: &str) -> Result<(), Invalid> {
    if Path::new(path).is_absolute() {
        return Ok(());
    }
    let reason = format!("{port}: {path:?} is a relative path");
    Err(Invalid::new(reason, "the daemon has another working directory: give an absolute path"))
}

/// Makes a path absolute, because the daemon has another working directory.
pub(crate) fn make_absolute(path: &mut String) -> Result<(), Invalid> {
    let wrong = |why: String| Invalid::new(format!("{path:?} is not a path: {why}"), "name a file");
    let absolute = std::path::absolute(&*path).map_err(|error| wrong(error.to_string()))?;
    let absolute = absolute.into_os_string().into_string();
    *path = absolute.map_err(|_| wrong("the directory's name is not UTF-8".into()))?;
    Ok(())
}

/// Makes it absolute if it is a path.
pub(crate) fn make_place_absolute(place: &mut String) -> Result<(), Invalid> {
    if place.parse::<SocketAddr>().is_ok() {
        return Ok(());
    }
    if is_meant_as_an_address(place) {
        let reason = format!("{place} is not an address with a port");
        return Err(Invalid::new(reason, format!("use 127.0.0.1:PORT, or a path: ./{place}")));
    }
    make_absolute(place)
}

/// Returns true for an IP address followed by an invalid port, which would be a strange file name.
fn is_meant_as_an_address(text: &str) -> bool {
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() || host == "localhost"
}

/// " in NAME" for a network namespace.
pub(crate) fn in_namespace(netns: Option<&String>) -> String {
    netns.map_or_else(String::new, |netns| format!(" in {netns}"))
}

/// Describes a socket: which end listens, and where.
pub(crate) fn describe(protocol: &str, path: Option<&String>, client: bool) -> String {
    let place = path.map_or("the default socket", String::as_str);
    format!("{protocol}{} {place}", if client { ", connects to" } else { " at" })
}
