//! Drivers against models: every combination of doorbells and interrupts, in both directions.

mod bench;
mod offloads;
mod recovery;
mod threads;

use bench::{Bench, CHIPS, Seen, mac, pattern};
use driver::e1000::{Config, Doorbells, Interrupts, Moderation, Request};
use frame::Offload;
use nic::csb::Version;
use nic::device::Combining;
use nic::e1000::Chip;

/// Every combination of doorbells and interrupts that a chip has.
fn modes(chip: Chip) -> Vec<Config> {
    let stock = Config::stock(chip);
    let doorbells = [
        Doorbells::Each,
        Doorbells::Combined,
        Doorbells::Block(Version::One),
        Doorbells::Block(Version::Two),
    ];
    let interrupts = [Interrupts::None, Interrupts::Pin, Interrupts::Msix];
    let pairs = doorbells.into_iter().flat_map(|d| interrupts.map(|i| (d, i)));
    pairs
        .filter(|(doorbells, interrupts)| {
            let combines_blindly =
                *doorbells == Doorbells::Combined && *interrupts == Interrupts::None;
            let has_no_messages = chip == Chip::Em82540 && *interrupts == Interrupts::Msix;
            !combines_blindly && !has_no_messages
        })
        .flat_map(|(doorbells, interrupts)| {
            let config = Config { doorbells, interrupts, transmit: 32, receive: 32, ..stock };
            let extended = (chip == Chip::L82574).then_some(Config { extended: false, ..config });
            [config].into_iter().chain(extended)
        })
        .collect()
}

fn all_modes() -> impl Iterator<Item = Config> {
    CHIPS.into_iter().flat_map(modes)
}

fn plain(frames: &[Vec<u8>]) -> Vec<Seen> {
    let seen = |frame: &Vec<u8>| Seen { bytes: frame.clone(), offload: Offload::NONE };
    frames.iter().map(seen).collect()
}

#[test]
fn it_comes_up() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        assert_eq!(bench.driver.mac(), mac(), "{config:?}");
        assert!(bench.driver.link());
        assert_eq!(bench.fault(), None);
        assert!(bench.gather().is_empty() && bench.poll().is_empty());
        bench.interrupt();
        assert_eq!(bench.model.as_ref().unwrap().device.interrupt(bench.now()).vectors, 0);
    }
}

#[test]
fn frames_pass_in_both_directions_in_every_mode() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        let frames: Vec<Vec<u8>> = (60..1515).step_by(83).map(|len| pattern(len, len)).collect();
        let mut sent = Vec::new();
        for frame in &frames {
            assert!(bench.send(frame), "{config:?}");
            bench.driver.flush();
            sent.extend(bench.work());
            bench.interrupt();
            bench.driver.reclaim();
        }
        assert_eq!(sent, plain(&frames), "{config:?}");
        assert_eq!(bench.driver.counts().done, frames.len() as u64, "{config:?}");
        let mut got = Vec::new();
        for frame in &frames {
            bench.deliver_plain(std::slice::from_ref(frame));
            got.extend(bench.interrupt());
            got.extend(bench.poll());
        }
        assert_eq!(got, frames, "{config:?}");
        assert_eq!(bench.fault(), None);
    }
}

/// Bursts of every length up to a full ring, so that the ring's end falls everywhere.
#[test]
fn rings_wrap_and_fill() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        let (mut number, mut sent) = (0, 0);
        for burst in (1..32).chain([31, 31, 31, 7, 31]) {
            let frames: Vec<Vec<u8>> =
                (0..burst).map(|i| pattern(60 + (number + i) % 300, number + i)).collect();
            for frame in &frames {
                assert!(bench.send(frame), "{config:?}: room for {burst}");
            }
            if burst == 31 {
                assert!(!bench.send(&frames[0]), "{config:?}: full");
            }
            bench.driver.flush();
            let mut seen = bench.work();
            // Combined sending waits for the interrupt of earlier frames.
            while seen.len() < frames.len() {
                bench.interrupt();
                let more = bench.work();
                assert!(!more.is_empty(), "{config:?}: {} of {burst}", seen.len());
                seen.extend(more);
            }
            assert_eq!(seen, plain(&frames), "{config:?}");
            bench.interrupt();
            bench.driver.reclaim();
            assert_eq!(bench.driver.room(), 31, "{config:?}");
            bench.deliver_plain(&frames);
            let mut got = bench.interrupt();
            got.extend(bench.poll());
            bench.driver.refill();
            assert_eq!(got, frames, "{config:?}");
            (number, sent) = (number + burst, sent + burst);
        }
        let egress = &bench.device_config.egress[0];
        assert_eq!(egress.frames.get(), sent as u64);
        assert_eq!(bench.device_config.ingress.frames.get(), sent as u64);
    }
}

