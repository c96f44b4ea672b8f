//! Objective: the PCnet driver and the PCnet models carry frames in both directions, through all
//! events of a ring.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod pcnet_support;

use nic::pcnet::{Chip, Class};
use pcnet_support::{Bench, DMA, frame, to};

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
fn regression_a_frame_is_not_taken_before_it_ends() {
    let mut bench = Bench::new(Chip::Am79C970A);
    let mut driver = bench.started();
    bench.deliver(&[to(bench.mac, 777, 1)]);
    // The address of the transmit ring, from the initialization block.
    let ring = bench.word(DMA as u32 + 20);
    let [status, message] = [4, 8].map(|at| bench.read(ring + at, 4));
    let mut begun = status.clone();
    begun[3] &= !1;
    bench.write(ring + 4, &begun);
    bench.write(ring + 8, &[0; 4]);
    assert_eq!((driver.receive(64, |_| ()), driver.counts().errors), (0, 0));
    bench.write(ring + 8, &message);
    bench.write(ring + 4, &status);
    let mut got = Vec::new();
    assert_eq!(driver.receive(64, |frame| got.push(frame.to_vec())), 1);
    assert_eq!((got, driver.counts().errors), (vec![to(bench.mac, 777, 1)], 0));
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

#[test]
fn an_interrupt_costs_what_pcnet32_pays_for_it() {
    let mut bench = Bench::new(Chip::Am79C970A);
    let mut driver = bench.started();
    assert!(driver.acknowledge(), "initialized");
    driver.unmask();
    let before = driver.counts();
    for round in 0..50 {
        assert!(!bench.level());
        assert_eq!(bench.deliver(&[to(bench.mac, 60 + round, 1)]), 1);
        assert!(bench.model.receive[0].settle(bench.now.get()).kick);
        assert!(bench.level() && driver.acknowledge());
        assert!(!bench.level(), "masked until the poll is over");
        assert_eq!(driver.receive(64, |_| {}), 1);
        driver.unmask();
    }
    assert!(!driver.acknowledge());
    let after = driver.counts();
    assert_eq!(after.interrupts - before.interrupts, 50);
    // For each interrupt, CSR0 is read and written, CSR3 is read once and written twice, and CSR0
    // is written. Each access also selects its register through RAP.
    let accesses = after.reads + after.writes - before.reads - before.writes;
    assert_eq!(accesses, 50 * 14 + 2);
}

#[test]
fn both_directions_continue_over_rebuilt_models() {
    for chip in CHIPS {
        let mut bench = Bench::new(chip);
        let mut driver = bench.started();
        let (mut sent, mut got, mut lost) = (0, 0, 0);
        for round in 0..300 {
            let frames: Vec<_> = (0..1 + round % 9).map(|n| frame(60 + n * 31, n)).collect();
            let room = frames.iter().take_while(|frame| driver.send(frame, 400)).count();
            driver.demand();
            let lent = bench.lend();
            assert_eq!(lent, frames[..lent.len()], "in order");
            if round % 7 == 0 {
                // The process died: its frames are not sent twice.
                bench.remake();
                driver.regs().replace(std::sync::Arc::clone(&bench.model.device));
                lost += lent.len();
            } else {
                bench.complete(lent.len());
            }
            sent += room;
            assert_eq!(lent.len(), room);
            driver.reap();
            let incoming: Vec<_> = (0..round % 12).map(|n| to(bench.mac, 60 + n, n)).collect();
            bench.deliver(&incoming);
            let mut seen = Vec::new();
            driver.receive(64, |bytes| seen.push(bytes.to_vec()));
            assert_eq!(seen, incoming, "{chip:?}, round {round}");
            got += seen.len();
        }
        assert!(sent > 1000 && got > 1000 && lost > 100);
        assert_eq!(driver.counts().errors, 0);
        assert_eq!(driver.room(), 16);
    }
}

#[test]
fn a_full_transmit_ring_takes_nothing_until_frames_are_sent() {
    let mut bench = Bench::new(Chip::Am79C970A);
    let mut driver = bench.started();
    for _ in 0..3 {
        let sent = (0..).take_while(|n| driver.send(&frame(60, *n), 1514)).count();
        assert_eq!(sent, 16);
        driver.demand();
        assert_eq!(bench.gather().len(), 16);
        assert_eq!((driver.reap(), driver.room()), (16, 16));
    }
}

#[test]
fn a_reset_in_the_middle_of_traffic_restarts_the_rings() {
    let mut bench = Bench::new(Chip::Am79C973);
    let mut driver = bench.started();
    for round in 0..20 {
        (0..5).for_each(|n| assert!(driver.send(&frame(60, n), 1514)));
        driver.demand();
        let lent = bench.lend();
        assert_eq!(lent.len(), 5);
        driver.start(true, false).unwrap();
        bench.complete(5);
        assert!(bench.gather().is_empty());
        assert!(driver.send(&frame(70, round), 1514));
        driver.demand();
        assert_eq!(bench.gather(), [frame(70, round)]);
        assert_eq!(driver.reap(), 1);
        bench.deliver(&[to(bench.mac, 60, round)]);
        assert_eq!(driver.receive(64, |_| {}), 1);
    }
}
