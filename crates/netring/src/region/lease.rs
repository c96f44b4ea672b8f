//! What a port, or the two ends of a pipe, have allocated in a region.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use frame::OffloadSet;
use shmem::Bytes;

use super::{Holder, Region, RegionError};
use crate::layout::{
    GeometryError, IF_HEADER, MAX_RINGS, RingMemory, RingSpec, Slot, SlotWord, previous,
};

/// Version of netmap's interface (`NETMAP_API`).
const NETMAP_API: u32 = 14;
/// The region is not the global one (`NI_PRIV_MEM`).
const NI_PRIV_MEM: u32 = 1;
/// Host rings: each interface has entries for them, but no rings.
const FAKE_HOST_RINGS: u32 = 1;
/// Bytes of `ni_name`, the terminating zero included.
const NI_NAME: usize = 16;
/// Where `ni_bufs_head` is.
const NI_BUFS_HEAD: usize = 32;

/// The rings and buffers that a port asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    pub(crate) tx_rings: u32,
    pub(crate) rx_rings: u32,
    pub(crate) slots: u32,
    pub(crate) extra_buffers: u32,
}

/// The rings of one end of a pipe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) tx: RingSpec,
    pub(crate) rx: RingSpec,
}

impl Ends {
    /// The offload requests among `wanted` that receive rings with such buffers can carry.
    pub(crate) fn carried(&self, wanted: OffloadSet, usable: u32) -> OffloadSet {
        crate::layout::carried(wanted, usable, &self.rx)
    }
}

/// Interfaces, rings and buffers, which return to the region on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) region: Arc<Region>,
    interfaces: Vec<u32>,
    rings: Vec<RingSpec>,
    /// Another process uses the resources, so they are not returned.
    kept: AtomicBool,
}

/// The buffers that the slots of a new ring get.
#[derive(Clone, Copy)]
enum Fill {
    /// Each slot gets a buffer of its own.
    Own,
    /// Each slot gets the buffer of the same slot of this send ring, whose twin the new ring is.
    TwinOf(u32),
}

impl Lease {
    /// Allocates for a port: one interface, its rings, their buffers, extra buffers.
    pub(crate) fn port(
        region: &Arc<Region>,
        wanted: &Wanted<'_>,
    ) -> Result<(Self, Ends), RegionError> {
        let mut lease = Self::nothing(region);
        let tx = lease.take_rings(wanted.tx_rings, wanted.slots, Direction::Send, Fill::Own)?;
        let rx = lease.take_rings(wanted.rx_rings, wanted.slots, Direction::Receive, Fill::Own)?;
        let ends = Ends { tx, rx };
        let interface = lease.take_interface(wanted.name, ends)?;
        lease.take_extra(interface, wanted.extra_buffers)?;
        Ok((lease, ends))
    }

    /// Allocates for a pipe: two interfaces. Each end's receive rings are twins of the other's send
    /// rings and have the same buffers.
    pub(crate) fn pipe(
        region: &Arc<Region>,
        wanted: &Wanted<'_>,
        names: [&str; 2],
    ) -> Result<(Self, [Ends; 2]), RegionError> {
        let mut lease = Self::nothing(region);
        let [rings, slots] = [wanted.tx_rings, wanted.slots];
        let mut twins = || {
            let tx = lease.take_rings(rings, slots, Direction::Send, Fill::Own)?;
            let fill = Fill::TwinOf(tx.first);
            Ok::<_, RegionError>((tx, lease.take_rings(rings, slots, Direction::Receive, fill)?))
        };
        let ((tx, peer_rx), (peer_tx, rx)) = (twins()?, twins()?);
        let ends = [Ends { tx, rx }, Ends { tx: peer_tx, rx: peer_rx }];
        let interface = lease.take_interface(names[0], ends[0])?;
        lease.take_interface(names[1], ends[1])?;
        lease.take_extra(interface, wanted.extra_buffers)?;
        Ok((lease, ends))
    }

    fn nothing(region: &Arc<Region>) -> Self {
        let (interfaces, rings) = (Vec::new(), Vec::new());
        Self { region: Arc::clone(region), interfaces, rings, kept: AtomicBool::new(false) }
    }

