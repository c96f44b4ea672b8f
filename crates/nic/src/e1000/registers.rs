//! The state that a device keeps in memory that outlives the process running its model.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shmem::Shareable;

use super::table::{self, WORDS};
use crate::model::fault::faults;

/// A device's registers and other persistent state. All zero means never powered on.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Registers {
    /// Not zero after the first power-on.
    pub(super) powered: AtomicU32,
    /// The reason why the device has stopped: a [`Fault`], or 0.
    pub(super) fault: AtomicU32,
    /// How many faults the device has had.
    pub(super) faults: AtomicU32,
    /// Not zero if bus mastering is allowed.
    pub(super) bus_master: AtomicU32,
    /// Not zero if the cable is connected.
    pub(super) link: AtomicU32,
    /// Offset that the I/O window gives access to.
    pub(super) io_address: AtomicU32,
    /// Interrupts.
    pub(super) interrupts: InterruptState,
    /// Transmit queues.
    pub(super) tx: [TxState; 2],
    /// Receive queues.
    pub(super) rx: [RxState; 2],
    /// The EEPROM's shift register.
    pub(super) shifter: Shifter,
    /// PHY registers.
    pub(super) phy: [AtomicU32; 32],
    /// Octet counters.
    pub(super) octets: [AtomicU64; 4],
    /// The registers of the table.
    ///
    /// # Protocol: e1000 (`nic::e1000`): TDT, RDT (registers; with a status block its tails)
    /// - Writer: home worker, for the driver
    /// - Reader: the same (transmit); holder of a receive queue's lock
    /// - Ordering: store release / load acquire, once a batch
    /// - Partner: descriptors before it
    /// - Without it: a descriptor is read half written
    /// - Shown by: `nic` tests `e1000`, `e1000_driver`
    pub(super) words: [AtomicU32; WORDS],
}

/// Interrupts and their moderation.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct InterruptState {
    /// How interrupts are signalled: an [`InterruptMode`](crate::device::InterruptMode) as a
    /// number.
    pub mode: AtomicU32,
    /// Raised vectors. With the pin, the line; with messages, those sent for causes that are still
    /// set.
    pub raised: AtomicU32,
    /// When each vector was last raised, or 0.
    pub last: [AtomicU64; VECTORS],
    /// Causes that wait for a timer.
    pub held: AtomicU32,
    /// When delayed causes are due, or 0: see [`Timer`].
    pub timers: [AtomicU64; 4],
}

/// Vectors of the 82574L.
pub(super) const VECTORS: usize = 5;

/// Timers that delay a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Timer {
    /// RDTR, restarted by each frame.
    Rx,
    /// RADV, started by the first frame.
    RxAbsolute,
    /// TIDV.
    Tx,
    /// TADV.
    TxAbsolute,
}

/// A transmit queue's state beside its registers. Descriptors between the head (TDH) and `taken`
/// are lent.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct TxState {
    /// The descriptor up to which all were taken.
    pub taken: AtomicU32,
    /// The completions that must still be reported to the driver: bits of [`told`].
    pub told: AtomicU32,
    /// Contexts, four words each: the first for checksums, the second for segmentation.
    pub contexts: [[AtomicU32; 4]; 2],
    /// Where memory is a copy: descriptors before this place have left for the guest's memory in
    /// their final form. Otherwise [`NOT_SENT`].
    ///
    /// # Protocol: e1000, PCnet: `sent` (state memory)
    /// - Writer: home worker, after the descriptors before it were sent
    /// - Reader: a successor, as it starts: later descriptors may have left or not
    /// - Ordering: relaxed: no two processes at a time
    /// - Partner: head
    /// - Without it: after a death the driver waits at a descriptor that the device does not write
    /// - Shown by: `nic` tests `e1000` (`remote`), `pcnet_remote`,
    ///   `what_died_with_a_copy_is_given_back`, `regression_what_had_left_...`
    pub sent: AtomicU32,
}

/// Not a place in a ring: nothing of the ring was ever sent.
pub(super) const NOT_SENT: u32 = u32::MAX;

/// What a transmit queue reports when it settles.
pub(super) mod told {
    /// A descriptor is done whose driver wants to know.
    pub const NOW: u32 = 1;
    /// A descriptor is done whose driver can wait.
    pub const DELAYED: u32 = 2;
    /// The ring is empty.
    pub const EMPTY: u32 = 4;
    /// Few descriptors are left.
    pub const LOW: u32 = 8;
}

/// A receive queue's state in addition to its registers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RxState {
    /// Not zero: frames were delivered, and the driver was not told yet.
    ///
    /// # Protocol: e1000: `RxState.unsettled`, `TxState.told`
    /// - Writer: holder of a receive queue's lock; worker
    /// - Reader: the worker that settles
    /// - Ordering: `fetch_or`, swap acquire-release; `told`: relaxed, one thread
    /// - Partner: ICR
    /// - Without it: the driver is not told of a frame; a successor always tells
    /// - Shown by: `nic` tests `e1000` (`bringup`, `l82574`, `moderation`)
    pub unsettled: AtomicU32,
    /// While descriptors are handed over: the head's new position, plus one. Otherwise 0.
    ///
    /// # Protocol: e1000: `RxState.first`, `moving`; RDH; `TxState.taken`, TDH
    /// - Writer: holder of a receive queue's lock; worker
    /// - Reader: a successor, as it starts
    /// - Ordering: `first` (relaxed), then `moving` before the descriptors, RDH and `moving` = 0
    ///   after them; `taken` before frames are lent, TDH after the descriptors: store release /
    ///   load acquire or relaxed, no two processes at a time
    /// - Partner: the first descriptor's DD; if a later descriptor is not done after a death, all
    ///   of them are handed over as damaged
    /// - Without it: after a death the driver waits at a descriptor that the device does not write,
    ///   or frames are sent twice
    /// - Shown by: unit tests `what_was_handed_over_halfway_...`,
    ///   `regression_what_was_not_written_...`, `nic` tests `e1000`
    pub moving: AtomicU32,
    /// The second word of the first of these descriptors, which is written last.
    pub first: AtomicU64,
    /// Like [`TxState::sent`].
    pub sent: AtomicU32,
}

