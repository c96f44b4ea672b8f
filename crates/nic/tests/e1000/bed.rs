//! A guest in the test's own memory with one NIC, a minimal driver, and a switch that only
//! forwards.

use std::sync::Arc;

use nic::device::{DeviceConfig, Interrupt, Model};
use nic::e1000::{self, Chip, Registers};
use port::{
    Counter, Egress, EgressCounters, FrameIdx, IngressCounters, Limits, Mac, MapGuard, Nanos,
    Offload, Scratch,
};
use shmem::{Bytes, GuestMemory, Mapping, Shared};

pub const MAC: Mac = Mac::new([0x52, 0x54, 0, 1, 2, 3]);
pub const LIMITS: Limits = Limits { max_frame: 0x1_0000, lossless: false };
pub const TX_AT: u64 = 0x1_0000;
pub const RX_AT: u64 = 0x2_0000;
pub const TX_BUFFERS: u64 = 0x10_0000;
pub const RX_BUFFERS: u64 = 0x80_0000;
pub const BUFFER: u64 = 0x4000;
pub const MEMORY: u64 = 0x100_0000;

pub mod reg {
    pub const CTRL: u64 = 0x0000;
    pub const STATUS: u64 = 0x0008;
    pub const EERD: u64 = 0x0014;
    pub const CTRL_EXT: u64 = 0x0018;
    pub const MDIC: u64 = 0x0020;
    pub const ICR: u64 = 0x00c0;
    pub const ITR: u64 = 0x00c4;
    pub const ICS: u64 = 0x00c8;
    pub const IMS: u64 = 0x00d0;
    pub const IMC: u64 = 0x00d8;
    pub const EIAC: u64 = 0x00dc;
    pub const IAM: u64 = 0x00e0;
    pub const IVAR: u64 = 0x00e4;
    pub const EITR: u64 = 0x00e8;
    pub const RCTL: u64 = 0x0100;
    pub const TCTL: u64 = 0x0400;
    pub const RDBAL: u64 = 0x2800;
    pub const RDBAH: u64 = 0x2804;
    pub const RDLEN: u64 = 0x2808;
    pub const RDH: u64 = 0x2810;
    pub const RDT: u64 = 0x2818;
    pub const RDTR: u64 = 0x2820;
    pub const RADV: u64 = 0x282c;
    pub const CSBAL: u64 = 0x2830;
    pub const CSBAH: u64 = 0x2834;
    pub const TDBAL: u64 = 0x3800;
    pub const TDBAH: u64 = 0x3804;
    pub const TDLEN: u64 = 0x3808;
    pub const TDH: u64 = 0x3810;
    pub const TDT: u64 = 0x3818;
    pub const TIDV: u64 = 0x3820;
    pub const TADV: u64 = 0x382c;
    pub const RXCSUM: u64 = 0x5000;
    pub const RFCTL: u64 = 0x5008;
    pub const MTA: u64 = 0x5200;
    pub const RAL: u64 = 0x5400;
    pub const VFTA: u64 = 0x5600;
    pub const MRQC: u64 = 0x5818;
    pub const RETA: u64 = 0x5c00;
}

pub const RXT0: u32 = 1 << 7;
pub const TXDW: u32 = 1;
pub const LSC: u32 = 1 << 2;

/// RCTL: on, broadcast, no check sequence in lengths; 2,048 bytes a buffer.
pub const RCTL_ON: u32 = 1 << 1 | 1 << 15 | 1 << 26;
/// Second word of a legacy transmit descriptor: whole frame, report.
pub const EOP_RS: u64 = 1 << 24 | 1 << 27;

/// A guest and its NIC.
pub struct Bed {
    pub chip: Chip,
    pub memory: Arc<GuestMemory>,
    pub registers: Shared<Registers>,
    pub config: DeviceConfig,
    pub model: Model,
    pub scratch: Scratch,
    pub now: Nanos,
    pub tx_size: u32,
    pub rx_size: u32,
    pub tx_next: u32,
    pub rx_next: u32,
    pub rx_tail: u32,
}

impl Bed {
    pub fn new(chip: Chip) -> Self {
        Self::with(chip, |_| ())
    }

