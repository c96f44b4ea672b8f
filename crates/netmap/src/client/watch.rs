//! Monitors whose receive rings are filled by the processes that sync the monitored rings
//! (netmap(4), "NR_MONITOR_TX", "NR_ZCOPY_MON").
//!
//! Zero-copy monitors get the buffers of slots that are given back, and give free ones in return:
//!
//! ```text
//!   send ring: slots that the other side has returned  \\
//!   receive ring: slots that the program has released  --> the monitor's receive ring --> the next monitor's
//! ```
//!
//! Copying monitors of a pipe's end get copies of what it sends and of what the other end sends to
//! it, before the receiver sees it:
//!
//! ```text
//!   send ring: slots that are submitted  --> the ring of each monitor of this ring
//!                                        --> the ring of each monitor of the other end's receive ring
//! ```
//!
//! All rings are in one region, so all processes are those of one user.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};

use netring::layout::{
    Format, Geometry, RingMemory, RingSpec, Slot, SlotWord, distance, next, previous, slot_flags,
};
use shmem::{Bytes, Mapping};

use super::hold;

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

/// How a monitor gets the frame of a slot.
pub(super) trait Pass {
    /// Puts the frame of a slot, read as `frame`, into a free slot of a monitor, read as `spare`.
    /// Returns false if there is no frame in it.
    fn pass(&self, from: (&Slot, SlotWord), to: (&Slot, SlotWord), flag: u16) -> bool;
}

/// The slots exchange their buffers. `valid` returns true for buffers that slots may have.
pub(super) struct Exchange<F>(pub(super) F);

impl<F: Fn(u32) -> bool> Pass for Exchange<F> {
    fn pass(&self, from: (&Slot, SlotWord), to: (&Slot, SlotWord), flag: u16) -> bool {
        let Self(valid) = self;
        let ((theirs, frame), (ours, spare)) = (from, to);
        if !valid(frame.buf) || !valid(spare.buf) {
            return false;
        }
        // A monitor passes on which slots were sent.
        let kept = frame.flags & !slot_flags::BUF_CHANGED;
        ours.store(SlotWord { flags: kept | flag, ..frame });
        let flags = frame.flags | slot_flags::BUF_CHANGED;
        theirs.store(SlotWord { buf: spare.buf, flags, ..frame });
        true
    }
}

/// The frame's bytes are copied, as many as there is room for.
pub(super) struct Copy<F> {
    /// What the slots of the monitored ring hold, and what those of the monitor hold.
    pub(super) formats: [Format; 2],
    /// Returns the bytes of a buffer, or `None` if no slot may have it.
    pub(super) buffer: F,
}

impl<'m, F: Fn(u32) -> Option<Bytes<'m>>> Pass for Copy<F> {
    fn pass(&self, from: (&Slot, SlotWord), to: (&Slot, SlotWord), flag: u16) -> bool {
        let ((theirs, frame), (ours, spare)) = (from, to);
        let [theirs, place] = [(theirs, self.formats[0], frame), (ours, self.formats[1], spare)]
            .map(|(slot, format, word)| {
                let offset = usize::try_from(slot.offset(format)).unwrap_or(usize::MAX);
                (self.buffer)(word.buf).map(|buffer| buffer.suffix(offset))
            });
        let (Some(bytes), Some(place)) = (theirs, place) else { return false };
        let len = bytes.prefix(frame.len.into()).copy_to(place) as u16;
        let flags = frame.flags & !slot_flags::BUF_CHANGED | flag;
        ours.store(SlotWord { buf: spare.buf, len, flags });
        true
    }
}

impl Watchers {
    /// The ring that a word names; `None` if it is not one of the region.
    pub(super) fn find(&self, word: u32) -> Option<Watch> {
        let (number, slots) = ((word & 0xffff).checked_sub(1)?, word >> 16);
        RingSpec { first: number, rings: 1, slots }.check(&self.geometry).ok()?;
        let memory = RingMemory::of(&self.mapping, &self.geometry, number, slots)?;
        Some(Watch { word, memory, slots, answered: AtomicU32::new(0) })
    }

    /// Gives the frames of slots to a monitor. If it has too few free slots, the first ones are not
    /// shown.
    pub(super) fn show(&self, watch: &Watch, given: Given<'_>, by: &impl Pass) {
        let control = &watch.memory.control;
        if !watch.hold() {
            return;
        }
        let (core, owner) = (control.core.0.own(), control.owner.0.observe());
        if core < watch.slots && owner < watch.slots {
            let to = watch.fill((core, owner), given, by);
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
    /// What the ring's slots hold besides frames.
    pub(super) fn format(&self) -> Format {
        self.memory.control.owner_flags.0.format()
    }

    /// The next monitor of a list: see [`copier`](netring::layout::copier).
    pub(super) fn next(&self, list: usize) -> u32 {
        self.memory.control.owner_flags.0.copiers[list].load(Relaxed)
    }

    /// Locks the ring against others that fill it; false if another one keeps it.
    fn hold(&self) -> bool {
        let filling = &self.memory.control.core_flags.0.filling;
        let is_free = || filling.load(Relaxed) == 0;
        for _ in 0..TRIES {
            if is_free() && hold::take(filling).is_ok() {
                return true;
            }
            std::hint::spin_loop();
        }
        // Its process may have died, or may be stopped: then this monitor misses frames.
        hold::take(filling).is_ok()
    }

    /// Puts frames into the free slots from `core` on; returns where they end.
    fn fill(&self, (core, owner): (u32, u32), given: Given<'_>, by: &impl Pass) -> u32 {
        let Given { slots, from, to, flag } = given;
        let count = slots.len() as u32;
        let room = distance(core, previous(owner, self.slots), self.slots);
        let hidden = distance(from, to, count).saturating_sub(room);
        let (mut at, mut free) = ((from + hidden) % count, core);
        while at != to {
            let (theirs, ours) = (&slots[at as usize], &self.memory.slots[free as usize]);
            at = next(at, count);
            if by.pass((theirs, theirs.load()), (ours, ours.load()), flag) {
                free = next(free, self.slots);
            }
        }
        free
    }
}
