//! Pass 2: delivers frames to their queues, in order, in the form in which they leave.

use port::stamp::{self, Stage};
use port::{
    Batch, Delivered, DropReason, Effects, Egress, FrameIdx, Limits, Nanos, OffloadSet, Scratch,
    Software, SoleWorker,
};

use super::{DROP, Destination, FLOOD, Forwarder, PassState, TAGGED, Tag, Touched, UNTAGGED};
use crate::Filter;
use crate::finish::{Delivery, Finisher, Handed};
use crate::ports::{EgressQueue, Form, PortEntry, QueueIdx, Reach};
use crate::sender::Stalled;

/// How many deliveries to prefetch at once.
const AHEAD: usize = 32;

/// The frames of a batch for one queue, in order. Each frame's successor is in a separate table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    first: FrameIdx,
    last: FrameIdx,
    count: u16,
}

/// Delivers frames that are the only ones for their queue, where the simple path serves. Leaves the
/// other queues to `others`. It is a function of its own so that the loop's state stays in
/// registers.
#[inline(never)]
fn send_singles<'t, E: Egress>(
    way: &mut PassState<'_, E>,
    batch: &Batch<'_>,
    queues: &[QueueIdx],
    chains: &mut [Chain],
    others: &mut Vec<QueueIdx>,
    sole: impl Fn() -> Option<&'t SoleWorker>,
) {
    let ports = way.ports;
    for queue in queues {
        let (to, chain) = (ports.queue(*queue), &mut chains[*queue as usize]);
        let simple = chain.count == 1 && to.mirrors.is_empty();
        let deliver_one = || {
            let _scope = stamp::scope(Stage::Deliver);
            to.egress.deliver_one(batch.pick(chain.first), to.limits, sole())
        };
        if simple && deliver_one() {
            chain.count = 0;
        } else {
            others.push(*queue);
        }
    }
    way.deliveries += queues.len() - others.len();
}

impl Chain {
    /// Takes the first frame of the chain.
    #[inline(always)]
    fn pop(&mut self, next: &[FrameIdx]) -> Option<FrameIdx> {
        self.count = self.count.checked_sub(1)?;
        let frame = self.first;
        self.first = next[usize::from(frame)];
        Some(frame)
    }
}

