//! Objective: with a shared status block, a PCnet's driver sends no demands while the controller is
//! awake, and gets interrupts only on request. That holds whatever it writes into the block.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use std::sync::Arc;

use driver::Dma;
use driver::pcnet::{Driver, Sizes};
use nic::csb::Version;
use nic::pcnet::{Chip, Class, Fault};
use pcnet_support::*;
use port::Nanos;

const VERSIONS: [Version; 2] = [Version::One, Version::Two];

fn started(bench: &Bench, version: Version) -> Driver<Registered> {
    let mut dma = Dma::new(Arc::clone(&bench.mapping), 0, DMA as usize, DMA).unwrap();
    let driver = Driver::new(bench.regs(), &mut dma, Sizes::default()).unwrap();
    let mut driver = driver.with_block(&mut dma, version).unwrap();
    driver.start(true, false).unwrap();
    driver
}

/// The driver answers an interrupt, and the bus sees it.
fn answer(bench: &Bench, driver: &mut Driver<Registered>) {
    assert!(bench.level() && driver.acknowledge());
    driver.unmask();
    assert!(!bench.level());
}

/// Lets the idle worker sleep. Returns true if it must not.
fn sleep(bench: &mut Bench) -> bool {
    bench.model.transmit[0].arm()
}

#[test]
fn while_the_controller_is_awake_frames_are_sent_without_a_trap() {
    for version in VERSIONS {
        let mut bench = Bench::with_csb(Chip::Am79C970A);
        let mut driver = started(&bench, version);
        assert!(bench.gather().is_empty());
        answer(&bench, &mut driver);
        bench.model.transmit[0].disarm();
        let before = driver.counts();
        for round in 0..100 {
            let frames: Vec<_> = (0..7).map(|n| frame(60 + n, n + round)).collect();
            assert!(frames.iter().all(|frame| driver.send(frame, 1514)));
            driver.demand();
            assert_eq!(bench.gather(), frames);
            assert!(!bench.model.transmit[0].settle(bench.now.get()).kick, "nobody asked");
            assert_eq!(driver.reap(), 7);
        }
        let after = driver.counts();
        assert_eq!(after.left_out - before.left_out, 100, "{version:?}");
        assert_eq!((after.reads, after.writes), (before.reads, before.writes));
    }
}

#[test]
fn asleep_it_is_woken_by_one_demand() {
    for version in VERSIONS {
        let mut bench = Bench::with_csb(Chip::Am79C973);
        let mut driver = started(&bench, version);
        bench.gather();
        for round in 0..50 {
            bench.model.transmit[0].disarm();
            let looks = (0..10).take_while(|_| sleep(&mut bench)).count();
            assert_eq!(looks, 0, "nothing to do");
            let network = bench.registers.accesses().of(Class::Network);
            assert!(driver.send(&frame(60, round), 1514));
            driver.demand();
            assert_eq!(bench.registers.accesses().of(Class::Network), network + 1, "{version:?}");
            assert_eq!(bench.gather(), [frame(60, round)]);
            driver.reap();
        }
    }
}

#[test]
fn what_is_written_as_it_falls_asleep_is_not_lost() {
    for version in VERSIONS {
        let mut bench = Bench::with_csb(Chip::Am79C970A);
        let mut driver = started(&bench, version);
        bench.gather();
        bench.model.transmit[0].disarm();
        assert!(driver.send(&frame(60, 1), 1514));
        driver.demand();
        assert_eq!(driver.counts().left_out, 1);
        assert!(sleep(&mut bench), "there is work");
        assert_eq!(bench.gather().len(), 1);
    }
}

#[test]
fn interrupts_come_when_they_were_asked_for() {
    for version in VERSIONS {
        let mut bench = Bench::with_csb(Chip::Am79C970A);
        let mut driver = started(&bench, version);
        answer(&bench, &mut driver);
        let receive = |bench: &mut Bench| {
            bench.deliver(&[to(bench.mac, 60, 1)]);
            bench.model.receive[0].settle(Nanos(0)).kick
        };
        assert!(receive(&mut bench), "turned on, it sleeps");
        assert_eq!(driver.receive(64, |_| {}), 1);
        answer(&bench, &mut driver);
        // The driver clears v1's flag itself; v2's arming was answered.
        assert_eq!(receive(&mut bench), version == Version::One, "{version:?}");
        assert!(driver.wait_for_frames(), "there is one already");
        if version == Version::One {
            answer(&bench, &mut driver);
        }
        assert!(!receive(&mut bench), "awake");
        driver.receive(64, |_| {});
        assert!(!driver.wait_for_frames());
        assert!(receive(&mut bench), "asleep again");
        answer(&bench, &mut driver);
        // A full transmit ring.
        while driver.send(&frame(60, 1), 1514) {}
        assert_eq!(driver.room(), 0);
        driver.demand();
        assert!(!driver.wait_for_room());
        assert_eq!(bench.gather().len(), 15);
        assert!(bench.model.transmit[0].settle(Nanos(0)).kick);
        assert!(driver.wait_for_room());
    }
}

