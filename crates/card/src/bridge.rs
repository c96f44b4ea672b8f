//! A card joined to a ring port: their buffers change hands.
//!
//! ```text
//!   switch --> receive ring   slot <-- swap --> spare     --> transmit descriptor --> card
//!   switch <-- send ring      slot <-- swap --> filled    <-- receive descriptor  <-- card
//! ```
//!
//! The card reads and writes the buffers of the port's region, so the switch's copy is the only
//! one. Which buffer is with which descriptor is private: what the card writes to its rings cannot
//! change it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use driver::{Lent, MOST_PIECES, Piece};
use netring::{Buffer, Port, PortError, Region, RegionError};

/// Bytes of a frame besides its payload: an Ethernet header and a tag.
const HEADERS: usize = 18;
/// The longest frame of 1,500 bytes of payload.
pub(super) const LONGEST: usize = 1500 + HEADERS;
/// The shortest frame, or first piece of one: an Ethernet header.
pub(super) const SHORTEST: u32 = 14;

/// How many frames went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From the switch to the card.
    pub sent: u64,
    /// From the card to the switch.
    pub received: u64,
    /// Frames of the switch that the card cannot send: longer than its MTU, or spoilt.
    pub unsendable: u64,
    /// Buffers that came back damaged, or with a frame that is too short or too long.
    pub damaged: u64,
}

/// The buffers of a region, as a device addresses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// The address of buffer 0.
    pub(super) first: u64,
    pub(super) stride: u64,
}

impl Addresses {
    /// The address of the buffer with this number.
    pub(super) fn at(self, number: u32) -> u64 {
        self.first + self.stride * u64::from(number)
    }

    fn of(self, buffer: &Buffer) -> u64 {
        self.at(buffer.number())
    }
}

/// The buffers of a port, before the card's driver is there.
#[derive(Debug)]
pub struct Buffers {
    addresses: Addresses,
    receiving: Box<[Buffer]>,
    spare: Vec<Buffer>,
}

impl Buffers {
    /// Takes `receives` and `sends` free buffers of the port's region. The device is to find the
    /// region's buffers from its address `first` on.
    ///
    /// # Errors
    /// The region has too few.
    pub fn take(
        region: &Arc<Region>,
        (receives, sends): (u32, u32),
        first: u64,
    ) -> Result<Self, RegionError> {
        let stride = region.geometry().buf_size.into();
        let take = |count: u32| (0..count).map(|_| region.buffer()).collect::<Result<Vec<_>, _>>();
        let (receiving, spare) = (take(receives)?.into(), take(sends)?);
        Ok(Self { addresses: Addresses { first, stride }, receiving, spare })
    }

    /// The place of all buffers in a region's memory, in whole pages: what the device has to see.
    /// Control blocks and rings are not in it.
    #[must_use]
    pub fn part(region: &Region) -> Range<usize> {
        const PAGE: usize = 4096;
        let geometry = region.geometry();
        let start = geometry.buf_offset() as usize;
        let len = geometry.buf_size as usize * geometry.buf_num as usize;
        start..start + len.next_multiple_of(PAGE)
    }

    /// The device's addresses of the buffers for its receive descriptors.
    #[must_use]
    pub fn lent(&self) -> Vec<u64> {
        self.receiving.iter().map(|buffer| self.addresses.of(buffer)).collect()
    }
}

/// A card's driver and a port, joined.
#[derive(Debug)]
pub struct Bridge<D> {
    // Fields are dropped in this order: buffers return to the region when the card has stopped.
    nic: D,
    port: Port,
    addresses: Addresses,
    /// The buffer of each receive descriptor.
    receiving: Box<[Buffer]>,
    /// Buffers with frames that the card sends, oldest first, and whether each ends a frame.
    sending: VecDeque<(Buffer, bool)>,
    spare: Vec<Buffer>,
    /// The longest frame that the card sends, in bytes.
    longest: usize,
    counts: Counts,
}

