//! The model alone: from descriptor to switch, and from switch to descriptor.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use card::Direct;
use driver::e1000::{Config, Doorbells, E1000Driver, Interrupts};
use driver::{Batched, Dma};
use nic::device::Model;
use nic::e1000::Chip;
use port::{Delivered, FrameIdx, Limits, MapGuard, Nanos, Scratch};
use shmem::Bytes;

use super::machine::{BASE, MEMORY, frame, model};

/// Frames of a batch.
pub const BATCH: usize = 64;
const LIMITS: Limits = Limits { max_frame: 1518, lossless: false };

/// A polling driver and its model in the same thread.
struct Alone {
    model: Model,
    driver: E1000Driver<Direct<fn() -> Nanos>>,
}

fn no_time() -> Nanos {
    Nanos(0)
}

fn alone(chip: Chip, doorbells: Doorbells) -> Result<Alone> {
    let config = Config { doorbells, interrupts: Interrupts::None, ..Config::stock(chip) };
    let (model, mapping) = model(&config, None)?;
    let mut dma = Dma::new(mapping, 0, MEMORY, BASE).context("it is mapped")?;
    let regs = Direct::new(Arc::clone(&model.device), no_time as fn() -> Nanos);
    let driver = E1000Driver::new(regs, &mut dma, config)?;
    super::guest::prepare(&driver, &frame(1514));
    Ok(Alone { model, driver })
}

/// Number of unmeasured turns that warm up.
const WARM: u32 = 1000;

/// Repeats `turn`, which returns the time for a batch, for `time`. Returns the median in
/// nanoseconds per frame.
fn median(time: Duration, mut turn: impl FnMut() -> Result<Duration>) -> Result<f64> {
    for _ in 0..WARM {
        turn()?;
    }
    let (start, mut taken) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        taken.push(turn()?.as_nanos() as f64 / BATCH as f64);
    }
    taken.sort_unstable_by(f64::total_cmp);
    taken.get(taken.len() / 2).copied().context("nothing was measured")
}

/// Like [`sending`], for a member of the e1000 family.
pub fn to_switch(chip: Chip, doorbells: Doorbells, len: usize, time: Duration) -> Result<f64> {
    let Alone { mut model, mut driver } = alone(chip, doorbells)?;
    sending(&mut model, &mut driver, len, time)
}

/// Like [`receiving`], for a member of the e1000 family.
pub fn from_switch(chip: Chip, doorbells: Doorbells, len: usize, time: Duration) -> Result<f64> {
    let Alone { model, mut driver } = alone(chip, doorbells)?;
    receiving(&model, &mut driver, len, time)
}

/// Descriptor to switch: gather, complete and settle, 64 frames at a time, in ns per frame.
pub fn sending(
    model: &mut Model,
    driver: &mut impl Batched,
    len: usize,
    time: Duration,
) -> Result<f64> {
    let (frame, mut scratch) = (frame(len), Scratch::new(BATCH));
    let queue = &mut model.transmit[0];
    median(time, || {
        if !driver.send_batch(&frame, BATCH) {
            bail!("the ring is full");
        }
        scratch.clear();
        let start = Instant::now();
        let gathered = queue.gather(&mut scratch, BATCH, Nanos(0));
        queue.complete(gathered);
        fence(Ordering::SeqCst);
        let _ = queue.settle(Nanos(0));
        let taken = start.elapsed();
        if gathered != BATCH || driver.reclaim_batch() != BATCH {
            bail!("{gathered} frames of a batch were sent");
        }
        Ok(taken)
    })
}

/// Switch to descriptor: deliver and settle, 64 frames at a time, in ns per frame.
#[expect(unsafe_code, reason = "the frames outlive the scratch")]
pub fn receiving(
    model: &Model,
    driver: &mut impl Batched,
    len: usize,
    time: Duration,
) -> Result<f64> {
    let mut frames = vec![frame(len); BATCH];
    let list: [FrameIdx; BATCH] = std::array::from_fn(|i| i as FrameIdx);
    let mut scratch = Scratch::new(BATCH);
    let queue = &model.receive[0];
    median(time, || {
        scratch.clear();
        frames.iter_mut().for_each(|frame| scratch.push(Bytes::of(frame).span()));
        // SAFETY: the frames outlive the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge(&map, &mut [(); BATCH], |_, _| ());
        let batch = scratch.batch(&map);
        let start = Instant::now();
        let Delivered { finished } = queue.deliver(&batch, &list, LIMITS);
        fence(Ordering::SeqCst);
        let _ = queue.settle(Nanos(0));
        let taken = start.elapsed();
        let received = driver.receive_batch();
        if finished != BATCH || received != BATCH {
            bail!("{received} frames of a batch were received");
        }
        Ok(taken)
    })
}
