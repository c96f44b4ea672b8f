//! A switch whose ports are vectors, for the tests to drive.
#![allow(unsafe_code, reason = "the harness vouches for its own vectors")]

use std::sync::{Arc, Mutex};

use ::frame::Mac;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, EgressCounters, FrameIdx, IngressCounters,
    Limits, MapGuard, Nanos, Offload, OffloadSet, Scratch, Software,
};
use shmem::{Bytes, Mapping, Shared};
use toklat_fabric::{
    Fdb, Filters, Forwarder, Monitor, PortMemory, PortSpec, Ports, Rules, Sender, Sending,
    StallTime,
};

pub type Frame = Vec<u8>;

/// A receive queue of `room` frames.
pub struct Inbox {
    pub frames: Mutex<Vec<Frame>>,
    /// The offload requests of these frames.
    pub requests: Mutex<Vec<Offload>>,
    pub takes: Mutex<OffloadSet>,
    pub room: Mutex<usize>,
    pub counters: Shared<EgressCounters>,
    pub deliveries: Mutex<usize>,
}

impl Egress for Inbox {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let mut frames = self.frames.lock().unwrap();
        let room = *self.room.lock().unwrap();
        *self.deliveries.lock().unwrap() += 1;
        for (finished, i) in list.iter().enumerate() {
            assert!(self.takes().takes(&batch.offload(*i)), "a request that was not wanted");
            if batch.wire_len(*i) > limits.max_frame as usize {
                self.counters.drop_frames(DropReason::TooLong, 1);
                continue;
            }
            if frames.len() >= room {
                if limits.lossless {
                    return Delivered { finished };
                }
                self.counters.drop_frames(DropReason::Full, 1);
                continue;
            }
            let mut bytes = vec![0; batch.frame(*i).len()];
            batch.copy_frame(*i, Bytes::of(&mut bytes));
            self.counters.frames.add(1);
            frames.push(bytes);
            self.requests.lock().unwrap().push(batch.offload(*i));
        }
        Delivered { finished: list.len() }
    }

    fn takes(&self) -> OffloadSet {
        *self.takes.lock().unwrap()
    }

    fn count_software(&self, done: Software) {
        self.counters.add_software(done);
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects { kick: true }
    }
}

pub struct Switch {
    pub fdb: Fdb,
    pub ports: Ports,
    pub specs: Vec<PortSpec>,
    pub inboxes: Vec<Vec<Arc<Inbox>>>,
    pub memories: Vec<PortMemory>,
    pub senders: Vec<Sender>,
    pub forwarder: Forwarder,
    pub held: Vec<Option<(Vec<Frame>, Scratch)>>,
    pub completed: Vec<usize>,
    pub detached: usize,
    pub kicks: Vec<u16>,
    /// The host from which each frame of the next batch comes.
    vias: Vec<u16>,
    counters: Arc<Mapping>,
    received: Arc<Mapping>,
}

pub const STALL_NS: u64 = 10_000_000;

impl Switch {
    pub fn new(rules_of: &[Rules]) -> Self {
        Self::with_queues(rules_of, 1)
    }

    /// Makes ports with these rules and `queues` receive queues each.
    pub fn with_queues(rules_of: &[Rules], queues: usize) -> Self {
        let mut switch = Self {
            fdb: Fdb::private(1024, 64).unwrap(),
            ports: Ports::default(),
            specs: Vec::new(),
            inboxes: Vec::new(),
            memories: Vec::new(),
            senders: Vec::new(),
            forwarder: Forwarder::new(64),
            held: Vec::new(),
            completed: Vec::new(),
            detached: 0,
            kicks: Vec::new(),
            vias: Vec::new(),
            counters: Mapping::private(64 * 1024).unwrap(),
            received: Mapping::private(64 * 16 * 512).unwrap(),
        };
        for policy in rules_of {
            switch.add(policy.clone(), queues, None);
        }
        switch
    }

    pub fn add(&mut self, policy: Rules, queues: usize, monitor: Option<Monitor>) -> u16 {
        let id = self.specs.len() as u16;
        let inboxes: Vec<_> = (0..queues)
            .map(|queue| {
                Arc::new(Inbox {
                    frames: Mutex::default(),
                    requests: Mutex::default(),
                    takes: Mutex::default(),
                    room: Mutex::new(1000),
                    counters: self.received.shared((usize::from(id) * 16 + queue) * 512).unwrap(),
                    deliveries: Mutex::default(),
                })
            })
            .collect();
        self.specs.push(PortSpec {
            id,
            instance: u32::from(id) + 1,
            name: format!("p{id}"),
            rules: policy,
            send_queues: 1,
            counters: self.counters_of(id),
            linked: Vec::new(),
            egresses: inboxes.iter().map(|i| Arc::clone(i) as Arc<dyn Egress>).collect(),
            received: inboxes.iter().map(|inbox| inbox.counters.clone()).collect(),
            monitor,
            tunnel: false,
        });
        self.inboxes.push(inboxes);
        self.memories.push(PortMemory::default());
        self.senders.push(Sender::new(id, 0));
        self.held.push(None);
        self.completed.push(0);
        self.rebuild();
        id
    }

    pub fn rebuild(&mut self) {
        let filters = self.ports.filters().cloned();
        self.ports = Ports::build(self.specs.iter()).with_filters(filters);
    }

    /// Puts rules into use.
    pub fn filter(&mut self, filters: Filters) {
        self.ports = Ports::build(self.specs.iter()).with_filters(Some(Arc::new(filters)));
    }

    pub fn counters_of(&self, id: u16) -> Shared<IngressCounters> {
        self.counters.shared(usize::from(id) * 1024).unwrap()
    }

