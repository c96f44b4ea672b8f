//! Frames on their way through a switch.

use std::marker::PhantomData;

use shmem::{Bytes, Span};

use crate::Offload;

/// Bytes of a frame that are copied into private memory before anything is decided.
pub const HEAD: usize = 128;
/// Most segments a frame may consist of; also netmap's `NETMAP_MAX_FRAGS`.
pub const MAX_SEGS: usize = 64;
/// Frames in a scratch for each that can be gathered: itself, tagged, untagged, tagged anew.
const VARIANTS: usize = 4;
/// Lines of payload that are fetched ahead.
const PAYLOAD_LINES: usize = 4;
/// A frame's place in its batch.
pub type FrameIdx = u16;

/// The private copy of a frame's first bytes: what was looked at is what is delivered.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Head([u8; HEAD]);

/// A frame with its head and where its bytes begin, side by side: all there is to one that lies in one
/// piece.
#[derive(Clone, Debug)]
#[repr(C)]
struct Lane {
    head: Head,
    frame: Frame,
    first: Span,
}

impl Lane {
    /// The frame's segments; those of a frame in several pieces lie in `segs`.
    fn segments<'s>(&'s self, segs: &'s [Span]) -> &'s [Span] {
        let Frame { first_seg, segs: count, .. } = self.frame;
        match count {
            0 | 1 => std::slice::from_ref(&self.first),
            _ => &segs[first_seg as usize..][..usize::from(count)],
        }
    }
}

impl Head {
    /// All its bytes; those beyond the frame's end are stale.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> &[u8; HEAD] {
        &self.0
    }

    /// The destination and the source address, each in the low 48 bits of its word, first octet
    /// lowest (as [`crate::Mac::word`]).
    #[inline(always)]
    #[must_use]
    pub fn addresses(&self) -> (u64, u64) {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        (word(0) & 0xffff_ffff_ffff, word(4) >> 16)
    }

    /// The two bytes at `at` (at most 126), most significant first.
    #[inline(always)]
    #[must_use]
    pub fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
}

/// A frame of a batch: its head, and where the rest of its bytes lie.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Bytes as delivered.
    len: u32,
    /// Its first segment in the scratch, if it has several.
    first_seg: u32,
    /// How many segments.
    segs: u16,
    /// Bytes of it that are in its head.
    head: u8,
    /// Bytes of its segments that the head stands for (differs from `head` after a tag was added or
    /// removed).
    covered: u8,
}

impl Frame {
    /// Bytes as delivered.
    #[inline(always)]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// True for a frame of no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of it that are in its head.
    #[inline(always)]
    #[must_use]
    pub fn head_len(&self) -> usize {
        usize::from(self.head)
    }
}

/// Proof that the memory which frames point to stays mapped for `'a`.
#[derive(Debug)]
pub struct MapGuard<'a>(PhantomData<&'a ()>);

impl MapGuard<'_> {
    /// Vouches for the mappings.
    ///
    /// # Safety
    /// Until the guard is dropped, no memory that a frame in any scratch in use with it points to may
    /// be unmapped. Workers promise it by epochs: a mapping is only dropped after every worker has
    /// announced a later turn.
    #[must_use]
    pub unsafe fn assume_mapped() -> Self {
        Self(PhantomData)
    }
}

/// Where gathered frames stay until they are completed. Allocated once, used for many batches.
///
/// Frames `0..gathered` are as they came in. The fabric may append *variants*: frames with another
/// head (a VLAN tag added or removed) over the same payload.
#[derive(Debug)]
pub struct Scratch {
    lanes: Box<[Lane]>,
    offloads: Box<[Offload]>,
    segs: Box<[Span]>,
    used_frames: usize,
    used_segs: usize,
    bytes: u64,
    any_offload: bool,
}

