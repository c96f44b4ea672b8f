//! PCnet: its model alone, and the number of its driver's register accesses per frame, in the
//! categories of VMware's paper. Counting needs no clock.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use card::Direct;
use driver::Dma;
use driver::pcnet::{Driver, Sizes};
use nic::csb::Version;
use nic::device::{Combining, DeviceConfig, Model};
use nic::pcnet::{self, Chip, Class, Registers};
use port::{Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};

use super::machine::{LOOK_ON, MAC, frame};
use super::model::{BATCH, receiving, sending};

/// Bytes of memory, and where the card has it.
const MEMORY: usize = 4 << 20;
const AT: u64 = 0x10_0000;
/// Nanoseconds between two frames of a burst, and between two checks.
const GAP: u64 = 1000;
/// Frames of a burst; time from burst to burst in units of [`GAP`]; number of counted bursts.
const BURST: u64 = 64;
const PERIOD: u64 = 1000;
const BURSTS: u64 = 150;
/// How demands that come this fast are coalesced.
const HELD: Combining = Combining { frames: 8, delay_us: 50 };

/// Ways to need fewer accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Technique {
    /// A stock driver.
    Stock,
    /// Demands are coalesced under traffic, so that frames complete together.
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

fn alone(way: Technique, sizes: Sizes) -> Result<Alone> {
    let mapping = Mapping::private(MEMORY)?;
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), AT)?);
    let config = DeviceConfig {
        combining: (way == Technique::Held).then_some(HELD),
        csb: true,
        ..DeviceConfig::alone(memory, MAC, 1)?
    };
    let registers: Shared<Registers> = Shared::private()?;
    let model = pcnet::model(Chip::Am79C970A, registers.clone(), config);
    model.device.set_bus_master(true);
    let mut dma = Dma::new(mapping, 0, MEMORY, AT).context("it is mapped")?;
    let regs = Direct::new(Arc::clone(&model.device), no_time as fn() -> Nanos);
    let mut driver = Driver::new(regs, &mut dma, sizes)?;
    if let Technique::Block(version) = way {
        driver = driver.with_block(&mut dma, version)?;
    }
    driver.start(true, false)?;
    Ok(Alone { model, registers, driver })
}

const LARGE: Sizes = Sizes { transmit: 8, receive: 8 };

/// Measures what [`sending`] measures, for this card.
pub fn to_switch(len: usize, time: Duration) -> Result<f64> {
    let Alone { mut model, mut driver, .. } = alone(Technique::Stock, LARGE)?;
    sending(&mut model, &mut driver, len, time)
}

/// Measures what [`receiving`] measures, for this card.
pub fn from_switch(len: usize, time: Duration) -> Result<f64> {
    let Alone { model, mut driver, .. } = alone(Technique::Stock, LARGE)?;
    receiving(&model, &mut driver, len, time)
}

/// A worker that serves one card in the driver's thread. It polls once every [`GAP`], and sleeps
/// after an idle [`LOOK_ON`]. A demand or its deadline wakes it.
struct Worker {
    guest: Alone,
    scratch: Scratch,
    /// When a frame was last received.
    last: Nanos,
    awake: bool,
    /// Frames received so far, and interrupts.
    frames: u64,
    interrupts: u64,
}

impl Worker {
    fn new(way: Technique) -> Result<Self> {
        let (guest, scratch) = (alone(way, Sizes::default())?, Scratch::new(BATCH));
        Ok(Self { guest, scratch, last: Nanos(0), awake: true, frames: 0, interrupts: 0 })
    }

    /// Sends a frame from the driver, with a demand if it is needed.
    fn send(&mut self, frame: &[u8]) -> Result<()> {
        if self.guest.driver.room() == 0 {
            self.guest.driver.reap();
        }
        if !self.guest.driver.send(frame, frame.len()) {
            bail!("no room for a frame every microsecond");
        }
        let demands = self.guest.driver.counts().demands;
        self.guest.driver.demand();
        self.awake |= self.guest.driver.counts().demands > demands;
        Ok(())
    }

    /// Lets the worker poll, if it is awake.
    fn turn(&mut self, now: Nanos) {
        let queue = &mut self.guest.model.transmit[0];
        self.awake |= queue.deadline().is_some_and(|deadline| now >= deadline);
        if !self.awake {
            return;
        }
        queue.disarm();
        self.scratch.clear();
        let gathered = queue.gather(&mut self.scratch, BATCH, now);
        queue.complete(gathered);
        fence(Ordering::SeqCst);
        let kick = gathered > 0 && queue.settle(now).kick;
        self.frames += gathered as u64;
        if gathered > 0 {
            self.last = now;
        } else {
            self.awake = now - self.last < LOOK_ON || queue.arm();
        }
        if kick && self.guest.model.device.interrupt(now).vectors != 0 {
            self.answer(now);
        }
    }

    /// The driver answers an interrupt.
    fn answer(&mut self, now: Nanos) {
        let Alone { model, driver, .. } = &mut self.guest;
        self.interrupts += u64::from(driver.acknowledge());
        driver.reap();
        driver.unmask();
        let _ = model.device.interrupt(now);
    }
}

/// Register accesses per frame, as a number and in words. The driver has the rings and interrupts
/// of pcnet32, and sends bursts of one frame per microsecond.
pub fn accesses(way: Technique) -> Result<(f64, String)> {
    let (mut worker, frame, mut now) = (Worker::new(way)?, frame(60), Nanos(0));
    // An equal number of bursts comes first as a warm-up, so that demands have a rhythm.
    let mut bursts = |worker: &mut Worker| -> Result<()> {
        for tick in 0..BURSTS * PERIOD {
            now = now + GAP;
            if tick % PERIOD < BURST {
                worker.send(&frame)?;
            }
            worker.turn(now);
        }
        Ok(())
    };
    bursts(&mut worker)?;
    let before = (worker.guest.registers.accesses(), worker.interrupts, worker.frames);
    bursts(&mut worker)?;
    let after = worker.guest.registers.accesses();
    if worker.frames != 2 * BURSTS * BURST || before.2 != BURSTS * BURST {
        bail!("{} of {} frames were sent", worker.frames, 2 * BURSTS * BURST);
    }
    let per_frame = |count: u64| count as f64 / (BURSTS * BURST) as f64;
    let of_class = |class: Class| per_frame(after.of(class) - before.0.of(class));
    let classes = Class::ALL.map(|class| format!("{:.3} {}", of_class(class), class.name()));
    let interrupts = per_frame(worker.interrupts - before.1);
    let words = format!("a frame: {}; {interrupts:.3} interrupts", classes.join(", "));
    Ok((Class::ALL.into_iter().map(of_class).sum(), words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_block_costs_a_demand_for_each_time_that_the_worker_slept() {
        for version in [Version::One, Version::Two] {
            let (accesses, words) = super::accesses(Technique::Block(version)).unwrap();
            // A demand is two accesses: the number of the register, and its value.
            assert_eq!(accesses, 2.0 / BURST as f64, "{words}");
        }
        let [stock, held] =
            [Technique::Stock, Technique::Held].map(|way| super::accesses(way).unwrap().0);
        assert!(stock > 10.0 && held > 1.0 && held < stock / 2.0, "{stock} {held}");
    }
}
