//! Tests the shared status block against the hazards of version 1 of the block, from 2013, and
//! against a hostile driver.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use driver::csb as driver;
use nic::csb::{Block, Direction, Fault, MAGIC, MapError, NONE, PAGE, QueueHost, Version};
use port::Nanos;
use shmem::{GuestMemory, GuestRange, Mapping};

const SIZE: u32 = 64;
const AT: u64 = 0x3000;

/// A guest with memory from 0x1000 to 0x9000.
struct Guest {
    memory: GuestMemory,
    mapping: Arc<Mapping>,
}

impl Guest {
    fn new() -> Self {
        let mapping = Mapping::private(0x8000).unwrap();
        Self { memory: GuestMemory::of(Arc::clone(&mapping), 0x1000).unwrap(), mapping }
    }

    fn announce(&self, version: Version) -> driver::Block {
        let at = AT as usize - 0x1000;
        match version {
            Version::One => driver::Block::one(self.mapping.shared_slice(at, 1).unwrap(), 1, true),
            Version::Two => driver::Block::two(self.mapping.shared_slice(at, 1).unwrap(), 2, 3, 20),
        }
    }

    fn map(&self) -> Block {
        Block::map(&self.memory, AT, [1, 2]).unwrap().unwrap()
    }

    fn word(&self, at: u64) -> u32 {
        self.memory.bytes(AT + at, 4).unwrap().read::<u32>(0).map(u32::from_le).unwrap()
    }

    fn poke(&self, at: u64, value: u32) {
        assert!(self.memory.bytes(AT + at, 4).unwrap().write(0, value.to_le()));
    }

    /// Makes the driver's and the device's half of the first queue in a direction, turned on.
    fn queue(&self, version: Version, way: Direction) -> (driver::BlockQueue, QueueHost) {
        let driver = self.announce(version).queue(way, 0, SIZE).unwrap();
        let device = self.map().queue(way, 0).unwrap();
        driver.turn(true);
        (driver, device)
    }
}

const VERSIONS: [Version; 2] = [Version::One, Version::Two];

fn wants(device: &mut QueueHost, head: u32) -> bool {
    device.publish_head(head);
    fence(Ordering::SeqCst);
    device.wants_interrupt(head, SIZE)
}

#[test]
fn every_word_lies_where_the_layout_says() {
    let guest = Guest::new();
    guest.announce(Version::One);
    assert_eq!([0x44, 0x08, 0x48].map(|at| guest.word(at)), [1, 1, 1]);
    assert_eq!([0x14, 0x5c].map(|at| guest.word(at)), [NONE, NONE]);
    assert_eq!(guest.word(0x18), 1, "MSI-X");
    for (way, tail, head) in [(Direction::Send, 0x00, 0x40), (Direction::Receive, 0x10, 0x50)] {
        let (mut driver, device) = guest.queue(Version::One, way);
        let _ = driver.publish(7);
        device.publish_head(5);
        assert_eq!((guest.word(tail), guest.word(head), guest.word(0x0c)), (7, 5, 1), "{way:?}");
        assert_eq!((device.tail(SIZE), driver.head()), (Ok(7), 5));
    }
    let guest = Guest::new();
    let block = guest.announce(Version::Two);
    assert_eq!(block.accepted(), None, "nobody has looked at it");
    let device = guest.map();
    assert_eq!(block.accepted(), Some([1, 2]), "as many as both have");
    assert_eq!([0x1c, 0x80].map(|at| guest.word(at)), [MAGIC, MAGIC]);
    assert_eq!([0x20, 0x28, 0x2c].map(|at| guest.word(at)), [2, 2 | 3 << 16, 20]);
    assert_eq!([0x84, 0x8c, 0x90].map(|at| guest.word(at)), [2, 1 | 2 << 16, 20]);
    for (way, queue, line) in [
        (Direction::Send, 0, 0x400),
        (Direction::Receive, 0, 0x800),
        (Direction::Receive, 1, 0x900),
    ] {
        let mut ends = (block.queue(way, queue, SIZE).unwrap(), device.queue(way, queue).unwrap());
        let _ = ends.0.publish(9);
        ends.0.sleep(33);
        ends.0.turn(true);
        assert_eq!([0, 4, 8, 12].map(|at| guest.word(line + at)), [9, 1, 33, 1], "{way:?}");
        ends.1.publish_head(8);
        assert_eq!(ends.1.sleep_until_refilled(8, 9, SIZE), Ok(9));
        let at = 9 + 1 + 62 * 3 / 4;
        assert_eq!([0x80, 0x84, 0x88].map(|at| guest.word(line + at)), [8, 3, at]);
    }
    assert!(
        device.queue(Direction::Send, 1).is_none() && device.queue(Direction::Receive, 2).is_none()
    );
}

