//! Virtio's queues as they lie in memory (virtio 1.2, 2.6 to 2.8), and the features of virtio-net.

mod features;
pub mod packed;

use core::sync::atomic::{AtomicU64, Ordering};

use shmem::Shareable;

pub use features::Features;

/// Where a queue lies: guest-physical addresses (virtio 1.2, 4.1.4.3; translate vhost-user's
/// first: [`shmem::GuestMemory::guest_address`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// Entries: a power of two in split queues, at most 32,768.
    pub size: u16,
    /// Descriptor table, or the ring of a packed queue.
    pub descriptors: u64,
    /// The part that the driver writes: the available ring, or the driver's event suppression.
    pub driver: u64,
    /// The part that the device writes: the used ring, or the device's event suppression.
    pub device: u64,
}

/// Descriptor flags (virtio 1.2, 2.7.5 and 2.8.6).
pub mod flags {
    /// The chain continues.
    pub const NEXT: u16 = 1;
    /// The buffer is for the device to write.
    pub const WRITE: u16 = 2;
    /// The buffer is a table of descriptors.
    pub const INDIRECT: u16 = 4;
    /// Packed queues: equals the driver's wrap counter when made available.
    pub const AVAILABLE: u16 = 1 << 7;
    /// Packed queues: equals the other flag when used.
    pub const USED: u16 = 1 << 15;
}

/// A descriptor in guest memory: an address, 32 bits of length, and two fields of 16 bits. These
/// are flags and next in split queues, number and flags in packed ones.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Descriptor {
    address: AtomicU64,
    word: AtomicU64,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for Descriptor {}

impl Descriptor {
    /// The buffer's guest-physical address.
    #[inline(always)]
    #[must_use]
    pub fn address(&self) -> u64 {
        u64::from_le(self.address.load(Ordering::Relaxed))
    }

    /// Loads everything but the address, in one load.
    #[inline(always)]
    pub fn word(&self, order: Ordering) -> Word {
        Word(u64::from_le(self.word.load(order)))
    }

    /// Stores everything but the address, in one store.
    #[inline(always)]
    pub fn store_word(&self, word: Word, order: Ordering) {
        self.word.store(word.0.to_le(), order);
    }

    /// For drivers.
    pub fn store_address(&self, address: u64) {
        self.address.store(address.to_le(), Ordering::Relaxed);
    }
}

/// The second half of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Word(u64);

impl Word {
    /// A length and two fields of 16 bits.
    #[inline(always)]
    #[must_use]
    pub fn new(len: u32, third: u16, fourth: u16) -> Self {
        Self(u64::from(len) | u64::from(third) << 32 | u64::from(fourth) << 48)
    }

    /// Bytes of the buffer.
    #[inline(always)]
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a length that a guest has written")]
    pub fn len(self) -> u32 {
        self.0 as u32
    }

    /// Flags in split queues, the buffer's number in packed ones.
    #[inline(always)]
    pub fn third(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// The word with these [`bits`](Self::bits).
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The word as in memory, except for the byte order.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The next descriptor in split queues, flags in packed ones.
    #[inline(always)]
    pub fn fourth(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// True if the position `event`, at which the other side wants a notification, lies in what was
/// published since `old`, up to `new` (virtio 1.2, 2.7.10: `vring_need_event`).
#[inline]
pub fn passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_passed_once_also_around_the_end() {
        assert!(passed(5, 6, 5));
        assert!(!passed(6, 6, 5), "the event is the next one");
        assert!(!passed(4, 6, 5), "it was passed before");
        assert!(passed(0xffff, 0, 0xfff0));
        assert!(passed(0, 1, 0xffff));
        assert!(!passed(9, 7, 7), "nothing new");
    }
}