impl Scratch {
    /// Room for `batch` frames (at most 1,024) and three variants of each.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        let batch = batch.clamp(1, 1024);
        let frames = VARIANTS * batch;
        let empty = Lane { head: Head([0; HEAD]), frame: Frame::default(), first: Span::EMPTY };
        Self {
            lanes: vec![empty; frames].into(),
            offloads: vec![Offload::NONE; frames].into(),
            segs: vec![Span::EMPTY; 2 * batch + 4 * MAX_SEGS].into(),
            used_frames: 0,
            used_segs: 0,
            bytes: 0,
            any_offload: false,
        }
    }

    /// The most frames it takes, without variants.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lanes.len() / VARIANTS
    }

    /// Forgets all frames.
    #[inline]
    pub fn clear(&mut self) {
        self.used_frames = 0;
        self.used_segs = 0;
        self.bytes = 0;
        self.any_offload = false;
    }

    /// Frames held, variants included.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.used_frames
    }

    /// True without frames.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used_frames == 0
    }

    /// Bytes of all frames that were pushed.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// True if a frame of [`MAX_SEGS`] segments would still fit.
    #[inline(always)]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.used_frames < self.capacity() && self.used_segs + MAX_SEGS <= self.segs.len()
    }

    /// Adds frames that lie in one piece each, as long as `next` has any, until there are `max` in
    /// all or no room is left.
    #[inline(always)]
    pub fn push_all<'m>(&mut self, max: usize, mut next: impl FnMut() -> Option<Bytes<'m>>) {
        let most = max.min(self.capacity()).max(self.used_frames);
        let (mut bytes, mut pushed) = (0, 0);
        for lane in &mut self.lanes[self.used_frames..most] {
            let Some(window) = next() else { break };
            window.prefetch();
            if window.len() > 64 {
                window.suffix(64).prefetch();
            }
            lane.first = window.span();
            let len = window.len() as u32;
            lane.frame = Frame { len, first_seg: 0, segs: 1, head: 0, covered: 0 };
            pushed += 1;
            bytes += u64::from(len);
        }
        self.used_frames += pushed;
        self.bytes += bytes;
    }

    /// Adds a frame that lies in one piece, if there is room.
    pub fn push(&mut self, bytes: Span) {
        bytes.prefetch();
        self.push_segment(bytes);
        self.end_frame(1, bytes.len());
    }

    /// Adds a segment of a frame that [`end_frame`](Self::end_frame) completes.
    #[inline(always)]
    pub fn push_segment(&mut self, bytes: Span) {
        if let Some(seg) = self.segs.get_mut(self.used_segs) {
            *seg = bytes;
            self.used_segs += 1;
        }
    }

    /// Makes one frame of `len` bytes out of the last `segs` segments.
    #[inline(always)]
    pub fn end_frame(&mut self, segs: usize, len: usize) {
        let first_seg = self.used_segs.saturating_sub(segs);
        if let Some(lane) = self.lanes.get_mut(self.used_frames) {
            lane.first = self.segs.get(first_seg).copied().unwrap_or(Span::EMPTY);
            let (len, first_seg, segs) = (len as u32, first_seg as u32, segs as u16);
            lane.frame = Frame { len, first_seg, segs, head: 0, covered: 0 };
            self.used_frames += 1;
            self.bytes += u64::from(len);
        }
    }

    /// Takes back the last `segs` segments: their frame was malformed.
    pub fn abandon_segments(&mut self, segs: usize) {
        self.used_segs = self.used_segs.saturating_sub(segs);
    }

    /// Sets the offload request of the frame pushed last.
    pub fn set_offload(&mut self, offload: Offload) {
        if !self.any_offload {
            let gathered = self.capacity();
            self.offloads[..gathered].fill(Offload::NONE);
            self.any_offload = true;
        }
        if let Some(last) = self.used_frames.checked_sub(1) {
            self.offloads[last] = offload;
        }
    }

    /// Copies every frame's head into private memory and has `judge` decide on it and the frame's
    /// length; what it says of frame i goes to `verdicts[i]`.
    #[inline(always)]
    pub fn judge<V>(
        &mut self,
        map: &MapGuard<'_>,
        verdicts: &mut [V],
        mut judge: impl FnMut(&Head, usize) -> V,
    ) {
        let lanes = self.lanes[..self.used_frames].iter_mut();
        for (lane, verdict) in lanes.zip(verdicts) {
            let len = lane.frame.len as usize;
            let bytes = bytes_of(lane.first, map);
            // The two commonest lengths by far get copies of constant length.
            let got = match len {
                64 if bytes.len() >= 64 => bytes.copy_out(&mut lane.head.0[..64]),
                HEAD.. if bytes.len() >= HEAD => bytes.copy_out(&mut lane.head.0),
                _ => Self::take_odd_head(lane, &self.segs, map),
            };
            lane.frame.head = got as u8;
            lane.frame.covered = got as u8;
            *verdict = judge(&lane.head, len);
        }
    }

    /// True if a frame has an offload request.
    #[inline(always)]
    #[must_use]
    pub fn any_offload(&self) -> bool {
        self.any_offload
    }

    /// As [`judge`](Self::judge), for batches with offload requests, which are checked against the heads
    /// and simplified. The length given to `judge` is that of the longest frame that a frame becomes on a
    /// wire; 0 for one whose request cannot be met, of which `refused` is said and which keeps no
    /// request.
    pub fn judge_requests<V: Copy>(
        &mut self,
        map: &MapGuard<'_>,
        verdicts: &mut [V],
        refused: V,
        mut judge: impl FnMut(&Head, usize) -> V,
    ) {
        self.judge(map, verdicts, |_, _| refused);
        for (i, verdict) in verdicts.iter_mut().enumerate().take(self.used_frames) {
            let Lane { head, frame, .. } = &self.lanes[i];
            let offload = &mut self.offloads[i];
            match offload.validate(&head.0[..frame.head_len()], frame.len()) {
                Ok(len) => *verdict = judge(head, len),
                Err(_) => {
                    *offload = Offload::NONE;
                    let _ = judge(head, 0);
                }
            }
        }
    }

    /// Shows `visit` the destination address of each frame (low 48 bits) as it is at this moment, before
    /// its head was taken: good for nothing but to fetch what will be looked up.
    #[inline]
    pub fn peek_destinations(&self, map: &MapGuard<'_>, mut visit: impl FnMut(u64)) {
        for lane in &self.lanes[..self.used_frames] {
            if let Some(word) = bytes_of(lane.first, map).read::<u64>(0) {
                visit(u64::from_le(word) & 0xffff_ffff_ffff);
            }
        }
    }

    fn take_odd_head(lane: &mut Lane, segs: &[Span], map: &MapGuard<'_>) -> usize {
        let mut head = [0; HEAD];
        let want = (lane.frame.len as usize).min(HEAD);
        let mut at = 0;
        for seg in lane.segments(segs) {
            at += bytes_of(*seg, map).copy_out(&mut head[at..want]);
        }
        lane.head = Head(head);
        at
    }

    /// The head of frame `i`; valid after [`judge`](Self::judge).
    #[inline(always)]
    #[must_use]
    pub fn head(&self, i: usize) -> &Head {
        &self.lanes[i].head
    }

    /// Adds a variant of frame `of` with a VLAN tag of this content (TCI) after its addresses, and
    /// returns its place; `None` if there is no room.
    pub fn with_tag(&mut self, of: usize, tci: u16) -> Option<FrameIdx> {
        let Lane { frame, mut head, first } = self.lanes[of].clone();
        let kept = frame.head_len().min(HEAD - 4);
        head.0.copy_within(12..kept, 16);
        head.0[12..14].copy_from_slice(&[0x81, 0x00]);
        head.0[14..16].copy_from_slice(&tci.to_be_bytes());
        let covered = frame.covered - (frame.head - kept as u8);
        let frame = Frame { len: frame.len + 4, head: kept as u8 + 4, covered, ..frame };
        let variant = self.push_variant(Lane { head, frame, first });
        self.shift_offload(of, variant, 4)
    }

    /// Adds a variant of frame `of` without the VLAN tag it has.
    pub fn without_tag(&mut self, of: usize) -> Option<FrameIdx> {
        let Lane { frame, mut head, first } = self.lanes[of].clone();
        let len = frame.head_len();
        if len < 18 {
            return None;
        }
        head.0.copy_within(16..len, 12);
        let frame = Frame { len: frame.len - 4, head: frame.head - 4, ..frame };
        let variant = self.push_variant(Lane { head, frame, first });
        self.shift_offload(of, variant, -4)
    }

    /// Gives a variant of frame `of` its request, which moves with the headers.
    fn shift_offload(&mut self, of: usize, variant: Option<FrameIdx>, by: i16) -> Option<FrameIdx> {
        let variant = variant?;
        if self.any_offload {
            self.offloads[usize::from(variant)] = self.offloads[of].shifted(by);
        }
        Some(variant)
    }

    fn push_variant(&mut self, lane: Lane) -> Option<FrameIdx> {
        let at = self.used_frames;
        *self.lanes.get_mut(at)? = lane;
        self.used_frames += 1;
        Some(at as FrameIdx)
    }

    /// The frames as egresses see them.
    #[inline]
    #[must_use]
    pub fn batch<'a>(&'a self, map: &'a MapGuard<'a>) -> Batch<'a> {
        Batch {
            lanes: &self.lanes[..self.used_frames],
            offloads: if self.any_offload { &self.offloads } else { &[] },
            segs: &self.segs[..self.used_segs],
            long: self.bytes > (HEAD * self.used_frames) as u64,
            map,
        }
    }
}

