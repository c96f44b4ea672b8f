//! One port's turn: gather, forward, complete, settle. Workers and inline switches share it.

mod fair;
mod sending;
mod tools;

use std::sync::Arc;
use std::task::Waker;

use fabric::{PortMemory, Sender, Sending, StallTime, Turn};
use link::{Limiter, Link, Pacer};
use port::stamp::{self, Stage};
use port::{DropReason, Effects, IngressCounters, MapGuard, Nanos, Scratch};
use shmem::Shared;
use topology::Policy;

use self::fair::Share;
pub use self::tools::{Switch, Tools};
use crate::attach::{Attended, RegisterAccess, Side, Source};
use crate::port_link::{Change, FarQueue, PortLinks};
use crate::user::{Payer, excused};

/// Copies that a port may begin in one turn beyond its batch before it has to skip turns.
const FLOOD_QUANTUM: usize = 1024;

/// A port's sending side, as its worker holds it.
pub struct Served {
    /// The port's number.
    pub id: u16,
    /// The port's source: what its owner sends.
    pub source: Box<dyn Source>,
    queues: Vec<ServedQueue>,
    memory: PortMemory,
    /// The port has to look whether its next turn pays for earlier ones.
    owes: bool,
    /// Copies that the port has begun beyond its quantum. It skips turns to pay for them.
    debt: usize,
    /// The port's part of its worker's turns.
    share: Share,
    /// The rate limiter of the frames that the port sends.
    limiter: Option<Box<Limiter>>,
    /// The line of a port whose link has a rate only.
    pacer: Option<Box<Pacer>>,
    /// True if frames that the port sends pass a rate limiter or a link.
    impeded: bool,
    /// The payer for touches of the owner's memory, if these are timed. The port's links then copy
    /// the frames that it sends.
    watch: Option<Payer>,
    /// The port's receive queues behind a link, by number. Replaced ones stay until they are
    /// empty.
    far: Vec<(u16, FarQueue)>,
    /// When the port last had frames.
    pub busy_at: Nanos,
    /// The port's worker polls it.
    pub hot: bool,
    /// Until this time the worker does not arm the port. Its owner, whose traffic is heavy, is
    /// woken then.
    pub held_back_until: Nanos,
    /// When to do the port's work that is not for frames, if there is any.
    attend_at: Option<Nanos>,
    /// Its counters.
    pub counters: Shared<IngressCounters>,
    #[cfg(debug_assertions)]
    mishap: Option<fn()>,
}

/// How much a gathered frame is, on average.
#[derive(Clone, Copy)]
struct Grain {
    /// Frames on the wire.
    frames: u16,
    /// Bytes of each of these.
    len: u16,
}

struct ServedQueue {
    sender: Sender,
    /// The scratch with frames that wait for a lossless receiver.
    held: Option<Box<Scratch>>,
    /// The link, which holds frames that the port's owner has sent.
    link: Option<Box<Link>>,
    /// The frames gathered last came from the link.
    lent_by_link: bool,
    /// How much the last gathered frames were.
    grain: Grain,
}

impl ServedQueue {
    fn new(port: u16, queue: usize) -> Self {
        let sender = Sender::new(port, queue as u16);
        let grain = Grain { frames: 1, len: 1514 };
        Self { sender, held: None, link: None, lent_by_link: false, grain }
    }
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Served(port {}, {} queues)", self.id, self.queues.len())
    }
}

impl Served {
    /// A port that a worker begins to serve. Its link does nothing.
    #[must_use]
    pub fn new(
        id: u16,
        source: Box<dyn Source>,
        counters: Shared<IngressCounters>,
        now: Nanos,
    ) -> Self {
        let queues = (0..source.queues()).map(|queue| ServedQueue::new(id, queue)).collect();
        let memory = PortMemory::default();
        let attend_at = source.attends().then_some(Nanos(0));
        Self {
            id,
            source,
            queues,
            memory,
            owes: false,
            debt: 0,
            share: Share::default(),
            limiter: None,
            pacer: None,
            impeded: false,
            watch: None,
            far: Vec::new(),
            busy_at: now,
            hot: false,
            held_back_until: now,
            attend_at,
            counters,
            #[cfg(debug_assertions)]
            mishap: None,
        }
    }

    /// For tests: runs this when the port hands in a frame.
    #[cfg(debug_assertions)]
    pub fn with_mishap(mut self, mishap: Option<fn()>) -> Self {
        self.mishap = mishap;
        self
    }

    /// Gives the port the link of `policy`, with these receive queues behind it.
    pub fn linked(mut self, policy: &Policy, far: Vec<FarQueue>, links: &mut PortLinks) -> Self {
        let changes = links.sending(policy, self.queues.len()).into_iter();
        changes.chain([Change::Receiving(far)]).for_each(|change| self.change_link(change));
        self
    }

