//! A guest that accesses its e1000 in any way, at any time, over rings, buffers and a status block
//! of any content, while frames come in, batches are lent and processes die: nothing panics or
//! loops, every frame is accounted for, and a reset heals the NIC.
//!
//! The first byte of the input picks the chip and its options; then come steps of 13 bytes: what to
//! do, where (u32), and a value (u64). With the option of much memory, rings may be as long as
//! there are.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nic::device::{DeviceConfig, InterruptMode, Model};
use nic::e1000::{self, Chip, Registers, TABLE};
use nic::most_descriptors;
use port::{MapGuard, Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};
use toklat_fuzz::{deliver, device_config, guest_memory, reading, steps};

/// Steps of an input that are carried out.
const STEPS: usize = 512;
const MEMORY: usize = 0x2_0000;
const MUCH_MEMORY: usize = 0x40_0000;
/// Descriptors that a frame may have read.
const MAX_SENT: u64 = 256;
const MAX_RECEIVED: u64 = 128;
const BLOCK: u32 = 0x1000;
const TX: u32 = 0x2000;
const RX: u32 = 0x3000;
const BUFFERS: u64 = 0x8000;
const DESCRIPTORS: u32 = 16;
/// Registers that decide what other registers mean.
const HOT: [u32; 16] = [
    0x0000, 0x0018, 0x00d0, 0x0100, 0x0400, 0x2170, 0x2808, 0x2810, 0x2818, 0x2820, 0x2830, 0x3808,
    0x3810, 0x3818, 0x3918, 0x5008,
];

struct Guest {
    chip: Chip,
    memory: Arc<GuestMemory>,
    registers: Shared<Registers>,
    config: DeviceConfig,
    model: Model,
    now: Nanos,
    /// The transmit queue that lent frames, and how many.
    lent: (usize, usize),
    handed: u64,
    scratch: Scratch,
}

impl Guest {
    fn new(options: u8) -> Self {
        let size = if options & 8 == 0 { MEMORY } else { MUCH_MEMORY };
        let mapping = Mapping::private(size).expect("memory");
        // The two ranges are adjacent only in the guest's addresses.
        let memory = guest_memory(&mapping, [size / 2, 0]);
        let registers: Shared<Registers> = Shared::private().expect("memory");
        let chip = if options & 1 == 0 { Chip::Em82540 } else { Chip::L82574 };
        let config = device_config(&memory, 2, options & 2 != 0, options & 4 != 0);
        let model = e1000::model(chip, registers.clone(), config.clone());
        let (now, scratch) = (Nanos(1), Scratch::new(64));
        let mut guest =
            Self { chip, memory, registers, config, model, now, lent: (0, 0), handed: 0, scratch };
        guest.bring_up();
        guest
    }

    /// Brings the NIC up as a driver does that finds it in an arbitrary state.
    fn bring_up(&mut self) {
        self.model.device.set_bus_master(true);
        self.model.device.set_link(true, self.now);
        self.set(0x2834, 0);
        self.set(0x2830, 0);
        self.set(0x0000, 1 << 26);
        // The reset ends loopback.
        self.set(0x0020, 1 << 26 | 1 << 21 | 0x1140);
        for (base, ring) in [(0x3800, TX), (0x2800, RX)] {
            self.set(base + 8, 16 * DESCRIPTORS);
            self.set(base + 4, 0);
            self.set(base, ring);
            self.set(base + 0x10, 0);
            self.set(base + 0x18, 0);
        }
        for i in 0..DESCRIPTORS {
            self.poke(RX + 16 * i, BUFFERS + 0x800 * u64::from(i));
            self.poke(RX + 16 * i + 8, 0);
        }
        self.set(0x0400, 1 << 1);
        self.set(0x0100, 1 << 1 | 1 << 15);
        self.set(0x2818, DESCRIPTORS - 1);
        self.set(0x00d0, 0x1f6_00ff);
    }

    fn poke(&self, at: u32, value: u64) {
        if let Some(window) = self.memory.bytes(at.into(), 8) {
            window.write(0, value.to_le());
        }
    }

    /// Fills a ring with descriptors. A frame ends after each `every` descriptors, or never.
    fn fill(&self, at: u32, value: u64) {
        const EOP: u64 = 1 << 24;
        let (from, every) = (at & 0x1f_fff0, u64::from(at >> 24));
        for n in 0..0x1_0000u64 {
            let Some(window) = self.memory.bytes(u64::from(from) + 16 * n, 16) else { break };
            let ends = every > 0 && n % every == every - 1;
            let second = if ends { value | EOP } else { value & !EOP };
            window.write(0, [(value >> 40) << 8, second & 0xff_ffff_ffff].map(u64::to_le));
        }
    }

    fn set(&self, at: u32, value: u32) {
        self.model.device.write(0, at.into(), &value.to_le_bytes(), self.now);
    }

