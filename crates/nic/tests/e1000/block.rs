//! The shared status block, both versions, between the model and a driver that uses it.

use driver::csb::{Block, BlockQueue};
use nic::csb::{Direction, NONE, Version};
use nic::e1000::Chip;
use port::Nanos;

use super::bed::*;

const PAGE: u64 = 0x5000;

struct Rig {
    bed: Bed,
    block: Block,
    send: BlockQueue,
    receive: BlockQueue,
}

fn announce(bed: &Bed, at: u64) {
    bed.write(reg::CSBAH, 0);
    bed.write(reg::CSBAL, at as u32);
}

fn rig(version: Version) -> Rig {
    let bed = Bed::with(Chip::Em82540, |config| config.csb = true);
    assert_eq!(bed.model.device.identity().subsystem, 0x1101);
    bed.memory.bytes(PAGE, 4096).unwrap().fill(0);
    let block = match version {
        Version::One => Block::one(bed.memory.shared_slice(PAGE, 1).unwrap(), 1, false),
        Version::Two => Block::two(bed.memory.shared_slice(PAGE, 1).unwrap(), 1, 1, 0),
    };
    // The block is announced before the reset, as the lem driver does.
    announce(&bed, PAGE);
    bed.write(reg::CTRL, 1 << 26);
    let mut bed = bed;
    bed.start(16, 16);
    let mut send = block.queue(Direction::Send, 0, 16).unwrap();
    let mut receive = block.queue(Direction::Receive, 0, 16).unwrap();
    let _ = (send.publish(0), receive.publish(15));
    send.turn(true);
    receive.turn(true);
    bed.write(reg::TDT, 0);
    Rig { bed, block, send, receive }
}

#[test]
fn frames_need_no_doorbells_while_the_device_is_awake() {
    for version in [Version::One, Version::Two] {
        let Rig { mut bed, mut send, .. } = rig(version);
        bed.put(&frame(64, 0));
        assert!(send.publish(bed.tx_next), "nobody looks yet");
        assert_eq!(bed.gather().len(), 1);
        for seed in 1..40 {
            bed.put(&frame(64, seed));
            assert!(!send.publish(bed.tx_next), "the device looks by itself");
            assert_eq!(bed.gather()[0].0, frame(64, seed));
            assert_eq!(send.head(), bed.tx_next);
            assert_eq!(bed.interrupt().vectors, 0, "nobody waits");
        }
        assert!(!bed.model.transmit[0].arm());
        bed.put(&frame(64, 50));
        assert!(send.publish(bed.tx_next), "it sleeps");
        bed.model.transmit[0].disarm();
        send.sleep(NONE);
        assert_eq!(bed.gather().len(), 1);
        assert_eq!(bed.interrupt().vectors, 1, "the driver sleeps, too");
        assert_eq!(bed.read(reg::ICR) & TXDW, TXDW);
    }
}

#[test]
fn frames_are_told_of_only_when_the_driver_sleeps() {
    for version in [Version::One, Version::Two] {
        let Rig { mut bed, mut receive, .. } = rig(version);
        // Drivers of v1 begin asleep.
        receive.wake();
        assert_eq!(bed.deliver(&[frame(64, 1)]), (1, false));
        assert_eq!(receive.head(), 1);
        receive.sleep(NONE);
        assert_eq!(bed.deliver(&[frame(64, 2)]), (1, true));
        assert_eq!(bed.interrupt().vectors, 1);
        receive.wake();
        let _ = bed.read(reg::ICR);
        for _ in 0..2 {
            assert!(bed.receive().is_some());
        }
        assert!(!receive.publish(bed.rx_tail), "buffers need no doorbell");
        assert_eq!(bed.deliver(&(0..15).map(|i| frame(64, i)).collect::<Vec<_>>()), (15, false));
        assert_eq!(bed.egress().frames.get(), 17);
    }
}

#[test]
fn a_reset_keeps_the_blocks_address_and_restarts_the_device() {
    for version in [Version::One, Version::Two] {
        let Rig { mut bed, mut send, .. } = rig(version);
        bed.put(&frame(64, 0));
        let _ = send.publish(bed.tx_next);
        assert_eq!(bed.gather().len(), 1);
        bed.write(reg::CTRL, 1 << 26);
        send.restart(16);
        bed.start(16, 16);
        assert!(bed.gather().is_empty());
        assert_eq!(send.head(), 0);
        bed.put(&frame(64, 1));
        assert!(send.publish(bed.tx_next));
        assert_eq!(bed.gather().len(), 1);
        bed.remake();
        bed.put(&frame(64, 2));
        assert!(send.publish(bed.tx_next), "a device made anew asks");
        assert_eq!(bed.gather()[0].0, frame(64, 2));
    }
}

#[test]
fn a_block_that_is_taken_away_is_not_written_any_more() {
    let Rig { mut bed, mut send, .. } = rig(Version::Two);
    bed.put(&frame(64, 0));
    let _ = send.publish(bed.tx_next);
    assert_eq!(bed.gather().len(), 1);
    announce(&bed, 0);
    bed.memory.bytes(PAGE, 4096).unwrap().fill(0);
    bed.send(&frame(64, 1));
    assert_eq!(bed.gather().len(), 1);
    let _ = bed.deliver(&[frame(64, 2)]);
    bed.model.transmit[0].disarm();
    assert!(!bed.model.transmit[0].arm());
    assert!(bed.bytes(PAGE, 4096).iter().all(|byte| *byte == 0));
    assert_eq!(bed.interrupt().vectors, 1);
}

#[test]
fn nonsense_stops_the_device_alone() {
    let stopped = |bed: &mut Bed| {
        assert!(bed.gather().is_empty() && bed.model.device.fault().is_some());
        assert!(!bed.model.transmit[0].arm());
        assert_eq!(bed.deliver(&[frame(64, 1)]).0, 1);
        bed.write(reg::CTRL, 1 << 26);
        assert_eq!(bed.model.device.fault(), None, "a reset heals it");
    };
    for at in [PAGE + 4, MEMORY, MEMORY - 16, 1 << 20 | 0xff0] {
        let mut bed = Bed::with(Chip::Em82540, |config| config.csb = true);
        announce(&bed, at);
        stopped(&mut bed);
    }
    let Rig { mut bed, mut send, block, .. } = rig(Version::Two);
    let _ = send.publish(16);
    stopped(&mut bed);
    assert_ne!(block.fault(), 0);
    // Without the option, there are no such registers.
    let bed = Bed::new(Chip::Em82540);
    announce(&bed, PAGE + 4);
    assert_eq!((bed.read(reg::CSBAL), bed.model.device.fault()), (0, None));
}

#[test]
fn the_device_looks_on_no_longer_than_its_own_limit() {
    let bed = Bed::with(Chip::Em82540, |config| config.csb = true);
    let block = Block::two(bed.memory.shared_slice(PAGE, 1).unwrap(), 1, 1, u32::MAX);
    announce(&bed, PAGE);
    let mut bed = bed;
    bed.start(16, 16);
    let mut send = block.queue(Direction::Send, 0, 16).unwrap();
    bed.put(&frame(64, 0));
    let _ = send.publish(bed.tx_next);
    send.turn(true);
    assert_eq!(bed.gather().len(), 1);
    let start = bed.now;
    assert!(bed.gather().is_empty() && bed.model.transmit[0].arm());
    bed.now = start + 49_000;
    assert!(bed.gather().is_empty() && bed.model.transmit[0].arm());
    bed.now = Nanos(start.0 + 50_000);
    assert!(bed.gather().is_empty() && !bed.model.transmit[0].arm());
}