/// The window a span names.
#[inline(always)]
fn bytes_of<'a>(span: Span, _map: &'a MapGuard<'_>) -> Bytes<'a> {
    // SAFETY: the guard vouches for the mapping as long as it is borrowed.
    unsafe { span.bytes() }
}

/// Frames as egresses see them: heads private, payload lent.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    lanes: &'a [Lane],
    offloads: &'a [Offload],
    segs: &'a [Span],
    /// On average, its frames are longer than their heads.
    long: bool,
    map: &'a MapGuard<'a>,
}

impl Batch<'_> {
    /// The frame at `i`.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self, i: FrameIdx) -> &Frame {
        &self.lanes[usize::from(i)].frame
    }

    /// The frame at `i`, ready to be copied.
    #[inline(always)]
    #[must_use]
    pub fn pick(&self, i: FrameIdx) -> Picked<'_> {
        Picked { lane: &self.lanes[usize::from(i)], batch: self }
    }

    /// The frames of `list`, if they lie one after the other, as those of a batch that all goes one way
    /// do: quicker to go through than by their numbers.
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

    /// True if it pays to fetch payloads ahead of copying them.
    #[inline(always)]
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.long
    }

    /// Its head: the first [`Frame::head_len`] bytes of it.
    #[inline(always)]
    #[must_use]
    pub fn head(&self, i: FrameIdx) -> &[u8] {
        let Lane { frame, head, .. } = &self.lanes[usize::from(i)];
        &head.0[..frame.head_len()]
    }

    /// True if a frame has an offload request. An [`Egress`](crate::Egress) gets only those that it
    /// [takes](crate::Egress::takes).
    #[inline(always)]
    #[must_use]
    pub fn any_offload(&self) -> bool {
        !self.offloads.is_empty()
    }

    /// Bytes of the longest frame that frame `i` becomes on a wire: what an MTU limits.
    #[inline(always)]
    #[must_use]
    pub fn wire_len(&self, i: FrameIdx) -> usize {
        let len = self.frame(i).len();
        if self.any_offload() { self.offload(i).wire_len(len) } else { len }
    }

    /// Its offload request, which was validated.
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

    /// True for a frame of no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.lane.frame.is_empty()
    }

    /// Copies the whole frame to the start of `to`, exactly; returns how many bytes fitted.
    #[inline(always)]
    pub fn copy_to(self, to: Bytes<'_>) -> usize {
        let Frame { len, segs, head, covered, .. } = self.lane.frame;
        let bytes = &self.lane.head.0;
        if len == 64 && head == 64 && to.len() >= 64 {
            return to.copy_in(&bytes[..64]);
        }
        if segs == 1 && usize::from(head) == HEAD && to.len() >= HEAD {
            to.copy_in(bytes);
            let seg = bytes_of(self.lane.first, self.batch.map);
            return HEAD + seg.suffix(usize::from(covered)).copy_to(to.suffix(HEAD));
        }
        self.copy_range(0, to)
    }

    /// Fetches where the payload starts, while other frames are copied; the processor follows from
    /// there by itself.
    #[inline(always)]
    pub fn prefetch_payload(self) {
        if self.len() > HEAD {
            let seg = bytes_of(self.lane.first, self.batch.map);
            for line in 0..PAYLOAD_LINES {
                seg.suffix(HEAD + 64 * line).prefetch();
            }
        }
    }

    /// Copies the frame's bytes from `from` on to `to`, as many as fit; returns how many.
    pub fn copy_range(self, from: usize, to: Bytes<'_>) -> usize {
        let Lane { frame, head, .. } = self.lane;
        let head = &head.0[..frame.head_len()];
        let mut done = head.get(from..).map_or(0, |rest| to.copy_in(rest));
        // What lies in the segments starts at byte `head_len` of the frame, `covered` of the segments.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> MapGuard<'static> {
        // SAFETY: the tests' vectors outlive the scratch.
        unsafe { MapGuard::assume_mapped() }
    }

    /// A scratch with one frame of `bytes`, cut into segments of `cut` bytes.
    fn scratch_of(bytes: &mut [u8], cut: usize) -> Scratch {
        let mut scratch = Scratch::new(4);
        let (len, mut segs) = (bytes.len(), 0);
        for piece in bytes.chunks_mut(cut) {
            scratch.push_segment(Bytes::of(piece).span());
            segs += 1;
        }
        scratch.end_frame(segs, len);
        scratch.judge(&guard(), &mut [()], |_, _| ());
        scratch
    }

    fn delivered(scratch: &Scratch, i: FrameIdx) -> Vec<u8> {
        let guard = guard();
        let batch = scratch.batch(&guard);
        let mut out = vec![0; batch.frame(i).len()];
        assert_eq!(batch.copy_frame(i, Bytes::of(&mut out)), out.len());
        out
    }

    #[test]
    fn frames_arrive_as_they_were_however_they_are_cut() {
        for len in [14, 60, 63, 64, 65, 127, 128, 129, 200, 1500] {
            for cut in [1.max(len / 60), 13.max(len / 60), 64, 128, 2000] {
                let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                let expected = bytes.clone();
                let scratch = scratch_of(&mut bytes, cut);
                assert_eq!(delivered(&scratch, 0), expected, "{len} bytes cut at {cut}");
            }
        }
    }

    #[test]
    fn a_frame_can_be_copied_in_pieces() {
        let mut bytes: Vec<u8> = (0..1000).map(|i| (i / 4) as u8).collect();
        let expected = bytes.clone();
        let scratch = scratch_of(&mut bytes, 333);
        let guard = guard();
        let mut out = Vec::new();
        while out.len() < 1000 {
            let mut piece = [0; 90];
            let n = scratch.batch(&guard).pick(0).copy_range(out.len(), Bytes::of(&mut piece));
            out.extend_from_slice(&piece[..n]);
        }
        assert_eq!(out, expected);
    }

    #[test]
    fn only_frames_that_lie_one_after_the_other_are_consecutive() {
        let mut scratch = Scratch::new(8);
        let mut bytes = [0; 5 * 20];
        bytes.chunks_mut(20).for_each(|frame| scratch.push(Bytes::of(frame).span()));
        let guard = guard();
        let batch = scratch.batch(&guard);
        let count = |list: &[FrameIdx]| batch.consecutive(list).map(|frames| frames.len());
        assert_eq!(count(&[0, 1, 2, 3, 4]), Some(5));
        assert_eq!(count(&[2, 3]), Some(2));
        assert_eq!(count(&[4]), Some(1));
        for list in [&[][..], &[1, 3], &[2, 1], &[1, 1], &[0, 1, 3, 3], &[3, 4, 5], &[5]] {
            assert_eq!(count(list), None, "{list:?}");
        }
    }

    #[test]
    fn a_head_cannot_change_after_it_was_taken() {
        let mut bytes = vec![1u8; 200];
        let scratch = scratch_of(&mut bytes, 200);
        bytes.fill(2);
        let out = delivered(&scratch, 0);
        assert!(out[..HEAD].iter().all(|b| *b == 1), "the head was judged as ones");
        assert!(out[HEAD..].iter().all(|b| *b == 2), "the payload is lent");
    }

    #[test]
    fn tags_are_added_and_removed_without_touching_the_payload() {
        for len in [60, 64, 124, 126, 128, 130, 400] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * 3) as u8).collect();
            let expected = bytes.clone();
            let mut scratch = scratch_of(&mut bytes, 77);
            let tagged = scratch.with_tag(0, 0x2005).unwrap();
            let mut want = expected.clone();
            want.splice(12..12, [0x81, 0, 0x20, 5]);
            assert_eq!(delivered(&scratch, tagged), want, "{len}");
            let untagged = scratch.without_tag(usize::from(tagged)).unwrap();
            assert_eq!(delivered(&scratch, untagged), expected, "{len}");
            assert_eq!(delivered(&scratch, 0), expected, "the original is as it was");
        }
    }
}
