//! A guest that accesses its PCnet in any way, at any time, over rings and buffers of any content,
//! while frames come in: nothing panics or loops, every frame is accounted for, and a reset heals
//! the chip.
//!
//! The first byte of the input picks the chip; then come steps of 9 bytes: what to do, where (u32),
//! and a value (u32). With the option of much memory, rings may be as long as there are.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nic::device::{DeviceConfig, Model};
use nic::pcnet::{self, Chip, Registers};
use port::{EgressCounters, MapGuard, Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};
use toklat_fuzz::{MAC, deliver, device_config, guest_memory, reading};

/// Steps of an input that are carried out.
const STEPS: usize = 512;
const MEMORY: usize = 0x2_0000;
const MUCH_MEMORY: usize = 0x40_0000;
/// Descriptors that a frame may have read.
const MAX_SENT: usize = 128;
const MAX_RECEIVED: usize = 64;
/// The most descriptors that a turn finishes or skips without the switch.
const MAX_ABSORBED: usize = 256;
const INIT: u32 = 0x400;
const RX: u32 = 0x1000;
const TX: u32 = 0x2000;

struct Guest {
    chip: Chip,
    memory: Arc<GuestMemory>,
    registers: Shared<Registers>,
    config: DeviceConfig,
    model: Model,
    now: Nanos,
    lent: usize,
    delivered: u64,
    scratch: Scratch,
}

impl Guest {
    fn new(chip: Chip, combining: bool, size: usize) -> Self {
        let mapping = Mapping::private(size).expect("memory");
        // One behind the other in the guest only.
        let memory = guest_memory(&mapping, [size / 2, 0]);
        let registers: Shared<Registers> = Shared::private().expect("memory");
        let config = device_config(&memory, 1, combining, true);
        let model = pcnet::model(chip, registers.clone(), config.clone());
        let (now, scratch) = (Nanos(1), Scratch::new(64));
        let mut guest =
            Self { chip, memory, registers, config, model, now, lent: 0, delivered: 0, scratch };
        guest.bring_up();
        guest
    }

    fn bring_up(&mut self) {
        self.model.device.reset(self.now);
        self.model.device.set_bus_master(true);
        self.model.device.set_link(true, self.now);
        let mut block = [0; 28];
        (block[2], block[3]) = (0x30, 0x30);
        block[4..10].copy_from_slice(&MAC.octets());
        block[20..24].copy_from_slice(&RX.to_le_bytes());
        block[24..28].copy_from_slice(&TX.to_le_bytes());
        self.write(INIT, &block);
        self.set_bcr(20, 2);
        self.set_csr(1, INIT as u16);
        self.set_csr(2, 0);
        self.set_csr(0, 0x43);
    }

    fn write(&self, at: u32, bytes: &[u8]) {
        if let Some(window) = self.memory.bytes(at.into(), bytes.len() as u32) {
            window.copy_in(bytes);
        }
    }

    /// Fills a ring with descriptors of software style 2. A frame begins after each `every`
    /// descriptors; its end may be missing.
    fn fill(&self, at: u32, value: u32) {
        let (from, every, endless) = (at & 0xf_fff0, at >> 24 & 0x7f, at >> 31 != 0);
        for n in 0..0x1_0000u32 {
            let Some(window) = self.memory.bytes(u64::from(from + 16 * n), 16) else { break };
            let place = |of: u32| every > 0 && n % every == of;
            let end = !endless && place(every.wrapping_sub(1));
            let ends = u32::from(place(0)) << 25 | u32::from(end) << 24;
            window.write(0, [0x8000, value & 0x7cff_ffff | 1 << 31 | ends, 0, 0].map(u32::to_le));
        }
    }

    fn access(&self, at: u64, data: &[u8]) {
        self.model.device.write((at >> 32) as usize & 1, at & 0x3f, data, self.now);
    }

    fn set_csr(&self, number: u16, value: u16) {
        self.access(0x12, &number.to_le_bytes());
        self.access(0x10, &value.to_le_bytes());
    }

    fn set_bcr(&self, number: u16, value: u16) {
        self.access(0x12, &number.to_le_bytes());
        self.access(0x16, &value.to_le_bytes());
    }

