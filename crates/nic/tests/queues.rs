//! A driver against the device, for every combination of features.

mod support;

use nic::virtio::{Features, QueueError, QueueLayout, Receive, Transmit};
use port::Limits;
use shmem::Shared;
use support::{BASE, Guest, HEADER, LIMITS, forward, pattern};

const NOTHING: [u8; HEADER] = [0; HEADER];

/// Every combination of features that change how queues work.
fn combinations() -> impl Iterator<Item = Features> {
    let choices = [
        Features::RING_PACKED,
        Features::EVENT_IDX,
        Features::INDIRECT_DESC,
        Features::MRG_RXBUF,
        Features::IN_ORDER,
        Features::CSUM,
    ];
    (0..1 << choices.len()).map(move |bits: usize| {
        let chosen = choices.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
        chosen.fold(BASE, |all, (_, feature)| all | *feature)
    })
}

#[test]
fn frames_arrive_as_they_were_sent_whatever_was_negotiated() {
    for features in combinations() {
        for size in [4, 256] {
            let (mut sender, mut taker) = (Guest::new(features, size), Guest::new(features, size));
            let (mut from, to) = (sender.transmit(), taker.receiver());
            // Enough rounds for a small queue to wrap several times.
            for (round, len) in
                [14, 60, 64, 116, 128, 1500, 9000, 65_000].into_iter().cycle().take(40).enumerate()
            {
                let frame = pattern(len, round);
                let indirect = features.contains(Features::INDIRECT_DESC) && round % 3 == 1;
                let cuts: &[u32] = [&[][..], &[12], &[5, 30], &[12, 1, 1400]][round % 4];
                assert!(sender.send(NOTHING, &frame, cuts, indirect));
                let len = len as u32;
                let mergeable = features.contains(Features::MRG_RXBUF);
                let (lens, chains) = match (mergeable, round % 2) {
                    (true, _) => (vec![len / 3 + 30], 3),
                    (false, 0) => (vec![len + 12], 1),
                    (false, _) => (vec![12, 100, len], 1),
                };
                for _ in 0..chains {
                    taker.add(&lens, true, indirect).expect("room");
                }
                sender.driver.publish();
                taker.driver.publish();
                let (gathered, finished, ..) = forward(&mut from, &to, LIMITS);
                assert_eq!((gathered, finished), (1, 1), "{features:?} {size} {round}");
                let (header, got) = taker.receive().expect("a frame");
                assert_eq!(header[..10], NOTHING[..10], "{features:?}");
                assert_eq!(got, frame, "{features:?} {size} round {round}");
                assert_eq!(sender.reap(), 1);
                // Buffers that this frame did not need are still with the device. Short frames use
                // them up before the next round.
                while taker.driver.room() < size {
                    let left = taker.driver.room();
                    assert!(sender.send(NOTHING, &pattern(14, 0), &[], false));
                    sender.driver.publish();
                    let _ = forward(&mut from, &to, LIMITS);
                    assert_eq!(taker.receive().unwrap().1, pattern(14, 0));
                    assert_eq!(sender.reap(), 1);
                    assert!(taker.driver.room() > left);
                }
            }
            assert_eq!(sender.config.state.fault(), None);
            assert_eq!(taker.config.state.fault(), None);
        }
    }
}

#[test]
fn batches_go_round_queues_of_any_size() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        for size in [1, 2, 64, 100, 256] {
            if packed.is_empty() && !u16::is_power_of_two(size) {
                continue;
            }
            let features = BASE | packed;
            let (mut sender, mut taker) = (Guest::new(features, size), Guest::new(features, size));
            let (mut from, to) = (sender.transmit(), taker.receiver());
            let (mut sent, mut got) = (0, 0);
            while got < 1000 {
                while sender.send(NOTHING, &pattern(64, sent), &[], false) {
                    sent += 1;
                }
                while taker.add(&[1526], true, false).is_some() {}
                sender.driver.publish();
                taker.driver.publish();
                let (gathered, finished, ..) = forward(&mut from, &to, LIMITS);
                assert_eq!(gathered, finished);
                assert_eq!(sender.reap(), finished);
                while let Some((_, frame)) = taker.receive() {
                    assert_eq!(frame, pattern(64, got), "size {size}");
                    got += 1;
                }
            }
            assert_eq!(taker.got.frames.get(), got as u64);
            assert_eq!(taker.got.bytes.get(), 64 * got as u64);
        }
    }
}

#[test]
fn a_queue_goes_on_where_its_predecessor_stopped() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let features = BASE | packed;
        let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
        for round in 0..50 {
            let (mut from, to) = (sender.transmit(), taker.receiver());
            for i in 0..3 {
                assert!(sender.send(NOTHING, &pattern(100, round + i), &[], false));
                taker.add(&[1526], true, false).expect("room");
            }
            sender.driver.publish();
            taker.driver.publish();
            assert_eq!(forward(&mut from, &to, LIMITS).1, 3);
            drop((from, to));
            assert_eq!(sender.reap(), 3);
            for i in 0..3 {
                assert_eq!(taker.receive().unwrap().1, pattern(100, round + i));
            }
            let base = sender.config.state.base(!packed.is_empty());
            let turns = 3 * (round as u32 + 1);
            let packed_base = (turns % 8) | ((turns / 8 + 1) & 1) << 15;
            let want = if packed.is_empty() { turns } else { packed_base << 16 | packed_base };
            assert_eq!(base, want);
            // Sets the position again, as a front end does.
            sender.config.state.start_at(base);
        }
    }
}

