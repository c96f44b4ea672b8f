//! PCnet: its model alone, and what a frame costs its driver in register accesses, sorted as VMware's paper
//! sorts them. Accesses are counted: there is no clock in that.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nic::csb::Version;
use nic::device::{Combining, DeviceConfig, Model};
use nic::driver::{Direct, Dma};
use nic::pcnet::driver::{Driver, Sizes};
use nic::pcnet::{Accesses, Chip, Class, Pcnet, Registers};
use port::{Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};

use super::machine::{MAC, frame};
use super::model::{BATCH, receiving, sending};

/// Bytes of memory, and where the card has it.
const MEMORY: usize = 4 << 20;
const AT: u64 = 0x10_0000;
/// Frames whose accesses are counted, and nanoseconds between them.
const COUNTED: u64 = 10_000;
const GAP: u64 = 1000;
/// What is held back of demands that come so fast.
const HELD: Combining = Combining { frames: 8, delay_us: 50 };

/// What is done to need fewer accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Stock,
    /// Demands are held back under traffic: frames complete together.
    Held,
    /// A shared status block.
    Block(Version),
}

struct Alone {
    model: Model,
    registers: Shared<Registers>,
    driver: Driver<Direct<fn() -> Nanos>>,
}

fn no_time() -> Nanos {
    Nanos(0)
}

fn alone(way: Way, sizes: Sizes) -> Result<Alone> {
    let mapping = Mapping::private(MEMORY)?;
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), AT)?);
    let config = DeviceConfig {
        combining: (way == Way::Held).then_some(HELD),
        csb: true,
        ..DeviceConfig::alone(memory, MAC, 1)?
    };
    let registers: Shared<Registers> = Shared::private()?;
    let model = Pcnet::new(Chip::Am79C970A, registers.clone(), config);
    model.device.set_bus_master(true);
    let mut dma = Dma::new(mapping, 0, MEMORY, AT).context("it is mapped")?;
    let regs = Direct::new(Arc::clone(&model.device), no_time as fn() -> Nanos);
    let mut driver = Driver::new(regs, &mut dma, sizes)?;
    if let Way::Block(version) = way {
        driver = driver.with_block(&mut dma, version)?;
    }
    driver.start(true, false)?;
    Ok(Alone { model, registers, driver })
}

const LARGE: Sizes = Sizes { transmit: 8, receive: 8 };

/// As [`sending`], of this card.
pub fn to_switch(len: usize, time: Duration) -> Result<f64> {
    let Alone { mut model, mut driver, .. } = alone(Way::Stock, LARGE)?;
    sending(&mut model, &mut driver, len, time)
}

/// As [`receiving`], likewise.
pub fn from_switch(len: usize, time: Duration) -> Result<f64> {
    let Alone { model, mut driver, .. } = alone(Way::Stock, LARGE)?;
    receiving(&model, &mut driver, len, time)
}

/// Register accesses a frame of a driver that sends one every microsecond and is interrupted as pcnet32 is,
/// with rings as pcnet32 has them; and the same in words.
pub fn accesses(way: Way) -> Result<(f64, String)> {
    let mut guest = alone(way, Sizes::default())?;
    let (frame, mut scratch) = (frame(60), Scratch::new(BATCH));
    let (mut now, mut interrupts) = (Nanos(0), 0);
    let mut before = Accesses::default();
    // As many frames go before, so that demands have a rhythm.
    for number in 0..2 * COUNTED {
        if number == COUNTED {
            (before, interrupts) = (guest.registers.accesses(), 0);
        }
        now = now + GAP;
        if guest.driver.room() == 0 {
            guest.driver.reap();
        }
        if !guest.driver.send(&frame, frame.len()) {
            bail!("no room for a frame every microsecond");
        }
        guest.driver.demand();
        scratch.clear();
        let queue = &mut guest.model.transmit[0];
        queue.disarm();
        let gathered = queue.gather(&mut scratch, BATCH, now);
        queue.complete(gathered);
        fence(Ordering::SeqCst);
        let kick = gathered > 0 && queue.settle(now).kick;
        if kick && guest.model.device.interrupt(now).vectors != 0 {
            interrupts += u64::from(guest.driver.acknowledge());
            guest.driver.reap();
            guest.driver.unmask();
            let _ = guest.model.device.interrupt(now);
        }
    }
    let after = guest.registers.accesses();
    let per_frame = |class: Class| (after.of(class) - before.of(class)) as f64 / COUNTED as f64;
    let classes = Class::ALL.map(|class| format!("{:.3} {}", per_frame(class), class.name()));
    let interrupts = interrupts as f64 / COUNTED as f64;
    let words = format!("a frame: {}; {interrupts:.3} interrupts", classes.join(", "));
    Ok((Class::ALL.into_iter().map(per_frame).sum(), words))
}
