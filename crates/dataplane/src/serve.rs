//! One port's turn: gather, forward, complete, settle. What workers and inline switches share.

use fabric::Policy;
use fabric::{Fdb, Forwarder, PortMemory, Ports, Sender, Sending, StallTime, Turn};
use link::Limiter;
use port::{DropReason, Effects, IngressCounters, MapGuard, Nanos, Scratch};
use shmem::Shared;

use crate::attach::{Exit, Heard, Source};

/// One of a port's queues, by its number among those of its direction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Ingress(u16),
    Egress(u16),
}

/// Copies that a port may begin in one turn beyond its batch before it must sit turns out.
const FLOOD_QUANTUM: usize = 1024;

/// A port's sending side in the hands of a worker.
pub(crate) struct Served {
    /// The port's number.
    pub id: u16,
    pub source: Box<dyn Source>,
    queues: Vec<Queue>,
    memory: PortMemory,
    /// Copies begun beyond the quantum, to be paid off by sitting turns out.
    debt: usize,
    /// How much it may send.
    limiter: Option<Box<Limiter>>,
    /// When it last had frames.
    pub busy_at: Nanos,
    /// Its worker polls it.
    pub hot: bool,
    /// Its worker does not arm it before: its owner, whose traffic is heavy, is woken then.
    pub held_back_until: Nanos,
    /// Its owner says things that are no frames.
    listens: bool,
    pub counters: Shared<IngressCounters>,
    #[cfg(debug_assertions)]
    mishap: Option<fn()>,
}

struct Queue {
    sender: Sender,
    /// The scratch with the frames that wait for a lossless receiver.
    held: Option<Box<Scratch>>,
}

/// What a worker needs to serve ports.
pub(crate) struct Tools {
    pub forwarder: Forwarder,
    scratch: Box<Scratch>,
    /// Scratches that replace those which stalled senders hold.
    #[expect(clippy::vec_box, reason = "lent and given back: pointers move, not kilobytes")]
    spare: Vec<Box<Scratch>>,
    batch: usize,
    /// Nanoseconds a sender waits for a lossless receiver.
    pub stall_timeout: u64,
    /// No other worker serves this switch.
    only: bool,
}

impl Tools {
    pub fn new(batch: u16, stall_timeout: u64, only: bool) -> Self {
        let batch = usize::from(batch.clamp(1, 1024));
        Self {
            forwarder: Forwarder::new(batch).only(only),
            scratch: Box::new(Scratch::new(batch)),
            spare: Vec::new(),
            batch,
            stall_timeout,
            only,
        }
    }

    /// Uses batches of this size, and waits this long, from now on.
    pub fn set(&mut self, batch: u16, stall_timeout: u64) {
        *self = Self::new(batch, stall_timeout, self.only);
    }

    /// Starts with clean tools, after a panic has left them in doubt.
    pub fn renew(&mut self) {
        self.set(self.batch as u16, self.stall_timeout);
    }
}

/// The switch as a turn sees it.
#[derive(Clone, Copy)]
pub(crate) struct Switch<'a> {
    pub ports: &'a Ports<Exit>,
    pub fdb: &'a Fdb,
    pub map: &'a MapGuard<'a>,
    pub now: Nanos,
    /// Nothing new is gathered: the data process is about to leave.
    pub draining: bool,
    /// No owner of a port ever sleeps: there is nobody to wake, and no fence needed to find that out.
    pub sleepless: bool,
}

/// What limits a port with these rules in sending.
pub(crate) fn sending_limiter(policy: &Policy) -> Option<Box<Limiter>> {
    policy.tx_rate_limiter.as_ref().and_then(Limiter::new).map(Box::new)
}

impl Served {
    pub fn new(
        id: u16,
        source: Box<dyn Source>,
        counters: Shared<IngressCounters>,
        now: Nanos,
    ) -> Self {
        let queues = (0..source.queues())
            .map(|queue| Queue { sender: Sender::new(id, queue as u16), held: None })
            .collect();
        let memory = PortMemory::default();
        let listens = source.listens();
        Self {
            id,
            source,
            queues,
            memory,
            debt: 0,
            limiter: None,
            busy_at: now,
            hot: false,
            held_back_until: now,
            listens,
            counters,
            #[cfg(debug_assertions)]
            mishap: None,
        }
    }

    /// For tests of what follows: this happens when the port hands in a frame.
    #[cfg(debug_assertions)]
    pub fn with_mishap(mut self, mishap: Option<fn()>) -> Self {
        self.mishap = mishap;
        self
    }

    /// Limits what it may send as `policy` says.
    pub fn limited_by(self, policy: &Policy) -> Self {
        Self { limiter: sending_limiter(policy), ..self }
    }

    /// Limits what it may send from now on.
    pub fn limit(&mut self, limiter: Option<Box<Limiter>>) {
        self.limiter = limiter;
    }

    /// When it may send again, if it has sent as much as it may.
    #[inline]
    pub fn opens_at(&mut self, now: Nanos) -> Option<Nanos> {
        let limiter = self.limiter.as_deref_mut()?;
        limiter.refill(now);
        Some(limiter.opens_at(now)).filter(|at| *at > now)
    }

