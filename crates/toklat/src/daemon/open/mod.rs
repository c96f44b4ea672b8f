//! What the supervisor does for each kind of port, one file for a kind: it opens what data processes may not, and waits
//! where somebody is to come.

mod dgram;
mod null;
mod pcap;
mod ring;
mod stream;
pub(crate) mod tap;
mod vfio_user;
mod vhost_user;
mod vxlan;

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;

use dataplane::config::Attachment;
use jail::strangers::Descriptor;

use self::null::Null;
use self::ring::Ring;
use super::front_ends::{Rights, Waiting};
use super::tunnels::{Tunnel, Tunnels};
use crate::api::{ApiError, PortKind};

/// What becomes of a file that a port writes, and that has something in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Emptied: an operator asks for a new port.
    Emptied,
    /// Appended to: the port goes on, after a restart or what had failed.
    Kept,
}

/// Who may use a socket beside the daemon's user: the port's owner, and the group that may open ports.
pub type Users<'a> = (Option<u32>, Option<&'a str>);

/// What is done while others are served.
pub type Future<'a, T> =
    Pin<Box<dyn std::future::Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// The port that is opened, and for whom.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// Its switch and its name there.
    pub name: (&'a str, &'a str),
    /// Its largest payload, in bytes.
    pub mtu: u16,
    /// What becomes of a file that it writes.
    pub written: Written,
    /// Who may use a socket of its.
    pub users: Users<'a>,
    /// What tunnels of the host share.
    pub tunnels: &'a Arc<Tunnels>,
}

/// What a port is attached to, and what is kept for it.
#[derive(Debug)]
pub struct Opened {
    /// What the data process is told.
    pub attachment: Attachment,
    /// What it is given.
    pub fds: Vec<Descriptor>,
    /// Its part in what tunnels share.
    pub tunnel: Option<Tunnel>,
}

impl Opened {
    /// Nothing yet: who is to be at the other end has not come.
    const fn vacant() -> Self {
        Self { attachment: Attachment::Vacant, fds: Vec::new(), tunnel: None }
    }

    /// Something whose descriptors no stranger sends to.
    fn ours(attachment: Attachment, fds: Vec<OwnedFd>) -> Self {
        Self { attachment, fds: fds.into_iter().map(Descriptor::ours).collect(), tunnel: None }
    }
}

/// The socket at which a port waits for a front end or a peer.
#[derive(Clone, Copy, Debug)]
pub struct Socket<'a> {
    /// Where it is, if that is configured.
    pub named: Option<&'a str>,
    /// The other end listens.
    pub client: bool,
    /// Front ends send memory and eventfds; frames come without descriptors.
    pub rights: Rights,
}

/// What the supervisor does for a kind of port. What a kind does not say is that of one that waits for nobody.
pub trait Open {
    /// Opens what a port is attached to. One that waits for who is to be at the other end is vacant.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open<'a>(&'a self, at: Opening<'a>) -> Future<'a, Opened> {
        let _ = at;
        Box::pin(std::future::ready(Ok(Opened::vacant())))
    }

    /// True if what an earlier supervisor opened is what is configured.
    fn is(&self, attachment: &Attachment) -> bool;

    /// The socket at which somebody is waited for.
    fn socket(&self) -> Option<Socket<'_>> {
        None
    }

    /// What the data process is told of, and given beside, the connection of who came to the socket.
    ///
    /// # Errors
    /// There is no memory.
    fn connected(&self) -> Result<(Attachment, Option<OwnedFd>), ApiError> {
        Ok((Attachment::Vacant, None))
    }

    /// Keeps the descriptors of a port called `name` in its switch pointed at the peer.
    ///
    /// # Errors
    /// What the kernel said.
    fn follow(
        &self,
        name: (String, String),
        fds: &[Descriptor],
    ) -> Result<Option<Waiting>, ApiError> {
        let _ = (name, fds);
        Ok(None)
    }

    /// The file that frames are written into.
    fn file(&self) -> Option<&str> {
        None
    }

    /// True if [`open`](Self::open) makes a socket for those who may use it: it is opened again when others may.
    fn is_for_users(&self) -> bool {
        false
    }

    /// Tells what a port is attached to of a new MTU, where that matters.
    ///
    /// # Errors
    /// The interface is gone, or the daemon may not change it.
    fn set_mtu(&self, mtu: u16) -> Future<'_, ()> {
        let _ = mtu;
        Box::pin(std::future::ready(Ok(())))
    }
}

macro_rules! define {
    (
        plain { $($(#[$meta:meta])* $Plain:ident $plain:literal,)* }
        set { $($Set:ident $set:literal,)* }
    ) => {
        /// What is done for a kind.
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
    /// That of a port of nobody's.
    fn of_test() -> Self {
        static TUNNELS: std::sync::LazyLock<Arc<Tunnels>> = std::sync::LazyLock::new(Arc::default);
        let (name, written) = (("vale0", "p1"), Written::Kept);
        Self { name, mtu: 1500, written, users: (None, None), tunnels: &TUNNELS }
    }
}
