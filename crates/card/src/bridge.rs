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

use driver::Lent;
use netring::{Buffer, Port, PortError, Region, RegionError};

/// The longest frame that a card sends, in bytes: 1,500, an Ethernet header and a tag.
pub(super) const LONGEST: usize = 1518;
/// The shortest frame: an Ethernet header.
pub(super) const SHORTEST: u32 = 14;

/// How many frames went which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// From the switch to the card.
    pub sent: u64,
    /// From the card to the switch.
    pub received: u64,
    /// Frames of the switch that the card cannot send, because of their length.
    pub unsendable: u64,
    /// Buffers that came back damaged, or with a frame that is too short or too long.
    pub damaged: u64,
}

/// The buffers of a region, as a device addresses them.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    /// The address of buffer 0.
    first: u64,
    stride: u64,
}

impl Addresses {
    fn of(self, buffer: &Buffer) -> u64 {
        self.first + self.stride * u64::from(buffer.number())
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
    /// Buffers with frames that the card sends, oldest first.
    sending: VecDeque<Buffer>,
    spare: Vec<Buffer>,
    counts: Counts,
}

impl<D: Lent> Bridge<D> {
    /// Joins a driver that was given [`Buffers::lent`], and the port that they are from.
    pub fn new(nic: D, port: Port, buffers: Buffers) -> Self {
        let Buffers { addresses, receiving, spare } = buffers;
        let sending = VecDeque::with_capacity(spare.len());
        let counts = Counts::default();
        Self { nic, port, addresses, receiving, sending, spare, counts }
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
        let back = self.nic.take_back().min(self.sending.len());
        self.spare.extend(self.sending.drain(..back));
        back
    }

    fn send(&mut self, budget: usize) -> usize {
        let room = self.nic.room().min(self.spare.len()).min(budget);
        let mut moved = 0;
        for mut frame in self.port.receive(room) {
            moved += 1;
            let len = frame.len();
            let Some(mut buffer) = self.spare.pop() else { break };
            let fits = frame.slot_count() == 1 && (1..=LONGEST).contains(&len);
            if !fits || buffer.swap(&mut frame).is_err() {
                self.counts.unsendable += 1;
                self.spare.push(buffer);
            } else if self.nic.send_lent(self.addresses.of(&buffer), len as u32) {
                self.counts.sent += 1;
                self.sending.push_back(buffer);
            } else {
                self.counts.unsendable += 1;
                self.spare.push(buffer);
            }
        }
        moved
    }

    fn receive(&mut self, budget: usize) -> usize {
        let Self { nic, port, addresses, receiving, counts, .. } = self;
        let mut out = port.send(budget);
        let most = out.slot_bytes();
        nic.trade(budget, |descriptor, len| {
            let buffer = receiving.get_mut(descriptor as usize)?;
            match len.filter(|len| *len >= SHORTEST && *len as usize <= most) {
                Some(len) => {
                    let mut slot = out.slot()?;
                    // The port and the buffers are of one region (`Buffers::take`).
                    slot.swap(buffer).ok()?;
                    slot.set_len(len as usize);
                    counts.received += 1;
                }
                None => counts.damaged += 1,
            }
            Some(addresses.of(buffer))
        })
    }
}