    pub fn with(chip: Chip, change: impl FnOnce(&mut DeviceConfig)) -> Self {
        let mapping = Mapping::private(MEMORY as usize).unwrap();
        let memory = Arc::new(GuestMemory::of(mapping, 0).unwrap());
        let mut config = DeviceConfig::alone(Arc::clone(&memory), MAC, 2).unwrap();
        change(&mut config);
        let registers: Shared<Registers> = Shared::private().unwrap();
        let model = e1000::model(chip, registers.clone(), config.clone());
        model.device.set_bus_master(true);
        Self {
            chip,
            memory,
            registers,
            config,
            model,
            scratch: Scratch::new(64),
            now: Nanos(1_000_000),
            tx_size: 0,
            rx_size: 0,
            tx_next: 0,
            rx_next: 0,
            rx_tail: 0,
        }
    }

    /// Makes a new model over the registers, as a new process does.
    pub fn remake(&mut self) {
        self.model = e1000::model(self.chip, self.registers.clone(), self.config.clone());
    }

    pub fn read(&self, at: u64) -> u32 {
        let mut data = [0; 4];
        self.model.device.read(0, at, &mut data, self.now);
        u32::from_le_bytes(data)
    }

    pub fn write(&self, at: u64, value: u32) {
        self.model.device.write(0, at, &value.to_le_bytes(), self.now);
    }

    pub fn interrupt(&self) -> Interrupt {
        self.model.device.interrupt(self.now)
    }

    pub fn ingress(&self) -> &IngressCounters {
        &self.config.ingress
    }

    pub fn egress(&self) -> &EgressCounters {
        &self.config.egress[0]
    }

    pub fn word(&self, at: u64) -> u64 {
        u64::from_le(self.memory.bytes(at, 8).unwrap().read(0).unwrap())
    }

    pub fn set_word(&self, at: u64, value: u64) {
        assert!(self.memory.bytes(at, 8).unwrap().write(0, value.to_le()));
    }

    pub fn set_bytes(&self, at: u64, bytes: &[u8]) {
        self.memory.bytes(at, bytes.len() as u32).unwrap().copy_in(bytes);
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        self.memory.bytes(at, len as u32).unwrap().to_vec()
    }

    /// Starts with rings of this many descriptors. All receive buffers but one are available, and
    /// everything is on.
    pub fn start(&mut self, tx: u32, rx: u32) {
        self.start_transmit(tx);
        self.start_receive(rx, RCTL_ON);
        self.write(reg::IMS, RXT0 | TXDW | LSC);
        let _ = self.read(reg::ICR);
    }

    pub fn start_transmit(&mut self, size: u32) {
        (self.tx_size, self.tx_next) = (size, 0);
        self.write(reg::TDLEN, 16 * size);
        self.write(reg::TDBAH, 0);
        self.write(reg::TDBAL, TX_AT as u32);
        self.write(reg::TDH, 0);
        self.write(reg::TDT, 0);
        self.write(reg::TCTL, 1 << 1 | 1 << 3);
    }

    pub fn start_receive(&mut self, size: u32, rctl: u32) {
        (self.rx_size, self.rx_next) = (size, 0);
        self.write(reg::RDLEN, 16 * size);
        self.write(reg::RDBAH, 0);
        self.write(reg::RDBAL, RX_AT as u32);
        self.write(reg::RDH, 0);
        self.write(reg::RDT, 0);
        for i in 0..u64::from(size) {
            self.set_word(RX_AT + 16 * i, RX_BUFFERS + BUFFER * i);
            self.set_word(RX_AT + 16 * i + 8, 0);
        }
        self.write(reg::RCTL, rctl);
        self.rx_tail = size - 1;
        self.write(reg::RDT, size - 1);
    }

    /// Writes a transmit descriptor.
    pub fn describe(&mut self, first: u64, second: u64) {
        let at = TX_AT + 16 * u64::from(self.tx_next);
        self.set_word(at, first);
        self.set_word(at + 8, second);
        self.tx_next = (self.tx_next + 1) % self.tx_size;
    }

    /// The buffer of the next transmit descriptor.
    pub fn tx_buffer(&self) -> u64 {
        TX_BUFFERS + BUFFER * u64::from(self.tx_next % 256)
    }

