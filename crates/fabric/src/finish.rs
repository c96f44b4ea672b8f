//! Carries out offload requests that a receiver does not accept, in software, on delivery.
//!
//! Long packets are cut and checksums computed in the worker's private memory. So the delivered
//! bytes are those that were summed, whatever the sender does to its payload meanwhile. Other
//! frames pass unchanged, and the order is kept.

use frame::{Offload, Segments, checksum};
use port::{Batch, Egress, FrameIdx, Limits, MapGuard, OffloadSet, Scratch, Software};
use shmem::Bytes;

/// The pieces in order.
const ALL: [FrameIdx; PIECES] = {
    let mut list = [0; PIECES];
    let mut i = 0;
    while i < list.len() {
        list[i] = i as FrameIdx;
        i += 1;
    }
    list
};

/// The maximum number of pieces delivered together.
const PIECES: usize = 64;
/// The maximum number of bytes of pieces delivered together; a single piece may be longer.
const BYTES: usize = 128 << 10;

/// Segments are cut to no less than this, in bytes.
const LEAST: usize = 64;

/// How much of a list of frames was delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handed {
    /// Frames that are finished; the rest is stalled.
    pub finished: usize,
    /// Delivered segments of the first stalled frame.
    pub segments: usize,
    /// Frames and pieces copied.
    pub copies: usize,
}

/// Turns frames into what a receiver accepts. Allocated when a worker first needs it.
#[derive(Debug)]
pub struct Finisher {
    bytes: Vec<u8>,
    /// The pieces in `bytes`.
    pieces: Scratch,
    /// Bytes in use.
    used: usize,
    /// For each piece: which frame it comes from.
    origins: [Origin; PIECES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Origin {
    /// The segment's number in its frame.
    segment: usize,
    /// True for the last segment of its frame.
    last: bool,
}

/// One delivery.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "an egress has none")]
pub struct Delivery<'a> {
    /// The receiver.
    pub to: &'a dyn Egress,
    /// The batch with the frames.
    pub batch: &'a Batch<'a>,
    /// The frames to deliver.
    pub list: &'a [FrameIdx],
    /// For the receiver.
    pub limits: Limits,
    /// Vouches for the frames' memory.
    pub map: &'a MapGuard<'a>,
    /// The receiver takes shorter frames than the sender may send: segments may have to be shorter
    /// than the sender wants.
    pub narrow: bool,
}

impl Delivery<'_> {
    /// True if the receiver accepts a frame as it is.
    #[inline]
    fn is_as_is(&self, i: FrameIdx, takes: OffloadSet) -> bool {
        let fits = !self.narrow || narrowed(self.batch, i, self.limits.max_frame).is_none();
        fits && takes.takes(&self.batch.offload(i))
    }

    /// The request of a frame, with segments that the receiver takes.
    #[inline]
    fn offload(&self, i: FrameIdx) -> Offload {
        let most = self.limits.max_frame;
        let narrowed = if self.narrow { narrowed(self.batch, i, most) } else { None };
        narrowed.unwrap_or_else(|| self.batch.offload(i))
    }
}

/// The request of a frame, cut to segments of frames of `most` bytes; `None` if it fits, or cannot
/// be cut.
#[cold]
pub(crate) fn narrowed(batch: &Batch<'_>, i: FrameIdx, most: u32) -> Option<Offload> {
    let offload = batch.offload(i);
    let is_tcp =
        matches!(offload.gso_type & !Offload::GSO_ECN, Offload::GSO_TCP4 | Offload::GSO_TCP6);
    if !is_tcp || batch.wire_len(i) <= most as usize {
        return None;
    }
    let room = (most as usize).checked_sub(offload.header_len.into())?;
    (room >= LEAST).then_some(Offload { gso_size: room as u16, ..offload })
}

/// A frame that is being cut into pieces.
struct Cut {
    offload: Offload,
    segments: Option<Segments>,
}

impl Cut {
    fn of(delivery: &Delivery<'_>, i: FrameIdx) -> Self {
        let (batch, offload) = (delivery.batch, delivery.offload(i));
        Self { offload, segments: offload.segments(batch.head(i), batch.frame(i).len()) }
    }

    fn count(&self) -> usize {
        self.segments.map_or(1, |segments| segments.count().max(1))
    }

    fn len(&self, whole: usize, segment: usize) -> usize {
        self.segments.map_or(whole, |s| s.header_len() + s.payload(segment).len())
    }
}

impl Default for Finisher {
    fn default() -> Self {
        Self {
            bytes: vec![0; BYTES],
            pieces: Scratch::new(PIECES),
            used: 0,
            origins: [Origin::default(); PIECES],
        }
    }
}

