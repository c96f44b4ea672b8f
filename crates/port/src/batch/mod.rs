//! Frames on their way through a switch: gathered into a [`Scratch`], lent to egresses as a
//! [`Batch`].

mod lent;

use std::marker::PhantomData;

use shmem::{Bytes, Span};

pub use self::lent::{Batch, Picked};
use crate::{Nanos, Offload};

/// Bytes of a frame that are copied into private memory before any decision.
pub const HEAD: usize = 128;
/// The maximum number of segments a frame may consist of; also netmap's `NETMAP_MAX_FRAGS`.
pub const MAX_SEGS: usize = 64;
/// Frames in a scratch for each gathered frame: itself, tagged, untagged, retagged.
const VARIANTS: usize = 4;
/// A frame's place in its batch.
pub type FrameIdx = u16;

/// The private copy of a frame's first bytes: the bytes that were checked are the bytes delivered.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub struct Head([u8; HEAD]);

/// A frame with its head and the start of its bytes, side by side. A frame in one piece needs
/// nothing else.
#[derive(Clone, Debug)]
#[repr(C)]
struct Lane {
    head: Head,
    frame: Frame,
    first: Span,
}

impl Lane {
    /// The frame's segments; those of a frame in several pieces are in `segs`.
    fn segments<'s>(&'s self, segs: &'s [Span]) -> &'s [Span] {
        let Frame { first_seg, segs: count, .. } = self.frame;
        match count {
            0 | 1 => std::slice::from_ref(&self.first),
            _ => &segs[first_seg as usize..][..usize::from(count)],
        }
    }
}

impl Head {
    /// All bytes of the head; those beyond the frame's end are stale.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> &[u8; HEAD] {
        &self.0
    }

    /// The destination and the source address, each in the low 48 bits of its word, first octet
    /// lowest (as in [`crate::Mac::word`]).
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

    /// The frame's two addresses as they are in it, in twelve bytes, to compare them with another
    /// frame's.
    #[inline(always)]
    #[must_use]
    pub fn both_addresses(&self) -> (u64, u32) {
        let (mut first, mut second) = ([0; 8], [0; 4]);
        first.copy_from_slice(&self.0[..8]);
        second.copy_from_slice(&self.0[8..12]);
        (u64::from_ne_bytes(first), u32::from_ne_bytes(second))
    }

    /// The two bytes at `at` (at most 126), most significant first.
    #[inline(always)]
    #[must_use]
    pub fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }
}

/// A frame of a batch: its head, and where its other bytes are.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Frame {
    /// Bytes of the frame as it is delivered.
    len: u32,
    /// How many segments the frame has.
    segs: u16,
    /// How many of the frame's bytes are in the head, once that was copied. These are all, if the
    /// frame has no more than 64.
    head: u8,
    /// Bytes of the frame's segments that the head replaces. Differs from `head` after a tag was
    /// added or removed.
    covered: u8,
    /// The frame's first segment in the scratch, if it has several.
    first_seg: u32,
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

    /// How many of the frame's bytes are in its head.
    #[inline(always)]
    #[must_use]
    pub fn head_len(&self) -> usize {
        usize::from(self.head)
    }
}

/// Proof that the memory of frames stays mapped for `'a`: for one turn, whose time it holds.
#[derive(Debug)]
pub struct MapGuard<'a> {
    now: Nanos,
    mapped: PhantomData<&'a ()>,
}

impl MapGuard<'_> {
    /// Vouches for the mappings.
    ///
    /// # Safety
    /// Until the guard is dropped, no memory that a frame in any scratch in use with it points to
    /// may be unmapped. Workers promise it by epochs: a mapping is only dropped after every worker
    /// has announced a later turn.
    #[must_use]
    pub unsafe fn assume_mapped() -> Self {
        Self { now: Nanos(0), mapped: PhantomData }
    }

    /// The same guard, for a turn at `now`.
    #[must_use]
    pub fn at(self, now: Nanos) -> Self {
        Self { now, ..self }
    }
}

/// Storage for gathered frames until they are completed. It is allocated once and used for many
/// batches.
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
    /// The host behind its port that each gathered frame came from; only tunnel ports set it.
    vias: Box<[u16]>,
    /// The port whose owner has sent the frames.
    sender: u16,
}

