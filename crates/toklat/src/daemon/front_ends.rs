//! Ports that wait for a peer at a socket: the front end of a virtual machine (vhost-user), or a
//! peer that exchanges frames (streams). They listen, or retry connecting until the peer listens.
//! After a peer has disconnected the next one may come.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jail::strangers::{self, Descriptor};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use topology::Place;

use super::bound::BoundFile;
use super::cards::driven::Driven;
use super::directory;
use super::interfaces::watched::Watched;
use super::objects::{self, LOOK, Notice, Seen};
use super::{descriptors, group_number, locked, system};
use crate::api::{ApiError, Client, ErrorCode};

/// Users that may use a socket beside the daemon's user: the port's owner, and the group that may
/// open ports.
pub type Users<'a> = (Option<u32>, Option<&'a str>);

/// Pause between attempts to connect: the first, and the longest.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Connected front ends whose ports have not taken them yet.
pub const MAX_ARRIVALS: usize = 64;

/// A front end that has connected to a port's socket.
#[derive(Debug)]
pub struct Arrival {
    /// The switch.
    pub switch: String,
    /// The port that it wants, without the switch's name.
    pub port: String,
    /// The number of the [`Waiting`] that accepted it.
    pub waiting: u64,
    /// The connected socket.
    pub socket: Descriptor,
}

/// Whether peers may send descriptors to a port's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The front end of a virtual machine sends them.
    Accepted,
    /// The kernel rejects messages with descriptors, where it can.
    Refused,
}

impl Rights {
    /// Configures a socket so, before any other process can hold it.
    pub(super) fn make(self, socket: impl AsFd) {
        if self == Self::Refused {
            strangers::refuse(socket);
        }
    }
}

