//! A region: its memory file, the allocations in it, and the structures that programs read there.
//!
//! The broker reads and writes the file but never maps it: programs may change mapped memory at any
//! time.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netring::layout::{
    BUFFER_STRIDE, Control, CoreFlags, Format, Geometry, IF_HEADER, OwnerFlags, RING_HEADER,
    RingHeader, RingSpec, Slot, SlotWord, distance,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use shmem::{Memfd, Pages};
use zerocopy::IntoBytes;

use super::books::Books;
use crate::abi::{API, PoolsInfo};

/// Default number of slots of a ring.
pub(super) const SLOTS: u32 = 1024;
/// The maximum number of slots of a ring.
pub(super) const MOST_SLOTS: u32 = 4096;
/// Maximum number of rings of a port in each direction.
pub(super) const MOST_RINGS: u32 = 16;
/// Host rings for which each interface has entries at least, though VALE ports and pipes have none.
const FAKE_HOST_RINGS: u32 = 1;
/// Number of pipes for which a port's region has room.
const PIPES: u32 = 2;
/// `NI_PRIV_MEM`.
const PRIVATE: u32 = 1;
/// Number of the region that NICs share.
pub(super) const GLOBAL: u16 = 1;
/// Where `ni_bufs_head` is in `netmap_if`.
const BUFS_HEAD: u64 = 32;
/// Where the bits of its format are in a ring's control block.
const FORMAT: usize =
    std::mem::offset_of!(Control, owner_flags) + std::mem::offset_of!(OwnerFlags, format);
/// Where the positions of the core and the owner are in it.
const CORE: usize = std::mem::offset_of!(Control, core);
const OWNER: usize = std::mem::offset_of!(Control, owner);
/// Where the ring of a monitor is named, and where monitors read that they have lost their port.
const WATCHER: usize =
    std::mem::offset_of!(Control, owner_flags) + std::mem::offset_of!(OwnerFlags, watcher);
const COPIERS: usize =
    std::mem::offset_of!(Control, owner_flags) + std::mem::offset_of!(OwnerFlags, copiers);
const FAULT: usize =
    std::mem::offset_of!(Control, core_flags) + std::mem::offset_of!(CoreFlags, fault);
/// Where `head`, `cur` and `tail` are in a ring's header.
const HEAD: usize = std::mem::offset_of!(RingHeader, head);
/// Where a ring's header says which bits of `ptr` are an offset.
const OFFSET_MASK: usize = std::mem::offset_of!(RingHeader, offset_mask);
/// Where `ptr` is in a slot.
const POINTER: usize = std::mem::offset_of!(Slot, ptr);

/// The rings of a port, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) tx_rings: u32,
    pub(super) rx_rings: u32,
    pub(super) tx_slots: u32,
    pub(super) rx_slots: u32,
    /// Host rings that send and that receive, as many slots as the others; 0 of ports without.
    pub(super) host: [u32; 2],
}

impl Shape {
    /// Returns the requested shape: 0 means the default, and too large values are clamped.
    pub(super) fn asked(tx: (u16, u32), rx: (u16, u32)) -> Self {
        let rings = |n: u16| u32::from(n.max(1)).min(MOST_RINGS);
        let slots = |n: u32| if n == 0 { SLOTS } else { n.clamp(2, MOST_SLOTS) };
        let [(tx_rings, tx_slots), (rx_rings, rx_slots)] =
            [tx, rx].map(|(n, size)| (rings(n), slots(size)));
        Self { tx_rings, rx_rings, tx_slots, rx_slots, host: [0; 2] }
    }

    /// The same with these host rings: 0 means 1. One send ring of each side is not the program's.
    pub(super) fn with_host(self, host: [u16; 2]) -> Self {
        let most = MOST_RINGS - 1;
        let host = host.map(|n| u32::from(n.max(1)).min(most));
        Self { host, tx_rings: self.tx_rings.min(most), ..self }
    }

