//! The way of a batch through the switch, in two passes.
//!
//! ```text
//!   pass 1, per frame:        copy the head; policy; learn the source; look the destination up
//!   pass 2, per destination:  its frames, in order, to its egress: one lock, one publish
//!   settle:                   one fence; then every egress that got frames looks whether to wake
//! ```
//!
//! A frame's destination is one word: a receive queue, or flood, or a reason to drop it. Frames to
//! several receivers (flooded, mirrored) are lossy; a unicast frame that a lossless receiver refuses
//! stays with its sender as *stalled* and is tried again.

use port::{DropReason, FrameIdx, MapGuard, Nanos, Scratch, histogram_bucket};

use crate::fdb::key_of;
use crate::ports::{Form, PortEntry, QueueIdx, Vlan};
use crate::sender::Stalled;
use crate::{Fdb, Filter, Learned, Ports, Sender};

/// Where a frame goes: a queue number, or one of these.
type Destination = u32;
const DROP: Destination = 0xffff_0000;
const FLOOD: Destination = 0xffff_ff00;

/// No address in any filter: what was looked up last, before anything was.
pub(crate) const NOWHERE: u64 = u64::MAX;

const fn drop_for(reason: DropReason) -> Destination {
    DROP | reason as u32
}

/// The frames of a batch in order, for batches that all go one way.
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

/// What a turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "completed frames must be given back"]
pub struct Turn {
    /// Frames, oldest first, that are finished and can be given back to the sender.
    pub completed: usize,
    /// Copies that were begun: what the sender's turn cost the others.
    pub deliveries: usize,
}

/// A worker's tools for forwarding, allocated once.
#[derive(Debug, Default)]
pub struct Forwarder {
    destinations: Vec<Destination>,
    filters: Vec<Filter>,
    /// VLAN tags as frames came in (TCI), for switches that look at them.
    tags: Vec<Option<u16>>,
    /// Variants already made of a frame: tagged, untagged.
    variants: Vec<[Option<FrameIdx>; 2]>,
    /// The gathered frame that a variant was made of.
    origins: Vec<FrameIdx>,
    /// Frames for each queue of this batch; zero between batches.
    counts: Vec<u16>,
    /// Where each queue's frames start in `order`.
    starts: Vec<u16>,
    /// Queues with frames in this batch.
    queues: Vec<QueueIdx>,
    /// Frames sorted by queue.
    order: Vec<FrameIdx>,
    floods: Vec<FrameIdx>,
    reached: Vec<bool>,
    list: Vec<FrameIdx>,
    /// Queues to settle, with their ports.
    touched: Vec<QueueIdx>,
}

