//! netmap's structures in memory (API 14), and the control block of a ring.
//!
//! Ownership in one sentence: slots from `head` to `tail - 1` belong to the client, the others to
//! the core (the switch, or the twin of a pipe); one slot always stays empty.

use frame::OffloadSet;
use shmem::sync::{AtomicU32, AtomicU64, Ordering};
use shmem::{Cursor, Mapping, Shareable, Shared, SharedSlice, WakeFlag};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub use crate::fault::Fault;
pub use crate::format::Format;

/// Bytes of a buffer that frames use by default.
pub const BUFFER_BYTES: u32 = 2048;
/// Default distance of buffers: 64 bytes more than they use, so that headers fall into different
/// cache sets. Rings report it to programs as `nr_buf_size`.
pub const BUFFER_STRIDE: u32 = 2112;
/// Slots of a ring by default.
pub const SLOTS: u32 = 1024;
/// The maximum number of slots of a ring.
pub const MAX_SLOTS: u32 = 4096;
/// The maximum number of rings of a port in each direction.
pub const MAX_RINGS: u32 = 16;
/// The maximum number of slots of a frame (`NETMAP_MAX_FRAGS`).
pub const MAX_FRAGS: usize = 64;
/// Buffers 0 and 1 are never handed out.
pub const RESERVED_BUFFERS: u32 = 2;
/// The maximum number of bytes of a region: legacy programs keep offsets in 32 bits.
pub const MAX_REGION: u64 = 1 << 32;

/// Slot flags (`NS_*`).
pub mod slot_flags {
    /// The buffer of the slot was exchanged.
    pub const BUF_CHANGED: u16 = 0x0001;
    /// Early completion report; software ports ignore it.
    pub const REPORT: u16 = 0x0002;
    /// Pass to the peer's stack (NIC ports only).
    pub const FORWARD: u16 = 0x0004;
    /// Do not learn the source address.
    pub const NO_LEARN: u16 = 0x0008;
    /// The bytes are at the address in `ptr`; the client's library resolves it.
    pub const INDIRECT: u16 = 0x0010;
    /// The frame continues in the next slot.
    pub const MOREFRAG: u16 = 0x0020;
    /// A monitor's slot: the watched port has sent the frame.
    pub const TXMON: u16 = 0x0040;
    /// toklat's own: `ptr` of the frame's first slot is an offload request
    /// ([`frame::Offload::to_word`]). Only in ports that were opened with offloads, and never
    /// beside [`INDIRECT`].
    pub const OFFLOAD: u16 = 0x0080;
}

/// A slot's first eight bytes, read or written at once: `buf_idx` u32 | `len` u16 | `flags` u16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWord {
    /// Buffer number.
    pub buf: u32,
    /// Bytes of the frame in the buffer.
    pub len: u16,
    /// [`slot_flags`].
    pub flags: u16,
}

impl SlotWord {
    /// The word that has these bits.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { buf: bits as u32, len: (bits >> 32) as u16, flags: (bits >> 48) as u16 }
    }

    /// The slot word's bits, as in memory.
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.buf as u64 | (self.len as u64) << 32 | (self.flags as u64) << 48
    }
}

/// `struct netmap_slot`: 16 bytes.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// # Protocol: `Slot.word`
    /// - Writer: owner of the slot
    /// - Reader: its next owner
    /// - Ordering: relaxed: the cursor orders it; one 64-bit access
    /// - Partner: `owner` or `core`
    /// - Without it: a length torn from its buffer number
    /// - Shown by: `Slot` tests
    word: AtomicU64,
    /// The address of an indirect buffer, an offload request, or the time of a monitor's frame. It
    /// is read once and validated.
    pub ptr: AtomicU64,
}

// SAFETY: the type consists of two atomic words.
unsafe impl Shareable for Slot {}

impl Slot {
    /// A snapshot of buffer number, length and flags: one load, so it cannot be torn.
    #[inline(always)]
    pub fn load(&self) -> SlotWord {
        SlotWord::from_bits(self.word.load(Ordering::Relaxed))
    }