    /// Returns the shape of the other end of a pipe.
    pub(super) fn twin(self) -> Self {
        let Self { tx_rings, rx_rings, tx_slots, rx_slots, host } = self;
        let (tx_rings, rx_rings) = (rx_rings, tx_rings);
        Self { tx_rings, rx_rings, tx_slots: rx_slots, rx_slots: tx_slots, host }
    }

    /// Returns the layout of a region for one port of this shape (`net/netmap.h`). Pages that
    /// are not written cost nothing, so there are more interfaces and rings than in netmap.
    pub(super) fn geometry(&self, extra: u32) -> Geometry {
        let own = if self.host == [0; 2] { 0 } else { 2 };
        let [host_tx, host_rx] = self.host.map(|rings| rings.max(FAKE_HOST_RINGS));
        let (tx, rx) = (self.tx_rings + host_tx + own, self.rx_rings + host_rx);
        let slots = self.tx_slots.max(self.rx_slots);
        let buffers = (4 * PIPES + rx) * self.rx_slots + (4 * PIPES + tx) * self.tx_slots + 2;
        let ring_size = RING_HEADER as u32 + slots * size_of::<Slot>() as u32;
        Geometry {
            if_size: 1024,
            if_num: 64 + 4 * PIPES,
            ring_size: ring_size.next_multiple_of(128).max(20_480),
            ring_num: 64 + tx + rx + 8 * PIPES,
            buf_size: BUFFER_STRIDE,
            buf_num: buffers.saturating_add(extra).clamp(4098, 1_000_000),
        }
    }
}

/// Returns the layout of the region that NICs share.
pub(super) fn global() -> Geometry {
    Geometry {
        if_size: 1024,
        if_num: 100,
        ring_size: 36_864,
        ring_num: 200,
        buf_size: 2048,
        buf_num: 163_840,
    }
}

/// Converts a layout to the form that programs get.
pub(super) fn pools(geometry: &Geometry, id: u16) -> PoolsInfo {
    PoolsInfo {
        memsize: geometry.region_size(),
        mem_id: id,
        pad: [0; 3],
        if_offset: 0,
        if_total: geometry.if_num,
        if_size: geometry.if_size,
        ring_offset: geometry.ring_offset(0),
        ring_total: geometry.ring_num,
        ring_size: geometry.ring_size,
        buf_offset: geometry.buf_offset(),
        buf_total: geometry.buf_num,
        buf_size: geometry.buf_size,
    }
}

/// The buffers that the slots of new rings get.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fill {
    /// Each slot gets a buffer of its own.
    Own,
    /// Each slot gets the buffer of the same slot of these rings.
    TwinOf(RingSpec),
}

/// Direction of a ring, in netmap's numbering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Send = 0,
    Receive = 1,
}

/// An interface to write: its rings, and which of them its descriptor syncs.
#[derive(Clone, Debug)]
pub(super) struct Interface<'a> {
    pub(super) name: &'a str,
    pub(super) tx: RingSpec,
    pub(super) rx: RingSpec,
    /// Host rings that send and that receive.
    pub(super) host: [RingSpec; 2],
    /// Of `tx` and `rx`.
    pub(super) bound: [Range<u32>; 2],
    /// Of `host`.
    pub(super) bound_host: [Range<u32>; 2],
}

/// A memory file, and the owner that closes it.
pub type File = Box<dyn AsFd + Send + Sync>;

/// Returns what identifies a memory file: device and inode number.
pub(super) fn identity_of(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The word that names a ring, given its number and its slots; 0 for none.
fn name_of_ring(ring: Option<(u32, u32)>) -> [u8; 4] {
    ring.map_or(0, |(number, slots)| (number + 1) | (slots << 16)).to_le_bytes()
}

/// One memory file.
pub(super) struct Region {
    pub(super) id: u16,
    /// The user whose programs may use it.
    pub(super) uid: u32,
    pub(super) geometry: Geometry,
    file: File,
    /// Wakes zero-copy monitors in the region.
    bell: OwnedFd,
    /// Identity of the file, if a program made it.
    identity: Option<(u64, u64)>,
    books: Books,
    /// The charge to its user.
    pub(super) charge: Option<super::Charge>,
    /// Number of adapters that use the region, which goes with the last.
    pub(super) adapters: u32,
    /// Number of bound descriptors. When the last is unbound, everything in the region is freed.
    users: u32,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region {} of user {}, {} users", self.id, self.uid, self.users)
    }
}