    fn gather(&mut self, max: usize) {
        if self.lent > 0 {
            return;
        }
        self.scratch.clear();
        let (transmit, scratch) = (&mut self.model.transmit[0], &mut self.scratch);
        let most = (max.min(64) + 1) * (MAX_SENT + 1) + 2 * MAX_ABSORBED;
        self.lent = reading(|_| most as u64, || transmit.gather(scratch, max, self.now));
        assert!(self.lent <= max.min(64));
        // SAFETY: the guest's memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
    }

    fn deliver(&mut self, count: usize, len: usize, lossless: bool) {
        let egress = &*self.model.receive[0];
        let most = (count * (MAX_RECEIVED + 1)) as u64;
        let finished = reading(|_| most, || deliver(egress, (count, len), lossless, self.now));
        self.delivered += finished as u64;
    }

    fn step(&mut self, what: u8, at: u32, value: u32) {
        let (low, high) = (at as u16, (at >> 16) as u16);
        let bytes = value.to_le_bytes();
        match what % 16 {
            0 => self.set_csr(low & 0x7f, value as u16),
            1 => self.set_csr([0, 3, 4, 5, 15, 96, 97, 98, 99][usize::from(low) % 9], value as u16),
            2 => self.set_bcr(low & 0x3f, value as u16),
            3 => self.access(u64::from(at) << 16, &bytes[..[1, 2, 4][usize::from(high) % 3]]),
            4 => {
                let mut data = [0; 8];
                let len = usize::from(high) % 9;
                self.model.device.read(0, u64::from(low & 0x3f), &mut data[..len], self.now);
            }
            5 if what & 0x80 != 0 => self.fill(at, value),
            5 => self.write(at % MEMORY as u32, &bytes),
            6 | 7 => {
                // A descriptor of software style 2.
                let ring = if what & 1 == 0 { RX } else { TX };
                let place = ring + 16 * u32::from(high & 7);
                let words = [value, u32::from(low) | 0x8300_0000 ^ (at & 0x0300_0000), 0, 0];
                let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.write(place, &words);
            }
            8 => self.gather(usize::from(low) % 65),
            9 => {
                self.model.transmit[0].complete(std::mem::take(&mut self.lent));
                let _ = self.model.transmit[0].settle(self.now);
            }
            10 => self.deliver(usize::from(low) % 16, value as usize % 9000, high & 1 == 1),
            11 => self.now = self.now + u64::from(value % 4_000_000),
            12 => {
                self.model.transmit[0].arm();
                self.model.transmit[0].deadline();
            }
            13 => self.model.device.set_link(low & 1 == 1, self.now),
            14 => {
                self.lent = 0;
                self.model = pcnet::model(self.chip, self.registers.clone(), self.config.clone());
            }
            _ if low & 1 == 1 => self.bring_up(),
            _ => self.model.device.set_bus_master(high & 3 != 0),
        }
    }

    fn check(&self) {
        let egress: &EgressCounters = &self.config.egress[0];
        let dropped: u64 = egress.drops.iter().map(|drops| drops.get()).sum();
        assert_eq!(egress.frames.get() + dropped, self.delivered);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, steps)) = data.split_first() else { return };
    let chip = if first & 1 == 0 { Chip::Am79C970A } else { Chip::Am79C973 };
    let memory = if first & 4 == 0 { MEMORY } else { MUCH_MEMORY };
    let mut guest = Guest::new(chip, first & 2 != 0, memory);
    for step in steps.chunks_exact(9).take(STEPS) {
        let word = |at: usize| u32::from_le_bytes(step[at..at + 4].try_into().expect("four"));
        guest.step(step[0], word(1), word(5));
        let _ = guest.model.device.interrupt(guest.now);
        guest.check();
    }
    guest.model.transmit[0].complete(guest.lent);
    guest.lent = 0;
    guest.bring_up();
    guest.write(RX, &[0, 0x80, 0, 0, 0, 0xf8, 0, 0x80]);
    let frames = guest.config.egress[0].frames.get();
    guest.deliver(1, 60, false);
    assert_eq!(guest.config.egress[0].frames.get(), frames + 1);
});
