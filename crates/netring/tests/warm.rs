//! Objective: nothing on the way of a frame allocates. Steps: a counting allocator around sending,
//! receiving and forwarding over pipes that were used before.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

#[path = "../../shmem/tests/allocations/mod.rs"]
mod allocations;

use allocations::allocations;
use netring::{PipeConfig, Region, RegionConfig, pipe};

#[test]
fn the_way_of_a_frame_allocates_nothing() {
    let sizes = RegionConfig::ports(4, 1, 64);
    let region = Region::private(sizes).unwrap();
    let config = PipeConfig::default().slots(64).in_region(&region);
    let ((mut a, mut b), (mut c, mut d)) = (pipe(&config).unwrap(), pipe(&config).unwrap());
    let (frame, mut bytes) = ([7; 1500], [0; 2048]);
    let before = allocations();
    let mut received = 0;
    for _ in 0..1000 {
        let mut out = a.send(32);
        assert!(out.push(&frame));
        out.fill(31, |window| window.copy_in(&frame[..60]));
        a.flush().unwrap();
        let (mut batch, mut out) = (b.receive(64), c.send(64));
        while let Some(frame) = batch.next_within(out.room()) {
            out.forward(frame).unwrap();
        }
        b.flush().unwrap();
        c.flush().unwrap();
        received += d.receive(64).map(|frame| frame.copy_out(&mut bytes)).count();
        d.flush().unwrap();
    }
    assert_eq!((received, allocations() - before), (32_000, 0));
}
