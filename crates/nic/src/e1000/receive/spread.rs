//! Frames that need more than a copy into one buffer, and the status of their checksums.

use frame::{Ipv4, Layers, Network, Transport};
use port::Picked;
use shmem::{Bytes, Near};

use super::{Filling, Outcome};
use crate::e1000::core::Core;
use crate::e1000::registers::Fault;
use crate::e1000::ring::rx;
use crate::e1000::table;
use crate::model::ring::of_queue;
use crate::walk;

/// The maximum number of descriptors read for a frame: twice as many as the longest frame needs of
/// the smallest buffers.
const MAX_SPREAD: u32 = 128;
/// Shortest frame without its check sequence; shorter ones are padded.
pub(super) const SHORTEST: usize = 60;

/// A received frame: one of a batch, or one that is looped back.
pub(super) trait Source {
    /// The frame's first bytes.
    fn head(&self) -> &[u8];
    /// The frame's length in bytes.
    fn len(&self) -> usize;
    /// Copies the frame's bytes from offset `from` on, as many as fit. Returns how many.
    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize;
    /// True if the frame's checksum is known to be good.
    fn is_good(&self) -> bool;
}

pub(super) struct FromBatch<'a> {
    pub frame: Picked<'a>,
    pub head: &'a [u8],
    pub good: bool,
}

impl Source for FromBatch<'_> {
    fn head(&self) -> &[u8] {
        self.head
    }

    fn len(&self) -> usize {
        self.frame.len()
    }

    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize {
        self.frame.copy_range(from, to)
    }

    fn is_good(&self) -> bool {
        self.good
    }
}

/// A frame in private memory.
pub(super) struct Private<'a>(pub &'a mut [u8]);

impl Source for Private<'_> {
    fn head(&self) -> &[u8] {
        self.0
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy_range(&self, from: usize, to: Bytes<'_>) -> usize {
        to.copy_in(self.0.get(from..).unwrap_or_default())
    }

    fn is_good(&self) -> bool {
        false
    }
}

impl Filling {
    /// Writes a frame into as many buffers as it takes, or into none if there are too few. It skips
    /// buffers at address 0. A frame that meets too many of them is received with an error.
    pub(super) fn spread(
        &mut self,
        core: &Core,
        frame: &Shape<'_, impl Source>,
        status: u32,
        tag: u16,
    ) -> Result<Outcome, Fault> {
        let available = self.available(core)?;
        let Some(ring) = self.ring.clone() else { return Ok(Outcome::Full) };
        let (before, total) = (self.filled.len(), frame.len() + self.filter.fcs);
        let mut near = core.memory.near();
        let mut at = 0;
        for _ in 0..available.min(MAX_SPREAD) {
            let Some(descriptor) = ring.get(self.place(0)) else { break };
            walk::note(1);
            let address = descriptor.first();
            let here = if address == 0 { 0 } else { self.filter.buffer.min(total - at) };
            if here > 0 {
                if !frame.copy_to_buffer(at, &mut near, address, here as u32) {
                    self.filled.truncate(before);
                    return Err(Fault::BadAddress);
                }
                at += here;
            }
            let last = at == total;
            let flags = rx::DD | if last { rx::EOP | status } else { 0 };
            let word = self.word(here, flags, if last { tag } else { 0 });
            self.filled.push(word);
            if last {
                return Ok(Outcome::Delivered);
            }
        }
        if available < MAX_SPREAD {
            self.filled.truncate(before);
            return Ok(Outcome::Full);
        }
        let damaged = self.damaged();
        self.filled.last_mut().into_iter().for_each(|last| *last = damaged);
        Ok(Outcome::TooLong)
    }