    /// Where in its buffer the slot's bytes start. The word is read once; its owner may change it
    /// at any time.
    #[inline(always)]
    #[must_use]
    pub fn offset(&self, format: Format) -> u64 {
        match format.offset_mask() {
            0 => 0,
            mask => self.ptr.load(Ordering::Relaxed) & mask,
        }
    }

    /// Stores buffer number, length and flags at once. The ring's cursor publishes them.
    #[inline(always)]
    pub fn store(&self, word: SlotWord) {
        self.word.store(word.to_bits(), Ordering::Relaxed);
    }
}

/// `struct netmap_ring` without its slots: 256 bytes; slots follow.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct RingHeader {
    /// Distance from the ring to the buffer pool, in bytes.
    pub buf_ofs: AtomicU64,
    /// Slots of the ring.
    pub num_slots: AtomicU32,
    /// Distance of buffers.
    pub nr_buf_size: AtomicU32,
    /// `ringid` (low 16 bits) and `dir` (0 send, 1 receive; high 16 bits).
    pub ringid_dir: AtomicU32,
    /// First slot of the client.
    ///
    /// # Protocol: `RingHeader.head/cur/tail`
    /// - Writer: client
    /// - Reader: client (and netmap programs in its process)
    /// - Ordering: relaxed
    /// - Partner: none: the core ignores them
    /// - Without it: nothing: they are a view
    pub head: AtomicU32,
    /// Where the client wants to be woken.
    pub cur: AtomicU32,
    /// First slot of the core.
    pub tail: AtomicU32,
    /// `NR_TIMESTAMP`, `NR_FORWARD`.
    pub flags: AtomicU32,
    /// The process that currently syncs the ring, or 0: several of netmap's programs may share it.
    /// netmap leaves the word unused. It shares a line with the client's positions, which only the
    /// syncing process uses.
    ///
    /// # Protocol: `RingHeader.holder` (netmap's programs)
    /// - Writer: the process that syncs the ring
    /// - Reader: other processes that have it
    /// - Ordering: compare-exchange acquire, store release
    /// - Partner: the ring header, `owner`
    /// - Without it: two processes publish the same slots, and `owner` goes back
    /// - Shown by: `netmap` test
    ///   `a_ring_that_is_held_is_passed_over_until_its_holder_is_dead`
    pub holder: AtomicU32,
    /// Time of the last receive sync: seconds, microseconds.
    pub ts: [AtomicU64; 2],
    /// Bits of `ptr` that are an offset into the buffer.
    pub offset_mask: AtomicU64,
    /// Alignment of buffers.
    pub buf_align: AtomicU64,
    pad1: [AtomicU64; 7],
    /// Belongs to applications; never touched.
    pub sem: [AtomicU64; 16],
}

// SAFETY: the type consists of atomic words only, without padding between them (checked below).
unsafe impl Shareable for RingHeader {}

/// Bytes of [`RingHeader`].
pub const RING_HEADER: usize = 256;

const _: () = assert!(size_of::<Slot>() == 16);
const _: () = assert!(size_of::<RingHeader>() == RING_HEADER);
const _: () = assert!(std::mem::offset_of!(RingHeader, head) == 20);
const _: () = assert!(std::mem::offset_of!(RingHeader, ts) == 40);
const _: () = assert!(std::mem::offset_of!(RingHeader, offset_mask) == 56);
const _: () = assert!(std::mem::offset_of!(RingHeader, sem) == 128);

/// `struct netmap_if` without its ring offsets: 56 bytes; `ring_ofs` (8 bytes each) follow.
pub const IF_HEADER: usize = 56;