impl Forwarder {
    /// Tools for batches of up to `batch` frames.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        let mut new = Self::default();
        new.reserve(batch.clamp(1, 1024), 64);
        new
    }

    /// Makes room, so that the path itself allocates nothing.
    fn reserve(&mut self, batch: usize, queues: usize) {
        self.destinations.resize(batch, 0);
        self.filters.resize(batch, 0);
        self.tags.resize(batch, None);
        self.variants.resize(batch, [None; 2]);
        self.origins.resize(4 * batch, 0);
        self.order.resize(batch, 0);
        self.reached.resize(batch, false);
        self.counts.resize(queues, 0);
        self.starts.resize(queues, 0);
        for list in [&mut self.floods, &mut self.list] {
            list.reserve(4 * batch);
        }
        for list in [&mut self.queues, &mut self.touched] {
            list.reserve(queues.max(batch));
        }
    }

    /// Forwards the frames that `from` has gathered into `scratch`. Call
    /// [`settle`](Self::settle) afterwards.
    pub fn forward(
        &mut self,
        ports: &Ports,
        fdb: &Fdb,
        from: &mut Sender,
        scratch: &mut Scratch,
        map: &MapGuard<'_>,
        now: Nanos,
    ) -> Turn {
        let frames = scratch.len();
        let Some(port) = ports.get(from.port) else {
            return Turn { completed: frames, deliveries: 0 };
        };
        if frames > self.destinations.len() || ports.queue_count() > self.counts.len() {
            self.reserve(frames.max(self.destinations.len()), ports.queue_count());
        }
        port.counters.batches[histogram_bucket(frames)].add(1);
        from.refresh(fdb, now);
        from.gathered = frames;
        from.completed = 0;
        let mut way = Way { ports, port, from, map, now, deliveries: 0 };
        let uniform = if port.is_plain() {
            self.classify::<false>(&mut way, fdb, scratch)
        } else {
            self.classify::<true>(&mut way, fdb, scratch)
        };
        way.mirror(scratch, &port.mirrors, &ALL[..frames], &mut self.touched);
        if let Some(queue) = uniform {
            way.deliver(scratch, queue, List::plain(&ALL[..frames]), &mut self.touched);
        } else {
            self.deliver_sorted(&mut way, scratch, frames);
        }
        way.finish()
    }

    /// Tries the stalled frames of `from` again, which are still in `scratch`; after `timeout`
    /// nanoseconds they are dropped and counted.
    pub fn retry(
        &mut self,
        ports: &Ports,
        from: &mut Sender,
        scratch: &mut Scratch,
        map: &MapGuard<'_>,
        now: Nanos,
        timeout: u64,
    ) -> Turn {
        let Some(port) = ports.get(from.port) else {
            let completed = from.gathered - from.completed;
            from.stalled.clear();
            return Turn { completed, deliveries: 0 };
        };
        if scratch.capacity() > self.destinations.len() {
            self.reserve(scratch.capacity(), self.counts.len());
        }
        let since = from.stalled_since;
        let waiting = std::mem::take(&mut from.stalled);
        let mut way = Way { ports, port, from, map, now, deliveries: 0 };
        for run in waiting.chunk_by(|a, b| (a.port, a.queue) == (b.port, b.queue)) {
            let to = ports.get(run[0].port).filter(|to| to.instance == run[0].instance);
            let Some(to) = to.filter(|to| u32::from(run[0].queue) < to.queues) else {
                port.counters.drop_frames(DropReason::Detached, run.len() as u64);
                continue;
            };
            self.list.clear();
            for stalled in run {
                self.origins[usize::from(stalled.variant)] = stalled.frame;
                self.list.push(stalled.variant);
            }
            let queue = to.first_queue + u32::from(run[0].queue);
            let list = List { frames: &self.list, origins: Some(&self.origins), destinations: &[] };
            way.deliver(scratch, queue, list, &mut self.touched);
        }
        let moved = way.from.stalled.len() < waiting.len();
        if way.from.is_stalled() && !moved && now - since >= timeout {
            let dropped = way.from.stalled.len() as u64;
            port.counters.drop_frames(DropReason::StallTimeout, dropped);
            way.from.stalled.clear();
        }
        if !moved {
            way.from.stalled_since = since;
        }
        way.finish()
    }

    /// Asks every egress that got frames since the last call whether its owner must be woken, after
    /// one fence for all of them; `effect` gets the port's number.
    pub fn settle(
        &mut self,
        ports: &Ports,
        now: Nanos,
        mut effect: impl FnMut(u16, port::Effects),
    ) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        for queue in self.touched.drain(..) {
            let queue = ports.queue(queue);
            let effects = queue.egress.settle(now);
            if effects != port::Effects::default() {
                effect(queue.port, effects);
            }
        }
    }

    /// Pass 1. Returns the queue that all frames go to, if it is one.
    #[inline(always)]
    fn classify<const POLICED: bool>(
        &mut self,
        way: &mut Way<'_>,
        fdb: &Fdb,
        scratch: &mut Scratch,
    ) -> Option<QueueIdx> {
        let frames = scratch.len();
        // The address looked up last, with its filter, and where it is.
        let (mut last, mut last_found) = (NOWHERE, DROP);
        let (mut changes, mut previous) = (0, DROP | 0xff);
        let mut i = 0;
        let (tags, filters) = (&mut self.tags, &mut self.filters);
        let map = way.map;
        scratch.judge(map, &mut self.destinations[..frames], |head, len| {
            let (to, source) = head.addresses();
            let (mut filter, mut refused) = (0, None);
            if POLICED {
                (refused, filter, tags[i]) = way.police(head, len, source);
                filters[i] = filter;
                i += 1;
            } else if !way.fits(len) {
                refused = way.too_short_or_long(len);
            }
            let destination = match refused {
                Some(reason) => drop_for(reason),
                None => {
                    if way.learn(fdb, filter, source) {
                        last = NOWHERE;
                    }
                    if last != key_of(filter, to) {
                        let (found, lasting) = way.find(fdb, filter, to, head.bytes());
                        last = if lasting { key_of(filter, to) } else { NOWHERE };
                        last_found = found;
                    }
                    last_found
                }
            };
            changes += usize::from(destination != previous);
            previous = destination;
            destination
        });
        let first = self.destinations[0];
        if changes > 1 || first == FLOOD {
            self.limit_floods(way, frames);
        }
        (changes == 1 && !POLICED && first < DROP).then_some(first)
    }

    /// Drops the floods of this batch beyond the port's limit, the last ones first.
    fn limit_floods(&mut self, way: &mut Way<'_>, frames: usize) {
        let floods = self.destinations[..frames].iter().filter(|d| **d == FLOOD).count();
        let Some(rate) = way.port.flood_limit.filter(|_| floods > 0) else { return };
        let mut left = way.from.admit_floods(floods, rate, way.now);
        for destination in &mut self.destinations[..frames] {
            if *destination == FLOOD {
                match left.checked_sub(1) {
                    Some(fewer) => left = fewer,
                    None => *destination = drop_for(DropReason::FloodLimit),
                }
            }
        }
    }

    /// Pass 2 for batches that go several ways.
    fn deliver_sorted(&mut self, way: &mut Way<'_>, scratch: &mut Scratch, frames: usize) {
        self.sort(way, frames);
        let aware = !matches!(way.port.vlan, Vlan::Unaware);
        if aware {
            self.variants[..frames].fill([None; 2]);
            (0..frames).for_each(|i| self.origins[i] = i as FrameIdx);
        }
        if !self.floods.is_empty() {
            self.deliver_floods(way, scratch, aware);
        }
        for at in 0..self.queues.len() {
            way.ports.prefetch(|ahead| self.queues.get(at + ahead).copied());
            let queue = self.queues[at];
            let count = std::mem::take(&mut self.counts[queue as usize]);
            let start = usize::from(self.starts[queue as usize]);
            let run = start..start + usize::from(count);
            if aware {
                self.list.clear();
                for at in run {
                    let frame = self.order[at];
                    self.push_in_form(way, scratch, queue, frame);
                }
                self.deliver_list(way, scratch, queue);
            } else if !run.is_empty() {
                let list = List::plain(&self.order[run]);
                way.deliver(scratch, queue, list, &mut self.touched);
            }
        }
    }

    /// Sorts the batch by queue, keeping order within each; collects floods; counts drops.
    fn sort(&mut self, way: &Way<'_>, frames: usize) {
        self.queues.clear();
        self.floods.clear();
        for (i, destination) in self.destinations[..frames].iter().enumerate() {
            match *destination {
                FLOOD => self.floods.push(i as FrameIdx),
                queue if queue < DROP => {
                    let count = &mut self.counts[queue as usize];
                    if *count == 0 {
                        self.queues.push(queue);
                    }
                    *count += 1;
                }
                drop => way.port.counters.drops[(drop & 0xff) as usize].add(1),
            }
        }
        let mut start = 0;
        for queue in &self.queues {
            self.starts[*queue as usize] = start;
            start += std::mem::take(&mut self.counts[*queue as usize]);
        }
        for (i, destination) in self.destinations[..frames].iter().enumerate() {
            if *destination < DROP {
                let queue = *destination as usize;
                let at = self.starts[queue] + self.counts[queue];
                self.order[usize::from(at)] = i as FrameIdx;
                self.counts[queue] += 1;
            }
        }
    }

    /// Delivers floods to every member, each merged in order with the unicasts to the same queue.
    fn deliver_floods(&mut self, way: &mut Way<'_>, scratch: &mut Scratch, aware: bool) {
        let filter = if aware { Filter::MAX } else { 0 };
        self.reached.fill(false);
        let members = way.ports.flood_members(filter);
        let mut deliveries = 0;
        for (at, id) in members.iter().enumerate() {
            way.ports.prefetch(|ahead| Some(way.ports.get(*members.get(at + ahead)?)?.first_queue));
            let Some(to) = way.ports.get(*id) else { continue };
            if to.id == way.port.id || to.protected && way.port.protected {
                continue;
            }
            let queue = to.queue_for(way.port, way.from.queue, &[]);
            deliveries += self.merge(way, scratch, to, queue, aware);
            self.deliver_list(way, scratch, queue);
        }
        let unreached = self.floods.iter().filter(|i| !self.reached[usize::from(**i)]).count();
        let reached = self.floods.len() - unreached;
        way.port.counters.drop_frames(DropReason::NoDestination, unreached as u64);
        way.port.counters.copies.add((deliveries - reached) as u64);
    }

    /// Delivers what `list` holds.
    fn deliver_list(&mut self, way: &mut Way<'_>, scratch: &Scratch, queue: QueueIdx) {
        if self.list.is_empty() {
            return;
        }
        let origins = Some(&self.origins[..]);
        let list = List { frames: &self.list, origins, destinations: &self.destinations };
        way.deliver(scratch, queue, list, &mut self.touched);
    }

    /// Puts the floods that may reach `to` and the unicasts to `queue` into `list`, by number.
    /// Returns how many are floods.
    fn merge(
        &mut self,
        way: &Way<'_>,
        scratch: &mut Scratch,
        to: &PortEntry,
        queue: QueueIdx,
        aware: bool,
    ) -> usize {
        self.list.clear();
        let count = usize::from(std::mem::take(&mut self.counts[queue as usize]));
        let start = usize::from(self.starts[queue as usize]);
        let (mut at, end) = (start, start + count);
        let mut floods = 0;
        for f in 0..self.floods.len() {
            let flood = self.floods[f];
            while at < end && self.order[at] < flood {
                let frame = self.order[at];
                self.push_in_form(way, scratch, queue, frame);
                at += 1;
            }
            if aware && !to.vlan.allows(self.filters[usize::from(flood)]) {
                continue;
            }
            self.reached[usize::from(flood)] = true;
            floods += 1;
            self.push_in_form(way, scratch, queue, flood);
        }
        for at in at..end {
            let frame = self.order[at];
            self.push_in_form(way, scratch, queue, frame);
        }
        floods
    }

    /// Appends frame `i` to `list` as it must leave through `queue`: itself, or a variant with
    /// another tag.
    fn push_in_form(&mut self, way: &Way<'_>, scratch: &mut Scratch, queue: QueueIdx, i: FrameIdx) {
        let frame = usize::from(i);
        let to = way.ports.get(way.ports.queue(queue).port);
        let aware = !matches!(way.port.vlan, Vlan::Unaware);
        let (Some(to), true) = (to, aware) else {
            self.origins[frame] = i;
            self.list.push(i);
            return;
        };
        let (filter, tag) = (self.filters[frame], self.tags[frame]);
        let made = match (to.vlan.form(filter), tag) {
            (Form::AsItCame, _) | (Form::Untagged, None) => Some(i),
            (Form::Tagged, Some(tci)) if tci & 0xfff == filter => Some(i),
            (Form::Untagged, Some(_)) => self.variant(frame, 1, |_| scratch.without_tag(frame)),
            (Form::Tagged, tag) => {
                let tci = tag.unwrap_or(0) & 0xf000 | filter;
                self.variant(frame, 0, |bare| {
                    scratch.with_tag(bare.map_or(frame, usize::from), tci)
                })
            }
        };
        match made {
            Some(variant) => {
                self.origins[usize::from(variant)] = i;
                self.list.push(variant);
            }
            None => way.port.counters.drop_frames(DropReason::Vlan, 1),
        }
    }

    /// The variant of `frame` of this kind, made once a batch. `make` gets the untagged variant, if
    /// there is one.
    fn variant(
        &mut self,
        frame: usize,
        kind: usize,
        make: impl FnOnce(Option<FrameIdx>) -> Option<FrameIdx>,
    ) -> Option<FrameIdx> {
        if self.variants[frame][kind].is_none() {
            self.variants[frame][kind] = make(self.variants[frame][1]);
        }
        self.variants[frame][kind]
    }
}

