//! Objects that ports are attached to and that others may delete: taps, namespaces, files and
//! sockets. A port whose object is gone waits, and is opened again when the object is back.
#![allow(unsafe_code, reason = "an ioctl that no library has")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host::tap::path_of;
use jail::strangers::Descriptor;
use tokio::sync::{mpsc, oneshot};

/// The pause between two looks at an object.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Ports that were looked at, and that the switch was not told of yet.
pub const MAX_NOTICES: usize = 64;
/// Ioctl that returns a descriptor of the namespace of a socket or tap (since Linux 4.10).
const SIOCGSKNS: libc::Ioctl = 0x894c;

/// What was noticed of the object that a port is attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It is there again, or another one of the same name: the port is to be opened again.
    Back,
    /// It is gone, for this reason.
    Gone(String),
    /// Nothing is known to be wrong.
    Fine,
}

/// A notice of the object of a port.
#[derive(Debug)]
pub struct Notice {
    /// The switch.
    pub switch: String,
    /// The port, without the switch's name.
    pub port: String,
    /// The number of the wait that noticed this.
    pub waiting: u64,
    /// What was noticed.
    pub seen: Seen,
    /// Closed when the switch has dealt with it.
    pub handled: Option<oneshot::Sender<()>>,
}

impl Notice {
    /// Tells the switch of `name`, and waits until it has dealt with it. Returns false if the
    /// daemon stops.
    pub(super) async fn tell(
        to: &mpsc::Sender<Self>,
        (switch, port): &(String, String),
        (waiting, seen): (u64, Seen),
    ) -> bool {
        let (done, handled) = oneshot::channel();
        let (switch, port) = (switch.clone(), port.clone());
        let sent = to.send(Self { switch, port, waiting, seen, handled: Some(done) }).await;
        // It is dropped, not sent.
        let _ = handled.await;
        sent.is_ok()
    }
}

/// A network namespace as a port was opened in it.
#[derive(Clone, Debug)]
pub struct Namespace {
    netns: Option<String>,
    opened: Option<(u64, u64)>,
}

impl Namespace {
    /// The namespace called `netns`, which the port's descriptors were opened in, if it has any.
    pub(super) fn of(netns: Option<&str>, fds: &[Descriptor]) -> Self {
        Self { netns: netns.map(Into::into), opened: fds.iter().find_map(namespace_of) }
    }

    /// Returns true if it was named.
    pub(super) const fn has_name(&self) -> bool {
        self.netns.is_some()
    }

    /// The reason if the name does not lead to this namespace any more.
    pub(super) fn gone(&self) -> Option<String> {
        let netns = self.netns.as_deref()?;
        let path = path_of(netns).ok()?;
        match (std::fs::metadata(path), self.opened) {
            (Err(error), _) if is_missing(&error) => {
                Some(format!("network namespace {netns} is gone"))
            }
            (Ok(now), Some(opened)) if (now.dev(), now.ino()) != opened => {
                Some(format!("network namespace {netns} is gone, another one has its name"))
            }
            _ => None,
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Device and inode of the namespace that a socket or tap was opened in.
fn namespace_of(fd: &Descriptor) -> Option<(u64, u64)> {
    // SAFETY: the request takes no argument, and returns a new descriptor or -1.
    let namespace = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), SIOCGSKNS) };
    // SAFETY: the descriptor is open, and nothing else owns it.
    let namespace = (namespace >= 0).then(|| unsafe { OwnedFd::from_raw_fd(namespace) })?;
    let stat = rustix::fs::fstat(&namespace).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// Returns a look at the file at `path`, which a port has open as `fd`.
pub(super) fn file(
    path: &str,
    fd: Option<&Descriptor>,
) -> impl Fn() -> Option<String> + Clone + Send + 'static {
    let path = PathBuf::from(path);
    let open = fd.and_then(|fd| fd.as_fd().try_clone_to_owned().ok());
    let open = open.map(|fd| std::sync::Arc::new(File::from(fd)));
    move || {
        let own = open.as_ref()?.metadata().ok()?;
        gone(&path, (own.dev(), own.ino()))
    }
}

/// The reason if the file at `path` is not the one of this device and inode.
fn gone(path: &Path, own: (u64, u64)) -> Option<String> {
    let shown = path.display();
    match std::fs::symlink_metadata(path) {
        Err(error) if is_missing(&error) => Some(format!("{shown} is gone")),
        Ok(now) if (now.dev(), now.ino()) != own => {
            Some(format!("{shown} is gone, another file has its name"))
        }
        _ => None,
    }
}

/// The reason if the socket file of this inode, which a port has made at `path`, is gone.
pub(super) async fn gone_socket((path, inode): (PathBuf, u64)) -> Option<String> {
    let look = move || match std::fs::symlink_metadata(&path) {
        Err(error) if is_missing(&error) => Some(format!("{} is gone", path.display())),
        Ok(now) if now.ino() != inode => {
            Some(format!("{} is gone, another file has its name", path.display()))
        }
        _ => None,
    };
    tokio::task::spawn_blocking(look).await.ok()?
}
