//! How many descriptors a PCnet's turn reads, whatever a driver wrote into its rings.
#![cfg(debug_assertions)]

mod pcnet_support;

use pcnet_support::*;
use port::DropReason;

/// The length of a ring that an initialization block cannot express.
const LEN: u32 = 8192;

/// Where the buffers begin, after the ring.
const BUFFER: u32 = 0x3_0000;

/// A chip with a transmit ring of [`LEN`] descriptors of 8 bytes, with this status and length.
fn large(mode: u16, status: impl Fn(u32) -> u16, len: u32) -> Raw {
    let mut raw = Raw::new(&Setup { style: 0, mode, ..Setup::default() });
    raw.set_csr(0, 4);
    // An underflow does not turn the transmitter off.
    raw.set_csr(3, 0x40);
    [76, 78].into_iter().for_each(|length| raw.set_csr(length, (LEN as u16).wrapping_neg()));
    (0..LEN).for_each(|n| raw.describe(TX_AT, n, BUFFER, status(n), len));
    raw.set_csr(0, 0x42);
    raw
}

/// Descriptors that `work` reads.
fn read(work: impl FnOnce()) -> u64 {
    let before = nic::descriptors_read();
    work();
    nic::descriptors_read() - before
}

#[test]
fn regression_a_frame_without_an_end_is_read_128_descriptors_far() {
    let mut raw = large(0, |n| OWN | if n % 128 == 0 { STP } else { 0 }, 10);
    for turn in 1..=10 {
        raw.demand();
        let read = read(|| assert!(raw.bench.gather().is_empty()));
        assert!((128..=130).contains(&read), "{read}");
        assert_eq!(raw.status(TX_AT, 128 * turn - 1).0 & (OWN | ERR), ERR, "an underflow");
        assert_eq!(raw.status(TX_AT, 128 * turn).0 & OWN, OWN);
    }
}

#[test]
fn frames_of_many_descriptors_are_read_once() {
    let ends =
        |n| [STP, ENP].map(|bit| if n % 100 == if bit == STP { 0 } else { 99 } { bit } else { 0 });
    let mut raw = large(0, |n| OWN | ends(n)[0] | ends(n)[1], 1);
    raw.demand();
    let (mut frames, mut turns) = (0, 0);
    while raw.status(TX_AT, 8099).0 & OWN != 0 {
        let read = read(|| frames += raw.bench.gather().len());
        assert!(read <= 64 * 128 + 128, "{read}");
        turns += 1;
        assert!(turns < 10);
    }
    assert_eq!(frames, 81, "runts of more pieces than a frame may have");
}

#[test]
fn regression_frames_that_come_back_are_few_a_turn() {
    let mut raw = large(LOOP | PROM, |_| OWN | STP | ENP, 4000);
    raw.demand();
    assert!(raw.bench.gather().is_empty());
    let done = (0..LEN).take_while(|n| raw.status(TX_AT, *n).0 & OWN == 0).count();
    assert_eq!(done, 17, "64 KiB");
    assert!(raw.bench.gather().is_empty());
    assert_ne!(raw.status(TX_AT, 33).0 & OWN, OWN, "and goes on");
}

#[test]
fn a_frame_takes_64_tiny_receive_buffers_at_most() {
    let mut raw = large(0, |_| OWN, 1);
    // The receive ring is now where the transmit ring was.
    raw.set_csr(0, 4);
    raw.set_csr(24, TX_AT as u16);
    raw.set_csr(0, 0x42);
    let frames = vec![to(raw.bench.mac, 1500, 1); 64];
    let read = read(|| assert_eq!(raw.bench.deliver(&frames), 64));
    assert!((64 * 64..=64 * 65).contains(&read), "{read}");
    assert_eq!(raw.bench.dropped(DropReason::Full), 64);
}
