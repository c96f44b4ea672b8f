//! The receive ring: the driver hands in empty buffers and gets frames back.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use shmem::Bytes;

use super::regs::rx;
use crate::{Buffers, Dma, MOST_PIECES, Piece, Slots};

/// The maximum number of descriptors of a frame: 16 KiB in buffers of 256 bytes, and the frame
/// check sequence.
const MAX_PIECES: usize = 65;
/// Bytes of the frame check sequence.
const FCS: usize = 4;

/// The NIC's report on a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The NIC checked the IPv4 header's checksum. It is good unless [`errors`](Received::errors)
    /// says otherwise.
    pub ip: bool,
    /// The NIC checked the TCP or UDP checksum. It is good unless [`errors`](Received::errors) says
    /// otherwise.
    pub transport: bool,
}

/// A received frame. The device owns its buffers again after the visit.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The frame's pieces, in order.
    pub pieces: &'a [Bytes<'a>],
    /// The frame's length in bytes, without the frame check sequence.
    pub len: usize,
    /// The VLAN tag that the NIC stripped from the frame.
    pub vlan: Option<u16>,
    /// The NIC's checksum report.
    pub checked: Checked,
    /// Error bits, as in legacy descriptors.
    pub errors: u8,
}

impl Received<'_> {
    /// Copies the frame into one vector, for tests.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|piece| piece.to_vec()).collect()
    }
}

/// A descriptor that was written back, in either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    status: u32,
    errors: u8,
    len: usize,
    vlan: u16,
}

/// Errors of a frame whose bytes are not those that were sent, as in legacy descriptors: CE, SE,
/// SEQ, CXE, RXE. Wrong checksums (TCPE, IPE) are for the frame's receiver.
const DAMAGED: u8 = 0x97;

/// The receive ring, with a buffer for each descriptor.
#[derive(Debug)]
pub(super) struct Receive {
    pub ring: Slots,
    /// The ring's own buffers; none if the caller lends them.
    pub buffers: Buffers,
    /// The device's address of each descriptor's buffer.
    at: Box<[u64]>,
    /// The bytes of each buffer.
    each: usize,
    /// The next descriptor continues a frame that is too long to be traded, or was left half.
    inside: bool,
    /// How many descriptors have buffers, from the next one on: all, unless buffers are given one
    /// by one.
    filled: u32,
    pub size: u32,
    /// The next descriptor that the device will write back.
    pub next: u32,
    /// The tail that the driver last wrote to the device.
    pub published: u32,
    /// Descriptors have the extended form.
    extended: bool,
    /// True if the device keeps the frame check sequence.
    with_fcs: bool,
}

impl Receive {
    /// A ring with buffers of its own, or with those at the device's addresses `lent`: one for each
    /// descriptor, or none, if they are given one by one.
    pub fn new(
        dma: &mut Dma,
        (size, buffer): (u32, u32),
        lent: Option<&[u64]>,
        (extended, with_fcs): (bool, bool),
    ) -> Option<Self> {
        let ring = Slots::take(dma, size)?;
        let buffers = Buffers::take(dma, if lent.is_some() { 0 } else { size }, buffer)?;
        let at: Box<[u64]> = match lent {
            Some([]) => vec![0; size as usize].into(),
            Some(lent) => lent.get(..size as usize)?.into(),
            None => (0..size).map(|i| buffers.device(i)).collect(),
        };
        let (next, published, each) = (0, 0, buffer as usize);
        let filled = if lent.is_some_and(<[u64]>::is_empty) { 0 } else { size };
        Some(Self {
            ring,
            buffers,
            at,
            each,
            inside: false,
            filled,
            size,
            next,
            published,
            extended,
            with_fcs,
        })
    }

    /// Refills the ring after a reset of the device.
    pub fn restart(&mut self) {
        (self.next, self.published, self.inside) = (0, 0, false);
        if self.filled < self.size {
            self.filled = 0;
        }
        (0..self.filled).for_each(|i| self.write(i));
    }

    /// Writes descriptor `i`, with its buffer's address.
    #[inline]
    fn write(&self, i: u32) {
        if let (Some([first, second]), Some(at)) =
            (self.ring.words.get(i as usize), self.at.get(i as usize))
        {
            second.store(0, Ordering::Relaxed);
            first.store(at.to_le(), Ordering::Relaxed);
        }
    }

