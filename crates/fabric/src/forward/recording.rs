//! Records of a batch, while the switch is observed.

use std::slice;
use std::sync::PoisonError;

use port::{Batch, DropReason, Egress, EgressCounters, FrameIdx, Nanos, Scratch};
use shmem::Shared;

use super::deliver::{Copies, List};
use super::{DROP, Destination, FLOOD, Forwarder, PassState, Touched};
use crate::ports::QueueIdx;
use crate::record::{Fate, Record, Recorded, Recorder};

/// The recording state of the current batch.
#[derive(Debug, Default)]
pub(super) struct Recording {
    recorder: Option<Shared<Recorder>>,
    /// True if any records are wanted.
    pub wanted: bool,
    /// True if records of drops are wanted.
    pub drops: bool,
    /// Frames before the next sample.
    skip: u32,
    /// The state of an xorshift generator for gaps between samples.
    random: u32,
}

impl Recording {
    /// Records into `recorder`, if that asks for records.
    pub fn of(recorder: Shared<Recorder>) -> Self {
        // Workers start with different states.
        let random = std::ptr::from_ref(&recorder).addr() as u32 | 1;
        Self { recorder: Some(recorder), random, ..Self::default() }
    }

    /// Reads which records of a batch are wanted.
    #[inline(always)]
    pub fn begin(&mut self, now: Nanos) {
        (self.wanted, self.drops) = (false, false);
        if let Some(recorder) = &self.recorder
            && recorder.is_wanted()
        {
            self.wanted = true;
            self.drops = recorder.wants_drops(now);
        }
    }

    /// The number of frames to the next sample: `rate` on average, and unpredictable for a sender.
    fn gap(&mut self, rate: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        let range = u64::from(rate) * 2 - 1;
        1 + ((u64::from(self.random) * range) >> 32) as u32
    }

    #[cold]
    fn keep(&self, which: Recorded, batch: &Batch<'_>, frame: FrameIdx, from: u16, fate: Fate) {
        if let Some(recorder) = &self.recorder {
            let len = batch.frame(frame).len() as u32;
            let record = Record::new(batch.now(), from, fate, len, batch.head(frame));
            recorder.keep(which, &record);
        }
    }
}

impl Forwarder {
    /// Records into `recorder`, as far as that asks for records.
    #[must_use]
    pub fn recording(mut self, recorder: Shared<Recorder>) -> Self {
        self.touched.recording = Recording::of(recorder);
        self
    }

    /// Reads whether drops are recorded, before [`lost`](Self::lost).
    pub fn begin_recording(&mut self, now: Nanos) {
        self.touched.recording.begin(now);
    }

    /// Records a frame that port `from` has sent, and that the port's link has dropped.
    pub fn lost(&self, batch: &Batch<'_>, frame: FrameIdx, from: u16, reason: DropReason) {
        if self.touched.recording.drops {
            let fate = Fate::Dropped(reason, None);
            self.touched.recording.keep(Recorded::Drops, batch, frame, from, fate);
        }
    }

    /// Records samples of the frames in `scratch`, and frames that pass 1 dropped.
    #[cold]
    pub(super) fn record<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        scratch: &Scratch,
        uniform: Option<QueueIdx>,
    ) {
        let (batch, frames) = (scratch.batch(way.map), scratch.len() as u32);
        let recording = &mut self.touched.recording;
        let rate = recording.recorder.as_ref().map_or(0, |recorder| recorder.rate());
        let fate = |frame: u32| way.fate(uniform.unwrap_or(self.destinations[frame as usize]));
        if rate > 0 {
            // The rate may have changed since the gap was chosen.
            recording.skip = recording.skip.min(rate.saturating_mul(2));
            while recording.skip < frames {
                let frame = recording.skip;
                let id = way.port.id;
                recording.keep(Recorded::Samples, &batch, frame as FrameIdx, id, fate(frame));
                recording.skip = recording.skip.saturating_add(recording.gap(rate));
            }
            recording.skip -= frames;
        }
        if !recording.drops || uniform.is_some() {
            return;
        }
        for frame in 0..frames {
            if let Fate::Dropped(reason, _) = fate(frame) {
                let fate = Fate::Dropped(reason, None);
                recording.keep(Recorded::Drops, &batch, frame as FrameIdx, way.port.id, fate);
            }
        }
    }

    /// Records floods without any receiver.
    #[cold]
    pub(super) fn record_unreached<E: Egress>(&self, way: &PassState<'_, E>, scratch: &Scratch) {
        let batch = scratch.batch(way.map);
        for frame in self.floods.iter().filter(|i| !self.reached[usize::from(**i)]) {
            self.touched.dropped(way, &batch, *frame, DropReason::NoDestination, None);
        }
    }
}

