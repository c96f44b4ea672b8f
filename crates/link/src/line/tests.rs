//! A link's behaviour, frame by frame, in virtual time.
#![allow(unsafe_code, reason = "the tests vouch for the memory of their frames")]

use super::*;
use crate::{Impairment, Meter};
use port::MapGuard;
use shmem::Bytes;
use std::sync::Arc;

/// Sends frames of the given numbers, all at `now`. Returns why any was dropped at once.
fn send(
    link: &mut Link,
    numbers: impl IntoIterator<Item = u32>,
    now: Nanos,
) -> Vec<Option<DropReason>> {
    // SAFETY: the frames lie in `bytes`, which outlives the scratch's use.
    let map = unsafe { MapGuard::assume_mapped() };
    let mut scratch = Scratch::new(1);
    let mut dropped = Vec::new();
    for number in numbers {
        let mut bytes = vec![0; 60 + number as usize % 200];
        bytes[14..18].copy_from_slice(&number.to_le_bytes());
        scratch.clear();
        scratch.push(Bytes::of(&mut bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        dropped.push(link.admit(scratch.batch(&map).pick(0), (Offload::NONE, 0), now));
    }
    dropped
}

/// The numbers of the frames that are due.
fn receive(link: &mut Link, now: Nanos) -> Vec<u32> {
    // SAFETY: the frames are the channel's, which keeps them until they are completed.
    let map = unsafe { MapGuard::assume_mapped() };
    let mut numbers = Vec::new();
    let mut scratch = Scratch::new(64);
    loop {
        scratch.clear();
        let frames = link.release(&mut scratch, 64, now);
        scratch.judge(&map, &mut [(); 64], |_, _| ());
        let batch = scratch.batch(&map);
        for i in 0..frames as u16 {
            let head = batch.head(i);
            let number = u32::from_le_bytes(head[14..18].try_into().unwrap());
            assert_eq!(batch.frame(i).len(), 60 + number as usize % 200, "whole");
            numbers.push(number);
        }
        link.complete(frames);
        if frames == 0 {
            return numbers;
        }
    }
}

/// A link as `--rx-impair` makes it.
fn impaired(config: Impairment, number: usize) -> Link {
    config.check().unwrap();
    Link::new(config.into(), number, Arc::default())
}

fn channel(change: impl FnOnce(&mut Impairment)) -> Link {
    let mut config = Impairment { limit: Impairment::MAX_FRAMES, ..Impairment::default() };
    change(&mut config);
    impaired(config, 0)
}

/// A link of these words, and its meter.
fn of(words: &str) -> (Link, Arc<Meter>) {
    let meter = Arc::new(Meter::default());
    (Link::new(words.parse().unwrap(), 0, Arc::clone(&meter)), meter)
}

const MS: u64 = Nanos::MILLI;

#[test]
fn a_link_that_is_not_bad_changes_nothing() {
    let mut link = channel(|_| ());
    send(&mut link, 0..500, Nanos(5));
    assert_eq!(receive(&mut link, Nanos(5)), (0..500).collect::<Vec<_>>());
    assert!(link.is_done());
    assert_eq!(link.take_tally(), Tally::default());
}

#[test]
fn frames_are_lost_and_doubled_as_often_as_configured() {
    for ppm in [1000, 10_000, 500_000, 1_000_000] {
        let mut link = channel(|c| (c.loss_ppm, c.duplicate_ppm) = (ppm, 0));
        let mut came = 0;
        for round in 0..100 {
            send(&mut link, round * 1000..(round + 1) * 1000, Nanos(0));
            came += receive(&mut link, Nanos(0)).len() as u64;
        }
        let lost = link.take_tally().lost;
        assert_eq!(lost + came, 100_000);
        let wanted = u64::from(ppm) / 10;
        assert!(lost.abs_diff(wanted) <= wanted / 5, "{lost} lost of 100000 at {ppm} ppm");
    }
    let mut link = channel(|c| c.duplicate_ppm = 250_000);
    send(&mut link, 0..10_000, Nanos(0));
    let came = receive(&mut link, Nanos(0));
    let doubled = came.len() as u64 - 10_000;
    assert_eq!(link.take_tally(), Tally { duplicated: doubled, ..Tally::default() });
    assert!((2200..=2800).contains(&doubled), "{doubled}");
    assert!(came.is_sorted(), "a copy follows at once");
}

#[test]
fn a_frame_that_is_dropped_at_once_is_told_from_others() {
    let lost = Some(DropReason::Impaired);
    let (mut link, _) = of("loss=every:2,delay=1ms");
    assert_eq!(send(&mut link, 0..4, Nanos(0)), [None, lost, None, lost]);
    // Behind a rate, a frame that has to wait may be lost later, at another frame's arrival.
    let (mut link, _) = of("rate=1Mb/s,loss=every:2,queue=1frames");
    assert_eq!(send(&mut link, 0..3, Nanos(0)), [None, None, Some(DropReason::Full)]);
    // The frame that waited is lost as this one arrives.
    assert_eq!(send(&mut link, [3], Nanos(Nanos::SECOND)), [None]);
    assert_eq!(send(&mut link, [4], Nanos(2 * Nanos::SECOND)), [lost]);
    assert_eq!(link.take_tally(), Tally { full: 1, lost: 2, ..Tally::default() });
}

#[test]
fn frames_are_delayed_and_stay_in_order() {
    let mut link = channel(|c| (c.delay_us, c.jitter_us) = (10_000, 2000));
    let mut came = Vec::new();
    for ms in 0..1000 {
        send(&mut link, [ms as u32], Nanos(ms * MS));
        for number in receive(&mut link, Nanos(ms * MS)) {
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
    let mut link = channel(|c| (c.delay_us, c.reorder_ppm) = (1000, 100_000));
    send(&mut link, 0..1000, Nanos(0));
    let mut early = receive(&mut link, Nanos(0));
    assert!((60..=140).contains(&early.len()), "{}", early.len());
    let late = receive(&mut link, Nanos(MS));
    assert!(late.is_sorted() && early.len() + late.len() == 1000);
    early.extend(late);
    early.sort_unstable();
    assert_eq!(early, (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_seed_decides_and_each_queue_draws_its_own() {
    let fate = |seed, queue| {
        let config = Impairment { seed, loss_ppm: 300_000, ..Impairment::default() };
        let mut link = impaired(config, queue);
        send(&mut link, 0..500, Nanos(0));
        receive(&mut link, Nanos(0))
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
        let mut link = impaired(config, 0);
        send(&mut link, 0..500, Nanos(0));
        receive(&mut link, Nanos(MS))
    };
    assert_eq!(with_delay(), fate(1, 0));
}

#[test]
fn a_full_channel_takes_no_more_and_grows_no_further() {
    let mut link = channel(|c| (c.limit, c.delay_us, c.duplicate_ppm) = (9, 1000, 1_000_000));
    send(&mut link, 0..5, Nanos(0));
    assert_eq!(link.room(60), 0);
    assert_eq!(receive(&mut link, Nanos(MS)).len(), 9, "the last one found no room for a copy");
    assert_eq!((link.room(60), link.flight_bytes), (9, 0));
    send(&mut link, 0..5, Nanos(MS));
    assert_eq!(link.abandon(), 9);
    assert_eq!((link.room(60), link.flight_bytes), (9, 0));
}

#[test]
fn a_link_that_becomes_good_gives_all_away_at_once() {
    let mut link = channel(|c| c.delay_us = 1_000_000);
    send(&mut link, 0..5, Nanos(0));
    assert!(receive(&mut link, Nanos(0)).is_empty());
    link.set(None);
    assert!(!link.is_done());
    assert_eq!(receive(&mut link, Nanos(0)), [0, 1, 2, 3, 4]);
    assert!(link.is_done());
}

#[test]
fn frames_that_are_put_back_come_again_in_order() {
    let mut link = channel(|_| ());
    send(&mut link, 0..10, Nanos(0));
    let mut scratch = Scratch::new(64);
    assert_eq!(link.release(&mut scratch, 6, Nanos(0)), 6);
    link.complete(2);
    link.put_back();
    assert_eq!(receive(&mut link, Nanos(0)), (2..10).collect::<Vec<_>>());
}

#[test]
fn a_frame_keeps_the_host_that_sent_it() {
    // SAFETY: the frame lies in `bytes`, which outlives the scratch's use.
    let map = unsafe { MapGuard::assume_mapped() };
    let (mut link, mut scratch, mut bytes) = (channel(|_| ()), Scratch::new(4), [0; 60]);
    scratch.push(Bytes::of(&mut bytes).span());
    scratch.judge(&map, &mut [()], |_, _| ());
    for via in [7, 0, 9] {
        link.admit(scratch.batch(&map).pick(0), (Offload::NONE, via), Nanos(0));
    }
    scratch.clear();
    assert_eq!(link.release(&mut scratch, 4, Nanos(0)), 3);
    assert_eq!(scratch.take_vias()[..3], [7, 0, 9]);
}

/// When frames arrive whose bytes are `len` each, sent one every `gap` nanoseconds.
fn arrivals(link: &mut Link, frames: u32, gap: u64) -> Vec<(u32, u64)> {
    let mut came = Vec::new();
    let mut take = |link: &mut Link, until: u64| {
        while let Some(due) = link.due().filter(|due| due.0 <= until) {
            came.extend(receive(link, due).into_iter().map(|number| (number, due.0)));
        }
    };
    for number in 0..frames {
        let now = u64::from(number) * gap;
        take(link, now);
        send(link, [number], Nanos(now));
    }
    take(link, u64::MAX);
    came
}

#[test]
fn a_frame_takes_its_time_on_the_line_and_then_the_delay() {
    let (mut link, meter) = of("rate=1Mb/s,overhead=24,delay=10ms");
    // 60 to 62 bytes.
    send(&mut link, 0..3, Nanos(0));
    let ends = [84, 84 + 85, 84 + 85 + 86].map(|bytes| bytes * 8 * 1000 + 10 * MS);
    for (number, end) in ends.into_iter().enumerate() {
        assert!(receive(&mut link, Nanos(end - 1)).is_empty());
        assert_eq!(receive(&mut link, Nanos(end)), [number as u32]);
    }
    link.take_tally();
    let stats = meter.stats();
    assert_eq!((stats.sent_frames, stats.sent_bytes, stats.queue_frames), (3, 183, 0));
    assert_eq!(stats.queue_most_bytes, 61 + 62, "one is on the line");
}

/// However late a worker looks, frames are due when they would have arrived.
#[test]
fn a_late_worker_changes_no_time() {
    let words =
        "rate=10Mb/s,delay=1ms,jitter=200us,queue=20kB,loss=2%,aqm=codel,target=1ms,interval=10ms";
    let fates = |look_every: u64| {
        let (mut link, _) = of(words);
        let mut came = Vec::new();
        for number in 0..2000u32 {
            let now = u64::from(number) * 90_000;
            send(&mut link, [number], Nanos(now));
            if now % look_every < 90_000 {
                came.extend(receive(&mut link, Nanos(now)));
            }
        }
        came.extend(receive(&mut link, Nanos(u64::MAX)));
        (came, link.take_tally())
    };
    let (often, seldom) = (fates(90_000), fates(30 * MS));
    assert!(often.1.lost > 10 && often.1.early > 10, "{:?}", often.1);
    assert_eq!(often, seldom);
}

/// M/D/1 (Pollaczek and Khinchine): the mean wait is rho / (2 (1 - rho)) services.
#[test]
fn waits_are_those_of_an_m_d_1_queue() {
    for (rho, percent) in [(0.3, 4.0), (0.6, 5.0)] {
        let (mut link, _) = of("rate=8Mb/s,queue=1GB");
        let service = 200_000.0; // 200 bytes
        let mut random = crate::random::Random::of(5, 0, crate::random::Kind::Loss);
        let (mut now, mut waited, mut frames) = (0.0, 0.0, 0u32);
        let mut sent = VecDeque::new();
        for _ in 0..40_000 {
            let uniform = (random.below(1 << 53) as f64 + 0.5) / (1u64 << 53) as f64;
            now += -uniform.ln() * service / rho;
            while let Some(due) = link.due().filter(|due| due.0 as f64 <= now) {
                for _ in receive(&mut link, due) {
                    let at: f64 = sent.pop_front().unwrap();
                    waited += due.0 as f64 - at - service;
                    frames += 1;
                }
            }
            send(&mut link, [140], Nanos(now as u64));
            sent.push_back(now);
        }
        let mean = waited / f64::from(frames) / service;
        let theory = rho / (2.0 * (1.0 - rho));
        let off = (mean / theory - 1.0).abs() * 100.0;
        assert!(off < percent, "at {rho}: {mean} services, not {theory}");
    }
}

#[test]
fn queues_are_as_long_as_configured() {
    for (words, fit) in [
        ("rate=1Mb/s,queue=1000B", 1000 / 200),
        ("rate=1Mb/s,queue=7frames", 7),
        ("rate=1Mb/s,queue=16ms", 10),
        ("rate=1Mb/s", LinkConfig::default().room().bytes as usize / 200),
        ("rate=20Mb/s,delay=1s", 20_000_000 / 8 / 200),
    ] {
        let (mut link, meter) = of(words);
        for _ in 0..fit + 51 {
            // Frames of 200 bytes; the first is on the line at once.
            send(&mut link, [140], Nanos(0));
        }
        let tally = link.take_tally();
        let stats = meter.stats();
        assert_eq!((stats.queue_frames as usize, tally.full), (fit, 50), "{words}");
        assert_eq!(link.room(200), 0, "{words}");
        assert!(stats.memory <= link.config().room().memory(), "{words}");
    }
}

#[test]
fn a_line_carries_what_it_says_and_holds_little_more_memory_than_its_frames() {
    for (len, most) in [(1514u32, 1.1), (64, 1.3)] {
        let (mut link, meter) = of("rate=400Mb/s,delay=20ms,queue=1MB");
        let (mut now, mut came, mut worst) = (0, 0u64, 0.0f64);
        let map = guard();
        let mut bytes = vec![0; len as usize];
        let mut scratch = Scratch::new(1);
        scratch.push(Bytes::of(&mut bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        let batch = scratch.batch(&map);
        let mut out = Scratch::new(64);
        while now < 100 * MS {
            while link.room_at(len as usize, Nanos(now)) > 0 {
                link.admit(batch.pick(0), (Offload::NONE, 0), Nanos(now));
            }
            out.clear();
            let due = link.release(&mut out, 64, Nanos(now));
            link.complete(due);
            came += if now >= 50 * MS { due as u64 } else { 0 };
            link.take_tally();
            let stats = meter.stats();
            let payload = stats.queue_bytes + link.flight_bytes;
            if now > 50 * MS {
                let table = 16 * (stats.queue_frames + stats.flight_frames);
                worst = worst.max((stats.memory + table) as f64 / payload as f64);
            }
            now += 20_000;
        }
        let bits = came * u64::from(len) * 160;
        assert!(bits.abs_diff(400_000_000) * 200 <= 400_000_000, "{bits} b/s of {len} bytes");
        assert!(worst < most, "{worst} of the payload of {len} bytes");
        assert_eq!(link.take_tally().memory, 0);
    }
}

#[test]
fn corrupt_frames_differ_in_one_bit_behind_their_addresses() {
    let (mut link, _) = of("corrupt=100%,seed=3");
    let map = guard();
    let mut places = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let mut bytes = vec![0xa5u8; 100];
        let mut scratch = Scratch::new(1);
        scratch.push(Bytes::of(&mut bytes).span());
        scratch.judge(&map, &mut [()], |_, _| ());
        let good = Offload { flags: Offload::DATA_VALID, ..Offload::NONE };
        link.admit(scratch.batch(&map).pick(0), (good, 0), Nanos(0));
        scratch.clear();
        assert_eq!(link.release(&mut scratch, 1, Nanos(0)), 1);
        assert!(!scratch.any_offload(), "its checksum is not good any more");
        scratch.judge(&map, &mut [()], |_, _| ());
        let mut out = vec![0; 100];
        scratch.batch(&map).copy_frame(0, Bytes::of(&mut out));
        link.complete(1);
        let changed: Vec<usize> = (0..100).filter(|at| out[*at] != 0xa5).collect();
        assert!(changed.len() == 1 && changed[0] >= 14, "{changed:?}");
        assert_eq!((out[changed[0]] ^ 0xa5).count_ones(), 1);
        places.insert(changed[0]);
    }
    assert!(places.len() > 70, "all over the frame: {}", places.len());
    assert_eq!(link.take_tally().corrupted, 300);
}

#[test]
fn a_link_changes_under_traffic_without_loss_or_reordering() {
    let changes = [
        "rate=10Mb/s,delay=5ms,queue=1MB",
        "rate=1Gb/s,delay=1ms,queue=1MB,aqm=fq_codel",
        "delay=3ms",
        "rate=20Mb/s,queue=2000frames,aqm=pie",
        "rate=20Mb/s,queue=1MB,aqm=red",
        "delay=1ms,jitter=1ms",
    ];
    let (mut link, _) = of(changes[0]);
    let mut came = Vec::new();
    for number in 0..3000u32 {
        let now = u64::from(number) * 50_000;
        if number % 100 == 99 {
            let words = changes[number as usize / 100 % changes.len()];
            link.set(Some((words.parse().unwrap(), Arc::default())));
        }
        send(&mut link, [number], Nanos(now));
        came.extend(receive(&mut link, Nanos(now)));
    }
    let tally = link.take_tally();
    link.set(None);
    came.extend(receive(&mut link, Nanos(0)));
    assert_eq!(tally.full + tally.lost + tally.memory, 0, "{tally:?}");
    assert_eq!(came.len() as u64, 3000 - tally.early);
    assert!(came.is_sorted() && tally.early < 100, "{tally:?}");
    assert!(link.is_done());
}

#[test]
fn a_trace_and_a_series_say_when_frames_arrive() {
    let mut config: LinkConfig = "trace=t,delay=1ms".parse().unwrap();
    config.trace = Some(Arc::new(crate::Bandwidth::parse("2\n10").unwrap()));
    let mut link = Link::new(config, 0, Arc::default());
    // Frames of 200 bytes: seven fit an opportunity.
    send(&mut link, [140; 16], Nanos(0));
    let at = |link: &mut Link, ms: u64| receive(link, Nanos(ms * MS)).len();
    assert_eq!([2, 3, 10, 11, 12, 13].map(|ms| at(&mut link, ms)), [0, 7, 0, 8, 0, 1]);

    let mut config: LinkConfig = "series=s".parse().unwrap();
    let text = "0s 10ms 0%\n100ms 30ms 100%\n200ms 5ms 0%\n300ms 0ms 0%";
    config.series = Some(Arc::new(crate::Series::parse(text).unwrap()));
    let mut link = Link::new(config, 0, Arc::default());
    let came = arrivals(&mut link, 60, 10 * MS);
    let expected = (0..60).filter(|n| !(10..20).contains(&(n % 30))).map(|n| {
        let delay = if n % 30 < 10 { 10 } else { 5 };
        (n, (u64::from(n) * 10 + delay) * MS)
    });
    assert_eq!(came, expected.collect::<Vec<_>>());
}

#[test]
fn memory_is_bounded_whatever_comes() {
    // Few long frames among many that overtake them keep their chunks.
    let (mut link, meter) = of("delay=10s,reorder=99%,queue=1MB,seed=1");
    for round in 0..800u64 {
        send(&mut link, 0..20, Nanos(round * 100_000));
        receive(&mut link, Nanos(round * 100_000));
        link.take_tally();
        assert!(meter.stats().memory <= link.config().room().memory());
    }
    assert!(link.abandon() > 0 && link.is_empty());
    link.take_tally();
    assert!(meter.stats().memory <= 17 << 16, "{} kept", meter.stats().memory);
}

fn guard() -> MapGuard<'static> {
    // SAFETY: the tests' vectors and the links outlive the scratches' use.
    unsafe { MapGuard::assume_mapped() }
}
