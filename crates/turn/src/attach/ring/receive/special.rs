//! Delivers frames that take several slots, carry an offload request, or go to slots that hold more
//! than frames.

use std::sync::atomic::Ordering;

use frame::OFFLOAD_HEADER;
use netring::layout::{Format, MAX_FRAGS, SlotWord, next, slot_flags};
use port::{Batch, FrameIdx, Limits, Offload};

use super::super::buffer_at;
use super::{EMPTY, Filled, ReceiveQueue};

/// How frames are delivered.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub limits: Limits,
    pub format: Format,
    /// The frames are copies for a monitor: of what the watched port has sent, if true.
    pub copies: Option<bool>,
}

impl How {
    /// The flags of each slot.
    fn flags(self) -> u16 {
        if self.copies == Some(true) { slot_flags::TXMON } else { 0 }
    }
}

/// A frame that is being spread over slots.
struct Piece {
    /// Its bytes in earlier slots.
    done: usize,
    /// Bytes of the virtio-net header in the next slot.
    header: usize,
    /// The flags of the next slot.
    flags: u16,
}

impl ReceiveQueue {
    /// Like [`deliver_all`](Self::deliver_all), for a batch with offload requests and a client that
    /// accepts them, and for slots that hold more than frames.
    #[inline(never)]
    pub(super) fn deliver_specially(
        &self,
        batch: &Batch<'_>,
        list: &[FrameIdx],
        how: How,
    ) -> usize {
        if let Err(fault) = self.make_room() {
            return self.refuse(fault, list.len());
        }
        let mut filled = Filled { at: self.at(), spare: self.out(), ..EMPTY };
        let admitted = self.admitted(batch, list, (how.limits, how.format));
        let fill = |i: &&FrameIdx| self.fill_special(&mut filled, batch, **i, how);
        let done = admitted.iter().take_while(fill).count();
        self.publish(&filled);
        if how.limits.lossless {
            return done;
        }
        if done < admitted.len() {
            self.overflow(admitted.len() - done);
        }
        list.len()
    }

    /// Drops a frame that is too long; otherwise spreads it over as many slots as it needs, with
    /// their number in the flags of each. The first slot gets the frame's offload request, if the
    /// receiver accepts it. Returns false if there is no room.
    #[inline(never)]
    pub(super) fn fill_special(
        &self,
        to: &mut Filled,
        batch: &Batch<'_>,
        i: FrameIdx,
        how: How,
    ) -> bool {
        let How { limits, format, .. } = how;
        let (len, header) = (batch.pick(i).len(), format.header());
        let count = self.slots_for(to.at, header, header + len, format);
        let Some(count) = count.filter(|_| batch.wire_len(i) as u32 <= limits.max_frame) else {
            to.too_long += 1;
            return true;
        };
        if to.spare + count >= self.slot_count() {
            return false;
        }
        let request = if header == 0 { self.request(to.at, batch.offload(i)) } else { 0 };
        if how.copies.is_some() && format == Format::PLAIN && request == 0 {
            // The word beside the slot is free for the time at which the frame crossed the switch.
            self.slots[to.at as usize].ptr.store(batch.now().0, Ordering::Relaxed);
        }
        let flags = (count as u16) << 8 | request | how.flags();
        let mut piece = Piece { done: 0, header, flags };
        for number in 0..count {
            let more = if number + 1 < count { slot_flags::MOREFRAG } else { 0 };
            let buf = self.spares[to.spare as usize].load(Ordering::Relaxed);
            self.fill_slot((to.at, buf, more), batch, i, format, &mut piece);
            to.spare += 1;
            to.at = next(to.at, self.slot_count());
        }
        to.frames += 1;
        to.bytes += len as u64;
        true
    }

    /// Fills slot `at`, which gets buffer `buf`, with the next bytes of a frame.
    fn fill_slot(
        &self,
        (at, buf, more): (u32, u32, u16),
        batch: &Batch<'_>,
        i: FrameIdx,
        format: Format,
        piece: &mut Piece,
    ) {
        let (slot, frame) = (&self.slots[at as usize], batch.pick(i));
        let offset = slot.offset(format);
        let len = self.room_after(offset).min(piece.header + frame.len() - piece.done);
        let word = SlotWord { buf, len: len as u16, flags: piece.flags | more };
        if let Some(bytes) = buffer_at(self.pool.buffers(), word, offset) {
            bytes.copy_in(&header_of(batch.offload(i))[..piece.header]);
            frame.copy_range(piece.done, bytes.suffix(piece.header));
        }
        slot.store(word);
        piece.done += len.saturating_sub(piece.header);
        (piece.header, piece.flags) = (0, piece.flags & !slot_flags::OFFLOAD);
    }

    /// The number of slots from `at` on that `total` bytes take, of which the first `header` lie in
    /// one; `None` if there are too many.
    pub(super) fn slots_for(
        &self,
        at: u32,
        header: usize,
        total: usize,
        format: Format,
    ) -> Option<u32> {
        let usable = usize::from(self.usable);
        if format.offset_mask() == 0 {
            let count = total.div_ceil(usable).max(1);
            return (count <= MAX_FRAGS && header <= usable).then_some(count as u32);
        }
        let (mut at, mut left) = (at, total);
        for count in 1..=MAX_FRAGS as u32 {
            let room = self.room_after(self.slots[at as usize].offset(format));
            if count == 1 && room < header {
                return None;
            }
            left -= room.min(left);
            if left == 0 {
                return Some(count);
            }
            at = next(at, self.slot_count());
        }
        None
    }

    /// Bytes that fit a buffer after an offset.
    fn room_after(&self, offset: u64) -> usize {
        u64::from(self.usable).saturating_sub(offset) as usize
    }

    /// Writes a frame's request next to its first slot, `at`. Returns the slot flag that announces
    /// it.
    #[inline]
    fn request(&self, at: u32, offload: Offload) -> u16 {
        if offload == Offload::NONE || !self.health.offloads.checksum {
            return 0;
        }
        self.slots[at as usize].ptr.store(offload.to_word(), Ordering::Relaxed);
        slot_flags::OFFLOAD
    }
}

/// A request's virtio-net header of 12 bytes.
fn header_of(offload: Offload) -> [u8; 12] {
    let mut header = [0; 12];
    header[..OFFLOAD_HEADER].copy_from_slice(&offload.header());
    header
}
