//! A card whose descriptors point at the buffers of netmap's slots (netmap(4)): no byte is copied.
//!
//! ```text
//!   send ring      submitted slot  --> transmit descriptor --> card;  sent: the slot comes back
//!   receive ring   released slot   --> receive descriptor  --> card;  filled: the program sees it
//! ```
//!
//! It plays the core for two rings of a region. Slots and descriptors keep the same order, so the
//! cursors of the rings say which buffers the card has. A driver that resets the card needs nothing
//! else to go on.

use std::ops::Range;

use driver::Lent;
use netring::layout::{
    Geometry, RESERVED_BUFFERS, RingMemory, SlotWord, advance, distance, next, previous, slot_flags,
};

use super::Counts;
use super::bridge::{Addresses, LONGEST, SHORTEST};

/// A ring, and what the card has of it.
#[derive(Debug)]
struct Way {
    ring: RingMemory,
    slots: u32,
    /// The slot after those that the card has. They begin where the core's position is.
    at: u32,
    /// The client's last request for a wake-up that was answered.
    answered: u32,
}

impl Way {
    fn new(ring: RingMemory) -> Self {
        let slots = ring.slots.len() as u32;
        let mut way = Self { ring, slots, at: 0, answered: 0 };
        way.restart();
        way
    }

    /// The core's position.
    fn core(&self) -> u32 {
        self.ring.control.core.0.own().min(self.slots - 1)
    }

    /// The card has none of the slots.
    fn restart(&mut self) {
        self.at = self.core();
    }

    /// The client's position, if it does not lie before what the card has.
    fn owner(&self) -> Option<u32> {
        let owner = self.ring.control.owner.0.observe();
        let has = |end| {
            distance(self.core(), self.at, self.slots) <= distance(self.core(), end, self.slots)
        };
        (owner < self.slots && has(owner)).then_some(owner)
    }

    /// Publishes the core's position. True if the client asks to be woken.
    fn publish(&mut self, core: u32) -> bool {
        if core == self.core() {
            return false;
        }
        self.ring.control.core.0.publish(core);
        self.ring.control.owner_flags.0.wake.must_kick(&mut self.answered)
    }
}

/// Where the card finds the buffers of a region.
#[derive(Clone, Copy, Debug)]
struct Pool {
    addresses: Addresses,
    count: u32,
}

impl Pool {
    fn address(self, buf: u32) -> Option<u64> {
        let good = (RESERVED_BUFFERS..self.count).contains(&buf);
        good.then(|| self.addresses.at(buf))
    }
}

/// What a turn has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Slots that came back, or were filled.
    pub moved: u32,
    /// A client sleeps that has asked to be woken.
    pub wake: bool,
}

/// A driver, and the two rings that it serves.
#[derive(Debug)]
pub struct Netmap<D> {
    nic: D,
    send: Way,
    receive: Way,
    pool: Pool,
    /// The slots of the send ring that the card did not get.
    refused: Box<[bool]>,
    /// The frame of the last refused slot goes on in the next one.
    inside: bool,
    counts: Counts,
}

/// The least room that a buffer needs: cards write up to so many bytes.
pub const BUFFER: u32 = 2048;

impl<D: Lent> Netmap<D> {
    /// Joins a driver without buffers ([`Given::lent`](super::Given::lent) is empty) and two rings
    /// of a region. The card finds the region's buffers from its address `first` on. `None` if its
    /// buffers are shorter than [`BUFFER`].
    #[must_use]
    pub fn new(
        nic: D,
        (send, receive): (RingMemory, RingMemory),
        geometry: &Geometry,
        first: u64,
    ) -> Option<Self> {
        let addresses = Addresses { first, stride: geometry.buf_size.into() };
        let pool = Pool { addresses, count: geometry.buf_num };
        let refused = vec![false; send.slots.len()].into();
        let (send, receive) = (Way::new(send), Way::new(receive));
        let counts = Counts::default();
        let joined = Self { nic, send, receive, pool, refused, inside: false, counts };
        (geometry.buf_size >= BUFFER).then_some(joined)
    }