    /// The tail register's value: the end of the free buffers. One descriptor always stays unused.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.after(self.filled.min(self.size - 1))
    }

    /// The descriptor `count` places after the next one.
    #[inline]
    fn after(&self, count: u32) -> u32 {
        let at = self.next + count;
        if at >= self.size { at - self.size } else { at }
    }

    /// How many free buffers the device does not know of yet.
    #[inline]
    pub fn unpublished(&self) -> u32 {
        let tail = self.tail();
        if tail >= self.published {
            tail - self.published
        } else {
            tail + self.size - self.published
        }
    }

    /// Returns what the NIC reports in descriptor `i`, if it has written the descriptor back.
    #[inline]
    fn done(&self, i: u32) -> Option<Done> {
        let [_, second] = self.ring.words.get(i as usize)?;
        let word = u64::from_le(second.load(Ordering::Acquire));
        if self.extended {
            let status = word as u32;
            let (len, vlan) = ((word >> 32) as u16, (word >> 48) as u16);
            let errors = (status >> 24) as u8;
            return (status & rx::DD != 0).then_some(Done {
                status,
                errors,
                len: len.into(),
                vlan,
            });
        }
        let status = (word >> 32) as u32 & 0xff;
        let (len, vlan, errors) = (word as u16, (word >> 48) as u16, (word >> 40) as u8);
        (status & rx::DD != 0).then_some(Done { status, errors, len: len.into(), vlan })
    }

    /// True if the device has written back the next descriptor.
    #[inline]
    pub fn has_frames(&self) -> bool {
        self.filled > 0 && self.done(self.next).is_some()
    }

    /// Shows up to `budget` frames to `visit` and gives their buffers back, in the ring. Returns
    /// how many.
    #[inline]
    pub fn poll(&mut self, budget: usize, mut visit: impl FnMut(Received<'_>)) -> usize {
        let mut frames = 0;
        while frames < budget {
            let Some(done) = self.done(self.next) else { break };
            if done.status & rx::EOP == 0 {
                if !self.poll_long(&mut visit) {
                    break;
                }
                frames += 1;
                continue;
            }
            let len = done.len.saturating_sub(if self.with_fcs { FCS } else { 0 });
            let piece = self.buffers.get(self.next).prefix(len);
            visit(Self::received(&[piece], piece.len(), done));
            self.recycle(1);
            frames += 1;
        }
        frames
    }

    /// Trades buffers that came back, until `budget` or more are traded, of frames of at most
    /// `most` buffers; see [`Lent::trade`](crate::Lent::trade).
    #[inline]
    pub fn trade(
        &mut self,
        (budget, most): (usize, usize),
        mut trade: impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> usize {
        let mut traded = 0;
        while traded < budget {
            let Some(done) = self.done(self.next) else { break };
            if done.status & rx::EOP == 0 && !self.inside {
                let (count, complete) = self.trade_long(most, &mut trade);
                traded += count;
                if complete { continue } else { break }
            }
            let piece = self.whole(done).map(|len| Piece { len, after: 0 });
            if !self.trade_one(piece, &mut trade) {
                break;
            }
            self.inside &= done.status & rx::EOP == 0;
            traded += 1;
        }
        traded
    }

    /// The length of the frame that a descriptor has, if the frame is good and ends and begins
    /// there.
    #[inline]
    fn whole(&self, done: Done) -> Option<u32> {
        let len = done.len.saturating_sub(if self.with_fcs { FCS } else { 0 });
        let ends = done.status & rx::EOP != 0;
        let whole = ends && !self.inside && done.errors & DAMAGED == 0;
        (whole && (1..=self.each).contains(&len)).then_some(len as u32)
    }

    /// Gives the device one buffer; see [`Lent::give`](crate::Lent::give).
    #[inline]
    pub fn give(&mut self, at: u64) -> bool {
        if self.filled + 1 >= self.size {
            return false;
        }
        let free = self.after(self.filled);
        if let Some(place) = self.at.get_mut(free as usize) {
            *place = at;
        }
        self.write(free);
        self.filled += 1;
        true
    }

    /// Takes buffers back; see [`Lent::take`](crate::Lent::take).
    #[inline]
    pub fn take(&mut self, budget: usize, mut visit: impl FnMut(Option<u32>)) -> usize {
        let mut taken = 0;
        while taken < budget && self.filled > 0 {
            let Some(done) = self.done(self.next) else { break };
            visit(self.whole(done));
            self.inside = done.status & rx::EOP == 0;
            (self.next, self.filled) = (self.after(1), self.filled - 1);
            taken += 1;
        }
        taken
    }

    /// Trades the next buffer. Returns false if it is left.
    #[inline]
    fn trade_one(
        &mut self,
        piece: Option<Piece>,
        trade: &mut impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> bool {
        let Some(next) = trade(self.next, piece) else { return false };
        if let Some(at) = self.at.get_mut(self.next as usize) {
            *at = next;
        }
        self.recycle(1);
        true
    }

    /// The reports of the next frame, which has several buffers: their number, and the last one.
    /// The error is true if the frame has more than `most`, and false if it is not complete.
    fn look_ahead(&self, most: usize) -> Result<(usize, Done), bool> {
        for count in 1..=most.min(self.size as usize - 1) {
            let done = self.done(self.after(count as u32 - 1)).ok_or(false)?;
            if done.status & rx::EOP != 0 {
                return Ok((count, done));
            }
        }
        Err(true)
    }

    /// True if there is a buffer to trade.
    pub fn has_whole(&self, most: usize) -> bool {
        self.has_frames() && (self.inside || self.look_ahead(most) != Err(false))
    }

    /// Trades the buffers of a frame that has several. Returns how many were traded, and false if
    /// the frame, or a part of it, is left.
    #[cold]
    fn trade_long(
        &mut self,
        most: usize,
        trade: &mut impl FnMut(u32, Option<Piece>) -> Option<u64>,
    ) -> (usize, bool) {
        let (count, last) = match self.look_ahead(most) {
            Ok(found) => found,
            Err(too_long) => {
                // Its buffers are traded one by one, as damaged.
                self.inside = too_long;
                return (0, too_long);
            }
        };
        // The card may write its reports at any time, so the lengths are read once.
        let mut lens = [0; MOST_PIECES];
        for (len, ahead) in lens.iter_mut().zip(0..count as u32) {
            *len = self.done(self.after(ahead)).map_or(0, |done| done.len);
        }
        let lens = lens.get_mut(..count).unwrap_or_default();
        let good =
            last.errors & DAMAGED == 0 && lens.iter().all(|len| (1..=self.each).contains(len));
        let all: usize = lens.iter().sum();
        let mut left = all.saturating_sub(if self.with_fcs { FCS } else { 0 });
        lens.iter_mut().for_each(|len| {
            *len = left.min(*len);
            left -= *len;
        });
        let used = lens.iter().filter(|len| **len > 0).count();
        for (i, len) in lens.iter().enumerate() {
            let after = used.saturating_sub(i + 1) as u32;
            let piece = Piece { len: *len as u32, after };
            if !self.trade_one(good.then_some(piece), trade) {
                self.inside = i > 0;
                return (i, false);
            }
        }
        (count, true)
    }

    fn received<'a>(pieces: &'a [Bytes<'a>], len: usize, done: Done) -> Received<'a> {
        let has = |bit| done.status & bit != 0 && done.status & rx::IXSM == 0;
        let checked = Checked { ip: has(rx::IPCS), transport: has(rx::TCPCS) || has(rx::UDPCS) };
        let vlan = (done.status & rx::VP != 0).then_some(done.vlan);
        Received { pieces, len, vlan, checked, errors: done.errors }
    }

    /// Shows a frame in several buffers. False if it is not complete yet.
    #[cold]
    fn poll_long(&mut self, visit: &mut impl FnMut(Received<'_>)) -> bool {
        let mut pieces = [Bytes::empty(); MAX_PIECES];
        let (mut count, mut len, mut at) = (0, 0, self.next);
        let last = loop {
            let Some(done) = self.done(at) else { return false };
            if let Some(piece) = pieces.get_mut(count) {
                *piece = self.buffers.get(at).prefix(done.len);
            }
            (count, len) = (count + 1, len + done.len);
            at = if at + 1 == self.size { 0 } else { at + 1 };
            if done.status & rx::EOP != 0 || count == self.size as usize {
                break done;
            }
        };
        if count <= MAX_PIECES {
            let len = len.saturating_sub(if self.with_fcs { FCS } else { 0 });
            let mut left = len;
            pieces[..count].iter_mut().for_each(|piece| {
                *piece = piece.prefix(left);
                left -= piece.len();
            });
            visit(Self::received(&pieces[..count], len, last));
        }
        self.recycle(count as u32);
        true
    }

    /// Gives the next `count` descriptors back, with their buffers.
    #[inline]
    fn recycle(&mut self, count: u32) {
        for _ in 0..count {
            self.write(self.next);
            self.next = self.after(1);
        }
    }
}