impl Forwarder {
    /// Pass 2 for batches with several destinations.
    pub(super) fn send_sorted<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        scratch: &mut Scratch,
        frames: usize,
    ) {
        self.sort(way, frames);
        let aware = way.port.reach.aware;
        if aware {
            self.variants[..frames].fill([None; 2]);
            (0..frames).for_each(|i| self.origins[i] = i as FrameIdx);
        }
        if !self.floods.is_empty() {
            self.send_floods(way, scratch, aware);
            // Delivering the floods has also delivered the other frames of these receivers.
            let chains = &self.chains;
            self.queues.retain(|queue| chains[*queue as usize].count > 0);
        }
        if aware {
            for at in 0..self.queues.len() {
                let queue = self.queues[at];
                let mut chain = std::mem::take(&mut self.chains[queue as usize]);
                self.list.clear();
                while let Some(frame) = chain.pop(&self.next) {
                    self.push_in_form(way, scratch, queue, frame);
                }
                self.send_list(way, scratch, queue);
            }
        } else {
            self.send_unchanged(way, &scratch.batch(way.map));
        }
    }

    /// Delivers the rest for each queue, unchanged.
    #[inline(never)]
    fn send_unchanged<E: Egress>(&mut self, way: &mut PassState<'_, E>, batch: &Batch<'_>) {
        let Self { queues, others, chains, next, list, touched, .. } = self;
        touched.queues.extend_from_slice(queues);
        for soon in queues.chunks(AHEAD) {
            way.ports.prefetch(soon.iter().copied());
            let several = match batch.any_offload() || touched.recording.drops {
                true => soon,
                false => {
                    others.clear();
                    // In each loop, the compiler knows whether there are locks.
                    match &touched.sole {
                        Some(sole) => {
                            send_singles(way, batch, soon, chains, others, || Some(sole));
                        }
                        None => send_singles(way, batch, soon, chains, others, || None),
                    }
                    &others[..]
                }
            };
            for queue in several {
                let mut chain = std::mem::take(&mut chains[*queue as usize]);
                list.clear();
                list.extend(std::iter::from_fn(|| chain.pop(next)));
                way.send(batch, *queue, List::plain(list), touched);
            }
        }
    }

    /// Sorts the batch by queue and keeps the order within each; collects floods; counts drops.
    /// Whether a queue already has frames is random in traffic to many. So chains grow without a
    /// branch.
    fn sort<E: Egress>(&mut self, way: &PassState<'_, E>, frames: usize) {
        self.floods.clear();
        self.queues.resize(frames, 0);
        let (chains, next, queues) =
            (&mut self.chains[..], &mut self.next[..=frames], &mut self.queues[..]);
        let mut begun = 0;
        for (i, destination) in self.destinations[..frames].iter().enumerate() {
            match *destination {
                FLOOD => self.floods.push(i as FrameIdx),
                queue if queue < DROP => {
                    let chain = &mut chains[queue as usize];
                    let begins = chain.count == 0;
                    // The place after all frames belongs to no frame.
                    let before = if begins { frames } else { usize::from(chain.last) };
                    next[before] = i as FrameIdx;
                    chain.first = if begins { i as FrameIdx } else { chain.first };
                    chain.last = i as FrameIdx;
                    chain.count += 1;
                    queues[begun] = queue;
                    begun += usize::from(begins);
                }
                drop => {
                    let place = DropReason::at_ingress((drop & 0xff) as usize);
                    way.port.counters.drops[place].add(1);
                }
            }
        }
        self.queues.truncate(begun);
    }

    /// Delivers floods to every member, merged in order with the unicasts to the same queue.
    fn send_floods<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        scratch: &mut Scratch,
        aware: bool,
    ) {
        let filter = if aware { Filter::MAX } else { 0 };
        self.reached.fill(false);
        let members = way.ports.flood_members(filter);
        let filters = way.ports.filters.as_deref();
        let (mut deliveries, mut reach_somebody) = (0, false);
        for (at, id) in members.iter().enumerate() {
            if at % AHEAD == 0 {
                let soon = members[at..].iter().take(AHEAD);
                way.ports.prefetch(soon.map(|id| way.ports.reach(*id).first_queue));
            }
            let Some(to) = way.ports.get(*id) else { continue };
            if to.id == way.port.id || to.reach.is_apart_from(&way.port.reach) {
                continue;
            }
            let queue = to.reach.queue_for(way.port, way.from.queue, || &[]);
            let kind = filters.and_then(|filters| filters.kind(to.id));
            if aware || kind.is_some() || self.chains[queue as usize].count > 0 {
                deliveries += self.merge(way, scratch, (to, kind), queue, aware);
                self.send_list(way, scratch, queue);
            } else {
                // No unicasts go there, so the same list serves all of them.
                reach_somebody = true;
                deliveries += self.floods.len();
                let (frames, destinations) = (&self.floods[..], &self.destinations[..]);
                let list = List { frames, origins: None, destinations, segments: 0 };
                self.touched.queues.push(queue);
                way.send(&scratch.batch(way.map), queue, list, &mut self.touched);
            }
        }
        if reach_somebody {
            self.reached.fill(true);
        }
        let unreached = self.floods.iter().filter(|i| !self.reached[usize::from(**i)]).count();
        let reached = self.floods.len() - unreached;
        if unreached > 0 && self.touched.recording.drops {
            self.record_unreached(way, scratch);
        }
        let denied = filters.map_or(0, |_| self.count_denied());
        way.port.counters.drop_frames(DropReason::Denied, denied as u64);
        way.port.counters.drop_frames(DropReason::NoDestination, (unreached - denied) as u64);
        way.port.counters.copies.add((deliveries - reached) as u64);
    }

    /// How many floods have no receiver because rules deny them.
    #[cold]
    fn count_denied(&self) -> usize {
        let unreached = self.floods.iter().filter(|flood| !self.reached[usize::from(**flood)]);
        let judging = self.judging.as_deref();
        let denied = |flood: &&u16| judging.is_some_and(|j| j.denies_some(usize::from(**flood)));
        unreached.filter(denied).count()
    }

    /// Delivers the frames in `list`.
    fn send_list<E: Egress>(
        &mut self,
        way: &mut PassState<'_, E>,
        scratch: &Scratch,
        queue: QueueIdx,
    ) {
        if self.list.is_empty() {
            return;
        }
        let origins = Some(&self.origins[..]);
        let destinations = &self.destinations;
        let list = List { frames: &self.list, origins, destinations, segments: 0 };
        self.touched.queues.push(queue);
        way.send(&scratch.batch(way.map), queue, list, &mut self.touched);
    }

    /// Merges the floods that may reach `to` and the unicasts to `queue` into `list`, by number.
    /// Returns how many are floods.
    fn merge<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        scratch: &mut Scratch,
        (to, kind): (&PortEntry, Option<usize>),
        queue: QueueIdx,
        aware: bool,
    ) -> usize {
        self.list.clear();
        let mut chain = std::mem::take(&mut self.chains[queue as usize]);
        let mut floods = 0;
        for f in 0..self.floods.len() {
            let flood = self.floods[f];
            while chain.first < flood
                && let Some(frame) = chain.pop(&self.next)
            {
                self.push_in_form(way, scratch, queue, frame);
            }
            if aware && !to.vlan.allows(self.filters[usize::from(flood)]) {
                continue;
            }
            if let (Some(kind), Some(judging)) = (kind, &self.judging)
                && judging.denies(usize::from(flood), kind, to.id)
            {
                continue;
            }
            self.reached[usize::from(flood)] = true;
            floods += 1;
            self.push_in_form(way, scratch, queue, flood);
        }
        while let Some(frame) = chain.pop(&self.next) {
            self.push_in_form(way, scratch, queue, frame);
        }
        floods
    }

    /// Appends frame `i` to `list` in the form in which it leaves through `queue`: unchanged, or as
    /// a variant with another tag.
    fn push_in_form<E: Egress>(
        &mut self,
        way: &PassState<'_, E>,
        scratch: &mut Scratch,
        queue: QueueIdx,
        i: FrameIdx,
    ) {
        let frame = usize::from(i);
        let to = way.ports.get(way.ports.queue(queue).port);
        let aware = way.port.reach.aware;
        let (Some(to), true) = (to, aware) else {
            self.origins[frame] = i;
            self.list.push(i);
            return;
        };
        let (filter, Tag { tci: tag, hides_another }) = (self.filters[frame], self.tags[frame]);
        if hides_another && to.vlan.form(filter) == Form::Untagged {
            self.touched.dropped(way, &scratch.batch(way.map), i, DropReason::DoubleTag, None);
            return way.port.counters.drop_frames(DropReason::DoubleTag, 1);
        }
        let mut bare = |tag: Option<u16>| match tag {
            None => Some(i),
            Some(_) => kept(&mut self.variants[frame][UNTAGGED], || scratch.without_tag(frame)),
        };
        let made = match (to.vlan.form(filter), tag) {
            (Form::AsItCame, _) => Some(i),
            (Form::Untagged, tag) => bare(tag),
            (Form::Tagged, Some(tci)) if tci & 0xfff == filter => Some(i),
            // The frame has no tag, or a priority tag, whose priority the new tag takes over.
            (Form::Tagged, tag) => bare(tag).and_then(|bare| {
                let tci = tag.unwrap_or(0) & 0xf000 | filter;
                let tagged = || scratch.with_tag(usize::from(bare), tci);
                kept(&mut self.variants[frame][TAGGED], tagged)
            }),
        };
        match made {
            Some(variant) => {
                self.origins[usize::from(variant)] = i;
                self.list.push(variant);
            }
            None => {
                self.touched.dropped(way, &scratch.batch(way.map), i, DropReason::Vlan, None);
                way.port.counters.drop_frames(DropReason::Vlan, 1);
            }
        }
    }
}