    /// Packet split (82574L datasheet, 7.1.10). A descriptor names four buffers and takes two
    /// places of the ring, which is still counted in units of 16 bytes. The model does not separate
    /// headers: a frame fills one buffer after the other.
    pub(super) fn split(
        &mut self,
        core: &Core,
        frame: &Shape<'_, impl Source>,
        sizes: [u32; 4],
        status: u32,
        tag: u16,
    ) -> Result<Outcome, Fault> {
        let (place, next) = (self.place(0), self.place(1));
        let descriptor =
            self.ring.as_ref().and_then(|ring| Some((ring.get(place)?, ring.get(next)?)));
        let (Some((low, high)), true) = (descriptor, self.available(core)? >= 2) else {
            return Ok(Outcome::Full);
        };
        let addresses = [low.first(), low.second(), high.first(), high.second()];
        let buffers = addresses.into_iter().zip(sizes);
        let Some(lengths) = fill_buffers(core, frame, buffers, frame.len() + self.filter.fcs)?
        else {
            // The frame is longer than all its buffers: it is lost, as in the chip.
            core.registers.count(table::ROC, 1);
            return Ok(Outcome::TooLong);
        };
        high.set_first(lengths[1] << 16 | lengths[2] << 32 | lengths[3] << 48);
        high.publish(0);
        low.set_first(0);
        let word = u64::from(rx::DD | rx::EOP | status) | lengths[0] << 32 | u64::from(tag) << 48;
        low.publish(word);
        self.head = (self.head + 2) % self.size.max(1);
        core.registers.publish(of_queue(&table::RX, self.queue).head, self.head);
        self.host.publish_head(self.head);
        Ok(Outcome::Delivered)
    }

    /// The checksum status of a frame whose sender vouched for it.
    #[inline(never)]
    pub(super) fn checksum_status(&self, head: &[u8]) -> u32 {
        let filter = &self.filter;
        if !(filter.report_transport || filter.report_ip) {
            return rx::IXSM;
        }
        let Some(layers) = Layers::of(head) else { return rx::IXSM };
        let ip = match layers.network {
            // The sender vouched for the inner packet.
            Network::Ipv4(_) if filter.report_ip => {
                let at = if layers.tag.is_some() { 18 } else { 14 };
                match Ipv4::checksum_ok(head.get(at..).unwrap_or_default()) {
                    true => rx::IPCS,
                    false => return rx::IXSM,
                }
            }
            Network::Ipv4(_) | Network::Ipv6(_) => 0,
            _ => return rx::IXSM,
        };
        let transport = match layers.transport {
            Transport::Tcp(_) => rx::TCPCS,
            Transport::Udp(_) if filter.extended => rx::UDPCS | rx::TCPCS,
            Transport::Udp(_) => rx::TCPCS,
            _ => return rx::IXSM,
        };
        ip | if filter.report_transport { transport } else { 0 }
    }
}

/// Copies a frame of `total` bytes into buffers, one after the other. Returns how many bytes went
/// into each, or nothing if they are too short. Buffers at odd addresses count as absent.
fn fill_buffers(
    core: &Core,
    frame: &Shape<'_, impl Source>,
    buffers: impl Iterator<Item = (u64, u32)>,
    total: usize,
) -> Result<Option<[u64; 4]>, Fault> {
    let mut near = core.memory.near();
    let (mut at, mut lengths) = (0, [0u64; 4]);
    for ((address, size), length) in buffers.zip(&mut lengths) {
        let here = (size as usize).min(total - at);
        if here == 0 || address & 1 != 0 || address == 0 {
            continue;
        }
        if !frame.copy_to_buffer(at, &mut near, address, here as u32) {
            return Err(Fault::BadAddress);
        }
        at += here;
        *length = here as u64;
    }
    Ok((at == total).then_some(lengths))
}

/// A frame in the form in which it is written: without a stripped tag, and padded.
pub(super) struct Shape<'a, S> {
    pub source: &'a S,
    /// Bytes of the tag that are left out.
    pub cut: usize,
}

/// The offset of a tag.
const TAG: usize = 12;

impl<S: Source> Shape<'_, S> {
    fn len(&self) -> usize {
        (self.source.len() - self.cut).max(SHORTEST)
    }

    /// Copies the bytes at `from` and after into the `len` bytes at guest-physical `at`. Returns
    /// false if some of these are not memory; then those before them are written.
    fn copy_to_buffer(&self, mut from: usize, near: &mut Near<'_>, at: u64, len: u32) -> bool {
        near.for_each(at, len, |bytes| {
            self.copy_range(from, bytes);
            from += bytes.len();
        })
    }

    /// Copies the bytes at `from` and after; bytes beyond the frame's end are zeros.
    fn copy_range(&self, from: usize, to: Bytes<'_>) {
        let mut done = 0;
        if self.cut > 0 && from < TAG {
            done = self.source.copy_range(from, to.prefix(TAG - from));
        }
        let at = from + done;
        let at = if at >= TAG { at + self.cut } else { at };
        done += self.source.copy_range(at, to.suffix(done));
        to.suffix(done).fill(0);
    }
}