impl Finisher {
    /// Delivers the frames of a batch with requests. Of the first frame, `segments` segments are
    /// already delivered.
    pub fn deliver_finished(&mut self, delivery: &Delivery<'_>, segments: usize) -> Handed {
        let Delivery { to, batch, list, limits, .. } = *delivery;
        let takes = to.takes();
        let mut handed = Handed { segments, ..Handed::default() };
        let mut software = Software::default();
        while handed.finished < list.len() {
            let left = &list[handed.finished..];
            let as_is = left.iter().take_while(|i| delivery.is_as_is(**i, takes)).count();
            let finished = if as_is > 0 {
                let finished = to.deliver(batch, &left[..as_is], limits).finished;
                handed.finished += finished;
                handed.segments = 0;
                handed.copies += as_is;
                finished == as_is
            } else {
                self.fill(delivery, left, takes, handed.segments);
                self.hand_out(delivery, &mut handed, takes, &mut software)
            };
            if !finished {
                break;
            }
        }
        if software != Software::default() {
            to.count_software(software);
        }
        handed
    }

    /// Makes pieces of those frames at the start of `list` that the receiver does not accept.
    /// Starts at `segment` of the first frame.
    fn fill(
        &mut self,
        delivery: &Delivery<'_>,
        list: &[FrameIdx],
        takes: OffloadSet,
        segment: usize,
    ) {
        self.pieces.clear();
        self.used = 0;
        let mut segment = segment;
        for i in list.iter().take_while(|i| !delivery.is_as_is(**i, takes)) {
            let cut = Cut::of(delivery, *i);
            segment = segment.min(cut.count() - 1);
            while segment < cut.count() {
                if !self.push(delivery.batch, *i, &cut, segment, takes) {
                    return;
                }
                segment += 1;
            }
            segment = 0;
        }
    }

    /// Makes a piece; false if there is no room.
    fn push(
        &mut self,
        batch: &Batch<'_>,
        i: FrameIdx,
        cut: &Cut,
        segment: usize,
        takes: OffloadSet,
    ) -> bool {
        let (frame, at) = (batch.pick(i), self.pieces.len());
        let len = cut.len(frame.len(), segment);
        if at == PIECES || at > 0 && self.used + len > self.bytes.len() {
            return false;
        }
        if len > self.bytes.len() {
            self.bytes.resize(len, 0);
        }
        let piece = &mut self.bytes[self.used..self.used + len];
        match &cut.segments {
            Some(segments) => {
                let (headers, payload) = piece.split_at_mut(segments.header_len());
                frame.copy_range(0, Bytes::of(headers));
                frame.copy_range(segments.payload(segment).start, Bytes::of(payload));
                segments.write_headers(segment, piece);
            }
            None => _ = frame.copy_to(Bytes::of(piece)),
        }
        let left = cut.offload.of_segment();
        if !takes.takes(&left) {
            checksum::complete(piece, left.checksum_start, left.checksum_offset);
        }
        self.pieces.push(Bytes::of(piece).span());
        // A checksum computed here is known to be good. NICs report that to their guests.
        let good = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        self.pieces.set_offload(if takes.takes(&left) { left } else { good });
        self.used += len;
        self.origins[at] = Origin { segment, last: segment + 1 == cut.count() };
        true
    }

    /// Delivers a frame of the switch's own.
    pub fn deliver_own(
        &mut self,
        to: &impl Egress,
        frame: &mut [u8],
        limits: Limits,
        map: &MapGuard<'_>,
    ) {
        self.pieces.clear();
        self.pieces.push(Bytes::of(frame).span());
        self.pieces.judge(map, &mut [(); PIECES], |_, _| ());
        let _ = to.deliver(&self.pieces.batch(map), &ALL[..1], limits);
    }

    /// Delivers the finished pieces; false if some are refused.
    fn hand_out(
        &mut self,
        delivery: &Delivery<'_>,
        handed: &mut Handed,
        takes: OffloadSet,
        software: &mut Software,
    ) -> bool {
        let count = self.pieces.len();
        self.pieces.judge(delivery.map, &mut [(); PIECES], |_, _| ());
        self.pieces.set_sender(delivery.batch.sender());
        let batch = self.pieces.batch(delivery.map);
        let done = delivery.to.deliver(&batch, &ALL[..count], delivery.limits).finished;
        let mut frames = 0;
        for origin in &self.origins[..done] {
            handed.segments = if origin.last { 0 } else { origin.segment + 1 };
            frames += usize::from(origin.last);
            software.segmented += u64::from(origin.last && origin.segment > 0);
        }
        handed.finished += frames;
        handed.copies += count;
        // A receiver that completes checksums itself gets segments with partial checksums.
        software.checksums += if takes.checksum { 0 } else { done as u64 };
        // Counts segments beyond one per frame. A frame that ends here has at least its last piece
        // here.
        software.segments += (done - frames) as u64;
        done == count
    }
}
