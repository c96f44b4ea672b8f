//! What a device remembers, in memory that outlives the process that models it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use shmem::Shareable;

use super::table::{self, WORDS};
use crate::model::fault::faults;

/// A device's registers and what else must survive. All zero is one that was never powered on.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Registers {
    /// Not zero once it was powered on.
    pub(super) powered: AtomicU32,
    /// Why it has stopped: a [`Fault`], or 0.
    pub(super) fault: AtomicU32,
    /// Faults so far.
    pub(super) faults: AtomicU32,
    /// Bus mastering is allowed.
    pub(super) bus_master: AtomicU32,
    /// The cable is connected.
    pub(super) link: AtomicU32,
    /// Offset that the I/O window shows.
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
    /// How they are signalled: an [`InterruptMode`](crate::device::InterruptMode) as a number.
    pub mode: AtomicU32,
    /// Vectors that are up: by pin, the line; by message, sent for causes that are still there.
    pub raised: AtomicU32,
    /// By vector: when it was raised last, or 0.
    pub last: [AtomicU64; VECTORS],
    /// Causes that wait for a timer.
    pub held: AtomicU32,
    /// When delayed causes are due, or 0: see [`Timer`].
    pub timers: [AtomicU64; 4],
}

/// Vectors of the 82574L.
pub(super) const VECTORS: usize = 5;

/// Delays before a cause is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Timer {
    /// RDTR, begun anew by each frame.
    Rx,
    /// RADV, begun by the first.
    RxAbsolute,
    /// TIDV.
    Tx,
    /// TADV.
    TxAbsolute,
}

/// A transmit queue beside its registers. What lies between the head (TDH) and `taken` is lent.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct TxState {
    /// Descriptors before it were taken.
    pub taken: AtomicU32,
    /// What completion is to be said of: bits of [`told`].
    pub told: AtomicU32,
    /// Contexts: the first for checksums, the second for segmentation; four words each.
    pub contexts: [[AtomicU32; 4]; 2],
    /// Where memory is a copy: descriptors before it have left for the guest's as they are to be; else
    /// [`NOT_SENT`].
    ///
    /// # Protocol: e1000, PCnet: `sent` (state memory)
    /// - Writer: home worker, after what is before it was sent
    /// - Reader: a successor, as it starts: what is behind it may have left or not
    /// - Ordering: relaxed: no two processes at a time
    /// - Partner: head
    /// - Without it: after a death the driver waits at a descriptor that the device does not write
    /// - Shown by: `nic` tests `e1000` (`remote`), `pcnet_remote`, `what_died_with_a_copy_is_given_back`, `regression_what_had_left_...`
    pub sent: AtomicU32,
}

/// No place in a ring: nothing of it was sent ever.
pub(super) const NOT_SENT: u32 = u32::MAX;

/// What a transmit queue has to say when it settles.
pub(super) mod told {
    /// A descriptor is done whose driver wants to know.
    pub const NOW: u32 = 1;
    /// One that may wait.
    pub const DELAYED: u32 = 2;
    /// The ring is empty.
    pub const EMPTY: u32 = 4;
    /// It is about to be.
    pub const LOW: u32 = 8;
}

/// A receive queue beside its registers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct RxState {
    /// Not zero: frames were delivered that nobody has been told of.
    ///
    /// # Protocol: e1000: `RxState.unsettled`, `TxState.told`
    /// - Writer: holder of a receive queue's lock; worker
    /// - Reader: the worker that settles
    /// - Ordering: `fetch_or`, swap acquire-release; `told`: relaxed, one thread
    /// - Partner: ICR
    /// - Without it: the driver is not told of a frame; a successor always tells
    /// - Shown by: `nic` tests `e1000` (`bringup`, `l82574`, `moderation`)
    pub unsettled: AtomicU32,
    /// While descriptors are handed over: one more than where the head is about to go; else 0.
    ///
    /// # Protocol: e1000: `RxState.first`, `moving`; RDH; `TxState.taken`, TDH
    /// - Writer: holder of a receive queue's lock; worker
    /// - Reader: a successor, as it starts
    /// - Ordering: `first` (relaxed), then `moving` before the descriptors, RDH and `moving` = 0
    ///   after them; `taken` before frames are lent, TDH after the descriptors: store release /
    ///   load acquire or relaxed, no two processes at a time
    /// - Partner: the first descriptor's DD; if another than the first is not done after a death,
    ///   all of them are handed over as damaged
    /// - Without it: after a death the driver waits at a descriptor that the device does not write,
    ///   or frames are sent twice
    /// - Shown by: unit tests `what_was_handed_over_halfway_...`,
    ///   `regression_what_was_not_written_...`, `nic` tests `e1000`
    pub moving: AtomicU32,
    /// The second word of the first of them, which is written last.
    pub first: AtomicU64,
    /// As [`TxState::sent`].
    pub sent: AtomicU32,
}