    /// True while frames wait for a lossless receiver.
    pub fn is_stalled(&self) -> bool {
        self.queues.iter().any(|queue| queue.sender.is_stalled())
    }

    /// What its owner said in the last turn that was no frame.
    #[inline]
    pub fn heard(&mut self, now: Nanos) -> Option<Heard> {
        let heard = if self.listens { self.source.heard() } else { None };
        if heard.is_some() {
            self.busy_at = now;
        }
        heard
    }

    /// Gives up the frames that wait for a lossless receiver: the port goes.
    pub fn abandon(&mut self) {
        let frames: usize = self.queues.iter_mut().map(|queue| queue.sender.abandon()).sum();
        self.counters.drop_frames(DropReason::Detached, frames as u64);
    }

    /// One turn of every send queue; returns the frames gathered. `effect` gets what is to be done for
    /// which queue of which port.
    #[inline]
    pub fn turn(
        &mut self,
        tools: &mut Tools,
        switch: Switch<'_>,
        mut effect: impl FnMut(u16, Side, Effects),
    ) -> usize {
        if self.debt > 0 {
            self.debt = self.debt.saturating_sub(FLOOD_QUANTUM);
            self.busy_at = switch.now;
            return 0;
        }
        let mut frames = 0;
        for queue in 0..self.queues.len() {
            frames += if self.queues[queue].sender.is_stalled() {
                self.retry(queue, tools, switch, &mut effect);
                0
            } else if switch.draining {
                0
            } else {
                self.forward(queue, tools, switch, &mut effect)
            };
        }
        frames
    }

    #[inline]
    fn forward(
        &mut self,
        queue: usize,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) -> usize {
        let scratch = &mut tools.scratch;
        scratch.clear();
        let frames = if self.limiter.is_some() {
            self.gather_limited(queue, scratch, tools.batch, switch.now)
        } else {
            self.source.queue(queue).gather(scratch, tools.batch, switch.now)
        };
        if frames == 0 {
            return 0;
        }
        #[cfg(debug_assertions)]
        if let Some(happens) = self.mishap {
            happens();
        }
        self.busy_at = switch.now;
        let Switch { ports, fdb, map, now, .. } = switch;
        let from = Sending { memory: &mut self.memory, queue: &mut self.queues[queue].sender };
        let turn = tools.forwarder.forward(ports, fdb, from, scratch, map, now);
        self.give_back(queue, turn, tools, switch, effect);
        self.debt += turn.deliveries.saturating_sub(tools.batch + FLOOD_QUANTUM);
        if self.queues[queue].sender.is_stalled() {
            self.hold(queue, tools);
        }
        frames
    }

    /// Gathers as many frames as there are tokens for.
    #[cold]
    fn gather_limited(
        &mut self,
        queue: usize,
        scratch: &mut Scratch,
        max: usize,
        now: Nanos,
    ) -> usize {
        let Some(limiter) = &mut self.limiter else { return 0 };
        limiter.refill(now);
        let max = max.min(limiter.allowance());
        let frames = self.source.queue(queue).gather(scratch, max, now);
        limiter.charge_allowed(frames, scratch.bytes());
        frames
    }

    /// Gives finished frames back to their sender, wakes whoever has something to look at, and counts
    /// what was gathered before its port left the switch.
    #[inline]
    fn give_back(
        &mut self,
        queue: usize,
        turn: Turn,
        tools: &mut Tools,
        switch: Switch<'_>,
        effect: &mut impl FnMut(u16, Side, Effects),
    ) {
        let ingress = self.source.queue(queue);
        ingress.complete(turn.completed);
        if switch.sleepless {
            tools.forwarder.skip_settling();
        } else {
            tools.forwarder.settle(switch.ports, switch.now, |port, queue, effects| {
                effect(port, Side::Egress(queue), effects);
            });
            let effects = ingress.settle(switch.now);
            if effects != Effects::default() {
                effect(self.id, Side::Ingress(queue as u16), effects);
            }
        }
        if turn.detached > 0 {
            self.counters.drop_frames(DropReason::Detached, turn.detached as u64);
        }
    }

    /// Leaves the scratch with the stalled frames at the port; the worker goes on with another.
    #[cold]
    fn hold(&mut self, queue: usize, tools: &mut Tools) {
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
        let Queue { sender, held } = &mut self.queues[queue];
        let Some(mut scratch) = held.take() else { return };
        let Switch { ports, fdb: _, map, now, .. } = switch;
        // Who is about to end does not wait for a slow receiver slot by slot.
        let stall = StallTime { ns: tools.stall_timeout, renewed: !switch.draining };
        let turn = tools.forwarder.retry(ports, sender, &mut scratch, map, now, stall);
        self.give_back(queue, turn, tools, switch, effect);
        if self.queues[queue].sender.is_stalled() {
            self.queues[queue].held = Some(scratch);
        } else {
            self.busy_at = now;
            tools.spare.push(scratch);
        }
    }
}
