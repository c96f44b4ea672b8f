//! The messages between a client and the daemon on the attach socket.
//!
//! A SEQPACKET socket carries one [`Request`] with its descriptors, then one [`Reply`] with its
//! own. The connection may be closed after a reply. The reply carries the port's *token*, a socket:
//! each side wakes the other with a byte on it, and the port ends with its last close anywhere.
//!
//! | request | its descriptors | reply's descriptors |
//! |---|---|---|
//! | open a port or a monitor | memory file | token |
//! | make a pipe | memory file | token, own eventfd, peer's eventfd |
//! | open the other end of a pipe | - | token, own eventfd, peer's eventfd, memory file |
//! | name the next port | - | - |
//! | join a trusted switch | - | state memory |
//! | find a port of a trusted switch | - | memory file, switch's end of the token |

use std::path::PathBuf;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::layout::{Geometry, RingSpec};

/// Version of these messages.
pub const VERSION: u16 = 1;
/// Name of the socket in the runtime directory.
pub const SOCKET: &str = "attach.sock";
/// Bytes of a port's name, with its switch (`NETMAP_REQ_IFNAMSIZ`).
pub const NAME: usize = 64;

/// The directory of the daemon's sockets: `$TOKLAT_DIR`, else `$XDG_RUNTIME_DIR/toklat`, else
/// `/run/toklat`. An ordinary user without these variables, and on a machine where no daemon serves
/// `/run/toklat`, has `~/.toklat`.
#[must_use]
pub fn runtime_directory() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let system = PathBuf::from("/run/toklat");
    let own = set("HOME")
        .filter(|_| !rustix::process::geteuid().is_root())
        .map(|home| home.join(".toklat"));
    let is_used = |dir: &PathBuf| dir.join(SOCKET).exists();
    set("TOKLAT_DIR")
        .or_else(|| set("XDG_RUNTIME_DIR").map(|dir| dir.join("toklat")))
        .or_else(|| own.filter(|own| is_used(own) || !is_used(&system)))
        .unwrap_or(system)
}

/// The operations that a client can ask for.
pub mod op {
    /// Open a port; with [`super::flags`] a monitor of one.
    pub const OPEN: u16 = 1;
    /// Open an end of a pipe that exists; status `ENOENT` if it does not.
    pub const OPEN_PIPE: u16 = 2;
    /// Make a pipe and open one end; status `EEXIST` if it exists.
    pub const MAKE_PIPE: u16 = 3;
    /// A message of netmap's interface, which is not a [`super::Request`]: see crate `netmap`.
    pub const NETMAP: u16 = 4;
    /// Name the port after this one that the user or root has, or for root any, in the order of
    /// switch and name; status `ENOENT` after the last. The reply's message is the name.
    pub const NEXT: u16 = 5;
    /// Join a trusted switch; the name is the switch's. The reply says how its state memory is
    /// divided: `port` has the most ports, `max_frame` the entries of the forwarding table,
    /// `buf_usable` the most frames of a turn.
    pub const JOIN: u16 = 6;
    /// Find an open port of a trusted switch.
    pub const MEMBER: u16 = 7;
}

/// What a reply says besides its numbers.
pub mod reply {
    /// The port is of a trusted switch: its owner forwards what it sends.
    pub const TRUSTED: u8 = 1;
}

/// How a port is opened.
pub mod flags {
    /// A monitor: copies of what the port sends.
    pub const MONITOR_TX: u32 = 0x100;
    /// A monitor: copies of what the port receives.
    pub const MONITOR_RX: u32 = 0x200;
    /// The port alone. Each port has one owner, so it changes nothing; monitors are still allowed.
    pub const EXCLUSIVE: u32 = 0x800;
    /// A port of an existing switch: no switch is made.
    pub const EXISTING: u32 = 0x1000;
    /// A port that is made for this client forwards as VALE does: no limit of floods, addresses or
    /// length except those of the switch.
    pub const UNLIMITED: u32 = 0x2000;
}

/// A request: 152 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// [`VERSION`].
    pub version: u16,
    /// One of [`op`].
    pub op: u16,
    /// Of [`flags`].
    pub flags: u32,
    /// `switch:port`, padded with zeros; for pipes with `{` or `}` and the pipe's id.
    pub name: [u8; NAME],
    /// How the region is divided.
    pub geometry: Geometry,
    /// Send rings of the port; for pipes, those of the `{` end, mirrored by the other's receive
    /// rings.
    pub tx: RingSpec,
    /// Receive rings of the port or the `{` end.
    pub rx: RingSpec,
    /// Pipes: send rings of the `}` end.
    pub peer_tx: RingSpec,
    /// Pipes: receive rings of the `}` end.
    pub peer_rx: RingSpec,
    /// Bytes of a buffer the switch may fill (at most `geometry.buf_size`).
    pub buf_usable: u32,
    /// The offload requests that slots are to carry ([`frame::OffloadSet::bits`]); other bits are
    /// zero. Of a pipe, both ends ask for the same.
    pub offloads: u32,
}

/// A reply: 240 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// [`VERSION`] of the daemon.
    pub version: u16,
    /// The offload requests that slots carry: those that were asked for and granted.
    pub offloads: u8,
    /// Of [`reply`].
    pub flags: u8,
    /// 0, or an errno.
    pub status: i32,
    /// The port's number in its switch.
    pub port: u32,
    /// Bytes of the largest frame that the port accepts.
    pub max_frame: u32,
    /// For the second end of a pipe: what the first one asked for.
    pub geometry: Geometry,
    /// For the second end of a pipe: its receive rings.
    pub tx: RingSpec,
    /// Likewise, as seen from this end.
    pub rx: RingSpec,
    /// For the second end of a pipe: the receive rings of the other end, twins of this end's send
    /// rings.
    pub peer_rx: RingSpec,
    /// Likewise: bytes of a buffer that frames use.
    pub buf_usable: u32,
    /// The reason for a failure and the remedy, in words, padded with zeros.
    pub message: [u8; 160],
}

const _: () = assert!(size_of::<Request>() == 152);
const _: () = assert!(size_of::<Reply>() == 240);

impl Request {
    /// A request of zeros except for the version, for `op` on `name` (truncated to [`NAME`] bytes).
    #[must_use]
    pub fn new(op: u16, name: &str) -> Self {
        let mut request = Self { version: VERSION, op, ..Self::new_zeroed() };
        copy_text(&mut request.name, name);
        request
    }

    /// The name, if it is valid UTF-8.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        text(&self.name)
    }
}

impl Reply {
    /// A refusal: an errno, and the reason and the remedy in words.
    #[must_use]
    pub fn refused(errno: i32, message: &str) -> Self {
        let mut reply = Self { version: VERSION, status: errno, ..Self::new_zeroed() };
        copy_text(&mut reply.message, message);
        reply
    }

    /// The name of a port.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let mut reply = Self { version: VERSION, ..Self::new_zeroed() };
        copy_text(&mut reply.message, name);
        reply
    }

    /// The words of a refusal.
    #[must_use]
    pub fn message(&self) -> &str {
        text(&self.message).unwrap_or("(no text)")
    }
}

fn copy_text(to: &mut [u8], text: &str) {
    let mut len = text.len().min(to.len());
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    to[..len].copy_from_slice(&text.as_bytes()[..len]);
}

fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    std::str::from_utf8(&bytes[..end]).ok()
}
