//! The template against its driver, and against hostile guests.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use card::Direct;
use driver::one_access::{Driver, DriverError};
use driver::{Dma, Regs, Trapping};
use nic::device::{DeviceConfig, Model};
use nic::template::{self, AREA, BUFFER, FRAMES, REGISTERS, Registers, reg};
use port::{DropReason, FrameIdx, Limits, Mac, MapGuard, Nanos, Scratch};
use proptest::prelude::*;
use shmem::{GuestMemory, Mapping, Shared};

const MEMORY: usize = 2 << 20;
const AT: u64 = 0x10_0000;
const LIMITS: Limits = Limits { max_frame: 4000, lossless: false };
const MAC: Mac = Mac::local(7);

type Clock = fn() -> Nanos;

/// A device, a guest's memory, and a switch that only forwards.
struct Bench {
    registers: Shared<Registers>,
    mapping: Arc<Mapping>,
    config: DeviceConfig,
    model: Model,
    scratch: Scratch,
}

impl Bench {
    fn new() -> Self {
        let mapping = Mapping::private(MEMORY).unwrap();
        let memory = Arc::new(GuestMemory::of(Arc::clone(&mapping), AT).unwrap());
        let registers: Shared<Registers> = Shared::private().unwrap();
        let config = DeviceConfig::alone(memory, MAC, 1).unwrap();
        let model = template::model(registers.clone(), config.clone());
        model.device.set_bus_master(true);
        Self { registers, mapping, config, model, scratch: Scratch::new(64) }
    }

    /// Rebuilds the model over its registers, as after the death of a data process.
    fn remake(&mut self) {
        self.model = template::model(self.registers.clone(), self.config.clone());
    }

    fn regs(&self) -> Direct<Clock> {
        Direct::new(Arc::clone(&self.model.device), (|| Nanos(0)) as Clock)
    }

    fn driver(&self, interrupts: bool) -> Driver<Direct<Clock>> {
        let mut dma = Dma::new(Arc::clone(&self.mapping), 0, MEMORY, AT).unwrap();
        Driver::new(self.regs(), &mut dma, interrupts, false).unwrap()
    }

    /// Takes frames that the guest sends, without completing them.
    fn lend(&mut self) -> Vec<Vec<u8>> {
        self.scratch.clear();
        let frames = self.model.transmit[0].gather(&mut self.scratch, 64, Nanos(0));
        // SAFETY: the memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        self.scratch.judge(&map, &mut [(); 64], |_, _| ());
        let batch = self.scratch.batch(&map);
        let bytes = |i: u16| {
            let mut bytes = vec![0; batch.frame(i).len()];
            batch.copy_frame(i, shmem::Bytes::of(&mut bytes));
            bytes
        };
        (0..frames as u16).map(bytes).collect()
    }

    fn gather(&mut self) -> Vec<Vec<u8>> {
        let frames = self.lend();
        self.model.transmit[0].complete(frames.len());
        frames
    }

    fn deliver(&self, frames: &[Vec<u8>], limits: Limits) -> usize {
        let bytes = Mapping::private(64 * 4096).unwrap();
        let mut scratch = Scratch::new(64);
        for (i, frame) in frames.iter().enumerate() {
            let place = bytes.bytes(i * 4096, frame.len()).unwrap();
            place.copy_in(frame);
            scratch.push(place.span());
        }
        // SAFETY: the memory outlives the scratch.
        let map = unsafe { MapGuard::assume_mapped() };
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let list: Vec<FrameIdx> = (0..frames.len() as FrameIdx).collect();
        self.model.receive[0].deliver(&scratch.batch(&map), &list, limits).finished
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.config.egress[0].drops[reason as usize].get()
    }

    fn level(&self) -> bool {
        self.model.device.interrupt(Nanos(0)).vectors & 1 != 0
    }
}

fn frame(number: u32) -> Vec<u8> {
    let mut frame = vec![number as u8; 60 + number as usize % 1400];
    frame[..6].copy_from_slice(&MAC.octets());
    frame
}

fn receive(driver: &mut Driver<impl Regs>) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    driver.receive(usize::MAX, |bytes| frames.push(bytes.to_vec()));
    frames
}

#[test]
fn frames_pass_in_order_in_both_directions() {
    let mut bench = Bench::new();
    let mut driver = bench.driver(false);
    for round in 0..20 {
        let frames: Vec<_> = (0..50).map(|i| frame(round * 50 + i)).collect();
        assert!(frames.iter().all(|frame| driver.send(frame)));
        assert_eq!(bench.gather(), frames);
        assert_eq!(bench.deliver(&frames, LIMITS), 50);
        assert_eq!(receive(&mut driver), frames);
    }
    assert_eq!(bench.config.ingress.frames.get(), 1000);
    assert_eq!(bench.config.egress[0].frames.get(), 1000);
}

