//! The template NIC: its model alone, and the number of its driver's register accesses per frame.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use card::Direct;
use driver::one_access::Driver;
use driver::{Batched, Dma, Trapping};
use nic::device::{DeviceConfig, Model};
use nic::template;
use port::{Nanos, Scratch};
use shmem::{GuestMemory, Mapping, Shared};

use super::machine::{MAC, frame};
use super::model::{BATCH, receiving, sending};

/// Bytes of memory, and where the card has it.
const MEMORY: usize = 4 << 20;
const AT: u64 = 0x10_0000;
/// The number of batches whose accesses are counted.
const BATCHES: usize = 100;

type Regs = Trapping<Direct<fn() -> Nanos>, fn() -> u64>;

fn alone() -> Result<(Model, Driver<Regs>)> {
    let mapping = Mapping::private(MEMORY)?;
    let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), AT)?);
    let model = template::model(Shared::private()?, DeviceConfig::alone(memory, MAC, 1)?);
    model.device.set_bus_master(true);
    let mut dma = Dma::new(mapping, 0, MEMORY, AT).context("it is mapped")?;
    let direct = Direct::new(Arc::clone(&model.device), (|| Nanos(0)) as fn() -> Nanos);
    // The accesses cost nothing extra; they are only counted.
    let regs = Trapping::new(direct, 0, (|| 0) as fn() -> u64);
    let driver = Driver::new(regs, &mut dma, false, false)?;
    Ok((model, driver))
}

/// Measures what [`sending`] measures, for this card.
pub fn to_switch(len: usize, time: Duration) -> Result<f64> {
    let (mut model, mut driver) = alone()?;
    sending(&mut model, &mut driver, len, time)
}

/// Measures what [`receiving`] measures, for this card.
pub fn from_switch(len: usize, time: Duration) -> Result<f64> {
    let (model, mut driver) = alone()?;
    receiving(&model, &mut driver, len, time)
}

/// Register accesses per sent and received frame, in batches.
pub fn accesses() -> Result<(f64, f64)> {
    let (mut model, mut driver) = alone()?;
    let (sent, mut scratch) = (frame(60), Scratch::new(BATCH));
    let before = driver.regs().traps();
    for _ in 0..BATCHES {
        if !(0..BATCH).all(|_| driver.send(&sent)) {
            bail!("no room for a batch that was taken");
        }
        scratch.clear();
        let gathered = model.transmit[0].gather(&mut scratch, BATCH, Nanos(0));
        model.transmit[0].complete(gathered);
    }
    let frames = (BATCHES * BATCH) as f64;
    let tx = driver.regs().traps().since(before).all() as f64 / frames;
    let mut received = (0.0, 0.0);
    receiving(
        &model,
        &mut Counting { driver: &mut driver, counts: &mut received },
        60,
        Duration::from_millis(1),
    )?;
    Ok((tx, received.0 / received.1))
}

/// A driver whose accesses for received frames are counted.
struct Counting<'a> {
    driver: &'a mut Driver<Regs>,
    /// Accesses and frames.
    counts: &'a mut (f64, f64),
}

impl Batched for Counting<'_> {
    fn send_batch(&mut self, frame: &[u8], count: usize) -> bool {
        self.driver.send_batch(frame, count)
    }

    fn reclaim_batch(&mut self) -> usize {
        self.driver.reclaim_batch()
    }

    fn receive_batch(&mut self) -> usize {
        let before = self.driver.regs().traps();
        let frames = self.driver.receive_batch();
        let traps = self.driver.regs().traps().since(before).all();
        *self.counts = (self.counts.0 + traps as f64, self.counts.1 + frames as f64);
        frames
    }
}
