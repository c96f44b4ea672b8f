//! Objective: the rings of a guest whose memory is reached by messages stay in step with a copy, in
//! every software style.
#![allow(unsafe_code, reason = "memory outlives what is lent")]

mod carrier;
mod pcnet_support;

use std::sync::Arc;

use carrier::copy;
use nic::remote::Held;
use pcnet_support::*;
use port::Nanos;

const STYLES: [u16; 4] = [0, 1, 2, 3];

/// A chip that runs, over a copy.
fn remote(style: u16) -> (Raw, Held) {
    let mut raw = Raw::new(&Setup { style, ..Setup::default() });
    raw.bench.config.memory = copy(MEMORY);
    raw.remake();
    (raw, Held::default())
}

/// Lets time pass, and fetches the data that the device wants. Returns the causes.
fn carry(raw: &Raw, held: &mut Held) -> u32 {
    raw.bench.pass(Nanos::SECOND);
    let (device, guest) = (&*raw.bench.model.device, Arc::clone(&raw.bench.memory));
    carrier::carry(device, &guest, held, raw.bench.now.get()).1
}

#[test]
fn frames_are_sent_over_a_copy() {
    for style in STYLES {
        let (mut raw, mut held) = remote(style);
        for round in 0..10 {
            let frame = frame(900 + round, 1);
            let at = |n| (3 * round as u32 + n) % 8;
            raw.send(at(0), &frame[..100], STP);
            raw.send(at(1), &frame[100..], ENP);
            raw.send(at(2), &frame[..60], STP | ENP);
            raw.demand();
            assert!(raw.bench.gather().is_empty());
            carry(&raw, &mut held);
            assert_eq!(raw.bench.gather(), [frame.clone(), frame[..60].to_vec()], "{style}");
            assert_eq!(raw.status(TX_AT, at(0)).0 & OWN, OWN, "not pushed yet");
            assert_eq!(carry(&raw, &mut held), u32::from(TINT));
            for n in 0..3 {
                assert_eq!(raw.status(TX_AT, at(n)).0 & (OWN | ERR), 0, "{style}");
            }
        }
    }
}

#[test]
fn frames_are_received_over_a_copy() {
    for style in STYLES {
        let (mut raw, mut held) = remote(style);
        raw.give(0, 8, 512);
        for round in 0..10u32 {
            carry(&raw, &mut held);
            // A frame in one buffer, then one in three.
            let mac = raw.bench.mac;
            let frames = [to(mac, 300, 2), to(mac, 1200, round as usize)];
            assert_eq!(raw.bench.deliver(&frames), 2, "{style}");
            assert_eq!(raw.status(RX_AT, 4 * round % 8).0 & OWN, OWN, "not pushed yet");
            assert_eq!(carry(&raw, &mut held), u32::from(RINT));
            let mut got = Vec::new();
            for n in 0..4 {
                let at = (4 * round + n) % 8;
                let (status, message) = raw.status(RX_AT, at);
                assert_eq!(status & (OWN | ERR), 0, "{style}");
                got.push(raw.bench.read(Raw::rx_buffer(at), 512));
                if n == 0 {
                    assert_eq!((status & (STP | ENP), message), (STP | ENP, 304));
                    assert_eq!(got.remove(0)[..300], frames[0]);
                }
                raw.give(at, 1, 512);
            }
            assert_eq!(got.concat()[..1200], frames[1], "{style}");
        }
        assert_eq!(raw.bench.dropped(port::DropReason::Full), 0);
    }
}

#[test]
fn what_died_with_a_copy_is_given_back() {
    for style in STYLES {
        let (mut raw, mut held) = remote(style);
        raw.give(0, 4, 512);
        let frame = to(raw.bench.mac, 100, 1);
        raw.send(0, &frame, STP | ENP);
        raw.demand();
        carry(&raw, &mut held);
        assert_eq!(raw.bench.gather().len(), 1);
        assert_eq!(raw.bench.deliver(&[&frame, &frame]), 2);
        raw.send(1, &frame, STP | ENP);
        raw.bench.config.memory = copy(MEMORY);
        raw.remake();
        let mut held = Held::default();
        carry(&raw, &mut held);
        assert_eq!(raw.status(TX_AT, 0).0 & OWN, 0, "{style}");
        for n in 0..2 {
            assert_eq!(raw.status(RX_AT, n).0 & (OWN | ERR), ERR, "{style}");
        }
        assert_eq!(raw.bench.gather(), [&frame[..]]);
        assert_eq!(raw.bench.deliver(&[&frame]), 1);
        carry(&raw, &mut held);
        assert_eq!(raw.status(RX_AT, 2).0 & (OWN | ERR), 0, "{style}");
        assert_eq!(raw.bench.read(Raw::rx_buffer(2), 100), frame);
    }
}

/// Objective: what had left before a death belongs to the driver, even if that was not recorded.
/// None of it is written again.
///
/// Steps: two frames are received and pushed, and the driver reuses the first one's buffer. The
/// successor writes neither.
#[test]
fn regression_what_had_left_before_a_death_is_not_written_again() {
    for style in STYLES {
        let (mut raw, mut held) = remote(style);
        raw.give(0, 4, 512);
        carry(&raw, &mut held);
        let frame = to(raw.bench.mac, 100, 1);
        assert_eq!(raw.bench.deliver(&[&frame, &frame]), 2);
        carrier::take_and_die(&*raw.bench.model.device, &raw.bench.memory);
        raw.bench.write(Raw::rx_buffer(0), &[7; 100]);
        raw.bench.config.memory = copy(MEMORY);
        raw.remake();
        carry(&raw, &mut Held::default());
        assert_eq!(raw.bench.read(Raw::rx_buffer(0), 100), [7; 100], "{style}");
        assert_eq!(raw.status(RX_AT, 1).0 & (OWN | ERR), 0, "{style}");
        assert_eq!(raw.bench.read(Raw::rx_buffer(1), 100), frame);
    }
}

#[test]
fn what_a_stopped_chip_was_given_is_forgotten() {
    let (mut raw, mut held) = remote(2);
    let frame = frame(100, 1);
    raw.send(0, &frame, STP | ENP);
    raw.demand();
    carry(&raw, &mut held);
    raw.set_csr(0, 4);
    raw.describe(TX_AT, 0, BUFFERS, 0, 100);
    raw.set_csr(0, 0x42);
    raw.demand();
    carry(&raw, &mut held);
    assert!(raw.bench.gather().is_empty(), "it is the driver's again");
    raw.send(0, &frame, STP | ENP);
    raw.demand();
    carry(&raw, &mut held);
    assert_eq!(raw.bench.gather(), [frame]);
}

#[test]
fn a_start_follows_an_initialization_that_waits_for_its_block() {
    let (mut raw, mut held) = remote(2);
    raw.set_csr(0, 4);
    raw.set_csr(0, 1 | 2 | IENA);
    assert_eq!(raw.csr(0) & (IDON | TXON | RXON), 0);
    assert_eq!(carry(&raw, &mut held), 0);
    assert_eq!(raw.csr(0) & (IDON | TXON | RXON), IDON | TXON | RXON);
    // The controller was stopped while the block was on its way, so it does not start.
    raw.set_csr(0, 4);
    raw.set_csr(0, 1 | 2);
    raw.set_csr(0, 4);
    carry(&raw, &mut held);
    assert_eq!(raw.csr(0) & (IDON | TXON | RXON | 4), 4);
}