impl Region {
    pub(super) fn create(id: u16, uid: u32, geometry: Geometry) -> Result<Self, Errno> {
        geometry.check(usize::MAX).map_err(|_| Errno::NOMEM)?;
        let len = geometry.file_size() as usize;
        let file = Memfd::create("toklat-netmap", len, Pages::Small).map_err(|_| Errno::NOMEM)?;
        Self::over(id, uid, geometry, Box::new(file), None)
    }

    /// Makes a region in a memory file from a program. The file's size is fixed.
    pub(super) fn adopt(id: u16, uid: u32, geometry: Geometry, file: File) -> Result<Self, Errno> {
        let len = Memfd::sealed_len(file.as_fd()).map_err(|_| Errno::INVAL)?;
        geometry.check(len).map_err(|_| Errno::INVAL)?;
        let identity = Some(identity_of(file.as_fd())?);
        Self::over(id, uid, geometry, file, identity)
    }

    fn over(
        id: u16,
        uid: u32,
        geometry: Geometry,
        file: File,
        identity: Option<(u64, u64)>,
    ) -> Result<Self, Errno> {
        let books = Books::new(&geometry);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (charge, adapters, users) = (None, 0, 0);
        Ok(Self { id, uid, geometry, file, bell, identity, books, charge, adapters, users })
    }

