//! A NIC with its driver, and the switch's side of it, in one thread and with its own clock.
#![allow(unsafe_code, reason = "what is lent lives as long as the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use card::Direct;
use driver::e1000::{Config, E1000Driver, Interrupts, Request};
use driver::{Dma, Trapping, Traps};
use frame::{Mac, Offload};
use nic::device::{Combining, DeviceConfig, InterruptMode, Model};
use nic::e1000::{self, Chip, Registers};
use port::{Delivered, FrameIdx, Limits, MapGuard, Nanos, Scratch};
use shmem::{Bytes, GuestMemory, Mapping, Shared};

pub const CHIPS: [Chip; 2] = [Chip::Em82540, Chip::L82574];
/// Where the driver's memory begins, as the device addresses it.
pub const BASE: u64 = 0x1_0000_0000;
pub const MEMORY: usize = 16 << 20;
const LIMITS: Limits = Limits { max_frame: 0x1_0000, lossless: false };

pub type Clock = Box<dyn FnMut() -> Nanos + Send>;
pub type Registered = Trapping<Direct<Clock>, fn() -> u64>;

/// A frame as a switch sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub bytes: Vec<u8>,
    pub offload: Offload,
}

pub struct Bench {
    pub registers: Shared<Registers>,
    pub device_config: DeviceConfig,
    pub model: Option<Model>,
    pub driver: E1000Driver<Registered>,
    pub mapping: Arc<Mapping>,
    clock: Arc<AtomicU64>,
    chip: Chip,
    scratch: Scratch,
    /// True while the worker waits for a doorbell.
    pub asleep: bool,
    /// The number of doorbells when the worker was last woken.
    heard: u64,
    /// How often the worker was woken.
    pub woken: u64,
    pub interrupts: u64,
}

pub fn mac() -> Mac {
    Mac::new([0x02, 0x13, 0x35, 0x57, 0x79, 0x9b])
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251 + seed * 13) as u8).collect();
    frame[..6].copy_from_slice(&mac().octets());
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, seed as u8]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

/// Memory of a guest, and a NIC's configuration over it.
fn guest(combining: Option<Combining>) -> (Arc<Mapping>, DeviceConfig) {
    let mapping = Mapping::private(MEMORY).unwrap();
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), BASE).unwrap());
    let config =
        DeviceConfig { combining, csb: true, ..DeviceConfig::alone(memory, mac(), 2).unwrap() };
    (mapping, config)
}

/// A model that a driver can bring up.
fn make(config: &Config, registers: &Shared<Registers>, device: &DeviceConfig) -> Model {
    let model = e1000::model(config.chip, registers.clone(), device.clone());
    model.device.set_bus_master(true);
    model.device.set_interrupt_mode(match config.interrupts {
        Interrupts::Msix => InterruptMode::Msix,
        _ => InterruptMode::Pin,
    });
    model
}

/// A single model, and its guest's memory.
pub fn plug(config: &Config) -> (Model, Arc<Mapping>) {
    let (mapping, device_config) = guest(None);
    (make(config, &Shared::private().unwrap(), &device_config), mapping)
}

impl Bench {
    pub fn new(config: Config) -> Self {
        Self::with(config, None)
    }

    pub fn with(config: Config, combining: Option<Combining>) -> Self {
        let (mapping, device_config) = guest(combining);
        let registers = Shared::private().unwrap();
        let model = make(&config, &registers, &device_config);
        let chip = config.chip;
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let read = Arc::clone(&clock);
        let now: Clock = Box::new(move || Nanos(read.load(Ordering::Relaxed)));
        let regs: Registered = Trapping::new(Direct::new(Arc::clone(&model.device), now), 0, || 0);
        let mut dma = Dma::new(Arc::clone(&mapping), 0, MEMORY, BASE).unwrap();
        let driver = E1000Driver::new(regs, &mut dma, config).expect("it comes up");
        let (model, scratch) = (Some(model), Scratch::new(64));
        let mut bench = Self {
            registers,
            device_config,
            model,
            driver,
            mapping,
            clock,
            chip,
            scratch,
            asleep: false,
            heard: 0,
            woken: 0,
            interrupts: 0,
        };
        bench.heard = bench.traps().doorbells;
        bench
    }

    pub fn now(&self) -> Nanos {
        Nanos(self.clock.load(Ordering::Relaxed))
    }

    pub fn wait(&self, nanos: u64) {
        self.clock.fetch_add(nanos, Ordering::Relaxed);
    }

    pub fn traps(&mut self) -> Traps {
        self.driver.regs().traps()
    }

    fn model(&mut self) -> &mut Model {
        self.model.as_mut().expect("a model")
    }

