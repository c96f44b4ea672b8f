//! Loom models of races between two sides: `cargo xtask loom`.
//!
//! Loom runs every interleaving, and every value that the memory model lets a load return. It tests
//! the shipped code; only the atomics are loom's.
#![cfg(loom)]
#![allow(unsafe_code, reason = "loom's cells check the accesses that these blocks make")]
#![allow(missing_docs, reason = "a test")]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use toklat_shmem::{Cursor, Place, WakeFlag};

/// The bell that a kick rings. It represents a token with a byte in it, or an eventfd.
struct Doorbell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), changed: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sleeps until the bell was rung. Loom reports a deadlock if it never is.
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The consumer sleeps whenever it finds nothing, and the producer kicks only when the flag says
/// so. The consumer still gets all that the producer publishes in two parts.
#[test]
fn wake_up_is_never_lost() {
    loom::model(|| {
        let shared = Arc::new((Cursor::new(0), WakeFlag::new(), Doorbell::new()));
        let consumer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (cursor, flag, doorbell) = &*shared;
                let mut seen = 0;
                while seen < 2 {
                    flag.arm();
                    if cursor.observe() == seen {
                        doorbell.wait();
                    }
                    flag.disarm();
                    seen = cursor.observe();
                }
            })
        };
        let (cursor, flag, doorbell) = &*shared;
        let mut answered = 0;
        for at in 1..=2 {
            cursor.publish(at);
            if flag.must_kick(&mut answered) {
                doorbell.ring();
            }
        }
        consumer.join().unwrap();
    });
}

/// The fences are needed: without them, the same stores and loads let the consumer sleep without a
/// kick.
#[test]
#[should_panic(expected = "a wake-up was lost")]
fn without_fences_a_wake_up_is_lost() {
    loom::model(|| {
        let shared = Arc::new((Cursor::new(0), AtomicU32::new(0)));
        let consumer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1.store(1, Ordering::Relaxed);
                shared.0.observe() == 0
            })
        };
        shared.0.publish(1);
        let kicks = shared.1.load(Ordering::Relaxed) == 1;
        let sleeps = consumer.join().unwrap();
        assert!(kicks || !sleeps, "a wake-up was lost");
    });
}

/// A ring of one usable slot, used twice, so that it is handed over and given back. Neither side
/// touches a slot that the other owns (loom fails on such an access), and contents arrive whole.
#[test]
fn published_slots_are_seen_whole() {
    loom::model(|| {
        let slot = UnsafeCell::new([0u32; 2]);
        let shared = Arc::new((Cursor::new(0), Cursor::new(0), slot));
        let consumer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (owner, core, slot) = &*shared;
                for at in 1..=2 {
                    while owner.observe() != at {
                        thread::yield_now();
                    }
                    // SAFETY: the producer published the slot and waits for `core`.
                    let content = slot.with(|slot| unsafe { *slot });
                    assert_eq!(content, [at, 10 * at]);
                    core.publish(at);
                }
            })
        };
        let (owner, core, slot) = &*shared;
        for at in 1..=2 {
            while core.observe() != at - 1 {
                thread::yield_now();
            }
            // SAFETY: the consumer gave the slot back.
            slot.with_mut(|slot| unsafe { *slot = [at, 10 * at] });
            owner.publish(at);
        }
        consumer.join().unwrap();
    });
}

/// One worker publishes to two owners, fences once for both and then reads their flags, as the
/// second pass does for a batch. Both owners sleep; both wake.
#[test]
fn one_fence_serves_all_the_egresses_of_a_batch() {
    loom::model(|| {
        let owner = || Arc::new((Cursor::new(0), WakeFlag::new(), Doorbell::new()));
        let owners = [owner(), owner()];
        let sleepers = owners.clone().map(|owner| {
            thread::spawn(move || {
                let (cursor, flag, doorbell) = &*owner;
                flag.arm();
                if cursor.observe() == 0 {
                    doorbell.wait();
                }
                flag.disarm();
                assert_eq!(cursor.observe(), 1);
            })
        });
        for owner in &owners {
            owner.0.publish(1);
        }
        loom::sync::atomic::fence(Ordering::SeqCst);
        for owner in &owners {
            if owner.1.must_kick_fenced(&mut 0) {
                owner.2.ring();
            }
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

/// The SIGBUS handler runs beside a mapping that goes and another that takes its entry. It finds
/// the range of one of them, never the start of one with the end of the other.
#[test]
fn a_range_is_of_one_mapping() {
    let (low, high) = (4096..8192, 1 << 20..2 << 20);
    loom::model(move || {
        let place = Arc::new(Place::free());
        assert!(place.enter(&low));
        let handler = {
            let (place, ranges) = (Arc::clone(&place), [low.clone(), high.clone()]);
            thread::spawn(move || {
                if let Some(found) = place.range() {
                    assert!(ranges.contains(&found), "{found:?}");
                }
            })
        };
        place.leave();
        assert!(place.enter(&high));
        handler.join().unwrap();
        assert_eq!(place.range(), Some(high.clone()));
    });
}

/// Of two mappings that compete for one entry, one gets it.
#[test]
fn an_entry_is_taken_once() {
    loom::model(|| {
        let place = Arc::new(Place::free());
        let other = {
            let place = Arc::clone(&place);
            thread::spawn(move || place.enter(&(1..2)))
        };
        let ours = place.enter(&(3..4));
        let theirs = other.join().unwrap();
        assert!(ours != theirs);
        assert_eq!(place.range(), Some(if ours { 3..4 } else { 1..2 }));
    });
}