impl Scratch {
    /// Makes room for `batch` frames (at most 1,024) and three variants of each.
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
            vias: Box::default(),
            sender: u16::MAX,
        }
    }

    /// The most frames that the scratch takes, without variants.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lanes.len() / VARIANTS
    }

    /// Notes which port's owner has sent the frames, until another is noted.
    #[inline]
    pub fn set_sender(&mut self, port: u16) {
        self.sender = port;
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

    /// True if the scratch holds no frames.
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

    /// How many frames on the wire the first `frames` frames are, and their bytes in all. Valid
    /// after [`judge`](Self::judge), which validates requests.
    #[inline]
    #[must_use]
    pub fn on_wire(&self, frames: usize) -> (usize, u64) {
        if !self.any_offload {
            return (frames, self.bytes);
        }
        let lanes = self.lanes[..frames].iter().zip(&self.offloads);
        lanes.fold((0, 0), |(frames, bytes), (lane, offload)| {
            let (more, len) = offload.on_wire(lane.frame.len as usize);
            (frames + more, bytes + len as u64)
        })
    }

    /// True if a frame of [`MAX_SEGS`] segments would still fit.
    #[inline(always)]
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.used_frames < self.capacity() && self.used_segs + MAX_SEGS <= self.segs.len()
    }

    /// Adds frames of one piece each. `window` gives the bytes for each of `items`. Stops when it
    /// gives `None`, at `max` frames in all, or without room.
    #[inline(always)]
    pub fn push_all<'m, T>(
        &mut self,
        max: usize,
        items: impl IntoIterator<Item = T>,
        mut window: impl FnMut(T) -> Option<Bytes<'m>>,
    ) {
        let most = max.min(self.capacity()).max(self.used_frames);
        let (mut bytes, mut pushed) = (0, 0);
        for (lane, item) in self.lanes[self.used_frames..most].iter_mut().zip(items) {
            let Some(window) = window(item) else { break };
            window.prefetch();
            if window.len() > 64 {
                window.prefetch_at(64);
            }
            lane.first = window.span();
            let len = window.len() as u32;
            lane.frame = Frame { len, segs: 1, head: 0, covered: 0, first_seg: 0 };
            pushed += 1;
            bytes += u64::from(len);
        }
        self.used_frames += pushed;
        self.bytes += bytes;
    }

    /// Adds a frame of one piece, if there is room.
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
            let pieces = &self.segs[first_seg..self.used_segs];
            lane.first = pieces.first().copied().unwrap_or(Span::EMPTY);
            let (len, first_seg, segs) = (len as u32, first_seg as u32, segs as u16);
            lane.frame = Frame { len, first_seg, segs, head: 0, covered: 0 };
            self.used_frames += 1;
            self.bytes += u64::from(len);
        }
    }

    /// Removes the last `segs` segments: their frame was malformed.
    pub fn abandon_segments(&mut self, segs: usize) {
        self.used_segs = self.used_segs.saturating_sub(segs);
    }

    /// Sets the offload request of the last pushed frame.
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

    /// Sets the host behind its port that the last pushed frame came from. A port that does so does
    /// it for every frame.
    pub fn set_via(&mut self, via: u16) {
        if self.vias.is_empty() {
            self.vias = vec![0; self.capacity()].into();
        }
        if let Some(last) = self.used_frames.checked_sub(1) {
            self.vias[last] = via;
        }
    }

    /// Takes the hosts that gathered frames came from, to read while the frames are judged; [give
    /// them back](Self::give_vias) afterwards. One word for each frame that can be gathered.
    #[must_use]
    pub fn take_vias(&mut self) -> Box<[u16]> {
        match std::mem::take(&mut self.vias) {
            none if none.is_empty() => vec![0; self.capacity()].into(),
            vias => vias,
        }
    }

    /// Returns what [`take_vias`](Self::take_vias) took.
    pub fn give_vias(&mut self, vias: Box<[u16]>) {
        self.vias = vias;
    }

    /// Copies every frame's head into private memory, and calls `judge` with the head and the
    /// frame's length. Its result for frame i goes to `verdicts[i]`.
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
            let got = match is_short(len) && bytes.len() >= len {
                true => bytes.copy_out(&mut lane.head.0[..len]),
                false => Self::take_head(lane, &self.segs, map),
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

    /// Like [`judge`](Self::judge), for batches with offload requests. Checks the requests against
    /// the heads, and simplifies them. `judge` gets the length of the longest frame on the wire. If
    /// a request cannot be met, the length is 0, the verdict is `refused`, and the request is
    /// dropped.
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

    /// Calls `judge` again for every frame, with its head, its length and its previous verdict.
    #[inline(always)]
    pub fn rejudge<V: Copy>(
        &self,
        verdicts: &mut [V],
        mut judge: impl FnMut(&Head, usize, V) -> V,
    ) {
        for (lane, verdict) in self.lanes[..self.used_frames].iter().zip(verdicts) {
            *verdict = judge(&lane.head, lane.frame.len as usize, *verdict);
        }
    }

    /// Copies the head of a frame of any length.
    #[inline(never)]
    fn take_head(lane: &mut Lane, segs: &[Span], map: &MapGuard<'_>) -> usize {
        let want = (lane.frame.len as usize).min(HEAD);
        let first = bytes_of(lane.first, map);
        match want {
            HEAD if first.len() >= HEAD => first.copy_out(&mut lane.head.0),
            _ if first.len() >= want => first.copy_out(&mut lane.head.0[..want]),
            _ => Self::gather_head(lane, segs, map),
        }
    }

    /// Copies the head of a frame whose first piece does not hold all of it.
    #[inline(never)]
    fn gather_head(lane: &mut Lane, segs: &[Span], map: &MapGuard<'_>) -> usize {
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

    /// How many bytes frame `i` has, and how many of them are in its head; valid after
    /// [`judge`](Self::judge).
    #[must_use]
    pub fn lengths(&self, i: usize) -> (usize, usize) {
        let frame = &self.lanes[i].frame;
        (frame.len(), frame.head_len())
    }

    /// Adds a variant of frame `of` with a VLAN tag after its addresses. `tci` is the tag's
    /// content. Returns its place; `None` if there is no room.
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

    /// Adds a variant of frame `of` without its VLAN tag.
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

    /// Gives a variant of frame `of` the frame's request, shifted with the headers.
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
            sender: self.sender,
            map,
        }
    }
}

/// True for the short lengths that are copied inline, in two pieces that may overlap. They are
/// those of acknowledgements and of requests. Longer frames are copied out of line, where the call
/// costs little.
#[inline(always)]
fn is_short(len: usize) -> bool {
    (32..=64).contains(&len)
}

/// The window a span names.
#[inline(always)]
fn bytes_of<'a>(span: Span, _map: &'a MapGuard<'_>) -> Bytes<'a> {
    // SAFETY: the guard vouches for the mapping as long as it is borrowed.
    unsafe { span.bytes() }
}

#[cfg(test)]
mod tests;