    /// What identifies the file, if a program made it.
    pub(super) const fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Wakes zero-copy monitors.
    pub(super) fn ring_bell(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Names the ring of a zero-copy monitor to the processes that sync a ring, or none.
    pub(super) fn write_watcher(
        &self,
        ring: u32,
        watcher: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let at = self.geometry.control_offset(ring) + WATCHER as u64;
        self.write(at, &name_of_ring(watcher))
    }

    /// Names the ring of a copying monitor in a list of a ring, or none:
    /// [`netring::layout::copier`].
    pub(super) fn write_copier(
        &self,
        ring: u32,
        list: usize,
        monitor: Option<(u32, u32)>,
    ) -> Result<(), Errno> {
        let at = self.geometry.control_offset(ring) + (COPIERS + list * 4) as u64;
        self.write(at, &name_of_ring(monitor))
    }

    /// Tells monitors that the port of their receive rings is gone.
    pub(super) fn lose_port(&self, rx: RingSpec) -> Result<(), Errno> {
        for ring in rx.first..rx.first + rx.rings {
            self.write(self.geometry.control_offset(ring) + FAULT as u64, &1_u32.to_le_bytes())?;
        }
        self.ring_bell();
        Ok(())
    }

    /// Empties receive rings that a closed monitor had, for the next one. A process may fill them
    /// at the same time, so the buffers stay where they are.
    pub(super) fn empty(&self, rx: RingSpec) -> Result<(), Errno> {
        for ring in rx.first..rx.first + rx.rings {
            let (control, header) =
                (self.geometry.control_offset(ring), self.geometry.ring_offset(ring));
            let core = self.read_u32(control + CORE as u64)?.to_le_bytes();
            self.write(control + OWNER as u64, &core)?;
            self.write(control + WATCHER as u64, &[0; 4])?;
            self.write(control + COPIERS as u64, &[0; 8])?;
            self.write(header + HEAD as u64, &[core, core, core].concat())?;
        }
        Ok(())
    }

    pub(super) fn pools(&self) -> PoolsInfo {
        pools(&self.geometry, self.id)
    }

    /// Where interface `number` starts.
    pub(super) fn interface_offset(&self, number: u32) -> u64 {
        u64::from(number) * u64::from(self.geometry.if_size)
    }

    /// Adds a user, which is a bound descriptor.
    pub(super) fn join(&mut self) {
        self.users += 1;
    }

    /// Removes a user. After the last, everything that was leaked is freed.
    pub(super) fn leave(&mut self) {
        self.users = self.users.saturating_sub(1);
        if self.users == 0 {
            self.books = Books::new(&self.geometry);
        }
    }

    /// Allocates consecutive rings and writes them: empty, with a buffer in each slot.
    pub(super) fn add_rings(
        &mut self,
        way: Direction,
        shape: (u32, u32),
        fill: Fill,
    ) -> Result<RingSpec, Errno> {
        self.add_rings_after(0, way, shape, fill)
    }

    /// Works as `add_rings`, for rings that follow `earlier` others in their interface.
    pub(super) fn add_rings_after(
        &mut self,
        earlier: u32,
        way: Direction,
        (rings, slots): (u32, u32),
        fill: Fill,
    ) -> Result<RingSpec, Errno> {
        if rings == 0 {
            return Ok(RingSpec { first: 0, rings: 0, slots });
        }
        let first = self.books.rings.take_run(rings).ok_or(Errno::NOMEM)?;
        let spec = RingSpec { first, rings, slots };
        let written = spec.check(&self.geometry).map_err(|_| Errno::NOMEM).and_then(|()| {
            (0..rings).try_for_each(|ring| {
                let buffers = match fill {
                    Fill::Own => self.books.take_buffers(slots).ok_or(Errno::NOMEM)?,
                    Fill::TwinOf(twins) => self.buffers_in(twins.first + ring, slots)?,
                };
                self.write_ring(first + ring, (earlier + ring, way), &buffers)
            })
        });
        if let Err(error) = written {
            for ring in first..first + rings {
                self.books.rings.give(ring);
            }
            return Err(error);
        }
        Ok(spec)
    }

    /// Allocates consecutive buffers and clears them; returns the first.
    pub(super) fn add_run(&mut self, count: u32) -> Result<u32, Errno> {
        let first = self.books.take_run(count).ok_or(Errno::NOMEM)?;
        let at = self.geometry.buf_offset() + u64::from(first) * u64::from(self.geometry.buf_size);
        let zeros = vec![0; (count * self.geometry.buf_size) as usize];
        self.write(at, &zeros).inspect_err(|_| self.remove_run(Some(first), count))?;
        Ok(first)
    }

    /// The frames that a card's drivers could not send, and that came back damaged, from the words
    /// in the buffers from `first` on.
    pub(super) fn card_losses(&self, first: u32) -> [u32; 2] {
        let start = u64::from(first) * u64::from(self.geometry.buf_size);
        let words = (self.geometry.buf_offset() + start).next_multiple_of(64);
        [2, 3].map(|place| self.read_u32(words + 8 * place).unwrap_or(0))
    }

    /// Frees consecutive buffers, if there are any.
    pub(super) fn remove_run(&mut self, first: Option<u32>, count: u32) {
        for buffer in first.into_iter().flat_map(|first| first..first + count) {
            self.books.give_buffer(buffer);
        }
    }

    /// Frees rings. With `with_buffers`, their buffers too: for rings whose slots all hold their
    /// own.
    pub(super) fn remove_rings(&mut self, spec: RingSpec, with_buffers: bool) {
        for ring in spec.first..spec.first + spec.rings {
            if !self.books.rings.give(ring) || !with_buffers {
                continue;
            }
            for buffer in self.buffers_in(ring, spec.slots).unwrap_or_default() {
                self.books.give_buffer(buffer);
            }
        }
    }

    /// Puts the buffers of slots that are under way in a pipe back into its send rings: the
    /// receiving end may have exchanged them.
    pub(super) fn settle_pipe(&self, tx: RingSpec, twin_rx: RingSpec) -> Result<(), Errno> {
        for ring in 0..tx.rings.min(twin_rx.rings) {
            let (own, twin) = (tx.first + ring, twin_rx.first + ring);
            let control = self.geometry.control_offset(own);
            let [from, to] = [CORE, OWNER].map(|at| self.read_u32(control + at as u64));
            let (from, to) = (from? % tx.slots, to? % tx.slots);
            let at = |ring: u32, slot: u32| {
                let slots = self.geometry.ring_offset(ring) + RING_HEADER as u64;
                slots + u64::from(slot) * size_of::<Slot>() as u64
            };
            let under_way =
                |slot: &u32| distance(from, *slot, tx.slots) < distance(from, to, tx.slots);
            for slot in (0..tx.slots).filter(under_way) {
                self.write(at(own, slot), &self.read_u32(at(twin, slot))?.to_le_bytes())?;
            }
        }
        Ok(())
    }

    fn write_ring(&self, ring: u32, which: (u32, Direction), buffers: &[u32]) -> Result<(), Errno> {
        let (geometry, slots) = (&self.geometry, buffers.len() as u32);
        let at = geometry.ring_offset(ring);
        let mut bytes = vec![0; RING_HEADER + buffers.len() * size_of::<Slot>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        let tail = if which.1 == Direction::Send { slots - 1 } else { 0 };
        put(0, &(geometry.buf_offset() - at).to_le_bytes());
        put(8, &slots.to_le_bytes());
        put(12, &geometry.buf_size.to_le_bytes());
        put(16, &(which.0 as u16).to_le_bytes());
        put(18, &(which.1 as u16).to_le_bytes());
        put(28, &tail.to_le_bytes());
        let len = u16::try_from(geometry.buf_size).unwrap_or(u16::MAX);
        for (slot, &buf) in buffers.iter().enumerate() {
            let word = SlotWord { buf, len, flags: 0 };
            put(RING_HEADER + slot * size_of::<Slot>(), &word.to_bits().to_le_bytes());
        }
        self.write(at, &bytes)?;
        self.write(geometry.control_offset(ring), &[0; size_of::<Control>()])
    }

    /// Tells the switch and the program's library what a ring's slots hold besides frames.
    pub(super) fn write_format(&self, ring: u32, format: Format) -> Result<(), Errno> {
        let at = self.geometry.control_offset(ring) + FORMAT as u64;
        self.write(at, &format.to_bits().to_le_bytes())
    }

    /// Tells the program which bits of `ptr` are an offset.
    pub(super) fn write_offset_mask(&self, ring: u32, mask: u64) -> Result<(), Errno> {
        self.write(self.geometry.ring_offset(ring) + OFFSET_MASK as u64, &mask.to_le_bytes())
    }

    /// Writes an offset into the slots of a ring. If another process may write to them at the same
    /// time (`shared`), each is written by itself, so that the rest of the slot stays as it is.
    pub(super) fn write_offsets(
        &self,
        ring: u32,
        slots: u32,
        (mask, offset): (u64, u64),
        shared: bool,
    ) -> Result<(), Errno> {
        let at = self.geometry.ring_offset(ring) + RING_HEADER as u64;
        let mut bytes = vec![0; slots as usize * size_of::<Slot>()];
        self.read(at, &mut bytes)?;
        for (number, slot) in bytes.chunks_exact_mut(size_of::<Slot>()).enumerate() {
            let pointer = &mut slot[POINTER..POINTER + 8];
            let was = u64::from_le_bytes(pointer.try_into().unwrap_or_default());
            pointer.copy_from_slice(&(was & !mask | offset).to_le_bytes());
            if shared {
                self.write(at + (number * size_of::<Slot>() + POINTER) as u64, pointer)?;
            }
        }
        if shared { Ok(()) } else { self.write(at, &bytes) }
    }

    /// Returns the buffers in the slots of a ring.
    fn buffers_in(&self, ring: u32, slots: u32) -> Result<Vec<u32>, Errno> {
        let mut bytes = vec![0; slots as usize * size_of::<Slot>()];
        self.read(self.geometry.ring_offset(ring) + RING_HEADER as u64, &mut bytes)?;
        let buffer = |slot: &[u8]| u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]);
        Ok(bytes.chunks_exact(size_of::<Slot>()).map(buffer).collect())
    }