#[test]
fn the_doorbell_is_left_out_while_the_device_is_awake() {
    for version in VERSIONS {
        let (mut driver, mut device) = Guest::new().queue(version, Direction::Send);
        assert!(driver.publish(1), "{version:?}: a new device is asked for");
        device.wake();
        assert!(!driver.publish(2) && !driver.publish(3));
        assert_eq!(device.sleep(2, SIZE, Nanos(0)), Ok(true), "one came meanwhile");
        assert!(!driver.publish(4), "so it did not fall asleep");
        assert_eq!(device.sleep(4, SIZE, Nanos(0)), Ok(false));
        assert!(driver.publish(5));
        assert_eq!(driver.publish(6), version == Version::One, "v2 is answered once");
        device.wake();
        assert!(!driver.publish(7));
        driver.turn(false);
        assert!(driver.publish(8), "off, so by register");
        assert!(!device.is_on());
    }
}

#[test]
fn the_interrupt_is_left_out_while_the_driver_is_awake() {
    for version in VERSIONS {
        let (mut driver, mut device) = Guest::new().queue(version, Direction::Receive);
        driver.wake();
        assert!(!wants(&mut device, 1) && !wants(&mut device, 2), "{version:?}");
        driver.sleep(NONE);
        assert!(!wants(&mut device, 2), "nothing new");
        assert!(wants(&mut device, 3));
        assert_eq!(wants(&mut device, 4), version == Version::One, "v2 is answered once");
        driver.wake();
        assert!(!wants(&mut device, 5));
        driver.sleep(NONE);
        assert!(wants(&mut device, 6), "a new arming is another");
    }
}

#[test]
fn a_threshold_is_answered_when_it_is_passed() {
    for version in VERSIONS {
        let guest = Guest::new();
        let (mut driver, mut device) = guest.queue(version, Direction::Send);
        driver.wake();
        assert!(!wants(&mut device, 60));
        match version {
            Version::One => guest.poke(0x14, 2),
            Version::Two => driver.sleep(2),
        }
        assert!(!wants(&mut device, 63) && !wants(&mut device, 1), "{version:?}");
        assert!(wants(&mut device, 5), "passed on the way");
        assert!(!wants(&mut device, 7));
    }
}

#[test]
fn a_starving_receive_queue_asks_for_three_quarters_of_what_is_missing() {
    for version in VERSIONS {
        let (mut driver, mut device) = Guest::new().queue(version, Direction::Receive);
        let _ = driver.publish(10);
        assert_eq!(device.sleep_until_refilled(10, 10, SIZE), Ok(10));
        let at = (10 + 1 + 63 * 3 / 4) % SIZE;
        let rings: Vec<u32> =
            (1..SIZE).map(|step| (10 + step) % SIZE).filter(|tail| driver.publish(*tail)).collect();
        assert_eq!(rings, [at], "{version:?}");
        assert_eq!(device.sleep_until_refilled(10, 8, SIZE), Ok(9), "buffers that came are seen");
        assert!(!driver.publish(9));
    }
}

/// Every size and every state of a ring: the requested index can be reached, and lies ahead.
#[test]
fn what_a_starving_queue_asks_for_can_be_reached() {
    let (mut driver, mut device) = Guest::new().queue(Version::Two, Direction::Receive);
    for size in [8, 16, 24, 64, 4096] {
        driver.restart(size);
        for head in [0, 1, size / 2, size - 1] {
            for left in [0, 1, size / 3, size - 2] {
                let tail = (head + left) % size;
                let _ = driver.publish(tail);
                assert_eq!(device.sleep_until_refilled(head, tail, size), Ok(tail));
                let full = (head + size - 1) % size;
                assert!(driver.publish(full), "size {size}, {left} left from {head}");
            }
        }
    }
}