/// Returns a variant, which is made once for each batch.
fn kept(
    variant: &mut Option<FrameIdx>,
    make: impl FnOnce() -> Option<FrameIdx>,
) -> Option<FrameIdx> {
    if variant.is_none() {
        *variant = make();
    }
    *variant
}

/// Frames for one queue, in order.
#[derive(Clone, Copy)]
pub(super) struct List<'a> {
    pub frames: &'a [FrameIdx],
    /// The gathered frame from which each variant was made; `None` if there are no variants.
    pub origins: Option<&'a [FrameIdx]>,
    /// The destination of each gathered frame; empty if none of them is a flood.
    pub destinations: &'a [Destination],
    /// Segments of the first frame that are already delivered.
    pub segments: usize,
}

impl<'a> List<'a> {
    /// A list of gathered frames, none of them a flood.
    pub fn plain(frames: &'a [FrameIdx]) -> Self {
        Self { frames, origins: None, destinations: &[], segments: 0 }
    }
}

impl<E: Egress> PassState<'_, E> {
    /// Delivers `list` to `queue`, which the caller has marked as touched. Keeps frames that a
    /// lossless receiver refuses.
    #[inline(always)]
    pub(super) fn send(
        &mut self,
        batch: &Batch<'_>,
        queue: QueueIdx,
        list: List<'_>,
        touched: &mut Touched,
    ) {
        let to = self.ports.queue(queue);
        if self.is_narrow(to.limits.max_frame) {
            self.tell_too_long(batch, list, to.limits.max_frame, touched);
        }
        if touched.recording.drops {
            return self.send_recorded(batch, queue, list, touched);
        }
        let handed = self.hand_out(batch, to, (list.frames, list.segments), to.limits, touched);
        let finished = handed.finished;
        self.deliveries += handed.copies;
        if finished < list.frames.len() {
            let (frames, segments) = (&list.frames[finished..], handed.segments);
            self.stall(queue, List { frames, segments, ..list }, batch, touched);
        }
        if !to.mirrors.is_empty() {
            let copies = Copies { max_frame: to.limits.max_frame, sent: false };
            self.mirror(batch, &to.mirrors, &list.frames[..finished], copies, touched);
        }
    }

    /// Delivers frames through the egress of `to`. Of the first frame, `segments` segments are
    /// already delivered. Offload requests that the egress does not accept are carried out first.
    #[inline(always)]
    pub(super) fn hand_out(
        &self,
        batch: &Batch<'_>,
        to: &EgressQueue<E>,
        (list, segments): (&[FrameIdx], usize),
        limits: Limits,
        touched: &mut Touched,
    ) -> Handed {
        let to = &to.egress;
        if batch.any_offload() {
            let narrow = self.is_narrow(limits.max_frame);
            let delivery = Delivery { to, batch, list, limits, map: self.map, narrow };
            return touched.finish(&delivery, segments);
        }
        let _scope = stamp::scope(Stage::Deliver);
        let finished = to.deliver(batch, list, limits).finished;
        Handed { finished, segments: 0, copies: list.len() }
    }

    /// Keeps the unfinished unicast frames of `list` for a retry. Floods are lossy, and so is a
    /// stalled receiver.
    #[cold]
    pub(super) fn stall(
        &mut self,
        queue: QueueIdx,
        list: List<'_>,
        batch: &Batch<'_>,
        touched: &Touched,
    ) {
        let port = self.ports.queue(queue).port;
        let Some(to) = self.ports.get(port) else { return };
        let received = to.received.get((queue - to.reach.first_queue) as usize);
        if received.is_some_and(|received| received.counters.is_stalled()) {
            let dropped = list.frames.len() as u64;
            for frame in list.frames {
                touched.dropped(self, batch, *frame, DropReason::StallTimeout, Some(port));
            }
            return self.port.counters.drop_frames(DropReason::StallTimeout, dropped);
        }
        let mut segments = list.segments as u16;
        for variant in list.frames {
            let segments = std::mem::take(&mut segments);
            let frame = list.origins.map_or(*variant, |origins| origins[usize::from(*variant)]);
            if list.destinations.get(usize::from(frame)) == Some(&FLOOD) {
                self.port.counters.drop_frames(DropReason::Full, 1);
                touched.dropped(self, batch, *variant, DropReason::Full, Some(port));
                continue;
            }
            let queue = (queue - to.reach.first_queue) as u16;
            let (variant, instance) = (*variant, to.instance);
            self.from.stalled.push(Stalled { frame, variant, port, instance, queue, segments });
        }
    }

    /// Copies `list` to every queue of `to`, lossily.
    #[inline(never)]
    pub(super) fn mirror(
        &mut self,
        batch: &Batch<'_>,
        to: &[QueueIdx],
        list: &[FrameIdx],
        Copies { max_frame, sent }: Copies,
        touched: &mut Touched,
    ) {
        if list.is_empty() {
            return;
        }
        let limits = Limits { max_frame, lossless: false };
        for queue in to {
            let mirror = self.ports.queue(*queue);
            let marked = Marked { to: &mirror.egress, sent };
            let handed = if batch.any_offload() {
                let (map, narrow) = (self.map, self.is_narrow(max_frame));
                let delivery = Delivery { to: &marked, batch, list, limits, map, narrow };
                touched.finish(&delivery, 0)
            } else {
                let finished = marked.deliver(batch, list, limits).finished;
                Handed { finished, segments: 0, copies: list.len() }
            };
            self.port.counters.copies.add(list.len() as u64);
            self.deliveries += handed.copies;
            touched.queues.push(*queue);
        }
    }
}

