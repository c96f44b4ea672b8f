//! Objective: nothing on the way of a frame allocates. Steps: a counting allocator around sending,
//! receiving and forwarding over pipes that were used before.
#![allow(unsafe_code, reason = "an allocator is unsafe by nature")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use netring::{PipeConfig, Region, RegionConfig, pipe};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn the_way_of_a_frame_allocates_nothing() {
    let sizes = RegionConfig::ports(4, 1, 64);
    let region = Region::private(sizes).unwrap();
    let config = PipeConfig::default().slots(64).in_region(&region);
    let ((mut a, mut b), (mut c, mut d)) = (pipe(&config).unwrap(), pipe(&config).unwrap());
    let (frame, mut bytes) = ([7; 1500], [0; 2048]);
    let before = ALLOCATIONS.get();
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
    assert_eq!((received, ALLOCATIONS.get() - before), (32_000, 0));
}
