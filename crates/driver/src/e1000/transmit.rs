//! The transmit ring: frames go into descriptors, and are reclaimed.

use alloc::boxed::Box;
use alloc::vec;
use core::sync::atomic::Ordering;

use shmem::Bytes;

use super::regs::tx;
use crate::{Buffers, Dma, Slots};

/// What a NIC must do with a frame before it sends it. Offsets are from the frame's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Where the IP header starts.
    pub ip: u8,
    /// Where the TCP or UDP header starts.
    pub transport: u8,
    /// True for IPv4, false for IPv6.
    pub ipv4: bool,
    /// True for TCP, false for UDP.
    pub tcp: bool,
    /// Fill in the IPv4 header's checksum; its field is 0.
    pub ip_checksum: bool,
    /// Complete the TCP or UDP checksum. Its field holds the pseudo header's sum: with the length,
    /// or, where `mss` is set, without it.
    pub transport_checksum: bool,
    /// Cut the payload into segments of this many bytes; 0 for none. TCP only. The IP header's
    /// length and checksum are 0, and both checksums are requested.
    pub mss: u16,
    /// Bytes of all headers together; used for segments only.
    pub headers: u8,
    /// A VLAN tag (TCI) to insert.
    pub vlan: Option<u16>,
}

impl Request {
    /// A request for the checksum of a TCP or UDP frame over IPv4 without options or tag.
    #[must_use]
    pub fn checksum(tcp: bool) -> Self {
        let (ip, transport, ipv4) = (14, 34, true);
        let sums = Self { ip_checksum: true, transport_checksum: true, ..Self::default() };
        Self { ip, transport, ipv4, tcp, ..sums }
    }

    /// A request for segments of `mss` bytes of a TCP frame over IPv4 without options or tag.
    #[must_use]
    pub fn segments(mss: u16) -> Self {
        Self { mss, headers: 54, ..Self::checksum(true) }
    }

    fn needs_context(&self) -> bool {
        self.ip_checksum || self.transport_checksum || self.mss != 0
    }

    /// The context descriptor (8254x manual, 3.3.6), for a frame of `len` bytes.
    fn context(&self, len: u32) -> [u64; 2] {
        let field = if self.tcp { 16 } else { 6 };
        let [ip, transport] = [self.ip, self.transport].map(u64::from);
        let (ip_sum, ip_end) = if self.ipv4 { (ip + 10, transport - 1) } else { (0, 0) };
        let first = ip | ip_sum << 8 | ip_end << 16 | transport << 32 | (transport + field) << 40;
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let segment = self.mss != 0;
        let payload = if segment { u64::from(len) - u64::from(self.headers) } else { 0 };
        let command = tx::DEXT
            | flag(self.tcp, tx::TUCMD_TCP)
            | flag(self.ipv4, tx::TUCMD_IP)
            | flag(segment, tx::TSE);
        let sizes = u64::from(self.mss) << 48 | u64::from(self.headers) << 40;
        [first, payload | command | flag(segment, sizes)]
    }

    /// The request's bits in data descriptors.
    fn options(&self) -> u64 {
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        flag(self.ip_checksum, tx::IXSM)
            | flag(self.transport_checksum, tx::TXSM)
            | flag(self.mss != 0, tx::TSE)
    }
}

/// The transmit ring. Each descriptor has a buffer, for frames that are copied.
#[derive(Debug)]
pub(super) struct Transmit {
    pub ring: Slots,
    pub buffers: Buffers,
    pub size: u32,
    /// The index of the next descriptor.
    pub next: u32,
    /// The tail that the device was last told.
    pub published: u32,
    /// The oldest descriptor that the device has not completed.
    pub oldest: u32,
    /// For each frame's first descriptor: the index of its last one.
    last: Box<[u32]>,
    /// The contexts that the device holds: without and with segmentation.
    contexts: [Option<[u64; 2]>; 2],
    /// Bits that the last descriptor of every frame has: RS, and IDE if delays are set.
    report: u64,
}

impl Transmit {
    /// A ring with this many buffers: `size`, or none if all frames are in the caller's memory.
    pub fn new(
        dma: &mut Dma,
        size: u32,
        (buffers, buffer): (u32, u32),
        delayed: bool,
    ) -> Option<Self> {
        Some(Self {
            ring: Slots::take(dma, size)?,
            buffers: Buffers::take(dma, buffers, buffer)?,
            size,
            next: 0,
            published: 0,
            oldest: 0,
            last: vec![0; size as usize].into(),
            contexts: [None; 2],
            report: tx::RS | if delayed { tx::IDE } else { 0 },
        })
    }

    /// Forgets the ring's contents after a reset of the device.
    pub fn restart(&mut self) {
        (self.next, self.published, self.oldest) = (0, 0, 0);
        self.contexts = [None; 2];
        self.ring.words.iter().for_each(|slot| Self::store(slot, [0, 0]));
    }