    /// Allocates an interface with a list of up to `extra` buffers outside of rings. Returns its
    /// number, and the number of these buffers.
    pub(super) fn add_interface(
        &mut self,
        interface: &Interface<'_>,
        extra: u32,
    ) -> Result<(u32, u32), Errno> {
        let number = self.books.interfaces.take().ok_or(Errno::NOMEM)?;
        let list = self.books.take_up_to(extra);
        let written = self.write_list(&list).and_then(|()| {
            let bytes = self.interface_bytes(interface, number, list.first().copied().unwrap_or(0));
            self.write(self.interface_offset(number), &bytes?)
        });
        if let Err(error) = written {
            for buffer in list {
                self.books.give_buffer(buffer);
            }
            self.books.interfaces.give(number);
            return Err(error);
        }
        Ok((number, list.len() as u32))
    }

    fn interface_bytes(
        &self,
        interface: &Interface<'_>,
        number: u32,
        extra: u32,
    ) -> Result<Vec<u8>, Errno> {
        let Interface { name, tx, rx, host, bound, bound_host } = interface;
        let mut bytes = vec![0; IF_HEADER];
        let len = name.len().min(15);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        let private = if self.id == GLOBAL { 0 } else { PRIVATE };
        let version = u32::from(API);
        let [host_tx, host_rx] = host.map(|spec| spec.rings.max(FAKE_HOST_RINGS));
        let words = [version, private, tx.rings, rx.rings, extra, host_tx, host_rx];
        bytes[16..44].copy_from_slice(words.as_bytes());
        let base = self.interface_offset(number);
        let rings = |spec: &RingSpec, bound: &Range<u32>, entries: u32| -> Vec<u8> {
            let offset = |ring: u32| match bound.contains(&ring) {
                true => self.geometry.ring_offset(spec.first + ring) - base,
                false => 0,
            };
            (0..entries).flat_map(|ring| offset(ring).to_le_bytes()).collect()
        };
        bytes.extend(rings(tx, &bound[0], tx.rings));
        bytes.extend(rings(&host[0], &bound_host[0], host_tx));
        bytes.extend(rings(rx, &bound[1], rx.rings));
        bytes.extend(rings(&host[1], &bound_host[1], host_rx));
        let fits = bytes.len() <= self.geometry.if_size as usize;
        fits.then_some(bytes).ok_or(Errno::NOMEM)
    }

