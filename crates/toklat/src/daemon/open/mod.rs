//! What the supervisor does for each kind of port, one file for a kind. It opens what data
//! processes may not open, and waits for peers.

mod card;
mod dgram;
mod host;
mod interface;
mod null;
mod pcap;
mod ring;
mod stream;
pub(crate) mod tap;
mod vfio_user;
mod vhost_user;
mod vxlan;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use dataplane::config::Attachment;
use jail::strangers::Descriptor;
use rustix::net::SocketType;
use tokio::sync::mpsc;
use topology::Place;

use self::null::Null;
use self::ring::Ring;
pub use super::cards::Start;
pub use super::front_ends::Users;
use super::front_ends::{Rights, Waiting, check_place};
use super::objects::Notice;
use super::system;
use super::tunnels::{Tunnel, Tunnels};
use crate::api::{ApiError, PortKind};

/// What happens to a file that a port writes, if the file has content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Emptied: an operator adds a new port.
    Emptied,
    /// Appended to: the port resumes, after a restart or a failure.
    Kept,
}

/// A future that runs while other tasks are served.
pub type Future<'a, T> =
    Pin<Box<dyn std::future::Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// Does what a file system that does not answer may stop.
fn blocking<T: Send + 'static>(
    what: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Future<'static, T> {
    let done = tokio::task::spawn_blocking(what);
    Box::pin(async move {
        done.await.unwrap_or_else(|e| Err(system("Cannot look at it", std::io::Error::other(e))))
    })
}

/// The port that is opened, and its users.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The name of the switch, and that of the port.
    pub name: (&'a str, &'a str),
    /// The port's largest payload, in bytes.
    pub mtu: u16,
    /// What happens to a file that the port writes.
    pub written: Written,
    /// Which users may use the port's socket.
    pub users: Users<'a>,
    /// The state that the host's tunnels share.
    pub tunnels: &'a Arc<Tunnels>,
    /// The directory for captures of clients over TCP.
    pub captures: &'a Path,
}

/// A port that is followed: see [`Open::follow`].
#[derive(Clone, Copy, Debug)]
pub struct Following<'a> {
    /// What the port is attached to.
    pub attachment: &'a Attachment,
    /// Its descriptors.
    pub fds: &'a [Descriptor],
    /// Where an object that is gone or back is announced.
    pub notices: &'a mpsc::Sender<Notice>,
    /// How a card's process is started.
    pub start: Start<'a>,
    /// The port's largest payload, in bytes.
    pub mtu: u16,
}

/// The attachment of a port, and what is kept for it.
#[derive(Debug)]
pub struct Opened {
    /// The description sent to the data process.
    pub attachment: Attachment,
    /// The descriptors sent to the data process.
    pub fds: Vec<Descriptor>,
    /// The port's part in the state that tunnels share.
    pub tunnel: Option<Tunnel>,
}

impl Opened {
    /// An attachment without a peer yet.
    const fn vacant() -> Self {
        Self { attachment: Attachment::Vacant, fds: Vec::new(), tunnel: None }
    }

    /// An attachment whose descriptors untrusted users cannot send descriptors to.
    fn ours(attachment: Attachment, fds: Vec<OwnedFd>) -> Self {
        Self { attachment, fds: fds.into_iter().map(Descriptor::ours).collect(), tunnel: None }
    }
}

/// The socket at which a port waits for a front end or a peer.
#[derive(Clone, Copy, Debug)]
pub struct Socket<'a> {
    /// The configured place of the socket, if there is one.
    pub named: Option<&'a str>,
    /// The other end listens, and this end connects.
    pub client: bool,
    /// Front ends send memory and eventfds; frames come without descriptors.
    pub rights: Rights,
}

impl Socket<'_> {
    /// What a port with this socket takes of the host.
    const fn reach(&self) -> Reach<'static> {
        match (self.named, self.client) {
            (None, false) => Reach::Switch,
            (Some(_), _) => Reach::Host("it names a socket"),
            (None, true) => Reach::Host("it connects to a socket"),
        }
    }
}