    /// Kills the data process, and starts a successor.
    pub fn die(&mut self) {
        self.model = None;
        let model = e1000::model(self.chip, self.registers.clone(), self.device_config.clone());
        self.driver.regs().inner().replace(Arc::clone(&model.device));
        self.model = Some(model);
        self.asleep = false;
    }

    /// Takes at most one batch of sent frames, and gives it back if `completes`.
    pub fn gather_batch(&mut self, completes: bool) -> Vec<Seen> {
        self.gather_up_to(64, completes)
    }

    /// Like [`gather_batch`](Self::gather_batch), at most `max` frames.
    pub fn gather_up_to(&mut self, max: usize, completes: bool) -> Vec<Seen> {
        let now = self.now();
        let (model, scratch) = (self.model.as_mut().expect("a model"), &mut self.scratch);
        let mut seen = Vec::new();
        for queue in &mut model.transmit {
            scratch.clear();
            let gathered = queue.gather(scratch, max, now);
            // SAFETY: the memory outlives the scratch's use.
            let map = unsafe { MapGuard::assume_mapped() };
            scratch.judge_requests(&map, &mut [false; 64], false, |_, len| len > 0);
            let batch = scratch.batch(&map);
            for i in 0..gathered as FrameIdx {
                let mut bytes = vec![0; batch.frame(i).len()];
                batch.copy_frame(i, Bytes::of(&mut bytes));
                seen.push(Seen { bytes, offload: batch.offload(i) });
            }
            if completes {
                queue.complete(gathered);
                fence(Ordering::SeqCst);
                let _ = queue.settle(now);
            }
        }
        seen
    }

    /// Takes all sent frames.
    pub fn gather(&mut self) -> Vec<Seen> {
        let mut all = Vec::new();
        loop {
            let batch = self.gather_batch(true);
            if batch.is_empty() {
                return all;
            }
            all.extend(batch);
        }
    }

    /// A worker that sleeps when idle, and that only doorbells wake. Returns what it takes.
    pub fn work(&mut self) -> Vec<Seen> {
        let doorbells = self.traps().doorbells;
        if self.asleep && doorbells == self.heard {
            return Vec::new();
        }
        if self.asleep {
            self.woken += 1;
            self.model().transmit.iter_mut().for_each(|queue| queue.disarm());
        }
        let mut all = Vec::new();
        loop {
            all.extend(self.gather());
            let armed = self.model().transmit.iter_mut().all(|queue| !queue.arm());
            if armed {
                self.asleep = true;
                self.heard = self.traps().doorbells;
                return all;
            }
        }
    }

    /// Hands frames to the NIC's first receive queue.
    pub fn deliver(&mut self, frames: &[(Vec<u8>, Offload)]) {
        let now = self.now();
        for chunk in frames.chunks(64) {
            let mut copies: Vec<Vec<u8>> = chunk.iter().map(|(bytes, _)| bytes.clone()).collect();
            self.scratch.clear();
            for (copy, (_, offload)) in copies.iter_mut().zip(chunk) {
                self.scratch.push(Bytes::of(copy).span());
                self.scratch.set_offload(*offload);
            }
            // SAFETY: the copies live until the batch is delivered.
            let map = unsafe { MapGuard::assume_mapped() };
            self.scratch.judge(&map, &mut [(); 64], |_, _| ());
            let list: Vec<FrameIdx> = (0..chunk.len() as FrameIdx).collect();
            let queue = &self.model.as_ref().expect("a model").receive[0];
            let Delivered { finished } = queue.deliver(&self.scratch.batch(&map), &list, LIMITS);
            assert_eq!(finished, chunk.len(), "a lossy port finishes all");
            fence(Ordering::SeqCst);
            let _ = queue.settle(now);
        }
    }

    pub fn deliver_plain(&mut self, frames: &[Vec<u8>]) {
        let frames: Vec<_> = frames.iter().map(|frame| (frame.clone(), Offload::NONE)).collect();
        self.deliver(&frames);
    }

    /// The frames that the driver finds by polling, without interrupts.
    pub fn poll(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.driver.receive(usize::MAX, |frame| frames.push(frame.to_vec()));
        frames
    }

    /// Raises interrupts until there are none left, as a bus does. The driver checks everything
    /// each time. Returns what it received.
    pub fn interrupt(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for _ in 0..100 {
            let now = self.now();
            let raised = self.model().device.interrupt(now);
            if raised.vectors == 0 {
                return frames;
            }
            self.interrupts += 1;
            self.driver.interrupt(raised.vectors);
            self.driver.reclaim();
            loop {
                frames.extend(self.poll());
                if !self.driver.wait_for_frames() {
                    break;
                }
            }
            self.driver.rearm();
        }
        panic!("the interrupt never goes away");
    }

    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.driver.send(frame, &Request::default())
    }

    pub fn fault(&mut self) -> Option<&'static str> {
        self.model().device.fault()
    }
}