    #[inline]
    fn store(slot: &[core::sync::atomic::AtomicU64; 2], [first, second]: [u64; 2]) {
        slot[0].store(first.to_le(), Ordering::Relaxed);
        slot[1].store(second.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn after(&self, index: u32) -> u32 {
        if index + 1 == self.size { 0 } else { index + 1 }
    }

    /// How many descriptors are free. One stays unused, so that a full ring differs from an empty
    /// one.
    #[inline]
    pub fn room(&self) -> u32 {
        let used = if self.next >= self.oldest {
            self.next - self.oldest
        } else {
            self.next + self.size - self.oldest
        };
        self.size - 1 - used
    }

    /// True if some descriptors were filled and not published.
    pub fn unpublished(&self) -> bool {
        self.next != self.published
    }

    #[inline]
    fn put(&mut self, words: [u64; 2]) {
        if let Some(slot) = self.ring.words.get(self.next as usize) {
            Self::store(slot, words);
        }
        self.next = self.after(self.next);
    }

    /// Begins a frame of `len` bytes in `pieces` descriptors. Writes its context if the device
    /// lacks it. Returns the first descriptor and the bits common to all; `None` without room.
    #[inline]
    fn begin(&mut self, pieces: u32, len: u32, request: &Request) -> Option<(u32, u64)> {
        let (first, room) = (self.next, self.room());
        if !request.needs_context() {
            return (pieces <= room).then_some((first, tx::IFCS));
        }
        let context = request.context(len);
        let known = &mut self.contexts[usize::from(request.mss != 0)];
        let new = *known != Some(context);
        if pieces + u32::from(new) > room {
            return None;
        }
        *known = Some(context);
        if new {
            self.put(context);
        }
        Some((first, tx::IFCS | tx::DEXT | tx::DATA | request.options()))
    }

    /// Writes one descriptor of a frame.
    #[inline]
    fn piece(&mut self, at: u64, len: u32, flags: u64) {
        self.put([at, flags | u64::from(len)]);
    }

    #[inline]
    fn end_flags(&self, request: &Request) -> u64 {
        let tag = request.vlan.map_or(0, |tci| tx::VLE | u64::from(tci) << 48);
        tx::EOP | self.report | tag
    }

    /// Queues a frame. It is already in the buffers of its descriptors (see
    /// [`place`](Self::place)), or, with `bytes`, is copied there.
    #[inline]
    pub fn add_copied(&mut self, bytes: Option<&[u8]>, len: u32, request: &Request) -> bool {
        let each = self.buffers.len() as u32;
        let pieces = len.div_ceil(each).max(1);
        let Some((first, flags)) = self.begin(pieces, len, request) else { return false };
        let mut done = 0;
        for piece in 0..pieces {
            let part = (len - done).min(each);
            if let Some(part) =
                bytes.and_then(|bytes| bytes.get(done as usize..(done + part) as usize))
            {
                self.buffers.get(self.next).copy_in(part);
            }
            let end = if piece + 1 == pieces { self.end_flags(request) } else { 0 };
            let last = self.next;
            self.piece(self.buffers.device(last), part, flags | end);
            self.last[first as usize] = last;
            done += part;
        }
        true
    }

    /// Queues a frame whose pieces are at these device addresses.
    pub fn add_pieces(&mut self, pieces: &[(u64, u32)], request: &Request) -> bool {
        let len = pieces.iter().map(|(_, len)| len).sum();
        let count = pieces.len() as u32;
        let Some((first, flags)) = self.begin(count, len, request) else { return false };
        for (i, (at, len)) in pieces.iter().enumerate() {
            let end = if i + 1 == pieces.len() { self.end_flags(request) } else { 0 };
            self.last[first as usize] = self.next;
            self.piece(*at, *len, flags | end);
        }
        count > 0
    }

    /// The buffer that the next frame without a context would use first, or the one `ahead` places
    /// after it.
    #[inline]
    pub fn place(&self, ahead: u32) -> Bytes<'_> {
        let at = self.next + ahead % self.size;
        self.buffers.get(if at >= self.size { at - self.size } else { at })
    }

    /// Reclaims frames whose last descriptors are done. Returns how many.
    #[inline]
    pub fn reclaim(&mut self) -> usize {
        let mut frames = 0;
        while self.oldest != self.next {
            let last = self.last[self.oldest as usize];
            let Some(slot) = self.ring.words.get(last as usize) else { break };
            if u64::from_le(slot[1].load(Ordering::Acquire)) & tx::DD == 0 {
                break;
            }
            self.oldest = self.after(last);
            frames += 1;
        }
        frames
    }

    /// Reclaims frames before the device's `head`.
    #[inline]
    pub fn reclaim_to(&mut self, head: u32) -> usize {
        let distance =
            |from: u32, to: u32| if to >= from { to - from } else { to + self.size - from };
        let done = if head < self.size { distance(self.oldest, head) } else { 0 };
        // A head beyond the published tail means that the device is broken.
        let done = if done <= distance(self.oldest, self.published) { done } else { 0 };
        let (mut frames, mut passed) = (0, 0);
        while self.oldest != self.next {
            let last = self.last[self.oldest as usize];
            let after = self.after(last);
            passed += if after >= self.oldest {
                after - self.oldest
            } else {
                after + self.size - self.oldest
            };
            if passed > done {
                break;
            }
            self.oldest = after;
            frames += 1;
        }
        frames
    }
}