    fn take_rings(
        &mut self,
        rings: u32,
        slots: u32,
        direction: Direction,
        fill: Fill,
    ) -> Result<RingSpec, RegionError> {
        if rings == 0 {
            return Ok(RingSpec::default());
        }
        if rings > MAX_RINGS {
            return Err(GeometryError("number of rings").into());
        }
        let first = self.region.books().rings.take_run(rings);
        let spec = RingSpec { first: first.ok_or(RegionError::Exhausted("rings"))?, rings, slots };
        self.rings.push(spec);
        spec.check(&self.region.geometry)?;
        for ring in 0..rings {
            let words = match fill {
                Fill::Own => self.take_buffers(spec.first + ring, slots)?,
                Fill::TwinOf(twin) => self.words_of(twin + ring, slots)?,
            };
            self.init_core(spec.first + ring, slots)?;
            self.init_ring(spec, ring, direction, &words)?;
        }
        Ok(spec)
    }

    /// Buffers for the slots of a ring as netmap hands them out, with the length of the buffer.
    fn take_buffers(&self, ring: u32, slots: u32) -> Result<Vec<SlotWord>, RegionError> {
        let len = self.region.geometry.buf_size.min(u32::from(u16::MAX)) as u16;
        let mut books = self.region.books();
        let mut word = || {
            let buf = self.region.take_buffer(&mut books, Holder::ring(ring))?;
            Ok(SlotWord { buf, len, flags: 0 })
        };
        (0..slots).map(|_| word()).collect()
    }

    fn memory(&self, ring: u32, slots: u32) -> Result<RingMemory, RegionError> {
        let memory = RingMemory::of(&self.region.mapping, &self.region.geometry, ring, slots);
        Ok(memory.ok_or(GeometryError("ring number"))?)
    }

    fn words_of(&self, ring: u32, slots: u32) -> Result<Vec<SlotWord>, RegionError> {
        Ok(self.memory(ring, slots)?.slots.iter().map(Slot::load).collect())
    }

    /// Initializes the core's words of a ring that no core uses yet.
    fn init_core(&self, ring: u32, slots: u32) -> Result<(), RegionError> {
        let control = self.memory(ring, slots)?.control;
        control.core.0.publish(0);
        control.core_flags.0.wake.disarm();
        control.core_flags.0.fault.store(0, Relaxed);
        control.core_flags.0.reset_done.store(0, Relaxed);
        control.owner_flags.0.reset_wanted.store(0, Relaxed);
        Ok(())
    }

    /// Initializes the rest of a ring, as `struct netmap_ring` in `net/netmap.h` describes it.
    fn init_ring(
        &self,
        spec: RingSpec,
        ring: u32,
        direction: Direction,
        words: &[SlotWord],
    ) -> Result<(), RegionError> {
        let (geometry, number) = (&self.region.geometry, spec.first + ring);
        let memory = self.memory(number, spec.slots)?;
        let header = &memory.header;
        header.buf_ofs.store(geometry.buf_offset() - geometry.ring_offset(number), Relaxed);
        header.num_slots.store(spec.slots, Relaxed);
        header.nr_buf_size.store(geometry.buf_size, Relaxed);
        header.ringid_dir.store(ring | (direction as u32) << 16, Relaxed);
        header.flags.store(0, Relaxed);
        header.offset_mask.store(0, Relaxed);
        for (slot, word) in memory.slots.iter().zip(words) {
            slot.store(*word);
            slot.ptr.store(0, Relaxed);
        }
        let tail = match direction {
            Direction::Send => previous(0, spec.slots),
            Direction::Receive => 0,
        };
        header.head.store(0, Relaxed);
        header.cur.store(0, Relaxed);
        header.tail.store(tail, Relaxed);
        memory.control.owner_flags.0.wake.disarm();
        memory.control.owner.0.publish(0);
        Ok(())
    }

    fn take_interface(&mut self, name: &str, ends: Ends) -> Result<u32, RegionError> {
        let taken = self.region.books().interfaces.take_run(1);
        let number = taken.ok_or(RegionError::Exhausted("interfaces"))?;
        self.interfaces.push(number);
        self.write_interface(number, name, ends);
        Ok(number)
    }

