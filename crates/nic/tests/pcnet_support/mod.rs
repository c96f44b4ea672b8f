//! A guest's memory, a PCnet over it, and a switch that only forwards.
#![allow(dead_code, unsafe_code, reason = "each test uses a part; memory outlives what is lent")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use card::Direct;
use driver::pcnet::{Driver, Sizes};
use driver::{Dma, Regs};
use nic::device::{Combining, DeviceConfig, Model};
use nic::pcnet::{self, Chip, Registers};
use port::{EgressCounters, FrameIdx, Limits, Mac, MapGuard, Nanos, Scratch};
use shmem::{GuestMemory, GuestRange, Mapping, Shared};

pub const MEMORY: u64 = 0x10_0000;
pub const LIMITS: Limits = Limits { max_frame: 4000, lossless: false };

/// Where a driver's memory begins; the tests use what is below.
pub const DMA: u64 = 0x8_0000;

/// Registers by direct call, at the time set by the test.
pub type Registered = Direct<Box<dyn FnMut() -> Nanos>>;

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

    /// A controller with a shared status block.
    pub fn with_csb(chip: Chip) -> Self {
        let mut bench = Self::new(chip);
        bench.config.csb = true;
        bench.remake();
        bench
    }

    pub fn with(chip: Chip, combining: Option<Combining>) -> Self {
        let mapping = Mapping::private(MEMORY as usize).unwrap();
        // Two ranges that are adjacent only in the guest.
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
        let registers: Shared<Registers> = Shared::private().unwrap();
        let mac = Mac::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let config =
            DeviceConfig { combining, ..DeviceConfig::alone(Arc::clone(&memory), mac, 1).unwrap() };
        let model = pcnet::model(chip, registers.clone(), config.clone());
        model.device.set_bus_master(true);
        let (now, scratch) = (Rc::new(Cell::new(Nanos(1_000_000_000))), Scratch::new(64));
        Self { chip, mac, registers, memory, mapping, config, model, now, scratch }
    }

    /// Rebuilds the model over its registers, as after the death of a data process.
    pub fn remake(&mut self) {
        self.model = pcnet::model(self.chip, self.registers.clone(), self.config.clone());
    }

    pub fn regs(&self) -> Registered {
        let now = Rc::clone(&self.now);
        Direct::new(Arc::clone(&self.model.device), Box::new(move || now.get()))
    }

    pub fn driver(&self) -> Driver<Registered> {
        let mut dma = Dma::new(Arc::clone(&self.mapping), 0, DMA as usize, DMA).unwrap();
        Driver::new(self.regs(), &mut dma, Sizes::default()).unwrap()
    }

    /// A driver of a chip that runs, with interrupts.
    pub fn started(&self) -> Driver<Registered> {
        let mut driver = self.driver();
        driver.start(true, false).unwrap();
        driver
    }

    pub fn pass(&self, nanos: u64) {
        self.now.set(self.now.get() + nanos);
    }

    /// Takes frames that the guest sends, at most 64, and completes them.
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

    /// Delivers frames. Returns how many were finished.
    pub fn deliver(&mut self, frames: &[impl AsRef<[u8]>]) -> usize {
        self.deliver_with(frames, LIMITS)
    }

    pub fn deliver_with(&mut self, frames: &[impl AsRef<[u8]>], limits: Limits) -> usize {
        let bytes = Mapping::private(64 * 4096).unwrap();
        let mut scratch = Scratch::new(64);
        for (i, frame) in frames.iter().enumerate() {
            let place = bytes.bytes(i * 4096, frame.as_ref().len()).unwrap();
            place.copy_in(frame.as_ref());
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

pub const OWN: u16 = 0x8000;
pub const ERR: u16 = 0x4000;
pub const STP: u16 = 0x200;
pub const ENP: u16 = 0x100;
/// CSR15.
pub const LOOP: u16 = 4;
pub const PROM: u16 = 0x8000;
/// CSR0.
pub const TXON: u16 = 0x10;
pub const RXON: u16 = 0x20;
pub const IENA: u16 = 0x40;
pub const IDON: u16 = 0x100;
pub const TINT: u16 = 0x200;
pub const RINT: u16 = 0x400;
pub const MERR: u16 = 0x800;
pub const MISS: u16 = 0x1000;
pub const CERR: u16 = 0x2000;
pub const BABL: u16 = 0x4000;

const INIT_AT: u32 = 0x1000;
pub const RX_AT: u32 = 0x2000;
pub const TX_AT: u32 = 0x4000;
/// Where tests put buffers.
pub const BUFFERS: u32 = 0x1_0000;

/// A chip driven by hand, in any software style.
pub struct Raw {
    pub bench: Bench,
    pub style: u16,
    regs: Registered,
}

/// How a chip is brought up by hand.
pub struct Setup {
    pub style: u16,
    pub mode: u16,
    /// CSR4.
    pub features: u16,
    /// Ring lengths, as powers of two.
    pub tx: u8,
    pub rx: u8,
    pub logical: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { style: 2, mode: 0, features: 0x0915, tx: 3, rx: 3, logical: 0 }
    }
}

impl Raw {
    pub fn new(setup: &Setup) -> Self {
        Self::over(Bench::new(Chip::Am79C970A), setup)
    }

    pub fn over(bench: Bench, setup: &Setup) -> Self {
        let regs = bench.regs();
        let mut raw = Self { bench, style: setup.style, regs };
        raw.initialize(setup);
        raw.set_csr(0, 0x42);
        raw
    }

    /// Resets and initializes the chip, but does not start it.
    pub fn initialize(&mut self, setup: &Setup) {
        self.regs.read16(0, 0x14);
        self.style = setup.style;
        self.set_bcr(20, setup.style);
        let mac = self.bench.mac.octets();
        let mut block = Vec::from(setup.mode.to_le_bytes());
        let (rx, tx) = (RX_AT.to_le_bytes(), TX_AT.to_le_bytes());
        if setup.style == 0 {
            block.extend(mac);
            block.extend(setup.logical.to_le_bytes());
            for (at, log) in [(rx, setup.rx), (tx, setup.tx)] {
                block.extend([at[0], at[1], at[2], log << 5]);
            }
        } else {
            block.extend([setup.rx << 4, setup.tx << 4]);
            block.extend(mac);
            block.extend([0; 2]);
            block.extend(setup.logical.to_le_bytes());
            block.extend(rx.into_iter().chain(tx));
        }
        self.bench.write(INIT_AT, &block);
        self.set_csr(1, INIT_AT as u16);
        self.set_csr(2, (INIT_AT >> 16) as u16);
        self.set_csr(4, setup.features);
        self.set_csr(0, 1);
        assert_eq!(self.csr(0) & 0x0105, 0x0101, "initialized, not stopped");
        self.set_csr(0, IDON);
    }

    pub fn csr(&mut self, number: u16) -> u16 {
        self.regs.write16(0, 0x12, number);
        self.regs.read16(0, 0x10)
    }

    pub fn set_csr(&mut self, number: u16, value: u16) {
        self.regs.write16(0, 0x12, number);
        self.regs.write16(0, 0x10, value);
    }

    pub fn bcr(&mut self, number: u16) -> u16 {
        self.regs.write16(0, 0x12, number);
        self.regs.read16(0, 0x16)
    }

    pub fn set_bcr(&mut self, number: u16, value: u16) {
        self.regs.write16(0, 0x12, number);
        self.regs.write16(0, 0x16, value);
    }

    pub fn reset(&mut self) {
        self.regs.read16(0, 0x14);
    }

    pub fn demand(&mut self) {
        self.set_csr(0, IENA | 8);
    }

    /// Rebuilds the model over its registers.
    pub fn remake(&mut self) {
        self.bench.remake();
        self.regs = self.bench.regs();
    }

    /// Writes a descriptor: its buffer, status and length.
    pub fn describe(&self, ring: u32, number: u32, buffer: u32, status: u16, len: u32) {
        let count = len.wrapping_neg() & 0xfff | 0xf000;
        if self.style == 0 {
            let words = [buffer & 0x00ff_ffff | u32::from(status) << 16, count];
            return self.put(ring + 8 * number, &words);
        }
        let status = count | u32::from(status) << 16;
        let words = if self.style == 3 { [0, status, buffer, 7] } else { [buffer, status, 0, 7] };
        self.put(ring + 16 * number, &words);
    }

    fn put(&self, at: u32, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.bench.write(at, &bytes);
    }

    /// A descriptor's status, and its message count or errors.
    pub fn status(&self, ring: u32, number: u32) -> (u16, u32) {
        if self.style == 0 {
            let [low, high] = [0, 4].map(|at| self.bench.word(ring + 8 * number + at));
            return ((low >> 16 & 0xff00) as u16, high >> 16);
        }
        let other = if self.style == 3 { 0 } else { 8 };
        let [status, other] = [4, other].map(|at| self.bench.word(ring + 16 * number + at));
        ((status >> 16) as u16, if ring == TX_AT { other >> 16 } else { other })
    }

    /// Writes a frame to buffer `number` and describes it there.
    pub fn send(&self, number: u32, frame: &[u8], flags: u16) {
        let buffer = BUFFERS + 0x1000 * number;
        self.bench.write(buffer, frame);
        self.describe(TX_AT, number, buffer, OWN | flags, frame.len() as u32);
    }

    /// Where receive buffer `number` lies.
    pub fn rx_buffer(number: u32) -> u32 {
        BUFFERS + 0x2_0000 + 0x1000 * number
    }

    /// Gives `count` receive buffers of `len` bytes, from descriptor `first` on.
    pub fn give(&self, first: u32, count: u32, len: u32) {
        for number in first..first + count {
            self.describe(RX_AT, number, Self::rx_buffer(number), OWN, len);
        }
    }
}