impl<D: Lent> Bridge<D> {
    /// Joins a driver that was given [`Buffers::lent`], and the port that they are from. Payloads
    /// have up to `mtu` bytes.
    pub fn new(nic: D, port: Port, buffers: Buffers, mtu: u16) -> Self {
        let Buffers { addresses, receiving, spare } = buffers;
        let sending = VecDeque::with_capacity(spare.len());
        let (counts, longest) = (Counts::default(), usize::from(mtu) + HEADERS);
        Self { nic, port, addresses, receiving, sending, spare, longest, counts }
    }

    /// The driver.
    pub fn nic(&mut self) -> &mut D {
        &mut self.nic
    }

    /// The port.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// How many frames went which way so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Moves up to `budget` frames each way, and tells both sides once. Returns how many frames and
    /// buffers moved.
    ///
    /// # Errors
    /// The port is gone, or in its error state.
    pub fn turn(&mut self, budget: usize) -> Result<usize, PortError> {
        let moved = self.take_back() + self.send(budget) + self.receive(budget);
        self.nic.publish();
        self.port.flush()?;
        Ok(moved)
    }

    fn take_back(&mut self) -> usize {
        let (frames, mut back) = (self.nic.take_back(), 0);
        for _ in 0..frames {
            while let Some((buffer, ends)) = self.sending.pop_front() {
                self.spare.push(buffer);
                back += 1;
                if ends {
                    break;
                }
            }
        }
        back
    }

    fn send(&mut self, budget: usize) -> usize {
        let Self { nic, port, addresses, sending, spare, longest, counts, .. } = self;
        let most = nic.most_pieces();
        let mut incoming = port.receive(budget);
        let mut moved = 0;
        // A frame that needs more than this is never sent.
        while nic.room().min(spare.len()) >= most
            && let Some(frame) = incoming.next()
        {
            moved += 1;
            let mut pieces = [(0, 0); MOST_PIECES];
            let (slots, first) = (frame.slot_count(), sending.len());
            let mut good = slots <= most && frame.len() <= *longest;
            if good {
                for ((slot, piece), number) in frame.into_slots().zip(&mut pieces).zip(1..) {
                    let mut slot = slot;
                    let Some(mut buffer) = spare.pop() else { break };
                    // A slot that its sender has spoilt since is empty.
                    good &= !slot.is_empty();
                    *piece = (0, slot.len() as u32);
                    good = good && buffer.swap(&mut slot).is_ok();
                    piece.0 = addresses.of(&buffer);
                    sending.push_back((buffer, number == slots));
                }
            }
            let len: usize = pieces.iter().map(|(_, len)| *len as usize).sum();
            let pieces = pieces.get(..slots).unwrap_or_default();
            if good && len <= *longest && nic.send_lent(pieces) {
                counts.sent += 1;
            } else {
                counts.unsendable += 1;
                spare.extend(sending.drain(first..).map(|(buffer, _)| buffer));
            }
        }
        moved
    }

    fn receive(&mut self, budget: usize) -> usize {
        let Self { nic, port, addresses, receiving, counts, .. } = self;
        let mut out = port.send(budget);
        let most = out.slot_bytes();
        // Pieces of the frame that are still to come, and whether the port gets the frame.
        let (mut rest, mut keep) = (0, false);
        nic.trade(budget, |descriptor, piece| {
            let buffer = receiving.get_mut(descriptor as usize)?;
            let Some(Piece { len, after }) = piece else {
                counts.damaged += 1;
                return Some(addresses.of(buffer));
            };
            if rest == 0 {
                keep = (SHORTEST..=most as u32).contains(&len);
                if keep && out.room() <= after as usize {
                    return None;
                }
                // A buffer without bytes is the end of the frame before.
                counts.damaged += u64::from(!keep && len > 0);
            }
            if keep && len > 0 {
                let mut slot = out.slot()?;
                // The port and the buffers are of one region (`Buffers::take`).
                slot.swap(buffer).ok()?;
                slot.set_len(len as usize);
                slot.set_more(after > 0);
                counts.received += u64::from(after == 0);
            }
            rest = after;
            Some(addresses.of(buffer))
        })
    }
}