/// More frames than buffers: excess frames are dropped and counted, and the others are intact. The
/// NIC resumes as soon as there are buffers again.
#[test]
fn without_buffers_frames_are_dropped_and_counted() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        let frames: Vec<Vec<u8>> = (0..50).map(|i| pattern(100, i)).collect();
        for _ in 0..3 {
            bench.deliver_plain(&frames);
            let mut got = bench.interrupt();
            got.extend(bench.poll());
            bench.driver.refill();
            assert_eq!(got, frames[..31], "{config:?}");
        }
        let egress = &bench.device_config.egress[0];
        let dropped = egress.drops[port::DropReason::Full as usize].get();
        assert_eq!((egress.frames.get(), dropped), (93, 57), "{config:?}");
    }
}

#[test]
fn every_size_of_buffer_takes_frames_of_every_size() {
    for chip in CHIPS {
        for buffer in [256, 512, 1024, 2048, 4096, 8192, 16384] {
            let config = Config {
                buffer,
                long_frames: true,
                interrupts: Interrupts::None,
                transmit: 64,
                receive: 128,
                ..Config::stock(chip)
            };
            let mut bench = Bench::new(config);
            for len in [60, 251, 252, 253, 256, 257, 508, 1514, 2044, 2045, 4092, 4096, 9000] {
                let frame = pattern(len, len);
                assert!(bench.send(&frame), "{chip:?} {buffer} {len}");
                bench.driver.flush();
                assert_eq!(bench.gather(), plain(std::slice::from_ref(&frame)));
                assert_eq!(bench.driver.reclaim(), 1);
                bench.deliver_plain(std::slice::from_ref(&frame));
                assert_eq!(bench.poll(), [frame], "{chip:?} {buffer} {len}");
            }
        }
    }
}

/// A frame in many pieces, some of them empty, anywhere in memory.
#[test]
fn frames_in_pieces_are_put_together() {
    for chip in CHIPS {
        let mut bench = Bench::new(Config { interrupts: Interrupts::None, ..Config::stock(chip) });
        let frame = pattern(1400, 3);
        let at = 12 << 20;
        bench.mapping.bytes(at, frame.len()).unwrap().copy_in(&frame);
        for cuts in [&[1400][..], &[14, 1386], &[1, 1, 12, 0, 500, 886], &[0, 60, 1340]] {
            let mut pieces = Vec::new();
            let mut offset = 0;
            for cut in cuts {
                pieces.push((bench::BASE + at as u64 + offset, *cut));
                offset += u64::from(*cut);
            }
            assert!(bench.driver.send_pieces(&pieces, &Request::default()));
            bench.driver.flush();
            assert_eq!(bench.gather(), plain(std::slice::from_ref(&frame)), "{chip:?} {cuts:?}");
            assert_eq!(bench.driver.reclaim(), 1);
        }
    }
}

