//! Objective: the other end of a pipe can do nothing worse than end the pipe. Steps: scripts of
//! stores to the shared rings between our calls, both fixed and random.

use netring::layout::Fault;
use netring::{PortError, drive_hostile_pipe};
use proptest::prelude::*;

/// Rings are laid out in the order `{` send, `}` receive, `}` send, `{` receive; ours is the `{`
/// end.
const TWIN: u8 = 1;
const RECEIVE: u8 = 3;

fn step(op: u8, ring: u8, value: u64) -> Vec<u8> {
    [&[ring * 8 + op][..], &value.to_le_bytes()].concat()
}

const SLOT: u8 = 1;
const CORE: u8 = 2;
const OWNER: u8 = 3;
const SEND: u8 = 4;
const READ: u8 = 5;
const FLUSH: u8 = 7;

fn slot(at: u64, buf: u64, len: u64, flags: u64) -> u64 {
    buf | len << 32 | (at << 13 | flags) << 48
}

#[track_caller]
fn assert_found(steps: &[Vec<u8>], expected: Option<Fault>) {
    let found = drive_hostile_pipe(&steps.concat());
    match (&found, expected) {
        (None, None) => {}
        (Some(PortError::Peer(fault)), Some(expected)) if *fault == expected => {}
        _ => panic!("{found:?} is not {expected:?}"),
    }
}

#[test]
fn what_is_in_order_passes() {
    let good = [step(SLOT, RECEIVE, slot(0, 10, 64, 0)), step(CORE, RECEIVE, 1)];
    assert_found(&[&good[..], &[step(READ, 0, 8), step(FLUSH, 0, 0)]].concat(), None);
}

#[test]
fn buffers_and_lengths_out_of_range_are_found() {
    for (buf, len, fault) in [
        (0, 64, Fault::BadBuffer),
        (1, 64, Fault::BadBuffer),
        (18, 64, Fault::BadBuffer),
        (u64::from(u32::MAX), 64, Fault::BadBuffer),
        (17, 2113, Fault::BadLength),
    ] {
        let bad = [step(SLOT, RECEIVE, slot(0, buf, len, 0)), step(CORE, RECEIVE, 1)];
        assert_found(&[&bad[..], &[step(READ, 0, 8), step(FLUSH, 0, 0)]].concat(), Some(fault));
    }
}

#[test]
fn positions_out_of_range_are_found() {
    assert_found(&[step(CORE, RECEIVE, 8), step(READ, 0, 8)], Some(Fault::BadHead));
    let back = [step(CORE, RECEIVE, 3), step(READ, 0, 8), step(CORE, RECEIVE, 2), step(READ, 0, 8)];
    assert_found(&back, Some(Fault::BadHead));
    assert_found(&[step(OWNER, TWIN, 1), step(FLUSH, 0, 0)], Some(Fault::BadHead));
}

#[test]
fn a_frame_that_never_ends_is_found() {
    const MOREFRAG: u64 = 0x20;
    let mut steps: Vec<_> =
        (0..8).map(|at| step(SLOT, RECEIVE, slot(at, 10, 64, MOREFRAG))).collect();
    steps.extend([step(CORE, RECEIVE, 6), step(READ, 0, 8), step(FLUSH, 0, 0)]);
    assert_found(&steps, None);
    steps.extend([step(CORE, RECEIVE, 7), step(READ, 0, 8), step(FLUSH, 0, 0)]);
    assert_found(&steps, Some(Fault::EndlessFrame));
}

#[test]
fn a_spoilt_send_slot_is_found_before_it_is_filled() {
    let spoilt = step(SLOT, TWIN, slot(0, 99, 0, 0));
    assert_found(&[spoilt, step(SEND, 0, 8 | 64 << 8)], Some(Fault::BadBuffer));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_script_does_more_than_end_the_pipe(script in prop::collection::vec(any::<u8>(), 0..2000)) {
        drive_hostile_pipe(&script);
    }

    /// Values that are nearly valid get past more checks.
    #[test]
    fn nearly_legal_scripts_do_no_more(
        steps in prop::collection::vec((0..8_u8, 0..4_u8, 0..9_u64, 0..20_u64, 0..2200_u64, any::<bool>()), 0..200)
    ) {
        let script = steps.into_iter().map(|(op, ring, at, buf, len, more)| match op {
            SLOT => step(op, ring, slot(at % 8, buf, len, if more { 0x20 } else { 0 })),
            SEND => step(op, ring, at | len << 8),
            _ => step(op, ring, at),
        });
        drive_hostile_pipe(&script.collect::<Vec<_>>().concat());
    }
}