/// Queues to settle.
type Touched = Vec<QueueIdx>;

/// Frames for one queue, in order.
#[derive(Clone, Copy)]
struct List<'a> {
    frames: &'a [FrameIdx],
    /// The gathered frame that each variant was made of; `None` if there are no variants.
    origins: Option<&'a [FrameIdx]>,
    /// By gathered frame; empty if none of them is a flood.
    destinations: &'a [Destination],
}

impl<'a> List<'a> {
    /// A list of gathered frames, none of them a flood.
    fn plain(frames: &'a [FrameIdx]) -> Self {
        Self { frames, origins: None, destinations: &[] }
    }
}

/// One batch on its way: what both passes look at.
struct Way<'a> {
    ports: &'a Ports,
    port: &'a PortEntry,
    from: &'a mut Sender,
    map: &'a MapGuard<'a>,
    now: Nanos,
    deliveries: usize,
}

impl Way<'_> {
    /// Neither too short nor too long, in one comparison.
    #[inline(always)]
    fn fits(&self, len: usize) -> bool {
        len.wrapping_sub(frame::ETHERNET_HEADER) <= self.port.max_frame - frame::ETHERNET_HEADER
    }

    fn too_short_or_long(&self, len: usize) -> Option<DropReason> {
        if len < frame::ETHERNET_HEADER {
            Some(DropReason::Runt)
        } else if len > self.port.max_frame {
            Some(DropReason::TooLong)
        } else {
            None
        }
    }

    /// Whether a frame may come in, its filter, and its tag.
    fn police(
        &mut self,
        head: &port::Head,
        len: usize,
        source: u64,
    ) -> (Option<DropReason>, Filter, Option<u16>) {
        if let Some(reason) = self.too_short_or_long(len) {
            return (Some(reason), 0, None);
        }
        let tagged = head.be16(12) == 0x8100 && len >= frame::ETHERNET_HEADER + frame::VLAN_TAG;
        let tag = tagged.then(|| head.be16(14));
        let Some(filter) = self.port.vlan.classify(tag.map(|tci| tci & 0xfff)) else {
            return (Some(DropReason::Vlan), 0, tag);
        };
        let allowed = match &self.port.allowed {
            None => true,
            Some(macs) if macs.is_empty() => {
                *self.from.first_source.get_or_insert(source) == source
            }
            Some(macs) => macs.contains(&source),
        };
        ((!allowed).then_some(DropReason::PortSecurity), filter, tag)
    }

    /// Learns the source, unless it is the one seen last; true if the table may have changed.
    #[inline(always)]
    fn learn(&mut self, fdb: &Fdb, filter: Filter, source: u64) -> bool {
        let anew = self.from.last_source != key_of(filter, source);
        if anew {
            self.learn_anew(fdb, filter, source);
        }
        anew
    }

    fn learn_anew(&mut self, fdb: &Fdb, filter: Filter, source: u64) {
        self.from.last_source = key_of(filter, source);
        if source & 1 != 0 || source == 0 {
            return;
        }
        let (limit, guard) = (self.port.mac_limit, self.port.flap_guard);
        let learned = fdb.learn(filter, source, self.port.id, limit, guard, self.now);
        if learned == Learned::Refused {
            self.port.counters.flaps.add(1);
        }
    }

    /// Where a frame to `to` goes, and whether that holds for the next frame to the same address.
    #[inline(always)]
    fn find(&self, fdb: &Fdb, filter: Filter, to: u64, head: &[u8]) -> (Destination, bool) {
        if to & 1 != 0 {
            let kept_in = frame::Mac::from_word(to).is_link_local();
            return (if kept_in { drop_for(DropReason::LinkLocal) } else { FLOOD }, true);
        }
        let Some(id) = fdb.lookup(filter, to) else { return (FLOOD, true) };
        let Some(dest) = self.ports.get(id).filter(|dest| dest.queues > 0) else {
            return (drop_for(DropReason::Down), true);
        };
        if id == self.port.id {
            return (drop_for(DropReason::SamePort), true);
        }
        if dest.protected && self.port.protected {
            return (drop_for(DropReason::Protected), true);
        }
        if !dest.vlan.allows(filter) {
            return (drop_for(DropReason::Vlan), true);
        }
        let by_flow = dest.queues > 1 && self.port.send_queues <= 1;
        (dest.queue_for(self.port, self.from.queue, head), !by_flow)
    }

    /// Hands `list` to `queue`; keeps what a lossless receiver refuses.
    #[inline]
    fn deliver(
        &mut self,
        scratch: &Scratch,
        queue: QueueIdx,
        list: List<'_>,
        touched: &mut Touched,
    ) {
        let to = self.ports.queue(queue);
        let batch = scratch.batch(self.map);
        let finished = to.egress.deliver(&batch, list.frames, to.limits).finished;
        self.deliveries += list.frames.len();
        touched.push(queue);
        if finished < list.frames.len() {
            self.stall(queue, finished, list);
        }
        if !to.mirrors.is_empty() {
            self.mirror(scratch, &to.mirrors, &list.frames[..finished], touched);
        }
    }

    /// Keeps the unicast frames of `list` from `first` on; floods are lossy.
    #[cold]
    fn stall(&mut self, queue: QueueIdx, first: usize, list: List<'_>) {
        let port = self.ports.queue(queue).port;
        let Some(to) = self.ports.get(port) else { return };
        for variant in &list.frames[first..] {
            let frame = list.origins.map_or(*variant, |origins| origins[usize::from(*variant)]);
            if list.destinations.get(usize::from(frame)) == Some(&FLOOD) {
                self.port.counters.drop_frames(DropReason::Full, 1);
                continue;
            }
            let queue = (queue - to.first_queue) as u16;
            let stalled = Stalled { frame, variant: *variant, port, instance: to.instance, queue };
            self.from.stalled.push(stalled);
            self.from.stalled_since = self.now;
        }
    }

    /// Copies `list` to every queue of `to`, lossily.
    fn mirror(
        &mut self,
        scratch: &Scratch,
        to: &[QueueIdx],
        list: &[FrameIdx],
        touched: &mut Touched,
    ) {
        if list.is_empty() {
            return;
        }
        for queue in to {
            let mirror = self.ports.queue(*queue);
            let limits = port::Limits { max_frame: u32::MAX, lossless: false };
            let _ = mirror.egress.deliver(&scratch.batch(self.map), list, limits);
            self.port.counters.copies.add(list.len() as u64);
            self.deliveries += list.len();
            touched.push(*queue);
        }
    }

    /// How far the sender's frames are finished.
    fn finish(self) -> Turn {
        let until = self.from.stalled.iter().map(|s| usize::from(s.frame)).min();
        let until = until.unwrap_or(self.from.gathered);
        let completed = until - self.from.completed;
        self.from.completed = until;
        Turn { completed, deliveries: self.deliveries }
    }
}

impl PortEntry {
    /// The receive queue for a frame: the sender's queue number, else by flow.
    #[inline(always)]
    fn queue_for(&self, from: &PortEntry, send_queue: u16, head: &[u8]) -> QueueIdx {
        if self.queues <= 1 {
            return self.first_queue;
        }
        let number = match from.send_queues {
            0 | 1 => frame::flow_hash(head),
            _ => u32::from(send_queue),
        };
        self.first_queue + number % self.queues
    }
}