/// The transport's words of one ring, outside of the region. Each line has one writer.
///
/// | line | writer | send ring | receive ring |
/// |---|---|---|---|
/// | `owner` | client | `head`: slots before it are submitted | `head`: slots before it are released |
/// | `owner_flags` | client | asks to be woken when `core` moves | the same |
/// | `core` | core | first slot not yet given back (`hwcur`) | first slot not yet filled (`hwtail`) |
/// | `core_flags` | core | asks to be woken when `owner` moves | the same, in pipes only |
///
/// All positions are slot numbers, `0..num_slots`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Control {
    /// The client's head.
    ///
    /// # Protocol: `Control.owner` (`Cursor`)
    /// - Writer: client
    /// - Reader: worker
    /// - Ordering: store release / load acquire
    /// - Partner: the slots and payload before it
    /// - Without it: the worker reads slots that are not written yet
    /// - Shown by: loom `published_slots_are_seen_whole`
    pub owner: Line<Cursor>,
    /// The client's flags.
    pub owner_flags: Line<OwnerFlags>,
    /// The core's position.
    ///
    /// # Protocol: `Control.core` (`Cursor`)
    /// - Writer: worker (send ring: settle; receive ring: deliver, under the egress lock)
    /// - Reader: client
    /// - Ordering: store release / load acquire
    /// - Partner: slots and payload delivered; slots given back
    /// - Without it: the client reads a frame before its bytes, or overwrites one that is being
    ///   copied
    /// - Shown by: loom `published_slots_are_seen_whole`
    ///
    /// # Protocol: `Control.core` of a pipe's send ring (netmap's programs)
    /// - Writer: the sending end: slots before it are taken back from the receiving end
    /// - Reader: the sending end, in any process
    /// - Ordering: relaxed: `RingHeader.holder` orders it
    /// - Partner: `Control.owner` of the receive ring
    /// - Without it: buffers that the receiving end has put into its slots are lost
    /// - Shown by: `netmap` rule `pipe_zero_copy`
    ///
    /// # Protocol: `Control.core`, `core_flags.wake` of a pipe's receive ring
    /// - Writer: the sending end, which plays the core for it and fills its slots directly
    /// - Reader: the receiving end
    /// - Ordering: as in a send ring: store release / load acquire
    /// - Partner: `Control.owner` of the same ring
    /// - Without it: the receiving end reads a frame before its bytes, or sleeps for ever
    /// - Shown by: `netring` tests `hostile`, `pipe`
    pub core: Line<Cursor>,
    /// The core's flags.
    pub core_flags: Line<CoreFlags>,
}

// SAFETY: the type consists of shareable lines only.
unsafe impl Shareable for Control {}

/// Bytes of [`Control`].
pub const CONTROL: usize = 256;
const _: () = assert!(size_of::<Control>() == CONTROL);

/// A value with a cache line to itself.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line<T>(pub T);

// SAFETY: T is shareable; the padding is never read.
unsafe impl<T: Shareable> Shareable for Line<T> {}