/// Hazard 2.
#[test]
fn an_index_beyond_the_ring_stops_the_device() {
    for version in VERSIONS {
        let guest = Guest::new();
        for (way, word) in [(Direction::Send, [0x00, 0x400]), (Direction::Receive, [0x10, 0x800])] {
            let (_, mut device) = guest.queue(version, way);
            for bad in [SIZE, SIZE + 1, 0x8000_0000, u32::MAX] {
                guest.poke(word[usize::from(version == Version::Two)], bad);
                assert_eq!(device.tail(SIZE), Err(Fault::Index), "{version:?} {way:?} {bad}");
                assert_eq!(device.sleep(0, SIZE, Nanos(0)), Err(Fault::Index));
                assert_eq!(device.sleep_until_refilled(0, 0, SIZE), Err(Fault::Index));
            }
            assert_eq!(device.sleep_until_refilled(SIZE, 0, SIZE), Err(Fault::Index));
            assert_eq!(device.tail(0), Err(Fault::Index), "a ring of no descriptors");
        }
    }
    let guest = Guest::new();
    let block = guest.announce(Version::Two);
    guest.map().report(Fault::Index);
    assert_eq!(block.fault(), Fault::Index as u32);
}

/// Hazards 3 and 8: the limit is the device's, read once, and not raised afterwards.
#[test]
fn a_driver_cannot_make_a_device_spin() {
    let guest = Guest::new();
    for (version, word) in [(Version::One, 0x48), (Version::Two, 0x2c)] {
        guest.announce(version);
        guest.poke(word, u32::MAX);
        let block = guest.map();
        let mut spin = block.spin();
        assert_eq!(spin.limit(), 50_000, "{version:?}");
        assert!(spin.goes_on(Nanos(1_000)) && spin.goes_on(Nanos(50_999)));
        assert!(!spin.goes_on(Nanos(51_000)));
        spin.worked();
        assert!(spin.goes_on(Nanos(60_000)));
        guest.poke(word, 0);
        assert_eq!(block.spin().limit(), 50_000, "read once");
        assert_eq!(guest.map().spin().limit(), 0);
    }
}

/// Hazard 5.
#[test]
fn a_block_that_is_not_memory_is_no_block() {
    let guest = Guest::new();
    let map = |at| Block::map(&guest.memory, at, [1, 1]).map(|block| block.is_some());
    assert_eq!(map(0), Ok(false), "taken away");
    assert_eq!(map(AT), Ok(true));
    assert_eq!(map(0x8000), Ok(true), "the last page");
    for at in [AT + 4, AT + 64, AT + 2048, 0x1fff] {
        assert_eq!(map(at), Err(MapError::NotAligned(at)));
    }
    for at in [0x9000, 0xfee0_0000, u64::from(PAGE) * ((u64::MAX - 1) / u64::from(PAGE))] {
        assert_eq!(map(at), Err(MapError::NotMemory(at)));
    }
}

/// Hazard 5, too: a device must not answer into memory that it may not write.
#[test]
fn a_block_in_read_only_memory_is_no_block() {
    let mapping = Mapping::private(0x1000).unwrap();
    let range = GuestRange { guest: AT, user: 0, size: 0x1000, mapping, offset: 0 };
    let memory = GuestMemory::with_read_only(vec![], vec![range]).unwrap();
    let mapped = Block::map(&memory, AT, [1, 1]);
    assert_eq!(mapped.map(|block| block.is_some()), Err(MapError::NotMemory(AT)));
}

/// Hazard 6: v2 has no word that both write.
#[test]
fn what_a_driver_writes_to_the_devices_words_changes_nothing_for_the_device() {
    let guest = Guest::new();
    let (mut driver, mut device) = guest.queue(Version::Two, Direction::Send);
    device.wake();
    (0x80..0x100).step_by(4).for_each(|at| guest.poke(at, 0xffff_ffff));
    (0x480..0x500).step_by(4).for_each(|at| guest.poke(at, 0xffff_ffff));
    let _ = driver.publish(3);
    assert_eq!((device.is_on(), device.tail(SIZE)), (true, Ok(3)));
    assert_eq!(device.sleep(3, SIZE, Nanos(0)), Ok(false), "it says what it says");
    assert!(driver.publish(4));
}