/// What a port takes of the host, beside its place in a switch. A caller over TCP opens what is
/// [`Reach::Switch`], and captures in one directory: see [`Caller`](super::caller::Caller).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    /// Nothing: its client or front end lends memory, at a socket in the runtime directory.
    Switch,
    /// A file of frames.
    Capture(&'a str),
    /// A part of the host, as the reason to refuse it.
    Host(&'static str),
}

/// What the supervisor does for a kind of port. The defaults suit a kind that waits for no peer.
pub trait Open {
    /// What the port takes of the host. Each kind answers for itself.
    fn reach(&self) -> Reach<'_>;

    /// Opens what a port is attached to. A port that waits for its peer is vacant.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let _ = at;
        Box::pin(std::future::ready(Ok(Opened::vacant())))
    }

    /// Checks that a new port with this MTU could be opened, and changes nothing.
    ///
    /// # Errors
    /// It could not be; [`ErrorCode::Busy`](crate::api::ErrorCode::Busy) if something else has what
    /// it is to be attached to.
    fn probe(&self, mtu: u16) -> Future<'_, ()> {
        let _ = mtu;
        let named = self.socket().filter(|socket| !socket.client).and_then(|socket| socket.named);
        let place = named.map(Place::of);
        blocking(move || place.map_or(Ok(()), |place| check_place(&place, SocketType::STREAM)))
    }

    /// Returns true if what an earlier supervisor opened matches the configuration.
    fn is(&self, attachment: &Attachment) -> bool;

    /// The socket at which the port waits for its peer.
    fn socket(&self) -> Option<Socket<'_>> {
        None
    }

    /// The attachment for a peer that has connected, and a descriptor beside the connection if the
    /// kind needs one.
    ///
    /// # Errors
    /// Memory for the port cannot be made.
    fn connected(&self) -> Result<(Attachment, Option<OwnedFd>), ApiError> {
        Ok((Attachment::Vacant, None))
    }

    /// Keeps the descriptors of port `name` connected to its peer, or watches what the port is
    /// attached to, or keeps a process running that is the port's client.
    ///
    /// # Errors
    /// The kernel's error.
    fn follow(
        &self,
        name: (String, String),
        at: Following<'_>,
    ) -> Result<Option<Waiting>, ApiError> {
        let _ = (name, at);
        Ok(None)
    }

    /// The reason if the kernel has told a descriptor that its device is gone. It never blocks.
    fn lost(&self, fds: &[Descriptor]) -> Option<String> {
        let _ = fds;
        None
    }

    /// Returns true if the port takes a part of the host away from it. Such a port is closed before
    /// it is opened again, and while its data process cannot be started.
    fn takes_from_host(&self) -> bool {
        false
    }

    /// Returns true if what was opened serves one data process only.
    fn serves_one_process(&self, attachment: &Attachment) -> bool {
        let _ = attachment;
        false
    }

    /// Opens again what [serves one data process only](Self::serves_one_process), for the next one.
    ///
    /// # Errors
    /// It cannot be opened.
    fn renew(&self, attachment: Attachment, fds: Vec<Descriptor>) -> Future<'_, Opened> {
        Box::pin(std::future::ready(Ok(Opened { attachment, fds, tunnel: None })))
    }

    /// The file that the port writes frames into.
    fn file(&self) -> Option<&str> {
        None
    }

    /// Returns true if [`open`](Self::open) makes a socket for the port's users. It is opened again
    /// when the users change.
    fn is_for_users(&self) -> bool {
        false
    }

    /// Returns true if the port has to be opened again when its MTU changes.
    fn is_opened_for_mtu(&self) -> bool {
        false
    }

    /// Has the device that the port is attached to take packets as long as this, if it has an MTU.
    ///
    /// # Errors
    /// The interface is gone, its device does not allow this MTU, or the daemon may not change it.
    fn set_mtu(&self, mtu: u16, attachment: &Attachment) -> Future<'_, ()> {
        let _ = (mtu, attachment);
        Box::pin(std::future::ready(Ok(())))
    }
}

macro_rules! define {
    (
        plain { $($(#[$meta:meta])* $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        /// Returns the implementation for a kind.
        #[must_use]
        pub fn of(kind: &PortKind) -> &dyn Open {
            match kind {
                $(PortKind::$Plain => &$Plain,)*
                $(PortKind::$Set(settings) => settings,)*
            }
        }
    };
}
topology::with_kinds!(define);

#[cfg(test)]
impl Opening<'static> {
    /// Arguments for a test's port, which has no owner.
    fn of_test() -> Self {
        static TUNNELS: std::sync::LazyLock<Arc<Tunnels>> = std::sync::LazyLock::new(Arc::default);
        let (name, written) = (("vale0", "p1"), Written::Kept);
        let captures = Path::new("/captures");
        Self { name, mtu: 1500, written, users: (None, None), tunnels: &TUNNELS, captures }
    }
}