    /// Sends `frames` from port `from` in one batch.
    pub fn send(&mut self, from: u16, frames: Vec<Frame>, now: Nanos) {
        self.send_with(from, frames.into_iter().map(|f| (f, Offload::NONE)).collect(), now);
    }

    /// Sends `frames`, each from a host behind the port.
    pub fn send_by(&mut self, from: u16, frames: Vec<(Frame, u16)>, now: Nanos) {
        let (frames, vias): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
        self.vias = vias;
        self.send(from, frames, now);
        self.vias.clear();
    }

    /// Sends `frames` with their requests.
    pub fn send_with(&mut self, from: u16, frames: Vec<(Frame, Offload)>, now: Nanos) {
        let (mut frames, requests): (Vec<_>, Vec<_>) = frames.into_iter().unzip();
        let at = usize::from(from);
        assert!(self.held[at].is_none(), "a stalled port gathers nothing");
        let mut scratch = Scratch::new(64);
        let mut vias = self.vias.iter();
        for (frame, request) in frames.iter_mut().zip(requests) {
            scratch.push(Bytes::of(frame).span());
            vias.next().into_iter().for_each(|via| scratch.set_via(*via));
            if request != Offload::NONE {
                scratch.set_offload(request);
            }
        }
        self.counters_of(from).frames.add(frames.len() as u64);
        // SAFETY: the frames live in `frames`, which is kept as long as the scratch.
        let map = unsafe { MapGuard::assume_mapped() }.at(now);
        let turn = self.forwarder.forward(
            &self.ports,
            &self.fdb,
            Sending { memory: &mut self.memories[at], queue: &mut self.senders[at] },
            &mut scratch,
            &map,
            now,
        );
        self.settle(now);
        self.completed[at] += turn.completed;
        self.detached += turn.detached;
        if self.senders[at].is_stalled() {
            self.held[at] = Some((frames, scratch));
        } else {
            assert_eq!(turn.completed, frames.len());
        }
    }

    /// Retries the stalled frames of port `from`.
    pub fn retry(&mut self, from: u16, now: Nanos) {
        let at = usize::from(from);
        let (frames, mut scratch) = self.held[at].take().expect("something is stalled");
        // SAFETY: as in `send`.
        let map = unsafe { MapGuard::assume_mapped() }.at(now);
        let turn = self.forwarder.retry(
            &self.ports,
            &mut self.senders[at],
            &mut scratch,
            &map,
            now,
            StallTime { ns: STALL_NS, renewed: true },
        );
        self.settle(now);
        self.completed[at] += turn.completed;
        if self.senders[at].is_stalled() {
            self.held[at] = Some((frames, scratch));
        }
    }

    fn settle(&mut self, now: Nanos) {
        let kicks = &mut self.kicks;
        self.forwarder.settle(&self.ports, now, |port, _, effects| {
            assert!(effects.kick);
            kicks.push(port);
        });
    }

    /// Takes the frames that port `id` received, over all its queues.
    pub fn take(&self, id: u16) -> Vec<Frame> {
        let inboxes = &self.inboxes[usize::from(id)];
        inboxes.iter().flat_map(|i| std::mem::take(&mut *i.frames.lock().unwrap())).collect()
    }

    pub fn set_room(&self, id: u16, room: usize) {
        *self.inboxes[usize::from(id)][0].room.lock().unwrap() = room;
    }

    pub fn dropped(&self, id: u16, reason: DropReason) -> u64 {
        self.counters_of(id).drops[DropReason::at_ingress(reason as usize)].get()
    }

    /// The offload requests of frames that port `id` received since the last call.
    pub fn take_requests(&self, id: u16) -> Vec<Offload> {
        std::mem::take(&mut *self.inboxes[usize::from(id)][0].requests.lock().unwrap())
    }

    /// Sets the requests that port `id` accepts.
    pub fn set_takes(&self, id: u16, takes: OffloadSet) {
        self.take_requests(id);
        *self.inboxes[usize::from(id)][0].takes.lock().unwrap() = takes;
    }

    /// Frames segmented, segments beyond one each, and checksums computed for port `id`.
    pub fn software(&self, id: u16) -> (u64, u64, u64) {
        let c = &self.inboxes[usize::from(id)][0].counters;
        (c.segmented.get(), c.segments.get(), c.checksums.get())
    }

    /// Asserts the sum rule: every frame that came in, every copy and every segment went out or was
    /// dropped.
    pub fn assert_sums(&self) {
        let (mut into, mut out) = (0, 0);
        for id in 0..self.specs.len() as u16 {
            let c = self.counters_of(id);
            into += c.frames.get() + c.copies.get();
            out += c.drops.iter().map(|d| d.get()).sum::<u64>();
            for inbox in &self.inboxes[usize::from(id)] {
                into += inbox.counters.segments.get();
                out += inbox.counters.frames.get();
                out += inbox.counters.drops.iter().map(|d| d.get()).sum::<u64>();
            }
        }
        assert_eq!(into, out, "frames in and copies, frames out and drops");
    }
}

/// The address of the host at port `id`.
pub fn host(id: u16) -> Mac {
    Mac::local(u32::from(id) + 1)
}

/// A frame of 60 bytes with `number` in it.
pub fn frame(to: Mac, from: Mac, number: u8) -> Frame {
    let mut frame = vec![0; 60];
    frame[..6].copy_from_slice(&to.octets());
    frame[6..12].copy_from_slice(&from.octets());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[59] = number;
    frame
}

/// The same frame with an 802.1Q tag.
pub fn tagged(mut frame: Frame, tci: u16) -> Frame {
    frame.splice(12..12, [0x81, 0, (tci >> 8) as u8, tci as u8]);
    frame
}