    fn interface(&self, number: u32) -> Bytes<'_> {
        let Region { mapping, geometry, .. } = &*self.region;
        let at = number as usize * geometry.if_size as usize;
        mapping.bytes(at, geometry.if_size as usize).unwrap_or(Bytes::empty())
    }

    /// Writes `netmap_if`: name, counts, and the distance to each ring; 0 for host rings, which
    /// exist as entries only.
    fn write_interface(&self, number: u32, name: &str, ends: Ends) {
        let geometry = &self.region.geometry;
        let at = self.interface(number);
        at.fill(0);
        at.copy_in(&name.as_bytes()[..name.len().min(NI_NAME - 1)]);
        let words = [NETMAP_API, NI_PRIV_MEM, ends.tx.rings, ends.rx.rings];
        for (i, word) in words.into_iter().enumerate() {
            at.write(16 + 4 * i, word);
        }
        at.write(36, FAKE_HOST_RINGS);
        at.write(40, FAKE_HOST_RINGS);
        let base = u64::from(number) * u64::from(geometry.if_size);
        for (spec, first) in [(ends.tx, 0), (ends.rx, ends.tx.rings + FAKE_HOST_RINGS)] {
            for ring in 0..spec.rings {
                let entry = IF_HEADER + 8 * (first + ring) as usize;
                at.write(entry, geometry.ring_offset(spec.first + ring) - base);
            }
        }
    }

    /// Links `count` buffers: the first word of each is the number of the next one, 0 ends the
    /// list.
    fn take_extra(&self, interface: u32, count: u32) -> Result<(), RegionError> {
        for _ in 0..count {
            let buffer = self.region.buffer()?;
            let head = self.interface(interface).read(NI_BUFS_HEAD).unwrap_or(0_u32);
            buffer.window().write(0, head);
            self.interface(interface).write(NI_BUFS_HEAD, buffer.number());
            std::mem::forget(buffer);
        }
        Ok(())
    }

    /// Takes the first extra buffer from the list of the lease's first interface.
    pub(crate) fn pop_extra(&self) -> Option<super::Buffer> {
        let interface = self.interface(*self.interfaces.first()?);
        let number = interface.read(NI_BUFS_HEAD).filter(|number| *number != 0)?;
        if !self.region.is_loose(number) {
            return None;
        }
        let buffer = super::Buffer { region: Arc::clone(&self.region), number };
        interface.write(NI_BUFS_HEAD, buffer.window().read(0).unwrap_or(0_u32));
        Some(buffer)
    }

    /// Never returns anything to the region, because another process uses it.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Relaxed);
    }

    /// Like [`reinitialise`](Self::reinitialise), for a core that does not know the rings yet.
    pub(crate) fn renew(&self, ends: Ends) -> Result<(), RegionError> {
        for spec in [ends.tx, ends.rx] {
            (spec.first..spec.first + spec.rings)
                .try_for_each(|ring| self.init_core(ring, spec.slots))?;
        }
        self.reinitialise(ends)
    }

    /// Resets the rings to their first state, with the buffers that they currently have.
    pub(crate) fn reinitialise(&self, ends: Ends) -> Result<(), RegionError> {
        for (spec, direction) in [(ends.tx, Direction::Send), (ends.rx, Direction::Receive)] {
            for ring in 0..spec.rings {
                let number = spec.first + ring;
                let len = self.region.geometry.buf_size.min(u32::from(u16::MAX)) as u16;
                let held = self.region.buffers.held_by(Holder::ring(number));
                let words: Vec<_> = held.map(|buf| SlotWord { buf, len, flags: 0 }).collect();
                self.init_ring(spec, ring, direction, &words)?;
            }
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.kept.load(Relaxed) {
            return;
        }
        // The list is in shared memory and may be corrupt. It ends at the first number that is not
        // a loose buffer, so a cycle ends, too.
        while let Some(buffer) = self.pop_extra() {
            drop(buffer);
        }
        for interface in &self.interfaces {
            self.region.books().interfaces.give_run(*interface, 1);
        }
        for spec in &self.rings {
            for ring in spec.first..spec.first + spec.rings {
                self.region.give_back_all(Holder::ring(ring));
            }
            self.region.books().rings.give_run(spec.first, spec.rings);
        }
    }
}

/// `ring.dir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A send ring: from the client.
    Send = 0,
    /// A receive ring: to the client.
    Receive = 1,
}
