//! Messages between the library in a program and the daemon: one [`Ask`] and one [`Answer`] on a
//! connection to the attach socket.
//!
//! | ask | its descriptors | answer's descriptors |
//! |---|---|---|
//! | [`kind::OPEN`] | - | token: what the program gets for `/dev/netmap` |
//! | [`kind::CONTROL`] | token; with the option EXTMEM the memory file, too | of a descriptor that is bound then: memory file, and its wake-ups |
//! | [`kind::IDENTIFY`] | token | as above |
//!
//! A token is known by its socket cookie, which all its copies in all processes share. What a bound
//! descriptor's wake-ups are depends on [`Bound::port`]:
//!
//! The memory file is followed by the region's bell, an eventfd that wakes zero-copy monitors.
//!
//! | port | further wake-ups |
//! |---|---|
//! | [`port::SWITCHED`] | the token of the switch's port, in both directions; on a trusted switch, to the program only; then that of the port of an interface's host rings, if it has any |
//! | [`port::PIPE`] | eventfd that wakes this end, eventfd that wakes the other |
//! | [`port::SILENT`], [`port::WATCHER`] | - |
//! | [`port::CARD`] | eventfd that the card's interrupts signal, VFIO's files of the card: device, group, container |

use netring::layout::{Geometry, RingSpec};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{MOST_BODY, NAME, Offsets, PoolsInfo, option};

/// Version of these messages.
pub const VERSION: u16 = 3;
/// Operation code that distinguishes an [`Ask`] from other requests of the attach socket.
pub const OP: u16 = netring::attach::op::NETMAP;

/// Kinds of questions.
pub mod kind {
    /// A token.
    pub const OPEN: u16 = 1;
    /// A request of the new interface.
    pub const CONTROL: u16 = 2;
    /// Asks what a token is bound to.
    pub const IDENTIFY: u16 = 3;
}

/// Kinds of ports, by the owner of their rings.
pub mod port {
    /// A port of a switch.
    pub const SWITCHED: u32 = 1;
    /// An end of a pipe.
    pub const PIPE: u32 = 2;
    /// A port without a peer: sent frames are dropped, and none arrive.
    pub const SILENT: u32 = 3;
    /// A zero-copy monitor, which the region's bell wakes.
    pub const WATCHER: u32 = 4;
    /// A card without a driver in the kernel. The process that syncs its rings drives it.
    pub const CARD: u32 = 5;
}

/// Options that travel with a request.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Options {
    /// One bit for each [`option`] that was given: `1 << option`.
    pub given: u32,
    /// Zero.
    pub reserved: u32,
    /// Offsets.
    pub offsets: Offsets,
    /// Requested layout of the program's memory.
    pub extmem: PoolsInfo,
    /// Result of each option, by its number: 0 or an error number.
    pub status: [u32; option::MAX as usize],
}

impl Options {
    /// Returns options of which none is given, with status "not supported".
    #[must_use]
    pub fn none() -> Self {
        let not_supported = rustix::io::Errno::OPNOTSUPP.raw_os_error().unsigned_abs();
        Self { status: [not_supported; option::MAX as usize], ..Self::new_zeroed() }
    }

    /// Returns true if this option was given.
    #[must_use]
    pub fn has(&self, option: u32) -> bool {
        self.given >> option & 1 != 0
    }
}

/// A question.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Ask {
    /// [`VERSION`].
    pub version: u16,
    /// [`OP`].
    pub op: u16,
    /// One of [`kind`].
    pub kind: u16,
    /// One of [`crate::abi::reqtype`].
    pub reqtype: u16,
    /// `nr_name`.
    pub name: [u8; NAME],
    /// The request's body.
    pub body: [u8; MOST_BODY],
    /// Its options.
    pub options: Options,
}

impl Ask {
    /// Makes a question with this kind and type; everything else is zero.
    #[must_use]
    pub fn new(kind: u16, reqtype: u16) -> Self {
        let options = Options::none();
        Self { version: VERSION, op: OP, kind, reqtype, options, ..Self::new_zeroed() }
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u16,
    /// Zero.
    pub reserved: u16,
    /// 0, or an error number.
    pub status: i32,
    /// `nr_name`, which some requests write.
    pub name: [u8; NAME],
    /// The body to write back.
    pub body: [u8; MOST_BODY],
    /// The options to write back.
    pub options: Options,
    /// The descriptor's binding; all zero if there is none.
    pub bound: Bound,
}

impl Answer {
    /// Makes an answer to `ask` that changes nothing.
    #[must_use]
    pub fn to(ask: &Ask) -> Self {
        let Ask { name, body, options, .. } = *ask;
        Self { version: VERSION, name, body, options, ..Self::new_zeroed() }
    }
}

/// How many consecutive buffers hold what the drivers of a card share: its descriptors, and who
/// drives it.
pub const CARD_BUFFERS: u32 = 16;

/// What a descriptor is bound to.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Bound {
    /// One of [`port`]; 0 for a descriptor that is not bound.
    pub port: u32,
    /// Layout of the region.
    pub geometry: Geometry,
    /// The send rings that the descriptor syncs.
    pub tx: RingSpec,
    /// The receive rings that the descriptor syncs.
    pub rx: RingSpec,
    /// For pipes: receive rings of the other end, the twins of `tx`. For cards: the card's receive
    /// ring.
    pub twin_rx: RingSpec,
    /// For pipes: send rings of the other end, the twins of `rx`. For cards: the card's send ring.
    pub twin_tx: RingSpec,
    /// The host rings that the descriptor syncs: those that send.
    pub host_tx: RingSpec,
    /// The host rings that receive.
    pub host_rx: RingSpec,
    /// Where slots go that are forwarded from the interface to its host: one ring, or none.
    pub up: RingSpec,
    /// Where slots go that are forwarded from the host: one ring, or none unless all send rings of
    /// the interface are the descriptor's.
    pub down: RingSpec,
    /// On a trusted switch: the port's number, and one; else 0.
    pub trusted: u32,
    /// For cards: the first of the [`CARD_BUFFERS`] buffers with what the drivers of all processes
    /// share.
    pub descriptors: u32,
    /// Zero.
    pub reserved: u32,
    /// The bits of `nr_flags` that affect syncs.
    pub flags: u64,
    /// On a trusted switch: the port's name with the switch's, padded with zeros.
    pub name: [[u8; NAME / 2]; 2],
}

const _: () = assert!(size_of::<Ask>() < 1024 && size_of::<Answer>() < 1024);
const _: () = assert!(size_of::<Ask>() > size_of::<netring::attach::Request>());
