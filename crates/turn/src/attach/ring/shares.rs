//! Fair shares of a receive ring that its senders flood.
//!
//! ```text
//!   | half of the slots: first come, first served | a quarter: in shares | a quarter: for new senders |
//! ```
//!
//! A ring that has overflowed is *flooded* until its senders keep to their shares again. While more
//! than half of it is full, each sender puts no more frames into it than its share of what the
//! owner takes out: a quarter of the ring's slots a round, divided by the number of senders. A
//! sender that stays below its share loses nothing to those that do not.
//!
//! Rings that never overflow, like those of senders with credits, look at one flag a batch.

use std::sync::atomic::{AtomicBool, Ordering};

use netring::layout::distance;
use spin::mutex::SpinMutex;

/// How many senders are told apart; others share by their numbers' remainders.
const SENDERS: usize = 1024;
/// Rounds within which no sender asked for more than its share, before the flood is over.
const CALM: u32 = 2;

/// The shares of a ring's senders.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The ring has overflowed, and its senders do not keep to their shares yet.
    ///
    /// # Protocol: `Shares.flooded`
    /// - Writer: holder of the egress lock
    /// - Reader: holder of the egress lock
    /// - Ordering: relaxed: the lock orders it
    /// - Partner: `rounds`
    /// - Without it: one sender fills the ring of its victim
    /// - Shown by: `turn` tests `shares`
    flooded: AtomicBool,
    /// Made when the ring overflows first.
    rounds: SpinMutex<Option<Box<Rounds>>>,
}

#[derive(Debug)]
struct Rounds {
    /// The owner's position when it was last seen.
    seen: u32,
    /// Slots that the owner has given back in this round.
    freed: u32,
    round: u32,
    /// The last round in which a sender asked for more than its share.
    exceeded: u32,
    /// Senders of the round before, and of this one so far.
    senders: [u32; 2],
    /// For each sender: the round in which it last sent, and its frames in that round.
    sent: Box<[(u32, u32)]>,
}

/// What a ring holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    /// Slots of the ring, and those that the owner holds.
    pub slots: u32,
    pub out: u32,
    /// The owner's position.
    pub released: u32,
}

impl Shares {
    #[inline(always)]
    pub fn flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }

    /// Notes that a frame found no room.
    #[cold]
    pub fn overflowed(&self, fill: Fill) {
        let mut rounds = self.rounds.lock();
        let rounds = rounds.get_or_insert_with(|| Box::new(Rounds::new()));
        if !self.flooded.swap(true, Ordering::Relaxed) {
            rounds.begin(fill);
        }
    }

    /// How many of a sender's frames the flooded ring takes: `frames` are the slots of each.
    #[cold]
    pub fn admit(&self, sender: u16, frames: impl Iterator<Item = u32>, fill: Fill) -> usize {
        let mut rounds = self.rounds.lock();
        let Some(rounds) = &mut *rounds else { return frames.count() };
        let admitted = rounds.admit(sender, frames, fill);
        if rounds.round.wrapping_sub(rounds.exceeded) > CALM {
            self.flooded.store(false, Ordering::Relaxed);
        }
        admitted
    }
}

impl Rounds {
    fn new() -> Self {
        // No sender has sent in round 0, as rounds begin at 1.
        let sent = vec![(0, 0); SENDERS].into();
        Self { seen: 0, freed: 0, round: 0, exceeded: 0, senders: [0; 2], sent }
    }

    /// Begins with a ring that has overflowed.
    fn begin(&mut self, fill: Fill) {
        self.round = self.round.wrapping_add(1);
        (self.seen, self.freed, self.exceeded) = (fill.released, 0, self.round);
        self.senders = [0; 2];
    }

