//! Memory that disappears under a queue, and memory that a warm queue allocates.
#![allow(unsafe_code, reason = "an allocator that counts")]

#[path = "../../shmem/tests/allocations/mod.rs"]
mod allocations;
mod support;

use std::os::fd::AsFd;
use std::sync::Arc;

use allocations::allocations;
use driver::virtio::{Buffer, Driver, layout_at};
use nic::virtio::{Fault, Features, QueueConfig, QueueState, Receive, Transmit};
use port::{DropReason, Egress, EgressCounters, FrameIdx, Ingress, MapGuard, Nanos, Scratch};
use rustix::fs::MemfdFlags;
use shmem::{GuestMemory, Mapping, Shared};
use support::{BASE, Guest, HEADER, LIMITS, pattern};

/// Moves a batch. Returns how many frames it had, and how many allocations it made.
fn batch(from: &mut Transmit, to: &Receive, scratch: &mut Scratch) -> (usize, u64) {
    // SAFETY: the guests' memory outlives the scratch.
    let map = unsafe { MapGuard::assume_mapped() };
    let before = allocations();
    scratch.clear();
    let gathered = from.gather(scratch, 64, Nanos(0));
    scratch.judge(&map, &mut [(); 64], |_, _| ());
    let list: [FrameIdx; 64] = std::array::from_fn(|i| i as FrameIdx);
    let delivered = to.deliver(&scratch.batch(&map), &list[..gathered], LIMITS);
    from.complete(delivered.finished);
    let _ = (from.settle(Nanos(0)), to.settle(Nanos(0)), from.arm());
    (gathered, allocations() - before)
}

#[test]
fn a_warm_queue_allocates_nothing() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let features =
            BASE | packed | Features::MRG_RXBUF | Features::INDIRECT_DESC | Features::CSUM;
        let (mut sender, mut taker) = (Guest::new(features, 128), Guest::new(features, 128));
        let (mut from, to) = (sender.transmit(), taker.receiver());
        let mut scratch = Scratch::new(64);
        for round in 0..20 {
            for i in 0..30 {
                let header = [u8::from(i % 5 == 0), 0, 0, 0, 0, 0, 34, 0, 6, 0, 0, 0];
                let cuts: &[u32] = if i % 3 == 0 { &[12, 100] } else { &[] };
                assert!(sender.send(header, &pattern(1000 + 100 * i, i), cuts, i % 2 == 0));
            }
            while taker.add(&[1526], true, false).is_some() {}
            sender.driver.publish();
            taker.driver.publish();
            let (gathered, allocations) = batch(&mut from, &to, &mut scratch);
            assert_eq!(gathered, 30);
            if round > 0 {
                assert_eq!(allocations, 0, "{packed:?} round {round}");
            }
            assert_eq!(sender.reap(), 30);
            (0..30)
                .for_each(|i| assert_eq!(taker.receive().unwrap().1, pattern(1000 + 100 * i, i)));
        }
    }
}

#[test]
fn memory_that_is_cut_off_stops_its_queues_alone() {
    const LEN: u64 = 0x2_0000;
    shmem::guard::install();
    for packed in [Features::empty(), Features::RING_PACKED] {
        let file = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN).unwrap();
        let mapping = Mapping::unsealed(file.as_fd(), LEN as usize).unwrap();
        let memory = Arc::new(GuestMemory::of(mapping, 0).unwrap());
        let features = BASE | packed;
        let queue = |at| {
            let layout = layout_at(at, 8);
            let driver = Driver::new(&memory, layout, features).unwrap();
            let state: Shared<QueueState> = Shared::private().unwrap();
            state.start_at(support::first_base(features));
            let memory = Arc::clone(&memory);
            (driver, QueueConfig::new(memory, layout, features, state))
        };
        let ((mut sent, tx), (mut received, rx)) = (queue(0x0), queue(0x1000));
        let mut from = Transmit::new(tx.clone(), Shared::private().unwrap()).unwrap();
        let counters: Shared<EgressCounters> = Shared::private().unwrap();
        let to = Receive::new(rx.clone(), counters.clone()).unwrap();
        let buffer = |at, writable| [Buffer { at, len: 200, writable }];
        for at in [0x1_0000, 0x1_1000, 0x1_2000] {
            sent.add(&buffer(at, false), None).unwrap();
            received.add(&buffer(at + 0x4000, true), None).unwrap();
        }
        sent.publish();
        received.publish();
        // The truncation removes the buffers, but not the queues.
        rustix::fs::ftruncate(&file, 0x1_0000).unwrap();
        let mut scratch = Scratch::new(64);
        assert_eq!(batch(&mut from, &to, &mut scratch).0, 3, "noticed when they are read");
        assert_eq!(tx.state.fault(), Some(Fault::Memory), "known when it was to sleep");
        assert!(!from.has_work());

        let mut bystander = Guest::new(features, 8);
        assert!(bystander.send([0; HEADER], &pattern(100, 0), &[], false));
        bystander.driver.publish();
        let mut from = bystander.transmit();
        assert_eq!(batch(&mut from, &to, &mut scratch).0, 1);
        assert_eq!(rx.state.fault(), Some(Fault::Memory));
        assert_eq!(counters.drops[DropReason::Down as usize].get(), 4);
        assert_eq!((bystander.reap(), bystander.config.state.fault()), (1, None));
    }
}
