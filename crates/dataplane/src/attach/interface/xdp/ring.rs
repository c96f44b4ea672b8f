//! A ring that this process shares with the kernel (`linux/if_xdp.h`): one side writes entries, the
//! other reads them, and each counts its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shmem::{Mapping, Shared};

use super::super::XdpRing;

/// `XDP_RING_NEED_WAKEUP`: the kernel waits for a call.
const NEED_WAKEUP: u32 = 1;

/// The bytes of a ring's entries.
pub(super) struct Entry;

impl Entry {
    /// `struct xdp_desc`: a place, a length and options.
    pub const FRAME: usize = 16;
    /// A place.
    pub const PLACE: usize = 8;
}

/// A frame in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Where the frame begins in the memory.
    pub at: u64,
    /// Its bytes.
    pub len: u32,
    /// `XDP_TX_METADATA`, `XDP_PKT_CONTD`.
    pub options: u32,
}

/// A side of a ring: the producer's or the consumer's.
#[derive(Debug)]
pub(super) struct Ring {
    mapping: Arc<Mapping>,
    /// How many entries were written, modulo 2^32.
    ///
    /// # Protocol: AF_XDP's `producer` and `consumer`
    /// - Writer: the kernel, or this process: the home worker (receive, fill), the holder of the
    ///   egress lock (transmit, completion)
    /// - Reader: the other
    /// - Ordering: store release / load acquire
    /// - Partner: the entries
    /// - Without it: an entry is read before it is written, or overwritten before it is read
    /// - Shown by: `toklat` tests `interface`
    producer: Shared<AtomicU32>,
    consumer: Shared<AtomicU32>,
    flags: Shared<AtomicU32>,
    entries: usize,
    size: u32,
    entry: usize,
    /// This process's count, which [`publish`](Self::written) shows to the kernel.
    own: u32,
}

impl Ring {
    /// The ring of `size` entries in a mapping.
    pub fn over(mapping: &Arc<Mapping>, at: &XdpRing, (size, entry): (u32, usize)) -> Option<Self> {
        let word = |at: u64| mapping.shared::<AtomicU32>(usize::try_from(at).ok()?);
        let entries = usize::try_from(at.entries).ok()?;
        mapping.bytes(entries, size as usize * entry)?;
        let (producer, consumer) = (word(at.producer)?, word(at.consumer)?);
        let (flags, mapping) = (word(at.flags)?, Arc::clone(mapping));
        Some(Self { mapping, producer, consumer, flags, entries, size, entry, own: 0 })
    }

    /// True if the kernel waits for a call.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }

    /// As consumer: how many entries can be read.
    #[inline]
    pub fn ready(&self) -> u32 {
        self.producer.load(Ordering::Acquire).wrapping_sub(self.own).min(self.size)
    }

    /// As producer: how many entries were written and not read.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.own.wrapping_sub(self.consumer.load(Ordering::Acquire))
    }

    /// As producer: how many entries can be written.
    #[inline]
    pub fn room(&self) -> u32 {
        self.size.saturating_sub(self.waiting())
    }

    fn place(&self) -> usize {
        self.entries + (self.own & (self.size - 1)) as usize * self.entry
    }

    /// Reads the next frame, if one is ready.
    #[inline]
    pub fn next_frame(&mut self) -> Option<Placed> {
        let entry = self.mapping.bytes(self.place(), Entry::FRAME)?;
        self.own = self.own.wrapping_add(1);
        Some(Placed { at: entry.read(0)?, len: entry.read(8)?, options: entry.read(12)? })
    }

    /// Reads the next place, if one is ready.
    #[inline]
    pub fn next_place(&mut self) -> Option<u64> {
        let place = self.mapping.bytes(self.place(), Entry::PLACE)?.read(0);
        self.own = self.own.wrapping_add(1);
        place
    }

    /// Tells the kernel which entries were read.
    #[inline]
    pub fn was_read(&self) {
        self.consumer.store(self.own, Ordering::Release);
    }

    /// Writes a frame, if there is room.
    #[inline]
    pub fn put_frame(&mut self, frame: Placed) {
        if let Some(entry) = self.mapping.bytes(self.place(), Entry::FRAME) {
            entry.write(0, frame.at);
            entry.write(8, frame.len);
            entry.write(12, frame.options);
        }
        self.own = self.own.wrapping_add(1);
    }

    /// Writes a place, if there is room.
    #[inline]
    pub fn put_place(&mut self, at: u64) {
        if let Some(entry) = self.mapping.bytes(self.place(), Entry::PLACE) {
            entry.write(0, at);
        }
        self.own = self.own.wrapping_add(1);
    }

    /// Tells the kernel which entries were written.
    #[inline]
    pub fn written(&self) {
        self.producer.store(self.own, Ordering::Release);
    }
}