/// A port that waits for front ends, as long as this value lives.
#[derive(Debug)]
pub struct Waiting {
    number: u64,
    task: JoinHandle<()>,
    /// Whether the port has no peer.
    vacant: Arc<watch::Sender<bool>>,
    /// The reason why the port cannot connect.
    trouble: Trouble,
    /// The socket that was made, and its inode.
    made: Option<(PathBuf, u64)>,
    /// The interface that the port waits for, if it does.
    interface: Option<Arc<Watched>>,
    /// The process that drives the port's card, if it has one.
    card: Option<Arc<Driven>>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.task.abort();
        if let Some((path, inode)) = &self.made
            && std::fs::symlink_metadata(path).is_ok_and(|found| found.ino() == *inode)
        {
            // The next listener at this path removes the stale socket.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The reason why a port cannot connect to its peer, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<(String, Instant)>>>);

impl Trouble {
    /// Records another failed attempt. The log gets a line only if the reason is new.
    pub(super) fn meet(
        &self,
        place: &dyn fmt::Display,
        (switch, port): &(String, String),
        error: &io::Error,
    ) {
        let mut known = locked(&self.0);
        let reason = format!("cannot connect to {place}: {error}");
        if known.as_ref().is_none_or(|(known, _)| *known != reason) {
            tracing::warn!(event = "port", switch, port, %place, %error, "cannot connect; it is tried again and again");
            let since = known.as_ref().map_or_else(Instant::now, |(_, since)| *since);
            *known = Some((reason, since));
        }
    }

    /// Records the reason why the port cannot connect. The log gets a line only if the reason is
    /// new.
    pub(super) fn note(&self, (switch, port): &(String, String), reason: &str) {
        let mut known = locked(&self.0);
        if known.as_ref().is_none_or(|(known, _)| known != reason) {
            tracing::warn!(event = "port", switch, port, reason, "the port waits");
            *known = Some((reason.into(), Instant::now()));
        }
    }

    /// Notes that the trouble is over.
    pub(super) fn end(&self) {
        *locked(&self.0) = None;
    }
}

/// The peer's user; `None` for a peer on a network.
///
/// # Errors
/// The kernel's error.
pub fn peer(socket: &Descriptor) -> io::Result<Option<Client>> {
    if sockopt::socket_domain(socket)? != AddressFamily::UNIX {
        return Ok(None);
    }
    let peer = sockopt::socket_peercred(socket)?;
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    Ok(Some(Client { pid, uid: peer.uid.as_raw() }))
}

impl Waiting {
    /// Looks at the object of port `name` every second. A file system that does not answer stops
    /// `look` and nothing else.
    pub(super) fn watch(
        name: (String, String),
        to: &mpsc::Sender<Notice>,
        look: impl Fn() -> Option<String> + Clone + Send + 'static,
    ) -> Self {
        let to = to.clone();
        Self::new(None, |waiting, _, _| {
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(LOOK).await;
                    let Ok(gone) = tokio::task::spawn_blocking(look.clone()).await else { return };
                    let seen = gone.map_or(Seen::Fine, Seen::Gone);
                    if !Notice::tell(&to, &name, (waiting, seen)).await {
                        return;
                    }
                }
            })
        })
    }

    /// Makes the record of a port that waits in the task that `wait` starts. `made` is the socket
    /// that was made, and its inode.
    pub(super) fn new(
        made: Option<(PathBuf, u64)>,
        wait: impl FnOnce(u64, Arc<watch::Sender<bool>>, Trouble) -> JoinHandle<()>,
    ) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let (vacant, trouble) = (Arc::new(watch::Sender::new(true)), Trouble::default());
        let task = wait(number, Arc::clone(&vacant), trouble.clone());
        Self { number, task, vacant, trouble, made, interface: None, card: None }
    }

    /// Turns this into the record of a port that is attached to an interface.
    pub(super) fn of_interface(self, interface: Arc<Watched>) -> Self {
        // `Waiting` is dropped as a whole, so its fields cannot be moved out.
        let mut this = self;
        this.interface = Some(interface);
        this
    }

    /// Turns this into the record of a port whose card a process drives.
    pub(super) fn of_card(mut self, card: Arc<Driven>) -> Self {
        self.card = Some(card);
        self
    }

    /// The process that drives the port's card, if it has one.
    pub(super) fn card(&self) -> Option<&Driven> {
        self.card.as_deref()
    }

    /// The interface that the port waits for, if it does.
    pub(super) fn interface(&self) -> Option<&Watched> {
        self.interface.as_deref()
    }

    /// The reason why the port cannot connect to its peer, and for how long by now.
    #[must_use]
    pub fn trouble(&self) -> Option<(String, Duration)> {
        locked(&self.trouble.0).as_ref().map(|(why, since)| (why.clone(), since.elapsed()))
    }

    /// Records the reason why port `name` waits.
    pub(super) fn note(&self, name: &(String, String), reason: &str) {
        self.trouble.note(name, reason);
    }

    /// Records that the port works, as far as is known.
    pub(super) fn settle(&self) {
        self.trouble.end();
    }

    /// The number that distinguishes this wait from all others.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Records whether the port has no front end.
    pub fn set_vacant(&self, vacant: bool) {
        self.vacant.send_replace(vacant);
    }

    /// Listens at a place: a Unix socket for the daemon's user, the port's owner and the group that
    /// may open ports.
    ///
    /// # Errors
    /// The socket cannot be made there.
    pub fn listen(
        name: (String, String),
        place: &Place,
        (to, notices): (mpsc::Sender<Arrival>, mpsc::Sender<Notice>),
        ((owner, group), rights): (Users<'_>, Rights),
    ) -> Result<Self, ApiError> {
        let failed = |e| system(&format!("Cannot listen on {place}"), e);
        let path = match place {
            Place::Path(path) => path.clone(),
            Place::Inet(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
                let listener = Listener::Tcp(listener);
                return Ok(Self::new(None, |waiting, _, _| {
                    tokio::spawn(accept(listener, name, waiting, to))
                }));
            }
        };
        make_room(&path, SocketType::STREAM)?;
        let listener = UnixListener::bind(&path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        rights.make(&listener);
        let inode = share(&listener, &path, owner, group)?;
        // Waiting connections already hold what their peers have sent.
        let listener = Descriptor::from(OwnedFd::from(listener));
        let listener = descriptors::register(listener, Interest::READABLE).map_err(failed)?;
        let listener = Listener::Unix(listener);
        let made = (path, inode);
        Ok(Self::new(Some(made.clone()), |waiting, _, _| {
            tokio::spawn(async move {
                tokio::select! {
                    () = accept(listener, name.clone(), waiting, to) => {}
                    () = until_gone(made, &notices, &name, waiting) => {}
                }
            })
        }))
    }

    /// Connects to a place whenever the port has no front end, and retries until a peer listens
    /// there.
    #[must_use]
    pub fn connect(
        name: (String, String),
        place: Place,
        to: mpsc::Sender<Arrival>,
        occupied: bool,
        rights: Rights,
    ) -> Self {
        Self::new(None, |waiting, vacant, trouble| {
            vacant.send_replace(!occupied);
            tokio::spawn(async move {
                let mut look = vacant.subscribe();
                while look.wait_for(|vacant| *vacant).await.is_ok() {
                    let socket = connected(&place, rights, &name, &trouble).await;
                    vacant.send_replace(false);
                    let (switch, port) = name.clone();
                    let arrival = Arrival { switch, port, waiting, socket };
                    if to.send(arrival).await.is_err() {
                        return;
                    }
                    // A peer that refuses again and again is retried only after a pause.
                    tokio::time::sleep(RETRY.0).await;
                }
            })
        })
    }
}

/// Connects a socket to the peer at `remote`, so that it exchanges datagrams with that peer alone.
///
/// # Errors
/// The kernel's error.
pub(super) fn point_at(socket: impl AsFd, remote: &Path) -> io::Result<()> {
    Ok(rustix::net::connect(socket, &SocketAddrUnix::new(remote)?)?)
}

enum Listener {
    Unix(AsyncFd<Descriptor>),
    Tcp(tokio::net::TcpListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Descriptor> {
        match self {
            Self::Unix(listener) => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let accept = |fd: &Descriptor| Ok(rustix::net::accept_with(fd, flags)?);
                let socket = Descriptor::from(listener.async_io(Interest::READABLE, accept).await?);
                let peer = sockopt::socket_peercred(&socket)?;
                Ok(socket.charged_to(peer.uid.as_raw()))
            }
            Self::Tcp(listener) => without_delay(listener.accept().await?.0),
        }
    }
}

/// Batches are sent whole, so Nagle's algorithm would only delay them.
fn without_delay(stream: tokio::net::TcpStream) -> io::Result<Descriptor> {
    stream.set_nodelay(true)?;
    Ok(OwnedFd::from(stream.into_std()?).into())
}

/// Looks after the socket file that a port has made, until it is gone and the switch knows.
async fn until_gone(
    made: (PathBuf, u64),
    notices: &mpsc::Sender<Notice>,
    name: &(String, String),
    waiting: u64,
) {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(why) = objects::gone_socket(made.clone()).await
            && !Notice::tell(notices, name, (waiting, Seen::Gone(why))).await
        {
            return;
        }
    }
}