    /// Changes the port's link.
    pub fn change_link(&mut self, change: Change) {
        match change {
            Change::Limiter(limiter) => self.limiter = limiter,
            Change::Sending(line) => self.set_line(line),
            Change::Watch(watch) => self.set_watch(watch),
            Change::Weight(weight) => self.share.set_weight(weight),
            Change::Receiving(far) => {
                self.far.iter().for_each(|(_, far)| far.make_all_due());
                self.far.extend(far.into_iter().enumerate().map(|(n, far)| (n as u16, far)));
            }
        }
        self.look_for_impediments();
    }

    /// Times touches of the owner's memory, if there is a payer.
    pub fn watched(mut self, watch: Option<Payer>) -> Self {
        self.change_link(Change::Watch(watch));
        self
    }

    /// Runs `touch` as an access to the memory of the port's owner, and of no other owner.
    #[inline]
    fn touch<T>(&mut self, touch: impl FnOnce(&mut dyn Source) -> T) -> T {
        match &self.watch {
            None => touch(&mut *self.source),
            Some(payer) => payer.touch(|| touch(&mut *self.source)),
        }
    }

    /// Asks the port's owner to wake this worker, as [`Source::arm`] does.
    #[inline]
    pub fn arm(&mut self, now: Nanos) -> bool {
        self.touch(|source| source.arm(now))
    }

    /// Withdraws the request to be woken.
    #[inline]
    pub fn disarm(&mut self) {
        self.touch(|source| source.disarm());
        // The work for which the port was woken is done in the next turn.
        self.attend_at = self.attend_at.map(|_| Nanos(0));
    }

    /// True if the port receives over a link.
    #[inline]
    pub fn has_far_queues(&self) -> bool {
        !self.far.is_empty()
    }

    /// When the next frame for the port leaves a link.
    pub fn flush_due(&self) -> Option<Nanos> {
        self.far.iter().filter_map(|(_, far)| far.due()).min()
    }

    /// The same for a worker that is about to sleep; the next delivery to the port wakes it.
    pub fn flush_due_or_wake(&self, waker: &Waker) -> Option<Nanos> {
        self.far.iter().filter_map(|(_, far)| far.due_or_wake(waker)).min()
    }

    /// Delivers frames to the port that have arrived over a link. Returns how many. `effect` is
    /// as for [`turn`](Self::turn).
    #[cold]
    pub fn flush(
        &mut self,
        map: &MapGuard<'_>,
        now: Nanos,
        mut effect: impl FnMut(u16, Side, Effects),
    ) -> usize {
        let mut frames = 0;
        for at in 0..self.far.len() {
            let (queue, far) = &self.far[at];
            let (queue, far) = (*queue, Arc::clone(far));
            let flushed = self.touch(|_| far.flush(map, now));
            frames += flushed.frames;
            self.count(flushed.tally);
            if flushed.effects != Effects::default() {
                effect(self.id, Side::Egress(queue), flushed.effects);
            }
        }
        // A replaced queue is referenced here only.
        self.far.retain(|(_, far)| Arc::strong_count(far) > 1 || far.due().is_some());
        frames
    }

    /// True while frames wait for a lossless receiver.
    pub fn is_stalled(&self) -> bool {
        self.queues.iter().any(|queue| queue.sender.is_stalled())
    }

    /// Called before a turn: does the work of sockets, registers and timers that is due. Returns
    /// the owner's last register access, if there was one.
    #[inline]
    pub fn attend(&mut self, switch: Switch<'_>) -> Option<RegisterAccess> {
        let at = self.attend_at?;
        if at > switch.now || switch.draining && !self.impeded {
            return None;
        }
        self.attend_now(switch.now)
    }

    #[inline(never)]
    fn attend_now(&mut self, now: Nanos) -> Option<RegisterAccess> {
        let Attended { again, access } = self.touch(|source| source.attend(now));
        self.attend_at = Some(again);
        if access.is_some() {
            self.busy_at = now;
        }
        access
    }

    /// The time at which an armed port has work without being woken, `early` nanoseconds before
    /// a frame of its link is due.
    pub fn deadline(&self, now: Nanos, early: u64) -> Option<Nanos> {
        let due = self.due().map(|due| Nanos(due.0.saturating_sub(early)));
        self.source.deadline(now).into_iter().chain(due).min()
    }

    /// Drops the frames that wait for a lossless receiver, because the port is removed.
    pub fn abandon(&mut self) {
        let mut frames: usize = self.queues.iter_mut().map(|queue| queue.sender.abandon()).sum();
        for link in self.queues.iter_mut().filter_map(|queue| queue.link.as_deref_mut()) {
            frames += link.abandon();
        }
        for (_, far) in &self.far {
            let (given_up, tally) = far.abandon();
            frames += given_up;
            self.count(tally);
        }
        self.counters.drop_frames(DropReason::Detached, frames as u64);
    }

    /// Gives each send queue a turn; returns the number of frames gathered. `effect` is called for
    /// each queue that needs an action.
    #[inline]
    pub fn turn(
        &mut self,
        tools: &mut Tools,
        switch: Switch<'_>,
        mut effect: impl FnMut(u16, Side, Effects),
    ) -> usize {
        if self.owes && self.skips(tools, switch, &mut effect) {
            return 0;
        }
        let mut frames = 0;
        for queue in 0..self.queues.len() {
            frames += if self.queues[queue].sender.is_stalled() {
                self.retry(queue, tools, switch, &mut effect);
                0
            } else if switch.draining && !self.impeded {
                0
            } else {
                self.forward(queue, tools, switch, &mut effect)
            };
        }
        frames
    }

