//! Fair queueing with controlled delay (RFC 8290), with weights.
//!
//! Flows share 1,024 queues by a keyed hash. A queue with new traffic is served before the others,
//! until it has had its quantum once. Each queue has its own controller. Frames of all queues are
//! in one table, linked by number.

use std::net::IpAddr;

use frame::Facts;
use port::Nanos;

use super::codel::Codel;
use super::{Load, Source};
use crate::meter::Cause;
use crate::random::mix;
use crate::store::Held;
use crate::{FlowMask, Flows, LinkConfig, Target, Weight};

/// Queues.
const QUEUES: usize = 1024;
/// Bytes that a queue of weight 1 sends in its turn.
const QUANTUM: i64 = 1514;
/// When the queue is full, at most this many frames of the longest one are dropped at once.
const DROPPED_AT_ONCE: u64 = 64;
/// The end of a chain.
const NONE: u32 = u32::MAX;

/// A queue, and its place in the order of service.
#[derive(Clone, Debug)]
struct Flow {
    first: u32,
    last: u32,
    frames: u32,
    bytes: u64,
    deficit: i64,
    weight: u32,
    codel: Codel,
    /// The next queue in the same list.
    next: u16,
    listed: bool,
}

/// A list of queues to serve.
#[derive(Clone, Copy, Debug, Default)]
struct List {
    first: u16,
    last: u16,
    len: u16,
}

/// The queues of all flows.
#[derive(Debug)]
pub(crate) struct FairQueue {
    flows: Box<[Flow]>,
    new: List,
    old: List,
    nodes: Vec<(Held, u32)>,
    /// The first unused node.
    free: u32,
    fields: Flows,
    key: u64,
}

/// The frames of one flow.
struct InFlow<'a> {
    flow: &'a mut Flow,
    nodes: &'a mut [(Held, u32)],
    free: &'a mut u32,
}

impl InFlow<'_> {
    fn take(&mut self) -> Option<Held> {
        let at = self.flow.first;
        let (held, next) = *self.nodes.get(at as usize)?;
        self.flow.first = next;
        if next == NONE {
            self.flow.last = NONE;
        }
        self.flow.frames -= 1;
        self.flow.bytes -= held.len() as u64;
        self.nodes[at as usize].1 = std::mem::replace(self.free, at);
        Some(held)
    }
}

impl Source for InFlow<'_> {
    fn pop(&mut self) -> Option<Held> {
        self.take()
    }

    fn bytes(&self, _load: &Load) -> u64 {
        self.flow.bytes
    }
}

impl List {
    fn push(&mut self, flows: &mut [Flow], flow: u16) {
        if self.len == 0 {
            self.first = flow;
        } else {
            flows[usize::from(self.last)].next = flow;
        }
        self.last = flow;
        self.len += 1;
    }

    fn pop(&mut self, flows: &[Flow]) -> Option<u16> {
        self.len = self.len.checked_sub(1)?;
        let flow = self.first;
        self.first = flows[usize::from(flow)].next;
        Some(flow)
    }

    fn front(&self) -> Option<u16> {
        (self.len > 0).then_some(self.first)
    }
}

impl FairQueue {
    pub fn new(target: Target, config: &LinkConfig) -> Self {
        let flow = Flow {
            first: NONE,
            last: NONE,
            frames: 0,
            bytes: 0,
            deficit: 0,
            weight: 1,
            codel: Codel::new(target),
            next: 0,
            listed: false,
        };
        Self {
            flows: vec![flow; QUEUES].into(),
            new: List::default(),
            old: List::default(),
            nodes: Vec::new(),
            free: NONE,
            fields: config.flows.clone(),
            key: mix(config.seed ^ 0x6671),
        }
    }

    /// The queue of a frame, and its weight.
    #[inline]
    fn classify(&self, head: &[u8]) -> (usize, u32) {
        if self.fields.mask.is_none() && self.fields.weights.is_empty() {
            let hash = u64::from(frame::flow_hash(head));
            return (mix(hash ^ self.key) as usize % QUEUES, 1);
        }
        self.classify_by_fields(head)
    }

    #[inline(never)]
    fn classify_by_fields(&self, head: &[u8]) -> (usize, u32) {
        let Some(facts) = Facts::of(head) else { return (0, 1) };
        let weight = |ip: IpAddr| self.fields.weights.iter().find(|weight| weight.holds(ip));
        let weight = facts.ip.and_then(|(from, to)| weight(from).or_else(|| weight(to)));
        let hash = match (self.fields.mask, facts.ip) {
            (Some(mask), Some((from, to))) => {
                let FlowMask { source, destination } = mask;
                mix(mix(self.key ^ leading(from, source)) ^ leading(to, destination))
            }
            (Some(_), None) => self.key,
            (None, _) => mix(u64::from(facts.flow_hash(self.key))),
        };
        (hash as usize % QUEUES, weight.map_or(1, |weight| weight.weight))
    }

