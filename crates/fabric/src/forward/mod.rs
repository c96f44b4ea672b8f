//! How a batch goes through the switch, in two passes.
//!
//! ```text
//!   pass 1, per frame:        copy the head; policy; learn the source; look the destination up
//!   pass 2, per destination:  its frames, in order, to its egress: one lock, one publish
//!   settle:                   one fence; then every egress that got frames checks whether to wake
//! ```
//!
//! A frame's destination is one word: a receive queue, or flood, or a reason to drop it. Delivery
//! of frames to several receivers (flooded, mirrored) is lossy. A unicast frame that a lossless
//! receiver refuses stays with its sender as *stalled* and is retried.

use port::{
    Batch, DropReason, Egress, FrameIdx, MapGuard, Nanos, Scratch, SoleWorker, histogram_bucket,
};

use crate::finish::Finisher;
use crate::ports::{Inspection, PortEntry, QueueIdx};
use crate::sender::{Stalled, Wait};
use crate::{Fdb, Filter, Ports, Sender, Sending};
pub(crate) use classify::reason_of;
use classify::{PLAIN, POLICED, TUNNEL};
use deliver::{Chain, Copies, List};
use judging::Judging;
use recording::Recording;

mod classify;
mod deliver;
mod filtered;
mod judging;
mod narrow;
mod recording;

/// Where a frame goes: a queue number, or one of these constants.
type Destination = u32;
const DROP: Destination = 0xffff_0000;
const FLOOD: Destination = 0xffff_ff00;

/// Indices of a frame's variants in [`Forwarder::variants`].
const TAGGED: usize = 0;
const UNTAGGED: usize = 1;

const fn drop_for(reason: DropReason) -> Destination {
    DROP | reason as u32
}

/// The frames of a batch in order, for batches with a single destination.
const fn identity() -> [FrameIdx; 1024] {
    let mut list = [0; 1024];
    let mut i = 0;
    while i < list.len() {
        list[i] = i as FrameIdx;
        i += 1;
    }
    list
}
static ALL: [FrameIdx; 1024] = identity();

/// The VLAN tag of a frame as it came in.
#[derive(Clone, Copy, Debug, Default)]
struct Tag {
    /// The tag's content (TCI: priority and VLAN id), if there is a tag.
    tci: Option<u16>,
    /// True if another tag follows, or the addresses if there is none. Without the first tag, the
    /// frame would be in the second's VLAN.
    hides_another: bool,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "completed frames must be given back"]
pub struct Turn {
    /// Frames, oldest first, that are finished and can be returned to the sender.
    pub completed: usize,
    /// Copies that were begun: work for other ports in the sender's turn.
    pub deliveries: usize,
    /// Frames dropped because the sender's port is gone, for the caller to count.
    pub detached: usize,
}

/// The state with which a worker forwards, allocated once.
#[derive(Debug, Default)]
pub struct Forwarder {
    destinations: Vec<Destination>,
    filters: Vec<Filter>,
    /// VLAN tags of frames as they came in, for VLAN-aware ports.
    tags: Vec<Tag>,
    /// Variants made of a frame so far: tagged, untagged.
    variants: Vec<[Option<FrameIdx>; 2]>,
    /// The gathered frame from which a variant was made.
    origins: Vec<FrameIdx>,
    /// The frames of this batch for each queue; empty between batches.
    chains: Vec<Chain>,
    /// The next frame in the chain of each frame. The last place serves frames without a
    /// predecessor.
    next: Vec<FrameIdx>,
    /// Queues with frames in this batch, until the next is sorted; none if all frames have one
    /// destination.
    queues: Vec<QueueIdx>,
    /// The queues that have several frames, or need more than the simple path.
    others: Vec<QueueIdx>,
    floods: Vec<FrameIdx>,
    reached: Vec<bool>,
    list: Vec<FrameIdx>,
    touched: Touched,
    /// Frames to retry; empty between calls.
    waiting: Vec<Stalled>,
    /// Of a switch with rules: whether each frame teaches its source.
    policed: Vec<bool>,
    judging: Option<Box<Judging>>,
}

