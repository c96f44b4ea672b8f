//! What a kind of port provides, and the kinds that need neither sockets nor devices.
//!
//! ```text
//!   ring/   clients of shared memory          null    ports without an owner
//! ```

mod bells;
mod exit;
pub mod null;
pub mod ring;

use std::os::fd::BorrowedFd;

use netring::layout::Fault;
use port::{Ingress, Nanos};

pub use self::bells::{Bells, QueueBells, Side, WakeOutcome};
pub use self::exit::Exit;

/// An owner's access to registers, as seen by the worker that polls the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAccess {
    /// The owner continues without a reply.
    Posted,
    /// The owner waits for the reply.
    AwaitsReply,
}

/// The result of [`Source::attend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a port is attended again when it says"]
pub struct Attended {
    /// When to attend again while the port is polled. This does not apply to an armed port that was
    /// woken.
    pub again: Nanos,
    /// The owner's last register access, if any. Others are likely to follow soon.
    pub access: Option<RegisterAccess>,
}

impl Attended {
    /// Attend again in the next turn.
    #[inline]
    pub const fn next_turn(now: Nanos) -> Self {
        Self { again: now, access: None }
    }
}

/// The sending side of a port, as its home worker sees it: one ingress for each send queue, and
/// what it takes to attend and to sleep.
pub trait Source: Send {
    /// Send queues.
    fn queues(&self) -> usize;

    /// Send queue `queue`; `Some` for all numbers below [`queues`](Self::queues).
    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress>;

    /// The descriptors to poll while the port is armed: edge-triggered, readable when there is
    /// work.
    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Called when a worker begins to serve the port. What happened while none did must be looked
    /// at.
    fn begin(&mut self) {}

    /// True if the port has work other than frames, for [`attend`](Self::attend). Read once.
    fn attends(&self) -> bool {
        false
    }

    /// Does the work that is not for frames: sockets, registers and timers.
    fn attend(&mut self, _now: Nanos) -> Attended {
        Attended { again: Nanos(u64::MAX), access: None }
    }

    /// Asks the owner to wake us. Returns true if there is work already, or new work came while we
    /// asked; then the port is not armed.
    fn arm(&mut self, _now: Nanos) -> bool {
        false
    }

    /// When an armed port will have work without being woken.
    fn deadline(&self, _now: Nanos) -> Option<Nanos> {
        None
    }

    /// True if the owner still waits to be woken for what it sent in queue `queue`.
    fn is_awaited(&self, _queue: usize) -> bool {
        true
    }

    /// Undoes [`arm`](Self::arm), and resets the descriptor that became readable.
    fn disarm(&mut self) {}

    /// Reads the positions again, because another process has served the port since, and repairs
    /// what that left if it died. No process may serve the port meanwhile.
    fn refresh(&mut self) {}

    /// True if the owner cannot send more before it is served.
    fn is_full(&self) -> bool {
        false
    }

    /// Tells the owner that its user is at fault, without waking it.
    fn give_up(&mut self, _fault: Fault) {}
}

/// The two halves of a port, made from an attachment.
pub struct Attached {
    /// The source of the frames that the port's owner sends.
    pub source: Box<dyn Source>,
    /// One egress for each receive queue.
    pub egresses: Vec<Exit>,
    /// How the port's owner is woken.
    pub bells: Bells,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Attached({} send, {} receive queues)", self.source.queues(), self.egresses.len())
    }
}

/// The reason why an attachment could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The region is not divided as its owner said, or cannot be mapped.
    #[error("The region cannot be used")]
    Region(#[from] shmem::RegionError),
    /// The region's division is out of range.
    #[error("The region's division cannot be used")]
    Geometry(#[from] netring::layout::GeometryError),
    /// A descriptor is missing or of the wrong kind.
    #[error("Expected {expected} with the attachment")]
    Descriptors {
        /// The descriptors that were expected.
        expected: &'static str,
    },
    /// The state memory has no counters for the port.
    #[error("The switch's state has no counters for the port")]
    Counters,
    /// A monitor with send rings.
    #[error("A monitor sends nothing; open it without send rings")]
    MonitorSends,
    /// Something that only this kind of port needs cannot be used.
    #[error("{what} cannot be attached")]
    Part {
        /// The part that cannot be used, as the beginning of a sentence.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A word of the port's links is invalid.
    #[error("The port's link is invalid")]
    Link(#[from] link::LinkError),
    /// The forwarding table has no room for the port's addresses.
    #[error(
        "The forwarding table has no room for {0}, which the port was given; raise fdb_entries, or give \
         it fewer addresses or VLANs"
    )]
    TableFull(frame::Mac),
    /// This build has no model of the NIC.
    #[error("This build has no model of a {0}")]
    Model(&'static str),
    /// The device's registers do not fit the state memory.
    #[error("There is no room for the registers of a {0} in the switch's state")]
    Registers(&'static str),
    /// The port's number is beyond the switch's last port.
    #[error("The switch has no port number {0}")]
    Number(u16),
}