#[test]
fn a_frame_costs_one_access() {
    let mut bench = Bench::new();
    let mut dma = Dma::new(Arc::clone(&bench.mapping), 0, MEMORY, AT).unwrap();
    let regs = Trapping::new(bench.regs(), 0, || 0u64);
    let mut driver = Driver::new(regs, &mut dma, false, false).unwrap();
    let before = driver.regs().traps();
    for _ in 0..4 {
        (0..64).for_each(|i| assert!(driver.send(&frame(i))));
        bench.gather();
    }
    assert_eq!(driver.regs().traps().since(before).all(), 256);
    bench.deliver(&(0..64).map(frame).collect::<Vec<_>>(), LIMITS);
    let before = driver.regs().traps();
    assert_eq!(driver.receive(64, |_| ()), 64);
    assert_eq!(driver.regs().traps().since(before).all(), 64);
}

#[test]
fn the_pin_is_up_while_frames_wait() {
    let bench = Bench::new();
    let mut driver = bench.driver(true);
    assert!(!bench.level());
    let _ = bench.model.receive[0].settle(Nanos(0));
    bench.deliver(&[frame(1), frame(2)], LIMITS);
    assert!(bench.level() && bench.model.receive[0].settle(Nanos(0)).kick);
    assert!(!bench.model.receive[0].settle(Nanos(0)).kick, "once for a batch");
    assert_eq!(receive(&mut driver).len(), 2);
    assert!(!bench.level());
}

#[test]
fn a_full_queue_drops_or_stalls_and_goes_on() {
    let mut bench = Bench::new();
    let mut driver = bench.driver(false);
    let frames: Vec<_> = (0..64).map(frame).collect();
    (0..4).for_each(|_| assert_eq!(bench.deliver(&frames, LIMITS), 64));
    assert_eq!(bench.deliver(&frames[..3], LIMITS), 3);
    assert_eq!(bench.dropped(DropReason::Full), 3);
    assert_eq!(bench.deliver(&frames, Limits { lossless: true, ..LIMITS }), 0);
    assert_eq!(receive(&mut driver).len(), FRAMES as usize);
    assert_eq!(bench.deliver(&frames, LIMITS), 64);
    assert_eq!(receive(&mut driver), frames);
    // As many frames as there are buffers can be sent.
    (0..FRAMES).for_each(|i| assert!(driver.send(&frame(i))));
    assert!(!driver.send(&frame(0)));
    assert_eq!(bench.gather().len(), 64);
    assert!(driver.send(&frame(0)), "the driver asks again");
    assert_eq!(bench.model.device.fault(), None);
}

#[test]
fn frames_for_others_are_filtered_and_long_ones_dropped() {
    let bench = Bench::new();
    let mut driver = bench.driver(false);
    let mut other = frame(1);
    other[..6].copy_from_slice(&Mac::local(9).octets());
    let mut group = frame(2);
    group[..6].copy_from_slice(&Mac::BROADCAST.octets());
    let mut long = frame(3);
    long.resize(BUFFER as usize + 1, 0);
    bench.deliver(&[other, group.clone(), long], LIMITS);
    assert_eq!(receive(&mut driver), [group]);
    assert_eq!((bench.dropped(DropReason::Filtered), bench.dropped(DropReason::TooLong)), (1, 1));
}

#[test]
fn a_broken_driver_stops_its_device_until_it_resets_it() {
    for (value, why) in [(60 << 16 | 256, "buffer"), (13 << 16, "length"), (2049 << 16, "length")] {
        let mut bench = Bench::new();
        let mut driver = bench.driver(false);
        driver.regs().write32(0, reg::SEND, value);
        let fault = bench.model.device.fault().unwrap();
        assert!(fault.contains(why), "{fault}");
        assert_eq!(bench.deliver(&[frame(1)], LIMITS), 1);
        assert_eq!(bench.dropped(DropReason::Down), 1);
        assert!(driver.send(&frame(1)) && bench.gather().is_empty(), "nothing passes");
        let mut driver = bench.driver(false);
        assert!(driver.send(&frame(1)));
        assert_eq!(bench.gather().len(), 1, "a reset heals it");
    }
}

#[test]
fn a_write_that_is_carried_out_twice_sends_one_frame() {
    let mut bench = Bench::new();
    let mut driver = bench.driver(false);
    assert!(driver.send(&frame(1)));
    driver.regs().write32(0, reg::SEND, 61 << 16);
    assert!(driver.send(&frame(2)));
    assert_eq!(bench.gather(), [frame(1), frame(2)]);
}