/// What the client tells the core, besides its `head`.
#[derive(Debug)]
#[repr(C)]
pub struct OwnerFlags {
    /// Wake me (a byte on the token, or an eventfd for pipes).
    ///
    /// # Protocol: `owner_flags.wake` (`WakeFlag`)
    /// - Writer: client
    /// - Reader: worker
    /// - Ordering: relaxed, each side fences `SeqCst` between its store and its load
    /// - Partner: `Control.core`
    /// - Without it: a client sleeps for ever beside a full ring
    /// - Shown by: loom `wake_up_is_never_lost`
    pub wake: WakeFlag,
    /// A client increments it to ask for a reset of its port. It counts on ring 0 of the first
    /// direction that the port has.
    ///
    /// # Protocol: `owner_flags.reset_wanted`
    /// - Writer: client
    /// - Reader: worker
    /// - Ordering: store release / load acquire; acted on when no gathered frame waits
    /// - Partner: `core_flags.reset_done`
    /// - Without it: rings are reset before the client has put them into their first state
    /// - Shown by: `dataplane` tests `faults`
    pub reset_wanted: AtomicU32,
    /// What slots hold besides frames: the bits of a [`Format`].
    ///
    /// # Protocol: `owner_flags.format`
    /// - Writer: client, or the daemon for netmap's programs
    /// - Reader: worker
    /// - Ordering: relaxed: of a send ring, each batch; of a receive ring, when the port is
    ///   attached and when the daemon says so
    /// - Partner: none: a wrong value spoils frames of the same ring
    /// - Without it: headers and offsets are taken for frames
    /// - Shown by: `netmap` tests `offsets`, `port_headers`
    pub format: AtomicU32,
    /// The receive ring of a zero-copy monitor, which gets the buffers of slots that are given
    /// back: 0, or its number and one, and in the upper half its slots.
    ///
    /// # Protocol: `owner_flags.watcher` (netmap's programs)
    /// - Writer: daemon
    /// - Reader: the process that syncs the ring
    /// - Ordering: relaxed: the ring of a monitor that has gone stays as it is while this one
    ///   exists
    /// - Partner: `core_flags.filling` of the monitor's ring
    /// - Without it: a monitor sees nothing
    /// - Shown by: `netmap` rule `watchers`
    pub watcher: AtomicU32,
    /// The receive rings of copying monitors, in the form of `watcher`. A ring names the first one
    /// that gets copies of what it sends, or of what it receives. The ring of a monitor names the
    /// next one of each list.
    ///
    /// # Protocol: `owner_flags.copiers` (netmap's programs)
    /// - Writer: daemon
    /// - Reader: the process that sends by the ring, or by the other end of a pipe
    /// - Ordering: relaxed: the ring of a monitor that has gone stays as it is while the monitored
    ///   one exists
    /// - Partner: `core_flags.filling` of the monitor's ring
    /// - Without it: a monitor sees nothing
    /// - Shown by: `netmap` rule `pipe_monitors`
    pub copiers: [AtomicU32; 2],
}

/// Places in [`OwnerFlags::copiers`].
pub mod copier {
    /// What a send ring sends.
    pub const SENT: usize = 0;
    /// What a receive ring receives.
    pub const RECEIVED: usize = 1;
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for OwnerFlags {}

impl OwnerFlags {
    /// What slots hold besides frames.
    #[inline(always)]
    #[must_use]
    pub fn format(&self) -> Format {
        Format::from_bits(self.format.load(Ordering::Relaxed))
    }
}

/// What the core tells the client, besides its position.
#[derive(Debug)]
#[repr(C)]
pub struct CoreFlags {
    /// Wake me (a byte on the token, or an eventfd for pipes).
    ///
    /// # Protocol: `core_flags.wake` (`WakeFlag`) of send rings; of receive rings only in pipes
    /// - Writer: worker
    /// - Reader: client
    /// - Ordering: relaxed, each side fences `SeqCst` between its store and its load
    /// - Partner: `Control.owner`
    /// - Without it: a worker sleeps while frames wait
    /// - Shown by: loom `wake_up_is_never_lost`
    pub wake: WakeFlag,
    /// 0, or a [`Fault`]: then the core ignores the ring until the port is reset.
    ///
    /// # Protocol: `core_flags.fault`, `reset_done`
    /// - Writer: worker
    /// - Reader: client; after a restart, `fault` also a data process
    /// - Ordering: fault: store release / load relaxed, then a kick; `reset_done`: store release /
    ///   load acquire, after the cursors
    /// - Partner: `reset_wanted`
    /// - Without it: the client goes on with old cursors
    /// - Shown by: `dataplane` tests `faults`
    pub fault: AtomicU32,
    /// The last value of `reset_wanted` whose reset was carried out.
    pub reset_done: AtomicU32,
    /// The process that fills a zero-copy monitor's receive ring, or 0.
    ///
    /// # Protocol: `core_flags.filling` (netmap's programs)
    /// - Writer: the process that syncs a ring that is monitored
    /// - Reader: other such processes
    /// - Ordering: compare-exchange acquire, store release
    /// - Partner: `Control.core` of the same ring
    /// - Without it: two processes fill one slot
    /// - Shown by: `netmap` rule `watchers`
    pub filling: AtomicU32,
}

// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for CoreFlags {}

/// How a region is divided. Sizes in bytes; every pool starts on a page.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Geometry {
    /// Bytes of an interface object (`netmap_if` and its ring offsets).
    pub if_size: u32,
    /// How many interface objects.
    pub if_num: u32,
    /// Bytes of a ring object (header and slots).
    pub ring_size: u32,
    /// The number of rings.
    pub ring_num: u32,
    /// Distance of buffers.
    pub buf_size: u32,
    /// The number of buffers, including the two reserved ones.
    pub buf_num: u32,
}