    /// The driver.
    pub fn nic(&mut self) -> &mut D {
        &mut self.nic
    }

    /// How many frames went which way so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Goes on after the driver has brought the card up again: the card has no slots. What was not
    /// sent is sent again.
    pub fn restart(&mut self) {
        self.send.restart();
        self.receive.restart();
        self.refused.fill(false);
        self.inside = false;
    }

    /// Gives the card what the client has submitted and released, and takes back what it is done
    /// with.
    pub fn turn(&mut self) -> Turn {
        let sent = self.take_back();
        self.submit();
        // What comes back damaged is given again.
        self.give();
        let received = self.receive();
        self.give();
        self.nic.publish();
        Turn { moved: sent.moved + received.moved, wake: sent.wake | received.wake }
    }

    fn submit(&mut self) {
        let Some(end) = self.send.owner() else { return };
        let mut room = self.nic.room();
        while self.send.at != end && room > 0 {
            let at = self.send.at;
            let word = self.send.ring.slots[at as usize].load();
            let is_part = self.inside || word.flags & slot_flags::MOREFRAG != 0;
            self.inside = word.flags & slot_flags::MOREFRAG != 0;
            let good = !is_part && (SHORTEST as usize..=LONGEST).contains(&word.len.into());
            let address = self.pool.address(word.buf).filter(|_| good);
            if address.is_some_and(|at| self.nic.send_lent(&[(at, word.len.into())])) {
                self.counts.sent += 1;
                room -= 1;
            } else {
                self.refused[at as usize] = true;
                self.counts.unsendable += 1;
            }
            self.send.at = next(at, self.send.slots);
        }
    }

    fn take_back(&mut self) -> Turn {
        let Self { nic, send, refused, .. } = self;
        let (from, mut core, mut back) = (send.core(), send.core(), nic.take_back());
        while core != send.at {
            if !std::mem::take(&mut refused[core as usize]) {
                if back == 0 {
                    break;
                }
                back -= 1;
            }
            core = next(core, send.slots);
        }
        Turn { moved: distance(from, core, send.slots), wake: send.publish(core) }
    }

    /// Gives the card the buffers of released slots.
    fn give(&mut self) {
        let Self { nic, receive, pool, .. } = self;
        let owner = receive.ring.control.owner.0.observe();
        if owner >= receive.slots {
            return;
        }
        let limit = previous(owner, receive.slots);
        if distance(receive.core(), receive.at, receive.slots)
            > distance(receive.core(), limit, receive.slots)
        {
            return;
        }
        while receive.at != limit {
            let slot = &receive.ring.slots[receive.at as usize];
            let word = slot.load();
            let (buf, address) = match pool.address(word.buf) {
                Some(address) => (word.buf, address),
                None => (RESERVED_BUFFERS, pool.addresses.at(RESERVED_BUFFERS)),
            };
            if !nic.give(address) {
                break;
            }
            slot.store(SlotWord { buf, len: 0, flags: 0 });
            receive.at = next(receive.at, receive.slots);
        }
    }

    fn receive(&mut self) -> Turn {
        let Self { nic, receive, counts, .. } = self;
        let (slots, from) = (receive.slots, receive.core());
        let (mut core, mut at) = (from, receive.at);
        let has = distance(core, at, slots);
        nic.take(has as usize, |len| match len.filter(|len| *len >= SHORTEST) {
            Some(len) => {
                let slot = &receive.ring.slots[core as usize];
                slot.store(SlotWord { buf: slot.load().buf, len: len as u16, flags: 0 });
                core = next(core, slots);
                counts.received += 1;
            }
            None => {
                at = previous(at, slots);
                rotate(&receive.ring, core..at, slots);
                counts.damaged += 1;
            }
        });
        receive.at = at;
        Turn { moved: distance(from, core, slots), wake: receive.publish(core) }
    }
}

