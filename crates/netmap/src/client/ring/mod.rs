//! One ring: carries out `NIOCTXSYNC` and `NIOCRXSYNC` (netmap(4), "SYNCHRONIZATION OPERATIONS").
//!
//! The ring's control block holds what was submitted and released. All processes that have the port
//! share it, so nothing is kept here.
//!
//! A syncing process locks the ring by writing its process number there. As in the kernel, another
//! process that finds the ring locked skips it. A lock of a dead process is taken over.

mod monitors;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};

use netring::layout::{
    Format, MAX_FRAGS, RESERVED_BUFFERS, RingMemory, Slot, SlotWord, distance, next, previous,
    slot_flags,
};

use super::UserMemory;
use super::hold::Held;
use super::watch::{Watch, Watchers};

/// Bytes of an Ethernet header. Shorter frames are not forwarded.
const SHORTEST: usize = 14;

/// A ring and its other side.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) memory: RingMemory,
    pub(super) peer: Peer,
    pub(super) end: End,
    pub(super) slots: u32,
    pool: Buffers,
    /// What finds the monitors that the ring's frames go to, and those that were found.
    watchers: Arc<Watchers>,
    known: Mutex<Vec<Arc<Watch>>>,
    /// The peer's latest wake-up request that was answered.
    answered: AtomicU32,
}

/// The buffers of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    /// The address of buffer 0.
    pub(super) at: usize,
    pub(super) count: u32,
    pub(super) bytes: u32,
}

/// The port that a ring belongs to. Only interfaces have a second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The port that was opened.
    Port,
    /// The host behind it.
    Host,
}

/// The ends whose peers sleep and must be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wake {
    pub(super) port: bool,
    pub(super) host: bool,
}

impl Wake {
    /// Notes the result of a sync of a ring of this end.
    pub(super) fn note(&mut self, end: End, synced: Synced) {
        let wake = synced == Synced::Wake;
        match end {
            End::Port => self.port |= wake,
            End::Host => self.host |= wake,
        }
    }
}

/// The other side of a ring.
#[derive(Debug)]
pub(super) enum Peer {
    /// A switch, which reads the ring itself.
    Switch,
    /// The other end of a pipe, with its ring.
    Twin(Box<RingMemory>),
    /// The ring has no other side.
    Nobody,
}

/// The result of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Synced {
    /// Done; the other side sleeps and must be woken.
    Wake,
    /// The sync is done, and no wake-up is needed.
    Quiet,
    /// The program's cursors were invalid; the ring was reset to the position that the core knows.
    Reset,
}

impl Ring {
    pub(super) fn new(
        memory: RingMemory,
        (peer, end): (Peer, End),
        slots: u32,
        pool: Buffers,
        watchers: Arc<Watchers>,
    ) -> Self {
        let (known, answered) = (Mutex::default(), AtomicU32::new(0));
        Self { memory, peer, end, slots, pool, watchers, known, answered }
    }

    /// Returns true if the ring is a monitor's, and the port that it monitors is gone.
    pub(super) fn has_lost_its_port(&self) -> bool {
        self.memory.control.core_flags.0.fault.load(Relaxed) != 0
    }

