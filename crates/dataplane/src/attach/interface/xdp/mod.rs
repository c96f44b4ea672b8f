//! An interface by AF_XDP sockets (Linux, `Documentation/networking/af_xdp.rst`).
//!
//! Frames lie in memory of ours (UMEM), one for each queue. The kernel, or the card, writes those
//! that arrive and reads those that leave; four rings carry their places:
//!
//! ```text
//!   UMEM:  | chunks for frames that arrive     | chunks for frames that leave            |
//!            ^ fill: free ones                   ^ completion: those that have left
//!            v receive: with frames              v transmit: with frames
//! ```
//!
//! The home worker owns the first half with its rings, the holder of the egress lock the second.
//! A socket serves one data process: its successor gets others.

mod egress;
mod ingress;
mod ring;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use port::OffloadSet;
use shmem::{Mapping, Memfd};
use turn::attach::{AttachError, Attached, Bells, Exit};
use turn::state::PortState;

use self::egress::{Behind, Sending, XdpEgress};
use self::ingress::{XdpIngress, XdpSource};
use self::ring::{Entry, Ring};
use super::Umem;

/// `AF_XDP`: neither rustix nor libc names it for `socket_domain`.
const AF_XDP: u16 = 44;
/// Bytes before a frame that leaves: `struct xsk_tx_metadata`, and room to align the frame.
pub const TX_HEADROOM: u32 = 64;
/// Bytes of `struct xsk_tx_metadata`, which ends where the frame begins.
pub const TX_METADATA: u32 = 24;

/// `linux/if_xdp.h`: where a socket's rings are mapped, in the order of [`Umem::rings`].
const PLACES: [u64; 4] = [0, 0x8000_0000, 0x1_0000_0000, 0x1_8000_0000];

/// Attaches an interface by its AF_XDP sockets. Descriptors: a socket for each queue, a memory file
/// for each, the map of the sockets and the link of the program. The last two are kept for the
/// supervisor.
///
/// # Errors
/// [`AttachError`] when a descriptor is of another kind, memory cannot be mapped, or counters are
/// missing.
pub(super) fn attach(
    umem: &Umem,
    mut descriptors: Vec<OwnedFd>,
    state: &PortState,
) -> Result<Attached, AttachError> {
    let wrong = || AttachError::Descriptors { expected: "AF_XDP sockets, memory, map and link" };
    let queues = descriptors.len().checked_sub(2).filter(|n| *n > 0 && n % 2 == 0);
    let queues = queues.ok_or_else(wrong)? / 2;
    let kept = descriptors.split_off(2 * queues);
    let memories = descriptors.split_off(queues);
    let (mut sources, mut egresses) = (Vec::new(), Vec::<Exit>::new());
    for (number, (socket, memory)) in descriptors.into_iter().zip(memories).enumerate() {
        let domain = rustix::net::sockopt::socket_domain(&socket);
        if !domain.is_ok_and(|domain| domain.as_raw() == AF_XDP) {
            return Err(wrong());
        }
        let memory = Memfd::adopt(memory)?.map()?;
        let counters = (state.ingress(), state.egress(number));
        let (Some(ingress), Some(egress)) = counters else { return Err(AttachError::Counters) };
        let [receive, transmit, fill, completion] = umem.map(&socket)?;
        let half = umem.chunks as usize * umem.chunk_len as usize;
        if memory.len() < 2 * half {
            return Err(wrong());
        }
        let behind = Behind::new().map_err(|_| AttachError::Descriptors {
            expected: "a descriptor to spare for an eventfd",
        })?;
        let (socket, behind) = (Arc::new(socket), Arc::new(behind));
        let sending =
            Mutex::new(Sending::new(egress, umem, Arc::clone(&memory), transmit, completion));
        let takes = OffloadSet { checksum: umem.checksum, ..OffloadSet::NONE };
        let (to, late) = (Arc::clone(&socket), Arc::clone(&behind));
        let egress = Arc::new(XdpEgress { socket: to, takes, behind: late, sending });
        egresses.push(Arc::clone(&egress).into());
        let ingress = XdpIngress::new(socket, umem, memory, (receive, fill), ingress);
        sources.push((ingress, egress));
    }
    let source = Box::new(XdpSource { queues: sources, _kept: kept });
    Ok(Attached { source, egresses, bells: Bells::None })
}

impl Umem {
    /// Maps the rings of a socket.
    fn map(&self, socket: &OwnedFd) -> Result<[Ring; 4], AttachError> {
        let wrong = || AttachError::Descriptors { expected: "rings of a power of two" };
        if !self.chunks.is_power_of_two() || self.chunks > 1 << 16 || self.chunk_len > 1 << 16 {
            return Err(wrong());
        }
        let map = |at: usize| {
            let entry = if at < 2 { Entry::FRAME } else { Entry::PLACE };
            let offsets = &self.rings[at];
            let len = offsets.entries.saturating_add(u64::from(self.chunks) * entry as u64);
            let len = usize::try_from(len).ok().filter(|len| *len < 1 << 30).ok_or_else(wrong)?;
            let mapping = Mapping::file_at(socket.as_fd(), PLACES[at], len)?;
            Ring::over(&mapping, offsets, (self.chunks, entry)).ok_or_else(wrong)
        };
        Ok([map(0)?, map(1)?, map(2)?, map(3)?])
    }
}