/// Puts the buffer of the first slot of these, and of the one after them, to their end.
fn rotate(ring: &RingMemory, among: Range<u32>, slots: u32) {
    let first = ring.slots[among.start as usize].load();
    for i in 0..distance(among.start, among.end, slots) {
        let [to, from] = [i, i + 1].map(|i| &ring.slots[advance(among.start, i, slots) as usize]);
        to.store(from.load());
    }
    ring.slots[among.end as usize].store(first);
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use driver::Piece;
    use proptest::prelude::*;
    use shmem::{Mapping, Memfd, Pages};

    use super::*;

    const SLOTS: u32 = 8;
    const GEOMETRY: Geometry = Geometry {
        if_size: 1024,
        if_num: 1,
        ring_size: 4096,
        ring_num: 2,
        buf_size: BUFFER,
        buf_num: 2 * SLOTS + RESERVED_BUFFERS,
    };
    const FIRST: u64 = 1 << 24;

    /// A card that does what the test says. It has fewer descriptors than the rings have slots.
    #[derive(Debug, Default)]
    struct Played {
        sending: VecDeque<u64>,
        sent: usize,
        receiving: VecDeque<u64>,
        filled: VecDeque<Option<u32>>,
    }

    impl Lent for Played {
        fn room(&self) -> usize {
            5 - self.sending.len() - self.sent
        }
        fn most_pieces(&self) -> usize {
            1
        }
        fn send_lent(&mut self, pieces: &[(u64, u32)]) -> bool {
            self.sending.extend(pieces.iter().map(|(at, _)| at));
            true
        }
        fn take_back(&mut self) -> usize {
            std::mem::take(&mut self.sent)
        }
        fn trade(&mut self, _: usize, _: impl FnMut(u32, Option<Piece>) -> Option<u64>) -> usize {
            unreachable!("buffers are given")
        }
        fn give(&mut self, at: u64) -> bool {
            let has_room = self.receiving.len() + self.filled.len() < 5;
            if has_room {
                self.receiving.push_back(at);
            }
            has_room
        }
        fn take(&mut self, budget: usize, mut visit: impl FnMut(Option<u32>)) -> usize {
            let count = budget.min(self.filled.len());
            self.filled.drain(..count).for_each(&mut visit);
            count
        }
        fn publish(&mut self) {}
        fn has_frames(&self) -> bool {
            !self.filled.is_empty()
        }
        fn carrier(&mut self) -> bool {
            true
        }
        fn missed(&mut self) -> u64 {
            0
        }
    }

    struct Region {
        mapping: Arc<Mapping>,
        send: RingMemory,
        receive: RingMemory,
    }

    impl Region {
        fn new() -> Self {
            let len = GEOMETRY.file_size() as usize;
            let mapping = Memfd::create("test", len, Pages::Small).unwrap().map().unwrap();
            let [send, receive] = [0, 1].map(|ring| Self::ring(&mapping, ring));
            for (i, slot) in (0..).zip(send.slots.iter().chain(receive.slots.iter())) {
                slot.store(SlotWord { buf: RESERVED_BUFFERS + i, len: 0, flags: 0 });
            }
            Self { mapping, send, receive }
        }

        fn ring(mapping: &Arc<Mapping>, ring: u32) -> RingMemory {
            RingMemory::of(mapping, &GEOMETRY, ring, SLOTS).unwrap()
        }

        fn card(&self) -> Netmap<Played> {
            let rings = (Self::ring(&self.mapping, 0), Self::ring(&self.mapping, 1));
            Netmap::new(Played::default(), rings, &GEOMETRY, FIRST).unwrap()
        }
    }

    fn buffer(at: u64) -> u32 {
        ((at - FIRST) / u64::from(BUFFER)) as u32
    }

    /// What happens between two turns.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// The program submits a frame of this length; with `true`, as a part of a longer one.
        Submit(u16, bool),
        /// The card has sent the oldest frame.
        Sent,
        /// A frame of this length came; `None` for one that is damaged.
        Came(Option<u32>),
        /// The program looks at a frame and releases its slot.
        Release,
        /// Another process takes the card over.
        Restart,
    }

    fn event() -> impl Strategy<Value = Event> {
        let len = prop_oneof![Just(60), Just(1514), Just(13), Just(2000)];
        prop_oneof![
            4 => (len, prop::bool::weighted(0.1)).prop_map(|(len, part)| Event::Submit(len, part)),
            4 => Just(Event::Sent),
            4 => prop::option::weighted(0.7, 14_u32..1519).prop_map(Event::Came),
            4 => Just(Event::Release),
            1 => Just(Event::Restart),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order, each buffer is in one slot, slots come back in
        /// order, and each frame arrives in the slot whose buffer it was written to.
        #[test]
        fn no_slot_and_no_frame_is_lost(events in prop::collection::vec(event(), 1..200)) {
            let region = Region::new();
            let mut card = region.card();
            let (send, receive) = (&region.send.control, &region.receive.control);
            let mut came = VecDeque::new();
            for event in events {
                match event {
                    Event::Submit(len, part) => {
                        let (from, core) = (send.owner.0.own(), send.core.0.observe());
                        if from != previous(core, SLOTS) {
                            let slot = &region.send.slots[from as usize];
                            let flags = if part { slot_flags::MOREFRAG } else { 0 };
                            slot.store(SlotWord { len, flags, ..slot.load() });
                            send.owner.0.publish(next(from, SLOTS));
                        }
                    }
                    Event::Sent => {
                        let nic = card.nic();
                        nic.sent += usize::from(nic.sending.pop_front().is_some());
                    }
                    Event::Came(len) => {
                        if let Some(at) = card.nic().receiving.pop_front() {
                            card.nic().filled.push_back(len);
                            came.extend(len.map(|len| (buffer(at), len)));
                        }
                    }
                    Event::Release => {
                        let (from, to) = (receive.owner.0.own(), receive.core.0.observe());
                        if from != to {
                            let word = region.receive.slots[from as usize].load();
                            prop_assert_eq!(came.pop_front(), Some((word.buf, word.len.into())));
                            receive.owner.0.publish(next(from, SLOTS));
                        }
                    }
                    Event::Restart => {
                        // Frames in the card are lost; those that the program can see are not.
                        let seen = distance(receive.owner.0.own(), receive.core.0.observe(), SLOTS);
                        came.truncate(seen as usize);
                        *card.nic() = Played::default();
                        card.restart();
                    }
                }
                card.turn();
                let all = region.send.slots.iter().chain(region.receive.slots.iter());
                let mut buffers: Vec<_> = all.map(|slot| slot.load().buf).collect();
                buffers.sort_unstable();
                prop_assert!(buffers.into_iter().eq(RESERVED_BUFFERS..GEOMETRY.buf_num));
            }
            // In the end everything comes back.
            for _ in 0..2 * SLOTS {
                let nic = card.nic();
                nic.sent += nic.sending.drain(..).count();
                card.turn();
            }
            prop_assert_eq!(send.core.0.observe(), send.owner.0.own());
        }
    }

    /// Cursors and slots that the program has no right to write change nothing but its own frames.
    #[test]
    fn cursors_outside_of_the_ring_are_ignored() {
        let region = Region::new();
        let mut card = region.card();
        card.turn();
        for wrong in [SLOTS, u32::MAX] {
            region.send.control.owner.0.publish(wrong);
            region.receive.control.owner.0.publish(wrong);
            assert_eq!(card.turn(), Turn::default());
        }
        region.send.slots[0].store(SlotWord { buf: u32::MAX, len: 60, flags: 0 });
        region.send.control.owner.0.publish(1);
        // It comes back with what was sent, at the next turn.
        let moved = card.turn().moved + card.turn().moved;
        assert_eq!((moved, card.counts().unsendable), (1, 1));
        assert!(card.nic().sending.is_empty());
    }
}