#[test]
fn frames_that_a_dead_predecessor_had_taken_are_given_back_and_not_sent_again() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        let features = BASE | packed;
        let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
        let mut dead = sender.transmit();
        for i in 0..4 {
            assert!(sender.send(NOTHING, &pattern(100, i), &[12, 30], false) || i > 1);
            taker.add(&[1526], true, false);
        }
        sender.driver.publish();
        taker.driver.publish();
        let mut scratch = port::Scratch::new(64);
        let taken = port::Ingress::gather(&mut dead, &mut scratch, 64, port::Nanos(0));
        assert_eq!(taken, 2, "three descriptors each");
        std::mem::forget(dead);
        assert_eq!(sender.reap(), 0);
        let (mut from, to) = (sender.transmit(), taker.receiver());
        assert_eq!(sender.reap(), 2, "given back");
        assert!(sender.send(NOTHING, &pattern(100, 9), &[], false));
        sender.driver.publish();
        assert_eq!(forward(&mut from, &to, LIMITS).0, 1);
        assert_eq!(taker.receive().unwrap().1, pattern(100, 9), "and those were not sent");
        assert_eq!(taker.receive(), None);
    }
}

#[test]
fn frames_without_room_wait_if_lossless_and_are_counted_if_not() {
    for packed in [Features::empty(), Features::RING_PACKED] {
        for mergeable in [Features::empty(), Features::MRG_RXBUF] {
            let features = BASE | packed | mergeable;
            let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
            let (mut from, to) = (sender.transmit(), taker.receiver());
            for i in 0..4 {
                assert!(sender.send(NOTHING, &pattern(100, i), &[], false));
            }
            for _ in 0..2 {
                taker.add(&[200], true, false).expect("room");
            }
            sender.driver.publish();
            taker.driver.publish();
            let lossless = Limits { lossless: true, ..LIMITS };
            assert_eq!(forward(&mut from, &to, lossless).1, 2);
            assert_eq!(sender.reap(), 2, "the others are held");
            drop(from);
            assert_eq!(sender.reap(), 2, "until their queue stops");
            let mut from = sender.transmit();
            assert!(sender.send(NOTHING, &pattern(100, 8), &[], false));
            sender.driver.publish();
            assert_eq!(forward(&mut from, &to, LIMITS).1, 1);
            assert_eq!(taker.got.drops[port::DropReason::Full as usize].get(), 1);
        }
    }
}

#[test]
fn frames_that_are_too_long_are_dropped_and_no_buffer_is_lost() {
    let (mut sender, mut taker) = (Guest::new(BASE, 8), Guest::new(BASE, 8));
    let (mut from, to) = (sender.transmit(), taker.receiver());
    for len in [1000, 300, 100] {
        assert!(sender.send(NOTHING, &pattern(len, 0), &[], false));
    }
    taker.add(&[112], true, false).expect("room");
    sender.driver.publish();
    taker.driver.publish();
    let limits = Limits { max_frame: 500, ..LIMITS };
    assert_eq!(forward(&mut from, &to, limits).1, 3);
    assert_eq!(taker.got.drops[port::DropReason::TooLong as usize].get(), 2);
    assert_eq!(taker.receive().unwrap().1, pattern(100, 0));
}

#[test]
fn drivers_of_before_virtio_1_have_a_header_of_ten_bytes() {
    for (features, header_len) in [
        (Features::empty(), 10),
        (Features::MRG_RXBUF, 12),
        (Features::VERSION_1, 12),
        (Features::VERSION_1 | Features::RING_PACKED, 12),
    ] {
        assert_eq!(features.header_len(), header_len);
        let (mut sender, mut taker) = (Guest::new(features, 8), Guest::new(features, 8));
        let (mut from, to) = (sender.transmit(), taker.receiver());
        for (i, cuts) in [&[][..], &[4], &[10]].into_iter().enumerate() {
            assert!(sender.send(NOTHING, &pattern(64, i), cuts, false));
            taker.add(&[header_len + 64], true, false).expect("room");
        }
        sender.driver.publish();
        taker.driver.publish();
        assert_eq!(forward(&mut from, &to, LIMITS).1, 3);
        (0..3).for_each(|i| assert_eq!(taker.receive().unwrap().1, pattern(64, i)));
    }
}

#[test]
fn queues_that_do_not_lie_in_memory_are_refused() {
    let guest = Guest::new(BASE, 8);
    let with = |change: fn(&mut QueueLayout), features| {
        let mut config = guest.config.clone();
        change(&mut config.layout);
        config.features |= features;
        let transmit = Transmit::new(config.clone(), Shared::private().unwrap()).err();
        assert_eq!(transmit, Receive::new(config, Shared::private().unwrap()).err());
        transmit
    };
    let packed = Features::RING_PACKED;
    assert_eq!(with(|l| l.size = 0, BASE), Some(QueueError::Size(0)));
    assert_eq!(with(|l| l.size = 48, BASE), Some(QueueError::Size(48)));
    assert_eq!(with(|l| l.size = 0x8001, packed), Some(QueueError::Size(0x8001)));
    assert_eq!(with(|l| l.size = 48, packed), None);
    let changes: [fn(&mut QueueLayout); 6] = [
        |l| l.descriptors = u64::MAX - 8,
        |l| l.descriptors += 4,
        |l| l.driver += 1,
        |l| l.driver = 1 << 40,
        |l| l.device += 2,
        |l| l.device = u64::MAX,
    ];
    for (i, change) in changes.into_iter().enumerate() {
        for features in [BASE, BASE | Features::EVENT_IDX, BASE | packed] {
            let refused = with(change, features);
            assert!(matches!(refused, Some(QueueError::Area { .. })), "change {i}: {refused:?}");
        }
    }
}