/// Copies for monitors and mirrors.
pub(super) struct Copies {
    /// What the watched port may send or receive; longer frames are left out.
    pub max_frame: u32,
    /// The watched port has sent the frames; else it was to receive them.
    pub sent: bool,
}

/// An egress that gets copies.
struct Marked<'a, E> {
    to: &'a E,
    sent: bool,
}

impl<E: Egress> Egress for Marked<'_, E> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        self.to.deliver_copies(batch, list, limits, self.sent)
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.to.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.to.takes()
    }

    fn count_software(&self, done: Software) {
        self.to.count_software(done);
    }
}

impl Touched {
    /// Work in software, in memory of its own.
    pub(super) fn finisher(&mut self) -> &mut Finisher {
        self.finisher.get_or_insert_default()
    }

    #[inline(never)]
    fn finish(&mut self, delivery: &Delivery<'_>, segments: usize) -> Handed {
        let finisher = self.finisher();
        finisher.deliver_finished(delivery, segments)
    }
}

impl Reach {
    /// The receive queue for a frame: the queue with the sender's queue number, or one chosen by
    /// flow.
    #[inline(always)]
    pub(super) fn queue_for<'a>(
        self,
        from: &PortEntry,
        send_queue: u16,
        head: impl FnOnce() -> &'a [u8],
    ) -> QueueIdx {
        if self.queues <= 1 {
            return self.first_queue;
        }
        let number = match from.send_queues {
            0 | 1 => frame::flow_hash(head()),
            _ => u32::from(send_queue),
        };
        self.first_queue + number % self.queues
    }
}
