//! Moves a number of frames through a model of a card, for `cargo xtask perf` to count
//! instructions: `cards SCENARIO FRAMES`. Only [`send_turn`] and [`receive_turn`] are counted,
//! which are a switch's whole work there. The drivers are test code.

#![allow(unsafe_code, reason = "the frames outlive the scratch")]

use std::sync::Arc;

use card::Direct;
use driver::e1000::{Config, E1000Driver, Interrupts};
use driver::pcnet::{Driver, Sizes};
use driver::{Batched, Dma};
use frame::Mac;
use nic::device::{DeviceConfig, InterruptMode, Model};
use nic::e1000;
use nic::pcnet;
use port::{Delivered, Egress, FrameIdx, Ingress, Limits, MapGuard, Nanos, Scratch};
use shmem::{Bytes, GuestMemory, Mapping, Shared};

type Error = Box<dyn std::error::Error>;
type Regs = Direct<fn() -> Nanos>;

const BATCH: usize = 64;
const LEN: usize = 64;
const MEMORY: usize = 16 << 20;
const AT: u64 = 0x10_0000;
const MAC: Mac = Mac::local(7);
const LIMITS: Limits = Limits { max_frame: 1518, lossless: false };

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: cards e1000.tx.64|e1000.rx.64|pcnet.tx.64|pcnet.rx.64 FRAMES";
    let [scenario, frames] = args.as_slice() else { return Err(usage.into()) };
    let batches = frames.parse::<usize>()? / BATCH;
    match scenario.as_str() {
        "e1000.tx.64" => send(e1000()?, batches),
        "e1000.rx.64" => receive(e1000()?, batches),
        "pcnet.tx.64" => send(pcnet()?, batches),
        "pcnet.rx.64" => receive(pcnet()?, batches),
        _ => Err(usage.into()),
    }
}

/// The switch's work for a batch that a guest sends.
#[inline(never)]
fn send_turn(queue: &mut dyn Ingress, scratch: &mut Scratch) -> usize {
    let gathered = queue.gather(scratch, BATCH, Nanos(0));
    queue.complete(gathered);
    let _ = queue.settle(Nanos(0));
    gathered
}

/// The switch's work for a batch that a guest receives.
#[inline(never)]
fn receive_turn(queue: &dyn Egress, scratch: &Scratch, map: &MapGuard, list: &[FrameIdx]) -> usize {
    let Delivered { finished } = queue.deliver(&scratch.batch(map), list, LIMITS);
    let _ = queue.settle(Nanos(0));
    finished
}

fn frame() -> Vec<u8> {
    let mut frame = vec![0; LEN];
    frame[..6].copy_from_slice(&MAC.octets());
    frame[6..12].copy_from_slice(&Mac::local(8).octets());
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame
}

fn no_time() -> Nanos {
    Nanos(0)
}

fn device(mapping: &Arc<Mapping>) -> Result<DeviceConfig, Error> {
    Ok(DeviceConfig {
        csb: true,
        ..DeviceConfig::alone(Arc::new(GuestMemory::of(Arc::clone(mapping), AT)?), MAC, 1)?
    })
}

/// An 82540EM and its driver, which polls.
fn e1000() -> Result<(Model, E1000Driver<Regs>), Error> {
    let config = Config { interrupts: Interrupts::None, ..Config::stock(e1000::Chip::Em82540) };
    let mapping = Mapping::private(MEMORY)?;
    let model = e1000::model(config.chip, Shared::private()?, device(&mapping)?);
    model.device.set_bus_master(true);
    model.device.set_interrupt_mode(InterruptMode::Pin);
    let mut dma = Dma::new(mapping, 0, MEMORY, AT).ok_or("memory of its own")?;
    let regs = Direct::new(Arc::clone(&model.device), no_time as fn() -> Nanos);
    let driver = E1000Driver::new(regs, &mut dma, config)?;
    let frame = frame();
    (0..driver.places()).for_each(|i| {
        driver.place(i).copy_in(&frame);
    });
    Ok((model, driver))
}

/// An Am79C970A and its driver, which polls.
fn pcnet() -> Result<(Model, Driver<Regs>), Error> {
    let mapping = Mapping::private(MEMORY)?;
    let model = pcnet::model(pcnet::Chip::Am79C970A, Shared::private()?, device(&mapping)?);
    model.device.set_bus_master(true);
    let mut dma = Dma::new(mapping, 0, MEMORY, AT).ok_or("memory of its own")?;
    let regs = Direct::new(Arc::clone(&model.device), no_time as fn() -> Nanos);
    let mut driver = Driver::new(regs, &mut dma, Sizes { transmit: 8, receive: 8 })?;
    driver.start(true, false)?;
    Ok((model, driver))
}

fn send((mut model, mut driver): (Model, impl Batched), batches: usize) -> Result<(), Error> {
    let (frame, mut scratch) = (frame(), Scratch::new(BATCH));
    let queue = &mut *model.transmit[0];
    for _ in 0..batches {
        let sent = driver.send_batch(&frame, BATCH);
        scratch.clear();
        let gathered = send_turn(queue, &mut scratch);
        if !sent || gathered != BATCH || driver.reclaim_batch() != BATCH {
            return Err(format!("{gathered} frames of a batch were sent").into());
        }
    }
    Ok(())
}

fn receive((model, mut driver): (Model, impl Batched), batches: usize) -> Result<(), Error> {
    let mut frames = vec![frame(); BATCH];
    let list: [FrameIdx; BATCH] = std::array::from_fn(|i| i as FrameIdx);
    let mut scratch = Scratch::new(BATCH);
    // SAFETY: the frames outlive the scratch.
    let map = unsafe { MapGuard::assume_mapped() };
    for _ in 0..batches {
        scratch.clear();
        frames.iter_mut().for_each(|frame| scratch.push(Bytes::of(frame).span()));
        scratch.judge(&map, &mut [(); BATCH], |_, _| ());
        let finished = receive_turn(&*model.receive[0], &scratch, &map, &list);
        if finished != BATCH || driver.receive_batch() != BATCH {
            return Err(format!("{finished} frames of a batch were received").into());
        }
    }
    Ok(())
}
