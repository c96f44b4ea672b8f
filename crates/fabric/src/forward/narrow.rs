//! Frames for a port whose MTU is below their sender's. TCP segments that a sender left uncut are
//! cut to fit. Of packets that may not be cut, the sender is told the size that fits, as if by the
//! destination: a switch has no address. All others are dropped by the egress, and counted.

use frame::{ETHERNET_HEADER, VLAN_TAG};
use port::{Batch, Egress, Limits, Nanos};

use super::deliver::List;
use super::{FLOOD, PassState, Touched};
use crate::finish::narrowed;
use crate::ports::Inspection;

/// The least time between two answers of a worker. Linux limits such messages in the same way
/// (`icmp_msgs_per_sec`).
const INTERVAL_NS: u64 = Nanos::MILLI;

impl<E: Egress> PassState<'_, E> {
    /// True if a queue's frames may be shorter than what the sender may send.
    #[inline(always)]
    pub(super) fn is_narrow(&self, max_frame: u32) -> bool {
        max_frame < self.port.max_frame as u32
    }

    /// Tells the sender of the frames of `list` that are longer than `max_frame`.
    #[cold]
    pub(super) fn tell_too_long(
        &mut self,
        batch: &Batch<'_>,
        list: List<'_>,
        max_frame: u32,
        touched: &mut Touched,
    ) {
        let long = list.frames.iter().copied().find(|i| {
            batch.wire_len(*i) > max_frame as usize && narrowed(batch, *i, max_frame).is_none()
        });
        let Some(long) = long.filter(|_| self.now >= touched.answer_at) else { return };
        // As the sender has sent it: its tag may have been changed for the receiver.
        let frame = list.origins.map_or(long, |origins| origins[usize::from(long)]);
        let is_flood = list.destinations.get(usize::from(frame)) == Some(&FLOOD);
        let reach = self.port.reach;
        if is_flood || reach.queues == 0 || self.port.manner == Inspection::Tunnel {
            return;
        }
        let head = batch.head(frame);
        let is_tagged = head.get(12..14) == Some(&[0x81, 0]);
        let tag = if is_tagged { VLAN_TAG } else { 0 };
        let mtu = (max_frame as usize).saturating_sub(ETHERNET_HEADER + 2 * VLAN_TAG) + tag;
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        if let Some(mut answer) = frame::packet_too_big(head, mtu) {
            touched.answer_at = self.now + INTERVAL_NS;
            let limits = Limits { max_frame: self.port.max_frame as u32, lossless: false };
            let to = &self.ports.queue(reach.first_queue).egress;
            touched.finisher().deliver_own(to, &mut answer, limits, self.map);
            self.port.counters.copies.add(1);
            self.deliveries += 1;
            touched.queues.push(reach.first_queue);
        }
    }
}