impl Touched {
    /// Records a frame that is dropped, if drops are recorded.
    #[inline]
    pub(super) fn dropped<E>(
        &self,
        way: &PassState<'_, E>,
        batch: &Batch<'_>,
        frame: FrameIdx,
        reason: DropReason,
        by: Option<u16>,
    ) {
        if self.recording.drops {
            let fate = Fate::Dropped(reason, by);
            self.recording.keep(Recorded::Drops, batch, frame, way.port.id, fate);
        }
    }
}

impl<E: Egress> PassState<'_, E> {
    fn fate(&self, destination: Destination) -> Fate {
        match destination {
            FLOOD => Fate::Flooded,
            queue if queue < DROP => Fate::To(self.ports.queue(queue).port),
            drop => {
                let reason = DropReason::ALL.get((drop & 0xff) as usize).copied();
                Fate::Dropped(reason.unwrap_or(DropReason::NoDestination), None)
            }
        }
    }

    /// Like [`send`](Self::send), one frame at a time, so that the egress's counters show which
    /// frames it drops. Other workers that deliver to the same queue wait meanwhile.
    #[cold]
    pub(super) fn send_recorded(
        &mut self,
        batch: &Batch<'_>,
        queue: QueueIdx,
        list: List<'_>,
        touched: &mut Touched,
    ) {
        let to = self.ports.queue(queue);
        let entry = self.ports.get(to.port);
        let received = entry.and_then(|port| port.received.get(usize::from(to.number)));
        let mut finished = 0;
        for frame in list.frames {
            let segments = if finished == 0 { list.segments } else { 0 };
            let alone = received.filter(|_| touched.sole.is_none()).map(|received| &received.alone);
            let alone = alone.map(|alone| alone.lock().unwrap_or_else(PoisonError::into_inner));
            let before = received.map(|received| drops(&received.counters));
            let lost = to.egress.lost();
            let one = (slice::from_ref(frame), segments);
            let handed = self.hand_out(batch, to, one, to.limits, touched);
            let after = received.map(|received| drops(&received.counters));
            drop(alone);
            self.deliveries += handed.copies;
            if handed.finished == 0 {
                let (frames, segments) = (&list.frames[finished..], handed.segments);
                self.stall(queue, List { frames, segments, ..list }, batch, touched);
                break;
            }
            finished += 1;
            let grown = before.zip(after).and_then(|(before, after)| {
                let grown = before.iter().zip(&after).position(|(before, after)| before != after);
                grown.and_then(|reason| DropReason::ALL.get(reason))
            });
            let grown =
                grown.or_else(|| (to.egress.lost() > lost).then_some(&DropReason::Impaired));
            if let Some(reason) = grown {
                touched.dropped(self, batch, *frame, *reason, Some(to.port));
            }
        }
        if !to.mirrors.is_empty() {
            let copies = Copies { max_frame: to.limits.max_frame, sent: false };
            self.mirror(batch, &to.mirrors, &list.frames[..finished], copies, touched);
        }
    }
}

/// How many frames a receive queue has dropped, by reason.
fn drops(counters: &EgressCounters) -> [u64; DropReason::AT_EGRESS] {
    std::array::from_fn(|reason| counters.drops[reason].get())
}
