//! A guest that writes whatever it likes into its memory, whose queues have up to 32,768 entries,
//! while two others use the switch: nothing panics or loops, no turn reads more of its descriptors
//! than it may, the two others lose no frame and get no byte that they were not sent, and every
//! frame is accounted for.
//!
//! The first byte of the input says what the hostile guest negotiated; then come steps of 13 bytes:
//! what to do, where (u32), and a value (u64).
#![no_main]

use std::sync::Arc;

use dataplane::SwitchConfig;
use dataplane::config::Policy;
use driver::virtio::{Buffer, Driver, layout_at};
use frame::Mac;
use inline::Inline;
use libfuzzer_sys::fuzz_target;
use nic::most_descriptors;
use nic::virtio::{Features, QueueConfig, QueueLayout, QueueState, Receive, Transmit};
use port::{
    Batch, Delivered, Effects, Egress, FrameIdx, Ingress, Limits, Nanos, OffloadSet, Scratch,
    Software,
};
use shmem::{Mapping, Shared};
use toklat_fuzz::{guest_memory, reading, steps};
use turn::attach::{AttachError, Attached, Bells, Source};

const HOSTILE: Mac = Mac::local(66);
const LEFT: Mac = Mac::local(1);
const RIGHT: Mac = Mac::local(2);
/// Steps of an input that are carried out.
const STEPS: usize = 256;
/// Entries of each queue, and of the hostile guest's, in turn.
const SIZE: u16 = 8;
const SIZES: [u16; 8] = [SIZE, 1, 64, 256, 1024, 4096, 16_384, 32_768];
/// Where queues lie, a page each, and buffers.
const QUEUES_AT: [u64; 2] = [0x1000, 0x2000];
const BUFFERS_AT: u64 = 0x3000;
const MEMORY: u64 = 0x1_0000;
/// The places of long queues. Buffers are at the same place as for short ones.
const LONG_QUEUES_AT: [u64; 2] = [0x10_0000, 0x20_0000];
const MUCH_MEMORY: u64 = 0x40_0000;
/// Descriptors of a table that is written at once.
const TABLE: u64 = 1024;
const HEADER: usize = 12;

/// A guest's memory and its two queues: what it sends and what it receives.
struct Guest {
    mapping: Arc<Mapping>,
    configs: [QueueConfig; 2],
}

struct TransmitQueues(Vec<Watched<Transmit>>);

/// A half of a port. Asserts that no turn reads more descriptors than allowed.
struct Watched<T>(T);

impl Ingress for Watched<Transmit> {
    fn gather(&mut self, scratch: &mut Scratch, max: usize, now: Nanos) -> usize {
        let most = |gathered: &(usize, u64)| most_descriptors(gathered.0, gathered.1 as usize);
        let gather = || (self.0.gather(scratch, max, now), scratch.bytes());
        reading(most, gather).0
    }

    fn complete(&mut self, frames: usize) {
        reading(|()| 0, || self.0.complete(frames));
    }

    fn settle(&mut self, now: Nanos) -> Effects {
        self.0.settle(now)
    }
}

impl Egress for Watched<Receive> {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], limits: Limits) -> Delivered {
        let bytes = list.iter().map(|frame| batch.pick(*frame).len()).sum();
        let most = |_: &_| most_descriptors(list.len(), bytes);
        reading(most, || self.0.deliver(batch, list, limits))
    }

    fn settle(&self, now: Nanos) -> Effects {
        self.0.settle(now)
    }

    fn takes(&self) -> OffloadSet {
        self.0.takes()
    }

    fn count_software(&self, done: Software) {
        self.0.count_software(done);
    }
}

impl Source for TransmitQueues {
    fn queues(&self) -> usize {
        self.0.len()
    }

    fn queue(&mut self, queue: usize) -> Option<&mut dyn Ingress> {
        Some(self.0.get_mut(queue)?)
    }

    fn arm(&mut self, _now: Nanos) -> bool {
        self.0.iter_mut().any(|queue| queue.0.arm())
    }

    fn disarm(&mut self) {
        self.0.iter_mut().for_each(|queue| queue.0.disarm());
    }
}