    /// Puts a frame into one legacy descriptor, without the doorbell.
    pub fn put(&mut self, frame: &[u8]) {
        let at = self.tx_buffer();
        self.set_bytes(at, frame);
        self.describe(at, EOP_RS | frame.len() as u64);
    }

    pub fn doorbell(&self) {
        self.write(reg::TDT, self.tx_next);
    }

    pub fn send(&mut self, frame: &[u8]) {
        self.put(frame);
        self.doorbell();
    }

    pub fn is_done(&self, descriptor: u32) -> bool {
        self.word(TX_AT + 16 * u64::from(descriptor) + 8) >> 32 & 1 != 0
    }

    /// Gathers whole frames with their requests, and gives everything back.
    pub fn gather(&mut self) -> Vec<(Vec<u8>, Offload)> {
        let (frames, kick) = self.gather_from(0);
        let _ = kick;
        frames
    }

    pub fn gather_from(&mut self, queue: usize) -> (Vec<(Vec<u8>, Offload)>, bool) {
        self.scratch.clear();
        let ingress = &mut self.model.transmit[queue];
        let count = ingress.gather(&mut self.scratch, 64, self.now);
        assert_eq!(count, self.scratch.len());
        if count == 0 {
            return (Vec::new(), false);
        }
        // SAFETY: the guest's memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
        let batch = self.scratch.batch(&map);
        let frames = (0..count as FrameIdx).map(|i| {
            let mut frame = vec![0; batch.frame(i).len()];
            assert_eq!(batch.copy_frame(i, Bytes::of(&mut frame)), frame.len());
            (frame, batch.offload(i))
        });
        let frames = frames.collect();
        ingress.complete(count);
        (frames, ingress.settle(self.now).kick)
    }

    /// Delivers frames. Returns how many are finished, and whether a thread must ask for
    /// interrupts.
    pub fn deliver(&mut self, frames: &[Vec<u8>]) -> (usize, bool) {
        self.deliver_to(0, frames, LIMITS, Offload::NONE)
    }

    pub fn deliver_to(
        &mut self,
        queue: usize,
        frames: &[Vec<u8>],
        limits: Limits,
        offload: Offload,
    ) -> (usize, bool) {
        let mut frames = frames.to_vec();
        self.scratch.clear();
        for frame in &mut frames {
            self.scratch.push(Bytes::of(frame).span());
            if offload != Offload::NONE {
                self.scratch.set_offload(offload);
            }
        }
        // SAFETY: `frames` outlives the batch.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
        let list: Vec<FrameIdx> = (0..frames.len() as FrameIdx).collect();
        let egress: &dyn Egress = &*self.model.receive[queue];
        let finished = egress.deliver(&self.scratch.batch(&map), &list, limits).finished;
        (finished, egress.settle(self.now).kick)
    }

    /// The next frame received by legacy descriptors of one buffer each: its bytes, status and tag.
    /// Gives its buffer back.
    pub fn receive(&mut self) -> Option<(Vec<u8>, u8, u16)> {
        let (mut bytes, mut status, mut tag) = (Vec::new(), 0, 0);
        while status & 2 == 0 {
            let at = RX_AT + 16 * u64::from(self.rx_next);
            let second = self.word(at + 8);
            status = (second >> 32) as u8;
            if status & 1 == 0 {
                assert!(bytes.is_empty(), "a frame without an end");
                return None;
            }
            bytes.extend(self.bytes(self.word(at), (second & 0xffff) as usize));
            tag = (second >> 48) as u16;
            self.set_word(at + 8, 0);
            self.rx_next = (self.rx_next + 1) % self.rx_size;
            self.rx_tail = (self.rx_tail + 1) % self.rx_size;
        }
        self.write(reg::RDT, self.rx_tail);
        Some((bytes, status, tag))
    }
}

/// A frame to the NIC's own address.
pub fn frame(len: usize, seed: u8) -> Vec<u8> {
    frame_to(MAC, len, seed)
}

pub fn frame_to(to: Mac, len: usize, seed: u8) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (i * 7) as u8 ^ seed).collect();
    frame[..6].copy_from_slice(&to.octets());
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, seed]);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

pub fn drops(counters: &[Counter], reason: port::DropReason) -> u64 {
    counters[reason as usize].get()
}
