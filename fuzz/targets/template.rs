//! A guest that accesses the one-access NIC in any way, at any time, while frames come in: nothing
//! panics, every frame is accounted for, every state that accesses make can be taken over, and a
//! reset heals the device.
//!
//! Steps of 13 bytes: what to do, where (u32), and a value (u64).
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nic::device::{DeviceConfig, Model};
use nic::template::{self, AREA, Registers, reg};
use port::{EgressCounters, MapGuard, Nanos, Scratch};
use shmem::{Mapping, Shared};
use toklat_fuzz::{deliver, device_config, guest_memory, steps};

const STEPS: usize = 512;
const MEMORY: usize = 2 * AREA as usize;

struct Guest {
    registers: Shared<Registers>,
    config: DeviceConfig,
    model: Model,
    lent: usize,
    /// The buffer to send next.
    next: u32,
    delivered: u64,
    scratch: Scratch,
}

impl Guest {
    fn new() -> Self {
        let mapping = Mapping::private(MEMORY).expect("memory");
        let memory = guest_memory(&mapping, [MEMORY / 2, 0]);
        let registers: Shared<Registers> = Shared::private().expect("memory");
        let config = device_config(&Arc::clone(&memory), 1, false, false);
        let model = template::model(registers.clone(), config.clone());
        Self { registers, config, model, lent: 0, next: 0, delivered: 0, scratch: Scratch::new(64) }
    }

    fn set(&self, at: u64, value: u32) {
        self.model.device.write(0, at, &value.to_le_bytes(), Nanos(0));
    }

    fn bring_up(&mut self) {
        self.next = 0;
        self.set(reg::CONTROL, 1 << 31);
        self.model.device.set_bus_master(true);
        self.model.device.set_link(true, Nanos(0));
        self.set(reg::CONTROL, 7);
    }

    fn gather(&mut self, max: usize) {
        self.model.transmit[0].complete(std::mem::take(&mut self.lent));
        self.scratch.clear();
        self.lent = self.model.transmit[0].gather(&mut self.scratch, max.min(64), Nanos(0));
        assert!(self.lent <= max.min(64));
        // SAFETY: the guest's memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
    }

    fn step(&mut self, what: u8, at: u32, value: u64) {
        let word = value as u32;
        let device = &*self.model.device;
        match what % 12 {
            0 => device.write(
                (at >> 31) as usize,
                value,
                &word.to_le_bytes()[..(at % 5) as usize],
                Nanos(0),
            ),
            1 => {
                device.read((at >> 31) as usize, value, &mut [0; 8][..(at % 9) as usize], Nanos(0))
            }
            2 | 3 => self.set(u64::from(at % 0x2c), word),
            4 | 5 => {
                self.set(reg::SEND, word & 0x07ff_0000 | (self.next % 256));
                self.next = self.next.wrapping_add(word & 1);
            }
            6 => device.read(0, reg::RECEIVE, &mut [0; 4], Nanos(0)),
            7 => self.gather(at as usize % 65),
            8 => {
                self.delivered += deliver(
                    &*self.model.receive[0],
                    (at as usize % 16, word as usize % 9000),
                    at >> 31 == 1,
                    Nanos(0),
                ) as u64
            }
            9 => {
                self.lent = 0;
                self.model = template::model(self.registers.clone(), self.config.clone());
            }
            10 => device.set_bus_master(at & 3 != 0),
            _ => self.bring_up(),
        }
    }

    fn check(&self) {
        let egress: &EgressCounters = &self.config.egress[0];
        let dropped: u64 = egress.drops.iter().map(|drops| drops.get()).sum();
        assert_eq!(egress.frames.get() + dropped, self.delivered);
        assert!(self.registers.take_over().is_ok(), "what accesses made is possible");
    }
}

fuzz_target!(|data: &[u8]| {
    let mut guest = Guest::new();
    guest.bring_up();
    for (what, at, value) in steps(data).take(STEPS) {
        guest.step(what, at, value);
        let _ = guest.model.device.interrupt(Nanos(0));
        guest.check();
    }
    guest.bring_up();
    guest.set(reg::AREA_LOW, 0);
    guest.set(reg::AREA_HIGH, 0);
    let frames = guest.config.egress[0].frames.get();
    guest.delivered += deliver(&*guest.model.receive[0], (1, 60), false, Nanos(0)) as u64;
    assert_eq!(guest.config.egress[0].frames.get(), frames + 1, "a reset heals it");
});