impl Guest {
    fn new(features: Features, size: u16) -> Self {
        let (bytes, at) = match size {
            0..=SIZE => (MEMORY as usize, QUEUES_AT),
            _ => (MUCH_MEMORY as usize, LONG_QUEUES_AT),
        };
        let mapping = Mapping::private(bytes).expect("memory");
        let memory = guest_memory(&mapping, [0, bytes / 2]);
        let configs = at.map(|at| {
            let state: Shared<QueueState> = Shared::private().expect("memory");
            state.start_at(if features.contains(Features::RING_PACKED) { 0x8000 } else { 0 });
            let (memory, layout) = (Arc::clone(&memory), layout_at(at, size));
            QueueConfig::new(memory, layout, features, state)
        });
        Self { mapping, configs }
    }

    /// Plugs the guest in at `mac`, the only address that it may send from.
    fn plug(&self, switch: &mut Inline, mac: Mac) -> u16 {
        let policy = Policy { macs: vec![mac], locked: true, ..Policy::default() };
        let missing = || AttachError::Descriptors { expected: "queues in memory" };
        let attach = |state: &dataplane::state::PortState| {
            let [sent, received] = self.configs.clone();
            let counters = state.ingress().ok_or_else(missing)?;
            let transmit = Transmit::new(sent, counters).map_err(|_| missing())?;
            let counters = state.egress(0).ok_or_else(missing)?;
            let receive = Receive::new(received, counters).map_err(|_| missing())?;
            Ok(Attached {
                source: Box::new(TransmitQueues(vec![Watched(transmit)])),
                egresses: vec![Arc::new(Watched(receive)).into()],
                bells: Bells::None,
            })
        };
        switch.add_attached("guest", policy, attach).expect("a free number")
    }

    /// Carries out a step. Returns true if the guest's queues must be set up again.
    fn scribble(&self, what: u8, at: u32, value: u64) -> bool {
        let queue = (at & 1) as usize;
        let QueueLayout { descriptors, driver, device, size } = self.configs[queue].layout;
        let slot = u64::from(at >> 1) % u64::from(size);
        let packed = self.configs[queue].features.contains(Features::RING_PACKED);
        let write = |at: u64, bytes: &[u8]| self.write(at, bytes);
        let bytes = value.to_le_bytes();
        match what % 8 {
            // A descriptor that may be good: a buffer, a length, flags and a number.
            0 | 1 => {
                let place = BUFFERS_AT + (value & 0xff) * 64;
                let len = (value >> 8) as u16 & 0x7ff;
                let kind = (value >> 24) as u16 & 7;
                let number = (value >> 32) as u16 & 0xf;
                let round = if value >> 48 & 1 == 1 { 0x80 } else { 0x8000 };
                let (third, fourth) = if packed { (number, kind | round) } else { (kind, number) };
                let mut descriptor = [0; 16];
                descriptor[..8].copy_from_slice(&place.to_le_bytes());
                descriptor[8..10].copy_from_slice(&len.to_le_bytes());
                descriptor[12..14].copy_from_slice(&third.to_le_bytes());
                descriptor[14..].copy_from_slice(&fourth.to_le_bytes());
                // Writes a descriptor of the ring or of a table.
                let table = if what & 0x20 == 0 { descriptors } else { BUFFERS_AT };
                write(table + 16 * slot, &descriptor);
            }
            // The available ring's index and an entry, or the driver's event suppression.
            2 => write(driver, &bytes[..4]),
            3 if what & 0x40 != 0 => self.fill(queue, what & 0x20 != 0, (at >> 1, value)),
            3 => write(driver + 4 + 2 * slot, &[bytes[0] & 0xf, 0]),
            // Writes an arbitrary value into a queue, a buffer, or anywhere else.
            4 => write(descriptors + u64::from(at >> 1) % 0x400, &bytes),
            5 => write(BUFFERS_AT + u64::from(at >> 1) % 0x4000, &bytes),
            6 => write(device + u64::from(at >> 1) % 0x100, &bytes),
            _ => {
                write(u64::from(at) % MEMORY, &bytes);
                self.configs[queue].state.start_at(value as u32);
                return true;
            }
        }
        false
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        if let Some(window) = self.mapping.bytes(at as usize, bytes.len()) {
            window.copy_in(bytes);
        }
    }