/// Hazard 1: the device finds work of a driver without its fence.
#[test]
fn a_device_looks_once_more_at_a_v1_queue_that_it_left() {
    let (mut driver, mut device) = Guest::new().queue(Version::One, Direction::Send);
    assert_eq!(device.sleep(0, SIZE, Nanos(5)), Ok(false));
    let again = device.recheck_at().expect("it looks again");
    assert!(again > Nanos(5) && again <= Nanos(1_000_005), "{again:?}");
    device.wake();
    assert_eq!(device.sleep(0, SIZE, again), Ok(false));
    assert_eq!(device.recheck_at(), None, "once");
    let _ = driver.publish(1);
    device.wake();
    assert_eq!(device.sleep(1, SIZE, Nanos(again.0 * 2)), Ok(false));
    assert!(device.recheck_at().is_some(), "there was work between");
    let (_, mut device) = Guest::new().queue(Version::Two, Direction::Send);
    assert_eq!(device.sleep(0, SIZE, Nanos(5)), Ok(false));
    assert_eq!(device.recheck_at(), None, "v2's drivers have a fence");
}

/// Hazard 9: a device does not claim features that it does not know.
#[test]
fn versions_that_do_not_match_fall_back() {
    let guest = Guest::new();
    let block = guest.announce(Version::Two);
    guest.poke(0x20, 7);
    assert_eq!(guest.map().version(), Version::Two, "the highest that both know");
    assert_eq!(guest.word(0x84), 2);
    guest.poke(0x80, 0);
    guest.poke(0x20, 1);
    assert_eq!(guest.map().version(), Version::One);
    assert_eq!(block.accepted(), None);
    assert!(!guest.map().queue(Direction::Send, 0).unwrap().is_on(), "v2 is off as v1");
    guest.poke(0x1c, MAGIC ^ 1);
    assert_eq!(guest.map().version(), Version::One);
}

/// Hazard 10: a device that is rebuilt over the same block loses no frame and repeats none.
#[test]
fn a_rebuilt_device_continues() {
    for version in VERSIONS {
        let guest = Guest::new();
        let (mut driver, mut device) = guest.queue(version, Direction::Send);
        assert!(driver.publish(1));
        assert_eq!(device.sleep(1, SIZE, Nanos(0)), Ok(false));
        assert!(driver.publish(2), "answered: v2 does not answer this arming again");
        driver.sleep(2);
        drop(device);
        let mut device = guest.map().queue(Direction::Send, 0).unwrap();
        assert!(driver.publish(3), "{version:?}: a new device is asked for anew");
        device.publish_head(3);
        assert!(device.wants_interrupt(3, SIZE), "its predecessor may have died before it");
        device.wake();
        assert!(!driver.publish(4));
        device.restart();
        driver.restart(SIZE);
        assert_eq!((driver.head(), device.tail(SIZE), device.is_on()), (0, Ok(0), true));
        assert!(driver.publish(1), "after a reset, too");
    }
}

/// Hazard 12: no line of v2 has words of both sides, or of two queues.
#[test]
fn sides_and_queues_have_lines_of_their_own() {
    let guest = Guest::new();
    let block = guest.announce(Version::Two);
    let device = guest.map();
    let snapshot = || guest.memory.bytes(AT, PAGE).unwrap().to_vec();
    let mut owner = vec![None; PAGE as usize / 64];
    let mut claim = |who: &str, before: Vec<u8>| {
        let after = snapshot();
        for line in (0..owner.len()).filter(|line| {
            let bytes = line * 64..line * 64 + 64;
            before[bytes.clone()] != after[bytes]
        }) {
            let was = owner[line].replace(who.to_owned());
            assert!(was.is_none_or(|was| was == who), "line {line}");
        }
    };
    for (way, queue) in [(Direction::Send, 0), (Direction::Receive, 0), (Direction::Receive, 1)] {
        let mut end = block.queue(way, queue, SIZE).unwrap();
        let mut host = device.queue(way, queue).unwrap();
        let before = snapshot();
        let _ = end.publish(5);
        end.sleep(9);
        end.turn(true);
        claim(&format!("driver {way:?} {queue}"), before);
        let before = snapshot();
        host.publish_head(4);
        host.sleep_until_refilled(4, 5, SIZE).unwrap();
        claim(&format!("device {way:?} {queue}"), before);
    }
    assert_eq!(owner.iter().flatten().count(), 6);
}