/// The Microwire side of the EEPROM.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shifter {
    /// How many bits were shifted in so far.
    pub bits_in: AtomicU32,
    /// The bits that were shifted in.
    pub value: AtomicU32,
    /// The index of the next data bit to shift out, counted from the array's start, plus one; 0
    /// outside of a read.
    pub bit_out: AtomicU32,
    /// The last state of the wires.
    pub wires: AtomicU32,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: the type consists of atomic words only; padding is never read.
unsafe impl Shareable for Registers {}

const _: () = assert!(size_of::<Registers>() <= 16 << 10);

faults! {
    /// Errors of a driver that stop its NIC.
    Fault {
        /// A ring that does not lie in guest memory.
        BadRing = 1, "a descriptor ring does not lie in guest memory";
        /// A head or tail beyond the ring's end.
        BadIndex = 2, "a head or tail is beyond its ring's end";
        /// A buffer outside of guest memory.
        BadAddress = 3, "a buffer does not lie in guest memory";
        /// A full ring, or 256 descriptors, without the end of a frame.
        EndlessFrame = 4, "a frame has no end";
        /// A shared status block that is missing or invalid.
        BadCsb = 5, "the shared status block is malformed";
        /// Guest memory that has failed: its file was truncated, or a page was lost.
        Memory = 6, "guest memory has failed";
        /// Guest memory that could not be read or written by messages.
        Unreachable = 7, "guest memory cannot be reached by messages";
    }
}

impl Registers {
    /// The word of a register.
    #[inline(always)]
    pub(super) fn get(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets the word of a register.
    #[inline(always)]
    pub(super) fn set(&self, word: usize, value: u32) {
        if let Some(word) = self.words.get(word) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Sets the word of a register that hands data over to another thread.
    #[inline(always)]
    pub(super) fn publish(&self, word: usize, value: u32) {
        if let Some(word) = self.words.get(word) {
            word.store(value, Ordering::Release);
        }
    }

    /// Reads the word of a register that [`publish`](Self::publish) sets.
    #[inline(always)]
    pub(super) fn observe(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets bits in the word of a register that several threads write. Returns the previous value.
    #[inline(always)]
    pub(super) fn set_bits(&self, word: usize, bits: u32) -> u32 {
        self.words.get(word).map_or(0, |word| word.fetch_or(bits, Ordering::SeqCst))
    }

    /// Reads the word of a register that [`set_bits`](Self::set_bits) sets. If two threads each set
    /// bits in one word and then read the other's, at least one sees the other's bits.
    #[inline(always)]
    pub(super) fn look(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Clears bits of such a register, likewise.
    #[inline(always)]
    pub(super) fn clear_bits(&self, word: usize, bits: u32) -> u32 {
        self.words.get(word).map_or(0, |word| word.fetch_and(!bits, Ordering::AcqRel))
    }

    /// Clears the word of a register that several threads write. Returns the previous value.
    pub(super) fn take(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.swap(0, Ordering::AcqRel))
    }

    /// The address in two words.
    pub(super) fn address(&self, [low, high]: [usize; 2]) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(high)) << 32
    }

    /// Adds to a statistic, which saturates.
    #[inline]
    pub(super) fn count(&self, word: usize, n: u32) {
        if n == 0 {
            return;
        }
        if let Some(word) = self.words.get(word) {
            let add = |value: u32| Some(value.saturating_add(n));
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Adds to an octet counter, which saturates.
    #[inline]
    pub(super) fn count_octets(&self, counter: u8, n: u64) {
        if let Some(counter) = self.octets.get(usize::from(counter)) {
            let add = |value: u64| Some(value.saturating_add(n));
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// The fault that stopped the device.
    #[inline]
    pub(super) fn fault(&self) -> Option<Fault> {
        match self.fault.load(Ordering::Relaxed) {
            0 => None,
            number => Some(Fault::of(number).unwrap_or(Fault::Memory)),
        }
    }

    /// Stops the device.
    pub(super) fn fail(&self, fault: Fault) {
        self.fault.store(fault as u32, Ordering::Release);
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// True if the device may touch guest memory.
    #[inline(always)]
    pub(super) fn may_access_memory(&self) -> bool {
        self.bus_master.load(Ordering::Relaxed) != 0 && self.fault.load(Ordering::Relaxed) == 0
    }

    /// True if the cable is connected.
    #[inline(always)]
    pub(super) fn has_link(&self) -> bool {
        self.link.load(Ordering::Relaxed) != 0
    }

    /// Bytes of a receive buffer (RCTL.BSIZE, BSEX).
    pub(super) fn buffer_size(&self) -> u32 {
        let rctl = self.get(table::RCTL);
        let code = rctl >> 16 & 3;
        match (rctl & table::rctl::BSEX != 0, code) {
            // A reserved value: taken as the smallest extended size.
            (true, 0) => 4096,
            (true, _) => 32768 >> code,
            (false, _) => 2048 >> code,
        }
    }
}
