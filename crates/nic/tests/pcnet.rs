//! Objective: the PCnet driver and the PCnet models carry frames, both ways, through everything that
//! happens to a ring.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use nic::pcnet::{Chip, Class};
use pcnet_support::{Bench, frame, to};

const CHIPS: [Chip; 2] = [Chip::Am79C970A, Chip::Am79C973];

#[test]
fn a_driver_finds_both_chips_and_their_addresses() {
    for (chip, id) in CHIPS.into_iter().zip([0x0262_1003, 0x0262_5003]) {
        let bench = Bench::new(chip);
        let driver = bench.driver();
        assert_eq!(driver.chip(), id);
        assert_eq!(driver.mac(), bench.mac);
    }
}

#[test]
fn frames_go_out_as_they_were_sent_around_the_ring_several_times() {
    for chip in CHIPS {
        let mut bench = Bench::new(chip);
        let mut driver = bench.started();
        for round in 0..20 {
            let sent: Vec<_> = (0..7).map(|n| frame(60 + 11 * n + round, n)).collect();
            assert!(sent.iter().all(|frame| driver.send(frame, 1514)));
            driver.demand();
            assert_eq!(bench.gather(), sent, "{chip:?}, round {round}");
            assert_eq!(driver.reap(), 7);
        }
        assert_eq!(driver.counts().errors, 0);
    }
}

#[test]
fn frames_come_in_as_they_were_delivered_and_padded() {
    for chip in CHIPS {
        let mut bench = Bench::new(chip);
        let mut driver = bench.started();
        for round in 0..20 {
            let frames: Vec<_> = (0..5).map(|n| to(bench.mac, 42 + 100 * n + round, n)).collect();
            assert_eq!(bench.deliver(&frames), 5);
            let mut got = Vec::new();
            driver.receive(64, |bytes| got.push(bytes.to_vec()));
            let mut want = frames.clone();
            want.iter_mut().filter(|f| f.len() < 60).for_each(|f| f.resize(60, 0));
            assert_eq!(got, want, "{chip:?}, round {round}");
        }
    }
}

#[test]
fn only_a_transmit_demand_reaches_for_the_network() {
    let mut bench = Bench::new(Chip::Am79C970A);
    let mut driver = bench.started();
    let before = bench.registers.accesses();
    for _ in 0..10 {
        assert!(driver.send(&frame(60, 1), 1514));
        driver.demand();
        assert_eq!(bench.gather().len(), 1);
        assert!(bench.level() && driver.acknowledge(), "sent: TINT");
        assert!(!bench.level());
        assert_eq!(driver.reap(), 1);
        driver.unmask();
    }
    let after = bench.registers.accesses();
    assert_eq!(after.of(Class::Network) - before.of(Class::Network), 10);
    assert!(after.of(Class::Latch) - before.of(Class::Latch) >= 20, "RAP is half of all");
}
