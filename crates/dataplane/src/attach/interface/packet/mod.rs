//! An interface by packet sockets (packet(7), Linux's `Documentation/networking/packet_mmap.rst`).
//!
//! The kernel writes frames into the blocks of a ring (`TPACKET_V3`), where they stay while they
//! are lent to the switch. Frames leave in batches, by one call for each batch. A virtio-net header
//! precedes each frame in both directions (`PACKET_VNET_HDR`) and carries its offload request, so
//! that a TCP packet of 64 KiB crosses the switch whole. The kernel cuts it up if the interface
//! cannot.
//!
//! The kernel hands a block over when it is full or a millisecond old. Small frames in thin
//! traffic wait for that long.

mod blocks;
mod egress;
mod ingress;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use port::OffloadSet;
use rustix::net::AddressFamily;
use shmem::Mapping;
use turn::attach::{AttachError, Attached, Bells, Exit};
use turn::state::PortState;

use self::blocks::Blocks;
use self::egress::{PacketEgress, Sending};
use self::ingress::{PacketIngress, PacketSource};
use super::PacketRings;

/// Attaches an interface by its packet sockets.
///
/// # Errors
/// [`AttachError`] when a descriptor is no packet socket, its ring cannot be mapped, or counters
/// are missing.
pub(super) fn attach(
    rings: PacketRings,
    sockets: Vec<OwnedFd>,
    state: &PortState,
) -> Result<Attached, AttachError> {
    let takes = OffloadSet { uso: rings.uso, ..OffloadSet::ALL };
    let (mut queues, mut egresses) = (Vec::new(), Vec::<Exit>::new());
    for (number, socket) in sockets.into_iter().enumerate() {
        let domain = rustix::net::sockopt::socket_domain(&socket);
        if domain != Ok(AddressFamily::PACKET) {
            return Err(AttachError::Descriptors { expected: "packet sockets" });
        }
        let blocks = Blocks::of(&socket, rings)?;
        let socket = Arc::new(socket);
        let counters = state.egress(number).ok_or(AttachError::Counters)?;
        let sending = Mutex::new(Sending::new(counters));
        egresses
            .push(Arc::new(PacketEgress { socket: Arc::clone(&socket), takes, sending }).into());
        let counters = state.ingress().ok_or(AttachError::Counters)?;
        queues.push(PacketIngress { socket, blocks, counters });
    }
    Ok(Attached { source: Box::new(PacketSource(queues)), egresses, bells: Bells::None })
}

impl Blocks {
    /// Maps the ring of a socket.
    fn of(socket: &OwnedFd, rings: PacketRings) -> Result<Self, AttachError> {
        use std::os::fd::AsFd;
        let wrong = AttachError::Descriptors { expected: "rings of up to 1 GiB" };
        let len = u64::from(rings.blocks) * u64::from(rings.block_len);
        if len == 0 || len > 1 << 30 {
            return Err(wrong);
        }
        let mapping = Mapping::unsealed(socket.as_fd(), len as usize)?;
        Self::over(&mapping, rings).ok_or(wrong)
    }
}
