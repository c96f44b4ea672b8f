//! The sockets of managers: what `toklat guest list` and `stop` use.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::kind;
use super::unit::GuestInfo;

/// Bytes of the longest request.
const MAX_REQUEST: u64 = 1 << 20;
/// Time limit for the other side. The socket's directory belongs to the user, so the other side is
/// one of the user's own commands.
const TIME: Duration = Duration::from_secs(5);

/// A request to a manager.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Its guests.
    List,
    /// The entry of the topology for which the manager was started, if there is one.
    Kept,
    /// Stop guests, or all of them.
    Stop {
        /// The names of the guests; empty for all.
        names: Vec<String>,
    },
}

/// Returns true if a manager ends with success before it should have answered.
///
/// # Errors
/// It cannot be waited for.
pub fn has_ended_well(manager: &mut Child) -> std::io::Result<bool> {
    let asked = Instant::now();
    while asked.elapsed() < TIME {
        if let Some(status) = manager.try_wait()? {
            return Ok(status.success());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(false)
}

/// A manager's socket, removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    pub fn new(home: &Path) -> anyhow::Result<Self> {
        let path = socket(home, std::process::id());
        // Removes the socket of an earlier process with the same number.
        let _ = std::fs::remove_file(&path);
        let bound = UnixListener::bind(&path).or_else(|error| {
            if error.kind() != std::io::ErrorKind::NotFound {
                return Err(error);
            }
            // A manager that ended just now may have removed the empty directory, and another one
            // may have made it again.
            let _ = std::fs::DirBuilder::new().mode(0o700).create(home);
            UnixListener::bind(&path)
        });
        let socket = bound.with_context(|| format!("Cannot listen at {}", path.display()))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// The next request, if there is one, and the connection for its answer.
    pub fn accept(&self) -> Option<(Request, Reply)> {
        let (mut stream, _) = self.socket.accept().ok()?;
        // The client writes its request as soon as it is connected, so a short time limit suffices.
        stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        let mut line = String::new();
        BufReader::new((&mut stream).take(MAX_REQUEST)).read_line(&mut line).ok()?;
        Some((serde_json::from_str(&line).ok()?, Reply(stream)))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // The directory stays if it holds logs, or the sockets of others.
        self.path.parent().map(std::fs::remove_dir);
    }
}

/// The connection on which an answer is sent.
#[derive(Debug)]
pub struct Reply(UnixStream);

impl Reply {
    /// Sends the answer in a thread of its own, because it may be long.
    pub fn send(mut self, answer: &impl Serialize) {
        let text = serde_json::to_vec(answer).unwrap_or_default();
        let send = move || {
            // If the command is gone, it needs no answer.
            let _ = self.0.set_write_timeout(Some(TIME)).and_then(|()| self.0.write_all(&text));
        };
        let _ = std::thread::Builder::new().name("reply".into()).spawn(send);
    }
}

/// The socket of a manager in its home.
pub fn socket(home: &Path, manager: u32) -> PathBuf {
    home.join(format!("{manager}.sock"))
}

/// The managers whose sockets are in a home, whether they run or not.
pub fn managers(home: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(home).into_iter().flatten().flatten();
    let number = |path: PathBuf| {
        let is_socket = path.extension().is_some_and(|extension| extension == "sock");
        path.file_stem().filter(|_| is_socket)?.to_str()?.parse().ok()
    };
    entries.filter_map(|entry| number(entry.path())).collect()
}

/// The sockets of all managers of this user.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let homes = [Some(directory.join("guests")), kind::fallback()];
    let entries = homes.into_iter().flatten().filter_map(|home| std::fs::read_dir(home).ok());
    let paths = entries.flatten().flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "sock")).collect();
    paths.sort();
    paths
}

/// Asks one manager.
///
/// # Errors
/// It does not run, or does not answer.
pub fn ask_at<T: DeserializeOwned>(path: &Path, request: &Request) -> anyhow::Result<T> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(TIME))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Asks all managers of this user except the one with process number `but`, and joins their
/// answers.
#[must_use]
pub fn ask(directory: &Path, request: &Request, but: Option<u32>) -> Vec<GuestInfo> {
    let own = but.map(|pid| format!("{pid}.sock"));
    let others = sockets(directory).into_iter().filter(|path| {
        own.as_ref().is_none_or(|own| path.file_name().is_none_or(|name| *name != **own))
    });
    let mut all = Vec::new();
    for path in others {
        match ask_at::<Vec<GuestInfo>>(&path, request) {
            Ok(some) => all.extend(some),
            Err(error) => {
                let refused = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
                if refused == Some(std::io::ErrorKind::ConnectionRefused) {
                    // The socket's manager was killed.
                    let _ = std::fs::remove_file(&path);
                }
            }
        }
    }
    all
}

/// The names of the guests that have not ended, of other managers.
pub fn names(directory: &Path, but: Option<u32>) -> Vec<String> {
    let live = |info: &GuestInfo| info.state != super::unit::State::Ended;
    let all = ask(directory, &Request::List, but).into_iter();
    all.filter(live).map(|info| info.name).collect()
}