async fn accept(
    listener: Listener,
    (switch, port): (String, String),
    waiting: u64,
    to: mpsc::Sender<Arrival>,
) {
    loop {
        let socket = match listener.accept().await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::warn!(switch, port, %error, "cannot accept a front end");
                tokio::time::sleep(RETRY.1).await;
                continue;
            }
        };
        let arrival = Arrival { switch: switch.clone(), port: port.clone(), waiting, socket };
        if to.send(arrival).await.is_err() {
            return;
        }
        // A peer that reconnects again and again is accepted, and logged, only after a pause.
        tokio::time::sleep(RETRY.0).await;
    }
}

async fn connected(
    place: &Place,
    rights: Rights,
    name: &(String, String),
    trouble: &Trouble,
) -> Descriptor {
    let mut pause = RETRY.0;
    loop {
        let socket = match place {
            Place::Path(path) => connect(path, SocketType::STREAM, rights),
            Place::Inet(address) => {
                tokio::net::TcpStream::connect(address).await.and_then(without_delay)
            }
        };
        match socket {
            Ok(socket) => {
                trouble.end();
                return socket;
            }
            Err(error) => trouble.meet(place, name, &error),
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(RETRY.1);
    }
}

fn connect(path: &Path, kind: SocketType, rights: Rights) -> io::Result<Descriptor> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rights.make(&socket);
    let socket = Descriptor::from(socket);
    point_at(&socket, path)?;
    let uid = sockopt::socket_peercred(&socket).map_or(0, |peer| peer.uid.as_raw());
    Ok(socket.charged_to(uid))
}

/// Checks that a socket of this kind could be made at a place, and changes nothing.
///
/// # Errors
/// It could not be.
pub(super) fn check_place(place: &Place, kind: SocketType) -> Result<(), ApiError> {
    let failed = |e| system(&format!("Cannot listen on {place}"), e);
    match place {
        Place::Path(path) => {
            check_directory(path)?;
            find_stale(path, kind).map(drop)
        }
        Place::Inet(address) => {
            let bound = match kind {
                SocketType::DGRAM => std::net::UdpSocket::bind(address).map(drop),
                _ => std::net::TcpListener::bind(address).map(drop),
            };
            bound.map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => ApiError { code: ErrorCode::Busy, ..failed(error) },
                _ => failed(error),
            })
        }
    }
}

