//! A batch as egresses see it: frames to deliver by copying.

use shmem::{Bytes, Span};

use super::{Frame, FrameIdx, HEAD, Lane, MapGuard, bytes_of, is_short};
use crate::stamp::{self, Stage};
use crate::{Nanos, Offload};

/// How many lines of payload to prefetch.
const PAYLOAD_LINES: usize = 4;

/// Frames in the form that egresses get: private copies of the heads, and the payloads in place.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    pub(super) lanes: &'a [Lane],
    pub(super) offloads: &'a [Offload],
    pub(super) segs: &'a [Span],
    /// True if the batch's frames are, on average, longer than their heads.
    pub(super) long: bool,
    pub(super) sender: u16,
    pub(super) map: &'a MapGuard<'a>,
}

impl Batch<'_> {
    /// The frame at `i`.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self, i: FrameIdx) -> &Frame {
        &self.lanes[usize::from(i)].frame
    }

    /// The time of the delivery: that of the turn.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.map.now
    }

    /// The port whose owner has sent the frames; `u16::MAX` if they are several owners'.
    #[inline]
    #[must_use]
    pub fn sender(&self) -> u16 {
        self.sender
    }

    /// The frame at `i`, ready to be copied.
    #[inline(always)]
    #[must_use]
    pub fn pick(&self, i: FrameIdx) -> Picked<'_> {
        Picked { lane: &self.lanes[usize::from(i)], batch: self }
    }

    /// The frames of `list`, if they are consecutive, as in a batch that all goes one way. Going
    /// through them is faster than by index.
    #[inline(always)]
    #[must_use]
    pub fn consecutive(
        &self,
        list: &[FrameIdx],
    ) -> Option<impl ExactSizeIterator<Item = Picked<'_>> + Clone> {
        let first = *list.first()?;
        let gaps = |gaps, (n, i): (usize, &FrameIdx)| gaps | (i ^ first.wrapping_add(n as u16));
        if list.iter().enumerate().fold(0, gaps) != 0 {
            return None;
        }
        let lanes = self.lanes.get(usize::from(first)..)?.get(..list.len())?;
        Some(lanes.iter().map(|lane| Picked { lane, batch: self }))
    }

    /// True if it is worth prefetching payloads before copying them.
    #[inline(always)]
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.long
    }

    /// The frame's head: its first [`Frame::head_len`] bytes.
    #[inline(always)]
    #[must_use]
    pub fn head(&self, i: FrameIdx) -> &[u8] {
        let Lane { frame, head, .. } = &self.lanes[usize::from(i)];
        &head.0[..frame.head_len()]
    }

    /// True if any frame has an offload request. An [`Egress`](crate::Egress) gets only requests
    /// that it [takes](crate::Egress::takes).
    #[inline(always)]
    #[must_use]
    pub fn any_offload(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// Bytes of the longest frame on the wire for frame `i`: an MTU limits it.
    #[inline(always)]
    #[must_use]
    pub fn wire_len(&self, i: FrameIdx) -> usize {
        let len = self.frame(i).len();
        if self.any_offload() { self.offload(i).wire_len(len) } else { len }
    }

    /// How many frames on the wire frame `i` is, and their bytes in all.
    #[inline(always)]
    #[must_use]
    pub fn on_wire(&self, i: FrameIdx) -> (usize, usize) {
        let len = self.frame(i).len();
        if self.any_offload() { self.offload(i).on_wire(len) } else { (1, len) }
    }

    /// The frame's validated offload request.
    #[inline]
    #[must_use]
    pub fn offload(&self, i: FrameIdx) -> Offload {
        self.offloads.get(usize::from(i)).copied().unwrap_or_default()
    }

    /// Copies the whole frame to the start of `to`, exactly; returns how many bytes fitted.
    #[inline]
    pub fn copy_frame(&self, i: FrameIdx, to: Bytes<'_>) -> usize {
        self.pick(i).copy_to(to)
    }
}

/// A frame of a batch, ready to be copied.
#[derive(Clone, Copy, Debug)]
pub struct Picked<'a> {
    lane: &'a Lane,
    batch: &'a Batch<'a>,
}

impl Picked<'_> {
    /// Bytes of the frame.
    #[inline(always)]
    #[must_use]
    pub fn len(self) -> usize {
        self.lane.frame.len()
    }

    /// True if the frame has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.lane.frame.is_empty()
    }

    /// The frame's head: its first [`Frame::head_len`] bytes.
    #[inline(always)]
    #[must_use]
    pub fn head(&self) -> &[u8] {
        &self.lane.head.0[..self.lane.frame.head_len()]
    }

    /// Copies the whole frame to the start of `to`, exactly; returns how many bytes fitted.
    #[inline(always)]
    pub fn copy_to(self, to: Bytes<'_>) -> usize {
        let _scope = stamp::scope(Stage::Copy);
        let len = self.len();
        if is_short(len) && to.len() >= len {
            debug_assert_eq!(self.lane.frame.head_len(), len, "short frames are in their heads");
            return to.copy_in(&self.lane.head.0[..len]);
        }
        self.copy_any_to(to)
    }

    /// Like [`copy_to`](Self::copy_to), for frames of any length.
    #[inline(never)]
    fn copy_any_to(self, to: Bytes<'_>) -> usize {
        let Frame { len, segs, head, covered, .. } = self.lane.frame;
        let bytes = &self.lane.head.0;
        if len == u32::from(head) {
            return to.copy_in(&bytes[..usize::from(head).min(HEAD)]);
        }
        if segs == 1 && usize::from(head) == HEAD && to.len() >= HEAD {
            to.copy_in(bytes);
            let seg = bytes_of(self.lane.first, self.batch.map);
            return HEAD + seg.suffix(usize::from(covered)).copy_to(to.suffix(HEAD));
        }
        self.copy_range(0, to)
    }

    /// Prefetches the start of the payload, while other frames are copied. The processor prefetches
    /// the rest by itself.
    #[inline(always)]
    pub fn prefetch_payload(self) {
        if self.len() > HEAD {
            let seg = bytes_of(self.lane.first, self.batch.map);
            for line in 0..PAYLOAD_LINES {
                seg.prefetch_at(HEAD + 64 * line);
            }
        }
    }

    /// Copies the frame's bytes from `from` on to `to`, as many as fit. Returns how many.
    pub fn copy_range(self, from: usize, to: Bytes<'_>) -> usize {
        let _scope = stamp::scope(Stage::Copy);
        let Lane { frame, head, .. } = self.lane;
        let head = &head.0[..frame.head_len()];
        let mut done = head.get(from..).map_or(0, |rest| to.copy_in(rest));
        // The segments continue at byte `head_len` of the frame, which is byte `covered` of the
        // segments.
        let mut skip = usize::from(frame.covered) + from.saturating_sub(head.len());
        for seg in self.lane.segments(self.batch.segs) {
            let seg = bytes_of(*seg, self.batch.map);
            if done == to.len() {
                break;
            }
            done += seg.suffix(skip).copy_to(to.suffix(done));
            skip = skip.saturating_sub(seg.len());
        }
        done
    }
}