/// A geometry or ring that does not fit its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("The region's {0} is out of range")]
pub struct GeometryError(pub &'static str);

const PAGE: u64 = 4096;

impl Geometry {
    /// Bytes of the netmap part (`nr_memsize`).
    #[must_use]
    pub const fn region_size(&self) -> u64 {
        self.buf_offset() + pool(self.buf_size, self.buf_num)
    }

    /// Bytes of the memory file: region and control blocks.
    #[must_use]
    pub const fn file_size(&self) -> u64 {
        self.region_size() + pool(CONTROL as u32, self.ring_num)
    }

    /// Where ring object `ring` starts.
    #[must_use]
    pub const fn ring_offset(&self, ring: u32) -> u64 {
        pool(self.if_size, self.if_num) + self.ring_size as u64 * ring as u64
    }

    /// Where the control block of ring object `ring` starts.
    #[must_use]
    pub const fn control_offset(&self, ring: u32) -> u64 {
        self.region_size() + CONTROL as u64 * ring as u64
    }

    /// Where buffer 0 starts.
    #[must_use]
    pub const fn buf_offset(&self) -> u64 {
        pool(self.if_size, self.if_num) + pool(self.ring_size, self.ring_num)
    }

    /// Checks sizes, counts and alignment, and that a file of `file_len` bytes holds it all.
    ///
    /// # Errors
    /// The message names the field that is out of range.
    pub fn check(&self, file_len: usize) -> Result<(), GeometryError> {
        let aligned = |size: u32, to: u32| size.is_multiple_of(to);
        let checks = [
            (aligned(self.if_size, 64) && (64..=4096).contains(&self.if_size), "if_size"),
            ((1..=10_000).contains(&self.if_num), "if_num"),
            (aligned(self.ring_size, 128), "ring_size alignment"),
            ((384..=131_072).contains(&self.ring_size), "ring_size"),
            ((1..=1024).contains(&self.ring_num), "ring_num"),
            (aligned(self.buf_size, 64) && (64..=65_536).contains(&self.buf_size), "buf_size"),
            ((RESERVED_BUFFERS + 1..=1_000_000).contains(&self.buf_num), "buf_num"),
        ];
        if let Some((_, what)) = checks.into_iter().find(|(good, _)| !good) {
            return Err(GeometryError(what));
        }
        // The sizes are computed last, because those of unchecked numbers may not fit 64 bits.
        match self.file_size() {
            size if size > MAX_REGION => Err(GeometryError("size")),
            size if size > file_len as u64 => Err(GeometryError("size: the file is shorter")),
            _ => Ok(()),
        }
    }
}

/// Bytes of a pool, in whole pages.
const fn pool(size: u32, count: u32) -> u64 {
    (size as u64 * count as u64).next_multiple_of(PAGE)
}

/// The ring objects of a region that a port uses in one direction: `rings` consecutive ones.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RingSpec {
    /// The first ring object.
    pub first: u32,
    /// How many rings, 0 to [`MAX_RINGS`].
    pub rings: u32,
    /// Slots of each, 2 to [`MAX_SLOTS`].
    pub slots: u32,
}

