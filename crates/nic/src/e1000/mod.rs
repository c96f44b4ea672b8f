//! The e1000 family: 82540EM and 82574L.
//!
//! ```text
//!   bus --> device (regs: the table) --> core: registers, causes, rings
//!                                         |                       |
//!             transmit (offload) --> switch                switch --> receive (filter)
//! ```
//!
//! One code base, one register table ([`TABLE`]), two members. Facts are those of Intel's
//! *PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual* (82540EM) and
//! *82574 GbE Controller Family Datasheet*.
//!
//! Threads: the home worker does register accesses and transmit queues. A receive queue is filled
//! under its lock, and registers that change the queue take that lock. Any thread sets causes, and
//! the thread that asks raises them.

mod block;
mod copy;
mod core;
mod device;
mod eeprom;
mod filter;
mod interrupts;
mod offload;
mod phy;
mod receive;
mod registers;
mod remote;
mod ring;
mod table;
mod take_over;
mod transmit;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use port::Egress;
use shmem::Shared;

use self::copy::Copied;
use self::core::{Core, Filling};
use self::device::E1000Device;
use self::receive::Receive;
use self::transmit::Transmit;
use crate::csb::Announced;
use crate::device::{DeviceConfig, Model, Transmit as Transmitting};

pub use abi::e1000::Chip;

pub use self::device::identity;
pub use self::registers::{Fault, Registers};
pub use self::table::{Access, Effect, Members, Register, TABLE, shared_pages};

/// The interrupt causes that a chip has.
const fn causes(chip: Chip) -> u32 {
    match chip {
        Chip::Em82540 => table::cause::EM,
        Chip::L82574 => table::cause::L,
    }
}

/// How many transmit and receive queues a chip has.
const fn queues(chip: Chip) -> [usize; 2] {
    match chip {
        Chip::Em82540 => [1, 1],
        Chip::L82574 => [2, 2],
    }
}

/// Makes a device over its registers, which outlive it and keep its position. It has as many
/// receive queues as `config` has counters for, up to the chip's limit.
#[must_use]
pub fn model(chip: Chip, registers: Shared<Registers>, config: DeviceConfig) -> Model {
    let copied = config.memory.is_copy().then(Copied::default);
    let core = Arc::new(Core {
        chip,
        registers,
        eeprom: eeprom::Eeprom::new(chip, config.mac),
        memory: config.memory,
        mac: config.mac,
        csb: config.csb,
        block: Announced::default(),
        deciding: Mutex::new(()),
        filling: [0, 1].map(|queue| Mutex::new(Filling::new(queue))),
        filters: AtomicU32::new(0),
        rings: [AtomicU32::new(0), AtomicU32::new(0)],
        copied,
    });
    core.power_on();
    core.resume_copy();
    // A block that is not in the current memory may be in the next.
    let _ = core.map_block();
    let _ = core.set_link(config.link);
    core.resume_receiving();
    let [queues, _] = queues(chip);
    let transmit = (0..queues).map(|queue| -> Box<dyn Transmitting> {
        Box::new(Transmit::new(&core, queue, config.ingress.clone(), config.combining))
    });
    let receive = config.egress.into_iter().take(queues).enumerate();
    let receive = receive.map(|(queue, counters)| -> Arc<dyn Egress> {
        Arc::new(Receive::new(&core, queue, counters))
    });
    Model {
        transmit: transmit.collect(),
        receive: receive.collect(),
        device: Arc::new(E1000Device(Arc::clone(&core))),
    }
}