    /// Frees an interface, with the extra buffers that its program has left in its list.
    pub(super) fn remove_interface(&mut self, number: u32) {
        let head = self.read_u32(self.interface_offset(number) + BUFS_HEAD);
        let mut next = head.unwrap_or(0);
        // The list ends at a buffer that is not allocated. So a loop ends where it began.
        while self.books.give_buffer(next) {
            next = self.read_u32(self.buffer_offset(next)).unwrap_or(0);
        }
        self.books.interfaces.give(number);
    }

    /// Writes the number of the next buffer into each buffer of a list.
    fn write_list(&self, list: &[u32]) -> Result<(), Errno> {
        let next = list.iter().skip(1).copied().chain([0]);
        list.iter().zip(next).try_for_each(|(&buffer, next)| {
            self.write(self.buffer_offset(buffer), &next.to_le_bytes())
        })
    }

    fn buffer_offset(&self, buffer: u32) -> u64 {
        self.geometry.buf_offset() + u64::from(buffer) * u64::from(self.geometry.buf_size)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let written = rustix::io::pwrite(self.file.as_fd(), bytes, at)?;
        if written == bytes.len() { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let len = bytes.len();
        let read = rustix::io::pread(self.file.as_fd(), bytes, at)?;
        if read == len { Ok(()) } else { Err(Errno::IO) }
    }

    fn read_u32(&self, at: u64) -> Result<u32, Errno> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes).map(|()| u32::from_le_bytes(bytes))
    }

    /// Buffers that are free.
    #[cfg(test)]
    pub(super) fn free_buffers(&self) -> usize {
        self.books.free_buffers()
    }
}

#[cfg(test)]
mod tests;
