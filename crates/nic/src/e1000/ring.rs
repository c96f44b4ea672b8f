//! Descriptors as they lie in guest memory: 16 bytes, little-endian (82540EM manual, 3.2.3 and
//! 3.3.3).
//!
//! ```text
//!             63                          32 31                           0
//!   legacy tx | special | css | rsv,STA     | CMD | CSO | length          |   second word
//!   data tx   | special | POPTS | rsv,STA   | DCMD | DTYP | length (20)   |
//!   context   | MSS | HDRLEN | STA          | TUCMD | DTYP | PAYLEN (20)  |
//!   legacy rx | special | errors | status   | checksum | length           |
//!   extended  | VLAN | length               | errors, status (32)         |   82574L
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use shmem::{GuestMemory, Shareable, SharedSlice};

/// A descriptor: an address, and a word with everything else.
#[derive(Debug)]
#[repr(C, align(8))]
pub(super) struct Descriptor {
    first: AtomicU64,
    /// # Protocol: e1000: a descriptor's second word, with DD
    /// - Writer: holder of a receive queue's lock; worker (transmit: complete)
    /// - Reader: driver
    /// - Ordering: release; of a batch, the first descriptor comes last, because a driver goes by
    ///   it
    /// - Partner: the bytes, the other descriptors
    /// - Without it: the driver reads a frame before its bytes, or reaps a frame that is still read
    /// - Shown by: `nic` tests `e1000_driver`
    second: AtomicU64,
}

#[allow(unsafe_code, reason = "a promise about a type that lies in shared memory")]
// SAFETY: the type consists of atomic words only.
unsafe impl Shareable for Descriptor {}

impl Descriptor {
    #[inline(always)]
    pub fn first(&self) -> u64 {
        u64::from_le(self.first.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub fn second(&self) -> u64 {
        u64::from_le(self.second.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub fn set_first(&self, value: u64) {
        self.first.store(value.to_le(), Ordering::Relaxed);
    }

    /// Writes the second word, after everything that it describes.
    #[inline(always)]
    pub fn publish(&self, second: u64) {
        self.second.store(second.to_le(), Ordering::Release);
    }
}

/// Bytes of a descriptor.
pub(super) const DESCRIPTOR: u32 = 16;

/// The descriptors of a ring of `bytes` bytes at `base`; `None` if they do not lie in one piece of
/// memory.
pub(super) fn ring(memory: &GuestMemory, base: u64, bytes: u32) -> Option<SharedSlice<Descriptor>> {
    memory.shared_slice(base, (bytes / DESCRIPTOR) as usize)
}

/// Bits of the second word of transmit descriptors.
pub(super) mod tx {
    /// Last one of its frame.
    pub const EOP: u64 = 1 << 24;
    /// Legacy: store a checksum at CSO.
    pub const IC: u64 = 1 << 26;
    /// Data and context: segment.
    pub const TSE: u64 = 1 << 26;
    /// Report completion.
    pub const RS: u64 = 1 << 27;
    /// Report sending.
    pub const RPS: u64 = 1 << 28;
    /// Data or context.
    pub const DEXT: u64 = 1 << 29;
    /// Insert a VLAN tag.
    pub const VLE: u64 = 1 << 30;
    /// The interrupt may wait.
    pub const IDE: u64 = 1 << 31;
    /// With [`DEXT`], four bits: 0 means context, 1 means data.
    pub const DTYP: u64 = 0xf << 20;
    /// Data.
    pub const DATA: u64 = 1 << 20;
    /// Status: done.
    pub const DD: u64 = 1 << 32;
    /// All bits of the status.
    pub const STA: u64 = 0xf << 32;
    /// Data: insert the IP header checksum.
    pub const IXSM: u64 = 1 << 40;
    /// Data: insert the TCP or UDP checksum.
    pub const TXSM: u64 = 1 << 41;
    /// Context: TCP, else UDP.
    pub const TUCMD_TCP: u32 = 1 << 24;
    /// Context: IPv4, else IPv6.
    pub const TUCMD_IP: u32 = 1 << 25;
}

/// Bits of the status of receive descriptors, the same in both forms.
pub(super) mod rx {
    /// Done.
    pub const DD: u32 = 1;
    /// Last one of its frame.
    pub const EOP: u32 = 1 << 1;
    /// Ignore the checksum bits.
    pub const IXSM: u32 = 1 << 2;
    /// A VLAN tag was stripped.
    pub const VP: u32 = 1 << 3;
    /// Extended: the UDP checksum was checked.
    pub const UDPCS: u32 = 1 << 4;
    /// The TCP checksum was checked; in legacy descriptors, TCP or UDP.
    pub const TCPCS: u32 = 1 << 5;
    /// The IP header checksum was checked.
    pub const IPCS: u32 = 1 << 6;
    /// In the error bits: an error in the received data.
    pub const RXE: u32 = 1 << 7;
}
