//! The smallest device, for tests of what carries registers: one transmit buffer, one receive
//! buffer, one interrupt cause.
//!
//! ```text
//!   00 cause, read clears   04 mask   08 transmit address   0c transmit length, a doorbell
//!   10 receive address      14 receive length: written 0 to offer the buffer, read when it is filled
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::nic::NicName;
use nic::device::{
    Bar, Device, DeviceConfig, Identity, Interrupt, InterruptMode, Model, Msix, Transmit,
};
use nic::kind::Kind;
use port::{
    Batch, Delivered, DropReason, Effects, Egress, FrameIdx, Ingress, Limits, Nanos, Scratch,
};
use shmem::sync::AtomicU32;
use shmem::{GuestMemory, Shared};

pub type Registers = [AtomicU32; 8];

const CAUSE: usize = 0;
const MASK: usize = 1;
const SEND_AT: usize = 2;
const SEND: usize = 3;
const RECEIVE_AT: usize = 4;
const RECEIVE: usize = 5;
/// This bit is set while there is nothing to transmit, or while there is a buffer to receive into.
const FREE: u32 = 1 << 31;
/// A cause: the link changed.
const LINK: u32 = 4;

/// The device's identity on PCI.
pub const IDENTITY: Identity = Identity {
    vendor: 0x1af4,
    device: 0xfffe,
    revision: 0,
    class: 0x02_00_00,
    subsystem_vendor: 0,
    subsystem: 0,
    bars: [Some(Bar::Memory(4096)), Some(Bar::Io(32)), None, None, None, None],
    msix: Some(Msix { vectors: 2, bar: 0, table: 2048, pending: 3072 }),
    msi: true,
    express: false,
};

/// The NIC's names.
pub static NAMES: NicName =
    NicName { name: "loopback", title: "loopback", csb: true, shared_doorbells: false };

/// The NIC's row in the table of NICs.
pub static LOOPBACK: Kind = Kind {
    names: &NAMES,
    state_size: size_of::<Registers>(),
    identity: |_| IDENTITY,
    shared_pages: None,
    make: |room, config| room.model(|state| model(state, config)),
    take_over: |_, _| Ok(()),
};

struct Card {
    registers: Shared<Registers>,
    memory: Arc<GuestMemory>,
    config: DeviceConfig,
    by_message: AtomicBool,
    link: AtomicBool,
}

/// The device.
pub fn model(registers: Shared<Registers>, config: DeviceConfig) -> Model {
    let memory = Arc::clone(&config.memory);
    let (by_message, link) = (AtomicBool::new(false), AtomicBool::new(config.link));
    let card = Arc::new(Card { registers, memory, config, by_message, link });
    Model {
        device: Arc::clone(&card) as _,
        transmit: vec![Box::new(Sender(Arc::clone(&card)))],
        receive: vec![card],
    }
}

impl Card {
    fn get(&self, at: usize) -> u32 {
        self.registers[at].load(Ordering::SeqCst)
    }

    fn set(&self, at: usize, value: u32) {
        self.registers[at].store(value, Ordering::SeqCst);
    }

    fn is_pending(&self) -> bool {
        self.get(CAUSE) & self.get(MASK) != 0
    }
}

impl Device for Card {
    fn identity(&self) -> Identity {
        IDENTITY
    }

    fn read(&self, _bar: usize, at: u64, data: &mut [u8], _now: Nanos) {
        let at = at as usize / 4 % 8;
        let value = if at == CAUSE {
            self.registers[CAUSE].swap(0, Ordering::SeqCst)
        } else {
            self.get(at)
        };
        data.iter_mut().zip(value.to_le_bytes()).for_each(|(to, from)| *to = from);
    }

    fn write(&self, _bar: usize, at: u64, data: &[u8], _now: Nanos) {
        let mut value = [0; 4];
        value.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
        let (at, value) = (at as usize / 4 % 8, u32::from_le_bytes(value));
        assert!(value != 0xdead, "a bug, for the test");
        match at {
            SEND => self.set(SEND, value | FREE),
            RECEIVE => self.set(RECEIVE, FREE),
            _ => self.set(at, value),
        }
    }

    fn reset(&self, _now: Nanos) {
        (0..8).for_each(|at| self.set(at, 0));
    }

    fn set_bus_master(&self, _on: bool) {}

    fn set_interrupt_mode(&self, mode: InterruptMode) {
        self.by_message.store(mode != InterruptMode::Pin, Ordering::SeqCst);
    }

    fn set_link(&self, up: bool, _now: Nanos) {
        if self.link.swap(up, Ordering::SeqCst) != up {
            self.set(CAUSE, LINK);
        }
    }

    fn interrupt(&self, _now: Nanos) -> Interrupt {
        let pending = self.is_pending();
        if pending && self.by_message.load(Ordering::SeqCst) {
            self.set(CAUSE, 0);
        }
        Interrupt { vectors: pending.into(), due: None }
    }

    fn headroom(&self) -> u32 {
        0
    }

    fn fault(&self) -> Option<&'static str> {
        None
    }
}

struct Sender(Arc<Card>);

impl Ingress for Sender {
    fn gather(&mut self, scratch: &mut Scratch, _max: usize, _now: Nanos) -> usize {
        let card = &self.0;
        let len = card.get(SEND) & 0xffff;
        if card.get(SEND) & FREE == 0 {
            return 0;
        }
        card.set(SEND, 0);
        let Some(frame) = card.memory.bytes_to_read(card.get(SEND_AT).into(), len) else {
            return 0;
        };
        card.config.ingress.frames.add(1);
        card.config.ingress.bytes.add(len.into());
        scratch.push(frame.span());
        1
    }

    fn complete(&mut self, frames: usize) {
        self.0.registers[CAUSE].fetch_or(u32::from(frames > 0), Ordering::SeqCst);
    }

    fn settle(&mut self, _now: Nanos) -> Effects {
        Effects { kick: self.0.is_pending() }
    }
}

impl Transmit for Sender {
    fn arm(&mut self) -> bool {
        self.0.get(SEND) & FREE != 0
    }

    fn disarm(&mut self) {}
}

impl Egress for Card {
    fn deliver(&self, batch: &Batch<'_>, list: &[FrameIdx], _limits: Limits) -> Delivered {
        for i in list {
            let len = batch.frame(*i).len();
            let to = self.memory.bytes(self.get(RECEIVE_AT).into(), len as u32);
            let counters = &self.config.egress[0];
            match to.filter(|_| self.get(RECEIVE) == FREE) {
                Some(to) => {
                    batch.copy_frame(*i, to);
                    self.set(RECEIVE, len as u32);
                    self.registers[CAUSE].fetch_or(2, Ordering::SeqCst);
                    counters.frames.add(1);
                    counters.bytes.add(len as u64);
                }
                None => counters.drop_frames(DropReason::Full, 1),
            }
        }
        Delivered { finished: list.len() }
    }

    fn settle(&self, _now: Nanos) -> Effects {
        Effects { kick: self.is_pending() }
    }
}