    fn gather(&mut self, queue: usize, max: usize) {
        if self.lent.1 > 0 {
            return;
        }
        let queue = queue % self.model.transmit.len();
        self.scratch.clear();
        let (transmit, scratch) = (&mut self.model.transmit[queue], &mut self.scratch);
        // Frames that are looped back are not in the batch: they are 64 KiB, and one more frame.
        let most = |frames: &(usize, u64)| {
            most_descriptors(frames.0, frames.1 as usize + 0x2_0100) + MAX_SENT
        };
        let (frames, _) = reading(most, || {
            let frames = transmit.gather(scratch, max, self.now);
            (frames, scratch.bytes())
        });
        assert!(frames <= max.min(64));
        self.lent = (queue, frames);
        // SAFETY: the guest's memory and the model outlive the scratch's use.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
    }

    fn give_back(&mut self, frames: usize) {
        let (queue, lent) = &mut self.lent;
        let frames = frames.min(*lent);
        *lent -= frames;
        self.model.transmit[*queue].complete(frames);
        let _ = self.model.transmit[*queue].settle(self.now);
    }

    fn deliver(&mut self, queue: usize, count: usize, len: usize, lossless: bool) {
        let egress = &*self.model.receive[queue % self.model.receive.len()];
        let most = MAX_RECEIVED * (count as u64 + 1) + 64 * count as u64;
        let finished = reading(|_| most, || deliver(egress, (count, len), lossless, self.now));
        assert!(lossless || finished == count);
        self.handed += finished as u64;
    }

    fn step(&mut self, what: u8, at: u32, value: u64) {
        let (low, high) = (at as u16, (at >> 16) as u16);
        match what % 16 {
            0 | 1 => self.set(HOT[usize::from(low) % HOT.len()], value as u32),
            2 => {
                let row = &TABLE[usize::from(low) % TABLE.len()];
                self.set(row.at + 4 * u32::from(high % row.count), value as u32);
            }
            3 => {
                let len = [0, 1, 2, 3, 4, 8][usize::from(high) % 6];
                let bytes = &value.to_le_bytes()[..len];
                self.model.device.write(usize::from(high >> 13), at.into(), bytes, self.now);
            }
            4 => {
                let mut data = [0; 8];
                let len = usize::from(high) % 9;
                let at = u64::from(low) * 4 + u64::from(high >> 14);
                self.model.device.read(0, at, &mut data[..len], self.now);
            }
            5 if what & 0x80 != 0 => self.fill(at, value),
            5 => self.poke(at % MEMORY as u32, value),
            6 => self.poke(TX + u32::from(low % 0x200) * 8, value),
            7 => self.poke(RX + u32::from(low % 0x200) * 8, value),
            8 => self.poke(BLOCK + u32::from(low % 0x200) * 8, value % 32),
            9 => self.gather(high.into(), usize::from(low) % 65),
            10 => self.give_back(low.into()),
            11 => {
                let (count, len) = (usize::from(low) % 16, value as usize % 9000);
                self.deliver(high.into(), count, len, value >> 63 != 0);
            }
            12 => self.now = self.now + value % 4_000_000,
            13 => {
                let _ = self.model.transmit[0].arm();
                let _ = self.model.transmit[0].deadline();
                self.model.transmit[0].disarm();
            }
            14 => match low % 4 {
                0 => self.model.device.set_link(high & 1 == 1, self.now),
                1 => self.model.device.set_bus_master(high & 3 != 0),
                2 => self.model.device.reset(self.now),
                _ => {
                    let modes = [InterruptMode::Pin, InterruptMode::Msi, InterruptMode::Msix];
                    self.model.device.set_interrupt_mode(modes[usize::from(high) % 3]);
                }
            },
            _ if low & 1 == 1 => self.bring_up(),
            _ => {
                self.lent = (0, 0);
                let registers = self.registers.clone();
                self.model = e1000::model(self.chip, registers, self.config.clone());
            }
        }
    }

    fn check(&self) {
        let interrupt = self.model.device.interrupt(self.now);
        assert!(interrupt.due.is_none_or(|due| due > self.now), "it would be asked for ever");
        let counted = self.config.egress.iter().map(|egress| {
            egress.frames.get() + egress.drops.iter().map(|drops| drops.get()).sum::<u64>()
        });
        assert_eq!(counted.sum::<u64>(), self.handed);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let mut guest = Guest::new(*first);
    for (what, at, value) in steps(rest).take(STEPS) {
        guest.step(what, at, value);
        guest.check();
    }
    guest.give_back(usize::MAX);
    guest.bring_up();
    let frames = guest.config.egress[0].frames.get();
    guest.deliver(0, 1, 60, false);
    assert_eq!(guest.config.egress[0].frames.get(), frames + 1);
    // A whole frame is sent by a legacy descriptor.
    guest.now = guest.now + 1_000_000_000;
    guest.poke(TX, BUFFERS);
    guest.poke(TX + 8, 0x0900_0040);
    guest.set(0x3818, 1);
    guest.gather(0, 64);
    assert_eq!(guest.lent, (0, 1));
});
