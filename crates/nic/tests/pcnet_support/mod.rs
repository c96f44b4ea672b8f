//! A guest's memory, a PCnet over it, and a switch that only passes on.
#![allow(dead_code, unsafe_code, reason = "each test uses a part; memory outlives what is lent")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use nic::device::{Combining, Device, DeviceConfig, Model};
use nic::driver::Regs;
use nic::pcnet::driver::{Driver, Layout};
use nic::pcnet::{Chip, Pcnet, Registers};
use port::{EgressCounters, FrameIdx, IngressCounters, Limits, Mac, MapGuard, Nanos, Scratch};
use shmem::{GuestMemory, GuestRange, Mapping, Shared};

pub const LAYOUT: Layout = Layout { at: 0x1_0000, transmit: 4, receive: 5 };
pub const MEMORY: u64 = 0x10_0000;
pub const LIMITS: Limits = Limits { max_frame: 4000, lossless: false };

/// Registers by direct call, at a time that the test sets.
#[derive(Clone)]
pub struct Direct {
    pub device: Arc<dyn Device>,
    pub now: Rc<Cell<Nanos>>,
}

impl Regs for Direct {
    fn read32(&mut self, bar: usize, at: u64) -> u32 {
        let mut data = [0; 4];
        self.device.read(bar, at, &mut data, self.now.get());
        u32::from_le_bytes(data)
    }

    fn write32(&mut self, bar: usize, at: u64, value: u32) {
        self.device.write(bar, at, &value.to_le_bytes(), self.now.get());
    }

    fn read16(&mut self, bar: usize, at: u64) -> u16 {
        let mut data = [0; 2];
        self.device.read(bar, at, &mut data, self.now.get());
        u16::from_le_bytes(data)
    }

    fn write16(&mut self, bar: usize, at: u64, value: u16) {
        self.device.write(bar, at, &value.to_le_bytes(), self.now.get());
    }
}

/// A controller with everything around it.
pub struct Bench {
    pub chip: Chip,
    pub mac: Mac,
    pub registers: Shared<Registers>,
    pub memory: Arc<GuestMemory>,
    pub mapping: Arc<Mapping>,
    pub config: DeviceConfig,
    pub model: Model,
    pub now: Rc<Cell<Nanos>>,
    pub scratch: Scratch,
}

impl Bench {
    pub fn new(chip: Chip) -> Self {
        Self::with(chip, None)
    }

    pub fn with(chip: Chip, combining: Option<Combining>) -> Self {
        let mapping = Mapping::private(MEMORY as usize).unwrap();
        // Two ranges, one behind the other in the guest only.
        let range = |guest: u64, offset: u64, size: u64| GuestRange {
            guest,
            user: guest,
            size,
            mapping: Arc::clone(&mapping),
            offset: offset as usize,
        };
        let low = 0x8_0000;
        let ranges = vec![range(0, MEMORY - low, low), range(low, 0, MEMORY - low)];
        let memory = Arc::new(GuestMemory::new(ranges).unwrap());
        let registers: Shared<Registers> = Mapping::private(16384).unwrap().shared(0).unwrap();
        let ingress: Shared<IngressCounters> = Mapping::private(4096).unwrap().shared(0).unwrap();
        let egress: Shared<EgressCounters> = Mapping::private(4096).unwrap().shared(0).unwrap();
        let mac = Mac::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let config = DeviceConfig {
            memory: Arc::clone(&memory),
            mac,
            ingress,
            egress: vec![egress],
            link: true,
            combining,
            csb: false,
        };
        let model = Pcnet::new(chip, registers.clone(), config.clone());
        model.device.set_bus_master(true);
        let (now, scratch) = (Rc::new(Cell::new(Nanos(1_000_000_000))), Scratch::new(64));
        Self { chip, mac, registers, memory, mapping, config, model, now, scratch }
    }

    /// The model is made anew over its registers, as after the death of a data process.
    pub fn remake(&mut self) {
        self.model = Pcnet::new(self.chip, self.registers.clone(), self.config.clone());
    }