impl Forwarder {
    /// Allocates the state for batches of up to `batch` frames.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        let mut new = Self::default();
        new.reserve(batch.clamp(1, 1024), 64);
        new
    }

    /// With the token of a switch's only worker, delivers without locks where possible.
    #[must_use]
    pub fn with_sole(mut self, sole: Option<SoleWorker>) -> Self {
        self.touched.sole = sole;
        self
    }

    /// Returns the token, for the forwarder that replaces this one.
    pub fn take_sole(&mut self) -> Option<SoleWorker> {
        self.touched.sole.take()
    }

    /// Makes room, so that the data path itself allocates nothing.
    fn reserve(&mut self, batch: usize, queues: usize) {
        self.destinations.resize(batch, 0);
        self.filters.resize(batch, 0);
        self.tags.resize(batch, Tag::default());
        self.variants.resize(batch, [None; 2]);
        self.origins.resize(4 * batch, 0);
        self.next.resize(batch + 1, 0);
        self.reached.resize(batch, false);
        self.chains.resize(queues, Chain::default());
        for list in [&mut self.floods, &mut self.list] {
            list.reserve(4 * batch);
        }
        for list in [&mut self.queues, &mut self.others, &mut self.touched.queues] {
            list.reserve(queues.max(batch));
        }
    }

    /// Forwards the frames gathered from `from` into `scratch`. Call [`settle`](Self::settle)
    /// afterwards.
    pub fn forward<E: Egress>(
        &mut self,
        ports: &Ports<E>,
        fdb: &Fdb,
        from: Sending<'_>,
        scratch: &mut Scratch,
        map: &MapGuard<'_>,
        now: Nanos,
    ) -> Turn {
        let Sending { memory, queue: from } = from;
        let frames = scratch.len();
        scratch.set_sender(from.port);
        let Some(port) = ports.get(from.port) else {
            return Turn { completed: frames, deliveries: 0, detached: frames };
        };
        if frames > self.destinations.len() || ports.queue_count() > self.chains.len() {
            self.reserve(frames.max(self.destinations.len()), ports.queue_count());
        }
        port.counters.batches[histogram_bucket(frames)].add(1);
        from.refresh(fdb, now);
        from.gathered = frames;
        from.gathered_at = now;
        from.completed = 0;
        let mut way = PassState { ports, port, from, map, now, deliveries: 0, via: 0 };
        self.touched.recording.begin(now);
        let uniform = if let Some(filters) = &ports.filters {
            self.classify_filtered(&mut way, memory, fdb, scratch, filters)
        } else if scratch.any_offload() {
            self.classify_requests(&mut way, memory, fdb, scratch)
        } else if port.is_plain() && self.is_scattered() {
            self.classify_scattered(&mut way, memory, fdb, scratch)
        } else {
            match port.manner {
                Inspection::Plain => {
                    self.classify::<_, PLAIN, false>(&mut way, memory, fdb, scratch)
                }
                Inspection::Policed => {
                    self.classify::<_, POLICED, false>(&mut way, memory, fdb, scratch)
                }
                Inspection::Tunnel => {
                    self.classify::<_, TUNNEL, false>(&mut way, memory, fdb, scratch)
                }
            }
        };
        if self.touched.recording.wanted {
            self.record(&way, scratch, uniform);
        }
        let copies = Copies { max_frame: port.max_frame as u32, sent: true };
        way.mirror(&scratch.batch(map), &port.mirrors, &ALL[..frames], copies, &mut self.touched);
        if let Some(queue) = uniform {
            self.queues.clear();
            let list = List::plain(&ALL[..frames]);
            self.touched.queues.push(queue);
            way.send(&scratch.batch(map), queue, list, &mut self.touched);
        } else {
            self.send_sorted(&mut way, scratch, frames);
        }
        way.finish()
    }

    /// Retries the stalled frames of `from`, which are still in `scratch`. A sender waits as long
    /// as its receiver frees a slot within the stall time. After that, the receiver counts as
    /// stalled. Its frames are dropped and counted until it has room again, as by a PFC watchdog
    /// (IEEE 802.1Q, 36).
    pub fn retry<E: Egress>(
        &mut self,
        ports: &Ports<E>,
        from: &mut Sender,
        scratch: &mut Scratch,
        map: &MapGuard<'_>,
        now: Nanos,
        stall: StallTime,
    ) -> Turn {
        let Some(port) = ports.get(from.port) else {
            let completed = from.gathered - from.completed;
            return Turn { completed, deliveries: 0, detached: from.abandon() };
        };
        if scratch.capacity() > self.destinations.len() {
            self.reserve(scratch.capacity(), self.chains.len());
        }
        std::mem::swap(&mut from.stalled, &mut self.waiting);
        self.touched.recording.begin(now);
        let mut way = PassState { ports, port, from, map, now, deliveries: 0, via: 0 };
        for run in self.waiting.chunk_by(|a, b| (a.port, a.queue) == (b.port, b.queue)) {
            let to = ports.get(run[0].port).filter(|to| to.instance == run[0].instance);
            let Some(to) = to.filter(|to| u32::from(run[0].queue) < to.reach.queues) else {
                port.counters.drop_frames(DropReason::Detached, run.len() as u64);
                continue;
            };
            self.list.clear();
            for stalled in run {
                self.origins[usize::from(stalled.variant)] = stalled.frame;
                self.list.push(stalled.variant);
            }
            let queue = to.reach.first_queue + u32::from(run[0].queue);
            let segments = usize::from(run[0].segments);
            let origins = Some(&self.origins[..]);
            let list = List { frames: &self.list, origins, destinations: &[], segments };
            self.touched.queues.push(queue);
            way.send(&scratch.batch(map), queue, list, &mut self.touched);
        }
        self.waiting.clear();
        let dropped = way.give_up_waiting(stall, &scratch.batch(map), &self.touched);
        port.counters.drop_frames(DropReason::StallTimeout, dropped as u64);
        way.finish()
    }

    /// Asks every egress that got frames since the last call whether its owner must be woken, after
    /// one fence for all of them. `effect` gets the number of the port and of its queue.
    pub fn settle<E: Egress>(
        &mut self,
        ports: &Ports<E>,
        now: Nanos,
        mut effect: impl FnMut(u16, u16, port::Effects),
    ) {
        let _scope = port::stamp::scope(port::stamp::Stage::Publish);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        for queue in self.touched.queues.drain(..) {
            let queue = ports.queue(queue);
            let effects = queue.egress.settle(now);
            if effects != port::Effects::default() {
                effect(queue.port, queue.number, effects);
            }
        }
    }

    /// Replaces [`settle`](Self::settle) where no owner ever sleeps.
    pub fn skip_settling(&mut self) {
        self.touched.queues.clear();
    }
}