    /// Locks the ring for a sync; `None` if another process or thread syncs it.
    fn hold(&self) -> Option<Held<'_>> {
        Held::of(&self.memory.header.holder).ok()
    }

    fn head(&self) -> u32 {
        self.memory.header.head.load(Relaxed)
    }

    /// Returns the tail that the program sees.
    pub(super) fn tail(&self) -> u32 {
        self.memory.header.tail.load(Relaxed)
    }

    /// Returns true if the program has moved its head since the last sync.
    pub(super) fn has_news(&self) -> bool {
        self.head() != self.memory.control.owner.0.own()
    }

    /// Returns true if slots are available from the program's `cur` on.
    pub(super) fn is_ready(&self) -> bool {
        self.memory.header.cur.load(Relaxed) != self.memory.header.tail.load(Relaxed)
    }

    /// Returns true if a switch has taken everything that was submitted.
    pub(super) fn is_done(&self) -> bool {
        self.memory.control.core.0.observe() == self.memory.control.owner.0.own()
    }

    /// Returns the position up to which the other side has returned slots of a send ring. The
    /// caller holds the ring, if it has a twin.
    fn send_core(&self) -> u32 {
        match &self.peer {
            Peer::Switch => self.memory.control.core.0.observe(),
            Peer::Twin(twin) => self.take_back(twin),
            Peer::Nobody => self.memory.control.owner.0.own(),
        }
    }

    /// Takes back the slots that the other end of a pipe has released, with the buffers that it has
    /// left in them; returns their end. The other end does not write to this ring: so its slots
    /// stay in this end's cache.
    fn take_back(&self, twin: &RingMemory) -> u32 {
        let (back, slots) = (&self.memory.control.core.0, self.slots);
        let (from, to) = (back.own(), twin.control.owner.0.observe());
        let sent = self.memory.control.owner.0.own();
        let valid = from < slots
            && to < slots
            && sent < slots
            && distance(from, to, slots) <= distance(from, sent, slots);
        if from == to || !valid {
            return from;
        }
        let (mut at, has_offsets) = (from, self.format().offset_mask() != 0);
        while at != to {
            let (ours, theirs) = (&self.memory.slots[at as usize], &twin.slots[at as usize]);
            let word = theirs.load();
            if ours.load() != word {
                ours.store(word);
            }
            if has_offsets {
                ours.ptr.store(theirs.ptr.load(Relaxed), Relaxed);
            }
            at = next(at, slots);
        }
        self.show(from, to, slot_flags::TXMON);
        back.publish(to);
        to
    }

    /// Returns the program's head, if it and `cur` are valid: between `from` and `limit`.
    fn checked_head(&self, from: u32, limit: u32) -> Option<u32> {
        let (head, cur) = (self.head(), self.memory.header.cur.load(Relaxed));
        let slots = self.slots;
        let in_ring = head < slots && cur < slots && limit < slots && from < slots;
        let good = in_ring
            && distance(from, head, slots) <= distance(from, limit, slots)
            && distance(head, cur, slots) <= distance(head, limit, slots);
        good.then_some(head)
    }

    /// Stores the core's position as the program's tail.
    fn show_tail(&self, tail: u32) {
        if self.memory.header.tail.load(Relaxed) != tail {
            self.memory.header.tail.store(tail, Release);
        }
    }

    /// Resets the program's cursors to the core's position, and repairs its slots.
    #[cold]
    fn reset(&self, head: u32, tail: u32) -> Synced {
        let (mut at, format) = (head, self.format());
        while at < self.slots && tail < self.slots && at != tail {
            let slot = &self.memory.slots[at as usize];
            let word = slot.load();
            if !self.has_buffer(word.buf) {
                slot.store(SlotWord { buf: 0, len: 0, ..word });
            } else if !self.fits(slot, word, format) {
                slot.store(SlotWord { len: 0, ..word });
            }
            at = next(at, self.slots);
        }
        let header = &self.memory.header;
        header.head.store(head, Relaxed);
        header.cur.store(head, Relaxed);
        header.tail.store(tail, Relaxed);
        Synced::Reset
    }

    /// What the ring's slots hold besides frames.
    fn format(&self) -> Format {
        self.memory.control.owner_flags.0.format()
    }

    /// Returns true if a slot's bytes lie within its buffer.
    fn fits(&self, slot: &Slot, word: SlotWord, format: Format) -> bool {
        let room = u64::from(self.pool.bytes).checked_sub(slot.offset(format));
        room.is_some_and(|room| u64::from(word.len) <= room)
    }

    fn has_buffer(&self, buf: u32) -> bool {
        (RESERVED_BUFFERS..self.pool.count).contains(&buf)
    }

    /// Carries out `NIOCTXSYNC`.
    pub(super) fn sync_send(&self, user: &dyn UserMemory) -> Synced {
        let Some(_held) = self.hold() else { return Synced::Quiet };
        let from = self.memory.control.owner.0.own();
        let core = self.send_core();
        let limit = previous(core, self.slots);
        let Some(head) = self.checked_head(from, limit) else { return self.reset(from, limit) };
        let must_wake = head != from && self.submit(from, head, user);
        let core = match self.peer {
            // It has shown what it took back.
            Peer::Twin(_) => core,
            _ => {
                let core = self.send_core();
                self.show(next(self.tail(), self.slots), core, slot_flags::TXMON);
                core
            }
        };
        self.show_tail(previous(core, self.slots));
        if must_wake { Synced::Wake } else { Synced::Quiet }
    }

    /// Submits the slots `from..head`; returns true if the other side must be woken.
    fn submit(&self, from: u32, head: u32, user: &dyn UserMemory) -> bool {
        let owner = &self.memory.control.owner.0;
        match &self.peer {
            Peer::Switch => {
                self.check_frames(from, head, user);
                owner.publish(head);
                self.must_wake(&self.memory.control.core_flags.0.wake)
            }
            Peer::Twin(twin) => {
                let end = self.copy_frames(from, head, &twin.slots);
                if end == from {
                    return false;
                }
                self.copy_to_monitors(from, end);
                twin.control.core.0.publish(end);
                owner.publish(end);
                self.must_wake(&twin.control.owner_flags.0.wake)
            }
            Peer::Nobody => {
                self.copy_to_monitors(from, head);
                owner.publish(head);
                false
            }
        }
    }

    fn must_wake(&self, flag: &shmem::WakeFlag) -> bool {
        let mut answered = self.answered.load(Relaxed);
        let must = flag.must_kick(&mut answered);
        if must {
            self.answered.store(answered, Relaxed);
        }
        must
    }

    /// Prepares frames for the switch. A slot that the switch would refuse becomes an empty frame,
    /// which it drops and counts.
    fn check_frames(&self, from: u32, head: u32, user: &dyn UserMemory) {
        const ODD: u16 = slot_flags::MOREFRAG | slot_flags::INDIRECT | slot_flags::BUF_CHANGED;
        let (mut at, mut count, format) = (from, 0, self.format());
        while at != head {
            let slot = &self.memory.slots[at as usize];
            let word = slot.load();
            let after = next(at, self.slots);
            // The bytes of an indirect slot are put at the start of its buffer.
            let is_indirect = word.flags & slot_flags::INDIRECT != 0;
            let format = if is_indirect { Format::PLAIN } else { format };
            let good = self.has_buffer(word.buf) && self.fits(slot, word, format);
            if !good || word.flags & ODD != 0 || count != 0 {
                count = self.check_frame_slot(slot, word, good, count, after == head, user);
            }
            at = after;
        }
    }

    /// Prepares a slot that needs a change or is a fragment. Returns the number of fragments of its
    /// frame so far, or 0 at the frame's end.
    #[cold]
    fn check_frame_slot(
        &self,
        slot: &Slot,
        mut word: SlotWord,
        good: bool,
        count: usize,
        last: bool,
        user: &dyn UserMemory,
    ) -> usize {
        let was = word;
        if !good {
            let buf = if self.has_buffer(word.buf) { word.buf } else { RESERVED_BUFFERS };
            (word.buf, word.len) = (buf, 0);
        }
        if word.flags & slot_flags::INDIRECT != 0 {
            word.len = self.copy_indirect(slot, word, user);
        }
        word.flags &= !(slot_flags::INDIRECT | slot_flags::BUF_CHANGED);
        if last || count + 1 == MAX_FRAGS {
            word.flags &= !slot_flags::MOREFRAG;
        }
        if word != was {
            slot.store(word);
        }
        if word.flags & slot_flags::MOREFRAG != 0 { count + 1 } else { 0 }
    }

    /// Copies the data of an indirect slot into the slot's own buffer; returns its length.
    fn copy_indirect(&self, slot: &Slot, word: SlotWord, user: &dyn UserMemory) -> u16 {
        let mut bytes = vec![0; word.len.into()];
        let read = user.read(slot.ptr.load(Relaxed), &mut bytes);
        let to = self.buffer(word.buf);
        slot.ptr.fetch_and(!self.format().offset_mask(), Relaxed);
        match (read, to) {
            (Ok(()), Some(to)) => to.copy_in(&bytes) as u16,
            _ => 0,
        }
    }

    fn buffer(&self, number: u32) -> Option<shmem::Bytes<'_>> {
        let size = self.pool.bytes as usize;
        self.memory.header.mapping().bytes(self.pool.at + number as usize * size, size)
    }

    /// Copies slots to the other end of a pipe, up to the end of the last complete frame.
    fn copy_frames(&self, from: u32, head: u32, to: &[Slot]) -> u32 {
        let mut end = head;
        while end != from {
            let last = previous(end, self.slots);
            if self.memory.slots[last as usize].load().flags & slot_flags::MOREFRAG == 0 {
                break;
            }
            end = last;
        }
        let mut at = from;
        while at != end {
            let slot = &self.memory.slots[at as usize];
            let word = slot.load();
            to[at as usize].store(word);
            to[at as usize].ptr.store(slot.ptr.load(Relaxed), Relaxed);
            if word.flags & slot_flags::BUF_CHANGED != 0 {
                slot.store(SlotWord { flags: word.flags & !slot_flags::BUF_CHANGED, ..word });
            }
            at = next(at, self.slots);
        }
        end
    }

    /// Carries out `NIOCRXSYNC`.
    pub(super) fn sync_receive(&self) -> Synced {
        let Some(_held) = self.hold() else { return Synced::Quiet };
        let control = &self.memory.control;
        let (from, tail) = (control.owner.0.own(), control.core.0.observe());
        let Some(head) = self.checked_head(from, tail) else { return self.reset(from, tail) };
        let must_wake = head != from && self.release(from, head);
        self.show_tail(tail);
        if must_wake { Synced::Wake } else { Synced::Quiet }
    }

    /// Carries out `NIOCRXSYNC` in transparent mode (netmap(4), "NR_FORWARD"): frames in released
    /// slots with `NS_FORWARD`, or in all released slots, go on to the other end by the ring
    /// `onward`. While that ring is full, their slots stay unreleased. Returns the results of both
    /// rings.
    pub(super) fn sync_and_forward(&self, onward: &Self, all: bool) -> (Synced, Synced) {
        let Some(_held) = self.hold() else { return (Synced::Quiet, Synced::Quiet) };
        let control = &self.memory.control;
        let (from, tail) = (control.owner.0.own(), control.core.0.observe());
        let Some(head) = self.checked_head(from, tail) else {
            return (self.reset(from, tail), Synced::Quiet);
        };
        let (end, onward) = self.forward(from, head, onward, all);
        let must_wake = end != from && self.release(from, end);
        self.show_tail(tail);
        (if must_wake { Synced::Wake } else { Synced::Quiet }, onward)
    }

    /// Returns true if slots that the program has released wait to be forwarded.
    pub(super) fn has_unreleased(&self) -> bool {
        self.has_news()
    }

    /// Moves the flagged frames of the slots `from..head` to `onward`, or all, with their buffers.
    /// Returns up to where slots are done with, and whether the other end must be woken.
    fn forward(&self, from: u32, head: u32, onward: &Self, all: bool) -> (u32, Synced) {
        // If another descriptor forwards, all slots wait for the next sync.
        let Some(_held) = onward.hold() else { return (from, Synced::Quiet) };
        let owner = &onward.memory.control.owner.0;
        let (first, limit) = (owner.own(), previous(onward.send_core(), onward.slots));
        let (mut at, mut put) = (from, first);
        while at != head {
            let end = self.end_of_frame(at, head);
            let len = distance(at, end, self.slots);
            if self.is_to_forward(at, end, all) && len < onward.slots {
                if len > distance(put, limit, onward.slots) {
                    break;
                }
                put = self.move_frame(at, end, onward, put);
            }
            at = end;
        }
        if put == first {
            return (at, Synced::Quiet);
        }
        owner.publish(put);
        let must_wake = onward.must_wake(&onward.memory.control.core_flags.0.wake);
        (at, if must_wake { Synced::Wake } else { Synced::Quiet })
    }

    /// Returns the slot after the frame that begins at `at`.
    fn end_of_frame(&self, at: u32, head: u32) -> u32 {
        let mut end = at;
        loop {
            let more = self.memory.slots[end as usize].load().flags & slot_flags::MOREFRAG != 0;
            end = next(end, self.slots);
            if end == head || !more || distance(at, end, self.slots) as usize == MAX_FRAGS {
                return end;
            }
        }
    }

    /// Returns true if the frame in `at..end` is flagged, or `all` are forwarded, and each of its
    /// slots is valid.
    fn is_to_forward(&self, mut at: u32, end: u32, all: bool) -> bool {
        let format = self.format();
        let flags = self.memory.slots[at as usize].load().flags;
        let is_flagged = all || flags & slot_flags::FORWARD != 0;
        let mut len = 0;
        while is_flagged && at != end {
            let slot = &self.memory.slots[at as usize];
            let word = slot.load();
            if !self.has_buffer(word.buf) || !self.fits(slot, word, format) {
                return false;
            }
            len += usize::from(word.len);
            at = next(at, self.slots);
        }
        is_flagged && len >= SHORTEST
    }

    /// Swaps the buffers of a frame with those of slots of `onward`, where its bytes start at the
    /// same offsets. Returns the slot after them.
    fn move_frame(&self, mut at: u32, end: u32, onward: &Self, mut put: u32) -> u32 {
        let format = self.format();
        while at != end {
            let (from, to) = (&self.memory.slots[at as usize], &onward.memory.slots[put as usize]);
            let (theirs, word) = (to.load(), from.load());
            at = next(at, self.slots);
            put = next(put, onward.slots);
            let flags = if at == end { 0 } else { slot_flags::MOREFRAG };
            // The program may have changed the word since it was checked.
            let buf = if self.has_buffer(word.buf) { word.buf } else { RESERVED_BUFFERS };
            let offset = from.offset(format).min(self.pool.bytes.into());
            let len = u64::from(word.len).min(u64::from(self.pool.bytes) - offset) as u16;
            to.store(SlotWord { buf, len, flags });
            to.ptr.store(offset, Relaxed);
            from.store(SlotWord { buf: theirs.buf, len: word.len, flags: 0 });
        }
        put
    }

    /// Releases the slots `from..head`; returns true if the other side must be woken.
    fn release(&self, from: u32, head: u32) -> bool {
        self.show(from, head, 0);
        let owner = &self.memory.control.owner.0;
        match &self.peer {
            Peer::Switch => {
                self.check_released(from, head);
                owner.publish(head);
                self.must_wake(&self.memory.control.core_flags.0.wake)
            }
            Peer::Twin(twin) => {
                owner.publish(head);
                self.must_wake(&twin.control.owner_flags.0.wake)
            }
            Peer::Nobody => {
                owner.publish(head);
                false
            }
        }
    }

    /// Repairs released slots for the switch: each must have a buffer of the region.
    fn check_released(&self, from: u32, head: u32) {
        let mut at = from;
        while at != head {
            let slot = &self.memory.slots[at as usize];
            let word = slot.load();
            if !self.has_buffer(word.buf) || word.flags & slot_flags::BUF_CHANGED != 0 {
                let buf = if self.has_buffer(word.buf) { word.buf } else { RESERVED_BUFFERS };
                let flags = word.flags & !slot_flags::BUF_CHANGED;
                slot.store(SlotWord { buf, flags, ..word });
            }
            at = next(at, self.slots);
        }
    }

    /// Asks for a wake-up when the core moves. The request is never withdrawn, because others may
    /// wait for the same ring.
    pub(super) fn arm(&self) {
        self.memory.control.owner_flags.0.wake.arm();
    }

    /// Writes the time into the ring's header.
    pub(super) fn stamp(&self, (seconds, micros): (u64, u64)) {
        self.memory.header.ts[0].store(seconds, Relaxed);
        self.memory.header.ts[1].store(micros, Relaxed);
    }
}