impl RingSpec {
    /// Checks that the rings exist and their slots fit.
    ///
    /// # Errors
    /// The message names what is out of range.
    pub fn check(&self, geometry: &Geometry) -> Result<(), GeometryError> {
        let room = geometry.ring_size.saturating_sub(RING_HEADER as u32) / size_of::<Slot>() as u32;
        let end = self.first.checked_add(self.rings);
        let checks = [
            (self.rings <= MAX_RINGS, "number of rings"),
            (self.rings == 0 || (2..=MAX_SLOTS.min(room)).contains(&self.slots), "number of slots"),
            (end.is_some_and(|end| end <= geometry.ring_num), "ring number"),
        ];
        match checks.into_iter().find(|(good, _)| !good) {
            Some((_, what)) => Err(GeometryError(what)),
            None => Ok(()),
        }
    }
}

/// A ring's parts, mapped.
#[derive(Clone, Debug)]
pub struct RingMemory {
    /// The header that programs see.
    pub header: Shared<RingHeader>,
    /// Its slots.
    pub slots: SharedSlice<Slot>,
    /// The control block, with the transport's words.
    pub control: Shared<Control>,
}

impl RingMemory {
    /// The parts of ring object `ring` with `slots` slots; `None` if they are not within the
    /// mapping.
    #[must_use]
    pub fn of(map: &Arc<Mapping>, geometry: &Geometry, ring: u32, slots: u32) -> Option<Self> {
        let at = usize::try_from(geometry.ring_offset(ring)).ok()?;
        let control = usize::try_from(geometry.control_offset(ring)).ok()?;
        Some(Self {
            header: map.shared(at)?,
            slots: map.shared_slice(at + RING_HEADER, slots as usize)?,
            control: map.shared(control)?,
        })
    }
}

/// The maximum number of bytes of a frame that is to be segmented: an IP packet, its Ethernet
/// header and two tags.
pub const MAX_SEGMENTED: u32 = u16::MAX as u32 + 14 + 8;

/// The requests among `wanted` that a port can carry that receives by `rx`, in buffers of `usable`
/// bytes. A frame that is to be segmented must fit into a chain of slots, and the chain into the
/// ring.
#[must_use]
pub fn carried(wanted: OffloadSet, usable: u32, rx: &RingSpec) -> OffloadSet {
    let chain = MAX_SEGMENTED.div_ceil(usable.clamp(1, u16::MAX.into()));
    let long = chain as usize <= MAX_FRAGS && (chain < rx.slots || rx.rings == 0);
    match (wanted.checksum, long) {
        (false, _) => OffloadSet::NONE,
        (true, true) => wanted,
        (true, false) => OffloadSet { checksum: true, ..OffloadSet::NONE },
    }
}

/// The slot after `at` in a ring of `slots`.
#[inline(always)]
#[must_use]
pub const fn next(at: u32, slots: u32) -> u32 {
    if at + 1 >= slots { 0 } else { at + 1 }
}

/// The slot before `at` in a ring of `slots`.
#[inline(always)]
#[must_use]
pub const fn previous(at: u32, slots: u32) -> u32 {
    if at == 0 { slots - 1 } else { at - 1 }
}

/// Slots from `from` up to, not including, `to`. Both must be below `slots`.
#[inline(always)]
#[must_use]
pub const fn distance(from: u32, to: u32, slots: u32) -> u32 {
    if to >= from { to - from } else { to + slots - from }
}

/// The slot `n` after `at`; `n` at most `slots`.
#[inline(always)]
#[must_use]
pub const fn advance(at: u32, n: u32, slots: u32) -> u32 {
    let to = at + n;
    if to >= slots { to - slots } else { to }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_the_size_of_a_hostile_geometry_does_not_overflow() {
        let ones = [u32::MAX; 6];
        let Ok(geometry) = Geometry::read_from_bytes(ones.as_bytes()) else { unreachable!() };
        assert!(geometry.check(usize::MAX).is_err());
    }
}