/// How long frames wait for a lossless receiver.
#[derive(Clone, Copy, Debug)]
pub struct StallTime {
    /// Nanoseconds.
    pub ns: u64,
    /// True if the time starts again whenever the receiver frees a slot.
    pub renewed: bool,
}

/// State that deliveries need, and that is settled after them.
#[derive(Debug, Default)]
struct Touched {
    /// Set if no other forwarder delivers to the same ports.
    sole: Option<SoleWorker>,
    /// Queues to settle.
    queues: Vec<QueueIdx>,
    /// For receivers that do not accept offload requests; made when the first appears.
    finisher: Option<Box<Finisher>>,
    recording: Recording,
    /// When a sender may be told of the next frame that is too long.
    answer_at: Nanos,
}

/// A batch on its way: the state that both passes read.
struct PassState<'a, E> {
    ports: &'a Ports<E>,
    port: &'a PortEntry,
    from: &'a mut Sender,
    map: &'a MapGuard<'a>,
    now: Nanos,
    deliveries: usize,
    /// The host behind the port that sent the current frame, if the port is a tunnel.
    via: u16,
}

impl<E: Egress> PassState<'_, E> {
    /// Drops the frames for receivers that freed nothing during the stall time, and marks those
    /// receivers. Returns how many frames it dropped.
    fn give_up_waiting(&mut self, stall: StallTime, batch: &Batch<'_>, touched: &Touched) -> usize {
        let Self { ports, from, now, .. } = self;
        let Sender { stalled, waits, gathered_at, .. } = &mut **from;
        let before = stalled.len();
        let mut dead = None;
        for run in stalled.chunk_by(|a, b| (a.port, a.queue) == (b.port, b.queue)) {
            let (port, queue) = (run[0].port, run[0].queue);
            let to = ports.get(port);
            let received = to.and_then(|to| to.received.get(usize::from(queue)));
            let held_back = to.is_some_and(|to| {
                let queue = ports.queue(to.reach.first_queue + u32::from(queue));
                queue.egress.is_throttled(*now)
            });
            let frames = received.map_or(0, |received| received.counters.frames.get());
            let known = waits.iter().position(|wait| (wait.port, wait.queue) == (port, queue));
            let known = known.unwrap_or_else(|| {
                waits.push(Wait { port, queue, frames, since: *gathered_at });
                waits.len() - 1
            });
            let wait = &mut waits[known];
            if (wait.frames != frames || held_back) && stall.renewed {
                wait.since = *now;
            }
            wait.frames = frames;
            // Gives up one receiver at a time: the next call handles a second one.
            if dead.is_none() && *now - wait.since >= stall.ns {
                received.into_iter().for_each(|received| received.counters.stall());
                dead = Some((port, queue));
            }
        }
        if dead.is_some() && touched.recording.drops {
            let is_dead = |frame: &&Stalled| Some((frame.port, frame.queue)) == dead;
            for Stalled { variant, port, .. } in self.from.stalled.iter().filter(is_dead) {
                touched.dropped(self, batch, *variant, DropReason::StallTimeout, Some(*port));
            }
        }
        let Sender { stalled, waits, .. } = &mut *self.from;
        stalled.retain(|waiting| Some((waiting.port, waiting.queue)) != dead);
        let is_waited_for = |wait: &Wait| {
            stalled.iter().any(|frame| (frame.port, frame.queue) == (wait.port, wait.queue))
        };
        waits.retain(is_waited_for);
        before - stalled.len()
    }

    /// How many of the sender's frames are finished.
    fn finish(self) -> Turn {
        let until = self.from.stalled.iter().map(|s| usize::from(s.frame)).min();
        let until = until.unwrap_or(self.from.gathered);
        let completed = until - self.from.completed;
        self.from.completed = until;
        Turn { completed, deliveries: self.deliveries, detached: 0 }
    }
}