/// The claim: a side that is awake is not woken, so traffic causes almost no traps.
#[test]
fn a_status_block_needs_a_doorbell_only_for_a_sleeping_side() {
    for chip in CHIPS {
        for version in [Version::One, Version::Two] {
            let config =
                Config { doorbells: Doorbells::Block(version), refill: 1, ..Config::stock(chip) };
            let mut bench = Bench::new(config);
            bench.work();
            bench.interrupt();
            let before = bench.traps();
            assert!(bench.send(&pattern(60, 0)));
            bench.driver.flush();
            assert_eq!(bench.traps().since(before).doorbells, 1, "{chip:?} {version:?}: it sleeps");
            assert_eq!(bench.work().len(), 1);
            // The worker is awake: it takes a batch, and more comes before its last look.
            bench.send(&pattern(60, 1));
            bench.driver.flush();
            let queue = &mut bench.model.as_mut().unwrap().transmit[0];
            queue.disarm();
            bench.asleep = false;
            let before = bench.traps();
            for i in 0..100 {
                assert!(bench.send(&pattern(60, i)));
                bench.driver.flush();
                assert!(!bench.gather_batch(true).is_empty());
                bench.driver.reclaim();
                bench.deliver_plain(&[pattern(64, i)]);
                assert_eq!(bench.poll().len(), 1);
            }
            let traps = bench.traps().since(before);
            assert_eq!(traps.all(), 0, "{chip:?} {version:?}: {traps:?}");
        }
    }
}

/// The driver's `want` prevents interrupts while it is awake.
#[test]
fn a_status_block_interrupts_only_a_driver_that_sleeps() {
    for chip in CHIPS {
        for version in [Version::One, Version::Two] {
            let doorbells = Doorbells::Block(version);
            let mut bench = Bench::new(Config { doorbells, ..Config::stock(chip) });
            bench.interrupt();
            assert!(!bench.driver.wait_for_frames());
            let before = bench.interrupts;
            bench.deliver_plain(&[pattern(64, 0)]);
            assert_eq!(bench.interrupt().len(), 1, "{chip:?} {version:?}");
            assert_eq!(bench.interrupts, before + 1, "{chip:?} {version:?}");
            // The driver sleeps again. The first frame wakes it, and while it polls there is no
            // other interrupt.
            bench.deliver_plain(&[pattern(64, 1)]);
            let raised = bench.model.as_ref().unwrap().device.interrupt(bench.now());
            assert_ne!(raised.vectors, 0, "{chip:?} {version:?}");
            bench.driver.interrupt(raised.vectors);
            for i in 0..50 {
                bench.deliver_plain(&[pattern(64, i)]);
                let raised = bench.model.as_ref().unwrap().device.interrupt(bench.now());
                assert_eq!(raised.vectors, 0, "{chip:?} {version:?}: {i}");
                assert!(!bench.poll().is_empty());
                bench.send(&pattern(60, i));
                bench.driver.flush();
                bench.gather();
                bench.driver.reclaim();
            }
            assert!(!bench.driver.wait_for_frames());
        }
    }
}

/// A driver without room sleeps until there is as much room as it needs, for any need.
#[test]
fn a_driver_without_room_is_interrupted_when_there_is() {
    for config in all_modes().filter(|config| matches!(config.doorbells, Doorbells::Block(_))) {
        for needed in [1, 8, 9, 20, 31] {
            let mut bench = Bench::new(Config { interrupts: Interrupts::Pin, ..config });
            bench.interrupt();
            for round in 0..4 {
                while bench.send(&pattern(60, round)) {}
                bench.driver.flush();
                while !bench.driver.wait_for_room(needed) {
                    // The driver sleeps. The device works on, three frames at a time, until it
                    // interrupts.
                    let vectors = loop {
                        let batch = bench.gather_up_to(3, true);
                        assert!(!batch.is_empty(), "{config:?}: it sleeps for ever for {needed}");
                        let device = &bench.model.as_ref().unwrap().device;
                        let raised = device.interrupt(bench.now());
                        if raised.vectors != 0 {
                            break raised.vectors;
                        }
                    };
                    bench.driver.interrupt(vectors);
                }
                assert!(bench.driver.room() >= needed);
            }
        }
    }
}

/// An 82574L's driver reads no register for data. The 82540EM's reads some at each interrupt.
#[test]
fn a_stock_driver_of_the_82574l_reads_nothing() {
    for (chip, reads) in [(Chip::Em82540, 3), (Chip::L82574, 0)] {
        let mut bench = Bench::new(Config::stock(chip));
        bench.interrupt();
        let (before, interrupts) = (bench.traps(), bench.interrupts);
        for i in 0..100 {
            assert!(bench.send(&pattern(60, i)));
            bench.driver.flush();
            assert_eq!(bench.work().len(), 1, "{chip:?}");
            bench.interrupt();
            bench.deliver_plain(&[pattern(64, i)]);
            assert_eq!(bench.interrupt().len(), 1, "{chip:?}");
        }
        let traps = bench.traps().since(before);
        let interrupts = bench.interrupts - interrupts;
        assert_eq!(interrupts, 200, "{chip:?}: one each");
        assert_eq!(traps.reads, reads * interrupts, "{chip:?}");
        assert_eq!(traps.doorbells, 100 + 100 / 16, "{chip:?}");
    }
}