    /// Writes a whole ring or table of descriptors: chains of `every`, whose first has a length and
    /// whose others have another, and of a split queue as many heads, all of the same chain.
    fn fill(&self, queue: usize, is_table: bool, (every, value): (u32, u64)) {
        let QueueConfig { layout, features, state, .. } = &self.configs[queue];
        let packed = features.contains(Features::RING_PACKED);
        let (at, count) = match is_table {
            true => (BUFFERS_AT, TABLE),
            false => (layout.descriptors, layout.size.into()),
        };
        let (kind, every) = ((value >> 24) as u16 & 7, u64::from(every % 0x8000));
        let round = if value >> 48 & 1 == 1 { 0x80 } else { 0x8000 };
        for n in 0..count {
            let first = every == 0 || n % every == 0;
            let last = every > 0 && n % every == every - 1;
            let len = match (first, kind & 4) {
                (true, _) => (value >> 8) as u16 & 0x7ff,
                (false, 0) => (value >> 32) as u16 & 0x3,
                (false, _) => 16 * TABLE as u16,
            };
            let flags = kind & !1 | u16::from(!last);
            let (third, fourth) =
                if packed { (n as u16, flags | round) } else { (flags, n as u16 + 1) };
            let mut descriptor = [0; 16];
            descriptor[..8].copy_from_slice(&(BUFFERS_AT + (value & 0xff) * 64).to_le_bytes());
            descriptor[8..10].copy_from_slice(&len.to_le_bytes());
            descriptor[12..14].copy_from_slice(&third.to_le_bytes());
            descriptor[14..].copy_from_slice(&fourth.to_le_bytes());
            self.write(at + 16 * n, &descriptor);
        }
        if !packed && !is_table {
            let head = (value >> 52) as u16;
            (0..count).for_each(|n| self.write(layout.driver + 4 + 2 * n, &head.to_le_bytes()));
            let index = (state.base(false) as u16).wrapping_add(layout.size);
            self.write(layout.driver + 2, &index.to_le_bytes());
        }
    }
}

/// Turns within which an honest frame has crossed, whatever others send.
const TURNS: usize = 256;

/// A guest that keeps to the rules.
struct Honest {
    guest: Guest,
    drivers: [Driver; 2],
}

impl Honest {
    fn new(features: Features) -> Self {
        let guest = Guest::new(features, SIZE);
        let drivers = [0, 1].map(|i| {
            let QueueConfig { memory, layout, .. } = &guest.configs[i];
            Driver::new(memory, *layout, features).expect("a queue in memory")
        });
        Self { guest, drivers }
    }

    fn send(&mut self, frame: &[u8]) {
        // The frame crosses the border between two ranges of memory.
        self.send_from(MEMORY / 2 - 50, frame);
    }

    fn send_from(&mut self, at: u64, frame: &[u8]) {
        while self.drivers[0].used().is_some() {}
        let bytes = [&[0; HEADER][..], frame].concat();
        self.guest.mapping.bytes(at as usize, bytes.len()).expect("memory").copy_in(&bytes);
        let buffer = Buffer { at, len: bytes.len() as u32, writable: false };
        self.drivers[0].add(&[buffer], None).expect("its slots come back whatever others do");
        self.drivers[0].publish();
    }

    fn refill(&mut self) {
        while let Some(id) = self.drivers[1].next_number() {
            let at = BUFFERS_AT + 0x800 * u64::from(id);
            let Some(_) = self.drivers[1].add(&[Buffer { at, len: 0x800, writable: true }], None)
            else {
                break;
            };
        }
        self.drivers[1].publish();
    }

    /// Frames received.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((id, len)) = self.drivers[1].used() {
            let at = BUFFERS_AT as usize + 0x800 * usize::from(id) + HEADER;
            let window = self.guest.mapping.bytes(at, len as usize - HEADER);
            frames.push(window.expect("as long as its buffer").to_vec());
        }
        frames
    }
}