/// The Microwire side of the EEPROM.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shifter {
    /// Bits shifted in so far.
    pub bits_in: AtomicU32,
    /// What was shifted in.
    pub value: AtomicU32,
    /// The next data bit to be shifted out, counted from the array's start, plus one; 0 outside of a
    /// read.
    pub bit_out: AtomicU32,
    /// The wires as they were.
    pub wires: AtomicU32,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: atomic words only; padding is never read.
unsafe impl Shareable for Registers {}

const _: () = assert!(size_of::<Registers>() <= 16 << 10);

faults! {
    /// What a driver did wrong, and stopped its NIC by.
    Fault {
        /// A ring that does not lie in guest memory.
        BadRing = 1, "a descriptor ring does not lie in guest memory";
        /// A head or tail beyond the ring's end.
        BadIndex = 2, "a head or tail is beyond its ring's end";
        /// A buffer outside of guest memory.
        BadAddress = 3, "a buffer does not lie in guest memory";
        /// A full ring, or 256 descriptors, without the end of a frame.
        EndlessFrame = 4, "a frame has no end";
        /// A shared status block that is not there, or says nonsense.
        BadCsb = 5, "the shared status block is malformed";
        /// Guest memory that has failed: its file was truncated, or a page was lost.
        Memory = 6, "guest memory has failed";
        /// Guest memory that could not be read or written by message.
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

    /// Sets the word of a register that hands something over to another thread.
    #[inline(always)]
    pub(super) fn publish(&self, word: usize, value: u32) {
        if let Some(word) = self.words.get(word) {
            word.store(value, Ordering::Release);
        }
    }

    /// The word of such a register.
    #[inline(always)]
    pub(super) fn observe(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Sets bits in the word of a register that several threads write; returns what was there.
    #[inline(always)]
    pub(super) fn set_bits(&self, word: usize, bits: u32) -> u32 {
        self.words.get(word).map_or(0, |word| word.fetch_or(bits, Ordering::SeqCst))
    }

    /// The word of such a register. Of two threads that each set bits in one and then look at the other's,
    /// one sees what the other has set.
    #[inline(always)]
    pub(super) fn look(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Clears bits, likewise.
    #[inline(always)]
    pub(super) fn clear_bits(&self, word: usize, bits: u32) -> u32 {
        self.words.get(word).map_or(0, |word| word.fetch_and(!bits, Ordering::AcqRel))
    }

    /// Takes the word of a register that several threads write back to zero; returns what was there.
    pub(super) fn take(&self, word: usize) -> u32 {
        self.words.get(word).map_or(0, |word| word.swap(0, Ordering::AcqRel))
    }

    /// The address in two words.
    pub(super) fn address(&self, [low, high]: [usize; 2]) -> u64 {
        u64::from(self.get(low)) | u64::from(self.get(high)) << 32
    }

    /// Adds to a statistic, which stays at its largest value.
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

    /// Adds to an octet counter, likewise.
    #[inline]
    pub(super) fn count_octets(&self, counter: u8, n: u64) {
        if let Some(counter) = self.octets.get(usize::from(counter)) {
            let add = |value: u64| Some(value.saturating_add(n));
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// What stopped the device.
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
            // Reserved: the smallest of those that are not.
            (true, 0) => 4096,
            (true, _) => 32768 >> code,
            (false, _) => 2048 >> code,
        }
    }
}
