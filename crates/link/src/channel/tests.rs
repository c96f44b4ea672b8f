//! A channel's behaviour, frame by frame, in virtual time.
#![allow(unsafe_code, reason = "the tests vouch for the memory of their frames")]

use super::*;
use port::MapGuard;

/// Sends frames of the given numbers, all at `now`.
fn send(channel: &mut Channel, numbers: impl IntoIterator<Item = u32>, now: Nanos) {
    // SAFETY: the frames lie in `bytes`, which outlives the scratch's use.
    let map = unsafe { MapGuard::assume_mapped() };
    let mut scratch = Scratch::new(1);
    for number in numbers {
        let mut bytes = vec![0; 60 + number as usize % 200];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        scratch.clear();
        scratch.push(Bytes::of(&mut bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        channel.admit(scratch.batch(&map).pick(0), (Offload::NONE, 0), now);
    }
}

/// The numbers of the frames that are due.
fn receive(channel: &mut Channel, now: Nanos) -> Vec<u32> {
    // SAFETY: the frames are the channel's, which keeps them until they are completed.
    let map = unsafe { MapGuard::assume_mapped() };
    let mut numbers = Vec::new();
    let mut scratch = Scratch::new(64);
    loop {
        scratch.clear();
        let frames = channel.release(&mut scratch, 64, now);
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let batch = scratch.batch(&map);
        for i in 0..frames as u16 {
            let head = batch.head(i);
            let number = u32::from_le_bytes(head[..4].try_into().unwrap());
            assert_eq!(batch.frame(i).len(), 60 + number as usize % 200, "whole");
            numbers.push(number);
        }
        channel.complete(frames);
        if frames == 0 {
            return numbers;
        }
    }
}

fn channel(change: impl FnOnce(&mut Impairment)) -> Channel {
    let mut config = Impairment { limit: Impairment::MAX_FRAMES, ..Impairment::default() };
    change(&mut config);
    config.check().unwrap();
    Channel::new(config, 0)
}

const MS: u64 = Nanos::MILLI;

#[test]
fn a_link_that_is_not_bad_changes_nothing() {
    let mut channel = channel(|_| ());
    send(&mut channel, 0..500, Nanos(5));
    assert_eq!(receive(&mut channel, Nanos(5)), (0..500).collect::<Vec<_>>());
    assert!(channel.is_done());
    assert_eq!(channel.take_tally(), ImpairmentCounts::default());
}

#[test]
fn frames_are_lost_and_doubled_as_often_as_configured() {
    for ppm in [1000, 10_000, 500_000, 1_000_000] {
        let mut channel = channel(|c| (c.loss_ppm, c.duplicate_ppm) = (ppm, 0));
        let mut came = 0;
        for round in 0..100 {
            send(&mut channel, round * 1000..(round + 1) * 1000, Nanos(0));
            came += receive(&mut channel, Nanos(0)).len() as u64;
        }
        let lost = channel.take_tally().lost;
        assert_eq!(lost + came, 100_000);
        let wanted = u64::from(ppm) / 10;
        assert!(lost.abs_diff(wanted) <= wanted / 5, "{lost} lost of 100000 at {ppm} ppm");
    }
    let mut channel = channel(|c| c.duplicate_ppm = 250_000);
    send(&mut channel, 0..10_000, Nanos(0));
    let came = receive(&mut channel, Nanos(0));
    let doubled = came.len() as u64 - 10_000;
    assert_eq!(channel.take_tally(), ImpairmentCounts { lost: 0, duplicated: doubled });
    assert!((2200..=2800).contains(&doubled), "{doubled}");
    assert!(came.is_sorted(), "a copy follows at once");
}

#[test]
fn frames_are_delayed_and_stay_in_order() {
    let mut channel = channel(|c| (c.delay_us, c.jitter_us) = (10_000, 2000));
    let mut came = Vec::new();
    for ms in 0..1000 {
        send(&mut channel, [ms as u32], Nanos(ms * MS));
        for number in receive(&mut channel, Nanos(ms * MS)) {
            let late = ms - u64::from(number);
            assert!((8..=13).contains(&late), "{late} ms");
            came.push((number, late));
        }
    }
    assert!(came.iter().map(|(number, _)| number).is_sorted());
    assert!(came.iter().any(|(_, late)| *late <= 9) && came.iter().any(|(_, late)| *late >= 11));
}

#[test]
fn what_overtakes_is_not_delayed() {
    let mut channel = channel(|c| (c.delay_us, c.reorder_ppm) = (1000, 100_000));
    send(&mut channel, 0..1000, Nanos(0));
    let mut early = receive(&mut channel, Nanos(0));
    assert!((60..=140).contains(&early.len()), "{}", early.len());
    let late = receive(&mut channel, Nanos(MS));
    assert!(late.is_sorted() && early.len() + late.len() == 1000);
    early.extend(late);
    early.sort_unstable();
    assert_eq!(early, (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_seed_decides_and_each_queue_draws_its_own() {
    let fate = |seed, queue| {
        let config = Impairment { seed, loss_ppm: 300_000, ..Impairment::default() };
        let mut channel = Channel::new(config, queue);
        send(&mut channel, 0..500, Nanos(0));
        receive(&mut channel, Nanos(0))
    };
    assert_eq!(fate(1, 0), fate(1, 0));
    assert_ne!(fate(1, 0), fate(2, 0));
    assert_ne!(fate(1, 0), fate(1, 1));
    // One setting does not change the outcome of another.
    let with_delay = || {
        let config = Impairment {
            seed: 1,
            loss_ppm: 300_000,
            delay_us: 5,
            jitter_us: 5,
            ..Impairment::default()
        };
        let mut channel = Channel::new(config, 0);
        send(&mut channel, 0..500, Nanos(0));
        receive(&mut channel, Nanos(MS))
    };
    assert_eq!(with_delay(), fate(1, 0));
}

#[test]
fn a_full_channel_takes_no_more_and_grows_no_further() {
    let mut channel = channel(|c| (c.limit, c.delay_us, c.duplicate_ppm) = (9, 1000, 1_000_000));
    send(&mut channel, 0..5, Nanos(0));
    assert_eq!(channel.room(), 0);
    assert_eq!(receive(&mut channel, Nanos(MS)).len(), 9, "the last one found no room for a copy");
    assert_eq!((channel.room(), channel.bytes), (9, 0));
    send(&mut channel, 0..5, Nanos(MS));
    assert_eq!(channel.abandon(), 9);
    assert_eq!((channel.room(), channel.bytes), (9, 0));
}

#[test]
fn a_link_that_becomes_good_gives_all_away_at_once() {
    let mut channel = channel(|c| c.delay_us = 1_000_000);
    send(&mut channel, 0..5, Nanos(0));
    assert!(receive(&mut channel, Nanos(0)).is_empty());
    channel.set(None);
    assert!(!channel.is_done());
    assert_eq!(receive(&mut channel, Nanos(0)), [0, 1, 2, 3, 4]);
    assert!(channel.is_done());
}

#[test]
fn frames_that_are_put_back_come_again_in_order() {
    let mut channel = channel(|_| ());
    send(&mut channel, 0..10, Nanos(0));
    let mut scratch = Scratch::new(64);
    assert_eq!(channel.release(&mut scratch, 6, Nanos(0)), 6);
    channel.complete(2);
    channel.put_back();
    assert_eq!(receive(&mut channel, Nanos(0)), (2..10).collect::<Vec<_>>());
}

#[test]
fn a_frame_keeps_the_host_that_sent_it() {
    // SAFETY: the frame lies in `bytes`, which outlives the scratch's use.
    let map = unsafe { MapGuard::assume_mapped() };
    let (mut channel, mut scratch, mut bytes) = (channel(|_| ()), Scratch::new(4), [0; 60]);
    scratch.push(Bytes::of(&mut bytes).span());
    scratch.judge(&map, &mut [()], |_, _| ());
    for via in [7, 0, 9] {
        channel.admit(scratch.batch(&map).pick(0), (Offload::NONE, via), Nanos(0));
    }
    scratch.clear();
    assert_eq!(channel.release(&mut scratch, 4, Nanos(0)), 3);
    assert_eq!(scratch.take_vias()[..3], [7, 0, 9]);
}