    /// True if the port pays for earlier turns by this one. Only frames that wait are sent then.
    #[inline(never)]
    fn skips(
        &mut self,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) -> bool {
        let floods = self.debt > 0;
        self.debt = self.debt.saturating_sub(FLOOD_QUANTUM);
        self.owes = floods || self.share.skips(&mut tools.fair);
        if !self.owes {
            return false;
        }
        self.busy_at = switch.now;
        if !floods {
            (0..self.queues.len()).for_each(|queue| self.retry(queue, tools, switch, effect));
        }
        true
    }

    #[inline]
    fn forward(
        &mut self,
        queue: usize,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) -> usize {
        tools.scratch.clear();
        let most = self.share.batch(tools.batch);
        let frames = if self.impeded {
            self.gather_impeded(queue, most, tools, switch, effect)
        } else {
            let _scope = stamp::scope(Stage::Gather);
            let ingress = self.source.queue(queue);
            ingress.map_or(0, |q| q.gather(&mut tools.scratch, most, switch.now))
        };
        if frames == 0 {
            return 0;
        }
        let bytes = tools.scratch.bytes();
        #[cfg(debug_assertions)]
        if let Some(happens) = self.mishap {
            happens();
        }
        self.busy_at = switch.now;
        let Switch { ports, fdb, map, now, .. } = switch;
        let from = Sending { memory: &mut self.memory, queue: &mut self.queues[queue].sender };
        let turn = tools.forwarder.forward(ports, fdb, from, &mut tools.scratch, map, now);
        if self.impeded && !self.queues[queue].lent_by_link {
            self.charge(frames, &tools.scratch);
        }
        self.give_back(queue, turn, tools, switch, effect);
        self.debt += turn.deliveries.saturating_sub(tools.batch + FLOOD_QUANTUM);
        self.owes |= self.share.pay(&mut tools.fair, bytes, frames, most) || self.debt > 0;
        if self.queues[queue].sender.is_stalled() {
            self.hold(queue, bytes, tools);
        }
        frames
    }

    /// Returns finished frames to their sender, wakes owners that have something to do, and counts
    /// frames gathered before their port left the switch.
    #[inline]
    fn give_back(
        &mut self,
        queue: usize,
        turn: Turn,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) {
        let _scope = stamp::scope(Stage::Gather);
        let Some(ingress) = self.source.queue(queue) else { return };
        let ServedQueue { link, lent_by_link, .. } = &mut self.queues[queue];
        // The link has copied these frames, so their owner has them back already.
        let link = link.as_deref_mut().filter(|_| *lent_by_link);
        let by_link = link.is_some();
        match link {
            None => ingress.complete(turn.completed),
            Some(link) => link.complete(turn.completed),
        }
        if switch.sleepless {
            tools.forwarder.skip_settling();
        } else {
            tools.forwarder.settle(switch.ports, switch.now, |port, queue, effects| {
                effect(port, Side::Egress(queue), effects);
            });
            let effects = if by_link { Effects::default() } else { ingress.settle(switch.now) };
            if effects != Effects::default() {
                effect(self.id, Side::Ingress(queue as u16), effects);
            }
        }
        if turn.detached > 0 {
            self.counters.drop_frames(DropReason::Detached, turn.detached as u64);
        }
    }

    /// Leaves the scratch with the stalled frames to the port. The worker continues with another
    /// one.
    #[cold]
    fn hold(&mut self, queue: usize, bytes: u64, tools: &mut Tools) {
        self.share.begin_wait(&mut tools.fair, &self.queues[queue].sender, bytes);
        let fresh = tools.spare.pop().unwrap_or_else(|| Box::new(Scratch::new(tools.batch)));
        self.queues[queue].held = Some(std::mem::replace(&mut tools.scratch, fresh));
    }

    #[cold]
    fn retry(
        &mut self,
        queue: usize,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) {
        let ServedQueue { sender, held, lent_by_link, .. } = &mut self.queues[queue];
        let lent_by_link = *lent_by_link;
        if !switch.draining && self.share.gives_way(&mut tools.fair, sender) {
            return;
        }
        let Some(mut scratch) = held.take() else { return };
        let Switch { ports, fdb: _, map, now, .. } = switch;
        // A process that is about to exit does not wait for a slow receiver slot by slot.
        let stall = StallTime { ns: tools.stall_timeout, renewed: !switch.draining };
        let mut retry = || tools.forwarder.retry(ports, sender, &mut scratch, map, now, stall);
        // These frames may lie in their sender's memory.
        let turn = if lent_by_link { retry() } else { excused(retry) };
        self.give_back(queue, turn, tools, switch, effect);
        if self.queues[queue].sender.is_stalled() {
            self.queues[queue].held = Some(scratch);
        } else {
            self.busy_at = now;
            tools.spare.push(scratch);
        }
    }
}
