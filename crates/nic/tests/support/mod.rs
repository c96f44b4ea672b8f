//! A guest in the test's own memory, and a switch that only forwards.
#![allow(dead_code, unsafe_code, reason = "each test uses a part; memory outlives what is lent")]

use std::sync::Arc;

use driver::virtio::{Buffer, Driver, layout_at};
use nic::virtio::{Features, QueueConfig, QueueLayout, QueueState, Receive, Transmit};
use port::{
    Delivered, Effects, Egress, EgressCounters, FrameIdx, Ingress, IngressCounters, Limits,
    MapGuard, Nanos, Scratch,
};
use shmem::{GuestMemory, Mapping, Shared};

pub const HEADER: usize = 12;
/// Size of the place for a frame.
pub const PLACE: u64 = 0x1_2000;
const QUEUE_AT: u64 = 0x1000;
const TABLES_AT: u64 = 0x10_0000;
const TABLE: u64 = 0x1000;
const PLACES_AT: u64 = 0x40_0000;
/// The features that every driver negotiates.
pub const BASE: Features = Features::VERSION_1;
pub const LIMITS: Limits = Limits { max_frame: 0x1_0000, lossless: false };

/// One queue of a guest, with memory of its own.
pub struct Guest {
    pub memory: Arc<GuestMemory>,
    pub mapping: Arc<Mapping>,
    pub driver: Driver,
    pub config: QueueConfig,
    pub features: Features,
    pub sent: Shared<IngressCounters>,
    pub got: Shared<EgressCounters>,
    /// Places that are free.
    free: Vec<u64>,
    /// For each chain number: a chain's place, and its buffers.
    held: Vec<Option<(u64, Vec<Buffer>)>>,
}

pub fn first_base(features: Features) -> u32 {
    if features.contains(Features::RING_PACKED) { 0x8000 } else { 0 }
}

impl Guest {
    pub fn new(features: Features, size: u16) -> Self {
        let bytes = PLACES_AT + PLACE * u64::from(size);
        let mapping = Mapping::private(bytes as usize).unwrap();
        let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), 0).unwrap());
        let layout: QueueLayout = layout_at(QUEUE_AT, size);
        let driver = Driver::new(&memory, layout, features).unwrap();
        let state: Shared<QueueState> = Shared::private().unwrap();
        state.start_at(first_base(features));
        let config = QueueConfig::new(Arc::clone(&memory), layout, features, state);
        let free = (0..u64::from(size)).rev().map(|i| PLACES_AT + i * PLACE).collect();
        let (sent, got) = (Shared::private().unwrap(), Shared::private().unwrap());
        let held = vec![None; size.into()];
        Self { memory, mapping, driver, config, features, sent, got, free, held }
    }

    /// Adds a chain of buffers of these lengths at a free place; `None` without room.
    pub fn add(&mut self, lens: &[u32], writable: bool, indirect: bool) -> Option<u64> {
        let place = *self.free.last()?;
        let mut at = place;
        let buffers: Vec<Buffer> = lens
            .iter()
            .map(|len| {
                let buffer = Buffer { at, len: *len, writable };
                at += u64::from(*len);
                buffer
            })
            .collect();
        let table = indirect.then_some(TABLES_AT + TABLE * ((place - PLACES_AT) / PLACE));
        let id = self.driver.add(&buffers, table)?;
        self.free.pop();
        self.held[usize::from(id)] = Some((place, buffers));
        Some(place)
    }

    /// Hands in a frame, after `header`, in pieces of these lengths and one with the rest.
    pub fn send(
        &mut self,
        header: [u8; HEADER],
        frame: &[u8],
        cuts: &[u32],
        indirect: bool,
    ) -> bool {
        let header = &header[..self.features.header_len() as usize];
        let total = (header.len() + frame.len()) as u32;
        let (mut lens, mut left) = (Vec::new(), total);
        for cut in cuts {
            let len = (*cut).min(left);
            lens.extend((len > 0).then_some(len));
            left -= len;
        }
        lens.extend((left > 0).then_some(left));
        let Some(place) = self.add(&lens, false, indirect) else { return false };
        self.memory.bytes(place, total).unwrap().copy_in(&[header, frame].concat());
        true
    }

    /// Takes back everything that the device has used. Returns how many chains.
    pub fn reap(&mut self) -> usize {
        std::iter::from_fn(|| self.used()).count()
    }

    fn used(&mut self) -> Option<(u64, u32)> {
        let (id, len) = self.driver.used()?;
        let (place, _) = self.held[usize::from(id)].take().expect("a chain that was added");
        self.free.push(place);
        Some((place, len))
    }

    /// The next frame received: its header and its bytes.
    pub fn receive(&mut self) -> Option<([u8; HEADER], Vec<u8>)> {
        let (place, len) = self.used()?;
        let mut bytes = self.memory.bytes(place, len).unwrap().to_vec();
        let mut header = [0; HEADER];
        let rest = bytes.split_off(self.features.header_len() as usize);
        header[..bytes.len()].copy_from_slice(&bytes);
        let mut frame = rest;
        if self.features.contains(Features::MRG_RXBUF) {
            for _ in 1..u16::from_le_bytes([header[10], header[11]]) {
                let (place, len) = self.used().expect("as many buffers as the header says");
                frame.extend(self.memory.bytes(place, len).unwrap().to_vec());
            }
        }
        Some((header, frame))
    }

    pub fn transmit(&self) -> Transmit {
        Transmit::new(self.config.clone(), self.sent.clone()).unwrap()
    }

    pub fn receiver(&self) -> Receive {
        Receive::new(self.config.clone(), self.got.clone()).unwrap()
    }

    /// Overwrites memory at a guest-physical address.
    pub fn scribble(&self, at: u64, bytes: &[u8]) {
        self.memory.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes);
    }
}

/// Gathers a batch, delivers it to `to`, and completes finished frames. Returns how many frames
/// were gathered and finished, and the effects for both.
pub fn forward(
    from: &mut Transmit,
    to: &Receive,
    limits: Limits,
) -> (usize, usize, Effects, Effects) {
    let mut scratch = Scratch::new(64);
    let gathered = from.gather(&mut scratch, 64, Nanos(0));
    // SAFETY: the guests' memory outlives the scratch.
    let map = unsafe { MapGuard::assume_mapped() };
    scratch.judge(&map, &mut [(); 64], |_, _| ());
    let list: Vec<FrameIdx> = (0..gathered as FrameIdx).collect();
    let Delivered { finished } = to.deliver(&scratch.batch(&map), &list, limits);
    from.complete(finished);
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    (gathered, finished, from.settle(Nanos(0)), to.settle(Nanos(0)))
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed * 13) as u8).collect()
}