/// Checks that a file could be made at `path`.
///
/// # Errors
/// There is no such directory, or it cannot be written.
pub(super) fn check_directory(path: &Path) -> Result<(), ApiError> {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let flags = rustix::fs::AtFlags::EACCESS;
    match rustix::fs::accessat(rustix::fs::CWD, directory, access, flags) {
        Ok(()) if !directory.is_dir() => Err(ApiError::new(
            ErrorCode::BadRequest,
            format!("Cannot make {}: {} is no directory", path.display(), directory.display()),
            "name another path",
        )),
        made => made.map_err(|e| system(&format!("Cannot make {}", path.display()), e.into())),
    }
}

/// Removes a stale socket, on which no process listens. Anything else stays.
pub(super) fn make_room(path: &Path, kind: SocketType) -> Result<(), ApiError> {
    match find_stale(path, kind)? {
        true => std::fs::remove_file(path)
            .map_err(|e| system(&format!("Cannot listen on {}", path.display()), e)),
        false => Ok(()),
    }
}

/// Returns true if there is a stale socket at `path`, and false if there is nothing.
fn find_stale(path: &Path, kind: SocketType) -> Result<bool, ApiError> {
    let shown = path.display();
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.map_err(|e| system(&format!("Cannot listen on {shown}"), e))?,
    };
    let busy = |reason| Err(ApiError::new(ErrorCode::Busy, reason, "name another path"));
    if !found.file_type().is_socket() {
        return busy(format!("{shown} exists and is not a socket"));
    }
    match connect(path, kind, Rights::Refused) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Ok(socket) if directory::is_of_predecessor(&socket) => Ok(true),
        _ => busy(format!("Somebody listens on {shown} already")),
    }
}

/// Lets the port's owner and the group that may open ports use the socket. Returns its file's
/// inode.
pub(super) fn share(
    socket: impl AsFd,
    path: &Path,
    owner: Option<u32>,
    group: Option<&str>,
) -> Result<u64, ApiError> {
    let failed = |e| system(&format!("Cannot share {}", path.display()), e);
    let group = group.map(|group| group_number(group).map_err(|e| failed(io::Error::other(e))));
    let group = group.transpose()?;
    let file = BoundFile::of(socket, path).map_err(failed)?;
    file.share(owner, group).map_err(failed)?;
    Ok(file.inode())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: (Users<'_>, Rights) = ((None, None), Rights::Accepted);

    fn name() -> (String, String) {
        ("vale0".into(), "vm1".into())
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of_port(dir.path(), "vale0", "vm1", None);
        let Place::Path(socket) = place.clone() else { panic!("{place}") };
        drop(UnixListener::bind(&socket).unwrap());
        let (to, mut from) = mpsc::channel(1);
        let to = (to, mpsc::channel(1).0);
        let waiting = Waiting::listen(name(), &place, to.clone(), OURS).unwrap();
        let second = Waiting::listen(name(), &place, to.clone(), OURS);
        assert_eq!(second.unwrap_err().code, ErrorCode::Busy);
        // The check for a live listener came first.
        while let Ok(Some(arrival)) =
            tokio::time::timeout(Duration::from_millis(200), from.recv()).await
        {
            assert_eq!((arrival.port.as_str(), arrival.waiting), ("vm1", waiting.number()));
        }
        let _front_end = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        assert_eq!(from.recv().await.unwrap().switch, "vale0");
        drop(waiting);
        assert!(!socket.exists());
        std::fs::write(&socket, b"a file").unwrap();
        let file = Waiting::listen(name(), &place, to, OURS);
        assert_eq!(file.unwrap_err().code, ErrorCode::Busy);
        assert!(socket.exists());
    }

    #[tokio::test]
    async fn a_client_connects_once_there_is_a_front_end_and_again_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("qemu.sock");
        let (to, mut from) = mpsc::channel(1);
        let waiting =
            Waiting::connect(name(), Place::Path(socket.clone()), to, false, Rights::Accepted);
        tokio::time::sleep(Duration::from_millis(60)).await;
        let _listener = UnixListener::bind(&socket).unwrap();
        assert_eq!(from.recv().await.unwrap().waiting, waiting.number());
        let more = tokio::time::timeout(Duration::from_millis(200), from.recv()).await;
        assert!(more.is_err(), "connected though the port has a front end");
        waiting.set_vacant(true);
        assert!(from.recv().await.is_some());
    }
}