    /// Appends a frame to its flow's queue.
    pub fn push(&mut self, held: Held, head: &[u8], load: &mut Load) {
        load.enter(&held);
        let (number, weight) = self.classify(head);
        let node = self.node(held);
        let flow = &mut self.flows[number];
        match self.nodes.get_mut(flow.last as usize) {
            Some((_, next)) => *next = node,
            None => flow.first = node,
        }
        flow.last = node;
        flow.frames += 1;
        flow.bytes += held.len() as u64;
        flow.weight = weight;
        if !flow.listed {
            flow.listed = true;
            flow.deficit = QUANTUM * i64::from(weight);
            self.new.push(&mut self.flows, number as u16);
        }
    }

    fn node(&mut self, held: Held) -> u32 {
        match self.nodes.get_mut(self.free as usize) {
            Some(node) => {
                let at = std::mem::replace(&mut self.free, node.1);
                *node = (held, NONE);
                at
            }
            None => {
                self.nodes.push((held, NONE));
                (self.nodes.len() - 1) as u32
            }
        }
    }

    fn frames_of(&mut self, flow: u16) -> InFlow<'_> {
        let flow = &mut self.flows[usize::from(flow)];
        InFlow { flow, nodes: &mut self.nodes, free: &mut self.free }
    }

    /// The next frame for a line that is free at `at`.
    pub fn pop(&mut self, at: Nanos, load: &mut Load) -> Option<Held> {
        loop {
            let from_new = self.new.len > 0;
            let number = self.new.front().or_else(|| self.old.front())?;
            let flow = &mut self.flows[usize::from(number)];
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM * i64::from(flow.weight);
                self.rotate(from_new);
                continue;
            }
            let mut codel = flow.codel;
            let held = codel.pop(&mut self.frames_of(number), at, load);
            let flow = &mut self.flows[usize::from(number)];
            flow.codel = codel;
            let Some(held) = held else {
                // An empty new queue waits for its turn among the old ones, so that a flow cannot
                // keep others from theirs with single frames.
                if from_new {
                    self.rotate(true);
                } else {
                    self.old.pop(&self.flows);
                    self.flows[usize::from(number)].listed = false;
                }
                continue;
            };
            flow.deficit -= held.len() as i64;
            return Some(held);
        }
    }

    /// Moves the first queue to the end of the old ones.
    fn rotate(&mut self, from_new: bool) {
        let from = if from_new { &mut self.new } else { &mut self.old };
        if let Some(flow) = from.pop(&self.flows) {
            self.old.push(&mut self.flows, flow);
        }
    }

    /// Drops frames from the head of the longest queue: half of it, but not many at once.
    pub fn drop_from_longest(&mut self, load: &mut Load) -> bool {
        let longest = (0..QUEUES as u16).max_by_key(|flow| self.flows[usize::from(*flow)].bytes);
        let Some(longest) = longest else { return false };
        let bytes = self.flows[usize::from(longest)].bytes;
        let mut dropped = 0;
        for _ in 0..DROPPED_AT_ONCE {
            let Some(held) = self.frames_of(longest).take() else { break };
            dropped += held.len() as u64;
            load.leave(&held);
            load.discard(&held, Cause::Full);
            if dropped >= bytes / 2 {
                break;
            }
        }
        dropped > 0
    }

    /// Takes any frame, for another discipline.
    pub fn take(&mut self, load: &mut Load) -> Option<Held> {
        loop {
            let number = self.new.front().or_else(|| self.old.front())?;
            if let Some(held) = self.frames_of(number).take() {
                load.leave(&held);
                return Some(held);
            }
            let list = if self.new.len > 0 { &mut self.new } else { &mut self.old };
            list.pop(&self.flows);
            self.flows[usize::from(number)].listed = false;
        }
    }
}

/// The first bits of an address, as a number that differs if they do.
fn leading(ip: IpAddr, bits: u8) -> u64 {
    match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()) >> (32 - u32::from(bits.min(32))),
        IpAddr::V6(ip) => {
            let shift = 128 - u32::from(bits.min(128));
            let kept = ip.to_bits().checked_shr(shift).unwrap_or(0);
            mix((kept >> 64) as u64) ^ kept as u64
        }
    }
}

impl Weight {
    /// True if the address is in the prefix.
    fn holds(&self, ip: IpAddr) -> bool {
        match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                let shift = 32 - u32::from(self.bits.min(32));
                (own.to_bits() ^ ip.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                let shift = 128 - u32::from(self.bits.min(128));
                (own.to_bits() ^ ip.to_bits()).checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}