#[test]
fn an_area_outside_of_memory_is_a_fault() {
    for area in [AT + MEMORY as u64 - 100, 0, u64::MAX - 5] {
        let mut bench = Bench::new();
        let mut driver = bench.driver(false);
        driver.regs().write32(0, reg::AREA_LOW, area as u32);
        driver.regs().write32(0, reg::AREA_HIGH, (area >> 32) as u32);
        assert!(driver.send(&frame(1000)));
        assert!(bench.gather().is_empty());
        assert!(bench.model.device.fault().unwrap().contains("area"));
    }
}

#[test]
fn a_successor_goes_on_and_delivers_nothing_twice() {
    let mut bench = Bench::new();
    let mut driver = bench.driver(false);
    let frames: Vec<_> = (0..10).map(frame).collect();
    assert!(frames.iter().all(|frame| driver.send(frame)));
    bench.deliver(&frames, LIMITS);
    // These frames are lent, and not given back.
    assert_eq!(bench.lend(), frames);
    assert!(driver.send(&frames[3]));
    bench.remake();
    assert_eq!(bench.gather(), [frames[3].clone()]);
    let mut driver = {
        let mut regs = bench.regs();
        assert_eq!(regs.read32(0, reg::SENT), 11);
        regs
    };
    let places: Vec<_> = (0..11).map(|_| driver.read32(0, reg::RECEIVE) & 0xffff).collect();
    assert_eq!(places[..10], (0..10).collect::<Vec<_>>());
}

#[test]
fn a_reset_while_frames_are_lent_gives_none_of_them_back() {
    let mut bench = Bench::new();
    let mut driver = bench.driver(false);
    (0..5).for_each(|i| assert!(driver.send(&frame(i))));
    let lent = bench.lend().len();
    let mut driver = bench.driver(false);
    bench.model.transmit[0].complete(lent);
    assert_eq!(bench.regs().read32(0, reg::SENT), 0);
    assert!(driver.send(&frame(9)));
    assert_eq!(bench.gather(), [frame(9)]);
}

#[test]
fn a_driver_refuses_other_devices_and_too_little_memory() {
    let bench = Bench::new();
    let mut small = Dma::new(Arc::clone(&bench.mapping), 0, 4096, AT).unwrap();
    let refused = Driver::new(bench.regs(), &mut small, false, false).unwrap_err();
    assert_eq!(refused, DriverError::Memory);
    assert_eq!(AREA as usize, 2 * 256 * 2048);
}

#[test]
fn registers_stand_in_the_table_at_their_offsets() {
    for (at, register) in (0u64..).step_by(4).zip(REGISTERS) {
        assert_eq!(u64::from(register.at), at, "{}", register.name);
    }
}

proptest! {
    /// Objective: no access panics or loops, every frame is counted, and a reset always restores
    /// the device.
    #[test]
    fn any_guest_is_survived(steps in proptest::collection::vec((0..8u8, 0..64u64, any::<u32>()), 1..200)) {
        let mut bench = Bench::new();
        let mut lent = 0;
        let mut regs = bench.regs();
        let drops = |bench: &Bench| bench.config.egress[0].drops.iter().map(|d| d.get()).sum::<u64>();
        let mut delivered = 0;
        for (what, at, value) in steps {
            match what {
                0 | 1 => regs.write32(0, at, value),
                2 => drop(regs.read32(0, at)),
                3 => {
                    let sent = bench.config.ingress.frames.get() as u32 % FRAMES;
                    regs.write32(0, reg::SEND, value & 0x07ff_0000 | sent);
                }
                4 => regs.write32(0, reg::CONTROL, 1 | value & 7),
                5 => regs.write32(0, reg::AREA_LOW, AT as u32),
                6 => {
                    bench.model.transmit[0].complete(lent);
                    lent = bench.lend().len();
                }
                _ => delivered += bench.deliver(&[frame(value % 2000)], LIMITS) as u64,
            }
            prop_assert_eq!(bench.config.egress[0].frames.get() + drops(&bench), delivered);
            prop_assert!(bench.registers.take_over().is_ok(), "what accesses made is possible");
        }
        bench.model.transmit[0].complete(lent);
        let mut driver = bench.driver(false);
        prop_assert!(driver.send(&frame(1)));
        prop_assert_eq!(bench.gather().len(), 1);
    }
}

#[test]
fn time_is_not_looked_at() {
    let asked = Rc::new(Cell::new(0));
    let bench = Bench::new();
    let counter = Rc::clone(&asked);
    let clock = move || {
        counter.set(counter.get() + 1);
        Nanos(counter.get())
    };
    let mut regs = Direct::new(Arc::clone(&bench.model.device), clock);
    assert_eq!(regs.read32(0, reg::ID), u32::from_le_bytes(*b"ONE1"));
    assert_eq!((regs.read16(0, reg::ID), asked.get()), (0, 2), "registers are read whole");
}