    fn admit(&mut self, sender: u16, frames: impl Iterator<Item = u32>, fill: Fill) -> usize {
        let turnover = (fill.slots / 4).max(1);
        self.freed += distance(self.seen, fill.released, fill.slots);
        self.seen = fill.released;
        if self.freed >= turnover {
            self.freed = 0;
            self.round = self.round.wrapping_add(1);
            self.senders = [self.senders[1], 0];
        }
        let Some((round, sent)) = self.sent.get_mut(usize::from(sender) % SENDERS) else {
            return 0;
        };
        if *round != self.round {
            (*round, *sent) = (self.round, 0);
            self.senders[1] += 1;
        }
        let senders = self.senders[0].max(self.senders[1]).max(1);
        let share = (turnover / senders).max(1);
        let common = (fill.slots / 2).saturating_sub(fill.out);
        let allowed = common.max(share.saturating_sub(*sent));
        let (mut admitted, mut slots) = (0, 0);
        for frame in frames {
            // One frame a round, even if it is longer than the share.
            if slots + frame > allowed && (*sent > 0 || slots > 0) {
                self.exceeded = self.round;
                break;
            }
            slots += frame;
            admitted += 1;
        }
        *sent = sent.saturating_add(slots);
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 64;

    /// A ring of which only the numbers of slots are kept.
    struct Ring {
        shares: Shares,
        out: u32,
        released: u32,
    }

    impl Ring {
        fn new() -> Self {
            Self { shares: Shares::default(), out: 0, released: 0 }
        }

        fn fill(&self) -> Fill {
            Fill { slots: SLOTS, out: self.out, released: self.released }
        }

        /// A sender's frames: returns how many find room.
        fn send(&mut self, sender: u16, frames: usize) -> usize {
            let admitted = match self.shares.flooded() {
                true => self.shares.admit(sender, std::iter::repeat_n(1, frames), self.fill()),
                false => frames,
            };
            let placed = admitted.min((SLOTS - 1 - self.out) as usize);
            self.out += placed as u32;
            if placed < admitted {
                self.shares.overflowed(self.fill());
            }
            placed
        }

        fn take(&mut self, slots: u32) {
            let slots = slots.min(self.out);
            self.out -= slots;
            self.released = (self.released + slots) % SLOTS;
        }
    }

    #[test]
    fn a_sender_alone_fills_the_whole_ring() {
        let mut ring = Ring::new();
        assert_eq!(ring.send(1, 40) + ring.send(1, 40), 63);
    }

    #[test]
    fn a_sender_below_its_share_loses_nothing_to_a_flood() {
        for flooders in [1u16, 2, 7] {
            for taken in [1, 3, 16, 63] {
                let mut ring = Ring::new();
                let (mut lost, mut flood) = (0, 0);
                let mut owed = 0.0;
                for turn in 0..10_000u32 {
                    for flooder in 0..flooders {
                        flood += ring.send(10 + flooder, 64);
                    }
                    // A third of a fair share. The first turns are those until the ring is known to
                    // be flooded, and has been emptied once.
                    owed += f64::from(taken.min(16)) / f64::from(flooders + 1) / 3.0;
                    let frames = owed as usize;
                    owed -= frames as f64;
                    let placed = ring.send(1, frames);
                    if turn > 500 {
                        lost += frames - placed;
                    }
                    ring.take(taken);
                }
                assert_eq!(lost, 0, "{flooders} flooders, {taken} taken in a turn");
                let all = 10_000 * taken as usize;
                assert!(
                    flood > all / 4,
                    "{flooders}, {taken}: the flood gets what is left: {flood}"
                );
            }
        }
    }

    #[test]
    fn flooders_share_alike_and_after_the_flood_there_are_no_shares() {
        let mut ring = Ring::new();
        let mut got = [0; 4];
        for turn in 0..4000 {
            for sender in 0..4 {
                // The order of turns does not decide.
                let sender = (sender + turn) % 4;
                got[sender] += ring.send(sender as u16, 64);
            }
            ring.take(8);
        }
        let (most, least) = (got.iter().max().unwrap(), got.iter().min().unwrap());
        assert!(least * 10 >= most * 8, "{got:?}");
        assert!(ring.shares.flooded());
        for _ in 0..100 {
            ring.send(1, 1);
            ring.take(8);
        }
        ring.take(SLOTS);
        for _ in 0..200 {
            assert_eq!(ring.send(1, 4), 4);
            ring.take(4);
        }
        assert!(!ring.shares.flooded());
        assert_eq!(ring.send(2, 63), 63, "one sender may fill it again");
    }
}