/// Sends a batch to the hostile guest.
fn feed(switch: &mut Inline, left: &mut Honest, now: &mut u64) {
    let mut frame = [0; 1400];
    frame[..6].copy_from_slice(&HOSTILE.octets());
    frame[6..12].copy_from_slice(&LEFT.octets());
    (0..4).for_each(|n| left.send_from(0xa000 + 0x800 * n, &frame));
    *now += 1000;
    switch.turn(Nanos(*now));
}

/// Sends a frame from left to right, whose content is `mark` throughout, and expects exactly it.
fn exchange(switch: &mut Inline, left: &mut Honest, right: &mut Honest, mark: u64, now: &mut u64) {
    let mut frame = [mark as u8; 100];
    frame[..6].copy_from_slice(&RIGHT.octets());
    frame[6..12].copy_from_slice(&LEFT.octets());
    left.refill();
    right.refill();
    left.send(&frame);
    let (mut ours, mut others) = (Vec::new(), Vec::new());
    // A port that has sent more bytes than another skips turns while the other has more to send.
    for _ in 0..TURNS {
        *now += 1000;
        switch.turn(Nanos(*now));
        for got in right.receive() {
            let is_ours = got.get(6..12) == Some(&LEFT.octets()[..]);
            if is_ours { &mut ours } else { &mut others }.push(got);
        }
        if !ours.is_empty() {
            break;
        }
        right.refill();
    }
    assert_eq!(ours, [frame], "exactly once, as it was sent, beside {} others", others.len());
    left.receive();
}

fuzz_target!(|input: &[u8]| {
    let Some((chosen, rest)) = input.split_first() else { return };
    let choices = [
        Features::RING_PACKED,
        Features::EVENT_IDX,
        Features::INDIRECT_DESC,
        Features::MRG_RXBUF,
        Features::CSUM | Features::HOST_TSO4 | Features::HOST_TSO6 | Features::HOST_USO,
        Features::GUEST_CSUM | Features::GUEST_TSO4,
    ];
    let chosen = choices.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
    let features = chosen.fold(Features::VERSION_1, |all, (_, feature)| all | *feature);
    // The hostile guest is served first, so that what it floods is room that others need.
    let config = SwitchConfig { max_ports: 4, batch: 4, fdb_entries: 64, ..Default::default() };
    let mut switch = Inline::new(config).expect("memory");
    let mut hostile = Guest::new(features, SIZE);
    let mut hostile_id = hostile.plug(&mut switch, HOSTILE);
    let mut left = Honest::new(Features::VERSION_1);
    let mut right = Honest::new(Features::VERSION_1 | Features::RING_PACKED);
    let left_id = left.guest.plug(&mut switch, LEFT);
    let right_id = right.guest.plug(&mut switch, RIGHT);
    let mut now = 0;
    for (mark, (what, at, value)) in steps(rest).take(STEPS).enumerate() {
        if hostile.scribble(what, at, value) {
            switch.remove(hostile_id);
            if what & 0x40 != 0 {
                hostile = Guest::new(features, SIZES[usize::from(what >> 3 & 7)]);
            }
            hostile_id = hostile.plug(&mut switch, HOSTILE);
        }
        if what & 0x80 == 0 {
            feed(&mut switch, &mut left, &mut now);
            exchange(&mut switch, &mut left, &mut right, mark as u64, &mut now);
        }
    }
    for _ in 0..16 {
        exchange(&mut switch, &mut left, &mut right, 0xff, &mut now);
    }
    // The hostile port's own queue may still lend what it says it sent: without it, all is
    // accounted for.
    switch.remove(hostile_id);
    switch.turn(Nanos(now + 1000));
    let sum: i128 = [left_id, right_id].iter().map(|id| switch.stats(*id).unaccounted()).sum();
    let gone = switch.state().switch().snapshot().gone.unaccounted();
    assert_eq!(sum + gone, 0, "every frame is delivered or counted as dropped");
});
