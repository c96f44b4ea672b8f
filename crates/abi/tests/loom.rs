//! Loom models of the shared status block: `cargo xtask loom`. They test the shipped code; only its
//! atomics are loom's.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use abi::csb::{Direction, Lane, NONE, QueueLines, V1};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

const SIZE: u32 = 8;

/// Records doorbells or interrupts.
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Loom reports a deadlock if the bell never rings.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// A block of either version, as its driver set it up.
enum Block {
    One(V1),
    Two(QueueLines),
}

impl Block {
    fn both() -> [fn() -> Self; 2] {
        [
            || Self::One(V1::new()),
            || {
                let block = QueueLines::new();
                block.guest.on.set(1);
                Self::Two(block)
            },
        ]
    }

    fn lane(&self, way: Direction) -> Lane<'_> {
        match self {
            Self::One(block) => Lane::one(block, way),
            Self::Two(block) => Lane::two(block),
        }
    }
}

/// Runs two sides over a block of either version.
fn race(sleeper: fn(&Block, &Bell), other: fn(&Block, &Bell)) {
    for make in Block::both() {
        loom::model(move || {
            let shared = Arc::new((make(), Bell::new()));
            let sleeper = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || sleeper(&shared.0, &shared.1))
            };
            other(&shared.0, &shared.1);
            sleeper.join().unwrap();
        });
    }
}

/// A driver publishes in two parts, and rings the doorbell only when asked.
fn publish_tails(lane: Lane<'_>, bell: &Bell) {
    let mut answered = 0;
    for tail in 1..=2 {
        if lane.publish_tail(&mut answered, tail - 1, tail, SIZE) {
            bell.ring();
        }
    }
}

/// A device that sleeps whenever it sees nothing gets all that a driver publishes.
#[test]
fn no_doorbell_is_left_out_that_is_needed() {
    let device = |block: &Block, bell: &Bell| {
        let (lane, mut seen, mut asked) = (block.lane(Direction::Send), 0, 0);
        while seen < 2 {
            if lane.request_doorbell(&mut asked, NONE, SIZE).unwrap() == seen {
                bell.wait();
            }
            lane.withdraw_doorbell(&mut asked);
            seen = lane.tail(SIZE).unwrap();
        }
    };
    race(device, |block, bell| publish_tails(block.lane(Direction::Send), bell));
}

/// A device without buffers asks for a doorbell when two are back. The driver gives them back one
/// by one.
#[test]
fn a_doorbell_at_an_index_is_not_left_out_either() {
    let device = |block: &Block, bell: &Bell| {
        let (lane, mut asked) = (block.lane(Direction::Receive), 0);
        // Either more buffers than before, or the doorbell, which comes at index 2.
        if lane.request_doorbell(&mut asked, 2, SIZE).unwrap() == 0 {
            bell.wait();
            assert!(lane.tail(SIZE).unwrap() >= 2);
        }
        lane.withdraw_doorbell(&mut asked);
    };
    race(device, |block, bell| publish_tails(block.lane(Direction::Receive), bell));
}

/// A driver sleeps whenever it sees nothing new. It gets all that a device completes in two parts,
/// though the device interrupts only on request.
#[test]
fn no_interrupt_is_left_out_that_is_needed() {
    let driver = |block: &Block, bell: &Bell| {
        let (lane, mut seen, mut wanted) = (block.lane(Direction::Receive), 0, 0);
        while seen < 2 {
            lane.request_interrupt(&mut wanted, NONE);
            if lane.head() == seen {
                bell.wait();
            }
            lane.withdraw_interrupt(&mut wanted);
            seen = lane.head();
        }
    };
    race(driver, |block, bell| {
        let (lane, mut answered, mut told) = (block.lane(Direction::Receive), 0, None);
        for head in 1..=2 {
            lane.publish_head(head);
            loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
            if lane.wants_interrupt(&mut answered, told, head, SIZE) {
                bell.ring();
            }
            told = Some(head);
        }
    });
}

/// The drivers of 2013 have no fence between index and flag: the device sleeps, and never wakes.
#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_the_drivers_fence_a_wake_up_is_lost() {
    loom::model(|| {
        let block = Arc::new(V1::new());
        let device = {
            let block = Arc::clone(&block);
            thread::spawn(move || {
                Lane::one(&block, Direction::Send).request_doorbell(&mut 0, NONE, SIZE) == Ok(0)
            })
        };
        block.guest_tdt.publish(1);
        let kicks = block.host_need_txkick.get() != 0;
        let sleeps = device.join().unwrap();
        assert!(kicks || !sleeps, "a wake-up was lost");
    });
}
