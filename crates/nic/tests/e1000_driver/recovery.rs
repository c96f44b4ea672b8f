//! Resets and deaths during traffic.

use driver::Regs;
use driver::e1000::{Config, Doorbells, Interrupts};
use nic::csb::{CSBAH, CSBAL};
use proptest::prelude::*;

use crate::bench::{BASE, Bench, CHIPS, pattern};
use crate::{all_modes, modes, plain};

/// A reset during traffic: frames in the rings are lost, later ones pass.
#[test]
fn traffic_goes_on_after_a_reset() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        for round in 0..4 {
            let frames: Vec<Vec<u8>> = (0..5).map(|i| pattern(90 + i, round)).collect();
            for frame in &frames {
                assert!(bench.send(frame), "{config:?} {round}");
            }
            bench.driver.flush();
            let mut sent = bench.work();
            while sent.len() < frames.len() {
                bench.interrupt();
                let more = bench.work();
                assert!(!more.is_empty(), "{config:?} {round}");
                sent.extend(more);
            }
            assert_eq!(sent, plain(&frames), "{config:?}");
            bench.deliver_plain(&frames);
            let mut got = bench.interrupt();
            got.extend(bench.poll());
            assert_eq!(got, frames, "{config:?} {round}");
            // These frames are sent, but no worker takes them.
            for frame in &frames {
                bench.send(frame);
            }
            bench.driver.flush();
            bench.deliver_plain(&frames);
            bench.driver.restart().expect("it comes up again");
            bench.interrupt();
            assert_eq!(bench.fault(), None);
        }
    }
}

/// The data process dies at every point of a batch. A sent frame arrives, unless it was lent at
/// that moment. None arrives twice, and traffic resumes.
#[test]
fn a_new_model_goes_on_where_the_old_one_was() {
    for config in all_modes() {
        let mut bench = Bench::new(config);
        let (mut number, mut arrived) = (0, Vec::new());
        for point in (0..6).cycle().take(60) {
            let mut send = |bench: &mut Bench, count: usize| {
                for _ in 0..count {
                    if bench.send(&pattern(100, number)) {
                        number += 1;
                    }
                }
                bench.driver.flush();
            };
            send(&mut bench, 3);
            match point {
                0 => bench.die(),
                1 => {
                    // The process dies during a batch, whose frames are lent.
                    arrived.extend(bench.gather_batch(false));
                    bench.die();
                }
                2 => {
                    arrived.extend(bench.work());
                    bench.die();
                }
                3 => {
                    bench.deliver_plain(&[pattern(64, 1)]);
                    bench.die();
                    let mut got = bench.interrupt();
                    got.extend(bench.poll());
                    assert_eq!(got, [pattern(64, 1)], "{config:?}: received before it died");
                }
                4 => {
                    bench.die();
                    bench.deliver_plain(&[pattern(64, 2)]);
                    let mut got = bench.interrupt();
                    got.extend(bench.poll());
                    assert_eq!(got, [pattern(64, 2)], "{config:?}: received after it died");
                }
                _ => bench.interrupt().clear(),
            }
            for _ in 0..4 {
                arrived.extend(bench.work());
                bench.interrupt();
                bench.driver.reclaim();
            }
        }
        let frames: Vec<Vec<u8>> = (0..number).map(|i| pattern(100, i)).collect();
        assert_eq!(arrived, plain(&frames), "{config:?}");
        assert_eq!(bench.driver.counts().done, number as u64, "{config:?}");
        assert_eq!(bench.fault(), None);
    }
}

