//! A lock that its holder's death frees: holders are killed.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "processes are forked, killed and waited for")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use toklat_shmem::robust::{self, RobustLock};
use toklat_shmem::{Mapping, Memfd, Pages, Shared};

const KILLS: u64 = 1000;

/// What the processes share.
struct Memory {
    lock: Shared<RobustLock>,
    /// Equal whenever the lock is free and no holder died.
    pair: [Shared<AtomicU64>; 2],
    /// Turns of each process.
    turns: Vec<Shared<AtomicU64>>,
}

fn memory() -> Memory {
    let file = Memfd::create("robust", 4096, Pages::Small).unwrap();
    let map: std::sync::Arc<Mapping> = file.map().unwrap();
    let word = |at| map.shared(at).unwrap();
    Memory {
        lock: map.shared(0).unwrap(),
        pair: [word(64), word(128)],
        turns: (0..4).map(|n| word(256 + 64 * n)).collect(),
    }
}

impl Memory {
    /// A turn: one word, then the other; what a dead holder left is repaired. False if a word is
    /// wrong although no holder died.
    fn turn(&self, me: usize) -> bool {
        let held = self.lock.lock().unwrap();
        let [first, second] = &self.pair;
        let (a, b) = (first.load(Ordering::Relaxed), second.load(Ordering::Relaxed));
        if a != b && (!held.after_death() || a != b + 1) {
            return false;
        }
        first.store(b + 1, Ordering::Relaxed);
        second.store(b + 1, Ordering::Relaxed);
        self.turns[me].fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Starts a process that takes turns for ever. It ends itself when it sees a wrong pair.
fn fork(memory: &Memory, me: usize) -> libc::pid_t {
    // SAFETY: the child takes turns only: no allocation, no lock of this process.
    match unsafe { libc::fork() } {
        0 => {
            while memory.turn(me) {
                if me < 2 {
                    // Leaves the processor to the one that is to be killed.
                    std::thread::sleep(Duration::from_micros(20));
                }
            }
            // SAFETY: ends the child without running anything else.
            unsafe { libc::_exit(1) }
        }
        child => child,
    }
}

/// Kills a process, and returns what ended it.
fn kill(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: the process is our child, and is waited for once.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
    }
    status
}

#[test]
fn processes_killed_while_they_hold_it_leave_it_to_the_others() {
    robust::check().unwrap();
    let memory = memory();
    let others = [fork(&memory, 0), fork(&memory, 1)];
    let moved = |who: usize, from: u64, by: u64| {
        while memory.turns[who].load(Ordering::Relaxed) < from + by {
            assert!(!ended(&others), "a process saw half of a turn, but no process died in it");
            std::thread::yield_now();
        }
    };
    for n in 0..KILLS {
        let victim = fork(&memory, 2);
        // At a random instruction of a random turn.
        moved(2, memory.turns[2].load(Ordering::Relaxed), n % 5);
        assert_eq!(kill(victim), libc::SIGKILL, "it saw half of a turn, but no process died in it");
        for who in [0, 1] {
            moved(who, memory.turns[who].load(Ordering::Relaxed), 1);
        }
    }
    for other in others {
        assert_eq!(kill(other), libc::SIGKILL);
    }
    assert!(memory.turn(3), "the last ones were killed, too");
    let [first, second] = memory.pair.map(|word| word.load(Ordering::Relaxed));
    assert_eq!(first, second);
}

fn ended(processes: &[libc::pid_t]) -> bool {
    // SAFETY: the call asks about our children only, and reaps none of them.
    processes.iter().any(|child| unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, *child as libc::id_t, &raw mut info, flags);
        info.si_pid() != 0
    })
}

#[test]
fn a_holder_that_is_killed_is_reported_to_the_next_one_and_only_to_that() {
    robust::check().unwrap();
    let memory = memory();
    // SAFETY: the child locks, and sleeps.
    let child = match unsafe { libc::fork() } {
        0 => {
            let held = memory.lock.lock();
            memory.turns[0].store(1, Ordering::Relaxed);
            std::thread::sleep(Duration::MAX);
            drop(held);
            // SAFETY: as in `fork`.
            unsafe { libc::_exit(1) }
        }
        child => child,
    };
    while memory.turns[0].load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let busy = memory.lock.lock_as_keeper(Duration::from_millis(1));
    assert!(busy.is_none(), "it is held");
    kill(child);
    assert!(memory.lock.lock().unwrap().after_death());
    assert!(!memory.lock.lock().unwrap().after_death());
}

#[test]
fn a_keeper_that_dies_leaves_the_lock_to_the_next_keeper() {
    let memory = memory();
    let time = Duration::from_secs(60);
    std::mem::forget(memory.lock.lock_as_keeper(time));
    let next = memory.lock.lock_as_keeper(time).unwrap();
    assert!(next.after_death());
    drop(next);
    assert!(!memory.lock.lock().unwrap().after_death());
}

#[test]
fn a_panic_is_reported_as_a_death() {
    let memory = memory();
    let lock = memory.lock.clone();
    let panicked = std::thread::spawn(move || {
        let _held = lock.lock().unwrap();
        panic!("in a turn");
    });
    assert!(panicked.join().is_err());
    assert!(memory.lock.lock().unwrap().after_death());
}
