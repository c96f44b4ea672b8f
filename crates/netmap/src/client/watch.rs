//! Zero-copy monitors: a ring's slots give their buffers to a monitor's receive ring when they are
//! given back, and get free ones in return (netmap(4), "NR_ZCOPY_MON").
//!
//! ```text
//!   send ring: slots that the other side has returned  \\
//!   receive ring: slots that the program has released  --> the monitor's receive ring --> the next monitor's
//! ```
//!
//! The process that syncs the ring does it. All rings are in one region, so all processes are those
//! of one user.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use netring::layout::{
    Geometry, RingMemory, RingSpec, Slot, SlotWord, distance, next, previous, slot_flags,
};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use shmem::Mapping;

use super::process;

/// How often a process tries to fill a ring that another one fills.
const TRIES: u32 = 1000;

/// The region in which monitors' rings are, and the bell that wakes monitors.
#[derive(Debug)]
pub(super) struct Watchers {
    pub(super) mapping: Arc<Mapping>,
    pub(super) geometry: Geometry,
    pub(super) bell: OwnedFd,
}

/// The receive ring of a monitor.
#[derive(Debug)]
pub(super) struct Watch {
    /// What the daemon wrote to name it.
    pub(super) word: u32,
    memory: RingMemory,
    slots: u32,
    /// The monitor's latest wake-up request that was answered.
    answered: AtomicU32,
}

/// Slots of a ring, from the first to before the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    pub(super) slots: &'a [Slot],
    pub(super) from: u32,
    pub(super) to: u32,
    /// `NS_TXMON` for slots of a send ring, else 0.
    pub(super) flag: u16,
}

impl Watchers {
    /// The ring that a word names; `None` if it is not one of the region.
    pub(super) fn find(&self, word: u32) -> Option<Watch> {
        let (number, slots) = ((word & 0xffff).checked_sub(1)?, word >> 16);
        RingSpec { first: number, rings: 1, slots }.check(&self.geometry).ok()?;
        let memory = RingMemory::of(&self.mapping, &self.geometry, number, slots)?;
        Some(Watch { word, memory, slots, answered: AtomicU32::new(0) })
    }

    /// Gives the buffers of slots to a monitor. If it has too few free slots, the first ones are
    /// not shown.
    pub(super) fn show(&self, watch: &Watch, given: Given<'_>, valid: impl Fn(u32) -> bool) {
        let control = &watch.memory.control;
        if !watch.hold() {
            return;
        }
        let (core, owner) = (control.core.0.own(), control.owner.0.observe());
        if core < watch.slots && owner < watch.slots {
            let to = watch.fill((core, owner), given, valid);
            control.core.0.publish(to);
        }
        control.core_flags.0.filling.store(0, Release);
        let mut answered = watch.answered.load(Relaxed);
        if control.owner_flags.0.wake.must_kick(&mut answered) {
            watch.answered.store(answered, Relaxed);
            let _ = rustix::io::write(self.bell.as_fd(), &1_u64.to_ne_bytes());
        }
    }
}

impl Watch {
    /// Locks the ring against others that fill it; false if another one keeps it.
    fn hold(&self) -> bool {
        let (filling, us) = (&self.memory.control.core_flags.0.filling, process());
        for _ in 0..TRIES {
            match filling.compare_exchange(0, us, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(_) => std::hint::spin_loop(),
            }
        }
        // Its process may have died, or may be stopped: then this monitor misses frames.
        let other = filling.load(Relaxed);
        let pid = Pid::from_raw(other.cast_signed());
        let dead = pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH));
        dead && filling.compare_exchange(other, us, Acquire, Relaxed).is_ok()
    }

    /// Exchanges buffers with the free slots from `core` on; returns where they end.
    fn fill(
        &self,
        (core, owner): (u32, u32),
        given: Given<'_>,
        valid: impl Fn(u32) -> bool,
    ) -> u32 {
        let Given { slots, from, to, flag } = given;
        let count = slots.len() as u32;
        let room = distance(core, previous(owner, self.slots), self.slots);
        let hidden = distance(from, to, count).saturating_sub(room);
        let (mut at, mut free) = ((from + hidden) % count, core);
        while at != to {
            let (theirs, ours) = (&slots[at as usize], &self.memory.slots[free as usize]);
            let (frame, spare) = (theirs.load(), ours.load());
            at = next(at, count);
            if !valid(frame.buf) || !valid(spare.buf) {
                continue;
            }
            // A monitor passes on which slots were sent.
            let kept = frame.flags & !slot_flags::BUF_CHANGED;
            ours.store(SlotWord { flags: kept | flag, ..frame });
            let flags = frame.flags | slot_flags::BUF_CHANGED;
            theirs.store(SlotWord { buf: spare.buf, flags, ..frame });
            free = next(free, self.slots);
        }
        free
    }
}
