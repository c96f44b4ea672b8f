//! What scripts run against: a card's registers and its memory. Also makes the project's models
//! such targets.
#![allow(
    unsafe_code,
    reason = "the switch that takes nothing lends no longer than the memory lives"
)]

use std::sync::Arc;

use nic::device::{DeviceConfig, Model};
use nic::e1000;
use nic::pcnet;
use port::{Mac, Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};

/// Bytes of memory that scripts may use.
pub const MEMORY: u64 = 0x40_0000;

/// A base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space(pub usize);

/// A card.
pub trait Target {
    fn read(&mut self, space: Space, at: u64, width: usize) -> u32;
    fn write(&mut self, space: Space, at: u64, width: usize, value: u32);
    fn store(&mut self, at: u32, bytes: &[u8]);
    fn load(&mut self, at: u32, len: u32) -> Vec<u8>;
    fn pass(&mut self, nanos: u64);
}

/// A model, with a switch that accepts every frame and delivers none.
pub struct Ours {
    model: Model,
    memory: Arc<GuestMemory>,
    now: Nanos,
    scratch: Scratch,
}

/// Which card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    E1000(e1000::Chip),
    Pcnet(pcnet::Chip),
}

impl Ours {
    pub fn new(card: Card) -> Self {
        let mapping = Mapping::private(MEMORY as usize).expect("memory");
        let memory = Arc::new(GuestMemory::of(mapping, 0).expect("one range"));
        let mac = Mac::new([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let config = DeviceConfig::alone(Arc::clone(&memory), mac, 2).unwrap();
        let model = match card {
            Card::E1000(member) => e1000::model(member, Shared::private().unwrap(), config),
            Card::Pcnet(chip) => pcnet::model(chip, Shared::private().unwrap(), config),
        };
        model.device.set_bus_master(true);
        Self { model, memory, now: Nanos(1), scratch: Scratch::new(64) }
    }

    /// Does the home worker's work after a register write.
    fn turn(&mut self) {
        for transmit in &mut self.model.transmit {
            for _ in 0..4 {
                self.scratch.clear();
                let frames = transmit.gather(&mut self.scratch, 64, self.now);
                transmit.complete(frames);
                let _ = transmit.settle(self.now);
            }
        }
        let _ = self.model.device.interrupt(self.now);
    }
}

impl Target for Ours {
    fn read(&mut self, Space(bar): Space, at: u64, width: usize) -> u32 {
        let mut data = [0; 4];
        self.model.device.read(bar, at, &mut data[..width], self.now);
        u32::from_le_bytes(data)
    }

    fn write(&mut self, Space(bar): Space, at: u64, width: usize, value: u32) {
        self.model.device.write(bar, at, &value.to_le_bytes()[..width], self.now);
        self.turn();
    }

    fn store(&mut self, at: u32, bytes: &[u8]) {
        self.memory.bytes(at.into(), bytes.len() as u32).expect("memory").copy_in(bytes);
    }

    fn load(&mut self, at: u32, len: u32) -> Vec<u8> {
        self.memory.bytes(at.into(), len).expect("memory").to_vec()
    }

    fn pass(&mut self, nanos: u64) {
        self.now = self.now + nanos;
        self.turn();
    }
}