    pub fn regs(&self) -> Direct {
        Direct { device: Arc::clone(&self.model.device), now: Rc::clone(&self.now) }
    }

    pub fn driver(&self) -> Driver<Direct> {
        Driver::new(self.regs(), Arc::clone(&self.memory), LAYOUT).unwrap()
    }

    /// A driver of a chip that runs, with interrupts.
    pub fn started(&self) -> Driver<Direct> {
        let mut driver = self.driver();
        driver.start(true, false).unwrap();
        driver
    }

    pub fn pass(&self, nanos: u64) {
        self.now.set(self.now.get() + nanos);
    }

    /// Takes what the guest sends, at most 64 frames, and completes it.
    pub fn gather(&mut self) -> Vec<Vec<u8>> {
        let frames = self.lend();
        self.complete(frames.len());
        frames
    }

    /// As `gather`, without completing.
    pub fn lend(&mut self) -> Vec<Vec<u8>> {
        self.scratch.clear();
        let count = self.model.transmit[0].gather(&mut self.scratch, 64, self.now.get());
        read(&mut self.scratch, count)
    }

    pub fn complete(&mut self, frames: usize) {
        self.model.transmit[0].complete(frames);
    }

    /// Delivers frames; returns how many were finished.
    pub fn deliver(&mut self, frames: &[Vec<u8>]) -> usize {
        self.deliver_with(frames, LIMITS)
    }

    pub fn deliver_with(&mut self, frames: &[Vec<u8>], limits: Limits) -> usize {
        let bytes = Mapping::private(64 * 4096).unwrap();
        let mut scratch = Scratch::new(64);
        for (i, frame) in frames.iter().enumerate() {
            let place = bytes.bytes(i * 4096, frame.len()).unwrap();
            place.copy_in(frame);
            scratch.push(place.span());
        }
        // SAFETY: the memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let list: Vec<FrameIdx> = (0..frames.len() as FrameIdx).collect();
        self.model.receive[0].deliver(&scratch.batch(&map), &list, limits).finished
    }

    /// The interrupt pin's level.
    pub fn level(&self) -> bool {
        self.model.device.interrupt(self.now.get()).vectors & 1 != 0
    }

    pub fn egress(&self) -> &EgressCounters {
        &self.config.egress[0]
    }

    pub fn dropped(&self, reason: port::DropReason) -> u64 {
        self.egress().drops[reason as usize].get()
    }

    pub fn write(&self, at: u32, bytes: &[u8]) {
        self.memory.bytes(at.into(), bytes.len() as u32).unwrap().copy_in(bytes);
    }

    pub fn read(&self, at: u32, len: u32) -> Vec<u8> {
        self.memory.bytes(at.into(), len).unwrap().to_vec()
    }

    pub fn word(&self, at: u32) -> u32 {
        self.memory.bytes(at.into(), 4).unwrap().read(0).unwrap()
    }
}

fn read(scratch: &mut Scratch, count: usize) -> Vec<Vec<u8>> {
    // SAFETY: the guest's memory outlives the scratch.
    let map = unsafe { MapGuard::assume_mapped() };
    scratch.judge(&map, &mut [(); 64], |_, _| ());
    let batch = scratch.batch(&map);
    let copy = |i: usize| {
        let mut bytes = vec![0; batch.frame(i as FrameIdx).len()];
        let len = batch.copy_frame(i as FrameIdx, shmem::Bytes::of(&mut bytes));
        assert_eq!(len, bytes.len());
        bytes
    };
    (0..count).map(copy).collect()
}

/// A frame to `mac`.
pub fn to(mac: Mac, len: usize, seed: usize) -> Vec<u8> {
    let mut frame = frame(len, seed);
    frame[..6].copy_from_slice(&mac.octets());
    frame
}

pub fn frame(len: usize, seed: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251 + seed * 13) as u8).collect();
    frame[0] = 2;
    // No 802.3 length.
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}