/// A driver that writes an invalid index into its status block stops its NIC; a reset restores it.
#[test]
fn an_index_out_of_range_in_the_block_stops_the_nic_until_a_reset() {
    for chip in CHIPS {
        for config in modes(chip) {
            let Doorbells::Block(version) = config.doorbells else { continue };
            let mut bench = Bench::new(config);
            let page = block_page(&mut bench);
            let tail = match version {
                nic::csb::Version::One => 0x00,
                nic::csb::Version::Two => 0x400,
            };
            assert!(bench.send(&pattern(60, 0)));
            bench.driver.flush();
            assert_eq!(bench.work().len(), 1);
            bench.mapping.bytes(page + tail, 4).unwrap().write(0, 32u32.to_le());
            bench.asleep = false;
            assert!(bench.gather().is_empty());
            assert!(bench.fault().is_some(), "{config:?}");
            bench.deliver_plain(&[pattern(64, 0)]);
            assert!(bench.poll().is_empty(), "{config:?}: it takes nothing any more");
            bench.driver.restart().expect("it comes up again");
            assert_eq!(bench.fault(), None, "{config:?}");
            assert!(bench.send(&pattern(60, 1)));
            bench.driver.flush();
            assert_eq!(bench.work().len(), 1, "{config:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Any value, anywhere in the block, at any time: the NIC runs or stops, and a reset restores
    /// it.
    #[test]
    fn nonsense_in_the_block_hurts_for_no_longer_than_until_the_next_reset(
        mode in any::<proptest::sample::Index>(),
        pokes in proptest::collection::vec(
            (0..0x400usize, prop_oneof![any::<u32>(), 0..64u32, Just(u32::MAX)], step()),
            1..60,
        ),
    ) {
        let configs: Vec<Config> =
            all_modes().filter(|config| matches!(config.doorbells, Doorbells::Block(_))).collect();
        let config = configs[mode.index(configs.len())];
        let mut bench = Bench::new(config);
        let page = block_page(&mut bench);
        for (word, value, step) in pokes {
            bench.mapping.bytes(page + 4 * word, 4).unwrap().write(0, value.to_le());
            match step {
                Step::Send(count) => {
                    for i in 0..count {
                        bench.send(&pattern(60, i.into()));
                    }
                    bench.driver.flush();
                }
                Step::Work => drop(bench.gather()),
                Step::Deliver(_) => bench.deliver_plain(&[pattern(64, 0)]),
                Step::Interrupt => drop(bench.interrupt()),
                Step::Wait(nanos) => bench.wait(nanos.into()),
                Step::Die => bench.die(),
            }
        }
        bench.driver.restart().expect("it comes up again");
        bench.interrupt();
        prop_assert_eq!(bench.fault(), None);
        let frame = pattern(100, 1);
        prop_assert!(bench.send(&frame));
        bench.driver.flush();
        prop_assert_eq!(bench.gather(), plain(std::slice::from_ref(&frame)));
        bench.deliver_plain(std::slice::from_ref(&frame));
        prop_assert_eq!(bench.poll(), [frame]);
    }
}

/// The offset of the driver's block in its memory, from its NIC's registers.
fn block_page(bench: &mut Bench) -> usize {
    let regs = bench.driver.regs();
    let at = u64::from(regs.read32(0, CSBAL)) | u64::from(regs.read32(0, CSBAH)) << 32;
    (at - BASE) as usize
}

/// A step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(u8),
    Work,
    Deliver(u8),
    Interrupt,
    Wait(u16),
    Die,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20u8).prop_map(Step::Send),
        4 => Just(Step::Work),
        4 => (1..40u8).prop_map(Step::Deliver),
        4 => Just(Step::Interrupt),
        1 => any::<u16>().prop_map(Step::Wait),
        1 => Just(Step::Die),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any schedule, in any mode. Every sent frame arrives once and in order. Every delivered frame
    /// is received in order or counted as dropped. At the end, no side waits for ever.
    #[test]
    fn nothing_is_lost_whatever_the_order(
        mode in any::<proptest::sample::Index>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let configs: Vec<Config> = all_modes().collect();
        let config = configs[mode.index(configs.len())];
        let mut bench = Bench::new(config);
        let (mut sent, mut arrived) = (Vec::new(), Vec::new());
        let (mut delivered, mut received) = (0usize, Vec::new());
        for step in steps {
            match step {
                Step::Send(count) => {
                    for _ in 0..count {
                        let frame = pattern(60 + sent.len() % 100, sent.len());
                        if bench.send(&frame) {
                            sent.push(frame);
                        }
                    }
                    bench.driver.flush();
                }
                Step::Work => arrived.extend(bench.work()),
                Step::Deliver(count) => {
                    let frames: Vec<_> =
                        (0..usize::from(count)).map(|i| pattern(64, delivered + i)).collect();
                    delivered += frames.len();
                    bench.deliver_plain(&frames);
                }
                Step::Interrupt => received.extend(bench.interrupt()),
                Step::Wait(nanos) => bench.wait(nanos.into()),
                Step::Die => bench.die(),
            }
            if config.interrupts == Interrupts::None {
                received.extend(bench.poll());
                bench.driver.reclaim();
            }
        }
        // From here on, a side acts only when woken.
        for _ in 0..8 {
            bench.wait(1_000_000);
            arrived.extend(bench.work());
            received.extend(bench.interrupt());
            if config.interrupts == Interrupts::None {
                received.extend(bench.poll());
            }
            // With a status block, sent frames cause no interrupt.
            if matches!(config.doorbells, Doorbells::Block(_)) || config.interrupts == Interrupts::None {
                bench.driver.reclaim();
            }
        }
        prop_assert_eq!(arrived, plain(&sent));
        prop_assert_eq!(bench.driver.counts().done, sent.len() as u64);
        let egress = &bench.device_config.egress[0];
        prop_assert_eq!(received.len() as u64, egress.frames.get());
        let dropped = egress.drops[port::DropReason::Full as usize].get();
        prop_assert_eq!(egress.frames.get() + dropped, delivered as u64);
        prop_assert_eq!(bench.fault(), None);
    }
}
