//! A ring of descriptors in software style 2 (Am79C970A, "Buffer Management").

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};

use shmem::{Bytes, SharedSlice};

use super::{BUFFER, CHECK, DESCRIPTOR, ENP, ERR, ONES, OWN, STP};
use crate::dma::within_a_page;
use crate::{Buffers, Dma};

/// A ring of descriptors, as its driver sees it.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) words: SharedSlice<AtomicU32>,
    pub(super) len: u32,
    /// The next descriptor to hand over, and the next one that comes back. Both counts run freely.
    pub(super) ours: u32,
    pub(super) back: u32,
    /// The ring's own buffers; none if the caller lends them.
    pub(super) buffers: Buffers,
    /// The device's address of each descriptor's buffer.
    pub(super) at: Box<[u32]>,
    /// The device's address of the first descriptor.
    pub(super) device: u32,
}

impl Ring {
    /// A ring with buffers of its own, or with those at the device's addresses `lent`: 0 where the
    /// caller lends none yet.
    pub(super) fn new(dma: &mut Dma, log: u8, lent: Option<&[u64]>) -> Option<Self> {
        let len = 1 << log.min(9);
        let bytes = DESCRIPTOR * len as usize;
        let chunk = dma.take(bytes, within_a_page(bytes))?;
        let words = chunk.words(4 * len as usize)?;
        let buffers = Buffers::take(dma, if lent.is_some() { 0 } else { len }, BUFFER)?;
        let at = |i: u32| match lent {
            Some(lent) => lent.get(i as usize).copied().unwrap_or(0),
            None => buffers.device(i),
        };
        let at: Option<Box<[u32]>> = (0..len).map(|i| low(at(i))).collect();
        let (at, device) = (at?, chunk.device() as u32);
        Some(Self { words, len, ours: 0, back: 0, buffers, at, device })
    }

    pub(super) fn word(&self, number: u32, word: u32) -> &AtomicU32 {
        &self.words[(4 * (number & (self.len - 1)) + word) as usize]
    }

    pub(super) fn status(&self, number: u32) -> u32 {
        u32::from_le(self.word(number, 1).load(Ordering::Acquire))
    }

    /// The complete status of a receive descriptor that came back. QEMU's PCnet gives a descriptor
    /// back before it writes the frame's length and ENP, so a driver that polls may see it
    /// incomplete. A status without ENP is final once the next descriptor is back, too.
    pub(super) fn received(&self, number: u32) -> Option<u32> {
        let status = self.status(number);
        if status & OWN != 0 {
            return None;
        }
        if status & (ERR | STP | ENP) != STP {
            return Some(status);
        }
        let next = number.wrapping_add(1);
        let is_back = next != self.ours && self.status(next) & OWN == 0;
        is_back.then(|| self.status(number))
    }

    /// What a receive descriptor has, if it came back: the length of its frame, `None` for one that
    /// is damaged or not whole.
    pub(super) fn whole(&self, number: u32) -> Option<Option<u32>> {
        let status = self.received(number)?;
        let message = u32::from_le(self.word(number, 2).load(Ordering::Relaxed)) & 0xfff;
        let whole = status & (ERR | STP | ENP) == STP | ENP;
        let good = whole && (CHECK + 1..=BUFFER).contains(&message);
        Some(good.then(|| message - CHECK))
    }

    /// True if the next receive descriptor came back.
    pub(super) fn has_frames(&self) -> bool {
        self.back != self.ours && self.received(self.back).is_some()
    }

    /// Hands a descriptor over.
    pub(super) fn give(&self, number: u32, len: u32, flags: u32) {
        let address = self.at[(number & (self.len - 1)) as usize];
        self.word(number, 0).store(address.to_le(), Ordering::Relaxed);
        self.word(number, 2).store(0, Ordering::Relaxed);
        let count = ONES | len.wrapping_neg() & 0xfff;
        self.word(number, 1).store((count | flags).to_le(), Ordering::Release);
    }

    pub(super) fn buffer(&self, number: u32) -> Bytes<'_> {
        self.buffers.get(number & (self.len - 1))
    }

    pub(super) fn room(&self) -> u32 {
        self.len - self.ours.wrapping_sub(self.back)
    }
}

/// The address of a buffer, if all of the buffer is below 4 GiB.
pub(super) fn low(at: u64) -> Option<u32> {
    let end = at.checked_add(u64::from(BUFFER))?;
    u32::try_from(end).ok().map(|end| end - BUFFER)
}