#[test]
fn combined_sending_rings_once_for_all_that_waits() {
    for chip in CHIPS {
        let config = Config { doorbells: Doorbells::Combined, ..Config::stock(chip) };
        let mut bench = Bench::new(config);
        bench.interrupt();
        let before = bench.traps().doorbells;
        for i in 0..20 {
            assert!(bench.send(&pattern(60, i)));
            bench.driver.flush();
        }
        assert_eq!(bench.traps().doorbells - before, 1, "{chip:?}: the first only");
        assert_eq!(bench.work().len(), 1);
        bench.interrupt();
        assert_eq!(bench.traps().doorbells - before, 2, "{chip:?}: then one for the rest");
        assert_eq!(bench.work().len(), 19);
        bench.interrupt();
        bench.send(&pattern(60, 0));
        bench.driver.flush();
        assert_eq!(bench.traps().doorbells - before, 3, "{chip:?}: nothing was expected any more");
        assert_eq!(bench.work().len(), 1);
    }
}

/// Frames that the host holds back to combine them leave in time: at the latest at their deadline,
/// and at once when traffic is light.
#[test]
fn frames_that_are_held_back_go_in_time() {
    let combining = Some(Combining { frames: 8, delay_us: 20 });
    for config in all_modes() {
        let mut bench = Bench::with(config, combining);
        let deadline = |bench: &mut Bench| {
            bench.model.as_mut().unwrap().transmit[0].deadline().map(|at| at - bench.now())
        };
        let send = |bench: &mut Bench, count: usize| {
            for i in 0..count {
                assert!(bench.send(&pattern(60, i)), "{config:?}");
            }
            bench.driver.flush();
        };
        for round in 0..5 {
            bench.wait(10_000_000);
            send(&mut bench, 1);
            assert_eq!(bench.gather().len(), 1, "{config:?} {round}: quiet, so at once");
            let held = (0..20).any(|_| {
                bench.interrupt();
                bench.driver.reclaim();
                send(&mut bench, 3);
                bench.wait(1_000);
                bench.gather().is_empty()
            });
            assert!(held, "{config:?}: never");
            let left = deadline(&mut bench).expect("a time when it goes");
            assert!(left <= 20_000, "{config:?}: {left}");
            bench.wait(left);
            assert_eq!(bench.gather().len(), 3, "{config:?}: its time is up");
            bench.interrupt();
            bench.driver.reclaim();
            send(&mut bench, 8);
            assert_eq!(bench.gather().len(), 8, "{config:?}: enough");
            bench.interrupt();
            bench.driver.reclaim();
        }
    }
}

/// ITR is in units of 256 ns, between two interrupts; there is no delay before the first.
#[test]
fn moderation_spaces_interrupts() {
    for chip in CHIPS {
        let moderation = Moderation { interval: 400, ..Moderation::default() };
        let mut bench = Bench::new(Config { moderation, ..Config::stock(chip) });
        bench.wait(10_000_000);
        bench.interrupt();
        bench.wait(10_000_000);
        bench.deliver_plain(&[pattern(64, 0)]);
        assert_eq!(bench.interrupt().len(), 1, "{chip:?}: the first is not delayed");
        let start = bench.now();
        bench.deliver_plain(&[pattern(64, 1)]);
        let raised = bench.model.as_ref().unwrap().device.interrupt(start);
        let due = raised.due.expect("it is held back");
        assert_eq!(raised.vectors, 0, "{chip:?}");
        assert_eq!(due - start, 400 * 256, "{chip:?}");
        bench.wait(400 * 256 - 1);
        assert!(bench.interrupt().is_empty());
        bench.wait(1);
        assert_eq!(bench.interrupt().len(), 1, "{chip:?}");
    }
}