#[test]
fn the_block_survives_a_reset_by_the_driver_and_the_death_of_a_process() {
    for version in VERSIONS {
        let mut bench = Bench::with_csb(Chip::Am79C970A);
        let mut driver = started(&bench, version);
        for round in 0..30 {
            let frames: Vec<_> = (0..5).map(|n| frame(60, n + round)).collect();
            assert!(frames.iter().all(|frame| driver.send(frame, 1514)));
            driver.demand();
            assert_eq!(bench.gather(), frames, "{version:?} {round}");
            bench.deliver(&[to(bench.mac, 60, round)]);
            assert_eq!(driver.receive(64, |_| {}), 1);
            driver.reap();
            match round % 3 {
                0 => {
                    bench.remake();
                    driver.regs().replace(Arc::clone(&bench.model.device));
                    assert!(bench.level(), "somebody may not have been told");
                }
                1 => driver.start(true, false).unwrap(),
                _ => {}
            }
        }
        bench.model.device.reset(Nanos(0));
        assert!(bench.registers.fault().is_none());
    }
}

#[test]
fn a_block_that_is_not_a_page_of_memory_stops_the_chip() {
    for at in [MEMORY - 2048, MEMORY, 0x1004, u64::MAX - 4095] {
        let mut raw = Raw::over(Bench::with_csb(Chip::Am79C970A), &Setup::default());
        for quarter in (0..4_u16).rev() {
            raw.set_csr(96 + quarter, (at >> (16 * quarter)) as u16);
        }
        assert_eq!(raw.bench.registers.fault(), Some(Fault::Block), "{at:#x}");
        assert_eq!(raw.csr(0) & (TXON | RXON | MERR), MERR);
        // Without the block, everything works as before.
        (0..4_u16).rev().for_each(|quarter| raw.set_csr(96 + quarter, 0));
        raw.initialize(&Setup::default());
        raw.set_csr(0, 0x42);
        raw.send(0, &frame(60, 1), STP | ENP);
        assert_eq!(raw.bench.gather().len(), 1);
    }
}

#[test]
fn an_index_beyond_the_ring_stops_the_chip() {
    let mut raw = Raw::over(Bench::with_csb(Chip::Am79C970A), &Setup::default());
    // A v1 block: tail, flags, on.
    let block = 0x6000_u32;
    raw.bench.write(block, &[0; 4096]);
    raw.bench.write(block + 0x0c, &[1, 0, 0, 0]);
    for (number, value) in [(99, 0), (98, 0), (97, 0), (96, block as u16)] {
        raw.set_csr(number, value);
    }
    assert_eq!(raw.csr(96), block as u16);
    assert!(raw.bench.gather().is_empty());
    for tail in [8_u32, u32::MAX] {
        raw.bench.write(block, &tail.to_le_bytes());
        assert!(!raw.bench.model.transmit[0].arm());
        assert_eq!(raw.bench.registers.fault(), Some(Fault::BlockIndex));
        raw.initialize(&Setup::default());
        raw.set_csr(0, 0x42);
        assert!(raw.bench.gather().is_empty());
    }
    // A tail that never moves does not keep the worker awake and hides no frame.
    raw.bench.write(block, &3_u32.to_le_bytes());
    raw.set_csr(0, 0x40);
    assert!(!raw.bench.model.transmit[0].arm());
    raw.send(0, &frame(60, 1), STP | ENP);
    assert!(raw.bench.model.transmit[0].arm());
}

#[test]
fn without_a_block_its_registers_are_not_there() {
    let mut raw = Raw::new(&Setup::default());
    for number in 96..100 {
        raw.set_csr(number, 0xffff);
        assert_eq!(raw.csr(number), 0);
    }
    assert_eq!(raw.bench.registers.fault(), None);
    assert_eq!(raw.bench.model.device.identity().subsystem, 0x2000);
    let with = Bench::with_csb(Chip::Am79C973);
    assert_eq!(with.model.device.identity().subsystem, 0x1101);
}
